# SPDX-License-Identifier: Apache-2.0
"""What an analysis finds: numbers that JSON can hold, and sentences that say what they mean."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Finding:
    """Base of what the functions of `posenc.analysis` give back."""

    def sentences(self) -> list[str]:
        """What was found, in words, most important first."""
        raise NotImplementedError  # abstract: every finding says what it found

    def to_dict(self) -> dict[str, Any]:
        """Every number as JSON can hold it, with the sentences; what is infinite or undefined is null."""
        found: dict[str, Any] = _plain(self)
        return found | {"sentences": self.sentences()}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
