# SPDX-License-Identifier: Apache-2.0
"""One call of attention: its arguments, and what an encoding makes of them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout

from posenc.backends import Problem
from posenc.backends.problem import Rotated
from posenc.bias import Added, Score, SoftCap, Values
from posenc.distributed import exchange
from posenc.encoding import (
    NOTHING,
    Effects,
    Encoding,
    Gates,
    Pass,
    Rotation,
    checked_gates,
    parameters_of,
    require_fit,
    require_positions,
    require_values,
    swapped,
)
from posenc.errors import LEAST_DIVISOR, InputError, check_flags, check_integers, check_value, refuse_distributed
from posenc.positions import Positions
from posenc.positions.segments import contains_all_visible, visible_keys
from posenc.positions.visibility import Region, left_out


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one call of `posenc.attention`, see there."""

    q: Tensor
    k: Tensor
    v: Tensor
    encoding: Any = None
    """An `Encoding`, or None; as it is given also a `Pass`"""
    positions: Positions | None = None
    causal: bool | None = None
    scale: float | None = None
    softcap: float | None = None
    sink: float | Tensor | None = None
    dropout_p: float = 0.0
    layer: int = 0
    keys_rotated: bool = False
    gates: Gates = None
    acting: Any = NOTHING
    """What of the encoding acts in the layer"""
    at: Any = None
    """The positions as it restricts them, without gates"""
    traced: bool = False
    """Whether a graph is traced"""

    def changed(self, **changes: Any) -> "Call":
        """The call with other values for these fields."""
        if changes.get("traced", self.traced):
            return replace(self, **changes)
        made = object.__new__(Call)  # which `replace` is slow at
        vars(made).update(vars(self), **changes)
        return made


def given(call: Call) -> Call:
    """A call whose arguments are of their types, with the encoding and the positions of a pass if that is its encoding, and with what
    acts in its layer."""
    encoding, positions, acting, traced = call.encoding, call.positions, None, torch.compiler.is_compiling()
    if not traced:
        check_numbers(call)
    if isinstance(encoding, Pass):
        if positions is not None:
            raise InputError("a pass has its positions: leave them out", positions=positions)
        if encoding.versions and not traced:
            encoding.require_current()
        acting = encoding.acting_in(call.layer) if traced else encoding.acting_once(call.layer)
        encoding, positions = encoding.encoding, encoding.positions
    check_given(encoding, positions, q=call.q, k=call.k, v=call.v)
    if acting is None:
        acting = NOTHING if encoding is None else encoding.acting_in(call.layer)
    return call.changed(encoding=encoding, positions=positions, acting=acting, traced=traced)


def gathered(call: Call, positions: Positions) -> Call:
    """The call at a shard's positions, with the gates, keys and values that all processes have."""
    given = checked_gates(call.acting, call.gates, call.k)
    gates = tuple(exchange.gather(gate, positions, 2) for gate in given)
    k, v = exchange.gather_keys(call.k, call.v, positions)
    return call.changed(k=k, v=v, gates=gates or None)


def prepare(call: Call) -> Problem:
    """Check a call and apply the encoding's hooks to it: the `Problem` that a backend solves.

    Raises:
        InputError: what does not fit together, or what a hook must not return.
    """
    check_numbers(call)
    acting = NOTHING if call.encoding is None else call.encoding.acting_in(call.layer)
    call = checked(call.changed(acting=acting, traced=torch.compiler.is_compiling()))
    return assembled(call, effects_of(call))


def checked(call: Call) -> Call:
    """The call with its positions, without what hidden tokens hold, once its arguments have been compared with one another."""
    q, k, v, encoding = call.q, call.k, call.v, call.encoding
    _check_shapes(q, k, v, call.keys_rotated)
    # usually there are more tokens than heads; a graph is for any length
    if encoding is not None and not call.traced and 1 < q.shape[2] < q.shape[1]:
        _check_axes(q, encoding)
    positions = resolve_positions(q, k, encoding, call.positions, call.causal)
    call = visible_part(call if positions is call.positions else call.changed(positions=positions))
    if encoding is not None:
        if not call.traced:
            require_values(encoding, q)
        for leaf in call.acting.leaves:
            leaf.encoding._check_part(q, k)
        part = call.acting.part
        if call.keys_rotated and part.bias_reads_keys and "rotate" in part.sites():
            why = f"the bias of {part.known_as} reads the keys as they were before their rotation"
            raise InputError(why, "keep them unrotated (or set bias_reads_keys = False)", keys_rotated=True)
        if (call.acting.maps or part.causal_only) and positions.sees_future:
            who = "a position map" if call.acting.maps else part.known_as
            raise InputError(f"{who} is defined for the keys before a query alone: pass causal positions (causal=True)")
    return call if call.at is not None else call.changed(at=Effects(call.acting, positions).restricted())


