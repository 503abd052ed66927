"""A comparison's folder: one file per finished run, written whole or not at all, so that nothing is lost or doubled.

DIR/cells/<run id>.json     what one run measured; a run whose file is there is not run again
DIR/results.json            every number of the report
DIR/report.html             the report
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from posenc.files import Folder
from posenc.lab.config import Run


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


def _refuse(constant: str) -> float:
    raise ValueError(constant)  # NaN and infinities are not results


class Store(Folder):
    """The folder of one comparison."""

    def save(self, run: Run, cell: Cell) -> None:
        """Keep what a run measured."""
        self.write(f"cells/{run.id}.json", json.dumps(asdict(cell), allow_nan=False))

    def load(self, run: Run) -> Cell | None:
        """What a run measured, or None if it has not finished here; a damaged file counts as not finished."""
        try:
            raw = json.loads(
                (self.directory / "cells" / f"{run.id}.json").read_text(encoding="utf-8"), parse_constant=_refuse
            )
            return Cell(**(raw | {"arms": [ArmScores(**arm) for arm in raw["arms"]]}))
        except (OSError, ValueError, TypeError, KeyError):
            return None
