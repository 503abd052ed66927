"""Hidden tokens may hold anything: what they hold in queries, keys, values, gates or the layer's input that gates are made of
reaches no output and no gradient, under any encoding, on any backend."""

import pytest
import torch

import posenc
from posenc import InputError, Positions, attention
from posenc.conformance.fixtures import DECODER, ENCODER, EncodingUnderTest, named, uncompiled
from posenc.encoding import gates_of

N, POISON = 11, (float("nan"), float("inf"), 3e38)
SUMS = (
    "rope+alibi", "sinusoidal+t5", "rope+sink", "rope+cope", "fox+rope", "rope+window:before=3", "rope+rove+prefix_kv", "shaw+rope",
    "rope@rerope:window=3", "rope@rerope:window=3+window:before=4", "rope@self_extend:window=3:group=2+alibi",
    "rope+dape:kind=fire", "rope/none",
)  # fmt: skip
NAMES = [*posenc.ENCODINGS, *SUMS]


def last(positions, queries):
    """The same tokens, of which the last are the queries."""
    part = {
        name: None if x is None else x[:, -queries:]
        for name in ("q", "q_order", "q_valid", "q_document")
        for x in [getattr(positions, name)]
    }
    return positions.derived(**part)


def mask(first, end):
    return ((torch.arange(N) >= torch.tensor(first)[:, None]) & (torch.arange(N) < torch.tensor(end)[:, None])).long()


LAYOUTS = {
    "left": lambda queries: Positions.from_mask(mask([0, 4], [N, N]), queries, causal=True),
    "right": lambda queries: Positions.from_mask(mask([0, 0], [N, N - 3]), queries, causal=True),
    "packed": lambda queries: last(
        Positions.packed(document_ids=torch.tensor([0] * 4 + [1] * 5 + [-1] * 2), causal=True), queries
    ),
    "rows": lambda queries: last(
        Positions.packed(document_ids=torch.tensor([[0] * 4 + [1] * 7, [0] * 9 + [-1] * 2]), causal=True), queries
    ),
    "ragged": lambda queries: Positions.arange(queries, torch.tensor([N - queries, 1]), causal=True),
    "slots": lambda queries: Positions.cross(Positions.arange(queries, 7 - queries), Positions.arange(N)).with_causal(
        True
    ),
}
"""Positions of so many queries, at most 7, among N keys, of two rows; "slots": a cache of fixed size, filled up to the last query."""
BOTH_WAYS = ("left", "right", "packed", "rows")


def unseen(positions):
    """Which queries are padding, and which keys are, or come after every query."""
    queries = torch.zeros(1, positions.num_queries).bool() if positions.q_valid is None else ~positions.q_valid
    keys = ~positions.mask()[:, 0].any(1) if positions.valid is None else ~positions.valid
    return queries, keys


class Case:
    """An encoding that has what it shares with a model, and the inputs of one call."""

    def __init__(self, name, config=DECODER, dtype=torch.float32):
        tested = EncodingUnderTest(named(name))
        model = tested.model(config, dtype)
        if not tested.is_text:
            raise AssertionError(name)
        model(torch.arange(9)[None] % 5, tested.document(9))  # the model shares its projections
        self.encoding, self.config = model.encoding, config
        projections = [parameter for at, parameter in model.named_parameters() if at.endswith("query.weight")]
        self.parameters = [*self.encoding.parameters(), *projections]

    def inputs(self, positions):
        generator = torch.Generator().manual_seed(0)
        c, queries, keys = self.config, positions.num_queries, positions.num_keys
        shapes = (c.num_heads, queries), (c.kv_heads, keys), (c.kv_heads, keys)
        q, k, v = (torch.randn(2, *shape, c.width, generator=generator) for shape in shapes)
        with torch.no_grad():
            gates = gates_of(self.encoding, torch.randn(2, keys, c.dim, generator=generator))
        return [q, k, v, *gates]

    def results(self, inputs, positions, trains=True, **options):
        """The output, and the gradients of inputs and of parameters."""
        leaves = [x.detach().clone().requires_grad_(trains) for x in inputs]
        parameters = [x for x in self.encoding.parameters() if x.requires_grad] if trains else []
        q, k, v, *gates = leaves
        with torch.set_grad_enabled(trains):
            out = attention(q, k, v, self.encoding, positions, gates=gates or None, **options)
        if not trains:
            return [out]
        grads = torch.autograd.grad(out.square().sum(), [*leaves, *parameters], allow_unused=True)
        return [out, *(x for x in grads if x is not None)]


def poisoned(inputs, positions, poison):
    queries, keys = unseen(positions)
    assert bool(queries.any() | keys.any())
    return [x.masked_fill((keys if at else queries)[:, None, :, None], poison) for at, x in enumerate(inputs)]


def check(name, layouts, counts, backends, poisons, config=DECODER, trains=True):
    case, served = Case(name, config), 0
    for layout in layouts:
        for queries in counts:
            positions = LAYOUTS[layout](queries).with_causal(config.causal)
            inputs = case.inputs(positions)
            for backend in backends:
                try:
                    want = case.results(inputs, positions, trains, backend=backend)
                except InputError:
                    continue
                assert all(x.isfinite().all() for x in want), (layout, queries, backend)
                served += 1
                for poison in poisons:
                    got = case.results(poisoned(inputs, positions, poison), positions, trains, backend=backend)
                    for a, b in zip(got, want, strict=True):
                        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), (layout, queries, backend, poison)
    return served


