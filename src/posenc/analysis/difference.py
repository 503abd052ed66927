# SPDX-License-Identifier: Apache-2.0
"""Compare two schedules pair by pair: wavelengths, stretch, and phase differences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from typing import Any

from torch import Tensor

from posenc.errors import check_positive, counted
from posenc.frequencies.create_schedule import as_text, complete, create, parse
from posenc.frequencies.schedules import check_factor, check_length, rope_frequencies, stretch, wavelengths
from posenc.lab.messages import as_json
from posenc_cli.arguments import aligned, room

SAME = 1e-12
"""Relative difference up to which two frequencies are the same: what rounding leaves."""

TENTH = 2 * math.pi / 10
"""Radians, 36 degrees: two schedules that are further apart no longer give a pair the same position."""
FOLDED = 3
"""Pairs beside each other that are one line of a table, where they are the same."""
COLUMNS = "pair", "turns", "wavelength A", "wavelength B", "stretch A", "stretch B", "B's frequency", "radians apart"


@dataclass(frozen=True)
class Pair:
    """A pair of channels under both schedules.

    turns: over the context length, by plain RoPE. wavelengths in positions and stretches against plain RoPE are infinite
    for a pair that does not turn. change: the second frequency over the first, less 1. phase: radians by which the
    angles differ between two tokens that are `at` apart.
    """

    pair: int
    turns: float
    wavelengths: tuple[float, float]
    stretches: tuple[float, float]
    change: float
    phase: float

    @property
    def apart(self) -> float:
        """Difference of the frequencies: |ln| of their ratio."""
        return abs(math.log1p(self.change)) if self.change > -1 else math.inf

    @property
    def same(self) -> bool:
        return self.apart <= SAME

    def cells(self) -> list[str]:
        """The pair as a line of a table, see COLUMNS."""
        numbers = map(_number, (self.turns, *self.wavelengths, *self.stretches))
        apart = ["", ""] if self.same else [f"{100 * self.change:+.3g} %", _number(self.phase)]
        return [str(self.pair), *numbers, *apart]


@dataclass(frozen=True)
class Difference:
    """Two schedules over the pairs of a head.

    names: as given; schedules: and complete. length: the context length. at: the distance in tokens at which
    phases are compared.
    """

    names: tuple[str, str]
    schedules: tuple[str, str]
    head_dim: int
    base: float
    length: int
    at: float
    attention_factors: tuple[float, float]
    pairs: tuple[Pair, ...]

    @property
    def largest(self) -> Pair:
        """The pair of the largest phase difference."""
        return max(self.pairs, key=lambda pair: pair.phase)

    @property
    def equal(self) -> bool:
        """Whether both give the same rotations and temperature."""
        return all(pair.same for pair in self.pairs) and math.isclose(*self.attention_factors, rel_tol=SAME)

    def rows(self) -> list[list[str]]:
        """The pairs as lines of a table, see COLUMNS; three or more neighbours that both stretch alike are one line."""
        found = list[list[str]]()
        for alike, run in groupby(self.pairs, key=lambda pair: pair.same and f"{pair.stretches[0]:.6g}"):
            lines = [pair.cells() for pair in run]
            if alike and len(lines) >= FOLDED:
                ends = zip(lines[0], lines[-1], strict=True)
                lines = [[first if first == last else f"{first} to {last}" for first, last in ends]]
            found += lines
        return found

    @property
    def legend(self) -> tuple[str, str]:
        """The names, with a letter each, since they may be the same."""
        return f"A: {self.names[0]}", f"B: {self.names[1]}"

    def __str__(self) -> str:
        head = [f"{letter}: {schedule}" for letter, schedule in zip("AB", self.schedules, strict=True)]
        made = f"head_dim {self.head_dim}, base {self.base:g}, trained on {counted(self.length, 'position')}"
        table = aligned([COLUMNS, *self.rows()], str.rjust, room())
        shape = f"{made}, phases of tokens {self.at:g} apart"
        return "\n".join([*head, shape, "", *table, "", *(f"- {sentence}" for sentence in self.sentences())])

    def sentences(self) -> list[str]:
        """The differences in words, what they mean first."""
        return [*self._meaning(), *self._about_frequencies(), self._about_temperature()]

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON; infinite numbers are null."""
        fields = asdict(self) | {"largest_phase": {"pair": self.largest.pair, "radians": self.largest.phase}}
        return as_json(fields | {"equal": self.equal, "sentences": self.sentences()})

    def _meaning(self) -> list[str]:
        """From which distance on weights trained under one schedule read other angles under the other."""
        large = self.largest
        if large.same:
            return []
        if large.phase <= TENTH:
            return [f"Up to a distance of {self.at:g}, every pair is at the same angle under both, to within 36°."]
        least = math.ceil(self.at * TENTH / large.phase)
        # angles are equal again after a turn
        off = sum(abs(math.remainder(pair.phase, math.tau)) > TENTH for pair in self.pairs)
        return [
            f"From a distance of {counted(least, 'token')} on, a model trained under one schedule is given other angles under the other: pair "
            f"{large.pair} is off by 36° there. At a distance of {self.at:g}, {off} of {len(self.pairs)} pairs are off by 36° or more."
        ]

    def _about_frequencies(self) -> list[str]:
        first, second = self.names
        differ = [pair for pair in self.pairs if not pair.same]
        if not differ:
            return [f"{first} and {second} give the same frequencies in all {len(self.pairs)} pairs."]
        if len(differ) == len(self.pairs):
            where = f"give other frequencies in all {len(self.pairs)} pairs."
        else:
            where = f"differ in {len(differ)} of {len(self.pairs)} pairs: {_ranges([pair.pair for pair in differ])}."
        far = max(differ, key=lambda pair: pair.apart)
        turned, other = (_stretched(number) for number in far.stretches)
        large = self.largest
        return [
            f"{first} and {second} {where}",
            f"Their frequencies are furthest apart in pair {far.pair}, which turns {far.turns:.3g} times in "
            f"the {counted(self.length, 'trained position')}: {turned} under {first}, {other} under {second}.",
            f"Between tokens {self.at:g} apart the largest phase difference is {large.phase:.4g} radians, "
            f"{large.phase / (2 * math.pi):.3g} turns, in pair {large.pair}.",
        ]

    def _about_temperature(self) -> str:
        (first, second), (a, b) = self.names, self.attention_factors
        if not math.isclose(a, b, rel_tol=SAME):
            return (
                f"{first} multiplies cos and sin by {a:.5g} and so scores by {a * a:.5g}; "
                f"{second} by {b:.5g} and {b * b:.5g}."
            )
        if a == 1:
            return "Neither changes the temperature."
        return f"Both multiply cos and sin by {a:.5g}, and so scores by {a * a:.5g}."


