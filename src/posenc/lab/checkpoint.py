# SPDX-License-Identifier: Apache-2.0
"""Trainings on their way, kept so that a killed one goes on where it was, bit for bit.

DIR/checkpoints/<run id>.safetensors             the last one
DIR/checkpoints/<run id>.previous.safetensors    the one before

A checkpoint is safetensors: what `Training.state` gives, its tensors as tensors and its lists of numbers in the file's
metadata, with a checksum over both. Nothing in it is ever executed.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.lab.config import Run
from posenc.lab.parallel import Alone, processes
from posenc.lab.train import State, Training
from posenc.measuring.records import Damaged, Records, parsed, typed

FOLDER = "checkpoints"
SLACK = 2**26
"""Bytes of a checkpoint beside its tensors that are the size of the model's own: losses, names, generators."""
KEPT_BY_OPTIMIZERS = ({"step", "exp_avg", "exp_avg_sq"}, {"momentum_buffer"}, set[str]())
"""Of one parameter, by AdamW and Muon; of one that had no gradient yet nothing."""
COPIES = 8
"""The most that a checkpoint holds, in copies of the model's tensors."""


@dataclass(frozen=True)
class Checkpoints:
    """Where the trainings of a comparison are kept on their way, and how often.

    directory: of the comparison. minutes: of training between two; 0 keeps none.
    """

    directory: str | Path
    minutes: float

    def __post_init__(self) -> None:
        if not 0 <= self.minutes < float("inf"):
            raise InputError(f"--checkpoint-every {self.minutes}: give minutes, or 0 for no checkpoints")
        if self.minutes:
            try:
                import safetensors  # noqa: F401
            except ImportError:
                raise InputError(
                    "--checkpoint-every: needs safetensors: pip install 'posenc[lab]', or give 0"
                ) from None

    def of(self, training: Training) -> "Checkpoint":
        """The training's own, from which it goes on if there is one."""
        return Checkpoint(self, training)

    def remove(self, run: Run) -> None:
        """Forget a run, which has been measured."""
        folder = Path(self.directory) / FOLDER
        with contextlib.suppress(OSError):
            for name in names(run):
                (folder.parent / name).unlink(missing_ok=True)
            folder.rmdir()  # when it was the last


class Checkpoint:
    """Keeps one training. seconds: that were spent on it, in earlier processes too. Where several processes train
    together, all of them take part and rank 0 reads and writes.

    Raises:
        InputError: the folder cannot be read or written.
    """

    def __init__(self, where: Checkpoints, training: Training) -> None:
        self.training = training
        self.processes: Alone = processes()
        there = where.minutes and Path(where.directory).is_dir()  # not on a machine that does not share the folder
        self.every: float = self.processes.tell(60 * where.minutes if there else 0)
        self.before: float = 0.0
        if self.every:
            self._resume(where)
        self.started: float = time.perf_counter()
        self.last: float = self.started

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.started

    def keep_if_due(self) -> None:
        """Write the training down if the last time was long enough ago."""
        if not self.every or self.training.finished:
            return
        if self.processes.tell(time.perf_counter() - self.last >= self.every):
            self.keep()
            self.last = time.perf_counter()

    def keep(self) -> None:
        """Write the training down. The last checkpoint stays as the previous one.

        Raises:
            InputError: it could not be written; the previous one is there.
        """
        state = self.training.state()
        if self.processes.rank:
            return
        last, previous = (self.folder.directory / name for name in names(self.training.run))
        content = dumped(self.training.run, state, self.seconds)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.replace(last, previous)
        except OSError as error:
            raise self.folder.refusal(error, f"while writing {last.name}") from None
        self.folder.write(f"{FOLDER}/{last.name}", content)

    def _resume(self, where: Checkpoints) -> None:
        fresh, found = self.training.state(), None
        if not self.processes.rank:
            self.folder: Records = Records(where.directory, tell=False)
            most = SLACK + COPIES * sum(value.nbytes for value in fresh.values() if isinstance(value, Tensor))
            read = (
                self.folder.read(name, lambda content: loaded(self.training, fresh, content), most)
                for name in names(self.training.run)
            )
            found = next((each for each in read if each is not None), None)
        found = self.processes.tell(found)
        if found is not None:
            state, self.before = found
            self.training.restore(state)


