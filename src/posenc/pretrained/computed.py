# SPDX-License-Identifier: Apache-2.0
"""What each attention layer computes, against `posenc.attention` under what the configuration declares.

A layer's call is captured in a short pass and repeated with a rotation by 0, which gives its queries and keys before
they rotate, whatever the family does to them first, and with our attention in place of the family's. Where its output is another
one, known mistakes are tried until one gives that output.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc.attention import attention
from posenc.backends.precision import HALF
from posenc.encodings.visible import Window
from posenc.functional import Layout, rotary
from posenc.positions import Positions
from posenc.pretrained.attach import INSTEAD, AttentionCall, attend_instead, register_attention, unrotated
from posenc.pretrained.findings import Evidence
from posenc.pretrained.models import Layer, attention_layers
from posenc.pretrained.parameters import score_factor
from posenc.pretrained.probe import PROBE, ROUNDING, ROUNDING_LAYER, Computation, FrequencyTable, Probe, difference

LONGEST_WINDOW = 4096
"""Keys of a sliding window up to which a text is read that leaves it."""
FARTHEST = 2**16
"""Positions up to which far ones are compared: there float32 rounds angles by 0.002 rad."""
UNSCALED = ("gemma3n", "gemma4")
"""How the model types begin whose norms of queries and keys replace the factor of the scores."""


@dataclass(frozen=True, eq=False)
class Formula:
    """What a layer does with queries and keys that are not rotated."""

    table: FrequencyTable | None
    """Its frequencies, None: it does not rotate"""
    layout: Layout
    latent: bool
    scale: float
    softcap: float | None
    window: int | None
    """Keys that a query sees at most, within the window behind it"""
    sink: Tensor | None
    q_turns: int = 1
    """Times that queries are rotated by their positions"""
    k_turns: int = 1
    """Times that keys are"""
    start: int = 0
    """The position of the first token"""
    ahead: int = 0
    """Tokens by which queries are too far"""
    rolled: bool = False
    """The first token has the last position"""
    crossed: bool = False
    """A rotation of the other layout reads cos and sin of this one"""
    dealt: bool = False
    """Heads share keys in turn"""

    def __call__(self, call: AttentionCall) -> Tensor:
        """The output of attention, (batch, heads, queries, head_dim)."""
        count, device = call.query.shape[2], call.query.device
        at = torch.arange(self.start, self.start + count, device=device)
        at = at.roll(1) if self.rolled else at
        q = self.turned(call.query, at + self.ahead, self.q_turns)
        k, v = self.turned(call.key, at, self.k_turns), call.value
        groups = q.shape[1] // k.shape[1]
        if self.dealt:
            k, v = (x.repeat(1, groups, 1, 1) for x in (k, v))
        window = None if self.window is None else Window(self.window - 1)
        positions = Positions.arange(count, causal=True, device=device)
        return attention(q, k, v, window, positions, scale=self.scale, softcap=self.softcap, sink=self.sink)

    def turned(self, x: Tensor, positions: Tensor, times: int) -> Tensor:
        """x, rotated."""
        if self.table is None or not times:
            return x
        angles = positions.double()[:, None] * self.table.inv_freq.double().to(x.device) * times
        factor = self.table.attention_factor ** abs(times)
        start = x.shape[-1] - self.table.rotary_dim if self.latent else 0
        cos, sin = (table.to(torch.promote_types(x.dtype, torch.float32)) for table in (angles.cos(), angles.sin()))
        if not self.crossed:
            return rotary(x, factor * cos, factor * sin, layout=self.layout, start=start)
        part = x[..., start : start + self.table.rotary_dim]
        expanded = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
        if self.layout == "interleaved":
            expanded = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
        quarter = rotary(part, torch.zeros_like(cos), torch.ones_like(sin), layout=_other(self.layout))
        mixed = (factor * (part * expanded[0] + quarter * expanded[1])).to(x.dtype)
        return torch.cat((x[..., :start], mixed, x[..., start + part.shape[-1] :]), -1)


@dataclass(frozen=True, eq=False)
class Seen:
    """A call of an attention layer in a pass, and what it returned."""

    number: int
    layer: Layer
    given: tuple[Any, ...]
    named: dict[str, Any]
    output: Tensor
    start: int = 0
    """The position of the first token"""

    @property
    def rounding(self) -> float:
        """The largest difference of its output that is rounding."""
        return ROUNDING_LAYER if self.output.dtype in HALF else ROUNDING

    def repeated(self, function: Callable[[AttentionCall], Tensor], flipped: bool = False) -> Tensor:
        """The layer's output with a function in place of its attention, which gets queries and keys that are not rotated."""
        module: Any = self.layer.module
        given, named = self.given, self.named | {"position_embeddings": unrotated(self.named["position_embeddings"])}
        if flipped:
            named |= {"hidden_states": named["hidden_states"].flip(1)} if "hidden_states" in named else {}
            given = tuple(x.flip(1) for x in given[:1]) + given[1:]
        before = module.config._attn_implementation
        register_attention(INSTEAD, attend_instead, None)
        setattr(module, f"_{INSTEAD}", function)
        module.config._attn_implementation = INSTEAD
        try:
            return _first(module(*given, **named))
        finally:
            module.config._attn_implementation = before
            delattr(module, f"_{INSTEAD}")


