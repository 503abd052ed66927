"""Several processes train as one does: the same losses, the same scores, under DDP and FSDP2, on complete sequences and shards."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn import functional as F

from posenc import ENCODINGS, InputError
from posenc.lab import data
from posenc.lab.data.tokens import build as build_corpus
from posenc.lab.experiment import Run
from posenc.lab.measure import measure
from posenc.lab.parallel import together
from posenc.lab.text import Settings
from posenc.lab.train import Training, build
from posenc.lab.vision.experiment import ImageSettings
from references import PATIENCE

pytestmark = pytest.mark.slow

TEXT = b"".join(b"line %d says that %d follows.\n" % (n, n + 1) for n in range(400))
CORPUS = data.corpus(TEXT, "numbered lines")
PACKED = build_corpus("notes", [(TEXT[i : i + 9 + 7 * (i % 5)],) for i in range(0, 9000, 23)], "bytes", True, 9000)
SETTINGS = Settings(
    length=16, factors=(1, 2), steps=6, batch_size=5, dim=8, num_layers=2, num_heads=2, head_dim=4, windows=5, targets=8
)
READING = "randomized:max_length=64+learned:max_positions=64+rope"
"""Positions that are drawn in training, read by a table and by rotations."""
IMAGES, IMAGE_SETTINGS = ImageSettings(
    image_size=8,
    patch_size=2,
    test_sizes=(4, 8, 16),
    steps=6,
    batch_size=5,
    dim=8,
    num_layers=2,
    num_heads=2,
    head_dim=4,
    images=5,
).load("places", data_images=30)
OTHERS = {"packed": (READING, PACKED), "images": ("grid_table+swin", IMAGES)}
"""What is trained on other data: encoding and corpus."""
NAMES = (
    "rope",
    "t5",
    "learned",
    "deberta_v2",
    "cape+rope",
    "randomized:testing=random:max_length=64+learned:max_positions=64",
)
SHARDED = ("t5", "cape+rope")
CLOSE = 1e-4
"""A sum in another order is rounded otherwise."""


def run_of(name, corpus=CORPUS):
    settings = IMAGE_SETTINGS if corpus is IMAGES else replace(SETTINGS, packed=corpus.packed)
    return Run(name, 3, settings, corpus.digest)


def train_and_resume(name, corpus=CORPUS):
    """The measured cell, whether a resumed training ends as an uninterrupted one, and the shapes of the weights."""
    run = run_of(name, corpus)
    cell = measure(run, corpus)
    undisturbed, resumed = (Training(run, corpus.train) for _ in range(2))
    for _ in range(3):
        undisturbed.advance()
    state = undisturbed.state()
    while not undisturbed.finished:
        undisturbed.advance()
    resumed.restore(resumed.world.broadcast(state))  # rank 0 alone has it
    while not resumed.finished:
        resumed.advance()
    ours, theirs = resumed.state()["model"], undisturbed.state()["model"]
    same = ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in theirs)
    shapes = {key: tuple(value.shape) for key, value in theirs.items()}
    return cell, same and resumed.losses == undisturbed.losses, shapes


def gradients(name, wrap):
    """The gradients, unsharded, of a plain training loop around a model with this encoding, by rank 0's names."""
    model = build(run_of(name))
    torch.manual_seed(1)
    tokens = torch.randint(256, (4, 16))
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    chunk = tokens.chunk(size)[rank]
    wrapped = wrap(model)
    F.cross_entropy(wrapped(chunk).flatten(0, 1), chunk.flatten()).backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {n: g.full_tensor() if hasattr(g, "full_tensor") else g for n, g in grads.items()}


def with_parameters():
    return [name for name in ENCODINGS if any(True for _ in build(run_of(name)).encoding.parameters())]


def plain_ddp(model):
    return nn.parallel.DistributedDataParallel(model, static_graph=True)


