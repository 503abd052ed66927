"""Two tokens of one word: one vector without positions, two with them, in random and in trained models."""

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import posenc
from posenc.analysis import equivariance, trained_model, twins
from posenc.analysis.model import random_model
from posenc.analysis.symmetry import ROUNDING
from posenc.errors import InputError
from posenc.lab.transformer import TransformerConfig
from references import minilm

SEES_NO_ORDER = {
    "none",
    "shape",
    "cape",
    "randomized",
    "pose",
    "softmax_n",
    "sink",
    "log_n",
    "temperature",
    "step_temperature",
    "prefix_kv",
    "window",  # the text is shorter
    "chunks",
}


@pytest.mark.parametrize("encoding", [name for name, cls in posenc.ENCODINGS.items() if not cls.causal_only])
def test_only_positions_tell_two_cans_apart(encoding):
    found = twins(encoding=encoding)
    assert (found.tokens, found.first, found.second) == (["can", "you", "open", "a", "can", "?"], 0, 4)
    assert found.word == "can"
    assert found.distance_without < ROUNDING
    assert found.cosine_without == pytest.approx(1)
    assert (found.distance < ROUNDING) is (encoding in SEES_NO_ORDER)
    assert ("nothing in this text distinguishes them" in found.sentences()[1]) is (encoding in SEES_NO_ORDER)


def test_the_same_twins_are_no_proof_of_blindness():
    """ALiBi cannot tell a text from its mirror image, and this text is its own."""
    found = twins("can a can", "alibi")
    assert found.distance < ROUNDING
    assert not equivariance("alibi").blind
    assert "nothing in this text distinguishes them" in found.sentences()[1]


def test_representations_are_the_models():
    model = random_model("sinusoidal")
    words = {word: number for number, word in enumerate(["can", "you", "open", "a", "?"])}
    read = ["can", "you", "open", "a", "can", "?"]
    tokens = torch.tensor([[words[word] for word in read]])
    model.head = torch.nn.Identity()
    with torch.no_grad():
        one, other = model(tokens)[0, [0, 4]]
    found = twins(model=model, tokenizer=lambda text: (read, tokens[0]))
    assert found.cosine == pytest.approx(float(one @ other / one.norm() / other.norm()))
    assert found.distance == pytest.approx(float((one - other).norm() / ((one.norm() + other.norm()) / 2)))


@given(st.lists(st.sampled_from(["tin", "can", "open", "a"]), min_size=1, max_size=6), st.integers(0, 99))
@settings(max_examples=15)
def test_any_text_with_a_word_twice(words, seed):
    text = " ".join(words) + ": " + words[0].upper() + "!"
    found = twins(text, "rope", word=words[0], seed=seed)
    assert found.tokens[found.first] == found.tokens[found.second] == words[0]
    assert found.distance_without < ROUNDING
    twice = [word for word in found.tokens if found.tokens.count(word) > 1]
    assert twins(text, seed=seed).word == twice[0]


def test_a_causal_mask_separates_them_without_positions():
    found = twins(encoding="none", causal=True)
    assert found.distance_without == found.distance > 0.1
    assert "by the causal mask" in found.sentences()[0]
    first = twins("can can", "none", causal=True)  # both see nothing but cans
    assert first.distance < ROUNDING


def test_the_trained_decoder_reads_bytes():
    model, _ = trained_model("rope", steps=2)
    found = twins(model=model)
    assert (found.word, found.first, found.second, len(found.tokens)) == ("can", 2, 17, 19)
    assert found.causal
    assert found.distance != found.distance_without
    accents = twins("Où? là où…", model=model)
    assert accents.word == "où"
    assert "Où? là où…".lower().encode()[: accents.second + 1].decode() == "où? là où"


def test_a_trained_model_is_the_callers_own_and_takes_no_random_numbers():
    before = torch.get_rng_state()
    one, text = trained_model("none", steps=1)
    assert torch.equal(torch.get_rng_state(), before)
    wanted = one.embedding.weight.detach().clone()
    torch.nn.init.zeros_(one.embedding.weight)
    again, same = trained_model("none", steps=1)
    assert torch.equal(again.embedding.weight, wanted)
    assert torch.equal(text, same)


def test_a_decoder_of_transformers():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.LlamaForCausalLM(config).eval()
    found = twins(model=model, tokenizer=lambda text: (text.split(), [3, 4, 5, 3]), text="can you open can")
    assert found.causal
    ids, ones = torch.tensor([[3, 4, 5, 3]]), torch.ones(1, 4, dtype=torch.long)
    with torch.no_grad():
        still = model.double().model(ids, position_ids=0 * ids, attention_mask=ones)[0][0]
        moving = model.model(ids)[0][0]
    for states, cosine in ((still, found.cosine_without), (moving, found.cosine)):
        assert cosine == pytest.approx(float(torch.cosine_similarity(states[0], states[3], dim=0)), abs=1e-6)


def test_minilm_with_its_table_and_without():
    model, tokenizer = minilm.load()
    found = twins(model=model, tokenizer=tokenizer)
    assert (found.word, found.tokens[found.first], found.first, found.second) == ("can", "can", 1, 5)
    assert found.distance_without < ROUNDING
    assert found.cosine < 0.9
    assert not found.causal
    with torch.no_grad():
        states = model(**tokenizer("can you open a can?", return_tensors="pt")).last_hidden_state[0, [1, 5]]
    assert found.cosine == pytest.approx(float(torch.cosine_similarity(*states, dim=0)), abs=1e-4)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("Open a can", {}, r"no token occurs twice"),
        ("Can you open a can?", {"word": "open"}, r"no token 'open' occurs twice"),
        ("Can you open a can?", {"word": "tin"}, r"no token 'tin' occurs"),
        ("  ", {}, r"has no words"),
        ("a a", {"encoding": "nope"}, r"unknown encoding"),
    ],
)
def test_bad_text(text, options, message):
    with pytest.raises(InputError, match=message):
        twins(text, **options)


def test_a_model_without_its_tokenizer():
    config = transformers.BertConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16)
    with pytest.raises(InputError, match=r"tokenizer=None: pass the one that the model was trained with"):
        twins(model=transformers.BertModel(config))
    words = random_model("none", config=TransformerConfig(9, dim=16, num_layers=1, num_heads=2))
    with pytest.raises(InputError, match=r"tokenizer=None"):
        twins(model=words)


def read_as_numbers(text):
    return text.split(), [3 + len(word) for word in text.split()]


def test_positions_that_are_not_in_codes_or_ids():
    shape = {"vocab_size": 20, "hidden_size": 32, "num_attention_heads": 4}
    bloom = transformers.BloomModel(transformers.BloomConfig(**shape, n_layer=1))
    with pytest.raises(InputError, match=r"no position ids change what BloomModel does"):
        twins("can you open can", model=bloom, tokenizer=read_as_numbers)
    # MPNet has a bias of the distance beside its table, which stays
    torch.manual_seed(0)
    config = transformers.MPNetConfig(**shape, intermediate_size=32, num_hidden_layers=1, initializer_range=0.5)
    found = twins("can you open can", model=transformers.MPNetModel(config), tokenizer=read_as_numbers)
    assert found.distance_without > ROUNDING
    assert "by something other than codes" in found.sentences()[0]


def test_the_callers_random_numbers_go_on():
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    twins(encoding="learned")
    assert torch.equal(torch.rand(2), wanted)
