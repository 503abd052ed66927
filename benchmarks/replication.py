# SPDX-License-Identifier: Apache-2.0
"""Does it replicate? Published findings (findings.json) and common claims (claims.json), each
with a verdict: docs/claims.md and its Chinese edition. `python benchmarks/leaderboard.py` writes them."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import torch
from scipy.stats import fisher_exact
from torch import Tensor

from posenc.lab.data import load
from posenc.lab.data.corpora import CORPORA
from posenc.lab.leaderboard import Leaderboard
from posenc.lab.results import Ranking, collect
from posenc.lab.statistics import Estimate, chances, found

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER))
import archives  # noqa: E402
from pairs import contrast  # noqa: E402

EXPERIMENTS = FOLDER / "experiments"
"""Archives of benchmarks/experiments.py: EXPERIMENT/SETTINGS/TASK-SEED.json.gz."""
CONFIRMED, REVERSED, CHANGES, OPEN, MISSING = (
    "confirmed", "reversed", "changes with size, budget or text", "not measurable", "not measured",
)  # fmt: skip
VERDICTS = CONFIRMED, REVERSED, CHANGES, OPEN, MISSING
LEAST = 2
"""Trainings of each encoding by which a finding is judged."""

Json = Mapping[str, Any]
K = TypeVar("K")


def fisher(one: int, other: int, count: int) -> float:
    """The p of hits as far apart as one and another, each of `count`, or farther, if their shares were the same."""
    return float(fisher_exact([[one, count - one], [other, count - other]]).pvalue)


@dataclass(frozen=True)
class Finding:
    """A published finding, as: on a task, under a condition, `better` is better than `worse`; of the same encoding: it scores no
    worse than under the condition of training. measure, values: as published, of `better` and of `worse`, or one gain. size: of
    the published models."""

    id: str
    claim: str
    claim_zh: str
    source: str
    arxiv: str
    size: str
    measure: str
    values: tuple[str, ...]
    task: str
    at: int
    better: str
    worse: str

    @property
    def level(self) -> bool:
        return self.better == self.worse


class Gap(NamedTuple):
    """How much higher `better` of a finding scores than `worse`, or, of a level, under the condition than in training. chance: that
    encodings which are equal differ so; None: not known, or of a level."""

    estimate: Estimate
    chance: float | None = None
    seeds: int = 0
    """Trainings of each of the two"""


@dataclass(frozen=True)
class World:
    """Where text was measured: models of a size after a number of steps. losses: at the training length and at the longest.
    text: the corpus. gaps: of findings, by id, as of `gaps`; where they are not known, a difference of two
    encodings counts from the tolerance on."""

    parameters: int
    steps: int
    seeds: int | tuple[int, int]
    losses: Mapping[str, tuple[float, float]]
    text: str = ""
    gaps: Mapping[str, Gap] = field(default_factory=dict)

    def gap(self, of: Finding, at: int | None, tolerance: float) -> Gap | None:
        """Of a finding on text. at: 0, the training length, 1, the longest, or None, another."""
        if at is None or of.id in self.gaps or not {of.better, of.worse} <= self.losses.keys():
            return self.gaps.get(of.id)
        mean = self.losses[of.better][at] - self.losses[of.worse][0 if of.level else at]
        margin = 0 if of.level else tolerance
        return Gap(Estimate(mean, math.nan, mean - margin, mean + margin))

    def __str__(self) -> str:
        text = f", {self.text}" * bool(self.text)
        return f"{self.parameters / 1e6:.1f} M, {self.steps} steps, {in_seeds(self.seeds)}{text}"


def in_seeds(count: int | tuple[int, int]) -> str:
    """count: as of `World`."""
    least, most = count if isinstance(count, tuple) else (count, count)
    return f"{least} to {most} seeds" if least < most else f"{most} seed{'s' * (most > 1)}"


def numbers_of_seeds(ranking: Ranking) -> dict[str, int]:
    """How many seeds each encoding has: a row is of all of its own."""
    return {variant.name: len(variant.scores) for variant in ranking.trained}


def of_all(counts: Mapping[str, int]) -> int | tuple[int, int]:
    """Of `numbers_of_seeds`, as a `World` has it."""
    least, most = min(counts.values()), max(counts.values())
    return (least, most) if least < most else most


@dataclass(frozen=True)
class Judged:
    """A finding and its verdict. gap: None where it was not measured. learned: how many of how many trainings learned a task that
    jumps, and Fisher's chance. others: the gap of the worlds where it is measurably on the other side."""

    finding: Finding
    verdict: str
    ranking: Ranking | None = None
    gap: Estimate | None = None
    learned: tuple[int, int, int, float] | None = None
    others: Sequence[tuple[World, Estimate]] = ()


