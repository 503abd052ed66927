# SPDX-License-Identifier: Apache-2.0
"""Common faults of re-implementations: a sentence for the report -> how the formula changes.

A fault is a dict of changed arguments (a value, or a function of all arguments), or a function from the formula to another
one. So a fault in an argument can be combined with any other.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from posenc.conformance.kinds import KINDS
from posenc.testing.oracles import biases, rotations, schedules

Arguments = Mapping[str, Any]
Formula = Callable[..., Any]
Faults = dict[str, dict[str, Any] | Callable[[Formula], Formula]]


def expected_values(kind: str, arguments: Arguments, faults: Sequence[str] = (), *, nudge: float = 0.0) -> Tensor:
    """The values of a kind's formula, with some of its faults, float64. nudge: the relative error that frequencies and angles
    have before they are rounded."""
    formula, changed = KINDS[kind].formula, [FAULTS[kind][name] for name in faults]
    if nudge:
        formula = then(frequency=lambda f: f * (1 + nudge), angle=lambda a: a * (1 + nudge))(formula)
    for fault in changed:
        formula = formula if isinstance(fault, dict) else fault(formula)
        arguments = _with(fault, arguments)
    return KINDS[kind].counted(torch.as_tensor(_called(formula, arguments), dtype=torch.float64))


def _with(fault: Any, arguments: Arguments) -> Arguments:
    if not isinstance(fault, dict):
        return arguments
    return {**arguments, **{k: v(arguments) if callable(v) else v for k, v in fault.items()}}


def effective(kind: str, arguments: Arguments, faults: Sequence[str]) -> tuple[str, ...]:
    """The faults that change anything in a case: those of its arguments only if these become others."""
    names = []
    for name in faults:
        fault: Any = FAULTS[kind][name]
        before, arguments = arguments, _with(fault, arguments)
        if arguments is before or any(arguments[key] != before.get(key) for key in fault):
            names.append(name)
    return tuple(names)


def _called(formula: Formula, arguments: Arguments) -> Any:
    names = _parameters(formula)
    return formula(**(arguments if names is None else {k: v for k, v in arguments.items() if k in names}))


def _parameters(formula: Formula) -> tuple[str, ...] | None:
    """Names of a formula's parameters, None if it takes any. What `FAULTS` makes for each call are plain functions, for which
    inspect would take longer than most formulas."""
    if not isinstance(formula, FunctionType):
        return _inspected(formula)
    code = formula.__code__
    takes_any = code.co_flags & inspect.CO_VARKEYWORDS
    return None if takes_any else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


@cache
def _inspected(formula: Formula) -> tuple[str, ...] | None:
    parameters = inspect.signature(formula).parameters
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) else tuple(parameters)


def instead(other: Formula) -> Callable[[Formula], Formula]:
    """Another formula."""
    return lambda formula: other


def variant(**options: Any) -> Callable[[Formula], Formula]:
    """The same formula, with options that a convention does not have."""
    return lambda formula: lambda **given: _called(formula, {**options, **given})


def result(change: Callable[[Any], Any]) -> Callable[[Formula], Formula]:
    """The formula's result, changed."""
    return lambda formula: lambda **given: change(_called(formula, given))


def then(**changes: Callable[[Tensor], Tensor]) -> Callable[[Formula], Formula]:
    """The formula with changes of its positions (at), which are (batch or 1, 1, seq, 1), frequencies or angles, after those of
    the faults before."""

    def changed(formula: Formula) -> Formula:
        def with_changes(**given: Any) -> Any:
            later = {name: given.get(name, rotations.unchanged) for name in changes}
            both = {name: lambda x, name=name: later[name](changes[name](x)) for name in changes}
            return _called(formula, {**given, **both})

        return with_changes

    return changed


def each(change: Callable[[Any], Any], name: str = "positions") -> dict[str, Any]:
    """Every number of an argument, changed."""

    def changed(value: Any) -> Any:
        return [changed(item) for item in value] if isinstance(value, list) else change(value)

    return {name: lambda given: changed(given[name])}


def along(axis: int, by_index: bool) -> Callable[[Formula], Formula]:
    """RoPE in which rows of another axis turn, by the positions of the first tokens or by their index."""

    def exchanged(formula: Formula) -> Formula:
        def turned(**given: Any) -> Tensor:
            count = torch.as_tensor(given["x"]).shape[axis]

            def moved(p: Tensor) -> Tensor:
                p = torch.arange(count, dtype=torch.float64)[:, None] if by_index else p[:, :, :count]
                return (p if axis or by_index else p[:1]).expand(1 if by_index else -1, 1, -1, -1).transpose(axis, 2)

            return _called(then(at=moved)(formula), given)

        return turned

    return exchanged


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).double()


