"""Megatron-Core: RoPE of packed rows (thd), the unfused path, on one or two ranks of context parallelism."""

from types import SimpleNamespace

import torch
from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_thd

from posenc.testing.oracles import rotations

PACKAGE = "megatron-core"


def _turn(x, cu_seqlens, base, positions, ranks=1, rank=0):
    """Turn by a table of these positions, (positions, 1, 1, head_dim), an angle for each channel."""
    group = SimpleNamespace(size=lambda: ranks, rank=lambda: rank)
    angles = rotations.angles(positions.double(), x.shape[-1], base)
    table = torch.cat((angles, angles), -1)[:, None, None].float()
    turned = _apply_rotary_pos_emb_thd(x[0].transpose(0, 1), cu_seqlens.int(), table, cp_group=group)
    return turned.transpose(0, 1)[None]


def packed_table(x, cu_seqlens, base, starts=(), ranks=1, rank=0):
    starts = starts or [0] * len(cu_seqlens.diff())
    rows = [start + torch.arange(int(n)) for start, n in zip(starts, cu_seqlens.diff(), strict=True)]
    return _turn(x, cu_seqlens, base, torch.cat(rows), ranks, rank)


def longest_table(x, cu_seqlens, base, ranks=1, rank=0):
    return _turn(x, cu_seqlens, base, torch.arange(int(cu_seqlens.diff().max())), ranks, rank)


def table_of_the_row(x, cu_seqlens, base, ranks=1, rank=0):
    return _turn(x, cu_seqlens, base, torch.arange(int(cu_seqlens[-1])), ranks, rank)


CHECKS = [
    ("_apply_rotary_pos_emb_thd, a table row per token", packed_table, "rotary_packed"),
    ("_apply_rotary_pos_emb_thd, a table as long as the longest document", longest_table, "rotary_packed"),
    ("_apply_rotary_pos_emb_thd, a table of positions as long as the row", table_of_the_row, "rotary_packed"),
]
