"""Positions of text with images and videos, against transformers and the paper; caches; refusals."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import posenc
from posenc import InputError
from posenc.pretrained import multimodal
from posenc.testing.oracles import places

SIDE = st.integers(1, 5)
SOME = settings(max_examples=40)
FAMILIES = {
    "qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel", "qwen3_vl": "Qwen3VLModel", "qwen3_5": "Qwen3_5Model",
    "paddleocr_vl": "PaddleOCRVLModel", "glm4v": "Glm4vModel", "glm46v": "Glm46VModel",
}  # fmt: skip
"""transformers' model -> its class."""


@st.composite
def some_parts(draw, most_frames):
    """Text, then images or videos with text between them, as `multimodal` takes them."""
    parts = [draw(st.integers(1, 4))]
    for size in draw(st.lists(st.tuples(SIDE, SIDE, st.integers(1, most_frames)), max_size=3)):
        parts += [size, draw(st.integers(1, 3))]
    return parts[: draw(st.integers(1, len(parts)))]


@pytest.mark.parametrize("family", FAMILIES)
@SOME
@given(parts=some_parts(1))
def test_positions_of_images_are_those_of_transformers(family, parts):
    model = getattr(import_module(f"transformers.models.{family}.modeling_{family}"), FAMILIES[family])
    functions = ("get_rope_index", "get_vision_position_ids", "compute_3d_position_ids")
    body = {name: getattr(model, name) for name in functions} | {"rope_deltas": None}
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
    theirs = type(family, (), body | {"config": SimpleNamespace(vision_config=vision)})()
    kinds = torch.tensor(
        [[kind for part in parts for kind in ([0] * part if isinstance(part, int) else [1] * (part[0] * part[1]))]]
    )
    grids = [[1, 2 * part[0], 2 * part[1]] for part in parts if not isinstance(part, int)]
    want, _ = theirs.get_rope_index(
        torch.zeros_like(kinds), kinds, image_grid_thw=torch.tensor(grids) if grids else None, video_grid_thw=None,
        attention_mask=torch.ones_like(kinds),
    )  # fmt: skip
    assert torch.equal(multimodal(parts).q, want.permute(1, 2, 0))


@SOME
@given(parts=some_parts(7))
def test_videos_are_the_papers_loop(parts):
    loop = [part if isinstance(part, int) else (part[2], *part[:2]) for part in parts]
    q = multimodal(parts).q
    assert q[0].tolist() == [list(at) for at in places.qwen2_vl(loop)]
    step = multimodal([*parts, 2], 2, causal=True)
    assert torch.equal(step.k[:, :-2], q)
    assert torch.equal(step.q, step.k[:, -2:])
    assert torch.equal(step.mask(), multimodal([*parts, 2], causal=True).mask()[:, :, -2:])


def test_text_goes_on_after_the_last_frame_of_a_video():
    # Qwen2-VL's paper and transformers 4. transformers 5 leaves the frames out of it in a row, but not in decoding
    assert multimodal([1, (2, 3, 5), 1]).q[0, -1].tolist() == [6] * 3


def test_a_cache_leaves_attention_as_it_is():
    encoding, parts = posenc.create("m_rope", head_dim=12), [2, (2, 3), 2]
    q, k, v = torch.randn(3, 1, 2, 10, 12, dtype=torch.float64)
    full = posenc.attention(q, k, v, encoding, multimodal(parts, causal=True))
    step = posenc.attention(q[:, :, 9:], k, v, encoding, multimodal(parts, 1, causal=True))
    assert_close(step, full[:, :, 9:], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: multimodal([]), r"parts=\[\]"),
        (lambda: multimodal([3, 0]), r"0 is neither"),
        (lambda: multimodal([3, (2,)]), r"\(2,\) is neither"),
        (lambda: multimodal([3, (2, 0)]), r"width=0"),
        (lambda: multimodal([3, (2, None)]), r"\(2, None\) is neither"),
        (lambda: multimodal([3, (2, 2, 0)]), r"frames=0"),
        (lambda: multimodal([3], num_queries=4), r"num_queries=4"),
        (lambda: multimodal([3], "videorope"), r"num_queries='videorope'"),
        (lambda: multimodal([2**40]), r"is neither a number of text tokens"),
        (lambda: multimodal([2, (2**23, 2**23, 8)]), r"of at most 16777216 tokens"),
        (lambda: multimodal(torch.zeros(1, 9)), r"parts is a tensor of shape \(1, 9\): .*get_rope_index"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
