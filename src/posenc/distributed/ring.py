# SPDX-License-Identifier: Apache-2.0
"""PyTorch's ring attention, `torch.distributed.tensor.experimental.context_parallel`, where it can serve a shard.

Inside that context manager PyTorch replaces its scaled_dot_product_attention by one that sends keys and values from process to
process and never has all of them. It knows no mask, bias, sink or value term, so it serves what acts before the product alone.
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
    """What has replaced PyTorch's attention inside `context_parallel`; None outside."""
    found: Attend = F.scaled_dot_product_attention
    if found is _PLAIN:
        return None
    return found if (found.__module__ or "").startswith("torch.distributed.tensor.experimental") else None


def refusal(
    q: Tensor, k: Tensor, encoding: Encoding | None, positions: Positions, sink: float | Tensor | None, layer: int
) -> str | None:
    """Why the ring cannot serve a shard, inside `context_parallel` or not; None when it can."""
    assert positions.part is not None
    if active() is None:
        return "torch's context_parallel is not active"
    if not positions.unmasked:
        return "the ring knows no padding and no documents"
    if q.shape[1] != k.shape[1]:
        return "there are few keys' heads"
    if encoding is not None:
        acting = [site for site in ("bias", "values", "sink") if site in encoding.sites()]
        if acting or sink is not None:
            return f"the ring knows no {acting[0] if acting else 'sink'}"
        if encoding.branches(layer):
            return "the ring knows no position map"
        if encoding.needs_length:
            return "keys are turned by the sequence's length"
    elif sink is not None:
        return "the ring knows no sink"
    if balanced() != (positions.part.layout == "zigzag"):
        return (
            f"context_parallel {'balances' if balanced() else 'does not balance'} the load, and the layout is another"
        )
    return "a balanced ring is causal" if balanced() and not positions.causal else None


def balanced() -> bool:
    """Whether context_parallel gives each process a part from the front and one from the back."""
    from torch.distributed.tensor.experimental._attention import _cp_options  # where PyTorch's guide sets it

    return bool(_cp_options.enable_load_balance)


def alone(positions: Positions) -> Positions:
    """A shard's tokens among themselves, at their own positions; what they see is still counted among all."""
    return replace(
        positions, k=positions.q, k_order=positions.q_order, part=None, every_key=positions
    ).knowing(diagonal=0)  # fmt: skip
