# SPDX-License-Identifier: Apache-2.0
"""What to tell vLLM and llama.cpp so that they compute the frequencies of an exported model.

By reading their sources: vLLM 0.33 (rotary_embedding) and llama.cpp of October 2026 (ggml's rope, llama-context.cpp,
src/models, server-context.cpp).
"""

import json
from collections.abc import Mapping
from typing import Any

from posenc.frequencies import Frequencies, abf, stretch, yarn
from posenc.functional import Layout
from posenc.pretrained.anatomy import Anatomy, Rope
from posenc.pretrained.rope_config import STILL, same

OVERRIDES = "vllm-overrides.json"
"""The file in the exported folder for settings of vLLM that are too long for a command line."""

ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "phi": "phi2", "phi3": "phi3", "gemma": "gemma", "gemma2": "gemma2",
    "gemma3_text": "gemma3", "smollm3": "smollm3", "stablelm": "stablelm", "starcoder2": "starcoder2",
    "granite": "granite", "granitemoe": "granitemoe", "seed_oss": "seed_oss", "gpt_neox": "gptneox", "olmo": "olmo",
    "olmo2": "olmo2", "olmoe": "olmoe", "glm": "chatglm", "glm4": "glm4", "cohere": "command-r", "gpt_oss": "gpt-oss",
}  # fmt: skip
"""config.model_type -> what a GGUF file calls it, where that is known."""

DIVISORS = {
    **dict.fromkeys(("llama", "granite", "granitemoe"), "the tensor rope_freqs.weight"),
    "phi3": "the tensors rope_factors_long.weight and rope_factors_short.weight",
}
"""The architectures of llama.cpp that read divisors of the frequencies; the others pass none to ggml_rope_ext."""


def vllm_overrides(parameters: Mapping[str, Any], rope: Rope, frequencies: Frequencies) -> dict[str, Any] | None:
    """rope_parameters for vLLM where it does not compute what those of the checkpoint say; None: it does.

    vLLM reads no attention_factor of "longrope" but two scales of its own, and else takes LongRoPE's temperature.
    """
    if parameters.get("rope_type") != "longrope":
        return None
    base = new_base(rope, frequencies)
    if base is not None:
        kept = {k: v for k, v in parameters.items() if k == "partial_rotary_factor"}
        return {"rope_type": "default", "rope_theta": base, **kept}
    scale = parameters["attention_factor"]
    return {**parameters, "short_mscale": scale, "long_mscale": scale}


def vllm_command(folder: str, length: int, overrides: Mapping[str, Any] | None, layout: Layout = "half") -> str:
    """A command, or why there is none: vLLM's longrope rotates by halves, and raises or does so in silence where a model
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
    anatomy: Anatomy, frequencies: Mapping[str, Frequencies], length: int, parameters: Mapping[str, Any]
) -> str:
    """Flags for llama.cpp on a GGUF file of the model as it was before, or what such a file must hold, or why neither
    will do.

    frequencies: by layer type, empty if they are as before. parameters: rope_parameters of the exported configuration.
    """
    if frequencies and anatomy.rope_per_type:
        return "no flags say it: they act on all layers alike, and this model's layer types rotate differently"
    if frequencies and anatomy.rope.scaled:
        return "no flags say it: the model as loaded is scaled already, and how its GGUF file says so is not known here"
    architecture = ARCHITECTURES.get(anatomy.model_type, "{arch}")
    # llama-server caps its slots at the file's context length, whatever -c says
    room = f"-c {length} --override-kv {architecture}.context_length=int:{length}"
    wanted = next(iter(frequencies.values()), None)
    scaling = "" if wanted is None else _flags(anatomy.rope, wanted)
    if scaling is not None:
        return f"{room}{scaling} (on the GGUF file of the model as it was before)"
    if architecture not in DIVISORS:
        return (
            f"cannot serve these frequencies: no flags say them, and its {architecture} reads no divisors of frequencies "
            "from the file; take linear, yarn, ntk or abf"
        )
    if parameters["rope_type"] == "llama3":
        return (
            f"no flags say it; make a GGUF file of this folder with convert_hf_to_gguf.py, which writes {DIVISORS[architecture]}, "
            f"and serve that: -c {length}"
        )
    scale = 1.0 if wanted is None else wanted.attention_factor
    key = "" if scale == 1 else f" and the key {architecture}.rope.scaling.attn_factor = {scale:.10g}"
    return (
        f"no flags say it; the GGUF file of the model as it was before needs {DIVISORS[architecture]} = the long_factor list "
        f"of config.json{key}, and then {room}"
    )


def _flags(rope: Rope, wanted: Frequencies) -> str | None:
    """llama.cpp's flags for frequencies; None: it has none."""
    factor = stretch(wanted, rope.rotary_dim, rope.rope_theta).max().item()
    original = rope.original_length
    if same(wanted, Frequencies(rope.frequencies().inv_freq)):
        return ""
    if same(wanted, Frequencies(rope.frequencies().inv_freq / factor)):
        return f" --rope-scaling linear --rope-scale {factor:.10g}"
    base = new_base(rope, wanted)
    if base is not None:
        return f" --rope-freq-base {base:.10g}"
    yarned = 1 < factor < STILL and yarn(
        rope.rotary_dim, rope.rope_theta, factor=factor, original_max_positions=original
    )
    if yarned and same(wanted, yarned):
        return f" --rope-scaling yarn --rope-scale {factor:.10g} --yarn-orig-ctx {original}"
    return None


def new_base(rope: Rope, frequencies: Frequencies) -> float | None:
    """The base with which plain RoPE has these frequencies; None: there is none."""
    pairs = rope.rotary_dim // 2
    if pairs < 2 or not bool((frequencies.inv_freq > 0).all()):
        return None
    base = float(frequencies.inv_freq[-1]) ** (-pairs / (pairs - 1))
    return base if base > 0 and same(frequencies, abf(rope.rotary_dim, new_base=base)) else None
