# SPDX-License-Identifier: Apache-2.0
"""The first attention layer of a model, taken apart: what its queries and keys owe to tokens and what to positions.

Only here is the question exact. The input is a sum x + p, and every step from it to queries and keys is affine once the
scale of the normalisation is held at what it is for the whole sum. Behind the first layer position is mixed into all.
"""

from collections.abc import Callable
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.encoding import Encoding
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.pretrained.learned_table import TABLES, has_learned_table, rows_of_table, table_module
from posenc.transformer import Attention, Transformer

NAME = "posenc_first_layer"
"""What transformers knows the attention by that looks at the first layer."""

PARTS = ("content", "position", "constant")


@dataclass(frozen=True, eq=False)
class FirstLayer:
    """Queries and keys of the first layer, in float64.

    queries, keys: part -> (batch, heads, n, head_dim). "position" is what the position code brings, "constant" what is
    there without either input (biases of projections and norms, the embedding of the token type), "content" the rest.
    scores: the model's own, (batch, heads, n, n), scaled. visible: which of them count, broadcastable to them.
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
    """Take the first layer of a model apart, on (texts, length) tokens without padding. The model is copied, not changed.

    model: a posenc Transformer with codes at its input, or a transformers model with a learned table.

    Raises:
        InputError: a model whose first input is not the sum of a token's and a position's vector, or tokens of a wrong
            shape.
    """
    host: _Host = _Ours(model) if isinstance(model, Transformer) else _Theirs(model)
    check_tokens(tokens, model, 1)
    tokens = tokens.to("cpu", torch.long)
    whole = host.look(tokens)
    host.norms.held = True
    neither = host.look(tokens, ())
    alone = {part: host.look(tokens, (part,)) for part in ("content", "position")}
    host.norms.held = False

    def parts(name: str) -> dict[str, Tensor]:
        nothing: Tensor = getattr(neither, name)
        return {part: getattr(seen, name) - nothing for part, seen in alone.items()} | {"constant": nothing}

    return FirstLayer(
        name=host.name,
        queries=parts("queries"),
        keys=parts("keys"),
        scale=whole.scale,
        scores=whole.scale * whole.queries @ whole.keys.mT,
        visible=whole.visible,
        loss=partial(host.loss, tokens) if host.predicts and not whole.visible.triu(1).any() else None,
    )


@torch.no_grad()
def tables(model: nn.Module, length: int | None = None) -> tuple[Tensor, Tensor]:
    """The token vectors (vocabulary, dim) and position codes (length, dim) that a model adds, in float64, at the scale
    at which it adds them. length: None is all of a learned table, or 512.

    Raises:
        InputError: a model that does not add a position code to its input, or a length beyond its table.
    """
    if isinstance(model, Transformer):
        encoding = deepcopy(model.encoding).to("cpu", torch.float64)
        width = model.config.dim
        check_adds(encoding, width)
        at = Positions.arange(encoding.max_positions or 512 if length is None else length)
        codes = encoding.embed(torch.zeros(1, at.num_queries, width, dtype=torch.float64), at)[0]
        return words_of(model), codes
    _check_has_table(model)
    codes = rows_of_table(model).detach().to("cpu", torch.float64, copy=True)
    if length is not None and length > len(codes):
        raise InputError(f"length={length}: the model's table has {len(codes)} positions")
    words = words_of(model)
    if words.shape[1] != codes.shape[1]:
        raise InputError(
            f"model: its token vectors are {words.shape[1]} wide, its codes {codes.shape[1]}: it does not add them"
        )
    return words, codes[:length]


@torch.no_grad()
def words_of(model: Any) -> Tensor:
    """The vectors of a model's vocabulary, (vocabulary, dim), in float64, at the size at which codes are added to them."""
    if isinstance(model, Transformer):
        return model.embedding.weight.to("cpu", torch.float64) * model.config.dim**0.5
    embedding = model.get_input_embeddings()
    every = torch.arange(embedding.num_embeddings, device=embedding.weight.device)
    found: Tensor = embedding(every)  # which some scale
    return found.to("cpu", torch.float64)


