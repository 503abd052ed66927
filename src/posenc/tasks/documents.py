# SPDX-License-Identifier: Apache-2.0
"""Questions with the documents that answer them, or do not: read from a file, or invented."""

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from posenc.errors import InputError
from posenc.tasks import words


@dataclass(frozen=True)
class Document:
    """One search result."""

    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """A question, its right answers, the document that holds one, and others that do not, the likeliest first."""

    text: str
    answers: tuple[str, ...]
    gold: Document
    distractors: tuple[Document, ...]


def read(file: str) -> tuple[Question, ...]:
    """The questions of a file in the format of Lost in the Middle (nelson-liu/lost-in-the-middle, qa_data): a JSON object
    a line, gzipped if the name ends in .gz, with "question", "answers" (texts) and "ctxs", the documents in order: each
    with "title", "text", and "isgold" or "hasanswer". Documents that hold the answer beside the gold one are left out.

    Raises:
        InputError: no such file, or a line that is not so; names it.
    """
    path = Path(file)
    try:
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except UnicodeDecodeError:
        raise InputError(f"file={file}: not text in UTF-8; give JSON lines, or a name that ends in .gz") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"file={file}: {reason}; give a readable file of JSON lines, .jsonl or .jsonl.gz") from None


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> tuple[Question, ...]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        found = tuple(_question(line, f"file={path}, line {n}") for n, line in enumerate(lines, 1) if line.strip())
    if not found:
        raise InputError(f"file={path}: no questions in it; give a JSON object a line")
    return found


def _question(line: str, where: str) -> Question:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error}); each line is one object") from None
    text = _member(entry, "question", str, where)
    answers = _member(entry, "answers", list, where)
    if not all(isinstance(answer, str) and answer for answer in answers):
        raise InputError(f"{where}: answers={answers!r}; give a list of texts that are not empty")
    gold: list[Document] = []
    others: list[Document] = []
    for number, context in enumerate(_member(entry, "ctxs", list, where), 1):
        at = f"{where}, document {number}"
        document = Document(*(_member(context, key, str, at) for key in ("title", "text")))
        if context.get("isgold", context.get("hasanswer")):
            gold.append(document)
        elif not context.get("hasanswer"):
            others.append(document)
    if not gold:
        raise InputError(
            f'{where}: none of its documents has "isgold": true, or "hasanswer": true where no "isgold" is'
        )
    return Question(text, tuple(answers), gold[0], tuple(others))


def _member(entry: Any, key: str, kind: type, where: str) -> Any:
    """An object's value under a key, of a kind and not empty."""
    if not isinstance(entry, dict):
        raise InputError(f"{where}: {str(entry)[:40]!r} is not a JSON object; give one with {key!r}")
    if key not in entry:
        raise InputError(f"{where}: no {key!r}; there are {', '.join(map(repr, entry)) or 'no keys at all'}")
    if not isinstance(entry[key], kind) or not entry[key]:
        raise InputError(
            f"{where}: {key}={str(entry[key])[:40]!r}; give a {'text' if kind is str else 'list'} that is not empty"
        )
    return entry[key]


STARTS = (
    "Al", "Bar", "Bel", "Bran", "Cal", "Car", "Dal", "Del", "Dor", "Dun", "Eb", "El", "Fal", "Far", "Gal", "Gor", "Hal",
    "Har", "Il", "Kel", "Kir", "Lan", "Lor", "Mal", "Mar", "Mel", "Mor", "Nor", "Ol", "Or", "Pel", "Per", "Quil", "Ral",
    "Ros", "Sal", "Sel", "Tal", "Tor", "Ul", "Val", "Ver", "Wal", "Wil", "Yar", "Zel",
)  # fmt: skip
MIDDLES = (
    "a", "an", "ba", "da", "den", "di", "en", "go", "in", "ka", "li", "ma", "mo", "na", "o", "ri", "so", "ti", "ven",
)  # fmt: skip
TOWN_ENDS = (
    "beck",
    "bridge",
    "combe",
    "dale",
    "fell",
    "ford",
    "gate",
    "holt",
    "mere",
    "mouth",
    "stead",
    "thorpe",
    "wick",
)
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
MOST = 3000
"""Documents on invented things that names suffice for, 300 thousand tokens of SmolLM2's."""


