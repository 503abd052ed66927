# SPDX-License-Identifier: Apache-2.0
"""What the repository has measured of an encoding, found in its committed results and pages."""

import json
import re
from typing import Any

from posenc.encoding import Encoding
from website.page import DOCS, ROOT, heading, table

SPEED = ROOT / "benchmarks" / "results" / "cpu.json"
VISION = ROOT / "benchmarks" / "vision_resolution.md"
MATRIX = ROOT / "benchmarks" / "encodings.md"
MARKS = {"✓": "passed", "–": "does not apply", "✗": "failed"}
GENERAL = ("encodings", "distributed", "index", "design", "position_from_scratch.zh")
"""Pages that name every encoding, or say nothing of a single one."""


def speed(name: str) -> list[str]:
    """Its speed, as Markdown; empty where it was not measured."""
    trials = [
        trial
        for trial in json.loads(SPEED.read_text(encoding="utf-8"))["trials"]
        if (trial["case"], trial["what"], trial["dtype"], trial["length"]) == (name, "time", "float32", 2048)
    ]
    ratios = {trial["mode"]: _ratio(trial) for trial in trials}
    told = [
        f"{ratios[mode]:.2f} times {words}"
        for mode, words in {"forward": "forward", "train": "with backward"}.items()
        if ratios.get(mode)
    ]
    if not told:
        return []
    return [
        f"**Speed.** Attention with it takes {' and '.join(told)} the time of attention without position (2048 tokens, "
        "float32, one thread of a CPU): [how it was measured, and other packages](../bench.md)."
    ]


def _ratio(trial: dict[str, Any]) -> float | None:
    return next((row["ratio"]["median"] for row in trial["rows"] if row["name"] == "posenc" and row["ratio"]), None)


def accuracy(name: str) -> list[str]:
    """Its accuracy on images, as Markdown: rows of the tables that are about it; empty where it was not measured."""
    found, head, about = [], [], ""
    for line in VISION.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("**"):
            about = line.split("**")[1]
        elif line.startswith("| |"):
            head = cells
        elif line.startswith("|") and cells[0].split(" + ")[0] == name:
            found.append((about, *cells))
    if not found:
        return []
    return [
        "**Images at other sizes than in training**, accuracy in percent and its change from the training size in points: "
        "[how it was measured](../vision-lab.md).",
        table(("data", *(head[:1] and ["encoding"]), *head[1:]), found),
    ]


def mentions(name: str, cls: type[Encoding]) -> list[str]:
    """Which pages tell more of it."""
    said = re.compile(rf"`{name}[`:@+]|\b{cls.__name__}\(|posenc\.{cls.__name__}\b|[\" ]{name}[:@+]")
    found = [
        f"[{heading(path)}](../{path.relative_to(DOCS).as_posix()})"
        for path in sorted(DOCS.rglob("*.md"))
        if path.stem not in GENERAL and said.search(path.read_text(encoding="utf-8"))
    ]
    return [f"More: {', '.join(found)}."] if found and name != "none" else []


def parity(name: str) -> str:
    """The checks that it passes, of the table in benchmarks/encodings.md."""
    lines = MATRIX.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|  |"))
    checks = [cell.strip() for cell in lines[start].strip("| ").split("|")]
    row = next(line for line in lines[start:] if line.startswith(f"| `{name}` |"))
    marks = [cell.strip() for cell in row.strip("| ").split("|")][1:]
    said = []
    for mark, words in MARKS.items():
        own = [check for check, got in zip(checks, marks, strict=True) if got == mark]
        if own:
            said.append((f"{mark} {words}", " · ".join(own)))
    return table(("", "[check](../benchmarks/encodings.md#properties-of-each-encoding-checked)"), said)
