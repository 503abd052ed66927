# SPDX-License-Identifier: Apache-2.0
"""PaTH: every token between a key and its query reflects the query, in a direction that the token sets."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from posenc.bias.carried import Carried, stream
from posenc.encoding import Encoding, Size
from posenc.encodings.shared import check_input, check_queries, kv_heads_of, normal_parameter, uniform
from posenc.errors import Count, refuse_in_onnx
from posenc.positions import Positions
from posenc.positions.order import convolved


@dataclass(eq=False, repr=False)
class PaTH(Encoding):
    """Between query and key stands the product of I - beta_t w_t w_t^T over the tokens t after the key, up to the query.

    dim: width of the layer's input x, of which w and beta are made. num_heads, num_kv_heads, head_dim: of the model; each key head
    has its w and beta. num_layers: layers with separate parameters; 1: shared by all. rank: of the map from x to w; None: a full
    matrix. conv_size: tokens of the convolution, one filter per channel and SiLU, that w goes through before its norm becomes 1;
    0: no convolution. It and the product stay within a document and leave padding out; a window does not hide what it reads.

    Scores are computed by chunks of 64 tokens (the UT transform). Time is quadratic, memory is that of a block of queries;
    a cached step goes through all chunks again. PaTH-FoX is `path+fox`.
    Raises InputError for positions that are not causal, or another width or number of heads.
    Source: Yang et al. 2025, "PaTH Attention"; fla-org/flash-linear-attention, fla/layers/path_attn.py.
    """

    name = "path"
    title = "PaTH, Householder products"
    papers: ClassVar[tuple[str, ...]] = ("yang2025path",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{1}{\sqrt{d}} q_i^\top \left( \prod_{t=j+1}^{i} (I - \beta_t w_t w_t^\top) \right) k_j",
        r"\beta_t = 2 \sigma(u \cdot x_t + c), \quad w_t = \frac{y_t}{\lVert y_t \rVert}, \quad y = \text{SiLU}(\text{conv}(W_2 W_1 x))",
    )
    shift_invariant = True
    extrapolates = "partly: reflections add up along the way"
    use_when = (
        "Take it in a causal model that must follow a state through a text; `path+fox` (PaTH-FoX) forgets as well."
    )
    equal_to = "the authors' expression"
    causal_only = True

    dim: Size
    _: KW_ONLY
    num_heads: Size
    head_dim: Size
    num_kv_heads: Size | None = None
    num_layers: Size = 1
    rank: Size | None = 32
    conv_size: Count = 3

    def setup(self) -> None:
        self.looks_back = max(self.conv_size - 1, 0)
        layers, heads = self.num_layers, kv_heads_of(self.num_heads, self.num_kv_heads)
        middle = self.dim if self.rank is None else self.rank
        std = self.dim**-0.5
        down = None if self.rank is None else normal_parameter(layers, self.rank, self.dim, init_std=std)
        self.down: nn.Parameter | None = down
        self.up: nn.Parameter = normal_parameter(layers, heads * self.head_dim, middle, init_std=middle**-0.5)
        self.filter: nn.Parameter | None = None
        if self.conv_size:
            self.filter = uniform(layers, heads, self.conv_size, self.head_dim, fan_in=self.conv_size)
        self.beta_weight: nn.Parameter = normal_parameter(layers, heads, self.dim, init_std=std)
        self.beta_bias: nn.Parameter = nn.Parameter(torch.zeros(layers, heads))

    def gates(self, x: Tensor, layer: int = 0) -> Tensor:
        """w before its convolution and norm, and the logit of beta, (batch, num_kv_heads, seq, head_dim + 1)."""
        x, at = check_input(self, x, self.dim), self.own_layer(layer)
        middle = x if self.down is None else linear(x, self.down[at].to(x))
        w = linear(middle, self.up[at].to(x)).unflatten(-1, (-1, self.head_dim))
        logit = linear(x, self.beta_weight[at].to(x), self.beta_bias[at].to(x))
        return torch.cat((w, logit[..., None]), -1).transpose(1, 2)

    def scores(self, q: Tensor, k: Tensor, scale: float, positions: Positions, layer: int = 0) -> "Reflected":
        check_queries(self, q)
        order = stream(positions)
        heads = kv_heads_of(self.num_heads, self.num_kv_heads)
        gate = positions.gate(self.known_as, heads, self.head_dim + 1)
        gate = gate.to(torch.promote_types(q.dtype, torch.float32))
        w, beta = gate[..., :-1], 2 * torch.sigmoid(gate[..., -1:])
        if self.filter is not None:
            newest_first = self.filter[self.own_layer(layer)].flip(1).mT
            w = silu(convolved(w, newest_first.to(w), positions))
        w = w * (w.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        # padding has w = 0: it reflects nothing
        return Reflected(scale * q, order.of(k), order.of(torch.cat((w, beta), -1)), positions, order)


class Reflected(Carried):
    """PaTH's scores. Tokens are w and beta."""

    def tables(self, k: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        w, beta = tokens[..., :-1], tokens[..., -1:]
        scaled = beta * w
        # the product from a chunk's first token to token t is I - sum_{s <= t} w_s u_s^T; from after key j on, with (u . k)_j
        right = torch.cat((scaled, (scaled @ k.mT).tril(-1)), -1)
        refuse_in_onnx("PaTH", "the solution of a triangular system", "`fox`")
        solved = torch.linalg.solve_triangular(scaled @ w.mT, right, upper=False, unitriangular=True)
        u, of_keys = solved.split([w.shape[-1], k.shape[-2]], -1)
        keys = k - of_keys.mT @ w
        return w, u, of_keys, torch.cat((keys.mT, w.mT @ u), -1)

    def inside(self, q: Tensor, k: Tensor, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        w, u, of_keys, _ = tables
        along = (q @ w.mT).tril()
        return q @ k.mT - along @ of_keys, q - along @ u

    def step(self, q: Tensor, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        width = q.shape[-1]
        scores, turned = (q @ tables[-1]).split([tables[-1].shape[-1] - width, width], -1)
        return scores, q - turned
