# SPDX-License-Identifier: Apache-2.0
"""Time a pretrained model under position maps against the same model without; write benchmarks/decoding_maps.json and .md.

python benchmarks/decoding_maps.py [--rounds 3] [--prefill 3072 8192] [--methods rerope self_extend]
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, StaticCache

import posenc
from posenc.pretrained.models import cache_name

LENGTHS, TARGET, STEPS = (3072, 8192, 24576), 32768, 3
METHODS = (
    "rerope",
    "leaky_rerope",
    "self_extend",
    "dual_chunk",
    "string",
    "lampe",
    "jet_long",
    "streaming",
    "rerope+log_n",
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def extended(model: Any, method: str, call: Callable[[], float]) -> float:
    """What a call returns while the model is extended by a method; "plain": unmodified."""
    if method == "plain":
        return call()
    reaches = method not in ("string", "streaming")
    posenc.extend(model, method, **({"target_length": TARGET} if reaches else {}))
    try:
        return call()
    finally:
        posenc.restore(model)


def filled(model: Any, length: int) -> DynamicCache:
    """A cache of random keys and values, since time does not depend on them."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    cache = DynamicCache(config=config)
    for layer in range(config.num_hidden_layers):
        shape = 1, config.num_key_value_heads, length, config.head_dim
        cache.update(*(torch.randn(shape, generator=generator).to(model.dtype) for _ in range(2)), layer)
    return cache


def static(filled: DynamicCache, model: Any) -> StaticCache:
    """The same keys and values in a cache of fixed size, with room for 64 more tokens."""
    length = filled.get_seq_length()
    cache = StaticCache(config=model.config, max_cache_len=length + 64)
    for number, layer in enumerate(filled.layers):
        cache.update(layer.keys, layer.values, number, {"cache_position": torch.arange(length)})
    return cache


def forget_last(cache: Any) -> None:
    """Take the last token out of a cache again."""
    if isinstance(cache, StaticCache):
        for layer in cache.layers:
            layer.cumulative_length -= 1
    else:
        cache.crop(-1)


def step(model: Any, cache: Any) -> float:
    """The least processor time of a few steps, after one that warms up."""
    token, times = torch.tensor([[5]]), []
    for _ in range(1 + STEPS):
        start = time.process_time()
        model(token, **{cache_name(): cache})
        times.append(time.process_time() - start)
        forget_last(cache)
    return min(times[1:])


def prefill(model: Any, length: int) -> float:
    tokens = torch.randint(100, 1000, (1, length), generator=torch.Generator().manual_seed(0))
    start = time.process_time()
    model(tokens, use_cache=True, logits_to_keep=1)
    return time.process_time() - start


def ratios(model: Any, call: Callable[[], float], rounds: int, methods: Sequence[str]) -> dict[str, float]:
    """Of each method, the least time of several rounds in turns over the plain model's, whose seconds are "plain"."""
    least: dict[str, float] = {}
    for _ in range(rounds):
        for method in ("plain", *methods):
            taken = extended(model, method, call)
            least[method] = min(taken, least.get(method, taken))
    return {method: least[method] / (least["plain"] if method != "plain" else 1.0) for method in least}


def table(results: dict[str, dict[str, float]]) -> str:
    lines = ["| | " + " | ".join(results) + " |", "|---" * (1 + len(results)) + "|"]
    lines.append("| plain, s | " + " | ".join(f"{row['plain']:.3g}" for row in results.values()) + " |")
    for method in METHODS:
        lines.append(
            f"| {method} | "
            + " | ".join(f"{row[method]:.2f}" if method in row else "" for row in results.values())
            + " |"
        )
    return "\n".join(lines)


def page(results: dict[str, dict[str, float]]) -> str:
    lines = [
        "# Position maps in a model",
        "",
        "`python benchmarks/decoding_maps.py`: the demo model (SmolLM2-135M, 9 query and 3 key heads of 64) extended to "
        f"{TARGET} tokens with each method's default options: processor time over that of the unmodified model, the least of "
        "several turns; each column is one run. Step: one token after so many cached ones (transformers' DynamicCache, or its "
        f"StaticCache). One thread, AMD EPYC, torch {torch.__version__}, beside ten to fifteen other processes on two cores. "
        "The bfloat16 columns are of an earlier version, which cached unrotated keys. The float32 steps are of version 1.1, which "
        "rotated cached keys run by run; docs/position_maps.md says how much longer they take since.",
        "",
        table(results),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefill", type=int, nargs="*", default=[3072, 8192])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--model", default="demo")
    options = parser.parse_args()
    turns = options.rounds, options.methods
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    out = Path(__file__).with_suffix(".json")
    results: dict[str, dict[str, float]] = json.loads(out.read_text()) if out.exists() else {}
    for name, dtype in DTYPES.items():
        model, _ = posenc.load(options.model, dtype=dtype)
        cells = [(f"step, {length}, {name}", length, step) for length in LENGTHS]
        cells += [(f"step, {length}, {name}, static cache", length, step) for length in LENGTHS[:2]]
        if name == "float32":
            cells += [(f"prefill, {length}", length, prefill) for length in options.prefill]
        for cell, length, measure in cells:
            if cell in results:
                continue
            if measure is step:
                cache: Any = filled(model, length)
                cache = static(cache, model) if "static" in cell else cache
                results[cell] = ratios(model, lambda model=model, cache=cache: step(model, cache), *turns)
            else:
                results[cell] = ratios(
                    model, lambda model=model, length=length: prefill(model, length), 1, options.methods
                )
            print(cell, {key: round(value, 3) for key, value in results[cell].items()}, flush=True)
            out.write_text(json.dumps(results, indent=1) + "\n")
            out.with_suffix(".md").write_text(page(results))


if __name__ == "__main__":
    main()
