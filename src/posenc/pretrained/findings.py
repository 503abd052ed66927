# SPDX-License-Identifier: Apache-2.0
"""The findings of `doctor`, with their meanings and remedies, and its report."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from posenc.pretrained.changes import ChangeReport

Severity = Literal["wrong", "hazard", "note"]
"""Other numbers than the model was made for; other numbers in a stated use; harmless."""
SEVERITIES: tuple[Severity, ...] = ("wrong", "hazard", "note")
Evidence = Iterator[tuple[str, str, float | None]]
"""Name of a finding, evidence in words, and the number measured."""


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
        severity, remedy = (FINDINGS | VISION_FINDINGS)[name]
        findings.append(ModelFinding(name, severity, text, measured, remedy))
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Diagnosis(description, tuple(findings))


_PATCH = "; or load the model again, without patches and kernels that replace its attention"

FINDINGS: dict[str, tuple[Severity, str]] = {
    "config_not_applied": (
        "wrong",
        "Rebuild it: d = model.get_decoder(); d.rotary_emb = type(d.rotary_emb)(d.config).to(model.device)",
    ),
    "frequencies_uninitialised": (
        "wrong",
        "Rebuild it as for config_not_applied, after to_empty or loading, and before the first pass",
    ),
    "frequencies_not_restored": (
        "hazard",
        "Rebuild it as for config_not_applied after each from_pretrained, or fill its buffers in the model's _init_weights",
    ),
    "softmax_scale_differs": (
        "wrong",
        "Set scaling of each layer's attention module to the second number of the evidence; if it is that, correct the attention",
    ),
    "not_rotated": ("wrong", f"Let attention rotate queries and keys by cos and sin{_PATCH}"),
    "rotated_alone": ("wrong", f"Rotate queries and keys by the same cos and sin{_PATCH}"),
    "rotated_twice": ("wrong", f"Rotate once, in the attention module or in its kernel{_PATCH}"),
    "rotated_backwards": ("wrong", f"Rotate by plus the position, x * cos + rotate_half(x) * sin{_PATCH}"),
    "rotated_undeclared": (
        "wrong",
        "Correct no_rope_layers or layer_types in config.json, or leave the layer unrotated",
    ),
    "values_rotated": ("wrong", f"Rotate queries and keys alone{_PATCH}"),
    "wrong_pairs": ("wrong", f"Pair the channels as transformers does for this model type{_PATCH}"),
    "wrong_frequencies": ("wrong", f"Pass each layer the cos and sin of its layer type{_PATCH}"),
    "positions_shifted": ("wrong", f"Rotate queries and keys by the same position_ids{_PATCH}"),
    "softcap_dropped": ("wrong", 'model.set_attn_implementation("eager"), which caps scores'),
    "sinks_dropped": ("wrong", 'model.set_attn_implementation("eager"), or a kernel that takes s_aux'),
    "window_differs": ("wrong", 'model.set_attn_implementation("eager"), or a mask function that heeds the window'),
    "heads_mixed": (
        "wrong",
        "Share keys and values by repeat_interleave, as transformers' repeat_kv does, not by repeat",
    ),
    "text_not_predicted": (
        "hazard",
        "Compare weights, tokenizer and configuration with the model's first release; nothing, if it was not trained on English",
    ),
    "text_positions_differ": ("wrong", "Pass position_ids of one row, (batch, tokens), in every call"),
    "positions_of_another_prompt": (
        "wrong",
        "Before each prompt: model.base_model.rope_deltas = None; or pass position_ids",
    ),
    "axes_differ": (
        "wrong",
        "Write mrope_section as pairs of time, height and width that add up to the rotated pairs, and rebuild it as for "
        "config_not_applied",
    ),
    "image_positions_differ": (
        "wrong",
        "Pass position_ids = posenc.Positions.multimodal(ids, rule=..., ...).k.permute(2, 0, 1) for three axes",
    ),
    "compiled_differs": (
        "wrong",
        "Leave the rotary module out of the graph: d = model.get_decoder(); d.rotary_emb.forward = "
        "torch.compiler.disable(d.rotary_emb.forward)",
    ),
    "config_not_buildable": (
        "wrong",
        "Add what the evidence misses: rope_theta, or head_dim = hidden_size // num_attention_heads",
    ),
    "frequencies_rounded": (
        "wrong",
        "Load with from_pretrained(..., dtype=torch.bfloat16), or rebuild them as for config_not_applied",
    ),
    "truncate_ignored": (
        "wrong",
        'Load with rope_type "default" and posenc.extend(model, "yarn", factor=..., truncate=False)',
    ),
    "partial_rotary_ignored": ("wrong", "Load a model type that rotates in part, or remove partial_rotary_factor"),
    "not_finite": ("wrong", "Look for weights that were not loaded, and for float16 where bfloat16 is needed"),
    "sees_the_future": ("wrong", "Register a mask function under the same name with AttentionMaskInterface"),
    "cache_differs": (
        "wrong",
        'posenc.extend(model, method, target_length=...), or model.set_attn_implementation("eager")',
    ),
    "padding_differs": ("wrong", "Do not batch inputs of unequal lengths with this attention implementation"),
    "attention_bypassed": ("wrong", 'model.set_attn_implementation("posenc"), or posenc.restore(model)'),
    "extension_not_applied": ("hazard", "Load it with posenc.load, or posenc.extend(model, **model.config.posenc)"),
    "adapter_extension_differs": (
        "wrong",
        "Load the adapter's folder by posenc.load, which extends its model, or extend the model as the adapter's was",
    ),
    "set_after_extending": (
        "wrong",
        "posenc.restore(model), which puts the configuration back, and posenc.extend with the method that is meant",
    ),
    "base_not_stated": ("wrong", "Write the base of the training into config.json, as rope_theta in rope_parameters"),
    "base_doubtful": (
        "hazard",
        "Compare rope_theta with the model's first release, and write that one into config.json",
    ),
    "parameter_ignored": (
        "hazard",
        "Write what the evidence names; where it names nothing, correct rope_type, or remove the key",
    ),
    "factor_below_one": ("wrong", "Write how many times longer inputs become, 4 and not 0.25"),
    "parameter_impossible": (
        "wrong",
        "Write the number that the model was trained with; posenc.load and posenc.extend refuse this one",
    ),
    "fields_contradict": (
        "hazard",
        "Remove the one that the model was not trained with: transformers took that of rope_parameters, or of the table; where the "
        "other is right, its class for the model type computes something else",
    ),
    "scaling_beside_the_model": ("wrong", "Move it into the part of the language model, text_config"),
    "long_factor_ignored": (
        "hazard",
        "Take no longer inputs in transformers, or posenc.extend(model, method, target_length=...)",
    ),
    "parameter_unread": ("note", "Nothing: without it, or where it is read, the numbers are the same"),
    "longer_length_stated": (
        "note",
        "Write the length that the model was trained to as max_position_embeddings, from which posenc.extend counts",
    ),
    "attention_factor_differs": (
        "hazard",
        "Remove attention_factor from rope_parameters unless the model was trained with it",
    ),
    "positions_from_padding": ("hazard", "Pass position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)"),
    "packing_leaks": ("hazard", "Pad instead of packing, or give a block-diagonal attention_mask of four dimensions"),
    "batch_leaks": (
        "wrong",
        "Train with use_cache=False and without attention_mask, pass a block-diagonal one of four dimensions, or pad",
    ),
    "positions_beyond_length": (
        "hazard",
        "Extend the model, posenc.extend(model, method, target_length=...), or truncate inputs",
    ),
    "attention_differs": ("wrong", f'model.set_attn_implementation("eager"){_PATCH}'),
    "length_not_declared": (
        "hazard",
        "Set max_position_embeddings to factor times original_max_position_embeddings, or correct the latter",
    ),
    "length_edited": (
        "hazard",
        "Set max_position_embeddings back, and posenc.extend(model, method, target_length=...) for longer inputs",
    ),
    "original_length_missing": (
        "hazard",
        "Write original_max_position_embeddings, the length before the stretch, into rope_parameters",
    ),
    "declared_longer_than_stretched": (
        "hazard",
        "Set max_position_embeddings to factor times original_max_position_embeddings, or extend further",
    ),
    "layout_swapped": ("wrong", 'posenc.convert_layout(state_dict, head_dim, "interleaved", "half")'),
    "llama3_without_effect": ("note", "Nothing; the frequencies are those that the schedule asks for"),
}
"""Finding on a language model -> its severity, and what to do."""

VISION_FINDINGS: dict[str, tuple[Severity, str]] = {
    "rows_for_columns": (
        "wrong",
        "Make it from a checkpoint for square images, which reads others too; or take timm's BEiT",
    ),
    "table_of_zeros": ("wrong", "Load a checkpoint, or fill the table: posenc.GridSinusoidal(dim, x_first=True)"),
    "shift_lost": ("wrong", "Load the model again, and give it small images in a copy"),
    "small_images_stay": ("hazard", "Read such images with a copy: copy.deepcopy(model)"),
    "below_a_window": ("hazard", "Pad them, or posenc.resize(model, image_size, window_size=...) to smaller windows"),
    "square_only": ("hazard", "Never pass interpolate_pos_encoding=True; use posenc.resize(model, (height, width))"),
    "decoder_in_a_line": ("hazard", "posenc.resize(model, image_size) before the decoder is used at another size"),
    "formula_interpolated": ("note", 'Measure both: posenc.resize(model, image_size), and with method="bicubic"'),
    "another_sampling": ("note", 'posenc.resize(model, image_size, method="bicubic_offset") for theirs'),
    "one_size": (
        "note",
        "posenc.resize(model, (height, width)), or interpolate_pos_encoding=True, dynamic_img_size=True",
    ),
}
"""Finding on a vision model -> its severity, and what to do."""

MEANINGS: dict[str, str] = {
    "config_not_applied": (
        "The model rotates by other frequencies than its configuration asks for: the configuration was edited "
        "after loading, or the table was overwritten."
    ),
    "frequencies_uninitialised": (
        "The frequencies are memory that nobody wrote: NaN, zeros, or not falling. No checkpoint has them, "
        "and `to_empty` and `from_pretrained` only allocate them."
    ),
    "frequencies_not_restored": (
        "transformers does not restore this rotary module after loading: it does so for classes with "
        "RotaryEmbedding in their name that have original_inv_freq."
    ),
    "softmax_scale_differs": (
        "Scores are multiplied by another number than the configuration asks for. In latent attention (DeepSeek) under YaRN "
        "it has the square of 0.1 mscale_all_dim ln(factor) + 1, which transformers up to 5.10.4 left out for DeepSeek-V2 "
        "and Mistral 4."
    ),
    "text_positions_differ": (
        "A text has other logits without position_ids than with 0, 1, 2, ...; or, in a model for text with images, than with "
        "three equal rows of them."
    ),
    "positions_of_another_prompt": (
        "A text given in two calls with a cache has other logits than in one: the model counts on from its "
        "last prompt with an image (rope_deltas). Qwen2-VL to Qwen3-VL in transformers 5.23 do so; `generate` "
        "clears it, your own loop does not."
    ),
    "axes_differ": (
        "Pairs of channels rotate by another axis (time, height, width) than mrope_section states, or its "
        "numbers do not add up."
    ),
    "image_positions_differ": (
        "get_rope_index places the tokens of images that are not square elsewhere than the model's rule."
    ),
    "compiled_differs": ("The compiled model gives other logits than the same model uncompiled."),
    "config_not_buildable": (
        "transformers cannot build a rotary module from this configuration, so the model will not load again "
        "once saved."
    ),
    "frequencies_rounded": (
        "The frequencies were cast to half precision: model.bfloat16(), .half() or .to(dtype) casts buffers "
        "as well. The error grows with the position."
    ),
    "truncate_ignored": ("truncate=False is in the rope_parameters of a layer type, where transformers ignores it."),
    "partial_rotary_ignored": (
        "The configuration asks for a part of each head to rotate (partial_rotary_factor), and this model "
        "type rotates another part."
    ),
    "not_finite": ("The logits of a short text are not finite. Nothing else was measured."),
    "sees_the_future": (
        "Another last token changes the predictions before it: attention has no causal mask. A function "
        "registered with AttentionInterface alone has none. Nothing else was measured."
    ),
    "cache_differs": (
        "Decoding with a cache gives other logits than one pass over the same tokens. Under dynamic and "
        "longrope, cached keys have the frequencies of an earlier length."
    ),
    "padding_differs": (
        "A left-padded text gives other logits than the text alone, although its attention_mask and "
        "position_ids are right."
    ),
    "attention_bypassed": (
        "posenc.extend works on this model's attention, and another implementation was set since: a pass "
        "raises. Nothing else was measured."
    ),
    "extension_not_applied": (
        "The configuration has an entry posenc: the saved model was extended by a method that no "
        "configuration expresses. It runs without that method, although max_position_embeddings may be the "
        "longer one."
    ),
    "adapter_extension_differs": (
        "An adapter of PEFT was trained under another extension, whose angles its weights fit, than the model has."
    ),
    "set_after_extending": (
        "config.rope_parameters of an extended model was changed, which changes no frequencies; a saved checkpoint would have others."
    ),
    "base_not_stated": ("config.json has rope_parameters without rope_theta, and transformers took its default."),
    "base_doubtful": ("The model predicts a plain text better with rope_theta times 10 or a tenth of it."),
    "parameter_ignored": (
        "rope_parameters has a key that transformers does not read for this rope_type, nor the model type's module."
    ),
    "factor_below_one": ("A factor below 1 makes pairs rotate faster than in training."),
    "parameter_impossible": (
        "No model was trained with such a number: it is NaN, infinite, 0, negative, no number, missing, or swapped with another."
    ),
    "fields_contradict": (
        "The file states a number of the rotation twice, and the two differ: programs read different ones."
    ),
    "scaling_beside_the_model": (
        "A file of several parts has a table of the rotation beside them, which no module reads: the model is not scaled."
    ),
    "long_factor_ignored": ("transformers' module for PhiMoE takes short_factor at every length."),
    "parameter_unread": (
        "rope_parameters has a key that transformers does not read for this rope_type, with a value that changes nothing."
    ),
    "longer_length_stated": (
        "The configuration or the tokenizer states another, longer length than max_position_embeddings."
    ),
    "attention_factor_differs": (
        "YaRN's attention_factor is not what its formula gives. This is right for a model that was trained so."
    ),
    "positions_from_padding": (
        "A left-padded text without position_ids gives other logits than the text alone. model.generate "
        "passes position_ids; a call of the model does not."
    ),
    "packing_leaks": (
        "Two documents in one row, whose position_ids start again, see each other. In transformers 5.23, the rows "
        "of Qwen2-VL and Qwen2.5-VL need position_ids of four rows, the text's first. Every model leaks, "
        "without this finding, in a call that makes a cache or has an attention_mask of two dimensions."
    ),
    "batch_leaks": ("In a training's batch: another text in the same row changes the logits of the text behind it."),
    "positions_beyond_length": ("In a training's batch: sequences are longer than max_position_embeddings."),
    "attention_differs": (
        "Attention does not compute the formula under the configuration, and no mistake that is known here explains it; where "
        "the formula is not computed, the attention implementation gives other logits than eager."
    ),
    "not_rotated": ("Attention rotates neither queries nor keys: the model sees no positions but the order of tokens."),
    "rotated_alone": ("Attention rotates queries or keys alone: scores depend on absolute positions."),
    "rotated_twice": ("Attention rotates queries, keys or both twice."),
    "rotated_backwards": ("Attention rotates queries, keys or both by minus their position."),
    "rotated_undeclared": ("A layer rotates that has no positions by its configuration."),
    "values_rotated": ("Attention rotates values too."),
    "wrong_pairs": (
        "Attention pairs other channels than the model type does: interleaved ones for halves, the reverse, or those of "
        "another part of a head."
    ),
    "wrong_frequencies": ("A layer rotates by the frequencies of another layer type."),
    "positions_shifted": ("Attention rotates queries or keys by another token's position."),
    "softcap_dropped": ("Attention leaves out attn_logit_softcapping."),
    "sinks_dropped": ("Attention leaves out the learned sinks (gpt-oss)."),
    "window_differs": ("A layer sees more or fewer keys than its sliding window has by the configuration."),
    "heads_mixed": ("Query heads use the keys and values of another group (grouped-query attention)."),
    "text_not_predicted": (
        "The model needs more than 1 nat a character for a plain English text. The frequencies of words alone give 1.5, "
        "SmolLM2-135M 0.6."
    ),
    "length_not_declared": (
        "The frequencies are stretched for more tokens than max_position_embeddings, which other software "
        "takes for the limit. Either that length was not raised, or original_max_position_embeddings is "
        "wrong."
    ),
    "length_edited": (
        "max_position_embeddings was raised after loading, and nothing stretches the frequencies: the model was not trained "
        "for such positions."
    ),
    "original_length_missing": (
        "config.json has a factor without original_max_position_embeddings, for which transformers takes "
        "max_position_embeddings. If that is the stretched length already, the frequencies are wrong."
    ),
    "declared_longer_than_stretched": (
        "max_position_embeddings is more than the frequencies are stretched for by original_max_position_embeddings: vLLM takes no "
        "longer requests under yarn, and other software serves them at positions that the schedule was not made for."
    ),
    "layout_swapped": (
        "The model predicts a plain text better with the channels of its queries and keys in the other order: "
        "interleaved weights are rotated by halves, or the reverse."
    ),
    "llama3_without_effect": (
        "llama3 scaling with an original length equal to the model's own. transformers warns at each load; harmless."
    ),
    "rows_for_columns": (
        "A table of offsets that is not square is read with rows for columns, at every call: patches get the "
        "biases of others."
    ),
    "table_of_zeros": (
        "Every row of the table is zero: the model cannot tell where patches are. transformers 5.23 leaves a "
        "new ViTMAE so."
    ),
    "shift_lost": (
        "Layers no longer shift their windows, after an image so small that a stage had one window "
        "(transformers' Swin)."
    ),
    "small_images_stay": ("After such a small image, the model will read images of its trained size differently."),
    "below_a_window": ("Images with fewer patches a side than a window in the last stage are not read at all."),
    "square_only": (
        "The table is of a grid that is not square, and its library takes it for a square one when it interpolates."
    ),
    "decoder_in_a_line": ("The decoder interpolates its table along the line of all patches, not in the image."),
    "formula_interpolated": (
        "The table follows MAE's formula, and its library interpolates it; posenc.resize computes it. Measure both."
    ),
    "another_sampling": (
        "The authors of DINOv2 interpolate for a grid that is 0.1 patches larger than the image's; "
        "transformers no longer does."
    ),
    "one_size": ("Images of another size are refused."),
}
"""What each finding means; `posenc doctor --help` lists them."""


def listed() -> str:
    """Every finding with its severity and meaning, as text."""
    return "\n".join(
        f"  {name} ({severity}): {MEANINGS[name]}" for name, (severity, _) in (FINDINGS | VISION_FINDINGS).items()
    )
