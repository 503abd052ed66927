# SPDX-License-Identifier: Apache-2.0
"""What RoPE's frequencies bound: the score at a distance, and the length of context that a base serves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc import frequencies as schedules
from posenc.analysis.codes import at_least
from posenc.analysis.integrals import CI_ZERO, Numbers
from posenc.analysis.plotting import INK, PALETTE, SOFT, plot
from posenc.analysis.question import AnalysisQuestion, Finding
from posenc.errors import InputError, check_numbers
from posenc.frequencies import Frequencies
from posenc.frequencies.schedules import first_negative
from posenc.functional import check_even, frequency_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Schedule = str | Mapping[str, Any]
"""As a text, "yarn:factor=4:original_max_positions=4096", or as data."""

FACTOR = 4
"""How much longer than in training the texts are that a report asks about."""
LARGEST_BASE = 1e15
TRIED, AHEAD, WORST = 512, 64, 8
"""Bases made at once, those tried at once with the distances at which one fails, and how many of these."""


@dataclass(frozen=True)
class Model:
    """A pretrained model's rotation: the channels that rotate, the base, and the tokens it was trained on."""

    name: str
    rotary_dim: int
    base: float
    length: int

    @property
    def longest(self) -> int | None:
        return longest_length(self.base, self.rotary_dim)


MODELS = (
    Model("GPT-J 6B", 64, 1e4, 2048),
    Model("Llama 2 7B", 128, 1e4, 4096),
    Model("Code Llama 7B", 128, 1e6, 16384),
    Model("Llama 3 8B", 128, 5e5, 8192),
    Model("Mistral 7B v0.3", 128, 1e6, 32768),
    Model("Qwen2.5 7B", 128, 1e6, 32768),
    Model("SmolLM2 135M", 64, 1e5, 8192),
)
"""Known models, from their published configurations."""


def rope_bound(
    distances: Numbers,
    head_dim: int,
    base: float = 10000.0,
    *,
    frequencies: Schedule | Frequencies | Tensor | None = None,
) -> Tensor:
    """RoPE's decay bound: (2/d) sum_j |S_(j+1)| with S_j = sum_(c<j) e^(i m theta_c), float64, of distances' shape.

    By Abel's summation a score at distance m is at most max_j |h_(j+1) - h_j| times sum_j |S_(j+1)|, h_j being the
    product of the j-th pairs of query and key as complex numbers, and zero after the last. It bounds the scores; it does
    not say that they decay. distances: m, any real numbers. frequencies: see `longest_length`.

    Raises:
        InputError: distances that are not finite, an odd head_dim, what a schedule refuses.

    Source: Su et al. 2021, RoFormer, section 3.4.3; kexue.fm/archives/8265.
    """
    theta = frequencies_of(frequencies, head_dim, base)
    m = torch.as_tensor(distances, dtype=torch.float64, device="cpu")
    if not bool(m.isfinite().all()):
        raise InputError("distances hold values that are not finite: they must be numbers")
    means = [
        torch.polar(torch.ones(()).double(), part[:, None] * theta).cumsum(-1).abs().mean(-1)
        for part in m.flatten().split(1 << 13)
    ]
    return torch.cat(means).view(m.shape)


def longest_length(
    base: float,
    head_dim: int,
    *,
    frequencies: Schedule | Frequencies | Tensor | None = None,
    limit: int = 1 << 20,
) -> int | None:
    """The longest context that a base serves: the first distance m at which sum_c cos(m theta_c) < 0, from where a key
    like the query is no longer preferred to a random one. None where there is none below `limit`.

    A necessary condition that the paper derives and finds confirmed, not a promise: Llama 2 was trained on more than
    twice its 1707. head_dim: channels that rotate. frequencies: a schedule as text or data (made for this base), what it
    gives, or a model's own (head_dim/2,) inv_freq; plain RoPE if None.

    Raises:
        InputError: an odd head_dim, a base not above 0, frequencies that do not fit, a limit below 1.

    Source: Men et al. 2024, "Base of RoPE Bounds Context Length" (2405.14591); kexue.fm/archives/10122.
    """
    return first_negative(frequencies_of(frequencies, head_dim, base), at_least("limit", limit))


