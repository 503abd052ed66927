# SPDX-License-Identifier: Apache-2.0
"""Hooks as the library calls them: what the encodings of a layer do to one call, checked and put together."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from itertools import islice
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posenc.bias import KeyValues, Modifier, Score, Values, Weights, validated, validated_values
from posenc.errors import InputError, check_devices, check_integers, is_distributed, refuse_distributed, shown
from posenc.functional import exactly, interpreted
from posenc.positions import Positions
from posenc.positions.visibility import Branch, Hidden, left_out

Hooked = Any
"""An `Encoding`, which is made of what is here"""
Gates = Tensor | Sequence[Tensor] | None
"""What an encoding makes of a layer's input, see `gates_of`"""
Rotation = Callable[[Tensor | None, Tensor | None], tuple[Any, Any]]
"""(queries, keys) -> the same, rotated; either may be None and stays so."""


def require_positions(positions: object) -> None:
    """Refuse what is no `Positions`."""
    if not isinstance(positions, Positions):
        remedy = "pass Positions, such as Positions.from_ids(position_ids), with packed=True if they restart"
        raise InputError(remedy, positions=positions)


def require_fit(
    positions: Positions, *, x: Tensor | None = None, q: Tensor | None = None, k: Tensor | None = None
) -> None:
    """Refuse positions that are not those of x or q (batch, ..., num_queries, channels) and k (batch, ..., num_keys,
    channels): broadcasting would silently put every token at one position."""
    require_positions(positions)
    batch = positions.batch
    for name, tensor in (("x", x), ("q", q), ("k", k)):
        count, what = (positions.k.shape[1], "keys") if name == "k" else (positions.q.shape[1], "queries")
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor) or tensor.dim() < 2:
            raise InputError("pass a tensor (batch, ..., seq, channels)", argument=name, value=tensor)
        if type(tensor) is not Tensor:
            refuse_distributed(**{name: tensor})
        if tensor.shape[-2] != count:
            if tensor.dim() == 4 and tensor.shape[1] == count:
                raise swapped(name, tensor, f"positions are for {count} {what}")
            hint = "; of some pass their positions: Positions.from_ids(ids)" if q is None or k is None else ""
            given = f"positions are for {count} {what}, {name} has {tensor.shape[-2]}"
            raise InputError(f"{given}: give one for each token{hint}")
        if batch not in (1, tensor.shape[0]):
            raise InputError(f"positions have {batch} rows, {name} has {tensor.shape[0]}: give one row or as many")


def swapped(name: str, x: Tensor, why: str) -> InputError:
    """The error for (batch, seq, heads, head_dim) in the place of (batch, heads, seq, head_dim)."""
    remedy = f"pass (batch, heads, seq, head_dim), as {name}.transpose(1, 2)"
    return InputError(f"{name} of shape {tuple(x.shape)}, and {why}: {remedy}")


class Leaf(NamedTuple):
    """An encoding that is not made of others, in a layer. layer: its number for the encoding. gates: how many tensors it makes."""

    encoding: Hooked
    layer: int
    sites: tuple[str, ...]
    gates: int


class Acting(NamedTuple):
    """What acts in a layer. part: the encoding or, of one for each layer, the layer's, of which it is layer `number`. sites: where it
    acts. gates: how many tensors `gates_of` returns. constant: whether the bias is the same in every layer. maps: whether there is a
    position map."""

    part: Hooked
    number: int
    leaves: tuple[Leaf, ...]
    sites: tuple[str, ...]
    gates: int
    constant: bool
    maps: bool


def _returned(encoding: Hooked, hook: str, value: object, remedy: str) -> InputError:
    return InputError(f"{type(encoding).__name__}.{hook} returned {shown(value)}: {remedy}")


def _same_tokens(made: Positions, before: Positions) -> bool:
    """Of two that one was derived from: have they the same tokens? Those of a part are made again with its text."""
    part = made.sharding is not None or made.of_keys is not None
    alike = part and (made.q.shape, made.k.shape) == (before.q.shape, before.k.shape)
    return alike or (made.q is before.q and made.k is before.k)


def augmented_by(encoding: Hooked, positions: Positions, batch: int) -> Positions:
    """`Encoding.augment`, validated."""
    result = encoding.augment(positions, batch)
    if result is positions:
        return result
    if not isinstance(result, Positions):
        raise _returned(encoding, "augment", result, "return Positions, such as positions.moved(...)")
    tokens = [(at.num_queries, at.num_keys) for at in (result, positions)]
    if tokens[0] != tokens[1] or result.batch not in (1, batch):
        raise _returned(encoding, "augment", result, f"return {positions} at other positions, with 1 or {batch} rows")
    return result


