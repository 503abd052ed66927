"""A stored cell is used if this program would have measured it: changed code is measured again, a refactor and another version
string are not, and rounding is told from another program."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import posenc
from posenc import cli
from posenc.cli.command import parse
from posenc.encodings import distance
from posenc.lab import train
from posenc.lab.behaviour import TOLERANCE, disagreement
from posenc.lab.compare import Comparison, compare, experiment
from posenc.lab.engines import InProcess
from posenc.lab.experiment import Run
from posenc.lab.leaderboard import against, archive, compare_tasks
from posenc.lab.measure import behaviour
from posenc.lab.study import Progress, difference
from posenc.lab.synthetic.experiment import Synthetic
from posenc.lab.synthetic.tasks import TASKS as GENERATED
from posenc.lab.transformer import Attention
from references import PATIENCE

SIZES = {"length": 4, "steps": 8, "batch_size": 4, "dim": 8, "num_heads": 2, "num_layers": 1, "factors": (1, 2)}
SIZES |= {"sequences": 6}
ENCODINGS = ("none", "alibi")


class Said(Progress):
    def __init__(self):
        self.sentences = []

    def say(self, sentence):
        self.sentences.append(sentence)


def planned(**changes):
    corpus, settings = experiment("copy")(**SIZES | changes).load("generated")
    return Comparison(ENCODINGS, 2, settings), corpus


def compared(folder, **more):
    comparison, corpus = planned()
    return compare(comparison, corpus, folder, engine=InProcess(), **more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, compared(folder)


@pytest.fixture
def folder(finished, tmp_path):
    return Path(shutil.copytree(finished[0], tmp_path / "copy"))


def times(function, factor):
    return lambda *args, **given: function(*args, **given) * factor


slopes, schedule, score, draw = distance.alibi_slopes, train.schedule, Synthetic.evaluate, Synthetic.draw


def scored_otherwise(self, *args):
    scores = score(self, *args)
    return dataclasses.replace(scores, paired={at: 1.1 * losses for at, losses in scores.paired.items()})


CHANGES = {
    "slopes times 50": (distance, "alibi_slopes", times(slopes, 50), 2),
    "slopes times 1.5": (distance, "alibi_slopes", times(slopes, 1.5), 2),
    "attention": (Attention, "forward", times(Attention.forward, 1.5), 4),
    "optimiser": (train, "Muon", lambda *a, **k: posenc.lab.train.torch.optim.SGD(a[0], lr=k["lr"]), 4),
    "schedule": (train, "WARM_UP", 0.2, 4),
    "end of the schedule": (train, "schedule", lambda step, steps: schedule(step, steps) * (2 if step > 6 else 1), 4),
    "texts": (Synthetic, "draw", lambda self, part, generator: draw(self, part, generator.manual_seed(1)), 4),
    "test": (Synthetic, "evaluate", scored_otherwise, 4),
    "version": (posenc, "__version__", "9.9", 0),
    "same function by another name": (distance, "alibi_slopes", lambda *given, **more: slopes(*given, **more), 0),
    "other rounding": (distance, "alibi_slopes", times(slopes, 1 + 1e-6), 0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_code_is_measured_again_and_what_changes_nothing_is_not(change, folder, monkeypatch):
    owner, name, value, again = CHANGES[change]
    monkeypatch.setattr(owner, name, value)
    said = Said()
    results = compared(folder, progress=said)
    assert results["runs"] == {"planned": 4, "finished": 4, "kept_from_before": 4 - again}
    assert len(results["set_aside"]) == len(list((folder / "cells").glob("*.outdated"))) == again
    lines = [line for line in said.sentences if line.startswith("Behaviour: ")]
    assert len(lines) == again // 2
    for line, encoding in zip(lines, ENCODINGS[-len(lines) :], strict=False):
        assert line.startswith(f"Behaviour: {encoding}, seed 0 (2 of the runs) is measured again: ")
        assert " here and " in line
        assert line.endswith(f"stored by posenc {posenc.__version__}, torch {torch.__version__}")
    assert compared(folder)["runs"]["kept_from_before"] == 4


def test_runs_of_other_settings_in_the_folder_are_named(folder):
    comparison, corpus = planned(steps=5)
    said = Said()
    assert compare(comparison, corpus, folder, engine=InProcess(), progress=said)["runs"]["kept_from_before"] == 0
    assert "Settings and data: 4 of the runs in the folder are not used: they have steps=8, not 5" in said.sentences


def test_cells_of_another_program_are_merged_and_measured_again(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(*CHANGES["slopes times 50"][:3])
    said = Said()
    results = compared(tmp_path / "new", merge=[folder], progress=said)
    assert results["runs"]["kept_from_before"] == 2
    assert sum(line.startswith("Behaviour: alibi") for line in said.sentences) == 1


LONG = {"steps": 51}
"""The curve of an archive has 50 points: the first is the mean of two steps."""


def joined(folder, **more):
    return compare_tasks([planned(**LONG)], folder, engine=InProcess(), **more)


@pytest.fixture(scope="module")
def archived(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archived")
    joined(folder / "trained")
    archive([planned(**LONG)], folder / "trained", folder / "archives")
    return folder / "archives"


@pytest.fixture
def archives(archived, tmp_path):
    return Path(shutil.copytree(archived, tmp_path / "archives"))


def test_archives_are_recognised(archives, tmp_path, monkeypatch):
    merged = joined(tmp_path / "merged", merge=[archives])
    assert merged["runs"]["kept_from_before"] == 4
    monkeypatch.setattr(*CHANGES["slopes times 50"][:3])
    said = Said()
    placed, table = against(archives, ["rope"], seeds=1)
    results = compare_tasks(placed, tmp_path / "placed", engine=InProcess(), table=table, progress=said)
    assert results["runs"] == {"planned": 3, "finished": 3, "kept_from_before": 1}
    assert sum(line.startswith("Behaviour: copy, alibi") for line in said.sentences) == 1


def test_the_differences_of_behaviours_and_of_facts_in_words():
    numbers = {"a": 1.0, "b": 100.0}
    assert not disagreement(numbers, {"a": 1 + 0.9 * TOLERANCE, "b": 100 * (1 - 0.9 * TOLERANCE)})
    assert disagreement(numbers, {"a": 1.1, "b": 101.0}) == "a is 1 here and 1.1 there"
    assert not disagreement(numbers, {"a": 1.1, "tolerance": 0.2})
    assert disagreement(numbers, {}) == "no number of its behaviour is known"
    assert not disagreement({}, {})
    facts = {"settings": {"steps": 3, "factors": (1, 2)}, "data": "0" * 64}
    assert difference(facts, [facts | {"data": "1" * 64}]) == "other data"
    assert difference(facts, [{"settings": {"steps": 4, "factors": [1, 2]}, "data": "0" * 64}]) == "steps=3, not 4"


SPREAD = """
import json, torch
from posenc.lab.measure import behaviour
from posenc.lab.transformer import Attention
from posenc.lab.compare import experiment
from posenc.lab.experiment import Run
from posenc.lab.machine import flushed_denormals
torch.set_num_threads({threads})
corpus, settings = experiment("copy")().load("generated")
with flushed_denormals():
    print(json.dumps(behaviour(Run.of("{encoding}", 0, settings, corpus.digest), corpus)))
