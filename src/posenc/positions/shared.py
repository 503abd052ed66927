# SPDX-License-Identifier: Apache-2.0
"""What the layers of a forward pass share of positions, and what positions have in a call of one layer."""

from collections.abc import Callable, Hashable
from typing import Any, Self, TypeVar
from weakref import ref

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.positions.memory import Memory, is_learned, modes, recomputes_alone

T = TypeVar("T")


class Shared:
    """Data that belong to a pass, if they do: they are as before, and what is made of them is made once."""

    _memory: ref[Memory] | None = None
    origin = None
    """In a pass: the object that it was made of"""
    _part = None
    """In a pass: this object, if it is derived from its own"""

    # of one call, and of nothing that is derived
    branch: Any = None
    """The `Branch` of a position map to rotate for, see `at`. None: there is no map."""
    gates: tuple[Tensor, ...] = ()
    """What an encoding made of the input of a layer, see `with_gates`"""
    ungated: "Self | None" = None
    """The positions without gates"""

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
        memory = None if self._memory is None or torch.compiler.is_dynamo_compiling() else self._memory()
        return memory if memory is not None and memory.modes == modes() else None

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """A value that depends on these positions and the key alone: once a pass, and without gradient."""
        memory = self.memory
        if memory is None:
            return make()
        key = self._part, key
        if key not in memory:
            value: Any = memory.made(make, learns=False)  # so that a later step may train on it
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
            return make() if recomputes_alone() and is_learned(value) else value
        if recomputes_alone():
            return make()
        memory[key] = value = memory.made(make)
        return value

    def for_layers(self, make: Callable[[], T]) -> T:
        """A value that other layers may read, which the caller keeps."""
        memory = self.memory
        return make() if memory is None else memory.made(make)

    def with_gates(self, gates: tuple[Tensor, ...]) -> Self:
        """The same tokens, for the hooks of one layer, with what `Encoding.gates` made of that layer's input: for each gated
        encoding (batch, heads, num_keys, width), of all keys."""
        ungated = self.ungated or self
        if not gates:
            return ungated
        gated = ungated._in_call(gates=gates, ungated=ungated)
        if ungated.memory is not None:  # for one layer, so not in that of the pass
            own = Memory(False)
            vars(gated).update(_memory=ref(own), _own=own)
        return gated

    def _in_call(self, **facts: Any) -> Self:
        """The same positions with facts of one call."""
        made = object.__new__(type(self))
        vars(made).update(vars(self), _memory=None, _part=None, **facts)
        return made

    def gate(self, user: str, heads: int | None = None, width: int | None = None) -> Tensor:
        """The gates of every key, (batch, heads, num_keys, width), for the one encoding that asks. heads, width: those that
        it made; None: any.

        Raises:
            InputError: none were given, or of other heads or another width.
        """
        if len(self.gates) != 1:
            remedy = f"pass gates=gates_of({user}, x, layer) to attention, after those of cached keys"
            raise InputError(f"{user} takes gates that it makes of a layer's input: {remedy}")
        (gate,) = self.gates
        wanted = gate.shape[1] if heads is None else heads, gate.shape[3] if width is None else width
        if gate.shape[1::2] != wanted:
            made = f"(batch, {wanted[0]}, num_keys, {wanted[1]}); pass gates=gates_of({user}, x, layer)"
            raise InputError(f"gates of shape {tuple(gate.shape)}: {user} makes {made}")
        return gate

    def at(self, branch: Any) -> Self:
        """The same tokens, as one branch of a position map is asked to rotate them, or None. Positions and visibility stay as
        they are."""
        return self._in_call(branch=branch, ungated=self.ungated and self.ungated.at(branch))._remembering(self)

    def _remembering(self, like: "Shared") -> Self:
        if like._memory is not None:
            vars(self).update(_memory=like._memory, _part=self)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_memory": None, "_part": None, "_own": None, "origin": None}  # copies are data alone
