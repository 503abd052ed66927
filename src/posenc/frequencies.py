"""RoPE's frequency schedules: pure functions of numbers, float64, no configuration object and no hidden state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posenc.errors import InputError, unknown
from posenc.functional import frequency_curve


@dataclass(frozen=True, eq=False)
class Frequencies:
    """inv_freq: (head_dim/2,) float64, radians per position; attention_factor multiplies cos and sin."""

    inv_freq: Tensor
    attention_factor: float = 1.0


def default(head_dim: int, base: float = 10000.0) -> Frequencies:
    """theta_c = base^(-2c/head_dim) (Su et al. 2021, RoFormer, section 3.2.2)."""
    return Frequencies(frequency_curve(head_dim, base))


def linear(head_dim: int, base: float = 10000.0, *, factor: float) -> Frequencies:
    """Position interpolation: every frequency divided by factor (Chen et al. 2023, eq. 4)."""
    return Frequencies(frequency_curve(head_dim, base) / _factor(factor))


def ntk(head_dim: int, base: float = 10000.0, *, factor: float) -> Frequencies:
    """NTK-aware: base * factor^(d/(d-2)), so the fastest frequency stays and the slowest is divided by factor
    (bloc97, reddit.com/r/LocalLLaMA 14lz7j5, 2023)."""
    if head_dim == 2:
        raise InputError("head_dim=2: NTK scaling needs at least two frequencies (head_dim >= 4)")
    return Frequencies(frequency_curve(head_dim, base * _factor(factor) ** (head_dim / (head_dim - 2))))


def proportional(head_dim: int, base: float = 10000.0, *, fraction: float = 0.75, factor: float = 1.0) -> Frequencies:
    """p-RoPE: the fastest fraction of the frequencies, divided by factor, and zero for the rest
    (Barbero et al. 2024, section 6; rope_type "proportional" in transformers)."""
    return fastest(linear(head_dim, base, factor=factor), fraction)


def fastest(frequencies: Frequencies, fraction: float) -> Frequencies:
    """The same frequencies, of which only the first floor(fraction * head_dim/2) are not zero.

    Raises:
        InputError: a fraction outside 0 .. 1.
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"fraction={fraction}: the part of the frequencies that rotates, from 0 to 1")
    kept = int(fraction * len(frequencies.inv_freq))
    zeros = torch.zeros_like(frequencies.inv_freq[kept:])
    return replace(frequencies, inv_freq=torch.cat((frequencies.inv_freq[:kept], zeros)))


SCHEDULES: dict[str, Callable[..., Frequencies]] = {
    "default": default,
    "linear": linear,
    "ntk": ntk,
    "proportional": proportional,
}


def create(schedule: Mapping[str, Any], head_dim: int, base: float) -> Frequencies:
    """The frequencies of a schedule given as data: {"name": "ntk", "factor": 4}.

    Raises:
        InputError: an unknown name, or options that the schedule does not take.
    """
    options = dict(schedule)
    name = options.pop("name", None)
    if name not in SCHEDULES:
        raise unknown("schedule", name, SCHEDULES)
    try:
        return SCHEDULES[name](head_dim, base, **options)
    except TypeError as error:
        raise InputError(f"schedule {name!r} with options {options}: {error}") from None


def _factor(factor: float) -> float:
    if not factor >= 1:
        raise InputError(f"factor={factor}: the new length over the trained one, at least 1")
    return float(factor)
