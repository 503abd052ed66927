# SPDX-License-Identifier: Apache-2.0
"""Write the tables and the picture of `posenc eval MODEL --preset longer` from its results.json.

    python benchmarks/longer.py [DIR/results.json NAME]

With arguments, that becomes benchmarks/evaluations/longer_NAME.json first. Every such file gets its tables,
benchmarks/longer_NAME.md, and, where docs/longer_context.md has marks of its name, a summary there. NAME is a model's, or as in
Gemma3_passkey its name and what was measured of it. Run from the root of the repository.
"""

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

import torch

from posenc.errors import listed
from posenc.lab.statistics import Estimate, estimate

RESULTS, PAGE, PICTURE = Path("benchmarks/evaluations"), Path("docs/longer_context.md"), Path("docs/images/longer.svg")
SHOWN = "longer_stories15M"
BASES, FAMILIAR, BEST = ("none", "truncation"), ("linear", "ntk", "yarn"), 3
NAMES = {
    "perplexity": "running text", "repeated": "repeated text", "passkey": "passkey", "facts": "key-value",
}  # fmt: skip
RUNNING = ("running text", "repeated text")
COLOURS = ("#2a78d6", "#1b9e77", "#d95f02", "#b04fc4", "#c78a00", "#d62a5c")
GREY = "#8b95a1"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 52, 150, 18, 44

Results = dict[str, Any]


def tables(name: str, results: Results) -> str:
    """All of it, of a model: a table for each length."""
    s, machine = results["settings"], results["machine"]
    planned = results["cells"]
    note = "" if results["complete"] else f" **{planned['finished']} of {planned['planned']} cells were measured.**"
    parts = [
        f"# {name.replace('_', ', ')} past its context length\n",
        f"Written by `python benchmarks/longer.py` from the results.json of `{results['command']}`.{note}\n",
        f"Trained at {results['model']['trained_length']} tokens; {results['model']['dtype']}, {machine['cpu']}, "
        f"{machine['cores']} cores shared with other processes, posenc {machine['posenc']}, torch {machine['torch']}, "
        f"transformers {machine['transformers']}, {results['created'][:10]}. {s['samples']} prompts per cell.\n",
        "Each cell: nats per token, then the difference to `truncation`, the unmodified model on truncated "
        "input. Lower is better. Running text counts past the context length alone; answers with a place in the text are "
        f"at {' and '.join(f'{depth:.0%}' for depth in s['depths'])} of it. Methods are set up for each length. Intervals "
        "are 95 % for all methods of a column together (Bonferroni). Milliseconds are processor time per token, in the first task; MiB are the memory above the model's.\n",
        "\n".join(f"- {limit}" for limit in results["limits"]) + "\n",
    ]
    for at in results["longer"]:
        parts.append(f"## {at['length']} tokens, {at['times']:.3g} times the context length\n\n{table(at)}\n")
        if "documents" not in at["tasks"][0]["rows"][0]:
            continue  # an archive of an earlier version
        parts.append(
            "Differences to the method with the lowest loss on the same documents, with intervals of the same kind:"
            f"\n\n{behind_best(at)}\n"
        )
    return "\n".join(parts)


