"""Absolute codes against the formulas, the registry, specs, composition, and refusals."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posenc
from posenc import Binary, Integer, Learned, NoPE, Normalized, PerLayer, Positions, Rotary, Sinusoidal, Sum
from posenc.lab.transformer import Transformer, TransformerConfig
from posenc.testing.oracles.codes import sinusoidal

SHAPE = {"dim": 16, "num_heads": 2, "max_positions": 32, "causal": True}


def codes(encoding, positions):
    """What an encoding adds to a zero input."""
    n = positions.num_queries
    return encoding.embed(torch.zeros(positions.batch, n, encoding.dim, dtype=torch.float64), positions)


@pytest.mark.parametrize("layout", ["interleaved", "concat"])
@given(base=st.sampled_from([100.0, 1e4]), offset=st.integers(0, 2000))
def test_sinusoidal_codes(layout, base, offset):
    p = Positions.arange(3, offset)
    want = sinusoidal(range(offset, offset + 3), 8, base, layout=layout)
    assert torch.allclose(codes(Sinusoidal(8, base=base, layout=layout), p)[0], want, atol=1e-10)


def test_sinusoidal_merges():
    x, p = torch.randn(2, 5, 8, dtype=torch.float64), Positions.arange(5)
    code = codes(Sinusoidal(8), p)
    assert torch.allclose(Sinusoidal(8, amplitude=0.5).embed(x, p), x + 0.5 * code)
    assert torch.allclose(Sinusoidal(8, merge="multiply").embed(x, p), x * (1 + code))
    concat = Sinusoidal(8, merge="concat").double()
    weight = concat.projection.weight
    assert torch.allclose(concat.embed(x, p), x @ weight[:, :8].T + code @ weight[:, 8:].T)
    assert torch.equal(weight[:, :8], torch.eye(8, dtype=torch.float64))
    assert torch.allclose(weight[:, 8:] @ weight[:, 8:].T, torch.eye(8, dtype=torch.float64), atol=1e-6)


def test_positions_enter_once():
    x, p = torch.randn(1, 5, 8), Positions.arange(5)
    assert Sinusoidal(8).embed(x, p, layer=1) is x


@pytest.mark.parametrize(("length", "step"), [(5, 0.25), (9, 0.125), (1, 0.0)])
def test_normalized_steps_depend_on_the_length(length, step):
    out = codes(Normalized(4, spread="first_channel"), Positions.arange(length))[0]
    assert out[:, 0].tolist() == pytest.approx([i * step for i in range(length)])
    assert not out[:, 1:].any()


def test_normalized_counts_each_document_and_row():
    packed = codes(Normalized(2, spread="first_channel"), Positions.packed([3, 2]))
    assert packed[0, :, 0].tolist() == [0, 0.5, 1, 0, 1]
    padded = codes(
        Normalized(2, spread="first_channel"), Positions.from_mask(torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]))
    )
    assert padded[:, :, 0].tolist() == [[0, 0, 0.5, 1], pytest.approx([0, 1 / 3, 2 / 3, 1])]
    fixed = codes(Normalized(2, spread="first_channel", length=5), Positions.arange(1, 3))
    assert fixed[0, 0, 0] == 0.75


def test_integer_and_learned_direction():
    encoding = Integer(4).double()
    p = Positions.arange(2, 70)
    assert torch.allclose(codes(encoding, p)[0], torch.tensor([[70.0], [71.0]]).double() * encoding.direction)
    assert codes(Integer(4, spread="first_channel"), p)[0, :, 0].tolist() == [70, 71]


def test_binary_digits_jump():
    out = codes(Binary(6, bits=4), Positions.arange(9))[0]
    assert out[5].tolist() == [1, 0, 1, 0, 0, 0]
    assert (out[7] - out[8]).square().sum() == 4
    assert (out[6] - out[7]).square().sum() == 1
    assert len({tuple(row) for row in codes(Binary(6, bits=4), Positions.arange(16))[0].tolist()}) == 16
    assert codes(Binary(4, bits=2, signed=True), Positions.arange(3))[0].tolist()[2] == [-1, 1, 0, 0]


def test_learned_looks_up_and_only_touches_used_rows():
    encoding = Learned(10, dim=4).double()
    ids = torch.tensor([[3, 3, 9]])
    out = codes(encoding, Positions.from_ids(ids))
    assert torch.equal(out[0], encoding.table[ids[0]])
    out.sum().backward()
    assert encoding.table.grad.sum(1).tolist() == [0, 0, 0, 8, 0, 0, 0, 0, 0, 4]
    clamped = Learned(4, dim=2, beyond="clamp")
    assert torch.equal(codes(clamped, Positions.arange(6))[0, 3:], clamped.table[3].double().expand(3, 2))


def test_composites():
    both = Rotary(8) + posenc.ALiBi(2) + NoPE()
    assert [type(p).__name__ for p in both] == ["Rotary", "ALiBi", "NoPE"]
    assert both.shift_invariant
    assert both.papers == (*Rotary.papers, *posenc.ALiBi.papers, *NoPE.papers)
    nested = PerLayer(both, Learned(7, dim=16))
    assert (nested.max_positions, nested.shift_invariant, nested.needs_length) == (7, False, False)
    assert posenc.from_spec(nested.spec()).spec() == nested.spec()
    assert Sum(posenc.T5(2), NoPE()).scale(64) == 1.0
    assert (Normalized(4) + NoPE()).needs_length
    embedded = PerLayer(NoPE(), Sinusoidal(8))
    x, p = torch.randn(1, 3, 8), Positions.arange(3)
    assert torch.equal(embedded.embed(x, p, 0), x)
    assert torch.equal(embedded.embed(x, p, 1), Sinusoidal(8).embed(x, p))
    assert torch.equal(embedded.embed(x, p, 3), x)
    twice = PerLayer(both, both, nested)
    assert both.sites() == ("rotate", "bias")
    sinusoidal = Sinusoidal(8)
    assert torch.equal(PerLayer(sinusoidal, sinusoidal).embed(x, p, 1), x)
    shared = posenc.from_spec(PerLayer(*[posenc.T5(2)] * 3, NoPE()).spec())
    assert sum(t.numel() for t in shared.parameters()) == 64
    assert twice.spec()["order"] == [0, 0, 1]
    assert posenc.create("rope:rope_theta=1e+5+alibi", **SHAPE).spec()["parts"][0]["rope_theta"] == 1e5


def test_create_reads_options_and_sums():
    rope = posenc.create("rope:rope_theta=500:layout=interleaved:rotary_dim=4", **SHAPE)
    assert (rope.rope_theta, rope.layout, rope.rotary_dim) == (500, "interleaved", 4)
    assert posenc.create("t5:scaled=true", grid=(8, 8), prefix=1, **SHAPE).scaled is True  # which it does not need
    assert posenc.create("t5", num_heads=2, causal=False).bidirectional
    assert not posenc.create("t5", num_heads=2, causal=True).bidirectional
    assert [type(p).__name__ for p in posenc.create("rope+alibi", **SHAPE)] == ["Rotary", "ALiBi"]


def test_tables_stay_out_of_the_state_and_survive_casts():
    for encoding in (Rotary(8), Sinusoidal(8), posenc.ALiBi(3)):
        (name,) = encoding.tables()
        assert not encoding.state_dict()
        encoding.to(torch.bfloat16)
        assert torch.equal(getattr(encoding, name), encoding.tables()[name])
        with torch.device("meta"):
            empty = type(encoding)(*([8] if name != "slope_table" else [3]))
        filled = empty.to_empty(device="cpu")
        assert torch.equal(getattr(filled, name), encoding.tables()[name])


def test_positions_near_2_to_the_24_keep_their_phase():
    rope = Rotary(8)
    q = torch.randn(1, 1, 2, 8)
    near = rope.rotate(q, q, Positions.from_ids(torch.tensor([0, 1])))[0]
    far = rope.rotate(q, q, Positions.from_ids(torch.tensor([2**24, 2**24 + 1])))[0]
    assert torch.allclose(near[0, 0, 0] @ near[0, 0, 1], far[0, 0, 0] @ far[0, 0, 1], atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: posenc.create("rotary", **SHAPE), "did you mean 'rope'"),
        (lambda: posenc.create("sinusodial", **SHAPE), "did you mean 'sinusoidal'"),
        (lambda: posenc.create("rope"), "rope needs head_dim: pass head_dim="),
        (lambda: posenc.create("rope", head_dim=7), "head_dim=7: .*even"),
        (lambda: posenc.create("rope:theta=3", **SHAPE), "option of rope 'theta=3': did you mean 'rope_theta'"),
        (lambda: posenc.create("rope", head_dim=8, thta=3), "unknown option of rope 'thta'"),
        (
            lambda: posenc.create("rope:schedule=ntk", **SHAPE),
            "option schedule='ntk' of rope: pass a dict, from Python",
        ),
        (lambda: posenc.create("t5:num_buckets=abc", **SHAPE), "option num_buckets='abc' of t5: pass an integer"),
        (
            lambda: posenc.create("normalized:length=abc", **SHAPE),
            "length='abc' of normalized: pass an integer or None",
        ),
        (lambda: posenc.create("rope:rope_theta=abc", **SHAPE), "rope_theta='abc' of rope: pass a number"),
        (lambda: posenc.create("binary:bits=4.5", **SHAPE), "bits=4.5 of binary: pass an integer or None"),
        (lambda: posenc.create("t5:scaled=1", **SHAPE), "scaled=1 of t5: pass True or False"),
        (lambda: posenc.create("t5:init_std=-1", **SHAPE), "init_std=-1"),
        (lambda: posenc.from_spec({"name": "sum"}), "needs 'parts'"),
        (lambda: posenc.from_spec({"name": "sum", "parts": 5}), "parts=5: pass a list"),
        (lambda: posenc.create("rope+alibi", head_dim=8, layout="half"), "write them into the text"),
        (lambda: posenc.from_spec({"name": "rope", "dim": 3}), "in the spec of 'rope': 'dim': did you mean 'head_dim'"),
        (lambda: posenc.from_spec({}), "unknown encoding None"),
        (lambda: Rotary(8, rotary_dim=10), "rotary_dim=10: .*head_dim=8"),
        (lambda: Rotary(8, layout="neox"), "unknown layout 'neox'"),
        (lambda: Rotary(8, schedule={"name": "ntks"}), "did you mean 'ntk'"),
        (lambda: Rotary(8, schedule={"rope_type": "yarn"}), "name the schedule, as in {'name': 'ntk'"),
        (lambda: Rotary(64, rotary_dim=0.3), "^rotary_dim=0.3: 19 of 64 channels"),
        (lambda: posenc.Shaw(15, num_heads=1, fixed=True), "^head_dim=15"),
        (lambda: posenc.Window(3, after="both"), "unknown after 'both'"),
        (lambda: Sinusoidal(7), "dim=7: .*even"),
        (lambda: Sinusoidal(8, merge="cat"), "unknown merge 'cat'"),
        (lambda: Sinusoidal(8, layout="half"), "unknown layout 'half'"),
        (lambda: Integer(4, spread="all"), "unknown spread"),
        (lambda: Binary(4, bits=5), "bits=5: must be at most 4"),
        (lambda: Learned(4, dim=4, beyond="wrap"), "unknown beyond"),
        (lambda: codes(Learned(4, dim=4), Positions.arange(5)), "position 4 is outside the table of 4"),
        (lambda: codes(Learned(4, dim=4), Positions.from_ids(torch.tensor([-1]))), "position -1 is negative"),
        (lambda: codes(Learned(4, dim=4), Positions.from_ids(torch.tensor([0.5]))), "integer positions only"),
        (lambda: codes(Binary(4), Positions.from_ids(torch.tensor([0.5]))), "pass integers"),
        (lambda: codes(Normalized(4), Positions.arange(1, 3)), "only 1 of 4 tokens are here"),
        (lambda: Sinusoidal(4).embed(torch.zeros(1, 2, 6), Positions.arange(2)), "x of width 6"),
        (lambda: Sum(), "at least one encoding"),
        (lambda: PerLayer(posenc.T5(2), NoPE()).scale(64), "different scales"),
        (lambda: posenc.attention(*[torch.zeros(1, 1, 2, 4)] * 3, "rope"), "encoding='rope': pass an Encoding"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(posenc.InputError, match=message):
        call()


@pytest.mark.parametrize("order", [[0, 5], "x", None, [0.0], [-1]])
def test_parts_in_an_order_that_there_is_not(order):
    with pytest.raises(posenc.InputError, match=r"^order="):
        posenc.from_spec({"name": "sum", "parts": [{"name": "none"}], "order": order})


def test_every_encoding_is_listed_and_its_papers_exist():
    from posenc.encodings.catalogue import rows

    listed = {row["name"]: row for row in rows()}
    assert set(listed) == set(posenc.ENCODINGS)
    assert listed["t5"]["acts_on"] == ["bias", "scale"]
    assert listed["learned"]["learned"]
    assert not listed["rope"]["learned"]
    for name in posenc.ENCODINGS:
        assert posenc.cite(name).count("@") == len(posenc.ENCODINGS[name].papers)
    assert "RoFormer" in posenc.cite(Rotary(8) + posenc.ALiBi(2))
    assert "Press" in posenc.cite("rope+alibi")
    assert posenc.cite("rope:rope_theta=1e+5+alibi") == posenc.cite("rope+alibi")


def test_layers_take_turns_by_name():
    encoding = posenc.create("shaw/shaw/none", head_dim=8, num_heads=2, num_layers=5)
    assert isinstance(encoding, PerLayer)
    shaw = encoding.acting_in(0).part
    assert encoding.acting_in(1)[:2] == (shaw, 1)
    assert encoding.acting_in(2).part.name == "none"
    assert encoding.acting_in(4)[:2] == (shaw, 3)
    assert shaw.num_layers == 4, "as many tables as it has layers"
    mixed = posenc.create("rope+alibi/t5", head_dim=8, num_heads=2)
    assert [type(part).__name__ for part in mixed.acting_in(0).part] == ["Rotary", "ALiBi"]
    assert posenc.from_spec(mixed.spec()).spec() == mixed.spec()
    with pytest.raises(posenc.InputError, match="write them into the text"):
        posenc.create("rope/none", head_dim=8, rope_theta=5.0)


def test_composites_pass_on_what_only_some_parts_do():
    moves, sinks = posenc.SHAPE(50), posenc.LearnedSink(2)
    both = Sum(moves, Learned(60, dim=8), sinks)
    assert both.sites() == ("augment", "embed", "sink")
    turns = PerLayer(both, NoPE(), both)
    assert turns.sink(1) is None
    assert torch.equal(turns.sink(2), sinks.logits[0])
    p = Positions.arange(4)
    assert turns.eval().augment(p, 2) is p
    moved = turns.train().augment(p, 3).q - p.q
    assert moved.shape == (3, 4)
    assert torch.equal(moved, moved[:, :1].expand(-1, 4)), "moved once, though the part stands for two layers"
    assert posenc.CoPE(8).causal_only
    assert Sum(NoPE(), posenc.CoPE(8)).causal_only
    assert not both.causal_only


def test_each_layer_of_a_turn_gets_its_own_projections():
    model = Transformer(
        TransformerConfig(5, dim=16, num_layers=4, num_heads=2),
        PerLayer(NoPE(), posenc.DeBERTaV2(16, num_heads=2, head_dim=8)),
    )
    model(torch.zeros(1, 3, dtype=torch.long))
    layers = [block.attention for block in model.blocks]
    assert model.encoding.acting_in(1).part.projections == [(layers[i].query, layers[i].key) for i in (1, 3)]
    assert not any("projections" in name for name, _ in model.named_parameters())


def test_a_class_cites_its_own_bibtex():
    missing = type("Missing", (NoPE,), {"papers": ("me2026",)})
    own = type("Own", (missing,), {"bibtex": "@misc{me2026,\n  year = {2026},\n}"})
    below = type("Below", (own,), {})
    for each in (own, below, own(), below() + Rotary(8)):
        assert "2026" in posenc.cite(each)
    with pytest.raises(posenc.InputError, match=r"papers=\['me2026'\]: have no BibTeX"):
        posenc.cite(missing)


def test_bibtex_is_complete():
    for name in posenc.ENCODINGS:
        for entry in posenc.cite(name).split("\n\n"):
            assert entry.count("{") == entry.count("}"), entry
            assert not entry or entry.endswith("\n}")


def test_positions_are_moved_once_for_all_layers():
    with pytest.raises(posenc.InputError, match="changed once for all layers"):
        posenc.create("shape+rope/shape+alibi", head_dim=8, num_heads=2)


def test_more_turns_than_layers():
    encoding = posenc.create("rope/rope/rope/kerple", head_dim=8, num_heads=2, num_layers=2)
    assert list(encoding)[3].num_layers == 1


def test_t5_has_no_bucket_between_distances():
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(posenc.InputError, match="integer positions only"):
        posenc.attention(q, q, q, posenc.T5(2), Positions.from_ids([0.0, 0.5, 1.0]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotary(8, rope_theta=float("inf")), "rope_theta=inf"),
        (lambda: posenc.XPos(8, gamma=float("inf")), "gamma=inf"),
        (lambda: posenc.XPos(8, gamma=9e-20), "gamma=9e-20: must be a positive number, at least 1e-19"),
        (lambda: posenc.ComplexOrder(8, base=float("inf")), "base=inf"),
    ],
)
def test_numbers_that_are_none(make, message):
    with pytest.raises(posenc.InputError, match=message):
        make()


def test_what_an_encoding_needs_is_named_as_a_sum_takes_it():
    values = {"dim": 16, "num_heads": 4, "head_dim": 4, "max_positions": 16}
    for name in posenc.ENCODINGS:
        try:
            posenc.create(f"none+{name}")
        except posenc.InputError as refusal:
            posenc.create(f"none+{name}", **{n: values[n] for n in re.findall(r"(?:pass|and) (\w+)=", str(refusal))})


@pytest.mark.parametrize("name", posenc.ENCODINGS)
def test_positions_of_other_tokens_are_refused_where_they_are_used(name):
    """Broadcasting would give every token the place of one, or an own batch to each row of positions."""
    shape = {"dim": 16, "num_heads": 4, "head_dim": 4, "max_positions": 16, "causal": True}
    encoding = posenc.create(name, **shape, **({"grid": (4, 4)} if "grid" in name or name == "axial_table" else {}))
    x, q = torch.randn(1, 5, 16), torch.randn(1, 4, 5, 4)
    calls = {
        "embed": lambda p: encoding.embed(x, p),
        "rotate": lambda p: encoding.rotate(q, q, positions=p),
        "rotate_queries": lambda p: encoding.rotate_queries(q, p),
        "rotate_keys": lambda p: encoding.rotate_keys(q, p),
    }
    for site, call in calls.items():
        if getattr(type(encoding), site) is getattr(posenc.Encoding, site):
            continue
        if name == "xpos" and site in ("rotate_queries", "rotate_keys"):  # refused, wherever the tokens are
            continue
        for positions, message in (
            (Positions.arange(1), r"positions are for 1 (queries|keys), [xqk] has 5: give one for each token"),
            (Positions.arange(4), "positions are for 4"),
            (Positions.from_mask(torch.ones(3, 5)), r"positions have 3 rows, [xqk] has 1"),
            (torch.arange(5), r"positions=a tensor of shape \(5,\), torch.int64: pass Positions"),
        ):
            with pytest.raises(posenc.InputError, match=message):
                call(positions)


def test_keys_alone_need_their_own_positions():
    """The positions of a decoding step have a key for each token of the cache."""
    rope, k = posenc.Rotary(8), torch.randn(1, 2, 7, 8)
    with pytest.raises(posenc.InputError, match=r"for 7 keys, k has 1: .* pass their positions: Positions.from_ids"):
        rope.rotate_keys(k[:, :, 6:], Positions.arange(1, offset=6))
    alone = rope.rotate_keys(k[:, :, 6:], Positions.from_ids([6]))
    torch.testing.assert_close(alone, rope.rotate_keys(k, Positions.arange(7))[:, :, 6:])


def test_names_of_something_else_are_known():
    with pytest.raises(posenc.InputError, match=r"'yarn': is a frequency schedule of rope; .*with_schedule\('yarn'"):
        posenc.create("yarn", head_dim=8)
    with pytest.raises(posenc.InputError, match=r"'rerope': is a position map; .* rope@rerope"):
        posenc.create("rerope", head_dim=8)
    with pytest.raises(posenc.InputError, match=r"dim=18, num_heads=4: must divide evenly"):
        posenc.create("rope", dim=18, num_heads=4)
