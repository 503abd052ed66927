# SPDX-License-Identifier: Apache-2.0
"""What position does to attention's scores by distance: what is added to them, how fast pairs turn, and what comes of it."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.analysis.codes import SHAPE, made
from posenc.analysis.finding import Finding
from posenc.attention import posed
from posenc.backends.reference import Reference
from posenc.bias import dense_sum, validated
from posenc.checks import check_sizes, checked
from posenc.encoding import Encoding
from posenc.encodings.mapped import Mapped
from posenc.encodings.rotary import Rotary
from posenc.errors import InputError
from posenc.positions import Positions

ROUNDING = 1e-12
"""What a score in float64 may differ by without anybody having changed it."""
LIMIT = 2**16
"""The longest text whose scores are computed: every sample and head holds a vector for each of its tokens."""


@dataclass(frozen=True, eq=False)
class Bias(Finding):
    """What each head adds to a score. distances: (n,), of the query after the key; negative where the key comes later.
    heads: (num_heads, n). of_content: whether it also depends on what the two tokens say; then both say one in every
    channel. learned: whether there are weights in it."""

    name: str
    distances: Tensor
    heads: Tensor
    of_content: bool
    learned: bool

    def sentences(self) -> list[str]:
        past = self.distances >= 0
        near, far = self.heads[:, self.distances == 0][:, 0], self.heads[:, past][:, -1]
        last = int(self.distances.max())
        changes = (far - near).tolist()
        most = max(changes, key=abs)
        said = [
            f"From distance 0 to {last}, what is added to the scores changes by {_signed(most)}"
            + (
                f" in head {changes.index(most)} and by {_signed(min(changes, key=abs))} in the head that changes least."
                if len(changes) > 1
                else "."
            )
        ]
        if not past.all():
            apart = self._mirrored()
            said.append(
                "Tokens before and after a query are treated alike."
                if apart < ROUNDING
                else f"Direction counts: the same distance before and after a query differs by up to {_number(apart)}."
            )
        if self.of_content:
            said.append("It depends on the content, too; shown is that of tokens with a one in every channel.")
        if self.learned:
            said.append("Its weights are learned; these are the ones it was given.")
        return said

    def _mirrored(self) -> float:
        most = int(min(self.distances.max(), -self.distances.min()))
        before = self.heads[:, (self.distances >= 0) & (self.distances <= most)]
        after = self.heads[:, (self.distances <= 0) & (self.distances >= -most)].flip(-1)
        return float((before - after).abs().max())


@dataclass(frozen=True, eq=False)
class Rotation(Finding):
    """How fast each pair of channels turns. angles: (pairs,) radians a position, in the order of the pairs. trained: the
    length that wavelengths are held against."""

    name: str
    angles: Tensor
    trained: int

    @property
    def wavelengths(self) -> Tensor:
        """Positions a turn, (pairs,); infinite where a pair stands still."""
        return 2 * math.pi / self.angles.abs()

    @property
    def unfinished(self) -> int:
        """Pairs that turn, but not once within the trained length."""
        return int(((self.wavelengths > self.trained) & (self.angles != 0)).sum())

    def sentences(self) -> list[str]:
        still = int((self.angles == 0).sum())
        turning = self.wavelengths[self.angles != 0]
        if not len(turning):
            return [f"None of the {still} pairs turns."]
        said = [
            f"{self.unfinished} of {len(self.angles)} pairs never finish a turn within {self.trained} positions: beyond "
            "them a model meets angles it was not trained on."
            if self.unfinished
            else f"Every pair that turns comes round within {self.trained} positions.",
            f"The fastest pair is back after {turning.min():.4g} positions, the slowest after {turning.max():.4g}.",
        ]
        return said + ([f"{still} pairs stand still and see content alone."] if still else [])

    def to_dict(self) -> dict[str, Any]:
        wavelengths = [wave if math.isfinite(wave) else None for wave in self.wavelengths.tolist()]
        return super().to_dict() | {"wavelengths": wavelengths, "unfinished": self.unfinished}


@dataclass(frozen=True, eq=False)
class Scores(Finding):
    """What position adds to the scores of the last token of a text with those before it, by distance: score with the
    encoding minus score without it, in nats. All (num_heads, length), distance 0 first, NaN where a token is not seen.

    same, same_spread: mean and standard deviation over random contents, of a token that is there twice; unrelated,
    unrelated_spread: of two independent ones. content: standard deviation of the score that independent contents have
    without any position, to compare with. seed: of the contents. samples: how many.
    """

    name: str
    same: Tensor
    same_spread: Tensor
    unrelated: Tensor
    unrelated_spread: Tensor
    content: float
    samples: int
    seed: int

    @property
    def length(self) -> int:
        return self.same.shape[1]

    def sentences(self) -> list[str]:
        seen = self.same.isfinite().any(0)
        same, unrelated = self.same.nanmean(0)[seen], self.unrelated.nanmean(0)[seen]
        spread, last = self.unrelated_spread.nanmean(0)[seen], int(seen.nonzero().max())
        said = [
            f"Meeting its own like, a token scores {_signed(float(same[0]))} at distance 0 and {_signed(float(same[-1]))} "
            f"at distance {last} against the same without positions, mean over heads and contents; for scale, content "
            f"alone spreads the scores of unrelated tokens by {_number(self.content)}.",
            f"Of two unrelated tokens position moves the mean by up to {_number(float(unrelated.abs().max()))}, and it "
            f"spreads their scores by {_number(float(spread[-1]))} at distance {last}.",
        ]
        if not bool((self.same.nan_to_num() != 0).any() | (self.unrelated.nan_to_num() != 0).any()):
            said = [f"Position changes no score within {self.length} tokens."]
        if not bool(seen.all()):
            said.append(f"{int((~seen).sum())} of {self.length} distances are not seen at all.")
        return said


@checked
def bias(encoding: Encoding | str, length: int = 512, *, layer: int = 0, name: str | None = None, **shape: Any) -> Bias:
    """What each head adds to a score by distance, up to `length` - 1 in both directions; for causal encodings, back
    alone. The query is at position length - 1, so that every key has a position.

    Args:
        encoding: with a site `bias`, or its text (for `shape`, see posenc.analysis.codes.SHAPE). layer: whose. name:
        for people.

    Raises:
        InputError: an encoding that adds nothing to the scores, or positions that it does not take.
    """
    whole, own, layer, name = _made(encoding, layer, name, shape)
    if "bias" not in own.sites():
        raise InputError(f"{name}: it adds nothing to the scores")
    _check_length(length, whole, name)
    both = not (whole.causal_only or _one_way(own)) and _fits(whole, 2 * length - 1)
    keys = torch.arange(2 * length - 1 if both else length)
    at = Positions.from_ids([length - 1], keys, causal=not both)
    drawn = torch.Generator().manual_seed(0)
    num_heads, width = heads_of(own), width_of(own)
    _share(own, width, num_heads)
    found = []
    for content in (torch.ones(width), torch.randn(width, generator=drawn)):
        k = content.double().expand(1, num_heads, len(keys), width)
        with torch.no_grad():
            dense = dense_sum(
                validated(own.bias(k[:, :, :1], k, at, layer), k[:, :, :1], k, origin=f"{type(own).__name__}.bias"),
                torch.device("cpu"),
            )
        assert dense is not None
        found.append(dense.expand(1, num_heads, 1, len(keys))[0, :, 0].double().flip(-1))
    if not bool(found[0].isfinite().all()):
        raise InputError(f"{name}: what it adds to the scores is not finite")
    of_content = not torch.allclose(found[0], found[1])
    learned = any(True for part in _parts(own) if "bias" in part.sites() for _ in part.parameters())
    return Bias(name, (length - 1 - keys).flip(0), found[0], of_content, learned)


@checked
def rotation(
    encoding: Encoding | str, trained: int = 512, *, layer: int = 0, name: str | None = None, **shape: Any
) -> Rotation:
    """How fast the pairs of an encoding's keys turn: the part of it that turns them, unmapped.

    Args:
        encoding: as in `bias`. trained: positions to hold wavelengths against. layer: whose. name: for people.

    Raises:
        InputError: an encoding that turns nothing by an angle that grows evenly with position.
    """
    _, own, layer, name = _made(encoding, layer, name, shape)
    check_sizes(trained=trained)
    turning = _turning(own)
    if turning is None:
        raise InputError(f"{name}: it turns no channels")
    at = Positions.from_ids([0, 1, 2])
    with torch.no_grad():
        try:
            angles = turning.angles(at.k) if isinstance(turning, Rotary) else turning.key_angles(at, layer)
        except InputError:
            raise InputError(f"{name}: it turns no pair of channels by an angle of its own") from None
    angles = angles[0, 0]
    step = angles[1] - angles[0]
    if not torch.allclose(angles[2] - angles[1], step, rtol=1e-9):
        raise InputError(f"{name}: its angles do not grow evenly with position")
    return Rotation(name, step.double(), trained)


@checked
def scores(
    encoding: Encoding | str,
    length: int = 512,
    *,
    samples: int = 64,
    seed: int = 0,
    layer: int = 0,
    name: str | None = None,
    **shape: Any,
) -> Scores:
    """What position does to the scores of a text's last token, by distance, whichever site it acts on.

    Contents are drawn from a normal distribution. What is added to the input passes identity projections, so that
    q = k = content + code; heads that share the input differ in what the encoding does to them alone.

    Args:
        encoding: as in `bias`, any. length: tokens of the text. samples, seed: contents that are drawn, and how.
            layer: whose. name: for people.

    Raises:
        InputError: sizes below 1, or positions that the encoding does not take.
    """
    whole, own, layer, name = _made(encoding, layer, name, shape)
    check_sizes(samples=samples, length=length)
    if samples < 2:
        raise InputError(f"samples={samples}: a spread needs at least 2")
    _check_length(length, whole, name)
    width, num_heads = width_of(own), heads_of(own)
    drawn = torch.Generator().manual_seed(seed)
    _share(own, width, num_heads)
    found, plain = [], []
    for _ in range(samples):
        token = torch.randn(1, width, generator=drawn, dtype=torch.float64)
        others = torch.randn(length, width, generator=drawn, dtype=torch.float64)
        others[-1:] = token
        pair = [_last_scores(own, layer, num_heads, x) for x in (token.expand(length, -1), others)]
        found.append(torch.stack([added for added, _ in pair]))
        plain.append(pair[1][1])
    each = torch.stack(found).flip(-1)
    hidden = each == -torch.inf
    if bool(hidden.all()) or not bool(each[~hidden].isfinite().all()):
        raise InputError(f"{name}: its scores are not finite")
    each = each.masked_fill(each.abs() < ROUNDING, 0.0).masked_fill(hidden, torch.nan)
    mean, spread = each.mean(0), each.std(0)
    content = float(torch.stack(plain)[:, :, :-1].std())
    return Scores(name, mean[0], spread[0], mean[1], spread[1], content, samples, seed)


@torch.no_grad()
def _last_scores(encoding: Encoding, layer: int, num_heads: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """(num_heads, length): what the encoding adds to the last token's scores with all tokens, and what they are
    without it. x: (length, width)."""
    at = encoding.place(Positions.arange(len(x), causal=True), 1)
    k = encoding.embed(x[None], at, layer).expand(num_heads, -1, -1)[None]
    last = Positions.arange(1, len(x) - 1, causal=True)
    problem = posed(k[:, :, -1:], k, k, encoding, last, None, None, None, 0.0, layer)
    score = Reference().scores(problem, 0, 1, dense_sum(problem.bias, x.device))[0, :, 0]
    without = problem.scale * (x @ x[-1])
    return score - without, without.expand_as(score)


def _made(
    encoding: Encoding | str, layer: int, name: str | None, shape: dict[str, Any]
) -> tuple[Encoding, Encoding, int, str]:
    """The encoding as it is in use, the one that acts in a layer, which of its layers that is, and what to call it. A
    copy: it takes other projections than the caller's, and positions that move in training stand still in it."""
    if not isinstance(encoding, (Encoding, str)):
        raise InputError(f"encoding: a {type(encoding).__name__} is none; pass an Encoding or its text")
    if shape and not isinstance(encoding, str):
        raise InputError(f"{', '.join(sorted(shape))}: an Encoding has its own; only a text takes a shape")
    own = (made(encoding, **shape) if isinstance(encoding, str) else copy.deepcopy(encoding)).eval()
    return own, *own.at(layer), name or (encoding if isinstance(encoding, str) else own.known_as)


