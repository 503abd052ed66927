# SPDX-License-Identifier: Apache-2.0
"""The equation, o_i = sum_j p_ij T_i^-1 T_j (v_j + w_ij) with p_i = softmax(m(scale * <q_i, k_j> + b_ij)), and who computes
it."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any, Never

import torch
from torch import Tensor
from torch.nn import ModuleList
from torch.nn.functional import dropout, elu, pad

from posenc.backends import AUTO, BACKENDS, Plan, Problem, by_speed
from posenc.backends.problem import Attend, Rotated
from posenc.backends.reference import of_token
from posenc.bias import Added, Modifier, Score, SoftCap, Values, Weights
from posenc.cache import KVCache
from posenc.distributed import exchange
from posenc.encoding import Effects, Encoding, Sum, checked_gates, require_fit, require_values, swapped
from posenc.errors import (
    LEAST_DIVISOR,
    InputError,
    check_flags,
    check_integers,
    check_value,
    refuse_distributed,
    unknown,
)
from posenc.functional import exactly, transformed
from posenc.positions import Positions
from posenc.positions.memory import Memory, again_alone
from posenc.positions.segments import contains_all_visible, visible_keys
from posenc.positions.visibility import EVERYTHING, Branch, Hidden, left_out


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: "Encoding | Pass | None" = None,
    positions: Positions | None = None,
    *,
    causal: bool | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: float | Tensor | None = None,
    dropout_p: float = 0.0,
    layer: int = 0,
    keys_rotated: bool = False,
    gates: Tensor | Sequence[Tensor] | None = None,
    cache: KVCache | None = None,
    backend: str = "auto",
    **others: Never,
) -> Tensor:
    """Attention under a positional encoding: (batch, num_heads, num_queries, head_dim of v), in q's dtype.

    Args:
        q: (batch, num_heads, num_queries, head_dim), not yet rotated.
        k: (batch, num_kv_heads, num_keys, head_dim), not yet rotated unless keys_rotated; num_heads is a multiple of
            num_kv_heads (grouped-query attention), and keys are not copied per head.
        v: (batch, num_kv_heads, num_keys, any width).
        encoding: a `Pass`, which has positions as well; or what position does; its `restrict`, `rotate`, `bias`, `modify`, `values`, `rotate_values`, `scale`, `sink`
            and `prefix_kv` act here (`augment` and `embed` act on the model's input). None: nothing.
        positions: where queries and keys are and what is visible. None: 0 .. n-1 for both, all visible; needs
            num_queries == num_keys if an encoding or causal uses them. A shard of a sequence that several processes
            have (`Positions.shard`): q, k and v are of this process's tokens, and k and v are gathered from all.
        causal: overrides the positions' own causality.
        scale: overrides the encoding's factor of q . k; terms that an encoding makes of q or k (Shaw's, DeBERTa's)
            keep their own.
        softcap: scores scale * q . k become softcap * tanh(scale * q . k / softcap) before biases are added, the order of
            Gemma 2 and flash-attention. To cap their sum with the biases, an encoding's `modify` returns posenc.bias.SoftCap.
        sink: logit of an extra key whose value is zero, a number, one per head (num_heads,), or one per query (batch
            or 1, num_heads, num_queries): 0.0 is softmax_1,
            exp / (1 + sum exp); log(n) is softmax_n; a parameter is a learned sink. Overrides the encoding's own.
        dropout_p: probability of dropping an attention weight.
        layer: index of the layer, for encodings that differ per layer.
        keys_rotated: the keys, and the values, come from a cache that has them as `encoding.rotate_keys` and
            `encoding.rotate_values` left them (most encodings leave values as they are); only the queries are rotated.
        gates: for an encoding that makes numbers of the layer's input (`Encoding.gates`): those of all keys, cached ones
            first, as `posenc.encoding.gates_of(encoding, x, layer)` returns them. Of a shard: this process's.
        cache: a `posenc.KVCache`, which has the keys, values and gates of the tokens before; k, v and gates are then of the
            new tokens alone, as many as there are queries. positions: of the new tokens among all; None: the next ones.
        backend: "auto" (the fastest exact one), "sdpa", "flex" (FlexAttention, for GPUs), "triton" (own
            kernels, for GPUs), or "reference".

    A query that sees no key gets zeros. The dtype is q's also under autocast, which would round biases and angles.
    Raises InputError for shapes that do not fit, an unknown backend, or a backend that cannot serve the request (the
    message says why).
    """
    if others:
        _check_names("attention", others)
    if isinstance(encoding, Pass):
        if positions is not None:
            raise InputError("a pass has its positions: leave them out", positions=positions)
        if encoding._learned:
            encoding.require_current()
        encoding, positions = encoding.encoding, encoding.positions
    check_given(encoding, positions, q=q, k=k, v=v)
    with exactly(q):
        if cache is not None:
            positions = _cached_positions(cache, positions, q, keys_rotated)
        if positions is not None and positions.memory is None:
            own = Memory.of_pass(lasts=False)  # for this call
            positions = positions.in_pass(own)
        if cache is not None:
            k, v, gates, keys_rotated = cache.extended(k, v, encoding, positions, layer, gates)
            gates = gates or None
        if positions is None or positions.sharding is None:
            if causal is not None and positions is not None:
                positions, causal = positions.with_causal(causal), None  # made once, and with them what layers share
            usual = causal is None and sink is None and gates is None and softcap is None and type(keys_rotated) is bool
            usual = usual and type(dropout_p) is float and dropout_p == 0.0 and backend == "auto"
            usual = usual and (scale is None or type(scale) is float) and type(layer) is int and layer >= 0
            memory = positions.memory if usual and positions is not None else None
            if memory is None or positions is None or not memory.lasts or positions.q.requires_grad:
                exchange.refuse_ring()
                problem = prepare(
                    q, k, v, encoding, positions, causal, scale, sink, dropout_p, layer, keys_rotated, gates, softcap
                )
                return _solved(problem, backend)
            acting, at = None if encoding is None else encoding.acts_in(layer), positions
            if acting is not None and acting.restricts and encoding is not None:
                at = encoding.effects(positions, layer).restricted().positions
            part = None if acting is None else acting.part
            key = (part, at, q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, scale,
                   keys_rotated, torch.is_grad_enabled())  # fmt: skip
            replay = memory.get(key)
            alone = replay is not None and acting is not None and "bias" in acting.sites and again_alone()
            if replay is not None and not alone:
                return replay(q, k, v, encoding, positions, layer)
            exchange.refuse_ring()
            alone = acting is not None and "bias" in acting.sites and again_alone()
            problem = prepare(q, k, v, encoding, positions, None, scale, None, 0.0, layer, keys_rotated)
            if alone:
                return _solved(problem, backend)
            with memory.apart() if problem.constant else nullcontext():
                _, plan = _choose(problem, backend)
                replay = _replayed(problem, plan, q, k, part, positions, keys_rotated)
            if replay is not None:
                memory[key] = replay
            if isinstance(replay, _Layer) and problem.constant:  # its masks are made already
                return replay.attend(problem.q, problem.k, problem.v, None, problem.values)
            return problem.finished(plan.run())
        positions = _checked_shard(q, k, positions, causal, keys_rotated)
        exchange.refuse_ring()
        gates = [exchange.gather(gate, positions, 2) for gate in checked_gates(encoding, gates, k, layer)]
        k, v = exchange.gather_keys(k, v, positions)
        problems = _problems(q, k, v, encoding, positions, scale, sink, dropout_p, layer, gates, softcap)
        return torch.cat([_solved(problem, backend) for problem, _ in problems], 2)


def _cached_positions(cache: object, positions: Positions | None, q: Tensor, keys_rotated: bool) -> Positions:
    """The positions of a call with a cache, which are checked before its tokens are stored."""
    if not isinstance(cache, KVCache):
        raise InputError("pass a posenc.KVCache()", cache=cache)
    if keys_rotated:
        raise InputError("a cache rotates the new keys by itself", "pass them unrotated", keys_rotated=True)
    if positions is None:
        return cache.positions(q.shape[2])
    if positions.sharding is not None:
        raise InputError("a cache and a shard of a sequence exclude one another: pass cache=None, or no shard")
    if q.dim() != 4 or q.shape[2] != positions.num_queries:
        require_fit(positions, q=q)
    return positions


class Pass:
    """One forward pass: an encoding at positions, and what its layers share: tables, masks, the plan of a call.

        here = Pass(encoding, positions)
        for number, layer in enumerate(layers):
            ... here.attention(q, k, v, layer=number)

    It is of the parameters as they are: make another after an optimiser's step. encoding: None does nothing.
    """

    def __init__(self, encoding: Encoding | None, positions: Positions) -> None:
        check_given(encoding, positions)
        if not isinstance(positions, Positions):
            raise InputError("pass Positions, such as Positions.arange(n, causal=True)", positions=positions)
        self.encoding, self.memory = encoding, Memory.of_pass()
        self.positions = positions.in_pass(self.memory)
        learned = () if encoding is None or torch.compiler.is_compiling() else encoding.parameters()
        self._learned = [(x, x._version) for x in learned if not x.is_inference()]

    def require_current(self) -> None:
        """Refuse to go on once a parameter has been written to, as far as it tells (`.data` does not).

        Raises:
            InputError: another pass is wanted.
        """
        if not torch.compiler.is_compiling() and any(x._version != version for x, version in self._learned):
            raise InputError(
                "the encoding's parameters have changed since this pass was made: make one in each forward pass, "
                "Pass(encoding, positions)"
            )

    def attention(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """`posenc.attention` here."""
        return attention(q, k, v, self, **options)

    def embed(self, x: Tensor, layer: int = 0) -> Tensor:
        """The input of a layer."""
        return x if self.encoding is None else self.encoding.effects(self.positions, layer).embedded(x)


Replay = Callable[[Tensor, Tensor, Tensor, Encoding | None, Positions, int], Tensor]
"""(q, k, v, encoding, positions, layer) -> the output of a call that another layer of the pass makes alike."""


def _replayed(
    problem: Problem, plan: Plan, q: Tensor, k: Tensor, part: Encoding | None, positions: Positions, keys_rotated: bool
) -> Replay | None:  # fmt: skip
    """A call's plan as the other layers take it, without its validation. None: they are planned anew."""
    if plan.again is None and not problem.branches:
        return None
    if part is not None and not part.acts_in(0).is_replayed:
        return None
    if part is not None and part.branches():
        return _replayed_by_branches(problem, part, positions, q)
    if plan.again is None:
        return None
    turn, sites = None, () if part is None else part.sites()
    if part is not None and "rotate" in sites:
        effects = part.effects(problem.positions)
        turn = effects.token_rotation(q) if keys_rotated else effects.pass_rotation(q, k)
    return _Layer(plan.again(), not problem.constant, sites, keys_rotated, turn, positions.hidden(), problem.positions)


@dataclass(frozen=True)
class _Layer:
    """A plan, and what comes before it in each layer.

    asks: for the terms, which are None where they are constant. sites: where the encoding acts. turn: the rotation, of the queries
    alone if keys are rotated, where it is known as a function for all layers. hidden: queries and keys that hold anything, see `Positions.hidden`. at: the
    positions as the encoding restricts them.
    """

    attend: Attend
    asks: bool
    sites: Sequence[str]
    keys_rotated: bool
    turn: Callable[..., Any] | None
    hidden: tuple[Hidden | None, Hidden | None]
    at: Positions

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, encoding: Encoding | None, positions: Positions, layer: int
    ) -> Tensor:
        of_queries, of_keys = self.hidden
        if of_queries is not None:
            q = of_queries.left_out(q)
        if of_keys is not None:
            k, v = of_keys.left_out(k), of_keys.left_out(v)
        rotates, adds, terms, values = self.turn is None and "rotate" in self.sites, "values" in self.sites, None, None
        if encoding is not None and (self.asks or rotates or adds):
            effects = encoding.effects(self.at, layer)
            if self.asks:
                terms = effects.terms(q, k)
            if adds:
                v, values = _with_values(q, v, effects, self.keys_rotated)
            if rotates:
                q, k = (effects.queries_rotated(q), k) if self.keys_rotated else effects.rotated(q, k)
        if self.turn is not None and self.keys_rotated:
            q = self.turn(q)
        elif self.turn is not None:
            q, k = self.turn(q, k)
        return self.attend(q, k, v, terms, values)


