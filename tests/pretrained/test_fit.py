"""Stretches that are learned on a text: found again where they are known, and nothing else of the model is touched."""

import copy
import math

import pytest
import torch
import transformers

import posenc
from posenc import InputError
from posenc.functional import cos_sin
from posenc.pretrained.attach import RotaryModule
from posenc.pretrained.extend import plan_rotary
from posenc.pretrained.fit import Fit, FittedRotary, Windows
from references import stories15m
from references.small_models import TRAINED, VOCABULARY, small_model, tokens

TRUTH = torch.linspace(1, 4, 8)
QUICK = {"factor": 2, "steps": 2, "batch_size": 1, "text": tokens(1, 900)}


@pytest.fixture(scope="module")
def drawn():
    """Texts drawn from a model whose frequencies are stretched by TRUTH, (12, 128)."""
    model = small_model("llama")
    posenc.extend(model, "explicit", stretch=TRUTH, factor=2)
    torch.manual_seed(3)
    start = torch.randint(3, VOCABULARY, (12, 1))
    options = {"max_new_tokens": 127, "min_new_tokens": 127, "do_sample": True, "top_k": 0, "pad_token_id": 0}
    with torch.no_grad():
        return model.generate(start, attention_mask=torch.ones_like(start), **options)


def state(model):
    """Everything of a model that a fit may change."""
    return (
        {name: (weight.clone(), weight.requires_grad) for name, weight in model.named_parameters()},
        model.model.rotary_emb, model.config.to_dict(), [module.training for module in model.modules()],
    )  # fmt: skip


def same(one, other) -> bool:
    weights = all(torch.equal(a, other[0][name][0]) and r == other[0][name][1] for name, (a, r) in one[0].items())
    return weights and one[1] is other[1] and one[2:] == other[2:]


@pytest.mark.parametrize(("search", "steps"), [("gradient", 30), ("evolution", 3)])
def test_stretches_are_found_again(drawn, search, steps):
    model = small_model("llama")
    report = posenc.extend(
        model,
        "fit",
        text=drawn,
        factor=2,
        start="linear:factor=3",
        search=search,
        steps=steps,
        held_out=0.3,
        patience=9,
    )
    fitting = report.fitting
    assert fitting.improved
    assert fitting.best[1] < fitting.losses[0][1] - (0.02 if search == "gradient" else 0)
    before, after = (
        (torch.tensor(stretch).log() - TRUTH.log())[:4].abs().mean()
        for stretch in (fitting.start_stretch, fitting.stretch)
    )
    assert after < before, "the fast pairs, which 128 tokens tell apart, come nearer"
    assert report.stretch == pytest.approx(fitting.stretch)
    assert report.method.startswith("explicit:stretch=")
    assert f"after {fitting.best[0]} " in str(report)
    if search == "evolution":
        assert list(fitting.stretch) == sorted(fitting.stretch)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "gpt_neox", "glm", "phi3"])
def test_before_training_it_rotates_as_its_start(kind):
    model = small_model(kind)
    start = plan_rotary(model, "yarn", 2, None, {})
    fitted, plain = FittedRotary(start), RotaryModule(start.design.rotations, frozenset(), start.structure.family)
    ids, x = torch.arange(100)[None], torch.zeros(1, 1, 1)
    for layer_type in start.structure.ropes if start.structure.rope_per_type else [None]:
        for mine, theirs in zip(fitted(x, ids, layer_type), plain(x, ids, layer_type), strict=True):
            torch.testing.assert_close(mine, theirs)
    report = posenc.extend(model, "fit", **QUICK, learning_rate=0.01)
    with torch.no_grad():
        assert model(tokens(1, 128)).logits.isfinite().all()
    assert report.layers[0] > 0


def test_the_gradient_is_that_of_the_loss(drawn):
    model = small_model("llama").double()
    start = plan_rotary(model, "yarn", 2, None, {})
    windows = Windows(Fit(text=drawn, held_out=0.3, temperature=True), model, 128)
    module = model.model.rotary_emb = FittedRotary(start)

    def loss(values):
        module.assign(values)
        return windows.mean(windows.held_out)

    for window in windows.held_out:
        (window.weight * windows.nats(window)).backward()
    learned = torch.cat((module.learned.log_scale.grad[0], module.log_temperature.grad[None]))
    values, step = module.values(), 1e-5
    for pair in (0, 3, -1):
        moved = torch.zeros_like(values)
        moved[pair] = step
        slope = (loss(values + moved) - loss(values - moved)) / (2 * step)
        assert slope == pytest.approx(learned[pair].item(), rel=2e-3, abs=0.02)  # norms round to float32


