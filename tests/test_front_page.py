# SPDX-License-Identifier: Apache-2.0
"""README.md, its pictures and README.zh.md agree with the committed results, with the package and with each other."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from posenc.encodings import ENCODINGS
from posenc.frequencies import SCHEDULES
from posenc.position_maps import MAPS
from posenc.pretrained.families import FAMILIES

ROOT = Path(__file__).parents[1]
SPEC = spec_from_file_location("pictures", ROOT / "benchmarks/pictures.py")
pictures = module_from_spec(SPEC)
SPEC.loader.exec_module(pictures)
FOLDER = ROOT / pictures.FOLDER
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh.md").read_text(encoding="utf-8")
EDITIONS = pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["en", "zh"])
DRAWN = pictures.pictures(ROOT)
LINK = re.compile(r"\]\(([^)]+)\)")


def read(name):
    return pictures.read(ROOT / name)


def svg(name):
    return ElementTree.parse(FOLDER / f"{name}.svg")


def marks(name):
    """The titles of a picture's marks."""
    return [each.text for each in svg(name).iter("{http://www.w3.org/2000/svg}title")]


def titles(name):
    """The same, by what stands before the colon."""
    return dict(text.split(": ", 1) for text in marks(name))


def finding(name):
    return svg(name).getroot().get("aria-label")


def functions():
    """(functions tested, those that conform) of each package, counted in benchmarks/conform.md by its lines alone."""
    lines = (ROOT / "benchmarks/conform.md").read_text(encoding="utf-8").split("<!-- end of findings")[0].splitlines()
    found = {}
    for line in lines[lines.index("| verdict | release | function | kind |") + 2 :]:
        if line.startswith("| "):
            verdict, release = line[2:].split(" | ")[:2]
            package = release.split(" ")[0]
            tested, right = found.get(package, (0, 0))
            found[package] = (tested + 1, right + verdict.startswith("conforms"))
    return found


@pytest.mark.parametrize("end", pictures.LOOKS)
@pytest.mark.parametrize("name", DRAWN)
def test_pictures_are_drawn_from_the_committed_results(name, end):
    """If this fails: python benchmarks/pictures.py."""
    path = FOLDER / f"{name}{end}.svg"
    assert path.read_text(encoding="utf-8") == DRAWN[name](pictures.LOOKS[end])
    assert path.stat().st_size < 40_000


def test_no_picture_is_left_over():
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}{end}.svg" for name in DRAWN for end in pictures.LOOKS}


@pytest.mark.parametrize("name", DRAWN)
def test_every_label_is_translated(name):
    """If not: CHINESE of benchmarks/pictures.py. The names of encodings, packages and methods are as in English."""
    names = {row["encoding"].partition(":")[0] for row in read(pictures.TASKS)["table"]} | set(functions()) | {"posenc"}
    names |= {trial["case"] for trial in read(pictures.SPEED)["trials"]} | {
        "RoPE",
        "ALiBi",
        "T5",
        "YaRN",
        "Self-Extend",
    }
    english, chinese = labels(name), labels(f"{name}.zh")
    assert len(english) == len(chinese) > 10
    for one, other in zip(english, chinese, strict=True):
        if other == one:
            assert one in names or not re.search("[A-Za-z]", one), one
        else:
            assert re.search("[\u4e00-\u9fff]", other), other


def labels(name):
    return [list(each.itertext())[-1] for each in svg(name).iter("{http://www.w3.org/2000/svg}text")]


def test_the_lines_of_loss_are_those_of_make_demo():
    demo = read(pictures.DEMO)
    shown = titles("loss")
    assert set(shown) == set(demo["loss"]) == set(pictures.LINES)
    for name, losses in demo["loss"].items():
        found = dict(reversed(pair.split(" at ")) for pair in shown[name].split(", "))
        assert found == {str(n): f"{mean:.2f}" for n, (mean, _) in zip(demo["lengths"], losses, strict=True)}
    trained = {name: row[0][0] for name, row in demo["loss"].items() if "+" not in name}
    assert min(trained, key=trained.get) == "rope"
    assert [name for name, verdict in demo["verdict"].items() if verdict == "extrapolates"] == ["alibi"]
    assert (
        finding("loss")
        == "Of six, RoPE predicts best at the training length; past it, only the loss of ALiBi stays level"
    )


