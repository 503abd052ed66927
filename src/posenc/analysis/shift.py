# SPDX-License-Identifier: Apache-2.0
"""The shift matrix: is there one matrix M with M p(t) = p(t + k) at every t?"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc.analysis.codes import at_least, in_chunks, positions_of
from posenc.analysis.plotting import PALETTE, SOFT, channel_label, image, plot
from posenc.analysis.question import AnalysisQuestion, Finding, first_sentence
from posenc.analysis.reading import codes_of
from posenc.errors import InputError, check_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ROUNDING = 1e-4
"""Share of the norm below which a miss is rounding: codes in float32 leave so much in long texts."""


@dataclass(frozen=True, eq=False)
class Shift(Finding):
    """One matrix for a shift by `shift` positions, (dim, dim), and how well it does at every position.

    exact: it is made of the known frequencies, a rotation for each; otherwise it is the least-squares fit to every other
    position. holds: it misses codes it was not fitted to by less than 1e-6 of their norm. residual: how far M p(t) is
    from p(t + shift) there, root mean square over that of p; residual_fitted: on what it was fitted to; still: what doing
    nothing misses by, and added: what adding one vector everywhere misses by. by_position: the residual at every
    t = first, first + 1, .. fitted, rank: how many positions it was fitted to, in how many directions: as many as serve
    positions left out. composition: how far M M p(t) is from p(t + 2 shift), over the same norm. orthogonality: the
    largest entry of V^T M^T M V - 1, V the directions that codes use (a singular value above 1e-4 of the largest).
    angles: by how much M turns its planes, radians from 0 to pi, from its eigenvalues of modulus above 1/2.
    known_angles: those that the frequencies give, and angle_error, how far the nearest of them is at most; None where
    they are not known.
    """

    name: str
    of: str
    shift: float
    length: int
    exact: bool
    holds: bool
    matrix: Tensor
    residual: float
    residual_fitted: float
    still: float
    added: float
    by_position: Tensor
    first: int
    fitted: int
    rank: int
    composition: float
    orthogonality: float
    angles: Tensor
    known_angles: Tensor | None
    angle_error: float | None

    def sentences(self) -> list[str]:
        dim = len(self.matrix)
        unit = self.of if abs(self.shift) == 1 else f"{self.of}s"
        later = f"{abs(self.shift):g} {unit} {'later' if self.shift > 0 else 'earlier'}"
        if self.holds:
            sentences = [
                f"One {dim} x {dim} matrix takes every code to that of {later} "
                f"(it misses by {self.residual:.1g} of a code's norm)."
            ]
        else:
            sentences = [
                f"No one matrix takes every code to that of {later}: the best for half of them "
                f"misses the others by {self.residual:.1%} of a code's norm; doing nothing misses by {self.still:.1%}."
            ]
        if self.still < ROUNDING:
            sentences.append(f"Doing nothing misses by {self.still:.1g}: codes so far apart are the same.")
        if self.added < ROUNDING <= self.still and not self.holds:
            sentences.append("Adding one vector does it everywhere, which is no product with a matrix.")
        if self.exact:
            sentences.append(
                "It rotates each pair of channels by the shift times its frequency, so it is known without a fit."
            )
        elif not self.holds and self.fitted <= dim:
            sentences.append(
                f"A fit to {self.fitted} positions may be exact by itself in {dim} dimensions: only the others are a test."
            )
        if self.holds:
            norms = "keeps every length" if self.orthogonality < 1e-3 else "does not keep lengths"
            sentences.append(
                f"It {norms} (M^T M is within {self.orthogonality:.1g} of 1 where codes are); applied twice it "
                f"shifts by {2 * self.shift:g} (within {self.composition:.1g})."
            )
        if self.known_angles is not None and self.angle_error is not None:
            sentences.append(
                f"Its angles are the known frequencies times the shift, within {self.angle_error:.1g} rad."
            )
        return sentences


def shift_matrix(subject: Any, shift: float = 1, *, length: int = 512, fit: bool = False, **options: Any) -> Shift:
    """The matrix that moves codes by `shift` positions: exact where the frequencies are known (sinusoidal codes, and what
    rotation makes of a vector), else fitted by least squares to every other position and tested on the rest.

    Args:
        subject: anything `codes_of` takes, with its options. shift: positions; negative, and fractional where codes of
            fractional positions exist. length: codes p(0) .. p(length-1) are used. fit: fit even where the frequencies
            are known.

    Raises:
        InputError: codes that cannot be read, or a shift that is 0 or leaves fewer than 4 pairs.
    """
    codes = codes_of(subject, **options)
    check_numbers(shift=shift)
    if shift == 0:
        raise InputError(f"shift={shift}: how many positions to move by, not 0")
    length = at_least("length", length, 6)
    last = positions_of(codes, length)[-1]
    steps = math.ceil(abs(shift))
    if length - 2 * steps < 4:
        raise InputError(f"shift={shift}: too far for length={length}, which must be at least {2 * steps + 4}")
    at = torch.arange(2 * steps if shift < 0 else 0, int(last) + 1 - (2 * steps if shift > 0 else 0))
    read = in_chunks(codes, length) if shift == int(shift) else codes
    before, after, twice = read(at), read(_plus(at, shift)), read(_plus(at, 2 * shift))
    norm = float(after.square().sum(-1).mean().sqrt()) or 1.0
    known = codes.waves is not None and not fit
    rest = torch.arange(len(at)) % 2 == 1
    if known:
        assert codes.waves is not None
        matrix, rank, rest = codes.waves.matrix(shift, before.shape[1]), before.shape[1], torch.ones_like(rest)
    else:
        matrix, rank = _fitted(before[~rest], after[~rest])
    missed = (before @ matrix.T - after).norm(dim=-1) / norm
    angles = _angles(matrix if known else _inside(matrix, before[~rest], rank))
    expected = None if codes.waves is None else _folded(shift * codes.waves.frequencies)
    residual = _mean(missed[rest])
    return Shift(
        name=codes.name,
        of=codes.of,
        shift=shift,
        length=length,
        exact=known,
        holds=residual < ROUNDING,
        matrix=matrix,
        residual=residual,
        residual_fitted=_mean(missed if known else missed[~rest]),
        added=_mean(((after - before) - (after - before).mean(0)).norm(dim=-1) / norm),
        still=_mean((before - after).norm(dim=-1) / norm),
        by_position=missed,
        first=int(at[0]),
        fitted=0 if known else int((~rest).sum()),
        rank=rank,
        composition=_mean((before @ (matrix @ matrix).T - twice).norm(dim=-1) / norm),
        orthogonality=_orthogonality(matrix, before),
        angles=angles,
        known_angles=expected,
        angle_error=None if expected is None or not len(angles) else _furthest(expected, angles),
    )


def _plus(at: Tensor, shift: float) -> Tensor:
    return at + int(shift) if shift == int(shift) else at.double() + shift


def _fitted(before: Tensor, after: Tensor) -> tuple[Tensor, int]:
    """M with M before = after in the sense of least squares, and in how many of the directions of the codes. Fewer than
    all where more would fit noise: every other row decides, as a fit in all of more dimensions than rows is always exact.
    """
    part, rest = slice(0, None, 2), slice(1, None, 2)
    tried = {rank: _least_squares(before[part], after[part], rank) for rank in _ranks(before[part])}
    missed = {rank: float((before[rest] @ matrix.T - after[rest]).square().sum()) for rank, matrix in tried.items()}
    best, every = min(missed, key=missed.__getitem__), _ranks(before)[-1]
    rank = every if best == max(tried) else best
    return _least_squares(before, after, rank), rank


def _ranks(codes: Tensor) -> list[int]:
    """1, 2, 4, .. and all of the directions that codes have at all."""
    singular = torch.linalg.svdvals(codes)
    every = max(1, int((singular > 1e-10 * singular[0]).sum()))
    return [*(2**k for k in range(every.bit_length()) if 2**k < every), every]


def _least_squares(before: Tensor, after: Tensor, rank: int) -> Tensor:
    left, singular, right = torch.linalg.svd(before, full_matrices=False)
    if not singular[0]:
        return before.new_zeros(before.shape[1], before.shape[1])
    return after.T @ left[:, :rank] / singular[:rank] @ right[:rank]


def _mean(shares: Tensor) -> float:
    return float(shares.square().mean().sqrt())


def _orthogonality(matrix: Tensor, codes: Tensor) -> float:
    _, singular, directions = torch.linalg.svd(codes, full_matrices=False)
    used = matrix @ directions[singular > 1e-4 * singular[0]].T
    return float((used.T @ used - torch.eye(used.shape[1], dtype=used.dtype)).abs().max()) if used.numel() else 0.0


def _angles(matrix: Tensor) -> Tensor:
    """By how much planes and lines are turned, ascending: one for each pair of complex eigenvalues or real one."""
    try:
        values = torch.linalg.eigvals(matrix)
    except RuntimeError:  # many eigenvalues that are all but equal: move them by what rounding does anyway
        noise = torch.randn(matrix.shape, generator=torch.Generator().manual_seed(0), dtype=matrix.dtype)
        values = torch.linalg.eigvals(matrix + 1e-13 * float(matrix.abs().max()) * noise)
    values = values[(values.abs() > 0.5) & (values.imag >= 0)]
    return values.angle().abs().sort().values


def _inside(matrix: Tensor, codes: Tensor, rank: int) -> Tensor:
    """The matrix among the directions that it was fitted in, (rank, rank): the same eigenvalues, less the zeros."""
    directions = torch.linalg.svd(codes, full_matrices=False)[2][:rank]
    return directions @ matrix @ directions.T


def _folded(angles: Tensor) -> Tensor:
    """Angles as a plane shows them, 0 to pi, ascending."""
    turned = angles.abs() % (2 * math.pi)
    return torch.minimum(turned, 2 * math.pi - turned).sort().values


def _furthest(expected: Tensor, angles: Tensor) -> float:
    return float((expected[:, None] - angles).abs().amin(-1).max())


@plot("Blocks of two by two on the diagonal, or two stripes: each pair of channels is turned by itself.", (5, 4.2))
def plot_shift_matrix(ax: "Axes", shift: Shift) -> None:
    """The matrix that takes each code to a later one."""
    image(ax, shift.matrix, clip=True)
    ax.set(xlabel=channel_label(shift.of), ylabel=f"{channel_label(shift.of)}, {shift.shift:+g} {shift.of}s")


@plot("A line at the bottom: one matrix does it for every position. A line far up: there is no such matrix.")
def plot_shift_error(ax: "Axes", shift: Shift) -> None:
    """By how much the matrix misses, position by position, against doing nothing."""
    at = shift.first + torch.arange(len(shift.by_position))
    missed = shift.by_position.clamp(min=1e-17)
    if shift.fitted:
        ax.plot(at[1::2], missed[1::2], ".", markersize=3, color=PALETTE[0], label="not fitted to")
        ax.plot(at[::2], missed[::2], ".", markersize=3, color=PALETTE[2], label="fitted to")
    else:
        ax.plot(at, missed, ".", markersize=3, color=PALETTE[0], label="by its frequencies")
    ax.axhline(max(shift.still, 1e-17), color=PALETTE[1], label="doing nothing")
    ax.axhline(ROUNDING, color=SOFT, linestyle=":", label="counts as exact below")
    ax.set_yscale("log")
    ax.set(xlabel=shift.of, ylabel="missed by (share of the norm)")
    ax.legend(fontsize="small")


SHIFT = AnalysisQuestion(
    "Is a shift of positions linear?",
    lambda t: shift_matrix(t.position_codes, length=t.length),
    lambda t, finding: (plot_shift_matrix.of(finding), plot_shift_error.of(finding)),
    first_sentence,
)
