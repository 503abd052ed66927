# SPDX-License-Identifier: Apache-2.0
"""Write the table of docs/bench.md, and all tables in benchmarks/tables.md, from the committed results.

    python benchmarks/speed_tables.py [DIR/results.json]

With a file, that becomes the committed result of its device first. Run from the root of the repository.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.measure import MEMORY, TIME
from bench.table import Results, in_words, machine_words, markdown, ratio

from posenc.errors import InputError

RESULTS = Path("benchmarks/results")
BEGIN, END = "<!-- speed: written by python benchmarks/speed_tables.py -->", "<!-- end of speed -->"
LENGTHS, MEMORY_LENGTH = (64, 512, 2048), 4096
"""What docs/bench.md shows, as far as it was measured; benchmarks/tables.md has all."""
NAIVE = ("SDPA with a dense bias", "textbook rotation, then SDPA")


def summary(results: Results) -> str:
    """A line per encoding, posenc and the best of the others: forward, with backward, and in memory."""
    trials = {_key(trial): trial for trial in results["trials"] if trial["family"] == "attention"}
    cases = list(dict.fromkeys(key[1] for key in trials))
    first = cases[0] if cases else None
    plain = _cell(_row(trials.get((MEMORY, first, "forward", "float32", MEMORY_LENGTH)), "plain SDPA"))
    without = f"; without position: {plain}" if plain else ""
    parts = [
        f"{machine_words(results)}, {results['created'][:10]}. Time over the same module without any position, float32, by tokens."
    ]
    for title, what, mode, lengths in (
        ("Forward", TIME, "forward", LENGTHS),
        ("With backward", TIME, "train", LENGTHS),
        (f"Peak memory of a forward pass, MiB{without}", MEMORY, "forward", (MEMORY_LENGTH,)),
    ):
        given = [n for n in lengths if any((what, case, mode, "float32", n) in trials for case in cases)]
        rows = []
        for case in cases:
            found = [trials.get((what, case, mode, "float32", n)) for n in given]
            rows.append([f"`{case}`", *(cell for trial in found for cell in _pair(trial))])
        head = ["", *(cell for n in given for cell in (f"{n}: posenc", "best other"))]
        if given:
            parts += [f"{title}:", _markdown(head, rows)]
    return "\n\n".join(parts) + "\n"


def _key(trial: Results) -> tuple[Any, ...]:
    return trial["what"], trial["case"], trial["mode"], trial["dtype"], trial["length"]


def _row(trial: Results | None, name: str) -> Results | None:
    return next((row for row in trial["rows"] if row["name"] == name), None) if trial is not None else None


def _cell(row: Results | None) -> str:
    """A ratio, mebibytes, or the reason why there is none."""
    if row is None:
        return ""
    if row["bytes"] is not None:
        return f"{row['bytes'] / 2**20:.0f}"
    return ratio(row["ratio"]["median"]) if row["ratio"] is not None else in_words(row)


def _pair(trial: Results | None) -> list[str]:
    """posenc's cell, and the best other candidate's with its name."""
    if trial is None:
        return ["", ""]
    measured = [row for row in trial["rows"] if row["bytes"] is not None or row["ratio"] is not None]
    others = [row for row in measured if row["name"] != trial["limit"] and row["name"].split(",")[0] != "posenc"]
    best = min(others, key=lambda row: row["ratio"]["median"] if row["ratio"] else row["bytes"], default=None)
    if best is None:
        return [_cell(_row(trial, "posenc")), ""]
    name = "naive" if best["name"] in NAIVE else best["name"].removeprefix("transformers ")
    return [_cell(_row(trial, "posenc")), f"{_cell(best)} ({name})"]


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


DOCUMENTS: dict[str, Callable[[Results], str]] = {
    "docs/bench.md": summary,
    "benchmarks/tables.md": markdown,
}


def generated(text: str, make: Callable[[Results], str], committed: Sequence[Results]) -> str:
    """A document with the text between its marks replaced.

    Raises:
        InputError: no marks.
    """
    if BEGIN not in text or END not in text:
        raise InputError(f"the document lacks the marks {BEGIN} and {END}: put them where the tables belong")
    before, after = text[: text.index(BEGIN)], text[text.index(END) + len(END) :]
    return before + "\n".join([BEGIN, *(make(results) for results in committed), END]) + after


def committed(root: Path) -> list[Results]:
    """The results of the repository, by device."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((root / RESULTS).glob("*.json"))]


def adopt(path: Path, root: Path) -> Path:
    """Make a benchmark's results the committed ones of its device.

    Raises:
        InputError: no such file, or an interrupted benchmark.
    """
    try:
        text = path.read_text(encoding="utf-8")
        results = json.loads(text)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}; give a results.json of posenc bench") from None
    if not results["complete"]:
        raise InputError(f"{path}: the benchmark was interrupted; give its command again")
    target = root / RESULTS / f"{results['settings']['device'].split(':')[0]}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text.rstrip() + "\n", encoding="utf-8")
    return target


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, metavar="RESULTS", help="a results.json to commit")
    options, root = parser.parse_args(argv), Path()
    try:
        if options.results is not None:
            print(adopt(options.results, root))
        for name, make in DOCUMENTS.items():
            path = root / name
            path.write_text(generated(path.read_text(encoding="utf-8"), make, committed(root)), encoding="utf-8")
            print(path)
    except InputError as error:
        print(f"benchmarks/speed_tables.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
