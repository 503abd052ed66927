# SPDX-License-Identifier: Apache-2.0
"""A page in which small trained models predict, computed in the browser: what they lose past their training length."""

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.encodings import T5, ALiBi, NoPE, Rotary, Sinusoidal
from posenc.errors import InputError, unknown
from posenc.lab.data import Text
from posenc.lab.experiment import Run
from posenc.lab.text import Settings
from posenc.lab.train import train
from posenc.lab.transformer import Transformer
from posenc.report.html import asset, filled

__all__ = ["ENCODINGS", "LANGUAGES", "MOST_BYTES", "Weights", "page", "passages", "trained"]

LANGUAGES = ("en", "zh")
"""Of the page: English and Chinese."""
ENCODINGS = {"rope": "RoPE", "alibi": "ALiBi", "none": "No encoding", "sinusoidal": "Sinusoidal", "t5": "T5"}
"""What the page computes, and what it is called there."""
MOST_BYTES = 1024
"""The longest text that the page reads."""
PASSAGES = 4
SCRIPTS = (
    *(f"explorer/{name}" for name in ("options", "frequencies", "maps", "codes")), "address", "language", "draw", "plot",
    "predict/network", "predict/state", "predict/views", "predict/predict",
)  # fmt: skip
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
LARGEST = 31
"""A weight is an integer from -31 to 31 times its row's scale: a digit of base 64, see `predict/network.js`."""
CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65)
"""Shares of a row's largest weight that may become 31; the one with the least squared error does."""


@dataclass(frozen=True)
class Weights:
    """A model as the page reads it.

    about: its shape, its encoding and what it was trained on, as JSON. matrices: name -> (integers (rows, columns) of int8,
    scales (rows, 1)). vectors: what is not rounded, in float32.
    """

    about: dict[str, Any]
    matrices: dict[str, tuple[Tensor, Tensor]]
    vectors: dict[str, Tensor]

    @classmethod
    def of(cls, model: Transformer, length: int, **about: Any) -> "Weights":
        """length: that it was trained at. about: what else the page is to know.

        Raises:
            InputError: an encoding that the page does not compute.
        """
        encoding, config = model.encoding, model.config
        if type(encoding) not in (Rotary, ALiBi, NoPE, Sinusoidal, T5):
            raise unknown("encoding on the page", encoding.known_as, ENCODINGS)
        about |= {
            "epsilon": torch.finfo(torch.float32).eps if model.norm.eps is None else model.norm.eps,
            "hidden": len(model.state_dict()["blocks.0.mlp.gate.weight"]),
            "name": encoding.known_as, "length": length, "dim": config.dim, "layers": config.num_layers,
            "heads": config.num_heads, "width": config.width, "scale": encoding.scale(config.width),
            "base": getattr(encoding, "rope_theta", None),
        }  # fmt: skip
        matrices, vectors = {}, {}
        for name, values in model.state_dict().items():
            if (name.startswith("blocks.") and values.dim() == 2) or name == "embedding.weight":
                matrices[name] = rounded(values)
            elif name.endswith("norm.weight"):
                vectors[name] = values.float()
        if isinstance(encoding, (ALiBi, T5)):
            heads = torch.arange(config.num_heads)[:, None]
            vectors["bias"] = encoding.of_distance(heads, torch.arange(MOST_BYTES), 0, torch.float32).detach()
        return cls(about, matrices, vectors)

    def into(self, model: Transformer) -> Transformer:
        """The model with these weights, as the page rounds them."""
        state = {name: integers * scales for name, (integers, scales) in self.matrices.items()}
        state["head.weight"] = state["embedding.weight"]
        state |= {name: values for name, values in self.vectors.items() if name != "bias"}
        model.load_state_dict(state, strict=False)  # the bias is the encoding's
        return model.eval()

    def data(self) -> dict[str, Any]:
        """As JSON."""
        matrices = {
            name: {"rows": len(scales), "scales": _numbers(scales), "digits": _digits(integers)}
            for name, (integers, scales) in self.matrices.items()
        }
        return {**self.about, "matrices": matrices, "vectors": {k: _numbers(v) for k, v in self.vectors.items()}}

    def script(self) -> str:
        """A script that gives them to a page that names it as a source."""
        return f"posenc.models[{json.dumps(self.about['name'])}] = {json.dumps(self.data(), separators=(',', ':'))};\n"


