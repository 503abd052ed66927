"""posenc.choose: what is measured, the choice from numbers, and the command."""

import json

import pytest

import posenc
from lab.evals.conftest import VOCABULARY
from posenc import InputError, cli
from posenc.lab.evals import choose as module
from posenc.lab.evals.choose import TASKS, choose
from posenc.pretrained.models import record_of
from posenc_cli.answers import DONE, USAGE
from references.small_models import small_model

CONTEXT, TARGET = 512, 1024
CANDIDATES = ("yarn", "rerope", "self_extend")


def model():
    return small_model("llama", vocab_size=VOCABULARY, max_position_embeddings=CONTEXT)


def results(past, within=None, exact=1.0):
    """Of an evaluation, as far as a choice reads them. past: (mean, error) over truncation by method and task."""
    methods = ("none", *past)

    def at(task, method):
        loss = {"mean": (within or {}).get(method, 0.0), "error": 0.0}
        right = exact if task != "perplexity" else 0.0
        against = None if method == "none" else {"loss": loss}
        return {"method": method, "by_length": [{"length": CONTEXT, "exact": {"mean": right}, "against_none": against}]}

    rows = {
        task: [
            {"method": m, "against_truncation": {"mean": mean, "error": e, "low": mean - 2 * e, "high": mean + 2 * e}}
            for m, of in past.items()
            for mean, e in [of[task]]
        ]
        for task in TASKS
    }
    return {
        "complete": True,
        "tasks": [{"task": t, "name": t, "methods": [at(t, m) for m in methods]} for t in TASKS],
        "longer": [{"tasks": [{"task": t, "rows": rows[t]} for t in TASKS]}],
    }


def chosen(monkeypatch, past, **more):
    of = {name: dict.fromkeys(TASKS, value) if isinstance(value, tuple) else value for name, value in past.items()}
    monkeypatch.setattr(module, "evaluate", lambda *_, **__: results(of, **more))
    return choose(model(), None, target_length=TARGET, candidates=CANDIDATES)


def test_the_cheapest_of_those_that_are_not_distinguishable_from_the_best_is_chosen(monkeypatch):
    found = chosen(monkeypatch, {"yarn": (-0.50, 0.05), "rerope": (-0.52, 0.05), "self_extend": (-0.1, 0.01)})
    assert [row["method"] for row in found.rows] == ["rerope", "yarn", "self_extend"]
    assert found.choice == "yarn"  # a schedule costs less than a map
    assert (found.extension.method, found.extension.new_length) == ("yarn", TARGET)
    assert found.rows[0]["gain"] == pytest.approx(0.52)
    assert found.rows[0]["gain"] - found.rows[0]["low"] == pytest.approx(2 * 0.05 / 3**0.5)
    better = chosen(monkeypatch, {"yarn": (-0.50, 0.01), "rerope": (-0.90, 0.01), "self_extend": (-0.1, 0.01)})
    assert better.choice == "rerope"
    assert "choice: rerope" in str(better)


def test_harm_within_the_context_length_counts(monkeypatch):
    past = {"yarn": (-0.50, 0.01), "rerope": (-0.45, 0.01), "self_extend": (0.0, 0.01)}
    assert chosen(monkeypatch, past).choice == "yarn"
    assert chosen(monkeypatch, past, within={"yarn": 0.4}).choice == "rerope"


def test_tasks_that_the_model_cannot_do_do_not_count(monkeypatch):
    gone = {"passkey": (-9.0, 0.01), "facts": (-9.0, 0.01), "perplexity": (0.1, 0.01)}
    past = dict.fromkeys(CANDIDATES, gone)
    assert chosen(monkeypatch, past).choice != "truncate"
    found = chosen(monkeypatch, past, exact=0.4)
    assert found.choice == "truncate"
    assert found.uncounted == ("passkey", "facts")
    assert "the unmodified model fails: passkey and facts" in str(found)


def test_it_measures_and_truncation_leaves_the_model_as_it_was_loaded(tokenizer, tmp_path):
    own, call = model(), {"target_length": TARGET, "candidates": ("yarn", "log_n"), "samples": 2}
    posenc.extend(own, "ntk", factor=4)
    found = choose(own, tokenizer, directory=tmp_path, **call)
    assert {row["method"] for row in found.rows} == {"yarn", "log_n"}
    if found.choice == "truncate":
        assert found.extension is None
        assert record_of(own) is None
        assert own.config.max_position_embeddings == CONTEXT
    else:
        assert record_of(own).report == found.extension
    stored = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    again = choose(own, tokenizer, directory=tmp_path, **call)
    assert again.rows == found.rows
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()} == stored


@pytest.mark.parametrize("given", [{}, {"factor": 1}, {"target_length": 10**6}, {"factor": 2, "target_length": 1024}])
def test_lengths_that_are_refused(given):
    with pytest.raises(InputError):
        choose(model(), None, **given)


def test_extend_answers_with_what_to_use():
    with pytest.raises(InputError, match=r"auto left posenc: call posenc\.choose"):
        posenc.extend(model(), "auto", target_length=TARGET)


def test_the_command_saves_the_choice(tokenizer, tmp_path, capsys, monkeypatch):
    model().save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    of = {name: dict.fromkeys(TASKS, (-1.0, 0.01)) for name in ("yarn",)}
    out = tmp_path / "out"

    def evaluated(*_, begin, **__):
        begin()
        (out / "report.html").write_text("of the evaluation")
        return results(of)

    monkeypatch.setattr(module, "evaluate", evaluated)
    flags = ["extend", str(tmp_path / "model"), "--method=auto", "--factor", "2", "--candidates", "yarn"]
    assert cli.main([*flags, "--out", str(out), "--json"]) == DONE
    found = json.loads(capsys.readouterr().out)
    assert found["selection"]["choice"] == "yarn"
    assert json.loads((out / "extend.json").read_text()) == found
    assert posenc.load(str(out / "model"))[0].config.max_position_embeddings == TARGET
    assert cli.main([*flags, "--out", str(out)]) == USAGE
    assert cli.main([*flags, "--out", str(tmp_path / "new"), "--steps", "3"]) == USAGE
    assert "--steps: is for fine-tuning" in capsys.readouterr().err
