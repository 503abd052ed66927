# SPDX-License-Identifier: Apache-2.0
"""Where a model's attention goes: to the first tokens, how far back, to the answer in the text, and by which frequencies.

model, tokenizer = posenc.load("demo")
task = posenc.tasks.create("passkey")
depths = [0.0, 0.25, 0.5, 0.75, 1.0]
samples = [task.sample(tokenizer, 1024, depth=depth) for depth in depths]
profile = attention_profile(model, samples, depths=depths)
profile.sink                        # a tensor (layers, heads)
profile.retrieving()                # the heads that attend to the answer
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posenc.attention import Call, prepare
from posenc.backends.reference import Reference
from posenc.bias import sum_by_rows
from posenc.encodings.visible import Window
from posenc.errors import InputError
from posenc.frequencies import create, wavelengths
from posenc.functional import Layout
from posenc.lab.messages import as_json
from posenc.positions import Positions
from posenc.pretrained.attach import (
    AttentionCall,
    LayerPlan,
    attached,
    attending,
    check_attention,
)
from posenc.pretrained.inference import check_tokens, evaluating
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
    """The attention to the needles (the answers in the documents) of one depth.

    depth: from 0 to 1. position: of the needles' middle token, mean over documents. share: of the prompt's tokens that are the
    needle's, which is the mass under uniform attention. asked: (layers, heads), from the prompt's last token; answered:
    mean over that and the answer's tokens but the last, which predict the answer.
    """

    depth: float
    position: float
    texts: int
    share: float
    asked: Tensor
    answered: Tensor


@dataclass(frozen=True, eq=False)
class Turning:
    """The pairs of channels of one layer type, fast to slow. reach: the longest distance between tokens in training, of the
    text or the window. trained, now: wavelengths in positions, infinite for a pair that does not rotate."""

    reach: int
    trained: Tensor
    now: Tensor

    @property
    def unfinished(self) -> Tensor:
        """Which pairs never completed a turn in training, bool."""
        return self.trained > self.reach


class Retriever(NamedTuple):
    """A head that attends to the needle. mass: from the prompt's last token. ratio: mass over the needle's share of the
    tokens."""

    layer: int
    head: int
    mass: float
    ratio: float
    answered: float
    by_depth: tuple[float, ...]


@dataclass(frozen=True, eq=False, repr=False)
class AttentionProfile:
    """Where attention goes, as means over documents and their queries from `first_row` on; tensors are float64 on the CPU, of
    shape (layers, heads) unless stated.
    """

    model_type: str
    texts: int
    longest: int
    """Tokens of the longest text"""
    rows: int
    """Queries counted"""
    first_row: int
    """Queries before it are not counted"""
    sinks: int
    """Tokens at the start that count as sinks"""
    layers: tuple[LayerKind, ...]
    first: Tensor
    """(layers, heads), mass on position 0"""
    sink: Tensor
    """(layers, heads), mass on the first `sinks` tokens"""
    nowhere: Tensor
    """(layers, heads), mass on no token at all (sinks of gpt-oss, softmax_1)"""
    distance: Tensor
    """(layers, heads), mean distance of the attended tokens"""
    distance_after: Tensor
    """(layers, heads), the same without the first `sinks`"""
    effective_keys: Tensor
    """(layers, heads), exp of the entropy"""
    edges: tuple[int, ...]
    """The distances at which bins begin: 0, 1, 2, 4, 8, """
    by_distance: Tensor
    """(layers, heads, bins), the mass in each, without the sinks', so that sink + nowhere + by_distance.sum(-1) = 1"""
    needle: tuple[NeedleMass, ...]
    """By depth of the needle; empty if no sample has one"""
    turning: Mapping[str, Turning]
    """Layer type -> wavelengths"""
    bands: tuple[Tensor | None, ...]
    """Per layer, (pairs,): mean |q_i| |k_i| of each pair, times the scale, which is how many nats the pair can move a
    score, mean over heads; None if nothing rotates"""
    still: Tensor
    """(layers,), the same of all channels that do not rotate"""

    @property
    def unfinished_share(self) -> tuple[float, ...]:
        """Of each layer's score norms (bands and still), the share in pairs that never completed a turn in training."""
        shares = []
        for layer, band, still in zip(self.layers, self.bands, self.still.tolist(), strict=True):
            if band is None:
                shares.append(0.0)
            else:
                slow = self.turning[layer.layer_type].unfinished
                every = float(band.sum() + still)
                shares.append(float(band[slow].sum()) / every if every else 0.0)  # of keys that are zero
        return tuple(shares)

    def retrieving(self, count: int = 10) -> list[Retriever]:
        """The heads with the most mass on the needle, mean over depths, from the prompt's last token."""
        if not self.needle:
            return []
        by_depth = torch.stack([row.asked for row in self.needle], -1)
        answered = torch.stack([row.answered for row in self.needle]).mean(0)
        mass, share = by_depth.mean(-1), sum(row.share for row in self.needle) / len(self.needle)
        heads = []
        for index in mass.flatten().argsort(descending=True)[:count].tolist():
            at = layer, head = divmod(index, mass.shape[1])
            ratio = float(mass[at]) / share
            heads.append(
                Retriever(layer, head, float(mass[at]), ratio, float(answered[at]), tuple(by_depth[at].tolist()))
            )
        return heads

    def to_dict(self) -> dict[str, Any]:
        """All fields as lists and numbers for JSON, to five digits; infinite wavelengths are None. by_distance is a mean over
        heads; the needle's masses are means over all heads, and by depth for the heads that retrieve."""
        needle = None
        if self.needle:
            means = ({"asked": float(row.asked.mean()), "answered": float(row.answered.mean())} for row in self.needle)
            depths = [vars(row) | mean for row, mean in zip(self.needle, means, strict=True)]
            mass = torch.stack([row.asked for row in self.needle]).mean(0)
            needle = {"mass": mass, "depths": depths, "heads": [head._asdict() for head in self.retrieving()]}
        turning = {
            kind: vars(turning) | {"unfinished": int(turning.unfinished.sum())}
            for kind, turning in self.turning.items()
        }
        changed = {"by_distance": self.by_distance.mean(1), "needle": needle, "turning": turning}
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return as_json(values | changed | {"unfinished_share": self.unfinished_share}, 5)


