# SPDX-License-Identifier: Apache-2.0
"""Training and testing one model by many processes: DDP or FSDP2, one global batch, sequences whole or in shards.

At every step the processes see the examples that one process would see, each a part of them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from posenc.blocks import Block, Host
from posenc.distributed import gather, shard
from posenc.encoding import Encoding
from posenc.errors import InputError
from posenc.lab.config import Run
from posenc.lab.task import Batch
from posenc.measuring.machine import flushed_denormals
from posenc.positions import Positions

DDP, FSDP = "ddp", "fsdp"
LAYOUT = "zigzag"
"""Of sequence shards: attention is causal here, and this way the same work for all."""


class Alone:
    """One process, which trains and tests by itself."""

    rank = 0
    world_size = 1
    device: torch.device = torch.device("cpu")

    def wrap(self, model: Host) -> nn.Module:
        """What a forward pass in training goes through; the model itself stays the one to look at."""
        return model

    def check(self, run: Run) -> None:
        """Refuse a run that cannot be divided."""

    def share(self, batch: Batch) -> tuple[Tensor, Tensor, Positions | None]:
        """This process's inputs and targets of a whole batch, and where they are, see `Batch`."""
        return batch.inputs, batch.targets, batch.positions

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the processes."""
        return value

    def gathered(self, values: Tensor, batch: int, positions: Positions | None) -> Tensor:
        """What belongs to the inputs of a whole batch of so many rows, from every process's `share` of it, on the CPU.
        positions: those of this process's share."""
        return values

    @contextmanager
    def placing(self, encoding: Encoding, batch: int, positions: Positions | None = None) -> Iterator[None]:
        """Inside, `encoding.augment` draws for the whole batch and keeps what is this process's: as one process draws.
        positions: of the whole batch, where its rows differ."""
        yield

    def tell(self, what: Any = None) -> Any:
        """What rank 0 has to say, on every rank."""
        return what

    def whole(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor of the model or its optimizers, all of it."""
        return tensor.detach().clone()

    def like(self, whole: Tensor, tensor: Tensor) -> Tensor:
        """A copy of a whole tensor, divided as another one is."""
        return whole.clone()


ALONE = Alone()
_current: ContextVar[Alone] = ContextVar("processes", default=ALONE)


def processes() -> Alone:
    """The processes that train together here: those of the enclosing `together`, or this one alone."""
    return _current.get()


class Processes(Alone):
    """The processes of torch.distributed's default group.

    parallel: "ddp", or "fsdp" (FSDP2: parameters, gradients and optimizers divided, each block gathered when it is
    needed). sequence_shards: processes of consecutive ranks that share each sequence; such teams share the batch.

    Raises:
        InputError: teams that do not come out even.
    """

    def __init__(self, parallel: str, sequence_shards: int = 1) -> None:
        self.parallel = parallel
        self.shards = sequence_shards
        self.rank: int = dist.get_rank()
        self.world_size: int = dist.get_world_size()
        if sequence_shards < 1 or self.world_size % sequence_shards:
            raise InputError(
                f"--sequence-shards {sequence_shards}: {self.world_size} processes are no multiple of it; give a number "
                "that divides them"
            )
        self.teams: int = self.world_size // sequence_shards
        self.team: int = self.rank // sequence_shards
        self.seat: int = self.rank % sequence_shards
        cuda = torch.cuda.is_available()
        self.device: torch.device = (
            torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
        )
        self.sequence: dist.ProcessGroup | None = None
        if sequence_shards > 1:
            from torch.distributed.device_mesh import init_device_mesh

            mesh = init_device_mesh(
                self.device.type, (self.teams, sequence_shards), mesh_dim_names=("batch", "sequence")
            )
            self.sequence = mesh["sequence"].get_group()

    def wrap(self, model: Host) -> nn.Module:
        model.to(self.device)
        if self.parallel == DDP:
            # every step goes the same way, past the parameters, if any, that an encoding owns and does not use
            return nn.parallel.DistributedDataParallel(model, static_graph=True)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.type, (self.world_size,))
        for block in model.blocks:
            assert isinstance(block, Block)
            fully_shard(block, mesh=mesh)
        empty = {
            parameter for parameter in model.parameters() if not parameter.numel()
        }  # tokens that a host has none of
        for parameter in empty:
            parameter.requires_grad_(False)
        # embedding, head and encoding, which every block reads
        fully_shard(model, mesh=mesh, ignored_params=empty)
        return model

    def check(self, run: Run) -> None:
        """Raises:
        InputError: fewer examples a step than there are to share them, or sequences that cannot be cut into shards.
        """
        s = run.settings
        if s.batch_size < self.teams:
            sharing = f"{self.teams} processes" if self.shards == 1 else f"{self.teams} times {self.shards} processes"
            raise InputError(
                f"--batch-size {s.batch_size}: {sharing} share each step's examples and each "
                "needs one; give a larger batch or start fewer processes"
            )
        s.check_shards(self.shards)

    def bounds(self, batch: int, team: int) -> tuple[int, int]:
        """The rows of a batch that are a team's: from, to."""
        return batch * team // self.teams, batch * (team + 1) // self.teams

    def rows(self, batch: int) -> slice:
        """The rows that this process reads: its team's, or any one where there are too few, since all must take part."""
        first, last = self.bounds(batch, self.team)
        return slice(first, max(last, first + 1))

    def share(self, batch: Batch) -> tuple[Tensor, Tensor, Positions | None]:
        own = batch.rows(self.rows(len(batch.inputs))).to(self.device)
        if self.sequence is None:
            return own.inputs, own.targets, own.positions
        whole = own.positions or Positions.arange(own.inputs.shape[1], device=self.device)
        here = whole.shard(self.seat, self.shards, layout=LAYOUT, group=self.sequence)
        return shard(own.inputs, here), shard(own.targets, here), here

    def mean(self, value: Tensor) -> Tensor:
        total = value.detach().clone()
        dist.all_reduce(total)
        return total / self.world_size

    def gathered(self, values: Tensor, batch: int, positions: Positions | None) -> Tensor:
        if positions is not None and positions.part is not None:
            values = gather(values, positions)
        padded = values.new_zeros(-(-batch // self.teams), *values.shape[1:])
        first, last = self.bounds(batch, self.team)
        padded[: last - first] = values[: last - first]
        parts = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(parts, padded)
        counts = [self.bounds(batch, team) for team in range(self.teams)]
        of_teams = parts[:: self.shards]
        return torch.cat([part[: last - first] for part, (first, last) in zip(of_teams, counts, strict=True)]).cpu()

    @contextmanager
    def placing(self, encoding: Encoding, batch: int, positions: Positions | None = None) -> Iterator[None]:
        if "augment" not in encoding.sites():
            yield
            return
        whole, every = encoding.augment, positions

        def place(positions: Positions, _: int) -> Positions:
            given = positions if every is None else every.with_causal(positions.causal).to(self.device)
            return _rows(whole(given, batch), batch, self.rows(batch))

        encoding.augment = place  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            del encoding.augment

    def whole(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()

    def like(self, whole: Tensor, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, distribute_tensor

        if isinstance(tensor, DTensor) and whole.shape == tensor.shape:
            return distribute_tensor(whole.to(self.device), tensor.device_mesh, tensor.placements)
        return whole.clone()

    def tell(self, what: Any = None) -> Any:
        box = [what]
        dist.broadcast_object_list(box)
        return box[0]


def _rows(positions: Positions, batch: int, rows: slice) -> Positions:
    tensors = {name: value for name, value in vars(positions).items() if isinstance(value, Tensor)}
    own: dict[str, Any] = {name: value[rows] for name, value in tensors.items() if value.shape[0] == batch}
    p = positions
    return replace(p, **own).knowing(start=p.start, diagonal=p.diagonal, span=p.span)


@contextmanager
def joint(parallel: str, sequence_shards: int = 1) -> Iterator[Processes]:
    """Inside, the processes of torch.distributed's default group train and test together: all of them call the same.

    parallel, sequence_shards: see `Processes`.
    """
    found = Processes(parallel, sequence_shards)
    token = _current.set(found)
    try:
        with flushed_denormals():  # as in `posenc.lab.sweep`
            yield found
    finally:
        _current.reset(token)
