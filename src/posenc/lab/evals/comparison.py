# SPDX-License-Identifier: Apache-2.0
"""Every method past the context length, side by side: the "longer" part of results.json.

The loss is compared, which differs where all answers are right or none is. Running text is compared by its blocks past the
context length, at least the last. All methods read the same documents, and differences are paired.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import ceil
from statistics import fmean
from typing import Any

import torch

from posenc.lab.evals.config import TRUNCATION, Cell
from posenc.lab.evals.reader import BLOCKS, TextOutcome
from posenc.lab.evals.results import Measured, cost, share
from posenc.lab.statistics import estimate
from posenc.tasks import Task


def comparison(tasks: Mapping[str, Task], done: Mapping[Cell, Measured], trained_length: int) -> list[dict[str, Any]]:
    """For each length past the context length, and for each task that was measured there, a row for each method, the best
    first: its loss, the share of right answers, the difference to TRUNCATION, and what it costs.

    The intervals of the differences hold together, for all methods of a task and length. Methods that have not read all documents
    yet have no row.
    """
    found = []
    for length in sorted({cell.length for cell in done if cell.length > trained_length}):
        of_tasks = []
        for text, task in tasks.items():
            cells: dict[str, list[tuple[Cell, Measured]]] = {}
            for cell, measured in done.items():
                if (cell.task, cell.length) == (text, length):
                    cells.setdefault(cell.method, []).append((cell, measured))
            most = max(map(len, cells.values()), default=0)
            of_methods = {method: measured for method, measured in cells.items() if len(measured) == most}
            if of_methods:
                of_tasks.append({"task": text, "rows": _rows(task, of_methods, trained_length)})
        found.append({"length": length, "times": length / trained_length, "tasks": of_tasks})
    return found


def _rows(task: Task, cells: Mapping[str, Sequence[tuple[Cell, Measured]]], trained: int) -> list[dict[str, Any]]:
    losses = {
        method: torch.tensor([fmean(unit) for unit in _by_text(of, lambda o, length: past(o, length, trained))])
        for method, of in cells.items()
    }
    truncation = losses.get(TRUNCATION)
    rows = []
    for method, values in sorted(losses.items(), key=lambda item: float(item[1].mean())):
        against = None
        if truncation is not None and method != TRUNCATION:
            against = asdict(estimate((values - truncation)[None], len(losses) - 1))
        rows.append(
            {
                "method": method,
                "loss": asdict(estimate(values[None])),
                "exact": share(_by_text(cells[method], lambda o, _: float(o.exact))) if task.new_tokens else None,
                "against_truncation": against,
                "documents": values.tolist(),
                **cost([measured for _, measured in cells[method]]),
            }
        )
    return rows


def _by_text(cells: Sequence[tuple[Cell, Measured]], number: Callable[[TextOutcome, int], float]) -> list[list[float]]:
    """For each text a number at every depth; number: from an outcome and the length."""
    texts: dict[tuple[int, int], list[float]] = {}
    for cell, measured in cells:
        for index, outcome in enumerate(measured.outcomes):
            texts.setdefault((cell.seed, index), []).append(number(outcome, cell.length))
    return [texts[key] for key in sorted(texts)]


def past(outcome: TextOutcome, length: int, trained_length: int) -> float:
    """The mean loss past the context length, of running text; else the loss of the answer."""
    first = min(ceil(BLOCKS * trained_length / length), BLOCKS - 1)  # of a slightly longer text, the last block alone
    losses = [loss for loss in outcome.blocks[first:] if loss is not None]
    return fmean(losses) if losses else outcome.loss
