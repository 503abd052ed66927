"""positional-encodings: PositionalEncoding1D codes the rows of a tensor, in its dtype; its base is 10000."""

from functools import cache

import torch
from positional_encodings.torch_encodings import PositionalEncoding1D

PACKAGE = "positional-encodings"


@cache
def _module(dim, dtype):
    return PositionalEncoding1D(dim)


def _codes(positions, dim, base, dtype):
    if base != 10000:
        raise NotImplementedError
    return _module(dim, dtype)(torch.zeros(1, int(positions.max()) + 1, dim, dtype=dtype))[0, positions]


def floats(positions, dim, base):
    return _codes(positions, dim, base, torch.float32)


def integers(positions, dim, base):
    return _codes(positions, dim, base, torch.int64)


CHECKS = [
    ("PositionalEncoding1D, of a float32 tensor", floats, "sinusoidal"),
    ("PositionalEncoding1D, of an int64 tensor", integers, "sinusoidal"),
]
