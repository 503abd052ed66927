# SPDX-License-Identifier: Apache-2.0
"""Attention with encodings of 2024 to 2026, causal: their formulas, and implementations in other packages.

Every formula is on any rows of the score matrix, see `posenc.lab.bench.attention`. Modules of other packages get the case's
weights; where a package has no module for an encoding, the naive candidate alone is there.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    leaky_relu,
    linear,
    logsigmoid,
    normalize,
    pad,
    scaled_dot_product_attention,
    silu,
    softplus,
)
from torch.utils.checkpoint import checkpoint

from posenc import encodings
from posenc.functional import alibi_slopes, frequency_curve, rotary
from posenc.lab.bench.attention import (
    DIM,
    HEAD_DIM,
    HEADS,
    AttentionInputs,
    BenchModel,
    Core,
    Gradient,
    Scheme,
    Terms,
    Weights,
    _distance,
    dense,
    fill,
    gradient,
    hidden,
    measured,
    ours,
    plain,
)
from posenc.lab.bench.case import Built, Candidate, Case, load

SCALE = HEAD_DIM**-0.5
COUNTS, PROFILES, EXTENT, CHUNK, CONVOLVED, SELECTIVE_STEPS = 64, 16, 1024, 512, 3, 4
"""CoPE's embeddings; Inkling's functions of the distance, and how far they reach; tokens of a chunk; tokens of the
convolutions of PaTH and of selective RoPE."""


# ---------------------------------------------------------------- rotations


def _turned(x: Tensor, angles: Tensor, layout: Any = "half") -> Tensor:
    return rotary(x, angles.cos().to(x), angles.sin().to(x), layout=layout)


def _angles(positions: Tensor) -> Tensor:
    """RoPE's, (n, HEAD_DIM / 2) in float64."""
    return positions[:, None] * frequency_curve(HEAD_DIM).to(positions.device)


def _positions(k: Tensor) -> Tensor:
    return torch.arange(k.shape[2], device=k.device)


def _rotated(q: Tensor, k: Tensor, rows: Tensor, angles: Tensor, layout: Any = "half") -> Terms:
    """angles: of all tokens, (1, H, n, pairs)."""
    return _turned(q, angles[:, :, rows], layout), _turned(k, angles, layout), None


def _selective_rope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    x = w["x"].unflatten(-1, (HEADS, -1))
    x = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).flatten(-2)
    waves = torch.einsum("bnr,hpr->bhnp", x @ w["down"][0].mT, w["up"][0])
    kernel = w["kernel"][0][:, None]  # (H, 1, pairs, steps)
    waves = sum(pad(waves, (0, 0, s, -s)) * kernel[..., s] for s in range(SELECTIVE_STEPS))  # type: ignore[assignment]
    return _rotated(q, k, rows, (waves.double() * frequency_curve(HEAD_DIM, base=500000.0).to(waves.device)).cumsum(2))


