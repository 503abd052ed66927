# SPDX-License-Identifier: Apache-2.0
"""What was measured of our kernels on GPUs, from gpus.json."""

import json
from importlib.resources import files
from typing import Any

import torch

RECORD: dict[str, dict[str, Any]] = json.loads(files("posenc.backends").joinpath("gpus.json").read_text())
"""Compute capability ("9.0") -> `kernels`: those of ours that benchmarks/gpu.py found right and faster than PyTorch's on such
a GPU, with the least size ("rotary": 0; attention by what it reads, "vector" and "products", the least number of queries, or
of keys for "vector, one query"); their `tiles`, and the `machines` that found it."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What `rotary_kernel` serves; wider ones would lose digits."""


def recorded(device: torch.device) -> dict[str, Any]:
    """What RECORD has of a device; of a fake tensor's, where there is no GPU, nothing."""
    if not RECORD or device.type != "cuda" or not torch.cuda.is_available():
        return {}
    return RECORD.get("{}.{}".format(*torch.cuda.get_device_capability(device)), {})
