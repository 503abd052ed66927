# SPDX-License-Identifier: Apache-2.0
"""The four terms of attention scores, (x_i + p_i) Wq Wk^T (x_j + p_j)^T, multiplied out on a trained model.

This is exact in the first layer only: the input is a sum x + p, and every step from it to queries and keys is affine once
the scale of the normalisation is fixed at what it is for the sum. Behind the first layer position is mixed into all.
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.analysis.model import check_adds, check_has_table, check_tokens
from posenc.analysis.plotting import INK, PALETTE, bar_names, image, legend_beside, plot
from posenc.analysis.question import AnalysisQuestion, Finding
from posenc.errors import InputError, check_word
from posenc.positions import Positions
from posenc.pretrained.attach import AttentionCall, register_attention
from posenc.pretrained.learned_table import table_module
from posenc.transformer import Attention, Transformer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TERMS = ("content-content", "content-position", "position-content", "position-position")
"""The query's part first, the key's part second."""
PARTS = ("content", "position", "constant")
DESIGNS: dict[str, tuple[str, ...]] = {
    "T5, TUPE": ("content-content", "position-position"),
    "DeBERTa": ("content-content", "content-position", "position-content"),
    "no position": ("content-content",),
    "position alone": ("position-position",),
}
"""Which of the four terms designs have. T5 replaces the last by a learned bias of the distance, TUPE computes it with
matrices of its own: trained so, they are not what is left of a model that was trained with all four."""
IMPLEMENTATION = "posenc_first_layer"
"""The attention implementation that transformers is given to record the first layer."""


# ---------------------------------------------------------------- the first layer, split


@dataclass(frozen=True, eq=False)
class FirstLayer:
    """Queries and keys of the first layer, in float64.

    queries, keys: part -> (batch, heads, n, head_dim). "position" is what the position code contributes, "constant" what is
    there without either input (biases of projections and norms, the embedding of the token type), "content" the rest.
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
    reader: _FirstLayerReader = _PosencReader(model) if isinstance(model, Transformer) else _PretrainedReader(model)
    check_tokens(tokens, model, 1)
    tokens = tokens.to("cpu", torch.long)
    both = reader.read(tokens)
    reader.norms.frozen = True
    constant = reader.read(tokens, ())
    alone = {part: reader.read(tokens, (part,)) for part in ("content", "position")}
    reader.norms.frozen = False

    def parts(name: str) -> dict[str, Tensor]:
        bias: Tensor = getattr(constant, name)
        return {part: getattr(inputs, name) - bias for part, inputs in alone.items()} | {"constant": bias}

    return FirstLayer(
        name=reader.name,
        queries=parts("queries"),
        keys=parts("keys"),
        scale=both.scale,
        scores=both.scale * both.queries @ both.keys.mT,
        visible=both.visible,
        loss=partial(reader.loss, tokens) if reader.predicts and not both.visible.triu(1).any() else None,
    )


@dataclass(frozen=True, eq=False)
class _AttentionInputs:
    """What the first layer's attention gets. Keys and values have as many heads as queries."""

    queries: Tensor
    keys: Tensor
    values: Tensor
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


class _FirstLayerReader:
    """A float64 copy of a model whose two inputs can be switched off. A subclass defines `attention_inputs` and `loss`."""

    name: str
    predicts: bool
    """Whether its output predicts next tokens."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = deepcopy(model).to("cpu", torch.float64).eval()
        self.norms = _FrozenNorms(self.model)
        self.inputs: tuple[str, ...] = PARTS

    def switch(self, part: str, module: nn.Module) -> None:
        """Let a module give zeros while a part is off."""
        module.register_forward_hook(lambda _m, _x, output: output if part in self.inputs else torch.zeros_like(output))

    def read(self, tokens: Tensor, inputs: tuple[str, ...] = PARTS) -> _AttentionInputs:
        """What the first layer's attention gets with these inputs alone."""
        self.inputs = inputs
        try:
            return self.attention_inputs(tokens)
        finally:
            self.inputs = PARTS

    def attention_inputs(self, tokens: Tensor) -> _AttentionInputs:
        raise NotImplementedError  # abstract

    def loss(self, tokens: Tensor, weights: Tensor) -> float:
        raise NotImplementedError  # abstract


