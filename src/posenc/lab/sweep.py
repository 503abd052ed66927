"""Running many runs: one-thread worker processes, one per core, each finished run stored at once."""

import contextlib
import multiprocessing
import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import Queue
from pathlib import Path

import torch

from posenc.lab.config import Run
from posenc.lab.data import Corpus
from posenc.lab.evaluate import arms, evaluate
from posenc.lab.store import ArmScores, Cell, Store
from posenc.lab.train import activation_bytes, diverged, train

Ticks = Callable[[Run, int], None]
TRAIN_COST = 3
"""A trained token costs about as much as this many tested ones."""


class Interrupted(Exception):
    """The sweep was stopped from the keyboard; what had finished is stored."""


def work(run: Run) -> int:
    """The size of a run, in tested tokens."""
    s = run.settings
    tested = s.windows * s.length * sum(s.factors) * len(arms(run.encoding, run.make_encoding(), s))
    return TRAIN_COST * s.steps * s.batch_size * s.length + tested


def sweep(
    runs: Sequence[Run],
    corpus: Corpus,
    store: Store,
    workers: int,
    on_progress: Ticks = lambda run, done: None,
    on_finished: Callable[[Run, Cell], None] = lambda run, cell: None,
) -> None:
    """Run what is not in the store yet. on_progress is told the work done since the last call.

    One thread per process: two threads in one process wait for each other at every small operation, while two
    processes use both cores fully.

    Raises:
        Interrupted: by Ctrl-C. InputError: a run's own (its loss diverged). RuntimeError: a worker died.
    """
    if not runs:
        return
    context = multiprocessing.get_context("spawn")
    ticks: Queue[tuple[int, int]] = context.Queue()
    with tempfile.TemporaryDirectory(prefix="posenc-") as scratch:
        text = Path(scratch) / "text"
        text.write_bytes(bytes(corpus.train.numpy()) + bytes(corpus.test.numpy()))
        pool = ProcessPoolExecutor(
            min(workers, len(runs)), context, _start, (str(text), len(corpus.train), len(corpus.test), ticks)
        )
        pending: dict[Future[Cell], Run] = {}
        try:
            pending = {pool.submit(_run, index, run): run for index, run in enumerate(runs)}
            while pending:
                finished, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                _drain(ticks, runs, on_progress)
                for future in finished:
                    run = pending.pop(future)
                    cell = future.result()
                    store.save(run, cell)
                    on_finished(run, cell)
        except KeyboardInterrupt:
            _kill(pool)
            raise Interrupted from None
        except BrokenProcessPool:
            _kill(pool)
            raise RuntimeError(
                "a worker process died (out of memory, or compare() called from a script without the guard "
                "if __name__ == '__main__'); finished runs are kept, the same command goes on from there"
            ) from None
        except BaseException:
            _kill(pool)
            raise
        pool.shutdown()


def _drain(ticks: "Queue[tuple[int, int]]", runs: Sequence[Run], on_progress: Ticks) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            index, done = ticks.get_nowait()
            on_progress(runs[index], done)


def _kill(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)


# -------------------------------------------------------------------- in the worker

_worker: tuple[torch.Tensor, torch.Tensor, "Queue[tuple[int, int]]"]


def _start(path: str, train_size: int, test_size: int, ticks: "Queue[tuple[int, int]]") -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # steep biases underflow to denormals, which are slow and mean nothing here
    tokens = torch.from_file(path, size=train_size + test_size, dtype=torch.uint8)
    _worker = tokens[:train_size], tokens[train_size:], ticks


def _leave_with(parent: int) -> None:
    """A worker whose parent was killed has nobody to work for."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _run(index: int, run: Run) -> Cell:
    train_tokens, test_tokens, ticks = _worker
    return measure(run, train_tokens, test_tokens, lambda done: ticks.put((index, done)))


def measure(
    run: Run, train_tokens: torch.Tensor, test_tokens: torch.Tensor, on_progress: Callable[[int], None] = lambda n: None
) -> Cell:
    """Train and test one run, here and now."""
    s = run.settings
    per_step = TRAIN_COST * s.batch_size * s.length
    started = time.perf_counter()
    model, losses = train(run, train_tokens, lambda step: on_progress(per_step))
    seconds = time.perf_counter() - started
    scored = []
    for arm in arms(run.encoding, model.encoding, s):
        started = time.perf_counter()
        scores = evaluate(model, arm, test_tokens, s, on_progress)
        rate = s.windows * s.length * sum(s.factors) / (time.perf_counter() - started)
        if not all(losses.isfinite().all() for losses in (*scores.paired.values(), scores.by_position)):
            raise diverged(run, f"when {arm.name} is tested")
        paired = {str(factor): _rounded(losses) for factor, losses in scores.paired.items()}
        scored.append(
            ArmScores(arm.name, arm.trained, paired, [_rounded(row) for row in scores.by_position], round(rate, 1))
        )
    return Cell(
        run={"id": run.id, "encoding": run.encoding, "seed": run.seed},
        arms=scored,
        losses=[round(loss, 5) for loss in losses],
        parameters=sum(p.numel() for p in model.parameters()),
        position_parameters=sum(p.numel() for p in model.encoding.parameters()),
        training_seconds=round(seconds, 3),
        tokens_per_second=round(s.steps * s.batch_size * s.length / seconds, 1),
        memory_bytes=activation_bytes(model, test_tokens, s),
    )


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(v, 6) for v in values.tolist()]
