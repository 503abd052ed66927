"""Rotations over several axes: axial RoPE, M-RoPE, RoPE-Mixed."""

import math
from importlib import import_module

import pytest
import torch
import transformers
from torch import Tensor
from torch.testing import assert_close

from posenc import AxialRotary, InputError, MixedRotary, MRotary, Positions, Rotary
from posenc.testing.oracles import rotations
from references.calls import scores

qwen2_vl, qwen3_vl = (import_module(f"transformers.models.{name}.modeling_{name}") for name in ("qwen2_vl", "qwen3_vl"))
EXACT = {"rtol": 1e-10, "atol": 1e-11}
FLOAT32 = {"rtol": 0, "atol": 2e-5}
GRIDS = pytest.mark.parametrize(("height", "width"), [(3, 5), (5, 2), (4, 4), (1, 7)])
PIXTRAL = {"rope_theta": 10000.0, "layout": "half", "x_first": False, "ladder": "dealt"}
DINOV3 = {"layout": "half", "x_first": False, "centred": True}
LLAMA4 = {"rope_theta": 10000.0, "start": 1}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# ---------------------------------------------------------------- the formulas


FORMULAS = [
    ({}, lambda y, x, h, w: (x, y)),
    ({"layout": "half"}, lambda y, x, h, w: (x, y)),
    ({"rope_theta": 30.0, "x_first": False}, lambda y, x, h, w: (y, x)),
    (PIXTRAL, lambda y, x, h, w: (y, x)),
    (DINOV3, lambda y, x, h, w: (math.pi * (4 * (y + 0.5) / h - 2), math.pi * (4 * (x + 0.5) / w - 2))),
    (LLAMA4, lambda y, x, h, w: (x + 1, y + 1)),
]
"""Options, the last ones Pixtral's, DINOv3's and Llama 4's, and the coordinates of the two blocks of pairs."""


@GRIDS
def test_axial_rope_is_its_formula(height, width):
    for options, axes in FORMULAS:
        check_formula(options, axes, height, width)


