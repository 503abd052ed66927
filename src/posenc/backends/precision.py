# SPDX-License-Identifier: Apache-2.0
"""Which floating dtypes the processor at hand multiplies fast: measured, since names of instruction sets do not tell."""

import time
from functools import cache
from threading import Thread

import torch

HALF = torch.bfloat16, torch.float16
ROWS, WIDTH, REPEATS = 128, 512, 5
SLOWER = 3.0
"""Times as long as in float32 that count as slower. With instructions for a dtype products took 0.4 to 1.3 times as long (Intel Xeon,
AVX-512 and AMX, twice as many processes as cores), without them 33 to 42 (the same, AVX2 alone): processes decide alike."""


def slower_than_float32(dtype: torch.dtype, device: torch.device | str = "cpu") -> bool:
    """Whether matrix products in `dtype` take SLOWER times as long as in float32 on this machine, or longer.

    On a CPU it is measured, once in a process: a processor without instructions for bfloat16 or float16 converts every operand. It
    took 20 ms with them and 0.2 s without (as for SLOWER). On a GPU its own capabilities tell.
    """
    if dtype in (torch.float32, torch.float64) or not dtype.is_floating_point:
        return dtype == torch.float64
    kind = torch.device(device).type
    if kind == "cuda":
        return dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False)
    return kind == "cpu" and _measured(dtype)


# a graph takes what is measured while it is traced: torch.compiler.assume_constant_result, which sets this, would import all
# of Dynamo with posenc
slower_than_float32._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _measured(dtype: torch.dtype) -> bool:
    """Whether products take SLOWER times as long. Measured in another thread, where no modes of the caller are at work: fake
    tensors of an export, a default device, autocast."""
    least = [float("inf"), float("inf")]

    def measure() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # of this thread: several wait for cores that other programs use
        try:
            with torch.inference_mode():  # leaves the caller's random state alone, as it draws nothing
                single = torch.linspace(-1, 1, WIDTH * WIDTH, device="cpu", dtype=torch.float32).view(WIDTH, WIDTH)
                factors = single.to(dtype), single
                for _ in range(1 + REPEATS):  # the first warms up
                    for number, x in enumerate(factors):
                        start = time.perf_counter()
                        x[:ROWS] @ x
                        least[number] = min(least[number], time.perf_counter() - start)
        finally:
            torch.set_num_threads(threads)  # which threads that start later take over

    thread = Thread(target=measure)
    thread.start()
    thread.join()
    return least[0] > SLOWER * least[1]
