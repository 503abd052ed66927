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
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import torch

from posenc.encodings import ENCODINGS
from posenc.encodings.catalogue import family
from posenc.encodings.patterns import read
from posenc.errors import listed
from posenc.lab.compare import Comparison, experiment
from posenc.lab.experiment import LEADERBOARD, Experiment
from posenc.lab.leaderboard import ENDS, TASKS, end
from posenc.lab.records import CONTEXT, Aggregate, level
from posenc.lab.results import CURVE_POINTS, Ranking
from posenc.lab.statistics import Estimate, estimate
from posenc.lab.train import schedule
from posenc.report.leaderboard import mean_score

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / folder) for folder in ("docs", "benchmarks")]
import masked  # noqa: E402
import replication  # noqa: E402
from ablations import spearman  # noqa: E402
from archives import archive  # noqa: E402
from law_gpu import MARGIN, Widest, advised, by_setting, larger, near_lowest, widest  # noqa: E402
from law_lease import by_cell  # noqa: E402
from pairs import BENJAMINI_HOCHBERG, different, found  # noqa: E402
from replication import Board, Gap, Json, World, fisher, in_seeds, measured  # noqa: E402
from website.encodings import titled  # noqa: E402

ARCHIVES, RESULTS = ROOT / "benchmarks/leaderboard", ROOT / "benchmarks/leaderboard.json.gz"
USES = "gains from far context", "does no harm", "harms", "unclear"
"""The answers of posenc.lab.text.use."""
MEASURED = ROOT / "src/posenc/encodings/measured.json"
PAGES = tuple(
    ROOT / page
    for page in (
        "docs/leaderboard.md",
        "benchmarks/leaderboard.md",
        "docs/claims.md",
        "docs/claims.zh.md",
        "docs/compare.md",
        "docs/guides/choose.md",
        "README.md",
        "README.zh.md",
    )
)
ERRORS = ROOT / "benchmarks/error_rates.json"
SIZES, LONGER = ROOT / "benchmarks/ablations.json", ROOT / "benchmarks/longer_training.json"
EXTENDED, *OTHERS = (
    ROOT / f"benchmarks/evaluations/longer_{name}.json" for name in ("SmolLM2", "stories15M", "Gemma3_passkey")
)
BUDGETS = ROOT / "benchmarks/budgets.json"
DIGITS = 5
WITHIN = 8
"""Bytes of the shortest context that a table shows."""
LAST = 10
"""Batches at the end of a training, whose mean loss is compared at equal time."""
STEPS, LENGTH = 480, 128
"""Of the trainings that the experiments on budgets, texts and sizes share."""
MARK = "<!-- {}: written by python benchmarks/leaderboard.py -->"
MOST_SEEDS = 100
WIDE = ("budgets", "corpora", "sizes", "far", "rates", "recall", "others")
"""Parts whose tables are in benchmarks/leaderboard.md alone; docs/leaderboard.md has their sentences."""


SMALL_BASE = "rope:rope_theta=100"


def worlds(results: Json) -> list[World]:
    """Every size, budget, text and training length: of the board's results, of the longer training, of the larger models, and of
    the experiments on budgets, texts, sizes and far context."""
    sizes, longer = (json.loads(path.read_text(encoding="utf-8")) for path in (SIZES, LONGER))
    made = [world(results["tasks"]["text"])]
    named = {name: tuple(of[at] for at in (0, -1)) for name, of in longer["loss"].items() if " + " not in name}
    made.append(World(made[0].parameters, longer["steps"], len(longer["seeds"]), named))
    for of in (sizes["models"][key] for key in ("size*4", "size*16")):
        levels = {name: (level["1"]["mean"], level["8"]["mean"]) for name, level in of["ten"]["levels"].items()}
        made.append(World(of["ten"]["parameters"]["rope"], of["settings"]["steps"], len(of["ten"]["seeds"]), levels))
    return made + [
        World(
            of["parameters"],
            of["steps"],
            replication.of_all(of["seeds"]),
            {name: tuple(ends) for name, ends in of["losses"].items()},
            _text(of),
            {id: Gap(Estimate(**gap["estimate"]), gap["chance"]) for id, gap in of["findings"].items()},
        )
        for of in _measured()
    ]


def of_law() -> list[World]:
    """Every size and budget of the law's trainings on a GPU, seed 0."""
    cells, made = by_cell(), []
    for (size, budget), of in sorted(by_setting().items(), key=lambda each: (float(each[0][0][:-1]), each[0][1])):
        first = cells[size, next(iter(of)), budget][0]
        made.append(World(first["weights"], first["steps"], 1, of, f"{budget} MB of prose and code"))
    return made


def _measured() -> list[Json]:
    """The settings of `measured_budgets`."""
    worlds: list[Json] = json.loads(BUDGETS.read_text(encoding="utf-8"))["worlds"]
    return worlds


def _text(of: Json) -> str:
    """A corpus, and the training length where that is not the usual."""
    return of["text"] + f" in {of['length']} bytes" * (of["length"] != LENGTH)


def baselines(board: Board) -> str:
    """What the baselines score at the training length of the tasks that have no archives of the leaderboard, after their steps."""
    known = {task: each for other in replication.experiments("tasks") for task, each in other.rankings.items()}
    rows = []
    for task in (task for task in TASKS if task not in board.rankings):
        ranking, of, guess = known.get(task), {}, "–"
        if ranking is not None:
            at = ranking.settings.trained_at
            of = {variant.name: _percent(ranking.level(variant, at).mean) for variant in ranking.trained}
            guess = _percent(ranking.chance[at] or 0)
        scores = [of.get(name, "–") for name in ("none", "rope", "alibi")]
        rows.append([f"`{task}`", str(experiment(task)().steps), guess, *scores])
    return table(["task", "steps", "guessing, %", "`none`", "`rope`", "`alibi`"], rows)


def world(text: Json) -> World:
    """Of a comparison of text, as results.json has it."""
    rows = {row["name"]: row for row in text["variants"] if row["trained"]}
    losses = {name: tuple(row["lengths"][at]["loss"]["mean"] for at in (0, -1)) for name, row in rows.items()}
    first = next(iter(rows.values()))
    return World(first["parameters"], text["settings"]["steps"], len(first["seeds"]), losses)


def rises(text: Json) -> Json:
    """What `posenc list` has beside an encoding's claim: by how many nats its loss rises from the training length to the longest."""
    trained, longest = (text["variants"][0]["lengths"][at]["length"] for at in (0, -1))
    named = {row["name"]: row["lengths"][-1]["change"]["mean"] for row in text["variants"] if row["trained"]}
    rise = {name: round(named[name], 2) + 0.0 for name in sorted(named) if name in ENCODINGS}
    return {"trained": trained, "longest": longest, "rise": rise}


