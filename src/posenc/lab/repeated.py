# SPDX-License-Identifier: Apache-2.0
"""A training step on a GPU as CUDA graphs: the time of a small model is that of launching its kernels one by one."""

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

EAGER = 3
"""Steps before the first that is captured, in which the optimizers allocate what they store."""
MOST = 128
"""Shapes of batches of which a step is captured."""
BROKEN: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture failed: PyTorch's allocator goes on asking them which memory is theirs."""


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

    The first step of each shape runs as it is. In it the optimizers allocate what they store of parameters that only this shape
    uses, and what is compiled for a shape is compiled; and it shows whether a step may be captured. Not captured are steps that draw
    random numbers, which a graph would repeat, and those that wait for the GPU to decide what comes next.
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
        self._waited: dict[Hashable, bool] = {}
        """Whether the last step that ran as it is waited for the GPU, by the shape of its batch."""
        self._captured: dict[Hashable, Captured] = {}
        self._scored = torch.ones((), device=device)

    def __call__(self, batch: Any, scored: int) -> Tensor:
        """The loss of a step on a batch (`posenc.lab.experiment.Batch`) that lies on the CPU."""
        self._scored.fill_(scored)
        self._seen += 1
        shape = _shape(batch)
        if shape is None:
            self.refused = "its batch is no tuple of tensors"
        captured = None if self._seen <= EAGER or self.refused else self._of_shape(shape, batch)
        if captured is None:
            return self._eager(shape, batch.to(self.device))
        for static, given in zip(captured.batch, batch, strict=True):
            if static is not None:
                static.copy_(given, non_blocking=True)
        captured.graph.replay()
        return captured.loss.clone()

    def _eager(self, shape: Hashable, batch: Any) -> Tensor:
        """On the stream of the captures, to which what the step leaves behind belongs."""
        here = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(here)
        with self.drawing(), torch.cuda.stream(self._stream):
            before = _random(self.device)
            with _waits(watched=not self.refused) as waits:
                loss = self.step(batch, self._scored)
            if any(not torch.equal(a, b) for a, b in zip(before, _random(self.device), strict=True)):
                self.refused = "it draws random numbers"
        here.wait_stream(self._stream)
        if waits and self._seen > EAGER and self._waited.get(shape):  # not the first time alone
            self.refused = f"it waits for the GPU: {waits[0]}"
        self._waited[shape] = bool(waits)
        return loss

    def _of_shape(self, shape: Hashable, batch: Any) -> Captured | None:
        """The step for batches of this shape, captured now if it has not been."""
        if shape not in self._captured and len(self._captured) < MOST and not self._waited.get(shape, True):
            self._capture(shape, batch.to(self.device))
        return self._captured.get(shape)

    def _capture(self, shape: Hashable, batch: Any) -> None:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        try:
            with torch.cuda.graph(graph, self._memory, self._stream):
                loss = self.step(batch, self._scored)
        except RuntimeError as why:
            # an error in the step breaks the capture, whose end then fails as well
            self.refused = str(why.__context__ or why).splitlines()[0]
            BROKEN.append(graph)
            torch.cuda.set_stream(stream)  # PyTorch stays on that of a capture that does not end
            torch.cuda.synchronize(self.device)
            _draw_again(self.device)
            self.forget()
        else:
            self._captured[shape] = Captured(graph, batch, loss)


def _shape(batch: Any) -> Hashable:
    """By which batches share a graph; None: of no tuple of tensors."""
    if not isinstance(batch, tuple) or not all(x is None or isinstance(x, Tensor) for x in batch):
        return None
    return tuple(x if x is None else (x.dtype, *x.shape) for x in batch)


def _random(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device)


def _draw_again(device: torch.device) -> None:
    """After a capture that does not end, a GPU's generator refuses to draw: it believes that it is captured. A copy does not."""
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(generator.clone_state())


@contextmanager
def _waits(watched: bool) -> Iterator[list[str]]:
    """The waits of the program for a GPU, as PyTorch's warnings of them, filled at the end. Such a step breaks a capture."""
    found: list[str] = []
    if not watched:
        yield found
        return
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    for each in seen:
        text = str(each.message)
        if "called a synchronizing CUDA operation" in text:
            found.append(text)
        elif "Synchronization debug mode is a prototype" not in text:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
