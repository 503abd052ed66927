"""Vision models at another image size, against what transformers and timm make of them themselves."""

import copy
import inspect

import pytest
import torch
import transformers
from torch.testing import assert_close

import posenc
from posenc import InputError
from posenc.pretrained.vision.models import FAMILIES, find_vision_model
from references.small_vision import SIZE, assert_unchanged, images, of_transformers, state

SQUARE_ONLY = tuple(name for name, family in FAMILIES.items() if family.square)
FREE = tuple(name for name in FAMILIES if name not in SQUARE_ONLY)
SIZES = [*((name, (48, 48)) for name in FAMILIES), *((name, (48, 64)) for name in FREE), ("vit", (16, 24))]
EACH = pytest.mark.parametrize(
    ("model_type", "size"), SIZES, ids=lambda x: x if isinstance(x, str) else "x".join(map(str, x))
)


def out(model, pixels, **options):
    """The output of the image tower."""
    tower = getattr(model, "vit", model)
    if "noise" in inspect.signature(type(tower).forward).parameters:
        count = pixels.shape[2] * pixels.shape[3] // 64
        options["noise"] = torch.linspace(0, 1, count).expand(len(pixels), -1)
    with torch.no_grad():
        found = tower(pixel_values=pixels, **options)
    return found.last_hidden_state


@EACH
def test_it_is_the_library_interpolating_at_every_call(model_type, size):
    model, pixels = of_transformers(model_type), images(*size)
    takes = inspect.signature(type(getattr(model, "vit", model)).forward).parameters
    asked = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in takes else {}
    want = out(model, pixels, **asked) if FAMILIES[model_type].interpolates else None
    before = out(model, images(SIZE, SIZE))
    report = posenc.resize(model, size)
    assert (report.library, report.model_type, report.old, report.new) == ("transformers", model_type, (32, 32), size)
    assert report.verified
    if model_type == "vit_mae":
        assert report.difference > 1e-3, "a formula computed anew is not a table that was interpolated"
    elif want is not None:
        assert_close(out(model, pixels), want, rtol=0, atol=2e-6)
        assert report.difference <= 2e-6
    assert posenc.restore(model)
    assert torch.equal(out(model, images(SIZE, SIZE)), before)


@EACH
def test_plain_transformers_loads_it_at_the_new_size(model_type, size, tmp_path):
    model, pixels = of_transformers(model_type), images(*size)
    posenc.resize(model, size, verify=False)
    model.save_pretrained(tmp_path)
    plain, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    found = plain.config.image_size
    assert tuple(found if isinstance(found, list | tuple) else (found, found)) == size
    assert torch.equal(out(plain.eval(), pixels), out(model, pixels))
    made, mine = state(plain)[1], state(model)[1]
    other = {name for name in made if not name.rpartition(".")[2].startswith("_") and made[name] != mine[name]}
    assert {name for name in other if not name.endswith("name_or_path")} == set(), (
        "each attribute is what transformers makes for the size"
    )


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_same_size_changes_nothing(model_type):
    model = of_transformers(model_type)
    tensors, want = {n: t.clone() for n, t in model.state_dict().items()}, out(model, images(SIZE, SIZE))
    report = posenc.resize(model, SIZE)
    assert report.difference in (0.0, None)
    assert not any(part.method for part in report.parts)
    assert all(torch.equal(t, tensors[n]) for n, t in model.state_dict().items())
    assert torch.equal(out(model, images(SIZE, SIZE)), want)


@EACH
def test_restore_puts_all_back_bit_for_bit(model_type, size):
    model = of_transformers(model_type)
    before = state(model)
    posenc.resize(model, size, verify=False)
    posenc.resize(model, 64, verify=False)
    assert posenc.restore(model)
    assert_unchanged(model, before)
    assert not posenc.restore(model)


def test_resizing_again_starts_from_the_models_own_table():
    model, other = of_transformers("vit"), of_transformers("vit")
    posenc.resize(model, (16, 48))
    posenc.resize(model, 64)
    posenc.resize(other, 64)
    assert torch.equal(model.embeddings.position_embeddings, other.embeddings.position_embeddings)