class _CapturedError(Exception):
    """Ends a call of a layer, or a pass."""


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def _capturing(layers: dict[int, Layer], seen: list[Seen], last: int | None = None, start: int = 0) -> Iterator[None]:
    """Note the calls of attention layers. last: the number of the layer after which the pass ends. start: the first position."""

    def note(number: int, layer: Layer) -> Callable[..., None]:
        def hook(_: Any, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            seen.append(Seen(number, layer, given, named, _first(output).clone(), start))
            if number == last:
                raise _CapturedError

        return hook

    hooks = [layer.module.register_forward_hook(note(at, layer), with_kwargs=True) for at, layer in layers.items()]
    try:
        yield
    except _CapturedError:
        pass
    finally:
        for hook in hooks:
            hook.remove()


# ------------------------------------------------------------------------------------------ what is declared


def declared_scale(probe: Probe, layer: Layer) -> float:
    """What multiplies q . k by the configuration."""
    config = probe.config
    if str(config.model_type).startswith(UNSCALED):
        return 1.0
    if getattr(config, "attention_multiplier", None) is not None:  # Granite
        return float(config.attention_multiplier)
    scalar = getattr(config, "query_pre_attn_scalar", None)  # Gemma
    scale = float(layer.head_dim if scalar is None else scalar) ** -0.5
    return scale * (score_factor(probe.parameters[_kind(layer, probe.parameters)]) if probe.family.latent else 1.0)


def declared(probe: Probe, number: int, layer: Layer, tokens: int = PROBE, start: int = 0) -> Formula:
    """The formula of a layer, by the configuration; its frequencies are those in the model, which are compared elsewhere, and those
    for another length where that changes them. start: the position of the first token."""
    config, short = probe.config, start + tokens <= PROBE
    tables = probe.tables() if short else probe.tables_at(start + tokens)
    listed = getattr(config, "no_rope_layers", None)
    rotates = bool(listed[number]) if listed else layer.rotates
    sinks: Tensor | None = getattr(layer.module, "sinks", None)
    return Formula(
        table=tables[_kind(layer, tables)] if rotates else None,
        layout=probe.family.layout,
        latent=probe.family.latent,
        scale=declared_scale(probe, layer),
        softcap=getattr(config, "attn_logit_softcapping", None),
        window=layer.window,
        sink=sinks,
        start=start,
    )


def temperatures(probe: Probe, layer: Layer, query: Tensor, start: int = 0) -> Tensor:
    """What multiplies the query of each position by the configuration, in Ministral 3 and Mistral 4."""
    at = torch.arange(start, start + query.shape[2], device=query.device)[:, None]
    parameters = probe.parameters[_kind(layer, probe.parameters)]
    if beta := parameters.get("llama_4_scaling_beta"):
        return 1 + beta * (at / parameters["original_max_position_embeddings"]).floor().log1p()
    return torch.ones_like(at)


def _kind(layer: Layer, by_type: Collection[str]) -> str:
    return layer.layer_type if layer.layer_type in by_type else next(iter(by_type))


# ------------------------------------------------------------------------------------------ the comparison


@dataclass(frozen=True, eq=False)
class Mistake:
    """A known mistake: its finding, what it is in words, what a layer with it computes, and a number for the finding."""

    name: str
    text: str
    formula: Formula
    measured: float | None = None


@dataclass(eq=False)
class Comparison:
    """The comparison of a model's attention, as far as it went.

    compared: numbers of layers. windows: sliding windows that a longer text left. unchecked: a reason -> the layers that it
    concerns. found: a mistake in words -> it, and by layer how large the difference is.
    """

    probe: Probe
    compared: list[int] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    unchecked: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    found: dict[str, tuple[Mistake, dict[int, float]]] = field(default_factory=dict)
    used: list[Tensor] = field(default_factory=list)

    def run(self, far: bool = True) -> None:
        """All layers with a short text, and if nothing is found, windows with longer ones; far: and the last positions, for which
        the frequencies in the model must be those of its configuration."""
        probe, family = self.probe, self.probe.family
        numbers = [at for at, each in enumerate(probe.decoder.layers) if hasattr(each, family.attention)]
        layers = dict(zip(numbers, attention_layers(probe.decoder, family), strict=True))
        if probe.attachment is not None and probe.attachment.design.encodings:
            reason = f"posenc.attention computes it, extended by {probe.attachment.report.method}"
            self.unchecked[reason] = numbers
            return
        seen = self._calls(layers, PROBE, None)
        if missing := sorted({*numbers} - {each.number for each in seen}):
            self.unchecked["a pass does not call it"] = missing
        self._layers(seen, _mistakes)
        if not self.found:
            self._windows({at: layers[at] for at in self.compared})
        if far and not self.found:
            self._far({at: layers[at] for at in self.compared})

    def _calls(self, layers: dict[int, Layer], tokens: int, last: int | None, start: int = 0) -> list[Seen]:
        seen: list[Seen] = []
        ids = self.probe.ids(length=tokens)
        with self.probe.with_rotary(), _capturing(layers, seen, last, start):
            self.probe.logits(ids, position_ids=torch.arange(start, start + tokens, device=ids.device)[None])
        return seen

    def _far(self, layers: dict[int, Layer]) -> None:
        """The last positions of the model's length, as far as the first layer of each kind that rotates."""
        kinds: dict[str, int] = {}
        for at, layer in layers.items():
            if declared(self.probe, at, layer).table is not None:
                kinds.setdefault(layer.layer_type, at)
        start = min(self.probe.length, FARTHEST) - PROBE
        if not kinds or start <= 0:
            return
        chosen = {at: layers[at] for at in kinds.values()}
        for each in self._calls(chosen, PROBE, max(chosen), start):
            if isinstance(self._captured(each), str):
                continue
            formula = declared(self.probe, each.number, each.layer, start=start)
            size = difference(each.repeated(formula), each.output)
            if not size <= ROUNDING_LAYER:
                where = f"tokens at positions {start} to {start + PROBE - 1} are attended to in another way"
                self.found.setdefault(where, (Mistake("far_positions_differ", where, formula), {}))[1][each.number] = (
                    size
                )

    def _windows(self, layers: dict[int, Layer]) -> None:
        """A text that leaves the window, as far as the first layer of each kind."""
        kinds: dict[tuple[str, int | None], int] = {}
        for at, layer in layers.items():
            kinds.setdefault((layer.layer_type, layer.window), at)
        for window in sorted({window for _, window in kinds if window is not None}):
            within = [at for at, layer in layers.items() if layer.window == window]
            if window > LONGEST_WINDOW:
                self.unchecked[f"its window of {window} keys, more than {LONGEST_WINDOW}"] = within
            else:
                chosen = {at: layers[at] for (_, its), at in kinds.items() if its in (None, window)}
                self._layers(
                    self._calls(chosen, window + PROBE, max(chosen)),
                    partial(_window_mistakes, windows=(window, window - 1, window + 1, window // 2)),
                )
                self.windows.append(window)

    def _layers(
        self, calls: list[Seen], mistakes: Callable[[Formula, AttentionCall, Probe], Iterator[Mistake]]
    ) -> None:
        for each in calls:
            if not self._agrees(each, mistakes) or mistakes is not _mistakes:
                continue
            formula = declared(self.probe, each.number, each.layer, each.output.shape[1], each.start)
            unrotated = each.repeated(replace(formula, q_turns=0, k_turns=0))
            if formula.table is not None and difference(unrotated, each.output) <= each.rounding:
                why = "its output without a rotation differs by rounding alone, so that a missing rotation would not be seen"
                self.unchecked[why].append(each.number)

    def _agrees(self, seen: Seen, mistakes: Callable[[Formula, AttentionCall, Probe], Iterator[Mistake]]) -> bool:
        """Whether the output is that of the formula. Notes a mistake, or why it is not known."""
        call = self._captured(seen)
        if isinstance(call, str):
            self.unchecked[call].append(seen.number)
            return False
        formula = declared(self.probe, seen.number, seen.layer, seen.output.shape[1], seen.start)
        last = slice(-PROBE, None)

        def error(formula: Formula) -> float:
            return difference(seen.repeated(formula)[:, last], seen.output[:, last])

        if not seen.output[:, last].std() > 0:
            self.unchecked["its output is the same for all tokens, whatever it attends to"].append(seen.number)
            return False
        if seen.number not in self.compared:
            self.compared.append(seen.number)
            self.used += [] if formula.table is None else [used(call, formula, formula.table.rotary_dim)]
        size = error(formula)
        if size <= seen.rounding:
            return True
        fits = min(seen.rounding, size / 4)
        tried = list(mistakes(formula, call, self.probe))
        likely = [mistake for mistake in tried if mistake.text in self.found] or tried
        best = min(likely, key=lambda mistake: error(mistake.formula))
        if likely is not tried and error(best.formula) > fits:
            best = min(tried, key=lambda mistake: error(mistake.formula))
        if error(best.formula) > fits:
            best = _scaled(formula, _best(lambda times: error(replace(formula, scale=times * formula.scale))))
        if error(best.formula) > fits:
            best = Mistake("attention_differs", "the difference is none that is known here", formula)
        self.found.setdefault(best.text, (best, {}))[1][seen.number] = size
        return False

    def _captured(self, seen: Seen) -> AttentionCall | str:
        """The call of the attention function with queries and keys that are not rotated; or why there is none."""
        calls: list[AttentionCall] = []

        def note(call: AttentionCall) -> Tensor:
            calls.append(call)
            raise _CapturedError

        if not isinstance(seen.named.get("position_embeddings"), tuple | Tensor | Mapping):
            return "its attention gets no cos and sin"
        for flipped in (True, False):
            try:
                seen.repeated(note, flipped)
            except _CapturedError:
                continue
            except Exception as error:
                return f"its attention cannot be repeated alone ({type(error).__name__})"
            return "its attention is not called through transformers' AttentionInterface"
        other, call = calls
        # a layer with the keys of another has none to flip
        shared = bool(getattr(seen.layer.module, "is_kv_shared_layer", False))
        factors = temperatures(self.probe, seen.layer, call.query, seen.start)
        pairs = [(other.query / factors, call.query / factors)] + ([] if shared else [(other.key, call.key)])
        if any(difference(one.flip(2), two) > seen.rounding for one, two in pairs):
            return "positions change its queries or keys before their rotation"
        return call

    def summary(self) -> Computation:
        unchecked = tuple(f"attention of {_numbers(at)}: {why}" for why, at in self.unchecked.items())
        if not self.compared and not unchecked:
            of_encoder = "it is an encoder, examined without runs"
            why = of_encoder if self.probe.family.encoder else "findings that come first are below"
            unchecked = (f"attention: {why}",)
        alike = [each for each in self.used if len(each) == len(self.used[0])]
        shares = torch.stack(alike).mean(0).tolist() if alike else ()
        return Computation(len(self.compared), PROBE, tuple(self.windows), unchecked, tuple(shares))

    def evidence(self) -> Evidence:
        for mistake, sizes in self.found.values():
            size = max(sizes.values())
            text = f"{_numbers([*sizes])} of {len(self.compared)}: {mistake.text}; the output is off by {size:.3g} of its spread"
            yield mistake.name, text, size if mistake.measured is None else mistake.measured


def used(call: AttentionCall, formula: Formula, width: int) -> Tensor:
    """How the norms of queries times keys are distributed over the pairs, fastest first: (width / 2,), with a sum of 1."""
    start = call.query.shape[-1] - width if formula.latent else 0
    shape, of_pair = ((2, -1), -2) if formula.layout == "half" else ((-1, 2), -1)
    parts = (
        x[..., start : start + width].float().unflatten(-1, shape).norm(dim=of_pair) for x in (call.query, call.key)
    )
    query, key = (norms.mean((0, 1, 2)).cpu() for norms in parts)
    return query * key / (query * key).sum().clamp(min=1e-30)


# ------------------------------------------------------------------------------------------ known mistakes

Known = Iterator[tuple[str, str, dict[str, Any]]]
"""A finding, what is wrong in words, and what of the formula is another."""
TURNS = (
    ("not_rotated", "nothing is rotated", 0, 0),
    ("rotated_alone", "queries are rotated and keys are not", 1, 0),
    ("rotated_alone", "keys are rotated and queries are not", 0, 1),
    ("rotated_twice", "queries and keys are rotated twice", 2, 2),
    ("rotated_twice", "queries are rotated twice", 2, 1),
    ("rotated_twice", "keys are rotated twice", 1, 2),
    ("rotated_backwards", "queries and keys are rotated the other way round", -1, -1),
    ("rotated_backwards", "queries are rotated the other way round", -1, 1),
    ("rotated_backwards", "keys are rotated the other way round", 1, -1),
)
"""How often queries and keys are rotated."""


def _mistakes(formula: Formula, call: AttentionCall, probe: Probe) -> Iterator[Mistake]:
    """All known mistakes that a short text shows, but any other scale."""
    for name, text, changed in (*_of_rotation(formula, probe), *_of_scores(formula, call)):
        yield Mistake(name, text, replace(formula, **changed))
    if call.scale is not None and not math.isclose(call.scale, formula.scale, rel_tol=1e-6):
        yield _scaled(formula, call.scale / formula.scale)
    yield from _window_mistakes(formula, windows=range(1, call.query.shape[2]))


def _of_rotation(formula: Formula, probe: Probe) -> Known:
    tables = probe.tables()
    if formula.table is None:
        for kind, table in tables.items():
            where = probe.where(kind)
            yield (
                "rotated_undeclared",
                f"queries and keys are rotated{where}, and this layer has no positions",
                {"table": table},
            )
        return
    width = formula.table.rotary_dim
    for name, text, q, k in TURNS:
        yield name, text, {"q_turns": q, "k_turns": k}
    other = _other(formula.layout)
    yield "wrong_pairs", f"pairs are {other}, and {formula.layout} in this model type", {"layout": other}
    text = f"a rotation of {other} pairs reads cos and sin that are laid out for {formula.layout} ones"
    yield "wrong_pairs", text, {"crossed": True}
    if not formula.latent and width < probe.head_dim:
        yield "wrong_pairs", f"the last {width} channels of a head are rotated, not the first", {"latent": True}
    yield "positions_shifted", "queries are one position ahead of their keys", {"ahead": 1}
    yield "positions_shifted", "queries are one position behind their keys", {"ahead": -1}
    yield "positions_shifted", "the first token has the last position", {"rolled": True}
    for kind, table in tables.items():
        if table.rotary_dim == width and not torch.equal(table.inv_freq, formula.table.inv_freq):
            yield "wrong_frequencies", f"queries and keys turn by the frequencies{probe.where(kind)}", {"table": table}


def _of_scores(formula: Formula, call: AttentionCall) -> Known:
    if formula.softcap is not None:
        yield "softcap_dropped", f"scores are not capped at {formula.softcap:g}", {"softcap": None}
    if formula.sink is not None:
        yield "sinks_dropped", "the learned sinks are left out", {"sink": None}
    if 1 < call.key.shape[1] < call.query.shape[1]:
        text = "query heads share keys and values in turn (0, 1, 0, 1), not in groups (0, 0, 1, 1)"
        yield "heads_mixed", text, {"dealt": True}


def _scaled(formula: Formula, times: float) -> Mistake:
    scale = formula.scale * times
    text = f"scores are multiplied by {scale:.10g}, the configuration asks for {formula.scale:.10g}"
    return Mistake("softmax_scale_differs", text, replace(formula, scale=scale), times)


def _window_mistakes(formula: Formula, *_: object, windows: Iterable[int]) -> Iterator[Mistake]:
    """No window, and others."""
    if formula.window is not None:
        text = f"the window of {formula.window} keys is not applied"
        yield Mistake("window_differs", text, replace(formula, window=None))
    for window in windows:
        text = f"queries see {window} keys, and {formula.window or 'all'} by the configuration"
        yield Mistake("window_differs", text, replace(formula, window=window))


def _other(layout: Layout) -> Layout:
    return "interleaved" if layout == "half" else "half"


def _best(error: Callable[[float], float]) -> float:
    """The factor between 1/64 and 64 with the smallest error: the best of a grid, and then on either side of it."""
    step = math.log(2) / 2
    best = min((step * at for at in range(-12, 13)), key=lambda power: error(math.exp(power)))
    while step > 1e-5:
        step /= 2
        best = min((best, best - step, best + step), key=lambda power: error(math.exp(power)))
    return math.exp(best)


def _numbers(layers: list[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if len(layers) > 2 and layers == [*range(layers[0], layers[-1] + 1)]:
        return f"layers {layers[0]} to {layers[-1]}"
    return f"layers {', '.join(map(str, layers[:8]))}{' and more' * (len(layers) > 8)}"
