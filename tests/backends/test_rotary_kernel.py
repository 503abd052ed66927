"""The Triton kernel under Triton's interpreter, on the CPU: its indices, masks, strides and gradients. Where there is a
GPU it is compiled instead."""

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from posenc import InputError, Positions, Rotary, create
from posenc.attention import Call, prepare
from posenc.attention.attend import _choose
from posenc.backends import choose, gpus, triton
from posenc.backends import triton_kernels as launches
from posenc.backends.triton import rotary_kernel as turn
from posenc.functional import rotary

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYOUTS = pytest.mark.parametrize("layout", ["half", "interleaved"])


def random(heads: int, n: int, width: int, order: str = "heads inside", dtype=torch.float32) -> Tensor:
    if order == "heads inside":
        x = torch.randn(2, n, heads, width).transpose(1, 2)
    elif order == "slice":
        x = torch.randn(2, n, heads + 2, 2 * width).transpose(1, 2)[:, 1:-1, :, ::2]
    else:
        x = torch.randn(2, heads, n, width)
    return x.to(DEVICE, dtype)


def tables(rows: int, n: int, pairs: int) -> tuple[Tensor, Tensor]:
    angles = torch.randn(rows, 1, n, pairs, device=DEVICE) * 100
    return angles.cos() * 1.3, angles.sin() * 1.3


ORDERS = ("plain", "heads inside", "slice")
WIDTHS = [(16, 8, 0), (12, 6, 0), (14, 4, 0), (14, 3, 5), (2, 1, 0)]


@LAYOUTS
@pytest.mark.parametrize(
    ("order", "width", "pairs", "start", "rows"),
    [(order, *WIDTHS[at], 1 + (at + turn) % 2) for turn, order in enumerate(ORDERS) for at in range(len(WIDTHS))],
)
def test_it_is_the_rotation(layout, order, width, pairs, start, rows):
    q, k, (cos, sin) = random(5, 3, width, order), random(2, 3, width, order), tables(rows, 3, pairs)
    wanted = [rotary(x, cos, sin, layout=layout, start=start) for x in (q, k)]
    assert_close(turn(q, k, cos, sin, layout=layout, start=start), tuple(wanted))


@LAYOUTS
def test_tables_in_any_strides_and_many_heads(layout):
    q, k, (cos, sin) = random(70, 2, 256), random(1, 2, 256), tables(2, 128, 2)
    cos, sin = cos.mT, sin.mT.contiguous()
    wanted = rotary(q, cos, sin, layout=layout), rotary(k, cos, sin, layout=layout)
    assert_close(turn(q, k, cos, sin, layout=layout), wanted)


@LAYOUTS
@pytest.mark.parametrize(("dtype", "ulp"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-10)])
def test_half_precision_is_computed_in_float32(layout, dtype, ulp):
    q, k, (cos, sin) = random(4, 9, 16, dtype=dtype), random(2, 9, 16, dtype=dtype), tables(1, 9, 8)
    for found, x in zip(turn(q, k, cos, sin, layout=layout), (q, k), strict=True):
        exact = rotary(x.double(), cos.double(), sin.double(), layout=layout)
        # the interpreter cuts digits off instead of rounding: one unit in the last place, not half
        assert bool(((found.double() - exact).abs() <= ulp * exact.abs() + 1e-6).all())
        assert found.dtype == dtype
        assert found.stride() == x.stride()


@LAYOUTS
@pytest.mark.parametrize("start", [0, 3])
def test_gradients(layout, start):
    q, k, (cos, sin) = random(3, 4, 11), random(1, 4, 11), tables(2, 4, 4)
    weights = random(3, 4, 11, "plain"), random(1, 4, 11, "plain")
    q.requires_grad_()
    k.requires_grad_()
    found = torch.autograd.grad(turn(q, k, cos, sin, layout=layout, start=start), (q, k), weights, create_graph=True)
    each = [rotary(x, cos, sin, layout=layout, start=start) for x in (q, k)]
    assert_close(found, torch.autograd.grad(each, (q, k), weights))
    weights[0].requires_grad_()
    of_q = turn(q, k, cos, sin, layout=layout, start=start)[0]
    (again,) = torch.autograd.grad(of_q, q, weights[0], create_graph=True)
    (twice,) = torch.autograd.grad(again, weights[0], q.detach())
    assert_close(twice, rotary(q.detach(), cos, sin, layout=layout, start=start))


