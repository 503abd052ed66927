# SPDX-License-Identifier: Apache-2.0
"""Has every position a code of its own? The closest two, and the first that equals an earlier one."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.analysis.codes import codes_of
from posenc.analysis.finding import Finding
from posenc.analysis.reading import CHUNK, Codes, defined, in_chunks, positions_of, whole
from posenc.checks import checked
from posenc.errors import InputError

SEARCH = 100_000
CLAIM = (1, 10001)
"""Two positions that a popular text says share a sinusoidal code at base 10000."""


@dataclass(frozen=True, eq=False)
class Uniqueness(Finding):
    """Whether every position (or distance) has a code of its own.

    holds: no two of the first `length` codes are equal. smallest: the distance (Euclidean) between the closest two of
    them, and pair: which. norm: of a code, root mean square. collision: the first position of 0 .. searched-1 whose code
    is within `tolerance` (a distance) of an earlier one, and that one; None: there is none. dtype: in which positions and
    codes were held, None float64. longest_wave: positions that the slowest pair of channels needs to turn once, inf where it
    never does, None where the frequencies are not known. claimed: the distance between the codes of positions 1 and
    10001, None where undefined.
    """

    name: str
    of: str
    length: int
    dim: int
    holds: bool
    smallest: float
    pair: tuple[int, int]
    norm: float
    collision: tuple[int, int] | None
    searched: int
    tolerance: float
    dtype: str | None
    longest_wave: float | None
    claimed: float | None

    def sentences(self) -> list[str]:
        held = f" in {self.dtype}" if self.dtype else ""
        if self.holds:
            said = [
                f"Every {self.of} below {self.length} has a code of its own{held}: the closest two, {self.pair[0]} and "
                f"{self.pair[1]}, are {self.smallest:.4g} apart (a code is {self.norm:.4g} long)."
            ]
        else:
            said = [f"Not every {self.of} below {self.length} has a code of its own{held}."]
        if self.collision is None:
            said.append(f"None of the first {self.searched} codes equals an earlier one (within {self.tolerance:.2g}).")
        else:
            later, earlier = self.collision
            said.append(
                f"The first code that occurs again is that of {self.of} {later}: it equals that of {earlier} (within "
                f"{self.tolerance:.2g})."
            )
        if self.longest_wave is not None and math.isfinite(self.longest_wave) and self.claimed is not None:
            said.append(
                f"The slowest channels turn once in {self.longest_wave:.0f} {self.of}s, but two codes are equal only "
                f"where all channels agree: those of {CLAIM[0]} and {CLAIM[1]} are {self.claimed:.4g} apart."
            )
        return said


@checked
def unique(
    subject: Any,
    length: int = 512,
    *,
    search: int | None = None,
    tolerance: float = 1e-6,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Uniqueness:
    """Look for positions that share a code.

    Args:
        subject: anything `codes_of` takes, with its options. length: how many codes are compared all with all. search:
            how far to look for the first collision, in memory that grows with it linearly; None: 100 000, or as far
            as there are codes. tolerance: two codes count as equal up to this share of a code's norm. dtype: hold
            positions and codes in it, as a model in bfloat16 may (rows of a table stay whole numbers); None: float64.

    Raises:
        InputError: codes that cannot be read or do not fit the dtype, length below 2, search below length, or a
            tolerance outside 0 .. 1.
    """
    codes = codes_of(subject, **options)
    positions = positions_of(codes, length)
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance={tolerance}: a share of the norm, from 0 to 1")
    if dtype is not None and not dtype.is_floating_point:
        raise InputError(f"dtype={dtype}: pass a floating one, such as torch.bfloat16")
    if dtype is not None and length > torch.finfo(dtype).max:
        raise InputError(f"length={length}: more than {dtype} can count; pass {torch.finfo(dtype).max:.0f} or fewer")
    furthest = [SEARCH if codes.reach is None else codes.reach, *([] if codes.limit is None else [codes.limit])]
    searched = max(length, min(furthest)) if search is None else whole("search", search, length)
    searched = searched if codes.limit is None else min(searched, codes.limit)
    if dtype is not None:
        searched = int(min(searched, torch.finfo(dtype).max))
    first = _held(codes, length, dtype)(positions)
    norm = float(first.square().sum(-1).mean().sqrt())
    smallest, pair = _closest(first)
    try:
        read = _held(codes, searched, dtype)
        collision = _first_collision(read, searched, tolerance * norm)
    except InputError:
        if search is not None:
            raise
        searched, _ = defined(codes, length, searched)
        read = _held(codes, searched, dtype)
        collision = _first_collision(read, searched, tolerance * norm)
    return Uniqueness(
        name=codes.name,
        of=codes.of,
        length=length,
        dim=first.shape[1],
        holds=collision is None or collision[0] >= length,
        smallest=smallest,
        pair=pair,
        norm=norm,
        collision=collision,
        searched=searched,
        tolerance=tolerance * norm,
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        longest_wave=None if codes.waves is None else float((2 * math.pi / codes.waves.frequencies.abs()).max()),
        claimed=None if searched <= max(CLAIM) else float(read(torch.tensor(CLAIM)).diff(dim=0).norm()),
    )


def _held(codes: Codes, count: int, dtype: torch.dtype | None) -> Callable[[Tensor], Tensor]:
    read = in_chunks(codes, count)
    if dtype is None:
        return read
    rounds = codes.limit is None and not codes.needs_length

    def held(positions: Tensor) -> Tensor:
        found = read(positions.to(dtype).long() if rounds else positions).to(dtype).double()
        if not bool(found.isfinite().all()):
            raise InputError(f"{codes.name}: its codes are larger than {dtype} can hold; pass a wider one")
        return found

    return held


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
    """The first position within tolerance of an earlier one, and the first such. Codes that are close have close
    shadows: sorted by one coordinate of these, only neighbours need comparing. Prefixes of growing size come first, so
    that codes that repeat early are found before there are many alike."""
    size = min(1024, count)
    while True:
        shadows = _shadows(read, size)
        # neighbours bound where the first collision is; before it all differ, so few shadows are alike
        near = _later(read, shadows, tolerance, steps=1)
        if near is not None:
            return _later(read, shadows[: near[0] + 1], tolerance) or near
        found = _later(read, shadows, tolerance)
        if found is not None or size == count:
            return found
        size = min(4 * size, count)


def _shadows(read: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """Every code's projections on a few random directions of length 1, (count, 8)."""
    parts, directions = [], None
    for start in range(0, count, CHUNK):
        codes = read(torch.arange(start, min(start + CHUNK, count)))
        if directions is None:
            directions = torch.randn(codes.shape[1], 8, generator=torch.Generator().manual_seed(0), dtype=codes.dtype)
            directions /= directions.norm(dim=0)
        parts.append(codes @ directions)
    return torch.cat(parts)


def _later(
    read: Callable[[Tensor], Tensor], shadows: Tensor, tolerance: float, steps: int | None = None
) -> tuple[int, int] | None:
    """The first position that is within tolerance of an earlier one; steps: compare with so many neighbours at most, in
    order of the first coordinate of their shadows."""
    order = shadows[:, 0].argsort(stable=True)
    in_line = shadows[order]
    slack = tolerance + 1e-12 * (1 + float(shadows.abs().max()))
    found: tuple[int, int] | None = None
    for step in range(1, len(order) if steps is None else steps + 1):
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
                found = pair if found is None else min(found, pair)
    return found
