# SPDX-License-Identifier: Apache-2.0
"""What the layers of a forward pass share of positions."""

from collections.abc import Callable, Hashable
from typing import Any, Self, TypeVar
from weakref import ref

import torch

from posenc.positions.memory import Memory, again_alone, is_learned, world

T = TypeVar("T")


class Shared:
    """Data that belong to a pass, if they do: they are as before, and what is made of them is made once."""

    _memory: ref[Memory] | None = None
    origin = None
    """In a pass: the object that it was made of"""
    _part = None
    """In a pass: this object, if it is derived from its own"""

    def in_pass(self, memory: Memory | None) -> Self:
        """A copy whose values the layers of one forward pass share by a memory, as long as somebody owns it."""
        if memory is None:
            return self
        made = object.__new__(type(self))
        vars(made).update(vars(self), _memory=ref(memory), _part=self, origin=self)  # several may have one memory
        return made

    @property
    def memory(self) -> Memory | None:
        """What the layers of a pass share by key, to read and to add to. None: outside of a pass, where a graph is traced, and
        under modes that the pass was not made in."""
        memory = None if self._memory is None or torch.compiler.is_compiling() else self._memory()
        return memory if memory is not None and memory.world == world() else None

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """A value that depends on these positions and the key alone: once a pass, and without gradient."""
        memory = self.memory
        if memory is None:
            return make()
        key = self._part, key
        if key not in memory:
            with torch.inference_mode(False), torch.no_grad():  # so that a later step may train on it
                value: Any = make()
            if isinstance(value, Shared) and value._memory is None:
                value._remembering(self)
            memory[key] = value
        return memory[key]

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The same of a value that a gradient may reach: once a pass with, and once without gradients."""
        memory = self.memory
        if memory is None:
            return make()
        key = self._part, key, torch.is_grad_enabled()
        if key in memory:
            value = memory[key]
            return make() if again_alone() and is_learned(value) else value
        if again_alone():
            return make()
        with memory.apart():
            memory[key] = value = make()
        return value

    def _remembering(self, like: "Shared") -> Self:
        if like._memory is not None:
            vars(self).update(_memory=like._memory, _part=self)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_memory": None, "_part": None, "_own": None, "origin": None}  # copies are data alone
