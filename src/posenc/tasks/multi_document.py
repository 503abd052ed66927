# SPDX-License-Identifier: Apache-2.0
"""Question answering over many documents, as in Lost in the Middle."""

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from posenc.errors import InputError, unknown
from posenc.tasks import documents
from posenc.tasks.documents import Question
from posenc.tasks.task import Sample, Task, asked, check_depth, fit, fit_at, place

PROMPT = """\
Write a high-quality answer for the given question using only the provided search results \
(some of which might be irrelevant).

{documents}

Question: {question}
Answer:"""
QUERY_AWARE = PROMPT.replace("{documents}", "Question: {question}\n\n{documents}")
RANDOM_ORDER = PROMPT.replace("irrelevant).", "irrelevant). The search results are ordered randomly.")
CLOSED_BOOK = "Question: {question}\nAnswer:"
ARTICLE = re.compile(r"(?<![\w\u0300-\u036f])(a|an|the)(?![\w\u0300-\u036f])")
"""Whole words; an accent on its own belongs to one, as in the package `regex`, which the authors use."""


@dataclass(frozen=True)
class MultiDocument(Task):
    """A question, and documents of which one holds the answer.

    The prompts, the score (an answer stands in the first line of what the model writes, both normalised as for SQuAD) and
    the place of the right document, the others keeping their order, are those of Liu et al. 2023 (arXiv 2307.03172;
    nelson-liu/lost-in-the-middle, prompting.py, metrics.py and evaluate_qa_responses.py).

    file: questions with their documents, as published there, see `documents.read`, a sample each; none: documents about
    invented places, people, ships and books, so that no model knows the answer. documents: how many, there 10, 20 or 30;
    none: as many as fit. query_aware: the question stands before the documents too. ordering: "relevance" (as in the
    file), or "random": the others are shuffled, and the prompt says so. closed_book: no documents, at any depth.
    """

    name: ClassVar[str] = "multi_document"
    new_tokens: ClassVar[int] = 100

    file: str | None = None
    documents: int | None = None
    query_aware: bool = False
    ordering: str = "relevance"
    closed_book: bool = False

    def __post_init__(self) -> None:
        if self.ordering not in ("relevance", "random"):
            raise unknown("ordering", self.ordering, ("relevance", "random"))
        if self.documents is not None and not 1 <= self.documents <= documents.MOST:
            raise InputError(f"documents={self.documents}: give 1 to {documents.MOST}, or none for as many as fit")
        chosen = {
            "query_aware=true": self.query_aware,
            "ordering=random": self.ordering == "random",
            "closed_book=true": self.closed_book,
        }
        if sum(chosen.values()) > 1:
            both = " and ".join(option for option, given in chosen.items() if given)
            raise InputError(f"{both}: there is no prompt for these together; give one of them")

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        check_depth(depth)
        template = QUERY_AWARE if self.query_aware else RANDOM_ORDER if self.ordering == "random" else PROMPT
        asked_for = None if self.file is None else self._from_file(self.file, seed, index)

        def closed(_: int) -> Sample:
            question = asked_for or documents.invent(self.draws(seed, index), 0)
            prompt = CLOSED_BOOK.format(question=question.text)
            return asked(tokenizer, prompt, f" {question.answers[0]}", question.answers)

        def build(count: int, depth: float) -> Sample:
            question = asked_for or documents.invent(self.draws(seed, index), count - 1)
            results = list(question.distractors[: count - 1])
            if self.ordering == "random":
                Random(f"order {seed} {index}").shuffle(results)
            at = place(depth, count)
            results.insert(at, question.gold)
            written = [f"Document [{i}](Title: {each.title}) {each.text}" for i, each in enumerate(results, 1)]
            prompt = template.format(question=question.text, documents="\n".join(written))
            first = prompt.index(written[at])
            needle = _answer_in(written[at], question.answers)
            return asked(
                tokenizer, prompt, f" {question.answers[0]}", question.answers, (first + needle[0], first + needle[1])
            )

        if self.closed_book:
            return fit(self, length, closed, most=0)
        most = self.documents or (documents.MOST if asked_for is None else len(asked_for.distractors) + 1)
        return fit_at(self, length, depth, build, self.documents or min(2, most), most)

    def score(self, generated: str, sample: Sample) -> float:
        return best_subspan_em(generated.split("\n")[0].strip(), sample.references)

    def _from_file(self, file: str, seed: int, index: int) -> Question:
        """The seed's question of that index: a seed is an order."""
        found = documents.read(file)
        if index >= len(found):
            raise InputError(f"file={file}: has {len(found)} questions, no sample {index + 1}; ask for fewer samples")
        question = Random(f"{self.name} {seed}").sample(found, len(found))[index]
        have = len(question.distractors) + 1
        if self.documents is not None and self.documents > have:
            raise InputError(
                f"documents={self.documents}: the question {question.text!r} in {file} has {have}, those with the answer "
                f"counted once; give {have} or fewer"
            )
        return question


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and spaces that are not needed (SQuAD's evaluation script)."""
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(ARTICLE.sub(" ", text).split())


def best_subspan_em(answer: str, references: Iterable[str]) -> float:
    """1 if one of the references stands in the answer, both normalised, else 0."""
    return float(any(normalise(reference) in normalise(answer) for reference in references))


def _answer_in(document: str, answers: Iterable[str]) -> tuple[int, int]:
    """Where in a document the first answer stands that stands in it as written; else the whole document."""
    start = document.index("Title: ") + 7  # a number may be the answer, but not the document's own
    for answer in answers:
        if found := re.compile(re.escape(answer), re.IGNORECASE).search(document, start):
            return found.span()
    return 0, len(document)