def findings() -> tuple[Finding, ...]:
    rows = json.loads((FOLDER / "findings.json").read_text(encoding="utf-8"))["findings"]
    return tuple(Finding(**{**row, "values": tuple(row["values"])}) for row in rows)


def claims() -> list[Json]:
    """id, claim, verdict and answer in English and Chinese (.._zh); kind: true, partly or false."""
    rows: list[Json] = json.loads((FOLDER / "claims.json").read_text(encoding="utf-8"))["claims"]
    return rows


@dataclass(frozen=True)
class Board:
    """The runs in archives. results: as of `posenc compare`; rankings: by task."""

    results: Json
    rankings: Mapping[str, Ranking]
    seeds: int

    @classmethod
    def read(cls, folder: Path, data: str | None = None) -> "Board":
        """data: as of `posenc compare`; None: the default of the tasks."""
        comparisons, records, notes = archives.compared(folder, data)
        results = Leaderboard(comparisons).results(records)
        for task, of in results["tasks"].items():
            of["limits"].append(notes[task])
        rankings = {
            s.name: Ranking(collect({run: record for run, record in records.items() if run.settings == s}), s, corpus)
            for s, corpus in ((comparison.settings, corpus) for comparison, corpus in comparisons)
        }
        return cls(results, rankings, comparisons[0][0].seeds)


def experiments(name: str) -> list[Board]:
    """The archives of an experiment, one of each of its settings; none where it has not been run. The folder of a text begins with
    its name."""
    folders = [folder for folder in sorted((EXPERIMENTS / name).glob("*")) if any(folder.glob("*.json.gz"))]
    with patch("posenc.lab.text.load", cache(load)):  # a text serves every folder: splitting it takes seconds
        return [_read(folder) for folder in folders]


@cache
def _read(folder: Path) -> Board:
    """Once: several tables are of the same runs."""
    text, _, _ = folder.name.partition("-")
    return Board.read(folder, text if text in CORPORA else None)


def measured(ranking: Ranking, condition: int, seeds: Sequence[int]) -> Tensor:
    """What the encodings score under a condition, (encodings, seeds, examples)."""
    return torch.stack([v.values(condition, seeds, ranking.criterion.key) for v in ranking.trained])


def compared(ranking: Ranking, condition: int, one: str, other: str) -> Gap:
    """How much higher an encoding scores than another, on the seeds that both have. How trainings differ is that of all the
    encodings that have these seeds, see `posenc.lab.statistics.moderated`."""
    of = {variant.name: variant for variant in ranking.trained}
    seeds = of[one].scores.keys() & of[other].scores.keys()
    rows = [variant for variant in ranking.trained if variant.scores.keys() >= seeds]
    values = torch.stack([variant.values(condition, sorted(seeds), ranking.criterion.key) for variant in rows])
    first, second = (rows.index(of[name]) for name in (one, other))
    gap = contrast(values, first, second, jumps=ranking.jumps)
    return Gap(gap, chances(values, jumps=ranking.jumps)[first, second].item(), len(seeds))


def gaps(rankings: Mapping[str, Ranking]) -> dict[Finding, Gap]:
    """Of the findings whose task and encodings are there. rankings: by task."""
    known = {}
    for each in findings():
        ranking = rankings.get(each.task)
        if ranking is None or each.at not in ranking.settings.conditions:
            continue
        of = {variant.name: variant for variant in ranking.trained}
        if (
            not {each.better, each.worse} <= of.keys()
            or not of[each.better].scores.keys() & of[each.worse].scores.keys()
        ):
            continue
        if each.level:
            one = of[each.better]
            known[each] = Gap(ranking.change(one, each.at), seeds=len(one.scores))
        else:
            known[each] = compared(ranking, each.at, each.better, each.worse)
    return known


