# SPDX-License-Identifier: Apache-2.0
"""`extend(model, "auto")`: candidates are measured on the same documents, round by round, and one is chosen.

Each text is a passkey, a key-value and a running text of the new length. The answers lie in the part that truncation removes.
With losses in nats per token, the net gain of a method on a text is

    mean over the three of (loss of the truncated text - loss of the method)  -  what the method adds to the loss of the
    running text within the context length,

where running text counts past the context length, and a task that the unmodified model does not answer within its context
length does not count. Truncation has 0. Methods are compared by paired differences, text by text.

Rounds are successive halving (Jamieson and Talwalkar 2016, arXiv 1502.07943): every round doubles the documents and halves the
methods. How many there are follows from the tasks that count, the speed of the model, measured once, and the minutes. That is the
plan, which is written before methods are measured. The clock has no part in what follows: an equal plan gives the same choice.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, linear_regression
from typing import Any

import torch

from posenc.errors import InputError, check_integers, check_word, listed
from posenc.lab.evals.comparison import past
from posenc.lab.evals.config import EXTENSIONS, NONE, TRUNCATION, Cell, EvaluationSettings
from posenc.lab.evals.plan import (
    LEAST_TEXTS,
    MOST_TEXTS,
    PAIR,
    PLAN,
    RETRIEVAL,
    SERVING,
    Plan,
    checked_tasks,
    planned_rounds,
)
from posenc.lab.evals.reader import BLOCKS, CHUNK, TextOutcome
from posenc.lab.evals.results import Measured, share
from posenc.lab.evals.study import AnyCell, AnyRecord, Evaluation
from posenc.lab.files import Folder
from posenc.lab.machine import describe
from posenc.lab.statistics import Estimate, estimate
from posenc.lab.study import Interrupted, Progress, Results, run
from posenc.pretrained.changes import ChangeReport, ModelChange
from posenc.pretrained.export import ProgramAnswer, expresses
from posenc.pretrained.extend import Extension, extend, restore, target_of
from posenc.pretrained.inference import loss_by_position
from posenc.pretrained.learned_table import TableExtension, has_learned_table
from posenc.pretrained.methods import written_factor
from posenc.pretrained.models import model_structure, record_of, unwrap
from posenc.pretrained.scratch import scratch
from posenc.tasks import Sample, create
from posenc.tasks.running_text import pydoc
from posenc_cli.arguments import aligned

__all__ = ["TRUNCATE", "Plan", "Selection", "select"]

TRUNCATE = "truncate"
"""The choice where nothing beats truncation."""
MINUTES = 10.0
TITLES = {"passkey": "passkey", "facts": "key-value"}
RUNNING = "perplexity"
PROBE = 2048
"""Tokens of the text by which the speed is measured, at least, if the new length is as long."""
MOST_TIMES = BLOCKS
"""The new length over the context length, at most: losses are known for so many parts of a text."""
TEXT = "text.txt"
"""The user's text in the folder."""
SELECTION = "selection.json"


