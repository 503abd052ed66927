# SPDX-License-Identifier: Apache-2.0
"""The main job: train every encoding on the same data, test past the training length or size, write what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from posenc.encoding import PerLayer
from posenc.errors import InputError, listed, unknown
from posenc.lab.engines import Engine, ProcessPool, Tick
from posenc.lab.experiment import Dataset, Execution, Experiment, Run
from posenc.lab.machine import describe, flushed_denormals
from posenc.lab.measure import check_record, measure, work
from posenc.lab.messages import located, users_line
from posenc.lab.records import BUDGET, RunRecord
from posenc.lab.results import Ranking, collect
from posenc.lab.study import Progress, Study, run
from posenc.lab.synthetic.tasks import TASKS
from posenc.lab.text import Settings
from posenc.lab.train import build
from posenc.spec import split_list

__all__ = ["EXPERIMENTS", "Comparison", "ComparisonStudy", "Progress", "compare"]

MOST_SEEDS = 1000
MOST_RATE = 100
RATES = ("learning_rate", "adamw_learning_rate", "position_learning_rate")

EXPERIMENTS: dict[str, type[Experiment]] = {"text": Settings, **TASKS}
"""The kinds of comparison by name; a task of your own is added here."""


def experiment(task: str) -> type[Experiment]:
    """The kind of comparison of a name.

    Raises:
        InputError: an unknown name.
    """
    if task not in EXPERIMENTS:
        raise unknown("task", task, EXPERIMENTS)
    return EXPERIMENTS[task]


@dataclass(frozen=True)
class Comparison:
    """A comparison to be made: encodings (names as `posenc.create` takes them), number of seeds, shared settings, and how
    models are computed. rates: of learning, over those of the settings; of several, each encoding is reported at its best.

    The variant without positions is always among the encodings.
    """

    encodings: tuple[str, ...]
    seeds: int
    settings: Experiment
    execution: Execution = field(default_factory=Execution)
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.rates and (len(set(self.rates)) < 2 or not all(0 < rate <= MOST_RATE for rate in self.rates)):
            raise InputError(
                f"a sweep has at least two different values above 0 and up to {MOST_RATE}", "write three, as in 0.5 1 2",
                rates=self.rates,
            )  # fmt: skip
        if self.encodings and "none" not in self.encodings:
            object.__setattr__(self, "encodings", ("none", *self.encodings))

    def runs(self, corpus: Dataset) -> list[Run]:
        """Every run, seed by seed, so that an interrupted comparison has complete seeds first."""
        return [
            Run.of(e, seed, settings, corpus.digest, self.execution)
            for seed in range(self.seeds)
            for e in self.encodings
            for settings in self.at_rates
        ]

    @cached_property
    def at_rates(self) -> dict[Experiment, float]:
        """The settings at each of the rates."""
        s = self.settings
        return {
            s.changed(**{name: rate * getattr(s, name) for name in RATES}) if rate != 1 else s: rate
            for rate in self.rates or (1.0,)
        }

    def at_best_rate(self, done: Mapping[Run, RunRecord]) -> dict[Run, RunRecord]:
        """Of the finished runs, those of each encoding at its best rate, by the mean at the condition of training over its seeds."""
        m, at = self.settings.criterion, str(self.settings.trained_at)
        scores: dict[str, dict[float, list[float]]] = {}
        for each, record in done.items():
            variant = record.variants[0]
            values = variant.extra[m.key][at] if m.higher_is_better else variant.paired[at]
            by_rate = scores.setdefault(each.encoding, {})
            by_rate.setdefault(self.at_rates[each.settings], []).append(m.worse * fmean(values))
        best = {name: min((fmean(values), rate) for rate, values in by.items())[1] for name, by in scores.items()}
        return {each: record for each, record in done.items() if self.at_rates[each.settings] == best[each.encoding]}

    def check(self, corpus: Dataset) -> None:
        """Refuse, before any training, what could not be run to its end.

        Raises:
            InputError: unknown encodings or ones that do not fit the model, no seed, data that do not serve.
        """
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise InputError(f"must lie between 1 and {MOST_SEEDS}", seeds=self.seeds)
        if not self.encodings:
            raise InputError("name at least one", argument="encodings")
        if twice := {e for e in self.encodings if self.encodings.count(e) > 1}:
            raise InputError(f"{', '.join(sorted(twice))} is named twice", argument="encodings")
        self.settings.check_data(corpus)
        for encoding in self.encodings:
            try:
                _try(Run.of(encoding, 0, self.settings, corpus.digest))
            except Exception as error:
                refusal = isinstance(error, ValueError | TypeError | RuntimeError | IndexError)
                if not refusal and users_line(error) is None:
                    raise
                raise InputError(located(error), encodings=encoding) from error


@torch.no_grad()
def _try(run: Run) -> None:
    """One pass of every variant over an example of every condition, so that nothing fails after an hour of training."""
    settings, model = run.settings, build(run)
    parts, layers = model.encoding, settings.num_layers
    if isinstance(parts, PerLayer) and len(list(parts)) > layers:
        raise InputError(
            f"names {len(list(parts))} layers, the model has {layers}", f"pass num_layers={len(list(parts))}"
        )
    for variant in settings.variants(run.encoding, model.encoding):
        for condition in settings.conditions:
            model.encoding = variant.at(condition)
            with torch.random.fork_rng(devices=[]):
                model(settings.example(condition))


class ComparisonStudy(Study[Run, RunRecord]):
    """Comparisons as a study, of which a cell is a run: seed by seed, and within a seed one comparison after the other. The results
    are those of a single comparison."""

    name = "compare"
    unit = "runs"

    def __init__(self, comparisons: Sequence[tuple[Comparison, Dataset]]) -> None:
        self.comparisons = comparisons
        self.corpora: dict[tuple[Experiment, str], Dataset] = {
            (settings, d.digest): d for c, d in comparisons for settings in c.at_rates
        }

    def check_record(self, cell: Run, record: RunRecord) -> None:
        check_record(cell.encoding, cell.settings, record)

    def check(self) -> None:
        for comparison, corpus in self.comparisons:
            comparison.check(corpus)

    def cells(self) -> list[Run]:
        runs = [run for comparison, corpus in self.comparisons for run in comparison.runs(corpus)]
        return sorted(runs, key=lambda run: run.seed)

    def record(self, cell: object) -> type[Any]:
        return RunRecord

    def facts(self, cell: Run) -> Mapping[str, Any]:
        return cell.facts()

    def work(self, job: Sequence[Run]) -> float:
        return sum(map(work, job))

    def describe(self, job: Sequence[Run]) -> str:
        run = job[0]
        rates = [c.at_rates[run.settings] for c, _ in self.comparisons if c.rates and run.settings in c.at_rates]
        return f"{run.encoding}, seed {run.seed}{f', rate {rates[0]:g}' if rates else ''}"

    def found(self, cell: Run, record: RunRecord) -> str:
        of = record.variants[0].extra.get(BUDGET, {})
        losses = ", ".join(f"{fmean(values):.3f} after {budget}" for budget, values in of.items())
        return f"{self.describe([cell]):<20} loss {losses} steps" if of else ""

    def measure(self, job: Sequence[Run], tick: Tick) -> dict[Run, RunRecord]:
        with flushed_denormals():
            (run,) = job
            return {run: measure(run, self.corpora[run.settings, run.data], partial(tick, what=self.describe(job)))}

    def results(self, done: Mapping[Run, RunRecord]) -> dict[str, Any]:
        return self.of_comparison(*self.comparisons[0], done)[0]

    def of_comparison(
        self, plan: Comparison, corpus: Dataset, done: Mapping[Run, RunRecord]
    ) -> tuple[dict[str, Any], Ranking]:
        """The results of one of the comparisons, from its runs, and what ranks them."""
        settings, done = plan.settings, plan.at_best_rate(done) if plan.rates else done
        ranking = Ranking(collect(done), settings, corpus, swept=bool(plan.rates))
        best = {run.encoding: plan.at_rates[run.settings] for run in done} if plan.rates else {}
        results = {
            **({"rates": {"tried": sorted(plan.rates), "best": best}} if best else {}),
            "task": settings.name,
            "settings": settings.to_dict() | {"encodings": list(plan.encodings)},
            "seeds": list(range(plan.seeds)),
            "data": corpus.facts(),
            "machine": describe(torch.device(plan.execution.device)) | plan.execution.facts(),
            "answer": [*ranking.answer(), *_of_rates(sorted(plan.rates), best)],
            **ranking.numbers(),
            "limits": ranking.limits(),
            "cells": {run.id: {"encoding": run.encoding, "seed": run.seed} for run in done},
        }
        return results, ranking


def _of_rates(tried: Sequence[float], best: Mapping[str, float]) -> list[str]:
    """What the sweep of learning rates found."""
    if not best:
        return []
    edges = [f"{name} ({rate:g})" for name, rate in best.items() if rate in (tried[0], tried[-1])]
    within = (
        "none is at an edge" if not edges else f"at an edge of the sweep, so perhaps better beyond it: {listed(edges)}"
    )
    return [
        f"Each encoding is at the best of {listed([f'{rate:g}' for rate in tried])} times the learning rates; {within}."
    ]


def compare(
    comparison: Comparison,
    corpus: Dataset,
    directory: str | Path,
    *,
    workers: int | None = None,
    engine: Engine | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run a comparison into a folder; runs that are there already are not trained again. Returns what results.json holds.

    engine: where runs are trained, see `posenc.lab.engines`; by default in `workers` processes of this machine, one a core.
    options: of `posenc.lab.study.run`, such as pages, what makes files of the results (`posenc.report.compare.files`).

    Raises:
        InputError: settings, data or a folder that do not serve, another run in the folder, or a loss that diverged.
        Interrupted: Ctrl-C before a single run had finished.
    """
    if engine is not None and workers is not None:
        raise InputError("is of the default engine", "give engine=ProcessPool(workers) alone", workers=workers)
    study = ComparisonStudy([(comparison, corpus)])
    engine = engine or (ProcessPool() if workers is None else ProcessPool(workers))
    return run(study, directory, engine=engine, **options)


def names(texts: Sequence[str]) -> tuple[str, ...]:
    """Encodings from the command line: separated by spaces or commas."""
    return tuple(name for text in texts for name in split_list(text))
