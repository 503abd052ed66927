"""bfloat16 and float16 by way of float32, as on a processor that has no instructions for them."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from posenc import Positions, attention, create, explain
from posenc.backends import precision, sdpa

HALVES = [torch.bfloat16, torch.float16]
N, H, D = 40, 4, 16


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(precision, "_measured", lambda dtype: True)


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(precision, "_measured", lambda dtype: False)


def encoding(name):
    return None if name == "plain" else create(name, num_heads=H, head_dim=D, dim=H * D, max_positions=N)


def inputs(dtype, queries=N, kv_heads=2):
    g = torch.Generator().manual_seed(0)
    shapes = (2, H, queries, D), (2, kv_heads, N, D), (2, kv_heads, N, D)
    return [torch.randn(shape, generator=g).to(dtype).requires_grad_() for shape in shapes]


def result(name, dtype, queries=N):
    leaves = inputs(dtype, queries)
    where = Positions.arange(queries, N - queries, causal=True)
    out = attention(*leaves, encoding(name), where)
    g = torch.Generator().manual_seed(1)
    grads = torch.autograd.grad(out, leaves, torch.randn(out.shape, generator=g).to(out.dtype))
    assert all(x.dtype == dtype for x in (out, *grads))
    return out, *grads


def errors(name, dtype, queries=N):
    torch.manual_seed(0)
    found = result(name, dtype, queries)
    torch.manual_seed(0)
    leaves = [x.detach().double().requires_grad_() for x in inputs(dtype, queries)]
    made = encoding(name)
    where = Positions.arange(queries, N - queries, causal=True)
    out = attention(*leaves, made if made is None else made.double(), where, backend="reference")
    g = torch.Generator().manual_seed(1)
    exact = out, *torch.autograd.grad(out, leaves, torch.randn(out.shape, generator=g).to(dtype).double())
    return [float((x - y).detach().abs().max()) for x, y in zip(found, exact, strict=True)]


@pytest.mark.parametrize("queries", [N, 1])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["plain", "alibi", "alibi+softmax_n", "shaw", "fire", "rope"])
def test_float32_is_no_less_accurate(name, dtype, queries, slow, monkeypatch):
    through = errors(name, dtype, queries)
    monkeypatch.setattr(precision, "_measured", lambda dtype: False)
    for error, other in zip(through, errors(name, dtype, queries), strict=True):
        assert error <= 1.01 * other + 2 * torch.finfo(dtype).eps


def test_branches_of_a_map_go_through_float32(slow):
    for dtype in HALVES:
        q, k, v = inputs(dtype, kv_heads=4)
        made, where = create("rope@rerope:window=8", head_dim=D), Positions.arange(N, causal=True)
        exact = attention(q.double(), k.double(), v.double(), made, where)
        out = attention(q, k, v, made, where)
        assert out.dtype == dtype
        assert (out - exact).abs().max() < 4 * torch.finfo(dtype).eps * exact.abs().max()


def test_explain_says_so_where_it_is_so(slow, monkeypatch):
    q, k, v = (x.detach() for x in inputs(torch.bfloat16))
    slowly = explain(q, k, v)
    assert slowly.reason.startswith("by way of float32, which this processor multiplies faster than bfloat16")
    assert "float32" not in explain(q.float(), k.float(), v.float()).reason
    monkeypatch.setattr(precision, "_measured", lambda dtype: False)
    assert "float32" not in explain(q, k, v).reason


def test_float32_and_float64_stay_as_they_are(slow):
    for dtype in (torch.float32, torch.float64):
        problem = sdpa.Problem(*inputs(dtype), [], None, Positions.arange(N), 1.0, None, 0.0)
        assert not sdpa._slow_in_half(problem)


class Attends(torch.nn.Module):
    def forward(self, x):
        return attention(x, x, x, causal=True)


@pytest.mark.parametrize("form", ["strict", "not strict", "compiled"])
def test_a_graph_takes_the_choice_as_a_constant(form, slow):
    x = inputs(torch.bfloat16)[1].detach()
    if form == "compiled":
        torch._dynamo.reset()
        run = torch.compile(Attends(), fullgraph=True, backend="eager")
    else:
        run = torch.export.export(Attends(), (x,), strict=form == "strict").module()
        assert any("float32" in part.code for part in run.modules() if isinstance(part, torch.fx.GraphModule))
    assert torch.equal(run(x), Attends()(x))


def test_what_is_measured_is_measured_outside_of_the_modes_of_the_caller():
    precision._measured.cache_clear()
    with FakeTensorMode(), torch.device("meta"):
        known = [precision.slower_than_float32(dtype) for dtype in HALVES]
    assert all(isinstance(one, bool) for one in known)
    assert not precision.slower_than_float32(torch.float32)
    assert precision._measured.cache_info().currsize == 2


@pytest.mark.parametrize(("times", "slower"), [(0.4, False), (1.3, False), (33.0, True)])
@pytest.mark.parametrize("delay", [1.0, 1.6, 1 / 1.6])
def test_other_programs_do_not_change_the_choice(times, slower, delay, monkeypatch):
    """In which dtype attention computes, and so its result, is not to depend on what else the machine does."""
    clock = iter([0.0, times * delay, 0.0, 1.0] * (1 + precision.REPEATS))
    monkeypatch.setattr(precision.time, "perf_counter", lambda: next(clock))
    threads = torch.get_num_threads()
    assert precision._measured.__wrapped__(torch.bfloat16) == slower
    assert torch.get_num_threads() == threads
