"""FlexAttention as a backend: its dense form in float64 against the reference, its CPU kernel in float32. benchmarks/gpu.py
checks it on a GPU."""

from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

import posenc
import test_attention as entries
from posenc import T5, ALiBi, InputError, Positions, attention, create, explain
from posenc.attention import Call, prepare
from posenc.attention.attend import _choose
from posenc.backends import BACKENDS, Problem, flex
from posenc.bias import Values
from posenc.conformance.fixtures import DECODER, ENCODER, EncodingUnderTest, named, tokens
from posenc.encoding import gates_of
from test_attention import LAYOUTS, Everything, tensors

H, D = entries.H, entries.D


@pytest.fixture(autouse=True)
def fresh():
    if not flex.IS_THERE:
        pytest.skip("FlexAttention is used from PyTorch 2.11 on")
    torch._dynamo.reset()  # what one test compiled would be looked through by all that follow


@pytest.fixture
def trainable(monkeypatch):
    """Flex's dense form has a backward on the CPU as well; only checks of the device forbid it, PyTorch's and ours."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "trains", lambda problem: False)


REFUSED = {"dape": "a score modifier takes all heads", "stick_breaking": "no weights but the softmax's"}


@pytest.mark.parametrize("name", posenc.ENCODINGS)
def test_every_encoding_is_the_reference(name):
    tested = EncodingUnderTest(named(name))
    config = DECODER if tested.encoding.causal_only else ENCODER
    model = tested.model(config)
    model(tokens(1, 5))  # which shares its projections
    served = 0
    for layout in ("cached", "ragged cache", "own ids per row", "cross, keys padded"):
        queries, keys, make = LAYOUTS[layout]
        g = torch.Generator().manual_seed(0)
        heads = zip((config.num_heads, config.kv_heads, config.kv_heads), (queries, keys, keys), strict=True)
        q, k, v = (torch.randn(2, h, n, config.width, dtype=torch.float64, generator=g) for h, n in heads)
        with torch.no_grad():
            x = torch.randn(2, keys, config.dim, dtype=torch.float64, generator=g)
            gates = gates_of(model.encoding, x, 0) or None
            try:
                want = attention(q, k, v, model.encoding, make(), gates=gates, backend="reference")
            except InputError:
                continue  # positions that the encoding is not for
            on_values = isinstance(model.encoding.values(make()), Values)
            if why := "a term on the values" if on_values else REFUSED.get(name):
                with pytest.raises(InputError, match=why):
                    attention(q, k, v, model.encoding, make(), gates=gates, backend="flex")
            else:
                found = attention(q, k, v, model.encoding, make(), gates=gates, backend="flex")
                assert torch.allclose(found, want, atol=1e-12)
        served += 1
    assert served > 1


@pytest.mark.parametrize(
    ("layout", "kv_heads"), [*((layout, 4) for layout in LAYOUTS), ("causal", 1), ("causal", 2), ("left padded", 2)]
)
def test_plain_and_grouped_queries(layout, kv_heads):
    entries.test_plain_and_grouped_queries(layout, kv_heads, "flex")


@pytest.mark.parametrize("layout", ["causal", "left padded", "packed", "fractional"])
def test_alibi(layout):
    entries.test_alibi_entry_by_entry(layout, "flex")


def test_rows_that_see_nothing_are_zero(trainable):
    for encoding in (None, ALiBi(H)):
        entries.test_rows_that_see_nothing_are_zero_with_finite_gradients(encoding, "flex")
    q, k, v = (x.requires_grad_() for x in tensors(4, 4))
    sink = torch.zeros(H, dtype=torch.float64, requires_grad=True)
    blind = Positions.from_mask(torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1]]), causal=True)
    attention(q, k, v, positions=blind, sink=sink, backend="flex").sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v, sink))


def gradients(backend, make, encoding, given, learned, scale=None, sink=None):
    problem = prepare(Call(*given, encoding, make(), scale=scale, sink=sink))
    out = BACKENDS[backend].plan(problem).run(problem)
    weights = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(5)).to(out.device)
    return [out, *torch.autograd.grad((out * weights).sum(), [*given, *learned])]


@pytest.mark.parametrize(
    ("layout", "scale"), [("bidirectional", None), ("causal", 0.0), ("left padded", None), ("packed", None)]
)
def test_gradients_of_every_structure(layout, scale, trainable):
    queries, keys, make = LAYOUTS[layout]
    encoding, given = Everything(), [x.requires_grad_() for x in tensors(queries, keys)]
    encoding.values = lambda positions, layer=0: None
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64, requires_grad=True)
    learned = [p for name, p in encoding.named_parameters() if name != "of_value"] + [sink]
    options = {"scale": scale, "sink": sink}
    found, want = (gradients(name, make, encoding, given, learned, **options) for name in ("flex", "reference"))
    for x, y in zip(found, want, strict=True):
        assert torch.allclose(x, y, atol=1e-11)


@pytest.mark.parametrize("name", ["t5", "tupe_r", "kerple"])
def test_gradients_of_learned_tables_of_grouped_queries(name, trainable):
    queries, keys, make = LAYOUTS["packed"]
    encoding = create(name, dim=H * D, num_heads=H, head_dim=D, num_layers=1, max_positions=10, causal=True)
    for parameter in encoding.double().parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    given = [x.requires_grad_() for x in tensors(queries, keys, kv_heads=2)]
    learned = list(encoding.parameters())
    found, want = (gradients(backend, make, encoding, given, learned) for backend in ("flex", "reference"))
    assert all(x.any() for x in want)
    for x, y in zip(found, want, strict=True):
        assert torch.allclose(x, y, atol=1e-11)


@pytest.mark.parametrize("n", [36, 40, 64])
def test_float32_on_the_cpu(n):
    """Not by torch 2.13's compiled kernel, which leaves two of 40 rows wrong."""
    q, k, v = (x.float() for x in tensors(n, n))
    with torch.no_grad():
        for encoding in (None, ALiBi(H)):
            want = attention(q, k, v, encoding, backend="reference", positions=Positions.arange(n, causal=True))
            found = attention(q, k, v, encoding, backend="flex", positions=Positions.arange(n, causal=True))
            assert torch.allclose(found, want, atol=1e-5)


