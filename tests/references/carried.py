"""Wall, PaTH and stick-breaking as loops over pairs of tokens, in float64."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def between(seen: Callable[[int, int], bool], i: int, j: int) -> list[int]:
    """The tokens after key j up to query i that i sees: those of its document that are no padding, in order."""
    return [t for t in range(j + 1, i + 1) if seen(i, t)]


def wall(q: Tensor, k: Tensor, gates: Tensor, tokens: list[int]) -> float:
    """sum_n q_n k_n prod_t f_tn, of a query and a key (d,), logarithms of gates (n, d), and the tokens t between the two."""
    decay = torch.stack([gates[t] for t in tokens]).sum(0).exp() if tokens else torch.ones_like(q)
    return float((q * k * decay).sum())


def path(q: Tensor, k: Tensor, w: Tensor, beta: Tensor, tokens: list[int]) -> float:
    """q^T (product of I - beta_t w_t w_t^T, latest first) k."""
    product = torch.eye(len(q), dtype=torch.float64)
    for t in tokens:
        product = (torch.eye(len(q), dtype=torch.float64) - beta[t] * torch.outer(w[t], w[t])) @ product
    return float(q @ product @ k)


def reflections(raw: Tensor, filters: Tensor | None, document: list[int]) -> Tensor:
    """w of tokens (n, d): a causal filter (size, d) per channel over the tokens of a document, its last tap on the token itself,
    SiLU, then the norm."""
    w = raw.clone()
    if filters is not None:
        for place, t in enumerate(document):
            taps = [filters[len(filters) - 1 - b] * raw[document[place - b]] for b in range(len(filters)) if b <= place]
            y = torch.stack(taps).sum(0)
            w[t] = y / (1 + (-y).exp())
    return torch.stack([x / math.sqrt(float(x @ x) + 1e-6) for x in w])


def sticks(scores: list[float]) -> list[float]:
    """The weights of keys, nearest first: each takes its share of what is left."""
    left, weights = 1.0, []
    for score in scores:
        share = 1 / (1 + math.exp(-score))
        weights.append(share * left)
        left *= 1 - share
    return weights
