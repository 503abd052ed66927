# SPDX-License-Identifier: Apache-2.0
"""The findings of `doctor`, which docs/doctor.md and docs/vision-pretrained.md explain, and its report."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from posenc.pretrained.changes import Report

Severity = Literal["wrong", "hazard", "note"]
Evidence = Iterator[tuple[str, str, float | None]]
"""Name of a finding, evidence in words, and the number measured."""


class FindingKind(NamedTuple):
    """severity: "wrong" gives other numbers than the model was made for; "hazard" will, in a stated use; "note" is harmless."""

    severity: Severity
    remedy: str


@dataclass(frozen=True)
class ModelFinding:
    """name: in a table below. evidence: what was measured, in words. measured: the number; its unit is in the evidence."""

    name: str
    severity: Severity
    evidence: str
    measured: float | None
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.name}\n  {self.evidence}\n  {self.remedy}"


@dataclass(frozen=True)
class Diagnosis(Report):
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
    kinds, order = FINDINGS | VISION_FINDINGS, ("wrong", "hazard", "note")
    findings = [
        ModelFinding(name, kinds[name].severity, text, measured, kinds[name].remedy)
        for name, text, measured in evidence
    ]
    return Diagnosis(description, tuple(sorted(findings, key=lambda finding: order.index(finding.severity))))


FINDINGS: dict[str, FindingKind] = {
    "config_not_applied": FindingKind(
        "wrong",
        "Build the table anew: decoder = model.base_model; "
        "decoder.rotary_emb = type(decoder.rotary_emb)(decoder.config).to(model.device)",
    ),
    "config_not_buildable": FindingKind(
        "wrong",
        "Put back what the evidence misses: rope_theta (changing a dictionary by model.config.rope_parameters | {...} "
        "would have kept it), or head_dim = hidden_size // num_attention_heads",
    ),
    "frequencies_rounded": FindingKind(
        "wrong",
        "Load with from_pretrained(..., dtype=torch.bfloat16), which leaves them in float32; or build the table anew "
        "as for config_not_applied",
    ),
    "truncate_ignored": FindingKind(
        "wrong",
        'Load the model with that layer type at rope_type "default" and the original length, then '
        'posenc.extend(model, "yarn", factor=..., truncate=False), which applies it',
    ),
    "partial_rotary_ignored": FindingKind(
        "wrong",
        "Load it as a model type that rotates in part, or take partial_rotary_factor out of the configuration",
    ),
    "not_finite": FindingKind(
        "wrong", "Look for weights that were not loaded, and for float16 where bfloat16 is needed"
    ),
    "sees_the_future": FindingKind(
        "wrong", "Register a mask function under the same name with AttentionMaskInterface, as posenc.extend does"
    ),
    "cache_differs": FindingKind(
        "wrong",
        "Freeze the schedule for the length you need: posenc.extend(model, method, target_length=...); if the schedule "
        'is none of these, it is the attention: model.set_attn_implementation("eager")',
    ),
    "padding_differs": FindingKind("wrong", "Do not batch texts of unequal lengths with this attention implementation"),
    "attention_bypassed": FindingKind(
        "wrong", 'model.set_attn_implementation("posenc"), or posenc.restore(model) to take the extension off'
    ),
    "extension_not_applied": FindingKind(
        "hazard", "Load it with posenc.load, or posenc.extend(model, **model.config.posenc)"
    ),
    "base_not_stated": FindingKind(
        "wrong", "Write the base that the model was trained with into config.json, as rope_theta in rope_parameters"
    ),
    "base_doubtful": FindingKind(
        "hazard", "Compare rope_theta with the model's first release, and write that one into config.json"
    ),
    "parameter_ignored": FindingKind(
        "hazard",
        "Write the name that transformers reads (attention_factor for attn_factor or mscale of another library), or take "
        "it out",
    ),
    "factor_below_one": FindingKind("wrong", "Write how many times longer texts become, 4 and not 0.25"),
    "attention_factor_impossible": FindingKind(
        "wrong", "Take attention_factor out of rope_parameters, and the schedule's formula holds"
    ),
    "attention_factor_differs": FindingKind(
        "hazard", "Take attention_factor out of rope_parameters unless the model was trained with it"
    ),
    "positions_from_padding": FindingKind("hazard", "Pass position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)"),
    "packing_leaks": FindingKind("hazard", "Pad instead of packing, or give a block-diagonal attention_mask"),
    "attention_differs": FindingKind(
        "hazard", 'model.set_attn_implementation("eager"), or another one that agrees with it'
    ),
    "length_not_declared": FindingKind(
        "hazard",
        "If max_position_embeddings is the stretched length already: set original_max_position_embeddings in rope_parameters "
        "to it divided by factor. If it is the length before: set it to that times factor",
    ),
    "original_length_missing": FindingKind(
        "hazard",
        "Write original_max_position_embeddings into rope_parameters of config.json, the tokens that the model was trained "
        "to before: max_position_embeddings divided by factor, if that is the stretched length already",
    ),
    "declared_longer_than_stretched": FindingKind(
        "hazard",
        "Set max_position_embeddings to factor times original_max_position_embeddings, or extend the model further",
    ),
    "layout_swapped": FindingKind("wrong", 'posenc.convert_layout(state_dict, head_dim, "interleaved", "half")'),
    "llama3_without_effect": FindingKind("note", "Nothing; the frequencies are those that the schedule asks for"),
}
"""The findings on language models, by name."""

VISION_FINDINGS: dict[str, FindingKind] = {
    "rows_for_columns": FindingKind(
        "wrong",
        "Make it from a checkpoint for square images, which it reads others with as well; or take timm's BEiT",
    ),
    "table_of_zeros": FindingKind(
        "wrong", "Load a checkpoint, or fill the table: posenc.GridSinusoidal(dim, x_first=True)"
    ),
    "shift_lost": FindingKind("wrong", "Load the model again, and give it small images in a copy"),
    "small_images_stay": FindingKind("hazard", "Read such images with a copy: copy.deepcopy(model)"),
    "below_a_window": FindingKind(
        "hazard", "Pad them, or posenc.resize(model, image_size, window_size=...) to smaller windows"
    ),
    "square_only": FindingKind(
        "hazard", "Never pass interpolate_pos_encoding=True; use posenc.resize(model, (height, width))"
    ),
    "decoder_in_a_line": FindingKind(
        "hazard", "posenc.resize(model, image_size) before the decoder is used at another size"
    ),
    "formula_interpolated": FindingKind(
        "note",
        'Measure both: posenc.resize(model, image_size), and posenc.resize(model, image_size, method="bicubic")',
    ),
    "another_sampling": FindingKind("note", 'posenc.resize(model, image_size, method="bicubic_offset") for theirs'),
    "one_size": FindingKind(
        "note",
        "posenc.resize(model, (height, width)), or what the library has: interpolate_pos_encoding=True, dynamic_img_size",
    ),
}
"""The findings on vision models, by name."""
