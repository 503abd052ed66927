"""Results of posenc eval as their contract has them, with numbers drawn from a made-up model that loses the middle."""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import exp
from typing import Any

import torch

from posenc.lab.statistics import estimate, wilson

METHODS = ("none", "truncation", "ntk:factor=4", "rerope:window=256")
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
    found = [_task(name, methods, lengths, depths, samples) for name in tasks]
    return {
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
        "tasks": found,
        "ranking": [_ranked(method, found) for method in reversed(methods)],
        "longer": [],
        "cost": [
            {"method": m, "tokens_per_second": 1000.0 - 90 * i, "peak_bytes": 900 * 2**20 + i * 10**8,
             "cache_bytes_per_token": 23_040, "seconds": 60.0 + i}
            for i, m in enumerate(methods)
        ],
    }  # fmt: skip


def _task(name: str, methods: Sequence[str], lengths: Sequence[int], depths: Sequence[float], n: int) -> dict[str, Any]:
    running = name == "perplexity"
    deep = depths if name == "passkey" else (None,)
    drawn = {m: _method(name, m, lengths, deep, n, running) for m in methods}
    base = {found["length"]: found for found in drawn["none"]["by_length"]} if "none" in drawn else {}
    for method, found in drawn.items():
        for at in found["by_length"]:
            at["middle"] = _middle([cell for cell in found["cells"] if cell["length"] == at["length"]])
            at["against_none"] = None if method == "none" or not base else _difference(at, base[at["length"]])
    return {
        "task": name,
        "name": name,
        "summary": f"{name.replace('_', ' ').capitalize()}: something stands in a long text and is asked for.",
        "source": "Mohtashami and Jaggi 2023",
        "takes_depth": deep == depths,
        "generates": not running,
        "methods": list(drawn.values()),
    }


def _method(
    name: str, method: str, lengths: Sequence[int], depths: Sequence[Any], n: int, running: bool
) -> dict[str, Any]:
    draw = random.Random(f"{name} {method}")
    cells = []
    for length in lengths:
        for depth in depths:
            share = _skill(method, length, 0.5 if depth is None else depth)
            hits = [0.0 if running else float(draw.random() < share) for _ in range(n)]
            losses = [2.5 - 2.2 * share + 0.3 * draw.random() for _ in range(n)]
            place = None if depth is None else 12 + depth * (length - 40)
            cells.append({"length": length, "depth": depth, "position": place, **_numbers(hits, losses, running)})
    pooled = [{"length": n} | _pooled([c for c in cells if c["length"] == n], running) for n in lengths]
    curves = [{"length": length, "points": _points(method, length, draw)} for length in lengths] if running else []
    return {
        "method": method,
        "cells": [{key: value for key, value in cell.items() if key != "raw"} for cell in cells],
        "by_length": pooled,
        "by_position": curves,
        "seconds": 31.0,
        "tokens_per_second": 950.0,
        "peak_bytes": 10**9,
    }


def _skill(method: str, length: int, depth: float) -> float:
    past = length > TRAINED
    level = {"none": 0.0 if past else 0.9, "truncation": 0.95}.get(method, 0.85 if past else 0.88)
    if method == "truncation" and depth < 0.5:
        return 0.0
    return level * (1 - 1.6 * depth * (1 - depth) * min(length, 4096) / 4096)


def _numbers(hits: list[float], losses: list[float], running: bool) -> dict[str, Any]:
    return {
        "n": len(hits),
        "exact": _share(hits),
        "accuracy": _mean([0.5 + hit / 2 for hit in hits]),
        "score": None if running else _share(hits),
        "loss": _mean(losses),
        "raw": (hits, losses),
    }


def _pooled(cells: list[dict[str, Any]], running: bool) -> dict[str, Any]:
    hits = [hit for cell in cells for hit in cell["raw"][0]]
    losses = [loss for cell in cells for loss in cell["raw"][1]]
    return {key: value for key, value in _numbers(hits, losses, running).items() if key not in ("accuracy", "raw")}


def _share(hits: list[float]) -> dict[str, Any]:
    low, high = wilson(sum(hits), len(hits))
    return {"mean": sum(hits) / len(hits), "low": low, "high": high, "n": len(hits), "hits": int(sum(hits))}


def _mean(values: list[float]) -> dict[str, float]:
    return asdict(estimate(torch.tensor([values], dtype=torch.float64)))


def _middle(cells: list[dict[str, Any]]) -> dict[str, Any] | None:
    if len(cells) < 3:
        return None
    inner, ends = (
        sum(c["score"]["mean"] for c in part) / len(part) for part in (cells[1:-1], cells[:: len(cells) - 1])
    )
    return {
        "measure": "score",
        "mean": inner - ends,
        "error": 0.05,
        "low": inner - ends - 0.1,
        "high": inner - ends + 0.1,
    }


def _difference(one: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    def of(key: str) -> dict[str, float] | None:
        if one[key] is None:
            return None
        mean = one[key]["mean"] - base[key]["mean"]
        return {"mean": mean, "error": 0.05, "low": mean - 0.1, "high": mean + 0.1}

    return {key: of(key) for key in ("exact", "score", "loss")}


def _points(method: str, length: int, draw: random.Random) -> list[dict[str, float]]:
    points = []
    for position in range(32, length, max(length // 24, 1)):
        rise = 4 * (1 - exp(-(position - TRAINED) / 300)) if position > TRAINED and method == "none" else 0.0
        loss = 2.6 + 1.4 * exp(-position / 200) + rise + 0.2 * draw.random()
        points.append({"position": position, "loss": loss, "low": loss - 0.15, "high": loss + 0.15})
    return points


def _ranked(method: str, tasks: list[dict[str, Any]]) -> dict[str, Any]:
    rows = []
    for task in tasks:
        at = next(m for m in task["methods"] if m["method"] == method)["by_length"]
        measure = "score" if task["generates"] else "loss"
        if not at:
            continue
        against = at[-1]["against_none"]
        rows.append(
            {
                "task": task["task"],
                "measure": measure,
                "value": at[-1][measure],
                "against_none": against and against[measure],
                "verdict": "baseline" if method == "none" else _verdict(measure, against),
            }
        )
    counts = {what: sum(row["verdict"] == what for row in rows) for what in ("better", "worse")}
    return {"method": method, "tasks": rows, **counts}


def _verdict(measure: str, against: dict[str, Any] | None) -> str:
    found = against and against[measure]
    if not found or found["low"] <= 0 <= found["high"]:
        return "undecided"
    return "better" if (found["mean"] < 0) == (measure == "loss") else "worse"


def without(results: dict[str, Any], keep: Callable[[str, dict[str, Any]], bool]) -> dict[str, Any]:
    """An interrupted run: only the cells that `keep(method, cell)` wants, and nothing pooled where none is left."""
    for task in results["tasks"]:
        for method in task["methods"]:
            method["cells"] = [cell for cell in method["cells"] if keep(method["method"], cell)]
            left = {cell["length"] for cell in method["cells"]}
            method["by_length"] = [at for at in method["by_length"] if at["length"] in left]
            method["by_position"] = [at for at in method["by_position"] if at["length"] in left]
    return results | {"complete": False}
