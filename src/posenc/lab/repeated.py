# SPDX-License-Identifier: Apache-2.0
"""A training step on a GPU as CUDA graphs: the time of a small model is that of launching its kernels one by one."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Repeated"]

EAGER = 3
"""Steps before the first that is captured, in which the optimizers allocate what they store."""
MOST = 128
"""Shapes of batches of which a step is captured."""


@dataclass(frozen=True)
class Captured:
    """A step: its graph, and the tensors that this reads and writes."""

    graph: torch.cuda.CUDAGraph
    batch: Any
    loss: Tensor


class Repeated:
    """A training step that is captured once for each shape of a batch and replayed from then on: the same kernels, and so the
    same numbers.

    step: a batch and the number of its targets, a tensor (), -> the loss. drawing: around a step that may draw random
    numbers. forget: removes the gradients that a step left behind.

    Some steps are not captured, but run as they are: one that draws random numbers, which a graph would repeat, and one that
    waits for the GPU to decide what comes next.
    """

    def __init__(
        self,
        step: Callable[[Any, Tensor], Tensor],
        drawing: Callable[[], AbstractContextManager[None]],
        forget: Callable[[], None],
        device: torch.device,
    ) -> None:
        self.step, self.drawing, self.forget, self.device = step, drawing, forget, device
        self.refused = ""
        """Why steps are not captured; empty: they are, or have not been tried."""
        self._stream = torch.cuda.Stream(device)
        # the graphs run one after another, and nothing in their memory is read after the step
        self._memory = torch.cuda.graph_pool_handle()
        self._seen = 0
        self._captured: dict[Any, Captured] = {}
        self._scored = torch.ones((), device=device)

    def __call__(self, batch: Any, scored: int) -> Tensor:
        """The loss of a step on a batch (`posenc.lab.experiment.Batch`) that lies on the CPU."""
        self._scored.fill_(scored)
        self._seen += 1
        captured = None if self._seen <= EAGER or self.refused else self._of_shape(batch)
        if captured is None:
            return self._eager(batch)
        for static, given in zip(captured.batch, batch, strict=True):
            if static is not None:
                static.copy_(given, non_blocking=True)
        captured.graph.replay()
        return captured.loss.clone()

    def _eager(self, batch: Any) -> Tensor:
        """On the stream of the captures, to which what the step leaves behind belongs."""
        here = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(here)
        with self.drawing(), torch.cuda.stream(self._stream):
            before = _random(self.device)
            loss = self.step(batch, self._scored)
            if any(not torch.equal(a, b) for a, b in zip(before, _random(self.device), strict=True)):
                self.refused = "it draws random numbers"
        here.wait_stream(self._stream)
        return loss

    def _of_shape(self, batch: Any) -> Captured | None:
        """The step for batches of this shape, captured now if it has not been."""
        if not isinstance(batch, tuple) or not hasattr(batch, "to"):
            self.refused = "its batch is no tuple of tensors"
            return None
        shape = tuple(None if x is None else tuple(x.shape) for x in batch)
        if shape not in self._captured and len(self._captured) < MOST:
            here, graph = batch.to(self.device), torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, self._memory, self._stream):
                    loss = self.step(here, self._scored)
            except RuntimeError as why:
                self.refused = str(why).splitlines()[0]
                torch.cuda.synchronize(self.device)
                self.forget()
                return None
            self._captured[shape] = Captured(graph, here, loss)
        return self._captured.get(shape)


def _random(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device)
