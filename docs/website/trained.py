# SPDX-License-Identifier: Apache-2.0
"""What encodings have learned in the training of `posenc compare`, seed 0: their numbers, or what their model's first layer does
with them, in trained.npz; those that the explorer draws also in its trained.js.

cd docs && python -m website.trained [NAME ...] trains them anew, without names those that are missing: a quarter of a minute each.
"""

import base64
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy
import torch
from guide_code.shared import by_distance
from torch import Tensor

from posenc.attention import Call, prepare
from posenc.backends.reference import Reference
from posenc.bias import Weights, dense_sum
from posenc.encoding import Encoding, gates_of
from posenc.encodings import ENCODINGS, PrefixKV, create
from posenc.encodings.accumulated_rotary import AccumulatedRotary
from posenc.encodings.catalogue import rows
from posenc.encodings.complex_order import ComplexOrder
from posenc.encodings.floater import FLOATER
from posenc.lab.experiment import Run
from posenc.lab.text import Settings
from posenc.lab.train import train
from posenc.lab.transformer import Transformer
from posenc.positions import Positions

FILE = Path(__file__).with_name("trained.npz")
VISION = Path(__file__).parents[2] / "examples" / "small_vit.py"
EXPLORER = Path(str(files("posenc.report"))) / "explorer" / "trained.js"
TEXT, SIDE = Settings(), 8
"""The demo's model of two layers of width 128, trained for 120 steps at 128 bytes; patches of a side in examples/small_vit.py."""
SHAPE: dict[str, Any] = {
    "dim": TEXT.dim, "num_heads": TEXT.num_heads, "head_dim": TEXT.head_dim, "num_layers": TEXT.num_layers,
    "max_positions": TEXT.length, "causal": True,
}  # fmt: skip
GRID: dict[str, Any] = {"dim": 64, "num_heads": 4, "num_layers": 2, "grid": (SIDE, SIDE), "causal": False}
OF_TEXT = (
    "normalized", "integer", "learned", "multiplicative", "hierarchical", "axial_table", "learned_rope", "t5", "kerple", "sines",
    "fire", "sink",
)  # fmt: skip
OF_IMAGES = tuple(row["name"] for row in rows() if row["learned"] and row["family"] == "grid")
"""Encodings whose own numbers are drawn."""
PHRASE = "the value of the object."
"""A text whose pairs of tokens are drawn."""
WINDOWS = 24
"""Held-out texts that are read."""


# ---------------------------------------------------------------- what is in the file


def trained(name: str) -> Encoding | None:
    """The encoding with what it learned; None: its numbers are not in the file."""
    numbers = _file().get(name, {})
    if name not in (*OF_TEXT, *OF_IMAGES) or not numbers:
        return None
    encoding = create(name, **(GRID if name in OF_IMAGES else SHAPE)).eval()
    encoding.load_state_dict(numbers)
    return encoding


def measured(name: str) -> dict[str, Tensor]:
    """What was measured of the trained model's first layer, as `MEASURED` says; empty: nothing."""
    return _file().get(name, {}) if name in MEASURED else {}


@cache
def _file() -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    if FILE.exists():
        with numpy.load(FILE) as arrays:
            for key, array in arrays.items():
                name, of = key.split("/")
                found.setdefault(name, {})[of] = torch.from_numpy(array.astype("float32"))
    return found


# ---------------------------------------------------------------- what a trained model's first layer does


def caught(model: Transformer, tokens: Tensor) -> tuple[Tensor, Positions]:
    """What the first attention is given for tokens (batch, n): its input, and the positions."""
    given: list[Any] = []
    attention: Any = model.blocks[0].attention
    hook = attention.register_forward_pre_hook(lambda _, arguments: given.append(arguments))
    model(tokens)
    hook.remove()
    return given[0][0], given[0][1].positions


