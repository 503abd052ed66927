# SPDX-License-Identifier: Apache-2.0
"""What the cells of a GPU say (benchmarks/law/gpu.jsonl), as the second part of benchmarks/law.md: `python benchmarks/law_fit.py --write`.

Nothing here rests on the form of the law: multipliers are read off measured losses, between budgets.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from early import spearman
from law import BUDGETS, CONTEXTS, COOLDOWN, HERE, SIX, SLOW, mean, passages_of
from law import by_cell as of_cpu_by_cell
from law import finished as finished_on_cpu
from law import judged as of_cpu
from law_fit import fitted, means, points
from law_lease import CELLS, EXPONENTS, PEAK, PLANS, SIZES, TEN, Cells, by_cell, chosen, finished, judged

DRAWS = 1000
Value = TypeVar("Value")
Results = Sequence[tuple[dict[str, Any], float | None]]
"""Predictions, and what was measured or None."""
Losses = dict[tuple[str, str, int], np.ndarray]
"""By size, encoding and budget: (passages,)."""

ONCE, EIGHT_TIMES = ("length",), ("far_context", "4096")
"""Where a cell has the losses at the training length, and those of other passages at 8 times."""
MARGIN = 0.05
"""Nats per byte that make no difference, as in "near the lowest"."""
NEAR_LOSS = 0.1
"""Nats by which a loss at 8 times may be above that at the training length to be fitted, as registered."""


def losses(cells: Cells, seed: int | None = None, at: tuple[str, ...] = ONCE) -> Losses:
    """The mean of prose and code, and of the seeds."""
    return {
        key: np.mean([passages_of(e, *at) for e in some], (0, 1))
        for key, each in cells.items()
        if (some := [e for e in each if seed in (None, e["cell"]["seed"])])
    }


def curve_of(table: Mapping[tuple[str, str, int], Value], size: str, encoding: str) -> dict[int, Value]:
    """By budget, what a table has of a size and an encoding."""
    return {budget: value for (s, e, budget), value in table.items() if (s, e) == (size, encoding)}


def line(before: Sequence[float], last: Sequence[float], doublings: float) -> list[float]:
    """Lines through the losses of a doubling, so many doublings on."""
    return [b - doublings * (a - b) for a, b in zip(before, last, strict=True)]


def reached(curve: Mapping[int, float], loss: float) -> float:
    """The least budget at which a curve has a loss, between its budgets; 0 where its first is lower, infinity where none is as low."""
    least = min(curve)
    if curve[least] <= loss:
        return least if curve[least] == loss else 0.0
    for one, two in pairwise(sorted(curve)):
        if curve[two] <= loss:
            return float(one * (two / one) ** ((curve[one] - loss) / (curve[one] - curve[two])))
    return math.inf


def multiplier(own: Mapping[int, float], base: Mapping[int, float], budget: int, cost: float) -> tuple[str, float]:
    """The compute of `base` over that of an encoding, for the loss that the encoding has at a budget; where `base` has no such loss, for that of
    `base`. With > or < where neither curve has the other's loss; NaN where losses rise with the budget.

    cost: of the encoding's training step, relative to the base's."""
    theirs, mine = reached(base, own[budget]), reached(own, base[budget])
    if 0 < theirs < math.inf:
        return "", theirs / (budget * cost)
    if 0 < mine < math.inf:
        return "", budget / (mine * cost)
    if theirs == math.inf and mine == 0:
        return "> ", max(max(base) / budget, budget / min(own)) / cost
    return ("< ", min(min(base) / budget, budget / max(own)) / cost) if mine else ("", math.nan)


def compared(cells: Cells, table: Losses, key: tuple[str, str, int], base: str) -> str:
    """The multiplier over `base`, with its interval of 95 % over draws of passages where there is one. table: of one seed."""
    size, encoding, budget = key
    own, other = (curve_of(table, size, name) for name in (encoding, base))
    if budget not in own or budget not in other:
        return ""
    cost = cells[key][0]["flops"] / cells[size, base, budget][0]["flops"]
    random, values = np.random.default_rng(0), []
    for draw in range(DRAWS + 1):
        picked = random.integers(0, len(own[budget]), len(own[budget])) if draw else slice(None)
        mine, theirs = ({b: float(row[picked].mean()) for b, row in each.items()} for each in (own, other))
        values.append(multiplier(mine, theirs, budget, cost))
    sign, value = values[0]
    if math.isnan(value):
        return "not known"
    drawn = [each for sign, each in values[1:] if not sign]
    if sign or len(drawn) < 0.95 * DRAWS:
        return f"{sign}{value:.2f}"
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return f"{value:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{value:.2f} ({low:.2f} to {high:.2f})"


def by_budget(cells: Cells, at: tuple[str, ...], base: str) -> Iterator[str]:
    """A table of multipliers over `base`, of seed 0."""
    table, budgets = losses(cells, seed=0, at=at), sorted({budget for *_, budget in cells})
    yield f"| weights | encoding | {' | '.join(f'{b} MB' for b in budgets)} |"
    yield "|--:|---|" + "--:|" * len(budgets)
    for size in SIZES:
        for encoding in [e for e in TEN if e != base and any((size, e, b) in table for b in budgets)]:
            found = [compared(cells, table, (size, encoding, b), base) for b in budgets]
            yield f"| {size.replace('M', ' M')} | `{encoding}` | {' | '.join(found)} |"


def by_seed(cells: Cells, base: str) -> Iterator[str]:
    """What multipliers over `base` are of each of two seeds."""
    tables = [{key: float(row.mean()) for key, row in losses(cells, seed=seed).items()} for seed in (0, 1)]
    found = []
    for size, encoding, budget in tables[1]:
        if encoding != base and (size, base, budget) in tables[1]:
            cost = cells[size, encoding, budget][0]["flops"] / cells[size, base, budget][0]["flops"]
            own, other = ([curve_of(table, size, name) for table in tables] for name in (encoding, base))
            both = [f"{multiplier(mine, theirs, budget, cost)[1]:.2f}" for mine, theirs in zip(own, other, strict=True)]
            found.append(f"`{encoding}`, {size.replace('M', ' M')}, {budget} MB: {' and '.join(both)}")
    yield f"The intervals leave out the luck of a seed, which can move a multiplier by more. Seeds 0 and 1: {'; '.join(found)}."


def widest_common(cells: Cells, names: Sequence[str]) -> tuple[str, int]:
    """The largest size that all of them have, and its largest such budget."""
    shared = [(size, b) for size, _, b in cells if all((size, e, b) in cells for e in names)]
    return max(shared, key=lambda pair: (float(pair[0][:-1]), pair[1]))


def further(cells: Cells, names: Sequence[str]) -> Iterator[str]:
    """Of the largest cell that all encodings have, beyond the loss at the training length: at 8 times, by context, and recall; of seed 0."""
    size, budget = widest_common(cells, names)
    of = {e: next(c for c in cells[size, e, budget] if c["cell"]["seed"] == 0) for e in names}
    once, far = (losses(cells, seed=0, at=at) for at in (ONCE, EIGHT_TIMES))
    yield f"{size.replace('M', ' M')} weights and {budget} MB, seed 0. The loss at 512 tokens and, of other passages, at 4096; multipliers over `rope` at 512 and"
    yield "over `alibi` at 4096; what the same tokens gain from 32 to 128 and from 128 to 512 tokens of context; and recall, the tokens that are right in the"
    yield "second of two copies, which begin 256 and 4032 tokens apart, in %."
    yield ""
    yield "| encoding | 512 | 4096 | over `rope`, 512 | over `alibi`, 4096 | 32 to 128 | 128 to 512 | copied, 256 | copied, 4032 |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for encoding in sorted(names, key=lambda e: mean(of[e], *ONCE)):
        cell, key = of[encoding], (size, encoding, budget)
        seen = [mean(cell, "context", str(c)) for c in (32, 128, 512)]
        copies = [f"{100 * mean(cell, name):.0f}" for name in ("copied_near", "copied_far")]
        row = [
            *(f"{mean(cell, *at):.3f}" for at in (ONCE, EIGHT_TIMES)),
            *(
                "" if encoding == base else compared(cells, table, key, base)
                for table, base in ((once, "rope"), (far, "alibi"))
            ),
            *(f"{near - far:+.3f}".replace("-", "−") for near, far in pairwise(seen)),
            *copies,
        ]
        yield f"| `{encoding}` | {' | '.join(row)} |"


def on_cpu() -> Iterator[str]:
    cells = {
        key: each for key, each in of_cpu_by_cell().items() if key[2] > BUDGETS[0]
    }  # the others were not tested at 8 times
    yield from ("## At 8 times the length, by context, and recall", "", *further(cells, (*SIX, SLOW)), "")
    off: dict[str, float] = {}
    for (_, encoding, _), each in cells.items():
        off[encoding] = max(off.get(encoding, 0.0), *map(rise, each))
    level = {e: each[0]["cell"]["rate"] for (_, e, _), each in cells.items() if off[e] <= NEAR_LOSS}
    smallest = [e for (size, *_), each in cells.items() if size == "0.6M" for e in each]
    fit = fitted(means(points(smallest, level, EIGHT_TIMES)))
    if fit is not None:
        names, left = (
            ", ".join(f"`{e}`" for e in sorted(some)) for some in (fit.coefficients, off.keys() - level.keys())
        )
        yield f"As registered, the form is fitted there (0.6 M weights) to encodings whose loss is within {NEAR_LOSS} nats of that of the same tokens after 512: b = {fit.b:.2f}, and the means of"
        yield f"{names} are missed by {fit.error:.4f} nats. Farther above, and not fitted: {left}. So there is no multiplier over `rope`."
        yield ""


def orders(size: str = "0.6M") -> Iterator[str]:
    """The registered prediction of an order on the CPU, which is no sum of losses, of seed 0."""
    table = {key: float(row.mean()) for key, row in losses(of_cpu_by_cell(), seed=0).items()}
    for one, two, far in ((1, 2, 8), (2, 4, 12)):
        names = [e for e in SIX if all((size, e, mb) in table for mb in (one, two, far))]
        before, last, true = ([table[size, e, mb] for e in names] for mb in (one, two, far))
        of_line, of_last = spearman(line(before, last, math.log2(far / two)), true), spearman(last, true)
        yield (
            f"- Stage 1, the order at {far} MB of {len(names)} encodings ({size.replace('M', ' M')}): the line through {one} and {two} MB was to be nearer than the loss at {two} MB: "
            f"{of_line:.2f} against {of_last:.2f}, {'right' if of_line > of_last else '**wrong**'}."
        )


def early(cells: Cells, size: str, first: int, last: int, among: Iterable[str]) -> tuple[list[str], dict[str, float]]:
    """How measures of trainings of half the budget `first` and of `first` order the losses at `last`: Spearman's correlation, positive where the
    measure is right about the order."""
    table = {key: float(row.mean()) for key, row in losses(cells, seed=0).items()}
    names = [e for e in among if all((size, e, b) in table for b in (first // 2, first, last))]
    if len(names) < 5:
        return names, {}
    at = {e: next(c for c in cells[size, e, first] if c["cell"]["seed"] == 0) for e in names}
    half, now, then = ([table[size, e, b] for e in names] for b in (first // 2, first, last))
    contexts = {c: [mean(at[e], "context", str(c)) for e in names] for c in CONTEXTS}
    measures = {
        f"loss at {first} MB": now,
        f"line through {first // 2} and {first} MB": line(half, now, math.log2(last / first)),
        "fall of the last doubling": [b - a for a, b in zip(half, now, strict=True)],
        "gain from 32 to 128 tokens of context": [b - a for a, b in zip(contexts[32], contexts[128], strict=True)],
        "gain from 128 to 512 tokens": [b - a for a, b in zip(contexts[128], contexts[512], strict=True)],
        "tokens right in a copy": [-mean(at[e], "copied_near") for e in names],
    }
    return names, {name: spearman(values, then) for name, values in measures.items()}


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
    noise: tuple[float, float]
    """The most that a loss differs between two seeds, of all that have two: at the training length, and at 8 times, there of the
    cells whose loss stays level (NEAR_LOSS)."""
    seeded: tuple[int, ...]
    """The budgets at which a cell has two seeds."""


def widest() -> Widest:
    cells = by_cell()
    size, budget = widest_common(cells, TEN)
    of = {e: next(c for c in cells[size, e, budget] if c["cell"]["seed"] == 0) for e in TEN}
    several = [each for each in cells.values() if len(each) > 1]
    level = [each for each in several if all(rise(c) <= NEAR_LOSS for c in each)]
    noise = [
        max(np.ptp([mean(c, *where) for c in each]) for each in some)
        for some, where in ((several, ONCE), (level, EIGHT_TIMES))
    ]
    return Widest(
        size,
        budget,
        {e: (mean(c, "length"), mean(c, "far_context", "4096")) for e, c in of.items()},
        (float(noise[0]), float(noise[1])),
        tuple(sorted({mb for (_, _, mb), each in cells.items() if len(each) > 1})),
    )


def by_setting() -> dict[tuple[str, int], dict[str, tuple[float, float]]]:
    """By size and budget, the losses of each encoding at the training length and at 8 times it: of seed 0."""
    near, far = (losses(by_cell(), seed=0, at=at) for at in (ONCE, EIGHT_TIMES))
    found: dict[tuple[str, int], dict[str, tuple[float, float]]] = defaultdict(dict)
    for size, encoding, budget in near:
        key = size, encoding, budget
        found[size, budget][encoding] = float(near[key].mean()), float(far[key].mean())
    return found


def near_lowest() -> dict[str, tuple[int, int]]:
    """In how many settings, of how many, an encoding's losses are within MARGIN of the lowest there, at both lengths: most settings
    first."""
    found: dict[str, list[bool]] = defaultdict(list)
    for of in by_setting().values():
        lowest = [min(ends) for ends in zip(*of.values(), strict=True)]
        for encoding, ends in of.items():
            found[encoding].append(all(loss - least <= MARGIN for loss, least in zip(ends, lowest, strict=True)))
    counts = {encoding: (sum(near), len(near)) for encoding, near in found.items()}
    return dict(sorted(counts.items(), key=lambda item: (-item[1][0], item[0])))


def advised() -> dict[str, tuple[int, int]]:
    """What is near the lowest loss in all settings but one, at the most, and in two at the least."""
    return {encoding: (near, of) for encoding, (near, of) in near_lowest().items() if near > 1 and near >= of - 1}


def rise(cell: Mapping[str, Any]) -> float:
    """Nats by which the loss of the same tokens is higher at 8 times the training length."""
    return mean(cell, *EIGHT_TIMES) - mean(cell, "far_context", "512")


def gain(cell: Mapping[str, Any]) -> float:
    """Nats by which the loss of the same tokens falls from 32 to 128 tokens of context."""
    return mean(cell, "context", "32") - mean(cell, "context", "128")


def larger(base: str = "rope", other: str = "alibi") -> tuple[list[str], float, float]:
    """The sizes above that of the largest cell of ten, in which `other` has a lower loss than `base` at every budget, and by how much,
    at the least and at the most: of seed 0."""
    table = {key: float(row.mean()) for key, row in losses(by_cell(), seed=0).items()}
    largest = float(widest().size[:-1])
    above = [size for size in SIZES if float(size[:-1]) > largest]
    gaps = {(s, b): table[s, base, b] - loss for (s, e, b), loss in table.items() if e == other and s in above}
    assert min(gaps.values()) > 0, "the sentences of README and choose.md say that it is lower everywhere"
    return [size.removesuffix("M") for size in above], min(gaps.values()), max(gaps.values())


def page() -> Iterator[str]:
    cells = by_cell()
    everything = finished()
    yield from ("## On a GPU", "")
    device, leases = everything[0]["machine"]["device"], {each["commit"] for each in everything}
    yield f"{len(everything)} trainings on an {device}, in steps of 32 x 512 tokens and bfloat16, most valuable first, in {len(leases)} leases of minutes. The largest has"
    largest = max(everything, key=lambda e: e["flops"])
    seconds, share = spent(everything)
    yield (
        f"{largest['weights'] / 1e6:.0f} M weights and {largest['cell']['budget']} MB of text. They are registered as "
        "[stages 3 and 4](law/registration3.md); `python benchmarks/law_lease.py check` verifies it. They took "
        f"{seconds:.0f} seconds of the GPU, in processes that shared it under NVIDIA's MPS, at {share:.1%} of its peak in bfloat16 (989 TFLOP/s)."
    )
    budgets = sorted({budget for _, _, budget in cells})
    table, second = ({key: float(row.mean()) for key, row in losses(cells, seed=seed).items()} for seed in (0, 1))
    yield from ("", "Loss at 512 tokens, nats per byte, mean of prose and code, seed 0; in brackets: of seed 1.", "")
    yield (
        "| weights | encoding | rate | "
        + " | ".join(f"{b} MB" for b in budgets)
        + " | gain from 32 to 128 tokens of context | 8 times the length, loss above that at 512 |"
    )
    yield "|--:|---|--:|" + "--:|" * (len(budgets) + 2)
    for size in SIZES:
        rows = [e for e in TEN if any((size, e, b) in table for b in budgets)]
        for encoding in sorted(
            rows, key=lambda e: -max(b for b in budgets if (size, e, b) in table) + table.get((size, e, budgets[-1]), 0)
        ):
            shown, far, rate = [], "", 0.0
            for budget in budgets:
                key = size, encoding, budget
                some = cells.get(key, [])
                shown.append(f"{table[key]:.3f}" + (f" ({second[key]:.3f})" if key in second else "") if some else "")
                if some:
                    rate = some[0]["cell"]["rate"]
                    far = f"{np.mean([*map(gain, some)]):+.3f} | {np.mean([*map(rise, some)]):+.3f} ({budget} MB)".replace(
                        "-", "−"
                    )
            yield f"| {size.replace('M', ' M')} | `{encoding}` | {rate:g} | {' | '.join(shown)} | {far} |"
    largest_of_ten = widest()
    near, far_off = largest_of_ten.noise
    seeded = " and ".join(map(str, largest_of_ten.seeded))
    yield f"\nA second seed, which cells of {seeded} MB have, moves a loss by up to {near:.3f} nats at 512 tokens. At 4096 it moves those that stay level by up to {far_off:.3f}."
    yield from rates(everything)
    yield from ("", "### Compute multipliers over `rope`", "")
    yield "The compute of `rope` over that of the encoding, of the same size and for the same loss: above 1, it saves. Losses are read between the budgets that were"
    yield "measured: the encoding's on the curve of `rope` or, beyond its ends, that of `rope` on the encoding's; > and < where neither is there. Intervals of 95 % are"
    yield from ("of passages (seed 0).", "", *by_budget(cells, ONCE, "rope"), "", *by_seed(cells, "rope"))
    yield from ("", "### Compute multipliers at 8 times the length, over `alibi`", "")
    far = {key: float(row.mean()) for key, row in losses(cells, seed=0, at=EIGHT_TIMES).items()}
    moves = {size: [far[size, "rope", b] for b in budgets if (size, "rope", b) in far] for size in SIZES}
    listed = ", ".join(
        f"{m[-1] - m[0]:+.3f} at {s.replace('M', ' M')}" for s, m in moves.items() if len(m) > 1
    ).replace("-", "−")
    yield f"From {budgets[0]} to {budgets[-1]} MB of text the loss of `rope` there moves by {listed} weights: it does not come down to another's with more compute."
    yield from ("So these are over `alibi`.", "", *by_budget(cells, EIGHT_TIMES, "alibi"))
    yield from ("", "### By context, and recall", "", *further(cells, TEN))
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
    yield from orders()
    for size, first, last in (("3M", 16, 64), ("3M", 16, 32), ("10M", 16, 32)):
        names, found = early(cells, size, first, last, TEN)
        if found:
            order = sorted(names, key=lambda e: mean(cells[size, e, last][0], *ONCE))
            lowest = early(cells, size, first, last, order[:-3])[1]
            yield from (
                "",
                f"### Which early measure orders {len(names)} encodings at {last} MB? {size.replace('M', ' M')} weights, {last // first} times the budget",
                "",
            )
            yield from (
                "| measure | Spearman's correlation with the loss | without the three highest losses |",
                "|---|--:|--:|",
            )
            for measure, value in sorted(found.items(), key=lambda pair: -pair[1]):
                yield f"| {measure} | {value:+.2f} | {lowest[measure]:+.2f} |".replace("-", "−")
            yield f"\nOne seed, and {len(names)} encodings, so that a difference of 0.1 between correlations says nothing."
    yield from ("", *changed(), "", *not_known(), "", *each_prediction(results))


def swept(everything: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, int], dict[float, float]]:
    """The validation loss by learning rate, where there are several."""
    found: dict[tuple[str, str, int], dict[float, float]] = defaultdict(dict)
    for each in everything:
        cell = each["cell"]
        if cell["seed"] == 0 and each["validation"] is not None:
            found[cell["size"], cell["encoding"], cell["budget"]][cell["rate"]] = each["validation"]
    return {key: by_rate for key, by_rate in found.items() if len(by_rate) > 1}


def rates(everything: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What was trained at several learning rates."""
    at_several = swept(everything)
    tried = sorted({rate for found in at_several.values() for rate in found})
    yield from ("", "### Learning rates", "")
    yield f"{len(everything) - len(chosen())} of the {len(everything)} trainings were at rates that were not chosen, or diverged; they are in no other table. Validation loss, seed 0:"
    yield from ("", f"| weights | MB | encoding | {' | '.join(f'x{rate:g}' for rate in tried)} |")
    yield "|--:|--:|---|" + "--:|" * len(tried)
    for (size, encoding, budget), found in at_several.items():
        row = [f"{found[rate]:.4f}" if rate in found else "" for rate in tried]
        yield f"| {size.replace('M', ' M')} | {budget} | `{encoding}` | {' | '.join(row)} |"


