# SPDX-License-Identifier: Apache-2.0
"""Positions of text with images and videos: the rules against transformers and the authors, rows, padding, caches."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import posenc
from posenc import InputError
from posenc.pretrained.multimodal_positions import RULES, multimodal
from posenc.testing.oracles import places

SIDE = st.integers(1, 5)
SOME = settings(max_examples=40)
IMAGES = st.tuples(st.just(1), SIDE, SIDE)
VIDEOS = st.tuples(st.integers(1, 7), SIDE, SIDE)
STILLS = ["circle_rope"]
LOOPS = {
    "qwen2_vl": places.qwen2_vl, "videorope": places.videorope,
    "v2pe": lambda row: places.v2pe(row, 0.0625), "circle_rope": places.circle_rope,
}  # fmt: skip
IDS = {"image_token_id": 1, "video_token_id": 2}


@st.composite
def a_row(draw, visions=IMAGES | VIDEOS):
    """Parts of a row: text, then images and videos with text between them; (frames, height, width, is a video)."""
    row = [draw(st.integers(1, 4))]
    for size in draw(st.lists(visions, max_size=3)):
        row += [(*size, draw(st.booleans())), draw(st.integers(1, 3))]
    return row[: draw(st.integers(1, len(row)))]


def plain(row):
    return [part if isinstance(part, int) else part[:3] for part in row]


def batch_of(rows, side="right", merge=1):
    """Kinds (batch, n), the mask, and tables of images and videos before merging, None where there are none."""
    listing = [
        torch.cat([torch.zeros(p, dtype=torch.long) if isinstance(p, int) else torch.full((p[0] * p[1] * p[2],), 1 + p[3]) for p in row])
        for row in rows
    ]  # fmt: skip
    n = max(map(len, listing))
    kinds, mask = torch.zeros(len(rows), n, dtype=torch.long), torch.zeros(len(rows), n, dtype=torch.long)
    for one, marks, row in zip(kinds, mask, listing, strict=True):
        place = slice(0, len(row)) if side == "right" else slice(n - len(row), n)
        one[place], marks[place] = row, 1
    tables: list[list[list[int]]] = [[], []]
    for row in rows:
        for part in row:
            if not isinstance(part, int):
                tables[part[3]].append([part[0], part[1] * merge, part[2] * merge])
    return kinds, mask, *(torch.tensor(table) if table else None for table in tables)


def given_row(kinds, images, videos, rule, **options):
    return multimodal(
        kinds, rule, image_grid_thw=images, video_grid_thw=videos, **IDS, **options
    )  # fmt: skip


# ---------------------------------------------------------------- transformers

FAMILIES = {
    "qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel", "qwen3_vl": "Qwen3VLModel", "qwen3_5": "Qwen3_5Model",
    "paddleocr_vl": "PaddleOCRVLModel", "glm4v": "Glm4vModel", "glm46v": "Glm46VModel",
}  # fmt: skip
"""transformers' model -> its class."""


def theirs_of(family: str, merge: int):
    """transformers' functions of a model, with its config."""
    model = getattr(import_module(f"transformers.models.{family}.modeling_{family}"), FAMILIES[family])
    functions = ("get_rope_index", "get_vision_position_ids", "compute_3d_position_ids")
    vision = SimpleNamespace(spatial_merge_size=merge, tokens_per_second=2)
    body = {name: getattr(model, name) for name in functions} | {"rope_deltas": None}
    return type(family, (), body | {"config": SimpleNamespace(vision_config=vision)})()


@pytest.mark.parametrize("family", FAMILIES)
@SOME
@given(data=st.data(), side=st.sampled_from(["left", "right"]), merge=st.integers(1, 3))
def test_positions_of_images_are_those_of_transformers(family, data, side, merge):
    rows = [
        [part if isinstance(part, int) else (*part[:3], False) for part in row]
        for row in data.draw(st.lists(a_row(IMAGES), min_size=1, max_size=3))
    ]
    kinds, mask, images, _ = batch_of(rows, side, merge)
    want, _ = theirs_of(family, merge).get_rope_index(
        torch.zeros_like(kinds), kinds, image_grid_thw=images, video_grid_thw=None, attention_mask=mask
    )
    positions = given_row(kinds, images, None, "qwen2_vl", spatial_merge_size=merge, attention_mask=mask)
    assert torch.equal(positions.q, want.permute(1, 2, 0))
    assert torch.equal(positions.valid, mask.bool())


