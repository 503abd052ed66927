# SPDX-License-Identifier: Apache-2.0
"""Methods past the context length, side by side."""

from statistics import fmean

import pytest
import torch

from posenc.lab.evals.comparison import comparison, past
from posenc.lab.evals.config import Cell
from posenc.lab.evals.reader import TextOutcome
from posenc.lab.evals.results import Measured
from posenc.tasks import create

TRAINED, TEXTS = 128, 6
TASKS = {text: create(text) for text in ("perplexity", "facts")}
OFFSETS = {"none": 3.0, "truncation": 1.0, "near": 1.01, "far": 2.0}


def outcome(cell, index):
    """Running text: 9 nats within the context length, past it what the method and the text give."""
    noise = torch.Generator().manual_seed(100 * list(OFFSETS).index(cell.method) + index)
    loss = OFFSETS[cell.method] + index + 0.1 * float(torch.rand((), generator=noise))
    blocks = tuple([9.0] * 8 + [loss] * 8) if cell.task == "perplexity" else ()
    return TextOutcome(cell.length, None, loss, 0.5, int(cell.method == "truncation"), blocks=blocks)


@pytest.fixture(scope="module")
def done():
    cells = [
        Cell(task, method, length, depth, 0)
        for task, depths in (("perplexity", [None]), ("facts", [0.0, 1.0]))
        for method in OFFSETS
        for length in (64, 256)
        for depth in depths
    ]
    return {cell: Measured(tuple(outcome(cell, i) for i in range(TEXTS)), 9.0, 100.0, 5, 0.2) for cell in cells}


@pytest.mark.parametrize("length", [129, 130, 136, 137, 192, 2048])
def test_running_text_is_compared_past_the_context_length_whatever_the_length(length):
    text = TextOutcome(length, None, 5.0, 0.5, 0, blocks=tuple(range(16)))
    assert past(text, length, TRAINED) == fmean([b for b in range(16) if b * length >= 16 * TRAINED] or [15])


def test_methods_are_ordered_and_compared_with_truncated_input(done):
    (at,) = comparison(TASKS, done, TRAINED)  # 64 tokens are not past the context length
    assert (at["length"], at["times"]) == (256, 2.0)
    running, facts = at["tasks"]
    assert {row["method"] for row in running["rows"][:2]} == {"truncation", "near"}
    assert [row["method"] for row in running["rows"][2:]] == ["far", "none"]
    best, far = running["rows"][0], next(row for row in facts["rows"] if row["method"] == "far")
    assert 5 > fmean(best["documents"]) == pytest.approx(best["loss"]["mean"]), "past the context length alone"
    cells = {method: done[Cell("facts", method, 256, 0.0, 0)].outcomes for method in ("far", "truncation")}
    want = fmean(a.loss - b.loss for a, b in zip(*cells.values(), strict=True))
    assert far["against_truncation"]["mean"] == pytest.approx(want, abs=1e-6)
    assert far["against_truncation"]["low"] < want < far["against_truncation"]["high"]
    assert (far["exact"]["mean"], far["processor_ms_per_token"], far["peak_bytes"]) == (0.0, pytest.approx(2.0), 5)
    assert best["exact"] is None
    assert next(row for row in facts["rows"] if row["method"] == "truncation")["against_truncation"] is None


def test_a_method_that_has_not_read_all_texts_has_no_row_yet(done):
    part = {cell: measured for cell, measured in done.items() if (cell.method, cell.depth) != ("near", 1.0)}
    running, facts = comparison(TASKS, part, TRAINED)[0]["tasks"]
    assert [len(task["rows"]) for task in (running, facts)] == [4, 3]
    assert comparison(TASKS, {}, TRAINED) == []
