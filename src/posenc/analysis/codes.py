# SPDX-License-Identifier: Apache-2.0
"""Codes: a function from positions (or distances) to vectors, and what is checked whenever it is called."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc.errors import InputError, check_integers
from posenc.functional import turning

CHUNK = 8192
"""Positions read at once."""
LARGEST = 1e150
"""Largest number in a code: its square is still finite."""


class HiddenKeys(InputError):
    """A distance has no code because the encoding hides its keys. distance: the nearest such."""

    def __init__(self, name: str, distance: int) -> None:
        super().__init__(f"{name}: it hides keys at distance {distance}; ask for fewer")
        self.distance = distance


@dataclass(frozen=True, eq=False)
class Waves:
    """Codes whose channels rotate in pairs: from one position to the next (first, second) rotates by `frequencies` radians.

    frequencies: (pairs,) float64. first, second: (pairs,) channels. Channels in no pair are constant.
    """

    frequencies: Tensor
    first: Tensor
    second: Tensor

    def matrix(self, shift: float, dim: int) -> Tensor:
        """The (dim, dim) float64 matrix M with M p(t) = p(t + shift) for every t."""
        return turning(shift * self.frequencies, self.first, self.second, dim)

    def by_channel(self, dim: int) -> Tensor:
        """The frequency of each channel, (dim,); 0 where it is constant."""
        frequencies = torch.zeros(dim, dtype=torch.float64)
        frequencies[self.first] = frequencies[self.second] = self.frequencies
        return frequencies


@dataclass(frozen=True, eq=False)
class Codes:
    """A vector per position, or per distance: call it with (n,) positions for (n, dim) float64 vectors on the CPU.

    name: for people. of: what a vector belongs to; an encoding that adds to the scores has none per position, but one number
    per head for every distance. limit: positions 0 .. limit-1 are defined, None: all; ends: why only those, "" for a table.
    waves: its frequencies, None: unknown. module: what it is read from, to train or not. needs_length: a code depends on how
    many positions are asked for together. dim: width; None: that of the first call. reach: how far a search goes by default
    where every position takes long; None: as far as for others.

    Raises, when called:
        InputError: positions past the limit; codes that are not (n, dim), not of one width in all calls, not finite, too
            large to be squared, or different in a second call; a function that fails.
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
        with seeded():  # a function's noise must not advance the caller's generator
            codes, again = self.read(positions), self.read(positions)
        if not torch.equal(codes, again):
            raise InputError(
                f"{self.name}: gave two different codes for the same {self.of}s; seed it, or turn off its noise (a "
                "module's by .eval())"
            )
        return codes

    @torch.no_grad()
    def read(self, positions: Tensor) -> Tensor:
        """One call, checked, but not for being deterministic."""
        self._check_positions(positions)
        try:
            result = self.function(positions.clone())
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"{self.name}: failed for {len(positions)} {self.of}s: {message}") from error
        try:
            codes = torch.as_tensor(result)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"{self.name}: gave a {type(result).__name__}; return numbers, (n, dim)") from None
        shape = tuple(codes.shape)
        if len(shape) != 2 or shape[0] != len(positions) or not shape[1] or codes.is_complex():
            hint = "; return codes[0], without a batch" if shape[:2] == (1, len(positions)) else ""
            kind = "complex " if codes.is_complex() else ""
            raise InputError(
                f"{self.name}: gave {kind}{shape} for {len(positions)} positions; must give real (n, dim), a row each{hint}"
            )
        dim = self.dim or next(iter(self._dims), shape[1])
        if shape[1] != dim:
            raise InputError(f"{self.name}: gave codes of width {shape[1]}, expected {dim}: all need one width")
        self._dims[:] = [dim]
        codes = codes.detach().to("cpu", torch.float64)
        valid = (codes.abs() <= LARGEST).all(-1)  # false for NaN
        if not bool(valid.all()):
            row = int((~valid).int().argmax())
            wrong = f"larger than {LARGEST:g}" if bool(codes[row].isfinite().all()) else "not finite"
            raise InputError(
                f"{self.name}: the code of {self.of} {positions[row].tolist()} is {wrong}; analyse fewer, or fix it"
            )
        return codes

    def _check_positions(self, positions: Tensor) -> None:
        if positions.dim() not in (1, 2) or not len(positions):
            raise InputError(f"positions of shape {tuple(positions.shape)}: pass (n,), or (n, axes) on a grid")
        if self.limit is not None and positions.dim() == 1:
            low, high = positions.min().item(), positions.max().item()
            if low < 0 or high >= self.limit:
                raise InputError(
                    f"positions from {low:g} to {high:g}: {self.name} has codes for 0 .. {self.limit - 1} only "
                    f"(length={self.limit} at most)"
                )


def table_codes(name: str, table: Tensor, module: nn.Module | None = None) -> Codes:
    """The rows of a table (n, dim), one per position."""

    def rows(positions: Tensor) -> Tensor:
        if positions.is_floating_point() and bool((positions != positions.floor()).any()):
            raise InputError(f"{name}: a table has rows for integer positions only; round them")
        return table.detach()[positions.long().to(table.device)]

    return Codes(name, rows, limit=len(table), module=module)


def at_least(name: str, size: int, least: int = 1) -> int:
    """The argument of that name; raises InputError where it is below the least."""
    check_integers(least, **{name: size})
    return size


def in_chunks(codes: Codes, count: int) -> Callable[[Tensor], Tensor]:
    """The codes of any of the positions 0 .. count-1 of one text, a row each: read as asked for, or all at once where they
    depend on each other."""
    if not codes.needs_length:
        return codes
    every = codes(torch.arange(count))
    return lambda positions: every[positions.long()]


def defined_until(codes: Codes, start: int, end: int) -> tuple[int, str]:
    """The first of the positions start .. end-1 without a code (end: all have one), and why, "" where all have one."""
    last = end if codes.limit is None else min(end, codes.limit)
    refusal = "" if last == end else codes.ends or f"it is made for {last}"
    step = last - start if codes.needs_length else CHUNK
    while start < last:
        high = min(start + step, last)
        try:
            codes(torch.arange(high) if codes.needs_length else torch.arange(start, high))
            start = high
        except InputError as error:  # the first without a code is below high: look half as far ahead
            cause = error.__cause__ or error
            refusal = next(iter(str(cause).splitlines()), type(cause).__name__).rstrip(".")
            last, step = high - 1, max(1, (high - start) // 2)
    return start, refusal


def positions_of(codes: Codes, length: int, least: int = 2, argument: str = "length") -> Tensor:
    """0 .. length-1, where the codes are defined.

    Raises:
        InputError: fewer than the least, or past the limit.
    """
    if codes.limit is not None and codes.limit < least:
        raise InputError(f"{codes.name}: has codes for {codes.limit} {codes.of}s only; at least {least} are needed")
    at_least(argument, length, least)
    if codes.limit is not None and length > codes.limit:
        raise InputError(
            f"{argument}={length}: {codes.name} has codes for {codes.limit} {codes.of}s; pass at most that"
        )
    return torch.arange(length)


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Seed torch's generators inside, and restore them afterwards."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
