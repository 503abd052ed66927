# SPDX-License-Identifier: Apache-2.0
"""doctor: what a model's positions are, and what is wrong with them, each finding with a measured number."""

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from posenc.checks import checked
from posenc.pretrained.anatomy import check_model
from posenc.pretrained.calls import evaluating
from posenc.pretrained.findings import FINDINGS, Kind, Severity, Symptom
from posenc.pretrained.patient import Patient, Table, patient
from posenc.pretrained.symptoms import symptoms
from posenc.pretrained.vision.doctor import VISION_FINDINGS, VisionDescription, describe, vision_symptoms
from posenc.pretrained.vision.libraries import Library, library_of


@dataclass(frozen=True)
class Finding:
    """name: in FINDINGS. evidence: what was measured, in words. measured: the number; its unit is in the evidence."""

    name: str
    severity: Severity
    evidence: str
    measured: float | None
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.name}\n  {self.evidence}\n  {self.remedy}"


@dataclass(frozen=True)
class Rotation:
    """rotary_dim: channels of a head that rotate. slow_pairs: pairs of them that complete no turn within the model's
    length. base_bound: the first distance at which the sum of all cosines is negative, None below 2^20."""

    rope_theta: float | None
    schedule: str
    rotary_dim: int
    attention_factor: float
    slow_pairs: int
    base_bound: int | None


@dataclass(frozen=True)
class Description:
    """What a model is. length: max_position_embeddings. rotations: by layer type. extended: by which method of
    posenc.extend, None by none."""

    model_type: str
    layout: str
    head_dim: int
    layers: int
    length: int
    dtype: str
    attention: str
    extended: str | None
    rotations: Mapping[str, Rotation]

    def __str__(self) -> str:
        lines = [
            f"{self.model_type}: {self.layers} layers, {self.dtype}, attention {self.attention}, "
            f"for {self.length} tokens (nothing stops longer texts)",
            f"extended: {self.extended or 'no'}",
        ]
        for kind, rotation in self.rotations.items():
            pairs = rotation.rotary_dim // 2
            bound = "nowhere below 2^20" if rotation.base_bound is None else f"first at {rotation.base_bound}"
            lines += [
                f"rotary in {kind}: {rotation.rotary_dim} of {self.head_dim} channels, {self.layout} layout, rope_theta "
                f"{_number(rotation.rope_theta)}, {rotation.schedule}, attention factor "
                f"{_number(rotation.attention_factor)}",
                f"  {rotation.slow_pairs} of {pairs} pairs never complete a turn in {self.length} tokens; the base bound "
                f"fails {bound}",
            ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Diagnosis:
    """What the model is, and all that was found."""

    model: Description | VisionDescription
    findings: tuple[Finding, ...]

    @property
    def wrong(self) -> bool:
        """Whether anything makes the model compute other than it was made to."""
        return any(finding.severity == "wrong" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"wrong": self.wrong}

    def __str__(self) -> str:
        found = "\n".join(map(str, self.findings)) or "nothing found"
        return f"{self.model}\n\n{found}"


@checked
@torch.no_grad()
def doctor(model: Any, tokenizer: Any | None = None) -> Diagnosis:
    """Examine a model as it stands, and leave it as it is.

    Its frequencies are held against its configuration, and short runs of random tokens show what padding, packing, a
    cache and the attention implementation do to its logits.

    Of a vision model: what in it knows places, and what another image size does to it.

    Args:
        model: a causal language model of transformers, of a type in `FAMILIES` of posenc/pretrained/anatomy.py; or a
            vision model that `posenc.resize` takes.
        tokenizer: its own; with it a plain text is read as well, which shows weights in the wrong layout.

    Raises:
        InputError: not a transformers model, or of a type that is not supported.
    """
    check_model(model)
    library = library_of(model)
    if library is not None:
        return _vision(library)
    case = patient(model)
    kept = case.decoder.rotary_emb
    with evaluating(case.model):
        case.decoder.rotary_emb = copy.deepcopy(kept)  # one that moves with the length of the text keeps its place
        try:
            found = _sorted(FINDINGS, symptoms(case, tokenizer))
        finally:
            case.decoder.rotary_emb = kept
    return Diagnosis(_description(case), found)


def _vision(library: Library) -> Diagnosis:
    described = describe(library)
    return Diagnosis(described, _sorted(VISION_FINDINGS, vision_symptoms(library, described.parts)))


def _sorted(known: Mapping[str, Kind], found: Symptom) -> tuple[Finding, ...]:
    """The worst first."""
    order = ("wrong", "hazard", "note")
    all_found = [
        Finding(name, known[name].severity, evidence, measured, known[name].remedy)
        for name, evidence, measured in found
    ]
    return tuple(sorted(all_found, key=lambda finding: order.index(finding.severity)))


def _description(case: Patient) -> Description:
    return Description(
        model_type=str(case.model.config.model_type),
        layout=case.family.layout,
        head_dim=case.head_dim,
        layers=int(case.config.num_hidden_layers),
        length=case.length,
        dtype=str(case.model.dtype).removeprefix("torch."),
        attention=str(case.config._attn_implementation),
        extended=None if case.record is None else case.record.report.method,
        rotations={kind: _rotation(table, case.length) for kind, table in case.tables().items()},
    )


def _rotation(table: Table, length: int) -> Rotation:
    return Rotation(
        rope_theta=table.parameters.get("rope_theta"),
        schedule=str(table.parameters.get("rope_type", "default")),
        rotary_dim=table.rotary_dim,
        attention_factor=table.attention_factor,
        slow_pairs=table.slow_pairs(length),
        base_bound=table.base_bound(),
    )


def _number(value: float | None) -> str:
    return "missing" if value is None else f"{value:.10g}"
