# SPDX-License-Identifier: Apache-2.0
"""What position does to attention's scores by distance: what is added to them, how fast pairs turn, and what comes of it."""

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posenc.analysis.codes import Sizes, make, needs_causal, parts_of, refuse_gates, repeated, sizes_of, width_of
from posenc.analysis.finding import LINE, PALETTE, SOFT, AnalysisQuestion, Axes, Finding, first_sentence, plot
from posenc.attention import Call, prepare
from posenc.backends.reference import Reference
from posenc.bias import Weights, dense_sum
from posenc.encoding import Encoding, gates_of
from posenc.encodings.rotary import Rotary
from posenc.encodings.shared import key_angles
from posenc.errors import InputError, check_integers, check_sizes, counted
from posenc.positions import Positions

ROUNDING = 1e-12
"""Rounding of a score in float64."""
VARIES = 1e-20
"""Of squares, relative to their sum: variance below this is rounding."""
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
    """How fast each pair of channels turns. angles: (pairs,) radians a position, in the order of the pairs. trained: the
    length that wavelengths are compared with."""

    name: str
    angles: Tensor
    trained: int

    @property
    def wavelengths(self) -> Tensor:
        """Positions a turn, (pairs,); infinite where a pair does not rotate."""
        return 2 * math.pi / self.angles.abs()

    @property
    def unfinished(self) -> int:
        """Pairs that turn, but not once within the training length."""
        return int(((self.wavelengths > self.trained) & (self.angles != 0)).sum())

    def sentences(self) -> list[str]:
        still = int((self.angles == 0).sum())
        turning = self.wavelengths[self.angles != 0]
        if not len(turning):
            return [f"None of the {still} pairs rotates."]
        sentences = [
            f"{self.unfinished} of {len(self.angles)} pairs do not complete a full rotation within {self.trained} positions "
            "of training: a longer input rotates them to new angles."
            if self.unfinished
            else f"Every pair that rotates completes a full rotation within {self.trained} positions of training.",
            f"Wavelengths go from {turning.min():.4g} to {turning.max():.4g} positions.",
        ]
        return sentences + ([f"No rotation, and content alone, in {counted(still, 'pair')}."] if still else [])

    def to_dict(self) -> dict[str, Any]:
        wavelengths = [wave if math.isfinite(wave) else None for wave in self.wavelengths.tolist()]
        return super().to_dict() | {"wavelengths": wavelengths, "unfinished": self.unfinished}


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
    added = []
    for content in (torch.ones(width), torch.randn(width, generator=drawn)):
        x = content.double().expand(1, sizes.num_heads, len(keys), width)
        with torch.no_grad():
            terms = acting.effects(at).terms(x[:, :, -1:], x[:, : sizes.num_kv_heads])
            dense = dense_sum(terms, torch.device("cpu"))
        if dense is None:
            raise InputError("its bias has no terms in this layer", argument=name)
        added.append(dense.expand(1, sizes.num_heads, 1, len(keys))[0, :, 0].double().flip(-1))
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
    at = Positions.from_ids([0, 1, 2])
    with torch.no_grad():
        try:
            angles = turning.angles(at.k) if isinstance(turning, Rotary) else key_angles(turning, at)
        except InputError:
            raise InputError("it rotates no pair of channels by an angle", argument=name) from None
    if not torch.equal(angles, angles[:, :1].expand_as(angles)):
        name = f"{name}, head 0"
    angles = angles[0, 0]
    step = angles[1] - angles[0]
    if not torch.allclose(angles[2] - angles[1], step, rtol=1e-9):
        raise InputError("its angles do not grow evenly with position", argument=name)
    return PairRotation(name, step.double(), trained)


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
        InputError: sizes below 1, or positions that the encoding does not take.
    """
    prepared = _prepared(encoding, name, shape)
    check_integers(2, samples=samples)
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
        if not 2 <= length <= LIMIT:
            raise InputError(f"must lie between 2 and {LIMIT}", length=length)
        if not self.fits(length):
            raise InputError(
                f"{self.name} has positions for {self.encoding.max_positions}", "give fewer", length=length
            )
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


def by_distance(scores: Tensor, visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of scores (batch, heads, n, n): the distances, query minus key, at which they are visible; their mean at each, (heads,
    distances); and the share of their variance that the distance explains, (heads,), nan where they do not vary.
    visible: broadcastable to (batch, 1, n, n)."""
    n = scores.shape[-1]
    at = torch.arange(n)
    inside = visible.expand(len(scores), 1, n, n)[:, 0]
    index = (at[:, None] - at + n - 1).expand(len(scores), n, n)[inside]
    values = scores.transpose(0, 1)[:, inside]
    middle = values.mean(-1, keepdim=True)
    off = values - middle
    count = torch.bincount(index, minlength=2 * n - 1)
    means = torch.zeros(len(values), 2 * n - 1, dtype=values.dtype).index_add_(1, index, off) / count
    total = off.square().sum(-1)
    explained = 1 - (off - means[:, index]).square().sum(-1) / total
    varies = total > VARIES * values.square().sum(-1)
    occurs = count > 0
    return torch.arange(1 - n, n)[occurs], (means + middle)[:, occurs], explained.where(varies, torch.nan)


