"""What every encoding bears or refuses: parameters without values, half default dtypes, empty batches, coordinates that learn,
modes that see every operation."""

import contextlib
import copy
from inspect import signature
from typing import get_type_hints

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode

import posenc
from hostile.test_checkpoints import little_memory
from posenc import InputError, Positions, attention
from posenc.backends import fused
from posenc.conformance.fixtures import DECODER, EncodingUnderTest, attention_inputs, named
from posenc.encoding import gates_of
from posenc.encodings.patterns import PATTERNS
from posenc.errors import kinds
from test_hidden import Case

EVERY = pytest.mark.parametrize("name", posenc.ENCODINGS)


@EVERY
def test_parameters_on_meta_are_refused(name):
    case = Case(name)
    if not any(True for _ in case.encoding.parameters()):
        return
    positions = Positions.arange(7, causal=True)
    x, inputs = torch.randn(1, 7, DECODER.dim), case.inputs(positions)
    case.encoding.to("meta")
    for p in (positions, Positions.arange(1, 6, causal=True)):
        with pytest.raises(InputError, match="meta"):
            attention(inputs[0][:, :, -p.num_queries :], *inputs[1:3], case.encoding, p, gates=inputs[3:] or None)
    for act in (lambda: case.encoding.effects(positions).embedded(x), lambda: gates_of(case.encoding, x)):
        with pytest.raises(InputError, match="meta"):
            act()


