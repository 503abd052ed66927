"""labml-nn: the annotated rotary embeddings and ALiBi."""

from types import SimpleNamespace

import torch
from labml_nn.transformers.alibi import get_slopes
from labml_nn.transformers.positional_encoding import get_positional_encoding
from labml_nn.transformers.rope import RotaryPositionalEmbeddings
from labml_nn.transformers.xl.relative_mha import RelativeMultiHeadAttention
from shared import at_positions

PACKAGE = "labml-nn"


def rotary(x, positions, base):
    return rotary_partial(x, positions, base, x.shape[-1])


def rotary_partial(x, positions, base, rotary_dim):
    module = RotaryPositionalEmbeddings(rotary_dim, base).to(x.dtype)
    return at_positions(lambda full: module(full.permute(2, 0, 1, 3)).permute(1, 2, 0, 3), x, positions)


def relative(q, table, num_keys):
    far, (batch, heads, queries, dim) = len(table) // 2, q.shape
    rows = torch.arange(-num_keys, queries).clamp(-far, far) + far
    zeros = torch.zeros(num_keys + queries, heads)
    module = SimpleNamespace(
        P=num_keys, key_pos_embeddings=table[rows][:, None].expand(-1, heads, -1), key_pos_bias=zeros,
        query_pos_bias=torch.zeros(heads, dim),
    )  # fmt: skip
    keys = torch.zeros(num_keys, batch, heads, dim)
    return RelativeMultiHeadAttention.get_scores(module, q.permute(2, 0, 1, 3), keys).permute(2, 3, 0, 1)


def sinusoidal(positions, dim, base):
    if base != 10000:
        raise NotImplementedError
    return get_positional_encoding(dim, int(positions.max()) + 1)[positions, 0]


CHECKS = [
    ("RotaryPositionalEmbeddings", rotary, "rotary"),
    ("RotaryPositionalEmbeddings(rotary_dim)", rotary_partial, "rotary_partial"),
    ("get_positional_encoding", sinusoidal, "sinusoidal"),
    ("get_slopes", get_slopes, "alibi"),
    ("RelativeMultiHeadAttention.get_scores", relative, "relative"),
]
