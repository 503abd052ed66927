import pytest

from posenc.lab import data
from posenc.lab.text import Settings

TEXT = b"".join(b"line %d says that %d follows.\n" % (n, n + 1) for n in range(400))


def spelled(corpus):
    return bytes(corpus.train.tokens.tolist() + corpus.test.tokens.tolist())


@pytest.fixture
def corpus():
    return data.corpus(TEXT, "numbered lines")


TINY = Settings(
    length=16, factors=(1, 2), steps=3, batch_size=2, dim=8, num_layers=1, num_heads=2, head_dim=4, windows=4, targets=8
)
"""A comparison that takes a second."""


@pytest.fixture
def tiny() -> Settings:
    return TINY
