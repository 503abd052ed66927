# SPDX-License-Identifier: Apache-2.0
"""The leaderboard: put finished runs into benchmarks/leaderboard, and write from there benchmarks/leaderboard.json.gz, which pages and
pictures read, and the tables of docs/leaderboard.md and benchmarks/leaderboard.md.

    posenc compare --preset leaderboard --out DIR                                # stops and goes on; --share I/N on machine I of N
    python benchmarks/leaderboard.py --add DIR [DIR ..] [--task text copy ..]    # finished runs add up, over folders and days
    python benchmarks/leaderboard.py                                             # the tables alone
    posenc compare --preset leaderboard --seeds 6 --merge benchmarks/leaderboard --out MORE    # trains seeds 4 and 5

Run from the root of the repository.
"""

import argparse
import gzip
import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.errors import listed
from posenc.lab.checkpoint import Checkpoints
from posenc.lab.compare import Comparison, ComparisonStudy, experiment
from posenc.lab.experiment import LEADERBOARD
from posenc.lab.leaderboard import TASKS, Leaderboard, against, archive
from posenc.lab.results import Ranking, collect
from posenc.lab.statistics import BENJAMINI_HOCHBERG, different, estimate, measurable

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
from website.encodings import titled  # noqa: E402

ARCHIVES, RESULTS = ROOT / "benchmarks/leaderboard", ROOT / "benchmarks/leaderboard.json.gz"
PAGES = ROOT / "docs/leaderboard.md", ROOT / "benchmarks/leaderboard.md"
DIGITS = 5
MARK = "<!-- {}: written by python benchmarks/leaderboard.py -->"
MOST_SEEDS = 100

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """A published finding, as: on a task, at a multiple of the training length, `better` is better than `worse`."""

    claim: str
    source: str
    task: str
    factor: int
    better: str
    worse: str


FINDINGS = (
    Finding("without positions, models copy longer sequences than with added codes", "Kazemnejad 2023", "copy", 2, "none", "sinusoidal"),
    Finding("the same, for addition", "Kazemnejad 2023", "addition", 2, "none", "sinusoidal"),
    Finding("and longer than with T5's bias", "Kazemnejad 2023", "copy", 2, "none", "t5"),
    Finding("and longer than with RoPE", "Kazemnejad 2023", "copy", 2, "none", "rope"),
    Finding("ALiBi extrapolates to sequences longer than in training, sinusoidal codes do not", "Press 2022", "text", 8, "alibi", "sinusoidal"),
    Finding("and RoPE does not", "Press 2022", "text", 8, "alibi", "rope"),
    Finding("ALiBi's receptive field is short: it recalls less from afar than T5's bias", "Chi 2023", "recall", 8, "t5", "alibi"),
    Finding("KERPLE extrapolates better than ALiBi", "Chi 2022", "text", 8, "kerple", "alibi"),
    Finding("FIRE extrapolates better than ALiBi", "Li 2024", "text", 8, "fire", "alibi"),
    Finding("xPos extrapolates better than RoPE", "Sun 2023", "text", 8, "xpos", "rope"),
    Finding("random positions in training let learned codes copy longer sequences", "Ruoss 2023", "copy", 2, "randomized+learned", "learned"),
    Finding("FLOATER extrapolates to longer sequences better than sinusoidal codes", "Liu 2020", "text", 8, "floater", "sinusoidal"),
    Finding("queries scaled by log n extrapolate better", "Chiang 2022", "text", 8, "rope+log_n", "rope"),
    Finding("FoX predicts better than RoPE", "Lin 2025", "text", 1, "fox", "rope"),
    Finding("and extrapolates better", "Lin 2025", "text", 8, "fox", "rope"),
    Finding("DAPE improves on KERPLE, past the training length too", "Zheng 2024", "text", 8, "dape", "kerple"),
    Finding("PoPE extrapolates better than RoPE", "Gopalakrishnan 2025", "text", 8, "pope", "rope"),
    Finding("PaTH recalls better than RoPE", "Yang 2025", "recall", 1, "path", "rope"),
    Finding("stick-breaking recalls further than RoPE", "Tan 2025", "recall", 8, "stick_breaking", "rope"),
    Finding("selective attention predicts better than the same without it", "Leviathan 2025", "text", 1, "selective_attention", "none"),
    Finding("layers without positions among RoPE layers extrapolate better", "Yang 2025b", "text", 8, "rope_nope:every=2", "rope"),
)  # fmt: skip


