"""Faults of public implementations, each written as people write it: `conform` names every one."""

import math

import pytest
import torch

from posenc.conformance import conform
from posenc.testing.oracles import rotations


def inv_freq(width, base, step=2.0):
    return 1.0 / (base ** (torch.arange(width // 2).double() * step / width))


def halves(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def apply(x, angles, shape=None):
    """RoPE with angles of every channel's pair, in the half layout."""
    table = torch.cat((angles, angles), -1)
    cos, sin = table.cos(), table.sin()
    if shape:
        cos, sin = cos.view(shape), sin.view(shape)
    return (x.double() * cos + halves(x.double()) * sin).to(x.dtype)


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


def clamped(x, positions, base):
    return rope(x, positions.clamp(max=2047), base)


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


def along_heads(x, positions, base):
    angles = positions.double()[:, None] * inv_freq(x.shape[-1], base)
    return apply(x, angles[: x.shape[1]], (1, min(x.shape[1], len(positions)), 1, -1))


def along_batch(x, positions, base):
    angles = torch.arange(x.shape[0]).double()[:, None] * inv_freq(x.shape[-1], base)
    return apply(x, angles, (x.shape[0], 1, 1, -1))


def half_the_width(x, positions, base):
    return rope(x, positions, base, step=4.0)


def ladder_to_the_end(x, positions, base):
    pairs = x.shape[-1] // 2
    ladder = base ** -torch.linspace(0, 1, pairs, dtype=torch.float64)
    return apply(x, positions.double()[:, None] * ladder)


def scaled(x, positions, base):
    return rope(x, positions, base) * x.shape[-1] ** -0.5


def shifted_slices(x, positions, base, sections):
    angles = positions.double()[..., None] * inv_freq(x.shape[-1], base)
    dealt = angles[0].clone()
    for axis, begin in ((1, 0), (2, 1)):
        pairs = slice(begin, 3 * sections[axis], 3)
        dealt[:, pairs] = angles[axis][:, pairs]
    return apply(x, dealt)


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


def slopes_of_both_ranks(num_heads):
    return slopes(2 * num_heads)[:num_heads]


def reversed_table(positions, dim, base):
    angles = positions.flip(0).double()[:, None] * inv_freq(dim, base)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


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


def t5_rounded(relative_position, bidirectional, num_buckets, max_distance):
    return t5(relative_position, bidirectional, num_buckets, max_distance, lambda large: round(large - 1e-9))


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
    (clamped, "rotary", "positions are clamped: 2047 is used from position 2048 on"),
    (short_positions, "rotary", "positions are rounded to bfloat16"),
    (short_frequencies, "rotary", "frequencies are stored in bfloat16"),
    (from_one, "rotary", "positions start at 1"),
    (base_ignored, "rotary", "base is ignored: 10000 is used"),
    (backwards, "rotary", "rotates backwards"),
    (flag_ignored, "t5", "the bidirectional flag is ignored"),
    (along_heads, "rotary", "x is turned along its heads (axis 1)"),
    (
        along_batch,
        "rotary",
        "x is turned along the batch (axis 0), expected along its tokens: row n turns by position n",
    ),
    (half_the_width, "rotary", "wrong exponent: base^(-4c/d)"),
    (ladder_to_the_end, "rotary", "the last frequency is 1/base"),
    (shifted_slices, "m_rope_interleaved", "the slices of height and width are shifted"),
    (slopes_from_zero, "alibi", "heads are counted from 0: 2^(-8h/n)"),
    (slopes_of_both_ranks, "alibi", "they are of a model with twice the heads"),
    (reversed_table, "sinusoidal", "rows come in reverse"),
    (t5_rounded, "t5", "logarithms are rounded to the nearest bucket"),
]


@pytest.mark.parametrize(("function", "kind", "words"), REPORTED, ids=[words for *_, words in REPORTED])
def test_a_reported_fault_is_named(function, kind, words):
    verdict = conform(function, kind)
    assert verdict.passed is False
    assert any(words in finding for finding in verdict.findings), str(verdict)
    assert not any("not known here" in finding for finding in verdict.findings), str(verdict)


def tables(positions, axis, count, by_index):
    """Positions of (batch or 1, 1, seq, 1), misplaced along an axis of x."""
    p = torch.arange(count).double()[None, None, :, None] if by_index else positions[:, :, :count]
    return (p if axis else p[:1]).transpose(axis, 2)


def misplaced(axis, by_index):
    """RoPE of x, and of whatever gives its positions, whose tables lie along another axis of x."""

    def turned(x, given, base):
        name = "offsets" if given.dim() and len(given) == len(x) else "cu_seqlens"
        positions = rotations.positions_of({"x": x, name: given})
        angles = tables(positions, axis, x.shape[axis], by_index) * inv_freq(x.shape[-1], base)
        return apply(x, angles)

    return turned


BY_TOKEN, BY_INDEX = "turns by the position of token n", "turns by position n"


@pytest.mark.parametrize(("by_index", "words"), [(False, BY_TOKEN), (True, BY_INDEX)])
@pytest.mark.parametrize(("axis", "where"), [(1, "its heads (axis 1)"), (0, "the batch (axis 0)")])
@pytest.mark.parametrize("kind", ["rotary_ragged", "rotary_packed", "fope"])
def test_tables_along_another_axis_are_named(kind, axis, where, by_index, words):
    """Of one row, which is at position 0, those along the batch turn nothing."""
    if kind == "fope":
        function = lambda x, p, b, c, s: rotations.fope(  # noqa: E731
            x, p, b, c, s, at=lambda q: tables(q, axis, x.shape[axis], by_index)
        ).to(x.dtype)
    else:
        function = misplaced(axis, by_index)
    verdict = conform(function, kind)
    alike = kind == "rotary_packed" and axis == 0
    assert any(("x comes back as it was" if alike else f"along {where}") in f for f in verdict.findings), str(verdict)
    assert any(words in f for f in verdict.findings) or alike, str(verdict)


def test_clamped_positions_are_named_besides_another_fault():
    def clamped_and(change):
        return lambda x, p, b: change(rope(x, p.clamp(max=4095), b))

    clamp = "positions are clamped: 4095 is used from position 4096 on"
    for change, words in (
        (lambda x: x.transpose(1, 2), "axes 1 and 2 come back exchanged"),
        (lambda x: 2 * x, "every value is multiplied by 2"),
    ):
        findings = conform(clamped_and(change), "rotary").findings
        assert {clamp} < {*findings}
        assert any(words in f for f in findings), findings
    backwards_and = conform(lambda x, p, b: rope(x, -p.clamp(max=4095), b), "rotary").findings
    assert clamp in backwards_and
    assert any("rotates backwards" in f for f in backwards_and)

    def cut(x, cu_seqlens, base, starts=(), ranks=1, rank=0):
        given = {"cu_seqlens": cu_seqlens, "starts": starts, "ranks": ranks, "rank": rank}
        return apply(x, rotations.positions_of(given).clamp(max=511) * inv_freq(x.shape[-1], base))

    assert "positions are clamped: 511 is used from position 512 on" in conform(cut, "rotary_packed").findings


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