def _observing(body: ModelStructure, sums: "_Sums", chunk: int) -> Callable[[AttentionCall], Tensor]:
    """The attention of a model, extended or not, in a pass over one text without a cache, which it sums. Memory is heads x chunk x
    N at a time, never N x N.

    Raises:
        InputError: it is not causal.
    """
    if any(not getattr(layer.module, "is_causal", True) for layer in body.layers):
        raise InputError(
            f"attention of a {body.model_type} model is not causal", "pass a causal model", argument="model"
        )
    indices = {layer.module: index for index, layer in enumerate(body.layers)}

    def observe(call: AttentionCall) -> Tensor:
        """The model's own attention: by the encoding from `posenc.extend`, if there is one, else by the window alone."""
        index, query, key = indices[call.module], call.query, call.key
        plan: LayerPlan | None = getattr(call.module, "_posenc_plan", None)
        window = body.layers[index].window
        encoding = plan.windowed if plan is not None else None if window is None else Window(window - 1)
        with torch.autocast(query.device.type, enabled=False):
            positions = Positions.arange(query.shape[2], causal=True, device=query.device)
            problem = prepare(
                Call(
                    query, key, call.value, encoding, positions, scale=call.scale, sink=call.sink, softcap=call.softcap
                )
            )
            sums.add_vectors(index, query[0], key[0], problem.scale)
            bias, outs = sum_by_rows(problem.bias, query.device), []
            for first in range(0, query.shape[2], chunk):
                end = min(first + chunk, query.shape[2])
                weights = Reference().weights(problem, first, end, bias(first, end))
                sums.add_weights(index, first, weights[0])
                outs.append(Reference().output(problem, weights, first))
        return problem.finished(torch.cat(outs, 2))

    return observe


