# SPDX-License-Identifier: Apache-2.0
"""Which factor of NTK scaling is best for each task, on the same model and at the same length?

    python examples/best_stretch.py [FOLDER [MODEL [LENGTH [SAMPLES [TEXT [TASK ...]]]]]]

A longer context is usually tuned on perplexity, and other tasks may need another factor. LENGTH should be past the trained
one. TEXT is a file of running text, or "pydoc". FOLDER has the results.json and report.html; the same command resumes.
"""

import sys

import torch

import posenc
from posenc.report.evaluate import files

FACTORS = (1.5, 2, 3, 4, 6, 8, 12, 16)
TASKS = ("perplexity:protocol=last", "repeated", "copying", "facts", "passkey")


def table(results: dict) -> str:
    """Markdown: a row for each task, a column for each factor; nats per token, the least is bold, and at that factor the
    difference to what most of the tasks' neighbours choose, the best of the first task, with its 95 % interval."""
    names = [method["method"] for method in results["tasks"][0]["methods"]]
    rows = [["task", *(name.removeprefix("ntk:factor=") for name in names)], ["---", *["---:"] * len(names)]]
    for task in results["tasks"]:
        losses = [method["by_length"][0]["loss"] for method in task["methods"]]
        cells = [f"{loss['mean']:.3f} ± {loss['high'] - loss['mean']:.3f}" for loss in losses]
        stretched = [loss["mean"] for name, loss in zip(names, losses, strict=True) if name.startswith("ntk")]
        best = [loss["mean"] for loss in losses].index(min(stretched))
        cells[best] = f"**{cells[best]}**"
        rows.append([f"`{task['name']}`", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(folder="best-stretch", model="demo", length=12288, samples=8, text="pydoc", *tasks: str) -> None:
    """Measure what is not in the folder yet."""
    lm, tokenizer = posenc.load(model, dtype=torch.float32)
    chosen = {"tasks": tasks or TASKS, "methods": [f"ntk:factor={factor}" for factor in FACTORS], "text": text}
    chosen |= {
        "lengths": [int(length)],
        "depths": [0.25],
        "samples": int(samples),
        "generate": False,
    }
    chosen |= {"name": model, "directory": folder, "pages": files}
    print(table(posenc.evaluate(lm, tokenizer, **chosen)))


if __name__ == "__main__":
    main(*sys.argv[1:])
