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

from posenc import cli
from posenc.errors import InputError
from posenc.lab.bench import worker as running
from posenc.lab.bench.case import Built, Candidate, Case, Peer, Refusal
from posenc.lab.bench.cases import CASES
from posenc.lab.bench.study import MEMORY, QUICK, STANDARD, TIME, BenchSettings, BenchStudy, Row, Rows, Trial, plan
from posenc.lab.bench.table import markdown, tables
from posenc.lab.bench.timing import Effort
from posenc.lab.bench.worker import KEEP_FREED, Died, Worker, measure
from posenc.lab.study import run

FAST = BenchSettings(effort=Effort(rounds=3, block=0.0))
ALIBI = Trial(TIME, "alibi", "forward", "float32", 24)
BARE = replace(FAST, peers=False)
ROPE = Trial(TIME, "rope", "forward", "float32", 24)
TABLES = Trial(TIME, "tables", "forward", "float32", 24)


# -------------------------------------------------------------------- the plan


def test_the_presets_cover_every_case_and_what_each_can_do():
    for preset in (STANDARD, QUICK):
        trials = plan(preset=preset)
        assert {t.case for t in trials} == set(CASES)
        assert len(trials) == len(set(trials))
        assert {t.mode for t in trials} == {"forward", "train", "decode"}
        assert {t.what for t in plan(preset=preset, memory=False)} == {TIME}
    assert {t.dtype for t in plan()} == {"float32", "bfloat16"}
    order = [t.case for t in plan()]
    assert order == sorted(order, key=list(CASES).index), "case by case"


def test_what_is_given_replaces_what_the_preset_has():
    trials = plan(["alibi"], [64, 32], ["train"], ["bfloat16"], memory=False)
    assert trials == [Trial(TIME, "alibi", "train", "bfloat16", n) for n in (32, 64)]
    assert {t.length for t in plan(["rope"], [99])} == {99}
    assert {t.mode for t in plan(["rope"], modes=["decode"])} == {"decode"}
    assert plan(["alibi", "alibi"], [8], ["forward"]) == plan(["alibi"], [8], ["forward"])
    assert {t.length for t in plan(["t5"], dtypes=["bfloat16"], memory=False) if t.mode == "forward"} == {
        512,
        2048,
        4096,
        8192,
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cases": ["alibbi"]}, "unknown case 'alibbi': did you mean 'alibi'"),
        ({"modes": ["trian"]}, "unknown mode 'trian': did you mean 'train'"),
        ({"dtypes": ["float8"]}, "unknown dtype 'float8'"),
        ({"lengths": [1]}, "lengths=1: a sequence needs at least 2 tokens"),
        ({"cases": ["tables"], "modes": ["decode"]}, "nothing to measure: tables has no decode"),
    ],
)
def test_what_cannot_be_planned_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        plan(**given)


def identity(trial, settings):
    return BenchStudy([trial], settings).identity(trial)


def test_an_id_depends_on_everything_that_numbers_depend_on(monkeypatch):
    first = identity(ALIBI, FAST)
    assert first == identity(Trial(**asdict(ALIBI)), replace(FAST))
    others = [
        identity(replace(ALIBI, length=25), FAST),
        identity(replace(ALIBI, what=MEMORY), FAST),
        identity(ALIBI, replace(FAST, threads=2)),
        identity(ALIBI, replace(FAST, flush_denormal=True)),
        identity(ALIBI, replace(FAST, effort=Effort(rounds=4))),
    ]
    monkeypatch.setattr("posenc.lab.bench.study.versions", lambda: {"torch": "9"})
    others.append(identity(ALIBI, FAST))
    assert len({first, *others}) == 7


def expectations(trial, known):
    study = BenchStudy([trial], FAST)
    for each, rows in known.items():
        study.stored(each, Rows(rows))
    return study._expected(trial)


