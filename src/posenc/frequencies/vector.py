# SPDX-License-Identifier: Apache-2.0
"""What a schedule gives, how it is measured, and the checks that schedules share."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.checks import check_fields, check_tensor, checked, shown
from posenc.errors import InputError
from posenc.functional import check_even, frequency_curve


@dataclass(frozen=True, eq=False)
class Frequencies:
    """inv_freq: (head_dim/2,) float64, radians per position; attention_factor multiplies cos and sin."""

    inv_freq: Tensor
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if torch.compiler.is_compiling():
            return
        check_fields(self)
        a_temperature(self.attention_factor)
        check_tensor("inv_freq", self.inv_freq)
        if (
            self.inv_freq.dim() != 1
            or not self.inv_freq.is_floating_point()
            or not bool(self.inv_freq.isfinite().all())
        ):
            raise InputError(f"inv_freq={shown(self.inv_freq)}: pass (pairs,) finite angles per position")


@checked
def wavelengths(frequencies: Frequencies) -> Tensor:
    """Positions per turn of each pair, 2 pi / frequency, (head_dim/2,) float64; infinite for a pair that stands still."""
    return 2 * math.pi / frequencies.inv_freq


@checked
def stretch(frequencies: Frequencies, head_dim: int, base: float = 10000.0) -> Tensor:
    """lambda_c, how many times slower than in plain RoPE of that base each pair turns: (head_dim/2,) float64.

    1 where a pair is as it was trained, factor where it is interpolated, infinite where it stands still.

    Raises:
        InputError: frequencies of another head_dim.
    """
    return untouched(head_dim, base) / of_width(frequencies, head_dim).inv_freq


def untouched(head_dim: int, base: float) -> Tensor:
    """RoPE's own frequencies, (head_dim/2,) float64, which every schedule starts from."""
    check_even("head_dim", head_dim)
    return frequency_curve(head_dim, base)


def of_width(frequencies: Frequencies, head_dim: int) -> Frequencies:
    """The same frequencies.

    Raises:
        InputError: they are not head_dim/2.
    """
    if 2 * len(frequencies.inv_freq) != head_dim:
        raise InputError(
            f"head_dim={head_dim}: has {head_dim // 2} pairs, but {len(frequencies.inv_freq)} frequencies were given"
        )
    return frequencies


def at_least_one(factor: float) -> float:
    """The factor.

    Raises:
        InputError: it is below 1, or no number.
    """
    if not 1 <= factor < math.inf:
        raise InputError(f"factor={factor}: the new length over the trained one, at least 1")
    return float(factor)


def a_length(length: int, name: str = "original_max_positions") -> int:
    """The length.

    Raises:
        InputError: it is below 1.
    """
    if not 1 <= length < math.inf:
        meaning = "the trained length" if name == "original_max_positions" else "positions in the whole text"
        raise InputError(f"{name}={length}: {meaning}, at least 1")
    return length


def a_temperature(attention_factor: float) -> float:
    """The factor of cos and sin.

    Raises:
        InputError: it is not positive.
    """
    if not 0 < attention_factor < math.inf:
        raise InputError(f"attention_factor={attention_factor}: multiplies cos and sin, so it must be positive")
    return float(attention_factor)
