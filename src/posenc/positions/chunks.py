# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a sequence one of several processes has, by number."""

from posenc.errors import InputError, check_integers, check_word

LAYOUTS = ("contiguous", "zigzag")


def chunks_of(rank: int, world_size: int, layout: str) -> tuple[int, ...]:
    """The equal chunks of a sequence that a process has, by number: of world_size, or of twice as many."""
    return (rank,) if layout == "contiguous" else (rank, 2 * world_size - 1 - rank)


def runs_of(length: int, rank: int, world_size: int, layout: str) -> tuple[tuple[int, int], ...]:
    """First token and end of each run of consecutive tokens that a process has, of a sequence of that length.

    Raises:
        InputError: a rank out of range, an unknown layout, or a length that cannot be cut into so many equal parts.
    """
    check_word("layout", layout, LAYOUTS)
    check_integers(1, world_size=world_size)
    check_integers(0, world_size - 1, rank=rank)
    parts = len(chunks_of(0, world_size, layout)) * world_size
    if length % parts:
        raise InputError(
            f"a sequence of {length} tokens cannot be cut into {parts} equal parts ({layout}, world_size={world_size}): "
            f"pad it to {-(-length // parts) * parts}, with Positions.from_mask or with document id -1 in Positions.packed"
        )
    size = length // parts
    runs: list[tuple[int, int]] = []
    for chunk in chunks_of(rank, world_size, layout):
        adjacent = bool(runs) and runs[-1][1] == chunk * size
        first = runs.pop()[0] if adjacent else chunk * size
        runs.append((first, (chunk + 1) * size))
    return tuple(runs)
