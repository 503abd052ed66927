"""The generated pictures: their classes, their resolutions, and that a bag of their patches says nothing of the class."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc import InputError
from posenc.lab.vision.scenes import CELLS, COLOURS, LABELS, Scenes


def bag(image, patch_size):
    """The patches of an image, (n, pixels), without their places."""
    patches = image.unfold(1, patch_size, patch_size).unfold(2, patch_size, patch_size)
    flat = patches.permute(1, 2, 0, 3, 4).reshape(-1, patch_size**2 * len(image))
    return sorted(map(tuple, flat.tolist()))


def moved(scenes, swap, transpose):
    """The same shapes in other cells: disc and triangle exchanged, rows and columns exchanged."""
    cells = scenes.cells
    if transpose:
        cells = cells % CELLS * CELLS + cells // CELLS
    if swap:
        cells, shapes = cells.clone(), cells
        cells[:, 0], cells[:, 1] = shapes[:, 1], shapes[:, 0]
    return replace(scenes, cells=cells)


@given(st.integers(0, 2**32), st.sampled_from([(16, 4), (32, 4), (48, 4), (64, 4), (32, 8), (16, 2), (24, 3)]))
@settings(max_examples=20, deadline=None)
def test_of_the_same_bag_of_patches_every_class_is_as_likely(seed, sizes):
    size, patch_size = sizes
    scenes = Scenes.drawn(2, seed)
    all_four = [moved(scenes, swap, transpose) for swap in (False, True) for transpose in (False, True)]
    pictures = [each.render(size) for each in all_four]
    for n in range(2):
        assert {int(each.labels[n]) for each in all_four} == set(range(len(LABELS)))
        bags = [bag(picture[n], patch_size) for picture in pictures]
        assert all(each == bags[0] for each in bags)
        assert len({picture[n].numpy().tobytes() for picture in pictures}) == 4


def middle(image, colour):
    """Row and column of the middle of what has a colour, in shares of the image."""
    colour = torch.tensor(colour)[:, None, None]
    image = image.double()
    likeness = (image / image.norm(dim=0) * colour / colour.norm()).sum(0)
    rows, columns = (likeness > 0.98).nonzero().double().add(0.5).mean(0).tolist()
    return rows / image.shape[1], columns / image.shape[2]


def test_the_class_is_where_the_triangle_is_seen_in_pixels():
    scenes = Scenes.drawn(60)
    for image, label in zip(scenes.render(64), scenes.labels.tolist(), strict=True):
        (y0, x0), (y1, x1) = (middle(image, COLOURS[shape]) for shape in (0, 1))
        across, along = round((x1 - x0) * CELLS), round((y1 - y0) * CELLS)
        wanted = (
            ("right" if across > 0 else "left") if abs(across) > abs(along) else ("below" if along > 0 else "above")
        )
        assert LABELS[label] == wanted


def test_sizes_are_renderings_of_one_scene():
    scenes = Scenes.drawn(8)
    small, large = scenes.render(32).float(), scenes.render(64).float()
    shrunk = torch.nn.functional.avg_pool2d(large, 2)
    assert (small - shrunk).abs().mean() < 1  # of 255: the same scene
    enlarged = small.repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert (large - enlarged).abs().amax() > 60  # with edges that no resized pixels have
    assert torch.equal(Scenes.drawn(3).render(32), scenes.render(32)[:3])  # the first are the same for every number
    assert not torch.equal(Scenes.drawn(8, seed=1).render(32), scenes.render(32))


def test_classes_are_balanced_and_scenes_differ():
    places = Scenes.drawn(2000)
    assert places.labels.bincount().min() > 400
    assert len({image.tobytes() for image in places.at(16, torch.arange(300)).numpy()}) == 300
    assert places.digest == Scenes.drawn(2000).digest != Scenes.drawn(1999).digest


def test_sizes_that_cells_do_not_divide_are_refused():
    with pytest.raises(InputError, match=r"data='places': .*multiples of 4, not 30"):
        Scenes.drawn(1).render(30)