@pytest.mark.parametrize(("model_type", "prefix"), [("vit", 1), ("deit", 2), ("ijepa", 0), ("siglip_vision_model", 0)])
def test_rows_of_tokens_without_a_place_are_unchanged(model_type, prefix):
    model = of_transformers(model_type)
    weight = lambda: dict(model.named_parameters())[part.where]  # noqa: E731
    (part,) = posenc.resize(model, SIZE).parts
    before = weight().detach().reshape(-1, 32)[:prefix].clone()
    (part,) = posenc.resize(model, 64).parts
    assert (part.kind, part.prefix, part.old, part.new, part.method) == (
        "learned table",
        prefix,
        (4, 4),
        (8, 8),
        "bicubic",
    )
    assert torch.equal(weight().detach().reshape(-1, 32)[:prefix], before)


def test_llama4_has_its_class_token_last():
    model = of_transformers("llama4_vision_model")
    last = model.positional_embedding_vlm[-1].detach().clone()
    report = posenc.resize(model, 64)
    assert {part.kind for part in report.parts} == {"learned table", "rotation"}
    assert torch.equal(model.positional_embedding_vlm[-1], last)
    made = of_transformers("llama4_vision_model", image_size=64)
    assert torch.equal(model.rotary_embedding.freqs_ci, made.rotary_embedding.freqs_ci)


@pytest.mark.parametrize("side", [2, 5])
def test_the_table_of_mae_is_computed_anew(side):
    model = of_transformers("vit_mae")
    report = posenc.resize(model, 8 * side)
    assert {(part.kind, part.method) for part in report.parts} == {("sinusoidal table", "computed anew")}
    mae = transformers.models.vit_mae.modeling_vit_mae
    for table in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        theirs = mae.build_2d_sinusoidal_position_embedding(side, side, table.shape[-1], cls_token=True)
        half = table.shape[-1] // 2  # the authors have x before y
        assert_close(table[0].data, torch.cat((theirs[:, half:], theirs[:, :half]), -1).float(), rtol=0, atol=1e-6)
        assert not table.requires_grad
    interpolated = of_transformers("vit_mae")
    posenc.resize(interpolated, 8 * side, method="bicubic")
    assert (interpolated.decoder.decoder_pos_embed - model.decoder.decoder_pos_embed).abs().max() > 0.1


@pytest.mark.parametrize("model_type", ["swin", "swinv2"])
def test_windows_change_where_it_is_asked(model_type):
    model = of_transformers(model_type)
    report = posenc.resize(model, 48, window_size=6)
    assert model.config.window_size == 6
    assert {(part.old, part.new) for part in report.parts} == {((4, 4), (6, 6))}
    if model_type == "swinv2":
        assert model.config.pretrained_window_sizes == [4, 4], "offsets keep the scale they were trained in"
    want = out(model, images(48, 48))
    plain = type(model)(model.config).eval()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(out(plain, images(48, 48)), want)
    posenc.restore(model)
    assert model.config.window_size == 4


def test_the_tables_of_swin_are_resized_as_its_authors_do():
    model = of_transformers("swin")
    tables = [t.detach() for n, t in model.named_parameters() if n.endswith("bias_table")]
    posenc.resize(model, 48, window_size=6)
    new = [t.detach() for n, t in model.named_parameters() if n.endswith("bias_table")]
    for old, found in zip(tables, new, strict=True):
        # microsoft/Swin-Transformer, utils.py: the table as an image of offsets, bicubic
        plane = torch.nn.functional.interpolate(old.T.reshape(1, -1, 7, 7), size=(11, 11), mode="bicubic")
        assert_close(found, plane.reshape(-1, 121).T)


# ---------------------------------------------------------------- models of images and text, heads, wrappers, dtypes


def test_a_model_of_images_and_text_has_its_tower_resized(tmp_path):
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        vision_config=shape | {"image_size": 32, "patch_size": 8}, text_config=shape | {"max_position_embeddings": 9}
    )
    model = transformers.CLIPModel(config).eval()
    report = posenc.resize(model, 48)
    (part,) = report.parts
    assert part.where == "vision_model.embeddings.position_embedding.weight"
    assert model.config.vision_config.image_size == 48
    model.save_pretrained(tmp_path)
    plain = transformers.CLIPModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(
            plain.get_image_features(images(48, 48)).pooler_output,
            model.get_image_features(images(48, 48)).pooler_output,
        )
    assert posenc.restore(model)
    assert model.config.vision_config.image_size == 32


