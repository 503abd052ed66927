# SPDX-License-Identifier: Apache-2.0
"""Generated tasks end to end: results and pages, a task of a file, several tasks in one table, shares and their merging."""

import json
import re
from dataclasses import replace

import pytest

from posenc import InputError, cli
from posenc.lab.compare import Comparison, compare, experiment
from posenc.lab.engines import InProcess
from posenc.lab.experiment import LEADERBOARD
from posenc.lab.leaderboard import TASKS, compare_tasks
from posenc.lab.records import RunRecord
from posenc.lab.store import Store
from posenc.report.compare import page, show
from posenc.report.leaderboard import files, show_tasks

TINY = {
    "length": 4, "steps": 2, "batch_size": 4, "dim": 8, "num_heads": 2, "num_layers": 1, "factors": (1, 2), "sequences": 6,
}  # fmt: skip
ENCODINGS = ("none", "rope")


def planned(task, seeds=2, **changes):
    corpus, settings = experiment(task)(**TINY | changes).load("generated")
    return Comparison(ENCODINGS, seeds, settings), corpus


def test_results_and_page_have_accuracy_of_tokens_and_of_answers(tmp_path, capsys):
    comparison, corpus = planned("sort")
    results = compare(
        comparison, corpus, tmp_path, engine=InProcess(), pages=lambda results: {"report.html": page(results)}
    )
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(results))
    assert (results["task"], results["complete"]) == ("sort", True)
    for variant in results["variants"]:
        for point in variant["lengths"]:
            assert 0 <= point["near_best"] <= 1
            assert 0 < point["chance"] < 1
            assert 0 <= point["exact"]["low"] <= point["exact"]["mean"] <= point["exact"]["high"] <= 1
        none_right = {"mean": 0, "error": 0, "low": 0, "high": pytest.approx(0.39, abs=0.01)}
        assert variant["lengths"][1]["exact"] == none_right
    report = (tmp_path / "report.html").read_text()
    assert "Write the symbols again in ascending order" in report
    assert "Kazemnejad" in report
    assert "all right at 4" in report
    show(results, str(tmp_path))
    assert "all right at 8" in capsys.readouterr().out


def test_an_unknown_task_is_refused():
    with pytest.raises(InputError, match="unknown task 'cpoy': did you mean 'copy'"):
        experiment("cpoy")


def run_tasks(folder, tasks=("sort", "copy"), seeds=2, merge=(), share=(1, 1), **changes):
    comparisons = [planned(task, seeds, **changes) for task in tasks]
    return compare_tasks(
        comparisons, folder, engine=InProcess(), pages=files, share=share, merge=merge, command="posenc <b>"
    )


def test_shares_of_several_tasks_add_up(tmp_path, capsys):
    unsplit = run_tasks(tmp_path / "all")
    parts = [tmp_path / "one", tmp_path / "two"]
    shares = [run_tasks(part, share=(i, 2)) for i, part in enumerate(parts, 1)]
    assert [each["runs"]["planned"] for each in shares] == [4, 4]
    merged = run_tasks(tmp_path / "merged", merge=parts)
    assert merged["runs"] == {"planned": 8, "finished": 8, "kept_from_before": 8}
    for task in ("sort", "copy"):
        for encoding, other in zip(unsplit["tasks"][task]["variants"], merged["tasks"][task]["variants"], strict=True):
            assert (encoding["name"], encoding["lengths"]) == (other["name"], other["lengths"])
    assert merged["table"] == unsplit["table"]
    assert {row["encoding"] for row in merged["table"]} == set(ENCODINGS)
    assert merged["not_learned"].keys() == {"sort", "copy"}
    for row in merged["table"]:
        assert row["near_best"].keys() == {"sort", "copy"}
        assert all(0 <= of[at] <= 1 for of in row["near_best"].values() for at in ("trained", "longest"))
    for name in ("report.html", "sort.html", "copy.html"):
        text = (tmp_path / "merged" / name).read_text()
        assert "posenc &lt;b&gt;" in text
        assert len(text.encode()) < 5e5
    text = (tmp_path / "merged" / "report.html").read_text()
    assert 'href="copy.html#only=rope&amp;only=none"' in text
    dots = json.loads(re.search(r'id="figures">(.*?)</script>', text, flags=re.DOTALL).group(1))["dots"]
    for figure, task in zip(dots.values(), ("sort", "copy"), strict=True):
        variants = merged["tasks"][task]["variants"]
        assert [dot["name"] for dot in figure["series"]] == [variant["name"] for variant in variants]
        levels = [[100 * variant["lengths"][at]["accuracy"]["mean"]] for at in (0, -1) for variant in variants]
        shown = [dot[axis] for axis in "xy" for dot in figure["series"]]
        assert shown == [pytest.approx(level, rel=1e-4) for level in levels]
    show_tasks(merged, str(tmp_path))
    out = capsys.readouterr().out
    assert re.search(r"^rope( +\d+){4} +", out, re.MULTILINE)
    assert ("Left out of the mean" in out) == any(merged["not_learned"].values())


def test_runs_that_are_of_another_comparison_are_not_merged(tmp_path):
    run_tasks(tmp_path / "one", seeds=1)

    def refused(message, **how):
        with pytest.raises(InputError, match=message):
            run_tasks(tmp_path / "new", merge=[tmp_path / "one"], **{"seeds": 1, **how})
        assert not (tmp_path / "new" / "cells").exists()
        assert not (tmp_path / "new" / "results.json").exists()

    refused("has steps=2, not 3; nothing was merged", steps=3)
    refused("has .*task=copy, not (sort|reverse)", tasks=("sort", "reverse"))
    cell = next((tmp_path / "one" / "cells").iterdir())
    cell.write_bytes(cell.read_bytes().replace(b'"losses"', b'"lusses"'))
    refused("its checksum is wrong")
    assert cell.exists()
    with pytest.raises(InputError, match="has no cells"):
        Store(tmp_path / "new").merge([tmp_path / "empty"], RunRecord, lambda *_: None)
    with pytest.raises(InputError, match="share='3/2'"):
        run_tasks(tmp_path / "new", share=(3, 2))


def test_tasks_of_other_encodings_make_no_table(tmp_path):
    first, second = planned("sort"), planned("copy")
    with pytest.raises(InputError, match="must be the same in all tasks"):
        compare_tasks([(replace(first[0], encodings=("none",)), first[1]), second], tmp_path)


def test_the_leaderboard_is_of_encodings_that_fit_every_task():
    for task in TASKS:
        preset = experiment(task).presets["leaderboard"]
        assert (preset.encodings, preset.seeds) == (LEADERBOARD, 4)
        assert all(preset.settings.make_encoding(name) for name in LEADERBOARD)
    assert len(set(LEADERBOARD)) == len(LEADERBOARD) >= 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "sort", "copy", "--windows", "3"], "--windows: is for other tasks; leave it out of --task sort"),
        (["--task", "sort", "sort"], "--task sort sort: names a task twice"),
        (["--task", "sort", "--share", "half"], "--share half: write two numbers"),
        (["--task", "sort", "--data", "pydoc"], "--data pydoc: the sequences of task sort are generated"),
    ],
)
def test_the_command_refuses_and_writes_nothing(arguments, message, tmp_path, capsys):
    assert cli.main(["compare", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
