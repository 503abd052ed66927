# SPDX-License-Identifier: Apache-2.0
"""What a case is, as data: candidates that do the same work on the same inputs, and the limit they are held against."""

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

MODES = ("forward", "train", "decode")
"""One pass without gradients; one with, forward and backward; one new token against `length - 1` earlier ones."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference to the float64 formula, as a share of its norm, at which a candidate is ranked."""

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Workload:
    """The size and kind of what every candidate of a case computes."""

    length: int
    mode: str = "forward"
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=partial(torch.device, "cpu"))

    @property
    def cells(self) -> int:
        """Scores per head."""
        return self.length * (1 if self.mode == "decode" else self.length)


@dataclass(frozen=True)
class Built:
    """A candidate made for a problem.

    run: the work that is timed. results: the same work once, returning what is compared (outputs, then gradients);
    truth: the same by the formula, in float64; None where there is nothing to compare.
    """

    run: Callable[[], object]
    results: Callable[[], Tensors]
    truth: Callable[[], Tensors] | None = None
    tolerance: float = 0.0


class Refusal(Exception):
    """Why a candidate takes no part in a problem."""


@dataclass(frozen=True)
class Peer:
    """A package that a candidate needs: its name on PyPI, and the module that it is imported by."""

    package: str
    module: str

    @property
    def version(self) -> str | None:
        """None where it is not installed."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


@dataclass(frozen=True)
class Candidate:
    """One way to do the work of a case.

    build: makes it from what the case's `prepare` returned. peer: the package it comes from; None: posenc or torch.
    modes: what it can do. cells: bytes that it holds per score and head at its peak, 0 for linear memory; a training
    step is taken to hold twice as much. most: the longest sequence on a CPU, None for any, and why.
    """

    name: str
    build: Callable[[Any], Built]
    peer: Peer | None = None
    modes: tuple[str, ...] = MODES
    cells: int = 0
    most: int | None = None
    why: str = ""

    @property
    def ours(self) -> bool:
        """Whether it is posenc."""
        return self.name.split(",")[0] == "posenc"

    def check_size(self, problem: Workload, heads: int, free_bytes: int) -> None:
        """Refuse a problem that is too large.

        Raises:
            Refusal: the sequence is longer than `most`, or the scores need more than free_bytes.
        """
        if self.most is not None and problem.device.type == "cpu" and problem.length > self.most:
            raise Refusal(f"not run beyond {self.most} tokens: {self.why}")
        needed = self.cells * heads * problem.cells * (2 if problem.mode == "train" else 1)
        if needed > free_bytes:
            raise Refusal(f"would take about {needed / 2**30:.0f} GiB, {free_bytes / 2**30:.0f} GiB may be used")


@dataclass(frozen=True)
class Case:
    """Candidates for the same work; the first one is the limit that the others are compared with.

    prepare: the weights and inputs that all of them get. growth: the power of the length that the work grows with in
    forward and train. heads: how many, for the memory that scores take.
    """

    name: str
    family: str
    summary: str
    prepare: Callable[[Workload], Any]
    candidates: tuple[Candidate, ...]
    modes: tuple[str, ...] = MODES
    dtypes: tuple[str, ...] = tuple(DTYPES)
    growth: int = 1
    heads: int = 1

    @property
    def limit(self) -> str:
        return self.candidates[0].name

    def growth_in(self, mode: str) -> int:
        """The power of the length that the work grows with in a mode."""
        return 1 if mode == "decode" else self.growth


class Missing(Exception):
    """A peer that is not installed, or cannot be imported; the message is one line, with the remedy."""


@cache
def load(peer: Peer, module: str | None = None, file: str | None = None) -> ModuleType:
    """A module of a peer, by its dotted name; or one file of its package, without importing the package around it.

    Raises:
        Missing: not installed, or an error while it is imported.
    """
    remedy = f"pip install {peer.package}"
    try:
        if importlib.util.find_spec(peer.module) is None:
            raise Missing(f"not installed: {remedy}")
        return importlib.import_module(module or peer.module) if file is None else single_file(peer.module, file)
    except Missing:
        raise
    except (Exception, SystemExit) as error:
        told = " ".join(str(error).split())[:120]
        raise Missing(f"cannot be imported ({type(error).__name__}: {told}): {remedy}") from None


def single_file(package: str, path: str) -> ModuleType:
    """One module of an installed package, without importing the package around it."""
    root = importlib.util.find_spec(package)
    if root is None or not root.submodule_search_locations:
        raise ImportError(f"{package} is not installed")
    file = Path(root.submodule_search_locations[0]) / path
    name = f"{package}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # the suffix is Python's
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def difference(found: Tensors, wanted: Tensors) -> float:
    """The largest difference of a pair of tensors, as a share of the wanted one's norm; nan where one is not finite."""
    shares = []
    for a, b in zip(found, wanted, strict=True):
        share = (a.detach().to(b) - b).norm() / b.norm().clamp(min=1e-30)
        shares.append(share.item())
    return float("nan") if any(s != s for s in shares) else max(shares)
