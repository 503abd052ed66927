# SPDX-License-Identifier: Apache-2.0
"""The table of six_programs.md: what five programs compute from the position fields of published configurations.

    python benchmarks/six_programs.py [--write]

published_configs.json has the fields with which the programs deal, as in each model's config.json ("from": its repository on
the hub; "read_in": where the fields were read on 2026-11-23). Each row says which programs part from the largest group that
computes the same frequencies, for a text of max_position_embeddings tokens, and which run it not at all.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

from posenc.pretrained.readers import ConfigFile, ProgramComparison, compare

HERE = Path(__file__).parent
PAGE = HERE / "six_programs.md"
BEGIN, END = "<!-- written by benchmarks/six_programs.py -->", "<!-- end of the table -->"


def comparisons() -> dict[str, ProgramComparison]:
    """Of each published configuration, and of the first as transformers 5 saves it."""
    published = json.loads((HERE / "published_configs.json").read_text(encoding="utf-8"))
    fields = {name: entry["fields"] for name, entry in published.items()}
    name, first = next(iter(fields.items()))
    moved = {key: first[key] for key in ("rope_scaling", "rope_theta")}
    saved = {key: value for key, value in first.items() if key not in moved}
    fields[f"{name}, saved by transformers 5"] = saved | {
        "rope_parameters": moved["rope_scaling"] | {"rope_theta": moved["rope_theta"]}
    }
    return {name: compare(ConfigFile(name, each)) for name, each in fields.items()}


def row(name: str, comparison: ProgramComparison) -> str:
    """A line of the table: programs with the same difference together."""
    parts: dict[str, list[str]] = defaultdict(list)
    for sentence in comparison.apart():
        program, _, difference = sentence.partition(" differs")
        parts[difference.removeprefix(": ").removeprefix(" ")].append(program)
    differ = "; ".join(f"**{', '.join(programs)}**: {text}" for text, programs in parts.items()) or "nobody"
    refused = ", ".join(each.program for each in comparison.refused) or "–"
    count = len({reading.program for reading in comparison.readings})
    return f"| {name} | {count} | {differ} | {refused} |"


def table() -> str:
    rows = [row(name, comparison) for name, comparison in comparisons().items()]
    return "\n".join(["| configuration | programs that run it | who differs from the others | who does not run it |", "|---|---|---|---|", *rows])  # fmt: skip


if __name__ == "__main__":
    if "--write" in sys.argv:
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    else:
        print(table())