def test_restore_undoes_a_fit_and_a_repeated_fit_is_equal(tmp_path):
    model = small_model("llama").train()
    model.save_pretrained(tmp_path / "before")  # which writes into the configuration
    model.lm_head.weight.requires_grad_(False)
    weight = model.model.norm.weight
    weight.grad = torch.ones_like(weight)
    before, logits = state(model), model(tokens(1, 128)).logits
    reports = [posenc.extend(model, "fit", **QUICK, temperature=True, learning_rate=0.01) for _ in range(2)]
    assert reports[0] == reports[1] != posenc.extend(model, "fit", **QUICK, temperature=True, seed=1)
    posenc.extend(model, "fit", **QUICK, temperature=True, learning_rate=0.01)
    assert model.config.max_position_embeddings == 2 * TRAINED
    extended = model.eval()(tokens(1, 128)).logits
    posenc.to_hf(model, tmp_path / "fitted")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "fitted").eval()
    torch.testing.assert_close(plain(tokens(1, 128)).logits, extended, atol=1e-4, rtol=0)
    posenc.extend(model, reports[0].method, factor=2)
    torch.testing.assert_close(model(tokens(1, 128)).logits, extended, atol=1e-6, rtol=0)
    assert posenc.restore(model)
    assert torch.equal(weight.grad, torch.ones_like(weight))
    assert same(state(model.train()), before)
    assert torch.equal(model(tokens(1, 128)).logits, logits)


@pytest.mark.parametrize("method", [None, "rerope"])
def test_interrupted_the_model_is_as_it_was(method, tmp_path):
    model = small_model("llama")
    if method:
        posenc.extend(model, method, factor=2)
    before = state(model)

    def stop(step, steps, loss):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        posenc.extend(model, "fit", **QUICK, progress=stop)
    with pytest.raises(InputError, match=r"learning_rate=1e.30: the fit diverges, its loss is nan; lower it"):
        posenc.extend(model, "fit", **QUICK, learning_rate=1e30)
    assert same(state(model), before)
    with torch.no_grad():
        model(tokens(1, 100))


@pytest.mark.parametrize("search", ["gradient", "evolution"])
def test_an_interrupted_fit_resumes_from_its_checkpoint(search, tmp_path, monkeypatch):
    monkeypatch.setattr("posenc.pretrained.fit.EVERY", {"gradient": 2, "evolution": 1})
    model, options = small_model("llama"), QUICK | {"steps": 4, "search": search, "temperature": True, "patience": 9}
    uninterrupted = posenc.extend(model, "fit", **options).fitting
    posenc.restore(model)
    seen = []

    def stop(step, steps, loss):
        seen.append(step)
        if step == 2 and seen.count(2) == 1:
            raise KeyboardInterrupt

    again = options | {"checkpoint": tmp_path / "checkpoint", "progress": stop}
    with pytest.raises(KeyboardInterrupt):
        posenc.extend(model, "fit", **again)
    found = posenc.extend(model, "fit", **again).fitting
    assert found == uninterrupted
    assert len(seen) <= len(found.losses) + 1, "what was done is not done again"
    assert posenc.extend(model, "fit", **again).fitting == found
    assert len(seen) <= len(found.losses) + 1
    with pytest.raises(InputError, match=r"fit.safetensors.*: is of another model, text or settings"):
        posenc.extend(model, "fit", **again | {"seed": 1})


def test_a_checkpoint_of_another_program_is_refused(tmp_path, monkeypatch):
    model, options = small_model("llama"), QUICK | {"steps": 2, "checkpoint": tmp_path}
    posenc.extend(model, "fit", **options)
    posenc.restore(model)
    compute = cos_sin
    monkeypatch.setattr("posenc.pretrained.fit.cos_sin", lambda ids, *rest: compute(2 * ids, *rest))
    with pytest.raises(InputError, match=r"fit.safetensors.*: is of another program \(loss before the fit is "):
        posenc.extend(model, "fit", **options)


def test_where_nothing_is_better_the_start_is_taken(drawn):
    model = small_model("llama")
    start = "explicit:stretch=" + ",".join(map(str, TRUTH.tolist()))
    report = posenc.extend(model, "fit", **QUICK | {"start": start, "text": drawn, "learning_rate": 1.0})
    assert not report.fitting.improved
    assert report.method == start
    assert "nothing is better than the start" in str(report)
    assert report.stretch == posenc.extend(model, start, factor=2).stretch


def test_it_stops_by_itself():
    readings = []
    text = tokens(1, 900)
    posenc.extend(
        small_model("llama"), "fit", text=text, factor=2, steps=500, batch_size=1, learning_rate=1.0, patience=1,
        progress=lambda step, *_: readings.append(step),
    )  # fmt: skip
    assert readings[-1] < 100


