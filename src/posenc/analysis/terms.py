# SPDX-License-Identifier: Apache-2.0
"""The four terms of attention scores: (x_i + p_i) Wq Wk^T (x_j + p_j)^T, multiplied out on a trained model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc.analysis.finding import Finding
from posenc.analysis.first_layer import FirstLayer, first_layer
from posenc.checks import check_word, checked

TERMS = ("content-content", "content-position", "position-content", "position-position")
"""Query's part first, key's part second."""

DESIGNS: dict[str, tuple[str, ...]] = {
    "T5, TUPE": ("content-content", "position-position"),
    "DeBERTa": ("content-content", "content-position", "position-content"),
    "no position": ("content-content",),
    "position alone": ("position-position",),
}
"""What designs keep of the four terms. T5 replaces the last by a learned bias of the distance, TUPE computes it with
matrices of its own: trained so, they are not what is left of a model that was trained with all four."""


@dataclass(frozen=True, eq=False)
class FourTerms(Finding):
    """The terms of the first layer's scores, per head, over all pairs that a query sees.

    terms: their names; a fifth, "constant", where constants are kept apart. error: the largest difference between their
    sum and the model's own scores. Since softmax ignores what all keys of a query share, shares and correlations are of
    scores from which each query's mean is taken.
    share: (heads, terms), a term's variance over the sum of the terms' variances. correlation: (heads, terms, terms);
    nan where a term is constant. removed: (heads, terms), total variation between the attention with and without a
    term, mean over queries: 0 nothing changes, 1 everything. kept: the same when only some terms stay, by DESIGNS, (heads,).
    distances: query minus key. by_distance: (heads, distances), mean of position-position, above its mean over all pairs.
    explained: (heads,), the share of position-position's variance that distance alone accounts for; nan where it does
    not vary.
    map: (heads, n, n), position-position, mean over texts, nan where hidden; to_dict leaves it out.
    loss: of the model with its first layer changed so, nats per token; None: the model does not predict next tokens.
    """

    name: str
    texts: int
    length: int
    terms: tuple[str, ...]
    error: float
    share: Tensor
    correlation: Tensor
    removed: Tensor
    kept: Mapping[str, Tensor]
    distances: Tensor
    by_distance: Tensor
    explained: Tensor
    map: Tensor
    loss: Mapping[str, float] | None

    def of(self, term: str) -> int:
        """Where a term is along the tensors."""
        check_word("term", term, self.terms)
        return self.terms.index(term)

    def to_dict(self) -> dict[str, Any]:
        found = super().to_dict()
        del found["map"]
        return found

    def sentences(self) -> list[str]:
        mean, position = self.share.mean(0), self.share[:, self.of(TERMS[3])]
        content = self.share[:, self.of(TERMS[0])]
        cross = self.share[:, self.of(TERMS[1])] + self.share[:, self.of(TERMS[2])]
        said = [
            f"The terms add up to the model's own scores, to {self.error:.1g}: in the first layer, and only in the first "
            "layer, since behind it position is mixed into every vector.",
            "Of the terms' variances added up, mean over heads: "
            + ", ".join(f"{name} {value:.0%}" for name, value in zip(self.terms, mean.tolist(), strict=True))
            + ".",
            f"Position alone weighs most in head {int(position.argmax())} ({_percent(position.max())} of that sum), content "
            f"alone in head {int(content.argmax())} ({_percent(content.max())}), the cross terms in head "
            f"{int(cross.argmax())} ({_percent(cross.max())}).",
            "The position-position term does not vary."
            if bool(self.explained.isnan().all())
            else f"Distance alone accounts for {_percent(_known(self.explained).min())} to "
            f"{_percent(_known(self.explained).max())} of the position-position term's variance, by head.",
            "Keeping what others keep moves so much of the attention, mean over heads: "
            + ", ".join(f"{name} {_percent(moved.mean())}" for name, moved in self.kept.items())
            + ".",
        ]
        if self.loss is not None:
            rises = ", ".join(
                f"{k} {v - self.loss['as trained']:+.3f}" for k, v in self.loss.items() if k != "as trained"
            )
            said.append(
                f"The loss of {self.loss['as trained']:.3f} nats per token changes, without retraining, by: {rises}."
            )
        return said


@checked
@torch.no_grad()
def four_terms(
    model: nn.Module, tokens: Tensor, *, constants: Literal["content", "apart"] = "content", loss: bool = True
) -> FourTerms:
    """Split the scores of a model's first layer into what content and position of query and key make of them.

    Norms before the projections are linear at the scale that they have for the whole sum, so the split is exact. The
    model is copied to float64 and not changed.

    Args:
        model: a posenc Transformer with codes added to its input (sinusoidal, learned, ...) or a transformers model
            with a learned table (BERT's kind, GPT-2, OPT). tokens: (texts, length) without padding.
        constants: what belongs to neither, as biases of projections: "content" counts it as content, "apart" puts every
            product with it into a fifth term. loss: compute the loss of the pruned model, a forward pass for each.

    Raises:
        InputError: a model without codes at its input, such as one with rotary position, or tokens of a wrong shape.
    """
    check_word("constants", constants, ("content", "apart"))
    layer = first_layer(model, tokens)
    products = _products(layer, constants)
    whole, visible = layer.scores, layer.visible
    heads = whole.shape[1]
    stack = torch.stack([_centred(term, visible) for term in products.values()])  # (terms, batch, heads, n, n)
    flat = stack.transpose(1, 2).flatten(2)  # (terms, heads, pairs)
    covariance = torch.einsum("ahp,bhp->hab", flat, flat)
    variance = covariance.diagonal(dim1=1, dim2=2)
    own = _attention(whole, visible)
    removed = {name: _attention(whole - term, visible) for name, term in products.items()}
    kept = {
        name: _attention(_total(products[term] for term in (*terms, "constant") if term in products), visible)
        for name, terms in DESIGNS.items()
    }
    position = products[TERMS[3]]
    distances, by_distance, explained = _by_distance(position, visible)
    losses = None
    if loss and layer.loss is not None:
        changed = {f"without {name}": weights for name, weights in removed.items()} | kept
        losses = {"as trained": layer.loss(own)} | {name: layer.loss(weights) for name, weights in changed.items()}
    return FourTerms(
        name=layer.name,
        texts=len(tokens),
        length=tokens.shape[1],
        terms=tuple(products),
        error=float((_total(products.values()) - whole).abs().max()),
        share=variance / variance.sum(-1, keepdim=True),
        correlation=covariance / (variance[:, :, None] * variance[:, None, :]).sqrt(),
        removed=torch.stack([_moved(own, weights) for weights in removed.values()], -1),
        kept={name: _moved(own, weights) for name, weights in kept.items()},
        distances=distances,
        by_distance=by_distance,
        explained=explained,
        map=position.mean(0).masked_fill(~visible.expand(len(tokens), heads, -1, -1)[0], torch.nan),
        loss=losses,
    )


def _products(layer: FirstLayer, constants: str) -> dict[str, Tensor]:
    """Term -> (batch, heads, n, n), scaled."""
    sides = []
    for parts in (layer.queries, layer.keys):
        folded = parts["content"] + parts["constant"] if constants == "content" else parts["content"]
        sides.append({"content": folded, "position": parts["position"]})
    found = {
        f"{of_query}-{of_key}": layer.scale * q @ k.mT
        for of_query, q in sides[0].items()
        for of_key, k in sides[1].items()
    }
    if constants == "apart":
        q, k = layer.queries["constant"], layer.keys["constant"]
        own_q, own_k = (_total(side.values()) for side in sides)
        found["constant"] = layer.scale * (q @ (own_k + k).mT + own_q @ k.mT)
    return found


def _total(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(0)


def _centred(scores: Tensor, visible: Tensor) -> Tensor:
    """Less each query's mean over the keys it sees; zero where hidden."""
    seen = scores.masked_fill(~visible, 0)
    return (seen - seen.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)).masked_fill(~visible, 0)


