# SPDX-License-Identifier: Apache-2.0
"""The models of the page that predicts, seed 0, in predicted.npz: 1.4 MB, six bits a weight.

cd docs && python -m website.predicted trains them anew: 3.5 minutes of one core.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.nn import functional as F

from posenc.lab.text import Settings
from posenc.lab.transformer import Transformer
from posenc.report import predict

FILE = Path(__file__).with_name("predicted.npz")
NAMES = ("rope", "alibi", "none", "sinusoidal")
SETTINGS = Settings(steps=480)
"""The model of `posenc compare`, trained four times as long."""
LINKS = {
    "en": {
        "The explorer": "explorer.html",
        "Past the training length": "position-12-past-the-training-length.html",
    },
    "zh": {
        "交互演示": "explorer.html#lang=zh",
        "从零理解位置编码": "position_from_scratch.zh.html",
    },
}


def files() -> dict[str, str]:
    """The page and the scripts that it loads: path -> text."""
    models, texts = stored()
    sources = {name: f"predictor/{name}.js" for name in models}
    page = predict.page(sources, texts, SETTINGS.length, links=LINKS)
    return {"predictor.html": page} | {sources[name]: weights.script() for name, weights in models.items()}


@cache
def stored() -> tuple[dict[str, predict.Weights], list[str]]:
    """The models by encoding, and the passages that they did not learn."""
    with numpy.load(FILE) as arrays:
        facts = json.loads(str(arrays["facts"]))
        models = {}
        for name, about in facts["models"].items():
            found: dict[str, dict[str, torch.Tensor]] = {"integers": {}, "scales": {}, "vectors": {}}
            for key in (key for key in arrays if key.startswith(f"{name}/")):
                _, kind, parameter = key.split("/")
                found[kind][parameter] = torch.from_numpy(arrays[key])
            matrices = {key: (integers, found["scales"][key]) for key, integers in found["integers"].items()}
            models[name] = predict.Weights(about, matrices, found["vectors"])
    return models, facts["texts"]


def write(models: Mapping[str, predict.Weights], texts: Sequence[str]) -> None:
    """Write the file."""
    facts = {"models": {name: weights.about for name, weights in models.items()}, "texts": list(texts)}
    arrays: dict[str, Any] = {"facts": numpy.array(json.dumps(facts))}
    for name, weights in models.items():
        for key, (integers, scales) in weights.matrices.items():
            arrays |= {f"{name}/integers/{key}": integers.numpy(), f"{name}/scales/{key}": scales.numpy()}
        arrays |= {f"{name}/vectors/{key}": values.numpy() for key, values in weights.vectors.items()}
    numpy.savez_compressed(FILE, **arrays)


@torch.no_grad()
def loss(model: Transformer, texts: Sequence[str]) -> float:
    """Nats per byte of texts, each read at once."""
    losses = []
    for text in texts:
        tokens = torch.tensor([list(text.encode())])
        losses.append(F.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:], reduction="none"))
    return float(torch.cat(losses).mean())


def main() -> None:
    """Train the models and write the file."""
    floats: dict[str, Transformer] = {}
    models, texts = predict.trained(
        NAMES, settings=SETTINGS, on_trained=lambda name, model, losses: floats.update({name: model})
    )
    for name, weights in models.items():
        weights.about["loss"] = loss(floats[name], texts)
        rounded = loss(weights.into(floats[name]), texts)
        print(f"{name}: {weights.about['loss']:.4f} nats per byte of the passages, {rounded:.4f} with rounded weights")
    write(models, texts)


if __name__ == "__main__":
    main()
