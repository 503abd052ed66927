"""Every encoding of images: the same on packed and padded images as on each alone, on patches taken as where the others
are hidden, with tokens without a place, and at another size than it was made for."""

import re

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import posenc
from posenc import AxialTable, Encoding, InputError, PerLayer, Positions
from posenc.encoding import Sum
from references.calls import EXACT, dense, random

GRID, HEADS, WIDTH = (3, 4), 4, 12
"""Made for 3 x 4 patches."""
NAMES = [
    "none", "grid_table:prefix=2", "grid_sinusoidal", "axial_rope", "axial_rope:centred=true:x_first=false:layout=half",
    "axial_rope:ladder=dealt:start=1", "mixed_rope", "m_rope", "m_rope:interleaved=true", "swin", "beit", "swin_v2",
    "swin_v2:cosine=false", "grid_alibi", "axial_rope+grid_alibi", "grid_table+swin",
]  # fmt: skip
NO_PREFIX = ("swin", "swin_v2")
EVERY = pytest.mark.parametrize("name", NAMES)
BACKEND = pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "flex"])
SIZES = [(3, 4), (2, 5), (4, 2), (1, 1)]
"""Of images: the one trained on, and others in both directions."""


def made(name: str) -> Encoding:
    torch.manual_seed(0)
    return random(posenc.create(name, dim=HEADS * WIDTH, num_heads=HEADS, num_layers=1, grid=GRID))


def prefix_for(name: str) -> int:
    return 0 if any(part.partition(":")[0] in NO_PREFIX for part in name.split("+")) else 2


