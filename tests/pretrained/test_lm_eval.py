"""lm-evaluation-harness: an extended model in it is an ordinary model, and our tasks are tasks of it."""

import json
from pathlib import Path

import pytest
import torch

import posenc
from posenc import InputError
from posenc.pretrained import lm_eval as harness
from posenc.pretrained import loss_by_position
from posenc.tasks import TASKS, create
from references import smollm2
from references.small_models import small_model
from references.tokenizers import small_tokenizer

pytest.importorskip("lm_eval")

LENGTH = 500


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


@pytest.fixture(scope="module")
def model():
    """Random weights with a configured length of 64 tokens, extended to 512."""
    model = small_model("llama", vocab_size=512)
    posenc.extend(model, "yarn", factor=8)
    return model


def run(lm, names, folder, tokenizer):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    tasks = TaskManager(include_path=folder, include_defaults=False, metadata={"tokenizer": tokenizer})
    return simple_evaluate(lm, tasks=names, task_manager=tasks, bootstrap_iters=0)


def wrapped(model, tokenizer):
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2)


def direct(model, tokenizer, sample):
    """The mean loss of the scored tokens, and whether each is the likeliest, from our code. lm-eval moves the
    spaces at the end of a prompt to the answer."""
    prompt = tokenizer.decode(sample.ids[: sample.prompt_tokens])
    cut = sample.prompt_tokens - len(prompt) + len(prompt.rstrip())
    with torch.no_grad():
        loss = loss_by_position(model, sample.ids)[cut:]
        likeliest = model(sample.ids[None]).logits[0, cut - 1 : -1].argmax(-1)
    return float(loss.mean()), float(torch.equal(likeliest, sample.ids[cut:]))


def test_an_extended_model_is_an_ordinary_one(model, tokenizer, tmp_path):
    """LAMBADA as lm-eval defines it, on our texts, longer than the context length."""
    import lm_eval

    texts = [f"{LONG[at : at + 500].strip()} the word" for at in (0, 1000, 2000)]
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    original = Path(lm_eval.__file__).parent / "tasks" / "lambada" / "lambada_openai.yaml"
    files = {"data_files": {"test": str(tmp_path / "texts.jsonl")}, "cache_dir": str(tmp_path / "cache")}
    (tmp_path / "lambada.yaml").write_text(
        f"include: {original}\ntask: lambada_here\ndataset_path: json\ndataset_name: null\n"
        f"dataset_kwargs: {json.dumps(files)}\n"
    )
    found = {}
    for length, read in {512: model, 64: small_model("llama", vocab_size=512)}.items():
        lm = wrapped(read, tokenizer)
        assert lm.max_length == length  # beyond which lm-eval cuts a text off at its left
        samples = run(lm, ["lambada_here"], tmp_path, tokenizer)["samples"]["lambada_here"]
        found[length] = {s["doc"]["text"]: s["resps"][0][0][0] for s in samples}
    for text in texts:
        ids = torch.tensor(tokenizer(text).input_ids)
        assert len(ids) > 128
        last = len(tokenizer(" word").input_ids)
        ours = -float(loss_by_position(model, ids)[-last:].sum())
        assert found[512][text] == pytest.approx(ours, abs=1e-3)
        assert abs(found[64][text] - ours) > 0.01


LONG = create("needle").sample(small_tokenizer(), 4000).prompt


@pytest.mark.parametrize("text", ["passkey", "key_value:keys=digits"])
def test_likelihoods_in_lm_eval_are_ours(model, tokenizer, tmp_path, text):
    task = create(text)
    folder = harness.write(tmp_path / "tasks", [text], [LENGTH - 20, LENGTH], depths=[0.25, 1.0], samples=4)
    group = harness.group_name(task)
    results = run(wrapped(model, tokenizer), [group], folder, tokenizer)
    cells = [
        (length, depth) for length in (LENGTH - 20, LENGTH) for depth in ((0.25, 1.0) if task.takes_depth else (None,))
    ]
    for length, depth in cells:
        row = results["results"][f"{group}_{length}" + ("" if depth is None else f"_at_{depth:g}")]
        at = {} if depth is None else {"depth": depth}
        samples = [task.sample(tokenizer, length, index=index, **at) for index in range(4)]
        losses, exact = zip(*(direct(model, tokenizer, sample) for sample in samples), strict=True)
        assert row["nll,none"] == pytest.approx(sum(losses) / 4, abs=1e-4)
        assert row["acc,none"] == sum(exact) / 4
        assert row["sample_len"] == 4
    rows = [row for name, row in results["results"].items() if name != group]
    assert len(rows) == len(cells)
    mean = sum(row["nll,none"] for row in rows) / len(rows)
    assert results["groups"][group]["nll,none"] == pytest.approx(mean)


def test_what_is_generated_is_scored_as_ours(tokenizer, tmp_path):
    """By a model that answers every second question."""
    from lm_eval.api.model import LM

    class Knowing(LM):
        def generate_until(self, requests):
            found = []
            for request in requests:
                prompt, settings = request.args
                assert prompt == request.doc["prompt"]
                assert settings == {"do_sample": False, "max_gen_toks": 10, "until": []}
                found.append(request.doc["answer"] if request.doc["index"] % 2 else " I do not know.")
            return found

        def loglikelihood(self, requests):
            return [(-float(request.doc["scored"]), request.doc["index"] > 0) for request in requests]

        def loglikelihood_rolling(self, requests):
            raise AssertionError

    folder = harness.write(tmp_path / "tasks", ["facts"], [1000], depths=[0.0, 0.5], samples=4)
    results = run(Knowing(), ["posenc_facts", "posenc_facts_generate"], folder, tokenizer)["results"]
    assert results["posenc_facts_generate_1000_at_0.5"]["score,none"] == 0.5
    assert results["posenc_facts_1000_at_0"]["acc,none"] == 0.75
    assert results["posenc_facts_1000_at_0"]["nll,none"] == 1


