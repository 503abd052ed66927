"""Comparisons end to end on a tiny text: numbers, resumption, interruption, death of a worker."""

import json
import random
from dataclasses import replace

import pytest
import torch

from posenc import InputError, Rotary
from posenc.lab import data
from posenc.lab.compare import Comparison, compare
from posenc.lab.engines import InProcess
from posenc.lab.experiment import Run
from posenc.lab.machine import flushed_denormals
from posenc.lab.measure import measure
from posenc.lab.records import CONTEXT, RunRecord, VariantScores, difference
from posenc.lab.results import Ranking, collect
from posenc.lab.store import LOCK, Store
from posenc.report.compare import files

ENCODINGS = ("none", "rope", "t5")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One comparison by real worker processes, for several tests to read."""
    from lab.conftest import TEXT, TINY

    text, directory = data.corpus(TEXT, "numbered lines"), tmp_path_factory.mktemp("compare")
    results = compare(Comparison(ENCODINGS, 2, TINY), text, directory, workers=2, command="posenc compare")
    return TINY, text, directory, results


def test_results_hold_every_number(finished):
    _, text, directory, results = finished
    assert json.loads((directory / "results.json").read_text()) == results
    assert (results["schema"], results["complete"], results["seeds"]) == (1, True, [0, 1])
    assert results["data"]["sha256"] == text.digest
    assert {variant["name"] for variant in results["variants"]} == {*ENCODINGS, "rope + NTK", "rope + PI"}
    losses = [variant["lengths"][-1]["loss"]["mean"] for variant in results["variants"]]
    assert losses == sorted(losses)
    best = results["variants"][0]["lengths"][-1]["behind_best"]
    assert best["mean"] == best["error"] == 0
    assert results["runs"] == {"planned": 6, "finished": 6, "kept_from_before": 0}


def test_worker_processes_measure_what_this_process_measures(finished):
    settings, text, directory, _ = finished
    run = Run("t5", 1, settings, text.digest)
    before = Store(directory).load(run.id, RunRecord).record
    with flushed_denormals():
        here = measure(run, text)
    assert here.losses == pytest.approx(before.losses, abs=1e-4)
    assert here.variants[0].paired["2"] == pytest.approx(before.variants[0].paired["2"], abs=1e-4)
    assert here.memory_bytes == before.memory_bytes


def test_divergence_stops_everything_with_one_message(corpus, tiny, tmp_path):
    wild = replace(tiny, learning_rate=1e30, adamw_learning_rate=1e30)
    with pytest.raises(
        InputError, match=r"learning_rate=1e\+30, .*: the loss of 'none' \(seed 0\) .* give smaller ones"
    ):
        compare(Comparison(("none",), 1, wild), corpus, tmp_path, engine=InProcess())
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_refusals_come_before_any_file(corpus, tiny, tmp_path, monkeypatch):
    out = tmp_path / "out"
    for comparison, message in [
        (Comparison(("ropee",), 1, tiny), "encodings='ropee': .*did you mean 'rope'"),
        (Comparison(("rope",), 1, replace(tiny, head_dim=3)), "head_dim=3: .*even"),
        (Comparison(("sinusoidal",), 1, replace(tiny, dim=9, num_heads=3)), "dim=9: .*even"),
        (Comparison(("rope", "rope"), 1, tiny), "rope is named twice"),
        (
            Comparison(("rope/rope/rope/none",), 1, replace(tiny, num_layers=2)),
            "encodings='rope/rope/rope/none': names 4 layers, the model has 2; pass num_layers=4",
        ),
        (
            Comparison(("learned:beyond=error+rope",), 1, tiny),
            "encodings='learned:beyond=error.rope': .*outside the table",
        ),
        (Comparison(("alibi:num_heads=3",), 1, tiny), "encodings='alibi:num_heads=3': q with 2 heads"),
        (Comparison(("sinusoidal:dim=4",), 1, tiny), "encodings='sinusoidal:dim=4': x of width 8"),
        (Comparison(("rope",), 10**10, tiny), "seeds=10000000000: must lie between 1 and 1000"),
        (Comparison((), 1, tiny), "name at least one"),
        (Comparison(("rope",), 0, tiny), "seeds=0"),
        (Comparison(("rope",), 1, replace(tiny, factors=(1, 1000))), "too short"),
    ]:
        with pytest.raises(InputError, match=message):
            compare(comparison, corpus, out)
    with pytest.raises(InputError, match="workers=2: is of the default engine"):
        compare(Comparison(("rope",), 1, tiny), corpus, out, workers=2, engine=InProcess())
    for sizes, message in (
        ({"dim": 2**16}, r"dim=65536: gives \d+ weights"),
        ({"batch_size": 2**20}, "of .* tokens each"),
    ):
        with pytest.raises(InputError, match=message):
            replace(tiny, **sizes).check_largest()
    assert not out.exists()


OWN = """
import posenc

