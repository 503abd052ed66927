"""Loss curves of every encoding, trained by one process and by two: the table of docs/distributed.md.

The last column says how far one process is from itself when it reads each step's texts in reversed order, which is the
same sum, rounded otherwise.

python benchmarks/train_together.py [--write docs/distributed.md]
"""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing

from posenc import ENCODINGS, Positions
from posenc.lab.data import Batch, Corpus, load
from posenc.lab.experiment import Run
from posenc.lab.parallel import Alone, joint
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


class Reversed(Alone):
    """One process that reads the texts of a step in reversed order."""

    def share(self, batch: Batch) -> tuple[Tensor, Tensor, Positions | None]:
        return super().share(batch.rows(torch.arange(len(batch.tokens)).flip(0)))


def losses(name: str, corpus: Corpus, processes: Alone | None = None) -> torch.Tensor:
    """The loss of every step, by whatever processes train together here."""
    training = Training(Run(name, 0, SETTINGS, corpus.digest), corpus.train)
    training.processes = processes or training.processes
    while not training.finished:
        training.advance()
    return torch.tensor(training.losses, dtype=torch.float64)


def work(rank: int, folder: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    corpus = Corpus.read(Path(folder))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {}
    for parallel in ("ddp", "fsdp"):
        with joint(parallel):
            found[parallel] = {name: losses(name, corpus) for name in names}
    if rank == 0:
        torch.save(found, f"{folder}/found")
    dist.destroy_process_group()


def differences(names: list[str]) -> dict[str, dict[str, float]]:
    """parallel -> encoding -> the largest difference of two processes' losses from one's, over the latter."""
    torch.set_flush_denormal(True)
    corpus = load("pydoc")
    with tempfile.TemporaryDirectory() as folder:
        corpus.write(Path(folder))
        multiprocessing.spawn(work, (folder, names), nprocs=2)
        together = torch.load(f"{folder}/found")
    together["reversed"] = {name: losses(name, corpus, Reversed()) for name in names}
    alone = {name: losses(name, corpus) for name in names}
    return {
        parallel: {name: float(((curve - alone[name]) / alone[name]).abs().max()) for name, curve in curves.items()}
        for parallel, curves in together.items()
    }


def table(found: dict[str, dict[str, float]]) -> str:
    rows = [f"| {name} | {' | '.join(f'{found[way][name]:.1e}' for way in found)} |" for name in found["ddp"]]
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