def judged(rankings: Mapping[str, Ranking], worlds: Sequence[World]) -> list[Judged]:
    """Every finding. The chance that one or more of the differences found is false is at most 5 % (Holm), and as much for those of
    all other worlds; a level is confirmed where its interval ends below the tolerance. worlds: other sizes and budgets of text."""
    known = {each: gap for each, gap in gaps(rankings).items() if gap.seeds >= LEAST}
    there = {
        (each, number): gap
        for each in known
        for number, world in enumerate(worlds)
        if each.task == "text" and (gap := _elsewhere(each, rankings["text"], world))
    }
    sure, sure_there = _sure(known), _sure(there)
    return [
        _judge(
            each,
            rankings[each.task],
            known[each].estimate,
            each in sure,
            [
                (world, there[each, number].estimate)
                for number, world in enumerate(worlds)
                if (each, number) in there and (there[each, number].chance is None or (each, number) in sure_there)
            ],
        )
        if each in known
        else Judged(each, MISSING)
        for each in findings()
    ]


def _elsewhere(of: Finding, ranking: Ranking, world: World) -> Gap | None:
    ends = {ranking.settings.trained_at: 0, ranking.settings.conditions[-1]: 1}
    return world.gap(of, ends.get(of.at), ranking.criterion.tolerance)


def _sure(gaps: Mapping[K, Gap]) -> set[K]:
    """Of which the difference is found, all of them together."""
    tested = {key: gap.chance for key, gap in gaps.items() if gap.chance is not None}
    low = found(torch.tensor([*tested.values()])).tolist()
    return {key for key, is_low in zip(tested, low, strict=True) if is_low}


def _judge(
    each: Finding, ranking: Ranking, gap: Estimate, sure: bool, worlds: Sequence[tuple[World, Estimate]]
) -> Judged:
    """worlds: with the gaps that are found there."""
    m, learned = ranking.criterion, None
    others: list[tuple[World, Estimate]] = []
    rises = (gap.low, gap.high) if m.worse > 0 else (-gap.high, -gap.low)  # for the worse
    if each.level:
        verdict = CONFIRMED if rises[1] < m.tolerance else REVERSED if rises[0] > m.tolerance else OPEN
    else:
        verdict = OPEN if not sure else CONFIRMED if m.worse * gap.mean < 0 else REVERSED
        if ranking.jumps:  # an exact test of whether trainings learn, beside the mean of those that did and did not
            of = {variant.name: variant for variant in ranking.trained}
            both = of[each.better].scores.keys() & of[each.worse].scores.keys()
            one, other = (len(both & {*ranking.learned(of[name])}) for name in (each.better, each.worse))
            learned = one, other, len(both), fisher(one, other, len(both))
    if verdict in (CONFIRMED, REVERSED):
        limit = m.tolerance if each.level else 0
        others = [
            (world, there)
            for world, there in worlds
            if (there.low > limit if verdict == CONFIRMED else there.high < limit)
        ]
        verdict = CHANGES if others else verdict
    return Judged(each, verdict, ranking, gap, learned, others)


# ---------------------------------------------------------------- the page

WORDS = {
    "confirmed": "证实", "reversed": "相反", "changes with size, budget or text": "随大小、步数或文本而变", "not measurable": "测不出", "not measured": "未测",
    "perplexity": "困惑度", "accuracy": "准确率", "error": "错误率", "heads": "头数", "against": "对",
    "layers": "层", "layer": "层", " of width ": "，宽 ", "length ": "长度 ", "tokens": "词元", "tasks": "个任务", "translation": "翻译", " to ": " 到 ",
    " in the mean of the tasks": "（各任务平均）", "as with twice as many": "相当于两倍", "{one} and {other} of {count} trainings learned it": "{count} 次训练中有 {one} 次和 {other} 次学会",
    "against the training length": "相对于训练长度", "steps": "步", "seeds": "个种子", "seed": "个种子",
    ", chinese": "，中文", ", code": "，代码", ", prose": "，散文", " MB of prose and code": " MB 散文与代码", " in 512 bytes": "（512 字节）",
}  # fmt: skip


