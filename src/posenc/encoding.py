# SPDX-License-Identifier: Apache-2.0
"""The contract: the places where position may enter attention, and how encodings compose.

One identity holds every scheme: o_i = sum_j p_ij (v_j + w_ij), p_i = softmax(scale * <q_i, k_j> + b_ij).
An encoding overrides the sites it uses; the rest is the identity. Which sites it overrides is its taxonomy.
"""

import inspect
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from numbers import Integral, Real
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from posenc.bias import KeyValues, Score, Values, validated
from posenc.checks import shown
from posenc.errors import InputError
from posenc.functional import table_device
from posenc.positions import Positions
from posenc.positions.regions import Branch

if TYPE_CHECKING:
    from posenc.composites import Sum

T = TypeVar("T")

SITES = ("place", "embed", "rotate", "bias", "values", "scale", "sink")

Projections = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
"""A layer's query and key projections: (..., dim) -> (..., num_heads * head_dim) and (..., num_kv_heads * head_dim)."""


def require_fit(
    positions: object, *, x: Tensor | None = None, q: Tensor | None = None, k: Tensor | None = None
) -> None:
    """Refuse positions that are not those of x or q (batch, ..., num_queries, channels) and k (batch, ..., num_keys,
    channels): broadcasting would silently put every token at one position.

    Raises:
        InputError: no `Positions`, or of another number of tokens or rows.
    """
    if not isinstance(positions, Positions):
        raise InputError(f"positions={shown(positions)}: pass Positions, such as Positions.from_ids(position_ids)")
    batch = positions.batch
    for name, tensor, count in (
        ("x", x, positions.q.shape[1]),
        ("q", q, positions.q.shape[1]),
        ("k", k, positions.k.shape[1]),
    ):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor) or tensor.dim() < 2:
            raise InputError(f"{name}={shown(tensor)}: pass a tensor (batch, ..., seq, channels)")
        if tensor.shape[-2] != count:
            hint = (
                "; for some of the tokens, pass their positions: Positions.from_ids(ids)"
                if q is None or k is None
                else ""
            )
            what = "keys" if name == "k" else "queries"
            raise InputError(
                f"positions are for {count} {what}, {name} has {tensor.shape[-2]}: give one for each token{hint}"
            )
        if batch not in (1, tensor.shape[0]):
            raise InputError(
                f"positions have {batch} rows, {name} has a batch of {tensor.shape[0]}: give one row or as many"
            )


