# SPDX-License-Identifier: Apache-2.0
"""What position does to attention's scores by distance: what is added to them, how fast pairs turn, and what comes of it."""

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posenc.analysis.codes import (
    Sizes,
    bias_of,
    frequencies_of,
    make,
    needs_causal,
    parts_of,
    refuse_gates,
    repeated,
    sizes_of,
    width_of,
)
from posenc.analysis.finding import Finding
from posenc.attention import Call, prepare
from posenc.backends.reference import Reference
from posenc.bias import Weights, dense_sum
from posenc.encoding import Encoding, gates_of
from posenc.errors import InputError, check_integers, check_sizes, counted
from posenc.positions import Positions

ROUNDING = 1e-12
"""Rounding of a score in float64."""
LIMIT = 2**16
"""The longest text whose scores are computed: every sample and head needs a vector for each of its tokens."""


@dataclass(frozen=True, eq=False)
class Bias(Finding):
    """What each head adds to a score. distances: (n,), of the query after the key; negative where the key comes later.
    heads: (num_heads, n), NaN where the head hides the key. of_content: whether it also depends on the content of tokens,
    which is then a one in every channel. learned: whether there are weights in it."""

    name: str
    distances: Tensor
    heads: Tensor
    of_content: bool
    learned: bool

    def sentences(self) -> list[str]:
        past, visible = self.distances >= 0, ~self.heads.isnan().any(0)
        if not bool(visible[past].any()):
            return ["At no distance do all heads see the key: nothing that they add can be compared."]
        first, last = (int(self.distances[past & visible][end]) for end in (0, -1))
        near, far = (self.heads[:, self.distances == at][:, 0] for at in (first, last))
        changes = (far - near).tolist()
        most = max(changes, key=abs)
        rest = "."
        if len(changes) > 1:
            rest = f" in head {changes.index(most)} and by {min(changes, key=abs):+.3g} in the head that changes least."
        sentences = [f"From distance {first} to {last}, what is added to the scores changes by {most:+.3g}{rest}"]
        if hidden := int((past & ~visible).sum()):
            every = int((past & self.heads.isnan().all(0)).sum())
            sentences.append(f"Of {int(past.sum())} distances back, {hidden} are hidden, {every} of them in all heads.")
        if not past.all():
            most = int(min(self.distances.max(), -self.distances.min()))
            before = self.heads[:, (self.distances >= 0) & (self.distances <= most)].nan_to_num(-torch.inf)
            after = self.heads[:, (self.distances <= 0) & (self.distances >= -most)].flip(-1).nan_to_num(-torch.inf)
            apart = float((before - after).abs().masked_fill(before == after, 0).max())
            sentences.append(
                "The same distance before and after a query gives the same."
                if apart < ROUNDING
                else f"Direction counts: the same distance before and after a query differs by up to {apart:.3g}."
            )
        if self.of_content:
            sentences.append("It depends on the content, too; shown is that of tokens with a one in every channel.")
        if self.learned:
            sentences.append("Its weights are learned; these are its present ones.")
        return sentences


@dataclass(frozen=True, eq=False)
class PairRotation(Finding):
    """How fast each pair of channels rotates. inv_freq: (pairs,) radians a position, in the order of the pairs. wavelengths:
    (pairs,) positions a rotation, infinite where a pair does not rotate. unfinished: how many rotate, but not once within the
    training length, `trained`."""

    name: str
    inv_freq: Tensor
    wavelengths: Tensor
    unfinished: int
    trained: int

    def sentences(self) -> list[str]:
        still = int((self.inv_freq == 0).sum())
        turning = self.wavelengths[self.inv_freq != 0]
        if not len(turning):
            return [f"None of the {still} pairs rotates."]
        sentences = [
            f"{self.unfinished} of {len(self.inv_freq)} pairs do not complete a full rotation within {self.trained} positions "
            "of training: a longer input rotates them to new angles."
            if self.unfinished
            else f"Every pair that rotates completes a full rotation within {self.trained} positions of training.",
            f"Wavelengths go from {turning.min():.4g} to {turning.max():.4g} positions.",
        ]
        return sentences + ([f"No rotation, and content alone, in {counted(still, 'pair')}."] if still else [])


