# SPDX-License-Identifier: Apache-2.0
"""The law on a GPU that is lent for minutes: the cells of benchmarks/law.py, larger, in steps of 32 x 512 tokens and bfloat16.

    python benchmarks/law_lease.py pack --work DIR --into FILE      # the corpus of law.py, in 16 bits, to take to the GPU
    python benchmarks/law_lease.py spend --tokens FILE --out OUT --stage 3 --minutes 5 --commit HASH      # there
    python benchmarks/law_lease.py follow --tokens FILE --out OUT   # do trainings of a GPU follow the CPU's? Run on both
    python benchmarks/law_lease.py add OUT/law.jsonl                # what came back, into benchmarks/law/gpu.jsonl
    python benchmarks/law_lease.py register                         # what the fit of stage 3 says of stage 4, once
    python benchmarks/law_lease.py check                            # was each stage registered before its cells?
    python benchmarks/law_lease.py judge                            # what came of the predictions

`spend` trains what is missing in benchmarks/law/gpu.jsonl, most valuable first, in processes that share the GPU, until the minutes are
over. A finished cell is written at once, so that each process loses at most the cell that it is at. --dry-run: on a CPU, tiny models
and few steps, which says that everything runs.
"""

import argparse
import fcntl
import json
import lzma
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import law
import numpy as np
import torch
from law import SIX, SIZES, Cell, Corpus, Training, optimizers_of, scale
from law_fit import fitted, means, points
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.backends import choose
from posenc.errors import InputError
from posenc.lab.machine import describe
from posenc.lab.muon import Muon, orthogonalised

CELLS = law.HERE / "gpu.jsonl"
BATCH = 32
FOUR = ("stick_breaking", "rope+alibi", "local_nope", "rope:rope_theta=100")
"""The last is `rope` with its base matched to the length: its slowest pair of 64 channels rotates once in 546 tokens."""
TEN = (*SIX, *FOUR)
SWEPT, SWEPT_BUDGET, FIRST_RATES = "3M", 16, (1.0, 0.5, 2.0)
PEAK = 989.4e12
"""FLOP/s of an H100 or H200 SXM in dense bfloat16, by NVIDIA's datasheet."""


@dataclass(frozen=True)
class Task:
    """One trunk, and the budgets that branch off it."""

    size: str
    encoding: str
    seed: int
    rate: float
    budgets: tuple[int, ...]

    def cells(self) -> list[Cell]:
        return [Cell(self.size, self.encoding, self.seed, self.rate, budget) for budget in self.budgets]


Losses = dict[Cell, float]
Cells = dict[tuple[str, str, int], list[dict[str, Any]]]
"""By size, encoding and budget: the trainings of all seeds."""


def swept(encoding: str, done: Losses) -> dict[float, float]:
    """The loss of each rate that was tried."""
    return {c.rate: loss for c, loss in done.items() if c == Cell(SWEPT, encoding, 0, c.rate, SWEPT_BUDGET)}


def rate_of(encoding: str, done: Losses) -> float | None:
    """The best rate of the sweep, where it lies between two others or at an end of what is tried."""
    tried = swept(encoding, done)
    return None if missing_rates(encoding, done) else min(tried, key=lambda rate: tried[rate])


def missing_rates(encoding: str, done: Losses) -> list[float]:
    tried = swept(encoding, done)
    first = [rate for rate in FIRST_RATES if rate not in tried]
    if first:
        return first
    best = min(tried, key=lambda rate: tried[rate])
    return [r for r in (best / 2, best * 2) if r not in tried and law.LEAST_RATE <= r <= law.MOST_RATE]


PLANS: dict[int, list[tuple[str, tuple[str, ...], int, tuple[int, ...]]]] = {
    3: [
        ("3M", TEN, 0, (8, 16, 32)), ("10M", SIX, 0, (8, 16, 32)), ("0.6M", SIX, 0, (8, 16, 32)), ("3M", SIX, 1, (8, 16, 32)),
        ("10M", FOUR, 0, (8, 16, 32)),
    ],
    4: [
        ("28M", SIX, 0, (16, 32)), ("10M", ("kerple", "shaw", "fox"), 0, (32,)), ("3M", TEN, 0, (64,)), ("28M", SIX, 0, (64,)),
        ("10M", SIX, 0, (64,)), ("3M", SIX, 1, (8, 16, 32)), ("10M", FOUR, 0, (8, 16, 32)),
    ],
}  # fmt: skip
"""By stage of registration: sizes, encodings, seed and budgets, most valuable first."""


