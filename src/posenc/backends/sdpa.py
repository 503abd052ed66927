# SPDX-License-Identifier: Apache-2.0
"""Fused attention: PyTorch's own where it knows the mask by itself, ours where position has more to say."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from posenc.backends.fused import lower, run, unsupported
from posenc.backends.precision import HALF, slower_than_float32
from posenc.backends.problem import Plan, Problem, for_all_layers, of_pass
from posenc.backends.reference import Reference
from posenc.bias import dense_sum, sum_by_rows
from posenc.bias.structures import Refused
from posenc.functional import interpreted, transformed
from posenc.positions.memory import SHORT
from posenc.positions.segments import segments

BLOCK_CELLS = 2**23
"""Scores of a block of queries, at least: 32 MiB in float32, which glibc gives back to the system when they are freed;
smaller blocks leave gaps between the outputs that stay."""
GPU_BLOCK_CELLS = 2**27
"""The same on a GPU, where each of a block's operations has to be launched: 256 MiB in half precision."""
LEAST_ROWS = 16
"""Queries of a block, however many keys there are."""
REFERENCE = Reference()
FEW = Refused("few queries and keys")


class SDPA:
    """Serves everything but terms on the values at positions that are not contiguous.

    In order of cost: no mask or is_causal; on the CPU, the operator of `fused`, in linear memory; a dense mask, by
    blocks of queries where it would be large, and those recomputed for the gradient.
    """

    def __init__(self, short: bool = False) -> None:
        """short: calls of few queries and keys take a dense mask in the place of the operator."""
        self.short = short

    def plan(self, problem: Problem) -> Plan | str:
        if not problem.traced and transformed():
            return "torch.func and forward-mode differentiation know formulas, not kernels"
        if problem.is_empty:
            return REFERENCE.plan(problem)
        if not _slow_in_half(problem):
            return self._plan(problem)
        name = str(problem.q.dtype).removeprefix("torch.")
        q, k, v = (_shaped(x, x.shape[3], torch.float32) for x in (problem.q, problem.k, problem.v))
        why = f"by way of float32, which this processor multiplies faster than {name}; "
        return _by_way_of(self._plan(replace(problem, q=q, k=k, v=v)), _in_float32, why)

    def _refused(self, problem: Problem, scores: bool) -> Refused | None:
        """Why the operator is not taken; None if it is. scores: see `_takes_scores`."""
        if problem.q.device.type != "cpu":
            return Refused("the fused operator is for the CPU", "backend='flex'")
        if problem.q.shape[2] == 1:
            return Refused("a single query")  # whose dense mask is a row
        return FEW if self.short and _takes_formulas(problem, scores) else unsupported(problem)

    def _plan(self, problem: Problem) -> Plan | str:
        if problem.scale <= 0:  # the kernels mask before they scale
            return _by_way_of(self._plan(replace(problem, scale=1.0)), _scaled)
        # under dropout the CPU's would keep scores and probabilities
        if problem.is_plain and not (problem.dropout_p > 0 and problem.q.device.type == "cpu"):
            ahead = not problem.positions.all_visible
            seen = "only the future is hidden" if ahead else "every query sees every key"
            return Plan(partial(_under, None, None, is_causal=ahead), f"no bias, and {seen}: no mask is built")
        if _widens(problem):
            q, k = (_shaped(x, problem.width, x.dtype) for x in (problem.q, problem.k))
            wide = replace(problem, q=q, k=k, bias=problem.others, scale=problem.scale or 1.0)
            return _by_way_of(self._plan(wide), _wider, "products of few channels widen queries and keys; ")
        scores = _takes_scores(problem)
        refused = self._refused(problem, scores)
        if refused not in (None, FEW) and problem.values is not None and problem.q.shape[2] > 1:
            return f"a term on the values (w_ij) needs the probabilities: {refused.why}"
        if refused is None:
            return _fused(problem)
        if problem.q.shape[2] == 1:
            if not _is_row(problem):
                return _masked(problem, refused)
            return Plan(partial(_at_once, REFERENCE.rows), f"{refused.why}: its row of scores")
        if problem.sink is not None and problem.traced:
            return REFERENCE.plan(problem)  # an extra column defies a graph for any length
        blocks = refused is not FEW and _block_rows(problem, scores) < problem.q.shape[2]
        if not blocks and not scores:
            return _masked(problem, refused)
        how = "the scores of every branch" if problem.branches else "scores and probabilities"
        how = (how if scores else "a dense mask") + (", for some queries at a time" if blocks else "")
        run = partial(_in_blocks if blocks else _at_once, REFERENCE.rows if scores else _dense)
        return Plan(run, f"{refused.why}: {how}", refused.faster)


