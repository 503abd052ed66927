# SPDX-License-Identifier: Apache-2.0
"""What queries, keys and positions together add to scores. Distances are query minus key, (.., queries, keys)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, linear, pad, softplus

from posenc.testing.oracles.biases import Distance, key_minus_query


def relative(
    q: Any, table: Any, num_keys: int, *, distance: Distance = key_minus_query, row: Callable[[int, int], int] = lambda r, last: min(max(r, 0), last),
) -> Tensor:  # fmt: skip
    """Scores of queries and positions, (batch, heads, num_queries, num_keys): q_i . table[clip(j - i, -m, m) + m], table (2m + 1,
    head_dim) from the farthest key before the query to the farthest after it (Shaw et al. 2018, eq. 4 and 5; with m =
    num_keys - 1, the second term of Transformer-XL, Dai et al. 2019, section 3.3, and of a Conformer). The queries are the last
    num_queries of num_keys tokens.

    Faults: distance is that of key j and query i; row is the table's for a distance, counted from its first row, and the last one.
    """
    q, table = (torch.as_tensor(x, dtype=torch.float64) for x in (q, table))
    queries, last = q.shape[-2], len(table) - 1
    index = [
        [row(distance(i, j, queries, num_keys) + last // 2, last) for j in range(num_keys)] for i in range(queries)
    ]
    return read(q @ table.mT, torch.tensor(index))


def relative_shift(
    scores: Any, *, column: Distance = lambda i, j, queries, columns: queries - 1 - i + j, keys: Callable[[int, int], int] | None = None,
) -> Tensor:  # fmt: skip
    """(batch, heads, queries, keys) of scores (batch, heads, queries, queries + keys - 1), whose columns run from the farthest
    key before a query to the farthest after it: row i, key j from column queries - 1 - i + j (rel_shift in ESPnet,
    espnet/nets/pytorch_backend/transformer/embedding.py and attention.py, RelPositionMultiHeadedAttention; speechbrain).

    Faults: column is where key j of query i comes from, 0 where there is none; keys is their number, from queries and columns.
    """
    scores = torch.as_tensor(scores, dtype=torch.float64)
    queries, columns = scores.shape[-2:]
    count = columns - queries + 1 if keys is None else keys(queries, columns)
    shifted = scores.new_zeros(*scores.shape[:-1], count)
    for i in range(queries):
        for j in range(count):
            if 0 <= (c := column(i, j, queries, columns)) < columns:
                shifted[..., i, j] = scores[..., i, c]
    return shifted


def relative_shift_causal(scores: Any, **options: Any) -> Tensor:
    """The same for keys up to the query: scores (batch, heads, queries, keys), whose columns run from the farthest key to the
    query itself; any above the diagonal (Dai et al. 2019, appendix B; _rel_shift in kimiyoung/transformer-xl, pytorch/mem_transformer.py;
    the skew of Music Transformer, Huang et al. 2018, section 3.4)."""
    return relative_shift(scores, **{"keys": lambda queries, columns: columns, **options})


def read(scores: Tensor, rows: Tensor) -> Tensor:
    """(.., queries, keys) of scores (.., queries, a table's rows) and the row of each pair, (.., queries, keys)."""
    shape = torch.broadcast_shapes((*scores.shape[:-1], 1), rows.shape)
    return scores.expand(*shape[:-1], -1).gather(-1, rows.expand(shape))


def transformer_xl(q: Tensor, u: Tensor, v: Tensor, keys: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Queries for terms (a) and (c), and terms (b) and (d), unscaled (Dai et al. 2019, section 3.3).

    u, v: (heads, d). keys: W R of the distances that occur, (heads, distances, d), R their sinusoids, all sines first; rows: which of
    them a pair has, (.., queries, keys).
    """
    return q + u[:, None], read((q + v[:, None]) @ keys.mT, rows)


def delta(distance: Tensor, span: int) -> Tensor:
    """Rows of DeBERTa's table (He et al. 2021, eq. 3)."""
    return (distance + span).clamp(0, 2 * span - 1)


def deberta(
    q: Tensor, k: Tensor, queries: Tensor, keys: Tensor, of_keys: Tensor, of_queries: Tensor, terms: Sequence[str] = ("c2p", "p2c")
) -> Tensor:  # fmt: skip
    """The unscaled terms beside content to content (He et al. 2021, eq. 2 and 4). queries, keys: the table's, (heads, rows, d); of_keys,
    of_queries: their rows for each pair, (.., queries, keys)."""
    made = {
        "c2p": lambda: read(q @ keys.mT, of_keys),
        "p2c": lambda: read(k @ queries.mT, of_queries.mT).mT,
        "p2p": lambda: (queries @ keys.mT)[
            torch.arange(len(keys), device=keys.device)[:, None, None], of_queries, of_keys
        ],
    }
    return sum((made[term]() for term in terms[1:]), made[terms[0]]())


def tupe(queries: Tensor, keys: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Products of the table's projected rows, (heads, rows, d), at rows i (.., queries) and j (.., keys): (heads, .., queries, keys), unscaled
    (Ke et al. 2021, eq. 7)."""
    return queries[:, i] @ keys[:, j].mT


def cope(q: Tensor, k: Tensor, embeddings: Tensor, rows: Tensor) -> Tensor:
    """q . e[p], interpolated, p the sum of the gates sigmoid(q . k / sqrt(d)) from the key up to the query, at most the last; any after
    the query (Golovneva et al. 2024, CoPE, eq. 3 to 5). embeddings: (d, counts); rows: which of the keys the queries are at."""
    gates = (q @ k.mT * q.shape[-1] ** -0.5).sigmoid().masked_fill(after(rows, k.shape[-2]), 0.0)
    counts = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=embeddings.shape[-1] - 1)
    of_count, below, above = q @ embeddings, counts.floor(), counts.ceil()
    share = counts - below
    return of_count.gather(-1, below.long()) * (1 - share) + of_count.gather(-1, above.long()) * share


def after(rows: Tensor, keys: int) -> Tensor:
    """True where the key comes after the query, (rows, keys)."""
    return torch.arange(keys, device=rows.device) > rows[:, None]


def projected_relative(x: Tensor, projection: Tensor, table: Tensor, distance: Tensor) -> Tensor:
    """Mixed functions of the distance, 0 outside 0 .. extent - 1 (Inkling, InklingRelativeLogits in transformers). x: of the queries, (batch,
    queries, dim); projection: (heads, profiles, dim); table: (extent, profiles)."""
    mixed = torch.einsum("bnd,hpd->bhnp", x, projection) @ table.mT
    extent = len(table)
    return read(mixed, distance.clamp(0, extent - 1)).masked_fill((distance < 0) | (distance >= extent), 0.0)


def grape_a(k: Tensor, direction: Tensor, strength: Tensor, slopes: Tensor, distance: Tensor) -> Tensor:
    """-|d| slope softplus(omega) softplus(u . k / sqrt(d)), u of length 1 in the paper (Zhang et al. 2025, GRAPE, key-gated). direction (u): (heads, d);
    strength (omega), slopes: (heads,)."""
    gates = softplus((k * direction[:, None]).sum(-1) * k.shape[-1] ** -0.5)
    return -distance.abs() * (gates * (softplus(strength) * slopes)[:, None])[:, :, None]


def tapa(q: Tensor, k: Tensor, distance: Tensor, amplitude: int, alpha: float) -> Tensor:
    """q_A . k_A / sqrt(A) cos(2 pi |d|^alpha q_P . k_P / sqrt(P)) (Wang et al. 2025, TAPA, eq. 12), A the first channels."""
    products = [
        x @ y.mT * x.shape[-1] ** -0.5
        for x, y in ((q[..., part], k[..., part]) for part in (slice(amplitude), slice(amplitude, None)))
    ]
    return products[0] * (2 * torch.pi * distance.abs() ** alpha * products[1]).cos()


def dape(
    scores: Tensor, bias: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, bias_out: Tensor
) -> Tensor:
    """b + MLP of the scores and biases b of all heads at a pair, (batch, heads, queries, keys) each (Zheng et al. 2024, DAPE, eq. 4)."""
    both = torch.cat((scores, bias.expand_as(scores)), 1).movedim(1, -1)
    return bias + linear(leaky_relu(linear(both, weight_in, bias_in)), weight_out, bias_out).movedim(-1, 1)


def selective_attention(queries: Tensor, keys: Tensor) -> Tensor:
    """What the tokens between a key and its query take from it, (batch, 1, n, n), of one head's (batch, n, d): the sum of their scores of
    the key, where positive; none takes from the first token or itself (Leviathan et al. 2025, section 3)."""
    selected = (queries @ keys.mT * keys.shape[-1] ** -0.5).relu().tril(-1)
    selected = torch.cat((torch.zeros_like(selected[..., :1]), selected[..., 1:]), -1)
    return -pad(selected, (0, 0, 1, -1)).cumsum(1)[:, None]
