# SPDX-License-Identifier: Apache-2.0
"""The findings of `doctor` on language models, what each means and what to do; and its report, on vision models too."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["wrong", "hazard", "note"]
Evidence = Iterator[tuple[str, str, float | None]]
"""Name of a finding, evidence in words, and the number measured."""


@dataclass(frozen=True)
class FindingKind:
    """severity: "wrong" gives other numbers than the model was made for; "hazard" will, in a use that is named; "note"."""

    severity: Severity
    meaning: str
    remedy: str


@dataclass(frozen=True)
class ModelFinding:
    """name: in a table of kinds. evidence: what was measured, in words. measured: the number; its unit is in the evidence."""

    name: str
    severity: Severity
    evidence: str
    measured: float | None
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.name}\n  {self.evidence}\n  {self.remedy}"


@dataclass(frozen=True)
class Diagnosis:
    """A description of the model, and all findings, the worst first."""

    model: Any
    findings: tuple[ModelFinding, ...]

    @property
    def wrong(self) -> bool:
        """Whether anything makes the model compute other numbers than it was made for."""
        return any(finding.severity == "wrong" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"wrong": self.wrong}

    def __str__(self) -> str:
        findings = "\n".join(map(str, self.findings)) or "nothing found"
        return f"{self.model}\n\n{findings}"


def diagnosis(description: Any, kinds: Mapping[str, FindingKind], evidence: Evidence) -> Diagnosis:
    """The report on a model, from the kinds of findings and the evidence for some of them."""
    order = ("wrong", "hazard", "note")
    findings = [
        ModelFinding(name, kinds[name].severity, text, measured, kinds[name].remedy)
        for name, text, measured in evidence
    ]
    return Diagnosis(description, tuple(sorted(findings, key=lambda finding: order.index(finding.severity))))


FINDINGS: dict[str, FindingKind] = {
    "config_not_applied": FindingKind(
        "wrong",
        "The model rotates by other frequencies than its configuration asks for: the configuration was edited after "
        "loading, or the table was overwritten. What is saved will not be what was run.",
        "Build the table anew: decoder = model.base_model; "
        "decoder.rotary_emb = type(decoder.rotary_emb)(decoder.config).to(model.device)",
    ),
    "config_not_buildable": FindingKind(
        "wrong",
        "transformers cannot build a rotary module from the configuration as it stands: the model runs on what it was "
        "loaded with, and will not load again once saved. Without rope_theta there is no base; dynamic, yarn and "
        "longrope fail when head_dim is None.",
        "Put back what the evidence misses: rope_theta (changing a dictionary by model.config.rope_parameters | {...} "
        "would have kept it), or head_dim = hidden_size // num_attention_heads",
    ),
    "frequencies_rounded": FindingKind(
        "wrong",
        "The frequencies were cast to half precision: model.bfloat16(), .half() or .to(dtype) casts buffers as well. "
        "Their error grows with the position.",
        "Load with from_pretrained(..., dtype=torch.bfloat16), which leaves them in float32; or build the table anew "
        "as for config_not_applied",
    ),
    "truncate_ignored": FindingKind(
        "wrong",
        "truncate=False stands in the rope_parameters of a layer type, and transformers reads it only beside them: "
        "YaRN's ramp is cut to whole pairs all the same.",
        'Load the model with that layer type at rope_type "default" and the original length, then '
        'posenc.extend(model, "yarn", factor=..., truncate=False), which applies it',
    ),
    "partial_rotary_ignored": FindingKind(
        "wrong",
        "The configuration asks for a part of each head to rotate (partial_rotary_factor), and this model type rotates "
        "another part.",
        "Load it as a model type that rotates in part, or take partial_rotary_factor out of the configuration",
    ),
    "not_finite": FindingKind(
        "wrong",
        "The logits of a short text are not finite. Nothing else was measured.",
        "Look for weights that were not loaded, and for float16 where bfloat16 is needed",
    ),
    "sees_the_future": FindingKind(
        "wrong",
        "Another last token changes the predictions before it: attention has no causal mask. A function registered "
        "with AttentionInterface alone is given none. Nothing else was measured: caches, padding and packing depend on it.",
        "Register a mask function under the same name with AttentionMaskInterface, as posenc.extend does",
    ),
    "cache_differs": FindingKind(
        "wrong",
        "Decoding with a cache gives other logits than one pass over the same tokens. Schedules that depend on the "
        "length of the text (dynamic, longrope) rotate keys by the frequencies of the moment, and the cache keeps them.",
        "Freeze the schedule for the length you need: posenc.extend(model, method, target_length=...); if the schedule "
        'is none of these, it is the attention: model.set_attn_implementation("eager")',
    ),
    "padding_differs": FindingKind(
        "wrong",
        "A left-padded text gives other logits than the text alone, although its attention_mask and position_ids are "
        "right.",
        "Do not batch texts of unequal lengths with this attention implementation",
    ),
    "attention_bypassed": FindingKind(
        "wrong",
        "posenc.extend works on this model's attention, and another implementation was set since: a pass raises. Nothing "
        "else was measured.",
        'model.set_attn_implementation("posenc"), or posenc.restore(model) to take the extension off',
    ),
    "extension_not_applied": FindingKind(
        "hazard",
        "The configuration has an entry posenc: what was saved is a model that posenc.extend had extended, by what no "
        "configuration expresses. It runs without that, although max_position_embeddings may be the longer one.",
        "Load it with posenc.load, or posenc.extend(model, **model.config.posenc)",
    ),
    "base_not_stated": FindingKind(
        "wrong",
        "config.json has rope_parameters without rope_theta, and transformers took its default. It always writes one: this "
        "was lost when the dictionary was written anew.",
        "Write the base that the model was trained with into config.json, as rope_theta in rope_parameters",
    ),
    "base_doubtful": FindingKind(
        "hazard",
        "The model predicts a plain text better with another base, rope_theta times 10 or a tenth of it.",
        "Compare rope_theta with the model's first release, and write that one into config.json",
    ),
    "parameter_ignored": FindingKind(
        "hazard",
        "rope_parameters has a key that transformers does not read for this rope_type: what it was meant for is not done.",
        "Write the name that transformers reads (attention_factor for attn_factor or mscale of another library), or take "
        "it out",
    ),
    "factor_below_one": FindingKind(
        "wrong",
        "A factor below 1 makes texts shorter: pairs turn faster than in training.",
        "Write how many times longer texts become, 4 and not 0.25",
    ),
    "attention_factor_impossible": FindingKind(
        "wrong",
        "attention_factor multiplies cos and sin, and scores by its square: at 0 they are all the same, and a minus sign is "
        "lost.",
        "Take attention_factor out of rope_parameters, and the schedule's formula holds",
    ),
    "attention_factor_differs": FindingKind(
        "hazard",
        "YaRN's attention_factor is stated and is not what its formula gives. Right for a model that was trained so.",
        "Take attention_factor out of rope_parameters unless the model was trained with it",
    ),
    "positions_from_padding": FindingKind(
        "hazard",
        "A left-padded text without position_ids gives other logits than the text alone: positions then count the "
        "padding, and this model does not only see distances. model.generate passes position_ids; a call of the model "
        "does not.",
        "Pass position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)",
    ),
    "packing_leaks": FindingKind(
        "hazard",
        "Two texts in one row, whose position_ids start again, see each other.",
        "Pad instead of packing, or give a block-diagonal attention_mask",
    ),
    "attention_differs": FindingKind(
        "hazard",
        "The attention implementation gives other logits than the formula (eager).",
        'model.set_attn_implementation("eager"), or another one that agrees with it',
    ),
    "length_not_declared": FindingKind(
        "hazard",
        "The frequencies are stretched for more tokens than max_position_embeddings says. transformers enforces "
        "neither; other software takes it for the limit, and posenc.extend counts from it. Either that length was not raised, "
        "or original_max_position_embeddings is wrong, and then the frequencies are those of another schedule.",
        "If max_position_embeddings is the stretched length already: set original_max_position_embeddings in rope_parameters "
        "to it divided by factor. If it is the length before: set it to that times factor",
    ),
    "original_length_missing": FindingKind(
        "hazard",
        "config.json has a factor without original_max_position_embeddings: transformers takes max_position_embeddings for "
        "it. If that is the stretched length already, the frequencies are those of another schedule.",
        "Write original_max_position_embeddings into rope_parameters of config.json, the tokens that the model was trained "
        "to before: max_position_embeddings divided by factor, if that is the stretched length already",
    ),
    "declared_longer_than_stretched": FindingKind(
        "hazard",
        "max_position_embeddings is more than the frequencies are stretched for: other software serves texts up to it, and "
        "past the stretched length they are as untrained as without a schedule.",
        "Set max_position_embeddings to factor times original_max_position_embeddings, or extend the model further",
    ),
    "layout_swapped": FindingKind(
        "wrong",
        "The model predicts a plain text better with the channels of its queries and keys in the other order: the "
        "weights were converted for interleaved rotation, and are rotated by halves, or the reverse.",
        'posenc.convert_layout(state_dict, head_dim, "interleaved", "half")',
    ),
    "llama3_without_effect": FindingKind(
        "note",
        "llama3 scaling with an original length equal to the model's own: transformers warns at each load. Harmless.",
        "Nothing; the frequencies are those that the schedule asks for",
    ),
}
"""All findings of `doctor` on language models, by name."""
