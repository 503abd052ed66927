# SPDX-License-Identifier: Apache-2.0
"""Attention at module level: four projections round a core, x (1, n, 512) -> (1, n, 512), with 8 heads of width 64.

What each encoding adds to the scores is a formula on any rows of the score matrix. It is given float64 rows to judge the
candidates by, and all rows in the dtype of the problem to be one of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, scaled_dot_product_attention

import posenc
from posenc.encoding import Encoding
from posenc.functional import alibi_slopes, deberta_bucket, rotary, sinusoidal, t5_bucket
from posenc.lab.bench.case import TOLERANCES, Built, Refusal, Tensors, Workload
from posenc.positions import Positions

DIM, HEADS, HEAD_DIM = 512, 8, 64
CLIP, BUCKETS, MOST_RELATIVE = 64, 256, 512
"""Shaw's clip; DeBERTa's logarithmic buckets, and the distance that they reach."""

Weights = Mapping[str, Tensor]
Terms = tuple[Tensor, Tensor, Tensor | None]
Formula = Callable[[Weights, Tensor, Tensor, Tensor], Terms]
"""(weights, queries of some rows, all keys, the rows) -> queries and keys as compared, and the bias (1, H, rows, keys)
added to their scaled product."""


@dataclass(frozen=True)
class Scheme:
    """An encoding in attention: its weights, and what it does to queries, keys and scores.

    sizes: name -> (shape, standard deviation) of its own weights, for a length. learned: the weight whose gradient is
    compared. scale: of the product of queries and keys.
    """

    terms: Formula
    sizes: Callable[[int], dict[str, tuple[tuple[int, ...], float]]] = lambda length: {}
    learned: str | None = None
    scale: float = HEAD_DIM**-0.5
    causal: bool = False


def heads(x: Tensor) -> Tensor:
    """(batch, n, HEADS * HEAD_DIM) -> (batch, HEADS, n, HEAD_DIM)"""
    return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)


def _distance(rows: Tensor, keys: int) -> Tensor:
    """Query position minus key position, (rows, keys)."""
    return rows[:, None] - torch.arange(keys, device=rows.device)


def _gathered(table: Tensor, index: Tensor) -> Tensor:
    """(1, H, rows, entries) read at (rows, keys) indices."""
    return torch.gather(table, -1, index.expand(*table.shape[:2], *index.shape))


def _t5_bias(table: Tensor, rows: Tensor, keys: int, bidirectional: bool) -> Tensor:
    return table[:, t5_bucket(-_distance(rows, keys), bidirectional)][None]


def _t5(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return q, k, _t5_bias(w["table"], rows, k.shape[2], bidirectional=True)


def _t5_causal(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return q, k, _t5_bias(w["table"], rows, k.shape[2], bidirectional=False)


def _alibi(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    slopes = alibi_slopes(HEADS).to(q)[:, None, None]
    return q, k, (-slopes * _distance(rows, k.shape[2]).abs())[None]


def _shaw(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    index = (-_distance(rows, k.shape[2])).clamp(-CLIP, CLIP) + CLIP
    return q, k, _gathered(q @ w["table"].mT * HEAD_DIM**-0.5, index)


def _xlnet(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    length = k.shape[2]
    distances = torch.arange(length - 1, -length, -1, device=q.device)
    codes = sinusoidal(distances, DIM, layout="concat", dtype=q.dtype)
    keys = (codes @ w["table"].mT).unflatten(-1, (HEADS, HEAD_DIM)).transpose(0, 1)
    scores = (q + w["distance_bias"]) @ keys.mT * HEAD_DIM**-0.5
    return q + w["content_bias"], k, _gathered(scores, length - 1 - _distance(rows, length))


def _deberta(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    counted = deberta_bucket(_distance(rows, k.shape[2]), BUCKETS, MOST_RELATIVE)
    index = (counted + BUCKETS).clamp(0, 2 * BUCKETS - 1)
    queries, keys = (heads((w["table"] @ w[name].mT)[None]) for name in ("q", "k"))
    c2p = _gathered(q @ keys.mT, index)
    p2c = _gathered(k @ queries.mT, index.mT).mT
    return q, k, (c2p + p2c) * DEBERTA_SCALE


def _tupe(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    codes = layer_norm(w["table"], (DIM,))
    left, right = (heads((codes @ w[name].mT)[None]) for name in ("left", "right"))
    absolute = left[:, :, rows] @ right.mT * TUPE_SCALE
    return q, k, absolute + _t5_bias(w["distances"], rows, k.shape[2], bidirectional=True)


def _rope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    positions = torch.arange(k.shape[2], device=q.device, dtype=torch.float64)
    inv_freq = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2, device=q.device, dtype=torch.float64) / HEAD_DIM)
    angles = positions[:, None] * inv_freq
    wide = torch.promote_types(q.dtype, torch.float32)
    cos, sin = angles.cos().to(wide), angles.sin().to(wide)
    turned = rotary(q, cos[rows], sin[rows], layout="interleaved"), rotary(k, cos, sin, layout="interleaved")
    return *turned, None


DEBERTA_SCALE = (3 * HEAD_DIM) ** -0.5
TUPE_SCALE = (2 * HEAD_DIM) ** -0.5
_SQUARE = ((DIM, DIM), DIM**-0.5)

SCHEMES: dict[str, Scheme] = {
    "t5": Scheme(_t5, lambda n: {"table": ((HEADS, 32), 1.0)}, "table", 1.0),
    "t5_causal": Scheme(_t5_causal, lambda n: {"table": ((HEADS, 32), 1.0)}, "table", 1.0, causal=True),
    "alibi": Scheme(_alibi, causal=True),
    "shaw": Scheme(_shaw, lambda n: {"table": ((2 * CLIP + 1, HEAD_DIM), 1.0)}, "table"),
    "xlnet": Scheme(
        _xlnet,
        lambda n: {
            "table": _SQUARE,
            "content_bias": ((HEADS, 1, HEAD_DIM), 0.1),
            "distance_bias": ((HEADS, 1, HEAD_DIM), 0.1),
        },
        "table",
    ),
    "tupe": Scheme(
        _tupe,
        lambda n: {"table": ((n, DIM), 1.0), "left": _SQUARE, "right": _SQUARE, "distances": ((HEADS, 32), 1.0)},
        "distances",
        TUPE_SCALE,
    ),
    "deberta": Scheme(_deberta, lambda n: {"table": ((2 * BUCKETS, DIM), 1.0)}, "table", DEBERTA_SCALE),
    "rope": Scheme(_rope),
}


SAMPLED_ROWS = 48
"""Queries whose outputs are compared with the formula in float64; gradients are those of these outputs."""
Core = Callable[[Tensor, Tensor, Tensor], Tensor]
Gradient = Callable[[], Tensor]
"""Reads the gradient of the scheme's learned weight, in that weight's own shape."""


class AttentionInputs:
    """What every candidate of a case gets: the same input, the same weights, rounded to the problem's dtype."""

    def __init__(self, scheme: Scheme, problem: Workload) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(shape: tuple[int, ...], std: float) -> Tensor:
            return (torch.randn(shape, generator=generator) * std).to(problem.device, problem.dtype)

        self.scheme = scheme
        self.problem = problem
        self.x: Tensor = normal((1, problem.length, DIM), 1.0)
        # scores of standard deviation 1, whatever the scale
        stds = {"q": DIM**-0.5 * HEAD_DIM**-0.5 / scheme.scale, "k": DIM**-0.5, "v": DIM**-0.5, "o": DIM**-0.5}
        self.weights: dict[str, Tensor] = {name: normal((DIM, DIM), std) for name, std in stds.items()}
        self.weights |= {name: normal(shape, std) for name, (shape, std) in scheme.sizes(problem.length).items()}
        self.upstream: Tensor = normal((1, problem.length, DIM), 1.0)
        last = problem.length - 1
        every = torch.linspace(0, last, min(problem.length, SAMPLED_ROWS)).long().unique()
        self.rows: Tensor = (torch.tensor([last]) if problem.mode == "decode" else every).to(problem.device)

    @property
    def asked(self) -> Tensor:
        """The tokens that go through the module: all of them, or the last one."""
        return self.x[:, -1:] if self.problem.mode == "decode" else self.x

    @property
    def learned(self) -> str | None:
        """The weight whose gradient is compared."""
        return self.scheme.learned if self.problem.mode == "train" else None

    def cache(self) -> "KeyValueCache | None":
        """Keys and values of all tokens, where one of them is decoded."""
        if self.problem.mode != "decode":
            return None
        return KeyValueCache(*(heads(self.x @ self.weights[name].mT).contiguous() for name in "kv"))

    def positions(self) -> Positions:
        """Where the tokens are; a model makes this once, for all of its layers."""
        earlier = self.problem.length - 1 if self.problem.mode == "decode" else 0
        options: dict[str, Any] = {"causal": self.scheme.causal, "device": self.problem.device}
        return Positions.arange(self.problem.length - earlier, earlier, **options)

    @cached_property
    def truth(self) -> Tensors:
        """Outputs at the sampled rows, and the gradients of input and learned weight, by the formula in float64."""
        w, x = {name: weight.double() for name, weight in self.weights.items()}, self.x.double()
        leaves = [x, *([w[self.learned]] if self.learned else [])] if self.problem.mode == "train" else []
        for leaf in leaves:
            leaf.requires_grad_()
        q, k, v = heads(x[:, self.rows] @ w["q"].mT), heads(x @ w["k"].mT), heads(x @ w["v"].mT)
        q, k, bias = self.scheme.terms(w, q, k, self.rows)
        scores = q @ k.mT * self.scheme.scale
        scores = scores if bias is None else scores + bias
        if self.scheme.causal:
            scores = scores.masked_fill(hidden(self.rows, k.shape[2]), -torch.inf)
        out = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ w["o"].mT
        grads = torch.autograd.grad(out, leaves, self.upstream[:, self.rows].double()) if leaves else ()
        return out.detach(), *grads


