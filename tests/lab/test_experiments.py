# SPDX-License-Identifier: Apache-2.0
"""benchmarks/experiments.py: what is planned can be trained, goes on where it stopped, and adds up."""

import json
import random
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from archives import read

from posenc.errors import InputError
from posenc.lab.data import corpora
from posenc.lab.machine import cpu

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
                assert plan.folder.startswith(f"{plan.data}-")  # by which its archives are read
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


def encodings_in(folder):
    return [cell.facts["encoding"] for cell in read(folder)]


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
    assert len(before) == 2
    assert "2 of 4 runs are here already" in ran("--out", str(two), "--merge", str(one)).err
    for folder in ("copy-2", "copy-3"):
        assert encodings_in(two / "archives/recall" / folder) == ["alibi", "none"]
    three = tmp_path / "three"
    monkeypatch.setattr(experiments, "COMMITTED", one / "archives")  # two of the four runs
    assert "[2/2]" in ran("--out", str(three)).err
    for folder in ("copy-2", "copy-3"):
        assert encodings_in(three / "archives/recall" / folder) == ["alibi", "none"]


def test_what_is_finished_is_archived_when_it_is_stopped(experiments, monkeypatch, tmp_path):
    settings = experiments.TASKS["copy"]().changed(
        length=2, steps=1, sequences=2, factors=(1,), dim=8, num_layers=1, num_heads=2, batch_size=2
    )
    plan = experiments.Plan("copy-2", settings, encodings=("none", "alibi"))
    monkeypatch.setitem(experiments.EXPERIMENTS, "recall", experiments.Trials("?", (plan,), 1))
    measure = experiments.Planned.measure

    def stopped(self, job, tick):
        if job[0].encoding == "alibi":
            raise SystemExit(143)  # as SIGTERM does
        return measure(self, job, tick)

    monkeypatch.setattr(experiments.Planned, "measure", stopped)
    monkeypatch.setattr(sys, "argv", ["experiments.py", "recall", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="143"):
        experiments.main()
    assert encodings_in(tmp_path / "archives/recall/copy-2") == ["none"]


def test_experiments_with_a_setting_in_common_are_refused(experiments, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(experiments.EXPERIMENTS, "again", experiments.EXPERIMENTS["tasks"])
    monkeypatch.setattr(sys, "argv", ["experiments.py", "tasks", "again", "--out", str(tmp_path), "--dry"])
    with pytest.raises(SystemExit):
        experiments.main()
    assert "again and tasks have a setting in common" in capsys.readouterr().err


def test_another_machine_gets_the_texts_of_the_first(experiments, monkeypatch, tmp_path):
    def library(seed):
        files = [bytes(random.Random(seed + at).choices(range(97, 123), k=4000)) for at in range(30)]
        return lambda: corpora.Files("code: drawn", files)

    plans = experiments.EXPERIMENTS["budget"].plans
    digests = []
    for seed, texts in ((0, tmp_path / "texts"), (100, tmp_path / "texts"), (100, None)):
        monkeypatch.setitem(corpora.CORPORA, "code", library(seed))
        made = experiments.comparisons(plans, 1, "cuda", texts)
        digests.append({digest for _, digest in made})
        cells = [cell for _, comparison, corpus in made.values() for cell in comparison.runs(corpus)]
        assert {cell.execution.device for cell in cells} == {"cuda"}
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named_before_anything_is_read(experiments, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["experiments.py", "budget", "--device", "cuda", "--out", str(tmp_path / "out")])
    with pytest.raises(InputError, match="device='cuda': not here"):
        experiments.main()
    assert not [*tmp_path.iterdir()]


def test_budgets_of_a_text_go_from_shares_to_the_page(experiments, monkeypatch, tmp_path, capsys):
    files = [bytes(random.Random(seed).choices(range(97, 123), k=4000)) for seed in range(30)]
    monkeypatch.setitem(corpora.CORPORA, "code", lambda: corpora.Files("code: drawn", files))
    small = {"windows": 3, "targets": 4, "length": 8, "batch_size": 2, "factors": (1, 2), "contexts": (2, 8, 16)}
    model = {"dim": 8, "num_layers": 1, "num_heads": 2, "head_dim": 4}
    plans = tuple(
        experiments.Plan(
            f"code-{steps}", experiments.TEXT.changed(steps=steps, **small, **model), "code", ("none", "rope")
        )
        for steps in (1, 2)
    )
    monkeypatch.setitem(experiments.EXPERIMENTS, "budget", experiments.Trials("?", plans, 2))
    one, two = tmp_path / "one", tmp_path / "two"
    for arguments in (["--out", str(one), "--share", "1/2"], ["--out", str(two), "--merge", str(one)]):
        monkeypatch.setattr(sys, "argv", ["experiments.py", "budget", *arguments])
        experiments.main()
    shown = capsys.readouterr().err
    assert "4 of 8 runs are here already" in shown
    spec = spec_from_file_location("leaderboard_of_budgets", FILE.with_name("leaderboard.py"))
    leaderboard = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "leaderboard_of_budgets", leaderboard)
    spec.loader.exec_module(leaderboard)
    monkeypatch.setattr(leaderboard.replication, "EXPERIMENTS", two / "archives")
    made = leaderboard.measured_budgets()
    assert [(of["text"], of["steps"], of["seeds"]) for of in made["worlds"]] == [
        ("code", 1, {"none": 2, "rope": 2}),
        ("code", 2, {"none": 2, "rope": 2}),
    ]
    for of in made["worlds"]:
        assert of["losses"].keys() == of["gain"].keys() == of["by_context"].keys() == {"none", "rope"}
        assert of["by_context"]["rope"].keys() == {"8"}  # within the training length, and not less than WITHIN
        assert of["behind_rope"]["none"]["mean"] == pytest.approx(
            of["losses"]["none"][0] - of["losses"]["rope"][0], abs=0.002
        )
    monkeypatch.setattr(leaderboard, "LENGTH", small["length"])
    monkeypatch.setattr(leaderboard, "BUDGETS", tmp_path / "budgets.json")
    leaderboard.BUDGETS.write_text(json.dumps(made))
    text = leaderboard.budgets(None)
    (trained_on,) = {of["trained_on"] for of in made["worlds"]}
    assert cpu() in trained_on
    assert text.startswith(f"code, 0.0 M, 1 steps: 2 seeds; code, 0.0 M, 2 steps: 2 seeds. Trained on {trained_on}.")
    assert text.count("\n| `") == 2


def test_the_baselines_were_measured_after_the_steps_of_their_tasks(experiments):
    tasks = set()
    for folder in (FILE.parent / "experiments/tasks").iterdir():
        for cell in read(folder):
            task = cell.facts["task"]
            assert cell.facts["settings"] == experiments.TASKS[task]().to_dict()
            assert {"none", "rope", "alibi"} <= {*encodings_in(folder)}
            tasks.add(task)
    assert tasks == {*experiments.NEW}
