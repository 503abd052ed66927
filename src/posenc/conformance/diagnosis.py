# SPDX-License-Identifier: Apache-2.0
"""Compare a function with the golden vectors and the invariants, and report in words what is wrong."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, combinations
from typing import Any

import torch

from posenc.conformance import golden
from posenc.conformance.faults import ATTENTION_FACTORS, CLAMPS, FAULTS, expected_values
from posenc.conformance.formulas import positions_of
from posenc.conformance.golden import DECLINED, Caller, CaseResult, GoldenCase, from_angles, run_case
from posenc.conformance.invariants import broken_invariants, dtype_name
from posenc.conformance.kinds import FLOAT32, Convention, get_kind, no_tolerance

__all__ = ["Verdict", "conform"]

UNKNOWN = "in a way that is not known here"
UNWRITTEN = (
    "and are not numbers, as is memory that is never written (torch.empty): write every row, or begin with zeros"
)
FEW = 11
"""Faults of a kind of which more than two are tried together."""
FaultNames = tuple[str, ...]
"""Of a kind's formula, by the names in `FAULTS`; none: it is the right one."""


@dataclass(frozen=True)
class Verdict:
    """findings: sentences, none if the function conforms. notes: what was not tested. example: the first
    difference. largest_error: relative for schedules and slopes, otherwise absolute."""

    kind: str
    passed: bool
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    example: str | None
    cases: int
    largest_error: float | None

    def __str__(self) -> str:
        error = "" if self.largest_error is None else f", largest error {self.largest_error:.2g}"
        lines = [f"{self.kind}: {'conforms' if self.passed else 'does not conform'} ({self.cases} cases{error})"]
        lines += [f"- {finding}" for finding in self.findings]
        lines += [f"  {self.example}"] if self.example else []
        return "\n".join(lines + [f"note: {note}" for note in self.notes])

    def to_dict(self) -> dict[str, Any]:
        """The verdict as JSON."""
        return asdict(self)


def conform(function: Callable[..., Any], kind: str) -> Verdict:
    """Compare a function with the golden vectors and the invariants of a kind (`KINDS` lists them).

    An exception of the function becomes a finding, except NotImplementedError, which means that a case is not supported.

    Raises:
        InputError: an unknown kind; a class, or a method without its object.
    """
    convention = get_kind(kind)
    wrapped = from_angles(function, convention)
    with torch.device("cpu"), unwritten_is_nan():  # a default device would move the inputs
        verdict = _verdict(Caller(wrapped or function, convention), kind)
    given = "cos and sin were given to it, (1, seq, channels) in x's dtype, so how it makes angles was not judged"
    return replace(verdict, notes=(given, *verdict.notes)) if wrapped else verdict


