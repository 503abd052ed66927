"""An evaluation as a page, and on the terminal while it runs."""

import sys
from collections.abc import Mapping
from typing import Any

from posenc.evals.config import Cell
from posenc.evals.run import Progress
from posenc.report.terminal import ShowsProgress


def page(results: Mapping[str, Any]) -> str:
    """report.html for what results.json holds."""
    return f"<!doctype html><title>{results['model']['name']}</title>"


class Terminal(ShowsProgress):
    """Shows an evaluation's progress, with a line per finished cell where there is no terminal, and its results."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.task = self.bar.add_task("", total=None)
        self.cells = self.done = 0

    @property
    def progress(self) -> Progress:
        return Progress(self._planned, self._advanced, self._finished)

    def _planned(self, cells: int, kept: int, work: int) -> None:
        self.cells, self.done = cells, kept
        if kept:
            print(f"{kept} of {cells} cells are here already", file=sys.stderr)
        self.bar.update(self.task, description=f"{kept}/{cells} cells", total=work)

    def _advanced(self, cell: Cell, work: int) -> None:
        self.bar.advance(self.task, work)

    def _finished(self, cell: Cell) -> None:
        self.done += 1
        self.bar.update(self.task, description=f"{self.done}/{self.cells} cells")
        self.line(self.done, self.cells, str(cell))

    def show(self, results: Mapping[str, Any]) -> None:
        """What was found, on stdout."""
        for task in results["tasks"]:
            print(task["task"])
            for method in task["methods"]:
                for cell in method["cells"]:
                    print(
                        f"  {method['method']} {cell['length']} {cell['depth']} {cell['exact']['mean']:.2f} {cell['loss']['mean']:.3f}"
                    )
