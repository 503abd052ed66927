"""2-D rotations and sinusoids against timm, and Qwen2-VL's image tower of transformers.

test_rotary_axes, test_window and test_absolute have the comparisons with the other models of transformers.
"""

from importlib import import_module

import pytest
import torch
import transformers
from torch import Tensor
from torch.testing import assert_close

from posenc import (
    AxialRotary,
    GridSinusoidal,
    MixedRotary,
    MRotary,
    Positions,
)
from references import timm_here

timm_here.timm()
from timm.layers import pos_embed_sincos  # noqa: E402

GRIDS = pytest.mark.parametrize(("height", "width"), [(3, 5), (5, 2), (4, 4), (1, 7), (14, 9)])
FLOAT32 = {"rtol": 0, "atol": 2e-5}


def turned(x: Tensor, embedding: Tensor | tuple[Tensor, Tensor], half: bool) -> Tensor:
    """Rotated by timm."""
    if isinstance(embedding, tuple):
        return pos_embed_sincos.apply_rot_embed(x, *embedding, half=half)
    return pos_embed_sincos.apply_rot_embed_cat(x, embedding, half=half)


# ---------------------------------------------------------------- rotations


@GRIDS
@pytest.mark.parametrize("rotate_half", [False, True])
@pytest.mark.parametrize("indexing", ["ij", "xy"])
@pytest.mark.parametrize(("temperature", "offset", "prefix"), [(10000.0, 0.0, 0), (100.0, 1.0, 1)])
@pytest.mark.parametrize("name", ["RotaryEmbedding", "RotaryEmbeddingCat"])
def test_axial_rope_is_timms(name, temperature, offset, prefix, indexing, rotate_half, height, width):
    module = getattr(pos_embed_sincos, name)(
        16, in_pixels=False, temperature=temperature, grid_offset=offset, grid_indexing=indexing, rotate_half=rotate_half,
        feat_shape=[height, width],
    )  # fmt: skip
    layout, x_first = "half" if rotate_half else "interleaved", indexing == "xy"
    encoding = AxialRotary(16, rope_theta=temperature, layout=layout, x_first=x_first, start=offset)
    q = torch.randn(2, 3, prefix + height * width, 16)
    ours, _ = encoding.rotate(q, q, Positions.grid(height, width, prefix=prefix))
    theirs = turned(q[:, :, prefix:], module.get_embed(), rotate_half)  # as its attention does
    assert_close(ours[:, :, prefix:], theirs, **FLOAT32)
    assert torch.equal(ours[:, :, :prefix], q[:, :, :prefix])
    wrong, _ = AxialRotary(16, rope_theta=temperature, layout=layout, x_first=not x_first, start=offset).rotate(
        q, q, Positions.grid(height, width, prefix=prefix)
    )
    assert (wrong - ours).abs().max() > 0.1, "the other order of the axes gives other values"


@GRIDS
@pytest.mark.parametrize("trained", [(4, 4), (6, 3)])
def test_evas_scaled_grid_is_axial_rope_at_fractional_places(trained, height, width):
    module = pos_embed_sincos.RotaryEmbeddingCat(
        16, in_pixels=False, feat_shape=[height, width], ref_feat_shape=list(trained)
    )
    grid = Positions.grid(height, width).q.double() * torch.tensor(trained) / torch.tensor([height, width])
    q = torch.randn(1, 2, height * width, 16)
    ours, _ = AxialRotary(16, rope_theta=10000.0, x_first=False).rotate(q, q, Positions.from_ids(grid))
    assert_close(ours, turned(q, module.get_embed(), False), **FLOAT32)


@GRIDS
@pytest.mark.parametrize(("temperature", "half"), [(100.0, True), (30.0, False)])
def test_centred_axial_rope_is_timms_dinov3(temperature, half, height, width):
    module = pos_embed_sincos.RotaryEmbeddingDinoV3(
        16, temperature=temperature, feat_shape=[height, width], rotate_half=half
    )  # fmt: skip
    module.eval()
    encoding = AxialRotary(
        16, rope_theta=temperature, layout="half" if half else "interleaved", x_first=False, centred=True
    )  # fmt: skip
    q = torch.randn(2, 3, height * width, 16)
    ours, _ = encoding.rotate(q, q, Positions.grid(height, width))
    assert_close(ours, turned(q, module.get_embed(), half), **FLOAT32)
    same = pos_embed_sincos.RotaryEmbeddingCat(
        16, in_pixels=False, temperature=temperature, feat_shape=[height, width], grid_type="centered", rotate_half=half
    )  # fmt: skip
    # timm's axial rotation of the same name turns by the coordinate itself, DINOv3's by 2 pi times it
    assert (turned(q, same.get_embed(), half) - ours).abs().max() > 0.1


