# SPDX-License-Identifier: Apache-2.0
"""Extended models as checkpoints that plain transformers loads, and what to tell vLLM and llama.cpp to serve them.

The commands follow from the sources of vLLM 0.33 (rotary_embedding) and of llama.cpp of October 2026 (ggml's rope,
llama-context.cpp, src/models, server-context.cpp).
"""

import json
import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from posenc.errors import InputError
from posenc.frequencies import Frequencies, abf, stretch, yarn
from posenc.functional import Layout
from posenc.pretrained.attach import Attachment, attached
from posenc.pretrained.changes import ChangeReport, config_changes
from posenc.pretrained.learned_table import has_learned_table, table_of
from posenc.pretrained.load import AUTO, dtype_of, stored_dtype
from posenc.pretrained.models import ModelStructure, Rope, check_model, model_structure, unwrap
from posenc.pretrained.rope_config import (
    MAX_STRETCH,
    hf_config,
    hf_rope_parameters,
    rope_parameters_of,
    same_frequencies,
    writable,
)
from posenc.scratch import replacing, sweep

__all__ = ["Export", "hf_rope_parameters", "rope_parameters_of", "to_hf"]

SAMPLE = 1024
"""Positions at which the exported rotation is compared with the model's own."""

OVERRIDES = "vllm-overrides.json"
"""The file in the exported folder for settings of vLLM that are too long for a command line."""

ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "phi": "phi2", "phi3": "phi3", "gemma": "gemma", "gemma2": "gemma2",
    "gemma3_text": "gemma3", "smollm3": "smollm3", "stablelm": "stablelm", "starcoder2": "starcoder2",
    "granite": "granite", "granitemoe": "granitemoe", "seed_oss": "seed_oss", "gpt_neox": "gptneox", "olmo": "olmo",
    "olmo2": "olmo2", "olmoe": "olmoe", "glm": "chatglm", "glm4": "glm4", "cohere": "command-r", "gpt_oss": "gpt-oss",
}  # fmt: skip
"""config.model_type -> architecture in a GGUF file, where that is known."""

DIVISORS = ("llama", "granite", "granitemoe", "phi3")
"""The architectures of llama.cpp that read divisors of the frequencies; the others pass none to ggml_rope_ext."""


@dataclass(frozen=True)
class Export(ChangeReport):
    """A checkpoint that was written.

    method: None where the model was not extended. length: tokens it is made for. plain: plain transformers computes what the
    model computes; if not, it computes what the model did before, because of what is missing. vllm, llama_cpp: how to serve
    it, or why that cannot be expressed there. dtype: of the weights in the files, where it is not the model's own.
    """

    directory: str
    model_type: str
    method: str | None
    length: int
    plain: bool
    missing: tuple[str, ...]
    rope_parameters: dict[str, Any] = field(repr=False)
    vllm: str
    llama_cpp: str
    dtype: str = ""

    def __str__(self) -> str:
        lines = [f"wrote {self.directory}: {self.model_type}, {self.method or 'not extended'}, {self.length} tokens"]
        if self.plain:
            lines.append("plain transformers loads it to the same logits")
        else:
            lines.append(
                f"WARNING: plain transformers silently loads it as it was BEFORE {self.method}: no configuration expresses "
                f"{' and '.join(self.missing)}. Load it with posenc.load({self.directory!r})"
            )
        if self.dtype:
            lines.append(
                f"weights in {self.dtype}, as the checkpoint that was loaded; to_hf(..., dtype=...) writes another"
            )
        return "\n  ".join([*lines, f"vLLM: {self.vllm}", f"llama.cpp: {self.llama_cpp}"])


