# SPDX-License-Identifier: Apache-2.0
"""What a dtype does to the phases of an encoding: where the error comes from, and from which position it matters."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from guide_code.shared import legend_above
from posenc.analysis.codes import Waves, codes_of, make, position_codes, sizes_of
from posenc.analysis.finding import INK, SOFT, Axes, Finding, plot
from posenc.encoding import Encoding
from posenc.errors import InputError, check_sizes
from posenc.positions import Positions

DTYPES = {str(dtype)[6:]: dtype for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}
"""Whose rounding is known, by name."""
ROWS = 128
"""Stretches of positions that `by_position` has at most."""
BLOCK = 1 << 13
"""Positions at once."""

CAUSES: dict[str, Callable[[Tensor, Tensor, torch.dtype], Tensor]] = {
    "positions": lambda n, theta, dtype: _rounded(n, dtype) * theta,
    "frequencies": lambda n, theta, dtype: n * _rounded(theta, dtype),
    "product": lambda n, theta, dtype: _rounded(n * theta, dtype),
    "all": lambda n, theta, dtype: (n.to(dtype) * theta.to(dtype)).double(),
    "cos_sin": lambda n, theta, dtype: _phase((n * theta).cos().to(dtype), (n * theta).sin().to(dtype)),
}
"""The phase with one quantity rounded to dtype, of float64 positions (n, 1) and frequencies: the positions, the stored
frequencies, their product, all three as arithmetic in that dtype has it, or cos and sin of the exact phase alone."""


NAMES = {
    "positions": "positions rounded",
    "frequencies": "frequencies rounded",
    "product": "product rounded",
    "all": "all arithmetic in it",
    "cos_sin": "cos and sin rounded",
    "module": "posenc's module",
}


@dataclass(frozen=True)
class Cause:
    """Phase errors in radians over all pairs and positions. largest; at: its position. tenth: the first position at which
    the error is above a tenth of a turn, None if it never is."""

    largest: float
    at: int
    tenth: int | None


@dataclass(frozen=True, eq=False)
class PhaseError(Finding):
    """Errors of the phases position * frequency, against float64, at positions 0 .. length-1.

    causes: by name, see `CAUSES`; "module" is what the encoding itself does in that dtype. by_pair: (causes, pairs), the
    largest error of each pair. by_position: (causes, rows), the largest over all pairs up to each of `positions`. Errors
    of arithmetic are counted in full, also beyond a turn; those of cos and sin are at most half a turn. distinct: how
    many of the positions are still different numbers in that dtype.
    """

    name: str
    dtype: str
    length: int
    causes: dict[str, Cause]
    positions: Tensor
    by_pair: Tensor
    by_position: Tensor
    distinct: int

    def sentences(self) -> list[str]:
        every, distinct = self.causes["all"], self.distinct
        off = f"are off by up to {_radians(every.largest)}" if math.isfinite(every.largest) else "overflow"
        tenth = "never by a tenth of a turn"
        if every.tenth is not None:
            tenth = f"first by a tenth of a turn at position {every.tenth}"
        alone = ", ".join(f"{NAMES[name]} {_radians(self.causes[name].largest)}" for name in CAUSES if name != "all")
        sentences = [
            f"Phases of {self.name} computed in {self.dtype} {off} over {self.length} positions, {tenth}.",
            f"The largest error of each cause alone: {alone}.",
            f"All {self.length} positions are different numbers in {self.dtype}."
            if distinct == self.length
            else f"Of {self.length} positions {distinct} are different numbers in {self.dtype}.",
        ]
        if "module" in self.causes:
            sentences.append(
                f"posenc's module in {self.dtype} is off by {_radians(self.causes['module'].largest)}: it computes "
                "frequencies and phases in float64 and rounds the result."
            )
        return sentences


def phase_error(encoding: Encoding | str, length: int = 8192, dtype: torch.dtype | str = torch.bfloat16) -> PhaseError:
    """The errors of an encoding's phases in a dtype, with their causes apart, and what the module itself does.

    encoding: rotary or sinusoidal, under any schedule, or another that turns position by fixed frequencies; or its text,
    made for the sizes of `codes_of`. length: every position below it is computed. dtype: or its name, "bfloat16".

    Raises:
        InputError: an encoding without frequencies, a length below 1, another dtype than torch's four of real numbers.
    """
    encoding = make(encoding) if isinstance(encoding, str) else encoding
    waves = _waves(encoding)
    theta = waves.frequencies
    check_sizes(length=length)
    dtype_name = str(dtype).removeprefix("torch.")
    if dtype_name not in DTYPES:
        raise InputError("phases are real numbers", f"pass one of {', '.join(DTYPES)}", dtype=dtype)
    dtype = DTYPES[dtype_name]
    module = _module_phases(encoding, waves, dtype)
    edges = torch.linspace(0, length, min(ROWS, length) + 1, dtype=torch.float64).round().long().unique()
    errors: dict[str, list[tuple[Tensor, Tensor]]] = {}
    distinct, last = 0, torch.full((1,), math.nan, dtype=torch.float64)
    for first in range(0, length, BLOCK):
        n = torch.arange(first, min(first + BLOCK, length), dtype=torch.float64)
        exact = n[:, None] * theta
        visible = _phase(exact.cos(), exact.sin())
        phases = {name: cause(n[:, None], theta, dtype) for name, cause in CAUSES.items()}
        if module is not None:
            phases["module"] = module(first, len(n))
        for name, phase in phases.items():
            if name in ("cos_sin", "module"):
                error = (phase - visible).abs()
                error = torch.minimum(error, math.tau - error)
            else:
                error = (phase - exact).abs().nan_to_num(math.inf, math.inf)
            errors.setdefault(name, []).append((error.amax(0), error.amax(1)))
        rounded = _rounded(n, dtype)
        distinct += int((rounded != torch.cat((last, rounded[:-1]))).sum())
        last = rounded[-1:]
    by_position = {name: torch.cat([rows for _, rows in blocks]) for name, blocks in errors.items()}
    return PhaseError(
        name=encoding.known_as,
        dtype=dtype_name,
        length=length,
        causes={name: _cause(row) for name, row in by_position.items()},
        positions=edges[1:] - 1,
        by_pair=torch.stack([torch.stack([pairs for pairs, _ in blocks]).amax(0) for blocks in errors.values()]),
        by_position=torch.stack([row.cummax(0).values[edges[1:] - 1] for row in by_position.values()]),
        distinct=distinct,
    )


def _cause(by_position: Tensor) -> Cause:
    beyond, at = by_position > math.tau / 10, int(by_position.argmax())
    return Cause(float(by_position[at]), at, int(beyond.int().argmax()) if bool(beyond.any()) else None)


def _waves(encoding: Encoding) -> Waves:
    waves = codes_of(encoding).waves
    if waves is None:
        raise InputError(
            f"the codes of {type(encoding).__name__} are no rotation by fixed frequencies",
            "pass a rotary or a sinusoidal encoding, for XPos the Rotary of its frequencies",
            argument="encoding",
        )
    return waves


def _module_phases(encoding: Encoding, waves: Waves, dtype: torch.dtype) -> Callable[[int, int], Tensor] | None:
    """The phases of the encoding's results in a dtype: (first position, number n) -> (n, pairs). None: it does not compute
    them from constant tables, or they cannot be read off unit vectors."""
    module = copy.deepcopy(encoding).to(dtype)
    adds = hasattr(module, "position_codes")
    if not module.tables() or not (adds or module.planes):
        return None

    def phases(first: int, count: int) -> Tensor:
        at = Positions.arange(count, first)
        if adds:
            vectors = position_codes(module, at)
            assert vectors is not None
            vectors = vectors[0].to(dtype)  # as `embed` casts them
        else:
            sizes = sizes_of(module, {})
            x = torch.zeros(1, sizes.num_heads, count, sizes.head_dim, dtype=dtype)
            x[..., waves.first] = 1
            vectors = module.rotate_queries(x, at)[0, 0]
        return _phase(vectors[:, waves.first], vectors[:, waves.second])

    return phases


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).double()


def _phase(cos: Tensor, sin: Tensor) -> Tensor:
    """The phase of a cosine and a sine, within half a turn of zero."""
    return torch.atan2(sin.double(), cos.double())


def _radians(error: float) -> str:
    return f"{error:.2g} radians" if math.isfinite(error) else "overflow"


@plot("Above the dashed line, the fastest pair is off by more than 36°.")
def plot_phase_error(ax: Axes, finding: PhaseError) -> None:
    """The largest error of the phases up to each position, a line for every cause."""
    for number, (name, row) in enumerate(zip(finding.causes, finding.by_position, strict=True)):
        if float(row.max()) == 0:
            continue  # zero is not on a logarithmic axis
        style: dict[str, Any] = {"ls": ":", "color": INK, "lw": 2.4} if name == "module" else {}
        style.setdefault("lw", 0.8 + 7 / (number + 1))  # the earlier, the wider: equal lines stay visible
        ax.plot(finding.positions + 1, row.where(row > 0, float("nan")), label=NAMES[name], **style)
    ax.axhline(math.tau / 10, color=SOFT, ls="--", lw=0.9, label="36°")
    ax.set(xlabel="positions", ylabel="radians", xscale="log", yscale="log")
    legend_above(ax, ncols=2, title=f"{finding.name} in {finding.dtype}")
