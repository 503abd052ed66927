# SPDX-License-Identifier: Apache-2.0
"""The contract: the sites where position may enter attention, and how encodings compose.

One identity covers every scheme: o_i = sum_j p_ij T_i^-1 T_j (v_j + w_ij), p_i = softmax(m(scale * <q_i, k_j> + b_ij)).
An encoding overrides the sites it uses; the rest is the identity. Which sites it overrides is its taxonomy.
"""

import inspect
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial, reduce
from itertools import islice
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from posenc.bias import KeyValues, Modifier, Score, Values, Weights, validated, validated_values
from posenc.errors import (
    InputError,
    check_arguments,
    check_devices,
    check_integers,
    check_sizes,
    is_distributed,
    meaning,
    refuse_distributed,
    shown,
)
from posenc.functional import RunRotation, exactly, intercepted, table_device, transformed, unturned
from posenc.positions import Positions
from posenc.positions.visibility import Branch, Hidden, left_out

__all__ = ["Encoding", "PerLayer", "Sum", "gates_of"]

T = TypeVar("T")
EncodingType = TypeVar("EncodingType", bound="Encoding")

SITES = (
    "augment", "embed", "restrict", "gates", "rotate", "scores", "bias", "values", "rotate_values", "scale", "modify", "sink",
    "prefix_kv",
)  # fmt: skip

HOOKS = {
    **{site: site for site in SITES}, "rotate_queries": "rotate", "rotate_keys": "rotate", "query_sink": "sink",
    "turn_back": "rotate_values",
}  # fmt: skip
"""Hook -> the site where it acts."""

SIZES = frozenset((
    "axes", "columns", "dim", "head_dim", "height", "hidden", "max_length", "max_positions", "max_relative_positions",
    "num_counts", "num_heads", "num_kv_heads", "num_layers", "rows", "substeps", "train_length", "width",
))  # fmt: skip
"""Fields of a dataclass that must be at least 1, whichever encoding has them."""

_ACT_AT_ONCE = "_parameters", "_buffers", "_modules"
"""Where a module has what may be set again."""

Rotation = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
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
        raise InputError(
            "pass Positions, such as Positions.from_ids(position_ids), with packed=True if they restart",
            positions=positions,
        )
    batch = positions.batch
    for name, tensor, count in (
        ("x", x, positions.q.shape[1]),
        ("q", q, positions.q.shape[1]),
        ("k", k, positions.k.shape[1]),
    ):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor) or tensor.dim() < 2:
            raise InputError("pass a tensor (batch, ..., seq, channels)", argument=name, value=tensor)
        if type(tensor) is not Tensor:
            refuse_distributed(**{name: tensor})
        if tensor.shape[-2] != count:
            if tensor.dim() == 4 and tensor.shape[1] == count:
                raise swapped(name, tensor, f"positions are for {count} {'keys' if name == 'k' else 'queries'}")
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


def swapped(name: str, x: Tensor, why: str) -> InputError:
    """The error for (batch, seq, heads, head_dim) in the place of (batch, heads, seq, head_dim)."""
    return InputError(
        f"{name} of shape {tuple(x.shape)}, and {why}: pass (batch, heads, seq, head_dim), as {name}.transpose(1, 2)"
    )


class _Hooked(type):
    """The class of encoding classes: they know which hooks they override, also when one is set or deleted later. What they
    make has fixed options."""

    if not TYPE_CHECKING:  # to whom, and to people, the signature is that of __init__

        def __call__(cls, *args, **kwargs):
            made = super().__call__(*args, **kwargs)
            vars(made)["_fixed"] = frozenset(cls.arguments())
            return made

        @property
        def __signature__(cls):
            parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
            return inspect.Signature(parameters)

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in HOOKS:
            _store_sites(cls)

    def __delattr__(cls, name: str) -> None:
        super().__delattr__(name)
        if name in HOOKS:
            _store_sites(cls)


def _store_sites(cls: Any) -> None:
    """Store which sites a class and those below it override: not at the first call, which torch.compile would trace, to
    compile the second anew."""
    cls._known_sites = cls._find_sites()
    for each in cls.__subclasses__():
        _store_sites(each)


class _Sites:
    """`sites()`: of a class the hooks that it overrides, of a composite the sites of its parts as well."""

    def __get__(self, encoding: "Encoding | None", cls: type["Encoding"]) -> Callable[[], tuple[str, ...]]:
        return cls._overridden if encoding is None else encoding._sites


