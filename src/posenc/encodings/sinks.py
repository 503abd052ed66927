# SPDX-License-Identifier: Apache-2.0
"""Sinks, and learned keys and values: what every query sees besides the tokens. For use with any encoding, as in
`Rotary(64) + SoftmaxN()`."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from posenc.encoding import Encoding, Size
from posenc.encodings.shared import kv_heads_of, normal_parameter
from posenc.errors import NotNegative


@dataclass(eq=False, repr=False)
class SoftmaxN(Encoding):
    """Softmax with n more in its denominator, exp / (n + sum exp), so that a head may attend to nothing.

    n: 1 is softmax_1, "off by one", the same as one more key and value of zeros (the zero sink); 0 is softmax.
    Source: Miller 2023, evanmiller.org/attention-is-off-by-one.html; Xiao et al. 2024, section 3.3 (zero sink).
    """

    name = "softmax_n"
    title = "attention sink without a token (softmax_1)"
    papers: ClassVar[tuple[str, ...]] = ("xiao2024efficient",)
    formula: ClassVar[tuple[str, ...]] = (r"\alpha_{ij} = \frac{e^{s_{ij}}}{n + \sum_t e^{s_{it}}}",)
    shift_invariant = True
    extrapolates = "no claim"
    use_when = "Add it to any encoding, so that heads may attend to nothing; `sink` learns how much."
    equal_to = "torch's MultiheadAttention(add_zero_attn=True)"

    n: NotNegative = 1.0

    def sink(self, layer: int = 0) -> float | Tensor | None:
        return math.log(self.n) if self.n > 0 else None


@dataclass(eq=False, repr=False)
class LearnedSink(Encoding):
    """A learned logit per head that every query may attend to instead of a token; it starts at 0, which is softmax_1.

    num_heads: query heads of the model. num_layers: layers with separate logits; 1: shared by all.
    Source: OpenAI 2025, gpt-oss model card, section 2.2.
    """

    name = "sink"
    title = "learned attention sink"
    papers: ClassVar[tuple[str, ...]] = ("openai2025gptoss",)
    formula: ClassVar[tuple[str, ...]] = (r"\alpha_{ij} = \frac{e^{s_{ij}}}{e^{z_h} + \sum_t e^{s_{it}}}",)
    shift_invariant = True
    extrapolates = "no claim"
    use_when = (
        "Add it to any encoding, so that each head learns how much it attends to no token, as in gpt-oss; "
        "`softmax_n` is fixed."
    )
    equal_to = "transformers' gpt-oss"

    num_heads: Size
    _: KW_ONLY
    num_layers: Size = 1

    def setup(self) -> None:
        self.logits: nn.Parameter = nn.Parameter(torch.zeros(self.num_layers, self.num_heads))

    def sink(self, layer: int = 0) -> Tensor:
        return self.logits[self.own_layer(layer)]


@dataclass(eq=False, repr=False)
class PrefixKV(Encoding):
    """Learned keys and values that every query of every text sees, as if they came before it; they have no position.

    num_heads, head_dim: of the model; values are as wide as keys. length: how many keys. num_kv_heads: key and value heads,
    if fewer. num_layers: layers with separate keys and values (the source: all of them); 1: shared by all.
    init_std: of both.
    The source makes them by a perceptron while it trains; here they are parameters.
    Source: Li and Liang 2021, section 4; without it, as part of a model: Sukhbaatar et al. 2019, section 3.
    """

    name = "prefix_kv"
    title = "learned prefix of keys and values"
    papers: ClassVar[tuple[str, ...]] = ("li2021prefix", "sukhbaatar2019augmenting")
    formula: ClassVar[tuple[str, ...]] = (
        r"o_i = \frac{\sum_t e^{q_i \cdot P_t / \sqrt{d}} V_t + \sum_j e^{s_{ij}} v_j}"
        r"{\sum_t e^{q_i \cdot P_t / \sqrt{d}} + \sum_j e^{s_{ij}}}",
    )
    shift_invariant = True
    extrapolates = "no claim"
    use_when = (
        "Add it to adapt a frozen model by learned keys and values (prefix tuning); `sink` is a logit without a value."
    )
    equal_to = "torch's MultiheadAttention(add_bias_kv=True)"

    num_heads: Size
    _: KW_ONLY
    head_dim: Size
    length: Size = 4
    num_kv_heads: Size | None = None
    num_layers: Size = 1
    init_std: float = 0.02

    def setup(self) -> None:
        shape = self.num_layers, kv_heads_of(self.num_heads, self.num_kv_heads), self.length, self.head_dim
        self.prefix_keys: nn.Parameter = normal_parameter(*shape, init_std=self.init_std)
        self.prefix_values: nn.Parameter = normal_parameter(*shape, init_std=self.init_std)

    def prefix_kv(self, layer: int = 0) -> tuple[Tensor, Tensor]:
        index = self.own_layer(layer)
        return self.prefix_keys[index], self.prefix_values[index]
