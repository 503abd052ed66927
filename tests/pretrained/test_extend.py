"""Extending and restoring: what is promised, reported, refused and undone."""

import copy
import json
import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posenc
from posenc import InputError, frequencies, position_maps
from posenc.errors import shown
from posenc.pretrained.attach import RotaryModule, attached
from posenc.pretrained.methods import METHODS, Lengths, plan
from references.small_models import TRAINED, close, small_model, stepwise, tokens

THETA = {"rope_theta": 10000.0}
LENGTH = 100


pytestmark = pytest.mark.usefixtures("no_gradients")


def state(model: Any) -> dict[str, Any]:
    """Everything that `extend` may change."""
    config = model.config.to_dict()
    attributes = [sorted(k for k in vars(m) if "posenc" in k) for m in model.modules()]
    return {
        "config": config, "implementation": model.config._attn_implementation, "attributes": attributes,
        "rotary": id(model.base_model.rotary_emb), "parameters": id(model.config.rope_parameters),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------ what is promised

PROMISES = {
    "none": TRAINED, "nope": 0, "linear": 0, "ntk": 0, "yarn": 0, "dynamic": 0, "abf:new_base=10000": TRAINED,
    "rerope": TRAINED // 2, "rerope:window=12": 12, "rerope+log_n": TRAINED // 2, "rerope+yarn": 0,
    "leaky_rerope": TRAINED // 2, "self_extend": TRAINED // 4, "dual_chunk": TRAINED * 3 // 4, "string": TRAINED // 3,
    "jet_long": TRAINED, "jet_long:least=2": TRAINED // 2, "lampe": TRAINED // 4,
    "lm_infinite": TRAINED, "lm_infinite:window=20": 20, "streaming": TRAINED, "streaming:sinks=2:recent=20": 22,
    "log_n": TRAINED, "log_n:clip=false": 0, "softmax_n": 0, "softmax_n:n=0": TRAINED,
    "temperature": 0, "temperature:beta=1": TRAINED,
    "step_temperature": TRAINED, "step_temperature:train_length=20:first=1": 19,
}  # fmt: skip
"""By method, how many tokens from the start are read as before."""


@pytest.mark.parametrize("method", PROMISES)
@pytest.mark.parametrize("kind", ["llama", "smollm3"])
def test_what_the_report_promises_is_what_happens(kind: str, method: str) -> None:
    """As many tokens as the report promises are unchanged; where these are fewer than the window, some change."""
    model = small_model(kind, rope_parameters=THETA | {"rope_type": "default"})
    x = tokens(2, TRAINED)
    before = model(x).logits
    report = posenc.extend(model, method, factor=4)
    promised = PROMISES[method]
    assert report.exact_tokens == promised
    change = (model(x).logits - before).abs().amax((0, 2)) / before.abs().max()
    assert not (change[:promised] > 1e-5).any()
    if promised < TRAINED:
        assert (change[promised : promised + 3] > 1e-5).any()
    words = {0: "outputs change at all lengths", TRAINED: "outputs are unchanged up to 64 tokens"}
    assert words.get(promised, f"the first {promised} tokens") in str(report)


def test_the_report() -> None:
    model = small_model("llama")
    report = posenc.extend(model, "ntk+log_n", target_length=256)
    found = json.loads(json.dumps(report.to_dict()))
    assert found["schedule"] == {"name": "ntk", "factor": 4.0}
    assert found["map"] is None
    assert found["stretch"] == pytest.approx([4 ** (2 * c / 14) for c in range(8)])
    assert (report.trained_length, report.new_length, report.attention_factor) == (64, 256, 1.0)
    assert not report.plain
    assert report.layers == (2, 2)
    text = str(report)
    assert "1 of 8 pairs as in plain RoPE, others up to 4 times slower" in text
    assert "cannot express" in text
    posenc.extend(model, "rerope")
    assert model.config.max_position_embeddings == 64
    assert "does the same" in str(posenc.extend(model, "yarn", factor=4))
    cache = model(tokens(1, 10), use_cache=True).past_key_values
    assert sum(t.numel() * 4 for layer in cache.layers for t in (layer.keys, layer.values)) == 10 * 512


def test_unchanged_layers_are_counted() -> None:
    smol, gemma = small_model("smollm3"), small_model("gemma3_text")
    assert "layers: 2 of 4 changed" in str(posenc.extend(smol, "yarn", factor=4))
    assert "layers without position: 2" in str(posenc.extend(smol, "yarn", factor=4))
    assert posenc.extend(smol, "log_n").layers == (4, 4)
    assert posenc.extend(smol, "none").layers == (0, 4)
    assert "layers with a sliding window: 1, as before" in str(posenc.extend(gemma, "rerope"))
    assert posenc.extend(gemma, "rerope+yarn", factor=4).layers == (1, 2)
    gemma2 = posenc.extend(small_model("gemma2"), "yarn", factor=4)
    assert "layers with a sliding window: 1, their frequencies change too" in str(gemma2)
    assert gemma2.layers == (2, 2)


def test_a_sliding_layer_of_gemma_3_turns_as_before() -> None:
    model = small_model("gemma3_text")
    ids, x = torch.arange(40)[None], torch.zeros(1, 40, 64)
    before = [model.model.rotary_emb(x, ids, kind) for kind in ("sliding_attention", "full_attention")]
    posenc.extend(model, "yarn", factor=4)
    after = [model.model.rotary_emb(x, ids, kind) for kind in ("sliding_attention", "full_attention")]
    torch.testing.assert_close(after[0][0], before[0][0], atol=1e-5, rtol=0)
    assert (after[1][0] - before[1][0]).abs().max() > 0.1
    assert model.config.rope_parameters["sliding_attention"] == {"rope_type": "default", "rope_theta": 10000.0}


# ------------------------------------------------------------------------------------------ done again, undone


@pytest.mark.parametrize("method", ["yarn", "rerope+log_n", "none", "ntk+softmax_n"])
@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "gemma3_text", "gpt_oss"])
def test_restore_puts_back_the_very_objects(kind: str, method: str) -> None:
    model, x = small_model(kind), tokens(1, LENGTH)
    if kind == "gpt_oss" and "softmax_n" in method:
        with pytest.raises(InputError, match=r"gpt_oss has learned sinks"):
            posenc.extend(model, method, factor=4)
        return
    before, logits = state(model), model(x).logits
    for _ in range(2):
        posenc.extend(model, method, factor=4)
        assert (model(x).logits == logits).all() == (method == "none")
        assert model.config.max_position_embeddings == 256
        assert posenc.restore(model)
        assert state(model) == before
        assert torch.equal(model(x).logits, logits)
    assert not posenc.restore(model)
    assert state(model) == before


