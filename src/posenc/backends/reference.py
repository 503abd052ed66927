# SPDX-License-Identifier: Apache-2.0
"""The oracle: the equation as the papers write it, one dense tensor per symbol, in float64 if the inputs are."""

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import dropout, pad

from posenc.backends.problem import Plan, Problem, Rotated, of_pass
from posenc.bias import dense_sum
from posenc.bias.structures import rows_between, times
from posenc.functional import interpreted
from posenc.positions.visibility import EVERYTHING, Region


class Reference:
    """Serves everything, slowly and in num_queries x num_keys memory."""

    def plan(self, problem: Problem) -> Plan:
        if problem.is_empty:
            return Plan(self.attend, "there is nothing to compute")
        why = "a term on the values needs the probabilities" if problem.values is not None else "asked for"
        return Plan(self.attend, f"{why}: scores and probabilities are materialised")

    def attend(self, problem: Problem) -> Tensor:
        return self.rows(problem, 0, problem.q.shape[2], dense_sum(problem.bias, problem.q.device))

    def rows(self, problem: Problem, first: int, end: int, bias: Tensor | None) -> Tensor:
        """The output of queries first .. end - 1; bias is their part of the sum of the terms."""
        weights, empty = self.weights(problem, first, end, bias)
        out = self.output(problem, dropout(weights, problem.dropout_p) if problem.dropout_p > 0 else weights, first)
        out = out if empty is None else out.masked_fill(empty, 0.0)  # whatever the values are
        if problem.sink_value is not None:
            out = out + ((1 - weights.sum(-1, keepdim=True)) * problem.sink_value[:, :, first:end]).to(out.dtype)
        return out

    def scores(self, problem: Problem, first: int, end: int, bias: Tensor | None, adds: bool = False) -> Tensor:
        """What the softmax is taken of, (batch, num_heads, end - first, num_keys), float32 or better; minus infinity where a
        query does not see a key. Of a problem that weighs: the weights. adds: scores are hidden by a sum in place, in a tenth of the
        time of masked_fill, which makes NaN of those that are not finite."""
        scores = _where_visible(problem, first, end, adds)
        if bias is not None:
            scores = scores.add_(bias.to(scores)) if adds else scores + bias.to(scores)
        for modifier in problem.modifiers:
            scores = modifier.of_block(scores, first, problem.first_key)
        return scores

    def weights(
        self, problem: Problem, first: int, end: int, bias: Tensor | None, adds: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """What queries first .. end - 1 give each key, (batch, num_heads, end - first, num_keys), float32 or better; a
        sink takes what is missing to 1. And which of them give nothing, if some may. adds: see `scores`."""
        readable = problem.q.device.type == "cpu" and not (problem.traced or interpreted())
        adds = adds and readable and not problem.modifiers and not problem.branches
        scores = self.scores(problem, first, end, bias, adds)
        if problem.weighs:
            return scores, None
        weights = scores.softmax(-1)
        # a row without any visible key, or of scores of minus infinity, has no softmax but NaN; its weights are zero
        empty = None
        if not readable or scores.shape[-1] == 0 or bool(weights[..., 0].isnan().any()):
            empty = (scores == -torch.inf).all(-1, keepdim=True)
            if adds and bool((weights[..., :1].isnan() & ~empty).any()):
                return self.weights(problem, first, end, bias, adds=False)
            scores = scores.masked_fill(empty, 0.0)
            weights = scores.softmax(-1)
        sink = problem.sink_of(first, end)
        if sink is not None:
            # exp(s) / (exp(sink) + sum exp(s)): the softmax times its share of the denominator
            weights = weights * (scores.logsumexp(-1, keepdim=True) - sink.to(scores)).sigmoid()
        return weights if empty is None else weights.masked_fill(empty, 0.0), empty

    def output(self, problem: Problem, weights: Tensor, first: int) -> Tensor:
        """What the weights of queries from the first on make of the values, in q's dtype."""
        positions, end = problem.positions, first + weights.shape[2]
        out = _product(weights, problem.v.to(weights.dtype), problem.traced)
        if problem.values is not None:
            table = problem.values.table.to(weights.dtype)
            at = rows_between(problem.values.index, table, positions, first, end)
            binned = weights.new_zeros(*weights.shape[:3], table.shape[-2])
            binned = binned.scatter_add_(-1, at[:, None].expand(weights.shape), weights)
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
        return Plan(self._attend, *self._why(problem))

    def _refusal(self, problem: Problem) -> str | None:
        raise NotImplementedError  # abstract: every subclass defines these

    def _attend(self, problem: Problem) -> Tensor:
        raise NotImplementedError

    def _why(self, problem: Problem) -> tuple[str, str]:
        """Why it is computed so, and what would be faster."""
        raise NotImplementedError


def _where_visible(problem: Problem, first: int, end: int, adds: bool) -> Tensor:
    """The scaled products of queries first .. end - 1 and keys, each pair's in the branch that it is in. adds: see `scores`."""
    scores, keys, precise = None, problem.v.shape[2], torch.promote_types(problem.q.dtype, torch.float32)
    for branch in problem.branches or [Rotated(problem.q, problem.k, EVERYTHING)]:
        q = problem.scale * branch.q[:, :, first:end].to(precise)
        part = _product(q, branch.k.to(precise).mT, problem.traced)
        if branch.k.shape[2] != keys:
            part = pad(part, (branch.first, keys - branch.first - branch.k.shape[2]))
        if branch.region == EVERYTHING and problem.positions.all_visible:
            scores = part
            continue
        of_what = branch.region, precise if adds else None
        hidden = of_pass(problem, first, end, ("hidden", *of_what), partial(_hidden, problem, first, end, *of_what))
        if adds:
            scores = part.add_(hidden)
        elif scores is not None:
            scores = torch.where(hidden, scores, part)
        else:
            scores = part.masked_fill(hidden, -torch.inf)
    assert scores is not None
    return scores


def _hidden(problem: Problem, first: int, end: int, region: Region, dtype: torch.dtype | None) -> Tensor:
    """The pairs of queries first .. end - 1 and keys that are not visible within a region, as bool, or as minus infinity in dtype."""
    hidden = ~problem.mask(first, end, region)
    return hidden if dtype is None else torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -torch.inf)


def _product(x: Tensor, y: Tensor, traced: bool) -> Tensor:
    """(batch, heads, n, a) @ (batch, kv_heads, a, m): heads that share keys are so many more queries of theirs."""
    (batch, heads, n, width), kv_heads = x.shape, y.shape[1]
    if heads == kv_heads:
        return x @ y
    if traced:
        # a copy: a graph for any length cannot reason about heads that lie between the tokens
        return x @ y.repeat_interleave(heads // kv_heads, dim=1)
    return (x.reshape(batch, kv_heads, heads // kv_heads * n, width) @ y).view(batch, heads, n, y.shape[3])
