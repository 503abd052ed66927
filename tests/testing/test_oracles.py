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