def measured_budgets() -> Json:
    """benchmarks/budgets.json, from the archives of the experiments on budgets, texts, sizes and far context: of each setting the
    losses at the training length and at the longest, how far each encoding is behind `rope` at the training length, its gain from
    far context and, where the training length is more than LENGTH, from LENGTH to that, and the gaps of the published findings."""
    made = []
    for board in (board for name in ("budget", "corpora", "sizes", "far") for board in replication.experiments(name)):
        text, ranking = board.results["tasks"]["text"], board.rankings["text"]
        rows = {row["name"]: row for row in text["variants"] if row["trained"]}
        if "rope" not in rows:
            continue
        at = ranking.settings.trained_at
        behind = {name: replication.compared(ranking, at, name, "rope").estimate for name in rows if name != "rope"}
        made.append(
            {
                "text": text["data"]["name"].partition(":")[0],
                "length": text["settings"]["length"],
                "steps": text["settings"]["steps"],
                "seeds": replication.numbers_of_seeds(ranking),
                "trained_on": _trained_on(text),
                "parameters": rows["rope"]["parameters"],
                "losses": world(text).losses,
                "behind_rope": {
                    name: {end: getattr(e, end) for end in ("mean", "low", "high")} for name, e in behind.items()
                },
                "within": {v.name: vars(_fall(v, ranking.settings)) for v in ranking.trained}
                if text["settings"]["length"] > LENGTH
                else {},
                "by_context": {v.name: _by_context(v, ranking.settings) for v in ranking.trained},
                "gain": {name: row["gain"] for name, row in rows.items() if "gain" in row},
                "findings": {
                    each.id: {"estimate": vars(gap.estimate), "chance": gap.chance}
                    for each, gap in replication.gaps(board.rankings).items()
                },
            }
        )
    return {"worlds": sorted(made, key=lambda of: (of["length"], of["parameters"], of["steps"], of["text"]))}


def _by_context(variant: Aggregate, settings: Experiment) -> dict[str, float]:
    """The loss by how many bytes before a target are seen, up to the training length, on the same targets."""
    contexts = [context for context in settings.tested_contexts if WITHIN <= context <= settings.length]
    return {str(context): level(variant, context, CONTEXT).mean for context in contexts}


def _fall(variant: Aggregate, settings: Experiment) -> Estimate:
    """By how much the loss falls from LENGTH bytes of context to those of training, on the same targets."""
    near, trained = (
        variant.values(context, sorted(variant.scores), CONTEXT) for context in (LENGTH, settings.size_at(1))
    )
    return estimate(near - trained)


def budgets(board: Board) -> str:
    """What changes with the number of steps."""
    return compared(
        lambda of: f"{of['steps']} steps", lambda of: (of["text"], of["length"]) == ("code", LENGTH) and _is_small(of)
    )


def corpora(board: Board) -> str:
    """What changes with the text."""
    return compared(
        lambda of: str(of["text"]), lambda of: (of["steps"], of["length"]) == (STEPS, LENGTH) and _is_small(of)
    )


def sizes(board: Board) -> str:
    """What changes with the size of the model."""
    return compared(_size, lambda of: (of["text"], of["steps"], of["length"]) == ("code", STEPS, LENGTH))


def far(board: Board) -> str:
    """Which encodings use text before the last 512 bytes, when they are trained with 512."""
    made = [of for of in _measured() if of["length"] > LENGTH]
    if len(made) < 2:
        return "Not run yet."
    (length,) = {of["length"] for of in made}
    uses = [gain["use"] for of in made for gain in of["gain"].values()]
    falls = {(name, of["text"]): Estimate(**fall) for of in made for name, fall in of["within"].items()}
    lower = sum(fall.low > 0 for fall in falls.values())
    (name, text), most = max(falls.items(), key=lambda item: item[1].mean)
    gains, *others = [f"{use} in {uses.count(use) or 'none'}" for use in USES]
    return (
        f"Context beyond the training length of {length} bytes, in {len(uses)} pairs of an encoding and a corpus: *{gains}*, "
        f"{listed(others)}. Within the training length, the bytes from {LENGTH} to {length} measurably lower the loss in {lower} of {len(falls)}; "
        f"the largest fall is {_with_half(most.mean, most.low, most.high)} nats (`{name}`, {text}).\n\n"
        + compared(lambda of: str(of["text"]), lambda of: of["length"] > LENGTH)
    )


def rates(board: Board) -> str:
    """The losses at other learning rates, and how the encodings compare, each at its best."""
    made = _at_rates()
    if not made:
        return "Not run yet."
    usual = made[0]
    default, seeds = usual.losses, len(usual.by_seed["rope"])
    untuned = [name for name in default if name not in usual.tuned]
    best = {
        name: min((each for each in made if each.by[1] == 1 or name in usual.tuned), key=lambda each: each.losses[name])
        for name in default
    }
    lowest = {name: at.losses[name] for name, at in best.items()}
    names = sorted(lowest, key=lowest.__getitem__)
    rows = []
    for name in names:
        rate, position = best[name].by
        where = f"{rate:g}×" if rate != 1 else f"position {position:g}×" if position != 1 else "1×"
        changes = [lowest[name] - default[name], *(losses[name] - losses["rope"] for losses in (default, lowest))]
        rows.append(
            [
                f"`{name}`",
                f"{default[name]:.3f}",
                f"{lowest[name]:.3f}",
                where,
                *(f"{change:+.3f}".replace("-", "−") for change in changes),
            ]
        )
    head = [
        "encoding",
        "loss at the default",
        "at the best rate",
        "which is",
        "change",
        "− `rope`, default",
        "− `rope`, best",
    ]
    alike = spearman([default[name] for name in names], [lowest[name] for name in names])
    lower = sum(at.by[0] < 1 for at in best.values())
    least = min(each.by[0] for each in made)
    lines = [
        f"{in_seeds(seeds)}, trained on {listed(sorted({each.trained_on for each in made}))}. {lower} of {len(best)} "
        f"encodings have their lowest loss at a learning rate below the default, {sum(at.by[0] == least for at in best.values())} at the "
        f"lowest that was tried. Rank correlation of the losses at the default and at the best: {alike:.2f}."
    ]
    if seeds > 1:
        spread = statistics.mean((best[name].by_seed[name] - usual.by_seed[name]).var().item() for name in names)
        lines.append(f"A change has a standard error of {math.sqrt(spread / seeds):.3f}, pooled over the encodings.")
    again = [abs(each.losses[name] - default[name]) for each in made if each.by[1] != 1 for name in untuned]
    if again:
        lines.append(
            f"{len(untuned)} encodings have no position parameters, and their losses differ by up to {max(again):.3f} between the rates of parameters: "
            "so far apart are runs of one training under these programs."
        )
    return f"{' '.join(lines)}\n\n{table(head, rows)}"


