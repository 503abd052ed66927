# SPDX-License-Identifier: Apache-2.0
"""What encodings remember at positions never outlives a fact that it follows from."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenc import ENCODINGS, ALiBi, Encoding, Positions, Rotary, attention, create
from posenc.bias import Relative, dense_sum
from posenc.conformance.fixtures import DECODER, attention_inputs
from posenc.encoding import gates_of
from test_every_encoding import of_layers


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


def shared_with(name: str, num_layers: int) -> Encoding:
    """An encoding for three layers, of which num_layers differ, with projections of a model."""
    encoding = of_layers(name, num_layers)
    width, of_keys = DECODER.num_heads * DECODER.width, DECODER.kv_heads * DECODER.width
    encoding.share([(nn.Linear(DECODER.dim, width), nn.Linear(DECODER.dim, of_keys)) for _ in range(3)])
    return encoding


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("name", ENCODINGS)
def test_what_changes_in_data_alone_counts_for_a_call_without_gradients(name: str, num_layers: int) -> None:
    """A write to `.data` changes no version."""
    encoding, shared = shared_with(name, num_layers), Positions.arange(7, causal=True)
    q, k, v, x = attention_inputs(DECODER, shared)
    for size in (0.0, 0.25):
        for parameter in encoding.parameters():
            parameter.data += size * torch.rand_like(parameter)
        for layer in range(num_layers):
            results = []
            for positions in (shared, shared, Positions.arange(7, causal=True)):
                with torch.no_grad():
                    gates = gates_of(encoding, x, layer)
                    results.append(attention(q, k, v, encoding, positions, layer=layer, gates=gates or None))
            for got in results[:2]:
                torch.testing.assert_close(got, results[2], rtol=1e-5, atol=1e-6)


def test_a_part_of_a_sum_may_change_beside_a_large_table() -> None:
    encoding = create("t5+learned:max_positions=4096", dim=16, num_heads=2)
    shared = places()
    with torch.no_grad():
        before = attended(encoding, shared)
        for parameter in encoding.parameters():
            parameter.data += torch.rand_like(parameter)
        after = attended(encoding, shared)
        torch.testing.assert_close(after, attended(encoding, places()))
        assert not torch.allclose(before, after)


@pytest.mark.parametrize("name", [name for name, cls in ENCODINGS.items() if "bias" in cls._overridden()])
def test_a_bias_is_constant_if_it_depends_on_positions_and_parameters_alone(name: str) -> None:
    encoding, positions = shared_with(name, 3), Positions.arange(7, causal=True)
    q, k, _, x = attention_inputs(DECODER, positions)
    terms = []
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(torch.rand_like(parameter))
        for queries, keys, features in ((q, k, x), (q.flip(2), k, x), (q, k.flip(2), x), (q, k, x.flip(1))):
            at = positions.with_gates(gates_of(encoding, features))
            terms.append(dense_sum(encoding.effects(at).terms(queries, keys), q.device))
    if terms[0] is None:
        assert name == "window"  # which has one width for all heads here
    else:
        assert type(encoding).constant == all(torch.equal(terms[0], other) for other in terms[1:])


CHANGED = [
    (name, method, arguments)
    for name, cls in ENCODINGS.items()
    for method, arguments in {"resized": ((3, 5), {}), "with_schedule": (("linear",), {"factor": 2.0})}.items()
    if hasattr(cls, method)
]


@pytest.mark.parametrize(
    ("name", "method", "arguments"), CHANGED, ids=[f"{name} {method}" for name, method, _ in CHANGED]
)
def test_a_changed_copy_is_as_its_original_in_all_else(name: str, method: str, arguments: Any) -> None:
    encoding = of_layers(name, 2).bfloat16().eval().requires_grad_(False)
    given, options = arguments
    other = getattr(encoding, method)(*given, **options)
    assert type(other) is type(encoding)
    assert not other.training
    of_other = dict(other.named_parameters())
    for at, parameter in encoding.named_parameters():
        assert of_other[at].dtype == parameter.dtype
        assert not of_other[at].requires_grad
        assert of_other[at].data_ptr() != parameter.data_ptr()
        assert torch.equal(of_other[at], parameter) == (of_other[at].shape == parameter.shape)
