"""Axial RoPE with sections: its formula, the table of models in the docs, and the code of diffusers where that is installed.

The facts about each model are from diffusers 0.42.1, src/diffusers/models/transformers/transformer_NAME.py, where every axis has
the frequencies theta^(-2c/d) of its own width d (models/embeddings.py, get_1d_rotary_pos_embed)."""

import importlib.util
import math
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import posenc
from posenc import AxialRotary, InputError, MRotary, Positions, Rotary
from posenc.testing.oracles import rotations
from references import timm_here
from references.calls import scores

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import axial_models  # noqa: E402
from axial_models import PAGE, ROWS, made  # noqa: E402

EXACT = {"rtol": 1e-10, "atol": 1e-11}
FLOAT32 = {"rtol": 0, "atol": 2e-5}

NTK = 10000 * 2 ** (44 / 42)
MODELS = {  # name: widths of the axes in channels, base (of each axis), layout; the class
    "FLUX.1": ((16, 56, 56), 10000, "interleaved"),  # flux: FluxPosEmbed
    "FLUX.2": ((32, 32, 32, 32), 2000, "interleaved"),  # flux2: Flux2PosEmbed
    "Qwen-Image": ((16, 56, 56), 10000, "interleaved"),  # qwenimage: QwenEmbedRope
    "HunyuanVideo": ((16, 56, 56), 256, "interleaved"),  # hunyuan_video: HunyuanVideoRotaryPosEmbed
    "HunyuanImage 2.1": ((64, 64), 256, "interleaved"),  # hunyuanimage: HunyuanImageRotaryPosEmbed
    "Wan 2.1": ((44, 42, 42), 10000, "interleaved"),  # wan: WanRotaryPosEmbed
    "CogVideoX": ((16, 24, 24), 10000, "interleaved"),  # models/embeddings.py: get_3d_rotary_pos_embed
    "Z-Image": ((32, 48, 48), 256, "interleaved"),  # z_image: RopeEmbedder
    "Lumina 2": ((32, 32, 32), 10000, "interleaved"),  # lumina2: Lumina2RotaryPosEmbed
    "Kandinsky 5": ((16, 24, 24), 10000, "interleaved"),  # kandinsky: Kandinsky5RoPE3D
    "HiDream-I1": ((64, 32, 32), 10000, "interleaved"),  # hidream_image: HiDreamImageEmbedND
    "Cosmos": ((44, 42, 42), (NTK, 10000, 10000), "half"),  # cosmos: CosmosRotaryPosEmbed, rope_scale 2, 1, 1
    "GLM-Image": ((20, 20), 10000, "half"),  # glm_image: GlmImageRotaryPosEmbed
    "CogView4": ((20, 20), 10000, "half"),  # cogview4: CogView4RotaryPosEmbed
    "Krea 2": ((32, 48, 48), 1000, "interleaved"),  # krea2: Krea2RotaryPosEmbed
    "PRX": ((32, 32), 10000, "interleaved"),  # prx: PRXEmbedND
    "SANA-Video": ((40, 36, 36), 10000, "interleaved"),  # sana_video: WanRotaryPosEmbed
    "Lumina-Next": ((36, 36), 10000, "turns"),  # models/embeddings.py: get_2d_rotary_pos_embed_lumina
    "Allegro": ((32, 32, 32), 10000, "apart"),  # models/embeddings.py: get_3d_rotary_pos_embed_allegro
}
ALIKE = {  # its module and class; the row of the page that it has in common
    "Bria FIBO": ("bria_fibo", "BriaFiboEmbedND", "FLUX.1"),
    "Ovis-Image": ("ovis_image", "OvisImagePosEmbed", "FLUX.1"),
    "LongCat-Image": ("longcat_image", "LongCatImagePosEmbed", "FLUX.1"),
    "SkyReels V2": ("skyreels_v2", "SkyReelsV2RotaryPosEmbed", "Wan 2.1"),
    "HunyuanVideo 1.5": ("hunyuan_video15", "HunyuanVideo15RotaryPosEmbed", "HunyuanVideo"),
}


