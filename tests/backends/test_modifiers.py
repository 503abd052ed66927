# SPDX-License-Identifier: Apache-2.0
"""Functions of the scores (`Encoding.modify`) against the formula, in every backend and layout, with gradients."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import posenc
from posenc import Encoding, InputError, PerLayer, Positions, attention, create, explain
from posenc.bias import Modifier, SoftCap
from posenc.conformance import check
from posenc.positions.visibility import rowwise
from test_attention import LAYOUTS, D, H, tensors


@dataclass(eq=False, repr=False)
class Capped(Encoding):
    """Scores below a cap."""

    cap: float = 0.7
    shift_invariant = True
    sees_order = False

    def modify(self, positions, layer=0):
        return SoftCap(self.cap)


@dataclass(eq=False, repr=False)
class Bent(Encoding):
    """A learned function of score, head and indices."""

    num_heads: int
    shift_invariant = True

    def setup(self):
        self.power = nn.Parameter(torch.linspace(0.5, 1.5, self.num_heads, dtype=torch.float64))

    def modify(self, positions, layer=0):
        positions.require_one_axis("Bent")
        q, k = rowwise(positions.q), rowwise(positions.k)

        def bend(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return self.power.to(score.dtype)[h] * score.sinh() + 0.1 * (q(b, i) - k(b, j))

        return Modifier(bend)


def made():
    """Name -> (what acts before the functions or None, the functions' encodings)."""
    biased = create("rope+t5+shaw:clip=2:terms=keys+softmax_n:n=0.5", dim=H * D, num_heads=H, head_dim=D, causal=True)
    g = torch.Generator().manual_seed(3)
    for parameter in biased.double().parameters():
        nn.init.normal_(parameter, generator=g)
    return {
        "cap": (None, [Capped()]),
        "two caps, biases, sink": (biased, [Capped(2.0), Capped()]),
        "function": (None, [Bent(H)]),
        "function, cap, biases, sink": (biased, [Bent(H), Capped()]),
    }


CASES = made()


def expected(case, q, k, v, positions, softcap=None):
    """The equation, with dense tensors."""
    plain, functions = CASES[case]
    plain, visible, groups = plain or posenc.NoPE(), positions.mask(), q.shape[1] // k.shape[1]
    turned = plain.rotate(q, k, positions)
    scores = turned[0] @ turned[1].repeat_interleave(groups, 1).mT * plain.scale(D)
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    for term in plain.bias(q, k, positions) or []:
        scores = scores + term.dense(q.device)
    grid = [torch.arange(n).view([-1 if at == d else 1 for at in range(4)]) for d, n in enumerate(scores.shape)]
    for encoding in functions:
        change = encoding.modify(positions)
        scores = (
            change.function(scores, *grid) if isinstance(encoding, Bent) else change.cap * (scores / change.cap).tanh()
        )
    weights = scores.exp().masked_fill(~visible, 0.0)
    total = weights.sum(-1, keepdim=True) + (0.0 if plain.sink() is None else math.exp(plain.sink()))
    return weights / total.masked_fill(total == 0, 1.0) @ v.repeat_interleave(groups, 1)


def summed(case):
    plain, functions = CASES[case]
    parts = [*([] if plain is None else [plain]), *functions]
    return parts[0] if len(parts) == 1 else posenc.Sum(*parts)


@pytest.mark.parametrize(
    ("backend", "layout"),
    [
        (backend, layout)
        for backend in ("reference", "auto")
        for layout in LAYOUTS
        if layout not in ("fractional", "cross, keys padded")
    ]
    + [("flex", "causal"), ("flex", "left padded")],
)
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients(case, layout, backend, tiles):
    queries, keys, make = LAYOUTS[layout]
    encoding, kv_heads = summed(case), H if layout == "causal" else 2
    given = [x.requires_grad_(backend != "flex") for x in tensors(queries, keys, kv_heads)]
    with torch.set_grad_enabled(backend != "flex"):
        out, want = attention(*given, encoding, make(), backend=backend), expected(case, *given, make())
    assert torch.allclose(out, want, atol=1e-11)
    if backend != "flex":
        upstream = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(5))
        leaves = [*given, *encoding.parameters()]
        grads = [torch.autograd.grad(x, leaves, upstream, allow_unused=True) for x in (out, want)]
        for grad, other in zip(*grads, strict=True):
            assert (grad is None) == (other is None)
            assert grad is None or torch.allclose(grad, other, atol=1e-10)


