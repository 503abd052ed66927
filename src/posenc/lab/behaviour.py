# SPDX-License-Identifier: Apache-2.0
"""Whether two programs that measure or train are one: by numbers that both compute."""

from collections.abc import Mapping

TOLERANCE = 1e-5
"""How much two numbers of a behaviour may differ, as a share of the larger one or of 1, and be of one program. benchmarks/behaviour.py
measures how far apart processors are, and programs."""


def disagreement(here: Mapping[str, float], there: Mapping[str, float]) -> str:
    """Where two behaviours differ by more than rounding, in words; "" if they are of one program. Numbers that only one of them
    has are not compared. Their "tolerance" takes the place of `TOLERANCE`."""
    tolerance = max(each.get("tolerance", TOLERANCE) for each in (here, there))
    here = {name: value for name, value in here.items() if name != "tolerance"}
    apart = {name: _apart(here[name], there[name]) for name in here if name in there}
    if not apart:
        return "no number of its behaviour is known" if here or there else ""
    worst = max(apart, key=lambda name: apart[name])
    if apart[worst] <= tolerance:
        return ""
    return f"{worst} is {here[worst]:.4g} here and {there[worst]:.4g} there"


def _apart(a: float, b: float) -> float:
    return abs(a - b) / max(1.0, abs(a), abs(b))
