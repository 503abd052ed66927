# SPDX-License-Identifier: Apache-2.0
"""The encodings: one family a file, all by name in `ENCODINGS`, see registry.py."""

from posenc.encodings import names
from posenc.encodings.names import *  # noqa: F403 - its __all__ names every encoding

__all__ = names.__all__