def hidden(rows: Tensor, keys: int) -> Tensor:
    """True where the key comes after the query, (rows, keys)."""
    return torch.arange(keys, device=rows.device) > rows[:, None]


class KeyValueCache:
    """Keys and values with room for the last token, in the interface of transformers' caches. Every step writes the
    same place, so that what is timed does not grow."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values

    def get_seq_length(self, layer: int | None = None) -> int:
        return self.keys.shape[2] - 1

    def update(self, keys: Tensor, values: Tensor, layer: int | None = None) -> tuple[Tensor, Tensor]:
        self.keys[:, :, -1:], self.values[:, :, -1:] = keys, values
        return self.keys, self.values


class RotatedCache(KeyValueCache):
    """A cache of keys as rotated: those of `cache` at once, and each new one as it comes."""

    def __init__(self, cache: KeyValueCache, encoding: Encoding) -> None:
        length = cache.keys.shape[2]
        ids = torch.arange(length, device=cache.keys.device)
        super().__init__(encoding.rotate_keys(cache.keys, Positions.from_ids(ids)), cache.values)
        self.encoding = encoding
        self.newest: Positions = Positions.from_ids(ids[-1:])

    def update(self, keys: Tensor, values: Tensor, layer: int | None = None) -> tuple[Tensor, Tensor]:
        return super().update(self.encoding.rotate_keys(keys, self.newest), values, layer)


class BenchModel(nn.Module):
    """The module round a core, with the case's projections."""

    core: Core

    def __init__(self, inputs: AttentionInputs, own: nn.Module | None = None) -> None:
        """own: what the core has of parameters."""
        super().__init__()
        self.own = own
        self.q: nn.Linear = linear(inputs.weights["q"])
        self.k: nn.Linear = linear(inputs.weights["k"])
        self.v: nn.Linear = linear(inputs.weights["v"])
        self.o: nn.Linear = linear(inputs.weights["o"])
        self.cache: KeyValueCache | None = inputs.cache()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(projection(x)) for projection in (self.q, self.k, self.v))
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        return self.o(self.core(q, k, v).transpose(1, 2).flatten(2))