def _parts(encoding: Encoding) -> list[Encoding]:
    return [part for part in encoding.modules() if isinstance(part, Encoding)]


def _sizes(encoding: Encoding, name: str) -> int | None:
    return next((size for part in _parts(encoding) if (size := getattr(part, name, None)) is not None), None)


def width_of(encoding: Encoding) -> int:
    """Channels of a token: a head's, and where something is added to the input, of that."""
    width, dim = _sizes(encoding, "head_dim"), _sizes(encoding, "dim")
    if "embed" not in encoding.sites():
        return width or SHAPE["head_dim"]
    if dim is not None and width is not None and dim != width:
        raise InputError(
            f"{encoding}: is {dim} wide at the input and {width} in a head; identity projections need one width"
        )
    return dim or width or SHAPE["dim"]


def heads_of(encoding: Encoding) -> int:
    return _sizes(encoding, "num_heads") or 1


def _turning(encoding: Encoding) -> Encoding | None:
    """The part that turns keys by their position."""
    for part in _parts(encoding):
        if "rotate" in part.sites() and not isinstance(part, Mapped) and len(list(part.children())) == 0:
            return part
    return next((part for part in _parts(encoding) if "rotate" in part.sites()), None)


def _one_way(encoding: Encoding) -> bool:
    return any(getattr(part, "bidirectional", True) is False for part in _parts(encoding))


def _fits(encoding: Encoding, count: int) -> bool:
    return encoding.max_positions is None or count <= encoding.max_positions


def _check_length(length: int, encoding: Encoding, name: str) -> None:
    if not 2 <= length <= LIMIT:
        raise InputError(f"length={length}: must lie between 2 and {LIMIT}")
    if not _fits(encoding, length):
        raise InputError(f"length={length}: {name} has positions for {encoding.max_positions}; give fewer")


def _share(encoding: Encoding, width: int, num_heads: int) -> None:
    """Identity projections, for encodings that put vectors of their own through the model's."""
    dim = _sizes(encoding, "dim") or width

    def project(x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x, (0, max(0, width - dim)))[..., :width]
        return padded.repeat(*[1] * (x.dim() - 1), num_heads)

    identity: Callable[[Tensor], Tensor] = project
    encoding.share([(identity, identity)] * max(1, encoding.num_layers))


def _number(value: float) -> str:
    return f"{value:.3g}"


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−") if value else "0"
