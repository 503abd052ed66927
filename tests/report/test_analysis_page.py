"""The page of an analysis in a real browser, and `posenc analyze` as a user meets it."""

import csv
import json
import re

import pytest

from posenc.analysis.analyze import analyze
from posenc.analysis.finding import INK
from posenc.analysis.target import target_of
from posenc.report.analyze import page, results
from references import commands

HOSTILE = "<img src=x onerror=alert(1)>"

MODULE = """
import torch

def waves(positions):
    print("printed by the function")
    return (positions[:, None] / 7.0 ** torch.linspace(0, 1, 8)).sin()

def infinite(positions):
    return torch.full((len(positions), 4), float("inf"))

def changing(positions):
    return torch.rand(len(positions), 4)

def wrong(positions):
    return torch.ones(3, 4)

table = torch.eye(12)
number = 3
"""


def hostile():
    return target_of(lambda p: p[:, None].cos().expand(-1, 4), length=12, name=HOSTILE)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page, and one of something with a name that is not harmless."""
    folder = tmp_path_factory.mktemp("analysis")
    for name, one in (("rope", target_of("rope", length=24)), ("hostile", hostile())):
        found = analyze(one)
        (folder / f"{name}.html").write_text(page(found, results(found, f"posenc analyze '{HOSTILE}'", 1.0)))
    return folder


def test_it_is_one_small_file_with_every_sentence(report):
    text = (report / "hostile.html").read_text()
    assert len(text.encode()) < 5e5
    assert not re.search(r"<(script|link|img|image)[^>]+(src|href)=[\"']?http", text)
    assert INK not in text.split("</style>", 1)[1].split("<script", 1)[0]
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    found = analyze(hostile())
    for section in found.sections:
        for sentence in section.finding.sentences():
            assert sentence.replace("'", "&#39;").replace("<", "&lt;").replace(">", "&gt;") in text
        for picture in section.pictures:
            assert picture.see.split("'")[0] in text


@pytest.mark.browser
@pytest.mark.parametrize(("name", "scheme", "width"), [("rope", "dark", 390), ("hostile", "light", 1100)])
def test_no_complaint_no_request_no_scrolling_sideways(report, new_tab, scheme, width, name):
    tab = new_tab(viewport={"width": width, "height": 800}, color_scheme=scheme)
    tab.goto((report / f"{name}.html").as_uri())
    tab.wait_for_timeout(200)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    drawings = tab.locator(".drawings svg")
    assert drawings.count() >= 6
    assert all(drawings.nth(i).get_attribute("aria-label") for i in range(drawings.count()))
    ink = tab.evaluate("getComputedStyle(document.querySelector('.drawings svg text')).fill")
    light = sum(map(int, re.findall(r"\d+", ink)[:3])) > 384
    assert light == (scheme == "dark")
    if name == "hostile":
        assert tab.locator("h1").inner_text() == HOSTILE
    part = tab.locator("details.part").first
    assert not part.locator(".drawings, p").first.is_visible()
    tab.goto((report / f"{name}.html").as_uri() + f"#{part.locator('h2').get_attribute('id')}")
    assert part.locator(".drawings, p").first.is_visible()  # an address of a section opens it


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run(capsys, *arguments):
    return commands.run(capsys, "analyze", *arguments)


def test_the_command_prints_sentences_and_writes_a_page_and_numbers(capsys, folder):
    code, out, err = run(capsys, "mine.py:waves", "--length", "12", "--out", "new")
    assert code == 0
    assert out.splitlines()[0] == "mine.py:waves"
    assert "printed by" not in out
    assert "printed by the function" in err
    tables, figures = [f"table.{end}" for end in ("csv", "md")], ["figure.svg"]
    assert sorted(p.name for p in (folder / "new").iterdir()) == [
        "analysis.json", "config.yaml", *figures, "report.html", *tables,
    ]  # fmt: skip
    assert f"{folder / 'new/table.md'}, .csv" in out
    numbers = json.loads((folder / "new" / "analysis.json").read_text())
    rows = list(csv.DictReader((folder / "new/table.csv").open()))
    assert {row["section"] for row in rows} <= {section["name"] for section in numbers["sections"]}
    found = {row["quantity"]: row["value"] for row in rows if row["section"] == "properties"}
    (unique,) = (s["numbers"]["unique"] for s in numbers["sections"] if s["name"] == "properties")
    assert float(found["unique.smallest"]) == pytest.approx(unique["smallest"], rel=1e-5)
    assert found["unique.holds"] == ("yes" if unique["holds"] else "no")
    assert (numbers["schema"], numbers["kind"], numbers["subject"], numbers["seeds"]) == (
        1,
        "analysis",
        "mine.py:waves",
        [0],
    )
    assert numbers["settings"]["length"] == 12
    assert {"posenc", "torch", "matplotlib", "cpu"} <= numbers["machine"].keys()
    assert all(section["sentences"] for section in numbers["sections"])
    assert numbers["sections"][0]["see"]
    code, out, _ = run(capsys, "mine:table", "--json")
    assert (code, json.loads(out)["settings"]["length"]) == (0, 12)


@pytest.mark.parametrize("columns", [60, 80, 300])
def test_lines_fit_the_terminal_and_are_never_long(capsys, folder, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = run(capsys, "mine:table")
    width = max(len(line) for line in out.splitlines() if line.startswith(("- ", "  ")))
    assert min(columns, 100) - 10 < width <= min(columns, 100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine:infinite"], "mine:infinite: the code of position 0 is not finite"),
        (["mine:changing"], "mine:changing: gave two different codes for the same positions"),
        (["mine:wrong"], "mine:wrong: gave (3, 4) "),
        (["mine:waves", "--dim", "6"], "must give real (n, 6)"),
        (["mine:number"], "a int has no codes"),
        (["mine:wavse"], "unknown function in mine 'wavse': did you mean 'waves'?"),
        (["mine.py"], "mine.py: which object in it? Write mine.py:NAME"),
        (["sinusodal"], "unknown encoding 'sinusodal': did you mean 'sinusoidal'?"),
        (["rope:bass=3"], "unknown option of rope"),
        (["rope", "--length", "1"], "--length 1: must be at least 2"),
        (["rope", "--length", "100000000"], "--length 100000000: must be at most 131072"),
        (["rope", "--dtypes", "float16"], "--dtypes left posenc: call guide_code.phase_error"),
        (["no/model/of/that/name"], "unknown encoding 'no'"),
        ([""], "subject '': name an encoding"),
        (["/no/such/model"], "/no/such/model: no such file or folder"),
        (["./model"], "./model: no such file or folder"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(capsys, folder, arguments, message):
    code, out, err = run(capsys, *arguments, "--out", "new")
    assert (code, out) == (2, "")
    assert message in err
    assert len([line for line in err.splitlines() if line.startswith("posenc")]) == 1
    assert not (folder / "new").exists()


def test_an_encoder_is_read_from_safetensors_and_never_from_a_pickle(capsys, folder):
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=24,
    )  # fmt: skip
    BertModel(config).save_pretrained("encoder")
    code, out, _ = run(capsys, str(folder / "encoder"), "--json")
    found = json.loads(out)
    assert (code, found["subject"]) == (0, "encoder")
    assert [found["settings"][name] for name in ("kind", "length", "trained")] == ["model", 24, 24]
    assert str(folder) not in json.dumps(found["sections"])
    (folder / "encoder" / "model.safetensors").unlink()
    torch.save({}, folder / "encoder" / "pytorch_model.bin")
    code, _, err = run(capsys, "encoder")
    assert code == 2
    assert "its weights are pickles" in err
