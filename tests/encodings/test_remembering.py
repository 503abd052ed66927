# SPDX-License-Identifier: Apache-2.0
"""What encodings remember at positions never outlives a fact that it follows from."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from posenc import ALiBi, Encoding, Positions, Rotary, attention
from posenc.bias import Relative


def places() -> Positions:
    return Positions.arange(6, causal=True)


def attended(encoding: Encoding, positions: Positions, layer: int = 0) -> Tensor:
    q, k, v = torch.randn(3, 1, 2, 6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return attention(q, k, v, encoding, positions, layer=layer)


class Steeper(ALiBi):
    """Another slope in each layer."""

    num_layers = 3

    def of_distance(self, head: Tensor, distance: Tensor, layer: int, dtype: torch.dtype) -> Tensor:
        return super().of_distance(head, distance, layer, dtype) * (layer + 1)


class Replaced(ALiBi):
    """Another function in the term of the parent."""

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Relative:
        term = super().bias(q, k, positions, layer)
        return replace(term, function=lambda head, distance: term.function(head, distance) * (layer + 1))


@pytest.mark.parametrize("cls", [Steeper, Replaced])
def test_a_subclass_may_have_another_bias_in_each_layer(cls: type[ALiBi]) -> None:
    encoding, shared = cls(2), places()
    for layer in range(3):
        assert torch.equal(attended(encoding, shared, layer), attended(encoding, places(), layer))


def test_an_attribute_that_is_set_later_counts() -> None:
    encoding, shared = Rotary(8), places()
    before = attended(encoding, shared)
    encoding.attention_factor = 2.0
    assert torch.equal(attended(encoding, shared), attended(encoding, places()))
    assert not torch.equal(attended(encoding, shared), before)


class LearnedAngles(Rotary):
    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim)
        self.factor = nn.Parameter(torch.ones(()))

    def cos_sin(
        self, ids: Tensor, dtype: torch.dtype, first: int | None = None, amplitude: Tensor | float = 1.0
    ) -> tuple[Tensor, Tensor]:
        angles = self.angles(ids) * self.factor
        return angles.cos().to(dtype), angles.sin().to(dtype)


def test_what_a_subclass_learns_gets_its_gradient_and_is_made_anew() -> None:
    encoding, shared = LearnedAngles(8), places()
    with torch.no_grad():
        before = attended(encoding, shared)
    attended(encoding, shared).square().sum().backward()
    assert encoding.factor.grad is not None
    assert encoding.factor.grad.abs() > 0
    with torch.no_grad():
        encoding.factor.mul_(2)
        assert torch.equal(attended(encoding, shared), attended(encoding, places()))
        assert not torch.equal(attended(encoding, shared), before)
