"""Every flag with every odd value: an answer, or one line that says what is wrong; never a traceback, nothing left."""

import itertools
import random
from functools import partial

import pytest

from hostile.commands import BASES, Case, actions, cases, prepare, strangers, wrong
from posenc import cli
from posenc.cli.config import parse
from posenc.errors import InputError

CASES = sorted(cases(), key=str)
random.Random(8).shuffle(CASES)
SLOW_COMMANDS = ("analyze", "bench", "doctor", "eval", "extend")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    prepare(folder)
    return folder


def test_every_command_is_tried_with_all_its_flags():
    assert set(BASES) == set(cli.COMMANDS)
    tried = {(case.command, case.argument) for case in CASES}
    for command in cli.COMMANDS:
        for action in actions(command):
            assert all((command, flag) in tried for flag in action.option_strings or [action.dest])


def test_odd_values_are_answered_or_refused(files):
    """Of every flag of the quick commands six values, and one of the others', drawn by a fixed seed."""
    found = {}
    by_flag = itertools.groupby(sorted(CASES, key=_flag), _flag)
    for (command, _), group in by_flag:
        for case in list(group)[: 1 if command in SLOW_COMMANDS else 6]:
            _, faults = wrong(case, files)
            if faults:
                found[str(case)] = faults
    assert found == {}


def _flag(case):
    return case.command, case.argument


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_flag_of_another_command_is_refused_by_name(command, files):
    for flag in strangers(command):
        assert wrong(Case(command, flag, "zero"), files) == (2, []), flag


def outcome(command, *arguments):
    """What a command would do: its options, or what it refuses."""
    try:
        return {name: repr(value) for name, value in vars(parse(partial(cli.build, command), arguments)).items()
                if name != "parser"}  # fmt: skip
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_of_a_flag_given_twice_the_last_counts(command):
    base, read = BASES[command].split(), 0
    for action in actions(command):
        for flag in action.option_strings:
            if flag == "--option":  # gathers
                continue
            one, two = ([flag, *value] for value in values_of(action))
            once = outcome(command, *base, *two)
            assert outcome(command, *base, *one, *two) == once, flag
            read += isinstance(once, dict)
    assert read


def values_of(action):
    """Two of what a flag takes, as it is written."""
    if action.nargs == 0 or type(action).__name__ == "BooleanOptionalAction":
        return [], []
    if action.dest == "config":
        return ["none.yaml"], ["none.toml"]
    first, *_, last = action.choices or ("1", "2")
    return [first], [last]


@pytest.mark.slow
def test_all_odd_values_are_answered_or_refused(files):
    assert {str(case): faults for case in CASES if (faults := wrong(case, files)[1])} == {}
