"""What a backend is given, and what it has to offer."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from posenc.bias import Score, Values
from posenc.positions import Positions


@dataclass(frozen=True, eq=False)
class Problem:
    """One attention call after the encoding has acted: what is left is softmax(scale * q k^T + bias) (v + w)."""

    q: Tensor
    """(batch, num_heads, num_queries, width), rotated"""
    k: Tensor
    """(batch, num_kv_heads, num_keys, width), rotated"""
    v: Tensor
    """(batch, num_kv_heads, num_keys, value width)"""
    bias: list[Score]
    values: Values | None
    positions: Positions
    scale: float
    sink: Tensor | None
    """(num_heads,) logits, float32 or better"""
    dropout_p: float

    @property
    def is_plain(self) -> bool:
        """No bias, no sink, and a visibility that needs no mask: all, or causal among as many queries as keys."""
        if self.bias or self.sink is not None:
            return False
        start, square = self.positions.start, self.q.shape[2] == self.k.shape[2]
        return self.positions.all_visible or (start is not None and start[0] == start[1] and square)


class Backend(Protocol):
    """One way to compute a `Problem`."""

    def refusal(self, problem: Problem) -> str | None:
        """Why this backend cannot serve the problem; None when it can."""
        ...

    def plan(self, problem: Problem) -> tuple[str, int, str]:
        """(why and how, extra bytes, what would be faster or "")."""
        ...

    def attend(self, problem: Problem) -> Tensor:
        """(batch, num_heads, num_queries, value width)."""
        ...
