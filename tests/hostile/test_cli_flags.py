"""Every flag with every odd value: an answer, or one line that says what is wrong; never a traceback, nothing left."""

import itertools
import random

import pytest

from hostile.commands import BASES, cases, prepare, wrong
from posenc import cli
from references.cases import commit

CASES = sorted(cases(), key=str)
random.Random(commit()).shuffle(CASES)
SLOW_COMMANDS = ("analyze", "bench", "check", "doctor", "eval", "extend")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    prepare(folder)
    return folder


def test_every_command_is_tried():
    assert set(BASES) == set(cli.COMMANDS)


def test_odd_values_are_answered_or_refused(files):
    """Of every flag of the quick commands two values, and one of the others', drawn by the commit."""
    failures = {}
    by_flag = itertools.groupby(sorted(CASES, key=_flag), _flag)
    for (command, _), group in by_flag:
        for case in list(group)[: 1 if command in SLOW_COMMANDS else 2]:
            _, faults = wrong(case, files)
            if faults:
                failures[str(case)] = faults
    assert failures == {}


def _flag(case):
    return case.command, case.argument
