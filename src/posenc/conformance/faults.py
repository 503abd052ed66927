# SPDX-License-Identifier: Apache-2.0
"""Common faults of re-implementations: a sentence for the report -> how the formula changes.

A fault is a dict of changed arguments (a value, or a function of all arguments), or a function from the formula to another
one. So a fault in an argument can be combined with any other.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc.conformance.kinds import KINDS
from posenc.testing.oracles import biases, rotations, schedules

Arguments = Mapping[str, Any]
Formula = Callable[..., Any]
Faults = dict[str, dict[str, Any] | Callable[[Formula], Formula]]


def expected_values(kind: str, arguments: Arguments, faults: Sequence[str] = ()) -> Tensor:
    """The values of a kind's formula, with some of its faults, float64."""
    formula = KINDS[kind].formula
    for fault in (FAULTS[kind][name] for name in faults):
        if isinstance(fault, dict):
            arguments = {**arguments, **{k: v(arguments) if callable(v) else v for k, v in fault.items()}}
        else:
            formula = fault(formula)
    return KINDS[kind].counted(torch.as_tensor(_called(formula, arguments), dtype=torch.float64))


def _called(formula: Formula, arguments: Arguments) -> Any:
    """The formula's result, for those of the arguments that it takes."""
    parameters = inspect.signature(formula).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return formula(**(arguments if takes_any else {k: v for k, v in arguments.items() if k in parameters}))


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


def moved(change: Callable[[Tensor], Tensor]) -> Callable[[Formula], Formula]:
    """The formula at other positions."""

    def changed(formula: Formula) -> Formula:
        def elsewhere(**given: Any) -> Any:
            if "positions" not in given:
                return _called(then(at=change)(formula), given)
            positions = torch.as_tensor(given["positions"], dtype=torch.float64)
            return _called(formula, {**given, "positions": change(positions)})

        return elsewhere

    return changed


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).double()


# -------------------------------------------------------------------- rotations and sinusoidal codes

