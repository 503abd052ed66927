# SPDX-License-Identifier: Apache-2.0
"""The encodings: one family a file, all by name in create_encoding.py."""

from posenc.encodings import create_encoding
from posenc.encodings.create_encoding import *  # noqa: F403 - its __all__ names every encoding, once

__all__ = create_encoding.__all__
