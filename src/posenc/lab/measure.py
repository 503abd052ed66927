# SPDX-License-Identifier: Apache-2.0
"""One cell of a comparison: a model trained and tested, here and now."""

import time
from collections.abc import Callable, Mapping

import torch

from posenc.lab.checkpoint import Checkpoints
from posenc.lab.config import Run
from posenc.lab.results import ArmScores, Cell
from posenc.lab.task import Corpus
from posenc.lab.tasks import task_of
from posenc.lab.train import Training, activation_bytes, diverged

TRAIN_COST = 3
"""A trained token costs about as much as this many tested ones."""


def work(run: Run) -> int:
    """The size of a run, in tested tokens."""
    s = run.settings
    arms = task_of(s).arms(run.encoding, run.make_encoding(), s)
    return TRAIN_COST * s.steps * s.batch_size * s.tokens + s.tested_tokens * len(arms)


def measure(
    run: Run,
    corpus: Corpus,
    on_progress: Callable[[int], None] = lambda work: None,
    checkpoints: Checkpoints | None = None,
) -> Cell:
    """Train and test one run, here and now. The training goes on from its checkpoint where `checkpoints` has one."""
    s, task = run.settings, task_of(run.settings)
    per_step = TRAIN_COST * s.batch_size * s.tokens
    training = Training(run, corpus.train)
    checkpoint = (checkpoints or Checkpoints("", 0)).of(training)
    on_progress(per_step * len(training.losses))
    while not training.finished:
        training.advance()
        checkpoint.keep_if_due()
        on_progress(per_step)
    model, losses, seconds = training.model.eval(), training.losses, checkpoint.seconds
    scored = []
    for arm in task.arms(run.encoding, model.encoding, s):
        started = time.perf_counter()
        with training.drawing():
            scores = task.evaluate(model, arm, corpus.test, s, on_progress)
        rate = s.tested_tokens / (time.perf_counter() - started)
        if not all(losses.isfinite().all() for losses in (*scores.paired.values(), scores.by_position)):
            raise diverged(run, f"when {arm.name} is tested")
        by_position = [_rounded(row) for row in scores.by_position]
        also = {name: _by_condition(values) for name, values in scores.also.items()}
        paired = _by_condition(scores.paired)
        scored.append(ArmScores(arm.name, arm.trained, paired, by_position, round(rate, 1), also))
    return Cell(
        run={"id": run.id, "encoding": run.encoding, "seed": run.seed},
        arms=scored,
        losses=[round(loss, 5) for loss in losses],
        parameters=sum(p.numel() for p in model.parameters()),
        position_parameters=sum(p.numel() for p in model.encoding.parameters()),
        training_seconds=round(seconds, 3),
        tokens_per_second=round(s.steps * s.batch_size * s.tokens / seconds, 1),
        memory_bytes=activation_bytes(model, corpus.train, s),
    )


def _by_condition(values: Mapping[int, torch.Tensor]) -> dict[str, list[float]]:
    return {str(condition): _rounded(value) for condition, value in values.items()}


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(v, 6) for v in values.tolist()]
