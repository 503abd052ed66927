"""The needle in a haystack, against what is published: gkamradt/LLMTest_NeedleInAHaystack."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc.tasks import Sample, create, running_text
from posenc.tasks.needle import Needle
from references.tokenizers import ByteTokenizer

PUBLISHED = {
    "needle": "\nThe best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.\n",
    "question": "What is the best thing to do in San Francisco?",
    "prompt": (
        "You are a helpful AI bot that answers questions for a user. Keep your response short and direct\n\nHuman: <context>"
        "\n{context}\n</context>\n\n{retrieval_question} Don't give information outside the document or repeat your findings"
        "\n\nAssistant: Here is the most relevant sentence in the context:"
    ),
}
"""run.py (CommandArgs) and providers/Anthropic_prompt.txt."""


def inserted(text: str, needle: str, depth: float) -> str:
    """Where the published tester puts a needle, for tokens of one character each: at the depth, or, going back, after the
    first full stop; at the very end for a depth of 1."""
    at = int(len(text) * depth)
    while depth < 1 and at and text[at - 1] != ".":
        at -= 1
    return text[:at] + needle + text[at:]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    path = tmp_path_factory.mktemp("needle") / "story.txt"
    path.write_text(" ".join(f"On day {day} it rained on the {day % 7} hills and nobody came." for day in range(40)))
    return str(path)


@given(st.floats(0, 1), st.integers(800, 6000), st.integers(0, 20), st.booleans())
def test_the_prompt_is_the_published_one(story, depth, length, index, begun):
    task = create(f"needle:source={story}:begun={begun}:drawn=false")
    sample = task.sample(ByteTokenizer(), length, depth=depth, index=index)
    head, tail = PUBLISHED["prompt"].format(context="|", retrieval_question=PUBLISHED["question"]).split("|")
    begin = " The best thing to do in San Francisco is" if begun else ""
    assert sample.prompt.startswith(head)
    assert sample.prompt.endswith(tail + begin)
    context = sample.prompt[len(head) : -len(tail + begin)]
    assert context.count(PUBLISHED["needle"]) == 1
    text = context.replace(PUBLISHED["needle"], "")
    assert context == inserted(text, PUBLISHED["needle"], depth)
    assert begin + sample.answer == " " + PUBLISHED["needle"].strip()
    sentences = running_text.sentences(running_text.read(story))
    assert text in " ".join(sentences * 4)  # a stretch, which goes on at the beginning


def test_drawn_facts_differ_and_are_asked_for():
    task = create("needle")
    samples = [task.sample(ByteTokenizer(), 1000, index=index) for index in range(30)]
    assert len({sample.answer for sample in samples}) > 20
    for sample in samples:
        doing, at = sample.references
        begin = sample.prompt.rsplit(": ", 1)[1]
        city = begin.removeprefix("The best thing to do in ").removesuffix(" is")
        assert sample.answer == f" {doing} {at}."
        assert f"\nThe best thing to do in {city} is {doing} {at}.\n" in sample.prompt
        assert f"\n\nWhat is the best thing to do in {city}? Don't give" in sample.prompt


@pytest.mark.parametrize("drawn", [True, False])
def test_a_closed_book_asks_the_same_without_the_needle(drawn):
    for index in range(5):
        opened, closed = (
            create(f"needle:drawn={drawn}:closed_book={book}").sample(ByteTokenizer(), 2000, index=index)
            for book in (False, True)
        )
        assert (closed.answer, closed.references) == (opened.answer, opened.references)
        assert closed.prompt.rpartition("</context>")[2] == opened.prompt.rpartition("</context>")[2]
        assert closed.needle is None
        assert not any(reference in closed.prompt for reference in closed.references)


def test_a_needle_of_the_user():
    task = create("needle:needle=The gate opens at 7 in Ulm.:question=When does the gate open?:keywords=7")
    sample = task.sample(ByteTokenizer(), 800)
    assert "\nThe gate opens at 7 in Ulm.\n" in sample.prompt
    assert "When does the gate open? Don't give" in sample.prompt
    assert sample.prompt.endswith(": The gate opens at")
    assert sample.answer == " 7 in Ulm."
    assert task.keywords == "7"  # not the number


@pytest.mark.parametrize(
    ("generated", "score"),
    [
        (" Eat a sandwich and sit in Dolores Park on a SUNNY DAY.", 1), ("Sit in Dolores Park, eat a sandwich", 2 / 3),
        ("on a sunny day", 1 / 3), ("sandwich", 0), ("", 0),
    ],
)  # fmt: skip
def test_the_score_is_the_share_of_keywords(generated, score):
    sample = Sample(torch.tensor([0]), 1, references=("eat a sandwich", "sit in Dolores Park", "sunny day"))
    task = create("needle:drawn=false")
    assert task.score(generated, sample) == pytest.approx(score)
    assert task.sample(ByteTokenizer(), 800).references == sample.references


def test_a_keyword_inside_a_word_breaks_nothing():
    sample = Needle(needle="Eat a sandwich.", keywords="wich").sample(ByteTokenizer(), 2000)
    assert (sample.prompt + sample.answer).endswith("the context: Eat a sandwich.")
    assert sample.answer == "wich."
