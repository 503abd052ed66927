# SPDX-License-Identifier: Apache-2.0
"""Compare a function with the golden vectors and the invariants, and report in words what is wrong."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from posenc.conformance import golden
from posenc.conformance.cases import content
from posenc.conformance.faults import ATTENTION_FACTORS, FAULTS, ROUNDINGS, Arguments, expected_values
from posenc.conformance.golden import DECLINED, Caller, CaseResult, GoldenCase, from_angles, run_case
from posenc.conformance.invariants import broken_invariants, dtype_name
from posenc.conformance.kinds import FLOAT32, KINDS, RELATIVE, TENSORS, Convention, no_tolerance
from posenc.errors import check_word
from posenc.testing.oracles.rotations import positions_of

UNKNOWN = "in a way that is not known here"
CAST = "float32 comes out for half precision: cast a module with x (module.to(x.dtype)), to test what a half-precision model has"
IMPOSSIBLE = ArithmeticError, ValueError, TypeError, LookupError, RuntimeError
"""What faults raise that exclude one another."""
VERDICTS = {True: "conforms", False: "does not conform", None: "could not be run"}
SHOWN = 3
"""Explanations that fit equally well, and exceptions, of which so many are shown."""
HALFWAY = 0.02
"""The share of the values that may lie halfway between two of a short dtype, where they are rounded either way."""


@dataclass(frozen=True)
class Verdict:
    """passed: None if the function could not be run: it answers no case, but raises an exception in each that it does not
    decline. findings: sentences, none if the function conforms. notes: what was not tested. example: the first
    difference. largest_error: relative for schedules and slopes, otherwise absolute."""

    kind: str
    passed: bool | None
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    example: str | None
    cases: int
    largest_error: float | None

    def __str__(self) -> str:
        error = "" if self.largest_error is None else f", largest error {self.largest_error:.2g}"
        lines = [f"{self.kind}: {VERDICTS[self.passed]} ({self.cases} cases{error})"]
        lines += [f"- {finding}" for finding in self.findings]
        lines += [f"  {self.example}"] if self.example else []
        return "\n".join(lines + [f"note: {note}" for note in self.notes])


def conform(function: Callable[..., Any], kind: str) -> Verdict:
    """Compare a function with the golden vectors and the invariants of a kind (`KINDS` lists them).

    An exception of the function becomes a finding, except NotImplementedError, which means that a case is not supported. A
    function that answers no case at all could not be run, and is not judged.

    Raises:
        InputError: an unknown kind; a class, or a method without its object.
    """
    check_word("kind", kind, KINDS)
    convention = KINDS[kind]
    wrapped = from_angles(function, convention)
    # a default device would move the inputs; the mode itself takes as long as a small operation, at each of them
    with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
        verdict = _verdict(Caller(wrapped or function, convention), kind)
    given = "cos and sin were given to it, (1, seq, channels) in x's dtype, so how it makes angles was not judged"
    return replace(verdict, notes=(given, *verdict.notes)) if wrapped else verdict


def _verdict(caller: Caller, kind: str) -> Verdict:
    cases = golden.cases(kind)
    results = [run_case(caller, case) for case in cases if caller.accepts(case.arguments)]
    notes = _notes(caller, cases, results)
    results = [result for result in results if result.refusal != DECLINED]
    if _transposes(caller, results):
        expected = "takes x as (batch, seq, heads, head_dim), expected (batch, heads, seq, head_dim)"
        return Verdict(kind, False, (expected,), (), None, len(results), None)
    answered = [result for result in results if result.values is not None]
    findings = _refusals(results)
    if all(result.raised for result in results):
        return Verdict(kind, None, tuple(findings), tuple(notes), None, len(results), None)
    if 0 < len(results) < len(cases) / 2:
        findings.append(f"too few cases to judge: {len(results)} of {len(cases)} are offered")
    if answered:
        right = Explanation(kind)
        found = [right] if all(result.right for result in answered) else explain(answered, right)
        findings += _wrong_values(caller, answered, len(results), found)
        findings += _attention_factor(answered)
        dtypes = {result.dtype for result in answered if result.dtype.is_floating_point}
        short = sorted(dtype_name(dtype) for dtype in dtypes if torch.finfo(dtype).eps > FLOAT32)
        findings += [f"result in the wrong dtype: {', '.join(short)}, expected float32 or more"] if short else []
        in_other_dtypes, skipped = _other_dtypes(caller, found[0] if found else None)
        broken, untested = broken_invariants(caller)
        new = [f for f in broken if not any(f.partition(" (while checking: ")[0] in known for known in in_other_dtypes)]
        findings += in_other_dtypes + new + _state(caller, answered[0])
        notes += skipped + untested + [CAST] * any("float16 in, float32 out" in finding for finding in broken)
    errors = [error for result in answered if (error := _largest_error(result)) is not None and math.isfinite(error)]
    unique = tuple(dict.fromkeys(findings))
    worst = max(errors, default=None)
    return Verdict(kind, not findings, unique, tuple(notes), _example(answered), len(results), worst)


# -------------------------------------------------------------------- which faults explain the results


@dataclass(frozen=True)
class Explanation:
    """faults: of a kind's formula, by the names in `FAULTS`; none: it is the right one."""

    kind: str
    faults: tuple[str, ...] = ()

    def values(self, arguments: Arguments) -> Tensor:
        """What a function with these faults returns, float64."""
        return expected_values(self.kind, arguments, self.faults)

    def fits(self, result: CaseResult) -> bool:
        """Whether it is right: up to either side of what was rounded, and anything where a short dtype overflows."""
        rounds = any(fault in names for names in ROUNDINGS.values() for fault in self.faults)
        try:
            expected = self.values(result.case.arguments)
        except IMPOSSIBLE:
            return False
        wrong, overflows = result.wrong(expected), expected.isnan()
        if wrong is None or (bool(overflows.any()) and not rounds) or bool(overflows.all()):
            return False
        return float((wrong & ~overflows).double().mean()) <= (HALFWAY if rounds else 0)


