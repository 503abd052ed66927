"""Where tokens are: positions, validity, documents and causality of one forward pass, in one object."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from posenc import visibility
from posenc.checks import check_device, check_flags, checked, is_whole
from posenc.distributed.shards import Shard
from posenc.errors import InputError
from posenc.grids import between_text, cells, check_prefix, sizes_of
from posenc.ids import Ids, as_indices, as_mask, as_positions, check_range, first_frame, prefix_places, taken
from posenc.packing import MOST_TOKENS, counted, documents_of
from posenc.regions import Branch
from posenc.visibility import MaskMod, grid_indices

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")
_TENSORS = ("q", "k", "q_order", "k_order", "valid", "q_valid", "q_document", "k_document")


@dataclass(frozen=True, eq=False)
class Positions:
    """Where the queries and the keys of one attention call are, and which keys each query may see.

    Build it once per forward pass with one of the constructors; positions and mask come from the same object,
    so padding or packing cannot be half done.

    Attributes:
        q: positions of the queries, (batch or 1, num_queries) or (batch or 1, num_queries, axes); integer or float.
        k: positions of the keys, likewise.
        q_order, k_order: (batch or 1, n) integers: a causal query sees the keys whose order is not above its own.
            Kept apart from the positions, which may be shared by tokens, fractional or restart per document.
        causal: whether order restricts what a query sees.
        valid: (batch or 1, num_keys) bool; False marks padding. None: every key is valid.
        q_valid: (batch or 1, num_queries) bool, likewise; a query that is padding sees nothing.
        q_document, k_document: (batch or 1, n) integers; a query sees keys of its own document. None: one document.
        start: (first query position, first key position) when both run contiguously by ones, identically in every
            row, with nothing padded or packed: the case that fused paths recognise without reading a tensor.
        diagonal: a causal query at index i sees the keys up to index i + diagonal. None: rows differ, or unknown.
        span: (shortest, longest) distance that a query may have from a key. None: not known without reading a tensor.
        branch: the branch of a position map that a rotation is asked for, see `at`. None: there is no map.
        every_key: the positions with all keys of the call, where these have only some of them, see `keys`.
        part: the queries are those of one process, of a sequence that several have, see `shard`. None: of all.
        images: (height, width) or (frames, height, width), in patches, of the image that all tokens are of, or of the
            images of all documents or rows, by number. None: not known.
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
    start: tuple[int, int] | None = None
    diagonal: int | None = None
    span: tuple[int, int] | None = None
    branch: Branch | None = None
    every_key: "Positions | None" = None
    part: Shard | None = None
    images: tuple[tuple[int, ...], ...] | None = None
    _shared: dict[Hashable, object] = field(default_factory=dict, repr=False)

    # ---------------------------------------------------------------- constructors

    @classmethod
    @checked
    def arange(
        cls, n: int, offset: int | Tensor = 0, *, causal: bool = False, device: torch.device | str | None = None
    ) -> "Positions":
        """n new tokens that follow `offset` tokens of a KV cache: queries offset..offset+n-1, keys 0..offset+n-1.

        offset may be an int or a (batch,) tensor; rows of a ragged cache keep the key of position p in slot p, and
        slots that a shorter row has not filled are invalid.

        Raises:
            InputError: n < 1 or a negative offset.
        """
        check_device(device)
        if not 1 <= n <= MOST_TOKENS:
            raise InputError(f"n={n}: a sequence needs at least one token, and at most {MOST_TOKENS}")
        if isinstance(offset, Tensor):
            whole = not (offset.is_floating_point() or offset.dtype == torch.bool or offset.is_meta)
            if offset.dim() != 1 or 0 in offset.shape or not whole or not 0 <= int(offset.min()) <= MOST_TOKENS:
                raise InputError(f"offset={offset}: pass an int or a 1-D tensor of non-negative integers, one per row")
            if int(offset.max()) > MOST_TOKENS:
                raise InputError(f"offset={offset}: at most {MOST_TOKENS} tokens")
            device = offset.device if device is None else device
            offset = offset.to(device)
            q = offset[:, None] + torch.arange(n, device=device)
            k = torch.arange(int(offset.max()) + n, device=device)[None]
            within = k.shape[1] - 1
            valid = k < offset[:, None] + n
            return cls(q=q, k=k, q_order=q, k_order=k, causal=causal, valid=valid, span=(-within, within))
        if not 0 <= offset <= MOST_TOKENS:
            raise InputError(f"offset={offset}: the number of cached tokens lies between 0 and {MOST_TOKENS}")
        k = torch.arange(offset + n, device=device)[None]
        q = k if offset == 0 else k[:, offset:]
        span = 1 - n, offset + n - 1
        return cls(
            q=q, k=k, q_order=q, k_order=k, causal=causal, start=(offset, 0), diagonal=offset, span=span
        )  # fmt: skip

    @classmethod
    def from_ids(cls, position_ids: Ids, key_ids: Ids | None = None, *, causal: bool = False) -> "Positions":
        """Explicit positions: (n,), (batch, n) or (batch, n, axes), integer or fractional, in any order.

        key_ids, when given, are the positions of all keys (cached ones first), so the queries are the last tokens.

        Raises:
            InputError: a wrong rank, a non-finite value, or fewer keys than causal queries.
        """
        q = as_positions("position_ids", position_ids)
        k = q if key_ids is None else as_positions("key_ids", key_ids)
        k_order = torch.arange(k.shape[1], device=k.device)[None]
        q_order = torch.arange(k.shape[1] - q.shape[1], k.shape[1], device=q.device)[None]
        diagonal = k.shape[1] - q.shape[1]
        return cls(q=q, k=k, q_order=q_order, k_order=k_order, diagonal=diagonal).with_causal(causal)

    @classmethod
    def from_mask(cls, attention_mask: Ids, num_queries: int | None = None, *, causal: bool = False) -> "Positions":
        """Left or right padding, from a (batch, num_keys) mask of ones (token) and zeros (padding).

        The first real token of each row is at position 0; padding sees nothing. With a cache, `num_queries` says how many of the last
        columns are the queries of this call.

        Raises:
            InputError: the mask is not 2-D zeros and ones, or num_queries does not fit in it.
        """
        valid = as_mask("attention_mask", attention_mask)
        check_flags(causal=causal)
        keys = valid.shape[1]
        queries = keys if num_queries is None else num_queries
        if not is_whole(queries) or not 1 <= queries <= keys:
            raise InputError(f"num_queries={queries!r}: must lie between 1 and the mask's {keys} columns")
        k = (valid.long().cumsum(1) - 1).clamp(min=0)
        order = torch.arange(keys, device=k.device)[None]
        first = keys - queries
        q, q_order, q_valid = (k, order, valid) if first == 0 else (x[:, first:] for x in (k, order, valid))
        return cls(
            q=q, k=k, q_order=q_order, k_order=order, causal=causal, valid=valid, q_valid=q_valid,
            diagonal=first, span=(1 - keys, keys - 1),
        )  # fmt: skip

    @classmethod
    def packed(
        cls,
        lengths: Sequence[int] | Tensor | None = None,
        *,
        cu_seqlens: Sequence[int] | Tensor | None = None,
        document_ids: Tensor | None = None,
        causal: bool = False,
        device: torch.device | str | None = None,
    ) -> "Positions":
        """Several documents in one sequence; each starts at position 0 and sees only itself.

        Give one of: `lengths` of the documents; `cu_seqlens`, their cumulative starts with the total at the end
        (FlashAttention's convention); `document_ids`, (n,) or (batch, n), where negative ids mark padding.

        Raises:
            InputError: none or several of the three given, or lengths that are not positive.
        """
        check_device(device)
        check_flags(causal=causal)
        documents = documents_of(lengths, cu_seqlens, document_ids, device)
        ids, order = counted(documents), torch.arange(documents.shape[1], device=documents.device)[None]
        padded = torch.compiler.is_compiling() or int(documents.min()) < 0
        valid, last = documents >= 0 if padded else None, documents.shape[1] - 1
        return cls(
            q=ids, k=ids, q_order=order, k_order=order, causal=causal, valid=valid, q_valid=valid,
            q_document=documents, k_document=documents, diagonal=0, span=(-last, last),
        )  # fmt: skip

    @classmethod
    @checked
    def grid(
        cls,
        height: int,
        width: int,
        frames: int | None = None,
        *,
        prefix: int = 0,
        device: torch.device | str | None = None,
    ) -> "Positions":
        """Patches of an image, row by row, at (y, x); of a video, frame by frame, at (t, y, x).

        Positions are (1, prefix + height * width [* frames], 2 or 3). prefix: how many tokens that have no place in
        the image, such as [CLS], come first; they are at -1 on every axis (see `prefix_tokens`).

        Raises:
            InputError: a size below 1, or a negative prefix.
        """
        return cls.grids([(height, width) if frames is None else (height, width, frames)], prefix=prefix, device=device)

    @classmethod
    @checked
    def grids(
        cls,
        sizes: Sequence[Sequence[int]],
        *,
        prefix: int = 0,
        padded: bool = False,
        device: torch.device | str | None = None,
    ) -> "Positions":
        """Several images or videos, (height, width) or (height, width, frames) in patches each, as in `grid`.

        Packed in one sequence (Dehghani et al. 2023, "NaViT"): each is a document, which sees only itself, its own
        `prefix` tokens before its patches. padded=True: one row of the batch each, with padding at its end.

        Raises:
            InputError: no images, a size below 1, images next to videos, or a negative prefix.
        """
        check_device(device)
        check_prefix(prefix)
        images = sizes_of(sizes)
        rows = [cells(size, prefix, device) for size in images]
        ids, lengths = torch.cat(rows)[None], torch.tensor([len(row) for row in rows], device=rows[0].device)
        documents = valid = None
        if len(images) > 1 and padded:
            ids = pad_sequence(rows, batch_first=True)
            valid = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        elif len(images) > 1:
            documents = torch.repeat_interleave(torch.arange(len(rows), device=ids.device), lengths)[None]
        order = torch.arange(ids.shape[1], device=ids.device)[None]
        return cls(
            q=ids, k=ids, q_order=order, k_order=order, valid=valid, q_valid=valid, q_document=documents,
            k_document=documents, diagonal=0, images=tuple(images),
        )  # fmt: skip

    @classmethod
    @checked
    def mixed(
        cls,
        parts: Sequence[Any],
        num_queries: int | None = None,
        *,
        causal: bool = False,
        device: torch.device | str | None = None,
    ) -> "Positions":
        """Text and images in one sequence, at (t, y, x), as Qwen2-VL has them (Wang et al. 2024, section 2.1).

        parts: in the order of the sequence, a number of text tokens, or the (height, width) or (height, width, frames)
        of an image or a video in patches. A text token is at the same number on all axes; an image begins there on
        each axis; what follows goes on after the largest number on any. num_queries: with a cache, how many of the
        last tokens are the queries.

        Raises:
            InputError: a part that is neither, or num_queries that does not fit.
        """
        check_device(device)
        ids = between_text(parts, device)
        queries = len(ids) if num_queries is None else num_queries
        if not 1 <= queries <= len(ids):
            raise InputError(f"num_queries={queries}: must lie between 1 and the {len(ids)} tokens of parts")
        return cls.from_ids(ids[None, len(ids) - queries :], ids[None], causal=causal)

    @classmethod
    @checked
    def cross(cls, queries: "Positions", keys: "Positions") -> "Positions":
        """Cross-attention: where `queries` are, against where `keys` are and which of them are valid.

        Documents carry over when both sides are packed: document i of the queries sees document i of the keys. Where
        one side has one coordinate, as text has, and the other several, its tokens are at that number on every axis.

        Raises:
            InputError: sides of several coordinates that are not as many.
        """
        for name, side in (("queries", queries), ("keys", keys)):
            if side.q.device != queries.q.device or side.k.device != side.q.device:
                raise InputError(f"{name} are on {side.k.device}, queries on {queries.q.device}: move them with .to()")
        q, k, axes = queries.q, keys.k, max(queries.axes, keys.k.shape[2] if keys.k.dim() == 3 else 1)
        if q.dim() != k.dim():
            q, k = (x[..., None].expand(-1, -1, axes) if x.dim() == 2 else x for x in (q, k))
        if q.dim() == 3 and q.shape[2] != k.shape[2]:
            raise InputError(
                f"queries with {q.shape[2]} coordinates, keys with {k.shape[2]}: give both as many, or one"
            )
        together = queries.q_document is not None and keys.k_document is not None
        return cls(
            q=q, k=k, q_order=queries.q_order, k_order=keys.k_order, valid=keys.valid, q_valid=queries.q_valid,
            q_document=queries.q_document if together else None, k_document=keys.k_document if together else None,
        )  # fmt: skip

    def shard(
        self, rank: int, world_size: int, *, layout: str = "contiguous", group: "ProcessGroup | None" = None
    ) -> "Positions":
        """Of the positions of a whole sequence, those of the tokens that one process has, among all keys.

        rank, world_size: the process, of so many. layout: "contiguous" cuts the sequence into world_size parts;
        "zigzag" into twice as many, of which a process has the rank-th from the front and from the back: causal
        attention is then the same work for all. group: the processes that hold the sequence; None: all there are.
        `posenc.attention` and the models gather keys and values from them; without several processes nothing is sent.

        Raises:
            InputError: a rank out of range, an unknown layout, a length that cannot be cut into so many equal parts,
                positions whose keys are not the queries, as with a cache, or that are a shard already.
        """
        self._check_alone("be sharded")
        return Shard.of(self, rank, world_size, layout, group).positions()

    @checked
    def take(self, index: Ids) -> "Positions":
        """Some of the tokens, in this order: (m,) indices, or (batch, m), for each row its own. Patches are dropped (He et
        al. 2022, "MAE") or reordered so; who sees whom stays as it is.

        Tokens without a place are told apart by their order alone: of those in a document, the first stay the first.

        Raises:
            InputError: indices out of range or repeated, tokens without a place out of order or missing before others,
                or positions that are a shard or whose keys are not the queries.
        """
        self._check_alone("be taken apart")
        index = as_indices("index", index, self.num_queries, self.batch)

        q, order = taken(self.q, index), taken(self.q_order, index)
        document, valid, q_valid = (
            None if x is None else taken(x, index) for x in (self.q_document, self.valid, self.q_valid)
        )
        found = replace(
            self, q=q, k=q, q_order=order, k_order=order, valid=valid, q_valid=q_valid, q_document=document,
            k_document=document, start=None, diagonal=None, _shared={},
        )  # fmt: skip
        if self.axes > 1 and not torch.compiler.is_compiling():
            before = taken(prefix_places(self.q, self.q_document), index)
            if not torch.equal(before, prefix_places(q, document)):
                raise InputError(
                    "index takes tokens without a place, such as [CLS], out of their order, or not the first"
                )
        return found

    def _check_alone(self, verb: str) -> None:
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

    # ---------------------------------------------------------------- reading

    @property
    def whole(self) -> "Positions":
        """The positions of the whole sequence that a shard is of; else themselves.

        Raises:
            InputError: queries that are only some of the sequence's tokens, as with a cache.
        """
        if self.part is not None:
            return self.part.whole
        if self.num_queries != self.num_keys:
            raise InputError(
                f"the whole sequence is needed, but only {self.num_queries} of {self.num_keys} tokens are here"
            )
        return self

    def own(self, x: Tensor) -> Tensor:
        """The queries' share of what is known of every token of `whole`, (batch or 1, n, ...)."""
        return x if self.part is None else self.part.take(x)

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

    def extents(self) -> tuple[Tensor, Tensor] | None:
        """Size of the image that each query and each key is of, (batch or 1, n or 1, axes); None where not known."""
        if self.images is None:
            return None
        sizes = torch.tensor(self.images, device=self.q.device)
        if len(sizes) == 1:
            return sizes[None], sizes[None]
        if self.q_document is None or self.k_document is None:
            return sizes[:, None], sizes[:, None]
        return sizes[self.q_document], sizes[self.k_document]

    def require_one_axis(self, user: str) -> None:
        """Refuse positions on a grid, for an encoding of one-dimensional positions.

        Raises:
            InputError: more than one coordinate per token.
        """
        if self.axes > 1:
            raise InputError(f"{user} takes one coordinate per token, these positions have {self.axes}")

    @property
    def batch(self) -> int:
        """Rows that differ from one another; 1 when one row serves any batch."""
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
        return longest - torch.arange(longest - shortest + 1, device=self.q.device)

    def lengths(self) -> Tensor:
        """Tokens in each query's own document (or row), (batch or 1, num_queries)."""
        if self.part is not None:
            return self.own(self.part.whole.lengths())
        return visibility.lengths(self)

    def visible_counts(self) -> Tensor:
        """How many keys each query sees, (batch or 1, num_queries)."""
        if self.every_key is not None:
            return self.every_key.visible_counts()
        if self.branch is not None and self.branch.most is not None:
            return replace(self, branch=None).visible_counts().clamp(max=self.branch.most)
        if self.all_visible:
            return torch.full_like(self.q_order, self.num_keys)
        if self.valid is None and self.q_document is None and self.start is not None:
            return (self.q_order - self.k_order[:, :1] + 1).clamp(0, self.num_keys)
        return visibility.counts(self)

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """A value that every layer of this forward pass can share, made once. Only for values without gradient:
        the same Positions may serve several steps of training."""
        if torch.compiler.is_compiling():
            return make()
        if key not in self._shared:
            with torch.inference_mode(False), torch.no_grad():  # so that a later step may train on it
                self._shared[key] = make()
        return self._shared[key]  # type: ignore[return-value]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shared": {}}  # copies do not carry what encodings left here

    def with_causal(self, causal: bool) -> "Positions":
        """The same tokens under another causality.

        Raises:
            InputError: causal with fewer keys than queries.
        """
        check_flags(causal=causal)
        if causal and self.num_keys < self.num_queries:
            raise InputError(
                f"{self.num_keys} keys for {self.num_queries} causal queries: causal keys include the queries' own"
            )
        return self if causal == self.causal else replace(self, causal=causal)

    def at(self, branch: Branch) -> "Positions":
        """The same tokens, as one branch of a position map is asked to rotate them. Where they are and who sees whom
        stays as it is."""
        return replace(self, branch=branch)

    def keys(self, first: int, end: int) -> "Positions":
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
            valid=None if self.valid is None else self.valid[:, first:end],
            start=None if self.start is None else (self.start[0], self.start[1] + first),
            diagonal=None if self.diagonal is None else self.diagonal - first, span=None, every_key=self, _shared={},
        )  # fmt: skip

    def moved(self, place: Callable[[Tensor, Tensor], Tensor]) -> "Positions":
        """The same tokens elsewhere: place(positions, order) -> positions is applied to queries and to keys, both
        (batch or 1, n). Who sees whom stays as it is."""
        q = place(self.q, self.q_order)
        same = self.q is self.k and self.q_order is self.k_order
        k = q if same else place(self.k, self.k_order)
        part = None if self.part is None else replace(self.part, whole=self.part.whole.moved(place))
        return replace(self, q=q, k=k, start=None, span=None, part=part, _shared={})

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

    def to(self, device: torch.device | str) -> "Positions":
        """The same positions on another device.

        Raises:
            InputError: no device of this machine.
        """
        if device is None:
            raise InputError("device=None: pass a device, such as 'cpu'")
        check_device(device)
        moved = {n: t.to(device) for n in _TENSORS if (t := getattr(self, n)) is not None}
        part = None if self.part is None else replace(self.part, whole=self.part.whole.to(device))
        return replace(self, **moved, part=part, _shared={})
