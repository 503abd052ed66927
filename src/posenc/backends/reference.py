# SPDX-License-Identifier: Apache-2.0
"""The oracle: the equation as the papers write it, one dense tensor per symbol, in float64 if the inputs are."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import add

import torch
from torch import Tensor
from torch.nn.functional import pad

from posenc.backends.problem import Costs, Plan, Problem, Rotated, of_pass
from posenc.bias import dense_sum
from posenc.bias.structures import rows_between, times
from posenc.functional import blocks, transformed, unturned
from posenc.positions.visibility import EVERYTHING, Region

NOTHING = Costs("there is nothing to compute", 0)


class Reference:
    """Serves everything, slowly and in num_queries x num_keys memory."""

    def plan(self, problem: Problem) -> Plan:
        def costs() -> Costs:
            if problem.is_empty:
                return NOTHING
            size = torch.promote_types(problem.q.dtype, torch.float32).itemsize
            cells = problem.q.shape[:3].numel() * problem.k.shape[2]
            why = "a term on the values needs the probabilities" if problem.values is not None else "asked for"
            return Costs(f"{why}: scores and probabilities are materialised", 3 * cells * size)

        return Plan(partial(self.attend, problem), costs)

    def attend(self, problem: Problem) -> Tensor:
        return self.rows(problem, 0, problem.q.shape[2], dense_sum(problem.bias, problem.q.device))

    def rows(self, problem: Problem, first: int, end: int, bias: Tensor | None) -> Tensor:
        """The output of queries first .. end - 1; bias is their part of the sum of the terms."""
        weights = self.weights(problem, first, end, bias)
        out = self.output(problem, torch.nn.functional.dropout(weights, problem.dropout_p), first)
        if problem.sink_value is not None:
            out = out + ((1 - weights.sum(-1, keepdim=True)) * problem.sink_value[:, :, first:end]).to(out.dtype)
        return out

    def scores(self, problem: Problem, first: int, end: int, bias: Tensor | None) -> Tensor:
        """What the softmax is taken of, (batch, num_heads, end - first, num_keys), float32 or better; minus infinity where a
        query does not see a key. Of a problem that weighs: the weights."""
        complete = len(problem.branches) > 0 and all(branch.complete for branch in problem.branches)
        scores = _side_by_side(problem) if complete else _where_visible(problem, first, end)
        if bias is not None:
            scores = scores + bias.to(scores) if _is_traced(scores) else scores.add_(bias.to(scores))
        return problem.modified(scores, first)

    def weights(self, problem: Problem, first: int, end: int, bias: Tensor | None) -> Tensor:
        """What queries first .. end - 1 give each key, (batch, num_heads, end - first, num_keys), float32 or better; a
        sink takes what is missing to 1."""
        scores = self.scores(problem, first, end, bias)
        if problem.weighs:
            return scores
        weights = scores.softmax(-1)
        # a row without any visible key, or of scores of minus infinity, has no softmax but NaN; its weights are zero
        some = _is_traced(scores) or scores.shape[-1] == 0 or bool(weights[..., 0].isnan().any())
        if some:
            empty = (scores == -torch.inf).all(-1, keepdim=True)
            scores = scores.masked_fill(empty, 0.0)
            weights = scores.softmax(-1)
        sink = problem.sink_of(first, end)
        if sink is not None:
            # exp(s) / (exp(sink) + sum exp(s)): the softmax times its share of the denominator
            weights = weights * (scores.logsumexp(-1, keepdim=True) - sink.to(scores)).sigmoid()
        return weights.masked_fill(empty, 0.0) if some else weights

    def output(self, problem: Problem, weights: Tensor, first: int) -> Tensor:
        """What the weights of queries from the first on make of the values, in q's dtype."""
        positions, end = problem.positions, first + weights.shape[2]
        out = _averaged(weights, problem.v)
        if problem.values is not None:
            table = problem.values.table.to(weights.dtype)
            at = rows_between(problem.values.index, table, positions, first, end)
            binned = weights.new_zeros(*weights.shape[:3], table.shape[-2])
            binned = binned.scatter_add(-1, at[:, None].expand(weights.shape), weights)
            out = out + times(binned, table)
        return out.to(problem.q.dtype)


class Kernel:
    """A backend that computes in one way what it does not refuse."""

    def plan(self, problem: Problem) -> Plan | str:
        refusal = self._refusal(problem)
        if refusal is not None:
            return refusal
        if problem.is_empty:
            return Reference().plan(problem)
        return Plan(partial(self._attend, problem), partial(self._costs, problem))

    def _refusal(self, problem: Problem) -> str | None:
        raise NotImplementedError  # abstract: every subclass defines these

    def _attend(self, problem: Problem) -> Tensor:
        raise NotImplementedError

    def _costs(self, problem: Problem) -> Costs:
        raise NotImplementedError