def names(run: Run) -> tuple[str, str]:
    """The files of a run's checkpoints: the last, and the one before."""
    return f"{FOLDER}/{run.id}.safetensors", f"{FOLDER}/{run.id}.previous.safetensors"


def dumped(run: Run, state: State, seconds: float) -> bytes:
    """A checkpoint as the bytes of a safetensors file."""
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items() if isinstance(value, Tensor)}
    lists = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
    said = json.dumps({"run": run.id, "seconds": seconds, "lists": lists}, allow_nan=False)
    return save(tensors, {"posenc": said, "sha256": _digest(said, tensors)})


@dataclass(frozen=True)
class _Said:
    """What the metadata of a checkpoint holds."""

    run: str
    seconds: float
    lists: dict[str, list[float]]


def loaded(training: Training, fresh: State, content: bytes) -> tuple[State, float]:
    """The state in a checkpoint of a training, and the seconds that were spent on it.

    fresh: the state that the training begins with.

    Raises:
        Damaged: it is no checkpoint, was cut off or changed, or is of something else.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not content:
        raise Damaged("it is empty")
    try:
        tensors = load(content)
        length = int.from_bytes(content[:8], "little")
        metadata = parsed(content[8 : 8 + length]).get("__metadata__", {})
        said, digest = metadata["posenc"], metadata["sha256"]
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        # looked at last: the length that a safetensors file begins with may be the same bytes
        if content[:1] == b"\x80" or content[:2] == b"PK":
            raise Damaged("it is a pickle, which is never read") from None
        raise Damaged(f"it is no checkpoint of posenc ({str(error).splitlines()[0]:.100})") from None
    if digest != _digest(said, tensors):
        raise Damaged("its checksum is wrong: it was cut off or changed")
    facts = typed(_Said, parsed(said.encode()))
    if facts.run != training.run.id:
        raise Damaged(f"it is of another run, {facts.run!r:.40}")
    _check(training, fresh, tensors, facts.lists)
    return {**tensors, **facts.lists}, facts.seconds


def _check(training: Training, fresh: State, tensors: Mapping[str, Tensor], lists: Mapping[str, list[float]]) -> None:
    """Raises:
    Damaged: the state is not one that the training could have come to.
    """
    if not 1 <= len(lists.get("losses", [])) < training.run.settings.steps:
        raise Damaged(f"it has {len(lists.get('losses', []))} of {training.run.settings.steps} losses")
    shapes = {name: value.shape for name, value in training.model.named_parameters()}
    for name, tensor in tensors.items():
        own = fresh.get(name)
        if isinstance(own, Tensor):
            fits = (own.shape, own.dtype) == (tensor.shape, tensor.dtype)
        else:  # an optimizer's, which has none before its first step
            owner = name.removeprefix("optimizer.").rpartition(".")[0]
            fits = owner in shapes and tensor.shape in (shapes[owner], torch.Size([])) and tensor.is_floating_point()
        if not fits:
            raise Damaged(f"{name:.100} is {tensor.dtype} of shape {tuple(tensor.shape)}, and the training has it not")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise Damaged(f"{name:.100} is not finite")
    for name in shapes:
        prefix = f"optimizer.{name}."
        if {key.removeprefix(prefix) for key in tensors if key.startswith(prefix)} not in KEPT_BY_OPTIMIZERS:
            raise Damaged(f"it has not all that the optimizer keeps of {name}")
    missing = fresh.keys() - tensors.keys() - lists.keys()
    if missing or lists.keys() - fresh.keys():
        raise Damaged(f"it lacks {', '.join(sorted(missing))[:100]}" if missing else "it has lists that are not known")
    try:
        for name in ("order", "random"):
            torch.Generator().set_state(tensors[name])
    except (RuntimeError, TypeError):
        raise Damaged(f"{name} is no state of a generator") from None


def _digest(said: str, tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256(said.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
