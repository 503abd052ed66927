"""The pass key's prompt and score, against what is published: eval/passkey.py of jquesnelle/yarn."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc.tasks import Sample, create
from references.tokenizers import ByteTokenizer

PUBLISHED = [
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you about "
    "the important information there.",
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
    "The pass key is {key}. Remember it. {key} is the pass key.",
    "What is the pass key? The pass key is",
]


@given(st.floats(0, 1), st.integers(500, 6000), st.integers(0, 9), st.integers(0, 99))
def test_the_prompt_is_the_published_one(depth, length, seed, index):
    """Theirs is of a number of characters of noise before the key and after it; ours is one of those."""
    task, noise, line, question = PUBLISHED
    sample = create("passkey").sample(ByteTokenizer(), length, depth=depth, seed=seed, index=index)
    _, before, _, after, _ = sample.prompt.split("\n")
    endless = " ".join([noise] * 100)
    (key,) = sample.references
    assert 1 <= int(key) <= 50_000
    assert before == endless[: len(before)]
    assert after == endless[: len(after)]
    assert sample.prompt == "\n".join((task, before, line.format(key=key), after, question))
    passages = before.count("again.") + after.count("again.")
    assert before.count("again.") == round(depth * passages)
    assert sample.answer == f" {key}"


@pytest.mark.parametrize(
    ("generated", "score"),
    [
        (" 4821", 1), (" 4821.", 1), ("4821 5", 1), (" **4821**", 1), (" 04821", 1), (" 48210", 0), (" 482 1", 0), ("", 0),
        (" none", 0), (" 1, 4821", 0),
    ],
)  # fmt: skip
def test_the_first_number_counts(generated, score):
    sample = Sample(torch.tensor([0]), 1, references=("4821",))
    assert create("passkey").score(generated, sample) == score
