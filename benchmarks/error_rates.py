# SPDX-License-Identifier: Apache-2.0
"""How often the leaderboard finds differences that are not there: simulated tables with as many encodings, seeds and test
sequences, whose trainings and sequences vary as those in benchmarks/leaderboard.

    python benchmarks/error_rates.py    # some minutes; writes benchmarks/error_rates.json

Two worlds for each task: in "equal" all encodings have the same mean, so that a table with any difference found is wrong, and
what counts is the share of such tables; in "apart" they have the means of KINDS encodings of that task, and what counts is the
mean share of false ones among the differences found. In a task whose trainings jump, each training learns or does not, with the
same probability where encodings are equal. "near": in a third world each encoding has its own measured mean; of the probabilities
of `posenc.lab.statistics.near_best` in a class, their mean and the share of encodings whose true mean is within the tolerance of
the best. Tests: "moderated" is `posenc.lab.statistics.different`; "own" takes each pair's
own variance of four seeds, as the leaderboard did before. Run from the root of the repository.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from pairs import BENJAMINI_HOCHBERG, different, found
from scipy.special import stdtr
from torch import Tensor

from posenc.lab.statistics import near_best

ROOT = Path(__file__).parents[1]
TABLES, KINDS = 200, 8
NEAR_TABLES = 10
CLASSES = (0.0, 0.05, 0.5, 0.95, 1.0)
"""Of a probability of being near the best."""


class Components(NamedTuple):
    """How the values of a table vary, by encoding: the standard deviations of trainings, of sequences, and of the rest; means;
    and, where trainings jump, how many of them learn and what the others score."""

    trainings: Tensor
    sequences: Tensor
    rest: Tensor
    means: Tensor
    shape: tuple[int, int]
    learned: Tensor | None = None
    low: float = 0.0


def components(values: Tensor, jumps: bool) -> Components:
    """Of measured (encodings, seeds, sequences) values."""
    _, seeds, texts = values.shape
    by_seed, by_text, means = values.mean(2), values.mean(1), values.mean((1, 2))
    rest = values - by_seed[:, :, None] - by_text[:, None] + means[:, None, None]
    left = rest.square().sum((1, 2)) / ((seeds - 1) * (texts - 1))
    of_seeds, of_texts = (
        (each - each.mean(1, keepdim=True) - each.mean(0) + each.mean()).square().sum(1) / (each.shape[1] - 1)
        for each in (by_seed, by_text)
    )
    spread = ((of_seeds - left / texts).clamp(min=0).sqrt(), (of_texts - left / seeds).clamp(min=0).sqrt(), left.sqrt())
    if not jumps:
        return Components(*spread, means, (seeds, texts))
    middle = (by_seed.min() + by_seed.max()) / 2
    learned = (by_seed > middle).double().mean(1)
    return Components(*spread, means, (seeds, texts), learned, float(by_seed[by_seed <= middle].mean()))


def simulated(of: Components, apart: bool | None, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """A table (encodings, seeds, sequences), and the kind of each encoding; encodings of a kind have the same mean. apart: eight
    kinds, or one; None: each encoding is as it was measured, and its kind is its place."""
    count, (seeds, texts) = len(of.means), of.shape
    kind = torch.arange(count) % KINDS if apart else torch.zeros(count, dtype=torch.long)
    which = torch.randperm(count, generator=draws)[:KINDS][kind]
    shuffled = torch.randperm(count, generator=draws)
    if apart is None:
        kind = which = shuffled = torch.arange(count)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    if of.learned is None:
        level = of.means[which][:, None] + of.trainings[shuffled][:, None] * noise(count, seeds)
    else:
        share = of.learned[which] if apart is not False else of.learned.mean().expand(count)
        hit = torch.rand(count, seeds, generator=draws, dtype=torch.float64) < share[:, None]
        level = torch.where(hit, 0.95, of.low) + 0.02 * noise(count, seeds)
    by_text = of.sequences[shuffled][:, None] * noise(count, texts)
    return level[:, :, None] + by_text[:, None] + of.rest[shuffled][:, None, None] * noise(count, seeds, texts), kind


def own(values: Tensor) -> Tensor:
    """Which pairs differ, each by its own variance over seeds and sequences (Satterthwaite's degrees of freedom)."""
    rows, seeds, texts = values.shape
    first, second = torch.triu_indices(rows, rows, 1)
    gaps = values[first] - values[second]
    parts = ((gaps.mean(1).var(1) / texts, texts - 1), (gaps.mean(2).var(1) / seeds, seeds - 1))
    variance = parts[0][0] + parts[1][0]
    freedom = variance.square() / sum(part.square() / df for part, df in parts)
    size = gaps.mean((1, 2)).abs() / variance.sqrt()
    result = torch.zeros(rows, rows, dtype=torch.bool)
    result[first, second] = found(2 * torch.as_tensor(stdtr(freedom.numpy(), -size.numpy())), BENJAMINI_HOCHBERG)
    return result | result.T


def rates(of: Components, apart: bool, jumps: bool, tables: int = TABLES) -> dict[str, float]:
    """The mean share of false differences among those found, of each test. Where all means are equal, every one is false, and it
    is the share of tables with any."""
    draws, shares = torch.Generator().manual_seed(0), {"own": 0.0, "moderated": 0.0}
    for _ in range(tables):
        values, kind = simulated(of, apart, draws)
        same = kind[:, None] == kind
        for test, apart_here in (
            ("own", own(values)),
            ("moderated", different(values, BENJAMINI_HOCHBERG, jumps=jumps)),
        ):
            shares[test] += float((apart_here & same).sum() / apart_here.sum().clamp(min=1))
    return {test: round(share / tables, 3) for test, share in shares.items()}


def near(of: Components, worse: int, tolerance: float, tables: int = NEAR_TABLES) -> list[list[float]]:
    """By class of the stated probability: how many were stated, their mean, and the share that is true."""
    draws = torch.Generator().manual_seed(0)
    truth = of.means
    if of.learned is not None:
        truth = of.learned * 0.95 + (1 - of.learned) * of.low
    stated, true = [], []
    for _ in range(tables):
        values, kind = simulated(of, None, draws)
        level = worse * truth[kind]
        stated.append(near_best(worse * values, tolerance))
        true.append(level <= level.min() + tolerance)
    probability, is_near = torch.cat(stated), torch.cat(true).double()
    part = torch.bucketize(probability, torch.tensor(CLASSES[1:-1], dtype=torch.float64))
    rows = [
        (int((part == at).sum()), probability[part == at].mean(), is_near[part == at].mean())
        for at in range(len(CLASSES) - 1)
    ]
    return [[n, round(float(mean), 3), round(float(share), 3)] if n else [0, 0.0, 0.0] for n, mean, share in rows]


def worlds() -> Iterator[tuple[str, Components, bool, int, float]]:
    """The components of every task at the training length and at the longest, whether its trainings jump, whether more is worse (1)
    or better (-1), and the tolerance."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from leaderboard import ARCHIVES, Board, end, measured

    for task, ranking in Board.read(ARCHIVES).rankings.items():
        for at in ("trained", "longest"):
            condition, jumps = end(ranking, at), ranking.jumps
            values = measured(ranking, condition, ranking.seeds)
            name, criterion = f"{task}, {ranking.settings.spelled(condition)}", ranking.criterion
            yield name, components(values, jumps and at == "trained"), jumps, criterion.worse, criterion.tolerance


def main() -> None:
    torch.set_num_threads(1)
    made = {}
    for name, of, jumps, worse, tolerance in worlds():
        made[name] = {kind: rates(of, kind == "apart", jumps) for kind in ("equal", "apart")}
        made[name] |= {"near": near(of, worse, tolerance)}
        print(name, made[name], flush=True)
    result = {"tables": TABLES, "kinds": KINDS, "near_tables": NEAR_TABLES, "classes": CLASSES, "worlds": made}
    (ROOT / "benchmarks/error_rates.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
