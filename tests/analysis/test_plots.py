"""Every plot: in a figure of its own, in given axes, and the numbers that it shows."""

import pytest
import torch

import posenc
from posenc import analysis
from posenc.analysis import plots
from posenc.lab.transformer import Transformer, TransformerConfig

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

TOKENS = torch.randint(50, (8, 12), generator=torch.Generator().manual_seed(0))


def shared(names, *calls):
    return dict.fromkeys(names.split(), calls)


@pytest.fixture(scope="module")
def findings():
    """Plot's name -> its arguments, a call each."""
    torch.manual_seed(0)
    encoding = posenc.create("learned", dim=32, num_heads=4, max_positions=12, init_std=1.0)
    model = Transformer(TransformerConfig(50, dim=32, num_layers=2), encoding)
    codes = "sinusoidal", "t5", "learned:max_positions=64"
    spectra = [(analysis.spectrum(text, 64),) for text in codes]
    shifts = [(analysis.shift_matrix(text, length=64),) for text in codes]
    schedules = [analysis.digits([0], schedule=name) for name in ("default", "linear", "ntk", "proportional")]
    errors = [(analysis.phase_error("rope", 600),), (analysis.phase_error("rope", 60, "float64"),)]
    terms, survival = (analysis.four_terms(model, TOKENS),), (analysis.survival(model, TOKENS),)
    curves = (analysis.curves(torch.arange(1, 60), (1000.0,), (1.0, 2.0)),)
    expansion = (analysis.expansion(model, 2, length=8, columns=7),)
    scores, dots, tables = (
        analysis.scores("t5", 16, samples=2),
        analysis.random_dots(32, samples=500),
        analysis.subspaces(model),
    )
    return {
        **shared("heat_map dot_products norms", *[(text,) for text in codes]),
        **shared("singular_values wavelengths", *spectra),
        **shared("shift_matrix shift_error", *shifts),
        "step_sizes": [(analysis.steps(text, 64),) for text in codes],
        "kernel": [(analysis.kernel("rope", 48),)],
        **shared("curves", curves),
        "rope_bound": [((1e4, 1e6), 64, 64)],
        "base_bound": [(analysis.base_bound([64, 128], step=0.05),)],
        "counter": [(analysis.counter(32, 5),)],
        **shared("digits squeeze", tuple(schedules)),
        **shared("phase_error", *errors),
        **shared("term_shares position_map position_by_distance pruning_cost", terms),
        **shared("random_dots", (dots,)),
        **shared("cosine_histogram principal_angles", (tables,)),
        "read_back": [(analysis.add_or_concat(model, dims=(8, 16), pairs=64),)],
        **shared("survival probe_transfer", survival),
        **shared("expansion_terms interaction_block interaction_decay", expansion),
        **shared("effective_scores scores_by_head", (scores,)),
        "pair_wavelengths": [(analysis.rotation("rope", 100),)],
        "bias_by_distance": [(analysis.bias("alibi", 8),)],
        "twins_apart": [(analysis.twins(),), (analysis.twins(encoding="none"),)],
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
    ((terms,),) = findings["position_map"]
    axes = first_axes(plots.position_map, terms)
    shown = torch.from_numpy(axes.images[0].get_array().filled(torch.nan))
    head = int(terms.share[:, 3].argmax())
    assert torch.allclose(shown, terms.map[head] - terms.map[head].nanmean(), equal_nan=True)
    assert axes.get_title() == f"head {head}"


def test_a_few_outliers_do_not_stretch_the_colours():
    values = torch.randn(128, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values[:, 0] *= 1e-3
    plain = first_axes(plots.heat_map, values).images[0]
    values[7, :3] = 1000.0
    clipped = first_axes(plots.heat_map, values).images[0]
    assert plain.get_clim()[1] == plain.get_array().__abs__().max()
    assert 2 < clipped.get_clim()[1] < 4


def test_bars_are_the_numbers(findings):
    same = first_axes(plots.singular_values, analysis.spectrum(torch.ones(8, 3), 8))
    assert [bar.get_height() for bar in same.patches] == [0, 0, 0]
    ((terms,),) = findings["term_shares"]
    bars = first_axes(plots.term_shares, terms).patches
    assert [bar.get_height() for bar in bars] == pytest.approx(terms.share.T.flatten().tolist())


def test_lines_are_the_numbers(findings):
    def lines(name, *arguments, **options):
        found = first_axes(getattr(plots, name), *(arguments or findings[name][0]), **options).lines
        return [torch.as_tensor(line.get_ydata()) for line in found]

    curves = findings["curves"][0][0]
    assert all(map(torch.equal, lines("curves"), curves.integrals))
    assert torch.equal(lines("kernel")[0], findings["kernel"][0][0].mean)
    assert torch.allclose(lines("scores_by_head")[0], findings["scores_by_head"][0][0].same[0])
    assert len(lines("bias_by_distance")) == 4
    survival = findings["survival"][0][0]
    assert lines("survival")[0].tolist() == pytest.approx(survival.curves["with residuals"].r2.tolist())
    rotation = findings["pair_wavelengths"][0][0]
    finish, never, trained = lines("pair_wavelengths")
    assert (len(finish), len(never), trained[0]) == (32 - rotation.unfinished, rotation.unfinished, 100)
    (pair,) = findings["twins_apart"][0]
    drawn = first_axes(plots.twins_apart, pair).lines[0].get_xdata()
    assert list(drawn) == pytest.approx([pair.distance_without, pair.distance], abs=1e-12)
    axes = first_axes(plots.wavelengths, analysis.spectrum("rope:rotary_dim=16", 64))
    assert len(axes.collections[0].get_offsets()) == 16
    assert "48 channels are constant" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_models_are_marked_at_their_length_and_base(findings):
    bound = findings["base_bound"][0][0]

    lines = first_axes(plots.base_bound, bound).lines
    marks = {(line.get_xdata()[0], line.get_ydata()[0]) for line in lines if len(line.get_xdata()) == 1}
    assert marks == {(model.length, model.base) for model in bound.models}
