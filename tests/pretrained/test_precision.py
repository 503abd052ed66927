"""The dtypes that a model computes in and is saved in: its checkpoint's, or what is asked for."""

import json
from importlib import import_module

import pytest
import torch
from safetensors.torch import load_file

import posenc
from posenc.backends.precision import HALF
from posenc.errors import InputError
from references.commands import run

LOAD = import_module("posenc.pretrained.load")


@pytest.fixture
def folder(folder, llama):
    """A checkpoint in bfloat16, and a text beside it."""
    llama.to(torch.bfloat16).save_pretrained(folder)
    (folder.parent / "text.txt").write_text(" ".join(f"w{(7 * i * i) % 94}" for i in range(300)))
    return folder


def stored(folder):
    """The dtypes of a checkpoint's weights, and the one in its configuration."""
    weights = {str(w.dtype).removeprefix("torch.") for w in load_file(folder / "model.safetensors").values()}
    return *weights, json.loads((folder / "config.json").read_text())["dtype"]


def test_auto_is_the_checkpoints_dtype_and_the_files(folder, tmp_path):
    model, tokenizer = posenc.load(folder)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    posenc.extend(model, "yarn", factor=2)
    posenc.to_hf(model, tmp_path / "saved", tokenizer)
    assert stored(tmp_path / "saved") == ("bfloat16", "bfloat16")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "saved" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_what_was_asked_for_is_what_is_saved(folder, tmp_path):
    posenc.to_hf(posenc.load(folder, dtype="float32")[0], tmp_path / "saved")
    assert stored(tmp_path / "saved") == ("float32", "float32")
    model, _ = posenc.load(folder)
    posenc.to_hf(model.to(torch.float16), tmp_path / "half")
    assert stored(tmp_path / "half") == ("float16", "float16")


def test_tied_weights_are_written_once(llama, tmp_path):
    llama.config.tie_word_embeddings = True
    llama.tie_weights()
    llama.to(torch.bfloat16).save_pretrained(tmp_path / "model")
    model, _ = posenc.load(tmp_path / "model", dtype="float32")
    assert torch.equal(model.lm_head.weight, llama.lm_head.weight.float())
    posenc.to_hf(model.to(torch.bfloat16), tmp_path / "saved")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("model", "saved")]
    assert sizes[0] == sizes[1]


def test_a_dtype_by_name_or_refused(folder):
    assert posenc.load(folder, dtype="float32")[0].dtype == torch.float32
    for wrong in ("bfloat", "int8"):
        with pytest.raises(InputError, match=r"dtype.*auto, (bfloat16|float32)"):
            posenc.load(folder, dtype=wrong)


def test_what_is_slow_here_is_said_in_one_line(folder, monkeypatch, capsys):
    monkeypatch.setattr(LOAD, "slower_than_float32", lambda dtype, device="cpu": dtype in HALF)
    with pytest.warns(UserWarning, match=r"^posenc: this machine is slower in bfloat16 than in float32"):
        posenc.load(folder)
    capsys.readouterr()
    code, out, err = run(capsys, "doctor", folder, "--dtype", "bfloat16")
    assert code == 0
    assert "bfloat16" in out
    (line,) = err.splitlines()
    assert line.startswith("posenc doctor: warning: this machine is slower in bfloat16")


def test_the_command_reports_the_dtype_and_saves_in_it(folder, tmp_path, capsys):
    text = ("--text", folder.parent / "text.txt")
    code, out, _ = run(capsys, "extend", folder, "--method", "yarn", "--factor", 2, *text, "--out", tmp_path / "out")
    assert code == 0
    assert "\ncomputed in bfloat16\n" in out
    assert stored(tmp_path / "out") == ("bfloat16", "bfloat16")
    assert json.loads((tmp_path / "out" / "extend.json").read_text())["precision"] == "bfloat16"


@pytest.mark.parametrize("device", ["cuda", "cuda:99", torch.device("cuda", 99)])
def test_a_device_that_is_not_there_is_refused_before_the_weights_are_read(folder, device, monkeypatch):
    if str(device) == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    monkeypatch.setattr(LOAD, "_from_pretrained", lambda *_: pytest.fail("it was read"))
    with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|NVIDIA"):
        posenc.load(folder, device=device)


def test_an_out_of_memory_error_is_passed_on(folder, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", full)
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory$"):
        posenc.load(folder)
