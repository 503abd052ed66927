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

from longer import generated

from posenc.lab.evals.auto import Selection
from posenc.lab.evals.plan import Plan

RESULTS, PAGE = Path("benchmarks/evaluations"), Path("docs/longer_context.md")


def section(name: str, results: dict[str, Any]) -> str:
    """The table of a model, what was chosen, and where it was measured."""
    given = results["selection"] | {"plan": Plan.read(results["selection"]["plan"]), "extension": None}
    found = Selection(**given)
    plan, machine, minutes = found.plan, found.machine, found.seconds / 60
    why = found.why.replace(" texts", " documents")  # as the results of earlier versions have it
    (head, *rows), (*_, (texts, methods)) = found.table(), plan.rounds
    rows = [[f"`{row[0]}`", *row[1:]] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows)]
    out = "".join(f" {title.capitalize()} does not count: {why}." for title, why in found.left_out.items())
    return "\n".join(
        [
            *lines,
            "",
            f"{name.removeprefix('auto_')}, from {plan.context_length} to {plan.target_length} tokens, for {plan.program}: "
            f"{len(plan.candidates)} methods, of which {methods} read {texts} documents.{out} **{why[0].upper()}{why[1:]}.**",
            "",
            f"`{results['command']}`: {plan.minutes:g} minutes were given, {minutes:.{0 if minutes >= 10 else 1}f} were measured; "
            f"{machine['dtype']}, {machine['cpu']}, load {machine['load']:.1f} on {machine['cores']} cores, torch {machine['torch']}.",
        ]
    )


def main(source: str | None = None, name: str | None = None) -> None:
    if source and name:
        text = json.dumps(json.loads(Path(source).read_text()), separators=(",", ":"))
        (RESULTS / f"auto_{name}.json").write_text(f"{text}\n")
    for path in sorted(RESULTS.glob("auto_*.json")):
        text = section(path.stem, json.loads(path.read_text()))
        page = generated(PAGE.read_text(encoding="utf-8"), path.stem, text, "auto")
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
