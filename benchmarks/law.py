"""The law: the loss of decoders by size, budget and encoding, as benchmarks/law/registration.md registers it.

    python benchmarks/law.py run --work DIR      # trains the cells that are missing, in their order of value; run again, it goes on
    python benchmarks/law.py status              # the losses of the finished cells
    python benchmarks/law.py check               # was the registration committed before each cell, and is it unchanged?
    python benchmarks/law.py judge               # what came of the predictions

A cell is one size, encoding, seed, learning rate and budget. The budgets of one training share a trunk, whose rate falls as
1 / sqrt(step); each budget is a linear cooldown branched off it (the last 35 % of its steps). DIR has the corpus and the trunks, which
are large and can be made again; benchmarks/law/cells has a file for each finished cell. A run that is killed loses at most one cell.
Commit them as they come: `run` commits nothing. What the run needs of posenc is what the registration's commit has: see registration.md.
"""

import argparse
import ast
import hashlib
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import reduce
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import Transformer, TransformerConfig
from posenc.encodings import create
from posenc.encodings.shared import Affine
from posenc.errors import InputError
from posenc.lab.data.corpora import copied
from posenc.lab.machine import describe, flushed_denormals, keep_freed_memory
from posenc.lab.muon import Muon
from posenc.lab.train import projections_of
from posenc.lab.transformer import Attention

HERE = Path(__file__).parent / "law"
CELLS, REGISTRATION, STAGE2 = HERE / "cells", HERE / "registration.json", HERE / "registration2.json"

# ---------------------------------------------------------------- what is trained

VOCABULARY, LENGTH, FAR, BATCH = 4096, 512, 4096, 8
SIZES: dict[str, dict[str, int]] = {
    "0.6M": {"dim": 128, "num_layers": 3, "num_heads": 4},
    "3M": {"dim": 256, "num_layers": 4, "num_heads": 4},
    "10M": {"dim": 384, "num_layers": 6, "num_heads": 6},
    "28M": {"dim": 544, "num_layers": 8, "num_heads": 8},
}
"""Weights outside the vocabulary; depth grows with width."""
SIX = ("rope", "alibi", "kerple", "fox", "shaw", "none")
SLOW = "stick_breaking"
"""Takes 3.7 times the time of `rope` on a CPU."""
BUDGETS = (1, 2, 4, 8, 12)
"""Megabytes of text that a model is trained on."""
RATES = {"learning_rate": 0.05, "adamw_learning_rate": 0.01, "position_learning_rate": 0.05}
"""Peaks, as in posenc compare: Muon's, AdamW's for the embedding and the norms, AdamW's for tables of the encoding, which is not swept."""
FIRST_RATES, LEAST_RATE, MOST_RATE = (1.0, 0.5), 0.125, 4.0
COOLDOWN, FLAT, WARM_UP = 0.35, 30, 12
MOST_READ = 4
"""Times that a budget may read a text."""


@dataclass(frozen=True)
class Cell:
    size: str
    encoding: str
    seed: int
    rate: float
    budget: int

    @property
    def trunk(self) -> str:
        return f"{self.size}-{self.encoding.replace(':', '_')}-seed{self.seed}-rate{self.rate:g}"

    @property
    def path(self) -> Path:
        return CELLS / f"{self.trunk}-{self.budget:02}MB.json"

    def read(self) -> dict[str, Any] | None:
        return json.loads(self.path.read_text()) if self.path.exists() else None