def to_hf(
    model: Any, directory: str | os.PathLike[str], tokenizer: Any = None, *, dtype: torch.dtype | str = AUTO
) -> Export:
    """Write an extended model as a checkpoint (safetensors, configuration, generation settings, tokenizer if given).

    Frequency schedules are expressed exactly, see `hf_rope_parameters`; before anything is written, transformers' own
    rotary module is compared with the model's. Position maps and changes of attention are beyond a configuration: the
    checkpoint is then that of the model before, with an entry `posenc` from which `posenc.load` extends it again, and the
    report states it. The model is unchanged. The folder appears complete or not at all.

    Args:
        model: a transformers model, extended or not. directory: must not exist, or be empty. tokenizer: of
            transformers; its model_max_length becomes the new length. dtype: of the weights in the files, or its name;
            "auto" is the model's, but that of its checkpoint where `load` made it float32 because the machine is faster so.

    Raises:
        InputError: an adapter that is not merged, a folder that is not empty, or a model whose own rotary module does
            not follow its configuration.
    """
    check_model(model)
    if hasattr(model, "get_base_model"):
        raise InputError("model has adapters: merge them first, model = model.merge_and_unload()")
    inner, folder = unwrap(model), Path(directory)
    if not folder.name or (folder.exists() and any(folder.iterdir())):
        raise InputError(f"directory={str(folder)!r}: is not empty; name a new folder")
    config, report, overrides = _expressed(inner, folder)
    weights_dtype = dtype_of(dtype) or stored_dtype(inner)
    if weights_dtype != inner.dtype:
        report = replace(report, dtype=str(weights_dtype).removeprefix("torch."))
    sweep(folder.parent)
    with replacing(folder) as made:
        inner.save_pretrained(made, state_dict=None if weights_dtype == inner.dtype else _cast(inner, weights_dtype))
        config.architectures, config.dtype = inner.config.architectures, weights_dtype
        config.save_pretrained(made)
        if tokenizer is not None:
            _save_tokenizer(tokenizer, made, report.length)
        if overrides is not None:
            (made / OVERRIDES).write_text(json.dumps({"rope_parameters": overrides}), encoding="utf-8")
    return report


