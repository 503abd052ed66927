# SPDX-License-Identifier: Apache-2.0
"""transformers' progress bars, which fill a log where nobody watches."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.RLock()
"""They are on or off for all threads."""


@contextmanager
def without_bars() -> Iterator[None]:
    """Without the progress bars of transformers, unless stderr is a terminal."""
    from transformers.utils import logging

    if sys.stderr.isatty():
        yield
        return
    with _LOCK:
        if not logging.is_progress_bar_enabled():
            yield
            return
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.enable_progress_bar()
