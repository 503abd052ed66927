# SPDX-License-Identifier: Apache-2.0
"""A KV cache for any encoding: rotated keys where it can, values, and the gates of a layer's input."""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.nn.functional import pad

from posenc.encoding import Acting, Effects, Encoding, Gates, Pass, checked_gates, require_fit
from posenc.errors import LARGEST_SIZE, InputError, check_flags, check_integers, check_sizes, check_tensor, not_none
from posenc.positions import Positions
from posenc.positions.ids import Device
from posenc.positions.memory import in_backward
from posenc.positions.visibility import Hidden

ROOM = 64
"""Tokens, at least, for which a layer takes memory ahead, beside a quarter of those that it has."""


class _Layer(NamedTuple):
    """tensors: keys, values and gates, (batch, heads, room, width), of which the first `tokens` are filled. rotated: keys and
    values are as `rotate_keys` and `rotate_values` left them. at: where its last call was. by, rotation: the encoding that
    rotated its keys, and that one's spec; "" where it is not known."""

    tensors: tuple[Tensor, ...]
    tokens: int
    rotated: bool
    at: Positions
    by: ref[Encoding] | None
    rotation: str

    def filled(self, tokens: int) -> list[Tensor]:
        return [x[:, :, :tokens] for x in self.tensors]


