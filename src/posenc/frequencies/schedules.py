# SPDX-License-Identifier: Apache-2.0
"""Every frequency schedule: `default`, `linear`, `abf`, the `ntk` and `yarn` families, `mrrope`, `llama3`, `dynamic`,
`longrope`, those that are applied to another one, and `explicit`. Pure functions of
numbers, in float64.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posenc.errors import InputError, as_numbers, check_numbers, check_positive, check_tensor, check_value
from posenc.functional import check_even, frequency_curve

__all__ = [
    "SCHEDULES", "Frequencies", "abf", "default", "dynamic", "dynamic_factor", "explicit",
    "fastest", "linear", "llama3", "longrope", "mrrope", "ntk", "ntk_fixed", "ntk_mixed", "ntk_old", "proportional",
    "resonance", "softmax_factor", "stretch", "tapered", "wavelengths", "yarn", "yarn_paper", "yarn_revised",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Frequencies:
    """inv_freq: (head_dim/2,) float64, radians per position; attention_factor multiplies cos and sin."""

    inv_freq: Tensor
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if torch.compiler.is_compiling():
            return
        check_positive(attention_factor=self.attention_factor)
        check_tensor("inv_freq", self.inv_freq)
        angles = self.inv_freq
        if angles.dim() != 1 or not angles.is_floating_point() or not bool(angles.isfinite().all()):
            raise InputError("pass (pairs,) finite angles per position", inv_freq=angles)


def wavelengths(frequencies: Frequencies) -> Tensor:
    """Positions per turn of each pair, 2 pi / frequency, (head_dim/2,) float64; infinite for a pair that does not rotate."""
    return 2 * math.pi / frequencies.inv_freq


def stretch(frequencies: Frequencies, head_dim: int, *, base: float = 10000.0) -> Tensor:
    """lambda_c, how many times slower than in plain RoPE of that base each pair turns: (head_dim/2,) float64.

    1 for a pair with its trained frequency, factor for an interpolated one, infinite for one that does not rotate.

    Raises:
        InputError: frequencies of another head_dim.
    """
    return rope_frequencies(head_dim, base) / check_width(frequencies, head_dim).inv_freq


# ---------------------------------------------------------------- all pairs alike, or more and more from pair to pair: interpolation, NTK, other bases


def default(head_dim: int, *, base: float = 10000.0) -> Frequencies:
    """theta_c = base^(-2c/head_dim) (Su et al. 2021, RoFormer, arXiv 2104.09864, section 3.2.2)."""
    return Frequencies(rope_frequencies(head_dim, base))


def linear(head_dim: int, *, base: float = 10000.0, factor: float) -> Frequencies:
    """Position interpolation: every frequency divided by factor (Chen et al. 2023, arXiv 2306.15595, eq. 4).

    Needs fine-tuning (the paper's 1000 steps): neighbouring positions are closer than in training. SuperHOT
    (kaiokendev 2023) is this with factor 4 and a LoRA.
    """
    return Frequencies(rope_frequencies(head_dim, base) / check_factor(factor))


def abf(head_dim: int, *, base: float = 10000.0, new_base: float) -> Frequencies:
    """Adjusted base frequency: plain RoPE of a new base (Xiong et al. 2023, section 4.1; arXiv 2309.16039).

    Needs continued training (Llama 2 Long: 10000 to 500000). Pair c is stretched (new_base/base)^(2c/head_dim) times.
    """
    rope_frequencies(head_dim, base)  # which must be right, though it is replaced
    check_positive(new_base=new_base)
    return Frequencies(rope_frequencies(head_dim, new_base))


def ntk(head_dim: int, *, base: float = 10000.0, factor: float) -> Frequencies:
    """NTK-aware: base * factor^(d/(d-2)), so the fastest frequency stays and the slowest is divided by factor
    (bloc97, reddit.com/r/LocalLLaMA 14lz7j5, 2023).

    Works without fine-tuning, for rather less than factor times the context length: take factor larger than needed.
    """
    check_positive(base=base)
    check_even("head_dim", head_dim)
    if head_dim == 2:
        raise InputError("NTK scaling needs at least two frequencies (head_dim >= 4)", head_dim=2)
    return abf(head_dim, base=base, new_base=base * check_factor(factor) ** (head_dim / (head_dim - 2)))


def ntk_old(head_dim: int, *, base: float = 10000.0, factor: float) -> Frequencies:
    """NTK by the base alone: base * factor, so the slowest frequency is divided by less than factor, factor^((d-2)/d)
    (Su, kexue.fm/archives/9675).

    Works without fine-tuning.
    """
    check_positive(base=base)
    return abf(head_dim, base=base, new_base=base * check_factor(factor))


def ntk_fixed(head_dim: int, *, base: float = 10000.0, factor: float) -> Frequencies:
    """NTK in every digit: frequency c is divided by factor^(2(c+1)/d), the fastest too, the slowest by factor
    (Su, kexue.fm/archives/9706).

    Works without fine-tuning. `ntk_mixed` with exponent 1; vLLM's rope type "ntk" without mixed_b.
    """
    return ntk_mixed(head_dim, base=base, factor=factor, exponent=1.0)


def ntk_mixed(head_dim: int, *, base: float = 10000.0, factor: float, exponent: float = 0.625) -> Frequencies:
    """NTK mixed with interpolation: frequency c is divided by factor^((2(c+1)/d)^exponent)
    (Su, kexue.fm/archives/9706, whose best exponent is 0.625).

    Works without fine-tuning. exponent 1 is `ntk_fixed`, 0 is `linear`; vLLM calls it mixed_b.

    Raises:
        InputError: an exponent outside 0 .. 1.
    """
    check_numbers(0, 1, exponent=exponent)
    plain = rope_frequencies(head_dim, base)
    pairs = head_dim // 2
    digits = torch.arange(1, pairs + 1, dtype=torch.float64, device="cpu") / pairs
    return Frequencies(plain / check_factor(factor) ** digits**exponent)


# ---------------------------------------------------------------- fast pairs unchanged, slow ones interpolated, a ramp between them


def yarn(
    head_dim: int,
    *,
    base: float = 10000.0,
    factor: float,
    original_max_positions: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    mscale: float = 1.0,
    mscale_all_dim: float = 0.0,
    attention_factor: float | None = None,
) -> Frequencies:
    """YaRN as its authors' code and transformers compute it (github.com/jquesnelle/yarn; arXiv 2309.00071).

    Slow frequencies are divided by factor, fast ones stay, and between the pairs that turn beta_slow and beta_fast
    times over original_max_positions the change is linear in the pair's number. truncate rounds that range outwards
    (gpt-oss does not). Works without fine-tuning; the paper tunes for 400 steps.

    cos and sin are multiplied by attention_factor; unless given it is m(mscale) / m(mscale_all_dim) with
    m(x) = 0.1 x ln(factor) + 1, by default 0.1 ln(factor) + 1. DeepSeek gives both, usually equal, and scales the
    softmax instead, see `softmax_factor`; mscale 0.5 is ChunkLlama's 0.05 ln(factor) + 1.
    """
    plain = rope_frequencies(head_dim, base)
    ramp = _ramp(len(plain), *_ramp_ends(len(plain), base, original_max_positions, beta_slow, beta_fast, truncate))
    amplitude = _temperature(factor, mscale, mscale_all_dim, attention_factor)
    return Frequencies(_blend(plain, factor, ramp), amplitude)


def yarn_revised(
    head_dim: int,
    *,
    base: float = 10000.0,
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
    plain = rope_frequencies(head_dim, base)
    ramp = _ramp(len(plain), *_ramp_ends(len(plain), base, original_max_positions, beta_slow, beta_fast, truncate))
    divided = plain / (1 - ramp + check_factor(factor) * ramp)
    return Frequencies(divided, _temperature(factor, given=attention_factor))


def yarn_paper(
    head_dim: int,
    *,
    base: float = 10000.0,
    factor: float,
    original_max_positions: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
) -> Frequencies:
    """YaRN as its paper states it: the change is linear in the number of turns (arXiv 2309.00071, eq. 18 to 20).

    Otherwise as `yarn`, with nothing to round. With attention_factor 1 it is the paper's "NTK-by-parts".
    """
    plain = rope_frequencies(head_dim, base)
    ramp = _ramp_by_rotations(plain, original_max_positions, beta_slow=beta_slow, beta_fast=beta_fast)
    return Frequencies(_blend(plain, factor, ramp), _temperature(factor, given=attention_factor))


def mrrope(
    head_dim: int,
    *,
    base: float = 10000.0,
    factor: float,
    original_max_positions: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    progressive: bool = True,
    attention_factor: float | None = None,
) -> Frequencies:
    """MrRoPE: between the ends of `yarn`'s ramp each frequency is divided by one more factor than the one before, its
    radix (Tian et al. 2026, arXiv 2601.22181; mattian7/mrRoPE, LlamaYaRNRadix.py).

    Of n pairs between the ends, the t-th is divided by factor^(t(t+1)/(n(n+1))), so radixes grow (MrRoPE-Pro);
    progressive False: by factor^(t/n), so all are the same (MrRoPE-Uni). Works without fine-tuning. Otherwise as `yarn`.
    """
    plain = rope_frequencies(head_dim, base)
    check_value("progressive", progressive, bool)
    low, high = _ramp_ends(len(plain), base, original_max_positions, beta_slow, beta_fast)
    ramp, between = _ramp(len(plain), low, high), max(high - low, 0.001)
    exponents = ramp * (ramp * between + 1) / (between + 1) if progressive else ramp
    return Frequencies(plain / check_factor(factor) ** exponents, _temperature(factor, given=attention_factor))


def llama3(
    head_dim: int,
    *,
    base: float = 10000.0,
    factor: float,
    original_max_positions: int,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
) -> Frequencies:
    """Llama 3.1's: slow frequencies divided by factor, fast ones unchanged, linear in the turns between (Meta, llama-models).

    Slow is at most low_freq_factor turns over original_max_positions, fast at least high_freq_factor: `yarn_paper` with
    these limits and no temperature; with both the same (Llama 4 Scout) a step. Works without fine-tuning; Meta trained
    for it.
    """
    plain = rope_frequencies(head_dim, base)
    turns = {"low_freq_factor": low_freq_factor, "high_freq_factor": high_freq_factor}
    ramp = _ramp_by_rotations(plain, original_max_positions, may_equal=True, **turns)
    return Frequencies(_blend(plain, factor, ramp))


def softmax_factor(factor: float, mscale_all_dim: float) -> float:
    """Factor of the softmax scale in DeepSeek's models, besides `yarn`'s attention_factor:
    (0.1 mscale_all_dim ln(factor) + 1)^2 (DeepSeek-AI, modeling_deepseek.py; yarn_apply_mscale in transformers).

    It also scales the channels that do not rotate: `attention(q, k, v, encoding, scale=head_dim**-0.5 * softmax_factor(..))`.
    """
    return _mscale(factor, mscale_all_dim, "mscale_all_dim") ** 2


def _blend(frequencies: Tensor, factor: float, ramp: Tensor) -> Tensor:
    """Each frequency unchanged where ramp is 0, divided by factor where it is 1."""
    return frequencies * (1 - ramp) + frequencies / check_factor(factor) * ramp


def _ramp(pairs: int, low: float, high: float) -> Tensor:
    """0 up to the pair `low`, 1 from `high` on."""
    return ((torch.arange(pairs, dtype=torch.float64, device="cpu") - low) / (high - low)).clamp(0, 1)


def _ramp_ends(
    pairs: int, base: float, original_max_positions: int, beta_slow: float, beta_fast: float, truncate: bool = True
) -> tuple[float, float]:
    """The pairs that turn beta_fast and beta_slow times over the original length, within the channels of the head."""
    check_value("truncate", truncate, bool)
    _check_rotations(beta_slow=beta_slow, beta_fast=beta_fast)
    if not base > 1:
        raise InputError("this schedule needs a base above 1", base=base)
    low, high = (
        pairs * math.log(check_length(original_max_positions) / (turns * 2 * math.pi)) / math.log(base)
        for turns in (beta_fast, beta_slow)
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    return low, high + 0.001 if low == high else high  # the authors' way out of a division by zero


def _ramp_by_rotations(plain: Tensor, original_max_positions: int, may_equal: bool = False, **turns: float) -> Tensor:
    """1 for pairs that turn at most as often over the original length as the first of two numbers says, 0 from the second
    on; where both are the same, 1 below and 0 from there on."""
    slow, fast = _check_rotations(may_equal, **turns)
    of_pair = plain * check_length(original_max_positions) / (2 * math.pi)
    if slow == fast:
        return (of_pair < slow).to(of_pair.dtype)
    return 1 - ((of_pair - slow) / (fast - slow)).clamp(0, 1)


def _temperature(factor: float, mscale: float = 1.0, mscale_all_dim: float = 0.0, given: float | None = None) -> float:
    if given is not None:
        return given
    return _mscale(factor, mscale, "mscale") / _mscale(factor, mscale_all_dim, "mscale_all_dim")


def _mscale(factor: float, weight: float, name: str) -> float:
    check_numbers(0, **{name: weight})
    return 0.1 * weight * math.log(check_factor(factor)) + 1


def _check_rotations(may_equal: bool = False, **turns: float) -> tuple[float, float]:
    """Two numbers of turns, by argument, of which the first has to be less than the second."""
    check_positive(**turns)
    (slow_name, slow), (fast_name, fast) = turns.items()
    if not (0 < slow < fast or (may_equal and 0 < slow == fast)):
        sign = "<=" if may_equal else "<"
        raise InputError(f"{slow_name}={slow}, {fast_name}={fast}: give turns, 0 < {slow_name} {sign} {fast_name}")
    return slow, fast


# ---------------------------------------------------------------- by the length of the text

# A rotation is relative only while queries and keys are rotated alike. So the length is an argument, chosen once per sequence
# before its first key is cached: the prompt and what may be generated after it. docs/frequencies.md measures what happens
# otherwise.


def dynamic_factor(length: int, original_max_positions: int, factor: float = 1.0) -> float:
    """The factor for an input of that length: 1 up to the context length, then factor * length / trained - (factor - 1).

    With factor 1 it is length / trained, YaRN's "dynamic scaling" (Peng et al. 2023, section 3.4); for other factors,
    the heuristic of emozilla (2023) and transformers, it is more than the text needs: 13 for four times the trained
    length with factor 4. For any schedule: `yarn(64, factor=dynamic_factor(16384, 4096), original_max_positions=4096)`.

    Raises:
        InputError: lengths or a factor below 1.
    """
    times = max(check_length(length, "length") / check_length(original_max_positions), 1.0)
    return check_factor(factor) * times - (factor - 1)


def dynamic(
    head_dim: int, *, base: float = 10000.0, length: int, original_max_positions: int, factor: float = 1.0
) -> Frequencies:
    """Dynamic NTK, frozen: `ntk` by what the text's length needs, nothing up to original_max_positions
    (emozilla, reddit.com/r/LocalLLaMA 14mrgpr, 2023).

    Works without fine-tuning. length: of the full sequence, generated tokens included. factor: see `dynamic_factor`.
    """
    return ntk(head_dim, base=base, factor=dynamic_factor(length, original_max_positions, factor))


def longrope(
    head_dim: int,
    *,
    base: float = 10000.0,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    original_max_positions: int,
    length: int,
    factor: float | None = None,
    attention_factor: float | None = None,
) -> Frequencies:
    """LongRoPE: each frequency divided by a number found by search, long_factor for inputs longer than
    original_max_positions and short_factor for others (Ding et al. 2024, arXiv 2402.13753; Phi-3).

    Models are fine-tuned for their factors. length: of the full sequence, generated tokens included. cos and sin are
    multiplied by attention_factor, or by sqrt(1 + ln factor / ln original_max_positions); one of both must be given.

    Raises:
        InputError: no temperature, or other numbers than head_dim/2 above 0.
    """
    plain = rope_frequencies(head_dim, base)
    short = _pair_divisors("short_factor", short_factor, len(plain))
    long = _pair_divisors("long_factor", long_factor, len(plain))
    divisors = long if check_length(length, "length") > check_length(original_max_positions) else short
    if attention_factor is None:
        if factor is None:
            raise InputError("longrope needs a temperature: pass attention_factor, or the factor that it follows from")
        if original_max_positions == 1:
            raise InputError("its logarithm is 0", "pass attention_factor", original_max_positions=1)
        attention_factor = math.sqrt(1 + math.log(check_factor(factor)) / math.log(original_max_positions))
    return Frequencies(plain / divisors, attention_factor)


# ---------------------------------------------------------------- applied to another schedule, `of`; the default if none


def fastest(frequencies: Frequencies, fraction: float) -> Frequencies:
    """The same frequencies, of which only the first floor(fraction * head_dim/2) are not zero.

    Raises:
        InputError: a fraction outside 0 .. 1.
    """
    check_numbers(0, 1, fraction=fraction)
    rotating = int(fraction * len(frequencies.inv_freq))
    zeros = torch.zeros_like(frequencies.inv_freq[rotating:])
    return replace(frequencies, inv_freq=torch.cat((frequencies.inv_freq[:rotating], zeros)))


def proportional(head_dim: int, *, base: float = 10000.0, fraction: float = 0.75, factor: float = 1.0) -> Frequencies:
    """p-RoPE: the fastest fraction of the frequencies, divided by factor, and zero for the rest
    (arXiv 2410.06205, section 6; rope_type "proportional" in transformers).

    Models are trained so (Gemma 4: 0.25).
    """
    return fastest(linear(head_dim, base=base, factor=factor), fraction)


def resonance(head_dim: int, *, base: float = 10000.0, of: Frequencies | None = None) -> Frequencies:
    """Resonance RoPE: wavelengths rounded to integer positions, 2 pi / round(2 pi / theta_c), so that a pair meets the
    same angles in every turn (Wang et al. 2024, arXiv 2403.00071).

    Fast pairs change most (6.28 to 6); the paper applies it to YaRN and fine-tunes. of: the frequencies it is applied to.
    """
    check_value("of", of, OF)
    before = default(head_dim, base=base) if of is None else check_width(of, head_dim)
    return replace(before, inv_freq=2 * math.pi / wavelengths(before).round().clamp(min=1))


def tapered(
    head_dim: int,
    *,
    base: float = 10000.0,
    pairs: int | None = None,
    original_max_positions: int | None = None,
    hard: bool = False,
    of: Frequencies | None = None,
) -> Frequencies:
    """The slowest frequencies faded out, by (1 + cos t) / 2 with t from 0 to pi over them: "clipped RoPE", published
    as CoPE (Li et al. 2026, arXiv 2602.05258), unrelated to the encoding `cope`.

    The paper trains so, on the slowest 20 of 64. pairs: how many; None, those that do not finish a turn in
    original_max_positions. hard: zeros instead; without pairs that is HoPE, which trains so (Chen et al. 2025,
    aclanthology.org/2025.acl-long.1123). of: the frequencies it is applied to.

    Raises:
        InputError: neither pairs nor original_max_positions, or more pairs than there are.
    """
    check_value("of", of, OF)
    before = default(head_dim, base=base) if of is None else check_width(of, head_dim)
    check_value("hard", hard, bool)
    check_value("pairs", pairs, COUNT)
    if pairs is not None:
        check_numbers(0, len(before.inv_freq), pairs=pairs)
        fading = torch.tensor(pairs, device="cpu")
    elif original_max_positions is None:
        raise InputError("pass pairs, or original_max_positions", argument="tapered")
    else:  # a tensor, so that any length compiles into one graph
        fading = (wavelengths(before) > check_length(original_max_positions)).sum()
    place = torch.arange(-len(before.inv_freq), 0, dtype=torch.float64, device="cpu") + fading
    phases = math.pi * place / (fading - 1).clamp(min=1)  # a single one is 0: not faded
    return replace(before, inv_freq=before.inv_freq * torch.where(place < 0, 1, 0 if hard else (1 + phases.cos()) / 2))


def explicit(
    head_dim: int, *, base: float = 10000.0, stretch: Sequence[float] | Tensor, attention_factor: float = 1.0
) -> Frequencies:
    """Any frequencies: pair c of plain RoPE divided by stretch[c], its lambda_c; infinity stops a pair.

    Every schedule can be expressed like this: `explicit(d, base=base, stretch=stretch(frequencies, d, base=base))`. It is also what a
    search finds (LongRoPE). stretch: head_dim/2 numbers above 0.

    Raises:
        InputError: another number of them, or one that is not above 0.
    """
    plain = rope_frequencies(head_dim, base)
    return Frequencies(plain / _pair_divisors("stretch", stretch, len(plain)), attention_factor)


OF, COUNT = Frequencies | None, int | None  # which PyTorch 2.8 makes in no graph
SCHEDULES: dict[str, Callable[..., Frequencies]] = {
    schedule.__name__: schedule
    for schedule in (
        default, linear, ntk, ntk_old, ntk_fixed, ntk_mixed, abf, yarn, yarn_paper, yarn_revised, mrrope, llama3, dynamic,
        longrope, proportional, tapered, resonance, explicit,
    )
}  # fmt: skip
"""Every schedule by name."""


def first_negative(inv_freq: Tensor, limit: int = 1 << 20, block: int = 1 << 13) -> int | None:
    """The first distance m at which sum_c cos(m theta_c) < 0, the longest context that the frequencies serve in that
    sense. None where there is none below `limit`.

    Source: Men et al. 2024, "Base of RoPE Bounds Context Length" (2405.14591), theorem 1; kexue.fm/archives/10122.
    """
    theta = inv_freq.double().cpu()
    for start in range(0, limit, block):
        distances = torch.arange(start, min(start + block, limit), dtype=torch.float64, device="cpu")
        below = (distances[:, None] * theta).cos().sum(-1) < 0
        if below.any():
            return start + int(below.int().argmax())
    return None


# ---------------------------------------------------------------- shared by the schedules


def rope_frequencies(head_dim: int, base: float) -> Tensor:
    """Plain RoPE's frequencies, (head_dim/2,) float64, which every schedule starts from."""
    check_even("head_dim", head_dim)
    return frequency_curve(head_dim, base=base)


def check_width(frequencies: Frequencies, head_dim: int) -> Frequencies:
    """Return the frequencies; refuse another number than head_dim/2."""
    check_even("head_dim", head_dim)
    if 2 * len(frequencies.inv_freq) != head_dim:
        raise InputError(f"needs {head_dim // 2} frequencies, not {len(frequencies.inv_freq)}", head_dim=head_dim)
    return frequencies


def check_factor(factor: float) -> float:
    """The factor, refused below 1, and above 2^27, the tokens of the longest sequence."""
    check_numbers(1, 2**27, factor=factor)
    return float(factor)


def check_length(length: int, name: str = "original_max_positions") -> int:
    """The length, refused below 1."""
    check_value(name, length, int)
    check_numbers(1, **{name: length})
    return length


def _pair_divisors(name: str, numbers: Sequence[float] | Tensor, pairs: int) -> Tensor:
    """What each pair's frequency is divided by, refused unless all are above 0 and as many as pairs."""
    divisors = as_numbers(name, numbers, "cpu", torch.float64)
    if divisors.shape != (pairs,):
        raise InputError(f"{name} has shape {tuple(divisors.shape)}: needs one number for each of the {pairs} pairs")
    if not (torch.compiler.is_compiling() or bool((divisors > 0).all())):
        raise InputError(f"{name}: frequencies are divided by it, so every number must be above 0")
    return divisors
