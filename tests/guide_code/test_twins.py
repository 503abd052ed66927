"""Two tokens of one word: one vector without positions, two with them, in random and in trained models."""

import pytest
import torch
import transformers
from guide_code.model import random_model
from guide_code.symmetry import ROUNDING

import posenc
from guide_code import trained_model, twins

OF_LONGER_TEXTS = ("step_temperature", "window", "chunks")
"""Encodings that change nothing in a text this short."""


@pytest.mark.parametrize("encoding", [name for name, cls in posenc.ENCODINGS.items() if not cls.causal_only])
def test_only_positions_tell_two_cans_apart(encoding):
    found = twins(encoding=encoding)
    assert (found.tokens, found.first, found.second) == (["can", "you", "open", "a", "can", "?"], 0, 4)
    assert found.word == "can"
    assert found.distance_without < ROUNDING
    assert found.cosine_without == pytest.approx(1)
    blind = encoding in OF_LONGER_TEXTS or not random_model(encoding).encoding.sees_order
    assert (found.distance < ROUNDING) is blind
    assert ("nothing in this text distinguishes them" in found.sentences()[1]) is blind


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