def _replayed_by_branches(problem: Problem, encoding: Encoding, positions: Positions, q: Tensor) -> Replay | None:
    """The same of a position map and a single query that sees every key of its branches."""
    if q.shape[2] > 1 or set(encoding.sites()) != {"rotate"} or problem.is_empty:
        return None
    at = {branch.region: branch for branch in _merged(encoding, encoding.branches(), positions)}
    turns = []
    for branch in sorted(problem.branches, key=lambda branch: branch.first):
        if branch.turn is None or not branch.complete:
            return None
        of_query = encoding.effects(positions.at(at[branch.region])).token_rotation(q)
        if of_query is None:
            return None
        turns.append((branch.first, branch.first + branch.k.shape[2], of_query, branch.turn))
    scale = problem.scale

    def attend(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
        branches = [
            Rotated(of_query(q), k[:, :, first:end], EVERYTHING, first, of_keys)
            for first, end, of_query, of_keys in turns
        ]
        return of_token(branches, v, scale)

    return attend if turns else None


@dataclass(frozen=True)
class Explanation:
    """Which backend `attention` takes, why, what it costs, and what would be faster."""

    backend: str
    reason: str
    extra_bytes: int
    """Memory on top of q, k, v and the output, as far as the sizes tell: what an encoding computes on its way to its
    terms is not in it."""
    faster: str

    def __str__(self) -> str:
        size = f"{self.extra_bytes / 2**20:.1f} MiB" if self.extra_bytes >= 2**20 else f"{self.extra_bytes} bytes"
        return f"{self.backend}: {self.reason}; {size} extra" + (f"; faster: {self.faster}" if self.faster else "")


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: "Encoding | Pass | None" = None,
    positions: Positions | None = None,
    *,
    causal: bool | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: float | Tensor | None = None,
    dropout_p: float = 0.0,
    layer: int = 0,
    keys_rotated: bool = False,
    gates: Tensor | Sequence[Tensor] | None = None,
    backend: str = "auto",
    **others: Never,
) -> Explanation:
    """What `attention` would do with the same arguments, without doing it. Raises what it would raise."""
    if others:
        _check_names("explain", others)
    if isinstance(encoding, Pass):
        encoding, positions = encoding.encoding, encoding.positions
    check_given(encoding, positions, q=q, k=k, v=v)
    if positions is None or positions.sharding is None:
        problem = prepare(
            q, k, v, encoding, positions, causal, scale, sink, dropout_p, layer, keys_rotated, gates, softcap
        )
        return _explained(problem, (q, k, v), backend)
    part, positions = positions.sharding, _checked_shard(q, k, positions, causal, keys_rotated)
    gates = checked_gates(encoding, gates, k, layer)
    k, v, *gates = (x.repeat(1, 1, part.world_size, 1) for x in (k, v, *gates))  # as large as what is gathered
    problems = _problems(q, k, v, encoding, positions, scale, sink, dropout_p, layer, gates, softcap)
    most = max((_explained(*each, backend) for each in problems), key=lambda each: each.extra_bytes)
    gathered = sum(x.numel() * x.element_size() for x in (k, v))
    why = f"keys and values gathered from {part.world_size} processes; {most.reason}"
    return Explanation(most.backend, why, gathered + most.extra_bytes, most.faster)


