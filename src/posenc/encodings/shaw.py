# SPDX-License-Identifier: Apache-2.0
"""Shaw's relative positions: vectors per clipped distance, added to the keys and to the values."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from posenc.bias import QueryRelative, Values
from posenc.encoding import Size
from posenc.encodings.shared import ContentBias, check_terms, normal_parameter
from posenc.errors import LARGEST_SIZE, InputError, check_integers
from posenc.functional import check_even, sinusoidal
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class Shaw(ContentBias):
    """A vector per clipped distance, learned, added to the keys, and another one added to the values.

    Scores are q_i . (k_j + a_ij) / sqrt(head_dim) and outputs sum_j p_ij (v_j + b_ij), where a_ij and b_ij are row
    clip(j - i, -clip, clip_future) + clip of a table.

    head_dim, num_heads: of the model. num_layers: layers with separate tables. clip: the distance from which
    earlier keys look alike (16 and 8 in the paper). clip_future: the same for later keys; None: as clip
    (Wav2Vec2-BERT has 64 and 8). terms: where the vectors go, "keys|values" or one of the two. per_head: a table per
    head instead of one for all (tensor2tensor). fixed: nothing learned, the rows are interleaved sinusoidal codes,
    the same for keys, values, heads and layers (NEZHA, with clip=64). init_std: of the learned tables.

    Raises InputError for fractional positions, a negative clip, unknown terms, or fixed tables per head.
    Source: Shaw et al. 2018, section 3; NEZHA: Wei et al. 2019, section 2.2.
    """

    name = "shaw"
    title = "Shaw's relative position vectors"
    papers: ClassVar[tuple[str, ...]] = ("shaw2018self", "wei2019nezha")
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot (k_j + a_r)}{\sqrt{d}}, \quad o_i = \sum_j \alpha_{ij} (v_j + b_r)",
        r"r = \operatorname{clip}(j - i, -K, K)",
    )
    shift_invariant = True
    bias_reads_keys = False
    extrapolates = "yes: clipped distances exist at any length"
    use_when = (
        "Take it where queries meet vectors of short distances, as in Wav2Vec2-BERT; `t5` adds a number in place of "
        "the vector."
    )
    equal_to = "transformers' Wav2Vec2-BERT, SeamlessM4T v2 (keys)"

    head_dim: Size
    _: KW_ONLY
    num_heads: Size
    num_layers: Size = 1
    clip: int = 16
    clip_future: int | None = None
    terms: str = "keys|values"
    per_head: bool = False
    fixed: bool = False
    init_std: float = 0.02

    def setup(self) -> None:
        self.ahead: int = self.clip if self.clip_future is None else self.clip_future
        check_integers(0, LARGEST_SIZE, clip=self.clip, clip_future=self.ahead)
        if self.fixed:
            check_even("head_dim", self.head_dim)
        if self.fixed and self.per_head:
            raise InputError("the sinusoidal table is one for all heads", "drop per_head", fixed=True, per_head=True)
        self.acting: frozenset[str] = check_terms(self.terms, ("keys", "values"))
        self.key_table: nn.Parameter | None = self._learned("keys")
        self.value_table: nn.Parameter | None = self._learned("values")

    def _learned(self, term: str) -> nn.Parameter | None:
        if self.fixed or term not in self.acting:
            return None
        heads, rows = self.num_heads if self.per_head else 1, self.clip + self.ahead + 1
        return normal_parameter(self.num_layers, heads, rows, self.head_dim, init_std=self.init_std)

    def tables(self) -> dict[str, Tensor]:
        if not self.fixed:
            return {}
        rows = torch.arange(self.clip + self.ahead + 1, device="cpu")
        return {"codes": sinusoidal(rows, self.head_dim, dtype=torch.float64)[None]}

    def vectors(self, table: Tensor | None, layer: int) -> Tensor:
        """A layer's (num_heads or 1, rows, head_dim) of a learned table, or the fixed one."""
        return self.get_buffer("codes") if table is None else table[self.own_layer(layer)]

    def row(self, distance: Tensor) -> Tensor:
        """The row of a distance, query position minus key position."""
        return (-distance).clamp(-self.clip, self.ahead) + self.clip

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> QueryRelative | None:
        self.check_heads(q)
        self.check_integers(positions)
        if "keys" not in self.acting:
            return None
        dtype = torch.promote_types(q.dtype, torch.float32)
        table = self.vectors(self.key_table, layer).to(q.device, dtype) * self.scale(self.head_dim)
        return QueryRelative(q.to(dtype), table, self.row, positions)

    def values(self, positions: Positions, layer: int = 0) -> Values | None:
        if "values" not in self.acting:
            return None
        return Values(self.vectors(self.value_table, layer).to(positions.q.device), self.row)