def rotated(x: Tensor, at: Tensor, widths: tuple[int, ...], base: float | tuple[float, ...], layout: str) -> Tensor:
    """(heads, n, width) at (n, axes) coordinates: one pair after the other, axis by axis."""
    bases = base if isinstance(base, tuple) else (base,) * len(widths)
    ladders = [rotations.frequencies(width, theta) for width, theta in zip(widths, bases, strict=True)]
    angles = [at[:, axis, None] * ladder for axis, ladder in enumerate(ladders)]
    if layout == "apart":
        parts = zip(x.split(widths, -1), angles, strict=True)
        return torch.cat([rotations.turned(part, by, "half") for part, by in parts], -1)
    if layout == "turns":
        return rotations.turned(x, torch.stack(angles, -1).flatten(-2), "interleaved")
    return rotations.turned(x, torch.cat(angles, -1), layout)


@pytest.mark.parametrize("name", MODELS)
def test_the_pages_arguments_are_the_models_facts(name):
    widths, base, layout = MODELS[name]
    q, k = torch.randn(2, 1, 2, 12, sum(widths), dtype=torch.float64)
    for at in (torch.randint(-40, 900, (12, len(widths))), 30 * torch.randn(12, len(widths), dtype=torch.float64)):
        ours = made(name).rotate(q, k, Positions.from_ids(at[None]))
        for x, y in zip((q, k), ours, strict=True):
            assert_close(y[0], rotated(x[0], at, widths, base, layout), **EXACT)
        assert_close(made(name).rotate_keys(k, Positions.from_ids(at[None])), ours[1], **EXACT)
    wrong = AxialRotary(
        sum(widths),
        sections=made(name).pairs,
        ladder="head",
        layout=made(name).layout,
        x_first=False,
        rope_theta=10000.0,
    )
    assert (wrong.rotate(q, k, Positions.from_ids(at[None]))[0] - ours[0]).abs().max() > 0.1, "one ladder for all axes"


def test_the_page_has_every_model():
    assert set(MODELS) <= set(ROWS)


# ---------------------------------------------------------------- sections, bases, schedules


def test_each_axis_has_its_section_base_and_schedule():
    schedules = [{"name": "ntk", "factor": 2.0}, {"name": "default"}, {"name": "linear", "factor": 4.0}]
    options = {"sections": (3, 2, 1), "rope_theta": (100.0, 30.0, 7.0), "schedules": schedules}
    ladders = [
        posenc.frequencies.create(schedule, 2 * pairs, base=base).inv_freq
        for pairs, base, schedule in zip((3, 2, 1), (100.0, 30.0, 7.0), schedules, strict=True)
    ]
    want = torch.block_diag(*(ladder[:, None] for ladder in ladders))
    assert_close(AxialRotary(12, x_first=False, **options).frequency, want, **EXACT)
    parts = want.split((3, 2, 1))
    assert_close(AxialRotary(12, **options).frequency, torch.cat(parts[::-1]), **EXACT)


def test_sections_of_equal_width_are_no_sections():
    for options in ({}, {"x_first": False, "layout": "half"}, {"ladder": "dealt"}, {"ladder": "head"}):
        plain, same = AxialRotary(24, axes=3, **options), AxialRotary(24, sections=(4, 4, 4), **options)
        assert torch.equal(plain.frequency, same.frequency)


@pytest.mark.parametrize("sections", [(2, 3, 3), (1, 4, 3), (0, 5, 3)])
def test_one_ladder_for_all_axes_is_m_rope(sections):
    ours = AxialRotary(16, sections=sections, ladder="head", rope_theta=1e6, layout="half", x_first=False)
    assert torch.equal(ours.frequency, MRotary(16, sections=sections).frequency)


