"""The relative attention kernels against the reference: on a GPU where there is one, under Triton's interpreter elsewhere
(conftest.py asks for it)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from posenc import T5, ALiBi, InputError, Positions, Rotary, attention, create, explain
from posenc.attention import Call, prepare
from posenc.backends import BACKENDS
from posenc.backends.triton_kernels import INTERPRETED, relative_attention

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def draw(*shape, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=g).to(DEVICE, dtype)


def formula(q, k, v, vector, products, row, scale, diagonal):
    """The same in float64, with every score at once, and which rows see nothing."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    i, j = torch.arange(q.shape[2], device=DEVICE)[:, None], torch.arange(k.shape[2], device=DEVICE)[None]
    cell = q.shape[2] - 1 - i + j
    scores = scale * q @ k.mT
    if vector is not None:
        scores = scores + vector.double()[:, cell]
    if products is not None:
        scores = scores + products.double().gather(-1, row[cell].long().expand(scores.shape))
    empty = ~(j <= i + diagonal).any(-1)
    scores = scores.masked_fill(j > i + diagonal, -torch.inf).masked_fill(empty[:, None], 0.0)
    return (
        (scores.softmax(-1) @ v).masked_fill(empty[:, None], 0.0),
        scores.logsumexp(-1).masked_fill(empty, 0.0),
        empty,
    )


CASES = {
    "square": (1, 2, 1, 40, 40, 16, 16, 99, "vector"),
    "causal, grouped": (2, 4, 2, 37, 37, 8, 8, 0, "vector"),
    "cached, values narrower": (1, 2, 1, 21, 50, 24, 12, 29, "vector"),
    "more queries than keys": (1, 2, 1, 50, 21, 16, 16, 99, "vector"),
    "rows that see nothing": (1, 2, 1, 50, 21, 16, 16, -29, "vector"),
    "no row sees a key": (1, 2, 1, 50, 21, 16, 16, -60, "vector products"),
    "no bias": (1, 2, 1, 33, 33, 16, 16, 0, ""),
    "products, grouped": (2, 2, 2, 37, 53, 8, 8, 16, "products"),
    "products, keys far off": (1, 2, 1, 20, 90, 8, 8, 99, "products"),
    "both": (1, 2, 1, 40, 40, 8, 8, 0, "vector products"),
    "one query": (2, 1, 1, 1, 40, 8, 8, 39, "vector products"),
    "long": (1, 2, 1, 100, 130, 8, 8, 30, "vector products"),
    "a line": (1, 2, 1, 100, 130, 8, 8, 30, "line"),
    "a line and products": (1, 2, 1, 100, 130, 8, 8, 30, "line products"),
}


