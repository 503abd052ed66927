# SPDX-License-Identifier: Apache-2.0
"""DAPE: a bias of the distance, changed by what all heads score."""

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from posenc.bias import Mixer
from posenc.encoding import Encoding, Size
from posenc.encodings.distance import KERPLE, ALiBi
from posenc.encodings.fire import FIRE
from posenc.encodings.shared import HeadPerceptron, check_heads
from posenc.positions import Positions

PAIRS = 2**14
"""Pairs of tokens whose hidden numbers are computed at a time: what stays in a core's second-level cache."""


@dataclass(eq=False, repr=False)
class DAPE(Encoding):
    """A bias of the distance, adapted to the content: b + MLP(s, b) is added to the scores s, where the MLP takes the scores and
    biases of all heads at a pair of tokens.

    num_heads: heads of the model. num_layers: layers with separate functions; 1: shared by all. kind: the bias b, "kerple",
    "fire" or "alibi", with its defaults. hidden: width of the MLP, 2 num_heads -> hidden -> num_heads with LeakyReLU (0.01) and
    biases.

    s is what the other encodings of a sum make of the scores, as rotations and biases do; DAPE acts on the result. It is
    computed for some queries at a time, again in the backward pass: memory is linear in the keys, time several times that of
    attention. The authors' FIRE has a LeakyReLU inside as well. DAPE V2's convolution over keys is not offered.
    Source: Zheng et al. 2024, section 3; chuanyang-Zheng/DAPE, DAPE.py.
    """

    name = "dape"
    title = "DAPE, bias adapted to content"
    papers: ClassVar[tuple[str, ...]] = ("zheng2024dape",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s'_{hij} = s_{hij} + b_{hij} + f_h(s_{1ij}, \dots, s_{Hij}, b_{1ij}, \dots, b_{Hij})",
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}}",
    )
    extrapolates = "yes: better than the bias that it adapts, by the paper"
    use_when = (
        "Take it on top of rotations or alone, for inputs longer than in training, where time matters less; `kerple` "
        "is its bias without the network."
    )
    equal_to = "the authors' code"
    mixes_heads = True

    num_heads: Size
    _: KW_ONLY
    num_layers: Size = 1
    kind: Literal["kerple", "fire", "alibi"] = "kerple"
    hidden: Size = 32

    def setup(self) -> None:
        if self.kind == "alibi":
            self.adapted: Encoding = ALiBi(self.num_heads)
        else:
            self.adapted = (KERPLE if self.kind == "kerple" else FIRE)(self.num_heads, num_layers=self.num_layers)
        self.shift_invariant = self.adapted.shift_invariant
        vars(self)["papers"] = (*type(self).papers, *self.adapted.papers)
        heads = self.num_heads
        self.mlp: HeadPerceptron = HeadPerceptron(2 * heads, self.hidden, heads, self.num_layers, last_bias=True)

    def modify(self, positions: Positions, layer: int = 0) -> Mixer:
        positions.require_one_axis("DAPE")
        return Mixer(partial(self.mixed, positions=positions, layer=self.own_layer(layer)))

    def mixed(self, scores: Tensor, first_query: int, first_key: int, positions: Positions, layer: int) -> Tensor:
        """The scores (batch, num_heads, queries, keys) of queries and keys from these on, with what DAPE adds."""
        check_heads(self, scores, self.num_heads)
        bias = self.of_pairs(scores, first_query, first_key, positions, layer)
        if torch.compiler.is_compiling():
            return self.changed(scores, bias, layer)
        rows = max(1, PAIRS // scores.shape[3])
        parts = zip(scores.split(rows, 2), bias.split(rows, 2), strict=True)
        return torch.cat([self.changed(*part, layer) for part in parts], 2)

    def changed(self, scores: Tensor, bias: Tensor, layer: int) -> Tensor:
        """Scores and biases (batch, num_heads, queries, keys) and what the MLP makes of them, added."""
        mlp, (of_scores, of_bias) = self.mlp, self.mlp.weight_in[layer].to(scores).split(self.num_heads, 1)
        assert mlp.bias_out is not None
        both, flat = (scores + bias).flatten(2), (scores.flatten(2), bias.expand_as(scores).flatten(2))
        hidden = mlp.bias_in[layer].to(scores)[:, None]
        for weight, x in zip((of_scores, of_bias), flat, strict=True):
            hidden = torch.baddbmm(hidden, weight.expand(x.shape[0], -1, -1), x)
        weight = mlp.weight_out[layer].to(scores).expand(scores.shape[0], -1, -1)
        more = torch.baddbmm(both, weight, leaky_relu(hidden, inplace=True))
        return (more + mlp.bias_out[layer].to(scores)[:, None]).unflatten(2, scores.shape[2:])

    def of_pairs(self, scores: Tensor, first_query: int, first_key: int, positions: Positions, layer: int) -> Tensor:
        """The bias that is adapted, (1 or batch, num_heads, queries, keys)."""
        # a bias of the distance takes sizes and dtype from queries and keys
        sizes = scores.shape[0], self.num_heads
        q, k = (scores.new_empty(()).expand(*sizes, n, 1) for n in (positions.num_queries, positions.num_keys))
        (term,) = self.adapted.effects(positions, layer).terms(q, k)
        keys = slice(first_key, first_key + scores.shape[3])
        return term.blocks(scores.device)(first_query, first_query + scores.shape[2], keys).to(scores)  # fractional ids