@contextmanager
def unwritten_is_nan() -> Iterator[None]:
    """Memory of `torch.empty` has NaN in it, so that rows that are never written show."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _verdict(caller: Caller, kind: str) -> Verdict:
    cases = golden.load()[kind]
    results = [run_case(caller, case) for case in cases if caller.accepts(case.arguments)]
    notes = _notes(caller, cases, results)
    results = [result for result in results if result.refusal != DECLINED]
    if _transposes(caller, results):
        expected = "takes x as (batch, seq, heads, head_dim), expected (batch, heads, seq, head_dim)"
        return Verdict(kind, False, (expected,), (), None, len(results), None)
    answered = [result for result in results if result.values is not None]
    findings = _refusals(results)
    if 0 < len(results) < len(cases) / 2:
        findings.append(f"too few cases to judge: {len(results)} of {len(cases)} are offered")
    if answered:
        faults: FaultNames | None = () if all(result.right for result in answered) else explain(kind, answered)
        findings += _wrong_values(caller, answered, len(results), faults)
        findings += _attention_factor(answered) + _half_precision_results(answered)
        in_other_dtypes, skipped = _other_dtypes(caller, kind, faults)
        broken, untested = broken_invariants(caller)
        new = [f for f in broken if not any(f.partition(" (while checking: ")[0] in known for known in in_other_dtypes)]
        findings += in_other_dtypes + new + _state(caller, answered[0])
        notes += skipped + untested
    errors = [error for result in answered if (error := _largest_error(result)) is not None and math.isfinite(error)]
    unique = tuple(dict.fromkeys(findings))
    return Verdict(
        kind, not findings, unique, tuple(notes), _example(answered), len(results), max(errors, default=None)
    )


# -------------------------------------------------------------------- which faults explain the results


def explain(
    kind: str, results: Sequence[CaseResult], known: FaultNames = (), *, pairs: bool = True
) -> FaultNames | None:
    """One or two known faults, besides those given, that explain every result (of a kind with few, up to four); None if
    there are none."""
    candidates = [name for name in FAULTS[kind] if name not in known]
    combined = [name for name in candidates if name not in CLAMPS] if pairs else []
    wrong_first = sorted(results, key=lambda result: result.right)  # they reject a fault soonest
    sizes = range(2, 5 if len(combined) <= FEW else 3)
    for group in chain(combinations(candidates, 1), *(combinations(combined, size) for size in sizes)):
        if all(_explained(kind, known + group, result) for result in wrong_first):
            return known + group
    return None


def _explained(kind: str, faults: FaultNames, result: CaseResult) -> bool:
    try:
        return result.matches(expected_values(kind, result.case.arguments, faults))
    except (ArithmeticError, ValueError, TypeError, LookupError, RuntimeError):  # faults that exclude one another
        return False


# -------------------------------------------------------------------- findings


def _refusals(results: Sequence[CaseResult]) -> list[str]:
    refused = [result for result in results if result.values is None]
    if not refused:
        return [] if results else ["offers none of the cases"]
    why = refused[0].refusal
    if len(refused) == len(results):
        return [why]
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


def _wrong_values(caller: Caller, answered: Sequence[CaseResult], cases: int, faults: FaultNames | None) -> list[str]:
    wrong, convention = [result for result in answered if not result.right], caller.convention
    if not wrong:
        return []
    if convention.tolerance is not no_tolerance and any(not result.dtype.is_floating_point for result in wrong):
        return ["integers in, integers out: the values are cut to integers"]
    listed = {name: ", ".join(str(r.case.arguments.get(name)) for r in wrong) for name in convention.arguments}
    where = convention.failing.format(**{**listed, "count": len(wrong), "cases": cases})
    if faults is None:
        empty = any(result.values is not None and bool(result.values.isnan().any()) for result in wrong)
        return [f"{where} {UNWRITTEN}" if empty else f"{where}, {UNKNOWN}"]
    causes = []
    for fault in faults:
        name, ignored, rest = fault.partition(" is ignored")
        not_passed = ignored and name in caller.missing
        causes.append(f"{name} was not passed, as the function has no parameter for it{rest}" if not_passed else fault)
    return causes if convention.failing == Convention.failing else [f"{where}: {'; '.join(causes)}"]


def _attention_factor(answered: Sequence[CaseResult]) -> list[str]:
    rows = [
        (r.attention_factor, r.case.expected["attention_factor"], r.case.arguments.get("factor"))
        for r in answered
        if r.attention_factor is not None
    ]

    def differing(change: Callable[[float], float]) -> list[tuple[float, float, float | None]]:
        return [row for row in rows if not abs(row[0] - change(row[1])) <= 1e-5 * abs(row[1])]

    if not (wrong := differing(lambda expected: expected)):
        return []
    causes = (name for name, change in ATTENTION_FACTORS.items() if not differing(change))
    got, expected, stretch = wrong[0]
    factor = "" if stretch is None else f" for factor {stretch:g}"
    return [f"{next(causes, 'temperature wrong')} (attention factor {got:.6g}, expected {expected:.6g}{factor})"]


def _half_precision_results(answered: Sequence[CaseResult]) -> list[str]:
    dtypes = {result.dtype for result in answered if result.dtype.is_floating_point}
    short = sorted(dtype_name(dtype) for dtype in dtypes if torch.finfo(dtype).eps > FLOAT32)
    return [f"result in the wrong dtype: {', '.join(short)}, expected float32 or more"] if short else []


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
"""Lengths of texts from position 0 on that are longer than the dtype counts."""
SPREAD = [0, 1, 3, 17, 100, 129, 250, 255, 256, 257, 300, 511, 700, 1023, 2047, 2049, 3001, 4095, 40000]


def _other_dtypes(caller: Caller, kind: str, faults: FaultNames | None) -> tuple[list[str], list[str]]:
    """Findings and notes on x in other dtypes, which must give the values of float32 up to the rounding of x's dtype, and
    leave float32 as it was. faults: of the function in float32; None if they are not known."""
    findings: list[str] = []
    notes: list[str] = []
    for dtype, width in WIDTHS.items() if "x" in caller.convention.arguments else ():
        cases = []
        texts = [(list(range(TEXTS.get(dtype, 10))), 1e4), (SPREAD, 1e4), (SPREAD, 5e5)]
        for positions, base in texts if "positions" in caller.convention.arguments else texts[:1]:
            given = golden.example(caller.convention, positions, width)
            given = {**given, "x": golden.content(1, 1, len(positions), width), "base": base}
            cases.append(GoldenCase(given, [] if faults is None else expected_values(kind, given, faults).tolist()))
        results = [replace(run_case(caller, case, x=dtype), dtype=dtype) for case in cases]
        afterwards = [run_case(caller, case) for case in cases]
        name = dtype_name(dtype)
        if all(result.refusal == DECLINED for result in results):
            notes.append(f"not tried with x in {name}: the function answers with NotImplementedError")
            continue
        findings += _compared(f"with x in {name}", results, kind, faults, diagnose=True)
        findings += _compared(f"in float32, after calls with x in {name}", afterwards, kind, faults, diagnose=False)
    return findings, notes


def _compared(
    where: str, results: Sequence[CaseResult], kind: str, faults: FaultNames | None, *, diagnose: bool
) -> list[str]:
    offered = [result for result in results if result.refusal != DECLINED]
    if refused := [result for result in offered if result.values is None]:
        return [f"{where}: {refused[0].refusal}"]
    wrong = [result for result in offered if faults is not None and not result.right]
    if faults is None or not wrong:
        return []
    if not diagnose:
        return [f"{where}, {_extent(wrong[0])}"]
    cause = explain(kind, offered[::-1], faults, pairs=False)
    return [f"{where}, {_extent(wrong[0])}" + (f": {cause[-1]}" if cause else f", {UNKNOWN}")]


def _extent(result: CaseResult) -> str:
    """From which position on values are wrong, and by how much."""
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
    result = next((result for result in answered if not result.right), None)
    if result is None:
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
        if name not in ("x", "cosines", "sines"):
            shown.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={_shortened(value)}")
    return ", ".join(shown)


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
        notes.append(f"{', '.join(caller.missing)} could not be passed: the function has no parameter for it")
    if count := sum(result.refusal == DECLINED for result in results):
        notes.append(f"{count} cases were left out: the function answers them with NotImplementedError")
    answered = [result for result in results if result.values is not None]
    tempered = any(isinstance(c.expected, Mapping) and c.expected["attention_factor"] != 1 for c in cases)
    if tempered and answered and all(result.attention_factor is None for result in answered):
        notes.append("no attention factor was returned, so the temperature was not judged")
    return notes


def _largest_error(result: CaseResult) -> float | None:
    assert result.values is not None
    got, expected = result.values.squeeze(), result.expected.squeeze()
    if got.shape != expected.shape:
        return None
    error = (got - expected).abs()
    return float((error / expected.abs().clamp(min=1e-30) if result.convention.relative else error).max())
