"""extend(model, "auto"): the plan of rounds, the choice from numbers, and the measuring on a tiny model."""

import json
import re
import signal
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import torch

import posenc
from lab.evals.conftest import VOCABULARY
from posenc import InputError, cli
from posenc.cli.extend_command import Extend
from posenc.lab.evals import auto
from posenc.lab.evals.auto import TRUNCATE, decide
from posenc.lab.evals.plan import LEAST_TEXTS, MOST_TEXTS, PAIR, RETRIEVAL, SERVING, Plan, checked_tasks, planned_rounds
from posenc.lab.study import Interrupted, Progress
from posenc.pretrained.models import record_of
from posenc_cli.answers import DONE, FAILED, USAGE
from references.small_models import small_model

CONTEXT, TARGET = 128, 256  # too short for a passkey
PLAN = Plan(CONTEXT, TARGET, "python", 3, 1.0, ("facts",), ("none", "rerope", "yarn"), ((2, 3), (4, 2)), 1e-4)


def model(kind="llama"):
    return small_model(kind, vocab_size=VOCABULARY, max_position_embeddings=CONTEXT)


class Listening(Progress):
    def __init__(self, stop_at=None):
        self.said, self.measured, self.stop_at = [], [], stop_at

    def finished(self, what, measured, done):
        self.measured += measured
        if self.stop_at is not None and len(self.measured) >= self.stop_at:
            raise KeyboardInterrupt

    def say(self, sentence):
        self.said.append(sentence)


@pytest.fixture(scope="module")
def finished(tokenizer, tmp_path_factory):
    """A selection without interruption, its folder, and what it measured."""
    folder, progress = tmp_path_factory.mktemp("auto"), Listening()
    return (
        posenc.extend(model(), "auto", tokenizer=tokenizer, plan=PLAN, directory=folder, progress=progress),
        folder,
        progress,
    )


def numbers(selection):
    """What is the same whenever it is measured."""
    found = selection.to_dict() | {"seconds": None, "machine": None}
    for row in found["rows"]:
        row["ms_per_token"] = None
    return json.loads(json.dumps(found))


# ---------------------------------------------------------------- the plan