def queries_and_keys(model: Transformer, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of the first layer, (batch, heads, n, head_dim), as projected."""
    attention: Any = model.blocks[0].attention
    q, k = (
        each(x).unflatten(-1, (-1, model.config.width)).transpose(1, 2) for each in (attention.query, attention.key)
    )
    return q, k


def added(model: Transformer, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """What position adds to the scores of the first layer, (batch, heads, n, n), and where keys are visible."""
    encoding = model.encoding
    x, positions = caught(model, tokens)
    q, k = queries_and_keys(model, x)
    problem = prepare(Call(q, k, k, encoding, positions, gates=gates_of(encoding, x, 0)))
    problem = replace(problem, modifiers=[each for each in problem.modifiers if not isinstance(each, Weights)])
    scores = Reference().scores(problem, 0, q.shape[2], dense_sum(problem.bias, x.device))
    return scores - encoding.scale_of(0, q.shape[-1]) * q @ k.mT, positions.mask()


def windows(text: Tensor) -> Tensor:
    """Held-out texts of the length of training, evenly spread."""
    starts = torch.linspace(0, len(text) - TEXT.length, WINDOWS).long()
    return text.long()[starts[:, None] + torch.arange(TEXT.length)]


def phrase() -> Tensor:
    """PHRASE as a batch of one text."""
    return torch.tensor([list(PHRASE.encode())])


def of_scores(model: Transformer, text: Tensor) -> dict[str, Tensor]:
    """distance: mean of what position adds, (heads, distances from 0 to three quarters of the length), in `windows`. explained: the
    share of its variance that the distance explains, (heads,). pairs: what it adds in PHRASE, (heads, n, n)."""
    scores, visible = added(model, windows(text))
    _, means, explained = by_distance(scores.double().masked_fill(~visible, 0), visible)
    return {
        "distance": means[:, : TEXT.length * 3 // 4],
        "explained": explained.nan_to_num(1.0),
        "pairs": added(model, phrase())[0][0].tril(),
    }


def of_angles(model: Transformer, text: Tensor) -> dict[str, Tensor]:
    """As `of_scores`, and angles: by which pairs of the first key head have turned at each token of PHRASE, (n, pairs)."""
    encoding = model.encoding
    assert isinstance(encoding, AccumulatedRotary)
    x, positions = caught(model, phrase())
    _, angles = encoding.angles(positions.with_gates(gates_of(encoding, x, 0)), 0)
    return {**of_scores(model, text), "angles": angles[0, 0]}


def of_prefix(model: Transformer, text: Tensor) -> dict[str, Tensor]:
    """prefix: the share of each query's weight that the learned keys get, by position, mean over `windows`, (heads, n)."""
    encoding = model.encoding
    assert isinstance(encoding, PrefixKV)
    x, positions = caught(model, windows(text))
    q, k = queries_and_keys(model, x)
    keys, _ = encoding.prefix_kv(0)
    scale = encoding.scale_of(0, q.shape[-1])
    tokens = (scale * q @ k.mT).masked_fill(~positions.mask(), -torch.inf)
    weights = torch.cat((scale * q @ keys.mT, tokens), -1).softmax(-1)
    return {"prefix": weights[..., : keys.shape[1]].sum(-1).mean(0)}


def of_flow(model: Transformer, text: Tensor) -> dict[str, Tensor]:
    """As `of_scores`, and flow: what is added to the queries of the first head, (n, head_dim)."""
    encoding = model.encoding
    assert isinstance(encoding, FLOATER)
    positions = Positions.arange(TEXT.length, causal=True)
    q, k = torch.zeros(2, 1, TEXT.num_heads, TEXT.length, model.config.width)
    return {**of_scores(model, text), "flow": encoding.rotate(q, k, positions)[0][0, 0]}


def of_words(model: Transformer, text: Tensor) -> dict[str, Tensor]:
    """frequencies: of each channel, in radians a position, for the bytes of BYTES, (bytes, dim)."""
    encoding = model.encoding
    assert isinstance(encoding, ComplexOrder)
    words = model.embedding(torch.tensor(list(BYTES.encode()))) * model.config.dim**0.5
    return {"frequencies": encoding.frequency(words)}


BYTES = " et."
"""Bytes whose frequencies are drawn."""
SPECIAL: dict[str, Callable[[Transformer, Tensor], dict[str, Tensor]]] = {
    "prefix_kv": of_prefix,
    "floater": of_flow,
    "complex_order": of_words,
}


def measure_of(name: str) -> Callable[[Transformer, Tensor], dict[str, Tensor]]:
    """How it is measured what an encoding does in its model, where this and not its numbers are drawn."""
    return SPECIAL.get(name) or (of_angles if issubclass(ENCODINGS[name], AccumulatedRotary) else of_scores)


MEASURED = {
    row["name"]: measure_of(row["name"])
    for row in rows()
    if row["learned"] and row["name"] not in (*OF_TEXT, *OF_IMAGES)
}
"""Other encodings that learn, and how it is measured what they do in their model, which is drawn."""
NAMES = (*OF_TEXT, *OF_IMAGES, *MEASURED)


# ---------------------------------------------------------------- training


def main(wanted: tuple[str, ...]) -> None:
    """Train encodings and replace their numbers in the file."""
    found = {name: numbers for name, numbers in _file().items() if name in NAMES}
    for name in wanted:
        if name in OF_IMAGES:
            found[name] = run_path(str(VISION))["train"](name, side=SIDE).encoding.state_dict()
        else:
            corpus, settings = TEXT.load(TEXT.data)
            model, _ = train(Run.of(name, 0, settings, corpus.digest), corpus.train)
            with torch.no_grad():
                measure = MEASURED.get(name)
                found[name] = model.encoding.state_dict() if measure is None else measure(model, corpus.test.tokens)
        write(found)
        print(name, flush=True)


def write(found: dict[str, dict[str, Tensor]]) -> None:
    """Put the numbers of encodings into the file."""
    arrays: Any = {f"{name}/{of}": each.half().numpy() for name, own in found.items() for of, each in own.items()}
    numpy.savez_compressed(FILE, **arrays)
    EXPLORER.write_text(of_explorer(arrays), encoding="utf-8")


def of_explorer(arrays: Any) -> str:
    """trained.js: the numbers that the explorer draws, as float16 in base64."""
    drawn = [
        key
        for key in arrays
        if key.endswith(("/distance", "/explained")) or key.startswith(("learned", "fire/", "t5/"))
    ]
    data = {key: base64.b64encode(arrays[key].astype("<f2").tobytes()).decode() for key in sorted(drawn)}
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(text)}" for key, text in data.items())
    return f'"use strict";\n// Written by docs/website/trained.py, which says what the numbers are.\nvar posenc = posenc || {{}};\nposenc.trained = {{\n{lines},\n}};\n'


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or tuple(name for name in NAMES if name not in _file()))
