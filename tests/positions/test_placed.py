# SPDX-License-Identifier: Apache-2.0
"""Whether a token has a place is a field of the positions, and no coordinate says it: not in any encoding, at any value."""

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import Positions
from posenc.positions.patches import marked
from references.calls import EXACT, random

HEADS, WIDTH = 2, 24
IMAGES = [
    "axial_rope", "axial_rope:start=1:layout=half", "mixed_rope", "m_rope", "liere", "comrope", "comrope:variant=ap",
    "cayley_string", "grid_alibi", "grid_sinusoidal", "swin", "swin:beyond=clamp", "beit", "swin_v2", "grid_table:beyond=clamp",
    "shape+mixed_rope", "cape+mixed_rope", "axial_rope+grid_alibi",
]  # fmt: skip
VIDEOS = ["axial_rope", "mixed_rope", "m_rope", "liere", "comrope", "cayley_string", "grid_alibi", "grid_sinusoidal"]
ENCODINGS = [(name, 2) for name in IMAGES] + [(name, 3) for name in VIDEOS]
EVERY = pytest.mark.parametrize(("name", "axes"), ENCODINGS, ids=lambda value: str(value))


def made(name: str, axes: int) -> posenc.Encoding:
    grid = (3, 4) if axes == 2 else (2, 3, 4)
    return random(posenc.create(name, dim=HEADS * WIDTH, num_heads=HEADS, num_layers=1, grid=grid)).eval()


def grid_of(axes: int, **options) -> Positions:
    return Positions.grid(3, 4, None if axes == 2 else 2, **options)


def outputs(encoding: posenc.Encoding, positions: Positions, seed: int = 0, backend: str = "auto") -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    n = positions.num_keys
    q, k, v = (torch.randn(1, HEADS, n, WIDTH, dtype=torch.float64, generator=generator) for _ in range(3))
    x = torch.randn(1, n, HEADS * WIDTH, dtype=torch.float64, generator=generator)
    positions = encoding.augment(positions, 1)
    x = encoding.embed(x, positions).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
    with torch.no_grad():
        return posenc.attention(q + x, k + x, v, encoding, positions, backend=backend)


def centred(axes: int) -> torch.Tensor:
    """Coordinates around zero, with a token at -1 on every axis among them."""
    at = grid_of(axes).q - 1
    assert (at == -1).all(-1).any()
    return at


# ---------------------------------------------------------------- no value is reserved


@EVERY
@pytest.mark.parametrize("backend", ["auto", "reference", "flex"])
@pytest.mark.usefixtures("untraced")
def test_a_grid_around_zero_is_the_same_grid(name, axes, backend):
    encoding = made(name, axes)
    if name.startswith("grid_table"):
        pytest.skip("a table has no rows for negative positions and says so")
    here = outputs(encoding, Positions.from_ids(centred(axes)), backend=backend)
    assert here.isfinite().all()
    if encoding.shift_invariant:
        there = outputs(encoding, Positions.from_ids(centred(axes) + 5), backend=backend)
        assert_close(here, there, rtol=1e-9, atol=1e-11)
    if not name.startswith(("swin:", "beit", "swin")) or name == "swin_v2":
        assert_close(here, outputs(encoding, Positions.from_ids(centred(axes).double()), backend=backend), **EXACT)


@pytest.mark.parametrize("name", [name for name in IMAGES if "grid_table" not in name])
def test_every_coordinate_counts(name):
    """Each of the two tokens is moved; that changes the output wherever they were before."""
    encoding = random(posenc.create(name, dim=HEADS * WIDTH, num_heads=HEADS, num_layers=1, grid=(9, 9))).eval()
    for y, x in ((-1, -1), (0, 0), (-2, 1), (1, -1)):
        at = torch.tensor([[[y, x], [0, 2], [1, 1]]])
        before, after = (
            outputs(encoding, Positions.from_ids(at)),
            outputs(encoding, Positions.from_ids(at * torch.tensor([1, 2]))),
        )
        assert not torch.allclose(before, after), (y, x)


def test_an_image_of_frame_minus_one_is_turned_as_others():
    encoding = made("axial_rope", 3)
    at = torch.tensor([[[-1, -1, -1], [0, 0, 0], [-1, 2, 1]]])
    assert_close(outputs(encoding, Positions.from_ids(at)), outputs(encoding, Positions.from_ids(at + 9)), **EXACT)


# ---------------------------------------------------------------- tokens without a place keep that, wherever others are moved

MOVES = {
    "halved": lambda at: at * 0.5,
    "doubled": lambda at: at * 2,
    "shifted": lambda at: at - 7,
    "jittered": lambda at: at + torch.linspace(-0.3, 0.3, at.shape[1], dtype=torch.float64)[None, :, None],
}


@EVERY
@pytest.mark.parametrize("move", MOVES)
def test_moved_patches_leave_the_tokens_before_them_without_a_place(name, axes, move):
    encoding, prefix = made(name, axes), 2
    if name.startswith(("swin", "grid_table", "beit")):
        pytest.skip("takes no fractional positions, or no tokens without a place")
    positions = grid_of(axes, prefix=prefix).moved(lambda at, order: MOVES[move](at))
    for side, placed in ((positions.q, positions.q_placed), (positions.k, positions.k_placed)):
        assert placed.tolist() == [[False] * prefix + [True] * (positions.num_keys - prefix)]
        assert not side[:, :prefix].any()
    q, k = torch.randn(2, 1, HEADS, positions.num_keys, WIDTH, dtype=torch.float64)
    nowhere = Positions.from_ids(torch.zeros_like(positions.q), placed=positions.q_placed)
    still = encoding.rotate(q, k, nowhere) if name == "cayley_string" else (q, k)  # which changes the basis as well
    for given, turned in zip(still, encoding.rotate(q, k, positions), strict=True):
        assert_close(turned[:, :, :prefix], given[:, :, :prefix], rtol=0, atol=1e-12)
    x = torch.randn(1, positions.num_keys, HEADS * WIDTH, dtype=torch.float64)
    assert torch.equal(encoding.embed(x, positions)[:, :prefix], x[:, :prefix])
    if "grid_alibi" in name:
        bias = posenc.create("grid_alibi", num_heads=HEADS).bias(q, k, positions)
        dense = posenc.bias.dense_sum((bias,), q.device)
        assert not dense[..., :prefix].any()
        assert not dense[..., :prefix, :].any()
        assert (dense[..., prefix, prefix + 1 :] < 0).all()