def check_layer(encoding: Hooked, layer: int, num_layers: int | None) -> None:
    if type(layer) is not int or layer < 0:
        check_integers(0, layer=layer)
    if num_layers is not None and layer >= num_layers:
        made = f"{encoding.known_as} was made with num_layers={num_layers}"
        raise InputError(made, f"pass at most {num_layers - 1}", layer=layer)


def parameters_of(encoding: Hooked) -> list[tuple[dict[str, Any], str, Tensor]]:
    """Each parameter, with the dict and the name by which its module has it: PyTorch's `parameters` takes ten times as long."""
    found, modules = [], [encoding]
    for module in modules:  # which grows
        for name, x in module._parameters.items():
            if x is not None:
                found.append((module._parameters, name, x))
        for child in module._modules.values():
            if child is not None:
                modules.append(child)
    return found


def require_values(encoding: Hooked, x: Tensor) -> None:
    """Refuse parameters on meta where x is not: PyTorch may answer with memory that nobody wrote to; and parameters that other
    processes have parts of."""
    if type(x) is not Tensor:
        refuse_distributed(x=x)
    for *_, parameter in parameters_of(encoding):
        if parameter.is_meta is not x.is_meta:
            check_devices(encoding.known_as, x, parameter)
        if type(parameter) is not nn.Parameter and is_distributed(parameter):
            remedy = "shard the module that calls it, as in fully_shard(layer), whose forward gathers them"
            raise InputError(f"{encoding.known_as}: its parameters are sharded here, by themselves: {remedy}")


def gates_of(encoding: Hooked, x: Tensor, layer: int = 0) -> tuple[Tensor, ...]:
    """`Encoding.gates`, validated and without autocast: what `attention` takes as gates, one tensor (batch, heads, seq, width) for each gated part.

    encoding: or the `Pass` of one. x: (batch, seq, dim), the input of the layer's projections. A token whose x is not finite, or so large that its squares
    cannot be summed (about 1e18 in float32), has gates of NaN: `attention` refuses them where the token is visible. Where
    it is hidden, it reaches no output and no gradient.

    Raises:
        InputError: x of another shape, a layer that the encoding does not have, or gates that are none.
    """
    if not isinstance(x, Tensor) or x.dim() != 3 or not x.is_floating_point():
        raise InputError("pass the input of the layer's projections, (batch, seq, dim) of a floating dtype", x=x)
    leaves = encoding.acting_in(layer).leaves
    for leaf in () if torch.compiler.is_compiling() else leaves:
        require_values(leaf.encoding, x)
    parts = [leaf for leaf in leaves if leaf.gates]
    if not parts:
        return ()
    # nothing of such a token may be in a product: a gradient of 0 times infinity is NaN, in the weights that all tokens share
    largest = (torch.finfo(torch.promote_types(x.dtype, torch.float32)).max / max(x.shape[-1], 1)) ** 0.5
    lost = ~(x.detach().abs() <= largest).all(-1, keepdim=True)
    read = x.masked_fill(lost, 0.0)
    gates: list[Tensor] = []
    with exactly(x):
        for part, number, *_ in parts:
            made = part.gates(read, number)
            for gate in () if made is None else (made,) if isinstance(made, Tensor) else made:
                floats = isinstance(gate, Tensor) and gate.is_floating_point()
                if not floats or gate.dim() != 4 or (gate.shape[0], gate.shape[2]) != x.shape[:2]:
                    remedy = f"return (batch, heads, seq, width), {x.shape[0]} x any x {x.shape[1]} x any, floating"
                    raise _returned(part, "gates", gate, remedy)
                gates.append(gate.masked_fill(lost[:, None], torch.nan))
    return tuple(gates)


