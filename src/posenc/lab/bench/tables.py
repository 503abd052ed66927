# SPDX-License-Identifier: Apache-2.0
"""Building the cos and sin of positions 0 .. n-1 for heads of width 128, against a copy of the finished tables."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

import posenc
from posenc.lab.bench.case import Built, Candidate, Case, Problem, Tensors
from posenc.lab.bench.rotary import (
    HEAD_DIM,
    SAMPLED_ROWS,
    THETA,
    TORCHTUNE,
    inverse_frequencies,
    llama_embedding,
    torchtune_module,
)
from posenc.lab.bench.transformers_peers import TRANSFORMERS


class Inputs:
    """Positions, and the tables of some of them in float64."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.positions: Tensor = torch.arange(problem.length, device=problem.device)[None]
        rows = torch.linspace(0, problem.length - 1, min(problem.length, SAMPLED_ROWS))
        self.rows: Tensor = rows.long().unique().to(problem.device)

    def truth(self) -> Tensors:
        angles = self.rows[:, None] * inverse_frequencies(self.problem.device)
        return angles.cos(), angles.sin()

    def measured(self, run: Any) -> Built:
        """A builder as a candidate: `run` returns cos and sin, (..., n, at least head_dim / 2)."""

        def results() -> Tensors:
            return tuple(table.reshape(self.problem.length, -1)[self.rows, : HEAD_DIM // 2] for table in run())

        # an angle made in float32 is off by its own rounding
        return Built(run, results, self.truth, 1e-4 + self.problem.length * 2.0**-24)


def copy(inputs: Inputs) -> Built:
    tables = torch.ones(2, inputs.problem.length, HEAD_DIM // 2, device=inputs.problem.device).unbind(0)

    def run() -> Tensors:
        return tuple(table.clone() for table in tables)

    return Built(run, run)


def ours(inputs: Inputs) -> Built:
    encoding = posenc.Rotary(HEAD_DIM, THETA).to(inputs.problem.device)
    return inputs.measured(partial(encoding.cos_sin, inputs.positions, torch.float32, 0))


def transformers(inputs: Inputs) -> Built:
    module = llama_embedding().to(inputs.problem.device)
    like = torch.empty(1, device=inputs.problem.device)
    return inputs.measured(lambda: module(like, inputs.positions))


def torchtune(inputs: Inputs) -> Built:
    module = torchtune_module(16, inputs.problem.device)

    def run() -> tuple[Tensor, Tensor]:
        module.build_rope_cache(inputs.problem.length)
        return module.cache[..., 0], module.cache[..., 1]

    return inputs.measured(run)


TABLES = Case(
    "tables",
    "tables",
    "Building the cos and sin tables of rotary embedding, over a copy of them",
    Inputs,
    (
        Candidate("copy of the tables", copy),
        Candidate("posenc", ours),
        Candidate("transformers", transformers, TRANSFORMERS),
        Candidate("torchtune", torchtune, TORCHTUNE),
    ),
    modes=("forward",),
    dtypes=("float32",),
)
