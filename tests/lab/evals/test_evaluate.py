"""Evaluations end to end on a tiny model: contract, resumption, interruption, refusal before anything is measured."""

import json

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, GPT2Config, GPT2LMHeadModel

import posenc
from lab.evals.conftest import VOCABULARY
from posenc import InputError
from posenc.lab.evals import config, study
from posenc.lab.evals.config import NONE, PRESETS, TRUNCATION, EvaluationSettings, planned, settings_of
from posenc.lab.evals.study import Evaluation, evaluate, fingerprint
from posenc.lab.study import Progress
from posenc.pretrained import loss_by_position
from posenc.pretrained.models import model_structure
from posenc.tasks import TASKS
from posenc.tasks.copying import Copying
from references.small_models import small_model

SMALL = {
    "tasks": ("passkey", "copying:segment=8", "perplexity"), "methods": ("rerope:window=64",), "lengths": (320, 450),
    "depths": (0.0, 0.5, 1.0), "samples": 2,
}  # fmt: skip
TRAINED = 384


def model():
    return small_model("llama", vocab_size=VOCABULARY, max_position_embeddings=TRAINED)


@pytest.fixture(scope="module")
def finished(tokenizer, tmp_path_factory):
    directory, progress = tmp_path_factory.mktemp("eval"), Listening()
    results = evaluate(model(), tokenizer, directory=directory, name="small", progress=progress, command="it", **SMALL)
    return directory, results, progress


class Listening(Progress):
    def __init__(self, stop_at=None):
        self.work, self.cells, self.lines, self.stop_at = 0, [], [], stop_at

    def started(self, study, cells, before, work):
        self.planned = work

    def advanced(self, size, what):
        self.work += size

    def finished(self, what, measured, done):
        self.cells += measured
        self.lines.append(what)
        if self.stop_at is not None and done >= self.stop_at:
            raise KeyboardInterrupt


def numbers(results):
    """What must be the same whenever it is measured."""
    found = json.loads(json.dumps({key: results[key] for key in ("tasks", "ranking", "answer", "limits")}))
    for task in found["tasks"]:
        for method in task["methods"]:
            for cost in ("seconds", "tokens_per_second", "processor_ms_per_token", "peak_bytes"):
                del method[cost]
    return found


def test_results_hold_every_number(finished):
    directory, results, progress = finished
    assert json.loads((directory / "results.json").read_text()) == json.loads(json.dumps(results))
    assert (results["schema"], results["kind"], results["complete"], results["command"]) == (1, "eval", True, "it")
    per_task = {"passkey": 3, "copying:segment=8": 3, "perplexity": 1}
    methods = {320: 2, 450: 3}  # past 384 tokens the end alone is read too
    count = sum(per_task.values()) * sum(methods.values())
    assert results["cells"] == {"planned": count, "finished": count, "kept_from_before": 0}
    assert len(list((directory / "cells").iterdir())) == count
    facts = results["model"]
    assert (facts["name"], facts["model_type"], facts["trained_length"], facts["dtype"]) == (
        "small", "llama", TRAINED, "float32",
    )  # fmt: skip
    assert (facts["layers"], facts["heads"], facts["kv_heads"], facts["head_dim"]) == (2, 4, 2, 16)
    assert facts["parameters"] == sum(p.numel() for p in model().parameters())
    assert {row["method"]: row["cache_bytes_per_token"] for row in results["cost"]} == dict.fromkeys(
        (NONE, "rerope:window=64", TRUNCATION), 2 * 2 * 2 * 16 * 4
    )
    for task in results["tasks"]:
        assert [m["method"] for m in task["methods"]] == [NONE, "rerope:window=64", TRUNCATION]
        for method in task["methods"]:
            assert [row["length"] for row in method["by_length"]] == [320, 450]
            assert len(method["cells"]) == 2 * per_task[task["task"]]
            assert bool(method["by_position"]) == (task["task"] == "perplexity")
            assert (method["by_length"][0]["score"] is None) == (task["task"] != "passkey")
    assert 0.9 * progress.planned < progress.work <= progress.planned
    assert len(progress.cells) == len(set(progress.cells)) == count
    lengths = [cell.length for cell in progress.cells]
    assert lengths == sorted(lengths)


