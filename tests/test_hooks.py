# SPDX-License-Identifier: Apache-2.0
"""Encodings of the user's own: what their hooks return is validated where the library calls them, what they raise passes
through, and a subclass is itself in sums, specs and copies."""

import copy
import inspect
import json
import pickle
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import torch._dynamo.testing

import posenc
from posenc import Encoding, InputError, Positions, attention, from_spec
from posenc.bias import Dense
from posenc.encoding import HOOKS, Size, gates_of
from posenc.lab.transformer import Transformer, TransformerConfig
from posenc.position_maps import PositionMap
from posenc.positions.visibility import Branch, Region

CONFIG = TransformerConfig(11, dim=16, num_layers=2, num_heads=2)
TOKENS = torch.arange(6)[None]
SHAPE = {"dim": 16, "num_heads": 2, "head_dim": 8, "max_positions": 8, "causal": True}


def given(heads=2, kv_heads=2, n=6, width=8, batch=1):
    torch.manual_seed(0)
    q = torch.randn(batch, heads, n, width, dtype=torch.float64)
    k, v = torch.randn(2, batch, kv_heads, n, width, dtype=torch.float64)
    return q, k, v


def with_hook(name, function):
    """An encoding with one hook."""
    return type("Mine", (Encoding,), {name: function})()


@pytest.mark.parametrize(
    ("hook", "function", "message"),
    [
        ("augment", lambda s, positions, batch: None, r"Mine.augment returned None: return Positions"),
        ("augment", lambda s, p, b: Positions.arange(5), r"Mine.augment returned Positions\(5 queries"),
        ("embed", lambda s, x, p, layer=0: None, r"Mine.embed returned None: return a tensor of x's shape"),
        ("embed", lambda s, x, p, layer=0: x[:, :1], r"Mine.embed returned a tensor of shape \(1, 1, 16\)"),
        ("rotate", lambda s, q, k, p, layer=0: None, r"Mine.rotate returned None: return the pair \(q, k\)"),
        ("rotate", lambda s, q, k, p, layer=0: q, r"Mine.rotate returned a tensor .*: return the pair"),
        ("rotate", lambda s, q, k, p, layer=0: (q, k[:, :, 1:]), r"Mine.rotate returned .*: return k \(1, 2, 6, 8\)"),
        ("rotate", lambda s, q, k, p, layer=0: (q, torch.cat((k, k), 2)), r"Mine.rotate.*: return k"),
        ("rotate", lambda s, q, k, p, layer=0: (torch.cat((q, q), 1), k), r"Mine.rotate.*: return q"),
        ("rotate", lambda s, q, k, p, layer=0: (q.half(), k), r"Mine.rotate.*: return q .* in torch.float32"),
        ("rotate", lambda s, q, k, p, layer=0: (q[..., :4], k), r"Mine.rotate returned q 4 wide and k 8 wide"),
        ("values", lambda s, p, layer=0: torch.zeros(6, 8), r"Mine.values returned .*: return posenc.bias.Values"),
        ("rotate_values", lambda s, v, p, layer=0: None, r"Mine.rotate_values returned None: return v \(1, 2, 6, 8\)"),
        ("rotate_values", lambda s, v, p, layer=0: v[..., :4], r"Mine.rotate_values returned .*: return v"),
        ("rotate_values", lambda s, v, p, layer=0: v.half(), r"Mine.rotate_values.*: return v .* in torch.float32"),
        ("turn_back", lambda s, out, p, layer=0: None, r"Mine.turn_back returned None: return the output \(1, 2, 6, 8\)"),
        ("turn_back", lambda s, out, p, layer=0: out[:, :1], r"Mine.turn_back returned .*: return the output"),
        ("scale", lambda s, width: "1", r"Mine.scale returned '1': return a number"),
        ("scale", lambda s, width: torch.nn.Parameter(torch.ones(())), r"Mine.scale returned a tensor.*in rotate"),
        ("scale", lambda s, width: float("nan"), r"Mine.scale returned nan: return a finite number"),
        ("branches", lambda s, layer=0: Branch(Region()), r"Mine.branches returned .*: return a sequence of Branch"),
    ],
)  # fmt: skip
def test_what_a_hook_returns_is_refused_by_its_name(hook, function, message):
    with pytest.raises(InputError, match=message):
        Transformer(CONFIG, with_hook(hook, function))(TOKENS)
    with pytest.raises(InputError, match=message):  # and within a sum
        Transformer(CONFIG, posenc.NoPE() + with_hook(hook, function))(TOKENS)