def test_expectations_grow_from_the_longest_one_that_is_not_longer():
    def rows(seconds):
        return [Row("posenc", "measured", seconds=[seconds] * 3), Row("gone", "failed")]

    known = {replace(ALIBI, length=100): rows(1.0), replace(ALIBI, length=200): rows(3.0)}
    assert expectations(replace(ALIBI, length=400), known) == {"posenc": 12.0}
    assert expectations(replace(ALIBI, length=150), known) == {"posenc": 2.25}
    assert expectations(replace(ALIBI, length=200, what=MEMORY), known) == {"posenc": 3.0}
    assert expectations(replace(ALIBI, mode="train"), known) == {}
    decoding = {replace(t, mode="decode"): r for t, r in known.items()}
    assert expectations(replace(ALIBI, mode="decode", length=400), decoding) == {"posenc": 6.0}


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


def test_every_candidate_has_a_row_whatever_happens_to_it(monkeypatch):
    candidates_of(
        monkeypatch,
        Candidate("fine", lambda inputs: works()),
        Candidate("broken", raising(ValueError("two\nlines"))),
        Candidate("cannot", raising(Refusal("only on Tuesdays"))),
        Candidate("absent", CASES["rotary"].candidates[5].build, Peer("no-such", "no_such")),
        Candidate("dead", lambda inputs: works()),
        Candidate("slow", lambda inputs: works()),
        Candidate("huge", lambda inputs: works(), cells=2**60),
        Candidate("elsewhere", lambda inputs: works(), modes=("decode",)),
    )
    told: list[str] = []
    rows = measure(ALIBI, FAST, {"dead": "SIGKILL"}, {"slow": 9.0}, told.append)
    found = {row.name: (row.status, row.note) for row in rows}
    assert found.pop("huge")[1].startswith("would take about")
    assert found.pop("absent")[0] == "failed"  # its build asked another package; `load` has its own tests
    assert found == {
        "limit": ("measured", ""),
        "fine": ("measured", ""),
        "broken": ("failed", "ValueError: two lines"),
        "cannot": ("left out", "only on Tuesdays"),
        "dead": ("failed", "SIGKILL"),
        "slow": ("left out", "expected to take 9.0 s a call, more than patience=3"),
    }
    assert told == ["limit", "fine", "broken", "cannot", "absent", ""]
    assert [len(row.seconds) for row in rows if row.status == "measured"] == [3, 3]
    assert [row.name for row in measure(ALIBI, replace(FAST, peers=False), {}, {})][3:5] == ["cannot", "dead"]


def test_the_memory_of_posenc_is_taken_however_long_it_takes(monkeypatch):
    candidates_of(monkeypatch, Candidate("posenc, slow", lambda i: works()), Candidate("peer", lambda i: works()))
    monkeypatch.setattr("posenc.lab.bench.worker._memory", lambda *_: 5)
    rows = measure(replace(ALIBI, what=MEMORY), FAST, {}, {"posenc, slow": 9.0, "peer": 9.0, "limit": 9.0})
    assert [(row.status, row.bytes) for row in rows] == [("measured", 5), ("measured", 5), ("left out", None)]


def test_who_disagrees_is_not_timed(monkeypatch):
    import torch

    def built(error):
        return Built(
            lambda: None, lambda: (torch.tensor([1.0 + error]),), lambda: (torch.ones(1, dtype=torch.float64),), 1e-2
        )

    candidates_of(
        monkeypatch, Candidate("near", lambda i: built(1e-3)), Candidate("far", lambda i: built(0.5)),
        Candidate("nan", lambda i: built(float("nan"))),
    )  # fmt: skip
    near, far, nan = measure(ALIBI, FAST, {}, {})[1:]
    assert near.status == "measured"
    assert near.error == pytest.approx(1e-3, rel=1e-3)
    assert (far.status, far.seconds, far.note) == ("differs", [], "differs from the formula by 0.5, 0.01 is allowed")
    assert (nan.status, nan.error) == ("differs", None)


def test_inputs_that_cannot_be_made_are_the_trials_answer(monkeypatch):
    def prepare(problem):
        raise MemoryError("not enough")

    monkeypatch.setitem(CASES, "alibi", replace(CASES["alibi"], prepare=prepare))
    assert measure(ALIBI, FAST, {}, {}) == [Row("plain SDPA", "failed", "MemoryError: not enough")]


def test_the_limit_alone_is_not_timed(monkeypatch):
    candidates_of(monkeypatch, Candidate("cannot", raising(Refusal("no"))))
    assert [row.seconds for row in measure(ALIBI, FAST, {}, {})] == [[], []]