class _PosencReader(_FirstLayerReader):
    """A posenc Transformer."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        encoding = self.model.encoding
        check_adds(encoding, model.config.dim)
        self.name = model.encoding.known_as
        self.predicts = model.config.causal
        self.switch("content", self.model.embedding)
        embed = encoding.embed

        def switched(x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
            total: Tensor = embed(x, positions, layer)
            return total if "position" in self.inputs else total - embed(torch.zeros_like(x), positions, layer)

        encoding.embed = switched
        self.attention: Attention = self.model.blocks[0].attention

    def attention_inputs(self, tokens: Tensor) -> _AttentionInputs:
        outputs: dict[str, Tensor] = {}

        def record(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
            return lambda _module, _inputs, output: outputs.update({name: output})

        names = "query", "key", "value"
        handles = [getattr(self.attention, name).register_forward_hook(record(name)) for name in names]
        self.model(tokens)
        for handle in handles:
            handle.remove()
        config = self.attention.config
        queries, *others = (outputs[name].unflatten(-1, (-1, config.width)).transpose(1, 2) for name in names)
        keys, values = (x.repeat_interleave(config.num_heads // config.kv_heads, 1) for x in others)
        visible = Positions.arange(tokens.shape[1]).with_causal(self.model.config.causal).mask()
        return _AttentionInputs(queries, keys, values, self.model.encoding.scale_of(0, config.width), visible)

    def loss(self, tokens: Tensor, weights: Tensor) -> float:
        values = self.attention_inputs(tokens).values
        attended = self.attention.out((weights @ values).transpose(1, 2).flatten(-2))
        handle = self.attention.register_forward_hook(lambda *_: attended)
        try:
            return _next_token_loss(self.model(tokens), tokens)
        finally:
            handle.remove()


class _PretrainedReader(_FirstLayerReader):
    """A transformers model with a learned table."""

    def __init__(self, model: nn.Module) -> None:
        check_has_table(model)
        super().__init__(model)
        self.name = str(self.model.config.model_type)
        self.predicts = self.model.can_generate()
        self.switch("content", self.model.get_input_embeddings())
        self.switch("position", table_module(self.model))
        _register()
        try:
            self.model.set_attn_implementation(IMPLEMENTATION)
        except ValueError as error:
            raise InputError(f"model of type {self.name!r}: its attention cannot be replaced ({error})") from None

    def attention_inputs(self, tokens: Tensor) -> _AttentionInputs:
        return self._run(tokens, None)[0]

    def loss(self, tokens: Tensor, weights: Tensor) -> float:
        return _next_token_loss(self._run(tokens, weights)[1].logits, tokens)

    def _run(self, tokens: Tensor, weights: Tensor | None) -> tuple[_AttentionInputs, Any]:
        recorder = _Recorder(weights)
        before = _RECORDER.set(recorder)
        try:
            output = self.model(tokens)
        finally:
            _RECORDER.reset(before)
        if recorder.inputs is None:
            raise InputError(
                f"model of type {self.name!r}: its scores cannot be read, since transformers cannot replace its "
                "attention; take a BERT-like model, GPT-2 or OPT"
            )
        return recorder.inputs, output


class _Recorder:
    """Records what the first attention of a forward pass gets; weights: those it then attends with, None: its own."""

    def __init__(self, weights: Tensor | None) -> None:
        self.weights = weights
        self.inputs: _AttentionInputs | None = None

    def __call__(self, call: AttentionCall) -> Tensor:
        query, groups = call.query, call.query.shape[1] // call.key.shape[1]
        key, value = call.key.repeat_interleave(groups, 1), call.value.repeat_interleave(groups, 1)
        scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        if call.mask is None:
            visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)[None, None]
            visible = visible.tril() if getattr(call.module, "is_causal", False) else visible
        else:
            visible = call.mask if call.mask.dtype == torch.bool else call.mask > torch.finfo(call.mask.dtype).min / 2
        weights = _attention(scale * query @ key.mT, visible)
        if self.inputs is None:
            self.inputs = _AttentionInputs(query, key, value, scale, visible)
            weights = weights if self.weights is None else self.weights
        return weights @ value


_RECORDER: ContextVar[_Recorder] = ContextVar("recorder")


def _register() -> None:
    from transformers.masking_utils import eager_mask

    register_attention(IMPLEMENTATION, lambda call: _RECORDER.get()(call), eager_mask)


def _next_token_loss(logits: Tensor, tokens: Tensor) -> float:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).item()


# ---------------------------------------------------------------- the four terms


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
        numbers = super().to_dict()
        del numbers["map"]
        return numbers

    def sentences(self) -> list[str]:
        mean, position = self.share.mean(0), self.share[:, self.of(TERMS[3])]
        content = self.share[:, self.of(TERMS[0])]
        cross = self.share[:, self.of(TERMS[1])] + self.share[:, self.of(TERMS[2])]
        sentences = [
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
            else f"Distance alone accounts for {_percent(_defined(self.explained).min())} to "
            f"{_percent(_defined(self.explained).max())} of the position-position term's variance, by head.",
            "With the terms of other designs alone so much of the attention moves, mean over heads: "
            + ", ".join(f"{name} {_percent(moved.mean())}" for name, moved in self.kept.items())
            + ".",
        ]
        if self.loss is not None:
            rises = ", ".join(
                f"{k} {v - self.loss['as trained']:+.3f}" for k, v in self.loss.items() if k != "as trained"
            )
            sentences.append(
                f"The loss of {self.loss['as trained']:.3f} nats per token changes, without retraining, by: {rises}."
            )
        return sentences


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
    scores, visible = layer.scores, layer.visible
    heads = scores.shape[1]
    stack = torch.stack([_centred(term, visible) for term in products.values()])  # (terms, batch, heads, n, n)
    flat = stack.transpose(1, 2).flatten(2)  # (terms, heads, pairs)
    covariance = torch.einsum("ahp,bhp->hab", flat, flat)
    variance = covariance.diagonal(dim1=1, dim2=2)
    trained = _attention(scores, visible)
    removed = {name: _attention(scores - term, visible) for name, term in products.items()}
    kept = {
        name: _attention(_total(products[term] for term in (*terms, "constant") if term in products), visible)
        for name, terms in DESIGNS.items()
    }
    position = products[TERMS[3]]
    distances, by_distance, explained = _by_distance(position, visible)
    losses = None
    if loss and layer.loss is not None:
        changed = {f"without {name}": weights for name, weights in removed.items()} | kept
        losses = {"as trained": layer.loss(trained)} | {name: layer.loss(weights) for name, weights in changed.items()}
    return FourTerms(
        name=layer.name,
        texts=len(tokens),
        length=tokens.shape[1],
        terms=tuple(products),
        error=float((_total(products.values()) - scores).abs().max()),
        share=variance / variance.sum(-1, keepdim=True),
        correlation=covariance / (variance[:, :, None] * variance[:, None, :]).sqrt(),
        removed=torch.stack([_moved(trained, weights) for weights in removed.values()], -1),
        kept={name: _moved(trained, weights) for name, weights in kept.items()},
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
    products = {
        f"{of_query}-{of_key}": layer.scale * q @ k.mT
        for of_query, q in sides[0].items()
        for of_key, k in sides[1].items()
    }
    if constants == "apart":
        q, k = layer.queries["constant"], layer.keys["constant"]
        sum_q, sum_k = (_total(side.values()) for side in sides)
        products["constant"] = layer.scale * (q @ (sum_k + k).mT + sum_q @ k.mT)
    return products


def _total(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(0)


def _centred(scores: Tensor, visible: Tensor) -> Tensor:
    """Less each query's mean over the keys it sees; zero where hidden."""
    inside = scores.masked_fill(~visible, 0)
    return (inside - inside.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)).masked_fill(~visible, 0)


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
    inside = visible.expand(len(position), 1, n, n)[:, 0]
    index, values = where[inside], position.transpose(0, 1)[:, inside]  # (pairs,), (heads, pairs)
    values = values - values.mean(-1, keepdim=True)
    count = torch.bincount(index, minlength=2 * n - 1)
    means = torch.zeros(len(values), 2 * n - 1, dtype=values.dtype).index_add_(1, index, values) / count
    explained = 1 - (values - means[:, index]).square().sum(-1) / values.square().sum(-1)
    occurs = count > 0
    return (torch.arange(2 * n - 1) - n + 1)[occurs], means[:, occurs], explained


