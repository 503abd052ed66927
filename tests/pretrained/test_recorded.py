"""What transformers 4.57.6 and llama.cpp were recorded to compute (benchmarks/recorded.py) is what their rules say."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from posenc import InputError
from posenc.pretrained.readers import ConfigFile, compare

ROOT = Path(__file__).parents[2]


RECORDED = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "recorded.py")))
STORED = json.loads(RECORDED.ANSWERS.read_text(encoding="utf-8"))
PUBLISHED = {
    name: entry["fields"] for file in RECORDED.PUBLISHED for name, entry in json.loads(file.read_text("utf-8")).items()
}
PROGRAMS = ("transformers 4", "llama.cpp")


def fields_of(name):
    """Of a published configuration, or of a model type with a probe."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    kind, _, probe = name.partition(", ")
    return {"model_type": kind} | RECORDED.PROBES[probe]


def check(program, names):
    """Count what is said of a program as it was recorded, and of which nothing is said."""
    said = unsaid = 0
    for name in names:
        config = ConfigFile(name, fields_of(name))
        answers = STORED[program]["answers"][name]
        if program == "llama.cpp":
            answers = {str(config.length): list(answers.values())[-1]}
        for length, answer in answers.items():
            try:
                comparison = compare(config, int(length))
            except InputError:  # transformers 5 refuses it
                unsaid += 1
                continue
            readings = [each for each in comparison.readings if each.program == program]
            assert program not in {each.program for each in comparison.refused}, name
            if not readings:
                unsaid += 1
                continue
            same = RECORDED.same_as(readings, length, answer, STORED["frequencies"], program == "llama.cpp")
            assert same, f"{program}, {name}, {length} tokens"
            said += 1
    return said, unsaid


@pytest.mark.parametrize("program", PROGRAMS)
def test_published_configurations_are_read_as_recorded(program):
    said, _ = check(program, [name for name in STORED[program]["answers"] if name in PUBLISHED])
    assert said >= 140


@pytest.mark.parametrize("program", PROGRAMS)
def test_model_types_are_read_as_recorded(program):
    said, _ = check(program, [name for name in STORED[program]["answers"] if name not in PUBLISHED])
    assert said >= 110  # of the types whose rules posenc has


def test_what_failed_is_not_said_to_run():
    for name in STORED["transformers 4"]["fails"]:
        try:
            comparison = compare(ConfigFile(name, fields_of(name)))
        except InputError:
            continue
        assert "transformers 4" not in {each.program for each in comparison.readings}, name
