# SPDX-License-Identifier: Apache-2.0
"""Deprecated: `posenc.conformance.conform` and `posenc.conformance.Verdict`."""

import warnings

from posenc.conformance.diagnosis import Verdict, conform

__all__ = ["Verdict", "conform"]
warnings.warn("posenc.conformance.diagnose is deprecated: use posenc.conformance", DeprecationWarning, stacklevel=2)
