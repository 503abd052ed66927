# SPDX-License-Identifier: Apache-2.0
"""The four properties that everyone wishes of positions, measured: unique, in even steps, bounded, deterministic."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.analysis.codes import codes_of
from posenc.analysis.finding import Finding
from posenc.analysis.reading import CHUNK, Codes, defined, in_chunks, positions_of, seeded, whole
from posenc.analysis.uniqueness import Uniqueness, unique
from posenc.checks import checked
from posenc.errors import InputError

EVEN, LARGER, SAME = 1e-3, 1.01, 1e-6
"""Steps that differ by less (a share of their mean) are even; norms up to so many times those inside are bounded; codes
closer than this share of a code's norm are the same."""
LIKE = 0.1
"""How far norms may be off a power of the position that they are said to go like, as a logarithm."""


# ---------------------------------------------------------------- steps


@dataclass(frozen=True, eq=False)
class Steps(Finding):
    """How far apart the codes of positions t and t + k are, over t, and in texts of other lengths.

    steps: the k. smallest, mean, largest: the distance (Euclidean) over the t of a text, one for each k. by_length:
    length of a text -> mean distance of neighbours in the same first positions of it. uneven: (largest - smallest) / mean
    of the neighbours' distances, uneven_lengths: the same over the lengths. holds: both are below 0.1%.
    """

    name: str
    of: str
    length: int
    holds: bool
    steps: list[int]
    smallest: Tensor
    mean: Tensor
    largest: Tensor
    by_length: dict[int, float]
    uneven: float
    uneven_lengths: float

    def sentences(self) -> list[str]:
        low, mean, high = float(self.smallest[0]), float(self.mean[0]), float(self.largest[0])
        if not high:
            return [
                f"Neighbours have the same code: a step is nothing, wherever it is taken ({self.length} {self.of}s)."
            ]
        if self.uneven <= EVEN:
            said = [f"A step of one is the same at every {self.of}: {mean:.4g}."]
        else:
            said = [
                f"A step of one is not the same at every {self.of}: from {low:.4g} to {high:.4g}, {mean:.4g} on average."
            ]
        short, long = min(self.by_length), max(self.by_length)
        if short < long and self.uneven_lengths <= EVEN:
            said.append(f"It does not depend on the text's length ({short} to {long}).")
        elif short < long:
            said.append(
                f"It depends on the text's length: {self.by_length[short]:.4g} in a text of {short}, "
                f"{self.by_length[long]:.4g} in one of {long}."
            )
        if len(self.steps) > 1:
            pairs = ", ".join(f"{k}: {float(at):.3g}" for k, at in zip(self.steps, self.mean, strict=True))
            said.append(f"Distance after so many steps, on average: {pairs}.")
        return said


