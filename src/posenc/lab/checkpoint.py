# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of trainings, so that a killed one goes on from where it was, bit for bit: DIR/checkpoints/<run id>.pt."""

import contextlib
import io
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from posenc.errors import InputError
from posenc.files import write_atomically
from posenc.lab.config import Run
from posenc.lab.parallel import Alone, processes
from posenc.lab.train import Training

FOLDER = "checkpoints"


@dataclass(frozen=True)
class Checkpoints:
    """Where the trainings of a comparison are kept on their way, and how often.

    directory: of the comparison. minutes: of training between two; 0 keeps none.
    """

    directory: str | Path
    minutes: float

    def __post_init__(self) -> None:
        if not 0 <= self.minutes < float("inf"):
            raise InputError(f"checkpoint_minutes={self.minutes}: give minutes, or 0 for no checkpoints")

    def of(self, training: Training) -> "Checkpoint":
        """The training's own, from which it goes on if there is one."""
        return Checkpoint(self, training)

    def path(self, run: Run) -> Path:
        return Path(self.directory) / FOLDER / f"{run.id}.pt"

    def remove(self, run: Run) -> None:
        """Delete the checkpoint of a run that has been measured."""
        path = self.path(run)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # when it was the last


class Checkpoint:
    """The checkpoint of one training. seconds: that were spent on it, in earlier processes too. Where several processes
    train together, all of them take part and rank 0 reads and writes."""

    def __init__(self, where: Checkpoints, training: Training) -> None:
        self.training = training
        self.path: Path = where.path(training.run)
        self.processes: Alone = processes()
        there = where.minutes and Path(where.directory).is_dir()  # not on a machine that does not share the folder
        self.every: float = self.processes.tell(60 * where.minutes if there else 0)
        self.before: float = 0.0
        if self.every:
            self._resume()
        self.started: float = time.perf_counter()
        self.last: float = self.started

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.started

    def keep_if_due(self) -> None:
        """Save the training if the last time was long enough ago."""
        if not self.every or self.training.finished:
            return
        if self.processes.tell(time.perf_counter() - self.last >= self.every):
            self.keep()
            self.last = time.perf_counter()

    def keep(self) -> None:
        """Save the training."""
        state = self.training.state()
        if self.processes.rank:
            return
        buffer = io.BytesIO()
        torch.save({"state": state, "seconds": self.seconds}, buffer)
        write_atomically(self.path, buffer.getvalue())

    def _resume(self) -> None:
        saved = None
        if not self.processes.rank and self.path.exists():
            try:
                saved = torch.load(self.path, weights_only=True)
            except Exception as error:
                warnings.warn(f"posenc: {self.path} is damaged ({error}): its training starts over", stacklevel=2)
        saved = self.processes.tell(saved)
        if saved is not None:
            self.before = saved["seconds"]
            self.training.restore(saved["state"])
