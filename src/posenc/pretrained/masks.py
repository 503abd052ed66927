# SPDX-License-Identifier: Apache-2.0
"""Which keys each query sees in a transformers forward pass, as `Positions`: without an N x N mask for causality, sliding
windows, 2-D padding and packed documents, and from the mask itself where a user passes a 4-D one.

transformers makes one mask per kind of layer and passes it to every attention call with position_ids; neither says where
the cached keys are. So what we make is not a mask but a `token_index` tensor: int64 (batch, 1, 1, queries + keys [+ keys]),
each token's index in its row, -1 - index for padding, and where documents are packed, the document of each key. It has
four dimensions because transformers passes a 4-D mask on unchanged, also where it prepares masks before a compiled
decoding step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from posenc.bias import Dense
from posenc.encoding import Encoding
from posenc.encoding.passes import Pass
from posenc.errors import InputError
from posenc.positions import Positions

T = TypeVar("T")
FAR = 2**62
"""Beyond any position."""


def token_index(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any],
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Tensor | None:
    """The mask function that transformers calls (`AttentionMaskInterface`), in its signature.

    None when the queries are the last of the keys and nothing is padded; else a token index, or a bool mask (batch, 1,
    queries, keys) when the model needs more than causality, a window, padding and documents.
    """
    from transformers.masking_utils import causal_mask_function, prepare_padding_mask, sdpa_mask

    skips = others.get("allow_is_bidirectional_skip") and not use_vmap
    if skips and getattr(others.get("config"), "is_causal", True):  # an encoder: no causal model made to see both ways
        padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
        return None if padding is None else padding[:, None, None, :kv_length].bool()
    if use_vmap or "allow_is_bidirectional_skip" in others:  # mask functions of a particular model, or no causality
        return sdpa_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
            mask_function=mask_function, attention_mask=attention_mask, local_size=local_size,
            allow_is_causal_skip=False, use_vmap=use_vmap, device=device,
        )  # fmt: skip
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    # a window's function is made anew in each call: what tells it from one that also separates packed documents is
    # that transformers then forbids to skip the mask, which it otherwise does for single queries alone
    windowed = local_size is not None and (allow_is_causal_skip or q_length == 1)
    packed = mask_function is not causal_mask_function and not windowed
    last = not isinstance(q_offset, Tensor) and q_offset + q_length == kv_length + kv_offset
    if last and not packed and (padding is None or (not torch.compiler.is_compiling() and bool(padding.all()))):
        return None
    q, k = torch.arange(q_length, device=device) + q_offset, torch.arange(kv_length, device=device) + kv_offset
    index = torch.cat((q, k)).expand(batch_size, -1)
    if padding is not None:
        index = torch.where(padding.bool().gather(1, index), index, -1 - index)
    if packed:  # a document starts where a token does not see the one before
        row, before = torch.arange(batch_size, device=device)[:, None], (k - 1).clamp(min=0)
        starts = ~mask_function(row, torch.zeros_like(row), k[None], before[None])
        index = torch.cat((index, starts.expand(batch_size, -1).long().cumsum(1)), 1)
    return index[:, None, None]


@dataclass(frozen=True, eq=False)
class Visibility:
    """positions, and what they cannot express: a bool mask (batch or 1, heads or 1, queries, keys), or None."""

    positions: Positions
    allowed: Tensor | None = None


def visibility(
    mask: Tensor | None, position_ids: Tensor | None, queries: int, keys: int, device: torch.device
) -> Visibility:
    """Which keys the queries of an attention call see.

    mask: from `token_index`, or the user's, (batch, 1 or heads, queries, keys) bool or additive. position_ids: (batch or 1,
    queries), passed to the model or counted by it.

    Positions count from each row's first token that is no padding, so that a left-padded row is where it would be
    alone; gaps between position_ids stay.

    Raises:
        InputError: position_ids that jump while keys are cached, whose positions are then unknown.
    """
    if mask is None:
        positions = Positions.arange(queries, keys - queries, causal=True, device=device)
        if position_ids is None or position_ids.shape[1] == 1:
            return Visibility(positions)
        if not torch.compiler.is_compiling() and bool((position_ids.diff(dim=1) == 1).all()):
            return Visibility(positions)
        k = positions.k.expand(position_ids.shape[0], -1)
        return Visibility(_positions(k[:, keys - queries :], k, None, position_ids))
    if mask.dtype == torch.int64:
        of_q, of_k, *documents = mask[:, 0, 0].split([queries, keys, keys][: 1 + (mask.shape[-1] - queries) // keys], 1)
        q, k = (torch.where(tokens < 0, -1 - tokens, tokens) for tokens in (of_q, of_k))
        if not documents:
            return Visibility(_positions(q, k, of_k >= 0, position_ids))
        at = k if position_ids is None else position_ids.expand_as(k)
        of = {"q_document": documents[0], "k_document": documents[0]}
        return Visibility(Positions(q=at, k=at, q_order=q, k_order=k, causal=True, **of))
    mask = mask[..., :keys]  # a user's: causal where it is, and the mask itself
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    queries, keys = allowed.shape[-2:]
    anyone = allowed.any(1)  # (batch, queries, keys)
    k = torch.arange(keys, device=allowed.device)[None].expand(len(anyone), -1)
    end = torch.where(anyone[:, -1], k, -1).amax(1, keepdim=True)  # the last query sees itself and nothing later
    q = k if queries == keys else end - queries + 1 + k[:, :queries]
    positions = _positions(q, k, anyone.any(1), position_ids)
    causal = not torch.compiler.is_compiling() and not bool((anyone & (k[:, None] > q[:, :, None])).any())
    return Visibility(positions.with_causal(causal).derived(counted=False), allowed)


def _positions(q: Tensor, k: Tensor, valid: Tensor | None, position_ids: Tensor | None) -> Positions:
    """Positions of tokens from their indices in the row, q and k, (batch or 1, n). Every query is one of the keys, whose
    indices are consecutive."""
    real = torch.ones_like(k, dtype=torch.bool) if valid is None else valid
    slot = q - k[:, :1]
    at = k - torch.where(real, k, k[:, -1:]).amin(1, keepdim=True)
    if position_ids is not None:
        rows = max(k.shape[0], position_ids.shape[0])
        ids, real, slot, at = (x.expand(rows, -1) for x in (position_ids, real, slot, at))
        of_q = real.gather(1, slot)
        counted = real.long().cumsum(1) - 1  # as `generate` does, also where padding lies between the tokens
        same = (~of_q | (ids == counted.gather(1, slot))).all(1, keepdim=True)
        at = torch.where(same, counted, at)
        ahead = ids - at.gather(1, slot)
        least, most = ahead.masked_fill(~of_q, FAR).amin(1), ahead.masked_fill(~of_q, -FAR).amax(1)
        even = (most <= least)[:, None]
        if q.shape[1] == k.shape[1]:
            at = torch.where(even, at, ids)
        elif not torch.compiler.is_compiling() and not bool(even.all()):
            raise InputError(
                "position_ids that jump while keys are cached: the positions of the cached keys are unknown; pass the "
                "complete sequence at once, or position_ids that follow on"
            )
    q_valid = None if valid is None else real.gather(1, slot)
    return Positions(q=at.gather(1, slot), k=at, q_order=q, k_order=k, causal=True, valid=valid, q_valid=q_valid)


class HostPass:
    """A forward pass of a transformers model, whose layers are of few kinds: the `posenc.Pass` of each encoding under the mask of each
    kind, made once. see: who sees whom, from what `visibility` takes."""

    def __init__(self, see: Callable[..., Visibility] = visibility) -> None:
        self.see = see
        self.visible: list[tuple[tuple[object, ...], Visibility]] = []
        self.passes: list[tuple[tuple[object, ...], Pass]] = []

    def at(self, encoding: Encoding | None, window: int | None, mask: Tensor | None, ids: Tensor | None,
           queries: int, keys: int, device: torch.device) -> Pass:  # fmt: skip
        """The pass of a layer. encoding: None: nothing. window: how many keys a query sees at most, which a 4-D mask says by itself.
        mask, ids, queries, keys, device: as in `visibility`."""
        given = mask, ids, queries, keys
        visible = _found(self.visible, given, lambda: self.see(*given, device))

        def make() -> Pass:
            if visible.allowed is not None:
                only = BoolMask(visible.allowed)
                return Pass(only if encoding is None else encoding + only, visible.positions)
            positions = visible.positions
            return Pass(encoding, positions if window is None else positions.with_window(window - 1, window - 1))

        return _found(self.passes, (encoding, window, visible), make)


def _found(made: list[tuple[tuple[object, ...], T]], of: tuple[object, ...], make: Callable[[], T]) -> T:
    """What was made of the same objects before."""
    for others, value in made:
        if all(
            one is other or (type(one) is type(other) is int and one == other)
            for one, other in zip(of, others, strict=True)
        ):
            return value
    made.append((of, make()))
    return made[-1][1]


class BoolMask(Encoding):
    """Only what a bool mask lets through, for a single forward pass."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    bias_reads_keys = False

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Dense:
        precise = torch.promote_types(q.dtype, torch.float32)
        return Dense(torch.zeros_like(self.mask, dtype=precise).masked_fill(~self.mask, torch.finfo(precise).min))
