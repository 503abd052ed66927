"""Vision models of timm at another image size, against timm's own set_input_size."""

import math

import pytest
import torch
from torch.testing import assert_close

import posenc
from references.small_vision import SIZE, TIMM, assert_unchanged, images, of_timm, of_transformers, state

METHODS = {
    "transformers": {
        "learned table": {
            "vit": "bicubic", "clip_vision_model": "bicubic", "dinov2": "bicubic", "beit": "bicubic",
            "llama4_vision_model": "bicubic", "dinov2_with_registers": "bicubic_antialias",
        },
        "table of offsets": {"beit": "bilinear", "data2vec-vision": "bilinear", "swin": "bicubic"},
        "sinusoidal table": {"vit_mae": "computed anew"},
        "function of offsets": {"swinv2": ""},
        "rotation": {"dinov3_vit": "", "pixtral": "", "llama4_vision_model": ""},
    },
    "timm": {
        "learned table": dict.fromkeys(("vit", "registers", "dynamic", "deit", "beit", "eva", "mixed"), "bicubic_antialias"),
        "table of offsets": dict.fromkeys(("beit", "beit_shared", "relpos", "swin"), "geometric"),
        "function of offsets": dict.fromkeys(("relpos_mlp", "swin_v2", "swin_v2_cr"), ""),
        "rotation": dict.fromkeys(("eva", "dinov3", "mixed"), ""),
    },
}  # fmt: skip
"""The table of docs/vision-pretrained.md: how a part is resized where no method is asked for; "": it is not."""


@pytest.mark.parametrize("library", METHODS)
def test_the_default_of_each_model_is_that_of_the_page(library):
    found = {}
    for name in {name for names in METHODS[library].values() for name in names}:
        model = of_timm(name) if library == "timm" else of_transformers(name)
        for part in posenc.resize(model, 64, **({"window_size": 8} if name in ("swin", "swinv2") else {})).parts:
            found.setdefault(part.kind, {})[name] = part.method
    assert found == METHODS[library]


@pytest.mark.parametrize("size", [(48, 48), (48, 64), (32, 16)], ids=str)
@pytest.mark.parametrize("kind", TIMM)
def test_it_is_timm_at_the_new_size(kind, size):
    model, theirs = of_timm(kind), of_timm(kind)
    want_before, before = model(images(SIZE, SIZE)), state(model)
    theirs.set_input_size(img_size=size)
    report = posenc.resize(model, size)
    tables = dict(theirs.named_parameters())
    for name, parameter in model.named_parameters():
        assert_close(parameter, tables[name], rtol=1e-5, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")
    assert_close(model(images(*size)), theirs(images(*size)), rtol=0, atol=1e-4)
    assert report.difference < 1e-4
    assert report.parts
    made, ours = (dict(m.named_buffers()) for m in (theirs, model))
    assert made.keys() == ours.keys()
    assert all(torch.equal(b, ours[name]) for name, b in made.items())
    assert posenc.restore(model)
    assert_unchanged(model, before)
    assert torch.equal(model(images(SIZE, SIZE)), want_before)
    assert not posenc.restore(model)


@pytest.mark.parametrize("kind", ["vit", "registers", "eva", "dinov3", "mixed"])
def test_it_is_timm_interpolating_at_every_call(kind):
    dynamic = of_timm(kind, dynamic_img_size=True)
    model = of_timm(kind)
    model.load_state_dict(dynamic.state_dict())
    posenc.resize(model, (48, 64))
    assert_close(model(images(48, 64)), dynamic(images(48, 64)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["vit", "beit", "eva"])
def test_its_weights_fit_what_timm_makes_for_the_size(kind):
    model = of_timm(kind)
    posenc.resize(model, (48, 64))
    made = of_timm(kind, seed=1, img_size=(48, 64))
    made.load_state_dict(model.state_dict())
    assert_close(made(images(48, 64)), model(images(48, 64)), rtol=0, atol=1e-6)


def test_what_timm_notes_of_a_size_is_noted_and_taken_back():
    model = of_timm("vit")
    posenc.resize(model, (48, 64))
    assert tuple(model._traits["img_size"]) == (48, 64)
    assert model.patch_embed.img_size == (48, 64)
    posenc.restore(model)
    assert not hasattr(model, "_traits")
    assert model.patch_embed.grid_size == (4, 4)


def test_the_windows_of_timms_swin():
    model = of_timm("swin")
    report = posenc.resize(model, 48, window_size=3, method="bicubic")
    assert {(part.new, part.method) for part in report.parts} == {((3, 3), "bicubic")}


def test_timms_swin_v2_counts_offsets_in_the_new_window():
    model = of_timm("swin_v2")
    before = model.layers[0].blocks[0].attn.relative_coords_table[0, 3, 4].clone()  # one patch to the right
    assert "timm scales offsets to the new window" in str(posenc.resize(model, 64))
    after = model.layers[0].blocks[0].attn.relative_coords_table[0, 7, 8]
    assert_close(before, torch.tensor([0.0, math.log2(1 + 8 / 3) / 3]))
    assert_close(after, torch.tensor([0.0, math.log2(1 + 8 / 7) / 3]))
    assert "timm scales" not in str(posenc.resize(model, SIZE))
    for kind in ("relpos_mlp", "swin_v2_cr"):  # which count patches
        report = str(posenc.resize(of_timm(kind), 64))
        assert "function of offsets" in report
        assert "timm scales" not in report


def test_a_model_without_positions_is_reported_so():
    model = of_timm("eva", use_abs_pos_emb=False, use_rot_pos_emb=False)
    report = posenc.resize(model, 48)
    assert report.parts == ()
    assert "no table, function or rotation of positions was recognised in it" in str(report)