def smallest_base(length: int, head_dim: int, *, schedule: Schedule | None = None, step: float = 1e-3) -> float:
    """The smallest base with sum_c cos(m theta_c) >= 0 at every distance m below `length`.

    The bases that do so are no interval: some fail above the first that does not. So bases are tried upwards, each a
    factor 1 + step above the last, and windows narrower than that are passed over (128k at head_dim 128: 4.87e6 with
    step 1e-4, 7.79e6 with 1e-3). With infinitely many pairs it is length / 0.6165, see `decay_integral`. schedule: made
    for each base, plain RoPE if None. A second for 8k, ten for 1M.

    Raises:
        InputError: a length below 1, an odd head_dim, a step outside 1e-6 .. 1, or no such base up to 1e15.
    """
    length = at_least("length", length)
    check_even("head_dim", head_dim)
    check_numbers(step=step)
    if not 1e-6 <= step <= 1:
        raise InputError(f"step={step}: how far bases are apart, from 1e-6 to 1 of themselves")
    start = 1 + step
    while start < LARGEST_BASE:
        bases = start * (1 + step) ** torch.arange(TRIED, dtype=torch.float64, device="cpu")
        bases = bases[bases <= LARGEST_BASE]
        theta = torch.stack([frequencies_of(schedule, head_dim, base) for base in bases.tolist()])
        first = _first_without(theta, length)
        if first is not None:
            return float(bases[first])
        start = float(bases[-1]) * (1 + step)
    raise InputError(
        f"length={length}, head_dim={head_dim}: no base up to {LARGEST_BASE:g} keeps the sum of {head_dim // 2} cosines "
        "from turning negative; take more channels, a shorter length or a smaller step"
    )


def _first_without(theta: Tensor, length: int) -> int | None:
    """Which row of (n, pairs) frequencies is the first whose cosines' sum is negative at no distance below length.

    The distances at which one row fails are tried on its neighbours, most of which fail there too.
    """
    alive = torch.ones(len(theta), dtype=torch.bool)
    for row in range(len(theta)):
        if not alive[row]:
            continue
        failing = _negative_near_the_end(theta[row], length)
        if failing is None:
            return row
        first = row
        while first < len(theta):
            dead = ((theta[first : first + AHEAD, None] * failing[:, None]).cos().sum(-1) < 0).any(-1)
            alive[first : first + AHEAD] &= ~dead
            if not dead.all():
                break
            first += AHEAD
    return None


def _negative_near_the_end(theta: Tensor, length: int, block: int = 1 << 12) -> Tensor | None:
    """Some of the distances below length at which the sum is negative; the longest fail first as a base grows."""
    for end in range(length, 0, -block):
        distances = torch.arange(max(0, end - block), end, dtype=torch.float64)
        sums = (distances[:, None] * theta).cos().sum(-1)
        worst = sums.topk(min(WORST, len(sums)), largest=False)
        if worst.values[0] < 0:
            return distances[worst.indices[worst.values < 0]]
    return None


@dataclass(frozen=True, eq=False)
class BaseBound(Finding):
    """Bases against lengths: the smallest of each length, and what models take.

    limits: length / 0.6165, the smallest base with infinitely many pairs. longest: each model's own longest length.
    """

    head_dim: int
    schedule: str
    lengths: tuple[int, ...]
    bases: tuple[float, ...]
    limits: tuple[float, ...]
    models: tuple[Model, ...]
    longest: tuple[int | None, ...]

    def sentences(self) -> list[str]:
        rows = zip(self.lengths, self.bases, self.limits, strict=True)
        sentences = [
            f"{self.head_dim} channels under {self.schedule} need a base of {base:.3g} for {length} positions; infinitely "
            f"many would need {limit:.3g}."
            for length, base, limit in rows
        ]
        return sentences + [_about(model, longest) for model, longest in zip(self.models, self.longest, strict=True)]


def _about(model: Model, longest: int | None) -> str:
    start = f"{model.name} (base {model.base:g}, {model.rotary_dim} channels, {model.length} positions)"
    if longest is None:
        return f"{start}: the sum of its cosines is not negative within 2^20 positions."
    verdict = "beyond" if longest >= model.length else "short of"
    return f"{start}: the sum of its cosines is first negative at {longest}, {verdict} the length it was trained on."