def test_text_goes_on_after_the_last_frame_of_a_video():
    # Qwen2-VL's paper and transformers 4. transformers 5 leaves the frames out of it in a row, but not in decoding
    assert multimodal([1, (2, 3, 5), 1]).q[0, -1].tolist() == [6] * 3


# ---------------------------------------------------------------- the papers, token by token


@pytest.mark.parametrize("rule", LOOPS)
@SOME
@given(data=st.data(), side=st.sampled_from(["left", "right"]))
def test_rows_are_their_loops(rule, data, side):
    visions = IMAGES if rule in STILLS else IMAGES | VIDEOS
    rows = data.draw(st.lists(a_row(visions), min_size=1, max_size=3))
    kinds, mask, images, videos = batch_of(rows, side, 2)
    positions = given_row(kinds, images, videos, rule, attention_mask=mask)
    q = positions.q[..., None] if positions.q.dim() == 2 else positions.q
    for at, marks, row in zip(q, mask.bool(), rows, strict=True):
        assert_close(at[marks].double(), torch.tensor(LOOPS[rule](plain(row)), dtype=torch.float64), rtol=0, atol=1e-9)
        assert not at[~marks].any()
    packed = multimodal(
        kinds[mask.bool()][None], rule, image_grid_thw=images, video_grid_thw=videos, **IDS,
        document_ids=mask.nonzero()[:, 0], causal=True,
    )  # fmt: skip
    assert_close(packed.q[0], positions.q[mask.bool()], rtol=0, atol=0)
    blocks = torch.block_diag(*(torch.ones(int(n), int(n)).tril() for n in mask.sum(1))).bool()
    assert torch.equal(packed.mask()[0, 0], blocks)


@pytest.mark.parametrize("rule", LOOPS)
@SOME
@given(data=st.data())
def test_parts_are_rows(rule, data):
    visions = IMAGES if rule in STILLS else IMAGES | VIDEOS
    row = data.draw(a_row(visions))
    parts = [part if isinstance(part, int) else (*part[1:3], *part[:1])[: 2 + (part[0] > 1)] for part in row]
    q = multimodal(parts, rule).q[0]
    want = torch.tensor(LOOPS[rule](plain(row)), dtype=torch.float64)
    assert_close((q[:, None] if q.dim() == 1 else q).double(), want, rtol=0, atol=1e-9)
    step = multimodal([*parts, 2], rule, 2, causal=True)
    assert torch.equal(step.k[0, :-2], q)
    assert torch.equal(step.q, step.k[:, -2:])
    assert torch.equal(step.mask(), multimodal([*parts, 2], rule, causal=True).mask()[:, :, -2:])


@SOME
@given(row=a_row(), spacing=st.sampled_from([0.5, 1.0, 2.0, 1.25]), delta=st.sampled_from([1.0, 0.25, 1 / 256]))  # fmt: skip
def test_options_are_those_of_the_loops(row, spacing, delta):
    kinds, _, images, videos = batch_of([row])
    merged = {"spatial_merge_size": 1}
    spaced = given_row(kinds, images, videos, "videorope", spacing=spacing, **merged)
    assert spaced.q[0].tolist() == [list(at) for at in places.videorope(plain(row), spacing)]
    assert spaced.fractional == (spacing != int(spacing))
    fine = given_row(kinds, images, videos, "v2pe", delta=delta, **merged)
    assert fine.q[0].tolist() == [at for (at,) in places.v2pe(plain(row), delta)]