def test_numbers_are_those_of_the_models_own_loss(finished, tokenizer):
    _, results, _ = finished
    cells = next(task for task in results["tasks"] if task["task"] == "perplexity")["methods"]
    texts = [posenc.tasks.create("perplexity").sample(tokenizer, 450, index=index) for index in range(2)]
    for method, window in ((cells[0], None), (cells[2], TRAINED)):
        losses = [float(loss_by_position(model(), text.ids, window=window)[1:].mean()) for text in texts]
        assert method["cells"][-1]["loss"]["mean"] == pytest.approx(sum(losses) / 2, rel=1e-5)
    extended = model()
    posenc.extend(extended, "rerope:window=64", target_length=450)
    losses = [float(loss_by_position(extended, text.ids)[1:].mean()) for text in texts]
    assert cells[1]["cells"][-1]["loss"]["mean"] == pytest.approx(sum(losses) / 2, rel=1e-5)


def test_a_repeated_evaluation_measures_nothing_and_has_the_same_results(finished, tokenizer, monkeypatch):
    directory, results, _ = finished
    monkeypatch.setattr(Evaluation, "measure", None)
    again = evaluate(model(), tokenizer, directory=directory, name="small", command="it", **SMALL)
    assert numbers(again) == numbers(results)
    assert again["cells"]["kept_from_before"] == again["cells"]["planned"]


def test_models_that_cannot_be_measured_are_refused(tokenizer):
    settings = {"tasks": ("copying:segment=8",), "samples": 2}
    bert = BertLMHeadModel(
        BertConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
        )
    )
    with pytest.raises(InputError, match=r"BertLMHeadModel is not a causal language model"):
        evaluate(bert, tokenizer, lengths=(40,), **settings)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=2))
    assert evaluate(gpt2, tokenizer, lengths=(40, 64), **settings)["complete"]
    with pytest.raises(InputError, match=r"lengths=65: .* table of 64 positions.* give lengths of at most 64"):
        evaluate(gpt2, tokenizer, lengths=(65,), **settings)
    with pytest.raises(InputError, match=r"methods='yarn': .*; methods=none"):
        evaluate(gpt2, tokenizer, lengths=(40,), methods=("yarn",), **settings)
    with pytest.raises(InputError, match=r"text='a\.txt': none of copying:segment=8 takes a text; leave it out"):
        evaluate(gpt2, tokenizer, lengths=(40,), text="a.txt", **settings)


def test_the_model_is_left_as_it_was(tokenizer):
    ours = model().train()
    before, ids = fingerprint(ours), torch.arange(3, 60)[None]
    logits = ours(ids).logits
    evaluate(ours, tokenizer, **SMALL | {"tasks": ("copying:segment=8",), "lengths": (320,)})
    assert fingerprint(ours) == before
    assert ours.training
    torch.testing.assert_close(ours(ids).logits, logits, rtol=0, atol=0)


def test_what_changes_the_numbers_changes_the_cell(tokenizer, tmp_path):
    small = {"tasks": ("perplexity",), "lengths": (64,), "samples": 2}
    evaluate(model(), tokenizer, directory=tmp_path, **small)
    text = tmp_path / "a:text"
    text.write_text("All work and no play. " * 200)
    longer = small | {"lengths": (64, 500)}  # a longer goal: other frequencies
    for ours, given in (
        (small_model("llama", seed=1, vocab_size=VOCABULARY, max_position_embeddings=TRAINED), small),
        (model(), small | {"samples": 3}),
        (model().bfloat16(), small),
        (model(), small | {"text": str(text)}),
        (model(), longer),
    ):
        assert evaluate(ours, tokenizer, directory=tmp_path, **given)["cells"]["kept_from_before"] == 0
    text.write_text("And more of it. " * 300)
    again = evaluate(model(), tokenizer, directory=tmp_path, **small | {"text": str(text)})
    assert again["cells"]["kept_from_before"] == 0
    assert again["tasks"][0]["task"] == rf"perplexity:source={tmp_path}/a\:text"
    more = evaluate(model(), tokenizer, directory=tmp_path, **small | {"tasks": ("perplexity", "copying")})
    assert more["cells"]["kept_from_before"] == 1


def test_every_number_of_a_model_is_in_its_fingerprint():
    ours, prints = model(), set()

    def changed():
        prints.add(fingerprint(ours))
        return len(prints)

    weights = ours.model.layers[1].mlp.up_proj.weight.data
    assert changed() == changed() == 1
    weights[17, 5] += 1e-3
    assert changed() == 2
    weights[[3, 9]] = weights[[9, 3]]
    assert changed() == 3
    ours.model.rotary_emb.inv_freq *= 0.25
    assert changed() == 4
    ours.register_buffer("odd", torch.arange(21, dtype=torch.uint8)[::2], persistent=False)
    assert changed() == 5
    ours.odd = ours.odd.clone()
    assert changed() == 5


