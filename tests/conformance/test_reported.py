"""Faults of public implementations, each written as people write it: `conform` names every one."""

import math

import pytest
import torch

from posenc.conformance import conform


def inv_freq(width, base, step=2.0):
    return 1.0 / (base ** (torch.arange(width // 2).double() * step / width))


def halves(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def apply(x, angles):
    """RoPE with angles of every channel's pair, in the half layout."""
    table = torch.cat((angles, angles), -1)
    return (x.double() * table.cos() + halves(x.double()) * table.sin()).to(x.dtype)


def rope(x, positions, base, step=2.0):
    return apply(x, positions.double()[:, None] * inv_freq(x.shape[-1], base, step))


def mixed_layouts(x, positions, base):
    angles = (positions.double()[:, None] * inv_freq(x.shape[-1], base)).repeat_interleave(2, -1)
    return (x.double() * angles.cos() + halves(x.double()) * angles.sin()).to(x.dtype)


def unturned(x, positions, base):
    rope(x, positions, base)
    return x


def positions_ignored(x, positions, base):
    return rope(x, torch.arange(x.shape[-2]), base)


def short_positions(x, positions, base):
    return rope(x, positions.bfloat16(), base)


def short_frequencies(x, positions, base):
    return apply(x, positions.double()[:, None] * inv_freq(x.shape[-1], base).bfloat16().double())


def from_one(x, positions, base):
    return rope(x, positions + 1, base)


def base_ignored(x, positions, base):
    return rope(x, positions, 10000.0)


def backwards(x, positions, base):
    return rope(x, -positions, base)


def flag_ignored(relative_position, bidirectional, num_buckets, max_distance):
    return t5(relative_position, True, num_buckets, max_distance, math.floor)


def half_the_width(x, positions, base):
    return rope(x, positions, base, step=4.0)


def slopes_from_zero(num_heads):
    return torch.tensor([2.0 ** (-8 * h / num_heads) for h in range(num_heads)], dtype=torch.float64)


def slopes_of_powers_of_two(num_heads):
    start = 2 ** (-(2 ** -(math.log2(num_heads) - 3)))
    return [start ** (h + 1) for h in range(num_heads)]


def slopes(num_heads):
    if math.log2(num_heads).is_integer():
        return slopes_of_powers_of_two(num_heads)
    near = 2 ** math.floor(math.log2(num_heads))
    return slopes_of_powers_of_two(near) + slopes(2 * near)[0::2][: num_heads - near]


def t5(relative_position, bidirectional, num_buckets, max_distance, whole):
    n = num_buckets // 2 if bidirectional else num_buckets
    exact, buckets = n // 2, []
    for r in relative_position.tolist():
        distance = abs(r) if bidirectional else max(-r, 0)
        if distance >= exact:
            large = math.log(distance / exact) / math.log(max_distance / exact) * (n - exact)
            distance = min(exact + whole(large + 1e-9), n - 1)
        buckets.append(distance + (n if bidirectional and r > 0 else 0))
    return torch.tensor(buckets)


def in_the_dtype_of_x(x, positions, base):
    angles = torch.outer(positions.to(x.dtype), inv_freq(x.shape[-1], base).to(x.dtype))
    return apply(x, angles.double())


def angles_in_the_dtype_of_x(x, positions, base):
    angles = torch.outer(positions.float(), inv_freq(x.shape[-1], base).float()).to(x.dtype)
    return apply(x, angles.double())


def codes(positions, dim, base, times):
    angles = positions.double()[:, None] * inv_freq(dim, base)
    return times * torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


REPORTED = [
    (mixed_layouts, "rotary", "layouts are mixed"),
    (unturned, "rotary", "x comes back as it was"),
    (positions_ignored, "rotary", "positions are ignored"),
    (short_positions, "rotary", "positions are rounded to bfloat16"),
    (short_frequencies, "rotary", "frequencies are stored in bfloat16"),
    (from_one, "rotary", "positions start at 1"),
    (base_ignored, "rotary", "base is ignored: 10000 is used"),
    (backwards, "rotary", "rotates backwards"),
    (flag_ignored, "t5", "the bidirectional flag is ignored"),
    (half_the_width, "rotary", "wrong exponent: base^(-4c/d)"),
    (slopes_from_zero, "alibi", "heads are counted from 0: 2^(-8h/n)"),
]


@pytest.mark.parametrize(("function", "kind", "words"), REPORTED, ids=[words for *_, words in REPORTED])
def test_a_reported_fault_is_named(function, kind, words):
    verdict = conform(function, kind)
    assert verdict.passed is False
    assert any(words in finding for finding in verdict.findings), str(verdict)
    assert not any("not known here" in finding for finding in verdict.findings), str(verdict)


class Tables(torch.nn.Module):
    """RoPE with its frequencies in a buffer, made once, or anew from plain numbers when it is called."""

    def __init__(self, stored):
        super().__init__()
        self.stored = stored
        for width in range(2, 257, 2):
            self.register_buffer(f"inv_freq_{width}", inv_freq(width, 1e4).float(), persistent=False)

    def forward(self, x, positions, base):
        if base != 10000:
            raise NotImplementedError
        width = x.shape[-1]
        table = getattr(self, f"inv_freq_{width}") if self.stored else inv_freq(width, base)
        return apply(x, positions.double()[:, None] * table.double())

    def turned(self, x, positions, base):
        return self(x, positions, base)


def test_a_module_is_cast_as_those_of_a_model_are():
    for function in (Tables(stored=True), Tables(stored=True).turned):
        findings = conform(function, "rotary").findings
        for dtype in ("bfloat16", "float16"):
            (finding,) = [f for f in findings if f.startswith(f"in a model in {dtype} (the module is cast), ")]
            assert finding.endswith(f": frequencies are stored in {dtype}")
        assert len(findings) == 2, findings
    module = Tables(stored=True)
    conform(module, "rotary")
    assert module.inv_freq_8.dtype == torch.float32, "the module itself is cast"
    assert conform(Tables(stored=False), "rotary").passed


def test_the_same_functions_without_their_faults_conform():
    assert conform(rope, "rotary").passed
    assert conform(slopes, "alibi").passed
    assert conform(lambda p, d, b: codes(p, d, b, 1.0), "sinusoidal").passed
    assert conform(lambda *given: t5(*given, math.floor), "t5").passed


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_roundings_to_the_dtype_of_x_are_named(dtype):
    def finding(function):
        (found,) = [f for f in conform(function, "rotary").findings if f.startswith(f"with x in {dtype}")]
        return found

    every = f"positions are rounded to {dtype}", f"frequencies are stored in {dtype}", f"angles are rounded to {dtype}"
    assert all(words in finding(in_the_dtype_of_x) for words in every)
    assert finding(angles_in_the_dtype_of_x).endswith(f": {every[-1]}")
