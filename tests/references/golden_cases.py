"""The cases of posenc's golden vectors. `python -m references.golden_cases`, in tests/, computes golden.json anew from
posenc.conformance.formulas."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from posenc.conformance.faults import expected_values
from posenc.conformance.golden import PATH, content
from posenc.conformance.kinds import FREQUENCIES, KINDS


def generate() -> dict[str, Any]:
    """The content of golden.json, computed from the formulas."""
    kinds = {}
    for name, cases in CASES.items():
        formula = getattr(KINDS[name].formula, "func", KINDS[name].formula)
        results = []
        for given in cases:
            expected: Any = expected_values(name, given).tolist()
            if KINDS[name].returns == FREQUENCIES:
                expected = {"inv_freq": expected, "attention_factor": _attention_factor(name, given)}
            results.append({"arguments": given, "expected": expected})
        kinds[name] = {"source": " ".join(formula.__doc__.partition("Faults:")[0].split()), "cases": results}
    return {"schema": 1, "kinds": kinds}


def _attention_factor(kind: str, given: dict[str, Any]) -> float:
    """What multiplies cos and sin: sqrt(1 + ln(factor) / ln(original length)) (Ding et al. 2024); 0.1 ln(factor) + 1 (Peng et
    al. 2023, eq. 22; the code's get_mscale)."""
    if kind == "longrope":
        return math.sqrt(1 + math.log(given["factor"]) / math.log(given["original_max_positions"]))
    return 0.1 * math.log(given["factor"]) + 1 if kind.startswith("yarn") and given["factor"] > 1 else 1.0


# -------------------------------------------------------------------- the cases


def _inexact(x: Any) -> Any:
    """Numbers that float32 represents and half precision rounds: channels that are not rotated must come back unchanged."""
    return [_inexact(value) for value in x] if isinstance(x, list) else x + 2**-12


NEAR, FAR = [0, 1, 2, 17, 255, 257], [3, 511, 2048, 4097, 32768, 131071]
"""Positions of the first texts anyone tries, and those past the usual trained lengths."""
PACKED = [4, 5, 0, 1, 2, 0, 1]
"""Positions of texts that share a row: they repeat and go back."""
JUMPY = [0, 3, 70000, 3, 77, 257]
"""As many positions as NEAR has, with the same first and last one."""
NEXT = [1000]
"""A single token, as in generation."""


def _rotary_cases(*shapes: tuple[Any, ...], partial: bool = False) -> list[dict[str, Any]]:
    cases = []
    for (batch, heads), dim, base, positions, *rotary_dim in shapes:
        x = content(batch, heads, len(positions), dim)
        case = {"x": _inexact(x) if partial else x, "positions": positions, "base": base}
        cases.append({**case, "rotary_dim": rotary_dim[0]} if partial else case)
    return cases


def _grid(names: Sequence[str], *values: Iterable[Any]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in product(*values)]


ROTARY = _rotary_cases(
    ((2, 3), 8, 1e4, NEAR), ((2, 3), 8, 1e4, FAR), ((1, 2), 8, 5e5, FAR), ((2, 3), 8, 1e4, JUMPY), ((2, 3), 8, 1e4, PACKED),
    ((2, 3), 8, 1e4, NEXT), ((1, 4), 20, 1e4, NEAR), ((1, 1), 48, 1e4, PACKED), ((2, 2), 64, 1e4, FAR[:3]),
    ((2, 3), 64, 1e4, NEXT), ((1, 1), 80, 1e4, JUMPY), ((1, 1), 96, 1e6, FAR[:3]), ((1, 1), 128, 1e6, FAR[3:]),
    ((1, 2), 256, 1e4, FAR[1:3]),
)  # fmt: skip
PARTIAL = _rotary_cases(
    ((2, 3), 16, 1e4, NEAR, 4), ((1, 2), 16, 1e4, FAR, 8), ((1, 2), 16, 5e5, FAR, 8), ((2, 3), 16, 1e4, PACKED, 12),
    ((2, 2), 16, 1e4, NEXT, 16), ((1, 2), 80, 1e4, FAR[:3], 32), ((1, 1), 96, 1e4, JUMPY, 24), ((1, 1), 128, 1e6, NEXT, 64),
    partial=True,
)  # fmt: skip
SINUSOIDAL: list[dict[str, Any]] = [
    *_grid(("positions", "dim", "base"), (NEAR, FAR), (4, 64), (10000.0, 500.0)),
    *_grid(("positions", "dim", "base"), (NEAR,), (30, 128), (10000.0,)),
    *_grid(("positions", "dim", "base"), (PACKED, NEXT, JUMPY), (4,), (10000.0,)),
    *_grid(("positions", "dim", "base"), (FAR[:2],), (512, 768), (10000.0,)),
    {"positions": FAR[:3], "dim": 128, "base": 500.0},
]
SHAPES = [(64, 1e4), (128, 1e4), (128, 5e5), (96, 1e6), (24, 1e4), (256, 1e4)]
"""head_dim and base of the schedules' cases."""
SCALES = [
    (2.0, 4096), (4.0, 2048), (8.0, 8192), (16.0, 4096), (4.0, 131072), (32.0, 512), (1.5, 5000), (3.0, 3000), (5.0, 128),
]  # fmt: skip
"""factor and original_max_positions of the schedules' cases."""
SCALED: list[dict[str, Any]] = [
    {"head_dim": dim, "base": base, "factor": factor, "original_max_positions": length}
    for (dim, base), (factor, length) in product(SHAPES, SCALES)
]
SOME: list[dict[str, Any]] = SCALED[: len(SCALES)] + SCALED[len(SCALES) + 1 :: 5]
"""All scales of the first shape, and every shape once more."""
DISTANCES = [
    *range(-48, 49),
    *(sign * d for sign in (-1, 1) for d in (59, 63, 64, 90, 91, 112, 113, 127, 128, 129, 150, 181, 182, 215, 255, 256, 257, 300, 500, 5000)),
]  # fmt: skip
TURNS = {"beta_fast": 16.0, "beta_slow": 2.0}
PLAIN = _grid(("head_dim", "base", "factor"), (20, 30, 64, 128, 256), (1e4, 5e5), (1.0, 1.5, 3.0, 4.0, 8.0))


def _longrope_cases() -> Iterator[dict[str, Any]]:
    for (dim, base), (factor, original) in zip(SHAPES[1:5], SCALES, strict=False):
        for length in (100, original, original + 1, int(factor * original)):
            yield {
                "head_dim": dim, "base": base, "factor": factor, "original_max_positions": original, "length": length,
                "short_factor": [1 + c / dim for c in range(dim // 2)],
                "long_factor": [1 + (factor - 1) * 2 * c / dim for c in range(dim // 2)],
            }  # fmt: skip


CASES: dict[str, list[dict[str, Any]]] = {
    "rotary": ROTARY,
    "rotary_interleaved": ROTARY,
    "rotary_partial": PARTIAL,
    "sinusoidal": SINUSOIDAL,
    "sinusoidal_concat": SINUSOIDAL,
    "sinusoidal_endpoint": SINUSOIDAL,
    "default": _grid(("head_dim", "base"), (2, 20, 64, 80, 128, 256), (1e4, 5e5)),
    "linear": PLAIN,
    "ntk": PLAIN,
    "ntk_mixed": [
        *_grid(("head_dim", "base", "factor"), (20, 64, 128), (1e4, 5e5), (1.0, 1.5, 4.0, 8.0)),
        *_grid(("head_dim", "base", "factor", "exponent"), (20, 64), (1e4,), (4.0, 12.0), (0.0, 0.75, 1.0)),
    ],
    "dynamic": _grid(
        ("head_dim", "base", "factor", "original_max_positions", "length"),
        *((20, 64), (1e4, 5e5), (1.0, 2.0, 4.0), (2048, 2200), (1900, 2048, 2201, 10000)),
    ),
    "longrope": list(_longrope_cases()),
    "yarn": [
        *SCALED,
        *({**case, **TURNS} for case in SOME),
        *({**case, "truncate": False} for case in SOME),
        *({**case, **TURNS, "truncate": False} for case in SOME[::3]),
    ],
    "yarn_revised": [
        *SOME,
        *({**case, **TURNS} for case in SOME[::3]),
        *({**case, "truncate": False} for case in SOME[::3]),
    ],
    "yarn_paper": [*SCALED, *({**case, **TURNS} for case in SOME)],
    "llama3": [*SCALED, *({**case, "low_freq_factor": 2.0, "high_freq_factor": 8.0} for case in SOME)],
    "proportional": _grid(("head_dim", "base", "fraction"), (16, 20, 128), (1e4, 1e6), (0.25, 0.5, 0.75, 1.0)),
    "alibi": _grid(("num_heads",), (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 25, 32, 40, 48, 64, 71, 96, 112, 128)),
    "t5": [
        {"relative_position": DISTANCES, "bidirectional": two, "num_buckets": buckets, "max_distance": far}
        for (buckets, far), two in product([(32, 128), (64, 256), (8, 20), (10, 50)], (True, False))
    ],
    "deberta": [
        {"relative_position": [r for r in DISTANCES if abs(r) < far], "buckets": buckets, "max_position": far}
        for buckets, far in [(256, 512), (32, 128), (8, 32), (10, 100)]
    ],
    "xpos": _grid(("positions", "head_dim", "scale_base"), ([-2000, -3, 0, 1, 511, 4096],), (8, 64, 128), (512, 100)),
}


if __name__ == "__main__":
    lines = json.dumps(generate(), separators=(",", ":")).replace('{"arguments"', '\n{"arguments"')
    PATH.write_text(lines + "\n", encoding="utf-8")
    print(f"{PATH}: {PATH.stat().st_size} bytes")