@dataclass(frozen=True)
class Kind:
    """A kind of invented thing: its document, and the question that only this document answers."""

    title: str
    text: str
    question: str
    answer: str


KINDS = (
    Kind(
        "{town}",
        "{town} is a market town on the river {river}, a day's ride from {other_town}. It was founded in {year} by {person}, "
        "who had the first bridge built there, and grew rich by {craft}. A fair is held every {season}, and the old town "
        "hall, which burned down in {later}, has been a museum since it was rebuilt.",
        "Who founded {town}?",
        "{person}",
    ),
    Kind(
        "{person}",
        "{person} was a master of {craft} and the author of a handbook on it that was in use for a century. Born in {town} "
        "in {year}, the child of a ferryman on the {river}, {person} learned the craft from {other_person} and later opened "
        "a workshop in {other_town}, which closed in {later}.",
        "In which town was {person} born?",
        "{town}",
    ),
    Kind(
        "{ship} (ship)",
        "The {ship} was a three-masted ship, launched in {year} in the yards at the mouth of the {river}. She carried {cargo} "
        "between {town} and {other_town} every {season}. In {later} she ran aground in a fog under her captain, {person}; "
        "all hands were saved, and her bell hangs in the harbour chapel.",
        "Who was the captain of the {ship} when she ran aground?",
        "{person}",
    ),
    Kind(
        "{book}",
        "{book} is a novel in three parts, first printed in {town} in {year}. It tells of a family that lives by {craft} on "
        "the {river}, over one {season}. The author, {person}, wrote it in a rented room in {other_town} and did not put a "
        "name on it; who had written it became known only in {later}.",
        "Who wrote the novel {book}?",
        "{person}",
    ),
)


def invent(draws: Random, distractors: int) -> Question:
    """A question about a place, person, ship or book that does not exist, its document, and documents on others of that
    kind and of the other kinds. No name stands in two documents."""
    used: set[str] = set()
    kind, facts = _invented(draws, used, "")
    answer = kind.answer.format(**facts)
    others = (_invented(draws, used, answer) for _ in range(distractors))
    gold, *rest = (
        Document(kind.title.format(**facts), kind.text.format(**facts)) for kind, facts in [(kind, facts), *others]
    )
    return Question(kind.question.format(**facts), (answer,), gold, tuple(rest))


def _invented(draws: Random, used: set[str], without: str) -> tuple[Kind, dict[str, str]]:
    """A kind of thing and its facts; the names are new, and none has the answer `without` in it."""

    def name(*parts: Sequence[str]) -> str:
        found = "".join(map(draws.choice, parts))
        while found in used or (without and without.lower() in found.lower()):
            found = "".join(map(draws.choice, parts))
        used.add(found)
        return found

    town, surname = (STARTS, MIDDLES, TOWN_ENDS), (STARTS, MIDDLES, SURNAME_ENDS)
    year = draws.randint(1190, 1780)
    facts = {
        "town": name(*town),
        "other_town": name(*town),
        "river": name(STARTS, MIDDLES, RIVER_ENDS),
        "person": name(FIRST_NAMES, (" ",), *surname),
        "other_person": name(FIRST_NAMES, (" ",), *surname),
        "ship": name(
            [word.capitalize() for word in words.ADJECTIVES], (" ",), [word.capitalize() for word in words.NOUNS]
        ),
        "book": name(("The ",), [word.capitalize() for word in words.NOUNS], (" of ",), *town),
        "craft": draws.choice(CRAFTS),
        "cargo": draws.choice(CARGOES),
        "season": draws.choice(SEASONS),
        "year": str(year),
        "later": str(year + draws.randint(40, 110)),
    }
    return draws.choice(KINDS), facts
