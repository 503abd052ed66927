"""Every plot of terms, subspaces and survival: alone, into given axes, and what it shows."""

import pytest
import torch

import posenc
from posenc.analysis import add_or_concat, four_terms, plots, random_dots, subspaces, survival
from posenc.errors import InputError
from posenc.transformer import Transformer, TransformerConfig

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

TOKENS = torch.randint(50, (8, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def findings():
    torch.manual_seed(0)
    encoding = posenc.create("learned", dim=32, num_heads=4, max_positions=12, init_std=1.0)
    model = Transformer(TransformerConfig(50, dim=32, num_layers=2), encoding)
    return {
        "terms": four_terms(model, TOKENS),
        "random": random_dots(32, samples=500),
        "subspaces": subspaces(model),
        "sum": add_or_concat(model, dims=(8, 16), pairs=64),
        "survival": survival(model, TOKENS),
    }


PLOTS = {
    plots.term_shares: "terms",
    plots.position_map: "terms",
    plots.position_by_distance: "terms",
    plots.pruning_cost: "terms",
    plots.random_dots: "random",
    plots.random_tails: "random",
    plots.cosine_histogram: "subspaces",
    plots.principal_angles: "subspaces",
    plots.read_back: "sum",
    plots.survival: "survival",
    plots.probe_transfer: "survival",
}


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.__name__)
def test_a_plot_draws_alone_and_into_axes(plot, findings):
    alone = plot(findings[PLOTS[plot]])
    assert alone.axes[0].get_xlabel()
    assert alone.axes[0].get_ylabel() or alone.axes[0].get_yticklabels()
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plot(findings[PLOTS[plot]], ax=right) is figure
    assert right.has_data()
    assert not left.has_data()
    alone.canvas.draw()
    assert plot.see.endswith(".")


def test_bars_are_the_shares(findings):
    found = findings["terms"]
    bars = plots.term_shares(found).axes[0].patches
    assert [bar.get_height() for bar in bars] == pytest.approx(found.share.T.flatten().tolist())


def test_the_map_shows_the_head_that_is_asked_for(findings):
    found = findings["terms"]
    axes = plots.position_map(found, head=2).axes[0]
    shown = torch.from_numpy(axes.images[0].get_array().filled(torch.nan))
    assert torch.allclose(shown, found.map[2] - found.map[2].nanmean(), equal_nan=True)
    assert axes.get_title() == "head 2"
    with pytest.raises(InputError, match=r"head=4"):
        plots.position_map(found, head=4)


def test_lines_are_the_curves(findings):
    found = findings["survival"]
    lines = plots.survival(found).axes[0].lines
    assert [line.get_label() for line in lines] == list(found.curves)
    assert lines[0].get_ydata().tolist() == pytest.approx(found.curves["with residuals"].r2.tolist())
