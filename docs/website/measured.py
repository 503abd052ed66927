# SPDX-License-Identifier: Apache-2.0
"""What the repository has measured of an encoding, found in its committed results and pages."""

import gzip
import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from posenc.encoding import Encoding
from posenc.report import leaderboard as report
from website.book import CHAPTER, GUIDE, addresses
from website.markdown import place
from website.page import DOCS, ROOT, heading, plain, table

SPEED = ROOT / "benchmarks" / "results" / "cpu.json"
LEADERBOARD, FRONTIER = (ROOT / "benchmarks" / path for path in ("leaderboard.json.gz", "frontier.json"))
LONGER = {
    "stories15M": ROOT / "benchmarks" / "evaluations" / "longer_stories15M.json",
    "SmolLM2-135M": ROOT / "benchmarks" / "evaluations" / "longer_SmolLM2.json",
}
DECODING = ROOT / "benchmarks" / "decoding_maps.json"
CONFIGS = ROOT / "benchmarks" / "published_configs.json"
MATRIX = ROOT / "benchmarks" / "encodings.md"
CHAPTERS = {
    "Dog bites man": ("none",),
    "satisfy": ("normalized", "integer"),
    "binary counter": ("binary", "sinusoidal", "learned"),
    "Relatives": ("floater", "multiplicative", "shaw", "transformer_xl", "xlnet", "tupe", "tupe_r", "deberta", "deberta_v2", "complex_order"),
    "four terms": ("shaw", "transformer_xl", "xlnet", "tupe", "tupe_r", "deberta", "deberta_v2", "t5"),
    "Rotating": ("rope", "p_rope", "decoupled_rope", "xpos", "head_rope", "learned_rope", "fope", "rope_pp", "rove"),
    "penalty on distance": ("alibi", "kerple", "sandwich", "fire", "sines"),
    "More than a line": ("grid_table", "grid_sinusoidal", "axial_rope", "m_rope", "mixed_rope", "swin", "beit", "swin_v2", "grid_alibi"),
    "Long inputs": ("softmax_n", "sink", "window", "chunks", "hierarchical"),
    "Past the training length": ("log_n", "temperature", "randomized", "pose"),
}  # fmt: skip
"""Words of chapters' titles, and the encodings that they explain."""
MARKS = {"✓": "passed", "–": "does not apply", "✗": "failed"}
GENERAL = ("encodings", "distributed", "index", "design")
"""Pages that name every encoding, or say nothing of a single one."""
MOST = 3
"""Pages that an encoding's page leads to."""


@cache
def _trials() -> list[dict[str, Any]]:
    return [*_read(SPEED)["trials"], *_read(FRONTIER)["bench"]["trials"]]


def times(name: str) -> tuple[float | None, float | None]:
    """The time of attention with it over attention without position, forward and with backward, of 2048 tokens."""
    wanted = (name, "time", "float32", 2048)
    trials = [t for t in _trials() if (t["case"], t["what"], t["dtype"], t["length"]) == wanted]
    ratios = {trial["mode"]: _ratio(trial) for trial in reversed(trials)}
    return ratios.get("forward"), ratios.get("train")


def speed(name: str) -> list[str]:
    """Its speed, as Markdown; empty where it was not measured."""
    named = zip(("forward", "with backward"), times(name), strict=True)
    ratios = [f"{ratio:.2f} times {words}" for words, ratio in named if ratio]
    if not ratios:
        return []
    return [
        f"**Speed.** {' and '.join(ratios)} the time of attention without position ([2048 tokens, one thread](../bench.md))."
    ]


def _ratio(trial: dict[str, Any]) -> float | None:
    return next((row["ratio"]["median"] for row in trial["rows"] if row["name"] == "posenc" and row["ratio"]), None)