@pytest.mark.parametrize("backend", ["reference", "auto", "flex"])
@pytest.mark.parametrize("layout", ["causal", "one new token", "left padded"])
@pytest.mark.parametrize("case", CASES)
def test_a_cap_before_biases(case, layout, backend, tiles):
    """softcap= caps the products alone, then come biases, then the functions of `modify`: another order, other numbers."""
    queries, keys, make = LAYOUTS[layout]
    encoding = summed(case)
    given = [x.requires_grad_(backend != "flex") for x in tensors(queries, keys, 2)]
    with torch.set_grad_enabled(backend != "flex"):
        out = attention(*given, encoding, make(), softcap=0.4, backend=backend)
        want = expected(case, *given, make(), softcap=0.4)
    assert torch.allclose(out, want, atol=1e-11)
    if backend != "flex":
        leaves = [*given, *encoding.parameters()]
        grads = [torch.autograd.grad(x.square().sum(), leaves, allow_unused=True) for x in (out, want)]
        for grad, other in zip(*grads, strict=True):
            assert grad is other is None or torch.allclose(grad, other, atol=1e-10)


def test_a_cap_without_biases_is_softcap_as_a_function():
    q, k, v = tensors(9, 9)
    p = Positions.arange(9, causal=True)
    for plain in (posenc.Rotary(D), create("rope@rerope:window=3", head_dim=D)):
        assert torch.equal(attention(q, k, v, plain, p, softcap=0.7), attention(q, k, v, plain + Capped(), p))
    assert explain(q, k, v, None, p, softcap=0.7).faster == ""
    biased = posenc.Rotary(D) + posenc.ALiBi(H)
    other = attention(q, k, v, biased + Capped(), p)
    assert (attention(q, k, v, biased, p, softcap=0.7) - other).abs().max() > 1e-3


def test_prefix_and_cache_and_scores_of_an_encoding_are_capped():
    q, k, v = tensors(5, 5)
    p = Positions.arange(5, causal=True)
    plain, cap = create("prefix_kv:length=2", num_heads=H, head_dim=D).double(), 0.3
    keys, values = (x[None].expand(2, -1, -1, -1) for x in plain.prefix_kv())
    products = q @ torch.cat((keys, k), 2).mT * D**-0.5
    scores = (cap * (products / cap).tanh()).masked_fill(torch.ones(5, 7).triu(3) > 0, -torch.inf)
    assert torch.allclose(attention(q, k, v, plain, p, softcap=cap), scores.softmax(-1) @ torch.cat((values, v), 2))
    cache, steps = posenc.KVCache(), []
    encoding = posenc.Rotary(D) + posenc.ALiBi(H)
    for n in range(5):
        now = (x[:, :, n : n + 1] for x in (q, k, v))
        steps.append(attention(*now, encoding, cache.positions(1), cache=cache, softcap=cap))
    assert torch.allclose(torch.cat(steps, 2), attention(q, k, v, encoding, p, softcap=cap), atol=1e-12)


@pytest.mark.parametrize("cap", [0.0, -1.0, float("inf"), float("nan"), "50", True])
def test_softcap_is_a_positive_number(cap):
    with pytest.raises(InputError, match=r"^softcap="):
        attention(*tensors(5, 5), softcap=cap)
    if cap is not True:
        with pytest.raises(InputError, match="cap"):
            SoftCap(cap)


def test_gradients_through_flex(monkeypatch):
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    monkeypatch.setattr("posenc.backends.flex.trains", lambda problem: False)
    given = [x.requires_grad_() for x in tensors(5, 5)]
    for case in CASES:
        leaves = [*given, *summed(case).parameters()]
        outs = [
            attention(*given, summed(case), Positions.arange(5, causal=True), backend=b) for b in ("flex", "reference")
        ]
        grads = [torch.autograd.grad(out.square().sum(), leaves, allow_unused=True) for out in outs]
        for grad, other in zip(*grads, strict=True):
            assert grad is other is None or torch.allclose(grad, other, atol=1e-11)


