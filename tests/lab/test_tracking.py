"""A tracker receives the numbers that the run measured; if it fails, no result is lost."""

import json

import pytest

from posenc import InputError
from posenc.cli import main
from posenc.lab.experiment import Run
from posenc.lab.measure import measure
from posenc.lab.tracking import Tracking


def scalars(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_what_was_measured(corpus, tiny, tmp_path):
    run = Run("rope", 2, tiny, "")
    cell = measure(run, corpus)
    Tracking(["tensorboard"], tmp_path).finished(run, cell)
    found = scalars(tmp_path / "track" / "rope-seed-2")
    assert found["loss"] == [(step, pytest.approx(loss)) for step, loss in enumerate(cell.losses)]
    assert found["learning_rate"][0] == (0, pytest.approx(tiny.learning_rate))
    assert len(found["learning_rate"]) == tiny.steps
    for variant in cell.variants:
        for factor, losses in variant.paired.items():
            ((step, value),) = found[f"held_out/{variant.name}/{int(factor) * tiny.length}"]
            assert (step, value) == (tiny.steps, pytest.approx(sum(losses) / len(losses)))
    (settings,) = (tmp_path / "track").glob("rope-seed-2/*/hparams.yml")
    assert "encoding: rope" in settings.read_text()


@pytest.mark.slow
def test_a_comparison_that_goes_on_writes_nothing_twice(flags, tmp_path, capsys):
    command = [
        "compare",
        "--encodings",
        "none",
        "--seeds",
        "1",
        "--track",
        "tensorboard",
        "--out",
        str(tmp_path),
        *flags,
    ]
    assert [main(command), main(command)] == [0, 0]
    (cell,) = (tmp_path / "cells").iterdir()
    found = scalars(tmp_path / "track" / "none-seed-0")
    assert [v for _, v in found["loss"]] == pytest.approx(json.loads(cell.read_text())["cell"]["record"]["losses"])


def test_a_tracker_that_fails_is_warned_of_once(corpus, tiny, tmp_path, monkeypatch, capsys):
    from accelerate.tracking import TensorBoardTracker

    def fail(self, values, step=None):
        raise OSError("the service is gone")

    monkeypatch.setattr(TensorBoardTracker, "log", fail)
    run = Run("none", 0, tiny, "")
    cell, tracking = measure(run, corpus), Tracking(["tensorboard"], tmp_path)
    tracking.finished(run, cell)
    tracking.finished(run, cell)
    assert (
        capsys.readouterr().err == "posenc: warning: tracker tensorboard: the service is gone; continuing without it\n"
    )


def test_trackers_that_cannot_serve_are_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"tracker 'tensorbord'.*tensorboard"):
        Tracking(["tensorbord"], tmp_path)
    monkeypatch.setattr("accelerate.tracking._available_trackers", [])
    with pytest.raises(InputError, match=r"track='comet_ml': it is not installed: pip install comet-ml"):
        Tracking(["comet_ml"], tmp_path)


def test_an_evaluation_is_written_by_task_and_method(tmp_path):
    row = {"length": 64, "accuracy": {"mean": 0.5}, "loss": {"mean": 1.25}}
    task = {"task": "passkey", "methods": [{"method": "yarn:4", "by_length": [row, row | {"length": 128}]}]}
    Tracking(["tensorboard"], tmp_path).evaluated({"tasks": [task], "model": {"name": "m"}})
    found = scalars(tmp_path / "track" / "yarn_4-passkey")
    assert found == {"passkey/accuracy": [(64, 0.5), (128, 0.5)], "passkey/loss": [(64, 1.25), (128, 1.25)]}