def test_an_axis_without_pairs_does_not_turn():
    encoding, q = AxialRotary(16, sections=(0, 5, 3)), torch.randn(1, 2, 4, 16)
    at = torch.randint(0, 9, (1, 4, 3))
    moved = at + torch.tensor([5, 0, 0])
    assert torch.equal(*(encoding.rotate_queries(q, Positions.from_ids(x)) for x in (at, moved)))


@pytest.mark.parametrize("channels", ["turns", "apart"])
def test_which_channels_an_axis_has_is_a_permutation(channels):
    """Models whose axes have other channels compute the same scores once the channels of queries and keys are permuted."""
    plain = AxialRotary(24, axes=3, layout="half" if channels == "apart" else "interleaved", x_first=False)
    other = AxialRotary(24, axes=3, layout=plain.layout, x_first=False, channels=channels)
    pairs = torch.arange(12).view(3, 4)  # of each axis, in blocks
    if channels == "turns":
        order = torch.stack((2 * pairs.T.flatten(), 2 * pairs.T.flatten() + 1), 1).flatten()
    else:
        order = torch.cat([torch.cat((block, block + 12)) for block in pairs])
    q, k = torch.randn(2, 1, 2, 10, 24, dtype=torch.float64)
    p = Positions.grid(5, 2)
    assert_close(scores(other, q[..., order], k[..., order], p), scores(plain, q, k, p), **EXACT)


def test_text_under_one_section_is_rope():
    q, p = torch.randn(1, 2, 9, 16), Positions.arange(9)
    for schedule in (None, {"name": "yarn", "factor": 4.0, "original_max_positions": 4}):
        ours = AxialRotary(
            16, axes=1, sections=[8], rope_theta=10000.0, layout="half", schedules=schedule and [schedule]
        )
        rope = Rotary(16, schedule=schedule)
        assert ours.attention_factor == rope.attention_factor
        assert ours.isometric == rope.isometric
        assert_close(ours.rotate(q, q, p), rope.rotate(q, q, p), rtol=0, atol=1e-6)


def test_ntk_for_a_larger_image_keeps_the_fastest_pair_and_slows_the_slowest():
    encoding = AxialRotary(64, rope_theta=10000.0)
    larger = encoding.with_schedule("ntk", factor=2.0)
    ratio = (encoding.frequency.sum(1) / larger.frequency.sum(1)).unflatten(0, (2, -1))
    assert_close(ratio[:, [0, -1]], torch.tensor([[1.0, 2.0]] * 2, dtype=torch.float64), **EXACT)


def test_schedules_in_a_text():
    text = r"axial_rope:axes=3:rope_theta=10000:x_first=false:layout=half:sections=22,21,21:schedules=ntk\:factor=2|default|default"
    assert torch.equal(posenc.create(text, head_dim=128).frequency, made("Cosmos").frequency)


