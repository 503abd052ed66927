# SPDX-License-Identifier: Apache-2.0
"""The plan of a selection, see `posenc.lab.evals.auto`: which methods read how many documents."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from posenc.errors import NO_VALUE, InputError, check_fields, check_integers, check_positive, check_word
from posenc.lab.evals.config import NONE
from posenc.spec import read_json

RETRIEVAL = ("passkey", "facts")
"""Tasks with an answer."""
SERVING = ("python", "transformers", "vllm", "llama.cpp")
"""Programs to extend a model for, as `posenc.pretrained.export.expresses` takes them; python is posenc."""
PAIR = 2
"""Texts of a cell."""
LEAST_TEXTS, MOST_TEXTS = 4, 32
"""On which a choice is made."""
PLAN = "plan.json"
"""Its file."""

Round = tuple[int, int]
"""Texts that are read by its end, and methods that read them."""


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how many minutes it was planned.

    tasks: with an answer, that count beside the running text. candidates: in the order in which they are tried, "none" among
    them. rounds: see `Round`. seconds_per_token: in a text of the new length, measured for the unmodified model. left_out,
    skipped: tasks that do not count and methods that the model or the program does not take, and why. checked: how many tasks
    the unmodified model read within its context length, to see whether they count.

    Raises:
        InputError: numbers out of range, or rounds that no selection has.
    """

    context_length: int
    target_length: int
    program: str
    seed: int
    minutes: float
    tasks: tuple[str, ...] = RETRIEVAL
    candidates: tuple[str, ...] = (NONE,)
    rounds: tuple[Round, ...] = ((LEAST_TEXTS, 1),)
    seconds_per_token: float = 1.0
    left_out: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    checked: int = 0

    def __post_init__(self) -> None:
        for name in ("tasks", "candidates", "rounds"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "rounds", tuple(tuple(each) for each in self.rounds))
        check_fields(self)
        check_integers(1, context_length=self.context_length, target_length=self.target_length)
        check_integers(0, seed=self.seed, checked=self.checked)
        check_positive(minutes=self.minutes, seconds_per_token=self.seconds_per_token)
        check_word("program", self.program, SERVING)
        for task in self.tasks:
            check_word("tasks", task, RETRIEVAL)
        if NONE not in self.candidates or not all(isinstance(each, str) for each in self.candidates):
            raise InputError("must be names of methods, and none among them", candidates=self.candidates)
        if not self.rounds or any(len(each) != 2 for each in self.rounds):
            raise InputError("must be pairs of documents and methods", rounds=self.rounds)
        texts, methods = zip(*self.rounds, strict=True)
        for text, method in self.rounds:
            check_integers(1, rounds=text)
            check_integers(1, rounds=method)
        if any(each % PAIR for each in texts) or list(texts) != sorted(set(texts)) or texts[-1] < LEAST_TEXTS:
            raise InputError(f"documents must be even numbers that grow to {LEAST_TEXTS} or more", rounds=self.rounds)
        if list(methods) != sorted(methods, reverse=True) or methods[0] != len(self.candidates):
            raise InputError("the first must have all candidates, and no later one more", rounds=self.rounds)

    @classmethod
    def read(cls, plan: Self | Mapping[str, Any] | str | Path) -> Self:
        """A plan from its fields or its file.

        Raises:
            InputError: it is none.
        """
        if isinstance(plan, cls):
            return plan
        value = NO_VALUE if isinstance(plan, Mapping) else str(plan)
        remedy = f"pass the {PLAN} of an earlier call"
        try:
            given = plan if isinstance(plan, Mapping) else read_json(Path(str(plan)).read_text(encoding="utf-8"))
            return cls(**given)
        except OSError as error:
            raise InputError(error.strerror or "cannot be read", remedy, argument="plan", value=value) from None
        except InputError as error:
            raise error.about(remedy, plan=value) from None
        except (ValueError, TypeError):
            raise InputError("is no plan", remedy, argument="plan", value=value) from None

    @property
    def depth(self) -> float:
        """Of the answers: the middle of what truncation removes."""
        return (1 - self.context_length / self.target_length) / 2

    @property
    def tokens(self) -> int:
        """That are read in all rounds and to check the tasks, at most."""
        context, target, tasks = self.context_length, self.target_length, len(self.tasks)
        windows = 1 + math.ceil((target - context) / max(context // 2, 1))  # of truncation, over running text
        read, total = 0, self.checked * PAIR * context
        for texts, methods in self.rounds:
            unmodified = target if methods < len(self.candidates) else 0  # else it is one of the methods
            total += (texts - read) * (methods * (1 + tasks) * target + (windows + tasks) * context + unmodified)
            read = texts
        return total

    @property
    def planned_minutes(self) -> float:
        return self.tokens * self.seconds_per_token / 60

    def __str__(self) -> str:
        *_, (texts, methods) = self.rounds
        return (
            f"plan: {len(self.candidates)} methods, of which {methods} read {texts} documents of {self.target_length} tokens; about "
            f"{self.planned_minutes:.2g} minutes at {1 / self.seconds_per_token:.0f} tokens a second"
        )


def _halving(plan: Plan, count: int) -> Plan:
    """For the first so many candidates: rounds that double the documents and halve the methods until two are left."""
    rounds, methods = [(PAIR, count)], count
    while methods > 2:
        methods = math.ceil(methods / 2)
        rounds.append((2 * rounds[-1][0], methods))
    rounds = rounds if len(rounds) > 1 else [(LEAST_TEXTS, count)]
    return replace(plan, candidates=plan.candidates[:count], rounds=tuple(rounds))


def checked_tasks(plan: Plan) -> Plan:
    """With as many of its tasks as the minutes allow to check, and to count for one method; the others are left out."""
    for count in range(len(plan.tasks), -1, -1):
        found = replace(plan, tasks=plan.tasks[:count], checked=count)
        if count == 0 or _halving(found, 2).planned_minutes <= plan.minutes:
            break
    why = f"{plan.minutes:g} minutes are too few for it beside the running text"
    return replace(found, left_out=plan.left_out | dict.fromkeys(plan.tasks[count:], why))


def planned_rounds(plan: Plan, most_texts: int = MOST_TEXTS) -> Plan:
    """With rounds for as many of the candidates as the minutes allow, and then for as many documents.

    Raises:
        InputError: the minutes are too few for one method beside the unmodified model.
    """
    counts: Sequence[int] = range(len(plan.candidates), 1, -1)
    fitting = (each for count in counts if (each := _halving(plan, count)).planned_minutes <= plan.minutes)
    found = next(fitting, None)
    if found is None:
        least = _halving(plan, 2).planned_minutes
        raise InputError(
            f"one method and {LEAST_TEXTS} documents of {plan.target_length} tokens take about {least:.2g} minutes here",
            f"give minutes={math.ceil(1.2 * least)} or more, or a lower target_length",
            minutes=plan.minutes,
        )
    while True:
        *before, (texts, methods) = found.rounds
        longer = replace(found, rounds=(*before, (texts + PAIR, methods)))
        if texts + PAIR > most_texts or longer.planned_minutes > plan.minutes:
            return found
        found = longer
