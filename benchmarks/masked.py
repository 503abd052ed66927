# SPDX-License-Identifier: Apache-2.0
"""Which encoding for an encoder? Masked prediction (Devlin et al. 2019) with small bidirectional Transformers, into benchmarks/masked.json
and, by --write, benchmarks/masked.md.

    python benchmarks/masked.py            # trains what is missing
    python benchmarks/masked.py --write    # the page, from what there is

15 % of the bytes of English text are replaced by a mask, and the model predicts them. Trained at 128 bytes, tested on the same masked bytes
in the middle of passages of 128, 256 and 512 bytes. Run from the root of the repository.
"""

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import InputError, Transformer, TransformerConfig
from posenc.encodings import create
from posenc.encodings.shared import Affine
from posenc.errors import listed
from posenc.lab.data.corpora import prose, split
from posenc.lab.machine import describe, flushed_denormals
from posenc.lab.muon import Muon
from posenc.lab.transformer import Attention

NUMBERS = Path(__file__).with_suffix(".json")
ENCODINGS = ("rope", "alibi", "t5", "shaw", "sinusoidal", "learned", "none")
SEEDS = (0, 1)
SHAPE = {"dim": 128, "num_layers": 3, "num_heads": 4}
STEPS, LENGTH, BATCH, MASKED, MASK, WARM_UP = 600, 128, 16, 0.15, 256, 30
LENGTHS, PASSAGES = (128, 256, 512), 256
RATES = {"muon": 0.03, "adamw": 0.006, "tables": 0.03}
NOTHING = 0.05
"""Nats below the loss of `none` under which nothing was learned of positions."""
LOWEST, HIGHEST = 0.25, 4.0
"""Of the factors of RATES that are tried, each twice the one before, until the best of seed 0 lies between two others."""


def text() -> tuple[Tensor, Tensor]:
    """Bytes to train on, and held-out passages (PASSAGES, LENGTHS[-1])."""
    train, test = (torch.frombuffer(bytearray(b"\n".join(each)), dtype=torch.uint8) for each in split(prose()))
    pieces = test.unfold(0, LENGTHS[-1], LENGTHS[-1])
    return train, pieces[torch.linspace(0, len(pieces) - 1, PASSAGES).long()].long()


def hidden(tokens: Tensor, drawn: torch.Generator) -> Tensor:
    return torch.rand(tokens.shape, generator=drawn) < MASKED


def loss(model: nn.Module, tokens: Tensor, masked: Tensor) -> Tensor:
    """Nats for each masked byte."""
    logits = model(tokens.masked_fill(masked, MASK))
    return F.cross_entropy(logits[masked], tokens[masked], reduction="none")


