# SPDX-License-Identifier: Apache-2.0
"""The former place of `posenc.lab.parallel.together`."""

import warnings

from posenc.lab.parallel import launched, together

__all__ = ["launched", "together"]

warnings.warn("posenc.lab.launcher is deprecated: import from posenc.lab.parallel", DeprecationWarning, stacklevel=2)