def test_the_lines_by_budget_are_those_of_the_experiment():
    worlds = [
        of
        for of in read(pictures.BUDGETS)["worlds"]
        if (of["text"], of["length"]) == ("code", 128) and of["parameters"] < 10**6
    ]
    shown = titles("budget")
    left_out = {name for of in worlds for name in of["losses"]} - set(shown)
    assert left_out == {"none"}
    for name, words in shown.items():
        gaps = [of["losses"][name][0] - of["losses"]["rope"][0] for of in worlds]
        assert words == ", ".join(
            f"{gap:+.3f} after {of['steps']}".replace("-", "−") for gap, of in zip(gaps, worlds, strict=True)
        )
    few, more = ([name for name, gap in of["behind_rope"].items() if gap["high"] < 0] for of in (worlds[0], worlds[-1]))
    assert more == []
    assert finding("budget") == (
        f"After 120 training steps {len(few)} encodings are measurably ahead of RoPE, after 1,920 none is"
    )


def test_the_table_of_tasks_is_that_of_the_results():
    results = read(pictures.TASKS)
    rows = {row["encoding"]: row for row in results["table"]}
    shown = titles("tasks")
    assert set(pictures.KNOWN) - set(shown) == set()
    for name, words in shown.items():
        numbers, mean = words.split("; mean score ")
        assert mean == f"{100 * rows[name]['longest']['mean']:.0f}"
        for task, number in (pair.split(" ") for pair in numbers.split(", ")):
            (entry,) = (entry for entry in results["tasks"][task]["variants"] if entry["name"] == name)
            point = entry["lengths"][-1]
            exact = point["loss"]["mean"] if task == "text" else 100 * point["accuracy"]["mean"]
            assert float(number) == pytest.approx(exact, abs=0.5 if task != "text" else 0.005)
    best = max((row["longest"] for row in rows.values()), key=lambda each: each["mean"])
    first = [name for name, row in rows.items() if row["longest"]["mean"] >= best["low"]]
    assert all(name in finding("tasks") for name in first) or f"{len(first)} encodings" in finding("tasks")
    assert f"by mean score of {len(results['tasks'])} tasks" in finding("tasks")


def test_the_methods_past_the_trained_length_have_their_hits_and_differences():
    results = read(pictures.LONGER)
    shown, by_task = titles("longer"), {task["task"]: task for task in results["tasks"]}
    hits = {each["method"]: each["by_length"][0]["exact"]["hits"] for each in by_task["passkey"]["methods"]}
    text = next(task for task in results["longer"][0]["tasks"] if task["task"] == "perplexity")
    differences = {
        row["method"]: row["against_truncation"]["mean"] for row in text["rows"] if row.get("against_truncation")
    }
    for name in pictures.METHODS:
        assert f"passkey {hits[name]} of 4" in shown[name]
        mean = float(re.findall(r"[+-]\d\.\d\d", shown[name])[0])
        assert mean == pytest.approx(differences.get(name, 0), abs=0.005)
    assert all(label in finding("longer") for name, label in pictures.METHODS.items() if hits[name] == 4)


def test_the_dots_of_speed_are_medians():
    measured, shown = {}, {}
    for trial in read(pictures.SPEED)["trials"]:
        if (trial["family"], trial["mode"], trial["dtype"]) != ("attention", "forward", "float32"):
            continue
        for row in trial["rows"]:
            if (trial["what"], trial["length"]) == ("time", 2048) and row["ratio"]:
                measured[trial["case"], row["name"], "time"] = row["ratio"]["median"]
            if (trial["what"], trial["length"]) == ("memory", 4096) and row["bytes"]:
                measured[trial["case"], row["name"], "memory"] = row["bytes"] / 2**20
    for mark in marks("speed"):
        case, name, value, unit = re.fullmatch(r"(\w+), (.+): ([\d.]+)( MiB)?", mark).groups()
        shown[case, name, "memory" if unit else "time"] = float(value)
    assert {key[0] for key in shown} == {key[0] for key in measured}
    for key, value in shown.items():
        assert value == pytest.approx(measured[key], abs=0.5 if key[2] == "memory" else 0.005)
    left_out = {key for key in measured if key not in shown}
    assert {name for _, name, _ in left_out} <= {"plain SDPA", "posenc, half layout", "posenc, rotated cache"}
    biases = {key[0] for key in measured} - {"rope"}
    ours = [round(measured[case, "posenc", "memory"]) for case in biases]
    theirs = [min(v for k, v in shown.items() if k[0] == case and k[1:] != ("posenc", "memory") and k[2] == "memory") for case in biases]  # fmt: skip
    assert re.findall(r"[\d,]+", finding("speed")) == [
        f"{x:,.0f}" for x in (min(ours), max(ours), min(theirs), max(theirs))
    ]


