# SPDX-License-Identifier: Apache-2.0
"""The contract: the sites where position may enter attention.

One identity covers every scheme: o_i = sum_j p_ij T_i^-1 T_j (v_j + w_ij), p_i = softmax(m(scale * <q_i, k_j> + b_ij)).
An encoding overrides the sites it uses; the rest is the identity. Which sites it overrides is its taxonomy.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from posenc.bias import KeyValues, Modifier, Score, Values
from posenc.encoding.declared import is_torchs
from posenc.encoding.effects import Acting, Effects, Gates, Leaf, Rotation, agreed_scale, check_layer
from posenc.encoding.heads import Sliced
from posenc.encoding.passes import Pass
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.positions.visibility import Branch

T = TypeVar("T")
HOOKS = {
    "augment": "augment", "embed": "embed", "restrict": "restrict", "gates": "gates", "rotate": "rotate",
    "rotate_queries": "rotate", "rotate_keys": "rotate", "scores": "scores", "bias": "bias", "values": "values",
    "rotate_values": "rotate_values", "turn_back": "rotate_values", "scale": "scale", "modify": "modify", "sink": "sink",
    "query_sink": "sink", "prefix_kv": "prefix_kv",
}  # fmt: skip
"""Hook -> the site where it acts."""
ROTATION = "rotate", "rotate_queries", "rotate_keys", "shared_rotation", "zero_is_identity"
SITES = tuple(dict.fromkeys(HOOKS.values()))
Projections = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
"""A layer's query and key projections: (..., dim) -> (..., num_heads * head_dim) and (..., num_kv_heads * head_dim)."""


