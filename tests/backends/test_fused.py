"""The fused operator against the reference, forward and backward, in tiles small enough that there are many."""

import math
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest
import torch

from posenc import ALiBi, Encoding, InputError, Positions, Shaw, create, explain
from posenc.attention import Call, attention, prepare
from posenc.backends import fused, sdpa
from posenc.backends.fused import attend, lower, unsupported
from posenc.bias import Dense, Factored, KeyRelative, QueryRelative, Relative, Values, terms
from posenc.lab import machine
from posenc.positions.visibility import Region

B, H, D = 2, 4, 6


@pytest.fixture(autouse=True)
def _none_is_short(monkeypatch):
    monkeypatch.setattr(sdpa, "SHORT", 0)


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

    given = None
    """A bias in their place"""

    def __init__(self, kinds: str, queries: int, keys: int, groups: int = 1) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(1)

        def draw(*shape):
            return torch.nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=g) / 2)

        self.kinds, self.groups = kinds.split(), groups
        self.curve, self.of_query, self.of_key, self.of_value = draw(H, 7), draw(1, 7, D), draw(H, 7, D), draw(1, 7, 5)
        self.every = draw(H, 64, D)
        self.left, self.right, self.any = draw(1, H, queries, 4), draw(B, 1, keys, 4), draw(1, H, queries, keys)

    @staticmethod
    def row(distance):
        return (distance.clamp(-3, 3) + 3).long()

    def bias(self, q, k, positions, layer=0):
        if self.given is not None:
            return self.given(q, k, positions)
        shortest, longest = positions.span or (0, 0)
        every = self.every[:, : longest - shortest + 1]
        found = {
            "relative": Relative(lambda head, distance: self.curve[head, self.row(distance)], H, positions),
            "other": Relative(lambda head, distance: -0.3 * distance.abs() * (head + 1), H, positions),
            "query": QueryRelative(q, self.of_query, self.row, positions),
            "direct": QueryRelative(q, every, lambda distance: longest - distance, positions),
            "key": KeyRelative(k.repeat_interleave(self.groups, 1), self.of_key, self.row, positions),
            "factored": Factored(self.left, self.right),
            "narrow": Factored(self.left[..., :3], self.right[..., :3]),
            "dense": Dense(self.any),
        }
        return [found[kind] for kind in self.kinds if kind in found]

    def values(self, positions, layer=0):
        return Values(self.of_value, self.row) if "values" in self.kinds else None


KINDS = ["relative", "relative other", "query", "direct", "key", "factored", "dense", "relative query", "key direct",
         "relative factored values", "query values", "narrow", "narrow relative", "relative query key factored dense values", "none"]  # fmt: skip


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(fused, "ROWS", 3)
    monkeypatch.setattr(fused, "MANY", 5)
    monkeypatch.setattr(fused, "COLUMNS", 4)
    monkeypatch.setattr(terms, "SHORTEST_RUN", 2)


def inputs(queries, keys, kv_heads, width=5):
    g = torch.Generator().manual_seed(0)
    shapes = (B, H, queries, D), (B, kv_heads, keys, D), (B, kv_heads, keys, width)
    return [torch.randn(s, dtype=torch.float64, generator=g).requires_grad_() for s in shapes]


def compared(layout, kinds, kv_heads, sink=None):
    """The operator's output and gradients are the reference's."""
    queries, keys, make = LAYOUTS[layout]
    leaves = inputs(queries, keys, kv_heads)
    encoding = Terms(kinds, queries, keys, H // kv_heads)
    logits = None if sink is None else torch.linspace(-1, 1, H, dtype=torch.float64, requires_grad=True)
    wanted = [*leaves, *encoding.parameters(), *([] if logits is None else [logits])]
    assert unsupported(prepare(Call(*leaves, encoding, make(), sink=logits))) is None, "it is the operator"
    out, expected = (attention(*leaves, encoding, make(), sink=logits, backend=name) for name in ("sdpa", "reference"))
    assert torch.allclose(out, expected, atol=1e-12)
    upstream = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    grads = (torch.autograd.grad(each, wanted, upstream, allow_unused=True) for each in (out, expected))
    for grad, other in zip(*grads, strict=True):
        assert (grad is None) == (other is None)
        assert grad is None or torch.allclose(grad, other, atol=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kinds", KINDS)
def test_outputs_and_gradients(kinds, layout):
    compared(layout, kinds, H)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("kinds", ["none", "relative", "query key", "relative factored values"])
@pytest.mark.parametrize("layout", ["bidirectional", "causal", "packed", "left padded, cached"])
def test_grouped_queries_and_sinks(layout, kinds, kv_heads):
    compared(layout, kinds, kv_heads, sink=True)


@pytest.mark.parametrize("width", [3, 9])
def test_values_narrower_and_wider_than_keys_and_half_precision(width):
    q, k, v = inputs(13, 13, H, width)
    encoding = Terms("relative query", 13, 13)
    p = Positions.arange(13, causal=True)
    wanted = [q, k, v, encoding.curve]
    grads = [
        torch.autograd.grad(attention(q, k, v, encoding, p, backend=name).square().sum(), wanted)
        for name in ("sdpa", "reference")
    ]
    for grad, other in zip(*grads, strict=True):
        assert torch.allclose(grad, other, atol=1e-11)
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)):
        half = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        found = torch.autograd.grad(attention(*half, encoding, p).float().square().sum(), [*half, encoding.curve])
        for grad, other in zip(found, grads[1], strict=True):
            assert (grad.double() - other).abs().max() < bound * max(1, other.abs().max()), dtype


