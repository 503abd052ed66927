# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL and XLNet: sinusoidal codes of the distance, projected to keys, against queries and learned biases."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from posenc.bias import Factored, QueryRelative
from posenc.encoding import Size, require_fit
from posenc.encodings.shared import ContentBias, HeadProjection, check_head_dim, normal_parameter
from posenc.errors import check_integers, not_none
from posenc.functional import SinusoidalLayout, cos_sin, frequency_curve, rotary, sinusoidal_from
from posenc.positions import Positions
from posenc.positions.segments import distances_of, segments

MOST_CODES = 2**26
"""Numbers in the codes of distances on either side, which then take 1 GiB in float64."""


@dataclass(eq=False, repr=False)
class TransformerXL(ContentBias):
    """Four terms, content and distance of the key against the query and against learned biases u and v.

    The score is [(q_i + u) . k_j + (q_i + v) . W_R R_(i-j)] / sqrt(head_dim), where R_t is the sinusoidal code of the
    distance t, dim wide. A memory of M cached tokens is `Positions.arange(n, offset=M)`. Distances may be fractional
    and of either sign.

    dim, num_heads, head_dim: of the model. num_layers: layers with separate W_R. clamp_len: distances beyond it,
    on either side, count as it; None: no limit (the paper's training). untie: u and v per layer instead of one pair
    for all. base, layout: of the codes; Conformers (Wav2Vec2, Parakeet) have "interleaved". init_std: of u, v and W_R.

    Raises InputError for an odd dim, or fractional positions with clamp_len.
    Source: Dai et al. 2019, section 3.3 and appendix B.
    """

    name = "transformer_xl"
    title = "Transformer-XL's relative scores"
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{(q_i + u_h) \cdot k_j + (q_i + v_h) \cdot W_h \rho_{i-j}}{\sqrt{d}}",
        r"\rho_t = [\sin t \theta_c; \cos t \theta_c]",
    )
    papers: ClassVar[tuple[str, ...]] = ("dai2019transformer",)
    shift_invariant = True
    bias_reads_keys = False
    extrapolates = "yes: attends further back than in training"
    use_when = "Take it with a memory of earlier segments, as Transformer-XL does; `rope` needs no projection of codes."
    equal_to = "transformers' Wav2Vec2-Conformer, Parakeet"

    dim: Size
    _: KW_ONLY
    num_heads: Size
    head_dim: Size
    num_layers: Size = 1
    clamp_len: int | None = None
    untie: bool = False
    base: float = 10000.0
    layout: SinusoidalLayout = "concat"
    init_std: float = 0.02
    frequencies: Tensor = field(init=False)

    def setup(self) -> None:
        check_integers(1, MOST_CODES // self.dim, **not_none(clamp_len=self.clamp_len))
        shape = self.dim, self.num_heads, self.head_dim, self.num_layers, self.init_std
        self.projection: HeadProjection = HeadProjection(*shape, bias=False)
        pairs = self.num_layers if self.untie else 1
        self.u: nn.Parameter = normal_parameter(pairs, self.num_heads, self.head_dim, init_std=self.init_std)
        self.v: nn.Parameter = normal_parameter(pairs, self.num_heads, self.head_dim, init_std=self.init_std)

    def tables(self) -> dict[str, Tensor]:
        frequencies = frequency_curve(self.dim, base=self.base)
        if self.clamp_len is None:
            return {"frequencies": frequencies}
        distances = torch.arange(-self.clamp_len, self.clamp_len + 1, device="cpu")
        return {"codes": sinusoidal_from(distances, frequencies, self.layout)}

    def of_layer(self, bias: Tensor, layer: int) -> Tensor:
        """A layer's u or v, (num_heads, 1, head_dim)."""
        return bias[self.own_layer(layer) if self.untie else 0, :, None]

    planes = ()
    shifts_queries = True

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, q=q)
        self.check_heads(q)
        return q + self.of_layer(self.u, layer).to(q.dtype)

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, k=k)
        check_head_dim(self, k, self.head_dim)
        return k

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Factored | QueryRelative:
        self.check_heads(q)
        dtype = torch.promote_types(q.dtype, torch.float32)
        queries = (q.to(dtype) + self.of_layer(self.v, layer).to(dtype)) * self.scale(self.head_dim)
        number = self.own_layer(layer)
        if self.clamp_len is not None:
            self.check_integers(positions)
            codes = self.get_buffer("codes").to(q.device, dtype)
            return QueryRelative(queries, self.projection(codes, number), self.row, positions)
        positions.require_one_axis(type(self).__name__)
        visible = segments(positions)
        if positions.num_queries > 1 and positions.span is not None and visible is not None and visible.regular:
            return QueryRelative(queries, *self.keys_of_distance(positions, number, dtype), positions)
        # (q + v) . W_R R_t = w . R_t with w = W_R^T (q + v), and R_(i-j) is R_(-j) turned by i, one angle per pair
        w = queries @ self.projection.weight[number].to(dtype)
        sines, cosines = (w[..., 0::2], w[..., 1::2]) if self.layout == "interleaved" else w.chunk(2, -1)
        first = positions.start or (None, None)
        of_q = self.remember(positions, ("q", dtype), lambda: self.cos_sin(positions.q, first[0], dtype))
        of_k = self.remember(positions, ("k", dtype), lambda: self.cos_sin(positions.k, first[1], dtype))
        return Factored(rotary(torch.cat((cosines, -sines), -1), *of_q), torch.cat(of_k, -1))

    def keys_of_distance(
        self, positions: Positions, layer: int, dtype: torch.dtype
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """W_R R_t for every distance t there is, (num_heads, distances, dim), and the row of each distance."""
        distances = distances_of(positions)
        assert distances is not None
        assert positions.span is not None
        shortest, longest = positions.span

        def codes() -> Tensor:
            cos, sin = self.cos_sin(distances.flip(0)[None], shortest, dtype)
            pair = sin[0, 0], cos[0, 0]
            ascending = torch.stack(pair, -1).flatten(1) if self.layout == "interleaved" else torch.cat(pair, -1)
            return ascending.flip(0)

        keys = self.projection(self.remember(positions, ("distances", dtype), codes), layer)
        return keys, lambda distance: -distance + longest

    def row(self, distance: Tensor) -> Tensor:
        """The row of a distance among the clamped ones."""
        assert self.clamp_len is not None
        return distance.clamp(-self.clamp_len, self.clamp_len) + self.clamp_len

    def cos_sin(self, ids: Tensor, first: int | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin of the angles: (batch, n) positions, known to be first, first + 1, .. or None, -> two
        (batch, 1, n, dim/2) tables."""
        return cos_sin(ids, self.frequencies, dtype, first)


@dataclass(eq=False, repr=False)
class XLNet(TransformerXL):
    """Transformer-XL's scores in both directions, with u and v per layer.

    It is `TransformerXL` with another default of untie. XLNet's segment term stays with the model. Source: Yang et al. 2019, section 2.4, and its released models (untie_r).
    """

    name = "xlnet"
    title = "XLNet's relative scores"
    papers: ClassVar[tuple[str, ...]] = ("yang2019xlnet", "dai2019transformer")
    extrapolates = "no claim made"
    use_when = (
        "Take it for XLNet, or where both directions are visible; `transformer_xl` shares its vectors u and v among "
        "layers."
    )
    equal_to = "transformers' XLNet"

    _: KW_ONLY
    untie: bool = True
