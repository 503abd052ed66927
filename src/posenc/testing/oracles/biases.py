# SPDX-License-Identifier: Apache-2.0
"""What a distance adds to scores: slopes, buckets, tables and their rows, and learned functions."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def alibi(num_heads: int, *, first: int = 1) -> list[float]:
    """ALiBi's slopes (Press et al. 2022, section 3; get_slopes in ofirpress/attention_with_linear_biases).

    Faults: first is the number of the first head, expected 1.
    """
    lower = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (h + first) / lower) for h in range(lower)]
    return slopes if lower == num_heads else slopes + alibi(2 * lower, first=first)[0::2][: num_heads - lower]


def t5(
    relative_position: Sequence[int], bidirectional: bool, num_buckets: int, max_distance: int, *,
    cut: Callable[[float], int] = math.floor,
) -> list[int]:  # fmt: skip
    """T5's buckets of key position minus query position (Raffel et al. 2020, section 2.1; _relative_position_bucket in
    mesh_tensorflow/transformer/transformer_layers.py).

    Faults: cut makes a step of the logarithm an integer.
    """
    side = num_buckets // 2 if bidirectional else num_buckets
    exact = side // 2

    def bucket(relative: int) -> int:
        distance = abs(relative) if bidirectional else max(-relative, 0)
        if distance >= exact:
            steps = math.log(distance / exact) / math.log(max_distance / exact) * (side - exact)
            distance = min(exact + cut(round(steps, 9)), side - 1)
        return distance + (side if bidirectional and relative > 0 else 0)

    return [bucket(relative) for relative in relative_position]


def deberta(relative_position: Sequence[int], buckets: int, max_position: int) -> list[int]:
    """DeBERTa-v2's signed log buckets of query position minus key position, for distances below max_position (He et al.
    2021; make_log_bucket_position in microsoft/DeBERTa, deberta/da_utils.py)."""
    middle = buckets // 2

    def bucket(distance: int) -> int:
        if distance <= middle:
            return distance
        steps = math.log(distance / middle) / math.log((max_position - 1) / middle) * (middle - 1)
        return middle + math.ceil(round(steps, 9))

    return [bucket(r) if r >= 0 else -bucket(-r) for r in relative_position]


Distance = Callable[[int, int, int, int], int]


def key_minus_query(i: int, j: int, queries: int, keys: int) -> int:
    """The distance of key j and query i, of which the last one is at the last key."""
    return j - (i + keys - queries)


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
    return torch.einsum("bhid,ijd->bhij", q, table[torch.tensor(index)])


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


def relative_index(
    height: int, width: int, *, stride: Callable[[int, int], int] = lambda h, w: 2 * w - 1, sign: int = 1,
    down: bool = False, first: tuple[int, int] | None = None,
) -> list[list[int]]:  # fmt: skip
    """Rows of a table for the patches of a window, (height * width, height * width): (y_i - y_j + height - 1) * (2 width - 1) + x_i
    - x_j + width - 1 (relative_position_index in microsoft/Swin-Transformer, models/swin_transformer.py).

    Faults: stride is how far apart rows are; sign -1 takes key minus query; down numbers the patches down the columns; first is
    (height - 1, width - 1), what makes distances positive.
    """
    cells = [(n % height, n // height) if down else divmod(n, width) for n in range(height * width)]
    up, left = first or (height - 1, width - 1)
    return [
        [(sign * (yi - yj) + up) * stride(height, width) + sign * (xi - xj) + left for yj, xj in cells]
        for yi, xi in cells
    ]


def relative_index_class(
    height: int, width: int, *, rows: tuple[int, int, int] = (0, 1, 2), **options: Any
) -> list[list[int]]:
    """The same with a class token before the patches, after n = (2 height - 1)(2 width - 1) rows of patches: row n of its
    query to patches, n + 1 of patches to its key, n + 2 of itself (BEiT, microsoft/unilm, beit/modeling_finetune.py).

    Faults: rows are the three's order.
    """
    n, patches = (2 * height - 1) * (2 * width - 1), relative_index(height, width, **options)
    query, key, itself = (n + row for row in rows)
    return [[itself] + [query] * len(patches), *([key, *row] for row in patches)]


# -------------------------------------------------------------------- biases of all pairs


def alibi_bias(
    num_heads: int, num_queries: int, num_keys: int, *, distance: Distance = key_minus_query, first: int = 1
) -> Tensor:
    """ALiBi's bias, (num_heads, num_queries, num_keys): slope times key minus query, the queries being the last of the keys; any
    after the query, and anything added to all keys of one, which the softmax does not see (Press et al. 2022, section 3).

    Faults: distance is that of key j and query i; first as in `alibi`.
    """
    of_pairs = _distances(distance, num_queries, num_keys)
    return torch.tensor(alibi(num_heads, first=first), dtype=torch.float64)[:, None, None] * of_pairs


def t5_bias(
    table: Any, num_queries: int, num_keys: int, bidirectional: bool, max_distance: int, *,
    distance: Distance = key_minus_query, cut: Callable[[float], int] = math.floor,
) -> Tensor:  # fmt: skip
    """T5's bias, (heads, num_queries, num_keys), of a table (num_buckets, heads); the queries are the last of the keys (Raffel et
    al. 2020, section 2.1; compute_bias in transformers' T5Attention).

    Faults: distance is that of key j and query i; cut as in `t5`.
    """
    table = torch.as_tensor(table, dtype=torch.float64)
    of_pairs = _distances(distance, num_queries, num_keys)
    buckets = t5(of_pairs.flatten().tolist(), bidirectional, len(table), max_distance, cut=cut)
    return table[torch.tensor(buckets)].unflatten(0, of_pairs.shape).movedim(-1, 0)


def swin_bias(table: Any, height: int, width: int, **options: Any) -> Tensor:
    """Swin's bias, (heads, height * width, height * width), of a table ((2 height - 1)(2 width - 1), heads) at the rows of
    `relative_index` (Liu et al. 2021, section 3.2)."""
    rows = torch.tensor(relative_index(height, width, **options))
    return torch.as_tensor(table, dtype=torch.float64)[rows.clamp(max=len(table) - 1)].movedim(-1, 0)


def _distances(distance: Distance, queries: int, keys: int) -> Tensor:
    return torch.tensor([[distance(i, j, queries, keys) for j in range(keys)] for i in range(queries)])
