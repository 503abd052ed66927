import pytest

from posenc.lab.vision.experiment import ImageSettings

TINY = ImageSettings(
    image_size=8, patch_size=2, test_sizes=(4, 8, 16), steps=3, batch_size=2, dim=8, num_layers=1, num_heads=2,
    head_dim=4, images=6,
)  # fmt: skip
"""A comparison that takes a second."""


@pytest.fixture(scope="session")
def small():
    """Forty images of places, and the settings for them."""
    return TINY.load("places", data_images=40)
