# SPDX-License-Identifier: Apache-2.0
"""The four terms of attention scores, (x_i + p_i) Wq Wk^T (x_j + p_j)^T, multiplied out on a trained model.

This is exact in the first layer only: the input is a sum x + p, and every step from it to queries and keys is affine once
the scale of the normalisation is fixed at its value for the sum. Behind the first layer position is mixed into all.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from guide_code.model import check_adds, check_has_table, check_tokens
from guide_code.shared import bar_names, by_distance, legend_above
from posenc.analysis.finding import INK, PALETTE, Axes, Finding, image, plot
from posenc.encoding import Pass
from posenc.errors import InputError, check_word
from posenc.lab.transformer import Attention, Transformer
from posenc.pretrained.attach import AttentionCall, register_attention
from posenc.pretrained.learned_table import table_module

PARTS = ("content", "position")
TERMS = tuple(f"{query}-{key}" for query in PARTS for key in PARTS)
"""The query's part first, the key's part second."""
DESIGNS: dict[str, tuple[str, ...]] = {
    "T5, TUPE": ("content-content", "position-position"),
    "DeBERTa": ("content-content", "content-position", "position-content"),
    "no position": ("content-content",),
    "position alone": ("position-position",),
}
"""Which of the four terms designs have. T5 replaces the last by a learned bias of the distance, TUPE computes it with
separate matrices: trained so, they are not what is left of a model that was trained with all four."""
IMPLEMENTATION = "posenc_first_layer"
"""The attention implementation that transformers is given to record the first layer."""


# ---------------------------------------------------------------- the first layer, split


@dataclass(frozen=True, eq=False)
class FirstLayer:
    """Queries and keys of the first layer, in float64.

    queries, keys: part -> (batch, heads, n, head_dim). "position" is what the position code contributes, "content" the
    rest, with the constants (biases of projections and norms, the embedding of the token type).
    scores: the model's, (batch, heads, n, n), scaled. visible: which of them count, broadcastable to them.
    loss: the model's loss in nats per token when the first layer attends with other weights, (batch, heads, n, n);
    None: the model does not predict the next token.
    """

    name: str
    queries: dict[str, Tensor]
    keys: dict[str, Tensor]
    scale: float
    scores: Tensor
    visible: Tensor
    loss: Callable[[Tensor], float] | None


@torch.no_grad()
def first_layer(model: nn.Module, tokens: Tensor) -> FirstLayer:
    """Split the first layer of a model, on (texts, length) tokens without padding. The model is copied, not changed.

    model: a posenc Transformer with codes at its input, or a transformers model with a learned table.

    Raises:
        InputError: a model whose first input is not the sum of a token's and a position's vector, or tokens of a wrong
            shape.
    """
    recorder = _Recorder(model)
    check_tokens(tokens, model, 1)
    tokens = tokens.to("cpu", torch.long)
    both = recorder.inputs(tokens, PARTS)
    recorder.norms.frozen = True
    constant, content, position = (recorder.inputs(tokens, parts) for parts in ((), PARTS[:1], PARTS[1:]))
    recorder.norms.frozen = False

    def loss(weights: Tensor) -> float:
        output = recorder.run(tokens, PARTS, weights)
        logits = getattr(output, "logits", output)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).item()

    return FirstLayer(
        name=recorder.name,
        queries={"content": content.query, "position": position.query - constant.query},
        keys={"content": content.key, "position": position.key - constant.key},
        scale=both.scale,
        scores=both.scale * both.query @ both.key.mT,
        visible=both.visible,
        loss=loss if recorder.predicts and not both.visible.triu(1).any() else None,
    )


@dataclass(frozen=True, eq=False)
class _AttentionInputs:
    """What the first layer's attention gets. Keys have as many heads as queries."""

    query: Tensor
    key: Tensor
    scale: float
    visible: Tensor


class _FrozenNorms:
    """Normalisations that can reuse the scale of their last call: then they are affine."""

    def __init__(self, model: nn.Module) -> None:
        self.frozen = False
        self.scales: dict[nn.Module, Tensor] = {}
        for module in model.modules():
            if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
                module.register_forward_hook(self)

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        assert isinstance(module, (nn.LayerNorm, nn.RMSNorm))
        x, bias = inputs[0], None
        if isinstance(module, nn.LayerNorm):
            x, bias = x - x.mean(-1, keepdim=True), module.bias
        if not self.frozen:
            eps = torch.finfo(x.dtype).eps if module.eps is None else module.eps
            self.scales[module] = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
            return None
        x = x * self.scales[module]
        x = x if module.weight is None else x * module.weight
        return x if bias is None else x + bias


