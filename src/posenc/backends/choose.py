# SPDX-License-Identifier: Apache-2.0
"""The backends, and in which order "auto" asks them."""

import torch

from posenc.backends.flex import Flex
from posenc.backends.problem import Backend, Problem
from posenc.backends.reference import Reference
from posenc.backends.sdpa import SDPA
from posenc.backends.triton import Triton, is_default

BACKENDS: dict[str, Backend] = {"sdpa": SDPA(), "flex": Flex(), "triton": Triton(), "reference": Reference()}


AUTO: dict[str, Backend] = BACKENDS | {"sdpa": SDPA(short=True)}


def by_speed(problem: Problem) -> list[str]:
    """The names of the backends of AUTO that "auto" asks, fastest first: FlexAttention where SDPA on a GPU would need a dense mask, and before it
    our kernels on GPUs where they were faster. A program that is exported is made of formulas."""
    names = ["sdpa", "reference"]
    if problem.q.device.type == "cuda" and not problem.is_plain and not torch.compiler.is_exporting():
        names = ["triton"] * is_default(problem) + ["flex", *names]
    return names
