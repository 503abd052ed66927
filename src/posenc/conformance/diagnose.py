"""Hold someone else's function against the golden vectors and the invariants, and say in words what is wrong."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, combinations
from typing import Any

import torch
from torch import Tensor

from posenc.conformance import golden
from posenc.conformance.golden import Case
from posenc.conformance.invariants import INVARIANTS
from posenc.conformance.kinds import FLOAT32, KINDS, Answer, Caller, Kind, Unreadable, exactly, read
from posenc.conformance.suspects import SUSPECTS, TEMPERATURES, Suspect
from posenc.errors import unknown


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
        InputError: an unknown kind.
    """
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    caller = Caller(function, KINDS[kind])
    every = golden.load()[kind]
    asked = [_outcome(caller, case) for case in every if caller.takes(case.arguments)]
    outcomes = [outcome for outcome in asked if outcome.refusal != NOT_OFFERED]
    findings = [
        *_refusals(outcomes),
        *(_integers(caller.kind, outcomes) or _values(kind, outcomes)),
        *_attention_factor(outcomes),
        *_short_dtypes(caller.kind, outcomes),
    ]
    notes = _notes(caller, every, asked)
    if any(outcome.answer for outcome in outcomes):
        broken, untried = _invariants(caller, kind)
        findings += _state(caller, outcomes) + broken
        notes += untried
    return Verdict(
        kind,
        passed=not findings,
        findings=tuple(dict.fromkeys(findings)),
        notes=tuple(notes),
        example=_example(outcomes),
        cases=len(outcomes),
        largest_error=_largest_error(caller.kind, outcomes),
    )


# -------------------------------------------------------------------- asking

NOT_OFFERED = "raises NotImplementedError"


@dataclass(frozen=True, eq=False)
class Outcome:
    """One case, and what came of it: an answer, or the reason why there is none."""

    kind: Kind
    case: Case
    answer: Answer | None = None
    refusal: str = ""

    @property
    def expected(self) -> Tensor:
        return _numbers(self.case.expected)

    @property
    def right(self) -> bool:
        return self.equals(self.expected)

    def equals(self, values: Tensor) -> bool:
        """Whether the answer is these values, within the tolerance of its dtype; axes of length 1 do not count."""
        assert self.answer is not None
        got, dtype = self.answer.values.squeeze(), self.answer.dtype
        eps = max(torch.finfo(dtype).eps, FLOAT32) if dtype.is_floating_point else FLOAT32
        allowed = self.kind.tolerance(values, self.case.arguments, eps).squeeze()
        return got.shape == values.squeeze().shape and bool(((got - values.squeeze()).abs() <= allowed).all())


def _numbers(expected: Any) -> Tensor:
    values = expected["inv_freq"] if isinstance(expected, Mapping) else expected
    return torch.tensor(values, dtype=torch.float64)


def _outcome(caller: Caller, case: Case) -> Outcome:
    try:
        return Outcome(caller.kind, case, read(caller(case.arguments), caller.kind))
    except Unreadable as error:
        return Outcome(caller.kind, case, refusal=str(error))
    except NotImplementedError:
        return Outcome(caller.kind, case, refusal=NOT_OFFERED)
    except (Exception, SystemExit) as error:
        return Outcome(caller.kind, case, refusal=f"raises {_told(error)}")


def _told(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + text[0][:160] if text else ''}"


# -------------------------------------------------------------------- judging


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


def _values(kind: str, outcomes: Sequence[Outcome]) -> list[str]:
    answered = [outcome for outcome in outcomes if outcome.answer]
    wrong = [outcome for outcome in answered if not outcome.right]
    if not wrong:
        return []
    says = _explanation(kind, answered)
    where = _where(wrong, len(outcomes))
    if not says:
        return [f"{where}, in a way that is not known here"]
    return [f"{where}: {'; '.join(says)}"] if KINDS[kind].failing != Kind.failing else list(says)


def _explanation(kind: str, answered: Sequence[Outcome]) -> tuple[str, ...]:
    """The fewest suspects, at most three, under which every answer is as computed; empty if there are none."""
    formula, suspects = SUSPECTS[kind]
    telling = sorted(answered, key=lambda outcome: outcome.right)  # the wrong ones reject a suspect soonest
    groups = chain.from_iterable(combinations(suspects, together) for together in (1, 2, 3))
    for group in groups:
        if all(_fits(formula, group, outcome, outcome.case.arguments) for outcome in telling):
            return tuple(suspect.says for suspect in group)
    if "positions" in KINDS[kind].arguments:
        for stale in (("positions",), ("base",), ("positions", "base")):
            if all(_fits(formula, (), outcome, _as_first_asked(outcome, answered, stale)) for outcome in telling):
                return (
                    f"cached by shape only: answers with the {' and '.join(stale)} of the first call of that shape",
                )
    return ()


