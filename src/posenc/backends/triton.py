# SPDX-License-Identifier: Apache-2.0
"""An own Triton kernel for biases of the distance and relative tables over contiguous positions."""

import os

import torch
from torch import Tensor

from posenc.backends.problem import Problem
from posenc.backends.reference import Reference
from posenc.bias import Factored, QueryRelative, Relative
from posenc.kernels import HAS_TRITON

WIDEST = 256
"""Of queries, keys and values: a tile of them has to fit into a GPU's shared memory."""
MOST_HEADS = 65535
"""Of all sequences of a batch: the second axis of a CUDA grid."""


class Triton:
    """Serves a plain, `Relative`, `QueryRelative` or `Factored` problem over contiguous positions. It keeps the gradient of
    a learned bias from being added one score at a time, which is how FlexAttention computes it. No GPU has run it yet:
    it is tested under Triton's interpreter, and "auto" leaves it alone until it has been measured."""

    def refusal(self, problem: Problem) -> str | None:
        q, positions, bias = problem.q, problem.positions, problem.bias
        if problem.values is not None:
            return "a term on the values (w_ij) needs the attention probabilities"
        if problem.branches:
            return "the kernel knows no position maps"
        if problem.dropout_p > 0:
            return "the kernel has no dropout"
        if positions.start is None or positions.prefix is not None or positions.window is not None:
            return "the kernel is for contiguous positions, without padding, packing, prefix or window"
        for term in bias:
            if not isinstance(term, Relative | QueryRelative | Factored):
                return f"the kernel has no form for {type(term).__name__}"
            if not isinstance(term, Factored) and term.positions.start != positions.start:
                return "a term has positions of its own"  # on a grid
        if sum(isinstance(term, QueryRelative) for term in bias) > 1:
            return "the kernel takes one table that queries are multiplied with"
        if q.dtype == torch.float64:
            return "the kernel takes float32 and less"
        width = max(q.shape[-1] + sum(term.left.shape[-1] for term in problem.factored), problem.v.shape[-1])
        if width > WIDEST:
            return f"queries, keys or values {width} wide; the kernel ends at {WIDEST}"
        if q.shape[0] * q.shape[1] > MOST_HEADS:
            return f"batch times heads is {q.shape[0] * q.shape[1]}; the kernel's grid ends at {MOST_HEADS}"
        if not HAS_TRITON:
            return "Triton is not installed (pip install triton)"
        if q.device.type != "cuda" and not (q.device.type == "cpu" and _interpreted()):
            return f"the kernel runs on CUDA, not on {q.device.type}"
        return None

    def plan(self, problem: Problem) -> tuple[str, int, str]:
        if problem.is_empty:
            return "there is nothing to compute", 0, ""
        heads, queries, keys = problem.q.shape[1], problem.q.shape[2], problem.k.shape[2]
        size = problem.widened_bytes() + problem.q.shape[:3].numel() * 4  # and the log-sum-exp
        for term in problem.bias:
            if isinstance(term, Relative):
                size += 4 * heads * (queries + keys - 1)
            elif isinstance(term, QueryRelative):
                size += 4 * (term.content.shape[:3].numel() * term.table.shape[-2] + queries + keys - 1)
        return "posenc's own kernel, tested under Triton's interpreter, not measured on a GPU", size, ""

    def attend(self, problem: Problem) -> Tensor:
        if problem.is_empty:
            return Reference().attend(problem)
        from posenc.kernels.attention import relative_attention

        start, device = problem.positions.start, problem.q.device
        assert start is not None
        vector: Tensor | None = None
        products: Tensor | None = None
        row: Tensor | None = None
        for term in problem.bias:
            if isinstance(term, Relative):
                vector = term.vector(device) if vector is None else vector + term.vector(device)
            elif isinstance(term, QueryRelative):
                products = (term.content @ term.table.mT).float()
                longest = start[0] + term.num_queries - 1 - start[1]
                row = term.index(longest - torch.arange(term.num_queries + term.num_keys - 1, device=device))
        q, k, v, scale = problem.widened()
        diagonal = start[0] - start[1] if problem.positions.causal else k.shape[2] - 1
        out, lse = relative_attention(
            q, k, v, None if vector is None else vector.float(), products, row, scale, diagonal, _precision(q)
        )
        return out if problem.sink is None else problem.with_sink(out, lse)


def _interpreted() -> bool:
    # Triton reads it when it is first imported
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def _precision(q: Tensor) -> str:
    """Of float32 products on tensor cores: what torch.set_float32_matmul_precision allows matrix products."""
    allowed = q.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if allowed else "ieee"
