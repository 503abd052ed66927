"""Both backends against attention written entry by entry in float64, over every kind of positions and structure."""

import math

import pytest
import torch

import posenc
from posenc import T5, ALiBi, Encoding, InputError, PerLayer, Positions, Rotary, Sum, attention, explain
from posenc.bias import Dense, Factored, KeyRelative, QueryRelative, Relative, Values, dense_sum
from posenc.lab.transformer import Transformer, TransformerConfig
from posenc.testing.oracles import biases, content
from posenc.testing.oracles.attention import attend
from posenc.testing.oracles.rotations import rotary
from references.calls import distances

BACKENDS = ["reference", "sdpa"]
B, H, D = 2, 4, 8

LAYOUTS = {
    "bidirectional": (5, 5, lambda: Positions.arange(5)),
    "causal": (5, 5, lambda: Positions.arange(5, causal=True)),
    "cached": (2, 5, lambda: Positions.arange(2, 3, causal=True)),
    "one new token": (1, 5, lambda: Positions.arange(1, 4, causal=True)),
    "ragged cache": (2, 6, lambda: Positions.arange(2, torch.tensor([4, 1]), causal=True)),
    "left padded": (5, 5, lambda: Positions.from_mask(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]), causal=True)),
    "right padded": (5, 5, lambda: Positions.from_mask(torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]))),
    "packed": (5, 5, lambda: Positions.packed([2, 3], causal=True)),
    "fractional": (4, 4, lambda: Positions.from_ids(torch.tensor([[0.0, 0.25, 0.5, 2.0]]), causal=True)),
    "own ids per row": (4, 4, lambda: Positions.from_ids(torch.tensor([[3, 1, 0, 9], [0, 1, 2, 3]]), packed=False)),
    "cross": (3, 5, lambda: Positions.cross(Positions.arange(3), Positions.arange(5))),
    "cross, keys padded": (
        3, 4, lambda: Positions.cross(Positions.arange(3), Positions.from_mask(torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])))
    ),
}  # fmt: skip


def alibi(p: Positions) -> torch.Tensor:
    return -torch.tensor(biases.alibi(H), dtype=torch.float64)[:, None, None] * distances(p).abs()


def tensors(queries: int, keys: int, kv_heads: int = H, width: int = D, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    shapes = ((B, H, queries, D), (B, kv_heads, keys, D), (B, kv_heads, keys, width))
    return tuple(torch.randn(s, dtype=torch.float64, generator=g) for s in shapes)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_plain_and_grouped_queries(layout, kv_heads, backend):
    queries, keys, make = LAYOUTS[layout]
    q, k, v = tensors(queries, keys, kv_heads, width=3)
    p = make()
    want = attend(q, k, v, scale=D**-0.5, visible=p.mask())
    assert torch.allclose(attention(q, k, v, positions=p, backend=backend), want, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_alibi_entry_by_entry(layout, backend):
    queries, keys, make = LAYOUTS[layout]
    q, k, v = tensors(queries, keys)
    p = make()
    want = attend(q, k, v, scale=D**-0.5, visible=p.mask(), bias=alibi(p))
    assert torch.allclose(attention(q, k, v, ALiBi(H), p, backend=backend), want, atol=1e-12)


class Everything(Encoding):
    """Every structure at once, with tables drawn at random."""

    acts = "bias", "values"

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(1)

        def draw(*shape):
            return torch.nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=g))

        self.curve, self.of_query, self.of_key, self.of_value = draw(H), draw(1, 7, D), draw(H, 7, D), draw(1, 7, D)
        self.left, self.right, self.any = draw(1, H, 5, 3), draw(B, H, 5, 3), draw(1, 1, 5, 5)

    @staticmethod
    def row(distance):
        return (distance.clamp(-3, 3) + 3).long()

    def bias(self, q, k, positions, layer=0):
        terms = [
            Relative(lambda head, distance: self.curve[head] * distance, H, positions),
            QueryRelative(q, self.of_query, self.row, positions),
            KeyRelative(k, self.of_key, self.row, positions),
            Factored(self.left, self.right),
            Dense(self.any),
        ]
        return terms if "bias" in self.acts else None

    def values(self, positions, layer=0):
        return Values(self.of_value, self.row) if "values" in self.acts else None

    def entry(self, q, k, p):
        distance = distances(p)
        row = self.row(distance)
        each = self.curve[:, None, None] * distance, self.left @ self.right.mT, self.any
        of_query, of_key = content.read(q @ self.of_query.mT, row), content.read(k @ self.of_key.mT, row.mT).mT
        return (sum(each) + of_query + of_key).detach()

    def added(self, p):
        return self.of_value[0, self.row(distances(p))].detach()