def waiting(stage: int, done: Losses, running: set[Cell]) -> Iterator[Task]:
    """Tasks that can begin, in their order of value: the sweeps of all encodings come first."""
    there = done.keys() | running
    for encoding in TEN:
        for rate in missing_rates(encoding, done):
            task = Task(SWEPT, encoding, 0, rate, (SWEPT_BUDGET,))
            if there.isdisjoint(task.cells()):
                yield task
    for size, encodings, seed, budgets in PLANS[stage]:
        for encoding in encodings:
            rate = rate_of(encoding, done)
            if rate is None:
                continue
            task = Task(size, encoding, seed, rate, budgets)
            left = tuple(cell.budget for cell in task.cells() if cell not in there)
            if left:
                yield Task(size, encoding, seed, rate, left)


# ---------------------------------------------------------------- the corpus, to be carried


def pack(work: Path, into: Path) -> None:
    """A .npz, compressed again: ids in 16 bits."""
    text = law.corpus(work)
    arrays = {f"train/{name}": each.numpy().astype(np.uint16) for name, each in text.train.items()}
    for name, of in text.passages.items():
        arrays |= {f"passages/{name}/{kind}": each.numpy().astype(np.uint16) for kind, each in of.items()}
    facts = text.facts | {"mean bytes per token": text.bytes_per_token}
    arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    arrays["sizes"] = text.sizes.numpy()
    plain = into.with_suffix(".npz")
    np.savez(plain, **arrays)
    with plain.open("rb") as source, lzma.open(into, "wb", preset=6) as target:
        shutil.copyfileobj(source, target, 2**22)
    print(f"{into}: {into.stat().st_size / 2**20:.1f} MiB, from {plain.stat().st_size / 2**20:.1f}")
    plain.unlink()


def unpack(packed: Path, into: Path) -> None:
    with lzma.open(packed) as source, into.open("wb") as target:
        shutil.copyfileobj(source, target, 2**22)


def read(plain: Path, device: str) -> Corpus:
    arrays = np.load(plain)

    def ids(name: str) -> Tensor:
        return torch.from_numpy(arrays[name].astype(np.int32)).to(device)

    train = {name: ids(f"train/{name}") for name in ("prose", "code")}
    kinds = ("far", "near", "validation")
    passages = {name: {kind: ids(f"passages/{name}/{kind}") for kind in kinds} for name in train}
    return Corpus(train, passages, torch.from_numpy(arrays["sizes"]).to(device), facts_of(arrays))


