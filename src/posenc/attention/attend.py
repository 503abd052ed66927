# SPDX-License-Identifier: Apache-2.0
"""The equation, o_i = sum_j p_ij T_i^-1 T_j (v_j + w_ij) with p_i = softmax(m(scale * <q_i, k_j> + b_ij)), and who computes
it."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Never

import torch
from torch import Tensor

from posenc.attention.call import (
    Call,
    assembled,
    check_dims,
    check_names,
    checked,
    effects_of,
    gathered,
    given,
    prepare,
    visible_part,
)
from posenc.backends import AUTO, BACKENDS, Plan, Problem, by_speed
from posenc.cache import KVCache
from posenc.distributed import exchange
from posenc.encoding import Effects, Encoding, Gates, Pass, Rotation, checked_gates, require_fit
from posenc.errors import InputError, check_word
from posenc.functional import exactly
from posenc.positions import Positions
from posenc.positions.memory import Memory, recomputes_alone

Plans = dict[tuple[object, ...], tuple[tuple[object, ...], Plan]]
"""Of calls that are alike, see `_key`, the kinds of what they are made of, and how they are computed"""


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
    gates: Gates = None,
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
        encoding: the `Pass` of a forward pass, `encoding.at(positions)`, which has positions as well. Or an encoding, for this call
            alone: `augment` and `embed` act on the model's input, all its other hooks here. None: nothing.
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
            new tokens alone, as many as there are queries. positions: of the new tokens among all; None: the next ones of
            the layer. A model of several layers passes layer= in each. A call that raises leaves the cache as it was, but for
            tokens that positions roll back.
        backend: "auto" (the fastest exact one), "sdpa", "flex" (FlexAttention, for GPUs), "triton" (own
            kernels, for GPUs), or "reference".

    A query that sees no key gets zeros. The dtype is q's also under autocast, which would round biases and angles.
    Raises InputError for shapes that do not fit, an unknown backend, or a backend that cannot serve the request (the
    message says why).
    """
    if others:
        check_names("attention", others)
    call = Call(q, k, v, encoding, positions, causal, scale, softcap, sink, dropout_p, layer, keys_rotated, gates)
    call = given(call)
    with exactly(q, call.traced):
        if cache is not None:
            call, extended = _cached(call, cache)
            out = _attended(call, backend, cache.plans)
            cache.store(layer, extended)  # a call that fails has stored nothing
            return out
        if call.positions is None or call.positions.sharding is None:
            return _attended(call, backend)
        return torch.cat([_attended(part, backend) for part in _of_shard(call, gather=True)], 2)


Pass.compute = staticmethod(attention)


def _cached(call: Call, cache: object, stores: bool = True) -> tuple[Call, Any]:
    """The call with the keys, values and gates of all tokens, and its layer with them. stores: the new ones will be stored."""
    positions = call.positions
    if not isinstance(cache, KVCache):
        raise InputError("pass a posenc.KVCache()", cache=cache)
    if call.keys_rotated:
        raise InputError("a cache rotates the new keys by itself", "pass them unrotated", keys_rotated=True)
    if positions is None:
        check_dims(q=call.q)
        positions = cache.positions(call.q.shape[2], device=call.q.device, layer=call.layer)
    elif positions.sharding is not None:
        raise InputError("a cache and a shard of a sequence exclude one another: pass cache=None, or no shard")
    elif call.q.dim() != 4 or call.q.shape[2] != positions.num_queries:
        require_fit(positions, q=call.q)
    layer = cache.extended(call.k, call.v, call.encoding, call.acting, positions, call.layer, call.gates, stores)
    k, v, *gates = layer.filled(layer.tokens)
    return call.changed(k=k, v=v, positions=positions, gates=gates or None, keys_rotated=layer.rotated), layer


# -------------------------------------------------------------------- what the layers of a pass share