@pytest.mark.parametrize("layout", ["bidirectional", "causal", "left padded", "packed"])
def test_every_structure_entry_by_entry(layout):
    queries, keys, make = LAYOUTS[layout]
    q, k, v = tensors(queries, keys)
    p, encoding = make(), Everything()
    want = attend(q, k, v, scale=D**-0.5, visible=p.mask(), bias=encoding.entry(q, k, p), added=encoding.added(p))
    assert torch.allclose(attention(q, k, v, encoding, p), want, atol=1e-12)
    assert explain(q, k, v, encoding, p).backend == "sdpa"
    apart = Positions.from_ids(2 * p.q, causal=p.causal, packed=False)
    assert explain(q, k, v, encoding, apart).backend == "sdpa"
    with pytest.raises(InputError, match=r"a term on the values .* not contiguous"):
        attention(q, k, v, encoding, apart, backend="sdpa")
    encoding.acts = ("bias",)
    both = [attention(q, k, v, encoding, apart, backend=name) for name in BACKENDS]
    assert torch.allclose(*both, atol=1e-12)


def test_closures_evaluated_one_entry_at_a_time_are_the_dense_bias():
    q, k, _ = tensors(5, 5)
    p, encoding = Positions.arange(5), Everything()
    terms = encoding.bias(q, k, p)
    dense = dense_sum(terms, q.device)
    for b, h, i, j in [(0, 0, 0, 4), (1, 3, 4, 0), (1, 2, 2, 2)]:
        score = torch.tensor(0.5, dtype=torch.float64)
        for term in terms:
            score = term.score_mod()(score, *(torch.tensor(n) for n in (b, h, i, j)))
        row = min(b, dense.shape[0] - 1)
        assert score.item() == pytest.approx(0.5 + dense[row, h, i, j].item())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("encoding", [None, ALiBi(H), Rotary(D) + ALiBi(H)], ids=["none", "alibi", "rope+alibi"])
@pytest.mark.parametrize(
    "logits", [0.0, math.log(3.0), [0.5, -1.0, 2.0, 0.0]], ids=["softmax_1", "softmax_3", "learned"]
)
@pytest.mark.parametrize("layout", ["bidirectional", "causal", "left padded"])
def test_sinks(layout, logits, encoding, backend):
    queries, keys, make = LAYOUTS[layout]
    q, k, v = tensors(queries, keys)
    p = make()
    per_head = logits if isinstance(logits, list) else [logits] * H
    turned = (q, k)
    if isinstance(encoding, Sum):
        turned = tuple(rotary(x, p.q[:, None, :, None], 1e4) for x in (q, k))
    want = attend(
        *turned, v, scale=D**-0.5, visible=p.mask(), sink=torch.tensor(per_head, dtype=torch.float64), bias=0.0 if encoding is None else alibi(p),
    )  # fmt: skip
    sink = torch.tensor(logits, dtype=torch.float64) if isinstance(logits, list) else logits
    assert torch.allclose(attention(q, k, v, encoding, p, sink=sink, backend=backend), want, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("encoding", [None, ALiBi(H)], ids=["none", "alibi"])
def test_rows_that_see_nothing_are_zero_with_finite_gradients(encoding, backend):
    q, k, v = (x.requires_grad_() for x in tensors(4, 4))
    p = Positions.from_mask(torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1]]), causal=True)
    out = attention(q, k, v, encoding, p, backend=backend)
    assert not out[0].any()
    assert not out[1, :, :2].any()
    assert out[1, :, 2:].all()
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    v = v.detach().index_fill(2, torch.tensor(3), torch.nan)  # which others see
    for more in ({}, {"softcap": 20.0}, {"sink": 0.0}) if backend != "flex" else ():
        assert not attention(q, k, v, encoding, p, backend=backend, **more)[1, :, :2].any()