def table(at: Results) -> str:
    """A length: methods by tasks, the best on the first task first."""
    tasks = [(name, {row["method"]: row for row in rows}) for name, rows in _tasks(at)]
    head = ["method", *(name for name, _ in tasks), "ms", "MiB"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name, first in tasks[0][1].items():
        lines.append([f"`{name}`", *(_cell(rows.get(name)) for _, rows in tasks), *_cost(first)])
    return _markdown(lines)


def behind(rows: list[Results], method: str, other: str) -> Estimate:
    """How much more one method of a task loses than another, paired over documents. The interval is that of `tables`, on every
    page: one of as many that hold together as the task has other methods."""
    of = {row["method"]: torch.tensor(row["documents"]) for row in rows}
    return estimate((of[method] - of[other])[None], len(rows) - 1)


def undecided(results: Results) -> str:
    """The limits of an archive that its differences are not to be read without."""
    return " ".join(limit for limit in results["limits"] if "undecided" in limit or "overlap" in limit)


def best(rows: list[Results]) -> str:
    """The method with the lowest loss."""
    return next(row["method"] for row in rows if row["method"] not in BASES)


def _tasks(at: Results) -> list[tuple[str, list[Results]]]:
    """A length's tasks by their names on the pages, and the row of each method."""
    return [(NAMES.get(task["task"].split(":")[0], task["task"]), task["rows"]) for task in at["tasks"]]


def behind_best(at: Results) -> str:
    """A length: each method's loss above that of the best method of the task, which a row of its name has as a dash."""
    tasks = _tasks(at)
    lines = [["method", *(name for name, _ in tasks)], ["---", *["---:"] * len(tasks)]]
    for first in tasks[0][1]:
        lines.append([f"`{first['method']}`", *(_behind(rows, first["method"]) for _, rows in tasks)])
    return _markdown(lines)


def _behind(rows: list[Results], method: str) -> str:
    if method == best(rows) or all(row["method"] != method for row in rows):
        return "–"
    gap = behind(rows, method, best(rows))
    return f"{gap.mean:+.3f} ± {gap.high - gap.mean:.3f}"


def findings(results: Results) -> str:
    """What the tables say of running and repeated text and of all comparisons with truncation, as a list."""
    lengths = [
        (at["times"], [(name, {row["method"]: row for row in rows}) for name, rows in _tasks(at)])
        for at in results["longer"]
    ]
    gaps = [
        (task, times, method, row["against_truncation"])
        for times, tasks in lengths
        for task, rows in tasks
        for method, row in rows.items()
        if row["against_truncation"] is not None
    ]
    methods = len({method for _, _, method, _ in gaps}) - 1
    better: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for task, times, method, gap in gaps:
        if gap["high"] < 0:
            better.setdefault(task, {}).setdefault(method, []).append((times, -gap["mean"]))
    won = [
        f"{task}, `{method}` at {listed([f'{times:.3g}×' for times, _ in of])} (by {listed([f'{gain:.2f}' for _, gain in of])})"
        for task, of_methods in better.items()
        for method, of in of_methods.items()
    ]
    count = sum(len(of) for of_methods in better.values() for of in of_methods.values())
    right = sum(
        row["exact"]["hits"]
        for _, tasks in lengths
        for name, rows in tasks
        if name == "passkey"
        for row in rows.values()
    )
    running, repeated = (
        [(times, rows) for times, tasks in lengths for task, rows in tasks if task == name]
        for name in ("running text", "repeated text")
    )

    def everywhere(close: Any, of: Any = running) -> list[str]:
        names = (name for name in of[0][1] if name not in BASES)
        return [f"`{name}`" for name in names if all(close(rows, name) for _, rows in of)]

    def loss(rows: Results, name: str) -> float:
        return rows[name]["loss"]["mean"]

    def paired(one: str, other: str, of: Any = running) -> str:
        each = [behind(list(rows.values()), one, other) for _, rows in of]
        return listed([f"{gap.mean:+.3f} ± {gap.high - gap.mean:.3f}" for gap in each])

    endless = everywhere(lambda rows, name: loss(rows, name) - loss(rows, "truncation") < 0.04)
    lowest = everywhere(lambda rows, name: loss(rows, name) - min(loss(rows, each) for each in rows) < 0.1, repeated)
    idle = everywhere(lambda rows, name: loss(rows, "none") - loss(rows, name) < 0.4, running[1:])
    schedules = ("linear", "ntk", "ntk_mixed", "llama3")
    least = min(
        behind(list(rows.values()), name, best_).low
        for _, rows in running[1:]
        for name in schedules
        for best_ in ("yarn", "mrrope")
    )
    times = listed([f"{times:.3g}" for times, _ in running])
    return "\n".join(
        [
            f"- **Truncating is hard to beat.** Of {len(gaps)} comparisons of {methods} methods and `none` with `truncation`, {count} come "
            f"out better, in nats: {'; '.join(won)}. {undecided(results)} {'No' if right == 0 else right} passkey is found. The running text was drawn "
            "256 tokens at a time, so nothing farther back could help.",
            f"- **For endless text**, {listed(endless)} are within 0.04 nats of truncating on running text at every length, in one pass.",
            f"- **On repeated text**, where far tokens matter, {listed(lowest)} are within 0.1 nats of the lowest loss at every length.",
            f"- **`yarn` and `mrrope` have the lowest losses of the schedules.** On running text from {running[1][0]:.3g} times the length on, "
            f"{listed([f'`{name}`' for name in schedules])} are behind either by {least:.2f} nats and more, with 95 %.",
            f"- **{listed(idle)} alone do not extend**: from {running[1][0]:.3g} times the length on they are within 0.4 nats of the unmodified "
            "model on running text.",
            f"- **`dual_chunk`, `jet_long` and `rerope`.** On running text the losses of the first and the second differ by {paired('dual_chunk', 'jet_long')} nats at {times} times the length, "
            f"and those of the second and the third by {paired('jet_long', 'rerope')}.",
        ]
    )


def _cell(row: Results | None) -> str:
    if row is None:
        return "–"
    text, gap = _loss(row, 3), row["against_truncation"]
    return text if gap is None else f"{text}, {gap['mean']:+.3f} ± {gap['high'] - gap['mean']:.3f}"


def _loss(row: Results, digits: int) -> str:
    text, exact = f"{row['loss']['mean']:.{digits}f}", row["exact"]
    if exact and exact["hits"]:
        text += f", {exact['hits']} of {exact['n']} right ({100 * exact['low']:.0f} to {100 * exact['high']:.0f} %)"
    return text


def summary(results: Results) -> str:
    """The table of the document, at the longest length: running and repeated text, what some method answers, and the cost."""
    at = results["longer"][-1]
    columns = []
    for name, rows in _tasks(at):
        if name in RUNNING or any(row["exact"] and row["exact"]["hits"] for row in rows):
            columns.append((f"{name}, {at['times']:.3g}×", {row["method"]: row for row in rows}))
    lines = [["method", *(title for title, _ in columns), "ms", "MiB"], ["---", *["---:"] * (len(columns) + 2)]]
    for first in at["tasks"][0]["rows"]:
        rows = [of.get(first["method"]) for _, of in columns]
        cells = ["–" if row is None else _loss(row, 2) for row in rows]
        lines.append([f"`{first['method']}`", *cells, *_cost(first)])
    return "\n\n".join([_markdown(lines), " ".join([*_nearest(at), undecided(results)])])


def _nearest(at: Results) -> list[str]:
    """The method with the lowest loss of each task against the next one, where the archive has each document's loss."""
    found = []
    for name, rows in _tasks(at):
        names = [row["method"] for row in rows if row["method"] not in BASES]
        if "documents" in rows[0] and len(names) > 1:
            gap = behind(rows, names[1], names[0])
            found.append(
                f"`{names[1]}` is {gap.mean:.3f} ± {gap.high - gap.mean:.3f} nats behind `{names[0]}` ({name})"
            )
    return [f"Paired over documents, {listed(found)}."] if found else []


def _cost(row: Results) -> list[str]:
    memory = "–" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:.0f}"
    return [f"{row['processor_ms_per_token']:.2f}", memory]


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def picture(results: Results) -> str:
    """SVG: the loss by position in the longest texts, a line for each method; the baselines, the best and the best known have
    a name, the others are grey."""
    at = results["longer"][-1]
    ranked = [row["method"] for row in at["tasks"][0]["rows"]]
    best = [method for method in ranked if method not in BASES][:BEST]
    named = [*BASES, *best, *(method for method in FAMILIAR if method not in best)]
    colours = dict(zip(named[2:], COLOURS, strict=False)) | dict.fromkeys(BASES, "currentColor")
    curves = {}
    for method in results["tasks"][0]["methods"]:
        for points in (by["points"] for by in method["by_position"] if by["length"] == at["length"]):
            curves[method["method"]] = [(point["position"], point["loss"]) for point in points]
    least = min(loss for curve in curves.values() for _, loss in curve)
    most = max(loss for curve in curves.values() for _, loss in curve)
    low, high = int(2 * least) / 2, int(2 * most + 1) / 2

    def x(position: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * position / at["length"]

    def y(loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    parts = []
    for loss in range(int(low + 0.5), int(high) + 1):
        parts.append(f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - RIGHT}" stroke="currentColor" stroke-opacity=".12"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss}</text>')
    for times in range(int(at["times"]) + 1):
        where = x(times * results["model"]["trained_length"])
        words = f"{times * results['model']['trained_length']}"
        parts.append(f'<text x="{where:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{words}</text>')
    trained = x(results["model"]["trained_length"])
    parts.append(f'<path d="M{trained:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="currentColor" stroke-dasharray="2 4"/>')
    parts.append(f'<text x="{trained + 6:.1f}" y="{TOP + 10}">context length</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">position in the text, tokens</text>')
    label = f'x="14" y="{(TOP + HEIGHT - BOTTOM) / 2}" text-anchor="middle"'
    parts.append(f'<text {label} transform="rotate(-90 14 {(TOP + HEIGHT - BOTTOM) / 2})">loss, nats per token</text>')
    for name in sorted(curves, key=lambda name: name in named):
        line = " ".join(f"{x(position):.1f},{y(loss):.1f}" for position, loss in curves[name])
        width = 2.2 if name in named else 1
        dash = ' stroke-dasharray="6 4"' if name == "truncation" else ""
        shade = f'stroke="{colours.get(name, GREY)}" stroke-width="{width}"{dash}'
        parts.append(f'<polyline points="{line}" fill="none" {shade}><title>{escape(name)}</title></polyline>')
    ends = sorted((y(curves[name][-1][1]) + 4, name) for name in named if name in curves)
    below = 0.0
    for left, (at_y, name) in zip(reversed(range(len(ends))), ends, strict=True):  # labels 14 apart, all above the axis
        below = max(min(at_y, HEIGHT - BOTTOM + 4 - 14 * left), below + 14)
        text = f'x="{WIDTH - RIGHT + 6}" y="{below:.1f}" font-weight="600" style="fill:{colours[name]}"'
        parts.append(f"<text {text}>{escape(name)}</text>")
    style = "svg{color:#3b444f}text{fill:currentColor}@media(prefers-color-scheme:dark){svg{color:#c9d1d9}}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui,sans-serif" font-size="12" '
        f'role="img" aria-label="Loss by position under {len(curves)} methods">'
    )
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>", ""])


def generated(text: str, name: str, section: str, script: str = "longer") -> str:
    """A page with a section between the marks of this name, if it has them."""
    begin, end = f"<!-- {name}: written by python benchmarks/{script}.py -->", f"<!-- end of {name} -->"
    if begin not in text:
        return text
    return f"{text[: text.index(begin)]}{begin}\n\n{section}\n\n{text[text.index(end) :]}"


def main(source: str | None = None, name: str | None = None) -> None:
    if source and name:
        read = json.loads(Path(source).read_text(), parse_float=lambda number: float(f"{float(number):.6g}"))
        text = json.dumps(read, separators=(",", ":"))
        (RESULTS / f"longer_{name}.json").write_text(f"{text}\n")
    for path in sorted(RESULTS.glob("longer_*.json")):
        results = json.loads(path.read_text())
        (RESULTS.parent / f"{path.stem}.md").write_text(
            tables(path.stem.removeprefix("longer_"), results), encoding="utf-8"
        )
        if path.stem == SHOWN:
            PICTURE.write_text(picture(results), encoding="utf-8")
            found = generated(PAGE.read_text(encoding="utf-8"), f"{SHOWN}_findings", findings(results))
            PAGE.write_text(found, encoding="utf-8")
        PAGE.write_text(generated(PAGE.read_text(encoding="utf-8"), path.stem, summary(results)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
