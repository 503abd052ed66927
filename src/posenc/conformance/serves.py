# SPDX-License-Identifier: Apache-2.0
"""The calls that each backend must serve: refusing one of them is a failure.

The page of all encodings has these tables; `backends_agree` checks the backends against them.
"""

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.bias import Dense, Factored, KeyRelative, Positional, QueryRelative, Relative, Values
from posenc.encoding import Encoding, bias_of
from posenc.positions import Positions

TERMS: dict[str, type] = {
    cls.__name__: cls for cls in (Relative, QueryRelative, KeyRelative, Factored, Positional, Dense)
}
STRUCTURES = (
    *TERMS, "several QueryRelative", "a term at other positions", "a custom Score", "KeyValues", "Values", "a sink",
    "a score modifier", "a position map", "a window",
)  # fmt: skip
LAYOUTS = ("contiguous", "cached", "padded", "packed", "scattered", "of images")
NUMBERS = ("float64", "float32", "bfloat16", "float16", "a gradient")
FEATURES = (*STRUCTURES, *LAYOUTS, *NUMBERS)
"""What a call of attention is made of."""


@dataclass(frozen=True)
class Serves:
    """Of a backend on the CPU: the features that it must serve, and pairs of them that it may refuse together."""

    features: frozenset[str]
    but_for: frozenset[frozenset[str]] = frozenset()

    def must(self, call: frozenset[str]) -> bool:
        """Whether a call of these features may not be refused."""
        return call <= self.features and not any(pair <= call for pair in self.but_for)


EVERYTHING = frozenset(FEATURES)
NOT_WITH_VALUES = "scattered", "of images", "Positional", "a custom Score", "a term at other positions"
OF_TRITON = "Relative", "QueryRelative", "Factored", "KeyValues", "a sink", "contiguous", "cached", *NUMBERS[1:4]
DECLARED = {
    "reference": Serves(EVERYTHING),
    "sdpa": Serves(EVERYTHING, frozenset(frozenset({"Values", other}) for other in NOT_WITH_VALUES)),
    "flex": Serves(EVERYTHING - {"Values", "a gradient"}),
    "triton": Serves(frozenset(OF_TRITON)),
}
"""Backend -> what it must serve. One that is not named here must serve everything."""


def must_serve(backend: str, call: frozenset[str]) -> bool:
    """Whether a backend may not refuse a call on this machine's CPU."""
    if backend == "triton" and os.environ.get("TRITON_INTERPRET", "0") in ("", "0"):
        return False  # which has no CPU but the one of its interpreter
    return DECLARED.get(backend, Serves(EVERYTHING)).must(call)


def features(
    encoding: Encoding, q: Tensor, k: Tensor, positions: Positions, layout: str, *, layer: int = 0, grad: bool = False
) -> frozenset[str]:
    """What a call of attention is made of; layout: one of LAYOUTS."""
    present = {layout, str(q.dtype).removeprefix("torch.")} | ({"a gradient"} if grad else set())
    with torch.no_grad():
        terms = bias_of(encoding, q, k, positions, layer)
        added = encoding.values(positions, layer)
    of_queries = 0
    for term in terms:
        present.add(next((name for name, cls in TERMS.items() if type(term) is cls), "a custom Score"))
        of_queries += isinstance(term, QueryRelative)
        if getattr(term, "positions", positions) is not positions:
            present.add("a term at other positions")
    if of_queries > 1:
        present.add("several QueryRelative")
    if added is not None:
        present.add("Values" if isinstance(added, Values) else "KeyValues")
    if encoding.sink(layer) is not None:
        present.add("a sink")
    if encoding.modify(positions, layer):
        present.add("a score modifier")
    if encoding.restrict(positions, layer).window is not None:
        present.add("a window")
    if encoding.branches(layer):
        present.add("a position map")
    return frozenset(present)


def table() -> list[str]:
    """What each backend must serve on the CPU, as lines of Markdown."""
    lines = [f"|  | {' | '.join(f'`{name}`' for name in DECLARED)} |", "|---" * (len(DECLARED) + 1) + "|"]
    for feature in FEATURES:
        what = f"`{feature}`" if feature in TERMS or feature in ("Values", "KeyValues") else feature
        marks = ["✓" if feature in serves.features else "–" for serves in DECLARED.values()]
        lines.append(f"| {what} | {' | '.join(marks)} |")
    return lines
