# SPDX-License-Identifier: Apache-2.0
"""Forward passes in training and tests, on the device and in the precision that a run asks for."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from posenc.lab.experiment import Batch, Execution
from posenc.lab.machine import check_present
from posenc.transformer import TransformerBase

__all__ = ["Passes", "executing", "passes"]


CPU = torch.device("cpu")


@dataclass(frozen=True)
class Passes:
    """precision, compiled: see `posenc.lab.experiment.Execution`."""

    device: torch.device = CPU
    precision: str = "float32"
    compiled: bool = False

    def wrap(self, model: TransformerBase) -> nn.Module:
        """What a forward pass in training goes through."""
        model.to(self.device)
        return cast(nn.Module, torch.compile(model)) if self.compiled else model

    def forward(self, module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits of a batch, and its targets."""
        batch = batch.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            logits = module(batch.inputs, batch.positions).float()
        return logits, batch.targets


USUAL = Passes()
_current: ContextVar[Passes] = ContextVar("passes", default=USUAL)


def passes() -> Passes:
    """Those of the enclosing `executing`, or of the CPU in float32."""
    return _current.get()


@contextmanager
def executing(execution: Execution) -> Iterator[Passes]:
    """Inside, models are trained and tested as a run asks for.

    Raises:
        InputError: this machine has no such device.
    """
    check_present(execution.device)
    token = _current.set(Passes(torch.device(execution.device), execution.precision, execution.compiled))
    try:
        yield passes()
    finally:
        _current.reset(token)
