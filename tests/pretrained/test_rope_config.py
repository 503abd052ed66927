"""transformers' own rotary modules compute, from the dictionary, what the schedule says."""

import json

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

import posenc
from posenc import InputError, frequencies
from posenc.pretrained import model_structure
from posenc.pretrained.rope_config import hf_config, hf_rope_parameters
from references.small_models import TRAINED, small_model, tokens

L, FACTOR = 512, 4.0
SMALL = {
    "vocab_size": 50, "hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": L, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONFIGS = {
    "llama": {}, "mistral": {}, "qwen2": {}, "qwen3": {"head_dim": 96}, "phi3": {"original_max_position_embeddings": L},
    "gemma": {"head_dim": 64}, "gemma2": {"head_dim": 64}, "gemma3_text": {"head_dim": 64, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_neox": {}, "olmo": {}, "olmo2": {}, "stablelm": {}, "smollm3": {}, "phi": {}, "granite": {},
    "glm": {"head_dim": 64}, "cohere": {}, "gpt_oss": {"head_dim": 64}, "starcoder2": {}, "mixtral": {},
}  # fmt: skip
SCHEDULES = {
    "default": None, "linear": "linear", "yarn": "yarn", "llama3": "llama3", "ntk": "default", "abf:new_base=500000": "default", "yarn:truncate=false": "yarn", "ntk_mixed": "longrope",
    "ntk_fixed": "linear", "yarn_paper": "longrope", "mrrope": "longrope", "dynamic": "default", "yarn:beta_fast=8": "yarn", "yarn:beta_slow=0.1:truncate=false": "yarn",
    "yarn:original_max_positions=100": "yarn", "llama3:high_freq_factor=8": "llama3", "yarn:attention_factor=1": "longrope",
    "ntk+resonance": "longrope", "proportional:fraction=0.5": "longrope",
}  # fmt: skip


def small(model_type: str):
    config = transformers.AutoConfig.for_model(model_type, **SMALL | CONFIGS[model_type])
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def wanted(taken, schedule: str) -> dict:
    """A schedule as data."""
    shape = {"factor": FACTOR, "original_max_positions": taken.trained_length}
    shape["length"] = int(FACTOR * taken.trained_length)
    return frequencies.complete(frequencies.parse(schedule), **shape)


def made(taken, schedule: str) -> frequencies.Frequencies:
    return frequencies.create(wanted(taken, schedule), taken.rope.rotary_dim, base=taken.rope.rope_theta)


@pytest.mark.parametrize("model_type", CONFIGS)
def test_the_rotary_module_of_the_model_computes_the_frequencies(model_type):
    model = small(model_type)
    taken = model_structure(model)
    for schedule, kind in SCHEDULES.items():
        want, types = made(taken, schedule), ["full_attention"] if taken.rope_per_type else [*taken.ropes]
        config = hf_config(taken, dict.fromkeys(types, want), 4 * L, dict.fromkeys(types, wanted(taken, schedule)))
        parameters = config.rope_parameters
        assert json.loads(json.dumps(parameters, allow_nan=False)) == parameters
        main = parameters["full_attention"] if taken.rope_per_type else parameters
        default = taken.config.rope_parameters
        if (model_type == "phi3" and kind != "default") or (taken.rope_per_type and "truncate" in schedule):
            kind = kind and "longrope"  # transformers reads truncate beside the tables of layer types
        if taken.layout == "interleaved" and "attention_factor" in schedule:
            kind = "yarn"  # no program beside transformers has longrope for this layout
        assert main["rope_type"] == (kind or "default")
        rotary = type(taken.rotary)(type(config).from_dict(json.loads(config.to_json_string(use_diff=True))))
        prefix = "full_attention_" if taken.rope_per_type else ""
        scale = getattr(rotary, f"{prefix}attention_scaling")
        ids = torch.arange(4 * L)[None]  # forward, since some kinds of module choose their frequencies there
        rotary(torch.zeros(1), ids, *(["full_attention"] if prefix else []))
        got = getattr(rotary, f"{prefix}inv_freq")
        assert torch.allclose(got.double(), want.inv_freq, rtol=1e-6, atol=1e-20), schedule
        assert scale == pytest.approx(want.attention_factor, rel=1e-6)
        if taken.rope_per_type:
            assert parameters["sliding_attention"] == default["sliding_attention"]


def test_the_layers_of_a_rotation_they_share_cannot_differ():
    taken = model_structure(small("gemma2"))
    with pytest.raises(InputError, match=r"model type 'gemma2' rotates all layers alike"):
        hf_rope_parameters(taken, {"full_attention": made(taken, "ntk")}, 4 * L)
    with pytest.raises(InputError, match=r"layer type 'chunked': the model has sliding_attention, full_attention"):
        hf_rope_parameters(taken, {"chunked": made(taken, "ntk")}, 4 * L)


SEARCHED = {"short_factor": [1 + 0.1 * c for c in range(8)], "long_factor": [1 + 0.5 * c for c in range(8)]}
LEFT_OPEN = {
    "dynamic": ("llama", {"rope_type": "dynamic", "factor": 2.0}),
    "yarn": ("llama", {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16}),
    "longrope": ("llama", {"rope_type": "longrope", "original_max_position_embeddings": 16, **SEARCHED}),
    "phi3": ("phi3", {"rope_type": "longrope", **SEARCHED}),
}
"""What a model may be loaded with, whose frequencies then depend on its max_position_embeddings."""


@pytest.mark.parametrize("loaded", LEFT_OPEN)
@pytest.mark.parametrize("method", ["none", "softmax_n:n=0", "rerope:window=200"])
def test_another_length_does_not_change_what_a_model_was_loaded_with(loaded, method, tmp_path):
    kind, parameters = LEFT_OPEN[loaded]
    trained = TRAINED if "window" not in method else 4 * TRAINED  # so that all of the text is within the window
    top = {"max_position_embeddings": trained} | ({"original_max_position_embeddings": 16} if kind == "phi3" else {})

    def made():
        return small_model(kind, rope_parameters={"rope_theta": 10000.0, **parameters}, **top)

    x, extended = tokens(1, 90), made()
    report = posenc.extend(extended, method, target_length=4 * trained)
    extended.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        wanted, found = made()(x).logits, extended(x).logits
        if report.map is None or loaded != "dynamic":  # which a map freezes at the new length
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(again(x).logits, wanted)
        posenc.extend(again, method, target_length=4 * trained)
        torch.testing.assert_close(again(x).logits, found)
        exact = (made()(x[:, :12]).logits - extended(x[:, :12]).logits).abs().max() < 1e-3
    assert exact == (report.exact_tokens >= 12), "a map takes the long factors for short inputs too"


@pytest.mark.parametrize("loaded", ["default", "linear", "dynamic", "yarn"])
@pytest.mark.parametrize("method", ["ntk+rerope:window=12", "tapered+log_n"])
def test_a_schedule_and_more_come_back_on_top_of_what_a_model_was_loaded_with(loaded, method, tmp_path):
    given = {"linear": {"factor": 2.0}, "dynamic": {"factor": 2.0}, "yarn": LEFT_OPEN["yarn"][1]}.get(loaded, {})
    x, model = tokens(1, 90), small_model("llama", rope_parameters={"rope_theta": 1e4, "rope_type": loaded, **given})
    posenc.extend(model, method, target_length=4 * TRAINED)
    model.save_pretrained(tmp_path)
    again, _ = posenc.load(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(again(x).logits, model(x).logits, atol=1e-3, rtol=0)