class Encoding(nn.Module):
    """What position does to attention. Shapes: x is (batch, seq, dim); q is (batch, heads, num_queries, head_dim),
    k is (batch, kv_heads, num_keys, head_dim), both as projected, before any rotation.

    Every constructor argument is kept under its own name, so that `spec()` can give them back. Constant tables go
    through `tables()`: they are never in the state_dict and survive `.to(dtype)` and meta-device initialisation.
    """

    name: ClassVar[str] = ""
    """What the registry and specs call it, where it has one; a class without a `name` goes by its class name."""
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
    constant: ClassVar[bool] = False
    """`bias` learns nothing and is the same in every layer: it is made once for all. A subclass does not inherit it."""
    centres_keys: ClassVar[bool] = False
    """`rotate` scales keys relative to the middle of a call's keys, so that only scores are defined, not rotated keys."""
    sequential: ClassVar[bool] = False
    """The code of a position takes computing those of all positions before it."""
    shifts_queries: ClassVar[bool] = False
    """`rotate` adds a vector to queries, which a rotation that came before it in a sum does not turn."""

    @property
    def known_as(self) -> str:
        """Its name, for people and for specs: the class's own, which a subclass does not inherit."""
        return vars(type(self)).get("name") or type(self).__name__

    @property
    def sees_order(self) -> bool:
        """Whether it can tell one order of the tokens from another in a model where every query sees every key."""
        return not set(self.sites()) <= {"place", "scale", "sink"}

    @property
    def bias_reads_keys(self) -> bool:
        """Whether `bias` may look at the keys, which it then needs unrotated. One that does not sets this to False."""
        return type(self).bias is not Encoding.bias

    @property
    def isometric(self) -> bool:
        """Whether `rotate` turns queries and keys without changing their norms, if it does anything."""
        return "rotate" not in self.sites()

    @property
    def planes(self) -> Hashable:
        """Which channels `rotate` turns together: rotations of equal planes commute, so that a sum of them depends on
        distances alone if each does. (): it treats every position alike, or only scales. None: not known."""
        return () if "rotate" not in self.sites() else None

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

    def token_rotation(self, positions: Positions, q: Tensor) -> Callable[[Tensor], Tensor] | None:
        """`rotate_queries` of a single query, (batch, heads, 1, head_dim), as a function that serves every layer of a decoding
        step: it may hold tables. None: there is none, and `rotate_queries` is called in each layer."""
        return None

    def branches(self, layer: int = 0) -> Sequence[Branch]:
        """The branches of a position map: `rotate` is asked for each with `positions.at(branch)`, and one softmax goes
        over all, each pair scored in the branch whose region it lies in. Empty: there is no map."""
        return ()

    def position_codes(self, positions: Positions, layer: int = 0) -> Tensor | None:
        """The vector of each query's position, (batch or 1, num_queries, channels), where the encoding has one that `embed`
        does not simply add: what analyses read."""
        return None

    def code_frequencies(self) -> Tensor | None:
        """By how many radians each pair of channels of `position_codes` rotates from a position to the next; None: not known."""
        return None

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
        """A dict of JSON's types from which `posenc.from_spec` builds the same encoding (parameters apart).

        Raises:
            InputError: an argument that was not stored under its own name, or whose value JSON does not have.
        """
        found: dict[str, Any] = {"name": self.known_as}
        for name in self.arguments():
            if not hasattr(self, name):
                raise InputError(f"{type(self).__name__} has no attribute {name!r}, its argument: set self.{name}")
            found[name] = _as_json(getattr(self, name), f"{type(self).__name__}.{name}")
        return found

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

    def remember(self, positions: Positions, key: Hashable, make: Callable[[], T]) -> T:
        """`positions.shared` for a value that follows from this encoding's tables and attributes as well: where one has
        been set or written to since, the value is made anew. What a gradient reaches, as in a class of one's own that
        learns its angles, is made in every call."""
        if torch.compiler.is_compiling():
            return make()
        tables = list(self._buffers.values())
        facts = [*tables, *vars(self).values()]
        versions = [0 if table is None or table.is_inference() else table._version for table in tables]
        kept: list[Any] = positions.shared((self, key), lambda: [facts, versions, _unless_learned(make)])
        before, at, found = kept
        if at != versions or len(before) != len(facts) or not all(map(is_, before, facts)):
            with torch.inference_mode(False):
                found = _unless_learned(make)
            kept[:] = facts, versions, found
        return make() if found is _LEARNED else found

    def _apply(self, fn: Any, recurse: bool = True) -> "Encoding":
        # .to(bfloat16) would round the tables and .to_empty() would leave them undefined: only their device follows.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, table in self.tables().items():
            buffer = self._buffers.get(name)
            if buffer is None:
                raise InputError(
                    f"{type(self).__name__}.tables() has {name!r}, which is not registered: call self.register_tables() at "
                    "the end of __init__"
                )
            self._buffers[name] = table.to(table_device(buffer.device))
        return self


_LEARNED = object()


def _unless_learned(make: Callable[[], Any]) -> Any:
    """What `make` gives, or _LEARNED where a gradient reaches it."""
    with torch.enable_grad():
        found = make()
    return _LEARNED if _is_learned(found) else found


