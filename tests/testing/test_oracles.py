"""The oracles share nothing with what they judge, and stand once."""

import ast
import re
import sys
from pathlib import Path

import pytest

from posenc.testing import oracles

ROOT = Path(__file__).parents[2]
ORACLES = sorted(Path(oracles.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", ORACLES, ids=lambda file: file.stem)
def test_an_oracle_imports_torch_and_other_oracles_alone(file):
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module)
    allowed = re.compile(r"posenc\.testing\.oracles(\.\w+)?|torch(\.\w+)*")
    others = {name for name in names if not allowed.fullmatch(name)}
    assert others <= sys.stdlib_module_names | {"collections.abc"}


JUDGED, PEER = "implementations that are judged", "what posenc is compared with in speed"
WRITTEN_OUT = {
    "benchmarks/short_calls.py": PEER,
    "src/posenc/conformance/faults.py": "the faults",
    "tests/conformance/test_assembled.py": JUDGED,
    "tests/conformance/test_command.py": JUDGED,
    "tests/conformance/test_reported.py": JUDGED,
    "tests/frequencies/test_schedules.py": "a ratio of two ladders",
    "tests/references/mutants.py": JUDGED,
    "tests/test_readme_commands.py": JUDGED,
}
"""Files that have a ladder of frequencies or slopes of their own, and why. It may become shorter only."""


def test_ladders_and_slopes_are_written_out_nowhere_else():
    ladder = r"\*\* ?-?\(-?(2(\.0)? ?\* ?)?(torch\.)?arange\("
    slopes = r"\b2(\.0)? ?\*\* ?\(-8"
    one = r"\*\* ?\(-2(\.0)? ?\* ?\w+ ?/ ?\w+\)"
    own = re.compile("|".join((ladder, slopes, one)))
    folders = (
        ROOT / name for name in ("tests", "benchmarks", "src/posenc/conformance", "src/posenc/lab", "src/posenc/tasks")
    )
    files = sorted(file for folder in folders for file in folder.rglob("*.py") if file != Path(__file__))
    found = {file.relative_to(ROOT).as_posix() for file in files if own.search(file.read_text(encoding="utf-8"))}
    assert found == set(WRITTEN_OUT), "posenc.testing.oracles has them"