@pytest.mark.parametrize("name", ["speed", "speed.zh"])
def test_no_mark_of_speed_hides_another(name):
    """Each is seen, and what is as good as posenc is named beside its mark."""
    spots = {
        each[0].text: (float(each.get("cx")), float(each.get("cy")))
        for each in svg(name).iter("{http://www.w3.org/2000/svg}circle")
        if len(each)
    }
    far = [abs(complex(*a) - complex(*b)) for a, b in combinations(spots.values(), 2)]
    assert len(spots) > 40
    assert min(far) >= 8
    ours = {at for about, at in spots.items() if ", posenc: " in about}
    close = {about for about, at in spots.items() if any(0 < abs(complex(*at) - complex(*spot)) < 14 for spot in ours)}
    assert any(about.startswith("rope, textbook rotation") for about in close)
    for about in close:
        number = re.search(r": ([\d.]+)", about)[1]
        assert any(label.endswith(f" {number}") for label in labels(name)), about


def test_the_marks_of_packages_are_the_verdicts():
    tested = functions()
    for name, (count, right) in tested.items():
        verdicts = [each.rsplit(": ", 1)[1] for each in marks("conformance") if each.startswith(f"{name}: ")]
        assert (len(verdicts), verdicts.count("conforms")) == (count, right), name
    every, right = (sum(numbers) for numbers in zip(*tested.values(), strict=True))
    assert finding("conformance").startswith(f"{right} of {every} functions in {len(tested)} packages match")


@EDITIONS
def test_memory_and_passkeys_of_the_readme_are_measured(text):
    memory = dots("t5")
    assert f"{memory.pop('posenc'):.0f} MiB" in text
    assert f"[{min(memory.values()):.0f}]" in text
    (task,) = (t for t in read("benchmarks/evaluations/longer_SmolLM2.json")["longer"][0]["tasks"] if t["task"].startswith("passkey"))  # fmt: skip
    found = {row["method"]: row["exact"]["hits"] for row in task["rows"]}
    assert (found["yarn"], found["truncation"], found["none"]) == (4, 0, 0)


def dots(case):
    """Mebibytes of each candidate of a case, from its results."""
    for trial in read(pictures.SPEED)["trials"]:
        if (trial["what"], trial["case"], trial["mode"], trial["length"]) == ("memory", case, "forward", 4096):
            return {r["name"]: r["bytes"] / 2**20 for r in trial["rows"] if r["bytes"] and r["name"] != trial["limit"]}
    raise AssertionError(case)