def chinese(text: str) -> str:
    for english, word in sorted(WORDS.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(english, word)
    return text


def same(text: str) -> str:
    return text


def number(finding: Finding, say: Callable[[str], str]) -> str:
    return f"{say(finding.measure)} {say(' against ').join(map(say, finding.values))}" if finding.values else "–"


def here(of: Judged, say: Callable[[str], str]) -> str:
    each, ranking, gap = of.finding, of.ranking, of.gap
    if ranking is None or gap is None:
        return "–"
    m, s = ranking.criterion, ranking.settings
    at = f"{each.task}, {s.spelled(each.at) if each.task == 'flip_flop' else s.size_at(each.at)}"
    if each.level:
        return f"{at}: `{each.better}` {m.difference(gap)} {say('against the training length')}"
    text = f"{at}: `{each.better}` − `{each.worse}` {m.difference(gap)}"
    if of.learned:
        one, other, count, chance = of.learned
        learned = say("{one} and {other} of {count} trainings learned it").format(one=one, other=other, count=count)
        text += f"; {learned} (Fisher's p = {chance:.2f})"
    for world, there in of.others:
        text += f"; {say(str(world))}: {there.mean:+.3f}".replace("-", "−")
    return text


COLOURS = {CONFIRMED: "confirmed", REVERSED: "reversed", CHANGES: "mixed", OPEN: "open", MISSING: "open"}
COLOURS |= {"true": "confirmed", "false": "reversed", "partly": "mixed"}


def cell(id: str, claim: str, kind: str) -> str:
    """A claim with its permalink. kind: that of its verdict, by which the site colours it."""
    return f'<a id="{id}" class="{COLOURS[kind]}"></a>{claim} [#](#{id})'


HEADS = {
    "en": (("claim", "verdict", "why"), ("finding", "verdict", "here", "published", "paper"), "findings are not measurable here"),
    "zh": (("说法", "结论", "为什么"), ("结果", "结论", "这里的结果", "原文的数字", "论文"), "条在这里测不出"),
}  # fmt: skip


def common(language: str) -> str:
    """The table of what people say."""
    suffix = "_zh" if language == "zh" else ""
    lines = [list(HEADS[language][0]), ["---"] * 3]
    for each in claims():
        claim, verdict = f"**{each['claim' + suffix]}**", f"**{each['verdict' + suffix]}**"
        lines.append([cell(each["id"], claim, each["kind"]), verdict, each["answer" + suffix] or "–"])
    return _table(lines)


def rows(all_judged: Iterable[Judged], language: str) -> str:
    """The table of findings by paper, and below a line that opens it that of the findings which are not measurable here."""
    say = chinese if language == "zh" else same
    head = list(HEADS[language][1])
    shown, folded = ([head, ["---"] * len(head)] for _ in range(2))
    papers = list(dict.fromkeys(of.finding.source for of in all_judged))
    for of in sorted(all_judged, key=lambda of: papers.index(of.finding.source)):
        each = of.finding
        claim = each.claim_zh if language == "zh" else each.claim
        known = [part for part in (number(each, say), say(each.size)) if part not in ("", "–")]
        source = f"[{each.source}](https://arxiv.org/abs/{each.arxiv})"
        line = [
            cell(each.id, claim, of.verdict),
            f"**{say(of.verdict)}**",
            here(of, say),
            ", ".join(known) or "–",
            source,
        ]
        (folded if of.verdict in (OPEN, MISSING) else shown).append(line)
    summary = f"{len(folded) - 2} {HEADS[language][2]}"
    return f'{_table(shown)}\n\n<details markdown="1"><summary>{summary}</summary>\n\n{_table(folded)}\n\n</details>'


def _table(lines: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def counts(all_judged: Sequence[Judged], language: str) -> str:
    """How many findings have each verdict."""
    say = chinese if language == "zh" else same
    of = {verdict: sum(each.verdict == verdict for each in all_judged) for verdict in VERDICTS}
    if language == "zh":
        return f"{len(all_judged)} 条已发表的结果：" + "，".join(f"{say(v)} {n}" for v, n in of.items()) + "。"
    return f"{len(all_judged)} published findings: " + ", ".join(f"{n} {v}" for v, n in of.items()) + "."


def tables(all_judged: Sequence[Judged]) -> dict[str, str]:
    """What docs/claims.md and docs/leaderboard.md have of this."""
    return {
        "common": common("en"),
        "common_zh": common("zh"),
        "replication": rows(all_judged, "en"),
        "replication_zh": rows(all_judged, "zh"),
        "counts": counts(all_judged, "en"),
        "counts_zh": counts(all_judged, "zh"),
    }
