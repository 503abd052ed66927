"""Tables and figures to take along: the files beside a report, its buttons and its address."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest

from posenc.lab import data
from posenc.lab.compare import Comparison, compare
from posenc.lab.engines import InProcess
from posenc.lab.table import Table, as_csv
from posenc.report import bench, evaluate
from posenc.report import compare as compare_report
from posenc.report.compare import by_context, columns, files, settings_of
from posenc.report.drawn import drawn, plots_of
from posenc.report.figures import plain
from report.eval_results import results as eval_results

NAMES = ["report.html", "table.md", "table.csv", "figure.svg"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from lab.conftest import TEXT, TINY

    directory = tmp_path_factory.mktemp("files")
    comparison = Comparison(("none", "rope", "t5"), 2, replace(TINY, factors=(1, 2, 4)))
    compare(comparison, data.corpus(TEXT, "text.txt"), directory, engine=InProcess(), pages=files)
    return directory


def bench_results():
    def ratio(value):
        return {"median": value, "low": value * 0.9, "high": value * 1.1}

    rows = [
        {"encoding": name, "mode": "forward", "length": length, "seconds": 1e-3, "ratios": {"posenc": ratio(1.1), "SDPA, dense bias": ratio(2.0)}}
        for name in ("rope", "t5") for length in (64, 128)
    ]  # fmt: skip
    machine = {"cpu": "a processor", "instruction_set": "AVX2", "posenc": "1", "torch": "2"}
    settings = {"clock": "cpu", "threads": 1, "dtype": "float32"}
    return {
        "kind": "bench", "rows": rows, "trials": {"planned": 4, "finished": 4}, "machine": machine, "settings": settings,
        "created": "2026-11-26", "complete": True, "command": "", "seconds": 1.0,
    }  # fmt: skip


def test_a_comparison_writes_its_tables_and_its_figure(folder):
    results = json.loads((folder / "results.json").read_text())
    assert {*NAMES} <= {path.name for path in folder.iterdir()}
    rows = list(csv.DictReader((folder / "table.csv").open()))
    assert [row["encoding"] for row in rows] == [variant["name"] for variant in results["variants"]]
    for row, variant in zip(rows, results["variants"], strict=True):
        assert float(row["loss at 16"]) == pytest.approx(variant["lengths"][0]["loss"]["mean"], abs=6e-4)
        change = variant["lengths"][2]["change"]
        assert float(row["change at 64"]) == pytest.approx(change["mean"], abs=6e-4)
        assert float(row["change at 64 (interval)"]) == pytest.approx((change["high"] - change["low"]) / 2, abs=6e-4)
    markdown = (folder / "table.md").read_text()
    s, page = settings_of(results), (folder / "report.html").read_text()
    for column in [*columns(results, s), *by_context(results["variants"], s)]:
        assert f"| {column.title} |" in markdown
        assert all((cell if isinstance(cell, str) else " ".join(cell)) in markdown for cell in column.shown)
    assert all(f"<td>{at['mean']:.3f}</td>" in page for variant in results["variants"] for at in variant["by_context"])
    assert (folder / "figure.svg").read_text().startswith("<?xml")
    assert all(f"{name}: " in markdown for name in ("data", "model", "steps", "seeds", "versions", "made"))
    assert {row["steps"] for row in rows} == {str(results["settings"]["steps"])}


def test_every_point_of_a_figure_lies_within_its_axes(folder):
    compared = json.loads((folder / "results.json").read_text())
    count = 0
    style, evaluated = compare_report.styles(compared["variants"]), eval_results()
    for panels in (
        compare_report.panels(compared, settings_of(compared), style),
        *(section.panels for section in evaluate._sections(evaluated, evaluate.styles(evaluate.methods(evaluated)))),
    ):
        for figure in (plain(figure) for each in plots_of(panels) for figure in each.figures.values()):
            ax = drawn(figure).axes[0]
            (left, right), (low, high) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
            for one in figure["series"]:
                points = [(x, y) for x, y in zip(one["x"], one["y"], strict=True) if y is not None]
                assert all(left <= x <= right and low <= y <= high for x, y in points), one["name"]
                count += len(points)
    assert count > 250


def test_the_same_results_give_the_same_files(folder):
    results = json.loads((folder / "results.json").read_text())
    for name, content in files(results).items():
        assert (content if isinstance(content, bytes) else content.encode()) == (folder / name).read_bytes()


@pytest.mark.parametrize(("made", "of"), [(eval_results, evaluate.files), (bench_results, bench.files)])
def test_evaluations_and_benchmarks_have_the_same_files(made, of):
    found = of(made())
    assert [*found] == (NAMES if made is eval_results else NAMES[:-1])
    rows = list(csv.DictReader(io.StringIO(found["table.csv"])))
    text = found["table.md"]
    assert rows
    for row in rows:
        assert all(value in text for name, value in row.items() if value and "interval" not in name and name != "table")
        assert row["versions"]
        assert not any(re.search(r"\d \(|–|%", value) for name, value in row.items() if name != "table")


def test_a_table_names_its_rows_in_full():
    table = Table(
        "Time & cost", "ms", ["case", "name", "a_b"], [["x|y", "rope", ("−1 %", "± 2")], ["", "~", "–"]], names=2
    )
    assert as_csv([replace(table, rows=())]) == "\n"  # an evaluation that was stopped has such tables
    assert [*csv.reader(io.StringIO(as_csv([table])))] == [
        ["case", "name", "a_b (%)", "a_b (%) (interval)"], ["x|y", "rope", "-1", "2"], ["x|y", "~", "", ""],
    ]  # fmt: skip
    assert r"| `x\|y` | rope | −1 % ± 2 |" in table.markdown()


# -------------------------------------------------------------------- the page


@pytest.mark.browser
def test_tables_are_copied_and_figures_saved(folder, new_tab):
    tab = new_tab(viewport={"width": 1280, "height": 900})
    tab.goto((folder / "report.html").as_uri())
    tab.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
    names = tab.evaluate(
        "[...document.querySelectorAll('#ranking tbody tr td:first-child')].map(cell => cell.firstChild.textContent)"
    )
    bar = tab.locator(".scroll:has(#ranking) + .saving")
    copied = {}
    for kind in ("Markdown", "CSV", "LaTeX"):
        bar.get_by_role("button", name=kind).click()
        tab.wait_for_function(f"document.body.textContent.includes('The table is copied as {kind}.')")
        copied[kind] = tab.evaluate("window.copied")
    rows = [*csv.reader(io.StringIO(copied["CSV"]))]
    assert len(rows) == 1 + len(names)
    assert len({len(row) for row in rows}) == 1
    assert copied["Markdown"].count("\n") == 2 + len(names)
    assert copied["LaTeX"].count(r" \\") == 1 + len(names)
    with tab.expect_download() as saved:
        tab.locator("#plot-change .saving").get_by_role("button", name="SVG").click()
    text = saved.value.path().read_text()
    assert saved.value.suggested_filename == "posenc-change.svg"
    assert "Loss by length" in text
    assert all(name in text for name in ("none", "rope", "t5"))
    with tab.expect_download() as saved:
        tab.locator("#plot-change .saving").get_by_role("button", name="PNG").click()
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")


@pytest.mark.browser
def test_the_address_has_what_was_chosen(folder, new_tab):
    tab = new_tab(viewport={"width": 1280, "height": 900})
    page = (folder / "report.html").as_uri()
    tab.goto(page)
    assert tab.evaluate("location.hash") == ""
    tab.locator("#by-size label:has-text('change')").click()
    tab.locator("#ranking th button").nth(1).click()
    tab.locator("#ranking th button").nth(1).click()
    tab.locator("input[data-method=t5]").first.click()
    hash = tab.evaluate("location.hash")
    assert hash == "#by-size.measure=1&sort=ranking.1.descending&only=" + hash.partition("only=")[2]
    shown = """() => ({
        sort: document.querySelector('#ranking th[aria-sort]').cellIndex,
        order: [...document.querySelectorAll('#ranking tbody td:first-child')].map(cell => cell.textContent),
        rise: document.querySelector('#by-size input:checked').value,
        ticked: [...document.querySelectorAll('input[data-method]:checked')].map(box => box.dataset.method),
        drawn: posenc.report.shown.change.series.map(one => one.name),
    })"""
    before = tab.evaluate(shown)
    assert "t5" not in before["ticked"]
    again = new_tab(viewport={"width": 1280, "height": 900})
    again.goto(page + hash)
    assert again.evaluate(shown) == before
    odd = new_tab(viewport={"width": 1280, "height": 900})
    odd.goto(f"{page}#sort=nothing.9.up&only=nobody&by-size.measure=7&x.y=2")
    assert odd.evaluate("[...document.querySelectorAll('input[data-method]')].every(box => box.checked)")
    assert odd.locator("#ranking th[aria-sort]").count() == 0


def test_every_heading_has_an_address(folder):
    text = (folder / "report.html").read_text()
    headings = re.findall(r"<h[23][^>]*>", text)
    ids = re.findall(r'<h[23] id="([^"]+)"', text)
    assert len(headings) == len(ids) == len({*ids})
    assert [*re.findall(r'class="anchor" href="#([^"]+)"', text)] == ids
    every = re.findall(r'\bid="([^"]+)"', text.partition("<script")[0])
    assert len(every) == len({*every})
