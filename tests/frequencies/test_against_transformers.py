"""Every schedule transformers has: equal where it is right, and how far off where it is not (5.x, modeling_rope_utils)."""

import math

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3

from posenc import DecoupledRotary, frequencies
from references.schedules import BASES, DIMS, FACTORS, LENGTHS, of_transformers


def same(ours, theirs, rtol=1e-5):
    inv_freq, attention_factor = theirs
    torch.testing.assert_close(ours.inv_freq.float(), inv_freq, rtol=rtol, atol=0)
    assert ours.attention_factor == pytest.approx(attention_factor, rel=1e-12)


# -------------------------------------------------------------------- equal


@given(head_dim=DIMS, base=BASES, factor=FACTORS)
def test_linear(head_dim, base, factor):
    same(
        frequencies.linear(head_dim, base=base, factor=factor), of_transformers("linear", head_dim, base, factor=factor)
    )


@given(head_dim=DIMS, base=BASES, factor=FACTORS, trained=LENGTHS, length=st.integers(1, 400000))
def test_dynamic_for_a_length(head_dim, base, factor, trained, length):
    theirs = of_transformers("dynamic", head_dim, base, factor=factor, max_positions=trained, seq_len=length)
    ours = frequencies.dynamic(head_dim, base=base, length=length, original_max_positions=trained, factor=factor)
    same(ours, theirs)


@given(
    head_dim=DIMS, base=BASES, factor=FACTORS, length=LENGTHS, slow=st.floats(0.1, 4), width=st.floats(1, 64),
    temperature=st.sampled_from([{}, {"attention_factor": 1.3}, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 0.707, "mscale_all_dim": 1.2}]),
    truncate=st.booleans(),
)  # fmt: skip
def test_yarn_with_all_options(head_dim, base, factor, length, slow, width, temperature, truncate):
    options = {
        "factor": factor,
        "original_max_positions": length,
        "beta_slow": slow,
        "beta_fast": slow * (1 + width),
        "truncate": truncate,
    }
    options |= temperature
    # a ramp narrower than a pair magnifies the rounding of float32 by its steepness
    same(
        frequencies.yarn(head_dim, base=base, **options), of_transformers("yarn", head_dim, base, **options), rtol=1e-4
    )


@given(
    data=st.data(),
    base=BASES,
    factor=FACTORS,
    original=LENGTHS,
    length=LENGTHS,
    temperature=st.sampled_from([{}, {"attention_factor": 1.19}]),
)
def test_longrope_short_and_long(data, base, factor, original, length, temperature):
    head_dim = data.draw(DIMS)
    numbers = st.lists(st.floats(0.5, 100), min_size=head_dim // 2, max_size=head_dim // 2)
    options = {"short_factor": data.draw(numbers), "long_factor": data.draw(numbers), "factor": factor}
    options |= {"original_max_positions": original} | temperature
    theirs = of_transformers("longrope", head_dim, base, seq_len=length, **options)
    same(frequencies.longrope(head_dim, base=base, length=length, **options), theirs)


@given(head_dim=DIMS, base=BASES, factor=FACTORS, length=LENGTHS)
def test_any_schedule_is_expressed_by_longrope_factors(head_dim, base, factor, length):
    """So a vector can be handed to plain transformers: short and long factors both the stretch."""
    ours = frequencies.yarn_paper(head_dim, base=base, factor=factor, original_max_positions=length)
    numbers = frequencies.stretch(ours, head_dim, base=base).tolist()
    theirs = of_transformers(
        "longrope", head_dim, base, short_factor=numbers, long_factor=numbers, factor=factor,
        attention_factor=ours.attention_factor, original_max_positions=length, seq_len=length + 1,
    )  # fmt: skip
    same(ours, theirs, rtol=2e-6)


# -------------------------------------------------------------------- models


@pytest.mark.parametrize("mscale", [(1.0, 1.0), (0.707, 0.707), (1.0, 0.5)])
def test_deepseek_v3_scales_rotation_and_softmax(mscale):
    options = {"factor": 40.0, "mscale": mscale[0], "mscale_all_dim": mscale[1]}
    parameters = {"rope_type": "yarn", "rope_theta": 1e4, "original_max_position_embeddings": 4096, **options}
    config = transformers.DeepseekV3Config(
        hidden_size=64, num_attention_heads=2, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32, q_lora_rank=24,
        kv_lora_rank=24, max_position_embeddings=163840, rope_parameters=parameters,
    )  # fmt: skip
    rotary, attention = deepseek_v3.DeepseekV3RotaryEmbedding(config), deepseek_v3.DeepseekV3Attention(config, 0)
    schedule = {"name": "yarn", "original_max_positions": 4096, **options}
    ours = DecoupledRotary(48, rotary_dim=16, schedule=schedule)
    same(ours.frequencies(), (rotary.inv_freq, rotary.attention_scaling))
    factor = frequencies.softmax_factor(options["factor"], options["mscale_all_dim"])
    assert attention.scaling == pytest.approx(48**-0.5 * factor, rel=1e-12)
    assert factor == pytest.approx((0.1 * mscale[1] * math.log(40) + 1) ** 2)


# -------------------------------------------------------------------- not equal, and by how much


def test_transformers_ignores_one_of_deepseeks_two_weights_alone():
    """DeepSeek's code gives the other its default, 1 or 0; transformers wants both, or neither counts for the rotation.
    mscale_all_dim alone still scales the softmax of its DeepSeek models, twice as it were."""
    options = {"factor": 40.0, "original_max_positions": 4096}
    for alone, expected in (({"mscale": 0.707}, 1.26080), ({"mscale_all_dim": 0.707}, 1.08573)):
        ours = frequencies.yarn(64, **options, **alone).attention_factor
        _, theirs = of_transformers("yarn", 64, 1e4, **options, **alone)
        assert ours == pytest.approx(expected, rel=1e-5)
        assert theirs == pytest.approx(0.1 * math.log(40) + 1)
