# SPDX-License-Identifier: Apache-2.0
"""Which learning rate an encoding's own parameters need beside a decoder's: train one decoder per encoding, factor and seed with AdamW,
and write benchmarks/table_rates.json and, from it, what `posenc.parameter_groups` reads.

    python benchmarks/table_rates.py            # trains what is missing
    python benchmarks/table_rates.py --write    # the factors and the page, from the losses that there are

The rule, fixed before the first run: the factor is that of FACTORS with the least mean loss, if over the seeds it beats the common
rate by more than its paired 95 % interval and by at least LEAST nats; otherwise the encoding's parameters take the model's rate.
Run from the root of the repository.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import Transformer, TransformerConfig
from posenc.encodings import create
from posenc.encodings.registry import ENCODINGS
from posenc.errors import InputError
from posenc.lab.data.corpora import prose, split
from posenc.lab.machine import describe, flushed_denormals

NUMBERS, PAGE = Path(__file__).with_suffix(".json"), Path(__file__).with_suffix(".md")
MEASURED = Path(__file__).parents[1] / "src/posenc/lab/table_rates.json"
FACTORS, SEEDS, LEAST = (1, 10, 50), (0, 1, 2), 0.01
SHAPE = {"dim": 128, "num_layers": 2, "num_heads": 4}
STEPS, LENGTH, BATCH, RATE, WARM_UP, HELD_OUT = 200, 128, 8, 1e-3, 20, 128
FIRST = (
    "t5", "learned", "shaw", "kerple", "deberta", "tupe", "fire", "transformer_xl", "tisa", "cope", "pope", "learned_rope", "swin", "fox",
    "multiplicative", "projected_relative",
)  # fmt: skip
T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""Student's t by the number of seeds."""


def text() -> tuple[Tensor, Tensor]:
    """Bytes to train on, and passages of (HELD_OUT, LENGTH + 1) that are held out."""
    parts = split(prose())
    train, test = (torch.frombuffer(bytearray(b"\n".join(each)), dtype=torch.uint8) for each in parts)
    pieces = test.unfold(0, LENGTH + 1, LENGTH + 1)
    return train, pieces[torch.linspace(0, len(pieces) - 1, HELD_OUT).long()].long()


def made(name: str, seed: int) -> Transformer:
    torch.manual_seed(seed)
    encoding = create(name, **SHAPE, head_dim=SHAPE["dim"] // SHAPE["num_heads"], max_positions=LENGTH, causal=True)
    torch.manual_seed(seed)
    return Transformer(TransformerConfig(256, **SHAPE), encoding)


def learning() -> list[str]:
    """Encodings of a decoder that have parameters, those first that are much used."""
    found = []
    for name in dict.fromkeys((*FIRST, *ENCODINGS)):
        try:
            model = made(name, 0)
            model(torch.zeros(1, 4, dtype=torch.long))
        except InputError:  # of images, or of another encoding's parts
            continue
        if any(p.requires_grad for p in model.encoding.parameters()):
            found.append(name)
    return found


def loss_of(name: str, factor: float, seed: int, train: Tensor, held_out: Tensor) -> float:
    model = made(name, seed)
    table = {id(p) for p in model.encoding.parameters()}
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if id(p) not in table], "lr": RATE},
            {"params": list(model.encoding.parameters()), "lr": factor * RATE},
        ],
        betas=(0.9, 0.95),
    )
    scales = torch.optim.lr_scheduler.LambdaLR(optimizer, _scale)
    drawn = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        starts = torch.randint(len(train) - LENGTH, (BATCH, 1), generator=drawn)
        batch = train[starts + torch.arange(LENGTH + 1)].long()
        F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scales.step()
    model.eval()
    with torch.no_grad():
        return float(F.cross_entropy(model(held_out[:, :-1]).flatten(0, 1), held_out[:, 1:].flatten()))


def _scale(step: int) -> float:
    return min(1.0, (step + 1) / WARM_UP) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / STEPS)))


def choice(losses: dict[str, list[float]]) -> tuple[int, float, float] | None:
    """The factor, what it gains on the common rate in nats, and the half-width of that gain's 95 % interval."""
    if any(len(losses.get(str(factor), ())) < len(SEEDS) for factor in FACTORS):
        return None
    best = min(FACTORS, key=lambda factor: statistics.fmean(losses[str(factor)]))
    gains = [common - own for common, own in zip(losses["1"], losses[str(best)], strict=True)]
    half = T95[len(gains)] * statistics.stdev(gains) / math.sqrt(len(gains))
    gain = statistics.fmean(gains)
    return (best, gain, half) if gain >= LEAST and gain > half else (1, gain, half)


def run() -> None:
    facts: dict[str, Any] = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    facts |= {
        "settings": {
            **SHAPE, "steps": STEPS, "length": LENGTH, "batch": BATCH, "learning_rate": RATE, "factors": FACTORS, "seeds": SEEDS,
        },
        "machine": describe(torch.device("cpu")), "losses": facts.get("losses", {}),
    }  # fmt: skip
    torch.set_num_threads(1)
    train, held_out = text()
    with flushed_denormals():
        for name in learning():
            for seed in SEEDS:
                for factor in FACTORS:
                    row = facts["losses"].setdefault(name, {}).setdefault(str(factor), [])
                    if len(row) > seed:
                        continue
                    began = time.process_time()
                    row.append(round(loss_of(name, factor, seed, train, held_out), 4))
                    print(name, factor, seed, row[-1], f"{time.process_time() - began:.1f} s", flush=True)
                    NUMBERS.write_text(json.dumps(facts, indent=1) + "\n")


PAGE_TEXT = """# The learning rate of an encoding's parameters

<!-- written by python benchmarks/table_rates.py --write -->

A decoder ({num_layers} layers, width {dim}, {steps} steps of {batch} x {length} bytes of English, AdamW at {learning_rate}) is trained with the
encoding's parameters at 1, 10 and 50 times that rate, {seeds} seeds each. The factor is the best of the three if it beats 1 by more than the
paired 95 % interval and by {least} nats; otherwise it is 1. `posenc.parameter_groups(model, lr)` uses it. Other optimizers, sizes and
numbers of steps were not measured. {machine}

| encoding | factor | held-out loss at 1 | at 10 | at 50 | gain of the best on 1 |
|---|---:|---:|---:|---:|---:|
{rows}
"""


def write() -> None:
    facts = json.loads(NUMBERS.read_text())
    found = {name: choice(losses) for name, losses in sorted(facts["losses"].items())}
    rows = []
    for name, (factor, gain, half) in ((name, made) for name, made in found.items() if made):
        means = (statistics.fmean(facts["losses"][name][str(each)]) for each in FACTORS)
        rows.append(
            f"| `{name}` | {factor} | {' | '.join(f'{each:.3f}' for each in means)} | {gain:.3f} \u00b1 {half:.3f} |"
        )
    MEASURED.write_text(json.dumps({name: made[0] for name, made in found.items() if made}, indent=1) + "\n")
    settings = facts["settings"] | {"seeds": len(SEEDS), "least": LEAST}
    PAGE.write_text(
        PAGE_TEXT.format(rows="\n".join(rows), machine=f"Processor: {facts['machine']['cpu']}.", **settings)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        write()
    else:
        run()
