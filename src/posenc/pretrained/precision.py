# SPDX-License-Identifier: Apache-2.0
"""The dtype that a pretrained model computes in, and the one that its checkpoint is stored in."""

from typing import Any

import torch
from torch import nn

from posenc.backends.precision import fastest_dtype, slower_than_float32
from posenc.errors import InputError, unknown
from posenc.pretrained.anatomy import unwrapped

AUTO = "auto"
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}
"""What a model may be loaded in, by name; and "auto"."""
HALF = torch.bfloat16, torch.float16
SLOWER, STEPS_LOST = "in which this machine is slower", "in which small steps of a training are lost"
"""Why a model is made float32, said of the dtype that it had."""


def dtype_of(given: torch.dtype | str) -> torch.dtype | None:
    """A dtype from itself or its name; None: "auto".

    Raises:
        InputError: no such name, or a dtype that no weight has.
    """
    if isinstance(given, str):
        name = given.removeprefix("torch.")
        if name not in (AUTO, *DTYPES):
            raise unknown("dtype", given, (AUTO, *DTYPES))
        return DTYPES.get(name)
    if not given.is_floating_point:
        raise InputError(f"dtype={given}: weights are floating-point numbers; pass one of {', '.join((AUTO, *DTYPES))}")
    return given


def computing_dtype(stored: torch.dtype | None, device: torch.device | str | None) -> torch.dtype:
    """What "auto" means on a device: the dtype of the checkpoint, but float32 where the machine is faster in that.

    stored: None for a quantised file, whose numbers are in no floating dtype.
    """
    device = device or "cpu"
    if stored is None:
        return fastest_dtype(device)
    return torch.float32 if stored in HALF and slower_than_float32(stored, device) else stored


def widen(model: nn.Module, because: str = SLOWER) -> None:
    """Compute in float32 from here on, which is exact; `stored_dtype` still tells what the model was before, and
    `chosen_because` why."""
    inner: Any = unwrapped(model)
    stored = inner.dtype
    model.to(torch.float32)
    inner._posenc_stored_dtype = stored  # on the model, so that it goes along into copies
    inner._posenc_widened_because = because
    for config in (inner.config, *(getattr(inner.config, name, None) for name in inner.config.sub_configs)):
        if config is not None:
            config.dtype = torch.float32


def stored_dtype(model: nn.Module) -> torch.dtype:
    """The dtype that a model is saved in: its own, or that of its checkpoint where it was widened to compute in float32."""
    inner: Any = unwrapped(model)
    now: torch.dtype = inner.dtype
    return getattr(inner, "_posenc_stored_dtype", now) if now == torch.float32 else now


def chosen_because(model: nn.Module) -> str:
    """In which dtype a model computes and why, as the end of a sentence: "float32: the checkpoint is in bfloat16, ..."."""
    inner: Any = unwrapped(model)
    dtype, stored = (str(d).removeprefix("torch.") for d in (inner.dtype, stored_dtype(model)))
    if dtype != stored:
        return f"{dtype}: the checkpoint is in {stored}, {inner._posenc_widened_because}"
    if inner.dtype not in HALF:
        return dtype
    slower = slower_than_float32(inner.dtype, next(inner.parameters()).device)
    return f"{dtype}, in which this machine is {'slower' if slower else 'not slower'} than in float32"