def explain(results: Sequence[CaseResult], known: Explanation) -> list[Explanation]:
    """The fewest known faults, besides those given, that explain every result; several explanations where they fit equally
    well, none if there is none. Tried are one, two of them, and all roundings to a dtype."""
    candidates = [name for name in FAULTS[known.kind] if name not in known.faults]
    roundings = [tuple(n for n in names if n in candidates) for names in ROUNDINGS.values()]
    # wrong and short ones reject a fault soonest
    results = sorted(results, key=lambda r: (r.right, r.expected.numel()))
    for groups in (combinations(candidates, 1), combinations(candidates, 2), roundings):
        explanations = (replace(known, faults=known.faults + group) for group in groups if group)
        if found := [each for each in explanations if all(map(each.fits, results))]:
            return found
    return []


# -------------------------------------------------------------------- findings


def _refusals(results: Sequence[CaseResult]) -> list[str]:
    refused = [result for result in results if result.values is None]
    if not refused:
        return [] if results else ["offers none of the cases"]
    why = refused[0].refusal
    if len(refused) == len(results):
        return list(dict.fromkeys(result.refusal for result in refused))[:SHOWN]
    return [f"refuses {len(refused)} of {len(results)} legal cases: {why} for {_described(refused[0].case)}"]


def _transposes(caller: Caller, results: Sequence[CaseResult]) -> bool:
    """Whether a function that refuses cases is right in all for x of (batch, seq, heads, head_dim)."""
    if "x" not in caller.convention.arguments or all(result.values is not None for result in results):
        return False

    def right(result: CaseResult) -> bool:
        x = torch.tensor(result.case.arguments["x"]).transpose(1, 2)
        again = run_case(caller, replace(result.case, arguments={**result.case.arguments, "x": x.tolist()}))
        return again.values is not None and again.matches(result.expected.transpose(1, 2))

    return all(right(result) for result in results)


