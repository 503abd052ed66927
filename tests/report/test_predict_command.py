"""posenc explore --predict."""

import json
import webbrowser

import pytest

from posenc import cli


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog.\n" * 300, encoding="utf-8")
    return path


def test_it_trains_and_writes_the_page(capsys, tmp_path, monkeypatch, text):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    path = tmp_path / "own.html"
    options = f"--data {text} --length 8 --steps 2 --seed 3 --out {path} --json --open --lang zh".split()
    assert cli.main(["explore", "--predict", "alibi", "none", *options]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"file": str(path), "url": path.as_uri(), "encodings": ["alibi", "none"]}
    assert opened == [path.as_uri()]
    lines = [line.split(":") for line in printed.err.splitlines()]
    assert [rest[0] for command, *rest in lines if command == "posenc explore"] == [" alibi", " none"]
    page = path.read_text(encoding="utf-8")
    assert '"steps":2' in page
    assert '"seed":3' in page
    assert "the quick brown fox" in page
    assert 'data-lang="zh"' in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "3"], "--steps: is for --predict"),
        (["--predict", "rope", "--heads", "3"], "--heads: is for the other page"),
        (["--predict", "rope", "--lang", "fr"], "--lang fr: must be en or zh"),
        (["--predict", "fox"], "unknown choice 'fox'"),
        (["--predict", "rope", "--length", "4"], "--length 4: must be from 8 to 512"),
        (["--predict", "rope", "--steps", "0"], "--steps 0: must be from 1"),
        (["--predict", "rope", "--seed", "-1"], "--seed -1: must be from 0"),
        (["--predict", "rope", "--out", ""], "--out '': name a file"),
        (["--predict", "rope", "--data", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["explore", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