def test_tasks_and_short_windows(tokenizer):
    model = small_model("llama")
    for options in ({"task": "repeated"}, {"task": "copying", "task_share": 1.0}, {"length": 64}):
        windows = Windows(Fit(text=QUICK["text"], tokenizer=tokenizer, **options), model, 128)
        assert sum(window.weight for window in windows.held_out) == pytest.approx(1)
        held_out = windows.rows[:, windows.train.shape[1] :]
        for window in windows.held_out:
            assert window.ids.shape[1] <= windows.length == options.get("length", 128)
            assert window.positions.max() < 128
            assert window.scored.max() < window.ids.shape[1] - 1
            if "task" not in options:
                assert (held_out.unfold(1, 64, 1) == window.ids).all(-1).any()
        if options.get("task") == "repeated":
            ids = windows.held_out[1].ids[0]
            assert torch.equal(ids[:32].repeat(4), ids)
            assert windows.held_out[1].scored.min() == 31
        report = posenc.extend(model, "fit", **QUICK | options, tokenizer=tokenizer)
        assert len(report.fitting.losses) == 2
    assert max(int(w.positions.max()) for w in windows.held_out) > 64, "positions are skipped"


def test_held_out_text_is_not_fitted_on():
    for rows in (tokens(1, 900), tokens(5, 200)):
        windows = Windows(Fit(text=rows, held_out=0.4), small_model("llama"), 128)
        for window in windows.held_out:
            assert not (windows.train.unfold(1, 128, 1) == window.ids).all(-1).any()
        starts = {tuple(window.ids[0, :9].tolist()) for window in windows.held_out}
        assert len(starts) == len(windows.held_out) == 2


def test_a_model_on_finer_positions():
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    model = small_model("llama", rope_parameters=rope)
    report = posenc.extend(model, "fit", **QUICK, start="ntk", learning_rate=0.01, pull=0.0)
    assert report.stretch == pytest.approx(report.fitting.stretch, rel=1e-6)
    assert report.fitting.start_stretch[0] == pytest.approx(2)


LONG = {"text": tokens(1, 900), "factor": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": tokens(1, 200)}, "text has 200 tokens: .* windows of 128 with held_out=0.1 needs 256"),
        ({"text": tokens(3, 100)}, "text has 100 tokens each: .* needs 128"),
        ({"held_out": 0.9}, "needs 1280"),
        ({"text": None}, "fit: learns from a text; "),
        ({"text": "w1 w2"}, "text is a string: pass the tokenizer"),
        ({"text": tokens(1, 900) + 90}, "beyond the model's vocabulary"),
        ({"factor": 0.5}, "factor=0.5: the new length over the context length, at least 1"),
        ({"factor": None}, "fit depends on the new length|pass factor= or target_length="),
        ({"held_out": 1.5}, "held_out=1.5: must lie between 0 and 1"),
        ({"held_out": 0}, "held_out=0: must lie between 0 and 1"),
        ({"start": "yran"}, "start='yran': unknown method.*did you mean 'yarn'"),
        ({"start": "rerope"}, "start='rerope': is no frequency schedule"),
        ({"start": "none"}, "start='none': is no frequency schedule"),
        ({"search": "random"}, "search"),
        ({"steps": 0}, "steps=0: must be at least 1"),
        ({"learning_rate": 0}, "learning_rate=0"),
        ({"pull": -1}, "pull=-1: must be at least 0"),
        ({"task_share": 2}, "task_share=2: must be at most 1"),
        ({"task": "passkey"}, "task='passkey': is made of text; pass the tokenizer"),
        ({"task": "pass_key"}, "unknown task"),
        ({"patients": 3}, "unknown option 'patients'.*did you mean 'patience'"),
    ],
)  # fmt: skip
def test_refused(options, message):
    model = small_model("llama")
    before = state(model)
    with pytest.raises(InputError, match=message):
        posenc.extend(model, "fit", **LONG | options)
    assert same(state(model), before)


def test_refused_methods_and_models():
    model = small_model("llama")
    with pytest.raises(InputError, match="fit does not combine with others"):
        posenc.extend(model, "fit+log_n", **LONG)
    with pytest.raises(InputError, match="already has fit:steps=3"):
        posenc.extend(model, "fit:steps=3", **LONG, steps=4)
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=97, n_positions=64)
    with pytest.raises(InputError, match="method for a learned table"):
        posenc.extend(transformers.GPT2LMHeadModel(config), "fit", **LONG)
    config = transformers.BloomConfig(hidden_size=32, n_layer=1, n_head=2, vocab_size=97)
    with pytest.raises(InputError, match="model type"):
        posenc.extend(transformers.BloomForCausalLM(config), "fit", **LONG)
    broken = copy.deepcopy(model)
    broken.lm_head.weight.data.fill_(math.nan)
    with pytest.raises(InputError, match="its loss is nan before the fit"):
        posenc.extend(broken, "fit", **LONG)


@pytest.mark.slow
def test_stories15m_reads_unseen_passages_better_than_under_yarn():
    texts, model = stories15m.texts(), stories15m.load()
    posenc.extend(model, "yarn", target_length=1024)
    before = stories15m.losses(model, texts[8:, :1024])[:, 512:].mean()
    report = posenc.extend(model, "fit", text=texts[:8], target_length=1024, steps=30, held_out=0.2)
    after = stories15m.losses(model, texts[8:, :1024])[:, 512:].mean()
    assert report.fitting.improved
    assert after < before - 0.02
