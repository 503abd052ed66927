# SPDX-License-Identifier: Apache-2.0
"""Schedules that keep the fast pairs, interpolate the slow ones and have a ramp between them: YaRN and its kin."""

import math

import torch
from torch import Tensor

from posenc.checks import check_divisors, checked
from posenc.errors import InputError
from posenc.frequencies.vector import Frequencies, a_length, a_temperature, at_least_one, untouched


@checked
def yarn(
    head_dim: int,
    base: float = 10000.0,
    *,
    factor: float,
    original_max_positions: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    mscale: float = 1.0,
    mscale_all_dim: float = 0.0,
    attention_factor: float | None = None,
) -> Frequencies:
    """YaRN as its authors' code and transformers compute it (jquesnelle/yarn, 2023).

    Slow frequencies are divided by factor, fast ones stay, and between the pairs that turn beta_slow and beta_fast
    times over original_max_positions the change is linear in the pair's number. truncate rounds that range outwards
    (gpt-oss does not). Works without fine-tuning; the paper tunes for 400 steps.

    cos and sin are multiplied by attention_factor; unless given it is m(mscale) / m(mscale_all_dim) with
    m(x) = 0.1 x ln(factor) + 1, by default 0.1 ln(factor) + 1. DeepSeek gives both, usually equal, and scales the
    softmax instead, see `softmax_factor`; mscale 0.5 is ChunkLlama's 0.05 ln(factor) + 1.
    """
    plain = untouched(head_dim, base)
    ramp = _ramp_by_pair(len(plain), base, original_max_positions, beta_slow, beta_fast, truncate)
    amplitude = _temperature(factor, mscale, mscale_all_dim, attention_factor)
    return Frequencies(_blend(plain, factor, ramp), amplitude)


@checked
def yarn_revised(
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
    """YaRN with a ramp between wavelengths, where `yarn` has one between frequencies: each is divided by a number that
    is linear in the pair's, from 1 to factor (github.com/jquesnelle/yarn issue 24; dwzhu-pku/PoSE, "revised YaRN").

    PoSE fine-tunes with it. Arguments as in `yarn`.
    """
    plain = untouched(head_dim, base)
    ramp = _ramp_by_pair(len(plain), base, original_max_positions, beta_slow, beta_fast, truncate)
    divided = plain / (1 - ramp + at_least_one(factor) * ramp)
    return Frequencies(divided, _temperature(factor, given=attention_factor))


@checked
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

    Otherwise as `yarn`, with nothing to round. With attention_factor 1 it is the paper's "NTK-by-parts".
    """
    plain = untouched(head_dim, base)
    ramp = _ramp_by_turns(plain, original_max_positions, beta_slow, beta_fast, "beta_slow", "beta_fast")
    return Frequencies(_blend(plain, factor, ramp), _temperature(factor, given=attention_factor))


@checked
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

    Slow is at most low_freq_factor turns over original_max_positions, fast at least high_freq_factor: `yarn_paper` with
    these limits and no temperature; with both the same (Llama 4 Scout) a step. Works without fine-tuning; Meta trained
    for it.
    """
    plain = untouched(head_dim, base)
    names = "low_freq_factor", "high_freq_factor"
    ramp = _ramp_by_turns(plain, original_max_positions, low_freq_factor, high_freq_factor, *names, may_equal=True)
    return Frequencies(_blend(plain, factor, ramp))


@checked
def softmax_factor(factor: float, mscale_all_dim: float) -> float:
    """What DeepSeek's models multiply the scale of their softmax by, besides `yarn`'s attention_factor:
    (0.1 mscale_all_dim ln(factor) + 1)^2 (DeepSeek-AI, modeling_deepseek.py; yarn_apply_mscale in transformers).

    It heats the channels that do not rotate, too: `attention(q, k, v, encoding, scale=head_dim**-0.5 * softmax_factor(..))`.
    """
    return _mscale(factor, mscale_all_dim, "mscale_all_dim") ** 2


def _blend(frequencies: Tensor, factor: float, ramp: Tensor) -> Tensor:
    """Each frequency as it is where ramp is 0, divided by factor where it is 1."""
    return frequencies * (1 - ramp) + frequencies / at_least_one(factor) * ramp


def _ramp_by_pair(
    pairs: int, base: float, original_max_positions: int, beta_slow: float, beta_fast: float, truncate: bool
) -> Tensor:
    """0 up to the pair that turns beta_fast times over the original length, 1 from the one that turns beta_slow times."""
    check_divisors(beta_slow=beta_slow, beta_fast=beta_fast)
    _turns(beta_slow, beta_fast, "beta_slow", "beta_fast")
    if not base > 1:
        raise InputError(f"base={base}: this schedule needs a base above 1")
    low, high = (
        pairs * math.log(a_length(original_max_positions) / (turns * 2 * math.pi)) / math.log(base)
        for turns in (beta_fast, beta_slow)
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    if low == high:
        high += 0.001  # the authors' way out of a division by zero
    return ((torch.arange(pairs, dtype=torch.float64, device="cpu") - low) / (high - low)).clamp(0, 1)


def _ramp_by_turns(
    plain: Tensor,
    original_max_positions: int,
    slow: float,
    fast: float,
    slow_name: str,
    fast_name: str,
    may_equal: bool = False,
) -> Tensor:
    """1 for pairs that turn at most `slow` times over the original length, 0 from `fast` times on; where both are the
    same, 1 below and 0 from there on."""
    _turns(slow, fast, slow_name, fast_name, may_equal)
    turns = plain * a_length(original_max_positions) / (2 * math.pi)
    if slow == fast:
        return (turns < slow).to(turns.dtype)
    return 1 - ((turns - slow) / (fast - slow)).clamp(0, 1)


def _temperature(factor: float, mscale: float = 1.0, mscale_all_dim: float = 0.0, given: float | None = None) -> float:
    if given is not None:
        return a_temperature(given)
    return _mscale(factor, mscale, "mscale") / _mscale(factor, mscale_all_dim, "mscale_all_dim")


def _mscale(factor: float, weight: float, name: str) -> float:
    if not 0 <= weight < math.inf:
        raise InputError(f"{name}={weight}: the weight of ln(factor) in the temperature, at least 0")
    return 0.1 * weight * math.log(at_least_one(factor)) + 1


def _turns(slow: float, fast: float, slow_name: str, fast_name: str, may_equal: bool = False) -> None:
    if not (0 < slow < fast or (may_equal and 0 < slow == fast)):
        sign = "<=" if may_equal else "<"
        raise InputError(
            f"{slow_name}={slow}, {fast_name}={fast}: turns over the trained length, 0 < {slow_name} {sign} {fast_name}"
        )