def _where_visible(problem: Problem, first: int, end: int) -> Tensor:
    """The scaled products of queries first .. end - 1 and keys, each pair's in the branch that it is in."""
    scores, keys = None, problem.v.shape[2]
    for branch in problem.branches or [Rotated(problem.q, problem.k, EVERYTHING)]:
        part = _joined(_products(branch, first, end, problem.scale))
        if branch.k.shape[2] != keys:
            part = pad(part, (branch.first, keys - branch.first - branch.k.shape[2]))
        if branch.region == EVERYTHING and problem.positions.all_visible:
            scores = part
            continue
        key, mask = ("hidden", branch.region), partial(_hidden, problem, branch.region, first, end)
        hidden = of_pass(problem, first, end, key, mask)
        if scores is not None:
            scores = torch.where(hidden, scores, part)
        else:
            scores = (part.masked_fill if _is_traced(part) else part.masked_fill_)(hidden, -torch.inf)
    assert scores is not None
    return scores


def _hidden(problem: Problem, region: Region, first: int, end: int) -> Tensor:
    """The pairs of queries first .. end - 1 and keys that are not visible within a region."""
    return ~replace(problem, region=region).mask(first, end)


def _side_by_side(problem: Problem) -> Tensor:
    """The scaled products of a single query and the keys of complete branches, each of which has other keys."""
    parts: list[Tensor] = []
    at, keys, precise = 0, problem.v.shape[2], torch.promote_types(problem.q.dtype, torch.float32)

    def hidden(until: int) -> list[Tensor]:
        shape = (*problem.q.shape[:3], until - at)
        return [problem.q.new_full(shape, -torch.inf, dtype=precise)] if at < until else []

    for branch in sorted(problem.branches, key=lambda branch: branch.first):
        parts += hidden(branch.first) + _products(branch, 0, 1, problem.scale)
        at = branch.first + branch.k.shape[2]
    return _joined(parts + hidden(keys))


def of_token(branches: Sequence[Rotated], v: Tensor, scale: float) -> Tensor:
    """The output of a single query, (batch, num_heads, 1, value width), that sees every key of the branches, each of which has
    other keys, in their order, and no others."""
    scores = [product for branch in branches for product in _products(branch, 0, 1, scale)]
    runs: list[list[int]] = []
    for branch in branches:
        first, end = branch.first, branch.first + branch.k.shape[2]
        if runs and runs[-1][1] == first:
            runs[-1][1] = end
        else:
            runs.append([first, end])
    weights = _joined(scores).softmax(-1).split([end - first for first, end in runs], -1)
    outs = [_averaged(part, v[:, :, slice(*run)]) for part, run in zip(weights, runs, strict=True)]
    return reduce(add, outs).to(branches[0].q.dtype)


def _products(branch: Rotated, first: int, end: int, scale: float) -> list[Tensor]:
    """The scaled products of queries first .. end - 1 with runs of the keys of a branch. Keys that are not rotated yet are, a
    run at a time: they are read from memory once, and what becomes of them stays in the cache."""
    k, turn, precise = branch.k, branch.turn, torch.promote_types(branch.q.dtype, torch.float32)
    q = scale * branch.q[:, :, first:end].to(precise)
    if turn is None or (turn is unturned and k.dtype == precise):
        return [_product(q, k.to(precise).mT)]
    return [_product(q, turn(k[:, :, run], run).to(precise).mT) for run in blocks(k, precise)]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _is_traced(x: Tensor) -> bool:
    """Whether what x contains cannot be looked at, or not without waiting for it."""
    return torch.compiler.is_compiling() or x.device.type != "cpu" or transformed()


def _averaged(weights: Tensor, v: Tensor) -> Tensor:
    """The product of weights and values. A single query's takes values of another dtype a run at a time, as `_products`."""
    if weights.dtype == v.dtype or weights.shape[2] > 1 or torch.compiler.is_compiling():
        return _product(weights, v.to(weights.dtype))
    runs = blocks(v, weights.dtype)
    return sum(
        (_product(weights[..., run], v[:, :, run].to(weights.dtype)) for run in runs), start=weights.new_zeros(())
    )


def _product(x: Tensor, y: Tensor) -> Tensor:
    """(batch, heads, n, a) @ (batch, kv_heads, a, m): heads that share keys are so many more queries of theirs."""
    (batch, heads, n, width), kv_heads = x.shape, y.shape[1]
    if torch.compiler.is_compiling():
        # a copy: a graph for any length cannot reason about heads that lie between the tokens
        return x @ y.repeat_interleave(heads // kv_heads, dim=1)
    if heads == kv_heads:
        return x @ y
    return (x.reshape(batch, kv_heads, heads // kv_heads * n, width) @ y).view(batch, heads, n, y.shape[3])
