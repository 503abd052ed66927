"""Attention with relative positions on one GPU: forward, and forward with backward, compared with plain SDPA in one run.

    python benchmarks/attention_gpu.py --out attention_gpu.json     everything
    python benchmarks/attention_gpu.py --encodings t5 --lengths 8192 --tune
    TRITON_INTERPRET=1 python benchmarks/attention_gpu.py --dry-run     no GPU: the checks alone, on tiny shapes

Candidates: SDPA without any bias; SDPA with a dense bias; FlexAttention; posenc's Triton kernels. Outputs and gradients
are checked before anything is timed. Times are CUDA events around a complete call, the bias or the products with the table
included; candidates run in shuffled rounds, ratios are taken within a round, and the median over rounds is shown. Memory is the peak above the inputs during a call.
"""

import argparse
import itertools
import json
import platform
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from posenc import Encoding, Positions, attention, create
from posenc.errors import InputError

ENCODINGS = {
    "t5": ("t5", False),
    "alibi": ("alibi", True),
    "shaw": ("shaw:clip=64:terms=keys", False),
    "transformer_xl": ("transformer_xl:clamp_len=1024", True),
}
"""Name -> the text for `create`, and whether attention is causal."""
BACKENDS = ("sdpa", "flex", "triton")
CHECKED_ROWS = 64
"""The last queries of a long sequence, whose output is compared with the reference's."""
TOLERANCE = 0.03
"""Of the largest absolute value: bfloat16 inputs against float32 arithmetic."""
Call = Callable[[], torch.Tensor]


class Case:
    """One encoding at one shape. training: whether gradients of q, k, v and of the tables are taken as well."""

    def __init__(self, name: str, batch: int, heads: int, width: int, length: int, training: bool, device: str) -> None:
        spec, self.causal = ENCODINGS[name]
        torch.manual_seed(0)
        encoding = create(spec, dim=heads * width, num_heads=heads, head_dim=width, num_layers=1, causal=self.causal)
        for parameter in encoding.parameters():
            torch.nn.init.normal_(parameter, std=0.5 if name == "t5" else 0.05)
        self.encoding: Encoding = encoding.to(device).requires_grad_(training)
        dtype = torch.bfloat16
        self.inputs = [torch.randn(batch, heads, length, width, device=device, dtype=dtype) for _ in range(3)]
        self.weights = torch.randn_like(self.inputs[0])
        for x in self.inputs:
            x.requires_grad_(training)
        self.training = training
        self.positions = Positions.arange(length, causal=self.causal, device=device)
        self.dense_bytes = heads * length * length * 4

    def learned(self) -> list[torch.Tensor]:
        return [*self.inputs, *self.encoding.parameters()] if self.training else []

    def call(self, backend: str) -> Call:
        """The work that is timed: backend "plain" is SDPA without the encoding."""

        def run() -> torch.Tensor:
            encoding = None if backend == "plain" else self.encoding
            name = "sdpa" if backend == "plain" else backend
            with torch.set_grad_enabled(self.training):
                out = attention(*self.inputs, encoding, self.positions, backend=name)
                if self.training:
                    wanted = self.inputs if encoding is None else self.learned()
                    torch.autograd.grad(out, wanted, self.weights)
            return out

        return run

    def check(self, backend: str) -> None:
        """The last rows of the output against the reference's.

        Raises:
            AssertionError: they differ by more than rounding.
        """
        q, k, v = (x.detach().float() for x in self.inputs)
        rows = min(CHECKED_ROWS, q.shape[2])
        tail = Positions.arange(rows, q.shape[2] - rows, causal=self.causal, device=q.device)
        with torch.no_grad():
            want = attention(q[:, :, -rows:], k, v, self.encoding, tail, backend="reference")
            found = attention(*self.inputs, self.encoding, self.positions, backend=backend)[:, :, -rows:]
        _assert_close(found, want, f"{backend}'s output")

    def check_gradients(self, backend: str) -> None:
        """All gradients against the reference's; for short sequences."""
        grads = []
        for name in (backend, "reference"):
            out = attention(*self.inputs, self.encoding, self.positions, backend=name)
            grads.append(torch.autograd.grad(out, self.learned(), self.weights))
        for number, (found, want) in enumerate(zip(*grads, strict=True)):
            _assert_close(found, want, f"{backend}'s gradient {number}")


def _assert_close(found: torch.Tensor, want: torch.Tensor, what: str) -> None:
    error, size = (found.float() - want.float()).abs().max().item(), want.float().abs().max().item()
    assert error <= TOLERANCE * size, f"{what} is off by {error:.3g} of {size:.3g}"


def agrees(case: Case, name: str, backend: str) -> bool:
    """Check that output and gradients equal the reference's; print the result."""
    try:
        case.check(backend)
        case.check_gradients(backend)
    except (InputError, RuntimeError, AssertionError) as error:
        print(f"{name}: {backend}: {type(error).__name__}: {error}", flush=True)
        return False
    print(f"{name}: {backend} agrees with the reference, gradients included", flush=True)
    return True


