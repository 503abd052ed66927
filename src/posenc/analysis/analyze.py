# SPDX-License-Identifier: Apache-2.0
"""Everything that can be found out about one encoding, function, table or model, in the order that a reader wants it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from posenc.analysis.finding import Finding
from posenc.analysis.questions import QUESTIONS, Picture, Question
from posenc.analysis.reading import seeded
from posenc.analysis.subject import DTYPES, Subject, subject_of
from posenc.checks import checked
from posenc.errors import InputError

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Section:
    """An answer: a finding under a title, its pictures, and the seconds it took."""

    name: str
    title: str
    finding: Finding
    pictures: tuple[Picture, ...]
    seconds: float


@dataclass(frozen=True)
class LeftOut:
    """A question that this subject has no answer to, and why."""

    name: str
    title: str
    reason: str


@dataclass(frozen=True, eq=False)
class Analysis(Finding):
    """What `analyze` found. settings: what it was asked with. sections: in the order to read them. left_out: the rest.
    note: which layer was read, where layers differ; else empty."""

    subject: str
    settings: dict[str, Any]
    sections: tuple[Section, ...]
    left_out: tuple[LeftOut, ...]
    note: str = ""

    def __getitem__(self, name: str) -> Section:
        """The section of that name.

        Raises:
            InputError: there is none; the reason, where it was left out.
        """
        for section in self.sections:
            if section.name == name:
                return section
        reasons = {left.name: left.reason for left in self.left_out}
        known = ", ".join(section.name for section in self.sections)
        raise InputError(f"no section {name!r}: {reasons.get(name, f'there are {known}')}")

    @property
    def reasons(self) -> dict[str, list[str]]:
        """What was left out: each reason, and the titles of the questions that it holds for."""
        found: dict[str, list[str]] = {}
        for left in self.left_out:
            found.setdefault(left.reason, []).append(left.title)
        return found

    def sentences(self) -> list[str]:
        """What belongs to the answer, a sentence a section."""
        answers = {question.name: question.answer for question in QUESTIONS}
        said = [answers[section.name](section.finding) for section in self.sections]
        return [sentence for sentence in said if sentence]

    def to_dict(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "note": self.note,
            "settings": self.settings,
            "sentences": self.sentences(),
            "sections": [
                {
                    "name": section.name,
                    "title": section.title,
                    "seconds": round(section.seconds, 3),
                    "sentences": section.finding.sentences(),
                    "see": [picture.see for picture in section.pictures],
                    "numbers": _rounded({k: v for k, v in section.finding.to_dict().items() if k != "sentences"}),
                }
                for section in self.sections
            ],
            "left_out": [vars(left) for left in self.left_out],
        }


@checked
def analyze(
    subject: Any,
    *,
    length: int = 512,
    trained: int | None = None,
    steps: int = 120,
    seed: int = 0,
    name: str | None = None,
    tokenizer: Any = None,
    dtypes: Sequence[str] = DTYPES,
    progress: Progress = lambda title, done, count: None,
    **shape: Any,
) -> Analysis:
    """Ask every question of a subject.

    Args:
        subject: an encoding, its text ("rope:rope_theta=500") or class, a function from (n,) positions to (n, dim)
            vectors, a table (n, dim), or a transformers model; or a `Subject`, and the rest does not count.
        length: positions to look at, cut to what it is defined for. trained: those it was trained on, or would be; None:
            a model's own, else `length`. steps: of the small model that is trained on the spot for what only a trained
            one shows; 0 leaves that out. seed: of whatever is drawn. name: for people. tokenizer: of a model, to read
            a text with. dtypes: whose phase errors are measured. progress: told each question, how many were done and
            of how many. shape: that a text or a class is made for, see posenc.analysis.codes.SHAPE; of an encoding, what
            it does not keep itself as num_heads, num_kv_heads, head_dim or dim.

    Raises:
        InputError: a subject that is nothing of that, or whose codes are not finite, not (n, dim), or change.
    """
    if not isinstance(subject, Subject):
        subject = subject_of(
            subject,
            length=length,
            trained=trained,
            steps=steps,
            seed=seed,
            name=name,
            tokenizer=tokenizer,
            dtypes=dtypes,
            **shape,
        )
    sections, left_out = [], []
    for number, question in enumerate(QUESTIONS):
        progress(question.title, number, len(QUESTIONS))
        try:
            sections.append(_answered(question, subject))
        except InputError as error:
            reason = str(error).removeprefix(f"{subject.name}: ")
            left_out.append(LeftOut(question.name, question.title, f"{reason[:1].upper()}{reason[1:].rstrip('.')}."))
    settings = {name: getattr(subject, name) for name in ("kind", "length", "trained", "steps", "seed")}
    return Analysis(subject.name, settings, tuple(sections), tuple(left_out), subject.note)


def _answered(question: Question, subject: Subject) -> Section:
    started = time.perf_counter()
    with seeded(subject.seed):
        try:
            finding = question.find(subject)
        except (InputError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if not subject.own_code:
                raise
            told = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"its own code failed here: {told}") from error
    pictures = tuple(question.show(subject, finding))
    return Section(question.name, question.title, finding, pictures, time.perf_counter() - started)


def _rounded(value: Any) -> Any:
    """Numbers to nine significant digits: what a file is read for."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value