def linear(weight: Tensor) -> nn.Linear:
    """A projection without bias, of a weight of its own."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight.clone())
    return made


def fill(parameter: Tensor, value: Tensor) -> None:
    """Give a parameter a value of its own, in the parameter's shape."""
    parameter.data = value.clone().reshape(parameter.shape)


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def measured(
    inputs: AttentionInputs, module: nn.Module, learned: Gradient | None = None, compared: bool = True
) -> Built:
    """A module as a candidate. learned: reads the gradient that is compared, where the scheme has one."""
    x = inputs.asked

    if inputs.problem.mode == "train":
        leaf = x.clone().requires_grad_()
        sampled = torch.zeros_like(inputs.upstream)
        sampled[:, inputs.rows] = inputs.upstream[:, inputs.rows]

        def step(upstream: Tensor) -> Tensor:
            module.zero_grad(set_to_none=True)
            leaf.grad = None
            out: Tensor = module(leaf)
            out.backward(upstream)
            return out

        def results() -> Tensors:
            out = step(sampled).detach()[:, inputs.rows]
            assert leaf.grad is not None
            grads = (leaf.grad.clone(), *([learned()] if inputs.learned and learned else []))
            return out, *grads

        run: Callable[[], Tensor] = partial(step, inputs.upstream)
    else:

        def forward() -> Tensor:
            with torch.no_grad():
                return module(x)

        def results() -> Tensors:
            return (forward() if inputs.problem.mode == "decode" else forward()[:, inputs.rows],)

        run = forward
    truth = (lambda: inputs.truth) if compared else None
    return Built(run, results, truth, TOLERANCES[inputs.problem.dtype])


