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

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from posenc.errors import InputError
from posenc.frequencies import Frequencies, create, wavelengths
from posenc.lab.evals.observed import observed
from posenc.lab.evals.profile import AttentionProfile, LayerKind, NeedleMass, Turning
from posenc.pretrained.anatomy import Anatomy, anatomy
from posenc.pretrained.attach import attached
from posenc.pretrained.calls import check_tokens, evaluating
from posenc.rotation import Layout
from posenc.tasks import Sample

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
        model: a transformers model of a supported type (`posenc.pretrained.anatomy`), extended or not.
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
    body = anatomy(model)
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

    def __init__(self, body: Anatomy, sinks: int, first_row: int, edges: Tensor) -> None:
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
    body: Anatomy, texts: Sequence[Sample], depths: Sequence[float] | None, sinks: int, first_row: int, chunk: int
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


def _turning(body: Anatomy, kind: str) -> Turning:
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
