# SPDX-License-Identifier: Apache-2.0
"""Encodings of 2024 to 2026, in time and memory: write the table of frontier.md from the committed results.

    python benchmarks/bench frontier --rounds 3 --patience 30 --out BENCH
    python benchmarks/frontier.py [--bench BENCH ..]

Several folders of benchmarks are put together. Run from the root of the repository.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.measure import MEMORY, TIME
from bench.table import in_mebibytes, in_words, machine_words, ratio

NUMBERS, PAGE = (Path(__file__).with_suffix(suffix) for suffix in (".json", ".md"))
MARK = "<!-- {}: written by python benchmarks/frontier.py -->"
LISTED = (
    (TIME, "forward", 2048, "forward, 2048"),
    (TIME, "train", 2048, "with backward, 2048"),
    (TIME, "forward", 8192, "forward, 8192"),
    (MEMORY, "forward", 4096, "MiB forward, 4096"),
)
"""What is measured, the mode, the length, and the column's title."""
OF_BENCH = ("machine", "versions", "settings", "created")

Json = dict[str, Any]


def together(folders: Iterable[Path]) -> Json:
    """The results of several benchmarks as one: the first's machine and settings, and the trials of all."""
    read = [json.loads((folder / "results.json").read_text(encoding="utf-8")) for folder in folders]
    fields = ("what", "case", "family", "mode", "dtype", "length", "limit")
    of_row = ("name", "package", "status", "note", "error", "seconds", "ratio", "bytes", "rounds")
    trials: dict[tuple[Any, ...], Json] = {}
    for trial in (trial for results in read for trial in results["trials"]):
        slim = {name: trial[name] for name in fields}
        rows = [{name: row[name] for name in of_row} for row in trial["rows"] if row["status"] != "missing"]
        trials[tuple(slim.values())] = {**slim, "rows": rows}
    return {name: read[0][name] for name in OF_BENCH} | {"trials": list(trials.values())}


def speed(results: Json) -> str:
    """A row for each encoding: posenc's ratio and MiB, and those of every other candidate."""
    trials = {(t["case"], t["what"], t["mode"], t["length"]): t for t in results["trials"]}
    columns = [column for column in LISTED if any(key[1:] == column[:3] for key in trials)]
    rows = []
    for case in dict.fromkeys(key[0] for key in trials):
        found = [trials.get((case, *column[:3])) for column in columns]
        rows.append([f"`{case}`", *(cell for trial in found for cell in _cells(trial))])
    head = ["", *(cell for column in columns for cell in (f"{column[3]}: posenc", "others"))]
    return f"{machine_words(results)}, {results['created'][:10]}.\n\n{_table(head, rows)}"


def _cells(trial: Json | None) -> tuple[str, str]:
    if trial is None:
        return "", ""
    show = in_mebibytes if trial["what"] == MEMORY else _ratio
    by_name = {row["name"]: row for row in trial["rows"]}
    others = [row for name, row in by_name.items() if name not in (trial["limit"], "posenc")]
    return show(by_name["posenc"]), ", ".join(f"{show(row)} ({_short(row)})" for row in others)


def _ratio(row: Json) -> str:
    return in_words(row) if row["ratio"] is None else ratio(row["ratio"]["median"])


def _short(row: Json) -> str:
    return "naive" if row["package"] is None else str(row["package"])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def written(text: str, results: Json) -> str:
    """The page with its table replaced."""
    begin, end = MARK.format("bench"), "<!-- end of bench -->"
    before, rest = text.split(begin)
    return f"{before}{begin}\n{speed(results['bench'])}\n{end}{rest.split(end)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", type=Path, nargs="+", default=[], help="folders of posenc bench")
    options = parser.parse_args()
    results = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}
    if options.bench:
        results["bench"] = together(options.bench)
    NUMBERS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