def test_a_longer_sequence_needs_no_other_graph():
    counter, encodings = CompileCounter(), (ALiBi(H), create("shaw:clip=3:terms=keys", head_dim=D, num_heads=H))
    run = torch.compile(flex._run, dynamic=True, fullgraph=True, backend=counter)
    for n in (520, 700, 1030):
        for encoding in encodings:
            given = (x.detach() for x in tensors(n, n))
            problem = prepare(Call(*given, encoding, Positions.arange(n, causal=True)))
            mask = flex._block_mask(problem)
            run(problem.q, problem.k, problem.v, tuple(flex._lookups(problem)), mask, problem.scale, False)
    assert counter.frame_count == len(encodings)


def test_inside_a_compiled_model_it_is_refused_on_the_cpu():
    """Where PyTorch would take its compiled kernel."""
    q, k, v = (x.float() for x in tensors(5, 5))
    p, alibi = Positions.arange(5, causal=True), ALiBi(H)
    run = torch.compile(lambda *x: attention(*x, alibi, p, backend="flex"), backend="eager")
    with torch.no_grad(), pytest.raises(InputError, match="not compiled for the CPU"):
        run(q, k, v)


def test_what_cannot_be_served_is_refused():
    q, k, v = tensors(5, 5)
    with torch.no_grad():
        attention(q.clone().requires_grad_(), k, v, backend="flex")
    encoding = Everything()
    encoding.bias = lambda q, k, positions, layer=0: None
    assert isinstance(encoding.values(None), Values)
    for reason, call in {
        "a term on the values": lambda: attention(q, k, v, encoding, backend="flex"),
        "no dropout": lambda: attention(q, k, v, dropout_p=0.1, backend="flex"),
        "no backward on the CPU": lambda: attention(q.clone().requires_grad_(), k, v, backend="flex"),
    }.items():
        with pytest.raises(InputError, match=reason):
            call()


def test_what_auto_takes():
    """FlexAttention on a GPU where SDPA would need a dense mask; never on the CPU."""
    assert explain(*tensors(5, 5), T5(H)).backend == "sdpa"
    p, packed = Positions.arange(2048, causal=True), Positions.packed([1024, 1024])
    with FakeTensorMode(allow_non_fake_inputs=True):
        q, k, v = (torch.empty(2, H, 2048, D, dtype=torch.bfloat16, device="cuda") for _ in range(3))

        def taken(*terms, q=q, k=k, positions=p, sink=None, dropout_p=0.0):
            problem = Problem(q, k, v, list(terms), None, positions, 1.0, sink, dropout_p)
            return _choose(problem, "auto")[0]

        alibi = ALiBi(H).bias(q, k, p)
        assert [taken(), taken(positions=p.with_causal(False))] == ["sdpa", "sdpa"]
        assert [taken(alibi), taken(positions=packed), taken(sink=torch.zeros(H))] == ["flex", "flex", "flex"]
        assert taken(alibi, dropout_p=0.1) == "sdpa"
        assert taken(alibi, q=torch.empty(2, H, 2048, 320, device="cuda")) == "sdpa", "wider than flex's kernels"
        assert taken(alibi, q=q.double()) == "sdpa"
        few = (torch.empty(2, H, 1024, D, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        short = Positions.arange(1024, causal=True)
        assert _choose(Problem(*few, [alibi], None, short, 1.0, None, 0.0), "auto")[0] == "sdpa", "a small dense mask"


def test_tiles_of_looked_up_numbers_fit_into_shared_memory():
    """FlexAttention is asked for fewer stages where its tiles are largest: heads of 64 in half precision."""
    q = SimpleNamespace(device=torch.device("cuda"), shape=(1, 1, 1, 64), element_size=lambda: 2)
    assert flex._kernel_options(q, ["a lookup"]) == {"fwd_num_stages": 2}
    assert flex._kernel_options(q, []) == {}
    assert flex._kernel_options(torch.empty(1, 1, 1, 64), ["a lookup"]) == {}


def test_what_explain_says():
    q, k, v = (x.float() for x in tensors(64, 64))
    p = Positions.arange(64, causal=True)
    with torch.no_grad():
        assert "materialised" in explain(q, k, v, ALiBi(H), p, backend="flex").reason