@dataclass(frozen=True, eq=False)
class _Kept:
    """What a layer of a pass leaves to those alike.

    problem: without its tensors. kinds: of what it is made. plain: only queries, keys and values differ from layer to layer, and
    their rotation is known.
    """

    problem: Problem
    kinds: tuple[object, ...]
    plan: Plan
    rotation: Rotation | None
    plain: bool

    @classmethod
    def of(cls, call: Call, effects: Effects, rotation: Rotation | None, problem: Problem, plan: Plan) -> "_Kept":
        empty, constant = call.q.new_empty(0), problem.constant
        plain = constant and set(effects.sites) <= {"augment", "embed", "restrict", "rotate", "bias", "scale"}
        plain = plain and ("rotate" not in effects.sites or rotation is not None) and not problem.branches
        plain = plain and problem.sink is None and not problem.modifiers
        made = problem.of_layer(empty, empty, empty)
        bias = problem.bias if constant else []
        vars(made).update(bias=bias, branches=(), values=None, sink=None, sink_value=None, turn_back=None, modifiers=())
        return cls(made, problem.kinds(), plan, rotation, plain)

    def __call__(self, call: Call, backend: str) -> Tensor:
        """The output of a call."""
        call = visible_part(call)
        if self.plain:
            q, k, v = call.q, call.k, call.v
            if self.rotation is not None:
                q, k = self.rotation(q, None if call.keys_rotated else k)
            return self.plan.run(self.problem.of_layer(q, call.k if k is None else k, v))
        problem = assembled(call, effects_of(call), self.rotation, self.problem.bias if self.problem.constant else None)
        vars(problem).update(made=self.problem.made)
        plan = self.plan if problem.kinds() == self.kinds else _choose(problem, backend)[1]
        return problem.finished(plan.run(problem))


def _attended(call: Call, backend: str, plans: Plans | None = None) -> Tensor:
    """The output of a call among keys that are all here. plans: those of the tokens before, in a generation."""
    exchange.refuse_ring()
    positions, memory, acting = call.positions, None, call.acting
    at: Any = positions
    here = of_token = None
    if positions is not None:
        if call.causal is not None:
            positions = positions.with_causal(call.causal)  # made once, and with it what layers share
        memory = positions.memory
        if memory is None:
            memory = None if call.traced else Memory(lasts=False)  # for this call
            positions = positions.in_pass(memory)
        at = Effects(acting, positions).restricted() if "restrict" in acting.sites else positions
    call = call.changed(positions=positions, at=at, causal=call.causal if positions is None else None)
    if memory is not None and memory.lasts:
        alike = _key(call, backend)
        here = None if alike is None else (alike, call.k.shape, call.v.shape, at)
        replay = None if here is None else memory.get(here)
        if replay is not None:
            return replay(call, backend)
        if plans is not None and alike is not None and call.q.shape[2] == 1 and at.all_visible:
            of_k, of_v = call.k.shape, call.v.shape
            order = of_k[2].bit_length()  # of the length, of which thresholds are
            of_token = alike, memory.modes, of_k[:2], of_k[3:], of_v[:2], of_v[3:], order
    kinds, plan = (None, None) if of_token is None or plans is None else plans.get(of_token, (None, None))
    call = checked(call) if plan is None else visible_part(call)
    effects = effects_of(call)
    rotation = None
    if "rotate" in effects.sites and not acting.maps:
        rotation = effects.rotation(call.q, None if call.keys_rotated else call.k)
    problem = assembled(call, effects, rotation)
    if plan is None or problem.kinds() != kinds:
        _, plan = _choose(problem, backend)
        if of_token is not None and plans is not None:
            plans[of_token] = problem.kinds(), plan
    out = problem.finished(plan.run(problem))
    if here is not None and memory is not None:
        memory[here] = _Kept.of(call, effects, rotation, problem, plan)
    return out


