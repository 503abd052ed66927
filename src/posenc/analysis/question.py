# SPDX-License-Identifier: Apache-2.0
"""The protocol of an analysis: a question, asked of a target, gives a finding; a finding has numbers and sentences.

A new question is one file: a `Finding`, the function that computes it, its plots, and an `AnalysisQuestion` that joins them; and one
line in `analyze.QUESTIONS`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from posenc.analysis.plotting import Picture

if TYPE_CHECKING:
    from posenc.analysis.target import Target


@dataclass(frozen=True, eq=False)
class Finding:
    """Base of what the functions of `posenc.analysis` return."""

    def sentences(self) -> list[str]:
        """The result in words, most important first."""
        raise NotImplementedError  # abstract

    def to_dict(self) -> dict[str, Any]:
        """Every number as JSON can represent it, with the sentences; infinite and undefined numbers are null."""
        numbers: dict[str, Any] = _as_json(self)
        return numbers | {"sentences": self.sentences()}


@dataclass(frozen=True, eq=False)
class Findings(Finding):
    """The same question answered for several settings. first: how many sentences of each are reported; equal ones once."""

    findings: tuple[Any, ...]
    first: int = 1

    def sentences(self) -> list[str]:
        return list(dict.fromkeys(s for finding in self.findings for s in finding.sentences()[: self.first]))

    def to_dict(self) -> dict[str, Any]:
        return {"findings": [finding.to_dict() for finding in self.findings], "sentences": self.sentences()}


@dataclass(frozen=True)
class AnalysisQuestion:
    """A section of the report.

    ask: the finding about a target; raises InputError, with the reason, for a target that it does not apply to.
    pictures: of a target and the finding. summary: what of the finding belongs to the summary on top, "" for nothing.
    """

    title: str
    ask: Callable[["Target"], Finding]
    pictures: Callable[["Target", Any], Sequence[Picture]] = lambda target, finding: ()
    summary: Callable[[Any], str] = lambda finding: ""


def first_sentence(finding: Finding) -> str:
    """The most important sentence."""
    return finding.sentences()[0]


def _as_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Tensor):
        return _as_json(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
