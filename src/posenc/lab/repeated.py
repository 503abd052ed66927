# SPDX-License-Identifier: Apache-2.0
"""A training step on a GPU as one CUDA graph: the time of a small model is that of launching its kernels one by one."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

__all__ = ["Repeated"]

EAGER = 3
"""Steps before the captured one, in which the optimizers allocate what they store."""


class Repeated:
    """A training step that is captured once and replayed from then on: the same kernels, and so the same numbers.

    step: a batch and the number of its targets, a tensor (), -> the loss. drawing: around a step that may draw random
    numbers. forget: removes the gradients that a step left behind.

    Some steps are not captured, but run as they are: one that draws random numbers, which a graph would repeat; one that waits
    for the GPU to decide what comes next; a batch of another shape than the captured one.
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
        self._seen = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Any = None
        self._scored = torch.ones((), device=device)
        self._loss = torch.zeros((), device=device)

    def __call__(self, batch: Any, scored: int) -> Tensor:
        """The loss of a step on a batch (`posenc.lab.experiment.Batch`) that lies on the CPU."""
        self._scored.fill_(scored)
        if self._seen == EAGER and not self.refused:
            self._capture(batch)
        self._seen += 1
        if self._graph is None or _sizes(batch) != _sizes(self._batch):
            return self._eager(batch)
        for static, given in zip(self._batch, batch, strict=True):
            if static is not None:
                static.copy_(given, non_blocking=True)
        self._graph.replay()
        return self._loss.clone()

    def _eager(self, batch: Any) -> Tensor:
        """On the stream of the capture, to which what the step leaves behind belongs."""
        here = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(here)
        with self.drawing(), torch.cuda.stream(self._stream):
            before = _random(self.device)
            loss = self.step(batch, self._scored)
            if any(not torch.equal(a, b) for a, b in zip(before, _random(self.device), strict=True)):
                self.refused = "it draws random numbers"
        here.wait_stream(self._stream)
        return loss

    def _capture(self, batch: Any) -> None:
        if not isinstance(batch, tuple) or not hasattr(batch, "to"):
            self.refused = "its batch is no tuple of tensors"
            return
        self._batch = batch.to(self.device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                self._loss = self.step(self._batch, self._scored)
        except RuntimeError as why:
            self.refused = str(why).splitlines()[0]
            torch.cuda.synchronize(self.device)
            self.forget()
        else:
            self._graph = graph


def _sizes(batch: Any) -> list[tuple[int, ...] | None]:
    return [None if x is None else tuple(x.shape) for x in batch]


def _random(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device)