def _cast(inner: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights in another dtype, but for those that transformers keeps in float32. Tied ones stay one tensor."""
    exact = {*(getattr(inner, "_keep_in_fp32_modules", None) or ()), *(inner._keep_in_fp32_modules_strict or ())}
    cast: dict[Any, torch.Tensor] = {}
    state = {}
    for name, weight in inner.state_dict().items():
        if weight.dtype == inner.dtype and not exact & set(name.split(".")):
            weight = cast.setdefault((weight.data_ptr(), weight.shape, weight.stride()), weight.to(dtype))
        state[name] = weight
    return state


def _expressed(inner: Any, folder: Path) -> tuple[Any, Export, dict[str, Any] | None]:
    """The configuration to write, the report, and rope_parameters that vLLM needs in a file."""
    config, attachment, name = deepcopy(inner.config), attached(inner), str(folder)
    model_type = str(config.model_type)
    if has_learned_table(inner):
        table = "its table is in the weights; nothing to set"
        method, length = table_of(inner)
        return config, Export(name, model_type, method, length, True, (), {}, table, table), None
    structure = model_structure(inner)
    length = int(structure.config.max_position_embeddings)
    if attachment is None:
        command, parameters = vllm_command(name, length, None), structure.config.rope_parameters
        flags = f"-c {length} (on a GGUF file of it)"
        return config, Export(name, model_type, None, length, True, (), parameters, command, flags), None
    report = attachment.report
    missing = (() if report.map is None else (f"the position map {report.map['name']}",)) + tuple(report.attention)
    if missing:  # as it was before, so that extending it after loading starts from there
        for change in config_changes(config, {k: v for k, v in attachment.config.items() if k != "posenc"}):
            change.swap()
        no = f"cannot express {' and '.join(missing)}"
        before = structure.loaded_length, False, missing, config.rope_parameters, no, no
        return config, Export(name, model_type, report.method, *before), None
    wanted = {t: rotation.frequencies() for t, rotation in attachment.design.rotations.items()}
    written = hf_config(structure, wanted, length) if wanted else structure.config
    if not writable(structure, written.rope_parameters):
        raise InputError(
            f"method={report.method!r}: only rope_type longrope has these frequencies, which transformers refuses for "
            f"{structure.model_type}, whose heads have several widths; take linear or yarn"
        )
    if wanted:
        _check_rotation(attachment, written, length)
        parts = [part for part in config.sub_configs if getattr(inner.config, part) is structure.config]
        if parts:  # of a model that reads more than text
            setattr(config, parts[0], written)
        else:
            config = written
    parameters = written.rope_parameters
    overrides = _vllm_overrides(structure, wanted, parameters)
    command = vllm_command(name, length, overrides, structure.layout)
    if wanted and structure.family.latent and parameters.get("rope_type") not in ("default", "yarn"):
        overrides, command = None, "cannot serve these frequencies: its latent attention takes every scaling for yarn"
    flags = llama_cpp(structure, wanted, length, parameters)
    export = Export(name, model_type, report.method, length, True, (), parameters, command, flags)
    return config, export, overrides if OVERRIDES in command else None


@torch.no_grad()
def _check_rotation(attachment: Attachment, config: Any, length: int) -> None:
    """Compare the rotation that transformers will make of a configuration with the model's.

    Raises:
        InputError: they differ by more than float32 rounds.
    """
    structure = attachment.structure
    decoder: Any = structure.decoder
    ours, theirs = decoder.rotary_emb, type(structure.rotary)(config)
    device = next(ours.buffers()).device
    ids, x = torch.arange(min(length, SAMPLE))[None], torch.zeros(1, 1, 1)
    for layer_type in structure.ropes if structure.rope_per_type else [None]:
        arguments = () if layer_type is None else (layer_type,)
        pairs = zip(ours(x.to(device), ids.to(device), *arguments), theirs(x, ids, *arguments), strict=True)
        if any((mine.cpu() - other).abs().max() > 1e-3 for mine, other in pairs):
            raise InputError(
                f"transformers' {type(structure.rotary).__name__} does not rotate as {attachment.report.method} does, "
                f"whatever its configuration says: {structure.model_type} cannot be exported with it"
            )


def _save_tokenizer(tokenizer: Any, folder: Path, length: int) -> None:
    before = tokenizer.model_max_length
    tokenizer.model_max_length = length
    try:
        tokenizer.save_pretrained(folder)
    finally:
        tokenizer.model_max_length = before


def _vllm_overrides(
    structure: ModelStructure, wanted: Mapping[str, Frequencies], parameters: dict[str, Any]
) -> dict[str, Any] | None:
    """rope_parameters for vLLM where those of the checkpoint will not do."""
    if not wanted:
        return None
    if not structure.rope_per_type:
        return vllm_overrides(parameters, structure.rope, next(iter(wanted.values())))
    each = {t: vllm_overrides(parameters[t], rope, wanted[t]) for t, rope in structure.ropes.items() if t in wanted}
    changed = {t: override for t, override in each.items() if override is not None}
    return {**parameters, **changed} if changed else None


def vllm_overrides(parameters: Mapping[str, Any], rope: Rope, frequencies: Frequencies) -> dict[str, Any] | None:
    """rope_parameters for vLLM where it does not compute what those of the checkpoint state; None: it does.

    vLLM reads no attention_factor of "longrope" but two scales of its own, and else takes LongRoPE's temperature.
    """
    if parameters.get("rope_type") != "longrope":
        return None
    base = new_base(rope.rotary_dim, frequencies)
    if base is not None:
        partial = {k: v for k, v in parameters.items() if k == "partial_rotary_factor"}
        return {"rope_type": "default", "rope_theta": base, **partial}
    scale = parameters["attention_factor"]
    return {**parameters, "short_mscale": scale, "long_mscale": scale}


def vllm_command(folder: str, length: int, overrides: Mapping[str, Any] | None, layout: Layout = "half") -> str:
    """A command, or why there is none: vLLM's longrope rotates by halves, and raises or silently does so where a model
    pairs neighbouring channels (cohere, glm, glm4)."""
    command = f"vllm serve {folder} --max-model-len {length}"
    if overrides is None:
        return command
    if layout == "interleaved" and overrides.get("rope_type") == "longrope":
        return (
            "cannot serve these frequencies: it has them only as longrope, which rotates by halves, and this model pairs "
            "neighbouring channels; take linear, yarn, ntk or abf"
        )
    text = json.dumps({"rope_parameters": overrides})
    if len(text) > 200:  # lists of factors
        return f'{command} --hf-overrides "$(cat {folder}/{OVERRIDES})"'
    return f"{command} --hf-overrides '{text}'"


def llama_cpp(
    structure: ModelStructure, frequencies: Mapping[str, Frequencies], length: int, parameters: Mapping[str, Any]
) -> str:
    """Flags for llama.cpp on a GGUF file of the model as it was before, or what such a file must contain, or why neither
    will do.

    frequencies: by layer type, empty if they are as before. parameters: rope_parameters of the exported configuration.
    """
    if frequencies and structure.family.latent:
        return "no flags are known to express it for latent attention"
    if frequencies and structure.rope_per_type:
        return "no flags express it: they act on all layers alike, and this model's layer types rotate differently"
    if frequencies and structure.rope.scaled:
        return "no flags express it: the model as loaded is scaled already, in a way of its GGUF file that is not known here"
    architecture = ARCHITECTURES.get(structure.model_type, "{arch}")
    # llama-server caps its slots at the file's context length, whatever -c says
    room = f"-c {length} --override-kv {architecture}.context_length=int:{length}"
    wanted = next(iter(frequencies.values()), None)
    scaling = "" if wanted is None else _flags(structure.rope, wanted)
    if scaling is not None:
        return f"{room}{scaling} (on the GGUF file of the model as it was before)"
    if architecture not in DIVISORS:
        return (
            f"cannot serve these frequencies: no flags express them, and its {architecture} reads no divisors of "
            "frequencies from the file; take linear, yarn, ntk or abf"
        )
    from posenc.pretrained.gguf_file import ARCHITECTURES as WRITTEN  # it imports this module

    if structure.model_type in WRITTEN:
        return f"no flags express it; posenc.to_gguf writes a GGUF file that needs none, and serve that: -c {length}"
    if parameters["rope_type"] == "llama3":
        return (
            "no flags express it; make a GGUF file of this folder with convert_hf_to_gguf.py, which writes the tensor "
            f"rope_freqs.weight, and serve that: -c {length}"
        )
    scale = 1.0 if wanted is None else wanted.attention_factor
    key = "" if scale == 1 else f" and the key {architecture}.rope.scaling.attn_factor = {scale:.10g}"
    return (
        "no flags express it; the GGUF file of the model as it was before needs the tensor rope_freqs.weight = the "
        f"long_factor list of config.json{key}, and then {room}"
    )


def _flags(rope: Rope, wanted: Frequencies) -> str | None:
    """llama.cpp's flags for frequencies; None: it has none."""
    keys = llama_cpp_keys(wanted, rope.rotary_dim, rope.rope_theta, rope.original_length, rope.frequencies().inv_freq)
    if keys is None:
        return None
    flags = {
        "rope.scaling.type": "--rope-scaling",
        "rope.scaling.factor": "--rope-scale",
        "rope.freq_base": "--rope-freq-base",
        "rope.scaling.original_context_length": "--yarn-orig-ctx",
    }
    return "".join(
        f" {flags[key]} {f'{value:.10g}' if isinstance(value, float) else value}" for key, value in keys.items()
    )


def llama_cpp_keys(
    wanted: Frequencies, rotary_dim: int, rope_theta: float, original: int, loaded: torch.Tensor
) -> dict[str, str | float | int] | None:
    """The keys of a GGUF file that turn its frequencies into others; None: no keys do.

    original: tokens that the file's frequencies were made for. loaded: these, (rotary_dim / 2,).
    """
    factor = stretch(wanted, rotary_dim, base=rope_theta).max().item()
    if same_frequencies(wanted, Frequencies(loaded)):
        return {}
    if same_frequencies(wanted, Frequencies(loaded / factor)):
        return {"rope.scaling.type": "linear", "rope.scaling.factor": factor}
    base = new_base(rotary_dim, wanted)
    if base is not None:
        return {"rope.freq_base": base}
    if 1 < factor < MAX_STRETCH and same_frequencies(
        wanted, yarn(rotary_dim, base=rope_theta, factor=factor, original_max_positions=original)
    ):
        yarn_keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": factor}
        return yarn_keys | {"rope.scaling.original_context_length": original}
    return None


def new_base(rotary_dim: int, frequencies: Frequencies) -> float | None:
    """The base with which plain RoPE has these frequencies; None: there is none."""
    pairs = rotary_dim // 2
    if pairs < 2 or not bool((frequencies.inv_freq > 0).all()):
        return None
    base = float(f"{float(frequencies.inv_freq[-1]) ** (-pairs / (pairs - 1)):.12g}")  # 500000, not 499999.9999999996
    return base if base > 0 and same_frequencies(frequencies, abf(rotary_dim, new_base=base)) else None