@GRIDS
@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_mixed_rope_is_timms(indexing, height, width):
    depth, heads, head_dim = 2, 3, 8
    module = pos_embed_sincos.RotaryEmbeddingMixed(heads * head_dim, depth, heads, grid_indexing=indexing)
    encoding = MixedRotary(head_dim, num_heads=heads, num_layers=depth)
    first, second = module.freqs.data  # of x and y, or with "ij" of y and x
    encoding.frequency.data = torch.stack((second, first) if indexing == "xy" else (first, second), -1)
    q, table = torch.randn(2, heads, height * width, head_dim), module.get_embed([height, width])
    for layer in range(depth):
        ours, _ = encoding.rotate(q, q, Positions.grid(height, width), layer)
        assert_close(ours, turned(q, table[layer], False).detach(), **FLOAT32)


@GRIDS
@pytest.mark.parametrize(("head_dim", "sections"), [(24, (4, 4, 4)), (32, (6, 5, 5)), (72, (12, 12, 12))])
def test_m_rope_of_an_image_is_timms(head_dim, sections, height, width):
    module = pos_embed_sincos.RotaryEmbeddingMRope(head_dim, mrope_section=sections)
    encoding = MRotary(head_dim, rope_theta=10000.0, interleaved=True, sections=sections)
    q = torch.randn(1, 2, height * width, head_dim)
    ours, _ = encoding.rotate(q, q, Positions.grid(height, width, frames=1))
    assert_close(ours, turned(q, module.get_embed([height, width]), True), **FLOAT32)


@pytest.mark.parametrize(("height", "width"), [(4, 6), (2, 8), (6, 2)])
@pytest.mark.parametrize("frames", [1, 3])
def test_axial_rope_is_the_image_tower_of_qwen2_vl(frames, height, width):
    qwen2_vl, utils = (
        import_module(f"transformers.{name}") for name in ("models.qwen2_vl.modeling_qwen2_vl", "vision_utils")
    )
    config = transformers.models.qwen2_vl.configuration_qwen2_vl.Qwen2VLVisionConfig(embed_dim=32, num_heads=2)
    ids = utils.get_vision_position_ids(
        torch.tensor([[frames, height, width]]), 2
    )  # patches that are merged come together
    places = ids if ids.shape[-1] == 2 else ids.T
    cos, sin = qwen2_vl.Qwen2VLVisionRotaryEmbedding(config)(torch.zeros(1), ids)
    q, k = torch.randn(2, frames * height * width, 2, 16)
    theirs = qwen2_vl.apply_rotary_pos_emb_vision(q, k, cos, sin)
    encoding = AxialRotary(16, rope_theta=10000.0, layout="half", x_first=False)
    ours = encoding.rotate(q.transpose(0, 1)[None], k.transpose(0, 1)[None], Positions.from_ids(places[None]))
    assert_close(tuple(x[0].transpose(0, 1) for x in ours), theirs, **FLOAT32)
    assert len({tuple(place) for place in places.tolist()}) == height * width, "frames share their places"


# ---------------------------------------------------------------- sinusoids


def sincos(height, width, **options):
    return pos_embed_sincos.build_sincos2d_pos_embed([height, width], **options).double()


@GRIDS
@pytest.mark.parametrize(("dim", "temperature"), [(16, 10000.0), (8, 100.0)])
def test_grid_sinusoidal_is_timms(dim, temperature, height, width):
    encoding = GridSinusoidal(dim, base=temperature)
    ours = encoding.codes(Positions.grid(height, width))[0].double()
    assert_close(
        ours, sincos(height, width, dim=dim, temperature=temperature, interleave_sin_cos=True), rtol=0, atol=2e-6
    )
    grouped = GridSinusoidal(dim, base=temperature, layout="grouped").codes(Positions.grid(height, width))[0].double()
    assert_close(grouped, sincos(height, width, dim=dim, temperature=temperature), rtol=0, atol=2e-6)
    assert (grouped - ours).abs().max() > 0.1


def test_timms_reversed_coordinates_are_wrong_but_for_squares():
    """reverse_coord says (x, y) for (y, x), and numbers the patches column by column, too: nothing changes for a square, and
    other patches' places come out where an image is none."""
    assert torch.equal(sincos(4, 4, dim=16, reverse_coord=True), sincos(4, 4, dim=16))
    want = GridSinusoidal(16, x_first=True).codes(Positions.grid(3, 5))[0].double()
    theirs = sincos(3, 5, dim=16, reverse_coord=True, interleave_sin_cos=True)
    assert (theirs - want).abs().max() > 1
    transposed = theirs.view(5, 3, 16).transpose(0, 1).flatten(0, 1)
    assert_close(transposed, want, rtol=0, atol=2e-6)


def test_transformers_takes_no_torchvision_to_be_here():
    from transformers.utils import is_torchvision_available

    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        assert not is_torchvision_available()
    else:
        assert is_torchvision_available()
