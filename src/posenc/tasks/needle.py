# SPDX-License-Identifier: Apache-2.0
"""A needle in a haystack."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

from posenc.errors import InputError
from posenc.tasks import running_text
from posenc.tasks.task import Sample, Task, check_request, fit, make_sample

PROMPT = (
    "You are a helpful AI bot that answers questions for a user. Keep your response short and direct\n\n"
    "Human: <context>\n{context}\n</context>\n\n"
    "{question} Don't give information outside the document or repeat your findings\n\n"
    "Assistant: Here is the most relevant sentence in the context:"
)
NEEDLE = "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."
QUESTION = "What is the best thing to do in San Francisco?"
KEYWORDS = "eat a sandwich,sit in Dolores Park,sunny day"

CITIES = (
    "Aleppo", "Antwerp", "Bergen", "Bilbao", "Cardiff", "Cusco", "Dakar", "Dresden", "Galway", "Ghent", "Hanoi", "Izmir",
    "Lagos", "Leipzig", "Lima", "Montevideo", "Nagoya", "Oaxaca", "Porto", "Quito", "Riga", "Salta", "Sofia", "Tbilisi",
    "Turin", "Utrecht", "Vilnius", "Winnipeg", "Yerevan", "Zagreb",
)  # fmt: skip
DOINGS = (
    "feed the ducks", "fly a kite", "hire a rowing boat", "listen to the organ", "look for fossils", "paint the ferries",
    "pick wild plums", "play chess with a stranger", "read the gravestones", "ride the night tram", "sketch the bridges",
    "watch the glassblowers",
)  # fmt: skip
PLACES = (
    "behind the old brewery", "below the aqueduct", "beside the tannery", "by the lighthouse", "in the botanical garden",
    "near the covered market", "on the castle hill", "on the northern quay", "opposite the observatory",
    "outside the fish hall", "under the railway arches", "within the city walls",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Needle(Task):
    """A sentence that does not belong into the running text around it, and the question that it answers.

    After Kamradt 2023 (gkamradt/LLMTest_NeedleInAHaystack): the needle, on a separate line, follows the last sentence
    that ends at or before the depth; the prompt is that of needlehaystack/providers/Anthropic_prompt.txt, which asks for
    the sentence. There the text is essays and the judge GPT-4; here each sample hides the needle in another stretch of
    `source`, and the score is the share of the keywords in the answer, ignoring case.

    drawn: a city and what is best to do there are drawn at random, so that only the text has the answer; false: the published
    sentence about San Francisco, which models may know. needle, question, keywords (separated by commas): others than these.
    begun: the prompt goes on with the needle as far as its first keyword, so that the likelihood is that of what is asked
    for; false: the prompt as published. closed_book: the same prompts without the needle, at any depth: what is guessed.
    source: "pydoc" (the language reference in Python's standard library), or a text file.
    """

    name: ClassVar[str] = "needle"
    new_tokens: ClassVar[int] = 64

    needle: str = NEEDLE
    question: str = QUESTION
    keywords: str = KEYWORDS
    drawn: bool = True
    begun: bool = True
    closed_book: bool = False
    source: str = "pydoc"

    def __post_init__(self) -> None:
        super().__post_init__()
        lacking = [word for word in _split(self.keywords) if word.lower() not in self.needle.lower()]
        if lacking or not _split(self.keywords):
            raise InputError(
                f"give words of the needle {self.needle!r}, separated by commas",
                f"{lacking[0]!r} is not in it" if lacking else "",
                keywords=self.keywords,
            )

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        check_request(length, depth, seed, index)
        draws = self.draws(seed, index, length)
        sentences = running_text.sentences(running_text.read(self.source))
        start = draws.randrange(len(sentences))
        needle, question, keywords = self.needle.strip(), self.question, _split(self.keywords)
        if self.drawn and (self.needle, self.question, self.keywords) == (NEEDLE, QUESTION, KEYWORDS):
            city, doing, at = (draws.choice(names) for names in (CITIES, DOINGS, PLACES))
            question = f"What is the best thing to do in {city}?"
            needle, keywords = f"The best thing to do in {city} is {doing} {at}.", (doing, at)

        begin = min(needle.lower().index(word.lower()) for word in keywords) if self.begun else 0
        begun = f" {needle}"[: begin + 1].rstrip()
        answer = f" {needle}"[len(begun) :]

        def build(count: int, depth: float) -> Sample:
            chosen = [sentences[(start + i) % len(sentences)] for i in range(count)]
            text = " ".join(chosen)
            ends = list(accumulate((len(sentence) + 1 for sentence in chosen), initial=-1))[1:]
            before = bisect_right(ends, depth * len(text))  # sentences that end at or before the depth
            cut = ends[before - 1] if before else 0
            if self.closed_book:
                return make_sample(tokenizer, PROMPT.format(context=text, question=question) + begun, answer, keywords)
            prompt = PROMPT.format(context=f"{text[:cut]}\n{needle}\n{text[cut:]}", question=question)
            first = PROMPT.index("{context}") + cut + 1
            return make_sample(tokenizer, prompt + begun, answer, keywords, (first, first + len(needle)))

        return fit(self, length, build, depth=depth)

    def score(self, generated: str, sample: Sample) -> float:
        return sum(word.lower() in generated.lower() for word in sample.references) / len(sample.references)


def _split(keywords: str) -> tuple[str, ...]:
    return tuple(word for part in keywords.split(",") if (word := part.strip()))
