# SPDX-License-Identifier: Apache-2.0
"""Attention at module level: four projections around a core, x (1, n, 512) -> (1, n, 512), with 8 heads of width 64.

What each encoding adds to the scores is a formula of `posenc.testing.oracles` on any rows of the score matrix. On sampled rows
in float64 it is what candidates are compared with; on all rows, in the problem's dtype, it is the naive candidate.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, scaled_dot_product_attention

from bench.case import TOLERANCES, Built, Refusal, Tensors, Workload, sampled
from posenc import encodings, functional
from posenc.attention import attention
from posenc.encoding import Encoding, gates_of
from posenc.positions import Positions
from posenc.pretrained.convert import convert_layout
from posenc.testing.oracles import biases, codes, content
from posenc.testing.oracles.attention import attend, softmax
from posenc.testing.oracles.rotations import angles, turned

DIM, HEADS, HEAD_DIM = 512, 8, 64
CLIP, BUCKETS, MOST_RELATIVE = 64, 256, 512
"""Shaw's clip; DeBERTa's logarithmic buckets, and the distance that they reach."""

Weights = Mapping[str, Tensor]
Terms = tuple[Tensor, Tensor, Tensor | None]
Formula = Callable[[Weights, Tensor, Tensor, Tensor], Terms]
"""(weights, queries of some rows, all keys, the rows) -> queries and keys as compared, and the bias (1, H, rows, keys)
added to their scaled product. The weights also have "x", the module's input."""


@dataclass(frozen=True)
class Scheme:
    """An encoding in attention: its formula, its weights, and posenc's encoding.

    make: posenc's encoding for a length. parameters: name -> its parameter's path, and the standard deviation of its values;
    None: those it starts with. learned: the one whose gradient is compared. scale: of the product of queries and keys.
    weigh: makes weights of scores, hidden ones -inf; None: the softmax. turn: turns values (1, H, n, HEAD_DIM) at these
    positions, and outputs back where its last argument is -1. naive: what the naive candidate computes, where it is not the formula.
    """

    terms: Formula
    make: Callable[[int], Encoding]
    parameters: Mapping[str, tuple[str, float | None]] = field(default_factory=dict)
    learned: str | None = None
    scale: float = HEAD_DIM**-0.5
    causal: bool = False
    weigh: Callable[[Tensor], Tensor] | None = None
    turn: Callable[[Tensor, Tensor, int], Tensor] | None = None
    naive: Formula | None = None

    def attended(self, w: Weights, q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
        """The formula: outputs (1, H, rows, HEAD_DIM) of the queries of some rows, all keys and values."""
        q, k, bias = self.terms(w, q, k, rows)
        every = torch.arange(k.shape[2], device=v.device)
        visible = ~content.after(rows, k.shape[2]) | (not self.causal)
        v = v if self.turn is None else self.turn(v, every, 1)
        bias = torch.zeros((), device=v.device) if bias is None else bias
        out = attend(q, k, v, scale=self.scale, visible=visible, bias=bias, weigh=self.weigh or softmax)
        return out if self.turn is None else self.turn(out, rows, -1)


def heads(x: Tensor) -> Tensor:
    """(batch, n, HEADS * HEAD_DIM) -> (batch, HEADS, n, HEAD_DIM)"""
    return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)


def _distance(rows: Tensor, keys: int) -> Tensor:
    """Query position minus key position, (rows, keys)."""
    return rows[:, None] - torch.arange(keys, device=rows.device)


def _by_distance(values: Tensor, rows: Tensor, keys: int) -> Tensor:
    """(.., rows, keys) of values (.., 2 keys - 1) of the distances key minus query, 1 - keys .. keys - 1."""
    return values[..., keys - 1 - _distance(rows, keys)]


def _differences(k: Tensor) -> Tensor:
    """The distances of keys, 1 - keys .. keys - 1."""
    return torch.arange(1 - k.shape[2], k.shape[2], device=k.device)


def _t5_bias(table: Tensor, k: Tensor, rows: Tensor, bidirectional: bool) -> Tensor:
    return _by_distance(table[:, biases.t5(_differences(k), bidirectional)], rows, k.shape[2])[None]


