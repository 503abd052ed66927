"""Facts in plain sentences."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc.tasks import Sample, create
from posenc.tasks.passkey import NOISE
from posenc.tasks.task import index_at
from references.tokenizers import ByteTokenizer


@given(st.floats(0, 1), st.integers(200, 4000), st.integers(0, 99), st.booleans())
def test_the_text(depth, length, index, query_aware):
    task = create(f"facts:query_aware={query_aware}")
    sample = task.sample(ByteTokenizer(), length, depth=depth, index=index)
    facts = re.findall(r"The code of ([a-z ]+) is (\d{4})\.(?= The|\n)", sample.prompt)
    assert len(facts) >= 2
    assert len({name for name, _ in facts}) == len({code for _, code in facts}) == len(facts)
    name, code = facts[index_at(depth, len(facts))]
    assert (sample.references, sample.answer) == ((code,), f" {code}")
    question = f"Question: What is the code of {name}?"
    assert sample.prompt.endswith(f".\n{question} Answer: The code of {name} is")
    assert sample.prompt.startswith(f"{question}\nThe code of " if query_aware else "The code of ")
    assert sample.prompt.count(question) == 1 + query_aware


@pytest.mark.parametrize(("items", "length", "index"), [(2, 600, 0), (5, 1500, 1), (6, 4000, 99)])
def test_in_noise_every_question_is_of_the_same_text(items, length, index):
    task, tokenizer = create(f"facts:items={items}:noise=true"), ByteTokenizer()
    depths = [i / (items - 1) for i in range(items)]
    samples = [task.sample(tokenizer, length, depth=depth, index=index) for depth in depths]
    (text,) = {sample.prompt[: sample.prompt.rindex("\n")] for sample in samples}
    facts = re.findall(r"The code of ([a-z ]+) is (\d{4})\.", text)
    assert [sample.references for sample in samples] == [(code,) for _, code in facts]
    assert [re.search(r"of ([a-z ]+)\? Answer", sample.prompt).group(1) for sample in samples] == [
        name for name, _ in facts
    ]
    assert re.fullmatch(r"The code of .*The code of [a-z ]+ is \d{4}\.", text)
    noise = [part.count(NOISE) for part in re.split(r"The code of [a-z ]+ is \d{4}\.", text)[1:-1]]
    assert max(noise) - min(noise) <= 1
    longest = max(sample.prompt_tokens + task.new_tokens for sample in samples)
    assert length - 2 * len(NOISE) < longest <= length
    for sample, (_, code) in zip(samples, facts, strict=True):
        assert tokenizer.decode(sample.ids[slice(*sample.needle)]) == code


@pytest.mark.parametrize(
    ("generated", "score"),
    [(" 4821.", 1), ("4821", 1), (" is 4821, not 1", 1), (" 48210", 0), (" 482", 0), ("", 0), (" 1 4821", 0)],
)
def test_the_first_number_counts(generated, score):
    assert create("facts").score(generated, Sample(torch.tensor([0]), 1, references=("4821",))) == score
