# SPDX-License-Identifier: Apache-2.0
"""A forward pass: the one owner of what the layers of a model share."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.encoding.effects import NOTHING, Acting, Hooked, parameters_of, require_positions
from posenc.encoding.heads import Sliced
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.positions.memory import Memory


class Pass:
    """One forward pass: an encoding at positions, and what the layers share of them: tables, masks, terms, plans.

        here = encoding.at(positions)
        for number, layer in enumerate(layers):
            ... here.attention(q, k, v, layer=number)

    It is made in each forward pass, since it is of the parameters as they are: after an optimiser's step, or once they are replaced,
    frozen or no more, it is refused. A write to `.data`, which PyTorch does not count, is not seen. encoding: None does nothing.

    Raises:
        InputError: no encoding, or no `Positions`.
    """

    compute: ClassVar[Callable[..., Tensor]]
    """`posenc.attention`, which is made of passes"""

    def __init__(self, encoding: Hooked | None, positions: Positions) -> None:
        if encoding is not None and not isinstance(encoding, Sliced):
            raise InputError("pass an Encoding, such as posenc.create('rope', head_dim=64)", encoding=encoding)
        require_positions(positions)
        self.encoding: Any = encoding
        self._memory = None if torch.compiler.is_compiling() else Memory(lasts=True)
        self.positions = (positions.origin or positions).in_pass(self._memory)
        self._acting: dict[int, Acting] = {}
        owned = [] if encoding is None or self._memory is None else parameters_of(encoding)
        self.versions = [(*of, of[2]._version, of[2].requires_grad) for of in owned if not of[2].is_inference()]

    def require_current(self) -> None:
        """Refuse to go on once a parameter has been replaced, written to, or frozen or no more."""
        for owner, name, x, version, learns in self.versions:
            if owner.get(name) is not x or x._version != version or x.requires_grad is not learns:
                remedy = "make one in each forward pass, encoding.at(positions)"
                raise InputError(f"the encoding's parameters have changed since this pass was made: {remedy}")

    def acting_in(self, layer: int) -> Acting:
        """What acts in a layer."""
        return NOTHING if self.encoding is None else self.encoding.acting_in(layer)

    def acting_once(self, layer: int) -> Acting:
        """The same, made once; not where a graph is traced, which would depend on what has been made."""
        if layer not in self._acting:
            self._acting[layer] = self.acting_in(layer)
        return self._acting[layer]

    def attention(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """`posenc.attention` here; options: its keyword arguments, such as layer."""
        return Pass.compute(q, k, v, self, **options)

    def embed(self, x: Tensor, layer: int = 0) -> Tensor:
        """The input x (batch, seq, dim) of a layer with what the encoding does to it."""
        if self.encoding is None:
            return x
        if not torch.compiler.is_compiling():
            self.require_current()
        return self.encoding.effects(self.positions, layer).embedded(x)
