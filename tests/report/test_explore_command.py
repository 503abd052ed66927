"""posenc explore."""

import json
import webbrowser

import pytest

from posenc import cli
from posenc.report.explorer import page


def test_it_writes_the_page_here_and_says_where(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["explore"]) == 0
    path = tmp_path / "posenc-explorer.html"
    assert path.read_text(encoding="utf-8") == page()
    assert capsys.readouterr().out == f"{path}: open it in a browser, {path.as_uri()}\n"


@pytest.mark.parametrize(
    ("out", "file"),
    [("new/", "new/{}"), ("new", "new"), ("old", "old/{}"), ("old/", "old/{}"), (".", "{}"), ("new/a b é.html",) * 2],
)
def test_it_writes_the_given_state_to_the_given_path(capsys, tmp_path, monkeypatch, out, file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    options = ["--encoding", "rope", "--method", "yarn:beta_fast=8", "--dim", "128", "--base", "5e5", "--factor", "8"]
    assert cli.main(["explore", "--out", out, "--json", *options]) == 0
    printed = json.loads(capsys.readouterr().out)
    given = {"encoding": "rope", "method": "yarn:beta_fast=8", "dim": 128, "base": 5e5, "factor": 8.0}
    path = tmp_path / file.format("posenc-explorer.html")
    assert printed == {"file": str(path), "url": path.as_uri(), "state": given}
    assert path.read_text(encoding="utf-8") == page(given)
    assert [each for each in tmp_path.rglob("*") if each.is_file() and each.name != ".lock"] == [path]


def test_it_opens_the_browser_when_asked(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    path = tmp_path / "a.html"
    assert cli.main(["explore", "--out", str(path)]) == 0
    assert opened == []
    assert cli.main(["explore", "--out", str(path), "--open"]) == 0
    assert opened == [path.as_uri()]


def test_a_mistake_is_reported_and_nothing_is_written(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, message in (
        (["--encoding", "ropes"], "did you mean 'rope'"),
        (["--length", "4"], "--length 4: positions shown; an integer from 8 to 1024"),
        (["--out", ""], "--out '': name a file"),
    ):
        assert cli.main(["explore", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
