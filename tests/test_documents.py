"""Every Python snippet of the README and the docs runs, in order, as written; every command named exists.

What only a launcher can start is fenced as `py`, and held by tests/distributed.
"""

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from posenc import cli
from posenc.bench.plan import plan
from posenc.conformance.kinds import KINDS
from posenc.evals.config import settings_of
from posenc.frequencies import diff
from posenc.pretrained.methods import Lengths
from posenc.pretrained.methods import plan as plan_extension
from posenc.report import explorer

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GUIDE = "position_from_scratch"  # test_guide.py runs the snippets that its editions share


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if not p.name.startswith(GUIDE)], ids=lambda p: p.name)
def test_snippets_run(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # what they write goes there
    page = ModuleType(path.stem)  # as at a prompt, a class of a snippet can be pickled
    monkeypatch.setitem(sys.modules, path.stem, page)
    names = page.__dict__
    for block in blocks(path, "python"):
        exec(compile(block, path.name, "exec"), names)
    if path.name == "README.md":
        assert names["out"].shape == (2, 8, 100, 64)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_commands_parse(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.yaml").write_text("seeds: 2\n")
    parsed = []
    monkeypatch.setattr(cli.compare, "run_compare", lambda options, command: parsed.append(options) or 0)
    monkeypatch.setattr(cli.conform, "run_conform", lambda options, command: KINDS[options.kind] and 0)
    monkeypatch.setattr(cli.bench, "run_bench", lambda options, command: plan(options.cases) and 0)
    monkeypatch.setattr(cli.diff, "run_diff", lambda options, command: not diff(options.first, options.second).pairs)
    monkeypatch.setattr(
        cli.explore, "run_explore", lambda options, command: explorer.page(cli.explore.state(options)) and 0
    )
    monkeypatch.setattr(cli.doctor, "run_doctor", lambda options, command: 0)
    monkeypatch.setattr(cli.analyze, "run_analyze", lambda options, command: 0)
    monkeypatch.setattr(
        cli.eval, "run_eval", lambda options, _: settings_of(options.preset, **cli.eval.given(options)).made() and 0
    )
    lengths = Lengths(trained=8192, target=32768)
    monkeypatch.setattr(
        cli.extend,
        "run_extend",
        lambda options, _: (options.image_size or plan_extension(options.method, {}, lengths, lengths)) and 0,
    )
    for block in blocks(path, "sh"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["posenc"]:
                assert cli.main(words[1:]) == 0, line
    if path.name == "README.md":
        assert len(parsed) == 9


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target
