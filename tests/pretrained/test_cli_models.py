"""posenc extend and posenc doctor from end to end, on a folder with a tiny Llama and its tokenizer."""

import importlib.util
import json
import math
import signal
from importlib import import_module
from itertools import pairwise

import pytest
import torch
import transformers

import posenc
from posenc import InputError
from posenc.pretrained import loss_by_position
from references.commands import run
from references.small_models import edit

finetune_module = import_module("posenc.pretrained.finetune")
TEXT = " ".join(f"w{(7 * index * index + index // 5) % 94}" for index in range(400))


@pytest.fixture
def folder(folder, capsys):
    """With a text beside it."""
    (folder.parent / "text.txt").write_text(TEXT)
    capsys.readouterr()
    return folder


def test_doctor_finds_nothing_in_a_clean_folder(folder, capsys, tmp_path):
    code, out, _ = run(capsys, "doctor", folder)
    assert code == 0
    assert "llama: 2 layers, float32, attention sdpa, for 64 tokens" in out
    assert "rotary in all layers: 16 of 16 channels, half layout, rope_theta 10000" in out
    assert out.endswith("nothing found\n")
    code, out, _ = run(capsys, "doctor", folder, "--json", "--out", tmp_path / "out", "--dtype", "bfloat16")
    assert code == 0
    report = json.loads(out)
    assert report == json.loads((tmp_path / "out" / "doctor.json").read_text())
    assert report["name"] == str(folder)
    assert report["command"].startswith(f"posenc doctor {folder}")
    assert report["model"]["dtype"] == "bfloat16"
    assert report["findings"] == []
    assert report["wrong"] is False


def test_doctor_fails_where_something_is_wrong(folder, capsys):
    edit(folder, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 8.0})
    code, out, _ = run(capsys, "doctor", folder)
    assert code == 1
    assert "wrong: cache_differs" in out


@pytest.mark.parametrize("window", [0, -1])
def test_doctor_finds_a_window_without_keys(folder, capsys, window):
    edit(folder, model_type="mistral", sliding_window=window)
    code, out, _ = run(capsys, "doctor", folder)
    assert code == 1
    assert f"sliding_window={window}: must be at least 1" in out
    with pytest.raises(InputError, match=f"sliding_window={window}: must be at least 1"):
        posenc.load(folder)


