# SPDX-License-Identifier: Apache-2.0
"""Results as tables: one for each kind of measurement, a column per length, a row per candidate."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.measure import DIFFERS, LEFT_OUT, MEASURED, MEMORY, MISSING
from posenc.lab.table import Cell, Table

MODE_NAMES = {"forward": "Forward", "train": "Forward and backward", "decode": "Decoding one token"}
Results = Mapping[str, Any]


FAMILIES = {
    "attention": "attention", "call": "calls alone", "rotary": "rotary alone", "tables": "tables of cos and sin",
    "frontier": "attention, encodings of 2024 to 2026",
}  # fmt: skip


def tables(results: Results) -> list[Table]:
    """One for each kind of measurement, times first."""
    groups: dict[tuple[str, str, str, str], list[Results]] = {}
    for trial in results["trials"]:
        groups.setdefault((trial["what"], trial["family"], trial["mode"], trial["dtype"]), []).append(trial)

    def order(key: tuple[str, str, str, str]) -> tuple[Any, ...]:
        what, family, mode, dtype = key
        return what == MEMORY, family, list(MODE_NAMES).index(mode), dtype != "float32"

    return [_table(*key, groups[key]) for key in sorted(groups, key=order)]


def _table(what: str, family: str, mode: str, dtype: str, trials: Sequence[Results]) -> Table:
    lengths = sorted({trial["length"] for trial in trials})
    by_candidate: dict[tuple[str, str], dict[int, Cell]] = {}
    for trial in trials:
        for row in trial["rows"]:
            cell = in_mebibytes(row) if what == MEMORY else ratio_and_ends(row, trial["limit"])
            by_candidate.setdefault((trial["case"], row["name"]), {})[trial["length"]] = cell
    rows: list[list[Cell]] = []
    previous = ""
    for (case, name), cells in by_candidate.items():
        rows.append(["" if case == previous else case, name, *(cells.get(length, "") for length in lengths)])
        previous = case
    head = ["case", "", *(f"n = {length}" for length in lengths)]
    if what == MEMORY:
        title = f"Peak memory: {FAMILIES[family]}, {MODE_NAMES[mode].lower()}, {dtype}"
        return Table(title, "MiB above inputs and weights", head, rows, names=2)
    unit = f"time over {trials[0]['limit']}"
    return Table(f"{MODE_NAMES[mode]}: {FAMILIES[family]}, {dtype}", unit, head, rows, names=2)


def ratio_and_ends(row: Results, limit: str) -> Cell:
    """As ("1.05", "(1.02..1.09)"); the cell of the limit is its time."""
    if row["name"] == limit and row["seconds"] is not None:
        return in_seconds(row["seconds"]["median"])
    if row["ratio"] is not None:
        return ratio(row["ratio"]["median"]), f"({ratio(row['ratio']['low'])}..{ratio(row['ratio']['high'])})"
    return in_words(row)


def in_ratio(row: Results, limit: str) -> str:
    """ "1.05 (1.02..1.09)"; that of the limit is its time."""
    cell = ratio_and_ends(row, limit)
    return " ".join(cell) if isinstance(cell, tuple) else cell


def in_mebibytes(row: Results) -> str:
    return f"{row['bytes'] / 2**20:.0f}" if row["bytes"] is not None else in_words(row)


def in_words(row: Results) -> str:
    """Why there is no number."""
    if row["status"] == DIFFERS:
        return "differs" if row["error"] is None else f"differs by {row['error']:.1g}"
    status: str = row["status"]
    return {MEASURED: "not timed", MISSING: "not installed"}.get(status, status)


def ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def in_seconds(value: float) -> str:
    """With a unit that suits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def notes(results: Results) -> list[str]:
    """A line for every reason why something was not measured or not right. What was left out at one length is not
    repeated for longer ones."""
    reasons: dict[tuple[str, str], list[str]] = {}
    reported = set()
    for trial in sorted(results["trials"], key=lambda trial: trial["length"]):
        memory = ", memory" if trial["what"] == MEMORY else ""
        series = f"{trial['case']} {trial['mode']} {trial['dtype']}{memory}"
        for row in trial["rows"]:
            key = (series, row["name"], row["status"] == LEFT_OUT)
            if row["status"] != MEASURED and not (row["status"] == LEFT_OUT and key in reported):
                reported.add(key)
                reasons.setdefault((row["name"], row["note"]), []).append(f"{series} n={trial['length']}")
    return [
        f"{name}: {note}" + ("" if note.startswith("not installed") else f" ({'; '.join(where)})")
        for (name, note), where in reasons.items()
    ]


def machine_words(results: Results) -> str:
    """The machine and the settings, in some words."""
    m, s = results["machine"], results["settings"]
    where = m.get("gpu") or f"{m['cpu']} ({m['cores']} cores, {m['instruction_set']})"
    clock = {"cpu": "processor time", "wall": "wall time", "cuda": "CUDA events"}[s["clock"]]
    threads = f"{s['threads']} thread{'s' if s['threads'] > 1 else ''}"
    flushed = ", denormals flushed" if s["flush_denormal"] else ""
    return f"{where}, {threads}, {clock}{flushed}"


def machine_line(results: Results) -> str:
    """The machine, the settings and the versions, in a sentence."""
    libraries = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    python = results["machine"]["python"]
    return f"{machine_words(results)}; Python {python}, {libraries}; {results['created'][:10]}."


def markdown(results: Results) -> str:
    """All tables, and below them what is not in them."""
    parts = [machine_line(results)]
    parts += [table.markdown() for table in tables(results)]
    if reasons := notes(results):
        parts.append("Not measured, or not right:")
        parts.append("\n".join(f"- {note}" for note in reasons))
    return "\n\n".join(parts) + "\n"
