# SPDX-License-Identifier: Apache-2.0
"""Our Triton kernels, as a backend and for rotations. Triton is imported only when one is called."""

import math
import os
from importlib.util import find_spec

import torch
from torch import Tensor

from posenc.backends.gpus import DTYPES, recorded
from posenc.backends.problem import Problem, trains
from posenc.backends.reference import Kernel
from posenc.bias.terms import KernelInputs
from posenc.errors import InputError
from posenc.functional import Layout, interpreted, transformed
from posenc.positions.segments import distances_of

HAS_TRITON = find_spec("triton") is not None
FORCED = os.environ.get("POSENC_KERNELS") == "1"
"""Whether the kernels are the default on every GPU: set POSENC_KERNELS=1 before Python starts."""
WIDEST = 256
"""Of queries, keys and values: a tile of them has to fit into a GPU's shared memory."""
MOST_HEADS = 65535
"""Of all sequences of a batch: the second axis of a CUDA grid."""


class Triton(Kernel):
    """Serves a plain, `Relative`, `QueryRelative` or `Factored` problem over contiguous positions, without gradients. "auto" takes
    it on GPUs of RECORD alone; docs/gpu.md has what was measured."""

    def _refusal(self, problem: Problem) -> str | None:
        q, positions, bias = problem.q, problem.positions, problem.bias
        if problem.values is not None:
            return "a term on the values (w_ij) needs the attention probabilities"
        if problem.modifiers:
            return "the kernel has no score modifiers"
        if problem.branches:
            return "the kernel knows no position maps"
        if problem.dropout_p > 0:
            return "the kernel has no dropout"
        if trains(problem) or problem.learned or (not torch.compiler.is_compiling() and transformed()):
            return "the kernel has no gradients and no form for torch.func and forward-mode differentiation"
        bounds = positions.prefix, positions.window, *positions.blocks
        if positions.start is None or any(bound is not None for bound in bounds):
            return "the kernel is for contiguous positions, without padding, packing, prefix, window or blocks"
        for term in bias:
            if term.in_kernel is None:
                return f"the kernel has no form for {type(term).__name__}"
            if term.by_distance and term.positions.start != positions.start:  # type: ignore[attr-defined]
                return "a term has other positions"  # on a grid
        if [term.in_kernel for term in bias].count("products") > 1:
            return "the kernel takes one table that queries are multiplied with"
        if q.dtype == torch.float64:
            return "the kernel takes float32 and less"
        width = max(problem.width, problem.v.shape[-1])
        if width > WIDEST:
            return f"queries, keys or values {width} wide; the kernel ends at {WIDEST}"
        if q.shape[0] * q.shape[1] > MOST_HEADS:
            return f"batch times heads is {q.shape[0] * q.shape[1]}; the kernel's grid ends at {MOST_HEADS}"
        if not HAS_TRITON:
            return "Triton is not installed (pip install triton)"
        interpreted = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")  # which Triton reads when it is imported
        if q.device.type != "cuda" and not (q.device.type == "cpu" and interpreted):
            return f"the kernel runs on CUDA, not on {q.device.type}"
        return None

    def _why(self, problem: Problem) -> tuple[str, str]:
        measured = "" if FORCED else f", {'' if is_default(problem) else 'not '}measured as the fastest on this GPU"
        return f"posenc's own kernel{measured}", ""

    def _attend(self, problem: Problem) -> Tensor:
        from posenc.backends.triton_kernels import relative_attention

        positions, inputs = problem.positions, KernelInputs()
        assert positions.start is not None
        distances = distances_of(positions)  # of each cell
        for term in problem.others:
            inputs = term.reduced(distances, problem.q.device).for_kernel(inputs)
        q, k, v, scale = problem.widened()
        diagonal = positions.start[0] - positions.start[1] if positions.causal else k.shape[2] - 1
        # of float32 products on tensor cores: what torch.set_float32_matmul_precision allows
        exact = q.device.type != "cuda" or torch.get_float32_matmul_precision() == "highest"
        out, lse = relative_attention(q, k, v, *inputs, scale, diagonal, "ieee" if exact else "tf32")
        return out if problem.sink is None else problem.with_sink(out, lse)


def verified(kernel: str, device: torch.device, size: int = 0) -> bool:
    """Whether one of our kernels is a default on a device: RECORD has it from this size on, or it is FORCED."""
    least = recorded(device).get("kernels", {}).get(kernel, math.inf)
    return HAS_TRITON and device.type == "cuda" and (FORCED or size >= least)


def is_default(problem: Problem) -> bool:
    """Whether "auto" takes our attention kernel: in half precision and heads of at most 128, which were measured, with a bias that
    is read in ways that RECORD has of the GPU, from as many queries and keys on, or keys of one query."""
    reads = {term.in_kernel for term in problem.bias}
    (*_, queries, width), (*_, keys, value_width) = problem.q.shape, problem.v.shape
    way, size = (", one query", keys) if queries == 1 else ("", min(queries, keys))
    timed = bool(reads) and (FORCED or (problem.q.element_size() == 2 and max(width, value_width) <= 128))
    return timed and all(name is not None and verified(name + way, problem.q.device, size) for name in reads)


def fits_kernel(q: Tensor, k: Tensor, cos: Tensor) -> bool:
    """Whether `rotary_kernel` is to serve: CUDA tensors that it takes, where it is `verified`, and neither torch.func, a compiler, a
    tracer, an export nor a dispatch mode (fake tensors) is at work; a compiler fuses PyTorch's formula with what is around it. Else the
    formula is taken."""
    if not (k.is_cuda and q.dtype in DTYPES) or torch.compiler.is_exporting():
        return False
    if torch.compiler.is_compiling():
        return HAS_TRITON and FORCED and _of_one_kernel(q, k, cos)
    others = interpreted() or torch._C._get_tracing_state() is not None
    return not others and verified("rotary", q.device) and _of_one_kernel(q, k, cos)


def _of_one_kernel(q: Tensor, k: Tensor, cos: Tensor) -> bool:
    """Whether the tensors are such as `rotary_kernel` takes; the formula takes more."""
    alike = q.dtype == k.dtype and q.device == k.device and q.dim() == k.dim() == cos.dim() == 4
    if not alike or (cos.requires_grad and torch.is_grad_enabled()):
        return False
    rows = q.shape[0] == k.shape[0] and cos.shape[0] in (1, q.shape[0])
    return rows and q.shape[2:] == k.shape[2:] and cos.shape[1] == 1 and cos.shape[2] == q.shape[2]


def rotary_kernel(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, layout: Layout = "half", start: int = 0
) -> tuple[Tensor, Tensor]:
    """Queries (batch, heads, n, head_dim) and keys (batch, kv_heads, n, head_dim) of the same tokens, rotated by one
    kernel: `posenc.functional.rotary` of both.

    cos, sin: (batch or 1, 1, n, pairs), constants. Any strides; float32, bfloat16, float16, computed in float32.

    Raises:
        InputError: Triton is missing, shapes that do not fit, another dtype, or an unknown layout.
    """
    if not HAS_TRITON:
        raise InputError("rotary_kernel needs Triton: pip install triton, or use posenc.functional.rotary")
    if not (_of_one_kernel(q, k, cos) and _of_one_kernel(q, k, sin) and cos.shape == sin.shape):
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("cos", cos), ("sin", sin)))
        remedy = "pass the same tokens of q and k, and constants for them, (1 or batch, 1, n, pairs)"
        raise InputError(f"{shapes}: {remedy}")
    from posenc.backends.triton_kernels import rotate

    return rotate(q, k, cos, sin, layout, start)