def _is_learned(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.requires_grad
    return isinstance(value, (tuple, list)) and any(map(_is_learned, value))


def _as_json(value: Any, origin: str) -> Any:
    """A constructor's argument in JSON's types."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Encoding) or hasattr(value, "spec"):
        return value.spec()
    if isinstance(value, Mapping):
        return {str(key): _as_json(item, f"{origin}[{key!r}]") for key, item in value.items()}
    if isinstance(value, Tensor) or hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_as_json(item, f"{origin}[{i}]") for i, item in enumerate(value)]
    raise InputError(
        f"{origin}={shown(value)}: spec() takes numbers, texts, lists, dicts and encodings; override spec()"
    )


# ---------------------------------------------------------------- hooks as the library calls them, and what they return


def _returned(encoding: Encoding, hook: str, value: object, remedy: str) -> InputError:
    return InputError(f"{type(encoding).__name__}.{hook} returned {shown(value)}: {remedy}")


def placed_by(encoding: Encoding, positions: Positions, batch: int) -> Positions:
    """`Encoding.place`, validated."""
    found = encoding.place(positions, batch)
    if found is positions:
        return found
    if not isinstance(found, Positions):
        raise _returned(encoding, "place", found, "return Positions, such as positions.moved(...)")
    if (found.num_queries, found.num_keys) != (positions.num_queries, positions.num_keys) or found.batch not in (
        1,
        batch,
    ):
        raise _returned(encoding, "place", found, f"return {positions} at other places, with 1 or {batch} rows")
    return found


def embedded_by(encoding: Encoding, x: Tensor, positions: Positions, layer: int) -> Tensor:
    """`Encoding.embed`, validated."""
    found = encoding.embed(x, positions, layer)
    if found is not x and not (isinstance(found, Tensor) and found.shape == x.shape and found.is_floating_point()):
        raise _returned(encoding, "embed", found, f"return a tensor of x's shape {tuple(x.shape)}")
    return found


def rotated_by(encoding: Encoding, q: Tensor, k: Tensor, positions: Positions, layer: int) -> tuple[Tensor, Tensor]:
    """`Encoding.rotate`, validated."""
    found = encoding.rotate(q, k, positions, layer)
    if not (isinstance(found, (tuple, list)) and len(found) == 2):
        raise _returned(encoding, "rotate", found, "return the pair (q, k)")
    queries, keys = found
    for name, before, after in (("q", q, queries), ("k", k, keys)):
        if after is not before:
            _check_rotated(encoding, "rotate", name, before, after)
    if queries.shape[3] != keys.shape[3]:
        widths = f"q {queries.shape[3]} wide and k {keys.shape[3]} wide"
        raise InputError(f"{type(encoding).__name__}.rotate returned {widths}: widen both alike")
    return queries, keys


def queries_rotated_by(encoding: Encoding, q: Tensor, positions: Positions, layer: int) -> Tensor:
    """`Encoding.rotate_queries`, validated."""
    found = encoding.rotate_queries(q, positions, layer)
    if found is not q:
        _check_rotated(encoding, "rotate_queries", "q", q, found)
    return found


def keys_rotated_by(encoding: Encoding, k: Tensor, positions: Positions, layer: int) -> Tensor:
    """`Encoding.rotate_keys`, validated."""
    found = encoding.rotate_keys(k, positions, layer)
    if found is not k:
        _check_rotated(encoding, "rotate_keys", "k", k, found)
    return found


def _check_rotated(encoding: Encoding, hook: str, name: str, before: Tensor, after: object) -> None:
    if not isinstance(after, Tensor) or after.shape[:3] != before.shape[:3] or after.dim() != 4:
        raise _returned(
            encoding, hook, after, f"return {name} {tuple(before.shape)}, of which only the width may change"
        )
    if after.dtype != before.dtype or after.device != before.device:
        given = f"return {name} in {before.dtype} on {before.device}, as it was given"
        raise _returned(encoding, hook, after, given)


def bias_of(encoding: Encoding, q: Tensor, k: Tensor, positions: Positions, layer: int) -> list[Score]:
    """`Encoding.bias`, validated: its terms."""
    return validated(encoding.bias(q, k, positions, layer), q, k, origin=f"{type(encoding).__name__}.bias")


def values_of(encoding: Encoding, positions: Positions, layer: int) -> Values | KeyValues | None:
    """`Encoding.values`, validated; widths and heads are checked against v by `attention`."""
    found = encoding.values(positions, layer)
    if found is not None and not isinstance(found, (Values, KeyValues)):
        raise _returned(encoding, "values", found, "return posenc.bias.Values(table, index), KeyValues(added) or None")
    return found


def scale_in(encoding: Encoding, layer: int, head_dim: int) -> float:
    """`Encoding.scale_of`, validated."""
    found: Any = encoding.scale_of(layer, head_dim)
    if torch.compiler.is_compiling():
        return found  # a symbol, where the width is one
    if type(found) is not float and (isinstance(found, bool) or not isinstance(found, Real)):
        remedy = "return a number; a learned temperature multiplies the queries, in rotate"
        raise _returned(encoding, "scale", found, remedy)
    found = float(found)
    if not math.isfinite(found):
        raise _returned(encoding, "scale", found, "return a finite number")
    return found


def branches_of(encoding: Encoding, layer: int) -> Sequence[Branch]:
    """`Encoding.branches`, validated."""
    found = encoding.branches(layer)
    if not found:
        return ()
    if not isinstance(found, Sequence) or not all(isinstance(branch, Branch) for branch in found):
        raise _returned(encoding, "branches", found, "return a sequence of Branch")
    return found
