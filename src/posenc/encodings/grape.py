# SPDX-License-Identifier: Apache-2.0
"""GRAPE's additive forms: penalties by a slope that each key sets, or added up along the tokens in between."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid, normalize, rms_norm, softplus

from posenc.bias import KeySlope
from posenc.encoding import Encoding, Size
from posenc.encodings.cope import Counted
from posenc.encodings.shared import ContentBias, check_heads, check_input, normal_parameter
from posenc.errors import Positive
from posenc.functional import alibi_slopes, check_even, inverse_softplus, rotary
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class GRAPEA(ContentBias):
    """Key-gated additive GRAPE: ALiBi whose slope is multiplied by a number that each key makes of its content.

    b = -|i - j| m_h softplus(omega_h) softplus(u_h . k_j / sqrt(head_dim)), m_h ALiBi's slopes, u_h divided by its norm.
    Keys are those of the projection, before any rotation; heads that share a key have separate u.

    num_heads, head_dim: of the model. num_layers: layers with separate omega and u (the authors: all of them); 1: shared.
    unit: divide u by its norm (the authors' default). omega: what softplus(omega_h) starts at. init_std: of u before it is
    divided; None: head_dim^-1/2.

    Keys after the query, which the authors' models hide, count by their distance. Source: Zhang et al. 2025, "key-gated";
    model-architectures/GRAPE, model/llama-mha-grape-a-keygated.py.
    """

    name = "grape_a"
    family = "content"
    title = "GRAPE, ALiBi gated by keys"
    papers: ClassVar[tuple[str, ...]] = ("zhang2025group",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} - |i - j|\, m_h\, \zeta(\omega_h)\, \zeta\left( \frac{u_h \cdot k_j}{\sqrt{d}} \right)",
        r"\zeta(x) = \ln(1 + e^x), \quad \lVert u_h \rVert = 1",
    )
    shift_invariant = True
    bias_reads_keys = True
    extrapolates = "yes: a penalty that grows with the distance"
    use_when = (
        "Take it in place of `alibi` where each key should set how fast it fades; `fox` counts the tokens in between."
    )
    equal_to = "the authors' code"

    num_heads: Size
    _: KW_ONLY
    head_dim: Size
    num_layers: Size = 1
    unit: bool = True
    omega: Positive = 1.0
    init_std: float | None = None

    def setup(self) -> None:
        std = self.head_dim**-0.5 if self.init_std is None else self.init_std
        self.direction: nn.Parameter = normal_parameter(self.num_layers, self.num_heads, self.head_dim, init_std=std)
        omega = torch.full((self.num_layers, self.num_heads), float(self.omega))
        self.strength: nn.Parameter = nn.Parameter(inverse_softplus(omega))

    def tables(self) -> dict[str, Tensor]:
        return {"slopes": alibi_slopes(self.num_heads)}

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> KeySlope:
        self.check_heads(q)
        positions.require_one_axis("GRAPEA")
        dtype, layer = torch.promote_types(q.dtype, torch.float32), self.own_layer(layer)
        u = self.direction[layer].to(dtype)
        u = (normalize(u, dim=-1, eps=1e-6) if self.unit else u).unflatten(0, (k.shape[1], -1))
        gates = softplus(torch.einsum("bknd,kgd->bkgn", k.to(dtype), u) * self.head_dim**-0.5).flatten(1, 2)
        strength = softplus(self.strength[layer].to(dtype)) * self.get_buffer("slopes").to(k.device, dtype)
        return KeySlope(gates * strength[:, None], positions)


@dataclass(eq=False, repr=False)
class GRAPEAP(Encoding):
    """Path-integral GRAPE: the score of a key is lowered by what the query makes of every token after it, itself included.

    b = m_h sum of log sigmoid(p_i . R(-t) p_t / (|p_t| sqrt(width))) over the tokens t = j + 1 .. i, m_h ALiBi's slopes, p = W_h x,
    and R(a) the rotation of each pair of channels by the angle a, in radians.

    num_heads: query heads. dim: width of a layer's input x. width: of p, even. num_layers: layers with separate W; 1: shared by
    all. init_std: of W; None: dim^-1/2 / 2, the authors'.

    The angle is that of t's position, as in the authors' code, so a shift changes scores. Hidden tokens do not count. Terms are
    made from all pairs, for a block of queries at a time. Raises InputError for positions that are not causal.
    Source: Zhang et al. 2025; model-architectures/GRAPE, model/llama-mha-grape-a-pi.py.
    """

    name = "grape_ap"
    family = "content"
    title = "GRAPE along the path"
    papers: ClassVar[tuple[str, ...]] = ("zhang2025group",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} + m_h \sum_{t=j+1}^{i} \log \sigma\left( \frac{p_i \cdot R(-t)\, p_t}{\sqrt{w}\, \lVert p_t \rVert} \right), "
        r"\quad p = W_h x",
    )
    extrapolates = "yes: a penalty that grows along the way"
    use_when = "Take it in a causal model whose query should weigh the tokens in between; `fox` costs less, and needs no pairs."
    equal_to = "the authors' expression"
    causal_only = True
    bias_reads_keys = False

    num_heads: Size
    _: KW_ONLY
    dim: Size
    width: Size = 8
    num_layers: Size = 1
    init_std: float | None = None

    def setup(self) -> None:
        check_even("width", self.width)
        std = self.dim**-0.5 / 2 if self.init_std is None else self.init_std
        rows = self.num_heads * self.width
        self.weight: nn.Parameter = normal_parameter(self.num_layers, rows, self.dim, init_std=std)

    def tables(self) -> dict[str, Tensor]:
        return {"slopes": alibi_slopes(self.num_heads)}

    def gates(self, x: Tensor, layer: int = 0) -> Tensor:
        x = check_input(self, x, self.dim)
        return linear(x, self.weight[self.own_layer(layer)].to(x)).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> "_AlongThePath":
        check_heads(self, q, self.num_heads)
        positions.require_counted()
        positions.require_one_axis("GRAPEAP")
        positions.require_among_keys()
        p = positions.gate(self.known_as, self.num_heads, self.width)
        angles = positions.k.double()[:, None, :, None].expand(-1, 1, -1, self.width // 2)
        turned = rotary(rms_norm(p, (self.width,)), angles.cos().to(p), -angles.sin().to(p), layout="half")
        slopes = self.get_buffer("slopes").to(p)[:, None, None]
        return _AlongThePath(positions.of_queries(p) / self.width, turned, slopes, positions)


class _AlongThePath(Counted):
    """The sums, of queries p / width and turned keys (batch, num_heads, tokens, width); of_count: the slopes."""

    def of(self, gates: Tensor, counts: Tensor, first: int, end: int) -> Tensor:
        return self.of_count * (counts - gates)

    def gate(self, products: Tensor) -> Tensor:
        return logsigmoid(products)
