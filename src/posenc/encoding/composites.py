# SPDX-License-Identifier: Apache-2.0
"""Encodings that are made of encodings: sums, and another one for each layer."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any, Self

from torch import Tensor, nn

from posenc.bias import Modifier, Score
from posenc.encoding.declared import HeadRange, is_torchs
from posenc.encoding.effects import Acting, agreed_scale, augmented_by, check_layer, gates_of, joined, only
from posenc.encoding.encoding import HOOKS, SITES, Encoding, Projections
from posenc.errors import InputError, check_sizes, not_none
from posenc.positions import Positions
from posenc.positions.visibility import Branch


class Composite(Encoding):
    """An encoding made of parts: its traits are the strictest of theirs."""

    def __init_subclass__(cls, **options: Any) -> None:
        own = [hook for hook in HOOKS if hook in vars(cls)]
        if own and not is_torchs(cls) and cls.__module__ != __name__:
            remedy = "write an Encoding with these hooks, and add it to the others"
            raise InputError(f"{cls.__name__} is made of its parts and cannot override {', '.join(own)}: {remedy}")
        super().__init_subclass__(**options)
        cls.own_sites = ()

    def __init__(self, *parts: Encoding) -> None:
        super().__init__()
        if not parts:
            raise InputError(f"{type(self).__name__}() needs at least one encoding")
        for part in parts:
            if not isinstance(part, Encoding):
                raise InputError("pass encodings, such as posenc.create('rope', head_dim=64)", parts=part)
        self.parts: nn.ModuleList = nn.ModuleList(parts)
        self.max_positions = min((p.max_positions for p in parts if p.max_positions is not None), default=None)
        self.shift_invariant = all(part.shift_invariant for part in parts)
        self.needs_length = any(part.needs_length for part in parts)
        self.causal_only = any(part.causal_only for part in parts)
        self.looks_back = max(part.looks_back for part in parts)
        vars(self)["papers"] = tuple(dict.fromkeys(paper for part in parts for paper in part.papers))

    def __iter__(self) -> Iterator[Encoding]:
        return iter(self.parts)  # type: ignore[arg-type]

    @property
    def sees_order(self) -> bool:
        return any(part.sees_order for part in self)

    @property
    def bias_reads_keys(self) -> bool:
        return any(part.bias_reads_keys for part in self)

    @property
    def isometric(self) -> bool:
        return all(part.isometric for part in self)

    def sites(self) -> tuple[str, ...]:
        used = {site for part in self for site in part.sites()}
        return tuple(site for site in SITES if site in used)

    # each hook is what the effects of the parts are together

    def embed(self, x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        return self.effects(positions, layer).embedded(x)

    def restrict(self, positions: Positions, layer: int = 0) -> Positions:
        return self.effects(positions, layer).restricted()

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        return self.effects(positions, layer).rotated(q, k)

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        return self.effects(positions, layer).queries_rotated(q)

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        return self.effects(positions, layer).keys_rotated(k)

    def scores(self, q: Tensor, k: Tensor, scale: float, positions: Positions, layer: int = 0) -> Score | None:
        return next(iter(self.effects(positions, layer).products(q, k, scale)), None)

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Sequence[Score]:
        return self.effects(positions, layer).terms(q, k)

    def modify(self, positions: Positions, layer: int = 0) -> Sequence[Modifier]:
        return self.effects(positions, layer).modifiers()

    def rotate_values(self, v: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        return self.effects(positions, layer).values_rotated(v)

    def turn_back(self, out: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        return self.effects(positions, layer).rotated_back(out)

    def augment(self, positions: Positions, batch: int) -> Positions:
        for part in dict.fromkeys(self):
            positions = augmented_by(part, positions, batch)
        return positions

    def gates(self, x: Tensor, layer: int = 0) -> Sequence[Tensor]:
        return gates_of(self, x, layer)

    def branches(self, layer: int = 0) -> Sequence[Branch]:
        found = [leaf.encoding.branches(leaf.layer) or None for leaf in self.acting_in(layer).leaves]
        return only("position maps", found) or ()

    def sink(self, layer: int = 0) -> float | Tensor | None:
        return only("sinks", [leaf.encoding.sink(leaf.layer) for leaf in self.acting_in(layer).leaves])

    def prefix_kv(self, layer: int = 0) -> tuple[Tensor, Tensor] | None:
        pairs = [leaf.encoding.prefix_kv(leaf.layer) for leaf in self.acting_in(layer).leaves]
        return joined([pair for pair in pairs if pair is not None])

    def values(self, positions: Positions, layer: int = 0) -> Any:
        found = [p.encoding.values(p.positions, p.layer) for p in self.effects(positions, layer).parts]
        return only("encodings that act on the values", found)

    def query_sink(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor | None:
        found = [p.encoding.query_sink(q, p.positions, p.layer) for p in self.effects(positions, layer).parts]
        return only("sinks", found)

    def reset_parameters(self) -> None:
        for part in dict.fromkeys(self):
            part.reset_parameters()

    def _head_counts(self) -> tuple[set[int], set[int], set[int]]:
        counts = zip(*(part._head_counts() for part in self), strict=True)
        heads, sharing, together = ({n for part in of_parts for n in part} for of_parts in counts)
        return heads, sharing, together

    def _of_process(self, of: "HeadRange") -> Self:
        cut = {each: each._of_process(of) for each in self}
        copied = deepcopy(self)
        copied.parts = nn.ModuleList(cut[each] for each in self)
        return copied

    def spec(self) -> dict[str, Any]:
        """The parts' specs; "order" lists them by number, since one may occur several times."""
        different = list(dict.fromkeys(self))
        order = [different.index(part) for part in self]
        return {"name": self.known_as, "parts": [part.spec() for part in different], "order": order}

    def extra_repr(self) -> str:
        return ""


