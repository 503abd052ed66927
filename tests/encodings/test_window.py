"""Biases of image windows: the papers' formulas, Swin, BEiT and Swin v2 of transformers, resizing, refusals."""

from importlib import import_module

import pytest
import torch
import transformers
from torch.testing import assert_close

import posenc
from posenc import ClassWindowTable, LogWindow, Positions, WindowTable
from posenc.testing.oracles import biases
from references.calls import BACKENDS, EXACT, check_against, dense, qkv, random, refusals

beit, swin, swinv2 = (
    import_module(f"transformers.models.{name}.modeling_{name}") for name in ("beit", "swin", "swinv2")
)

WINDOWS = [(4, 4), (3, 5), (6, 2), (1, 4)]
HALF = [[0.0, 0.5], [1.25, 2.0], [2.0, 0.0], [0.5, 3.0]]


def rows(height, width, prefix=0):
    """The table's row of every pair of patches of a window, read off a table that holds its row numbers."""
    encoding = (ClassWindowTable if prefix else WindowTable)(1, height=height, width=width)
    encoding.table.data[0, :, 0] = torch.arange(encoding.table.shape[1])
    return dense(encoding, Positions.grid(height, width, prefix=prefix), 1)[0, 0].long()


# ---------------------------------------------------------------- Swin's table


@BACKENDS
@pytest.mark.parametrize("causal", [True, False])
def test_swin_is_its_formula_on_a_grid_and_by_patch_numbers(causal, backend):
    encoding = random(WindowTable(3, height=3, width=4, num_layers=2)).requires_grad_(False)
    bias = biases.swin_bias(encoding.table[0], 3, 4)
    for positions in (Positions.grid(3, 4), Positions.arange(12), Positions.from_ids(torch.arange(12))):
        check_against(lambda q, k: bias, encoding, positions.with_causal(causal), backend)
    cached = Positions.arange(5, 7, causal=causal)
    check_against(lambda q, k: bias[:, 7:], encoding, cached, backend)
    assert not torch.equal(dense(encoding, cached, 3, layer=1), dense(encoding, cached, 3))


@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize(("height", "width"), WINDOWS)
def test_swin_attention_is_that_of_transformers(height, width, heads):
    dim = 8 * heads
    module = swin.SwinAttention(transformers.SwinConfig(attn_implementation="eager"), dim, heads, height)
    module.relative_position_bias = swin.SwinRelativePositionBias(heads, (height, width))
    table = module.double().eval().relative_position_bias.relative_position_bias_table
    torch.nn.init.normal_(table)
    encoding = WindowTable(heads, height=height, width=width).double()
    encoding.table.data[0] = table.data
    x = torch.randn(2, height * width, dim, dtype=torch.float64)
    q, k, v = (p(x).unflatten(-1, (heads, 8)).transpose(1, 2) for p in (module.q_proj, module.k_proj, module.v_proj))
    ours = posenc.attention(q, k, v, encoding, Positions.grid(height, width)).transpose(1, 2).flatten(-2)
    # theirs takes the softmax in float32 whatever the input
    assert_close(module.o_proj(ours), module(x)[0], rtol=0, atol=1e-6)
    assert_close(dense(encoding, Positions.grid(height, width), heads), module.relative_position_bias(), **EXACT)
    encoding.table.data = encoding.table.data.flip(1)
    wrong = dense(encoding, Positions.grid(height, width), heads)
    assert (wrong - module.relative_position_bias()).abs().max() > 0.5, "key minus query gives other biases"


def test_swin_adds_to_a_bias_of_the_distance():
    # contiguous positions of which one term has made a grid: no strided view of one vector serves both
    positions, alibi = Positions.arange(12, causal=True), posenc.ALiBi(3)
    encoding, (q, k, v) = random(WindowTable(3, height=3, width=4)), qkv(positions)
    both = dense(encoding, positions, 3) + dense(alibi, positions, 3)
    wanted = (q @ k.mT / 2 + both).masked_fill(~positions.mask(), -torch.inf).softmax(-1) @ v
    assert_close(posenc.attention(q, k, v, encoding + alibi, positions), wanted, **EXACT)


def test_swin_beyond_the_window_takes_the_edge():
    encoding = random(WindowTable(2, height=3, width=3, beyond="clamp"))
    far = Positions.from_ids([[[5, 1]]], [[[0, 9], [4, 9], [3, 0], [9, 1]]])
    near = Positions.from_ids([[[2, 1]]], [[[0, 3], [1, 3], [0, 0], [4, 1]]])
    assert torch.equal(dense(encoding, far, 2), dense(encoding, near, 2))


def test_swin_depends_only_on_the_keys_that_a_query_sees():
    packed = Positions.packed([9, 9])
    apart = Positions.from_ids(torch.arange(18))
    encoding = WindowTable(2, height=3, width=3)
    dense(encoding, packed, 2)
    with pytest.raises(posenc.InputError, match="5 rows"):
        dense(encoding, apart, 2)


