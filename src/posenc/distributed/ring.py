# SPDX-License-Identifier: Apache-2.0
"""PyTorch's ring attention, `torch.distributed.tensor.experimental.context_parallel`, where it can serve a shard.

Inside that context manager PyTorch replaces its scaled_dot_product_attention by one that sends keys and values from process to
process and never has all of them. It supports no mask, bias, sink or value term, so it serves what acts before the product alone.
"""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor
from torch.nn import functional as F

from posenc.encoding import Encoding
from posenc.positions import Positions

Attend = Callable[..., Tensor]
_PLAIN = F.scaled_dot_product_attention


def active() -> Attend | None:
    """The function that replaces PyTorch's attention inside `context_parallel`; None outside."""
    current: Attend = F.scaled_dot_product_attention
    if current is _PLAIN:
        return None
    return current if (current.__module__ or "").startswith("torch.distributed.tensor.experimental") else None


def refusal(
    q: Tensor, k: Tensor, encoding: Encoding | None, positions: Positions, sink: float | Tensor | None, layer: int,
    softcap: float | None = None,
) -> str | None:  # fmt: skip
    """Why the ring cannot serve a shard, inside `context_parallel` or not; None when it can."""
    assert positions.sharding is not None
    if active() is None:
        return "torch's context_parallel is not active"
    if not positions.unmasked:
        return "context_parallel supports no padding, documents, prefix, window or blocks"
    if q.shape[1] != k.shape[1]:
        return "context_parallel does not support grouped-query attention"
    if encoding is not None:
        scores = [
            site
            for site in ("restrict", "gates", "scores", "bias", "modify", "values", "sink", "prefix_kv")
            if site in encoding.sites()
        ]
        if scores:
            return f"context_parallel supports no {scores[0]}"
        if encoding.branches(layer):
            return "context_parallel supports no position map"
        if encoding.needs_length:
            return "the rotation depends on the sequence's length"
    if sink is not None:
        return "context_parallel supports no sink"
    if softcap is not None:
        return "context_parallel supports no softcap"
    if balanced() != (positions.sharding.layout == "zigzag"):
        on, layout = ("on", "zigzag") if balanced() else ("off", "contiguous")
        return f"context_parallel's load balancing is {on}, which takes layout={layout!r}"
    return "load balancing requires causal=True" if balanced() and not positions.causal else None


def balanced() -> bool:
    """Whether context_parallel gives each process a part from the front and one from the back."""
    from torch.distributed.tensor.experimental._attention import _cp_options  # where PyTorch's guide sets it

    return bool(_cp_options.enable_load_balance)


def alone(positions: Positions) -> Positions:
    """A shard's tokens among themselves, at their own positions; what they see is still counted among all."""
    return replace(
        positions, k=positions.q, k_order=positions.q_order, sharding=None, full_keys=positions
    ).with_known(diagonal=0)  # fmt: skip
