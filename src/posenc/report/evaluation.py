# SPDX-License-Identifier: Apache-2.0
"""Deprecated: this is `posenc.report.evaluate`."""

import warnings

from posenc.report.evaluate import page

__all__ = ["page"]

warnings.warn("posenc.report.evaluation: import page from posenc.report.evaluate", DeprecationWarning, stacklevel=2)
