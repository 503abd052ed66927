"""Small models trained on the spot, for what only a trained model can show."""

from functools import lru_cache

from torch import Tensor

from posenc.lab.config import Run, Settings
from posenc.lab.data import load
from posenc.lab.train import train
from posenc.transformer import Transformer


@lru_cache(maxsize=8)
def trained_model(encoding: str, steps: int = 120, seed: int = 0) -> tuple[Transformer, Tensor]:
    """The small decoder of `posenc compare` (two layers, four heads, bytes of Python's language reference, 128 a text)
    trained under an encoding, in eval mode, and the held-out text, (n,) uint8. The same arguments give the same weights;
    ten seconds or so on two cores.

    Raises:
        InputError: an encoding that does not exist or cannot train.
    """
    corpus = load("pydoc")
    model, _ = train(Run(encoding, seed, Settings(steps=steps), corpus.digest), corpus.train)
    return model, corpus.test