def _number(value: float) -> str:
    return f"{value:.0f}" if 1000 <= value < math.inf else f"{value:.4g}"


def _stretched(number: float) -> str:
    if number == math.inf:
        return "at rest"
    return "unchanged" if abs(number - 1) <= SAME else f"stretched {number:.4g} times"


def _ranges(numbers: Sequence[int]) -> str:
    """3, 4, 5, 9 as "3 to 5, 9"."""
    starts = [numbers[0], *(b for a, b in pairwise(numbers) if b != a + 1)]
    ends = [*(a for a, b in pairwise(numbers) if b != a + 1), numbers[-1]]
    return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True))


def diff(
    first: str | Mapping[str, Any],
    second: str | Mapping[str, Any],
    head_dim: int = 64,
    base: float = 10000.0,
    *,
    factor: float = 4.0,
    length: int = 4096,
    at: float | None = None,
) -> Difference:
    """Compare two schedules, as strings ("yarn:beta_fast=16") or as data.

    factor and length, the context length, go to the schedules that need them and do not say them. at: the distance in
    tokens at which phases are compared, factor * length if None; schedules that depend on the text's length take it so.

    Raises:
        InputError: what `parse` and `create` refuse, a length below 1, a distance not above 0.
    """
    at = check_factor(factor) * check_length(length, "length") if at is None else at
    check_positive(at=at)
    shape = {"factor": factor, "original_max_positions": length, "length": math.ceil(at)}
    given = [complete(parse(s) if isinstance(s, str) else s, **shape) for s in (first, second)]
    names = [s if isinstance(s, str) else as_text(s) for s in (first, second)]
    full = [as_text(schedule) for schedule in given]
    made = [create(schedule, head_dim, base=base) for schedule in given]
    turns = rope_frequencies(head_dim, base) * length / (2 * math.pi)
    a, b = (schedule.inv_freq for schedule in made)
    columns: Sequence[Tensor] = (
        turns,
        *(wavelengths(schedule) for schedule in made),
        *(stretch(schedule, head_dim, base=base) for schedule in made),
        (b / a - 1).where(a != b, 0.0),  # two pairs at rest are the same
        (a - b).abs() * at,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return Difference(
        names=(names[0], names[1]),
        schedules=(full[0], full[1]),
        head_dim=head_dim,
        base=base,
        length=length,
        at=at,
        attention_factors=(made[0].attention_factor, made[1].attention_factor),
        pairs=tuple(Pair(c, t, (w, x), (s, u), change, phase) for c, (t, w, x, s, u, change, phase) in enumerate(rows)),
    )
