# SPDX-License-Identifier: Apache-2.0
"""A recurrent network beside attention, for docs/claims.md: loss past the training length, what order and far tokens
contribute, processor time. Writes benchmarks/recurrent_network.json.

    python benchmarks/recurrent_network.py [--seeds 3]     # what the .json has is not measured again
    python benchmarks/recurrent_network.py --table         # of the .json, in Markdown

The model is the host of `posenc compare`, standard preset. "gru" has a GRU of the same width, which takes as many parameters,
where the others have attention; Muon trains each of its six matrices, as it does attention's.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import Encoding, Positions, Transformer
from posenc.cache import KVCache
from posenc.lab.data import Corpus
from posenc.lab.experiment import Run
from posenc.lab.machine import describe
from posenc.lab.study import versions
from posenc.lab.text import Settings
from posenc.lab.train import build, train
from posenc.lab.transformer import TransformerBase

NUMBERS = Path(__file__).with_suffix(".json")
TIMED, TOKENS, REPEATS = (128, 512, 2048), 2048, 3
PASSAGES, NEAR = 500, 16
COMPARED = ("gru", "rope", "none")


class States:
    """In the place of a KV cache: of each layer the state after the tokens seen."""

    def __init__(self) -> None:
        self.of_layers: dict[int, Tensor] = {}
        self.seen = 0

    def __len__(self) -> int:
        return self.seen


class GRU(nn.Module):
    """torch.nn.GRU with its matrices apart, called as `posenc.lab.transformer.Attention` is. Its cache is the state."""

    query = key = None  # an encoding that shared the projections of attention would find none

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.of_input: nn.ModuleList = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.of_state: nn.ModuleList = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.shifts: nn.Parameter = nn.Parameter(torch.zeros(2, 3 * dim))
        for each in self.of_input:
            nn.init.normal_(each.weight, std=dim**-0.5)
        for each in self.of_state:
            nn.init.orthogonal_(each.weight)

    def forward(
        self, x: Tensor, encoding: Encoding, positions: Positions, layer: int, cache: "States | None"
    ) -> Tensor:
        matrices = [torch.cat([each.weight for each in part]) for part in (self.of_input, self.of_state)]
        state, seen = x.new_zeros(1, len(x), x.shape[2]), x.shape[1]
        if cache is not None and layer in cache.of_layers:
            state, seen = cache.of_layers[layer], seen + len(cache)
        out, state = torch.gru(x, state, [*matrices, *self.shifts], True, 1, 0.0, self.training, False, True)
        if cache is not None:
            cache.of_layers[layer], cache.seen = state, seen
        return out


@dataclass(frozen=True)
class Recurrent(Settings):
    """The text experiment with GRUs in place of attention."""

    name = "recurrent"

    def make_model(self, encoding: Encoding) -> Transformer:
        model = super().make_model(encoding)
        for block in model.blocks:
            block.attention = GRU(self.dim)
        return model


def run_of(name: str, seed: int, corpus: Corpus) -> Run:
    """The run of "none", "rope" or "gru"."""
    if name == "gru":
        return Run.of("none", seed, Recurrent(), corpus.digest)
    return Run.of(name, seed, Settings(), corpus.digest)


@torch.no_grad()
def contexts(model: TransformerBase, text: Tensor, length: int) -> dict[str, float]:
    """Mean loss of a byte after `length` bytes: in order; shuffled, except the last one; the nearest alone."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(len(text) - length, (PASSAGES,), generator=generator)
    passages = text[first[:, None] + torch.arange(length + 1)].long()
    read, target = passages[:, :-1], passages[:, -1]
    order = torch.rand(PASSAGES, length - 1, generator=generator).argsort(-1)
    shuffled = torch.cat((read[:, :-1].gather(1, order), read[:, -1:]), 1)
    found = {}
    for name, given in (("in order", read), ("shuffled", shuffled), (f"last {NEAR}", read[:, -NEAR:])):
        logits = torch.cat([model(rows)[:, -1] for rows in given.split(100)])
        found[name] = F.cross_entropy(logits, target).item()
    return found


