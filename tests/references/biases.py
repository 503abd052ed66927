"""Biases of distance, context and image offset, as the papers write them: one number at a time."""

import math

from torch import Tensor


def kerple(kind: str, p: float, a: float, distance: float) -> float:
    """Chi et al. 2022: the logarithmic and the power kernel."""
    return -p * math.log(1 + a * abs(distance)) if kind == "log" else -a * abs(distance) ** p


def sandwich(distance: float, head: int, heads: int, dim_bar: int, base: float) -> float:
    """Chi et al. 2023: the product of two sinusoidal codes over the ratio of the head (counted from 0)."""
    total = sum(math.cos(distance / base ** (2 * c / dim_bar)) for c in range(dim_bar // 2))
    return total / (8 * (head + 1) / heads)


def sines(distance: float, length: int, sine_weight: float, cosine_weight: float) -> float:
    """PE(l - r) with PE(l) = (sin, cos)(pi l / length), combined."""
    angle = math.pi * distance / length
    return sine_weight * math.sin(angle) + cosine_weight * math.cos(angle)


def fire(
    i: float, j: float, *, c: float, threshold: float, eps: float,
    weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, bias_out: float,
) -> float:  # fmt: skip
    """Li et al. 2024 with its logarithm and threshold; |distance| for keys after the query."""

    def psi(x: float) -> float:
        return math.log(abs(c * x) + 1)

    x = psi(i - j) / (psi(max(threshold, i)) + eps)
    hidden = [max(0.0, float(w) * x + float(b)) for w, b in zip(weight_in, bias_in, strict=True)]
    return sum(float(w) * h for w, h in zip(weight_out, hidden, strict=True)) + bias_out


def cope(q: Tensor, keys: list[Tensor], embeddings: Tensor) -> float:
    """Golovneva et al. 2024: q . e[p], p = sum of the gates of `keys`, from the key up to the query."""
    gates = [1 / (1 + math.exp(-float(q @ k) / math.sqrt(len(q)))) for k in keys]
    p = min(sum(gates), embeddings.shape[1] - 1)
    below, above = math.floor(p), math.ceil(p)
    z = [float(q @ embeddings[:, n]) for n in (below, above)]
    return (1 - (p - below)) * z[0] + (p - below) * z[1]


def projected(weights: Tensor, profiles: Tensor, distance: float) -> float:
    """Inkling: the token's weights times the values, (profiles, distances), that the profiles have at a distance."""
    return float(weights @ profiles[:, int(distance)]) if 0 <= distance < profiles.shape[1] else 0.0


def grape_a(distance: float, slope: float, omega: float, u: Tensor, k: Tensor) -> float:
    """Zhang et al. 2025, key-gated: both softplus, u of length 1."""
    u = [float(x) / math.sqrt(sum(float(y) ** 2 for y in u)) for x in u]
    gate = math.log1p(math.exp(sum(x * float(y) for x, y in zip(u, k, strict=True)) / math.sqrt(len(u))))
    return -abs(distance) * slope * math.log1p(math.exp(omega)) * gate


def dape(
    head: int, scores: list[float], biases: list[float], weight_in: Tensor, bias_in: Tensor, weight_out: Tensor,
    bias_out: Tensor,
) -> float:  # fmt: skip
    """Zheng et al. 2024: what is added to a head's score, of the scores and biases of all heads at a pair."""
    both = [*scores, *biases]
    hidden = [
        sum(float(w) * x for w, x in zip(row, both, strict=True)) + float(b)
        for row, b in zip(weight_in, bias_in, strict=True)
    ]
    hidden = [x if x > 0 else 0.01 * x for x in hidden]
    return (
        biases[head] + sum(float(w) * x for w, x in zip(weight_out[head], hidden, strict=True)) + float(bias_out[head])
    )


def selective(scores: list[float]) -> float:
    """Leviathan et al. 2025: what the scores of the tokens between a key and its query take from it."""
    return -sum(max(0.0, score) for score in scores)


def grid_alibi(head: int, heads: int, i: list[float], j: list[float]) -> float:
    """Fuller et al. 2023: ALiBi's slopes, for a power of two of heads, times the Euclidean distance of two places."""
    return -(2 ** (-8 * (head + 1) / heads)) * math.dist(i, j)


def swin_row(dy: int, dx: int, height: int, width: int) -> int:
    """The row of Swin's table: offsets numbered from the most negative, row by row."""
    offsets = [(y, x) for y in range(1 - height, height) for x in range(1 - width, width)]
    return offsets.index((dy, dx))


def log_spaced(d: float, size: int) -> float:
    """Liu et al. 2022 as the authors' code has it: offsets scaled to 8, logarithms to base 8."""
    scaled = d / (size - 1) * 8
    return math.copysign(math.log2(abs(scaled) + 1) / math.log2(8), d)


def log_window(dy: float, dx: float, height: int, width: int, weight_in: Tensor, bias_in: Tensor, out: Tensor) -> float:
    """Liu et al. 2022 as the authors' code has it: 16 sigmoid of a perceptron without a bias in its last layer."""
    x = log_spaced(dy, height), log_spaced(dx, width)
    hidden = [
        max(0.0, float(w[0]) * x[0] + float(w[1]) * x[1] + float(b)) for w, b in zip(weight_in, bias_in, strict=True)
    ]
    return 16 / (1 + math.exp(-sum(float(w) * h for w, h in zip(out, hidden, strict=True))))


def cubic_resize(values: list[float], size: int) -> list[float]:
    """One axis resized by cubic convolution (Keys 1981, a = -3/4), half-pixel centres, edges repeated."""

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