def test_the_same_call_twice_changes_nothing_and_another_replaces() -> None:
    model, x = small_model("llama"), tokens(1, LENGTH)
    first = posenc.extend(model, "yarn", factor=4)
    rotary, record = model.model.rotary_emb, attached(model)
    assert posenc.extend(model, "yarn", target_length=256) is first
    assert model.model.rotary_emb is rotary
    assert attached(model) is record
    for method in ("rerope+log_n", "linear", "yarn:beta_fast=8"):
        posenc.extend(model, method, factor=4)
        fresh = small_model("llama")
        posenc.extend(fresh, method, factor=4)
        assert torch.equal(model(x).logits, fresh(x).logits)
    posenc.restore(model)
    assert state(model) == state(small_model("llama")) | {k: state(model)[k] for k in ("rotary", "parameters")}


def test_what_fails_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = small_model("llama"), tokens(1, 40)
    before = state(model)

    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    for method, options in (("yarn:beta_fast=0.5", {}), ("rerope", {"window": 0}), ("self_extend", {"group": "a"})):
        with pytest.raises(InputError):
            posenc.extend(model, method, factor=4, **options)
        assert state(model) == before
    with monkeypatch.context() as patched:
        patched.setattr(type(model), "set_attn_implementation", fail)
        with pytest.raises(RuntimeError, match=r"no"):
            posenc.extend(model, "rerope+yarn", factor=4)
    assert state(model) == before
    posenc.extend(model, "log_n")
    logits = model(x).logits
    with pytest.raises(InputError):
        posenc.extend(model, "yarn:factor=0", factor=4)
    once = iter([fail])
    with monkeypatch.context() as patched:
        patched.setattr("posenc.pretrained.attach.RotaryModule", lambda *given: next(once, RotaryModule)(*given))
        with pytest.raises(RuntimeError, match=r"no"):
            posenc.extend(model, "yarn", factor=4)
    assert torch.equal(model(x).logits, logits)