def test_dropout_drops_and_scale_overrides():
    q, k, v = tensors(6, 6)
    torch.manual_seed(0)
    many = [x.repeat(4000, 1, 1, 1) for x in (q, k, v)]
    for backend in BACKENDS:
        mean = attention(*many, dropout_p=0.5, backend=backend).unflatten(0, (4000, B)).mean(0)
        assert (mean - attention(q, k, v)).abs().max() < 0.15
        want = attend(q, k, v, scale=0.5, visible=torch.tensor(True))
        assert torch.allclose(attention(q, k, v, T5(H, init_std=0.0).double(), scale=0.5, backend=backend), want)


def test_what_explain_says_is_what_happens():
    q, k, v = (x.float() for x in tensors(64, 64))
    plain = explain(q, k, v, Rotary(D), causal=True)
    assert (plain.backend, plain.faster) == ("sdpa", "")
    strided = explain(q, k, v, ALiBi(H), causal=True, backend="sdpa")
    assert "strided view" in str(strided)
    packed = explain(q, k, v, ALiBi(H), Positions.packed([32, 32]), backend="sdpa")
    assert "strided view" in packed.reason
    pieces = explain(q, k, v, ALiBi(H), Positions.packed(document_ids=torch.tensor([0, 1] * 32)), backend="sdpa")
    assert "not made of rectangles: a dense float mask" in pieces.reason
    spread = Positions.from_ids(3 * torch.arange(3000))
    many = explain(*[torch.zeros(1, H, 3000, D)] * 3, ALiBi(H), spread)
    assert "not contiguous: a dense mask, for some queries at a time" in many.reason
    assert many.faster == "contiguous positions"
    assert explain(q, k, v, backend="reference").backend == "reference"


def test_positions_in_any_number_format_agree():
    given = tensors(5, 5)
    want, rounded = attention(*given, ALiBi(H), Positions.from_ids(torch.arange(5))), [x.bfloat16() for x in given]
    for ids in (torch.arange(5, dtype=torch.uint8), torch.arange(5).float(), torch.arange(5).half(), [0, 1, 2, 3, 4]):
        for backend in BACKENDS:
            for inputs, most in ((given, 1e-12), (rounded, 0.05)):
                out = attention(*inputs, ALiBi(H), Positions.from_ids(ids), backend=backend)
                assert (out - want).abs().max() < most


def test_a_sink_of_no_weight_and_nothing_to_see():
    q, k, v = tensors(3, 3)
    p = Positions.from_mask(torch.tensor([[0, 0, 0], [1, 1, 1]]))
    for backend in BACKENDS:
        out = attention(q, k, v, positions=p, sink=-math.inf, backend=backend)
        assert not out[0].any()
        assert torch.allclose(out[1], attention(q, k, v)[1])


def test_one_graph_serves_every_layer():
    """A graph whose layer is an argument, which a second layer makes one of its sizes."""
    q, k, v = tensors(5, 5)
    encoding = PerLayer(Rotary(D), ALiBi(H) + posenc.Shaw(D, num_heads=H, num_layers=3).to(q.dtype))

    @torch.compile(backend="eager", fullgraph=True)
    def run(layer):
        return attention(q, k, v, encoding, causal=True, layer=layer)

    for layer in range(4):
        assert torch.allclose(run(layer), attention(q, k, v, encoding, causal=True, layer=layer))