def base_bound(
    lengths: Sequence[int] = (1024, 2048, 4096, 8192, 16384, 32768),
    head_dim: int = 128,
    *,
    schedule: Schedule | None = None,
    step: float = 1e-3,
    models: Sequence[Model] | None = None,
) -> BaseBound:
    """`smallest_base` of several lengths beside what known models take. Arguments as there; models: those of `MODELS` with
    as many channels if None.

    Raises:
        InputError: as `smallest_base`; no length.
    """
    if not lengths:
        raise InputError("lengths is empty: pass at least one")
    models = [model for model in MODELS if model.rotary_dim == head_dim] if models is None else models
    named = "plain RoPE" if schedule is None else schedule if isinstance(schedule, str) else schedules.as_text(schedule)
    return BaseBound(
        head_dim=head_dim,
        schedule=named,
        lengths=tuple(lengths),
        bases=tuple(smallest_base(length, head_dim, schedule=schedule, step=step) for length in lengths),
        limits=tuple(length / CI_ZERO for length in lengths),
        models=tuple(models),
        longest=tuple(model.longest for model in models),
    )


def frequencies_of(given: Schedule | Frequencies | Tensor | None, head_dim: int, base: float) -> Tensor:
    """(head_dim/2,) float64 frequencies of a schedule, of what it gives, or as they are.

    Raises:
        InputError: they are not head_dim/2 finite numbers, or what the schedule refuses.
    """
    check_even("head_dim", head_dim)
    if given is None:
        return frequency_curve(head_dim, base)
    if isinstance(given, (str, Mapping)):
        return schedules.create(schedules.parse(given) if isinstance(given, str) else given, head_dim, base).inv_freq
    inv_freq = given.inv_freq if isinstance(given, Frequencies) else given
    if not isinstance(inv_freq, Tensor) or inv_freq.shape != (head_dim // 2,) or not bool(inv_freq.isfinite().all()):
        shape = tuple(inv_freq.shape) if isinstance(inv_freq, Tensor) else type(inv_freq).__name__
        raise InputError(f"frequencies {shape}: head_dim={head_dim} needs ({head_dim // 2},) finite numbers")
    return inv_freq.detach().to("cpu", torch.float64)


@plot(
    "The bound falls in ripples as the distance grows, and faster for small bases; the score itself may do anything below."
)
def plot_rope_bound(
    ax: "Axes", bases: Sequence[float] = (1e4, 5e5, 1e6), head_dim: int = 128, length: int = 512
) -> None:
    """RoPE's decay bound over distances below length, a line for every base; for a single one give [base]."""
    distances = torch.arange(length)
    for base in bases:
        ax.plot(distances, rope_bound(distances, head_dim, base), label=f"base {base:g}")
    ax.set(xlabel="distance", ylabel="mean of |S|, partial sums of the rotations", ylim=(0, None))
    ax.legend()


@plot("A model under the line was trained on distances at which a key like the query may do worse than a random one.")
def plot_base_bound(ax: "Axes", finding: BaseBound, *, models: bool = True) -> None:
    """The smallest base of each length, its limit for infinitely many pairs, and known models where they are."""
    ax.plot(finding.lengths, finding.bases, marker="o", ms=4, label=f"smallest base, {finding.head_dim} channels")
    ax.plot(finding.lengths, finding.limits, ls=":", color=SOFT, label="infinitely many channels")
    places: dict[tuple[int, float], list[str]] = {}
    for model in finding.models if models else ():
        places.setdefault((model.length, model.base), []).append(model.name)
    for place, names in places.items():
        ax.plot(*place, marker="s", ms=5, ls="", color=PALETTE[1])
        ax.annotate(
            "\n".join(names), place, xytext=(5, -4), textcoords="offset points", fontsize=8, color=INK, va="top"
        )
    ax.margins(x=0.2)
    ax.set(xlabel="length of context", ylabel="base", xscale="log", yscale="log")
    ax.legend()


BASE = AnalysisQuestion(
    "How long a context does the base serve?",
    lambda t: base_bound(
        (t.trained, FACTOR * t.trained),
        t.rotary.rotary_dim or t.rotary.head_dim,
        models=(Model(t.name, t.rotary.rotary_dim or t.rotary.head_dim, t.rotary.rope_theta, t.trained),),
    ),
    lambda t, finding: (plot_base_bound.of(finding),),
    lambda finding: finding.sentences()[-1],
)
