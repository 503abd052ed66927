# SPDX-License-Identifier: Apache-2.0
"""A small modern Transformer, decoder or encoder, which takes any encoding.

Pre-norm blocks of attention and a gated MLP, one encoding for all of them. `posenc.vision` puts the same blocks on images.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.attention import attention
from posenc.distributed.exchange import augment_shard
from posenc.encoding import (
    Encoding,
    augmented_by,
    embedded_by,
    gates_of,
    keys_rotated_by,
    require_fit,
    scale_in,
    values_rotated_by,
)
from posenc.encodings import create
from posenc.encodings.shared import kv_heads_of
from posenc.errors import InputError, check_fields, check_flags, check_integers, check_sizes, shown
from posenc.positions import Positions

__all__ = ["Cache", "Transformer", "TransformerConfig"]


class BlockConfig:
    """The fields that the configurations of text and image models share, see `TransformerConfig`."""

    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int | None
    head_dim: int | None
    mlp_ratio: float
    dropout: float

    def __post_init__(self) -> None:
        check_fields(self)
        check_sizes(dim=self.dim, num_heads=self.num_heads, head_dim=self.head_dim)
        check_integers(1, num_layers=self.num_layers)
        if self.head_dim is None and self.dim % self.num_heads:
            raise InputError(f"dim={self.dim}: must be a multiple of num_heads={self.num_heads}, or give head_dim")
        kv_heads_of(self.num_heads, self.num_kv_heads)  # refuses what does not divide
        if self.mlp_ratio <= 0:
            raise InputError(f"mlp_ratio={self.mlp_ratio}: must be a positive number")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout={self.dropout}: must be a probability below 1")

    @property
    def width(self) -> int:
        """Channels of one head."""
        return self.dim // self.num_heads if self.head_dim is None else self.head_dim

    def make_encoding(self, encoding: Encoding | str, **more: Any) -> Encoding:
        """An encoding, unchanged, or one made of its text for a model of this shape. more: further arguments of `create`."""
        if isinstance(encoding, Encoding):
            return encoding
        if not isinstance(encoding, str):
            raise InputError(f"encoding={shown(encoding)}: pass an encoding, or a text such as 'rope'")
        return create(
            encoding, dim=self.dim, num_heads=self.num_heads, head_dim=self.width, num_kv_heads=self.num_kv_heads,
            num_layers=self.num_layers, **more,
        )  # fmt: skip

    @property
    def kv_heads(self) -> int:
        return kv_heads_of(self.num_heads, self.num_kv_heads)


@dataclass(frozen=True)
class TransformerConfig(BlockConfig):
    """Shape of a `Transformer`.

    vocab_size: tokens. dim: width. num_layers, num_heads. num_kv_heads: fewer than num_heads is grouped-query
    attention; None: as many. head_dim: width of a head; None: dim / num_heads. mlp_ratio: width of the gated MLP over
    dim, as in a two-matrix MLP of the same size. causal: decoder or encoder. tie_weights: one matrix for embedding and
    output. dropout: on weights and residuals.
    """

    vocab_size: int
    dim: int = 128
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int | None = None
    head_dim: int | None = None
    mlp_ratio: float = 4.0
    causal: bool = True
    tie_weights: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(vocab_size=self.vocab_size)


class Cache:
    """Keys and values of the tokens read so far, per layer, and what a gated encoding made of the layer's input.

    rotated: False stores unrotated keys, so that one cache serves every encoding and every frequency schedule, and
    each call rotates all of them: what `Transformer.generate` does. True stores them, and values that an encoding
    rotates, rotated, each rotated once, for a cache that you pass; `posenc.re_rotate` moves them. An encoding that cannot rotate keys alone refuses it.
    """

    def __init__(self, rotated: bool = False) -> None:
        check_flags(rotated=rotated)
        self.rotated = rotated
        self.layers: dict[int, tuple[Tensor, ...]] = {}

    def __len__(self) -> int:
        """Tokens read so far."""
        return self.layers[0][0].shape[2] if self.layers else 0

    def append(self, layer: int, new: tuple[Tensor, ...], positions: Positions) -> tuple[Tensor, ...]:
        """Append to their rows what new tokens have, keys, values and gates (batch, heads, n, width); return it of all tokens."""
        if layer in self.layers:
            if len(self.layers[layer]) != len(new):
                raise InputError(
                    f"cache: layer {layer} has {len(self.layers[layer])} tensors, its encoding makes {len(new)}, keys, values and "
                    f"{len(new) - 2} of gates: keep all of a layer when you cut a cache, and use it with one encoding"
                )
            new = tuple(_appended(old, more, positions) for old, more in zip(self.layers[layer], new, strict=True))
        self.layers[layer] = new
        return new


def _appended(old: Tensor, new: Tensor, positions: Positions) -> Tensor:
    if positions.q_order.shape[0] == 1:
        return torch.cat((old, new), 2)
    # rows of different lengths: each writes behind its own last token
    grown = F.pad(old, (0, 0, 0, positions.num_keys - old.shape[2]))
    slots = positions.q_order[:, None, :, None].expand(-1, *new.shape[1:2], -1, new.shape[3])
    return grown.scatter(2, slots, new)


def _new_keys(positions: Positions) -> Positions:
    """The tokens of this call alone, as keys."""
    start = None if positions.start is None else (positions.start[0], positions.start[0])
    return replace(
        positions,
        k=positions.q,
        k_order=positions.q_order,
        valid=None,
        k_document=positions.q_document,
        prefix=None,
        blocks=(),
    ).with_known(start=start)


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

    def forward(self, x: Tensor, encoding: Encoding, positions: Positions, layer: int, cache: Cache | None) -> Tensor:
        heads = (-1, self.config.width)
        q, k, v = (p(x).unflatten(-1, heads).transpose(1, 2) for p in (self.query, self.key, self.value))
        rotated = cache is not None and cache.rotated
        if rotated:
            new = positions.shared(_new_keys, lambda: _new_keys(positions))
            k, v = keys_rotated_by(encoding, k, new, layer), values_rotated_by(encoding, v, new, layer)
        tokens = k, v, *gates_of(encoding, x, layer)
        if cache is not None:
            tokens = cache.append(layer, tokens, positions)
        k, v, *gates = tokens
        y = attention(
            q, k, v, encoding, positions, layer=layer, dropout_p=self.config.dropout if self.training else 0.0,
            keys_rotated=rotated, gates=gates, backend=self.backend,
        )  # fmt: skip
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
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.attention_norm: nn.RMSNorm = nn.RMSNorm(config.dim)
        self.attention: Attention = Attention(config)
        self.mlp_norm: nn.RMSNorm = nn.RMSNorm(config.dim)
        self.mlp: MLP = MLP(config)
        self.dropout: nn.Dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, encoding: Encoding, positions: Positions, layer: int, cache: Cache | None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), encoding, positions, layer, cache))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class TransformerBase(nn.Module):
    """Base of the text and the image model: blocks that share one encoding."""

    config: BlockConfig
    blocks: nn.ModuleList
    norm: nn.RMSNorm
    encoding: Encoding

    def reset_blocks(self, encoding: Encoding) -> None:
        """Normal weights of variance 1 / fan-in; what writes into the residual stream is damped by its depth, and the
        queries make up for an encoding whose scale is not head_dim^-1/2."""
        for layer, block in enumerate(self.blocks):
            for name, module in block.named_modules():
                if isinstance(module, nn.Linear):
                    damping = (2 * self.config.num_layers) ** -0.5 if name.endswith(("out", "down")) else 1.0
                    if name.endswith("query"):
                        damping = self.query_damping(encoding, layer)
                    nn.init.normal_(module.weight, std=damping * module.in_features**-0.5)

    def query_damping(self, encoding: Encoding, layer: int) -> float:
        """Factor by which a layer's queries start smaller if the encoding's scale is larger than usual, so that scores have
        unit variance. A smaller scale, as TUPE's, makes room for further terms and is unchanged."""
        scale = scale_in(encoding, layer, self.config.width)
        return min(1.0, float(self.config.width**-0.5) / scale) if scale > 0 else 1.0

    def read(self, x: Tensor, positions: Positions, cache: Cache | None = None) -> Tensor:
        """Embedded tokens (batch, n, dim) through all blocks and the last norm."""
        layers = [block.attention for block in self.blocks if isinstance(block, Block)]
        self.encoding.share([(layer.query, layer.key) for layer in layers])
        require_fit(positions, x=x)
        positions = positions.with_pass_cache()
        for layer, block in enumerate(self.blocks):
            x = embedded_by(self.encoding, x, positions, layer)
            x = block(x, self.encoding, positions, layer, cache)
        return self.norm(x)


