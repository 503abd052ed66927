# SPDX-License-Identifier: Apache-2.0
"""Augmented positions: changed in training, so that a model sees more of them than its sequences have. For use with any encoding that
reads positions, as in `SHAPE(500) + Sinusoidal(dim)`. Outside training positions are unchanged, except where stated.

Every layer, query and key of one forward pass sees the same draw. The draws use torch's global random generator.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from posenc.encoding import Encoding, Size
from posenc.errors import InputError, NotNegative, check_numbers
from posenc.positions import Positions
from posenc.positions.ids import exact


@dataclass(eq=False, repr=False)
class SHAPE(Encoding):
    """Shifted positions: each training sequence starts at a random position, 0 to max_shift - 1, so that a model learns
    not to rely on where a text begins.

    max_shift: the paper's K (500 in its main experiments). Packed documents of a row share its shift.
    Source: Kiyono et al. 2021, section 3; the range is that of the authors' code, which draws from 0 .. K-1.
    """

    name = "shape"
    title = "shifted positions (SHAPE)"
    papers: ClassVar[tuple[str, ...]] = ("kiyono2021shape",)
    formula: ClassVar[tuple[str, ...]] = (r"i' = i + u, \quad u \in \{0, \dots, K - 1\} \text{ drawn for each text}",)
    shift_invariant = True
    extrapolates = "yes: its loss stays level where the unshifted code's rises"
    use_when = (
        "Add it in training to a code at the input, such as `sinusoidal`; encodings of the distance do not need it."
    )

    max_shift: Size = 500

    def augment(self, positions: Positions, batch: int) -> Positions:
        if not self.training:
            return positions
        positions.require_full_sequence("SHAPE draws one shift for a complete sequence in training")
        shift = torch.randint(self.max_shift, (batch, 1), device=positions.q.device)
        return positions.moved(lambda ids, order: ids + (shift if ids.dim() == 2 else shift[..., None]))


@dataclass(eq=False, repr=False)
class CAPE(Encoding):
    """Augmented continuous positions: in training a shift and a stretch per sequence and a jitter per token.

    p' = (p + shift + jitter) * stretch, shift ~ U(-max_shift, max_shift), jitter ~ U(-max_jitter, max_jitter),
    ln stretch ~ U(-ln max_stretch, ln max_stretch); on a grid, shift and jitter are drawn for each axis. Positions
    become fractional and may fall below zero, where encodings with tables, T5 and FLOATER cannot follow.
    centre: also subtract the mean position of the sequence, in training and after it; the mean is not known before
    the text has ended, so this is for encoders.
    Source: Likhomanenko et al. 2021, section 3; defaults are those of the authors' text example.
    """

    name = "cape"
    title = "continuous augmented positions (CAPE)"
    papers: ClassVar[tuple[str, ...]] = ("likhomanenko2021cape",)
    formula: ClassVar[tuple[str, ...]] = (
        r"i' = (i + u + \epsilon_i)\, e^{\lambda}",
        r"u \text{ and } \lambda \text{ drawn for each text}, \ \epsilon_i \text{ for each token}",
    )
    extrapolates = "partly: better than sinusoidal codes, on speech and images"
    use_when = (
        "Add it in training to an encoding that takes fractional positions, for speech and images; `shape` only shifts."
    )

    max_shift: NotNegative = 5.0
    _: KW_ONLY
    max_jitter: NotNegative = 0.5
    max_stretch: float = 1.03
    centre: bool = False

    def setup(self) -> None:
        check_numbers(1, max_stretch=self.max_stretch)
        self.needs_length = self.centre
        self.shift_invariant = not self.centre

    def augment(self, positions: Positions, batch: int) -> Positions:
        if self.centre:
            positions.require_one_axis("CAPE(centre=True)")
            positions.require_full_sequence("CAPE(centre=True) subtracts the mean position")
            mean = (positions.lengths() - 1) / 2  # of positions that count from 0
            positions = positions.moved(lambda ids, order: exact(ids) - mean)
        if not self.training:
            return positions
        positions.require_full_sequence("CAPE draws one shift and stretch for a complete sequence in training")
        ids = positions.q

        def uniform(n: int, largest: float, axes: tuple[int, ...] = ()) -> Tensor:
            return (2 * torch.rand(batch, n, *axes, dtype=torch.float64, device=ids.device) - 1) * largest

        axes = tuple(ids.shape[2:])
        stretch = uniform(1, math.log(self.max_stretch), (1,) * len(axes)).exp()
        moved = (exact(ids) + uniform(1, self.max_shift, axes) + uniform(ids.shape[1], self.max_jitter, axes)) * stretch
        return positions.moved(lambda ids, order: moved)


@dataclass(eq=False, repr=False)
class Randomized(Encoding):
    """Randomised positions: a text of n tokens gets n of the positions 0 .. max_length - 1, drawn and sorted, so that
    a longer text later has no position that is new.

    max_length: longest text to prepare for (the paper's L). testing: positions outside training: "spread" gives the
    mean of the draw, n positions spread evenly, the same every time; "random" draws, as the paper does; "plain" leaves
    0 .. n-1. All but "plain" depend on the text's length, so a cache cannot be used. continuous: draw from the numbers
    between 0 and max_length, not from the integers (Random Float Sampling, which draws in testing too: "random").
    Randomized YaRN (Mehta et al. 2026, arXiv 2606.23687) is `Randomized(longest, "plain") + Rotary(head_dim,
    schedule={"name": "yarn", ...})`, with max_length raised from epoch to epoch.
    Raises InputError for a text longer than max_length. Sources: Ruoss et al. 2023, section 3; Shimizu et al. 2026,
    arXiv 2602.14050.
    """

    name = "randomized"
    title = "randomized positions"
    papers: ClassVar[tuple[str, ...]] = ("ruoss2023randomized", "shimizu2026position")
    formula: ClassVar[tuple[str, ...]] = (r"0 \le i_0' < i_1' < \dots < i_{N-1}' < M \quad \text{drawn for each text}",)
    extrapolates = "yes: up to max_length, on algorithmic tasks"
    use_when = (
        "Add it in training to any encoding, for tasks whose inputs grow up to max_length; `pose` keeps neighbours "
        "together."
    )

    max_length: Size = 2048
    _: KW_ONLY
    testing: Literal["spread", "random", "plain"] = "spread"
    continuous: bool = False

    def setup(self) -> None:
        self.max_positions = self.max_length
        self.needs_length = self.testing != "plain"
        self.shift_invariant = not self.needs_length

    def augment(self, positions: Positions, batch: int) -> Positions:
        if not self.training and self.testing == "plain":
            return positions
        lengths = _lengths(self, positions)
        if self.training or self.testing == "random":
            drawn = self._drawn(positions, lengths, batch)
            return positions.moved(lambda ids, order: drawn)
        if self.continuous:  # the mean of the k-th of n sorted draws
            return positions.moved(lambda ids, order: exact(ids + 1) * self.max_length / (lengths + 1))
        # as above, rounded down: steps are at least 1, so no two positions meet
        return positions.moved(lambda ids, order: (ids + 1) * (self.max_length + 1) // (lengths + 1) - 1)

    def _drawn(self, positions: Positions, lengths: Tensor, batch: int) -> Tensor:
        """(batch, n): a sorted sample, of integers without replacement, for every document of every row."""
        ids, device = positions.q, positions.q.device
        document, count = _documents(positions, batch)
        size = torch.zeros(batch, count, dtype=torch.long, device=device)
        size.scatter_(1, document, lengths.expand(batch, -1))
        row = torch.arange(batch, device=device)[:, None]
        if self.continuous:  # sorted uniform numbers are the partial sums of n + 1 exponential ones, over their total
            shape = batch, count, self.max_length + 1
            steps = torch.empty(shape, dtype=torch.float64, device=device).exponential_()
            steps = steps * (torch.arange(shape[2], device=device) <= size[..., None])
            sums = steps.cumsum(-1) * (self.max_length / steps.sum(-1, keepdim=True))
            return sums[row, document, ids.expand(batch, -1)]
        rank = torch.rand(batch, count, self.max_length, device=device).argsort(-1).argsort(-1)
        numbers = torch.arange(self.max_length, device=device)
        drawn = torch.where(rank < size[..., None], numbers, self.max_length).sort(-1).values
        return drawn[row, document, ids.expand(batch, -1)]


@dataclass(eq=False, repr=False)
class PoSE(Encoding):
    """Skipped positions: each training text is cut in two, and the second part is moved on by a random number, so that
    short inputs have every distance up to max_length. Order stays.

    The first part has 1 to (n + 1) // 2 of n tokens, the second moves by 0 to max_length - n, drawn for each document;
    outside training positions are unchanged. max_length: longest text to prepare for. The authors extend trained models
    by it, as `posenc.finetune(..., pose=True)` does. Raises InputError for a text longer than max_length.
    Source: Zhu et al. 2023; the ranges are those of the authors' code, train_pose.py.
    """

    name = "pose"
    title = "skipped positions (PoSE)"
    papers: ClassVar[tuple[str, ...]] = ("zhu2023pose",)
    formula: ClassVar[tuple[str, ...]] = (
        r"i' = \begin{cases} i & \quad i < s \\ i + u & \quad i \ge s \end{cases} \quad s, u \text{ drawn for each text}",
    )
    shift_invariant = True
    extrapolates = "yes: up to max_length, after interpolation"
    use_when = (
        "Add it where a trained model is fine-tuned for longer inputs on short ones; `randomized` is for training "
        "from the start."
    )

    max_length: Size = 2048

    def augment(self, positions: Positions, batch: int) -> Positions:
        if not self.training:
            return positions
        lengths = _lengths(self, positions)
        document, count = _documents(positions, batch)
        draws = torch.rand(2, batch, count, dtype=torch.float64, device=positions.q.device)
        part, share = (draw.gather(1, document) for draw in draws)
        return positions.moved(lambda ids, order: skipped_positions(ids, lengths, self.max_length, part, share))


def skipped_positions(ids: Tensor, lengths: Tensor | int, max_length: int, part: Tensor, share: Tensor) -> Tensor:
    """PoSE's positions of sequences of these lengths: ids up to the start of the second part, then moved on.

    part, share: drawn from 0 to below 1, for the length of the first part and how far the second moves; broadcastable.
    """
    first = 1 + (part * ((lengths + 1) // 2)).long()
    return ids + (share * (max_length - lengths + 1)).long() * (ids >= first)


def _lengths(encoding: Randomized | PoSE, positions: Positions) -> Tensor:
    """The length of every token's sequence, of sequences whose positions are 0 .. n-1 and which fit into max_length."""
    name = type(encoding).__name__
    positions.require_full_sequence(f"{name} draws a text's positions up to max_length")
    positions.require_one_axis(name)
    lengths = positions.lengths()
    if not torch.compiler.is_compiling():
        if int(lengths.max()) > encoding.max_length:
            raise InputError(f"a text has {int(lengths.max())} tokens: make it larger", max_length=encoding.max_length)
        inside = (positions.q >= 0) & (positions.q < lengths.clamp(min=1))
        if positions.q.is_floating_point() or not bool(inside.all()):
            raise InputError(f"{name} takes inputs whose positions are 0 .. n-1: pass such positions, or use CAPE")
    return lengths


def _documents(positions: Positions, batch: int) -> tuple[Tensor, int]:
    """The number of every token's document in its row, (batch, n), and how many there are."""
    if positions.q_document is None:
        return torch.zeros_like(positions.q_order).expand(batch, -1), 1
    document = positions.q_document.unique(return_inverse=True)[1]
    return document.expand(batch, -1), int(document.max()) + 1
