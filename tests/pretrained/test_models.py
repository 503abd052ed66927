"""What posenc reads off a transformers model, against what the model itself computes."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, FalconConfig

import posenc
from posenc import InputError, Positions
from posenc.pretrained.attach import RotaryModule
from posenc.pretrained.families import FAMILIES, REFUSED, UNREAD, family_of
from posenc.pretrained.models import ModelStructure, model_structure
from references.small_models import DECODERS, small_model, tokens

THETA = {"rope_theta": 10000.0}
SCHEDULES = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, betas": {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0, "truncate": False},
    "yarn, DeepSeek": {"factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.7},
    "llama3": {
        "factor": 4.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
    "longrope": {
        "short_factor": [1.0 + c / 8 for c in range(8)], "long_factor": [2.0] * 8, "original_max_position_embeddings": 64,
    },
    "dynamic": {"factor": 4.0},
    "proportional": {"partial_rotary_factor": 0.5},
}  # fmt: skip


def rotary_module(body: ModelStructure, identity: bool = False) -> RotaryModule:
    """posenc's module with the frequencies that the model was loaded with."""
    rotations = {kind: rope.rotation(rope.schedule) for kind, rope in body.ropes.items()}
    return RotaryModule(rotations, frozenset(rotations if identity else ()), body.family, body.rotary)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_tables_are_those_of_the_models_module(model_type: str, dtype: torch.dtype) -> None:
    body = model_structure(small_model(model_type))
    x, ids = torch.zeros(1, 40, 64, dtype=dtype), torch.arange(40)[None]
    if body.family.table == "sections":  # of positions that differ by axis
        ids = torch.stack((ids, ids.flip(1), ids // 2))
    for kind in body.ropes:
        asked = (kind,) if body.rope_per_type else ()
        found, wanted = (module(x, ids, *asked) for module in (rotary_module(body), body.rotary))
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5 if dtype == torch.float32 else 5e-3, rtol=0)


@pytest.mark.parametrize("model_type", FAMILIES)
@torch.no_grad()
def test_queries_and_keys_are_rotated_as_declared(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reaches attention is the rotation of what reaches it where the rotary module turns nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def watched(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        calls.append((module, q, k))
        return v.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]), None

    monkeypatch.setitem(AttentionInterface._global_mapping, "watched", watched)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "watched", eager_mask)
    model = small_model(model_type)
    for module in model.modules():
        if "Norm" in type(module).__name__ and getattr(module, "weight", None) is not None:
            module.weight.data.uniform_(0.5, 2.0)
    body = model_structure(model)
    model.set_attn_implementation("watched")
    model(tokens(1, 20), use_cache=False)
    turned, calls = calls, []
    body.decoder.rotary_emb = rotary_module(body, identity=True)
    model(tokens(1, 20), use_cache=False)
    layers = {layer.module: layer for layer in body.layers}
    assert len(calls) == len(layers)
    alike = []
    for (module, q, k), (_, raw_q, raw_k) in zip(turned, calls, strict=True):
        layer = layers[module]
        assert q.shape[-1] == layer.head_dim
        if layer.rotates:
            rope = body.ropes[layer.layer_type]
            at = Positions.arange(20, 0)
            assert not torch.allclose(q, raw_q, atol=0.1)
            raw_q, raw_k = rope.rotation(rope.schedule).rotate(raw_q, raw_k[:, :, :20], at)
        alike.append(torch.allclose(q, raw_q, atol=1e-4, rtol=1e-4))
        alike.append(torch.allclose(k[:, :, :20], raw_k, atol=1e-4, rtol=1e-4))
    assert all(alike)


INDEXED = ("deepseek_v32", "glm_moe_dsa")
"""Types that also cache what their indexers read."""


def test_the_structure_of_every_type() -> None:
    for model_type in DECODERS:
        model = small_model(model_type)
        body = model_structure(model)
        assert body.model_type == model_type
        assert body.trained_length == body.loaded_length == 64
        cache = DynamicCache(config=body.config)
        with torch.no_grad():
            model(tokens(1, 40), past_key_values=cache)
        filled = [
            each
            for layer in cache.layers
            for each in (getattr(layer, "keys", None), getattr(layer, "values", None))
            if each is not None
        ]
        if model_type not in INDEXED:
            grows = [each for each in filled if each.shape[2] == 40]
            assert body.cached_numbers == sum(x[0, :, 0].numel() for x in grows), model_type
            windows = {layer.window for layer in body.layers if layer.window is not None and layer.window < 40}
            stays = [each for each in filled if each.shape[2] != 40]  # transformers stores all of a window but one key
            assert {each.shape[2] + 1 for each in stays} <= windows
            assert body.cached_in_windows == sum(x[0].numel() // x.shape[2] * (x.shape[2] + 1) for x in stays), (
                model_type
            )
    assert model_structure(small_model("gpt_neox")).num_kv_heads == 4
    assert model_structure(small_model("llama")).num_kv_heads == 2


