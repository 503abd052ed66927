# SPDX-License-Identifier: Apache-2.0
"""Rotations by angles that each token makes of a layer's input, added up from the start of a document."""

import math
from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu, softplus

from posenc import frequencies
from posenc.encoding import Encoding, Size, require_fit
from posenc.encodings.shared import by_key_head, check_input, check_queries, kv_heads_of, normal_parameter, uniform
from posenc.errors import InputError, Positive, Share, check_numbers
from posenc.functional import Layout, check_even, inverse_softplus, rotary
from posenc.positions import Positions
from posenc.positions.order import convolved, running_sums


@dataclass(eq=False, repr=False)
class AccumulatedRotary(Encoding):
    """Base: pair c of a query or key is turned by the sum of the angles of its token and of those before it in its document,
    so that scores depend on the angles of the tokens in between. Query heads turn as the key head that they share.

    Subclasses make the angles, at `gates` or in `steps`. Sums are float64; padding does not count. Rotated keys cannot be
    cached, since a sum begins at the first token.
    """

    shift_invariant = True
    isometric = True

    head_dim: Size
    _: KW_ONLY
    dim: Size
    num_heads: Size
    num_kv_heads: Size | None = None
    num_layers: Size = 1
    layout: Layout = field(default="half", init=False)

    def setup(self) -> None:
        check_even("head_dim", self.head_dim)
        self.kv_heads: int = kv_heads_of(self.num_heads, self.num_kv_heads)
        self.pairs: int = self.head_dim // 2

    @property
    def planes(self) -> Hashable:
        return self.layout, 0, 2 * self.pairs, self.head_dim

    def steps(self, positions: Positions, layer: int) -> Tensor:
        """The angle by which each token turns each pair: (batch, kv_heads, num_keys, pairs), in radians."""
        return positions.gate(self.known_as, self.kv_heads, self.pairs)

    def angles(self, positions: Positions, layer: int) -> tuple[Tensor, Tensor]:
        """Those of queries and of keys, (batch, kv_heads, num_queries or num_keys, pairs), in radians."""
        return running_sums(self.steps(positions, layer), positions)

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        require_fit(positions, q=q, k=k)
        check_queries(self, q)
        of_q, of_k = self.angles(positions, layer)
        turns = _cos_sin(of_k, k.dtype)
        return self.rope(q, turns if of_q is of_k else _cos_sin(of_q, q.dtype)), self.rope(k, turns)

    def rope(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Queries or keys (batch, heads, n, head_dim), by the cos and sin (batch, kv_heads, 1, n, pairs) of their angles."""
        return rotary(by_key_head(self, x, self.kv_heads), *turns, layout=self.layout).flatten(1, 2)


def _cos_sin(angles: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Of angles (batch, kv_heads, n, pairs), with an axis for the queries that share a key head."""
    cos, sin = (x.to(torch.promote_types(dtype, torch.float32))[:, :, None] for x in (angles.cos(), angles.sin()))
    return cos, sin


@dataclass(eq=False, repr=False)
class SelectiveRotary(AccumulatedRotary):
    """Selective RoPE: angles are a short causal convolution of a low-rank projection of x, times a temperature per pair.

    head_dim: width of a head; dim: of a layer's input x. num_heads, num_kv_heads, num_layers: of the model; each key head and
    layer has its angles. rank: of the projection. kernel_size: tokens of the convolution, the token itself among them. gate:
    multiply each head's angles by a sigmoid of x. rope_theta: the temperature of pair c is rope_theta^(-2c / head_dim);
    trainable: it learns.

    x is normalised first, its channels in as many groups as there are key heads. Raises InputError where these do not divide it.
    Source: Movahedi et al. 2026; timurcarstensen/selective-rope, modules/rotary.py.
    """

    name = "selective_rope"
    title = "Selective RoPE"
    papers: ClassVar[tuple[str, ...]] = ("movahedi2026selective",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R(\varphi_i)\, q_i, \quad k_j' = R(\varphi_j)\, k_j, \quad \varphi_{i,c} = \theta^{-2c/d} \sum_{t \le i} \omega_{t,c}",
        r"\omega_t = \sigma(g \cdot \hat x_t + b) \sum_{s=0}^{3} a_s \odot W_2 W_1 \hat x_{t-s}",
    )
    extrapolates = "partly: angles depend on the text"
    use_when = (
        "Take it in a causal model whose text should set how far tokens are apart; with `rope`, cached keys can be "
        "rotated once."
    )
    equal_to = "the authors' expression"

    _: KW_ONLY
    rank: Size = 16
    kernel_size: Size = 4
    gate: bool = False
    rope_theta: Positive = 500000.0
    trainable: bool = False

    def setup(self) -> None:
        super().setup()
        if self.dim % self.kv_heads:
            raise InputError(f"must be a multiple of the {self.kv_heads} key heads", dim=self.dim)
        shape = self.num_layers, self.kv_heads
        self.down: nn.Parameter = uniform(self.num_layers, self.rank, self.dim, fan_in=self.dim)
        self.up: nn.Parameter = uniform(*shape, self.pairs, self.rank, fan_in=self.rank)
        self.looks_back = self.kernel_size - 1
        self.kernel: nn.Parameter = uniform(*shape, self.pairs, self.kernel_size, fan_in=self.kernel_size)
        if self.gate:
            self.gate_weight = uniform(*shape, self.dim, fan_in=self.dim)
            self.gate_bias = uniform(*shape, fan_in=self.dim)
        if self.trainable:
            self.temperature = nn.Parameter(self.temperatures().float())

    def temperatures(self) -> Tensor:
        """Of each pair at the start."""
        return frequencies.default(self.head_dim, base=self.rope_theta).inv_freq

    def tables(self) -> dict[str, Tensor]:
        return {} if self.trainable else {"temperature": self.temperatures()}

    def gates(self, x: Tensor, layer: int = 0) -> Tensor:
        x, number = check_input(self, x, self.dim), self.own_layer(layer)
        of_all = self.kv_heads
        if self._part is not None:
            assert self._part.heads is not None
            of_all = self._part.heads // self._part.sharing
        groups = x.unflatten(-1, (of_all, -1))
        x = (groups * (groups.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).flatten(-2)
        low = linear(x, self.down[number].to(x))
        waves = torch.einsum("bnr,hpr->bhnp", low, self.up[number].to(x))
        if not self.gate:
            return waves
        gate = linear(x, self.gate_weight[number].to(x), self.gate_bias[number].to(x)).sigmoid()
        return torch.cat((waves, gate.mT[..., None]), -1)

    def steps(self, positions: Positions, layer: int) -> Tensor:
        gates = positions.gate(self.known_as, self.kv_heads, self.pairs + self.gate)
        waves = convolved(gates[..., : self.pairs], self.kernel[self.own_layer(layer)].to(gates), positions).double()
        if self.gate:
            waves = waves * gates[..., self.pairs :]
        return waves * self.temperature


@dataclass(eq=False, repr=False)
class Mamba3Rotary(AccumulatedRotary):
    """The rotation of Mamba-3: each token turns pair c by dt pi tanh(a_c . x), with a step dt = softplus(w_h x + b_h) of each head.

    head_dim, dim, num_heads, num_kv_heads, num_layers: as in `SelectiveRotary`; heads of a layer share a. fraction: of the
    channels that turn, the first ones, rounded down to pairs. layout: which channels form a pair. dt starts log-uniform in
    0.001 .. 0.1, as the authors' does. Source: Lahoti et al. 2026, "Mamba-3", section 3; state-spaces/mamba, modules/mamba3.py.
    """

    name = "mamba3_rope"
    title = "the rotation of Mamba-3"
    papers: ClassVar[tuple[str, ...]] = ("lahoti2026mamba",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R(\varphi_i)\, q_i, \quad k_j' = R(\varphi_j)\, k_j, \quad \varphi_{i,c} = \sum_{t \le i} \Delta_t\, \pi \tanh(a_c \cdot x_t)",
        r"\Delta_t = \mathrm{softplus}(w_h \cdot x_t + b_h)",
    )
    extrapolates = "partly: angles depend on the text"
    use_when = "Take it for Mamba-3's rotation in attention; `selective_rope` also convolves angles over some tokens."
    equal_to = "the authors' expression"

    _: KW_ONLY
    fraction: Share = 0.5
    layout: Layout = "interleaved"

    def setup(self) -> None:
        super().setup()
        self.pairs = int(self.head_dim * self.fraction) // 2
        if self.pairs < 1:
            raise InputError(f"leaves no pair of head_dim={self.head_dim} channels to turn", fraction=self.fraction)
        shape = self.num_layers, self.kv_heads
        self.angle: nn.Parameter = uniform(self.num_layers, self.pairs, self.dim, fan_in=self.dim)
        self.weight: nn.Parameter = uniform(*shape, self.dim, fan_in=self.dim)
        dt = torch.empty(shape).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.bias_of_dt: nn.Parameter = nn.Parameter(inverse_softplus(dt))

    def gates(self, x: Tensor, layer: int = 0) -> Tensor:
        x, number = check_input(self, x, self.dim), self.own_layer(layer)
        dt = softplus(linear(x, self.weight[number].to(x), self.bias_of_dt[number].to(x))).mT[..., None]
        return dt * (math.pi * linear(x, self.angle[number].to(x)).tanh())[:, None]


@dataclass(eq=False, repr=False)
class CARoPE(AccumulatedRotary):
    """Context-aware RoPE: each token turns pair c, counted from 1, by f^c, f = 1 / (1 + softplus(w_h x + b_h)) of each head.

    head_dim, dim, num_heads, num_kv_heads, num_layers: as in `SelectiveRotary`. layout: which channels form a pair. rope_theta: b
    starts where f is rope_theta^(-2 / head_dim), which makes it RoPE for w = 0; init_std: of w at the start. The paper has no
    b; without it f would start near 0.6 in every head. Source: Veisi et al. 2025, section 2.
    """

    name = "carope"
    title = "context-aware RoPE"
    papers: ClassVar[tuple[str, ...]] = ("veisi2025context",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R(\varphi_i)\, q_i, \quad k_j' = R(\varphi_j)\, k_j, \quad \varphi_{i,c} = \sum_{t \le i} f_t^{\,c}",
        r"f_t = \frac{1}{1 + \mathrm{softplus}(w_h \cdot x_t + b_h)}, \quad c = 1 \ldots d/2",
    )
    extrapolates = "partly: lower perplexity than RoPE at twice the length, by the paper"
    use_when = "Take it where each token sets one frequency for each head; `selective_rope` has an angle for each pair."
    equal_to = "the formula"

    _: KW_ONLY
    layout: Layout = "half"
    rope_theta: Positive = 10000.0
    init_std: float = 0.02

    def setup(self) -> None:
        super().setup()
        check_numbers(1.0001, 1e12, rope_theta=self.rope_theta)
        shape = self.num_layers, self.kv_heads
        self.weight: nn.Parameter = normal_parameter(*shape, self.dim, init_std=self.init_std)
        start = torch.full(shape, math.expm1(2 / self.head_dim * math.log(self.rope_theta)))
        self.logit: nn.Parameter = nn.Parameter(inverse_softplus(start))

    def gates(self, x: Tensor, layer: int = 0) -> Tensor:
        x, number = check_input(self, x, self.dim), self.own_layer(layer)
        logits = linear(x, self.weight[number].to(x), self.logit[number].to(x))
        return (1 / (1 + softplus(logits))).mT[..., None]

    def steps(self, positions: Positions, layer: int) -> Tensor:
        base = positions.gate(self.known_as, self.kv_heads, 1).double()
        return base ** torch.arange(1, self.pairs + 1, device=base.device)


@dataclass(eq=False, repr=False)
class RePo(AccumulatedRotary):
    """Context re-positioning: RoPE at real positions z = W3 (SiLU(W1 x) * W2 x), one for each token and key head.

    head_dim, dim, num_heads, num_kv_heads, num_layers: as in `SelectiveRotary`; each layer has its W1, W2 and W3. hidden: rows of W1
    and W2; None: dim / 8, as the authors have it. rope_theta, layout: of the rotation.

    A token's index is not read: that it comes before others is known by what a causal mask hides alone. The authors leave RoPE in the first
    layers, `rope` five times and `repo` in the others of OLMo 2. Source: Li et al. 2025, arXiv 2512.14391; SakanaAI/repo,
    modeling_olmo2.py, mode "swigluex_multihead".
    """

    name = "repo"
    title = "context re-positioning (RePo)"
    papers: ClassVar[tuple[str, ...]] = ("li2025repo",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R(z_i)\, q_i, \quad k_j' = R(z_j)\, k_j, \quad z_t = W_3 \left( \mathrm{SiLU}(W_1 x_t) \odot W_2 x_t \right)",
    )
    sees_order = False
    extrapolates = "not claimed: positions depend on the text"
    use_when = "Take it in the upper layers of a causal model with `rope` below; `selective_rope` adds angles up along the text."
    equal_to = "the authors' expression"

    _: KW_ONLY
    hidden: Size | None = None
    rope_theta: Positive = 10000.0
    layout: Layout = "half"

    def setup(self) -> None:
        super().setup()
        hidden = max(1, self.dim // 8) if self.hidden is None else self.hidden
        self.gate_map: nn.Parameter = uniform(self.num_layers, hidden, self.dim, fan_in=self.dim)
        self.content_map: nn.Parameter = uniform(self.num_layers, hidden, self.dim, fan_in=self.dim)
        self.position_map: nn.Parameter = uniform(self.num_layers, self.kv_heads, hidden, fan_in=hidden)

    def tables(self) -> dict[str, Tensor]:
        return {"inv_freq": frequencies.default(self.head_dim, base=self.rope_theta).inv_freq}

    def gates(self, x: Tensor, layer: int = 0) -> Tensor:
        """The positions, (batch, kv_heads, seq, 1)."""
        x, number = check_input(self, x, self.dim), self.own_layer(layer)
        gate, content, last = (w[number].to(x) for w in (self.gate_map, self.content_map, self.position_map))
        return linear(silu(linear(x, gate)) * linear(x, content), last).mT[..., None]

    def angles(self, positions: Positions, layer: int) -> tuple[Tensor, Tensor]:
        positions.require_among_keys()
        of_keys = positions.gate(self.known_as, self.kv_heads, 1).double() * self.get_buffer("inv_freq")
        return positions.of_queries(of_keys), of_keys
