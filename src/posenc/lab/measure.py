# SPDX-License-Identifier: Apache-2.0
"""One cell of a comparison: a model trained and tested in this process."""

import copy
import time
from collections.abc import Callable, Mapping
from functools import cache

import torch

from posenc.lab import budgets
from posenc.lab.experiment import Dataset, Experiment, Run, executing
from posenc.lab.records import BUDGET, LOSS, RunRecord, VariantScores
from posenc.lab.train import Training, activation_bytes, diverged

TRAIN_COST = 3
"""A trained token costs about as much as this many tested ones."""


def work(run: Run) -> int:
    """The size of a run, in tested tokens."""
    s = run.settings
    return TRAIN_COST * _steps(s) * s.batch_size * s.tokens + s.tested_tokens * len(variants_of(run.encoding, s))


def _steps(settings: Experiment) -> int:
    """All steps of one training, with those of its branches."""
    return budgets.trained_steps(settings.steps) if settings.budgets else settings.steps


@cache
def variants_of(encoding: str, settings: Experiment) -> tuple[str, ...]:
    """The names of the variants of its runs."""
    with torch.random.fork_rng(devices=[]):
        return tuple(each.name for each in settings.variants(encoding, settings.make_encoding(encoding)))


def check_record(encoding: str, settings: Experiment, record: RunRecord) -> None:
    """Raises:
    ValueError: a stored record is not one that a run of the encoding could have.
    """
    measured = {LOSS: settings.conditions, **settings.measured}
    record.check(measured, settings.examples, settings.steps)  # before an encoding is made of the settings
    names = variants_of(encoding, settings)
    if tuple(variant.name for variant in record.variants) != names:
        raise ValueError(f"has other variants than {', '.join(names)}")


def measure(run: Run, corpus: Dataset, on_progress: Callable[[int], None] = lambda work: None) -> RunRecord:
    """Train and test one run, in this process.

    Raises:
        InputError: this machine lacks the device, or a loss that is no longer finite.
    """
    s, scored = run.settings, []
    per_step = TRAIN_COST * s.batch_size * s.tokens
    with executing(run.execution):
        training, started = Training(run, corpus.train), time.perf_counter()
        by_budget: dict[int, torch.Tensor] = {}
        testing = 0.0
        for budget in s.budgets or (s.steps,):
            while training.steps < (budgets.cooldown_start(budget) if s.budgets else budget):
                training.advance()
                on_progress(per_step)
            branch = training
            if s.budgets:
                branch = _cooled(training, budget, lambda: on_progress(per_step))
                begun = time.perf_counter()
                by_budget[budget] = _tested(branch, corpus)
                testing += time.perf_counter() - begun
        training, losses = branch, branch.losses
        model, seconds = training.model.eval(), time.perf_counter() - started - testing
        for variant in s.variants(run.encoding, model.encoding):
            started = time.perf_counter()
            with training.drawing():
                scores = s.evaluate(model, variant, corpus.test, on_progress)
            rate = s.tested_tokens / (time.perf_counter() - started)
            if not all(losses.isfinite().all() for losses in scores.paired.values()):
                raise diverged(run, f"when {variant.name} is tested")
            more = {BUDGET: by_budget} if by_budget and variant.trained else {}
            extra = {name: _by_condition(values) for name, values in {**scores.extra, **more}.items()}
            paired = _by_condition(scores.paired)
            scored.append(VariantScores(variant.name, variant.trained, paired, round(rate, 1), extra))
        memory = activation_bytes(model, corpus.train, s)
    return RunRecord(
        variants=scored,
        losses=[round(loss, 5) for loss in losses],
        parameters=sum(p.numel() for p in model.parameters()),
        position_parameters=sum(p.numel() for p in model.encoding.parameters()),
        training_seconds=round(seconds, 3),
        tokens_per_second=round(_steps(s) * s.batch_size * s.tokens / seconds, 1),
        memory_bytes=memory,
    )


def _cooled(training: Training, budget: int, on_step: Callable[[], None]) -> Training:
    """A copy of the training that has cooled down to the budget."""
    branch = copy.deepcopy(training, {id(shared): shared for shared in (training.part, training.run)})
    while branch.steps < budget:
        branch.advance(budgets.rate(branch.steps, budget))
        on_step()
    return branch


def _tested(training: Training, corpus: Dataset) -> torch.Tensor:
    """The loss of each held-out example at the condition of training."""
    s = training.run.settings
    with training.drawing():
        variant = s.variants(training.run.encoding, training.model.eval().encoding)[0]
        losses = s.evaluate(training.model, variant, corpus.test, conditions=(s.trained_at,)).paired[s.trained_at]
    if not losses.isfinite().all():
        raise diverged(training.run, f"after {training.steps} steps")
    return losses


def _by_condition(values: Mapping[int, torch.Tensor]) -> dict[str, list[float]]:
    return {str(condition): [round(v, 6) for v in value.tolist()] for condition, value in values.items()}
