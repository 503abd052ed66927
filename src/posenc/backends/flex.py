# SPDX-License-Identifier: Apache-2.0
"""FlexAttention: every score structure inside one fused kernel, in linear memory wherever the structure is linear."""

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from posenc.backends.problem import Problem, merged, trains
from posenc.backends.reference import Kernel
from posenc.bias import Mixer, Modifier, Score
from posenc.bias.structures import ScoreMod
from posenc.bias.terms import Cells, Lookup
from posenc.positions import Positions
from posenc.positions.segments import distances_of

WIDEST, NARROWEST = 256, 16
"""Widths of queries, keys and values that flex's GPU kernels take; narrower ones are padded."""
VARIANTS = 1024
"""Combinations of structures, positions, dtypes and widths that a process may compile before Dynamo gives up with an
error; its own limit of 8 is for a function with one purpose."""
IS_THERE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11)
"""Whether PyTorch has it as we use it: 2.9 cannot call our score functions."""
KERNEL = os.environ.get("POSENC_FLEX_KERNEL")
"""FlexAttention's CUDA kernel: "FLASH" (FlashAttention 4, where it is installed), "TRITON", or None: PyTorch chooses. Set
POSENC_FLEX_KERNEL before Python starts; a kernel that cannot serve a call raises PyTorch's error."""


class Flex(Kernel):
    """Serves everything but terms on the values and dropout. A term is handed to the kernel as lookups that are linear
    in the sequence: a bias of the distance as one vector, a projection on a table as its (queries, rows) products, a
    factored one as wider queries and keys. Only what has no such form is read from a dense tensor: biases on a grid, of
    fractional or far-off positions, and, inside torch.compile, of all that are not contiguous, whose range is unknown."""

    def _refusal(self, problem: Problem) -> str | None:
        q, v = problem.q, problem.v
        if not IS_THERE:
            return f"FlexAttention is used from PyTorch 2.11 on, and this is {torch.__version__}"
        if problem.values is not None:
            return "a term on the values (w_ij) needs the attention probabilities"
        if problem.weighs:
            return "FlexAttention has no weights but the softmax's"
        if problem.dropout_p > 0:
            return "FlexAttention has no dropout"
        if any(isinstance(modifier, Mixer) for modifier in problem.modifiers):
            return "FlexAttention changes the score of one head at a time, and a score modifier takes all heads"
        if q.device.type == "cpu":
            if trains(problem):
                return "FlexAttention has no backward on the CPU"
            if torch.compiler.is_compiling():
                return "FlexAttention is not compiled for the CPU, where torch 2.13's kernel gives wrong rows"
            return None
        if q.device.type != "cuda":
            return f"FlexAttention is used on CUDA and on the CPU, not on {q.device.type}"
        if q.dtype == torch.float64:
            return "FlexAttention's CUDA kernels take float32 and less"
        width = max(problem.width, v.shape[-1])
        if width > WIDEST:
            return f"queries, keys or values {width} wide; FlexAttention's kernels end at {WIDEST}"
        return None

    def _why(self, problem: Problem) -> tuple[str, str]:
        if problem.q.device.type == "cpu":
            return "FlexAttention uncompiled: scores and probabilities are materialised", "backend='auto'"
        dense = any(_numbered(term)[0] is None and not term.linear for term in problem.others)
        how = "bias without a linear form is read from a dense tensor" if dense else "bias is looked up in-kernel"
        return f"FlexAttention: {'a' if dense else 'every'} {how}", ""

    def _attend(self, problem: Problem) -> Tensor:
        parts = [self._part(part, bool(problem.branches) or problem.sink is not None) for part in problem.each()]
        out, lse = parts[0] if len(parts) == 1 else merged(parts)
        return out if problem.sink is None else problem.with_sink(out, lse)

    def _part(self, problem: Problem, with_lse: bool) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of a single branch; the latter means nothing if not with_lse."""
        q, k, v, scale = problem.widened()
        if not torch.is_grad_enabled():
            # flex's check on the CPU does not ask whether gradients are on
            q, k, v = q.detach(), k.detach(), v.detach()
        if q.device.type == "cuda":
            q, k, v = (pad(x, (0, max(NARROWEST - x.shape[-1], 0))) for x in (q, k, v))
        lookups = tuple(_lookups(problem))
        run = _run if torch.compiler.is_compiling() else _compiled(q.device.type)
        options = _kernel_options(q, lookups)
        out, lse = run(q, k, v, lookups, _block_mask(problem), scale, with_lse, _changes(problem), options)
        return out[..., : problem.v.shape[-1]], lse


# -------------------------------------------------------------------- what terms look up inside the kernel


def _lookups(problem: Problem) -> list[Lookup]:
    lookups = []
    for term in problem.others:
        cells, distances = _numbered(term)
        lookups.append(term.reduced(distances, problem.q.device).lookup(cells))
    return lookups


def _changes(problem: Problem) -> tuple[Any, ...]:
    """The modifiers as the kernel calls them."""
    changes: list[Any] = []  # mypy does not call tuples
    for modifier in problem.modifiers:
        cap = modifier.reduced()
        changes.append(_at_key(modifier, problem.first_key) if cap is None else cap.lookup_of(problem.q))
    return tuple(changes)


def _at_key(modifier: Modifier, first: int) -> ScoreMod:
    """The modifier, for keys of which so many others come before."""
    if first == 0:
        return modifier
    return lambda score, b, h, i, j: modifier(score, b, h, i, j + first)


def _numbered(term: Score) -> tuple[Cells | None, Tensor | None]:
    """Pairs of tokens numbered by a term's distance, and the distance of each number, where distances are integers, known,
    and fewer than the pairs. (None, None): the term has to be dense."""
    positions = getattr(term, "positions", None)
    if not term.by_distance or positions is None:
        return None, None
    queries, device = positions.num_queries, positions.q.device
    if positions.start is not None:
        of_query = (queries - 1 - torch.arange(queries, device=device, dtype=torch.int32))[None]
        return Cells(of_query, None), distances_of(positions)
    if positions.axes > 1 or positions.fractional or torch.compiler.is_compiling():
        return None, None  # the range of the distances is not known while tracing
    ends = positions.shared("flex range", lambda: _range(positions))
    if ends is None:
        return None, None
    longest, shortest = ends
    cells = Cells((longest - positions.q).to(torch.int32), positions.k.to(torch.int32))
    return cells, longest - torch.arange(longest - shortest + 1, device=device)


def _range(positions: Positions) -> tuple[int, int] | None:
    q, k = positions.q, positions.k
    longest, shortest = int(q.max() - k.min()), int(q.min() - k.max())
    small = max(abs(longest), abs(shortest), int(k.abs().max())) < 2**30
    return (longest, shortest) if small and longest - shortest < positions.num_queries * positions.num_keys else None


# -------------------------------------------------------------------- calling it


def _run(
    q: Tensor, k: Tensor, v: Tensor, lookups: Sequence[Lookup], block_mask: Any, scale: float, with_lse: bool,
    changes: Sequence[ScoreMod] = (), kernel_options: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for lookup in lookups:
            # a float64 term would leave the kernel's output undefined
            score = (score + lookup.at(b, h, i, j)).to(score.dtype)
        for change in changes:
            score = change(score, b, h, i, j)
        return score

    options: dict[str, Any] = {
        "score_mod": score_mod if lookups or changes else None,
        "block_mask": block_mask,
        "scale": scale,
        "enable_gqa": q.shape[1] != k.shape[1],
    }
    if kernel_options:
        options["kernel_options"] = kernel_options
    if not with_lse:
        return flex_attention(q, k, v, **options), q
    out, stats = flex_attention(q, k, v, return_aux=AuxRequest(lse=True), **options)
    assert stats.lse is not None
    return out, stats.lse


def _kernel_options(q: Tensor, lookups: Sequence[Any]) -> dict[str, Any]:
    """What FlexAttention's CUDA kernel is asked for."""
    if q.device.type != "cuda":
        return {}
    options: dict[str, Any] = {} if KERNEL is None else {"BACKEND": KERNEL}
    if lookups and q.element_size() == 2 and q.shape[-1] <= 64:
        # with torch's three stages, two tiles of 128 x 128 looked up numbers do not fit into an H100 beside keys and values
        options["fwd_num_stages"] = 2
    return options