def test_dropout_of_capped_scores_is_redrawn():
    q, k, v = (x.requires_grad_() for x in tensors(5, 5))
    torch.manual_seed(0)
    out = attention(q, k, v, Capped(), Positions.arange(5, causal=True), dropout_p=0.4)
    (grad,) = torch.autograd.grad(out.sum(), v)
    assert torch.allclose((grad * v).sum(), out.sum())


def test_what_a_mask_hides_stays_hidden():
    """Under a cap, minus infinity would be a score like others."""
    q, k, v = tensors(5, 5)
    for lowest in (-torch.inf, torch.finfo(torch.float32).min):
        hidden = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
        hidden[..., 3:] = lowest
        mask = type(
            "Mask", (Encoding,), {"bias": lambda s, q, k, p, layer=0, hidden=hidden: posenc.bias.Dense(hidden)}
        )()
        for backend in ("reference", "auto", "flex"):
            out = attention(q, k, v, mask + Capped(), backend=backend)
            assert torch.allclose(out, attention(q, k[:, :, :3], v[:, :, :3], Capped(), Positions.cross(
                Positions.arange(5), Positions.arange(3))), atol=1e-12)  # fmt: skip


def test_a_position_map_and_layers():
    q, k, v = tensors(9, 9)
    mapped = create("rope@rerope:window=3", head_dim=D)
    p = Positions.arange(9, causal=True)
    for encoding in (mapped + Capped(), mapped + Bent(H)):
        outs = [attention(q, k, v, encoding, p, backend=name) for name in ("auto", "reference", "flex")]
        assert torch.allclose(outs[0], outs[1], atol=1e-12)
        assert torch.allclose(outs[2], outs[1], atol=1e-12)
    layers = PerLayer(Capped(), posenc.NoPE())
    assert torch.equal(attention(q, k, v, layers, p, layer=0), attention(q, k, v, Capped(), p))
    assert torch.equal(attention(q, k, v, layers, p, layer=1), attention(q, k, v, None, p))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda c: posenc.Rotary(c.width) + Capped(), marks=pytest.mark.slow, id="cap"),
        pytest.param(lambda c: Bent(c.num_heads), id="function"),
    ],
)
def test_conformance(make):
    report = check(make, slow=False)
    assert report.passed, str(report)


def test_compiled():
    q, k, v = (x.float() for x in tensors(5, 5))
    for encoding in (Capped(), Bent(H)):
        run = torch.compile(lambda *x: attention(*x, encoding, causal=True), backend="eager", fullgraph=True)  # noqa: B023
        assert torch.allclose(run(q, k, v), attention(q, k, v, encoding, causal=True), atol=1e-6)


def test_what_explain_says():
    q, k, v = (x.float() for x in tensors(64, 64))
    capped = explain(q, k, v, Capped(), causal=True)
    assert (capped.backend, capped.faster) == ("sdpa", "")
    assert "only as a function" in explain(q, k, v, Bent(H), causal=True, backend="sdpa").reason


def test_compiled_for_the_cpu_by_flex():
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, H, 130, 16, generator=g) for _ in range(3))
    p = Positions.arange(130, causal=True)
    encoding = posenc.ALiBi(H) + Capped()
    with torch.no_grad():
        want = attention(q.double(), k.double(), v.double(), encoding, p, backend="reference")
        assert (attention(q, k, v, encoding, p, backend="flex") - want).abs().max() < 1e-5


@pytest.mark.parametrize("returned", [0.5, torch.ones(2), [SoftCap(1.0), 3]])
def test_what_modify_returns_is_validated(returned):
    mine = type("Mine", (Encoding,), {"modify": lambda self, positions, layer=0: returned})()
    with pytest.raises(InputError, match=r"Mine.modify returned .*SoftCap"):
        attention(*tensors(5, 5), posenc.NoPE() + mine)
