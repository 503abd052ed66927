"""2-D rotations and sinusoids against timm.

test_axes_of_models, test_window and test_absolute have the comparisons with models of transformers.
"""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posenc import AxialRotary, GridSinusoidal, MixedRotary, MRotary, Positions
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