def facts_of(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of the corpus that was packed."""
    return dict(json.loads(arrays["facts"].tobytes()))


# ---------------------------------------------------------------- training


class Batched(torch.optim.Optimizer):
    """`posenc.lab.muon.Muon` on matrices of one shape at once: a GPU is given 40 operations in place of 700."""

    def __init__(self, muon: Muon) -> None:
        super().__init__(muon.param_groups, muon.defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        by_shape: dict[tuple[int, ...], list[dict[str, Any]]] = defaultdict(list)
        for group in self.param_groups:
            by_shape[tuple(sorted(group["params"][0].shape))].append(group)
        for groups in by_shape.values():
            weights = [group["params"][0] for group in groups]
            tall = [weight.shape[0] > weight.shape[1] for weight in weights]
            gradients = torch.stack([w.grad.T if t else w.grad for w, t in zip(weights, tall, strict=True)])
            state = self.state[weights[0]]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(gradients)
            average = state["momentum"].lerp_(gradients, 1 - groups[0]["momentum"])
            update = orthogonalised(gradients.lerp(average, groups[0]["momentum"]))
            rates = [
                group["lr"] * max(1.0, w.shape[0] / w.shape[1]) ** 0.5 for group, w in zip(groups, weights, strict=True)
            ]
            moves = [each.T if t else each for each, t in zip(update.unbind(), tall, strict=True)]
            torch._foreach_mul_(weights, [1 - group["lr"] * group["weight_decay"] for group in groups])
            torch._foreach_add_(weights, torch._foreach_mul(moves, [-rate for rate in rates]))


class OnDevice(Training):
    """As `law.Training`, on the corpus's device, in larger batches and, on a GPU, in bfloat16. No step waits for the GPU."""

    def __init__(self, cell: Cell, text: Corpus, half: bool = True) -> None:
        self.cell, self.text, self.half = cell, text, half
        self.device = text.sizes.device.type
        self.model = law.build(cell).to(self.device)
        muon, adamw = optimizers_of(self.model, cell.rate)
        for group in adamw.param_groups:
            group |= {"fused": True, "foreach": False}
        self.optimizers = [Batched(muon), adamw]
        self.losses: list[Any] = []
        self.seconds = 0.0

    def batch(self) -> Tensor:
        generator = torch.Generator().manual_seed(1_000_003 * (self.cell.seed + 1) + len(self.losses))
        span, rows = torch.arange(law.LENGTH + 1, device=self.device), []
        for tokens in self.text.train.values():
            starts = torch.randint(len(tokens) - law.LENGTH, (law.BATCH // 2, 1), generator=generator)
            rows.append(tokens[starts.to(self.device) + span])
        return torch.cat(rows).long()

    def advance(self, rate: float) -> None:
        batch = self.batch()
        for group in (group for each in self.optimizers for group in each.param_groups):
            group["lr"] = rate * group["peak"]
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
            logits = self.model(batch[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())


TEXT: Corpus
"""Of a worker."""
GIVEN: dict[str, Any] = {}


def begin(plain: Path, given: dict[str, Any]) -> None:
    """What a worker does first."""
    global TEXT
    choose.DENSE_ON_GPU = 2**40  # at 4096 tokens too: FlexAttention would be compiled for the few of the tests
    law.BATCH = given["batch"]
    SIZES.update(given["sizes"])
    torch.set_num_threads(1)
    TEXT = read(plain, given["device"])
    if given["shortened"] > 1:
        law.FAR, law.CONTEXTS, law.COPIES = 1024, (8, 512), 2
        for of in TEXT.passages.values():
            of |= {"near": of["near"][:2], "validation": of["validation"][:2], "far": of["far"][:2, : law.FAR + 1]}
    GIVEN.update(given)


def steps_of(budget: int, facts: Mapping[str, Any], batch: int, shortened: int = 1) -> int:
    tokens = budget * 1e6 / facts["mean bytes per token"] / shortened
    return max(4, round(tokens / (batch * law.LENGTH)))


def work_on(task: Task, out: Path) -> dict[Cell, float]:
    """The validation loss of each cell. They are written as they are finished."""
    began, training, found = time.time(), OnDevice(task.cells()[0], TEXT), {}
    for cell in sorted(task.cells(), key=lambda c: c.budget):
        end = steps_of(cell.budget, TEXT.facts, law.BATCH, GIVEN["shortened"])
        start = end - max(1, round(law.COOLDOWN * end))
        while len(training.losses) < start:
            training.advance(scale(len(training.losses), start, end))
        trunk = training.state()
        while len(training.losses) < end:
            training.advance(scale(len(training.losses), start, end))
        losses = torch.stack(training.losses).tolist()
        trained = time.time()
        finite = math.isfinite(losses[-1])
        measured = law.measure(training.model.eval(), TEXT, far=True) if finite else {"validation": None}
        training.model.train()
        result = {
            "cell": asdict(cell), "batch": law.BATCH, "stage": GIVEN["stage"], "commit": GIVEN["commit"],
            "registration": GIVEN["registration"], "start": round(began), "finish": round(time.time()),
            **law.counted(cell, training.model, TEXT, losses), "seconds": round(trained - began, 1),
            "test_seconds": round(time.time() - trained, 1), "machine": GIVEN["machine"], **measured,
        }  # fmt: skip
        with out.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(result, separators=(",", ":")) + "\n")
        found[cell] = math.inf if measured["validation"] is None else measured["validation"]
        training.restore(trunk)
    return found


def spend(options: argparse.Namespace) -> None:
    until = time.time() + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    out, plain = options.out / "law.jsonl", Path(tempfile.gettempdir()) / "law-tokens.npz"
    unpack(options.tokens, plain)
    dry, facts = options.dry_run, facts_of(np.load(plain))
    if not dry:
        budgets = {budget for *_, each in PLANS[options.stage] for budget in each}
        law.possible(budgets, FIRST_RATES, facts, lambda budget: steps_of(budget, facts, BATCH))
    device = "cpu" if dry else "cuda"
    registration = law.HERE / f"registration{options.stage}.json"
    given = {
        "batch": 2 if dry else BATCH, "shortened": 1000 if dry else 1, "device": device, "commit": options.commit, "stage": options.stage,
        "sizes": {size: {"dim": 32, "num_layers": 1, "num_heads": 2} for size in SIZES} if dry else {},
        "registration": law._sha256(registration.read_bytes()) if registration.exists() else None,
        "machine": {"device": device if dry else torch.cuda.get_device_name(), "torch": str(torch.__version__)},
    }  # fmt: skip
    done: Losses = {} if dry else {c: v for each in finished() for c, v in [(Cell(**each["cell"]), loss_of(each))]}
    began, running, failed = time.time(), dict[Future[dict[Cell, float]], Task](), Counter[Cell]()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(options.jobs, context, begin, (plain, given))
    while time.time() < until:
        busy = {cell for task in running.values() for cell in task.cells()}
        busy |= {cell for cell, times in failed.items() if times > 1}
        for task in list(waiting(options.stage, done, busy)):
            if len(running) >= options.jobs:
                break
            if busy.isdisjoint(task.cells()):
                busy |= set(task.cells())
                running[pool.submit(work_on, task, out)] = task
        if not running:
            break
        ready, _ = wait(running, timeout=max(0.1, until - time.time()), return_when=FIRST_COMPLETED)
        for future in ready:
            task = running.pop(future)
            try:
                results = future.result()
            except Exception as error:  # one task's fault does not end the lease
                print(f"{time.time() - began:.0f} s {task}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                failed.update(task.cells())
                if isinstance(error, BrokenProcessPool):
                    pool = ProcessPoolExecutor(options.jobs, context, begin, (plain, given))
                continue
            done |= results
            named = ", ".join(f"{cell.budget} MB {loss:.4f}" for cell, loss in results.items())
            print(
                f"{time.time() - began:.0f} s {task.size} {task.encoding} seed {task.seed} x{task.rate:g}: {named}",
                flush=True,
            )
    for process in list(pool._processes.values()):
        process.kill()
    plain.unlink()
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    flops = sum(each["flops"] for each in lines)
    took = time.time() - began
    print(
        f"{len(lines)} cells in {took:.0f} s: {flops:.3g} FLOPs counted by cell, {flops / took / PEAK:.1%} of the bfloat16 peak"
    )


FOLLOWED, FOLLOWED_STEPS = ("rope", "alibi", "fox", "shaw"), 100


def follow_one(encoding: str, half: bool) -> dict[str, Any]:
    """The training losses of the smallest size in steps of 8 x 512 tokens, means of ten: the same numbers are drawn on each processor."""
    training = OnDevice(Cell("0.6M", encoding, 0, 1.0, 1), TEXT, half)
    for step in range(FOLLOWED_STEPS):
        training.advance(scale(step, 65, FOLLOWED_STEPS))
    losses = torch.stack(training.losses).reshape(-1, 10).mean(1).tolist()
    return {
        "encoding": encoding, "device": GIVEN["device"], "dtype": "bfloat16" if half else "float32", "machine": GIVEN["machine"],
        "losses": [round(loss, 4) for loss in losses],
    }  # fmt: skip


def follow(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    plain = Path(tempfile.gettempdir()) / "law-followed.npz"
    unpack(options.tokens, plain)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = {
        "device": torch.cuda.get_device_name() if device == "cuda" else describe(torch.device("cpu"))["cpu"],
        "torch": str(torch.__version__),
    }
    given = {"batch": 8, "shortened": 1, "device": device, "sizes": {}, "machine": machine}
    cases = [(encoding, half) for encoding in FOLLOWED for half in (True, False)]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), begin, (plain, given)) as pool:
        for row in pool.map(follow_one, *zip(*cases, strict=True)):
            with (options.out / "follow.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row["encoding"], row["dtype"], row["losses"], flush=True)


# ---------------------------------------------------------------- what came back


def loss_of(each: dict[str, Any]) -> float:
    return math.inf if each["validation"] is None else float(each["validation"])


def finished() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CELLS.read_text().splitlines()] if CELLS.exists() else []


def add(path: Path) -> None:
    """A cell that is there already is left as it is."""
    there = {Cell(**each["cell"]): each for each in finished()}
    new = [json.loads(line) for line in path.read_text().splitlines()]
    for each in new:
        there.setdefault(Cell(**each["cell"]), each)
    ordered = sorted(there, key=lambda c: (float(c.size[:-1]), c.encoding, c.seed, c.rate, c.budget))
    CELLS.write_text("".join(json.dumps(there[c], separators=(",", ":")) + "\n" for c in ordered))
    print(f"{len(there)} cells")


def chosen() -> list[dict[str, Any]]:
    """The cells at their encoding's rate that did not diverge."""
    cells = finished()
    done = {Cell(**each["cell"]): loss_of(each) for each in cells}
    return [
        each
        for each in cells
        if each["validation"] is not None and each["cell"]["rate"] == rate_of(each["cell"]["encoding"], done)
    ]


EXPONENTS = tuple(np.round(np.arange(0.05, 1.01, 0.05), 2).tolist())
WIDTHS = {
    ("28M", 16): (0.02, 0.05),
    ("28M", 32): (0.02, 0.05),
    ("28M", 64): (0.03, 0.06),
    ("3M", 64): (0.015, 0.03),
    ("10M", 64): (0.015, 0.03),
}
"""Half an interval of 80 %, of differences to `rope` and of losses, by size and budget."""


def plane(losses: dict[tuple[int, str, float], float], size: int, encoding: str, budget: int) -> float:
    """The loss on a plane in log N and log D through the cells from 3 M weights and 16 MB on; a doubling beyond 32 MB lowers it by 0.8 of the
    doubling before, as stage 1 says."""
    rows = [(n, d, loss) for (n, e, d), loss in losses.items() if e == encoding and n > 1e6 and d in (16, 32)]
    several = len({n for n, _, _ in rows}) > 1
    given = np.array([[1.0, math.log2(d), *[math.log(n)] * several] for n, d, _ in rows])
    found = np.linalg.lstsq(given, np.array([loss for *_, loss in rows]), rcond=None)[0]
    doublings = {16: -1.0, 32: 0.0, 64: 0.8}[budget]
    return float(found @ np.array([1.0, 5.0, *[math.log(size)] * several]) + doublings * found[1])


def register(weights: dict[str, int]) -> None:
    """law/registration4.json: what the fit of the cells of stage 3, and a plane through some, say of larger budgets and of the size that is
    held out.

    weights: of a size that no cell has yet, outside the vocabulary and without those of an encoding."""
    cells = [each for each in chosen() if each["stage"] == 3]
    some = points(cells, {each["cell"]["encoding"]: each["cell"]["rate"] for each in cells})
    losses = means([p for p in some if p.seed == 0])
    fit = fitted(losses, EXPONENTS)
    assert fit is not None, "no encoding has three budgets"
    sizes = {
        name: min((e["weights"] for e in cells if e["cell"]["size"] == name), default=weights.get(name, 0))
        for name in SIZES
    }
    says = {"fit": lambda e, n, d: float(fit.loss(e, n, d)), "plane": lambda e, n, d: plane(losses, n, e, d)}
    found = []
    for (way, loss), ((size, budget), (off, level)) in product(says.items(), WIDTHS.items()):
        for encoding in TEN if size == "3M" else SIX:
            term = {"times": 1, "size": size, "encoding": encoding, "budget": budget, "of": ["length"]}
            value = loss(encoding, sizes[size], budget)
            title = f"GPU, {way}, {size}, {budget} MB: loss at 512 tokens, {encoding}"
            if encoding == "rope":
                found.append({"id": title, "low": value - level, "high": value + level, "sum": [term]})
                continue
            value -= loss("rope", sizes[size], budget)
            terms = [term, {**term, "times": -1, "encoding": "rope"}]
            found.append({"id": f"{title} minus rope", "low": value - off, "high": value + off, "sum": terms})
    for each in found:
        each.update(low=round(each["low"], 4), high=round(each["high"], 4))
    record = {
        "stage": 4, "stated": 0.8, "cells": len(some), "a": fit.a, "b": round(fit.b, 2), "error": round(fit.error, 4), "predictions": found,
    }  # fmt: skip
    with (law.HERE / "registration4.json").open("x") as file:
        file.write(json.dumps(record, indent=1) + "\n")


def check() -> int:
    wrong = 0
    for each in finished():
        path = law.HERE / f"registration{each['stage']}.json"
        commits = [int(line) for line in law._git("log", "--format=%ct", "--", path.name).splitlines()]
        same = law._sha256(path.read_bytes()) == each["registration"] and not law._git(
            "status", "--porcelain", "--", path.name
        )
        if not (same and len(commits) == 1 and commits[0] < each["start"]):
            wrong += 1
            print(
                f"{Cell(**each['cell'])}: stage {each['stage']} was registered later than it began, or was changed since"
            )
    print(f"{len(finished()) - wrong} of {len(finished())} cells on a GPU began after their stage was registered")
    return int(wrong > 0)


def by_cell() -> Cells:
    found: Cells = defaultdict(list)
    for each in chosen():
        cell = each["cell"]
        found[cell["size"], cell["encoding"], cell["budget"]].append(each)
    return found


def judged() -> list[tuple[dict[str, Any], float | None]]:
    """Each prediction, and what was measured, or None."""
    cells = by_cell()
    found = []
    for stage in PLANS:
        path = law.HERE / f"registration{stage}.json"
        for p in json.loads(path.read_text())["predictions"] if path.exists() else []:
            found.append((p | {"stage": stage}, law.summed(p, cells)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    packed = commands.add_parser("pack")
    packed.add_argument("--work", type=Path, default=Path("law-work"))
    packed.add_argument("--into", type=Path, required=True)
    spent = commands.add_parser("spend")
    spent.add_argument("--tokens", type=Path, required=True)
    spent.add_argument("--out", type=Path, required=True)
    spent.add_argument("--stage", type=int, choices=PLANS, required=True)
    spent.add_argument("--minutes", type=float, required=True)
    spent.add_argument("--commit", required=True, help="what runs")
    spent.add_argument("--jobs", type=int, default=10, help="processes that share the GPU")
    spent.add_argument("--dry-run", action="store_true")
    followed = commands.add_parser("follow")
    followed.add_argument("--tokens", type=Path, required=True)
    followed.add_argument("--out", type=Path, required=True)
    followed.add_argument("--jobs", type=int, default=8)
    added = commands.add_parser("add")
    added.add_argument("file", type=Path)
    for name in ("register", "check", "judge"):
        commands.add_parser(name)
    given = parser.parse_args()
    if given.command == "pack":
        pack(given.work, given.into)
    elif given.command == "spend":
        spend(given)
        sys.stdout.flush()
        os._exit(0)  # the pool's processes are killed, which its own end would complain of
    elif given.command == "follow":
        follow(given)
    elif given.command == "add":
        add(given.file)
    elif given.command == "register":
        held_out = law.build(Cell("28M", "rope", 0, 1.0, 1))
        register({"28M": sum(p.numel() for p in held_out.parameters()) - law.VOCABULARY * SIZES["28M"]["dim"]})
    elif given.command == "check":
        return check()
    else:
        law.judge(judged())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (InputError, OSError, lzma.LZMAError) as error:
        sys.exit(f"law_lease.py: {error}")
