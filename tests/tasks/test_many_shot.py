"""Many-shot learning: the shots have the rule, each class as often, and the question is not among them."""

import re

import pytest

from posenc.errors import InputError
from posenc.tasks import create
from references.tokenizers import ByteTokenizer

SHOT = r"The (.+) is near the (.+)\.\nlabel: (\d+)"


def shots(sample):
    *shown, question = sample.prompt.split("\n\n")
    return [re.fullmatch(SHOT, shot).groups() for shot in shown], re.fullmatch(SHOT, question + " 0").groups()[:2]


@pytest.mark.parametrize("text", ["many_shot", "many_shot:classes=2:nouns=3", "many_shot:classes=10"])
def test_the_shots_determine_the_answer(text):
    task = create(text)
    for index in range(20):
        sample = task.sample(ByteTokenizer(), 3000, index=index)
        shown, (one, other) = shots(sample)
        labels = {}
        for a, b, label in shown:
            assert labels.setdefault(a, label) == labels.setdefault(b, label) == label
            assert {a, b} != {one, other}
        seen = [label for *_, label in shown]
        assert len(set(seen)) == task.classes
        counts = [seen.count(label) for label in set(seen)]
        assert max(counts) - min(counts) <= 1
        assert {labels.get(one), labels.get(other)} == {sample.references[0]}
        assert sample.answer == f" {sample.references[0]}"
        assert 2800 < len(sample.ids) <= 3000


def test_labels_are_arbitrary():
    task = create("many_shot")
    answers = {task.sample(ByteTokenizer(), 1000, index=index).references[0] for index in range(30)}
    assert answers == {"0", "1", "2", "3"}
    assert create("many_shot").sample(ByteTokenizer(), 900, seed=1).prompt != task.sample(ByteTokenizer(), 900).prompt


def test_the_score():
    task = create("many_shot")
    sample = task.sample(ByteTokenizer(), 1000)
    right = sample.references[0]
    assert [task.score(text, sample) for text in (f" {right}\n", f"{right}{right}", "", " x")] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("many_shot:classes=1", "classes=1: give 2 to 50"),
        ("many_shot:nouns=2", "nouns=2: give 3 to"),
        ("many_shot:nouns=999", "nouns=999: give 3 to"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(InputError, match=message):
        create(text)
    with pytest.raises(InputError, match="needs about"):
        create("many_shot").sample(ByteTokenizer(), 100)