def _key(call: Call, backend: object) -> tuple[object, ...] | None:
    """What calls have in common that are computed alike, at the same positions and with keys and values of the same shapes; None: a
    call that no other is like."""
    q, k, v, sink, positions = call.q, call.k, call.v, call.sink, call.positions
    if type(backend) is not str or positions is None or positions.q.requires_grad:
        return None
    if "bias" in call.acting.sites and recomputes_alone():
        return None
    return (
        call.acting.part, q.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, call.scale, call.softcap,
        call.dropout_p, call.keys_rotated, call.gates is None, torch.is_grad_enabled(), q.requires_grad, k.requires_grad, v.requires_grad,
        None if sink is None else getattr(sink, "requires_grad", False), backend,
    )  # fmt: skip


# -------------------------------------------------------------------- who computes it


def _choose(problem: Problem, name: str) -> tuple[str, Plan]:
    """The backend that computes a problem, and its plan."""
    if isinstance(name, str) and name == "auto":
        for each in by_speed(problem):
            plan = AUTO[each].plan(problem)
            if isinstance(plan, Plan):
                return each, plan
    check_word("backend", name, ["auto", *BACKENDS])
    plan = BACKENDS[name].plan(problem)
    if isinstance(plan, str):
        raise InputError(f"cannot serve this: {plan}", "pass backend='auto'", backend=name)
    return name, plan


@dataclass(frozen=True)
class Explanation:
    """Which backend `attention` takes, why, and what would be faster."""

    backend: str
    reason: str
    faster: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}" + (f"; faster: {self.faster}" if self.faster else "")


def explain(
    q: Tensor, k: Tensor, v: Tensor, encoding: "Encoding | Pass | None" = None, positions: Positions | None = None,
    *, cache: KVCache | None = None, backend: str = "auto", **options: Any,
) -> Explanation:  # fmt: skip
    """What `attention` would do with the same arguments, without doing it: a cache stays as it is. Raises what it would raise."""
    check_names("explain", {name: value for name, value in options.items() if name not in Call.__match_args__[5:13]})
    call = given(Call(q, k, v, encoding, positions, **options))
    if cache is not None:
        call, _ = _cached(call, cache, stores=False)
    calls, gathered = [call], ""
    if call.positions is not None and call.positions.sharding is not None:
        calls, gathered = _of_shard(call, gather=False), "keys and values gathered from all processes; "
    name, plan = _choose(prepare(calls[0]), backend)
    alone = encoding is not None and not isinstance(encoding, Pass)
    more = "; made for this call alone: pass encoding.at(positions), once for all layers" if alone else ""
    return Explanation(name, gathered + plan.why + more, plan.faster)


# -------------------------------------------------------------------- a sequence over several processes


def _of_shard(call: Call, gather: bool) -> list[Call]:
    """The calls that a shard takes among all keys, see `calls_of`. gather: keys from all processes; False: as many of this
    one's own."""
    q, k, v, positions = call.q, call.k, call.v, call.positions
    assert positions is not None
    assert positions.sharding is not None
    check_dims(q=q, k=k)
    if (q.shape[2], k.shape[2]) != (positions.num_queries, positions.num_queries):
        remedy = "pass this process's parts, see posenc.distributed.shard"
        raise InputError(f"a shard of {positions.num_queries} tokens, q has {q.shape[2]} and k {k.shape[2]}: {remedy}")
    if call.keys_rotated:
        raise InputError("a cache and the shards of a sequence exclude one another", keys_rotated=True)
    causal = positions.causal if call.causal is None else positions.with_causal(call.causal).causal
    if gather:
        call = gathered(call, positions)
        k, v, gates = call.k, call.v, call.gates or ()
    else:
        given = k, v, *checked_gates(call.acting, call.gates, k)
        k, v, *gates = (x.repeat(1, 1, positions.sharding.world_size, 1) for x in given)
    calls = positions.shared(("calls", causal), partial(exchange.calls_of, positions, causal))
    parts = []
    for part, at in zip(q.split([at.num_queries for at in calls], 2), calls, strict=True):
        keys, values, *of_keys = (x[:, :, : at.num_keys] for x in (k, v, *gates))
        parts.append(call.changed(q=part, k=keys, v=values, positions=at, causal=None, gates=of_keys or None))
    return parts