def test_bad_input_is_named():
    q, k, v = tensors(5, 5)
    cases = [
        (lambda: attention(q[0], k, v), "q of shape"),
        (lambda: attention(q, k.float(), v), "k is torch.float32"),
        (lambda: attention(q.long(), k.long(), v.long()), "q is torch.int64 on cpu.*one float dtype"),
        (lambda: attention(q, k, v[:, :, :3]), "do not belong together"),
        (lambda: attention(q, k[:, :3], v[:, :3]), "4 query heads cannot share 3 key heads"),
        (lambda: attention(q[:, :, :2], k, v, causal=True), r"Positions.arange\(2, offset=3, causal=True"),
        (
            lambda: attention(q[:, :, 4:], k[:, :1], v[:, :1], None, Positions.arange(1)),
            r"arange\(1, offset=4, causal=True",
        ),
        (lambda: attention(q, k, v, positions=Positions.arange(3)), "positions are for 3 queries.* each token$"),
        (
            lambda: attention(q[:, :, 3:], k, v, positions=Positions.arange(5)),
            r"Positions.arange\(2, offset=3, causal=True",
        ),
        (
            lambda: attention(q[:, :, 3:], k, v, positions=Positions.arange(2)),
            r"Positions.arange\(2, offset=3, causal=True",
        ),
        (lambda: attention(q, k, v, positions=Positions.from_mask(torch.ones(3, 5))), "positions have 3 rows"),
        (lambda: attention(q, k, v, positions=Positions.arange(5, device="meta")), "positions are on meta"),
        (lambda: attention(q, k, v, dropout_p=1.0), "dropout_p=1.0"),
        (lambda: attention(q, k, v, sink=torch.zeros(3)), "sink of shape"),
        (lambda: attention(q, k, v, sink=math.nan), "sink=nan"),
        (lambda: attention(q, k, v, sink=torch.zeros(2).numpy()), r"sink=array.*: pass a number"),
        (lambda: attention(q, k, v, scale=-1e-30), "scale=-1e-30: too near 0 for float32"),
        (lambda: attention(q, k, v, backend="spda"), "did you mean 'sdpa'"),
        (lambda: attention(q, k, v, Rotary(16)), "head_dim 8: this Rotary was made with head_dim=16"),
        (lambda: attention(q, k, v, ALiBi(8)), "q with 4 heads: this ALiBi has num_heads=8"),
        (lambda: attention(q[:, :, :4], k[:, :, :4], v[:, :, :4], ALiBi(4), Positions.grid(2, 2)), "one coordinate"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", ["sandwich", "rope", "shaw:terms=keys", "deberta", "tupe", "complex_order", "mixed_rope"]
)
def test_autocast_rounds_neither_biases_nor_angles(name, backend, dtype):
    encoding = posenc.create(name, dim=32, num_heads=4, head_dim=8, max_positions=400, causal=True)
    q, k, v = (torch.randn(1, 4, 400, 8).to(dtype) for _ in range(3))
    x = torch.randn(1, 400, 32).to(dtype)
    positions = Positions.arange(400, causal=True)
    alone = attention(q, k, v, encoding, positions, backend=backend), encoding.embed(x, positions)
    with torch.autocast("cpu", torch.bfloat16):
        within = attention(q, k, v, encoding, positions, backend=backend), encoding.embed(x, positions)
    assert torch.equal(within[0], alone[0])
    assert within[0].dtype == dtype
    assert torch.allclose(within[1].float(), alone[1].float(), atol=0.05)


def test_scales_of_layers_that_take_turns_inside_sums():
    q, k, v = tensors(5, 5)
    turns = posenc.PerLayer(posenc.PerLayer(T5(H), posenc.NoPE()), Rotary(D)).double()
    for layer, wanted in ((0, turns.parts[0].parts[0]), (1, Rotary(D)), (2, None), (3, Rotary(D))):
        assert torch.equal(attention(q, k, v, turns, layer=layer), attention(q, k, v, wanted))
    summed = posenc.PerLayer(posenc.NoPE(), turns.parts[0].parts[0]) + posenc.SoftmaxN()
    assert torch.equal(attention(q, k, v, summed, layer=0), attention(q, k, v, sink=0.0))
    assert torch.equal(attention(q, k, v, summed, layer=1), attention(q, k, v, turns.parts[0].parts[0], sink=0.0))


@pytest.mark.parametrize("name", ["integer", "complex_order", "mixed_rope", "rope", "sinusoidal", "kerple"])
def test_fractional_positions_of_inference_mode_meet_training(name):
    encoding = posenc.create(name, dim=16, num_heads=2, max_positions=16, causal=True).double()
    with torch.inference_mode():
        positions = Positions.from_ids(torch.tensor([[0.0, 0.5, 1.0]], dtype=torch.float64))
    x = torch.randn(1, 3, 16, dtype=torch.float64, requires_grad=True)
    q = encoding.embed(x, positions).unflatten(-1, (2, 8)).transpose(1, 2)
    attention(q, q, q, encoding, positions).sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("outer", [torch.bfloat16, torch.float32])
def test_an_encoding_of_another_dtype_than_its_model(outer):
    inner = torch.float32 if outer == torch.bfloat16 else torch.bfloat16
    config = TransformerConfig(7, dim=16, num_layers=2, num_heads=2)
    for name in posenc.ENCODINGS:
        encoding = posenc.create(name, dim=16, num_heads=2, num_layers=2, max_positions=16, causal=True)
        model = Transformer(config, encoding).to(outer)
        encoding.to(inner)
        out = model.eval()(torch.arange(6)[None])
        assert out.dtype == outer, name
        assert out.isfinite().all(), name