@dataclass(frozen=True)
class Board:
    """The runs in the archives. results: as of `posenc compare`; rankings: by task."""

    results: Json
    rankings: Mapping[str, Ranking]
    seeds: int

    @classmethod
    def read(cls, folder: Path) -> "Board":
        comparisons, table = against(folder, ())
        records = {run: stored.record for run, stored in table.runs.items()}
        studies = [ComparisonStudy(comparison, corpus, Checkpoints("", 0), table) for comparison, corpus in comparisons]
        board = Leaderboard(studies)
        rankings = {
            s.name: Ranking(collect({run: record for run, record in records.items() if run.settings == s}), s, corpus)
            for s, corpus in ((comparison.settings, corpus) for comparison, corpus in comparisons)
        }
        return cls(board.results(records), rankings, comparisons[0][0].seeds)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> str:
    """text: how many columns, from the left, are not numbers."""
    lines = [head, ["---"] * text + ["---:"] * (len(head) - text), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def facts(board: Board) -> str:
    """What was run, and where."""
    machines = sorted(
        {table_note for results in board.results["tasks"].values() for table_note in results["limits"][-1:]}
    )
    encodings = len(board.results["settings"]["encodings"])
    seeds = f"{board.seeds} seed{'s' if board.seeds > 1 else ''}"
    models = encodings * len(board.rankings) * board.seeds
    trained = machines[0].split("trained on ")[1]
    means = {
        task: statistics.mean(row["training_seconds"] for row in results["arms"] if row["trained"])
        for task, results in board.results["tasks"].items()
    }
    least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    return (
        f"{encodings} encodings, {len(board.rankings)} tasks, {seeds}: {models} models, trained on {trained} Training a model takes "
        f"{means[least]:.0f} s ({least}) to {means[most]:.0f} s ({most}) on one busy core."
    )


def summary(board: Board) -> str:
    """What every encoding is, on how many tasks it is among the best and its loss on text, the lowest mean group at the longest
    length first."""
    tasks, text = list(board.rankings), board.rankings["text"]
    factor, count = text.settings.factors[-1], len(tasks)
    of = {variant.name: variant for variant in text.trained}
    rows = []
    for row in board.results["table"]:
        best = (sum(row["groups"][task][at] == 1 for task in tasks) for at in ("trained", "longest"))
        losses = (text.level(of[row["encoding"]], at).mean for at in (text.settings.trained_at, factor))
        cells = (", ".join(map(str, best)), ", ".join(f"{loss:.2f}" for loss in losses))
        rows.append([f"`{row['encoding']}`", titled(row["encoding"]), *cells])
    head = ["encoding", "what it is", f"in group 1 of {count} tasks: 1×, {factor}×", f"loss on text: 1×, {factor}×"]
    return table(head, rows, text=2)


def groups(board: Board) -> str:
    """Every encoding's groups in every task, in the same order."""
    tasks = list(board.rankings)
    heads = []
    for task in tasks:
        s = board.rankings[task].settings
        heads.append(f"{task}, {s.size_at(s.trained_at)} and {s.size_at(s.conditions[-1])}")
    rows = []
    for row in board.results["table"]:
        groups = [f"{group['trained']}, {group['longest']}" for group in map(row["groups"].__getitem__, tasks)]
        rows.append([f"`{row['encoding']}`", *groups, f"{row['mean_trained']:.1f}, {row['mean_longest']:.1f}"])
    return table(["", *heads, "mean"], rows)


def by_group(task: str, board: Board) -> str:
    """The groups of a task at the training length and at the longest, with what each encoding scores."""
    ranking, tables = board.rankings[task], []
    s = ranking.settings
    for condition in (s.trained_at, s.conditions[-1]):
        groups = ranking.groups(condition)
        order = sorted(ranking.trained, key=lambda v: ranking.criterion.worse * ranking.level(v, condition).mean)
        rows = []
        for group in range(1, max(groups.values()) + 1):
            members = [variant for variant in order if groups[variant.name] == group]
            first = ranking.level(members[0], condition)
            half = (first.high - first.low) / 2
            rows.append(
                [
                    str(group),
                    ", ".join(f"`{v.name}` {_value(ranking, v, condition)}" for v in members),
                    _half(ranking, half),
                ]
            )
        what = "loss" if not ranking.criterion.higher_is_better else "accuracy in %"
        tables.append(
            table([f"group at {s.spelled(condition)}", f"{what}, best first", "± of the first"], rows, text=2)
        )
    best = ranking.best(s.trained_at, ranking.trained)
    late = [
        v.name for v in ranking.trained if ranking.behind(v, best, s.trained_at).mean > ranking.criterion.undertrained
    ]
    if late:
        limit = (
            f"{100 * ranking.criterion.undertrained:.0f} points"
            if ranking.criterion.higher_is_better
            else f"{ranking.criterion.undertrained} nats"
        )
        names = ", ".join(f"`{name}`" for name in sorted(late))
        tables.append(
            f"More than {limit} behind the best at the training length, so that their numbers at greater lengths say little: {names}."
        )
    chance = "" if ranking.chance is None else f"\n\nThe most common answer is right in {100 * ranking.chance:.0f} %."
    return "\n\n".join(tables) + chance


def _value(ranking: Ranking, variant: Any, condition: int) -> str:
    mean = ranking.level(variant, condition).mean
    return f"{100 * mean:.0f}" if ranking.criterion.higher_is_better else f"{mean:.3f}"


def _half(ranking: Ranking, half: float) -> str:
    return f"{100 * half:.0f}" if ranking.criterion.higher_is_better else f"{half:.3f}"


def luck(board: Board) -> str:
    """How far apart trainings of one encoding are, and how many pairs of encodings one seed parts and all do."""
    percent = {task: _of_seeds(board.rankings[task], "rope") for task in ("copy", "recall")}
    pairs = len(LEADERBOARD) * (len(LEADERBOARD) - 1) // 2
    one, every = (
        [f"{_pairs(board.rankings[task], seeds)} on {task}" for task in ("text", "copy", "recall")]
        for seeds in (1, board.seeds)
    )
    return (
        f"- The luck of training is large. At twice the length RoPE copies {listed(percent['copy'])} % of symbols, seed by seed, and "
        f"recalls {listed(percent['recall'])} % of values. By the first seed alone, of the {pairs} pairs of encodings {listed(one)} differ at "
        f"the longest length; by all {board.seeds} seeds {listed(every)}. One training each says little about such tasks."
    )


def _of_seeds(ranking: Ranking, name: str) -> list[str]:
    """What an encoding scores at twice the length, in percent, with each seed."""
    variant = next(each for each in ranking.trained if each.name == name)
    right = variant.values(2, sorted(variant.scores), ranking.criterion.key).mean(1)
    return [f"{100 * share:.0f}" for share in right.tolist()]


def _pairs(ranking: Ranking, seeds: int) -> int:
    """How many pairs of encodings differ at the longest length, by the first seeds."""
    values = [v.values(ranking.settings.conditions[-1], range(seeds), ranking.criterion.key) for v in ranking.trained]
    return int(different(torch.stack(values), BENJAMINI_HOCHBERG).sum()) // 2


def findings(board: Board) -> str:
    """Each published finding, what was measured, and whether it is the same."""
    chosen = [each for each in FINDINGS if each.task in board.rankings and _has(board.rankings[each.task], each)]
    gaps = [_gap(board.rankings[each.task], each) for each in chosen]
    rows = []
    for each, gap, sure in zip(chosen, gaps, measurable(gaps), strict=True):
        ranking = board.rankings[each.task]
        found = estimate(gap)
        better = ranking.criterion.worse * found.mean < 0
        here = f"{each.task}, {ranking.settings.size_at(each.factor)}: `{each.better}` − `{each.worse}` {ranking.criterion.difference(found)}"
        verdict = ("yes" if better else "reverse") if sure else "not measurable"
        rows.append([f"{each.claim} ({each.source})", here, verdict])
    return table(["finding", "here", "found"], rows, text=3)


def _gap(ranking: Ranking, finding: Finding) -> Tensor:
    """What the two score, one minus the other, by (seed, example)."""
    of, key = {v.name: v for v in ranking.trained}, ranking.criterion.key
    one, other = of[finding.better], of[finding.worse]
    seeds = sorted(set(one.scores) & set(other.scores))
    return one.values(finding.factor, seeds, key) - other.values(finding.factor, seeds, key)


def _has(ranking: Ranking, finding: Finding) -> bool:
    names = {variant.name for variant in ranking.trained}
    return {finding.better, finding.worse} <= names and finding.factor in ranking.settings.conditions


def tables(board: Board) -> dict[str, str]:
    """Every table of the page, by name."""
    made = {each.__name__: each(board) for each in (facts, summary, groups, findings, luck)}
    tasks = "\n\n".join(f"### {task}\n\n{by_group(task, board)}" for task in board.rankings)
    return made | {"tasks": tasks}


def written(text: str, made: Mapping[str, str]) -> str:
    """A page with its tables replaced."""
    for name, content in made.items():
        begin, end = MARK.format(name), f"<!-- end of {name} -->"
        if begin not in text:
            continue
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"
    return text


def packed(results: Json) -> bytes:
    """The results as benchmarks/leaderboard.json.gz; equal bytes for equal results."""
    return gzip.compress(json.dumps(_rounded(results), separators=(",", ":")).encode(), mtime=0)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items() if name not in ("cells", "load")}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def add(folders: Sequence[Path], tasks: Sequence[str], to: Path) -> list[Path]:
    """Put the finished runs of the preset leaderboard in some folders into the archives."""
    comparisons = []
    for task in tasks:
        kind = experiment(task)
        preset = kind.presets["leaderboard"]
        corpus, settings = preset.settings.load(kind.data)
        comparisons.append((Comparison(preset.encodings, MOST_SEEDS, settings), corpus))
    return [path for folder in folders for path in archive(comparisons, folder, to)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--add", type=Path, nargs="+", default=[], help="folders of posenc compare --preset leaderboard"
    )
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS), help="add the runs of these alone")
    parser.add_argument("--archives", type=Path, default=ARCHIVES, help="folder of the archives")
    options = parser.parse_args()
    for path in add(options.add, options.task, options.archives):
        print(path)
    board = Board.read(options.archives)
    RESULTS.write_bytes(packed(board.results))
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8"), tables(board)), encoding="utf-8")


if __name__ == "__main__":
    main()