# -------------------------------------------------------------------- candidates of torch alone


def plain(inputs: AttentionInputs) -> Built:
    """The limit: no position at all."""
    host = BenchModel(inputs)
    causal = inputs.scheme.causal and inputs.problem.mode != "decode"
    host.core = partial(scaled_dot_product_attention, is_causal=causal, scale=inputs.scheme.scale)
    return measured(inputs, host, compared=False)


def dense(inputs: AttentionInputs) -> Built:
    """The naive way: the bias as a whole, handed to SDPA as its mask."""
    scheme = inputs.scheme
    own = nn.ParameterDict({name: inputs.weights[name].clone() for name in scheme.sizes(1)})
    host = BenchModel(inputs, own)
    asked, last = inputs.asked.shape[1], inputs.problem.length
    rows = torch.arange(last - asked, last, device=inputs.problem.device)

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = dict(own) | {"q": host.q.weight, "k": host.k.weight}
        q, k, bias = scheme.terms(weights, q, k, rows)
        if bias is None:
            return scaled_dot_product_attention(q, k, v, scale=scheme.scale)
        if scheme.causal:
            bias = bias.masked_fill(hidden(rows, last), -torch.inf)
        return scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), scale=scheme.scale)

    host.core = core

    def learned() -> Tensor:
        return gradient(own[inputs.learned or ""])

    return measured(inputs, host, learned)


def flex(inputs: AttentionInputs) -> Built:
    """FlexAttention, compiled, reading the bias from a vector of distances (ALiBi: computing it)."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    problem, scheme = inputs.problem, inputs.scheme
    if problem.mode == "train" and problem.device.type == "cpu":
        raise Refusal("FlexAttention has no backward pass on the CPU")
    own = nn.ParameterDict({"table": inputs.weights["table"].clone()} if scheme.learned else {})
    host, asked, length = BenchModel(inputs, own), inputs.asked.shape[1], problem.length
    slopes = alibi_slopes(HEADS).to(problem.device, torch.float32)
    if scheme.learned:
        buckets = t5_bucket(torch.arange(1 - length, length, device=problem.device), not scheme.causal)
    before = length - asked

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i + before >= j

    mask = create_block_mask(visible, None, None, asked, length, device=problem.device.type) if scheme.causal else None
    compiled = torch.compile(flex_attention, dynamic=False)

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        vector = own["table"].float()[:, buckets] if scheme.learned else None

        def biased(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if vector is None:
                return s - slopes[h] * (i + before - j)
            return s + vector[h, j - i - before + length - 1]

        return compiled(q, k, v, score_mod=biased, block_mask=mask, scale=scheme.scale)

    host.core = core
    return measured(inputs, host, lambda: gradient(own["table"]))


# -------------------------------------------------------------------- posenc


def ours(
    make: Callable[[AttentionInputs, BenchModel], tuple[Encoding, Gradient | None]], inputs: AttentionInputs
) -> Built:
    """posenc.attention with the case's encoding."""
    host, positions = BenchModel(inputs), inputs.positions()
    encoding, learned = make(inputs, host)
    host.own = encoding.to(inputs.problem.device, inputs.problem.dtype)

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return posenc.attention(q, k, v, encoding, positions)

    host.core = core
    return measured(inputs, host, learned)