def test_a_scale_of_zero_is_a_scale():
    model = Transformer(CONFIG, with_hook("scale", lambda self, width: 0.0))
    assert model(TOKENS).isfinite().all()


def test_tables_that_were_not_registered_are_named():
    encoding = with_hook("tables", lambda self: {"t": torch.ones(2)})
    with pytest.raises(
        InputError, match=r"Mine.tables\(\) has 't', which is not registered: call self.register_tables"
    ):
        encoding.to(torch.float64)


# ---------------------------------------------------------------- a window of one branch


class Window(Encoding):
    def branches(self, layer=0):
        return (Branch(Region(farthest=3)),)


@pytest.mark.parametrize("encoding", [
    Window(),
    posenc.Mapped(posenc.Rotary(8), PositionMap("window", {}, (Branch(Region(farthest=3)),), True, ())),
])  # fmt: skip
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_the_region_of_a_single_branch_hides_keys_in_a_full_pass_and_from_a_cache(encoding, backend):
    q, k, v = given()
    p, far = Positions.arange(6, causal=True), torch.arange(6)[:, None] - torch.arange(6) >= 3
    turned = encoding.encoding.rotate(q, k, p) if isinstance(encoding, posenc.Mapped) else (q, k)
    hidden = far | ~p.mask()[0, 0]
    want = torch.nn.functional.scaled_dot_product_attention(*turned, v, attn_mask=~hidden)
    torch.testing.assert_close(attention(q, k, v, encoding, p, backend=backend), want)
    last = attention(q[:, :, 5:], k, v, encoding, Positions.arange(1, 5, causal=True), backend=backend)
    torch.testing.assert_close(last, want[:, :, 5:])


# ---------------------------------------------------------------- what they raise


class Cause(Exception):
    pass


def raising(error):
    def embed(self, x, positions, layer=0):
        try:
            raise Cause
        except Cause as cause:
            raise error from cause

    return with_hook("embed", embed)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("index 3 is out of range"), OverflowError("too large"),
     MemoryError("allocate")],
)  # fmt: skip
def test_errors_of_others_pass_through_with_their_cause(error):
    model = Transformer(CONFIG, raising(error))
    for call in (lambda: model(TOKENS), lambda: model.generate(TOKENS, 3)):
        with pytest.raises(type(error)) as caught:
            call()
        assert caught.value is error
        assert isinstance(error.__cause__, Cause)


def test_errors_of_a_constructor_pass_through():
    class Broken(Encoding):
        def __init__(self, size: int = 3) -> None:
            raise RuntimeError("cannot allocate memory: size")

    with pytest.raises(RuntimeError, match="cannot allocate memory") as caught:
        Broken(10**9)
    assert not isinstance(caught.value, InputError)


# ---------------------------------------------------------------- a subclass is itself


class Steep(posenc.ALiBi):
    """ALiBi with other slopes."""

    def tables(self):
        return {"slope_table": 2 * super().tables()["slope_table"]}


def test_a_subclass_is_not_its_parent_in_a_spec():
    spec = Steep(2).spec()
    assert spec == {"name": "Steep", "num_heads": 2, "bias_max": 8.0, "slopes": None}
    with pytest.raises(InputError, match="unknown encoding 'Steep'"):
        from_spec(spec)
    assert type(from_spec(spec, classes={"Steep": Steep})) is Steep
    both = (posenc.Rotary(8) + Steep(2)).spec()
    assert [type(part) for part in from_spec(json.loads(json.dumps(both)), classes={"Steep": Steep})] == [
        posenc.Rotary,
        Steep,
    ]


