# SPDX-License-Identifier: Apache-2.0
"""Time a pretrained model under every kind of method against the same model without; write benchmarks/extension_cost.json and .md.

python benchmarks/extension_cost.py
"""

import itertools
import json
from pathlib import Path
from typing import Any

import torch
from decoding_maps import DTYPES, extended, filled, prefill, step
from transformers import DynamicCache

import posenc

METHODS = ("yarn", "ntk", "log_n", "softmax_n", "rerope", "self_extend", "dual_chunk", "streaming")
LENGTHS, ROUNDS = (1024, 4096), {"step": 3, "prefill": 1}


def page(results: dict[str, dict[str, float]]) -> str:
    rows = [
        ["", *results],
        ["---"] * (1 + len(results)),
        ["plain, s", *(f"{column['plain']:.3g}" for column in results.values())],
        *([method, *(f"{column[method] / column['plain']:.2f}" for column in results.values())] for method in METHODS),
    ]
    return "\n".join(
        [
            "# The cost of extension",
            "",
            "`python benchmarks/extension_cost.py`: the demo model (SmolLM2-135M) extended to 32768 tokens with each method's "
            "default options: processor time over that of the unmodified model. Step: one token after so many cached ones, the "
            "least of three turns of all methods. Prefill: so many tokens in one pass, one turn. One thread, AMD EPYC with "
            f"AVX-512, torch {torch.__version__}, beside other work on the machine.",
            "",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
        ]
    )


def main() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    out = Path(__file__).with_suffix(".json")
    results: dict[str, dict[str, float]] = json.loads(out.read_text()) if out.exists() else {}
    models = {name: posenc.load("demo", dtype=dtype)[0] for name, dtype in DTYPES.items()}
    for kind, length, name in itertools.product(("step", "prefill"), LENGTHS, DTYPES):
        cell, model = f"{kind}, {length}, {name}", models[name]
        if cell in results:
            continue
        cache = filled(model, length)

        def call(kind: str = kind, length: int = length, model: Any = model, cache: DynamicCache = cache) -> float:
            return step(model, cache) if kind == "step" else prefill(model, length)

        turns = [{m: extended(model, m, call) for m in ("plain", *METHODS)} for _ in range(ROUNDS[kind])]
        results[cell] = {method: min(turn[method] for turn in turns) for method in turns[0]}
        print(cell, {method: round(seconds, 3) for method, seconds in results[cell].items()}, flush=True)
        out.write_text(json.dumps(results, indent=1) + "\n")
        out.with_suffix(".md").write_text(page(results))


if __name__ == "__main__":
    main()