def milliseconds(call: Callable[[], object]) -> float:
    """Of processor time, the median."""
    call()
    times = []
    for _ in range(REPEATS):
        started = time.process_time()
        call()
        times.append(1000 * (time.process_time() - started))
    return statistics.median(times)


def costs(model: Transformer) -> dict[str, dict[str, float]]:
    """Milliseconds of forward and backward of TOKENS tokens, and of one more token after a text, by length."""
    step, token = {}, {}
    for length in TIMED:
        tokens = torch.randint(256, (TOKENS // length, length + 1), generator=torch.Generator().manual_seed(0))

        def trained(tokens: Tensor = tokens) -> None:
            F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()

        step[str(length)] = round(milliseconds(trained), 1)
        with torch.no_grad():
            cache: Any = States() if isinstance(model.blocks[0].attention, GRU) else KVCache()
            model(tokens[:1, :-1], cache=cache)

            def decoded(cache: Any = cache, tokens: Tensor = tokens) -> None:
                for _ in range(10):
                    model(tokens[:1, :1], cache=cache)

            token[str(length)] = round(milliseconds(decoded) / 10, 2)
    return {"step_ms": step, "token_ms": token}


def measured(run: Run, corpus: Corpus) -> dict[str, Any]:
    """The numbers of a trained run."""
    s = run.settings
    model, losses = train(run, corpus.train)
    scores = s.evaluate(model, s.variants(run.encoding, model.encoding)[0], corpus.test)
    lengths = {str(s.tokens_at(factor)): loss.mean().item() for factor, loss in scores.paired.items()}
    rest = contexts(model, corpus.test.tokens, s.tokens)
    numbers = {"last_training_loss": losses[-1], "loss": lengths, "context": rest}
    return json.loads(json.dumps(numbers), parse_float=lambda x: round(float(x), 4)) | {
        "parameters": sum(p.numel() for p in model.parameters())
    }


def table(results: dict[str, Any]) -> str:
    """Means over the seeds that all have, and costs."""
    models = results["models"]
    seeds = sorted(set.intersection(*(set(models[name]) for name in COMPARED)))
    lengths = [str(s) for s in (128, 256, 512, 1024)]
    head = [
        "",
        *(f"{n} bytes" for n in lengths),
        "shuffled",
        *(f"step, {n}" for n in TIMED),
        *(f"token, {n}" for n in TIMED),
    ]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for name in COMPARED:
        runs = [models[name][seed] for seed in seeds]
        cells = [f"{statistics.mean(run['loss'][n] for run in runs):.2f}" for n in lengths]
        rise = statistics.mean(run["context"]["shuffled"] - run["context"]["in order"] for run in runs)
        cost = results["costs"][name]
        cells += [f"{rise:+.2f}", *(f"{x:.0f}" for x in cost["step_ms"].values())]
        lines.append("| " + " | ".join([name, *cells, *(f"{x:.1f}" for x in cost["token_ms"].values())]) + " |")
    return "\n".join([*lines, "", f"Seeds: {len(seeds)}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    results = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {"models": {}, "costs": {}}
    if given.table:
        print(table(results))
        return
    torch.set_num_threads(1)
    corpus, _ = Settings().load("pydoc")
    results["facts"] = versions() | {
        "machine": describe(torch.device("cpu")),
        "threads": 1,
        "data": corpus.digest,
        "passages": PASSAGES,
    }

    def save(name: str, found: object) -> None:
        print(name, found, flush=True)
        NUMBERS.write_text(json.dumps(results, indent=1) + "\n")

    for seed, name in product(range(given.seeds), COMPARED):
        runs = results["models"].setdefault(name, {})
        if str(seed) not in runs:
            runs[str(seed)] = measured(run_of(name, seed, corpus), corpus)
            save(f"{name} {seed}", runs[str(seed)])
        if name not in results["costs"]:
            results["costs"][name] = costs(build(run_of(name, 0, corpus)).eval())
            save(name, results["costs"][name])


if __name__ == "__main__":
    main()
