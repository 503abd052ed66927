"""Is there one best stretch? Every task picks its own factor of NTK scaling, on the same model and at the same length.

    python examples/best_stretch.py [FOLDER [MODEL [LENGTH]]]

A longer context is usually tuned on perplexity; what a model finds in it is another matter. FOLDER keeps what has been
measured, its results.json and report.html: the same command goes on.
"""

import sys

import torch

import posenc
from posenc.report.evaluation import page

FACTORS = (1.5, 2, 3, 4, 8)
TASKS = ("perplexity:protocol=last", "repeated", "copying", "passkey", "facts")


def table(results: dict) -> str:
    """Markdown: a row for each task, a column for each stretch; the least loss in nats a token is bold, then the
    difference to the model as it is at that stretch, with its 95 % interval."""
    rows = [["task", *("none" if f == 1 else f"{f:g}" for f in (1, *FACTORS)), "best against none"]]
    rows.append(["---", *["---:"] * (len(rows[0]) - 1)])
    for task in results["tasks"]:
        arms = [arm["by_length"][0] for arm in task["methods"] if arm["method"] != "cut_off"]
        best = min(arms, key=lambda arm: arm["loss"]["mean"])
        cells = [f"{arm['loss']['mean']:.3f}" for arm in arms]
        cells[arms.index(best)] = f"**{cells[arms.index(best)]}**"
        gap = best["against_none"] and best["against_none"]["loss"]
        cells.append(f"{gap['mean']:+.3f} ± {gap['high'] - gap['mean']:.3f}" if gap else "it is none")
        rows.append([f"`{task['task']}`", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(folder: str = "best-stretch", model: str = "demo", length: int = 12288, samples: int = 2) -> None:
    """Measure what the folder does not hold yet."""
    lm, tokenizer = posenc.load(model, dtype=torch.bfloat16)
    methods = [f"ntk:factor={factor}" for factor in FACTORS]
    chosen = {"methods": methods, "lengths": [int(length)], "depths": [0.1, 0.5], "samples": int(samples)}
    results = posenc.evaluate(
        lm, tokenizer, tasks=TASKS, **chosen, generate=False, name=model, directory=folder, render=page
    )
    print(table(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
