"""GGUF files: what llama.cpp computes of one is what posenc.load reads and what a rewritten one has; and refusals."""

import itertools

import pytest
import torch
from gguf import GGUFReader

import posenc
from posenc import InputError
from posenc.pretrained.gguf_file import rewrite
from posenc.pretrained.readers import compare, read_config
from references import gguf_files, llama_cpp
from references.commands import run
from references.small_models import small_model, tokens

SETTINGS = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3_text": {"query_pre_attn_scalar": 16},
    "qwen2": {"use_sliding_window": False, "layer_types": ["full_attention"] * 2},
}
SCHEDULES = ("linear", "ntk", "abf:new_base=50000", "yarn", "yarn_paper", "llama3", "ntk_mixed", "dynamic",
             "yarn:original_max_positions=32", "yarn:attention_factor=1.0", "yarn:beta_fast=8:beta_slow=2")  # fmt: skip
NOT_WRITTEN = ("yarn_paper", "llama3", "ntk_mixed", "yarn:beta_fast=8:beta_slow=2")
"""Of architectures without divisors."""
GELU = 6e-3
"""Of Gemma and StarCoder 2: llama.cpp reads GELU from a table of float16."""


def model_of(name):
    return small_model(name, **SETTINGS.get(name, {}))


@torch.no_grad()
def differs(model, ids, found):
    """The largest difference of log-probabilities after each row of ids."""
    wanted = model(ids).logits[:, -1].float().log_softmax(-1)
    return max(
        abs(value - float(row[token])) for row, one in zip(wanted, found, strict=True) for token, value in one.items()
    )


def test_llama_cpp_and_load_compute_what_a_rewritten_file_states(tmp_path):
    models, ids = {}, tokens(2, 200)
    for name in ("llama", "phi3", "qwen2", "gemma2", "gemma3_text"):
        source = gguf_files.written(tmp_path / f"{name}.gguf", model_of(name))
        for method in SCHEDULES if name in ("llama", "phi3", "qwen2") else ("yarn", "linear", "ntk"):
            path = tmp_path / f"{name}-{method.replace(':', '-')}.gguf"
            if name == "qwen2" and method in NOT_WRITTEN:
                with pytest.raises(InputError, match=r"llama.cpp's qwen2 has no key for these frequencies"):
                    rewrite(source, path, method, factor=4)
                continue
            assert rewrite(source, path, method, factor=4).length == 256
            models[path] = model_of(name)
            posenc.extend(models[path], method, factor=4)
    with pytest.raises(InputError, match="its attention factor is of full_attention"):
        rewrite(tmp_path / "gemma3_text.gguf", tmp_path / "no.gguf", "yarn:attention_factor=1.0", factor=4)
    for path, model in models.items():
        if "yarn" in path.stem or "ntk_mixed" in path.stem:
            again, _ = posenc.load(path, dtype="float32")
            torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=1e-3, atol=1e-3)
    found = llama_cpp.log_probabilities(dict.fromkeys(models, ids.tolist()), 256)
    off = {path.stem: differs(model, ids, found[path]) for path, model in models.items()}
    assert {name: error for name, error in off.items() if error > (GELU if "gemma" in name else 1e-3)} == {}


BASES = (None, 50000.0)
SCALINGS = ({}, {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, {"rope.scale_linear": 2.0},
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16},
            {"rope.scaling.attn_factor": 1.2})  # fmt: skip
