# SPDX-License-Identifier: Apache-2.0
"""A small Transformer, which takes any encoding: a decoder, an encoder, or a decoder that attends to an encoder.

Blocks of attention and a gated MLP, one encoding for all of them. `posenc.lab.vision_transformer` puts the same blocks on images.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.cache import KVCache
from posenc.distributed.exchange import augment_shard
from posenc.encoding import Encoding, Pass, augmented_by, gates_of, require_fit
from posenc.encodings import create
from posenc.encodings.shared import kv_heads_of
from posenc.errors import InputError, check_fields, check_integers, check_sizes, not_none
from posenc.positions import Positions

__all__ = ["Memory", "Transformer", "TransformerConfig"]


class BlockConfig:
    """The fields that the configurations of text and image models share, see `TransformerConfig`."""

    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int | None
    head_dim: int | None
    mlp_ratio: float
    dropout: float
    norm: Literal["rms", "layer"]
    norm_first: bool
    cross_attention: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        check_sizes(dim=self.dim, num_heads=self.num_heads, **not_none(head_dim=self.head_dim))
        check_integers(1, num_layers=self.num_layers)
        if self.head_dim is None and self.dim % self.num_heads:
            raise InputError(f"must be a multiple of num_heads={self.num_heads}, or give head_dim", dim=self.dim)
        kv_heads_of(self.num_heads, self.num_kv_heads)  # refuses what does not divide
        if self.mlp_ratio <= 0:
            raise InputError("must be a positive number", mlp_ratio=self.mlp_ratio)
        if not 0 <= self.dropout < 1:
            raise InputError("must be a probability below 1", dropout=self.dropout)

    @property
    def width(self) -> int:
        """Channels of one head."""
        return self.dim // self.num_heads if self.head_dim is None else self.head_dim

    def make_norm(self) -> nn.RMSNorm | nn.LayerNorm:
        return nn.RMSNorm(self.dim) if self.norm == "rms" else nn.LayerNorm(self.dim)

    def make_encoding(self, encoding: Encoding | str, **more: Any) -> Encoding:
        """An encoding, unchanged, or one made of its text for a model of this shape. more: further arguments of `create`."""
        if isinstance(encoding, Encoding):
            return encoding
        if not isinstance(encoding, str):
            raise InputError("pass an encoding, or a text such as 'rope'", encoding=encoding)
        return create(
            encoding, dim=self.dim, num_heads=self.num_heads, head_dim=self.width, num_kv_heads=self.num_kv_heads,
            num_layers=self.num_layers, **more,
        )  # fmt: skip

    @property
    def kv_heads(self) -> int:
        return kv_heads_of(self.num_heads, self.num_kv_heads)


@dataclass(frozen=True)
class TransformerConfig(BlockConfig):
    """Shape of a `Transformer`."""

    vocab_size: int
    """Tokens"""
    _: KW_ONLY
    dim: int = 128
    """Width"""
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int | None = None
    """Fewer than num_heads is grouped-query attention; None: as many"""
    head_dim: int | None = None
    """Width of a head; None: dim / num_heads"""
    mlp_ratio: float = 4.0
    """Width of the gated MLP over dim, as in a two-matrix MLP of the same size"""
    causal: bool = True
    """Decoder or encoder"""
    tie_weights: bool = True
    """One matrix for embedding and output"""
    dropout: float = 0.0
    """On weights and residuals"""
    norm: Literal["rms", "layer"] = "rms"
    """RMSNorm or LayerNorm"""
    norm_first: bool = True
    """It is before attention and MLP, as in most models now, or after their sum with the residual stream, as in Vaswani
    et al. 2017."""
    cross_attention: bool = False
    """Each block also reads an encoder, see `Memory`"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(vocab_size=self.vocab_size)


@dataclass(frozen=True, eq=False)
class Memory:
    """What a decoder's cross-attention reads of an encoder, made once by `Transformer.memory` and passed to each call.

    tokens: keys, not rotated, and values (batch, heads, m, width) of each layer. positions: where they are, and which of them
    are padding. encoding: what position does between the decoder's queries and these keys.
    """

    tokens: tuple[tuple[Tensor, Tensor], ...]
    positions: Positions
    encoding: Encoding