@dataclass(frozen=True, eq=False)
class PositionScores(Finding):
    """What position adds to the scores of the last token of a text with those before it, by distance: score with the
    encoding minus score without it, in nats. All (num_heads, length), distance 0 first, NaN where a token is hidden.

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
        visible = self.same.isfinite().any(0)
        same, unrelated = self.same.nanmean(0)[visible], self.unrelated.nanmean(0)[visible]
        spread, shown = self.unrelated_spread.nanmean(0)[visible], visible.nonzero()
        first, last = int(shown.min()), int(shown.max())
        if not bool((self.same.nan_to_num() != 0).any() | (self.unrelated.nan_to_num() != 0).any()):
            sentences = [f"Position changes no score within {self.length} tokens."]
        else:
            most = float(unrelated.abs().max())
            sentences = [
                f"The attention score between two copies of the same token {_change(float(same[-1] - same[0]))} from "
                f"distance {first} to {last}, mean over heads and contents. Content alone gives the scores of unrelated "
                f"tokens a standard deviation of {self.content:.3g}.",
                f"Of two unrelated tokens position changes the mean by up to {most:.3g}; "
                f"{_varies(float(spread[-1]), most, last)}.",
            ]
        if not bool(visible.all()):
            sentences.append(f"{int((~visible).sum())} of {self.length} distances are hidden from all heads.")
        return sentences


def _varies(spread: float, most: float, distance: int) -> str:
    if spread <= 1e-12 * (1 + most):  # of float64
        return f"at distance {distance} the change is the same for all contents"
    return f"over contents, the change has a standard deviation of {spread:.3g} at distance {distance}"


def _change(by: float) -> str:
    return f"{'drops' if by < 0 else 'rises'} by {abs(by):.3g}" if by else "stays the same"


def bias(encoding: Encoding | str, length: int = 512, *, name: str | None = None, **shape: Any) -> Bias:
    """What each head adds to a score by distance, up to `length` - 1 in both directions; for causal encodings, back
    alone. The query is at position length - 1, so that every key has a position.

    Args:
        encoding: with a site `bias`, or its text. name: for people. shape: for a text, see
            `codes_of`; for an encoding the sizes that it does not have as attributes num_heads, num_kv_heads, head_dim
            or dim.

    Raises:
        InputError: an encoding that adds nothing to the scores, or positions that it does not take.
    """
    prepared = _prepared(encoding, name, shape)
    acting, name, sizes = prepared.acting, prepared.name, prepared.sizes
    if "bias" not in acting.sites():
        raise InputError("it adds nothing to the scores", argument=name)
    refuse_gates(parts_of(acting), name)
    width = prepared.share(length)
    one_way = any(getattr(part, "bidirectional", True) is False for part in parts_of(acting))
    one_way = one_way or prepared.encoding.causal_only or needs_causal(acting, sizes)
    both = not one_way and prepared.fits(2 * length - 1)
    keys = torch.arange(2 * length - 1 if both else length)
    at = Positions.from_ids([length - 1], keys, causal=not both, packed=False)
    drawn = torch.Generator().manual_seed(0)
    contents = torch.ones(width), torch.randn(width, generator=drawn)
    with torch.no_grad():
        added = [bias_of(acting, at, sizes, content)[:, 0].double().flip(-1) for content in contents]
    ones, drawn_content = added
    hidden = ones == -torch.inf
    if not bool(ones[~hidden].isfinite().all()):
        raise InputError("what it adds to the scores is not finite", argument=name)
    of_content = not torch.allclose(ones, drawn_content)
    learned = any(True for part in parts_of(acting) if "bias" in part.sites() for _ in part.parameters())
    return Bias(name, (length - 1 - keys).flip(0), ones.masked_fill(hidden, torch.nan), of_content, learned)


def rotation(encoding: Encoding | str, trained: int = 512, *, name: str | None = None, **shape: Any) -> PairRotation:
    """How fast the pairs of an encoding's keys turn: the part of it that turns them, unmapped.

    Args:
        encoding: as in `bias`. trained: positions to compare wavelengths with. name: for people.

    Raises:
        InputError: an encoding that rotates nothing by an angle that grows evenly with position.
    """
    prepared = _prepared(encoding, name, shape)
    name = prepared.name
    check_sizes(trained=trained)
    acts = "rotate" in prepared.acting.sites()  # what turns vectors for its bias alone has a rotation inside
    rotating = [part for part in parts_of(prepared.acting) if acts and "rotate" in part.sites()]
    turning = next((part for part in rotating if not list(part.children())), next(iter(rotating), None))
    if turning is None:
        raise InputError("it rotates no channels", argument=name)
    with torch.no_grad():
        frequencies = frequencies_of(turning, name)
    if not torch.equal(frequencies, frequencies[:1].expand_as(frequencies)):
        name = f"{name}, head 0"
    angles = frequencies[0]
    wavelengths = 2 * math.pi / angles.abs()
    unfinished = int(((wavelengths > trained) & (angles != 0)).sum())
    return PairRotation(name, angles, wavelengths, unfinished, trained)


def scores(
    encoding: Encoding | str,
    length: int = 512,
    *,
    samples: int = 64,
    seed: int = 0,
    name: str | None = None,
    **shape: Any,
) -> PositionScores:
    """What position does to the scores of a text's last token, by distance, whichever site it acts on.

    Contents are drawn from a normal distribution. What is added to the input passes identity projections, so that
    q = k = content + code; heads that share the input differ in what the encoding does to them alone.

    Args:
        encoding: as in `bias`, any. length: tokens of the text. samples, seed: contents that are drawn, and how.
        name: for people.

    Raises:
        InputError: a length or samples below 2, or positions that the encoding does not take.
    """
    prepared = _prepared(encoding, name, shape)
    check_integers(2, samples=samples)
    check_integers(seed=seed)
    width = prepared.share(length)
    drawn = torch.Generator().manual_seed(seed)
    added_by_sample, plain = [], []
    for _ in range(samples):
        token = torch.randn(1, width, generator=drawn, dtype=torch.float64)
        others = torch.randn(length, width, generator=drawn, dtype=torch.float64)
        others[-1:] = token
        pair = [_last_scores(prepared, x) for x in (token.expand(length, -1), others)]
        added_by_sample.append(torch.stack([added for added, _ in pair]))
        plain.append(pair[1][1])
    each = torch.stack(added_by_sample).flip(-1)
    hidden = each == -torch.inf
    if bool(hidden.all()) or not bool(each[~hidden].isfinite().all()):
        raise InputError("its scores are not finite", argument=prepared.name)
    each = each.masked_fill(each.abs() < ROUNDING, 0.0).masked_fill(hidden, torch.nan)
    mean, spread = each.mean(0), each.std(0)
    content = float(torch.stack(plain)[:, :, :-1].std())
    return PositionScores(prepared.name, mean[0], spread[0], mean[1], spread[1], content, samples, seed)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A copy of an encoding in evaluation mode, the part that acts in the first layer, a name and sizes."""

    encoding: Encoding
    acting: Encoding
    name: str
    sizes: Sizes

    def fits(self, length: int) -> bool:
        return self.encoding.max_positions is None or length <= self.encoding.max_positions

    def share(self, length: int) -> int:
        """Give it identity projections, for encodings that apply the model's to their vectors; returns the width of
        a token. Raises InputError for a length that it does not take."""
        check_integers(2, LIMIT, length=length)
        if not self.fits(length):
            raise InputError(f"{self.name} has {self.encoding.max_positions} positions", "give fewer", length=length)
        width = width_of(self.acting, self.sizes)
        dim = self.sizes.dim or width

        def identity(x: Tensor) -> Tensor:
            padded = torch.nn.functional.pad(x, (0, max(0, width - dim)))[..., :width]
            return padded.repeat(*[1] * (x.dim() - 1), self.sizes.num_heads)

        self.acting.share([(identity, identity)] * max(1, self.acting.num_layers))
        return width


