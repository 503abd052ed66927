"""Copying: who looks back far enough is always right, guessing helps nobody, and every token is an ordinary one."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from posenc.errors import InputError
from posenc.tasks import create
from posenc.tasks.copying import ordinary_tokens
from references.copier import accuracy
from references.running import word_tokenizer

WORDS = 3000


@pytest.fixture(scope="module")
def tokenizers():
    return {bos: word_tokenizer(WORDS, bos) for bos in (False, True)}


@given(
    depth=st.floats(0, 1), segment=st.integers(2, 20), extra=st.integers(0, 150), seed=st.integers(0, 3),
    index=st.integers(0, 3), bos=st.booleans(),
)  # fmt: skip
def test_a_segment_stands_where_the_depth_says_and_at_the_end(tokenizers, depth, segment, extra, seed, index, bos):
    length, tokenizer = 2 * segment + extra + bos, tokenizers[bos]
    task = create(f"copying:segment={segment}")
    by_depth = {at: task.sample(tokenizer, length, depth=at, seed=seed, index=index) for at in (0.0, depth, 1.0)}
    assert by_depth[0.0].needle == (bos, bos + segment)
    assert by_depth[1.0].needle == (length - 2 * segment, length - segment)
    for sample in by_depth.values():
        first, end = sample.needle
        assert len(sample.ids) == length
        assert torch.equal(sample.ids[first:end], sample.ids[-segment:])
        assert torch.equal(sample.ids[-segment + 1 :], sample.ids[sample.prompt_tokens :])
        assert Counter(sample.ids.tolist()) == Counter(by_depth[0.0].ids.tolist()), "depth is a matter of order only"
        assert (sample.ids == sample.ids[-segment]).sum() == 2, "what announces the rest is nowhere else"


@given(distance=st.integers(16, 100), length=st.integers(116, 200))
def test_a_distance_is_the_same_at_every_length(tokenizers, distance, length):
    task = create(f"copying:distance={distance}")
    assert not task.takes_depth
    sample = task.sample(tokenizers[False], length)
    assert length - 16 - sample.needle[0] == distance


def test_a_copier_finds_what_is_within_its_reach(tokenizers):
    task, length, reach = create("copying"), 240, 100
    assert task.takes_depth
    for depth in (0, 0.25, 0.5, 0.6, 0.65, 0.75, 1):
        samples = [task.sample(tokenizers[False], length, depth=depth, index=index) for index in range(3)]
        near = length - 16 - samples[0].needle[0] <= reach
        mean = sum(accuracy(sample, reach) for sample in samples) / 3
        assert mean == 1 if near else mean < 0.05, depth


def test_guessing_does_not_help(tokenizers):
    task, hits, count = create("copying:segment=20"), 0, 0
    small = word_tokenizer(20)
    for index in range(200):
        sample = task.sample(small, 100, index=index)
        likeliest = Counter(sample.ids[: sample.prompt_tokens].tolist()).most_common(1)[0][0]
        answers = sample.ids[sample.prompt_tokens :].tolist()
        hits, count = hits + answers.count(likeliest), count + len(answers)
    # 80 tokens in the context, among them the 20 that are asked for: the most frequent of 19 words is a little likelier
    assert 1 / 19 < hits / count < 2.5 / 19


@pytest.mark.parametrize("tokenizer", ["SmolLM2"], indirect=True)
def test_tokens_of_a_real_tokenizer_are_ordinary_ones(tokenizer):
    for kind, least in (("tokens", 48000), ("words", 20000)):
        pool = ordinary_tokens(tokenizer, kind)
        assert least < len(pool) < 49152
        assert not set(pool) & {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        assert set(create(f"copying:kind={kind}").sample(tokenizer, 512).ids.tolist()) <= set(pool)
    assert all(tokenizer.decode([token]).strip().isalpha() for token in pool)


def test_placeholders_and_special_tokens_are_left_out():
    tokenizer = word_tokenizer(5)
    tokenizer.add_tokens(["extra"])
    assert ordinary_tokens(tokenizer, "tokens") == (3, 4, 5, 6, 7)
    tokens = {"<0x0A>": 0, "[unused7]": 1, "<unk>": 2, "a": 3, "b": 4}
    odd = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(tokens, "<unk>")), unk_token="<unk>")
    assert ordinary_tokens(odd, "tokens") == (3, 4)
    with pytest.raises(InputError, match="kind='words': the tokenizer has 0 such tokens"):
        create("copying:kind=words").sample(tokenizer, 64)
