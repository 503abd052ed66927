# SPDX-License-Identifier: Apache-2.0
"""What to tell vLLM and llama.cpp so that they compute the frequencies of an exported model.

By reading their sources: vLLM 0.33 (rotary_embedding) and llama.cpp of October 2026 (ggml's rope, llama-context.cpp).
"""

import json
from collections.abc import Mapping
from typing import Any

from posenc.frequencies import Frequencies, abf, stretch, yarn
from posenc.pretrained.anatomy import Anatomy, Rope
from posenc.pretrained.rope_config import STILL, same

OVERRIDES = "vllm-overrides.json"
"""The file in the exported folder for settings of vLLM that are too long for a command line."""


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


def vllm_command(folder: str, length: int, overrides: Mapping[str, Any] | None) -> str:
    command = f"vllm serve {folder} --max-model-len {length}"
    if overrides is None:
        return command
    text = json.dumps({"rope_parameters": overrides})
    if len(text) > 200:  # lists of factors
        return f'{command} --hf-overrides "$(cat {folder}/{OVERRIDES})"'
    return f"{command} --hf-overrides '{text}'"


def llama_cpp(anatomy: Anatomy, frequencies: Mapping[str, Frequencies], length: int) -> str:
    """Flags for llama.cpp on a GGUF file of the model as it was before, or what such a file must hold."""
    if anatomy.rope_per_type:
        return "no flags say it: they act on all layers alike, and this model's layer types rotate differently"
    rope, wanted = anatomy.rope, next(iter(frequencies.values()))
    divisors = stretch(wanted, rope.rotary_dim, rope.rope_theta)
    factor, original = divisors.max().item(), rope.original_length
    if rope.scaled:
        return "no flags say it: the model as loaded is scaled already, and how its GGUF file says so is not known here"
    flags = f"-c {length}"
    if same(wanted, Frequencies(rope.frequencies().inv_freq)):
        return flags
    if same(wanted, Frequencies(rope.frequencies().inv_freq / factor)):
        return f"{flags} --rope-scaling linear --rope-scale {factor:.10g}"
    base = new_base(rope, wanted)
    if base is not None:
        return f"{flags} --rope-freq-base {base:.10g}"
    if 1 < factor < STILL and same(
        wanted, yarn(rope.rotary_dim, rope.rope_theta, factor=factor, original_max_positions=original)
    ):
        return f"{flags} --rope-scaling yarn --rope-scale {factor:.10g} --yarn-orig-ctx {original}"
    tensor = "no flags say it; the GGUF file needs the tensor rope_freqs.weight = the long_factor list of config.json"
    scale = wanted.attention_factor
    return tensor if scale == 1 else f"{tensor}, and the key {{arch}}.rope.scaling.attn_factor = {scale:.10g}"


def new_base(rope: Rope, frequencies: Frequencies) -> float | None:
    """The base with which plain RoPE has these frequencies; None: there is none."""
    pairs = rope.rotary_dim // 2
    if pairs < 2 or not bool((frequencies.inv_freq > 0).all()):
        return None
    base = float(frequencies.inv_freq[-1]) ** (-pairs / (pairs - 1))
    return base if base > 0 and same(frequencies, abf(rope.rotary_dim, new_base=base)) else None