def test_sections_in_text_and_spec():
    encoding = posenc.create("axial_rope:sections=8,28,28:rope_theta=10000:x_first=false", head_dim=128, grid=(4, 6))
    assert encoding.axes == 3, "an image is a video of one frame"
    again = posenc.from_spec(encoding.spec())
    assert torch.equal(again.frequency, encoding.frequency)
    cosmos = made("Cosmos")
    assert torch.equal(posenc.from_spec(cosmos.spec()).frequency, cosmos.frequency)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sections": (8, 8, 8)}, r"sections=\(8, 8, 8\): add up to 24, not to head_dim/2 = 32$"),
        (
            {"sections": (16, 24, 24)},
            r"sections=\(16, 24, 24\): add up to 64, not to head_dim/2 = 32, here \(8, 12, 12\)$",
        ),
        ({"sections": ()}, r"sections=\(\): add up to 0"),
        ({"sections": (-1, 33)}, r"sections=\(-1, 33\): pass integers"),
        ({"sections": (8.5, 23.5)}, r"sections=\(8.5, 23.5\): pass integers"),
        ({"sections": "16,16"}, "sections='16,16': pass"),
        ({"sections": (32,)}, r"sections=\(32,\), axes=2: pass the pairs of each axis"),
        ({"axes": 3, "sections": (16, 16)}, r"sections=\(16, 16\), axes=3: pass the pairs of each axis"),
        ({"rope_theta": (100.0, 10.0, 1.0)}, r"rope_theta=.*or 2, one an axis"),
        ({"rope_theta": (100.0, -1.0)}, "rope_theta=-1.0"),
        ({"rope_theta": (100.0, 10.0), "ladder": "head"}, "with ladder='axis'"),
        ({"schedules": [{"name": "default"}] * 3}, "schedules=.*or 2, one an axis"),
        ({"schedules": [{"name": "ntks"}, {"name": "default"}]}, "did you mean 'ntk'"),
        ({"schedules": [4, 4]}, "schedule"),
        (
            {"schedules": [{"name": "default"}, {"name": "yarn", "factor": 4.0, "original_max_positions": 64}]},
            "scale cos and sin by",
        ),
        ({"ladder": "dealt", "sections": (8, 24)}, r"ladder='dealt', sections=\(8, 24\): give every axis as many"),
        ({"ladder": "one"}, "unknown ladder"),
        ({"channels": "one"}, "unknown channels"),
        ({"channels": "turns", "sections": (8, 24)}, r"channels='turns', sections=\(8, 24\): give every axis as many"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(InputError, match=message) as caught:
        AxialRotary(64, **options)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- coordinates


def test_an_image_is_the_first_frame_and_text_has_no_place():
    """FLUX puts text at (0, 0, 0), which is not rotated."""
    encoding, q = made("FLUX.1"), torch.randn(1, 2, 11, 128)
    ids = torch.cat((torch.zeros(5, 3), torch.cartesian_prod(torch.zeros(1), torch.arange(2.0), torch.arange(3.0))))
    ours = encoding.rotate(q, q, Positions.grid(2, 3, prefix=5))
    assert_close(ours, encoding.rotate(q, q, Positions.from_ids(ids[None])), rtol=0, atol=0)
    assert torch.equal(ours[0][:, :, :5], q[:, :, :5])


def centres(height: int, width: int, prefix: int, smaller: bool | None = None) -> Positions:
    """Centres of patches in an image that spans -1 .. 1; smaller: both axes by the smaller or the larger side."""
    size = torch.tensor([height, width], dtype=torch.float64)
    size = size if smaller is None else (size.amin() if smaller else size.amax())
    return Positions.grid(height, width, prefix=prefix).moved(lambda at, order: 2 * (at + 0.5) / size - 1)


HALF = {"layout": "half", "x_first": False}


def turns(positions: Positions) -> Positions:
    """The same places, where an angle is 2 pi times the coordinate."""
    return positions.moved(lambda at, order: 2 * math.pi * at)


@pytest.mark.parametrize(("height", "width"), [(3, 5), (4, 4), (6, 2)])
@pytest.mark.parametrize("prefix", [0, 5])
def test_moved_coordinates_are_dinov3s_in_training(height, width, prefix):
    """Shifted, jittered and rescaled; registers have no place."""
    dinov3 = import_module("transformers.models.dinov3_vit.modeling_dinov3_vit")
    config = import_module("transformers").DINOv3ViTConfig(
        hidden_size=64,
        num_attention_heads=2,
        patch_size=4,
        pos_embed_shift=0.3,
        pos_embed_jitter=1.5,
        pos_embed_rescale=2.0,
    )
    module = dinov3.DINOv3ViTRopePositionEmbedding(config).train()
    q = torch.randn(1, 2, prefix + height * width, 32)
    torch.manual_seed(5)
    theirs, _ = dinov3.apply_rotary_pos_emb(q, q, *module(torch.zeros(1, 3, 4 * height, 4 * width)))
    torch.manual_seed(5)
    shift = torch.empty(1, 2).uniform_(-0.3, 0.3)
    jitter = torch.empty(1, 2).uniform_(-math.log(1.5), math.log(1.5)).exp()
    rescale = torch.empty(1).uniform_(-math.log(2), math.log(2)).exp()
    positions = centres(height, width, prefix).moved(lambda at, order: (at + shift) * jitter * rescale)
    ours, _ = AxialRotary(32, **HALF).rotate(q, q, turns(positions))
    assert_close(ours, theirs, **FLOAT32)
    still, _ = AxialRotary(32, **HALF).rotate(q, q, turns(centres(height, width, prefix)))
    centred = AxialRotary(32, **HALF, centred=True)
    assert_close(still, centred.rotate(q, q, Positions.grid(height, width, prefix=prefix))[0], **FLOAT32)
    assert (still - ours).abs().max() > 0.1


@pytest.mark.parametrize("normalized", ["separate", "min", "max"])
@pytest.mark.parametrize(("height", "width"), [(3, 5), (6, 2)])
def test_moved_coordinates_are_timms_dinov3(height, width, normalized):
    timm_here.timm()
    sincos = import_module("timm.layers.pos_embed_sincos")
    module = sincos.RotaryEmbeddingDinoV3(32, feat_shape=[height, width], normalize_coords=normalized).eval()
    q = torch.randn(1, 2, height * width, 32)
    positions = centres(height, width, 0, {"separate": None, "min": True, "max": False}[normalized])
    ours, _ = AxialRotary(32, **HALF).rotate(q, q, turns(positions))
    assert_close(ours, sincos.apply_rot_embed_cat(q, module.get_embed(), half=True), **FLOAT32)


# ---------------------------------------------------------------- diffusers' own code


@pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="no diffusers here: pip install diffusers")
@pytest.mark.parametrize("name", ALIKE)
def test_a_model_with_the_arguments_of_another(name):
    module, kind, row = ALIKE[name]
    rope, widths, base = getattr(axial_models.diffusers_of(module), kind), MODELS[row][0], MODELS[row][1]
    q, video, latent = torch.randn(1, 2, 5 * 6 * 9, 128), Positions.grid(6, 9, frames=5), torch.zeros(1, 4, 5, 6, 9)
    if row == "FLUX.1":
        tables = rope(base, list(widths))(video.q[0])
    elif row == "Wan 2.1":
        tables = [table[0, :, 0] for table in rope(128, (1, 1, 1), 64)(latent)]
    else:
        tables = rope(1, 1, list(widths), base)(latent)
    theirs = import_module("diffusers.models.embeddings").apply_rotary_emb(q, tables)
    assert_close(made(row).rotate(q, q, video)[0], theirs, rtol=0, atol=2e-5)