def waiting() -> Iterator[Cell]:
    """The cells in their order of value; which rate comes next depends on those that are finished."""
    first, last = "0.6M", "3M"
    for encoding in SIX:
        yield from sweep(encoding)
    for budget in (2, 4):
        yield from (at_best(first, each, 0, budget) for each in SIX)
    for budget in (1, 2, 4):
        yield from (at_best(first, each, 1, budget) for each in SIX)
    yield from sweep(SLOW)
    yield from (at_best(first, SLOW, 0, budget) for budget in (2, 4))
    yield from (at_best(first, each, 0, 8) for each in SIX)
    yield from (at_best(first, each, 0, 12) for each in SIX)  # registered behind 3 M; it decides predictions 5 to 7
    yield from (at_best(last, each, 0, budget) for budget in (2, 4) for each in SIX)
    there = [at_best(last, each, 0, budget) for each in SIX for budget in (2, 4)]
    yield from (replace(cell, rate=1.0) for cell in there if cell.rate != 1)  # the order there is that of the rates
    yield from (at_best(first, each, 1, 8) for each in SIX)
    yield from (at_best(first, SLOW, 1, budget) for budget in (1, 2, 4))
    yield from (at_best(first, each, 1, 12) for each in SIX)
    yield from (at_best(first, SLOW, seed, budget) for budget in (8, 12) for seed in (0, 1))
    yield from (at_best(last, each, 1, budget) for budget in (2, 4) for each in SIX)
    yield from (at_best(last, each, seed, budget) for budget in (8, 12) for seed in (0, 1) for each in SIX)
    yield from (at_best(last, SLOW, seed, budget) for budget in (2, 4, 8, 12) for seed in (0, 1))


def tried(encoding: str) -> dict[float, float]:
    """The validation loss of each rate that was tried at the smallest budget."""
    found = {}
    for path in CELLS.glob(f"0.6M-{encoding.replace(':', '_')}-seed0-rate*-01MB.json"):
        cell = json.loads(path.read_text())
        found[cell["cell"]["rate"]] = cell["validation"] if cell["validation"] is not None else math.inf
    return found


def sweep(encoding: str) -> Iterator[Cell]:
    """Rates at the smallest budget until the best lies between two others, or at an end of what is tried."""
    while True:
        losses = tried(encoding)
        missing = [rate for rate in FIRST_RATES if rate not in losses]
        if not missing:
            best = min(losses, key=lambda rate: losses[rate])
            missing = [r for r in (best / 2, best * 2) if r not in losses and LEAST_RATE <= r <= MOST_RATE]
        if not missing:
            return
        yield Cell("0.6M", encoding, 0, missing[0], BUDGETS[0])


def at_best(size: str, encoding: str, seed: int, budget: int) -> Cell:
    losses = tried(encoding)
    return Cell(size, encoding, seed, min(losses, key=lambda rate: losses[rate]), budget)


# ---------------------------------------------------------------- the corpus

PROSE = ("scipy", "pandas", "sklearn", "sympy", "networkx", "matplotlib", "numpy", "torch")
CODE = (
    "ray", "mypy", "fontTools", "nltk", "onnxscript", "hypothesis", "tornado", "pydantic", "narwhals", "IPython", "docutils", "datasets",
    "huggingface_hub", "timm", "lm_eval", "accelerate",
)  # fmt: skip
DISTRIBUTIONS = {"sklearn": "scikit-learn", "fontTools": "fonttools", "IPython": "ipython"}
LEFT_OUT = {"test", "tests", "testing", "_vendor", "vendored", "externals", "thirdparty_files", "generated"}
NEAR, NEAR_HELD_OUT, HELD_OUT = 0.5, 0.1, 0.1
"""A document of which a larger share are copies of earlier ones is left out; of the held-out ones, a smaller one."""
PASSAGES, FAR_PASSAGES, VALIDATION, COPIES = 64, 16, 32, 8
"""Of each of the two texts."""


def files(package: str) -> Iterator[tuple[str, bytes]]:
    distribution = metadata.distribution(DISTRIBUTIONS.get(package, package))
    root = Path(str(distribution.locate_file(package)))
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root.parent)
        if LEFT_OUT.isdisjoint(name.parts):
            yield str(name), path.read_bytes().replace(b"\r\n", b"\n")


def docstrings(source: bytes) -> bytes:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return b""
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
    return "\n\n".join(text for text in found if text).encode(errors="ignore")