@pytest.mark.parametrize("tasks", [(), ("passkey", "facts")])
@pytest.mark.parametrize("count", range(2, 23))
def test_rounds_double_the_texts_halve_the_methods_and_take_the_minutes(count, tasks):
    names = ("none", *map(str, range(count - 1)))
    start = Plan(4096, 8192, "python", 0, 1.0, tasks, names, ((4, count),), 1e-3)
    before = (0, 0)
    for minutes in (1, 4, 16, 64, 256, 1024):
        try:
            plan = planned_rounds(replace(start, minutes=minutes))
        except InputError as error:
            least = float(re.search(r"give minutes=(\d+)", str(error))[1])
            assert least > minutes
            assert len(planned_rounds(replace(start, minutes=least)).candidates) >= 2, "the remedy is one"
            continue
        texts, methods = zip(*plan.rounds, strict=True)
        assert LEAST_TEXTS <= texts[-1] <= MOST_TEXTS
        assert methods[-1] == 2
        assert all(b == -(-a // 2) for a, b in pairwise(methods))
        assert all(b == 2 * a for a, b in pairwise(texts[:-1]))
        assert plan.planned_minutes <= minutes
        assert plan.candidates == names[: methods[0]]
        assert (methods[0], texts[-1]) >= before, "more minutes are more methods, and then more texts"
        before = methods[0], texts[-1]


def test_the_minutes_hold_the_checks_of_the_tasks_and_those_that_do_not_fit_are_named():
    start = Plan(32768, 40960, "python", 0, 1.0, RETRIEVAL, ("none", "yarn", "ntk"), ((4, 3),), 1e-2)
    for minutes, tasks in ((90, ()), (250, ("passkey",)), (600, RETRIEVAL)):
        found = checked_tasks(replace(start, minutes=minutes))
        assert (found.tasks, found.checked) == (tasks, len(tasks))
        assert found.left_out.keys() == {*RETRIEVAL} - {*tasks}
        assert all(f"{minutes} minutes are too few" in why for why in found.left_out.values())
        if minutes > 100:
            plan = planned_rounds(found)
            assert plan.planned_minutes <= minutes
            assert plan.tokens - replace(plan, checked=0).tokens == len(tasks) * PAIR * 32768


def test_the_planned_tokens_are_those_that_are_read(tokenizer, tmp_path):
    """All methods read all documents: nothing is counted twice, and the unmodified model is one of them."""
    plan = replace(PLAN, tasks=(), rounds=((4, 3),))
    posenc.extend(model(), "auto", tokenizer=tokenizer, plan=plan, directory=tmp_path)
    cells = [json.loads(path.read_text()) for path in (tmp_path / "cells").glob("*.json")]
    assert sum(cell["cell"]["record"]["fed"] for cell in cells) == pytest.approx(plan.tokens, rel=0.005)


# ---------------------------------------------------------------- the choice

COSTS = {"none": 0, "yarn": 1, "ntk": 1, "yarn+log_n": 2, "rerope": 3}


def gains(**means):
    """Of 8 texts: what they have in common, and a little of each method's own."""
    noise = torch.Generator().manual_seed(0)
    shared = 0.05 * torch.randn(8, generator=noise, dtype=torch.float64)
    return {
        name.replace("_and_", "+"): mean + shared + 0.01 * torch.randn(8, generator=noise, dtype=torch.float64)
        for name, mean in means.items()
    }


@pytest.mark.parametrize(
    ("means", "choice", "why"),
    [
        (
            {"none": -1, "yarn": 1.0, "rerope": 1.005},
            "yarn",
            "the cheapest of 2 methods that 8 documents do not distinguish",
        ),
        (
            {"none": -1, "yarn": 1.0, "rerope": 1.5},
            "rerope",
            "the best on 8 documents, distinguishable from every other",
        ),
        ({"none": 1.0, "yarn": 1.0, "rerope": 1.0}, "none", "net gain"),
        ({"none": -1, "yarn": -0.5, "rerope": 0.0}, TRUNCATE, "the best, rerope, has a net gain of"),
        ({"none": -1, "yarn": -0.5}, TRUNCATE, "no method is distinguishable from truncation for the better"),
        ({"yarn": 0.0, "rerope": 1.0}, "rerope", "the best"),
    ],
)
def test_the_cheapest_of_those_that_are_not_distinguishable_from_the_best_is_chosen(means, choice, why):
    found = decide(gains(**means), COSTS, comparisons=5)
    assert found[0] == choice
    assert found[1].startswith(f"{choice}: ")
    assert why in found[1]


def test_equal_numbers_are_a_tie_which_the_cheapest_wins_and_the_order_of_methods_changes_nothing():
    gain = torch.linspace(0.9, 1.1, 8, dtype=torch.float64)
    for order in (("rerope", "yarn+log_n", "yarn"), ("yarn", "rerope", "yarn+log_n")):
        assert decide(dict.fromkeys(order, gain), COSTS, 5)[0] == "yarn"
    assert decide({"rerope": gain * 0}, COSTS, 5)[0] == TRUNCATE, "as good as truncation is not better"


def test_few_texts_and_many_candidates_do_not_beat_truncation_by_luck():
    lucky = torch.tensor([0.1, 0.9], dtype=torch.float64)
    choice, why = decide({"yarn": lucky}, COSTS, 2)
    assert choice == TRUNCATE
    assert "with more minutes" in why
    better = torch.tensor([0.2, 0.9, 0.4, 0.5], dtype=torch.float64)
    assert decide({"yarn": better}, COSTS, 1)[0] == "yarn"
    assert decide({"yarn": better}, COSTS, 20)[0] == TRUNCATE


# ---------------------------------------------------------------- measuring


def test_weak_methods_read_fewer_texts_and_all_read_the_same_ones(finished):
    selection, folder, _ = finished
    rows = {row["method"]: row for row in selection.rows}
    assert sorted(row["texts"] for row in selection.rows) == [2, 4, 4, 4]
    assert rows["truncation"]["texts"] == 4
    assert selection.rows[-1]["texts"] == 2, "what was dropped comes last"
    assert rows["truncation"]["gain"]["mean"] == 0
    assert rows["none"]["within"]["mean"] == 0
    texts = {json.loads(path.read_text())["cell"]["facts"]["texts"] for path in (folder / "cells").glob("*.json")}
    assert len(texts) == 2, "of each task"
    assert json.loads((folder / "selection.json").read_text())["choice"] == selection.choice


def test_what_a_method_adds_within_the_context_length_counts(finished, tokenizer):
    selection, *_ = finished
    row = next(row for row in selection.rows if row["method"] == "yarn")
    assert row["within"]["mean"] != 0
    if row["texts"] == 4:
        answers = {each["method"]: each["facts"]["loss"] for each in selection.rows}
        gained = (answers["truncation"] - answers["yarn"] - row["past"]["mean"]) / 2
        assert row["gain"]["mean"] == pytest.approx(gained - row["within"]["mean"])


def test_an_interrupted_selection_goes_on_and_ends_as_one_without(finished, tokenizer, tmp_path):
    selection, _, whole = finished
    for stop_at in (1, 4, 6):
        progress, own = Listening(stop_at), model()
        with pytest.raises(Interrupted, match="cells are stored"):
            posenc.extend(own, "auto", tokenizer=tokenizer, plan=PLAN, directory=tmp_path, progress=progress)
        assert record_of(own) is None
    progress = Listening()
    again = posenc.extend(
        model(), "auto", tokenizer=tokenizer, plan=tmp_path / "plan.json", directory=tmp_path, progress=progress
    )
    assert numbers(again) == numbers(selection)
    assert 0 < len(progress.measured) < len(whole.measured)


@pytest.mark.slow
def test_the_same_call_takes_the_plan_in_the_folder_and_another_one_what_was_measured(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "_seconds_per_token", lambda model, ids, target: 1e-3)
    call = {"target_length": TARGET, "tokenizer": tokenizer, "candidates": ("yarn", "rerope"), "directory": tmp_path}
    first = posenc.extend(model(), "auto", minutes=0.3, **call)
    assert first.plan.tasks == (), "a model of random weights answers nothing"
    assert first.plan.left_out.keys() == {"passkey", "facts"}
    assert "passkey does not count: length=128: passkey needs about" in str(first)
    assert "key-value does not count: the unmodified model answers 0 of 2 within its 128 tokens" in str(first)
    monkeypatch.setattr(auto, "_seconds_per_token", lambda model, ids, target: pytest.fail("it is known"))
    progress = Listening()
    assert numbers(posenc.extend(model(), "auto", minutes=0.3, progress=progress, **call)) == numbers(first)
    assert not progress.measured
    monkeypatch.setattr(auto, "_seconds_per_token", lambda model, ids, target: 1e-3)
    more = posenc.extend(model(), "auto", minutes=0.5, progress=progress, **call)
    assert more.plan.rounds > first.plan.rounds
    assert any("is of other arguments" in sentence for sentence in progress.said)
    assert not any("perplexity" in str(cell) and "seed 0" in str(cell) for cell in progress.measured), (
        "they were measured"
    )
    assert progress.measured
    with pytest.raises(InputError, match=r"^minutes=0.01: one method and 4 documents of 256 tokens take about"):
        posenc.extend(model(), "auto", minutes=0.01, **call | {"directory": tmp_path / "new"})
    assert not (tmp_path / "new").exists()


def test_the_choice_is_applied_and_truncation_leaves_the_model_as_it_was_loaded(tokenizer, monkeypatch):
    own = model()
    posenc.extend(own, "ntk", factor=4)
    monkeypatch.setattr(auto, "decide", lambda gains, costs, comparisons: ("yarn", "yarn: because"))
    found = posenc.extend(own, "auto", tokenizer=tokenizer, plan=PLAN)
    assert (found.choice, found.extension.method, found.extension.new_length) == ("yarn", "yarn", TARGET)
    assert record_of(own).report == found.extension
    assert own.config.max_position_embeddings == TARGET
    assert "llama extended by yarn" in str(found)
    monkeypatch.setattr(auto, "decide", lambda gains, costs, comparisons: (TRUNCATE, "truncate: because"))
    found = posenc.extend(own, "auto", tokenizer=tokenizer, plan=PLAN)
    assert found.extension is None
    assert record_of(own) is None
    assert own.config.max_position_embeddings == CONTEXT


def test_the_users_text_is_read(finished, tokenizer, tmp_path):
    text = "\n\n".join(f"{n} stones lie on {n} hills." for n in range(900))
    found = posenc.extend(model(), "auto", tokenizer=tokenizer, plan=PLAN, text=text, directory=tmp_path)
    assert found.rows[0]["past"] != finished[0].rows[0]["past"]
    assert (tmp_path / "text.txt").read_text() == text


# ---------------------------------------------------------------- programs


@pytest.mark.parametrize(
    ("kind", "program", "served", "refused"),
    [
        ("llama", "python", ("yarn", "ntk_mixed", "rerope", "yarn+log_n"), ()),
        ("llama", "transformers", ("yarn", "ntk_mixed"), ("rerope", "yarn+log_n", "softmax_n")),
        ("llama", "vllm", ("yarn", "ntk_mixed", "linear"), ("rerope",)),
        ("llama", "llama.cpp", ("yarn", "ntk_mixed", "ntk"), ("rerope",)),
        ("qwen3", "llama.cpp", ("yarn", "ntk"), ("ntk_mixed", "rerope")),  # it reads no divisors
        ("cohere", "vllm", ("yarn", "ntk"), ("ntk_mixed",)),  # its longrope rotates by halves
    ],
)
def test_methods_that_the_program_cannot_express_are_not_tried(kind, program, served, refused):
    costs, skipped = auto._screened(model(kind), ("none", *refused, *served), TARGET, program)
    assert costs.keys() == {"none", *served}
    assert skipped.keys() == {*refused}
    assert all(skipped.values())
    assert all(costs[method] == 1 for method in served if program != "python"), "frequencies alone"


def test_a_program_that_can_express_no_candidate_is_refused(tokenizer):
    with pytest.raises(InputError, match=r"^candidates: llama\.cpp can run none of them: rerope: cannot express"):
        posenc.extend(
            model(), "auto", tokenizer=tokenizer, target_length=TARGET, program="llama.cpp", candidates=["rerope"]
        )


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"minutes": 0}, r"^minutes=0: must be above 0"),
        ({"minutes": -1}, r"^minutes=-1: must be above 0"),
        ({"minutes": float("nan")}, r"^minutes=nan: must be above 0"),
        ({"minutes": "ten"}, r"^option minutes='ten' of auto: pass a number"),
        ({"target_length": 100}, r"^target_length=100: the model reads 128 tokens already"),
        ({"target_length": CONTEXT}, r"^target_length=128: the model reads 128 tokens; give more"),
        ({"target_length": 17 * CONTEXT}, r"up to 2048 tokens"),
        ({"target_length": None}, r"^auto depends on the new length"),
        ({"program": "vlm"}, r"^unknown program 'vlm'|^program='vlm'"),
        ({"seed": -1}, r"^seed=-1"),
        ({"candidates": "yarn"}, r"^option candidates='yarn' of auto"),
        ({"candidates": ["yarm"]}, r"did you mean 'yarn'"),
        ({"tokenizer": None}, r"^tokenizer=None"),
        ({"text": "Too short."}, r"^text: has \d+ tokens with this tokenizer, and target_length=256"),
        ({"minute": 3}, r"^unknown option of auto 'minute': did you mean 'minutes'"),
        (
            {"plan": "nowhere.json", "target_length": None},
            r"^plan='nowhere.json': No such file or directory; pass the plan.json",
        ),
        ({"plan": {}, "target_length": None}, r"^plan: is no plan"),
        ({"plan": PLAN, "minutes": 3}, r"^minutes=3: is part of the plan"),
        ({"plan": PLAN, "target_length": 1000}, r"^plan: is for 128 to 256 tokens"),
        ({"plan": asdict(PLAN) | {"rounds": [[2, 3]]}, "target_length": None}, r"documents must be even numbers"),
        ({"plan": asdict(PLAN) | {"rounds": [[2, 3], [4, 5]]}, "target_length": None}, r"no later one more"),
        ({"plan": asdict(PLAN) | {"rounds": "22"}, "target_length": None}, r"^plan: rounds=.*must be pairs"),
        ({"plan": asdict(PLAN) | {"program": "vlm"}, "target_length": None}, r"^plan: .*'vlm'"),
        (
            {"plan": replace(PLAN, program="vllm"), "target_length": None},
            r"^plan: rerope: cannot express the position map rerope",
        ),
    ],
)
def test_mistakes_are_refused_before_anything_is_measured_or_written(given, message, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "_seconds_per_token", lambda *a: pytest.fail("measured"))
    own = model()
    posenc.extend(own, "ntk", factor=4)
    call = {"target_length": TARGET, "tokenizer": tokenizer, "directory": tmp_path / "new"} | given
    with pytest.raises(InputError, match=message):
        posenc.extend(own, "auto", **call)
    assert not (tmp_path / "new").exists()
    assert record_of(own).report.method == "ntk", "the model is as before"


