# SPDX-License-Identifier: Apache-2.0
"""What learned encodings have learned: their numbers after the training of `posenc compare`, seed 0, in trained.npz.

cd docs && python -m website.trained [NAME ...] trains them anew: minutes for all.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch

from posenc.encoding import Encoding
from posenc.encodings import create
from posenc.lab.experiment import Run
from posenc.lab.text import Settings
from posenc.lab.train import train

FILE = Path(__file__).with_name("trained.npz")
NAMES = ("normalized", "integer", "learned", "multiplicative", "learned_rope", "t5", "kerple")
SETTINGS = Settings()
"""The demo's model: two layers of width 128, trained for 120 steps at 128 bytes."""
SHAPE: dict[str, Any] = {
    "dim": SETTINGS.dim, "num_heads": SETTINGS.num_heads, "head_dim": SETTINGS.head_dim, "num_layers": SETTINGS.num_layers,
    "max_positions": SETTINGS.length, "causal": True,
}  # fmt: skip


def trained(name: str) -> Encoding | None:
    """The encoding with what it learned; None: it was not trained."""
    state = _states().get(name)
    if state is None:
        return None
    encoding = create(name, **SHAPE).eval()
    encoding.load_state_dict(state)
    return encoding


@cache
def _states() -> dict[str, dict[str, torch.Tensor]]:
    states: dict[str, dict[str, torch.Tensor]] = {}
    if FILE.exists():
        with numpy.load(FILE) as arrays:
            for key, array in arrays.items():
                name, parameter = key.split("/")
                states.setdefault(name, {})[parameter] = torch.from_numpy(array.astype("float32"))
    return states


def main(names: tuple[str, ...]) -> None:
    """Train encodings and replace their numbers in the file."""
    states = {name: state for name, state in _states().items() if name in NAMES}
    corpus, settings = SETTINGS.load("pydoc")
    for name in names:
        model, losses = train(Run.of(name, 0, settings, corpus.digest), corpus.train)
        states[name] = model.encoding.state_dict()
        arrays: Any = {
            f"{name}/{key}": value.half().numpy() for name, state in states.items() for key, value in state.items()
        }
        numpy.savez_compressed(FILE, **arrays)
        print(f"{name}: loss {sum(losses[-10:]) / 10:.3f}", flush=True)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or NAMES)
