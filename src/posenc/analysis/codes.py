"""What is analysed: a function from positions (or distances) to vectors, read off anything that has one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc.bias import dense_sum
from posenc.encoding import Encoding, as_terms
from posenc.encodings import create
from posenc.encodings.absolute import Absolute
from posenc.errors import InputError
from posenc.positions import Positions

SHAPE: dict[str, Any] = {
    "dim": 64,
    "num_heads": 4,
    "head_dim": 64,
    "num_layers": 1,
    "max_positions": 512,
    "causal": True,
}
"""The model that an encoding given by name is made for, unless it is said otherwise."""


@dataclass(frozen=True, eq=False)
class Codes:
    """A vector per position, or per distance: call it with (n,) positions for (n, dim) float64 vectors.

    name: for people. of: what a vector belongs to; encodings that add to the scores have none per position, but one
    number a head for every distance. limit: positions 0 .. limit-1 are defined, None: all. How often it is called
    makes no difference; what it gives is checked.

    Raises, when called:
        InputError: codes that are not (n, dim), not finite, or not those of the last call for the same positions.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    of: Literal["position", "distance"] = "position"
    limit: int | None = None

    def __call__(self, positions: Tensor) -> Tensor:
        first, again = (self.function(positions.clone()) for _ in range(2))
        for codes in (first, again):
            if codes.dim() != 2 or len(codes) != len(positions):
                raise InputError(
                    f"{self.name}: gave {tuple(codes.shape)} for {len(positions)} positions; it must give (n, dim)"
                )
        found = first.detach().to("cpu", torch.float64)
        if not bool(found.isfinite().all()):
            at = positions[~found.isfinite().all(-1)][0]
            raise InputError(f"{self.name}: the code of {self.of} {at:g} is not finite; mend it, or analyse fewer")
        if not torch.equal(found, again.detach().to("cpu", torch.float64)):
            raise InputError(
                f"{self.name}: gave two different codes for the same {self.of}s; seed it, or turn off its noise"
            )
        return found


def codes_of(subject: Any, *, name: str | None = None, layer: int = 0, **shape: Any) -> Codes:
    """The codes of a subject.

    Args:
        subject: an encoding, or its text ("rope:rope_theta=500", made for `shape`, see SHAPE); a function from (n,)
            positions to (n, dim) vectors; a table (n, dim), as a tensor, nn.Embedding or a model that has learned one.
            Of an encoding: what it adds to the input; else what rotation makes of a constant vector; else its bias of
            every distance, a number per head.
        name: for people. layer: whose part of it.

    Raises:
        InputError: a subject without codes.
    """
    if isinstance(subject, Codes):
        return subject
    if isinstance(subject, str):
        return codes_of(create(subject, **{**SHAPE, **shape}), name=name or subject, layer=layer)
    if isinstance(subject, nn.Embedding):
        return codes_of(subject.weight, name=name, layer=layer)
    if isinstance(subject, Tensor):
        return Codes(name or "table", lambda positions: subject[positions.long()], limit=len(subject))
    if isinstance(subject, Encoding):
        own, number = subject.at(layer)
        return _of_encoding(own, number, name or own.name or type(own).__name__)
    if callable(subject) and not isinstance(subject, nn.Module):
        return Codes(name or str(getattr(subject, "__name__", "function")), subject)
    raise InputError(f"subject: a {type(subject).__name__} has no codes; pass an encoding, a function or a table")


def _of_encoding(encoding: Encoding, layer: int, name: str) -> Codes:
    sites = encoding.sites()
    if isinstance(encoding, Absolute):
        return Codes(name, lambda p: encoding.codes(Positions.from_ids(_ids(p)))[0], limit=encoding.max_positions)
    if "rotate" in sites:
        return Codes(name, lambda p: _turned(encoding, layer, p), limit=encoding.max_positions)
    if "bias" in sites:
        return Codes(name, lambda d: _biases(encoding, layer, d), of="distance", limit=encoding.max_positions)
    raise InputError(f"{name}: it acts on {', '.join(sites) or 'nothing'} and has no code per position or distance")


def _turned(encoding: Encoding, layer: int, at: Tensor) -> Tensor:
    width = getattr(encoding, "head_dim", SHAPE["head_dim"])
    constant = torch.ones(1, 1, len(at), width, dtype=torch.float64)
    return encoding.rotate(constant, constant, Positions.from_ids(_ids(at)), layer)[0][0, 0]


def _biases(encoding: Encoding, layer: int, distances: Tensor) -> Tensor:
    """(n, heads): what a query at that distance after position 0 adds to its score with it."""
    heads, width = getattr(encoding, "num_heads", 1), getattr(encoding, "head_dim", SHAPE["head_dim"])
    content = torch.ones(1, heads, 1, width, dtype=torch.float64)
    at = Positions.from_ids(_ids(distances), _ids(distances.new_zeros(1)))
    terms = as_terms(encoding.bias(content.expand(-1, -1, len(distances), -1), content, at, layer))
    bias = dense_sum(terms, torch.device("cpu"))
    assert bias is not None
    return bias[0, :, :, 0].T


def _ids(at: Tensor) -> Tensor:
    return at.long() if bool((at == at.floor()).all()) else at.double()