def tokens(n: int, seed: int = 0, rows: int = 1) -> Tensor:
    return torch.randn(rows, n, HEADS * WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def attended(encoding: Encoding, x: Tensor, positions: Positions, backend: str = "reference") -> Tensor:
    """What one layer makes of tokens under the encoding: (batch, n, dim)."""
    x = encoding.embed(x, positions)
    g = torch.Generator().manual_seed(5)
    weights = torch.randn(3, x.shape[-1], x.shape[-1], dtype=x.dtype, generator=g) / 7
    q, k, v = ((x @ weight).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for weight in weights)
    return posenc.attention(q, k, v, encoding, positions, backend=backend).transpose(1, 2).flatten(-2)


@EVERY
@BACKEND
@pytest.mark.usefixtures("untraced")
def test_packed_and_padded_images_are_as_if_alone(name, backend):
    encoding, prefix = made(name), prefix_for(name)
    positions = [Positions.grid(*size, prefix=prefix) for size in SIZES]
    images = [tokens(p.num_queries, seed) for seed, p in enumerate(positions)]
    alone = [attended(encoding, x, p) for x, p in zip(images, positions, strict=True)]
    packed = attended(encoding, torch.cat(images, 1), Positions.grids(SIZES, prefix=prefix), backend)
    assert_close(packed, torch.cat(alone, 1), **EXACT)
    rows = torch.nn.utils.rnn.pad_sequence([x[0] for x in images], batch_first=True, padding_value=0.3)
    padded = attended(encoding, rows, Positions.grids(SIZES, prefix=prefix, padded=True), backend)
    for row, want in zip(padded, alone, strict=True):
        assert_close(row[: want.shape[1]], want[0], **EXACT)


@EVERY
@BACKEND
@pytest.mark.parametrize("size", SIZES[:2])
@pytest.mark.usefixtures("untraced")
def test_patches_taken_are_as_if_the_others_were_hidden(name, backend, size):
    encoding, prefix = made(name), prefix_for(name)
    positions, x = Positions.grid(*size, prefix=prefix), tokens(size[0] * size[1] + prefix_for(name), rows=2)
    index = torch.tensor([[7, 2, 5, 0], [1, 6, 3, 4]]) + prefix
    index = torch.cat((torch.arange(prefix).expand(2, -1), index), 1)
    shown = torch.zeros(2, positions.num_keys, dtype=torch.bool).scatter_(1, index, True)
    hidden = attended(encoding, x, positions.derived(valid=shown, q_valid=shown))
    index_of_channels = index[..., None].expand(-1, -1, x.shape[-1])
    taken = attended(encoding, x.gather(1, index_of_channels), positions.take(index), backend)
    assert_close(taken, hidden.gather(1, index_of_channels), **EXACT)
    one = attended(encoding, x[:1, index[0]], positions.take(index[0]), backend)
    assert_close(one[0], taken[0], **EXACT)


@EVERY
def test_patches_taken_of_packed_images_in_one_another(name):
    encoding, prefix = made(name), prefix_for(name)
    packed, first = Positions.grids(SIZES[:2], prefix=prefix), 12 + prefix  # tokens of the first image
    x, before = tokens(22 + 2 * prefix), torch.arange(prefix)
    patches = torch.tensor([5, first + 3, 0, first + 8, 9]) + prefix
    index = torch.cat((before, before + first, patches))
    actual = attended(encoding, x[:, index], packed.take(index))
    for start, size, mine in ((0, SIZES[0], index < first), (first, SIZES[1], index >= first)):
        alone = Positions.grid(*size, prefix=prefix).take(index[mine] - start)
        assert_close(actual[:, mine], attended(encoding, x[:, index[mine]], alone), **EXACT)


@EVERY
def test_another_size_is_served_and_gives_other_outputs(name):
    """Also wide from high: 2 x 5 and 5 x 2 patches differ in where they are only."""
    encoding, x, prefix = made(name), tokens(10 + prefix_for(name)), prefix_for(name)
    wide, high = (attended(encoding, x, Positions.grid(*size, prefix=prefix)) for size in ((2, 5), (5, 2)))
    assert wide.isfinite().all()
    assert torch.allclose(wide, high) == (name == "none")


@pytest.mark.parametrize("name", ["axial_rope", "axial_rope:centred=true", "mixed_rope", "m_rope", "grid_sinusoidal"])
def test_an_image_is_a_video_of_one_frame(name):
    encoding = random(posenc.create(name, dim=HEADS * WIDTH, num_heads=HEADS, num_layers=1, grid=(2, 3, 4)))
    x, image, video = tokens(7), Positions.grid(2, 3, prefix=1), Positions.grid(2, 3, frames=1, prefix=1)
    assert encoding.axes == 3
    assert_close(attended(encoding, x, image), attended(encoding, x, video), **EXACT)


# ---------------------------------------------------------------- tables at another size


@pytest.mark.parametrize("name", ["grid_table:prefix=1", "swin", "beit"])
@pytest.mark.parametrize("size", [(5, 6), (2, 2), (4, 3), (3, 4)])
def test_a_table_at_another_size_is_the_resized_one_and_is_trained_through_it(name, size):
    encoding, prefix = made(name), int(name != "swin")
    positions, x = Positions.grid(*size, prefix=prefix), tokens(size[0] * size[1] + prefix)
    assert_close(attended(encoding, x, positions), attended(encoding.resized(*size), x, positions), **EXACT)
    target = encoding.embed(x, positions).sum() if name.startswith("grid") else dense(encoding, positions, HEADS).sum()
    target.backward()
    assert encoding.table.grad.any(-1).float().mean() > 0.5


@pytest.mark.parametrize("name", ["grid_table", "swin", "beit"])
def test_beyond_decides_what_another_size_gets(name):
    x, smaller, larger = tokens(20), Positions.grid(2, 3), Positions.grid(4, 5)
    made_so = {
        how: random(posenc.create(f"{name}:beyond={how}", dim=HEADS * WIDTH, num_heads=HEADS, num_layers=1, grid=GRID))
        for how in ("resize", "error", "clamp")
    }
    for encoding in made_so.values():
        encoding.load_state_dict(made_so["resize"].state_dict())
    actual = {how: attended(encoding, x[:, :6], smaller) for how, encoding in made_so.items()}
    assert torch.equal(actual["error"], actual["clamp"])
    assert not torch.allclose(actual["resize"], actual["error"])
    corner = made_so["error"].resized(3, 4)
    assert_close(attended(corner, x[:, :6], smaller), actual["error"], **EXACT)
    with pytest.raises(InputError, match=r"outside"):
        attended(made_so["error"], x, larger)
    nearest = Positions.from_ids(torch.minimum(larger.q, torch.tensor([2, 3])))
    clamped = attended(made_so["clamp"], x, larger)
    if name == "grid_table":
        assert_close(clamped, attended(made_so["clamp"], x, nearest), **EXACT)
    numbered = Positions.from_ids(larger.q)
    with pytest.raises(InputError, match=r"outside"):
        attended(made_so["resize"], x, numbered)  # the size of the image is not known


def test_centred_coordinates_of_taken_patches_are_those_of_the_full_image():
    encoding = posenc.AxialRotary(WIDTH, centred=True)
    full = Positions.grid(3, 5)
    indices = torch.tensor([1, 6, 8])
    angles = encoding.angles(encoding.coordinates(full)[0], None, 0)
    taken = full.take(indices)
    assert_close(encoding.angles(encoding.coordinates(taken)[0], None, 0), angles[:, :, indices], **EXACT)
    last = full.keys(6, 15)
    assert_close(encoding.coordinates(last)[1], encoding.coordinates(full)[1][:, 6:], **EXACT)


# ---------------------------------------------------------------- made for a grid


def test_a_grid_gives_an_encoding_its_shape():
    shape = {"dim": 48, "num_heads": 4}
    table = posenc.create("grid_table", grid=(3, 5), **shape)
    assert (table.height, table.width) == (3, 5)
    assert posenc.create("axial_rope", grid=(2, 3, 5), **shape).axes == 3
    assert posenc.create("grid_sinusoidal", grid=(3, 5), **shape).axes == 2
    assert posenc.create("swin:width=9", grid=(3, 5), **shape).width == 9
    assert posenc.create("learned", grid=(3, 5), **shape).max_positions == 15
    axial = posenc.create("axial_table", grid=(3, 5), **shape)
    assert isinstance(axial, AxialTable)
    assert (axial.columns, axial.max_positions) == (5, 15)
    for name, kind in (("swin+grid_alibi", Sum), ("beit/none", PerLayer)):
        both = posenc.create(name, grid=(3, 5), num_layers=2, **shape)
        assert isinstance(both, kind)
        assert (next(iter(both)).height, next(iter(both)).width) == (3, 5)
    for grid in ((3,), (3, 0), (3, 2.5), (1, 2, 3, 4)):
        with pytest.raises(InputError, match=r"grid="):
            posenc.create("swin", grid=grid, **shape)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("axial_rope", r"sdpa: no bias, and every query sees every key"), ("grid_table", r"sdpa: no bias"),
        *((name, r"sdpa: few queries and keys: a dense float mask") for name in ("swin", "beit", "swin_v2", "grid_alibi")),
    ],
)  # fmt: skip
def test_explain_says_how_images_are_attended(name, why):
    q = torch.randn(1, HEADS, 12, WIDTH)
    assert re.search(why, str(posenc.explain(q, q, q, made(name).float(), Positions.grid(*GRID))))
