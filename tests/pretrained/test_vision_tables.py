"""Tables for another grid: a convolution kernel in loops, timm, and transformers' BEiT."""

import warnings
from importlib import import_module

import pytest
import torch
import transformers
from torch.testing import assert_close

from posenc.pretrained.vision.tables import (
    OF_OFFSETS,
    OF_PATCHES,
    resample,
    resample_offsets,
    sinusoid_order,
    sinusoids,
)
from references import timm_here

GRIDS = pytest.mark.parametrize(
    ("old", "new"),
    [((4, 4), (6, 6)), ((4, 4), (3, 7)), ((3, 5), (6, 4)), ((5, 2), (2, 3)), ((16, 16), (7, 5))],
    ids=str,
)


def cubic(x: float, a: float) -> float:
    """Keys' kernel."""
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def axis(old: int, new: int, scale: float, antialias: bool) -> torch.Tensor:
    """How each new place of an axis weighs the old ones: corners not aligned, edges repeated, or left out and the rest
    normed where there is an antialiasing filter (Pillow's, which PyTorch follows)."""
    weights = torch.zeros(new, old, dtype=torch.float64)
    stretch = max(1 / scale, 1.0) if antialias else 1.0
    for i in range(new):
        at = (i + 0.5) / scale - 0.5
        for j in range(int(at - 3 * stretch) - 1, int(at + 3 * stretch) + 2):
            weight = cubic((j - at) / stretch, -0.5 if antialias else -0.75)
            if not antialias:
                weights[i, min(max(j, 0), old - 1)] += weight
            elif 0 <= j < old:
                weights[i, j] += weight
    return weights / weights.sum(1, keepdim=True)


@GRIDS
@pytest.mark.parametrize("method", OF_PATCHES)
def test_patches_are_resampled_by_the_cubic_kernel(method, old, new):
    rows = torch.randn(old[0] * old[1], 3, dtype=torch.float64)
    enlarged = 0.1 if method == "bicubic_offset" else 0.0
    down, across = (
        axis(o, n, (n + enlarged) / o, method == "bicubic_antialias") for o, n in zip(old, new, strict=True)
    )  # fmt: skip
    want = torch.einsum("ij,jkc,lk->ilc", down, rows.view(*old, 3), across).flatten(0, 1)
    assert_close(resample(rows, old, new, method), want, rtol=0, atol=1e-6)
    assert resample(rows, old, old, method) is rows


@GRIDS
def test_patches_are_resampled_as_timm_does(old, new):
    timm_here.timm()
    from timm.layers import resample_abs_pos_embed

    rows = torch.randn(2 + old[0] * old[1], 3)
    theirs = resample_abs_pos_embed(rows[None], list(new), list(old), num_prefix_tokens=2)
    assert torch.equal(resample(rows[2:], old, new, "bicubic_antialias"), theirs[0, 2:])


def test_antialiasing_gives_other_tables():
    rows = torch.randn(64, 3)
    made = [resample(rows, (8, 8), (4, 4), method) for method in OF_PATCHES]
    assert all((made[i] - made[j]).abs().max() > 0.01 for i, j in ((0, 1), (0, 2), (1, 2)))


@GRIDS
def test_offsets_lie_in_timms_progression(old, new):
    timm_here.timm()
    from timm.layers import resize_rel_pos_bias_table

    rows, count = torch.randn((2 * old[0] - 1) * (2 * old[1] - 1), 2), (2 * new[0] - 1) * (2 * new[1] - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = resize_rel_pos_bias_table(rows, new, (count, 2), old)
    # timm stops its search for the ratio at 1e-6, and works in float32
    assert_close(resample_offsets(rows, old, new, "geometric"), theirs, rtol=0, atol=2e-4)


@pytest.mark.parametrize(("old", "new"), [(4, 6), (6, 4), (2, 5)])
def test_offsets_are_bilinear_as_in_transformers_beit(old, new):
    beit = import_module("transformers.models.beit.modeling_beit")
    config = transformers.BeitConfig(num_attention_heads=2, image_size=16 * old, patch_size=16)
    module = beit.BeitRelativePositionBias(config).double()
    torch.nn.init.normal_(module.relative_position_bias_table)
    theirs = module((new, new))[0].detach()
    made = resample_offsets(module.relative_position_bias_table.data[:-3], (old, old), (new, new), "bilinear")
    index = module.generate_relative_position_index((new, new))[1:, 1:]
    assert_close(made[index].permute(2, 0, 1), theirs[:, 1:, 1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", OF_OFFSETS)
def test_offsets_keep_what_is_the_same_both_ways(method):
    rows = torch.randn(7 * 9, 2, dtype=torch.float64)
    assert resample_offsets(rows, (4, 5), (4, 5), method) is rows
    even = (rows + rows.flip(0)) / 2  # a bias of distance alone
    made = resample_offsets(even, (4, 5), (6, 7), method)
    assert_close(made, made.flip(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", OF_OFFSETS)
def test_a_window_of_one_patch_has_one_bias(method):
    made = resample_offsets(torch.full((1, 2), 0.5), (1, 1), (3, 2), method)
    assert_close(made, torch.full((15, 2), 0.5))


@pytest.mark.parametrize("x_first", [False, True])
def test_maes_formula_is_recognised(x_first):
    rows = sinusoids((3, 5), 16, x_first=x_first)
    assert sinusoid_order(rows.float(), (3, 5)) is x_first
    assert sinusoid_order(rows.bfloat16(), (3, 5)) is x_first
    assert sinusoid_order(rows, (5, 3)) is None
    assert sinusoid_order(rows + 0.01, (3, 5)) is None
    assert sinusoid_order(rows[:, :15], (3, 5)) is None