@pytest.mark.parametrize("kinds", ["none", "relative key", "relative factored values"])
@pytest.mark.parametrize("layout", ["bidirectional", "causal", "left padded", "packed"])
def test_dropout_drops_the_same_weights_forward_and_backward(layout, kinds):
    queries, keys, make = LAYOUTS[layout]
    leaves, encoding, p = inputs(queries, keys, 2), Terms(kinds, queries, keys, 2), make()

    def run(*_):
        torch.manual_seed(3)
        return attention(*leaves, encoding, p, dropout_p=0.4)

    assert not torch.allclose(run(), attention(*leaves, encoding, p))
    used = [x for x in encoding.parameters() if torch.autograd.grad(run().sum(), x, allow_unused=True)[0] is not None]
    assert torch.autograd.gradcheck(run, (*leaves, *used), fast_mode=True)


def test_dropout_keeps_the_mean_and_follows_the_seed():
    q, k, v = inputs(6, 6, H)
    encoding, p = Terms("relative", 6, 6), Positions.arange(6, causal=True)
    torch.manual_seed(0)
    drawn = torch.stack([attention(q, k, v, encoding, p, dropout_p=0.5) for _ in range(3000)]).detach()
    assert (drawn.mean(0) - attention(q, k, v, encoding, p)).abs().max() < 0.15
    assert not torch.equal(drawn[0], drawn[1])
    again = [torch.manual_seed(7) and attention(q, k, v, encoding, p, dropout_p=0.5) for _ in range(2)]
    assert torch.equal(*again)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Positions.cross(Positions.arange(4, offset=100), Positions.from_mask([[1, 1, 1, 1, 1, 0], [1] * 6])),
        lambda: Positions.cross(Positions.arange(4, offset=100), Positions.arange(6)).with_causal(True),
        lambda: Positions.cross(Positions.arange(4), Positions.arange(6)).with_causal(True),
    ],
    ids=["against padding", "far ahead", "causal"],
)
@pytest.mark.parametrize("kinds", ["none", "factored", "factored dense"])
def test_queries_far_from_their_keys_lose_none(kinds, make):
    q, k, v = inputs(4, 6, H)
    encoding = Terms(kinds, 4, 6)
    found, expected = (attention(q, k, v, encoding, make(), backend=name) for name in ("sdpa", "reference"))
    assert found.abs().max() > 0.1
    assert torch.allclose(found, expected, atol=1e-12)


def test_what_is_not_a_number_stays_in_its_row():
    q, k, v = (torch.randn(2, 2, 600, 8) for _ in range(3))
    p, encoding = Positions.arange(600, causal=True), ALiBi(2)
    clean = attention(q, k, v, encoding, p)
    q[1, 0, 300] = torch.nan
    found = attention(q, k, v, encoding, p)
    assert torch.allclose(found[0], clean[0], atol=1e-6)
    assert found.isnan().any(-1).sum() == 1
    far = Terms("none", 600, 600)
    far.given = lambda q, k, p: Relative(
        lambda head, d: torch.where(d > 500, torch.nan, -5.0 * d.abs() * (head + 1)), 2, p
    )
    assert attention(k, k, v, far, p).isnan().any(-1).sum() == 2 * 2 * 99, "rows 501 to 599 of every head"
    few = partial(attention, q[:, :, -9:], k[:, :, -9:], v[:, :, -9:], Shaw(8, num_heads=2), backend="reference")
    clean = few(causal=True)
    for number in (torch.nan, torch.inf):
        k[:, :, -1] = number
        assert torch.allclose(few(causal=True)[:, :, :-1], clean[:, :, :-1], atol=1e-6)


