# SPDX-License-Identifier: Apache-2.0
"""Who sees whom in a transformers forward pass, as `Positions`: without an N x N mask wherever causality, a sliding
window, 2-D padding and packed documents say it all, and from the mask itself where a user gives one of four dimensions.

transformers makes one mask per kind of layer and hands it to every attention call with position_ids; neither says
where the cached keys are. So what is made here is no mask but a *register*: an int64 tensor (batch, 1, 1, queries +
keys [+ keys]) of each token's number in its row, -1 - number for padding, and where documents are packed, the document
of each key. It has four dimensions because transformers passes such a mask on as it is, also where it prepares masks
before a compiled decoding step.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posenc.bias import Dense, Relative
from posenc.checks import checked
from posenc.encoding import Encoding
from posenc.errors import InputError
from posenc.positions import Positions

FAR = 2**40
"""Beyond any position."""


def register(
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

    None when the queries are the last of the keys and nothing is padded; else a register, or a bool mask (batch, 1,
    queries, keys) when the model asks for more than causality, a window, padding and documents.
    """
    from transformers.masking_utils import causal_mask_function, prepare_padding_mask, sdpa_mask

    if use_vmap or "allow_is_bidirectional_skip" in others:  # functions of the model's own, or no causality at all
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
    numbers = torch.cat((q, k)).expand(batch_size, -1)
    if padding is not None:
        numbers = torch.where(padding.bool().gather(1, numbers), numbers, -1 - numbers)
    if packed:  # a document starts where a token does not see the one before
        row, before = torch.arange(batch_size, device=device)[:, None], (k - 1).clamp(min=0)
        starts = ~mask_function(row, torch.zeros_like(row), k[None], before[None])
        numbers = torch.cat((numbers, starts.expand(batch_size, -1).long().cumsum(1)), 1)
    return numbers[:, None, None]


@dataclass(frozen=True, eq=False)
class Seen:
    """positions, and what they cannot say: a bool mask (batch or 1, heads or 1, queries, keys), or None."""

    positions: Positions
    allowed: Tensor | None = None


def seen(mask: Tensor | None, position_ids: Tensor | None, queries: int, keys: int, device: torch.device) -> Seen:
    """What an attention call sees.

    mask: what `register` gave, or a mask of the user's own, (batch, 1 or heads, queries, keys) bool or additive.
    position_ids: (batch or 1, queries), as the model was given them or counted them itself.

    Positions count from each row's first token that is no padding, so that a left-padded row is where it would be
    alone; gaps that position_ids leave are kept.

    Raises:
        InputError: position_ids that jump while keys are cached, whose positions are then unknown.
    """
    if mask is None:
        positions = Positions.arange(queries, keys - queries, causal=True, device=device)
        if position_ids is None or _contiguous(position_ids):
            return Seen(positions)
        k = positions.k.expand(position_ids.shape[0], -1)
        return Seen(_placed(k[:, keys - queries :], k, None, position_ids))
    if mask.dtype == torch.int64:
        of_q, of_k, *documents = mask[:, 0, 0].split([queries, keys, keys][: 1 + (mask.shape[-1] - queries) // keys], 1)
        q, k = (torch.where(tokens < 0, -1 - tokens, tokens) for tokens in (of_q, of_k))
        if not documents:
            return Seen(_placed(q, k, of_k >= 0, position_ids))
        own = k if position_ids is None else position_ids.expand_as(k)
        return Seen(
            Positions(q=own, k=own, q_order=q, k_order=k, causal=True, q_document=documents[0], k_document=documents[0])
        )
    mask = mask[..., :keys]
    return _from_mask(mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2, position_ids)


def _contiguous(ids: Tensor) -> bool:
    return ids.shape[1] == 1 or (not torch.compiler.is_compiling() and bool((ids.diff(dim=1) == 1).all()))


def _placed(q: Tensor, k: Tensor, valid: Tensor | None, position_ids: Tensor | None) -> Positions:
    """Positions of tokens by their numbers in the row, q and k, (batch or 1, n). Every query is one of the keys, whose
    numbers run on by ones."""
    real = torch.ones_like(k, dtype=torch.bool) if valid is None else valid
    slot = q - k[:, :1]
    places = k - torch.where(real, k, k[:, -1:]).amin(1, keepdim=True)
    if position_ids is not None:
        rows = max(k.shape[0], position_ids.shape[0])
        ids, real, slot, places = (x.expand(rows, -1) for x in (position_ids, real, slot, places))
        of_q = real.gather(1, slot)
        counted = real.long().cumsum(1) - 1  # as `generate` does, also where padding lies between the tokens
        same = (~of_q | (ids == counted.gather(1, slot))).all(1, keepdim=True)
        places = torch.where(same, counted, places)
        ahead = ids - places.gather(1, slot)
        least, most = ahead.masked_fill(~of_q, FAR).amin(1), ahead.masked_fill(~of_q, -FAR).amax(1)
        even = (most <= least)[:, None]
        if q.shape[1] == k.shape[1]:
            places = torch.where(even, places, ids)
        elif not torch.compiler.is_compiling() and not bool(even.all()):
            raise InputError(
                "position_ids that jump while keys are cached: where the cached keys are is not known; pass the whole "
                "sequence at once, or position_ids that follow on"
            )
    own = None if valid is None else real.gather(1, slot)
    return Positions(q=places.gather(1, slot), k=places, q_order=q, k_order=k, causal=True, valid=valid, q_valid=own)


def _from_mask(allowed: Tensor, position_ids: Tensor | None) -> Seen:
    """A mask of the user's own: causal where it is found to be, and itself."""
    queries, keys = allowed.shape[-2:]
    anyone = allowed.any(1)  # (batch, queries, keys)
    k = torch.arange(keys, device=allowed.device)[None].expand(len(anyone), -1)
    end = torch.where(anyone[:, -1], k, -1).amax(1, keepdim=True)  # the last query sees itself and nothing later
    q = k if queries == keys else end - queries + 1 + k[:, :queries]
    positions = _placed(q, k, anyone.any(1), position_ids)
    causal = not torch.compiler.is_compiling() and not bool((anyone & (k[:, None] > q[:, :, None])).any())
    return Seen(positions.with_causal(causal), allowed)


class Allowed(Encoding):
    """Only what a bool mask lets through, for a single forward pass."""

    @checked
    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    bias_reads_keys = False

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Dense:
        precise = torch.promote_types(q.dtype, torch.float32)
        return Dense(torch.zeros_like(self.mask, dtype=precise).masked_fill(~self.mask, torch.finfo(precise).min))


def _by_order(positions: Positions) -> Positions:
    """The same tokens, each at its number in the row."""
    return replace(positions, q=positions.q_order, k=positions.k_order).with_known(diagonal=positions.diagonal)


class Window(Encoding):
    """Only the nearest keys: a query sees those at a distance below `window`, as transformers' sliding layers do."""

    bias_reads_keys = False
    shift_invariant = True

    @checked
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Relative:
        lowest, window = torch.finfo(torch.float32).min, self.window

        def beyond(head: Tensor, distance: Tensor) -> Tensor:
            return torch.where(distance < window, 0.0, lowest) + 0.0 * head

        if positions.start is None:  # a window counts tokens, whatever gaps there are between their positions
            positions = positions.shared(Window, lambda: _by_order(positions))
        return Relative(beyond, q.shape[1], positions)