class Transformer(TransformerBase):
    """Tokens (batch, seq) -> logits (batch, seq, vocab_size), under one encoding shared by all layers.

    encoding: an object, or a text as `posenc.create` takes it.
    """

    config: TransformerConfig

    def __init__(self, config: TransformerConfig, encoding: Encoding | str) -> None:
        super().__init__()
        encoding = config.make_encoding(encoding, causal=config.causal)
        self.config = config
        self.embedding: nn.Embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks: nn.ModuleList = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm: nn.RMSNorm = nn.RMSNorm(config.dim)
        self.head: nn.Linear = nn.Linear(config.dim, config.vocab_size, bias=False)
        for matrix in (self.embedding.weight, self.head.weight):
            nn.init.normal_(matrix, std=config.dim**-0.5)
        self.reset_blocks(encoding)
        if config.tie_weights:
            self.head.weight = self.embedding.weight
        # registered last: the model's initial weights do not depend on what the encoding draws
        self.encoding = encoding

    def forward(self, tokens: Tensor, positions: Positions | None = None, cache: Cache | None = None) -> Tensor:
        """positions: where the tokens are; None: the ones after the cache, or 0 .. seq-1. A shard: the tokens are those
        of this process (`Positions.shard`).

        Raises:
            InputError: tokens that are not (batch, seq), or what the encoding and `attention` refuse.
        """
        self._check_tokens(tokens)
        if positions is None:
            positions = Positions.arange(tokens.shape[1], len(cache) if cache else 0, device=tokens.device)
        if cache is not None and positions.sharding is not None:
            raise InputError("a cache and a shard of a sequence exclude one another: pass cache=None, or no shard")
        augment = augmented_by if positions.sharding is None else augment_shard
        positions = augment(self.encoding, positions.with_causal(self.config.causal), len(tokens))
        x = self.embedding(tokens) * self.config.dim**0.5  # unit variance, the scale that encodings are added at
        before = {} if cache is None else dict(cache.layers)
        try:
            return self.head(self.read(x, positions, cache))
        except Exception:
            if cache is not None:
                cache.layers = before  # a call that fails has read nothing
            raise

    @torch.no_grad()
    def generate(self, tokens: Tensor, new_tokens: int, attention_mask: Tensor | None = None) -> Tensor:
        """Generate greedily with a cache: (batch, seq) -> (batch, seq + new_tokens). A left-padded batch comes with
        its (batch, seq) mask of ones and zeros.

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
                raise InputError(
                    f"attention_mask={shown(attention_mask)}: must have the shape of tokens, {tuple(tokens.shape)}"
                )
            if not bool(attention_mask[:, -1].all()):
                raise InputError(
                    "attention_mask ends with padding: new tokens follow the last column, so pad on the left"
                )
        cache, mask, step = Cache(), attention_mask, tokens
        for _ in range(new_tokens):
            positions = None if mask is None else Positions.from_mask(mask, step.shape[1])
            step = self(step, positions, cache)[:, -1:].argmax(-1)
            tokens = torch.cat((tokens, step), 1)
            mask = None if mask is None else torch.cat((mask, mask.new_ones(len(mask), 1)), 1)
        return tokens

    def _check_tokens(self, tokens: Tensor) -> None:
        if tokens.dim() != 2 or 0 in tokens.shape or tokens.dtype not in (torch.int64, torch.int32):
            raise InputError(f"tokens={shown(tokens)}: pass (batch, seq) of int64, not empty")
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = (int(limit) for limit in tokens.aminmax())
            if not 0 <= low <= high < self.config.vocab_size:
                raise InputError(f"tokens from {low} to {high}: must lie between 0 and {self.config.vocab_size - 1}")
