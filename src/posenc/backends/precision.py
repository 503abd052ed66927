# SPDX-License-Identifier: Apache-2.0
"""Which floating dtypes the processor at hand multiplies fast: measured, since names of instruction sets do not tell."""

import time
from functools import cache

import torch

ROWS, WIDTH, REPEATS = 128, 512, 3


def slower_than_float32(dtype: torch.dtype, device: torch.device | str = "cpu") -> bool:
    """Whether matrix products in `dtype` take longer than in float32 on this machine.

    On a CPU it is measured, once in a process and in about 20 ms: a processor without instructions for bfloat16 or
    float16 converts every operand and takes up to 20 times as long. On a GPU its own capabilities tell.
    """
    if dtype in (torch.float32, torch.float64) or not dtype.is_floating_point:
        return dtype == torch.float64
    kind = torch.device(device).type
    if kind == "cuda":
        return dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False)
    return kind == "cpu" and _slower_on_cpu(dtype)


def fastest_dtype(device: torch.device | str = "cpu") -> torch.dtype:
    """The dtype to run a pretrained model in: bfloat16, but float32 where the machine is not faster in bfloat16."""
    return torch.float32 if slower_than_float32(torch.bfloat16, device) else torch.bfloat16


@cache
def _slower_on_cpu(dtype: torch.dtype) -> bool:
    with torch.inference_mode():  # leaves the caller's random state alone, as it draws nothing
        single = torch.linspace(-1, 1, WIDTH * WIDTH).view(WIDTH, WIDTH)
        half = single.to(dtype)
        least = {torch.float32: float("inf"), dtype: float("inf")}
        for turn in range(1 + REPEATS):  # the first warms up
            for x in (single, half):
                start = time.perf_counter()
                x[:ROWS] @ x
                if turn:
                    least[x.dtype] = min(least[x.dtype], time.perf_counter() - start)
    return least[dtype] > least[torch.float32]
