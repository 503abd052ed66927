# SPDX-License-Identifier: Apache-2.0
"""The four properties that codes of positions should have, measured: unique, evenly spaced, bounded, deterministic."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.analysis.codes import CHUNK, codes_of, defined_until, in_chunks, positions_of
from posenc.analysis.finding import Finding
from posenc.conformance.fixtures import seeded
from posenc.errors import InputError, check_integers, not_none

EVEN, LARGER, SAME = 1e-3, 1.01, 1e-6
"""Steps that differ by less (a share of their mean) are even; norms up to so many times those inside are bounded; codes
closer than this share of a code's norm are the same."""
STEPS = 1, 2, 4, 8, 16


# ---------------------------------------------------------------- unique


@dataclass(frozen=True, eq=False)
class Uniqueness(Finding):
    """Whether the codes of all positions (or distances) differ.

    holds: no two of the first `length` codes are equal. smallest: the distance (Euclidean) between the closest two of
    them, and pair: which. norm: of a code, root mean square. collision: the first position of 0 .. searched-1 whose code
    is within `tolerance` (a distance, 1e-6 of the norm) of an earlier one, and that one; None: there is none.
    """

    of: str
    length: int
    holds: bool
    smallest: float
    pair: tuple[int, int]
    norm: float
    collision: tuple[int, int] | None
    searched: int
    tolerance: float

    def sentences(self) -> list[str]:
        differ = f"Not all codes of the {self.of}s below {self.length} differ."
        if self.holds:
            differ = (
                f"All codes of the {self.of}s below {self.length} differ: the closest two, {self.pair[0]} and "
                f"{self.pair[1]}, are {self.smallest:.4g} apart (the norm of a code is {self.norm:.4g})."
            )
        if self.collision is None:
            return [
                differ,
                f"None of the first {self.searched} codes equals an earlier one (within {self.tolerance:.2g}).",
            ]
        later, earlier = self.collision
        return [
            differ,
            f"The first code that occurs again is that of {self.of} {later}: it equals that of {earlier} (within "
            f"{self.tolerance:.2g}).",
        ]


def unique(subject: Any, length: int = 512, *, search: int | None = None, **options: Any) -> Uniqueness:
    """Look for positions that share a code.

    Args:
        subject: anything `codes_of` takes, with its options. length: how many codes are compared, each with each. search:
            how far to look for the first collision, in memory that grows with it linearly; None: 100 000, or as far
            as there are codes.

    Raises:
        InputError: codes that cannot be read, length below 2, or search below length.
    """
    codes = codes_of(subject, **options)
    first = codes(positions_of(codes, length))
    check_integers(length, **not_none(search=search))
    norm = float(first.square().sum(-1).mean().sqrt())
    smallest, pair = _closest(first)
    searched = max(length, codes.search) if search is None else search
    searched = searched if codes.limit is None else min(searched, codes.limit)
    if search is None:
        searched, _ = defined_until(codes, length, searched)
    collision = _first_collision(in_chunks(codes, searched), searched, SAME * norm)
    return Uniqueness(
        of=codes.of,
        length=length,
        holds=collision is None or collision[0] >= length,
        smallest=smallest,
        pair=pair,
        norm=norm,
        collision=collision,
        searched=searched,
        tolerance=SAME * norm,
    )