def test_a_real_generation_is_scored(model, tokenizer, tmp_path):
    """The words that lm-eval has the model generate are those of transformers, and scored by the task."""
    folder = harness.write(tmp_path / "tasks", ["passkey"], [LENGTH], depths=[0.5], samples=2)
    results = run(wrapped(model, tokenizer), ["posenc_passkey_generate"], folder, tokenizer)
    task = create("passkey")
    for logged in results["samples"][f"posenc_passkey_generate_{LENGTH}_at_0.5"]:
        sample = task.sample(tokenizer, LENGTH, index=logged["doc"]["index"])
        prompt = sample.ids[None, : sample.prompt_tokens]
        ids = model.generate(prompt, max_new_tokens=task.new_tokens, do_sample=False, pad_token_id=0)
        text = tokenizer.decode(ids[0, sample.prompt_tokens :], skip_special_tokens=True)
        assert logged["resps"][0][0] == text
        assert logged["score"] == task.score(text, sample)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_can_be_written(tmp_path, name):
    from lm_eval.tasks import TaskManager

    folder = harness.write(tmp_path / "tasks", [name], [4096])
    tasks = TaskManager(include_path=folder, include_defaults=False)
    assert f"posenc_{name}" in tasks.all_groups
    assert (f"posenc_{name}_generate" in tasks.all_groups) == (TASKS[name].new_tokens > 0)
    depths = ["_at_0", "_at_0.5", "_at_1"] if TASKS[name].takes_depth else [""]
    assert {f"posenc_{name}_4096{depth}" for depth in depths} <= set(tasks.all_subtasks)


def test_tasks_of_one_name_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"both posenc_needle_keywords_eat_sunny for lm-eval"):
        harness.write(tmp_path, ["needle:keywords=eat,sunny", "needle:keywords=eat, sunny"], [500])
    harness.write(tmp_path, ["passkey", "passkey"], [500], (0.5, 0.50000001))
    assert len(list(tmp_path.iterdir())) == 6
    for name, wrong in (("tasks", []), ("lengths", []), ("lengths", [100.5]), ("lengths", [0]), ("samples", 0)):
        with pytest.raises(InputError, match=f"^{name}="):
            harness.write(tmp_path, **{"tasks": ["passkey"], "lengths": [500], name: wrong})


def test_options_are_part_of_the_name(tmp_path):
    folder = harness.write(tmp_path / "tasks", ["key_value:keys=digits"], [1000, 2000], [0.1])
    written = {path.stem for path in folder.iterdir()}
    assert {"posenc_key_value_keys_digits", "posenc_key_value_keys_digits_2000_at_0.1"} <= written


@pytest.mark.parametrize("text", ["perplexity", "copying"])
def test_what_lm_eval_cannot_read_is_refused(tokenizer, text):
    cell = {"task": text, "length": 600, "depth": None, "samples": 1}
    with pytest.raises(InputError, match="has no prompt as text"):
        harness.dataset(cell, tokenizer=tokenizer)


def test_a_tokenizer_is_asked_for(tokenizer, tmp_path):
    cell = {"task": "passkey", "length": 600, "depth": 0.5, "samples": 1}
    with pytest.raises(InputError, match=r"--model_args pretrained="):
        harness.dataset(cell, dtype="float32")
    tokenizer.save_pretrained(tmp_path)
    by_name = harness.dataset(cell, pretrained=str(tmp_path), dtype="float32")
    assert by_name["test"]["prompt"] == harness.dataset(cell, tokenizer=tokenizer)["test"]["prompt"]


def test_rulers_needle_in_lm_eval_on_a_real_model(tmp_path):
    """niah_single_1 as lm-eval defines it, on SmolLM2, extended: found, as the pass key in any text of this length."""
    import lm_eval
    import nltk
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    smollm2.require()
    model, tokenizer = posenc.load("demo", dtype="float32")
    tokenizer.save_pretrained(tmp_path)
    posenc.extend(model, "yarn", factor=2)
    lm = wrapped(model, tokenizer)
    assert lm.max_length == 16384
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk, "download", lambda *_: True)  # data for its essays, which are not in this task
        metadata = {"max_seq_lengths": [600], "tokenizer": str(tmp_path)}
        folder = Path(lm_eval.__file__).parent / "tasks" / "ruler"
        tasks = TaskManager(include_path=folder, include_defaults=False, metadata=metadata)
        results = simple_evaluate(
            lm, tasks=["niah_single_1"], task_manager=tasks, limit=2, bootstrap_iters=0, gen_kwargs="max_gen_toks=16"
        )
    row = results["results"]["niah_single_1"]
    assert row["sample_len"] == 2
    assert row["600,none"] == 1
    assert all(len(tokenizer(s["arguments"][0][0]).input_ids) > 400 for s in results["samples"]["niah_single_1"])
