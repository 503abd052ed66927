# SPDX-License-Identifier: Apache-2.0
"""Attention with encodings of 2024 to 2026, causal: their formulas, and implementations in other packages.

Every formula is on any rows of the score matrix, see `bench.attention`. Modules of other packages get the case's
weights; where a package has no module for an encoding, the naive candidate alone is there.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, scaled_dot_product_attention

from bench.attention import (
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
    measured,
    ours,
    plain,
    slopes,
)
from bench.case import Built, Candidate, Case, load
from posenc import encodings
from posenc.testing.oracles import biases, content, gates, rotations

SCALE = HEAD_DIM**-0.5
COUNTS, PROFILES, EXTENT, CHUNK, CONVOLVED = 64, 16, 1024, 512, 3
"""CoPE's embeddings; Inkling's functions of the distance, and how far they reach; tokens of a chunk; tokens of the
convolution of PaTH."""


# ---------------------------------------------------------------- rotations


def _positions(k: Tensor) -> Tensor:
    return torch.arange(k.shape[2], device=k.device)


def _angles(k: Tensor) -> Tensor:
    """RoPE's of all tokens, (n, HEAD_DIM / 2) in float64."""
    return rotations.angles(_positions(k), HEAD_DIM)


def _rotated(q: Tensor, k: Tensor, rows: Tensor, angles: Tensor, layout: str = "half") -> Terms:
    """angles: of all tokens, (1, H, n, pairs)."""
    return rotations.turned(q, angles[:, :, rows], layout), rotations.turned(k, angles, layout), None


def _selective_rope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    down, up, kernel = (w[name][0] for name in ("down", "up", "kernel"))
    return _rotated(
        q, k, rows, gates.selective_rope(w["x"], down, up, kernel, rotations.frequencies(HEAD_DIM, 500000.0))
    )


def _mamba3(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    angles = gates.mamba3_rope(w["x"], w["angle"][0], w["weight"][0], w["bias"][0])
    return _rotated(q, k, rows, angles, "interleaved")


def _carope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return _rotated(q, k, rows, gates.carope(w["x"], w["weight"][0], w["logit"][0], HEAD_DIM // 2))


def _learned_rope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return _rotated(q, k, rows, _angles(k)[None, None] * w["log_scale"].exp())


def _head_rope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    factors = 1.2 + 0.6 * torch.arange(HEADS, device=q.device) / HEADS
    return _rotated(q, k, rows, _angles(k) / factors.double()[None, :, None, None])


def _rope_pp(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    odd = torch.arange(HEADS, device=q.device)[:, None, None] % 2 == 1
    return _rotated(torch.where(odd, rotations.quarter_turn(q), q), k, rows, _angles(k)[None, None])


def _fope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    curve = rotations.frequencies(HEAD_DIM).to(q.device)
    angles = _positions(k)[:, None] * curve[curve >= 2 * math.pi / k.shape[2]]
    cos, sin = (table[None] for table in rotations.fourier(angles, w["cosines"][0], w["sines"][0], HEAD_DIM // 2))
    return rotations.combined(q, cos[:, :, rows], sin[:, :, rows]), rotations.combined(k, cos, sin), None


def _pope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    angles = rotations.angles(_positions(k), 2 * HEAD_DIM)
    of_queries = angles[rows] - w["delta"][0][:, None].clamp(-2 * math.pi, 0)
    return rotations.polar(q, of_queries), rotations.polar(k, angles), None


def _rope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return _rotated(q, k, rows, _angles(k)[None, None])


def _turned_values(v: Tensor, positions: Tensor, sign: int) -> Tensor:
    return rotations.turned(v, sign * rotations.angles(positions, HEAD_DIM))


# ---------------------------------------------------------------- scores


def _forget_gates(w: Weights) -> Tensor:
    return gates.log_gates(w["x"], w["weight"][0], w["logit"][0])


def _fox(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return q, k, gates.fox(_forget_gates(w), rows).to(q)


def _projected_relative(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    x, distance = w["x"][:, rows], _distance(rows, k.shape[2])
    return q, k, content.projected_relative(x, w["projection"][0], w["table"][0], distance)


def _grape_a(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    distance = _distance(rows, k.shape[2])
    return q, k, content.grape_a(k, normalize(w["direction"][0], dim=-1), w["strength"][0], slopes(q), distance)


def _dape(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    p, a = (w[name][0].clamp(min=0.01)[:, None, None] for name in "pa")
    bias = biases.kerple("log", p, a, _distance(rows, k.shape[2]))[None]
    return q, k, content.dape(q @ k.mT * SCALE, bias, *(w[name][0] for name in ("in", "in_bias", "out", "out_bias")))


def _selective_attention(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return q, k, content.selective_attention(w["x"] @ w["q"][:HEAD_DIM].mT, k[:, 0])[:, :, rows]


def _cope(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return q, k, content.cope(q, k, w["embeddings"][0], rows)


def _decays(w: Weights) -> Tensor:
    """Wall's log gates, (1, H, n, HEAD_DIM)."""
    return gates.log_gates(w["x"], w["weight"][0], w["bias"][0]).unflatten(1, (HEADS, -1)).mT


def _wall(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return torch.zeros_like(q), k, gates.wall(q, k, _decays(w), rows) * SCALE


def _factored_wall(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    """Decays from the first token on, which overflow where gates are stronger than those that Wall starts with."""
    sums = _decays(w).cumsum(2)
    return q * sums[:, :, rows].exp(), k * (-sums).exp(), None


def _reflections(w: Weights) -> tuple[Tensor, Tensor]:
    """PaTH's w, (1, H, n, HEAD_DIM), and beta, (1, H, n, 1)."""
    y = linear(w["x"] @ w["down"][0].mT, w["up"][0]).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    beta = 2 * linear(w["x"], w["beta"][0], w["beta_bias"][0]).sigmoid()
    return gates.directions(y, w["filter"][0]), beta.mT[..., None]


def _path(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    return torch.zeros_like(q), k, gates.path(q, k, *_reflections(w), rows) * SCALE


def _all_but_current(w: Weights, q: Tensor, k: Tensor, rows: Tensor) -> Terms:
    current = _distance(rows, k.shape[2]) == 0
    return q, k, torch.zeros_like(current, dtype=q.dtype).masked_fill(current, -torch.inf)[None, None]


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
        _wall, lambda n: encodings.Wall(DIM, num_heads=HEADS, head_dim=HEAD_DIM), _start(weight="weight", bias="bias_in"), "weight", causal=True,
        naive=_factored_wall,
    ),
    "path": Scheme(
        _path, lambda n: encodings.PaTH(DIM, num_heads=HEADS, head_dim=HEAD_DIM, conv_size=CONVOLVED),
        _start(down="down", up="up", filter="filter", beta="beta_weight", beta_bias="beta_bias"), "up", causal=True,
    ),
    "stick_breaking": Scheme(
        _all_but_current, lambda n: encodings.StickBreaking(), causal=True, weigh=gates.broken_sticks
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
    mask = bias.masked_fill(content.after(_positions(k), k.shape[2]), -torch.inf)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _masked(q: Tensor, k: Tensor) -> Tensor:
    """Scaled scores as x-transformers passes them on."""
    lowest = -torch.finfo(q.dtype).max
    return (q @ k.mT * SCALE).masked_fill(content.after(_positions(k), k.shape[2]), lowest)


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
