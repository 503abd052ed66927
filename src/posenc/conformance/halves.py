# SPDX-License-Identifier: Apache-2.0
"""Half-precision rounding of Python's numbers."""

import struct
from collections.abc import Callable


def _float16(value: float) -> float:
    rounded: float = struct.unpack("e", struct.pack("e", min(max(value, -65504.0), 65504.0)))[0]
    return rounded


def _bfloat16(value: float) -> float:
    """The upper half of a float32, rounded to even."""
    (bits,) = struct.unpack("I", struct.pack("f", value))
    rounded: float = struct.unpack("f", struct.pack("I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0]
    return rounded


ROUNDED: dict[str, Callable[[float], float]] = {"bfloat16": _bfloat16, "float16": _float16}
