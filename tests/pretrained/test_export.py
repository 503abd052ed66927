"""What to_hf writes gives the same logits in plain transformers, past the context length, without posenc imported."""

import copy
import subprocess
import sys

import pytest
import torch
import transformers

import posenc
from posenc import InputError
from posenc.frequencies import softmax_factor
from posenc.pretrained.export import to_hf
from posenc.pretrained.families import FAMILIES
from references import PATIENCE
from references.small_models import TRAINED, small_model, tokens

LENGTH = 4 * TRAINED
STATIC = (
    "linear", "ntk", "ntk_old", "ntk_fixed", "ntk_mixed", "yarn", "yarn:truncate=false", "yarn_paper", "yarn_revised",
    "mrrope", "llama3", "dynamic", "abf:new_base=500000", "tapered", "yarn+resonance",
)  # fmt: skip
PLAIN = """
import sys, torch
from transformers import AutoModelForCausalLM
tokens = torch.load(sys.argv[1])
found = {}
for folder in sys.argv[3:]:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        found[folder] = model(tokens).logits
assert not any(name.split(".")[0] == "posenc" for name in sys.modules)
torch.save(found, sys.argv[2])
"""


def logits(model, ids=None):
    with torch.no_grad():
        return model(tokens(2, LENGTH) if ids is None else ids).logits


def in_plain_transformers(folder, exported):
    """The logits of each folder, from a process that knows nothing of posenc."""
    torch.save(tokens(2, LENGTH), folder / "tokens.pt")
    command = [sys.executable, "-c", PLAIN, folder / "tokens.pt", folder / "logits.pt", *exported]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "logits.pt")


def test_every_static_schedule_comes_back_from_plain_transformers(tmp_path):
    model, want, temperatures = small_model("llama", head_dim=32, initializer_range=0.15), {}, {}
    direct = logits(model)
    for index, method in enumerate(STATIC):
        folder = str(tmp_path / str(index))
        report = posenc.extend(model, method, factor=4)
        export = to_hf(model, folder)
        assert export.plain
        assert export.length == LENGTH
        want[folder], temperatures[folder] = logits(model), report.attention_factor
        posenc.restore(model)
    assert torch.equal(logits(model), direct)
    got = in_plain_transformers(tmp_path, want)
    for folder, found in got.items():
        assert (found - want[folder]).abs().max() < 1e-4
        assert (found - direct).abs().max() > 0.01
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
        assert loaded.model.rotary_emb.attention_scaling == pytest.approx(temperatures[folder], rel=1e-6)
        assert loaded.config.max_position_embeddings == LENGTH
        assert not hasattr(loaded.config, "posenc")


@pytest.mark.parametrize(
    ("model_type", "method"),
    [
        pytest.param(kind, method, marks=pytest.mark.slow if (at + step) % 3 else ())
        for at, kind in enumerate(FAMILIES)
        for step, method in enumerate(("yarn", "linear", "ntk_mixed"))
    ],
)
def test_every_model_type_comes_back(model_type, method, tmp_path):
    model = small_model(model_type)
    direct = logits(model)
    if not posenc.extend(model, method, factor=4).plain:
        assert model_type[:6] == "gemma4", (
            "whose layers have a scaling, which no configuration has together with another"
        )
        with pytest.raises(InputError, match=r"only rope_type longrope has these frequencies, .* add \+replace, "):
            to_hf(model, tmp_path / "model")
        if method == "ntk_mixed":
            return
        posenc.restore(model)
        assert posenc.extend(model, f"{method}+replace", factor=4).plain
    to_hf(model, tmp_path / "model")
    plain = type(model).from_pretrained(tmp_path / "model").eval()
    difference = (logits(plain) - logits(model)).abs().max()
    assert difference < 1e-3 * direct.abs().max()
    assert (logits(plain) - direct).abs().max() > 30 * difference


