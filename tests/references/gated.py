"""Encodings that read a layer's input, as loops over tokens: forget gates and accumulated angles, from papers and the authors'
code."""

import math
from functools import cache

import torch
from torch import Tensor


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def tokens_up_to(positions, b: int, order: int, document: int | None) -> list[int]:
    """Keys of a document up to an order, the last one last, without padding."""
    row = lambda x, name=None: x[b % len(x)].tolist()  # noqa: E731
    orders = row(positions.k_order)
    valid = [True] * len(orders) if positions.valid is None else row(positions.valid)
    documents = [document] * len(orders) if positions.k_document is None else row(positions.k_document)
    found = [t for t, o in enumerate(orders) if valid[t] and documents[t] == document and o <= order]
    return sorted(found, key=lambda t: orders[t])


def at_query(positions, b: int, i: int) -> list[int]:
    document = None if positions.q_document is None else int(positions.q_document[b % len(positions.q_document), i])
    return tokens_up_to(positions, b, int(positions.q_order[b % len(positions.q_order), i]), document)


def at_key(positions, b: int, j: int) -> list[int]:
    document = None if positions.k_document is None else int(positions.k_document[b % len(positions.k_document), j])
    return tokens_up_to(positions, b, int(positions.k_order[b % len(positions.k_order), j]), document)


def fox(encoding, positions, layer: int = 0):
    """Lin et al. 2025: the sum of log sigmoid(w . x_t + b) over the tokens after the key up to the query."""
    weight, logit = encoding.weight[layer].detach(), encoding.logit[layer].detach()

    def of_call(q, k, seen, x):
        def bias(b, h, i, j):
            between = set(at_query(positions, b, i)) - set(at_key(positions, b, j))
            return sum(math.log(sigmoid(float(weight[h] @ x[b, t] + logit[h]))) for t in between)

        return bias

    return of_call


def turned(x: Tensor, angles: list[float], layout: str) -> Tensor:
    """A vector whose pairs are turned, the first 2 * len(angles) channels."""
    out, pairs = x.clone(), len(angles)
    for c, angle in enumerate(angles):
        a, b = (c, c + pairs) if layout == "half" else (2 * c, 2 * c + 1)
        out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        out[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return out


def accumulated(step, positions, layout: str, kv_heads: int, scale: float = 0.5):
    """What turning adds to the scaled scores. step(h, tokens, x): the angles of the last of the tokens, for a key head."""

    def of_call(q, k, seen, x):
        group = q.shape[1] // kv_heads

        @cache
        def angles(b, h, tokens):
            each = [step(h, tokens[: n + 1], x[b]) for n in range(len(tokens))]
            return [sum(parts) for parts in zip(*each, strict=True)]

        def bias(b, h, i, j):
            of_q, of_k = q[b, h, i], k[b, h // group, j]
            turned_q = turned(of_q, angles(b, h // group, tuple(at_query(positions, b, i))), layout)
            turned_k = turned(of_k, angles(b, h // group, tuple(at_key(positions, b, j))), layout)
            return scale * float(turned_q @ turned_k - of_q @ of_k)

        return bias

    return of_call


def selective(encoding, layer: int = 0):
    """Movahedi et al. 2026, modules/rotary.py: unit groups of x, two projections, a convolution, a gate, a temperature."""
    groups, size, d = encoding.kv_heads, encoding.dim // encoding.kv_heads, encoding.head_dim
    down, up, kernel = (p[layer].detach() for p in (encoding.down, encoding.up, encoding.kernel))

    def unit(x):
        parts = [x[g * size : (g + 1) * size] for g in range(groups)]
        return torch.cat([part / math.sqrt(float(part @ part) + 1e-6) for part in parts])

    def step(h, tokens, x):
        angles = []
        for c in range(d // 2):
            total = 0.0
            for s in range(min(len(tokens), kernel.shape[2])):
                total += float(kernel[h, c, s] * (up[h, c] @ (down @ unit(x[tokens[-1 - s]]))))
            if encoding.gate:
                weight, bias = encoding.gate_weight[layer, h].detach(), encoding.gate_bias[layer, h].detach()
                total *= sigmoid(float(weight @ unit(x[tokens[-1]]) + bias))
            temperature = (
                float(encoding.temperature[c].detach()) if encoding.trainable else encoding.rope_theta ** (-2 * c / d)
            )
            angles.append(total * temperature)
        return angles

    return step


def mamba3(encoding, layer: int = 0):
    """Lahoti et al. 2026, mamba3_mimo_rotary_step.py: angle += tanh(projection) dt pi."""
    angle, weight, bias = (p[layer].detach() for p in (encoding.angle, encoding.weight, encoding.bias_of_dt))

    def step(h, tokens, x):
        here = x[tokens[-1]]
        dt = softplus(float(weight[h] @ here + bias[h]))
        return [math.tanh(float(a @ here)) * dt * math.pi for a in angle]

    return step


def carope(encoding, layer: int = 0):
    """Veisi et al. 2025: powers of 1 / (softplus(w . x) + 1)."""
    weight, logit = encoding.weight[layer].detach(), encoding.logit[layer].detach()

    def step(h, tokens, x):
        f = 1 / (softplus(float(weight[h] @ x[tokens[-1]] + logit[h])) + 1)
        return [f**c for c in range(1, encoding.head_dim // 2 + 1)]

    return step
