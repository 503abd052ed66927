# SPDX-License-Identifier: Apache-2.0
"""Small models trained on the spot, for what only a trained model can show."""

from copy import deepcopy
from functools import lru_cache

from torch import Tensor

from posenc.analysis.reading import seeded
from posenc.checks import checked
from posenc.lab.data import load
from posenc.lab.experiment import Run
from posenc.lab.text import Settings
from posenc.lab.train import train
from posenc.transformer import Transformer


@checked
def trained_model(encoding: str, steps: int = 120, seed: int = 0) -> tuple[Transformer, Tensor]:
    """The small decoder of `posenc compare` (two layers, four heads, bytes of Python's language reference, 128 a text)
    trained under an encoding, in eval mode, and the held-out text, (n,) uint8. The same arguments give the same weights,
    at once when they are asked for again; else in ten seconds or so on two cores.

    Raises:
        InputError: an encoding that does not exist or cannot train.
    """
    model, text = _trained(encoding, steps, seed)
    return deepcopy(model), text.clone()  # the caller's own, to do with as they like


@lru_cache(maxsize=8)
def _trained(encoding: str, steps: int, seed: int) -> tuple[Transformer, Tensor]:
    corpus = load("pydoc")
    with seeded(seed):
        model, _ = train(Run(encoding, seed, Settings(steps=steps), corpus.digest), corpus.train)
    return model, corpus.test.tokens
