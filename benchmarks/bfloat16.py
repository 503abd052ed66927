# SPDX-License-Identifier: Apache-2.0
"""Time attention in bfloat16 against PyTorch's SDPA with a dense bias and against the formula; write benchmarks/bfloat16.json and .md.

python benchmarks/bfloat16.py [--rounds 9]
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import posenc
from posenc.lab.machine import cpu, keep_freed_memory

HEADS, HEAD_DIM, CLIP, WARMUP = 8, 64, 16, 3
TOKENS = 512, 2048
NAMES = "none", "rope", "alibi", "t5", "kerple", "sandwich", "tisa", "shaw"
COLUMNS = {"posenc": "posenc", "sdpa": "SDPA, dense bias", "eager": "eager"}


def attends(name: str, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Causal attention in three ways; masks and a bias of the distance are made before, as layers share them."""
    n = q.shape[2]
    torch.manual_seed(1)  # of the encoding's parameters
    options = {"clip": CLIP} if name == "shaw" else {}
    encoding = posenc.create(name, head_dim=HEAD_DIM, num_heads=HEADS, **options)
    positions = posenc.Positions.arange(n, causal=True)
    here, scale = encoding.at(positions), encoding.scale(HEAD_DIM)
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    mask = torch.zeros(n, n).masked_fill(future, -math.inf)[None, None].to(q.dtype)
    if name not in ("none", "rope", "shaw"):
        bias = encoding.bias(q.float(), k.float(), positions)
        assert isinstance(bias, posenc.bias.Score)
        mask = bias.dense(q.device).expand(1, HEADS, n, n).masked_fill(future, -math.inf).to(q.dtype)
    ways = {"posenc": lambda: here.attention(q, k, v)}

    def placed() -> tuple[Tensor, Tensor]:
        return encoding.rotate(q, k, positions) if name == "rope" else (q, k)

    def eager() -> Tensor:
        query, key = placed()
        weights = (query @ key.mT * scale + mask).softmax(-1, dtype=torch.float32).to(v.dtype)
        return weights @ v

    def shaw() -> Tensor:
        tables = [table.to(q.dtype) for table in encoding.parameters()]
        distance = torch.arange(n)[:, None] - torch.arange(n)
        index = (distance.clamp(-CLIP, CLIP) + CLIP).expand(1, HEADS, -1, -1)
        scores = (q @ k.mT + (q @ tables[0].mT).gather(-1, index)) * scale + mask
        weights = scores.softmax(-1, dtype=torch.float32).to(v.dtype)
        binned = weights.new_zeros(1, HEADS, n, 2 * CLIP + 1).scatter_add_(-1, index, weights)
        return weights @ v + binned @ tables[1]

    if name != "shaw":
        given: dict[str, Any] = {"is_causal": True} if name in ("none", "rope") else {"attn_mask": mask}
        ways["sdpa"] = lambda: scaled_dot_product_attention(*placed(), v, scale=scale, **given)
    return ways | {"eager": shaw if name == "shaw" else eager}


def measured(name: str, n: int, rounds: int) -> dict[str, float]:
    """Milliseconds of SDPA without positions, each way's time over it, and its largest error over the largest output."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, n, HEADS, HEAD_DIM).bfloat16().transpose(1, 2) for _ in range(3))
    ways = {"plain": lambda: scaled_dot_product_attention(q, k, v, is_causal=True)} | attends(name, q, k, v)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(WARMUP + rounds):
        for way, call in ways.items():
            start = time.process_time()
            call()
            if turn >= WARMUP:
                times[way].append(time.process_time() - start)
    medians = {way: statistics.median(spent) for way, spent in times.items()}
    plain = medians.pop("plain")
    exact = attends(name, q.double(), k.double(), v.double())["posenc"]()
    errors = {way: float((ways[way]() - exact).abs().max() / exact.abs().max()) for way in medians}
    return (
        {"plain_ms": plain * 1e3}
        | {way: spent / plain for way, spent in medians.items()}
        | {f"{way}_error": error for way, error in errors.items()}
    )


def table(results: Mapping[str, Mapping[str, float]], ending: str, form: str) -> list[str]:
    """Rows by encoding."""
    lines = ["| | " + " | ".join(COLUMNS.values()) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    for name, row in results.items():
        cells = [format(row[way + ending], form) if way + ending in row else "" for way in COLUMNS]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    keep_freed_memory()
    with torch.no_grad():
        parts = {str(n): {name: measured(name, n, rounds) for name in NAMES} for n in TOKENS}
    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    instructions = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    results = {
        "date": f"{date.today()}", "processor": cpu(), "instructions": instructions, "torch": torch.__version__, "parts": parts,
    }  # fmt: skip
    here = Path(__file__).parent
    (here / "bfloat16.json").write_text(json.dumps(results, indent=1) + "\n")
    lines = [
        "# bfloat16 on a processor with instructions for it",
        "",
        f"`python benchmarks/bfloat16.py`: causal attention, batch 1, {HEADS} heads of {HEAD_DIM}, forward, one thread, {results['processor']} "
        f"({', '.join(instructions)}), torch {results['torch']}, {results['date']}. *Eager* is the formula on all pairs, with a softmax in "
        "float32, as transformers computes it; a bias of the distance is made before for SDPA and eager. Blank: SDPA takes no such term.",
    ]  # fmt: skip
    for n, part in parts.items():
        plain = statistics.median(row["plain_ms"] for row in part.values())
        lines += [
            "",
            f"## {n} tokens",
            "",
            f"Processor time over SDPA without positions ({plain:.0f} ms), median of {rounds} rounds:",
            "",
        ]
        lines += [*table(part, "", ".2f"), "", "Largest error over the largest output, against float64:", ""]
        lines += table(part, "_error", ".4f")
    (here / "bfloat16.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
