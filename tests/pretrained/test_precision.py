"""The dtypes that a model computes in and is saved in: reports name the first, which depends on the machine, and files
have their checkpoint's dtype. The tests replace the measurement of the machine, so they are the same on all machines."""

import json
from importlib import import_module

import pytest
import torch
from safetensors.torch import load_file

import posenc
from posenc.backends.precision import HALF
from posenc.errors import InputError
from references import gguf_files
from references.commands import run

LOAD = import_module("posenc.pretrained.load")
WORDS = ["<unk>", "<s>", "</s>", "w", "x", "0", "w0", *(f"x{index}" for index in range(90))]


def machine(monkeypatch, slow):
    """Replace the measurement of the machine: slow or fast in half precision."""
    monkeypatch.setattr(LOAD, "slower_than_float32", lambda dtype, device="cpu": slow and dtype in HALF)
    monkeypatch.setattr(LOAD, "fastest_dtype", lambda device="cpu": torch.float32 if slow else torch.bfloat16)


@pytest.fixture
def folder(llama, tokenizer, tmp_path):
    """A checkpoint in bfloat16."""
    llama.to(torch.bfloat16).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text(" ".join(f"w{(7 * i * i) % 94}" for i in range(300)))
    return tmp_path / "model"


def stored(folder):
    """The dtypes of a checkpoint's weights, and the one in its configuration."""
    weights = {str(w.dtype).removeprefix("torch.") for w in load_file(folder / "model.safetensors").values()}
    return *weights, json.loads((folder / "config.json").read_text())["dtype"]


@pytest.mark.parametrize(("slow", "wanted"), [(True, torch.float32), (False, torch.bfloat16)])
def test_auto_computes_in_the_fastest_dtype_and_saves_in_the_checkpoints(folder, tmp_path, monkeypatch, slow, wanted):
    machine(monkeypatch, slow)
    model, tokenizer = posenc.load(folder)
    assert {p.dtype for p in model.parameters()} == {wanted}
    assert model.config.dtype == wanted
    ids = torch.arange(3, 43)[None]
    exact, _ = posenc.load(folder, dtype=wanted)
    assert torch.equal(model(ids).logits, exact(ids).logits)
    posenc.extend(model, "yarn", factor=2)
    report = posenc.to_hf(model, tmp_path / "saved", tokenizer)
    assert stored(tmp_path / "saved") == ("bfloat16", "bfloat16")
    assert ("weights in bfloat16, as the checkpoint" in str(report)) == slow
    posenc.to_hf(model, tmp_path / "exact", dtype="float32")
    assert stored(tmp_path / "exact") == ("float32", "float32")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "saved" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_checkpoint_in_float32_stays_so_everywhere(llama, tmp_path, monkeypatch):
    llama.save_pretrained(tmp_path / "model")
    for slow in (True, False):
        machine(monkeypatch, slow)
        model, _ = posenc.load(tmp_path / "model")
        assert model.dtype == torch.float32
        assert LOAD.chosen_because(model) == "float32"


def test_what_was_asked_for_is_what_is_saved(folder, tmp_path, monkeypatch):
    machine(monkeypatch, slow=True)
    posenc.to_hf(posenc.load(folder, dtype="float32")[0], tmp_path / "saved")
    assert stored(tmp_path / "saved") == ("float32", "float32")
    model, _ = posenc.load(folder)
    posenc.to_hf(model.to(torch.float16), tmp_path / "half")
    assert stored(tmp_path / "half") == ("float16", "float16")


def test_tied_weights_are_written_once(llama, tmp_path, monkeypatch):
    machine(monkeypatch, slow=True)
    llama.config.tie_word_embeddings = True
    llama.tie_weights()
    llama.to(torch.bfloat16).save_pretrained(tmp_path / "model")
    model, _ = posenc.load(tmp_path / "model")
    posenc.to_hf(model, tmp_path / "saved")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("model", "saved")]
    assert sizes[0] == sizes[1]


def test_a_dtype_by_name_or_refused(folder):
    assert posenc.load(folder, dtype="float32")[0].dtype == torch.float32
    for wrong in ("bfloat", "int8"):
        with pytest.raises(InputError, match=r"dtype.*auto, (bfloat16|float32)"):
            posenc.load(folder, dtype=wrong)


def test_what_is_slow_here_is_taken_with_one_line(folder, monkeypatch, capsys):
    machine(monkeypatch, slow=True)
    with pytest.warns(UserWarning, match=r"^posenc: dtype bfloat16: this machine is slower in it than in float32"):
        model, _ = posenc.load(folder, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    capsys.readouterr()
    code, out, err = run(capsys, "doctor", folder, "--dtype", "bfloat16")
    assert code == 0
    assert "bfloat16" in out
    (line,) = err.splitlines()
    assert line.startswith("posenc doctor: warning: dtype bfloat16: this machine is slower")


def test_the_dtype_of_a_gguf_file_and_of_quantised_weights(llama, tmp_path, monkeypatch):
    gguf_files.write(tmp_path / "tiny.gguf", llama, WORDS)
    machine(monkeypatch, slow=False)
    assert posenc.load(tmp_path)[0].dtype == torch.float32  # as its tensors are
    assert LOAD.computing_dtype(None, "cpu") == torch.bfloat16
    machine(monkeypatch, slow=True)
    assert LOAD.computing_dtype(None, "cpu") == torch.float32


def test_the_command_reports_the_dtype_and_saves_in_the_checkpoints(folder, tmp_path, monkeypatch, capsys):
    machine(monkeypatch, slow=True)
    text = ("--text", folder.parent / "text.txt")
    capsys.readouterr()
    code, out, err = run(capsys, "extend", folder, "--method", "yarn", "--factor", 2, *text, "--out", tmp_path / "out")
    assert code == 0
    why = "computed in float32: the checkpoint is in bfloat16, in which this machine is slower"
    assert f"\n{why}\n" in out
    assert err.splitlines()[0] == f"posenc extend: {why.replace('computed', 'computes')}"
    assert stored(tmp_path / "out") == ("bfloat16", "bfloat16")
    report = json.loads((tmp_path / "out" / "extend.json").read_text())
    assert f"computed in {report['precision']}" == why


def test_full_weights_are_trained_in_float32_on_every_machine(folder, tmp_path, monkeypatch, capsys):
    machine(monkeypatch, slow=False)
    train = ("--finetune", folder.parent / "text.txt", "--steps", 2, "--length", 16, "--no-verify")
    code, out, _ = run(capsys, "extend", folder, "--method", "linear", "--factor", 2, *train, "--out", tmp_path / "out")
    assert code == 0
    assert "2 steps" in out
    assert "computed in float32: the checkpoint is in bfloat16, in which small steps of a training are lost" in out
    assert stored(tmp_path / "out") == ("bfloat16", "bfloat16")


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