@EVERY
def test_where_the_coordinates_of_tokens_without_a_place_are_given_does_not_matter(name, axes):
    if name.startswith(("swin", "axial_rope:start")):
        pytest.skip("takes no tokens without a place, or is compared at its start below")
    grid, encoding = grid_of(axes, prefix=2), made(name, axes)
    placed = torch.tensor([[0, 0] + [1] * (grid.num_keys - 2)])
    want = outputs(encoding, Positions.from_ids(grid.q, placed=placed))
    for value in (-1, 0, 3, 900):
        given = Positions.from_ids(torch.cat((torch.full_like(grid.q[:, :2], value), grid.q[:, 2:]), 1), placed=placed)
        assert_close(outputs(encoding, given), want, **EXACT)
    if not name.startswith(("grid_table", "beit")):
        assert_close(outputs(encoding, grid), want, **EXACT)


# ---------------------------------------------------------------- every derivation carries it


def test_derived_positions_carry_it():
    grid = Positions.grid(2, 3, prefix=2)
    want = grid.q_placed
    same = {
        "with_causal": grid.with_causal(True), "with_window": grid.with_window(3), "with_blocks": grid.with_blocks(2),
        "with_prefix": grid.with_prefix(2), "to": grid.to("cpu"), "moved": grid.moved(lambda at, order: at * 3),
        "with_gates": grid.with_gates((torch.zeros(1, 1, 8, 1),)), "at": grid.at(None),
        "marked": marked(grid),
    }  # fmt: skip
    for name, positions in same.items():
        assert torch.equal(positions.q_placed, want), name
        assert torch.equal(positions.k_placed, want), name
    part = grid.shard(0, 2, layout="zigzag")
    assert torch.equal(part.q_placed, want[:, [0, 1, 6, 7]])
    assert torch.equal(part.k_placed, want)
    assert torch.equal(grid.keys(1, 5).k_placed, want[:, 1:5])
    assert torch.equal(grid.keys(1, 5).q_placed, want)
    text, crossed = Positions.arange(4), Positions.cross(Positions.arange(4), grid)
    assert crossed.q_placed is None
    assert torch.equal(crossed.k_placed, want)
    assert torch.equal(Positions.cross(grid, text).q_placed, want)
    assert torch.equal(grid.take([0, 1, 5]).q_placed, torch.tensor([[False, False, True]]))
    padded = Positions.grids([(1, 2), (2, 2)], prefix=1, padded=True)
    assert torch.equal(padded.q_placed.expand(2, -1), torch.tensor([[False] + [True] * 4] * 2))
    packed = Positions.grids([(1, 2), (2, 1)], prefix=1)
    assert packed.q_placed.tolist() == [[False, True, True] * 2]
    assert "without a place" in repr(grid)
    assert "without a place" not in repr(Positions.grid(2, 3))


def test_without_its_class_token_an_image_is_as_made_without():
    grid, plain = Positions.grid(2, 3, prefix=1), Positions.grid(2, 3)
    taken = grid.take(range(1, 7))
    assert taken.q_placed is None
    encoding = random(posenc.create("swin", num_heads=HEADS, grid=(2, 3)))
    assert_close(outputs(encoding, taken), outputs(encoding, plain), **EXACT)
    assert Positions.from_ids(plain.q, placed=torch.ones(6)).q_placed is None


def test_moved_to_one_axis_every_token_is_at_its_number():
    line = Positions.grid(2, 2, prefix=1).moved(lambda at, order: order)
    assert line.q_placed is line.k_placed is None
    assert_close(
        outputs(posenc.Rotary(WIDTH), line), outputs(posenc.Rotary(WIDTH), Positions.arange(5)), **EXACT
    )  # fmt: skip


def test_a_centred_rotation_leaves_them_where_the_patches_turn():
    encoding, grid = posenc.AxialRotary(WIDTH, centred=True), Positions.grid(2, 3, prefix=1)
    q = torch.randn(1, HEADS, 7, WIDTH, dtype=torch.float64)
    turned, _ = encoding.rotate(q, q, grid)
    assert torch.equal(turned[:, :, 0], q[:, :, 0])
    assert not torch.isclose(turned[:, :, 1:], q[:, :, 1:]).all(-1).any()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            (torch.zeros(1, 4, 2), [1, 1, 1]),
            r"placed of shape \(1, 3\): pass \(\[batch,\] 4\), for keys on several axes",
        ),
        ((torch.arange(3), [1, 1, 0]), "several axes"),
        ((torch.zeros(1, 4, 2), [1, 1, 1, 2]), "ones and zeros"),
        ((torch.zeros(2, 4, 2), torch.ones(3, 4)), r"placed of shape \(3, 4\)"),
    ],
)
def test_bad_input_is_named(given, why):
    ids, placed = given
    with pytest.raises(posenc.InputError, match=why):
        Positions.from_ids(ids, placed=placed)
