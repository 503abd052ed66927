"""Results of posenc eval as their contract has them, with numbers drawn from a made-up model that loses the middle."""

import random
from collections.abc import Callable, Sequence
from itertools import product
from math import exp
from types import SimpleNamespace
from typing import Any

from posenc.lab.evals.config import TRUNCATION, Cell
from posenc.lab.evals.reader import BLOCKS, TextOutcome
from posenc.lab.evals.results import Measured, numbers
from posenc.tasks import create

METHODS = ("none", TRUNCATION, "ntk:factor=4", "rerope:window=256")
LENGTHS = (512, 2048, 4096)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
TRAINED = 2048


def results(
    methods: Sequence[str] = METHODS,
    lengths: Sequence[int] = LENGTHS,
    depths: Sequence[float] = DEPTHS,
    tasks: Sequence[str] = ("passkey", "facts", "perplexity"),
    samples: int = 20,
) -> dict[str, Any]:
    """A finished run of these methods."""
    made, done = {name: create(name) for name in tasks}, {}
    for name, method, length in product(tasks, methods, lengths):
        for depth in depths if made[name].takes_depth else (None,):
            if method != TRUNCATION or length > TRAINED:
                cell = Cell(name, method, length, depth, 0)
                drawn = tuple(_outcome(cell, index) for index in range(samples))
                done[cell] = Measured(drawn, seconds=2.0, fed=2000.0, peak_bytes=900 * 2**20, processor=1.5)
    settings = SimpleNamespace(methods=[name for name in methods if name != TRUNCATION], lengths=lengths)
    found = numbers(settings, made, done, TRAINED)
    for row in found["cost"]:
        row["cache_bytes_per_token"], row["cache_bytes_of_windows"] = 23_040, 0
    return found | {
        "schema": 1,
        "kind": "eval",
        "complete": True,
        "cells": {"planned": 60, "finished": 60, "kept_from_before": 4},
        "created": "2026-11-21T21:30:00+00:00",
        "seconds": 254.0,
        "command": "posenc eval demo --methods none,ntk:factor=4",
        "model": {
            "name": "demo", "model_type": "llama", "parameters": 134_515_008, "trained_length": TRAINED,
            "dtype": "bfloat16", "precision": "bfloat16, in which this machine is not much slower than in float32", "device": "cpu", "layers": 30, "heads": 9, "kv_heads": 3, "head_dim": 64,
            "rope_theta": 100_000.0,
        },
        "settings": {
            "preset": "quick", "tasks": list(tasks), "methods": list(methods), "lengths": list(lengths),
            "depths": list(depths), "samples": samples, "seeds": 1, "generate": True, "batch_size": 4,
            "text": "the language reference of Python",
        },
        "machine": {
            "cpu": "a CPU", "cores": 2, "system": "Linux x86_64", "python": "3.12.1", "torch": "2.13.0",
            "posenc": "0.1.0", "instruction_set": "AVX512",
        },
        "answer": ["At 4096 tokens ntk:factor=4 finds most.", "In the middle every method finds less than at the ends."],
        "limits": ["One model and one seed.", "Twenty samples a cell leave intervals of about 20 points."],
        "longer": [],
    }  # fmt: skip


def _outcome(cell: Cell, index: int) -> TextOutcome:
    draw, running = random.Random(f"{cell} {index}"), cell.task == "perplexity"
    share = _skill(cell.method, cell.length, 0.5 if cell.depth is None else cell.depth)
    loss, right = 2.5 - 2.2 * share + 0.3 * draw.random(), int(draw.random() < share and not running)
    if running:
        return TextOutcome(cell.length, None, loss, 0.5, 0, blocks=tuple(_blocks(cell, draw)))
    needle = None if cell.depth is None else 12 + cell.depth * (cell.length - 40)
    return TextOutcome(cell.length, needle, loss, 0.5 + right / 2, right, "4821", float(right))


def _skill(method: str, length: int, depth: float) -> float:
    past = length > TRAINED
    level = {"none": 0.0 if past else 0.9, TRUNCATION: 0.95}.get(method, 0.85 if past else 0.88)
    if method == TRUNCATION and depth < 0.5:
        return 0.0
    return level * (1 - 1.6 * depth * (1 - depth) * min(length, 4096) / 4096)


def _blocks(cell: Cell, draw: random.Random) -> list[float]:
    """Losses that fall with what was read, and rise past the training length."""
    found = []
    for position in ((block + 0.5) * cell.length / BLOCKS for block in range(BLOCKS)):
        rise = 4 * (1 - exp(-(position - TRAINED) / 300)) if position > TRAINED and cell.method == "none" else 0.0
        found.append(2.6 + 1.4 * exp(-position / 200) + rise + 0.2 * draw.random())
    return found


def without(results: dict[str, Any], keep: Callable[[str, dict[str, Any]], bool]) -> dict[str, Any]:
    """An interrupted run: only the cells that `keep(method, cell)` wants, and nothing pooled where none is left."""
    for task in results["tasks"]:
        for method in task["methods"]:
            method["cells"] = [cell for cell in method["cells"] if keep(method["method"], cell)]
            left = {cell["length"] for cell in method["cells"]}
            method["by_length"] = [at for at in method["by_length"] if at["length"] in left]
            method["by_position"] = [at for at in method["by_position"] if at["length"] in left]
    return results | {"complete": False}
