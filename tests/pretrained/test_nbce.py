"""NBCE against the authors' algorithm written as loops, and what must hold of it whatever the model says."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import posenc
from posenc.errors import InputError
from posenc.pretrained import nbce_generate
from posenc.pretrained.nbce import TEMPLATE, combine
from references import nbce
from references.small_models import small_model

CONTEXTS = ["w3 w4 w5 w6 w7 w8", "w20", "w40 w41 w42", "w60 w61 w62 w63 w64 w65 w66 w67 w68"]
QUESTION = "w9 w10"


def random_rows(rows=4, words=30, seed=0, spread=3.0):
    noise = torch.randn(rows, words, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (spread * noise).log_softmax(-1)


@pytest.mark.parametrize("top_p", [0.5, 0.95, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.25, 3.0, -1.0])
@pytest.mark.parametrize("previous", [None, 0, 2])
def test_one_step_is_the_authors(top_p, beta, previous):
    for seed in range(20):
        rows = random_rows(seed=seed)
        merged, chosen, _ = combine(rows, beta=beta, eta=0.4, top_p=top_p, previous=previous)
        scores, followed = nbce.merge(rows.tolist(), beta, 0.4, top_p, previous)
        assert chosen == followed
        torch.testing.assert_close(merged, torch.tensor(scores, dtype=torch.float64).log_softmax(-1))


@given(seed=st.integers(0, 10_000), beta=st.floats(0, 4), top_p=st.sampled_from([0.3, 0.95, 1.0]))
@settings(max_examples=50, deadline=None)
def test_contexts_have_no_order_and_a_copy_says_nothing_new(seed, beta, top_p):
    rows = random_rows(seed=seed)
    options = {"beta": beta, "top_p": top_p}
    merged, chosen, entropies = combine(rows, **options)
    order = [2, 0, 1]
    permuted, now, _ = combine(rows[[0, *(1 + k for k in order)]], **options)
    torch.testing.assert_close(permuted, merged)
    torch.testing.assert_close(combine(torch.cat([rows, rows[1:]]), **options)[0], merged)
    assert merged.exp().sum() == pytest.approx(1)
    assert len(entropies) == 3
    assert order[now] == chosen
    assert entropies.argmin() == chosen


def test_the_ends_of_beta():
    rows = random_rows(2, seed=3)
    torch.testing.assert_close(combine(rows, beta=-1, top_p=1)[0], rows[0])
    torch.testing.assert_close(combine(rows, beta=0, top_p=1)[0], rows[1])


def test_a_sure_context_is_followed_unless_another_was_and_is_nearly_as_sure():
    rows = torch.stack([random_rows(1, seed=1)[0], random_rows(1, seed=2, spread=0.1)[0], random_rows(1, spread=9)[0]])
    _, chosen, (unsure, sure) = combine(rows)
    assert chosen == 1
    assert sure < unsure - 1
    assert combine(rows, previous=0)[1] == 1
    assert combine(rows, previous=0, eta=float(unsure - sure) * 1.01)[1] == 0


OPTIONS = [{}, {"beta": 1.0, "eta": 0.0}, {"top_p": 1.0, "eta": 0.5}]
METHODS = [None, "yarn", "self_extend:window=4:group=5"]


@pytest.mark.parametrize(
    ("options", "method", "batch_size"),
    [(OPTIONS[i], METHODS[j], (None, 1, 2)[(i + j) % 3]) for i in range(3) for j in range(3)],  # every pair
)
def test_it_generates_what_the_authors_script_generates(llama, tokenizer, options, batch_size, method):
    """Prompts of unequal lengths, alone and unpadded, give what a left-padded batch with caches gives; also where the
    model was extended by a map of absolute positions."""
    if method:
        posenc.extend(llama, method, factor=4)
    prompts = [tokenizer(TEMPLATE.format(context=context, question=QUESTION)).input_ids for context in ("", *CONTEXTS)]
    assert len({len(prompt) for prompt in prompts}) > 3
    reference = {"beta": 0.25, "eta": 0.1, "top_p": 0.95} | options
    tokens, followed = nbce.generate(llama, prompts, 16, ends={2}, **reference)
    answer = nbce_generate(llama, tokenizer, CONTEXTS, QUESTION, max_new_tokens=16, batch_size=batch_size, **options)
    assert answer.tokens == tokens
    assert answer.contexts == followed
    assert answer.text == tokenizer.decode(tokens, skip_special_tokens=True)


def test_it_ends_with_the_text(llama, tokenizer):
    answer = nbce_generate(llama, tokenizer, CONTEXTS, QUESTION, max_new_tokens=12)
    end = next(token for token in answer.tokens[1:] if token != answer.tokens[0])
    at = answer.tokens.index(end)
    for ends in (end, [5, end]):
        llama.generation_config.eos_token_id = ends
        assert nbce_generate(llama, tokenizer, CONTEXTS, QUESTION).tokens == answer.tokens[:at]
    llama.generation_config.eos_token_id = None
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    assert nbce_generate(llama, tokenizer, CONTEXTS, QUESTION).tokens == answer.tokens[:at]


def test_it_leaves_the_model_and_random_numbers_as_they_were(llama, tokenizer):
    before = torch.get_rng_state()
    llama.train()
    answer = nbce_generate(llama, tokenizer, CONTEXTS, QUESTION, max_new_tokens=5)
    assert llama.training
    assert torch.equal(torch.get_rng_state(), before)
    assert [len(each) for each in answer.entropies] == [len(CONTEXTS)] * 5


def test_a_context_longer_than_the_model_is_warned_of(llama, tokenizer):
    with pytest.warns(UserWarning, match=r"posenc: .* takes 84 tokens, more than max_position_embeddings=64"):
        nbce_generate(llama, tokenizer, ["w3", "w4 " * 80], QUESTION, max_new_tokens=1)
    posenc.extend(llama, "rerope:window=16")
    nbce_generate(llama, tokenizer, ["w4 " * 80], QUESTION, max_new_tokens=1)


def test_a_prompt_with_its_own_first_token_gets_no_second(llama, tokenizer):
    tokenizer.chat_template = "<s> {% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}w1"

    def chat(context, question):
        messages = [{"role": "user", "content": f"{context}\n\n{question}" if context else question}]
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    seen = []
    llama.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True)
    nbce_generate(llama, tokenizer, ["w3"], "w9", template=chat, max_new_tokens=1)
    words = [tokenizer.convert_ids_to_tokens(row) for row in seen[0].tolist()]
    assert words[1] == ["<s>", "<unk>", "w3", "w9", "w1"]
    assert words[0][1:] == ["<s>", "<unk>", "w9", "w1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contexts": []}, r"contexts=\[\]"),
        ({"contexts": "one text"}, r"contexts='one text'"),
        ({"top_p": 0.0}, r"top_p=0.0"),
        ({"template": lambda context, question: ""}, r"has no tokens"),
        ({"template": "{question}"}, r"must have the fields \{context\} and \{question\}"),  # contexts unread
        ({"beta": math.nan}, r"beta=nan: pass a number"),
        ({"eta": math.inf}, r"eta=inf: pass a number"),
    ],
)
def test_mistakes_are_named(llama, tokenizer, changes, message):
    with pytest.raises(InputError, match=message):
        nbce_generate(llama, tokenizer, **({"contexts": CONTEXTS, "question": QUESTION} | changes))
    with pytest.raises(InputError, match=r"log_probs of shape \(1, 30\)"):
        combine(random_rows(1))
    for previous in (-1, 2, True):
        with pytest.raises(InputError, match=f"previous={previous}"):
            combine(random_rows(3), previous=previous)


def test_another_models_tokenizer_is_refused(tokenizer):
    with pytest.raises(InputError, match=r"is beyond the model's vocabulary of 5"):
        nbce_generate(small_model("llama", vocab_size=5), tokenizer, CONTEXTS, QUESTION)


GARBAGE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def test_smollm2_finds_with_nbce_what_truncation_loses(demo):
    """Eight contexts of 384 tokens, one of which holds a pass key; the last one alone is the truncated text."""
    model, tokenizer = demo
    question = "What is the pass key? The pass key is"
    key, place = 31415, 5
    sentences = [GARBAGE] * 15
    contexts = ["\n".join(sentences)] * 8
    assert 360 < len(tokenizer(contexts[0]).input_ids) < 390
    sentences[4] = f"The pass key is {key}. Remember it. {key} is the pass key."
    contexts[place] = "\n".join(sentences)
    options = {"template": "{context}\n{question}", "max_new_tokens": 6}
    answer = nbce_generate(model, tokenizer, contexts, question, **options)
    assert str(key) in answer.text
    assert answer.contexts[0] == place
    truncated = nbce_generate(model, tokenizer, contexts[-1:], question, beta=0, **options)
    assert str(key) not in truncated.text
