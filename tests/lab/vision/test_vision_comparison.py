"""Comparisons of images end to end: numbers, words, resumption, checkpoints, the report and the command."""

import json
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
import torch

from lab.vision.conftest import TINY
from posenc import InputError, cli
from posenc.lab.compare import Comparison, compare
from posenc.lab.engines import create
from posenc.lab.records import Aggregate, RunRecord, VariantScores
from posenc.lab.results import Ranking
from posenc.lab.store import Store
from posenc.report.compare import page

SIZES = {
    "image_size": 8, "patch_size": 2, "test_sizes": (4, 16), "steps": 3, "batch_size": 2, "dim": 8, "num_layers": 1,
    "num_heads": 2, "head_dim": 4, "images": 6, "data_images": 40, "workers": 1, "task": "vision",
}  # fmt: skip
FLAGS = [
    word for name, value in SIZES.items()
    for word in (f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else [value]))
]  # fmt: skip
ENCODINGS = ("none", "axial_rope", "grid_table")


@pytest.fixture(scope="module")
def finished(small, tmp_path_factory):
    corpus, settings = small
    folder = tmp_path_factory.mktemp("vision")
    actual = compare(
        Comparison(ENCODINGS, 2, settings),
        corpus,
        folder,
        engine=create("here"),
        command="posenc compare '<b>'",
        pages=lambda results: {"report.html": page(results)},
    )
    return settings, corpus, folder, actual


def test_results_hold_every_number(finished):
    settings, corpus, folder, results = finished
    assert json.loads((folder / "results.json").read_text()) == results
    assert (results["schema"], results["task"], results["complete"]) == (1, "vision", True)
    assert results["settings"]["test_sizes"] == [4, 8, 16]
    assert results["data"]["sha256"] == corpus.digest
    assert {variant["name"] for variant in results["variants"]} == {
        *ENCODINGS,
        "axial_rope + rescaled",
        "grid_table + resized",
    }
    accuracies = [variant["sizes"][-1]["accuracy"]["mean"] for variant in results["variants"]]
    assert accuracies == sorted(accuracies, reverse=True)
    cells = {
        run: Store(folder).load(run.id, RunRecord).record for run in Comparison(ENCODINGS, 2, settings).runs(corpus)
    }
    for variant in results["variants"]:
        scores = [s for run, cell in cells.items() for s in cell.variants if s.name == variant["name"]]
        for point in variant["sizes"]:
            assert point["patches"] == point["size"] // 2
            losses, hits = (
                torch.tensor([actual[str(point["size"])] for actual in measured], dtype=torch.float64)
                for measured in ([s.paired for s in scores], [s.extra["accuracy"] for s in scores])
            )
            assert point["loss"]["mean"] == pytest.approx(losses.mean().item())
            assert point["accuracy"]["mean"] == pytest.approx(hits.mean().item())
            assert 0 <= point["accuracy"]["low"] <= point["accuracy"]["high"] <= 1
        assert variant["sizes"][1]["change"]["mean"] == 0
        bag = variant["shuffled"]["accuracy"]["mean"]
        assert variant["shuffled"]["lost"]["mean"] == pytest.approx(variant["sizes"][1]["accuracy"]["mean"] - bag)
    assert [(e["variant"], e["size"]) for e in results["extensions"]] == [
        (variant["name"], size) for variant in results["variants"] if not variant["trained"] for size in (4, 16)
    ]


def measured(folder):
    """Everything but times."""
    variants = json.loads((Path(folder) / "results.json").read_text())["variants"]
    return [{key: variant[key] for key in ("name", "sizes", "shuffled", "training", "verdict")} for variant in variants]