@pytest.mark.parametrize("method", ["yarn", "linear", "ntk", "yarn:attention_factor=1.2"])
@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3", "mistral4"])
def test_latent_attention_that_is_scaled_already(model_type, method, tmp_path):
    """As DeepSeek trains: the temperature of YaRN is in the softmax factor, which stays, or is that of the schedule in its place."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": TRAINED}
    yarn |= {"mscale": 1.0, "mscale_all_dim": 1.0} | ({"llama_4_scaling_beta": 0.1} if model_type == "mistral4" else {})
    model = small_model(model_type, rope_parameters=yarn, max_position_embeddings=LENGTH)
    direct = logits(model)
    layer = model.model.layers[0].self_attn
    scale = layer.qk_head_dim**-0.5
    assert layer.scaling == pytest.approx(scale * softmax_factor(4.0, 1.0))
    kept = posenc.extend(model, method, factor=2)
    assert layer.scaling == pytest.approx(scale * softmax_factor(4.0, 1.0))
    to_hf(model, tmp_path / "kept")
    plain = type(model).from_pretrained(tmp_path / "kept").eval()
    assert (logits(plain) - logits(model)).abs().max() < 1e-3 * direct.abs().max()
    assert "scaled by yarn, which stays" in str(kept)
    report = posenc.extend(model, f"{method}+replace", factor=8)
    assert layer.scaling == pytest.approx(scale * (softmax_factor(8.0, 1.0) if method == "yarn" else 1.0))
    assert report.attention_factor == (1.2 if "attention_factor" in method else 1.0)
    assert any("part of the scores that rotates" in note for note in report.notes) is ("attention_factor" in method)
    assert any("all scores are multiplied by 1.459" in note for note in report.notes) is (method == "yarn")
    export = to_hf(model, tmp_path / "model")
    assert ("takes every scaling for yarn" in export.vllm) is (
        export.rope_parameters["rope_type"] not in ("default", "yarn")
    )
    assert "GGUF cannot express YaRN of latent attention" in export.llama_cpp
    plain = type(model).from_pretrained(tmp_path / "model").eval()
    assert (logits(plain) - logits(model)).abs().max() < 1e-3 * direct.abs().max()
    posenc.restore(model)
    assert torch.equal(logits(model), direct)


@pytest.mark.parametrize("model_type", ["qwen2_vl_text", "qwen3_vl_text"])
def test_a_model_that_reads_images_is_loaded_with_its_class(model_type, tmp_path):
    model = small_model(model_type)
    posenc.extend(model, "yarn", factor=4)
    to_hf(model, tmp_path / "model")
    loaded, _ = posenc.load(tmp_path / "model")
    assert type(loaded) is type(model)
    assert torch.allclose(logits(loaded), logits(model), atol=1e-3)
    with pytest.raises(InputError, match=r"takes frequency schedules alone, .*: it reads images or sound too"):
        posenc.extend(model, "log_n", factor=4)


def test_a_map_of_m_rope_is_for_text():
    model = small_model("qwen3_5_text")
    posenc.extend(model, "rerope:window=16", factor=4)
    ids = torch.arange(20)[None].expand(3, 1, -1).clone()
    with torch.no_grad():
        model(tokens(1, 20), position_ids=ids)
        ids[2] //= 2
        with pytest.raises(InputError, match=r"position_ids that differ by axis"):
            model(tokens(1, 20), position_ids=ids)


@pytest.mark.parametrize("method", ["rerope:window=16", "yarn+log_n", "softmax_n"])
def test_the_report_has_what_a_configuration_cannot_say(method, tmp_path):
    model = small_model("llama")
    posenc.extend(model, method, factor=4)
    export = to_hf(model, tmp_path / "model")
    assert not export.plain
    part = {"rerope:window=16": "the position map rerope", "yarn+log_n": "LogN", "softmax_n": "SoftmaxN"}[method]
    for text in (export.vllm, export.llama_cpp, *export.missing):
        assert part in text
    assert f"WARNING: plain transformers silently loads it as it was BEFORE {method}" in str(export)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert (logits(plain) - logits(model)).abs().max() > 0.01
    assert torch.equal(logits(plain), logits(small_model("llama")))
    assert export.length == plain.config.max_position_embeddings == TRAINED
    again = dict(plain.config.posenc)
    posenc.extend(plain, again.pop("method"), **again)
    assert torch.allclose(logits(plain), logits(model), atol=1e-4)


def test_bfloat16_comes_back(tmp_path):
    model = small_model("llama").to(torch.bfloat16)
    direct = logits(model).float()
    posenc.extend(model, "ntk_mixed", factor=4)
    to_hf(model, tmp_path / "model")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert plain.dtype == torch.bfloat16
    off = (logits(plain) - logits(model)).float().abs()
    assert off.mean() < 0.02 * (logits(model) - direct).float().abs().mean()


def test_the_folder_appears_complete_or_not_at_all(tmp_path, monkeypatch):
    model = small_model("llama")
    posenc.extend(model, "yarn", factor=4)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"full': is not empty; name a new folder"):
        to_hf(model, tmp_path / "full")
    with pytest.raises(InputError, match=r"notes.txt': is a file; name a new folder"):
        to_hf(model, tmp_path / "full" / "notes.txt")
    monkeypatch.setattr(type(model.config), "save_pretrained", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        to_hf(model, tmp_path / "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full"]
    monkeypatch.undo()
    (tmp_path / "empty").mkdir()
    to_hf(model, tmp_path / "empty")
    assert {p.name for p in tmp_path.iterdir()} == {"full", "empty"}
    assert {"config.json", "generation_config.json", "model.safetensors"} <= {
        p.name for p in (tmp_path / "empty").iterdir()
    }
    with pytest.raises(FileExistsError):
        to_hf(model, tmp_path / "full" / "notes.txt" / "x")


def test_the_tokenizer_learns_the_new_length(tokenizer, tmp_path):
    tokenizer.model_max_length = TRAINED
    model = small_model("llama")
    posenc.extend(model, "yarn", factor=4)
    to_hf(model, tmp_path / "model", tokenizer)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "model").model_max_length == LENGTH
    assert tokenizer.model_max_length == TRAINED


def test_a_rotary_module_that_ignores_its_configuration_is_found_out(tmp_path, monkeypatch):
    model = small_model("llama")
    posenc.extend(model, "yarn", factor=4)
    rotary = type(small_model("llama").model.rotary_emb)
    original = rotary.__init__

    def deaf(self, config, *arguments):
        config = copy.deepcopy(config)
        config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
        original(self, config, *arguments)

    monkeypatch.setattr(rotary, "__init__", deaf)
    with pytest.raises(InputError, match=r"LlamaRotaryEmbedding does not rotate as yarn does"):
        to_hf(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_adapters_are_to_be_merged_first(tmp_path):
    class Wrapped(torch.nn.Module):
        def get_base_model(self):
            return small_model("llama")

    with pytest.raises(InputError, match=r"merge_and_unload"):
        to_hf(Wrapped(), tmp_path / "model")


def test_models_that_are_not_extended_are_written_too(tmp_path):
    export = to_hf(small_model("llama"), tmp_path / "plain")
    assert export.plain
    assert "not extended, 64 tokens" in str(export)


def served(method, tmp_path, model_type="llama"):
    model = small_model(model_type, **({} if model_type == "phi3" else {"head_dim": 32}))
    posenc.extend(model, method, factor=4)
    return to_hf(model, tmp_path / "model")


@pytest.mark.parametrize("method", ["none", "linear", "ntk", "yarn", "ntk_mixed", "llama3"])
def test_the_command_for_llama_cpp(method, tmp_path):
    wanted = f"posenc extend FILE.gguf --method {method} --target-length 256 --gguf NEW.gguf, of a GGUF file of the model before"
    assert served(method, tmp_path).llama_cpp == f"{wanted}, and serve that: -c 256"


@pytest.mark.parametrize("model_type", ["qwen3", "gpt_neox", "cohere"])
@pytest.mark.parametrize("method", ["ntk_mixed", "llama3", "yarn_paper"])
def test_llama_cpp_reads_no_divisors_for_most_architectures(model_type, method, tmp_path):
    """Their graphs pass nullptr to ggml_rope_ext, and their loaders know no such tensor."""
    export = served(method, tmp_path, model_type)
    assert export.llama_cpp.startswith("cannot serve these frequencies: ")
    assert "rope_freqs" not in export.llama_cpp
    assert {"qwen3": "qwen3 has no key", "gpt_neox": "gptneox has no key", "cohere": "command-r has no key"}[
        model_type
    ] in export.llama_cpp


@pytest.mark.parametrize("model_type", ["cohere", "glm4", "ernie4_5"])
def test_vllm_has_no_longrope_for_neighbouring_channels(model_type, tmp_path):
    """It raises ("only supports neox_style"), or rotates by halves and says nothing."""
    for method in ("ntk_mixed", "yarn_paper"):
        export = served(method, tmp_path / method, model_type)
        assert export.vllm.startswith("cannot serve these frequencies: ")
    for method in ("yarn", "linear", "ntk", "llama3"):
        assert served(method, tmp_path / method, model_type).vllm.startswith("vllm serve ")


def test_no_program_needs_more_than_the_folder(tmp_path):
    for method in ("yarn", "ntk", "abf:new_base=500000", "yarn_paper", "ntk_mixed"):
        for model_type in ("llama", "gemma3_text"):
            folder = tmp_path / method / model_type
            export = served(method, folder, model_type)
            assert export.vllm == f"vllm serve {folder / 'model'} --max-model-len 256"
            assert {each.program for each in export.programs if each.agrees} >= {
                "transformers 5", "vLLM", "SGLang",
            }  # fmt: skip