def _explained(problem: Problem, given: tuple[Tensor, Tensor, Tensor], backend: str) -> Explanation:
    name, plan = _choose(problem, backend)
    why, size, faster = plan.costs()
    now = problem.q, problem.k, problem.v
    rotated = [x for x, before in zip(now, given, strict=True) if x is not before]
    if problem.turn_back is not None:
        rotated.append(problem.q[..., :1].expand(*problem.q.shape[:3], problem.v.shape[3]))
    return Explanation(name, why, size + sum(x.numel() * x.element_size() for x in rotated), faster)


def _problems(
    q: Tensor, k: Tensor, v: Tensor, encoding: Encoding | None, positions: Positions, scale: float | None,
    sink: float | Tensor | None, dropout_p: float, layer: int, gates: Sequence[Tensor], softcap: float | None,
) -> list[tuple[Problem, tuple[Tensor, Tensor, Tensor]]]:  # fmt: skip
    """The calls that a shard takes among all keys, see `calls_of`, each with its queries, keys and values."""
    causal, problems = positions.causal, []
    calls = positions.shared(("calls", causal), partial(exchange.calls_of, positions, causal))
    for part, call in zip(q.split([call.num_queries for call in calls], 2), calls, strict=True):
        keys, values, *of_keys = (x[:, :, : call.num_keys] for x in (k, v, *gates))
        problem = prepare(
            part, keys, values, encoding, call, None, scale, sink, dropout_p, layer, gates=of_keys, softcap=softcap
        )
        problems.append((problem, (part, keys, values)))
    return problems