def recall(board: Board) -> str:
    """How many trainings learn to recall when they get more steps, after how many, and what they recall at longer lengths."""
    made = replication.experiments("recall")
    if not made:
        return "Not run yet."
    ranking = made[0].rankings["recall"]
    s, fewer = ranking.settings, board.rankings["recall"]
    rows, ends = [], list[int | None]()
    lengths = range(s.shortest, s.length + 1, s.stride)
    guessing = statistics.mean(math.log(s.pairs(length)) for length in lengths)
    for variant in sorted(ranking.trained, key=lambda v: -ranking.level(v, s.conditions[-1]).mean):
        at = [_below(cell.losses, guessing / 2) for cell in variant.cells.values()]
        known = [each for each in at if each is not None]
        ends += at
        before = next((len(fewer.learned(each)) for each in fewer.trained if each.name == variant.name), None)
        rows.append(
            [
                f"`{variant.name}`",
                f"{len(ranking.learned(variant))} of {len(variant.scores)}",
                " to ".join(map(str, sorted({min(known), max(known)}))) if len(known) == len(at) else "–",
                *(_value(ranking, variant, condition) for condition in s.conditions),
                "–" if before is None else f"{before} of {board.seeds}",
            ]
        )
    learned = sum(len(ranking.learned(variant)) for variant in ranking.trained)
    head = [
        "encoding", "learned", "recalls by step",
        *(f"{s.size_at(condition)}, %" for condition in s.conditions),
        f"learned in {fewer.settings.steps} steps",
    ]  # fmt: skip
    below = f"below {guessing / 2:.2f}, half that of naming a value of the sequence at random"
    known = [each for each in ends if each is not None]
    by = f"by step {max(known)}" if len(known) == len(ends) else f"in {len(known)} of them"
    latest = min(max(known, default=s.steps), fewer.settings.steps)
    rate, of_fewer = (schedule(latest, steps) for steps in (s.steps, fewer.settings.steps))
    return (
        f"{learned} of {len(ends)} trainings learned it within {s.steps} steps; their mean loss was {below}, {by} (*recalls by step*). The "
        f"learning rate falls until the last step: at step {latest} it is {_percent(rate)} % of its peak, in a training of {fewer.settings.steps} steps "
        f"{_percent(of_fewer)} %.\n\n{table(head, rows)}"
    )


