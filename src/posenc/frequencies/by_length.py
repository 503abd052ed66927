# SPDX-License-Identifier: Apache-2.0
"""Schedules that depend on how long the text is. The length is an argument, so that it is the same for all keys.

A rotation is relative only while queries and keys turn alike. So the length is chosen once per sequence, before its first
key is cached: the prompt and what may be generated after it. docs/frequencies.md measures what happens otherwise.
"""

import math
from collections.abc import Sequence

import torch

from posenc.checks import as_numbers, checked
from posenc.errors import InputError
from posenc.frequencies.by_base import divisors_of, ntk
from posenc.frequencies.vector import Frequencies, a_length, a_temperature, at_least_one, untouched


@checked
def dynamic_factor(length: int, original_max_positions: int, factor: float = 1.0) -> float:
    """The factor for a text of that length: 1 up to the trained one, then factor * length / trained - (factor - 1).

    With factor 1 it is length / trained, YaRN's "dynamic scaling" (Peng et al. 2023, section 3.4); for other factors,
    the heuristic of emozilla (2023) and transformers, it is more than the text needs: 13 for four times the trained
    length with factor 4. For any schedule: `yarn(64, factor=dynamic_factor(16384, 4096), original_max_positions=4096)`.

    Raises:
        InputError: lengths or a factor below 1.
    """
    times = max(a_length(length, "length") / a_length(original_max_positions), 1.0)
    return at_least_one(factor) * times - (factor - 1)


@checked
def dynamic(
    head_dim: int, base: float = 10000.0, *, length: int, original_max_positions: int, factor: float = 1.0
) -> Frequencies:
    """Dynamic NTK, frozen: `ntk` by what the text's length needs, nothing up to original_max_positions
    (emozilla, reddit.com/r/LocalLLaMA 14mrgpr, 2023).

    Works without fine-tuning. length: of the whole sequence, generated tokens included. factor: see `dynamic_factor`.
    """
    return ntk(head_dim, base, factor=dynamic_factor(length, original_max_positions, factor))


@checked
def longrope(
    head_dim: int,
    base: float = 10000.0,
    *,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    original_max_positions: int,
    length: int,
    factor: float | None = None,
    attention_factor: float | None = None,
) -> Frequencies:
    """LongRoPE: each frequency divided by a number found by search, long_factor for texts longer than
    original_max_positions and short_factor for others (Ding et al. 2024, arXiv 2402.13753; Phi-3).

    Models come fine-tuned for their factors. length: of the whole sequence, generated tokens included. cos and sin are
    multiplied by attention_factor, or by sqrt(1 + ln factor / ln original_max_positions); one of both must be given.

    Raises:
        InputError: no temperature, or other numbers than head_dim/2 above 0.
    """
    plain = untouched(head_dim, base)
    divisors = {
        name: divisors_of(name, as_numbers(name, numbers, "cpu", torch.float64), len(plain))
        for name, numbers in (("short_factor", short_factor), ("long_factor", long_factor))
    }
    which = "long_factor" if a_length(length, "length") > a_length(original_max_positions) else "short_factor"
    return Frequencies(plain / divisors[which], _temperature(original_max_positions, factor, attention_factor))


def _temperature(original_max_positions: int, factor: float | None, given: float | None) -> float:
    if given is not None:
        return a_temperature(given)
    if factor is None:
        raise InputError("longrope needs its temperature: pass attention_factor, or the factor that it follows from")
    if original_max_positions == 1:
        raise InputError("original_max_positions=1: the temperature divides by its logarithm; pass attention_factor")
    return math.sqrt(1 + math.log(at_least_one(factor)) / math.log(original_max_positions))