SHORT_DTYPES = {"bfloat16": (torch.bfloat16, 256), "float16": (torch.float16, 2048)}
"""Name -> dtype, and the last integer up to which it represents all."""
BASES: Faults = {
    "base is ignored: 10000 is used": {"base": 10000.0},
    "wrong exponent: base^(-c/d), expected base^(-2c/d) (as of a head twice as wide)": {"base": lambda a: a["base"] ** 0.5},
    "wrong exponent: base^(-4c/d), expected base^(-2c/d) (as of a head half as wide)": {"base": lambda a: a["base"] ** 2},
}  # fmt: skip
MOVED: Faults = {
    "positions start at 1 (position + 1 is used)": moved(lambda p: p + 1),
    **{
        f"positions are rounded to {name}, which counts to {last}": moved(partial(_rounded, dtype=dtype))
        for name, (dtype, last) in SHORT_DTYPES.items()
    },
    **BASES,
}  # fmt: skip
POSITIONS: Faults = {
    "positions are ignored: row n is taken to be at position n": moved(lambda p: torch.arange(p.shape[-1]).expand_as(p)),
    "positions are taken relative to the first one": moved(lambda p: p - p[..., :1]),
    **MOVED,
}  # fmt: skip
ROUNDED: Faults = {
    f"{what} {name}": then(**{option: partial(_rounded, dtype=dtype)})
    for what, option in (("frequencies are stored in", "frequency"), ("angles are rounded to", "angle"))
    for name, (dtype, _) in SHORT_DTYPES.items()
}
EXCHANGED_SINES = then(angle=lambda angle: math.pi / 2 - angle)
TURNED: Faults = {
    "rotates backwards (the sign of the sine is wrong)": moved(lambda p: -p),
    "x comes back as it was": moved(lambda p: 0 * p),
    **ROUNDED,
    "cos and sin are exchanged": EXCHANGED_SINES,
    "axes 1 and 2 come back exchanged: (batch, seq, heads, head_dim)": result(lambda x: x.transpose(1, 2)),
}
LAYOUT: Faults = {"layout is interleaved, expected half": variant(layout="interleaved")}
HALF: Faults = {
    **LAYOUT,
    "layouts are mixed: x is rotated by halves with tables of interleaved pairs (repeat_interleave, expected cat)":
        variant(tables="interleaved"),
}  # fmt: skip
INTERLEAVED: Faults = {
    "layout is half, expected interleaved": variant(layout="half"),
    "layouts are mixed: pairs are interleaved with tables of halves (cat, expected repeat_interleave)": variant(tables="half"),
}  # fmt: skip
PARTIAL: Faults = {
    "wrong exponent: base^(-2c/head_dim), expected base^(-2c/rotary_dim)":
        {"base": lambda a: a["base"] ** (a["rotary_dim"] / len(a["x"][0][0][0]))},
    "the complete head is rotated: rotary_dim is ignored": {"rotary_dim": None},
}  # fmt: skip
CODES: Faults = {
    "cosines come where sines belong": EXCHANGED_SINES,
    "the last frequency is 1/base: exponents c/(dim/2 - 1), expected 2c/dim": variant(endpoint=True),
    "every value is multiplied by sqrt(2/dim), so that rows of a code have length 1":
        result(lambda x: x * (2 / x.shape[-1]) ** 0.5),
    "positions are negated: sines have the wrong sign": moved(lambda p: -p),
    **ROUNDED,
    **POSITIONS,
}  # fmt: skip
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
}
YARN: Faults = {
    "ramp inverted: high frequencies are interpolated, low ones unchanged": variant(inverted=True),
    "ramp not truncated: its ends are not rounded (the gpt-oss form)": {"truncate": False},
    "ramp always truncated: truncate=False is ignored": {"truncate": True},
    "ramp by turns, as in the paper (yarn_paper), expected by pair number, as in the code": instead(schedules.yarn_paper),
    "floor and ceil cover only the numerator of the pair's number": variant(round_numerator=True),
    "ramp clamped at head_dim/2 - 1, expected head_dim - 1": {"last": lambda a: a["head_dim"] // 2 - 1},
    **SCHEDULES,
}  # fmt: skip
TURNS: Faults = {
    "ramp inverted: high frequencies are divided, low ones unchanged":
        variant(ramp=lambda turns, slow, fast: (turns - slow) / (fast - slow)),
    "no ramp: frequencies between the two limits are divided": variant(ramp=lambda turns, slow, fast: turns < fast),
    **SCHEDULES,
}  # fmt: skip
FACTOR: Faults = {UNSCALED: {"factor": 1.0}, **BASES}


def _powers_of_two(num_heads: int, *, first: int = 1) -> list[float]:
    return [2 ** (-8 * (h + first) / num_heads) for h in range(num_heads)]


SECTIONS: Faults = {
    "height and width are exchanged": {"positions": lambda a: [a["positions"][axis] for axis in (0, 2, 1)]},
}
AXES: Faults = {"axes come from the last to the first": {"positions": lambda a: a["positions"][::-1]}}
IDS: Faults = {
    "text after a video goes on after its last row or column, expected after the largest number on any axis":
        variant(last=lambda t, h, w: max(h, w)),
    "height and width are exchanged": variant(cell=lambda n, t, h, w: (n // (h * w), n % w, n // w % h)),
    "attention_mask is ignored: padding counts as text": {"attention_mask": lambda a: [[1] * len(row) for row in a["attention_mask"]]},
}  # fmt: skip

# -------------------------------------------------------------------- scores, index tables and masks

EXCHANGED: Faults = {
    "queries and keys are exchanged": result(lambda scores: scores.mT),
    "heads come last": result(lambda scores: scores.movedim(-3, -1)),
}
SHIFTED: Faults = {"nothing is shifted: column j is taken for key j": variant(column=lambda i, j, q, c: j), **EXCHANGED}
OLDER = "fewer queries than keys count from the first key, expected from key num_keys - num_queries"


def _decoders_shift(q: Any, table: Any, num_keys: int) -> Tensor:
    """Transformer-XL's shift of the distances to the past, with what it leaves above the diagonal."""
    q, table = (torch.as_tensor(x, dtype=torch.float64) for x in (q, table))
    far, (batch, heads, queries, _) = len(table) // 2, q.shape
    scores = q @ table[torch.arange(1 - num_keys, 1).clamp(min=-far) + far].T
    padded = torch.nn.functional.pad(scores, (1, 0)).view(batch, heads, num_keys + 1, queries)
    return padded[:, :, 1:].reshape(batch, heads, queries, num_keys)


RELATIVE: Faults = {
    "direction reversed: the table is read by query minus key":
        variant(distance=lambda i, j, q, k: -biases.key_minus_query(i, j, q, k)),
    OLDER: variant(distance=lambda i, j, q, k: j - i),
    "keys after the query have scores of the next query, as a decoder's shift (relative_shift_causal) leaves them":
        instead(_decoders_shift),
    **EXCHANGED,
}  # fmt: skip
SIDES: Faults = {"height and width are exchanged": {"height": lambda a: a["width"], "width": lambda a: a["height"]}}
INDEX: Faults = {"direction reversed: key minus query": variant(sign=-1), **SIDES}
REVERSED: dict[str, Formula] = {"relative_position": lambda a: [-r for r in a["relative_position"]]}
BUCKETS: Faults = {
    "the bidirectional flag is ignored: always bidirectional": {"bidirectional": True},
    "the bidirectional flag is ignored: always causal": {"bidirectional": False},
}
HIDES: Faults = {
    "true where hidden, expected where seen": result(lambda mask: [[1 - seen for seen in row] for row in mask])
}
FROM_THE_FIRST: Faults = {
    OLDER: lambda of: lambda **given: _called(of, {**given, "num_queries": given["num_keys"]})[: given["num_queries"]]
}

# -------------------------------------------------------------------- the faults of each kind, the most likely first

FAULTS: dict[str, Faults] = {
    "rotary": {**HALF, **TURNED, **POSITIONS},
    "rotary_interleaved": {**INTERLEAVED, **TURNED, **POSITIONS},
    "rotary_partial": {**HALF, **PARTIAL, **TURNED, **POSITIONS},
    "rotary_trailing": {
        "the first rotary_dim channels are rotated, expected the last": variant(trailing=False),
        "layout is half, expected interleaved": variant(layout="half"),
        **PARTIAL, **TURNED, **POSITIONS,
    },
    "rotary_proportional": {"fraction is ignored: all pairs rotate": {"fraction": 1.0}, **HALF, **TURNED, **POSITIONS},
    "rotary_ragged": {
        "offsets are ignored: every row begins at 0": then(at=lambda p: torch.arange(p.shape[2])[:, None].expand(p.shape)),
        "the offset of the first row is used for all": then(at=lambda p: p[:1]),
        **LAYOUT, **TURNED, **MOVED,
    },
    "rotary_packed": {
        "positions run on through the documents, expected 0 at each of cu_seqlens": {"starts": lambda a: a["cu_seqlens"][:-1]},
        **LAYOUT, **TURNED, **MOVED,
    },
    "m_rope": {
        "pairs are dealt in turn (m_rope_interleaved), expected in blocks": variant(interleaved=True),
        **SECTIONS, **HALF, **TURNED, **POSITIONS,
    },
    "m_rope_interleaved": {
        "pairs are in blocks (m_rope), expected dealt in turn": variant(interleaved=False),
        **SECTIONS, **HALF, **TURNED, **POSITIONS,
    },
    "m_rope_ids": IDS,
    "m_rope_ids_frames": IDS,
    "fope": {
        "sin is padded with 1, expected 0: channels that pass through come back as x + rotate_half(x), as in the authors' code":
            variant(padding=1.0),
        **LAYOUT, **TURNED, **POSITIONS,
    },
    "rotary_axial": {**AXES, **INTERLEAVED, **TURNED, **MOVED},
    "rotary_axial_half": {**AXES, **HALF, **TURNED, **MOVED},
    "softmax_scale": {"mscale_all_dim is ignored: the scale is 1/sqrt(head_dim), expected times m^2": {"mscale_all_dim": 0.0}},
    "sinusoidal": {"layout is concat (all sines first), expected interleaved": variant(layout="concat"), **CODES},
    "sinusoidal_concat": {**CONCATENATED, **CODES},
    "sinusoidal_endpoint": {
        "exponents are 2c/dim, expected c/(dim/2 - 1): the last frequency is not 1/base": variant(endpoint=False),
        **CONCATENATED, **CODES,
    },
    "sinusoidal_2d": {
        "rows come first: sin y, cos y, sin x, cos x": variant(order="sin y cos y sin x cos x"),
        "the last frequency is 1/base: exponents c/(dim/4 - 1), expected c/(dim/4)": variant(endpoint=True),
        "tokens go down the columns, expected along the rows": variant(down=True),
        **SIDES,
    },
    "relative": RELATIVE,
    "relative_shift": {
        "(columns + 1) / 2 keys come back, which holds for as many queries as keys only": variant(keys=lambda q, c: c // 2 + 1),
        **SHIFTED,
    },
    "relative_shift_causal": SHIFTED,
    "relative_index": INDEX,
    "relative_index_class": INDEX,
    "alibi_bias": {
        "the sign is wrong: far keys gain": result(lambda bias: -bias),
        OLDER: variant(distance=lambda i, j, q, k: -abs(j - i)),
        **EXCHANGED,
    },
    "t5_bias": {
        "direction reversed: query minus key": variant(distance=lambda i, j, q, k: -biases.key_minus_query(i, j, q, k)),
        OLDER: RELATIVE[OLDER],
        **BUCKETS, **EXCHANGED,
    },
    "swin_bias": {**INDEX, **EXCHANGED},
    "forget_gates": {"the sign is wrong: far keys gain": variant(gates=lambda g: -g)},
    "mask_document": {
        "not causal: a document sees all of itself": variant(causal=False),
        **HIDES,
    },
    "mask_window": {
        "off by one: the window is one too wide (i - j <= window)": {"window": lambda a: a["window"] + 1},
        "not causal: tokens after the query are seen": variant(sees=lambda i, j, w: i - j < w),
        **FROM_THE_FIRST, **HIDES,
    },
    "mask_chunk": {
        "not causal: a chunk sees all of itself": variant(sees=lambda i, j, c: i // c == j // c),
        **FROM_THE_FIRST, **HIDES,
    },
    "mask_streaming": {
        "left_chunks = 0 is taken for all chunks before": {"left_chunks": lambda a: a["left_chunks"] or a["size"]}, **HIDES
    },
    "default": BASES,
    "linear": {"is NTK-aware scaling": instead(schedules.ntk), **FACTOR},
    "ntk": {
        LINEAR: instead(schedules.linear),
        "is plain linear interpolation by factor^(d/(d-2))":
            instead(lambda head_dim, base, factor: schedules.linear(head_dim, base, factor ** (head_dim / (head_dim - 2)))),
        "exponent d/(d-2) missing: the base is multiplied by factor alone":
            instead(lambda head_dim, base, factor: schedules.default(head_dim, base * factor)),
        **FACTOR,
    },
    "ntk_mixed": {LINEAR: {"exponent": 0.0}, **FACTOR},
    "dynamic": {
        "factor is ignored: the scale is length / original_max_positions": {"factor": 1.0},
        UNSCALED: {"length": 0},
        **BASES,
    },
    "longrope": {
        "long_factor is taken from original_max_positions on, expected for longer inputs": {"length": lambda a: a["length"] + 1},
        "length is ignored: long_factor is always used": {"short_factor": lambda a: a["long_factor"]},
        "length is ignored: short_factor is always used": {"long_factor": lambda a: a["short_factor"]},
        **BASES,
    },
    "yarn": YARN,
    "yarn_revised": {"frequencies are blended, expected wavelengths (yarn)": variant(wavelengths=False), **YARN},
    "yarn_paper": {
        "ramp by pair number, as in the code (yarn), expected by turns, as in the paper": instead(schedules.yarn), **TURNS
    },
    "llama3": TURNS,
    "proportional": BASES,
    "alibi": {
        "they are 2^(-8(h+1)/heads), which holds for powers of two only": instead(_powers_of_two),
        "the sign is wrong: slopes are negative, expected positive": result(lambda slopes: [-slope for slope in slopes]),
        "heads are counted from 0: 2^(-8h/n), so the first slope is 1, expected 2^(-8(h+1)/n)": variant(first=0),
    },
    "t5": {
        "direction reversed: it takes query minus key": REVERSED,
        **BUCKETS,
    },
    "deberta": {"direction reversed: it takes key minus query": REVERSED},
    "xpos": {"this is the scale of keys, the inverse of that of queries": {"positions": lambda a: [-p for p in a["positions"]]}},
}  # fmt: skip
ATTENTION_FACTORS: dict[str, Callable[[float], float]] = {
    "temperature missing: the attention factor is 1": lambda expected: 1.0,
    "temperature squared": lambda expected: expected**2,
    "temperature is the square root": lambda expected: expected**0.5,
    "temperature lacks the + 1": lambda expected: expected - 1,
}
"""What an attention factor can be instead of the expected one."""
ROUNDINGS: dict[str, tuple[str, ...]] = {
    name: tuple(fault for fault in (*MOVED, *ROUNDED) if f" {name}" in fault) for name in SHORT_DTYPES
}
"""Dtype -> the faults of code that computes everything in it."""
