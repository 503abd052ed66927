# SPDX-License-Identifier: Apache-2.0
"""A benchmark as a page, and its tables on the terminal."""

from posenc.lab.bench import tables
from posenc.lab.study import Results
from posenc.report.drawn import beside
from posenc.report.html import rendered
from posenc.report.terminal import print_cells, print_files, stdout


def files(results: Results) -> dict[str, str | bytes]:
    """The files of a benchmark beside results.json."""
    found = tables(results)
    return beside(rendered("speed.html", {}, r=results, tables=found, machine=machine(results)), found, None, results)


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
