# SPDX-License-Identifier: Apache-2.0
"""What a case is, as data: candidates that do the same work on the same inputs, and the limit they are compared with."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from posenc.errors import described

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
    """Why a candidate is left out of a problem."""


class Missing(Exception):
    """A package that is not installed, or cannot be imported; the message is one line, with the remedy."""


@dataclass(frozen=True)
class Candidate:
    """One way to do the work of a case.

    build: makes it from what the case's `prepare` returned. package: where it comes from, by its name on PyPI; None: posenc
    or torch. modes: what it can do. score_bytes: that it takes per score at its peak, 0 for linear memory; a training step
    takes about twice as much.
    """

    name: str
    build: Callable[[Any], Built]
    package: str | None = None
    modes: tuple[str, ...] = MODES
    score_bytes: int = 0

    def check_memory(self, problem: Workload, most: int) -> None:
        """Raises:
        Refusal: the scores take more bytes than `most`.
        """
        scores = problem.length * (1 if problem.mode == "decode" else problem.length)
        needed = self.score_bytes * scores * (2 if problem.mode == "train" else 1)
        if needed > most:
            raise Refusal(f"would take about {needed / 2**30:.0f} GiB, {most / 2**30:.0f} GiB may be used")


@dataclass(frozen=True)
class Case:
    """Candidates for the same work; the first one is the limit that the others are compared with.

    prepare: makes the weights and inputs that all of them share.
    """

    name: str
    family: str
    summary: str
    prepare: Callable[[Workload], Any]
    candidates: tuple[Candidate, ...]
    modes: tuple[str, ...] = MODES
    dtypes: tuple[str, ...] = tuple(DTYPES)

    @property
    def limit(self) -> str:
        return self.candidates[0].name


def sampled(count: int, device: torch.device) -> Tensor:
    """The rows that are compared with the formula, at most 48, evenly spread; gradients are those of these rows."""
    return torch.linspace(0, count - 1, min(count, 48)).long().unique().to(device)


@cache
def load(package: str, module: str = "", file: str = "") -> Any:
    """A module of a package, by its dotted name (the package itself, if empty); or one file of the package, without importing
    the package around it.

    Raises:
        Missing: not installed, or an error while it is imported.
    """
    root, remedy = "fla" if package == "fla-core" else package.replace("-", "_"), f"pip install {package}"
    if importlib.util.find_spec(root) is None:
        raise Missing(f"not installed: {remedy}")
    try:
        return single_file(root, file) if file else importlib.import_module(module or root)
    except Exception as error:
        raise Missing(f"cannot be imported ({described(error, 120)}): {remedy}") from None


def single_file(package: str, path: str) -> SimpleNamespace:
    """What one file of an installed package defines, without importing the package around it."""
    root = importlib.util.find_spec(package)
    if root is None or not root.submodule_search_locations:
        raise ImportError(f"{package} is not installed")
    return SimpleNamespace(**run_path(f"{root.submodule_search_locations[0]}/{path}"))


def difference(results: Tensors, expected: Tensors) -> float:
    """The largest difference of a pair of tensors, as a share of the expected one's norm; nan where one is not finite."""
    pairs = zip(results, expected, strict=True)
    shares = torch.stack([((a.detach().to(b) - b).norm() / b.norm().clamp(min=1e-30)).double() for a, b in pairs])
    return shares.max().item()  # nan, if one is
