"""An evaluation's folder: one file a finished cell, written whole or not at all.

DIR/cells/<cell id>.json    what was made of each of its texts; a cell whose file is there is not measured again
DIR/attention/<id>.json     where the model looks under one method
DIR/results.json            every number of the report
DIR/report.html             the report
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from posenc.evals.config import Cell, identity
from posenc.evals.reader import Outcome
from posenc.files import Folder


@dataclass(frozen=True)
class Measured:
    """What one cell measured. seconds: of its texts' share in the pass that read all depths; fed: tokens that the model
    was given for them, counted so too. peak_bytes: that this pass took above what was there before; None: cannot be
    measured here."""

    outcomes: tuple[Outcome, ...]
    seconds: float
    fed: float
    peak_bytes: int | None


class Store(Folder):
    """The folder of one evaluation. shared: what all its cells have in common, see `identity`."""

    def __init__(self, directory: Any, shared: Mapping[str, Any]) -> None:
        super().__init__(directory)
        self.shared = shared

    def save(self, cell: Cell, measured: Measured) -> None:
        """Keep what a cell measured."""
        kept = {"cell": asdict(cell), **asdict(measured)}
        self.write(f"cells/{identity(asdict(cell), self.shared)}.json", json.dumps(kept, allow_nan=False))

    def load(self, cell: Cell) -> Measured | None:
        """What a cell measured, or None if it has not finished here; a damaged file counts as not finished."""
        try:
            path = self.directory / "cells" / f"{identity(asdict(cell), self.shared)}.json"
            raw = json.loads(path.read_text(encoding="utf-8"))
            if raw.pop("cell") != asdict(cell):
                return None
            outcomes = tuple(Outcome(**(each | {"blocks": tuple(each["blocks"])})) for each in raw.pop("outcomes"))
            if not outcomes or not all(isfinite(outcome.loss) for outcome in outcomes):
                return None
            return Measured(outcomes, **raw)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def save_look(self, what: Mapping[str, Any], profile: Mapping[str, Any]) -> None:
        """Keep an attention profile."""
        self.write(f"attention/{identity(what, self.shared)}.json", json.dumps(profile, allow_nan=False))

    def load_look(self, what: Mapping[str, Any]) -> dict[str, Any] | None:
        """A profile that was kept, or None; a damaged file counts as none."""
        try:
            path = self.directory / "attention" / f"{identity(what, self.shared)}.json"
            found = json.loads(path.read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else None
        except (OSError, ValueError):
            return None
