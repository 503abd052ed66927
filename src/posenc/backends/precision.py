# SPDX-License-Identifier: Apache-2.0
"""Which floating dtypes the processor at hand multiplies fast: measured, since names of instruction sets do not tell."""

import time
from collections.abc import Callable
from functools import cache
from threading import Thread

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

ROWS, WIDTH, REPEATS = 128, 512, 3
HEADS, KEYS, HEAD_DIM = 4, 256, 64


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
    return kind == "cpu" and _measured(_products, dtype)


def steps_slower_than_float32(dtype: torch.dtype) -> bool:
    """Whether attention of a single query on the CPU takes longer in `dtype` than by way of float32 copies of the keys
    and values; measured once in a process, in about 2 ms."""
    return dtype in (torch.bfloat16, torch.float16) and _measured(_step, dtype)


def fastest_dtype(device: torch.device | str = "cpu") -> torch.dtype:
    """The dtype to run a pretrained model in: bfloat16, but float32 where the machine is not faster in bfloat16."""
    return torch.float32 if slower_than_float32(torch.bfloat16, device) else torch.bfloat16


for _constant in (slower_than_float32, steps_slower_than_float32):
    # a graph takes what is measured while it is traced: torch.compiler.assume_constant_result, which sets this, would
    # import all of Dynamo with posenc
    _constant._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _measured(
    work: Callable[[torch.dtype], tuple[Callable[[], Tensor], Callable[[], Tensor]]], dtype: torch.dtype
) -> bool:
    """Whether the first of the two forms of a work takes longer than the second. Measured in another thread, where
    no modes of the caller are at work: fake tensors of an export, a default device, autocast."""
    least = [float("inf"), float("inf")]

    def measure() -> None:
        with torch.inference_mode():  # leaves the caller's random state alone, as it draws nothing
            forms = work(dtype)
            for turn in range(1 + REPEATS):  # the first warms up
                for number, form in enumerate(forms):
                    start = time.perf_counter()
                    form()
                    if turn:
                        least[number] = min(least[number], time.perf_counter() - start)

    thread = Thread(target=measure)
    thread.start()
    thread.join()
    return least[0] > least[1]


def _numbers(count: int) -> Tensor:
    return torch.linspace(-1, 1, count, device="cpu", dtype=torch.float32)


def _products(dtype: torch.dtype) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    single = _numbers(WIDTH * WIDTH).view(WIDTH, WIDTH)
    half = single.to(dtype)
    return lambda: half[:ROWS] @ half, lambda: single[:ROWS] @ single


def _step(dtype: torch.dtype) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    k = _numbers(HEADS * KEYS * HEAD_DIM).view(1, HEADS, KEYS, HEAD_DIM).to(dtype)
    q = k[:, :, :1].contiguous()
    return lambda: scaled_dot_product_attention(q, k, k), lambda: scaled_dot_product_attention(
        q.float(), k.float(), k.float()
    ).to(dtype)