def _wrong_values(
    caller: Caller, answered: Sequence[CaseResult], cases: int, found: Sequence[Explanation]
) -> list[str]:
    wrong, convention = [result for result in answered if not result.right], caller.convention
    if not wrong:
        return []
    if convention.tolerance is not no_tolerance and any(not result.dtype.is_floating_point for result in wrong):
        return ["integers in, integers out: the values are cut to integers"]
    listed = {name: ", ".join(str(r.case.arguments.get(name)) for r in wrong) for name in convention.arguments}
    where = convention.failing.format(**{**listed, "count": len(wrong), "cases": cases})
    if not found:
        return [f"{where}, {UNKNOWN}"]

    def worded(fault: str) -> str:
        name, ignored, rest = fault.partition(" is ignored")
        not_passed = ignored and name in caller.missing
        return f"{name} was not passed, as the function has no parameter for it{rest}" if not_passed else fault

    if len(found) == 1 and convention.failing == Convention.failing:
        return [worded(cause) for cause in found[0].faults]
    causes = _either([[worded(cause) for cause in each.faults] for each in found])
    return [causes if convention.failing == Convention.failing else f"{where}: {causes}"]


def _either(explanations: Sequence[Sequence[str]]) -> str:
    shown = ["; ".join(causes) for causes in explanations[:SHOWN]]
    more = f", or {len(explanations) - SHOWN} others" if len(explanations) > SHOWN else ""
    return ", or ".join(shown) + more + (" (each explains every result)" if len(explanations) > 1 else "")


def _attention_factor(answered: Sequence[CaseResult]) -> list[str]:
    rows = [
        (r.attention_factor, r.case.attention_factor, r.case.arguments.get("factor"))
        for r in answered
        if r.attention_factor is not None and r.case.attention_factor is not None
    ]

    def differing(change: Callable[[float], float]) -> list[tuple[float, float, float | None]]:
        return [row for row in rows if not abs(row[0] - change(row[1])) <= 1e-5 * abs(row[1])]

    if not (wrong := differing(lambda expected: expected)):
        return []
    causes = (name for name, change in ATTENTION_FACTORS.items() if not differing(change))
    got, expected, stretch = wrong[0]
    factor = "" if stretch is None else f" for factor {stretch:g}"
    return [f"{next(causes, 'temperature wrong')} (attention factor {got:.6g}, expected {expected:.6g}{factor})"]


def _state(caller: Caller, first: CaseResult) -> list[str]:
    again = run_case(caller, first.case)
    assert first.values is not None
    if again.values is not None and torch.allclose(again.values, first.values, rtol=0, atol=0, equal_nan=True):
        return []
    return ["state between calls: the first call, repeated at the end, gives another result"]


# -------------------------------------------------------------------- other dtypes of x

WIDTHS = {torch.bfloat16: 28, torch.float16: 12, torch.float64: 36}
"""Dtype -> a head_dim that no other call has, so that it is the first dtype with that head_dim."""
TEXTS = {torch.bfloat16: 300, torch.float16: 2100}
"""Lengths of sequences from position 0 on that are longer than the dtype counts."""
SPREAD = [0, 1, 3, 17, 100, 129, 250, 255, 256, 257, 300, 511, 700, 1023, 2047, 2049, 3001, 4095, 40000]


def _other_dtypes(caller: Caller, known: Explanation | None) -> tuple[list[str], list[str]]:
    """Findings and notes on x in other dtypes, which must give the values of float32 up to the rounding of x's dtype, and
    leave float32 as it was. known: the faults in float32; None if they are not known. A module is also cast to the dtype."""
    findings: list[str] = []
    notes: list[str] = []
    for dtype, width in WIDTHS.items() if "x" in caller.convention.arguments else ():
        cases = []
        texts = [(list(range(TEXTS.get(dtype, 10))), 1e4), (SPREAD, 1e4), (SPREAD, 5e5)]
        for positions, base in texts if "positions" in caller.convention.arguments else texts[:1]:
            given = golden.example(caller.convention, positions, width)
            x = torch.tensor(content(1, 1, len(positions), width), dtype=torch.float64)
            given = {**given, "x": x, "base": base}
            cases.append(GoldenCase(given, torch.zeros(0) if known is None else known.values(given)))
        results = [replace(run_case(caller, case, x=dtype), dtype=dtype) for case in cases]
        afterwards = [run_case(caller, case) for case in cases]
        name = dtype_name(dtype)
        if all(result.refusal == DECLINED for result in results):
            notes.append(f"not tried with x in {name}: the function answers with NotImplementedError")
            continue
        findings += _compared(f"with x in {name}", results, known, diagnose=True)
        if cast := caller.cast(dtype):
            results = [replace(run_case(cast, case, x=dtype), dtype=dtype) for case in cases]
            findings += _compared(f"in a model in {name} (the module is cast)", results, known, diagnose=True)
        findings += _compared(f"in float32, after calls with x in {name}", afterwards, known, diagnose=False)
    return findings, notes


