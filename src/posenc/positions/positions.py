# SPDX-License-Identifier: Apache-2.0
"""`Positions`: positions, validity, documents and visibility of the tokens of one forward pass, in one object."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from posenc.errors import (
    InputError,
    as_numbers,
    check_flags,
    check_integers,
    check_tokens,
    check_value,
    holds_integers,
    refuse_in_program,
)
from posenc.positions.chunks import runs_of
from posenc.positions.ids import (
    Ids,
    as_indices,
    as_mask,
    as_positions,
    begins,
    check_range,
    document_lengths,
    documents_of,
    first_frame,
    index_in_document,
    patch_coordinates,
    prefix_mask,
    select,
    sizes_of,
    unplaced_index,
)  # fmt: skip
from posenc.positions.memory import Memory, again_alone, is_learned, world
from posenc.positions.multimodal import create_rule, multimodal_ids
from posenc.positions.visibility import (
    EVERYTHING,
    Branch,
    DraftTree,
    Hidden,
    MaskMod,
    Region,
    VisibleBlocks,
    Window,
    count_between,
    grid_indices,
    rowwise,
)  # fmt: skip

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")
_TENSORS = (
    "q", "k", "q_order", "k_order", "valid", "q_valid", "q_document", "k_document", "q_placed", "k_placed", "prefix",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Shard:
    """The part of a sequence that one process has, made by `Positions.shard`.

    Attributes:
        full: the positions of the full sequence.
        rank, world_size: the process, of so many.
        layout: "contiguous" or "zigzag", see `Positions.shard`.
        runs: the tokens, as first and end of consecutive ones.
        group: the processes that have the other parts; None: all there are.
    """

    full: "Positions" = field(repr=False)
    rank: int
    world_size: int
    layout: str
    runs: tuple[tuple[int, int], ...]
    group: Any = None

    @property
    def length(self) -> int:
        """Tokens of this part."""
        return sum(end - first for first, end in self.runs)

    def indices(self) -> Tensor:
        """Which tokens of the full sequence are here, (length,)."""
        device = self.full.q.device
        return torch.cat([torch.arange(first, end, device=device) for first, end in self.runs])

    def take(self, x: Tensor, dim: int = 1) -> Tensor:
        """This part of a tensor over the full sequence; one that is the same for every token stays."""
        if x.shape[dim] == 1 < self.full.num_queries:
            return x
        parts = [x.narrow(dim, first, end - first) for first, end in self.runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


@dataclass(frozen=True, eq=False, repr=False)
class Positions:
    """Positions of the queries and keys of one attention call, and which keys each query may see.

    Build it once per forward pass with one of the constructors; positions and mask come from the same object, so they
    agree about padding and packing. It is immutable: methods that derive other positions return a new object.
    """

    q: Tensor
    """Positions of the queries, (batch or 1, num_queries) or (batch or 1, num_queries, axes); integer or float"""
    k: Tensor
    """Positions of the keys, in the same form"""
    q_order: Tensor
    """(batch or 1, n) integers: a causal query sees the keys whose order is at most its own. Separate from the
    positions, which may be shared by tokens, fractional or restart per document."""
    k_order: Tensor
    """Likewise, of the keys"""
    causal: bool = False
    """Whether order restricts what a query sees"""
    valid: Tensor | None = None
    """(batch or 1, num_keys) bool; False marks padding. None: every key is valid."""
    q_valid: Tensor | None = None
    """(batch or 1, num_queries) bool, the same for queries; a query that is padding sees nothing"""
    q_document: Tensor | None = None
    """(batch or 1, n) integers; a query sees keys of its document. None: one document."""
    k_document: Tensor | None = None
    """Likewise, of the keys"""
    q_placed: Tensor | None = None
    """(batch or 1, n) bool; False marks tokens without a place, such as [CLS] and registers next to the patches of an
    image. They are at 0 on every axis, wherever others are moved; encodings neither rotate them nor give them a
    distance. None: every token has a place, as all text has."""
    k_placed: Tensor | None = None
    """Likewise, of the keys"""
    prefix: Tensor | None = None
    """(batch or 1, num_keys) bool: keys that causal queries before them see, too, see `with_prefix`"""
    window: Window | None = None
    """How many tokens before and after it a query sees, counted by their order, see `with_window`"""
    blocks: tuple[VisibleBlocks, ...] = ()
    """Which blocks of tokens see one another, see `with_blocks`; a query sees what all of them leave"""
    branch: Branch | None = None
    """The branch of a position map to rotate for, see `at`. None: there is no map."""
    full_keys: "Positions | None" = None
    """The positions with all keys of the call, where these have only some of them, see `keys`"""
    sharding: Shard | None = None
    """The queries are those of one process, of a sequence that several have, see `shard`. None: of all."""
    images: tuple[tuple[int, ...], ...] | None = None
    """(height, width) or (frames, height, width), in patches, of the image that all tokens are of, or of the images of
    all documents or rows, by number. None: not known, as of tokens that were moved."""
    counted: bool = True
    """Whether these positions say all of what is visible. False: a mask beside them hides more, as a 4-D mask of
    transformers does, so `visible_counts` and `lengths` refuse to count."""
    any_order: bool = True
    """Whether the positions of one causal text may fall. False: not declared, and `with_causal` refuses it."""
    gates: tuple[Tensor, ...] = ()
    """What an encoding made of the input of a layer, see `with_gates`"""
    # what is known without reading a tensor is set by `with_known` alone: dataclasses.replace must not carry it over
    start: tuple[int, int] | None = field(default=None, init=False)
    """(first query position, first key position) when both run contiguously by ones, identically in every row, with
    nothing padded or packed: the case that fused paths recognise without reading a tensor"""
    diagonal: int | None = field(default=None, init=False)
    """A causal query at index i sees the keys up to index i + diagonal, its order less that of key 0 where the orders
    run by ones. None: rows differ, there is a prefix, or unknown."""
    span: tuple[int, int] | None = field(default=None, init=False)
    """(shortest, longest) distance that a query may have from a key. None: not known without reading a tensor."""
    ungated: "Positions | None" = field(default=None, init=False)
    """The positions without gates"""
    if TYPE_CHECKING:
        _memory: ref[Memory] | None = field(init=False)

    def __post_init__(self) -> None:
        # no fields: dataclasses.replace, and what walks through dataclasses, such as FSDP, must not find them
        object.__setattr__(self, "_memory", None)

    origin = None
    """In a pass: the positions that it was made of"""
    _part = None
    """In a pass: these positions, if they are derived from its own"""

    # ---------------------------------------------------------------- construct

    @classmethod
    def arange(
        cls, n: int, offset: int | Tensor = 0, *, causal: bool = False, device: torch.device | str | None = None
    ) -> "Positions":
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
            device = offset.device if device is None else device
            offset = offset.to(device)
            q = offset[:, None] + torch.arange(n, device=device)
            k = torch.arange(int(offset.max()) + n, device=device)[None]
            within = k.shape[1] - 1
            valid = k < offset[:, None] + n
            return cls(q=q, k=k, q_order=q, k_order=k, causal=causal, valid=valid).with_known(span=(-within, within))
        check_integers(0, offset=offset)
        check_tokens(offset + n, offset=offset, n=n)
        k = torch.arange(offset + n, device=device)[None]
        q = k if offset == 0 else k[:, offset:]
        span = 1 - n, offset + n - 1
        return cls(q=q, k=k, q_order=q, k_order=k, causal=causal).with_known((offset, 0), diagonal=offset, span=span)

    @classmethod
    def from_ids(
        cls,
        position_ids: Ids,
        key_ids: Ids | None = None,
        *,
        causal: bool = False,
        packed: bool | None = None,
        placed: Ids | None = None,
    ) -> "Positions":
        """Explicit positions: (n,), (batch, n) or (batch, n, axes), integer or fractional, of any sign.

        key_ids, when given, are the positions of all keys (cached ones first), so the queries are the last tokens.
        packed: what it means that a position on one axis is not above the one before it. True: a document starts there,
        which sees only itself. False: nothing; the row is one text, whose positions come in any order. None: nothing,
        but positions that fall are refused once they are causal, where a document would silently see those before it.
        placed: of coordinates on several axes, (n,) or (batch, n) ones and zeros, for all keys: zero marks a token without
        a place, such as [CLS], whose coordinates are not read (see `q_placed`). None: all have one.

        Raises:
            InputError: a wrong rank, a non-finite value, fewer keys than causal queries, positions that fall where they are
                causal and `packed` is not given, or packed or placed where they do not apply.
        """
        q = as_positions("position_ids", position_ids)
        k = q if key_ids is None else as_positions("key_ids", key_ids)
        check_flags(causal=causal, **({} if packed is None else {"packed": packed}))
        k_order = torch.arange(k.shape[1], device=k.device)[None]
        q_order = torch.arange(k.shape[1] - q.shape[1], k.shape[1], device=q.device)[None]
        diagonal = k.shape[1] - q.shape[1]
        made = cls(q=q, k=k, q_order=q_order, k_order=k_order, any_order=packed is False or k.dim() == 3)
        if packed:
            made = made._packed_by_restarts()
        if placed is not None:
            made = made._placed(placed)
        return made.with_known(diagonal=diagonal).with_causal(causal)

    def _packed_by_restarts(self) -> "Positions":
        """These positions on one axis, of documents that start where a position is not above the one before it."""
        if self.num_keys < self.num_queries or self.k.dim() == 3:
            raise InputError(
                "reads documents from positions on one axis, of all keys: for others pass document ids to Positions.packed or "
                "multimodal, or sizes to grids",
                packed=True,
            )
        documents = begins(self.k, torch.le).cumsum(1)
        return replace(
            self, q_document=documents[:, self.num_keys - self.num_queries :], k_document=documents, any_order=True
        )

    def _placed(self, placed: Ids) -> "Positions":
        """These positions on several axes, where some tokens have no place, see `from_ids`."""
        mask = as_numbers("placed", placed, self.k.device)
        mask = as_mask("placed", mask[None] if mask.dim() == 1 else mask)
        rows = self.k.shape[0] if self.k.shape[0] == self.q.shape[0] else 1
        if self.k.dim() != 3 or mask.shape[1] != self.num_keys or mask.shape[0] not in (1, rows):
            raise InputError(
                f"placed of shape {tuple(mask.shape)}: pass (n,) or (batch, n) for all {self.num_keys} keys, of positions on "
                "several axes"
            )
        if not torch.compiler.is_compiling() and bool(mask.all()):
            return self
        of_q = mask[:, max(self.num_keys - self.num_queries, 0) :]
        q = _kept(self.q, of_q)
        return replace(
            self,
            q=q,
            k=q if self.k is self.q else _kept(self.k, mask),
            q_placed=of_q,
            k_placed=of_q if self.k is self.q else mask,
        )

    @classmethod
    def from_mask(cls, attention_mask: Ids, num_queries: int | None = None, *, causal: bool = False) -> "Positions":
        """Left or right padding, from a (batch, num_keys) mask of ones (token) and zeros (padding).

        The first real token of each row is at position 0; padding sees nothing. With a cache, `num_queries` says how
        many of the last columns are the queries of this call.

        Raises:
            InputError: the mask is not 2-D zeros and ones, or num_queries does not fit in it.
        """
        valid = as_mask("attention_mask", attention_mask)
        check_flags(causal=causal)
        last = valid.shape[1] - 1
        ids = (valid.long().cumsum(1) - 1).clamp(min=0)
        return cls._of_tokens(ids, num_queries, causal, valid, span=(-last, last))

    @classmethod
    def packed(
        cls,
        lengths: Sequence[int] | Tensor | None = None,
        *,
        cu_seqlens: Sequence[int] | Tensor | None = None,
        document_ids: Tensor | None = None,
        slots: int | None = None,
        causal: bool = False,
        device: torch.device | str | None = None,
    ) -> "Positions":
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
        return cls._of_tokens(ids, None, causal, valid, documents, span=(-last, last))

    @classmethod
    def prefix_lm(
        cls,
        prefix_lengths: int | Sequence[int] | Tensor,
        n: int,
        offset: int | Tensor = 0,
        *,
        device: torch.device | str | None = None,
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
        cls,
        height: int,
        width: int,
        frames: int | None = None,
        *,
        prefix: int = 0,
        device: torch.device | str | None = None,
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
            InputError: no images, a size below 1, images next to videos, a negative prefix, or more than 2^27 tokens.
        """
        check_integers(0, prefix=prefix)
        images = sizes_of(sizes)
        tokens = [prefix + prod(size) for size in images]
        check_tokens(max(tokens) * len(tokens) if padded else sum(tokens), sizes=sizes, prefix=prefix)
        rows = [patch_coordinates(size, prefix, device) for size in images]
        ids, lengths = torch.cat(rows)[None], torch.tensor([row.shape[0] for row in rows], device=rows[0].device)
        documents = valid = placed = None
        if len(images) > 1 and padded:
            ids = pad_sequence(rows, batch_first=True)
            valid = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        elif len(images) > 1:
            documents = torch.repeat_interleave(torch.arange(len(rows), device=ids.device), lengths)[None]
        if prefix:
            index = torch.arange(ids.shape[1], device=ids.device)[None]
            placed = (index if documents is None else index_in_document(documents)) >= prefix
        return cls._of_tokens(ids, None, False, valid, documents, placed, images=tuple(images))

    @classmethod
    def multimodal(
        cls,
        tokens: Sequence[Any] | Tensor,
        rule: str = "qwen2_vl",
        num_queries: int | None = None,
        *,
        image_token_id: int | None = None,
        video_token_id: int | None = None,
        image_grid_thw: Ids | None = None,
        video_grid_thw: Ids | None = None,
        spatial_merge_size: int = 2,
        second_per_grid_ts: Ids | None = None,
        attention_mask: Ids | None = None,
        document_ids: Tensor | None = None,
        causal: bool = False,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> "Positions":
        """Text with images and videos in it, at (t, y, x), by the rule of a model.

        A text token is at the same number on all axes. The rule says where an image's tokens are, and where text goes on:
        "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "videorope", "v2pe" (on one axis) or "circle_rope". options are
        those of the rule. Both are listed, with their papers, in docs/vision-grid.md and posenc/positions/multimodal.py.

        tokens: a list of parts, or rows of tokens. Parts, in the order of the sequence: a number of text tokens, the
        (height, width) of an image or the (height, width, frames) of a video, in tokens. Rows: token ids (batch, n) with
        image_token_id and video_token_id at the tokens of images and videos, whose sizes are (count, 3) tables of frames,
        height and width, before spatial_merge_size x spatial_merge_size patches become a token; all named as in
        transformers' `get_rope_index`. Its `mm_token_type_ids` are such rows, with ids 1 and 2.
        second_per_grid_ts: seconds from one frame to the next, one for each video, for "qwen2_5_vl".
        attention_mask: (batch, n), zeros are padding, at position 0. document_ids: (n,) or (batch, n), packed documents, as
        in `packed`; positions start at 0 in each. num_queries: with a cache, how many of the last tokens are the queries;
        `tokens` are then all tokens, so that the next ones go on where the rule says.

        Raises:
            InputError: an unknown rule or option, parts or tables that are none, images whose sizes do not fit to their
                tokens, a merge that does not divide them, missing seconds, or num_queries that does not fit.
        """
        check_flags(causal=causal)
        refuse_in_program(
            "multimodal: the sizes of images give the positions",
            "pass them as (batch, n, axes): Positions.from_ids(ids)",
        )
        ids, valid, documents = multimodal_ids(
            tokens, create_rule(rule, options), image_token_id, video_token_id, image_grid_thw, video_grid_thw,
            spatial_merge_size, second_per_grid_ts, attention_mask, document_ids, device,
        )  # fmt: skip
        return cls._of_tokens(ids, num_queries, causal, valid, documents)

    @classmethod
    def _of_tokens(
        cls,
        ids: Tensor,
        num_queries: int | None,
        causal: bool,
        valid: Tensor | None,
        documents: Tensor | None = None,
        placed: Tensor | None = None,
        images: tuple[tuple[int, ...], ...] | None = None,
        span: tuple[int, int] | None = None,
    ) -> "Positions":
        """Tokens at ids, in their order; the queries are the last of them. num_queries None: all."""
        keys = ids.shape[1]
        queries = keys if num_queries is None else num_queries
        check_integers(1, keys, num_queries=queries)
        order, first = torch.arange(keys, device=ids.device)[None], keys - queries
        q, q_order, q_valid, q_document, q_placed = (
            x if x is None or first == 0 else x[:, first:] for x in (ids, order, valid, documents, placed)
        )
        assert q is not None
        assert q_order is not None
        return cls(
            q=q, k=ids, q_order=q_order, k_order=order, causal=causal, valid=valid, q_valid=q_valid,
            q_document=q_document, k_document=documents, q_placed=q_placed, k_placed=placed, images=images,
        ).with_known(diagonal=first, span=span)  # fmt: skip

    @classmethod
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
        made = cls(
            q=q, k=k, q_order=queries.q_order, k_order=keys.k_order, valid=keys.valid, q_valid=queries.q_valid,
            q_placed=queries.q_placed, k_placed=keys.k_placed,
            q_document=queries.q_document if together else None, k_document=keys.k_document if together else None,
        )  # fmt: skip
        if queries.start is not None and keys.start is not None:
            first_q, first_k = start = queries.start[0], keys.start[1]
            span = first_q - first_k - k.shape[1] + 1, first_q - first_k + q.shape[1] - 1
            return made.with_known(start=start, diagonal=first_q - first_k, span=span)
        return made.with_known(span=_span(q, k))

    # ---------------------------------------------------------------- derive

    def with_known(
        self,
        start: tuple[int, int] | None = None,
        diagonal: int | None = None,
        span: tuple[int, int] | None = None,
    ) -> "Positions":
        """These positions, just made, with what their maker knows without reading a tensor: see the attributes."""
        for name, value in (("start", start), ("diagonal", diagonal), ("span", span)):
            object.__setattr__(self, name, value)
        return self

    def _with(self, **changes: Any) -> "Positions":
        """A copy for which start, diagonal and span stay true."""
        made = replace(self, **changes).with_known(self.start, self.diagonal, self.span)
        return made if self._memory is None else made._remembering(self)

    def with_causal(self, causal: bool) -> "Positions":
        """The same tokens under another causality.

        Raises:
            InputError: causal with fewer keys than queries, or with positions of `from_ids` that fall, which may be those
                of packed documents.
        """
        check_flags(causal=causal)
        if causal and self.num_keys < self.num_queries:
            raise InputError(
                f"{self.num_keys} keys for {self.num_queries} causal queries: causal keys include the queries' own"
            )
        if causal and not self.any_order:
            self._refuse_restarts()
        if causal == self.causal:
            return self
        full = None if self.full_keys is None else self.full_keys.with_causal(causal)
        return self.shared(("causal", causal), lambda: self._with(causal=causal, any_order=True, full_keys=full))

    def _refuse_restarts(self) -> None:
        if self.k.dim() == 3 or self.k.is_meta or torch.compiler.is_compiling():
            return
        falls = self.shared("falls", lambda: (self.k.diff(dim=1) < 0).nonzero()[:1].tolist())
        for row, at in falls:
            before, after = self.k[row, at : at + 2].tolist()
            raise InputError(
                f"position_ids fall from {before} to {after} in row {row}: a causal token sees every earlier one, also of "
                "another document",
                "for packed documents pass packed=True or use Positions.packed(lengths), for padding "
                "Positions.from_mask, for one text in another order packed=False",
            )

    def with_prefix(self, prefix_lengths: int | Sequence[int] | Tensor) -> "Positions":
        """The same tokens, causal, but for a prefix at the beginning of each row, or of each packed document, all of whose
        tokens see one another.

        prefix_lengths: its tokens, padding not counted: an int; one for each row, (batch,); of packed documents one for
        each by its number, (documents,) or (batch, documents).

        Raises:
            InputError: another shape, lengths below 0 or above the tokens there are, queries that begin inside the prefix
                (with a cache, the prefix is passed in one call), or a shard, which is made of positions with a prefix.
        """
        if self.sharding is not None or self.full_keys is not None:
            raise InputError("a prefix is for all keys of a sequence: call with_prefix before shard or keys")
        valid = torch.ones_like(self.k_order, dtype=torch.bool) if self.valid is None else self.valid
        prefix = prefix_mask(prefix_lengths, self.k_document, valid, self.batch)
        if self.num_queries < self.num_keys and not torch.compiler.is_compiling():
            slots, rows = (
                (self.q_order - self.k_order[:, :1]).clamp(0, self.num_keys - 1),
                max(self.batch, prefix.shape[0]),
            )
            inside = prefix.expand(rows, -1).gather(1, slots.expand(rows, -1)).sum(1)
            if bool(((inside > 0) & (inside < prefix.sum(1))).any()):
                raise InputError(
                    f"the {self.num_queries} queries begin inside the prefix",
                    "read a prefix in one call, since its first tokens see its last ones",
                    prefix_lengths=prefix_lengths,
                )
        return replace(self.with_causal(True), prefix=prefix).with_known(start=self.start, span=self.span)

    def with_window(self, before: int | None, after: int | None = 0) -> "Positions":
        """The same tokens, each of which sees at most `before` tokens before it and `after` tokens after it, and itself; None:
        no limit on that side (FlashAttention's window_size=(before, after)). transformers' sliding_window=w is
        with_window(w - 1). Tokens are counted by their order, padding and other documents between them too. Causal queries
        see nothing after themselves whatever `after` says; the window restricts what a prefix sees, too.

        Raises:
            InputError: what is neither None nor an integer of at least 0.
        """
        check_integers(0, before=before, after=after)
        window = None if before is None and after is None else (before, after)
        if window is not None:
            self._refuse_tree("a window counts tokens by their order")
        full = None if self.full_keys is None else self.full_keys.with_window(before, after)
        return self.shared(("window", window), lambda: self._with(window=window, full_keys=full))

    def with_blocks(self, size: int, table: Tensor | None = None) -> "Positions":
        """The same tokens, in blocks of `size`: those of query block a see those of key block b where table[a, b], as in
        block-sparse attention (Child et al. 2019; Zaheer et al. 2020). The CPU's attention skips the others.

        table: bool, (query blocks, key blocks) or, for each row, (batch, query blocks, key blocks); None: each block sees
        itself. Tokens are counted by their order from the first of each row, padding in front left out, or of each packed
        document. Causality, windows and other blocks hold as well.

        Raises:
            InputError: a size below 1, a table of another shape or dtype or with fewer blocks than the tokens take, or
                positions that have only some of the keys (`keys`).
        """
        check_integers(1, size=size)
        self._refuse_tree("blocks count tokens by their order")
        if table is not None:
            check_value("table", table, Tensor)
            if table.dtype != torch.bool or table.dim() not in (2, 3):
                raise InputError(
                    "pass bool, (query blocks, key blocks) or (batch, query blocks, key blocks)", table=table
                )
        if self.sharding is not None:
            *_, blocks = self.sharding.full.with_blocks(size, table).blocks
            blocks = blocks.select(self.local, lambda x: x[:, : self.num_keys])
            full = None if self.full_keys is None else self.full_keys.with_blocks(size, table)
            return self._with(blocks=(*self.blocks, blocks), full_keys=full)
        if self.full_keys is not None:
            raise InputError("blocks are for all keys of a sequence: call with_blocks before keys")
        valid, from_first = (self.q_valid, self.valid), self._from_first()
        numbers = [at if tokens is None else at * tokens for at, tokens in zip(from_first, valid, strict=True)]
        blocks = VisibleBlocks(table, *(index.clamp(min=0) // size for index in numbers))
        if table is not None:
            blocks = blocks._replace(table=(table if table.dim() == 3 else table[None]).to(self.q.device))
            self._check_blocks(blocks, size)
        return self._with(blocks=(*self.blocks, blocks))

    def with_tree(self, parents: Ids) -> "Positions":
        """A tree of drafts after a KV cache, as speculative decoding verifies it: each of the n queries, which are the last n
        keys of their row, sees the tokens before them, its ancestors in the tree and itself. It is at the first draft's
        position plus its depth, so that siblings share one.

        parents: (n,) or (batch, n) integers: which query is each one's parent, one before it; -1 for what follows the cache
        itself. The memory is that of n x n marks and a number for each key. Use on `Positions.arange(n, offset=cached,
        causal=True)`.

        Raises:
            InputError: parents that are not before their drafts or not as many as queries, or positions that are not causal,
                packed, or of several coordinates.
        """
        refuse_in_program("with_tree: the parents say which drafts see which", "make the positions outside of it")
        given = as_numbers("parents", parents, self.q.device)
        given, n = given[None] if given.dim() == 1 else given, self.num_queries
        if (
            given.dim() != 2
            or given.shape[1] != n
            or not holds_integers(given)
            or (len(given) > 1 and self.batch not in (1, len(given)))
        ):
            raise InputError(f"pass integers ({n},) or (batch, {n}), one for each query", parents=parents)
        if bool((given >= torch.arange(n, device=given.device)).any()) or bool((given < -1).any()):
            raise InputError("a draft's parent comes before it, or is -1 for the tokens of the cache", parents=parents)
        if not self.causal or self.q_document is not None or self.axes > 1 or self.window is not None or self.blocks:
            raise InputError(
                "a tree of drafts: pass causal positions of one axis without documents, windows or blocks, as "
                "Positions.arange(n, offset=cached, causal=True)"
            )
        slots = self.k_order - self.q_order[:, :1]  # of the drafts 0 .. n-1, of the cache below
        later = slots >= n if self.valid is None else (slots >= n) & self.valid
        if bool((self.q_order.diff(dim=1) != 1).any()) or bool((slots.amax(1) < n - 1).any()) or bool(later.any()):
            raise InputError("a tree of drafts: the queries must be the last keys, one after the other")
        seen, depth = (
            torch.eye(n, dtype=torch.bool, device=given.device).repeat(len(given), 1, 1),
            torch.zeros_like(given),
        )
        for draft in range(n):  # a parent's ancestors are known before its children's
            parent = given[:, draft]
            row, follows = torch.arange(len(given), device=given.device), parent >= 0
            seen[:, draft] |= seen[row, parent.clamp(min=0)] & follows[:, None]
            depth[:, draft] = torch.where(follows, depth[row, parent.clamp(min=0)] + 1, 0)
        table = torch.cat((seen.new_ones(len(given), n, 1), seen), 2)  # the cache is one block, each draft another
        index = torch.arange(n, device=given.device)[None]
        blocks = DraftTree(table, index, (slots + 1).clamp(0, n))
        first = self.q[:, :1]
        of_drafts = (first + depth).to(self.q)
        rows = max(of_drafts.shape[0], slots.shape[0])
        at = of_drafts.expand(rows, -1).gather(1, slots.expand(rows, -1).clamp(0, n - 1))
        k = torch.where(slots < 0, self.k, at)
        return replace(self, q=of_drafts, k=k, blocks=(*self.blocks, blocks)).with_known()

    @property
    def is_tree(self) -> bool:
        """Whether tokens are those of `with_tree`, of which not each sees all before it."""
        return any(isinstance(blocks, DraftTree) for blocks in self.blocks)

    def _refuse_tree(self, why: str) -> None:
        if self.is_tree:
            raise InputError(
                f"{why}, and the drafts of a tree are no sequence: pass each path of the tree as a separate row"
            )

    def _check_blocks(self, blocks: VisibleBlocks, size: int) -> None:
        assert blocks.table is not None
        rows, *counts = blocks.table.shape
        if torch.compiler.is_compiling():
            return
        for name, index, count in zip(("queries", "keys"), (blocks.q, blocks.k), counts, strict=True):
            if int(index.max()) >= count:
                raise InputError(
                    f"table {tuple(blocks.table.shape)} has {count} blocks of {size} tokens for the {name}, which take "
                    f"{int(index.max()) + 1}: give a row or a column for each block"
                )
        if rows > 1 and self.batch not in (1, rows):
            raise InputError(f"table of {rows} rows, positions of {self.batch}: give one table, or one for each row")

    def _from_first(self) -> tuple[Tensor, Tensor]:
        """How far each query and each key is, by order, from the first token of its row or document, (batch or 1, n)."""
        if self.q_document is not None and self.k_document is not None:
            return index_in_document(self.q_document), index_in_document(self.k_document)
        order = self.k_order
        if self.valid is not None:
            order = order.masked_fill(~self.valid, torch.iinfo(torch.long).max)
        first = order.amin(1, keepdim=True)
        return self.q_order - first, self.k_order - first

    def with_gates(self, gates: tuple[Tensor, ...]) -> "Positions":
        """The same tokens, for the hooks of one layer, with what `Encoding.gates` made of that layer's input: for each gated
        encoding (batch, heads, num_keys, width), of all keys."""
        if not self.gates and not gates:
            return self
        ungated = self.ungated or (self._with(gates=()) if self.gates else self)
        if not gates:
            return ungated
        self._refuse_tree("gates of a layer's input go on from token to token")
        gated = ungated._with(gates=gates)
        object.__setattr__(gated, "ungated", ungated)
        if ungated.memory is not None:  # for one layer, so not in that of the pass
            own = Memory(False)
            vars(gated).update(_memory=ref(own), _part=None, _own=own)
        return gated

    def gate(self, user: str, heads: int | None = None, width: int | None = None) -> Tensor:
        """The gates of every key, (batch, heads, num_keys, width), for the one encoding that asks. heads, width: those that
        it made; None: any.

        Raises:
            InputError: none were given, or of other heads or another width.
        """
        if len(self.gates) != 1:
            raise InputError(
                f"{user} takes gates that it makes of a layer's input: pass gates=gates_of({user}, x, layer) to attention, with "
                "those of cached keys in front"
            )
        (gate,) = self.gates
        wanted = tuple(of if size is None else size for of, size in zip(gate.shape[1::2], (heads, width), strict=True))
        if gate.shape[1::2] != wanted:
            raise InputError(
                f"gates of shape {tuple(gate.shape)}: {user} makes (batch, {wanted[0]}, num_keys, {wanted[1]}); pass "
                f"gates=gates_of({user}, x, layer)"
            )
        return gate

    def of_queries(self, x: Tensor) -> Tensor:
        """Of a tensor over the keys, (batch, heads, num_keys, width), the part of the queries' tokens.

        Raises:
            InputError: what `require_among_keys` refuses.
        """
        self.require_among_keys()
        if self.q_order is self.k_order:
            return x
        if self.diagonal is not None:
            return x[:, :, self.diagonal : self.diagonal + self.num_queries]
        slots = self._slots()[:, None, :, None].expand(x.shape[0], x.shape[1], -1, x.shape[3])
        return x.gather(2, slots)

    def _slots(self) -> Tensor:
        """Which key each query is, (batch or 1, num_queries), where keys lie in their order."""
        return self.q_order - self.k_order[:, :1]

    def require_among_keys(self) -> None:
        """Refuse queries of other tokens than the keys, for what a layer's input says of each key's token alone.

        Raises:
            InputError: a query's place in the order is before the first key's or after the last one's.
        """
        if self.q_order is self.k_order:
            return
        if self.diagonal is not None:
            fits = 0 <= self.diagonal <= self.num_keys - self.num_queries
        elif torch.compiler.is_compiling() or self.q_order.device.type != "cpu":
            return  # reading them would wait for the device
        else:
            fits = self.shared(
                "among keys", lambda: bool(((self._slots() >= 0) & (self._slots() < self.num_keys)).all())
            )
        if not fits:
            raise InputError(
                f"the {self.num_queries} queries are not among the {self.num_keys} keys, whose tokens the gates are of: pass "
                "positions of self-attention, with the queries' own keys"
            )

    def at(self, branch: Branch | None) -> "Positions":
        """The same tokens, as one branch of a position map is asked to rotate them, or None. Positions and visibility stay as
        they are."""
        return self.shared(("branch", branch), lambda: self._with(branch=branch))

    def keys(self, first: int, end: int) -> "Positions":
        """The same queries among keys first .. end - 1 alone; what they see is still counted among all.

        Raises:
            InputError: they are no range of the keys.
        """
        check_range(first, end, self.num_keys)
        if end is None:
            raise InputError(f"pass the key after the last one, at most {self.num_keys}", end=None)
        parts = {name: getattr(self, name) for name in ("k", "k_order", "k_document", "k_placed", "valid", "prefix")}
        parts = {name: None if x is None else x[:, first:end] for name, x in parts.items()}
        blocks = tuple(each.select(lambda x: x, lambda x: x[:, first:end]) for each in self.blocks)
        start, span = self.start, self.span
        if start is not None:
            start = start[0], start[1] + first
            span = start[0] - start[1] - (end - first) + 1, start[0] - start[1] + self.num_queries - 1
        diagonal = None if self.diagonal is None else self.diagonal - first
        return replace(self, **parts, blocks=blocks, full_keys=self, gates=()).with_known(start, diagonal, span)

    def moved(self, move: Callable[[Tensor, Tensor], Tensor]) -> "Positions":
        """The same tokens at other positions: move(positions, order) -> positions is applied to queries and to keys, both
        (batch or 1, n); the result is copied. Visibility is unchanged. Tokens without a place stay without one; moved to
        one axis, as text has, every token is at its number."""
        q = _kept(move(self.q, self.q_order), self.q_placed)
        same = self.q is self.k and self.q_order is self.k_order
        k = q if same else _kept(move(self.k, self.k_order), self.k_placed)
        sharding = None if self.sharding is None else replace(self.sharding, full=self.sharding.full.moved(move))
        of_q, of_k = (None, None) if q.dim() == 2 else (self.q_placed, self.k_placed)
        return replace(self, q=q, k=k, q_placed=of_q, k_placed=of_k, sharding=sharding, images=None).with_known(
            diagonal=self.diagonal
        )

    def marked(self) -> "Positions":
        """The same tokens with one more coordinate, for functions of positions: 1 for those that have a place, else 0."""

        def mark(at: Tensor, placed: Tensor | None) -> Tensor:
            of_all = at.new_ones(()) if placed is None else placed.to(at)
            return torch.cat((at, of_all.expand(at.shape[:2])[..., None]), -1)

        q = mark(self.q, self.q_placed)
        same = self.q is self.k and self.q_placed is self.k_placed
        return replace(self, q=q, k=q if same else mark(self.k, self.k_placed)).with_known(diagonal=self.diagonal)

    def take(self, index: Ids) -> "Positions":
        """Some of the tokens, in this order: (m,) indices, or (batch, m), one row each. Patches are dropped (He et al. 2022,
        "MAE") or reordered so; visibility is unchanged.

        Tokens without a place, such as [CLS], differ by their order alone: of those in a document, the first stay the
        first.

        Raises:
            InputError: indices out of range or repeated, tokens without a place out of order or missing before others,
                or positions that are a shard or whose keys are not the queries.
        """
        self._check_complete("be taken apart")
        index = as_indices("index", index, self.num_queries, self.batch)
        q, order = select(self.q, index), select(self.q_order, index)
        document, valid, q_valid, placed, prefix = (
            None if x is None else select(x, index)
            for x in (self.q_document, self.valid, self.q_valid, self.q_placed, self.prefix)
        )
        if self.q_placed is not None and placed is not None and not torch.compiler.is_compiling():
            before = select(unplaced_index(self.q_placed, self.q_document), index)
            if not torch.equal(before, unplaced_index(placed, document)):
                raise InputError(
                    "index takes tokens without a place, such as [CLS], out of their order, or not the first"
                )
            placed = None if bool(placed.all()) else placed
        blocks = tuple(each.select(*[lambda x: select(x, index)] * 2) for each in self.blocks)
        return replace(
            self, q=q, k=q, blocks=blocks, q_order=order, k_order=order, valid=valid, q_valid=q_valid, q_document=document,
            k_document=document, q_placed=placed, k_placed=placed, prefix=prefix, gates=(),
        ).with_known(span=self.span)  # fmt: skip

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

        tensors = {name: move(x) for name in _TENSORS if (x := getattr(self, name)) is not None}
        sharding = None if self.sharding is None else replace(self.sharding, full=self.sharding.full.to(device))
        full = None if self.full_keys is None else self.full_keys.to(device)
        blocks = tuple(
            each._replace(table=None if each.table is None else move(each.table), q=move(each.q), k=move(each.k))
            for each in self.blocks
        )
        gates = tuple(move(gate) for gate in self.gates)
        return self._with(**tensors, blocks=blocks, sharding=sharding, full_keys=full, gates=gates)

    # ---------------------------------------------------------------- derive: one sequence over several processes

    def shard(
        self, rank: int, world_size: int, *, layout: str = "contiguous", group: "ProcessGroup | None" = None
    ) -> "Positions":
        """The positions of the tokens that one process has of a sequence, among all keys.

        rank, world_size: the process, of so many. layout: "contiguous" cuts the sequence into world_size parts;
        "zigzag" into twice as many, of which a process has the rank-th from the front and from the back: causal
        attention is then the same work for all. group: the processes that have the sequence; None: all there are.
        `posenc.attention` and the models gather keys and values from them; without several processes nothing is sent.

        Raises:
            InputError: a rank out of range, an unknown layout, a length that cannot be cut into so many equal parts,
                positions whose keys are not the queries, as with a cache, or that are a shard already.
        """
        self._check_complete("be sharded")
        runs = runs_of(self.num_queries, rank, world_size, layout)
        return self._among(Shard(self, rank, world_size, layout, runs, group))

    def shard_calls(self, causal: bool) -> "list[Positions]":
        """Positions of the calls of attention that a shard takes: one for each run of tokens, among all keys or, if causal,
        those up to its own end. That keeps each one contiguous where the sequence is, and leaves out what no query of it
        sees."""
        assert self.sharding is not None
        full = self.sharding.full.with_causal(causal)
        parts = [replace(self.sharding, full=full, runs=(run,)) for run in self.sharding.runs]
        return [full._among(part, None if full.sees_future else part.runs[0][1]) for part in parts]

    def _among(self, shard: Shard, keys: int | None = None) -> "Positions":
        """A shard's queries among the first `keys` keys of these positions, which it is of; None: among all."""
        count = self.num_keys if keys is None else keys

        def local(x: Tensor | None) -> Tensor | None:
            return None if x is None else shard.take(x)

        def cut(x: Tensor | None) -> Tensor | None:
            return x if x is None or keys is None else x[:, :keys]

        blocks = tuple(each.select(shard.take, lambda x: x[:, :count]) for each in self.blocks)
        start, diagonal, span = None, None, self.span
        if len(shard.runs) == 1:
            first, end = shard.runs[0]
            diagonal = None if self.diagonal is None else self.diagonal + first
            if self.start is not None:
                start = self.start[0] + first, self.start[1]
                span = start[0] - start[1] - count + 1, start[0] - start[1] + end - first - 1
        return replace(
            self, q=shard.take(self.q), k=self.k[:, :count], q_order=shard.take(self.q_order),
            k_order=self.k_order[:, :count], valid=cut(self.valid), q_valid=local(self.q_valid),
            q_document=local(self.q_document), k_document=cut(self.k_document), q_placed=local(self.q_placed),
            k_placed=cut(self.k_placed), prefix=cut(self.prefix), sharding=shard, gates=(), blocks=blocks,
            full_keys=None if keys is None else self._among(shard),
        ).with_known(start, diagonal, span)  # fmt: skip

    @property
    def unsharded(self) -> "Positions":
        """The positions of the full sequence of a shard; these positions if they are not a shard.

        Raises:
            InputError: queries that are only some of the sequence's tokens, as with a cache.
        """
        if self.sharding is not None:
            return self.sharding.full
        self.require_full_sequence("this reads every token")
        return self

    def local(self, x: Tensor) -> Tensor:
        """The local part of a tensor with a row per token of `unsharded`, (batch or 1, n, ...)."""
        return x if self.sharding is None else self.sharding.take(x)

    def _check_complete(self, verb: str) -> None:
        """Refuse what is not all of a sequence, as queries and as keys."""
        if self.sharding is not None:
            raise InputError(f"these positions are a shard already and cannot {verb}: pass those of the full sequence")
        same = all(a is b for a, b in ((self.q, self.k), (self.q_order, self.k_order)))
        if not same and not torch.compiler.is_compiling():
            same = torch.equal(self.q, self.k) and torch.equal(self.q_order, self.k_order)
        if not same or self.branch is not None or self.full_keys is not None:
            raise InputError(
                f"{self.num_queries} queries that are not the {self.num_keys} keys cannot {verb}: pass the positions "
                "of a full sequence, without a cache or cross-attention"
            )

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
    def num_queries(self) -> int:
        return self.q.shape[1]

    @property
    def num_keys(self) -> int:
        return self.k.shape[1]

    @property
    def batch(self) -> int:
        """Number of different rows; 1 if all rows of a batch have the same positions."""
        return self.shared("batch", self._rows)

    def _rows(self) -> int:
        rows = 1
        every = [getattr(self, name) for name in _TENSORS]  # torch.compile does not trace operator.attrgetter
        for x in (*every, *chain.from_iterable(self.blocks)):
            if x is not None and x.shape[0] > rows:
                rows = x.shape[0]
        return rows

    @property
    def axes(self) -> int:
        """Coordinates per token: 1 for text, 2 for images, 3 for video."""
        return 1 if self.q.dim() == 2 else self.q.shape[2]

    @property
    def fractional(self) -> bool:
        """Whether positions are of a floating dtype."""
        return self.q.is_floating_point() or self.k.is_floating_point()

    def coordinates(self, axes: int, user: str) -> tuple[Tensor, Tensor]:
        """q and k as (batch or 1, n, axes). A token with one coordinate, as text has, is at that number on every axis;
        an image, where three are asked for, is the first frame of a video.

        Raises:
            InputError: another number of axes.
        """
        check_integers(1, 16, axes=axes)
        if self.axes == 1 and self.q.dim() == 2:
            q = self.q[..., None].expand(-1, -1, axes)
            return q, q if self.k is self.q else self.k[..., None].expand(-1, -1, axes)
        if (self.axes, axes) == (2, 3):
            q = first_frame(self.q)
            return q, q if self.k is self.q else first_frame(self.k)
        if axes == 1:
            self.require_one_axis(user)
        if self.axes != axes:
            raise InputError(
                f"{user} takes {axes} coordinates per token (or one), these positions have {self.axes}: pass positions of {axes}, "
                f"such as Positions.from_ids of shape (batch, n, {axes})"
            )
        return self.q, self.k

    def of_images(self, values: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """The number, of (images, ...) one for each of `images`, that belongs to each query's and each key's image:
        (batch or 1, n or 1, ...) twice."""
        numbers = torch.tensor(values, device=self.q.device)
        if numbers.shape[0] == 1 or self.q_document is None or self.k_document is None:
            return numbers[:, None], numbers[:, None]
        return numbers[self.q_document], numbers[self.k_document]

    def distances(self) -> Tensor | None:
        """Every distance that a query may have from a key, (span's length,) from the longest to the shortest; None
        where it is not known without reading a tensor."""
        if self.span is None:
            return None
        shortest, longest = self.span
        return self.shared("distances", lambda: torch.arange(longest, shortest - 1, -1, device=self.q.device))

    def lengths(self) -> Tensor:
        """Tokens in each query's own document (or row), (batch or 1, num_queries).

        Raises:
            InputError: a mask beside these positions may separate documents (`counted`).
        """
        self.require_counted()
        if self.sharding is not None:
            return self.local(self.sharding.full.lengths())
        if self.q_document is None and self.valid is None:
            return torch.full_like(self.q_order, self.num_keys)
        return document_lengths(self.q_document, self.valid, self.q_order)

    def require_one_axis(self, user: str) -> None:
        """Check that positions are one-dimensional, for an encoding that needs this.

        Raises:
            InputError: more than one coordinate per token.
        """
        if self.axes > 1:
            raise InputError(f"{user} takes one coordinate per token, these positions have {self.axes}")

    def require_full_sequence(self, why: str, remedy: str = "pass the full sequence") -> None:
        """Refuse queries that are only some of a sequence's tokens, as with a cache, for what needs all of them.

        Raises:
            InputError: they are not as many as the keys.
        """
        if self.num_queries != self.num_keys:
            raise InputError(
                f"{why}, so it needs the full sequence: only {self.num_queries} of {self.num_keys} tokens are here; "
                f"{remedy}"
            )

    # ---------------------------------------------------------------- ask: visibility

    def mask_mod(self) -> MaskMod:
        """Visibility in FlexAttention's signature, (batch, head, query index, key index) -> bool, broadcastable."""
        q_order, k_order = rowwise(self.q_order), rowwise(self.k_order)
        valid, q_valid, prefix = (None if x is None else rowwise(x) for x in (self.valid, self.q_valid, self.prefix))
        documents = None
        if self.q_document is not None and self.k_document is not None:
            documents = rowwise(self.q_document), rowwise(self.k_document)
        causal, (before, after) = self.causal, self.window or (None, None)
        blocks = [each.mask_mod() for each in self.blocks]

        def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            seen = (b >= 0) & (i >= 0) & (j >= 0)
            if causal:
                past = k_order(b, j) <= q_order(b, i)
                seen = seen & (past if prefix is None else past | prefix(b, j))
            if before is not None:
                seen = seen & (q_order(b, i) - k_order(b, j) <= before)
            if after is not None:
                seen = seen & (k_order(b, j) - q_order(b, i) <= after)
            if valid is not None:
                seen = seen & valid(b, j)
            if q_valid is not None:
                seen = seen & q_valid(b, i)
            if documents is not None:
                seen = seen & (documents[0](b, i) == documents[1](b, j))
            for block in blocks:
                seen = seen & block(b, h, i, j)
            return seen

        return visible

    def mask(self, first: int = 0, end: int | None = None) -> Tensor:
        """Visibility as a dense bool tensor, (batch or 1, 1, num_queries, num_keys): True where a query sees a key.
        first, end: for these queries only.

        Raises:
            InputError: they are not a range of the queries.
        """
        check_range(first, end, self.num_queries)
        if self.causal and self.unmasked:
            return self.k_order[:, None, None] <= self.q_order[:, None, first:end, None]
        rows = (self.num_queries if end is None else end) - first
        b, h, i, j = grid_indices(self.batch, 1, rows, self.num_keys, self.q.device)
        return self.mask_mod()(b, h, i + first, j)

    @property
    def all_visible(self) -> bool:
        """True if every query sees every key; False also if a tensor would have to be read to know it."""
        before, after = self.window or (None, None)
        if self.hides_tokens or self.prefix is not None or len(self.blocks) > 0:
            return False
        if not self.causal and self.window is None:
            return True
        if self.diagonal is None:
            return False
        ahead = self.num_keys - 1 - self.diagonal  # tokens that query 0 would see after itself
        if self.causal and ahead > 0:
            return False
        return (before is None or self.num_queries - 1 + self.diagonal <= before) and (after is None or ahead <= after)

    @property
    def unmasked(self) -> bool:
        """True if only causality restricts what a query sees."""
        return not self.hides_tokens and self.prefix is None and self.window is None and len(self.blocks) == 0

    @property
    def hides_tokens(self) -> bool:
        """Whether there is padding, or more than one document."""
        return self.valid is not None or self.q_valid is not None or self.q_document is not None

    def hidden(self) -> tuple[Hidden | None, Hidden | None]:
        """The queries that are padding, and the keys that no query sees: padding, and what comes after every query, as free
        slots of a cache do. None: there are none. What only a window or a document hides is a token."""
        if self.valid is None and self.q_valid is None and (not self.causal or self.q_order is self.k_order):
            return None, None
        return self.shared("hidden", self._hidden)

    def _hidden(self) -> tuple[Hidden | None, Hidden | None]:
        queries = None if self.q_valid is None else ~self.q_valid
        keys = None if self.valid is None else ~self.valid
        ahead = None if self.diagonal is None else self.num_keys - self.diagonal - self.num_queries
        if self.causal and self.q_order is not self.k_order and (ahead is None or ahead > 0):
            later = self.k_order > self.q_order.amax(1, keepdim=True)
            later = later if self.prefix is None else later & ~self.prefix
            keys = later if keys is None else keys | later
        return Hidden.of(queries), Hidden.of(keys)

    @property
    def sees_future(self) -> bool:
        """Whether a query may see keys after itself."""
        return not self.causal or self.prefix is not None

    @property
    def region(self) -> Region:
        """The window as a region of distances in the tokens' order."""
        before, after = self.window or (None, None)
        if before is None and after is None:
            return EVERYTHING
        return Region(None if after is None else -after, None if before is None else before + 1)

    def require_counted(self) -> None:
        """Refuse positions that do not say all of what is visible, for what counts it.

        Raises:
            InputError: a mask beside these positions hides more (`counted`).
        """
        if not self.counted:
            raise InputError(
                "this encoding reads how many or which tokens are visible, which a 4-D mask hides: pass a 2-D mask, or position_ids that "
                "start again with each packed document and use_cache=False"
            )

    def visible_counts(self) -> Tensor:
        """How many keys each query sees, (batch or 1, num_queries).

        Raises:
            InputError: a mask beside these positions hides more (`counted`).
        """
        self.require_counted()
        if self.branch is not None and self.branch.most is not None:
            return self._with(branch=None).visible_counts().clamp(max=self.branch.most)
        if self.full_keys is not None:
            return self.full_keys.visible_counts()
        if self.all_visible:
            return torch.full_like(self.q_order, self.num_keys)
        if len(self.blocks) > 0 or (self.prefix is not None and self.window is not None):
            rows = self.num_queries if torch.compiler.is_compiling() else 1024  # a mask of all is large
            ends = range(0, self.num_queries, rows)
            return torch.cat([self.mask(at, min(at + rows, self.num_queries))[:, 0].sum(-1) for at in ends], 1)
        before, after = self.window or (None, None)
        after = 0 if self.causal else after
        if not self.hides_tokens and self.start is not None and self.prefix is None:
            index = self.q_order - self.k_order[:, :1]
            end = torch.full_like(index, self.num_keys) if after is None else index + after + 1
            first = torch.zeros_like(index) if before is None else (index - before).clamp(0, self.num_keys)
            return (end.clamp(0, self.num_keys) - first).clamp(min=0)
        q, k, q_document, k_document, valid, prefix = (
            x if x is None else x.expand(self.batch, -1)
            for x in (self.q_order, self.k_order, self.q_document, self.k_document, self.valid, self.prefix)
        )
        assert q is not None
        assert k is not None
        if prefix is not None and self.causal:  # as if before every query
            k = torch.where(prefix, torch.minimum(k.amin(1, keepdim=True), q.amin(1, keepdim=True)), k)
        if q_document is None or k_document is None:
            q_document, k_document = torch.zeros_like(q), torch.zeros_like(k)
        counts = count_between(q, k, q_document, k_document, valid, (before, after))
        return counts if self.q_valid is None else counts * self.q_valid

    # ---------------------------------------------------------------- ask: what follows from them, made once

    def in_pass(self, memory: Memory | None) -> "Positions":
        """A copy whose values the layers of one forward pass share by a memory, as long as somebody owns it."""
        if memory is None:
            return self
        made = object.__new__(Positions)
        vars(made).update(vars(self), _memory=ref(memory), _part=self, origin=self)  # several may have one memory
        return made

    @property
    def memory(self) -> Memory | None:
        """What the layers of a pass share by key, to read and to add to. None: outside of a pass, where a graph is traced, and
        under modes that the pass was not made in."""
        memory = None if self._memory is None or torch.compiler.is_compiling() else self._memory()
        return memory if memory is not None and memory.world == world() else None

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """A value that depends on these positions and the key alone: once a pass, and without gradient."""
        memory = self.memory
        if memory is None:
            return make()
        key = self._part, key
        if key not in memory:
            with torch.inference_mode(False), torch.no_grad():  # so that a later step may train on it
                value: Any = make()
            if type(value) is Positions and value._memory is None:
                value._remembering(self)
            memory[key] = value
        return memory[key]

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """The same of a value that a gradient may reach: once a pass with, and once without gradients."""
        memory = self.memory
        if memory is None:
            return make()
        key = self._part, key, torch.is_grad_enabled()
        if key in memory:
            value = memory[key]
            return make() if again_alone() and is_learned(value) else value
        if again_alone():
            return make()
        with memory.apart():
            memory[key] = value = make()
        return value

    def _remembering(self, like: "Positions") -> "Positions":
        object.__setattr__(self, "_memory", like._memory)
        object.__setattr__(self, "_part", self)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_memory": None, "_part": None, "_own": None, "origin": None}  # copies are data alone


def _kept(at: Tensor, placed: Tensor | None) -> Tensor:
    """A copy of positions, (batch or 1, n) or (batch or 1, n, axes), with tokens without a place at 0 on every axis."""
    if placed is None or at.dim() == 2:
        return at.clone()  # the caller may change theirs later
    return torch.where(placed[..., None], at, torch.zeros_like(at))


def _span(q: Tensor, k: Tensor) -> tuple[int, int] | None:
    """The shortest and the longest distance of integers on one axis, where reading them makes no device wait."""
    if torch.compiler.is_compiling() or q.device.type != "cpu" or q.dim() == 3:
        return None
    if q.is_floating_point() or k.is_floating_point():
        return None
    (least_q, most_q), (least_k, most_k) = ((int(limit) for limit in x.aminmax()) for x in (q, k))
    return least_q - most_k, most_q - least_k
