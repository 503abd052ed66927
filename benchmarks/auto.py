# SPDX-License-Identifier: Apache-2.0
"""Write the tables of `posenc extend MODEL --method auto` into docs/longer_context.md.

    python benchmarks/auto.py [DIR/extend.json NAME]

With arguments, that becomes benchmarks/evaluations/auto_NAME.json first. Every such file gets its table between the page's marks of
its name. Run from the root of the repository.
"""

import json
import sys
from pathlib import Path
from typing import Any

from posenc.lab.evals.auto import Selection
from posenc.lab.evals.plan import Plan

RESULTS, PAGE = Path("benchmarks/evaluations"), Path("docs/longer_context.md")
BEGIN, END = "<!-- {name}: written by python benchmarks/auto.py -->", "<!-- end of {name} -->"


def section(name: str, results: dict[str, Any]) -> str:
    """The table of a model, what was chosen, and where it was measured."""
    given = results["selection"] | {"plan": Plan.read(results["selection"]["plan"]), "extension": None}
    found = Selection(**given)
    plan, machine = found.plan, found.machine
    (head, *rows), (*_, (texts, methods)) = found.table(), plan.rounds
    rows = [[f"`{row[0]}`", *row[1:]] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows)]
    out = "".join(f" {title} does not count: {why}." for title, why in found.left_out.items())
    return "\n".join(
        [
            *lines,
            "",
            f"{name.removeprefix('auto_')}, {plan.context_length} to {plan.target_length} tokens, for {plan.program}: "
            f"{len(plan.candidates)} methods of {len(plan.candidates) + len(plan.skipped)}, of which {methods} read {texts} texts.{out} "
            f"**{found.why[0].upper()}{found.why[1:]}.**",
            "",
            f"`{results['command']}`: planned for {plan.planned_minutes:.2g} minutes, measured in {found.seconds / 60:.2g}; "
            f"{machine['dtype']}, {machine['cpu']}, torch {machine['torch']}.",
        ]
    )


def generated(text: str, name: str, results: dict[str, Any]) -> str:
    """The page with the section between the marks of this name."""
    begin, end = BEGIN.format(name=name), END.format(name=name)
    return f"{text[: text.index(begin)]}{begin}\n\n{section(name, results)}\n\n{text[text.index(end) :]}"


def main(source: str | None = None, name: str | None = None) -> None:
    if source and name:
        text = json.dumps(json.loads(Path(source).read_text()), separators=(",", ":"))
        (RESULTS / f"auto_{name}.json").write_text(f"{text}\n")
    for path in sorted(RESULTS.glob("auto_*.json")):
        page = generated(PAGE.read_text(encoding="utf-8"), path.stem, json.loads(path.read_text()))
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
