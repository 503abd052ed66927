"""Trials as data, results and their schema, going on where it stopped, processes that die, and the command."""

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import posenc
from posenc import cli
from posenc.encodings import distance
from posenc.errors import InputError
from posenc.lab.bench.case import Built, Candidate, Case, Refusal, load
from posenc.lab.bench.cases import CASES
from posenc.lab.bench.frontier import FRONTIER
from posenc.lab.bench.measure import (
    MEASURED,
    MEMORY,
    TIME,
    BenchSettings,
    Effort,
    Row,
    Trial,
    measure,
    timed_rows,
)
from posenc.lab.bench.study import QUICK, STANDARD, BenchStudy, plan
from posenc.lab.bench.table import markdown, tables
from posenc.lab.study import identity, run

FAST = BenchSettings(effort=Effort(rounds=3, block=0.0))
ALIBI = Trial(TIME, "alibi", "forward", "float32", 24)
ROPE = Trial(TIME, "rope", "forward", "float32", 24)
TABLES = Trial(TIME, "tables", "forward", "float32", 24)


# -------------------------------------------------------------------- the plan


def test_the_presets_cover_every_case_and_what_each_can_do():
    for preset in (STANDARD, QUICK):
        trials = plan(preset=preset)
        assert {t.case for t in trials} == {case.name for case in CASES.values() if case.family != "frontier"}
        assert len(trials) == len(set(trials))
        assert {t.mode for t in trials} == {"forward", "train", "decode"}
        assert {t.what for t in plan(preset=preset, memory=False)} == {TIME}
    assert {t.dtype for t in plan()} == {"float32", "bfloat16"}
    order = [t.case for t in plan()]
    assert order == sorted(order, key=list(CASES).index), "case by case"


def test_a_family_stands_for_its_cases():
    for preset in (STANDARD, QUICK):
        frontier = plan(["frontier"], preset=preset)
        assert {t.case for t in frontier} == set(FRONTIER)
        assert {t.mode for t in frontier} == {"forward", "train"}
        assert [t for t in frontier if t.case == "fox"] == plan(["fox"], preset=preset)
    assert len(plan(["alibi", "attention"])) == len(plan(["attention"]))
    assert {t.case for t in plan(["rotary"])} == {"rotary"}


def test_what_is_given_replaces_what_the_preset_has():
    trials = plan(["alibi"], [64, 32], ["train"], ["bfloat16"], memory=False)
    assert trials == [Trial(TIME, "alibi", "train", "bfloat16", n) for n in (32, 64)]
    assert {t.length for t in plan(["rope"], [99])} == {99}
    assert {t.mode for t in plan(["rope"], modes=["decode"])} == {"decode"}
    assert plan(["alibi", "alibi"], [8], ["forward"]) == plan(["alibi"], [8], ["forward"])
    assert {t.length for t in plan(["t5"], dtypes=["bfloat16"], memory=False) if t.mode == "forward"} == {
        64,
        512,
        2048,
    }
    for mode in ("forward", "train"):
        lengths = {t.length for t in plan(memory=False, modes=[mode], dtypes=["float32"]) if t.case == "alibi"}
        assert min(lengths) == 64, mode


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cases": ["alibbi"]}, "unknown case 'alibbi': did you mean 'alibi'"),
        ({"modes": ["trian"]}, "unknown mode 'trian': did you mean 'train'"),
        ({"dtypes": ["float8"]}, "unknown dtype 'float8'"),
        ({"lengths": [1]}, "lengths=1: must be at least 2"),
        ({"cases": ["tables"], "modes": ["decode"]}, "nothing to measure: tables has no decode"),
    ],
)
def test_what_cannot_be_planned_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        plan(**given)


def id_of(trial, settings):
    return identity(BenchStudy([trial], settings).facts(trial))


def test_an_id_depends_on_everything_that_numbers_depend_on(monkeypatch):
    first = id_of(ALIBI, FAST)
    assert first == id_of(Trial(**asdict(ALIBI)), replace(FAST))
    others = [
        id_of(replace(ALIBI, length=25), FAST),
        id_of(replace(ALIBI, what=MEMORY), FAST),
        id_of(ALIBI, replace(FAST, threads=2)),
        id_of(ALIBI, replace(FAST, flush_denormal=True)),
        id_of(ALIBI, replace(FAST, effort=Effort(rounds=4))),
    ]
    monkeypatch.setattr("posenc.lab.bench.study.versions", lambda: {"torch": "9"})
    others.append(id_of(ALIBI, FAST))
    assert len({first, *others}) == 7


# -------------------------------------------------------------------- one trial


def works(seconds=0.0):
    return Built(lambda: None, lambda: ())


def candidates_of(monkeypatch, *candidates, name="alibi"):
    limit = Candidate("limit", lambda inputs: works())
    case = Case(name, "attention", "a case", lambda problem: None, (limit, *candidates))
    monkeypatch.setitem(CASES, name, case)