def _leaves(part: Encoding) -> list[Encoding]:
    """The encodings that a part is made of."""
    return [leaf for each in part for leaf in _leaves(each)] if isinstance(part, Composite) else [part]


def _in_order(parts: Iterable[Encoding]) -> list[Encoding]:
    """The parts of a sum in the order in which they rotate."""
    return sorted(parts, key=lambda part: part.rotates_last)


class Sum(Composite):
    """Several encodings at once, as in `Rotary(64) + ALiBi(8)`: sites are applied in order, biases added.

    commutes: what its parts do to queries and keys depends on distances alone, if it does in each part.
    """

    name = "sum"

    def __init__(self, *parts: Encoding) -> None:
        super().__init__(*(p for part in parts for p in (part if isinstance(part, Sum) else (part,))))
        rotating = [part.planes for part in self if part.planes != ()]
        self.commutes: bool = len(rotating) <= 1 or (None not in rotating and len(set(rotating)) == 1)
        leaves = [(number, leaf) for number, part in enumerate(_in_order(self)) for leaf in _leaves(part)]
        for number, leaf in leaves:
            if leaf.centres_keys:
                self._check_beside_centred(number, leaf, leaves)
            if "scores" in leaf.sites() and rotating:  # what it does to queries does not commute with a rotation
                self.commutes = False
            before = [other for at, other in leaves if at < number and other.planes != ()]
            if (leaf.shifts_queries and before) or (leaf.normalises and not all(other.isometric for other in before)):
                self.commutes = False
        self.shift_invariant = self.commutes and self.shift_invariant
        only("encodings that rotate values", [part if "rotate_values" in part.sites() else None for part in self])

    @staticmethod
    def _check_beside_centred(number: int, centred: Encoding, leaves: Sequence[tuple[int, Encoding]]) -> None:
        def mixes(x: Encoding) -> bool:
            return "scores" in x.sites() and not x.scores_by_channel

        others = [
            x for at, x in leaves
            if at != number and (x.planes != () or mixes(x) or (at > number and (x.shifts_queries or x.normalises)))
        ]  # fmt: skip
        if any(x.planes is None or x.planes != centred.planes or mixes(x) for x in others):
            names = ", ".join(dict.fromkeys(x.known_as for x in others))
            raise InputError(
                f"{centred.known_as} with {names}: it scales keys around the middle of a call's, which cancels beside rotations of "
                "the same channels alone, and of queries moved or normalised before; use one, or that other first"
            )

    @property
    def planes(self) -> Hashable:
        rotating = {part.planes for part in self if part.planes != ()}
        if len(rotating) > 1:
            return None
        return rotating.pop() if rotating else ()

    def acting_in(self, layer: int) -> Acting:
        nothing: Any = (), (), 0, True, False
        leaves, used, gates, constant, maps = nothing
        for each in self:
            part = each.acting_in(layer)
            leaves, used, gates = leaves + part.leaves, used + part.sites, gates + part.gates
            constant, maps = constant and part.constant, maps or part.maps
        return Acting(self, layer, leaves, tuple([site for site in SITES if site in used]), gates, constant, maps)

    def share(self, projections: Sequence[Projections]) -> None:
        for part in self:
            part.share(projections)

    def scale(self, head_dim: int) -> float:
        return agreed_scale(self, head_dim)


Encoding.sum_of = Sum


class PerLayer(Composite):
    """A different encoding per layer, cycling: `PerLayer(rope, rope, rope, NoPE())` has no position in every fourth
    layer. Each part counts only the layers that are its own.

    num_layers: of the model; a layer beyond them is refused. None: the parts take turns without end.
    """

    name = "per_layer"

    def __init__(self, *parts: Encoding, num_layers: int | None = None) -> None:
        super().__init__(*parts)
        # of each: how often it comes in a cycle before this place, and in all
        same = [[each is part for each in parts] for part in parts]
        self._counts = [(sum(row[:place]), sum(row)) for place, row in enumerate(same)]
        check_sizes(**not_none(num_layers=num_layers))
        self.layers: int | None = num_layers
        if sum("augment" in part.sites() for part in dict.fromkeys(self)) > 1:
            remedy = "let the layers share one object, or add it outside, as in SHAPE() + PerLayer(...)"
            raise InputError(f"several layers change positions, which are changed once for all layers: {remedy}")

    def spec(self) -> dict[str, Any]:
        return super().spec() | ({} if self.layers is None else {"num_layers": self.layers})

    def _chosen(self, layer: int) -> tuple[Encoding, int]:
        check_layer(self, layer, self.layers)
        cycles, place = layer // len(self._counts), layer % len(self._counts)  # a graph has no divmod of its sizes
        before, times = self._counts[place]
        return self.parts[place], cycles * times + before  # type: ignore[return-value]

    def acting_in(self, layer: int) -> Acting:
        part, number = self._chosen(layer)
        return part.acting_in(number)

    def share(self, projections: Sequence[Projections]) -> None:
        for part in dict.fromkeys(self):
            part.share([pair for layer, pair in enumerate(projections) if self._chosen(layer)[0] is part])

    def scale(self, head_dim: int) -> float:
        scales = {part.scale(head_dim) for part in self}
        if len(scales) > 1:
            raise InputError(f"PerLayer's parts have different scales {sorted(scales)}: pass scale= to attention")
        return scales.pop()
