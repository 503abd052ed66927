"""A model with an encoding is written as a model type that plain transformers has, to the same logits."""

import pytest
import torch
import transformers

import posenc
from posenc import InputError
from references.small_models import small_model, tokens

LENGTH = 64


def encoded(encoding, model_type="llama", layers=4, **fields):
    posenc.hf.register()
    config = small_model(model_type, num_hidden_layers=layers, **fields).config
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, encoding=encoding).eval()


def logits(model):
    with torch.no_grad():
        return model(tokens(2, LENGTH), use_cache=False).logits


WRITTEN = {
    "rope:rope_theta=500000": ("llama", "llama", {}),
    "rope": ("cohere", "cohere", {}),
    "rope:rope_theta=5000": ("mistral", "mistral", {"sliding_window": 12}),
}  # fmt: skip


@pytest.mark.parametrize(("encoding", "how"), WRITTEN.items(), ids=WRITTEN)
def test_the_same_logits_in_plain_transformers(encoding, how, tmp_path):
    model_type, written, fields = how
    model = encoded(encoding, model_type, **fields)
    export = posenc.to_hf(model, tmp_path / "model")
    assert (export.model_type, export.plain, export.method) == (written, True, model.config.encoding)
    assert "transformers 5" in [each.program for each in export.programs if each.agrees]
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert type(plain).__module__.startswith("transformers.")
    assert plain.config.model_type == written
    assert not hasattr(plain, "encoding")
    assert (logits(plain) - logits(model)).abs().max() < 1e-4


REFUSED = {
    "alibi": ("llama", {}, ": alibi is in none"),
    "learned_rope": ("llama", {}, ": learned_rope is in none"),
    "rope+window:before=7": ("llama", {}, " is in none"),
    "rope/none": ("llama", {}, ": none is in none"),
    "rope/rope:rope_theta=500": ("llama", {}, "its layers rotate by different frequencies"),
    "rope:layout=interleaved": ("llama", {}, "its rotation has the layout 'interleaved', and llama 'half'"),
}  # fmt: skip


@pytest.mark.parametrize(("encoding", "how"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_written_is_one_line(encoding, how, tmp_path):
    model_type, fields, why = how
    with pytest.raises(InputError, match=r"no model type of plain transformers computes it in a ") as raised:
        posenc.to_hf(encoded(encoding, model_type, **fields), tmp_path / "model")
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_model_that_computes_something_else_is_not_written(tmp_path, monkeypatch):
    from transformers.models.llama import modeling_llama as llama

    model = encoded("rope")
    monkeypatch.setattr(llama, "apply_rotary_pos_emb", lambda q, k, *_, **__: (q, k))
    with pytest.raises(InputError, match=r"llama was run with its weights, and its logits are off by"):
        posenc.to_hf(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())
