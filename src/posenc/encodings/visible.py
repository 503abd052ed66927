# SPDX-License-Identifier: Apache-2.0
"""Which keys a layer and a head see: sliding windows, chunks. For use with any encoding, as in `Rotary(64) + Window(1023)`."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from posenc.bias import Relative
from posenc.encoding import Encoding, Size
from posenc.encodings.shared import check_heads
from posenc.errors import InputError, check_integers, not_none
from posenc.positions import Positions
from posenc.positions.segments import segments

Widths = int | Sequence[int | None] | None
"""Tokens that are visible on one side, for all heads or for each; None: no limit."""


@dataclass(eq=False, repr=False)
class Window(Encoding):
    """Each query sees at most `before` tokens before it and `after` tokens after it, and itself.

    before, after: tokens, counted by their order as in `Positions.with_window`; a list has a number for each query head.
    None: no limit on that side. after="before": as many as before, which matters only where the future is visible.
    Every backend skips the keys beyond the widest head's window, the CPU's also those beyond each head's. What counts visible
    keys, such as `LogN`, counts those of the widest head. transformers' sliding_window=w is before=w - 1. The window is for
    all layers, or for some, as in "rope+window:before=63/rope".
    Source: Beltagy, Peters and Cohan 2020, section 3.1; per layer: Child et al. 2019.
    """

    name = "window"
    title = "sliding window"
    papers: ClassVar[tuple[str, ...]] = ("beltagy2020longformer", "child2019generating")
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \begin{cases} q_i \cdot k_j / \sqrt{d} & \quad -a_h \le i - j \le b_h \\ -\infty & \quad \text{otherwise} \end{cases}",
    )
    extrapolates = "partly: no distance is farther than the window"
    use_when = (
        "Add it to layers that need near tokens alone, as in Gemma 3 (`local_rope`): their cost grows with the "
        "window, not with the text."
    )
    shift_invariant = True
    constant = True

    before: Widths = 127
    _: KW_ONLY
    after: Widths | Literal["before"] = "before"
    limits: Tensor = field(init=False)

    def setup(self) -> None:
        self.sides: tuple[Widths, Widths] = self.before, self.before if self.after == "before" else self.after
        for name, given in zip(("before", "after"), self.sides, strict=True):
            for width in given if isinstance(given, Sequence) else [given]:
                check_integers(0, **not_none(**{name: width}))
        lengths = {len(side) for side in self.sides if isinstance(side, Sequence)}
        if len(lengths) > 1 or 0 in lengths:
            raise InputError("give one number per head in both, or one", before=self.before, after=self.after)
        self.num_heads: int | None = lengths.pop() if lengths else None

    def tables(self) -> dict[str, Tensor]:
        if self.num_heads is None:
            return {}
        sides = (side if isinstance(side, Sequence) else [side] * self.num_heads for side in self.sides)
        limits = [[2**30 if width is None else width for width in side] for side in sides]
        return {"limits": torch.tensor(limits, device="cpu")}

    def _of_heads(self, first: int, end: int) -> dict[str, Any]:
        given = {"before": self.before, "after": self.after}
        return {name: side[first:end] if isinstance(side, (list, tuple)) else side for name, side in given.items()}

    def restrict(self, positions: Positions, layer: int = 0) -> Positions:
        (before, after), sides = positions.window or (None, None), self.sides
        return positions.with_window(_narrower(before, _widest(sides[0])), _narrower(after, _widest(sides[1])))

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Relative | None:
        if self.num_heads is None:
            return None
        check_heads(self, q, self.num_heads)
        return Relative(self._of_distance, self.num_heads, _at_order(positions))

    def _of_distance(self, head: Tensor, distance: Tensor) -> Tensor:
        before, after = (side[head] for side in self.limits.to(distance.device))
        beyond = (distance > before) | (-distance > after)
        return torch.zeros((), device=distance.device).masked_fill(beyond, -torch.inf)


@dataclass(eq=False, repr=False)
class Chunks(Encoding):
    """Each query sees the keys of its chunk alone: text is cut every `size` tokens, counted from the start of its row or
    document as in `Positions.with_blocks`, and other chunks are skipped.

    Llama 4 has chunks of 8192 in three of four layers (the pattern `irope`); transformers names the size attention_chunk_size.
    Source: Meta 2025, "The Llama 4 herd"; blocks: Child et al. 2019.
    """

    name = "chunks"
    title = "chunked attention"
    papers: ClassVar[tuple[str, ...]] = ("meta2025llama4", "child2019generating")
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \begin{cases} q_i \cdot k_j / \sqrt{d} & \quad \lfloor i / c \rfloor = \lfloor j / c \rfloor \\ -\infty & \quad \text{otherwise} \end{cases}",
    )
    extrapolates = "partly: no distance is as far as a chunk is long"
    use_when = "Add it to some layers, as Llama 4 does; `window` has no borders that hide near tokens."
    shift_invariant = True

    size: Size = 128

    def restrict(self, positions: Positions, layer: int = 0) -> Positions:
        return positions.shared(("chunks", self.size), lambda: positions.with_blocks(self.size))


def _widest(side: Widths) -> int | None:
    widths = side if isinstance(side, Sequence) else [side]
    return None if None in widths else max(0, *widths)  # type: ignore[type-var]


def _narrower(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _at_order(positions: Positions) -> Positions:
    """Positions whose distances are those of the tokens' order: these, where they are known to be."""
    if positions.start is not None and positions.diagonal == positions.start[0] - positions.start[1]:
        return positions
    if (positions.causal or positions.window is not None) and positions.q.device.type == "cpu":
        visible = segments(positions)
        if visible is not None and visible.regular:
            return positions
    return positions.shared("at order", lambda: positions.moved(lambda ids, order: order))
