# SPDX-License-Identifier: Apache-2.0
"""GPU kernels in Triton, which is imported only when one is called."""

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.functional import Layout, transformed

HAS_TRITON = find_spec("triton") is not None
VERIFIED: frozenset[tuple[int, int]] = frozenset()
"""Compute capabilities of the GPUs on which `rotary_kernel` has been run, compared with the formula and timed by
benchmarks/rotary_gpu.py: there it is the default. None so far."""
FORCED = os.environ.get("POSENC_KERNELS") == "1"
"""Whether the kernels are the default on every GPU: set POSENC_KERNELS=1 before Python starts."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What `rotary_kernel` serves; wider ones would lose digits."""


def fits_kernel(q: Tensor, k: Tensor) -> bool:
    """Whether `rotary_kernel` is to serve: CUDA tensors on a GPU of VERIFIED, or FORCED; Triton is installed, and torch.func
    is not at work. Else PyTorch's formula is taken."""
    served = HAS_TRITON and q.is_cuda and k.is_cuda and q.dtype in DTYPES
    served = served and (FORCED or (bool(VERIFIED) and torch.cuda.get_device_capability(q.device) in VERIFIED))
    return served and (torch.compiler.is_compiling() or not transformed())


def rotary_kernel(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, layout: Layout = "half", start: int = 0, inplace: bool = False
) -> tuple[Tensor, Tensor]:
    """Queries (batch, heads, n, head_dim) and keys (batch, kv_heads, n, head_dim) of the same tokens, rotated by one
    kernel: `posenc.functional.rotary` of both.

    cos, sin: (batch or 1, 1, n, pairs), constants. Any strides; float32, bfloat16, float16, computed in float32.

    Raises:
        InputError: Triton is missing, shapes that do not fit, another dtype, an unknown layout, or inplace where entries
            share memory.
    """
    if not HAS_TRITON:
        raise InputError("rotary_kernel needs Triton: pip install triton, or use posenc.functional.rotary")
    from posenc.kernels.rotary import rotate

    return rotate(q, k, cos, sin, layout, start, inplace)