def raising(error):
    def build(inputs):
        raise error

    return build


def rows_of(settings=FAST, failed=(), announce=print):
    return timed_rows(ALIBI, settings, dict(failed), announce)


def test_every_candidate_has_a_row_whatever_happens_to_it(monkeypatch):
    candidates_of(
        monkeypatch,
        Candidate("fine", lambda inputs: works()),
        Candidate("broken", raising(ValueError("two\nlines"))),
        Candidate("cannot", raising(Refusal("only on Tuesdays"))),
        Candidate("absent", lambda inputs: load("no-such"), "no-such"),
        Candidate("dead", lambda inputs: works()),
        Candidate("huge", lambda inputs: works(), score_bytes=2**60),
        Candidate("elsewhere", lambda inputs: works(), modes=("decode",)),
    )
    announced: list[str] = []
    rows = rows_of(failed={"dead": "SIGKILL"}, announce=announced.append)
    notes = {row.name: (row.status, row.note) for row in rows}
    assert notes.pop("huge")[1].startswith("would take about")
    assert notes == {
        "limit": ("measured", ""),
        "fine": ("measured", ""),
        "broken": ("failed", "ValueError: two lines"),
        "cannot": ("left out", "only on Tuesdays"),
        "absent": ("missing", "not installed: pip install no-such"),
        "dead": ("failed", "SIGKILL"),
    }
    assert announced == ["limit", "fine", "broken", "cannot", "absent", "huge", ""]
    assert [len(row.seconds) for row in rows if row.status == "measured"] == [3, 3]
    assert [row.name for row in rows_of(replace(FAST, peers=False))][3:5] == ["cannot", "dead"]


def test_who_takes_too_long_is_left_out(monkeypatch):
    slow = Built(lambda: None, lambda: time.sleep(0.02) or (torch.ones(1),), lambda: (torch.ones(1).double(),), 1.0)
    candidates_of(monkeypatch, Candidate("slow", lambda inputs: slow))
    hurried = BenchSettings(clock="wall", effort=Effort(rounds=3, block=0.0, patience=0.01))
    assert rows_of(hurried)[1].note == "takes 0.0 s a call, more than patience=0.01"


def test_who_disagrees_is_not_timed(monkeypatch):
    def built(error):
        return Built(
            lambda: None, lambda: (torch.tensor([1.0 + error]),), lambda: (torch.ones(1, dtype=torch.float64),), 1e-2
        )

    candidates_of(
        monkeypatch, Candidate("near", lambda i: built(1e-3)), Candidate("far", lambda i: built(0.5)),
        Candidate("nan", lambda i: built(float("nan"))),
    )  # fmt: skip
    near, far, nan = rows_of()[1:]
    assert near.status == "measured"
    assert near.error == pytest.approx(1e-3, rel=1e-3)
    assert (far.status, far.seconds, far.note) == ("differs", [], "differs from the formula by 0.5, 0.01 is allowed")
    assert (nan.status, nan.error) == ("differs", None)


def test_the_limit_alone_is_not_timed(monkeypatch):
    candidates_of(monkeypatch, Candidate("cannot", raising(Refusal("no"))))
    assert [row.seconds for row in rows_of()] == [[], []]


# -------------------------------------------------------------------- a benchmark