class KVCache:
    """The KV cache of a model: of each layer the keys, the values, and the gates where an encoding makes them. Pass it to
    `posenc.attention(..., cache=cache)` with the new tokens alone.

    rotated: True stores keys rotated, each once, and values that an encoding rotates; an encoding that cannot rotate keys
    alone refuses it. False stores them unrotated, for a model whose encoding or frequency schedule changes later, and rotates
    all in each call. None: rotated in each layer whose encoding can.
    capacity: tokens for which memory is taken at once; more are refused. None: the cache grows.

    The positions of a call say which tokens are new, so a cache is rolled back by positions with a smaller offset: what comes
    after them is overwritten. Without gradients the tensors are written in place.
    """

    def __init__(self, *, rotated: bool | None = None, capacity: int | None = None) -> None:
        if rotated is not None:
            check_flags(rotated=rotated)
        check_sizes(**not_none(capacity=capacity))
        self.rotated, self.capacity = rotated, capacity
        self._layers: dict[int, _Layer] = {}
        self.plans: dict[Any, Any] = {}  # of a token's calls, for those of the next ones

    def __getstate__(self) -> dict[str, Any]:
        layers = {n: x._replace(by=None) for n, x in self._layers.items()}  # pickle cannot copy weak references
        return vars(self) | {"_layers": layers, "plans": {}}

    def __len__(self) -> int:
        """Tokens that every layer has."""
        if not self._layers:
            return 0
        return min([layer.tokens for layer in self._layers.values()])  # of a generator a compiler makes no graph

    def __repr__(self) -> str:
        return f"KVCache({len(self)} tokens, {len(self._layers)} layers)"

    def layer(self, layer: int) -> tuple[Tensor, ...]:
        """Keys, values and gates of a layer, (batch, heads, len(self), width) each.

        Raises:
            InputError: a layer without tokens.
        """
        check_integers(0, layer=layer)
        if layer not in self._layers:
            raise InputError(f"the cache has {sorted(self._layers) or 'no layers yet'}", layer=layer)
        return tuple(self._layers[layer].filled(len(self)))

    def positions(self, num_queries: int = 1, *, device: Device = None, layer: int | None = None) -> Positions:
        """Causal positions of the next tokens of each row: those after the cache, where a row's padding does not count, under the
        window and after the prefix of the tokens that it was filled with.

        device: of the positions of an empty cache; later ones are where those before are. layer: of this layer's tokens; None:
        of those that every layer has.

        Raises:
            InputError: the tokens in the cache are not one text a row, counted from 0, or layers have them under unlike windows
                or prefixes: pass Positions of your own.
        """
        check_integers(1, num_queries=num_queries)
        check_integers(0, **not_none(layer=layer))
        layers = [x for number, x in self._layers.items() if layer is None or number == layer]
        count = min([x.tokens for x in layers]) if layers else 0
        if count == 0:
            return Positions.arange(num_queries, causal=True, device=device)
        return _next([x.at for x in layers], count, num_queries)

    def at(self, encoding: Encoding | None, num_queries: int = 1, *, device: Device = None) -> Pass:
        """The next forward pass of a generation: the encoding at `positions(num_queries, device=device)`.

        Raises:
            InputError: what `positions` refuses.
        """
        return Pass(encoding, self.positions(num_queries, device=device))

    def detach(self) -> None:
        """Let no gradient go back through the tokens that are in the cache, as between the segments of a text: the backward pass of
        the next one would raise "Trying to backward through the graph a second time"."""
        self._layers = {n: x._replace(tensors=tuple(y.detach() for y in x.tensors)) for n, x in self._layers.items()}

    def crop(self, length: int) -> None:
        """Leave the first tokens alone.

        Raises:
            InputError: more than there are.
        """
        check_integers(0, length=length)
        if length > len(self):
            raise InputError(f"the cache has {len(self)} tokens", length=length)
        self._layers = {n: layer._replace(tokens=length) for n, layer in self._layers.items()} if length else {}

    def reorder(self, rows: Tensor) -> None:
        """Make row i what row rows[i] was, as a beam search does; there may be more or fewer rows than before.

        Raises:
            InputError: no 1-D tensor of integers, or, on the CPU, rows that are not there.
        """
        check_tensor("rows", rows, integers=True)
        batch = min([layer.tensors[0].shape[0] for layer in self._layers.values()], default=LARGEST_SIZE)
        line = rows.dim() == 1 and rows.numel() > 0
        if not line or (rows.device.type == "cpu" and not 0 <= int(rows.min()) <= int(rows.max()) < batch):
            raise InputError(f"pass a 1-D tensor of row numbers below {batch}", rows=rows)
        rows = rows.long()
        moved: dict[Positions, Positions] = {}

        def pick(x: Tensor) -> Tensor:
            return x if x.shape[0] == 1 < batch else x.index_select(0, rows.to(x.device))

        for number, layer in self._layers.items():
            at = layer.at
            if at.batch > 1:  # layers that have the same positions have the same ones afterwards
                at = moved[at] = moved[at] if at in moved else at.select(pick, pick, known=at.extents)
            self._layers[number] = layer._replace(tensors=tuple(map(pick, layer.filled(layer.tokens))), at=at)

    # ---------------------------------------------------------------- as `attention` uses it

    def extended(
        self, k: Tensor, v: Tensor, encoding: Encoding | None, acting: Acting, positions: Positions, layer: int, gates: Gates,
        stores: bool = True,
    ) -> _Layer:  # fmt: skip
        """A layer with the keys, values and gates of the new tokens, which `store` makes the cache's once a call has succeeded.
        stores: it will; and what the positions say is overwritten may be so already."""
        step = positions.shared(_Step, lambda: _Step.of(positions))
        if k.dim() != 4 or k.shape[2] != step.tokens or step.new.batch not in (1, k.shape[0]):
            require_fit(step.new, k=k)
        given: tuple[Tensor, ...] = ()
        if gates is not None or acting.gates:
            given = checked_gates(acting, gates, k, step.hidden)
        before = self._layers.get(layer)
        rotated = self.rotated is not False if before is None else before.rotated
        by = self._check_layer(encoding, positions, layer, rotated and step.before > 0, stores)
        if rotated and encoding is not None:
            k, v, rotated = _rotated(k, v, Effects(acting, step.new), before is not None or self.rotated is True)
        tensors = self._filled(layer, (k, v, *given), positions, step, stores)
        return _Layer(tensors, step.before + step.tokens, rotated, positions.origin or positions, *by)

    def store(self, layer: int, made: _Layer) -> None:
        """Take a layer that `extended` returned."""
        if not in_backward():  # a checkpoint that computes a layer again, whose tokens are there already
            self._layers[layer] = made

    def _check_layer(
        self, encoding: Encoding | None, positions: Positions, layer: int, over_rotated: bool, stores: bool
    ) -> tuple[ref[Encoding] | None, str]:
        """The encoding and its spec, once one has been refused whose spec is not that of the keys in the cache. Of two that differ
        in their weights alone, nothing is known."""
        before = self._layers.get(layer)
        by, rotation = (None, "") if before is None else (before.by, before.rotation)
        if torch.compiler.is_compiling() or in_backward():
            return by, rotation
        if stores and before is not None and before.at is (positions.origin or positions) and len(self._layers) == 1:
            warnings.warn(
                f"KVCache: layer={layer} again for the same positions, and no other layer so far: its keys are overwritten; "
                "pass layer= in each layer of a model",
                stacklevel=5,
            )
        if by is not None and encoding is not None and by() is encoding:
            return by, rotation
        new = _rotation(encoding, layer)
        if over_rotated and new and rotation and new != rotation:
            remedy = "use a cache with one encoding, or KVCache(rotated=False)"
            raise _unfit(f"layer {layer} has keys under {rotation}, new ones come under {new}; {remedy}")
        return None if encoding is None else ref(encoding), new

    def _filled(
        self, layer: int, new: tuple[Tensor, ...], positions: Positions, step: "_Step", stores: bool
    ) -> tuple[Tensor, ...]:
        """A layer's tensors with the new tokens. stores: in the place of what they had for them."""
        before, tokens = step.before, step.before + step.tokens
        old = self._layers.get(layer)
        has, tensors = (0, tuple([x[:, :, :0] for x in new])) if old is None else (old.tokens, old.tensors)
        if has < before:
            raise _unfit(f"layer {layer} has {has} tokens, positions are for {before}: pass cache.positions(n)")
        if len(tensors) != len(new):
            made = f"its encoding makes {len(new)}, {len(new) - 2} of them gates"
            raise _unfit(f"layer {layer} has {len(tensors)} tensors, {made}: use it with one encoding")
        if self.capacity is not None and tokens > self.capacity:
            raise _unfit(f"{tokens} tokens, capacity={self.capacity}: make it larger, or leave it out")
        for x, more in zip(tensors, new, strict=True):
            if (x.shape[:2], x.shape[3], x.dtype) != (more.shape[:2], more.shape[3], more.dtype):
                given = f"{more.dtype} {tuple(more.shape)}: another batch, model or precision needs another cache"
                raise _unfit(f"layer {layer} has {x.dtype} {tuple(x.shape)}, new tokens {given}")
        stays = before if step.in_line else min(has, tokens)
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not stores:
            stored = [x[:, :, :stays] for x in tensors]
            if before == 0:  # of what is overwritten no graph is left
                stored = [x.detach() for x in stored]
            pairs = zip(stored, new, strict=True)
            if step.in_line:
                return tuple([torch.cat(pair, 2) for pair in pairs])
            room = 0, 0, 0, tokens - stays
            return tuple([pad(x, room).scatter(2, _slots(y, positions), y) for x, y in pairs])
        if old is not None and has > before:  # also if the call fails
            self._layers[layer] = old._replace(tokens=before)
        written = []
        for x, more in zip(tensors, new, strict=True):
            x = _with_room(x, stays, tokens, self.capacity or 0)
            if step.in_line:
                x[:, :, before:tokens] = more
            else:
                x.scatter_(2, _slots(more, positions), more)
            written.append(x)
        return tuple(written)