class _Recorder:
    """A float64 copy of a model whose content and codes can be switched off, and whose first attention is recorded.

    predicts: whether its output predicts next tokens.
    """

    name: str
    predicts: bool

    def __init__(self, model: Any) -> None:
        self.model = deepcopy(model).to("cpu", torch.float64).eval()
        self.parts: tuple[str, ...] = PARTS
        self.weights: Tensor | None = None
        self.recorded: _AttentionInputs | None = None
        if isinstance(model, Transformer):
            check_adds(self.model.encoding, model.config.dim)
            self.name, self.predicts = self.model.encoding.known_as, model.config.causal
            self._switch("content", self.model.embedding)
            self._record_posenc(self.model)
        else:
            check_has_table(model)
            self.name, self.predicts = str(self.model.config.model_type), self.model.can_generate()
            self._switch("content", self.model.get_input_embeddings())
            self._switch("position", table_module(self.model))
            self._record_pretrained()
        self.norms = _FrozenNorms(self.model)

    def run(self, tokens: Tensor, parts: tuple[str, ...], weights: Tensor | None = None) -> Any:
        """The model's output, with these parts of its input. weights: those of the first attention; None: the computed ones."""
        self.parts, self.weights, self.recorded = parts, weights, None
        return self.model(tokens)

    def inputs(self, tokens: Tensor, parts: tuple[str, ...]) -> _AttentionInputs:
        self.run(tokens, parts)
        if self.recorded is None:
            raise InputError(
                f"model of type {self.name!r}: its scores cannot be read, since transformers cannot replace its "
                "attention; take a BERT-like model, GPT-2 or OPT"
            )
        return self.recorded

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float, visible: Tensor) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        weights = None
        if self.recorded is None:
            self.recorded, weights = _AttentionInputs(query, key, scale, visible), self.weights
        return (_attention(scale * query @ key.mT, visible) if weights is None else weights) @ value

    def _switch(self, part: str, module: nn.Module) -> None:
        """Let a module give zeros while a part is off."""
        module.register_forward_hook(lambda _m, _x, output: output if part in self.parts else torch.zeros_like(output))

    def _record_posenc(self, model: Transformer) -> None:
        first: Any = model.blocks[0]
        attention: Attention = first.attention

        def switched(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            x, here, layer, *others = given  # x has what the encoding adds
            codes = 0.0 if "position" in self.parts else here.embed(torch.zeros_like(x), layer)
            return x - codes, here, layer, *others

        def forward(x: Tensor, here: Pass, layer: int, cache: Any) -> Tensor:
            width = attention.config.width
            projections = attention.query, attention.key, attention.value
            q, k, v = (projection(x).unflatten(-1, (-1, width)).transpose(1, 2) for projection in projections)
            attended = self.attend(q, k, v, here.encoding.scale_of(layer, width), here.positions.mask())
            return attention.out(attended.transpose(1, 2).flatten(-2))

        for block in model.blocks:
            block.register_forward_pre_hook(switched)
        attention.forward = forward  # type: ignore[method-assign]

    def _record_pretrained(self) -> None:
        from transformers.masking_utils import eager_mask

        register_attention(IMPLEMENTATION, lambda call: call.module.recorder.attend_call(call), eager_mask)  # type: ignore[union-attr, operator]
        try:
            self.model.set_attn_implementation(IMPLEMENTATION)
        except ValueError as error:
            raise InputError(f"model of type {self.name!r}: its attention cannot be replaced ({error})") from None
        for module in self.model.modules():
            module.recorder = self

    def attend_call(self, call: AttentionCall) -> Tensor:
        scale = call.query.shape[-1] ** -0.5 if call.scale is None else call.scale
        if call.mask is None:
            visible = torch.ones(call.query.shape[2], call.key.shape[2], dtype=torch.bool)[None, None]
            visible = visible.tril() if getattr(call.module, "is_causal", False) else visible
        else:
            visible = call.mask if call.mask.dtype == torch.bool else call.mask > torch.finfo(call.mask.dtype).min / 2
        return self.attend(call.query, call.key, call.value, scale, visible)


# ---------------------------------------------------------------- the four terms


@dataclass(frozen=True, eq=False)
class FourTerms(Finding):
    """The terms of the first layer's scores, per head, over all pairs that a query sees."""

    name: str
    texts: int
    length: int
    terms: tuple[str, ...]
    """Their names"""
    error: float
    """The largest difference between their sum and the model's scores. Since softmax ignores what all keys of a query
    share, shares are of scores from which each query's mean is taken."""
    share: Tensor
    """(heads, terms), a term's variance over the sum of the terms' variances"""
    removed: Tensor
    """(heads, terms), total variation between the attention with and without a term, mean over queries: 0 nothing
    changes, 1 everything"""
    designs: Mapping[str, Tensor]
    """The same with the terms of DESIGNS alone, (heads,)"""
    distances: Tensor
    """Query minus key"""
    by_distance: Tensor
    """(heads, distances), mean of position-position, above its mean over all pairs"""
    explained: Tensor
    """(heads,), the share of position-position's variance that distance alone accounts for; nan where it does not
    vary"""
    map: Tensor
    """(heads, n, n), position-position, mean over sequences, nan where hidden; to_dict leaves it out"""
    loss: Mapping[str, float] | None
    """Of the model with its first layer changed so, nats per token; None: the model does not predict next tokens"""

    def of(self, term: str) -> int:
        """The index of a term along the tensors."""
        check_word("term", term, self.terms)
        return self.terms.index(term)

    def to_dict(self) -> dict[str, Any]:
        numbers = super().to_dict()
        del numbers["map"]
        return numbers

    def sentences(self) -> list[str]:
        content, *cross, position = self.share.T
        mixed = cross[0] + cross[1]
        by_distance = self.explained[~self.explained.isnan()]
        sentences = [
            f"The terms add up to the model's scores in the first layer, within {self.error:.1g}.",
            f"Of the terms' variances added up, mean over heads: {_percents(zip(self.terms, self.share.mean(0), strict=True))}.",
            f"Position alone weighs most in head {int(position.argmax())} ({float(position.max()):.0%} of that sum), content "
            f"alone in head {int(content.argmax())} ({float(content.max()):.0%}), the cross terms in head "
            f"{int(mixed.argmax())} ({float(mixed.max()):.0%}).",
            f"Distance alone accounts for {float(by_distance.min()):.0%} to {float(by_distance.max()):.0%} of the "
            "position-position term's variance, by head."
            if len(by_distance)
            else "The position-position term does not vary.",
            "With the terms of other designs alone so much of the attention moves, mean over heads: "
            f"{_percents((name, moved.mean()) for name, moved in self.designs.items())}.",
        ]
        if self.loss is not None:
            trained = self.loss["as trained"]
            rises = ", ".join(f"{k} {v - trained:+.3f}" for k, v in self.loss.items() if k != "as trained")
            sentences.append(f"The loss of {trained:.3f} nats per token changes, without retraining, by: {rises}.")
        return sentences


@torch.no_grad()
def four_terms(model: nn.Module, tokens: Tensor) -> FourTerms:
    """Split the scores of a model's first layer into what content and position of query and key make of them.

    Norms before the projections are linear at the scale that they have for the sum, so the split is exact. The
    model is copied to float64 and not changed. Constants, such as biases of projections, count as content.

    Args:
        model: a posenc Transformer with codes added to its input (sinusoidal, learned, ...) or a transformers model
            with a learned table (BERT's kind, GPT-2, OPT). tokens: (batch, length) without padding.

    Raises:
        InputError: a model without codes at its input, such as one with rotary position, or tokens of a wrong shape.
    """
    layer = first_layer(model, tokens)
    products = {
        f"{query}-{key}": layer.scale * layer.queries[query] @ layer.keys[key].mT for query in PARTS for key in PARTS
    }
    scores, visible = layer.scores, layer.visible
    stack = torch.stack([_centred(term, visible) for term in products.values()])  # (terms, batch, heads, n, n)
    variance = stack.square().sum((1, 3, 4)).T
    trained = _attention(scores, visible)
    removed = {name: _attention(scores - term, visible) for name, term in products.items()}
    designs = {name: _attention(_total(products[term] for term in terms), visible) for name, terms in DESIGNS.items()}
    position = products[TERMS[3]]
    distances, means, explained = by_distance(position, visible)
    losses = None
    if layer.loss is not None:
        changed = {f"without {name}": weights for name, weights in removed.items()} | designs
        losses = {"as trained": layer.loss(trained)} | {name: layer.loss(weights) for name, weights in changed.items()}
    return FourTerms(
        name=layer.name,
        texts=len(tokens),
        length=tokens.shape[1],
        terms=tuple(products),
        error=float((_total(products.values()) - scores).abs().max()),
        share=variance / variance.sum(-1, keepdim=True),
        removed=torch.stack([_moved(trained, weights) for weights in removed.values()], -1),
        designs={name: _moved(trained, weights) for name, weights in designs.items()},
        distances=distances,
        by_distance=means - _mean(position, visible),
        explained=explained,
        map=position.mean(0).masked_fill(~visible.expand_as(position)[0], torch.nan),
        loss=losses,
    )


def _total(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(0)


def _centred(scores: Tensor, visible: Tensor) -> Tensor:
    """Less each query's mean over the keys it sees; zero where hidden."""
    inside = scores.masked_fill(~visible, 0)
    return (inside - inside.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)).masked_fill(~visible, 0)


def _mean(scores: Tensor, visible: Tensor) -> Tensor:
    """Per head, over all visible pairs, (heads, 1)."""
    visible = visible.expand_as(scores)
    return (scores * visible).sum((0, 2, 3))[:, None] / visible.sum((0, 2, 3))[:, None]


def _attention(scores: Tensor, visible: Tensor) -> Tensor:
    return scores.masked_fill(~visible, -torch.inf).softmax(-1)


def _moved(one: Tensor, other: Tensor) -> Tensor:
    """Total variation per head, mean over sequences and queries."""
    return (one - other).abs().sum(-1).mean((0, 2)) / 2


def _percents(shares: Iterable[tuple[str, Tensor]]) -> str:
    return ", ".join(f"{name} {float(share):.0%}" for name, share in shares)


@plot("A head with a tall position-position bar attends by where tokens are, one without it by what they are.")
def plot_term_shares(ax: Axes, finding: FourTerms) -> None:
    """Each term's share of the variance of the scores, a bar a head."""
    heads = range(len(finding.share))
    bottom = torch.zeros(len(heads), dtype=finding.share.dtype)
    for index, term in enumerate(finding.terms):
        ax.bar(heads, finding.share[:, index], bottom=bottom, color=PALETTE[index], label=term, width=0.7)
        bottom = bottom + finding.share[:, index]
    ax.set(xlabel="head", ylabel="share of the scores' variance", xticks=list(heads), ylim=(0, 1))
    ax.grid(False, axis="x")
    legend_above(ax, ncols=2)


@plot("Diagonal stripes mean that the score depends on the distance; columns mean that one position draws all queries.")
def plot_position_map(ax: Axes, finding: FourTerms) -> None:
    """What positions alone add to the scores of the head with the largest share of them, query by key."""
    head = int(finding.share[:, finding.of(TERMS[3])].argmax())
    image(ax, finding.map[head] - finding.map[head].nanmean(), label="score, above its mean")
    ax.set(xlabel="position of the key", ylabel="position of the query", title=f"head {head}")


@plot("Where a curve peaks is how far back (or ahead) a head looks by position alone.")
def plot_position_by_distance(ax: Axes, finding: FourTerms) -> None:
    """The mean of the position-position term at each distance, a line a head."""
    for head, values in enumerate(finding.by_distance):
        ax.plot(
            finding.distances,
            values,
            color=PALETTE[head % len(PALETTE)],
            linestyle=("-", "--", ":")[head // len(PALETTE) % 3],
            label=f"head {head} ({float(finding.explained[head]):.0%})",
        )
    ax.axhline(0, color=INK, linewidth=0.8)
    ax.set(xlabel="distance, query minus key", ylabel="position-position score, above its mean")
    legend_above(ax, ncols=2, title="(by distance alone)")


@plot("Long bars are terms that the model needs; where a bar is short, a design without that term loses little.")
def plot_pruning_cost(ax: Axes, finding: FourTerms) -> None:
    """How much of the attention moves without a term, or with the terms of a design alone, mean over heads."""
    moved = {f"without {term}": finding.removed[:, index] for index, term in enumerate(finding.terms)}
    moved |= {f"only {name}": values for name, values in finding.designs.items()}
    rows = range(len(moved))
    colours = [PALETTE[0]] * len(finding.terms) + [PALETTE[1]] * len(finding.designs)
    ax.barh(rows, [float(values.mean()) for values in moved.values()], color=colours, height=0.7)
    for row, values in enumerate(moved.values()):
        ax.plot(values, [row] * len(values), "|", color=INK, markersize=7)
    bar_names(ax, list(moved))
    ax.set(xlabel="attention moved (total variation; a mark a head)")