@torch.no_grad()
@pytest.mark.parametrize("name", [*posenc.ENCODINGS, "learned:merge=concat"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch")
def test_a_model_computes_with_quantized_linear_layers(name):
    model, ids = EncodingUnderTest(named(name)).model(DECODER, torch.float32).eval(), torch.arange(9)[None] % 5
    want = model(ids)
    quantized = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    assert not torch.equal(quantized(ids), want)
    torch.testing.assert_close(
        quantized(ids), want, rtol=0, atol=(0.1 if name == "tapa" else 0.05) * float(want.abs().max())
    )  # a phase multiplies what is rounded


@pytest.mark.parametrize("name", [*posenc.ENCODINGS, "rope@rerope:window=4", "rope+alibi", "rope/none"])
def test_an_option_is_fixed_when_the_encoding_is_made(name):
    """Its tables would follow at the next cast. What is a parameter, a buffer or a module acts at once."""
    encoding, refused = copy.deepcopy(named(name)(DECODER)), 0
    for part in encoding.modules():
        if isinstance(part, posenc.Encoding):
            held = {**part._parameters, **part._buffers, **part._modules}
            for option in part.arguments().keys() - held.keys():
                before = getattr(part, option)
                with pytest.raises(InputError, match=f"^{option}=.*make another {type(part).__name__}"):
                    setattr(part, option, 3)
                assert getattr(part, option) is before
                refused += 1
    assert refused or not encoding.arguments()
    encoding.double().train().requires_grad_(False)


def test_coefficients_that_were_drawn_on_meta_are_refused():
    case, positions = Case("fope"), Positions.arange(7, causal=True)
    case.encoding.to("meta")
    with pytest.raises(InputError, match="meta"):
        case.results(case.inputs(positions), positions, trains=False)


def test_operators_refuse_one_tensor_on_meta():
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(InputError, match="meta"):
        fused.attend([q, q, q.to("meta")], "1", [0, 0, 0, *[0] * fused.NUMBERS, -1, 0, 4, 0, 4, 0, 0], 1.0, 0.0)


@pytest.mark.parametrize("name", [*posenc.ENCODINGS, "sinusoidal:merge=concat"])
def test_is_made_under_a_half_default_dtype(name):
    for dtype in (torch.bfloat16, torch.float16):
        torch.set_default_dtype(dtype)
        try:
            encoding = named(name)(DECODER)
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(x.isfinite().all() for x in encoding.parameters())


@EVERY
def test_sizes_that_are_none_are_named(name):
    shape = {"dim": 16, "num_heads": 4, "num_layers": 2, "max_positions": 32}
    hints = get_type_hints(posenc.ENCODINGS[name].__init__, include_extras=True)
    for option in posenc.ENCODINGS[name].arguments():
        for size in (0, -1, 2**40) if int in kinds(hints[option]) or "check_sizes" in str(hints[option]) else ():
            named = pytest.raises(InputError, match=f"^{option}={size}: ")
            with named if "check_sizes" in str(hints[option]) else contextlib.suppress(InputError):
                posenc.create(name, **shape | {option: size})


@pytest.mark.parametrize("name", [name for name, cls in posenc.ENCODINGS.items() if "rotate" in cls.own_sites])
def test_each_side_refuses_other_widths_and_heads(name):
    encoding, axes = of_layers(name, 2), getattr(posenc.ENCODINGS[name], "axes", 1)
    p = Positions.arange(5, causal=True) if axes == 1 else Positions.grid(*(5, 1, 1)[:axes])
    p = p.with_gates(gates_of(encoding, torch.randn(1, 5, DECODER.dim)))
    q, k, wide_q, wide_k = (torch.randn(1, heads, 5, width) for width in (4, 6) for heads in (4, 2))
    assert (DECODER.num_heads, DECODER.kv_heads, DECODER.width) == (4, 2, 4)
    more = torch.cat((q, q), 1)
    calls = {
        "head_dim": [("rotate", wide_q, k), ("rotate", q, wide_k), ("rotate_queries", wide_q), ("rotate_keys", wide_k)],
        "num_heads": [("rotate", more, k), ("rotate_queries", more)],
    }
    for hook, *given in (call for size in calls if size in encoding.arguments() for call in calls[size]):
        with pytest.raises(InputError, match=r"head_dim|heads|apart"):
            getattr(encoding, hook)(*given, p)


@EVERY
def test_a_batch_of_no_rows(name):
    case, positions = Case(name), Positions.arange(9, causal=True)
    inputs = [x[:0] for x in case.inputs(positions)]
    for backend in ("auto", "reference"):
        assert case.results(inputs, positions, backend=backend)[0].shape == (0, *inputs[0].shape[1:])


@pytest.mark.parametrize(("axes", "causal", "backend"), [(1, True, "auto"), (1, False, "sdpa"), (2, True, "auto")])
@EVERY
def test_coordinates_learn_or_are_refused(name, axes, causal, backend):
    case = Case(name, dtype=torch.float64)
    at = torch.tensor([[0.3, 1.6, 2.2, 3.9, 5.1, 6.4]], dtype=torch.float64)
    at = at if axes == 1 else torch.stack((at, 0.7 * at.flip(1)), -1)
    inputs = [x.double() for x in case.inputs(Positions.from_ids(at))]
    weight, step = torch.randn_like(inputs[0]), 1e-5 * torch.randn_like(at)

    def loss(ids):
        positions = Positions.from_ids(ids, causal=causal)
        return (
            attention(*inputs[:3], case.encoding, positions, gates=inputs[3:] or None, backend=backend) * weight
        ).sum()

    leaf = at.clone().requires_grad_()
    try:
        out = loss(leaf)
    except InputError:
        return
    expected = float((loss(at + step) - loss(at - step)).detach()) / 2
    (grad,) = torch.autograd.grad(out, leaf, allow_unused=True) if out.requires_grad else (None,)
    assert expected == pytest.approx(0.0 if grad is None else float((grad * step).sum()), rel=1e-4, abs=1e-12)


def test_adapted_slopes_take_fractional_ids():
    case = Case("dape:kind=alibi")
    positions = Positions.from_ids(30 * torch.rand(1, 5, dtype=torch.float64), causal=True, packed=False)
    (out,) = case.results(case.inputs(positions), positions, trains=False)
    assert out.isfinite().all()


@pytest.mark.parametrize("name", ["none", "rope", "alibi", "rope+alibi", "t5", "rope@rerope:window=3", "floater"])
def test_nothing_made_under_a_mode_outlives_it(name):
    case, positions = Case(name), Positions.arange(1, 6, causal=True)
    inputs = case.inputs(positions)
    fresh = case.results(inputs, Positions.arange(1, 6, causal=True), trains=False)[0]
    # what reads a number, or mixes in a real table, cannot run there
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, contextlib.suppress(Exception):
        case.results([mode.from_tensor(x) for x in inputs], positions, trains=False)
    assert torch.equal(case.results(inputs, positions, trains=False)[0], fresh)


@pytest.mark.parametrize("name", ["none", "rope", "alibi", "rope+alibi", "t5", "rope@rerope:window=3", "cope"])
def test_shapes_are_computed_under_a_mode(name):
    case = Case(name)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        positions = Positions.arange(9, causal=True)
        (out,) = case.results([mode.from_tensor(x) for x in case.inputs(positions)], positions, trains=False)
    assert isinstance(out, FakeTensor)
    assert out.shape == (2, DECODER.num_heads, 9, DECODER.width)


@pytest.mark.parametrize("name", posenc.ENCODINGS)
def test_what_is_not_a_number_ends_no_call(name):
    case = Case(name)
    for queries in (1, 9):
        positions = Positions.arange(queries, 9 - queries, causal=True)
        for at in range(len(case.inputs(positions))):
            inputs = case.inputs(positions)
            inputs[at][:, :, 0] = torch.nan
            with contextlib.suppress(InputError):
                case.results(inputs, positions, trains=False)


@pytest.mark.parametrize("name", posenc.ENCODINGS)
def test_positions_of_seconds_since_1970_are_answered_or_refused(name):
    """Nothing takes a step, or a row of a table, for each position before them."""
    case = Case(name)
    ids = Positions.from_ids(1_800_000_000 + torch.arange(9), causal=True)
    with contextlib.suppress(InputError), little_memory(2**30):
        case.results(case.inputs(ids), ids, trains=False)


def of_layers(text, num_layers):
    return posenc.create(
        text, dim=DECODER.dim, num_heads=DECODER.num_heads, head_dim=DECODER.width, num_kv_heads=DECODER.kv_heads,
        num_layers=num_layers, max_positions=64, causal=True,
    )  # fmt: skip


BY_LAYER = [name for name, cls in posenc.ENCODINGS.items() if "num_layers" in cls.arguments()]


@pytest.mark.parametrize(
    "text",
    [
        *BY_LAYER,
        *(each for each in PATTERNS if each != "partial_rope"),
        "rope/none",
        "rope/none/shaw",
        "none/rope+alibi",
    ],
)
def test_a_layer_that_the_model_does_not_have_is_refused(text):
    encoding, positions = of_layers(text, 3), Positions.arange(5, causal=True)
    q, k, v, x = attention_inputs(DECODER, positions)
    encoding.share([(lambda x: x, lambda x: x)] * 3)
    calls = [
        lambda at: attention(q, k, v, encoding, positions, layer=at, gates=gates_of(encoding.double(), x, 0) or None)
    ]
    calls += [lambda at: gates_of(encoding, x, at)] * ("gates" in encoding.sites())
    for call in calls:
        call(2)
        with pytest.raises(InputError, match=r"^layer=3: .* was made with num_layers=3; pass at most 2$"):
            call(3)
    again = posenc.from_spec(encoding.spec())
    with pytest.raises(InputError, match="layer=3: "):
        again.acting_in(3).part.own_layer(again.acting_in(3).number)


@pytest.mark.parametrize("name", BY_LAYER)
def test_a_hook_that_is_called_by_itself_refuses_such_a_layer(name):
    encoding, positions = of_layers(name, 3).double(), Positions.arange(5, causal=True)
    q, k, v, x = attention_inputs(DECODER, positions)
    encoding.share([(lambda x: x, lambda x: x)] * 3)
    inputs = {"q": q, "k": k, "v": v, "x": x, "scale": 1.0, "head_dim": DECODER.width, "layer": 3}
    inputs["positions"] = positions.with_gates(tuple(gates_of(encoding, x)))
    refused = []
    for site in encoding.own_sites:
        hook = getattr(encoding, site)
        try:
            hook(**{argument: inputs[argument] for argument in signature(hook).parameters})
        except InputError as error:
            refused.append(str(error))
    assert refused
    assert all("layer=3: " in text or "for layer 3: " in text for text in refused)


@pytest.mark.parametrize("text", ["rope_nope:every=4", "rope/rope/rope/none"])
def test_turns_of_a_model_of_any_depth(text):
    encoding = of_layers(text, None)
    assert [encoding.acting_in(layer).part.known_as for layer in range(40)] == ["rope", "rope", "rope", "none"] * 10


@EVERY
def test_heads_in_the_place_of_tokens_are_named(name):
    case, positions = Case(name), Positions.arange(9, causal=True)
    q, k, v, *gates = case.inputs(positions)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with pytest.raises(
        InputError, match=r"^q of shape .* (positions are for 9 queries|has num_heads=4): .*q\.transpose\(1, 2\)$"
    ):
        attention(q, k, v, case.encoding, positions, gates=gates or None)
    heads = any(getattr(part, "num_heads", None) == DECODER.num_heads for part in case.encoding.modules())
    if heads and q.shape[2] == k.shape[2]:
        for encoding in (case.encoding, case.encoding + posenc.NoPE()):
            with pytest.raises(InputError, match=r"has num_heads=.*q\.transpose\(1, 2\)$"):
                attention(q, k, v, encoding, causal=True)


@pytest.mark.parametrize("call", [attention, posenc.explain, posenc.linear_attention])
def test_names_of_pytorchs_attention_get_a_sentence(call):
    q = torch.randn(1, 2, 4, 8)
    for option, remedy in (("is_causal", "pass causal=, or causal positions"), ("attn_mask", "pass Positions, which")):
        with pytest.raises(InputError, match=f"^{option}=True: {remedy}"):
            call(q, q, q, posenc.NoPE(), **{option: True})
    with pytest.raises(TypeError, match="unexpected keyword argument 'mask'"):
        call(q, q, q, posenc.NoPE(), mask=None)


def _schedules(count):
    return [{"name": "explicit", "stretch": [1.0, 2.0, 3.0, 4.0][:count]}]


CONTAINERS = {
    **{(name, "schedule"): _schedules(4)[0] for name in ("rope", "xpos", "learned_rope", "rope_pp", "m_rope", "rove")},
    ("p_rope", "schedule"): {"name": "linear", "factor": 2.0},
    ("decoupled_rope", "schedule"): {"name": "explicit", "stretch": [2.0]},
    ("head_rope", "schedules"): _schedules(4),
    ("axial_rope", "sections"): [1, 3],
    ("axial_rope", "rope_theta"): [100.0, 50.0],
    ("axial_rope", "schedules"): _schedules(2),
    ("m_rope", "sections"): [2, 1, 1],
    ("cayley_string", "sections"): [1, 3],
    ("cayley_string", "schedules"): _schedules(4),
    ("alibi", "slopes"): [[0.5, 0.25], [1.0, 2.0]],
    ("grid_alibi", "slopes"): [0.5, 0.25],
    ("window", "before"): [2, None],
    ("window", "after"): [1, 3],
}  # fmt: skip
"""Arguments that hold several numbers, for heads of width 8, of which there are 2."""


def _made(name, argument, value):
    given = {argument: value} | ({"before": [2, 5]} if argument == "after" else {})
    return posenc.create(name, head_dim=8, num_heads=2, dim=16, max_positions=8, **given)


def _changed(value, leaf):
    """A list or dict with its entries replaced, in depth."""
    for at in value if isinstance(value, dict) else range(len(value)):
        if isinstance(value[at], (dict, list)):
            _changed(value[at], leaf)
        elif not isinstance(value[at], str):
            value[at] = leaf(value[at])
    return value


def test_arguments_of_several_numbers_are_all_tried():
    declared = {
        (name, argument)
        for name, cls in posenc.ENCODINGS.items()
        for argument, parameter in cls.arguments().items()
        if "Sequence" in str(parameter) or "Mapping" in str(parameter)
    }
    assert declared == CONTAINERS.keys()


@pytest.mark.parametrize(("name", "argument"), CONTAINERS)
def test_a_list_that_its_caller_changes_later_changes_nothing(name, argument):
    """A cast computes tables anew, from the arguments."""
    given = copy.deepcopy(CONTAINERS[name, argument])
    encoding = _made(name, argument, given)
    spec, tables = copy.deepcopy(encoding.spec()), {at: x.clone() for at, x in encoding.named_buffers()}
    for container in (given, encoding.spec()):
        _changed(container, lambda number: (number or 0) + 1)
        encoding.half().float()
        assert encoding.spec() == spec
        assert all(torch.equal(x, tables[at]) for at, x in encoding.named_buffers())


@pytest.mark.parametrize(("name", "argument"), CONTAINERS)
@pytest.mark.parametrize(
    "wrong", [1.5, -1, None, True, "a", [1], float("nan"), 1e300, 10**400], ids=lambda x: str(x)[:5]
)
def test_what_is_no_number_of_a_list_is_refused_or_served(name, argument, wrong):
    """A slope of 1e300 is no number of float32, and its bias at distance 0 was none at all."""
    try:
        encoding = _made(name, argument, _changed(copy.deepcopy(CONTAINERS[name, argument]), lambda _: wrong))
    except InputError:
        return
    if name == "learned_rope":  # what its frequencies learn from is only where it starts
        return
    axes = {"axial_rope": 2, "m_rope": 3}.get(name, encoding.axes if name == "cayley_string" else 1)
    positions = Positions.arange(5) if axes == 1 else Positions.grid(5, 1, *([1] if axes == 3 else []))
    q, k, v = torch.randn(3, 2, 2, 5, 8)
    with torch.no_grad():
        assert attention(q, k, v, encoding, positions, gates=gates_of(encoding, torch.randn(2, 5, 16))).isfinite().all()


@EVERY
def test_some_of_the_keys_are_where_they_were(name):
    """What positions know of their keys without reading them is of those that are left."""
    case, served = Case(name, dtype=torch.float64), 0
    for positions in (Positions.arange(9, causal=True), Positions.arange(7, 2)):
        some = positions.keys(2, 6)
        inputs = [x.double() for x in case.inputs(some)]
        for backend in ("auto", "sdpa", "reference"):
            with contextlib.suppress(InputError):
                got, want = (case.results(inputs, p, backend=backend) for p in (some, some.derived()))
                served += 1
                for a, b in zip(got, want, strict=True):
                    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    assert served or {"gates", "restrict"} & set(case.encoding.sites()) or case.encoding.needs_length
