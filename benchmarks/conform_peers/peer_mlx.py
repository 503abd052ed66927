"""mlx, on its CPU backend: RoPE, SinusoidalPositionalEncoding, ALiBi."""

from functools import cache

import mlx.core as mx
import mlx.nn as nn
import numpy
import torch
from shared import one_by_one

PACKAGE = "mlx"
mx.set_default_device(mx.cpu)
DTYPES = {torch.float32: mx.float32, torch.bfloat16: mx.bfloat16, torch.float16: mx.float16}


_module = cache(nn.RoPE)


def _turn(x, positions, base, traditional):
    if x.dtype not in DTYPES:  # float64 exists in part only
        raise NotImplementedError
    module = _module(x.shape[-1], traditional=traditional, base=base)

    def rows_at(rows, offset):
        turned = module(mx.array(rows.float().numpy()).astype(DTYPES[x.dtype]), offset=offset)
        return torch.tensor(numpy.array(turned.astype(mx.float32))).to(x.dtype)

    return one_by_one(rows_at, x, positions)


def rotary(x, positions, base):
    return _turn(x, positions, base, traditional=False)


def traditional(x, positions, base):
    return _turn(x, positions, base, traditional=True)


def ragged(x, offsets, base):
    """Every row at an offset of its own; equal offsets as one number."""
    if x.dtype not in DTYPES:
        raise NotImplementedError
    given = int(offsets[0]) if len(set(offsets.tolist())) == 1 else mx.array(offsets.tolist())
    rows = mx.array(x.float().numpy()).astype(DTYPES[x.dtype])
    turned = mx.fast.rope(rows, x.shape[-1], traditional=False, base=base, scale=1.0, offset=given)
    return torch.tensor(numpy.array(turned.astype(mx.float32))).to(x.dtype)


def slopes(num_heads):
    return numpy.array(nn.ALiBi.create_alibi_slope(num_heads)).reshape(-1)


CHECKS = [
    ("nn.RoPE(traditional=False)", rotary, "rotary"),
    ("nn.RoPE(traditional=True)", traditional, "rotary_interleaved"),
    ("fast.rope(offset)", ragged, "rotary_ragged"),
    ("nn.ALiBi", slopes, "alibi"),
]