class Attention(nn.Module):
    """Projections around `posenc.attention`. backend: which of its backends computes it."""

    backend = "auto"

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        inner, of_keys = config.num_heads * config.width, config.kv_heads * config.width
        self.query: nn.Linear = nn.Linear(config.dim, inner, bias=False)
        self.key: nn.Linear = nn.Linear(config.dim, of_keys, bias=False)
        self.value: nn.Linear = nn.Linear(config.dim, of_keys, bias=False)
        self.out: nn.Linear = nn.Linear(inner, config.dim, bias=False)

    def forward(self, x: Tensor, here: Pass, layer: int, cache: KVCache | None) -> Tensor:
        gates = () if here.encoding is None else gates_of(here.encoding, x, layer)
        return self._attended(
            self.heads(self.query, x), *self.keys_and_values(x), here, layer, gates=gates or None, cache=cache
        )

    def read(self, x: Tensor, memory: Memory, here: Pass, layer: int) -> Tensor:
        """Cross-attention. The pass's positions are those of `Positions.cross`."""
        return self._attended(self.heads(self.query, x), *memory.tokens[layer], here, layer)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of the tokens x (batch, n, dim): (batch, kv heads, n, width) each."""
        return self.heads(self.key, x), self.heads(self.value, x)

    def heads(self, projection: nn.Linear, x: Tensor) -> Tensor:
        return projection(x).unflatten(-1, (-1, self.config.width)).transpose(1, 2)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, here: Pass, layer: int, **options: Any) -> Tensor:
        dropout_p = self.config.dropout if self.training else 0.0
        y = here.attention(q, k, v, layer=layer, dropout_p=dropout_p, backend=self.backend, **options)
        return self.out(y.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020), with the parameters of a two-matrix MLP of mlp_ratio * dim."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        hidden = max(1, round(config.mlp_ratio * config.dim * 2 / 3))
        self.gate: nn.Linear = nn.Linear(config.dim, hidden, bias=False)
        self.up: nn.Linear = nn.Linear(config.dim, hidden, bias=False)
        self.down: nn.Linear = nn.Linear(hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention, cross-attention if configured, and MLP, each added to the residual stream."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.attention_norm: nn.Module = config.make_norm()
        self.attention: Attention = Attention(config)
        if config.cross_attention:
            self.cross_attention_norm: nn.Module = config.make_norm()
            self.cross_attention: Attention = Attention(config)
        self.mlp_norm: nn.Module = config.make_norm()
        self.mlp: MLP = MLP(config)
        self.dropout: nn.Dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, here: Pass, layer: int, cache: KVCache | None, memory: Memory | None = None,
        seen: Pass | None = None,
    ) -> Tensor:  # fmt: skip
        x = self.add(x, self.attention_norm, self.attention, here, layer, cache)
        if memory is not None:
            x = self.add(x, self.cross_attention_norm, self.cross_attention.read, memory, seen, layer)
        return self.add(x, self.mlp_norm, self.mlp)

    def add(self, x: Tensor, norm: nn.Module, part: Callable[..., Tensor], *more: Any, residual: bool = True) -> Tensor:
        """What part makes of x and more, normalised before or after it is added to x; residual=False: not added."""
        made = self.dropout(part(norm(x) if self.norm_first else x, *more))
        made = x + made if residual else made
        return made if self.norm_first else norm(made)


class TransformerBase(nn.Module):
    """Base of the text and the image model: blocks that share one encoding."""

    config: BlockConfig
    blocks: nn.ModuleList
    norm: nn.Module
    encoding: Encoding

    def reset_blocks(self, encoding: Encoding, cross: Encoding | None = None) -> None:
        """Normal weights of variance 1 / fan-in; what writes into the residual stream is damped by its depth, and the
        queries make up for an encoding whose scale is not head_dim^-1/2."""
        for layer, block in enumerate(self.blocks):
            for name, module in block.named_modules():
                if isinstance(module, nn.Linear):
                    damping = (2 * self.config.num_layers) ** -0.5 if name.endswith(("out", "down")) else 1.0
                    if name.endswith("query"):
                        between = cross if cross is not None and "cross_attention" in name else encoding
                        damping = self.query_damping(between, layer)
                    nn.init.normal_(module.weight, std=damping * module.in_features**-0.5)

    def query_damping(self, encoding: Encoding, layer: int) -> float:
        """Factor by which a layer's queries start smaller if the encoding's scale is larger than usual, so that scores have
        unit variance. A smaller scale, as TUPE's, makes room for further terms and is unchanged."""
        scale = encoding.scale_of(layer, self.config.width)
        return min(1.0, float(self.config.width**-0.5) / scale) if scale > 0 else 1.0

    def read(
        self, x: Tensor, positions: Positions, cache: KVCache | None = None, memory: Memory | None = None
    ) -> Tensor:
        """Embedded tokens (batch, n, dim) through all blocks and the last norm."""
        layers = [block.attention for block in self.blocks if isinstance(block, Block)]
        self.encoding.share([(layer.query, layer.key) for layer in layers])
        require_fit(positions, x=x)
        here = self.encoding.at(positions)
        seen = None if memory is None else memory.encoding.at(memory.positions)
        for layer, block in enumerate(self.blocks):
            x = block(here.embed(x, layer), here, layer, cache, memory, seen)
        return self.norm(x)