def _prepared(encoding: Encoding | str, name: str | None, shape: dict[str, Any]) -> _Prepared:
    if isinstance(encoding, str):
        name, encoding, given = name or encoding, make(encoding, **shape), {}
    elif isinstance(encoding, Encoding):
        name, encoding, given = name or encoding.known_as, copy.deepcopy(encoding), shape
    else:
        raise InputError(f"got a {type(encoding).__name__}", "pass an Encoding or its text", argument="encoding")
    acting = encoding.eval().acting_in(0).part
    return _Prepared(encoding, acting, name, sizes_of(acting, given))


@torch.no_grad()
def _last_scores(prepared: _Prepared, x: Tensor) -> tuple[Tensor, Tensor]:
    """(num_heads, length): what the encoding adds to the last token's scores with all tokens, and what they are
    without it. x: (length, width)."""
    encoding, sizes = prepared.acting, prepared.sizes
    at = encoding.augment(Positions.arange(len(x), causal=True), 1)
    heads = encoding.embed(x[None], at).expand(sizes.num_heads, -1, -1)[None]
    q, k = heads[:, :, -1:], heads[:, : sizes.num_kv_heads]
    last = Positions.arange(1, len(x) - 1, causal=True)
    gates = gates_of(encoding, repeated(x, sizes.dim)[None])
    problem = prepare(Call(q, k, k, encoding, last, gates=gates))
    problem = replace(problem, modifiers=[each for each in problem.modifiers if not isinstance(each, Weights)])
    score = Reference().scores(problem, 0, 1, dense_sum(problem.bias, x.device))[0, :, 0]
    without = encoding.scale_of(0, q.shape[-1]) * (x @ x[-1])
    return score - without, without.expand_as(score)
