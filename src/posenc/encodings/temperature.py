# SPDX-License-Identifier: Apache-2.0
"""Temperatures: scaled queries, so that the softmax is sharper or flatter. For use with any encoding, as in
`Rotary(64) + LogN(4096)`."""

import math
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from posenc.encoding import Encoding, Rotation, Size, require_fit
from posenc.errors import NotNegative, Positive, check_integers
from posenc.positions import Positions
from posenc.positions.ids import exact


class QueryScale(Encoding):
    """Base of what multiplies a query by a factor that depends on its position or on the keys it sees. It scales q . k, not
    biases, and in a sum after every other encoding's rotation; keys are unchanged, so they can be cached."""

    rotates_last = True
    planes = ()

    def factor(self, positions: Positions) -> Tensor:
        """Of each query, (batch or 1, num_queries), float64."""
        raise NotImplementedError  # abstract: the classes below define it

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, q=q)
        return _times(q, self.remember(positions, "factor", lambda: self.factor(positions)))

    def shared_rotation(self, positions: Positions, q: Tensor | None, k: Tensor | None) -> Rotation | None:
        factor = self.remember(positions, "factor", lambda: self.factor(positions))
        return None if factor.requires_grad else lambda q, k: (None if q is None else _times(q, factor), k)

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, k=k)
        return k


def _times(q: Tensor, factor: Tensor) -> Tensor:
    """Queries times a factor (batch or 1, num_queries) of each."""
    precise = torch.promote_types(q.dtype, torch.float32)
    return (q.to(precise) * factor[:, None, :, None].to(precise)).to(q.dtype)


@dataclass(eq=False, repr=False)
class LogN(QueryScale):
    """Queries scaled by the logarithm of how many keys they see, ln(n) / ln(train_length), so that attention does not
    spread out as a text grows.

    train_length: where the factor is 1. clip: leave queries that see fewer unchanged, max(1, factor), which makes it
    usable without training; False applies it everywhere, for models trained so. Scales q . k, not biases, and in a
    sum after every other encoding's rotation.
    Source: Su, kexue.fm/archives/8823 and 9706 (clipped); Chiang and Cholak 2022, section 5.3.
    """

    name = "log_n"
    title = "log-n scaling"
    papers: ClassVar[tuple[str, ...]] = ("chiang2022overcoming",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \max\left( 1, \frac{\ln n_i}{\ln L} \right) \frac{q_i \cdot k_j}{\sqrt{d}}",
        r"n_i = \text{keys that the query sees}",
    )
    shift_invariant = True
    sees_order = False
    extrapolates = "yes: entropy stays level"
    use_when = (
        "Add it to any encoding for inputs longer than train_length; `temperature` is one factor for all lengths."
    )

    train_length: Size
    _: KW_ONLY
    clip: bool = True

    def setup(self) -> None:
        check_integers(2, train_length=self.train_length)  # the logarithm of 1 is 0

    def factor(self, positions: Positions) -> Tensor:
        factor = exact(positions.visible_counts()).clamp(min=1).log() / math.log(self.train_length)
        return factor.clamp(min=1) if self.clip else factor


@dataclass(eq=False, repr=False)
class Temperature(QueryScale):
    """Every score q . k times one factor, so that attention is sharper (above 1) or flatter.

    beta: the factor. YaRN's is (0.1 ln s + 1)^2 for s times the context length, where a schedule's attention_factor has
    not brought it in already; DroPE's is 1 + c ln s with c chosen on a validation set.
    Source: Peng et al. 2024, section 3.4; Gelberg et al. 2025 (DroPE).
    """

    name = "temperature"
    title = "attention temperature"
    papers: ClassVar[tuple[str, ...]] = ("peng2024yarn", "gelberg2025extending")
    formula: ClassVar[tuple[str, ...]] = (r"s_{ij} = \beta\, \frac{q_i \cdot k_j}{\sqrt{d}}",)
    shift_invariant = True
    sees_order = False
    extrapolates = "partly: keeps a longer text's attention from thinning out"
    use_when = (
        "Add it to a pretrained model that is extended, as YaRN and DroPE do; `log_n` depends on the number of keys."
    )

    beta: Positive = 1.0

    def factor(self, positions: Positions) -> Tensor:
        return torch.full((1, 1), self.beta, dtype=torch.float64, device=positions.q.device)


@dataclass(eq=False, repr=False)
class StepTemperature(QueryScale):
    """Queries at position i times 1 + beta ln(1 + floor((i + first) / train_length)): as they are at first, and
    sharper by a step for each context length.

    first: 1 counts tokens (the last one of the context length is sharper already), as Llama 4 does, in those of its layers
    that have no position; 0 counts positions, as Ministral 3 does. Source: Meta 2025, llama-models, models/llama4/model.py.
    """

    name = "step_temperature"
    title = "temperature in steps"
    papers: ClassVar[tuple[str, ...]] = ("meta2025llama4",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = (1 + \beta \ln(1 + n_i)) \frac{q_i \cdot k_j}{\sqrt{d}}",
        r"n_i = \left\lfloor \frac{i + f}{L} \right\rfloor",
    )
    extrapolates = "yes: keeps a longer text's attention from thinning out"
    use_when = "Add it as Llama 4 does, in layers without position; `log_n` grows without steps."
    equal_to = "transformers' Llama 4, Ministral 3"

    train_length: Size
    _: KW_ONLY
    beta: NotNegative = 0.1
    first: Annotated[int, partial(check_integers, 0, 1)] = 1

    def factor(self, positions: Positions) -> Tensor:
        positions.require_one_axis("StepTemperature")
        steps = (exact(positions.q) + self.first).div(self.train_length).floor()
        return 1 + self.beta * steps.clamp(min=0).log1p()
