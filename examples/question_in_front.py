# SPDX-License-Identifier: Apache-2.0
"""Does the question in front help, and do more documents? 140 key-value pairs, and 10, 20 or 30 documents.

    python examples/question_in_front.py [FOLDER [MODEL [SAMPLES [TASK [DTYPE]]]]]

The questions of Lost in the Middle (Liu et al. 2023, arXiv 2307.03172): each is asked after its context alone, and before it
too. Keys are words and values are digits: 140 pairs of UUIDs take 10049 tokens, more than SmolLM2 was trained for. Documents
are invented, and "closed_book" asks without any. FOLDER has the results.json and report.html; the same command resumes.
"""

import sys
from dataclasses import asdict
from pathlib import Path

import posenc
from posenc.lab.evals.results import Measured, mean
from posenc.lab.store import decoded
from posenc.report.evaluate import files

PAIRS, DOCUMENTS = "key_value:keys=words:values=digits:pairs=140", "multi_document:documents="
TASKS = (PAIRS, f"{PAIRS}:query_aware=true", f"{DOCUMENTS}10", f"{DOCUMENTS}20", f"{DOCUMENTS}20:query_aware=true",
         f"{DOCUMENTS}30", "multi_document:closed_book=true")  # fmt: skip


def changes(folder: str) -> list[dict]:
    """Of each task that asks before the text too, what that changes: the mean of the differences of the answer's loss, on the same
    texts, with its 95 % interval. folder: of the evaluation."""
    losses: dict[tuple[str, str], dict[tuple, float]] = {}
    for path in sorted(Path(folder, "cells").glob("*.json")):
        for cell in decoded(path.read_bytes(), Measured):
            at = cell.facts["method"], cell.facts["length"], cell.facts["depth"], cell.facts["seed"]
            of_task = losses.setdefault((cell.facts["task"].replace(":query_aware=true", ""), cell.facts["task"]), {})
            of_task |= {(*at, index): outcome.loss for index, outcome in enumerate(cell.record.outcomes)}
    found = []
    for (plain, task), of_task in losses.items():
        if task != plain and (behind := losses.get((plain, plain))):
            units: dict[tuple, list[float]] = {}
            for key in of_task.keys() & behind.keys():
                units.setdefault(key[3:], []).append(of_task[key] - behind[key])  # one text at every depth is a unit
            found.append({"task": task, "loss": asdict(mean(list(units.values())))})
    return found


def table(results: dict) -> str:
    """Markdown, a row for each task: right answers by depth with Wilson's 95 % interval, nats of the answer, what the question
    in front changes on the same texts, tokens, and seconds of processor time for a question."""
    depths = results["settings"]["depths"]
    head = ["task", *(f"{depth:g}" for depth in depths), "answer's nats", "question in front", "tokens", "seconds"]
    changes = {row["task"]: row["loss"] for row in results["question_in_front"]}
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for task in results["tasks"]:
        (none,) = task["methods"]
        (at,), cost = none["by_length"], none["processor_ms_per_token"] / 1000
        cells = [f"{c['mean']:.0%} ({c['low']:.0%}..{c['high']:.0%})" for c in (c["exact"] for c in none["cells"])]
        gap = changes.get(task["task"])
        change = f"{gap['mean']:+.2f} ({gap['low']:+.2f}..{gap['high']:+.2f})" if gap else ""
        costs = [f"{at['tokens']:.0f}", f"{cost * at['tokens']:.2f}"]
        rows.append([task["task"], *cells, f"{at['loss']['mean']:.2f}", change, *costs])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(
    folder: str = "question-in-front", model: str = "demo", samples: int = 5, task: str = "", dtype: str = "bfloat16"
) -> None:
    """Measure what is not in the folder yet, of TASKS those whose names begin with task."""
    lm, tokenizer = posenc.load(model, dtype=dtype)
    chosen = {"methods": [], "lengths": [4096], "depths": [0, 0.5, 1], "samples": int(samples)}
    results = posenc.evaluate(
        lm,
        tokenizer,
        tasks=[name for name in TASKS if name.startswith(task)],
        **chosen,
        generate=False,
        name=model,
        directory=folder,
        pages=files,
    )
    results["question_in_front"] = changes(folder)
    print(table(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