def checked_gates(acting: Acting, gates: Gates, k: Tensor, hidden: Hidden | None = None) -> tuple[Tensor, ...]:
    """The gates that a call is given, with a row for each of k. hidden: the keys whose gates are not read, see
    `Positions.hidden`."""
    given = () if gates is None else tuple(gates) if isinstance(gates, (list, tuple)) else (gates,)
    if len(given) != acting.gates:
        name = "no encoding" if acting.part is None else acting.part.known_as
        remedy = "pass gates=posenc.encoding.gates_of(encoding, x, layer), with those of cached keys"
        raise InputError(f"{len(given)} tensors, {name} makes {acting.gates}: {remedy}", argument="gates")
    checked = []
    for gate in given:
        fits = isinstance(gate, Tensor) and gate.is_floating_point()
        if not fits or gate.dim() != 4 or (gate.shape[0] != 1 and gate.shape[0] != k.shape[0]):
            wanted = f"(batch, heads, num_keys, width) of a floating dtype, batch {k.shape[0]}"
            raise InputError(f"pass {wanted}", gates=gate)
        if gate.shape[2] != k.shape[2]:
            raise InputError(f"gates are of {gate.shape[2]} tokens, there are {k.shape[2]} keys: cache the gates")
        if gate.device != k.device:
            raise InputError(f"gates are on {gate.device}, k on {k.device}: move them")
        gate = left_out(hidden, gate)
        looks = gate.device.type == "cpu" and not (torch.compiler.is_compiling() or interpreted())
        if looks and not bool(gate.isfinite().all()):
            raise InputError("not finite", "check the layer's input and the weights that make them", gates=gate)
        checked.append(gate.expand(k.shape[0], -1, -1, -1))
    return tuple(checked)


NOTHING: Any = Acting(None, 0, (), (), 0, True, False)
"""Where no encoding acts."""


class _Part(NamedTuple):
    """An encoding as it acts in a call: positions have the gates that are its own."""

    encoding: Hooked
    layer: int
    sites: tuple[str, ...]
    positions: Positions