@torch.no_grad()
def attention_profile(
    model: nn.Module,
    samples: Sequence[Sample | Tensor],
    *,
    depths: Sequence[float] | None = None,
    sinks: int = 4,
    first_row: int = 64,
    chunk: int = 64,
) -> AttentionProfile:
    """Measure where a causal language model's attention goes in given inputs.

    The weights include position maps, temperatures, denominators, windows, capped scores and sinks, and are computed in
    float32 from the model's queries and keys. The model is restored afterwards. Time grows with the square of a text's
    length, memory with the length.

    Args:
        model: a transformers model of a supported type (`posenc.pretrained.families`), extended or not.
        samples: of `posenc.tasks`, or token ids (N,) or (1, N). Texts are read one at a time.
        depths: the requested depth of each sample's needle; samples of one depth are averaged. None: the middle of the
            needle in the prompt, to a tenth.
        sinks: tokens at the start whose mass is reported apart.
        first_row: queries before this one are not counted: they see little else than the sinks.
        chunk: queries whose weights exist at a time.

    Raises:
        InputError: a model that is not supported, inputs that are too short or of another shape, or numbers that do not
            fit together.
    """
    body = model_structure(model)
    texts = [sample if isinstance(sample, Sample) else _as_sample(sample) for sample in samples]
    check_attention(body)
    if not texts:
        raise InputError("samples is empty: give at least one text")
    if depths is not None and len(depths) != len(texts):
        raise InputError(f"depths has {len(depths)} numbers for {len(texts)} samples: give one each")
    if not 1 <= sinks <= first_row or chunk < 1:
        raise InputError("need 1 <= sinks <= first_row and chunk >= 1", sinks=sinks, first_row=first_row, chunk=chunk)
    for text in texts:
        if (n := len(text.ids)) <= first_row:
            raise InputError(
                f"a text has {n} tokens, and queries count from number {first_row} on",
                "give longer inputs or a lower first_row",
                first_row=first_row,
            )
        check_tokens(body.model, text.ids)
    longest = max(len(text.ids) for text in texts)
    edges = (0, *(2**power for power in range((longest - 1).bit_length())))
    sums = _Sums(body, sinks, first_row, torch.tensor(edges))
    device = next(body.model.parameters()).device
    with evaluating(body.model), attending(body, _observing(body, sums, chunk)):
        for text in texts:
            sums.start(text)
            body.decoder(input_ids=text.ids[None].to(device), use_cache=False)
    rows = sums.rows
    tokens = sum(len(text.ids) for text in texts)
    return AttentionProfile(
        model_type=body.model_type,
        texts=len(texts),
        longest=longest,
        rows=rows,
        first_row=first_row,
        sinks=sinks,
        layers=tuple(LayerKind(layer.layer_type, layer.window, layer.rotates) for layer in body.layers),
        first=sums.first / rows,
        sink=sums.sink / rows,
        nowhere=(1 - sums.total / rows).clamp(min=0),
        distance=(sums.far + sums.sink_far) / sums.total.clamp(min=1e-30),
        distance_after=sums.far / (sums.total - sums.sink).clamp(min=1e-30),
        effective_keys=sums.effective / rows,
        edges=edges,
        by_distance=sums.by_distance / rows,
        needle=_by_depth(texts, sums.needles, depths),
        turning={kind: _turning(body, kind) for kind in body.ropes},
        bands=tuple(None if band is None else band / tokens for band in sums.bands),
        still=sums.still / tokens,
    )