def _unfit(problem: str) -> InputError:
    """The error for a cache that does not fit a call."""
    return InputError(problem, argument="cache")


class _Step(NamedTuple):
    """What the layers of a call have in common: its tokens as keys, how many come before them, those that no query sees, and whether
    they are known to be the last keys in their order."""

    new: Positions
    before: int
    tokens: int
    hidden: Hidden | None
    in_line: bool

    @classmethod
    def of(cls, positions: Positions) -> "_Step":
        count, before = positions.num_queries, positions.num_keys - positions.num_queries
        _, keys = positions.hidden()
        orders = positions.extents["q_order"], positions.extents["k_order"]
        lows = [extent.low for extent in orders if extent is not None and extent.consecutive]
        in_line = len(lows) == 2 and lows[0] - lows[1] == before  # also with a prefix, where `diagonal` is None
        if keys is not None:  # tokens in stated slots, as behind each row's last one, are all visible
            keys = Hidden.of(keys.mask[:, -count:]) if in_line else None
        new = positions.of_side("q")._remembering(positions)
        return cls(new, before, count, keys, in_line)


def _rotation(encoding: Encoding | None, layer: int) -> str:
    """What rotates a layer's keys or values, for people; "" where an argument is not known."""
    part = None if encoding is None else encoding.acting_in(layer).part
    if part is None or not {"rotate", "rotate_values"} & set(part.sites()):
        return "no rotation"
    try:
        spec = part.spec()
    except InputError:
        return ""
    return f"{spec.pop('name')}({', '.join(f'{name}={value!r}' for name, value in spec.items())})"