FURTHER = (
    {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {"rope.scaling.factor": 4.0},
    {"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, SCALINGS[1] | {"rope.scaling.attn_factor": 1.2},
    SCALINGS[3] | {"rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_log_multiplier": 0.5, "rope.scaling.attn_factor": 1.1},
)  # fmt: skip
"""Tried with Llama's architecture alone, which all of them read alike, and with divisors of the frequencies too."""
TYPES = [name for name in gguf_files.ARCHITECTURES if name != "mistral"]


@pytest.mark.filterwarnings("ignore:.*reads no betas of yarn")
@pytest.mark.parametrize("name", TYPES)
def test_every_key_of_a_file_is_what_llama_cpp_takes_it_for(name, tmp_path):
    """Without a base it is 10000, whatever transformers' class has; none of the keys is dropped, and one that is not read is named."""
    model, files, ids = model_of(name), {}, tokens(2, 40)
    llama, divisors = name == "llama", [("rope_freqs.weight", torch.linspace(1, 3, 8))]
    scalings = (*SCALINGS, *FURTHER) if llama else SCALINGS
    for number, (base, scaling) in enumerate(itertools.product(BASES, scalings)):
        keys = {key: value for key, value in gguf_files.plain_keys(model).items() if key != "rope.freq_base"}
        keys |= scaling | ({} if base is None else {"rope.freq_base": base})
        if name == "phi3" and "rope.scaling.type" in keys and base:  # Phi-4-mini: a part of a head
            keys["rope.dimension_count"] = 12
        files[gguf_files.written(tmp_path / f"{number}.gguf", model, keys)] = keys
        if llama:
            files[gguf_files.written(tmp_path / f"{number} and divisors.gguf", model, keys, divisors)] = keys
    found = llama_cpp.log_probabilities(dict.fromkeys(files, ids.tolist()), 64)
    for file, keys in files.items():
        again, _ = posenc.load(file, dtype="float32")
        assert differs(again, ids, found[file]) < (1e-3 if llama else GELU), keys
    other = gguf_files.written(tmp_path / "other.gguf", model, keys | {"rope.pairing": 2})
    with pytest.warns(UserWarning, match=r"rope.pairing=2 is not read"):
        posenc.load(other)
    assert "rope.pairing=2" in str(compare(read_config(other)))


def test_a_part_of_a_head_that_the_class_does_not_rotate_is_refused(tmp_path):
    keys = gguf_files.plain_keys(model := model_of("qwen2")) | {"rope.dimension_count": 8}
    with pytest.raises(InputError, match=r"8 channels of a head rotate \(rope.dimension_count\)"):
        posenc.load(gguf_files.written(tmp_path / "m.gguf", model, keys))


def test_what_llama_cpp_does_not_read_is_said_or_refused(tmp_path):
    model = model_of("llama")
    yarn = gguf_files.plain_keys(model) | SCALINGS[3] | {"rope.scaling.yarn_beta_fast": 8.0}
    with pytest.warns(UserWarning, match="reads no betas of yarn from files of llama"):
        posenc.load(gguf_files.written(tmp_path / "m.gguf", model, yarn))
    with pytest.raises(InputError, match=r"rope.scaling.type='dynamic': it has none of that name"):
        posenc.load(gguf_files.written(tmp_path / "m.gguf", model, yarn | {"rope.scaling.type": "dynamic"}))


def test_lists_of_divisors_that_differ_are_refused(tmp_path):
    """Phi-3's, between which llama.cpp chooses by its context, and transformers by the text."""
    keys = gguf_files.plain_keys(model := small_model("phi3")) | {"rope.scaling.original_context_length": 16}
    alike = [(f"rope_factors_{each}.weight", [1.5] * 8) for each in ("short", "long")]
    loaded, _ = posenc.load(gguf_files.written(tmp_path / "phi3.gguf", model, keys, alike))
    assert loaded.config.rope_parameters["original_max_position_embeddings"] == 16
    lists = [("rope_factors_short.weight", [1.0] * 8), ("rope_factors_long.weight", [2.0] * 8)]
    with pytest.raises(InputError, match=r"other divisors .* for long inputs than for short ones"):
        posenc.load(gguf_files.written(tmp_path / "phi3.gguf", small_model("phi3"), tensors=lists))


def test_the_command_copies_all_but_the_keys_of_the_rotation(tmp_path, capsys):
    (tmp_path / "two words").mkdir()
    source, file = gguf_files.written(tmp_path / "m.gguf", model_of("llama")), tmp_path / "two words" / "longer.gguf"
    command = ("extend", str(source), "--method", "yarn", "--factor", "4", "--gguf", str(file))
    code, out, _ = run(capsys, *command)
    assert code == 0
    assert f"{file}: llama, yarn, 256 tokens" in out
    assert f"llama-server -m '{file}' -c 256" in out
    before, after = ({key: v.contents() for key, v in GGUFReader(path).fields.items()} for path in (source, file))
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert {key for key in changed if not key.startswith(("llama.rope.scaling.", "GGUF."))} == {"llama.context_length"}
    old, new = ({each.name: each.data.tolist() for each in GGUFReader(path).tensors} for path in (source, file))
    assert old == new
    (reading,) = [each for each in compare(read_config(file)).readings if each.program == "llama.cpp"]
    assert (reading.schedule, reading.attention_factor) == ("yarn", pytest.approx(1.138629436))
    code, _, err = run(capsys, *command)
    assert (code, "name a new file that ends in .gguf" in err) == (2, True)
    assert [each.name for each in (tmp_path / "two words").iterdir()] == ["longer.gguf"]


def test_refusals(tmp_path, capsys):
    source = gguf_files.written(tmp_path / "m.gguf", model_of("llama"))
    with pytest.raises(InputError, match="folder does not exist"):
        rewrite(source, tmp_path / "none" / "m.gguf", "yarn", factor=4)
    with pytest.raises(InputError, match="no such file"):
        rewrite(tmp_path / "none.gguf", tmp_path / "new.gguf", "yarn", factor=4)
    with pytest.raises(InputError, match="cannot express the position map rerope"):
        rewrite(source, tmp_path / "new.gguf", "rerope", factor=4, window=16)
    code, _, err = run(capsys, "extend", str(tmp_path), "--method", "yarn", "--factor", "4", "--gguf", "new.gguf")
    assert (code, "make one of the model with llama.cpp's convert_hf_to_gguf.py" in err) == (2, True)
    with pytest.raises(AttributeError, match=r"convert_hf_to_gguf.py, and extend that file by posenc extend"):
        posenc.to_gguf  # noqa: B018
    assert [each.name for each in tmp_path.iterdir()] == ["m.gguf"]