class _Sums:
    """Sums over queries and documents, in float64 on the CPU; per layer and head (layers, heads[, bins])."""

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

    def add_vectors(self, layer: int, q: Tensor, k: Tensor, scale: float) -> None:
        """Of queries (heads, N, head_dim) and keys (kv_heads, N, head_dim), and the factor of their product."""
        kind = self.body.layers[layer]
        width = self.body.ropes[kind.layer_type].rotary_dim if kind.rotates else 0
        lengths = [pair_norms(x[..., :width], self.body.layout).mean(1).double().cpu() for x in (q, k)]
        rest = [x[..., width:].float().norm(dim=-1).mean(1, keepdim=True).double().cpu() for x in (q, k)]
        groups, weight = len(q) // len(k), abs(scale) * q.shape[1]
        band, still = (weight * (a * b.repeat_interleave(groups, 0)).mean(0) for a, b in (lengths, rest))
        if width:
            before = self.bands[layer]
            self.bands[layer] = band if before is None else before + band
        self.still[layer] += still.sum()

    def add_weights(self, layer: int, first: int, weights: Tensor) -> None:
        """Of weights (heads, queries, N) of the queries from `first` on."""
        if self.text.needle is not None:
            self._add_needle(layer, first, weights, *self.text.needle)
        skipped = min(max(self.first_row - first, 0), weights.shape[1])
        first, weights = first + skipped, weights[:, skipped:]
        if not weights.shape[1]:
            return
        rows, device = torch.arange(first, first + weights.shape[1], device=weights.device), weights.device
        seen, start = weights.sum(-1), weights[..., : self.sinks]
        away = (rows[:, None] - torch.arange(start.shape[-1], device=device)).to(start.dtype)
        # exp of the entropy of p / sum p
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

    def _add_needle(self, layer: int, first: int, weights: Tensor, begin: int, end: int) -> None:
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
    sums = padded.as_strided((heads, rows, width), strides).sum(1)
    return sums, first + rows - 1 - skip - torch.arange(width, device=weights.device)


def _sum(x: Tensor) -> Tensor:
    return x.flatten(1).double().sum(1).cpu()


def _as_sample(ids: Tensor) -> Sample:
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.squeeze(0).ndim != 1:
        what = tuple(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__
        raise InputError(
            f"{what} is not a text", "pass a Sample or int64 ids (N,), one text at a time", argument="samples"
        )
    return Sample(ids.reshape(-1), ids.numel())


def _by_depth(
    texts: Sequence[Sample], masses: Sequence[Tensor], depths: Sequence[float] | None
) -> tuple[NeedleMass, ...]:
    by_depth: dict[float, list[tuple[Sample, Tensor]]] = {}
    for index, (text, mass) in enumerate(zip(texts, masses, strict=True)):
        if text.needle is not None:
            middle = round(sum(text.needle) / 2 / text.prompt_tokens, 1)
            by_depth.setdefault(middle if depths is None else depths[index], []).append((text, mass))
    rows = []
    for depth, group in sorted(by_depth.items()):
        needles = [(*text.needle, text.prompt_tokens) for text, _ in group if text.needle is not None]
        position = sum((first + end - 1) / 2 for first, end, _ in needles) / len(needles)
        share = sum((end - first) / prompt for first, end, prompt in needles) / len(needles)
        rows.append(NeedleMass(depth, position, len(group), share, *torch.stack([mass for _, mass in group]).mean(0)))
    return tuple(rows)


def _turning(body: ModelStructure, kind: str) -> Turning:
    rope = body.ropes[kind]
    trained = create(rope.at(body.loaded_length), rope.rotary_dim, base=rope.rope_theta)
    attachment = attached(body.model)
    rotations = {} if attachment is None else attachment.design.rotations
    now = rotations[kind].frequencies() if kind in rotations else trained
    windows = [layer.window for layer in body.layers if layer.layer_type == kind and layer.window is not None]
    return Turning(min([body.loaded_length, *windows]), wavelengths(trained), wavelengths(now))