def arguments(case, dtype=torch.float32):
    batch, heads, groups, queries, keys, width, values, diagonal, terms = CASES[case]
    q = draw(batch, queries, heads, width, dtype=dtype).transpose(1, 2)  # strided
    k = draw(batch, heads // groups, keys, width, dtype=dtype)
    v = draw(batch, heads // groups, keys, values, dtype=dtype, seed=1)
    vector = draw(heads, queries + keys - 1) if "vector" in terms else None
    if "line" in terms:  # up to the diagonal
        distance = queries - 1 + diagonal - torch.arange(queries + keys - 1, device=DEVICE)
        vector = 0.3 - distance.abs() / draw(heads, 1).abs().exp()
    products = draw(batch, heads, queries, 5) if "products" in terms else None
    row = queries - 1 - torch.arange(queries + keys - 1, device=DEVICE)
    row = row.clamp(-2, 2) + 2 if "products" in terms else None
    return q, k, v, vector, products, row, width**-0.5, diagonal


def compared(case, dtype=torch.float32):
    """(found, wanted) for the output and the log-sum-exp."""
    given = arguments(case, dtype)
    out, lse = relative_attention(*given, "ieee")
    want, want_lse, empty = formula(*given)
    assert out.dtype == dtype
    assert (lse[..., empty] == -torch.inf).all()
    return zip((out, lse.masked_fill(empty, 0.0)), (want, want_lse), strict=True)


@pytest.mark.parametrize("case", CASES)
def test_output(case):
    for found, wanted in compared(case):
        assert (found - wanted).abs().max() < 2e-6 * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize(("case", "dtype"), [("causal, grouped", torch.bfloat16), ("both", torch.float16)])
def test_half_precision(case, dtype):
    for found, wanted in compared(case, dtype):
        assert (found - wanted).abs().max() < 4 * torch.finfo(dtype).eps * max(1.0, float(wanted.abs().max()))


def test_a_bias_may_hide_keys():
    q, k, v, vector, *rest = arguments("square")
    band = vector.masked_fill(torch.arange(79, device=DEVICE) < 30, -torch.inf)
    for x, y in zip(relative_attention(q, k, v, band, *rest, "ieee"), formula(q, k, v, band, *rest), strict=False):
        assert (x - y).abs().max() < 1e-5
    out, _ = relative_attention(q, k, v, torch.full_like(band, -torch.inf), *rest, "ieee")
    assert not out.any()


def test_nan_is_not_hidden():
    q, *rest = arguments("long")
    q[0, 0, 70] = torch.nan
    out, lse = relative_attention(q, *rest, "ieee")
    assert out[0, 0].isnan().any(-1).nonzero().tolist() == lse[0, 0].isnan().nonzero().tolist() == [[70]]


def test_tokens_far_apart_in_memory():
    """By more elements than 32 bits count; pages that nobody reads take no memory."""
    q, k, v = (draw(1, 1, 20, 8, seed=n, dtype=torch.float16) for n in range(3))
    far = torch.empty(20 * 2**27, dtype=torch.float16, device=DEVICE).as_strided(k.shape, (0, 0, 2**27, 1)).copy_(k)
    rest = None, None, None, 1.0, 0, "ieee"
    assert torch.equal(relative_attention(q, far, v, *rest)[0], relative_attention(q, k, v, *rest)[0])


@pytest.mark.parametrize("case", ["cached, values narrower", "both"])
def test_custom_op(case):
    """Its schema and fake tensors are what torch.compile and torch.export rely on."""
    torch.library.opcheck(relative_attention, (*arguments(case), "ieee"))


LAYOUTS = {
    "bidirectional": lambda: Positions.arange(20, device=DEVICE),
    "causal": lambda: Positions.arange(20, causal=True, device=DEVICE),
    "cached": lambda: Positions.arange(3, 20, causal=True, device=DEVICE),
    "one new token": lambda: Positions.arange(1, 36, causal=True, device=DEVICE),
}
ENCODINGS = [
    "none", "rope", "t5", "alibi", "kerple", "shaw:clip=4:terms=keys", "transformer_xl:clamp_len=6", "tupe",
    "rope+alibi", "deberta:terms=c2p:max_relative_positions=5", "alibi+sink",
]  # fmt: skip


def both(q, k, v, encoding, positions):
    """The output from the kernel, and from the reference in float64."""
    for backend, dtype in (("triton", torch.float32), ("reference", torch.float64)):
        problem = prepare(Call(*(x.to(dtype) for x in (q, k, v)), encoding.to(dtype), positions))
        yield BACKENDS[backend].plan(problem).run(problem)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=pytest.mark.slow if (at + turn) % 2 else ())
        for at, name in enumerate(ENCODINGS)
        for turn, layout in enumerate(LAYOUTS)
    ],
)
def test_encodings_are_the_reference(name, layout):
    positions, heads, width = LAYOUTS[layout](), 4, 8
    torch.manual_seed(0)
    encoding = create(name, dim=32, num_heads=heads, head_dim=width, num_kv_heads=2, num_layers=1, max_positions=40)
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    encoding = encoding.to(DEVICE)
    encoding.share([(torch.nn.Identity(), lambda x: x[..., :16])])
    q = draw(1, heads, positions.num_queries, width)
    k, v = (draw(1, 2, positions.num_keys, width, seed=n) for n in (1, 2))
    found, wanted = both(q, k, v, encoding, positions)
    assert (found - wanted).abs().max() < 5e-6 * max(1.0, float(wanted.abs().max()))


