# SPDX-License-Identifier: Apache-2.0
"""Where tokens are: positions, validity, documents and causality of one forward pass, in one object."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from posenc.checks import check_device, check_flags, checked, holds_integers, is_whole
from posenc.distributed.shards import Shard
from posenc.errors import InputError
from posenc.positions.grids import between_text, cells, check_prefix, sizes_of
from posenc.positions.ids import Ids, as_mask, as_positions
from posenc.positions.packing import MOST_TOKENS, counted, documents_of
from posenc.positions.placement import Placement

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def _span(q: Tensor, k: Tensor) -> tuple[int, int] | None:
    """The shortest and the longest distance of whole numbers on one axis, where reading them makes no device wait."""
    if torch.compiler.is_compiling() or q.device.type != "cpu" or q.dim() == 3:
        return None
    if q.is_floating_point() or k.is_floating_point():
        return None
    (least_q, most_q), (least_k, most_k) = ((int(found) for found in x.aminmax()) for x in (q, k))
    return least_q - most_k, most_q - least_k


@dataclass(frozen=True, eq=False, repr=False)
class Positions(Placement):
    """Where the queries and the keys of one attention call are, and which keys each query may see.

    Build it once per forward pass with one of the constructors; positions and mask come from the same object,
    so padding or packing cannot be half done. What it holds and can be asked is in `Placement`.
    """

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
            whole = holds_integers(offset)
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
            return cls(q=q, k=k, q_order=q, k_order=k, causal=causal, valid=valid).knowing(span=(-within, within))
        if not 0 <= offset <= MOST_TOKENS:
            raise InputError(f"offset={offset}: the number of cached tokens lies between 0 and {MOST_TOKENS}")
        k = torch.arange(offset + n, device=device)[None]
        q = k if offset == 0 else k[:, offset:]
        found = cls(q=q, k=k, q_order=q, k_order=k, causal=causal)
        return found.knowing(start=(offset, 0), diagonal=offset, span=(1 - n, offset + n - 1))

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
        return cls(q=q, k=k, q_order=q_order, k_order=k_order).knowing(diagonal=diagonal).with_causal(causal)

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
        keys = valid.shape[1]
        queries = keys if num_queries is None else num_queries
        if not is_whole(queries) or not 1 <= queries <= keys:
            raise InputError(f"num_queries={queries!r}: must lie between 1 and the mask's {keys} columns")
        k = (valid.long().cumsum(1) - 1).clamp(min=0)
        order = torch.arange(keys, device=k.device)[None]
        first = keys - queries
        q, q_order, q_valid = (k, order, valid) if first == 0 else (x[:, first:] for x in (k, order, valid))
        return cls(
            q=q, k=k, q_order=q_order, k_order=order, causal=causal, valid=valid, q_valid=q_valid
        ).knowing(diagonal=first, span=(1 - keys, keys - 1))  # fmt: skip

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
            q_document=documents, k_document=documents,
        ).knowing(diagonal=0, span=(-last, last))  # fmt: skip

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
            k_document=documents, images=tuple(images),
        ).knowing(diagonal=0)  # fmt: skip

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
        found = cls(
            q=q, k=k, q_order=queries.q_order, k_order=keys.k_order, valid=keys.valid, q_valid=queries.q_valid,
            q_document=queries.q_document if together else None, k_document=keys.k_document if together else None,
        )  # fmt: skip
        if queries.start is not None and keys.start is not None:
            first_q, first_k = start = queries.start[0], keys.start[1]
            span = first_q - first_k - k.shape[1] + 1, first_q - first_k + q.shape[1] - 1
            return found.knowing(start=start, diagonal=first_q - first_k, span=span)
        return found.knowing(span=_span(q, k))

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
        self._check_complete("be sharded")
        return Shard.of(self, rank, world_size, layout, group).positions()

    @property
    def whole(self) -> "Positions":
        """The positions of the whole sequence that a shard is of; else themselves.

        Raises:
            InputError: queries that are only some of the sequence's tokens, as with a cache.
        """
        if self.part is not None:
            return self.part.whole
        self.require_whole("this reads every token")
        return self
