"""A configuration is enough: what is printed for each program, taken as it is printed, is the extension."""

import json
import shlex
import sys
from copy import deepcopy
from dataclasses import asdict

import pytest
import torch
from transformers import CONFIG_MAPPING

import posenc
from posenc import InputError
from posenc.pretrained.config_file import ConfigFile
from posenc.pretrained.programs import LLAMA_CPP, PROGRAMS, TRANSFORMERS, TRANSFORMERS_4, VLLM, header_readings
from posenc.pretrained.recipe import recipe
from posenc.pretrained.rope_config import new_base
from posenc.spec import literal
from references.small_models import small_model

ORIGINAL = "original_max_position_embeddings"
SHAPE = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 97,
    "intermediate_size": 64, "max_position_embeddings": 4096, "rope_theta": 10000.0,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 512}
KINDS = ["sliding_attention", "full_attention"]
GEMMA = SHAPE | {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 32, "layer_types": KINDS}
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIGS = {
    "qwen3": {"model_type": "qwen3", "head_dim": 16, **SHAPE},
    "llama 3.1": {"model_type": "llama", **SHAPE, "rope_scaling": LLAMA3},
    "gemma3 in parts": {"model_type": "gemma3", "text_config": GEMMA, "vision_config": {"model_type": "siglip_vision_model", **VISION}},
    "phi3": {"model_type": "phi3", "original_max_position_embeddings": 4096, "pad_token_id": 0, **SHAPE},
}  # fmt: skip


def merged(fields: dict, override: dict) -> dict:
    """As vLLM applies --hf-overrides: within parts, and a table as a whole."""
    made = deepcopy(fields)
    for key, value in override.items():
        made[key] = merged(made[key], value) if key == "text_config" else value
    return made


def frequencies(fields: dict, length: int = 16384) -> list:
    return list(PROGRAMS[TRANSFORMERS](ConfigFile("config", fields), length))


@pytest.mark.parametrize("method", ["yarn", "ntk", "linear", "yarn:truncate=false"])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_printed_is_the_extension(name: str, method: str) -> None:
    made = posenc.extend(CONFIGS[name], method, factor=4)
    inner = CONFIGS[name].get("text_config", CONFIGS[name])
    clean = {key: value for key, value in inner.items() if key not in made.removed}
    clean = CONFIGS[name] | {"text_config": clean} if inner is not CONFIGS[name] else clean
    wanted = torch.tensor(made.extension.stretch)
    words = shlex.split(made.programs[VLLM])
    assert words[-2:] == ["--max-model-len", "16384"]
    override = words[words.index("--hf-overrides") + 1]
    override = made.config if override.startswith("$(") else json.loads(override)
    older = json.loads(made.programs[TRANSFORMERS_4].splitlines()[1])
    for fields in (merged(clean, override), merged(clean, made.config), merged(clean, older)):
        reading = frequencies(fields)[-1]
        plain = posenc.frequencies.default(16, base=10000.0).inv_freq
        torch.testing.assert_close(plain / reading.inv_freq, wanted.double(), rtol=1e-4, atol=0)
        assert reading.attention_factor == pytest.approx(made.extension.attention_factor)
    json.dumps(asdict(made))
    assert {"SGLang", "Ollama", "MLX", LLAMA_CPP} <= made.programs.keys()
    assert "1.13863 = 0.1 ln(4) + 1" in str(made) or "yarn" not in method


def test_flags_and_keys_of_llama_cpp_are_the_extension() -> None:
    flags = {"--rope-freq-base": "rope.freq_base", "--rope-scaling": "rope.scaling.type", "--rope-scale": "rope.scaling.factor",
             "--yarn-orig-ctx": "rope.scaling.original_context_length"}  # fmt: skip
    for method in ("yarn", "linear", "ntk"):
        made = posenc.extend(CONFIGS["qwen3"], method, factor=4)
        words = shlex.split(made.programs[LLAMA_CPP].splitlines()[0])
        header = {"general.architecture": "qwen3", "qwen3.context_length": 16384}
        header |= {f"qwen3.{flags[key]}": literal(value) for key, value in zip(words[5::2], words[6::2], strict=True)}
        (reading,) = header_readings(header, 16, 4096)
        wanted = torch.tensor(made.extension.stretch, dtype=torch.float64)
        torch.testing.assert_close(
            posenc.frequencies.default(16).inv_freq / reading.inv_freq, wanted, rtol=1e-6, atol=0
        )
        assert f"qwen3.context_length = {words[4]}" in made.programs[LLAMA_CPP]
    composed = posenc.extend(CONFIGS["llama 3.1"], "yarn", factor=4)
    command = "no flags express it: posenc extend FILE.gguf --method yarn --target-length 16384"
    assert command in composed.programs[LLAMA_CPP]
    assert "rope_freqs.weight: 8 divisors" in composed.programs[LLAMA_CPP]
    assert "scaled by llama3, which stays" in str(composed)
    assert made.extension.stretch != composed.extension.stretch


