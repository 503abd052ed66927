"""What commands say: remedies that can be typed, no argument named twice, what a terminal shows meanwhile."""

import ast
import io
import re
from pathlib import Path

import pytest

import posenc
from posenc import cli
from posenc.cli.command import with_flags
from posenc.errors import InputError
from posenc_cli.answers import waiting
from test_error_fields import raised_texts

SOURCE = Path(posenc.__file__).parent
SETTINGS = [
    (command, setting) for command in cli.COMMANDS.values() for setting in command.settings().values()
    if not setting.how.positional
]  # fmt: skip
NAMES = {setting.field for _, setting in SETTINGS}


# ---------------------------------------------------------------- remedies


def test_a_remedy_names_the_flag_that_the_command_has():
    for command, setting in SETTINGS:
        name, off = setting.field, setting.written.replace("--", "--no-", 1)
        error = InputError("is wrong", f"pass {name}=, or {name}=3 (not f(x, {name}=4)); {name}='a'", other=2)
        assert with_flags(error, command) == (
            f"other=2: is wrong; pass {setting.written}, or {setting.written} 3 (not f(x, {name}=4)); {setting.written} a"
        )
        assert str(error).count(f"{name}=") == 4
        if setting.type is bool:
            both = InputError("is wrong", f"pass {name}=True or {name}=False")
            assert with_flags(both, command) == f"is wrong; pass {setting.written} or {off}"


def test_what_to_pass_is_a_remedy():
    """Arguments in the first text of an error would not be written as flags."""
    found = [
        f"{file.name}:{node.lineno}"
        for file in SOURCE.rglob("*.py")
        for node, _ in raised_texts(ast.parse(file.read_text(encoding="utf-8")))
        if (text := "".join(part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)
                            and isinstance(part.value, str)))
        and any(name in NAMES for name in re.findall(r"\b(?:pass|give) (\w+)=", text))
    ]  # fmt: skip
    assert not found, 'write InputError("problem", "pass argument=...")'


# ---------------------------------------------------------------- errors about errors


@pytest.mark.parametrize(
    ("inner", "other", "text"),
    [
        (InputError("needs 9 tokens", length=8), {"tasks": "needle", "lengths": 8}, "tasks='needle', lengths=8: needs 9 tokens"),
        (InputError("no file", "name one", source="a.txt"), {"text": "a.txt"}, "text='a.txt': no file; name one; or leave it"),
        (InputError("no file", source="a"), {"tasks": "needle:source=a"}, "tasks='needle:source=a': no file; or leave it"),
        (InputError("reads a text", argument="fit"), {"methods": "fit"}, "methods='fit': reads a text; or leave it"),
        (InputError("must be even", window=3), {"methods": "rerope"}, "methods='rerope': window=3: must be even"),
    ],
)  # fmt: skip
def test_an_error_about_another_argument_states_nothing_twice(inner, other, text):
    remedy = "or leave it" if text.endswith("or leave it") else ""
    assert str(inner.about(remedy, **other)) == text


# ---------------------------------------------------------------- terminals


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_what_is_waited_for_until_it_is_done(terminal, monkeypatch):
    class Stream(io.StringIO):
        def isatty(self):
            return terminal

    monkeypatch.setattr("sys.stderr", stream := Stream())
    with waiting("posenc check: importing PyTorch"):
        shown = stream.getvalue()
    assert shown == ("posenc check: importing PyTorch ...\r" if terminal else "")
    assert stream.getvalue().removeprefix(shown).strip(" \r") == ""