@pytest.mark.parametrize(("kind", "message"), [("gpt2", "learned table"), ("bloom", "not supported|no rot|supported")])
def test_models_without_rotation_are_refused(kind, message, tokenizer):
    from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel

    config, made = {"gpt2": (GPT2Config, GPT2LMHeadModel), "bloom": (BloomConfig, BloomForCausalLM)}[kind]
    own = made(config(n_layer=1, n_head=2, vocab_size=64, **{"n_embd" if kind == "gpt2" else "hidden_size": 16}))
    with pytest.raises(InputError, match=message):
        posenc.extend(own, "auto", target_length=4096, tokenizer=tokenizer)


# ---------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "plan.json").write_text(json.dumps(asdict(PLAN)))
    return folder


def test_the_command_goes_on_after_sigterm_and_saves_the_choice(saved, tmp_path, capsys, monkeypatch):
    command = [
        "extend",
        str(saved),
        "--method",
        "auto",
        "--plan",
        str(saved / "plan.json"),
        "--out",
        str(tmp_path / "out"),
    ]
    measure, count = auto.Trial.measure, 0

    def terminated(self, job, tick):
        nonlocal count
        count += 1
        if count == 4:
            signal.raise_signal(signal.SIGTERM)
        return measure(self, job, tick)

    monkeypatch.setattr(auto.Trial, "measure", terminated)
    assert cli.main(command) == FAILED
    error = capsys.readouterr().err
    assert re.search(
        r"posenc extend: interrupted; 3 of \d+ cells are stored, run the same command again to continue", error
    )
    monkeypatch.setattr(auto, "decide", lambda gains, costs, comparisons: ("yarn", "yarn: because"))
    assert cli.main([*command, "--json"]) == DONE
    results = json.loads(capsys.readouterr().out)
    assert results["selection"]["choice"] == "yarn"
    assert json.loads((tmp_path / "out" / "extend.json").read_text()) == results
    made, _ = posenc.load(str(tmp_path / "out" / "model"))
    assert made.config.max_position_embeddings == TARGET
    assert cli.main(command) == USAGE
    assert "has a model already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method", "auto", "--minutes", "0", "--factor", "2"], "--minutes 0: must be above 0"),
        (["--method", "auto", "--for", "ollama"], "--for: unknown choice 'ollama'"),
        (["--method", "auto", "--target-length", "100"], "--target-length 100: the model reads 128 tokens already"),
        (["--method", "auto", "--option", "window=3"], "--option: is for one method"),
        (["--method", "auto", "--steps", "3"], "--steps: is for fine-tuning"),
        (
            ["--method", "auto", "--plan", "nowhere.json"],
            "--plan nowhere.json: No such file or directory; pass the plan.json",
        ),
        (["--method", "yarn", "--for", "vllm", "--factor", "2"], "--for: is for --method auto"),
        (["--method", "yarn", "--minutes", "3", "--factor", "2"], "--minutes: is for --method auto"),
    ],
)
def test_mistakes_of_the_command_are_one_line(flags, message, saved, tmp_path, capsys):
    assert cli.main(["extend", str(saved), *flags, "--out", str(tmp_path / "out")]) == USAGE
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_every_program_is_offered_by_the_command():
    assert set(Extend.settings()["program"].choices) == set(SERVING)
