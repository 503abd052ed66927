"""Write the tables of README.md and docs/bench.md from the committed results.

    python -m posenc.bench.readme [DIR/results.json]

With a file, that becomes the committed result of its device first. Run from the root of the repository.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from posenc.bench.measure import MEASURED
from posenc.bench.plan import MEMORY, TIME
from posenc.bench.table import Results, in_words, machine_line, markdown, ratio
from posenc.errors import InputError

RESULTS = Path("benchmarks/results")
BEGIN, END = "<!-- speed: written by python -m posenc.bench.readme -->", "<!-- end of speed -->"
LENGTH, MEMORY_LENGTH, ROTARY_LENGTH = 2048, 4096, 4096
"""What the README shows; docs/bench.md has all."""
NAIVE = ("SDPA with a dense bias", "textbook rotation, then SDPA")


def summary(results: Results) -> str:
    """The README's tables."""
    trials = {_key(trial): trial for trial in results["trials"]}
    parts = [f"On {machine_line(results)} float32."]
    cases = list(dict.fromkeys(t["case"] for t in results["trials"] if t["family"] == "attention"))
    if cases:
        what = [
            (trials, (TIME, mode, LENGTH), _times) for mode in ("forward", "train")
        ] + [(trials, (MEMORY, "forward", MEMORY_LENGTH), _mebibytes)]  # fmt: skip
        rows = []
        for case in cases:
            cells = [
                cell
                for known, (kind, mode, n), tell in what
                for cell in _pair(known.get((kind, case, mode, "float32", n)), tell)
            ]
            rows.append([f"`{case}`", *cells])
        plain = [
            tell(_row(trials.get((kind, cases[0], mode, "float32", n)), "plain SDPA"))
            for _, (kind, mode, n), tell in what
        ]
        head = ["", "forward: posenc", "peer", "with backward: posenc", "peer", "peak MiB: posenc", "peer"]
        parts.append(
            f"Attention as a module, time over the same module without any position, {LENGTH} tokens; peak memory above inputs "
            f"and weights in a forward pass over {MEMORY_LENGTH} tokens (without position: {plain[2]} MiB). The peer is the fastest module "
            "of transformers, or naive: SDPA with the whole bias as its mask."
        )
        parts.append(_markdown(head, rows))
    turned = [
        t for t in results["trials"] if t["case"] == "rotary" and t["length"] == ROTARY_LENGTH and t["mode"] != "decode"
    ]
    if turned:
        columns = [f"{t['dtype']}, {'forward' if t['mode'] == 'forward' else 'with backward'}" for t in turned]
        names = list(dict.fromkeys(row["name"] for t in turned for row in t["rows"] if row["name"] != t["limit"]))
        rows = [[name, *(_times(_row(t, name)) for t in turned)] for name in names]
        parts.append(
            f"Rotary embedding alone, time over a copy of the same bytes, {ROTARY_LENGTH} tokens, 32 and 8 heads of width 128."
        )
        parts.append(_markdown(["", *columns], rows))
    return "\n\n".join(parts) + "\n"


def _key(trial: Results) -> tuple[Any, ...]:
    return trial["what"], trial["case"], trial["mode"], trial["dtype"], trial["length"]


def _row(trial: Results | None, name: str) -> Results | None:
    return next((row for row in trial["rows"] if row["name"] == name), None) if trial is not None else None


def _times(row: Results | None) -> str:
    if row is None:
        return ""
    return ratio(row["ratio"]["median"]) if row["ratio"] is not None else in_words(row)


def _mebibytes(row: Results | None) -> str:
    if row is None:
        return ""
    return f"{row['bytes'] / 2**20:.0f}" if row["bytes"] is not None else in_words(row)


def _pair(trial: Results | None, tell: Callable[[Results | None], str]) -> list[str]:
    """posenc's cell, and the best peer's with its name."""
    if trial is None:
        return ["", ""]
    measured = [row for row in trial["rows"] if row["status"] == MEASURED]
    peers = [row for row in measured if row["package"] is not None and "given" not in row["name"]]
    others = peers or [row for row in measured if row["name"] in NAIVE]
    best = min(
        others,
        key=lambda row: (row["ratio"] or {"median": 0})["median"] if row["bytes"] is None else row["bytes"],
        default=None,
    )
    ours = tell(_row(trial, "posenc"))
    if best is None:
        return [ours, ""]
    name = best["name"].removeprefix("transformers ") if best["package"] else "naive"
    return [ours, f"{tell(best)} ({name})"]


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


DOCUMENTS: dict[str, Callable[[Results], str]] = {"README.md": summary, "docs/bench.md": markdown}


def generated(text: str, make: Callable[[Results], str], committed: Sequence[Results]) -> str:
    """A document with what stands between its marks made anew.

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
        print(f"posenc.bench.readme: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
