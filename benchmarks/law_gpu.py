# SPDX-License-Identifier: Apache-2.0
"""What the cells of a GPU say (benchmarks/law/gpu.jsonl), as the second part of benchmarks/law.md: `python benchmarks/law_fit.py --write`.

Nothing here rests on the form of the law: multipliers are read off rope's measured losses, between its budgets.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from law import CONTEXTS, COOLDOWN, HERE, mean
from law import judged as of_cpu
from law_fit import fitted, means, points
from law_lease import CELLS, EXPONENTS, PEAK, PLANS, SIZES, TEN, Cells, by_cell, chosen, finished, judged

DRAWS = 1000


def losses(cells: Cells, seed: int | None = None) -> dict[tuple[str, str, int], np.ndarray]:
    """(passages,): the mean of prose and code, and of the seeds, at the training length."""
    return {
        key: np.mean([np.array([e["prose"]["length"], e["code"]["length"]]).mean(0) for e in some], 0)
        for key, each in cells.items()
        if (some := [e for e in each if seed in (None, e["cell"]["seed"])])
    }


def multiplier(found: Mapping[int, float], rope: Mapping[int, float], budget: int, cost: float) -> float:
    """The compute at which `rope` has the loss that an encoding has at a budget, over the encoding's. NaN outside of rope's measured losses.

    cost: of the encoding's training step, relative to rope's."""
    budgets = sorted(rope)
    curve = [rope[b] for b in budgets]
    if not min(curve) <= found[budget] <= max(curve):
        return math.nan
    at = np.interp(-found[budget], [-loss for loss in curve], [math.log(b) for b in budgets])
    return math.exp(float(at)) / (budget * cost)


def multipliers(cells: Cells, size: str, encoding: str, budget: int) -> tuple[float, float, float]:
    """The multiplier and its interval of 95 %, over draws of passages."""
    table = losses(cells, seed=0)
    own = {b: row for (s, e, b), row in table.items() if (s, e) == (size, encoding)}
    rope = {b: row for (s, e, b), row in table.items() if (s, e) == (size, "rope")}
    if budget not in own:
        return math.nan, math.nan, math.nan
    cost = (
        cells[size, encoding, budget][0]["flops"] / cells[size, "rope", budget][0]["flops"] if budget in rope else 1.0
    )
    random, values = np.random.default_rng(0), []
    for draw in range(DRAWS + 1):
        picked = random.integers(0, len(own[budget]), len(own[budget])) if draw else slice(None)
        mine, theirs = ({b: float(row[picked].mean()) for b, row in each.items()} for each in (own, rope))
        values.append(multiplier(mine, theirs, budget, cost))
    bounded = np.isfinite(values[1:]).mean() > 0.95 and math.isfinite(values[0])
    low, high = np.nanpercentile(values[1:], [2.5, 97.5]) if bounded else (math.nan, math.nan)
    return values[0], float(low), float(high)


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's, of values without ties."""
    ranks = [np.argsort(np.argsort(each)).astype(float) for each in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def early(cells: Cells, size: str, first: int, last: int) -> tuple[list[str], dict[str, float]]:
    """How measures of trainings of half the budget `first` and of `first` order the losses at `last`: Spearman's correlation, positive where the
    measure is right about the order."""
    table = {key: float(row.mean()) for key, row in losses(cells, seed=0).items()}
    names = [e for e in TEN if all((size, e, b) in table for b in (first // 2, first, last))]
    if len(names) < 5:
        return names, {}
    at = {e: next(c for c in cells[size, e, first] if c["cell"]["seed"] == 0) for e in names}
    half, now, then = ([table[size, e, b] for e in names] for b in (first // 2, first, last))
    contexts = {c: [mean(at[e], "context", str(c)) for e in names] for c in CONTEXTS}
    doublings = math.log2(last / first)
    measures = {
        f"loss at {first} MB": now,
        f"line through {first // 2} and {first} MB": [b - doublings * (a - b) for a, b in zip(half, now, strict=True)],
        "fall of the last doubling": [b - a for a, b in zip(half, now, strict=True)],
        "gain from 32 to 128 tokens of context": [b - a for a, b in zip(contexts[32], contexts[128], strict=True)],
        "gain from 128 to 512 tokens": [b - a for a, b in zip(contexts[128], contexts[512], strict=True)],
        "tokens right in a copy": [-mean(at[e], "copied_near") for e in names],
    }
    return names, {name: rank_correlation(values, then) for name, values in measures.items()}


def spent(everything: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Seconds in which something was trained or tested, and the share of the peak that the training's arithmetic makes of them. Budgets of one
    trunk share its steps."""
    seconds, until = 0.0, 0.0
    for each in sorted(everything, key=lambda e: e["start"]):
        seconds += max(0.0, each["finish"] - max(until, each["start"]))
        until = max(until, each["finish"])
    flops, trunks = 0.0, defaultdict(list)
    for each in everything:
        trunks[*(each["cell"][key] for key in ("size", "encoding", "seed", "rate")), each["start"]].append(each)
    for cells in trunks.values():
        last = max(cells, key=lambda e: e["steps"])
        steps = last["steps"] + sum(max(1, round(COOLDOWN * e["steps"])) for e in cells if e is not last)
        flops += last["flops"] / last["steps"] * steps
    return seconds, flops / seconds / PEAK


@dataclass(frozen=True)
class Widest:
    """The largest cell that all ten encodings have, and what they have there: (loss at the training length, loss at 8 times, seed 0)."""

    size: str
    budget: int
    losses: dict[str, tuple[float, float]]
    noise: float
    """The most that a loss at the training length differs between two seeds, of all that have two."""

    def lowest(self, at: int) -> tuple[tuple[str, ...], float]:
        """The encodings that are not decided to be above the least loss, from that on, and it. at: 0 at the training length, 1 at 8 times."""
        order = sorted(self.losses, key=lambda e: self.losses[e][at])
        least = self.losses[order[0]][at]
        return tuple(e for e in order if self.losses[e][at] - least <= self.noise), least


def widest() -> Widest:
    cells = by_cell()
    shared = [(size, b) for size, _, b in cells if all((size, e, b) in cells for e in TEN)]
    size, budget = max(shared, key=lambda pair: (float(pair[0][:-1]), pair[1]))
    of = {e: next(c for c in cells[size, e, budget] if c["cell"]["seed"] == 0) for e in TEN}
    seeds = [[mean(c, "length") for c in each] for each in cells.values()]
    noise = max(max(each) - min(each) for each in seeds)
    return Widest(size, budget, {e: (mean(c, "length"), mean(c, "far_context", "4096")) for e, c in of.items()}, noise)


def page() -> Iterator[str]:
    cells = by_cell()
    everything = finished()
    yield from ("## On a GPU", "")
    device = everything[0]["machine"]["device"]
    yield f"{len(everything)} trainings on an {device}, in steps of 32 x 512 tokens and bfloat16, most valuable first, in leases of minutes. The largest has"
    largest = max(everything, key=lambda e: e["flops"])
    seconds, share = spent(everything)
    yield (
        f"{largest['weights'] / 1e6:.0f} M weights and {largest['cell']['budget']} MB of text. They are registered as "
        "[stages 3 and 4](law/registration3.md); `python benchmarks/law_lease.py check` verifies it. They took "
        f"{seconds:.0f} seconds of the GPU, in processes that shared it under NVIDIA's MPS, at {share:.1%} of its peak in bfloat16 (989 TFLOP/s)."
    )
    planned = {
        (size, e, seed, b) for plan in PLANS.values() for size, names, seed, bs in plan for e in names for b in bs
    }
    there = {tuple(e["cell"][key] for key in ("size", "encoding", "seed", "budget")) for e in everything}
    left = sorted(planned - there, key=lambda cell: (float(cell[0][:-1]), cell[3]))
    count = Counter(f"{size.replace('M', ' M')} weights and {budget} MB" for size, _, _, budget in left)
    yield f"Not trained, of what was planned: {', '.join(f'{n} of {what}' for what, n in count.items())}."
    budgets = sorted({budget for _, _, budget in cells})
    table = {key: float(row.mean()) for key, row in losses(cells).items()}
    yield from (
        "",
        "Loss at 512 tokens, nats per byte, mean of prose and code; in brackets: seeds, where there are several.",
        "",
    )
    yield (
        "| weights | encoding | rate | "
        + " | ".join(f"{b} MB" for b in budgets)
        + " | 8 times the length, loss above that at 512 |"
    )
    yield "|--:|---|--:|" + "--:|" * (len(budgets) + 1)
    for size in SIZES:
        rows = [e for e in TEN if any((size, e, b) in table for b in budgets)]
        for encoding in sorted(
            rows, key=lambda e: -max(b for b in budgets if (size, e, b) in table) + table.get((size, e, budgets[-1]), 0)
        ):
            shown, far, rate = [], "", 0.0
            for budget in budgets:
                some = cells.get((size, encoding, budget), [])
                shown.append(
                    f"{table[size, encoding, budget]:.3f}{f' ({len(some)})' * (len(some) > 1)}" if some else ""
                )
                if some:
                    rate = some[0]["cell"]["rate"]
                    gap = np.mean([mean(e, "far_context", "4096") - mean(e, "far_context", "512") for e in some])
                    far = f"{gap:+.3f} ({budget} MB)".replace("-", "−")
            yield f"| {size.replace('M', ' M')} | `{encoding}` | {rate:g} | {' | '.join(shown)} | {far} |"
    yield f"\nA second seed moves a loss by up to {widest().noise:.3f} nats."
    yield from ("", "### Compute multipliers over `rope`", "")
    yield "The compute at which `rope` of the same size has the encoding's loss, between its measured budgets, over the encoding's compute: above 1, it saves. Intervals of 95 % are of"
    yield "passages (seed 0). Where `rope` has no such loss within its budgets, the sign says on which side."
    yield from (
        "",
        "| weights | encoding | " + " | ".join(f"{b} MB" for b in budgets) + " |",
        "|--:|---|" + "--:|" * len(budgets),
    )
    for size in SIZES:
        for encoding in [e for e in TEN if e != "rope" and any((size, e, b) in table for b in budgets)]:
            yield f"| {size.replace('M', ' M')} | `{encoding}` | {' | '.join(_cell(cells, table, size, encoding, b) for b in budgets)} |"
    fit = fitted(means(points(chosen(), {e["cell"]["encoding"]: e["cell"]["rate"] for e in chosen()})), EXPONENTS)
    if fit is not None:
        steps = sorted({e["steps"] for e in everything})
        yield from ("", "### The registered form", "")
        verdict = "It does not describe these trainings" if fit.error > 0.01 else "It describes these trainings"
        yield f"{verdict}: the fit of E + A N^-a + B D^-b misses the means by {fit.error:.3f} nats (root mean square), with a = {fit.a:g} and b = {fit.b:.2f}"
        edge = " (the least that was allowed)" if fit.b < 0.055 else ""
        yield f"{edge}. They have {steps[0]} to {steps[-1]} steps."
    yield from ("", "### Do a GPU's trainings follow the CPU's?", "")
    yield "The smallest size in steps of 8 x 512 tokens, rate 1, the same numbers on each: the mean training loss of steps 91 to 100, nats per token."
    yield from ("", "| encoding | device | float32 | bfloat16 |", "|---|---|--:|--:|")
    ends: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for line in (HERE / "follow.jsonl").read_text().splitlines():
        row = json.loads(line)
        ends[row["encoding"], row["machine"]["device"]][row["dtype"]] = row["losses"][-1]
    for (encoding, where), row in sorted(ends.items()):
        yield f"| `{encoding}` | {where} | {row['float32']:.3f} | {row['bfloat16']:.3f} |"
    yield from ("", "### Predictions", "")
    results = [*of_cpu(), *judged()]
    for stage in (1, 2, *PLANS):
        of_it = [(p, value) for p, value in results if p["stage"] == stage]
        for way, name in (
            ("", "the fit of smaller budgets" if stage == 2 else "guesses"),
            ("fit", "the fit of the form"),
            ("plane", "a plane through neighbouring cells"),
        ):
            some = [
                (p, v)
                for p, v in of_it
                if (p["id"].split(", ")[1] if p["id"].split(", ")[1] in ("fit", "plane") else "") == way
            ]
            decided = [(p, v) for p, v in some if v is not None]
            if decided:
                right = sum(p["low"] <= v <= p["high"] for p, v in decided)
                off = [abs(v - (p["low"] + p["high"]) / 2) for p, v in decided]
                yield f"- Stage {stage}, {'on the CPU' if stage < 3 else 'on the GPU'}, {name}: {right} of {len(decided)} within their intervals of 80 %; the middles are off by {np.mean(off):.3f} nats on average ({len(some) - len(decided)} not measured)."
    for size, first, last in (("3M", 16, 64), ("3M", 16, 32), ("10M", 16, 32)):
        names, found = early(cells, size, first, last)
        if found:
            yield from (
                "",
                f"### Which early measure orders {len(names)} encodings at {last} MB? {size.replace('M', ' M')} weights, {last // first} times the budget",
                "",
            )
            yield from ("| measure | Spearman's correlation with the loss |", "|---|--:|")
            for measure, value in sorted(found.items(), key=lambda pair: -pair[1]):
                yield f"| {measure} | {value:+.2f} |".replace("-", "−")
    yield ""


def _cell(cells: Cells, table: Mapping[tuple[str, str, int], float], size: str, encoding: str, budget: int) -> str:
    if (size, encoding, budget) not in table:
        return ""
    value, low, high = multipliers(cells, size, encoding, budget)
    if math.isfinite(low):
        return f"{value:.2f} ({low:.2f} to {high:.2f})"
    rope = {b: loss for (s, e, b), loss in table.items() if (s, e) == (size, "rope")}
    if not rope:
        return ""
    most = max(rope)
    if table[size, encoding, budget] <= min(rope.values()):
        return f"> {most / budget:.2f}" if most >= budget else ""
    return f"< {min(rope) / budget:.2f}" if table[size, encoding, budget] >= max(rope.values()) else f"{value:.2f}"


def text() -> str:
    return "\n".join(page()) if CELLS.exists() else ""


if __name__ == "__main__":
    print(text())
