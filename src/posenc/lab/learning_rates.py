# SPDX-License-Identifier: Apache-2.0
"""The learning rate that an encoding's parameters need beside a model's."""

import json
import math
from functools import lru_cache
from importlib.resources import files
from typing import Any

from torch import nn

from posenc.encoding import Encoding
from posenc.encodings.registry import ENCODINGS
from posenc.errors import InputError


@lru_cache(maxsize=1)
def table_rates() -> dict[str, float]:
    """Registered name -> the factor on the model's rate that was measured for its parameters, in table_rates.json, which
    benchmarks/table_rates.py writes; what was not measured is left out."""
    return json.loads(files("posenc.lab").joinpath("table_rates.json").read_text(encoding="utf-8"))


def parameter_groups(model: nn.Module, lr: float) -> list[dict[str, Any]]:
    """A model's trainable parameters in groups for an optimizer of the Adam family: those of each encoding have the rate that was
    measured for it, since a table such as T5's hardly moves at a rate that suits matrices; all others have `lr`.

        optimizer = torch.optim.AdamW(posenc.parameter_groups(model, lr=1e-3))

    lr: the model's rate. An encoding that was not measured, as one of your own, has the model's rate.

    Raises:
        InputError: a rate that is not above 0 and finite, or a model without trainable parameters.
    """
    if not (lr > 0 and math.isfinite(lr)):
        raise InputError("must be above 0 and finite", lr=lr)
    names = {cls: name for name, cls in ENCODINGS.items()}
    factors: dict[int, float] = {}
    for module in model.modules():
        if isinstance(module, Encoding) and (factor := table_rates().get(names.get(type(module), ""))) is not None:
            for parameter in module.parameters():
                factors.setdefault(id(parameter), factor)  # an encoding within another has the other's rate
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise InputError("has no trainable parameters", model=type(model).__name__)
    return [
        {"params": [p for p in trained if factors.get(id(p), 1.0) == factor], "lr": lr * factor}
        for factor in sorted({factors.get(id(p), 1.0) for p in trained})
    ]
