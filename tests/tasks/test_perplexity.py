"""Loss on running text: the protocols token by token, and which tokens they score."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc.errors import InputError
from posenc.pretrained import loss_by_position
from posenc.tasks import create
from posenc.tasks.perplexity import Perplexity
from references.running import word_file, word_tokenizer, yarn_loss, yarn_windows
from references.small_models import small_model

WORDS, COUNT = 94, 600


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return str(word_file(tmp_path_factory.mktemp("text") / "words.txt", WORDS, COUNT))


@pytest.fixture(scope="module")
def tokenizers():
    return {bos: word_tokenizer(WORDS, bos) for bos in (False, True)}


@pytest.fixture(scope="module")
def loss_of():
    """The loss of one token after a context, by a call of its own."""
    model = small_model("llama")

    def loss(context, token):
        with torch.no_grad():
            return -model(context[None]).logits[0, -1].log_softmax(-1)[token].item()

    loss.model = model
    return loss


def losses(loss_of, sample):
    """What the engine hands to `Task.loss`."""
    actual = loss_by_position(loss_of.model, sample.ids, window=sample.window, stride=sample.stride)
    return actual[sample.prompt_tokens :]


@pytest.mark.parametrize(
    ("window", "stride", "tokens"), [(24, 8, 72), (24, 8, 79), (20, 7, 41), (9, 8, None), (24, 8, 24)]
)
def test_sliding_windows_and_both_weightings_are_those_of_the_yarn_script(
    loss_of, tokenizers, source, window, stride, tokens
):
    options = {"source": source, "protocol": "sliding", "stride": stride, "tokens": tokens}
    sample = Perplexity(**options).sample(tokenizers[False], window)
    assert 0 <= (tokens or 4 * window) - len(sample.ids) < stride
    assert all(end - begin == window for begin, _, end in yarn_windows(len(sample.ids), window, stride))
    actual = losses(loss_of, sample)
    by_windows = Perplexity(**options, weighting="windows").loss(actual, sample)
    assert by_windows == pytest.approx(yarn_loss(loss_of, sample.ids, window, stride), abs=1e-4)
    windows = yarn_windows(len(sample.ids), window, stride)
    alone = [
        loss_of(sample.ids[begin:at], sample.ids[at]) for begin, new, end in windows for at in range(max(new, 1), end)
    ]
    assert Perplexity(**options).loss(actual, sample) == pytest.approx(sum(alone) / len(alone), abs=1e-4)


def test_where_texts_begin_with_a_token_only_the_scripts_first_window_is_the_same(loss_of, tokenizers, source):
    task, window, stride = create(f"perplexity:protocol=sliding:stride=8:tokens=40:source={source}"), 24, 8
    sample = task.sample(tokenizers[True], window)
    start, text = sample.ids[:1], sample.ids[1:]
    assert start.item() == tokenizers[True].bos_token_id
    assert len(sample.ids) == 40
    actual = losses(loss_of, sample)
    scripts = yarn_windows(len(text), window - 1, stride)  # which leaves room for its <s>
    assert [end for _, _, end in scripts] == [23, 31, 39]
    for begin, new, end in scripts:
        for at in range(new, end):
            script = loss_of(torch.cat((start, text[begin:at])), text[at])
            ours = loss_of(sample.ids[begin : at + 1], text[at])  # one more token of the text in place of <s>
            assert actual[at].item() == pytest.approx(ours, abs=1e-4)
            assert (actual[at].item() == pytest.approx(script, abs=1e-4)) == (begin == 0)


@pytest.mark.parametrize("bos", [False, True])
def test_a_full_text_scores_every_token_that_something_precedes(loss_of, tokenizers, source, bos):
    task = create(f"perplexity:source={source}")
    sample = task.sample(tokenizers[bos], 30, index=2)
    assert len(sample.ids) == 30
    assert sample.prompt_tokens == 1
    alone = [loss_of(sample.ids[:at], sample.ids[at]) for at in range(1, 30)]
    actual = losses(loss_of, sample)
    torch.testing.assert_close(actual, torch.tensor(alone), rtol=1e-4, atol=1e-4)
    assert create(f"perplexity:weighting=windows:source={source}").loss(actual, sample) == task.loss(actual, sample)


@given(
    lengths=st.lists(st.integers(17, 300), min_size=2, max_size=4), seed=st.integers(0, 5), index=st.integers(0, 40),
    bos=st.booleans(),
)  # fmt: skip
def test_the_last_tokens_are_the_same_at_every_length(tokenizers, source, lengths, seed, index, bos):
    task = create(f"perplexity:protocol=last:last=16:source={source}")
    actual = [task.sample(tokenizers[bos], length, seed=seed, index=index) for length in sorted(lengths)]
    longest = actual[-1].ids
    for length, sample in zip(sorted(lengths), actual, strict=True):
        assert (len(sample.ids), len(sample.ids) - sample.prompt_tokens) == (length, 16)
        assert torch.equal(sample.ids[bos:], longest[len(longest) - length + bos :])


@given(length=st.integers(2, 300), seed=st.integers(0, 5))
def test_passages_are_pieces_of_the_text_that_do_not_overlap(tokenizers, source, length, seed):
    everything = tokenizers[False](Path(source).read_text(), verbose=False).input_ids
    fit = COUNT // length
    actual = [Perplexity(source=source).sample(tokenizers[False], length, seed=seed, index=i) for i in range(fit + 1)]
    begins = [
        next(at for at in range(COUNT) if everything[at : at + length] == sample.ids.tolist())
        for sample in actual
    ]  # fmt: skip
    starts = sorted(begins[:fit])
    if length > 5:  # two words may stand twice
        assert all(later - earlier == length for earlier, later in pairwise(starts))
    again = Perplexity(source=source).sample(tokenizers[False], length, seed=seed, index=fit)
    assert torch.equal(again.ids, actual[fit].ids)


@pytest.mark.parametrize(
    ("task", "length", "message"),
    [
        ("perplexity:protocol=ful", 16, r"protocol"),
        ("perplexity:weighting=none", 16, r"weighting|pass a word"),
        ("perplexity", 1, r"length=1: perplexity.* needs at least 2 tokens"),
        ("perplexity:protocol=sliding:stride=32", 32, r"length=32: .* needs at least 33 tokens"),
        ("perplexity:protocol=sliding:stride=8:tokens=20", 32, r"tokens=20: must be at least 32"),
        ("perplexity:protocol=last:last=16", 16, r"length=16: .* needs at least 17 tokens"),
        ("perplexity", 601, r"has 600 tokens with this tokenizer, fewer than the 601"),
        ("perplexity:protocol=last:last=16", 317, r"has 600 tokens .* need 602"),
        ("repeated:scored=all", 16, r"scored"),
        ("repeated:period=9", 17, r"length=17: repeated:.*period=9 needs at least 18 tokens"),
        ("repeated", 1, r"length=1: repeated.* needs at least 2 tokens"),
        ("repeated", 500, r"has 600 tokens .* need 750"),
    ],
)
def test_mistakes_are_named(tokenizers, source, task, length, message):
    with pytest.raises(InputError, match=message):
        create(f"{task}:source={source}").sample(tokenizers[False], length)