@pytest.mark.parametrize("kinds", ["none", "relative", "query values"])
def test_nothing_visible_and_no_rows_at_all(kinds):
    q, k, v = inputs(5, 5, H)
    for p in (Positions.from_mask([[0] * 5]), Positions.packed(document_ids=torch.full((5,), -1))):
        out = attention(q, k, v, Terms(kinds, 5, 5), p)
        assert not out.any()
        assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), (q, k, v)))
    none = [x.detach()[:0] for x in (q, k, v)]
    assert attention(*none, Terms(kinds, 5, 5), Positions.arange(5)).shape == (0, H, 5, 5)


def test_only_scores_of_minus_infinity_give_zeros_in_every_backend():
    q, k, v = inputs(5, 5, H)
    hidden = Terms("none", 5, 5)
    hidden.given = lambda q, k, p: Relative(lambda head, d: torch.where(d == 0, -torch.inf, 0.0) + 0.0 * head, H, p)
    p = Positions.arange(5, causal=True)
    for backend in ("sdpa", "reference"):
        out = attention(q, k, v, hidden, p, backend=backend)
        assert not out[:, :, 0].any()
        assert out[:, :, 1:].isfinite().all()


@pytest.mark.parametrize("scale", [0.0, -0.7])
@pytest.mark.parametrize("layout", ["bidirectional", "causal", "packed", "left padded, cached"])
def test_a_scale_that_is_not_positive(layout, scale):
    queries, keys, make = LAYOUTS[layout]
    q, k, v = inputs(queries, keys, H)
    for kinds in ("none", "relative"):
        encoding = Terms(kinds, queries, keys)
        found, expected = (
            attention(q, k, v, encoding, make(), scale=scale, backend=name) for name in ("sdpa", "reference")
        )
        assert torch.allclose(found, expected, atol=1e-12)


def test_backward_inside_autocast_is_as_precise_as_outside():
    leaves = [x.detach().float().requires_grad_() for x in inputs(13, 13, H)]
    encoding, p = Terms("query factored values", 13, 13).float(), Positions.arange(13)
    outside = torch.autograd.grad(attention(*leaves, encoding, p).square().sum(), leaves)
    with torch.autocast("cpu"):
        inside = torch.autograd.grad(attention(*leaves, encoding, p).square().sum(), leaves)
    for grad, other in zip(inside, outside, strict=True):
        assert torch.equal(grad, other)


def test_forward_mode_is_right_and_second_derivatives_are_refused():
    q, k, v = (x.detach() for x in inputs(5, 5, H))
    p, encoding = Positions.arange(5, causal=True), ALiBi(H)

    def tangent(backend):
        run = partial(attention, k=k, v=v, encoding=encoding, positions=p, backend=backend)
        return torch.func.jvp(run, (q,), (torch.ones_like(q),))[1]

    assert torch.allclose(tangent("auto"), tangent("reference"), atol=1e-12)
    q.requires_grad_()
    (grad,) = torch.autograd.grad(attention(q, k, v, encoding, p).square().sum(), q, create_graph=True)
    with pytest.raises(InputError, match=r"second derivatives .* pass backend='reference'"):
        torch.autograd.grad(grad.sum(), q)


def test_the_private_operators_are_there():
    """A release of PyTorch may drop them; attention then takes public operations, which are slower."""
    for name in ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"):
        assert hasattr(torch.ops.aten, name), (
            f"torch {torch.__version__} has no aten::{name}: find what replaced it (fused.py)"
        )
    assert fused._flash is not None
    assert fused._flash_backward is not None


@pytest.mark.parametrize("kinds", ["none", "relative", "query", "relative factored values"])
@pytest.mark.parametrize("layout", ["causal", "cached", "packed", "left padded"])
def test_without_the_private_operators_it_is_the_same(kinds, layout, monkeypatch):
    monkeypatch.setattr(fused, "_flash", None)
    monkeypatch.setattr(fused, "_flash_backward", None)
    compared(layout, kinds, 2)


