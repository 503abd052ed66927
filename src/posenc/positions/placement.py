# SPDX-License-Identifier: Apache-2.0
"""What is known of the tokens of one forward pass: read as masks, counts and coordinates, and asked for other views."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor

from posenc.checks import check_device, check_flags, is_whole
from posenc.distributed.shards import Shard
from posenc.errors import InputError
from posenc.positions import visibility
from posenc.positions.ids import Ids, as_indices, check_range, first_frame, prefix_places, taken
from posenc.positions.regions import Branch
from posenc.positions.visibility import MaskMod, grid_indices

T = TypeVar("T")
_TENSORS = ("q", "k", "q_order", "k_order", "valid", "q_valid", "q_document", "k_document")


@dataclass(frozen=True, eq=False, repr=False)
class Placement:
    """Where the queries and the keys of one attention call are, and which keys each query may see: what `Positions`
    makes, read and changed.

    Attributes:
        q: positions of the queries, (batch or 1, num_queries) or (batch or 1, num_queries, axes); integer or float.
        k: positions of the keys, likewise.
        q_order, k_order: (batch or 1, n) integers: a causal query sees the keys whose order is not above its own.
            Kept apart from the positions, which may be shared by tokens, fractional or restart per document.
        causal: whether order restricts what a query sees.
        valid: (batch or 1, num_keys) bool; False marks padding. None: every key is valid.
        q_valid: (batch or 1, num_queries) bool, likewise; a query that is padding sees nothing.
        q_document, k_document: (batch or 1, n) integers; a query sees keys of its own document. None: one document.
        branch: the branch of a position map that a rotation is asked for, see `at`. None: there is no map.
        every_key: the positions with all keys of the call, where these have only some of them, see `keys`.
        part: the queries are those of one process, of a sequence that several have, see `shard`. None: of all.
        start: (first query position, first key position) when both run contiguously by ones, identically in every
            row, with nothing padded or packed: the case that fused paths recognise without reading a tensor.
        diagonal: a causal query at index i sees the keys up to index i + diagonal. None: rows differ, or unknown.
        span: (shortest, longest) distance that a query may have from a key. None: not known without reading a tensor.
        images: (height, width) or (frames, height, width), in patches, of the image that all tokens are of, or of the
            images of all documents or rows, by number. None: not known, as of tokens that were moved.
    """

    q: Tensor
    k: Tensor
    q_order: Tensor
    k_order: Tensor
    causal: bool = False
    valid: Tensor | None = None
    q_valid: Tensor | None = None
    q_document: Tensor | None = None
    k_document: Tensor | None = None
    branch: Branch | None = None
    every_key: "Placement | None" = None
    part: Shard | None = None
    images: tuple[tuple[int, ...], ...] | None = None
    # what is known without reading a tensor is set by `knowing` alone: dataclasses.replace must not carry it over
    start: tuple[int, int] | None = field(default=None, init=False)
    diagonal: int | None = field(default=None, init=False)
    span: tuple[int, int] | None = field(default=None, init=False)
    if TYPE_CHECKING:
        _memo: dict[Hashable, Any] = field(init=False)
        _of_pass: dict[Hashable, Any] | None = field(init=False)

    def __post_init__(self) -> None:
        # no fields: dataclasses.replace, and what walks through dataclasses, such as FSDP, must not find them
        object.__setattr__(self, "_memo", {})
        object.__setattr__(self, "_of_pass", None)

    # ---------------------------------------------------------------- reading

    def __repr__(self) -> str:
        """What can be said in a line, and without reading a tensor."""
        queries, keys = self.q.shape[1], self.k.shape[1]
        facts = [f"{queries} quer{'y' if queries == 1 else 'ies'}", f"{keys} key{'s' if keys != 1 else ''}"]
        if self.start is not None:
            facts = [f"{fact} from {first}" for fact, first in zip(facts, self.start, strict=True)]
        if self.q.dim() == 3:
            facts.append(f"{self.q.shape[2]} axes")
        if len(self.q) > 1:
            facts.append(f"{len(self.q)} rows")
        said = {"causal": self.causal, "padded": self.valid is not None, "packed": self.k_document is not None}
        said |= {"a shard": self.part is not None, "a branch of a map": self.branch is not None}
        facts += [name for name, holds in said.items() if holds]
        return f"{type(self).__name__}({', '.join(facts)})"

    @property
    def num_queries(self) -> int:
        return self.q.shape[1]

    @property
    def num_keys(self) -> int:
        return self.k.shape[1]

    @property
    def axes(self) -> int:
        """Coordinates per token: 1 for text, 2 for images, 3 for video."""
        return 1 if self.q.dim() == 2 else self.q.shape[2]

    @property
    def fractional(self) -> bool:
        """Whether positions are numbers that need not be whole."""
        return self.q.is_floating_point() or self.k.is_floating_point()

    def of_images(self, known: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """What is known of each of `images`, as the queries and the keys that are of it have it: of (images, ...) numbers,
        (batch or 1, n or 1, ...) twice."""
        values = torch.tensor(known, device=self.q.device)
        if len(values) == 1 or self.q_document is None or self.k_document is None:
            return values[:, None], values[:, None]
        return values[self.q_document], values[self.k_document]

    def require_one_axis(self, user: str) -> None:
        """Refuse positions on a grid, for an encoding of one-dimensional positions.

        Raises:
            InputError: more than one coordinate per token.
        """
        if self.axes > 1:
            raise InputError(f"{user} takes one coordinate per token, these positions have {self.axes}")

    def require_whole(self, why: str, remedy: str = "pass the full sequence") -> None:
        """Refuse queries that are only some of a sequence's tokens, as with a cache, for what needs all of them.

        Raises:
            InputError: they are not as many as the keys.
        """
        if self.num_queries != self.num_keys:
            raise InputError(
                f"{why}, so it needs the whole sequence: only {self.num_queries} of {self.num_keys} tokens are here; "
                f"{remedy}"
            )

    @property
    def batch(self) -> int:
        """Rows that differ from one another; 1 when one row serves any batch."""
        return self.shared("batch", self._count_rows)

    def _count_rows(self) -> int:
        tensors = [getattr(self, name) for name in _TENSORS]
        return max(t.shape[0] for t in tensors if t is not None)

    def mask_mod(self) -> MaskMod:
        """Visibility in FlexAttention's signature, (batch, head, query index, key index) -> bool, broadcastable."""
        return visibility.mask_mod(self)

    def mask(self, first: int = 0, end: int | None = None) -> Tensor:
        """Visibility as a dense bool tensor, (batch or 1, 1, num_queries, num_keys): True where a query sees a key.
        first, end: for these queries only.

        Raises:
            InputError: they are no range of the queries.
        """
        check_range(first, end, self.num_queries)
        rows = (self.num_queries if end is None else end) - first
        b, h, i, j = grid_indices(self.batch, 1, rows, self.num_keys, self.q.device)
        return self.mask_mod()(b, h, i + first, j)

    @property
    def all_visible(self) -> bool:
        """True when it is known, without reading a tensor, that every query sees every key."""
        if not self.unmasked:
            return False
        return not self.causal or (self.diagonal is not None and self.diagonal >= self.num_keys - 1)

    @property
    def unmasked(self) -> bool:
        """True when nothing but causality restricts what a query sees."""
        return self.valid is None and self.q_valid is None and self.q_document is None

    def distances(self) -> Tensor | None:
        """Every distance that a query may have from a key, (span's length,) from the longest to the shortest; None
        where it is not known without reading a tensor."""
        if self.span is None:
            return None
        shortest, longest = self.span
        return torch.arange(longest, shortest - 1, -1, device=self.q.device)

    def lengths(self) -> Tensor:
        """Tokens in each query's own document (or row), (batch or 1, num_queries)."""
        if self.part is not None:
            return self.own(self.part.whole.lengths())
        return visibility.lengths(self)

    def visible_counts(self) -> Tensor:
        """How many keys each query sees, (batch or 1, num_queries)."""
        if self.branch is not None and self.branch.most is not None:
            return self._with(branch=None).visible_counts().clamp(max=self.branch.most)
        if self.every_key is not None:
            return self.every_key.visible_counts()
        if self.all_visible:
            return torch.full_like(self.q_order, self.num_keys)
        if self.valid is None and self.q_document is None and self.start is not None:
            return (self.q_order - self.k_order[:, :1] + 1).clamp(0, self.num_keys)
        return visibility.counts(self)

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """A value that follows from these positions and from what the key names, made once and without gradient. Positions
        that are derived from these start without it."""
        if torch.compiler.is_compiling():
            return make()
        if key not in self._memo:
            with torch.inference_mode(False), torch.no_grad():  # so that a later step may train on it
                self._memo[key] = make()
        return self._memo[key]

    def for_pass(self) -> Self:
        """A copy for one forward pass of a model, which alone may hold what its layers share with gradients: see `of_pass`."""
        found = self._with()
        if not torch.compiler.is_compiling():
            object.__setattr__(found, "_of_pass", {})
        return found

    @property
    def of_pass(self) -> dict[Hashable, Any] | None:
        """What the layers of one forward pass share, gradients included; it goes with the pass. None outside of one."""
        return self._of_pass

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_memo": {}, "_of_pass": None}  # copies are data alone

    def knowing(
        self,
        *,
        start: tuple[int, int] | None = None,
        diagonal: int | None = None,
        span: tuple[int, int] | None = None,
    ) -> Self:
        """These positions, just made, with what their maker knows of them: see the attributes."""
        for name, value in (("start", start), ("diagonal", diagonal), ("span", span)):
            object.__setattr__(self, name, value)
        return self

    def _with(self, **changes: Any) -> Self:
        """A copy in which what is known still holds."""
        known = {"start": self.start, "diagonal": self.diagonal, "span": self.span}
        return replace(self, **changes).knowing(**known)  # type: ignore[arg-type]

    def own(self, x: Tensor) -> Tensor:
        """The queries' share of what is known of every token of `whole`, (batch or 1, n, ...)."""
        return x if self.part is None else self.part.take(x)

    # ---------------------------------------------------------------- the same tokens otherwise

    def with_causal(self, causal: bool) -> Self:
        """The same tokens under another causality.

        Raises:
            InputError: causal with fewer keys than queries.
        """
        check_flags(causal=causal)
        if causal and self.num_keys < self.num_queries:
            raise InputError(
                f"{self.num_keys} keys for {self.num_queries} causal queries: causal keys include the queries' own"
            )
        return self if causal == self.causal else self.shared(("causal", causal), lambda: self._with(causal=causal))

    def at(self, branch: Branch | None) -> Self:
        """The same tokens, as one branch of a position map is asked to rotate them, or None. Where they are and who sees
        whom stays as it is."""
        return self.shared(("branch", branch), lambda: self._with(branch=branch))

    def keys(self, first: int, end: int) -> Self:
        """The same queries among keys first .. end - 1 alone; what they see is still counted among all.

        Raises:
            InputError: they are no range of the keys.
        """
        check_range(first, end, self.num_keys)
        if end is None:
            raise InputError(f"end=None: pass the key after the last one, at most {self.num_keys}")
        document = None if self.k_document is None else self.k_document[:, first:end]
        return replace(
            self, k=self.k[:, first:end], k_order=self.k_order[:, first:end], k_document=document,
            valid=None if self.valid is None else self.valid[:, first:end], every_key=self,
        ).knowing(
            start=None if self.start is None else (self.start[0], self.start[1] + first),
            diagonal=None if self.diagonal is None else self.diagonal - first,
        )  # fmt: skip

    def moved(self, place: Callable[[Tensor, Tensor], Tensor]) -> Self:
        """The same tokens elsewhere: place(positions, order) -> positions is applied to queries and to keys, both
        (batch or 1, n); what it gives is copied. Who sees whom stays as it is."""
        q = place(self.q, self.q_order).clone()  # the caller may change theirs later
        same = self.q is self.k and self.q_order is self.k_order
        k = q if same else place(self.k, self.k_order).clone()
        part = None if self.part is None else replace(self.part, whole=self.part.whole.moved(place))
        return replace(self, q=q, k=k, part=part, images=None).knowing(diagonal=self.diagonal)

    def coordinates(self, axes: int, user: str) -> tuple[Tensor, Tensor]:
        """q and k as (batch or 1, n, axes). A token with one coordinate, as text has, is at that number on every axis;
        an image, where three are asked for, is the first frame of a video.

        Raises:
            InputError: another number of axes.
        """
        if not is_whole(axes) or not 1 <= axes <= 16:
            raise InputError(f"axes={axes!r}: the coordinates of a token, from 1 to 16")
        if self.axes == 1 and self.q.dim() == 2:
            q = self.q[..., None].expand(-1, -1, axes)
            return q, q if self.k is self.q else self.k[..., None].expand(-1, -1, axes)
        if (self.axes, axes) == (2, 3):
            q = first_frame(self.q)
            return q, q if self.k is self.q else first_frame(self.k)
        if self.axes != axes:
            raise InputError(f"{user} takes {axes} coordinates per token (or one), these positions have {self.axes}")
        return self.q, self.k

    def to(self, device: torch.device | str) -> Self:
        """The same positions on another device.

        Raises:
            InputError: no device of this machine.
        """
        if device is None:
            raise InputError("device=None: pass a device, such as 'cpu'")
        check_device(device)
        moved = {n: t.to(device) for n in _TENSORS if (t := getattr(self, n)) is not None}
        part = None if self.part is None else replace(self.part, whole=self.part.whole.to(device))
        return self._with(**moved, part=part)

    def take(self, index: Ids) -> Self:
        """Some of the tokens, in this order: (m,) indices, or (batch, m), for each row its own. Patches are dropped (He et
        al. 2022, "MAE") or reordered so; who sees whom stays as it is.

        Tokens without a place are told apart by their order alone: of those in a document, the first stay the first.

        Raises:
            InputError: indices out of range or repeated, tokens without a place out of order or missing before others,
                or positions that are a shard or whose keys are not the queries.
        """
        self._check_complete("be taken apart")
        index = as_indices("index", index, self.num_queries, self.batch)
        q, order = taken(self.q, index), taken(self.q_order, index)
        document, valid, q_valid = (
            None if x is None else taken(x, index) for x in (self.q_document, self.valid, self.q_valid)
        )
        found = replace(
            self, q=q, k=q, q_order=order, k_order=order, valid=valid, q_valid=q_valid, q_document=document,
            k_document=document,
        ).knowing(span=self.span)  # fmt: skip
        if self.axes > 1 and not torch.compiler.is_compiling():
            before = taken(prefix_places(self.q, self.q_document), index)
            if not torch.equal(before, prefix_places(q, document)):
                raise InputError(
                    "index takes tokens without a place, such as [CLS], out of their order, or not the first"
                )
        return found

    def _check_complete(self, verb: str) -> None:
        """Refuse what is not all there is of a sequence, as queries and as keys."""
        if self.part is not None:
            raise InputError(f"these positions are a shard already and cannot {verb}: pass those of the whole sequence")
        same = all(a is b for a, b in ((self.q, self.k), (self.q_order, self.k_order)))
        if not same and not torch.compiler.is_compiling():
            same = torch.equal(self.q, self.k) and torch.equal(self.q_order, self.k_order)
        if not same or self.branch is not None or self.every_key is not None:
            raise InputError(
                f"{self.num_queries} queries that are not the {self.num_keys} keys cannot {verb}: pass the positions "
                "of a whole sequence, without a cache or cross-attention"
            )