def _compared(where: str, results: Sequence[CaseResult], known: Explanation | None, *, diagnose: bool) -> list[str]:
    offered = [result for result in results if result.refusal != DECLINED]
    if refused := [result for result in offered if result.values is None]:
        return [f"{where}: {refused[0].refusal}"]
    if known is None or not (wrong := [result for result in offered if not result.right]):
        return []
    if not diagnose:
        return [f"{where}, {_extent(wrong[0])}"]
    found = [each.faults[len(known.faults) :] for each in explain(offered, known)]
    return [f"{where}, {_extent(wrong[0])}" + (f": {_either(found)}" if found else f", {UNKNOWN}")]


def _extent(result: CaseResult) -> str:
    wrong = result.wrong(result.expected)
    assert result.values is not None
    if wrong is None:
        return f"the result has the shape {tuple(result.values.shape)}"
    error = (result.values.reshape(wrong.shape) - result.expected).abs().max().item()
    positions = positions_of(result.case.arguments).flatten()
    rows = wrong.flatten(0, -3).any(0).any(-1) if wrong.shape[-2] == len(positions) else None
    first = f" from position {positions[rows][0]:.0f} on" if rows is not None else ""
    return f"values are wrong{first}, by up to {error:.2g}"


# -------------------------------------------------------------------- wording


def _example(answered: Sequence[CaseResult]) -> str | None:
    if (result := next((result for result in answered if not result.right), None)) is None:
        return None
    assert result.values is not None
    expected, wrong, where = result.expected, result.wrong(result.expected), f"for {_described(result.case)}"
    if wrong is None:
        return f"{where}: shape {tuple(result.values.shape)}, expected {tuple(expected.shape)}"
    index = tuple(wrong.nonzero()[0].tolist())
    value = result.values.reshape(expected.shape)[index].item()
    return f"{where}: at {list(index)} expected {expected[index].item():.8g}, got {value:.8g}"


def _described(case: GoldenCase) -> str:
    shown = []
    for name, value in case.arguments.items():
        if TENSORS.get(name) != torch.float32:
            shown.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={_shortened(value)}")
    shapes = (f"{name} of {tuple(torch.as_tensor(value).shape)}" for name, value in case.arguments.items())
    return ", ".join(shown or shapes)


def _shortened(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    most = 3 if not value or not isinstance(value[0], list) else 2
    return f"[{', '.join(map(_shortened, value[:most]))}{', ...' if len(value) > most else ''}]"


def _notes(caller: Caller, cases: Sequence[GoldenCase], results: Sequence[CaseResult]) -> list[str]:
    notes = []
    if skipped := [case for case in cases if not caller.accepts(case.arguments)]:
        used = {name for case in skipped for name in case.arguments} - {*caller.by_name.values()}
        unnamed = [name for name in caller.convention.options if name in used]
        notes.append(f"{len(skipped)} cases with {', '.join(unnamed)} were left out: the function does not name them")
    if caller.missing:
        notes.append(f"{', '.join(caller.missing)} could not be passed, for lack of a parameter")
    if count := sum(result.refusal == DECLINED for result in results):
        notes.append(f"{count} cases were left out: the function answers them with NotImplementedError")
    answered = [result for result in results if result.values is not None]
    tempered = any(case.attention_factor not in (None, 1) for case in cases)
    if tempered and answered and all(result.attention_factor is None for result in answered):
        notes.append("no attention factor was returned, so the temperature was not judged")
    return notes


def _largest_error(result: CaseResult) -> float | None:
    assert result.values is not None
    got, expected = result.values.squeeze(), result.expected.squeeze()
    if got.shape != expected.shape:
        return None
    error = (got - expected).abs()
    return float((error / expected.abs().clamp(min=1e-30) if result.convention.tolerance in RELATIVE else error).max())
