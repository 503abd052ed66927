"""Every plot of the guide's code: in a figure of its own, and in given axes."""

import pytest
import torch

import posenc
from posenc.lab.transformer import Transformer, TransformerConfig

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

import guide_code
from guide_code import plots


@pytest.fixture(scope="module")
def findings():
    """Plots' names -> the arguments of each."""
    tokens = torch.randint(50, (8, 12), generator=torch.Generator().manual_seed(0))
    encoding = posenc.create("learned", dim=32, num_heads=4, max_positions=12, init_std=1.0)
    model = Transformer(TransformerConfig(50, dim=32, num_layers=2), encoding)
    arguments = {
        "curves": [guide_code.curves(torch.arange(1, 60), (1000.0,), (1.0, 2.0))],
        "rope_bound": [(1e4, 1e6), 64, 64],
        "counter": [guide_code.counter(32, 5)],
        "digits squeeze": [guide_code.digits([0], schedule=name) for name in ("default", "linear", "proportional")],
        "term_shares position_map position_by_distance pruning_cost": [guide_code.four_terms(model, tokens)],
        "random_dots": [guide_code.random_dots(32, samples=500)],
        "energy_by_channel": [model],
        "cosine_histogram principal_angles": [guide_code.subspaces(model)],
        "read_back": [guide_code.add_or_concat(model, dims=(8, 16), pairs=64)],
        "survival probe_transfer": [guide_code.survival(model, tokens)],
        "expansion_terms interaction_block interaction_decay": [guide_code.expansion(model, 2, length=8, columns=7)],
        "softmax": [["a", "b"], torch.randn(2, 2), torch.rand(2, 2)],
        "phase_error": [guide_code.phase_error("rope", 600)],
        "twins_apart": [guide_code.twins()],
    }
    return {name: given for names, given in arguments.items() for name in names.split()}


@pytest.mark.parametrize("name", plots.__all__)
def test_a_plot_draws_alone_and_into_axes(name, findings):
    plot = getattr(plots, name)
    plot(*findings[name]).draw_without_rendering()
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plot(*findings[name], ax=right) is figure
    assert right.has_data()
    assert not left.has_data()