class Fade(posenc.ALiBi):
    def __init__(self, num_heads: int, num_kv_heads: int, slope: float = 1.0):
        super().__init__(num_heads)
        print("made for", num_kv_heads)
        self.num_kv_heads, self.slope = num_kv_heads, slope
"""


def test_classes_are_named_by_their_file_or_module(corpus, tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fading.py").write_text(OWN)
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "my.py").write_text(OWN)
    deep_file = tmp_path / "deeper" / "my.py"
    encodings = (
        "fading:Fade",
        f"{deep_file}:Fade:slope=2",
        "none/deeper/my.py:Fade",
        "rope+fading.py:Fade:slope=3+deeper/my.py:Fade",
    )
    settings = replace(tiny, num_layers=2)
    comparison = Comparison(encodings, 1, settings)
    results = compare(comparison, corpus, tmp_path / "out", engine=InProcess(), pages=files)
    assert results["complete"]
    assert {variant["encoding"] for variant in results["variants"]} == {"none", *encodings}
    report = (tmp_path / "out" / "report.html").read_text()
    assert f"{deep_file}:Fade" in report
    runs = [Run.of(e, 0, settings, "") for e in encodings]
    assert [e.slope for e in runs[3].make_encoding() if hasattr(e, "slope") and not isinstance(e, Rotary)] == [3, 1]
    deep_file.write_text(OWN + "# another one\n")
    again = [Run.of(e, 0, settings, "") for e in encodings]
    assert [a.id == b.id for a, b in zip(runs, again, strict=True)] == [True, False, False, False]


def test_the_encoding_without_positions_is_always_compared(tiny):
    assert Comparison(("rope", "t5"), 1, tiny).encodings == ("none", "rope", "t5")
    assert Comparison(("rope", "none"), 1, tiny).encodings == ("rope", "none")


def test_a_model_that_ends_as_nan_is_named_and_never_stored(corpus, tiny, tmp_path):
    wild = replace(tiny, adamw_learning_rate=1e30, steps=2)
    with pytest.raises(InputError, match=r"adamw_learning_rate=1e\+30.* is no longer finite when none is tested"):
        compare(Comparison(("none",), 1, wild), corpus, tmp_path, engine=InProcess())
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_lone_lengths_and_odd_names_make_a_report(corpus, tiny, tmp_path):
    one = replace(tiny, factors=(1,))
    odd = replace(corpus, name="caf\udce9.txt")
    results = compare(Comparison(("rope",), 1, one), odd, tmp_path, engine=InProcess(), pages=files)
    assert {variant["name"] for variant in results["variants"]} == {"none", "rope"}
    text = (tmp_path / "report.html").read_text()
    assert "times as long" not in text
    assert "plot-change" not in text.split("<script>")[0]


# -------------------------------------------------------------------- verdicts and words, on numbers made up here


def cell(encoding, seed, **variants):
    """A finished run with the given losses: name of the variant -> loss per factor 1, 2, 4."""
    noise = torch.linspace(-0.01, 0.01, 6) * (1 + 0.1 * seed)
    scores = [
        VariantScores(name, name == encoding, {str(f): (value + noise * (i + 1)).tolist() for i, (f, value) in enumerate(zip((1, 2, 4), values, strict=True))}, 10.0,
                      {CONTEXT: dict.fromkeys(("4", "16"), noise.tolist())})
        for name, values in variants.items()
    ]  # fmt: skip
    return RunRecord(scores, [2.0, 1.0], 10, 1, 1.0, 10.0, 100)


def made_up(tiny, **curves):
    settings = replace(tiny, factors=(1, 2, 4))
    cells = {Run(n, s, settings, ""): cell(n, s, **{n: c}) for s in range(3) for n, c in curves.items()}
    return ranking(settings, cells)


def ranking(settings, cells):
    return Ranking(collect(cells), settings, data.corpus(random.Random(0).randbytes(2**16), "text"))


def test_verdicts(tiny):
    ranked = made_up(
        tiny, alibi=(1.5, 1.5, 1.5), rope=(1.2, 1.4, 2.4), sinusoidal=(1.6, 2.5, 2.6), t5=(1.2, 1.21, 1.22)
    )
    assert {a.name: ranked.verdict(a, ranked.settings.larger) for a in ranked.variants} == {
        "alibi": "extrapolates",
        "t5": "extrapolates",
        "rope": "degrades",
        "sinusoidal": "breaks at once",
    }
    assert [a.name for a in ranked.variants] == ["t5", "alibi", "rope", "sinusoidal"]
    words = " ".join(ranked.answer())
    assert "length of 16 bytes, t5 has the best loss (1.200 nats per byte); undecided between it and rope." in words


def test_nobody_is_the_best_among_those_that_guess(tiny):
    words = made_up(tiny, alibi=(9.0, 1.0, 1.0), rope=(1.2, 1.4, 2.4)).answer()
    assert [line for line in words if "alibi has the best" in line] == []
    assert sum("rope has the best" in line for line in words) == 2
    (line,) = made_up(tiny, alibi=(9.0, 9.0, 9.0), rope=(8.0, 9.0, 9.0)).answer()
    assert line.startswith("Not measurably better than guessing (")


def test_an_encoding_whose_seeds_disagree_is_unclear(tiny):
    settings = replace(tiny, factors=(1, 2, 4))
    cells = {Run("rope", s, settings, ""): cell("rope", s, rope=(1.2, 1.2, 1.0 + 0.3 * s)) for s in range(3)}
    ranked = ranking(settings, cells)
    assert ranked.verdict(ranked.variants[0], settings.larger) == "unclear"


def test_a_text_that_repeats_itself(tiny):
    settings = replace(tiny, windows=6)
    with pytest.raises(InputError, match="all 6 test passages of 32 bytes are the same"):
        settings.check_data(data.corpus(b"a" * 9000, "one value"))
    corpus = data.corpus(b"ab" * 4500, "two values")
    settings.check_data(corpus)
    assert settings.different_passages(corpus) == 2
    assert any("only 2 of the 6 test passages differ" in note for note in settings.limits([], corpus))


def test_differences_are_of_common_seeds(tiny):
    ranked = made_up(tiny, alibi=(1.5, 1.5, 1.5), rope=(1.2, 1.4, 2.4))
    a, r = ranked.variants
    assert difference(a, r, 1).mean == pytest.approx(0.3)
    del a.scores[2]
    assert difference(a, r, 1).mean == pytest.approx(0.3)
    assert ranked.numbers()["variants"][0]["name"] == "alibi"
    del a.scores[0], r.scores[1], r.scores[2]  # nothing in common: the windows still are
    assert difference(a, r, 1).mean == pytest.approx(0.3, abs=1e-3)