def test_extend_measures_what_it_did(folder, capsys, tokenizer, tmp_path):
    arguments = ["extend", folder, "--method", "rerope", "--factor", 4, "--option", "window=16"]
    arguments += ["--text", folder.parent / "text.txt"]
    code, out, err = run(capsys, *arguments)
    assert code == 0
    assert "llama extended by rerope" in out
    assert "as loaded" in out
    assert "cut to 64" in out
    assert "[3/3]" in err
    code, out, _ = run(capsys, *arguments, "--json", "--verify-tokens", 200)
    report = json.loads(out)
    found = report["verification"]
    assert report["extension"]["map"]["window"] == 16
    assert found["edges"][-1] == 200
    assert 64 in found["edges"]
    assert min(high - low for low, high in pairwise(found["edges"])) > 12  # half of a block
    # the same by hand
    model, _ = posenc.load(folder)
    ids = torch.tensor(tokenizer(TEXT).input_ids)[:200]
    variants = {"as loaded": loss_by_position(model, ids), "cut to 64": loss_by_position(model, ids, window=64)}
    posenc.extend(model, "rerope", factor=4, window=16)
    variants["extended"] = loss_by_position(model, ids)
    for variant, loss in variants.items():
        for mean, low, high in zip(found["losses"][variant], found["edges"], found["edges"][1:], strict=False):
            assert mean == pytest.approx(float(loss[low:high].nanmean()), abs=1e-5)
    assert variants["extended"][1:16] == pytest.approx(variants["as loaded"][1:16], abs=1e-4)
    assert not torch.allclose(variants["extended"][64:], variants["as loaded"][64:], atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "yarn"], "this method depends on the new length; pass --factor or --target-length"),
        (["--method", "dual_chunk+ntk"], "this method depends on the new length"),
        (["--method", "yarm", "--factor", "2"], "did you mean 'yarn'"),
        (["--method", "yarn", "--factor", "0.5"], "--factor 0.5: the new length over the context length, at least 1"),
        (["--method", "auto", "--factor", "0.5"], "--factor 0.5: the new length over the context length, at least 1"),
        (["--method", "auto"], "auto depends on the new length"),
        (["--method", "auto", "--factor", "2", "--seed", "1"], "--seed: is for fine-tuning"),
        (["--method", "auto", "--factor", "2", "--text", "nowhere.txt"], "--text nowhere.txt: No such file"),
        (["--method", "yarn", "--factor", "nan"], "--factor nan"),
        (["--method", "yarn", "--factor", "inf"], "--factor inf: pass a number that is finite"),
        (["--method", "yarn", "--factor", "2", "--option", "beta=3"], "unknown option 'beta'"),
        (["--method", "yarn+linear", "--factor", "2"], "two of a kind"),
    ],
)
def test_what_the_command_line_alone_can_refuse_loads_nothing(folder, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr("posenc.cli.common.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    code, _, err = run(capsys, "extend", folder, *arguments)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_extend_shows_the_gain(folder, capsys, monkeypatch):
    arguments = ["extend", folder, "--method", "yarn", "--target-length", 1024, "--text", folder.parent / "text.txt"]
    code, out, _ = run(capsys, *arguments, "--json")
    found = json.loads(out)["answers"]
    assert code == 0
    assert list(found["short"]) == ["as loaded", "extended"]
    assert len(found["short"]["extended"]) == len(found["questions"]) == 3
    assert found["about"] == f"a passkey at a quarter of 104 tokens (64 was the context length): {found['key']}"
    out = run(capsys, *arguments)[1]
    assert "  extended: not found, " in out
    assert "'The capital of France is': as loaded" in out
    with monkeypatch.context() as patch:
        patch.setattr("posenc.tasks.passkey.TASK", "w3 " * 200)
        assert "no passkey was asked for: " in run(capsys, *arguments)[1]
    monkeypatch.setattr("posenc.pretrained.answers.SECONDS", 0.0)
    assert "no passkey was asked for: one at 128 tokens takes" in run(capsys, *arguments)[1]


def test_a_configuration_is_enough_for_the_command(folder, capsys, monkeypatch):
    monkeypatch.setattr("posenc.cli.common.load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    for more in (["--print"], ["--print", "--json"]):
        code, out, _ = run(capsys, "extend", folder, "--method", "yarn", "--factor", 4, *more)
        assert code == 0
    assert json.loads(out)["config"]["rope_parameters"]["factor"] == 4.0
    code, again, _ = run(capsys, "extend", folder / "config.json", "--method", "yarn", "--factor", 4, "--json")
    assert json.loads(again)["programs"] == json.loads(out)["programs"]
    printing = "extend", folder, "--method", "yarn", "--factor", 4, "--print", "--out", folder.parent / "printed"
    assert [run(capsys, *printing)[0] for _ in range(2)] == [0, 0], "no model is saved, so the folder need not be empty"


def test_extend_says_how_far_it_verified(folder, capsys, monkeypatch):
    arguments = ["extend", folder, "--method", "yarn", "--target-length", 128, "--text", folder.parent / "text.txt"]
    code, out, _ = run(capsys, *arguments, "--verify-tokens", 50)
    assert code == 0
    assert "cut to" not in out
    assert "all within the 64 tokens" in out
    assert "read 50 of 128 tokens: as asked for" in out
    arguments[5] = 1024
    code, out, _ = run(capsys, *arguments)
    assert "read 400 of 1024 tokens: the text has no more" in out
    monkeypatch.setattr("posenc.pretrained.verify.SECONDS", 0.0)
    arguments[6:] = []
    code, out, _ = run(capsys, *arguments[:5], 2048)
    assert "read 1024 of 2048 tokens: about a minute's work; --verify-tokens 2048 reads all" in out


def test_extend_reads_the_language_reference_by_default(folder, capsys):
    code, out, _ = run(capsys, "extend", folder, "--method", "ntk", "--factor", 2, "--json")
    assert code == 0
    found = json.loads(out)["verification"]
    assert found["edges"][-1] == 128
    assert all(math.isfinite(mean) for means in found["losses"].values() for mean in means)


def extended(folder):
    model, _ = posenc.load(folder)
    posenc.extend(model, "linear", factor=2)
    return model


def test_extend_trains_at_the_new_length(folder, capsys, tmp_path):
    text, other = folder.parent / "text.txt", folder.parent / "other.txt"
    other.write_text(" ".join(f"w{(3 * index) % 94}" for index in range(300)))
    arguments = ["extend", folder, "--method", "linear", "--factor", 2, "--out", tmp_path / "long", "--text", other]
    arguments += [
        "--finetune",
        text,
        "--steps",
        6,
        "--learning-rate",
        0.01,
        "--batch-size",
        2,
        "--length",
        32,
        "--pose",
    ]
    code, out, _ = run(capsys, *arguments, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["finetuning"]["settings"]["target_length"] == 128
    assert len(report["finetuning"]["losses"]) == 6
    losses = report["verification"]["losses"]
    assert list(losses) == ["as loaded", "cut to 64", "extended", "fine-tuned"]
    assert losses["fine-tuned"] != losses["extended"]
    # what was saved is what was measured
    model, tokenizer = posenc.load(tmp_path / "long")
    loss = loss_by_position(model, torch.tensor(tokenizer(other.read_text()).input_ids)[:128])
    edges = report["verification"]["edges"]
    assert losses["fine-tuned"][-1] == pytest.approx(float(loss[edges[-2] : edges[-1]].mean()), abs=1e-4)
    two_texts = ["--no-verify", "--finetune", text, "--finetune", other, "--steps", 2]
    code, out, _ = run(capsys, *arguments[:6], *two_texts)
    assert code == 0
    assert "2 of 2 steps of 1 x 128 tokens on all weights" in out
    losses = posenc.finetune(extended(folder), [text.read_text(), other.read_text()], tokenizer, steps=2).losses
    assert f"loss {losses[0]:.3f} at first, {losses[1]:.3f} at last" in out


@pytest.mark.parametrize("checkpoint", [True, False])
def test_an_interrupted_training_is_not_lost(folder, capsys, tmp_path, monkeypatch, checkpoint):
    train = ["--finetune", folder.parent / "text.txt", "--steps", 4, "--length", 16, "--no-verify"]
    train += ["--checkpoint", tmp_path / "checkpoint"] if checkpoint else []
    command = ["extend", folder, "--method", "linear", "--factor", 2, *train, "--out", tmp_path / "out"]
    watched = finetune_module._Watch.on_log

    def interrupted(self, args, state, *given, **more):
        if state.global_step == 2 and "loss" in more["logs"]:
            signal.raise_signal(signal.SIGINT)
        return watched(self, args, state, *given, **more)

    monkeypatch.setattr(finetune_module._Watch, "on_log", interrupted)
    code, out, err = run(capsys, *command)
    assert code == 1
    assert "posenc extend: interrupted after 2 of 4 steps; " in err
    assert (tmp_path / "out").exists() == (not checkpoint)
    if not checkpoint:
        assert "2 of 4 steps" in out
        posenc.load(tmp_path / "out")
        return
    assert "run the same command again to continue" in err
    monkeypatch.setattr(finetune_module._Watch, "on_log", watched)
    with monkeypatch.context() as patch:  # another training is refused before anything is measured
        patch.setattr("posenc.cli.extend_command.Extend._before_and_after", lambda *_: pytest.fail("it was measured"))
        other = [*(part for part in command if part != "--no-verify"), "--seed", 1]
        code, _, err = run(capsys, *other)
        assert (code, "is of another model, text or settings" in err) == (2, True)
    code, out, err = run(capsys, *command)
    assert code == 0
    assert "4 steps of 1 x 16 tokens" in out
    assert "[4/4]" in err
    assert "fine-tuning, loss " in err


@pytest.mark.parametrize(
    ("method", "plain"), [("yarn", True), ("llama3+resonance", True), ("rerope:window=16", False), ("ntk+log_n", False)]
)
def test_extend_saves_what_loads_to_the_same_logits(folder, capsys, tmp_path, method, plain):
    out = tmp_path / "long"
    code, printed, _ = run(capsys, "extend", folder, "--method", method, "--factor", 4, "--no-verify", "--out", out)
    assert code == 0
    assert f"wrote {out}" in printed
    assert "vLLM: " in printed
    assert "llama.cpp: " in printed
    assert json.loads((out / "extend.json").read_text())["saved"]["plain"] is plain
    model, tokenizer = posenc.load(folder)
    posenc.extend(model, method, factor=4)
    ids = tokenizer(TEXT, return_tensors="pt").input_ids[:, :200]
    with torch.no_grad():
        want = model(ids).logits
        again, _ = posenc.load(out)
        torch.testing.assert_close(again(ids).logits, want, rtol=1e-3, atol=2e-3)
        stock = transformers.AutoModelForCausalLM.from_pretrained(out)
        if not plain:
            posenc.restore(again)
            assert not hasattr(again.config, "posenc")
        assert ((stock(ids).logits - want).abs().max() < 5e-3) == plain
    assert run(capsys, "doctor", out)[0] == 0
    code, _, err = run(capsys, "extend", folder, "--method", method, "--factor", 4, "--out", out)
    assert code == 2
    assert "is not empty" in err


TWICE = ["extend", "MODEL", "--factor", "2", "--method"]
CONFIG = ["extend", "MODEL/config.json", "--factor", "2", "--method"]
NONE = ["extend", "MODEL", "--method", "none"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctor"], "posenc doctor: error: the following arguments are required: MODEL"),
        (["doctor", "/no/such/model"], "posenc doctor: error: /no/such/model: no such file or folder"),
        (["doctor", "MODEL", "--dtype", "int8"], "--dtype: unknown choice 'int8'"),
        (["doctor", "MODEL", "--out", "/proc/nothing/here"], "--out /proc/nothing/here: "),
        (["doctor", "MODEL", "--device", "abacus"], "--device abacus: "),
        (["extend", "MODEL"], "posenc extend: error: the following arguments are required: --method"),
        ([*CONFIG, "rerope"], "no configuration expresses the position map rerope"),
        ([*CONFIG, "auto"], "auto measures the model; give its folder"),
        ([*CONFIG, "yarn", "--text", "MODEL/config.json"], "--text: needs the model"),
        ([*TWICE, "yarn:factor=1.5"], "reaches 96 tokens, and 128 are wanted"),
        ([*TWICE, "longrope", "--option", "short_factor=[1, 1]"], "schedule 'longrope' needs long_factor"),
        ([*TWICE, "fit"], "fit left posenc: extend by explicit"),
        ([*TWICE, "yarn", "--text", "LATIN"], "latin.txt: not text in UTF-8; give a"),
        ([*TWICE, "yarn", "--finetune", "LATIN"], "latin.txt: not text in UTF-8"),
        ([*TWICE, "yarn", "--target-length", "128"], "give one of them"),
        ([*TWICE, "yarn", "--option", "beta_fast"], "--option beta_fast: write"),
        ([*TWICE, "yarn:beta_fast"], "write beta_fast=value"),
        ([*TWICE, "none", "--text", "/no/text"], "--text /no/text: No such file"),
        ([*NONE, "--text", "EMPTY"], "has 0 tokens"),
        ([*NONE, "--verify-tokens", "1"], "--verify-tokens 1: must be at least 2"),
        ([*NONE, "--lora", "8"], "--lora: is for fine-tuning, give --finetune FILE"),
        ([*NONE, "--finetune", "/no/text"], "--finetune /no/text: No such file"),
        ([*NONE, "--finetune", "TEXT", "--text", "TEXT"], "the model is trained on it"),
        ([*NONE, "--finetune", "TEXT", "--no-verify", "--steps", "0"], "--steps 0"),
        ([*NONE, "--out", "/proc/nothing/here"], "--out /proc/nothing/here: "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(folder, capsys, arguments, message):
    texts = {name: folder.parent / f"{name.lower()}.txt" for name in ("EMPTY", "LATIN", "TEXT")}
    texts["EMPTY"].touch()
    texts["LATIN"].write_bytes("café ".encode("latin-1") * 200)
    places = {"MODEL": folder, "MODEL/config.json": folder / "config.json", **texts}
    code, out, err = run(capsys, *(places.get(argument, argument) for argument in arguments))
    assert code == 2
    assert out == ""
    (line,) = err.splitlines()
    assert message in line
    assert line.startswith("posenc")


def test_lists_are_options_of_the_command_line(folder, capsys):
    ones, factors = ",".join(["1"] * 8), "[1,1.5,2,2.5,3,3.5,4,4]"
    given = ["--option", f"short_factor={ones}", "--option", f"long_factor={factors}", "--no-verify"]
    code, out, _ = run(capsys, "extend", folder, "--method", "longrope", "--factor", 4, *given)
    assert code == 0
    assert "others up to 4 times slower" in out
    code, out, _ = run(
        capsys, "extend", folder, "--method", "explicit", "--factor", 4, "--no-verify", "--option", f"stretch={factors}"
    )
    assert code == 0


def test_a_model_without_a_tokenizer_is_examined_and_not_verified(llama, tmp_path, capsys):
    llama.save_pretrained(tmp_path)
    assert run(capsys, "doctor", tmp_path)[0] == 0
    code, _, err = run(capsys, "extend", tmp_path, "--method", "yarn", "--factor", 2)
    assert code == 2
    assert "has no tokenizer" in err
    code, out, _ = run(capsys, "extend", tmp_path, "--method", "yarn", "--factor", 2, "--no-verify")
    assert code == 0
    assert "extended by yarn" in out


def test_a_configuration_that_transformers_refuses_is_a_finding_and_one_line_where_it_is_loaded(folder, capsys):
    edit(folder, rope_parameters={"rope_type": "linear"})
    code, out, _ = run(capsys, "doctor", folder)
    assert code == 1
    assert "wrong: parameter_impossible" in out
    assert "factor=None" in out
    code, _, err = run(capsys, "extend", folder, "--method", "yarn", "--factor", 2)
    assert code == 2
    assert "factor=None" in err
    assert len(err.splitlines()) == 1


def test_a_learned_table_is_extended_verified_and_saved(folder, capsys, tmp_path):
    config = transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=2, n_positions=64, eos_token_id=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    arguments = ["--method", "hierarchical", "--factor", 2, "--text", folder.parent / "text.txt"]
    code, out, _ = run(capsys, "extend", folder, *arguments, "--out", tmp_path / "longer", "--json")
    assert code == 0
    found = json.loads(out)["verification"]
    assert list(found["losses"]) == ["cut to 64", "extended"]  # as it was, it has no row for token 64
    assert found["edges"][-1] == 128
    inside = found["edges"].index(64)
    extended, cut = (found["losses"][variant][:inside] for variant in ("extended", "cut to 64"))
    assert extended == pytest.approx(cut, abs=1e-5)
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "longer").config.n_positions == 128
    code, out, _ = run(capsys, "extend", folder, *arguments, "--verify-tokens", 50)
    assert code == 0
    assert "as loaded" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--length", 100000], "and a window 100000"),
        (["--dtype", "bfloat16"], "which loses small steps"),
        (["--lora", 4], "this needs peft, which is not installed: pip install 'posenc[peft]'"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_measured(folder, capsys, monkeypatch, arguments, message):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *where: None if name == "peft" else find(name, *where)
    )
    text = folder.parent / "text.txt"
    code, _, err = run(capsys, "extend", folder, "--method", "linear", "--factor", 2, "--finetune", text, *arguments)
    assert code == 2
    assert message in err.splitlines()[-1]  # a line before it may say that bfloat16 is slow here


def test_nothing_but_lines_of_ours_on_the_error_stream(folder, capsys, tmp_path):
    """No progress bar of saving, no advice of tokenizers, no source line under a warning."""
    edit(folder, auto_map={"AutoModelForCausalLM": "own.Model"})
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"model_max_length": 64}))
    arguments = ["--method", "yarn", "--factor", 4, "--text", folder.parent / "text.txt", "--out", tmp_path / "out"]
    code, _, err = run(capsys, "extend", folder, *arguments, "--verify-tokens", 100)
    assert code == 0
    first, *rest = err.splitlines()
    assert first.startswith(
        f"posenc extend: warning: {folder} names code in the checkpoint (auto_map), which was not run"
    )
    assert [line[:5] for line in rest] == ["[1/3]", "[2/3]", "[3/3]"]


def test_a_tokenizer_of_another_model_is_one_line(folder, tokenizer, capsys):
    tokenizer.add_tokens(["new"])
    tokenizer.save_pretrained(folder)
    (folder.parent / "text.txt").write_text(f"new {TEXT}")
    code, _, err = run(
        capsys, "extend", folder, "--method", "yarn", "--factor", 2, "--text", folder.parent / "text.txt"
    )
    assert code == 2
    assert "token 97 is beyond the model's vocabulary of 97" in err