def _fits(
    formula: Callable[..., Any], group: tuple[Suspect, ...], outcome: Outcome, arguments: Mapping[str, Any]
) -> bool:
    try:
        for suspect in group:
            arguments = suspect.change(arguments)
        return outcome.equals(_numbers(formula(**arguments)))
    except (ArithmeticError, ValueError, TypeError, LookupError, RuntimeError):  # a suspicion that has no meaning here
        return False


def _as_first_asked(outcome: Outcome, asked: Sequence[Outcome], names: tuple[str, ...]) -> dict[str, Any]:
    first = next(other.case.arguments for other in asked if other.expected.shape == outcome.expected.shape)
    return {**outcome.case.arguments, **{name: first[name] for name in names if name in first}}


def _attention_factor(outcomes: Sequence[Outcome]) -> list[str]:
    given = [
        (outcome.answer.attention_factor, outcome.case.expected["attention_factor"], outcome.case)
        for outcome in outcomes
        if outcome.answer and outcome.answer.attention_factor is not None
    ]

    def fits(change: Callable[[float], float]) -> bool:
        return all(abs(got - change(expected)) <= 1e-5 * abs(expected) for got, expected, _ in given)

    if not given or fits(lambda expected: expected):
        return []
    says = next((says for says, change in TEMPERATURES if fits(change)), "temperature wrong")
    got, expected, case = next(row for row in given if abs(row[0] - row[1]) > 1e-5 * abs(row[1]))
    stretch = f" for factor {case.arguments['factor']:g}" if "factor" in case.arguments else ""
    return [f"{says} (attention factor {got:.6g}, expected {expected:.6g}{stretch})"]


def _integers(kind: Kind, outcomes: Sequence[Outcome]) -> list[str]:
    whole = any(outcome.answer and not outcome.answer.dtype.is_floating_point for outcome in outcomes)
    cut = whole and kind.tolerance is not exactly
    return ["integers in, integers out: the values are cut to whole numbers"] if cut else []


def _short_dtypes(kind: Kind, outcomes: Sequence[Outcome]) -> list[str]:
    floats = {o.answer.dtype for o in outcomes if o.answer and o.answer.dtype.is_floating_point}
    short = sorted(str(dtype).removeprefix("torch.") for dtype in floats if torch.finfo(dtype).eps > FLOAT32)
    return [f"result in the wrong dtype: {', '.join(short)}, expected float32 or more"] if short else []


def _state(caller: Caller, outcomes: Sequence[Outcome]) -> list[str]:
    first = next(outcome for outcome in outcomes if outcome.answer)
    again = _outcome(caller, first.case)
    if again.answer is not None and first.answer is not None and torch.equal(again.answer.values, first.answer.values):
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
        except NotImplementedError:
            untried.append(f"not tried, the function answers with NotImplementedError: {claim}")
        except Exception as error:
            broken.append(f"raises {_told(error)} (while checking: {claim})")
    return broken, untried


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
    got, expected = wrong.answer.values, wrong.expected
    where = f"for {_described(wrong.case)}"
    if got.squeeze().shape != expected.squeeze().shape:
        return f"{where}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    got = got.reshape(expected.shape)
    allowed = wrong.kind.tolerance(expected, wrong.case.arguments, FLOAT32)
    index = tuple(((got - expected).abs() <= allowed).logical_not().nonzero()[0].tolist())
    return f"{where}: at {list(index)} expected {expected[index].item():.8g}, got {got[index].item():.8g}"


def _described(case: Case) -> str:
    shown = []
    for name, value in case.arguments.items():
        if name == "x":
            continue
        if isinstance(value, list):
            value = f"[{', '.join(map(str, value[:3]))}, ...]"
        shown.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
    return ", ".join(shown)


def _notes(caller: Caller, every: Sequence[Case], outcomes: Sequence[Outcome]) -> list[str]:
    notes = []
    if left := [case for case in every if not caller.takes(case.arguments)]:
        given = {name for case in left for name in case.arguments}
        unnamed = [name for name in caller.kind.options if name in given - (caller.names or frozenset())]
        notes.append(f"{len(left)} cases with {', '.join(unnamed)} were left out: the function does not name them")
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