@SOME
@given(row=a_row(IMAGES), radius=st.none() | st.floats(0.5, 20), alpha=st.floats(0, 1))
def test_a_circle_is_its_loop_and_as_far_from_every_text_token(row, radius, alpha):
    kinds, _, images, videos = batch_of([row])
    positions = given_row(kinds, images, videos, "circle_rope", radius=radius, alpha=alpha, spatial_merge_size=1)
    want = torch.tensor(places.circle_rope(plain(row), radius, alpha), dtype=torch.float64)
    assert_close(positions.q[0], want, rtol=0, atol=1e-9)
    if radius is not None:
        apart = (positions.q[0, kinds[0] != 0] - positions.q[0, 0]).norm(dim=1)
        centre = iter(torch.tensor(apart.tolist()).split([p[0] * p[1] * p[2] for p in row if not isinstance(p, int)]))
        assert all(float(each.max() - each.min()) < 1e-5 for each in centre)


@pytest.mark.parametrize("empty", [[], torch.empty(0, 3), torch.empty(0, 3, dtype=torch.long)])
def test_no_images_are_an_empty_table(empty):
    assert given_row(torch.zeros(1, 3, dtype=torch.long), empty, empty, "qwen2_vl").q[0, :, 2].tolist() == [0, 1, 2]


@pytest.mark.parametrize("rule", RULES)
def test_padding_alone_is_at_0(rule):
    kinds = torch.zeros(2, 3, dtype=torch.long)
    for hidden in ({"attention_mask": kinds}, {"document_ids": kinds[:1] - 1}):
        positions = multimodal(kinds, rule, **hidden)
        assert not positions.q.any()
        assert not positions.mask().any()


def test_one_row_of_documents_is_for_all():
    kinds = torch.tensor([[0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 2, 2]])
    positions = multimodal(
        kinds, image_grid_thw=[[1, 2, 1]], video_grid_thw=[[2, 1, 1]], spatial_merge_size=1, **IDS,
        document_ids=torch.tensor([4, 4, 4, -1, 2, 2]),
    )  # fmt: skip
    assert positions.q[..., 0].tolist() == [[0, 1, 1, 0, 0, 1], [0, 1, 2, 0, 0, 1]]
    assert positions.q[..., 1].tolist() == [[0, 1, 2, 0, 0, 1], [0, 1, 2, 0, 0, 0]]
    assert positions.q_valid.tolist() == [[True] * 3 + [False] + [True] * 2]


def test_v2pe_needs_no_sizes():
    kinds = torch.tensor([[0, 1, 1, 1, 0, 2, 2, 0]])
    positions = multimodal(kinds, "v2pe", delta=0.5, **IDS)
    assert positions.q.tolist() == [[0, 0.5, 1, 1.5, 3, 3.5, 4, 5]]


# ---------------------------------------------------------------- with encodings


@pytest.mark.parametrize("rule", ["qwen2_vl", "videorope", "circle_rope", "v2pe"])
def test_a_cache_and_padding_leave_attention_as_it_is(rule):
    encoding = posenc.create("m_rope", head_dim=12, time_last=rule == "videorope")
    kinds, sizes = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 0, 0]]), torch.tensor([[1, 4, 6]])
    options = {"image_token_id": 1, "image_grid_thw": sizes, "causal": True}
    q, k, v = torch.randn(3, 1, 2, 10, 12, dtype=torch.float64)
    full = posenc.attention(q, k, v, encoding, multimodal(kinds, rule, **options))
    step = multimodal(kinds, rule, 1, **options)
    assert_close(posenc.attention(q[:, :, 9:], k, v, encoding, step), full[:, :, 9:], rtol=1e-10, atol=1e-12)
    padded = multimodal(
        torch.nn.functional.pad(kinds, (3, 0)), rule, attention_mask=torch.tensor([[0] * 3 + [1] * 10]), **options
    )
    q, k, v = (torch.nn.functional.pad(x, (0, 0, 3, 0), value=5.0) for x in (q, k, v))
    assert_close(posenc.attention(q, k, v, encoding, padded)[:, :, 3:], full, rtol=1e-10, atol=1e-12)


def test_every_rule_is_on_the_page():
    page = (Path(__file__).parents[2] / "docs/vision-grid.md").read_text()
    assert all(f"| `{rule}`" in page or f", `{rule}`" in page for rule in RULES)


# ---------------------------------------------------------------- refusals

ROW = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 0], [2, 2, 2, 2, 0, 2, 2, 2, 2]])
FITS = {"image_grid_thw": [[1, 4, 6]], "video_grid_thw": np.array([[1, 4, 4], [1, 4, 4]]), **IDS}


