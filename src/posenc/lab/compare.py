# SPDX-License-Identifier: Apache-2.0
"""The main job: train every encoding on the same data, test past the training length or size, write what was measured."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from posenc.encoding import PerLayer
from posenc.errors import InputError, counted, listed, unknown
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
from posenc.lab.train import RATES, build
from posenc.spec import split_list

__all__ = ["EXPERIMENTS", "Comparison", "ComparisonStudy", "Progress", "compare"]

MOST_SEEDS = 1000
MOST_RATE = 100

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
        given = self.rates if isinstance(self.rates, tuple | list) else (self.rates,)
        numbers = [rate for rate in given if isinstance(rate, int | float) and 1 / MOST_RATE <= rate <= MOST_RATE]
        if len(given) == 1 or len({*numbers}) < len(given):
            needed = f"a sweep has at least two different values from {1 / MOST_RATE} to {MOST_RATE}, each once"
            raise InputError(needed, "write three, as in 0.5 1 2", rates=self.rates)
        first = ("none",) if self.encodings and "none" not in self.encodings else ()
        object.__setattr__(self, "encodings", (*first, *self.encodings))

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

    def swept(self, done: Mapping[Run, RunRecord]) -> dict[str, "Sweep"]:
        """By encoding, what the finished runs say of its rates, by the mean at the condition of training."""
        m, at = self.settings.criterion, str(self.settings.trained_at)
        scores: dict[str, dict[float, dict[int, float]]] = {}
        for each, record in done.items():
            variant = record.variants[0]
            values = variant.extra[m.key][at] if m.higher_is_better else variant.paired[at]
            by_rate = scores.setdefault(each.encoding, {})
            by_rate.setdefault(self.at_rates[each.settings], {})[each.seed] = fmean(values)
        found = {}
        for name, by in scores.items():
            shared = set.intersection(*map(set, by.values())) or max(map(set, by.values()), key=len)
            means = {rate: fmean(of[seed] for seed in shared) for rate, of in by.items() if shared <= of.keys()}
            order = sorted(means, key=lambda rate: (m.worse * means[rate], abs(math.log(rate)), rate))
            found[name] = Sweep({rate: means[rate] for rate in order}, len(shared))
        return found

    def of_rates(self, swept: Mapping[str, "Sweep"]) -> list[str]:
        """What a sweep found, in words."""
        if not swept:
            return []
        edges = [f"{name} ({of.best:g})" for name, of in swept.items() if of.at_edge]
        within = f"; at an edge, so perhaps better beyond it: {listed(edges)}" if edges else "; none is at an edge"
        if all((len(of.scores), of.seeds) == (len(self.rates), self.seeds) for of in swept.values()):
            return [f"Each encoding is at the best of {_rates(self.rates)} times the learning rates{within}."]
        ran = [f"{name} of {_rates(of.scores)} ({counted(of.seeds, 'seed')})" for name, of in swept.items()]
        more = within if edges or all(len(of.scores) > 1 for of in swept.values()) else ""
        return [
            f"Not all rates have run. Each encoding is at the best of those with the same seeds: {listed(ran)}{more}."
        ]

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
        why = f"names {len(list(parts))} layers, the model has {layers}"
        raise InputError(why, f"pass num_layers={len(list(parts))}")
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
        (run,) = job
        given = run, self.corpora[run.settings, run.data], partial(tick, what=self.describe(job))
        with flushed_denormals():  # inside, settings with a denormal number are not found
            return {run: measure(*given)}

    def results(self, done: Mapping[Run, RunRecord]) -> dict[str, Any]:
        return self.of_comparison(*self.comparisons[0], done)[0]

    def of_comparison(
        self, plan: Comparison, corpus: Dataset, done: Mapping[Run, RunRecord]
    ) -> tuple[dict[str, Any], Ranking]:
        """The results of one of the comparisons, from its runs, and what ranks them."""
        settings, swept = plan.settings, plan.swept(done) if plan.rates else {}
        if swept:
            done = {
                run: record for run, record in done.items() if plan.at_rates[run.settings] == swept[run.encoding].best
            }
        ranking = Ranking(collect(done), settings, corpus, swept=bool(swept))
        tried = {name: {str(float(r)): of.scores[r] for r in sorted(of.scores)} for name, of in swept.items()}
        best, edge = {name: of.best for name, of in swept.items()}, [name for name, of in swept.items() if of.at_edge]
        rates = {"measure": settings.criterion.key, "tried": tried, "best": best, "edge": edge}
        results = {
            **({"rates": rates} if swept else {}),
            "task": settings.name,
            "settings": settings.to_dict() | {"encodings": list(plan.encodings)},
            "seeds": sorted({run.seed for run in done}),
            "data": corpus.facts(),
            "machine": describe(torch.device(plan.execution.device)) | plan.execution.facts(),
            "answer": [*ranking.answer(), *plan.of_rates(swept)],
            **ranking.numbers(),
            "limits": ranking.limits(),
            "cells": {run.id: {"encoding": run.encoding, "seed": run.seed} for run in done},
        }
        return results, ranking


@dataclass(frozen=True)
class Sweep:
    """What an encoding scores at learning rates, the best first, in the mean of as many seeds, which all of these have: those of
    the rate with most seeds, where no seed has all. Of equal ones, the nearest to 1 is first."""

    scores: Mapping[float, float]
    seeds: int

    @property
    def best(self) -> float:
        return next(iter(self.scores))

    @property
    def at_edge(self) -> bool:
        """Whether the best of several is the lowest or highest, and no other is as good."""
        ends, values = (min(self.scores), max(self.scores)), [*self.scores.values()]
        return len(values) > 1 and self.best in ends and values.count(values[0]) == 1


def _rates(rates: Iterable[float]) -> str:
    return listed([f"{rate:g}" for rate in sorted(rates)])


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
