# SPDX-License-Identifier: Apache-2.0
"""Schedules that divide all frequencies alike, or more and more from pair to pair: interpolation, NTK, other bases."""

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.checks import as_numbers, check_divisors, checked
from posenc.errors import InputError
from posenc.frequencies.vector import Frequencies, a_temperature, at_least_one, untouched


@checked
def default(head_dim: int, base: float = 10000.0) -> Frequencies:
    """theta_c = base^(-2c/head_dim) (Su et al. 2021, RoFormer, section 3.2.2)."""
    return Frequencies(untouched(head_dim, base))


@checked
def linear(head_dim: int, base: float = 10000.0, *, factor: float) -> Frequencies:
    """Position interpolation: every frequency divided by factor (Chen et al. 2023, eq. 4).

    Needs fine-tuning (the paper's 1000 steps): neighbours are nearer than any the model was trained on. SuperHOT
    (kaiokendev 2023) is this with factor 4 and a LoRA.
    """
    return Frequencies(untouched(head_dim, base) / at_least_one(factor))


@checked
def abf(head_dim: int, base: float = 10000.0, *, new_base: float) -> Frequencies:
    """Adjusted base frequency: plain RoPE of a new base (Xiong et al. 2023, section 4.1; arXiv 2309.16039).

    Needs continued training (Llama 2 Long: 10000 to 500000). Pair c is stretched (new_base/base)^(2c/head_dim) times.
    """
    untouched(head_dim, base)  # which must be right, though it is replaced
    check_divisors(new_base=new_base)
    return Frequencies(untouched(head_dim, new_base))


@checked
def ntk(head_dim: int, base: float = 10000.0, *, factor: float) -> Frequencies:
    """NTK-aware: base * factor^(d/(d-2)), so the fastest frequency stays and the slowest is divided by factor
    (bloc97, reddit.com/r/LocalLLaMA 14lz7j5, 2023).

    Works without fine-tuning, for rather less than factor times the trained length: take factor larger than needed.
    """
    if head_dim == 2:
        raise InputError("head_dim=2: NTK scaling needs at least two frequencies (head_dim >= 4)")
    return abf(head_dim, base, new_base=base * at_least_one(factor) ** (head_dim / (head_dim - 2)))


@checked
def ntk_old(head_dim: int, base: float = 10000.0, *, factor: float) -> Frequencies:
    """NTK by the base alone: base * factor, so the slowest frequency is divided by less than factor, factor^((d-2)/d)
    (Su, kexue.fm/archives/9675).

    Works without fine-tuning.
    """
    return abf(head_dim, base, new_base=base * at_least_one(factor))


@checked
def ntk_fixed(head_dim: int, base: float = 10000.0, *, factor: float) -> Frequencies:
    """NTK in every digit: frequency c is divided by factor^(2(c+1)/d), the fastest too, the slowest by factor
    (Su, kexue.fm/archives/9706).

    Works without fine-tuning. `ntk_mixed` with exponent 1; vLLM's rope type "ntk" without mixed_b.
    """
    return ntk_mixed(head_dim, base, factor=factor, exponent=1.0)


@checked
def ntk_mixed(head_dim: int, base: float = 10000.0, *, factor: float, exponent: float = 0.625) -> Frequencies:
    """NTK mixed with interpolation: frequency c is divided by factor^((2(c+1)/d)^exponent)
    (Su, kexue.fm/archives/9706, whose best exponent is 0.625).

    Works without fine-tuning. exponent 1 is `ntk_fixed`, 0 is `linear`; vLLM calls it mixed_b.

    Raises:
        InputError: an exponent outside 0 .. 1.
    """
    if not 0 <= exponent <= 1:
        raise InputError(f"exponent={exponent}: from 0 (linear) to 1 (ntk_fixed)")
    pairs = head_dim // 2
    plain = untouched(head_dim, base)
    digits = torch.arange(1, pairs + 1, dtype=torch.float64, device="cpu") / pairs
    return Frequencies(plain / at_least_one(factor) ** digits**exponent)


@checked
def explicit(
    head_dim: int, base: float = 10000.0, *, stretch: Sequence[float] | Tensor, attention_factor: float = 1.0
) -> Frequencies:
    """Any frequencies: pair c of plain RoPE divided by stretch[c], its lambda_c; infinity stops a pair.

    Every schedule can be written down so: `explicit(d, base, stretch=stretch(frequencies, d, base))`. It is also what a
    search finds (LongRoPE). stretch: head_dim/2 numbers above 0.

    Raises:
        InputError: another number of them, or one that is not above 0.
    """
    plain = untouched(head_dim, base)
    divisors = as_numbers("stretch", stretch, "cpu", torch.float64)
    return Frequencies(plain / divisors_of("stretch", divisors, len(plain)), a_temperature(attention_factor))


def divisors_of(name: str, divisors: Tensor, pairs: int) -> Tensor:
    """The divisors of each pair's frequency.

    Raises:
        InputError: another number of them than pairs, or one that is not above 0.
    """
    if divisors.shape != (pairs,):
        raise InputError(f"{name} has shape {tuple(divisors.shape)}: needs one number for each of the {pairs} pairs")
    if not bool((divisors > 0).all()):
        raise InputError(f"{name}: frequencies are divided by it, so every number must be above 0")
    return divisors