def test_a_compiled_model_and_an_exported_one():
    encoding = T5(2, init_std=1.0).to(DEVICE)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = encoding

        def forward(self, q, k, v):
            return attention(q, k, v, self.encoding, causal=True, backend="triton")

    given = [draw(1, 2, 20, 8, seed=n) for n in range(3)]
    want = attention(*given, encoding, causal=True, backend="reference")
    compiled = torch.compile(Layer(), fullgraph=True, dynamic=True, backend="aot_eager")
    assert torch.allclose(compiled(*given), want, atol=1e-5)
    n = torch.export.Dim("n", min=2, max=100)
    exported = torch.export.export(Layer(), tuple(given), dynamic_shapes=({2: n},) * 3)
    longer = [draw(1, 2, 33, 8, seed=n) for n in range(3)]
    want = attention(*longer, encoding, causal=True, backend="reference")
    assert torch.allclose(exported.module()(*longer), want, atol=1e-5)


def test_what_it_refuses():
    q, k, v = (draw(2, 4, 6, 8, seed=n) for n in range(3))
    made = {
        name: create(name, dim=32, num_heads=4, head_dim=8, num_layers=1).to(DEVICE)
        for name in ("shaw", "fire", "swin")
    }
    calls = {
        "a term on the values": {"encoding": made["shaw"]},
        "no dropout": {"dropout_p": 0.1},
        "contiguous positions": {"positions": Positions.packed([2, 4], device=DEVICE)},
        "no form for Positional": {"encoding": made["fire"]},
        "other positions": {"encoding": made["swin"]},
        "float32 and less": {"q": q.double(), "k": k.double(), "v": v.double()},
        "300 wide": {"v": draw(2, 4, 6, 300)},
    }  # fmt: skip
    for reason, changed in calls.items():
        with pytest.raises(InputError, match=reason):
            attention(**{"q": q, "k": k, "v": v, "backend": "triton"} | changed)
    for learned in (T5(4), create("shaw", head_dim=q.shape[3], num_heads=4, terms="keys")):
        with torch.enable_grad(), pytest.raises(InputError, match="no gradients"):
            attention(q, k, v, learned.to(DEVICE), causal=True, backend="triton")
    with pytest.raises(InputError, match="forward-mode"):  # the tangent would be zero
        torch.func.jvp(lambda q: attention(q, k, v, backend="triton"), (q,), (q,))
    here = ALiBi(4).to(DEVICE).at(Positions.arange(6, device=DEVICE))
    given = {"q": q, "k": k, "v": v, "sink": torch.zeros(4, device=DEVICE)}
    with torch.enable_grad():
        attention(**given, encoding=here, backend="triton")  # a frozen layer
        for name, x in given.items():
            with pytest.raises(InputError, match="no gradients"):
                attention(**given | {name: x.clone().requires_grad_()}, encoding=here, backend="triton")
    plan = explain(q, k, v, ALiBi(4).to(DEVICE), backend="triton")
    assert "not measured as the fastest" in plan.reason
    assert explain(q, k, v, ALiBi(4).to(DEVICE)).backend != "triton"


def test_it_needs_a_gpu_or_the_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    q = torch.zeros(1, 2, 4, 8)
    with pytest.raises(InputError, match="runs on CUDA, not on cpu"):
        attention(q, q, q, Rotary(8), backend="triton")
    monkeypatch.setattr("posenc.backends.triton.HAS_TRITON", False)
    with pytest.raises(InputError, match="Triton is not installed"):
        attention(q, q, q, Rotary(8), backend="triton")


@pytest.mark.parametrize("sm", [80, 90])
def test_kernels_compile_without_a_gpu(sm):
    script = Path(__file__).parents[2] / "benchmarks" / "gpu_prediction.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, script, str(sm), "80"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"| sm_{sm}, 80, ") == 3


def test_the_interpreter_stands_in_for_a_gpu_only():
    assert bool(INTERPRETED) is not CUDA


on_gpu = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")


@on_gpu
@pytest.mark.parametrize("width", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("name", ["t5", "alibi", "shaw:clip=64:terms=keys"])
def test_gpu_tiles(name, width):
    """Sizes at which a GPU's tiles are full, in bfloat16, against the reference in float32."""
    encoding = create(name, dim=4 * width, num_heads=4, head_dim=width, num_layers=1).cuda()
    q, k, v = (draw(2, 4, 1000, width, seed=n, dtype=torch.bfloat16) for n in range(3))
    p = Positions.arange(1000, causal=True, device="cuda")
    found, wanted = (attention(q, k, v, encoding, p, backend=backend) for backend in ("triton", "reference"))
    assert (found - wanted).abs().max() < 0.03 * wanted.abs().max()
