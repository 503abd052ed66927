# SPDX-License-Identifier: Apache-2.0
"""The fit of the law: what the finished cells of benchmarks/law say, as benchmarks/law.md.

    python benchmarks/law_fit.py          # prints it
    python benchmarks/law_fit.py --write  # writes benchmarks/law.md

loss(N, D | encoding) = E + A_e N^-a + B_e D^-b in nats per byte (the form of Hoffmann et al. 2022, with E, a and b shared), where N are the
weights outside the vocabulary and D the megabytes trained on. For a given b it is a linear least squares problem; b is the best of a
grid, and a is 0.34 as the registration says. Cells of one size alone cannot tell A_e N^-a from E: each encoding has a constant then.
The compute multiplier of an encoding at D is the compute at which the fit of `rope` has the same loss, over its own compute, at equal
size: above 1, it needs less. Intervals are of bootstrap draws of seeds and passages. Where a curve has fewer than three budgets of an
encoding, or `rope` does not reach the loss between half its least and twice its greatest budget, the answer is "not known".
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from law import passages_of

HERE = Path(__file__).parent
A = 0.34
GRID_OF_B = np.linspace(0.05, 1.5, 146)
DRAWS = 2000
BASELINE = "rope"


@dataclass(frozen=True)
class Point:
    """One training: its size (the weights of that size without the encoding's own), encoding, seed and budget, what it computed, and the
    loss of each passage in nats per byte."""

    size: int
    encoding: str
    seed: int
    budget: float
    flops: float
    passages: np.ndarray


@dataclass(frozen=True)
class Fit:
    """coefficients: of each encoding (constant, B_e); with two sizes or more, (A_e, B_e), and E is shared."""

    b: float
    shared: float
    coefficients: Mapping[str, tuple[float, float]]
    sizes: int
    error: float
    a: float = A

    def loss(self, encoding: str, size: float, budget: Any) -> Any:
        first, slope = self.coefficients[encoding]
        constant = self.shared + first * size**-self.a if self.sizes > 1 else first
        return constant + slope * np.asarray(budget, dtype=float) ** -self.b


def points(
    cells: Iterable[Mapping[str, Any]], chosen: Mapping[str, float], at: Sequence[str] = ("length",)
) -> list[Point]:
    """The cells at the rate that was chosen for their encoding; those that diverged are left out. at: where a cell has the losses."""
    found, sizes = [], defaultdict(list)
    for each in cells:
        sizes[each["cell"]["size"]].append(each["weights"])
    for each in cells:
        cell = each["cell"]
        if each["validation"] is None or cell["rate"] != chosen.get(cell["encoding"]):
            continue
        passages = np.array(passages_of(each, *at))
        found.append(
            Point(
                min(sizes[cell["size"]]),
                cell["encoding"],
                cell["seed"],
                cell["budget"],
                each["flops"],
                passages.mean(0),
            )
        )
    return found


def chosen_rates(cells: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """For each encoding, the rate with the least validation loss at 1 MB and seed 0, if it lies between two that were tried."""
    tried: dict[str, dict[float, float]] = defaultdict(dict)
    for each in cells:
        cell = each["cell"]
        if cell["size"] == "0.6M" and cell["seed"] == 0 and cell["budget"] == 1 and each["validation"] is not None:
            tried[cell["encoding"]][cell["rate"]] = each["validation"]
    found = {}
    for encoding, losses in tried.items():
        best = min(losses, key=losses.__getitem__)
        if min(losses) < best < max(losses) or best in (0.125, 4.0):
            found[encoding] = best
    return found


def means(some: Sequence[Point], picked: np.ndarray | None = None) -> dict[tuple[int, str, float], float]:
    """The mean over seeds and passages of each size, encoding and budget."""
    values: dict[tuple[int, str, float], list[float]] = defaultdict(list)
    for p in some:
        values[p.size, p.encoding, p.budget].append(
            float((p.passages if picked is None else p.passages[picked]).mean())
        )
    return {key: float(np.mean(each)) for key, each in values.items()}


def fitted(losses: Mapping[tuple[int, str, float], float], exponents: Sequence[float] = (A,)) -> Fit | None:
    """The least squares fit, of the encodings with three budgets or more; None if there is none such. exponents: of N, to choose from."""
    budgets = defaultdict(set)
    for _, encoding, budget in losses:
        budgets[encoding].add(budget)
    names = sorted(name for name, each in budgets.items() if len(each) >= 3)
    rows = [(key, loss) for key, loss in losses.items() if key[1] in names]
    if not names:
        return None
    sizes = len({size for (size, _, _), _ in rows})
    target = np.array([loss for _, loss in rows])
    best: Fit | None = None
    for a, b in product(exponents, GRID_OF_B):
        matrix = np.zeros((len(rows), 2 * len(names) + (sizes > 1)))
        for row, ((size, encoding, budget), _) in enumerate(rows):
            at = names.index(encoding)
            matrix[row, 2 * at] = size**-a if sizes > 1 else 1.0
            matrix[row, 2 * at + 1] = budget**-b
            matrix[row, 2 * len(names) :] = 1.0
        found, *_ = np.linalg.lstsq(matrix, target, rcond=None)
        error = float(np.sqrt(np.mean((matrix @ found - target) ** 2)))
        if best is None or error < best.error:
            pairs = {name: (float(found[2 * n]), float(found[2 * n + 1])) for n, name in enumerate(names)}
            best = Fit(float(b), float(found[-1]) if sizes > 1 else 0.0, pairs, sizes, error, a)
    return best


def multiplier(
    fit: Fit, encoding: str, size: int, budget: float, per_budget: Mapping[str, float], most: float
) -> float:
    """per_budget: FLOPs for a megabyte by encoding. NaN where `rope` does not reach the loss between 0.5 and twice the greatest budget."""
    wanted = fit.loss(encoding, size, budget)
    grid = np.geomspace(0.5, 2 * most, 2000)
    curve = fit.loss(BASELINE, size, grid)
    if not curve[-1] <= wanted <= curve[0]:
        return float("nan")
    same = float(np.interp(-wanted, -curve, grid))  # the curve falls
    return same * per_budget[BASELINE] / (budget * per_budget[encoding])


def drawn(some: Sequence[Point], random: np.random.Generator) -> dict[tuple[int, str, float], float]:
    """The means of one bootstrap draw: the same seeds of all encodings, the same passages of all trainings."""
    passages = random.integers(0, len(some[0].passages), len(some[0].passages))
    seeds = sorted({p.seed for p in some})
    taken = [seeds[n] for n in random.integers(0, len(seeds), len(seeds))]
    again = [p for seed in taken for p in some if p.seed == seed]
    planned = {(p.size, p.encoding, p.budget) for p in some}
    found = means(again, passages)
    # a training that the drawn seeds lack stands with the seeds that it has
    return found | means([p for p in some if (p.size, p.encoding, p.budget) in planned - found.keys()], passages)


def multipliers(some: Sequence[Point], draws: int = DRAWS) -> dict[tuple[str, int, float], tuple[float, float, float]]:
    """(encoding, size, budget): the compute multiplier over `rope` and its interval of 95 %, NaN where it is not known."""
    fit = fitted(means(some))
    if fit is None or BASELINE not in fit.coefficients:
        return {}
    cost: dict[int, dict[str, float]] = defaultdict(dict)
    for p in some:
        cost[p.size][p.encoding] = p.flops / p.budget
    most = max(p.budget for p in some if p.encoding == BASELINE)
    keys = sorted(
        {(p.encoding, p.size, p.budget) for p in some if p.encoding in fit.coefficients and p.encoding != BASELINE}
    )
    values = {key: [multiplier(fit, *key, cost[key[1]], most)] for key in keys}
    random = np.random.default_rng(0)
    for _ in range(draws):
        again = fitted(drawn(some, random))
        for key in keys:
            values[key].append(multiplier(again, *key, cost[key[1]], most) if again else float("nan"))
    found = {}
    for key, each in values.items():
        known = np.array(each[1:])
        bounded = np.isfinite(known).mean() > 0.95 and np.isfinite(each[0])
        low, high = np.nanpercentile(known, [2.5, 97.5]) if bounded else (float("nan"), float("nan"))
        found[key] = (each[0], float(low), float(high))
    return found


def page(cells: Sequence[Mapping[str, Any]], draws: int = DRAWS) -> str:
    """benchmarks/law.md: what was trained, the fit, the multipliers, and what is not known."""
    chosen = chosen_rates(cells)
    some = points(cells, chosen)
    table = means(some)
    hours = sum(each.get("training_seconds", 0) + each.get("test_seconds", 0) for each in cells) / 3600
    seeds: dict[tuple[int, str, float], set[int]] = defaultdict(set)
    for p in some:
        seeds[p.size, p.encoding, p.budget].add(p.seed)
    lines = [
        "# The law: loss by budget and encoding",
        "",
        "[On the CPU](#loss-at-512-tokens-nats-per-byte-mean-of-prose-and-code) and, larger, [on a GPU](#on-a-gpu).",
        "",
        "Generated by `python benchmarks/law_fit.py --write` from [law/cells](law/cells). The form, the rules of exclusion and the predictions were",
        "[registered](law/registration.md) before the first training; `python benchmarks/law.py check` verifies that, and `judge` judges the predictions.",
        "`check` goes by the registration's content: some trainings ran from commits that are not in this history, which it counts.",
        "",
        f"{len(cells)} trainings are finished, {len(cells) - len(some)} of them at learning rates that were not chosen. They took {hours:.1f} hours of one core.",
        "",
        "## Loss at 512 tokens, nats per byte, mean of prose and code",
        "",
        "| weights | encoding | rate | " + " | ".join(f"{b:g} MB" for b in budgets_of(some)) + " |",
        "|--:|---|--:|" + "--:|" * len(budgets_of(some)),
    ]
    for size, encoding in sorted({(p.size, p.encoding) for p in some}):
        row = [
            f"{table[size, encoding, b]:.4f} ({len(seeds[size, encoding, b])})" if (size, encoding, b) in table else ""
            for b in budgets_of(some)
        ]
        lines.append(f"| {size / 1e6:.1f} M | `{encoding}` | {chosen[encoding]:g} | " + " | ".join(row) + " |")
    lines += ["", "In brackets: seeds.", "", "## Fit", ""]
    fit = fitted(table)
    if fit is None:
        lines.append("Not known: no encoding has three budgets yet.")
    else:
        lines.append(
            f"b = {fit.b:.2f}; the fit misses the means by {fit.error:.4f} nats (root mean square) over {len(fit.coefficients)} encodings. "
            + ("All cells have one size: nothing is known about N." if fit.sizes == 1 else f"{fit.sizes} sizes.")
        )
        found = {}
        for size in sorted({p.size for p in some}):
            of_it = [p for p in some if p.size == size]
            found |= multipliers(of_it, draws)
            if fit.sizes > 1 and (alone := fitted(means(of_it))) is not None:
                lines.append(
                    f"Of {size / 1e6:.1f} M weights alone: b = {alone.b:.2f}, missed by {alone.error:.4f} nats; the multipliers are of such fits."
                )
        if fit.sizes > 1 and fit.error > 0.01:
            lines.append(
                f"So the form, with a = {A} as registered, does not describe {fit.sizes} sizes together at these budgets and [rates](#what-is-not-known)."
            )
        if found:
            lines += [
                "",
                "The compute multiplier is the compute at which the fit of `rope` reaches the encoding's loss, over the encoding's compute: above 1, it saves.",
                "",
                "| encoding | weights | MB | compute multiplier over `rope` | interval of 95 % |",
                "|---|--:|--:|--:|---|",
            ]
        for (encoding, size, budget), (value, low, high) in found.items():
            known = f"{value:.2f} | {low:.2f} to {high:.2f}" if np.isfinite(low) else "not known | "
            lines.append(f"| `{encoding}` | {size / 1e6:.1f} M | {budget:g} | {known} |")
        one = {p.seed for p in some} == {0}
        lines += [
            "",
            "One seed: the intervals are of passages alone."
            if one
            else "Intervals are of passages and, where there are two, of seeds.",
        ]
    return "\n".join(lines) + "\n"


def stage2(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the fit of the smallest size says of 8 and 12 MB, in the form of law/registration.json."""
    some = points([each for each in cells if each["cell"]["size"] == "0.6M"], chosen_rates(cells))
    fit = fitted(means(some))
    if fit is None:
        raise SystemExit("no encoding has three budgets yet: train them first")
    found, size = [], some[0].size
    for budget, off, level in ((8, 0.02, 0.03), (12, 0.03, 0.045)):
        for encoding in sorted(fit.coefficients):
            term = {"times": 1, "size": "0.6M", "encoding": encoding, "budget": budget, "of": ["length"]}
            value, title = (
                float(fit.loss(encoding, size, budget)),
                f"stage 2, 0.6M, {budget} MB: loss at 512 tokens, {encoding}",
            )
            found.append({"id": title, "low": value - level, "high": value + level, "sum": [term]})
            if encoding != BASELINE:
                value -= float(fit.loss(BASELINE, size, budget))
                terms = [term, {**term, "times": -1, "encoding": BASELINE}]
                title = f"{title} minus {BASELINE}"
                found.append({"id": title, "low": value - off, "high": value + off, "sum": terms})
    for each in found:
        each.update(low=round(each["low"], 4), high=round(each["high"], 4))
    return {"stage": 2, "stated": 0.8, "cells": len(some), "b": round(fit.b, 2), "predictions": found}


def budgets_of(some: Iterable[Point]) -> list[float]:
    return sorted({p.budget for p in some})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write benchmarks/law.md instead of printing it")
    parser.add_argument("--register", action="store_true", help="write law/registration2.json, once")
    given = parser.parse_args()
    cells = [json.loads(path.read_text()) for path in sorted((HERE / "law/cells").glob("*.json"))]
    if given.register:
        with (HERE / "law/registration2.json").open("x") as file:
            file.write(json.dumps(stage2(cells), indent=1) + "\n")
        return
    from law_gpu import on_cpu
    from law_gpu import text as of_a_gpu

    text = "\n".join([page(cells), *on_cpu(), of_a_gpu()])
    if given.write:
        (HERE / "law.md").write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
