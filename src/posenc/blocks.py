# SPDX-License-Identifier: Apache-2.0
"""The blocks of the host models, and what these have in common: they take any encoding and name none."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.attention import attention
from posenc.checks import check_fields, check_sizes, checked
from posenc.encoding import Encoding, embedded_by, keys_rotated_by, require_fit, scale_in
from posenc.errors import InputError
from posenc.positions import Positions

MOST_LAYERS = 2**12


class Shape:
    """What the configs of the host models have in common, see `TransformerConfig`."""

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
        if not 1 <= self.num_layers <= MOST_LAYERS:
            raise InputError(f"num_layers={self.num_layers}: must lie between 1 and {MOST_LAYERS}")
        if self.head_dim is None and self.dim % self.num_heads:
            raise InputError(f"dim={self.dim}: must be a multiple of num_heads={self.num_heads}, or give head_dim")
        if self.kv_heads < 1 or self.num_heads % self.kv_heads:
            raise InputError(f"num_kv_heads={self.num_kv_heads}: must divide num_heads={self.num_heads}")
        if not 0 < self.mlp_ratio <= MOST_LAYERS:
            raise InputError(f"mlp_ratio={self.mlp_ratio}: must be a positive number, at most {MOST_LAYERS}")
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

    @checked
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
        positions, k=positions.q, k_order=positions.q_order, valid=None, k_document=positions.q_document,
        prefix=None,
    ).with_known(start=start)  # fmt: skip


class Attention(nn.Module):
    """Projections around `posenc.attention`. backend: which of its backends computes it."""

    backend = "auto"

    def __init__(self, config: Shape) -> None:
        super().__init__()
        self.config = config
        self.query: nn.Linear = nn.Linear(config.dim, config.num_heads * config.width, bias=False)
        self.key: nn.Linear = nn.Linear(config.dim, config.kv_heads * config.width, bias=False)
        self.value: nn.Linear = nn.Linear(config.dim, config.kv_heads * config.width, bias=False)
        self.out: nn.Linear = nn.Linear(config.num_heads * config.width, config.dim, bias=False)

    def forward(self, x: Tensor, encoding: Encoding, positions: Positions, layer: int, cache: Cache | None) -> Tensor:
        heads = (-1, self.config.width)
        q, k, v = (p(x).unflatten(-1, heads).transpose(1, 2) for p in (self.query, self.key, self.value))
        rotated = cache is not None and cache.rotated
        if cache is not None:
            if rotated:
                k = keys_rotated_by(encoding, k, positions.shared(_new_keys, lambda: _new_keys(positions)), layer)
            k, v = cache.append(layer, k, v, positions)
        dropout_p = self.config.dropout if self.training else 0.0
        y = attention(
            q, k, v, encoding, positions, layer=layer, dropout_p=dropout_p, keys_rotated=rotated, backend=self.backend
        )
        return self.out(y.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020), with the parameters of a two-matrix MLP of mlp_ratio * dim."""

    def __init__(self, config: Shape) -> None:
        super().__init__()
        hidden = max(1, round(config.mlp_ratio * config.dim * 2 / 3))
        self.gate: nn.Linear = nn.Linear(config.dim, hidden, bias=False)
        self.up: nn.Linear = nn.Linear(config.dim, hidden, bias=False)
        self.down: nn.Linear = nn.Linear(hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: Shape) -> None:
        super().__init__()
        self.attention_norm: nn.RMSNorm = nn.RMSNorm(config.dim)
        self.attention: Attention = Attention(config)
        self.mlp_norm: nn.RMSNorm = nn.RMSNorm(config.dim)
        self.mlp: MLP = MLP(config)
        self.dropout: nn.Dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, encoding: Encoding, positions: Positions, layer: int, cache: Cache | None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), encoding, positions, layer, cache))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


def stacked(config: Shape) -> nn.ModuleList:
    """The blocks of a model."""
    return nn.ModuleList(Block(config) for _ in range(config.num_layers))


class Host(nn.Module):
    """What the text and the image model share: a stack of blocks under one encoding for all of them."""

    config: Shape
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
        """How much smaller a layer's queries start where the encoding's scale is larger than usual, so that scores have
        unit variance. A smaller scale, as TUPE's, makes room for further terms and is left as it is."""
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