def _checked_shard(q: Tensor, k: Tensor, positions: Positions, causal: bool | None, keys_rotated: bool) -> Positions:
    """The positions of a shard under the causality of a call, once its tensors have been compared with them."""
    _check_dims(q=q, k=k)
    if (q.shape[2], k.shape[2]) != (positions.num_queries, positions.num_queries):
        raise InputError(
            f"positions are a shard of {positions.num_queries} tokens, q has {q.shape[2]} and k has {k.shape[2]}: pass "
            "this process's queries, keys and values; posenc.distributed.shard takes its part of an unsharded tensor"
        )
    if keys_rotated:
        raise InputError("a cache and the shards of a sequence exclude one another", keys_rotated=True)
    return positions if causal is None else positions.with_causal(causal)


def _solved(problem: Problem, backend: str) -> Tensor:
    return problem.finished(_choose(problem, backend)[1].run())


def _choose(problem: Problem, name: str) -> tuple[str, Plan]:
    """The backend that computes a problem, and its plan."""
    if isinstance(name, str) and name == "auto":
        plans = ((each, AUTO[each].plan(problem)) for each in by_speed(problem))
        return next((each, plan) for each, plan in plans if isinstance(plan, Plan))
    if not isinstance(name, str) or name not in BACKENDS:
        raise unknown("backend", name, ["auto", *BACKENDS])
    plan = BACKENDS[name].plan(problem)
    if isinstance(plan, str):
        raise InputError(f"cannot serve this: {plan}", "pass backend='auto'", backend=name)
    return name, plan


def prepare(
    q: Tensor, k: Tensor, v: Tensor, encoding: Encoding | None, positions: Positions | None, causal: bool | None,
    scale: float | None, sink: float | Tensor | None, dropout_p: float, layer: int, keys_rotated: bool = False,
    gates: Tensor | Sequence[Tensor] | None = None, softcap: float | None = None,
) -> Problem:  # fmt: skip
    """Apply the encoding's hooks to a call of `attention`: the `Problem` that a backend solves."""
    if not torch.compiler.is_compiling():
        _check_numbers(scale, sink, dropout_p, layer, keys_rotated, softcap)
    positions = resolve_positions(q, k, v, encoding, positions, causal, keys_rotated)
    if not 0 <= dropout_p < 1:
        raise InputError("a probability below 1", dropout_p=dropout_p)
    head_dim = q.shape[-1]
    terms: list[Score] = []
    products: list[Score] = []
    factor = float(head_dim**-0.5)
    values: Values | None = None
    branches: list[Rotated] = []
    modifiers: list[Modifier] = []
    prefix: tuple[Tensor, Tensor] | None = None
    of_product: float | None = None
    constant, learned = True, False
    of_queries, of_keys = positions.hidden()
    projected = q = left_out(of_queries, q)
    k, v = left_out(of_keys, k), left_out(of_keys, v)
    given = checked_gates(encoding, gates, k, layer, of_keys)
    effects: Effects | None = None
    if encoding is not None:
        require_values(encoding, q)
        encoding._check_part(q, k)
        effects = encoding.effects(positions, layer).restricted(given)
        positions = effects.positions
        if keys_rotated:
            _check_keys_unread(encoding, layer)
        acts = effects.sites
        if "bias" in acts:
            constant, memory = encoding.at(layer)[0].adds_constants, positions.memory
            with memory.apart() if constant and memory is not None else nullcontext():
                terms = effects.terms(q, k)
            learners = [part for part, _ in effects.acting if "bias" in part.sites()] if torch.is_grad_enabled() else []
            learned = any(x.requires_grad for part in learners for x in part.parameters())
        if "values" in acts or "rotate_values" in acts:
            v, values = _with_values(q, v, effects, keys_rotated)
        if "modify" in acts:
            modifiers = effects.modifiers()
        map_branches = effects.branches()
        if "prefix_kv" in acts:
            prefix = effects.prefix(q, v)
            if prefix is not None and of_queries is not None:
                projected = of_queries.zeroed(q)  # padding sees the prefix, whatever it holds
        if "sink" in acts and sink is None:
            sink = effects.sink(projected)
        factor = effects.scale(head_dim) if scale is None else scale
        if map_branches:
            reads_all = bool(terms) or values is not None or bool(given)
            part = encoding.at(layer)[0]  # which other layers have no part in
            branches = _rotated(q, k, part, effects, map_branches, keys_rotated, reads_all)
            q, k = branches[0][:2]
            alone = len(branches) == 1 and branches[0].turn is None and k.shape[2] == v.shape[2]
            if alone and contains_all_visible(positions, branches[0].region):
                branches = []
        elif keys_rotated:
            q = effects.queries_rotated(q)
            if q.shape[3] != k.shape[3]:
                raise InputError(f"k is {k.shape[3]} wide, queries once rotated {q.shape[3]}: its keys are not rotated")
        else:
            q, k = effects.rotated(q, k)
        products = effects.products(q, k, factor) if "scores" in acts else []
        if products:
            if map_branches:
                raise InputError(f"{encoding} computes other scores than q . k, and a position map has no part in them")
            pair = products[0].factors()
            if pair is not None and pair[0].dtype == pair[1].dtype == q.dtype and pair[1].shape[1] in (1, k.shape[1]):
                q, k, of_product = pair[0].expand(*q.shape[:3], -1), pair[1].expand(*k.shape[:3], -1), 1.0
                products = []
            else:
                q, k, constant, of_product = q[..., :1], k[..., :1], False, 0.0
    elif scale is not None:
        factor = scale
    if softcap is not None:  # what is added after it is a function of the capped score
        modifiers = [SoftCap(softcap), *(Added(term, q.device) for term in terms), *modifiers]
        terms, constant = [], False
    terms = products + terms
    logit = None if sink is None else _logits(sink, q)
    positions = positions.with_gates(())
    scale = factor if of_product is None else of_product
    problem = Problem(
        q,
        k,
        v,
        terms,
        values,
        positions,
        scale,
        logit,
        dropout_p,
        branches,
        modifiers=modifiers,
        constant=constant,
        learned=learned,
    )
    if problem.weighs:
        problem = _with_rest(problem, encoding, prefix is not None or logit is not None)
    elif prefix is not None:
        problem = _with_prefix(problem, factor, projected, *prefix, softcap)
    return problem if effects is None else _with_turns(problem, effects)