def test_a_context_length_that_is_not_stated_is_named_in_the_formula() -> None:
    named = "max_position_embeddings is not stated: 32768 is transformers' default for qwen3"
    misspelt = {key.replace("embeddings", "embedding"): value for key, value in CONFIGS["qwen3"].items()}
    assert [named in str(posenc.extend(each, "yarn", factor=4)) for each in (CONFIGS["qwen3"], misspelt)] == [
        False,
        True,
    ]


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.freq_base", "rope.freq_base_swa", "context_length"])
def test_a_header_that_cannot_be_is_refused(key: str) -> None:
    header = {"general.architecture": "llama", "llama.rope.scaling.type": "yarn"}
    for wrong in ({f"llama.{key}": "x"}, {f"llama.{key}": -2.0}, {"rope_freqs.weight": [1.0] * 5}):
        with pytest.raises(InputError, match=r"number|at least|5 divisors for 8 pairs"):
            list(header_readings(header | wrong, 16, 4096))


def test_without_transformers_its_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "posenc.pretrained.finetune", raising=False)
    for use in (lambda: posenc.extend(CONFIGS["qwen3"], "yarn", factor=4), lambda: posenc.finetune):
        with pytest.raises(InputError, match=r"posenc\[lab\]"):
            use()


def test_mlx_reads_what_its_code_reads() -> None:
    mlx = {name: posenc.extend(fields, "yarn", factor=4).programs["MLX"] for name, fields in CONFIGS.items()}
    assert mlx["qwen3"] == "in config.json, as of transformers 4"
    scale = 0.1 * torch.tensor(4.0).log().item() + 1
    original = int(mlx["llama 3.1"].split("rope_scaling is ")[1].split(",")[0])
    length = torch.tensor(16384.0).double()
    found = (1 + (length / original).log() / torch.tensor(original).double().log()).sqrt()
    assert float(found) == pytest.approx(scale, rel=1e-3)
    assert mlx["phi3"] == "not known for phi3"
    qwen = posenc.extend(SHAPE | {"model_type": "qwen3_5_text", "num_hidden_layers": 4}, "yarn", factor=4)
    assert qwen.programs["MLX"] == "in config.json, as of transformers 5; rope_scaling is ignored"
    assert "ARCHITECTURE.rope.scaling.factor = 4.0" in qwen.programs[LLAMA_CPP]  # llama.cpp names it otherwise
    mixtral = posenc.extend({"model_type": "mixtral", **SHAPE}, "yarn", factor=4).programs["MLX"]
    assert "silently rotates without yarn" in mixtral


def test_every_kind_of_configuration_is_taken(tmp_path) -> None:
    fields = CONFIGS["qwen3"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = CONFIG_MAPPING["qwen3"](**{key: value for key, value in fields.items() if key != "model_type"})
    first, *others = (
        recipe(each, "yarn", factor=4) for each in (fields, tmp_path, str(tmp_path / "config.json"), config)
    )
    assert all(each.config == first.config for each in others)
    assert new_base(16, posenc.frequencies.ntk(16, factor=4)) is not None
    assert posenc.extend(small_model("llama"), "yarn", factor=4).new_length == 256  # a model is still one


@pytest.mark.parametrize(
    ("fields", "method", "message"),
    [
        (CONFIGS["qwen3"], "rerope", "no configuration expresses the position map rerope; load the model and extend that"),
        (CONFIGS["qwen3"], "yarn+log_n", "no configuration expresses LogN"),
        ({"model_type": "gpt2"}, "yarn", "its table of positions is in the weights: load the model with posenc.load"),
        ({"model_type": "whisper"}, "yarn", "load the model with posenc.load|has no|whisper"),
        ({"hidden_size": 3}, "yarn", "has no model_type"),
        ({**CONFIGS["qwen3"], "rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "yarn", "write a number, without quotes"),
        ({**CONFIGS["qwen3"], "rope_scaling": {"rope_type": "yarn", "type": "linear"}}, "yarn", "remove one of them"),
    ],
)  # fmt: skip
def test_what_a_configuration_cannot_say_is_refused_in_one_line(fields: dict, method: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        posenc.extend(fields, method, factor=4)
    assert len(str(refused.value).splitlines()) == 1
