# SPDX-License-Identifier: Apache-2.0
"""The backends, and in which order "auto" asks them."""

import torch

from posenc.backends.flex import Flex
from posenc.backends.problem import Backend, Problem
from posenc.backends.reference import Reference
from posenc.backends.sdpa import SDPA
from posenc.backends.triton import Triton, is_default
from posenc.functional import transformed

BACKENDS: dict[str, Backend] = {"sdpa": SDPA(), "flex": Flex(), "triton": Triton(), "reference": Reference()}

AUTO: dict[str, Backend] = BACKENDS | {"sdpa": SDPA(short=True)}

DENSE_ON_GPU = 2**20
"""Queries times keys up to which a GPU computes a dense mask before FlexAttention has been compiled and launched, 1024 by 1024."""


def by_speed(problem: Problem) -> list[str]:
    """The names of the backends of AUTO that "auto" asks, fastest first: FlexAttention where SDPA on a GPU would need a large dense
    mask, and before both our kernels where they were faster. A program that is exported, or torch.func's, is made of formulas."""
    names = ["sdpa", "reference"]
    elsewhere = problem.q.device.type != "cuda" or problem.is_plain
    if elsewhere or torch.compiler.is_exporting() or (not problem.traced and transformed()):
        return names
    if problem.traced or problem.pairs > DENSE_ON_GPU:
        names = ["flex", *names]
    return ["triton"] * is_default(problem) + names
