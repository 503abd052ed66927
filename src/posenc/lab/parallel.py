"""Runs that many processes train together, as torchrun and accelerate launch start them: DDP or FSDP2, one global batch.

Rank 0 leads a comparison and writes its results; the others train the runs that it names. At every step they see the
texts that one process would see, each a part of them.
"""

import json
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from posenc.encoding import Encoding
from posenc.engines import Here, Interrupted, Work, silent
from posenc.engines.work import Result, Shared, Task, Tick, Ticks
from posenc.errors import InputError
from posenc.lab.config import Run
from posenc.lab.data import Batch, Corpus
from posenc.positions import Positions
from posenc.transformer import Block, Transformer

Rows = TypeVar("Rows", Tensor, Batch)
DDP, FSDP = "ddp", "fsdp"
FAREWELL = 20.0
"""Seconds that a process which fails waits for the others to learn of it."""


class Alone:
    """One process, which trains and tests by itself."""

    rank = 0
    world_size = 1
    device = torch.device("cpu")
    muon: type[torch.optim.Muon] = torch.optim.Muon

    def wrap(self, model: Transformer) -> nn.Module:
        """What a forward pass in training goes through; the model itself stays the one to look at."""
        return model

    def check(self, run: Run) -> None:
        """Refuse a run that cannot be divided."""

    def share(self, rows: Rows) -> Rows:
        """This process's rows of a whole batch."""
        return rows

    def weighed(self, loss: Tensor, own: int, whole: int) -> Tensor:
        """This process's mean loss over its own targets, such that the mean over the processes is that of the whole
        batch with so many targets."""
        return loss

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the processes."""
        return value

    def gathered(self, rows: Tensor, batch: int) -> Tensor:
        """The whole batch of so many rows from every process's `share` of it, on the CPU."""
        return rows

    @contextmanager
    def placing(self, encoding: Encoding, batch: int, positions: Positions | None = None) -> Iterator[None]:
        """Inside, `encoding.place` draws for the whole batch and keeps what is this process's: as one process draws.
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
_current: Alone = ALONE


def processes() -> Alone:
    """The processes that train together here: those of the enclosing `together`, or this one alone."""
    return _current


class Processes(Alone):
    """The processes of torch.distributed's default group. parallel: "ddp", or "fsdp" (FSDP2: parameters, gradients and
    optimizers divided, each block gathered when it is needed)."""

    def __init__(self, parallel: str) -> None:
        self.parallel = parallel
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
        self.muon = WholeMuon if parallel == FSDP else torch.optim.Muon

    def wrap(self, model: Transformer) -> nn.Module:
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
        fully_shard(model, mesh=mesh)  # embedding, head and encoding, which every block reads
        return model

    def check(self, run: Run) -> None:
        """Raises:
        InputError: fewer texts a step than processes."""
        if run.settings.batch_size < self.world_size:
            raise InputError(
                f"--batch-size {run.settings.batch_size}: {self.world_size} processes share each step's texts and every "
                "one needs a text; give a larger batch or start fewer processes"
            )

    def bounds(self, batch: int, rank: int | None = None) -> tuple[int, int]:
        """The rows of a batch that are a rank's: from, to."""
        rank = self.rank if rank is None else rank
        return batch * rank // self.world_size, batch * (rank + 1) // self.world_size

    def rows(self, batch: int) -> slice:
        """The rows that this process reads: its own, or any one where there are too few, since all must take part."""
        first, last = self.bounds(batch)
        return slice(first, max(last, first + 1))

    def share(self, rows: Rows) -> Rows:
        if isinstance(rows, Batch):
            return rows.rows(self.rows(len(rows.tokens))).to(self.device)
        return rows[self.rows(len(rows))].to(self.device)

    def weighed(self, loss: Tensor, own: int, whole: int) -> Tensor:
        return loss * (own * self.world_size / whole)

    def mean(self, value: Tensor) -> Tensor:
        total = value.detach().clone()
        dist.all_reduce(total)
        return total / self.world_size

    def gathered(self, rows: Tensor, batch: int) -> Tensor:
        padded = rows.new_zeros(-(-batch // self.world_size), *rows.shape[1:])
        first, last = self.bounds(batch)
        padded[: last - first] = rows[: last - first]
        parts = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(parts, padded)
        counts = [self.bounds(batch, rank) for rank in range(self.world_size)]
        return torch.cat([part[: last - first] for part, (first, last) in zip(parts, counts, strict=True)]).cpu()

    @contextmanager
    def placing(self, encoding: Encoding, batch: int, positions: Positions | None = None) -> Iterator[None]:
        if "place" not in encoding.sites():
            yield
            return
        whole, every = encoding.place, positions

        def place(positions: Positions, _: int) -> Positions:
            given = positions if every is None else every.with_causal(positions.causal).to(self.device)
            return _rows(whole(given, batch), batch, self.rows(batch))

        encoding.place = place  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            del encoding.place

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
    return replace(positions, _shared={}, **own)


class WholeMuon(torch.optim.Muon):
    """Muon for the divided matrices of FSDP2, exact: each is orthogonalised whole, one at a time, by every process.

    torch.optim.Muon takes DTensors too, but its products then follow the shards: sums over them are rounded to bfloat16
    more often, so that a step differs from that of one process.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        from torch.distributed.tensor import DTensor, Replicate

        def replicated(tensor: DTensor) -> DTensor:
            return tensor.redistribute(placements=[Replicate()] * tensor.device_mesh.ndim)

        parameters = [p for group in self.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is None:
                continue
            state = self.state[parameter]
            if "momentum_buffer" in state:
                state["momentum_buffer"] = replicated(state["momentum_buffer"])
            parameter.grad = replicated(gradient)
            super().step()  # type: ignore[no-untyped-call]
            state["momentum_buffer"] = state["momentum_buffer"].redistribute(placements=parameter.placements)
            parameter.grad = None
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


# -------------------------------------------------------------------- under a launcher


def launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def together(lead: Callable[[], dict[str, Any]], corpus: Corpus, parallel: str | None = None) -> dict[str, Any]:
    """Have all processes of a launcher make one comparison: rank 0 leads it, the others train the runs that it starts.
    Without a launcher it is simply led. Every rank is given what rank 0 returned.

    Args:
        lead: makes the comparison, see `posenc.lab.compare.compare`.
        corpus: its text.
        parallel: "ddp" or "fsdp"; None: what the accelerate config says, or "ddp".

    Raises:
        InputError: what any rank raised, on every rank; `parallel` where there is no launcher.
    """
    if not launched():
        if parallel is not None:
            raise InputError(
                f"--parallel {parallel}: there is one process; start several with torchrun --nproc-per-node N -m posenc "
                "compare ... or accelerate launch -m posenc compare ..."
            )
        return lead()
    with _joined(parallel) as found:
        results: dict[str, Any] = lead() if found.rank == 0 else follow(found, corpus)
        if found.rank == 0 and results["complete"]:
            found.tell(results)
        return results


def follow(group: Processes, corpus: Corpus) -> dict[str, Any]:
    """Train every run that rank 0 starts; what it gives out at the end."""
    while isinstance(order := group.tell(), tuple):
        measured, run = order
        if run.data != corpus.digest:
            raise InputError(
                f"--data {corpus.name}: rank {group.rank} reads another text than rank 0; give all the same"
            )
        measured(corpus, run, lambda size, what="": None)
    found: dict[str, Any] = order
    return found


@dataclass(frozen=True)
class Together:
    """The engine of rank 0 inside `together`: one task after the other, each by all processes."""

    name: ClassVar[str] = "together"
    in_process: ClassVar[bool] = True

    @property
    def workers(self) -> int:
        return 1

    def run(
        self, work: Work[Shared, Task, Result], on_tick: Ticks[Task] = silent
    ) -> Generator[tuple[Task, Result], None, None]:
        """See `posenc.engines.Engine`."""
        group = processes()
        assert isinstance(group, Processes), "called inside together() by rank 0"

        def train(shared: Shared, task: Task, tick: Tick) -> Result:
            group.tell((work.function, task))
            return work.function(shared, task, tick)

        yield from Here().run(replace(work, function=train), on_tick)


@contextmanager
def joint(parallel: str) -> Iterator[Processes]:
    """Inside, the processes of torch.distributed's default group train and test together: all of them call the same.

    parallel: "ddp" or "fsdp".
    """
    global _current
    torch.set_flush_denormal(True)  # as a worker process of the lab does
    _current = found = Processes(parallel)
    try:
        yield found
    finally:
        _current = ALONE


@contextmanager
def _joined(parallel: str | None) -> Iterator[Processes]:
    """The launcher's processes as one group. What one of them raises, all raise."""
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    store, rank, world_size = next(rendezvous("env://"))
    dist.init_process_group(backend, store=PrefixStore("posenc", store), rank=rank, world_size=world_size)
    asked_fsdp = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    try:
        with joint(parallel or (FSDP if asked_fsdp else DDP)) as found:
            yield found
    except Interrupted:
        raise
    except Exception as error:
        raise _common(error, store, rank, world_size) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _common(error: Exception, store: Any, rank: int, world_size: int) -> Exception:
    """The error that every process raises: that of the first that failed, since the others fail for want of it."""
    own = [type(error).__name__, f"rank {rank}: {error}", str(error)]
    kind, named, text = json.loads(store.compare_set("error", "", json.dumps(own)))
    dist.destroy_process_group()  # closes the connections that others wait at
    failed, deadline = store.add("failed", 1), time.monotonic() + FAREWELL
    while failed < world_size and time.monotonic() < deadline:
        time.sleep(0.05)  # a launcher kills the others as soon as one has ended: they should be able to say why
        failed = store.add("failed", 0)
    return InputError(text) if kind == InputError.__name__ else RuntimeError(named)