def test_the_row_of_the_refusals_is_taken():
    assert multimodal(ROW, **FITS).q.shape == (2, 9, 3)


def of(rule="qwen2_vl", row=ROW, **changes):
    return lambda: multimodal(row, rule, **FITS | changes)


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
        (lambda: multimodal([3], "qwen2vl"), r"unknown rule 'qwen2vl': did you mean 'qwen2_vl'"),
        (lambda: multimodal([3], None), r"unknown rule None"),
        (lambda: multimodal([3], "v2pe", spacing=2.0), r"spacing=2.0: rule 'v2pe' takes delta"),
        (lambda: multimodal([3], spacing=2.0), r"rule 'qwen2_vl' takes no options"),
        (lambda: multimodal([3], "qwen3_vl"), r"rule='qwen3_vl': call the model's own get_rope_index"),
        (lambda: multimodal([3], "v2pe", delta=0), r"delta=0: must be a positive number"),
        (lambda: multimodal([3], "videorope", spacing="2"), r"spacing='2': pass a number"),
        (lambda: multimodal([3], "circle_rope", alpha=2), r"alpha=2: must be at most 1"),
        (lambda: multimodal([3, (2, 2, 2)], "circle_rope"), r"this rule is for images: pass each frame"),
        (lambda: multimodal([3, (2, 2)], image_grid_thw=[[1, 2, 2]]), r"image_grid_thw=.*parts have their sizes"),
        (of(row=ROW[0]), r"tokens of shape \(9,\): pass token ids \(batch, n\)"),
        (of(row=ROW.float()), r"tokens of torch.float32: pass integers"),
        (of(row=ROW.to_sparse()), r"pass a dense tensor"),
        (of(video_grid_thw=[[2**40, 4, 4]]), r"video_grid_thw\[0\]=.*all rows have 18"),
        (lambda: multimodal([2**40]), r"is neither a number of text tokens"),
        (lambda: multimodal([2, (2**23, 2**23, 8)]), r"of at most 16777216 tokens"),
        (of(video_token_id=1), r"pass two ids"),
        (of(image_token_id=None), r"image_grid_thw without image_token_id"),
        (of(image_grid_thw=None), r"image_grid_thw is for 0 images, row 0 has tokens of one more at index 2"),
        (of(image_grid_thw=[[1, 4, 4]]), r"image_grid_thw is for 1 image, row 0 has tokens of one more at index 6"),
        (of(image_grid_thw=[[1, 4, 8]]), r"image_grid_thw: image 0 has 1 x 2 x 4 = 8 tokens.*row 0 has 6 at index 2"),
        (of(image_grid_thw=[[1, 4, 6], [1, 2, 2]]), r"image_grid_thw is for 2 images, the rows have tokens of 1"),
        (of(image_grid_thw=[[1, 4, 5]]), r"image_grid_thw\[0\]=\[1, 4, 5\].*multiples of spatial_merge_size=2"),
        (of(image_grid_thw=[[4, 6]]), r"image_grid_thw=.*pass integers \(count, 3\)"),
        (of(video_grid_thw=[[1, 4, 4]] * 3), r"video_grid_thw is for 3 videos, the rows have tokens of 2"),
        (of(video_grid_thw=[[2, 4, 4]]), r"video_grid_thw: video 0 has 2 x 2 x 2 = 8 tokens.*row 1 has 4 at index 0"),
        (of(spatial_merge_size=None), r"spatial_merge_size=None: pass an integer"),
        (of(spatial_merge_size=0), r"spatial_merge_size=0: must be at least 1"),
        (of(attention_mask=torch.ones(3, 9)), r"attention_mask of shape \(3, 9\): pass one entry for each of the 2 x 9"),
        (of(document_ids=torch.zeros(8, dtype=torch.long)), r"document_ids of shape \(1, 8\)"),
        (of(document_ids=torch.tensor([0] * 4 + [1] * 5)), r"image 0 has 1 x 2 x 3 = 6 tokens.*row 0 has 2 at index 2"),
        (of(document_ids=ROW, attention_mask=ROW), r"pass one of them"),
        (of(num_queries=10), r"num_queries=10: must be at most 9"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
