# SPDX-License-Identifier: Apache-2.0
"""Changes to frequencies that are there already; as schedules they take any other one, `of`, the default if none."""

import math
from dataclasses import replace

import torch

from posenc.checks import checked
from posenc.errors import InputError
from posenc.frequencies.by_base import default, linear
from posenc.frequencies.vector import Frequencies, a_length, of_width, wavelengths


@checked
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


@checked
def proportional(head_dim: int, base: float = 10000.0, *, fraction: float = 0.75, factor: float = 1.0) -> Frequencies:
    """p-RoPE: the fastest fraction of the frequencies, divided by factor, and zero for the rest
    (Barbero et al. 2024, section 6; rope_type "proportional" in transformers).

    Models are trained so (Gemma 4: 0.25).
    """
    return fastest(linear(head_dim, base, factor=factor), fraction)


@checked
def resonance(head_dim: int, base: float = 10000.0, *, of: Frequencies | None = None) -> Frequencies:
    """Resonance RoPE: wavelengths rounded to whole positions, 2 pi / round(2 pi / theta_c), so that a pair meets the
    same angles in every turn (Wang et al. 2024, arXiv 2403.00071).

    Fast pairs change most (6.28 to 6); the paper applies it to YaRN and fine-tunes. of: the frequencies it is applied to.
    """
    found = _given(head_dim, base, of)
    return replace(found, inv_freq=2 * math.pi / wavelengths(found).round().clamp(min=1))


@checked
def tapered(
    head_dim: int,
    base: float = 10000.0,
    *,
    pairs: int | None = None,
    original_max_positions: int | None = None,
    hard: bool = False,
    of: Frequencies | None = None,
) -> Frequencies:
    """The slowest frequencies faded out, by (1 + cos t) / 2 with t from 0 to pi over them: "clipped RoPE", published
    as CoPE (Li et al. 2026, arXiv 2602.05258), which is no kin of the encoding `cope`.

    The paper trains so, on the slowest 20 of 64. pairs: how many; None, those that do not finish a turn in
    original_max_positions. hard: zeros instead. of: the frequencies it is applied to.

    Raises:
        InputError: neither pairs nor original_max_positions, or more pairs than there are.
    """
    found = _given(head_dim, base, of)
    if pairs is None:
        if original_max_positions is None:
            raise InputError("tapered: pass pairs, or original_max_positions to fade what makes no full turn in it")
        pairs = int((wavelengths(found) > a_length(original_max_positions)).sum())
    kept = len(found.inv_freq) - pairs
    if pairs < 0 or kept < 0:
        raise InputError(f"pairs={pairs}: there are {len(found.inv_freq)} pairs")
    phases = torch.linspace(0, math.pi, pairs, dtype=torch.float64, device="cpu")  # a single one is 0: not faded
    weights = torch.ones_like(found.inv_freq)
    weights[kept:] = 0 if hard else (1 + phases.cos()) / 2
    return replace(found, inv_freq=found.inv_freq * weights)


def _given(head_dim: int, base: float, of: Frequencies | None) -> Frequencies:
    return default(head_dim, base) if of is None else of_width(of, head_dim)
