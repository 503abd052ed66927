# SPDX-License-Identifier: Apache-2.0
"""The text host: a small modern Transformer, decoder or encoder, under any encoding."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from posenc.blocks import Cache, Host, Shape, stacked
from posenc.checks import check_sizes, checked, shown
from posenc.distributed.exchange import place_whole
from posenc.encoding import Encoding, augmented_by
from posenc.errors import InputError
from posenc.positions import Positions

__all__ = ["Transformer", "TransformerConfig"]


@dataclass(frozen=True)
class TransformerConfig(Shape):
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


class Transformer(Host):
    """Tokens (batch, seq) -> logits (batch, seq, vocab_size), under one encoding shared by all layers."""

    config: TransformerConfig

    @checked
    def __init__(self, config: TransformerConfig, encoding: Encoding) -> None:
        super().__init__()
        self.config = config
        self.embedding: nn.Embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks: nn.ModuleList = stacked(config)
        self.norm: nn.RMSNorm = nn.RMSNorm(config.dim)
        self.head: nn.Linear = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.reset_parameters(encoding)
        if config.tie_weights:
            self.head.weight = self.embedding.weight
        # registered last: the host's initial weights do not depend on what the encoding draws
        self.encoding = encoding

    def reset_parameters(self, encoding: Encoding) -> None:
        """Normal weights of variance 1 / fan-in, see `reset_blocks`."""
        nn.init.normal_(self.embedding.weight, std=self.config.dim**-0.5)
        nn.init.normal_(self.head.weight, std=self.config.dim**-0.5)
        self.reset_blocks(encoding)

    @checked
    def forward(self, tokens: Tensor, positions: Positions | None = None, cache: Cache | None = None) -> Tensor:
        """positions: where the tokens are; None: the ones after the cache, or 0 .. seq-1. A shard: the tokens are those
        of this process (`Positions.shard`).

        Raises:
            InputError: tokens that are not (batch, seq), or what the encoding and `attention` refuse.
        """
        if tokens.dim() != 2 or 0 in tokens.shape or tokens.dtype not in (torch.int64, torch.int32):
            raise InputError(f"tokens={shown(tokens)}: pass (batch, seq) of int64, not empty")
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = (int(found) for found in tokens.aminmax())
            if not 0 <= low <= high < self.config.vocab_size:
                raise InputError(f"tokens from {low} to {high}: must lie between 0 and {self.config.vocab_size - 1}")
        if positions is None:
            positions = Positions.arange(tokens.shape[1], len(cache) if cache else 0, device=tokens.device)
        if cache is not None and positions.part is not None:
            raise InputError(
                "a cache and the shard of a sequence exclude one another: pass cache=None, or whole positions"
            )
        place = partial(augmented_by if positions.part is None else place_whole, self.encoding)
        positions = place(positions.with_causal(self.config.causal), len(tokens))
        if cache is None:
            return self._logits(tokens, positions, None)
        kept = dict(cache.layers)
        try:
            return self._logits(tokens, positions, cache)
        except Exception:
            cache.layers = kept  # a call that is refused has read nothing
            raise

    def _logits(self, tokens: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        x = self.embedding(tokens) * self.config.dim**0.5  # unit variance, the scale that encodings are added at
        return self.head(self.read(x, positions, cache))

    @checked
    @torch.no_grad()
    def generate(self, tokens: Tensor, new_tokens: int, attention_mask: Tensor | None = None) -> Tensor:
        """Greedy continuation with a cache: (batch, seq) -> (batch, seq + new_tokens). A left-padded batch comes with
        its (batch, seq) mask of ones and zeros.

        Raises:
            InputError: an encoder, an encoding that needs the whole sequence's length, or padding on the right.
        """
        if not self.config.causal:
            raise InputError("generate() needs a decoder: TransformerConfig(causal=True)")
        if self.encoding.needs_length:
            raise InputError(
                f"{self.encoding.known_as}: its codes depend on the final length, so it cannot decode with a cache"
            )
        check_sizes(new_tokens=new_tokens)
        if tokens.is_meta != (attention_mask is not None and attention_mask.is_meta) and attention_mask is not None:
            raise InputError(
                f"attention_mask is on {attention_mask.device}, tokens on {tokens.device}: move one of them"
            )
        if attention_mask is not None and attention_mask.shape != tokens.shape:
            raise InputError(
                f"attention_mask of {tuple(attention_mask.shape)}: pass one for tokens {tuple(tokens.shape)}"
            )
        if attention_mask is not None and not bool(attention_mask[:, -1].all()):
            raise InputError("attention_mask ends with padding: new tokens follow the last column, so pad on the left")
        cache, mask, step = Cache(), attention_mask, tokens
        for _ in range(new_tokens):
            where = None if mask is None else Positions.from_mask(mask, step.shape[1])
            step = self(step, where, cache)[:, -1:].argmax(-1)
            tokens = torch.cat((tokens, step), 1)
            mask = None if mask is None else torch.cat((mask, mask.new_ones(len(mask), 1)), 1)
        return tokens
