# SPDX-License-Identifier: Apache-2.0
"""What acts on the softmax rather than on positions: its denominator, and its temperature. For use with any encoding,
as in `Rotary(64) + SoftmaxN()`."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from posenc.checks import check_sizes, checked
from posenc.encoding import Encoding, require_fit
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.positions.ids import exact


class SoftmaxN(Encoding):
    """Softmax with n more in its denominator, exp / (n + sum exp), so that a head may attend to nothing.

    n: 1 is softmax_1, "off by one", the same as one more key and value of zeros (the zero sink); 0 is softmax.
    Source: Miller 2023, evanmiller.org/attention-is-off-by-one.html; Xiao et al. 2024, section 3.3 (zero sink).
    """

    name = "softmax_n"
    papers: ClassVar[tuple[str, ...]] = ("xiao2024efficient",)
    formula: ClassVar[tuple[str, ...]] = (r"\alpha_{ij} = \frac{e^{s_{ij}}}{n + \sum_t e^{s_{it}}}",)
    shift_invariant = True
    extrapolates = "no claim"
    equal_to = "torch's MultiheadAttention(add_zero_attn=True)"

    @checked
    def __init__(self, n: float = 1.0) -> None:
        super().__init__()
        if not 0 <= n < math.inf:
            raise InputError(f"n={n}: what the denominator gains must be a number from 0 on")
        self.n = n

    def sink(self, layer: int = 0) -> float | Tensor | None:
        return math.log(self.n) if self.n > 0 else None


class LearnedSink(Encoding):
    """A learned logit per head that every query may attend to instead of a token; it starts at 0, which is softmax_1.

    num_heads: query heads of the model. num_layers: layers with logits of their own; 1: shared by all.
    Source: OpenAI 2025, gpt-oss model card, section 2.2.
    """

    name = "sink"
    papers: ClassVar[tuple[str, ...]] = ("openai2025gptoss",)
    formula: ClassVar[tuple[str, ...]] = (r"\alpha_{ij} = \frac{e^{s_{ij}}}{e^{z_h} + \sum_t e^{s_{it}}}",)
    shift_invariant = True
    extrapolates = "no claim"
    equal_to = "transformers' gpt-oss"

    @checked
    def __init__(self, num_heads: int, num_layers: int = 1) -> None:
        super().__init__()
        check_sizes(num_heads=num_heads, num_layers=num_layers)
        self.num_heads = num_heads
        self.num_layers = num_layers
        self.logits: nn.Parameter = nn.Parameter(torch.zeros(num_layers, num_heads))

    def sink(self, layer: int = 0) -> Tensor:
        return self.logits[self.own_layer(layer)]


class QueryScale(Encoding):
    """Base of what multiplies a query by a factor that depends on where it is or what it sees. It scales q . k, not
    biases, and in a sum after every other encoding's rotation; keys stay as they are, so they can be cached."""

    rotates_last = True
    planes = ()

    def factor(self, positions: Positions) -> Tensor:
        """Of each query, (batch or 1, num_queries), float64."""
        raise NotImplementedError  # abstract: the classes below define it

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        require_fit(positions, q=q, k=k)
        return self.rotate_queries(q, positions, layer), k

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, q=q)
        factor = self.remember(positions, "factor", lambda: self.factor(positions))[:, None, :, None]
        precise = torch.promote_types(q.dtype, torch.float32)
        return (q.to(precise) * factor.to(precise)).to(q.dtype)

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, k=k)
        return k


class LogN(QueryScale):
    """Queries scaled by the logarithm of how many keys they see, ln(n) / ln(train_length), so that attention does not
    thin out as a text grows.

    train_length: where the factor is 1. clip: leave queries that see fewer as they are, max(1, factor), which makes it
    usable without training; False applies it everywhere, for models trained so. Scales q . k, not biases, and in a
    sum after every other encoding's rotation.
    Source: Su, kexue.fm/archives/8823 and 9706 (clipped); Chiang and Cholak 2022, section 5.3.
    """

    name = "log_n"
    papers: ClassVar[tuple[str, ...]] = ("chiang2022overcoming",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \max\left( 1, \frac{\ln n_i}{\ln L} \right) \frac{q_i \cdot k_j}{\sqrt{d}}",
        r"n_i = \text{keys that the query sees}",
    )
    shift_invariant = True
    extrapolates = "yes: entropy stays level"

    @checked
    def __init__(self, train_length: int, clip: bool = True) -> None:
        super().__init__()
        if train_length < 2:
            raise InputError(f"train_length={train_length}: must be at least 2, the logarithm of 1 is 0")
        self.train_length = train_length
        self.clip = clip

    @property
    def sees_order(self) -> bool:
        return False

    def factor(self, positions: Positions) -> Tensor:
        factor = exact(positions.visible_counts()).clamp(min=1).log() / math.log(self.train_length)
        return factor.clamp(min=1) if self.clip else factor


class Temperature(QueryScale):
    """Every score q . k times one factor, so that attention is sharper (above 1) or flatter.

    beta: the factor. YaRN's is (0.1 ln s + 1)^2 for s times the trained length, where a schedule's attention_factor has
    not brought it in already; DroPE's is 1 + c ln s with c found on validation texts.
    Source: Peng et al. 2024, section 3.4; Gelberg et al. 2025 (DroPE).
    """

    name = "temperature"
    papers: ClassVar[tuple[str, ...]] = ("peng2024yarn", "gelberg2025extending")
    formula: ClassVar[tuple[str, ...]] = (r"s_{ij} = \beta\, \frac{q_i \cdot k_j}{\sqrt{d}}",)
    shift_invariant = True
    extrapolates = "partly: keeps a longer text's attention from thinning out"

    @checked
    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        if not 0 < beta < math.inf:
            raise InputError(f"beta={beta}: what scores are multiplied by must be a number above 0")
        self.beta = beta

    @property
    def sees_order(self) -> bool:
        return False

    def factor(self, positions: Positions) -> Tensor:
        return torch.full((1, 1), self.beta, dtype=torch.float64, device=positions.q.device)


class StepTemperature(QueryScale):
    """Queries at position p times 1 + beta ln(1 + floor((p + first) / train_length)): as they are at first, and
    sharper by a step for each trained length.

    first: 1 counts tokens (the last one of the trained length is sharper already), as Llama 4 does, in those of its layers that have no position; 0 counts positions, as
    Ministral 3 does. Source: Meta 2025, llama-models, models/llama4/model.py.
    """

    name = "step_temperature"
    papers: ClassVar[tuple[str, ...]] = ("meta2025llama4",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = (1 + \beta \ln(1 + n_i)) \frac{q_i \cdot k_j}{\sqrt{d}}",
        r"n_i = \left\lfloor \frac{i + f}{L} \right\rfloor",
    )
    extrapolates = "yes: keeps a longer text's attention from thinning out"
    equal_to = "transformers' Llama 4, Ministral 3"

    @checked
    def __init__(self, train_length: int, beta: float = 0.1, first: int = 1) -> None:
        super().__init__()
        check_sizes(train_length=train_length)
        if not 0 <= beta < math.inf:
            raise InputError(f"beta={beta}: what a step adds must be a number from 0 on")
        if first not in (0, 1):
            raise InputError(f"first={first}: the first token counts as 1 (Llama 4) or as 0 (Ministral 3)")
        self.train_length = train_length
        self.beta = beta
        self.first = first

    def factor(self, positions: Positions) -> Tensor:
        positions.require_one_axis("StepTemperature")
        steps = (exact(positions.q) + self.first).div(self.train_length).floor()
        return 1 + self.beta * steps.clamp(min=0).log1p()