@pytest.mark.parametrize("name", NAMES)
def test_nothing_hidden_is_read(name):
    layouts = list(LAYOUTS)
    served = check(name, layouts[::2], (1,), ("auto",), POISON[:1]) + check(
        name, layouts[1::2], (2,), ("auto",), POISON[:1]
    )
    assert served or Case(name).encoding.needs_length
    check(name, ("left", "right", "rows"), (7,), ("auto",), POISON[2:])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_hidden_is_read_by_any_backend(name):
    check(name, LAYOUTS, (1, 2, 7), ("auto", "sdpa", "reference"), POISON)
    check(name, BOTH_WAYS, (N,), ("auto", "sdpa", "reference"), POISON)
    if not Case(name).encoding.causal_only:
        check(name, BOTH_WAYS, (1, N), ("auto", "reference"), POISON, ENCODER)
    with uncompiled():
        check(name, ("left", "rows", "ragged", "slots"), (1, 2), ("flex",), POISON[:1], trains=False)


def test_what_is_padding_in_the_input_reaches_no_gradient():
    for name in (*posenc.ENCODINGS, "learned:merge=multiply", "sinusoidal:merge=concat"):
        case = Case(name, dtype=torch.float64)
        positions, encoding = LAYOUTS["left"](N), case.encoding
        if "embed" not in encoding.sites():
            continue
        x = torch.randn(2, N, case.config.dim, dtype=torch.float64, requires_grad=True)

        def results(padding, x=x, positions=positions, encoding=encoding):
            out = encoding.effects(positions).embedded(x.masked_fill(~positions.q_valid[..., None], padding))
            out = out[positions.q_valid]
            return [out, *torch.autograd.grad(out.sin().sum(), [x, *encoding.parameters()], materialize_grads=True)]

        for poison in POISON:
            for a, b in zip(results(poison), results(0.0), strict=True):
                assert torch.equal(a, b), name


def of_layer_inputs(case, positions, x, of_heads):
    """The output of attention whose gates are made of x, and the gradients of x, q, k, v and of parameters."""
    leaves = [x.detach().clone().requires_grad_(), *(y.detach().clone().requires_grad_() for y in of_heads)]
    gates = gates_of(case.encoding, leaves[0])
    out = attention(*leaves[1:], case.encoding, positions, gates=gates or None)
    wanted = [*leaves, *case.parameters]
    return [out, *torch.autograd.grad(out.square().sum(), wanted, allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_hidden_in_the_input_of_a_layer_reaches_no_output_and_no_gradient(name):
    case = Case(name)
    for layout in BOTH_WAYS:
        positions = LAYOUTS[layout](N)
        _, keys = unseen(positions)
        q, k, v, *gates = case.inputs(positions)
        if not gates:
            return  # x is not read: see test_which_encodings_read_the_input_of_a_layer
        x = torch.randn(2, N, case.config.dim, generator=torch.Generator().manual_seed(1))
        want = of_layer_inputs(case, positions, x.masked_fill(keys[..., None], 0.0), (q, k, v))
        assert all(each.isfinite().all() for each in want)
        for poison in POISON:
            got = of_layer_inputs(case, positions, x.masked_fill(keys[..., None], poison), (q, k, v))
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b)


def test_which_encodings_read_the_input_of_a_layer():
    readers = {name for name in posenc.ENCODINGS if "gates" in Case(name).encoding.sites()}
    assert readers >= {"fox", "path", "wall", "selective_attention", "selective_rope", "mamba3_rope", "carope"}
    x = torch.full((1, 2, DECODER.dim), torch.nan)
    assert all((len(gates_of(Case(name).encoding, x)) > 0) == (name in readers) for name in posenc.ENCODINGS)


@pytest.mark.parametrize("value", POISON)
def test_what_is_visible_in_the_input_of_a_layer_must_be_a_number(value):
    case, positions = Case("rope+fox"), Positions.arange(N, causal=True)
    q, k, v, _ = case.inputs(positions)
    x = torch.randn(2, N, case.config.dim)
    x[0, 3, 1] = value
    with pytest.raises(InputError, match="check the layer's input"):
        attention(q, k, v, case.encoding, positions, gates=gates_of(case.encoding, x))


DOCUMENTS = torch.tensor([0] * 6 + [1] * 5)
PARTLY = {
    "documents": lambda: Positions.packed(document_ids=DOCUMENTS, causal=True),
    "both ways": lambda: Positions.packed(document_ids=DOCUMENTS),
    "window": lambda: Positions.arange(N, causal=True).with_window(3, None),
}


@pytest.mark.parametrize("backend", ["auto", "sdpa", "reference"])
@pytest.mark.parametrize("layout", PARTLY)
def test_a_large_number_that_some_queries_do_not_see_reaches_none_of_them(layout, backend):
    """What is promised of tokens that others see: as long as products are finite, a weight of zero is zero. NaN is NaN in the
    equation itself, sum_j p_ij v_j with p_ij = 0."""
    positions, generator = PARTLY[layout](), torch.Generator().manual_seed(0)
    for name in (None, "rope", "alibi", "sink", "shaw", "rope+t5"):
        encoding = None if name is None else Case(name).encoding
        inputs = [torch.randn(2, DECODER.num_heads, N, DECODER.width, generator=generator) for _ in range(3)]
        want = attention(*inputs, encoding, positions, backend=backend)
        for at in (1, 2):
            changed = [x.clone() for x in inputs]
            changed[at][:, :, 2] = 1e30
            blind = ~positions.mask()[0, 0, :, 2]
            got = attention(*changed, encoding, positions, backend=backend)
            assert blind.any()
            torch.testing.assert_close(got[:, :, blind], want[:, :, blind])
    q, k, v = inputs
    v[:, :, 2] = float("nan")
    seen = positions.mask()
    weights = (q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1)
    assert (weights @ v).isnan().all()
