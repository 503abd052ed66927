# SPDX-License-Identifier: Apache-2.0
"""Unfinished trainings on disk, so that an interrupted one continues bit for bit.

DIR/checkpoints/<run id>.checkpoint is a SHA-256, and safetensors: tensors, and the lists and dictionaries around them as JSON.
"""

import contextlib
import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from posenc.errors import InputError
from posenc.lab.behaviour import disagreement
from posenc.lab.experiment import Run
from posenc.lab.files import write_atomically
from posenc.lab.train import Training
from posenc.spec import read_json

STATE = "state"
"""The key of the structure in the metadata."""
PLAIN = bool, int, float, str, type(None)


def packed(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """A state of dictionaries, lists, tuples, tensors and JSON's values as JSON and its tensors by number."""
    tensors: dict[str, Tensor] = {}
    memory: set[int] = set()

    def of(value: Any) -> Any:
        if isinstance(value, Tensor):
            tensor = value.detach().cpu().contiguous()
            if tensor.untyped_storage().data_ptr() in memory:  # safetensors stores no memory twice
                tensor = tensor.clone()
            memory.add(tensor.untyped_storage().data_ptr())
            tensors[str(len(tensors))] = tensor
            return {"tensor": str(len(tensors) - 1)}
        if isinstance(value, Mapping):
            return {"dict": [[of(key), of(each)] for key, each in value.items()]}
        if isinstance(value, tuple):
            return {"tuple": [*map(of, value)]}
        if isinstance(value, list):
            return [*map(of, value)]
        if not isinstance(value, PLAIN):
            raise TypeError(f"a {type(value).__name__} in the state of a training: it has tensors, numbers and strings")
        return value

    return of(state), tensors


def unpacked(structure: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state of `packed`."""
    if isinstance(structure, list):
        return [unpacked(each, tensors) for each in structure]
    if not isinstance(structure, dict):
        return structure
    ((kind, content),) = structure.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(unpacked(each, tensors) for each in content)
    if kind != "dict":
        raise ValueError(f"is no state of a training ({kind!r} in it)")
    return {unpacked(key, tensors): unpacked(value, tensors) for key, value in content}


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a comparison. directory: of the comparison. minutes: of training between two; 0 writes none.

    Raises:
        InputError: minutes below 0 or not finite.
    """

    directory: str | Path
    minutes: float

    def __post_init__(self) -> None:
        if not 0 <= self.minutes < math.inf:
            raise InputError("must be at least 0 (no checkpoints)", checkpoint_minutes=self.minutes)

    def path(self, run: Run) -> Path:
        """The file of a run."""
        return Path(self.directory) / "checkpoints" / f"{run.id}.checkpoint"

    def remove(self, run: Run) -> None:
        """Delete the checkpoint of a run that has been measured."""
        self.path(run).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path(run).parent.rmdir()  # unless there are others


class TrainingCheckpoint:
    """Saves one training, which continues from the file if there is one. A file that is damaged or another program's is deleted
    with a warning.

    behave: computes the behaviour of the run, see `posenc.lab.measure.behaviour`. seconds: spent on the training, in earlier
    processes too.
    """

    def __init__(self, training: Training, checkpoints: Checkpoints, behave: Callable[[], Mapping[str, float]]) -> None:
        self.training = training
        self.behave = cache(behave)
        self.path: Path = checkpoints.path(training.run)
        # a machine of a cluster may not share the folder
        minutes = checkpoints.minutes if Path(checkpoints.directory).is_dir() else 0
        self.interval: float = 60 * minutes
        self.started: float = time.perf_counter()
        self.written: float = self.started
        if self.interval and (stored := self._read()) is not None:
            if why := disagreement(self.behave(), stored["behaviour"]):
                self._delete(f"is another program's: {why}")
            else:
                training.restore(stored["training"])
                self.started -= stored["seconds"]

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def save_if_due(self) -> None:
        """Write the training, replacing the earlier file, if the last time was long enough ago.

        Raises:
            OSError: it could not be written; the earlier one is still there.
        """
        training = self.training
        if not self.interval or training.finished:
            return
        if time.perf_counter() - self.written < self.interval:
            return
        state, behaviour = training.state(), self.behave()
        structure, tensors = packed({"training": state, "seconds": self.seconds, "behaviour": dict(behaviour)})
        content = save(tensors, {STATE: json.dumps(structure)})
        write_atomically(self.path, hashlib.sha256(content).digest() + content)
        self.written = time.perf_counter()

    def _read(self) -> dict[str, Any] | None:
        if not self.path.exists():
            return None
        digest, content = (stored := self.path.read_bytes())[:32], stored[32:]
        if hashlib.sha256(content).digest() != digest:
            self._delete("is damaged")
            return None
        # safetensors gives a file's metadata only: the head is its length in 8 bytes, and JSON
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        loaded: dict[str, Any] = unpacked(read_json(metadata[STATE]), load(content))
        return loaded

    def _delete(self, why: str) -> None:
        warnings.warn(f"posenc: {self.path} {why}: it is deleted, and the training starts over", stacklevel=3)
        self.path.unlink()
