# SPDX-License-Identifier: Apache-2.0
"""What is analysed: a function from positions (or distances) to vectors, read off anything that has one."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from posenc.analysis.of_encoding import of_encoding
from posenc.analysis.of_model import of_model
from posenc.analysis.reading import Codes, of_table, seeded
from posenc.checks import checked
from posenc.encoding import Encoding
from posenc.encodings import create
from posenc.errors import InputError
from posenc.transformer import Transformer

SHAPE: dict[str, Any] = {
    "dim": 64,
    "num_heads": 4,
    "head_dim": 64,
    "num_layers": 1,
    "max_positions": 512,
    "causal": True,
}
"""The model that an encoding given by name is made for, unless it is said otherwise."""


def made(text: str, **shape: Any) -> Encoding:
    """The encoding of a text for a model of that shape; what it draws at random is the same every time."""
    with seeded():
        return create(text, **{**SHAPE, **shape})


@checked
def codes_of(
    subject: Any, *, name: str | None = None, layer: int = 0, site: str | None = None, head: int = 0, **shape: Any
) -> Codes:
    """The codes of a subject.

    Args:
        subject: an encoding, or its text ("rope:rope_theta=500", made for `shape`, see SHAPE); a function or a module
            from (n,) positions to (n, dim) vectors; a table (n, dim), as a tensor, an array or nn.Embedding; a
            transformers model with a learned table, a rotation or T5's bias, or a model of ours.
            Of an encoding: what it adds to the input (before `merge`); else what rotation makes of a query of ones;
            else its bias of every distance between content of ones, a number per head. FLOATER's is its code at the
            input beside what its flow adds to the queries, a word's in complex order that of an embedding of ones, that
            of a position map a rotation by the mapped distance.
        name: for people. layer: whose part of it. site: where to read an encoding that acts on several, "embed",
            "rotate" or "bias"; None: on the first of these. head: whose rotation, where heads differ.
        shape: of the model, for a text; for an encoding the sizes that it does not keep itself as num_heads,
            num_kv_heads, head_dim or dim; for a function `dim`, the width that it must give.

    Raises:
        InputError: a subject without codes, with the reason, or a shape for a subject that has another.
    """
    if isinstance(subject, Codes):
        return subject
    if isinstance(subject, str):
        return of_encoding(made(subject, **shape).eval(), layer, name or subject, site, head)
    fixed = isinstance(subject, (Tensor, nn.Embedding, Transformer)) or hasattr(subject, "config")
    taken = set(SHAPE) if isinstance(subject, Encoding) else set() if fixed else {"dim"}
    left = set(shape) - taken
    if left:
        raise InputError(
            f"{', '.join(sorted(left))}: a {type(subject).__name__} has its own; only an encoding or its text takes it"
        )
    if isinstance(subject, Encoding):
        return of_encoding(subject, layer, name or subject.known_as, site, head, shape)
    if isinstance(subject, nn.Embedding):
        return _of_table(subject.weight, name or "table")
    if isinstance(subject, Tensor) or type(subject).__module__ == "numpy":
        return _of_table(torch.as_tensor(subject), name or "table")
    if isinstance(subject, Transformer) or hasattr(subject, "config"):
        return of_model(subject, name, layer, site, head)
    if isinstance(subject, nn.Module):
        return Codes(name or type(subject).__name__, _where_it_is(subject), module=subject, dim=shape.get("dim"))
    if callable(subject):
        return Codes(name or str(getattr(subject, "__name__", "function")), subject, dim=shape.get("dim"))
    raise InputError(f"subject: a {type(subject).__name__} has no codes; pass an encoding, a function or a table")


def _where_it_is(module: nn.Module) -> Callable[[Tensor], Any]:
    """The module, given positions on its own device."""

    def call(positions: Tensor) -> Any:
        held = next(chain(module.parameters(), module.buffers()), positions)
        return module(positions.to(held.device))

    return call


def _of_table(table: Tensor, name: str) -> Codes:
    if table.dim() == 3 and len(table) == 1:
        raise InputError(f"{name} of shape {tuple(table.shape)}: leave out the batch: pass table[0]")
    if table.dim() != 2 or not table.numel():
        raise InputError(f"{name} of shape {tuple(table.shape)}: pass (n, dim), a row per position, and at least one")
    if not table.is_floating_point():
        raise InputError(f"{name} of {table.dtype}: codes are not whole numbers; pass table.float() if these are")
    return of_table(name, table)