def test_the_texts_of_a_task_change_its_cells(tokenizer, tmp_path, monkeypatch):
    small = {"tasks": ("perplexity", "copying:segment=8", "passkey"), "lengths": (450,), "samples": 2, "depths": 0.5}
    small |= {"generate": False}

    def reused():
        return evaluate(model(), tokenizer, directory=tmp_path, **small)["cells"]["kept_from_before"]

    assert (reused(), reused()) == (0, 6)  # also with the end alone
    monkeypatch.setattr(config.running_text, "pydoc", lambda: "All work and no play makes Jack a dull boy. " * 500)
    assert reused() == 4
    sample = Copying.sample
    monkeypatch.setattr(Copying, "sample", lambda self, *a, index=0, **k: sample(self, *a, index=index + 1, **k))
    assert reused() == 4


METHODS = ("linear:factor=2", "rerope:window=32")


def test_another_program_measures_again_and_another_version_string_does_not(tokenizer, tmp_path, monkeypatch):
    given = {"tasks": ("copying:segment=8",), "methods": METHODS, "lengths": (320,), "samples": 2, "depths": 0.5}

    def measured():
        progress = Listening()
        evaluate(model(), tokenizer, directory=tmp_path, progress=progress, name="m", **given)
        return {cell.method for cell in progress.cells}

    assert measured() == {NONE, *METHODS}
    monkeypatch.setattr(posenc, "__version__", "9.9")
    assert not measured()
    monkeypatch.setattr(study, "code", lambda: "another")
    assert measured() == {NONE, *METHODS}
    assert not measured()