@checked
def steps(
    subject: Any,
    length: int = 512,
    *,
    by: Sequence[int] = (1, 2, 4, 8, 16),
    lengths: Sequence[int] | None = None,
    **options: Any,
) -> Steps:
    """Measure whether a step is the same everywhere, and in texts of every length.

    Args:
        subject: anything `codes_of` takes, with its options. length: positions of the text. by: the steps k; those that do
            not fit are left out. lengths: of other texts; None: an eighth, a quarter, half and twice the length, as
            far as there are codes.

    Raises:
        InputError: codes that cannot be read, a length below 2, or steps below 1.
    """
    codes = codes_of(subject, **options)
    own = codes(positions_of(codes, length))
    ks = [k for k in (whole("by", k) for k in by) if k < length] or [1]
    apart = [(own[k:] - own[:-k]).norm(dim=-1) for k in ks]
    if lengths is None:
        tried = (length // 8, length // 4, length // 2, length, 2 * length)
        lengths = [n for n in tried if n >= 2 and (codes.limit is None or n <= codes.limit)]
    texts = sorted({whole("lengths", n, 2) for n in lengths} | {length})
    by_length = {
        n: float(codes(positions_of(codes, n, 2, "lengths"))[: texts[0]].diff(dim=0).norm(dim=-1).mean()) for n in texts
    }
    uneven, uneven_lengths = _uneven(apart[0]), _uneven(torch.tensor(list(by_length.values())))
    return Steps(
        name=codes.name,
        of=codes.of,
        length=length,
        holds=bool(apart[0].any()) and uneven <= EVEN and uneven_lengths <= EVEN,
        steps=ks,
        smallest=torch.stack([x.min() for x in apart]),
        mean=torch.stack([x.mean() for x in apart]),
        largest=torch.stack([x.max() for x in apart]),
        by_length=by_length,
        uneven=uneven,
        uneven_lengths=uneven_lengths,
    )


def _uneven(values: Tensor) -> float:
    mean = float(values.mean())
    return float(values.max() - values.min()) / mean if mean else 0.0


# ---------------------------------------------------------------- bounded


@dataclass(frozen=True, eq=False)
class Boundedness(Finding):
    """How long codes get inside the trained length, and past it.

    trained: positions inside. up_to: how far it was tried. defined_to: positions 0 .. defined_to-1 have codes. refusal:
    what the next one was refused with, empty where all have. inside, past: the largest norm of a code, nan where there
    is none. growth: e, where norms past the trained length go like position^e, to 10% everywhere; nan where they do not,
    or are too few. holds: defined everywhere tried, and nowhere more than 1% longer than inside.
    """

    name: str
    of: str
    trained: int
    up_to: int
    holds: bool
    defined_to: int
    refusal: str
    inside: float
    past: float
    growth: float

    def sentences(self) -> list[str]:
        said = [f"Inside the trained length, {self.trained}, a code is at most {self.inside:.4g} long."]
        if self.defined_to < self.up_to:
            said.append(f"From {self.of} {self.defined_to} on there is no code: {self.refusal}.")
        if not math.isnan(self.past):
            past = f"Past it, up to {self.of} {self.defined_to - 1},"
            if self.past <= LARGER * self.inside:
                said.append(f"{past} none is longer than {self.past:.4g}.")
            else:
                times = f", {self.past / self.inside:.3g} times as much" if self.inside else ""
                like = f", like {self.of}^{self.growth:.2f}" if self.growth >= 0.05 else ""
                said.append(f"{past} they are up to {self.past:.4g} long{times}{like}.")
                if self.of == "distance":
                    said.append("Where a bias falls, that is how far keys are made to fade.")
        return said


@checked
def bounded(
    subject: Any, length: int = 512, *, trained: int | None = None, up_to: int | None = None, **options: Any
) -> Boundedness:
    """Measure how large codes get, and whether there are any, past the trained length.

    Args:
        subject: anything `codes_of` takes, with its options. length, trained: positions that count as seen in training;
            trained=None takes length, or the size of a smaller table. up_to: how far to look; None: 16 times that.

    Raises:
        InputError: codes that cannot be read inside the trained length, or up_to that is not past it.
    """
    codes = codes_of(subject, **options)
    seen = whole("trained", length if trained is None else trained, 2)
    if codes.limit is not None and trained is None:
        seen = min(seen, codes.limit)
    up_to = whole("up_to", 16 * seen if up_to is None else up_to, seen + 1)
    inside = codes(positions_of(codes, seen, 2, "trained")).norm(dim=-1)
    defined_to, refusal = defined(codes, seen, up_to)
    past = _norms(codes, seen, defined_to)
    largest = float(past.max()) if len(past) else math.nan
    return Boundedness(
        name=codes.name,
        of=codes.of,
        trained=seen,
        up_to=up_to,
        holds=defined_to == up_to and largest <= LARGER * float(inside.max()),
        defined_to=defined_to,
        refusal=refusal,
        inside=float(inside.max()),
        past=largest,
        growth=_exponent(past, seen),
    )


def _norms(codes: Codes, start: int, end: int) -> Tensor:
    if start == end:
        return torch.zeros(0, dtype=torch.float64)
    read = in_chunks(codes, end)
    return torch.cat([read(at).norm(dim=-1) for at in torch.arange(start, end).split(CHUNK)])


def _exponent(norms: Tensor, start: int) -> float:
    """The slope of log norm against log position, where that is a line."""
    kept = norms > 0
    if int(kept.sum()) < 2:
        return math.nan
    x, y = (start + torch.arange(len(norms)))[kept].double().log(), norms[kept].log()
    x = x - x.mean()
    y = y - y.mean()
    slope = float((x * y).sum() / x.square().sum())
    return slope if float((y - slope * x).abs().max()) <= LIKE else math.nan


# ---------------------------------------------------------------- deterministic


ASPECTS = {
    "again": "when asked for a second time",
    "order": "when asked for in another order",
    "beside": "in a batch, beside other texts",
    "alone": "when asked for alone",
    "prefix": "in a shorter text",
    "training": "in training",
}
"""What may not change a code, for people."""


@dataclass(frozen=True, eq=False)
class Determinism(Finding):
    """Whether a position's code is always the same.

    differences: aspect (see ASPECTS) -> how far the codes move at most, as a share of a code's norm; inf where positions
    are refused so. holds: none moves by more than 1e-6.
    """

    name: str
    of: str
    length: int
    holds: bool
    differences: dict[str, float]

    def sentences(self) -> list[str]:
        moved = {aspect: by for aspect, by in self.differences.items() if by > SAME}
        if not moved:
            tried = "; ".join(ASPECTS[aspect] for aspect in self.differences)
            return [f"The code of a {self.of} is always the same ({tried})."]
        return [
            f"The code of a {self.of} is refused {ASPECTS[aspect]}."
            if math.isinf(by)
            else f"The code of a {self.of} is another one {ASPECTS[aspect]}: it moves by up to {by:.3g} of its norm."
            for aspect, by in moved.items()
        ]


@checked
def deterministic(subject: Any, length: int = 512, **options: Any) -> Determinism:
    """Read the codes of the first `length` positions again and again, in evaluation and in training, and compare.

    Args:
        subject: anything `codes_of` takes, with its options; noise and modules in training mode are not refused here.

    Raises:
        InputError: codes that cannot be read at all, or a length below 2.
    """
    codes = codes_of(subject, **options)
    at = positions_of(codes, length)
    shuffled = torch.randperm(length, generator=torch.Generator().manual_seed(0))
    some = at[:: max(1, length // 8)]
    with seeded(), _mode(codes.module, False):
        own = codes.read(at)
        norm = float(own.square().sum(-1).mean().sqrt()) or 1.0

        def moved(expected: Tensor, *positions: Tensor) -> float:
            try:
                found = torch.cat([codes.read(part) for part in positions])
            except InputError:
                return math.inf
            return float((found[: len(expected)] - expected).norm(dim=-1).max()) / norm

        differences = {
            "again": moved(own, at),
            "order": moved(own[shuffled], shuffled),
            "beside": moved(own, torch.cat((at, shuffled))),
            "alone": moved(own[some], *some.split(1)),
            "prefix": moved(own[: length // 2], at[: length // 2]),
        }
    if codes.module is not None:
        with seeded(), _mode(codes.module, True):
            differences["training"] = max(moved(own, at), moved(own, at))
    return Determinism(codes.name, codes.of, length, all(by <= SAME for by in differences.values()), differences)


@contextmanager
def _mode(module: nn.Module | None, training: bool) -> Iterator[None]:
    """A module in training or evaluation mode; afterwards every part is as it was, and so are its buffers, which a pass in
    training may change."""
    module = nn.Module() if module is None else module
    modes = {part: part.training for part in module.modules()}
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    module.train(training)
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        for buffer, values in buffers:
            buffer.data.copy_(values)


# ---------------------------------------------------------------- all four


@dataclass(frozen=True, eq=False)
class Properties(Finding):
    """The four properties of one subject."""

    name: str
    of: str
    unique: Uniqueness
    steps: Steps
    bounded: Boundedness
    deterministic: Determinism

    def sentences(self) -> list[str]:
        wished = (
            ("A code of its own", self.unique.holds, self.unique),
            ("Even steps", self.steps.holds, self.steps),
            ("Bounded and defined", self.bounded.holds, self.bounded),
            ("Deterministic", self.deterministic.holds, self.deterministic),
        )
        return [f"{wish}: {'yes' if holds else 'no'}. {' '.join(found.sentences())}" for wish, holds, found in wished]


@checked
def properties(
    subject: Any, length: int = 512, *, trained: int | None = None, search: int | None = None, **options: Any
) -> Properties:
    """The four properties: unique, in even steps, bounded, deterministic. A smaller table is measured as far as it goes.

    Args:
        subject: anything `codes_of` takes, with its options. length: positions looked at. trained: see `bounded`. search:
            see `unique`.

    Raises:
        InputError: codes that cannot be read, or sizes that do not fit.
    """
    codes = codes_of(subject, **options)
    length = length if codes.limit is None else min(length, codes.limit)
    return Properties(
        codes.name,
        codes.of,
        unique(codes, length, search=search),
        steps(codes, length),
        bounded(codes, length, trained=trained),
        deterministic(codes, length),
    )