MOST = 9
"""Heads that still get a colour and a name each."""


@plot("A line per head: where it falls, that head attends less to tokens so far away; a flat line ignores distance.")
def plot_bias_by_distance(ax: Axes, finding: Bias) -> None:
    """What each head adds to a score, by the distance of the two tokens."""
    _by_head(ax, finding.distances, finding.heads)
    ax.set(xlabel="tokens from the query back to the key", ylabel="added to the score")


@plot(
    "Pairs above the dashed line do not complete a full rotation in training: a longer input rotates them to new angles."
)
def plot_pair_wavelengths(ax: Axes, finding: PairRotation) -> None:
    """Positions a turn, pair by pair."""
    turning = finding.wavelengths.isfinite()
    pairs = torch.arange(len(finding.angles))
    late = turning & (finding.wavelengths > finding.trained)
    for which, colour, name in (
        (turning & ~late, PALETTE[0], "complete a rotation"),
        (late, PALETTE[1], "do not"),
    ):
        if bool(which.any()):
            ax.plot(pairs[which], finding.wavelengths[which], "o", markersize=4, color=colour, label=name)
    ax.axhline(finding.trained, color=SOFT, linestyle="--", linewidth=1.2, label=f"training length, {finding.trained}")
    ax.set(yscale="log", xlabel="pair of channels", ylabel="wavelength (positions)")
    ax.legend()


@plot(
    "The faster the score between two copies of the same token falls from left to right, the more local attention becomes."
)
def plot_effective_scores(ax: Axes, finding: PositionScores) -> None:
    """What position adds to scores by distance, mean over heads, with a standard deviation over contents."""
    distances = torch.arange(finding.length)
    for values, spread, colour, name in (
        (finding.same, finding.same_spread, PALETTE[0], "two copies of the same token"),
        (finding.unrelated, finding.unrelated_spread, PALETTE[1], "two unrelated tokens"),
    ):
        mean, around = values.nanmean(0), spread.nanmean(0)
        ax.plot(distances, mean, color=colour, label=name)
        ax.fill_between(distances, mean - around, mean + around, color=colour, alpha=0.18, linewidth=0)
    ax.axhline(0, color=LINE, linewidth=1)
    ax.set(xlabel="tokens back", ylabel="score minus score without positions")
    ax.legend()


@plot("Heads that part ways specialise by distance; where all lie on one line, position treats every head alike.")
def plot_scores_by_head(ax: Axes, finding: PositionScores) -> None:
    """What position adds to the score of a token with an identical one, a line per head."""
    _by_head(ax, torch.arange(finding.length), finding.same)
    ax.set(xlabel="tokens back", ylabel="score minus score without positions")


def _by_head(ax: Axes, distances: torch.Tensor, heads: torch.Tensor) -> None:
    for number, values in enumerate(heads):
        named = {"label": f"head {number}"} if len(heads) <= MOST else {"color": PALETTE[0], "alpha": 0.4}
        ax.plot(distances, values, **named)
    if 1 < len(heads) <= MOST:
        ax.legend()


ROTATION = AnalysisQuestion(
    "How fast does each pair of channels rotate?",
    lambda t: rotation(t.encoding, t.trained, **t.named),
    lambda t, finding: (plot_pair_wavelengths.of(finding),),
    first_sentence,
)
BIAS = AnalysisQuestion(
    "What is added to the scores?",
    lambda t: bias(t.encoding, t.length, **t.named),
    lambda t, finding: (plot_bias_by_distance.of(finding),),
    first_sentence,
)
SCORES = AnalysisQuestion(
    "How does position change a score?",
    lambda t: scores(t.encoding, t.length, seed=t.seed, **t.named),
    lambda t, finding: [each.of(finding) for each in (plot_effective_scores, plot_scores_by_head)[: len(finding.same)]],
    first_sentence,
)
