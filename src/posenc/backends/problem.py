# SPDX-License-Identifier: Apache-2.0
"""What a backend is given, what it has to offer, and what several share."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from posenc.bias import Modifier, Score, Values, Weights
from posenc.positions import Positions
from posenc.positions.memory import SHORT
from posenc.positions.visibility import EVERYTHING, MaskMod, Region, rowwise

T = TypeVar("T")


class Rotated(NamedTuple):
    """Queries and keys as a branch of a position map rotates them, for the pairs in its region. first: how many of the
    call's keys come before those in k, which may leave out keys that no query sees in the region."""

    q: Tensor
    k: Tensor
    region: Region
    first: int = 0


@dataclass(frozen=True, eq=False)
class Problem:
    """One attention call after the encoding has acted: what is left is softmax(m(scale * q k^T + bias)) (v + w)."""

    q: Tensor
    """(batch, num_heads, num_queries, width), rotated"""
    k: Tensor
    """(batch, num_kv_heads, num_keys, width), rotated"""
    v: Tensor
    """(batch, num_kv_heads, num_keys, value width)"""
    bias: list[Score]
    values: Values | None
    positions: Positions
    scale: float
    sink: Tensor | None
    """(batch or 1, num_heads, num_queries or 1) logits, float32 or better"""
    dropout_p: float
    branches: Sequence[Rotated] = ()
    """Those of a position map; q and k are then the first one's. One softmax goes over all."""
    region: Region | None = None
    """Keys outside it are hidden."""
    modifiers: Sequence[Modifier] = ()
    """What becomes of each score, in order."""
    sink_value: Tensor | None = None
    """(batch, num_heads, num_queries, value width): the value of each query's sink, or of what weights that take the place of
    the softmax leave; None: zero."""
    first_key: int = 0
    """How many of the call's keys come before those in v."""
    constant: bool = False
    """Whether the terms depend on positions alone and are the same in every layer: a pass may make them once."""
    learned: bool = False
    """Whether a gradient reaches them then"""
    traced: bool = False
    """Whether a graph is traced, which may not read tensors and may be for any length"""
    turn_back: Callable[[Tensor], Tensor] | None = None
    """Undoes on the output what was done to v; no part of what a backend computes, see `finished`."""
    made: dict[object, Any] = field(default_factory=dict)
    """What is the same for all layers of a pass, see `for_all_layers`"""

    def of_layer(self, q: Tensor, k: Tensor, v: Tensor) -> "Problem":
        """The problem of a layer that differs in these tensors alone."""
        made = object.__new__(Problem)  # which `replace` is slow at
        vars(made).update(vars(self), q=q, k=k, v=v)
        return made

    def kinds(self) -> tuple[object, ...]:
        """What a plan depends on, beside shapes."""
        bias, modifiers = map(type, self.bias), map(type, self.modifiers)
        return *bias, None, *modifiers, self.values is None, self.sink is None, len(self.branches)

    def finished(self, out: Tensor) -> Tensor:
        """What a backend computed, (batch, num_heads, num_queries, value width), as the output of the call."""
        return out if self.turn_back is None else self.turn_back(out)

    def each(self) -> list["Problem"]:
        """The problem of every branch by itself, or this one."""
        if not self.branches:
            return [self]
        problems = []
        for branch in self.branches:
            k, first = branch.k, branch.first
            part = replace(self, q=branch.q, k=k, branches=(), region=branch.region)
            if k.shape[2] < self.v.shape[2]:
                end = first + k.shape[2]
                v, positions = self.v[:, :, first:end], self.positions.keys(first, end)
                part = replace(part, v=v, positions=positions, first_key=first)
            problems.append(part)
        return problems

    def among(self, first: int, end: int) -> "Problem":
        """The same queries among keys first .. end - 1 alone, without the terms of their scores."""
        if (first, end) == (0, self.v.shape[2]):
            return self
        branches = []
        for branch in self.branches:
            k0, k1 = max(first - branch.first, 0), max(end - branch.first, 0)
            before = min(max(branch.first - first, 0), end - first)
            branches.append(branch._replace(k=branch.k[:, :, k0:k1], first=before))
        k = branches[0].k if branches else self.k[:, :, first:end]
        positions = self.positions.keys(first, end)
        v, before = self.v[:, :, first:end], self.first_key + first
        return replace(self, k=k, v=v, bias=[], positions=positions, branches=branches, first_key=before)

    @property
    def pairs(self) -> int:
        """Queries times keys."""
        return self.q.shape[2] * self.v.shape[2]

    @property
    def weighs(self) -> bool:
        """Whether the last modifier takes the place of the softmax."""
        return len(self.modifiers) > 0 and isinstance(self.modifiers[-1], Weights)

    def mask_mod(self) -> MaskMod:
        """Visibility in FlexAttention's signature, see `Positions.mask_mod`, within the region."""
        visible, region = self.positions.mask_mod(), self.region
        if region is None or region == EVERYTHING:
            return visible
        q, k = rowwise(self.positions.q), rowwise(self.positions.k)
        return lambda b, h, i, j: visible(b, h, i, j) & region.contains(q(b, i), k(b, j))

    def mask(self, first: int = 0, end: int | None = None, region: Region | None = None) -> Tensor:
        """Visibility as a dense bool tensor, (batch or 1, 1, num_queries, num_keys), for queries first .. end - 1. region: in the
        place of the problem's."""
        q, k, visible = self.positions.q, self.positions.k, self.positions.mask(first, end)
        region = self.region if region is None else region
        if region is None or region == EVERYTHING:
            return visible
        return visible & region.contains(q[:, None, first:end, None], k[:, None, None])

    @property
    def is_empty(self) -> bool:
        """No rows, queries or keys, which kernels need not bear; a graph that is traced for any size does not ask."""
        return not self.traced and 0 in (*self.q.shape, *self.v.shape)

    @property
    def is_plain(self) -> bool:
        """No terms, no sink, and a visibility that needs no mask: all, or causal among as many queries as keys."""
        positions = self.positions
        if self.bias or self.modifiers or self.sink is not None or self.values is not None or not positions.unmasked:
            return False
        if self.branches or self.region is not None:
            return False
        # SDPA's own causal mask is aligned to the first key, so it needs a square
        causal = positions.causal and positions.diagonal == 0
        return (causal and self.q.shape[2] == self.v.shape[2]) or positions.all_visible

    @property
    def factors(self) -> list[tuple[Tensor, Tensor]]:
        """The terms that are products of queries' and keys' own vectors, see `Score.factors`."""
        return [each for each in [term.factors() for term in self.bias] if each is not None]

    @property
    def others(self) -> list[Score]:
        """The terms that are no such products."""
        return [term for term in self.bias if term.factors() is None]

    @property
    def width(self) -> int:
        """Channels of queries and keys once widened."""
        return self.q.shape[-1] + sum([left.shape[-1] for left, _ in self.factors])

    def widened(self) -> tuple[Tensor, Tensor, Tensor, float]:
        """Queries, keys and values with the factors as further channels, and the scale of their product."""
        q, k, v, scale, factors = self.q, self.k, self.v, self.scale, self.factors
        if not factors:
            return q, k, v, scale
        if scale == 0.0:
            q, scale = torch.zeros_like(q), 1.0
        if k.shape[1] != q.shape[1] and any(right.shape[1] > 1 for _, right in factors):  # a factor is per query head
            groups = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        lefts = [(left / scale).to(q.dtype).expand(*q.shape[:3], -1) for left, _ in factors]
        rights = [right.to(k.dtype).expand(*k.shape[:3], -1) for _, right in factors]
        return torch.cat((q, *lefts), -1), torch.cat((k, *rights), -1), v, scale

    def with_sink(self, out: Tensor, lse: Tensor) -> Tensor:
        """An output without the sink, given the (batch, num_heads, num_queries) log-sum-exp of its scores, with it:
        exp(s) / (exp(sink) + sum exp(s)) is the softmax times its share of the denominator. An empty row has no share."""
        assert self.sink is not None
        empty = lse == -torch.inf
        more = lse.masked_fill(empty, 0.0) - self.sink.to(lse.dtype)
        out = out * more.sigmoid().masked_fill(empty, 0.0)[..., None].to(out.dtype)
        if self.sink_value is None:
            return out
        rest = (-more).sigmoid().masked_fill(empty, 1.0)
        return out + (self.sink_value * rest[..., None]).to(out.dtype)

    def sink_of(self, first: int, end: int) -> Tensor | None:
        """The sink's logits of queries first .. end - 1, (batch or 1, num_heads, queries or 1, 1)."""
        if self.sink is None:
            return None
        one_for_all = self.sink.shape[2] == 1
        return (self.sink if one_for_all else self.sink[:, :, first:end])[..., None]


