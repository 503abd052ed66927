"""The fused operator against the reference, forward and backward, in tiles small enough that there are many."""

import pytest
import torch

from posenc import Encoding, Positions
from posenc.attention import _problem, attention
from posenc.backends import fused
from posenc.backends.lower import Lowered, lower
from posenc.bias import Dense, Factored, KeyRelative, QueryRelative, Relative, Values

B, H, D = 2, 4, 6

LAYOUTS = {
    "bidirectional": (13, 13, lambda: Positions.arange(13)),
    "causal": (13, 13, lambda: Positions.arange(13, causal=True)),
    "cached": (5, 13, lambda: Positions.arange(5, 8, causal=True)),
    "cached, bidirectional": (5, 13, lambda: Positions.arange(5, 8)),
    "ragged cache": (3, 11, lambda: Positions.arange(3, torch.tensor([8, 2]), causal=True)),
    "left padded": (9, 9, lambda: Positions.from_mask(torch.tensor([[0] * 4 + [1] * 5, [1] * 9]), causal=True)),
    "right padded": (9, 9, lambda: Positions.from_mask(torch.tensor([[1] * 4 + [0] * 5, [1] * 9]))),
    "left padded, cached": (3, 9, lambda: Positions.from_mask(torch.tensor([[0] * 7 + [1] * 2, [1] * 9]), 3, causal=True)),
    "packed": (13, 13, lambda: Positions.packed([2, 7, 4], causal=True)),
    "packed, bidirectional, rows differ": (
        8, 8, lambda: Positions.packed(document_ids=torch.tensor([[0, 0, 0, 1, 1, -1, -1, -1], [5, 2, 2, 2, 2, 2, 7, 7]]))
    ),
}  # fmt: skip


class Terms(Encoding):
    """Any of the structures, with tables drawn at random."""

    def __init__(self, kinds: str, queries: int, keys: int, groups: int = 1) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(1)

        def draw(*shape):
            return torch.nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=g) / 2)

        self.kinds, self.groups = kinds.split(), groups
        self.curve, self.of_query, self.of_key, self.of_value = draw(H, 7), draw(1, 7, D), draw(H, 7, D), draw(1, 7, 5)
        self.every = draw(H, 64, D)
        self.left, self.right, self.any = draw(1, H, queries, 3), draw(B, 1, keys, 3), draw(1, H, queries, keys)

    @staticmethod
    def row(distance):
        return (distance.clamp(-3, 3) + 3).long()

    def bias(self, q, k, positions, layer=0):
        shortest, longest = positions.span
        every = self.every[:, : longest - shortest + 1]
        found = {
            "relative": Relative(lambda head, distance: self.curve[head, self.row(distance)], H, positions),
            "other": Relative(lambda head, distance: -0.3 * distance.abs() * (head + 1), H, positions),
            "query": QueryRelative(q, self.of_query, self.row, positions),
            "direct": QueryRelative(q, every, lambda distance: longest - distance, positions),
            "key": KeyRelative(k.repeat_interleave(self.groups, 1), self.of_key, self.row, positions),
            "factored": Factored(self.left, self.right),
            "dense": Dense(self.any),
        }
        return [found[kind] for kind in self.kinds if kind in found]

    def values(self, positions, layer=0):
        return Values(self.of_value, self.row) if "values" in self.kinds else None


KINDS = ["relative", "relative other", "query", "direct", "key", "factored", "dense", "relative query", "key direct",
         "relative factored values", "query values", "relative query key factored dense values", "none"]  # fmt: skip


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(fused, "ROWS", 3)
    monkeypatch.setattr(fused, "COLUMNS", 4)


def inputs(queries, keys, kv_heads, width=5):
    g = torch.Generator().manual_seed(0)
    shapes = (B, H, queries, D), (B, kv_heads, keys, D), (B, kv_heads, keys, width)
    return [torch.randn(s, dtype=torch.float64, generator=g).requires_grad_() for s in shapes]


def both(layout, kinds, kv_heads, sink=None, dtype=torch.float64):
    queries, keys, make = LAYOUTS[layout]
    leaves = inputs(queries, keys, kv_heads)
    encoding = Terms(kinds, queries, keys, H // kv_heads)
    logits = None if sink is None else torch.linspace(-1, 1, H, dtype=torch.float64, requires_grad=True)
    wanted = [*leaves, *encoding.parameters(), *([] if logits is None else [logits])]
    results = []
    for backend in ("sdpa", "reference"):
        p = make()
        if backend == "sdpa":
            assert isinstance(lower(_problem(*leaves, encoding, p, None, None, logits, 0.0, 0)), Lowered), (
                "it is the operator"
            )
        q, k, v = (x.to(dtype) for x in leaves)
        out = attention(q, k, v, encoding, p, sink=logits, backend=backend)
        g = torch.Generator().manual_seed(2)
        grads = torch.autograd.grad(
            out, wanted, torch.randn(out.shape, dtype=torch.float64, generator=g).to(dtype), allow_unused=True
        )
        results.append((out, grads))
    return results


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kinds", KINDS)
def test_outputs_and_gradients(kinds, layout):
    (out, grads), (expected, expected_grads) = both(layout, kinds, H)
    assert torch.allclose(out, expected, atol=1e-12)
    for grad, other in zip(grads, expected_grads, strict=True):
        assert (grad is None) == (other is None)
        assert grad is None or torch.allclose(grad, other, atol=1e-11)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("kinds", ["none", "relative", "query key", "relative factored values"])
@pytest.mark.parametrize("layout", ["bidirectional", "causal", "packed", "left padded, cached"])
def test_grouped_queries_and_sinks(layout, kinds, kv_heads):
    (out, grads), (expected, expected_grads) = both(layout, kinds, kv_heads, sink=True)
    assert torch.allclose(out, expected, atol=1e-12)
    for grad, other in zip(grads, expected_grads, strict=True):
        assert grad is None or torch.allclose(grad, other, atol=1e-11)
