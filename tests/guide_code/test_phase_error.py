"""Phases in low precision: known numbers, numpy-free arithmetic one by one, and what transformers does."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guide_code import phase_error
from posenc.encodings import Rotary
from posenc.errors import InputError

THETA = Rotary(64).inv_freq


def test_bfloat16_over_8192_positions():
    found = phase_error(Rotary(64), 8192, torch.bfloat16)
    causes = found.causes
    assert causes["positions"].largest == 16  # half the gap between numbers above 4096
    assert causes["positions"].tenth == 257  # the first that is rounded, and pair 0 turns a radian each
    assert causes["frequencies"].at == 8191
    assert causes["cos_sin"].largest < 2**-8
    assert found.distinct == 257 + sum(128 for _ in range(5))
    assert found.distinct == len(torch.arange(8192).to(torch.bfloat16).unique())
    assert "897 are different numbers in bfloat16" in " ".join(found.sentences())


@given(length=st.integers(1, 700), pairs=st.integers(1, 6), dtype=st.sampled_from(["bfloat16", "float16", "float32"]))
@settings(max_examples=30)
def test_against_numbers_one_by_one(length, pairs, dtype):
    found = phase_error(Rotary(2 * pairs, rope_theta=500.0), length, dtype)
    kind = getattr(torch, dtype)
    theta = [500.0 ** (-c / pairs) for c in range(pairs)]

    def rounded(x):
        return float(torch.tensor(x, dtype=torch.float64).to(kind))

    table = [[abs(rounded(rounded(n) * rounded(t)) - n * t) for t in theta] for n in range(length)]
    errors = torch.tensor(table, dtype=torch.float64)
    row = list(found.causes).index("all")
    torch.testing.assert_close(found.by_pair[row], errors.amax(0), atol=1e-12, rtol=1e-9)
    upto = errors.amax(1).cummax(0).values
    torch.testing.assert_close(found.by_position[row], upto[found.positions], atol=1e-12, rtol=1e-9)
    cause = found.causes["all"]
    tenth = (errors.amax(1) > math.tau / 10).nonzero()
    assert cause.tenth == (int(tenth[0]) if len(tenth) else None)
    assert int(found.positions[-1]) == length - 1


@pytest.mark.parametrize(
    "encoding", ["rope:layout=interleaved", "sinusoidal", "sinusoidal:layout=concat", "decoupled_rope"]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_our_modules_round_the_result_alone(encoding, dtype):
    found = phase_error(encoding, 9000, dtype)  # two blocks
    module, trig = found.causes["module"], found.causes["cos_sin"]
    assert module.largest == pytest.approx(trig.largest, rel=0.05)
    assert module.largest < found.causes["all"].largest / 1000


def test_cos_and_sin_are_compared_the_short_way_round():
    found = phase_error(Rotary(2), 400)
    n = torch.arange(400, dtype=torch.float64)
    apart = (
        torch.complex(n.cos().bfloat16().double(), n.sin().bfloat16().double()) * torch.polar(n * 0 + 1, -n)
    ).angle()
    row = list(found.causes).index("cos_sin")
    assert float(found.by_pair[row, 0]) == pytest.approx(float(apart.abs().max()), rel=1e-9)


def test_overflow_is_reported():
    found = phase_error(Rotary(8), 66000, "float16")
    assert math.isinf(found.causes["positions"].largest)
    assert found.causes["positions"].at == 65520
    assert found.distinct == len(torch.arange(66000).to(torch.float16).unique())
    assert "overflow over 66000 positions" in found.sentences()[0]
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["causes"]["all"]["largest"] is None


def test_what_transformers_does_in_bfloat16():
    """module.to(bfloat16) casts the frequencies of transformers' module as well: the error is that of "frequencies"."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=1, max_position_embeddings=8192)
    module = LlamaRotaryEmbedding(config)
    at = torch.arange(8192)[None]
    x = torch.zeros(1, 1, 1)

    def errors():
        cos, sin = (table[0, :, :32].double() for table in module(x, at))
        exact = at[0, :, None] * THETA
        apart = torch.atan2(sin * exact.cos() - cos * exact.sin(), cos * exact.cos() + sin * exact.sin())
        return apart.abs()

    assert float(errors().max()) < 1e-3
    module.to(torch.bfloat16)
    found = errors()
    wanted = phase_error(Rotary(64), 8192, torch.bfloat16)
    frequencies = list(wanted.causes).index("frequencies")
    inside = wanted.by_pair[frequencies] < 3  # by half a turn an angle says no more
    assert int(inside.sum()) > 25
    torch.testing.assert_close(found.amax(0)[inside], wanted.by_pair[frequencies][inside], atol=1e-3, rtol=0)
    assert float(found.max()) > 1000 * wanted.causes["module"].largest


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("alibi", 16), r"codes of ALiBi are no rotation by fixed frequencies"),
        (("xpos", 16), r"for XPos the Rotary of its frequencies"),
        (("rope", 0), r"length=0"),
        (("rope", 16, torch.int32), r"dtype=torch.int32: phases are real numbers; pass one of bfloat16, float16"),
        (("rope", 16, "bf16"), r"dtype='bf16'"),
    ],
)
def test_bad_input(arguments, match):
    with pytest.raises(InputError, match=match):
        phase_error(*arguments)
