# SPDX-License-Identifier: Apache-2.0
"""What RULER's tasks share: the metrics and the words."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from posenc.errors import InputError
from posenc.tasks.task import Sample, Task


def string_match_all(generated: str, references: Sequence[str]) -> float:
    """The part of the references that occur in a generated text, in whatever case (scripts/eval/synthetic/constants.py)."""
    return sum(reference.lower() in generated.lower() for reference in references) / len(references)


def string_match_part(generated: str, references: Sequence[str]) -> float:
    """Whether any reference occurs in a generated text, in whatever case."""
    return float(any(reference.lower() in generated.lower() for reference in references))


@dataclass(frozen=True)
class RulerTask(Task):
    """A task of RULER, scored by the part of its references that are generated."""

    def score(self, generated: str, sample: Sample) -> float:
        return string_match_all(generated, sample.references)


@cache
def words(*kinds: str) -> tuple[str, ...]:
    """The English words of wonderwords of these kinds ("noun", "adjective", "verb"), sorted.

    Raises:
        InputError: wonderwords is not installed.
    """
    try:
        from wonderwords import RandomWord
    except ImportError:
        raise InputError(
            "RULER's words are those of wonderwords, which is not installed: pip install 'posenc[lab]'"
        ) from None
    source = RandomWord()
    return tuple(sorted({word for kind in kinds for word in source.filter(include_categories=[kind])}))
