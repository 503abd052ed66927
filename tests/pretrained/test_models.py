"""What posenc reads off a transformers model, against what the model itself computes."""

import math

import pytest
import torch
from torch import nn

from posenc import InputError
from posenc.pretrained.models import FAMILIES, model_structure
from references.small_models import small_model, tokens

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


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_rotation_is_the_models_own(model_type: str) -> None:
    """The tables made from the model_structure are those the rotary module gives, in the form that it gives them."""
    model = small_model(model_type)
    body = model_structure(model)
    ids = torch.arange(40)[None]
    for kind, rope in body.ropes.items():
        asked = (kind,) if body.rope_per_type else ()
        cos, sin = body.rotary(torch.zeros(1, 40, 64), ids, *asked)
        angles = ids[0, :, None].double() * rope.frequencies().inv_freq
        if body.family.table == "halves":
            angles = torch.cat((angles, angles), -1)
        elif body.family.table == "repeated":
            angles = angles.repeat_interleave(2, -1)
        torch.testing.assert_close(cos[0].double(), angles.cos(), atol=1e-5, rtol=0)
        torch.testing.assert_close(sin[0].double(), angles.sin(), atol=1e-5, rtol=0)
        assert (cos.dtype, cos.shape[-1]) == (torch.float32, angles.shape[-1])
    assert len(body.layers) == model.config.num_hidden_layers
    assert (body.head_dim, body.num_heads) == (16, 4)
    assert body.num_kv_heads == (4 if model_type == "gpt_neox" else 2)
    assert (body.trained_length, body.loaded_length) == (64, 64)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_float_tables_and_the_layout_are_as_declared(model_type: str) -> None:
    """In bfloat16 some models keep float32 tables; and turning one pair of channels moves no other channel."""
    model = small_model(model_type).to(torch.bfloat16)
    body = model_structure(model)
    asked = (next(iter(body.ropes)),) if body.rope_per_type else ()
    cos, sin = body.rotary(torch.zeros(1, 3, 64, dtype=torch.bfloat16), torch.arange(3)[None], *asked)
    assert (cos.dtype == torch.float32) is body.family.float_table
    import sys

    apply = sys.modules[type(body.layers[0].module).__module__].apply_rotary_pos_emb
    q = torch.zeros(1, 1, 3, body.rope.rotary_dim)
    q[..., 0] = 1.0
    turned, _ = apply(q, q, cos.float(), sin.float())
    moved = turned[0, 0, 2].nonzero().flatten().tolist()
    assert moved == ([0, 1] if body.layout == "interleaved" else [0, body.rope.rotary_dim // 2])


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


def test_layer_types_windows_and_nope() -> None:
    gemma = model_structure(small_model("gemma3_text"))
    assert [(x.layer_type, x.window) for x in gemma.layers] == [("sliding_attention", 24), ("full_attention", None)]
    assert gemma.rope_per_type
    assert {t: r.rope_theta for t, r in gemma.ropes.items()} == {
        "sliding_attention": 10000.0,
        "full_attention": 1000000.0,
    }
    assert [x.softcap for x in model_structure(small_model("gemma2")).layers] == [50.0, 50.0]
    assert [x.rotates for x in model_structure(small_model("smollm3")).layers] == [True, False, True, False]
    mistral = model_structure(small_model("mistral", sliding_window=32))
    assert [x.window for x in mistral.layers] == [32, 32]


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"unknown model type 'gpt2': .*known are .*llama"):
        model_structure(small_model("gpt2", n_embd=32, n_head=2, n_layer=1))
    with pytest.raises(InputError, match=r"model=Linear: pass a transformers model"):
        model_structure(nn.Linear(2, 2))
    model = small_model("llama")
    model.config.rope_parameters = THETA | {"rope_type": "linear", "factor": 4.0}
    with pytest.raises(InputError, match=r"changed after loading, which does nothing"):
        model_structure(model)
    model.config.rope_parameters = THETA | {"rope_type": "mrope"}
    with pytest.raises(InputError, match=r"unknown rope_type 'mrope'"):
        model_structure(model)


def test_rounded_frequencies_are_known_and_what_has_run_is_no_obstacle() -> None:
    model_structure(small_model("llama").to(torch.bfloat16))
    model_structure(small_model("llama").to(torch.float16))
    grown = small_model("llama", rope_parameters=THETA | {"rope_type": "dynamic", "factor": 4.0})
    with torch.no_grad():
        grown(tokens(1, 100))  # after which the module keeps other frequencies
    assert model_structure(grown).rope.frequencies().inv_freq[-1] == 10000.0 ** (-14 / 16)
    with torch.device("meta"):
        assert model_structure(small_model("llama")).rope.rotary_dim == 16


def test_the_former_name_is_deprecated() -> None:
    import posenc.pretrained

    with pytest.warns(DeprecationWarning, match=r"model_structure"):
        assert posenc.pretrained.anatomy is model_structure
