# SPDX-License-Identifier: Apache-2.0
"""Encodings made of encodings: several at once, or another one in each layer."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from posenc.bias import KeyValues, Score, Values
from posenc.checks import shown
from posenc.encoding import (
    SITES,
    Encoding,
    Projections,
    bias_of,
    branches_of,
    embedded_by,
    keys_rotated_by,
    placed_by,
    queries_rotated_by,
    rotated_by,
    scale_in,
    values_of,
)
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.positions.visibility import Branch

T = TypeVar("T")


class Composite(Encoding):
    """An encoding made of parts: its traits are the strictest of theirs."""

    def __init__(self, *parts: Encoding) -> None:
        super().__init__()
        if not parts:
            raise InputError(f"{type(self).__name__}() needs at least one encoding")
        for part in parts:
            if not isinstance(part, Encoding):
                raise InputError(f"parts={shown(part)}: pass encodings, such as posenc.create('rope', head_dim=64)")
        self.parts: nn.ModuleList = nn.ModuleList(parts)
        limits = [p.max_positions for p in parts if p.max_positions is not None]
        self.max_positions: int | None = min(limits, default=None)

    def __iter__(self) -> Iterator[Encoding]:
        return iter(self.parts)  # type: ignore[arg-type]

    def place(self, positions: Positions, batch: int) -> Positions:
        for part in dict.fromkeys(self):
            positions = placed_by(part, positions, batch)
        return positions

    @property
    def sees_order(self) -> bool:
        return any(part.sees_order for part in self)

    def key_angles(self, positions: Positions, layer: int = 0) -> Tensor:
        raise InputError(f"{type(self).__name__} is made of parts: pass the one that turns this layer's keys")

    @property
    def bias_reads_keys(self) -> bool:
        return self._overrides("bias") or any(part.bias_reads_keys for part in self)

    def _overrides(self, hook: str) -> bool:
        """Whether a subclass of the user's has a hook of its own, besides those of the parts."""
        owner = next(cls for cls in type(self).__mro__ if hook in vars(cls))
        return owner not in (Encoding, Composite, Sum, PerLayer)

    @property
    def isometric(self) -> bool:
        return all(part.isometric for part in self)

    @property
    def causal_only(self) -> bool:  # type: ignore[override]
        return any(part.causal_only for part in self)

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        return all(part.shift_invariant for part in self)

    @property
    def needs_length(self) -> bool:  # type: ignore[override]
        return any(part.needs_length for part in self)

    @property
    def papers(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(paper for part in self for paper in part.papers))

    def sites(self) -> tuple[str, ...]:  # type: ignore[override]
        """The sites that any part uses, or that a subclass overrides."""
        return tuple(s for s in SITES if self._overrides(s) or any(s in part.sites() for part in self))

    def spec(self) -> dict[str, Any]:
        """The parts' specs; "order" says where a part that occurs several times does."""
        parts = list(self)
        different = [part for i, part in enumerate(parts) if all(part is not p for p in parts[:i])]
        order = [next(i for i, d in enumerate(different) if d is part) for part in parts]
        return {"name": self.known_as, "parts": [part.spec() for part in different], "order": order}

    def extra_repr(self) -> str:
        return ""


def _leaves(part: Encoding) -> list[Encoding]:
    """The encodings that a part is made of."""
    return [leaf for each in part for leaf in _leaves(each)] if isinstance(part, Composite) else [part]