def test_a_model_that_moves_and_a_copy() -> None:
    model, x = small_model("llama"), tokens(1, LENGTH)
    plain = model(x).logits
    posenc.extend(model, "rerope:window=12+yarn", factor=4)
    wanted = model(x).logits
    twin = copy.deepcopy(model)
    assert twin.model.layers[0].self_attn._posenc_plan is not model.model.layers[0].self_attn._posenc_plan
    assert twin.model.layers[0].self_attn._posenc_plan.running is twin.model.layers[1].self_attn._posenc_plan.running
    assert torch.equal(twin(x).logits, wanted)
    posenc.restore(twin)
    assert torch.equal(twin(x).logits, plain)
    assert torch.equal(model(x).logits, wanted)
    model.to(torch.float64).to(torch.float32)
    assert torch.equal(model(x).logits, wanted)
    posenc.restore(model)
    assert torch.equal(model(x).logits, plain)


def test_peft_models_are_looked_through() -> None:
    peft = pytest.importorskip("peft")
    x = tokens(1, LENGTH)
    model, bare = small_model("llama"), small_model("llama")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], r=2))
    posenc.extend(wrapped, "rerope", factor=4)
    posenc.extend(bare, "rerope", factor=4)
    torch.testing.assert_close(wrapped(x).logits, bare(x).logits, atol=1e-5, rtol=0)
    posenc.restore(wrapped)
    torch.testing.assert_close(wrapped(x).logits, small_model("llama")(x).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("map_of", ["rerope:window=12", "rerope", "self_extend+log_n"])
def test_a_saved_model_says_what_plain_transformers_lacks(map_of: str, tmp_path: Any) -> None:
    """Extended again by the named method, the loaded model is the saved one, though its configured length is longer."""
    from transformers import AutoModelForCausalLM

    model, x = small_model("llama"), tokens(1, LENGTH)
    posenc.extend(model, f"{map_of}+ntk", factor=4)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ntk = small_model("llama")
    posenc.extend(ntk, "ntk", factor=4)
    torch.testing.assert_close(again(x).logits, ntk(x).logits, atol=1e-3, rtol=0)
    label = again.config.posenc
    posenc.extend(again, "yarn", factor=8)
    assert not hasattr(again.config, "posenc")
    posenc.restore(again)
    assert again.config.posenc is label
    posenc.extend(again, **label)
    assert again.config.posenc == label
    torch.testing.assert_close(again(x).logits, model(x).logits, atol=1e-3, rtol=0)


# ------------------------------------------------------------------------------------------ models scaled already


SCALED = {
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "longrope": {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 8,
                 "long_factor": [1.0, 1.0, 1.5, 3.0, 5.0, 6.5, 7.0, 9.0]},
}  # fmt: skip


def scaled(name: str) -> Any:
    """A model that was trained to 256 tokens under a scaling of 64."""
    table = THETA | {"original_max_position_embeddings": 64} | SCALED[name]
    return small_model("llama", max_position_embeddings=256, rope_parameters=table)


def turning(model: Any) -> tuple[Tensor, float]:
    """Frequencies and attention factor for long inputs."""
    if not isinstance(model.model.rotary_emb, RotaryModule):
        model.model.rotary_emb(torch.zeros(1, 256, 64), torch.arange(256)[None])
        return model.model.rotary_emb.inv_freq.double(), model.model.rotary_emb.attention_scaling
    found = model.model.rotary_emb.rotations["full_attention"].frequencies()
    return found.inv_freq, found.attention_factor


@pytest.mark.parametrize("name", SCALED)
def test_a_scaling_that_the_model_has_is_kept(name: str, tmp_path: Any) -> None:
    """Each pair turns as a method makes it of its own turns within the context length, and plain transformers loads that."""
    model, x = scaled(name), tokens(1, LENGTH)
    had, scale = turning(model)
    turns = had * 256 / (2 * torch.pi)
    ramp = 1 - ((turns - 1) / 31).clamp(0, 1)
    expected = {
        "yarn_paper": (had * (1 - ramp) + had / 2 * ramp, scale * (0.1 * torch.tensor(2.0).log().item() + 1)),
        "ntk": (had / torch.logspace(0, 1, 8, base=2), scale), "linear": (had / 2, scale),
    }  # fmt: skip
    for method, (wanted, factor) in expected.items():
        report = posenc.extend(model, method, factor=2)
        assert (report.trained_length, report.original_length, report.new_length) == (256, 64, 512)
        assert f"scaled by {name}, which stays" in str(report)
        found, attention_factor = turning(model)
        torch.testing.assert_close(found, wanted, rtol=2e-3, atol=0)  # lengths are whole tokens
        assert attention_factor == pytest.approx(factor)
    export = posenc.to_hf(model, tmp_path / "linear")
    assert export.rope_parameters["rope_type"] in ("longrope", name)
    again, _ = posenc.load(tmp_path / "linear")
    torch.testing.assert_close(again(x).logits, model(x).logits, atol=1e-3, rtol=0)
    posenc.extend(again, "yarn", target_length=512)  # which it has
    posenc.extend(model, "linear", factor=2)
    assert torch.equal(turning(again)[0], turning(model)[0])
    assert "scaled by" in str(posenc.extend(model, "rerope"))
    posenc.restore(model)
    posenc.extend(model, "yarn:factor=2+rerope:window=100", target_length=1024)
    for folder, save in (("saved", model.save_pretrained), ("exported", lambda to: posenc.to_hf(model, to))):
        save(tmp_path / folder)
        again, _ = posenc.load(tmp_path / folder)
        torch.testing.assert_close(again(x).logits, model(x).logits, atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", SCALED)
def test_a_scaling_is_discarded_where_that_is_asked_for(name: str) -> None:
    model, fresh, x = scaled(name), small_model("llama"), tokens(1, LENGTH)
    report = posenc.extend(model, "yarn+replace", factor=8)
    posenc.extend(fresh, "yarn", factor=8)
    assert torch.equal(model(x).logits, fresh(x).logits)
    assert report.new_length == 512
    assert f"discards {name}, by which the model as loaded is scaled from 64 tokens" in str(report)
    assert "needs fine-tuning" in str(report)
    with pytest.raises(
        InputError, match=r"target_length=128.*target_length=512 or more \(under replace, factor counts from 64"
    ):
        posenc.extend(model, "yarn+replace", factor=2)
    assert posenc.extend(fresh, "yarn+replace", factor=8).stretch == report.stretch  # nothing to discard
    with pytest.raises(InputError, match=r"replace needs a schedule"):
        posenc.extend(model, "rerope+replace", factor=8)


@pytest.mark.parametrize("method", ["linear", "yarn", "ntk", "yarn+replace"])
def test_a_factor_is_not_cut_to_whole_tokens(method: str) -> None:
    report = posenc.extend(small_model("llama"), method, factor=2.655)
    assert report.schedule is not None
    assert (report.schedule["factor"], report.new_length) == (2.655, 170)
    assert "factor=2.655" in report.method


def test_what_was_trained_at_finer_positions_keeps_them() -> None:
    """A model under "linear" was trained so: it is a plain model at positions a quarter as large."""
    given = THETA | {"rope_type": "linear", "factor": 4.0}
    model = small_model("llama", max_position_embeddings=256, rope_parameters=given)
    plain = frequencies.yarn(16, factor=2, original_max_positions=64)
    for method, wanted in (("yarn", plain), ("yarn+resonance", frequencies.resonance(16, of=plain))):
        posenc.extend(model, method, factor=2)
        found, attention_factor = turning(model)
        torch.testing.assert_close(found, wanted.inv_freq / 4, rtol=1e-12, atol=0)
        assert attention_factor == plain.attention_factor
    posenc.extend(model, "rerope:window=12")
    torch.testing.assert_close(turning(model)[0], frequencies.linear(16, factor=4).inv_freq, rtol=0, atol=0)


def test_a_configuration_without_head_dim_gets_it_back() -> None:
    model = small_model("gpt_neox")
    model.config.head_dim = None
    posenc.extend(model, "ntk", factor=4)
    assert model.config.head_dim == 16
    posenc.restore(model)
    assert model.config.head_dim is None


def test_schedules_that_depend_on_the_length_are_frozen_at_the_new_one() -> None:
    long = [2.0] * 8
    given = THETA | {
        "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": long, "original_max_position_embeddings": 64,
    }  # fmt: skip
    model = small_model("phi3", max_position_embeddings=256, original_max_position_embeddings=64, rope_parameters=given)
    posenc.extend(model, "rerope")
    torch.testing.assert_close(turning(model)[0] * 2, frequencies.default(16).inv_freq)
    x = tokens(1, LENGTH)
    close(stepwise(model, x, (60, *[1] * (LENGTH - 60))), model(x).logits, 1e-3)


# ------------------------------------------------------------------------------------------ methods


def test_every_schedule_and_map_is_a_method() -> None:
    not_for_extension = {"default", "proportional", "inverse_leaky"}
    assert set(frequencies.SCHEDULES) | set(position_maps.MAPS) - not_for_extension <= set(METHODS) | not_for_extension
    for name, method in METHODS.items():
        assert method.options().keys() >= method.defaults.keys(), name


def test_lists_and_tensors_as_options() -> None:
    """In a text a list is written with commas, in brackets or without."""
    stretch = torch.linspace(1, 4, 8, dtype=torch.float64)
    model, written = small_model("llama"), ",".join(map(str, stretch.tolist()))
    report = posenc.extend(model, "explicit", stretch=stretch, factor=4)
    assert list(report.stretch) == pytest.approx(stretch.tolist())
    assert posenc.extend(small_model("llama"), "explicit", stretch=stretch.tolist(), factor=4) == report
    for text in (written, f"[{written}]", f"[{written.replace(',', ', ')}]"):
        assert posenc.extend(model, f"explicit:stretch={text}", factor=4) is report


OTHERS: dict[str, Any] = {
    "factor": 8.0, "exponent": 0.7, "new_base": 5e4, "original_max_positions": 8, "beta_fast": 3.0, "beta_slow": 2.0,
    "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.5, "attention_factor": 1.5, "progressive": False, "low_freq_factor": 2.0,
    "high_freq_factor": 8.0, "length": 512, "short_factor": [1.5] * 8, "long_factor": [3.0] * 8, "stretch": [3.0] * 8, "pairs": 2,
    "hard": True, "window": 5, "group": 8, "trained": 32, "groups": 5, "least": 2, "chunk": 32, "local": 5, "shift": 9, "used": 32,
    "sinks": 2, "recent": 16, "train_length": 32, "clip": False, "beta": 1.3, "first": 1, "n": 0.5,
}  # fmt: skip
"""A value of each option that is not its default."""
NEEDED: dict[str, dict[str, Any]] = {
    "abf": {"new_base": 2e4}, "longrope": {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "length": TRAINED},
    "explicit": {"stretch": [2.0] * 8}, "long_factor": {"length": 512},
}  # fmt: skip
"""By method and option: without these nothing can be asked."""


@pytest.mark.parametrize(("name", "option"), [(name, option) for name in METHODS for option in METHODS[name].options()])
def test_no_option_is_ignored(name: str, option: str) -> None:
    """Each changes what a longer input gives."""
    model, found = small_model("llama"), []
    x, text = tokens(1, 5 * TRAINED), f"linear+{name}" if METHODS[name].kind == "change" else name
    for value in (None, OTHERS[option]):
        given = NEEDED.get(name, {}) | NEEDED.get(option, {})
        if value is not None and option == "factor":  # as a keyword it is that of the lengths
            text += f":factor={value}"
        elif value is not None:
            given |= {option: value}
        posenc.extend(model, text, target_length=4 * TRAINED, **given)
        found.append(model(x).logits)
    assert not torch.equal(*found)


def test_defaults_follow_from_the_lengths() -> None:
    def read(text: str, **options: Any) -> Any:
        return plan(text, options, Lengths(4096, 16384), Lengths(4096, 16384))

    assert read("rerope").map == {"name": "rerope", "window": 2048}
    assert read("self_extend").map == {"name": "self_extend", "window": 1024, "group": 9}
    assert read("self_extend", group=4).map == {"name": "self_extend", "group": 4, "window": 1024}
    assert read("jet_long").map == {"name": "jet_long", "trained": 4096, "window": 2048, "groups": 4, "least": 1}
    assert read("leaky_rerope").map == {"name": "leaky_rerope", "window": 2048, "factor": 7.0}
    assert read("streaming").map == {"name": "streaming", "sinks": 4, "recent": 4092}
    assert read("dual_chunk").map == {"name": "dual_chunk", "chunk": 3072, "local": 512}
    assert read("string").map == {"name": "string", "shift": 1365, "window": 128}
    assert read("lampe").map == {"name": "lampe", "window": 512, "used": 1536, "length": 16384}
    assert read("lm_infinite").map == {"name": "lm_infinite", "sinks": 10, "window": 4096}
    assert read("yarn").schedule == {"name": "yarn", "factor": 4.0, "original_max_positions": 4096}
    dynamic = {"name": "dynamic", "length": 16384, "original_max_positions": 4096}
    assert read("dynamic").schedule == dynamic
    assert read("dynamic:factor=2").schedule == dynamic | {"factor": 2}
    resonant = read("log_n+yarn:beta_fast=16+resonance")
    assert resonant.schedule["of"]["beta_fast"] == 16
    assert resonant.tuning == "needs it"
    assert resonant.attention["log_n"].train_length == 4096
    spec = read("self_extend").map
    last = position_maps.create(spec).relative(posenc.Positions.arange(1, 16383, causal=True))
    assert last.max() <= 4096 * 2 / 3 + 1


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("yarm", {}, r"unknown method 'yarm': did you mean 'yarn'"),
        ("yarn+ntk", {}, r"yarn and ntk are two of a kind; take one frequency schedule"),
        ("rerope+self_extend", {}, r"two of a kind; take one position map"),
        ("log_n+log_n", {}, r"the same part twice"),
        ("none+yarn", {}, r"none does not combine"),
        ("resonance+yarn", {}, r"comes after it, as in yarn\+resonance"),
        ("rerope", {"windw": 3}, r"unknown option 'windw': did you mean 'window'"),
        ("rerope:windw=3", {}, r"unknown option of .*'windw=3'"),
        ("leaky_rerope+linear:factor=2", {"window": "x"}, r"option window='x'"),
        ("rerope:window=3", {"window": 4}, r"give it once"),
        ("yarn+log_n", {"train_length": 1}, r"train_length=1"),
        ("ntk:factor=0.5", {}, r"factor=0.5"),
        ("abf", {}, r"'abf' needs new_base"),
    ],
)
def test_methods_that_are_refused(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        posenc.extend(small_model("llama"), method, factor=4, **options)


def test_lengths_that_are_refused() -> None:
    model = small_model("llama")
    for given, message in (
        ({}, r"depends on the new length; pass factor= or target_length="),
        ({"factor": 2, "target_length": 128}, r"give one of them"),
        ({"factor": 0.5}, r"factor=0.5"),
        ({"target_length": 32}, r"target_length=32: the model reads 64 tokens already"),
    ):
        with pytest.raises(InputError, match=message):
            posenc.extend(model, "yarn", **given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"depends on the new length"):
        posenc.extend(model, "self_extend")
    posenc.extend(model, "self_extend", group=4)
    assert posenc.extend(model, "linear", factor=1).layers == (0, 2)


def test_a_model_without_layers_that_see_all_is_refused() -> None:
    with pytest.raises(InputError, match=r"every layer of this model sees at most 32 tokens"):
        posenc.extend(small_model("mistral", sliding_window=32), "log_n")


@pytest.mark.parametrize(
    ("name", "near"), [("mamba", None), ("persimmon", None), ("lama", "llama"), ("gptneox", "gpt_neox")]
)
def test_another_models_name_is_not_taken_for_a_typing_error(name: str, near: str | None) -> None:
    model = small_model("llama")
    model.config.model_type = name
    for call in (partial(posenc.extend, method="yarn", factor=4), posenc.doctor):
        with pytest.raises(InputError, match=rf"unknown model type '{name}'") as error:
            call(model)
        assert (f"did you mean '{near}'" in str(error.value)) == ("did you mean" in str(error.value)) == bool(near)


def test_what_is_no_model_is_refused_in_a_line(tmp_path: Any) -> None:
    model = small_model("llama")
    for given in ((model, None), model.config, "demo", None, nn.Linear(2, 2)):
        message = rf"^model={re.escape(shown(given))}: pass a transformers model"
        for call in (
            *([] if given is model.config else [partial(posenc.extend, method="yarn", factor=4)]), posenc.restore, posenc.doctor,
            partial(posenc.to_hf, directory=tmp_path / "x"), partial(posenc.finetune, text="x"),
            partial(posenc.evaluate, tokenizer=None, tasks="passkey"),
        ):  # fmt: skip
            with pytest.raises(InputError, match=message):
                call(given)


def test_a_schedules_own_factor_says_how_long_texts_become():
    model = small_model("llama")
    written = posenc.extend(model, "yarn:factor=4+log_n")
    assert (written.new_length, written.stretch) == (4 * TRAINED, posenc.extend(model, "yarn+log_n", factor=4).stretch)
    # beside a length of its own it is the schedule's alone: YaRN's authors set it higher than what texts need
    report = posenc.extend(model, "yarn:factor=8", factor=4)
    assert report.new_length == 4 * TRAINED
    assert max(report.stretch) == pytest.approx(8)
    for method in ("abf:new_base=1e6", "resonance+log_n"):  # depend on no length
        assert posenc.extend(model, method).new_length is None
    for method in ("yarn", "yarn+resonance", "dynamic:factor=4"):
        with pytest.raises(InputError, match=r"depends on the new length; pass factor= or target_length="):
            posenc.extend(model, method)


@pytest.mark.parametrize("name", ["max_sequence_length", "model_max_length"])
def test_a_linear_schedule_with_the_length_before_the_stretch(name):
    """vicuna-7b-v1.5-16k: linear 4, max_position_embeddings 4096, max_sequence_length 16384."""
    linear = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    model = small_model("llama", rope_parameters=linear, max_position_embeddings=64, **{name: 256})
    report = posenc.extend(model, "linear", target_length=512)
    assert (report.trained_length, report.original_length) == (256, 256)
    wanted = small_model("llama").model.rotary_emb.inv_freq.double() / 8
    (rotation,) = model.model.rotary_emb.rotations.values()
    torch.testing.assert_close(rotation.frequencies().inv_freq, wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("stated", [1024, 64, None])
def test_a_longer_length_that_the_configuration_states_is_noted(stated):
    """Command-R: max_position_embeddings 8192, model_max_length 131072."""
    model = small_model("cohere", model_max_length=stated)
    notes = [note for note in posenc.extend(model, "yarn", factor=4).notes if "also states" in note]
    assert [note.partition(":")[0] for note in notes] == ["the configuration also states model_max_length=1024"] * (
        stated == 1024
    )
    posenc.restore(model)
    found = [(finding.name, finding.measured) for finding in posenc.doctor(model).findings]
    assert found == [("longer_length_stated", 16.0)] * (stated == 1024)


@pytest.mark.parametrize(("window", "noted"), [(32, True), (128, False)])
def test_a_window_that_no_distance_leaves_is_noted(window, noted):
    """Mistral 7B v0.1: each layer sees fewer keys than the model was trained for, and no text has longer distances."""
    model = small_model("mistral", sliding_window=window)
    notes = posenc.extend(model, "yarn", factor=4).notes
    assert any(note.startswith(f"no query sees more than {window} keys") for note in notes) is noted
    assert not any("no query sees" in note for note in posenc.extend(small_model("gemma2"), "yarn", factor=4).notes)


@pytest.mark.parametrize(
    ("kind", "factor", "original", "length", "trained", "noted"),
    [
        ("yarn", 4.0, 16, 64, 64, ""),
        ("yarn", 4.0, 64, 64, 64, "factor=4 of yarn and original_max_position_embeddings=64 make 256 tokens, and the model is for 64"),
        ("yarn", 4.0, 16, 256, 256, "factor=4 of yarn and original_max_position_embeddings=16 make 64 tokens, and the model is for 256"),
        ("yarn", 4.0, 256, 64, 256, "factor=4 of yarn and original_max_position_embeddings=256 make 1024 tokens, and the model is for 256"),
        ("default", None, 256, 64, 256, ""),
    ],
)  # fmt: skip
def test_lengths_that_contradict_are_noted_and_the_longer_one_counts(kind, factor, original, length, trained, noted):
    table = {"rope_type": kind, "rope_theta": 1e4, "factor": factor, "original_max_position_embeddings": original}
    model = small_model("llama", rope_parameters=table, max_position_embeddings=length)
    report = posenc.extend(model, "yarn", target_length=1024)
    again = posenc.extend(model, "linear", target_length=1024)
    for each in (report, again):
        assert (each.trained_length, each.original_length) == (trained, original)
        notes = [note.partition(":")[0] for note in each.notes if note.startswith("factor=")]
        assert notes == [noted] * bool(noted)
    if original > length:
        with pytest.raises(InputError, match="the model reads 256 tokens already"):
            posenc.extend(model, "yarn", target_length=128)
