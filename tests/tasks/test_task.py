"""What holds for every task that asks for something in a text, with any tokenizer."""

from dataclasses import dataclass, fields
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc.errors import InputError
from posenc.tasks import TASKS, Task, create
from posenc.tasks.task import fit, index_at, make_sample
from references.tokenizers import TOKENIZERS, ByteTokenizer, PairTokenizer, SpacedTokenizer

OPTIONS = [
    "needle:drawn=false:begun=false",
    "key_value:keys=digits:values=words:query_aware=true",
    "key_value:pairs=7:keys=words:values=digits",
    "facts:items=10:query_aware=true",
    "multi_document:documents=3",
    "multi_document:query_aware=true",
]
ASKING = [name for name, task in TASKS.items() if task.takes_depth and task.new_tokens]
RETRIEVAL = ASKING + OPTIONS
"""Tasks that ask for an answer at a depth."""
KIN = {name: cls() for name, cls in TOKENIZERS.items()}


@settings(max_examples=60)
@given(
    st.sampled_from(RETRIEVAL), st.sampled_from(sorted(KIN)), st.floats(0, 1), st.integers(2000, 5000),
    st.integers(0, 5), st.integers(0, 50),
)  # fmt: skip
def test_a_sample_fits_and_shows_what_it_asks_for(text, tokenizer, depth, length, seed, index):
    task, tokenizer = create(text), KIN[tokenizer]
    sample = task.sample(tokenizer, length, depth=depth, seed=seed, index=index)
    answer = len(sample.ids) - sample.prompt_tokens
    assert sample.prompt_tokens + max(answer, task.new_tokens) <= length
    first, end = sample.needle
    assert 0 <= first < end <= sample.prompt_tokens
    shown = tokenizer.decode(sample.ids[first:end])
    assert all(reference in shown for reference in sample.references)
    assert tokenizer.decode(sample.ids).strip() == (sample.prompt + sample.answer).strip()
    assert tokenizer.decode(sample.ids[sample.prompt_tokens :]).strip() in (sample.prompt + sample.answer)
    assert task.score(sample.answer, sample) == 1


@pytest.mark.parametrize("text", RETRIEVAL)
def test_depths_share_their_material_and_move_the_needle(text, tokenizer):
    task = create(text)
    samples = [task.sample(tokenizer, 3000, depth=depth, seed=1, index=2) for depth in (0, 0.25, 0.5, 0.81, 1)]
    assert len({sample.answer for sample in samples}) == 1
    if not text.startswith("multi_document"):  # there the documents are numbered anew
        assert len({"".join(sorted("".join(sample.prompt.split()))) for sample in samples}) == 1
    positions = [sample.needle[0] for sample in samples]
    assert positions == sorted(positions)
    assert positions[-1] - positions[0] > 0.3 * samples[0].prompt_tokens


@pytest.mark.parametrize("text", RETRIEVAL)
def test_equal_arguments_give_equal_texts_and_others_others(text):
    task, tokenizer = create(text), ByteTokenizer()
    prompts = [task.sample(tokenizer, 3000, seed=seed, index=index).prompt for seed in (0, 1) for index in (0, 1)]
    assert len(set(prompts)) == 4
    assert create(text).sample(ByteTokenizer(), 3000, seed=1, index=0).prompt == prompts[2]


DRAWN = [text for text in OPTIONS if "drawn=false" not in text]  # whose answer is a published one


@pytest.mark.parametrize("text", [name for name, task in TASKS.items() if task.new_tokens] + DRAWN)
def test_every_length_has_its_own_prompt(text, tokenizer):
    """A curve over lengths is not that of a few prompts."""
    answers = {
        length: [create(text).sample(tokenizer, length, index=i).answer for i in range(2)] for length in (3000, 3400)
    }
    assert answers[3000] != answers[3400]


@pytest.mark.parametrize("text", RETRIEVAL)
def test_a_text_is_as_long_as_fits(text, tokenizer):
    task = create(text)
    if "=3" in text or "=7" in text or "=10" in text:
        return  # of a fixed size
    sample = task.sample(tokenizer, 4000)
    taken = sample.prompt_tokens + max(len(sample.ids) - sample.prompt_tokens, task.new_tokens)
    assert 4000 * 0.85 < taken <= 4000


@pytest.mark.parametrize("text", RETRIEVAL)
def test_what_does_not_fit_or_is_no_depth_is_refused(text):
    with pytest.raises(InputError, match=r"length=40: .* needs about \d+ tokens with this tokenizer"):
        create(text).sample(ByteTokenizer(), 40)
    with pytest.raises(InputError, match=r"depth=1\.5: must be at most 1"):
        create(text).sample(ByteTokenizer(), 3000, depth=1.5)


