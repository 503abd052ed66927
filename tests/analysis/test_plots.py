"""Every plot: in a figure of its own, in given axes, and the numbers that it shows."""

import pytest
import torch

from posenc import analysis
from posenc.analysis import plots

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure


def shared(names, *calls):
    return dict.fromkeys(names.split(), calls)


@pytest.fixture(scope="module")
def findings():
    """Plot's name -> its arguments, a call each."""
    torch.manual_seed(0)
    codes = "sinusoidal", "t5", "learned:max_positions=64"
    spectra = [(analysis.spectrum(text, 64),) for text in codes]
    shifts = [(analysis.shift_matrix(text, length=64),) for text in codes]
    scores = analysis.scores("t5", 16, samples=2)
    return {
        **shared("heat_map dot_products", *[(text,) for text in codes]),
        **shared("singular_values wavelengths", *spectra),
        "shift_matrix": shifts,
        "kernel": [(analysis.kernel("rope", 48),)],
        **shared("effective_scores scores_by_head", (scores,)),
        "pair_wavelengths": [(analysis.rotation("rope", 100),)],
        "bias_by_distance": [(analysis.bias("alibi", 8),)],
    }  # fmt: skip


@pytest.mark.parametrize("name", plots.__all__)
def test_a_plot_draws_alone_and_into_axes(name, findings):
    plot = getattr(plots, name)
    for arguments in findings[name]:
        alone = plot(*arguments)
        assert alone.axes[0].get_xlabel()
        assert alone.axes[0].get_ylabel() or alone.axes[0].get_yticklabels()
        alone.draw_without_rendering()
        figure = Figure()
        left, right = figure.subplots(1, 2)
        assert plot(*arguments, ax=right) is figure
        assert right.has_data()
        assert not left.has_data()
    assert plot.see.endswith(".")
    assert len(plot.see.split()) > 8


def first_axes(plot, *findings, **options):
    return plot(*findings, **options).axes[0]


def test_images_are_the_values(findings):
    assert first_axes(plots.heat_map, "alibi").get_ylabel() == "distance"
    assert first_axes(plots.heat_map, "alibi").get_xlabel() == "head or channel"
    image = first_axes(plots.heat_map, "sinusoidal", length=10).images[0]
    assert image.get_array().shape == (10, 64)
    assert image.get_clim() == (-1, 1)
    shown = torch.as_tensor(first_axes(plots.dot_products, "sinusoidal", length=12).images[0].get_array())
    assert torch.allclose(shown.diagonal(), torch.ones(12, dtype=torch.float64))
    assert torch.allclose(shown, shown.T)
    assert torch.allclose(shown.diagonal(3), shown[0, 3].expand(9))


def test_a_few_outliers_do_not_stretch_the_colours():
    values = torch.randn(128, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values[:, 0] *= 1e-3
    plain = first_axes(plots.heat_map, values).images[0]
    values[7, :3] = 1000.0
    clipped = first_axes(plots.heat_map, values).images[0]
    assert plain.get_clim()[1] == plain.get_array().__abs__().max()
    assert 2 < clipped.get_clim()[1] < 4


def test_bars_are_the_numbers():
    same = first_axes(plots.singular_values, analysis.spectrum(torch.ones(8, 3), 8))
    assert [bar.get_height() for bar in same.patches] == [0, 0, 0]


def test_lines_are_the_numbers(findings):
    def lines(name, *arguments, **options):
        found = first_axes(getattr(plots, name), *(arguments or findings[name][0]), **options).lines
        return [torch.as_tensor(line.get_ydata()) for line in found]

    assert torch.equal(lines("kernel")[0], findings["kernel"][0][0].mean)
    assert torch.allclose(lines("scores_by_head")[0], findings["scores_by_head"][0][0].same[0])
    assert len(lines("bias_by_distance")) == 4
    rotation = findings["pair_wavelengths"][0][0]
    finish, never, trained = lines("pair_wavelengths")
    assert (len(finish), len(never), trained[0]) == (32 - rotation.unfinished, rotation.unfinished, 100)
    axes = first_axes(plots.wavelengths, analysis.spectrum("rope:rotary_dim=16", 64))
    assert len(axes.collections[0].get_offsets()) == 16
    assert "48 channels are constant" in [text.get_text() for text in axes.get_legend().get_texts()]
