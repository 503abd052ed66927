"""A comparison's folder: one file per finished run, written whole or not at all, so that nothing is lost or doubled.

DIR/cells/<run id>.json     what one run measured; a run whose file is there is not run again
DIR/checkpoints/            trainings on their way, see `posenc.lab.checkpoint`
DIR/set-aside/              files that could not be used, see `posenc.records`
DIR/results.json            every number of the report
DIR/report.html             the report
"""

from dataclasses import asdict, dataclass
from typing import Any

from posenc.lab.config import Run
from posenc.records import Damaged, Records, typed


@dataclass(frozen=True)
class ArmScores:
    """What one arm of a run measured, as plain numbers (nats per token)."""

    name: str
    trained: bool
    paired: dict[str, list[float]]
    """factor -> loss of each window"""
    by_position: list[list[float]]
    """window -> loss of each bin of positions"""
    tokens_per_second: float
    """tested tokens per second, all lengths together"""


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
        counts = {factor: len(losses) for factor, losses in arm.paired.items()}
        if counts != {str(factor): s.windows for factor in s.factors} or len(arm.by_position) != s.windows:
            raise Damaged(f"{arm.name} has not {s.windows} windows at every length: {counts!r:.100}")
        if len(set(map(len, arm.by_position))) != 1:
            raise Damaged(f"the windows of {arm.name} differ in their bins")
    return cell


def named(run: Run) -> dict[str, Any]:
    """What a cell says of its run."""
    return {"id": run.id, "encoding": run.encoding, "seed": run.seed}
