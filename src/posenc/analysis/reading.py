# SPDX-License-Identifier: Apache-2.0
"""Codes: a function from positions (or distances) to vectors, and what is checked whenever it is read."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc.errors import InputError
from posenc.functional import turning


class HiddenKeys(InputError):
    """A distance has no code because its keys are hidden from the query. distance: the nearest such of those asked for."""

    def __init__(self, name: str, distance: int) -> None:
        super().__init__(f"{name}: it hides keys at distance {distance}; ask for fewer")
        self.distance = distance


CHUNK = 8192
"""Positions at once."""
LARGEST = 1e150
"""Of a number in a code: its square is still finite."""


@dataclass(frozen=True, eq=False)
class Waves:
    """Codes whose channels turn in pairs: one position on turns (first, second) by `frequencies` radians. Channels in no
    pair stand still.

    frequencies: (pairs,) float64. first, second: (pairs,) channels.
    """

    frequencies: Tensor
    first: Tensor
    second: Tensor

    def matrix(self, shift: float, dim: int) -> Tensor:
        """The (dim, dim) float64 matrix M with M p(t) = p(t + shift) for every t."""
        return turning(shift * self.frequencies, self.first, self.second, dim)

    def by_channel(self, dim: int) -> Tensor:
        """The frequency of each channel, (dim,); 0 where it stands still."""
        found = torch.zeros(dim, dtype=torch.float64)
        found[self.first] = found[self.second] = self.frequencies
        return found


@dataclass(frozen=True, eq=False)
class Codes:
    """A vector per position, or per distance: call it with (n,) positions for (n, dim) float64 vectors on the CPU.

    name: for people. of: what a vector belongs to; encodings that add to the scores have none per position, but one
    number a head for every distance. limit: positions 0 .. limit-1 are defined, None: all; ends: why those alone, empty:
    it is made for so many. waves: its known
    frequencies, None: unknown. module: what it is read off, to train or not. needs_length: a code depends on how many
    positions are asked for together. dim: width; None: whatever the first call gives, and the same ever after.
    reach: how far a search goes that is not told, where each position costs time; None: as far as for others.

    Raises, when called:
        InputError: positions that are none, or past the limit; codes that are not (n, dim), not of the same dim in
            every call, not finite, too large to be squared, or not those of the last call for the same positions; a
            function that fails.
    """

    name: str
    function: Callable[[Tensor], Any]
    of: Literal["position", "distance"] = "position"
    limit: int | None = None
    waves: Waves | None = None
    module: nn.Module | None = None
    needs_length: bool = False
    dim: int | None = None
    reach: int | None = None
    ends: str = ""
    _dims: list[int] = field(default_factory=list, repr=False)

    def __call__(self, positions: Tensor) -> Tensor:
        with seeded():  # noise of a function's own moves nobody else's random numbers
            found, again = self.read(positions), self.read(positions)
        if not torch.equal(found, again):
            raise InputError(
                f"{self.name}: gave two different codes for the same {self.of}s; seed it, or turn off its noise (a "
                "module's by .eval())"
            )
        return found

    @torch.no_grad()
    def read(self, positions: Tensor) -> Tensor:
        """One call, checked, but not for being the same every time."""
        self._check(positions)
        try:
            given = self.function(positions.clone())
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # a function of somebody's may raise anything
            told = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"{self.name}: failed for {len(positions)} {self.of}s: {told}") from error
        try:
            codes = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                f"{self.name}: gave a {type(given).__name__}; return a tensor or an array of numbers (n, dim)"
            ) from None
        count, shape = len(positions), tuple(codes.shape)
        if len(shape) == 3 and shape[:2] == (1, count):
            raise InputError(f"{self.name}: gave {shape} for {count} positions; leave out the batch: return codes[0]")
        if len(shape) != 2 or shape[0] != count or not shape[1]:
            raise InputError(f"{self.name}: gave {shape} for {count} positions; it must give (n, dim), a row each")
        if codes.is_complex():
            raise InputError(
                f"{self.name}: gave complex codes; return real ones, as torch.view_as_real(codes).flatten(1)"
            )
        wanted = self.dim if self.dim is not None else self._dims[0] if self._dims else shape[1]
        if shape[1] != wanted:
            said = f"dim={wanted}" if self.dim is not None else f"{wanted} in an earlier call"
            raise InputError(
                f"{self.name}: gave codes of width {shape[1]}, but {said}; every code needs the same width"
            )
        self._dims[:] = [wanted]
        found = codes.detach().to("cpu", torch.float64)
        fine = (found.abs() <= LARGEST).all(-1)  # which NaN is not, either
        if not bool(fine.all()):
            row = int((~fine).int().argmax())
            wrong = f"larger than {LARGEST:g}" if bool(found[row].isfinite().all()) else "not finite"
            raise InputError(
                f"{self.name}: the code of {self.of} {positions[row].tolist()} is {wrong}; mend it, or analyse fewer"
            )
        return found

    def _check(self, positions: Tensor) -> None:
        if positions.dim() not in (1, 2) or not len(positions):
            raise InputError(
                f"positions of shape {tuple(positions.shape)}: pass one number each, (n,), or (n, axes) on a grid, and "
                "at least one"
            )
        if self.limit is not None and positions.dim() == 1:
            low, high = positions.min().item(), positions.max().item()
            if low < 0:
                raise InputError(f"positions from {low:g}: {self.name} starts at 0; ask for none below")
            if high >= self.limit:
                raise InputError(
                    f"positions up to {high:g}: {self.name} has codes of 0 .. {self.limit - 1} alone; ask for fewer "
                    f"(length={self.limit} at most)"
                )


def whole(name: str, value: float, least: int = 1) -> int:
    """An argument that counts something.

    Raises:
        InputError: not a whole number, or below the least.
    """
    if isinstance(value, bool) or not math.isfinite(value) or value != int(value) or value < least:
        raise InputError(f"{name}={value}: must be a whole number, at least {least}")
    return int(value)


def of_table(name: str, table: Tensor, module: nn.Module | None = None) -> Codes:
    """The rows of a table (n, dim), a position each."""

    def rows(positions: Tensor) -> Tensor:
        if positions.is_floating_point() and bool((positions != positions.floor()).any()):
            raise InputError(f"{name}: a table has rows for whole positions alone; round them")
        return table.detach()[positions.long().to(table.device)]

    return Codes(name, rows, limit=len(table), module=module)


def in_chunks(codes: Codes, count: int) -> Callable[[Tensor], Tensor]:
    """The codes of any of the positions 0 .. count-1 of one text, a row each: read as asked for, or all at once where
    they depend on each other."""
    if not codes.needs_length:
        return codes
    every = codes(torch.arange(count))
    return lambda positions: every[positions.long()]


def defined(codes: Codes, start: int, end: int) -> tuple[int, str]:
    """How many positions from 0 on have codes, if those below `start` have and it is not asked about more than `end`; and
    why the next has none, empty where all have."""
    last = end if codes.limit is None else min(end, codes.limit)
    refusal = "" if last == end else codes.ends or f"it is made for {last}"
    step = last - start if codes.needs_length else CHUNK
    while start < last:
        high = min(start + step, last)
        try:
            codes(torch.arange(high) if codes.needs_length else torch.arange(start, high))
            start = high
        except InputError as error:  # the first that has none is below high: look half as far ahead
            cause = error.__cause__ or error
            refusal = next(iter(str(cause).splitlines()), type(cause).__name__).rstrip(".")
            last, step = high - 1, max(1, (high - start) // 2)
    return start, refusal


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Random numbers from a seed for a while; the caller's go on afterwards as if nobody had drawn any."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


def positions_of(codes: Codes, length: int, least: int = 2, argument: str = "length") -> Tensor:
    """0 .. length-1, where the codes are defined.

    Raises:
        InputError: fewer than the least, past the limit, or codes of fewer than the least alone.
    """
    if codes.limit is not None and codes.limit < least:
        raise InputError(f"{codes.name}: has codes of {codes.limit} {codes.of}s alone, and takes {least} to compare")
    length = whole(argument, length, least)
    if codes.limit is not None and length > codes.limit:
        raise InputError(
            f"{argument}={length}: {codes.name} has codes of {codes.limit} {codes.of}s; pass {codes.limit} or fewer"
        )
    return torch.arange(length)
