# SPDX-License-Identifier: Apache-2.0
"""Compare every encoding on a sequence that several processes share with one process that has all of it; write the table
of benchmarks/sequence_shards.md.

    python benchmarks/sequence_shards.py
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn

from posenc.conformance.fixtures import DECODER, ENCODER, VOCAB, EncodingUnderTest, named
from posenc.distributed import LAYOUTS, shard
from posenc.encodings import ENCODINGS
from posenc.lab.transformer import Transformer, TransformerConfig
from posenc.positions import Positions

WORLD_SIZES = (2, 4)
LENGTH = 16
READ_BY = {"shape": "shape+sinusoidal", "cape": "cape+sinusoidal", "randomized": "randomized+sinusoidal",
           "pose": "pose+sinusoidal"}  # fmt: skip
"""Encodings that move positions, with one that reads them."""
COMPOSITIONS = (
    "rope+alibi", "rope/none", "rope+sink+log_n:train_length=4", "rope+chunks:size=3", "window:before=2+log_n:train_length=2", "rope@rerope:window=4", "rope@self_extend:group=2:window=4",
    "axial_rope:centred=True", "randomized+rope+t5",
)  # fmt: skip
BEGIN, END = "<!-- shards: written by benchmarks/sequence_shards.py -->", "<!-- end of shards -->"


def subjects() -> dict[str, str]:
    """Every encoding, and a few compositions, by the name of their row: what `create` makes them from."""
    return {name: READ_BY.get(name, name) for name in ENCODINGS} | {name: name for name in COMPOSITIONS}


def texts(causal: bool) -> dict[str, Positions]:
    """Positions of two rows of LENGTH tokens."""
    positions = {"complete": Positions.arange(LENGTH, causal=causal)}
    if causal:
        left = torch.ones(2, LENGTH, dtype=torch.long)
        left[1, :5] = 0
        positions |= {
            "left padded": Positions.from_mask(left, causal=True),
            "right padded": Positions.from_mask(left.flip(1), causal=True),
            "packed": Positions.packed([7, 3, 6], causal=True),
        }
    return positions


def differences(world_size: int, rank: int, names: dict[str, str]) -> dict[str, dict[str, float]]:
    """For one of several processes: by row and layout, the largest difference of a logit or a gradient in any of them,
    in float64. Gradients are those of a loss over the tokens of the process, summed over the processes."""
    results: dict[str, dict[str, float]] = {}
    for name, text in names.items():
        tested = EncodingUnderTest(named(text))
        configs = [DECODER] if tested.encoding.causal_only else [DECODER, ENCODER]
        worst = dict.fromkeys(LAYOUTS, 0.0)
        for config in configs:
            for layout, difference in _compared(tested, config, world_size, rank):
                worst[layout] = max(worst[layout], difference)
        results[name] = worst
    return results


def _compared(
    tested: EncodingUnderTest, config: TransformerConfig, world_size: int, rank: int
) -> Iterator[tuple[str, float]]:
    model = tested.model(config)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCAB, (2, LENGTH), generator=generator)
    weights = torch.randn(2, LENGTH, VOCAB, generator=generator, dtype=torch.float64)
    for training in (False, True) if "augment" in tested.encoding.sites() else (False,):
        model.train(training)
        for positions in texts(config.causal).values():
            torch.manual_seed(0)
            logits, gradients = _step(model, tokens, positions, weights)
            for layout in LAYOUTS:
                local = positions.shard(rank, world_size, layout=layout)
                torch.manual_seed(rank)  # the first process draws what the reference has drawn
                part, parts = _step(model, shard(tokens, local), local, shard(weights, local))
                worst = [(part - shard(logits, local)).abs().max()]
                for ours, wanted in zip(parts, gradients, strict=True):
                    dist.all_reduce(ours)
                    worst.append((ours - wanted).abs().max())
                largest = torch.stack(worst).max()
                dist.all_reduce(largest, dist.ReduceOp.MAX)
                yield layout, float(largest)


def _step(model: Transformer, tokens: Tensor, positions: Positions, weights: Tensor) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    logits = model(tokens, positions)
    (logits * weights).sum().backward()
    return logits.detach(), [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


# -------------------------------------------------------------------- processes


Differences = Callable[[int, int, dict[str, str]], dict[str, dict[str, float]]]
"""(processes, rank, names) -> by row and column, the largest difference."""


def in_processes(
    world_size: int, names: dict[str, str] | None = None, measure: Differences = differences
) -> dict[str, dict[str, float]]:
    """`differences` by so many processes of this machine, over gloo."""
    with tempfile.TemporaryDirectory() as folder:
        given = world_size, folder, subjects() if names is None else names, measure
        spawn(_process, given, world_size)
        results: dict[str, dict[str, float]] = json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))
    return results


def _process(rank: int, world_size: int, folder: str, names: dict[str, str], measure: Differences) -> None:
    torch.set_num_threads(1)
    where = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world_size)
    results = measure(world_size, rank, names)
    if rank == 0:
        (Path(folder) / "results.json").write_text(json.dumps(results), encoding="utf-8")
    dist.destroy_process_group()


# -------------------------------------------------------------------- the table


def table(results: dict[int, dict[str, dict[str, float]]]) -> str:
    """Differences by world size, row and layout, as Markdown."""
    heads = [f"{layout}, {size} processes" for size in results for layout in LAYOUTS]
    lines = [f"| encoding | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name in next(iter(results.values())):
        cells = [f"{of_size[name][layout]:.1e}" for of_size in results.values() for layout in LAYOUTS]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    page = Path(__file__).with_suffix(".md")
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    measured = table({size: in_processes(size) for size in WORLD_SIZES})
    page.write_text(f"{before}{BEGIN}\n{measured}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
