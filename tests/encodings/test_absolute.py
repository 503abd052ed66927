"""Tables, grids and complex order against their papers' formulas and transformers' vision models."""

import cmath
from importlib import import_module

import pytest
import torch
import transformers
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import posenc
from posenc import (
    AxialTable,
    ComplexOrder,
    GridSinusoidal,
    GridTable,
    Hierarchical,
    InputError,
    Multiplicative,
    Positions,
    Transformer,
    TransformerConfig,
    create,
)
from posenc.testing.oracles.codes import axial, hierarchical, sinusoidal, sinusoidal_2d
from posenc.testing.oracles.rotations import frequencies as ladder

detr, dinov2, reformer, vit, vit_mae = (
    import_module(f"transformers.models.{name}.modeling_{name}") for name in ("detr", "dinov2", "reformer", "vit", "vit_mae")
)  # fmt: skip

EXACT = {"rtol": 0, "atol": 1e-12}


def wide(encoding):
    """In float64, with parameters of unit size."""
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter)
    return encoding.double()


def codes(encoding, positions):
    """What an encoding adds to a zero input."""
    shape = positions.batch, positions.num_queries, encoding.dim
    return encoding.embed(torch.zeros(shape, dtype=torch.float64), positions)


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("alpha", [0.4, 0.7])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_hierarchical_is_the_formula(rows, alpha):
    encoding = wide(Hierarchical(rows, dim=3, alpha=alpha))
    table = encoding.table.tolist()
    want = torch.tensor([hierarchical(table, k, alpha) for k in range(rows**2)], dtype=torch.float64)
    assert_close(codes(encoding, Positions.arange(rows**2))[0], want, **EXACT)


@pytest.mark.parametrize(
    "encoding", [Hierarchical(64, dim=4), GridTable(4, height=8, width=8, prefix=1), GridTable(4, height=8, width=8)], ids=lambda e: e.name
)  # fmt: skip
def test_one_token_reads_its_rows_alone(encoding):
    made = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            actual = function(*args, **(kwargs or {}))
            made.append(actual.numel() if isinstance(actual, torch.Tensor) else 0)
            return actual

    with torch.no_grad(), Sizes():
        encoding.codes(Positions.arange(1, 40))
    assert 4 <= max(made) < encoding.table.numel() // 4


def test_hierarchical_reaches_the_square_of_its_rows():
    encoding = posenc.create("hierarchical", dim=4, max_positions=6)
    assert encoding.max_positions == 36
    clamped = wide(Hierarchical(3, dim=4, beyond="clamp"))
    assert_close(codes(clamped, Positions.arange(12))[0, 8:], codes(clamped, Positions.arange(1, 8))[0].expand(4, 4))


@pytest.mark.parametrize("plain", [False, True])
def test_multiplicative_starts_as_the_identity(plain):
    encoding, x = Multiplicative(7, dim=4, plain=plain).double(), torch.randn(2, 7, 4, dtype=torch.float64)
    assert torch.equal(encoding.embed(x, Positions.arange(7)), x)
    p = wide(encoding).table
    assert_close(encoding.embed(x, Positions.arange(7)), x * p if plain else x * (1 + p))


@pytest.mark.parametrize(("count", "columns"), [(12, 4), (10, 4), (9, None), (1, None), (5, 1), (5, 9)])
def test_axial_table_is_the_formula(count, columns):
    encoding = wide(AxialTable(count, dim=5, columns=columns, first_dim=2))
    first, second = encoding.first.tolist(), encoding.second.tolist()
    assert len(first) * len(second) == encoding.max_positions >= count
    want = [axial(first, second, k) for k in range(count)]
    assert_close(codes(encoding, Positions.arange(count))[0], torch.tensor(want, dtype=torch.float64), **EXACT)
    assert len(posenc.from_spec(encoding.spec()).first) == len(first)