def test_it_is_one_operator_for_the_compiler():
    q, k, (cos, sin) = random(3, 4, 8), random(1, 4, 8), tables(1, 4, 4)
    torch.library.opcheck(launches._rotary, (q.requires_grad_(), k, cos, sin, "half", 0, 1.0))
    compiled = torch.compile(turn, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (4, 6):
        q, k, (cos, sin) = random(3, n, 8).requires_grad_(), random(1, n, 8), tables(1, n, 4)
        found, wanted = compiled(q, k, cos, sin), turn(q, k, cos, sin)
        assert_close(found, wanted)
        assert_close(*(torch.autograd.grad(x[0].square().sum(), q) for x in (found, wanted)))


@LAYOUTS
@pytest.mark.parametrize("options", [{}, {"rotary_dim": 6}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_takes_it(monkeypatch, layout, options, dtype):
    from posenc.encodings import rotary as module

    rope = Rotary(12, layout=layout, **options).to(DEVICE)
    p = Positions.from_ids(torch.tensor([[5, 900, 0.5], [1, 2, 3]]))
    p, q, k = p.to(DEVICE), random(4, 3, 12, dtype=dtype), random(2, 3, 12, dtype=dtype)
    plain = [rotary(x, *rope.cos_sin(p.q, torch.float32), layout=layout) for x in (q, k)]
    calls = []
    monkeypatch.setattr(module, "fits_kernel", lambda *tensors: calls.append(1) or True)
    assert_close(rope.rotate(q, k, p), tuple(plain), atol=1e-6 if dtype == torch.float32 else 2**-5, rtol=2**-7)
    assert calls


@pytest.fixture
def kernels(monkeypatch):
    """The module, on a GPU on which the rotation is right and faster."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(triton, "HAS_TRITON", True)
    monkeypatch.setattr(triton, "FORCED", False)
    monkeypatch.setattr(gpus, "RECORD", {"9.0": {"kernels": {"rotary": 0}}})
    return triton


def on_gpu(*shapes, dtypes=(torch.bfloat16, torch.bfloat16, torch.float32)) -> list[Tensor]:
    """Fake tensors, without a GPU."""
    with patch("torch.cuda.is_available", lambda: False), FakeTensorMode():  # which else starts one
        return [torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in zip(shapes, dtypes, strict=True)]


USUAL = (2, 4, 3, 8), (2, 1, 3, 8), (1, 1, 3, 4)


def test_it_is_the_default_on_verified_gpus_alone(kernels, monkeypatch):
    x = on_gpu(*USUAL)
    assert kernels.fits_kernel(*x)
    monkeypatch.setattr(gpus, "RECORD", {"8.0": {"kernels": {"rotary": 0}}, "9.0": {"kernels": {"vector": 0}}})
    assert not kernels.fits_kernel(*x)
    monkeypatch.setattr(kernels, "FORCED", True)
    assert kernels.fits_kernel(*x)


def test_attention_is_the_default_from_the_recorded_size_on(kernels, monkeypatch):
    least = {"vector": 512, "products": 64, "vector, one query": 8192}
    monkeypatch.setattr(gpus, "RECORD", {"9.0": {"kernels": least}})

    def taken(name, queries, keys=None, width=16, dtype=torch.bfloat16, backend="auto", **options):
        keys = keys or queries
        encoding = create(name, dim=2 * width, num_heads=2, head_dim=width)
        given = [torch.zeros(1, dtype=dtype).expand(1, 2, n, width) for n in (queries, keys, keys)]
        positions = Positions.arange(queries, max(keys - queries, 0), causal=True)
        if keys < queries:
            positions = Positions.cross(positions, Positions.arange(keys))
        with torch.no_grad():
            problem = prepare(Call(*given, encoding, positions, **options))
            q, k, v = on_gpu(*(x.shape for x in given), dtypes=(dtype,) * 3)
            name, plan = _choose(replace(problem, q=q, k=k, v=v), backend)
            return name, plan.why.partition(", ")[2] if name == "triton" else ""

    shaw, default = "shaw:clip=4:terms=keys", ("triton", "measured as the fastest on this GPU")
    for call in [("alibi", 512), ("t5", 1, 8192), ("alibi+" + shaw, 600), ("rope+alibi+sink", 512, 9000), (shaw, 64)]:
        assert taken(*call) == default, call
    few = ("alibi", 511, 9000), ("alibi", 16, 9000), ("alibi", 600, 511), ("t5", 1, 8191), (shaw, 1, 9000)
    for call in (*few, ("rope", 600), ("alibi+fire", 600)):
        assert taken(*call)[0] != "triton", call
    for options in ({"width": 256}, {"dtype": torch.float32}, {"softcap": 5.0}, {"dropout_p": 0.1}):
        assert taken("alibi", 600, **options)[0] != "triton", options
    assert taken("alibi", 511, backend="triton") == ("triton", "not measured as the fastest on this GPU")
    for module, name in ((torch.compiler, "is_exporting"), (choose, "transformed")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda: True)
            assert taken("alibi", 512)[0] == "sdpa"
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert taken("alibi", 512) == default


def test_whatever_works_on_tensors_in_its_own_way_gets_the_formula(kernels, monkeypatch):
    x = on_gpu(*USUAL)
    with FakeTensorMode():  # where there is a GPU it would get tensors without memory
        assert not kernels.fits_kernel(*x)
    assert not torch.func.vmap(lambda at: torch.tensor(kernels.fits_kernel(*x)) & (at > 0))(torch.ones(2)).any()
    for module, name in (
        (torch._C, "_get_tracing_state"),
        (torch.compiler, "is_compiling"),
        (torch.compiler, "is_exporting"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda: True)
            assert not kernels.fits_kernel(*x)
    assert kernels.fits_kernel(*x)


@pytest.mark.parametrize(
    ("q", "k", "cos"),
    [
        ((2, 3, 8), (2, 3, 8), (1, 3, 4)),
        ((2, 5, 4, 3, 8), (2, 5, 4, 3, 8), (1, 1, 1, 3, 4)),
        ((1, 4, 3, 8), USUAL[1], USUAL[2]),
        (USUAL[0], (2, 4, 3, 6), USUAL[2]),
        (USUAL[0], USUAL[1], (3, 1, 3, 4)),
        (USUAL[0], USUAL[1], (1, 4, 3, 4)),
    ],
)
def test_calls_that_the_formula_alone_takes_get_it(kernels, q, k, cos):
    assert not kernels.fits_kernel(*on_gpu(q, k, cos))


def test_two_dtypes_and_learned_tables_get_the_formula(kernels):
    assert not kernels.fits_kernel(*on_gpu(*USUAL, dtypes=(torch.bfloat16, torch.float32, torch.float32)))
    *x, cos = on_gpu(*USUAL)
    assert not kernels.fits_kernel(*x, cos.requires_grad_())
    with torch.no_grad():
        assert kernels.fits_kernel(*x, cos)


@pytest.mark.parametrize("shape", [(2, 3, 12), (2, 5, 4, 3, 12)])
def test_rotary_takes_any_number_of_axes_where_the_kernel_is_the_default(kernels, monkeypatch, shape):
    """As far as the kernel is asked at all: by tensors that say they are on a GPU."""
    rope, p = Rotary(12), Positions.arange(3)
    q = torch.randn(shape)
    wanted = rope.rotate(q, q, p)
    monkeypatch.setattr(Tensor, "is_cuda", True)
    monkeypatch.setattr(kernels, "verified", lambda kernel, device: True)
    assert_close(rope.rotate(q, q, p), wanted)


def test_a_launch_is_on_the_device_of_its_tensors_and_grows_along_one_axis(monkeypatch):
    """CUDA's other axes end at 65535."""
    asked, now, grids = [], [], []

    @contextmanager
    def device_of(x):
        now.append(x)
        yield
        now.pop()

    class Recorder:
        def __getitem__(self, grid):
            grids.append(grid)
            return lambda *arguments, **options: asked.append([*now])

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(launches, "_rotary_kernel", Recorder())
    monkeypatch.setattr(launches, "forward", Recorder())
    q, k = random(3, 4, 16), random(1, 4, 16)
    turn(q, k, *tables(1, 4, 8))
    launches.relative_attention(q, k, k, torch.zeros(3, 7, device=DEVICE), None, None, 1.0, 0, "ieee")
    assert [[x.shape for x in each] for each in asked] == [[q.shape]] * 2
    x = torch.zeros(1, 1, 3, 4, device=DEVICE).expand(70000, 1, 3, 4)
    turn(x, x, *tables(1, 3, 2))
    assert grids[-1] == (210000,)


def test_without_triton_the_remedy_is_named():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, posenc, posenc.backends.triton as kernels\n"
        "assert not kernels.HAS_TRITON and 'posenc.backends.triton_kernels' not in sys.modules\n"
        "x = torch.ones(1, 1, 1, 2)\n"
        "posenc.Rotary(2).rotate(x, x, posenc.Positions.arange(1))\n"
        "try: kernels.rotary_kernel(x, x, x, x)\n"
        "except posenc.InputError as error: assert 'pip install triton' in str(error)\n"
        "else: raise SystemExit(1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@LAYOUTS
def test_no_pairs_turn_nothing(layout):
    q, k, (cos, sin) = random(3, 4, 8), random(1, 4, 8), tables(1, 4, 0)
    assert_close(turn(q, k, cos, sin, layout=layout), (q, k), rtol=0, atol=0)


@pytest.mark.parametrize("heads", [(0, 2), (3, 0), (0, 0)])
def test_queries_or_keys_without_heads(heads):
    q, k, (cos, sin) = random(heads[0], 4, 8), random(heads[1], 4, 8), tables(1, 4, 4)
    wanted = rotary(q, cos, sin), rotary(k, cos, sin)
    assert_close(turn(q, k, cos, sin), wanted)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [(lambda x: x.double(), {}, "q of torch.float64"), (lambda x: x, {"layout": "halves"}, "unknown layout 'halves'")],
)
def test_what_would_be_wrong_is_refused(change, options, message):
    q, k = change(random(3, 3, 8)), random(1, 3, 8)
    with pytest.raises(InputError, match=message):
        turn(q, k.to(q.dtype), *tables(1, 3, 4), **options)
    if not options.get("layout"):
        with pytest.raises(InputError, match=message):
            turn(k.to(q.dtype), q, *tables(1, 3, 4), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": (2, 1, 4, 8)}, "pass the same tokens"),
        ({"k": (2, 1, 3, 6)}, "the same tokens"),
        ({"cos": (3, 1, 3, 4)}, r"cos \(., ., 3, 4\).*pass the same tokens"),
        ({"cos": (1, 2, 3, 4)}, r"cos \(., ., 3, 4\).*pass the same tokens"),
        ({"start": 1}, "start=1"),
        ({"learned": True}, "constants for them"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    q, k = torch.ones(2, 3, 3, 8, requires_grad=True), torch.ones(change.get("k", (2, 1, 3, 8)))
    cos = torch.ones(change.get("cos", (1, 1, 3, 4)), requires_grad="learned" in change)
    with pytest.raises(InputError, match=message):
        turn(q, k, cos, cos.detach(), start=change.get("start", 0))
