"""Gemma 3 270M, a model of two bases whose layers mostly have a window: diagnosed, extended, and written for other programs."""

import pytest
import torch
import transformers

import posenc
from posenc.lab.evals.config import EXTENSIONS
from posenc.pretrained import loss_by_position
from posenc.pretrained.doctor import doctor
from posenc.pretrained.gguf_file import rewrite
from posenc.pretrained.packaged import packaged_file
from references import llama_cpp, smollm2

GLOBAL = [5, 11, 17]


@pytest.fixture(scope="module")
def ids(gemma):
    """700 tokens: more than the window."""
    return gemma[1](f"{smollm2.TEXT} " * 12, return_tensors="pt").input_ids[:, :700]


@torch.no_grad()
def logits(model, ids):
    return model(ids, logits_to_keep=3).logits[0]


@pytest.mark.slow
def test_it_is_read_as_published(gemma, ids):
    """The weights are quantised by another program; the text is widely known, and chance is 12 nats a token."""
    model, tokenizer = gemma
    assert ids[0, 0] == tokenizer.bos_token_id
    assert loss_by_position(model, ids[:, :64])[:, 1:].mean() == pytest.approx(1.16, abs=0.01)
    assert (model.config.max_position_embeddings, model.config.sliding_window) == (32768, 512)
    tables = model.config.rope_parameters
    assert {kind: table["rope_theta"] for kind, table in tables.items()} == {
        "sliding_attention": 1e4,
        "full_attention": 1e6,
    }
    assert [layer for layer, kind in enumerate(model.config.layer_types) if kind == "full_attention"] == GLOBAL


@pytest.mark.slow
def test_doctor_finds_nothing(gemma):
    assert doctor(*gemma).findings == ()


@pytest.fixture(scope="module")
def small():
    """Its layers' windows, bases and length, and no more than 32 channels between the layers."""
    bases = {"sliding_attention": 1e4, "full_attention": 1e6}
    config = transformers.Gemma3TextConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=1, head_dim=256,
        vocab_size=100, max_position_embeddings=32768, sliding_window=512,
        rope_parameters={kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Gemma3ForCausalLM(config).eval()


@pytest.mark.parametrize("method", EXTENSIONS)
@torch.no_grad()
def test_every_method_acts_on_the_layers_without_a_window_alone(small, method):
    def states():
        return small.model(torch.arange(90)[None], output_hidden_states=True).hidden_states

    before = states()
    report = posenc.extend(small, method, target_length=40960)
    try:
        after = states()
    finally:
        posenc.restore(small)
    assert report.layers == (1, 6)
    assert "layers with a sliding window: 5, as before" in str(report)
    assert torch.allclose(after[5], before[5], atol=1e-5)
    if report.exact_tokens < 90:
        assert not torch.equal(after[6], before[6])


@pytest.mark.slow  # the file takes 25 s to unpack
def test_written_it_computes_the_same_in_plain_transformers_and_llama_cpp(gemma, ids, tmp_path):
    model, tokenizer = gemma
    before = logits(model, ids)
    report = posenc.extend(model, "yarn", factor=4)
    try:
        assert report.layers == (len(GLOBAL), 18)
        expected = logits(model, ids)
        assert (expected - before).abs().max() > 1  # so that an unextended file would be noticed
        posenc.to_hf(model, tmp_path / "folder", tokenizer)
        with packaged_file("gemma") as file:
            rewrite(file, tmp_path / "yarn.gguf", "yarn", factor=4)
    finally:
        posenc.restore(model)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype="float32").eval()
    assert torch.allclose(logits(plain, ids), expected, atol=1e-3)
    (found,) = llama_cpp.log_probabilities({tmp_path / "yarn.gguf": [ids[0].tolist()]}, tokens=1024)[
        tmp_path / "yarn.gguf"
    ]
    log_probabilities = expected[-1].double().log_softmax(-1)
    assert (
        max(abs(float(log_probabilities[token]) - value) for token, value in found.items()) < 0.1
    )  # llama.cpp computes with the packed weights
