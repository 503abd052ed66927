# SPDX-License-Identifier: Apache-2.0
"""benchmarks/experiments.py: what is planned can be trained, goes on where it stopped, and adds up."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from posenc.lab.archive import read

FILE = Path(__file__).parents[2] / "benchmarks/experiments.py"


@pytest.fixture(scope="module")
def experiments():
    spec = spec_from_file_location("experiments", FILE)
    sys.modules["experiments"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["experiments"]


def test_every_setting_has_an_archive_of_its_own_and_makes_its_encodings(experiments):
    made = set()
    for trials in experiments.EXPERIMENTS.values():
        folders = [plan.folder for plan in trials.plans]
        assert len({*folders}) == len(folders)
        assert len({(repr(plan.settings), plan.data) for plan in trials.plans}) == len(folders)
        assert 1 <= trials.seeds <= 16
        for plan in trials.plans:
            assert {"none", "rope", "alibi"} <= {*plan.encodings}
            if plan.data in experiments.TEXTS:
                s = plan.settings
                assert s.length * s.batch_size == 1536  # tokens a step, by every length
                assert (s.windows, s.contexts[-1]) == (200, s.longest)
                assert s.length in s.contexts  # else there is no gain
            for encoding in plan.encodings:
                shape = (
                    encoding,
                    plan.settings.dim,
                    plan.settings.num_heads,
                    plan.settings.num_layers,
                    plan.settings.tokens,
                )
                if shape not in made:
                    plan.settings.make_encoding(encoding)
                    made.add(shape)
    assert len(experiments.SIXTEEN) == len({*experiments.SIXTEEN}) == 16


def test_the_leaders_are_those_of_the_leaderboard(experiments):
    page = FILE.with_name("leaderboard.md").read_text(encoding="utf-8").split("<!-- scores")[1]
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert tuple(rows[:12]) == experiments.LEADERS


def test_an_experiment_goes_on_and_its_shares_add_up(experiments, monkeypatch, tmp_path, capsys):
    small = {"steps": 1, "sequences": 2, "factors": (1,), "dim": 8, "num_layers": 1, "num_heads": 2, "batch_size": 2}
    plans = tuple(
        experiments.Plan(
            f"copy-{length}", experiments.TASKS["copy"]().changed(length=length, **small), encodings=("none", "alibi")
        )
        for length in (2, 3)
    )
    monkeypatch.setitem(experiments.EXPERIMENTS, "recall", experiments.Trials("?", plans, 1))

    def ran(*arguments):
        monkeypatch.setattr(sys, "argv", ["experiments.py", "recall", *arguments])
        experiments.main()
        return capsys.readouterr()

    one, two = tmp_path / "one", tmp_path / "two"
    assert ran("--out", str(one), "--dry").out.splitlines()[0].startswith("copy-2: 2 runs of copy, 1 steps")
    ran("--out", str(one), "--share", "1/2")
    before = [part for folder in ("copy-2", "copy-3") for part in read(one / "archives/recall" / folder)]
    assert sum(len(part.runs) for part in before) == 2
    assert "2 of 4 runs are here already" in ran("--out", str(two), "--merge", str(one)).err
    for folder in ("copy-2", "copy-3"):
        (part,) = read(two / "archives/recall" / folder)
        assert {*part.runs} == {"none", "alibi"}