# -------------------------------------------------------------------- a benchmark


@pytest.mark.slow
def test_results_have_every_number_and_a_benchmark_goes_on(tmp_path):
    trials = [ROPE, replace(ROPE, what=MEMORY), TABLES]
    run(BenchStudy(trials[:1], FAST), tmp_path)
    results = run(BenchStudy(trials, FAST), tmp_path, command="posenc bench", pages={"table.md": markdown})
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


def test_a_candidate_that_takes_the_process_down_is_named_and_the_rest_is_measured(tmp_path, monkeypatch):
    class Mortal:
        def __init__(self, what, settings):
            self.closed = False

        def measure(self, trial, dead, expected, announce):
            announce("bad")
            if "bad" not in dead:
                raise Died("bad", "the process died (SIGSEGV)")
            return [Row("copy of the tables", "measured", seconds=[1.0]), Row("bad", "failed", dead["bad"])]

        def close(self):
            self.closed = True

    monkeypatch.setattr(running, "Worker", Mortal)
    results = run(BenchStudy([TABLES], FAST), tmp_path)
    assert results["trials"][0]["rows"][1]["note"] == "the process died (SIGSEGV)"

    def dies_in_the_rounds(self, *_):
        raise Died("", "the process died (SIGKILL)")

    monkeypatch.setattr(Mortal, "measure", dies_in_the_rounds)
    results = run(BenchStudy([replace(TABLES, length=39)], FAST), tmp_path)
    assert [(row["name"], row["note"]) for row in results["trials"][0]["rows"]] == [
        ("copy of the tables", "the process died (SIGKILL)")
    ]

    def dies(self, *_):
        raise Died(None, "the process died (exit code 1)")

    monkeypatch.setattr(Mortal, "measure", dies)
    with pytest.raises(RuntimeError, match="what was measured is stored"):
        run(BenchStudy([replace(TABLES, length=40)], FAST), tmp_path)


@pytest.fixture
def worker():
    made = Worker(TIME, BARE)
    yield made
    made.close()


def test_the_worker_has_its_own_allocator_and_the_parent_none(worker):
    if not Path("/proc").exists():
        pytest.skip("no /proc")
    rows = worker.measure(
        TABLES, {}, {}, print
    )  # an answer: until exec has set it up, /proc shows an empty environment
    assert [row.name for row in rows][:2] == ["copy of the tables", "posenc"]
    environment = dict(
        item.split("=", 1) for item in Path(f"/proc/{worker.process.pid}/environ").read_text().split("\0") if item
    )
    assert environment.items() >= KEEP_FREED.items()
    assert not set(KEEP_FREED) & set(os.environ)


def test_a_worker_that_is_killed_says_so(worker):
    worker.process.kill()
    with pytest.raises(Died) as death:
        worker.measure(TABLES, {}, {}, print)
    assert (death.value.candidate, death.value.how) == (None, "the process died (SIGKILL, out of memory?)")


# -------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["alibbi"], "unknown case 'alibbi': did you mean 'alibi'?"),
        (["--mode", "backward"], "unknown mode 'backward'"),
        (["--n", "0"], "--n 0: a sequence needs at least 2 tokens"),
        (["--n", "many"], "argument --n: invalid int value: 'many'"),
        (["--threads", "0"], "--threads 0: must lie between 1 and"),
        (["--rounds", "0"], "--rounds 0: must be at least 1"),
        (["--patience", "0"], "--patience 0.0: must be a number of seconds above 0"),
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
    assert {p.name for p in tmp_path.iterdir()} == {"cells", "config.yaml", "results.json", "report.html", "table.md"}


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
        worker = wait_for(lambda: children(started.pid))
        (handle,) = [os.pidfd_open(pid) for pid in worker]
    finally:
        started.kill()
        started.wait()
    assert select.select([handle], [], [], 20)[0], "the worker has ended"
    os.close(handle)


def children(pid):
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def wait_for(found, seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if answer := found():
            return answer
        time.sleep(0.05)
    raise AssertionError("nothing came")


def test_the_worker_is_quiet_about_a_parent_that_left():
    done = subprocess.run([sys.executable, "-m", "posenc.lab.bench.worker"], input="", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