def _closest(codes: Tensor) -> tuple[float, tuple[int, int]]:
    """The smallest distance between two rows, and which they are."""
    best, pair, rows = math.inf, (0, 1), max(1, 2**22 // len(codes))
    for start in range(0, len(codes), rows):
        block = codes[start : start + rows]
        apart = torch.cdist(block, codes, compute_mode="donot_use_mm_for_euclid_dist")
        at = torch.arange(start, start + len(block))
        apart[at[:, None] >= torch.arange(len(codes))] = math.inf  # each pair once, none with itself
        least = float(apart.min())
        if least < best * (1 - 1e-6):  # of pairs that are as close, the first
            row, column = (apart <= least * (1 + 1e-6)).nonzero()[0].tolist()
            best, pair = least, (start + row, column)
    return best, pair


def _first_collision(read: Callable[[Tensor], Tensor], count: int, tolerance: float) -> tuple[int, int] | None:
    """The first position within tolerance of an earlier one, and the first such. The search doubles what it compares: all
    codes of the half before differ, so few are alike."""
    projections = _project(read, count)
    ends = [*(2**k for k in range(1, (count - 1).bit_length())), count]
    return next((found for end in ends if (found := _later(read, projections[:end], tolerance))), None)


def _project(read: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """Every code's projections on a few random directions of length 1, (count, 8)."""
    parts, directions = [], None
    for start in range(0, count, CHUNK):
        codes = read(torch.arange(start, min(start + CHUNK, count)))
        if directions is None:
            directions = torch.randn(codes.shape[1], 8, generator=torch.Generator().manual_seed(0), dtype=codes.dtype)
            directions /= directions.norm(dim=0)
        parts.append(codes @ directions)
    return torch.cat(parts)


def _later(read: Callable[[Tensor], Tensor], projections: Tensor, tolerance: float) -> tuple[int, int] | None:
    """The first position that is within tolerance of an earlier one. Codes that are close have close projections: sorted by
    one coordinate of these, only neighbours need comparing."""
    order = projections[:, 0].argsort(stable=True)
    in_line = projections[order]
    slack = tolerance + 1e-12 * (1 + float(projections.abs().max()))
    first: tuple[int, int] | None = None
    for step in range(1, len(order)):
        close = (in_line[step:, 0] - in_line[:-step, 0] <= slack).nonzero()[:, 0]
        if not len(close):
            break
        close = close[((in_line[close + step] - in_line[close]).abs() <= slack).all(-1)]
        ends = torch.stack((order[close], order[close + step]))
        late, early = ends.amax(0), ends.amin(0)
        for part in torch.arange(len(late)).split(CHUNK):
            if not len(part):
                break
            apart = (read(late[part]) - read(early[part])).norm(dim=-1)
            for at in part[apart <= tolerance].tolist():
                pair = int(late[at]), int(early[at])
                first = pair if first is None else min(first, pair)
    return first


# ---------------------------------------------------------------- steps


@dataclass(frozen=True, eq=False)
class Steps(Finding):
    """How far apart the codes of positions t and t + k are, over t, and in sequences of other lengths."""

    of: str
    length: int
    holds: bool
    """uneven and uneven_lengths are below 0.1%"""
    steps: list[int]
    """The k"""
    smallest: Tensor
    """Euclidean distance over the t of a sequence, one for each k"""
    mean: Tensor
    largest: Tensor
    by_length: dict[int, float]
    """Length of a sequence: mean distance of neighbours in its first positions, which are the same"""
    uneven: float
    """(largest - smallest) / mean of the neighbours' distances"""
    uneven_lengths: float
    """The same over the lengths"""

    def sentences(self) -> list[str]:
        low, mean, high = float(self.smallest[0]), float(self.mean[0]), float(self.largest[0])
        if not high:
            return [f"Neighbours have the same code: every step is 0 ({self.length} {self.of}s)."]
        sentences = [f"A step of one is the same at every {self.of}: {mean:.4g}."]
        if self.uneven > EVEN:
            sentences = [
                f"A step of one varies with the {self.of}: from {low:.4g} to {high:.4g}, {mean:.4g} on average."
            ]
        short, long = min(self.by_length), max(self.by_length)
        if self.uneven_lengths > EVEN:
            sentences.append(
                f"It depends on the text's length: {self.by_length[short]:.4g} in a text of {short}, "
                f"{self.by_length[long]:.4g} in one of {long}."
            )
        elif short < long:
            sentences.append(f"It does not depend on the text's length ({short} to {long}).")
        if len(self.steps) > 1:
            pairs = ", ".join(f"{k}: {float(at):.3g}" for k, at in zip(self.steps, self.mean, strict=True))
            sentences.append(f"Distance after so many steps, on average: {pairs}.")
        return sentences


def steps(subject: Any, length: int = 512, **options: Any) -> Steps:
    """Measure whether a step is the same everywhere, and in sequences of an eighth, a quarter, half and twice the length.

    Args:
        subject: anything `codes_of` takes, with its options. length: positions of the text.

    Raises:
        InputError: codes that cannot be read, or a length below 2.
    """
    codes = codes_of(subject, **options)
    values = codes(positions_of(codes, length))
    ks = [k for k in STEPS if k < length]
    apart = [(values[k:] - values[:-k]).norm(dim=-1) for k in ks]
    lengths = [n for n in (length // 8, length // 4, length // 2, length, 2 * length) if n >= 2]
    lengths = [n for n in lengths if codes.limit is None or n <= codes.limit]
    by_length = {n: float(codes(torch.arange(n))[: lengths[0]].diff(dim=0).norm(dim=-1).mean()) for n in lengths}
    uneven, uneven_lengths = _uneven(apart[0]), _uneven(torch.tensor(list(by_length.values())))
    return Steps(
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
    """How long codes get inside the training length, and past it.

    trained: positions inside. up_to: how far it was tried. defined_to: positions 0 .. defined_to-1 have codes. refusal:
    what the next one was refused with, empty where all have. inside, past: the largest norm of a code, nan where there
    is none. holds: defined everywhere tried, and nowhere more than 1% longer than inside.
    """

    of: str
    trained: int
    up_to: int
    holds: bool
    defined_to: int
    refusal: str
    inside: float
    past: float

    def sentences(self) -> list[str]:
        sentences = [f"Inside the training length, {self.trained}, the largest norm of a code is {self.inside:.4g}."]
        if self.defined_to < self.up_to:
            sentences.append(f"From {self.of} {self.defined_to} on there is no code: {self.refusal}.")
        if not math.isnan(self.past):
            times = f", {self.past / self.inside:.3g} times as much" if self.past > LARGER * self.inside > 0 else ""
            sentences.append(f"Past it, up to {self.of} {self.defined_to - 1}, it is {self.past:.4g}{times}.")
        return sentences


def bounded(
    subject: Any, length: int = 512, *, trained: int | None = None, up_to: int | None = None, **options: Any
) -> Boundedness:
    """Measure how large codes get, and whether there are any, past the training length.

    Args:
        subject: anything `codes_of` takes, with its options. length, trained: positions that count as seen in training;
            trained=None takes length, or the size of a smaller table. up_to: how far to look; None: 16 times that.

    Raises:
        InputError: codes that cannot be read inside the training length, or up_to that is not past it.
    """
    codes = codes_of(subject, **options)
    if trained is None:
        trained = length if codes.limit is None else min(length, codes.limit)
    inside = codes(positions_of(codes, trained, 2, "trained")).norm(dim=-1)
    check_integers(trained + 1, **not_none(up_to=up_to))
    up_to = 16 * trained if up_to is None else up_to
    defined_to, refusal = defined_until(codes, trained, up_to)
    past = torch.zeros(0, dtype=torch.float64)
    if defined_to > trained:
        read = in_chunks(codes, defined_to)
        past = torch.cat([read(at).norm(dim=-1) for at in torch.arange(trained, defined_to).split(CHUNK)])
    largest = float(past.max()) if len(past) else math.nan
    return Boundedness(
        of=codes.of,
        trained=trained,
        up_to=up_to,
        holds=defined_to == up_to and largest <= LARGER * float(inside.max()),
        defined_to=defined_to,
        refusal=refusal,
        inside=float(inside.max()),
        past=largest,
    )


# ---------------------------------------------------------------- deterministic


ASPECTS = {
    "again": "when asked for a second time",
    "order": "when asked for in another order",
    "beside": "in a batch, beside other sequences",
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
            f"The code of a {self.of} raises an error {ASPECTS[aspect]}."
            if math.isinf(by)
            else f"The code of a {self.of} is another one {ASPECTS[aspect]}: it moves by up to {by:.3g} of its norm."
            for aspect, by in moved.items()
        ]


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
        values = codes.read(at)
        norm = float(values.square().sum(-1).mean().sqrt()) or 1.0

        def moved(expected: Tensor, *positions: Tensor) -> float:
            try:
                again = torch.cat([codes.read(part) for part in positions])
            except InputError:
                return math.inf
            return float((again[: len(expected)] - expected).norm(dim=-1).max()) / norm

        differences = {
            "again": moved(values, at),
            "order": moved(values[shuffled], shuffled),
            "beside": moved(values, torch.cat((at, shuffled))),
            "alone": moved(values[some], *some.split(1)),
            "prefix": moved(values[: length // 2], at[: length // 2]),
        }
    if codes.module is not None:
        with seeded(), _mode(codes.module, True):
            differences["training"] = max(moved(values, at), moved(values, at))
    return Determinism(codes.of, length, all(by <= SAME for by in differences.values()), differences)


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

    @property
    def each(self) -> dict[str, Uniqueness | Steps | Boundedness | Determinism]:
        """The four by their names."""
        return {
            "Unique per position": self.unique,
            "Uniform step": self.steps,
            "Bounded": self.bounded,
            "Deterministic": self.deterministic,
        }

    def summary(self) -> str:
        return "  ".join(f"{name} {'✓' if each.holds else '✗'}" for name, each in self.each.items())

    def sentences(self) -> list[str]:
        return [
            f"{name}: {'yes' if finding.holds else 'no'}. {' '.join(finding.sentences())}"
            for name, finding in self.each.items()
        ]


def properties(
    subject: Any, length: int = 512, *, trained: int | None = None, search: int | None = None, **options: Any
) -> Properties:
    """The four properties: unique, in even steps, bounded, deterministic. A smaller table is measured as far as it goes.

    Args:
        subject: anything `codes_of` takes, with its options. length: positions analysed. trained: see `bounded`. search:
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
