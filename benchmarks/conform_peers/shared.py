"""Shared code of adapters: packages return tables and ranges, and the conventions need frequencies and rows."""

import ast
import sys
from collections.abc import Callable
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy
import torch
from torch import Tensor

LONGEST = 131072
"""The maximum length of modules that need one."""


def from_angles(cos: Tensor, sin: Tensor) -> tuple[Tensor, float]:
    """(inv_freq, attention_factor) from cos and sin at position 1, one entry a pair."""
    return torch.atan2(sin.double(), cos.double()).float(), torch.hypot(cos.double(), sin.double())[0].item()


def natively(module: torch.nn.Module, x: Tensor, positions: Tensor) -> Tensor:
    """x turned by the forward_native of a rotary module of vLLM or SGLang, one sequence at a time."""
    rows = [row.transpose(0, 1).flatten(1).clone() for row in x]  # (seq, heads * head_dim)
    turned = [module.forward_native(positions, row, row.clone())[0] for row in rows]
    return torch.stack([row.flatten(1).unflatten(1, (-1, x.shape[-1])).transpose(0, 1) for row in turned])


def at_positions(turn: Callable[[Tensor], Tensor], x: Tensor, positions: Tensor) -> Tensor:
    """Rows of x at positions, by a function that turns row n of (batch, heads, n, head_dim) to position n."""
    turned = torch.empty_like(x)
    left = torch.arange(len(positions))
    while len(left):  # a position that repeats takes another turn
        rows = torch.stack([left[positions[left] == position][0] for position in positions[left].unique()])
        full = x.new_zeros(*x.shape[:2], int(positions[rows].max()) + 1, x.shape[-1])
        full[:, :, positions[rows]] = x[:, :, rows]
        result = turn(full)[:, :, positions[rows]]
        turned = turned.to(result.dtype).index_copy(2, rows, result)
        left = left[~torch.isin(left, rows)]
    return turned


def one_by_one(turn: Callable[[Tensor, int], Tensor], x: Tensor, positions: Tensor) -> Tensor:
    """Rows of x at positions, by a function of one row and its offset; runs of positions go together."""
    starts = [0, *(i for i in range(1, len(positions)) if positions[i] != positions[i - 1] + 1), len(positions)]
    parts = [turn(x[:, :, a:b], int(positions[a])) for a, b in pairwise(starts)]
    return torch.cat(parts, dim=2)


class StandIn(ModuleType):
    """A package from which every name can be imported, as an empty stub."""

    __path__: list[str] = []
    __version__ = "0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock()


def stand_in(*names: str) -> dict[str, StandIn]:
    """Install stubs for modules that cannot run here and are not tested."""
    modules = {name: StandIn(name) for name in names}
    sys.modules.update(modules)
    return modules


def without(modules: dict[str, StandIn]) -> None:
    """Take the stubs away again: another package may need the modules, or ask whether they exist."""
    for name, module in modules.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


def taken(package: str, file: str, name: str, **given: object) -> Callable[..., object]:
    """A function or method of a release, compiled from its file alone: its package, which has many requirements, is not
    imported. given: other names that it uses."""
    path = Path(str(distribution(package).locate_file(file)))
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for part in name.split("."):
        (node,) = [each for each in body if getattr(each, "name", None) == part]
        body = getattr(node, "body", [])
    module = ast.fix_missing_locations(ast.Module([ast.parse("from __future__ import annotations").body[0], node], []))
    namespace = {"torch": torch, "np": numpy, "nn": torch.nn, **given}
    exec(compile(module, str(path), "exec"), namespace)
    function: Callable[..., object] = namespace[name.split(".")[-1]]
    return getattr(function, "__func__", function)


def biased(attention: Callable[[Tensor], Tensor], seq: int) -> Tensor:
    """The bias, less that of the diagonal, of an attention function given values (seq, seq) and queries and keys of 0."""
    weights = attention(torch.eye(seq)).double()
    return weights.log() - weights.diagonal(dim1=-2, dim2=-1).log()[..., None]
