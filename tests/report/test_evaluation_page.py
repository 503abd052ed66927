"""The page of posenc eval: from results of the contract's shape, in words, in figures, in a real browser."""

import json
import re
from html import unescape
from io import StringIO

import pytest
from rich.console import Console

from posenc.lab.evals.results import difference
from posenc.report import evaluate as evaluation
from posenc.report.evaluate import MEASURES, methods, page, show
from report.eval_results import DEPTHS, LENGTHS, METHODS, TRAINED, results, without


def drawn(text):
    return json.loads(re.search(r'id="figures">(.*?)</script>', text, flags=re.DOTALL).group(1))


def texts(html):
    """What a reader sees, in one line."""
    body = html[html.index("<main>") : html.index("</main>")].replace("<wbr>", "")
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def words(measure, estimate):
    return " ".join(MEASURES[measure].words(estimate))


def lines(figure):
    return {line["name"]: line for line in figure["series"]}


@pytest.fixture(scope="module")
def found():
    return results()


@pytest.fixture(scope="module")
def html(found):
    return page(found)


def test_it_is_one_file_with_every_sentence(html, found):
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']?http", html)
    assert len(html.encode()) < 5e5
    seen = texts(html)
    for sentence in (*found["answer"], *found["limits"], *(task["summary"] for task in found["tasks"])):
        assert sentence in seen
    assert found["command"] in seen
    assert "Stopped early" not in seen


def test_the_ranking_has_every_number_with_its_interval(html, found):
    table = html[html.index('<table id="ranking"') :]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table[: table.index("</table>")], flags=re.DOTALL)[1:]
    for row, ranked in zip(rows, found["ranking"], strict=True):
        text = texts(f"<main>{row}</main>")
        assert ranked["method"] in text
        assert ("baseline" in text) == (ranked["method"] in ("none", "truncation"))
        for task in ranked["tasks"]:
            assert words(task["measure"], task["value"]) in text
            if task["against_none"]:
                assert " ".join(difference(task["against_none"], task["measure"])) in text
        assert (f"{ranked['better']} better, {ranked['worse']} worse" in text) == (ranked["method"] != "none")
        pills = re.findall(r'class="pill[^>]*>([^<]+)<', row)
        assert pills == [t["verdict"] for t in ranked["tasks"] if ranked["method"] != "none"]


def test_every_cell_is_in_the_tables(html, found):
    rows = re.findall(r"<tr>(.*?)</tr>", html[html.index('id="task-0"') : html.index('id="task-1"')], flags=re.DOTALL)
    shown = [texts(f"<main>{row}</main>") for row in rows]
    for method in found["tasks"][0]["methods"]:
        for cell in method["cells"]:
            start = f"{method['method']} {cell['length']} {100 * cell['depth']:g} %"
            row = next(row for row in shown if row.startswith(start))
            for key in ("score", "exact", "loss"):
                assert words(key, cell[key]) in row


def test_depth_figures_hold_the_numbers(html, found):
    own = drawn(html)
    task = found["tasks"][0]
    for at, length in enumerate(LENGTHS):
        for number, key in enumerate(("score", "exact")):
            shown = lines(own["task-0-depth"][f"{at} {number}"])
            assert list(shown) == list(METHODS)
            for method in task["methods"]:
                cells = [c for c in method["cells"] if c["length"] == length]
                trace = shown[method["method"]]
                assert trace["y"] == pytest.approx([100 * c[key]["mean"] for c in cells], rel=1e-4)
                assert trace["x"] == pytest.approx([100 * d for d in DEPTHS], rel=1e-4)
                assert trace["high"] == pytest.approx([100 * c[key]["high"] for c in cells], rel=1e-4)
        shown = lines(own["task-0-depth"][f"{at} 2"])
        assert shown["none"]["y"] == pytest.approx(
            [c["loss"]["mean"] for c in task["methods"][0]["cells"] if c["length"] == length], rel=1e-4
        )


def test_nothing_has_no_sign_of_its_own():
    nothing = {"mean": -0.0004, "low": -0.002, "high": 0.002}
    assert difference(nothing, "score")[0] == "+0 points"
    assert difference(nothing, "loss")[0] == "+0.000 nats"


def test_the_trained_length_is_marked(html):
    own = drawn(html)
    assert own["task-0-length"]["0"]["marks"][0]["x"] == 2048


def test_a_trained_length_far_away_is_not_marked():
    found = results()
    found["model"]["trained_length"] = 10 * LENGTHS[-1]
    html = page(found)
    assert "marks" not in drawn(html)["task-0-length"]["0"]


def test_a_method_looks_the_same_everywhere(html):
    colours = {}
    for name, entry in drawn(html).items():
        for figure in entry.values():
            for line in figure.get("series", ()):
                style = line["colour"], tuple(line.get("dash", ()))
                assert colours.setdefault(line["name"], style) == style, name
    assert list(colours) == list(METHODS)
    assert len(set(colours.values())) == len(METHODS)


def test_running_text_has_its_loss_alone(html):
    own = drawn(html)
    assert "task-2-depth" not in own
    assert list(own["task-2-length"]) == ["0"]


def test_what_is_missing_is_not_zero(found):
    part = without(results(), lambda method, cell: method != "rerope:window=256" or cell["length"] < 4096)
    part["ranking"] = part["ranking"][1:]
    text = page(part)
    assert "Stopped early" in text
    assert "rerope:window=256" not in lines(drawn(text)["task-0-depth"]["2 0"])