@EDITIONS
def test_the_readme_counts_what_the_package_has(text):
    counts = [
        re.search(place, text, re.MULTILINE)[1]
        for place in (r"^\*\*\D*\b(\d+)\+", r"\[(\d+)\+\]\(docs/encodings\.md\)")
    ]
    assert set(counts) == {str(len(ENCODINGS) // 10 * 10)}
    assert re.search(rf"\[[^\]]*\b{len(FAMILIES)}\b", text)
    schedules, maps = re.search(r"\[(\d+)[^\]]*\]\(docs/frequencies\.md\).{1,2}\[(\d+)", text).groups()
    assert (int(schedules), int(maps)) == (len(set(SCHEDULES) - {"default"}), len(MAPS))
    tested = functions()
    assert f"{len(tested)} " in text
    row = rows(tables(text)[1])[list(rows(tables(text)[1]))[4]]
    names = ("rotary-embedding-torch", "x-transformers", "transformers", "fla-core")
    assert re.findall(r"(\d+) / (\d+)", row) == [(str(tested[name][1]), str(tested[name][0])) for name in names]


@EDITIONS
def test_the_readme_is_short(text):
    assert len(text.splitlines()) <= 110
    assert "make test" in text
    assert "position_from_scratch" in "\n".join(text.splitlines()[:8])


@EDITIONS
def test_every_cell_of_the_comparison_links_to_its_evidence(text):
    head, _, *lines = tables(text)[1]
    assert len(lines) == 6
    for line in lines:
        cells = line.strip("| ").split(" | ")
        assert len(cells) == len(head.strip("| ").split(" | ")) + 1
        for cell in cells[1:]:
            for target in LINK.findall(cell) or pytest.fail(f"no link: {cell}"):
                assert target.startswith("docs/") or re.search(r"/blob/([0-9a-f]{40}|v\d+\.\d+\.\d+)/\S+\.py", target)


@EDITIONS
def test_the_comparison_fits_the_column_of_a_page(text):
    """GitHub's is 830 px wide: a column is no narrower than its longest word, here in a wide font, and its padding."""
    cells = [
        re.sub(r"\]\([^)]*\)|[\[`]", "", line).strip("|").split("|") for line in tables(text)[1] if "---" not in line
    ]
    words = ([word for cell in column for word in re.split(r"\s|(?<=-)", cell)] for column in zip(*cells, strict=True))
    assert sum(10 * max(map(len, of_column)) + 27 for of_column in words) <= 830


def test_the_advice_fits_a_phone():
    """358 px of 390: two columns as wide as their longest words, in a font of 9 px, and their padding."""
    rows = [
        re.sub(r"\]\([^)]*\)|[\[`]", "", line).strip("|").split("|") for line in tables(ENGLISH)[0] if "---" not in line
    ]
    words = ([word for cell in column for word in cell.split()] for column in zip(*rows, strict=True))
    assert sum(9 * max(map(len, of_column)) + 27 for of_column in words) <= 358


def test_the_readme_is_for_three_readers_who_can_try_it():
    for text, want in (
        (ENGLISH, ("RoPE model", "research", "learn", "**Try it**")),
        (CHINESE, ("RoPE 模型", "研究", "学习", "试一试")),
    ):
        head = "\n".join(text.splitlines()[:10])
        assert [each for each in want if each not in head] == []
        assert [page for page in ("story", "explore", "predict", "claims", "measure") if f"/{page}." not in head] == []
        assert 'posenc.create("rope"' in code(text)[1]  # the first example is the encoding that most models have
        assert "wrong: " in code(text)[3]  # and doctor's a model that has a fault


@EDITIONS
def test_pictures_of_the_readme_exist_for_both_themes(text):
    shown = re.findall(r'srcset="([^"]+)"><img src="([^"]+)" width="\d+" alt="[^"]+"', text)
    end = ".zh" * (text == CHINESE)
    assert [light for _, light in shown] == [f"{pictures.FOLDER}/{name}{end}.svg" for name in DRAWN]
    assert [dark for dark, _ in shown] == [f"{pictures.FOLDER}/{name}-dark{end}.svg" for name in DRAWN]


def tables(text):
    """Each table's lines."""
    return [found.splitlines() for found in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]


def rows(table):
    """Lines of a table by their second cell, or, where it is not code, by their first."""
    cells = [line.strip("| ").split(" | ") for line in table[2:]]
    return {each[1] if each[1].startswith("`") else each[0]: " | ".join(each) for each in cells}


def numbers(text):
    return re.findall(r"(?<![\w./#-])\d+(?:\.\d+)?", LINK.sub("]", text))


def code(text):
    """The fenced blocks without their comments."""
    return [re.sub(r"\s+#.*", "", block) for block in re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)]


def test_both_editions_have_the_same_code_and_links():
    swapped = CHINESE.replace("](README.md)", "](README.zh.md)").replace("](#选哪种编码)", "](#which-encoding)")
    swapped = swapped.replace("](#扩展预训练模型)", "](#extend-a-pretrained-model)")
    for page in ("claims", "position_from_scratch", "predict", "story", "guides/extend", "guides/getting-started"):
        swapped = re.sub(rf"{page}(\.zh)?\.md", lambda found, p=page: f"{p}.md" if found[1] else f"{p}.zh.md", swapped)
    assert code(CHINESE) == code(ENGLISH)
    assert len(code(ENGLISH)) == 5
    assert LINK.findall(swapped) == LINK.findall(ENGLISH)
    assert [len(table) for table in tables(CHINESE)] == [len(table) for table in tables(ENGLISH)]
    assert re.findall(r"`[^`\n]+`", prose(CHINESE)) == re.findall(r"`[^`\n]+`", prose(ENGLISH))


def prose(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def test_both_editions_have_the_same_numbers_and_sections():
    for english, chinese in zip(parts(ENGLISH), parts(CHINESE), strict=True):
        assert sorted(numbers(chinese)) == sorted(numbers(english)), english[:80]


def parts(text):
    return prose(text).split("\n## ")