def documents(packages: Sequence[str], prose: bool) -> tuple[list[bytes], dict[str, Any]]:
    """Documents of the two texts, in an order that their names alone decide, and what each package gave."""
    found, facts = {}, {}
    for package in packages:
        texts = {name: docstrings(text) if prose else text for name, text in files(package)}
        texts = {name: text for name, text in texts.items() if len(text) > 200 and _is_utf8(text)}
        digest = hashlib.sha256(b"".join(name.encode() + b"\0" + text for name, text in sorted(texts.items())))
        version = metadata.version(DISTRIBUTIONS.get(package, package))
        facts[f"{package}=={version}"] = {
            "files": len(texts), "bytes": sum(map(len, texts.values())), "sha256": digest.hexdigest(),
        }  # fmt: skip
        found |= texts
    return [found[name] for name in sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())], facts


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass
class Corpus:
    """train: ids of each text. passages: (n, tokens) of each kind. sizes: (vocabulary,) bytes of a token."""

    train: dict[str, Tensor]
    passages: dict[str, dict[str, Tensor]]
    sizes: Tensor
    facts: dict[str, Any]

    @property
    def bytes_per_token(self) -> float:
        return statistics.fmean(float(self.sizes[each.long()].mean()) for each in self.train.values())


def corpus(work: Path) -> Corpus:
    """Made once, then read from the folder."""
    path = work / "corpus.pt"
    if not path.exists():
        work.mkdir(parents=True, exist_ok=True)
        torch.save(asdict(_make()), path)
    return Corpus(**torch.load(path))


def _make() -> Corpus:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    parts: dict[str, tuple[list[bytes], list[bytes]]] = {}
    facts: dict[str, Any] = {"texts": {}}
    for name, packages in (("prose", PROSE), ("code", CODE)):
        texts, sources = documents(packages, prose=name == "prose")
        shares = copied(texts)
        distinct = [(text, share) for text, share in zip(texts, shares, strict=True) if share <= NEAR]
        left = HELD_OUT * sum(len(text) for text, _ in distinct)
        cut = len(distinct)
        while left > 0:
            cut -= 1
            left -= len(distinct[cut][0])
        held_out = [text for text, share in distinct[cut:] if share <= NEAR_HELD_OUT]
        parts[name] = [text for text, _ in distinct[:cut]], held_out
        facts["texts"][name] = {
            "packages": sources, "documents": len(texts), "left out as copies": len(texts) - len(distinct),
            "train bytes": sum(map(len, parts[name][0])), "held-out bytes": sum(map(len, held_out)),
        }  # fmt: skip
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False, special_tokens=[]
    )
    # as much of either text: a part of each is enough for 4096 tokens
    heads = [text.decode() for name in parts for text in _head(parts[name][0], 5_000_000)]
    tokenizer.train_from_iterator(heads, trainer)
    train, passages = {}, {}
    for name, (texts, held_out) in parts.items():
        train[name] = torch.cat([_ids(tokenizer, text + b"\n\n") for text in texts])
        passages[name] = _passages([_ids(tokenizer, text) for text in held_out])
    sizes = torch.tensor([len(tokenizer.id_to_token(i)) for i in range(VOCABULARY)])  # a character is a byte
    digest = hashlib.sha256(tokenizer.to_str().encode())
    for name in parts:
        for tensor in (train[name], *passages[name].values()):
            digest.update(tensor.numpy().tobytes())
    facts |= {"tokens": {name: len(each) for name, each in train.items()}, "sha256": digest.hexdigest()}
    facts["bytes per token"] = {
        name: round(float(sizes[each.long()].float().mean()), 3) for name, each in train.items()
    }
    return Corpus(train, passages, sizes.float(), facts)


def _head(texts: Sequence[bytes], size: int) -> Iterator[bytes]:
    for text in texts:
        if size <= 0:
            return
        size -= len(text)
        yield text


