# SPDX-License-Identifier: Apache-2.0
"""Question answering over many invented documents, as in Lost in the Middle."""

import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, NamedTuple

from posenc.errors import InputError
from posenc.tasks import words
from posenc.tasks.task import Sample, Task, check_request, fit, index_at, make_sample

PROMPT = """\
Write a high-quality answer for the given question using only the provided search results \
(some of which might be irrelevant).

{documents}

Question: {question}
Answer:"""
QUERY_AWARE = PROMPT.replace("{documents}", "Question: {question}\n\n{documents}")
CLOSED_BOOK = "Question: {question}\nAnswer:"
ARTICLE = re.compile(r"(?<![\w\u0300-\u036f])(a|an|the)(?![\w\u0300-\u036f])")
"""Complete words; an accent by itself belongs to one, as in the package `regex`, which the authors use."""


@dataclass(frozen=True)
class Document:
    """One search result."""

    title: str
    text: str


@dataclass(frozen=True)
class DocumentQuestion:
    """A question, its right answers, the document that has one, and others that do not."""

    text: str
    answers: tuple[str, ...]
    gold: Document
    distractors: tuple[Document, ...]


@dataclass(frozen=True, kw_only=True)
class MultiDocument(Task):
    """A question, and documents of which one has the answer.

    The prompts, the score (the first line of what the model writes contains an answer, both normalised as for SQuAD) and
    the position of the right document, with the others in order, are those of Liu et al. 2023 (arXiv 2307.03172;
    nelson-liu/lost-in-the-middle, prompting.py, metrics.py and evaluate_qa_responses.py).

    The documents are about invented places, people, ships and books, so that no model knows the answer. documents: how many, there
    10, 20 or 30; none: as many as fit. query_aware: the question is before the documents too. closed_book: no documents, at any depth.
    """

    name: ClassVar[str] = "multi_document"
    new_tokens: ClassVar[int] = 100

    documents: int | None = None
    query_aware: bool = False
    closed_book: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.documents is not None and not 1 <= self.documents <= MOST:
            raise InputError(f"give 1 to {MOST}, or none for as many as fit", documents=self.documents)
        if self.query_aware and self.closed_book:
            raise InputError("they have no common prompt: give one of them", query_aware=True, closed_book=True)

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        check_request(length, depth, seed, index)

        def build(count: int, depth: float) -> Sample:
            question = invent(self.draws(seed, index, length), max(count - 1, 0))
            answers = question.answers
            if self.closed_book:
                return make_sample(tokenizer, CLOSED_BOOK.format(question=question.text), f" {answers[0]}", answers)
            results = list(question.distractors[: count - 1])
            at = index_at(depth, count)
            results.insert(at, question.gold)
            written = [f"Document [{i}](Title: {each.title}) {each.text}" for i, each in enumerate(results, 1)]
            prompt = (QUERY_AWARE if self.query_aware else PROMPT).format(
                question=question.text, documents="\n".join(written)
            )
            first = prompt.index(written[at]) + written[at].index(answers[0])
            return make_sample(tokenizer, prompt, f" {answers[0]}", answers, (first, first + len(answers[0])))

        if self.closed_book:
            return fit(self, length, build, most=0)
        return fit(self, length, build, self.documents or 2, self.documents or MOST, depth)

    def score(self, generated: str, sample: Sample) -> float:
        return best_subspan_em(generated.split("\n")[0].strip(), sample.references)


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and spaces that are not needed (SQuAD's evaluation script)."""
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(ARTICLE.sub(" ", text).split())


def best_subspan_em(answer: str, references: Iterable[str]) -> float:
    """1 if the answer contains one of the references, both normalised, else 0."""
    return float(any(normalise(reference) in normalise(answer) for reference in references))


STARTS = (
    "Al", "Bar", "Bel", "Bran", "Cal", "Car", "Dal", "Del", "Dor", "Dun", "Eb", "El", "Fal", "Far", "Gal", "Gor", "Hal",
    "Har", "Il", "Kel", "Kir", "Lan", "Lor", "Mal", "Mar", "Mel", "Mor", "Nor", "Ol", "Or", "Pel", "Per", "Quil", "Ral",
    "Ros", "Sal", "Sel", "Tal", "Tor", "Ul", "Val", "Ver", "Wal", "Wil", "Yar", "Zel",
)  # fmt: skip
MIDDLES = (
    "a", "an", "ba", "da", "den", "di", "en", "go", "in", "ka", "li", "ma", "mo", "na", "o", "ri", "so", "ti", "ven",
)  # fmt: skip
TOWN_ENDS = (
    "beck", "bridge", "combe", "dale", "fell", "ford", "gate", "holt", "mere", "mouth", "stead", "thorpe", "wick",
)  # fmt: skip
SURNAME_ENDS = ("brand", "cott", "feldt", "gren", "kamp", "lund", "mann", "quist", "sen", "vick", "wall", "zar")
RIVER_ENDS = ("dash", "dawe", "der", "nesk", "nisse", "rune", "turn", "yx")
FIRST_NAMES = (
    "Ada", "Agnes", "Anton", "Bruno", "Cecil", "Clara", "Conrad", "Edith", "Emil", "Esther", "Felix", "Flora", "Greta",
    "Hanna", "Hugo", "Ida", "Irene", "Jonas", "Julius", "Lena", "Leo", "Martha", "Nora", "Oscar", "Otto", "Paula", "Rosa",
    "Ruth", "Simon", "Stella", "Victor", "Wanda",
)  # fmt: skip
CRAFTS = (
    "bell founding", "bookbinding", "boat building", "brewing", "clock making", "dyeing", "glass blowing", "lace making",
    "map printing", "paper making", "rope making", "salt panning", "silk weaving", "tanning", "violin making",
)  # fmt: skip
CARGOES = (
    "barley", "coal", "copper ore", "cotton", "herring", "indigo", "oranges", "slate", "sugar", "tea", "timber", "wool",
)  # fmt: skip
SEASONS = ("spring", "summer", "autumn", "winter")
ADJECTIVES, NOUNS = ([word.capitalize() for word in words] for words in (words.ADJECTIVES, words.NOUNS))
MOST = 3000
"""Invented documents that names suffice for, 300 thousand tokens of SmolLM2's."""


class DocumentTemplate(NamedTuple):
    """A kind of invented subject: its document, and the question that only this document answers."""

    title: str
    text: str
    question: str
    answer: str


TEMPLATES = (
    DocumentTemplate(
        "{town}",
        "{town} is a market town on the river {river}, a day's ride from {other_town}. It was founded in {year} by {person}, "
        "who had the first bridge built there, and grew rich by {craft}. A fair is held every {season}, and the old town "
        "hall, which burned down in {later}, has been a museum since it was rebuilt.",
        "Who founded {town}?",
        "{person}",
    ),
    DocumentTemplate(
        "{person}",
        "{person} was a master of {craft} and the author of a handbook on it that was in use for a century. Born in {town} "
        "in {year}, the child of a ferryman on the {river}, {person} learned the craft from {other_person} and later opened "
        "a workshop in {other_town}, which closed in {later}.",
        "In which town was {person} born?",
        "{town}",
    ),
    DocumentTemplate(
        "{ship} (ship)",
        "The {ship} was a three-masted ship, launched in {year} in the yards at the mouth of the {river}. She carried {cargo} "
        "between {town} and {other_town} every {season}. In {later} she ran aground in a fog under her captain, {person}; "
        "all hands were saved, and her bell hangs in the harbour chapel.",
        "Who was the captain of the {ship} when she ran aground?",
        "{person}",
    ),
    DocumentTemplate(
        "{book}",
        "{book} is a novel in three parts, first printed in {town} in {year}. It tells of a family that lives by {craft} on "
        "the {river}, over one {season}. The author, {person}, wrote it in a rented room in {other_town} and did not put a "
        "name on it; who had written it became known only in {later}.",
        "Who wrote the novel {book}?",
        "{person}",
    ),
)


def invent(draws: Random, distractors: int) -> DocumentQuestion:
    """A question about a place, person, ship or book that does not exist, its document, and documents on others of that
    kind and of the other kinds. No name occurs in two documents."""
    used: set[str] = set()
    kind, facts = _invented(draws, used, "")
    answer = kind.answer.format(**facts)
    others = (_invented(draws, used, answer) for _ in range(distractors))
    gold, *rest = (
        Document(kind.title.format(**facts), kind.text.format(**facts)) for kind, facts in [(kind, facts), *others]
    )
    return DocumentQuestion(kind.question.format(**facts), (answer,), gold, tuple(rest))


def _invented(draws: Random, used: set[str], without: str) -> tuple[DocumentTemplate, dict[str, str]]:
    """A template and its facts; the names are new, and none has the answer `without` in it."""

    def name(*parts: Sequence[str]) -> str:
        while True:
            new = "".join(map(draws.choice, parts))
            if new not in used and not (without and without.lower() in new.lower()):
                used.add(new)
                return new

    town, surname = (STARTS, MIDDLES, TOWN_ENDS), (STARTS, MIDDLES, SURNAME_ENDS)
    year = draws.randint(1190, 1780)
    facts = {
        "town": name(*town),
        "other_town": name(*town),
        "river": name(STARTS, MIDDLES, RIVER_ENDS),
        "person": name(FIRST_NAMES, (" ",), *surname),
        "other_person": name(FIRST_NAMES, (" ",), *surname),
        "ship": name(ADJECTIVES, (" ",), NOUNS),
        "book": name(("The ",), NOUNS, (" of ",), *town),
        "craft": draws.choice(CRAFTS),
        "cargo": draws.choice(CARGOES),
        "season": draws.choice(SEASONS),
        "year": str(year),
        "later": str(year + draws.randint(40, 110)),
    }
    return draws.choice(TEMPLATES), facts