def visible_part(call: Call) -> Call:
    """The call without what hidden tokens hold, which no result depends on."""
    assert call.positions is not None
    of_queries, of_keys = call.positions.hidden()
    gates: Any = call.gates
    if gates is not None or call.acting.gates:
        gates = checked_gates(call.acting, gates, call.k, of_keys)
    if of_queries is None and of_keys is None:
        return call if gates is None else call.changed(gates=gates)
    k, v = left_out(of_keys, call.k), left_out(of_keys, call.v)
    return call.changed(q=left_out(of_queries, call.q), k=k, v=v, gates=gates)


def effects_of(call: Call) -> Effects:
    """What the encoding does to a call that has been checked."""
    return Effects(call.acting, call.at.with_gates(tuple(call.gates)) if call.gates else call.at)


def assembled(
    call: Call, effects: Effects, rotation: Rotation | None = None, terms: list[Score] | None = None
) -> Problem:
    """The problem that a call poses under its effects. rotation, terms: those of another layer of the pass, which are the same."""
    q, k, v, sites, positions = call.q, call.k, call.v, effects.sites, effects.positions
    constant = effects.acting.constant
    if terms is None and "bias" in sites:
        make = partial(effects.terms, q, k)
        terms = positions.for_layers(make) if constant else make()
    v, values = _with_values(call, effects) if "values" in sites or "rotate_values" in sites else (v, None)
    prefix = effects.prefix(q, v) if "prefix_kv" in sites else None
    padding = None if prefix is None else positions.hidden()[0]
    projected = q if padding is None else padding.zeroed(q)  # padding sees the prefix, whatever it holds
    sink = effects.sink(projected) if "sink" in sites and call.sink is None else call.sink
    factor = effects.scale(q.shape[3]) if call.scale is None else call.scale
    modifiers = effects.modifiers() if "modify" in sites else []
    reads_all = True if terms else values is not None or call.gates is not None
    q, k, branches = rotated(call, effects, rotation, reads_all)
    scale = factor
    if "scores" in sites:
        products, q, k, scale = _products(q, k, factor, effects)
        terms, constant = [*products, *(terms or ())], constant and not products
    if call.softcap is not None:  # what is added after it is a function of the capped score
        modifiers = [SoftCap(call.softcap), *(Added(term, q.device) for term in terms or ()), *modifiers]
        terms, constant = [], False
    problem = Problem(
        q, k, v, terms or [], values, call.at, scale, None if sink is None else _logits(sink, q),
        call.dropout_p, branches, modifiers=modifiers, constant=constant, traced=call.traced,
        learned=_learns(effects) if terms and torch.is_grad_enabled() else False,
    )  # fmt: skip
    if modifiers and problem.weighs:
        if prefix is not None or sink is not None:
            raise InputError(f"{call.acting.part.known_as} has no softmax for a sink or a prefix of keys: leave it out")
    elif prefix is not None:
        problem = _with_prefix(problem, factor, projected, *prefix, call.softcap)
    return _with_values_rotated_back(problem, effects) if "rotate_values" in sites else problem


def _learns(effects: Effects) -> bool:
    """Whether a bias learns."""
    biases = [leaf.encoding for leaf in effects.acting.leaves if "bias" in leaf.sites]
    return True in [x.requires_grad for each in biases for *_, x in parameters_of(each)]


def _products(q: Tensor, k: Tensor, factor: float, effects: Effects) -> tuple[list[Score], Tensor, Tensor, float]:
    """What takes the place of factor * q . k: a term, or none, and the queries, keys and scale of a product that is left."""
    products = effects.products(q, k, factor)
    if not products:
        return [], q, k, factor
    if effects.acting.maps:
        who = effects.acting.part.known_as
        raise InputError(f"{who} has other scores than q . k, in which a position map has no part")
    pair = products[0].factors()
    if pair is not None and pair[0].dtype == pair[1].dtype == q.dtype and pair[1].shape[1] in (1, k.shape[1]):
        return [], pair[0].expand(*q.shape[:3], -1), pair[1].expand(*k.shape[:3], -1), 1.0
    return products, q[..., :1], k[..., :1], 0.0


def _with_values(call: Call, effects: Effects) -> tuple[Tensor, Values | None]:
    """Values with what the encoding adds to each key's, and as it rotates them; and what it adds besides by distance."""
    v, rotates = call.v, "rotate_values" in effects.sites
    added = effects.values(call.q, v)
    if isinstance(added, Values):
        if rotates:
            names = "+".join(part.known_as for part, *_ in effects.acting.leaves)
            raise InputError(f"{names}: what is added to values by distance cannot be turned back; use one of the two")
        return v, added
    more = None if added is None else added.added.to(v.dtype).expand_as(v)
    if rotates and call.keys_rotated:  # v is rotated
        return v if more is None else v + effects.values_rotated(more), None
    v = v if more is None else v + more
    return effects.values_rotated(v), None


