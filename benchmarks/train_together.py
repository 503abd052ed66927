"""Loss curves of every encoding, trained by one process and by two: the table of benchmarks/train_together.md.

The last column compares one process with itself, reading each step's texts in reversed order: the same sum, rounded
differently.

python benchmarks/train_together.py [--write benchmarks/train_together.md]
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing

from posenc import ENCODINGS
from posenc.lab.data import Corpus, load
from posenc.lab.experiment import Run
from posenc.lab.parallel import World, together
from posenc.lab.text import Settings
from posenc.lab.train import Training

SETTINGS = Settings(
    length=16,
    factors=(1, 2),
    steps=10,
    batch_size=5,
    dim=16,
    num_layers=2,
    num_heads=2,
    head_dim=8,
    windows=4,
    targets=8,
)
"""Five texts a step: two processes do not have equal shares."""
START, END = "<!-- parity of training: start -->", "<!-- parity of training: end -->"


class Reversed(World):
    """One process that reads the texts of a step in reversed order."""

    def _rows(self, batch: int) -> torch.Tensor:
        return torch.arange(batch).flip(0)


def losses(name: str, corpus: Corpus, world: World | None = None) -> torch.Tensor:
    """The loss of every step, by the processes that train together."""
    training = Training(Run(name, 0, SETTINGS, corpus.digest), corpus.train)
    training.world = world or training.world
    while not training.finished:
        training.advance()
    return torch.tensor(training.losses, dtype=torch.float64)


def work(rank: int, folder: str, names: list[str]) -> None:
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "OMP_NUM_THREADS": 1}
    os.environ |= {name: str(value) for name, value in ranks.items()}
    torch.set_num_threads(1)
    corpus = Corpus.read(Path(folder))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    curves = {}
    for parallel in ("ddp", "fsdp"):
        with together(parallel):
            curves[parallel] = {name: losses(name, corpus) for name in names}
    if rank == 0:
        torch.save(curves, f"{folder}/curves")
    dist.destroy_process_group()


def differences(names: list[str]) -> dict[str, dict[str, float]]:
    """parallel -> encoding -> the largest difference of two processes' losses from one's, over the latter."""
    torch.set_flush_denormal(True)
    corpus = load("pydoc")
    with tempfile.TemporaryDirectory() as folder:
        corpus.write(Path(folder))
        multiprocessing.spawn(work, (folder, names), nprocs=2)
        measured = torch.load(f"{folder}/curves")
    measured["reversed"] = {name: losses(name, corpus, Reversed()) for name in names}
    alone = {name: losses(name, corpus) for name in names}
    return {
        parallel: {name: float(((curve - alone[name]) / alone[name]).abs().max()) for name, curve in curves.items()}
        for parallel, curves in measured.items()
    }


def table(found: dict[str, dict[str, float]]) -> str:
    rows = [f"| {name} | {' | '.join(f'{curve[name]:.1e}' for curve in found.values())} |" for name in found["ddp"]]
    return "\n".join(["| Encoding | DDP | FSDP2 | One process, texts reversed |", "|---|---|---|---|", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encodings", nargs="+", default=list(ENCODINGS))
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the marks of this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = table(differences(options.encodings))
    print(text)
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        before, after = page.split(START)[0], page.split(END)[1]
        options.write.write_text(f"{before}{START}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