class Effects:
    """What the encodings of a layer do to one call: the one place where their hooks are called, where what a hook returns
    is checked, and where the parts of a sum are put together.

    positions: where the call's tokens are. Shapes as in `Encoding`. Each method raises InputError for what a hook must
    not return, with the class and the hook, and for what the parts of a sum cannot do together.
    """

    def __init__(self, acting: Acting, positions: Positions) -> None:
        self.acting, self.positions, self.sites = acting, positions, acting.sites
        gates, here = iter(positions.gates), positions
        self.parts: list[_Part] = []
        for encoding, layer, sites, count in acting.leaves:
            if positions.gates and len(acting.leaves) > 1:
                here = positions.with_gates(tuple(islice(gates, count)))
            self.parts.append(_Part(encoding, layer, sites, here))

    def at(self, positions: Positions) -> "Effects":
        """The same encodings at other positions."""
        return Effects(self.acting, positions)

    def restricted(self) -> Positions:
        """Positions with fewer visible keys, as attention takes them."""
        positions = self.positions
        for part in self._with("restrict"):
            result = part.encoding.restrict(positions, part.layer)
            if result is not positions and not (isinstance(result, Positions) and _same_tokens(result, positions)):
                remedy = "return the same tokens, such as positions.with_window(63)"
                raise _returned(part.encoding, "restrict", result, remedy)
            positions = result
        return positions

    def _with(self, site: str) -> list[_Part]:
        if site not in self.sites:
            return []
        return self.parts if len(self.parts) == 1 else [part for part in self.parts if site in part.sites]

    def _in_turn(self, site: str) -> list[_Part]:
        """The parts with a site in the order in which they rotate."""
        parts = self._with(site)
        return sorted(parts, key=lambda part: part.encoding.rotates_last) if len(parts) > 1 else parts

    def _through(self, site: str, hook: str, x: Tensor, check: Callable[..., None]) -> Tensor:
        """x as a hook of one tensor leaves it, part after part. check: refuses what a part must not make of it."""
        for part in self._in_turn(site):
            result = getattr(part.encoding, hook)(x, part.positions, part.layer)
            if result is not x:
                check(part.encoding, hook, before=x, after=result)
            x = result
        return x

    def embedded(self, x: Tensor) -> Tensor:
        """x (batch, seq, dim) as `embed` leaves it. What it holds at padding is not read where it could reach a gradient."""
        for part in () if torch.compiler.is_compiling() else self.parts:
            require_values(part.encoding, x)
        parts = self._in_turn("embed")
        if parts and x.dim() == 3 and x.shape[1] == self.positions.num_queries:
            padding, _ = self.positions.hidden()
            x = x if padding is None else padding.left_out(x[:, None])[:, 0]
        for part in parts:
            result = part.encoding.embed(x, part.positions, part.layer)
            if result is not x and not (
                isinstance(result, Tensor) and result.shape == x.shape and result.is_floating_point()
            ):
                raise _returned(part.encoding, "embed", result, f"return a tensor of x's shape {tuple(x.shape)}")
            x = result
        return x

    def rotated(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys as `rotate` leaves them."""
        for part in self._in_turn("rotate"):
            result = part.encoding.rotate(q, k, part.positions, part.layer)
            if not (isinstance(result, (tuple, list)) and len(result) == 2):
                raise _returned(part.encoding, "rotate", result, "return the pair (q, k)")
            queries, keys = result
            for name, before, after in (("q", q, queries), ("k", k, keys)):
                if after is not before:
                    _check_alike(part.encoding, "rotate", before, after, name, widens=True)
            if queries.shape[3] != keys.shape[3]:
                widths = f"q {queries.shape[3]} wide and k {keys.shape[3]} wide"
                raise InputError(f"{type(part.encoding).__name__}.rotate returned {widths}: widen both alike")
            q, k = queries, keys
        return q, k

    def queries_rotated(self, q: Tensor) -> Tensor:
        """Queries as `rotate_queries` leaves them."""
        return self._through("rotate", "rotate_queries", q, partial(_check_alike, name="q", widens=True))

    def keys_rotated(self, k: Tensor) -> Tensor:
        """Keys as `rotate_keys` leaves them."""
        return self._through("rotate", "rotate_keys", k, partial(_check_alike, name="k", widens=True))

    def rotation(self, q: Tensor | None, k: Tensor | None) -> Rotation | None:
        """`Encoding.shared_rotation` of all parts."""
        known = []
        for part in self._in_turn("rotate"):
            found = part.encoding.shared_rotation(part.positions, q, k)
            if found is None:
                return None
            known.append(found)
        if len(known) == 1:
            return known[0]
        return lambda *pair: reduce(lambda rotated, rotate: rotate(*rotated), known, pair)

    def branches(self) -> Sequence[Branch]:
        """The branches of a position map, if there is one."""
        found = []
        for part in self.parts:
            result = part.encoding.branches(part.layer)
            if result and not (isinstance(result, Sequence) and all(isinstance(each, Branch) for each in result)):
                raise _returned(part.encoding, "branches", result, "return a sequence of Branch")
            found.append(result or None)
        return only("position maps", found) or ()

    def products(self, q: Tensor, k: Tensor, scale: float) -> list[Score]:
        """What takes the place of scale * q . k of rotated queries and keys: one term, or none."""
        terms = []
        for part in self._with("scores"):
            result = part.encoding.scores(q, k, scale, part.positions, part.layer)
            terms += validated(result, q, k, origin=f"{type(part.encoding).__name__}.scores")
        only("products of queries and keys", terms)
        return terms

    def terms(self, q: Tensor, k: Tensor) -> list[Score]:
        """The terms that are added to the scaled scores of queries and keys, not yet rotated."""
        terms = []
        for part in self._with("bias"):
            result = part.encoding.bias(q, k, part.positions, part.layer)
            terms += validated(result, q, k, origin=f"{type(part.encoding).__name__}.bias")
        return terms

    def modifiers(self) -> list[Modifier]:
        """What becomes of each score, in order; the last may take the place of the softmax."""
        modifiers: list[Modifier] = []
        for part in self._with("modify"):
            result = part.encoding.modify(part.positions, part.layer)
            made = [] if result is None else [result] if isinstance(result, Modifier) else result
            if not isinstance(made, Sequence) or not all(isinstance(each, Modifier) for each in made):
                remedy = "return posenc.bias.SoftCap(cap), Modifier(function), a sequence of them, or None"
                raise _returned(part.encoding, "modify", result, remedy)
            modifiers += made
        modifiers.sort(key=lambda modifier: isinstance(modifier, Weights))
        if any(isinstance(each, Weights) for each in modifiers[:-1]):
            names = ", ".join(type(part.encoding).__name__ for part in self._with("modify"))
            raise InputError(f"{names}: a Weights takes the place of the softmax: return one, as the last")
        return modifiers

    def values(self, q: Tensor, v: Tensor) -> Values | KeyValues | None:
        """w_ij, which is added to the values."""
        found = []
        for part in self._with("values"):
            result: Any = part.encoding.values(part.positions, part.layer)
            if result is not None and not isinstance(result, (Values, KeyValues)):
                remedy = "return posenc.bias.Values(table, index), KeyValues(added) or None"
                raise _returned(part.encoding, "values", result, remedy)
            found.append(validated_values(result, q, v, origin=f"{type(part.encoding).__name__}.values"))
        return only("encodings that act on the values", found)

    def values_rotated(self, v: Tensor) -> Tensor:
        """Values as `rotate_values` leaves them."""
        return self._through("rotate_values", "rotate_values", v, partial(_check_alike, name="v"))

    def rotated_back(self, out: Tensor) -> Tensor:
        """The output as `turn_back` leaves it."""
        return self._through("rotate_values", "turn_back", out, partial(_check_alike, name="the output"))

    def sink(self, q: Tensor) -> float | Tensor | None:
        """The logit of an extra key, of `sink` or `query_sink`; the shape of the former is checked by `attention`."""
        found: list[float | Tensor | None] = []
        for part in self._with("sink"):
            of_queries = part.encoding.query_sink(q, part.positions, part.layer)
            if of_queries is not None:
                fits = isinstance(of_queries, Tensor) and of_queries.dim() == 3
                if not fits or of_queries.shape[0] not in (1, q.shape[0]) or of_queries.shape[1:] != q.shape[1:3]:
                    remedy = f"return logits (batch, num_heads, num_queries), {tuple(q.shape[:3])}"
                    raise _returned(part.encoding, "query_sink", of_queries, remedy)
            found += [of_queries, part.encoding.sink(part.layer)]
        return only("sinks", found)

    def prefix(self, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor] | None:
        """Keys and values that every query sees, (num_kv_heads, n, width)."""
        pairs = []
        for part in self._with("prefix_kv"):
            result = part.encoding.prefix_kv(part.layer)
            if result is not None:
                _check_prefix(part.encoding, result, q, v)
                pairs.append(result)
        return joined(pairs)

    def scale(self, head_dim: int) -> float:
        """The factor of q . k: that of the part that has an unusual one."""
        if "scale" not in self.sites:
            return float(head_dim**-0.5)
        parts = self._with("scale")
        if len(parts) == 1:
            return _checked_scale(parts[0].encoding, parts[0].encoding.scale(head_dim))
        return agreed_scale([part.encoding for part in parts], head_dim)


def _check_alike(encoding: Hooked, hook: str, before: Tensor, after: object, name: str, widens: bool = False) -> None:
    """Refuse what is not as before. widens: the width may be another."""
    shape, axes = tuple(before.shape), before.dim() - widens
    if not isinstance(after, Tensor) or after.dim() != before.dim() or after.shape[:axes] != before.shape[:axes]:
        more = ", of which only the width may change" * widens
        raise _returned(encoding, hook, after, f"return {name} {shape}{more}")
    if after.dtype != before.dtype or after.device != before.device:
        given = f"return {name} {shape} in {before.dtype} on {before.device}, as it was given"
        raise _returned(encoding, hook, after, given)


def _check_prefix(encoding: Hooked, prefix: object, q: Tensor, v: Tensor) -> None:
    if not (isinstance(prefix, tuple) and len(prefix) == 2 and all(isinstance(x, Tensor) for x in prefix)):
        raise _returned(encoding, "prefix_kv", prefix, "return the pair (keys, values), or None")
    keys, values = prefix
    for name, x, width in (("keys", keys, q.shape[3]), ("values", values, v.shape[3])):
        if x.dim() != 3 or (x.shape[0], x.shape[2]) != (v.shape[1], width) or x.shape[1] != keys.shape[1]:
            wanted = f"(num_kv_heads, n, width), here ({v.shape[1]}, {keys.shape[-2]}, {width})"
            raise _returned(encoding, "prefix_kv", x, f"return {name} {wanted}")
        if x.device != q.device:
            raise InputError(f"{type(encoding).__name__}.prefix_kv returned {name} on {x.device}, q is on {q.device}")


def _checked_scale(encoding: Hooked, scale: Any) -> float:
    if torch.compiler.is_compiling():
        return scale  # a symbol, where the width is one
    if type(scale) is not float and (isinstance(scale, bool) or not isinstance(scale, Real)):
        remedy = "return a number; a learned temperature multiplies the queries, in rotate"
        raise _returned(encoding, "scale", scale, remedy)
    scale = float(scale)
    if not math.isfinite(scale):
        raise _returned(encoding, "scale", scale, "return a finite number")
    return scale


def agreed_scale(parts: Iterable[Hooked], head_dim: int) -> float:
    """The one scale of the parts that is not the usual one, if there is one."""
    usual = float(head_dim**-0.5)
    scales = [_checked_scale(part, part.scale(head_dim)) for part in parts]
    unusual = {scale for scale in scales if scale != usual}
    if len(unusual) > 1:
        raise InputError(f"the sum's parts have different scales {sorted(unusual)}: pass scale= to attention")
    return unusual.pop() if unusual else usual


def joined(prefixes: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    """The keys and values of all prefixes."""
    if len(prefixes) <= 1:
        return prefixes[0] if prefixes else None
    keys, values = zip(*prefixes, strict=True)
    return torch.cat(keys, 1), torch.cat(values, 1)


def only(what: str, of_parts: Sequence[Any]) -> Any:
    """What one of the parts has, and the others do not; None where none has."""
    present = [value for value in of_parts if value is not None]
    if len(present) > 1:
        raise InputError(f"the sum has several {what}: use one of them")
    return present[0] if present else None