@pytest.mark.slow
def test_results_have_every_number_and_a_benchmark_goes_on(tmp_path):
    trials = [ROPE, replace(ROPE, what=MEMORY), TABLES]
    run(BenchStudy(trials[:1], FAST), tmp_path)
    results = run(
        BenchStudy(trials, FAST),
        tmp_path,
        command="posenc bench",
        pages=lambda results: {"table.md": markdown(results)},
    )
    assert results == json.loads((tmp_path / "results.json").read_text())
    assert (results["schema"], results["complete"], results["trials_kept_from_before"]) == (1, True, 1)
    assert results["machine"]["cpu"]
    assert results["versions"]["torch"]
    timed, memory, _ = results["trials"]
    rows = {row["name"]: row for row in timed["rows"]}
    assert rows["plain SDPA"]["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert rows["posenc"]["error"] < rows["posenc"]["tolerance"] == 1e-4
    assert rows["posenc"]["ratio"]["low"] <= rows["posenc"]["ratio"]["median"] <= rows["posenc"]["ratio"]["high"]
    assert rows["posenc"]["rounds"] == 3
    assert rows["transformers RoFormer"]["package"] == "transformers"
    taken = {row["name"]: row for row in memory["rows"]}
    assert taken["posenc"]["bytes"] > 0
    assert taken["posenc"]["bytes_above_limit"] == taken["posenc"]["bytes"] - taken["plain SDPA"]["bytes"]
    text = (tmp_path / "table.md").read_text()
    assert "| `rope` | plain SDPA | " in text
    assert [t.title for t in tables(results)] == [
        "Forward: attention, float32", "Forward: tables of cos and sin, float32", "Peak memory: attention, forward, float32",
    ]  # fmt: skip


def test_a_candidate_that_takes_the_process_down_is_named_and_the_rest_is_measured(monkeypatch):
    def dies(name):
        def run(function, trial, settings, failed, announce, **limits):
            announce(name)
            if name not in failed:
                raise RuntimeError("the process died (SIGSEGV)")
            return [Row("copy of the tables", "measured", seconds=[1.0]), Row(name, "failed", failed[name])]

        monkeypatch.setattr("posenc.lab.bench.measure.in_new_process", run)
        return [(row.name, row.note) for row in measure(TABLES, FAST)]

    assert dies("bad") == [("copy of the tables", ""), ("bad", "the process died (SIGSEGV)")]
    assert dies("") == [("copy of the tables", "the process died (SIGSEGV)")], "in the rounds of all"


# -------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["alibbi"], "unknown case 'alibbi': did you mean 'alibi'?"),
        (["--mode", "backward"], "unknown choice 'backward'"),
        (["--n", "0"], "--n 0: must be at least 2"),
        (["--n", "many"], "--n: invalid int value: 'many'"),
        (["--threads", "0"], "--threads 0: must lie between 1 and"),
        (["--rounds", "0"], "--rounds 0: must be at least 1"),
        (["--patience", "0"], "--patience 0: must be a number of seconds above 0"),
        (["--device", "tpu"], "--device tpu: not here; pass cpu"),
        (["--out", "/proc/nothing/here"], "--out /proc/nothing/here: "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, arguments, message):
    assert cli.main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_the_command_writes_everything_and_goes_on(capsys, tmp_path):
    command = ["bench", "rope", "--n", "16", "--mode", "forward", "--dtype", "float32", "--no-peers",
               "--device", "cpu", "--rounds", "1", "--quick", "--out", str(tmp_path)]  # fmt: skip
    assert cli.main(command) == 0
    out, err = capsys.readouterr()
    assert "Forward: attention, float32 (time over plain SDPA)" in out
    assert "transformers" not in out.split("processor time")[0]
    assert f"{tmp_path}/report.html" in out
    assert "[2/2]" in err
    assert cli.main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["trials_kept_from_before"] == 2
    assert "2 of 2 trials are here already" in err
    assert {p.name for p in tmp_path.iterdir()} - {".lock"} == {
        *("cells", "config.yaml", "results.json", "report.html", "table.md")
    }


def test_the_help_names_every_case(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in CASES)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux ends the children of a process that is gone")
def test_no_process_outlives_a_benchmark_that_is_killed(tmp_path):
    command = [
        sys.executable,
        "-m",
        "posenc.cli",
        "bench",
        "t5",
        "--n",
        "20000",
        "--mode",
        "forward",
        "--device",
        "cpu",
    ]
    command += ["--out", str(tmp_path), "--no-peers", "--patience", "1000"]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not (measuring := [pid for server in children(started.pid) for pid in children(server)]):
            assert time.monotonic() < until
            time.sleep(0.05)
        (handle,) = [os.pidfd_open(pid) for pid in measuring]
    finally:
        started.kill()
        started.wait()
    assert select.select([handle], [], [], 20)[0], "the measuring process has ended"
    os.close(handle)


def children(pid):
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


# -------------------------------------------------------------------- the behaviour of the program


def known_rows(trial, settings, announce):
    return [Row("posenc", MEASURED, seconds=[1.0])]


def slower(function):
    def calls_more(*args, **given):
        (lambda: None)()
        return function(*args, **given)

    return calls_more


SLOPES = distance.alibi_slopes


@pytest.mark.parametrize(
    ("owner", "name", "changed", "again"),
    [
        (distance, "alibi_slopes", lambda *given, **more: 50 * SLOPES(*given, **more), True),
        (distance.ALiBi, "bias", slower(distance.ALiBi.bias), True),
        (distance, "alibi_slopes", lambda *given, **more: SLOPES(*given, **more), False),
        (posenc, "__version__", "9.9", False),
    ],
    ids=["slopes", "more calls", "another name", "another version"],
)
def test_changed_code_is_measured_again_and_what_changes_nothing_is_not(
    owner, name, changed, again, tmp_path, monkeypatch
):
    monkeypatch.setattr("posenc.lab.bench.study.measure", known_rows)
    monkeypatch.setattr(
        "posenc.lab.bench.study.in_new_process", lambda function, *args: function(*args, lambda name: None)
    )
    trials = [Trial(TIME, "alibi", mode, "float32", 64) for mode in ("forward", "decode")]

    def kept():
        return run(BenchStudy(trials, FAST), tmp_path)["trials_kept_from_before"]

    assert (kept(), kept()) == (0, 2)
    monkeypatch.setattr(owner, name, changed)
    assert kept() == (0 if again else 2)
    assert kept() == 2
