"""RoPE with frequencies per head or learned ones, FoPE and RoPE++: the formulas and the authors' expressions."""

import math

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import FoPE, HeadRotary, InputError, LearnedRotary, Positions, RoPEPlusPlus, Rotary
from posenc.testing.oracles import rotations
from references.calls import EVERYWHERE, EXACT, LAYOUTS, qkv, random, scores, turned_scores

# ---------------------------------------------------------------- a schedule per key head


@EVERYWHERE
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_each_key_head_turns_by_its_schedule(positions, layout):
    encoding = HeadRotary(
        6, num_heads=8, num_kv_heads=4, rope_theta=50.0, layout=layout, schedules="ntk:factor=2|linear:factor=3"
    )
    q, k, _ = qkv(positions, 8, 4, 6)

    of_ntk, slower = rotations.frequencies(6, 50.0 * 2**1.5), rotations.frequencies(6, 50.0) / 3
    frequencies = torch.stack([of_ntk] * 4 + [slower] * 4)[:, None]
    assert_close(scores(encoding, q, k, positions), turned_scores(q, k, positions, frequencies, layout), **EXACT)


@pytest.mark.parametrize("heads", [4, 6])
def test_without_schedules_it_is_the_authors_ms_poe(heads):
    # utils/modify_arch/llama.py of VITA-Group/Ms-PoE: t / ratio, then cos and sin of both halves, for heads in their order
    positions, width = Positions.arange(11), 8
    q, k, _ = qkv(positions, heads, heads, width)
    ratios = 1.2 + (1.8 - 1.2) * (torch.arange(heads, dtype=torch.float64) / heads)
    t = torch.arange(11, dtype=torch.float64).repeat(heads, 1) / ratios[:, None]
    angles = rotations.angles(t, width)
    cos, sin = (torch.cat((x, x), -1)[None] for x in (angles.cos(), angles.sin()))

    def half(x):
        return torch.cat((-x[..., width // 2 :], x[..., : width // 2]), -1)

    rotated = HeadRotary(width, num_heads=heads).rotate(q, k, positions)
    for ours, x in zip(rotated, (q, k), strict=True):
        assert_close(ours, x * cos + half(x) * sin, **EXACT)


def test_one_schedule_for_all_heads_is_rope_and_a_cache_takes_rotated_keys():
    schedule = {"name": "yarn", "factor": 4.0, "original_max_positions": 64}
    encoding = HeadRotary(16, num_heads=4, num_kv_heads=2, schedules=[schedule])
    positions = Positions.arange(7, 3)
    q, k, _ = qkv(positions, 4, 2, 16)
    expected = Rotary(16, schedule=schedule).rotate(q, k, positions)
    for ours, theirs in zip(encoding.rotate(q, k, positions), expected, strict=True):
        assert_close(ours, theirs, **EXACT)
    assert_close(encoding.rotate_queries(q, positions), expected[0], **EXACT)
    assert_close(encoding.rotate_keys(k, positions), expected[1], **EXACT)
    assert encoding.attention_factor == Rotary(16, schedule=schedule).attention_factor
    assert not encoding.isometric


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"schedules": "default|default|default"}, "3 do not divide the 4 key heads"),
        ({"schedules": []}, "0 do not divide"),
        ({"schedules": [{"name": "nkt"}]}, "'nkt'"),
        ({"schedules": ["ntk"]}, "ntk"),
        ({"schedules": "yarn:factor=2:original_max_positions=64|default"}, r"\[1.0, 1.069"),
        ({"num_kv_heads": 3}, "num_kv_heads=3"),
        ({"rope_theta": 0.0}, "rope_theta=0.0"),
        ({"head_dim": 7}, "head_dim=7"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(options, named):
    with pytest.raises(InputError, match=named):
        HeadRotary(**{"head_dim": 8, "num_heads": 4} | options)


# ---------------------------------------------------------------- learned frequencies


@EVERYWHERE
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("groups", [1, 2])
def test_learned_frequencies_turn_each_pair_by_the_formula(positions, layout, groups):
    encoding = random(
        LearnedRotary(6, rope_theta=50.0, layout=layout, groups=groups, schedule={"name": "linear", "factor": 3.0})
    )
    q, k, _ = qkv(positions, 4, 2, 6)
    of_heads = encoding.log_scale.detach()[[h // 2 % groups for h in range(4)], None]
    frequencies = rotations.frequencies(6, 50.0) / 3 * of_heads.exp()
    assert_close(scores(encoding, q, k, positions), turned_scores(q, k, positions, frequencies, layout), **EXACT)


def test_untrained_frequencies_are_ropes_and_plain_is_the_trained_rotation():
    positions, schedule = LAYOUTS["packed"], {"name": "yarn", "factor": 4.0, "original_max_positions": 64}
    q, k, _ = qkv(positions, 4, 4, 16)
    assert_close(
        scores(LearnedRotary(16, schedule=schedule), q, k, positions),
        scores(Rotary(16, schedule=schedule), q, k, positions), **EXACT,
    )  # fmt: skip
    trained = random(LearnedRotary(16, groups=2, schedule=schedule))
    for group in (0, 1):
        heads = slice(2 * group, 2 * group + 2)
        plain = trained.plain(group)
        expected = scores(trained, q, k, positions)[:, heads]
        assert_close(scores(plain, q[:, heads], k[:, heads], positions), expected, **EXACT)
        assert_close(scores(posenc.from_spec(plain.spec()), q[:, heads], k[:, heads], positions), expected, **EXACT)


def test_groups_that_do_not_divide_the_key_heads_are_refused():
    q, k, v = qkv(Positions.arange(3), 6, 3)
    with pytest.raises(InputError, match="groups=2: must divide the heads, here 3"):
        posenc.attention(q, k, v, LearnedRotary(4, groups=2), Positions.arange(3))
    for group in (1, False, 0.0):
        with pytest.raises(InputError, match=f"group={group}"):
            LearnedRotary(4).plain(group)


# ---------------------------------------------------------------- FoPE


@EVERYWHERE
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_fope_is_its_formula(positions, layout):
    encoding = FoPE(
        16, num_heads=4, train_length=40, num_kv_heads=2, num_layers=2, rope_theta=50.0, layout=layout
    ).double()
    q, k, _ = qkv(positions, 4, 2, 16)
    frequencies = rotations.frequencies(16, 50.0)
    frequencies = frequencies[frequencies * 40 >= 2 * math.pi]
    assert 0 < len(frequencies) < 8, "some frequencies are dropped, and some are not"
    cosines, sines = encoding.cosines[1], encoding.sines[1]
    assert cosines.shape == (2, len(frequencies), 4), "the rest of the pairs passes unchanged"
    turned_k = rotations.fope(k, positions.k[:, None, :, None], 50.0, cosines, sines, layout=layout)
    of_queries = cosines.repeat_interleave(2, 0), sines.repeat_interleave(2, 0)
    turned_q = rotations.fope(q, positions.q[:, None, :, None], 50.0, *of_queries, layout=layout)
    expected = turned_q @ turned_k.repeat_interleave(2, 1).mT
    assert_close(scores(encoding, q, k, positions, layer=1), expected, **EXACT)


def test_what_fope_leaves_out_passes_unchanged():
    # the published code pads sines with 1 instead of 0 there, which adds the rotated half of the vector (vllm#55204)
    encoding = FoPE(16, num_heads=2, train_length=64)
    x = torch.randn(1, 2, 5, 16)
    rotated, _ = encoding.rotate(x, x, Positions.arange(5))
    outputs = encoding.cosines.shape[-1]
    unchanged = [c for c in range(16) if c % 8 >= outputs]
    assert torch.equal(rotated[..., unchanged], x[..., unchanged])


def test_fopes_weights_start_near_the_identity_and_are_stored():
    encoding = FoPE(32, num_heads=4, train_length=128, gain=0.0)
    inputs, outputs = encoding.cosines.shape[2:]
    assert encoding.cosines.sum().item() == 4 * outputs
    assert inputs >= outputs
    assert not list(encoding.parameters())
    assert set(encoding.state_dict()) == {"cosines", "sines"}
    assert len(list(FoPE(32, num_heads=4, train_length=128, trainable=True).parameters())) == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [({"train_length": 6}, "train_length=6"), ({"pairs": 9}, "pairs=9"), ({"num_kv_heads": 3}, "num_kv_heads=3")],
)
def test_fope_names_what_does_not_fit(options, named):
    with pytest.raises(InputError, match=named):
        FoPE(**{"head_dim": 16, "num_heads": 4, "train_length": 64} | options)


# ---------------------------------------------------------------- RoPE++


@EVERYWHERE
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_imaginary_heads_score_the_imaginary_part(positions, layout):
    encoding = RoPEPlusPlus(6, rope_theta=50.0, layout=layout)
    q, k, _ = qkv(positions, 4, 2, 6)
    odd = torch.arange(4)[:, None, None] % 2 == 1
    queries = torch.where(odd, rotations.quarter_turn(q, layout), q)
    expected = turned_scores(queries, k, positions, rotations.frequencies(6, 50.0), layout)
    assert_close(scores(encoding, q, k, positions), expected, **EXACT)


def test_rope_pp_is_the_authors_expression():
    # modeling_llama_rope_pp.py of the authors' repository: q sin - rotate_half(q) cos, against the rotated keys
    q, k, _ = qkv(Positions.arange(7), 2, 2, 8)
    angles = rotations.angles(torch.arange(7), 8)
    cos, sin = (torch.cat((x, x), -1) for x in (angles.cos(), angles.sin()))

    def half(x):
        return torch.cat((-x[..., 4:], x[..., :4]), -1)

    theirs = torch.stack((q * cos + half(q) * sin, q * sin - half(q) * cos), 2).flatten(1, 2)
    ours, keys = RoPEPlusPlus(8).rotate(q.repeat_interleave(2, 1), k, Positions.arange(7))
    assert_close(ours, theirs, **EXACT)
    assert_close(keys, k * cos + half(k) * sin, **EXACT)