def test_the_report_on_a_model_that_writes_about_images_names_its_processor(tmp_path):
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 8, "projection_dim": 8}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**shape | vision), image_token_id=3,
        text_config=transformers.LlamaConfig(**shape, vocab_size=20),
    )  # fmt: skip
    model = transformers.LlavaForConditionalGeneration(config).eval()
    assert "as many image tokens as there are patches now" in str(posenc.resize(model, 48))
    model.save_pretrained(tmp_path)
    plain = transformers.LlavaForConditionalGeneration.from_pretrained(tmp_path).eval()
    tokens = torch.tensor([[1, *[3] * 36, 2]])
    with torch.no_grad():
        here, there = (m(input_ids=tokens, pixel_values=images(48, 48)[:1]).logits for m in (model, plain))
    assert torch.equal(here, there)


def test_a_size_that_is_no_multiple_of_the_patch_may_stay_and_is_restored():
    """As the 384 pixels of SigLIP so400m, with patches of 14."""
    model = of_transformers("siglip_vision_model", image_size=37)
    assert posenc.resize(model, 37).parts[0].new == (4, 4)
    with pytest.raises(InputError, match=r"image_size=\(53, 53\): must be a multiple of .* 8 x 8; pass \(56, 56\)"):
        posenc.resize(model, 53)
    want = out(model, images(56, 56), interpolate_pos_encoding=True)
    posenc.resize(model, 56)
    assert_close(out(model, images(56, 56)), want, rtol=0, atol=2e-6)
    posenc.restore(model)
    assert model.config.image_size == 37


def test_adapters_are_left_alone():
    peft = pytest.importorskip("peft")
    model = of_transformers("vit")
    want = of_transformers("vit")
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], r=2))
    report = posenc.resize(adapted, 48)
    posenc.resize(want, 48)
    assert [part.where for part in report.parts] == ["embeddings.position_embeddings"]
    with torch.no_grad():
        assert torch.equal(adapted(images(48, 48)).last_hidden_state, out(want, images(48, 48)))
    assert posenc.restore(adapted)


def test_a_copy_of_a_resized_model_is_restored_alone():
    model = of_transformers("vit")
    posenc.resize(model, 48)
    other = copy.deepcopy(model)
    assert posenc.restore(other)
    assert other.embeddings.position_embeddings.shape[1] == 17
    assert model.embeddings.position_embeddings.shape[1] == 37
    assert posenc.restore(model)


def test_several_towers_are_named():
    both = torch.nn.ModuleList([of_transformers("vit"), of_transformers("deit")])
    with pytest.raises(InputError, match=r"ModuleList has several image towers \(0, 1\): pass one of them"):
        posenc.resize(both, 48)


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("BeitBackbone", "beit"), ("Dinov2Backbone", "dinov2"), ("Dinov2ForImageClassification", "dinov2"),
        ("SwinBackbone", "swin"), ("ViTForMaskedImageModeling", "vit"), ("DeiTForImageClassificationWithTeacher", "deit"),
        ("CLIPVisionModelWithProjection", "clip_vision_model"),
    ],
)  # fmt: skip
def test_models_around_a_tower(name, model_type, tmp_path):
    model = getattr(transformers, name)(of_transformers(model_type).config).eval()
    assert posenc.resize(model, 48).difference == 0
    model.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        here, there = (m(images(48, 48)).to_tuple() for m in (model, plain))
    for one, other in zip(here, there, strict=True):
        assert_close(one, other, rtol=0, atol=0)
    assert posenc.restore(model)


