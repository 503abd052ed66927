"""RoPE's frequency schedules: pure functions of numbers, float64, no configuration object and no hidden state."""

import math
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


def yarn(
    head_dim: int,
    base: float = 10000.0,
    *,
    factor: float,
    original_max_positions: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    attention_factor: float | None = None,
) -> Frequencies:
    """YaRN as its authors' code and transformers compute it (jquesnelle/yarn, 2023).

    Slow frequencies are divided by factor, fast ones stay, and between the pairs that turn beta_slow and beta_fast
    times over original_max_positions the change is linear in the pair's number. truncate rounds that range outwards
    (gpt-oss does not). attention_factor is 0.1 ln(factor) + 1 unless given.
    """
    _turns(beta_slow, beta_fast, "beta_slow", "beta_fast")
    plain = frequency_curve(head_dim, base)
    low, high = (
        head_dim * math.log(_length(original_max_positions) / (turns * 2 * math.pi)) / (2 * _log_base(base))
        for turns in (beta_fast, beta_slow)
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # the authors' way out of a division by zero
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float64, device="cpu") - low) / (high - low)).clamp(0, 1)
    return Frequencies(_blend(plain, factor, ramp), _temperature(factor, attention_factor))


def yarn_paper(
    head_dim: int,
    base: float = 10000.0,
    *,
    factor: float,
    original_max_positions: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
) -> Frequencies:
    """YaRN as its paper states it: the change is linear in the number of turns (Peng et al. 2023, eq. 18 to 20).

    Otherwise as `yarn`, with nothing to round.
    """
    ramp = _ramp_by_turns(head_dim, base, original_max_positions, beta_slow, beta_fast, "beta_slow", "beta_fast")
    return Frequencies(_blend(frequency_curve(head_dim, base), factor, ramp), _temperature(factor, attention_factor))


def llama3(
    head_dim: int,
    base: float = 10000.0,
    *,
    factor: float,
    original_max_positions: int,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
) -> Frequencies:
    """Llama 3.1's: slow frequencies divided by factor, fast ones kept, linear in the turns between (Meta, llama-models).

    Slow is at most low_freq_factor turns over original_max_positions, fast at least high_freq_factor.
    """
    names = "low_freq_factor", "high_freq_factor"
    ramp = _ramp_by_turns(head_dim, base, original_max_positions, low_freq_factor, high_freq_factor, *names)
    return Frequencies(_blend(frequency_curve(head_dim, base), factor, ramp))


SCHEDULES: dict[str, Callable[..., Frequencies]] = {
    "default": default,
    "linear": linear,
    "ntk": ntk,
    "yarn": yarn,
    "yarn_paper": yarn_paper,
    "llama3": llama3,
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


def _blend(frequencies: Tensor, factor: float, ramp: Tensor) -> Tensor:
    """Each frequency as it is where ramp is 0, divided by factor where it is 1."""
    return frequencies * (1 - ramp) + frequencies / _factor(factor) * ramp


def _ramp_by_turns(
    head_dim: int, base: float, original_max_positions: int, slow: float, fast: float, slow_name: str, fast_name: str
) -> Tensor:
    """1 for pairs that turn at most `slow` times over the original length, 0 from `fast` times on."""
    _turns(slow, fast, slow_name, fast_name)
    turns = frequency_curve(head_dim, base) * _length(original_max_positions) / (2 * math.pi)
    return 1 - ((turns - slow) / (fast - slow)).clamp(0, 1)


def _temperature(factor: float, given: float | None) -> float:
    if given is None:
        return 0.1 * math.log(_factor(factor)) + 1
    if not given > 0:
        raise InputError(f"attention_factor={given}: multiplies cos and sin, so it must be positive")
    return float(given)


def _turns(slow: float, fast: float, slow_name: str, fast_name: str) -> None:
    if not 0 < slow < fast:
        raise InputError(
            f"{slow_name}={slow}, {fast_name}={fast}: turns over the trained length, 0 < {slow_name} < {fast_name}"
        )


def _length(original_max_positions: int) -> int:
    if not original_max_positions >= 1:
        raise InputError(f"original_max_positions={original_max_positions}: the trained length, at least 1")
    return original_max_positions


def _log_base(base: float) -> float:
    if not base > 1:
        raise InputError(f"base={base}: this schedule needs a base above 1")
    return math.log(base)
