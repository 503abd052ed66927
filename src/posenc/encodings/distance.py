"""Biases of the distance alone: a number per head and distance, added to the scores."""

from functools import partial

import torch
from torch import Tensor, nn

from posenc.bias import Relative
from posenc.encoding import Encoding
from posenc.encodings.absolute import check_std
from posenc.errors import InputError
from posenc.functional import alibi_slopes, t5_bucket
from posenc.positions import Positions


class _DistanceBias(Encoding):
    shift_invariant = True
    num_heads: int

    def of_distance(self, head: Tensor, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """The bias of broadcastable heads and distances (query position minus key position), in dtype."""
        raise NotImplementedError  # abstract: every subclass defines it

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Relative:
        if q.shape[1] != self.num_heads:
            raise InputError(f"q with {q.shape[1]} heads: this {type(self).__name__} has num_heads={self.num_heads}")
        positions.require_one_axis(type(self).__name__)
        dtype = torch.promote_types(q.dtype, torch.float32)
        return Relative(partial(self.of_distance, dtype=dtype), self.num_heads, positions)


class T5(_DistanceBias):
    """T5's learned bias per head and bucket of distances; scores are not divided by the square root of head_dim.

    num_heads: heads of the model. bidirectional: separate buckets for keys after the query; a causal decoder has
    none. num_buckets, max_distance: how distances are bucketed, see `functional.t5_bucket`. init_std: of the table
    (T5's own is dim^-1/2). scaled: divide scores by the square root of head_dim after all (MPNet does).
    One table serves every layer. Source: Raffel et al. 2020, section 2.1.
    """

    name = "t5"
    papers = ("raffel2020exploring",)
    extrapolates = "yes: one bias for all far distances"

    def __init__(
        self,
        num_heads: int,
        bidirectional: bool = True,
        num_buckets: int = 32,
        max_distance: int = 128,
        init_std: float = 0.02,
        scaled: bool = False,
    ) -> None:
        super().__init__()
        if num_heads < 1:
            raise InputError(f"num_heads={num_heads}: must be at least 1")
        check_std(init_std)
        t5_bucket(torch.zeros(1, dtype=torch.long), bidirectional, num_buckets, max_distance)  # refuses bad sizes
        self.num_heads, self.bidirectional, self.num_buckets = num_heads, bidirectional, num_buckets
        self.max_distance, self.init_std, self.scaled = max_distance, init_std, scaled
        self.table = nn.Parameter(torch.empty(num_heads, num_buckets))
        nn.init.normal_(self.table, std=init_std)

    def of_distance(self, head: Tensor, distance: Tensor, dtype: torch.dtype) -> Tensor:
        bucket = t5_bucket(-distance, self.bidirectional, self.num_buckets, self.max_distance)
        return self.table.to(dtype)[head, bucket]

    def scale(self, head_dim: int) -> float:
        return super().scale(head_dim) if self.scaled else 1.0


class ALiBi(_DistanceBias):
    """Attention with linear biases: -slope_h * |distance|, nothing learned.

    num_heads: any number of heads; the slopes are `functional.alibi_slopes`.
    Source: Press, Smith and Lewis 2022, section 3.
    """

    name = "alibi"
    papers = ("press2022train",)
    extrapolates = "yes: trained short, tested long"

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.register_tables()

    slopes: Tensor

    def tables(self) -> dict[str, Tensor]:
        return {"slopes": alibi_slopes(self.num_heads)}

    def of_distance(self, head: Tensor, distance: Tensor, dtype: torch.dtype) -> Tensor:
        return -self.slopes.to(head.device, dtype)[head] * distance.abs()