def changed() -> Iterator[str]:
    """The advice of README and of the page on choosing, before and after these trainings."""
    law, row = widest(), numbers_of("longer_SmolLM2", "`dual_chunk`")[0]

    def gap(one: str, other: str, at: int) -> str:
        return f"{law.losses[one][at] - law.losses[other][at]:.2f}"

    now = ", ".join(f"`{name}`" for name in advised())
    near, of = advised()["rope+alibi"]
    yield from ("## Advice before and after", "", "| for | before | now | what overturned it |", "|---|---|---|---|")
    yield f"| the lowest loss | `stick_breaking` | {now} | ahead after at most 3 MB; after {law.budget} MB {gap('stick_breaking', 'rope', 0)} behind `rope` |"
    yield f"| longer inputs than in training | `alibi` | {now} | after {law.budget} MB {gap('alibi', 'kerple', 1)} behind `kerple` at 8 times the length |"
    yield f"| the same, earlier | `rope+alibi` | {now} | struck, since it is below `alibi` in [mean score](../docs/leaderboard.md#every-encoding) after 120 steps, and had no longer training; its losses here are near the lowest in {near} of {of} settings |"
    yield f"| a trained RoPE model | `dual_chunk` | `yarn` | loss of a passkey's tokens at 1.5 times the length: {float(row):.2f} and {float(numbers_of('longer_SmolLM2', '`yarn`')[0]):.2f} |"
    yield "\nThat no method predicts far text better than truncating the input, as these pages had it, is open [on Gemma 3](../docs/longer_context.md#a-model-with-windows-gemma-3-270m): three methods have the lower loss in each of four documents, of which two do not overlap."