def _quarter_turn(angle: Tensor) -> Tensor:
    """The angle whose sine is this one's cosine."""
    return math.pi / 2 - angle


# -------------------------------------------------------------------- rotations and sinusoidal codes

SHORT_DTYPES = {"bfloat16": (torch.bfloat16, 256), "float16": (torch.float16, 2048)}
"""Name -> dtype, and the last integer up to which it represents all."""
BACKWARDS = "rotates backwards (the sign of the sine is wrong)"
UNTURNED = "x comes back as it was"
BASES: Faults = {
    "base is ignored: 10000 is used": {"base": 10000.0},
    "wrong exponent: base^(-c/d), expected base^(-2c/d) (as of a head twice as wide)": {"base": lambda a: a["base"] ** 0.5},
    "wrong exponent: base^(-4c/d), expected base^(-2c/d) (as of a head half as wide)": {"base": lambda a: a["base"] ** 2},
}  # fmt: skip
ENDS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
"""Lengths of tables, after which positions may be clamped."""
CLAMPED = "positions are clamped: {last} is used from position {end} on"


def _within(position: float, last: int) -> float:
    return max(-last, min(position, last))


CLAMPS: Faults = {CLAMPED.format(last=end - 1, end=end): each(partial(_within, last=end - 1)) for end in ENDS}
"""On both sides of 0, so that they may follow a fault of the sign."""
ROUNDED_POSITIONS: Faults = {
    f"positions are rounded to {name}, which counts to {last}": {
        "positions": lambda a, dtype=dtype: _rounded(torch.tensor(a["positions"], dtype=torch.float64), dtype).tolist()
    }
    for name, (dtype, last) in SHORT_DTYPES.items()
}
POSITIONS: Faults = {
    "positions are ignored: row n is taken to be at position n": {"positions": lambda a: list(range(len(a["positions"])))},
    "positions are taken relative to the first one": {"positions": lambda a: [p - a["positions"][0] for p in a["positions"]]},
    "positions start at 1 (position + 1 is used)": each(lambda p: p + 1),
    **ROUNDED_POSITIONS,
    **BASES,
    **CLAMPS,
}  # fmt: skip
ROUNDED: Faults = {
    f"{what} {name}": then(**{option: partial(_rounded, dtype=dtype)})
    for what, option in (("frequencies are stored in", "frequency"), ("angles are rounded to", "angle"))
    for name, (dtype, _) in SHORT_DTYPES.items()
}
TABLES: Faults = {
    **ROUNDED,
    "cos and sin are exchanged": then(angle=_quarter_turn),
    "axes 1 and 2 come back exchanged: (batch, seq, heads, head_dim)": result(lambda x: x.transpose(1, 2)),
}  # fmt: skip
ALONG: Faults = {
    f"x is turned along {what}, expected along its tokens: {one} n turns by {by}": along(axis, by_index)
    for axis, what, one in ((1, "its heads (axis 1)", "head"), (0, "the batch (axis 0)", "row"))
    for by_index, by in ((False, "the position of token n"), (True, "position n"))
}
LADDER: Faults = {
    "the last frequency is 1/base: exponents c/(d/2 - 1), expected 2c/d": {
        "base": lambda a: a["base"] ** (1 + 2 / ((a.get("rotary_dim") or len(a["x"][0][0][0])) - 2))
    }
}
TURNED: Faults = {BACKWARDS: each(lambda p: -p), UNTURNED: each(lambda p: 0), **TABLES, **LADDER, **ALONG}
ROTATIONS: Faults = {**TURNED, **POSITIONS}
LAYOUT: Faults = {"layout is interleaved, expected half": variant(layout="interleaved")}
HALF: Faults = {
    **LAYOUT,
    "layouts are mixed: x is turned by halves with tables of interleaved pairs (repeat_interleave, expected cat)":
        variant(tables="interleaved"),
}  # fmt: skip
PARTIAL: Faults = {
    "wrong exponent: base^(-2c/head_dim), expected base^(-2c/rotary_dim)": {
        "base": lambda a: a["base"] ** (a["rotary_dim"] / len(a["x"][0][0][0]))
    },
    "the complete head is turned: rotary_dim is ignored": {"rotary_dim": None},
}
PLACES: Faults = {
    BACKWARDS: then(at=lambda p: -p),
    UNTURNED: then(at=lambda p: 0 * p),
    "positions start at 1 (position + 1 is used)": then(at=lambda p: p + 1),
    **{
        f"positions are rounded to {name}, which counts to {last}": then(at=partial(_rounded, dtype=dtype))
        for name, (dtype, last) in SHORT_DTYPES.items()
    },
    **TABLES,
    **LAYOUT,
    **ALONG,
    **BASES,
    **LADDER,
    **{CLAMPED.format(last=end - 1, end=end): then(at=partial(torch.clamp, min=1 - end, max=end - 1)) for end in ENDS},
}
CODES: Faults = {
    "cosines come where sines belong": then(angle=_quarter_turn),
    "the last frequency is 1/base: exponents c/(dim/2 - 1), expected 2c/dim": variant(endpoint=True),
    "rows come in reverse: the first is that of the last position": result(lambda codes: codes.flip(0)),
    "positions are negated: sines have the wrong sign": each(lambda p: -p),
    **ROUNDED,
    **POSITIONS,
}
CONCATENATED: Faults = {"layout is interleaved, expected concat (all sines first)": variant(layout="interleaved")}

