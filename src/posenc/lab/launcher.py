# SPDX-License-Identifier: Apache-2.0
"""One comparison by all processes that torchrun or accelerate launch started.

Rank 0 leads it and writes its results; the others train the runs that it names.
"""

import json
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from posenc.errors import InputError
from posenc.lab.engines import InProcess, Job, Result, Shared, Tick, Ticks, Work
from posenc.lab.parallel import DDP, FSDP, Processes, joint, processes
from posenc.lab.study import Interrupted
from posenc.lab.task import Corpus

__all__ = ["Together", "follow", "launched", "together"]

FAREWELL = 20.0
"""Seconds that a process which fails waits for the others to learn of it."""


def launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def together(parallel: str | None = None, sequence_shards: int = 1) -> Iterator[None]:
    """Inside, the processes of a launcher are one: all of them call `posenc.lab.compare.compare` alike, which trains each
    model by all, and what one of them raises, all raise. Without a launcher nothing is changed.

    Args:
        parallel: "ddp" or "fsdp"; None: what the accelerate config says, or "ddp".
        sequence_shards: processes that share each sequence; those of consecutive ranks.

    Raises:
        InputError: what any rank raised, on every rank; an argument where there is no launcher.
    """
    if not launched():
        for flag, given in (("--parallel", parallel), ("--sequence-shards", sequence_shards)):
            if given not in (None, 1):
                raise InputError(
                    f"{flag} {given}: there is one process; start several with torchrun --nproc-per-node N -m posenc "
                    "compare ... or accelerate launch -m posenc compare ..."
                )
        yield
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    store, rank, world_size = next(rendezvous("env://"))
    dist.init_process_group(backend, store=PrefixStore("posenc", store), rank=rank, world_size=world_size)
    asked_fsdp = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    try:
        with joint(parallel or (FSDP if asked_fsdp else DDP), sequence_shards):
            yield
    except Interrupted:
        raise
    except Exception as error:
        raise _common(error, store, rank, world_size) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def follow(group: Processes, corpus: Corpus) -> dict[str, Any]:
    """Train every run that rank 0 starts; what it gives out at the end."""
    while isinstance(order := group.tell(), tuple):
        measured, run = order
        if run.data != corpus.digest:
            raise InputError(f"--data {corpus.name}: rank {group.rank} reads other data than rank 0; give all the same")
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
        self, work: Work[Shared, Job, Result], ticks: Ticks = lambda *_: None
    ) -> Generator[tuple[Job, Result], None, None]:
        """See `posenc.lab.engines.Engine`."""
        group = processes()

        def train(shared: Shared, job: Job, tick: Tick) -> Result:
            group.tell((work.function, job))
            return work.function(shared, job, tick)

        yield from InProcess().run(replace(work, function=train), ticks)


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
