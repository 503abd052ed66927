# SPDX-License-Identifier: Apache-2.0
"""Your own study: the longest wavelength of several schedules, cell by cell, resumed and reported like `posenc compare`.

    python examples/new_study.py DIR

writes DIR/results.json and DIR/report.html. A second run measures nothing again; engines and progress are options of
`posenc.lab.study.run`. A study needs only the two names and five of the methods below.
"""

import sys
from dataclasses import asdict, dataclass

from posenc import frequencies
from posenc.lab.study import Study, run

HEAD_DIM, BASE = 64, 10000.0


@dataclass(frozen=True)
class Cell:
    """A schedule to measure; equal cells give equal numbers."""

    schedule: str
    factor: float


@dataclass(frozen=True)
class Record:
    """The result of a cell."""

    longest: float


class Wavelengths(Study[Cell, Record]):
    """The longest wavelength of RoPE under each schedule."""

    name = "wavelengths"
    unit = "schedules"

    def cells(self):
        return [Cell(schedule, factor) for schedule in ("linear", "ntk") for factor in (2.0, 4.0)]

    def facts(self, cell):
        return asdict(cell) | {"head_dim": HEAD_DIM, "base": BASE}

    def record(self, cell):
        return Record

    def measure(self, job, tick):
        (cell,) = job
        made = frequencies.create({"name": cell.schedule, "factor": cell.factor}, HEAD_DIM, base=BASE)
        tick(1, str(cell))
        return {cell: Record(float(frequencies.wavelengths(made).max()))}

    def results(self, done):
        return {"settings": {"head_dim": HEAD_DIM}, "rows": [asdict(cell) | asdict(done[cell]) for cell in done]}


def page(results):
    """The report: any text made of the results."""
    rows = "".join(f"<li>{row['schedule']} {row['factor']:g}: {row['longest']:.0f}" for row in results["rows"])
    return f"<!doctype html><title>Wavelengths</title><ul>{rows}</ul>"


def main(directory):
    results = run(Wavelengths(), directory, pages=lambda results: {"report.html": page(results)})
    print(f"{len(results['rows'])} schedules, {results['schedules']['kept_from_before']} of them from before")
    return results


if __name__ == "__main__":
    main(sys.argv[1])
