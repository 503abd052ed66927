# SPDX-License-Identifier: Apache-2.0
"""Training one model by all processes that torchrun or accelerate launched, as one process trains it.

At every step the processes see the examples that one process would see, each some of them, and the gradient is that of all.
accelerate starts the processes' communication and torch's DDP or FSDP2 divides the model.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from posenc.distributed import gather, shard
from posenc.encoding import Encoding
from posenc.errors import InputError
from posenc.lab.engines import InProcess, Job, Result, Results, Shared, Ticks, Work
from posenc.lab.experiment import Batch, Execution, Run
from posenc.lab.machine import check_present, flushed_denormals
from posenc.positions import Positions
from posenc.transformer import TransformerBase

__all__ = ["AllProcesses", "World", "executing", "follow", "launched", "together", "world"]

DDP, FSDP = "ddp", "fsdp"
CPU = torch.device("cpu")
LAYOUT = "zigzag"
"""Of sequence shards: under causal attention every process then has the same work."""


@dataclass(frozen=True)
class World:
    """The processes that train one model, by default this one alone, and how each computes.

    parallel: "ddp", or "fsdp" (FSDP2: parameters, gradients and optimizers are divided, and each block is gathered when it
    is needed). shards: processes of consecutive ranks that share each sequence, and group, their process group; such
    groups share the examples of a step. precision, compiled: see `posenc.lab.experiment.Execution`.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = CPU
    parallel: str = DDP
    shards: int = 1
    group: Any = None
    precision: str = "float32"
    compiled: bool = False

    @property
    def groups(self) -> int:
        """Groups of processes that share the examples of a step, each its sequences."""
        return self.size // self.shards

    def check(self, run: Run) -> None:
        """Raises:
        InputError: fewer examples a step than groups, or sequences that cannot be divided.
        """
        s = run.settings
        if s.batch_size < self.groups:
            raise InputError(
                f"batch_size={s.batch_size}: {self.size} processes share the examples of a step, and each needs one; give a "
                f"batch_size of at least {self.groups} or start fewer processes"
            )
        s.check_shards(self.shards)

    def wrap(self, model: TransformerBase) -> nn.Module:
        """What a forward pass in training goes through. FSDP2 changes the model in place."""
        model.to(self.device)
        wrapped = model if self.size == 1 else self._divide(model)
        return cast(nn.Module, torch.compile(wrapped)) if self.compiled else wrapped

    def _divide(self, model: TransformerBase) -> nn.Module:
        if self.parallel == DDP:
            # static: some encodings have parameters that no pass uses
            return nn.parallel.DistributedDataParallel(model, static_graph=True)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.type, (self.size,))
        empty = {parameter for parameter in model.parameters() if not parameter.numel()}  # which cannot be divided
        for parameter in empty:
            parameter.requires_grad_(False)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh, ignored_params=empty)
        return model

    def forward(self, module: nn.Module, encoding: Encoding, batch: Batch) -> tuple[Tensor, Tensor, Positions | None]:
        """Logits of this process's share of a batch, their targets, and the positions if it is a shard of sequences.

        encoding: the one that the module's model reads now.
        """
        part = batch.rows(self._rows(len(batch.inputs))).to(self.device)
        inputs, targets, positions = part.inputs, part.targets, part.positions
        if self.shards > 1:
            complete = positions or Positions.arange(inputs.shape[1], device=self.device)
            positions = complete.shard(self.rank % self.shards, self.shards, layout=LAYOUT, group=self.group)
            inputs, targets = shard(inputs, positions), shard(targets, positions)
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")
        with self._drawing(encoding, batch), autocast:
            logits = module(inputs, positions).float()
        return logits, targets, positions if self.shards > 1 else None

    def gather(self, values: Tensor, batch: int, positions: Positions | None = None) -> Tensor:
        """(batch, ...) on the CPU: the values of every row, from those that each process has of its share of a batch.
        positions: of a shard of sequences, which `values` belong to along their second axis."""
        if self.size == 1:
            return values.cpu()
        from accelerate.utils import gather_object

        if positions is not None:
            values = gather(values, positions)
        first, last = self._bounds(batch)
        count = last - first if self.rank % self.shards == 0 else 0
        return torch.cat(gather_object([values[:count].cpu()]))

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the processes."""
        if self.size == 1:
            return value
        from accelerate.utils import reduce

        return cast(Tensor, reduce(value.detach(), "mean"))

    def broadcast(self, value: Any = None) -> Any:
        """The value that rank 0 passes, on every rank."""
        if self.size == 1:
            return value
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

    def require_equal(self, name: str, value: object) -> None:
        """Raises:
        InputError: this process has another value than rank 0.
        """
        if value != (first := self.broadcast(value)):
            raise InputError(f"{name}={value}: rank 0 has {first}; pass the same to all processes")

    def _bounds(self, batch: int) -> tuple[int, int]:
        """The rows of a batch that belong to this process's group: from, to."""
        index = self.rank // self.shards
        return batch * index // self.groups, batch * (index + 1) // self.groups

    def _rows(self, batch: int) -> slice:
        """The rows that this process reads; at least one, since every process runs every pass."""
        first, last = self._bounds(batch)
        return slice(first, max(last, first + 1))

    @contextmanager
    def _drawing(self, encoding: Encoding, batch: Batch) -> Iterator[None]:
        """Inside, `encoding.augment` draws positions for the complete batch, as one process does, and returns the rows that
        this process reads. The models call it themselves, so this replaces it."""
        if self.groups == 1 or "augment" not in encoding.sites():
            yield
            return
        draw, rows, size, complete = encoding.augment, self._rows(len(batch.inputs)), len(batch.inputs), batch.positions

        def augment(positions: Positions, _: int) -> Positions:
            if complete is not None:
                positions = complete.with_causal(positions.causal).to(self.device)
            return _take_rows(draw(positions, size), size, rows)

        encoding.augment = augment  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            del encoding.augment


