"""Gemma 3 270M, a model of two bases whose layers mostly have a window: diagnosed, extended, and written for other programs."""

import pytest
import torch
import transformers

import posenc
from posenc.lab.evals.config import EXTENSIONS
from posenc.pretrained import loss_by_position
from posenc.pretrained.doctor import doctor
from references import llama_cpp, smollm2

GLOBAL = [5, 11, 17]

pytestmark = pytest.mark.slow  # the file takes 25 s to unpack


@pytest.fixture(scope="module")
def ids(gemma):
    """700 tokens: more than the window."""
    return gemma[1](f"{smollm2.TEXT} " * 12, return_tensors="pt").input_ids[:, :700]


@torch.no_grad()
def logits(model, ids):
    return model(ids, logits_to_keep=3).logits[0]


def test_it_is_read_as_published(gemma, ids):
    """The weights are quantised by another program; the text is widely known, and chance is 12 nats a token."""
    model, tokenizer = gemma
    assert ids[0, 0] == tokenizer.bos_token_id
    assert loss_by_position(model, ids[:, :64])[:, 1:].mean() == pytest.approx(1.0, abs=0.1)
    assert (model.config.max_position_embeddings, model.config.sliding_window) == (32768, 512)
    tables = model.config.rope_parameters
    assert {kind: table["rope_theta"] for kind, table in tables.items()} == {
        "sliding_attention": 1e4,
        "full_attention": 1e6,
    }
    assert [layer for layer, kind in enumerate(model.config.layer_types) if kind == "full_attention"] == GLOBAL


def test_doctor_finds_nothing(gemma):
    assert doctor(*gemma).findings == ()


@pytest.mark.parametrize("method", EXTENSIONS)
def test_every_method_acts_on_the_layers_without_a_window_alone(gemma, method):
    model, _ = gemma
    local = model.model.rotary_emb.sliding_attention_inv_freq.clone()
    try:
        report = posenc.extend(model, method, target_length=40960)
        assert report.layers == (len(GLOBAL), 18)
        assert "layers with a sliding window: 15, as before" in str(report)
        assert torch.equal(model.model.rotary_emb.sliding_attention_inv_freq, local)
    finally:
        posenc.restore(model)


def test_written_it_computes_the_same_in_plain_transformers_and_llama_cpp(gemma, ids, tmp_path):
    model, tokenizer = gemma
    before = logits(model, ids)
    posenc.extend(model, "yarn", factor=4)
    try:
        expected = logits(model, ids)
        assert (expected - before).abs().max() > 1  # so that an unextended file would be noticed
        posenc.to_hf(model, tmp_path / "folder", tokenizer)
        posenc.to_gguf(model, tmp_path / "yarn.gguf", tokenizer)
    finally:
        posenc.restore(model)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype="float32").eval()
    assert torch.allclose(logits(plain, ids), expected, atol=1e-3)
    (found,) = llama_cpp.log_probabilities({tmp_path / "yarn.gguf": [ids[0].tolist()]}, tokens=1024)[
        tmp_path / "yarn.gguf"
    ]
    log_probabilities = expected[-1].double().log_softmax(-1)
    assert max(abs(float(log_probabilities[token]) - value) for token, value in found.items()) < 0.01  # float16 weights
