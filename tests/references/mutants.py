"""Functions for `conform`: wrong ones, each with the words it must bring out, and right ones in many forms."""

import functools
import itertools
import math

import numpy
import torch

import posenc
from posenc import Positions, frequencies
from posenc import functional as F
from posenc.conformance.kinds import KINDS
from posenc.pretrained import multimodal
from posenc.testing.oracles import biases, places, rotations, schedules


def turn(x, positions, base, rotary_dim=None, layout="half", sign=1, exponent=1.0):
    dim = rotary_dim or x.shape[-1]
    angles = sign * positions.double()[:, None] * F.frequency_curve(dim, base=base) ** exponent
    dtype = torch.promote_types(x.dtype, torch.float32)
    return F.rotary(x, angles.cos().to(dtype), angles.sin().to(dtype), layout=layout)


def in_place(x, positions, base):
    return x.copy_(turn(x, positions, base))


CACHE = {}


def cached_dtype(x, positions, base):
    return turn(x, positions, base).to(CACHE.setdefault(("dtype", x.shape), x.dtype))


def from_scratch(d, b):
    return b ** (-torch.arange(0, d, 2).double() / d)


def yarn(
    d, b, s, L, fast=32, slow=1, *, low=math.floor, high=math.ceil, blend=None, factor=None, last=None, numerator=False
):
    """YaRN with its ramp's ends and its blend in reach."""

    def end(turns, rounded):
        above = d * math.log(L / (turns * 2 * math.pi))
        return rounded(above) / (2 * math.log(b)) if numerator else rounded(above / (2 * math.log(b)))

    start, stop = max(end(fast, low), 0), min(end(slow, high), last or d - 1)
    stop += 0.001 if start == stop else 0
    ramp = ((torch.arange(d // 2).double() - start) / (stop - start)).clamp(0, 1)
    inv = from_scratch(d, b)
    mixed = blend(inv, s, ramp) if blend else inv * (1 - ramp) + inv / s * ramp
    return mixed if factor is None else (mixed, factor(0.1 * math.log(s) + 1))


def plain(value):
    return value


def by_turns(d, b, s, L, slow=1, fast=4, shape=lambda r, slow, fast: (r - slow) / (fast - slow)):
    inv = from_scratch(d, b)
    keep = shape(L * inv / (2 * math.pi), slow, fast).clamp(0, 1)
    return inv * keep + inv / s * (1 - keep)


def slopes(heads):
    return [2 ** (-8 * (h + 1) / heads) for h in range(heads)]


def right_slopes(heads):
    return F.alibi_slopes(heads)


def only_near(d, b, s, L):
    if L > 100000:
        raise ValueError("too long")
    return yarn(d, b, s, L)


def deberta(relative, buckets, far):
    middle, result = buckets // 2, []
    for r in relative.tolist():
        grown = math.log(max(abs(r), middle) / middle) / math.log((far - 1) / middle) * (middle - 1)
        size = abs(r) if abs(r) <= middle else math.ceil(round(grown, 9)) + middle
        result.append(size if r >= 0 else -size)
    return result


def t5_with(relative, two, buckets, far):
    side = buckets // 2 if two else buckets
    exact = side // 2
    result = []
    for r in relative.tolist():
        distance = abs(r) if two else max(-r, 0)
        if distance >= exact:
            grown = math.log(distance / exact) / math.log(far / exact) * (side - exact)
            distance = min(exact + math.floor(grown + 1e-9), side - 1)
        result.append(distance + (side if two and r > 0 else 0))
    return result


def declines():
    raise NotImplementedError


def codes(positions, dim, base, layout="interleaved", **options):
    return F.sinusoidal(positions, dim, base=base, layout=layout, **options)


def by_tables(x, positions, base, layout="half", tables=None, first=-1, sines_first=False, half=None, angle=None):
    """RoPE with cos and sin tables of every channel; half and angle: what frequencies and angles are rounded to."""
    frequencies = F.frequency_curve(x.shape[-1], base=base)
    angles = positions.double()[:, None] * (frequencies.to(half).double() if half else frequencies)
    angles = angles.clamp(max=torch.finfo(angle).max).to(angle).double() if angle else angles
    spread = angles.repeat_interleave(2, -1) if (tables or layout) == "interleaved" else torch.cat((angles, angles), -1)
    cos, sin = (spread.sin(), spread.cos()) if sines_first else (spread.cos(), spread.sin())
    if layout == "interleaved":
        turned = torch.stack((first * x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    else:
        turned = torch.cat((first * x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)
    return (x.double() * cos + turned.double() * sin).to(x.dtype)


def trailing(x, positions, base, rotary_dim):
    return posenc.DecoupledRotary(
        x.shape[-1], rope_theta=base, layout="interleaved", rotary_dim=rotary_dim
    ).rotate_keys(x, Positions.from_ids(positions))


def proportional(x, positions, base, fraction):
    return posenc.PRotary(x.shape[-1], rope_theta=base, fraction=fraction).rotate_keys(x, Positions.from_ids(positions))


def ragged(x, offsets, base):
    positions = offsets[:, None] + torch.arange(x.shape[2])
    return posenc.Rotary(x.shape[-1], rope_theta=base).rotate_keys(x, Positions.from_ids(positions.expand(len(x), -1)))


def packed(x, cu_seqlens, base):
    return posenc.Rotary(x.shape[-1], rope_theta=base).rotate_keys(x, Positions.packed(cu_seqlens=cu_seqlens))


def sharded(x, cu_seqlens, base, starts=(), ranks=1, rank=0):
    """One rank's tokens of a packed row."""
    ends = list(itertools.pairwise(cu_seqlens.tolist()))
    table = [(starts[n] if starts else 0) + i for n, (begin, end) in enumerate(ends) for i in range(end - begin)]
    rows = []
    for begin, end in ends:
        chunk, mine = (end - begin) // (2 * ranks), list(range(end - begin))
        if ranks > 1:
            mine = mine[rank * chunk : (rank + 1) * chunk] + mine[::-1][rank * chunk : (rank + 1) * chunk][::-1]
        rows += [table[begin + i] for i in mine]
    return turn(x, torch.tensor(rows), base)


def m_rope(x, positions, base, sections, interleaved=False):
    encoding = posenc.MRotary(x.shape[-1], rope_theta=base, interleaved=interleaved, sections=sections)
    return encoding.rotate_keys(x, Positions.from_ids(positions.T[None]))


def fope(x, positions, base, cosines, sines, padding=None):
    heads, inputs, pairs = cosines.shape
    curve = F.frequency_curve(x.shape[-1], base=base)
    length = 1.01 * 2 * math.pi / float(curve[inputs - 1])  # as many frequencies complete a rotation
    encoding = posenc.FoPE(x.shape[-1], num_heads=heads, train_length=math.ceil(length), rope_theta=base, pairs=pairs)
    encoding.cosines, encoding.sines = cosines[None], sines[None]
    turned = encoding.rotate_keys(x, Positions.from_ids(positions))
    if padding:  # as the authors' code
        first, second = x.chunk(2, -1)
        turned.unflatten(-1, (2, -1))[..., pairs:] = torch.stack((first - second, second + first), -2)[..., pairs:]
    return turned


def m_rope_ids(token_types, image_grids, video_grids, attention_mask, merge, change=lambda ids: ids):
    ids = torch.zeros(*token_types.shape, 3, dtype=torch.long)
    grids = {1: iter(image_grids.tolist()), 2: iter(video_grids.tolist())}
    for row, types, mask in zip(ids, token_types, attention_mask.bool(), strict=True):
        parts = []
        for kind, run in itertools.groupby(types[mask].tolist()):
            left = len(list(run))
            while kind and left:
                frames, height, width = next(grids[kind])
                parts.append((height // merge, width // merge, frames))
                left -= math.prod(parts[-1])
            parts += [left] * (left > 0)
        if parts:
            row[mask] = multimodal(parts).q[0]
    return change(ids.movedim(2, 0))


def m_rope_loops(*given, **options):
    return places.m_rope_ids(*(a.tolist() if isinstance(a, torch.Tensor) else a for a in given), **options)


def timed_ids(
    token_types, image_grids, video_grids, attention_mask, merge, seconds_per_grid=(), tokens_per_second=1.0, **options
):
    return m_rope_loops(
        token_types, image_grids, video_grids, attention_mask, merge, seconds_per_grid, tokens_per_second, **options
    )  # fmt: skip


def softmax_scale(head_dim, factor, mscale, mscale_all_dim):
    return head_dim**-0.5 * frequencies.softmax_factor(max(factor, 1.0), mscale_all_dim)


MUTANTS = [
    ("m_rope_ids", lambda *given: m_rope_loops(*given, last=lambda t, h, w: max(h, w)), "text after a video goes on after its last row or column"),
    ("fope", lambda *given: fope(*given, padding=1.0), "sin is padded with 1, expected 0: channels that pass through come back as x + rotate_half(x)"),
    ("ntk", lambda d, b, s: from_scratch(d, b) / s ** (d / (d - 2)), "is plain linear interpolation by factor^(d/(d-2))"),
    ("yarn", lambda head_dim, base, factor, original_max_positions, truncate=True: yarn(head_dim, base, factor, original_max_positions), "ramp always truncated: truncate=False is ignored"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, numerator=True), "floor and ceil cover only the numerator"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, last=d // 2 - 1), "ramp clamped at head_dim/2 - 1, expected head_dim - 1"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, last=d // 2 - 1, blend=lambda f, s, t: f * t + f / s * (1 - t)), "ramp inverted: high frequencies are interpolated, low ones unchanged; ramp clamped at head_dim/2 - 1"),
    ("sinusoidal", lambda p, d, b: codes(p, d, b) * (2 / d) ** 0.5, "every value is multiplied by sqrt(2/dim)"),
    ("rotary_trailing", lambda x, p, b, r: turn(x, p, b, r, layout="interleaved"), "the first rotary_dim channels are rotated, expected the last"),
    ("rotary_trailing", lambda x, p, b, r: torch.cat((x[..., :-r], turn(x[..., -r:], p, b)), -1), "layout is half, expected interleaved"),
    ("rotary_trailing", lambda x, p, b, r: turn(x, p, b, layout="interleaved"), "the complete head is rotated: rotary_dim is ignored"),
    ("rotary_trailing", lambda x, p, b, r: trailing(x, p, b ** (r / x.shape[-1]), r), "wrong exponent: base^(-2c/head_dim), expected base^(-2c/rotary_dim)"),
    ("rotary_trailing", lambda x, p, b, r: trailing(x, -p, b, r), "rotates backwards"),
    ("rotary_proportional", lambda x, p, b, f: turn(x, p, b), "fraction is ignored: all pairs rotate"),
    ("rotary_ragged", lambda x, o, b: ragged(x, 0 * o, b), "offsets are ignored: every row begins at 0"),
    ("rotary_ragged", lambda x, o, b: ragged(x, o[:1].expand(o.shape), b), "the offset of the first row is used for all"),
    ("rotary_packed", lambda x, ends, b: turn(x, torch.arange(x.shape[2]), b), "positions run on through the documents, expected 0 at each of cu_seqlens"),
    ("m_rope", lambda x, p, b, s: m_rope(x, p, b, s, interleaved=True), "pairs are dealt in turn (m_rope_interleaved), expected in blocks"),
    ("m_rope_interleaved", m_rope, "pairs are in blocks (m_rope), expected dealt in turn"),
    ("m_rope", lambda x, p, b, s: m_rope(x, p[[0, 2, 1]], b, s), "height and width are exchanged"),
    ("m_rope", lambda x, p, b, s: turn(x, torch.arange(x.shape[2]), b), "positions are ignored: row n is taken to be at position n"),
    ("m_rope_interleaved", lambda x, p, b, s: rotations.m_rope(x, -p, b, s, interleaved=True).to(x.dtype), "rotates backwards"),
    ("m_rope_ids", lambda *given: m_rope_ids(*given, change=lambda ids: ids[[0, 2, 1]]), "height and width are exchanged"),
    ("m_rope_ids_frames", lambda *given: torch.as_tensor(m_rope_loops(*given, frames=True))[[0, 2, 1]], "height and width are exchanged"),
    ("m_rope_ids", lambda t, i, v, mask, merge: m_rope_loops(t, i, v, mask | 1, merge), "attention_mask is ignored: padding counts as text"),
    ("softmax_scale", lambda d, s, m, every: d**-0.5, "mscale_all_dim is ignored: the scale is 1/sqrt(head_dim), expected times m^2"),
    ("rotary", lambda x, p, b: by_tables(x, p, b, tables="interleaved"), "layouts are mixed: x is rotated by halves with tables of interleaved pairs"),
    ("rotary_interleaved", lambda x, p, b: by_tables(x, p, b, "interleaved", "half"), "layouts are mixed: pairs are interleaved with tables of halves"),
    ("rotary", lambda x, p, b: by_tables(x, p, b, sines_first=True), "cos and sin are exchanged"),
    ("rotary", lambda x, p, b: by_tables(x, p, b, half=torch.bfloat16), "frequencies are stored in bfloat16"),
    ("rotary", lambda x, p, b: by_tables(x, p, b, half=torch.float16), "frequencies are stored in float16"),
    ("rotary", lambda x, p, b: by_tables(x, p, b, angle=torch.bfloat16), "angles are rounded to bfloat16"),
    ("rotary", lambda x, p, b: by_tables(x, p, b, angle=torch.float16), "angles are rounded to float16"),
    ("rotary", lambda x, p, b: by_tables(x, p, b, half=x.dtype if x.dtype == torch.bfloat16 else None), "with x in bfloat16, values are wrong from position 42 on; frequencies are stored in bfloat16"),
    ("rotary", lambda x, p, b: by_tables(x, p, b, angle=x.dtype if x.dtype == torch.bfloat16 else None), "with x in bfloat16, values are wrong from position 62 on; angles are rounded to bfloat16"),
    ("rotary", lambda x, p, b: x if x.dtype == torch.bfloat16 else turn(x, p, b), "with x in bfloat16, values are wrong from position 1 on; x comes back as it was"),
    ("rotary", lambda x, p, b: turn(x, p, b, sign=-1 if x.dtype == torch.float16 else 1), "with x in float16, values are wrong from position 1 on; rotates backwards"),
    ("rotary", lambda x, p, b: turn(x, p, b).transpose(1, 2), "axes 1 and 2 come back exchanged: (batch, seq, heads, head_dim)"),
    ("rotary", lambda x, p, b: turn(x.transpose(1, 2), p, b).transpose(1, 2), "takes x as (batch, seq, heads, head_dim), expected (batch, heads, seq, head_dim)"),
    ("rotary", lambda x, p, b: turn(x, p - p[0], b), "positions are taken relative to the first one"),
    ("rotary", lambda x, positions: turn(x, positions, 10000.0), "base was not passed, as the function has no parameter for it: 10000 is used"),
    ("alibi", lambda n: slopes(n) if n == 8 else declines(), "too few cases to judge: 1 of 20 are offered"),
    ("alibi", lambda n: [math.nan] * n, "slopes wrong for 1, 2, 3"),
    ("yarn", lambda d, b, s, L: (yarn(d, b, s, L), math.nan), "temperature wrong (attention factor nan, expected 1.06931 for factor 2)"),
    ("rotary", lambda x, p, b: (turn(x, p, b).numpy(), turn(x, p, b).numpy()) if x.dtype == torch.float32 else turn(x, p, b), "returns a tuple of a ndarray, a ndarray, expected x rotated"),
    ("rotary", lambda x, p, b: turn(x.detach(), p, b), "no gradient reaches x"),
    ("rotary", lambda x, p, b: turn(x.view(-1).view(x.shape), p, b), "raises RuntimeError: view size is not compatible"),
    ("rotary", lambda x, p, b: turn(x, p, b) if x.is_contiguous() else x, "x that is not contiguous (a view with its axes exchanged) changes the result"),
    ("rotary", lambda x, p, b: (torch.bincount(torch.ones(2, dtype=x.dtype)) if x.dtype == torch.bfloat16 else 0, turn(x, p, b))[1], "with x in bfloat16: raises NotImplementedError: "),
    ("rotary", lambda x, p, b: turn(x, p, b, layout="interleaved"), "layout is interleaved, expected half"),
    ("rotary_interleaved", turn, "layout is half, expected interleaved"),
    ("rotary", lambda x, p, b: turn(x, p, b, sign=-1), "rotates backwards"),
    ("rotary", lambda x, p, b: x.clone(), "x comes back as it was"),
    ("rotary", lambda x, p, b: turn(x, torch.arange(len(p)), b), "positions are ignored: row n is taken to be at position n"),
    ("rotary", lambda x, p, b: turn(x, p + 1, b), "positions start at 1"),
    ("rotary", lambda x, p, b: turn(x, p.bfloat16(), b), "positions are rounded to bfloat16"),
    ("rotary", lambda x, p, b: turn(x, p.clamp(max=65504).half(), b), "positions are rounded to float16"),
    ("rotary", lambda x, p, b: turn(x, p, 10000.0), "base is ignored: 10000 is used"),
    ("rotary", lambda x, p, b: turn(x, p, b, exponent=0.5), "wrong exponent: base^(-c/d), expected base^(-2c/d)"),
    ("rotary", lambda x, p, b: turn(x, -p, b, layout="interleaved"), "layout is interleaved, expected half; rotates backwards"),
    ("rotary", in_place, "changes its input x in place"),
    ("rotary", lambda x, p, b: turn(x, p, b).float(), "result in the wrong dtype: float64 in, float32 out; bfloat16 in, float32 out"),
    ("rotary", lambda x, p, b: turn(x, p.to(x.dtype), b), "with x in bfloat16, values are wrong from position 257 on; positions are rounded to bfloat16, which counts to 256; with x in float16, values are wrong from position 2049 on"),
    ("rotary", cached_dtype, "cached by shape only: float32 in, float64 out after a call of that shape in float64"),
    ("rotary", lambda x, p, b: x + p[:, None], "not shift-invariant"),
    ("rotary", lambda x, p, b: x + x.square(), "14 of 14 cases differ, in a way that is not known here"),
    ("rotary", lambda x, p, b: None, "returns None, expected x rotated"),
    ("rotary", lambda x, p, b: turn(x, p, b)[:, :1], "10 of 14 cases differ"),
    ("rotary_partial", lambda x, p, b, r: turn(x, p, b), "the complete head is rotated: rotary_dim is ignored"),
    ("rotary_partial", lambda x, p, b, r: turn(x, p, b ** (r / x.shape[-1]), r), "wrong exponent: base^(-2c/head_dim), expected base^(-2c/rotary_dim)"),
    ("sinusoidal", lambda p, d, b: codes(p, d, b, "concat"), "layout is concat (all sines first), expected interleaved"),
    ("sinusoidal_concat", codes, "layout is interleaved, expected concat"),
    ("sinusoidal", lambda p, d, b: codes(p, d, b).unflatten(-1, (-1, 2)).flip(-1).flatten(-2), "cosines come where sines belong"),
    ("sinusoidal_concat", lambda p, d, b: codes(p, d, b, "concat").roll(d // 2, -1), "cosines come where sines belong"),
    ("sinusoidal", lambda p, d, b: codes(p, d, b, endpoint=True), "the last frequency is 1/base: exponents c/(dim/2 - 1)"),
    ("sinusoidal_endpoint", lambda p, d, b: codes(p, d, b, "concat"), "exponents are 2c/dim, expected c/(dim/2 - 1)"),
    ("sinusoidal", lambda p, d, b: codes(p + 1, d, b), "positions start at 1"),
    ("sinusoidal", lambda p, d, b: codes(p, d, b).to(p.dtype), "integers in, integers out"),
    ("sinusoidal", lambda p, d, b: codes(p.mul_(2) // 2, d, b), "changes its input positions in place"),
    ("sinusoidal", lambda p, d, b: codes(p, d, b).bfloat16(), "result in the wrong dtype: bfloat16, expected float32 or more"),
    ("default", lambda d, b: from_scratch(d, b) + float("nan"), "12 of 12 cases differ"),
    ("linear", lambda d, b, s: from_scratch(d, b), "nothing is scaled"),
    ("linear", lambda d, b, s: schedules.ntk(d, b, s), "is NTK-aware scaling"),
    ("ntk", lambda d, b, s: from_scratch(d, b) / s, "is plain linear interpolation"),
    ("ntk", lambda d, b, s: from_scratch(d, b * s), "exponent d/(d-2) missing"),
    ("ntk", lambda d, b, s: from_scratch(d, b), "nothing is scaled"),
    ("ntk_mixed", lambda d, b, s: from_scratch(d, b) / s, "is plain linear interpolation"),
    ("dynamic", lambda d, b, s, L, n: schedules.ntk(d, b, max(n / L, 1)), "factor is ignored: the scale is length / original_max_positions"),
    ("longrope", lambda d, b, short, long, L, n, s: from_scratch(d, b) / torch.tensor(long if n >= L else short), "long_factor is taken from original_max_positions on"),
    ("longrope", lambda d, b, short, long, L, n, s: from_scratch(d, b) / torch.tensor(long), "length is ignored: long_factor is always used"),
    ("longrope", lambda d, b, short, long, L, n, s: from_scratch(d, b) / torch.tensor(short), "length is ignored: short_factor is always used"),
    ("longrope", lambda d, b, short, long, L, n, s: (from_scratch(d, b) / torch.tensor(long if n > L else short), 1.0), "temperature missing"),
    ("yarn_revised", yarn, "frequencies are blended, expected wavelengths (yarn)"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, blend=lambda f, s, t: f * t + f / s * (1 - t)), "ramp inverted: high frequencies are interpolated"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, low=plain, high=plain), "ramp not truncated"),
    ("yarn", lambda d, b, s, L: by_turns(d, b, s, L, 1, 32), "ramp by turns, as in the paper (yarn_paper)"),
    ("yarn", lambda d, b, s, L: from_scratch(d, b), "nothing is scaled"),
    ("yarn", lambda d, b, s, L: from_scratch(d, b) / s, "is plain linear interpolation"),
    ("yarn", lambda d, b, s, L: schedules.ntk(d, b, s), "is plain NTK-aware scaling"),
    ("yarn", lambda d, b, s, L: yarn(d, 10000.0, s, L), "base is ignored: 10000 is used"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, 8192), "original_max_positions is ignored: 8192 is used"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, factor=lambda t: 1.0), "temperature missing"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, factor=lambda t: t * t), "temperature squared"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, factor=lambda t: t**0.5), "temperature is the square root"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, factor=lambda t: t - 1), "temperature lacks the + 1"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, factor=lambda t: 2 * t), "temperature wrong (attention factor"),
    ("llama3", lambda d, b, s, L: (by_turns(d, b, s, L), 1.1), "temperature wrong (attention factor 1.1, expected 1"),
    ("yarn", only_near, "refuses 6 of 54 legal cases: raises ValueError: too long (; for head_dim=64"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L).repeat(2), "54 of 54 cases differ"),
    ("yarn_paper", yarn, "ramp by pair number, as in the code (yarn)"),
    ("yarn_paper", lambda d, b, s, L: by_turns(d, b, s, L, 1, 32, lambda r, slow, fast: (fast - r) / (fast - slow)), "ramp inverted: high frequencies are divided, low ones unchanged"),
    ("llama3", lambda d, b, s, L: by_turns(d, b, s, L, shape=lambda r, slow, fast: (r >= fast).double()), "no ramp: frequencies between the two limits are divided"),
    ("alibi", slopes, "slopes wrong for 3, 6, 10, 12, 20, 24, 25, 40, 48, 71, 96, 112 heads: they are 2^(-8(h+1)/heads), which holds for powers of two only"),
    ("alibi", lambda n: -right_slopes(n), "the sign is wrong: slopes are negative"),
    ("t5", lambda r, two, n, far: F.t5_bucket(-r, bidirectional=two, num_buckets=n, max_distance=far), "direction reversed: it takes query minus key"),
    ("t5", lambda r, two, n, far: F.t5_bucket(r, bidirectional=True, num_buckets=n, max_distance=far), "the bidirectional flag is ignored: always bidirectional"),
    ("t5", lambda r, two, n, far: F.t5_bucket(r, bidirectional=False, num_buckets=n, max_distance=far), "the bidirectional flag is ignored: always causal"),
    ("deberta", lambda r, n, far: deberta(-r, n, far), "direction reversed: it takes key minus query"),
    ("xpos", lambda p, d, b: schedules.xpos((-p).tolist(), d, b), "this is the scale of keys"),
]  # fmt: skip


class Module(torch.nn.Module):
    def forward(self, x, positions, base):
        return turn(x, positions, base)

    def turn(self, x, positions, base):
        return turn(x, positions, base)


def numpy_rotary(x, positions, base):
    rows, frequencies = numpy.asarray(x), base ** (-numpy.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = numpy.asarray(positions)[:, None] * frequencies
    first, second = numpy.split(rows, 2, -1)
    cos, sin = numpy.cos(angles), numpy.sin(angles)
    return numpy.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


RIGHT = [
    ("rotary_trailing", trailing),
    ("rotary_proportional", proportional),
    ("rotary_ragged", ragged),
    ("rotary_packed", packed),
    ("rotary_packed", sharded),
    ("m_rope", m_rope),
    ("m_rope_interleaved", lambda *given: m_rope(*given, interleaved=True)),
    ("m_rope_ids", m_rope_ids),
    ("m_rope_ids", timed_ids),
    ("m_rope_ids_frames", functools.partial(m_rope_loops, frames=True)),
    ("fope", fope),
    ("softmax_scale", softmax_scale),
    ("rotary", by_tables),
    ("rotary", numpy_rotary),
    ("rotary", lambda x, positions, theta=10000.0: turn(x, positions, theta)),
    ("rotary", lambda x, pos=None, theta=10000.0: turn(x, pos, theta)),
    ("rotary", lambda x, positions, interleaved=False, theta=10000.0: turn(x, positions, theta)),
    ("rotary", lambda x, *rest: turn(x, *rest)),
    ("rotary", lambda x, *args, **kwargs: turn(x, *args, **kwargs)),
    ("rotary", lambda q, pos, *, base: turn(q, pos, base)),
    ("rotary", lambda q, pos, *, theta=10000.0: turn(q, pos, theta)),
    ("rotary", functools.partial(turn, base=10000.0)),
    ("rotary", Module()),
    ("rotary", Module().turn),
    ("default", lambda base=10000.0, dim=64: from_scratch(dim, base)),
    ("default", lambda d, b: [1] if d == 2 else from_scratch(d, b)),
    ("default", lambda d, b: {"inv_freq": from_scratch(d, b)}),
    ("yarn", lambda head_dim, base=10000, scale=1.0, max_position_embeddings=2048: yarn(head_dim, base, scale, max_position_embeddings)),
    ("sinusoidal", lambda positions, dim, max_wavelength=10000.0: codes(positions, dim, max_wavelength)),
    ("t5", lambda relative_position, bidirectional=True, num_buckets=32, max_dist=128: F.t5_bucket(relative_position, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_dist)),
    ("rotary", turn),
    ("rotary_interleaved", lambda x, positions, base: turn(x, positions, base, layout="interleaved")),
    ("rotary_partial", turn),
    ("rotary", lambda x, positions, base: turn(x, positions, base).tolist()),
    ("rotary", lambda *given: turn(*given).requires_grad_()),
    ("sinusoidal", codes),
    ("sinusoidal", lambda positions, dim, base: codes(positions, dim, base).numpy()),
    ("sinusoidal", lambda positions, dim, base: codes(positions, dim, base)[None]),
    ("sinusoidal_concat", lambda p, d, b: codes(p, d, b, "concat").tolist()),
    ("sinusoidal_endpoint", lambda p, d, b: codes(p, d, b, "concat", endpoint=True)),
    ("proportional", lambda d, b, p: (schedules.proportional(d, b, p), 1.0)),
    ("alibi", lambda n: F.alibi_slopes(n).float().view(n, 1, 1)),
    ("alibi", lambda n: numpy.array(biases.alibi(n), dtype=numpy.float32)),
    ("t5", F.t5_bucket),
    ("t5", lambda relative, *rest: t5_with(relative, *rest)),
    ("deberta", deberta),
    ("xpos", lambda p, d, b: torch.tensor(schedules.xpos(p.tolist(), d, b))),
    ("yarn", lambda head_dim, base, factor, original_max_positions: yarn(head_dim, base, factor, original_max_positions, factor=plain)),
    ("yarn", lambda *numbers: yarn(*numbers).float()),
    *((name, schedule) for name, schedule in frequencies.SCHEDULES.items() if name in KINDS),
]  # fmt: skip
