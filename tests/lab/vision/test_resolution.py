"""Testing at other resolutions: the same images, variants that fit positions to a size, and the shuffled control."""

import pytest
import torch

from lab.vision.conftest import TINY
from posenc import ENCODINGS, InputError, Positions
from posenc.lab.compare import EXPERIMENTS
from posenc.lab.experiment import Run
from posenc.lab.measure import measure, work
from posenc.lab.train import build
from posenc.lab.vision.experiment import PRESETS, ImageSettings, rescaled, shuffled

VISION = ("none", "grid_table", "grid_sinusoidal", "axial_rope", "mixed_rope", "swin", "beit", "swin_v2", "grid_alibi")


def cut(images, patch_size):
    n, channels = images.shape[:2]
    patches = images.unfold(2, patch_size, patch_size).unfold(3, patch_size, patch_size)
    return patches.permute(0, 2, 3, 1, 4, 5).reshape(n, -1, channels * patch_size**2)


@pytest.mark.parametrize(("size", "patch_size", "channels"), [(8, 2, 3), (12, 4, 1), (6, 6, 2)])
def test_shuffling_moves_patches_and_leaves_their_pixels(size, patch_size, channels):
    images = torch.randint(256, (5, channels, size, size), dtype=torch.uint8)
    moved = shuffled(images, patch_size)
    assert torch.equal(moved, shuffled(images, patch_size))
    orders = set()
    for before, after in zip(cut(images, patch_size).tolist(), cut(moved, patch_size).tolist(), strict=True):
        assert sorted(before) == sorted(after)
        orders.add(tuple(before.index(patch) for patch in after))
    assert len(orders) > 1 or size == patch_size


def test_without_positions_shuffling_changes_nothing(small):
    corpus, settings = small
    model = build(Run("none", 0, settings, "")).eval()
    scores = settings.evaluate(model, settings.variants("none", model.encoding)[0], corpus.test)
    torch.testing.assert_close(scores.extra["shuffled_loss"][8], scores.paired[8], atol=1e-5, rtol=1e-5)
    placed = build(Run("grid_sinusoidal", 0, settings, "")).eval()
    scores = settings.evaluate(placed, settings.variants("grid_sinusoidal", placed.encoding)[0], corpus.test)
    assert (scores.extra["shuffled_loss"][8] - scores.paired[8]).abs().max() > 1e-3


def test_scores_are_those_of_the_model_image_by_image(small):
    corpus, settings = small
    model = build(Run("axial_rope", 0, settings, "")).eval()
    read = []
    scores = settings.evaluate(model, settings.variants("axial_rope", model.encoding)[0], corpus.test, read.append)
    assert sum(read) == settings.tested_tokens == 6 * (4 + 16 + 64 + 16)
    for size in settings.test_sizes:
        for n, label in enumerate(corpus.test.labels):
            with torch.no_grad():
                logits = model(corpus.test.sizes[size][n : n + 1].float() / 127.5 - 1)[0]
            assert scores.paired[size][n].item() == pytest.approx(-logits.log_softmax(0)[label].item(), abs=1e-5)
            assert scores.extra["accuracy"][size][n].item() == (logits.argmax() == label)


def test_rescaled_places_lie_where_the_patches_are():
    assert torch.equal(rescaled(5, 5).q, Positions.grid(5, 5).q.double())
    assert rescaled(4, 2).q[0, :, 1].tolist() == [-0.25, 0.25, 0.75, 1.25] * 4
    assert rescaled(2, 4).q[0].tolist() == [[0.5, 0.5], [0.5, 2.5], [2.5, 0.5], [2.5, 2.5]]


@pytest.mark.parametrize("name", VISION)
def test_at_the_size_of_training_every_variant_is_the_model(name, small):
    corpus, settings = small
    model = build(Run(name, 0, settings, "")).eval()
    variants = settings.variants(name, model.encoding)
    assert [variant.trained for variant in variants] == [True] + [False] * (name != "none")
    scores = [settings.evaluate(model, variant, corpus.test) for variant in variants]
    torch.testing.assert_close(scores[0].paired[8], scores[-1].paired[8], atol=1e-5, rtol=1e-5)
    assert model.encoding is variants[0].at(8)


def test_one_size_and_tables_that_resize_by_themselves_have_one_variant(small):
    _, settings = small
    one = ImageSettings(image_size=8, patch_size=2, test_sizes=())
    assert one.test_sizes == (8,)
    assert len(one.variants("axial_rope", one.make_encoding("axial_rope"))) == 1
    name = "grid_table:beyond=resize"
    assert len(settings.variants(name, settings.make_encoding(name))) == 1


@pytest.mark.parametrize("name", [*VISION, "grid_table+axial_rope", "swin/none"])
def test_every_encoding_of_images_trains_and_is_tested_at_every_size(name, small):
    corpus, settings = small
    ticks = []
    run = Run(name, 0, settings, corpus.digest)
    cell = measure(run, corpus, ticks.append)
    assert sum(ticks) == work(run)
    assert cell.variants[0].name == name
    assert len(cell.losses) == settings.steps
    for variant in cell.variants:
        assert {size: len(losses) for size, losses in variant.paired.items()} == {"4": 6, "8": 6, "16": 6}
        assert set(variant.extra["accuracy"]["16"]) <= {0.0, 1.0}


def test_the_host_begins_alike_under_every_encoding(small):
    _, settings = small
    models = [build(Run(name, 5, settings, "")).state_dict() for name in VISION if name != "swin_v2"]  # smaller queries
    for key in (key for key in models[0] if not key.startswith("encoding")):
        assert all(torch.equal(model[key], models[0][key]) for model in models), key


def test_one_dimensional_encodings_are_refused_by_name(small):
    from posenc.lab.compare import Comparison

    corpus, settings = small
    for name in ("rope", "t5", "learned", "sinusoidal"):
        assert name in ENCODINGS
        with pytest.raises(InputError, match=f"encodings={name!r}: "):
            Comparison((name,), 1, settings).check(corpus)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_size": 9}, r"image_size=9: must be a multiple of patch_size=2"),
        ({"test_sizes": (8, 7)}, r"test_sizes=7: must be a multiple"),
        ({"test_sizes": (0,)}, r"test_sizes=0: must be a multiple .*above 0"),
        ({"test_sizes": (True,)}, "test_sizes=True"),
        ({"patch_size": 0}, "patch_size=0: must be at least 1"),
        ({"images": 1}, "images=1: must be at least 2"),
        ({"num_classes": 1}, "num_classes=1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
    ],
)
def test_settings_of_images_refuse(change, message):
    from dataclasses import replace

    with pytest.raises(InputError, match=message):
        replace(TINY, **change)


def test_presets_are_of_known_encodings_and_sizes_that_cells_fill():
    for preset in PRESETS.values():
        s = preset.settings
        for name in preset.encodings:
            s.make_encoding(name)
        assert all(size // 4 % s.patch_size == 0 for size in s.test_sizes)
        assert s.smaller
        assert s.larger


def test_every_experiment_is_tested_at_its_training_condition():
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert experiment().trained_at in experiment().conditions