def rounded(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Integers of int8, and a scale for each row, whose product is the matrix with the least squared error."""
    largest = matrix.abs().amax(1, keepdim=True).clamp(min=1e-30) / LARGEST
    error = torch.full_like(largest, torch.inf)
    integers, scales = torch.zeros_like(matrix), largest
    for clip in CLIPS:
        scale = largest * clip
        found = (matrix / scale).round().clamp(-LARGEST, LARGEST)
        off = (found * scale - matrix).square().sum(1, keepdim=True)
        better = off < error
        error, scales = torch.where(better, off, error), torch.where(better, scale, scales)
        integers = torch.where(better, found, integers)
    return integers.to(torch.int8), scales


def _numbers(values: Tensor) -> str:
    return base64.b64encode(struct.pack(f"<{values.numel()}f", *values.flatten().tolist())).decode()


def _digits(integers: Tensor) -> str:
    return "".join(DIGITS[value + LARGEST + 1] for value in integers.flatten().tolist())


def trained(
    names: Sequence[str],
    data: str = "pydoc",
    settings: Settings | None = None,
    seed: int = 0,
    on_trained: Callable[[str, Transformer, list[float]], None] = lambda name, model, losses: None,
    on_step: Callable[[int], None] = lambda step: None,
) -> tuple[dict[str, Weights], list[str]]:
    """Models trained as `posenc compare` trains them, and held-out passages of the same text. data, settings: as there.
    on_trained: called with every model and the loss of each of its steps. on_step: called with the steps done, of all models.

    Raises:
        InputError: encodings that the page does not compute, data that cannot be read, or settings that it cannot show.
    """
    for name in names:
        if name not in ENCODINGS:
            raise unknown("encoding on the page", name, ENCODINGS)
    corpus, settings = (settings or Settings()).load(data)
    for name, usual in (("tokenizer", "bytes"), ("packed", False)):
        if (value := getattr(settings, name)) != usual:
            raise InputError("the page reads running text in bytes", "leave it out", argument=name, value=value)
    if 2 * settings.length > MOST_BYTES:
        raise InputError(f"the page reads {MOST_BYTES} bytes, so train at half of that or less", length=settings.length)
    settings.check_data(corpus)
    found: dict[str, Weights] = {}
    for name in dict.fromkeys(names):

        def advance(step: int, before: int = len(found) * settings.steps) -> None:
            on_step(before + step)

        model, losses = train(Run.of(name, seed, settings, corpus.digest), corpus.train, advance)
        on_trained(name, model, losses)
        read = settings.steps * settings.batch_size * settings.length
        about = {"steps": settings.steps, "seed": seed, "corpus": corpus.name, "read": read}
        found[name] = Weights.of(model, settings.length, **about)
    return found, passages(corpus.test, min(4 * settings.length, MOST_BYTES, len(corpus.test)))


def passages(text: Text, length: int, count: int = PASSAGES) -> list[str]:
    """Passages of a text in bytes, evenly spread, that begin after an empty line where there is one: of so many bytes, or less
    by what would cut a character."""
    every, last = bytes(text.tokens.tolist()), len(text) - length
    found = []
    for index in range(count):
        start = last * index // count
        line = every.find(b"\n\n", start, last)
        begin = start if line < 0 else line + 2
        found.append(every[begin : begin + length].decode(errors="ignore"))
    return found


def page(
    models: Mapping[str, Weights | str],
    texts: Sequence[str],
    length: int,
    lang: str = "en",
    links: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """The complete file. models: by encoding, the first one is shown first: weights, which the file then has, or the address
    of their `script`, which it loads when they are asked for. texts: that a visitor may choose from. length: that the models
    were trained at. lang: one of `LANGUAGES`, in which the page opens; its button changes it. links: at the end of the page, by
    language: words -> address.

    Raises:
        InputError: another language.
    """
    if lang not in LANGUAGES:
        raise unknown("language of the page", lang, LANGUAGES)
    data = {
        "length": length, "most": MOST_BYTES, "texts": list(texts),
        "models": [{"name": n, "title": ENCODINGS[n], "source": m if isinstance(m, str) else None} for n, m in models.items()],
    }  # fmt: skip
    inside = {name: weights.data() for name, weights in models.items() if isinstance(weights, Weights)}
    css = asset("explorer/explorer.css") + asset("predict/predict.css")
    scripts = [asset(f"{name}.js") for name in SCRIPTS]
    scripts.insert(SCRIPTS.index("language"), f"posenc.chinese = {asset('predict/chinese.json')};")
    values = {"data": data, "inside": inside, "css": css, "scripts": scripts, "lang": lang, "links": links or {}}
    return filled("predict/predict.html", **values)