class Encoding(nn.Module, metaclass=_Hooked):
    """What position does to attention. A subclass declares its arguments as the fields of a dataclass and makes parameters
    and modules in `setup`; an ordinary `__init__` works as well, if it stores every argument under its own name and
    calls `register_tables()` last.

    The hooks, in the order in which they act. Shapes: x is (batch, seq, dim); q is (batch, heads, num_queries, head_dim),
    k is (batch, kv_heads, num_keys, head_dim), both as projected, before any rotation.

        augment   positions, once per forward pass: training-time changes
        embed     the input of a layer
        restrict  which keys a layer's queries see
        share     the model's query and key projections
        gates     of a layer's input, numbers for each token, which the hooks below read from positions
        rotate    queries and keys; or apart, rotate_queries and rotate_keys, for a cache of rotated keys
        branches  the regions of a position map, each with a separate rotation
        scale     the factor of q . k
        scores    in place of q . k
        bias      added to the scaled scores
        modify    a function of each score, after that, or of rows of them in place of the softmax
        sink      an extra logit in the softmax; query_sink: one that depends on the query
        prefix_kv learned keys and values that every query sees
        values    added to the values
        rotate_values  values before their sum, with turn_back, which undoes it on the output at each query

    Traits are attributes that a class sets; where arguments decide one, `setup` sets it on the instance.
    """

    _known_sites: ClassVar[tuple[str, ...]] = ()
    name: ClassVar[str] = ""
    """Its name in the registry and in specs; a class without a `name` goes by its class name."""
    title: ClassVar[str] = ""
    """What people call it. A subclass does not inherit it."""
    family: ClassVar[str] = ""
    """The key of `posenc.encodings.catalogue.FAMILIES` where people look for it, if that does not follow from its hooks."""
    papers: ClassVar[tuple[str, ...]] = ()
    """Keys into papers.bib and `bibtex`, for `cite`."""
    bibtex: ClassVar[str] = ""
    """BibTeX of papers that papers.bib does not have. A subclass does not inherit it."""
    formula: ClassVar[tuple[str, ...]] = ()
    """What it computes, in LaTeX, a formula each."""
    extrapolates: ClassVar[str] = ""
    """What the source claims happens past the training length."""
    use_when: ClassVar[str] = ""
    """When to use it, and what to use otherwise: a sentence, with names of encodings between backticks."""
    equal_to: ClassVar[str] = "the formula"
    """What the tests compare it with, besides the formula."""
    constant: ClassVar[bool] = False
    """`bias` depends on positions and parameters alone, not on queries and keys. A subclass does not inherit it."""
    rotates_last: ClassVar[bool] = False
    """In a sum, `rotate` comes after that of the others."""
    sequential: ClassVar[bool] = False
    """The code of a position takes computing those of all positions before it."""
    shifts_queries: ClassVar[bool] = False
    """`rotate` adds a vector to queries, which a rotation that came before it in a sum does not turn."""
    normalises: bool = False
    """`rotate` divides queries and keys by their norms, which a rotation before it in a sum must leave as they are."""
    centres_keys: bool = False
    """`rotate` scales keys relative to the middle of a call's keys, so that only scores are defined, not rotated keys."""
    scores_by_channel: bool = False
    """`scores` weighs the products of each channel, so that a factor of a query's channel and its inverse of a key's cancel."""
    shift_invariant: bool = False
    """Attention is unchanged when every position moves by the same amount."""
    needs_length: bool = False
    """A code depends on the sequence's length, so cached decoding cannot reproduce the full pass."""
    looks_back: int = 0
    """Tokens before a token that its gates are convolved with, in a window or not."""
    causal_only: bool = False
    """Undefined when a query sees keys after itself."""
    max_positions: int | None = None
    """Positions the encoding is defined for; None: any."""
    num_layers: int = 1
    """Layers with separate parameters; 1: all share the same."""
    mixes_heads: ClassVar[bool] = False
    """What happens in one head depends on others, so that no process can have but some of them."""
    heads_together: ClassVar[int] = 1
    """Consecutive query heads that belong together, whatever the model."""
    _part: "HeadRange | None" = None
    _fixed: frozenset[str] = frozenset()
    """The names of the arguments, once it is made."""

    @property
    def known_as(self) -> str:
        """Its name, for people and for specs: the class's own, which a subclass does not inherit."""
        return type(self).name or _written(type(self)).__name__

    @property
    def sees_order(self) -> bool:
        """Whether it can tell one order of the tokens from another in a model where every query sees every key."""
        return not set(self.sites()) <= {"augment", "scale", "sink", "prefix_kv"}

    @property
    def bias_reads_keys(self) -> bool:
        """Whether `bias` may look at the keys, which it then needs unrotated. One that does not sets this to False."""
        return type(self).bias is not Encoding.bias

    @property
    def isometric(self) -> bool:
        """Whether `rotate` turns queries and keys without changing their norms, if it does anything."""
        return "rotate" not in self.sites()

    @property
    def is_replayed(self) -> bool:
        """Whether what it does in attention is of the same kind in every layer, so that a plan serves them all."""
        return set(self.sites()) <= {"augment", "embed", "restrict", "rotate", "bias", "values", "scale"}

    @property
    def adds_constants(self) -> bool:
        """Whether its bias is the same in every layer of a pass; or there is none."""
        return "bias" not in self.sites() or (self.constant and self.num_layers == 1)

    @property
    def planes(self) -> Hashable:
        """Which channels `rotate` turns together: rotations of equal planes commute, so that a sum of them depends on
        distances alone if each does. (): it treats every position alike, or only scales. None: not known."""
        return () if "rotate" not in self.sites() else None

    @property
    def zero_is_identity(self) -> bool:
        """Whether `rotate` leaves a key at position 0 unchanged."""
        return False

    # ---------------------------------------------------------------- construction

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _store_sites(cls)
        if not _is_torchs(cls):
            for trait, default in {"name": "", "title": "", "bibtex": "", "constant": False}.items():
                setattr(cls, trait, vars(cls).get(trait, default))  # which are not inherited

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        cls._check_keywords(kwargs)
        self = super().__new__(cls)
        nn.Module.__init__(self)  # before a dataclass sets its fields
        return self

    @classmethod
    def _check_keywords(cls, given: Mapping[str, Any]) -> None:
        """Raises:
        TypeError: another library's name of an argument, where Python's own message would not say what it is here."""
        if not given or any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls.__init__).parameters.values()):
            return
        known = cls.arguments()
        for name in given.keys() - known.keys():
            if meant := meaning(name, known):
                raise TypeError(
                    f"{cls.__name__}.__init__() got an unexpected keyword argument {name!r}: did you mean {meant!r}?"
                )

    def __init__(self) -> None:
        """`__new__` has initialised the module."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises:
        InputError: an option of an encoding that is made: its tables would follow at the next cast only."""
        if name in self._fixed and not any(name in vars(self)[those] for those in _ACT_AT_ONCE):
            raise InputError(
                f"options of an encoding are fixed when it is made: make another {type(self).__name__} with it",
                argument=name,
                value=value,
            )
        super().__setattr__(name, value)

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.arguments() if hasattr(self, name)}
        check_arguments(type(self).__init__, values)
        check_sizes(**{name: value for name, value in values.items() if name in SIZES})
        for name, value in values.items():
            if isinstance(value, (dict, list)):  # of which the caller may change entries later
                setattr(self, name, _copied(value))
        self.setup()
        self.register_tables()

    def setup(self) -> None:
        """Check the fields of a dataclass, and make parameters and modules. Types have been checked, numbers to be finite,
        and SIZES to be positive."""

    def tables(self) -> dict[str, Tensor]:
        """Constant tables by name, computed from the arguments in float64. They are never in the state_dict, and survive
        `.to(dtype)` and meta-device initialisation."""
        return {}

    def register_tables(self) -> None:
        """Make buffers of `tables()`; a dataclass need not call it."""
        with torch.inference_mode(False):  # tensors of inference mode do not say when they are written to
            for name, table in self._tables().items():
                self.register_buffer(name, table.to(table_device(torch.get_default_device())), persistent=False)

    def _tables(self) -> dict[str, Tensor]:
        """`tables`, of some heads those of all, cut."""
        if self._part is None:
            return self.tables()
        with torch.device("meta"):
            full = _written(type(self))(**self._part.arguments)
        return {name: self._part.cut(table, self.tables()[name].shape) for name, table in full.tables().items()}

    def reset_parameters(self) -> None:
        """Draw the parameters, and buffers that are no tables, anew, as a new encoding of the same arguments has them; what
        FSDP's recipes call after `to_empty`.

        Raises:
            InputError: an argument that was not stored under its own name.
        """
        buffers = {name: x for name, x in self.named_buffers() if name not in self.tables()}
        mine = dict(self.named_parameters()) | buffers
        if not mine:
            return
        with torch.device("cpu"):
            fresh = _written(type(self))(**(self._given() if self._part is None else self._part.arguments))
        drawn = dict(fresh.named_parameters()) | dict(fresh.named_buffers())
        with torch.no_grad():
            for name, x in mine.items():
                value = drawn[name].detach()
                value = value if self._part is None else self._part.cut(value, x.shape)
                x.copy_(_placed_as(x, value))

    def _given(self) -> dict[str, Any]:
        """The constructor's arguments.

        Raises:
            InputError: one that was not stored under its own name.
        """
        for name in self.arguments():
            if not hasattr(self, name):
                raise InputError(f"{type(self).__name__} has no attribute {name!r}, its argument: set self.{name}")
        return {name: getattr(self, name) for name in self.arguments()}

    def heads(self, part: slice, *, num_heads: int | None = None, num_kv_heads: int | None = None) -> Self:
        """The encoding of some query heads and of the key heads that they share, with copies of what belongs to them: what a
        process of tensor parallelism has. `ALiBi(8).heads(slice(4, 8))` has the slopes of heads 4 to 7 of 8.

        part: of the query heads, such as slice(4, 8); it begins and ends where a key head does. num_heads: the model's query
        heads, for an encoding that treats all alike, and so does not know how many there are. num_kv_heads: the model's key
        heads; None: as many as the encoding was made for, else as many as query heads. `attention` refuses queries and keys of
        other numbers of heads than the part has. Parameters that all heads share stay as they are: the gradient that a process
        gets of those that act in attention is its heads' part, so sum it over the processes.

        Raises:
            InputError: no range of heads, one that cuts heads which share a key head, or an encoding that mixes heads.
        """
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise InputError("pass a range of query heads, such as slice(4, 8)", heads=part)
        for bound in (part.start, part.stop):
            check_integers(heads=bound)
        check_sizes(num_heads=num_heads, num_kv_heads=num_kv_heads)
        return self._of_process(_range_of(self, part, num_heads, num_kv_heads))

    def _head_counts(self) -> tuple[set[int], set[int], set[int]]:
        """The numbers of query heads, and of query heads that share a key head, that it was made for; and of those that belong
        together whatever the model."""
        part, heads = self._part, _count(self, "num_heads")
        if part is not None:
            return {part.end - part.first}, {part.sharing}, {self.heads_together}
        if heads is None:
            return set(), set(), {self.heads_together}
        of_keys = heads if "num_kv_heads" in self.arguments() else None
        of_keys = _count(self, "num_kv_heads") or of_keys
        return {heads}, set() if of_keys is None else {heads // of_keys}, {self.heads_together}

    def _of_process(self, of: "HeadRange") -> Self:
        """`heads`, of a range that has been checked."""
        if self.mixes_heads:
            raise InputError(
                f"{self.known_as} mixes the scores of all heads, so that no process can compute but some: leave it out"
            )
        made = deepcopy(self) if _count(self, "num_heads") is None else self._cut(of)
        before = self._part or HeadRange(self._given(), 0, of.end, of.heads, of.sharing)
        vars(made)["_part"] = before._replace(
            first=before.first + of.first, end=before.first + of.end, sharing=of.sharing
        )
        return made

    def _cut(self, of: "HeadRange") -> Self:
        """What belongs to a range of heads, copied."""
        with torch.device("meta"):
            made = _written(type(self))(**self._given() | self._of_heads(of.first, of.end))
        for name, x in (*self.named_parameters(), *self.named_buffers()):
            owner, _, leaf = name.rpartition(".")
            module = made.get_submodule(owner)
            like = getattr(module, leaf)
            value = of.cut(x.detach(), like.shape).clone()
            if isinstance(x, nn.Parameter):
                module._parameters[leaf] = nn.Parameter(value, x.requires_grad)
            else:
                module._buffers[leaf] = value
        return made.train(self.training)

    def _check_part(self, q: Tensor, k: Tensor) -> None:
        """Refuse queries and keys (batch, heads, n, head_dim) that are not of this part's heads."""
        if self._part is not None:
            self._part.check(self.known_as, q.shape[1], k.shape[1])

    def _of_heads(self, first: int, end: int) -> dict[str, Any]:
        """The arguments in which an encoding of heads first .. end - 1 differs."""
        of_keys: int | None = getattr(self, "num_kv_heads", None)
        changed = {"num_heads": end - first}
        if of_keys is not None:
            heads: int = getattr(self, "num_heads")  # noqa: B009
            changed["num_kv_heads"] = of_keys * (end - first) // heads
        return {name: value for name, value in changed.items() if name in self.arguments()}

    # ---------------------------------------------------------------- hooks

    def augment(self, positions: Positions, batch: int) -> Positions:
        """The positions of a forward pass as every layer sees them: applied once by the model, before `embed`. The
        identity but for schemes that change positions in training. batch: rows of the model's input."""
        return positions

    def embed(self, x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        """The input of `layer`: (batch, seq, dim) -> (batch, seq, dim)."""
        return x

    def restrict(self, positions: Positions, layer: int = 0) -> Positions:
        """The positions as the attention of `layer` takes them, with fewer visible keys, such as
        `positions.with_window(63)`. The other hooks of the layer that act in attention are given the result."""
        return positions

    def share(self, projections: Sequence[Projections]) -> None:
        """Take the model's query and key projections, one pair per layer, for schemes that put their own vectors
        through them. The model calls this in every forward pass, so an encoding may serve several models. Modules are
        references and stay the model's."""

    def gates(self, x: Tensor, layer: int = 0) -> Tensor | Sequence[Tensor] | None:
        """Numbers for each token, (batch, heads, seq, width), from the input of the layer's projections, x (batch, seq, dim):
        each token's from its part of x alone. The model caches them as it does keys, and `attention` gives those of all keys
        to the hooks that act there, as `positions.gate(name)`; `positions.of_queries` are those of the queries."""
        return None

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        """Queries and keys before their product; may change their width, equally for both."""
        return q, k

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        """`rotate` of the queries alone, for a cache of rotated keys. An encoding that turns every key by itself
        overrides this and `rotate_keys`; others raise InputError."""
        self._refuse_apart()
        return q

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        """`rotate` of the keys alone, (batch, kv_heads, num_keys, head_dim), for a cache of rotated keys."""
        self._refuse_apart()
        return k

    def _refuse_apart(self) -> None:
        if "rotate" in self.sites():
            raise InputError(
                f"{type(self).__name__} cannot rotate queries and keys apart (it has no rotate_queries and rotate_keys): "
                "cache its keys unrotated, and rotate them in each call"
            )

    def pass_rotation(self, positions: Positions, q: Tensor, k: Tensor) -> "Rotation | None":
        """`rotate` as a function that serves every layer of a pass, of tensors shaped as q and k. None: there is none, and `rotate`
        is called in each layer."""
        return None

    def token_rotation(self, positions: Positions, q: Tensor) -> Callable[[Tensor], Tensor] | None:
        """`rotate_queries` of a single query, (batch, heads, 1, head_dim), as a function that serves every layer of a
        decoding step. None: there is none, and `rotate_queries` is called in each layer."""
        return None

    def key_rotation(self, positions: Positions, k: Tensor) -> RunRotation | None:
        """`rotate_keys` of any run of keys (batch, kv_heads, num_keys, head_dim), as a function that serves every layer of a
        decoding step, beside `rotate_queries`. None: there is none, and `rotate` is called in each layer."""
        return None if "rotate" in self.sites() else unturned

    def key_angles(self, positions: Positions, layer: int = 0) -> Tensor:
        """The angle by which each pair of each key is turned, float64: (batch or 1, kv_heads or 1, num_keys, pairs).

        Raises:
            InputError: keys that are not turned, or by more than their position.
        """
        raise InputError(f"{type(self).__name__} does not rotate keys by an angle: there is nothing to move")

    def branches(self, layer: int = 0) -> Sequence[Branch]:
        """The branches of a position map: `rotate` is called for each with `positions.at(branch)`, and one softmax goes
        over all, each pair scored in the branch whose region contains it. Empty: there is no map."""
        return ()

    def scale(self, head_dim: int) -> float:
        """The factor of q . k; head_dim is the width before `rotate`."""
        return float(head_dim**-0.5)

    def scores(self, q: Tensor, k: Tensor, scale: float, positions: Positions, layer: int = 0) -> Score | None:
        """In place of scale * q . k: a structure that computes it, of queries and keys as they are after `rotate`."""
        return None

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Score | Sequence[Score] | None:
        """b_ij, added to the scaled scores: a structure, or several to be summed."""
        return None

    def modify(self, positions: Positions, layer: int = 0) -> Modifier | Sequence[Modifier] | None:
        """What becomes of each score once biases are added, such as posenc.bias.SoftCap(50.0): a function, or several in
        order. The last may be a posenc.bias.Weights, which takes the place of the softmax."""
        return None

    def sink(self, layer: int = 0) -> float | Tensor | None:
        """Logit of an extra key whose value is zero, a number or (num_heads,); None: there is none."""
        return None

    def query_sink(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor | None:
        """`sink` as a function of the queries, which are not yet rotated: (batch or 1, num_heads, num_queries)."""
        return None

    def prefix_kv(self, layer: int = 0) -> tuple[Tensor, Tensor] | None:
        """Keys (num_kv_heads, n, head_dim) and values (num_kv_heads, n, width of v) that every query of every document sees,
        whatever is causal or padded. They have no position: their scores are scale * q . k of the queries as projected,
        before `rotate`, without `bias` and `modify`."""
        return None

    def values(self, positions: Positions, layer: int = 0) -> Values | KeyValues | None:
        """w_ij, added to the values."""
        return None

    def rotate_values(self, v: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        """T_j v_j: values (batch, heads, num_keys, width), once `values` are added, turned at the keys' positions, linearly. A
        cache of rotated keys has values so, too."""
        return v

    def turn_back(self, out: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        """T_i^-1 o_i: the output (batch, num_heads, num_queries, width), turned back at the queries' positions. With
        `rotate_values`, what a query gets of a value depends on their distance."""
        return out

    def position_codes(self, positions: Positions, layer: int = 0) -> Tensor | None:
        """The vector of each query's position, (batch or 1, num_queries, channels), where the encoding has one that `embed`
        does not simply add: what analyses read."""
        return None

    def code_frequencies(self) -> Tensor | None:
        """By how many radians each pair of channels of `position_codes` rotates from a position to the next; None: not known."""
        return None

    def at(self, layer: int) -> tuple["Encoding", int]:
        """The encoding that acts in a layer, and the number of that layer among its layers.

        Raises:
            InputError: a layer below 0 or beyond num_layers.
        """
        _check_layer(self, layer, None if self.num_layers == 1 else self.num_layers)
        return self, layer

    def _leaves_in(self, layer: int) -> list[tuple["Encoding", int]]:
        """The encodings that act in a layer, of a sum all of its parts, each with the number of that layer for it.

        Raises:
            InputError: a layer below 0 or beyond num_layers.
        """
        return [Encoding.at(self, layer)]

    def _num_gates(self, layer: int) -> int:
        """How many tensors `gates_of` returns in a layer."""
        return int("gates" in self.sites())

    def scale_of(self, layer: int, head_dim: int) -> float:
        """The factor of q . k in a layer: of a sum, that of the part that has an unusual one.

        Raises:
            InputError: a scale that is no finite number, or parts with several unusual ones.
        """
        return _agreed_scale([part for part, _ in self._leaves_in(layer)], head_dim)

    def effects(self, positions: Positions, layer: int = 0) -> "Effects":
        """What the encoding does to a call at these positions, in a layer."""
        return Effects(self._leaves_in(layer), positions)

    def acts_in(self, layer: int) -> "Acting":
        """What acts in a layer: options are fixed, so it is found once."""
        known: dict[int, Acting] = vars(self).setdefault("_structure", {})
        found = known.get(layer)
        if found is None:
            part, _ = self.at(layer)
            sites = part.sites()
            found = Acting(part, sites, part.is_replayed, "restrict" in sites, self._num_gates(layer))
            if not torch.compiler.is_compiling():
                known[layer] = found
        return found

    # ---------------------------------------------------------------- what every encoding can do

    sites = _Sites()

    @classmethod
    def _overridden(cls) -> tuple[str, ...]:
        return cls._known_sites

    @classmethod
    def _find_sites(cls) -> tuple[str, ...]:
        sites = [site for site in SITES if getattr(cls, site) is not getattr(Encoding, site)]
        for hook, site in (("query_sink", "sink"), ("turn_back", "rotate_values")):
            if getattr(cls, hook) is not getattr(Encoding, hook) and site not in sites:
                sites.append(site)
        return tuple(sites)

    def _sites(self) -> tuple[str, ...]:
        used = self._overridden()
        return (*used, *self._set_hooks().difference(used)) if vars(self).keys() & HOOKS.keys() else used

    def _set_hooks(self) -> set[str]:
        """The sites of hooks that were set on this object, as a test or a patch does."""
        return {HOOKS[name] for name in vars(self).keys() & HOOKS.keys()}

    @classmethod
    def arguments(cls) -> dict[str, inspect.Parameter]:
        """The constructor's named arguments."""
        parameters = inspect.signature(cls.__init__).parameters
        return {n: p for n, p in parameters.items() if n != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}

    def spec(self) -> dict[str, Any]:
        """A dict of JSON's types from which `posenc.from_spec` builds the same encoding (parameters apart).

        Raises:
            InputError: an argument that was not stored under its own name, or whose value JSON does not have.
        """
        given = self._given() if self._part is None else self._part.arguments
        named = {name: _as_json(value, f"{_written(type(self)).__name__}.{name}") for name, value in given.items()}
        part = {} if self._part is None else self._part.spec()
        return {"name": self.known_as, **named, **part}

    def extra_repr(self) -> str:
        given = [f"{name}={getattr(self, name)!r}" for name in self.arguments() if hasattr(self, name)]
        return ", ".join([*given, *([] if self._part is None else [str(self._part)])])

    def __add__(self, other: "Encoding") -> "Sum":
        return Sum(self, other)

    def own_layer(self, layer: int) -> int:
        """Which of the encoding's per-layer parameters serves a layer: its own, or the only one there is.

        Raises:
            InputError: a layer below 0 or beyond num_layers.
        """
        number = Encoding.at(self, layer)[1]
        return 0 if self.num_layers == 1 else number

    def remember(self, positions: Positions, key: Hashable, make: Callable[[], T]) -> T:
        """A value that depends on positions and on this encoding, with its gradient: once a pass."""
        return positions.kept((self, key), make)

    def _apply(self, fn: Any, recurse: bool = True) -> "Encoding":
        # .to(bfloat16) would round the tables and .to_empty() would leave them undefined: only their device follows.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        with torch.inference_mode(False):
            tables = self._tables()
        for name, table in tables.items():
            buffer = self._buffers.get(name)
            if buffer is None:
                raise InputError(
                    f"{type(self).__name__}.tables() has {name!r}, which is not registered: call self.register_tables() at "
                    "the end of __init__"
                )
            with torch.inference_mode(False):
                self._buffers[name] = table.to(table_device(buffer.device))
        return self


class Acting(NamedTuple):
    """An encoding as it acts in a layer."""

    part: Encoding
    sites: tuple[str, ...]
    is_replayed: bool
    restricts: bool
    num_gates: int


class HeadRange(NamedTuple):
    """Which heads an encoding has: first .. end - 1 of all `heads`, of the encoding that these arguments make. sharing: query
    heads to a key head."""

    arguments: dict[str, Any]
    first: int
    end: int
    heads: int | None
    sharing: int

    def __str__(self) -> str:
        return f"heads {self.first} to {self.end - 1}" + ("" if self.heads is None else f" of {self.heads}")

    def spec(self) -> dict[str, list[int]]:
        """The query heads and the key heads, each from the first to the end."""
        of_keys = [self.first // self.sharing, self.end // self.sharing]
        return {"heads": [self.first, self.end], "kv_heads": of_keys}

    def check(self, name: str, heads: int, of_keys: int) -> None:
        """Refuse a call with other numbers of query and key heads."""
        count = self.end - self.first
        if heads != count or of_keys * self.sharing != count:
            raise InputError(
                f"q with {heads} and k with {of_keys} heads: this part of {name} is of query heads {self.first} to {self.end - 1}, "
                f"{count // self.sharing} of keys; pass those, or num_kv_heads= of the model to encoding.heads"
            )

    def cut(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """What of a tensor over all heads, or over the key heads, belongs to the part, whose tensor has this shape."""
        for axis, size in enumerate(shape):
            if x.shape[axis] != size:
                assert self.heads is not None
                x = x.narrow(axis, x.shape[axis] * self.first // self.heads, size)
        return x


def _copied(value: Any) -> Any:
    """Lists and dicts of an argument, copied; what is in them is the same."""
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def _count(encoding: Encoding, name: str) -> int | None:
    count: int | None = getattr(encoding, name, None)
    return count


def _range_of(encoding: Encoding, part: slice, heads: int | None, of_keys: int | None) -> HeadRange:
    """The range of heads of a slice, of a model with so many query and key heads."""
    counts, shares, together = encoding._head_counts()
    made = " and ".join(map(str, sorted(counts)))
    if len(counts) > 1:
        raise InputError(f"the parts of {encoding.known_as} were made for {made} query heads", heads=part)
    if heads is not None and counts - {heads}:
        raise InputError(f"{encoding.known_as} was made for {made}", num_heads=heads)
    heads = next(iter(counts), heads)
    if heads is None and (of_keys is not None or part.stop is None or min(part.start or 0, part.stop) < 0):
        given = {"heads": part} if of_keys is None else {"num_kv_heads": of_keys}
        raise InputError(
            f"{encoding.known_as} does not know the number of query heads", "pass num_heads= as well", **given
        )
    first, end, _ = (part.start or 0, part.stop, 1) if heads is None else part.indices(heads)
    of = "" if heads is None else f" of {heads}"
    if not first < end or part.stop not in (None, end):
        raise InputError(f"name some{of}, such as slice(0, {max((heads or 8) // 2, 1)})", heads=part)
    if heads is not None and of_keys is not None:
        if heads % of_keys:
            raise InputError(f"must divide the {heads} query heads", num_kv_heads=of_keys)
        if shares - {heads // of_keys}:
            made = " and ".join(str(heads // each) for each in sorted(shares))
            raise InputError(f"{encoding.known_as} was made for {made}", num_kv_heads=of_keys)
        shares = {heads // of_keys}
    if len(shares) > 1:
        raise InputError(f"the parts of {encoding.known_as} were made for unlike numbers of key heads", heads=part)
    sharing = next(iter(shares), 1)
    unit = math.lcm(sharing, *together)
    if first % unit or end % unit:
        raise InputError(
            f"cuts query heads{of} that belong together, {unit} by {unit}",
            f"begin and end at multiples of {unit}",
            heads=part,
        )
    return HeadRange({}, first, end, heads, sharing)


def _is_torchs(cls: type) -> bool:
    """Whether PyTorch made a class from an encoding's, as fully_shard and parametrize do."""
    return cls.__module__.partition(".")[0] == "torch"


def _written(cls: type[EncodingType]) -> type[EncodingType]:
    """The class that somebody wrote, of one that PyTorch made from it."""
    return next(each for each in cls.__mro__ if not _is_torchs(each))


def _placed_as(x: Tensor, value: Tensor) -> Tensor:
    """A value that every process has, as FSDP has divided a parameter."""
    if not is_distributed(x):
        return value
    from torch.distributed.tensor import distribute_tensor

    of: Any = x
    return distribute_tensor(value.to(x.device), of.device_mesh, of.placements)


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
        "spec() takes numbers, strings, lists, dicts and encodings", "override spec()", argument=origin, value=value
    )


# ---------------------------------------------------------------- hooks as the library calls them, and what they return


def _returned(encoding: Encoding, hook: str, value: object, remedy: str) -> InputError:
    return InputError(f"{type(encoding).__name__}.{hook} returned {shown(value)}: {remedy}")


def augmented_by(encoding: Encoding, positions: Positions, batch: int) -> Positions:
    """`Encoding.augment`, validated."""
    result = encoding.augment(positions, batch)
    if result is positions:
        return result
    if not isinstance(result, Positions):
        raise _returned(encoding, "augment", result, "return Positions, such as positions.moved(...)")
    if (result.num_queries, result.num_keys) != (positions.num_queries, positions.num_keys) or result.batch not in (
        1,
        batch,
    ):
        raise _returned(encoding, "augment", result, f"return {positions} at other positions, with 1 or {batch} rows")
    return result


def _check_layer(encoding: Encoding, layer: int, num_layers: int | None) -> None:
    if layer < 0:
        raise InputError("must be at least 0", layer=layer)
    if num_layers is not None and layer >= num_layers:
        raise InputError(
            f"{encoding.known_as} was made with num_layers={num_layers}", f"pass at most {num_layers - 1}", layer=layer
        )


def require_values(encoding: Encoding, x: Tensor) -> None:
    """Refuse parameters on meta where x is not: PyTorch may answer with memory that nobody wrote to; and parameters that other
    processes have parts of."""
    if torch.compiler.is_compiling():
        return
    refuse_distributed(x=x)
    parameters = list(encoding.parameters())
    check_devices(encoding.known_as, x, *parameters)
    if parameters and is_distributed(parameters[0]):
        raise InputError(
            f"{encoding.known_as}: its parameters are sharded here, as fully_shard(encoding) leaves them: shard the module that "
            "calls it, as in fully_shard(layer), whose forward gathers them"
        )


def gates_of(encoding: Encoding, x: Tensor, layer: int = 0) -> tuple[Tensor, ...]:
    """`Encoding.gates`, validated and without autocast: what `attention` takes as gates, one tensor (batch, heads, seq, width) for each gated part.

    x: (batch, seq, dim), the input of the layer's projections. A token whose x is not finite, or so large that its squares
    cannot be summed (about 1e18 in float32), has gates of NaN: `attention` refuses them where the token is visible. Where
    it is hidden, it reaches no output and no gradient.

    Raises:
        InputError: x of another shape, a layer that the encoding does not have, or gates that are none.
    """
    if not isinstance(x, Tensor) or x.dim() != 3 or not x.is_floating_point():
        raise InputError("pass the input of the layer's projections, (batch, seq, dim) of a floating dtype", x=x)
    parts = [(part, number) for part, number in encoding._leaves_in(layer) if part._num_gates(number)]
    require_values(encoding, x)
    if not parts:
        return ()
    # nothing of such a token may be in a product: a gradient of 0 times infinity is NaN, in the weights that all tokens share
    largest = (torch.finfo(torch.promote_types(x.dtype, torch.float32)).max / max(x.shape[-1], 1)) ** 0.5
    lost = ~(x.detach().abs() <= largest).all(-1, keepdim=True)
    read = x.masked_fill(lost, 0.0)
    gates: list[Tensor] = []
    with exactly(x):
        for part, number in parts:
            made = part.gates(read, number)
            for gate in () if made is None else (made,) if isinstance(made, Tensor) else made:
                floats = isinstance(gate, Tensor) and gate.is_floating_point()
                if not floats or gate.dim() != 4 or (gate.shape[0], gate.shape[2]) != x.shape[:2]:
                    remedy = f"return (batch, heads, seq, width), {x.shape[0]} x any x {x.shape[1]} x any, floating"
                    raise _returned(part, "gates", gate, remedy)
                gates.append(gate.masked_fill(lost[:, None], torch.nan))
    return tuple(gates)


def checked_gates(
    encoding: Encoding | None,
    gates: Tensor | Sequence[Tensor] | None,
    k: Tensor,
    layer: int,
    hidden: Hidden | None = None,
) -> tuple[Tensor, ...]:
    """The gates that a call is given, with a row for each of k. hidden: the keys whose gates are not read, see
    `Positions.hidden`.

    Raises:
        InputError: another number of tensors than the encoding makes, or gates that are not of the keys, or not finite.
    """
    given = () if gates is None else tuple(gates) if isinstance(gates, (list, tuple)) else (gates,)
    wanted = 0 if encoding is None else encoding.acts_in(layer).num_gates
    if len(given) != wanted:
        name = "no encoding" if encoding is None else encoding.known_as
        raise InputError(
            f"{len(given)} tensors, {name} makes {wanted}: pass gates=posenc.encoding.gates_of(encoding, x, layer), x the input of "
            "the layer's projections, with those of cached keys in front",
            argument="gates",
        )
    checked = []
    for gate in given:
        fits = isinstance(gate, Tensor) and gate.is_floating_point()
        if not fits or gate.dim() != 4 or gate.shape[0] not in (1, k.shape[0]):
            raise InputError(
                f"pass (batch, heads, num_keys, width) of a floating dtype, batch {k.shape[0]}", gates=gate
            )
        if gate.shape[2] != k.shape[2]:
            raise InputError(
                f"gates are of {gate.shape[2]} tokens, there are {k.shape[2]} keys: cache the gates as the keys are, and pass all"
            )
        if gate.device != k.device:
            raise InputError(f"gates are on {gate.device}, k on {k.device}: move them")
        gate = left_out(hidden, gate)
        looks = gate.device.type == "cpu" and not torch.compiler.is_compiling() and not transformed()
        if looks and not intercepted() and not bool(gate.isfinite().all()):
            raise InputError("not finite", f"check the layer's input and the weights of {encoding}", gates=gate)
        checked.append(gate.expand(k.shape[0], -1, -1, -1))
    return tuple(checked)


class _Part(NamedTuple):
    """An encoding as it acts in a layer: layer is its number for it, positions have the gates that are its own."""

    encoding: Encoding
    layer: int
    positions: Positions
    sites: tuple[str, ...]


class Effects:
    """What the encodings of a layer do to one call: the one place where their hooks are called, where what a hook returns
    is checked, and where the parts of a sum are put together.

    positions: where the call's tokens are. Shapes as in `Encoding`. Each method raises InputError for what a hook must
    not return, with the class and the hook, and for what the parts of a sum cannot do together.
    """

    def __init__(self, acting: Sequence[tuple[Encoding, int]], positions: Positions) -> None:
        self.acting, self.positions = acting, positions
        gates = iter(positions.gates)
        self.parts: list[_Part] = []
        self.sites: set[str] = set()
        for part, layer in acting:
            here, sites = positions, part.sites()
            if positions.gates:
                here = positions.with_gates(tuple(islice(gates, part._num_gates(layer))))
            self.parts.append(_Part(part, layer, here, sites))
            self.sites.update(sites)

    def at(self, positions: Positions) -> "Effects":
        """The same encodings at other positions."""
        return Effects(self.acting, positions)

    def restricted(self, gates: tuple[Tensor, ...] = ()) -> "Effects":
        """As attention takes them: at positions with fewer visible keys, and with the gates of the call."""
        positions = self.positions
        for part in self._with("restrict"):
            result = part.encoding.restrict(positions, part.layer)
            same = isinstance(result, Positions) and result.q is positions.q and result.k is positions.k
            if result is not positions and not same:
                remedy = "return the same tokens, such as positions.with_window(63)"
                raise _returned(part.encoding, "restrict", result, remedy)
            positions = result
        return self if positions is self.positions and not gates else self.at(positions.with_gates(gates))

    def _with(self, site: str) -> list[_Part]:
        if site not in self.sites:
            return []
        return self.parts if len(self.parts) == 1 else [part for part in self.parts if site in part.sites]

    def _in_turn(self, site: str) -> list[_Part]:
        """The parts with a site in the order in which they rotate."""
        parts = self._with(site)
        return sorted(parts, key=_rotates_last) if len(parts) > 1 else parts

    def _through(self, site: str, hook: str, x: Tensor, check: Callable[..., None]) -> Tensor:
        """x as a hook of one tensor leaves it, part after part. check: refuses what a part must not make of it."""
        for part in self._in_turn(site):
            result = getattr(part.encoding, hook)(x, part.positions, part.layer)
            if result is not x:
                check(part.encoding, hook, before=x, after=result)
            x = result
        return x

    def embedded(self, x: Tensor) -> Tensor:
        """x (batch, seq, dim) as `embed` leaves it. What it holds at padding is not read where it could reach a gradient."""
        for part in self.parts:
            require_values(part.encoding, x)
        parts = self._in_turn("embed")
        if parts and x.dim() == 3 and x.shape[1] == self.positions.num_queries:
            padding, _ = self.positions.hidden()
            x = x if padding is None else padding.left_out(x[:, None])[:, 0]
        for part in parts:
            result = part.encoding.embed(x, part.positions, part.layer)
            if result is not x and not (
                isinstance(result, Tensor) and result.shape == x.shape and result.is_floating_point()
            ):
                raise _returned(part.encoding, "embed", result, f"return a tensor of x's shape {tuple(x.shape)}")
            x = result
        return x

    def rotated(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys as `rotate` leaves them."""
        for part in self._in_turn("rotate"):
            result = part.encoding.rotate(q, k, part.positions, part.layer)
            if not (isinstance(result, (tuple, list)) and len(result) == 2):
                raise _returned(part.encoding, "rotate", result, "return the pair (q, k)")
            queries, keys = result
            for name, before, after in (("q", q, queries), ("k", k, keys)):
                if after is not before:
                    _check_rotated(part.encoding, "rotate", before, after, name)
            if queries.shape[3] != keys.shape[3]:
                widths = f"q {queries.shape[3]} wide and k {keys.shape[3]} wide"
                raise InputError(f"{type(part.encoding).__name__}.rotate returned {widths}: widen both alike")
            q, k = queries, keys
        return q, k

    def queries_rotated(self, q: Tensor) -> Tensor:
        """Queries as `rotate_queries` leaves them."""
        return self._through("rotate", "rotate_queries", q, partial(_check_rotated, name="q"))

    def keys_rotated(self, k: Tensor) -> Tensor:
        """Keys as `rotate_keys` leaves them."""
        return self._through("rotate", "rotate_keys", k, partial(_check_rotated, name="k"))

    def token_rotation(self, q: Tensor) -> Callable[[Tensor], Tensor] | None:
        """`Encoding.token_rotation` of all parts."""
        turns = [part.encoding.token_rotation(part.positions, q) for part in self._in_turn("rotate")]
        known = [turn for turn in turns if turn is not None]
        if len(known) < len(turns):
            return None
        return known[0] if len(known) == 1 else lambda x: reduce(lambda turned, turn: turn(turned), known, x)

    def pass_rotation(self, q: Tensor, k: Tensor) -> Rotation | None:
        """`Encoding.pass_rotation` of all parts."""
        turns = [part.encoding.pass_rotation(part.positions, q, k) for part in self._in_turn("rotate")]
        known = [turn for turn in turns if turn is not None]
        if not turns or len(known) < len(turns):
            return None
        return known[0] if len(known) == 1 else lambda *pair: reduce(lambda turned, turn: turn(*turned), known, pair)

    def key_rotation(self, k: Tensor) -> RunRotation | None:
        """`Encoding.key_rotation` of all parts."""
        turns = [part.encoding.key_rotation(part.positions, k) for part in self._with("rotate")]
        turning = [turn for turn in turns if turn is not unturned]
        if len(turning) > 1:
            return None
        return turning[0] if turning else unturned

    def branches(self) -> Sequence[Branch]:
        """The branches of a position map, if there is one."""
        found = []
        for part in self.parts:
            result = part.encoding.branches(part.layer)
            if result and not (isinstance(result, Sequence) and all(isinstance(each, Branch) for each in result)):
                raise _returned(part.encoding, "branches", result, "return a sequence of Branch")
            found.append(result or None)
        return _only("position maps", found) or ()

    def products(self, q: Tensor, k: Tensor, scale: float) -> list[Score]:
        """What takes the place of scale * q . k of rotated queries and keys: one term, or none."""
        terms = []
        for part in self._with("scores"):
            result = part.encoding.scores(q, k, scale, part.positions, part.layer)
            terms += validated(result, q, k, origin=f"{type(part.encoding).__name__}.scores")
        _only("products of queries and keys", terms)
        return terms

    def terms(self, q: Tensor, k: Tensor) -> list[Score]:
        """The terms that are added to the scaled scores of queries and keys, not yet rotated."""
        terms = []
        for part in self._with("bias"):
            result = part.encoding.bias(q, k, part.positions, part.layer)
            terms += validated(result, q, k, origin=f"{type(part.encoding).__name__}.bias")
        return terms

    def modifiers(self) -> list[Modifier]:
        """What becomes of each score, in order; the last may take the place of the softmax."""
        modifiers: list[Modifier] = []
        for part in self._with("modify"):
            result = part.encoding.modify(part.positions, part.layer)
            made = [] if result is None else [result] if isinstance(result, Modifier) else result
            if not isinstance(made, Sequence) or not all(isinstance(each, Modifier) for each in made):
                remedy = "return posenc.bias.SoftCap(cap), Modifier(function), a sequence of them, or None"
                raise _returned(part.encoding, "modify", result, remedy)
            modifiers += made
        modifiers.sort(key=lambda modifier: isinstance(modifier, Weights))
        if any(isinstance(each, Weights) for each in modifiers[:-1]):
            names = ", ".join(type(part.encoding).__name__ for part in self._with("modify"))
            raise InputError(f"{names}: a Weights takes the place of the softmax: return one, as the last")
        return modifiers

    def values(self, q: Tensor, v: Tensor) -> Values | KeyValues | None:
        """w_ij, which is added to the values."""
        found = []
        for part in self._with("values"):
            result: Any = part.encoding.values(part.positions, part.layer)
            if result is not None and not isinstance(result, (Values, KeyValues)):
                remedy = "return posenc.bias.Values(table, index), KeyValues(added) or None"
                raise _returned(part.encoding, "values", result, remedy)
            found.append(validated_values(result, q, v, origin=f"{type(part.encoding).__name__}.values"))
        return _only("encodings that act on the values", found)

    def values_rotated(self, v: Tensor) -> Tensor:
        """Values as `rotate_values` leaves them."""
        return self._through("rotate_values", "rotate_values", v, partial(_check_alike, name="v"))

    def turned_back(self, out: Tensor) -> Tensor:
        """The output as `turn_back` leaves it."""
        return self._through("rotate_values", "turn_back", out, partial(_check_alike, name="the output"))

    def sink(self, q: Tensor) -> float | Tensor | None:
        """The logit of an extra key, of `sink` or `query_sink`; the shape of the former is checked by `attention`."""
        found: list[float | Tensor | None] = []
        for part in self._with("sink"):
            of_queries = part.encoding.query_sink(q, part.positions, part.layer)
            if of_queries is not None:
                fits = isinstance(of_queries, Tensor) and of_queries.dim() == 3
                if not fits or of_queries.shape[0] not in (1, q.shape[0]) or of_queries.shape[1:] != q.shape[1:3]:
                    remedy = f"return logits (batch, num_heads, num_queries), {tuple(q.shape[:3])}"
                    raise _returned(part.encoding, "query_sink", of_queries, remedy)
            found += [of_queries, part.encoding.sink(part.layer)]
        return _only("sinks", found)

    def prefix(self, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor] | None:
        """Keys and values that every query sees, (num_kv_heads, n, width)."""
        pairs = []
        for part in self._with("prefix_kv"):
            result = part.encoding.prefix_kv(part.layer)
            if result is not None:
                _check_prefix(part.encoding, result, q, v)
                pairs.append(result)
        return _joined(pairs)

    def scale(self, head_dim: int) -> float:
        """The factor of q . k: that of the part that has an unusual one."""
        return _agreed_scale([part.encoding for part in self._with("scale")], head_dim)


def _rotates_last(part: _Part) -> bool:
    return part.encoding.rotates_last


def _check_rotated(encoding: Encoding, hook: str, before: Tensor, after: object, name: str) -> None:
    if not isinstance(after, Tensor) or after.shape[:3] != before.shape[:3] or after.dim() != 4:
        raise _returned(
            encoding, hook, after, f"return {name} {tuple(before.shape)}, of which only the width may change"
        )
    if after.dtype != before.dtype or after.device != before.device:
        given = f"return {name} in {before.dtype} on {before.device}, as it was given"
        raise _returned(encoding, hook, after, given)


def _check_alike(encoding: Encoding, hook: str, before: Tensor, after: object, name: str) -> None:
    if not isinstance(after, Tensor) or (after.shape, after.dtype, after.device) != (
        before.shape,
        before.dtype,
        before.device,
    ):
        given = f"return {name} {tuple(before.shape)} in {before.dtype} on {before.device}, as it was given"
        raise _returned(encoding, hook, after, given)


def _check_prefix(encoding: Encoding, prefix: object, q: Tensor, v: Tensor) -> None:
    if not (isinstance(prefix, tuple) and len(prefix) == 2 and all(isinstance(x, Tensor) for x in prefix)):
        raise _returned(encoding, "prefix_kv", prefix, "return the pair (keys, values), or None")
    keys, values = prefix
    for name, x, width in (("keys", keys, q.shape[3]), ("values", values, v.shape[3])):
        if x.dim() != 3 or (x.shape[0], x.shape[2]) != (v.shape[1], width) or x.shape[1] != keys.shape[1]:
            raise InputError(
                f"{type(encoding).__name__}.prefix_kv returned {name} of shape {tuple(x.shape)}: return (num_kv_heads, n, "
                f"width), here ({v.shape[1]}, {keys.shape[-2]}, {width})"
            )
        if x.device != q.device:
            raise InputError(f"{type(encoding).__name__}.prefix_kv returned {name} on {x.device}, q is on {q.device}")


def _checked_scale(encoding: Encoding, scale: Any) -> float:
    if torch.compiler.is_compiling():
        return scale  # a symbol, where the width is one
    if type(scale) is not float and (isinstance(scale, bool) or not isinstance(scale, Real)):
        remedy = "return a number; a learned temperature multiplies the queries, in rotate"
        raise _returned(encoding, "scale", scale, remedy)
    scale = float(scale)
    if not math.isfinite(scale):
        raise _returned(encoding, "scale", scale, "return a finite number")
    return scale


def _agreed_scale(parts: Iterable[Encoding], head_dim: int) -> float:
    """The one scale of the parts that is not the usual one, if there is one."""
    usual = float(head_dim**-0.5)
    scales = [_checked_scale(part, part.scale(head_dim)) for part in parts]
    unusual = {scale for scale in scales if scale != usual}
    if len(unusual) > 1:
        raise InputError(f"the sum's parts have different scales {sorted(unusual)}: pass scale= to attention")
    return unusual.pop() if unusual else usual


def _joined(prefixes: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    """The keys and values of all prefixes."""
    if len(prefixes) <= 1:
        return prefixes[0] if prefixes else None
    keys, values = zip(*prefixes, strict=True)
    return torch.cat(keys, 1), torch.cat(values, 1)


def _only(what: str, of_parts: Sequence[Any]) -> Any:
    """What one of the parts has, and the others do not; None where none has."""
    present = [value for value in of_parts if value is not None]
    if len(present) > 1:
        raise InputError(f"the sum has several {what}: use one of them")
    return present[0] if present else None


# ---------------------------------------------------------------- encodings made of encodings


class Composite(Encoding):
    """An encoding made of parts: its traits are the strictest of theirs."""

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
        return "bias" in self._overridden() or any(part.bias_reads_keys for part in self)

    @property
    def isometric(self) -> bool:
        return all(part.isometric for part in self)

    @classmethod
    def _find_sites(cls) -> tuple[str, ...]:
        """The sites of a subclass's own hooks, besides those of the parts."""
        owners = {site: next(each for each in cls.__mro__ if site in vars(each)) for site in SITES}
        return tuple(site for site in SITES if owners[site].__module__ != __name__)

    def _sites(self) -> tuple[str, ...]:
        used = {*self._overridden(), *self._set_hooks(), *(site for part in self for site in part.sites())}
        return tuple(site for site in SITES if site in used)

    def _leaves_in(self, layer: int) -> list[tuple[Encoding, int]]:
        return [(self, layer)] if self._acts() else self._parts_in(layer)

    def _acts(self) -> bool:
        """Whether it has hooks besides those of the parts."""
        return bool(self._overridden() or self._set_hooks())

    def _parts_in(self, layer: int) -> list[tuple[Encoding, int]]:
        """The parts that act in a layer, beside the hooks of a subclass."""
        raise NotImplementedError

    def _num_gates(self, layer: int) -> int:
        if "gates" in self._overridden():
            return 1
        return sum(part._num_gates(number) for part, number in self._parts_in(layer))

    def augment(self, positions: Positions, batch: int) -> Positions:
        for part in dict.fromkeys(self):
            positions = augmented_by(part, positions, batch)
        return positions

    def gates(self, x: Tensor, layer: int = 0) -> Tensor | Sequence[Tensor] | None:
        return [gate for part, number in self._parts_in(layer) for gate in gates_of(part, x, number)]

    def _here(self, positions: Positions, layer: int) -> Effects:
        return Effects(self._parts_in(layer), positions)

    def embed(self, x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        return self._here(positions, layer).embedded(x)

    def restrict(self, positions: Positions, layer: int = 0) -> Positions:
        return self._here(positions, layer).restricted().positions

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        return self._here(positions, layer).rotated(q, k)

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        return self._here(positions, layer).queries_rotated(q)

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        return self._here(positions, layer).keys_rotated(k)

    def scores(self, q: Tensor, k: Tensor, scale: float, positions: Positions, layer: int = 0) -> Score | None:
        return next(iter(self._here(positions, layer).products(q, k, scale)), None)

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Score | Sequence[Score] | None:
        return self._here(positions, layer).terms(q, k)

    def modify(self, positions: Positions, layer: int = 0) -> Modifier | Sequence[Modifier] | None:
        return self._here(positions, layer).modifiers()

    def values(self, positions: Positions, layer: int = 0) -> Values | KeyValues | None:
        parts = self._here(positions, layer).parts
        return _only("encodings that act on the values", [p.encoding.values(p.positions, p.layer) for p in parts])

    def rotate_values(self, v: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        return self._here(positions, layer).values_rotated(v)

    def turn_back(self, out: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        return self._here(positions, layer).turned_back(out)

    def branches(self, layer: int = 0) -> Sequence[Branch]:
        return _only("position maps", [part.branches(at) or None for part, at in self._parts_in(layer)]) or ()

    def sink(self, layer: int = 0) -> float | Tensor | None:
        return _only("sinks", [part.sink(number) for part, number in self._parts_in(layer)])

    def query_sink(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor | None:
        parts = self._here(positions, layer).parts
        return _only("sinks", [part.encoding.query_sink(q, part.positions, part.layer) for part in parts])

    def prefix_kv(self, layer: int = 0) -> tuple[Tensor, Tensor] | None:
        pairs = [part.prefix_kv(number) for part, number in self._parts_in(layer)]
        return _joined([pair for pair in pairs if pair is not None])

    def key_angles(self, positions: Positions, layer: int = 0) -> Tensor:
        raise InputError(f"{type(self).__name__} is made of parts: pass the one that rotates this layer's keys")

    def reset_parameters(self) -> None:
        for part in dict.fromkeys(self):
            part.reset_parameters()

    def _head_counts(self) -> tuple[set[int], set[int], set[int]]:
        heads, sharing, together = (
            {n for part in of_parts for n in part} for of_parts in zip(*(p._head_counts() for p in self), strict=True)
        )
        return heads, sharing, together

    def _check_part(self, q: Tensor, k: Tensor) -> None:
        for part in self:
            part._check_part(q, k)

    def _of_process(self, of: "HeadRange") -> Self:
        cut = {each: each._of_process(of) for each in self}
        copied = deepcopy(self)
        copied.parts = nn.ModuleList(cut[each] for each in self)
        vars(copied)["_structure"] = {}
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
        _only("encodings that rotate values", [part if "rotate_values" in part.sites() else None for part in self])

    @staticmethod
    def _check_beside_centred(number: int, centred: Encoding, leaves: Sequence[tuple[int, Encoding]]) -> None:
        def mixes(x: Encoding) -> bool:
            return "scores" in x.sites() and not x.scores_by_channel

        others = [
            x for at, x in leaves
            if at != number and (x.planes != () or mixes(x) or (at > number and (x.shifts_queries or x.normalises)))
        ]  # fmt: skip
        if any(x.planes is None or x.planes != centred.planes or mixes(x) for x in others):
            raise InputError(
                f"{centred.known_as} with {', '.join(dict.fromkeys(x.known_as for x in others))}: it scales keys by their "
                "distance from the middle of a call's keys, which cancels only in q . k, beside rotations of the same channels in "
                "the same layout, and of queries moved or normalised before it; use one of them, or that other first"
            )

    @property
    def planes(self) -> Hashable:
        rotating = {part.planes for part in self if part.planes != ()}
        if len(rotating) > 1 or "rotate" in self._overridden():
            return None
        return rotating.pop() if rotating else ()

    @property
    def is_replayed(self) -> bool:
        return not self._acts() and all(part.at(0)[0] is part and part.is_replayed for part in self)

    @property
    def adds_constants(self) -> bool:
        return all(part.adds_constants for part in self)

    def at(self, layer: int) -> tuple[Encoding, int]:
        for part in self:
            part.at(layer)
        return self, layer

    def _parts_in(self, layer: int) -> list[tuple[Encoding, int]]:
        return [each for part in self for each in part._leaves_in(layer)]

    def share(self, projections: Sequence[Projections]) -> None:
        for part in self:
            part.share(projections)

    def scale(self, head_dim: int) -> float:
        return _agreed_scale(self, head_dim)


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
        if num_layers is not None:
            check_sizes(num_layers=num_layers)
        self.layers: int | None = num_layers
        if sum("augment" in part.sites() for part in dict.fromkeys(self)) > 1:
            raise InputError(
                "several layers' encodings change positions, which are changed once for all layers: let the layers share "
                "one object, or add it outside, as in SHAPE() + PerLayer(...)"
            )

    def spec(self) -> dict[str, Any]:
        return super().spec() | ({} if self.layers is None else {"num_layers": self.layers})

    def at(self, layer: int) -> tuple[Encoding, int]:
        return (self, layer) if self._acts() else self._chosen(layer)

    def _chosen(self, layer: int) -> tuple[Encoding, int]:
        _check_layer(self, layer, self.layers)
        cycles, place = layer // len(self._counts), layer % len(self._counts)  # a graph has no divmod of its sizes
        before, times = self._counts[place]
        return self.parts[place], cycles * times + before  # type: ignore[return-value]

    def _parts_in(self, layer: int) -> list[tuple[Encoding, int]]:
        part, number = self._chosen(layer)
        return part._leaves_in(number)

    def share(self, projections: Sequence[Projections]) -> None:
        for part in dict.fromkeys(self):
            part.share([pair for layer, pair in enumerate(projections) if self._chosen(layer)[0] is part])

    def scale(self, head_dim: int) -> float:
        scales = {part.scale(head_dim) for part in self}
        if len(scales) > 1:
            raise InputError(f"PerLayer's parts have different scales {sorted(scales)}: pass scale= to attention")
        return scales.pop()