@pytest.mark.parametrize("name", SCHEDULES)
def test_scaled_models(name: str) -> None:
    kind = name.split(",")[0]
    given = THETA | {"rope_type": kind} | SCHEDULES[name]
    body = model_structure(small_model("llama", max_position_embeddings=256, rope_parameters=given))
    found = body.rope.frequencies()
    torch.testing.assert_close(found.inv_freq, body.rotary.original_inv_freq.double(), rtol=1e-6, atol=0)
    assert math.isclose(found.attention_factor, body.rotary.attention_scaling, rel_tol=1e-12)
    assert body.loaded_length == 256
    assert body.trained_length == SCHEDULES[name].get("original_max_position_embeddings", 256)
    assert body.rope.scaled is (kind != "proportional")


def test_longrope_has_two_sets() -> None:
    given = THETA | {"rope_type": "longrope"} | SCHEDULES["longrope"]
    rope = model_structure(small_model("llama", max_position_embeddings=256, rope_parameters=given)).rope
    assert rope.at(64)["length"] == 64
    assert rope.at(65)["length"] == 65


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"'gpt2' is not supported: .* learned table: posenc.extend takes"):
        model_structure(small_model("gpt2", n_embd=32, n_head=2, n_layer=1))
    for model_type in ("gptj", "bloom"):
        model = small_model(model_type, n_embd=32, n_head=2, n_layer=1, rotary_dim=4)
        with pytest.raises(InputError, match=rf"'{model_type}' is not supported: {REFUSED[model_type]}"):
            model_structure(model)
    for model_type, why in UNREAD.items():
        with pytest.raises(InputError, match=rf"'{model_type}' is not supported: {why}"):
            family_of(model_type)
    with pytest.raises(InputError, match="its layers do not rotate: alibi=true"):
        family_of("falcon", FalconConfig(alibi=True))
    with pytest.raises(InputError, match="an odd number of its channels rotates"):
        posenc.extend(odd := small_model("gpt_neox", hidden_size=80), "yarn", factor=2)
    assert posenc.doctor(odd).findings == ()
    model = small_model("llama")
    model.config.rope_parameters = THETA | {"rope_type": "linear", "factor": 4.0}
    with pytest.raises(InputError, match=r"changed after loading; reload"):
        model_structure(model)
    model.config.rope_parameters = THETA | {"rope_type": "mrope"}
    with pytest.raises(InputError, match=r"unknown rope_type 'mrope'"):
        model_structure(model)


def test_the_page_names_every_type() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/longer_context.md").read_text().split("## Model types")[1].split("\n## ")[0]
    named = page + (root / "benchmarks/model_types.md").read_text()
    assert f"{len(FAMILIES)} model types are supported" in page
    for kind in (*FAMILIES, *UNREAD, *(kind for kind in REFUSED if kind != "inkling2_text")):
        assert f"`{kind}`" in named, kind


def test_a_type_declared_by_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("persimmon")
    with pytest.raises(InputError, match=r"FAMILIES\['persimmon'\] = posenc.pretrained.families.FAMILIES\['llama'\]"):
        posenc.extend(model, "yarn", factor=4)
    monkeypatch.setitem(FAMILIES, "persimmon", FAMILIES["llama"])
    assert posenc.extend(model, "yarn", factor=4).layers == (2, 2)


def test_rounded_frequencies_are_known_and_what_has_run_is_no_obstacle() -> None:
    model_structure(small_model("llama").to(torch.bfloat16))
    model_structure(small_model("llama").to(torch.float16))
    grown = small_model("llama", rope_parameters=THETA | {"rope_type": "dynamic", "factor": 4.0})
    with torch.no_grad():
        grown(tokens(1, 100))  # after which the module keeps other frequencies
    assert model_structure(grown).rope.frequencies().inv_freq[-1] == 10000.0 ** (-14 / 16)
    with torch.device("meta"):
        assert model_structure(small_model("llama")).rope.rotary_dim == 16
