"""Wall, PaTH and stick-breaking as loops over tokens, in float64, and the token layouts that they are tested on."""

import math

import pytest
import torch
from torch import Tensor

from posenc import Positions
from references.calls import CAUSAL

LAYOUTS = CAUSAL | {
    "ragged cache": Positions.arange(2, torch.tensor([1, 4]), causal=True),
    "documents in turns": Positions.packed(document_ids=torch.tensor([[0, 1, 0, 1, 1, 0, 2], [0] * 7]), causal=True),
    "holes": Positions.from_mask([[1, 0, 1, 1, 0, 1, 1], [1] * 7], causal=True),
    "window": Positions.arange(5, 2, causal=True).with_window(2),
    "reordered": Positions.arange(7, causal=True).take([3, 0, 6, 1, 2, 5, 4]),
}
EVERYWHERE = pytest.mark.parametrize("positions", LAYOUTS.values(), ids=LAYOUTS.keys())


def documents(positions: Positions, row: int) -> list[list[int]]:
    """The keys of each document of a row in their order, without padding."""
    found: dict[int, list[int]] = {}
    order, document, valid = (
        None if x is None else x[row % len(x)] for x in (positions.k_order, positions.k_document, positions.valid)
    )
    for t in order.argsort().tolist():
        if valid is None or valid[t]:
            found.setdefault(0 if document is None else int(document[t]), []).append(t)
    return list(found.values())


def between(positions: Positions, row: int, i: int, j: int) -> list[int]:
    """The tokens of their document after key j up to query i, in order."""
    last = int(positions.q_order[row % len(positions.q_order), i])
    order = positions.k_order[row % len(positions.k_order)]
    (together,) = (tokens for tokens in documents(positions, row) if j in tokens)
    return [t for t in together if order[j] < order[t] <= last]


def wall(q: Tensor, k: Tensor, gates: Tensor, tokens: list[int]) -> float:
    """sum_n q_n k_n prod_t f_tn, with the logarithms of all gates (n, d) and the tokens t that count."""
    pairs = enumerate(zip(q, k, strict=True))
    return sum(float(a * b) * math.exp(sum(float(gates[t, n]) for t in tokens)) for n, (a, b) in pairs)


def path(q: Tensor, k: Tensor, w: Tensor, beta: Tensor, tokens: list[int]) -> float:
    """q^T (product of I - beta_t w_t w_t^T, the earliest on the right) k."""
    for t in tokens:
        k = k - beta[t] * w[t] * (w[t] @ k)
    return float(q @ k)


def directions(raw: Tensor, filters: Tensor | None, tokens: list[int]) -> Tensor:
    """w of the tokens of a document among (n, d): a filter (size, d) per channel whose last tap is on the token itself, SiLU, and
    a norm of 1."""
    w = torch.zeros_like(raw)
    for place, t in enumerate(tokens):
        y = raw[t]
        if filters is not None:
            y = sum(tap * raw[tokens[place - back]] for back, tap in enumerate(filters.flip(0)) if back <= place)
            y = y / (1 + (-y).exp())
        w[t] = y / math.sqrt(float(y @ y) + 1e-6)
    return w


def sticks(scores: list[float]) -> list[float]:
    """The weights of keys, nearest first: each takes its share of what is left."""
    left, weights = 1.0, []
    for score in scores:
        share = 1 / (1 + math.exp(-score))
        weights.append(share * left)
        left *= 1 - share
    return weights
