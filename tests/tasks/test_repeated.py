"""Repeated and natural text: what is repeated, and that both score the same tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc.tasks import create
from references.copier import accuracy
from references.running import word_file, word_tokenizer

WORDS = 3000


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return str(word_file(tmp_path_factory.mktemp("text") / "words.txt", WORDS, 900))


@pytest.fixture(scope="module")
def tokenizers():
    return {bos: word_tokenizer(WORDS, bos) for bos in (False, True)}


@given(
    period=st.integers(1, 100), extra=st.integers(0, 200), seed=st.integers(0, 3), index=st.integers(0, 30),
    bos=st.booleans(),
)  # fmt: skip
def test_with_and_without_repetition_the_last_tokens_are_the_same(tokenizers, source, period, extra, seed, index, bos):
    length, samples = 2 * period + extra + bos, {}
    for repeats in ("true", "false"):
        task = create(f"repeated:source={source}:period={period}:repeats={repeats}:scored=last")
        samples[repeats] = task.sample(tokenizers[bos], length, seed=seed, index=index)
        assert len(samples[repeats].ids) == length
        assert len(samples[repeats].ids) - samples[repeats].prompt_tokens == period
    assert torch.equal(samples["true"].ids[-period:], samples["false"].ids[-period:])
    text = samples["true"].ids[bos:]
    assert torch.equal(text[period:], text[:-period])
    longer = create(f"repeated:source={source}:period={period}:scored=last")
    longer = longer.sample(tokenizers[bos], length + 7, seed=seed, index=index)
    assert torch.equal(longer.ids[-len(text) :], text), "a longer text has more before it"


@pytest.mark.parametrize("bos", [False, True])
def test_after_the_first_unit_everything_is_scored_and_has_stood_before(tokenizers, source, bos):
    sample = create(f"repeated:source={source}").sample(tokenizers[bos], 200)
    assert sample.prompt_tokens == 50 + bos
    assert torch.equal(sample.ids[sample.prompt_tokens :], sample.ids[sample.prompt_tokens - 50 : -50])
    natural = create(f"repeated:repeats=false:source={source}").sample(tokenizers[bos], 200)
    assert natural.prompt_tokens == sample.prompt_tokens
    assert torch.equal(natural.ids[-50:], sample.ids[-50:])


def test_who_looks_back_far_enough_copies(tokenizers, source):
    task = create(f"repeated:source={source}:period=40")
    sample = task.sample(tokenizers[False], 160)
    natural = create(f"repeated:source={source}:period=40:repeats=false").sample(tokenizers[False], 160)
    assert accuracy(sample, reach=40) > 0.95
    assert accuracy(sample, reach=39) < 0.05
    assert accuracy(natural, reach=160) < 0.05


@pytest.mark.parametrize("text", ["perplexity", "perplexity:protocol=last:last=37", "perplexity:protocol=sliding:stride=8", "repeated:scored=last", "repeated:scored=last:period=20"])  # fmt: skip
@pytest.mark.parametrize("bos", [False, True])
def test_documents_apart_score_no_token_twice_and_one_more_has_no_room(tokenizers, tmp_path, text, bos):
    words, length = 600, 64
    file = tmp_path / "words.txt"
    file.write_text(" ".join(f"w{word}" for word in range(words)), encoding="utf-8")
    task = create(f"{text}:source={file}" + (":repeats=false" if text.startswith("repeated") else ""))
    count = task.apart(tokenizers[bos], length)
    samples = [task.sample(tokenizers[bos], length, seed=1, index=index) for index in range(count + 1)]
    scored = [{*sample.ids[max(sample.prompt_tokens, bos) :].tolist()} for sample in samples[:count]]
    assert count > 1
    assert len(set.union(*scored)) == sum(map(len, scored))
    room = words if text in ("perplexity", "perplexity:protocol=sliding:stride=8") else words // 2
    assert count * len(scored[0]) <= room < (count + 1) * (len(scored[0]) + 8)


def test_texts_apart_are_counted_for_any_length(tokenizers, source):
    for text in ("perplexity", "perplexity:protocol=sliding", "perplexity:protocol=last", "repeated"):
        assert create(f"{text}:source={source}").apart(tokenizers[True], 0) > 0
    assert create(f"repeated:repeats=false:source={source}").apart(tokenizers[True], 300) == 1
