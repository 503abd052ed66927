# SPDX-License-Identifier: Apache-2.0
"""`Positions`: positions, validity, documents and visibility of the tokens of one forward pass, in one object."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from posenc.errors import (
    InputError,
    check_flags,
    check_integers,
    check_tokens,
    check_value,
    holds_integers,
    not_none,
    refuse_in_program,
)
from posenc.positions.ids import (
    Device,
    Ids,
    as_indices,
    as_mask,
    as_padding,
    as_placed,
    as_positions,
    begins,
    check_order,
    check_prefix,
    check_range,
    document_lengths,
    documents_of,
    index_in_document,
    moved_to,
    prefix_mask,
    select,
    settled,
    tokens_of_images,
    unplaced_index,
)  # fmt: skip
from posenc.positions.shards import Shard, runs_of
from posenc.positions.visibility import PAIRS, Cut, Extent, Visibility, taken

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


class KeyRange(NamedTuple):
    """Of which positions some have keys first .. end - 1 alone, see `Positions.keys`."""

    full: "Positions"
    first: int
    end: int


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Positions(Visibility):
    """Positions of the queries and keys of one attention call, and which keys each query may see.

    Build it once per forward pass with one of the constructors; positions and mask come from the same object, so they
    agree about padding and packing. It is immutable: methods that derive other positions return a new object.
    """

    q: Tensor
    """Positions of the queries, (batch or 1, num_queries) or (batch or 1, num_queries, axes); integer or float"""
    k: Tensor
    """Positions of the keys, in the same form"""
    q_placed: Tensor | None = None
    """(batch or 1, n) bool; False marks tokens without a place, such as [CLS] and registers next to the patches of an
    image. They are at 0 on every axis, wherever others are moved; encodings neither rotate them nor give them a
    distance. None: every token has a place, as all text has."""
    k_placed: Tensor | None = None
    """Likewise, of the keys"""
    of_keys: KeyRange | None = None
    """The positions with all keys of the call, where these have only some of them, see `keys`"""
    sharding: Shard | None = None
    """The queries are those of one process, of a sequence that several have, see `shard`. None: of all."""
    images: tuple[tuple[int, ...], ...] | None = None
    """(height, width) or (frames, height, width), in patches, of the image that all tokens are of, or of the images of
    all documents or rows, by number. None: not known, as of tokens that were moved."""
    unchecked: tuple[Any, ...] = ()
    """Ids that somebody gave, wherever tokens are now, and what `with_causal` has to check of them, see
    `posenc.positions.ids.check_order`"""
    known: InitVar[Mapping[str, Extent | None] | None] = None
    """What the maker knows of q, k and their orders; of others it is read, where that makes no device wait"""
    extents: dict[str, Extent | None] = field(init=False)

    def __post_init__(self, known: Mapping[str, Extent | None] | None) -> None:
        known = known or {}
        extents: dict[str, Extent | None] = {}
        for names in (("q", "k"), ("q_order", "k_order")):
            q, k = getattr(self, names[0]), getattr(self, names[1])
            of_q = known[names[0]] if names[0] in known else Extent.of(q)
            of_k = known[names[1]] if names[1] in known else of_q if k is q else Extent.of(k)
            extents[names[0]], extents[names[1]] = of_q, of_k
        object.__setattr__(self, "extents", extents)
        self._relate(*extents.values())

    # ---------------------------------------------------------------- construct

    @classmethod
    def arange(cls, n: int, offset: int | Tensor = 0, *, causal: bool = False, device: Device = None) -> "Positions":
        """n new tokens that follow `offset` tokens of a KV cache: queries offset..offset+n-1, keys 0..offset+n-1.

        offset may be an int or a (batch,) tensor; rows of a ragged cache keep the key of position p in slot p, and
        slots that a shorter row has not filled are invalid.

        Raises:
            InputError: n < 1, a negative offset, or more than 2^27 tokens.
        """
        check_flags(causal=causal)
        check_integers(1, n=n)
        if isinstance(offset, Tensor):
            refuse_in_program(
                "offset is a tensor: its values give the number of keys",
                "pad the cache on the left and pass Positions.from_mask(mask, num_queries)",
            )
            if offset.dim() != 1 or 0 in offset.shape or not holds_integers(offset) or int(offset.min()) < 0:
                raise InputError("pass an int or a 1-D tensor of non-negative integers, one per row", offset=offset)
            check_tokens(int(offset.max()) + n, offset=offset, n=n)
            offset = offset.to(offset.device if device is None else device)
            q = offset[:, None] + torch.arange(n, device=offset.device)
            made = cls._among_slots(q, int(offset.max()) + n, causal=causal)
            return made.derived(valid=made.k < offset[:, None] + n)
        check_integers(0, offset=offset)
        check_tokens(offset + n, offset=offset, n=n)
        return cls._among_slots(None, offset + n, Extent(offset, offset + n - 1, True), causal=causal, device=device)

    @classmethod
    def from_ids(
        cls, position_ids: Ids, key_ids: Ids | None = None, *, causal: bool = False, packed: bool | None = None,
        placed: Ids | None = None,
    ) -> "Positions":  # fmt: skip
        """Explicit positions: (n,), (batch, n) or (batch, n, axes), integer or fractional, of any sign.

        key_ids, when given, are the positions of all keys (cached ones first), so the queries are the last tokens; for keys in
        slots of which some are not filled yet, `in_slots`.
        packed: what it means that a position on one axis is not above the one before it. True: a document starts there,
        which sees only itself. False: nothing; the row is one text, whose positions come in any order. None: nothing,
        but positions that fall are refused once they are causal, where a document would silently see those before it.
        placed: of coordinates on several axes, (n,) or (batch, n) ones and zeros, for all keys: zero marks a token without
        a place, such as [CLS], whose coordinates are not read (see `q_placed`). None: all have one.

        Raises:
            InputError: a wrong rank, a non-finite value, fewer keys than causal queries, causal queries that are not the last
                keys, positions that fall where they are causal and `packed` is not given, or packed or placed where they
                do not apply.
        """
        q = as_positions("position_ids", position_ids)
        k = q if key_ids is None else as_positions("key_ids", key_ids)
        check_flags(causal=causal, **({} if packed is None else {"packed": packed}))
        first, checks = k.shape[1] - q.shape[1], [] if k is q else ["last"]
        if packed:
            if first < 0 or k.dim() == 3:
                others = "of others pass document ids to Positions.packed, or sizes to grids"
                raise InputError(f"reads documents from positions on one axis, of all keys: {others}", packed=True)
            documents = begins(k, torch.le).cumsum(1)
        elif packed is None and k.dim() == 2:
            checks.append("falls")
        q_placed = k_placed = None
        if placed is not None:
            q, k, q_placed, k_placed = as_placed(placed, q, k)
        order, last = torch.arange(k.shape[1], device=k.device)[None], k.shape[1] - 1
        q_order = order if k is q else torch.arange(first, last + 1, device=q.device)[None]
        made = cls(
            q=q, k=k, q_order=q_order, k_order=order, q_document=documents[:, first:] if packed else None,
            k_document=documents if packed else None, q_placed=q_placed, k_placed=k_placed, unchecked=(q, k, *checks),
            known={"q_order": Extent(first, last, True), "k_order": Extent(0, last, True)},
        )  # fmt: skip
        return made.with_causal(causal)

    @classmethod
    def from_mask(cls, attention_mask: Ids, num_queries: int | None = None, *, causal: bool = False) -> "Positions":
        """Left or right padding, from a (batch, num_keys) mask of ones (token) and zeros (padding).

        The first real token of each row is at position 0; padding sees nothing. With a cache, `num_queries` says how
        many of the last columns are the queries of this call. Of a mask in which True hides, `from_padding`: a row without a
        token, which such a mask often has, is warned of.

        Raises:
            InputError: the mask is not 2-D zeros and ones, or num_queries does not fit in it.
        """
        valid = as_mask("attention_mask", attention_mask)
        check_flags(causal=causal)
        if not torch.compiler.is_compiling() and not bool(valid.any(1).all()):
            warnings.warn(
                f"posenc: row {int((~valid.any(1)).nonzero()[0])} of the mask has no token, and its outputs are zeros: "
                "Positions.from_mask takes ones for tokens, Positions.from_padding True for padding (PyTorch's key_padding_mask)",
                stacklevel=2,
            )
        return cls.of_tokens(None, num_queries, causal, valid)

    @classmethod
    def from_padding(
        cls, key_padding_mask: Ids, num_queries: int | None = None, *, causal: bool = False
    ) -> "Positions":
        """`from_mask`, of a (batch, num_keys) mask in which True, or minus infinity, is padding: nn.MultiheadAttention's
        key_padding_mask, nn.TransformerEncoder's src_key_padding_mask.

        Raises:
            InputError: what `from_mask` refuses.
        """
        return cls.from_mask(~as_padding("key_padding_mask", key_padding_mask), num_queries, causal=causal)

    @classmethod
    def in_slots(cls, position_ids: Ids, slots: int) -> "Positions":
        """Causal tokens at (n,) or (batch, n) integers, among keys that lie in so many slots of a static cache: the key of position
        p in slot p. A token sees the slots up to its own, whatever the others hold.

        Nothing is read from position_ids, so they may be an input of a compiled or exported program.

        Raises:
            InputError: fractional ids or several axes, or, where they can be read, a position outside of the slots.
        """
        check_integers(1, slots=slots)
        check_tokens(slots, slots=slots)
        q = as_positions("position_ids", position_ids)
        if q.dim() != 2 or q.is_floating_point():
            raise InputError("pass integers (n,) or (batch, n)", position_ids=position_ids)
        found = Extent.of(q)
        if found is not None and not 0 <= found.low <= found.high < slots:
            raise InputError(f"positions from {found.low} to {found.high} lie in slots 0 .. {slots - 1}", slots=slots)
        return cls._among_slots(q, slots, found, causal=True)

    @classmethod
    def _among_slots(
        cls, q: Tensor | None, slots: int, of_q: Extent | None = None, *, causal: bool, device: Any = None
    ) -> "Positions":
        """Queries at q, or the last ones, among keys 0 .. slots - 1, in this order. of_q: what is known of q."""
        k, of_k = torch.arange(slots, device=device if q is None else q.device)[None], Extent(0, slots - 1, True)
        of_q = of_q or Extent(0, slots - 1)
        if q is None:
            q = k if of_q.low == 0 else k[:, of_q.low :]
        known = {"q": of_q, "k": of_k, "q_order": of_q, "k_order": of_k}
        return cls(q=q, k=k, q_order=q, k_order=k, causal=causal, known=known)

    @classmethod
    def packed(
        cls, lengths: Sequence[int] | Tensor | None = None, *, cu_seqlens: Sequence[int] | Tensor | None = None,
        document_ids: Tensor | None = None, slots: int | None = None, causal: bool = False, device: Device = None,
    ) -> "Positions":  # fmt: skip
        """Several documents in one sequence; each starts at position 0 and sees only itself.

        Give one of: `lengths` of the documents; `cu_seqlens`, their cumulative starts with the total at the end
        (FlashAttention's convention, repeated for documents of no tokens, as where totals pad it); `document_ids`, (n,) or
        (batch, n), where negative ids mark padding, at position 0. slots: of a sequence of static length, of which the documents
        fill the first; the others are padding, whatever they hold.

        Raises:
            InputError: none or several of the three given, lengths that are not positive, fewer slots than tokens, or more than 2^27.
        """
        check_flags(causal=causal)
        documents = documents_of(lengths, cu_seqlens, document_ids, device)
        if slots is not None:
            check_integers(documents.shape[1], slots=slots)
            check_tokens(slots, slots=slots)
            documents = torch.nn.functional.pad(documents, (0, slots - documents.shape[1]), value=-1)
        padded = torch.compiler.is_compiling() or int(documents.min()) < 0
        valid, last, ids = documents >= 0 if padded else None, documents.shape[1] - 1, index_in_document(documents)
        ids = ids if valid is None else ids * valid  # padding may be longer than any document, and than a table
        return cls.of_tokens(ids, None, causal, valid, documents, extent=Extent(0, last))

    @classmethod
    def prefix_lm(
        cls, prefix_lengths: int | Sequence[int] | Tensor, n: int, offset: int | Tensor = 0, *, device: Device = None
    ) -> "Positions":
        """A prefix that sees itself in both directions, and causal tokens after it (Raffel et al. 2020, section 3.2.1).

        prefix_lengths: tokens of the prefix, an int or one for each row, (batch,). n, offset: as in `arange`; a prefix is
        passed in one call. With padding or packed documents: `with_prefix`.

        Raises:
            InputError: what `arange` and `with_prefix` refuse.
        """
        return cls.arange(n, offset, causal=True, device=device).with_prefix(prefix_lengths)

    @classmethod
    def grid(
        cls, height: int, width: int, frames: int | None = None, *, prefix: int = 0, device: Device = None
    ) -> "Positions":
        """Patches of an image, row by row, at (y, x); of a video, frame by frame, at (t, y, x).

        Positions are (1, prefix + height * width [* frames], 2 or 3). prefix: how many tokens without a place in the
        image, such as [CLS], come first (see `q_placed`).

        Raises:
            InputError: a size below 1, or a negative prefix.
        """
        return cls.grids([(height, width) if frames is None else (height, width, frames)], prefix=prefix, device=device)

    @classmethod
    def grids(
        cls, sizes: Sequence[Sequence[int]], *, prefix: int = 0, padded: bool = False, device: Device = None
    ) -> "Positions":
        """Several images or videos, (height, width) or (height, width, frames) in patches each, as in `grid`.

        Packed in one sequence (Dehghani et al. 2023, "NaViT"): each is a document, which sees only itself, its own
        `prefix` tokens before its patches. padded=True: one row of the batch each, with padding at its end.

        Raises:
            InputError: no images, a size below 1, images next to videos, a negative prefix, or more than 2^27 tokens.
        """
        check_integers(0, prefix=prefix)
        ids, valid, documents, placed, images = tokens_of_images(sizes, prefix, padded, device)
        return cls.of_tokens(ids, None, False, valid, documents, placed, images)

    @classmethod
    def of_tokens(
        cls, ids: Tensor | None, num_queries: int | None = None, causal: bool = False, valid: Tensor | None = None,
        documents: Tensor | None = None, placed: Tensor | None = None,
        images: tuple[tuple[int, ...], ...] | None = None, extent: Extent | None = None,
    ) -> "Positions":  # fmt: skip
        """Tokens in their order, at (batch or 1, n) or (batch or 1, n, axes) ids that nobody changes later, of which those that are
        `valid` are no padding; the queries are the last of them. num_queries None: all. ids None: counted among the valid ones."""
        if ids is None:
            assert valid is not None
            ids, extent = (valid.long().cumsum(1) - 1).clamp(min=0), Extent(0, valid.shape[1] - 1)
        check_integers(1, ids.shape[1], **not_none(num_queries=num_queries))
        order, count = torch.arange(ids.shape[1], device=ids.device)[None], ids.shape[1]
        line = Extent(0, count - 1, True)
        made = cls(
            q=ids, k=ids, q_order=order, k_order=order, causal=causal, valid=valid, q_valid=valid, q_document=documents,
            k_document=documents, q_placed=placed, k_placed=placed, images=images,
            known={"q_order": line, "k_order": line, **({} if extent is None else {"q": extent, "k": extent})},
        )  # fmt: skip
        return made if num_queries in (None, count) else made.select(slice(count - num_queries, None), None)

    @classmethod
    def cross(cls, queries: "Positions", keys: "Positions") -> "Positions":
        """Cross-attention: where `queries` are, against where `keys` are and which of them are valid.

        Documents carry over when both sides are packed: document i of the queries sees document i of the keys; and so does a
        mask beside either side (`counted`). Causality, prefixes, windows and blocks are about one sequence, and have no part
        in this. Where one side has one coordinate, as text has, and the other several, its tokens are at that number on every axis.

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
            raise InputError(f"queries with {q.shape[2]} coordinates, keys with {k.shape[2]}: give as many, or one")
        together = queries.q_document is not None and keys.k_document is not None
        of = [("q", queries, q), ("k", keys, k)]
        known = {x: side.extents[x] for name, side, at in of for x in (name, f"{name}_order") if at.dim() == 2}
        apart = q.dim() == 2 and any(known[x] is None or known[x] != known[f"{x}_order"] for x in "qk")
        return cls(
            q=q, k=k, q_order=queries.q_order, k_order=keys.k_order, valid=keys.valid, q_valid=queries.q_valid,
            q_placed=queries.q_placed, k_placed=keys.k_placed, counted=queries.counted and keys.counted,
            q_document=queries.q_document if together else None, k_document=keys.k_document if together else None,
            known=known, unchecked=(q, k, "cross") if apart else (),
        )  # fmt: skip

    # ---------------------------------------------------------------- derive

    def derived(self, **changes: Any) -> Self:
        """A copy with these attributes changed; everything else, and what is known of it, goes along. No dataclass, for which
        `dataclasses.replace` would do: code that rebuilds and casts those among a module's inputs, as FSDP's mixed precision
        does, would round positions."""
        known = {name: extent for name, extent in self.extents.items() if name not in changes}
        known |= changes.pop("known", {})
        return type(self)(**{name: getattr(self, name) for name in FIELDS} | changes, known=known)

    def select(self, of_q: Cut, of_k: Cut, **changes: Any) -> Self:
        """The same for some of the queries and some of the keys: whatever there is of each token, of these."""
        made: dict[str, Any] = {"prefix": taken(self.prefix, of_k)}
        known: dict[str, Extent | None] = {}
        for q_name, k_name in PAIRS:
            q, k = getattr(self, q_name), getattr(self, k_name)
            made[q_name] = taken(q, of_q)
            made[k_name] = made[q_name] if k is q and of_q is of_k else taken(k, of_k)
            for name, x, cut in ((q_name, q, of_q), (k_name, k, of_k)):
                if extent := self.extents.get(name):
                    known[name] = extent.cut(cut, x.shape[1])
        made["blocks"] = tuple(each._replace(q=taken(each.q, of_q), k=taken(each.k, of_k)) for each in self.blocks)
        return self.derived(**made, **{"known": known} | changes)

    def _everywhere(self, change: "Callable[[Positions], Positions]") -> "Positions | None":
        """A change of all tokens of which these are some, made to all of them, and then of these. None: they are all."""
        if self.of_keys is not None:
            return change(self.of_keys.full).keys(self.of_keys.first, self.of_keys.end)
        return None if self.sharding is None else self.sharding.of(change(self.sharding.full))

    def with_causal(self, causal: bool) -> "Positions":
        """The same tokens under another causality.

        Raises:
            InputError: causal with fewer keys than queries, with positions of `from_ids` that fall, which may be those of
                packed documents, or whose queries are not the last keys, or with positions of `cross` of two sequences.
        """
        check_flags(causal=causal)
        if causal and self.num_keys < self.num_queries and self.of_keys is None:
            raise InputError(f"{self.num_keys} keys for {self.num_queries} causal queries, whose own are among them")
        if causal == self.causal:
            return self
        if causal and self.unchecked:
            self.shared("checked", lambda: check_order(*self.unchecked))
        return self.shared(
            ("causal", causal),
            lambda: self._everywhere(lambda all: all.with_causal(causal)) or self.derived(causal=causal, unchecked=()),
        )

    def with_prefix(self, prefix_lengths: int | Sequence[int] | Tensor) -> "Positions":
        """The same tokens, causal, but for a prefix at the beginning of each row, or of each packed document, all of whose
        tokens see one another.

        prefix_lengths: its tokens, padding not counted: an int; one for each row, (batch,); of packed documents one for
        each by its number, (documents,) or (batch, documents).

        Raises:
            InputError: another shape, lengths below 0 or above the tokens there are, or queries that begin inside the prefix
                (with a cache, the prefix is passed in one call).
        """
        if made := self._everywhere(lambda all: all.with_prefix(prefix_lengths)):
            return made
        valid = torch.ones_like(self.k_order, dtype=torch.bool) if self.valid is None else self.valid
        prefix = prefix_mask(prefix_lengths, self.k_document, valid, self.batch)
        if self.num_queries < self.num_keys and not torch.compiler.is_compiling():
            check_prefix(prefix_lengths, prefix, self.q_order - self.k_order[:, :1], self.batch)
        return self.with_causal(True).derived(prefix=prefix)

    def with_window(self, before: int | None, after: int | None = 0) -> "Positions":
        """The same tokens, each of which sees at most `before` tokens before it and `after` tokens after it, and itself; None:
        no limit on that side (FlashAttention's window_size=(before, after)). transformers' sliding_window=w is
        with_window(w - 1). Tokens are counted by their order, padding and other documents between them too. Causal queries
        see nothing after themselves whatever `after` says; the window restricts what a prefix sees, too.

        Raises:
            InputError: what is neither None nor an integer of at least 0.
        """
        check_integers(0, **not_none(before=before, after=after))
        window = None if before is None and after is None else (before, after)
        return self.shared(
            ("window", window),
            lambda: self._everywhere(lambda all: all.with_window(before, after)) or self.derived(window=window),
        )

    def with_blocks(self, size: int, table: Tensor | None = None) -> "Positions":
        """The same tokens, in blocks of `size`: those of query block a see those of key block b where table[a, b], as in
        block-sparse attention (Child et al. 2019; Zaheer et al. 2020). The CPU's attention skips the others.

        table: bool, (query blocks, key blocks) or, for each row, (batch, query blocks, key blocks); None: each block sees
        itself. Tokens are counted by their order from the first of each row, padding in front left out, or of each packed
        document. Causality, windows and other blocks hold as well.

        Raises:
            InputError: a size below 1, or a table of another shape or dtype or with fewer blocks than the tokens take.
        """
        check_integers(1, size=size)
        if table is not None:
            check_value("table", table, Tensor)
            if table.dtype != torch.bool or table.dim() not in (2, 3):
                raise InputError("pass bool ([batch,] query blocks, key blocks)", table=table)
        if made := self._everywhere(lambda all: all.with_blocks(size, table)):
            return made
        return self.derived(blocks=(*self.blocks, self.in_blocks(size, table)))

    def keys(self, first: int, end: int) -> "Positions":
        """The same queries among keys first .. end - 1 alone; what they see is still counted among all.

        Raises:
            InputError: they are no range of the keys.
        """
        check_range(first, end, self.num_keys)
        return self.select(None, slice(first, end), of_keys=KeyRange(self, first, end))

    def of_side(self, side: Literal["q", "k"]) -> "Positions":
        """The tokens of the queries, or of the keys, on both sides."""
        one = {pair: pair[side == "k"] for pair in PAIRS}
        both = {name: getattr(self, of) for pair, of in one.items() for name in pair}
        known = {name: self.extents[of] for pair, of in one.items() for name in pair if of in self.extents}
        blocks = tuple(each._replace(q=getattr(each, side), k=getattr(each, side)) for each in self.blocks)
        prefix = None if side == "q" else self.prefix  # which says nothing of queries
        return self.derived(**both, prefix=prefix, blocks=blocks, of_keys=None, known=known)

    def moved(self, move: Callable[[Tensor, Tensor], Tensor]) -> "Positions":
        """The same tokens at other positions: move(positions, order) -> positions is applied to queries and to keys, both
        (batch or 1, n); the result is copied. Visibility is unchanged. Tokens without a place stay without one; moved to
        one axis, as text has, every token is at its number.

        Raises:
            InputError: move returns what is no tensor of finite numbers for as many tokens.
        """
        if made := self._everywhere(lambda all: all.moved(move)):
            return made
        q = settled(moved_to(move(self.q, self.q_order), self.q), self.q_placed)
        same = self.q is self.k and self.q_order is self.k_order
        k = q if same else settled(moved_to(move(self.k, self.k_order), self.k), self.k_placed)
        of_q, of_k = (None, None) if q.dim() == 2 else (self.q_placed, self.k_placed)
        return self.derived(q=q, k=k, q_placed=of_q, k_placed=of_k, images=None)

    def take(self, index: Ids) -> "Positions":
        """Some of the tokens, in this order: (m,) indices, or (batch, m), one row each. Patches are dropped (He et al. 2022,
        "MAE") or reordered so; visibility is unchanged.

        Tokens without a place, such as [CLS], differ by their order alone: of those in a document, the first stay the
        first.

        Raises:
            InputError: indices out of range or repeated, tokens without a place out of order or missing before others,
                or positions that are a shard or whose keys are not the queries.
        """
        self.require_complete("be taken apart")
        index = as_indices("index", index, self.num_queries, self.batch)
        of_index = partial(select, index=index)
        made = self.select(of_index, of_index)
        if self.q_placed is not None and made.q_placed is not None and not torch.compiler.is_compiling():
            before = select(unplaced_index(self.q_placed, self.q_document), index)
            if not torch.equal(before, unplaced_index(made.q_placed, made.q_document)):
                what = "tokens without a place, such as [CLS], out of their order, or not the first"
                raise InputError(f"index takes {what}")
            if bool(made.q_placed.all()):
                return made.derived(q_placed=None, k_placed=None)
        return made

    def to(self, device: torch.device | str) -> "Positions":
        """The same positions on another device.

        Raises:
            InputError: no device of this machine.
        """
        if device is None:
            raise InputError("pass a device, such as 'cpu'", device=None)
        moved: dict[int, Tensor] = {}

        def move(x: Tensor) -> Tensor:
            # one tensor stays one: by that others see that queries and keys are the same tokens
            return moved[id(x)] if id(x) in moved else moved.setdefault(id(x), x.to(device))

        made = self.select(move, move, known=self.extents)
        blocks = tuple(x if x.table is None else x._replace(table=x.table.to(device)) for x in made.blocks)
        of_keys = self.of_keys and self.of_keys._replace(full=self.of_keys.full.to(device))
        sharding = self.sharding and self.sharding._replace(full=self.sharding.full.to(device))
        unchecked = tuple(move(x) if isinstance(x, Tensor) else x for x in self.unchecked)
        return made.derived(blocks=blocks, of_keys=of_keys, sharding=sharding, unchecked=unchecked)

    def shard(
        self, rank: int, world_size: int, *, layout: str = "contiguous", group: "ProcessGroup | None" = None
    ) -> "Positions":
        """The positions of the tokens that one process has of a sequence, among all keys.

        rank, world_size: the process, of so many. layout: "contiguous" cuts the sequence into world_size parts;
        "zigzag" into twice as many, of which a process has the rank-th from the front and from the back: causal
        attention is then the same work for all. group: the processes that have the sequence; None: all there are.
        `posenc.attention` and the models gather keys and values from them; without several processes nothing is sent.
        What restricts a shard afterwards, as `with_window` does, restricts the full sequence.

        Raises:
            InputError: a rank out of range, an unknown layout, a length that cannot be cut into so many equal parts,
                positions whose keys are not the queries, as with a cache, or that are a shard already.
        """
        self.require_complete("be sharded")
        runs = runs_of(self.num_queries, rank, world_size, layout)
        return Shard(self, rank, world_size, layout, runs, group=group).of(self)

    def local(self, x: Tensor) -> Tensor:
        """The part of a shard's tokens of a tensor with a row for each of the full sequence, (batch or 1, n, ...)."""
        return x if self.sharding is None else self.sharding.take(x)

    def require_complete(self, verb: str) -> None:
        """Refuse what is not all tokens of a sequence, as queries and as keys."""
        if self.sharding is not None:
            raise InputError(f"these positions are a shard already and cannot {verb}: pass those of the full sequence")
        same = all(a is b for a, b in ((self.q, self.k), (self.q_order, self.k_order)))
        if not same and not torch.compiler.is_compiling():
            same = torch.equal(self.q, self.k) and torch.equal(self.q_order, self.k_order)
        if not same or self.of_keys is not None:
            what = f"{self.num_queries} queries that are not the {self.num_keys} keys"
            raise InputError(f"{what} cannot {verb}: pass the positions of a full sequence, without a cache")

    # ---------------------------------------------------------------- ask: sizes and coordinates

    def __repr__(self) -> str:
        """One line, written without reading a tensor."""
        queries, keys = self.q.shape[1], self.k.shape[1]
        facts = [f"{queries} quer{'y' if queries == 1 else 'ies'}", f"{keys} key{'s' if keys != 1 else ''}"]
        if self.start is not None:
            facts = [f"{fact} from {first}" for fact, first in zip(facts, self.start, strict=True)]
        if self.q.dim() == 3:
            facts.append(f"{self.q.shape[2]} axes")
        if self.q.shape[0] > 1:
            facts.append(f"{self.q.shape[0]} rows")
        properties = {"causal": self.causal, "padded": self.valid is not None, "packed": self.k_document is not None}
        properties |= {"some tokens without a place": self.q_placed is not None or self.k_placed is not None}
        properties |= {"with a prefix": self.prefix is not None, f"window {self.window}": self.window is not None}
        properties |= {"in blocks": bool(self.blocks)}
        properties |= {"a shard": self.sharding is not None, "a branch of a map": self.branch is not None}
        facts += [name for name, holds in properties.items() if holds]
        return f"{type(self).__name__}({', '.join(facts)})"

    @property
    def axes(self) -> int:
        """Coordinates per token: 1 for text, 2 for images, 3 for video."""
        return 1 if self.q.dim() == 2 else self.q.shape[2]

    @property
    def fractional(self) -> bool:
        """Whether positions are of a floating dtype."""
        return self.q.is_floating_point() or self.k.is_floating_point()

    def lengths(self) -> Tensor:
        """Tokens in each query's own document (or row), (batch or 1, num_queries).

        Raises:
            InputError: a mask beside these positions may separate documents (`counted`).
        """
        self.require_counted()
        if self.sharding is not None:
            return self.local(self.sharding.full.lengths())
        if self.of_keys is not None:
            return self.of_keys.full.lengths()
        if self.q_document is None and self.valid is None:
            return torch.full_like(self.q_order, self.num_keys)
        of_keys = document_lengths(self.k_document, self.valid, self.k_order)
        return self.as_keys(of_keys, lambda: document_lengths(self.q_document, self.q_valid, self.q_order))

    def require_one_axis(self, user: str) -> None:
        """Check that positions are one-dimensional, for an encoding that needs this."""
        if self.q.dim() > 2 and self.axes > 1:
            raise InputError(f"{user} takes one coordinate per token, these positions have {self.axes}")

    def require_integers(self, user: str, remedy: str = "round the positions") -> None:
        """Check that positions are integers, for an encoding that counts by them."""
        if self.fractional:
            raise InputError(f"{user} takes integer positions only: {remedy}")

    def visible_counts(self) -> Tensor:
        """How many keys each query sees, (batch or 1, num_queries).

        Raises:
            InputError: a mask beside these positions hides more (`counted`).
        """
        counts = super().visible_counts() if self.of_keys is None else self.of_keys.full.visible_counts()
        most = None if self.branch is None else self.branch.most
        return counts if most is None else counts.clamp(max=most)


FIELDS = tuple(each.name for each in fields(Positions) if each.init)
for _class in (Positions, Visibility):  # see `Positions.derived`
    del _class.__dataclass_fields__
