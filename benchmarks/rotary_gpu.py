"""Rotating queries and keys on a GPU, compared with a copy of the same bytes, at the shapes of Llama 3 8B (32 query heads, 8 key
heads of 128 channels, bfloat16).

    python benchmarks/rotary_gpu.py --out rotary_gpu.json

Every candidate is checked against `posenc.functional.rotary` in float64 first. They then run in shuffled rounds; ratios
are taken within a round, and their median, smallest and largest are reported. Forward and backward together are compared
with two copies. Without a GPU, `TRITON_INTERPRET=1 ... --device cpu --shapes 1x8` only shows that it runs.
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import posenc
from posenc.backends.triton import rotary_kernel
from posenc.functional import rotary

HEADS, KV_HEADS, HEAD_DIM, ROPE_THETA = 32, 8, 128, 500000.0
SHAPES = ("1x1", "64x1", "1x8192", "8x4096", "1x131072")
Call = Callable[[], object]


def candidates(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str) -> dict[str, Callable[..., object]]:
    compiled = torch.compile(rotary, dynamic=True)
    found = {
        "posenc, one Triton kernel": lambda q, k: rotary_kernel(q, k, cos, sin, layout=layout),
        "posenc, torch.compile": lambda q, k: (
            compiled(q, cos, sin, layout=layout),
            compiled(k, cos, sin, layout=layout),
        ),
        "posenc, eager": lambda q, k: (rotary(q, cos, sin, layout=layout), rotary(k, cos, sin, layout=layout)),
    }
    if layout == "half":
        try:
            from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
        except ImportError:
            print("transformers is not installed: left out")
        else:
            wide = [torch.cat((t, t), -1)[:, 0].to(q.dtype) for t in (cos, sin)]
            found["transformers, eager"] = lambda q, k: apply_rotary_pos_emb(q, k, *wide)
    return found


def seconds(call: Call, device: str, repeats: int) -> float:
    """Per call."""
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3 / repeats
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def measure(calls: dict[str, Call], reference: str, device: str, rounds: int) -> list[dict[str, object]]:
    for call in calls.values():
        for _ in range(3):
            call()
    repeats = {name: max(1, int(0.02 / max(seconds(call, device, 2), 1e-7))) for name, call in calls.items()}
    took: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            took[name].append(seconds(calls[name], device, repeats[name]))
    rows = []
    for name, times in took.items():
        ratios = [mine / theirs for mine, theirs in zip(times, took[reference], strict=True)]
        rows.append(
            {
                "name": name, "microseconds": 1e6 * statistics.median(times), "ratio": statistics.median(ratios),
                "lowest": min(ratios), "highest": max(ratios),
            }
        )  # fmt: skip
    return rows


def run(batch: int, tokens: int, dtype: torch.dtype, layout: str, device: str, rounds: int) -> list[dict[str, object]]:
    def stored(heads: int) -> Tensor:  # as a projection leaves them
        return torch.randn(batch, tokens, heads, HEAD_DIM, device=device, dtype=dtype).transpose(1, 2)

    q, k, of_q, of_k = stored(HEADS), stored(KV_HEADS), stored(HEADS), stored(KV_HEADS)
    rope = posenc.Rotary(HEAD_DIM, ROPE_THETA).to(device)
    cos, sin = rope.cos_sin(torch.arange(tokens, device=device)[None], torch.float32)
    forward: dict[str, Call] = {"copy": lambda: (q.clone(), k.clone())}
    both: dict[str, Call] = {"copy": lambda: (q.clone(), k.clone(), of_q.clone(), of_k.clone())}
    sample = slice(max(0, tokens - 64), None)
    exact = rotary(q[:1, :, sample].double(), cos[:, :, sample].double(), sin[:, :, sample].double(), layout=layout)
    for name, turn in candidates(q, k, cos, sin, layout).items():
        error = (turn(q, k)[0][:1, :, sample].double() - exact).abs().max().item()
        assert error < 0.1, f"{name} is wrong by {error}"

        def alone(turn: Callable[..., object] = turn) -> object:
            with torch.no_grad():
                return turn(q, k)

        def trained(turn: Callable[..., object] = turn) -> object:
            inputs = q.detach().requires_grad_(), k.detach().requires_grad_()
            return torch.autograd.grad(turn(*inputs), inputs, (of_q, of_k))

        forward[name], both[name] = alone, trained
    if layout == "half":
        forward["posenc, one Triton kernel, in place"] = lambda: rotary_kernel(q, k, cos, sin, inplace=True)
    found = []
    for mode, calls in (("forward", forward), ("forward + backward", both)):
        rows = measure(calls, "copy", device, rounds)
        moved = 2 * (q.numel() + k.numel()) * q.element_size() * (1 if mode == "forward" else 2)
        print(f"\n{mode}, {layout}, {batch} x {tokens} tokens, {dtype}: {moved / 1e6:.1f} MB to move")
        for row in rows:
            row["terabytes_per_second"] = moved / row["microseconds"] / 1e6  # type: ignore[operator]
            print(
                f"  {row['name']:<38}{row['microseconds']:12.1f} us   x{row['ratio']:.2f} "
                f"({row['lowest']:.2f} .. {row['highest']:.2f})   {row['terabytes_per_second']:.2f} TB/s"
            )
        found.append(
            {"mode": mode, "layout": layout, "batch": batch, "tokens": tokens, "dtype": str(dtype), "rows": rows}
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("rotary_gpu.json"))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="batch x tokens, as in 8x4096")
    parser.add_argument("--layouts", nargs="+", default=["half", "interleaved"], choices=["half", "interleaved"])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU is visible to PyTorch")
    found = []
    for shape in options.shapes:
        batch, tokens = map(int, shape.split("x"))
        for layout in options.layouts:
            found += run(batch, tokens, getattr(torch, options.dtype), layout, options.device, options.rounds)
    machine = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor()
    report = {"device": machine, "torch": torch.__version__, "posenc": posenc.__version__, "measured": found}
    options.out.write_text(json.dumps(report, indent=1))
    print(f"\nwritten to {options.out}")


if __name__ == "__main__":
    main()
