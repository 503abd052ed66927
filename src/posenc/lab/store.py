# SPDX-License-Identifier: Apache-2.0
"""A comparison's folder: one file per finished run, written whole or not at all, so that nothing is lost or doubled.

DIR/cells/<run id>.json     what one run measured; a run whose file is there is not run again
DIR/checkpoints/            trainings on their way, see `posenc.lab.checkpoint`
DIR/set-aside/              files that could not be used, see `posenc.measuring.records`
DIR/results.json            every number of the report
DIR/report.html             the report
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from posenc.lab.config import Run
from posenc.measuring.records import Damaged, Records, typed


@dataclass(frozen=True)
class ArmScores:
    """What one arm of a run measured, as plain numbers."""

    name: str
    trained: bool
    paired: dict[str, list[float]]
    """condition -> loss of each example, in nats"""
    by_position: list[list[float]]
    """example -> loss of each bin of positions; empty where the task has none"""
    tokens_per_second: float
    """tested tokens per second, all conditions together"""
    also: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """what else is measured -> condition -> value of each example"""


@dataclass(frozen=True)
class Cell:
    """One finished run."""

    run: dict[str, Any]
    arms: list[ArmScores]
    losses: list[float]
    """training loss of each step"""
    parameters: int
    position_parameters: int
    training_seconds: float
    tokens_per_second: float
    memory_bytes: int
    """what one training batch keeps for its backward pass"""


class Store(Records):
    """The folder of one comparison."""

    def save(self, run: Run, cell: Cell) -> None:
        """Keep what a run measured."""
        self.keep(f"cells/{run.id}.json", asdict(cell))

    def load(self, run: Run) -> Cell | None:
        """What a run measured, or None if it has not finished here; a damaged file is set aside."""
        return self.kept(f"cells/{run.id}.json", lambda raw: _of(run, typed(Cell, raw)))


def _of(run: Run, cell: Cell) -> Cell:
    """The cell, if it can be what the run measured.

    Raises:
        Damaged: it is another run's, or lacks something.
    """
    s = run.settings
    if cell.run != named(run):
        raise Damaged(f"it is of another run: {cell.run!r:.100}")
    if not cell.arms or len(cell.losses) != s.steps:
        raise Damaged(f"it has {len(cell.arms)} arms and {len(cell.losses)} training losses, not {s.steps}")
    for arm in cell.arms:
        wanted = {"loss": s.conditions, **s.also}
        measured = {"loss": arm.paired, **arm.also}
        counts = {name: {at: len(each) for at, each in values.items()} for name, values in measured.items()}
        if counts != {name: {str(at): s.examples for at in conditions} for name, conditions in wanted.items()}:
            raise Damaged(f"{arm.name} has not {s.examples} examples under every condition: {counts!r:.100}")
        if len(arm.by_position) != s.bins * s.examples or len(set(map(len, arm.by_position))) > 1:
            raise Damaged(f"the examples of {arm.name} differ in their bins")
    return cell


def named(run: Run) -> dict[str, Any]:
    """What a cell says of its run."""
    return {"id": run.id, "encoding": run.encoding, "seed": run.seed}
