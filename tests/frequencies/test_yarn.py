"""YaRN's and Llama 3's schedules: against transformers, and what their definitions promise."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.llama import modeling_llama as llama

from posenc import InputError, Positions, Rotary, frequencies
from references.schedules import BASES, DIMS, FACTORS, LENGTHS, llama_config, of_transformers


@given(head_dim=DIMS, base=BASES, factor=FACTORS, length=LENGTHS, high=st.sampled_from([2.0, 4.0]))
def test_llama3_is_that_of_transformers(head_dim, base, factor, length, high):
    options = {"factor": factor, "original_max_positions": length, "low_freq_factor": 1.0, "high_freq_factor": high}
    inv_freq, attention_factor = of_transformers("llama3", head_dim, base, **options)
    ours = frequencies.llama3(head_dim, base=base, **options)
    # at the ramp's ends float32 loses digits of turns - low_freq_factor, up to turns * 2^-22 of the range
    torch.testing.assert_close(ours.inv_freq.float(), inv_freq, rtol=1e-4, atol=0)
    assert ours.attention_factor == attention_factor == 1.0


@given(head_dim=DIMS, base=BASES, factor=FACTORS, length=LENGTHS)
def test_llama3_is_the_papers_yarn_with_other_limits(head_dim, base, factor, length):
    options = {"factor": factor, "original_max_positions": length}
    paper = frequencies.yarn_paper(head_dim, base=base, **options, beta_slow=1.0, beta_fast=4.0, attention_factor=1.0)
    llama3 = frequencies.llama3(head_dim, base=base, **options)
    assert torch.equal(paper.inv_freq, llama3.inv_freq)
    assert paper.attention_factor == llama3.attention_factor


def test_temperatures_others_have_given_yarn():
    options = {"factor": 8.0, "original_max_positions": 4096}
    assert frequencies.yarn(64, **options, mscale=0.5).attention_factor == pytest.approx(
        0.05 * math.log(8) + 1
    )  # ChunkLlama
    assert frequencies.yarn(64, **options, mscale=0.7, mscale_all_dim=0.7).attention_factor == 1
    assert frequencies.yarn(64, **options, mscale=0.7, attention_factor=1.5).attention_factor == 1.5
    assert frequencies.softmax_factor(8.0, 0.7) == pytest.approx((0.07 * math.log(8) + 1) ** 2)
    assert frequencies.softmax_factor(8.0, 0.0) == frequencies.softmax_factor(1.0, 0.7) == 1


def test_rotary_under_yarn_is_llama_under_yarn():
    """Attention factor and angles together, past the context length."""
    x, ids = torch.randn(2, 2, 50, 64, dtype=torch.float64), torch.arange(9000, 9050)[None]
    module = llama.LlamaRotaryEmbedding(llama_config("yarn", 64, 1e4, factor=4.0, original_max_positions=4096))
    theirs = llama.apply_rotary_pos_emb(x, x, *module(x, ids))[0]
    rotary = Rotary(64).with_schedule("yarn", factor=4.0, original_max_positions=4096)
    ours = rotary.rotate(x, x, Positions.from_ids(ids))[0]
    torch.testing.assert_close(ours, theirs, atol=9050 * 2**-22 * 5, rtol=0)
    assert (Rotary(64).rotate(x, x, Positions.from_ids(ids))[0] - theirs).abs().max() > 1


def test_llama3_with_both_limits_the_same_is_a_step():
    """Llama 4 Scout's rope_scaling: factor 16, low and high 1 (Meta's default for scaled RoPE)."""
    options = {"factor": 16.0, "original_max_positions": 8192, "low_freq_factor": 1.0, "high_freq_factor": 1.0}
    ours = frequencies.llama3(128, base=5e5, **options).inv_freq
    theirs = llama.LlamaRotaryEmbedding(llama_config("llama3", 128, 5e5, **options)).inv_freq
    torch.testing.assert_close(ours.float(), theirs, rtol=1e-6, atol=0)
    plain = frequencies.default(128, base=5e5).inv_freq
    assert sorted({round(x) for x in (plain / ours).tolist()}) == [1, 16]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: frequencies.yarn(64, factor=0.5, original_max_positions=10), "factor=0.5"),
        (lambda: frequencies.yarn(64, factor=2, original_max_positions=0), "original_max_positions=0"),
        (lambda: frequencies.yarn(64, base=1.0, factor=2, original_max_positions=10), "base=1.0: .* above 1"),
        (lambda: frequencies.yarn(64, factor=2, original_max_positions=10, beta_fast=1, beta_slow=2), "beta_slow=2, beta_fast=1"),
        (lambda: frequencies.yarn_paper(64, factor=2, original_max_positions=9, beta_slow=0), "beta_slow=0: must be a positive"),
        (lambda: frequencies.yarn(64, factor=2, original_max_positions=9, attention_factor=0), "attention_factor=0"),
        (lambda: frequencies.llama3(64, factor=2, original_max_positions=9, low_freq_factor=5), "low_freq_factor=5.*<= high_freq_factor"),
        (lambda: frequencies.llama3(63, factor=2, original_max_positions=9), "dim=63: .*even"),
        (lambda: Rotary(64).with_schedule("yarn", factor=2), "schedule 'yarn' needs original_max_positions"),
        (lambda: Rotary(64).with_schedule("yarn", factor=2, original_max_positions=9, beta=3), "unknown option of schedule 'yarn' 'beta': did you mean"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
