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

RESULTS, PAGE, PICTURE = Path("benchmarks/evaluations"), Path("docs/longer_context.md"), Path("docs/images/longer.svg")
SHOWN = "longer_stories15M"
BASES, FAMILIAR, BEST = ("none", "truncation"), ("linear", "ntk", "yarn"), 3
RUNNING = ("perplexity", "repeated")
NAMES = {
    "perplexity": "running text", "repeated": "repeated text", "passkey": "passkey", "facts": "key-value",
}  # fmt: skip
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
    ]
    for at in results["longer"]:
        parts.append(f"## {at['length']} tokens, {at['times']:.3g} times the context length\n\n{table(at)}\n")
    return "\n".join(parts)


def table(at: Results) -> str:
    """A length: methods by tasks, the best on the first task first."""
    tasks = [
        (NAMES.get(t["task"].split(":")[0], t["task"]), {row["method"]: row for row in t["rows"]}) for t in at["tasks"]
    ]
    head = ["method", *(name for name, _ in tasks), "ms", "MiB"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name, first in tasks[0][1].items():
        lines.append([f"`{name}`", *(_cell(rows.get(name)) for _, rows in tasks), *_cost(first)])
    return _markdown(lines)


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
    for task in at["tasks"]:
        name = task["task"].split(":")[0]
        if name in RUNNING or any(row["exact"] and row["exact"]["hits"] for row in task["rows"]):
            columns.append((f"{NAMES[name]}, {at['times']:.3g}×", {row["method"]: row for row in task["rows"]}))
    lines = [["method", *(title for title, _ in columns), "ms", "MiB"], ["---", *["---:"] * (len(columns) + 2)]]
    for first in at["tasks"][0]["rows"]:
        rows = [of.get(first["method"]) for _, of in columns]
        cells = ["–" if row is None else _loss(row, 2) for row in rows]
        lines.append([f"`{first['method']}`", *cells, *_cost(first)])
    return _markdown(lines)


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
        text = json.dumps(json.loads(Path(source).read_text()), separators=(",", ":"))
        (RESULTS / f"longer_{name}.json").write_text(f"{text}\n")
    for path in sorted(RESULTS.glob("longer_*.json")):
        results = json.loads(path.read_text())
        (RESULTS.parent / f"{path.stem}.md").write_text(
            tables(path.stem.removeprefix("longer_"), results), encoding="utf-8"
        )
        if path.stem == SHOWN:
            PICTURE.write_text(picture(results), encoding="utf-8")
        PAGE.write_text(generated(PAGE.read_text(encoding="utf-8"), path.stem, summary(results)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
