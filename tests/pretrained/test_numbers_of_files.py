"""A file's own numbers are used, or a finding names them: every model type with a rotation x every kind of key that speaks of it;
and numbers that cannot be are refused before anything is made of them."""

import json

import pytest
import torch
import transformers

import posenc
from posenc.errors import InputError
from posenc.pretrained.families import FAMILIES
from posenc.pretrained.parameters import rope_parameters_by_type
from posenc.pretrained.readers import ConfigFile, compare, read_config
from references import gguf_files
from references.small_models import edit, small_model

KEYS = {
    "a flat table": {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 77777.0}},
    "a flat base": {"rope_parameters": {"rope_type": "default", "rope_theta": 77777.0}},
    "the older table": {"rope_theta": 77777.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "the authors' key": {"rotary_scaling_factor": 8.0},
    "another of them": {"rope_ntk_alpha": 8.0},
    "one of scores": {"logn_length": 8.0},
    "an unknown key of the table": {"rope_parameters": {"rope_type": "default", "rope_theta": 77777.0, "stretch": 8.0}},
}


@pytest.mark.parametrize("name", KEYS)
def test_every_key_is_used_or_named(name):
    """transformers' tables have its numbers, or the words of the comparison do, or the file is refused."""
    dropped = []
    for kind in FAMILIES:
        fields = {"model_type": kind} | KEYS[name]
        try:
            found = compare(ConfigFile("config.json", fields))
            tables = rope_parameters_by_type(ConfigFile("config.json", fields).hf).values()
        except InputError:
            continue
        said = " ".join(str(each) for each in found.findings)
        wanted = [f"{number:g}" for number in (77777.0, 8.0) if f"{number}" in json.dumps(fields)]
        used = [f"{value:g}" for table in tables for value in table.values() if isinstance(value, float)]
        unknown = "stretch" in json.dumps(fields)
        if not all(each in said or (each in used and not (unknown and each == "8")) for each in wanted):
            dropped.append((kind, [dict(table) for table in tables], said))
    assert dropped == []


FLAT = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}


@pytest.mark.parametrize("kind", ["olmo3", "gemma3_text", "gemma3n_text"])
def test_a_flat_table_in_a_type_that_keys_them_by_layer_type(kind, tmp_path):
    """As transformers 5.5 to 5.10 saved OLMo 3, and Gemma 3's converter does: no module reads it now."""
    model = small_model(kind)
    model.save_pretrained(tmp_path / "model")
    edit(tmp_path / "model", rope_parameters=FLAT)
    with pytest.raises(InputError, match=r"rope_type='yarn'.* reads its tables by layer type alone .*write them there"):
        posenc.load(tmp_path / "model")
    (finding,) = [each for each in compare(read_config(tmp_path / "model")).findings if "layer type" in each.evidence]
    assert finding.severity == "wrong"
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert "parameter_impossible" in {each.name for each in posenc.doctor(read).findings}
    with pytest.raises(InputError, match="reads its tables by layer type alone"):
        posenc.extend(read, "yarn", factor=2)


@pytest.mark.parametrize("kind", ["gemma4_text", "mellum", "laguna"])
def test_a_flat_table_where_transformers_finds_no_layer_type(kind):
    found = compare(ConfigFile("config.json", {"model_type": kind, "rope_parameters": FLAT}))
    assert found.refused[0].why == "its module reads tables by layer type alone: write them there"


CANNOT = {
    "gemma2": [(key, value) for key in ("attn_logit_softcapping", "final_logit_softcapping") for value in (float("inf"), 1e-300)],
    "granite": [("logits_scaling", 0), ("logits_scaling", 1e-300), ("attention_multiplier", float("inf")),
                ("embedding_multiplier", float("inf")), ("residual_multiplier", float("inf"))],
    "cohere": [("logit_scale", float("inf")), ("logit_scale", None)],
    "mixtral": [("num_experts_per_tok", value) for value in (3, -1, 10**9)],
    "llama": [("num_labels", 10**9), ("num_hidden_layers", 10**9), ("vocab_size", 2**40), ("max_position_embeddings", 10**30)],
    "qwen3": [("sliding_window", float("nan")), ("rope_scaling_layers", float("inf"))],
}  # fmt: skip


@pytest.mark.parametrize("kind", CANNOT)
def test_numbers_that_cannot_be_are_one_line(kind, tmp_path):
    small_model(kind).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    posenc.load(tmp_path)
    for key, value in CANNOT[kind]:
        file.write_text(json.dumps(fields | {key: value}))
        with pytest.raises(InputError) as caught:
            posenc.load(tmp_path)
        assert "\n" not in str(caught.value), (key, value)


def test_a_configuration_alone_is_answered():
    """transformers makes a name for each label."""
    for part in (
        {"num_labels": 10**9},
        {"num_experts": 10**9},
        {"head_dim": 10**9},
        {"rope_parameters": {"rope_type": "default", "n_groups": 10**30}},
    ):
        with pytest.raises(InputError, match="is more than any model has"):
            compare(ConfigFile("c", {"model_type": "llama"} | part))


def test_heads_of_gguf_files_that_were_never_answered(tmp_path):
    model = small_model("llama")
    for key, value in (("block_count", 10**9), ("attention.layer_norm_rms_epsilon", float("nan")),
                       ("attention.layer_norm_rms_epsilon", float("inf"))):  # fmt: skip
        file = gguf_files.written(tmp_path / "m.gguf", model, gguf_files.plain_keys(model) | {key: value})
        with pytest.raises(InputError, match=r"m\.gguf: .*(block_count|must be a finite number)"):
            posenc.load(file)
    far = [("blk.999999999.attn_q.weight", torch.ones(1).numpy())]
    for count in (10**9, 2):
        keys = gguf_files.plain_keys(model) | {"block_count": count}
        with pytest.raises(InputError, match="block_count"):
            posenc.load(gguf_files.written(tmp_path / "m.gguf", model, keys, far))