def numbers_of(page: str, first: str) -> list[str]:
    """Of benchmarks/PAGE.md, the numbers of the first row that begins with `first`, without its first cell."""
    lines = (HERE.parent / f"{page}.md").read_text(encoding="utf-8").splitlines()
    row = next(line for line in lines if line.startswith(f"| {first}"))
    return re.findall(r"-?\d+(?:\.\d+)?", row.split("|", 2)[2])


def not_known() -> Iterator[str]:
    cells, everything = by_cell(), finished()
    planned = {
        (size, e, seed, b) for plan in PLANS.values() for size, names, seed, bs in plan for e in names for b in bs
    }
    there = {tuple(e["cell"][key] for key in ("size", "encoding", "seed", "budget")) for e in everything}
    left = sorted(planned - there, key=lambda cell: (float(cell[0][:-1]), cell[3]))
    count = Counter(f"{size.replace('M', ' M')} weights and {budget} MB" for size, _, _, budget in left)
    tokens: dict[str, float] = {}
    for each in everything:
        size = each["cell"]["size"]
        tokens[size] = max(tokens.get(size, 0.0), each["tokens"] / each["weights"])
    most = ", ".join(f"{tokens[size]:.2g} ({size.replace('M', ' M')} weights)" for size in SIZES)
    several = sum(len(each) > 1 for each in cells.values())
    held_out = ", ".join(f"`{e}`" for size, e, _ in cells if size == "28M")
    sizes = {size: len({e for s, e, _ in of_cpu_by_cell() if s == size}) for size, *_ in of_cpu_by_cell()}
    on_cpu_by_size = ", ".join(f"{count} at {size.replace('M', ' M')}" for size, count in sizes.items())
    yield from ("## What is not known", "")
    yield f"- **More text.** The trainings read at most {most}, in tokens a weight; 20 are usual. The order changed with the budget, and may again."
    yield f"- **Larger models.** The size that was held out, 28 M weights, was trained with {held_out} alone. On the CPU, encodings by size: {on_cpu_by_size}."
    yield f"- **Luck.** {several} of {len(cells)} cells of the GPU have a second seed; intervals are of passages."
    of_gpu = sorted({(size, budget) for size, _, budget in swept(everything)})
    where = ", ".join(f"{size.replace('M', ' M')} weights and {budget} MB" for size, budget in of_gpu)
    yield f"- **Rates on the GPU.** Several were tried at {where}, and serve all sizes and budgets: what the order owes to them elsewhere is not known."
    yield from _rates_on_cpu()
    corpus = json.loads((HERE / "registration.json").read_text())["corpus"]
    size = {name: f"{count * corpus['bytes per token'][name] / 1e6:.0f} MB" for name, count in corpus["tokens"].items()}
    yield f"- **Other text.** Prose is {size['prose']} of docstrings, code {size['code']} of the files of Python packages (100 MB of each were the aim), in 512 tokens of context."
    yield f"- **What was planned**, and the minutes did not reach: {', '.join(f'{n} of {what}' for what, n in count.items())}."


