# SPDX-License-Identifier: Apache-2.0
"""Models that were trained under a scaling, extended from the frequencies that they have, and from plain RoPE; write
benchmarks/trained_scaling.json, which docs/guides/extend.md shows.

nice -n 19 python benchmarks/trained_scaling.py [--steps 160]
"""

import argparse
import json
import time
from datetime import date
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import posenc
from posenc.lab.machine import cpu
from posenc.pretrained import loss_by_position

TRAINED, TEXTS, SEEDS = 256, 12, (0, 1, 2)
LENGTH = 2 * TRAINED
SCALINGS: dict[str, dict[str, Any]] = {
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 64, "short_factor": [1.0] * 16,
                 "long_factor": [1 + 3 * (pair / 15) ** 0.5 for pair in range(16)]},
}  # fmt: skip
METHODS = (
    "none",
    "yarn",
    "ntk",
    "llama3",
    "mrrope",
    "linear",
    "yarn+replace",
    "ntk+replace",
    "llama3+replace",
    "linear+replace",
)


def trained(scaling: str, seed: int, steps: int, data: torch.Tensor) -> Any:
    """A byte model of 3 layers."""
    torch.manual_seed(seed)
    table = {"rope_type": scaling, "rope_theta": 10000.0, **SCALINGS[scaling]}
    config = LlamaConfig(
        vocab_size=256, hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3,
        max_position_embeddings=TRAINED, rope_parameters=table,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    for _ in range(steps):
        starts = torch.randint(len(data) - TRAINED, (8,))
        ids = torch.stack([data[at : at + TRAINED] for at in starts.tolist()])
        loss = model(ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


def losses(model: Any, texts: torch.Tensor) -> dict[str, list[float]]:
    """Nats a byte within the context length and past it, by method."""
    found = {}
    for method in METHODS:
        posenc.extend(model, method, target_length=LENGTH)
        each = torch.stack([loss_by_position(model, ids) for ids in texts])
        found[method] = [float(part.nanmean()) for part in (each[:, :TRAINED], each[:, TRAINED:])]
    posenc.restore(model)
    return found


def table(results: dict[str, Any]) -> str:
    """Means over the seeds, within the context length / past it, each with its change over leaving the model alone."""
    about, losses_of = results["about"], results["losses"]
    rows = [
        "| method | " + " | ".join(f"trained under {name}" for name in losses_of) + " |",
        "|---|" + "---|" * len(losses_of),
    ]
    for method in METHODS:
        cells = []
        for seeds in losses_of.values():
            means = [sum(seed[method][part] for seed in seeds) / len(seeds) for part in (0, 1)]
            changes = [[seed[method][part] - seed["none"][part] for seed in seeds] for part in (0, 1)]
            signs = (
                ""
                if method == "none"
                else f" ({sum(changes[0]) / len(seeds):+.3f} / {sum(changes[1]) / len(seeds):+.3f}{worse(changes[1])})"
            )
            cells.append(f"{means[0]:.3f} / {means[1]:.3f}{signs}")
        rows.append(f"| `{method}` | " + " | ".join(cells) + " |")
    note = f"Nats a byte on {about['texts']} held-out documents, tokens 1 to {about['trained']} / {about['trained'] + 1} to {about['length']}; means of {len(about['seeds'])} seeds, {about['steps']} steps each."
    return "\n".join(rows) + f"\n\n{note}"


def worse(changes: list[float]) -> str:
    """In words where every seed is worse past the context length than the model left alone."""
    return ", worse" if all(change > 0 for change in changes) else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--out", default=str(Path(__file__).with_suffix(".json")))
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = torch.tensor([*"".join(topics[name] for name in sorted(topics)).encode()])
    held, data = data[: TEXTS * LENGTH].view(TEXTS, LENGTH), data[TEXTS * LENGTH :]
    started, results = time.process_time(), {}
    for scaling in SCALINGS:
        results[scaling] = [losses(trained(scaling, seed, options.steps, data), held) for seed in SEEDS]
        print(scaling, f"{time.process_time() - started:.0f} s", flush=True)
    about = {
        "date": date.today().isoformat(), "cpu": cpu(), "torch": torch.__version__, "steps": options.steps, "trained": TRAINED, "length": LENGTH,
        "texts": TEXTS, "seeds": SEEDS, "cpu_seconds": round(time.process_time() - started),
    }  # fmt: skip
    Path(options.out).write_text(json.dumps({"about": about, "scalings": SCALINGS, "losses": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
