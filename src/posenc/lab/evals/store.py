# SPDX-License-Identifier: Apache-2.0
"""An evaluation's folder: one file a finished cell, written whole or not at all.

DIR/cells/<cell id>.json    what was made of each of its texts; a cell whose file is there is not measured again
DIR/attention/<id>.json     where the model looks under one method
DIR/set-aside/              files that could not be used, see `posenc.measuring.records`
DIR/results.json            every number of the report
DIR/report.html             the report
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from posenc.lab.evals.config import Cell, identity
from posenc.lab.evals.reader import Outcome
from posenc.measuring.records import Damaged, Records, typed


@dataclass(frozen=True)
class Measured:
    """What one cell measured. seconds: of its texts' share in the pass that read all depths; fed: tokens that the model
    was given for them, counted so too. peak_bytes: that this pass took above what was there before; None: cannot be
    measured here."""

    outcomes: tuple[Outcome, ...]
    seconds: float
    fed: float
    peak_bytes: int | None


class Store(Records):
    """The folder of one evaluation. shared: what all its cells have in common, see `identity`."""

    def __init__(self, directory: Any, shared: Mapping[str, Any]) -> None:
        super().__init__(directory)
        self.shared = shared

    def save(self, cell: Cell, measured: Measured) -> None:
        """Keep what a cell measured."""
        self.keep(self._name("cells", asdict(cell)), {"cell": asdict(cell), **asdict(measured)})

    def load(self, cell: Cell) -> Measured | None:
        """What a cell measured, or None if it has not finished here; a damaged file is set aside."""

        def made(raw: dict[str, Any]) -> Measured:
            if raw.pop("cell", None) != asdict(cell):
                raise Damaged("it is of another cell")
            found = typed(Measured, raw)
            if len(found.outcomes) != self.shared["samples"]:
                raise Damaged(f"it has {len(found.outcomes)} texts, not {self.shared['samples']}")
            return found

        return self.kept(self._name("cells", asdict(cell)), made)

    def save_look(self, what: Mapping[str, Any], profile: Mapping[str, Any]) -> None:
        """Keep an attention profile."""
        self.keep(self._name("attention", what), profile)

    def load_look(self, what: Mapping[str, Any]) -> dict[str, Any] | None:
        """A profile that was kept, or None; a damaged file is set aside."""
        return self.kept(self._name("attention", what), dict)

    def _name(self, kind: str, what: Mapping[str, Any]) -> str:
        return f"{kind}/{identity(what, self.shared)}.json"