# -------------------------------------------------------------------- schedules

UNSCALED = "nothing is scaled: these are the default frequencies"
LINEAR = "is plain linear interpolation"
SCHEDULES: Faults = {
    UNSCALED: instead(schedules.default),
    LINEAR: instead(schedules.linear),
    "is plain NTK-aware scaling": instead(schedules.ntk),
    "base is ignored: 10000 is used": {"base": 10000.0},
    "original_max_positions is ignored: 8192 is used": {"original_max_positions": 8192},
    "original_max_positions is taken for the extended length (multiplied by factor)": {
        "original_max_positions": lambda a: a["original_max_positions"] * a["factor"]
    },
}
YARN: Faults = {
    "ramp inverted: high frequencies are interpolated, low ones unchanged": variant(inverted=True),
    "ramp not truncated: its ends are not rounded (the gpt-oss form)": {"truncate": False},
    "ramp always truncated: truncate=False is ignored": {"truncate": True},
    "ramp by turns, as in the paper (yarn_paper), expected by pair number, as in the code": instead(schedules.yarn_paper),
    "floor and ceil cover only the numerator of the pair's number": variant(round_numerator=True),
    "ramp clamped at head_dim/2 - 1, expected head_dim - 1": {"last": lambda a: a["head_dim"] // 2 - 1},
    "beta_fast and beta_slow are exchanged": {
        "beta_fast": lambda a: a.get("beta_slow", 1.0), "beta_slow": lambda a: a.get("beta_fast", 32.0)
    },
    **SCHEDULES,
}  # fmt: skip
TURNS: Faults = {
    "ramp inverted: high frequencies are divided, low ones unchanged":
        variant(ramp=lambda turns, slow, fast: (turns - slow) / (fast - slow)),
    "no ramp: frequencies between the two limits are divided": variant(ramp=lambda turns, slow, fast: turns < fast),
    "frequencies between the two limits are unchanged: no ramp, or its limits exchanged":
        variant(ramp=lambda turns, slow, fast: turns < slow),
    **SCHEDULES,
}  # fmt: skip
FACTOR: Faults = {UNSCALED: {"factor": 1.0}, **BASES}


def _linear_by_ntk(head_dim: int, base: float, factor: float) -> list[float]:
    return schedules.linear(head_dim, base, factor ** (head_dim / (head_dim - 2)))


def _powers_of_two(num_heads: int, *, first: int = 1) -> list[float]:
    return [2 ** (-8 * (h + first) / num_heads) for h in range(num_heads)]


def _ladders(widths: Callable[[Arguments], Sequence[int]]) -> Callable[[Formula], Formula]:
    """RoPE of several axes in which the frequencies begin anew for each of these widths."""

    def changed(formula: Formula) -> Formula:
        def ladders(**given: Any) -> Any:
            numbers = [f for width in widths(given) for f in schedules.default(width, given["base"])]
            return _called(then(frequency=lambda f: torch.tensor(numbers, dtype=torch.float64))(formula), given)

        return ladders

    return changed


def _decoders_shift(q: Any, table: Any, num_keys: int) -> Tensor:
    """Transformer-XL's shift of the distances to the past, with what it leaves above the diagonal."""
    q, table = (torch.as_tensor(x, dtype=torch.float64) for x in (q, table))
    far, (batch, heads, queries, _) = len(table) // 2, q.shape
    scores = q @ table[torch.arange(1 - num_keys, 1).clamp(min=-far) + far].T
    padded = torch.nn.functional.pad(scores, (1, 0)).view(batch, heads, num_keys + 1, queries)
    return padded[:, :, 1:].reshape(batch, heads, queries, num_keys)


def _first_rows(
    x: Any, cu_seqlens: Any, base: float, starts: Any = (), ranks: int = 1, rank: int = 0, **options: Any
) -> Tensor:
    """Every document takes a packed table's rows from 0 on."""
    table = rotations.positions_of({"cu_seqlens": cu_seqlens, "starts": starts}).flatten()
    rows = rotations.positions_of({"cu_seqlens": cu_seqlens, "ranks": ranks, "rank": rank}).flatten()
    return rotations.rotary(x, table[rows.long()], base, **options)


SECTIONS: Faults = {
    "height and width are exchanged": {"positions": lambda a: [a["positions"][axis] for axis in (0, 2, 1)]},
    "only time turns: height and width are ignored": {"positions": lambda a: [a["positions"][0]] * 3},
    "sections are taken from the last to the first": {"sections": lambda a: a["sections"][::-1]},
}
MANY: Faults = {
    **HALF,
    **TURNED,
    **ROUNDED_POSITIONS,
    "positions are ignored: row n is taken to be at position n": {
        "positions": lambda a: [list(range(len(a["positions"][0])))] * 3
    },
    **BASES,
    **CLAMPS,
}
IDS: Faults = {
    "text after a video goes on after its last row or column, expected after the largest number on any axis": variant(
        last=lambda t, h, w: max(h, w)
    ),
    "time stands still: all frames of a video are where it begins": variant(time=lambda frame, begin, interval: begin),
    "rows of a video are repeated over its frames first: the height of token n is n // (frames * width)": variant(
        cell=lambda n, t, h, w: (n // (h * w), n // (w * t), n % w)
    ),
    "tokens go down the columns, expected along the rows": variant(
        cell=lambda n, t, h, w: (n // (h * w), n % h, n // h % w)
    ),
    "height and width are exchanged": variant(cell=lambda n, t, h, w: (n // (h * w), n % w, n // w % h)),
    "times are multiplied with where the video begins: begin * interval, expected begin + frame * interval": variant(
        time=lambda frame, begin, interval: int(begin * interval)
    ),
    "seconds_per_grid are cut to integers before they are multiplied": {
        "seconds_per_grid": lambda a: [int(seconds) for seconds in a.get("seconds_per_grid", ())]
    },
    "seconds_per_grid is ignored: 1 is used": {"seconds_per_grid": ()},
    "attention_mask is ignored: padding counts as text": each(lambda seen: 1, "attention_mask"),
}

# -------------------------------------------------------------------- scores, index tables and masks

# i, j, queries, columns -> the column that key j of query i is taken from
SHIFTS: Faults = {
    "nothing is shifted: column j is taken for key j": variant(column=lambda i, j, q, c: j),
    "nothing is shifted: the last columns are taken for the keys": variant(column=lambda i, j, q, c: j + q - 1),
}
EXCHANGED: Faults = {
    "queries and keys are exchanged": result(lambda scores: scores.mT),
    "heads come last": result(lambda scores: scores.movedim(1, -1)),
}
EXCHANGED_PAIRS: Faults = {
    "queries and keys are exchanged": result(lambda bias: bias.mT),
    "heads come last": result(lambda bias: bias.movedim(0, -1)),
}
OLDER = "fewer queries than keys count from the first key, expected from key num_keys - num_queries"


def _even_slopes(bias: Tensor) -> Tensor:
    """ALiBi's bias with slopes 2^(-8(h+1)/heads) for any number of heads."""
    wrong = torch.tensor(_powers_of_two(len(bias)), dtype=bias.dtype)
    return bias * (wrong / torch.tensor(biases.alibi(len(bias)), dtype=bias.dtype))[:, None, None]


RELATIVE: Faults = {
    "direction reversed: the table is read by query minus key": variant(
        distance=lambda i, j, q, k: -biases.key_minus_query(i, j, q, k)
    ),
    OLDER: variant(distance=lambda i, j, q, k: j - i),
    "off by one: distances are one too large": variant(
        distance=lambda i, j, q, k: biases.key_minus_query(i, j, q, k) + 1
    ),
    "off by one: distances are one too small": variant(
        distance=lambda i, j, q, k: biases.key_minus_query(i, j, q, k) - 1
    ),
    "keys after the query are 0, as in a decoder": result(lambda s: s.tril(s.shape[-1] - s.shape[-2])),
    "keys after the query have scores of the next query, as a decoder's shift (relative_shift_causal) leaves them": instead(
        _decoders_shift
    ),
    **EXCHANGED,
}
OF_PAIRS: Faults = {
    name: RELATIVE[name]
    for name in (
        OLDER,
        "off by one: distances are one too large",
        "off by one: distances are one too small",
    )
}
INDEX: Faults = {
    "direction reversed: key minus query": variant(sign=-1),
    "rows of the table are 2 height - 1 apart, expected 2 width - 1": variant(stride=lambda h, w: 2 * h - 1),
    "height and width are exchanged": {"height": lambda a: a["width"], "width": lambda a: a["height"]},
}
HIDES: Faults = {
    "true where hidden, expected where seen": result(lambda mask: [[1 - seen for seen in row] for row in mask])
}
FROM_THE_FIRST: Faults = {
    OLDER: lambda formula: (
        lambda **given: _called(formula, {**given, "num_queries": given["num_keys"]})[: given["num_queries"]]
    )
}
AXIAL: Faults = {
    "axes come from the last to the first": {"positions": lambda a: a["positions"][::-1]},
    "frequencies run on over the head, expected anew for each axis (as in M-RoPE)": _ladders(
        lambda a: [sum(a["widths"])]
    ),
    BACKWARDS: each(lambda p: -p),
    UNTURNED: each(lambda p: 0),
    "positions start at 1 (position + 1 is used)": each(lambda p: p + 1),
    **TABLES,
    **BASES,
    **CLAMPS,
}

# -------------------------------------------------------------------- the faults of each kind, the most likely first

FAULTS: dict[str, Faults] = {
    "rotary": {**HALF, **ROTATIONS},
    "rotary_interleaved": {
        "layout is half, expected interleaved": variant(layout="half"),
        "layouts are mixed: pairs are interleaved with tables of halves (cat, expected repeat_interleave)": variant(tables="half"),
        **ROTATIONS,
    },
    "rotary_partial": {
        **HALF,
        **PARTIAL,
        **ROTATIONS,
    },
    "rotary_trailing": {
        "the first rotary_dim channels are turned, expected the last": variant(trailing=False),
        "layout is half, expected interleaved": variant(layout="half"),
        **PARTIAL,
        **ROTATIONS,
    },
    "rotary_proportional": {
        "fraction is ignored: all pairs turn": {"fraction": 1.0},
        **HALF,
        **ROTATIONS,
    },
    "rotary_ragged": {
        "offsets are ignored: every row begins at 0": then(at=lambda p: torch.arange(p.shape[2])[:, None].expand(p.shape)),
        "the offset of the first row is used for all": then(at=lambda p: p[:1]),
        "negative offsets are taken for 0, so that text after padding is too far": then(
            at=lambda p: p - p[:, :, :1].clamp(max=0)
        ),
        **PLACES,
    },
    "rotary_packed": {
        "positions run on through the documents, expected 0 at each of cu_seqlens": {"starts": lambda a: a["cu_seqlens"][:-1]},
        "all documents take the first rows of a table of the packed row, expected document n those from cu_seqlens[n] on":
            instead(_first_rows),
        **PLACES,
    },
    "m_rope": {
        "pairs are dealt in turn (m_rope_interleaved), expected in blocks": variant(interleaved=True),
        **SECTIONS,
        **MANY,
    },
    "m_rope_interleaved": {
        "pairs are in blocks (m_rope), expected dealt in turn": variant(interleaved=False),
        "the slices of height and width are shifted: they begin at pairs 0 and 1, expected 1 and 2": variant(begin=0),
        "the slices of height and width are shifted: they begin at pairs 2 and 3, expected 1 and 2": variant(begin=2),
        **SECTIONS,
        **MANY,
    },
    "m_rope_ids": {
        **IDS,
    },
    "m_rope_ids_frames": IDS,
    "fope": {
        "sin is padded with 1, expected 0: channels that pass through come back as x + rotate_half(x), as in the authors' code":
            variant(padding=1.0),
        **LAYOUT,
        **ROTATIONS,
    },
    "softmax_scale": {
        "mscale_all_dim is ignored: the scale is 1/sqrt(head_dim), expected times m^2": {"mscale_all_dim": 0.0},
    },
    "sinusoidal": {"layout is concat (all sines first), expected interleaved": variant(layout="concat"), **CODES},
    "sinusoidal_concat": {**CONCATENATED, **CODES},
    "sinusoidal_endpoint": {
        "exponents are 2c/dim, expected c/(dim/2 - 1): the last frequency is not 1/base": variant(endpoint=False),
        **CONCATENATED,
        **CODES,
    },
    "rotary_axial": {
        "layout is half, expected interleaved": variant(layout="half"),
        "layouts are mixed: pairs are interleaved with tables of halves (cat, expected repeat_interleave)": variant(tables="half"),
        **AXIAL,
    },
    "rotary_axial_half": {**HALF, **AXIAL},
    "sinusoidal_2d": {
        "rows come first: sin y, cos y, sin x, cos x": variant(order="sin y cos y sin x cos x"),
        "cosines come where sines belong": variant(order="cos x sin x cos y sin y"),
        "the last frequency is 1/base: exponents c/(dim/4 - 1), expected c/(dim/4)": variant(endpoint=True),
        "tokens go down the columns, expected along the rows": variant(down=True),
        "height and width are exchanged": {"height": lambda a: a["width"], "width": lambda a: a["height"]},
        "base is ignored: 10000 is used": {"base": 10000.0},
    },
    "relative": RELATIVE,
    "relative_shift": {
        "(columns + 1) / 2 keys come back, which holds for as many queries as keys only": variant(keys=lambda q, c: c // 2 + 1),
        **SHIFTS,
        "keys after the query are 0, as in a decoder": result(lambda s: s.tril(s.shape[-1] - s.shape[-2])),
        **EXCHANGED,
    },
    "relative_shift_causal": {**SHIFTS, **EXCHANGED},
    "relative_index": INDEX,
    "relative_index_class": {
        **INDEX,
    },
    "alibi_bias": {
        "the sign is wrong: far keys gain": result(lambda bias: -bias),
        OLDER: variant(distance=lambda i, j, q, k: -abs(j - i)),
        "slopes are 2^(-8(h+1)/heads), which holds for powers of two only": result(_even_slopes),
        "heads are counted from 0: 2^(-8h/n), so the first slope is 1, expected 2^(-8(h+1)/n)": variant(first=0),
        **EXCHANGED_PAIRS,
    },
    "t5_bias": {
        "direction reversed: query minus key": variant(distance=lambda i, j, q, k: -biases.key_minus_query(i, j, q, k)),
        **OF_PAIRS,
        "the bidirectional flag is ignored: always bidirectional": {"bidirectional": True},
        "the bidirectional flag is ignored: always causal": {"bidirectional": False},
        "saturates at the wrong distance: max_distance is ignored, 128 is used": {"max_distance": 128},
        **EXCHANGED_PAIRS,
    },
    "swin_bias": {**INDEX, **EXCHANGED_PAIRS},
    "forget_gates": {
        "the sign is wrong: far keys gain": variant(gates=lambda g: -g),
    },
    "mask_document": {
        "documents are not separated: causal alone": {"document_ids": lambda a: [0] * len(a["document_ids"])},
        "not causal: a document sees all of itself": variant(causal=False),
        **HIDES,
    },
    "mask_window": {
        "off by one: the window is one too wide (i - j <= window)": {"window": lambda a: a["window"] + 1},
        "not causal: tokens after the query are seen": variant(sees=lambda i, j, w: i - j < w),
        "the window is ignored: causal alone": variant(sees=lambda i, j, w: j <= i),
        **FROM_THE_FIRST,
        **HIDES,
    },
    "mask_chunk": {
        "not causal: a chunk sees all of itself": variant(sees=lambda i, j, c: i // c == j // c),
        **FROM_THE_FIRST,
        **HIDES,
    },
    "mask_streaming": {
        "left_chunks = 0 is taken for all chunks before": {"left_chunks": lambda a: a["left_chunks"] or a["size"]},
        **HIDES,
    },
    "default": BASES,
    "linear": {
        "is NTK-aware scaling": instead(schedules.ntk),
        "frequencies are multiplied by factor, expected divided": {"factor": lambda a: 1 / a["factor"]},
        **FACTOR,
    },
    "ntk": {
        LINEAR: instead(schedules.linear),
        "is plain linear interpolation by factor^(d/(d-2))": instead(_linear_by_ntk),
        "exponent d/(d-2) missing: the base is multiplied by factor alone":
            instead(lambda head_dim, base, factor: schedules.default(head_dim, base * factor)),
        **FACTOR,
    },
    "ntk_mixed": {
        LINEAR: {"exponent": 0.0},
        **FACTOR,
    },
    "dynamic": {
        "factor is ignored: the scale is length / original_max_positions": {"factor": 1.0},
        UNSCALED: {"length": 0},
        **BASES,
    },
    "longrope": {
        "long_factor is taken from original_max_positions on, expected for longer inputs": {"length": lambda a: a["length"] + 1},
        "length is ignored: long_factor is always used": {"short_factor": lambda a: a["long_factor"]},
        "length is ignored: short_factor is always used": {"long_factor": lambda a: a["short_factor"]},
        "short_factor and long_factor are exchanged": {
            "short_factor": lambda a: a["long_factor"], "long_factor": lambda a: a["short_factor"]
        },
        **BASES,
    },
    "yarn": YARN,
    "yarn_revised": {"frequencies are blended, expected wavelengths (yarn)": variant(wavelengths=False), **YARN},
    "yarn_paper": {
        "ramp by pair number, as in the code (yarn), expected by turns, as in the paper": instead(schedules.yarn), **TURNS
    },
    "llama3": TURNS,
    "proportional": {
        **BASES,
    },
    "alibi": {
        "they are 2^(-8(h+1)/heads), which holds for powers of two only": instead(_powers_of_two),
        "another order: sorted from large to small": result(lambda slopes: sorted(slopes, reverse=True)),
        "the sign is wrong: slopes are negative, expected positive": result(lambda slopes: [-slope for slope in slopes]),
        "they are of a model with twice the heads, the first half": instead(lambda num_heads: biases.alibi(2 * num_heads)[:num_heads]),
        "they are of a model with twice the heads, the second half": instead(lambda num_heads: biases.alibi(2 * num_heads)[num_heads:]),
        "heads are counted from 0: 2^(-8h/n), so the first slope is 1, expected 2^(-8(h+1)/n)": variant(first=0),
    },
    "t5": {
        "direction reversed: it takes query minus key": each(lambda r: -r, "relative_position"),
        "the bidirectional flag is ignored: always bidirectional": {"bidirectional": True},
        "the bidirectional flag is ignored: always causal": {"bidirectional": False},
        "saturates at the wrong distance: max_distance is ignored, 128 is used": {"max_distance": 128},
        "num_buckets is ignored: 32 is used": {"num_buckets": 32},
        "logarithms are rounded to the nearest bucket, expected cut": variant(cut=torch.round),
        "off by one: distances are one too large": each(lambda r: r + (r > 0) - (r < 0), "relative_position"),
        "off by one: distances are one too small": each(lambda r: r - (r > 0) + (r < 0), "relative_position"),
    },
    "deberta": {
        "direction reversed: it takes key minus query": each(lambda r: -r, "relative_position"),
        "buckets is ignored: 256 is used": {"buckets": 256},
        "max_position is ignored: 512 is used": {"max_position": 512},
    },
    "xpos": {
        "this is the scale of keys, the inverse of that of queries": each(lambda p: -p),
        "scale_base is ignored: 512 is used": {"scale_base": 512},
    },
}  # fmt: skip
ATTENTION_FACTORS: dict[str, Callable[[float], float]] = {
    "temperature missing: the attention factor is 1": lambda expected: 1.0,
    "temperature squared": lambda expected: expected**2,
    "temperature is the square root": lambda expected: expected**0.5,
    "temperature lacks the + 1": lambda expected: expected - 1,
}
"""What an attention factor can be instead of the expected one."""
ROUNDINGS: dict[str, tuple[str, ...]] = {
    name: (
        f"positions are rounded to {name}, which counts to {last}",
        f"frequencies are stored in {name}",
        f"angles are rounded to {name}",
    )
    for name, (_, last) in SHORT_DTYPES.items()
}
"""Dtype -> the faults of code that computes everything in it."""