def plain_fsdp(model):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def launch(rank, size, folder):
    """What torchrun and the user's script would do."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "OMP_NUM_THREADS": 1}
    os.environ |= {name: str(value) for name, value in ranks.items()}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)


def work(rank, folder):
    launch(rank, 2, folder)
    found = {}
    for parallel in ("ddp", "fsdp"):
        with together(parallel) as here:
            for name in NAMES:
                found[parallel, name] = train_and_resume(name)
            for name, other in OTHERS.items():
                found[parallel, name] = train_and_resume(*other)
            with pytest.raises(InputError, match=r"sequence_shards=2: .* cannot be divided"):
                IMAGE_SETTINGS.check_shards(2)
            with pytest.raises(InputError, match=r"batch_size=1: 2 processes share"):
                here.check(replace(run_of("rope"), settings=replace(SETTINGS, batch_size=1)))
            wild = replace(SETTINGS, learning_rate=1e30, adamw_learning_rate=1e30)
            with pytest.raises(InputError, match=r"no longer finite"):
                measure(replace(run_of("rope"), settings=wild), CORPUS)
        with together(parallel, 2) as here:
            for name in SHARDED:
                found[f"{parallel}, shards", name] = train_and_resume(name)
            found[f"{parallel}, shards", "packed"] = train_and_resume(READING, PACKED)
            with pytest.raises(InputError, match=r"(--length |length=)18: .* cut it into 4 equal parts"):
                here.check(replace(run_of("rope"), settings=replace(SETTINGS, length=18)))
            here.check(replace(run_of("rope"), settings=replace(SETTINGS, batch_size=1)))
    with pytest.raises(InputError, match=r"sequence_shards=3: must divide"), together("ddp", 3):
        pass
    for name in with_parameters():
        found["grad ddp", name] = gradients(name, plain_ddp)
        found["grad fsdp", name] = gradients(name, plain_fsdp)
    if rank == 0:
        torch.save(found, f"{folder}/found")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    multiprocessing.spawn(work, (str(folder),), nprocs=2)
    return torch.load(folder / "found", weights_only=False)


def check_same(cell, alone):
    """Two cells have the same numbers."""
    assert cell.losses == pytest.approx(alone.losses, rel=CLOSE)
    assert cell.losses[0] == pytest.approx(alone.losses[0], abs=2e-5), "before any step nothing is rounded"
    for variant, other in zip(cell.arms, alone.arms, strict=True):
        assert variant.paired.keys() == other.paired.keys()
        assert variant.extra.keys() == other.extra.keys()
        for factor, losses in other.paired.items():
            assert variant.paired[factor] == pytest.approx(losses, rel=5 * CLOSE)
        for ours, theirs in zip(variant.by_position, other.by_position, strict=True):
            assert ours == pytest.approx(theirs, rel=10 * CLOSE)
    assert (cell.parameters, cell.position_parameters) == (alone.parameters, alone.position_parameters)


@pytest.mark.parametrize("name", [*NAMES, *OTHERS])
def test_two_processes_measure_what_one_does(name, found):
    alone, _, shapes = train_and_resume(*OTHERS.get(name, (name,)))
    sharded = ("ddp, shards", "fsdp, shards") if name in (*SHARDED, "packed") else ()
    for way in ("ddp", "fsdp", *sharded):
        cell, same, theirs = found[way, name]
        check_same(cell, alone)
        assert same, "a training that goes on from its state"
        assert theirs == shapes
        if "shards" not in way:
            assert 0.3 < cell.memory_bytes / alone.memory_bytes < 0.7  # two of five texts on rank 0
        elif name == "t5":
            assert 0.4 < cell.memory_bytes / alone.memory_bytes < 0.7  # half of the tokens, all keys


def groups(rank, folder):
    launch(rank, 4, folder)
    with together("fsdp", 2):
        found = {name: measure(run_of(name), CORPUS) for name in ("cape+rope", "t5")}
        found["packed"] = measure(run_of(READING, PACKED), PACKED)
    if rank == 0:
        torch.save(found, f"{folder}/found")
    dist.destroy_process_group()


def test_groups_share_the_batch_and_each_its_sequences(tmp_path):
    multiprocessing.spawn(groups, (str(tmp_path),), nprocs=4)
    found = torch.load(tmp_path / "found", weights_only=False)
    check_same(found.pop("packed"), measure(run_of(READING, PACKED), PACKED))
    for name, cell in found.items():
        check_same(cell, measure(run_of(name), CORPUS))


def test_plain_ddp_and_fully_shard_give_the_gradients_of_one_process(found):
    names = with_parameters()
    assert {"t5", "learned", "deberta", "floater"} <= set(names)
    for name in names:
        alone = gradients(name, lambda model: model)
        for way in ("grad ddp", "grad fsdp"):
            wrapped = found[way, name]
            for key, gradient in alone.items():
                assert torch.allclose(wrapped[key], gradient, rtol=1e-4, atol=1e-6), (way, name, key)


def compare(folder: Path, *more: str, launcher=("torch.distributed.run",)) -> subprocess.CompletedProcess[str]:
    """posenc compare under torchrun, with a port that nobody else has."""
    flags = "--encodings none t5 --seeds 1 --length 16 --factors 1 2 --steps 3 --batch-size 3 --dim 8 --num-layers 1"
    flags += " --num-heads 2 --windows 4 --targets 8"
    start = [sys.executable, "-m", *launcher, "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    start += ["--rdzv-endpoint", "localhost:0", "-m", "posenc", "compare", *flags.split(), "--out", str(folder), *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(start, capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False)


def test_the_command_line_under_torchrun(tmp_path):
    done = compare(tmp_path / "out", "--parallel", "fsdp", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)  # once, by rank 0
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert printed == written
    assert written["complete"]
    assert done.stderr.count("t5, seed 0") == 1
    assert len(list((tmp_path / "out" / "cells").iterdir())) == 2

    (tmp_path / "file").touch()
    refused = compare(tmp_path / "file" / "out")  # rank 0 alone finds out
    assert refused.returncode == 1  # the exit code of torchrun
    assert refused.stderr.count("posenc compare: error: ") == 1
    assert "exitcode  : 2" in refused.stderr
