"""The engine against a naive loop: token by token for what is forced, transformers' generate for what is generated."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import pytest
import torch

import posenc
from lab.evals.conftest import VOCABULARY
from posenc.errors import InputError
from posenc.lab.evals.reader import BLOCKS, Reader
from posenc.pretrained.inference import CachedBatch, steady_length
from posenc.tasks import Sample, Task
from references.small_models import small_model


@dataclass(frozen=True)
class Toy(Task):
    """Random tokens, of which the last few are the answer; the texts of two depths differ from the depth on."""

    name: ClassVar[str] = "toy"
    new_tokens: ClassVar[int] = 6

    answer: int = 4
    running: bool = False

    def sample(self, tokenizer, length, *, depth=0.5, seed=0, index=0):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        ids = torch.randint(3, VOCABULARY, (length - 2 - index,), generator=generator)  # none as long as another
        at = int(depth * (len(ids) - self.answer - 3))
        ids[at : at + 3] = torch.tensor([5, 6, 7])
        first = len(ids) - self.answer
        return Sample(ids, first, "" if self.running else "prompt", needle=(at, at + 3))

    def score(self, generated, sample):
        return len(generated) / (len(generated) + 1)


@pytest.fixture
def samples(tokenizer):
    return [Toy().sample(tokenizer, 60, depth=d, index=i) for d in (0.0, 0.5, 1.0) for i in range(3)]


@torch.no_grad()
def naive(model, tokenizer, ids, first, new_tokens):
    """Losses and hits of the tokens from `first` on, each from a separate call, and the greedy answer."""
    losses, hits = [], []
    for at in range(first, len(ids)):
        logits = model(ids[None, :at], use_cache=False).logits[0, -1].float()
        losses.append(float(torch.nn.functional.cross_entropy(logits, ids[at])))
        hits.append(int(logits.argmax()) == int(ids[at]))
    prompt = ids[None, :first]
    generated = model.generate(
        prompt, max_new_tokens=new_tokens, do_sample=False, attention_mask=torch.ones_like(prompt)
    )
    return losses, hits, tokenizer.decode(generated[0, first:], skip_special_tokens=True)


def check(outcomes, samples, model, tokenizer, new_tokens=6):
    for outcome, sample in zip(outcomes, samples, strict=True):
        losses, hits, generated = naive(model, tokenizer, sample.ids, sample.prompt_tokens, new_tokens)
        assert outcome.loss == pytest.approx(sum(losses) / len(losses), rel=1e-4)
        assert outcome.accuracy == pytest.approx(sum(hits) / len(hits))
        assert outcome.exact == all(hits)
        assert outcome.generated == generated
        assert outcome.score == Toy().score(generated, sample)
        assert outcome.tokens == len(sample.ids)
        assert outcome.needle == sample.needle[0] + 1


MODELS = ["llama", "mistral with a window", "gemma3_text"]


def made(name):
    if name == "mistral with a window":
        return small_model("mistral", vocab_size=VOCABULARY, sliding_window=24)
    return small_model(name, vocab_size=VOCABULARY)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_outcomes_are_those_of_a_naive_loop(name, batch_size, tokenizer, samples):
    model = made(name)
    model.train()  # dropout, where there is any, stays out of it
    found = Reader(model, tokenizer, batch_size=batch_size, chunk=16).read(Toy(), samples, 60)
    assert model.training
    check(found, samples, model.eval(), tokenizer)


@pytest.mark.parametrize("method", ["none", "ntk", "rerope:window=16", "self_extend:window=16+log_n", "softmax_n"])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_extended_models_are_read_as_they_read(method, batch_size, llama, tokenizer, samples):
    posenc.extend(llama, method, target_length=128)
    found = Reader(llama, tokenizer, batch_size=batch_size, chunk=16).read(Toy(), samples, 60)
    check(found, samples, llama, tokenizer)


def greedy(model, ids, first, count):
    """The text with its own greedy continuation as the answer."""
    prompt = ids[None, :first]
    mask = torch.ones_like(prompt)
    generated = model.generate(prompt, max_new_tokens=count, min_new_tokens=count, do_sample=False, attention_mask=mask)
    return generated[0]


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("right", [0, 2, 4])
def test_an_answer_that_is_partly_right_is_gone_on_from(right, batch_size, llama, tokenizer, samples):
    """The greedy answer is the same, however many of its first tokens the forced answer has right."""
    texts = []
    for sample in samples[:4]:
        ids = greedy(llama, sample.ids, sample.prompt_tokens, 4)
        if right < 4:
            ids[sample.prompt_tokens + right] = (ids[sample.prompt_tokens + right] + 1) % VOCABULARY
        texts.append(replace(sample, ids=ids))
    found = Reader(llama, tokenizer, batch_size=batch_size).read(Toy(), texts, 60)
    check(found, texts, llama, tokenizer)
    assert [outcome.exact for outcome in found] == [int(right == 4)] * 4


def test_the_end_of_a_text_ends_the_answer(llama, tokenizer, samples):
    prompt = samples[0].ids[: samples[0].prompt_tokens]
    second = int(greedy(llama, samples[0].ids, len(prompt), 2)[-1])
    llama.generation_config.eos_token_id = [2, second]
    (found,) = Reader(llama, tokenizer).read(Toy(), samples[:1], 60)
    assert found.generated == naive(llama, tokenizer, samples[0].ids, len(prompt), 6)[2].removesuffix(
        tokenizer.decode([second])
    )


def test_beginnings_in_common_are_read_once(llama, tokenizer, samples):
    reader, apart = Reader(llama, tokenizer, generate=False), Reader(llama, tokenizer, generate=False)
    together = reader.read(Toy(), samples, 60)
    alone = [apart.read(Toy(), [sample], 60)[0] for sample in samples]
    for one, other in zip(together, alone, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert (one.exact, one.accuracy) == (other.exact, other.accuracy)
    assert apart.fed == sum(len(sample.ids) - 1 for sample in samples)
    saved = 0
    for index in range(3):  # of three depths the second and the third begin as the one before, up to the first's needle
        texts = sorted(sample.ids[: sample.prompt_tokens].tolist() for sample in samples[index::3])
        for before, after in pairwise(texts):
            saved += next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
    assert reader.fed <= apart.fed - saved < apart.fed


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 32, "factor": 2.0,
}  # fmt: skip


def phi3(**changes):
    return small_model(
        "phi3", vocab_size=VOCABULARY, rope_parameters=LONGROPE | changes, original_max_position_embeddings=32
    )


@pytest.mark.parametrize("batch_size", [1, 4])
def test_frequencies_that_follow_the_length_are_those_of_the_full_text(batch_size, tokenizer, samples):
    assert steady_length(phi3()) == 32
    reader = Reader(phi3(), tokenizer, chunk=16, batch_size=batch_size)
    check(reader.read(Toy(), samples, 60), samples, phi3(), tokenizer)


def test_what_was_read_is_taken_over_only_where_it_means_the_same():
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model = small_model("llama", vocab_size=VOCABULARY, rope_parameters=dynamic)
    assert steady_length(model) == 64
    assert steady_length(small_model("llama")) == float("inf")
    assert steady_length(phi3(short_factor=[4.0] * 8)) == float("inf")
    posenc.extend(model, "yarn", factor=4)  # has fixed frequencies
    assert steady_length(model) == float("inf")


def test_no_cache_but_a_plain_one_is_cut():
    texts = [torch.arange(3, 40).tolist()]
    assert CachedBatch(small_model("llama"), texts).rewinds
    assert not CachedBatch(small_model("gemma3_text"), texts).rewinds


@pytest.mark.parametrize("batch_size", [1, 4])
def test_truncation_is_the_end_of_the_text(llama, tokenizer, samples, batch_size):
    found = Reader(llama, tokenizer, batch_size=batch_size).read(Toy(), samples, 60, window=24)
    cut = [replace(s, ids=s.ids[-22:], prompt_tokens=18, needle=None) for s in samples]  # 18 tokens, 6 may follow
    alone = Reader(llama, tokenizer).read(Toy(), cut, 60)
    for one, other in zip(found, alone, strict=True):
        assert (one.generated, one.exact, one.tokens) == (other.generated, other.exact, 22)
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        assert one.needle is not None
    short = Reader(llama, tokenizer).read(Toy(), samples, 60, window=200)
    check(short, samples, llama, tokenizer)


def test_running_text_is_reported_by_position(llama, tokenizer):
    task = Toy(answer=60, running=True)
    (sample,) = [task.sample(tokenizer, 67)]
    (found,) = Reader(llama, tokenizer, generate=False, chunk=7).read(task, [sample], 64)
    losses, hits, _ = naive(llama, tokenizer, sample.ids, 5, 1)
    assert found.loss == pytest.approx(sum(losses) / 60, rel=1e-4)
    assert found.accuracy == pytest.approx(sum(hits) / 60)
    assert found.generated is found.score is None
    blocks = {b: [loss for at, loss in enumerate(losses, 5) if min(at // 4, BLOCKS - 1) == b] for b in range(BLOCKS)}
    for block, loss in enumerate(found.blocks):
        assert (loss is None) == (not blocks[block])
        if loss is not None:
            assert loss == pytest.approx(sum(blocks[block]) / len(blocks[block]), rel=1e-4)
    assert found.blocks[0] is None


@pytest.mark.parametrize(("of_task", "stride", "window", "used"), [(16, 5, None, (16, 5)), (None, None, 20, (20, None)),
                                                               (16, 5, 40, (16, 5)), (40, 5, 20, (20, None))])  # fmt: skip
def test_windows_are_those_of_loss_by_position(of_task, stride, window, used, llama, tokenizer):
    task = Toy(answer=50, running=True)
    sample = replace(task.sample(tokenizer, 61), window=of_task, stride=stride)
    (found,) = Reader(llama, tokenizer, generate=False).read(task, [sample], 60, window=window)
    losses = posenc.pretrained.loss_by_position(llama, sample.ids, window=used[0], stride=used[1])[9:]
    assert found.loss == pytest.approx(float(losses.mean()), rel=1e-4)


def test_losses_that_are_no_numbers_are_refused(llama, tokenizer, samples):
    with torch.no_grad():
        llama.model.norm.weight.fill_(float("nan"))
    with pytest.raises(InputError, match=r"toy: the model's loss on a text of \d+ tokens is not a number"):
        Reader(llama, tokenizer).read(Toy(), samples, 60)


def test_tokens_of_another_model_are_refused(tokenizer, samples):
    with pytest.raises(InputError, match=r"beyond the model's vocabulary of 97"):
        Reader(small_model("llama"), tokenizer).read(Toy(), samples, 60)
