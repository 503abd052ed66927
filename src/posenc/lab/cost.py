# SPDX-License-Identifier: Apache-2.0
"""The least memory that a comparison needs, so that sizes that cannot fit are refused before anything is allocated."""

import torch

from posenc.errors import InputError
from posenc.lab.experiment import Experiment
from posenc.lab.machine import free_bytes

MOST_WORKERS = 4096
COPIES = 4
"""Of every parameter: itself, its gradient, and at least two sums of an optimizer."""


def least_bytes(settings: Experiment) -> int:
    """The least that one training takes: parameters, the state of the optimizer, and the input of every layer."""
    s = settings
    heads = s.num_heads * (s.head_dim if s.head_dim is not None else s.dim // s.num_heads)
    parameters = s.rows * s.dim + s.num_layers * (4 * s.dim * heads + 8 * s.dim**2)
    tokens = max(s.batch_size * s.tokens, *map(s.tokens_at, s.conditions))
    return 4 * (COPIES * parameters + tokens * s.num_layers * max(s.dim, heads))


def check_affordable(settings: Experiment, workers: int = 1, device: str = "cpu") -> None:
    """Refuse sizes above their limits, or that do not fit into the free memory.

    Raises:
        InputError: names the size, or the memory that is needed and that is free.
    """
    for name, most in settings.MOST.items():
        size = getattr(settings, name)
        if size is not None and size > most:
            raise InputError(f"must be at most {most}", argument=name, value=size)
    settings.check_largest()
    if workers > MOST_WORKERS:
        raise InputError(f"must be at most {MOST_WORKERS}", workers=workers)
    needed, free = least_bytes(settings), free_bytes(torch.device(device))
    if needed > free:
        raise InputError(
            f"one training needs at least {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free",
            "give a smaller dim, num_heads, head_dim, num_layers, batch_size or length",
            dim=settings.dim,
        )