def _ids(tokenizer: Any, text: bytes) -> Tensor:
    return torch.tensor(tokenizer.encode(text.decode()).ids, dtype=torch.int32)


def _passages(texts: Sequence[Tensor]) -> dict[str, Tensor]:
    """Passages out of held-out documents, none of which overlap: far ones first, at most two of a document, then those of the
    training length, at most four of a document, and those that choose the rate."""
    far, near = [], []
    for text in texts:
        pieces = text.unfold(0, FAR + 1, FAR + 1) if len(text) > FAR else text[:0].reshape(0, FAR + 1)
        taken = min(2, len(pieces), FAR_PASSAGES - len(far))
        far += list(pieces[:taken])
        rest = text[taken * (FAR + 1) :]
        if len(rest) > LENGTH:
            near += list(rest.unfold(0, LENGTH + 1, LENGTH + 1)[:4])
    if len(far) < FAR_PASSAGES or len(near) < PASSAGES + VALIDATION:
        raise InputError(f"{len(far)} far and {len(near)} near passages are too few: give more packages")
    near_ = torch.stack(near[: PASSAGES + VALIDATION])
    return {"far": torch.stack(far), "near": near_[:PASSAGES], "validation": near_[PASSAGES:]}


# ---------------------------------------------------------------- training


def possible(
    budgets: Iterable[int], rates: Sequence[float], facts: Mapping[str, Any], steps: Callable[[int], int]
) -> None:
    """What is planned can be trained. facts: of the corpus. steps: of a budget.

    Raises:
    InputError: a sweep of one rate, a text that is too small for a budget, or a budget that cools down before the warm-up ends.
    """
    if len(set(rates)) < 2:
        raise InputError(
            "a sweep has at least two different rates", "the best of one is at both edges", rates=list(rates)
        )
    for budget in budgets:
        for name, of in facts["texts"].items():
            times = budget * 1e6 / 2 / of["train bytes"]
            if times > MOST_READ:
                raise InputError(
                    f"half of it would read the {of['train bytes'] / 1e6:g} MB of {name} {times:.1f} times",
                    f"at most {MOST_READ} times: give more packages",
                    budget=budget,
                )
        start = steps(budget) - max(1, round(COOLDOWN * steps(budget)))
        if start < WARM_UP:
            raise InputError(
                f"{steps(budget)} steps cool down from step {start} on, before the warm-up of {WARM_UP} ends",
                "give a larger budget",
                budget=budget,
            )


def steps_of(budget: int, text: Corpus) -> int:
    return round(budget * 1e6 / (BATCH * LENGTH * text.bytes_per_token))