def _with_values(q: Tensor, v: Tensor, effects: Effects, keys_rotated: bool) -> tuple[Tensor, Values | None]:
    """Values with what the encoding adds to each key's, and as it rotates them; and what it adds besides by distance."""
    added, rotates = effects.values(q, v), "rotate_values" in effects.sites
    if isinstance(added, Values):
        if rotates:
            names = "+".join(part.known_as for part, _ in effects.acting)
            raise InputError(
                f"{names}: adds to values by their distance and rotates them, and what is turned back at a query would not "
                "depend on the distance alone; use one of the two"
            )
        return v, added
    more = None if added is None else added.added.to(v.dtype).expand_as(v)
    if rotates and keys_rotated:  # v is rotated
        return v if more is None else v + effects.values_rotated(more), None
    v = v if more is None else v + more
    return effects.values_rotated(v), None


def _with_turns(problem: Problem, effects: Effects) -> Problem:
    """The problem with its output turned back, where values are rotated. A prefix has no position, so its values are as if
    they were at that of each query."""
    if "rotate_values" not in effects.sites:
        return problem
    positions, value = problem.positions, problem.sink_value
    effects = effects.at(positions)
    if value is not None:
        value = effects.at(positions.of_side("q")).values_rotated(value)
    return replace(problem, sink_value=value, turn_back=effects.turned_back)


