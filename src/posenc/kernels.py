# SPDX-License-Identifier: Apache-2.0
"""Deprecated: `posenc.backends.triton`."""

import warnings
from typing import Any

from posenc.backends import triton


def __getattr__(name: str) -> Any:
    if name not in ("DTYPES", "FORCED", "HAS_TRITON", "VERIFIED", "fits_kernel", "rotary_kernel"):
        raise AttributeError(f"module 'posenc.kernels' has no attribute {name!r}")
    warnings.warn(f"posenc.kernels.{name} is posenc.backends.triton.{name}", DeprecationWarning, stacklevel=2)
    return getattr(triton, name)