def _defined(values: Tensor) -> Tensor:
    return values[~values.isnan()]


def _percent(share: Tensor) -> str:
    return f"{float(share):.0%}"


@plot("A head with a tall position-position bar attends by where tokens are, one without it by what they are.")
def plot_term_shares(ax: "Axes", finding: FourTerms) -> None:
    """Each term's share of the variance of the scores, a bar a head."""
    heads = range(len(finding.share))
    bottom = torch.zeros(len(heads), dtype=finding.share.dtype)
    for index, term in enumerate(finding.terms):
        ax.bar(heads, finding.share[:, index], bottom=bottom, color=PALETTE[index], label=term, width=0.7)
        bottom = bottom + finding.share[:, index]
    ax.set(xlabel="head", ylabel="share of the scores' variance", xticks=list(heads), ylim=(0, 1))
    ax.grid(False, axis="x")
    legend_beside(ax)


@plot("Diagonal stripes mean that the score depends on the distance; columns mean that one position draws all queries.")
def plot_position_map(ax: "Axes", finding: FourTerms, head: int | None = None) -> None:
    """What positions alone add to the scores of a head, query by key. head: None is that with the largest share."""
    shares = finding.share[:, finding.of("position-position")]
    if head is not None and not 0 <= head < len(shares):
        raise InputError(f"head={head}: the layer has heads 0 to {len(shares) - 1}")
    chosen = int(shares.argmax()) if head is None else head
    values = finding.map[chosen] - finding.map[chosen].nanmean()
    image(ax, values, label="score, above its mean")
    ax.set(xlabel="position of the key", ylabel="position of the query", title=f"head {chosen}")