def _t5(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return q, k, _t5_bias(w["table"], k, rows, bidirectional=True)


def _t5_causal(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return q, k, _t5_bias(w["table"], k, rows, bidirectional=False)


def slopes(like: Tensor) -> Tensor:
    """ALiBi's, (HEADS,)."""
    return torch.tensor(biases.alibi(HEADS)).to(like)


def _alibi(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return q, k, (-slopes(q)[:, None, None] * _distance(rows, k.shape[2]).abs())[None]


def _shaw(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    index = content.shaw_rows(_distance(rows, k.shape[2]), CLIP, CLIP)
    return q, k, content.read(q @ w["table"].mT * HEAD_DIM**-0.5, index)


def _xlnet(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    keys = codes.sinusoidal(_differences(k).flip(0), DIM, 10000.0, layout="concat").to(q) @ w["table"].mT
    index = k.shape[2] - 1 - _distance(rows, k.shape[2])
    queries, bias = content.transformer_xl(q, w["content_bias"][0], w["distance_bias"][0], keys, index)
    return queries, k, bias * HEAD_DIM**-0.5


def _deberta(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    buckets = biases.deberta(-_differences(k), BUCKETS, MOST_RELATIVE)
    index = _by_distance((buckets + BUCKETS).clamp(0, 2 * BUCKETS - 1), rows, k.shape[2])
    queries, keys = (heads((w["table"] @ w[name].mT)[None])[0] for name in ("q", "k"))
    return q, k, content.deberta(q, k, queries, keys, index, index) * DEBERTA_SCALE


def _tupe(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    absolute = layer_norm(w["table"], (DIM,))
    left, right = ((absolute @ w[name].mT)[0] for name in ("left", "right"))
    between = content.tupe(left, right, rows, torch.arange(k.shape[2], device=rows.device))[None] * TUPE_SCALE
    return q, k, between + _t5_bias(w["distances"], k, rows, bidirectional=True)


def _rope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    turns = angles(torch.arange(k.shape[2], device=q.device), HEAD_DIM)
    return turned(q, turns[rows], "interleaved"), turned(k, turns, "interleaved"), None


DEBERTA_SCALE = (3 * HEAD_DIM) ** -0.5
TUPE_SCALE = (2 * HEAD_DIM) ** -0.5
_TABLE = {"table": ("table", 1.0)}
_SHAW = {"table": ("key_table", 1.0)}
_XLNET = {"table": ("projection.weight", DIM**-0.5), "content_bias": ("u", 0.1), "distance_bias": ("v", 0.1)}
_TUPE = {
    "table": ("table", 1.0),
    "left": ("query.weight", DIM**-0.5),
    "right": ("key.weight", DIM**-0.5),
    "distances": ("distances", 1.0),
}


def _make_deberta(length: int) -> Encoding:
    return encodings.DeBERTaV2(
        DIM,
        num_heads=HEADS,
        head_dim=HEAD_DIM,
        max_relative_positions=MOST_RELATIVE,
        position_buckets=BUCKETS,
        norm=False,
    )


SCHEMES: dict[str, Scheme] = {
    "t5": Scheme(_t5, lambda n: encodings.T5(HEADS), _TABLE, "table", 1.0),
    "t5_causal": Scheme(
        _t5_causal, lambda n: encodings.T5(HEADS, bidirectional=False), _TABLE, "table", 1.0, causal=True
    ),
    "alibi": Scheme(_alibi, lambda n: encodings.ALiBi(HEADS), causal=True),
    "shaw": Scheme(_shaw, lambda n: encodings.Shaw(HEAD_DIM, num_heads=HEADS, clip=CLIP, terms="keys"), _SHAW, "table"),
    "xlnet": Scheme(_xlnet, lambda n: encodings.XLNet(DIM, num_heads=HEADS, head_dim=HEAD_DIM), _XLNET, "table"),
    "tupe": Scheme(
        _tupe,
        lambda n: encodings.TUPER(n, dim=DIM, num_heads=HEADS, head_dim=HEAD_DIM, untie_cls=False),
        _TUPE,
        "distances",
        TUPE_SCALE,
    ),
    "deberta": Scheme(_deberta, _make_deberta, _TABLE, "table", DEBERTA_SCALE),
    "rope": Scheme(_rope, lambda n: encodings.Rotary(HEAD_DIM, layout="interleaved")),
}
"""By the name of the case. RoPE's weights are interleaved."""


Core = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(x, queries, keys, values) -> outputs."""
Gradient = Callable[[], Tensor]
"""Reads the gradient of the scheme's learned weight, in that weight's shape."""


class AttentionInputs:
    """What every candidate of a case shares: the same input, the same weights, rounded to the problem's dtype."""

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
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            encoding = scheme.make(problem.length)
        for name, (path, spread) in scheme.parameters.items():
            start = encoding.get_parameter(path).detach()
            self.weights[name] = start.to(self.x) if spread is None else normal(start.shape, spread)
        self.upstream: Tensor = normal((1, problem.length, DIM), 1.0)
        rows = self.query_rows
        self.rows: Tensor = rows[sampled(len(rows), problem.device)]

    @property
    def tokens(self) -> Tensor:
        """The tokens that go through the module: all of them, or the last one."""
        return self.x[:, -1:] if self.problem.mode == "decode" else self.x

    @property
    def query_rows(self) -> Tensor:
        """The rows of the score matrix that the module computes."""
        return torch.arange(self.problem.length, device=self.problem.device)[-self.tokens.shape[1] :]

    @property
    def learned(self) -> str | None:
        """The weight whose gradient is compared."""
        return self.scheme.learned if self.problem.mode == "train" else None

    def cache(self) -> "KeyValueCache | None":
        """Keys and values of all tokens, where one of them is decoded."""
        if self.problem.mode != "decode":
            return None
        keys, values = (heads(self.x @ self.weights[name].mT).contiguous() for name in "kv")
        return KeyValueCache(keys, values)

    def positions(self) -> Positions:
        """Where the tokens are; a model makes this once, for all of its layers."""
        count, device = self.tokens.shape[1], self.problem.device
        return Positions.arange(count, self.problem.length - count, causal=self.scheme.causal, device=device)

    @cached_property
    def truth(self) -> Tensors:
        """Outputs at the sampled rows, and the gradients of input and learned weight, by the formula in float64."""
        w, x = {name: weight.double() for name, weight in self.weights.items()}, self.x.double()
        leaves = [x, *([w[self.learned]] if self.learned else [])] if self.problem.mode == "train" else []
        for leaf in leaves:
            leaf.requires_grad_()
        q, k, v = heads(x[:, self.rows] @ w["q"].mT), heads(x @ w["k"].mT), heads(x @ w["v"].mT)
        out = self.scheme.attended(w | {"x": x}, q, k, v, self.rows).transpose(1, 2).flatten(2) @ w["o"].mT
        grads = torch.autograd.grad(out, leaves, self.upstream[:, self.rows].double()) if leaves else ()
        return out.detach(), *grads


class KeyValueCache:
    """Keys and values with room for the last token, in the interface of transformers' caches. Every step writes the
    same entry, so that what is timed does not grow. rotate: is applied to each new key before it is stored."""

    def __init__(self, keys: Tensor, values: Tensor, rotate: Callable[[Tensor], Tensor] = lambda keys: keys) -> None:
        self.keys = keys
        self.values = values
        self.rotate = rotate

    def get_seq_length(self, layer: int | None = None) -> int:
        return self.keys.shape[2] - 1

    def update(self, keys: Tensor, values: Tensor, layer: int | None = None) -> tuple[Tensor, Tensor]:
        self.keys[:, :, -1:], self.values[:, :, -1:] = self.rotate(keys), values
        return self.keys, self.values


class BenchModel(nn.Module):
    """The module around a core, with the case's projections."""

    core: Core

    def __init__(self, inputs: AttentionInputs, parameters_of_core: nn.Module | None = None) -> None:
        super().__init__()
        self.parameters_of_core = parameters_of_core
        self.q: nn.Linear = linear(inputs.weights["q"])
        self.k: nn.Linear = linear(inputs.weights["k"])
        self.v: nn.Linear = linear(inputs.weights["v"])
        self.o: nn.Linear = linear(inputs.weights["o"])
        self.cache: KeyValueCache | None = inputs.cache()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(projection(x)) for projection in (self.q, self.k, self.v))
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        return self.o(self.core(x, q, k, v).transpose(1, 2).flatten(2))


def linear(weight: Tensor) -> nn.Linear:
    """A projection without bias, of a copy of a weight."""
    projection = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    projection.weight = nn.Parameter(weight.clone())
    return projection


def fill(parameter: Tensor, value: Tensor) -> None:
    """Set a parameter to a copy of a value, in the parameter's shape."""
    parameter.data = value.clone().reshape(parameter.shape)


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def measured(inputs: AttentionInputs, module: nn.Module, learned: Gradient | None = None) -> Built:
    """A module as a candidate. learned: reads the gradient that is compared, where the scheme has one."""
    mode = inputs.problem.mode
    x = inputs.tokens.clone().requires_grad_(mode == "train")

    def step(upstream: Tensor) -> Tensor:
        if mode != "train":
            with torch.no_grad():
                return module(x)
        module.zero_grad(set_to_none=True)
        x.grad = None
        out: Tensor = module(x)
        out.backward(upstream)
        return out

    def results() -> Tensors:
        sampled = torch.zeros_like(inputs.upstream)
        sampled[:, inputs.rows] = inputs.upstream[:, inputs.rows]
        out = step(sampled).detach()
        out = out if mode == "decode" else out[:, inputs.rows]
        of_input = [gradient(x).clone()] if x.requires_grad else []
        return out, *of_input, *([learned()] if inputs.learned and learned else [])

    return Built(partial(step, inputs.upstream), results, lambda: inputs.truth, TOLERANCES[inputs.problem.dtype])


# -------------------------------------------------------------------- candidates of torch alone


def plain(inputs: AttentionInputs) -> Built:
    """The limit: no position at all."""
    host = BenchModel(inputs)
    causal = inputs.scheme.causal and inputs.problem.mode != "decode"
    host.core = lambda x, q, k, v: scaled_dot_product_attention(q, k, v, is_causal=causal, scale=inputs.scheme.scale)
    return replace(measured(inputs, host), truth=None)


def dense(inputs: AttentionInputs) -> Built:
    """The naive way: the full bias, passed to SDPA as its mask; where weights are no softmax, the formula on all rows."""
    scheme, rows, length = inputs.scheme, inputs.query_rows, inputs.problem.length
    every = torch.arange(length, device=rows.device)
    weights = nn.ParameterDict({name: inputs.weights[name].clone() for name in scheme.parameters})
    host = BenchModel(inputs, weights)

    def core(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        w = dict(weights) | {"q": host.q.weight, "k": host.k.weight, "x": x}
        if scheme.weigh is not None:
            return scheme.attended(w, q, k, v, rows)
        q, k, bias = (scheme.naive or scheme.terms)(w, q, k, rows)
        if scheme.turn is not None:
            v = scheme.turn(v, every, 1)
        causal = scheme.causal and q.shape[2] > 1
        if bias is not None and causal:
            bias, causal = bias.masked_fill(content.after(rows, length), -torch.inf), False
        mask = None if bias is None else bias.to(q.dtype)
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scheme.scale)
        return out if scheme.turn is None else scheme.turn(out, rows, -1)

    host.core = core
    return measured(inputs, host, lambda: gradient(weights[inputs.learned or ""]))


MOST_FLEX = 2048
"""Tokens of FlexAttention on a CPU."""


def flex(inputs: AttentionInputs) -> Built:
    """FlexAttention, compiled, reading the bias from a vector of distances (ALiBi: computing it)."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    problem, scheme, count, length = inputs.problem, inputs.scheme, inputs.tokens.shape[1], inputs.problem.length
    if problem.device.type == "cpu":
        if problem.mode == "train":
            raise Refusal("FlexAttention has no backward pass on the CPU")
        if length > MOST_FLEX:
            raise Refusal(f"not run beyond {MOST_FLEX} tokens: compiled again for each length, seconds a time")
    weights = nn.ParameterDict({"table": inputs.weights["table"].clone()} if scheme.learned else {})
    host, before = BenchModel(inputs, weights), length - count
    of_heads = slopes(inputs.x.float())
    buckets = biases.t5(torch.arange(1 - length, length, device=problem.device), not scheme.causal)

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i + before >= j

    mask = create_block_mask(visible, None, None, count, length, device=problem.device.type) if scheme.causal else None
    compiled = torch.compile(flex_attention, dynamic=False)

    def core(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        vector = weights["table"].float()[:, buckets] if scheme.learned else None

        def biased(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if vector is None:
                return s - of_heads[h] * (i + before - j)
            return s + vector[h, j - i - before + length - 1]

        return compiled(q, k, v, score_mod=biased, block_mask=mask, scale=scheme.scale)

    host.core = core
    return measured(inputs, host, lambda: gradient(weights["table"]))


# -------------------------------------------------------------------- posenc


def ours(inputs: AttentionInputs, half: bool = False, rotated_cache: bool = False) -> Built:
    """posenc.attention with the case's encoding. half: RoPE in halves, for which the projections are reordered.
    rotated_cache: RoPE's keys are cached rotated."""
    scheme, host, positions = inputs.scheme, BenchModel(inputs), inputs.positions()
    encoding = scheme.make(inputs.problem.length)
    if half:
        encoding = encodings.Rotary(HEAD_DIM, layout="half")
        for projection in (host.q, host.k):
            fill(
                projection.weight,
                convert_layout(projection.weight.data, HEAD_DIM, source="interleaved", target="half"),
            )
        if host.cache is not None:
            order = functional.layout_permutation(HEAD_DIM, source="interleaved", target="half").to(
                inputs.problem.device
            )
            host.cache.keys = host.cache.keys[..., order].contiguous()
    encoding.share([(host.q, host.k)])
    for name, (path, _) in scheme.parameters.items():
        fill(encoding.get_parameter(path), inputs.weights[name])
    host.parameters_of_core = encoding.to(inputs.problem.device, inputs.problem.dtype)
    if rotated_cache and (cache := host.cache) is not None:
        ids = torch.arange(cache.keys.shape[2], device=cache.keys.device)
        rotated = encoding.rotate_keys(cache.keys, Positions.from_ids(ids))
        rotate = partial(encoding.rotate_keys, positions=Positions.from_ids(ids[-1:]))
        host.cache = KeyValueCache(rotated, cache.values, rotate)

    def core(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        gates = gates_of(encoding, x)
        return attention(q, k, v, encoding, positions, gates=gates, keys_rotated=rotated_cache)

    host.core = core

    def learned() -> Tensor:
        return gradient(encoding.get_parameter(scheme.parameters[inputs.learned or ""][0]))

    return measured(inputs, host, learned)