def _rotated(k: Tensor, v: Tensor, effects: Effects, must: bool) -> tuple[Tensor, Tensor, bool]:
    """Keys and values rotated at their positions, if the encoding can do so in this layer."""
    part, sites = effects.acting.part, effects.sites
    if "rotate" not in sites and "rotate_values" not in sites:
        return k, v, True
    if not must and part.bias_reads_keys and "rotate" in sites:
        return k, v, False
    key = "rotation", part, k.shape, k.dtype, k.device
    try:
        rotation = effects.positions.once(key, partial(effects.rotation, None, k))
        keys = effects.keys_rotated(k) if rotation is None else rotation(None, k)[1]
        return keys, effects.values_rotated(v), True
    except InputError:
        if must:
            raise
        return k, v, False


def _next(ends: Sequence[Positions], count: int, num_queries: int) -> Positions:
    """The positions of the tokens after the first `count` of layers whose last calls were at `ends`: whatever restricts those goes
    along."""
    last = ends[0]
    for other in ends[1:]:
        pairs = (last.prefix, other.prefix), (last.valid, other.valid)
        if other is not last and not (last.window == other.window and all(_same(*pair, count) for pair in pairs)):
            remedy = "pass the positions of each layer, such as Positions.arange(1, offset, causal=True).with_window(w)"
            raise InputError(f"cache.positions(): layers differ in their windows, prefixes or padding: {remedy}")
    mask, new = last.valid, last.k_order.new_ones(1, num_queries, dtype=torch.bool)
    if mask is None:
        counts = last.start == (last.num_keys - last.num_queries, 0)
        made = Positions.arange(num_queries, offset=count, causal=True, device=last.q.device)
    else:
        counted = Positions.of_tokens(None, last.num_queries, False, mask)
        at = [p.q if p.q_valid is None else p.q * p.q_valid for p in (last, counted)]
        counts = at[0].shape == at[1].shape and torch.equal(*at)
        mask = torch.cat((mask[:, :count], new.expand(mask.shape[0], -1)), 1)
        made = Positions.of_tokens(None, num_queries, True, mask)
    if not counts or any(at.k_document is not None or at.blocks for at in ends):
        remedy = "pass Positions of all, such as Positions.from_ids(ids, key_ids, causal=True)"
        raise InputError(f"cache.positions(): the cached tokens are not one text a row, counted from 0: {remedy}")
    prefix = last.prefix
    if prefix is not None:
        prefix = torch.cat((prefix[:, :count], torch.zeros_like(new).expand(prefix.shape[0], -1)), 1)
    return made.derived(prefix=prefix, window=last.window, counted=last.counted)


def _with_room(x: Tensor, before: int, tokens: int, room: int) -> Tensor:
    """A tensor with room for so many tokens, of which the first `before` are those of x."""
    if x.shape[2] >= max(tokens, room) and not (x.is_inference() and not torch.is_inference_mode_enabled()):
        return x
    wide = x.new_zeros(*x.shape[:2], room or tokens + max(ROOM, tokens // 4), x.shape[3])
    wide[:, :, :before] = x[:, :, :before]
    return wide


def _same(a: Tensor | None, b: Tensor | None, count: int) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a[:, :count], b[:, :count]))


def _slots(x: Tensor, positions: Positions) -> Tensor:
    """Where the tokens of x, (batch, heads, n, width), go, as in rows of different lengths: behind the last one of each."""
    return positions.slots()[:, None, :, None].expand(x.shape[0], x.shape[1], -1, x.shape[3])