@plot("Where a curve peaks is how far back (or ahead) a head looks by position alone.")
def plot_position_by_distance(ax: "Axes", finding: FourTerms) -> None:
    """The mean of the position-position term at each distance, a line a head."""
    for head, values in enumerate(finding.by_distance):
        alike = float(finding.explained[head])
        ax.plot(
            finding.distances,
            values,
            color=PALETTE[head % len(PALETTE)],
            linestyle=("-", "--", ":")[head // len(PALETTE) % 3],
            label=f"head {head} ({alike:.0%})",
        )
    ax.axhline(0, color=INK, linewidth=0.8)
    ax.set(xlabel="distance, query minus key", ylabel="position-position score, above its mean")
    legend_beside(ax, title="(by distance alone)")


@plot("Long bars are terms that the model needs; where a bar is short, a design without that term loses little.")
def plot_pruning_cost(ax: "Axes", finding: FourTerms) -> None:
    """How much of the attention moves when a term is taken away, or only some stay, mean over heads."""
    moved = {f"without {term}": finding.removed[:, index] for index, term in enumerate(finding.terms)}
    moved |= {f"only {name}": values for name, values in finding.kept.items()}
    rows = range(len(moved))
    colours = [PALETTE[0]] * len(finding.terms) + [PALETTE[1]] * len(finding.kept)
    ax.barh(rows, [float(values.mean()) for values in moved.values()], color=colours, height=0.7)
    for row, values in enumerate(moved.values()):
        ax.plot(values, [row] * len(values), "|", color=INK, markersize=7)
    bar_names(ax, list(moved))
    ax.set(xlabel="attention moved (total variation; a mark a head)")


FOUR_TERMS = AnalysisQuestion(
    "Content or position: what do the heads of a trained model score by?",
    lambda t: four_terms(t.adding_model, t.texts(4)),
    lambda t, finding: [
        each.of(finding) for each in (plot_term_shares, plot_position_map, plot_position_by_distance, plot_pruning_cost)
    ],
    lambda finding: finding.sentences()[1],
)