def test_a_model_with_a_head_is_resized(tmp_path):
    model = transformers.ViTForImageClassification(of_transformers("vit").config).eval()
    report = posenc.resize(model, (64, 32))
    assert [part.where for part in report.parts] == ["vit.embeddings.position_embeddings"]
    model.save_pretrained(tmp_path)
    plain = transformers.AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(plain(images(64, 32)).logits, model(images(64, 32)).logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_tables_are_interpolated_in_float32_or_better(dtype):
    model = of_transformers("vit").to(dtype)
    table = model.embeddings.position_embeddings.detach().clone()
    posenc.resize(model, 48)
    exact = of_transformers("vit").double()
    exact.embeddings.position_embeddings.data.copy_(table)
    posenc.resize(exact, 48)
    found = model.embeddings.position_embeddings
    assert found.dtype == dtype
    tolerance = 2**-8 if dtype == torch.bfloat16 else 0
    assert_close(found.detach().double(), exact.embeddings.position_embeddings.detach(), rtol=tolerance, atol=1e-6)


def test_a_model_that_was_cast_in_between_is_restored_in_its_new_dtype():
    model = of_transformers("clip_vision_model")
    before = model.embeddings.position_embedding.weight.detach().clone()
    posenc.resize(model, 48)
    model.double()
    posenc.restore(model)
    assert torch.equal(model.embeddings.position_embedding.weight, before.double())
    assert model.embeddings.position_ids.dtype == torch.long


# ---------------------------------------------------------------- refusals


REFUSED = {
    "no multiple": ("vit", {"image_size": 33}, r"image_size=\(33, 33\): must be a multiple of .* 8 x 8; pass \(32, 32\)"),
    "zero": ("vit", {"image_size": 0}, r"image_size=0: pass pixels"),
    "three": ("vit", {"image_size": (32, 32, 32)}, r"image_size=\(32, 32, 32\): pass pixels, as 384 or \(height, width\)"),
    "a text": ("vit", {"image_size": "384"}, r"image_size='384'"),
    "method": ("vit", {"image_size": 48, "method": "bicubik"}, r"unknown method for this table 'bicubik'.*'bicubic'"),
    "method of offsets": ("vit", {"image_size": 48, "method": "geometric"}, r"unknown method for this table"),
    "windows": ("vit", {"image_size": 48, "window_size": 6}, r"window_size=6: vit has no windows"),
    "no window": ("swin", {"image_size": 48, "window_size": 0}, r"window_size=0"),
    "one number": ("clip_vision_model", {"image_size": (48, 64)}, r"not square \(its configuration has one number"),
    "columns": ("beit", {"image_size": (48, 64)}, r"not square \(it takes the rows of its tables of offsets for columns\)"),
    "at every call": ("dinov2", {"image_size": (48, 64)}, r"not square .*; the square one reads them already"),
    "below a window": ("swin", {"image_size": 12}, r"image_size=\(12, 12\): transformers cannot read such images with a swin"),
}  # fmt: skip


@pytest.mark.parametrize("resized", [False, True])
@pytest.mark.parametrize(("model_type", "options", "match"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused_and_changes_nothing(model_type, options, match, resized):
    model = of_transformers(model_type)
    if resized:
        posenc.resize(model, 64)
    before = state(model)
    with pytest.raises(InputError, match=match):
        posenc.resize(model, **options)
    assert_unchanged(model, before)


def test_models_that_are_not_known_are_named():
    with pytest.raises(
        InputError, match=r"model=Linear.*: pass a vision model of transformers \(beit, .*or one of timm"
    ):
        posenc.resize(torch.nn.Linear(2, 2), 48)
    config = transformers.AutoConfig.for_model("convnext", hidden_sizes=[8], depths=[1], num_stages=1)
    with pytest.raises(InputError, match=r"unknown vision model type 'convnext'"):
        posenc.resize(transformers.AutoModel.from_config(config), 48)
    assert find_vision_model(torch.nn.Linear(2, 2)) is None


def test_a_table_that_is_not_known_is_refused():
    model = of_transformers("vit")
    with torch.no_grad():
        model.embeddings.position_embeddings = torch.nn.Parameter(torch.randn(1, 11, 32))
    with pytest.raises(
        InputError, match=r"embeddings.position_embeddings of shape \(1, 11, 32\) depends on the image size"
    ):
        posenc.resize(model, 48)


def test_the_report_says_what_was_done():
    report = posenc.resize(of_transformers("vit"), (48, 64))
    assert str(report).startswith(
        "vit of transformers: images of 32 x 32 -> 48 x 64\n  learned table embeddings.position_emb"
    )
    assert "4 x 4 -> 6 x 8 (bicubic), unchanged rows of tokens without a position: 1" in str(report)
    assert "never pass interpolate_pos_encoding=True" in str(report)
    assert report.to_dict()["parts"][0]["new"] == (6, 8)
    assert posenc.resize(of_transformers("vit"), 48, verify=False).verified == ()
    assert "fits any grid, nothing to resize" in str(posenc.resize(of_transformers("dinov3_vit"), (48, 64)))
    assert "4 x 4, unchanged" in str(posenc.resize(of_transformers("swin"), (48, 64)))
