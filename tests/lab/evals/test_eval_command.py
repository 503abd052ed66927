"""posenc eval on the command line."""

import json
import re

import pytest
import torch

from lab.evals.conftest import VOCABULARY
from posenc import cli
from posenc_cli.answers import DONE, USAGE
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
        (["--preset", "quik"], "unknown choice 'quik'"),
        (["--lengths", "10"], "--lengths 10: "),
        (["--lengths", "many"], "invalid int value"),
        (["--out", ""], "name a folder"),
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


def test_the_dtype_that_was_taken_is_recorded(saved, tmp_path, capsys):
    command = ["eval", str(saved), *SMALL, "--lengths", "80", "--depths", "1"]
    assert cli.main([*command, "--out", str(tmp_path / "out")]) == DONE
    assert "Computed in float32." in capsys.readouterr().out
    assert '\ndtype: "float32"\n' in (tmp_path / "out" / "config.yaml").read_text()
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["model"]["precision"] == "float32"


MISTAKES = {
    ("--tasks", "passkey", "--lengths", "64"): r"--tasks passkey, --lengths 64: passkey needs about \d+ tokens",
    ("--tasks", "passkey", "--times", "1"): r"--tasks passkey, length=64: passkey needs about \d+ tokens",
    ("--tasks", "perplexity", "--text", "nosuch"): "--text nosuch: No such file or directory; give a text file",
    ("--tasks", "needle:source=nosuch"): "--tasks needle:source=nosuch: No such file or directory; give a text file",
    ("--methods", "rerope:window=256", "--lengths", "1024"): "--methods rerope:window=256: reaches 64 .*; --methods none measures",
    ("--methods", "fit"): "--methods fit: fit left posenc: extend by explicit",
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