def test_one_head_may_serve_all():
    q, k, v = inputs(5, 5, H)
    shared = Terms("none", 5, 5)
    shared.given = lambda q, k, p: [
        Relative(lambda head, d: -0.3 * d.abs() + 0.0 * head, 1, p),
        QueryRelative(q[:, :1], shared.of_query, shared.row, p),
    ]
    found, expected = (attention(q, k, v, shared, Positions.arange(5), backend=b) for b in ("sdpa", "reference"))
    assert torch.allclose(found, expected, atol=1e-12)


def visited(one: fused.Call) -> int:
    """The number of scores that the flash kernel computes in a row of the batch."""
    blocks = fused._flash_blocks(one)
    return sum(math.prod(x.stop - x.start for x in (*block.queries[1:], block.keys[2])) for block in blocks)


def call_of(encoding, p, *leaves):
    problem = prepare(Call(*leaves, encoding, p))
    assert unsupported(problem) is None
    lowered = lower(problem)
    vector = [terms.VectorTerm(lowered.tensors[0])]
    return fused.Call(*leaves, vector, lowered.segments, p.causal, problem.scale, lowered.longest, 0.0, 0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [0.1, 1.0, 3.0])
def test_keys_of_no_weight_are_not_visited_and_nothing_is_lost(size, causal, monkeypatch):
    monkeypatch.setattr(fused, "ROWS", 16)
    n, heads = 600, 8
    g = torch.Generator().manual_seed(0)
    leaves = [(size * torch.randn(1, heads, n, 16, generator=g)).requires_grad_() for _ in range(3)]
    p, encoding = Positions.arange(n, causal=causal), ALiBi(heads)
    results = []
    for limit in (fused.NEGLIGIBLE, float("inf")):
        monkeypatch.setattr(fused, "NEGLIGIBLE", limit)
        out = attention(*leaves, encoding, p)
        results.append((visited(call_of(encoding, p, *leaves)), out, torch.autograd.grad(out.square().sum(), leaves)))
    (few, out, grads), (many, expected, expected_grads) = results
    assert few < many
    assert (out - expected).abs().max() < 1e-6 * max(1, float(expected.detach().abs().max()))
    for grad, other in zip(grads, expected_grads, strict=True):
        assert (grad - other).abs().max() < 1e-5 * max(1, float(other.abs().max()))


def test_all_scores_of_a_bias_that_grows_with_the_distance_are_visited():
    q, k, v = (x.float() for x in inputs(13, 13, H))
    far = Terms("none", 13, 13)
    far.given = lambda q, k, p: Relative(lambda head, distance: 30.0 * distance.abs() * (head + 1), H, p)
    p = Positions.arange(13)
    assert visited(call_of(far, p, q, k, v)) == H * 13 * 13
    out = attention(q.double(), k.double(), v.double(), far, p, backend="reference")
    assert (attention(q, k, v, far, p) - out).abs().max() < 1e-4, "scores near 1500, 2^-13 apart in float32"


def test_only_the_tokens_of_a_row_or_document_are_visited():
    p = Positions.packed([2, 7, 4], causal=True)
    leaves = inputs(13, 13, H)
    cells = [r * c for r, c in [(2, 2), (3, 3), (3, 6), (1, 7), (3, 3), (1, 4)]]  # in blocks of 3 queries
    assert visited(call_of(Terms("relative", 13, 13), p, *leaves)) == H * sum(cells)


@pytest.mark.parametrize("causal", [True, False])
def test_large_scattered_positions_take_blocks_of_queries(causal, monkeypatch):
    q, k, v = inputs(13, 13, H)
    p = Positions.from_ids(
        torch.randperm(40, generator=torch.Generator().manual_seed(0))[:13], causal=causal, packed=False
    )
    slopes = torch.linspace(0.1, 1, H, dtype=torch.float64, requires_grad=True)
    encoding = Terms("none", 13, 13)
    encoding.given = lambda q, k, p: Relative(lambda head, d: -slopes[head] * d.abs(), H, p)
    wanted = [q, k, v, slopes]
    expected = attention(q, k, v, encoding, p, backend="reference")
    expected_grads = torch.autograd.grad(expected.square().sum(), wanted)
    monkeypatch.setattr(sdpa, "BLOCK_CELLS", B * H * 13 * 3)
    monkeypatch.setattr(sdpa, "LEAST_ROWS", 1)
    assert "queries at a time" in explain(q, k, v, encoding, p).reason
    out = attention(q, k, v, encoding, p)
    assert torch.allclose(out, expected, atol=1e-12)
    for grad, other in zip(torch.autograd.grad(out.square().sum(), wanted), expected_grads, strict=True):
        assert torch.allclose(grad, other, atol=1e-11)
    with torch.no_grad():
        assert torch.allclose(attention(q, k, v, encoding, p), expected, atol=1e-12)


