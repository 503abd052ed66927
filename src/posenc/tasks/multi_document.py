# SPDX-License-Identifier: Apache-2.0
"""Question answering over many documents, as in Lost in the Middle, read from a file or invented."""

import gzip
import re
import string
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

from posenc.errors import InputError, check_word
from posenc.tasks import words
from posenc.tasks.task import Sample, Task, check_depth, fit, index_at, make_sample

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
"""Complete words; an accent by itself belongs to one, as in the package `regex`, which the authors use."""


@dataclass(frozen=True)
class Document:
    """One search result. isgold, hasanswer: as published, whether it is the right one, and whether the answer is in it."""

    title: str
    text: str
    isgold: bool | None = None
    hasanswer: bool | None = None


@dataclass(frozen=True)
class DocumentQuestion:
    """A question, its right answers, the document that has one, and others that do not, the most relevant first."""

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

    file: questions with their documents, as published there, see `read_questions`, a sample each; none: documents about
    invented places, people, ships and books, so that no model knows the answer. documents: how many, there 10, 20 or 30;
    none: as many as fit. query_aware: the question is before the documents too. ordering: "relevance" (as in the
    file), or "random": the others are shuffled, and the prompt mentions it. closed_book: no documents, at any depth.
    """

    name: ClassVar[str] = "multi_document"
    new_tokens: ClassVar[int] = 100

    file: str | None = None
    documents: int | None = None
    query_aware: bool = False
    ordering: str = "relevance"
    closed_book: bool = False

    def __post_init__(self) -> None:
        check_word("ordering", self.ordering, ("relevance", "random"))
        if self.documents is not None and not 1 <= self.documents <= MOST:
            raise InputError(f"give 1 to {MOST}, or none for as many as fit", documents=self.documents)
        if self.query_aware + (self.ordering == "random") + self.closed_book > 1:
            raise InputError(
                "they have no common prompt: give one of them", query_aware=True, ordering="random", closed_book=True
            )

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        check_depth(depth)
        template = QUERY_AWARE if self.query_aware else RANDOM_ORDER if self.ordering == "random" else PROMPT
        published = None if self.file is None else self._from_file(self.file, seed, index)

        def build(count: int, depth: float) -> Sample:
            question = published or invent(self.draws(seed, index, length), max(count - 1, 0))
            answers = question.answers
            if self.closed_book:
                return make_sample(tokenizer, CLOSED_BOOK.format(question=question.text), f" {answers[0]}", answers)
            results = list(question.distractors[: count - 1])
            if self.ordering == "random":
                Random(f"order {seed} {index} {length}").shuffle(results)
            at = index_at(depth, count)
            results.insert(at, question.gold)
            written = [f"Document [{i}](Title: {each.title}) {each.text}" for i, each in enumerate(results, 1)]
            prompt = template.format(question=question.text, documents="\n".join(written))
            first = prompt.index(written[at])
            needle = _answer_in(written[at], answers)
            return make_sample(tokenizer, prompt, f" {answers[0]}", answers, (first + needle[0], first + needle[1]))

        if self.closed_book:
            return fit(self, length, build, most=0)
        most = self.documents or (MOST if published is None else len(published.distractors) + 1)
        return fit(self, length, build, self.documents or min(2, most), most, depth)

    def score(self, generated: str, sample: Sample) -> float:
        return best_subspan_em(generated.split("\n")[0].strip(), sample.references)

    def _from_file(self, file: str, seed: int, index: int) -> DocumentQuestion:
        """The seed's question of that index: a seed is an order."""
        questions = read_questions(file)
        if index >= len(questions):
            raise InputError(
                f"has {len(questions)} questions, no sample {index + 1}", "ask for fewer samples", file=file
            )
        question = Random(f"{self.name} {seed}").sample(questions, len(questions))[index]
        have = len(question.distractors) + 1
        if self.documents is not None and self.documents > have:
            raise InputError(
                f"the question {question.text!r} in {file} has {have}, those with the answer counted once",
                f"give {have} or fewer",
                documents=self.documents,
            )
        return question


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and spaces that are not needed (SQuAD's evaluation script)."""
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(ARTICLE.sub(" ", text).split())


def best_subspan_em(answer: str, references: Iterable[str]) -> float:
    """1 if the answer contains one of the references, both normalised, else 0."""
    return float(any(normalise(reference) in normalise(answer) for reference in references))


def _answer_in(document: str, answers: Iterable[str]) -> tuple[int, int]:
    """The characters of a document that are the first answer it contains as written; else all of it."""
    start = document.index("Title: ") + 7  # a number may be the answer, but not that of the document
    for answer in answers:
        if match := re.compile(re.escape(answer), re.IGNORECASE).search(document, start):
            return match.span()
    return 0, len(document)


# -------------------------------------------------------------------- questions from a file


def read_questions(file: str) -> tuple[DocumentQuestion, ...]:
    """The questions of a file in the format of Lost in the Middle (nelson-liu/lost-in-the-middle, qa_data): a JSON object
    a line, gzipped if the name ends in .gz, with "question", "answers" (texts) and "ctxs", the documents in order: each
    with "title", "text", and "isgold" or "hasanswer". Documents that have the answer beside the gold one are left out.

    Raises:
        InputError: no such file, or a line in another format; names it.
    """
    path = Path(file)
    try:
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(reason, "give JSON lines in UTF-8, .jsonl or .jsonl.gz", file=file) from None


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> tuple[DocumentQuestion, ...]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        questions = tuple(_question(line, f"file={path}, line {n}") for n, line in enumerate(lines, 1) if line.strip())
    if not questions:
        raise InputError("no questions in it", "give a JSON object a line", file=path)
    return questions


@dataclass
class _Line:
    question: str
    answers: list[str]
    ctxs: list[Document]


def _question(line: str, where: str) -> DocumentQuestion:
    import msgspec

    try:
        entry = msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError as error:
        raise InputError(
            f'{where}: {error}; give a JSON object with "question", "answers" and "ctxs", a list of objects with "title" and '
            '"text"'
        ) from None
    gold = [each for each in entry.ctxs if (each.hasanswer if each.isgold is None else each.isgold)]
    others = [each for each in entry.ctxs if each not in gold and not each.hasanswer]
    texts = [entry.question, *entry.answers, *(text for each in gold + others for text in (each.title, each.text))]
    if not gold or not entry.answers or not all(texts):
        raise InputError(
            f'{where}: must have answers, a document with "isgold": true (or "hasanswer": true), and no empty text'
        )
    return DocumentQuestion(entry.question, tuple(entry.answers), gold[0], tuple(others))


# -------------------------------------------------------------------- invented questions

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
