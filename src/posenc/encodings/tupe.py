# SPDX-License-Identifier: Apache-2.0
"""TUPE: positions have separate projections and are compared separately from the words."""

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from posenc.bias import Factored, Relative, Score
from posenc.encoding import Size
from posenc.encodings.absolute import rows_of
from posenc.encodings.distance import bucket_of, check_buckets, warn_of_half
from posenc.encodings.shared import Beyond, ContentBias, HeadProjection, normal_parameter
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class TUPE(ContentBias):
    """TUPE-A: absolute positions, compared through separate projections, with [CLS] untied from them.

    The score is [q_i . k_j + (p_i U_Q) . (p_j U_K)] / sqrt(2 head_dim), where p is a learned table after LayerNorm;
    table and projections (with biases) serve every layer, and nothing is added to the input.

    max_positions: tokens the table is for. dim, num_heads, head_dim: of the model. untie_cls: the positional score of
    the token at position 0, [CLS], is one learned constant per head towards all others, and another one from all
    others. As in the authors' code both come from the table: its row 0 belongs to no token and gives the first, row 1
    the second, and the token at position t has row t + 1. beyond: what a position past the table gets, "error"
    refuses it, "clamp" gives it the last row. init_std: of the table and the projections.

    Raises InputError for a negative or fractional position, or one outside the table.
    Source: Ke, He and Liu 2021, sections 3.1 and 3.2.
    """

    name = "tupe"
    title = "untied positions (TUPE-A)"
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{2d}} + \begin{cases} a_h & \quad i = \text{[CLS]} \\ a_h' & \quad j = \text{[CLS]} \\ "
        r"U_h^Q p_i \cdot U_h^K p_j / \sqrt{2d} & \quad \text{otherwise} \end{cases}",
    )
    papers: ClassVar[tuple[str, ...]] = ("ke2021rethinking",)
    extrapolates = "no: undefined past the table"
    use_when = (
        "Take it in an encoder with a [CLS] token and inputs of a fixed greatest length; `tupe_r` adds a bias of the "
        "distance."
    )

    max_positions: Size = field()  # required, though Encoding has a default
    _: KW_ONLY
    dim: Size
    num_heads: Size
    head_dim: Size
    untie_cls: bool = True
    beyond: Beyond = "error"
    init_std: float = 0.02
    constant = True

    def setup(self) -> None:
        self.query: HeadProjection = HeadProjection(self.dim, self.num_heads, self.head_dim, 1, self.init_std)
        self.key: HeadProjection = HeadProjection(self.dim, self.num_heads, self.head_dim, 1, self.init_std)
        rows = self.max_positions + self.untie_cls
        self.table: nn.Parameter = normal_parameter(rows, self.dim, init_std=self.init_std)
        self.norm: nn.LayerNorm = nn.LayerNorm(self.dim)

    def scale(self, head_dim: int) -> float:
        return float((2 * head_dim) ** -0.5)

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Score:
        self.check_heads(q)
        dtype, scale = torch.promote_types(q.dtype, torch.float32), self.scale(self.head_dim)
        of_q = self.codes(positions).to(dtype)
        of_k = of_q if positions.q is positions.k else self.codes(positions, keys=True).to(dtype)
        left, right = self.query(of_q) * scale, self.key(of_k)
        if not self.untie_cls:
            return Factored(left, right)
        from_cls, to_cls = self.of_cls(positions, dtype)
        # two more columns: (1, 0) . (from_cls, .) in the row of [CLS], (0, to_cls) . (., 1) in its column elsewhere
        q_cls, k_cls = (at[:, None, :, None] == 0 for at in (positions.q, positions.k))
        left = torch.cat((left.masked_fill(q_cls, 0), *_columns(left, q_cls.to(dtype), to_cls * ~q_cls)), -1)
        right = torch.cat((right.masked_fill(k_cls, 0), *_columns(right, from_cls, k_cls.to(dtype))), -1)
        return Factored(left, right)

    def of_cls(self, positions: Positions, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The scores from [CLS], for every key or all, and to it, for every query or all: (1, num_heads, n or 1, 1)."""
        ends = self.norm(self.table[:2]).to(dtype)
        scores = ((self.query(ends) * self.scale(self.head_dim)) * self.key(ends)).sum(-1)
        from_cls, to_cls = scores[None, ..., None, None].unbind(2)
        return from_cls, to_cls

    def position_codes(self, positions: Positions, layer: int = 0) -> Tensor:
        return self.codes(positions)

    def codes(self, positions: Positions, keys: bool = False) -> Tensor:
        """Of the queries or the keys: (batch or 1, n, dim), after LayerNorm."""
        assert self.max_positions is not None
        rows = rows_of(self, positions, (self.max_positions,), self.beyond, keys=keys)
        return self.norm(embedding(rows + int(self.untie_cls), self.table))


def _columns(like: Tensor, *columns: Tensor) -> list[Tensor]:
    """Columns broadcast to (batch or 1, num_heads, n, 1)."""
    return [column.expand(*like.shape[:3], 1) for column in columns]


@dataclass(eq=False, repr=False)
class TUPER(TUPE):
    """TUPE-R: TUPE-A and T5's bias of the bucketed distance, both with [CLS] untied.

    num_buckets, max_distance, bidirectional: the buckets, as in `T5`. With untie_cls the bias of the
    row of [CLS] is bucket num_buckets / 2, which bidirectional buckets leave unused (causal ones share it), and that
    of its column an extra one, as in the authors' code. The rest: see `TUPE`. Source: Ke, He and Liu 2021, sections
    3.1 to 3.3.
    """

    name = "tupe_r"
    title = "untied positions with T5's bias (TUPE-R)"
    papers: ClassVar[tuple[str, ...]] = ("ke2021rethinking", "raffel2020exploring")
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{2d}} + \begin{cases} a_h & \quad i = \text{[CLS]} \\ a_h' & \quad j = \text{[CLS]} \\ "
        r"U_h^Q p_i \cdot U_h^K p_j / \sqrt{2d} + B_{h,\beta(j-i)} & \quad \text{otherwise} \end{cases}",
    )
    use_when = (
        "Take it in an encoder with a [CLS] token and inputs of a fixed greatest length; `t5` has the bias of the "
        "distance alone."
    )

    _: KW_ONLY
    bidirectional: bool | None = None
    num_buckets: int = 32
    max_distance: int = 128
    constant = True

    def setup(self) -> None:
        super().setup()
        check_buckets(self)
        buckets = self.num_buckets + self.untie_cls
        self.distances: nn.Parameter = normal_parameter(self.num_heads, buckets, init_std=self.init_std)

    def bias(  # type: ignore[override]
        self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0
    ) -> list[Score]:
        warn_of_half(self, self.distances, positions)
        absolute = super().bias(q, k, positions, layer)
        table = self.distances.to(torch.promote_types(q.dtype, torch.float32))

        def of_distance(head: Tensor, distance: Tensor) -> Tensor:
            return table[head, bucket_of(self, distance, positions.causal)]

        return [absolute, Relative(of_distance, self.num_heads, positions)]

    def of_cls(self, positions: Positions, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        from_cls, to_cls = super().of_cls(positions, dtype)
        table = self.distances.to(dtype)

        def instead(bucket: int, distance: Tensor) -> Tensor:
            """One bias in place of the distance's, (batch or 1, num_heads, n, 1)."""
            of_distance = bucket_of(self, distance, positions.causal)
            return (table[:, bucket, None, None] - table[:, of_distance]).transpose(0, 1)[..., None]

        return from_cls + instead(self.num_buckets // 2, -positions.k), to_cls + instead(self.num_buckets, positions.q)