def rotated_cache(inputs: AttentionInputs) -> Built:
    """posenc.attention with RoPE over keys that were rotated when they were cached."""
    host, positions = BenchModel(inputs), inputs.positions()
    encoding, _ = rope("interleaved", inputs, host)
    host.own = encoding.to(inputs.problem.device, inputs.problem.dtype)
    assert host.cache is not None  # it decodes only
    host.cache = RotatedCache(host.cache, encoding)
    host.core = partial(posenc.attention, encoding=encoding, positions=positions, keys_rotated=True)
    return measured(inputs, host)


def t5(bidirectional: bool, inputs: AttentionInputs, host: BenchModel) -> tuple[Encoding, Gradient]:
    encoding = posenc.T5(HEADS, bidirectional)
    fill(encoding.table, inputs.weights["table"])
    return encoding, lambda: gradient(encoding.table)


def alibi(inputs: AttentionInputs, host: BenchModel) -> tuple[Encoding, None]:
    return posenc.ALiBi(HEADS), None


def shaw(inputs: AttentionInputs, host: BenchModel) -> tuple[Encoding, Gradient]:
    encoding = posenc.Shaw(HEAD_DIM, HEADS, clip=CLIP, terms="keys")
    assert encoding.key_table is not None
    table = encoding.key_table
    fill(table, inputs.weights["table"])
    return encoding, lambda: gradient(table)[0, 0]


def xlnet(inputs: AttentionInputs, host: BenchModel) -> tuple[Encoding, Gradient]:
    encoding, w = posenc.XLNet(DIM, HEADS, HEAD_DIM), inputs.weights
    fill(encoding.projection.weight, w["table"])
    fill(encoding.u, w["content_bias"])
    fill(encoding.v, w["distance_bias"])
    return encoding, lambda: gradient(encoding.projection.weight).view(DIM, DIM)


def tupe(inputs: AttentionInputs, host: BenchModel) -> tuple[Encoding, Gradient]:
    encoding, w = posenc.TUPER(inputs.problem.length, DIM, HEADS, HEAD_DIM, untie_cls=False), inputs.weights
    fill(encoding.table, w["table"])
    fill(encoding.distances, w["distances"])
    fill(encoding.query.weight, w["left"])
    fill(encoding.key.weight, w["right"])
    return encoding, lambda: gradient(encoding.distances)


def deberta(inputs: AttentionInputs, host: BenchModel) -> tuple[Encoding, Gradient]:
    options: dict[str, Any] = {"max_relative_positions": MOST_RELATIVE, "position_buckets": BUCKETS, "norm": False}
    encoding = posenc.DeBERTaV2(DIM, HEADS, HEAD_DIM, **options)
    encoding.share([(host.q, host.k)])
    fill(encoding.table, inputs.weights["table"])
    return encoding, lambda: gradient(encoding.table)


def rope(layout: posenc.functional.Layout, inputs: AttentionInputs, host: BenchModel) -> tuple[Encoding, None]:
    """The scheme's weights are interleaved; for halves they are reordered, which changes nothing else."""
    for projection in (host.q, host.k):
        weight = posenc.convert_layout(
            inputs.weights["q" if projection is host.q else "k"], HEAD_DIM, "interleaved", layout
        )
        fill(projection.weight, weight)
    if host.cache is not None:
        order = posenc.functional.layout_permutation(HEAD_DIM, "interleaved", layout).to(inputs.problem.device)
        host.cache.keys = host.cache.keys[..., order].contiguous()
    return posenc.Rotary(HEAD_DIM, layout=layout), None


MAKERS: dict[str, Callable[[AttentionInputs, BenchModel], tuple[Encoding, Gradient | None]]] = {
    "t5": partial(t5, True),
    "t5_causal": partial(t5, False),
    "alibi": alibi,
    "shaw": shaw,
    "xlnet": xlnet,
    "tupe": tupe,
    "deberta": deberta,
    "rope": partial(rope, "interleaved"),
}


def prepare(name: str, problem: Workload) -> AttentionInputs:
    return AttentionInputs(SCHEMES[name], problem)