def _below(losses: Sequence[float], limit: float) -> int | None:
    """The end of the first steps whose mean loss, all that an archive has of them, is below a limit."""
    stride = -(-len(losses) // CURVE_POINTS)
    ends = (min(at + stride, len(losses)) for at in range(0, len(losses), stride) if losses[at] < limit)
    return next(ends, None)


@dataclass(frozen=True)
class AtRate:
    """Trainings at some rates. by: those of the weights and of position parameters, over the default; by_seed: losses at the
    training length; tuned: the encodings that have position parameters."""

    by: tuple[float, float]
    by_seed: Mapping[str, torch.Tensor]
    tuned: frozenset[str]
    trained_on: str

    @cached_property
    def losses(self) -> dict[str, float]:
        return {name: each.mean().item() for name, each in self.by_seed.items()}


def _at_rates() -> list[AtRate]:
    """Of the experiment on budgets the trainings at the default rates, and those with the same seeds of the experiment on rates."""
    usual = [board for board in replication.experiments("budget") if board.rankings["text"].settings.steps == STEPS]
    others = replication.experiments("rate")
    if not usual or not others:
        return []
    boards = [*usual, *others]
    seeds = sorted(set.intersection(*(set(board.rankings["text"].seeds) for board in boards)))
    default = usual[0].rankings["text"].settings
    return [_at_rate(board, default, seeds) for board in boards if seeds]


def _at_rate(board: Board, default: Experiment, seeds: Sequence[int]) -> AtRate:
    ranking = board.rankings["text"]
    values = measured(ranking, ranking.settings.trained_at, seeds).mean(-1)
    rate, of_positions = (
        round(getattr(ranking.settings, name) / getattr(default, name), 2)
        for name in ("learning_rate", "position_learning_rate")
    )
    return AtRate(
        (rate, of_positions),
        dict(zip((variant.name for variant in ranking.trained), values, strict=True)),
        frozenset(v.name for v in ranking.trained if next(iter(v.cells.values())).position_parameters),
        _trained_on(board.results["tasks"]["text"]),
    )


def _trained_on(text: Json) -> str:
    """The machine and the program of a comparison."""
    return str(text["limits"][-1]).split("trained on ")[1].rstrip(".")


def compared(label: Callable[[Json], str], among: Callable[[Json], bool]) -> str:
    """Losses under settings that differ in one respect, the gap against RoPE, what far context is worth, and how much the order
    changes; the best in the last of them first."""
    made = [of for of in _measured() if among(of)]
    if len(made) < 2:
        return "Not run yet."
    head, rows = ["encoding"], []
    for of in made:
        contexts = next(iter(of["by_context"].values()))
        head += [f"{label(of)}: 1×, 8×", f"by context: {', '.join(contexts)}", "− `rope` at 1×", "gain from far"]
    for name in sorted(made[-1]["losses"], key=lambda name: made[-1]["losses"][name][0]):
        cells = []
        for of in made:
            cells.append(", ".join(f"{loss:.3f}" for loss in of["losses"][name]) if name in of["losses"] else "–")
            if 0 < of["seeds"].get(name, 0) < max(of["seeds"].values()):
                cells[-1] += f" ({in_seeds(of['seeds'][name])})"
            cells.append(", ".join(f"{loss:.3f}" for loss in of["by_context"].get(name, {}).values()) or "–")
            gap, gain = of["behind_rope"].get(name), of["gain"].get(name)
            cells.append(_with_half(gap["mean"], gap["low"], gap["high"], "+") if gap else "–")
            cells.append(f"{_with_half(gain['mean'], gain['low'], gain['high'], '+')}, {gain['use']}" if gain else "–")
        rows.append([f"`{name}`", *(cell.replace("-", "−") for cell in cells)])
    where = "; ".join(
        f"{_text(of)}, {_size(of)}, {of['steps']} steps: {in_seeds(replication.of_all(of['seeds']))}" for of in made
    )
    machines = listed(sorted({of["trained_on"] for of in made}))
    alike = "; ".join(
        f"{label(one)} and {label(other)} {', '.join(f'{_rank_correlation(one, other, at):.2f}' for at in (0, 1))}"
        for one, other in combinations(made, 2)
    ).replace("-", "−")
    return f"{where}. Trained on {machines}.\n\n{table(head, rows)}\n\nRank correlation (Spearman's) of the losses at 1× and 8×: {alike}."


def _with_half(mean: float, low: float, high: float, sign: str = "") -> str:
    """With half the width of the interval."""
    return f"{mean:{sign}.3f} ± {(high - low) / 2:.3f}"


def _size(of: Json) -> str:
    return f"{of['parameters'] / 1e6:.1f} M"


def _is_small(of: Json) -> bool:
    """Of the size that the experiments on budgets and texts have."""
    return bool(of["parameters"] < 10**6)


def _rank_correlation(one: Json, other: Json, at: int) -> float:
    both = sorted(one["losses"].keys() & other["losses"])
    return spearman(*([of["losses"][name][at] for name in both] for of in (one, other)))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> str:
    """text: how many columns, from the left, are not numbers."""
    lines = [head, ["---"] * text + ["---:"] * (len(head) - text), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def facts(board: Board) -> str:
    """What was run, and where."""
    machines, programs = zip(*(_trained_on(of).split(" by ") for of in board.results["tasks"].values()), strict=True)
    every = sorted({program for each in programs for program in each.split(" and ")})
    trained_on = f"{' and '.join(sorted(set(machines)))} by {'; '.join(every)}"
    encodings = len(board.results["settings"]["encodings"])
    models = sum(len(variant.scores) for ranking in board.rankings.values() for variant in ranking.trained)
    means = {
        task: statistics.mean(row["training_seconds"] for row in results["variants"] if row["trained"])
        for task, results in board.results["tasks"].items()
    }
    processor = "a GPU" if "device" in board.results["machine"] else "one busy core"
    least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    return (
        f"{encodings} encodings, {len(board.rankings)} tasks, {in_seeds(board.seeds)}: {models} models, trained on {trained_on}. Training a model takes "
        f"{means[least]:.0f} s ({least}) to {means[most]:.0f} s ({most}) on {processor}."
    )


FRONT: dict[str, Json] = {
    "en": {
        "head": ("you want", "take", "what was measured"),
        "rows": {
            "server": (
                "a decoder that inference servers run",
                "near each other in {} settings; past the training length the loss of `rope` alone rises",
            ),
            "loss": (
                "the lowest loss, for longer inputs than in training, too",
                "near the lowest, at the training length and at eight times it, in all of their settings but one",
            ),
            "encoder": (
                "a bidirectional encoder",
                "lowest loss of seven in masked prediction, each at its best rate, two seeds: {} nats",
            ),
            "extend": (
                "a RoPE model with a longer context",
                "SmolLM2 finds {} passkeys past its context length; two other models find none, extended or not",
            ),
        },
        "joint": ", ",
        "and": " and ",
        "of": "{} of {}",
        "shown": "Near is within {margin} nats per byte; settings have {least:.1f} to {most:.0f} M weights and {fewest} to {megabytes} MB of text ([the law]({law}), one seed; a second moves a loss at the training length by up to {noise:.3f}): `kerple` was trained in {kerple} of them, `rope+alibi` in {both}, of {weights} M. With {sizes} M weights `alibi` is below `rope`, by {least_gap:.2f} to {most_gap:.2f}. With {weights} M a base of 100 raises the loss of `rope` by {cost:.2f} at the training length, and lowers it at eight times the length from {usual:.2f} to {small:.2f}. On code, with 0.5 M, training raises it there: {early:.1f} after {first} steps, {late:.1f} after {steps}. Larger models and more text are not shown.",
    },
    "zh": {
        "head": ("你要的", "选择", "测得"),
        "rows": {
            "server": (
                "推理服务器能运行的解码器",
                "在 {} 的设置中彼此接近；超出训练长度后，只有 `rope` 的损失上升",
            ),
            "loss": (
                "最低的损失，也包括比训练时更长的输入",
                "训练长度和八倍长度上都接近最低损失，测过的设置中只有一个例外",
            ),
            "encoder": ("双向编码器", "掩码预测中七种的最低损失，各取最佳学习率，两个种子：{} 奈特"),
            "extend": (
                "上下文更长的 RoPE 模型",
                "SmolLM2 超过上下文长度时找到 {} 的密钥（passkey）；另两个模型扩展与否都找不到",
            ),
        },
        "joint": "、",
        "and": " 和 ",
        "of": "{}/{}",
        "shown": "“接近”指相差不超过每字节 {margin} 奈特；各设置为 {least:.1f} 到 {most:.0f} M 权重、{fewest} 到 {megabytes} MB 文本（[定律]({law})，一个种子；另一个种子使训练长度上的损失最多变动 {noise:.3f}）：`kerple` 训练过其中 {kerple} 个，`rope+alibi` 训练过 {both} 个，均为 {weights} M。{sizes} M 权重时，`alibi` 比 `rope` 低 {least_gap:.2f} 到 {most_gap:.2f}；{weights} M 时，底数 100 使 `rope` 在八倍长度上的损失从 {usual:.2f} 降到 {small:.2f}，而在训练长度上升高 {cost:.2f}。0.5 M 权重在代码上，`rope` 在八倍长度上的损失随训练升高：{first} 步后 {early:.1f}，{steps} 步后 {late:.1f}。更大的模型和更多的文本没有测过。",
    },
}
"""README's words, by language: who asks, and what was measured."""


@dataclass(frozen=True)
class Answer:
    """To a question of FRONT: what to take, and the figure for it; of: out of so many, where it is a count."""

    names: tuple[str, ...]
    figure: str
    of: int | None = None


def answers(known: Sequence[World], law: Widest) -> dict[str, Answer]:
    """What README and the page on choosing advise, from the committed results. known: of the law."""
    made = {}
    both = [(of["rope"], of["alibi"]) for of in (each.losses for each in known) if {"rope", "alibi"} <= of.keys()]
    assert all(rope[1] - rope[0] > MARGIN > alibi[1] - alibi[0] for rope, alibi in both), "README: `rope` alone rises"
    made["server"] = Answer(("rope", "alibi"), str(sum(abs(r[0] - a[0]) <= MARGIN for r, a in both)), len(both))
    assert sum(of - near for near, of in advised().values()) == 1, "README: in all of their settings but one"
    made["loss"] = Answer(tuple(advised()), " and ".join(f"{near} of {of}" for near, of in advised().values()))
    ranking = replication.experiments("recall")[0].rankings["recall"]
    recalled = {v.name: _value(ranking, v, ranking.settings.conditions[-1]) for v in ranking.trained}
    least = max(map(float, recalled.values())) - 2
    made["recall"] = Answer(
        tuple(sorted(name for name, share in recalled.items() if float(share) >= least)), f"{least:.0f} %"
    )
    made["encoder"] = encoder()[0]
    exact = next(row["exact"] for row in _passkeys(EXTENDED) if row["method"] == "yarn")
    assert not any(row["exact"]["hits"] for path in OTHERS for row in _passkeys(path)), (
        "README: two other models find none"
    )
    made["extend"] = Answer(("yarn",), str(exact["hits"]), exact["n"])
    return made


def _passkeys(archive: Path) -> list[Json]:
    """The rows of a task, at all lengths and by all methods."""
    longer = json.loads(archive.read_text(encoding="utf-8"))["longer"]
    return [row for at in longer for task in at["tasks"] if task["task"].startswith("passkey") for row in task["rows"]]


def choosing() -> dict[str, str]:
    """The parts that advise: README's in both languages, and that of the page on choosing."""
    known, law = of_law(), widest()
    made = answers(known, law)
    fronts = {f"front{end}": front(made, known, law, language) for end, language in (("", "en"), (".zh", "zh"))}
    return fronts | {"choice": choice(made, law)}


def front(made: Mapping[str, Answer], known: Sequence[World], largest: Widest, language: str) -> str:
    """README's table: at most five rows of one figure each, and what it does not show."""
    words, rows = FRONT[language], []
    for key, (who, what) in words["rows"].items():
        answer = made[key]
        figure = answer.figure if answer.of is None else words["of"].format(answer.figure, answer.of)
        names = words["joint"].join(f"`{name}`" for name in answer.names)
        rows.append([who, names, what.format(figure)])
    of_larger, least_gap, most_gap = larger()
    sizes = [each.parameters / 1e6 for each in known]
    of = largest.losses
    code = [of for of in _measured() if (of["text"], of["length"]) == ("code", LENGTH) and _is_small(of)]
    past = {of["steps"]: of["losses"]["rope"][1] for of in code}
    shown = words["shown"].format(
        margin=MARGIN,
        weights=largest.size.removesuffix("M"),
        megabytes=largest.budget,
        fewest=min(mb for *_, mb in by_cell()),
        noise=largest.noise[0],
        kerple=advised()["kerple"][1],
        both=advised()["rope+alibi"][1],
        law="benchmarks/law.md#on-a-gpu",
        least=min(sizes),
        most=max(sizes),
        sizes=words["and"].join(of_larger),
        least_gap=least_gap,
        most_gap=most_gap,
        small=of[SMALL_BASE][1],
        usual=of["rope"][1],
        cost=of[SMALL_BASE][0] - of["rope"][0],
        first=min(past),
        early=past[min(past)],
        steps=max(past),
        late=past[max(past)],
    )
    return f"{table(words['head'], rows, text=3)}\n\n{shown}"


def encoder() -> tuple[Answer, str]:
    """The encoding of least loss in masked prediction (benchmarks/masked.py), and a sentence."""
    runs = json.loads((Path(__file__).parent / "masked.json").read_text())["losses"]
    assert not any(masked.waiting(row) for row in runs.values()), "README: each at its best rate, two seeds"
    chosen = {name: row[masked.best(row)] for name, row in runs.items()}
    losses = {name: statistics.fmean(map(masked.near, seeds.values())) for name, seeds in chosen.items()}
    best, other = min(losses, key=losses.__getitem__), losses["rope"]
    assert len(losses) == 7, "README: of seven"
    return (
        Answer((best,), f"{losses[best]:.2f}"),
        f"lowest loss of {len(losses)} in [masked prediction](../../benchmarks/masked.md), two seeds, each at its best rate: {losses[best]:.2f}; `rope` {other:.2f}",
    )


def choice(made: Mapping[str, Answer], largest: Widest) -> str:
    """The table of the page on choosing: questions in their order."""
    unknown = "not measured"
    at = {end: {e: f"{loss[end]:.2f}" for e, loss in largest.losses.items()} for end in (0, 1)}
    asked = [
        ("Is it a trained RoPE model that needs a longer context?", "extend", "SmolLM2 finds a passkey in {} documents at 1.5 times the context; two other models find none, extended or not"),
        ("Are the inputs images or video?", "axial_rope", unknown),
        ("Is it a bidirectional encoder?", "encoder", encoder()[1]),
        ("Must inference servers run it?", "server", f"near each other in {{}} settings; past the training length the loss of `rope` alone rises, to {at[1]['rope']}"),
        ("Must it recall one value from far past the training length?", "recall", "key-value recall, 2000 steps: at least {} right at 8 times the training length"),
        ("None of these? Inputs may be longer than in training.", "loss", "near the lowest loss, at the training length and at 8 times it, in {} of their settings"),
    ]  # fmt: skip
    rows = []
    for question, key, sentence in asked:
        answer = made.get(key, Answer((key,), ""))
        figure = answer.figure if answer.of is None else f"{answer.figure} of {answer.of}"
        rows.append([question, ", ".join(f"`{name}`" for name in answer.names), sentence.format(figure)])
    law = f"[The largest budget](../../benchmarks/law.md#on-a-gpu) of ten encodings is {largest.size.removesuffix('M')} M weights and {largest.budget} MB of prose and code"
    of_larger, least, most = larger()
    several = sum(len(each) > 1 for each in by_cell().values())
    seeds = (
        f"one seed: nats per byte at the training length, 512 tokens, and, on other passages, at 8 times that: compare within a column. A second seed, which {several} cells of {' and '.join(map(str, largest.seeded))} MB have, moves a loss by up to {largest.noise[0]:.3f} at 512, and by {largest.noise[1]:.3f} at 4096 where it stays level. "
        f"With {' and '.join(of_larger)} M weights `alibi` is below `rope` at every budget, by {least:.2f} to {most:.2f}."
    )
    losses = [[f"`{e}`", at[0][e], at[1][e]] for e in sorted(largest.losses, key=lambda e: largest.losses[e][0])]
    head = ["encoding", "512", f"{8 * 512}"]
    near = ", ".join(f"`{name}` in {of[0]} of {of[1]}" for name, of in near_lowest().items())
    settings = f"Near the lowest at both lengths, by settings of size and budget: {near}."
    return f"{table(['question', 'if yes, take', 'measured'], rows, text=3)}\n\n{settings}\n\n{law}, {seeds}\n\n{table(head, losses)}"


WITHOUT = {
    "grid": "their positions have several coordinates ([images](vision-grid.md))",
    "augment": "they change positions in training, for use with another encoding, as `randomized` does in two rows",
}
"""Why the encodings of a family have no row. Others were not run."""


def missing(board: Board) -> str:
    """Which encodings the rows contain, alone or in sums, and which they do not, with the reason."""
    rows = board.results["settings"]["encodings"]
    there = {term.name for row in rows for terms in read(row).layers for term in terms}
    alone = sum(row in ENCODINGS for row in rows)
    without: dict[str, list[str]] = {}
    for name, cls in ENCODINGS.items():
        if name not in there:
            without.setdefault(WITHOUT.get(family(cls), "they were not run"), []).append(f"`{name}`")
    lines = [f"- {len(names)}, since {reason}: {', '.join(names)}." for reason, names in sorted(without.items())]
    return "\n".join(
        [
            f"The {len(rows)} rows are {alone} encodings alone and {len(rows) - alone} sums or patterns of layers; together they have "
            f"{len(there & ENCODINGS.keys())} of the {len(ENCODINGS)} encodings. Without a row are:",
            "",
            *lines,
        ]
    )


def summary(board: Board) -> str:
    """What every encoding is, its mean score, its loss on text, and what training it costs, the best mean at the longest length
    first."""
    text = board.rankings["text"]
    s, factor = text.settings, text.settings.factors[-1]
    of = {variant.name: variant for variant in text.trained}
    rows = []
    for row in board.results["table"]:
        name = row["encoding"]
        losses = (text.level(of[name], at).mean for at in (s.trained_at, factor))
        parameters, milliseconds, mebibytes = _cost(of[name], s.steps)
        gain = s.row(of[name])["gain_within"]
        cells = (
            ", ".join(mean_score(row[at]) for at in ENDS),
            ", ".join(f"{loss:.2f}" for loss in losses),
            _with_half(gain["mean"], gain["low"], gain["high"], "+").replace("-", "−"),
        )
        rows.append([f"`{name}`", titled(name), *cells, f"{parameters:,}", f"{milliseconds:.0f}", f"{mebibytes:.0f}"])
    head = ["encoding", "what it is", f"mean score: 1×, {factor}×", f"loss on text: 1×, {factor}×"]
    head.append(f"gain from {gain['from']} to {gain['to']} bytes")
    return table([*head, "parameters", "ms a step", "MiB"], rows, text=2)


def _cost(variant: Aggregate, steps: int) -> tuple[int, float, float]:
    """Parameters, milliseconds of a training step (the median of the seeds), and MiB that it stores."""
    cells = list(variant.cells.values())
    seconds = statistics.median(cell.training_seconds for cell in cells)
    return cells[0].parameters, 1000 * seconds / steps, cells[0].memory_bytes / 2**20


def removed(board: Board, what: str = "Left out of the mean") -> str:
    """What is left out of the means: what nobody learned."""
    lines = list[str]()
    for task, ends in board.results["not_learned"].items():
        ranking = board.rankings[task]
        for at in ends:
            condition = end(ranking, at)
            best = max(ranking.level(variant, condition).mean for variant in ranking.trained)
            lines.append(
                f"{what}: {task} at {ranking.settings.spelled(condition)}, where nobody came a tenth of the way from guessing to "
                f"all right (the best {_percent(best)} %, the most common answer {_percent(ranking.chance[condition] or 0)} %)."
            )
    return "\n\n".join(lines) or "No task is left out of the mean."


def scores(board: Board) -> str:
    """What every encoding scores in every task, in the same order; bold where that is probably near the best."""
    tasks = list(board.rankings)
    heads = [headed(task, board.rankings[task]) for task in tasks]
    rows = []
    for row in board.results["table"]:
        cells = [ends_of(board, task, row) for task in row["near_best"]]
        rows.append([f"`{row['encoding']}`", *cells, ", ".join(mean_score(row[at]) for at in ENDS)])
    return table(["", *heads, "mean score"], rows)


def headed(task: str, ranking: Ranking) -> str:
    """A task with its training length and its longest."""
    s = ranking.settings
    return f"{task}, {s.spelled(s.trained_at).partition(' ')[0]} and {s.spelled(s.conditions[-1])}"


def ends_of(board: Board, task: str, row: Json) -> str:
    """What an encoding, of a row of the results' table, scores at the training length and at the longest; bold where that is probably
    near the best."""
    ranking, near, nobody = board.rankings[task], row["near_best"][task], board.results["not_learned"][task]
    variant = next(each for each in ranking.trained if each.name == row["encoding"])
    values = {at: _value(ranking, variant, end(ranking, at)) for at in ENDS}
    return ", ".join(f"**{values[at]}**" if near[at] >= 0.5 and at not in nobody else values[at] for at in ENDS)


def of_task(task: str, board: Board) -> str:
    """What each encoding scores at the training length and at the longest, with its interval, and how probably it is near the
    best; where trainings jump, how many learned the task."""
    ranking = board.rankings[task]
    s, m = ranking.settings, ranking.criterion
    ends = [end(ranking, at) for at in ENDS]
    near = {condition: ranking.near_best(condition) for condition in ends}
    order = sorted(ranking.trained, key=lambda variant: m.worse * ranking.level(variant, ends[-1]).mean)
    unit = "%" if m.higher_is_better else "nats"
    head = ["encoding"]
    for condition in ends:
        head += [f"{m.key} at {s.spelled(condition)}, {unit}", "near the best"]
    if ranking.jumps:
        head += ["learned", f"of these, at {s.spelled(ends[-1])}"]
    rows = []
    for variant in order:
        cells = [f"`{variant.name}`"]
        for condition in ends:
            cells += [_with_interval(ranking, variant, condition), _probability(near[condition][variant.name])]
        if ranking.jumps:
            seeds = ranking.learned(variant)
            right = [variant.values(ends[-1], [seed], m.key).mean().item() for seed in seeds]
            given = _percent(statistics.mean(right)) if right else "–"
            cells += [f"{len(seeds)} of {len(variant.scores)}", given]
        rows.append(cells)
    chance = [ranking.chance[condition] or 0 for condition in ends]
    guessing = ", ".join(_percent(each) if m.higher_is_better else f"{each:.3f}" for each in chance)
    scale = (
        f"Guessing: {guessing} % (the most common answer); the best possible: 100."
        if m.higher_is_better
        else f"Guessing: {guessing} (the frequencies of the bytes); the best possible: 0, which no text allows."
    )
    return f"{table(head, rows)}\n\n{scale} Near the best: within {m.margin}."


def measured_tasks() -> dict[str, Board]:
    """The experiment on tasks that the leaderboard does not have, by task."""
    return {task: each for each in replication.experiments("tasks") for task in each.rankings}


def others(board: Board) -> str:
    """What each encoding scores in the tasks of that experiment; bold where that is probably near the best."""
    made = measured_tasks()
    columns, names, heads = [], dict[str, None](), ["encoding"]
    machines: dict[str, list[str]] = {}
    for task, of in made.items():
        machines.setdefault(_trained_on(of.results["tasks"][task]), []).append(f"`{task}`")
        ranking = of.rankings[task]
        counts = replication.numbers_of_seeds(ranking)
        cells = {row["encoding"]: ends_of(of, task, row) for row in of.results["table"]}
        fewer = {name: f" ({in_seeds(n)})" for name, n in counts.items() if n < max(counts.values())}
        columns.append({name: cell + fewer.get(name, "") for name, cell in cells.items()})
        names |= dict.fromkeys(cells)
        guess = _percent(ranking.chance[ranking.settings.trained_at] or 0)
        heads.append(
            f"{headed(task, ranking)} ({ranking.settings.steps} steps, {in_seeds(replication.of_all(counts))}, guessing {guess})"
        )
    rows = [[f"`{name}`", *(cells.get(name, "–") for cells in columns)] for name in sorted(names)]
    left_out = [removed(of, "Not compared") for of in made.values() if any(of.results["not_learned"].values())]
    trained = [f"{listed(tasks)} on {machine}" for machine, tasks in machines.items()]
    return "\n\n".join([table(heads, rows), *left_out, f"Trained: {'; '.join(trained)}."])


def other_tasks(board: Board) -> str:
    """Their tables."""
    return "\n\n".join(f"### {task}\n\n{of_task(task, of)}" for task, of in measured_tasks().items())


def equal_time(board: Board) -> str:
    """The loss of training on text in the time that the fastest encoding takes for all steps."""
    text = board.rankings["text"]
    steps = text.settings.steps
    costs = {variant.name: _cost(variant, steps)[1] for variant in text.trained}
    reached = {}
    for variant in text.trained:
        done = min(steps, int(steps * min(costs.values()) / costs[variant.name]))
        losses = [statistics.mean(cell.losses[max(done - LAST, 0) : done]) for cell in variant.cells.values()]
        last = [statistics.mean(cell.losses[-LAST:]) for cell in variant.cells.values()]
        reached[variant.name] = done, statistics.mean(losses), statistics.mean(last)
    by_steps = sorted(reached, key=lambda name: reached[name][2])
    rows = [
        [f"`{name}`", f"{reached[name][0]}", f"{reached[name][1]:.2f}", str(place), str(by_steps.index(name) + 1)]
        for place, name in enumerate(sorted(reached, key=lambda name: reached[name][1]), 1)
    ]
    return table(["encoding", "steps", f"loss of the last {LAST} batches", "place", f"place after {steps} steps"], rows)


def _value(ranking: Ranking, variant: Aggregate, condition: int) -> str:
    mean = ranking.level(variant, condition).mean
    return _percent(mean) if ranking.criterion.higher_is_better else f"{mean:.3f}"


def _with_interval(ranking: Ranking, variant: Aggregate, condition: int) -> str:
    """Low to high: the interval of a share ends at 0 and 100 %, so half of it would not say where."""
    e = ranking.level(variant, condition)
    ends = [_percent(end) if ranking.criterion.higher_is_better else f"{end:.3f}" for end in (e.low, e.high)]
    return f"{_value(ranking, variant, condition)} ({' to '.join(ends)})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _probability(share: float) -> str:
    """In percent; what a bootstrap cannot show is not written as certain."""
    return "< 1 %" if share < 0.005 else "> 99 %" if share > 0.995 else f"{100 * share:.0f} %"


def gains(board: Board) -> str:
    """How many encodings predict text better the longer it is."""
    text = board.rankings["text"]
    longer = [each for each in text.settings.conditions if each != text.settings.trained_at]
    changes = {(v.name, at): text.change(v, at) for v in text.trained for at in longer}
    (name, at), most = min(changes.items(), key=lambda item: item[1].mean)
    better = sum(change.high < 0 for change in changes.values())
    return (
        f"- **A level curve on text does no harm; it does not show that far text is read.** Of {len(changes)} pairs of an encoding and a "
        f"longer context, {better or 'none'} has a measurably lower loss than at the training length; the largest gain is "
        f"{text.criterion.difference(most)} (`{name}` at {text.settings.spelled(at)}). At this budget the column shows what near text is learned for."
    )


def luck(board: Board) -> str:
    """How far apart trainings of one encoding are, how many pairs of encodings one seed parts and all do, and how many trainings
    jump."""
    percent = {task: _of_seeds(board.rankings[task], "rope") for task in ("copy", "recall")}
    pairs = len(LEADERBOARD) * (len(LEADERBOARD) - 1) // 2
    one, every = (
        [f"{_pairs(board.rankings[task], seeds)} on {task}" for task in ("text", "copy", "recall")]
        for seeds in (1, board.seeds)
    )
    lines = [
        f"- The luck of training is large. At twice the length RoPE copies {listed(percent['copy'])} % of symbols, seed by seed, and "
        f"recalls {listed(percent['recall'])} % of values. By the first seed alone, of the {pairs} pairs of encodings {listed(one)} differ at "
        f"the longest length; by all {board.seeds} seeds {listed(every)}. One training each says little about such tasks."
    ]
    for task, ranking in board.rankings.items():
        if ranking.jumps:
            hits = {variant.name: len(ranking.learned(variant)) for variant in ranking.trained}
            every = [f"`{name}`" for name in sorted(hits) if hits[name] == board.seeds]
            gaps = [fisher(a, b, board.seeds) for (_, a), (_, b) in combinations(hits.items(), 2)]
            apart = int(found(torch.tensor(gaps), BENJAMINI_HOCHBERG).sum())
            lines.append(
                f"- In `{task}` a training learns nothing at first, and then all of it: {sum(hits.values())} of "
                f"{len(hits) * board.seeds} trainings learned it within {ranking.settings.steps} steps, with {listed(every)} all of them, and "
                f"{sum(hit == 0 for hit in hits.values())} encodings had none. By the exact test (Fisher) {apart} of the {pairs} pairs differ in "
                f"how many learn: {board.seeds} of {board.seeds} against 0 has p = {fisher(board.seeds, 0, board.seeds):.3f} for itself alone."
            )
    return "\n".join(lines)


def _of_seeds(ranking: Ranking, name: str) -> list[str]:
    """What an encoding scores at twice the length, in percent, with each seed."""
    variant = next(each for each in ranking.trained if each.name == name)
    right = variant.values(2, sorted(variant.scores), ranking.criterion.key).mean(1)
    return [f"{100 * share:.0f}" for share in right.tolist()]


def _pairs(ranking: Ranking, seeds: int) -> int:
    """How many pairs of encodings differ at the longest length, by the first seeds."""
    values = measured(ranking, ranking.settings.conditions[-1], range(seeds))
    return int(different(values, BENJAMINI_HOCHBERG, jumps=ranking.jumps).sum()) // 2


def errors(rates: Json) -> str:
    """How often differences are found where there are none, by benchmarks/error_rates.py."""
    rows = []
    for key, of in rates["worlds"].items():
        cells = [[f"{_percent(of[kind][test])}" for test in ("own", "moderated")] for kind in ("equal", "apart")]
        rows.append([key, *(cell for pair in cells for cell in pair)])
    head = ["as in", "all equal, own variances", "moderated", "eight kinds, own variances", "moderated"]
    most = {test: max(of["equal"][test] for of in rates["worlds"].values()) for test in ("own", "moderated")}
    false = max(of["apart"]["moderated"] for of in rates["worlds"].values())
    near = [[f"{100 * low:.0f} to {100 * high:.0f}", *_near(rates, at)] for at, (low, high) in _classes(rates)]
    by_column = [[key, *(_counted(of["near"][at]) for at, _ in _classes(rates))] for key, of in rates["worlds"].items()]
    classes = [f"{100 * low:.0f} to {100 * high:.0f} %" for _, (low, high) in _classes(rates)]
    return (
        f"{table(head, rows)}\n\nOf {rates['tables']} tables of equal encodings for each row, at most {_percent(most['moderated'])} % show a "
        f"difference (by own variances up to {_percent(most['own'])} %); where encodings differ, at most {100 * false:.1f} % of the differences "
        "found are false.\n\n"
        f"Near the best, by {rates['near_tables']} tables for each row above in which every encoding has its own measured mean: how often an "
        "encoding to which a probability was given is within the tolerance of the best in truth.\n\n"
        f"{table(['stated, %', 'how many', 'stated in the mean, %', 'true, %'], near)}\n\n"
        "The same for each column: how many of those that were given such a probability are near the best in truth.\n\n"
        f"{table(['column', *classes], by_column)}"
    )


def calibration(board: Board) -> str:
    """What a probability to be near the best is worth, over all columns and for the text's alone."""
    rates = json.loads(ERRORS.read_text(encoding="utf-8"))
    at = next(at for at, (low, _) in _classes(rates) if low == 0.5)
    every = [of["near"][at] for of in rates["worlds"].values()]
    text = [of["near"][at] for key, of in rates["worlds"].items() if key.startswith("text")]
    shares = [sum(n * true for n, _, true in rows) / sum(n for n, _, _ in rows) for rows in (every, text)]
    known = [(true, key) for key, of in rates["worlds"].items() for n, _, true in [of["near"][at]] if n]
    (least, worst), (most, best) = min(known), max(known)
    counts = [sum(round(n * true) for n, _, true in text), sum(n for n, _, _ in text)]
    return (
        "- **How far to trust *near the best*.** In [simulations](../benchmarks/leaderboard.md#how-often-the-tests-are-wrong), of the encodings "
        f"that it gives 50 to 95 %, {_percent(shares[0])} % are near the best in truth; by column {_percent(least)} % ({worst}) to {_percent(most)} % "
        f"({best}). On text it says too much: {counts[0]} of {counts[1]} are."
    )


def _classes(rates: Json) -> list[tuple[int, tuple[float, float]]]:
    """The classes of probabilities, numbered."""
    return list(enumerate(pairwise(rates["classes"])))


def _counted(row: Sequence[float]) -> str:
    count, _, true = row
    return f"{round(count * true)} of {count}" if count else "–"


def _near(rates: Json, at: int) -> list[str]:
    """Of a class of probabilities, over all columns: how many, their mean, how many are true."""
    rows = [of["near"][at] for of in rates["worlds"].values() if of["near"][at][0]]
    count = sum(n for n, _, _ in rows)
    means = [sum(row[0] * row[which] for row in rows) / count for which in (1, 2)]
    return [f"{count:,}", *map(_percent, means)]


def judged_findings(board: Board) -> list[replication.Judged]:
    """By the board, and by the experiment on other tasks."""
    known = {task: each.rankings[task] for task, each in measured_tasks().items()}
    return replication.judged({**known, **board.rankings}, [*worlds(board.results)[1:], *of_law()])


def tables(board: Board) -> dict[str, str]:
    """Every table of the page, by name."""
    made = {
        each.__name__: each(board)
        for each in (
            facts,
            calibration,
            gains,
            summary,
            missing,
            removed,
            scores,
            luck,
            equal_time,
            budgets,
            corpora,
            sizes,
            far,
            rates,
            recall,
            others,
            other_tasks,
            baselines,
        )
    }
    made |= choosing()
    made |= replication.tables(judged_findings(board))
    made["errors"] = errors(json.loads(ERRORS.read_text(encoding="utf-8")))
    made |= {f"{name}.findings": sentences(made[name]) for name in WIDE}
    tasks = "\n\n".join(f"### {task}\n\n{of_task(task, board)}" for task in board.rankings)
    return made | {"tasks": tasks}


def sentences(text: str) -> str:
    """What a part says beside its tables."""
    return "\n\n".join(each for each in text.split("\n\n") if not each.startswith("|"))


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
    MEASURED.write_text(json.dumps(rises(board.results["tasks"]["text"]), indent=1) + "\n", encoding="utf-8")
    BUDGETS.write_text(json.dumps(_rounded(measured_budgets())) + "\n", encoding="utf-8")
    made = tables(board)
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