def check_tokens(tokens: Tensor, model: nn.Module, texts: int) -> None:
    """Refuse tokens that a model cannot read, or fewer than so many texts of two tokens.

    Raises:
        InputError: saying which, or what is wrong with their shape.
    """
    if not isinstance(tokens, Tensor):
        raise InputError(f"tokens: a {type(tokens).__name__}; pass a tensor of integers, (texts, length)")
    if tokens.dim() != 2 or tokens.is_floating_point() or len(tokens) < texts or tokens.shape[1] < 2:
        raise InputError(
            f"tokens: {tuple(tokens.shape)} of {tokens.dtype}; pass integers, (texts, length), at least {texts} texts of 2"
        )
    theirs: Any = None if isinstance(model, Transformer) else model
    words: Any = model.embedding if theirs is None else theirs.get_input_embeddings()
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= words.num_embeddings:
        raise InputError(f"tokens: ids {low} to {high}; the model's vocabulary is 0 to {words.num_embeddings - 1}")
    if theirs is not None and has_learned_table(theirs) and tokens.shape[1] > len(rows_of_table(theirs)):
        have = len(rows_of_table(theirs))
        raise InputError(f"tokens: texts of {tokens.shape[1]}; the model's table has {have} positions: cut them")


@torch.no_grad()
def check_adds(encoding: Encoding, dim: int) -> None:
    """Refuse an encoding whose first layer does anything but add (or concatenate) a code to its input, of width dim.

    Raises:
        InputError: saying how position enters instead.
    """
    encoding, layer = encoding.at(0)
    name, sites = encoding.known_as, encoding.sites()
    how = {
        "rotate": "by rotating queries and keys",
        "bias": "as a bias of the scores",
        "values": "through the values",
        "scale": "through the scale of the scores",
        "sink": "through a sink",
    }
    others = [way for site, way in how.items() if site in sites]
    if others:
        raise InputError(
            f"{name}: position enters {' and '.join(others)}, not as a code added to the tokens, so there are no four "
            "terms; take a model with sinusoidal or learned codes"
        )
    if "embed" not in sites:
        raise InputError(f"{name}: it adds no position code to the tokens; take one with sinusoidal or learned codes")
    at = Positions.arange(min(8, encoding.max_positions or 8))
    tokens = torch.randn(2, 1, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = torch.cat((tokens, tokens.sum(0, keepdim=True))).expand(-1, at.num_queries, -1)
    bare = encoding.embed(tokens, at, layer) - encoding.embed(torch.zeros_like(tokens), at, layer)
    alike = torch.allclose(bare, bare[:, :1].expand_as(bare), atol=1e-9)
    if not alike or not torch.allclose(bare[0] + bare[1], bare[2], atol=1e-9):
        raise InputError(
            f"{name}: it does not add a code to the tokens but changes their vectors by position, which no sum of terms "
            "can show; take one with sinusoidal or learned codes, merge='add' or 'concat'"
        )


@dataclass(frozen=True, eq=False)
class _Seen:
    """What the first layer's attention was given. Keys and values have as many heads as queries."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    scale: float
    visible: Tensor


class _HeldNorms:
    """Normalisations that can keep the scale they last had: then they are affine."""

    def __init__(self, model: nn.Module) -> None:
        self.held = False
        self.scales: dict[nn.Module, Tensor] = {}
        for module in model.modules():
            if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
                module.register_forward_hook(self)

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        assert isinstance(module, (nn.LayerNorm, nn.RMSNorm))
        x, bias = inputs[0], None
        if isinstance(module, nn.LayerNorm):
            x, bias = x - x.mean(-1, keepdim=True), module.bias
        if not self.held:
            eps = torch.finfo(x.dtype).eps if module.eps is None else module.eps
            self.scales[module] = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
            return None
        x = x * self.scales[module]
        x = x if module.weight is None else x * module.weight
        return x if bias is None else x + bias


class _Host:
    """A float64 copy of a model, whose two inputs can be taken away."""

    name: str
    predicts: bool
    """Whether its output is made to tell next tokens from."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = deepcopy(model).to("cpu", torch.float64).eval()
        self.norms = _HeldNorms(self.model)
        self.inputs: tuple[str, ...] = PARTS

    def without(self, part: str, module: nn.Module) -> None:
        """Let a module give zeros when a part is taken away."""
        module.register_forward_hook(lambda _m, _x, output: output if part in self.inputs else torch.zeros_like(output))

    def look(self, tokens: Tensor, inputs: tuple[str, ...] = PARTS) -> _Seen:
        """What the first layer's attention is given, with these inputs alone."""
        self.inputs = inputs
        try:
            return self.seen(tokens)
        finally:
            self.inputs = PARTS

    def seen(self, tokens: Tensor) -> _Seen:
        raise NotImplementedError  # abstract

    def loss(self, tokens: Tensor, weights: Tensor) -> float:
        raise NotImplementedError  # abstract


class _Ours(_Host):
    """A posenc Transformer."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        check_adds(self.model.encoding, model.config.dim)
        self.name = model.encoding.known_as
        self.predicts = model.config.causal
        self.without("content", self.model.embedding)
        encoding = self.model.encoding
        embed = encoding.embed

        def switched(x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
            whole: Tensor = embed(x, positions, layer)
            return whole if "position" in self.inputs else whole - embed(torch.zeros_like(x), positions, layer)

        encoding.embed = switched
        self.attention: Attention = self.model.blocks[0].attention

    def seen(self, tokens: Tensor) -> _Seen:
        found: dict[str, Tensor] = {}

        def keep(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
            return lambda _module, _inputs, output: found.update({name: output})

        names = "query", "key", "value"
        handles = [getattr(self.attention, name).register_forward_hook(keep(name)) for name in names]
        self.model(tokens)
        for handle in handles:
            handle.remove()
        config = self.attention.config
        queries, *others = (found[name].unflatten(-1, (-1, config.width)).transpose(1, 2) for name in names)
        keys, values = (x.repeat_interleave(config.num_heads // config.kv_heads, 1) for x in others)
        visible = Positions.arange(tokens.shape[1]).with_causal(self.model.config.causal).mask()
        return _Seen(queries, keys, values, self.model.encoding.scale_of(0, config.width), visible)

    def loss(self, tokens: Tensor, weights: Tensor) -> float:
        mixed = self.attention.out((weights @ self.seen(tokens).values).transpose(1, 2).flatten(-2))
        handle = self.attention.register_forward_hook(lambda *_: mixed)
        try:
            return _next_token_loss(self.model(tokens), tokens)
        finally:
            handle.remove()


class _Theirs(_Host):
    """A transformers model with a learned table."""

    def __init__(self, model: nn.Module) -> None:
        _check_has_table(model)
        super().__init__(model)
        self.name = str(self.model.config.model_type)
        self.predicts = self.model.can_generate()
        self.without("content", self.model.get_input_embeddings())
        self.without("position", table_module(self.model))
        _register()
        try:
            self.model.set_attn_implementation(NAME)
        except ValueError as error:
            raise InputError(f"model of type {self.name!r}: its attention cannot be looked into ({error})") from None

    def seen(self, tokens: Tensor) -> _Seen:
        found, _ = self._run(tokens, None)
        return found

    def loss(self, tokens: Tensor, weights: Tensor) -> float:
        _, output = self._run(tokens, weights)
        return _next_token_loss(output.logits, tokens)

    def _run(self, tokens: Tensor, weights: Tensor | None) -> tuple[_Seen, Any]:
        look = _Look(weights)
        before = _LOOK.set(look)
        try:
            output = self.model(tokens)
        finally:
            _LOOK.reset(before)
        if look.found is None:
            raise InputError(
                f"model of type {self.name!r}: its attention is not of the kind whose scores can be looked at; take BERT's "
                "kind, GPT-2 or OPT"
            )
        return look.found, output


class _Look:
    """Notes what the first attention of a forward pass is given; weights: by which it then attends, None for its own."""

    def __init__(self, weights: Tensor | None) -> None:
        self.weights = weights
        self.found: _Seen | None = None

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
    ) -> tuple[Tensor, Tensor]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        if mask is None:
            visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)[None, None]
            visible = visible.tril() if getattr(module, "is_causal", False) else visible
        else:
            visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        weights = torch.softmax((scaling * query @ key.mT).masked_fill(~visible, -torch.inf), -1)
        if self.found is None:
            self.found = _Seen(query, key, value, scaling, visible)
            weights = weights if self.weights is None else self.weights
        return (weights @ value).transpose(1, 2).contiguous(), weights


_LOOK: ContextVar[_Look] = ContextVar("look")


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return _LOOK.get()(module, query, key, value, attention_mask, scale)

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, eager_mask)


def _check_has_table(model: nn.Module) -> None:
    if not hasattr(model, "config") or not hasattr(model, "base_model"):
        raise InputError(f"model={type(model).__name__}: pass a posenc Transformer or a transformers model")
    if not has_learned_table(model):
        raise InputError(
            f"model of type {model.config.model_type!r}: it adds no learned code to the tokens, so there are no four terms "  # type: ignore[union-attr]
            f"(rotary position enters by rotating queries and keys); take one of {', '.join(sorted(TABLES))}"
        )


def _next_token_loss(logits: Tensor, tokens: Tensor) -> float:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).item()