def _with_values_rotated_back(problem: Problem, effects: Effects) -> Problem:
    """The problem with its output rotated back, where values are rotated. A prefix has no position, so its values are as if
    they were at that of each query."""
    positions, value = problem.positions, problem.sink_value
    effects = effects.at(positions)
    if value is not None:
        value = effects.at(positions.of_side("q")).values_rotated(value)
    return replace(problem, sink_value=value, turn_back=effects.rotated_back)


def _logits(sink: float | Tensor, q: Tensor) -> Tensor:
    """The sink's logits, (batch or 1, num_heads, num_queries or 1)."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    # a number is filled in: a copy would wait for the GPU
    logit = sink.to(q.device, dtype) if isinstance(sink, Tensor) else torch.full((), sink, dtype=dtype, device=q.device)
    batch, heads, queries, _ = q.shape
    if logit.dim() == 3 and logit.shape[0] in (1, batch) and logit.shape[1:] == (heads, queries):
        return logit
    if logit.dim() > 1 or (logit.dim() == 1 and logit.shape[0] != heads):
        shapes = f"a number, ({heads},) logits, or ({batch}, {heads}, {queries})"
        raise InputError(f"sink of shape {tuple(logit.shape)}: pass {shapes}")
    return logit.expand(heads)[None, :, None]


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


def rotated(
    call: Call, effects: Effects, rotation: Rotation | None, reads_all: bool
) -> tuple[Tensor, Tensor, list[Rotated]]:
    """Queries and keys as the encoding rotates them, for each branch of a position map if there is one. reads_all: also those keys
    that no query sees in a branch."""
    q, k = call.q, call.k
    if effects.acting.maps:
        made = _in_branches(call, effects, reads_all)
        q, k = made[0][:2]
        alone = len(made) == 1 and k.shape[2] == call.v.shape[2]
        return q, k, [] if alone and contains_all_visible(effects.positions, made[0].region) else made
    if "rotate" not in effects.sites:
        return q, k, []
    if call.keys_rotated:
        q = effects.queries_rotated(q) if rotation is None else rotation(q, None)[0]
        if q.shape[3] != k.shape[3]:
            raise InputError(f"k is {k.shape[3]} wide, queries once rotated {q.shape[3]}: its keys are not rotated")
        return q, k, []
    q, k = effects.rotated(q, k) if rotation is None else rotation(q, k)
    return q, k, []


def _in_branches(call: Call, effects: Effects, reads_all: bool) -> list[Rotated]:
    q, k, positions = call.q, call.k, effects.positions
    if call.keys_rotated:
        why = "a position map rotates a key differently for near and for far queries"
        raise InputError(why, "keep keys unrotated in the cache", keys_rotated=True)
    key = "branches", effects.acting.part, effects.acting.number, q.shape, k.shape, q.dtype, reads_all
    made = positions.once(key, partial(_branch_rotations, q, k, effects, reads_all))
    parts = []
    for region, first, end, at, rotation in made:
        keys = k if end - first == k.shape[2] else k[:, :, first:end]
        of_q, of_k = effects.at(at).rotated(q, keys) if rotation is None else rotation(q, keys)
        parts.append(Rotated(of_q, of_k, region, first))
    return parts


def _branch_rotations(
    q: Tensor, k: Tensor, effects: Effects, reads_all: bool
) -> list[tuple[Region, int, int, Positions, Rotation | None]]:
    """Of each branch where something is visible: its region, its first key and their end, its positions, and their rotation."""
    positions, branches, made = effects.positions, effects.branches(), []
    for branch in branches:
        first, end = (0, k.shape[2]) if reads_all else visible_keys(positions, branch.region)[:2]
        if first >= end:
            continue
        at = positions
        if end - first < k.shape[2]:
            at = positions.shared(("keys", branch), partial(at.keys, first, end))
        at = at.at(branch)
        rotation = effects.at(at).rotation(q, k[:, :, first:end])
        made.append((branch.region, first, end, at, rotation))
    if not made:  # nothing is visible, in any branch
        made.append((branches[0].region, 0, k.shape[2], positions.at(branches[0]), None))
    return made


def resolve_positions(
    q: Tensor, k: Tensor, encoding: Encoding | None, positions: Positions | None, causal: bool | None
) -> Positions:
    """The positions of a call, by default 0 .. n-1, once tensors and positions have been checked against one another."""
    if causal is not None:
        check_flags(causal=causal)
    if positions is None:
        if q.shape[2] != k.shape[2] and (causal or encoding is not None):
            remedy = "pass positions=Positions.arange(n, offset=cached), or others"
            raise InputError(f"{q.shape[2]} queries and {k.shape[2]} keys without positions: {remedy}")
        if q.shape[2] == k.shape[2]:
            positions = Positions.arange(q.shape[2], device=q.device)
        else:
            where = [Positions.arange(n, device=q.device) for n in (q.shape[2], k.shape[2])]
            positions = Positions.cross(*where)
    if causal is not None:
        positions = positions.with_causal(causal)
    if positions.q.is_meta and not q.is_meta:
        raise InputError("positions are on meta, where tensors have no values: make them on q's device")
    require_fit(positions, q=q, k=k)
    if positions.q.device != q.device:
        raise InputError(f"positions are on {positions.q.device}, q on {q.device}: use positions.to(q.device)")
    return positions


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, keys_rotated: bool) -> None:
    if q.dim() == k.dim() == v.dim() == 4 and q.dtype == k.dtype == v.dtype and q.device == k.device == v.device:
        (batch, heads, _, width), (*of_k, width_k) = q.shape, k.shape
        fits = of_k == [*v.shape[:3]] and batch == of_k[0] and of_k[1] and heads and not heads % of_k[1]
        if fits and width and width_k and v.shape[3] and (keys_rotated or width == width_k) and q.is_floating_point():
            return
    check_dims(q=q, k=k, v=v)
    if not (q.is_floating_point() and q.dtype == k.dtype == v.dtype and q.device == k.device == v.device):
        kinds = ", ".join(f"{name} is {x.dtype} on {x.device}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise InputError(f"{kinds}: make them one float dtype, on one device")
    if q.shape[1] % k.shape[1]:
        raise InputError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads: the first must be a multiple")
    raise InputError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not belong together")


def _check_axes(q: Tensor, encoding: Encoding) -> None:
    """Refuse queries whose seq axis has as many entries as the encoding has heads, and whose heads are others."""
    names = "num_heads", "heads_of_model"
    heads = {getattr(part, name, None) for part in encoding.modules() if isinstance(part, Encoding) for name in names}
    if q.shape[1] not in heads and q.shape[2] in heads:
        raise swapped("q", q, f"{encoding.known_as} has num_heads={q.shape[2]}")


SDPA = {
    "is_causal": "pass causal=, or causal positions, such as Positions.arange(n, causal=True)",
    "attn_mask": "pass Positions, which say what is visible, such as Positions.from_mask(attention_mask, causal=True)",
    "enable_gqa": "leave it out: keys and values may have fewer heads than queries",
}
"""Names of PyTorch's attention -> what to pass instead."""


