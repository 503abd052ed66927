"""What benchmarks/gpu.py asks of a stage."""

from collections.abc import Callable
from typing import Any

Case = dict[str, Any]
Row = dict[str, Any]
"""{"stage", "case", "result"}."""
LATE = "not done in time"
"""Why a case failed of which nothing is known."""


class Stage:
    """Cases, each measured once and alone."""

    SHARE: float = 1.0
    """Of the minutes, relative to the other stages."""
    DECIDES: tuple[str, ...] = ()
    """The kernels that `verified` is about."""
    TIMED: bool = True
    """Whether the GPU has to be idle but for the case."""

    def cases(self, dry: bool) -> list[Case]:
        """Plain values, most valuable first. dry: few, in tiny shapes."""
        raise NotImplementedError

    def prepared_by(self, case: Case) -> Case:
        """The case whose compiled code this one runs, too."""
        return case

    def __init__(self) -> None:
        self._ready: dict[str, Any] = {}

    def made(self, case: Case, dry: bool) -> Any:
        """What `measure` runs, compiled. None: nothing is compiled ahead."""
        return None

    def prepare(self, case: Case, dry: bool) -> dict[str, Any]:
        """Make what `measure` will run, in the same process and while others do so. The result is not used."""
        self._ready[str(case)] = self.made(case, dry)
        return {}

    def prepared(self, case: Case, dry: bool) -> Any:
        """What `prepare` has made, once, or what is made now."""
        return self._ready.pop(str(case), None) or self.made(case, dry)

    def measure(self, case: Case, dry: bool) -> dict[str, Any]:
        """Plain values; an exception is a result, too."""
        raise NotImplementedError

    def table(self, rows: list[Row]) -> str:
        """Markdown of the cases that did not fail."""
        raise NotImplementedError

    def verified(self, rows: Callable[[str], list[Row]]) -> dict[str, int]:
        """Kernels that were right in every case -> the least size from which they were faster than what PyTorch has. rows: of a
        stage by its name."""
        return {}