def test_the_command_and_its_config_give_the_same_numbers(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("posenc.cli.compare_command.make_engine", lambda *_, **__: create("here"))
    one, two = tmp_path / "one", tmp_path / "two"
    assert cli.main(["compare", *FLAGS, "--encodings", "swin", "--seeds", "2", "--out", str(one)]) == 0
    shown = capsys.readouterr().out
    assert "accuracy at 8" in shown
    assert "change at 16" in shown
    assert cli.main(["compare", "--config", str(one / "config.yaml"), "--out", str(two)]) == 0
    assert measured(one) == measured(two)
    written = (one / "config.yaml").read_text()
    assert {'task: ["vision"]', 'data: "places"', "data_images: 40", "test_sizes: [4, 8, 16]"} <= set(
        written.splitlines()
    )
    capsys.readouterr()
    changed = ["compare", "--config", str(one / "config.yaml"), "--out", str(tmp_path / "three"), "--data-images", "50"]
    assert cli.main([*changed, "--steps", "0"]) == 2  # the digest went with the flag
    assert "--steps 0" in capsys.readouterr().err
    (one / "config.yaml").write_text(re.sub("data_sha256: .*", f"data_sha256: {'0' * 64}", written))
    assert cli.main(["compare", "--config", str(one / "config.yaml"), "--out", str(two)]) == 2
    assert "--data places: has changed" in capsys.readouterr().err


def test_flags_of_another_task_are_refused_by_name(tmp_path, capsys):
    for task, flag in (
        ("vision", "--length"),
        ("vision", "--text-column"),
        ("text", "--image-size"),
        ("text", "--data-images"),
    ):
        assert cli.main(["compare", "--task", task, flag, "8", "--out", str(tmp_path / "x")]) == 2
        assert f"{flag}: is for other tasks; leave it out of --task {task}" in capsys.readouterr().err
    assert cli.main(["compare", "--task", "visoin"]) == 2
    assert "unknown task 'visoin': did you mean 'vision'?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_report_says_what_was_measured(finished):
    _, _, folder, results = finished
    text = (folder / "report.html").read_text()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']?http", text)
    for variant in results["variants"]:
        assert escape(variant["name"]) in text
        assert f"{100 * variant['sizes'][1]['accuracy']['mean']:.1f} %" in text
    for sentence in (*results["answer"], *results["limits"]):
        assert escape(sentence, quote=False) in text.replace("&#39;", "'").replace("&#34;", '"')
    assert text.count('<img src="data:image/png;base64,') == 6
    assert "&#39;&lt;b&gt;&#39;" in text
    assert "bytes" not in text.split("<script>")[0].split("</style>")[1]
    alone = json.loads(json.dumps(results))
    alone["settings"]["test_sizes"], alone["extensions"] = [8], []
    alone["variants"] = [
        variant | {"sizes": variant["sizes"][1:2]} for variant in alone["variants"] if variant["trained"]
    ]
    assert 'id="plot-change"' not in page(alone)


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_shows_it_without_complaint(finished, new_tab, width):
    _, _, folder, results = finished
    tab = new_tab(viewport={"width": width, "height": 900})
    tab.goto((folder / "report.html").as_uri())
    assert tab.locator("#ranking tbody tr").count() == len(results["variants"])
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    read = "posenc.report.shown.change.series.map(one => [one.name, one.y])"
    for kind, button in (("accuracy", 0), ("change", 1)):
        tab.locator("#by-size .choice label").nth(button).click()
        for variant, (name, ys) in zip(results["variants"], tab.evaluate(read), strict=True):
            assert name == variant["name"]
            assert ys == pytest.approx([100 * point[kind]["mean"] for point in variant["sizes"]], rel=1e-4, abs=1e-9)


# -------------------------------------------------------------------- words, on numbers made up here


def row(name, encoding, *shares, shuffled=0.25, seeds=3, images=40):
    """A variant that is right for these shares of the images, at 4, 8 and 16 pixels; a few images differ by seed."""
    cells = {}
    for seed in range(seeds):
        hits = {str(n): [float((i * 7 + seed) % images < share * images) for i in range(images)]
                for n, share in zip((4, 8, 16), shares, strict=True)}  # fmt: skip
        bag = [float((i * 7 + seed) % images < shuffled * images) for i in range(images)]
        also = {"accuracy": hits, "shuffled_accuracy": {"8": bag}, "shuffled_loss": {"8": bag}}
        cells[seed] = VariantScores(name, name == encoding, hits, [], 1.0, also)
    return Aggregate(
        name, encoding, name == encoding, {s: RunRecord({}, [], [1.0], 1, 1, 1.0, 1.0, 1) for s in cells}, cells
    )


@pytest.fixture
def made_up():
    return [
        row("axial_rope + rescaled", "axial_rope", 0.9, 1.0, 1.0),
        row("swin", "swin", 0.95, 0.95, 0.95),
        row("axial_rope", "axial_rope", 0.85, 1.0, 0.5),
        row("none", "none", 0.25, 0.25, 0.25),
        row("grid_alibi", "grid_alibi", 0.25, 0.25, 0.25),
    ]


def test_the_answer_follows_from_the_numbers(made_up, small):
    corpus, settings = small
    assert corpus.chance >= 0.25
    words = Ranking(made_up, settings, corpus).answer()
    text = " ".join(words)
    assert words[0].startswith("At the training size of 8 x 8 pixels, axial_rope has the best accuracy (100.0 %)")
    assert "At 16 x 16 pixels, axial_rope + rescaled has the best accuracy (100.0 %)" in text
    assert re.search(r"Not measurably better than guessing \(\d\d\.\d %\): none and grid_alibi\.", text)
    assert "Extrapolates, change at 16 x 16 pixels: swin (+0.0" in text
    assert "Degrades, change at 16 x 16 pixels: axial_rope (−50.0 ±" in text
    assert "Degrades, change at 4 x 4 pixels: axial_rope (−15.0 ±" in text
    assert "the accuracy of axial_rope goes from 100.0 % to 25.0 %; without positions it is 25.0 %" in text
    assert (
        "At 16 x 16 pixels, without retraining, against the same weights as trained: better: axial_rope + rescaled (+50"
        in text
    )
    notes = " ".join(Ranking(made_up, settings, corpus).limits())
    assert "grid_alibi depends on distances alone" in notes
    assert "resized" not in notes
    assert "At 4 pixels a patch crosses the border" in notes
    assert "same pixels, resized" in " ".join(Ranking(made_up, settings, replace(corpus, scaled=True)).limits())
    assert Ranking([], settings, corpus).answer() == []


def test_verdicts_are_of_accuracy(made_up, small):
    corpus, settings = small
    ranked = Ranking(made_up, settings, corpus)
    actual = {
        variant.name: [ranked.verdict(variant, sizes) for sizes in (settings.larger, settings.smaller)]
        for variant in made_up
    }
    assert actual["swin"] == ["extrapolates", "extrapolates"]
    assert actual["axial_rope"] == ["degrades", "degrades"]
    assert actual["none"] == ["at chance", "at chance"]
    assert ranked.verdict(made_up[0], ()) == "not tested"
    assert ranked.numbers()["variants"][2]["sizes"][0]["change"]["mean"] == pytest.approx(-0.15)


def test_refusals_come_before_any_file(small, tmp_path):
    corpus, settings = small
    for comparison, message in (
        (Comparison(("axial_rop",), 1, settings), "did you mean 'axial_rope'"),
        (Comparison(("swin",), 1, replace(settings, images=30)), "images=30: .* 8 images are held out"),
        (
            Comparison(("grid_table:beyond=error",), 1, settings),
            "encodings='grid_table:beyond=error': .*outside the table",
        ),
    ):
        with pytest.raises(InputError, match=message):
            compare(comparison, corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="multiples of 4, not 6"):
        replace(TINY, image_size=6).load("places", data_images=40)