REFUSED = {
    "own.py:Task": "unknown task 'own.py': known are",
    "passkeys": "unknown task 'passkeys': did you mean 'passkey'",
    "facts:item=3": "unknown option of facts 'item=3': did you mean 'items'",
    "facts:items=three": "items='three': pass an integer or None",
    "facts:noise=true": "noise=True: give items",
    "facts:items=4:noise=true:query_aware=true": "noise=True: give items",
    "facts:items=1": "items=1: give 2 to 9000, or none for as many as fit",
    "facts:items=9001": "items=9001: give 2 to 9000, or none for as many as fit",
    "key_value:keys=uuids": "unknown keys 'uuids': did you mean 'uuid'",
    "key_value:values=word": "unknown values 'word'",
    "key_value:pairs=1": "pairs=1: give 2 or more, or none for as many as fit",
    "copying:segment=1": "segment=1: must be at least 2",
    "copying:distance=15": "distance=15: cannot be shorter than the segment",
    "copying:kind=letters": "kind",
    "copying:distance=985": "length=1000: .* needs at least 1002 tokens",
    "key_value:keys=words:values=digits:pairs=9001": "pairs=9001: give 2 to 9000, or none for as many as fit",
    "key_value:pairs=75": r"length=1000: key_value:pairs=75 needs about \d{4} tokens",
    "multi_document:closed_book=true:query_aware=true": "query_aware=True, closed_book=True: they have no common prompt",
    "multi_document:documents=0": "documents=0: give 1 to 3000, or none for as many as fit",
    "needle:keywords=tea,sandwich": "keywords='tea,sandwich': give words of the needle .* 'tea' is not in it",
    "needle:keywords=,": "keywords=',': give words of the needle",
    "needle:source=gone": "source=.*gone': No such file",
    "passkey:name=x": "unknown option of passkey 'name=x'",
    "passkey:new_tokens=3": "unknown option of passkey 'new_tokens=3'",  # of the class, not of the task
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_text_that_is_no_task_is_refused(text):
    with pytest.raises(InputError, match=REFUSED[text]):
        create(text).sample(ByteTokenizer(), 1000)


def test_a_task_is_made_from_its_text():
    assert {cls.name for cls in TASKS.values()} == set(TASKS)
    for text in RETRIEVAL:
        assert create(create(text).text) == create(text)
    assert create("needle:source=1984").source == "1984"  # a file's name stays a name
    assert create("perplexity:source=1984").source == "1984"
    spaced = create("needle : source=my text.txt :drawn=false ")  # space around a value is no part of it
    assert spaced.source == "my text.txt"
    assert create(spaced.text) == spaced
    assert create("multi_document:documents=none").documents is None


@pytest.mark.parametrize(
    ("task", "option"), [(task, each.name) for task in TASKS.values() for each in fields(task)], ids=str
)
@pytest.mark.parametrize("value", [["sunny day"], 2.5, "no"], ids=str)
def test_python_refuses_an_option_of_another_type_as_a_text_does(task, option, value):
    if isinstance(value, str) and isinstance(getattr(task(), option), str):
        value = 3  # a file may be called no
    with pytest.raises(InputError) as error:
        task(**{option: value})
    assert error.value.argument == option or f"unknown {option}" in str(error.value)


@pytest.mark.parametrize("tokenizer", KIN.values(), ids=KIN)
def test_an_answer_follows_its_prompt_as_in_one_text(tokenizer):
    sample = make_sample(tokenizer, "What? It is", " 42", ("42",), (6, 8))
    together = tokenizer("What? It is 42").input_ids
    assert sample.ids.tolist() == [token for token in together if token != tokenizer.eos_token_id]
    assert " 42" in tokenizer.decode(sample.ids[sample.prompt_tokens :])
    assert "It" in tokenizer.decode(sample.ids[slice(*sample.needle)])


def test_tokens_are_found_where_a_boundary_cuts_one():
    sample = make_sample(PairTokenizer(), "abcdefg", "hi", (), (3, 5))  # ab cd ef gh i
    assert sample.needle == (1, 3)
    assert sample.prompt_tokens == 3
    assert len(sample.ids) == 5  # the end that follows every text is not asked for
    assert make_sample(PairTokenizer(), "abcdefg", "hi", (), (2, 4)).needle == (1, 2)
    sample = make_sample(SpacedTokenizer(), "abcdefg", "hi", (), (3, 5))
    assert sample.needle == (5, 7)  # a start and a space before them
    assert sample.prompt_tokens == 9


@pytest.mark.parametrize(
    ("count", "published"),
    [(10, [0, 4, 9]), (20, [0, 4, 9, 14, 19]), (30, [0, 4, 9, 14, 19, 24, 29]), (140, [0, 34, 69, 104, 139])],
)
def test_places_are_those_of_lost_in_the_middle(count, published):
    """The gold indices in nelson-liu/lost-in-the-middle, EXPERIMENTS.md and the names of its files."""
    assert [index_at(i / (len(published) - 1), count) for i in range(len(published))] == published


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_place_that_is_meant_is_not_missed_by_rounding(index, rest):
    count = index + rest + 1
    assert index_at(index / (count - 1), count) == index


@dataclass(frozen=True)
class Counting(Task):
    """A text of so many numbers, each as long as `width` says."""

    name: ClassVar[str] = "counting"

    def sample(self, tokenizer, length, *, depth=0.5, seed=0, index=0):
        raise NotImplementedError


@given(st.lists(st.integers(1, 40), min_size=1, max_size=100), st.integers(20, 1000), st.integers(0, 5))
def test_fit_finds_the_longest_text(widths, length, least):
    def build(count, _=0.5):
        return make_sample(ByteTokenizer(), "".join(widths[i % len(widths)] * "x" for i in range(count)), "", ())

    def tokens(count):
        return len(build(count).ids)

    if tokens(least) > length:
        with pytest.raises(InputError, match=rf"needs about {tokens(least)} tokens"):
            fit(Counting(), length, build, least)
        return
    longest = len(fit(Counting(), length, build, least).ids)
    count = next(n for n in range(least, 4000) if tokens(n + 1) > length)
    assert longest == tokens(count)
    assert len(fit(Counting(), length, build, least, least + 1).ids) == min(longest, tokens(least + 1))


def test_tasks_without_generation_have_no_score():
    with pytest.raises(NotImplementedError, match=r"counting generates nothing"):
        Counting().score("", None)