def _logits(sink: float | Tensor, q: Tensor) -> Tensor:
    """The sink's logits, (batch or 1, num_heads, num_queries or 1)."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    # a number is filled in: a copy would wait for the GPU
    logit = sink.to(q.device, dtype) if isinstance(sink, Tensor) else torch.full((), sink, dtype=dtype, device=q.device)
    batch, heads, queries, _ = q.shape
    if logit.dim() == 3 and logit.shape[0] in (1, batch) and logit.shape[1:] == (heads, queries):
        return logit
    if logit.dim() > 1 or (logit.dim() == 1 and logit.shape[0] != heads):
        raise InputError(
            f"sink of shape {tuple(logit.shape)}: pass a number, one logit per head ({heads},), or one per query "
            f"({batch}, {heads}, {queries})"
        )
    return logit.expand(heads)[None, :, None]


def _with_rest(problem: Problem, encoding: Encoding | None, has_sink: bool) -> Problem:
    """The problem with the value of what weights that take the place of the softmax leave."""
    if has_sink:
        raise InputError(f"{encoding} has no softmax for a sink or a prefix of keys to be part of: leave it out")
    last = problem.modifiers[-1]
    assert isinstance(last, Weights)
    if last.rest is None:
        return problem
    (heads, width), wanted = last.rest.shape, (problem.q.shape[1], problem.v.shape[3])
    if heads not in (1, wanted[0]) or width != wanted[1]:
        raise InputError(
            f"what weights leave goes to a value of shape {(heads, width)}: make it {wanted}, as q and v are"
        )
    return replace(problem, sink_value=last.rest[None, :, None].expand(*problem.q.shape[:3], -1))


def _with_prefix(
    problem: Problem, scale: float, q: Tensor, keys: Tensor, values: Tensor, softcap: float | None
) -> Problem:
    """The problem with further keys and values, which with the sink make one key and value for each query: the logit is the
    log-sum-exp of theirs. q: the queries before their rotation."""
    precise, of_keys = torch.promote_types(q.dtype, torch.float32), keys.shape[0]
    q = q.to(precise).unflatten(1, (of_keys, -1))  # (batch, kv heads, queries' heads per key, n, head_dim)
    logits = scale * (q @ keys.to(precise)[:, None].mT).flatten(1, 2)
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    if problem.sink is not None:
        logits = torch.cat((logits, problem.sink[..., None].expand(*logits.shape[:3], 1)), -1)
    weights = dropout(logits.softmax(-1)[..., : keys.shape[1]], problem.dropout_p).unflatten(1, (of_keys, -1))
    value = (weights @ values.to(precise)[:, None]).flatten(1, 2)
    return replace(problem, sink=logits.logsumexp(-1), sink_value=value)


def _rotated(
    q: Tensor, k: Tensor, encoding: Encoding, effects: Effects, branches: Sequence[Branch], keys_rotated: bool,
    reads_all: bool,
) -> list[Rotated]:  # fmt: skip
    """Queries and keys for each branch of a position map; reads_all: also those keys that no query sees in it."""
    positions = effects.positions
    if keys_rotated:
        raise InputError(
            "a position map rotates a key differently for near and for far queries",
            "keep keys unrotated in the cache",
            keys_rotated=True,
        )
    if positions.sees_future:
        raise InputError("a position map is about the keys before a query: pass causal positions (causal=True)")
    rotated = []
    # a single query reads each key once, so a key is rotated when it is read
    later = q.shape[2] == 1 and q.device.type == "cpu" and not torch.compiler.is_compiling() and not transformed()
    for branch in _merged(encoding, branches, positions) if later and not reads_all else branches:
        at = positions.at(branch)
        first, end, complete = (0, k.shape[2], False) if reads_all else visible_keys(positions, branch.region)
        if first >= end:
            continue
        keys = k
        if end - first < k.shape[2]:
            at, keys = positions.shared(("keys", branch), partial(at.keys, first, end)), k[:, :, first:end]
        here = effects.at(at)
        turn = here.key_rotation(keys) if later else None
        if turn is None:
            rotated.append(Rotated(*here.rotated(q, keys), branch.region, first, None, complete))
        else:
            rotated.append(Rotated(here.queries_rotated(q), keys, branch.region, first, turn, complete))
    if not rotated:  # nothing is visible, in any branch
        branch = branches[0]
        rotated.append(Rotated(*effects.at(positions.at(branch)).rotated(q, k), branch.region))
    return rotated


def _merged(encoding: Encoding, branches: Sequence[Branch], positions: Positions) -> Sequence[Branch]:
    """The branches of a single query, without its rotation if possible. Where its keys lie side by side in several, they
    become one, with the query at its own position and keys as far from it as they were, so that they rotate together."""
    encodings = [each for each in encoding.modules() if isinstance(each, Encoding)]
    if any(isinstance(each, Sum) and not each.commutes for each in encodings):
        return branches  # what the other parts do depends on where the map has a token, not on the distance alone
    leaves = [each for each in encodings if not any(isinstance(x, (Encoding, ModuleList)) for x in each.children())]

    def make() -> Sequence[Branch]:
        runs = [(*visible_keys(positions, branch.region), branch) for branch in branches]
        runs = sorted((run for run in runs if run[0] < run[1]), key=itemgetter(0))
        beside = all(one[1] == other[0] for one, other in pairwise(runs))
        turned = all(complete and branch.k is not torch.zeros_like for *_, complete, branch in runs)
        if len(runs) < 2 or not beside or not turned:
            return branches
        if visible_keys(positions, EVERYTHING) != (runs[0][0], runs[-1][1], True):
            return branches
        at, parts = positions.q, []
        for first, end, _, branch in runs:
            k, of_query = positions.k[:, first:end], at if branch.q is None else branch.q(at)
            parts.append(at + ((k if branch.k is None else branch.k(k)) - of_query))
        k = torch.cat(parts, 1)
        return [Branch(EVERYTHING, None, lambda _: k, branches[0].most)]

    if any(branch.turns for branch in branches):
        return positions.shared(("turns", tuple(branches)), lambda: [_about(positions, branch) for branch in branches])
    relative = all(leaf.shift_invariant for leaf in leaves)
    return positions.shared(("merged", tuple(branches)), make) if relative else branches


def _about(positions: Positions, branch: Branch) -> Branch:
    """A branch of a single query that is left as it is, while keys that are as far from it as they should be are, too."""
    assert branch.q is not None
    assert branch.k is not None
    first, end, _ = visible_keys(positions, branch.region)
    of_query, of_keys = branch.q(positions.q), branch.k
    moves = bool((of_keys(positions.k[:, first:end]) != of_query).any())
    return replace(branch, q=torch.zeros_like, k=(lambda p: of_keys(p) - of_query) if moves else torch.zeros_like)


def _check_keys_unread(encoding: Encoding, layer: int) -> None:
    part, _ = encoding.at(layer)
    if part.bias_reads_keys and "rotate" in part.sites():
        raise InputError(
            f"the bias of {part.known_as} reads the keys as they were before their rotation, which a cache of "
            "rotated keys has lost",
            "keep them unrotated (a bias that does not read them says bias_reads_keys = False)",
            keys_rotated=True,
        )


def resolve_positions(
    q: Tensor, k: Tensor, v: Tensor, encoding: Encoding | None, positions: Positions | None, causal: bool | None,
    keys_rotated: bool = False,
) -> Positions:  # fmt: skip
    """The positions of a call, by default 0 .. n-1, once tensors and positions have been checked against one another."""
    if causal is not None:
        check_flags(causal=causal)
    _check_shapes(q, k, v, keys_rotated)
    _check_order(q, encoding)
    if positions is None:
        if q.shape[2] != k.shape[2] and (causal or encoding is not None):
            raise InputError(
                f"{q.shape[2]} queries and {k.shape[2]} keys without positions: say where they are, "
                "e.g. positions=Positions.arange(n, offset=cached)"
            )
        if q.shape[2] == k.shape[2]:
            positions = Positions.arange(q.shape[2], device=q.device)
        else:
            where = [Positions.arange(n, device=q.device) for n in (q.shape[2], k.shape[2])]
            positions = Positions.cross(*where)
    if causal is not None:
        positions = positions.with_causal(causal)
    _check_positions(q, k, positions)
    return positions


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, keys_rotated: bool) -> None:
    if q.dim() == k.dim() == v.dim() == 4 and q.dtype == k.dtype == v.dtype and q.device == k.device == v.device:
        (batch, heads, _, width), (*of_k, width_k) = q.shape, k.shape
        fits = of_k == [*v.shape[:3]] and batch == of_k[0] and of_k[1] and heads and not heads % of_k[1]
        if fits and width and width_k and v.shape[3] and (keys_rotated or width == width_k) and q.is_floating_point():
            return
    _check_dims(q=q, k=k, v=v)
    if not (q.is_floating_point() and q.dtype == k.dtype == v.dtype and q.device == k.device == v.device):
        kinds = ", ".join(f"{name} is {x.dtype} on {x.device}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise InputError(f"{kinds}: make them one float dtype, on one device")
    if q.shape[1] % k.shape[1]:
        raise InputError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads: the first must be a multiple")
    raise InputError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not belong together")


def _check_order(q: Tensor, encoding: Encoding | None) -> None:
    """Refuse queries whose seq axis has as many entries as the encoding has heads, and whose heads are others."""
    if encoding is None or torch.compiler.is_compiling():  # a graph is for any length
        return
    if not 1 < q.shape[2] < q.shape[1]:  # usually there are more tokens than heads
        return
    heads = {part.num_heads for part in encoding.modules() if isinstance(part, Encoding) and hasattr(part, "num_heads")}
    if q.shape[1] not in heads and q.shape[2] in heads:
        raise swapped("q", q, f"{encoding.known_as} has num_heads={q.shape[2]}")


SDPA = {
    "is_causal": "pass causal=, or causal positions, such as Positions.arange(n, causal=True)",
    "attn_mask": "pass Positions, which say what is visible, such as Positions.from_mask(attention_mask, causal=True)",
    "enable_gqa": "leave it out: keys and values may have fewer heads than queries",
}
"""Names of PyTorch's attention -> what to pass instead."""


