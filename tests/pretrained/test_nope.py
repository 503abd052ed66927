"""DroPE: a model without its rotation, against transformers' own model whose cos is 1 and sin 0."""

import copy

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import InputError
from posenc.pretrained.finetune import finetune
from references.mapped_attention import NoRotation
from references.small_models import TRAINED, small_model, tokens


def unrotated(model, beta=1.0):
    """The authors' expression (SakanaAI/DroPE, custom_models/attention.py): ones for cos, zeros for sin, and softmax_scale."""
    twin = copy.deepcopy(model)
    twin.model.rotary_emb = NoRotation(twin.model.rotary_emb)
    for layer in twin.model.layers:
        if getattr(layer.self_attn, "sliding_window", None) is None:  # `temperature` is for layers that see all
            layer.self_attn.scaling *= beta
    return twin


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "smollm3"])
@pytest.mark.parametrize(("method", "beta"), [("nope", 1.0), ("nope+temperature:beta=1.3", 1.3)])
def test_the_logits_are_the_authors(kind, method, beta):
    model, x = small_model(kind).double().eval(), tokens(2, 3 * TRAINED)
    with torch.no_grad():
        before, wanted = model(x).logits, unrotated(model, beta)(x).logits
        report = posenc.extend(model, method, factor=4)
        assert_close(model(x).logits, wanted, rtol=1e-9, atol=1e-10)
        pieces = model(x[:, :100], use_cache=True)
        rest = model(x[:, 100:], past_key_values=pieces.past_key_values).logits
        assert_close(torch.cat((pieces.logits, rest), 1), wanted, rtol=1e-9, atol=1e-10)
        padded = torch.cat((torch.zeros(2, 5, dtype=x.dtype), x), 1)
        mask = (torch.arange(padded.shape[1]) >= 5).long().expand_as(padded)
        assert_close(model(padded, attention_mask=mask).logits[:, 5:], wanted, rtol=1e-9, atol=1e-10)
        posenc.restore(model)
        assert torch.equal(model(x).logits, before)
    assert (report.reach, report.exact_tokens, report.plain) == (None, 0, False)
    assert report.tuning == "needs it"
    assert "attention: no rotation" in str(report)


def test_without_a_length_it_is_for_any_and_keeps_the_models_attention():
    model = small_model("llama")
    implementation = model.config._attn_implementation
    assert "from 64 tokens to any length" in str(posenc.extend(model, "nope"))
    assert model.config._attn_implementation == implementation
    assert model.config.max_position_embeddings == TRAINED


def test_it_is_trained_on_and_saved(tmp_path):
    model, x = small_model("llama"), tokens(1, 80)
    posenc.extend(model, "nope", factor=2)
    text = (torch.arange(4000) * 7) % 80 + 3
    result = finetune(model, text, steps=20, batch_size=4, length=32, learning_rate=3e-3)
    assert result.losses[-1] < result.losses[0] - 0.5
    model.eval()
    model.save_pretrained(tmp_path / "saved")
    assert "no rotation" in str(posenc.to_hf(model, tmp_path / "exported"))
    for folder in ("saved", "exported"):
        again, _ = posenc.load(tmp_path / folder)
        with torch.no_grad():
            assert_close(again(x).logits, model(x).logits, rtol=1e-5, atol=1e-5)


def test_refusals():
    model = small_model("llama")
    for method in ("nope+yarn", "nope+rerope:window=16", "linear+nope"):
        with pytest.raises(InputError, match="under nope nothing is rotated"):
            posenc.extend(model, method, factor=2)
    with pytest.raises(InputError, match="none does not combine"):
        posenc.extend(model, "nope+none", factor=2)
