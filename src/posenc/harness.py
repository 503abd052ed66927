# SPDX-License-Identifier: Apache-2.0
"""Deprecated name of `posenc.pretrained.lm_eval`, which folders of tasks written before 1.1 import."""

import sys
import warnings

from posenc.pretrained.lm_eval import as_text, dataset, generated, group_name, likelihood, main, write

__all__ = ["as_text", "dataset", "generated", "group_name", "likelihood", "main", "write"]

warnings.warn("posenc.harness is deprecated: use posenc.pretrained.lm_eval", DeprecationWarning, stacklevel=2)

if __name__ == "__main__":
    sys.exit(main())
