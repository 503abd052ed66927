# SPDX-License-Identifier: Apache-2.0
"""A benchmark as a page, and its tables on the terminal."""

from posenc.lab.bench import DENSE, POSENC, tables
from posenc.lab.study import Results
from posenc.report.drawn import beside, first_of
from posenc.report.figures import DASHES, PALETTE, axis, intervals, line, lines
from posenc.report.html import Choice, Panel, plot, rendered
from posenc.report.terminal import print_cells, print_files, stdout


def figures_of(results: Results) -> dict[str, Panel]:
    """The ratios by length: a line per encoding, that of the dense bias broken."""
    modes = list(dict.fromkeys(row["mode"] for row in results["rows"]))

    def draw(mode: int) -> dict[str, object]:
        rows = [row for row in results["rows"] if row["mode"] == modes[mode]]
        series = []
        for number, name in enumerate(dict.fromkeys(row["encoding"] for row in rows)):
            for candidate, dash in ((POSENC, DASHES[0]), (DENSE, DASHES[1])):
                of = [
                    (r["length"], r["ratios"][candidate])
                    for r in rows
                    if r["encoding"] == name and candidate in r["ratios"]
                ]
                style = {"colour": PALETTE[number % len(PALETTE)], "dash": dash}
                x, found = [length for length, _ in of], [ratio for _, ratio in of]
                label = f"{name}, {candidate}"
                series.append(
                    line(label, x, [r["median"] for r in found], style, dots=True, label=True, **intervals(found))
                )
        ticks = [[length, str(length)] for length in sorted({row["length"] for row in rows})]
        over = axis("time over attention without position", log=True)
        return lines(series, axis("tokens", log=True, ticks=ticks), over, marks=[{"y": 1, "label": ""}], spread=True)

    if not modes:
        return {}
    shown = plot("length", [Choice("mode", "Measured:", modes)], draw)
    return {"length": Panel("by-length", "Time by length", [shown], key=False)}


def files(results: Results) -> dict[str, str | bytes]:
    """The files of a benchmark beside results.json."""
    panels, found = figures_of(results), tables(results)
    figures = {plot.name: plot.figures for panel in panels.values() for plot in panel.plots}
    page = rendered("speed.html", figures, r=results, panels=panels, tables=found, machine=machine(results))
    return beside(page, found, first_of(panels), results)


def machine(results: Results) -> str:
    """The machine and the settings in a line."""
    m, s = results["machine"], results["settings"]
    clock = {"cpu": "processor time", "wall": "wall time", "cuda": "CUDA events"}[s["clock"]]
    where = m.get("gpu") or f"{m['cpu']} ({m['instruction_set']}), threads: {s['threads']}"
    return f"{where}, {s['dtype']}, {clock}; posenc {m['posenc']}, torch {m['torch']}; {results['created'][:10]}."


def show(results: Results, directory: str) -> None:
    """The tables and the files, on stdout."""
    out = stdout()
    for table in tables(results):
        out.print(f"\n{table.caption}", markup=False)
        print_cells(out, table)
    out.print(f"\n{machine(results)}", markup=False, soft_wrap=True)
    out.print("Ratios are of the same round: median (least..greatest). Lower is better.", markup=False)
    print_files(out, directory)