def optimizers_of(model: Transformer, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for matrices that act on features, AdamW for the rest, as `posenc compare` has them."""
    ends = (model.embedding, model.head)
    matrices = [m.weight for m in model.modules() if isinstance(m, nn.Linear | Affine) and m not in ends]
    taken = {id(p) for p in matrices}
    tables = [p for p in model.encoding.parameters() if id(p) not in taken]
    taken |= {id(p) for p in tables}
    groups = [{"params": [p for p in model.parameters() if id(p) not in taken], "lr": rate * RATES["adamw"]}]
    groups += [{"params": tables, "lr": rate * RATES["tables"]}] if tables else []
    # an encoding with larger scores starts with smaller queries, and needs steps as much smaller
    queries = [m.query.weight for m in model.modules() if isinstance(m, Attention)]
    others = [p for p in matrices if all(p is not q for q in queries)]
    damped = [
        {"params": [q], "lr": rate * RATES["muon"] * model.query_damping(model.encoding, n)}
        for n, q in enumerate(queries)
    ]
    muon = Muon([{"params": others}, *damped], lr=rate * RATES["muon"], momentum=0.95, weight_decay=0.1)
    return [muon, torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)]


def trained(name: str, seed: int, train: Tensor, rate: float = 1.0) -> Transformer:
    torch.manual_seed(seed)
    width = SHAPE["dim"] // SHAPE["num_heads"]
    encoding = create(name, **SHAPE, head_dim=width, max_positions=LENGTH, causal=False)
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(257, **SHAPE, causal=False), encoding)
    optimizers, drawn = optimizers_of(model, rate), torch.Generator().manual_seed(seed)
    scales = [torch.optim.lr_scheduler.LambdaLR(each, scale) for each in optimizers]
    for _ in range(STEPS):
        starts = torch.randint(len(train) - LENGTH, (BATCH, 1), generator=drawn)
        tokens = train[starts + torch.arange(LENGTH)].long()
        loss(model, tokens, hidden(tokens, drawn)).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, each in zip(optimizers, scales, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            each.step()
    return model.eval()


def scale(step: int) -> float:
    return min(1.0, (step + 1) / WARM_UP) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / STEPS)))


@torch.no_grad()
def tested(model: nn.Module, passages: Tensor) -> dict[str, list[float] | None]:
    """By length, the mean loss of the masked bytes in the middle of each passage; None where the encoding ends before."""
    middle = torch.zeros(passages.shape, dtype=torch.bool)
    half = LENGTHS[-1] // 2
    middle[:, half - LENGTH // 4 : half + LENGTH // 4] = True
    masked, found = hidden(passages, torch.Generator().manual_seed(1)), {}
    counts = (masked & middle).sum(1).tolist()
    for length in LENGTHS:
        cut = slice(half - length // 2, half + length // 2)
        try:
            logits = torch.cat(
                [
                    model(x[:, cut].masked_fill(m[:, cut], MASK))
                    for x, m in zip(passages.split(32), masked.split(32), strict=True)
                ]
            )
        except InputError:
            found[str(length)] = None
            continue
        chosen = (masked & middle)[:, cut]
        losses = F.cross_entropy(logits[chosen], passages[:, cut][chosen], reduction="none").split(counts)
        found[str(length)] = [round(each.mean().item(), 4) for each in losses if len(each)]
    return found


def run() -> None:
    facts: dict[str, Any] = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {"losses": {}}
    settings = {
        **SHAPE,
        "steps": STEPS,
        "length": LENGTH,
        "batch": BATCH,
        "masked": MASKED,
        "rates": RATES,
        "passages": PASSAGES,
    }
    facts |= {"settings": settings, "machine": describe(torch.device("cpu"))}
    torch.set_num_threads(1)
    train, passages = text()
    with flushed_denormals():
        for name in ENCODINGS:
            row = facts["losses"].setdefault(name, {})
            while (job := waiting(row)) is not None:
                rate, seed = job
                begun = time.process_time()
                row.setdefault(f"{rate:g}", {})[str(seed)] = tested(trained(name, seed, train, rate), passages)
                NUMBERS.write_text(json.dumps(facts) + "\n")
                took = f"{time.process_time() - begun:.0f} s"
                print(
                    time.strftime("%H:%M:%S"),
                    name,
                    rate,
                    seed,
                    round(near(row[f"{rate:g}"][str(seed)]), 4),
                    took,
                    flush=True,
                )


def near(found: dict[str, Any]) -> float:
    """The mean loss at the training length."""
    return statistics.fmean(found[str(LENGTH)])


def best(row: dict[str, Any]) -> str:
    """The factor of the rates at which seed 0 has the least loss at the training length."""
    return min(row, key=lambda rate: near(row[rate]["0"]))


def waiting(row: dict[str, Any]) -> tuple[float, int] | None:
    """The next factor and seed of an encoding: factors until the best is bracketed, then the other seeds at it. None: all are there."""
    for rate in (1.0, 0.5, 2.0):
        if f"{rate:g}" not in row:
            return rate, 0
    at, tried = float(best(row)), [float(rate) for rate in row]
    if at == min(tried) > LOWEST:
        return at / 2, 0
    if at == max(tried) < HIGHEST:
        return at * 2, 0
    return next(((at, seed) for seed in SEEDS if str(seed) not in row[best(row)]), None)


def page(facts: dict[str, Any]) -> str:
    s = facts["settings"]
    lines = [
        "# Encodings of an encoder",
        "",
        f"Written by `python benchmarks/masked.py --write`. Bidirectional Transformers ({s['num_layers']} layers, width {s['dim']}) predict the "
        f"{s['masked']:.0%} of the bytes of English text that are masked, after {s['steps']} steps of {s['batch']} x {s['length']} bytes. Loss in nats per "
        f"masked byte, of the same bytes in the middle of {s['passages']} held-out passages; mean over seeds, in brackets the half-width of the 95 % "
        "interval of the difference from `rope`, of passages alone. Processor: " + facts["machine"]["cpu"] + ".",
        "",
        f"| encoding | rate | seeds | {' | '.join(f'{n} bytes' for n in LENGTHS)} | other rates, {LENGTH} bytes, seed 0 |",
        "|---|--:|--:|" + "--:|" * len(LENGTHS) + "---|",
    ]
    rows = {name: row for name, row in facts["losses"].items() if row}
    means = {name: {n: over_seeds(row[best(row)], n) for n in LENGTHS} for name, row in rows.items()}
    order = sorted(means, key=lambda name: means[name][LENGTH].mean().item())
    at_edge = [f"`{e}`" for e in order if float(best(rows[e])) in (LOWEST, HIGHEST)]
    of_none = means["none"][LENGTH].mean().item()
    idle = [f"`{e}`" for e in order if e != "none" and of_none - means[e][LENGTH].mean().item() < NOTHING]
    for name in order:
        cells, row = [], rows[name]
        for n in LENGTHS:
            value, rope = means[name][n], means["rope"][n]
            if value is None:
                cells.append("not defined")
                continue
            between = value - rope
            half = 1.96 * between.std().item() / math.sqrt(len(between))
            cells.append(f"{value.mean():.3f}" + (f" ({half:.3f})" if name != "rope" else ""))
        tried = sorted(float(rate) for rate in row if rate != best(row))
        others = ", ".join(f"{near(row[f'{rate:g}']['0']):.3f} (x{rate:g})" for rate in tried)
        lines.append(f"| `{name}` | x{best(row)} | {len(row[best(row)])} | {' | '.join(cells)} | {others} |")
    lines += [
        "",
        "Rates are times those of the program, each encoding's best of seed 0, by the loss at the training length of these passages."
        + (f" The best is the lowest or highest rate tried for {listed(at_edge)}." if at_edge else ""),
        f"Within {NOTHING} nats of `none` at every rate, and so without use of positions in {s['steps']} steps: {listed(idle) if idle else 'none'}.",
        "One text, one size, one budget: other texts, proteins and music were not trained.",
    ]
    return "\n".join(lines) + "\n"


def over_seeds(row: dict[str, Any], length: int) -> Tensor | None:
    """(passages,): the mean of the seeds at a rate; None where the encoding ends before."""
    values = [row[seed][str(length)] for seed in row]
    return None if any(v is None for v in values) else torch.tensor(values).mean(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the page")
    if parser.parse_args().write:
        NUMBERS.with_suffix(".md").write_text(page(json.loads(NUMBERS.read_text())))
    else:
        run()


if __name__ == "__main__":
    sys.exit(main())