class Transformer(TransformerBase):
    """Tokens (batch, seq) -> logits (batch, seq, vocab_size), under one encoding shared by all layers.

    encoding: an object, or a text as `posenc.create` takes it. cross: likewise, what position does in cross-attention, of
    those encodings that act there. Mostly nothing: absolute codes are in the encoder's output already, and T5 and
    its kin give cross-attention no positions.

    An encoder-decoder is two of these:

        memory = decoder.memory(encoder.features(source))
        logits = decoder(target, memory=memory)
    """

    config: TransformerConfig

    def __init__(self, config: TransformerConfig, encoding: Encoding | str, cross: Encoding | str = "none") -> None:
        super().__init__()
        encoding = config.make_encoding(encoding, causal=config.causal)
        cross = _checked_cross(config.make_encoding(cross, causal=False), config)
        self.config = config
        self.embedding: nn.Embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks: nn.ModuleList = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm: nn.Module = config.make_norm()
        self.head: nn.Linear = nn.Linear(config.dim, config.vocab_size, bias=False)
        for matrix in (self.embedding.weight, self.head.weight):
            nn.init.normal_(matrix, std=config.dim**-0.5)
        self.reset_blocks(encoding, cross)
        if config.tie_weights:
            self.head.weight = self.embedding.weight
        # registered last: the model's initial weights do not depend on what the encoding draws
        self.encoding = encoding
        self.cross: Encoding = cross

    def forward(
        self,
        tokens: Tensor,
        positions: Positions | None = None,
        cache: KVCache | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """positions: where the tokens are; None: the ones after the cache, or 0 .. seq-1. A shard: the tokens are those
        of this process (`Positions.shard`). memory: of the encoder, for a model with cross-attention.

        Raises:
            InputError: tokens that are not (batch, seq), or what the encoding and `attention` refuse.
        """
        return self.head(self.features(tokens, positions, cache, memory))

    def memory(self, features: Tensor, positions: Positions | None = None) -> Memory:
        """What cross-attention reads of an encoder's features (batch, m, dim). positions: of its tokens, as the encoder got
        them; None: 0 .. m-1.

        Raises:
            InputError: a model without cross-attention, or features that do not fit.
        """
        if not self.config.cross_attention:
            raise InputError("memory() needs cross-attention: TransformerConfig(cross_attention=True)")
        if features.dim() != 3 or features.shape[2] != self.config.dim:
            raise InputError(f"pass (batch, m, {self.config.dim}), an encoder's features()", features=features)
        if positions is None:
            positions = Positions.arange(features.shape[1], device=features.device)
        require_fit(positions, x=features)
        if positions.sharding is not None:
            raise InputError(
                "positions are a shard: cross-attention reads all of an encoder's tokens, pass those of all"
            )
        attentions = [block.cross_attention for block in self.blocks if isinstance(block, Block)]
        return Memory(tuple(each.keys_and_values(features) for each in attentions), positions, self.cross)

    def features(
        self,
        tokens: Tensor,
        positions: Positions | None = None,
        cache: KVCache | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """What the head reads, (batch, seq, dim), of the same arguments."""
        self._check_tokens(tokens)
        if positions is None:
            count = tokens.shape[1]
            positions = cache.positions(count) if cache else Positions.arange(count, device=tokens.device)
        if cache is not None and positions.sharding is not None:
            raise InputError("a cache and a shard of a sequence exclude one another: pass cache=None, or no shard")
        memory = self._seen_from(positions, memory)
        augment = augmented_by if positions.sharding is None else augment_shard
        positions = augment(self.encoding, positions.with_causal(self.config.causal), tokens.shape[0])
        x = self.embedding(tokens) * self.config.dim**0.5  # unit variance, the scale that encodings are added at
        before = 0 if cache is None else len(cache)
        try:
            return self.read(x, positions, cache, memory)
        except Exception:
            if cache is not None:
                cache.crop(before)  # a call that fails has read nothing
            raise

    @torch.no_grad()
    def generate(
        self, tokens: Tensor, new_tokens: int, attention_mask: Tensor | None = None, memory: Memory | None = None
    ) -> Tensor:
        """Generate greedily with a cache: (batch, seq) -> (batch, seq + new_tokens). A left-padded batch comes with
        its (batch, seq) mask of ones and zeros. memory: as in `forward`.

        Raises:
            InputError: an encoder, an encoding that needs the full sequence's length, or padding on the right.
        """
        if not self.config.causal:
            raise InputError("generate() needs a decoder: TransformerConfig(causal=True)")
        if self.encoding.needs_length:
            raise InputError(
                f"{self.encoding.known_as}: its codes depend on the final length, so it cannot decode with a cache"
            )
        check_sizes(new_tokens=new_tokens)
        if attention_mask is not None:
            if attention_mask.shape != tokens.shape:
                raise InputError(f"must have the shape of tokens, {tuple(tokens.shape)}", attention_mask=attention_mask)
            if not bool(attention_mask[:, -1].all()):
                raise InputError(
                    "attention_mask ends with padding: new tokens follow the last column, so pad on the left"
                )
        cache, mask, step = KVCache(), attention_mask, tokens
        for _ in range(new_tokens):
            positions = None if mask is None else Positions.from_mask(mask, step.shape[1])
            step = self(step, positions, cache, memory)[:, -1:].argmax(-1)
            tokens = torch.cat((tokens, step), 1)
            mask = None if mask is None else torch.cat((mask, mask.new_ones(mask.shape[0], 1)), 1)
        return tokens

    def _seen_from(self, positions: Positions, memory: Memory | None) -> Memory | None:
        """The memory with positions of cross-attention, from where the queries are."""
        if memory is None and not self.config.cross_attention:
            return None
        if not isinstance(memory, Memory) or len(memory.tokens) != self.config.num_layers:
            why = "this decoder reads an encoder, pass decoder.memory(encoder.features(source))"
            raise InputError(why, memory=memory)
        if not self.config.cross_attention:
            why = "this model has no cross-attention"
            raise InputError(why, "TransformerConfig(cross_attention=True) has it", argument="memory")
        self.cross.share(
            [(b.cross_attention.query, b.cross_attention.key) for b in self.blocks if isinstance(b, Block)]
        )
        return replace(memory, positions=Positions.cross(positions, memory.positions))

    def _check_tokens(self, tokens: Tensor) -> None:
        if tokens.dim() != 2 or 0 in tokens.shape or tokens.dtype not in (torch.int64, torch.int32):
            raise InputError("pass (batch, seq) of int64, not empty", tokens=tokens)
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = (int(limit) for limit in tokens.aminmax())
            if not 0 <= low <= high < self.config.vocab_size:
                raise InputError(f"tokens from {low} to {high}: must lie between 0 and {self.config.vocab_size - 1}")


def _checked_cross(cross: Encoding, config: TransformerConfig) -> Encoding:
    """Refuse what does not act between two sequences."""
    sites = set(cross.sites())
    if sites and not config.cross_attention:
        raise InputError("needs cross-attention, TransformerConfig(cross_attention=True)", cross=cross.known_as)
    if outside := sites & {"augment", "embed", "gates"}:
        raise InputError(
            f"acts on a model's input ({', '.join(sorted(outside))}), so make it an encoding of the encoder and the "
            "decoder; cross-attention takes those of queries, keys, scores and values, such as 'rope'",
            cross=cross.known_as,
        )
    return cross
