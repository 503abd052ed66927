# SPDX-License-Identifier: Apache-2.0
"""The findings of `doctor`, with their meanings and remedies, and its report."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from posenc.pretrained.changes import ChangeReport

Severity = Literal["wrong", "hazard", "note"]
"""Other numbers than the model was made for; other numbers in a stated use; harmless."""
SEVERITIES: tuple[Severity, ...] = ("wrong", "hazard", "note")
Evidence = Iterator[tuple[str, str, float | None]]
"""Name of a finding, evidence in words, and the number measured."""


@dataclass(frozen=True)
class ModelFinding:
    """name: in findings.toml. evidence: what was measured, in words. measured: the number; its unit is in the evidence."""

    name: str
    severity: Severity
    evidence: str
    measured: float | None
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.name}\n  {self.evidence}\n  {self.remedy}"


@dataclass(frozen=True)
class Diagnosis(ChangeReport):
    """A description of the model, and all findings, the worst first."""

    model: Any
    findings: tuple[ModelFinding, ...]

    @property
    def wrong(self) -> bool:
        """Whether anything makes the model compute other numbers than it was made for."""
        return any(finding.severity == "wrong" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"wrong": self.wrong}

    def __str__(self) -> str:
        findings = "\n".join(map(str, self.findings)) or "nothing found"
        return f"{self.model}\n\n{findings}"


def diagnosis(description: Any, evidence: Evidence) -> Diagnosis:
    """The report on a model, from the evidence for some of the findings."""
    findings = []
    for name, text, measured in evidence:
        known = FINDINGS[name]
        findings.append(ModelFinding(name, known.severity, text, measured, known.remedy))
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Diagnosis(description, tuple(findings))


class KnownFinding(NamedTuple):
    """What is known of a finding before it is made."""

    severity: Severity
    meaning: str
    remedy: str


def _read() -> dict[str, KnownFinding]:
    tables = tomllib.loads(Path(__file__).with_name("findings.toml").read_text(encoding="utf-8"))
    patch = tables.pop("patch")
    return {
        name: KnownFinding(row["severity"], row["meaning"], row["remedy"].replace("{patch}", patch))
        for name, row in tables.items()
    }


FINDINGS = _read()
"""By name, as findings.toml has them; `posenc list --kind findings` shows them."""
