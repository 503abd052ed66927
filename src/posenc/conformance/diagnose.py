# SPDX-License-Identifier: Apache-2.0
"""Hold someone else's function against the golden vectors and the invariants, and say in words what is wrong."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from posenc.conformance import golden
from posenc.conformance.asking import NOT_OFFERED, Outcome, ask, not_offered, told
from posenc.conformance.calling import Caller, from_angles
from posenc.conformance.dtypes import other_dtypes
from posenc.conformance.explain import Explanation, attention_factor, explain, stale
from posenc.conformance.golden import Case
from posenc.conformance.invariants import INVARIANTS
from posenc.conformance.kinds import FLOAT32, Kind, exactly, the_kind

__all__ = ["Verdict", "conform"]


@dataclass(frozen=True)
class Verdict:
    """findings are sentences, none if the function conforms; notes say what was not judged; example is the first
    difference. largest_error is relative where values are judged relatively (schedules, slopes), else absolute."""

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
        """The verdict as JSON can hold it."""
        return asdict(self)


def conform(function: Callable[..., Any], kind: str) -> Verdict:
    """Hold a function against the golden vectors and the invariants of a kind (`KINDS` lists them).

    Whatever the function raises becomes a finding, but for NotImplementedError: it says that a case is not offered.

    Raises:
        InputError: an unknown kind; a class, or a method without its object.
    """
    of_angles = from_angles(function, the_kind(kind))
    caller = Caller(of_angles or function, the_kind(kind))
    with torch.device("cpu"):  # whatever torch.set_default_device said before
        verdict = _verdict(caller, kind)
    given = "cos and sin were given to it, (1, seq, channels) in x's dtype, so how it makes angles was not judged"
    return replace(verdict, notes=(given, *verdict.notes)) if of_angles else verdict


def _verdict(caller: Caller, kind: str) -> Verdict:
    every = golden.load()[kind]
    asked = [ask(caller, case) for case in every if caller.takes(case.arguments)]
    outcomes = [outcome for outcome in asked if outcome.refusal != NOT_OFFERED]
    if exchanged := _exchanged(caller, outcomes):
        return Verdict(kind, False, (exchanged,), (), None, len(outcomes), None)
    answered = [outcome for outcome in outcomes if outcome.answer]
    computes = _computes(kind, answered)
    findings = [
        *_refusals(outcomes),
        *_too_few(every, outcomes),
        *(_integers(answered) or _values(kind, caller, outcomes, computes)),
        *attention_factor(outcomes),
        *_short_dtypes(answered),
    ]
    notes = _notes(caller, every, asked)
    if answered:
        in_other_dtypes, left = other_dtypes(caller, computes)
        broken, untried = _invariants(caller, kind)
        broken = [each for each in broken if not any(_raised(each) in before for before in in_other_dtypes)]
        findings += [*in_other_dtypes, *broken, *_state(caller, answered[0])]
        notes += left + untried
    return Verdict(
        kind,
        passed=not findings,
        findings=tuple(dict.fromkeys(findings)),
        notes=tuple(notes),
        example=_example(outcomes),
        cases=len(outcomes),
        largest_error=_largest_error(caller.kind, outcomes),
    )


# -------------------------------------------------------------------- judging


def _computes(kind: str, answered: Sequence[Outcome]) -> Explanation | None:
    if not answered:
        return None
    return Explanation(kind) if all(outcome.right for outcome in answered) else explain(kind, answered)


def _refusals(outcomes: Sequence[Outcome]) -> list[str]:
    refused = [outcome for outcome in outcomes if outcome.answer is None]
    if not outcomes:
        return ["offers none of the cases"]
    if not refused:
        return []
    first = refused[0]
    if len(refused) == len(outcomes):
        return [first.refusal]
    return [f"refuses {len(refused)} of {len(outcomes)} legal cases: {first.refusal} for {_described(first.case)}"]


def _exchanged(caller: Caller, outcomes: Sequence[Outcome]) -> str | None:
    """Whether a function that refuses cases is right in all for x of (batch, seq, heads, head_dim)."""
    if "x" not in caller.kind.arguments or all(outcome.answer for outcome in outcomes):
        return None
    for outcome in outcomes:
        x = torch.tensor(outcome.case.arguments["x"]).transpose(1, 2)
        turned = ask(caller, replace(outcome.case, arguments={**outcome.case.arguments, "x": x.tolist()}))
        if turned.answer is None or not turned.equals(outcome.expected.transpose(1, 2)):
            return None
    return "takes x as (batch, seq, heads, head_dim), expected (batch, heads, seq, head_dim)"


def _too_few(every: Sequence[Case], outcomes: Sequence[Outcome]) -> list[str]:
    few = 0 < len(outcomes) < len(every) / 2
    return [f"too few cases to judge: {len(outcomes)} of {len(every)} are offered"] if few else []


def _values(kind: str, caller: Caller, outcomes: Sequence[Outcome], computes: Explanation | None) -> list[str]:
    answered = [outcome for outcome in outcomes if outcome.answer]
    wrong = [outcome for outcome in answered if not outcome.right]
    if not wrong:
        return []
    where = _where(wrong, len(outcomes))
    if computes is None:
        return [stale(kind, answered) or f"{where}, in a way that is not known here"]
    says = [_handed_over(caller, fault.says) for fault in computes.faults]
    return [f"{where}: {'; '.join(says)}"] if caller.kind.failing != Kind.failing else says


def _handed_over(caller: Caller, says: str) -> str:
    """A function cannot ignore what it was not given."""
    name, ignored, rest = says.partition(" is ignored")
    if ignored and name in caller.missing:
        return f"{name} was not handed over, as the function has no parameter for it{rest}"
    return says


def _integers(answered: Sequence[Outcome]) -> list[str]:
    cut = [o for o in answered if o.answer and not o.answer.dtype.is_floating_point and not o.right]
    whole = bool(cut) and cut[0].kind.tolerance is not exactly
    return ["integers in, integers out: the values are cut to whole numbers"] if whole else []


def _short_dtypes(answered: Sequence[Outcome]) -> list[str]:
    floats = {o.answer.dtype for o in answered if o.answer and o.answer.dtype.is_floating_point}
    short = sorted(str(dtype).removeprefix("torch.") for dtype in floats if torch.finfo(dtype).eps > FLOAT32)
    return [f"result in the wrong dtype: {', '.join(short)}, expected float32 or more"] if short else []


def _state(caller: Caller, first: Outcome) -> list[str]:
    again = ask(caller, first.case)
    assert first.answer is not None
    if again.answer is not None and torch.allclose(
        again.answer.values, first.answer.values, rtol=0, atol=0, equal_nan=True
    ):
        return []
    return ["keeps state between calls: the first question, asked again at the end, is answered differently"]


def _invariants(caller: Caller, kind: str) -> tuple[list[str], list[str]]:
    """What does not hold, and what could not be tried because the function does not offer it."""
    broken, untried = [], []
    for invariant in INVARIANTS.get(kind, ()):
        claim = (invariant.__doc__ or "").rstrip(".")
        try:
            if finding := invariant(caller):
                broken.append(finding)
        except (Exception, SystemExit) as error:
            if not_offered(error):
                untried.append(f"not tried, the function does not offer it: {claim}")
            else:
                broken.append(f"raises {told(error)} (while checking: {claim})")
    return broken, untried


def _raised(finding: str) -> str:
    """An invariant's finding without what it was looking for, as other dtypes' findings have it."""
    return finding.partition(" (while checking: ")[0]


# -------------------------------------------------------------------- wording


def _where(wrong: Sequence[Outcome], cases: int) -> str:
    kind, arguments = wrong[0].kind, [outcome.case.arguments for outcome in wrong]
    listed = {
        name: ", ".join(str(given[name]) for given in arguments) for name in kind.arguments if name in arguments[0]
    }
    return kind.failing.format(**{**listed, "count": len(wrong), "cases": cases})


def _example(outcomes: Sequence[Outcome]) -> str | None:
    wrong = next((outcome for outcome in outcomes if outcome.answer and not outcome.right), None)
    if wrong is None or wrong.answer is None:
        return None
    got, expected, differs = wrong.answer.values, wrong.expected, wrong.wrong(wrong.expected)
    where = f"for {_described(wrong.case)}"
    if differs is None:
        return f"{where}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    index = tuple(differs.nonzero()[0].tolist())
    value = got.reshape(expected.shape)[index].item()
    return f"{where}: at {list(index)} expected {expected[index].item():.8g}, got {value:.8g}"


def _described(case: Case) -> str:
    shown = []
    for name, value in case.arguments.items():
        if name == "x":
            continue
        if isinstance(value, list):
            value = f"[{', '.join(map(str, value[:3]))}{', ...' if len(value) > 3 else ''}]"
        shown.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
    return ", ".join(shown)


def _notes(caller: Caller, every: Sequence[Case], outcomes: Sequence[Outcome]) -> list[str]:
    notes = []
    if left := [case for case in every if not caller.takes(case.arguments)]:
        given = {name for case in left for name in case.arguments}
        unnamed = [name for name in caller.kind.options if name in given - {*caller.places[1].values()}]
        notes.append(f"{len(left)} cases with {', '.join(unnamed)} were left out: the function does not name them")
    if caller.missing:
        notes.append(f"{', '.join(caller.missing)} could not be handed over: the function has no parameter for it")
    if count := sum(outcome.refusal == NOT_OFFERED for outcome in outcomes):
        notes.append(f"{count} cases were left out: the function answers them with NotImplementedError")
    answers = [outcome.answer for outcome in outcomes if outcome.answer]
    tempered = any(isinstance(c.expected, Mapping) and c.expected["attention_factor"] != 1 for c in every)
    if tempered and answers and all(answer.attention_factor is None for answer in answers):
        notes.append("no attention factor was returned, so the temperature was not judged")
    return notes


def _largest_error(kind: Kind, outcomes: Sequence[Outcome]) -> float | None:
    errors = []
    for outcome in outcomes:
        if outcome.answer and outcome.answer.values.squeeze().shape == outcome.expected.squeeze().shape:
            error = (outcome.answer.values.squeeze() - outcome.expected.squeeze()).abs()
            if kind.relative:
                error = error / outcome.expected.squeeze().abs().clamp(min=1e-30)
            errors.append(float(error.max()))
    return max(filter(math.isfinite, errors), default=None)
