# SPDX-License-Identifier: Apache-2.0
"""Every encoding on a sequence that several processes share, against one process that has all of it.

python -m posenc.conformance.sharded docs/distributed.md
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn

from posenc.conformance.checks import DECODER, ENCODER, VOCAB, Subject
from posenc.conformance.matrix import named
from posenc.distributed import LAYOUTS, shard
from posenc.encodings import ENCODINGS
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.transformer import Transformer, TransformerConfig

WORLD_SIZES = (2, 4)
LENGTH = 16
READ_BY = {"shape": "shape+sinusoidal", "cape": "cape+sinusoidal", "randomized": "randomized+sinusoidal"}
"""What moves positions is seen by what reads them."""
COMPOSITIONS = (
    "rope+alibi", "rope/none", "rope+sink+log_n:train_length=4", "rope@rerope:window=4", "rope@self_extend:group=2:window=4",
    "axial_rope:centred=True", "randomized+rope+t5",
)  # fmt: skip
BEGIN, END = "<!-- shards: written by python -m posenc.conformance.sharded -->", "<!-- end of shards -->"


def subjects() -> dict[str, str]:
    """Every encoding, and a few compositions, by the name of their row: what `create` makes them from."""
    return {name: READ_BY.get(name, name) for name in ENCODINGS} | {name: name for name in COMPOSITIONS}


def texts(causal: bool) -> dict[str, Positions]:
    """Positions of two rows of LENGTH tokens."""
    found = {"whole": Positions.arange(LENGTH, causal=causal)}
    if causal:
        left = torch.ones(2, LENGTH, dtype=torch.long)
        left[1, :5] = 0
        found |= {
            "left padded": Positions.from_mask(left, causal=True),
            "right padded": Positions.from_mask(left.flip(1), causal=True),
            "packed": Positions.packed([7, 3, 6], causal=True),
        }
    return found


def differences(world_size: int, rank: int, names: dict[str, str]) -> dict[str, dict[str, float]]:
    """For one of several processes: by row and layout, the largest difference of a logit or a gradient in any of them,
    in float64. Gradients are those of a loss over the process's own tokens, summed over the processes."""
    found: dict[str, dict[str, float]] = {}
    for name, text in names.items():
        subject = Subject(named(text))
        configs = [DECODER] if subject.traits.causal_only else [DECODER, ENCODER]
        worst = dict.fromkeys(LAYOUTS, 0.0)
        for config in configs:
            for layout, difference in _compared(subject, config, world_size, rank):
                worst[layout] = max(worst[layout], difference)
        found[name] = worst
    return found


def _compared(subject: Subject, config: TransformerConfig, world_size: int, rank: int) -> Iterator[tuple[str, float]]:
    model = subject.host(config)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCAB, (2, LENGTH), generator=generator)
    weights = torch.randn(2, LENGTH, VOCAB, generator=generator, dtype=torch.float64)
    for training in (False, True) if "augment" in subject.traits.sites() else (False,):
        model.train(training)
        for positions in texts(config.causal).values():
            torch.manual_seed(0)
            logits, gradients = _step(model, tokens, positions, weights)
            for layout in LAYOUTS:
                own = positions.shard(rank, world_size, layout=layout)
                torch.manual_seed(rank)  # the first process draws what the reference has drawn
                part, parts = _step(model, shard(tokens, own), own, shard(weights, own))
                worst = [(part - shard(logits, own)).abs().max()]
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


def in_processes(world_size: int, names: dict[str, str] | None = None) -> dict[str, dict[str, float]]:
    """`differences` by so many processes of this machine, over gloo."""
    with tempfile.TemporaryDirectory() as folder:
        given = world_size, folder, subjects() if names is None else names
        spawn(_process, given, world_size)
        found: dict[str, dict[str, float]] = json.loads((Path(folder) / "found.json").read_text(encoding="utf-8"))
    return found


def _process(rank: int, world_size: int, folder: str, names: dict[str, str]) -> None:
    torch.set_num_threads(1)
    where = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world_size)
    found = differences(world_size, rank, names)
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


# -------------------------------------------------------------------- the table


def table(found: dict[int, dict[str, dict[str, float]]]) -> str:
    """Differences by world size, row and layout, as Markdown."""
    heads = [f"{layout}, {size} processes" for size in found for layout in LAYOUTS]
    lines = [f"| encoding | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name in next(iter(found.values())):
        cells = [f"{of_size[name][layout]:.1e}" for of_size in found.values() for layout in LAYOUTS]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(page: Path) -> None:
    """Measure, and write the table into a page between its marks.

    Raises:
        InputError: a page without the marks.
    """
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise InputError(f"{page} has no place for the table: it goes between {BEGIN!r} and {END!r}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    measured = table({size: in_processes(size) for size in WORLD_SIZES})
    page.write_text(f"{before}{BEGIN}\n{measured}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
