# SPDX-License-Identifier: Apache-2.0
"""Deprecated: this is `posenc.report.compare`."""

import warnings

from posenc.report.compare import page

__all__ = ["page"]

warnings.warn("posenc.report.page: import page from posenc.report.compare", DeprecationWarning, stacklevel=2)