def test_axial_table_is_reformers():
    config = transformers.ReformerConfig(axial_pos_shape=(4, 6), axial_pos_embds_dim=(3, 5), hidden_size=8)
    theirs = reformer.AxialPositionEmbeddings(config).double().eval()
    encoding = wide(AxialTable(24, dim=8, columns=6, first_dim=3))
    for weight, table in zip(theirs.weights, (encoding.first, encoding.second), strict=True):
        weight.data.copy_(table.data.view(weight.shape))
    ids = torch.stack((torch.arange(24), torch.arange(24).flip(0)))
    assert_close(codes(encoding, Positions.from_ids(ids)), theirs(ids).data, **EXACT)
    places = codes(encoding, Positions.grid(4, 6))[0]
    assert_close(places, theirs(ids[:1])[0].data, **EXACT)
    swapped = torch.cat((encoding.first[ids[0] % 4], encoding.second[ids[0] // 4]), -1)
    assert (swapped - places).abs().max() > 1, "rows and columns swapped give other codes"


# ---------------------------------------------------------------- learned grid


def grid_pair(module, size, dim, prefix_rows=1):
    """transformers' patch embeddings for a size x size image of one-pixel patches, and ours with its table."""
    config = getattr(transformers, {"vit": "ViTConfig", "dinov2": "Dinov2Config"}[module])(
        image_size=size, patch_size=1, hidden_size=dim, num_channels=1, num_attention_heads=1
    )
    theirs = {"vit": vit.ViTEmbeddings, "dinov2": dinov2.Dinov2Embeddings}[module](config)
    table = theirs.position_embeddings
    torch.nn.init.normal_(table)
    ours = GridTable(dim, height=size, width=size, prefix=prefix_rows)
    ours.prefix_table.data.copy_(table[0, :1])
    ours.table.data.copy_(table[0, 1:])
    return theirs, ours


@pytest.mark.parametrize("module", ["vit", "dinov2"])
@pytest.mark.parametrize(("height", "width"), [(4, 4), (6, 6), (3, 7), (9, 2)])
def test_grid_table_resizes_as_vit_and_dinov2(module, height, width):
    theirs, ours = grid_pair(module, 4, 6)
    want = theirs.interpolate_pos_encoding(torch.zeros(1, 1 + height * width, 6), height, width)
    actual = codes(ours.resized(height, width), Positions.grid(height, width, prefix=1))
    assert_close(actual, want.double().data, rtol=0, atol=1e-6)


def test_grid_table_counts_patches_row_by_row():
    ours = wide(GridTable(6, height=3, width=5, prefix=1))
    flat = codes(ours, Positions.arange(15))
    assert torch.equal(codes(ours, Positions.grid(3, 5)), flat)
    assert torch.equal(
        codes(ours, Positions.from_ids([[[-9, 4], [1, 2]]], placed=[0, 1]))[0],
        torch.stack((ours.prefix_table[0], ours.table[7])),
    )


def test_grid_table_gives_registers_no_code():
    actual = codes(wide(GridTable(4, height=2, width=2, prefix=1)), Positions.grid(2, 2, prefix=4))[0]
    assert actual[0].any()
    assert not actual[1:4].any(), "DINOv2's registers come after [CLS] and have no position"
    assert not codes(GridTable(4, height=2, width=2), Positions.grid(2, 2, prefix=1))[0, 0].any()


def test_grid_table_interpolates_in_float32_without_aligned_corners():
    ours = GridTable(1, height=2, width=2).bfloat16()
    ours.table.data.copy_(torch.arange(4.0)[:, None])
    resized = ours.resized(3, 3)
    assert resized.table.dtype == torch.bfloat16
    # torch's bicubic kernel (a = -3/4) with corners not aligned, from [[0, 1], [2, 3]]
    assert_close(resized.table[:3, 0].float(), torch.tensor([-0.2604, 0.3264, 0.9132]), rtol=2**-8, atol=1e-4)
    assert torch.equal(ours.resized(2, 2).table, ours.table)


def test_grid_table_shape_from_a_number_of_positions():
    made = [posenc.create(f"grid_table{o}", dim=4, max_positions=40) for o in ("", ":width=5", ":height=2:width=3")]
    assert [(e.height, e.width, e.max_positions) for e in made] == [(7, 6, 42), (8, 5, 40), (2, 3, 6)]
    assert (GridTable(4).height, GridTable(4).width) == (14, 14), "ViT: 224 / 16"


def test_grid_table_clamps_to_the_nearest_patch():
    ours = wide(GridTable(4, height=3, width=3, beyond="clamp"))
    assert torch.equal(codes(ours, Positions.from_ids([[[1, 9]]]))[0, 0], ours.table[1 * 3 + 2])


# ---------------------------------------------------------------- sinusoidal grid


@pytest.mark.parametrize(("height", "width", "dim", "base"), [(3, 5, 8, 1e4), (4, 2, 16, 100.0)])
def test_grid_sinusoidal_is_the_authors_mae(height, width, dim, base):
    encoding, positions = GridSinusoidal(dim, base=base, x_first=True), Positions.grid(height, width, prefix=1)
    want = torch.cat((torch.zeros(1, dim), sinusoidal_2d(height, width, dim, base)))
    assert_close(codes(encoding, positions)[0], want, **EXACT)


ORDERS = {
    ("concat", False, False): "sin y cos y sin x cos x", ("concat", False, True): "sin x cos x sin y cos y",
    ("concat", True, False): "cos y sin y cos x sin x", ("concat", True, True): "cos x sin x cos y sin y",
    ("grouped", False, False): "sin y sin x cos y cos x", ("grouped", False, True): "sin x sin y cos x cos y",
    ("grouped", True, False): "cos y cos x sin y sin x", ("grouped", True, True): "cos x cos y sin x sin y",
    ("interleaved", False, False): "sin y cos y sin x cos x", ("interleaved", True, True): "cos x sin x cos y sin y",
}  # fmt: skip


@pytest.mark.parametrize(("layout", "cos_first", "x_first"), ORDERS)
@pytest.mark.parametrize("endpoint", [False, True])
def test_grid_sinusoidal_has_the_orders_of_rows_columns_sines_and_cosines(layout, cos_first, x_first, endpoint):
    """With endpoint, "concat" and x_first it is big_vision's posemb_sincos_2d (big_vision/models/vit.py)."""
    encoding = GridSinusoidal(16, layout=layout, cos_first=cos_first, x_first=x_first, endpoint=endpoint)
    order = ORDERS[layout, cos_first, x_first]
    want = sinusoidal_2d(3, 5, 16, 10000.0, order=order, interleaved=layout == "interleaved", endpoint=endpoint)
    assert_close(codes(encoding, Positions.grid(3, 5))[0], want, **EXACT)


def test_grid_sinusoidal_is_vit_mae_of_transformers():
    theirs = vit_mae.build_2d_sinusoidal_position_embedding(3, 5, 16, cls_token=True, dtype=torch.float64)
    positions = Positions.grid(3, 5, prefix=1)
    assert_close(codes(GridSinusoidal(16), positions)[0], theirs, **EXACT)
    assert (codes(GridSinusoidal(16, x_first=True), positions)[0] - theirs).abs().max() > 0.5, "y before x here"


@pytest.mark.parametrize("normalize", [False, True])
def test_grid_sinusoidal_is_detr(normalize):
    height, width = 4, 7
    theirs = detr.DetrSinePositionEmbedding(6, normalize=normalize)(
        torch.Size((1, 1, height, width)), torch.device("cpu"), torch.float64
    )
    at = Positions.grid(height, width).q + 1.0
    if normalize:
        at = at / (torch.tensor([height, width], dtype=torch.float64) + 1e-6) * 2 * torch.pi
    ours = codes(GridSinusoidal(12, layout="interleaved"), Positions.from_ids(at))
    assert_close(ours[0], theirs[0].flatten(1).T, **EXACT)


def test_grid_sinusoidal_of_a_video_and_its_left_over_channels():
    actual = codes(GridSinusoidal(20, axes=3, layout="interleaved"), Positions.grid(2, 3, frames=4))[0]
    want = sinusoidal([3, 1, 2], 6, 1e4).flatten()
    assert_close(actual[(3 * 2 + 1) * 3 + 2], torch.cat((want, torch.zeros(2))), **EXACT)


def test_grid_sinusoidal_places_text_on_the_diagonal():
    text, image = codes(GridSinusoidal(8), Positions.arange(4)), codes(GridSinusoidal(8), Positions.grid(4, 4))
    assert torch.equal(text[0], image[0, ::5])


# ---------------------------------------------------------------- complex order


def test_complex_order_is_the_papers_three_tables():
    # r, omega and theta of four words in four channels; independent embeddings can take any tables
    amplitude, frequency, phase = torch.randn(3, 4, 4, dtype=torch.float64)
    encoding = ComplexOrder(4).double()
    encoding.frequency.bias.data.zero_()
    for layer, table in ((encoding.frequency, frequency), (encoding.phase, phase)):
        layer.weight.data.copy_(torch.linalg.solve(amplitude, table).T)
    words, at = torch.tensor([[2, 0, 3, 3, 1]]), torch.tensor([[0.0, 5.0, 7.0, 1000.0, 2.5]])
    real, imaginary = (part.detach() for part in encoding.waves(amplitude[words], Positions.from_ids(at)))
    for n in range(5):
        j = int(words[0, n])
        for c in range(4):
            r, omega, theta = (float(table[j, c]) for table in (amplitude, frequency, phase))
            wave = r * cmath.exp(1j * (omega * float(at[0, n]) + theta))  # Wang et al. 2020, section 2
            assert complex(real[0, n, c], imaginary[0, n, c]) == pytest.approx(wave, abs=1e-9)
    weight = encoding.projection.weight
    want = real @ weight[:, :4].T + imaginary @ weight[:, 4:].T
    assert_close(encoding.embed(amplitude[words], Positions.from_ids(at)), want)


def test_complex_order_starts_with_the_authors_frequencies_and_keeps_the_norm():
    encoding, d = ComplexOrder(64).double(), 64
    # get_sinusoid_encoding_table of the authors' complex_mem_transformer.py: neighbours share a frequency
    assert_close(encoding.frequency.bias.data, ladder(d).repeat_interleave(2), rtol=1e-6, atol=0)
    assert not encoding.frequency.weight.any()
    assert not encoding.phase.weight.any()
    x = torch.randn(200, 50, d, dtype=torch.float64)
    out = encoding.embed(x, Positions.arange(50))
    assert_close(out[:, 0], x[:, 0], rtol=0, atol=1e-12)
    assert float(out.detach().square().mean()) == pytest.approx(1.0, abs=0.02)


# ---------------------------------------------------------------- all


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Hierarchical(3, dim=4, alpha=0.5), "alpha=0.5: .*collide"),
        (lambda: Hierarchical(3, dim=4, alpha=1.0), "alpha=1.0"),
        (lambda: Hierarchical(3, dim=4, beyond="wrap"), "unknown beyond"),
        (lambda: codes(Hierarchical(3, dim=4), Positions.arange(10)), "Hierarchical: position 9 is outside the table of 9"),
        (lambda: codes(Multiplicative(3, dim=4), Positions.arange(4)), "Multiplicative: position 3 is outside"),
        (lambda: AxialTable(4, dim=4, first_dim=4), "first_dim=4"),
        (lambda: codes(AxialTable(4, dim=4, columns=2), Positions.arange(5)), "AxialTable: position 4 is outside"),
        (lambda: codes(AxialTable(4, dim=4, columns=2), Positions.grid(1, 3)), "position 2 is outside the table of 2"),
        (lambda: codes(AxialTable(4, dim=4), Positions.grid(1, 1, frames=1)), "2 coordinates per token, or one, not 3"),
        (lambda: codes(AxialTable(4, dim=4), Positions.grid(1, 1, prefix=1)), "no row for tokens without a place.*grid_table"),
        (lambda: GridTable(4, prefix=-1), "prefix=-1"),
        (lambda: GridTable(4).resized(0, 3), "height=0"),
        (lambda: codes(GridTable(4, height=2, width=2), Positions.from_ids(Positions.grid(3, 2).q)), r"position 2 is outside.*resized\(height, width\)"),
        (lambda: codes(GridTable(4, height=2, width=2), Positions.arange(5)), r"position 4 is outside the table of 4.*resized"),
        (lambda: codes(GridTable(4, height=2, width=2), Positions.from_ids([[[-1, 0]]])), "position -1 is negative"),
        (lambda: codes(GridTable(4, height=2, width=2), Positions.from_ids([0.5])), "integer positions only"),
        (lambda: GridSinusoidal(8, axes=1), "axes=1"),
        (lambda: GridSinusoidal(5, axes=3), "dim=5"),
        (lambda: GridSinusoidal(8, layout="half"), "unknown layout"),
        (lambda: codes(GridSinusoidal(8), Positions.grid(1, 1, frames=1)), "takes 2 coordinates"),
        (lambda: ComplexOrder(4, base=0), "base=0"),
        (lambda: ComplexOrder(4).embed(torch.zeros(1, 2, 6), Positions.arange(2)), "x of width 6"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, message):
    with pytest.raises(posenc.InputError, match=message):
        call()


@pytest.mark.parametrize("name", ["learned", "hierarchical", "multiplicative", "tupe", "tupe_r"])
def test_known_positions_are_looked_up_without_waiting_for_a_gpu(name):
    """On the meta device, where a number that is read is an error."""
    config = TransformerConfig(8, dim=16, num_layers=2, num_heads=2)
    encoding = create(name, dim=16, num_heads=2, head_dim=8, num_layers=2, max_positions=6, causal=True)
    model = Transformer(config, encoding).to("meta")
    assert model(torch.zeros(2, 6, dtype=torch.long, device="meta")).shape == (2, 6, 8)
    with pytest.raises(InputError, match="position 6 is outside"):
        Transformer(config, create("learned", dim=16, max_positions=6)).to("meta")(
            torch.zeros(2, 7, dtype=torch.long, device="meta")
        )


class NoNumbersCopied(TorchFunctionMode):
    """Refuses to make a tensor on another device of numbers, which copies them, and a GPU is waited for."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if function in (torch.tensor, torch.as_tensor) and not isinstance(args[0], torch.Tensor):
            assert made.device.type != "meta", f"{function.__name__}({args[0]})"
        return made


@pytest.mark.parametrize(
    "name", ["softmax_n", "sink", "t5", "kerple", "fox", "cope", "stick_breaking", "window:before=1,2"]
)
def test_attention_copies_no_numbers_to_a_gpu(name):
    encoding = create(name, num_heads=2, head_dim=8, dim=16, causal=True).to("meta")
    model = Transformer(TransformerConfig(8, dim=16, num_layers=1, num_heads=2), encoding).to("meta")
    with NoNumbersCopied():
        model(torch.zeros(2, 6, dtype=torch.long, device="meta"))
