"""Compare functions of installed packages with posenc's golden vectors; print the tables of benchmarks/conform.md.

    python benchmarks/conform_peers/run.py [peer_litgpt ...] [--write benchmarks/conform.md] [--earlier]

Each peer_*.py adapts one package to the conventions, or in PACKAGES several; a package that cannot be imported is listed with the reason.
--earlier: of the installed releases, put what does not conform into the table of earlier releases.
"""

import argparse
import datetime
import importlib
import importlib.metadata
import platform
import sys
from pathlib import Path

import torch

from posenc.conformance import Verdict, conform, golden

HERE = Path(__file__).parent
BEGIN, END = "<!-- findings: written by benchmarks/conform_peers/run.py -->", "<!-- end of findings -->"

HEAD = ("| verdict | release | function | kind |", "|---|---|---|---|")
EARLIER, END_EARLIER = "<!-- earlier: written by run.py --earlier -->", "<!-- end of earlier releases -->"


def conforms(line: str) -> bool:
    """Whether a table's line has no finding."""
    return line.startswith("| conforms")


def in_words(verdict: Verdict) -> str:
    """The findings as one cell, with the share of values that conform."""
    if verdict.passed is None:
        return f"could not be run: {'; '.join(verdict.findings)}"
    every = len(golden.cases(verdict.kind))
    extent = "" if verdict.cases == every else f" in the {verdict.cases} of {every} cases that were asked"
    if verdict.passed:
        return f"conforms{extent}"
    right = verdict.example is None and not any("refuses" in f or f.startswith("raises") for f in verdict.findings)
    return "; ".join([f"float32 values conform{extent}"] * right + list(verdict.findings))


def rows(names: list[str]) -> tuple[list[str], list[str]]:
    """Table lines of what was tested, and lines of what could not be."""
    tested, missing = [], []
    for name in names:
        try:
            peer = importlib.import_module(name)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            missing.append(f"- {name.removeprefix('peer_')}: {type(error).__name__}: {reason}")
            continue
        checks = getattr(peer, "PACKAGES", None) or {peer.PACKAGE: peer.CHECKS}
        for package, (what, function, kind) in [(name, each) for name in checks for each in checks[name]]:
            version = importlib.metadata.version(package)
            verdict = conform(function, kind)
            words = in_words(verdict)
            notes = f" ({'; '.join(verdict.notes)})" if verdict.notes else ""
            cells = (words + notes, f"{package} {version}", what, kind)
            tested.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
            print(tested[-1], flush=True)
    return tested, missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", help="modules of this folder (default: all)")
    parser.add_argument("--write", metavar="FILE", help="replace the table between the marks of this file")
    parser.add_argument("--earlier", action="store_true", help="write the table of earlier releases")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    tested, missing = rows(options.peers or sorted(path.stem for path in HERE.glob("peer_*.py")))
    when = f"{datetime.date.today().isoformat()}, torch {torch.__version__}, Python {platform.python_version()}."
    lines = [
        BEGIN,
        when,
        "",
        *HEAD,
        *sorted(tested, key=conforms),
        *(["", "Not tested on this machine:", "", *missing] if missing else []),
        END,
    ]
    if options.write and options.earlier:
        earlier(Path(options.write), tested)
    elif options.write:
        replace(Path(options.write), BEGIN, END, lines)
    else:
        print("\n".join(lines))


def replace(path: Path, begin: str, end: str, lines: list[str]) -> None:
    """Exchange what is between two marks, which the lines include."""
    text = path.read_text(encoding="utf-8")
    before, after = text[: text.index(begin)], text[text.index(end) + len(end) :]
    path.write_text(before + "\n".join(lines) + after, encoding="utf-8")


def earlier(path: Path, tested: list[str]) -> None:
    """Exchange the rows of these releases in the table of earlier ones."""
    text = path.read_text(encoding="utf-8")
    rows = [line for line in text[text.index(EARLIER) : text.index(END_EARLIER)].splitlines() if line.startswith("| ")][
        1:
    ]
    releases = {line.split(" | ")[1] for line in tested}
    others = [row for row in rows if row.split(" | ")[1] not in releases]
    new = [line for line in tested if not conforms(line)]
    table = sorted(others + new, key=lambda row: row.split(" | ")[1:])
    replace(path, EARLIER, END_EARLIER, [EARLIER, *HEAD, *table, END_EARLIER])


if __name__ == "__main__":
    main()