class Encoding(Sliced):
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

    sum_of: ClassVar[Callable[..., "Encoding"]]
    """`Sum`, which is an encoding"""
    own_sites: ClassVar[tuple[str, ...]] = ()
    """Where the hooks of the class act"""
    num_gates: ClassVar[int] = 0
    is_map: ClassVar[bool] = False
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
    constant: bool = False
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

    @property
    def sees_order(self) -> bool:
        """Whether it can tell one order of the tokens from another in a model where every query sees every key."""
        return not set(self.sites()) <= {"augment", "scale", "sink", "prefix_kv"}

    @property
    def bias_reads_keys(self) -> bool:
        """Whether `bias` may look at the keys, which it then needs unrotated. One that does not sets this to False, or is `constant`. A
        subclass with another `bias` does not inherit it."""
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

    @property
    def zero_is_identity(self) -> bool:
        """Whether `rotate` leaves a key at position 0 unchanged."""
        return False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        order = [min(at for at, base in enumerate(cls.__mro__) if name in vars(base)) for name in ROTATION]
        whole, apart, newest = order[0], min(order[1:3]), min(order[:3])
        limits = (apart, *[whole if whole < apart else len(cls.__mro__)] * 2, newest, newest)
        for name, at, limit in zip(ROTATION, order, limits, strict=True):
            if at > limit:  # that of a parent, whose rotation is another one
                type.__setattr__(cls, name, vars(Encoding)[name])
        if "bias" in vars(cls):
            type.__setattr__(cls, "bias_reads_keys", vars(cls).get("bias_reads_keys", not vars(cls).get("constant")))
        own = {site for hook, site in HOOKS.items() if getattr(cls, hook) is not getattr(Encoding, hook)}
        cls.own_sites = tuple(site for site in SITES if site in own)
        cls.num_gates, cls.is_map = int("gates" in own), cls.branches is not Encoding.branches
        if not is_torchs(cls):
            for trait, default in {"name": "", "title": "", "bibtex": "", "constant": False}.items():
                setattr(cls, trait, vars(cls).get(trait, default))  # which are not inherited

    @classmethod
    def check_late(cls, name: str) -> None:
        if name in HOOKS or name in ("branches", "share", "shared_rotation"):  # some of which nothing would call
            remedy = f"write an Encoding that has it and add that, or a subclass of {cls.__name__}"
            raise InputError(f"hooks are methods that a class is defined with: {remedy}", argument=name)

    # ---------------------------------------------------------------- the hooks that most need

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        """Queries and keys before their product; may change their width, equally for both. Where it is not overridden, each by its
        own hook. A subclass that overrides one of the two ways has not its parent's other one."""
        return self.rotate_queries(q, positions, layer), self.rotate_keys(k, positions, layer)

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Score | Sequence[Score] | None:
        """b_ij, added to the scaled scores: a structure, or several to be summed."""
        return None

    def embed(self, x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        """The input of `layer`: (batch, seq, dim) -> (batch, seq, dim)."""
        return x

    # ---------------------------------------------------------------- further hooks: of a model

    def augment(self, positions: Positions, batch: int) -> Positions:
        """The positions of a forward pass as every layer sees them: applied once by the model, before `embed`. The
        identity but for schemes that change positions in training. batch: rows of the model's input."""
        return positions

    def share(self, projections: Sequence[Projections]) -> None:
        """Take the model's query and key projections, one pair per layer, for schemes that put their own vectors
        through them. The model calls this in every forward pass, so an encoding may serve several models. Modules are
        references and stay the model's."""

    def gates(self, x: Tensor, layer: int = 0) -> Gates:
        """Numbers for each token, (batch, heads, seq, width), from the input of the layer's projections, x (batch, seq, dim):
        each token's from its part of x alone. The model caches them as it does keys, and `attention` gives those of all keys
        to the hooks that act there, as `positions.gate(name)`; `positions.of_queries` are those of the queries."""
        return None

    # ---------------------------------------------------------------- further hooks: of queries and keys

    def restrict(self, positions: Positions, layer: int = 0) -> Positions:
        """The positions as the attention of `layer` takes them, with fewer visible keys, such as
        `positions.with_window(63)`. The other hooks of the layer that act in attention are given the result."""
        return positions

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
            remedy = "cache keys unrotated, or write rotate_queries and rotate_keys"
            raise InputError(f"{type(self).__name__} cannot rotate queries and keys apart: {remedy}")

    def shared_rotation(self, positions: Positions, q: Tensor | None, k: Tensor | None) -> Rotation | None:
        """`rotate` as a function for all layers of a pass, of tensors shaped as q and k; of queries or keys alone where the other is
        None, as `rotate_queries` and `rotate_keys` are. None: there is none, and those are called in each layer."""
        return None

    def branches(self, layer: int = 0) -> Sequence[Branch]:
        """The branches of a position map: `rotate` is called for each with `positions.at(branch)`, and one softmax goes
        over all, each pair scored in the branch whose region contains it. Empty: there is no map."""
        return ()

    # ---------------------------------------------------------------- further hooks: of scores and values

    def scale(self, head_dim: int) -> float:
        """The factor of q . k; head_dim is the width before `rotate`."""
        return float(head_dim**-0.5)

    def scores(self, q: Tensor, k: Tensor, scale: float, positions: Positions, layer: int = 0) -> Score | None:
        """In place of scale * q . k: a structure that computes it, of queries and keys as they are after `rotate`."""
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

    # ---------------------------------------------------------------- what every encoding can do

    def at(self, positions: Positions) -> Pass:
        """One forward pass at these positions, which the layers of a model share: `here.attention(q, k, v, layer=i)`.

        Raises:
            InputError: no `Positions`.
        """
        return Pass(self, positions)

    def __add__(self, other: "Encoding") -> "Encoding":
        return Encoding.sum_of(self, other)

    def sites(self) -> tuple[str, ...]:
        """Where it acts."""
        return self.own_sites

    def acting_in(self, layer: int) -> Acting:
        """What acts in a layer, and the number of that layer for it."""
        check_layer(self, layer, None if self.num_layers == 1 else self.num_layers)
        sites, gates = self.own_sites, self.num_gates
        constant = "bias" not in sites or (self.constant and self.num_layers == 1)
        return Acting(self, layer, (Leaf(self, layer, sites, gates),), self.own_sites, gates, constant, self.is_map)

    def effects(self, positions: Positions, layer: int = 0) -> Effects:
        """What the encoding does to a call at these positions, in a layer."""
        return Effects(self.acting_in(layer), positions)

    def scale_of(self, layer: int, head_dim: int) -> float:
        """The factor of q . k in a layer: of a sum, that of the part that has an unusual one."""
        return agreed_scale([leaf.encoding for leaf in self.acting_in(layer).leaves], head_dim)

    def own_layer(self, layer: int) -> int:
        """Which of the encoding's per-layer parameters serves a layer: its own, or the only one there is."""
        if type(layer) is not int or layer < 0 or 1 < self.num_layers <= layer:
            check_layer(self, layer, None if self.num_layers == 1 else self.num_layers)
        return 0 if self.num_layers == 1 else layer

    def remember(self, positions: Positions, key: Hashable, make: Callable[[], T]) -> T:
        """A value that depends on positions and on this encoding, with its gradient: once a pass."""
        return positions.once((self, key), make)