def timed(call: Call, repeats: int) -> float:
    """Milliseconds a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def peak(call: Call) -> int:
    """Peak bytes above those allocated before the call."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measure(calls: dict[str, Call], rounds: int) -> dict[str, dict[str, float]]:
    """Median time, median ratio to "plain", and memory of each candidate."""
    for call in calls.values():
        for _ in range(3):
            call()
    repeats = {name: max(1, int(20 / max(timed(call, 2), 0.01))) for name, call in calls.items()}
    memory = {name: peak(call) for name, call in calls.items()}
    order, times = list(calls), []
    for seed in range(rounds):
        random.Random(seed).shuffle(order)
        times.append({name: timed(calls[name], repeats[name]) for name in order})
    return {
        name: {
            "ms": statistics.median(t[name] for t in times),
            "ratio": statistics.median(t[name] / t["plain"] for t in times),
            "ratio_min": min(t[name] / t["plain"] for t in times),
            "ratio_max": max(t[name] / t["plain"] for t in times),
            "peak_mib": memory[name] / 2**20,
        }
        for name in calls
    }


def compare(case: Case, rounds: int, limit: float) -> dict[str, dict[str, Any]]:
    """Every candidate that supports the case, and for the others the reason."""
    calls, failed = {"plain": case.call("plain")}, {}
    for backend in BACKENDS:
        if backend == "sdpa" and case.dense_bytes * (3 if case.training else 2) > limit:
            failed[backend] = f"the dense bias alone is {case.dense_bytes / 2**30:.0f} GiB"
            continue
        try:
            case.check(backend)
            case.call(backend)()
            calls[backend] = case.call(backend)
        except (InputError, RuntimeError, AssertionError) as error:  # one candidate's failure is a result, too
            failed[backend] = f"{type(error).__name__}: {error}".splitlines()[0]
            torch.cuda.empty_cache()
    found: dict[str, dict[str, Any]] = {**measure(calls, rounds)}
    return found | {name: {"failed": why} for name, why in failed.items()}


def tune(case: Case, width: int, rounds: int) -> dict[str, dict[str, Any]]:
    """posenc's kernels with other tiles, fastest first."""
    from posenc.backends.triton_kernels import TILES, Tiles

    limit = min(n for n in TILES if width <= n)
    kept, found = TILES[limit], {}
    for m, n, square, warps, stages in itertools.product((64, 128), (32, 64, 128), (32, 64, 128), (4, 8), (2, 3)):
        TILES[limit] = tiles = Tiles(m, n, square, warps, warps, stages)
        try:
            case.check("triton")
            result = measure({"plain": case.call("plain"), "triton": case.call("triton")}, rounds)
            found[str(tuple(tiles))] = result["triton"]
        except (RuntimeError, AssertionError) as error:  # out of registers or shared memory
            found[str(tuple(tiles))] = {"failed": str(error).splitlines()[0], "ms": float("inf")}
        print(tuple(tiles), found[str(tuple(tiles))], flush=True)
    TILES[limit] = kept
    return dict(sorted(found.items(), key=lambda item: item[1]["ms"]))


def machine() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    import triton

    return {
        "device": properties.name, "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count, "memory_gib": round(properties.total_memory / 2**30, 1),
        "torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }  # fmt: skip


def line(row: dict[str, Any]) -> str:
    parts = [
        f"{row['encoding']:<15}{row['pass']:<9}B{row['batch']} H{row['heads']:<3} D{row['width']:<4} N{row['length']:<6}"
    ]
    for name, result in row["results"].items():
        if "failed" in result:
            parts.append(f"{name}: {result['failed'][:60]}")
        else:
            parts.append(f"{name} {result['ms']:.3f} ms {result['ratio']:.2f}x {result['peak_mib']:.0f} MiB")
    return " | ".join(parts)


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encodings", default=",".join(ENCODINGS), help=f"of {', '.join(ENCODINGS)}")
    parser.add_argument("--lengths", type=numbers, default=[2048, 4096, 8192, 16384])
    parser.add_argument("--shapes", default="1x16x64,1x32x128,4x8x64", help="batch x heads x head_dim")
    parser.add_argument("--passes", default="forward,training")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="where to write JSON")
    parser.add_argument("--tune", action="store_true", help="try other tiles of our kernels instead")
    parser.add_argument(
        "--dry-run", action="store_true", help="check outputs and gradients on tiny shapes, time nothing"
    )
    options = parser.parse_args()
    names = options.encodings.split(",")
    if unknown := set(names) - set(ENCODINGS):
        parser.error(f"unknown encodings {sorted(unknown)}: choose from {', '.join(ENCODINGS)}")
    cuda = torch.cuda.is_available()
    if not cuda and not options.dry_run:
        parser.error("no CUDA device: nothing can be timed here; --dry-run checks the rest")
    size, checked = ((1, 4, 64, 512), BACKENDS) if cuda else ((1, 2, 16, 40), ("triton",))
    agree = [agrees(Case(name, *size, True, "cuda" if cuda else "cpu"), name, b) for name in names for b in checked]
    if options.dry_run:
        return 0 if all(agree) else 1
    shapes = [[int(n) for n in shape.split("x")] for shape in options.shapes.split(",")]
    limit, rows = 0.8 * torch.cuda.get_device_properties(0).total_memory, []
    for name, (batch, heads, width), length, kind in itertools.product(
        names, shapes, options.lengths, options.passes.split(",")
    ):
        case = Case(name, batch, heads, width, length, kind == "training", "cuda")
        results = tune(case, width, options.rounds) if options.tune else compare(case, options.rounds, limit)
        rows.append({"encoding": name, "causal": case.causal, "pass": kind, "batch": batch, "heads": heads,
                     "width": width, "length": length, "results": results})  # fmt: skip
        print(line(rows[-1]) if not options.tune else f"best tiles: {next(iter(results.items()))}", flush=True)
        if options.out:  # after every row: a run that is cut off keeps what it has
            options.out.write_text(json.dumps({"schema": 1, "machine": machine(), "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
