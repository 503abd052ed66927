"""`posenc.functional.rotary`: every path against loops in float64, its gradients, memory, tables, the compiled form."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from posenc import InputError, Positions, Rotary, functional
from posenc.functional import TINY, contiguous_tables, formula, frequency_curve, rotary, rotate_token, widened
from posenc.testing.oracles.rotations import angles, turned

LAYOUTS = pytest.mark.parametrize("layout", ["half", "interleaved"])


@pytest.fixture
def small_blocks(monkeypatch):
    """Kernels even for small inputs, in many blocks."""
    monkeypatch.setattr(functional, "TINY", 0)
    monkeypatch.setattr(functional, "BLOCK_BYTES", 512)


def tables(n: int, pairs: int, dtype: torch.dtype = torch.float64, amplitude: float = 1.0) -> tuple[Tensor, Tensor]:
    angles = torch.arange(n).double()[:, None] * frequency_curve(2 * pairs, base=10000.0 if pairs > 1 else 7.0)
    return (angles.cos() * amplitude).to(dtype), (angles.sin() * amplitude).to(dtype)


def stored(order: str, batch: int, heads: int, n: int, width: int) -> Tensor:
    """(batch, heads, n, width) in one of the ways that models leave it in memory."""
    if order == "heads inside":
        return torch.randn(batch, n, heads, width, dtype=torch.float64).transpose(1, 2)
    if order == "slice of a fused projection":
        return torch.randn(batch, n, heads + 3, width + 1, dtype=torch.float64).transpose(1, 2)[:, 2:-1, :, 1:]
    if order == "channels strided":
        return torch.randn(batch, heads, width, n, dtype=torch.float64).mT
    if order == "expanded":
        return torch.randn(batch, 1, n, width, dtype=torch.float64).expand(-1, heads, -1, -1)
    return torch.randn(batch, heads, n, width, dtype=torch.float64)


ORDERS = ["plain", "heads inside", "slice of a fused projection", "channels strided", "expanded"]

# ---------------------------------------------------------------- the values


@LAYOUTS
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("width", "pairs", "start"), [(8, 4, 0), (8, 2, 0), (8, 2, 4), (9, 3, 1), (2, 1, 0)])
@pytest.mark.usefixtures("small_blocks")
def test_kernels_are_the_rotation_matrix(layout, order, width, pairs, start):
    x, (cos, sin) = stored(order, 2, 3, 11, width), tables(11, pairs)
    base = 10000.0 if pairs > 1 else 7.0
    wanted = turned(x, angles(torch.arange(11), 2 * pairs, base), layout, start)
    for dtype, bound in ((torch.float64, 1e-13), (torch.float32, 1e-6)):
        mine, c, s = x.to(dtype), cos.to(dtype), sin.to(dtype)
        before = mine.clone()
        assert_close(rotary(mine, c, s, layout=layout, start=start).double(), wanted, rtol=0, atol=bound)
        assert torch.equal(mine, before), "the input is left alone"
        assert_close(formula(mine, c, s, layout, start).double(), wanted, rtol=0, atol=bound)


@LAYOUTS
@pytest.mark.parametrize("shape", [(5, 3), (1, 5, 3), (2, 1, 5, 3), (1, 3, 5, 3), (2, 3, 5, 3), (1, 1, 1, 3), (3,)])
@pytest.mark.usefixtures("small_blocks")
def test_tables_broadcast_and_need_not_be_of_unit_length(layout, shape):
    x, cos, sin = stored("heads inside", 2, 3, 5, 8), *torch.randn(2, *shape, dtype=torch.float64)
    c, s = (t.expand(2, 3, 5, 3) for t in (cos, sin))
    first, second = (range(3), range(3, 6)) if layout == "half" else (range(0, 6, 2), range(1, 6, 2))
    wanted = x.clone()
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        wanted[..., a] = x[..., a] * c[..., i] - x[..., b] * s[..., i]
        wanted[..., b] = x[..., b] * c[..., i] + x[..., a] * s[..., i]
    assert_close(rotary(x, cos, sin, layout=layout), wanted)
    assert_close(rotary(x.float(), cos.float(), sin.float(), layout=layout).double(), wanted, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("small_blocks")
def test_tables_may_have_more_rows_than_x():
    x, (cos, sin) = torch.randn(5, 8, dtype=torch.float64), tables(5, 4)
    cos, sin = (torch.stack((t, 2 * t)) for t in (cos, sin))
    both = rotary(x, cos, sin)
    assert_close(both, torch.stack((rotary(x, cos[0], sin[0]), rotary(x, cos[1], sin[1]))))


@given(
    batch=st.integers(1, 2), heads=st.integers(1, 3), n=st.integers(1, 9), pairs=st.integers(1, 4), rest=st.integers(0, 2),
    layout=st.sampled_from(["half", "interleaved"]), order=st.sampled_from(ORDERS), block=st.integers(1, 2000),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_call_is_the_formula(batch, heads, n, pairs, rest, layout, order, block, dtype):
    x, (cos, sin) = stored(order, batch, heads, n, 2 * pairs + rest).to(dtype), tables(n, pairs, torch.float32, 1.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "TINY", 0)
        patch.setattr(functional, "BLOCK_BYTES", block)
        actual = rotary(x, cos, sin, layout=layout)
    bound = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}[dtype]
    assert_close(actual, formula(x, cos, sin, layout, 0), rtol=bound, atol=bound)
    assert actual.dtype == dtype


@pytest.mark.parametrize(("dtype", "half_ulp"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
@LAYOUTS
@pytest.mark.usefixtures("small_blocks")
def test_half_precision_is_rounded_once(layout, dtype, half_ulp):
    x, (cos, sin) = torch.randn(2, 3, 40, 16).to(dtype), tables(40, 8, torch.float32)
    exact = rotary(x.double(), cos.double(), sin.double(), layout=layout)
    for actual in (rotary(x, cos, sin, layout=layout), formula(x, cos, sin, layout, 0)):
        assert bool(((actual.double() - exact).abs() <= half_ulp * exact.abs() + 1e-6).all())
    narrow = cos.to(dtype), sin.to(dtype)  # tables as transformers has them: still float32 arithmetic
    exact = rotary(x.double(), *(t.double() for t in narrow), layout=layout)
    assert bool(((rotary(x, *narrow, layout=layout).double() - exact).abs() <= half_ulp * exact.abs() + 1e-6).all())


@pytest.mark.parametrize("order", ["plain", "heads inside", "channels strided"])
@LAYOUTS
def test_the_result_lies_in_memory_as_its_input(layout, order):
    x, (cos, sin) = stored(order, 2, 3, 50, 8), tables(50, 4)
    for elements in (0, TINY):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(functional, "TINY", elements)
            actual = rotary(x, cos, sin, layout=layout)
        assert actual.stride() == x.stride() or (elements and order == "channels strided")


@LAYOUTS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_token_of_queries_and_keys_at_once(layout, dtype):
    q, k, (cos, sin) = (
        torch.randn(2, 4, 1, 8).to(dtype),
        torch.randn(2, 2, 1, 8).to(dtype),
        tables(50, 4, torch.float32),
    )
    cos, sin = cos[None, None, 40:41], sin[None, None, 40:41]
    actual = [rotate_token(x, *widened(cos, sin, layout), layout) for x in (q, k)]
    wanted = rotary(q, cos, sin, layout=layout), rotary(k, cos, sin, layout=layout)
    assert_close(tuple(actual), wanted)
    assert [x.dtype for x in actual] == [dtype, dtype]
    rope = Rotary(8, layout=layout)
    assert_close(rope.rotate(q, k, Positions.from_ids([[40]])), wanted)


# ---------------------------------------------------------------- gradients


@LAYOUTS
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.usefixtures("small_blocks")
def test_gradients_of_both_orders(layout, learned):
    x = stored("heads inside", 1, 2, 3, 6).requires_grad_()
    cos, sin = (t.requires_grad_(learned) for t in tables(3, 2, amplitude=1.5))

    def turn(*inputs: Tensor) -> Tensor:
        return rotary(inputs[0], *(inputs[1:] or (cos, sin)), layout=layout, start=1)

    inputs = (x, cos, sin) if learned else (x,)
    assert torch.autograd.gradcheck(turn, inputs, check_forward_ad=True, check_batched_grad=False)
    assert torch.autograd.gradgradcheck(turn, inputs)


@LAYOUTS
@pytest.mark.usefixtures("small_blocks")
def test_transforms_of_torch_func(layout):
    x, (cos, sin) = torch.randn(4, 3, 5, 8, dtype=torch.float64), tables(5, 4)
    wanted = rotary(x, cos, sin, layout=layout)
    each = torch.func.vmap(lambda row: rotary(row, cos, sin, layout=layout))
    assert_close(each(x), wanted)
    turned = torch.func.vmap(lambda angle: rotary(x[0], angle.cos(), angle.sin(), layout=layout))(torch.randn(3, 5, 4))
    assert turned.shape == (3, 3, 5, 8)
    _, tangent = torch.func.jvp(lambda y: rotary(y, cos, sin, layout=layout), (x,), (x,))
    assert_close(tangent, wanted)
    gradient = torch.func.grad(lambda y: (rotary(y, cos, sin, layout=layout) * wanted).sum())(x)
    assert_close(gradient, x)


@LAYOUTS
def test_only_the_tables_are_saved_for_the_backward(layout):
    x, (cos, sin) = torch.randn(2, 3, 900, 8, requires_grad=True), tables(900, 4, torch.float32)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        rotary(x, cos, sin, layout=layout)
    assert sum(t.numel() for t in saved) == cos.numel() + sin.numel()


@LAYOUTS
@pytest.mark.parametrize("shape", [(1, 1, 0, 8), (0, 2, 3, 8), (2, 0, 3, 8), (0, 2, 1, 8)])
@pytest.mark.usefixtures("small_blocks")
def test_empty_inputs(layout, shape):
    x, (cos, sin) = torch.zeros(shape), tables(shape[2], 4, torch.float32)
    assert rotary(x, cos, sin, layout=layout).shape == shape
    if shape[2] == 1:
        assert rotate_token(x, *widened(cos, sin, layout), layout).shape == shape
    nothing = cos[:, :0]
    assert torch.equal(rotary(x, nothing, nothing, layout=layout), x)


@pytest.mark.parametrize(
    ("x", "cos", "sin", "message"),
    [
        (torch.ones(3, 8).long(), (3, 4), (3, 4), r"x of torch.int64.*x.float\(\)"),
        (torch.ones(3, 8), (2, 4), (2, 4), r"cos \(2, 4\) and sin \(2, 4\) do not fit x \(3, 8\)"),
        (torch.ones(3, 8), (3, 4), (2, 4), "do not fit"),
        (torch.ones(3, 8), (3, 4), (3, 1), "do not fit"),
        (torch.ones(1, 1, 4096, 8), (1, 1, 4096, 4), (3, 1, 4096, 4), "do not fit"),
        (torch.ones(2, 1, 3, 8), (3, 1, 3, 4), (3, 1, 3, 4), "do not fit"),
    ],
)
def test_what_does_not_fit_is_refused(x, cos, sin, message):
    with pytest.raises(InputError, match=message):
        rotary(x, torch.ones(cos), torch.ones(sin))


@pytest.mark.parametrize("start", [-1, 1, 5])
def test_a_start_that_does_not_fit(start):
    with pytest.raises(InputError, match="start=-1" if start < 0 else "4 columns"):
        rotary(torch.ones(3, 8), torch.ones(3, 4), torch.ones(3, 4), start=start)


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("first", [0, 7, 131072 - 600, 2**24])
@pytest.mark.parametrize("count", [1, 255, 256, 257, 1024, 4099])
def test_tables_by_addition_of_angles(first, count):
    inv_freq = frequency_curve(32, base=500000.0)
    angles = (first + torch.arange(count).double())[:, None] * inv_freq
    cos, sin = contiguous_tables(first, count, inv_freq, 1.5)
    assert cos.dtype == sin.dtype == torch.float32
    assert cos.shape == sin.shape == (count, 16)
    assert_close(cos.double() / 1.5, angles.cos(), rtol=0, atol=2e-7)
    assert_close(sin.double() / 1.5, angles.sin(), rtol=0, atol=2e-7)


@pytest.mark.parametrize(
    "schedule",
    [
        None,
        {"name": "linear", "factor": 4.0},
        {"name": "ntk", "factor": 4.0},
        {"name": "yarn", "factor": 8.0, "original_max_positions": 8192},
    ],
)
@pytest.mark.parametrize(("offset", "n"), [(0, 131072), (130000, 1072), (131071, 1)])
def test_error_at_position_131072(schedule, offset, n):
    options = {} if schedule is None else {"schedule": schedule}
    rope = Rotary(128, rope_theta=500000.0, **options)
    (cos, sin), _ = rope.tables_at(Positions.arange(n, offset), torch.float32)
    exact = rope.angles(torch.arange(131072)[None, -1:]) if n == 1 else rope.angles(torch.arange(131000, 131072)[None])
    last = slice(-1, None) if n == 1 else slice(-72, None)
    for actual, wanted in ((cos, exact.cos()), (sin, exact.sin())):
        error = actual[:, :, last].double() / rope.attention_factor - wanted
        assert error.abs().max() <= 2e-7
        assert actual.shape == (1, 1, n, 64)


def test_float64_inputs_get_exact_tables():
    rope, p = Rotary(16), Positions.arange(2000)
    (cos, _), _ = rope.tables_at(p, torch.float64)
    assert torch.equal(cos, rope.angles(p.q).cos())
    q = torch.randn(1, 1, 2000, 16, dtype=torch.float64)
    moved = Positions.from_ids(torch.arange(2000))
    assert_close(rope.rotate(q, q, p), rope.rotate(q, q, moved), rtol=0, atol=1e-14)
    assert_close(rope.rotate(q.float(), q.float(), p), rope.rotate(q.float(), q.float(), moved), rtol=0, atol=2e-6)


# ---------------------------------------------------------------- compiled


@LAYOUTS
def test_compiled_with_one_tensor_as_both_tables(layout):
    torch._dynamo.reset()
    compiled = torch.compile(rotary, backend="aot_eager", fullgraph=True)
    x, table = torch.randn(2, 5, 8, requires_grad=True), torch.randn(5, 4)
    assert_close(compiled(x, table, table, layout=layout), rotary(x, table, table, layout=layout))


@LAYOUTS
@pytest.mark.parametrize("start", [0, 2])
def test_compiled_and_exported(layout, start):
    torch._dynamo.reset()
    graphs = 0

    def count(graph, inputs):
        nonlocal graphs
        graphs += 1
        return graph

    compiled = torch.compile(rotary, backend=count, dynamic=True, fullgraph=True)
    for n in (1, 7, 9, 30):
        x, (cos, sin) = stored("heads inside", 2, 3, n, 10), tables(n, 4)
        assert_close(compiled(x, cos, sin, layout=layout, start=start), rotary(x, cos, sin, layout=layout, start=start))
        if n == 7:
            before = graphs
    assert graphs == before == 2, "one for a single token and one for all other lengths"

    class Module(torch.nn.Module):
        def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            return rotary(x, cos, sin, layout=layout, start=start)

    length = torch.export.Dim("n", min=2, max=4096)
    shapes = {"x": {2: length}, "cos": {0: length}, "sin": {0: length}}
    inputs = stored("heads inside", 2, 3, 7, 10), *tables(7, 4)
    exported = torch.export.export(Module(), inputs, dynamic_shapes=shapes).module()
    inputs = stored("heads inside", 2, 3, 3000, 10), *tables(3000, 4)
    assert_close(exported(*inputs), rotary(*inputs, layout=layout, start=start))


@LAYOUTS
@pytest.mark.parametrize("learned", [False, True])
def test_compiled_gradients(layout, learned):
    torch._dynamo.reset()
    compiled = torch.compile(rotary, backend="aot_eager", dynamic=True, fullgraph=True)
    x = stored("heads inside", 2, 3, 7, 10).requires_grad_()
    cos, sin = (t.requires_grad_(learned) for t in tables(7, 4))
    inputs = (x, cos, sin) if learned else (x,)
    weight = torch.randn(2, 3, 7, 10, dtype=torch.float64)
    actual, wanted = (
        torch.autograd.grad((turn(x, cos, sin, layout=layout) * weight).sum(), inputs) for turn in (compiled, rotary)
    )
    assert_close(actual, wanted)
