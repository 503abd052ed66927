# SPDX-License-Identifier: Apache-2.0
"""All questions asked of one encoding, function, table or model's encoding, in the order of the report."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from posenc.analysis import plots
from posenc.analysis.bounds import base_bound
from posenc.analysis.finding import AnalysisQuestion, Finding, Picture
from posenc.analysis.geometry import kernel, shift_matrix, spectrum
from posenc.analysis.properties import properties
from posenc.analysis.scores import bias, rotation, scores
from posenc.analysis.target import Target, target_of
from posenc.conformance.fixtures import seeded
from posenc.errors import InputError
from posenc.lab.messages import as_json, located

QUESTIONS: dict[str, AnalysisQuestion] = {
    "properties": AnalysisQuestion(
        "Is every position distinct, evenly spaced, bounded and deterministic?",
        lambda t: properties(t.codes, t.length, trained=t.trained_codes, search=min(t.codes.search, 256 * t.length)),
        lambda t, finding: (plots.heat_map.of(t.codes),),
    ),
    "kernel": AnalysisQuestion(
        "How does the dot product of two codes change with their distance?",
        lambda t: kernel(t.position_codes, t.length),
        lambda t, finding: (plots.kernel.of(finding), plots.dot_products.of(t.codes)),
    ),
    "shift": AnalysisQuestion(
        "Is a shift of positions linear?",
        lambda t: shift_matrix(t.position_codes, length=t.length),
        lambda t, finding: (plots.shift_matrix.of(finding),),
    ),
    "spectrum": AnalysisQuestion(
        "How many dimensions do the codes use?",
        lambda t: spectrum(t.position_codes, t.length),
        lambda t, finding: (plots.singular_values.of(finding), plots.wavelengths.of(finding)),
    ),
    "rotation": AnalysisQuestion(
        "How fast does each pair of channels rotate?",
        lambda t: rotation(t.encoding, t.trained, **t.named),
        lambda t, finding: (plots.pair_wavelengths.of(finding),),
    ),
    "base": AnalysisQuestion(
        "How long a context does the base serve?",
        lambda t: base_bound(t.rotary.rope_theta, t.rotary.rotated, t.trained, inv_freq=t.rotary.inv_freq),
    ),
    "bias": AnalysisQuestion(
        "What is added to the scores?",
        lambda t: bias(t.encoding, t.length, **t.named),
        lambda t, finding: (plots.bias_by_distance.of(finding),),
    ),
    "scores": AnalysisQuestion(
        "How does position change a score?",
        lambda t: scores(t.encoding, t.length, seed=t.seed, **t.named),
        lambda t, finding: [
            each.of(finding) for each in (plots.effective_scores, plots.scores_by_head)[: len(finding.same)]
        ],
    ),
}
"""Every section, in the order of the report."""


@dataclass(frozen=True, eq=False)
class AnalysisSection:
    """An answered question: the finding and its pictures."""

    name: str
    title: str
    finding: Finding
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, eq=False)
class Analysis(Finding):
    """What `analyze` returns. settings: what it was called with. sections: in the order of the report. left_out: name of a
    question -> why it does not apply. note: which layer was analysed, where layers differ; else empty."""

    subject: str
    settings: dict[str, Any]
    sections: tuple[AnalysisSection, ...]
    left_out: dict[str, str]
    note: str = ""

    def __getitem__(self, name: str) -> AnalysisSection:
        """The section of that name. Raises InputError where there is none, with the reason."""
        for section in self.sections:
            if section.name == name:
                return section
        known = ", ".join(section.name for section in self.sections)
        raise InputError(f"no section {name!r}: {self.left_out.get(name, f'there are {known}')}")

    @property
    def reasons(self) -> dict[str, list[str]]:
        """Each reason why questions were left out, and their titles."""
        titles: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            titles.setdefault(reason, []).append(QUESTIONS[name].title)
        return titles

    def __str__(self) -> str:
        lines = [self.subject, *(["", self.note] if self.note else [])]
        for section in self.sections:
            lines += ["", section.title, *(f"- {sentence}" for sentence in section.finding.sentences())]
        reasons = [f"- {' '.join(titles)} {why}" for why, titles in self.reasons.items()]
        return "\n".join([*lines, *(["", "What does not apply", *reasons] if reasons else [])])

    def sentences(self) -> list[str]:
        """The summary, a sentence per section."""
        return [section.finding.summary() for section in self.sections]

    def to_dict(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "note": self.note,
            "settings": self.settings,
            "sentences": self.sentences(),
            "sections": [
                {
                    "name": section.name,
                    "title": section.title,
                    "sentences": section.finding.sentences(),
                    "see": [picture.see for picture in section.pictures],
                    "numbers": as_json({k: v for k, v in section.finding.to_dict().items() if k != "sentences"}, 9),
                }
                for section in self.sections
            ],
            "left_out": [
                {"name": name, "title": QUESTIONS[name].title, "reason": reason}
                for name, reason in self.left_out.items()
            ],
        }


def analyze(
    subject: Any,
    *,
    length: int = 512,
    trained: int | None = None,
    seed: int = 0,
    name: str | None = None,
    progress: Callable[[str, int, int], None] = lambda title, done, count: None,
    **shape: Any,
) -> Analysis:
    """Ask every question of a subject.

    Args:
        subject: an encoding, its text ("rope:rope_theta=500") or class, a function from (n,) positions to (n, dim)
            vectors, a table (n, dim), or a transformers model; or a `Target`, which replaces the other arguments.
        length: positions to analyse, cut to what it is defined for. trained: those it was trained on, or would be; None: a
            model's own, else `length`. seed: of whatever is random. name: for people. progress: called with each question's title, how many are done and of
            how many. shape: that a text or a class is made for (dim, num_heads, head_dim, num_layers, max_positions,
            causal); of an encoding, what it does not have as attributes num_heads, num_kv_heads, head_dim or dim.

    Raises:
        InputError: a subject that is none of these, or whose codes are not finite, not (n, dim), or change.
    """
    target = subject
    if not isinstance(subject, Target):
        target = target_of(subject, length=length, trained=trained, seed=seed, name=name, **shape)
    sections, left_out = [], {}
    for number, (name, question) in enumerate(QUESTIONS.items()):
        progress(question.title, number, len(QUESTIONS))
        try:
            sections.append(_section(name, question, target))
        except InputError as error:
            reason = error.reason if error.argument == target.name else str(error)
            left_out[name] = f"{reason[:1].upper()}{reason[1:].rstrip('.')}."
    settings = {name: getattr(target, name) for name in ("kind", "length", "trained", "seed")}
    return Analysis(target.name, settings, tuple(sections), left_out, target.note)


def _section(name: str, question: AnalysisQuestion, target: Target) -> AnalysisSection:
    with seeded(target.seed):
        try:
            finding = question.ask(target)
        except (InputError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if not target.runs_user_code:
                raise
            raise InputError(f"the encoding's code failed: {located(error)}") from error
    return AnalysisSection(name, question.title, finding, tuple(question.pictures(target, finding)))
