# SPDX-License-Identifier: Apache-2.0
"""Where a real model's attention goes: to the first tokens, how far back, to what is asked for, by which frequencies.

model, tokenizer = posenc.load("demo")
task = posenc.tasks.create("passkey")
depths = [0.0, 0.25, 0.5, 0.75, 1.0]
samples = [task.sample(tokenizer, 1024, depth=depth) for depth in depths]
profile = attention_profile(model, samples, depths=depths)
print(profile)                      # a table
profile.sink                        # a tensor (layers, heads)
profile.retrieving()                # the heads that look at what is asked for
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from posenc.attention import prepare
from posenc.backends.reference import Reference
from posenc.bias import SoftCap, sum_by_rows
from posenc.errors import InputError
from posenc.frequencies import Frequencies, create, wavelengths
from posenc.functional import Layout
from posenc.positions import Positions
from posenc.pretrained.attach import AttentionCall, LayerPlan, attached, register_attention, set_implementation
from posenc.pretrained.inference import check_tokens, evaluating
from posenc.pretrained.masks import SlidingWindow
from posenc.pretrained.models import ModelStructure, model_structure
from posenc.tasks import Sample


@dataclass(frozen=True)
class LayerKind:
    """One layer. window: keys a query may see, None all. rotates: whether position turns its queries and keys."""

    layer_type: str
    window: int | None
    rotates: bool


@dataclass(frozen=True, eq=False)
class NeedleMass:
    """What the needles of one depth get.

    depth: from 0 to 1. position: of the needles' middle token, on average. share: of the prompt's tokens that they are,
    what they would get of a head that looks everywhere alike. asked: (layers, heads), from the prompt's last token;
    answered: on average over that and the answer's tokens but the last, which predict the answer.
    """

    depth: float
    position: float
    texts: int
    share: float
    asked: Tensor
    answered: Tensor


@dataclass(frozen=True, eq=False)
class Turning:
    """The pairs of one layer type, fast to slow. reach: the longest distance between tokens in training, of the text or
    the window. trained, now: positions per turn, infinite for a pair that stands still."""

    reach: int
    trained: Tensor
    now: Tensor

    @property
    def unfinished(self) -> Tensor:
        """Which pairs never completed a turn in training, bool."""
        return self.trained > self.reach


class Retriever(NamedTuple):
    """A head that looks at what is asked for: its mass there from the prompt's last token, over the needle's share of
    the tokens, and by depth."""

    layer: int
    head: int
    mass: float
    ratio: float
    answered: float
    by_depth: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class AttentionProfile:
    """Where attention goes, as means over texts and their queries from `first_row` on; tensors are float64 on the CPU,
    (layers, heads) where nothing else is said.

    rows: queries counted. longest: tokens of the longest text.
    first, sink: mass on position 0, and on the first `sinks` tokens. nowhere: mass on no token at all (sinks of gpt-oss,
    softmax_1). distance: mean distance of what is attended to; distance_after: of what is not among the first `sinks`.
    effective_keys: exp of the entropy. edges, by_distance: the distances at which bins begin and the mass in each,
    (layers, heads, bins), without the sinks', so that sink + nowhere + by_distance.sum(-1) = 1.
    needle: by depth of what is asked for; empty where no sample has a needle.
    turning: layer type -> wavelengths. bands: per layer, mean |q_i| |k_i| of each pair, times the scale: how many nats the
    pair can move a score, (pairs,), mean over heads; None where nothing rotates. still: the same of all channels that do
    not rotate, (layers,).
    """

    model_type: str
    texts: int
    longest: int
    rows: int
    first_row: int
    sinks: int
    layers: tuple[LayerKind, ...]
    first: Tensor
    sink: Tensor
    nowhere: Tensor
    distance: Tensor
    distance_after: Tensor
    effective_keys: Tensor
    edges: tuple[int, ...]
    by_distance: Tensor
    needle: tuple[NeedleMass, ...]
    turning: Mapping[str, Turning]
    bands: tuple[Tensor | None, ...]
    still: Tensor

    @property
    def unfinished_share(self) -> tuple[float, ...]:
        """Of each layer's score norms (bands and still), what lies in pairs that never completed a turn in training."""
        found = []
        for layer, band, still in zip(self.layers, self.bands, self.still.tolist(), strict=True):
            if band is None:
                found.append(0.0)
                continue
            slow = self.turning[layer.layer_type].unfinished
            found.append(float(band[slow].sum() / (band.sum() + still)))
        return tuple(found)

    def retrieving(self, count: int = 10) -> list[Retriever]:
        """The heads that give the most to what is asked for, on average over depths, from the prompt's last token."""
        if not self.needle:
            return []
        by_depth = torch.stack([row.asked for row in self.needle], -1)
        answered = torch.stack([row.answered for row in self.needle]).mean(0)
        mass, share = by_depth.mean(-1), sum(row.share for row in self.needle) / len(self.needle)
        heads, found = mass.shape[1], []
        for at in mass.flatten().argsort(descending=True)[:count].tolist():
            layer, head = divmod(at, heads)
            own = float(mass[layer, head])
            depths = tuple(by_depth[layer, head].tolist())
            found.append(Retriever(layer, head, own, own / share, float(answered[layer, head]), depths))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything as lists and numbers for JSON, to five digits. Needles' masses are means over all heads and, for the
        heads that retrieve, their own; infinite wavelengths are None."""
        kinds = [vars(layer) for layer in self.layers]
        matrices = ("first", "sink", "nowhere", "distance", "distance_after", "effective_keys")
        mass = torch.stack([row.asked for row in self.needle]).mean(0) if self.needle else None
        return {
            "model_type": self.model_type,
            "texts": self.texts,
            "longest": self.longest,
            "rows": self.rows,
            "first_row": self.first_row,
            "sinks": self.sinks,
            "layers": kinds,
            **{name: _rounded(getattr(self, name)) for name in matrices},
            "edges": list(self.edges),
            "by_distance": _rounded(self.by_distance.mean(1)),
            "needle": None
            if mass is None
            else {
                "mass": _rounded(mass),
                "depths": [
                    {
                        "depth": row.depth,
                        "position": _digits(row.position),
                        "texts": row.texts,
                        "share": _digits(row.share),
                        "asked": _digits(float(row.asked.mean())),
                        "answered": _digits(float(row.answered.mean())),
                    }
                    for row in self.needle
                ],
                "heads": [
                    {
                        "layer": head.layer,
                        "head": head.head,
                        "mass": _digits(head.mass),
                        "ratio": _digits(head.ratio),
                        "answered": _digits(head.answered),
                        "by_depth": [_digits(mass) for mass in head.by_depth],
                    }
                    for head in self.retrieving()
                ],
            },
            "turning": {
                kind: {
                    "reach": turning.reach,
                    "trained": _rounded(turning.trained),
                    "now": _rounded(turning.now),
                    "unfinished": int(turning.unfinished.sum()),
                }
                for kind, turning in self.turning.items()
            },
            "bands": [None if band is None else _rounded(band) for band in self.bands],
            "still": _rounded(self.still),
            "unfinished_share": [_digits(share) for share in self.unfinished_share],
        }

    def __str__(self) -> str:
        head = f"attention of {self.texts} texts of up to {self.longest} tokens, queries from {self.first_row} on"
        titles = "layer", f"first {self.sinks}", "most in", "distance", "past sinks", "keys", "unfinished"
        lines = [head, "  ".join(f"{title:>10}" for title in titles)]
        for layer, share in enumerate(self.unfinished_share):
            most = int(self.sink[layer].argmax())
            cells = (
                str(layer),
                f"{self.sink[layer].mean():.1%}",
                f"{self.sink[layer, most]:.0%} ({most})",
                f"{self.distance[layer].mean():.1f}",
                f"{self.distance_after[layer].mean():.1f}",
                f"{self.effective_keys[layer].mean():.1f}",
                f"{share:.1%}",
            )
            lines.append("  ".join(f"{cell:>10}" for cell in cells))
        for kind, turning in self.turning.items():
            slow, pairs = int(turning.unfinished.sum()), len(turning.trained)
            lines.append(f"{slow} of {pairs} pairs never complete a turn in {turning.reach} tokens ({kind})")
        for found in self.retrieving(5):
            where = f"layer {found.layer}, head {found.head}"
            lines.append(f"{where}: {found.mass:.1%} on what is asked for, {found.ratio:.1f} times its share")
        return "\n".join(lines)


def _rounded(x: Tensor) -> Any:
    if x.ndim:
        return [_rounded(row) for row in x]
    return _digits(float(x))


def _digits(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


NAME = "posenc_observed"
"""What transformers knows the observed attention by. It has no mask function of that name, and so makes no masks."""


class Observer(Protocol):
    """Who is shown what attention does, layer by layer."""

    def vectors(self, layer: int, q: Tensor, k: Tensor, scale: float) -> None:
        """Queries (heads, N, head_dim) and keys (kv_heads, N, head_dim) of a layer, and the factor of their product."""
        ...

    def block(self, layer: int, first: int, weights: Tensor) -> None:
        """What queries first, first + 1, .. give each key, (heads, queries, N), float32 or better."""
        ...


@dataclass(frozen=True, eq=False)
class View:
    """One layer as it is observed. chunk: queries of a block."""

    layer: int
    window: int | None
    observer: Observer
    chunk: int


@contextmanager
def observed(body: ModelStructure, observer: Observer, chunk: int) -> Iterator[None]:
    """Show an observer the attention of a model, extended or not, in every pass over one text without a cache; the model
    then attends as before. Memory is heads x chunk x N at a time, never N x N.

    Raises:
        InputError: a model whose attention cannot be set, or sees the future.
    """
    if any(not getattr(layer.module, "is_causal", True) for layer in body.layers):
        raise InputError(
            f"a {body.model_type} model whose tokens see those after them: observed are causal models alone"
        )
    register_attention(NAME, attend, None)
    before = body.config._attn_implementation
    try:
        for index, layer in enumerate(body.layers):
            layer.module._posenc_view = View(index, layer.window, observer, chunk)  # type: ignore[assignment]
        set_implementation(body.model, NAME)
        yield
    finally:
        for layer in body.layers:
            if hasattr(layer.module, "_posenc_view"):
                del layer.module._posenc_view
        set_implementation(body.model, before)


def attend(call: AttentionCall) -> Tensor:
    """What the model computes, shown to the observer on the way.

    An extended model attends by the encoding that `posenc.extend` gave the layer, a plain one by its window alone.
    """
    view: View = call.module._posenc_view  # type: ignore[assignment]
    plan: LayerPlan | None = getattr(call.module, "_posenc_plan", None)
    encoding = plan.windowed if plan is not None else None if view.window is None else SlidingWindow(view.window)
    query, key = call.query, call.key
    with torch.autocast(query.device.type, enabled=False):
        positions = Positions.arange(query.shape[2], causal=True, device=query.device)
        problem = prepare(query, key, call.value, encoding, positions, None, call.scale, call.sink, 0.0, 0)
        if call.softcap is not None:
            problem = replace(problem, modifiers=[SoftCap(call.softcap)])
        view.observer.vectors(view.layer, query[0], key[0], problem.scale)
        bias, outs = sum_by_rows(problem.bias, query.device), []
        for first in range(0, query.shape[2], view.chunk):
            end = min(first + view.chunk, query.shape[2])
            weights = Reference().weights(problem, first, end, bias(first, end))
            view.observer.block(view.layer, first, weights[0])
            outs.append(Reference().output(problem, weights, first))
    return torch.cat(outs, 2)


Progress = Callable[[int, int], object]
"""Called with the texts that are done and how many there are."""


@torch.no_grad()
def attention_profile(
    model: nn.Module,
    samples: Sequence[Sample | Tensor],
    *,
    depths: Sequence[float] | None = None,
    sinks: int = 4,
    first_row: int = 64,
    bins: Sequence[int] | None = None,
    chunk: int = 64,
    progress: Progress | None = None,
) -> AttentionProfile:
    """Measure where a causal language model's attention goes while it reads texts.

    The model attends as it would, extended or not: position maps, temperatures, denominators, windows, capped scores and
    sinks of its own are all in the weights, which are computed in float32 from its queries and keys. Afterwards it is as
    it was. Time grows with the square of a text's length, memory with the length.

    Args:
        model: a transformers model of a supported type (`posenc.pretrained.models`), extended or not.
        samples: of `posenc.tasks`, or token ids (N,) or (1, N). Texts are read one at a time.
        depths: where the samples' needles were asked to stand, one number a sample: those of one depth are averaged.
            None: the middle of the needle in the prompt, to a tenth.
        sinks: tokens at the start whose mass is told apart.
        first_row: queries before this one are not counted: they see little else than the sinks.
        bins: distances at which bins begin, rising from 0. None: 0, 1, 2, 4, 8, ..
        chunk: queries whose weights exist at a time.
        progress: called after each text.

    Raises:
        InputError: a model that is not supported, texts that are too short or of another shape, or numbers that do not
            fit together.
    """
    body = model_structure(model)
    texts = [sample if isinstance(sample, Sample) else _plain(sample) for sample in samples]
    _check(body, texts, depths, sinks, first_row, chunk)
    longest = max(len(text.ids) for text in texts)
    edges = _edges(bins, longest)
    tally = _Tally(body, sinks, first_row, torch.tensor(edges))
    device = next(body.model.parameters()).device
    with evaluating(body.model), observed(body, tally, chunk):
        for done, text in enumerate(texts, 1):
            tally.start(text)
            body.decoder(input_ids=text.ids[None].to(device), use_cache=False)
            if progress is not None:
                progress(done, len(texts))
    rows = tally.rows
    seen, after = tally.total.clamp(min=1e-30), (tally.total - tally.sink).clamp(min=1e-30)
    tokens = sum(len(text.ids) for text in texts)
    return AttentionProfile(
        model_type=body.model_type,
        texts=len(texts),
        longest=longest,
        rows=rows,
        first_row=first_row,
        sinks=sinks,
        layers=tuple(LayerKind(layer.layer_type, layer.window, layer.rotates) for layer in body.layers),
        first=tally.first / rows,
        sink=tally.sink / rows,
        nowhere=(1 - tally.total / rows).clamp(min=0),
        distance=(tally.far + tally.sink_far) / seen,
        distance_after=tally.far / after,
        effective_keys=tally.effective / rows,
        edges=edges,
        by_distance=tally.by_distance / rows,
        needle=_by_depth(texts, tally.needles, depths),
        turning={kind: _turning(body, kind) for kind in body.ropes},
        bands=tuple(None if band is None else band / tokens for band in tally.bands),
        still=tally.still / tokens,
    )


class _Tally:
    """Sums over queries and texts, in float64 on the CPU; per layer and head (layers, heads[, bins])."""

    def __init__(self, body: ModelStructure, sinks: int, first_row: int, edges: Tensor) -> None:
        shape = len(body.layers), body.num_heads
        self.body, self.sinks, self.first_row, self.edges = body, sinks, first_row, edges
        self.rows = 0
        self.total, self.first, self.sink, self.far, self.sink_far, self.effective = torch.zeros(6, *shape).double()
        self.by_distance = torch.zeros(*shape, len(edges)).double()
        self.bands: list[Tensor | None] = [None] * shape[0]
        self.still = torch.zeros(shape[0]).double()
        self.needles: list[Tensor] = []
        self.text = Sample(torch.empty(0), 0)

    def start(self, text: Sample) -> None:
        self.text = text
        self.rows += len(text.ids) - self.first_row
        # from the prompt's last token, and summed over every token that predicts one of the answer's
        self.needles.append(torch.zeros(2, len(self.body.layers), self.body.num_heads).double())

    def vectors(self, layer: int, q: Tensor, k: Tensor, scale: float) -> None:
        kind = self.body.layers[layer]
        width = self.body.ropes[kind.layer_type].rotary_dim if kind.rotates else 0
        lengths = [pair_norms(x[..., :width], self.body.layout).mean(1).double().cpu() for x in (q, k)]
        rest = [x[..., width:].float().norm(dim=-1).mean(1, keepdim=True).double().cpu() for x in (q, k)]
        groups, weight = len(q) // len(k), abs(scale) * q.shape[1]
        found, still = (weight * (a * b.repeat_interleave(groups, 0)).mean(0) for a, b in (lengths, rest))
        if width:
            before = self.bands[layer]
            self.bands[layer] = found if before is None else before + found
        self.still[layer] += still.sum()

    def block(self, layer: int, first: int, weights: Tensor) -> None:
        if self.text.needle is not None:
            self._needle(layer, first, weights, *self.text.needle)
        skipped = min(max(self.first_row - first, 0), weights.shape[1])
        first, weights = first + skipped, weights[:, skipped:]
        if not weights.shape[1]:
            return
        rows, device = torch.arange(first, first + weights.shape[1], device=weights.device), weights.device
        seen, start = weights.sum(-1), weights[..., : self.sinks]
        away = (rows[:, None] - torch.arange(start.shape[-1], device=device)).to(start.dtype)
        # of what is attended to at all: exp of the entropy of p / sum p
        entropy = torch.special.entr(weights).sum(-1) / seen.clamp(min=1e-30) + seen.clamp(min=1e-30).log()
        by_distance, distances = summed_by_distance(weights, first, self.sinks)
        self.total[layer] += _sum(seen)
        self.first[layer] += _sum(weights[..., 0])
        self.sink[layer] += _sum(start)
        self.sink_far[layer] += _sum(start * away)
        self.far[layer] += _sum(by_distance * distances)
        self.effective[layer] += _sum(torch.where(seen > 0, entropy.exp(), 0.0))
        past = distances >= 0
        into = torch.bucketize(distances[past].cpu(), self.edges, right=True) - 1
        self.by_distance[layer].index_add_(1, into, by_distance[:, past].double().cpu())

    def _needle(self, layer: int, first: int, weights: Tensor, begin: int, end: int) -> None:
        asking, last = self.text.prompt_tokens - 1, max(len(self.text.ids) - 1, self.text.prompt_tokens)
        low, high = max(asking, first), min(last, first + weights.shape[1])
        if low >= high:
            return
        mass = weights[:, low - first : high - first, begin:end].sum(-1).double().cpu()
        if low == asking:
            self.needles[-1][0, layer] = mass[:, 0]
        self.needles[-1][1, layer] += mass.sum(1) / (last - asking)


def pair_norms(x: Tensor, layout: Layout) -> Tensor:
    """Lengths of the pairs of channels that rotate together, (..., rotary_dim) -> (..., rotary_dim / 2), in float32. A
    rotation leaves them as they are."""
    first, second = (x[..., 0::2], x[..., 1::2]) if layout == "interleaved" else x.chunk(2, -1)
    return torch.hypot(first.float(), second.float())


def summed_by_distance(weights: Tensor, first: int, skip: int) -> tuple[Tensor, Tensor]:
    """Weights (heads, rows, keys) of the queries from `first` on, without the first `skip` keys, summed over pairs at the
    same distance, and these distances: (heads, n) and (n,). What lies in the future is zero."""
    heads, rows, _ = weights.shape
    keys = min(weights.shape[2], first + rows)
    skip = min(skip, keys)
    padded = nn.functional.pad(weights[..., skip:keys], (rows - 1, rows - 1))
    width = keys - skip + rows - 1
    # row r, column c of the view is key c + r - (rows - 1): one distance a column
    strides = padded.stride(0), padded.stride(1) + 1, 1
    found = padded.as_strided((heads, rows, width), strides).sum(1)
    return found, first + rows - 1 - skip - torch.arange(width, device=weights.device)


def _sum(x: Tensor) -> Tensor:
    return x.flatten(1).double().sum(1).cpu()


def _plain(ids: Tensor) -> Sample:
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.squeeze(0).ndim != 1:
        what = tuple(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__
        raise InputError(f"samples: {what} is no text: pass a Sample or int64 ids (N,), one text at a time")
    return Sample(ids.reshape(-1), ids.numel())


def _check(
    body: ModelStructure,
    texts: Sequence[Sample],
    depths: Sequence[float] | None,
    sinks: int,
    first_row: int,
    chunk: int,
) -> None:
    if not texts:
        raise InputError("samples is empty: give at least one text")
    if depths is not None and len(depths) != len(texts):
        raise InputError(f"depths has {len(depths)} numbers for {len(texts)} samples: give one each")
    if sinks < 1 or first_row < sinks or chunk < 1:
        raise InputError(
            f"sinks={sinks}, first_row={first_row}, chunk={chunk}: needed are 1 <= sinks <= first_row and 1 <= chunk"
        )
    shortest = min(len(text.ids) for text in texts)
    if shortest <= first_row:
        raise InputError(
            f"a text of {shortest} tokens has none from first_row={first_row} on: give longer texts or a lower first_row"
        )
    for text in texts:
        check_tokens(body.model, text.ids)


def _edges(bins: Sequence[int] | None, longest: int) -> tuple[int, ...]:
    if bins is None:
        return (0, *(2**power for power in range((longest - 1).bit_length())))
    edges = tuple(bins)
    if not edges or edges[0] != 0 or any(low >= high for low, high in pairwise(edges)):
        raise InputError(f"bins={edges}: distances at which bins begin, rising from 0")
    return edges


def _by_depth(
    texts: Sequence[Sample], masses: Sequence[Tensor], depths: Sequence[float] | None
) -> tuple[NeedleMass, ...]:
    found: dict[float, list[tuple[Sample, Tensor]]] = {}
    for index, (text, mass) in enumerate(zip(texts, masses, strict=True)):
        if text.needle is None:
            continue
        middle = sum(text.needle) / 2 / text.prompt_tokens
        found.setdefault(round(middle, 1) if depths is None else depths[index], []).append((text, mass))
    rows = []
    for depth, group in sorted(found.items()):
        needles = [(*text.needle, text.prompt_tokens) for text, _ in group if text.needle is not None]
        asked, answered = torch.stack([mass for _, mass in group]).mean(0)
        rows.append(
            NeedleMass(
                depth=depth,
                position=sum((first + end - 1) / 2 for first, end, _ in needles) / len(needles),
                texts=len(group),
                share=sum((end - first) / prompt for first, end, prompt in needles) / len(needles),
                asked=asked,
                answered=answered,
            )
        )
    return tuple(rows)


def _turning(body: ModelStructure, kind: str) -> Turning:
    rope = body.ropes[kind]
    trained = create(rope.at(body.loaded_length), rope.rotary_dim, rope.rope_theta)
    record = attached(body.model)
    ours = {} if record is None else record.design.rotations
    now: Frequencies = ours[kind].frequencies() if kind in ours else trained
    windows = [layer.window for layer in body.layers if layer.layer_type == kind and layer.window is not None]
    return Turning(
        reach=min(body.loaded_length, *windows) if windows else body.loaded_length,
        trained=wavelengths(trained),
        now=wavelengths(now),
    )
