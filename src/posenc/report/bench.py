# SPDX-License-Identifier: Apache-2.0
"""A benchmark as a page, and its tables on the terminal."""

from collections.abc import Mapping
from typing import Any

from posenc.lab.bench.measure import TIME
from posenc.lab.bench.table import MODE_NAMES, in_ratio, machine_line, markdown, notes, ratio, tables
from posenc.lab.study import Results
from posenc.report.drawn import beside, first_of
from posenc.report.figures import DASHES, PALETTE, Figure, Rows, axis, intervals, line, lines
from posenc.report.html import Choice, Panel, plot, rendered
from posenc.report.terminal import print_cells, print_files, stdout  # before rich, which may be missing

# isort: split
from rich.markup import escape

POSENC, OTHER = {"colour": PALETTE[0]}, {"colour": "#7f8894", "hollow": True}


def figures_of(results: Results) -> dict[str, Panel]:
    """All figures by name."""
    return _panels(results)[0]


def _panels(results: Results) -> tuple[dict[str, Panel], str]:
    """The figures, and how posenc compares in the first."""
    timed = [trial for trial in results["trials"] if trial["what"] == TIME and any(r["ratio"] for r in trial["rows"])]
    rounds: dict[tuple[Any, ...], list[Any]] = {}
    for trial in timed:
        rounds.setdefault((trial["mode"], trial["dtype"], trial["length"], trial["limit"]), []).append(trial)
    of = sorted(rounds, key=lambda key: (list(MODE_NAMES).index(key[0]), key[1] != "float32", key[2]))
    by_case: dict[str, list[Any]] = {}
    for trial in sorted(timed, key=lambda trial: trial["length"]):
        if (trial["mode"], trial["dtype"]) == ("forward", "float32"):
            by_case.setdefault(trial["case"], []).append(trial)
    curves = {case: trials for case, trials in by_case.items() if len(trials) > 1}
    panels = {}
    if of:
        timings = [sum(bool(row["ratio"]) for trial in rounds[key] for row in trial["rows"]) for key in of]
        first = max(range(len(of)), key=lambda at: (timings[at], of[at][2]))
        names = [f"{MODE_NAMES[mode].lower()}, {dtype}, {length} tokens" for mode, dtype, length, _ in of]
        draw = plot("cases", [Choice("round", "Measured:", names, first)], lambda at: by_candidate(rounds[of[at]]))
        panels["cases"] = Panel("time", "Time by case: posenc and the others", [draw], key=False)
    if curves:
        case = Choice("case", "Case:", list(curves))
        draw = plot("length", [case], lambda at: ratio_by_length(list(curves.values())[at]))
        panels["length"] = Panel("by-length", "Time by length", [draw], key=False)
    return panels, sentence(names[first], rounds[of[first]]) if of else ""


def page(results: Results) -> str:
    """report.html for the results."""
    panels, verdict = _panels(results)
    facts = {"tables": tables(results), "notes": notes(results), "machine": machine_line(results)}
    figures = {plot.name: plot.figures for panel in panels.values() for plot in panel.plots}
    return rendered("speed.html", figures, r=results, panels=panels, sentence=verdict, **facts)


def _is_posenc(row: Mapping[str, Any]) -> bool:
    return str(row["name"]).split(",")[0] == "posenc"


def sentence(name: str, trials: Rows) -> str:
    """How posenc compares with the best of the others, in the medians."""
    pairs = []
    for trial in trials:
        rows = [row for row in trial["rows"] if row["ratio"] and row["name"] != trial["limit"]]
        own = min((row["ratio"]["median"] for row in rows if _is_posenc(row)), default=None)
        best = min((row["ratio"]["median"] for row in rows if not _is_posenc(row)), default=None)
        if own is not None and best is not None:
            pairs.append((own, best))
    if not pairs:
        return ""
    first, ahead = f"{name[0].upper()}{name[1:]}", sum(own <= best for own, best in pairs)
    ranges = (" to ".join(dict.fromkeys((ratio(min(of)), ratio(max(of))))) for of in zip(*pairs, strict=True))
    mine, others = ranges
    alone = "the fastest" if ahead else "not the fastest"
    rank = f"the fastest in {ahead} of {len(pairs)} cases" if len(pairs) > 1 else alone
    return (
        f"{first}: posenc is {rank}. It takes {mine} times as long as "
        f"{trials[0]['limit']}, the best of the others {others}."
    )


def by_candidate(trials: Rows) -> Figure:
    """Time over the limit's: a row of dots per case, posenc's filled."""
    series = []
    for name, ours, style in (("others", False, OTHER), ("posenc", True, POSENC)):
        timed = [
            (len(trials) - 1 - at, trial, row)
            for at, trial in enumerate(trials)
            for row in trial["rows"]
            if row["ratio"] and row["name"] != trial["limit"] and _is_posenc(row) == ours
        ]
        ratios = [row["ratio"] for _, _, row in timed]
        texts = [f"{row['name']}, {trial['case']}: {in_ratio(row, trial['limit'])}" for _, trial, row in timed]
        ends = {"left": [r["low"] for r in ratios], "right": [r["high"] for r in ratios]}
        x, y = [r["median"] for r in ratios], [at for at, _, _ in timed]
        series.append(line(name, x, y, style, points=True, radius=5, texts=texts, **ends))
    cases = [[len(trials) - 1 - at, trial["case"]] for at, trial in enumerate(trials)]
    legend = [{"dot": POSENC["colour"], "text": "posenc"}, {"dot": OTHER["colour"], "hollow": True, "text": "others"}]
    return lines(
        series,
        axis(f"time over {trials[0]['limit']}: less is better", log=True),
        axis("", low=-0.6, high=len(trials) - 0.4, ticks=cases),
        marks=[{"x": 1, "label": ""}],
        height=60 + 34 * len(trials),
        legend=legend,
    )


def ratio_by_length(trials: Rows) -> Figure:
    """Time over the limit's by length of the sequence, a line per candidate of one case; both axes logarithmic."""
    timed = [(trial["length"], row) for trial in trials for row in trial["rows"] if row["ratio"] is not None]
    series = []
    for index, name in enumerate(dict.fromkeys(row["name"] for _, row in timed)):
        points = [(length, row["ratio"]) for length, row in timed if row["name"] == name]
        style = {"colour": PALETTE[index % len(PALETTE)], "dash": DASHES[index // len(PALETTE)]}
        x, y = [length for length, _ in points], [ratio["median"] for _, ratio in points]
        series.append(line(name, x, y, style, dots=True, label=True, **intervals([ratio for _, ratio in points])))
    ticks = [[length, str(length)] for length in sorted({trial["length"] for trial in trials})]
    over = axis(f"time over {trials[0]['limit']}", log=True)
    return lines(series, axis("tokens", log=True, ticks=ticks), over, spread=True)


def files(results: Results) -> dict[str, str | bytes]:
    """The files of a benchmark beside results.json."""
    return beside(page(results), tables(results), first_of(figures_of(results)), markdown(results))


def show(results: Results, directory: str) -> None:
    """The tables, what is not in them, and the files, on stdout."""
    out = stdout()
    for table in tables(results):
        out.print(f"\n[bold]{escape(table.title)}[/bold] ({escape(table.unit)})")
        print_cells(out, table)
    for note in notes(results):
        out.print(f"- {note}", markup=False, soft_wrap=True)
    out.print()
    out.print(machine_line(results), markup=False, soft_wrap=True)
    out.print("Ratios are of the same round: median (least..greatest). Lower is better.", markup=False)
    print_files(out, directory)