# ---------------------------------------------------------------- the page


def test_every_row_has_its_largest_difference():
    """If this fails: python benchmarks/axial_models.py --write, where diffusers, transformers and timm are installed."""
    lines = (
        PAGE.read_text(encoding="utf-8").partition(axial_models.BEGIN)[2].partition(axial_models.END)[0].splitlines()
    )
    rows = [line.strip("| ").split(" | ") for line in lines if "`AxialRotary(" in line]
    assert [row[0] for row in rows] == list(ROWS)
    assert set(ROWS) == {*axial_models.OF_DIFFUSERS, *axial_models.OTHERS}
    assert all(name in PAGE.read_text(encoding="utf-8") for name in ALIKE)
    for _, _, _, difference, release in rows:
        assert 0 <= float(difference) < 2e-5
        assert re.fullmatch(r"(diffusers|transformers|timm) \d[\d.]+", release)


@pytest.mark.parametrize("name", ROWS)
def test_the_script_measures_what_is_installed_here(name):
    if name in axial_models.OF_DIFFUSERS:
        pytest.importorskip("diffusers")
    if name.startswith("EVA"):
        timm_here.timm()
    release, difference = axial_models.measured(name)
    assert difference < 2e-5
    assert release.split()[0] in ("diffusers", "transformers", "timm")


def test_posenc_in_a_transformer_of_diffusers():
    pytest.importorskip("diffusers")
    (block,) = re.findall(r"```py\n([^`]*FluxTransformer2DModel.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(block, names)
    assert_close(names["ours"], names["theirs"], **FLOAT32)