class Sum(Composite):
    """Several encodings at once, as in `Rotary(64) + ALiBi(8)`: sites are applied in order, biases added."""

    name = "sum"

    def __init__(self, *parts: Encoding) -> None:
        super().__init__(*(p for part in parts for p in (part if isinstance(part, Sum) else (part,))))
        leaves = [(number, leaf) for number, part in enumerate(self._in_turn()) for leaf in _leaves(part)]
        for at, alone in leaves:
            if not alone.centres_keys:
                continue
            others = [
                x for number, x in leaves if number != at and (x.planes != () or (x.shifts_queries and number > at))
            ]
            if any(x.planes is None or x.planes != alone.planes for x in others):
                raise InputError(
                    f"{alone.known_as} with {', '.join(dict.fromkeys(x.known_as for x in others))}: it scales keys by their "
                    "distance from the middle of a call's keys, which cancels only beside rotations of the same channels in "
                    "the same layout, and of queries moved before it; use one of them, or that other first"
                )

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        rotating = [part.planes for part in self if part.planes != ()]
        commute = len(rotating) <= 1 or (None not in rotating and len(set(rotating)) == 1)
        turned = False
        for part in self._in_turn():
            leaves = _leaves(part)
            commute = commute and not (turned and any(leaf.shifts_queries for leaf in leaves))
            turned = turned or any(leaf.planes != () for leaf in leaves)
        return commute and super().shift_invariant

    @property
    def planes(self) -> Hashable:
        rotating = [part.planes for part in self if part.planes != ()]
        if len(set(rotating)) > 1 or self._overrides("rotate"):
            return None
        return rotating[0] if rotating else ()

    def embed(self, x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        for part in self:
            x = embedded_by(part, x, positions, layer)
        return x

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        for part in self._in_turn():
            q, k = rotated_by(part, q, k, positions, layer)
        return q, k

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        for part in self._in_turn():
            q = queries_rotated_by(part, q, positions, layer)
        return q

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        for part in self._in_turn():
            k = keys_rotated_by(part, k, positions, layer)
        return k

    def _in_turn(self) -> list[Encoding]:
        """The parts as they rotate."""
        return sorted(self, key=lambda part: part.rotates_last)

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Sequence[Score]:
        return [term for part in self for term in bias_of(part, q, k, positions, layer)]

    def branches(self, layer: int = 0) -> Sequence[Branch]:
        return _only("position maps", [branches_of(part, layer) or None for part in self]) or ()

    def values(self, positions: Positions, layer: int = 0) -> Values | KeyValues | None:
        return _only("encodings that act on the values", [values_of(part, positions, layer) for part in self])

    def sink(self, layer: int = 0) -> float | Tensor | None:
        return _only("sinks", [part.sink(layer) for part in self])

    def share(self, projections: Sequence[Projections]) -> None:
        for part in self:
            part.share(projections)

    def scale(self, head_dim: int) -> float:
        return self.agreed([part.scale(head_dim) for part in self], head_dim)

    def scale_of(self, layer: int, head_dim: int) -> float:
        return self.agreed([scale_in(part, layer, head_dim) for part in self], head_dim)

    def agreed(self, scales: list[float], head_dim: int) -> float:
        """The scale of the sum: that of the part that wants an unusual one.

        Raises:
            InputError: parts that want different ones.
        """
        usual = super().scale(head_dim)
        unusual = {scale for scale in scales if scale != usual}
        if len(unusual) > 1:
            raise InputError(f"the sum's parts want different scales {sorted(unusual)}: pass scale= to attention")
        return unusual.pop() if unusual else usual


class PerLayer(Composite):
    """A different encoding per layer, cycling: `PerLayer(rope, rope, rope, NoPE())` has no position in every fourth
    layer. Each part counts only the layers that are its own."""

    name = "per_layer"

    def __init__(self, *parts: Encoding) -> None:
        super().__init__(*parts)
        if sum("place" in part.sites() for part in dict.fromkeys(self)) > 1:
            raise InputError(
                "several layers' encodings move positions, which are moved once for all layers: let the layers share one "
                "object, or add it outside, as in SHAPE() + PerLayer(...)"
            )

    def at(self, layer: int) -> tuple[Encoding, int]:
        parts = list(self)
        part = parts[layer % len(parts)]
        return part, sum(parts[earlier % len(parts)] is part for earlier in range(layer))

    def embed(self, x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        part, own = self.at(layer)
        return embedded_by(part, x, positions, own)

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        part, own = self.at(layer)
        return rotated_by(part, q, k, positions, own)

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        part, own = self.at(layer)
        return queries_rotated_by(part, q, positions, own)

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        part, own = self.at(layer)
        return keys_rotated_by(part, k, positions, own)

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Score | Sequence[Score] | None:
        part, own = self.at(layer)
        return bias_of(part, q, k, positions, own)

    def branches(self, layer: int = 0) -> Sequence[Branch]:
        part, own = self.at(layer)
        return branches_of(part, own)

    def values(self, positions: Positions, layer: int = 0) -> Values | KeyValues | None:
        part, own = self.at(layer)
        return values_of(part, positions, own)

    def sink(self, layer: int = 0) -> float | Tensor | None:
        part, own = self.at(layer)
        return part.sink(own)

    def share(self, projections: Sequence[Projections]) -> None:
        for part in dict.fromkeys(self):
            part.share([pair for layer, pair in enumerate(projections) if self.at(layer)[0] is part])

    def scale_of(self, layer: int, head_dim: int) -> float:
        part, own = self.at(layer)
        return scale_in(part, own, head_dim)

    def scale(self, head_dim: int) -> float:
        scales = {part.scale(head_dim) for part in self}
        if len(scales) > 1:
            raise InputError(f"PerLayer's parts want different scales {sorted(scales)}: pass scale= to attention")
        return scales.pop()


def _only(what: str, of_parts: Sequence[T]) -> T | None:
    found = [thing for thing in of_parts if thing is not None]
    if len(found) > 1:
        raise InputError(f"the sum holds several {what}: use one of them")
    return found[0] if found else None
