# SPDX-License-Identifier: Apache-2.0
"""Encodings of 2024 to 2026, in time, memory and loss: write the tables of frontier.md from the committed results.

    posenc bench frontier --rounds 3 --patience 30 --out BENCH
    posenc compare --encodings none rope .. --seeds 2 --out COMPARE
    python benchmarks/frontier.py [--bench BENCH ..] [--compare COMPARE]

Several folders of benchmarks are put together. Run from the root of the repository.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from posenc.lab.bench.measure import MEMORY, TIME
from posenc.lab.bench.table import in_mebibytes, in_words, machine_words, ratio

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
OF_COMPARE = ("created", "machine", "settings", "seeds", "data", "answer", "limits", "command")
OF_VARIANT = ("name", "encoding", "trained", "seeds", "verdict", "lengths", "position_parameters")

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


def trained(folder: Path) -> Json:
    """The results of a comparison, without its cells."""
    read = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    variants = [{name: variant[name] for name in OF_VARIANT} for variant in read["arms"] if variant["trained"]]
    return {name: read[name] for name in OF_COMPARE} | {"arms": variants}


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


def losses(results: Json) -> str:
    """A row for each encoding, the best at the longest length first. After ±, half a 95 % interval."""
    lengths = [point["length"] for point in results["arms"][0]["lengths"]]
    variants = sorted(results["arms"], key=lambda variant: variant["lengths"][-1]["loss"]["mean"])
    rows = []
    for variant in variants:
        first, *longer = variant["lengths"]
        cells = [
            f"{first['loss']['mean']:.3f}",
            _interval(first["behind_best"]),
            *(_interval(p["change"]) for p in longer),
        ]
        rows.append([f"`{variant['name']}`", *cells, variant["verdict"]])
    changes = [f"change at {n}" for n in lengths[1:]]
    head = ["", f"loss at {lengths[0]}", f"behind the best at {lengths[0]}", *changes, "verdict"]
    return _table(head, rows)


def _interval(value: Json) -> str:
    return f"{value['mean']:+.3f} ± {(value['high'] - value['low']) / 2:.3f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


TABLES = {"bench": speed, "compare": losses}


def written(text: str, results: Json) -> str:
    """The page with its tables replaced."""
    for name, make in TABLES.items():
        begin, end = MARK.format(name), f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{make(results[name])}\n{end}{rest.split(end)[1]}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", type=Path, nargs="+", default=[], help="folders of posenc bench")
    parser.add_argument("--compare", type=Path, help="folder of posenc compare")
    options = parser.parse_args()
    results = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}
    if options.bench:
        results["bench"] = together(options.bench)
    if options.compare:
        results["compare"] = trained(options.compare)
    NUMBERS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