def _check_names(function: str, others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name in SDPA:
            raise InputError(f"{SDPA[name]}", argument=name, value=value)
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def check_given(encoding: Encoding | None, positions: Positions | None, **tensors: Tensor) -> None:
    for name, x in tensors.items():
        if not isinstance(x, Tensor) or x.layout != torch.strided:
            check_value(name, x, Tensor)
        if type(x) is not Tensor:
            refuse_distributed(**{name: x})
    if isinstance(encoding, Tensor):
        raise InputError(
            f"the fourth argument is an encoding, and a mask is none: {SDPA['attn_mask']}", encoding=encoding
        )
    if encoding is not None and not isinstance(encoding, Encoding):
        raise InputError("pass an Encoding, such as posenc.create('rope', head_dim=64)", encoding=encoding)
    if positions is not None and not isinstance(positions, Positions):
        raise InputError(
            "pass Positions, such as Positions.from_ids(position_ids), with packed=True if they restart",
            positions=positions,
        )


def _check_numbers(
    scale: float | None, sink: float | Tensor | None, dropout_p: float, layer: int, keys_rotated: bool,
    softcap: float | None,
) -> None:  # fmt: skip
    if scale is not None:
        check_value("scale", scale, float)
        if 0 < abs(scale) < LEAST_DIVISOR:
            raise InputError("too near 0 for float32", f"pass 0, or at least {LEAST_DIVISOR} either way", scale=scale)
    if sink is not None and not isinstance(sink, Tensor) and sink != -torch.inf:
        check_value("sink", sink, float)
    if type(dropout_p) is not float:
        check_value("dropout_p", dropout_p, float)
    if type(layer) is not int or layer < 0:
        check_value("layer", layer, int)
        raise InputError("must be at least 0", layer=layer)
    check_flags(keys_rotated=keys_rotated)
    if softcap is not None:
        check_value("softcap", softcap, float)
        if not 0 < softcap < math.inf:
            raise InputError("pass a positive number, such as 50.0, or None for no cap", softcap=softcap)


def _check_dims(**tensors: Tensor) -> None:
    for name, x in tensors.items():
        if x.dim() != 4 or 0 in (x.shape[1], x.shape[3]):
            raise InputError(
                f"{name} of shape {tuple(x.shape)}: pass (batch, heads, seq, head_dim), with heads and channels"
            )


def _check_positions(q: Tensor, k: Tensor, positions: Positions) -> None:
    if positions.q.is_meta and not q.is_meta:
        raise InputError("positions are on meta, where tensors have no values: make them on q's device")
    require_fit(positions, q=q, k=k)
    if positions.q.device != q.device:
        raise InputError(f"positions are on {positions.q.device}, q on {q.device}: use positions.to(q.device)")


# ---------------------------------------------------------------- linear attention


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1, positive everywhere (Katharopoulos et al. 2020, eq. 7)."""
    return elu(x) + 1


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: Encoding | None = None,
    positions: Positions | None = None,
    *,
    feature: Callable[[Tensor], Tensor] = elu_plus_one,
    causal: bool | None = None,
    layer: int = 0,
    chunk_size: int = 64,
    gates: Tensor | Sequence[Tensor] | None = None,
    **others: Never,
) -> Tensor:
    """Linear attention under a rotary encoding: (batch, num_heads, num_queries, head_dim of v), in q's dtype.

    o_i = sum_j (R_i f(q_i)) . (R_j f(k_j)) v_j / sum_j f(q_i) . f(k_j), over the keys j that i sees: the rotation R
    comes after the feature map f, and in the numerator alone, so the denominator stays positive. Weights may be
    negative and need not add up to 1 (Su et al. 2021, "RoFormer", eq. 19; Katharopoulos et al. 2020 without R).

    Args:
        q, k, v, encoding, positions, causal, layer, gates: as in `posenc.attention`. With a cache, k and v are all of the
            keys and values. encoding may act by `rotate` and `rotate_values` alone.
        feature: a map to non-negative values, applied to q and k.
        chunk_size: tokens whose mutual weights are formed at a time; it changes the cost and not the result.

    Time and memory are linear in the length; packed documents add a product of chunk by chunk. A query whose
    denominator is zero, such as one that sees no key, gets zeros.

    Raises:
        InputError: shapes that do not fit, or an encoding that acts on scores or values or is not `isometric`.
    """
    if others:
        _check_names("linear_attention", others)
    check_given(encoding, positions, q=q, k=k, v=v)
    if positions is not None and positions.sharding is not None:
        gates = tuple(exchange.gather(gate, positions, 2) for gate in checked_gates(encoding, gates, k, layer))
        k, v = exchange.gather_keys(k, v, positions)
    positions = resolve_positions(q, k, v, encoding, positions, causal)
    of_queries, of_keys = positions.hidden()
    q, k, v = left_out(of_queries, q), left_out(of_keys, k), left_out(of_keys, v)
    given = checked_gates(encoding, gates, k, layer, of_keys)
    if positions.window is not None or positions.blocks:
        raise InputError(
            "linear attention adds up all keys before a query, without windows and blocks: use posenc.attention"
        )
    check_integers(1, chunk_size=chunk_size)
    check_integers(0, layer=layer)
    precise = torch.promote_types(q.dtype, torch.float32)
    fq, fk = feature(q.to(precise)), feature(k.to(precise))
    rq, rk = fq, fk
    effects = None if encoding is None else encoding.effects(positions.with_gates(given), layer)
    if encoding is not None and effects is not None:
        if not encoding.isometric:
            raise InputError(
                f"{encoding} changes the norms of queries or keys, and the denominator would not follow: use one that only "
                "turns them, such as rope"
            )
        acting = ("restrict", "scores", "bias", "modify", "values", "scale", "sink", "prefix_kv")
        refused = [site for site in acting if site in encoding.sites()]
        if refused:
            raise InputError(
                f"linear attention has no scores for {encoding} to act on ({', '.join(refused)}): use an encoding "
                "that only rotates, such as rope, or posenc.attention"
            )
        rq, rk = effects.rotated(fq, fk)
        v = effects.values_rotated(v)
    if positions.valid is not None:
        fk, rk, v = (x.masked_fill(~positions.valid[:, None, :, None], 0.0) for x in (fk, rk, v))
    summed = _RunningSums(positions, k.shape[1], chunk_size)
    total = summed(rq, rk, v.to(precise))
    weight = summed(fq, fk, torch.ones_like(fk[..., :1]))
    out = total / weight.masked_fill(weight == 0, torch.inf)
    if positions.q_valid is not None:
        out = out.masked_fill(~positions.q_valid[:, None, :, None], 0.0)
    out = out.to(q.dtype)
    return out if effects is None else effects.turned_back(out)


class _RunningSums:
    """sum_j (q_i . k_j) v_j over the keys that each query sees.

    Without causality or documents that is one product. Otherwise queries and keys are brought into one stream, sorted
    by document, then by order (all equal if not causal), keys before queries: now each query sees what stands before
    it in its document, whatever was padded, cached or packed, and one running sum serves all.
    """

    def __init__(self, positions: Positions, kv_heads: int, chunk_size: int) -> None:
        self.kv_heads, self.chunk_size, self.keys = kv_heads, chunk_size, positions.num_keys
        self.index: Tensor | None = None
        self.documents: Tensor | None = None
        documents = positions.q_document, positions.k_document
        packed = documents[0] is not None and documents[1] is not None
        self.all = (not positions.causal or positions.all_visible) and not packed
        # queries and keys that are the same tokens in order are a stream already
        square = positions.num_queries == positions.num_keys and positions.sharding is None
        square = square and positions.prefix is None
        if self.all or (square and positions.start is not None and positions.start[0] == positions.start[1]):
            return
        rows = positions.batch
        k_order, q_order = positions.k_order, positions.q_order
        if positions.prefix is not None:  # as if before every query
            k_order = torch.where(positions.prefix, torch.minimum(k_order, q_order.amin(1, keepdim=True)), k_order)
        order = torch.cat((k_order.expand(rows, -1), q_order.expand(rows, -1)), 1)
        if not positions.causal:
            order = torch.zeros_like(order)
        self.index = order.argsort(dim=1, stable=True)
        if documents[0] is not None and documents[1] is not None:
            both = torch.cat((documents[1].expand(rows, -1), documents[0].expand(rows, -1)), 1)
            self.index = self.index.gather(1, both.gather(1, self.index).argsort(dim=1, stable=True))
            self.documents = both.gather(1, self.index)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q.unflatten(1, (self.kv_heads, -1))  # (batch, kv heads, queries per key, n, width)
        k, v = k[:, :, None], v[:, :, None]
        if self.all:
            out = q @ (k.mT @ v)
        elif self.index is None:
            out = self.running(q, k, v)
        else:
            q = _take(pad(q, (0, 0, self.keys, 0)), self.index)
            k, v = (_take(pad(x, (0, 0, 0, self.index.shape[1] - self.keys)), self.index) for x in (k, v))
            out = _take(self.running(q, k, v), self.index.argsort(1)[:, self.keys :])
        return out.flatten(1, 2)

    def running(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Over (..., n, width): the keys up to and including each query itself, of its document."""
        length, size = q.shape[-2], self.chunk_size
        missing = -length % size
        q, k, v = (pad(x, (0, 0, 0, missing)).unflatten(-2, (-1, size)) for x in (q, k, v))
        near = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
        if self.documents is None:
            states = (k.mT @ v).cumsum(-3)
            before = pad(states, (0, 0, 0, 0, 1, 0))[..., :-1, :, :]
            far = q @ before
        else:
            # within a chunk only its last document can go on, and a chunk's start only goes on from the last one's
            # end; a sum of the chunks that end in the same document needs no subtraction of the others
            ids = pad(self.documents[:, None, None], (0, missing)).unflatten(-1, (-1, size))
            near = near & (ids[..., :, None] == ids[..., None, :])
            last = ids[..., -1]
            states = (k * (ids == last[..., None])[..., None]).mT @ v
            carried = last.roll(1, -1)
            chunk = torch.arange(last.shape[-1], device=q.device)
            going = (carried[..., :, None] == last[..., None, :]) & (chunk[:, None] > chunk)
            before = (going.to(q) @ states.flatten(-2)).unflatten(-1, states.shape[-2:])
            far = (q * (ids == carried[..., None])[..., None]) @ before
        out = (q @ k.mT * near) @ v + far
        return out.flatten(-3, -2)[..., :length, :]


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Tokens of (batch, heads, groups, n, width) at (batch or 1, m) indices."""
    index = index[:, None, None, :, None].expand(*x.shape[:3], -1, x.shape[-1])
    return x.gather(3, index)
