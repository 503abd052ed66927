"""posenc eval on the command line."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from lab.evals.conftest import VOCABULARY
from posenc import cli
from posenc_cli.answers import DONE, FAILED, USAGE
from references import PATIENCE
from references.small_models import small_model

SMALL = ["--tasks", "copying:segment=8", "--methods", "rerope:window=16", "--lengths", "80", "96", "--samples", "2"]


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    small_model("llama", vocab_size=VOCABULARY).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def test_from_the_command_to_the_report(saved, tmp_path, capsys):
    command = ["eval", str(saved), *SMALL, "--depths", "0", "1", "--out", str(tmp_path / "out")]
    assert cli.main(command) == DONE
    shown, results = capsys.readouterr(), json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["complete"]
    assert results["model"]["trained_length"] == 64
    assert results["settings"]["depths"] == [0, 1]
    assert results["command"].startswith("posenc eval ")
    assert "truncation" in shown.out
    assert "[12/12]" in shown.err  # 3 methods, 2 lengths, 2 depths
    page = (tmp_path / "out" / "report.html").read_text()
    assert "copying" in page
    assert cli.main([*command, "--json"]) == DONE
    again = capsys.readouterr()
    assert json.loads(again.out)["cells"] == {"planned": 12, "finished": 12, "kept_from_before": 12}
    assert "12 of 12 cells are here already" in again.err


def test_times_of_a_preset_are_run_again_from_the_settings(saved, tmp_path, capsys):
    flags = ["--preset", "longer", "--tasks", "copying:segment=8", "--methods", "yarn", "--samples", "2", "--json"]
    assert cli.main(["eval", str(saved), *flags, "--times", "2", "--out", str(tmp_path / "out")]) == DONE
    first = json.loads(capsys.readouterr().out)
    assert first["settings"]["lengths"] == [128]
    config = tmp_path / "out" / "config.yaml"
    assert cli.main(["eval", "--config", str(config), "--json", "--out", str(tmp_path / "again")]) == DONE
    again = json.loads(capsys.readouterr().out)
    assert again["settings"] == first["settings"]
    losses = [{row["method"]: row["loss"] for row in r["longer"][0]["tasks"][0]["rows"]} for r in (first, again)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tasks", "coping"], "did you mean 'copying'"),
        (["--methods", "yarm"], "did you mean 'yarn'"),
        (["--preset", "quik"], "unknown choice 'quik'"),
        (["--depths", "5"], "--depths 5: must be from 0"),
        (["--samples", "1"], "--samples 1: must be an integer from 2"),
        (["--lengths", "10"], "--lengths 10: "),
        (["--lengths", "many"], "invalid int value"),
        (["--out", ""], "name a folder"),
        (["--text", "nowhere.txt", "--tasks", "perplexity"], "--text nowhere.txt: No such file"),
        (["--device", "tpu"], "--device tpu: not here"),
    ],
)
def test_mistakes_are_one_line(flags, message, saved, tmp_path, capsys):
    assert cli.main(["eval", str(saved), *SMALL, "--out", str(tmp_path), *flags]) == USAGE
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("posenc eval: error: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "cells").exists()


def test_threads_are_set_where_they_are_asked_for(saved, tmp_path):
    before = torch.get_num_threads()
    try:
        command = ["eval", str(saved), *SMALL, "--lengths", "80", "--depths", "1", "--json"]
        assert cli.main([*command, "--threads", "3", "--out", str(tmp_path / "out")]) == DONE
        assert torch.get_num_threads() == 3
        assert cli.main([*command, "--threads", "0", "--out", str(tmp_path / "no")]) == USAGE
    finally:
        torch.set_num_threads(before)


def test_the_dtype_that_was_taken_is_recorded(saved, tmp_path, capsys):
    command = ["eval", str(saved), *SMALL, "--lengths", "80", "--depths", "1"]
    assert cli.main([*command, "--out", str(tmp_path / "out")]) == DONE
    assert "Computed in float32." in capsys.readouterr().out
    assert '\ndtype: "float32"\n' in (tmp_path / "out" / "config.yaml").read_text()
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["model"]["precision"] == "float32"


def test_mistakes_in_arguments_are_found_before_a_model_is_loaded(tmp_path, capsys):
    assert cli.main(["eval", "no-such-folder/x/y", "--tasks", "coping", "--out", str(tmp_path)]) == USAGE
    assert "did you mean 'copying'" in capsys.readouterr().err


def test_several_processes_of_a_launcher_are_refused(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["eval", str(saved), *SMALL, "--out", str(tmp_path / "out")]) == USAGE
    assert "WORLD_SIZE='2': an evaluation runs in one process" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_interrupted_evaluation_stores_its_finished_cells(saved, tmp_path):
    command = [sys.executable, "-m", "posenc.cli", "eval", str(saved), *SMALL, "--seeds", "40", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < deadline and len(list(tmp_path.glob("cells/*.json"))) < 3:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == FAILED, error
    assert "cells are stored and reported, run the same command again to continue" in error
    results = json.loads((tmp_path / "results.json").read_text())
    assert not results["complete"]
    assert results["cells"]["finished"] == len(list(tmp_path.glob("cells/*.json"))) >= 3


MISTAKES = {
    ("--tasks", "passkey", "--lengths", "64"): r"--tasks passkey, --lengths 64: passkey needs about \d+ tokens",
    ("--tasks", "passkey", "--times", "1"): r"--tasks passkey, length=64: passkey needs about \d+ tokens",
    ("--tasks", "perplexity", "--text", "nosuch"): "--text nosuch: No such file or directory; give a text file",
    ("--tasks", "needle:source=nosuch"): "--tasks needle:source=nosuch: No such file or directory; give a text file",
    ("--methods", "rerope:window=256", "--lengths", "1024"): "--methods rerope:window=256: reaches 64 .*; --methods none measures",
    ("--methods", "fit"): "--methods fit: fit left posenc: extend by longrope",
    ("--model-fingerprint", "abc"): "[^ =]+model[0-9]*: has changed",
}  # fmt: skip


@pytest.mark.parametrize("flags", MISTAKES, ids=" ".join)
def test_a_mistake_is_stated_once_and_its_remedy_can_be_typed(flags, saved, tmp_path, capsys):
    assert cli.main(["eval", str(saved), "--out", str(tmp_path / "out"), *flags]) == USAGE
    message = capsys.readouterr().err.splitlines()[-1].removeprefix("posenc eval: error: ")
    assert re.match(MISTAKES[flags], message), message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_model_of_zeros_is_reported_and_one_of_nan_refused(value, tokenizer, tmp_path, capsys):
    model = small_model("llama", vocab_size=VOCABULARY)
    with torch.no_grad():
        for weights in model.parameters():
            weights.fill_(value)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    code = cli.main(["eval", str(tmp_path / "model"), *SMALL, "--out", str(tmp_path / "out")])
    err = capsys.readouterr().err
    assert code == (USAGE if value else DONE), err
    assert ("give NaN or infinite numbers" in err) == (code == USAGE)
    assert (tmp_path / "out" / "report.html").exists() == (code == DONE)


@pytest.mark.parametrize(("pairs", "fills"), [("", True), (":pairs=2", False)])
def test_prompts_that_do_not_fill_the_length_are_named(pairs, fills, saved, tmp_path, capsys):
    flags = [f"--tasks=key_value:keys=digits:values=digits{pairs}", "--methods=none", "--lengths", "1024", "--depths=0"]
    out = tmp_path / "out"
    assert cli.main(["eval", str(saved), *flags, "--samples=2", "--out", str(out)]) == DONE
    results = json.loads((out / "results.json").read_text())
    tokens = results["tasks"][0]["methods"][0]["cells"][0]["tokens"]
    assert (tokens >= 512) == fills
    assert (f"prompts of 1024 tokens have {tokens:.0f} on average" in " ".join(results["limits"])) != fills