def _take_rows(positions: Positions, batch: int, rows: slice) -> Positions:
    tensors = {name: value for name, value in vars(positions).items() if isinstance(value, Tensor)}
    part: dict[str, Any] = {name: value[rows] for name, value in tensors.items() if value.shape[0] == batch}
    p = positions
    return replace(p, **part).with_known(start=p.start, diagonal=p.diagonal, span=p.span)


ALONE = World()
_current: ContextVar[World] = ContextVar("world", default=ALONE)


def world() -> World:
    """The processes that train together here: those of the enclosing `together`, or this one alone."""
    return _current.get()


@contextmanager
def executing(execution: Execution) -> Iterator[World]:
    """Inside, models are trained and tested as a run asks for; processes of a launcher have their devices from it.

    Raises:
        InputError: this machine has no such device.
    """
    here = world()
    if here.size == 1:
        check_present(execution.device)
    device = here.device if here.size > 1 else torch.device(execution.device)
    token = _current.set(replace(here, device=device, precision=execution.precision, compiled=execution.compiled))
    try:
        yield world()
    finally:
        _current.reset(token)


def launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def together(parallel: str | None = None, sequence_shards: int = 1) -> Iterator[World]:
    """Inside, all processes of a launcher call `posenc.lab.compare.compare` alike, and train each model together. Without a
    launcher nothing changes. Where one fails, the launcher ends the others.

    Args:
        parallel: "ddp" or "fsdp"; None: as the accelerate config, or "ddp".
        sequence_shards: processes that share each sequence; those of consecutive ranks.

    Raises:
        InputError: an argument where there is no launcher, processes that sequence_shards does not divide, or accelerate is
            missing.
    """
    if not launched():
        for name, value in (("parallel", parallel), ("sequence_shards", sequence_shards)):
            if value not in (None, 1):
                raise InputError(
                    f"{name}={value}: there is one process; start several with torchrun --nproc-per-node N -m posenc "
                    "compare ... or accelerate launch -m posenc compare ..."
                )
        yield world()
        return
    fsdp = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    joined = torch.distributed.is_initialized()  # by the caller, who also ends it
    here = _join(parallel or (FSDP if fsdp else DDP), sequence_shards)
    token = _current.set(here)
    try:
        with flushed_denormals():  # as worker processes of one machine do
            yield here
    finally:
        _current.reset(token)
    if not joined:  # nor after an error: the others may wait in the group until the launcher ends them
        from accelerate import PartialState

        PartialState().destroy_process_group()
        PartialState._reset_state()  # or it would not join again


def _join(parallel: str, shards: int) -> World:
    try:
        from accelerate import PartialState
    except ImportError:
        raise InputError(f"parallel={parallel}: needs accelerate: pip install 'posenc[lab]'") from None
    state = PartialState(cpu=not torch.cuda.is_available())
    rank, size, group = state.process_index, state.num_processes, None
    if shards < 1 or size % shards:
        raise InputError(f"sequence_shards={shards}: must divide the number of processes, {size}")
    if shards > 1:
        from torch.distributed.device_mesh import init_device_mesh

        names = ("batch", "sequence")
        mesh = init_device_mesh(state.device.type, (size // shards, shards), mesh_dim_names=names)
        group = mesh["sequence"].get_group()
    return World(rank, size, state.device, parallel, shards, group)


# -------------------------------------------------------------------- one comparison by all of them


class AllProcesses(InProcess):
    """The engine of rank 0 inside `together`: one job after the other, each by all processes. The others `follow`."""

    name: ClassVar[str] = "together"

    def run(self, work: Work[Shared, Job, Result], ticks: Ticks = lambda *_: None) -> Results[Job, Result]:
        """See `posenc.lab.engines.Engine`."""
        world().broadcast((work.function, list(work.jobs)))
        yield from super().run(work, ticks)


def follow(shared: Any) -> Any:
    """On the ranks above 0: compute a share of every job of `AllProcesses`, and return what rank 0 broadcasts at the end.

    shared: what jobs share, such as a `posenc.lab.study.Shared`.
    """
    while isinstance(received := world().broadcast(), tuple):
        function, jobs = received
        for job in jobs:
            function(shared, job, lambda size, what="": None)  # rank 0 reports the work of all
    return received
