"""Adapters of PEFT state the extension that they were trained under."""

import json
import warnings

import pytest
import torch

import posenc
from references.small_models import small_model, tokens

peft = pytest.importorskip("peft")


@pytest.fixture
def base(tmp_path):
    small_model("llama").save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def logits(model):
    with torch.no_grad():
        return model(tokens(1, 128)).logits


def adapter(base, folder, method=None, **given):
    """An adapter with weights that are not 0, on a model that is extended by a method."""
    model, _ = posenc.load(base)
    if method is not None:
        posenc.extend(model, method, factor=4)
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], **given)).eval()
    torch.manual_seed(0)
    for name, weight in tuned.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.3)
    tuned.save_pretrained(folder)
    return tuned


def test_plain_peft_reads_it_and_keeps_it(base, tmp_path):
    adapter(base, tmp_path / "adapter", "yarn")
    plain = type(small_model("llama")).from_pretrained(base)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        tuned = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
        auto = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert torch.equal(logits(tuned), logits(auto))
    finding = next(each for each in posenc.doctor(tuned).findings if each.name == "adapter_extension_differs")
    assert "was trained under yarn for 256 tokens, and the model is not extended" in finding.evidence
    tuned.save_pretrained(tmp_path / "again")
    stored = json.loads((tmp_path / "again" / "adapter_config.json").read_text())
    assert stored["auto_mapping"]["posenc"] == {"method": "yarn", "target_length": 256}


@pytest.mark.parametrize("method", ["yarn", "rerope:window=16"])
def test_a_restored_model_has_no_hooks(base, method):
    """But those of `posenc.load`, which are there before."""
    for model in (type(small_model("llama")).from_pretrained(base), posenc.load(base)[0]):
        hooks = "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_forward_pre_hooks", "_forward_hooks"
        before = [[len(getattr(module, name)) for name in hooks] for module in model.modules()]
        for _ in range(2):
            posenc.extend(model, method, factor=4)
        posenc.extend(model, "linear", factor=2)
        assert model._state_dict_pre_hooks
        posenc.restore(model)
        assert [[len(getattr(module, name)) for name in hooks] for module in model.modules()] == before


@pytest.mark.parametrize("method", [None, "linear"])
def test_one_line_where_the_model_has_another_extension(base, tmp_path, method):
    adapter(base, tmp_path / "adapter", "yarn")
    model, _ = posenc.load(base)
    if method is not None:
        posenc.extend(model, method, factor=4)
    has = "is not extended" if method is None else "is extended by linear for 256 tokens"
    with pytest.warns(UserWarning, match=f"trained under yarn for 256 tokens, and the model {has}"):
        peft.PeftModel.from_pretrained(model, tmp_path / "adapter")
    same, _ = posenc.load(base)
    posenc.extend(same, "yarn", factor=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        peft.PeftModel.from_pretrained(same, tmp_path / "adapter")
