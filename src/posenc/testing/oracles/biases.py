# SPDX-License-Identifier: Apache-2.0
"""What a distance adds to scores: slopes, buckets, tables and their rows, and learned functions."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.testing.oracles.rotations import OfTensor


def alibi(num_heads: int, *, first: int = 1) -> list[float]:
    """ALiBi's slopes (Press et al. 2022, section 3; get_slopes in ofirpress/attention_with_linear_biases).

    Faults: first is the number of the first head, expected 1.
    """
    lower = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (h + first) / lower) for h in range(lower)]
    return slopes if lower == num_heads else slopes + alibi(2 * lower, first=first)[0::2][: num_heads - lower]


def t5(
    relative_position: Any, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128, *,
    cut: OfTensor = torch.floor,
) -> Tensor:  # fmt: skip
    """T5's buckets of key position minus query position (Raffel et al. 2020, section 2.1; _relative_position_bucket in
    mesh_tensorflow/transformer/transformer_layers.py).

    Faults: cut makes a step of the logarithm an integer.
    """
    relative = torch.as_tensor(relative_position)
    side = num_buckets // 2 if bidirectional else num_buckets
    exact = side // 2
    distance = relative.abs() if bidirectional else (-relative).clamp(min=0)
    steps = (distance.clamp(min=exact).double() / exact).log() / math.log(max_distance / exact) * (side - exact)
    far = (exact + cut(steps.round(decimals=9)).long()).clamp(max=side - 1)
    buckets = torch.where(distance < exact, distance, far)
    return buckets + side * (relative > 0) if bidirectional else buckets


def deberta(relative_position: Any, buckets: int, max_position: int) -> Tensor:
    """DeBERTa-v2's signed log buckets of query position minus key position, for distances below max_position (He et al.
    2021; make_log_bucket_position in microsoft/DeBERTa, deberta/da_utils.py)."""
    relative = torch.as_tensor(relative_position)
    middle, distance = buckets // 2, relative.abs()
    steps = (distance.clamp(min=middle).double() / middle).log() / math.log((max_position - 1) / middle) * (middle - 1)
    far = middle + steps.round(decimals=9).ceil().long()
    return relative.sign() * torch.where(distance <= middle, distance, far)


# -------------------------------------------------------------------- functions of the distance


def kerple(kind: str, p: Tensor | float, a: Tensor | float, distance: Tensor) -> Tensor:
    """-p log(1 + a |d|), or -a |d|^p, of kind "log" and "power" (Chi et al. 2022, KERPLE, section 4)."""
    return -p * (a * distance.abs()).log1p() if kind == "log" else -a * distance.abs().double() ** p


def sandwich(distance: Tensor, num_heads: int, dim_bar: int, base: float) -> Tensor:
    """(.., num_heads, queries, keys) of distances (.., 1, queries, keys): the product of two sinusoidal codes, over 8 (h + 1) /
    num_heads for head h (Chi et al. 2023, eq. 9)."""
    frequencies = torch.tensor([base ** (-2 * c / dim_bar) for c in range(dim_bar // 2)], dtype=torch.float64)
    product = (distance[..., None] * frequencies).cos().sum(-1)
    return product / (8 * torch.arange(1, num_heads + 1).double() / num_heads)[:, None, None]


def sines(distance: Tensor, length: int, sine_weight: Tensor, cosine_weight: Tensor) -> Tensor:
    """PE(l - r) with PE(l) = (sin, cos)(pi l / length), combined (Pham et al. 2020, eq. 5)."""
    angle = math.pi * distance.double() / length
    return sine_weight * angle.sin() + cosine_weight * angle.cos()


def fire(
    i: Tensor, j: Tensor, *, c: float, threshold: float, eps: float, weight_in: Tensor, bias_in: Tensor,
    weight_out: Tensor, bias_out: Tensor,
) -> Tensor:  # fmt: skip
    """(.., heads, queries, keys) of queries at i (.., queries, 1) and keys at j (.., 1, keys): a perceptron (hidden,), (hidden,), (heads,
    hidden), (heads,) of psi(i - j) / (psi(max(threshold, i)) + eps), psi(x) = log(|c x| + 1) (Li et al. 2024, FIRE, eq. 4 and 6)."""

    def psi(x: Tensor) -> Tensor:
        return (c * x).abs().log1p()

    x = psi(i - j) / (psi(i.double().clamp(min=threshold)) + eps)
    return ((x[..., None] * weight_in + bias_in).relu() @ weight_out.mT + bias_out).movedim(-1, -3)


def grid_alibi(num_heads: int, i: Tensor, j: Tensor) -> Tensor:
    """(.., num_heads, queries, keys) of places (.., queries, axes) and (.., keys, axes): slope times the Euclidean distance (Fuller et
    al. 2023, section 3)."""
    return -torch.tensor(alibi(num_heads), dtype=torch.float64)[:, None, None] * torch.cdist(i, j)[..., None, :, :]


def log_window(
    dy: Tensor, dx: Tensor, height: int, width: int, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor
) -> Tensor:
    """(heads, queries, keys) of offsets (queries, keys): 16 sigmoid of a perceptron (hidden, 2), (hidden,), (heads, hidden) of the
    offsets scaled to 8, d -> sign(d) log_8(1 + |d|) (Liu et al. 2022, Swin v2, section 3.3; microsoft/Swin-Transformer, models/swin_transformer_v2.py)."""
    x = torch.stack((log_spaced(dy, height), log_spaced(dx, width)), -1)
    return 16 * ((x @ weight_in.mT + bias_in).relu() @ weight_out.mT).sigmoid().movedim(-1, -3)


def log_spaced(d: Tensor, size: int) -> Tensor:
    """An offset of `log_window`."""
    return d.sign() * (d.double() / (size - 1) * 8).abs().log1p() / math.log(8)


def cubic_resize(values: Sequence[float], size: int) -> list[float]:
    """One axis of a table resized by cubic convolution (Keys 1981, a = -3/4), half-pixel centres, edges repeated."""

    def kernel(x: float) -> float:
        x, a = abs(x), -0.75
        if x <= 1:
            return (a + 2) * x**3 - (a + 3) * x**2 + 1
        return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0

    out = []
    for n in range(size):
        centre = (n + 0.5) * len(values) / size - 0.5
        near = range(math.floor(centre) - 1, math.floor(centre) + 3)
        out.append(sum(kernel(centre - m) * values[min(max(m, 0), len(values) - 1)] for m in near))
    return out


# -------------------------------------------------------------------- tables

Distance = Callable[[int, int, int, int], int]


def key_minus_query(i: int, j: int, queries: int, keys: int) -> int:
    """The distance of key j and query i, of which the last one is at the last key."""
    return j - (i + keys - queries)


def relative_index(
    height: int, width: int, *, sign: int = 1, down: bool = False, first: tuple[int, int] | None = None
) -> list[list[int]]:
    """Rows of a table for the patches of a window, (height * width, height * width): (y_i - y_j + height - 1) * (2 width - 1) + x_i
    - x_j + width - 1 (relative_position_index in microsoft/Swin-Transformer, models/swin_transformer.py).

    Faults: sign -1 takes key minus query; down numbers the patches down the columns; first is
    (height - 1, width - 1), what makes distances positive.
    """
    cells = [(n % height, n // height) if down else divmod(n, width) for n in range(height * width)]
    up, left = first or (height - 1, width - 1)
    return [
        [(sign * (yi - yj) + up) * (2 * width - 1) + sign * (xi - xj) + left for yj, xj in cells] for yi, xi in cells
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
    distance: Distance = key_minus_query, cut: OfTensor = torch.floor,
) -> Tensor:  # fmt: skip
    """T5's bias, (heads, num_queries, num_keys), of a table (num_buckets, heads); the queries are the last of the keys (Raffel et
    al. 2020, section 2.1; compute_bias in transformers' T5Attention).

    Faults: distance is that of key j and query i; cut as in `t5`.
    """
    table = torch.as_tensor(table, dtype=torch.float64)
    of_pairs = _distances(distance, num_queries, num_keys)
    return table[t5(of_pairs, bidirectional, len(table), max_distance, cut=cut)].movedim(-1, 0)


def swin_bias(table: Any, height: int, width: int, **options: Any) -> Tensor:
    """Swin's bias, (heads, height * width, height * width), of a table ((2 height - 1)(2 width - 1), heads) at the rows of
    `relative_index` (Liu et al. 2021, section 3.2)."""
    rows = torch.tensor(relative_index(height, width, **options))
    return torch.as_tensor(table, dtype=torch.float64)[rows.clamp(max=len(table) - 1)].movedim(-1, 0)


def _distances(distance: Distance, queries: int, keys: int) -> Tensor:
    return torch.tensor([[distance(i, j, queries, keys) for j in range(keys)] for i in range(queries)])


def tisa(distance: Tensor, amplitude: Tensor, sharpness: Tensor, centre: Tensor) -> Tensor:
    """TISA's bias of query minus key position, (rows, 1, queries, keys); the kernels of each head are (heads, kernels) (Wennberg and
    Henter 2021, section 4.1, where it is a function of key minus query position)."""
    heads = []
    for of_head in zip(amplitude.tolist(), sharpness.tolist(), centre.tolist(), strict=True):
        terms = [a * torch.exp(-abs(b) * (-distance.double() - c) ** 2) for a, b, c in zip(*of_head, strict=True)]
        heads.append(sum(terms[1:], terms[0]))
    return torch.cat(heads, 1)
