"""Pictures of decay, digits and precision: alone, and into given axes."""

import pytest
import torch

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from posenc import analysis
from posenc.analysis import plots


def _drawn():
    codes = analysis.kernel("rope", 48)
    found = analysis.curves(torch.arange(1, 60), (1000.0,), (1.0, 2.0))
    schedules = [analysis.digits([0], schedule=name) for name in ("default", "linear", "ntk", "proportional")]
    errors = analysis.phase_error("rope", 600)
    return {
        "kernel": (plots.kernel, (codes,), {}),
        "curves": (plots.curves, (found,), {}),
        "curves of sums": (plots.curves, (found,), {"sums": True, "log": True}),
        "integral and sum": (plots.integral_and_sum, (found,), {"row": 2}),
        "rope bound": (plots.rope_bound, ((1e4, 1e6),), {"length": 64}),
        "base bound": (plots.base_bound, (analysis.base_bound([64, 128], step=0.05),), {}),
        "base bound alone": (plots.base_bound, (analysis.base_bound([64], step=0.05),), {"models": False}),
        "counter": (plots.counter, (analysis.counter(32, 5),), {}),
        "digits": (plots.digits, tuple(schedules), {}),
        "squeeze": (plots.squeeze, tuple(schedules), {}),
        "phase error": (plots.phase_error, (errors,), {}),
        "phase error by pair": (plots.phase_error_by_pair, (errors,), {}),
        "phase error of float64": (plots.phase_error, (analysis.phase_error("rope", 60, "float64"),), {}),
    }


@pytest.fixture(scope="module")
def drawn():
    return _drawn()


@pytest.mark.parametrize("name", _drawn())
def test_alone_and_into_given_axes(drawn, name, tmp_path):
    plot, findings, options = drawn[name]
    figure = plot(*findings, **options)
    figure.savefig(tmp_path / "alone.png")
    assert (tmp_path / "alone.png").stat().st_size > 2000
    other = Figure()
    ax = other.subplots()
    assert plot(*findings, ax=ax, **options) is other
    assert len(ax.lines) + len(ax.images) == len(figure.axes[0].lines) + len(figure.axes[0].images) > 0
    assert ax.get_xlabel()
    assert plot.see.endswith(".")


def test_lines_hold_the_numbers(drawn):
    plot, (found,), _ = drawn["curves"]
    lines = plot(found).axes[0].lines
    for line, row in zip(lines, found.integrals, strict=False):
        assert torch.equal(torch.as_tensor(line.get_ydata()), row)
    plot, (found,), _ = drawn["kernel"]
    assert torch.equal(torch.as_tensor(plot(found).axes[0].lines[0].get_ydata()), found.mean)


def test_models_are_marked_where_they_are(drawn):
    plot, (found,), _ = drawn["base bound"]
    marks = {
        (line.get_xdata()[0], line.get_ydata()[0]) for line in plot(found).axes[0].lines if len(line.get_xdata()) == 1
    }
    assert marks == {(model.length, model.base) for model in found.models}
    assert not [line for line in plot(found, models=False).axes[0].lines if len(line.get_xdata()) == 1]