"""


@pytest.mark.parametrize("encoding", [pytest.param("alibi", marks=pytest.mark.slow), "fox"])
def test_other_arithmetic_is_within_the_tolerance(encoding):
    """Kernels without vector instructions, and two threads: as far apart as two processors, not two programs."""
    processors = (
        (1, {}),
        (2, {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}),
    )
    found = []
    for threads, variables in processors:
        code = SPREAD.format(threads=threads, encoding=encoding)
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=True,
            timeout=PATIENCE,
        )  # fmt: skip
        found.append(json.loads(done.stdout))
    one, other = found
    assert one != other
    apart = max(abs(one[name] - other[name]) / max(1, abs(one[name])) for name in one)
    assert apart < TOLERANCE / 10


@pytest.mark.parametrize("task", GENERATED)
def test_the_behaviour_of_every_task_is_the_same_each_time(task):
    kind = GENERATED[task]
    sizes = {"steps": 4, "batch_size": 4, "dim": 8, "num_heads": 2, "num_layers": 1}
    corpus, settings = kind(**sizes).load("generated")
    run = Run.of("rope", 0, settings, corpus.digest)
    state = torch.get_rng_state()
    numbers = behaviour(run, corpus)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert behaviour(run, corpus) == numbers
    assert {f"loss of step {step}" for step in (1, 2, 3, 4)} <= numbers.keys()
    assert f"loss of rope at {settings.spelled(settings.conditions[-1])}" in numbers


# -------------------------------------------------------------------- the commands, on an edited copy of the program

COMPARE = [
    "compare",
    "--task",
    "copy",
    "--preset",
    "quick",
    "--encodings",
    "alibi",
    "--seeds",
    "1",
    "--steps",
    "3",
    "--workers",
    "1",
]


def test_the_command_of_the_slow_test_is_taken():
    assert parse(cli.COMMANDS[COMPARE[0]], COMPARE[1:])


def command(source, arguments, out):
    variables = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "posenc.cli", *arguments, "--out", str(out), "--json"]
    done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    return results["runs"]["kept_from_before"], done.stderr


@pytest.mark.slow
def test_the_command_measures_again_under_an_edited_program(tmp_path):
    source = tmp_path / "src"
    shutil.copytree(Path(posenc.__file__).parents[1], source, ignore=shutil.ignore_patterns("__pycache__"))
    functional = source / "posenc/functional.py"
    text = functional.read_text()
    assert command(source, COMPARE, tmp_path / "out")[0] == 0
    assert command(source, COMPARE, tmp_path / "out")[0] == 2
    refactored = (
        text.replace("_ratio", "_quotient") if "_ratio" in text else text + "\n\ndef _unused() -> None:\n    pass\n"
    )
    functional.write_text(refactored)
    assert command(source, COMPARE, tmp_path / "out")[0] == 2
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("def alibi_slopes"))
    lines[start] = lines[start].replace("alibi_slopes", "_slopes")
    functional.write_text(
        "\n".join([*lines, "", "", "def alibi_slopes(num_heads):", "    return 50 * _slopes(num_heads)", ""])
    )
    kept, said = command(source, COMPARE, tmp_path / "out")
    assert kept == 1
    assert "Behaviour: " in said
