"""Axial RoPE with sections: its formula, the table of models in the docs, and the code of diffusers where that is installed.

The facts about each model are from diffusers 0.42.1, src/diffusers/models/transformers/transformer_NAME.py, where every axis has
the frequencies theta^(-2c/d) of its own width d (models/embeddings.py, get_1d_rotary_pos_embed)."""

import importlib.util
import math
import re
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
PAGE = Path(__file__).parents[2] / "docs" / "vision-grid.md"
ROWS = dict(re.findall(r"^\| ([^|]+?) \| `(AxialRotary\([^`]+\))` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def made(name: str) -> AxialRotary:
    """The encoding of a row of the page."""
    return eval(ROWS[name], {"AxialRotary": AxialRotary})


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
    at = [x.clone() for x in (q[..., order], k[..., order])]
    in_place = [other.turn(x, *other.table("q", p, 0, torch.float64), inplace=True) for x in at]
    assert_close(in_place, list(other.rotate(q[..., order], k[..., order], p)), **EXACT)


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
        ({"sections": (8, 8, 8)}, r"sections=\(8, 8, 8\): add up to 24; .* head_dim/2 = 32$"),
        ({"sections": (16, 24, 24)}, r"sections=\(16, 24, 24\): add up to 64; .* head_dim/2 = 32, here \(8, 12, 12\)$"),
        ({"sections": ()}, r"sections=\(\): add up to 0"),
        ({"sections": (-1, 33)}, r"sections=\(-1, 33\): pass integers"),
        ({"sections": (8.5, 23.5)}, r"sections=\(8.5, 23.5\): pass integers"),
        ({"sections": "16,16"}, "sections='16,16': pass"),
        ({"sections": (32,)}, r"axes=2: sections=\(32,\) are of 1"),
        ({"axes": 3, "sections": (16, 16)}, r"axes=3: sections=\(16, 16\) are of 2"),
        ({"rope_theta": (100.0, 10.0, 1.0)}, r"rope_theta=.*one for each of 2 axes"),
        ({"rope_theta": (100.0, -1.0)}, "rope_theta=-1.0"),
        ({"rope_theta": (100.0, 10.0), "ladder": "head"}, "with ladder='axis'"),
        ({"schedules": [{"name": "default"}] * 3}, "schedules=.*one for each of 2 axes"),
        ({"schedules": [{"name": "ntks"}, {"name": "default"}]}, "did you mean 'ntk'"),
        ({"schedules": [4, 4]}, "schedule"),
        (
            {"schedules": [{"name": "default"}, {"name": "yarn", "factor": 4.0, "original_max_positions": 64}]},
            "scale cos and sin by",
        ),
        ({"ladder": "dealt", "sections": (8, 24)}, r"ladder='dealt', sections=\(8, 24\): give every axis as many"),
        ({"ladder": "one"}, "unknown ladder"),
        ({"channels": "one"}, "unknown channels"),
        (
            {"channels": "turns", "sections": (8, 24)},
            r"channels='turns', sections=\(8, 24\): give every axis as many",
        ),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(InputError, match=message) as caught:
        AxialRotary(64, **options)
    assert "\n" not in str(caught.value)


def test_positions_of_other_axes_are_refused():
    encoding, q = made("FLUX.2"), torch.randn(1, 2, 6, 128)
    with pytest.raises(
        InputError, match=r"AxialRotary takes 4 coordinates per token \(or one\), these positions have 2"
    ):
        encoding.rotate(q, q, Positions.grid(2, 3))


# ---------------------------------------------------------------- coordinates


def test_an_image_is_the_first_frame_and_text_has_no_place():
    """FLUX puts text at (0, 0, 0), which is not rotated."""
    encoding, q = made("FLUX.1"), torch.randn(1, 2, 11, 128)
    ids = torch.cat((torch.zeros(5, 3), torch.cartesian_prod(torch.zeros(1), torch.arange(2.0), torch.arange(3.0))))
    ours = encoding.rotate(q, q, Positions.grid(2, 3, prefix=5))
    assert_close(ours, encoding.rotate(q, q, Positions.from_ids(ids[None])), rtol=0, atol=0)
    assert torch.equal(ours[0][:, :, :5], q[:, :, :5])


@pytest.mark.parametrize("name", ["FLUX.1", "Cosmos", "FLUX.2"])
@pytest.mark.parametrize("prefix", [0, 3])
def test_scores_depend_on_differences_of_centred_and_rescaled_coordinates(name, prefix):
    encoding = made(name)
    at = torch.randint(0, 9, (1, 8 + prefix, encoding.axes)).double()
    placed = torch.arange(8 + prefix)[None] >= prefix
    q, k = torch.randn(2, 1, 2, 8 + prefix, encoding.head_dim, dtype=torch.float64)
    here, there = (
        scores(encoding, q, k, Positions.from_ids(x, placed=placed))[..., prefix:, prefix:]
        for x in (at * 0.8, (at - 4.5) * 0.8)
    )
    assert_close(here, there, rtol=0, atol=1e-9)
    among = scores(encoding, q, k, Positions.from_ids(at * 0.8, placed=placed))[..., :prefix, :prefix]
    assert_close(among, (q @ k.mT)[..., :prefix, :prefix], **EXACT)


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


def diffusers_of(name: str):
    return import_module(f"diffusers.models.transformers.transformer_{name}")


def complex_turned(x: Tensor, turns: Tensor) -> Tensor:
    """(batch, heads, n, width) by complex numbers (n, width / 2), as Z-Image and Qwen-Image do."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)


def of_diffusers(name: str, frames: int, height: int, width: int):
    """The positions, and the function that rotates as the model's code does."""
    embeddings = import_module("diffusers.models.embeddings")
    video, image = Positions.grid(height, width, frames=frames), Positions.grid(height, width)
    latent = torch.zeros(1, 4, frames, height, width)

    def real(tables, half=False):
        return lambda x: embeddings.apply_rotary_emb(x, tables, use_real_unbind_dim=-2 if half else -1)

    if name == "FLUX.1":
        ids = torch.cat((torch.zeros(7, 3), torch.nn.functional.pad(image.q[0], (1, 0))))
        return Positions.grid(height, width, prefix=7), real(
            diffusers_of("flux").FluxPosEmbed(10000, [16, 56, 56])(ids)
        )
    if name == "FLUX.2":
        ids = torch.randint(0, 40, (30, 4))
        return Positions.from_ids(ids[None]), real(diffusers_of("flux2").Flux2PosEmbed(2000, [32] * 4)(ids))
    if name == "Qwen-Image":
        rope = diffusers_of("qwenimage").QwenEmbedRope(10000, [16, 56, 56], scale_rope=True)
        patches, text = rope((frames, height, width), device=torch.device("cpu"), max_txt_seq_len=11)
        after = (max(height // 2, width // 2) + torch.arange(11))[:, None].expand(-1, 3)
        at = torch.cat((after, video.q[0] - torch.tensor([0, height - height // 2, width - width // 2])))
        return Positions.from_ids(at[None]), lambda x: complex_turned(x, torch.cat((text, patches)))
    if name == "HunyuanVideo":
        return video, real(diffusers_of("hunyuan_video").HunyuanVideoRotaryPosEmbed(1, 1, [16, 56, 56], 256.0)(latent))
    if name == "HunyuanImage 2.1":
        module = diffusers_of("hunyuanimage").HunyuanImageRotaryPosEmbed((1, 1), [64, 64], 256.0)
        return image, real(module(latent[:, :, 0]))
    if name == "Wan 2.1":
        cos, sin = diffusers_of("wan").WanRotaryPosEmbed(128, (1, 1, 1), 64)(latent)
        return video, real((cos[0, :, 0], sin[0, :, 0]))
    if name == "CogVideoX":
        crop = ((2, 0), (28, 45))
        rows, columns = (
            torch.linspace(low, high * (n - 1) / n, n) for low, high, n in ((2, 28, height), (0, 45, width))
        )
        at = torch.cartesian_prod(torch.arange(frames).float(), rows, columns)
        return Positions.from_ids(at[None]), real(embeddings.get_3d_rotary_pos_embed(64, crop, (height, width), frames))
    if name == "Z-Image":
        text = torch.nn.functional.pad(1 + torch.arange(11)[:, None], (0, 2))
        ids = torch.cat((torch.nn.functional.pad(image.q[0], (1, 0), value=12), text))
        module = diffusers_of("z_image").RopeEmbedder(256.0, [32, 48, 48], [1536, 512, 512])
        return Positions.from_ids(ids[None]), lambda x: complex_turned(x, module(ids))
    if name == "Lumina 2":
        text = torch.nn.functional.pad(torch.arange(11)[:, None], (0, 2))
        ids = torch.cat((text, torch.nn.functional.pad(image.q[0], (1, 0), value=11)))
        module = diffusers_of("lumina2").Lumina2RotaryPosEmbed(10000, [32] * 3, [300, 512, 512], 1)
        turns = module(latent[:, :, 0], torch.ones(1, 11, dtype=torch.long))[3]
        return Positions.from_ids(ids[None]), lambda x: complex_turned(x, turns[0])
    if name == "Kandinsky 5":
        module = diffusers_of("kandinsky").Kandinsky5RoPE3D((16, 24, 24))
        matrices = module(
            (1, frames, height, width), [torch.arange(n) for n in (frames, height, width)], (1.0, 2.0, 2.0)
        )
        matrices = matrices.flatten(1, 4)
        at = lambda at, order: at / torch.tensor([1.0, 2.0, 2.0])  # noqa: E731
        return video.moved(at), lambda x: (matrices * x.unflatten(-1, (-1, 1, 2))).sum(-1).flatten(-2)
    if name == "HiDream-I1":
        module, ids = diffusers_of("hidream_image"), torch.randint(0, 30, (1, 20, 3)).float()
        turns = module.HiDreamImageEmbedND(10000, (64, 32, 32))(ids)
        return Positions.from_ids(ids), lambda x: module.apply_rope(*[x.transpose(1, 2)] * 2, turns)[0].transpose(1, 2)
    if name == "Cosmos":
        tables = diffusers_of("cosmos").CosmosRotaryPosEmbed(128, (128, 240, 240), (1, 1, 1), 24, (2.0, 1.0, 1.0))(
            latent, 30
        )
        return video.moved(lambda at, order: at * torch.tensor([24 / 30, 1, 1])), real(tables, half=True)
    if name == "Krea 2":
        ids = torch.randint(0, 40, (30, 3))
        return Positions.from_ids(ids[None]), real(diffusers_of("krea2").Krea2RotaryPosEmbed(1000, [32, 48, 48])(ids))
    if name == "PRX":
        prx, ids = diffusers_of("prx"), torch.randint(0, 40, (1, 30, 2))
        turns = prx.PRXEmbedND(64, 10000, [32, 32])(ids)
        return Positions.from_ids(ids), lambda x: prx.apply_rope(x, turns)
    if name == "SANA-Video":
        cos, sin = diffusers_of("sana_video").WanRotaryPosEmbed(112, (1, 1, 1), 64)(latent)
        return video, real((cos[0, :, 0], sin[0, :, 0]))
    if name == "Lumina-Next":
        turns = embeddings.get_2d_rotary_pos_embed_lumina(72, height, width).flatten(0, 1)[None]
        apply = embeddings.apply_rotary_emb
        return image, lambda x: apply(x.transpose(1, 2), turns, use_real=False).transpose(1, 2)
    if name == "Allegro":
        crop = ((0, 0), (height, width))
        *tables, _, _, _ = embeddings.get_3d_rotary_pos_embed_allegro(
            96, crop, (height, width), frames, (1.0, 2.0, 2.0)
        )
        places = [place[None] for place in video.q[0].long().unbind(-1)]
        at = lambda at, order: at / torch.tensor([1.0, 2.0, 2.0])  # noqa: E731
        return video.moved(at), lambda x: embeddings.apply_rotary_emb_allegro(x, tables, places)
    if name == "GLM-Image":
        return image, real(diffusers_of("glm_image").GlmImageRotaryPosEmbed(40, 1)(latent[:, :, 0]), half=True)
    tables = diffusers_of("cogview4").CogView4RotaryPosEmbed(40, 1, (256, 256))(latent[:, :, 0])
    return image.moved(lambda at, order: at * 256 // torch.tensor([height, width])), real(tables, half=True)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="no diffusers here: pip install diffusers")
@pytest.mark.parametrize("name", MODELS)
def test_axial_rope_is_diffusers(name):
    positions, theirs = of_diffusers(name, 5, 6, 9)
    q = torch.randn(1, 2, positions.num_queries, made(name).head_dim)
    ours, _ = made(name).rotate(q, q, positions)
    difference = (ours - theirs(q)).abs().max().item()
    print(f"{name}: {difference:.1e}")
    assert difference < 2e-5


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="no diffusers here: pip install diffusers")
@pytest.mark.parametrize("name", ALIKE)
def test_a_model_with_the_arguments_of_another(name):
    module, kind, row = ALIKE[name]
    rope, widths, base = getattr(diffusers_of(module), kind), MODELS[row][0], MODELS[row][1]
    q, video = torch.randn(1, 2, 5 * 6 * 9, 128), Positions.grid(6, 9, frames=5)
    latent = torch.zeros(1, 4, 5, 6, 9)
    if row == "FLUX.1":
        tables = rope(base, list(widths))(video.q[0])
    elif row == "Wan 2.1":
        tables = [table[0, :, 0] for table in rope(128, (1, 1, 1), 64)(latent)]
    else:
        tables = rope(1, 1, list(widths), base)(latent)
    theirs = import_module("diffusers.models.embeddings").apply_rotary_emb(q, tables)
    assert_close(made(row).rotate(q, q, video)[0], theirs, rtol=0, atol=2e-5)


def test_the_page_names_them():
    for name in ALIKE:
        assert name in PAGE.read_text(encoding="utf-8")
