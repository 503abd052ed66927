"""Formulas of the absolute family, one entry at a time, from their papers."""

import cmath
import math
from collections.abc import Sequence

Table = Sequence[Sequence[float]]


def hierarchical(table: Table, position: int, alpha: float) -> list[float]:
    """Su 2020, kexue.fm/archives/7947, with positions from 0: q = alpha u_i + (1 - alpha) u_j at i n + j."""
    i, j = divmod(position, len(table))
    u = [[(p - alpha * first) / (1 - alpha) for p, first in zip(row, table[0], strict=True)] for row in table]
    return [alpha * coarse + (1 - alpha) * fine for coarse, fine in zip(u[i], u[j], strict=True)]


def axial(first: Table, second: Table, position: int) -> list[float]:
    """Kitaev et al. 2020: a row of either table, side by side."""
    return [*first[position // len(second)], *second[position % len(second)]]


def mae(y: float, x: float, dim: int, base: float) -> list[float]:
    """The authors' util/pos_embed.py: half of the channels for the column, then half for the row; sines, then
    cosines, of base^(-c / (dim/4))."""
    out = []
    for place in (x, y):
        angles = [place / base ** (c / (dim / 4)) for c in range(dim // 4)]
        out += [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    return out


def complex_word(amplitude: float, frequency: float, phase: float, position: float) -> complex:
    """Wang et al. 2020, section 2: r e^(i (omega pos + theta))."""
    return amplitude * cmath.exp(1j * (frequency * position + phase))


def slope(t: float, p: Sequence[float], weight1: Table, bias1: Sequence[float], weight2: Table, bias2: Sequence[float]):
    """FLOATER's h in the authors' modules/flow_funcs.py: Linear, ReLU, Linear, time appended before each."""
    hidden = [max(0.0, _dot(row, [*p, t]) + b) for row, b in zip(weight1, bias1, strict=True)]
    return [_dot(row, [*hidden, t]) + b for row, b in zip(weight2, bias2, strict=True)]


def kutta(function, t: float, p: Sequence[float], dt: float) -> list[float]:
    """One step of the 3/8 rule, from its Butcher tableau (Hairer, Norsett and Wanner 1993, table II.1.2)."""

    def moved(*terms: tuple[float, Sequence[float]]) -> list[float]:
        return [p[c] + dt * sum(a * k[c] for a, k in terms) for c in range(len(p))]

    k1 = function(t, p)
    k2 = function(t + dt / 3, moved((1 / 3, k1)))
    k3 = function(t + 2 * dt / 3, moved((-1 / 3, k1), (1, k2)))
    k4 = function(t + dt, moved((1, k1), (-1, k2), (1, k3)))
    return moved((1 / 8, k1), (3 / 8, k2), (3 / 8, k3), (1 / 8, k4))


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