def batch_of(text: Corpus, seed: int, step: int) -> Tensor:
    """(BATCH, LENGTH + 1): half of it prose, half code; the same for all encodings."""
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + step)
    rows = []
    for tokens in text.train.values():
        starts = torch.randint(len(tokens) - LENGTH, (BATCH // 2, 1), generator=generator)
        rows.append(tokens[starts + torch.arange(LENGTH + 1)])
    return torch.cat(rows).long()


def build(cell: Cell) -> Transformer:
    shape = SIZES[cell.size]
    torch.manual_seed(cell.seed)
    encoding = create(
        cell.encoding, dim=shape["dim"], num_heads=shape["num_heads"], head_dim=shape["dim"] // shape["num_heads"],
        num_layers=shape["num_layers"], max_positions=LENGTH, causal=True,
    )  # fmt: skip
    torch.manual_seed(cell.seed)
    return Transformer(TransformerConfig(VOCABULARY, **shape), encoding)


def optimizers_of(model: Transformer, rate: float) -> list[torch.optim.Optimizer]:
    """As posenc compare: Muon for matrices that act on features, AdamW for the rest, tables of the encoding at their own rate."""
    projections, outer = projections_of(model), (model.embedding, model.head)
    queries = {
        id(m.query.weight): layer for layer, m in enumerate(m for m in model.modules() if isinstance(m, Attention))
    }
    muon: list[dict[str, Any]] = []
    for module in model.modules():
        if isinstance(module, nn.Linear | Affine) and module not in outer:
            layer = queries.get(id(module.weight))
            damping = 1.0 if layer is None else model.query_damping(model.encoding, layer)
            muon.append({"params": [module.weight], "lr": rate * RATES["learning_rate"] * damping})
    known = {id(p) for group in muon for p in group["params"]}
    tables = [p for name, p in model.encoding.named_parameters() if id(p) not in known and name not in projections]
    known |= {id(p) for p in tables}
    rest = [p for p in model.parameters() if id(p) not in known]
    groups: list[dict[str, Any]] = [{"params": rest, "lr": rate * RATES["adamw_learning_rate"]}]
    if tables:
        groups.append({"params": tables, "lr": RATES["position_learning_rate"]})
    made = [
        Muon(muon, lr=rate * RATES["learning_rate"], momentum=0.95, weight_decay=0.1),
        torch.optim.AdamW(groups, lr=RATES["adamw_learning_rate"], betas=(0.9, 0.95), weight_decay=0.0),
    ]
    for group in (group for each in made for group in each.param_groups):
        group["peak"] = group["lr"]
    return made


def scale(step: int, start: int, end: int) -> float:
    """The rate of a step over its peak: a warmup, full to step FLAT, then as 1 / sqrt(step); from `start` on linearly to 0 at `end`."""

    def trunk(at: int) -> float:
        return min(1.0, (at + 1) / WARM_UP) * min(1.0, FLAT / (at + 1)) ** 0.5

    return trunk(step) if step < start else trunk(start) * (end - step) / (end - start)


class Training:
    """A trunk: `advance` trains one step; `state` and `restore` make branches."""

    def __init__(self, cell: Cell, text: Corpus) -> None:
        self.cell, self.text = cell, text
        self.model = build(cell)
        self.optimizers = optimizers_of(self.model, cell.rate)
        self.losses: list[float] = []
        self.seconds = 0.0
        """Of a processor, for all steps so far."""

    def advance(self, rate: float) -> None:
        began = time.process_time()
        batch = batch_of(self.text, self.cell.seed, len(self.losses))
        for group in (group for each in self.optimizers for group in each.param_groups):
            group["lr"] = rate * group["peak"]
        loss = F.cross_entropy(self.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.losses.append(float(loss.detach()))
        self.seconds += time.process_time() - began

    def state(self) -> dict[str, Any]:
        return deepcopy({
            "model": self.model.state_dict(), "optimizers": [each.state_dict() for each in self.optimizers],
            "losses": self.losses, "seconds": self.seconds,
        })  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(deepcopy(saved))
        self.losses, self.seconds = list(state["losses"]), state["seconds"]


def run_cell(cell: Cell, text: Corpus, work: Path) -> dict[str, Any]:
    """What is written into a cell's file."""
    began, training = time.time(), Training(cell, text)
    end = steps_of(cell.budget, text)
    start = end - max(1, round(COOLDOWN * end))
    stored = work / "trunks" / f"{cell.trunk}.pt"
    if stored.exists() and len((state := torch.load(stored))["losses"]) <= start:
        training.restore(state)
    while len(training.losses) < start:
        training.advance(scale(len(training.losses), start, end))
    stored.parent.mkdir(parents=True, exist_ok=True)
    torch.save(training.state(), stored.with_suffix(".new"))
    stored.with_suffix(".new").replace(stored)
    while len(training.losses) < end:
        training.advance(scale(len(training.losses), start, end))
    finite = math.isfinite(training.losses[-1])
    tested = time.process_time()
    measured = measure(training.model.eval(), text, far=cell.budget > BUDGETS[0]) if finite else {"validation": None}
    return {
        "cell": asdict(cell), "commit": _git("rev-parse", "HEAD"), "registration": _sha256(REGISTRATION.read_bytes()),
        "start": round(began), "finish": round(time.time()), **counted(cell, training.model, text, training.losses),
        "training_seconds": round(training.seconds, 1), "test_seconds": round(time.process_time() - tested, 1),
        "machine": describe(torch.device("cpu")) | {"threads": torch.get_num_threads()}, **measured,
    }  # fmt: skip


def counted(cell: Cell, model: nn.Module, text: Corpus, losses: Sequence[float]) -> dict[str, Any]:
    """What a training read and computed: a step's passes are three times a forward pass. losses: of each step, of which the means of 20 are given."""
    parameters, shape = sum(p.numel() for p in model.parameters()), SIZES[cell.size]
    tokens, attended = len(losses) * BATCH * LENGTH, 2 * (LENGTH + 1) * shape["dim"] * shape["num_layers"]
    return {
        "corpus": text.facts["sha256"], "steps": len(losses), "tokens": tokens, "weights": parameters - VOCABULARY * shape["dim"],
        "parameters": parameters, "flops": tokens * 3 * (2 * parameters + attended),
        "training_loss": [round(statistics.fmean(losses[at : at + 20]), 4) for at in range(0, len(losses), 20)],
    }  # fmt: skip


# ---------------------------------------------------------------- tests

TARGETS, CONTEXTS = 64, (8, 32, 128, 512)


@torch.no_grad()
def losses_of(model: nn.Module, tokens: Tensor, at_once: int = 8) -> Tensor:
    """(n, length): nats of each token after the first."""
    pieces = []
    for batch in tokens.long().split(at_once):
        logits = model(batch[:, :-1])
        pieces.append(F.cross_entropy(logits.mT, batch[:, 1:], reduction="none"))
    return torch.cat(pieces)


def per_byte(losses: Tensor, tokens: Tensor, sizes: Tensor) -> list[float]:
    """Of each passage: the nats of its last tokens, those that `losses` has, over their bytes."""
    spelled = sizes[tokens[:, -losses.shape[1] :].long()].sum(1)
    return [round(value, 4) for value in (losses.double().sum(1) / spelled).tolist()]


def seeing(model: nn.Module, passages: Tensor, context: int) -> Tensor:
    """(n, TARGETS): the loss of the last targets, each with at most `context` tokens before it, and at least 7/8 of them."""
    most = max(1, min(TARGETS, context // 8))
    ends = passages.shape[1] - torch.arange(0, TARGETS, most).flip(0)
    rows = torch.stack([passages[:, end - context - 1 : end] for end in ends.tolist()], 1)
    losses = losses_of(model, rows.flatten(0, 1), max(1, 4096 // context))[:, -most:]
    return losses.reshape(len(passages), TARGETS)


@torch.no_grad()
def measure(model: nn.Module, text: Corpus, far: bool) -> dict[str, Any]:
    """Nats per byte of each passage: over the training length, of the last targets by context, and, if `far`, at 8 times;
    the share of tokens right in the second of two copies."""
    found: dict[str, Any] = {}
    with flushed_denormals():
        for name, of in text.passages.items():
            near, long, sizes = of["near"], of["far"], text.sizes
            again = torch.cat((near[:COPIES, : LENGTH // 2], near[:COPIES, : LENGTH // 2]), 1)
            found[name] = {
                "length": per_byte(losses_of(model, near), near, sizes),
                "context": {c: per_byte(seeing(model, near, c), near, sizes) for c in CONTEXTS},
                "copied_near": _right(model, again, LENGTH // 2),
            }
            if far:
                first = near[: COPIES // 2, :TARGETS]
                apart = torch.cat((first, long[: COPIES // 2, : FAR - 2 * TARGETS], first), 1)
                found[name]["far_context"] = {c: per_byte(seeing(model, long, c), long, sizes) for c in (LENGTH, FAR)}
                found[name]["copied_far"] = _right(model, apart, TARGETS)
        chosen = [
            v
            for of in text.passages.values()
            for v in per_byte(losses_of(model, of["validation"]), of["validation"], text.sizes)
        ]
    return {"validation": round(statistics.fmean(chosen), 5), **found}


def _right(model: nn.Module, tokens: Tensor, last: int) -> list[float]:
    """The share of the last tokens but the first of them that are likeliest to the model, of each row."""
    guessed = torch.cat([model(row[None, :-1].long())[:, -last + 1 :].argmax(-1) for row in tokens])
    return [round(value, 3) for value in (guessed == tokens[:, -last + 1 :]).double().mean(1).tolist()]


# ---------------------------------------------------------------- commands


def run(work: Path, minutes: float) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    until = time.time() + 60 * minutes
    text = corpus(work)
    registered = json.loads(REGISTRATION.read_text())["corpus"]["sha256"]
    if text.facts["sha256"] != registered:
        raise InputError(
            "another text than the registered one: other versions of packages", corpus=text.facts["sha256"]
        )
    possible(BUDGETS, FIRST_RATES, text.facts, lambda budget: steps_of(budget, text))
    CELLS.mkdir(parents=True, exist_ok=True)
    while time.time() < until:
        cell = next((each for each in waiting() if each.read() is None), None)
        if cell is None:
            print("all cells are finished")
            return
        print(time.strftime("%H:%M:%S"), cell, flush=True)
        result = run_cell(cell, text, work)
        new = cell.path.with_suffix(".new")
        new.write_text(json.dumps(result, separators=(",", ":")) + "\n")
        new.replace(cell.path)
        print(
            time.strftime("%H:%M:%S"),
            cell.path.name,
            result["validation"],
            f"{result['training_seconds']} s",
            flush=True,
        )


def finished() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(CELLS.glob("*.json"))]


def passages_of(cell: Mapping[str, Any], *at: str) -> list[list[float]]:
    """A measurement of each passage, of prose and of code."""
    return [reduce(lambda found, key: found[key], at, cell[name]) for name in ("prose", "code")]


def mean(cell: Mapping[str, Any], *at: str) -> float:
    """Of prose and code."""
    return statistics.fmean(map(statistics.fmean, passages_of(cell, *at)))


def status() -> None:
    print(
        f"{'cell':44} {'MB':>3} {'512':>7} {'c8':>6} {'c32':>6} {'c128':>6} {'c512':>6} {'far512':>7} {'far4096':>7} {'copy':>5} {'far':>5}"
    )
    for each in sorted(finished(), key=lambda c: (c["cell"]["size"], c["cell"]["budget"], c["validation"] or math.inf)):
        cell = Cell(**each["cell"])
        if each["validation"] is None:
            print(f"{cell.trunk:44} {cell.budget:3} diverged")
            continue
        contexts = " ".join(f"{mean(each, 'context', str(c)):6.3f}" for c in CONTEXTS)
        far, copies = 15 * " ", f"{mean(each, 'copied_near'):5.2f}"
        if "copied_far" in each["code"]:
            far = " ".join(f"{mean(each, 'far_context', str(c)):7.3f}" for c in (LENGTH, FAR))
            copies += f" {mean(each, 'copied_far'):5.2f}"
        print(f"{cell.trunk:44} {cell.budget:3} {mean(each, 'length'):7.4f} {contexts} {far} {copies}")


def check() -> int:
    """Of each cell: the registration that it names is in this history, of before the cell began, and it is unchanged.

    What a cell ran from may be missing here (a session's commits that did not land): those are counted."""
    wrong, missing = 0, 0
    now = _sha256(REGISTRATION.read_bytes())
    commits = [line.split() for line in _git("log", "--format=%H %ct", "--", REGISTRATION.name).splitlines()]
    made = {
        _sha256(_git_bytes("show", f"{name}:benchmarks/law/registration.json") or b""): int(at) for name, at in commits
    }
    second = [int(line) for line in _git("log", "--format=%ct", "--", STAGE2.name).splitlines()]
    same = not _git("status", "--porcelain", "--", STAGE2.name)
    for each in finished():
        name, why = Cell(**each["cell"]).path.name, []
        if each["registration"] not in made:
            why.append("no commit of this history has its registration")
        elif made[each["registration"]] >= each["start"]:
            why.append("began before its registration was committed")
        if each["registration"] != now:
            why.append("its registration was changed since")
        ancestor = ["git", "merge-base", "--is-ancestor", each["commit"], "HEAD"]
        missing += bool(subprocess.run(ancestor, cwd=HERE, check=False, capture_output=True).returncode)
        if each["cell"]["budget"] >= 8 and not (len(second) == 1 and same and second[0] < each["start"]):
            why.append("stage 2 was registered later than it began, or was changed since")
        wrong += bool(why)
        if why:
            print(f"{name}: {'; '.join(why)}")
    print(f"{len(finished()) - wrong} of {len(finished())} cells began after their registration was committed")
    print(f"{missing} ran from a commit that is not in this history")
    return int(wrong > 0)


def by_cell() -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    """The trainings at the rate of their encoding that did not diverge, by size, encoding and budget."""
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for each in finished():
        cell = Cell(**each["cell"])
        if each["validation"] is not None and cell.rate == at_best(cell.size, cell.encoding, 0, 1).rate:
            found.setdefault((cell.size, cell.encoding, cell.budget), []).append(each)
    return found


def judged() -> list[tuple[dict[str, Any], float | None]]:
    """Each prediction, and what was measured; None where a cell is missing."""
    cells, found = by_cell(), []
    for stage, path in enumerate((REGISTRATION, STAGE2), 1):
        for p in json.loads(path.read_text())["predictions"]:
            found.append((p | {"stage": stage}, summed(p, cells)))
    return found


def summed(
    prediction: Mapping[str, Any], cells: Mapping[tuple[str, str, int], Sequence[Mapping[str, Any]]]
) -> float | None:
    """The measurements of a prediction, each times its weight: means over prose, code and the seeds that all of its cells have."""
    terms = [(term, cells.get((term["size"], term["encoding"], term["budget"]), ())) for term in prediction["sum"]]
    common = set.intersection(*({each["cell"]["seed"] for each in found} for _, found in terms))
    if not common:
        return None
    return sum(
        term["times"] * statistics.fmean(mean(c, *term["of"]) for c in found if c["cell"]["seed"] in common)
        for term, found in terms
    )


def judge(results: Sequence[tuple[Mapping[str, Any], float | None]]) -> None:
    """Print of each prediction the value, and whether it lies in the registered interval."""
    right = decided = 0
    for p, value in results:
        if value is None:
            print(f"{p['id']}: not yet")
            continue
        inside = p["low"] <= value <= p["high"]
        right, decided = right + inside, decided + 1
        print(
            f"{p['id']}: {value:+.3f}, predicted {p['low']:+.3f} to {p['high']:+.3f}: {'right' if inside else 'wrong'}"
        )
    print(f"{right} of {decided} predictions are right")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=HERE, check=True, capture_output=True, text=True).stdout.strip()


def _git_bytes(*arguments: str) -> bytes | None:
    done = subprocess.run(["git", *arguments], cwd=HERE, check=False, capture_output=True)
    return done.stdout if done.returncode == 0 else None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("corpus", "run", "status", "check", "judge"))
    parser.add_argument("--work", type=Path, default=Path("law-work"), help="folder of the corpus and the trunks")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no cell later than this")
    given = parser.parse_args()
    if given.command == "corpus":
        print(json.dumps(corpus(given.work).facts | {"python": platform.python_version()}, indent=1))
    elif given.command == "run":
        run(given.work, given.minutes)
    elif given.command == "check":
        return check()
    elif given.command == "judge":
        judge(judged())
    else:
        status()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (InputError, OSError) as error:
        sys.exit(f"law.py: {error}")