def test_nothing_measured_makes_a_page():
    text = page(without(results(), lambda method, cell: False) | {"ranking": [], "answer": [], "cost": []})
    assert texts(text).count("This task was not measured yet") == 3
    assert drawn(text) == {}


@pytest.mark.parametrize(
    "shape",
    [
        {"methods": ["none"]},
        {"depths": (0.5,)},
        {"lengths": (512,)},
        {"methods": ["none"], "depths": (0.5,), "lengths": (512,)},
        {"tasks": ("perplexity",)},
        {"tasks": ("facts",), "methods": ["none"]},
    ],
)
def test_small_evaluations_make_a_page(shape):
    found = results(**shape)
    own = drawn(page(found))
    for entry in own.values():
        for figure in entry.values():
            assert figure.get("series") or figure.get("z")
    longer = max(shape.get("lengths", LENGTHS)) > TRAINED
    wanted = {*shape.get("methods", METHODS), *["truncation"] * longer} - {*["truncation"] * (not longer)}
    assert methods(found) == [method for method in METHODS if method in wanted]


def test_numbers_that_are_unknown_are_dashes():
    found = results()
    found["model"] |= {"trained_length": None, "rope_theta": None}
    found["cost"] = [row | dict.fromkeys(row.keys() - {"method", "seconds"}) for row in found["cost"]]
    for task in found["tasks"]:
        for method in task["methods"]:
            for at in (*method["cells"], *method["by_length"]):
                at["score"] = None
    for ranked in found["ranking"]:
        for task in ranked["tasks"]:
            task["measure"] = "loss"
            task["value"] = {"mean": 2.0, "error": 0.1, "low": 1.8, "high": 2.2}
    text = page(found)
    assert "None" not in texts(text)
    assert "generated answer" not in texts(text)


def test_the_terminal_shows_every_task(found, tmp_path, capsys):
    (tmp_path / "report.html").touch()
    show(found, str(tmp_path))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines()[:-2])) <= 140
    for sentence in found["answer"]:
        assert f"- {sentence}" in shown
    cell = found["tasks"][0]["methods"][1]["cells"][-1]
    row = next(line for line in shown.splitlines() if line.startswith("4096    ntk:factor=4"))
    mean, interval = MEASURES["score"].words(cell["score"])
    assert row.endswith(f"{mean} ({interval.removesuffix(' %')})")
    assert "perplexity: loss" in shown
    assert str(tmp_path / "report.html") in shown


@pytest.mark.parametrize("width", [120, 80, 60, 40, 24])
def test_no_name_is_lost_in_a_narrow_terminal(found, tmp_path, monkeypatch, width):
    """At 80 columns and five depths the columns tokens and method were squeezed to nothing."""
    shown = StringIO()
    monkeypatch.setattr(
        evaluation, "stdout", lambda: Console(file=shown, width=width, highlight=False, color_system=None)
    )
    show(found, str(tmp_path))
    table = shown.getvalue().partition("passkey: right")[2].partition("facts: right")[0]
    for length in (2048, 4096):
        for method in METHODS:
            assert re.search(rf"^{length} +{method} .*\d+ %", table, re.MULTILINE), (length, method)
    assert "…" not in table
    if width >= 40:
        assert max(map(len, table.splitlines())) <= width
    assert ("(intervals " in table) == (width <= 80)
    assert ("In brackets: 95 % intervals" in shown.getvalue()) == bool(re.search(r"\([\d.]+ to ", shown.getvalue()))
    assert "Computed in bfloat16, in which this machine" in " ".join(shown.getvalue().split())


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
def test_a_browser_shows_it_without_complaint(html, new_tab, tmp_path, scheme, width):
    path = tmp_path / "report.html"
    path.write_text(html)
    tab = new_tab(color_scheme=scheme, viewport={"width": width, "height": 900})
    tab.goto(path.as_uri())
    plots = len(drawn(html))
    assert tab.evaluate("Object.values(posenc.report.probes).length") == plots
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    most = "posenc.draw.theme(document.querySelector('.plot')).up.css[255]"
    assert tab.evaluate(most) == ("rgb(18 63 128)" if scheme == "light" else "rgb(181 216 255)")


@pytest.mark.browser
def test_switches_work_from_the_keyboard(html, new_tab, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(html)
    tab = new_tab()
    tab.goto(path.as_uri())
    own = drawn(html)

    def heights(name):
        return tab.evaluate("name => posenc.report.shown[name].series[0].y", name)

    assert heights("task-0-depth") == pytest.approx(own["task-0-depth"]["2 0"]["series"][0]["y"])
    tab.locator("#task-0-by-depth input[data-choice=length]:checked").focus()
    tab.keyboard.press("ArrowUp")  # from the longest texts to shorter ones
    assert heights("task-0-depth") == pytest.approx(own["task-0-depth"]["1 0"]["series"][0]["y"])
    box = tab.locator("#task-0-by-depth input[data-method=none]")
    box.focus()
    tab.keyboard.press("Space")  # hides it in every figure
    shown = "posenc.report.shown['task-1-length'].series.some(one => one.name === 'none')"
    assert not tab.evaluate(shown)
    assert not tab.locator("#task-1-by-depth input[data-method=none]").is_checked()
    box.press("Space")
    assert tab.evaluate(shown)
    tab.locator("#task-0-by-depth button[data-show=none]").press("Enter")
    assert not tab.evaluate(shown)
    tab.locator("#task-0-by-depth button[data-show=all]").press("Enter")
    assert tab.evaluate(shown)
    tab.locator("#task-0 > details > summary").focus()
    tab.keyboard.press("Enter")
    assert tab.locator("#task-0 > details table").first.is_visible()