def test_methods_are_tried_before_texts_are_made(tokenizer, monkeypatch):
    monkeypatch.setattr(Evaluation, "check_texts", lambda _: pytest.fail("texts were made"))
    with pytest.raises(InputError, match=r"reaches \d+ tokens"):
        evaluate(model(), tokenizer, **SMALL | {"methods": ("rerope:window=100000",), "lengths": (4096,)})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tasks": ("paskey",)}, r"unknown task 'paskey': did you mean 'passkey'"),
        ({"tasks": ()}, r"tasks: name at least one"),
        ({"methods": ("yarm",)}, r"methods='yarm': unknown method 'yarm': did you mean 'yarn'"),
        ({"methods": ("yarn", "truncation")}, r"methods='truncation': .*by itself"),
        ({"lengths": (1,)}, r"lengths=1: must be an integer from 2"),
        ({"lengths": 400.5}, r"lengths=400\.5: must be an integer"),
        ({"lengths": (20, 400)}, r"tasks='passkey', lengths=20: passkey needs about"),
        ({"depths": (0.5, 5)}, r"depths=5: must be at most 1"),
        ({"depths": "0.5"}, r"depths='0.5': pass a number"),
        ({"samples": 1}, r"samples=1: must be an integer from 2 to 10000"),
        (
            {"lengths": (2**24,), "tasks": ("copying",)},
            r"lengths=16777216: .* and 0\.1 GiB are free; give shorter ones",
        ),
        ({"lengths": (10**9,)}, r"lengths=1000000000: must be an integer from 2 to 16777216"),
        ({"preset": "quik"}, r"unknown preset 'quik': did you mean 'quick'"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(given, message, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(study.Reader, "read", None)
    if given.get("lengths") == (2**24,):
        monkeypatch.setattr(Evaluation, "check_texts", lambda _: None)
        monkeypatch.setattr(study, "free_bytes", lambda _: 2**27)
    with pytest.raises(InputError, match=message):
        evaluate(model(), tokenizer, directory=tmp_path, **SMALL | given)
    assert not (tmp_path / "cells").exists()


def test_without_a_tokenizer_nothing_can_be_asked():
    with pytest.raises(InputError, match=r"^small: it has no tokenizer, and every task needs one"):
        evaluate(model(), None, name="small", **SMALL)
    with pytest.raises(InputError, match=r"^tokenizer=None: every task needs one"):
        evaluate(model(), None, **SMALL)


def test_an_extended_model_is_measured_as_it_came(tokenizer):
    ours = model()
    posenc.extend(ours, "yarn", factor=2)
    with pytest.raises(InputError, match=r"methods=\('rerope:window=64',\): .* extended by yarn"):
        evaluate(ours, tokenizer, **SMALL)
    found = evaluate(ours, tokenizer, tasks=("copying",), lengths=(64,), samples=2)
    assert found["model"]["trained_length"] == 2 * TRAINED
    assert posenc.restore(ours)


def test_documents_that_overlap_show_no_difference(tokenizer, tmp_path):
    """Sixteen passages of a text that has room for one are one."""
    short, long = tmp_path / "short.txt", tmp_path / "long.txt"
    words = [f"word{(7 * n) % 61}" for n in range(4000)]
    long.write_text(" ".join(words))
    tokens = len(tokenizer(long.read_text()).input_ids)
    short.write_text(" ".join(words[: 4000 * 500 // tokens]))
    found = {}
    for file in (short, long):
        results = evaluate(model(), tokenizer, tasks=[f"perplexity:source={file}"], methods=["linear:factor=64"],
            lengths=[450], samples=16, name="small")  # fmt: skip
        (row,) = (row for row in results["ranking"] if row["method"] == "linear:factor=64")
        found[file] = row["tasks"][0]["against_none"]["n"], row["tasks"][0]["verdict"], " ".join(results["limits"])
    assert found[short][:2] == (1, "undecided")
    assert "1 of the 16 documents do not overlap" in found[short][2]
    count = min(16, tokens // 450)
    assert found[long][0] == count
    assert ("do not overlap" in found[long][2]) == (count < 16)


def test_the_order_has_something_of_everything_early():
    assert EvaluationSettings("passkey", "yarn", 512, 0.5) == EvaluationSettings(
        ("passkey",), ("yarn",), (512,), (0.5,)
    )
    settings = EvaluationSettings(("passkey", "perplexity"), ("yarn",), (512, 256), (1, 0), seeds=2)
    cells = planned(settings, settings.made(), 256)
    assert [(cell.seed, cell.length) for cell in cells] == sorted((cell.seed, cell.length) for cell in cells)
    assert [cell.method for cell in cells[:6]] == ["none"] * 3 + ["yarn"] * 3
    assert [cell.depth for cell in cells[:3]] == [0.0, 1.0, None]
    assert {cell.length for cell in cells if cell.method == TRUNCATION} == {512}


def test_times_are_lengths_for_each_of_which_methods_are_set_up(tokenizer, tmp_path):
    given = {"tasks": ("perplexity",), "methods": ("leaky_rerope",), "samples": 2}
    found = evaluate(model(), tokenizer, times=(1.25, 2), directory=tmp_path, **given)
    assert found["settings"]["lengths"] == (480, 768)
    for row, length in zip(found["tasks"][0]["methods"][1]["by_length"], (480, 768), strict=True):
        alone = evaluate(model(), tokenizer, lengths=length, **given)["tasks"][0]["methods"][1]["by_length"][0]
        assert row["loss"] == alone["loss"], "the factor that this length needs"
    assert [[row["method"] for row in at["tasks"][0]["rows"]].count(TRUNCATION) for at in found["longer"]] == [1, 1]
    longer = evaluate(model(), tokenizer, times=(1.25, 3), directory=tmp_path, **given)
    assert longer["cells"]["kept_from_before"] == 3, "a longer text changes nothing for the shorter ones"


def test_a_preset_of_times_takes_lengths_instead_but_not_both():
    assert settings_of("longer", lengths=(300, 600)).times == ()
    assert settings_of("longer", samples=2).on(100).lengths == (200, 400, 800)
    for preset, more in (("longer", {}), (None, {"tasks": "passkey"})):
        with pytest.raises(InputError, match=r"times=2, lengths=512: give one of the two"):
            settings_of(preset, lengths=512, times=2, **more)
    with pytest.raises(InputError, match=r"times=0: must be above 0"):
        settings_of("longer", times=(2, 0))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_name_what_there_is(name):
    settings = settings_of(name)
    assert {task.name for task in settings.made().values()} <= set(TASKS)
    for method in settings.methods:
        llama = small_model("llama", max_position_embeddings=2048)
        posenc.extend(llama, method, target_length=None if "factor" in method else 16384)


@pytest.mark.parametrize("kind", ["llama", "qwen2_vl_text", "qwen3_vl_text", "scaled"])
def test_the_context_length_is_that_which_methods_count_from(tokenizer, kind):
    scaled = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    settings = {"rope_parameters": scaled} if kind == "scaled" else {}
    subject = small_model(kind.replace("scaled", "llama"), vocab_size=VOCABULARY, **settings)
    length = model_structure(subject).loaded_length
    for expected in (length, 2 * length):
        assert Evaluation(subject, tokenizer, EvaluationSettings("perplexity"), "").trained_length == expected
        posenc.extend(subject, "ntk", target_length=2 * length)