def _mamba3(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    step = softplus(linear(w["x"], w["weight"][0], w["bias"][0])).mT[..., None]
    angles = step * math.pi * (w["x"] @ w["angle"][0].mT).tanh()[:, None]
    return _rotated(q, k, rows, angles.double().cumsum(2), "interleaved")


def _carope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    base = 1 / (1 + softplus(linear(w["x"], w["weight"][0], w["logit"][0])).mT[..., None])
    powers = torch.arange(1, HEAD_DIM // 2 + 1, device=base.device)
    return _rotated(q, k, rows, (base.double() ** powers).cumsum(2))


def _learned_rope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return _rotated(q, k, rows, _angles(_positions(k))[None, None] * w["log_scale"].exp())


def _head_rope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    factors = 1.2 + 0.6 * torch.arange(HEADS, device=q.device) / HEADS
    return _rotated(q, k, rows, _angles(_positions(k)) / factors.double()[None, :, None, None])


def _rope_pp(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    first, second = q.chunk(2, -1)
    odd = torch.arange(HEADS, device=q.device)[:, None, None] % 2 == 1
    return _rotated(torch.where(odd, torch.cat((second, -first), -1), q), k, rows, _angles(_positions(k))[None, None])


def _fope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    curve, positions = frequency_curve(HEAD_DIM).to(q.device), _positions(k)
    angles = positions[:, None] * curve[curve >= 2 * math.pi / k.shape[2]]
    cos, sin = angles.cos().to(q) @ w["cosines"][0], angles.sin().to(q) @ w["sines"][0]
    missing = HEAD_DIM // 2 - cos.shape[-1]
    cos, sin = pad(cos, (0, missing), value=1.0)[None], pad(sin, (0, missing))[None]
    return rotary(q, cos[:, :, rows], sin[:, :, rows]), rotary(k, cos, sin), None


def _pope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    angles = _positions(k)[:, None] * frequency_curve(2 * HEAD_DIM).to(q.device)
    of_queries = angles[rows] - w["delta"][0][:, None].clamp(-2 * math.pi, 0)

    def polar(x: Tensor, angles: Tensor) -> Tensor:
        return torch.cat((softplus(x) * angles.cos().to(x), softplus(x) * angles.sin().to(x)), -1)

    return polar(q, of_queries), polar(k, angles), None


def _rope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return _rotated(q, k, rows, _angles(_positions(k))[None, None])


def _turned_values(v: Tensor, positions: Tensor, sign: int) -> Tensor:
    return _turned(v, sign * _angles(positions))


# ---------------------------------------------------------------- scores


def _forget_gates(w: Weights) -> Tensor:
    """log f, (1, H, n)"""
    return logsigmoid(linear(w["x"], w["weight"][0], w["logit"][0])).mT


def _fox(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    sums = _forget_gates(w).double().cumsum(-1)
    return q, k, (sums[:, :, rows, None] - sums[:, :, None]).to(q)


def _projected_relative(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    mixed = torch.einsum("bnd,hpd->bhnp", w["x"][:, rows], w["projection"][0]) @ w["table"][0].mT
    distance = _distance(rows, k.shape[2])
    index = distance.clamp(0, EXTENT - 1).expand(*mixed.shape[:2], *distance.shape)
    return q, k, mixed.gather(-1, index).masked_fill((distance < 0) | (distance >= EXTENT), 0.0)


def _grape_a(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    gates = softplus((k * normalize(w["direction"][0], dim=-1)[:, None]).sum(-1) * SCALE)
    slopes = softplus(w["strength"][0]) * alibi_slopes(HEADS).to(q)
    return q, k, -_distance(rows, k.shape[2]).abs() * (gates * slopes[:, None])[:, :, None]


def _dape(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    p, a = (w[name][0].clamp(min=0.01)[:, None, None] for name in "pa")
    bias = (-p * torch.log1p(a * _distance(rows, k.shape[2]).abs()))[None]
    both = torch.cat((q @ k.mT * SCALE, bias), 1).movedim(1, -1)
    changed = linear(leaky_relu(linear(both, w["in"][0], w["in_bias"][0])), w["out"][0], w["out_bias"][0])
    return q, k, bias + changed.movedim(-1, 1)


def _selective_attention(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    queries = w["x"] @ w["q"][:HEAD_DIM].mT
    selected = (queries @ k[:, 0].mT * SCALE).relu().tril(-1)
    selected = torch.cat((torch.zeros_like(selected[..., :1]), selected[..., 1:]), -1)
    return q, k, -pad(selected, (0, 0, 1, -1)).cumsum(1)[:, None, rows]


def _cope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    gates = torch.sigmoid(q @ k.mT * SCALE).masked_fill(hidden(rows, k.shape[2]), 0.0)
    counts = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=COUNTS - 1)
    of_count, below, above = q @ w["embeddings"][0], counts.floor(), counts.ceil()
    share = counts - below
    return q, k, of_count.gather(-1, below.long()) * (1 - share) + of_count.gather(-1, above.long()) * share


def _wall(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    """Decays from the first token on, which overflow where gates are stronger than those that Wall starts with."""
    gates = logsigmoid(linear(w["x"], w["weight"][0], w["bias"][0])).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    sums = gates.cumsum(2)
    return q * sums[:, :, rows].exp(), k * (-sums).exp(), None


def _reflections(w: Weights) -> tuple[Tensor, Tensor]:
    """PaTH's w, (1, H, n, HEAD_DIM), and beta, (1, H, n, 1)."""
    y = linear(w["x"] @ w["down"][0].mT, w["up"][0]).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    taps = (pad(y, (0, 0, s, -s)) * w["filter"][0][:, CONVOLVED - 1 - s, None] for s in range(CONVOLVED))
    y = silu(sum(taps))  # type: ignore[arg-type]
    beta = 2 * linear(w["x"], w["beta"][0], w["beta_bias"][0]).sigmoid()
    return y * (y.square().sum(-1, keepdim=True) + 1e-6).rsqrt(), beta.mT[..., None]


def _path(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    """Token by token, from the last key to the first."""
    axes, betas = _reflections(w)

    def chunk(carried: Tensor, first: int, end: int) -> tuple[Tensor, Tensor]:
        scores = []
        for t in range(end - 1, first - 1, -1):
            scores.append(carried @ k[:, :, t, :, None])
            moved = carried - (carried @ axes[:, :, t, :, None]) * (betas[:, :, t] * axes[:, :, t])[:, :, None]
            carried = torch.where((rows >= t)[:, None], moved, carried)
        return carried, torch.cat(scores[::-1], -1)

    carried, columns = q, []
    for first in range((k.shape[2] - 1) // 64 * 64, -1, -64):
        end = min(first + 64, k.shape[2])
        carried, scores = checkpoint(chunk, carried, first, end, use_reentrant=False)
        columns.append(scores)
    return torch.zeros_like(q), k, torch.cat(columns[::-1], -1) * SCALE


def _all_but_current(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    current = _distance(rows, k.shape[2]) == 0
    return q, k, torch.zeros_like(current, dtype=q.dtype).masked_fill(current, -torch.inf)[None, None]


def _broken_sticks(scores: Tensor) -> Tensor:
    left = logsigmoid(-scores)
    return scores.sigmoid() * (left.flip(-1).cumsum(-1).flip(-1) - left).exp()


def _chunks(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    other = rows[:, None] // CHUNK != _positions(k) // CHUNK
    return q, k, torch.zeros_like(other, dtype=q.dtype).masked_fill(other, -torch.inf)[None, None]


# ---------------------------------------------------------------- schemes


def _start(**paths: str) -> dict[str, tuple[str, None]]:
    """Parameters that keep the values they start with."""
    return {name: (path, None) for name, path in paths.items()}


FRONTIER: dict[str, Scheme] = {
    "fox": Scheme(
        _fox, lambda n: encodings.FoX(HEADS, dim=DIM, init_bias=5.0), _start(weight="weight", logit="logit"), "weight", causal=True
    ),
    "selective_rope": Scheme(
        _selective_rope, lambda n: encodings.SelectiveRotary(HEAD_DIM, dim=DIM, num_heads=HEADS), _start(down="down", up="up", kernel="kernel"), "kernel",
        causal=True,
    ),
    "mamba3_rope": Scheme(
        _mamba3, lambda n: encodings.Mamba3Rotary(HEAD_DIM, dim=DIM, num_heads=HEADS), _start(angle="angle", weight="weight", bias="bias_of_dt"), "angle",
        causal=True,
    ),
    "carope": Scheme(
        _carope, lambda n: encodings.CARoPE(HEAD_DIM, dim=DIM, num_heads=HEADS), _start(weight="weight", logit="logit"), "weight", causal=True
    ),
    "projected_relative": Scheme(
        _projected_relative, lambda n: encodings.ProjectedRelative(DIM, num_heads=HEADS, profiles=PROFILES, extent=EXTENT),
        {"projection": ("projection.weight", DIM**-0.5), "table": ("table", 1.0)}, "table", causal=True,
    ),
    "grape_a": Scheme(
        _grape_a, lambda n: encodings.GRAPEA(HEADS, head_dim=HEAD_DIM), _start(direction="direction", strength="strength"), "direction",
        causal=True,
    ),
    "dape": Scheme(
        _dape, lambda n: encodings.DAPE(HEADS),
        {**_start(p="adapted.p", a="adapted.a", in_bias="mlp.bias_in", out_bias="mlp.bias_out"),
         "in": ("mlp.weight_in", 0.2), "out": ("mlp.weight_out", 0.2)}, "in", causal=True,
    ),
    "selective_attention": Scheme(_selective_attention, lambda n: encodings.SelectiveAttention(HEAD_DIM), causal=True),
    "wall": Scheme(
        _wall, lambda n: encodings.Wall(DIM, num_heads=HEADS, head_dim=HEAD_DIM), _start(weight="weight", bias="bias_in"), "weight", causal=True
    ),
    "path": Scheme(
        _path, lambda n: encodings.PaTH(DIM, num_heads=HEADS, head_dim=HEAD_DIM, conv_size=CONVOLVED),
        _start(down="down", up="up", filter="filter", beta="beta_weight", beta_bias="beta_bias"), "up", causal=True,
    ),
    "stick_breaking": Scheme(
        _all_but_current, lambda n: encodings.StickBreaking(), causal=True, weigh=_broken_sticks
    ),
    "rope+rove": Scheme(
        _rope, lambda n: encodings.Rotary(HEAD_DIM) + encodings.RoVE(HEAD_DIM), causal=True, turn=_turned_values
    ),
    "cope": Scheme(
        _cope, lambda n: encodings.CoPE(HEAD_DIM, num_counts=COUNTS, scaled=False), {"embeddings": ("embeddings", 0.1)},
        "embeddings", causal=True,
    ),
    "fope": Scheme(
        _fope, lambda n: encodings.FoPE(HEAD_DIM, num_heads=HEADS, train_length=n, trainable=True), _start(cosines="cosines", sines="sines"),
        "cosines", causal=True,
    ),
    "rope_pp": Scheme(_rope_pp, lambda n: encodings.RoPEPlusPlus(HEAD_DIM), causal=True),
    "learned_rope": Scheme(
        _learned_rope, lambda n: encodings.LearnedRotary(HEAD_DIM), {"log_scale": ("log_scale", 0.1)}, "log_scale", causal=True
    ),
    "head_rope": Scheme(_head_rope, lambda n: encodings.HeadRotary(HEAD_DIM, num_heads=HEADS), causal=True),
    "pope": Scheme(_pope, lambda n: encodings.PoPE(HEAD_DIM, num_heads=HEADS), _start(delta="delta"), "delta", causal=True),
    "chunks": Scheme(_chunks, lambda n: encodings.Chunks(CHUNK), causal=True),
}  # fmt: skip
"""By the name of the case."""


# ---------------------------------------------------------------- other packages

Peer = tuple[nn.Module | None, Core, Gradient | None]
"""The parameters of a module of another package, its attention, and the gradient that is compared."""


def _theirs(make: Callable[[AttentionInputs], Peer], inputs: AttentionInputs) -> Built:
    parameters, core, learned = make(inputs)
    host = BenchModel(inputs, parameters)
    host.core = core
    return measured(inputs, host, learned)


def _causal_sdpa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    mask = bias.masked_fill(hidden(_positions(k), k.shape[2]), -torch.inf)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _masked(q: Tensor, k: Tensor) -> Tensor:
    """Scaled scores as x-transformers passes them on."""
    lowest = -torch.finfo(q.dtype).max
    return (q @ k.mT * SCALE).masked_fill(hidden(_positions(k), k.shape[2]), lowest)


def _x_transformers() -> Any:
    return load("x-transformers", "x_transformers.x_transformers")


def _fla(operator: str) -> Callable[..., Any]:
    """The reference in torch of an operator of flash-linear-attention, whose kernels need Triton."""
    file = load("fla-core", file=f"ops/{operator}/naive.py")
    function: Callable[..., Any] = getattr(file, f"naive_{operator}")
    return function


def _parameters(inputs: AttentionInputs) -> nn.ParameterDict:
    return nn.ParameterDict({name: inputs.weights[name].clone() for name in inputs.scheme.parameters})


def _as_theirs(*xs: Tensor) -> list[Tensor]:
    """(1, H, n, ..) -> (1, n, H, ..)"""
    return [x.transpose(1, 2) for x in xs]


def _x_fox(inputs: AttentionInputs) -> Peer:
    module = _x_transformers().DataDependentAlibi(DIM, HEADS)
    gate = module.to_forget_gates[0]
    fill(gate.weight, inputs.weights["weight"])
    fill(gate.bias, inputs.weights["logit"])
    return module, lambda x, q, k, v: _causal_sdpa(q, k, v, module(x)), lambda: gradient(gate.weight)[None]


def _fla_fox(inputs: AttentionInputs) -> Peer:
    attend, weights = _fla("forgetting_attn"), _parameters(inputs)

    def core(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        gates = _forget_gates(dict(weights) | {"x": x})
        out: Tensor = attend(*_as_theirs(q, k, v), gates.mT)
        return out.transpose(1, 2)

    return weights, core, lambda: gradient(weights["weight"])


def _fla_path(inputs: AttentionInputs) -> Peer:
    attend, weights = _fla("path_attn"), _parameters(inputs)

    def core(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        axes, beta = _reflections(dict(weights) | {"x": x})
        tokens = _as_theirs(q, k, v, axes, beta[..., 0])
        out: Tensor = attend(*tokens, torch.zeros_like(tokens[-1]), SCALE)
        return out.transpose(1, 2)

    return weights, core, lambda: gradient(weights["up"])


def _fla_stick_breaking(inputs: AttentionInputs) -> Peer:
    attend = _fla("stickbreaking_attn")

    def core(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = attend(*_as_theirs(q, k, v))[0]
        return out.transpose(1, 2)

    return None, core, None


def _inkling(inputs: AttentionInputs) -> Peer:
    modeling = load("transformers", "transformers.models.inkling.modeling_inkling")
    module, projection = modeling.InklingRelativeLogits(PROFILES, EXTENT), nn.Linear(DIM, HEADS * PROFILES, bias=False)
    fill(module.proj, inputs.weights["table"][0].mT)
    fill(projection.weight, inputs.weights["projection"])
    positions = torch.arange(inputs.problem.length, device=inputs.problem.device)

    def core(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed = projection(x).unflatten(-1, (HEADS, PROFILES))
        return _causal_sdpa(q, k, v, module(mixed, positions, positions))

    return nn.ModuleList([module, projection]), core, lambda: gradient(module.proj).mT[None]


def _x_projected_relative(inputs: AttentionInputs) -> Peer:
    module = _x_transformers().RelativeProjPositionalBias(DIM, HEADS, num_distance_basis=PROFILES, max_dist=EXTENT)
    fill(module.distance_bank, inputs.weights["table"][0].mT)
    fill(module.to_distance_weights[0].weight, inputs.weights["projection"])
    nn.init.zeros_(module.to_distance_weights[0].bias)
    return module, lambda x, q, k, v: _causal_sdpa(q, k, v, module(x)), lambda: gradient(module.distance_bank).mT[None]


def _x_selective_attention(inputs: AttentionInputs) -> Peer:
    select = load("x-transformers", "x_transformers.attend").selective_attn
    return None, lambda x, q, k, v: select(_masked(q, k)).softmax(-1) @ v, None


def _x_cope(inputs: AttentionInputs) -> Peer:
    module = _x_transformers().CoPE(HEAD_DIM, HEADS, COUNTS)
    fill(module.pos_emb, inputs.weights["embeddings"][0].mT)

    def core(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = _masked(q, k)
        out: Tensor = (scores + module(q, scores)).softmax(-1) @ v
        return out

    return module, core, lambda: gradient(module.pos_emb).mT[None]


def _x_pope(inputs: AttentionInputs) -> Peer:
    theirs = _x_transformers()
    module = theirs.PolarEmbedding(HEAD_DIM, HEADS)
    fill(module.learned_bias, inputs.weights["delta"])
    positions = torch.arange(inputs.problem.length, device=inputs.problem.device)

    def core(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        angles, bias = module(positions)
        q, k = theirs.apply_polar_pos_emb(q, angles), theirs.apply_polar_pos_emb(k, angles + bias)
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE)

    return module, core, lambda: gradient(module.learned_bias).transpose(0, 1)


# ---------------------------------------------------------------- cases


def _case(name: str, summary: str, naive_bytes: int | None, *others: Candidate) -> Case:
    """naive_bytes: per score and head; 0: it is rotations alone; None: there is no naive candidate."""
    candidates = [Candidate("plain SDPA", plain), Candidate("posenc", ours)]
    if naive_bytes is not None:
        title = "naive, on all pairs" if naive_bytes else "naive rotation, then SDPA"
        candidates.append(Candidate(title, dense, score_bytes=naive_bytes * HEADS))
    prepare = partial(AttentionInputs, FRONTIER[name])
    return Case(name, "frontier", summary, prepare, (*candidates, *others), ("forward", "train"), ("float32",))


def _peer(name: str, package: str, make: Callable[[AttentionInputs], Peer], bytes: int) -> Candidate:
    """bytes: per score and head."""
    return Candidate(f"{package} {name}", partial(_theirs, make), package, ("forward", "train"), bytes * HEADS)


FRONTIER_CASES = (
    _case(
        "fox", "forget gates that start at sigmoid(5)", 12,
        _peer("DataDependentAlibi", "x-transformers", _x_fox, 16), _peer("naive", "fla-core", _fla_fox, 20),
    ),
    _case("selective_rope", "rotation by angles of the tokens, convolved", 0),
    _case("mamba3_rope", "Mamba-3's rotation of half the channels", 0),
    _case("carope", "context-aware RoPE", 0),
    _case(
        "projected_relative", f"Inkling's bias, {PROFILES} functions of the distance up to {EXTENT}", 16,
        _peer("Inkling", "transformers", _inkling, 20),
        _peer("RelativeProjPositionalBias", "x-transformers", _x_projected_relative, 20),
    ),
    _case("grape_a", "ALiBi with slopes that keys set", 12),
    _case("dape", "KERPLE's bias, changed by an MLP of all heads' scores", 60),
    _case(
        "selective_attention", "tokens that score keys for later queries", 12,
        _peer("selective_attn", "x-transformers", _x_selective_attention, 16),
    ),
    _case("wall", "a decay for each channel; the naive one overflows where gates are strong", 0),
    _case("path", "a reflection for each token", None, _peer("naive", "fla-core", _fla_path, 20)),
    _case(
        "stick_breaking", "shares of what nearer keys have left", 24, _peer("naive", "fla-core", _fla_stick_breaking, 28)
    ),
    _case("rope+rove", "RoPE, and rotated values", 0),
    _case("cope", f"contextual positions, {COUNTS} embeddings", 40, _peer("CoPE", "x-transformers", _x_cope, 44)),
    _case("fope", "RoPE of learned sums of frequencies", 0),
    _case("rope_pp", "RoPE++: real and imaginary heads", 0),
    _case("learned_rope", "RoPE with learned frequencies", 0),
    _case("head_rope", "RoPE with frequencies for each head", 0),
    _case("pope", "polar codes, twice as wide", 0, _peer("PolarEmbedding", "x-transformers", _x_pope, 0)),
    _case("chunks", f"chunks of {CHUNK} tokens, as in three of four layers of Llama 4", 12),
)  # fmt: skip