def _by_way_of(plan: Plan | str, change: Callable[[Problem], Problem], why: str = "") -> Plan | str:
    """The plan of a problem that another one is changed to."""
    if isinstance(plan, str):
        return plan
    run = plan.run
    return Plan(lambda problem: run(change(problem)).to(problem.q.dtype), why + plan.why, plan.faster)


def _shaped(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """What stands for x of another width and dtype in a plan: a number, expanded."""
    return x.new_empty((), dtype=dtype).expand(*x.shape[:3], width)


# -------------------------------------------------------------------- half precision


def _slow_in_half(problem: Problem) -> bool:
    """Whether a processor without instructions for q's dtype does better by way of float32."""
    q = problem.q
    if q.device.type != "cpu" or q.dtype not in HALF:
        return False
    if q.shape[2] == 1 and q.dtype == torch.float16:
        return False  # the kernel converts its keys: 0.4 to 1.0 of the time by way of float32 copies (AVX2; bfloat16 1.1 to 1.8)
    return slower_than_float32(q.dtype)


def _in_float32(problem: Problem) -> Problem:
    branches = [branch._replace(q=branch.q.float(), k=branch.k.float()) for branch in problem.branches]
    q, k = branches[0][:2] if branches else (problem.q.float(), problem.k.float())
    return replace(problem, q=q, k=k, v=problem.v.float(), branches=branches)


def _scaled(problem: Problem) -> Problem:
    """The same problem with its scale in the queries."""
    branches = [branch._replace(q=branch.q * problem.scale) for branch in problem.branches]
    return replace(problem, q=problem.q * problem.scale, branches=branches, scale=1.0)


# -------------------------------------------------------------------- more channels


def _widens(problem: Problem) -> bool:
    """Whether factored terms are few enough channels that wider queries, keys and values cost less than the products;
    in half precision the channels would be rounded."""
    if not problem.bias or problem.branches or problem.q.dtype not in (torch.float32, torch.float64):
        return False
    factors = problem.factors
    more = sum([left.shape[-1] for left, _ in factors])
    return 0 < 2 * more <= problem.q.shape[-1] and problem.k.shape[1] == problem.q.shape[1]


def _wider(problem: Problem) -> Problem:
    """The same problem with its factored terms as channels of queries and keys."""
    q, k, v, scale = problem.widened()
    return replace(problem, q=q, k=k, v=v, scale=scale, bias=problem.others)


# -------------------------------------------------------------------- the fused operator


def _takes_formulas(problem: Problem, scores: bool) -> bool:
    """Whether a dense mask, or scores, are small. An exported program takes them at any size: other runtimes do not have the
    operator."""
    if problem.traced and torch.compiler.is_exporting():
        return True
    if problem.traced or problem.dropout_p > 0:
        return False
    # 128 by 128 tokens under products with a table of distances, and where scores are materialised
    fewer = scores or False in [term.dense_if_short for term in problem.bias]
    return problem.pairs <= (SHORT // 4 if fewer else SHORT) and problem.q.shape[2] <= _block_rows(problem, scores)


def _fused(problem: Problem) -> Plan:
    lowered = for_all_layers(problem.constant and problem.values is None and not problem.modifiers, lower)

    def compute(problem: Problem) -> Tensor:
        out, lse = run(problem, lowered(problem))
        return out if problem.sink is None else problem.with_sink(out, lse)

    how = "terms are computed a tile at a time"
    if problem.dropout_p == 0 and problem.values is None and not problem.modifiers:
        if not problem.bias:
            how = "no bias: only what is visible is visited"
        elif all(term.in_kernel == "vector" for term in problem.bias):
            how = "a bias of the distance alone, read through a strided view of one vector"
    return Plan(compute, f"{how}, each branch of the position map by itself" if problem.branches else how)


def _is_row(problem: Problem) -> bool:
    """Whether a single query wants what a mask cannot say; its scores are but a row."""
    more = problem.values is not None or problem.sink is not None or problem.dropout_p > 0
    more = more or len(problem.branches) > 0 or len(problem.modifiers) > 0
    return problem.q.shape[2] == 1 and more


def _takes_scores(problem: Problem) -> bool:
    """Whether PyTorch's attention with a dense mask does not do; under a sink that learns it would take its own N x N path."""
    if problem.branches or problem.modifiers or problem.sink_value is not None or problem.values is not None:
        return True
    return problem.sink is not None and problem.sink.requires_grad and torch.is_grad_enabled()


# -------------------------------------------------------------------- a dense mask


def _block_rows(problem: Problem, scores: bool) -> int:
    """Queries whose scores are in memory at once; all of them where a graph for any length is traced, or where a small mask is one
    for all rows, of which PyTorch keeps no scores."""
    batch, heads, queries = problem.q.shape[:3]
    one_mask = problem.constant and not (problem.learned or scores) and problem.sink is None and problem.pairs <= SHORT
    if problem.traced or one_mask:
        return queries
    cells = BLOCK_CELLS if problem.q.device.type == "cpu" else GPU_BLOCK_CELLS
    return max(LEAST_ROWS, -(-cells // (batch * heads * problem.v.shape[2])))


def _at_once(dense: Callable[..., Tensor], problem: Problem) -> Tensor:
    return dense(problem, 0, problem.q.shape[2], dense_sum(problem.bias, problem.q.device))


def _in_blocks(dense: Callable[..., Tensor], problem: Problem) -> Tensor:
    """By blocks of queries, which are computed again for the gradient."""
    rows, queries = _block_rows(problem, _takes_scores(problem)), problem.q.shape[2]
    bias = sum_by_rows(problem.bias, problem.q.device)

    def block(first: int, end: int) -> Tensor:
        keys = _seen_keys(problem, first, end)
        return dense(problem.among(*keys), first, end, bias(first, end, slice(*keys)))

    blocks = [(first, min(first + rows, queries)) for first in range(0, queries, rows)]
    if not torch.is_grad_enabled():
        out = problem.q.new_empty(*problem.q.shape[:3], problem.v.shape[-1])
        for first, end in blocks:
            out[:, :, first:end] = block(first, end)
        return out
    return torch.cat([checkpoint(block, *at, use_reentrant=False) for at in blocks], 2)


def _seen_keys(problem: Problem, first: int, end: int) -> tuple[int, int]:
    """The first key and the end of those that queries first .. end - 1 see, as far as that is known without waiting for a
    GPU; one key where they see none."""
    positions, keys = problem.positions, problem.v.shape[2]
    known = segments(positions) if positions.unmasked or positions.q.device.type == "cpu" else None
    if known is None:
        hidden = positions.causal and positions.diagonal is not None
        return 0, max(1, min(keys, end + positions.diagonal)) if hidden and positions.diagonal is not None else keys
    least, most, window = keys, 0, positions.region
    for _, q0, q1, k0, k1, diagonal, _ in known:
        if q0 < end and first < q1:
            after = 0 if positions.causal else window.nearest
            start = 0 if window.farthest is None else max(first, q0) + diagonal - window.farthest + 1
            least = min(least, max(k0, start))
            most = max(most, k1 if after is None else min(k1, min(end, q1) + diagonal - after))
    return (least, most) if least < most else (0, 1)


def _visible(problem: Problem, first: int = 0, end: int | None = None) -> tuple[Tensor | None, Tensor | None]:
    """Visibility as a bool mask, and the queries that see nothing, which SDPA leaves undefined: they see everything in the
    mask. None: there is none."""
    positions = problem.positions
    if positions.all_visible:
        return None, None
    visible = positions.mask(first, end)
    if positions.causal and positions.unmasked and positions.diagonal is not None and positions.diagonal >= 0:
        return visible, None  # each sees itself
    blind = ~visible.any(-1, keepdim=True)
    looks = visible.device.type == "cpu" and not torch.compiler.is_compiling() and not interpreted()
    if looks and not bool(blind.any()):
        return visible, None
    return visible | blind, blind


def _masked(problem: Problem, refused: Refused) -> Plan:
    """A dense mask at once; under terms that are constant, all layers of the pass take the same, else the same visibility."""
    how = "a dense float mask" if problem.bias or problem.sink is not None else "a dense bool mask"
    why = f"{refused.why}: {how}"
    if problem.sink is not None:
        return Plan(partial(_at_once, _dense), why, refused.faster)
    visible = for_all_layers(not problem.constant and problem.pairs <= SHORT, _visible)
    mask = for_all_layers(problem.constant, lambda problem: _mask(problem, *visible(problem)))
    return Plan(lambda problem: _under(*mask(problem), problem), why, refused.faster)


def _under(mask: Tensor | None, blind: Tensor | None, problem: Problem, is_causal: bool = False) -> Tensor:
    """Attention under a mask; queries that are blind get zeros."""
    q, k, v, width = problem.q, problem.k, problem.v, problem.v.shape[3]
    if q.shape[3] != width and q.device.type == "cpu":  # whose fused path wants one width, and else takes an N x N one
        wide = max(q.shape[3], width)
        q, k, v = (pad(x, (0, wide - x.shape[3])) for x in (q, k, v))
    # a branch, because the comparison of two lengths is not a bool while a graph is traced
    grouped: Any = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    dropout_p, scale = problem.dropout_p, problem.scale
    out = scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale=scale, **grouped)
    out = out if out.shape[3] == width else out[..., :width]
    return out if blind is None else out.masked_fill(blind, 0.0)


def _mask(problem: Problem, visible: Tensor | None, blind: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """What SDPA takes as its mask, and the queries that see nothing."""
    return _joined(dense_sum(problem.bias, problem.q.device), visible, problem.q), blind


def _dense(problem: Problem, first: int, end: int, bias: Tensor | None) -> Tensor:
    """Attention of some queries under a dense mask; bias is their part of the sum of the terms."""
    q, k, v = problem.q, problem.k, problem.v
    if end - first < q.shape[2]:
        q = q[:, :, first:end]
    visible, blind = of_pass(problem, first, end, "visible", partial(_visible, problem, first, end))
    if problem.sink is not None:
        bias, visible = _with_sink(problem, first, end, bias, visible)
        k, v = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1))
    return _under(_joined(bias, visible, q), blind, problem.of_layer(q, k, v))


def _joined(bias: Tensor | None, visible: Tensor | None, q: Tensor) -> Tensor | None:
    """A sum of terms and visibility as one mask, in the dtype that SDPA wants: on the CPU a half-precision q takes a float32
    mask, which keeps large biases exact."""
    if bias is None:
        return visible
    bias = bias.to(torch.float32 if q.dtype in HALF and q.device.type == "cpu" else q.dtype)
    return bias if visible is None else bias.masked_fill(~visible, -torch.inf)


def _with_sink(
    problem: Problem, first: int, end: int, bias: Tensor | None, visible: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The sink as one more column: its score is the logit and everybody sees it (its key and value are zero)."""
    queries, keys, sink = end - first, problem.k.shape[2], problem.sink_of(first, end)
    assert sink is not None
    if bias is None:
        bias = sink.new_zeros(1, 1, queries, keys)
    logits = sink.to(bias.dtype)
    heads = (max(bias.shape[0], sink.shape[0]), sink.shape[1], queries)
    bias = torch.cat((bias.expand(*heads, keys), logits.expand(*heads, 1)), -1)
    visible = None if visible is None else pad(visible, (0, 1), value=True)
    return bias, visible
