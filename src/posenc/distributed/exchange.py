# SPDX-License-Identifier: Apache-2.0
"""Between the full sequence and the parts that processes have."""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from posenc.encoding import Encoding, augmented_by
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.positions.shards import Shard, chunks_of

_PLAIN = torch._C._nn.scaled_dot_product_attention  # whatever torch.nn.functional has when this is imported


def shard(x: Tensor, positions: Positions, dim: int = 1) -> Tensor:
    """This process's part of a tensor over the full sequence, such as tokens or labels.

    positions: a shard, from `Positions.shard`. dim: the sequence's.

    Raises:
        InputError: positions that are no shard, or a tensor of another length.
    """
    part = _sharding(positions)
    _check_length(x, dim, part.full.num_queries, "the full sequence has")
    return part.take(x, dim)


def gather(x: Tensor, positions: Positions, dim: int = 1) -> Tensor:
    """The full sequence, in its order, from every process's part. All processes of the group call it together.

    Differentiable: a process's part gets the sum of the gradients that arrive at it in all processes.
    positions: a shard, from `Positions.shard`. dim: the sequence's."""
    part = _sharding(positions)
    _check_length(x, dim, part.length, "the shard has")
    if part.world_size == 1:
        return x
    _check_group(part)
    parts: tuple[Tensor, ...] = _AllGather.apply(x, part)  # type: ignore[no-untyped-call]
    chunks: dict[int, Tensor] = {}
    for rank, local in enumerate(parts):
        numbers = chunks_of(rank, part.world_size, part.layout)
        chunks.update(zip(numbers, local.chunk(len(numbers), dim), strict=True))
    return torch.cat([chunks[number] for number in sorted(chunks)], dim)


def gather_keys(k: Tensor, v: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
    """All keys and values, (batch, heads, num_keys, width), from those of a shard, in one exchange."""
    if k.shape[:3] != v.shape[:3] or k.dtype != v.dtype:
        raise InputError(f"k {tuple(k.shape)} {k.dtype} and v {tuple(v.shape)} {v.dtype} do not belong together")
    k, v = gather(torch.cat((k, v), -1), positions, 2).split([k.shape[-1], v.shape[-1]], -1)
    return k, v


class _AllGather(torch.autograd.Function):
    """Every process's x; and back, the sum of what arrives at x in all of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Shard) -> tuple[Tensor, ...]:
        ctx.group, x = part.group, x.contiguous()
        parts = [torch.empty_like(x) for _ in range(part.world_size)]
        dist.all_gather(parts, x, part.group)
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        local = torch.empty_like(gradients[0], memory_format=torch.contiguous_format)
        dist.reduce_scatter(local, [gradient.contiguous() for gradient in gradients], group=ctx.group)
        return local, None


def augment_shard(encoding: Encoding, positions: Positions, batch: int) -> Positions:
    """`Encoding.augment` for a shard: its part of the full sequence once that has been augmented. Random numbers are those
    of the group's first process, in all of them."""
    part = _sharding(positions)
    moved = augmented_by(encoding, part.full, batch)
    if moved is part.full:
        return positions
    if part.world_size > 1:
        _check_group(part)
        drawn = moved.q.contiguous().clone()
        dist.broadcast(drawn, group_src=0, group=part.group)
        moved = moved.moved(lambda ids, order: drawn)
    return part.of(moved)


def _sharding(positions: Positions) -> Shard:
    if not isinstance(positions, Positions) or positions.sharding is None:
        raise InputError("without a shard: pass positions.shard(rank, world_size)", positions=positions)
    return positions.sharding


def _check_length(x: Tensor, dim: int, length: int, whose: str) -> None:
    if not -x.dim() <= dim < x.dim() or x.shape[dim] != length:
        raise InputError(f"x of shape {tuple(x.shape)} along dim={dim}: {whose} {length} tokens")


def calls_of(positions: Positions, causal: bool) -> list[Positions]:
    """Positions of the calls of attention that a shard takes: one for each run of tokens, among all keys or, if causal,
    those up to its own end. That keeps each one contiguous where the sequence is, and leaves out what no query of it
    sees."""
    shard = positions.sharding
    assert shard is not None
    full = shard.full.with_causal(causal)
    return [shard._replace(runs=(run,), keys=None if full.sees_future else run[1]).of(full) for run in shard.runs]


def refuse_ring() -> None:
    """Raises:
    InputError: inside `torch.distributed.tensor.experimental.context_parallel`, which replaces PyTorch's attention by one that takes
    queries and keys for a complete text."""
    current = torch.nn.functional.scaled_dot_product_attention
    if current is not _PLAIN and (current.__module__ or "").startswith("torch.distributed.tensor.experimental"):
        remedy = "leave it, and pass positions.shard(rank, world_size, layout='zigzag') of all"
        raise InputError(f"torch's context_parallel knows of no positions: {remedy}")


def _check_group(part: Shard) -> None:
    if not dist.is_available() or not dist.is_initialized():
        remedy = "call torch.distributed.init_process_group, and start the program by torchrun"
        raise InputError(f"a shard of world_size={part.world_size} without a process group: {remedy}")
    rank, size = dist.get_rank(part.group), dist.get_world_size(part.group)
    if (rank, size) != (part.rank, part.world_size):
        remedy = "pass the rank and world size of the group that has the sequence"
        raise InputError(f"shard {part.rank} of {part.world_size} in process {rank} of {size}: {remedy}")
