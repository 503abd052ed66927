# SPDX-License-Identifier: Apache-2.0
"""Which known faults explain the answers of a function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any

from torch import Tensor

from posenc.conformance.asking import Outcome, numbers
from posenc.conformance.kinds import KINDS
from posenc.conformance.suspects import SUSPECTS, TEMPERATURES, Suspect


@dataclass(frozen=True)
class Explanation:
    """What a function computes: the formula of its kind with these faults (none: it is right)."""

    kind: str
    faults: tuple[Suspect, ...] = ()

    def values(self, arguments: Mapping[str, Any]) -> Tensor:
        """The values of the formula with the faults."""
        for fault in self.faults:
            arguments = fault.change(arguments)
        return numbers(SUSPECTS[self.kind][0](**arguments))

    def covers(self, outcome: Outcome, arguments: Mapping[str, Any] | None = None) -> bool:
        """Whether an answer is what the faulty formula gives (of other arguments, if they are given)."""
        try:
            return outcome.equals(self.values(outcome.case.arguments if arguments is None else arguments))
        except (ArithmeticError, ValueError, TypeError, LookupError, RuntimeError):  # it has no meaning here
            return False


def explain(
    kind: str, answered: Sequence[Outcome], known: tuple[Suspect, ...] = (), together: int = 3
) -> Explanation | None:
    """The fewest suspects, at most so many together, under which every answer is as computed; known ones apply besides."""
    suspects = [suspect for suspect in SUSPECTS[kind][1] if suspect not in known]
    common = [suspect for suspect in suspects if not suspect.alone]
    telling = sorted(answered, key=lambda outcome: outcome.right)  # the wrong ones reject a suspect soonest
    groups = chain(combinations(suspects, 1), *(combinations(common, count) for count in range(2, together + 1)))
    tried = (Explanation(kind, known + group) for group in groups)
    return next((found for found in tried if all(map(found.covers, telling))), None)


Shape = Callable[[Sequence[int]], Any]
SHAPES: tuple[Shape, ...] = (tuple, lambda shape: tuple(shape[-2:]), lambda shape: shape[-2])
"""What of a result's shape a cache may go by: all, (seq, head_dim), seq."""


def stale(kind: str, answered: Sequence[Outcome]) -> str | None:
    """What a function says again that was asked before with the same shapes."""
    if "positions" not in KINDS[kind].arguments:
        return None
    right = Explanation(kind)
    for names, same in product((("positions",), ("base",), ("positions", "base")), SHAPES):
        if all(right.covers(outcome, _as_first_asked(outcome, answered, names, same)) for outcome in answered):
            return f"cached by shape only: answers with the {' and '.join(names)} of the first call of that shape"
    return None


def _as_first_asked(outcome: Outcome, asked: Sequence[Outcome], names: tuple[str, ...], same: Shape) -> dict[str, Any]:
    shape = same(outcome.expected.shape)
    first = next(other.case.arguments for other in asked if same(other.expected.shape) == shape)
    return {**outcome.case.arguments, **{name: first[name] for name in names if name in first}}


def attention_factor(outcomes: Sequence[Outcome]) -> list[str]:
    """What is wrong with the attention factors that were returned."""
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
    got, expected, case = next(row for row in given if not abs(row[0] - row[1]) <= 1e-5 * abs(row[1]))
    stretch = f" for factor {case.arguments['factor']:g}" if "factor" in case.arguments else ""
    return [f"{says} (attention factor {got:.6g}, expected {expected:.6g}{stretch})"]
