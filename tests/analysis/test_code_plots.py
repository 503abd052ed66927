"""Every plot of codes draws into a figure of its own and into axes it is given."""

import pytest
import torch

from posenc.analysis import plots, shift_matrix, spectrum, steps

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

PLOTS = {
    "heat_map": lambda subject: subject,
    "dot_products": lambda subject: subject,
    "norms": lambda subject: subject,
    "singular_values": lambda subject: spectrum(subject, 64),
    "wavelengths": lambda subject: spectrum(subject, 64),
    "shift_matrix": lambda subject: shift_matrix(subject, length=64),
    "shift_error": lambda subject: shift_matrix(subject, length=64),
    "step_sizes": lambda subject: steps(subject, 64),
}


@pytest.mark.parametrize("subject", ["sinusoidal", "t5", "learned:max_positions=64"])
@pytest.mark.parametrize("name", PLOTS)
def test_every_plot_takes_axes_or_makes_its_own(name, subject):
    torch.manual_seed(0)
    plot, finding = getattr(plots, name), PLOTS[name](subject)
    figure = plot(finding)
    figure.canvas.draw()
    assert figure.axes[0].has_data()
    assert figure.axes[0].get_xlabel()
    assert figure.axes[0].get_ylabel()
    host = Figure()
    left, right = host.subplots(1, 2)
    assert plot(finding, ax=right) is host
    assert right.has_data()
    assert not left.has_data()
    assert plot.see.endswith(".")
    assert len(plot.see.split()) > 8


def test_every_plot_of_codes_is_tested():
    assert {name for name in plots.__all__ if getattr(plots, name).__module__ == "posenc.analysis.plots.codes"} == {
        *PLOTS
    }


def test_axes_are_named_after_what_the_codes_belong_to():
    assert plots.heat_map("alibi").axes[0].get_ylabel() == "distance"
    assert plots.heat_map("alibi").axes[0].get_xlabel() == "head or channel"
    assert plots.heat_map("rope").axes[0].get_ylabel() == "position"


def test_the_heat_map_shows_the_codes():
    image = plots.heat_map("sinusoidal", length=10).axes[0].images[0]
    assert image.get_array().shape == (10, 64)
    assert image.get_clim() == (-1, 1)


def test_dot_products_are_those_of_the_codes():
    shown = torch.as_tensor(
        plots.dot_products(
            "sinusoidal",
            length=12,
        )
        .axes[0]
        .images[0]
        .get_array()
    )
    assert torch.allclose(shown.diagonal(), torch.ones(12, dtype=torch.float64))
    assert torch.allclose(shown, shown.T)
    assert torch.allclose(shown.diagonal(3), shown[0, 3].expand(9))


def test_codes_that_are_all_the_same_show_no_direction():
    axes = plots.singular_values(spectrum(torch.ones(8, 3), 8)).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [0, 0, 0]


def test_channels_that_never_turn_are_counted_not_drawn():
    axes = plots.wavelengths(spectrum("rope:rotary_dim=16", 64)).axes[0]
    assert len(axes.collections[0].get_offsets()) == 16
    assert "48 channels never turn" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_few_outliers_leave_the_rest_its_colours():
    values = torch.randn(128, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values[:, 0] *= 1e-3  # none of that matters where nothing is large
    plain = plots.heat_map(values).axes[0].images[0]
    values[7, :3] = 1000.0
    spoilt = plots.heat_map(values).axes[0].images[0]
    assert plain.get_clim() == (-float(plain.get_array().__abs__().max()), float(plain.get_array().__abs__().max()))
    assert 2 < spoilt.get_clim()[1] < 4
