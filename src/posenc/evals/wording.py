"""The answer in words, and what an evaluation does not show: every sentence follows from the numbers."""

from collections.abc import Mapping
from typing import Any


def answer(results: Mapping[str, Any]) -> list[str]:
    """What a reader wants to know first."""
    return []


def limits(results: Mapping[str, Any]) -> list[str]:
    """What this evaluation does not show."""
    return []