@pytest.mark.parametrize("kind", [WindowTable, ClassWindowTable])
@pytest.mark.parametrize(("old", "new"), [((3, 3), (5, 5)), ((3, 5), (6, 2)), ((4, 2), (4, 2)), ((4, 6), (2, 3))])
def test_resized_tables_are_cubic_interpolations(old, new, kind):
    encoding = random(kind(2, height=old[0], width=old[1], num_layers=2))
    actual = encoding.resized(*new)
    assert (actual.height, actual.width) == new
    for layer in range(2):
        for h in range(2):
            planes = encoding.table[layer, : (2 * old[0] - 1) * (2 * old[1] - 1), h].view(2 * old[0] - 1, -1).tolist()
            wide = [biases.cubic_resize(row, 2 * new[1] - 1) for row in planes]
            columns = [biases.cubic_resize(list(column), 2 * new[0] - 1) for column in zip(*wide, strict=True)]
            want = torch.tensor(columns, dtype=torch.float64).T.flatten()
            assert_close(actual.table[layer, : want.numel(), h], want, rtol=0, atol=1e-10)
    special = encoding.special_rows
    assert actual.table.shape[1] == want.numel() + special
    assert torch.equal(actual.table[:, want.numel() :], encoding.table[:, encoding.table.shape[1] - special :])
    assert actual.table.requires_grad


def test_height_covers_the_training_length():
    assert (WindowTable(1).height, ClassWindowTable(1).height) == (7, 14)
    for length, height in ((49, 7), (50, 8), (3, 1)):
        encoding = WindowTable(1, train_length=length)
        assert encoding.height == height
        dense(encoding, Positions.arange(length), 1)


# ---------------------------------------------------------------- BEiT's table


@pytest.mark.parametrize(("height", "width"), WINDOWS)
def test_beit_rows_are_those_of_transformers(height, width):
    theirs = beit.BeitRelativePositionBias.generate_relative_position_index((height, width))
    assert torch.equal(rows(height, width, prefix=1), theirs)


def test_beit_attention_is_that_of_transformers():
    config = transformers.BeitConfig(
        hidden_size=24, num_attention_heads=3, image_size=64, patch_size=16, attn_implementation="eager",
        attention_probs_dropout_prob=0.0, use_relative_position_bias=True,
    )  # fmt: skip
    module, bias = beit.BeitAttention(config).double().eval(), beit.BeitRelativePositionBias(config).double()
    torch.nn.init.normal_(bias.relative_position_bias_table)
    encoding, grid = ClassWindowTable(3, height=4, width=4).double(), Positions.grid(4, 4, prefix=1)
    encoding.table.data[0] = bias.relative_position_bias_table.data
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    q, k, v = (p(x).unflatten(-1, (3, 8)).transpose(1, 2) for p in (module.q_proj, module.k_proj, module.v_proj))
    for backend in ("auto", "reference"):
        ours = module.o_proj(posenc.attention(q, k, v, encoding, grid, backend=backend).transpose(1, 2).flatten(-2))
        # theirs takes the softmax in float32 whatever the input
        assert_close(ours, module(x, bias((4, 4)))[0], rtol=0, atol=1e-6)
    assert_close(dense(encoding, grid, 3), bias((4, 4)), **EXACT)
    encoding.table.data[0, [-3, -2]] = encoding.table.data[0, [-2, -3]]
    wrong = dense(encoding, grid, 3)
    assert (wrong - bias((4, 4))).abs().max() > 0.5, "[CLS] to patch and patch to [CLS] swapped give other biases"


def test_beit_of_transformers_is_right_for_squares_only():
    # its resizing takes the table for (width, height), even when nothing is to be resized
    config = transformers.BeitConfig(num_attention_heads=2, image_size=(48, 80), patch_size=16)
    theirs = beit.BeitRelativePositionBias(config).double()
    torch.nn.init.normal_(theirs.relative_position_bias_table)
    encoding = ClassWindowTable(2, height=3, width=5).double()
    encoding.table.data[0] = theirs.relative_position_bias_table.data
    actual = dense(encoding, Positions.grid(3, 5, prefix=1), 2)
    index = theirs.generate_relative_position_index((3, 5))
    assert_close(actual[0], theirs.relative_position_bias_table[index].permute(2, 0, 1), **EXACT)
    assert (actual - theirs((3, 5))).abs().max() > 0.5


def test_beit_starts_without_position():
    assert not ClassWindowTable(2).table.any()


def test_a_patch_number_of_minus_one_is_a_patch():
    encoding = random(ClassWindowTable(2, height=3, width=4))
    numbered, cells = Positions.from_ids([-1, 0, 5]), Positions.from_ids([[[-1, 3], [0, 0], [1, 1]]])
    assert torch.equal(dense(encoding, numbered, 2), dense(encoding, cells, 2))


# ---------------------------------------------------------------- Swin v2


def log_formula(encoding, at):
    mlp = {name: parameter.detach()[0] for name, parameter in encoding.mlp.named_parameters()}
    dy, dx = (torch.tensor(at, dtype=torch.float64)[:, None] - torch.tensor(at, dtype=torch.float64)).unbind(-1)
    weights = mlp["weight_in"], mlp["bias_in"], mlp["weight_out"]
    return lambda q, k: biases.log_window(dy, dx, encoding.height, encoding.width, *weights)