OVERRIDDEN = [
    (name, hook) for hook in ("rotate", "rotate_queries", "rotate_keys", "bias")
    for name, cls in posenc.ENCODINGS.items() if HOOKS[hook] in cls.own_sites
]  # fmt: skip


@pytest.mark.parametrize(("name", "hook"), OVERRIDDEN)
def test_what_a_subclass_overrides_acts_with_a_cache_and_without(name, hook):
    """Nothing of its parent takes its place; what is not of the new rotation is refused, and keys are cached unrotated."""
    parent, calls = posenc.create(name, **SHAPE), []

    def other(self, *given):
        calls.append(hook)
        if hook == "bias":
            return Dense(given[0] @ given[1].mT)
        made = getattr(super(mine, self), hook)(*given)
        return (made[0], -made[1]) if hook == "rotate" else -made

    mine = type("Mine", (type(parent),), {hook: other})
    encoding = mine(**{name: value for name, value in parent.spec().items() if name != "name"}).double()
    encoding = encoding + posenc.Rotary(8).double() if hook == "bias" else encoding
    encoding.share([(lambda x: x, lambda x: x)])
    (q, k, v), positions = given(), Positions.arange(6, causal=True)
    gates = gates_of(encoding, torch.randn(1, 6, 16).double())
    try:
        full = attention(q, k, v, encoding, positions, gates=gates or None)
    except InputError:  # rotates both at once, or each by itself
        assert hook != "bias"
        return
    assert calls
    cache, steps = posenc.KVCache(), []
    for i in range(0 if encoding.needs_length else 6):
        step = [x[:, :, i : i + 1] for x in (q, k, v, *gates)]
        steps.append(attention(*step[:3], encoding, causal=True, cache=cache, gates=step[3:] or None))
    assert not steps or torch.allclose(torch.cat(steps, 2), full, atol=1e-9)


class Nested(Encoding):
    def __init__(self, encoding: Encoding, table) -> None:
        super().__init__()
        self.encoding, self.table = encoding, table


@pytest.mark.parametrize(
    "encoding",
    [
        posenc.Rotary(np.int64(16), rope_theta=np.float32(500.0)),
        posenc.Rotary(8).with_schedule("explicit", stretch=torch.tensor([1.0, 2.0, 3.0, 4.0])),
        posenc.MRotary(8, sections=(1, 1, 2)),
        posenc.T5(np.int32(2)),
        posenc.Mapped(posenc.Rotary(8), posenc.position_maps.rerope(4)) + posenc.ALiBi(2),
        posenc.PerLayer(posenc.Rotary(8), posenc.Rotary(8), posenc.NoPE()),
    ],
)  # fmt: skip
def test_specs_are_json(encoding):
    spec = encoding.spec()
    assert json.loads(json.dumps(spec)) == spec
    assert from_spec(spec).spec() == spec


def test_specs_nest_and_refuse_what_json_does_not_have():
    nested = Nested(posenc.Rotary(8), np.arange(3))
    spec = json.loads(json.dumps(nested.spec()))
    assert spec["encoding"]["name"] == "rope"
    assert spec["table"] == [0, 1, 2]
    again = from_spec(spec, classes={"Nested": Nested})
    assert again.spec() == spec
    with pytest.raises(InputError, match=r"Nested.table=<object .*: spec\(\) takes numbers"):
        Nested(posenc.NoPE(), object()).spec()
    with pytest.raises(
        InputError, match=r"unknown argument in the spec of 'rope': 'head_dims': did you mean 'head_dim'"
    ):
        from_spec({"name": "rope", "head_dims": 8})
    with pytest.raises(InputError, match="spec of 'rope' needs head_dim: pass head_dim="):
        from_spec({"name": "rope"})


