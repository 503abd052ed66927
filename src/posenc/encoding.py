# SPDX-License-Identifier: Apache-2.0
"""The contract: the places where position may enter attention, and how encodings compose.

One identity holds every scheme: o_i = sum_j p_ij (v_j + w_ij), p_i = softmax(scale * <q_i, k_j> + b_ij).
An encoding overrides the sites it uses; the rest is the identity. Which sites it overrides is its taxonomy.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from posenc.bias import KeyValues, Score, Values
from posenc.checks import checked, shown
from posenc.errors import InputError
from posenc.functional import table_device
from posenc.positions import Positions
from posenc.positions.regions import Branch

if TYPE_CHECKING:
    from posenc.composites import Sum

SITES = ("place", "embed", "rotate", "bias", "values", "scale", "sink")

Projections = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
"""A layer's query and key projections: (..., dim) -> (..., num_heads * head_dim) and (..., num_kv_heads * head_dim)."""

PLACED = {"embed": ("x",), "rotate": ("q", "k"), "rotate_queries": ("q",), "rotate_keys": ("k",)}
"""Sites that are given tensors and the positions of their tokens, and how the tensors are called."""


def _fitting(method: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """The method, after `require_fit`: broadcasting would else give every token the place of one."""

    @wraps(method)
    def fitting(self: "Encoding", *given: Any, **named: Any) -> Any:
        tensors = dict(zip(names, given, strict=False)) | {name: named[name] for name in names if name in named}
        if len(tensors) == len(names) and (len(given) > len(names) or "positions" in named):
            require_fit(given[len(names)] if len(given) > len(names) else named["positions"], **tensors)
        return method(self, *given, **named)

    return fitting


def require_fit(positions: object, **tensors: Tensor) -> None:
    """Refuse positions that are not those of x or q (..., num_queries, channels) and k (..., num_keys, channels).

    Raises:
        InputError: no `Positions`, or of another number of tokens or rows.
    """
    if not isinstance(positions, Positions):
        raise InputError(f"positions={shown(positions)}: pass Positions, such as Positions.from_ids(position_ids)")
    for name, x in tensors.items():
        count, what = (positions.num_keys, "keys") if name == "k" else (positions.num_queries, "queries")
        if x.shape[-2] != count:
            hint = "" if len(tensors) > 1 else "; for some tokens alone, pass where they are: Positions.from_ids(ids)"
            raise InputError(
                f"positions are for {count} {what}, {name} has {x.shape[-2]}: give one for each token{hint}"
            )
        if positions.batch not in (1, x.shape[0]):
            raise InputError(
                f"positions have {positions.batch} rows, {name} has a batch of {x.shape[0]}: give one row or as many"
            )


class Encoding(nn.Module):
    """What position does to attention. Shapes: x is (batch, seq, dim); q is (batch, heads, num_queries, head_dim),
    k is (batch, kv_heads, num_keys, head_dim), both as projected, before any rotation.

    Every constructor argument is kept under its own name, so that `spec()` can give them back. Constant tables go
    through `tables()`: they are never in the state_dict and survive `.to(dtype)` and meta-device initialisation.
    """

    name: ClassVar[str] = ""
    """What the registry and specs call it; a class of the user's own goes by its class name."""
    papers: ClassVar[tuple[str, ...]] = ()
    """Keys into papers.bib, for `cite`."""
    formula: ClassVar[tuple[str, ...]] = ()
    """What it computes, in LaTeX, a formula each."""
    shift_invariant: ClassVar[bool] = False
    """Attention is unchanged when every position moves by the same amount."""
    needs_length: ClassVar[bool] = False
    """A code depends on the sequence's length, so cached decoding cannot reproduce the full pass."""
    extrapolates: ClassVar[str] = ""
    """What the source claims happens past the training length."""
    equal_to: ClassVar[str] = "the formula"
    """What the tests hold it against, besides the formula."""
    causal_only: ClassVar[bool] = False
    """Undefined when a query sees keys after itself."""
    max_positions: int | None = None
    """Positions the encoding is defined for; None: any."""
    num_layers: int = 1
    """Layers with parameters of their own; 1: all share the same."""
    rotates_last: ClassVar[bool] = False
    """In a sum, `rotate` comes after that of the others."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):  # every constructor refuses what its signature does not declare
            setattr(cls, "__init__", checked(cls.__init__))  # noqa: B010 - an assignment would declare the attribute
        for site, tensors in PLACED.items():  # and what is computed from positions, ones that are not the tensors'
            if site in vars(cls):
                setattr(cls, site, _fitting(vars(cls)[site], tensors))

    @property
    def known_as(self) -> str:
        """Its name, for people and for specs."""
        return self.name or type(self).__name__

    @property
    def sees_order(self) -> bool:
        """Whether it can tell one order of the tokens from another in a model where every query sees every key."""
        return not set(self.sites()) <= {"place", "scale", "sink"}

    @property
    def bias_reads_keys(self) -> bool:
        """Whether `bias` may look at the keys, which it then needs unrotated. One that does not sets this to False."""
        return "bias" in self.sites()

    @property
    def isometric(self) -> bool:
        """Whether `rotate` turns queries and keys without changing their norms, if it does anything."""
        return "rotate" not in self.sites()

    def place(self, positions: Positions, batch: int) -> Positions:
        """Where the tokens of a forward pass count as being, for every layer: applied once by the model, before
        `embed`. The identity but for schemes that move positions in training. batch: rows of the model's input."""
        return positions

    def embed(self, x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        """The input of `layer`: (batch, seq, dim) -> (batch, seq, dim)."""
        return x

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        """Queries and keys before their product; may change their width, equally for both."""
        return q, k

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        """`rotate` of the queries alone, for keys that a cache keeps rotated. An encoding that turns every key by itself
        overrides this and `rotate_keys`; others raise InputError."""
        self._refuse_halves()
        return q

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        """`rotate` of the keys alone, (batch, kv_heads, num_keys, head_dim): what a cache of rotated keys keeps."""
        self._refuse_halves()
        return k

    def branches(self, layer: int = 0) -> Sequence[Branch]:
        """The branches of a position map: `rotate` is asked for each with `positions.at(branch)`, and one softmax goes
        over all, each pair scored in the branch whose region it lies in. Empty: there is no map."""
        return ()

    def key_angles(self, positions: Positions, layer: int = 0) -> Tensor:
        """By how much each pair of each key is turned, float64: (batch or 1, kv_heads or 1, num_keys, pairs).

        Raises:
            InputError: keys that are not turned, or by more than their position.
        """
        raise InputError(f"{type(self).__name__} does not turn keys by an angle: there is nothing to move")

    def _refuse_halves(self) -> None:
        if "rotate" in self.sites():
            raise InputError(
                f"{type(self).__name__} does not say how to rotate queries and keys apart (rotate_queries, rotate_keys): "
                "keep its keys unrotated, and rotate them in each call"
            )

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Score | Sequence[Score] | None:
        """b_ij, added to the scaled scores: a structure, or several to be summed."""
        return None

    def values(self, positions: Positions, layer: int = 0) -> Values | KeyValues | None:
        """w_ij, added to the values."""
        return None

    def scale(self, head_dim: int) -> float:
        """The factor of q . k; head_dim is the width before `rotate`."""
        return float(head_dim**-0.5)

    def sink(self, layer: int = 0) -> float | Tensor | None:
        """Logit of an extra key whose value is zero, a number or (num_heads,); None: there is none."""
        return None

    def share(self, projections: Sequence[Projections]) -> None:
        """Take the model's query and key projections, one pair per layer, for schemes that put their own vectors
        through them. The model calls this in every forward pass, so an encoding may serve several models. Modules are
        kept as references and stay the model's."""

    def own_layer(self, layer: int) -> int:
        """Which of the encoding's per-layer parameters serves a layer: its own, or the only one there is.

        Raises:
            InputError: a layer beyond num_layers.
        """
        if self.num_layers == 1:
            return 0
        if not 0 <= layer < self.num_layers:
            raise InputError(f"layer {layer}: this {type(self).__name__} was made with num_layers={self.num_layers}")
        return layer

    def at(self, layer: int) -> tuple["Encoding", int]:
        """The encoding that acts in a layer, and which of its own layers that is."""
        return self, layer

    def scale_of(self, layer: int, head_dim: int) -> float:
        """`scale` in a layer."""
        return self.scale(head_dim)

    # ---------------------------------------------------------------- what every encoding can do

    @classmethod
    def sites(cls) -> tuple[str, ...]:
        """The sites this class overrides: where its position enters."""
        return tuple(site for site in SITES if getattr(cls, site) is not getattr(Encoding, site))

    @classmethod
    def arguments(cls) -> dict[str, inspect.Parameter]:
        """The constructor's named arguments."""
        found = inspect.signature(cls.__init__).parameters
        return {n: p for n, p in found.items() if n != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}

    def spec(self) -> dict[str, Any]:
        """A small serialisable dict from which `posenc.from_spec` builds the same encoding (parameters apart)."""
        lost = [name for name in self.arguments() if not hasattr(self, name)]
        if lost:
            raise InputError(f"{type(self).__name__} did not keep its argument {lost[0]!r}: set self.{lost[0]}")
        return {"name": self.known_as} | {name: getattr(self, name) for name in self.arguments()}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.arguments() if hasattr(self, name))

    def __add__(self, other: "Encoding") -> "Sum":
        from posenc.composites import Sum  # an encoding itself

        return Sum(self, other)

    # ---------------------------------------------------------------- constant tables

    def tables(self) -> dict[str, Tensor]:
        """Constant tables by name, computed from the constructor's arguments in float64."""
        return {}

    def register_tables(self) -> None:
        """Call at the end of a constructor that defines `tables()`."""
        for name, table in self.tables().items():
            self.register_buffer(name, table.to(table_device(torch.get_default_device())), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> "Encoding":
        # .to(bfloat16) would round the tables and .to_empty() would leave them undefined: only their device follows.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, table in self.tables().items():
            buffer = self._buffers[name]
            assert buffer is not None
            self._buffers[name] = table.to(table_device(buffer.device))
        return self


def as_terms(bias: Score | Sequence[Score] | None) -> list[Score]:
    """What `bias` returned, as a list."""
    if bias is None:
        return []
    return [bias] if isinstance(bias, Score) else list(bias)