@BACKENDS
def test_log_window_is_its_formula(backend):
    encoding = random(LogWindow(3, height=4, width=3, num_layers=2, hidden=6, cosine=False))
    full = log_formula(encoding, [divmod(n, 3) for n in range(12)])
    check_against(full, encoding, Positions.grid(4, 3), backend)
    check_against(full, encoding, Positions.arange(12, causal=True), backend)
    check_against(log_formula(encoding, HALF), encoding, Positions.from_ids([HALF], causal=True), backend)
    assert not torch.equal(dense(encoding, Positions.grid(4, 3), 3, layer=1), dense(encoding, Positions.grid(4, 3), 3))


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("trained", [None, (3, 6)])
@pytest.mark.parametrize(("height", "width"), [(4, 4), (3, 5), (6, 2)])
def test_swin_v2_attention_is_that_of_transformers(height, width, trained, heads):
    dim, config = 8 * heads, transformers.Swinv2Config(attention_probs_dropout_prob=0.0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # its table of coordinates is made in the default dtype
    module = swinv2.Swinv2SelfAttention(config, dim, heads, (height, width), trained or [0, 0]).eval()
    torch.set_default_dtype(before)
    mlp, encoding = (
        module.continuous_position_bias_mlp,
        LogWindow(heads, height=(trained or (height, width))[0], width=(trained or (height, width))[1]).double(),
    )
    torch.nn.init.normal_(mlp[2].weight, std=0.3)
    # the last head is colder than the authors' floor of 1/100
    module.logit_scale.data.copy_(torch.linspace(0.5, 6, heads)[:, None, None])
    weights = {
        encoding.mlp.weight_in: mlp[0].weight,
        encoding.mlp.bias_in: mlp[0].bias,
        encoding.mlp.weight_out: mlp[2].weight,
        encoding.temperature: module.logit_scale[:, 0, 0],
    }
    for ours, theirs in weights.items():
        ours.data[0] = theirs.data
    x = torch.randn(2, height * width, dim, dtype=torch.float64)
    q, k, v = (p(x).unflatten(-1, (heads, 8)).transpose(1, 2) for p in (module.query, module.key, module.value))
    for backend in ("auto", "reference"):
        ours = posenc.attention(q, k, v, encoding, Positions.grid(height, width), backend=backend)
        # their coordinates are made in float32
        assert_close(ours.transpose(1, 2).flatten(-2), module(x)[0], rtol=0, atol=1e-6)
    other = LogWindow(heads, height=encoding.width + 1, width=encoding.height).double()
    other.load_state_dict(encoding.state_dict())
    wrong = posenc.attention(q, k, v, other, Positions.grid(height, width)).transpose(1, 2).flatten(-2)
    assert (wrong - module(x)[0]).abs().max() > 1e-4, "another window's coordinates give other values"


def test_log_window_reads_a_table_where_offsets_repeat():
    encoding, grid, sizes = random(LogWindow(2, hidden=16)), Positions.grid(6, 8), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        actual = dense(encoding, grid, 2)
    assert max(sizes) < 48 * 48 * 16, "the MLP's hidden units are not saved per pair"
    each = dense(encoding, Positions.from_ids(grid.q.double()), 2)
    assert_close(actual, each, **EXACT)


# ---------------------------------------------------------------- refusals

SQUARE, VIDEO = Positions.from_ids(Positions.grid(3, 3).q), Positions.grid(2, 2, frames=2)
REFUSED = {
    "rows": (lambda: dense(WindowTable(2, height=2, width=3), SQUARE, 2), "2 rows and 2 columns.*window of 2 x 3.*resized"),
    "columns": (lambda: dense(WindowTable(2, height=3, width=2), SQUARE, 2), "window of 3 x 2.*clamp"),
    "beit too": (lambda: dense(ClassWindowTable(2, height=2, width=3), SQUARE, 2), "window of 2 x 3"),
    "class": (lambda: dense(WindowTable(2), Positions.grid(2, 2, prefix=1), 2), r"such as \[CLS\]: drop them, or use beit"),
    "class in v2": (lambda: dense(LogWindow(2), Positions.grid(2, 2, prefix=1), 2), r"such as \[CLS\]: drop them, or use beit"),
    "axes": (lambda: dense(WindowTable(2), VIDEO, 2), "2 coordinates per token, or one, not 3"),
    "fractions": (lambda: dense(WindowTable(2), Positions.from_ids([HALF]), 2), "integer positions"),
    "fractional numbers": (lambda: dense(LogWindow(2), Positions.from_ids([0.5]), 2), r"\(y, x\)"),
    "heads": (lambda: dense(WindowTable(3), SQUARE, 2), "2 heads.*num_heads=3"),
    "beyond": (lambda: WindowTable(2, beyond="clip"), "beyond 'clip'"),
    "std": (lambda: WindowTable(2, init_std=-1), "init_std=-1"),
}  # fmt: skip

test_refusals = refusals(REFUSED)