def check_names(function: str, others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name in SDPA:
            raise InputError(f"{SDPA[name]}", argument=name, value=value)
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def check_given(encoding: Encoding | None, positions: Any, **tensors: Tensor) -> None:
    for name, x in tensors.items():
        if not isinstance(x, Tensor) or x.layout != torch.strided:
            check_value(name, x, Tensor)
        if type(x) is not Tensor:
            refuse_distributed(**{name: x})
    if isinstance(encoding, Tensor):
        raise InputError(f"a mask is none: {SDPA['attn_mask']}", encoding=encoding)
    if encoding is not None and not isinstance(encoding, Encoding):
        raise InputError("pass an Encoding, such as posenc.create('rope', head_dim=64)", encoding=encoding)
    if positions is not None and not isinstance(positions, Positions):
        require_positions(positions)


def check_numbers(call: Call) -> None:
    """Refuse numbers and flags of other types, and out of range."""
    scale, softcap, sink, dropout_p, layer = call.scale, call.softcap, call.sink, call.dropout_p, call.layer
    if scale is not None:
        check_value("scale", scale, float)
        if 0 < abs(scale) < LEAST_DIVISOR:
            raise InputError("too near 0 for float32", f"pass 0, or at least {LEAST_DIVISOR} either way", scale=scale)
    if sink is not None and not isinstance(sink, Tensor) and not (isinstance(sink, float) and sink == -torch.inf):
        check_value("sink", sink, float)
    if type(dropout_p) is not float:
        check_value("dropout_p", dropout_p, float)
    if not 0 <= dropout_p < 1:
        raise InputError("a probability below 1", dropout_p=dropout_p)
    if type(layer) is not int or layer < 0:
        check_integers(0, layer=layer)
    rotated: Any = call.keys_rotated
    if type(rotated) is not bool:
        check_flags(keys_rotated=rotated)
    if softcap is not None:
        check_value("softcap", softcap, float)
        if not 0 < softcap < math.inf:
            raise InputError("pass a positive number, such as 50.0, or None for no cap", softcap=softcap)


def check_dims(**tensors: Tensor) -> None:
    for name, x in tensors.items():
        if x.dim() != 4 or 0 in (x.shape[1], x.shape[3]):
            raise InputError(f"{name} of shape {tuple(x.shape)}: pass (batch, heads, seq, head_dim), with channels")
