"""Liger-Kernel: its Triton kernels, on a CPU under Triton's interpreter."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from liger_kernel.transformers.qwen2vl_mrope import liger_multimodal_rotary_pos_emb
from liger_kernel.transformers.rope import liger_rotary_pos_emb

from posenc.testing.oracles import rotations

PACKAGE = "liger-kernel"


def _tables(x, positions, base):
    """(..., seq, head_dim), an angle for each channel."""
    angles = rotations.angles(positions.double(), x.shape[-1], base)
    spread = torch.cat((angles, angles), -1)
    return spread.cos().to(x.dtype), spread.sin().to(x.dtype)


def _copy(x):
    """x in the memory of a projection, (batch, seq, heads, head_dim); the kernels write in place."""
    if x.dtype == torch.bfloat16:  # the interpreter has no such type
        raise NotImplementedError
    batch, heads, rows, dim = x.shape
    return torch.empty(batch, rows, heads, dim, dtype=x.dtype).copy_(x.transpose(1, 2)).transpose(1, 2)


def rotary(x, positions, base):
    return liger_rotary_pos_emb(_copy(x), _copy(x), *_tables(x, positions[None], base))[0]


def ragged(x, offsets, base, copy=_copy):
    positions = offsets[:, None] + torch.arange(x.shape[2])
    return liger_rotary_pos_emb(copy(x), copy(x), *_tables(x, positions, base))[0]


def ragged_by_heads(x, offsets, base):
    return ragged(x, offsets, base, lambda x: _copy(x).clone(memory_format=torch.contiguous_format))


def m_rope(x, positions, base, sections):
    cos, sin = _tables(x, positions[:, None].expand(-1, len(x), -1), base)
    return liger_multimodal_rotary_pos_emb(_copy(x), _copy(x), cos, sin, sections)[0]


CHECKS = [
    ("liger_rotary_pos_emb, Triton's interpreter", rotary, "rotary"),
    ("liger_rotary_pos_emb, cos of every row, Triton's interpreter", ragged, "rotary_ragged"),
    ("the same, x in memory as (batch, heads, seq, head_dim)", ragged_by_heads, "rotary_ragged"),
    ("liger_multimodal_rotary_pos_emb, Triton's interpreter", m_rope, "m_rope"),
]