def _rates_on_cpu() -> Iterator[str]:
    """Whether the order of the CPU's larger models is that of their learning rates, which were chosen at the smallest size and budget."""
    cells = {key: each[0] for key, each in of_cpu_by_cell().items() if key[0] == "3M"}
    rates = {encoding: cell["cell"]["rate"] for (_, encoding, _), cell in cells.items()}
    others = {
        (e["cell"]["encoding"], e["cell"]["budget"]): mean(e, *ONCE)
        for e in finished_on_cpu()
        if e["cell"]["size"] == "3M" and e["cell"]["rate"] == 1 != rates.get(e["cell"]["encoding"])
    }
    if others:
        assert all(loss < mean(cells["3M", *of], *ONCE) for of, loss in others.items()), "the page says: the rate's"
        fast, slow = (", ".join(f"`{e}`" for e in sorted(rates) if rates[e] == rate) for rate in (2, 1))
        tried = "; ".join(
            f"`{e}` has {loss:.3f} at {mb} MB where rate 2 has {mean(cells['3M', e, mb], *ONCE):.3f}"
            for (e, mb), loss in sorted(others.items())
        )
        yield (
            f"- **Rates on the CPU.** They were chosen at 0.6 M weights and 1 MB: 2 for {fast}, 1 for {slow}. Trained at rate 1 as well, at 3 M weights: {tried}. "
            "So part of the distances there, and of what the form misses, is the rate's; these trainings enter neither."
        )


def each_prediction(results: Results) -> Iterator[str]:
    """What was registered and measured, a row each."""
    decided = [(p, value) for p, value in results if value is not None]
    yield from (
        "## Each prediction that is decided",
        "",
        f"Nats per byte; {len(results) - len(decided)} others are not measured.",
        "",
    )
    yield from ("| stage | prediction | registered | measured | |", "|--:|---|---|--:|---|")
    for p, value in decided:
        right = "right" if p["low"] <= value <= p["high"] else "**wrong**"
        row = f"| {p['stage']} | {p['id']} | {p['low']:+.3f} to {p['high']:+.3f} | {value:+.3f} | {right} |"
        yield row.replace(" -", " −")
    yield ""


def text() -> str:
    return "\n".join(page()) if CELLS.exists() else ""


if __name__ == "__main__":
    print(text())