@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("kinds", ["none", "relative query key factored values"])
def test_the_operators_keep_the_rules_of_pytorch(kinds, branches):
    q, k, v = (x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in inputs(5, 5, H))
    problem = prepare(Call(q, k, v, Terms(kinds, 5, 5), Positions.arange(5, causal=True)))
    assert unsupported(problem) is None
    lowered = lower(problem)
    tensors = [x.detach().requires_grad_(x.requires_grad) for x in lowered.tensors]
    regions = [Region(), Region(farthest=2), Region(nearest=2)][branches - 1 :][:branches]
    numbers = [
        1,
        0,
        lowered.longest,
        *(n for region in regions for n in (*region.numbers(), 0)),
        *lowered.segments.table,
    ]
    inputs_ = [*[q] * branches, *[k] * branches, v, *tensors]
    torch.library.opcheck(attend, (inputs_, " ".join([str(branches), *lowered.kinds]), numbers, problem.scale, 0.0))


@pytest.mark.parametrize(
    "name",
    [
        "rope", "alibi", "t5", "shaw", "xlnet", "tupe_r", "deberta_v2:shared=false", "sink", "rope+kerple",
        "rope@rerope:window=8+log_n:train_length=4", "rope@dual_chunk:chunk=6:local=2", ],
)  # fmt: skip
def test_one_graph_serves_every_length_and_one_every_step(name):
    encoding = create(name, dim=32, num_heads=H, head_dim=8, max_positions=128, causal=True)
    compiled = 0

    def backend(graph, example):
        nonlocal compiled
        compiled += 1
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True, dynamic=True)
    def attend_to(q, k, v):
        return attention(q, k, v, encoding, Positions.arange(q.shape[2], k.shape[2] - q.shape[2], causal=True))

    torch._dynamo.reset()
    with torch.no_grad():
        for queries, first in ((None, 33), (1, 40)):
            for number, n in enumerate((first, 64, 65, 128, 100)):
                q, k, v = torch.randn(3, 1, H, n, 8).unbind(0)
                q = q if queries is None else q[:, :, :queries]
                with torch._dynamo.config.patch(error_on_recompile=number > 0):
                    found = attend_to(q, k, v)
                where = Positions.arange(q.shape[2], n - q.shape[2], causal=True)
                assert torch.allclose(found, attention(q, k, v, encoding, where), atol=1e-5)
    assert compiled > 1
    torch._dynamo.reset()


def peak_of_a_step(name, dropout_p, n):
    """Bytes that a training step over n tokens takes, in a process where nothing else ran."""
    torch.set_num_threads(1)
    encoding = create(name, dim=64, num_heads=4, head_dim=16, max_positions=n, causal=True)

    def step(n):
        q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 4, n, 16).unbind(0))
        attention(q, k, v, encoding, causal=True, dropout_p=dropout_p).sum().backward()

    step(32)
    return machine.peak(lambda: step(n), torch.device("cpu"))


@pytest.mark.skipif(not machine.measurable(torch.device("cpu")), reason="this system does not count a process's peak")
@pytest.mark.parametrize(
    "name",
    [
        "t5", "alibi", "shaw", "xlnet", "tupe_r", "deberta_v2:shared=false", "rope", "rope@rerope:window=96",
        "rope@dual_chunk:chunk=96:local=16", ],
)  # fmt: skip
@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
def test_memory_grows_with_the_sequence_and_not_with_its_square(name, dropout_p):
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        small, large = processes.map(peak_of_a_step, [name] * 2, [dropout_p] * 2, (1500, 6000))
    dense = 4 * 6000**2 * 4
    assert large < dense / 2, "far from one matrix of scores, of which a dense pass holds several"
    assert large < 6 * small + 2**24, "four times the tokens, about four times the memory"


def test_the_same_positions_serve_with_and_without_causality():
    """Positions cache what is visible, for causal and other calls apart. Orders may differ from positions."""
    q, k, v = inputs(5, 5, H)
    n = torch.arange(5)[None]
    p = Positions(q=n, k=n, q_order=n + 1, k_order=n, valid=torch.ones(1, 5, dtype=torch.bool))
    for causal in (False, True, False):
        expected = attention(q, k, v, None, p, causal=causal, backend="reference")
        assert torch.allclose(attention(q, k, v, None, p, causal=causal), expected, atol=1e-12)
