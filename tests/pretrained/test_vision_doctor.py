"""posenc.doctor on vision models: each hazard is found in a model that has it, and in no other."""

import copy

import pytest
import torch
import transformers

import posenc
from posenc.pretrained.findings import VISION_FINDINGS
from posenc.pretrained.vision.models import FAMILIES
from references.small_vision import SIZE, images, of_timm, of_transformers

CASES = {
    "rows_for_columns": (lambda: of_transformers("beit", image_size=[32, 48]), lambda: of_transformers("beit")),
    "table_of_zeros": (lambda: new_mae(), lambda: of_transformers("vit_mae")),
    "shift_lost": (lambda: after_a_small_image(), lambda: of_transformers("swin")),
    "small_images_stay": (lambda: of_transformers("swin"), lambda: of_transformers("swinv2")),
    "below_a_window": (lambda: of_transformers("swin"), lambda: of_transformers("swinv2")),
    "square_only": (lambda: of_transformers("vit", image_size=[16, 64]), lambda: of_transformers("vit")),
    "formula_interpolated": (lambda: of_transformers("vit_mae"), lambda: of_transformers("vit")),
    "decoder_in_a_line": (lambda: of_transformers("vit_mae"), lambda: of_transformers("vit_mae").vit),
    "another_sampling": (lambda: of_transformers("dinov2"), lambda: of_transformers("dinov2_with_registers")),
    "one_size": (lambda: of_transformers("deit"), lambda: of_transformers("dinov3_vit")),
}  # fmt: skip
"""A finding -> a model that has it, and one like it that does not."""


def new_mae():
    return transformers.ViTMAEModel(of_transformers("vit_mae").config).eval()


def after_a_small_image():
    model = of_transformers("swin")
    with torch.no_grad():
        model(images(16, 16))
    return model


def found(model):
    return {finding.name: finding for finding in posenc.doctor(model).findings}


def test_each_finding_has_a_case():
    assert CASES.keys() == VISION_FINDINGS.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_finding_is_made_where_it_holds(name):
    sick, well = (make() for make in CASES[name])
    finding = found(sick)[name]
    known = VISION_FINDINGS[name]
    assert (finding.severity, finding.remedy) == (known.severity, known.remedy)
    assert name not in found(well)
    assert posenc.doctor(sick).wrong == (finding.severity == "wrong") or name not in ("table_of_zeros", "shift_lost")


def test_a_table_of_zeros_beside_one_of_offsets_is_no_finding():
    model = transformers.BeitModel(of_transformers("beit").config).eval()
    assert not model.embeddings.position_embeddings.any()
    assert found(model) == {}


def test_a_small_image_changes_later_outputs_of_swin():
    """The hazard that the finding names, without posenc."""
    model, pixels = of_transformers("swin"), images(SIZE, SIZE)
    with torch.no_grad():
        before = model(pixels).last_hidden_state
        assert torch.equal(model(pixels).last_hidden_state, before)
        model(images(16, 16))
        off = float((model(pixels).last_hidden_state - before).abs().max())
    assert off > 0.01
    assert found(of_transformers("swin"))["small_images_stay"].measured > 0.01
    assert found(model)["shift_lost"].measured == 1.0, "the second layer of the first stage"


def test_beit_swaps_rows_and_columns():
    """The number is that of the biases themselves, and zero for squares."""
    model = of_transformers("beit", image_size=[32, 48])
    module = model.layers[0].relative_position_bias
    table, index = module.relative_position_bias_table, module.generate_relative_position_index((4, 6))
    off = float((module((4, 6))[0] - table[index].permute(2, 0, 1)).abs().max().detach())
    assert found(model)["rows_for_columns"].measured == pytest.approx(off)
    assert off > 0.5


def test_a_square_number_of_patches_is_silently_wrong():
    model, table = of_transformers("vit", image_size=[16, 64]), None
    with torch.no_grad():
        theirs = model(images(32, 128), interpolate_pos_encoding=True).last_hidden_state
        posenc.resize(model, (32, 128))
        assert (model(images(32, 128)).last_hidden_state - theirs).abs().max() > 0.1
        table = model.embeddings.position_embeddings
    assert table.shape[1] == 1 + 4 * 16
    posenc.restore(model)
    assert found(model)["square_only"].measured > 0.1
    assert found(of_transformers("vit", image_size=[32, 48]))["square_only"].measured is None, "the model fails"


def test_the_offset_of_dinov2s_authors_is_a_share_of_the_rows():
    finding = found(of_transformers("dinov2"))["another_sampling"]
    assert 0.001 < finding.measured < 0.5
    model, theirs = of_transformers("dinov2"), of_transformers("dinov2")
    posenc.resize(model, 64)
    posenc.resize(theirs, 64, method="bicubic_offset")
    first, second, rows = (
        m.embeddings.position_embeddings.detach()[0, 1:] for m in (model, theirs, of_transformers("dinov2"))
    )
    assert finding.measured == pytest.approx(float((first - second).std() / rows.std()), rel=1e-4)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_model_is_described_and_left_as_it_is(model_type):
    model = of_transformers(model_type)
    state = {n: t.clone() for n, t in model.state_dict().items()}
    plain = copy.deepcopy(model.config.to_dict())
    report = posenc.doctor(model)
    assert not report.wrong
    assert str(report).startswith(f"{model_type} of transformers: float32, images of 32 x 32")
    assert report.model.parts
    assert report.to_dict()["model"]["image_size"] == (32, 32)
    assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
    assert model.config.to_dict() == plain


def test_after_resize_the_report_names_the_old_size_and_no_hazards():
    model = of_transformers("vit_mae")
    posenc.resize(model, 48)
    report = posenc.doctor(model)
    assert report.model.resized == (32, 32)
    assert "resized: from 32 x 32" in str(report)
    assert {part.kind for part in report.model.parts} == {"sinusoidal table"}


def test_a_model_of_timm():
    report = posenc.doctor(of_timm("beit"))
    assert [finding.name for finding in report.findings] == ["one_size"]
    assert {part.kind for part in report.model.parts} == {"learned table", "table of offsets"}
    assert posenc.doctor(of_timm("dynamic")).findings == ()
    assert {part.kind for part in posenc.doctor(of_timm("dinov3")).model.parts} == {"rotation"}


def test_other_models_are_refused():
    config = transformers.AutoConfig.for_model("convnext", hidden_sizes=[8], depths=[1], num_stages=1)
    with pytest.raises(posenc.InputError, match=r"convnext"):
        posenc.doctor(transformers.AutoModel.from_config(config))
    for call in (posenc.doctor, lambda model: posenc.resize(model, 48)):
        with pytest.raises(posenc.InputError, match=r"model: it has no weights"):
            call(of_transformers("vit").to("meta"))
