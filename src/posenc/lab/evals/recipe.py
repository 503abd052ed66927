# SPDX-License-Identifier: Apache-2.0
"""How a worker elsewhere comes to the model that its driver has: by name, held against what the driver measures."""

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from posenc.errors import InputError
from posenc.lab.engines import Tick
from posenc.lab.evals.config import Cell, Settings
from posenc.lab.evals.job import Job
from posenc.lab.evals.store import Measured
from posenc.pretrained.load import DEMO, load


@dataclass(frozen=True)
class Recipe:
    """What makes the driver's job anew. source: as `posenc.load` takes it;
    shared: JSON of what the numbers depend on."""

    source: str
    name: str
    dtype: torch.dtype
    device: str
    settings: Settings
    shared: str

    @classmethod
    def of(cls, job: Job) -> Self:
        """Raises:
        InputError: the model has no name by which workers could load it."""
        path = Path(job.name)
        local = job.name not in ("", DEMO) and path.exists()
        if not (local or job.name == DEMO or ("/" in job.name and not path.is_absolute())):
            raise InputError(
                f"name {job.name!r}: workers elsewhere load the model themselves, and this is no folder or file, "
                "nor OWNER/NAME on the hub: save model and tokenizer with save_pretrained(FOLDER) and give name=FOLDER"
            )
        source = os.path.abspath(path) if local else job.name
        return cls(source, job.name, job.model_dtype, job.device.type, job.settings, json.dumps(job.shared()))


def measured_here(job: Job, group: tuple[Cell, ...], tick: Tick) -> dict[Cell, Measured]:
    """Cells of one group, with the model that is there."""
    return job.measure(group, tick)


def measured_elsewhere(recipe: Recipe, group: tuple[Cell, ...], tick: Tick) -> dict[Cell, Measured]:
    """Cells of one group, with a model that each process loads once."""
    return _made(recipe).measure(group, tick)


@functools.cache
def _made(recipe: Recipe) -> Job:
    """Raises:
    InputError: this worker would measure something else than the driver."""
    model, tokenizer = load(recipe.source, dtype=recipe.dtype, device=recipe.device)
    job = Job(model, tokenizer, recipe.settings, recipe.name)
    wanted: dict[str, Any] = json.loads(recipe.shared)
    have = json.loads(json.dumps(job.shared()))
    others = sorted(what for what in wanted if have.get(what) != wanted[what])
    if others:
        raise InputError(
            f"{recipe.source}: what a worker finds there differs from what was given, in {', '.join(others)}; save the "
            "model as it is with save_pretrained(FOLDER) and give name=FOLDER, and have the same files everywhere"
        )
    return job
