# SPDX-License-Identifier: Apache-2.0
"""What each encoding adds to the scores, as formulas on any rows of the score matrix: the truth, and the naive way.

A formula is given float64 rows to judge the candidates by, and all rows in the problem's dtype to be one of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from posenc.functional import alibi_slopes, deberta_bucket, rotary, sinusoidal, t5_bucket

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