@pytest.mark.parametrize("composite", [posenc.Sum, posenc.PerLayer])
def test_what_is_made_of_parts_has_no_hooks_besides_theirs(composite):
    with pytest.raises(
        InputError, match=r"Overriding is made of its parts and cannot override scale: write an Encoding"
    ):
        type("Overriding", (composite,), {"scale": lambda self, head_dim: 5.0})
    for hook in (*HOOKS, "branches", "share"):
        theirs, ours = (list(inspect.signature(getattr(cls, hook)).parameters) for cls in (posenc.Encoding, composite))
        assert ours == theirs, hook
    made = composite(posenc.ALiBi(2))
    made.acting_in(0)
    made.parts[0] = posenc.T5(2)
    assert made.acting_in(0).leaves[0].encoding is made.parts[0]


def test_a_users_map_is_copied_and_pickled():
    mine = PositionMap("mine", {"window": 3}, (Branch(Region(farthest=3)),), True, ())
    encoding = posenc.Mapped(posenc.Rotary(8), mine)
    q, k, v = given()
    p = Positions.arange(6, causal=True)
    want = attention(q, k, v, encoding, p)
    for other in (copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
        assert torch.equal(attention(q, k, v, other, p), want)


# ---------------------------------------------------------------- fields, and the hook that was renamed


@dataclass(eq=False, repr=False)
class Declared(Encoding):
    """Its arguments are fields."""

    shift_invariant = True
    num_heads: Size
    width: float = 1.0
    steepness: float = 2.0
    inner: Encoding | None = None
    slopes: torch.Tensor = field(init=False)

    def setup(self):
        self.causal_only = self.steepness > 2
        self.gain = torch.nn.Parameter(torch.ones(self.num_heads))

    def tables(self):
        return {"slopes": torch.full((self.num_heads,), self.steepness, dtype=torch.float64)}


def test_fields_are_arguments():
    encoding = Declared(2, inner=posenc.Rotary(8))
    assert str(inspect.signature(Declared)).startswith("(num_heads: ")
    assert list(Declared.arguments()) == ["num_heads", "width", "steepness", "inner"]
    assert [name for name, _ in encoding.named_parameters()] == ["gain"]
    assert encoding.bfloat16().slopes.tolist() == [2.0, 2.0]
    assert not encoding.causal_only
    assert Declared(2, 0.5, 3.0).causal_only, "a field's name decides nothing: width is a float"
    again = from_spec(json.loads(json.dumps(encoding.spec())), classes={"Declared": Declared})
    assert again.spec() == encoding.spec() == copy.deepcopy(encoding).spec()
    for call, message in (
        (lambda: Declared(0), "num_heads=0: must be at least 1"),
        (lambda: Declared(2, steepness=float("nan")), "steepness=nan: .*finite"),
        (lambda: posenc.create(f"{__file__}:Declared:steep=1", num_heads=2), "did you mean 'steepness'"),
    ):
        with pytest.raises(InputError, match=message):
            call()


# ---------------------------------------------------------------- sums


def test_rotations_of_other_channels_do_not_claim_to_see_distances_alone():
    half, interleaved = posenc.Rotary(8), posenc.Rotary(8, layout="interleaved")
    assert not (half + interleaved).shift_invariant
    assert (half + posenc.Rotary(8, rope_theta=100.0)).shift_invariant
    assert (half + posenc.LogN(8) + posenc.ALiBi(2)).shift_invariant
    assert not (half + posenc.PoPE(8, num_heads=2)).shift_invariant


def test_scaled_keys_are_refused_beside_rotations_of_other_channels():
    xpos = posenc.XPos(8, scale_base=16)
    with pytest.raises(InputError, match="xpos with rope: it scales keys"):
        xpos + posenc.Rotary(8)
    with pytest.raises(InputError, match="xpos with pope"):
        posenc.PoPE(8, num_heads=2) + xpos
    both = xpos + posenc.Rotary(8, layout="interleaved") + posenc.LogN(4)
    q, k, v = given()
    full = attention(q, k, v, both, Positions.arange(6, causal=True))
    step = attention(q[:, :, 3:4], k[:, :, :4], v[:, :, :4], both, Positions.arange(1, 3, causal=True))
    torch.testing.assert_close(step, full[:, :, 3:4])


def test_a_rotation_that_widens_is_refused_before_one_that_adds():
    q, k, v = given()
    encoding = (posenc.create("pope+transformer_xl", dim=16, num_heads=2)).double()
    with pytest.raises(InputError, match="head_dim 16: this TransformerXL was made with head_dim=8"):
        attention(q, k, v, encoding, Positions.arange(6, causal=True))


def test_vectors_added_to_queries_come_before_rotations():
    moves = posenc.TransformerXL(16, num_heads=2, head_dim=8)
    assert (moves + posenc.Rotary(8)).shift_invariant
    assert not (posenc.Rotary(8) + moves).shift_invariant
    assert (moves + posenc.XPos(8)).shift_invariant
    with pytest.raises(InputError, match="xpos with transformer_xl: it scales keys"):
        posenc.XPos(8) + moves


def test_xpos_is_found_wherever_it_is_in_a_sum():
    rope, xpos = posenc.Rotary(8), posenc.XPos(8)
    for parts in (
        (xpos, rope, posenc.Rotary(8, layout="interleaved")),
        (posenc.PerLayer(xpos, rope), rope),
        (posenc.Mapped(xpos, posenc.position_maps.rerope(3)), rope),
    ):
        with pytest.raises(InputError, match="with rope: it scales keys"):
            posenc.Sum(*parts)
    assert (posenc.PerLayer(xpos, rope) + posenc.LogN(8)).shift_invariant


def test_pairs_and_terms_may_come_in_any_container():
    class Contained(Encoding):
        def rotate(self, q, k, positions, layer=0):
            return [2 * q, k]

        def bias(self, q, k, positions, layer=0):
            return (Dense(torch.full((1, 1, 6, 6), float(number))) for number in range(2))

    q, k, v = given()
    assert torch.allclose(attention(q, k, v, Contained()), attention(2 * q, k, v))


@pytest.mark.parametrize("text", ["rope", "rope+alibi", "rope@rerope:window=3"])
def test_a_program_that_is_compiled_before_any_call_is_compiled_once(text):
    """What the first call stores must not change what the second one finds."""
    encoding = posenc.create(text, dim=16, num_heads=2, head_dim=8, num_layers=2, max_positions=16, causal=True)
    for part in [each for each in encoding.modules() if isinstance(each, Encoding)]:
        part.__class__ = type(type(part).__name__, (type(part),), {})  # which nothing has called yet
    counter = torch._dynamo.testing.CompileCounter()
    model = torch.compile(Transformer(CONFIG, encoding), fullgraph=True, dynamic=True, backend=counter)
    for n in (6, 9, 7):
        model(torch.arange(n)[None])
    assert counter.frame_count == 1


@pytest.mark.parametrize("hook", [*HOOKS, "branches", "share", "shared_rotation"])
def test_a_hook_set_on_an_object_or_a_class_that_is_defined_is_refused(hook):
    class Plain(Encoding):
        anything = 3

    Full = type("Full", (Plain,), dict.fromkeys(HOOKS, lambda self, *given: None))
    Full.anything = Full().anything = 4
    rope = posenc.Rotary(8)
    for owner in (Plain, Full, posenc.Rotary, posenc.Sum, Plain(), Full(), rope, rope + posenc.NoPE(), posenc.ALiBi(2)):
        with pytest.raises(InputError, match=rf"^{hook}: hooks are methods that a class is defined with"):
            setattr(owner, hook, lambda *given: None)
