"""What transformers 4.57.6 and llama.cpp were recorded to compute (benchmarks/recorded.py): config-only says the same of them."""

import importlib.util
import json
from pathlib import Path

import pytest
import transformers

from posenc import InputError
from posenc.pretrained.programs import NotKnown, ProgramFails, programs_answer
from posenc.pretrained.readers import ConfigFile, compare
from posenc.pretrained.recorded import RECORDS, fingerprint

ROOT = Path(__file__).parents[2]


def script():
    spec = importlib.util.spec_from_file_location("recorded_script", ROOT / "benchmarks" / "recorded.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RECORDED = script()
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


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_model_types_are_read_as_recorded(program):
    said, unsaid = check(program, [name for name in STORED[program]["answers"] if name not in PUBLISHED])
    assert said > 2 * unsaid


@pytest.mark.slow
def test_what_failed_is_not_said_to_run():
    for name in STORED["transformers 4"]["fails"]:
        try:
            comparison = compare(ConfigFile(name, fields_of(name)))
        except InputError:
            continue
        assert "transformers 4" not in {each.program for each in comparison.readings}, name


def said(program, model_type):
    """The readings of a program of a model type by its own values, or why there are none; None: posenc refuses it."""
    try:
        file = ConfigFile("config.json", {"model_type": model_type})
        return programs_answer(program, file, file.length)
    except (ProgramFails, NotKnown) as error:
        return error
    except InputError:
        return None


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 4))])
def test_what_is_newer_than_transformers_4_is_not_said_to_run(part):
    """Its converter has llama.cpp complete configurations by transformers 4.57.6, so of later types nothing was recorded; and of a
    type that transformers 4.57.6 has, as its own or with parts of other types, it is not said that it has none."""
    types, later = {*STORED["transformers 4"]["types"]}, 0
    parts = {
        "dia",
        "emu3",
        "mllama",
        "qwen2_5_omni",
        "qwen3_omni_moe",
        "t5gemma",
    }  # whose text's type 4.57.6 has not alone
    of_transformers = {
        each for each in transformers.CONFIG_MAPPING if not each.startswith("posenc_")
    }  # those are made by tests
    for model_type in sorted(of_transformers - types | parts)[part::4]:
        four, llama = said("transformers 4", model_type), said("llama.cpp", model_type)
        if model_type in types:
            assert "has no model type" not in str(four), model_type
        elif four is not None:
            assert isinstance(four, ProgramFails), model_type
            assert str(four) == f"it has no model type {model_type!r}"
            assert isinstance(llama, NotKnown), model_type
            later += 1
    assert later > 20


def test_a_package_that_was_missing_is_no_answer():
    """Where a program was run for the record."""
    for program in PROGRAMS:
        answers = [*STORED[program]["fails"].values(), *RECORDS[program]["answers"].values()]
        assert not [each for each in answers if "ModuleNotFoundError" in each or "ImportError" in each]


def test_a_configuration_that_was_run_is_marked():
    """By what it states of its rotation, whatever its depth."""
    llama = PUBLISHED["Llama 3.1 8B"]
    for fields, known in (
        (llama, "recorded"),
        (llama | {"num_hidden_layers": 2}, "recorded"),
        (llama | {"rope_theta": 6e5}, "rules"),
    ):
        by = {each.program: each.known_by for each in compare(ConfigFile("config.json", fields)).readings}
        assert (by["transformers 5"], by["transformers 4"], by["llama.cpp"], by["vLLM"]) == (
            "run",
            known,
            known,
            "rules",
        )


def test_model_types_without_rules_are_known_by_their_records():
    comparison = compare(ConfigFile("config.json", PUBLISHED["deepseek-ai/DeepSeek-R1"]))
    assert {each.program for each in comparison.readings} >= {"transformers 5", "transformers 4"}
    refused = {
        each.program: each.why for each in compare(ConfigFile("config.json", PUBLISHED["google/gemma-4-E2B"])).refused
    }
    assert refused["transformers 4"].startswith(("it has no model type", "it fails: KeyError"))


def test_one_and_a_float_are_one_fingerprint():
    one, other = ({"model_type": "llama", "rope_theta": base} for base in (10000, 10000.0))
    assert fingerprint(ConfigFile("a", one)) == fingerprint(ConfigFile("b", other))
    assert all(RECORDS[program]["version"] and RECORDS[program]["date"] for program in PROGRAMS)