def _attention(scores: Tensor, visible: Tensor) -> Tensor:
    return scores.masked_fill(~visible, -torch.inf).softmax(-1)


def _moved(one: Tensor, other: Tensor) -> Tensor:
    """Total variation per head, mean over texts and queries."""
    return (one - other).abs().sum(-1).mean((0, 2)) / 2


def _by_distance(position: Tensor, visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distances that occur, the term's mean at each, per head, and how much of its variance they account for."""
    n = position.shape[-1]
    at = torch.arange(n)
    where = (at[:, None] - at + n - 1).expand(len(position), n, n)
    seen = visible.expand(len(position), 1, n, n)[:, 0]
    index, values = where[seen], position.transpose(0, 1)[:, seen]  # (pairs,), (heads, pairs)
    values = values - values.mean(-1, keepdim=True)
    count = torch.bincount(index, minlength=2 * n - 1)
    means = torch.zeros(len(values), 2 * n - 1, dtype=values.dtype).index_add_(1, index, values) / count
    explained = 1 - (values - means[:, index]).square().sum(-1) / values.square().sum(-1)
    occur = count > 0
    return (torch.arange(2 * n - 1) - n + 1)[occur], means[:, occur], explained


def _known(values: Tensor) -> Tensor:
    return values[~values.isnan()]


def _percent(share: Tensor) -> str:
    return f"{float(share):.0%}"
