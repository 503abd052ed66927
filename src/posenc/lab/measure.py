# SPDX-License-Identifier: Apache-2.0
"""One cell of a comparison: a model trained and tested in this process."""

import time
from collections.abc import Callable, Mapping

import torch

from posenc.lab.checkpoint import Checkpoints
from posenc.lab.experiment import Dataset, Run, versions
from posenc.lab.parallel import executing
from posenc.lab.results import RunRecord, VariantScores
from posenc.lab.train import Training, activation_bytes, diverged

TRAIN_COST = 3
"""A trained token costs about as much as this many tested ones."""


def work(run: Run) -> int:
    """The size of a run, in tested tokens."""
    s = run.settings
    variants = s.variants(run.encoding, run.make_encoding())
    return TRAIN_COST * s.steps * s.batch_size * s.tokens + s.tested_tokens * len(variants)


def measure(
    run: Run,
    corpus: Dataset,
    on_progress: Callable[[int], None] = lambda work: None,
    checkpoints: Checkpoints | None = None,
) -> RunRecord:
    """Train and test one run, in this process. The training resumes from its checkpoint where `checkpoints` has one.

    Raises:
        InputError: this machine lacks the device, or a loss that is no longer finite.
    """
    with executing(run.execution):
        return _measure(run, corpus, on_progress, checkpoints or Checkpoints("", 0))


def _measure(run: Run, corpus: Dataset, on_progress: Callable[[int], None], checkpoints: Checkpoints) -> RunRecord:
    s = run.settings
    per_step = TRAIN_COST * s.batch_size * s.tokens
    training = Training(run, corpus.train)
    checkpoint = checkpoints.of(training)
    on_progress(per_step * len(training.losses))
    while not training.finished:
        training.advance()
        checkpoint.save_if_due()
        on_progress(per_step)
    model, losses, seconds = training.model.eval(), training.losses, checkpoint.seconds
    scored = []
    for variant in s.variants(run.encoding, model.encoding):
        started = time.perf_counter()
        with training.drawing():
            scores = s.evaluate(model, variant, corpus.test, on_progress)
        rate = s.tested_tokens / (time.perf_counter() - started)
        if not all(losses.isfinite().all() for losses in (*scores.paired.values(), scores.by_position)):
            raise diverged(run, f"when {variant.name} is tested")
        by_position = [_rounded(row) for row in scores.by_position]
        extra = {name: _by_condition(values) for name, values in scores.extra.items()}
        paired = _by_condition(scores.paired)
        scored.append(VariantScores(variant.name, variant.trained, paired, by_position, round(rate, 1), extra))
    return RunRecord(
        run={"id": run.id, "encoding": run.encoding, "seed": run.seed, "task": s.name, **versions()},
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
