# SPDX-License-Identifier: Apache-2.0
"""Which extension lets a model that was trained at 64 bytes read 512? Su's table of NTK-RoPE, on a model trained here.

    python examples/ntk_table.py [results.json [seeds]]

A small byte-level decoder is trained with RoPE, and another with log n in its attention too, on the language reference of
Python's standard library. Each then predicts the last 16 bytes of held-out texts, the same bytes for every method and in
every column: after the text before them, or after repetitions of them, with a period within the training length or beyond
it. "+ log n†" scales queries at inference only, "+ log n" is the model that was trained with it, and "cut off" is the
unmodified model on the last 64 bytes. Results are written to results.json; the same command resumes.
"""

import json
import sys
from itertools import product
from pathlib import Path

import torch

from posenc.encodings import LogN, Mapped, Rotary
from posenc.lab import data, evaluate, experiment, text, train
from posenc.lab.statistics import estimate

S = text.Settings(length=64, factors=(1, 8), steps=3000, batch_size=32, dim=64, head_dim=32, windows=90, targets=16)
ROPE = Rotary(32)
SCHEDULES = {"PI": "linear", "NTK-old": "ntk_old", "NTK-fixed": "ntk_fixed", "NTK-mixed": "ntk_mixed"}
VARIANTS = {"cut off": ROPE, "direct": ROPE, **{name: ROPE.with_schedule(s, factor=8) for name, s in SCHEDULES.items()}}
VARIANTS["ReRoPE"] = Mapped(ROPE, {"name": "rerope", "window": 32})
TEXTS = {"64 bytes": (64, None), "64, period 16": (64, 16)}
TEXTS |= {"512 bytes": (512, None), "512, period 16": (512, 16), "512, period 128": (512, 128)}


@torch.no_grad()
def accuracy(
    model: torch.nn.Module, tokens: torch.Tensor, settings: text.Settings, seen: int, period: int | None = None
) -> torch.Tensor:
    """The share of the targets that the model predicts, (windows,), on the passages and targets of `Settings.evaluate`.

    seen: how many tokens before its successor the model reads, up to the longest test length. period: the targets follow
    the last `period` tokens of the passage, repeated, instead of the passage.
    """
    ends = data.window_ends(tokens, settings)
    texts = data.Text.of(tokens).tokens[ends[:, None] + torch.arange(-seen, 1)].long()
    if period is not None:
        texts = texts[:, -period:].repeat(1, seen // period + 1)[:, -seen - 1 :]
    batches = texts.split(max(1, evaluate.BATCH_TOKENS // seen))
    likeliest = torch.cat([model(batch[:, :-1])[:, -settings.targets :].argmax(-1) for batch in batches])
    return (likeliest == texts[:, -settings.targets :]).double().mean(1)


def with_copies(read: data.Text | torch.Tensor, longest: int, seed: int = 0) -> torch.Tensor:
    """A text to learn copying from, made of one in bytes: by turns a piece of 4 to `longest` of its bytes, another piece
    twice, and as many random bytes twice (of 64 values), which nothing but copying predicts."""
    tokens = data.Text.of(read).tokens
    draws = torch.Generator().manual_seed(seed)
    pieces: list[torch.Tensor] = []
    while len(tokens):
        piece, tokens = tokens.tensor_split([int(torch.randint(4, longest + 1, (), generator=draws))])
        noise = torch.randint(64, piece.shape, generator=draws, dtype=torch.uint8)
        pieces.append((piece, piece.repeat(2), noise.repeat(2))[len(pieces) % 3])
    return torch.cat(pieces)


def measure(model: torch.nn.Module, tokens: torch.Tensor, log_n: bool) -> dict:
    """Row of the table -> column -> the share of the last bytes that the model predicts, in each text."""
    found = {}
    for (name, variant), suffix in product(VARIANTS.items(), (" + log n",) if log_n else ("", " + log n†")):
        model.encoding = variant + LogN(64, clip=not log_n) if suffix else variant
        texts = {text: (64 if name == "cut off" else seen, period) for text, (seen, period) in TEXTS.items()}
        found[name + suffix] = {kind: accuracy(model, tokens, S, *of).tolist() for kind, of in texts.items()}
    return found


def table(results: dict) -> str:
    """Markdown: accuracies in percent with 95 % intervals, over seeds and texts."""
    rows = [["method", *TEXTS], ["---", *["---:"] * len(TEXTS)]]
    for row in map("".join, product(VARIANTS, ("", " + log n†", " + log n"))):
        runs = [run[row] for run in results.values() if row in run]
        found = [estimate(100 * torch.tensor([run[text] for run in runs])) for text in TEXTS if runs]
        rows.append([row, *(f"{e.mean:.1f} ± {e.high - e.mean:.1f}" for e in found)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(stored: str = "ntk-table.json", seeds: int = 3) -> None:
    """Train and measure the models that the file `stored` lacks."""
    path, corpus = Path(stored), data.load("pydoc")
    results = json.loads(path.read_text()) if path.exists() else {}
    for seed, host in product(range(int(seeds)), ("rope", "rope+log_n:train_length=64:clip=false")):
        if (name := f"{host}, seed {seed}") not in results:
            model, _ = train.train(experiment.Run(host, seed, S, corpus.digest), with_copies(corpus.train, 24))
            results[name] = measure(model, corpus.test, "log_n" in host)
            path.write_text(json.dumps(results) + "\n")
    print(table(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