def _read(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


@cache
def _losses() -> tuple[dict[str, dict[str, Any]], str]:
    """The encodings of the leaderboard by name, what they score on text, and how that was measured."""
    results = _read(LEADERBOARD)
    found, where = results["tasks"]["text"], "[the leaderboard](../leaderboard.md)"
    means = {row["encoding"]: row for row in results["table"]}
    s, seeds = found["settings"], found["seeds"]
    how = f"{s['steps']} steps, {len(seeds)} seed{'s' * (len(seeds) > 1)}, intervals of 95&nbsp;%: {where}"
    return {
        variant["name"]: variant | {"means": means.get(variant["name"])}
        for variant in found["variants"]
        if variant["trained"]
    }, how


def leaderboard(titled: Callable[[str], str]) -> dict[str, str]:
    """The report of the leaderboard, one page, by file name: the address has the task. titled: what an encoding is called."""
    results = _read(LEADERBOARD)
    results["table"] = [row | {"title": titled(row["encoding"])} for row in results["table"]]
    variants = [variant for of in results["tasks"].values() for variant in of["variants"] if variant["trained"]]
    whole = results | {
        "complete": True,
        "created": "in several sessions",
        "seconds": len(results["seeds"]) * sum(variant["training_seconds"] for variant in variants),
        "command": "posenc compare --preset leaderboard",
        "runs": {"kept_from_before": 0},
    }
    tasks = [task for task, of in results["tasks"].items() if of["variants"]]
    places = {report.file_of(task): f"of-tasks.task={at}" for at, task in enumerate(tasks)}
    page = re.sub(r'href="(\w+\.html)#', lambda found: f'href="#{places[found[1]]}&amp;', report.table_page(whole))
    return {"report.html": re.sub(r'href="(\w+\.html)"', lambda found: f'href="#{places[found[1]]}"', page)}


def verdict(name: str) -> str:
    """What became of its loss on text past the training length; "" where it was not measured."""
    return str(_losses()[0].get(name, {}).get("verdict", ""))


def loss_by_length(name: str) -> tuple[list[int], list[float]]:
    """The lengths in bytes at which an encoding was measured, and its mean loss at each."""
    points = _losses()[0][name]["lengths"]
    return [point["length"] for point in points], [point["loss"]["mean"] for point in points]


def beside(name: str, others: Iterable[str]) -> list[str]:
    """Its loss on text and its speed beside those of its alternatives, as Markdown; empty where its loss was not measured."""
    variants, how = _losses()
    if name not in variants:
        return []
    rows = []
    shown = dict.fromkeys((name, *others, "rope", "none"))
    for each in (each for each in shown if each in variants):
        points, (forward, _) = variants[each]["lengths"], times(each)
        change, means = points[-1]["change"], variants[each]["means"]
        cells = [
            f"**`{each}`**" if each == name else f"[`{each}`]({each}.md)",
            f"{points[0]['loss']['mean']:.3f}",
            f"{change['mean']:+.3f} ±&nbsp;{(change['high'] - change['low']) / 2:.3f}, {variants[each]['verdict']}",
            *(report.mean_score(means[at]) if means else "–" for at in ("trained", "longest")),
            f"{forward:.2f}" if forward else "–",
        ]
        rows.append(cells)
    first = variants[name]["lengths"]
    head = [
        "encoding",
        f"loss at {first[0]['length']} bytes",
        f"change at {first[-1]['length']}",
        "mean score of all tasks",
        "at the longest",
    ]
    return [
        table([*head, "time"], rows),
        f"Loss in nats per byte of held-out text ({how}); the score has guessing at 0 and the best possible at 100; "
        "[time](../bench.md) is over attention without position.",
    ]


def beyond(name: str, method: str) -> str:
    """What a schedule or a map does to pretrained models past their context length, as Markdown; "" where it was not measured."""
    rows = []
    for model, path in LONGER.items():
        results = _read(path)
        for at in results["longer"]:
            for task in at["tasks"]:
                kind = task["task"].split(":")[0]
                of = {row["method"]: row for row in task["rows"]}
                row = of.get(f"{method}:new_base=500000" if method == "abf" else method)
                if row and kind in ("perplexity", "passkey" if model != "stories15M" else ""):
                    cells = [_nats(of[each]) for each in ("truncation", "none")]
                    rows.append(
                        (f"{model}, {at['times']:.3g}×, {({'perplexity': 'running text', 'passkey': 'passkey'})[kind]}",
                         f"**{_nats(row)}**", *cells)
                    )  # fmt: skip
    if not rows:
        return ""
    head = ("model, length, task", f"`{name}`", "truncated input", "unmodified")
    return (
        f"{table(head, rows)}\n\nNats per token, lower is better; the length is that of the text over the trained one. "
        "[All methods, with intervals](benchmarks/longer_stories15M.txt), and [what they show](longer_context.md)."
    )


def _nats(row: dict[str, Any]) -> str:
    right = row["exact"] and row["exact"]["hits"]
    return f"{row['loss']['mean']:.2f}" + (f", {row['exact']['mean']:.0%} right" if right else "")


def decoding(name: str) -> str:
    """What a map costs a model, as Markdown; "" where it was not measured."""
    found = {at: cases[name] for at, cases in _read(DECODING).items() if name in cases}
    if not found:
        return ""
    step, prefill = found["step, 8192, float32"], found.get("prefill, 8192")
    then = "" if prefill is None else f", a prefill of 8192 tokens {prefill:.2f} times"
    return (
        f"**Cost**: a decoding step after 8192 tokens takes {step:.2f} times the unmodified model's time{then} "
        "(SmolLM2-135M, float32, CPU: [every map](benchmarks/decoding_maps.txt))."
    )


def published(schedule: str) -> list[str]:
    """Models whose published configuration names a schedule of RoPE."""
    named = re.compile(rf'"(?:rope_)?type": "{schedule}"')
    return [model for model, entry in _read(CONFIGS).items() if named.search(json.dumps(entry))]


def mentions(name: str, cls: type[Encoding]) -> list[str]:
    """Which pages tell more of it: those that name it most, at most MOST."""
    named = re.compile(rf"`{name}[`:@+]|\b{cls.__name__}\(|posenc\.{cls.__name__}\b|[\" ]{name}[:@+]")
    pages = (path for path in sorted(DOCS.rglob("*.md")) if path.stem not in GENERAL and not path.stem.endswith(".zh"))
    times = {path: len(named.findall(path.read_text(encoding="utf-8"))) for path in pages}
    most = sorted((path for path in times if times[path]), key=lambda path: -times[path])[:MOST]
    found = [f"[{heading(path)}](../{place(path)})" for path in most]
    return [f"More: {', '.join(found)}."] if found and name != "none" else []


def chapters(name: str) -> list[str]:
    """The chapter of the guide about an encoding; empty where it has none."""
    titles = CHAPTER.findall(GUIDE.read_text(encoding="utf-8"))
    wanted = [words for words, names in CHAPTERS.items() if name in names]
    found = next(((number, title) for words in wanted for number, title in titles if words in title), None)
    if found is None:
        return []
    number, title = found
    return [f"[The guide: {number}. {plain(title)}](../{addresses()[int(number)]}.md)"]


def parity(name: str) -> str:
    """The checks that it passes, of the table in benchmarks/encodings.md."""
    lines = MATRIX.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|  |"))
    checks = [cell.strip() for cell in lines[start].strip("| ").split("|")]
    row = next((line for line in lines[start:] if line.startswith(f"| `{name}` |")), None)
    if row is None:
        return "Not measured yet."
    marks = [cell.strip() for cell in row.strip("| ").split("|")][1:]
    of = {mark: [check for check, got in zip(checks, marks, strict=True) if got == mark] for mark in MARKS}
    counted = f"✓ {len(of['✓'])} of {len(checks)} [checks](../benchmarks/encodings.txt) passed"
    named = [f"{mark} {MARKS[mark]}: {', '.join(of[mark])}" for mark in ("✗", "–") if of[mark]]
    return "; ".join([counted, *named]) + "."
