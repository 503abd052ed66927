"""The host model: a small modern Transformer, decoder or encoder, that takes any encoding and names none."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.attention import attention
from posenc.distributed.exchange import place_whole
from posenc.encoding import Encoding
from posenc.errors import InputError
from posenc.positions import Positions


@dataclass(frozen=True)
class TransformerConfig:
    """Shape of a `Transformer`.

    vocab_size: tokens. dim: width. num_layers, num_heads. num_kv_heads: fewer than num_heads is grouped-query
    attention; None: as many. head_dim: width of a head; None: dim / num_heads. mlp_ratio: width of the gated MLP over
    dim, as in a two-matrix MLP of the same size. causal: decoder or encoder. tie_weights: one matrix for embedding and output. dropout: on weights and residuals.
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
        for name in ("vocab_size", "dim", "num_layers", "num_heads"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.head_dim is None and self.dim % self.num_heads:
            raise InputError(f"dim={self.dim}: must be a multiple of num_heads={self.num_heads}, or give head_dim")
        if self.head_dim is not None and self.head_dim < 1:
            raise InputError(f"head_dim={self.head_dim}: must be at least 1")
        if self.kv_heads < 1 or self.num_heads % self.kv_heads:
            raise InputError(f"num_kv_heads={self.num_kv_heads}: must divide num_heads={self.num_heads}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout={self.dropout}: a probability below 1")

    @property
    def width(self) -> int:
        """Channels of one head."""
        return self.dim // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads


class Cache:
    """Keys and values of the tokens read so far, per layer.

    rotated: False keeps keys as projected, so that one cache serves every encoding and every frequency schedule, and
    each call rotates all of them: what `Transformer.generate` does. True keeps them rotated, each rotated once, for a
    cache that you pass; `posenc.re_rotate` moves them. An encoding that cannot rotate keys by themselves refuses it.
    """

    def __init__(self, rotated: bool = False) -> None:
        self.rotated = rotated
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        """Tokens read so far."""
        return self.layers[0][0].shape[2] if self.layers else 0

    def append(self, layer: int, k: Tensor, v: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        """Add new tokens (batch, kv_heads, n, head_dim) at their places in the order; give back all of them."""
        if layer in self.layers:
            k, v = (_placed(old, new, positions) for old, new in zip(self.layers[layer], (k, v), strict=True))
        self.layers[layer] = k, v
        return k, v


def _placed(old: Tensor, new: Tensor, positions: Positions) -> Tensor:
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
        positions, k=positions.q, k_order=positions.q_order, valid=None, k_document=positions.q_document, start=start,
        _shared={},
    )  # fmt: skip


class Attention(nn.Module):
    """Projections around `posenc.attention`. backend: which of its backends computes it."""

    backend = "auto"

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.query = nn.Linear(config.dim, config.num_heads * config.width, bias=False)
        self.key = nn.Linear(config.dim, config.kv_heads * config.width, bias=False)
        self.value = nn.Linear(config.dim, config.kv_heads * config.width, bias=False)
        self.out = nn.Linear(config.num_heads * config.width, config.dim, bias=False)

    def forward(self, x: Tensor, encoding: Encoding, positions: Positions, layer: int, cache: Cache | None) -> Tensor:
        heads = (-1, self.config.width)
        q, k, v = (p(x).unflatten(-1, heads).transpose(1, 2) for p in (self.query, self.key, self.value))
        rotated = cache is not None and cache.rotated
        if cache is not None:
            if rotated:
                k = encoding.rotate_keys(k, positions.shared(_new_keys, lambda: _new_keys(positions)), layer)
            k, v = cache.append(layer, k, v, positions)
        dropout_p = self.config.dropout if self.training else 0.0
        y = attention(
            q, k, v, encoding, positions, layer=layer, dropout_p=dropout_p, keys_rotated=rotated, backend=self.backend
        )
        return self.out(y.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020), with the parameters of a two-matrix MLP of mlp_ratio * dim."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        hidden = max(1, round(config.mlp_ratio * config.dim * 2 / 3))
        self.gate = nn.Linear(config.dim, hidden, bias=False)
        self.up = nn.Linear(config.dim, hidden, bias=False)
        self.down = nn.Linear(hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(config.dim), Attention(config)
        self.mlp_norm, self.mlp = nn.RMSNorm(config.dim), MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, encoding: Encoding, positions: Positions, layer: int, cache: Cache | None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), encoding, positions, layer, cache))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Transformer(nn.Module):
    """Tokens (batch, seq) -> logits (batch, seq, vocab_size), under one encoding shared by all layers."""

    def __init__(self, config: TransformerConfig, encoding: Encoding) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.dim)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.reset_parameters(encoding)
        if config.tie_weights:
            self.head.weight = self.embedding.weight
        # registered last: the host's initial weights do not depend on what the encoding draws
        self.encoding = encoding

    def reset_parameters(self, encoding: Encoding) -> None:
        """Normal weights of variance 1 / fan-in; what writes into the residual stream is damped by its depth, and the
        queries make up for an encoding whose scale is not head_dim^-1/2."""
        config = self.config
        nn.init.normal_(self.embedding.weight, std=config.dim**-0.5)
        nn.init.normal_(self.head.weight, std=config.dim**-0.5)
        for layer, block in enumerate(self.blocks):
            for name, module in block.named_modules():
                if isinstance(module, nn.Linear):
                    damping = (2 * config.num_layers) ** -0.5 if name.endswith(("out", "down")) else 1.0
                    if name.endswith("query"):
                        damping = self.query_damping(encoding, layer)
                    nn.init.normal_(module.weight, std=damping * module.in_features**-0.5)

    def query_damping(self, encoding: Encoding, layer: int) -> float:
        """How much smaller a layer's queries start where the encoding's scale is larger than usual, so that scores have
        unit variance. A smaller scale, as TUPE's, makes room for further terms and is left as it is."""
        return min(1.0, float(self.config.width**-0.5) / encoding.scale_of(layer, self.config.width))

    def forward(self, tokens: Tensor, positions: Positions | None = None, cache: Cache | None = None) -> Tensor:
        """positions: where the tokens are; None: the ones after the cache, or 0 .. seq-1. A shard: the tokens are those
        of this process (`Positions.shard`).

        Raises:
            InputError: tokens that are not (batch, seq), or what the encoding and `attention` refuse.
        """
        if tokens.dim() != 2:
            raise InputError(f"tokens of shape {tuple(tokens.shape)}: pass (batch, seq)")
        if positions is None:
            positions = Positions.arange(tokens.shape[1], len(cache) if cache else 0, device=tokens.device)
        if cache is not None and positions.part is not None:
            raise InputError(
                "a cache and the shard of a sequence exclude one another: pass cache=None, or whole positions"
            )
        place = self.encoding.place if positions.part is None else partial(place_whole, self.encoding)
        positions = place(positions.with_causal(self.config.causal), len(tokens))
        layers = [block.attention for block in self.blocks if isinstance(block, Block)]
        self.encoding.share([(layer.query, layer.key) for layer in layers])
        x = self.embedding(tokens) * self.config.dim**0.5  # unit variance, the scale that encodings are added at
        for layer, block in enumerate(self.blocks):
            x = self.encoding.embed(x, positions, layer)
            x = block(x, self.encoding, positions, layer, cache)
        return self.head(self.norm(x))

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
            raise InputError(f"{self.encoding}: its codes depend on the final length, so it cannot decode with a cache")
        if attention_mask is not None and not bool(attention_mask[:, -1].all()):
            raise InputError("attention_mask ends with padding: new tokens follow the last column, so pad on the left")
        cache, mask, step = Cache(), attention_mask, tokens
        for _ in range(new_tokens):
            where = None if mask is None else Positions.from_mask(mask, step.shape[1])
            step = self(step, where, cache)[:, -1:].argmax(-1)
            tokens = torch.cat((tokens, step), 1)
            mask = None if mask is None else torch.cat((mask, mask.new_ones(len(mask), 1)), 1)
        return tokens
