# SPDX-License-Identifier: Apache-2.0
"""How the models of a run are computed, for what trains and tests them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from posenc.lab.experiment import Execution
from posenc.lab.machine import check_present

USUAL = Execution()
_current: ContextVar[Execution] = ContextVar("execution", default=USUAL)


def passes() -> Execution:
    """That of the enclosing `executing`, or the CPU in float32."""
    return _current.get()


@contextmanager
def executing(execution: Execution) -> Iterator[None]:
    """Inside, models are trained and tested as a run asks for.

    Raises:
        InputError: this machine has no such device.
    """
    check_present(execution.device)
    token = _current.set(execution)
    try:
        yield
    finally:
        _current.reset(token)