def of_pass(problem: Problem, first: int, end: int, key: Hashable, make: Callable[[], T]) -> T:
    """What `make` makes of the visibility of queries first .. end - 1, for all layers of a pass where these are all queries and few."""
    if problem.traced or end - first < problem.q.shape[2] or problem.pairs > SHORT:
        return make()
    made, key = problem.made, (key, problem.positions)
    if key not in made:
        made[key] = problem.positions.for_layers(make)
    return made[key]


def merged(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of one softmax over all keys from those over parts of the keys, in the output's dtype."""
    outs, sums = zip(*parts, strict=True)
    lse = torch.stack(sums).logsumexp(0)
    anchor = lse.masked_fill(lse == -torch.inf, 0.0)  # a query that sees nothing
    shares = [(each - anchor).exp()[..., None] for each in sums]
    return sum(out * share for out, share in zip(outs, shares, strict=True)).to(outs[0].dtype), lse


def for_all_layers(constant: bool, make: Callable[[Problem], T]) -> Callable[[Problem], T]:
    """A function that makes something of a problem; where the terms are constant, once for all layers of a pass, with its
    gradient."""
    if not constant:
        return make

    def of(problem: Problem) -> T:
        if problem.traced:  # a graph shares by itself
            return make(problem)
        made: dict[object, T] = problem.made
        if of not in made:
            made[of] = problem.positions.for_layers(partial(make, problem))
        return made[of]

    return of


def trains(problem: Problem) -> bool:
    """Whether a gradient would flow through the queries, keys and values of a problem."""
    inputs = [problem.q, problem.k, problem.v, *([] if problem.sink is None else [problem.sink])]
    inputs += [x for branch in problem.branches for x in (branch.q, branch.k)]
    inputs += [side for pair in problem.factors for side in pair]
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


class Plan(NamedTuple):
    """How a backend computes a problem. run: does it, for the problem and for those of other layers, which differ from it in their
    tensors alone: (batch, num_heads, num_queries, value width); it refers to none of the problem's tensors but to those of terms that
    are constant. why: it is computed so. faster: what would be."""

    run: Callable[[Problem], Tensor]
    why: str
    faster: str = ""


class Backend(Protocol):
    """One way to compute a `Problem`."""

    def plan(self, problem: Problem) -> Plan | str:
        """How this backend computes the problem; or why it cannot."""
        ...
