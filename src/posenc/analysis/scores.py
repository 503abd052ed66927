# SPDX-License-Identifier: Apache-2.0
"""What position does to attention's scores by distance: what is added to them, how fast pairs turn, and what comes of it."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.analysis.codes import made
from posenc.analysis.finding import Finding
from posenc.analysis.sizes import Sizes, needs_causal, size_of, sizes_of
from posenc.attention import prepare
from posenc.backends.reference import Reference
from posenc.bias import dense_sum
from posenc.checks import check_sizes, checked
from posenc.encoding import Encoding, bias_of
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
    heads: (num_heads, n), NaN where the head hides the key. of_content: whether it also depends on what tokens say; then
    all say one in every channel. learned: whether there are weights in it."""

    name: str
    distances: Tensor
    heads: Tensor
    of_content: bool
    learned: bool

    def sentences(self) -> list[str]:
        past, seen = self.distances >= 0, ~self.heads.isnan().any(0)
        if not bool(seen[past].any()):
            return ["At no distance do all heads see the key: nothing that they add can be compared."]
        first, last = (int(self.distances[past & seen][end]) for end in (0, -1))
        near, far = (self.heads[:, self.distances == at][:, 0] for at in (first, last))
        changes = (far - near).tolist()
        most = max(changes, key=abs)
        said = [
            f"From distance {first} to {last}, what is added to the scores changes by {_signed(most)}"
            + (
                f" in head {changes.index(most)} and by {_signed(min(changes, key=abs))} in the head that changes least."
                if len(changes) > 1
                else "."
            )
        ]
        if hidden := int((past & ~seen).sum()):
            every = int((past & self.heads.isnan().all(0)).sum())
            said.append(
                f"Of {int(past.sum())} distances back, {hidden} are hidden"
                + (f", {hidden - every} of them in some heads alone." if every < hidden else ".")
            )
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
        apart = (before - after).abs()
        apart[before.isnan() & after.isnan()] = 0.0
        return float(apart.nan_to_num(math.inf).max())


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
        spread, shown = self.unrelated_spread.nanmean(0)[seen], seen.nonzero()
        first, last = int(shown.min()), int(shown.max())
        said = [
            f"Meeting its own like, a token scores {_signed(float(same[0]))} at distance {first} and {_signed(float(same[-1]))} "
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
        encoding: with a site `bias`, or its text. layer: whose. name: for people. shape: for a text, see
            posenc.analysis.codes.SHAPE; for an encoding the sizes that it does not keep itself as num_heads,
            num_kv_heads, head_dim or dim.

    Raises:
        InputError: an encoding that adds nothing to the scores, or positions that it does not take.
    """
    whole, own, layer, name, sizes = _made(encoding, layer, name, shape)
    if "bias" not in own.sites():
        raise InputError(f"{name}: it adds nothing to the scores")
    _check_length(length, whole, name)
    width = width_of(own, sizes)
    _share(own, width, sizes)
    one_way = _one_way(own) or whole.causal_only or needs_causal(own, sizes, layer)
    both = not one_way and _fits(whole, 2 * length - 1)
    keys = torch.arange(2 * length - 1 if both else length)
    at = Positions.from_ids([length - 1], keys, causal=not both)
    drawn = torch.Generator().manual_seed(0)
    found = []
    for content in (torch.ones(width), torch.randn(width, generator=drawn)):
        x = content.double().expand(1, sizes.num_heads, len(keys), width)
        with torch.no_grad():
            terms = bias_of(own, x[:, :, -1:], x[:, : sizes.num_kv_heads], at, layer)
            dense = dense_sum(terms, torch.device("cpu"))
        if dense is None:
            raise InputError(f"{name}: its bias has no terms in this layer")
        found.append(dense.expand(1, sizes.num_heads, 1, len(keys))[0, :, 0].double().flip(-1))
    ones, drawn_content = found
    hidden = ones == -torch.inf
    if not bool(ones[~hidden].isfinite().all()):
        raise InputError(f"{name}: what it adds to the scores is not finite")
    of_content = not torch.allclose(ones, drawn_content)
    learned = any(True for part in _parts(own) if "bias" in part.sites() for _ in part.parameters())
    return Bias(name, (length - 1 - keys).flip(0), ones.masked_fill(hidden, torch.nan), of_content, learned)


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
    _, own, layer, name, _ = _made(encoding, layer, name, shape)
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
    whole, own, layer, name, sizes = _made(encoding, layer, name, shape)
    check_sizes(samples=samples, length=length)
    if samples < 2:
        raise InputError(f"samples={samples}: a spread needs at least 2")
    _check_length(length, whole, name)
    width = width_of(own, sizes)
    drawn = torch.Generator().manual_seed(seed)
    _share(own, width, sizes)
    found, plain = [], []
    for _ in range(samples):
        token = torch.randn(1, width, generator=drawn, dtype=torch.float64)
        others = torch.randn(length, width, generator=drawn, dtype=torch.float64)
        others[-1:] = token
        pair = [_last_scores(own, layer, sizes, x) for x in (token.expand(length, -1), others)]
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
def _last_scores(encoding: Encoding, layer: int, sizes: Sizes, x: Tensor) -> tuple[Tensor, Tensor]:
    """(num_heads, length): what the encoding adds to the last token's scores with all tokens, and what they are
    without it. x: (length, width)."""
    at = encoding.place(Positions.arange(len(x), causal=True), 1)
    heads = encoding.embed(x[None], at, layer).expand(sizes.num_heads, -1, -1)[None]
    q, k = heads[:, :, -1:], heads[:, : sizes.num_kv_heads]
    last = Positions.arange(1, len(x) - 1, causal=True)
    problem = prepare(q, k, k, encoding, last, None, None, None, 0.0, layer)
    score = Reference().scores(problem, 0, 1, dense_sum(problem.bias, x.device))[0, :, 0]
    without = problem.scale * (x @ x[-1])
    return score - without, without.expand_as(score)


def _made(
    encoding: Encoding | str, layer: int, name: str | None, shape: dict[str, Any]
) -> tuple[Encoding, Encoding, int, str, Sizes]:
    """The encoding as it is in use, the one that acts in a layer, which of its layers that is, what to call it, and its
    sizes. A copy: it takes other projections than the caller's, and positions that move in training stand still in it."""
    if not isinstance(encoding, (Encoding, str)):
        raise InputError(f"encoding: a {type(encoding).__name__} is none; pass an Encoding or its text")
    text = encoding if isinstance(encoding, str) else None
    own = (made(text, **shape) if text is not None else copy.deepcopy(encoding)).eval()  # type: ignore[union-attr]
    acting, number = own.at(layer)
    return own, acting, number, name or text or own.known_as, sizes_of(acting, {} if text is not None else shape)


def _parts(encoding: Encoding) -> list[Encoding]:
    return [part for part in encoding.modules() if isinstance(part, Encoding)]


def width_of(encoding: Encoding, sizes: Sizes) -> int:
    """Channels of a token: a head's, and where something is added to the input, of that."""
    if "embed" not in encoding.sites() or sizes.dim is None:
        return sizes.head_dim
    if size_of(encoding, "head_dim") not in (None, sizes.dim):
        raise InputError(
            f"{encoding}: is {sizes.dim} wide at the input and {sizes.head_dim} in a head; identity projections need one "
            "width"
        )
    return sizes.dim


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


def _share(encoding: Encoding, width: int, sizes: Sizes) -> None:
    """Identity projections, for encodings that put vectors of their own through the model's."""
    dim = sizes.dim or width

    def project(x: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(x, (0, max(0, width - dim)))[..., :width]
        return padded.repeat(*[1] * (x.dim() - 1), sizes.num_heads)

    identity: Callable[[Tensor], Tensor] = project
    encoding.share([(identity, identity)] * max(1, encoding.num_layers))


def _number(value: float) -> str:
    return f"{value:.3g}"


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−") if value else "0"
