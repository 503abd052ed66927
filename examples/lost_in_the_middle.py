# SPDX-License-Identifier: Apache-2.0
"""Do other positions improve the middle? The U-shaped curve under RoPE, position maps and softmax_1.

    python examples/lost_in_the_middle.py [FOLDER [MODEL]]

The model is asked for one of a list of facts, at varying depths (Liu et al. 2023, arXiv 2307.03172, in sentences that a
small model reads). Texts are within the context length; maps are set so short that they act within them. FOLDER has the
results.json and report.html; the same command resumes.
"""

import sys

import posenc
from posenc.report.evaluate import files

METHODS = ("softmax_n", "rerope:window=128", "self_extend:window=128:group=4", "dual_chunk:chunk=192:local=64",
           )  # fmt: skip


def table(results: dict) -> str:
    """Markdown, for each task: a row for each method, a column for each depth; right answers, with Wilson's 95 % interval."""
    depths = results["settings"]["depths"]
    lines = []
    for task in results["tasks"]:
        lines += [f"| {task['task']} | {' | '.join(f'{depth:g}' for depth in depths)} | answer's nats, all depths |"]
        lines += [f"| --- |{' ---: |' * (len(depths) + 1)}"]
        for method in task["methods"]:
            cells = [
                f"{c['mean']:.0%} ({c['low']:.0%}..{c['high']:.0%})" for c in (c["exact"] for c in method["cells"])
            ]
            loss, gap = method["by_length"][0]["loss"], method["by_length"][0]["against_none"]
            text = f"{loss['mean']:.2f}"
            if gap:
                text += f" ({gap['loss']['mean']:+.2f} ± {gap['loss']['high'] - gap['loss']['mean']:.2f})"
            lines.append(f"| {method['method']} | {' | '.join(cells)} | {text} |")
        lines.append("")
    return "\n".join(lines).strip()


def main(folder: str = "lost-in-the-middle", model: str = "demo", items: int = 25, samples: int = 32) -> None:
    """Measure what is not in the folder yet."""
    lm, tokenizer = posenc.load(model)
    tasks = [f"facts:items={items}", f"facts:items={items}:query_aware=true"]
    chosen = {"methods": METHODS, "lengths": [512], "depths": [0, 0.17, 0.33, 0.5, 0.67, 0.83, 1], "samples": samples}
    results = posenc.evaluate(
        lm,
        tokenizer,
        tasks=tasks,
        **chosen,
        generate=False,
        name=model,
        directory=folder,
        pages=files,
    )
    print(table(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
