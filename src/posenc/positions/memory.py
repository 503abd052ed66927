# SPDX-License-Identifier: Apache-2.0
"""What the layers of one forward pass share, and when it may be read."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from posenc.functional import AS_IT_IS

T = TypeVar("T")
Modes = tuple[int, int, int]
SHORT = 2**16
"""Queries times keys up to which a dense mask is remembered for the layers of a pass, and is faster than the CPU's operator: 256 by
256 tokens."""
top_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks
"""(ignore_is_tracing) -> the innermost hooks on saved tensors, such as those of a checkpoint, or None"""


def modes() -> Modes:
    """Which modes make of operations what they like: dispatch modes such as FakeTensorMode, transforms of torch.func,
    forward-mode differentiation. What is made under some is nothing under others."""
    return (
        torch._C._len_torch_dispatch_stack(),
        torch._C._functorch.maybe_current_level() or 0,
        forward_ad._current_level,
    )


class Memory(dict[Hashable, Any]):
    """Values by key, where no graph is traced. lasts: for several calls, not for one alone. modes: those that it is for."""

    def __init__(self, lasts: bool) -> None:
        super().__init__()
        self.lasts, self.modes = lasts, modes()

    def made(self, make: Callable[[], T], learns: bool = True) -> T:
        """What `make` makes for other layers to read: hooks on saved tensors, as those of a checkpoint, do not see it. learns:
        whether a gradient may reach it."""
        graph, hooked = torch.is_grad_enabled(), top_hooks(False) is not None
        if not self.lasts or not (hooked or torch.is_inference_mode_enabled()):
            if learns or not graph:
                return make()
            with torch.set_grad_enabled(False):
                return make()
        hooks = saved_tensors_hooks(_same, _same) if graph and hooked else AS_IT_IS
        with hooks, torch.inference_mode(False), torch.set_grad_enabled(graph and learns):
            return make()


def _same(x: Tensor) -> Tensor:
    return x


@contextmanager
def without_hooks() -> Iterator[None]:
    """Where torch.func is used, which refuses to work under hooks on saved tensors."""
    found = []
    while (hooks := top_hooks(True)) is not None:
        found.append(hooks)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for hooks in reversed(found):
            torch._C._autograd._push_saved_tensors_default_hooks(*hooks)


def in_backward() -> bool:
    """Whether a backward pass runs, in which a checkpoint computes its layers again."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def recomputes_alone() -> bool:
    """Whether a reentrant checkpoint computes a layer of a pass again, with a backward pass apart, which must not share a graph."""
    return torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled() and top_hooks(False) is None


def is_learned(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.requires_grad
    return isinstance(value, (tuple, list)) and any(map(is_learned, value))