def check_formula(options, axes, height, width):
    at = torch.cartesian_prod(torch.arange(height), torch.arange(width)).double().T
    at = torch.cat((torch.zeros(2, 1), torch.stack(axes(*at, height, width))), 1)  # a prefix token, which does not turn
    q, k = random(2, at.shape[1], 16), random(1, at.shape[1], 16)
    base, given = options.get("rope_theta", 100.0), {"layout": options.get("layout", "interleaved")}
    if "ladder" in options:  # Pixtral's: even entries of the head's for the first axis, odd ones for the second
        given["frequency"] = lambda ladders: rotations.frequencies(16, base).view(8 // 2, 2).T.flatten()
    turned_q, turned_k = (rotations.rotary_axial(x[None], at, base, [8, 8], **given)[0] for x in (q, k))
    expected = turned_q @ turned_k.mT
    grid = Positions.grid(height, width, prefix=1)
    assert_close(scores(AxialRotary(16, **options), q[None], k[None], grid)[0], expected, **EXACT)
    wrong = scores(AxialRotary(16, **options | {"x_first": not options.get("x_first", True)}), q[None], k[None], grid)
    assert (wrong[0] - expected).abs().max() > 1e-3, "the other order of the axes gives other scores"


def test_three_axes_split_the_pairs_in_three():
    table = AxialRotary(24, axes=3, rope_theta=16.0).frequency
    each = 16.0 ** (-6 * torch.arange(4, dtype=torch.float64) / 24)
    expected = torch.zeros(12, 3, dtype=torch.float64)
    for block, axis in enumerate((2, 1, 0)):  # x, y, t of Positions.grid's (t, y, x)
        expected[4 * block : 4 * block + 4, axis] = each
    assert_close(table, expected, **EXACT)


@pytest.mark.parametrize("x_first", [True, False])
def test_blocks_apart_are_rotated_each_by_itself(x_first):
    """Allegro's channels: a block of each axis, whose halves are its pairs."""
    grid, sizes = Positions.grid(2, 3, frames=2), [12, 8, 4] if x_first else [4, 8, 12]
    encoding = AxialRotary(24, sections=(2, 4, 6), layout="half", channels="apart", x_first=x_first)
    q, k = random(1, 2, 12, 24), random(1, 2, 12, 24)
    of_axes = grid.q[0].double().mT.flip(0) if x_first else grid.q[0].double().mT
    blocks = zip(q.split(sizes, -1), k.split(sizes, -1), of_axes, strict=True)
    expected = sum(
        scores(Rotary(a.shape[-1], rope_theta=100.0, layout="half"), a, b, Positions.from_ids(at[None]))
        for a, b, at in blocks
    )
    assert_close(scores(encoding, q, k, grid), expected, **EXACT)


# ---------------------------------------------------------------- M-RoPE


IDS = torch.stack(
    [
        torch.cat((torch.arange(7), torch.full((12,), 7), torch.arange(11, 21))),
        torch.cat((torch.arange(7), 7 + torch.arange(12) // 4, torch.arange(11, 21))),
        torch.cat((torch.arange(7), 7 + torch.arange(12) % 4, torch.arange(11, 21))),
    ],
    -1,
)  # text, an image of 3 x 4 patches, text


@pytest.mark.parametrize("head_dim", [128, 32])
@pytest.mark.parametrize(
    ("module", "prefix", "interleaved"),
    [(qwen2_vl, "Qwen2VL", False), (qwen3_vl, "Qwen3VLText", True)],
    ids=["qwen2_vl", "qwen3_vl"],
)
def test_m_rope_is_qwen(module, prefix, interleaved, head_dim):
    encoding = MRotary(head_dim, interleaved=interleaved)
    config_of = {"Qwen2VL": transformers.Qwen2VLTextConfig, "Qwen3VLText": transformers.Qwen3VLTextConfig}[prefix]
    rope = {"rope_type": "default", "rope_theta": 1e6}
    rope |= {} if head_dim == 128 else {"mrope_section": list(encoding.sections)}  # 128 is what the defaults are for
    config = config_of(hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim, rope_parameters=rope)
    q, k = torch.randn(2, 4, 29, head_dim), torch.randn(2, 2, 29, head_dim)
    cos, sin = getattr(module, f"{prefix}RotaryEmbedding")(config)(q, IDS.T[:, None].expand(-1, 2, -1))
    theirs = module.apply_rotary_pos_emb(q, k, cos, sin)
    assert_close(encoding.rotate(q, k, Positions.from_ids(IDS[None])), theirs, **FLOAT32)
    wrong = MRotary(head_dim, interleaved=not interleaved).rotate(q, k, Positions.from_ids(IDS[None]))
    assert (wrong[0] - theirs[0]).abs().max() > 0.1, "the other assignment of channels gives other values"


def test_sections_are_those_of_the_models():
    assert MRotary(128).sections == (16, 24, 24)
    assert MRotary(128, interleaved=True).sections == (24, 20, 20)
    letters = ["".join("thw"[a] for a in m.frequency.argmax(1)) for m in (MRotary(128), MRotary(128, interleaved=True))]
    assert letters == ["t" * 16 + "h" * 24 + "w" * 24, "thw" * 20 + "tttt"]


@pytest.mark.parametrize(
    ("head_dim", "sections"), [(128, (16, 24, 24)), (16, (2, 3, 3)), (16, (1, 4, 3)), (10, (0, 3, 2))]
)
def test_time_has_the_slowest_pairs_of_videorope(head_dim, sections):
    encoding = MRotary(head_dim, time_last=True, sections=None if head_dim == 128 else sections)
    assert encoding.sections == sections
    axes = "".join("hw"[pair % 2] for pair in range(sum(sections[1:]))) + "t" * sections[0]
    assert "".join("thw"[axis] for axis in encoding.frequency.argmax(1)) == axes
    q, at = random(1, 1, 7, head_dim), torch.randint(-9, 99, (7, 3))
    turned, _ = encoding.rotate(q, q, Positions.from_ids(at[None]))
    by_pair = at[:, ["thw".index(axis) for axis in axes]]
    assert_close(turned, rotations.rotary(q, by_pair[None, None], 1e6), **EXACT)


@pytest.mark.parametrize(
    "options", [{}, {"interleaved": True}, {"sections": (0, 7, 1)}, {"layout": "interleaved"}, {"time_last": True}]
)
def test_text_under_m_rope_is_rope(options):
    q, k, p = random(2, 3, 50, 16), random(2, 1, 50, 16), Positions.arange(50)
    rope = Rotary(16, rope_theta=1e6, layout=options.get("layout", "half"))
    assert_close(MRotary(16, **options).rotate(q, k, p), rope.rotate(q, k, p), rtol=0, atol=0)
    equal = Positions.from_ids(torch.arange(50)[None, :, None].expand(-1, -1, 3))
    assert_close(MRotary(16, **options).rotate(q, k, equal), rope.rotate(q, k, p), rtol=0, atol=0)


# ---------------------------------------------------------------- RoPE-Mixed


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_mixed_rope_is_its_formula(layout):
    encoding = MixedRotary(8, num_heads=6, num_layers=2, num_kv_heads=3, layout=layout).double()
    places = torch.cartesian_prod(torch.arange(3), torch.arange(4)).double()
    q, k = random(6, 12, 8), random(3, 12, 8)
    for layer in range(2):
        angles = places @ encoding.frequency[layer].detach().mT  # (key heads, tokens, pairs)
        turned = rotations.turned(q, angles.repeat_interleave(2, 0), layout)
        expected = turned @ rotations.turned(k, angles, layout).repeat_interleave(2, 0).mT
        assert_close(scores(encoding, q[None], k[None], Positions.grid(3, 4), layer)[0], expected, **EXACT)
    first, second = (scores(encoding, q[None], k[None], Positions.grid(3, 4), layer) for layer in range(2))
    assert (first - second).abs().max() > 0.1, "each layer has its own"


def test_mixed_rope_starts_as_its_authors_do():
    # rope-vit ce85c2e, models/vit_rope.py, init_random_2d_freqs: magnitudes theta^(-4c/d) along a random angle a of
    # each head for the first half of the pairs, along a + pi/2 for the second, in (x, y)
    encoding = MixedRotary(16, num_heads=5, num_layers=3)
    magnitude = 10.0 ** (-4 * torch.arange(4) / 16)
    angles = set()
    for head in encoding.frequency.detach().flatten(0, 1):
        y, x = head.unbind(-1)
        angle = math.atan2(y[0], x[0])
        for block, turned in enumerate((angle, angle + math.pi / 2)):
            part = slice(4 * block, 4 * block + 4)
            assert_close(x[part], magnitude * math.cos(turned), rtol=0, atol=1e-6)
            assert_close(y[part], magnitude * math.sin(turned), rtol=0, atol=1e-6)
        angles.add(round(angle, 5))
    assert len(angles) == 15, "each head and layer draws its own"


def test_mixed_rope_does_not_round_under_autocast():
    encoding, p = MixedRotary(8, num_heads=2), Positions.from_ids(torch.tensor([[[300, 4000], [301, 4002]]]))
    q, k = torch.randn(2, 1, 2, 2, 8)
    plain = encoding.rotate(q, k, p)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(encoding.rotate(q, k, p), plain, rtol=0, atol=0)
    exact = encoding.double().rotate(q.double(), k.double(), p)
    assert_close(tuple(x.double() for x in plain), exact, rtol=0, atol=1e-5)


# ---------------------------------------------------------------- what holds for all


ALL = pytest.mark.parametrize(
    "encoding",
    [AxialRotary(8), AxialRotary(8, **PIXTRAL), AxialRotary(8, **LLAMA4), MixedRotary(8, num_heads=2).double()],
    ids=["axial", "pixtral", "llama4", "mixed"],
)


@ALL
def test_prefix_tokens_are_not_rotated_and_text_lies_on_the_diagonal(encoding):
    q, k = random(2, 1, 2, 8, 8)
    ours = encoding.rotate(q, k, Positions.grid(2, 3, prefix=2))
    for before, after in zip((q, k), ours, strict=True):
        assert torch.equal(before[:, :, :2], after[:, :, :2])
        assert not torch.isclose(before[:, :, 3:], after[:, :, 3:]).all(-1).any()
    diagonal = Positions.from_ids(torch.arange(8)[None, :, None].expand(-1, -1, 2))
    assert_close(encoding.rotate(q, k, Positions.arange(8)), encoding.rotate(q, k, diagonal), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AxialRotary(10), "head_dim=10: pass a multiple of 4"),
        (lambda: AxialRotary(8, axes=3), "head_dim=8: pass a multiple of 6"),
        (lambda: AxialRotary(8, layout="neox"), "unknown layout"),
        (lambda: AxialRotary(8, centred=True, start=5.0), "centred=True, start=5.0"),
        (lambda: MixedRotary(10, num_heads=2), "head_dim=10"),
        (lambda: MixedRotary(8, num_heads=4, num_kv_heads=3), "num_kv_heads=3: must divide num_heads=4"),
        (lambda: MRotary(16, sections=(4, 4)), r"sections=\(4, 4\)"),
        (lambda: MRotary(16, interleaved=True, time_last=True), "interleaved=True, time_last=True: pass one of them"),
        (lambda: MRotary(16, sections=(2, 2, 4), time_last=True), "as many of h as of w, or one more"),
        (lambda: MRotary(16, sections=(4, 4, 4)), "add up to 12, not to head_dim/2 = 8"),
        (lambda: MRotary(16, sections=(0, 4, 4), interleaved=True), "neither can exceed a third"),
        (lambda: MRotary(16, schedule={"name": "ntks"}), "did you mean 'ntk'"),
        (lambda: AxialRotary(8).rotate(*random(2, 1, 1, 8, 8), Positions.grid(2, 2, 2)), "AxialRotary takes 2 coordinates"),
        (lambda: AxialRotary(8, centred=True).rotate(random(1, 1, 1, 8), random(1, 1, 4, 8), Positions.arange(1, 3)), "pass the full sequence"),
    ],
)  # fmt: skip
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_centred_refuses_coordinates_from_which_no_size_follows():
    """Of moved tokens the size of the image is not known, and the largest coordinate does not give it."""
    encoding, known, q = AxialRotary(16, centred=True), Positions.grid(2, 3), random(1, 2, 6, 16)
    coordinates = known.q[0]
    for prefix in (0, 1):
        ids = torch.cat((torch.full((prefix, 2), -9), coordinates - torch.tensor([1, 0])))[None]
        placed = torch.tensor([[False] * prefix + [True] * 6]) if prefix else None
        x, at = random(1, 2, 6 + prefix, 16), Positions.from_ids(ids, placed=placed)
        for run in (encoding.rotate, lambda q, k, at: torch.func.vjp(lambda q: encoding.rotate(q, k, at), q)):
            with pytest.raises(InputError, match="coordinates below 0: pass Positions"):
                run(x, x, at)
    given = Positions.from_ids(coordinates[None])
    for ours, theirs in zip(encoding.rotate(q, q, given), encoding.rotate(q, q, known), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    AxialRotary(16).rotate(q, q, Positions.from_ids(coordinates[None] - 1))
