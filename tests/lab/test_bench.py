"""`posenc bench`: what is timed, the ratios, and the command."""

import json

import pytest
import torch

from posenc import cli
from posenc.errors import InputError
from posenc.lab.bench import DENSE, POSENC, SDPA, BenchSettings, BenchStudy, tables
from posenc.lab.study import run
from posenc.report.bench import files


@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "rope+alibi"])
@pytest.mark.parametrize("mode", ["forward", "train"])
def test_the_dense_bias_computes_what_posenc_does(name, mode):
    study = BenchStudy([name], [32], [mode], BenchSettings())
    calls = study.candidates(study.trials[0])
    assert list(calls) == [SDPA, POSENC, DENSE]
    assert (calls[POSENC]() - calls[DENSE]()).abs().max() < 1e-5
    assert calls[POSENC]().requires_grad == (mode == "train")
    assert (calls[POSENC]() - calls[SDPA]()).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["shaw", "softmax_n", "fox", "window:before=8"])
def test_what_is_no_dense_bias_is_left_out(name):
    with pytest.raises(InputError, match="unknown mode 'backward'"):
        BenchStudy([name], [32], ["backward"], BenchSettings())
    study = BenchStudy([name], [32], ["forward"], BenchSettings())
    assert list(study.candidates(study.trials[0])) == [SDPA, POSENC]


def test_a_run_has_its_tables_and_goes_on(tmp_path):
    study = BenchStudy(["rope", "shaw"], [8, 16], ["forward", "train"], BenchSettings(rounds=2))
    results = run(study, tmp_path, pages=files)
    assert results["complete"]
    assert len(results["rows"]) == 8
    forward, train = tables(results)
    assert [row[:2] for row in forward.rows] == [["rope", POSENC], ["rope", DENSE], ["shaw", POSENC], ["shaw", DENSE]]
    assert forward.rows[3][2:] == ["–", "–"]
    text = (tmp_path / "report.html").read_text()
    for row in (*forward.texts, *train.texts):
        assert all(cell in text for cell in row)
    again = run(study, tmp_path, pages=files)
    assert again["trials"]["kept_from_before"] == 8
    assert again["rows"] == json.loads(json.dumps(results["rows"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["alibbi"], "unknown encoding 'alibbi': did you mean 'alibi'"),
        (["--n", "1"], "--n 1: must lie between 2 and"),
        (["--rounds", "0"], "--rounds 0: must be at least 1"),
        (["--threads", "100000"], "--threads 100000: must lie between 1 and"),
        (["--device", "tpu"], "--device tpu: not here"),
    ],
)
def test_the_command_refuses_and_writes_nothing(arguments, message, tmp_path, capsys):
    assert cli.main(["bench", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_prints_what_it_measured(tmp_path, capsys):
    threads = torch.get_num_threads()
    assert cli.main(["bench", "alibi", "--n", "8", "--mode", "forward", "--rounds", "1", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "Attention, forward" in out
    assert "median (least..greatest)" in out
    assert torch.get_num_threads() == threads
    with pytest.raises(InputError, match="must be at least 1"):
        BenchSettings(rounds=0)