@dataclass(frozen=True)
class Selection(ChangeReport):
    """What `extend(model, "auto")` measured and chose.

    choice: the method, or "truncate": the model is then as it was loaded. why: in a sentence. rows: of the table, the best first;
    differences are in nats per token with 95 % intervals, for all candidates together (Bonferroni). extension: the report of the method that was applied; None: truncate. seconds: of measuring, interruptions
    left out.
    """

    plan: Plan
    choice: str
    why: str
    rows: tuple[dict[str, Any], ...]
    machine: dict[str, Any]
    seconds: float
    extension: Extension | TableExtension | None = None

    @property
    def left_out(self) -> dict[str, str]:
        """Tasks that do not count, by title, and why."""
        return {TITLES[task]: why for task, why in self.plan.left_out.items()}

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The choice in words. width: columns that the table may take."""
        plan = self.plan
        lines = [
            f"auto for {plan.program}: from {plan.context_length} to {plan.target_length} tokens, {len(plan.candidates)} methods tried",
            *(f"  {line}" for line in aligned(self.table(), str.ljust, None if width is None else width - 2)),
            f"nats per token with 95 % intervals: past and within {plan.context_length} tokens on running text, less is better; net gain "
            "over truncation, more is better",
        ]
        lines += [f"{title} does not count: {why}" for title, why in self.left_out.items()]
        if plan.skipped:
            lines.append(f"not tried: {listed(sorted(plan.skipped))}")
        return "\n".join([*lines, f"choice: {self.why}", *([] if self.extension is None else [str(self.extension)])])

    def table(self) -> list[list[str]]:
        """The table as strings, its head first."""
        tasks = [task for task in RETRIEVAL if any(task in row for row in self.rows)]
        table = [["method", "documents", *(TITLES[task] for task in tasks), "past", "within", "net gain", "ms"]]
        for row in self.rows:
            cells = [_share(row.get(task)) for task in tasks]
            cells += [_interval(row[name]) for name in ("past", "within", "gain")]
            table.append([row["method"], str(row["texts"]), *cells, f"{row['ms_per_token']:.2g}"])
        return table


def _seconds_per_token(model: Any, ids: torch.Tensor, target: int) -> float:
    """In a text of the new length. The time of a token grows with the tokens before it, along a line through the times of the
    chunks of a first part."""
    loss_by_position(model, ids[: min(CHUNK, target)])  # the first time is slower
    done, times = [0], [time.perf_counter()]

    def progress(tokens: int, of: int) -> None:
        done.append(tokens)
        times.append(time.perf_counter())

    loss_by_position(model, ids[: min(max(PROBE, target // 8), target)], chunk=CHUNK, progress=progress)
    measured = zip(pairwise(done), pairwise(times), strict=True)
    full = [
        ((first + last) / 2, (then - now) / CHUNK) for (first, last), (now, then) in measured if last - first == CHUNK
    ]
    slope = linear_regression(*zip(*full, strict=True)).slope if len(full) > 1 else 0.0
    return (times[-1] - times[0]) / done[-1] + max(slope, 0.0) * (target - done[-1]) / 2


# ---------------------------------------------------------------- measuring


@dataclass(eq=False)
class Trial(Evaluation):
    """The cells of a selection, as an evaluation: those of each round beside those of earlier ones. A cell is the next `PAIR`
    documents; its `seed` counts them."""

    name = "auto"
    in_rounds = True

    plan: Plan = field(kw_only=True)
    costs: Mapping[str, int] = field(kw_only=True)
    wanted: list[AnyCell] = field(init=False, default_factory=list)
    done: dict[Cell, Measured] = field(init=False, default_factory=dict)
    _checked: bool = field(init=False, default=False)
    _texts: dict[tuple[Any, ...], Sample] = field(init=False, default_factory=dict)
    _behaviours: dict[AnyCell, Mapping[str, float]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trained_length = self.plan.context_length  # of a model that was loaded with a scaling, the scaled one

    @property
    def running(self) -> str:
        """The task on running text."""
        return next(text for text, task in self.tasks.items() if task.name == RUNNING)

    def check(self) -> None:
        if not self._checked:  # once for all rounds
            super().check()
            self._checked = True

    def cells(self) -> list[AnyCell]:
        return self.wanted

    def facts(self, cell: AnyCell) -> Mapping[str, Any]:
        task = self.tasks[cell.task].name  # "material" has the hash of the text, wherever its file is
        return {**super().facts(cell), "task": task, "files": {}, "text_seed": self.plan.seed}

    def stored(self, cell: AnyCell, measured: AnyRecord) -> None:
        if isinstance(cell, Cell) and isinstance(measured, Measured):
            self.done[cell] = measured

    def behaviour(self, cell: AnyCell) -> Mapping[str, float]:
        if cell not in self._behaviours:  # once for all rounds
            self._behaviours[cell] = super().behaviour(cell)
        return self._behaviours[cell]

    def sample(self, cell: Cell, index: int) -> Sample:
        number = PAIR * cell.seed + index
        key = cell.task, cell.length, cell.depth, number
        if key not in self._texts:
            self._texts[key] = super().sample(replace(cell, seed=self.plan.seed), number)
        return self._texts[key]

    def results(self, done: Mapping[AnyCell, AnyRecord]) -> dict[str, Any]:
        return {"model": self.model_facts, "settings": asdict(self.plan), "machine": describe(self.device)}

    def sentences(self, results: Results) -> dict[str, Any]:
        return {}

    def measure_now(self, cells: Sequence[AnyCell], folder: Folder, progress: Progress, command: str) -> None:
        """Measure those of the cells that are not in the folder.

        Raises:
            Interrupted: Ctrl-C or SIGTERM.
        """
        self.wanted += [cell for cell in cells if cell not in self.wanted]
        if self.wanted:
            count = run(self, folder.directory, progress=progress, command=command)["cells"]
            if count["finished"] < count["planned"]:
                raise Interrupted(f"{count['finished']} of {count['planned']} cells are stored")

    # ------------------------------------------------------------ cells and numbers

    def cell(self, task: str, method: str, length: int, block: int) -> Cell:
        return Cell(task, method, length, self.plan.depth if self.tasks[task].takes_depth else None, block)

    def round(self, methods: Sequence[str], texts: int) -> list[AnyCell]:
        """What some methods, truncation and the unmodified model's running text need for the first so many documents."""
        found: list[AnyCell] = []
        for block in range(texts // PAIR):
            for method in dict.fromkeys((NONE, TRUNCATION, *methods)):
                tasks = self.plan.tasks if method in (*methods, TRUNCATION) else ()
                found += [self.cell(task, method, self.plan.target_length, block) for task in (self.running, *tasks)]
        return found

    def outcomes(self, task: str, method: str, texts: int) -> list[TextOutcome]:
        cells = (self.cell(task, method, self.plan.target_length, block) for block in range(texts // PAIR))
        return [outcome for cell in cells for outcome in self.done[cell].outcomes]

    def numbers(self, method: str, texts: int) -> dict[str, torch.Tensor]:
        """Of each text (texts,): "past" and "within", the method's loss on running text less that of truncation and of the
        unmodified model; the same for the answers of each task; and the net "gain"."""
        length, context = self.plan.target_length, self.trained_length

        def losses(name: str, task: str, number: Callable[[TextOutcome], float]) -> torch.Tensor:
            return torch.tensor([number(each) for each in self.outcomes(task, name, texts)], dtype=torch.float64)

        def less(baseline: str, task: str, number: Callable[[TextOutcome], float]) -> torch.Tensor:
            return losses(method, task, number) - losses(baseline, task, number)

        found = {"past": less(TRUNCATION, self.running, lambda each: past(each, length, context))}
        for task in self.plan.tasks:
            found[task] = less(TRUNCATION, task, lambda each: each.loss)
        gain = -torch.stack([*found.values()]).mean(0)
        if method == TRUNCATION:
            found["within"] = torch.zeros(texts, dtype=torch.float64)
        else:
            found["within"] = less(NONE, self.running, lambda each: _within(each, length, context))
        return {**found, "gain": gain - found["within"]}

    def ranked(self, methods: Sequence[str], texts: int) -> list[str]:
        """The best first; of equal ones the cheapest."""
        gains = {method: float(self.numbers(method, texts)["gain"].mean()) for method in methods}
        return sorted(
            methods, key=lambda method: (-gains[method], self.costs.get(method, -1))
        )  # truncation is cheapest

    def row(self, method: str, texts: int) -> dict[str, Any]:
        """Of the table."""
        numbers = self.numbers(method, texts)
        cells = [c for c in self.done if c.method == method and c.length == self.plan.target_length]
        cells = [cell for cell in cells if PAIR * cell.seed < texts]
        seconds, fed = (sum(getattr(self.done[cell], name) for cell in cells) for name in ("processor", "fed"))
        answers = {
            task: share([[float(each.exact)] for each in self.outcomes(task, method, texts)])
            | {"loss": fmean(each.loss for each in self.outcomes(task, method, texts))}
            for task in self.plan.tasks
        }
        intervals = {
            name: asdict(estimate(numbers[name][None], self.comparisons)) for name in ("past", "within", "gain")
        }
        return {"method": method, "texts": texts, **answers, **intervals, "ms_per_token": 1000 * seconds / fed}

    @property
    def comparisons(self) -> int:
        """How many candidates there are to be wrong about."""
        return len(self.plan.candidates)


def _within(outcome: TextOutcome, length: int, context: int) -> float:
    """The mean loss of running text within the context length."""
    return fmean(loss for loss in outcome.blocks[: BLOCKS * context // length] if loss is not None)


def decide(gains: Mapping[str, torch.Tensor], costs: Mapping[str, int], comparisons: int) -> tuple[str, str]:
    """The choice and why. gains: of each method (texts,). costs: the cheapest has the lowest.

    Chosen is the cheapest of the methods that are distinguishable from truncation and are not distinguishable from the best of
    these; of equally cheap ones the one with the highest mean.
    """
    found = {method: estimate(gain[None], comparisons) for method, gain in gains.items()}
    order = sorted(found, key=lambda method: (-found[method].mean, costs[method]))
    beating = [method for method in order if found[method].low > 0]
    texts = len(next(iter(gains.values())))
    if not beating:
        best = found[order[0]]
        more = "; with more minutes more documents are used" if best.high > 0 and texts < MOST_TEXTS else ""
        return TRUNCATE, (
            f"truncate: on {texts} documents no method is distinguishable from truncation for the better; the best, {order[0]}, has a "
            f"net gain of {_in_words(best)}{more}"
        )
    best_one = beating[0]
    tied = [m for m in beating if m == best_one or estimate((gains[best_one] - gains[m])[None], comparisons).low <= 0]
    choice = min(tied, key=lambda method: (costs[method], order.index(method)))
    others = [method for method in tied if method != choice]
    if choice != best_one:
        why = f"the cheapest of {len(tied)} methods that {texts} documents do not distinguish from the best, {best_one}"
    elif others:
        why = f"the best on {texts} documents, which do not distinguish it from {listed(others)}, and no dearer"
    else:
        why = f"the best on {texts} documents, distinguishable from every other"
    return choice, f"{choice}: {why}; its net gain is {_in_words(found[choice])}"


# ---------------------------------------------------------------- select


def select(
    model: Any,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    tokenizer: Any = None,
    text: str | None = None,
    program: str | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    candidates: Sequence[str] | None = None,
    directory: str | Path | None = None,
    plan: Plan | Mapping[str, Any] | str | Path | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> Selection:
    """Measure which method extends a model best, and apply it; see the module for what is measured.

    Args:
        model: a rotary causal language model. factor, target_length: as of `extend`.
        tokenizer: of the model.
        text: what the model is to read, at least target_length tokens; None: the language reference in Python.
        program: that is to run the model: "python" (posenc), "transformers", "vllm" or "llama.cpp". Methods that it cannot express
            are not tried.
        minutes: for which the checks of the tasks and the rounds are planned, 10 if None; measuring may take longer on a machine
            that becomes slower.
        seed: of the documents, 0 if None.
        candidates: methods to try, in this order; None: `posenc.lab.evals.config.EXTENSIONS`.
        directory: for the plan and what was measured: the same call goes on from there.
        plan: of an earlier call, or its file; in place of minutes, candidates, program, seed and lengths.

    Returns:
        The table, the choice, and the report of the extension. Under "truncate" the model is as it was loaded.

    Raises:
        InputError: a model without rotation, lengths, a program, minutes or a text that do not serve, before anything is measured.
        Interrupted: Ctrl-C or SIGTERM; what was measured is in the directory. The model is as before the call.
    """
    inner = unwrap(model)
    if has_learned_table(inner):
        raise InputError(
            f"{inner.config.model_type} has a learned table of positions",
            "name interpolate or hierarchical",
            method="auto",
        )
    structure, context = model_structure(inner), model_structure(inner).loaded_length
    if tokenizer is None:
        raise InputError("auto tokenizes documents", "pass the tokenizer that belongs to the model", tokenizer=None)
    check_asked(
        factor=factor, target_length=target_length, program=program, minutes=minutes, seed=seed, candidates=candidates, plan=plan
    )  # fmt: skip
    if plan is not None:
        fixed = Plan.read(plan)
        if fixed.context_length != context or target_length not in (None, fixed.target_length):
            raise InputError(
                f"is for {fixed.context_length} to {fixed.target_length} tokens, and this is a model of {context} tokens"
                + ("" if target_length is None else f" with target_length={target_length}"),
                argument="plan",
            )
        target = fixed.target_length
    else:
        fixed, minutes = None, MINUTES if minutes is None else minutes
        wanted = target_of(structure, factor, target_length)
        assert wanted is not None  # by check_asked
        target = wanted
    if not context < target <= MOST_TIMES * context:
        raise InputError(
            f"the model reads {context} tokens", f"give more, up to {MOST_TIMES * context} tokens", target_length=target
        )
    ids = torch.tensor(tokenizer(pydoc() if text is None else text, add_special_tokens=False, verbose=False).input_ids)
    if len(ids) < target:
        raise InputError(
            f"has {len(ids)} tokens with this tokenizer, and target_length={target} are used",
            "give a longer text",
            argument="text",
        )
    progress = progress or Progress()
    with _unextended(inner), scratch() if directory is None else nullcontext(Path(directory)) as folder:
        if fixed is None:
            asked = Plan(context, target, program or "python", seed or 0, float(minutes or 0))
            fixed = _planned(model, tokenizer, asked, candidates, ids, text, folder, progress, command)
        costs, skipped = _screened(model, fixed.candidates, target, fixed.program)
        if gone := [method for method in fixed.candidates if method not in costs]:
            raise InputError(f"{gone[0]}: {skipped[gone[0]]}", argument="plan")
        made_in = Folder(folder)
        made_in.write(PLAN, json.dumps(asdict(fixed), indent=1))
        progress.say(str(fixed))
        trial = _trial(model, tokenizer, fixed, costs, _source(made_in, text))
        found = _selection(trial, made_in, progress, command)
    extension = None if found.choice == TRUNCATE else extend(model, found.choice, target_length=target)
    return replace(found, extension=extension)


def check_asked(
    *,
    factor: float | None = None,
    target_length: int | None = None,
    program: str | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    candidates: Sequence[str] | None = None,
    plan: Plan | Mapping[str, Any] | str | Path | None = None,
) -> None:
    """The arguments of `select` that need no model.

    Raises:
        InputError: no length, a program, minutes or a seed that cannot be, or one of them beside a plan.
    """
    if plan is not None:
        given = {"minutes": minutes, "program": program, "seed": seed, "candidates": candidates, "factor": factor}
        for name, value in given.items():
            if value is not None:
                raise InputError("is part of the plan", "leave it out", argument=name, value=value)
        return
    if minutes is not None and not 0 < minutes < math.inf:
        raise InputError("must be above 0", minutes=minutes)
    check_word("program", program or "python", SERVING)
    check_integers(0, seed=seed)
    if factor is None and target_length is None:
        raise InputError("auto depends on the new length", "pass factor= or target_length=")


@contextmanager
def _unextended(inner: Any) -> Iterator[None]:
    """The model as it was loaded; if anything fails, an earlier extension is put back."""
    previous: ModelChange | None = record_of(inner)
    if previous is not None:
        previous.detach()
    try:
        yield
    except BaseException:
        if previous is not None:
            previous.attach()
        raise


def _planned(
    model: Any,
    tokenizer: Any,
    asked: Plan,
    candidates: Sequence[str] | None,
    ids: torch.Tensor,
    text: str | None,
    folder: Path,
    progress: Progress,
    command: str,
) -> Plan:
    """The plan in the folder, if it is that of the same arguments, or a new one. asked: the lengths, program, seed and minutes.
    ids: of the running text."""
    tried = tuple(dict.fromkeys((NONE, *(EXTENSIONS if candidates is None else candidates))))
    costs, skipped = _screened(model, tried, asked.target_length, asked.program)
    if len(costs) < 2:
        why = "; ".join(f"{method}: {each}" for method, each in skipped.items())
        raise InputError(f"{asked.program} can run none of them: {why}", argument="candidates")
    new = replace(asked, candidates=tuple(costs), rounds=((LEAST_TEXTS, len(costs)),), skipped=skipped)
    if (folder / PLAN).exists():
        with suppress(InputError):
            before = Plan.read(folder / PLAN)
            count = len(before.candidates)
            planned = {
                name: getattr(before, name) for name in ("tasks", "checked", "rounds", "seconds_per_token", "left_out")
            }
            if before == replace(new, candidates=new.candidates[:count], **planned):
                return before
        progress.say(
            f"the plan in {folder} is of other arguments; what was measured there is used where it is the same"
        )
    new = replace(new, seconds_per_token=_seconds_per_token(model, ids, asked.target_length))
    planned_rounds(replace(new, tasks=()))  # refuses what takes too long even so
    left_out = {}
    for task in RETRIEVAL:
        try:
            create(task).sample(tokenizer, asked.context_length, depth=asked.depth)
        except InputError as error:
            left_out[task] = str(error)
    new = checked_tasks(
        replace(new, tasks=tuple(task for task in RETRIEVAL if task not in left_out), left_out=left_out)
    )
    made_in = Folder(folder)
    alone = replace(new, candidates=(NONE,), rounds=((LEAST_TEXTS, 1),))
    trial = _trial(model, tokenizer, alone, costs, _source(made_in, text))
    left_out = new.left_out | _solvable(trial, made_in, progress, command)
    new = replace(new, tasks=tuple(task for task in RETRIEVAL if task not in left_out), left_out=left_out)
    passages = len(ids) // asked.target_length // PAIR * PAIR
    return planned_rounds(new, min(max(passages, LEAST_TEXTS), MOST_TEXTS))


def _source(folder: Folder, text: str | None) -> str | None:
    """The user's text as a file; None: the task's own."""
    return None if text is None else str(folder.write(TEXT, text))


def _screened(model: Any, methods: Sequence[str], target: int, program: str) -> tuple[dict[str, int], dict[str, str]]:
    """The cost of each method that the model takes and the program runs: 0 for the unmodified model, 1 for frequencies in a
    configuration, 2 for another attention, 3 for a position map. And why others are left out."""
    costs, skipped = {NONE: 0}, {}
    for method in (method for method in methods if method != NONE):
        stated = written_factor(method)
        try:
            report = extend(model, method, target_length=None if stated is not None else target)
            change = record_of(unwrap(model))
            assert change is not None  # which `extend` has made
            answer = expresses(change, program)
        except InputError as error:
            answer = ProgramAnswer(program, False, str(error))
        finally:
            restore(model)
        if answer.agrees:
            plain = isinstance(report, Extension) and report.plain
            costs[method] = 1 if plain else 2 if getattr(report, "map", None) is None else 3
        else:  # or it is not known
            skipped[method] = answer.why
    return costs, skipped


def _trial(model: Any, tokenizer: Any, plan: Plan, costs: Mapping[str, int], source: str | None) -> Trial:
    """The study of a plan. source: of the running text."""
    settings = EvaluationSettings(
        (*plan.tasks, RUNNING), plan.candidates, (plan.context_length, plan.target_length), (plan.depth,),
        samples=PAIR, generate=False, text=source,
    )  # fmt: skip
    name = str(getattr(unwrap(model).config, "name_or_path", ""))
    return Trial(model, tokenizer, settings, name, plan=plan, costs=costs)


def _solvable(trial: Trial, folder: Folder, progress: Progress, command: str) -> dict[str, str]:
    """Why tasks with an answer do not count: the unmodified model answers less than half within its context length."""
    cells = {task: trial.cell(task, NONE, trial.trained_length, 0) for task in trial.plan.tasks}
    trial.measure_now(list(cells.values()), folder, progress, command)
    left_out = {}
    for task, cell in cells.items():
        right = sum(each.exact for each in trial.done[cell].outcomes)
        if 2 * right < PAIR:
            left_out[task] = f"the unmodified model answers {right} of {PAIR} within its {trial.trained_length} tokens"
    return left_out


def _selection(trial: Trial, folder: Folder, progress: Progress, command: str) -> Selection:
    """Measure round after round, and choose."""
    alive, before = list(trial.plan.candidates), 0
    dropped: list[dict[str, Any]] = []
    for texts, methods in trial.plan.rounds:
        if before:
            order = trial.ranked(alive, before)
            dropped = [trial.row(method, before) for method in order[methods:]] + dropped
            alive = order[:methods]
            progress.say(f"after {before} documents: {listed(alive)} go on")
        trial.measure_now(trial.round(alive, texts), folder, progress, command)
        before = texts
    choice, why = decide({each: trial.numbers(each, before)["gain"] for each in alive}, trial.costs, trial.comparisons)
    rows = [trial.row(method, before) for method in trial.ranked((*alive, TRUNCATION), before)]
    seconds = sum(measured.seconds for measured in trial.done.values())
    machine = {**describe(trial.device), "dtype": trial.model_facts["dtype"]}
    found = Selection(trial.plan, choice, why, (*rows, *dropped), machine, round(seconds, 1))
    folder.write(SELECTION, json.dumps(found.to_dict(), indent=1))
    return found


# ---------------------------------------------------------------- words


def _in_words(each: Estimate) -> str:
    return f"{each.mean:+.3f} nats per token ({each.low:+.3f} to {each.high:+.3f})"


def _interval(each: Mapping[str, float]) -> str:
    if each["low"] == each["high"] == 0:
        return "0"
    return f"{each['mean']:+.3f} ({each['low']:+.3f} to {each['high']:+.3f})"


def _share(each: Mapping[str, float] | None) -> str:
    return (
        "–" if each is None else f"{each['hits']}/{each['n']} ({100 * each['low']:.0f} to {100 * each['high']:.0f} %)"
    )