@cache
def _compiled(device: str) -> Callable[..., tuple[Tensor, Tensor]]:
    # on the CPU in flex's own dense form, which traces faster with plain sizes: in torch 2.13 the compiled kernel leaves rows
    # wrong, such as two of 40 tokens
    fused = device != "cpu"
    compiled = torch.compile(_run, dynamic=fused, fullgraph=True, backend="inductor" if fused else "eager")

    def run(*args: Any) -> tuple[Tensor, Tensor]:
        with torch._dynamo.config.patch(recompile_limit=VARIANTS, accumulated_recompile_limit=VARIANTS):
            return compiled(*args)

    return run


@cache
def _compiled_block_mask() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import create_block_mask

    return torch.compile(create_block_mask, dynamic=True)


def _block_mask(problem: Problem) -> Any:
    """Visibility by blocks, once per forward pass; None if every query sees every key."""
    positions = problem.positions
    if positions.all_visible and problem.region is None:
        return None
    from torch.nn.attention.flex_attention import create_block_mask

    # uncompiled, it holds every pair for a moment
    fuses = positions.q.device.type == "cuda" and not torch.compiler.is_compiling()
    make = _compiled_block_mask() if fuses else create_block_mask
    sizes = (positions.batch, 1, positions.num_queries, positions.num_keys)
    key = "flex mask", positions.causal, problem.region
    return positions.shared(key, lambda: make(problem.mask_mod(), *sizes, device=positions.q.device))
