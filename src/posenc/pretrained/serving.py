# SPDX-License-Identifier: Apache-2.0
"""Which programs compute an extended model as posenc does, from the files that posenc writes."""

import math
from typing import Any

import torch

from posenc.errors import InputError, check_word, described
from posenc.pretrained.attach import attached
from posenc.pretrained.config_file import ConfigFile
from posenc.pretrained.export import llama_cpp_keys, vllm_overrides
from posenc.pretrained.gguf_file import ARCHITECTURES
from posenc.pretrained.models import unwrap
from posenc.pretrained.programs import ALL, PROGRAMS, TOLERANCE, NotKnown, ProgramFails

__all__ = ["SERVING", "not_served"]

SERVING = {"python": "", "transformers": "transformers 5", "vllm": "vLLM", "llama.cpp": "llama.cpp"}
"""Programs to extend a model for, and their names in `posenc.pretrained.programs.PROGRAMS`; python is posenc, which computes
everything."""


def not_served(model: Any, program: str) -> str:
    """Why a program, a key of `SERVING`, does not compute an extended rotary model as posenc does; "": it does.

    transformers and vLLM are asked by the rules of `posenc.pretrained.programs` for the configuration that `to_hf` writes,
    llama.cpp is one where `to_gguf` has keys or divisors for the frequencies.
    """
    check_word("program", program, SERVING)
    attachment = attached(unwrap(model))
    if program == "python" or attachment is None:
        return ""
    report, structure = attachment.report, attachment.structure
    if not report.plain:
        return "no configuration expresses it"
    wanted = {kind: rotation.frequencies() for kind, rotation in attachment.design.rotations.items()}
    if not wanted:
        return ""
    if program == "llama.cpp":
        kind = ARCHITECTURES.get(structure.model_type)
        if kind is None:
            return f"posenc.to_gguf does not write {structure.model_type}"
        rope = structure.rope
        frequencies = wanted.get("full_attention") or next(iter(wanted.values()))
        plain = rope.frequencies().inv_freq
        keys = llama_cpp_keys(frequencies, rope.rotary_dim, rope.rope_theta, rope.original_length, plain)
        return "" if keys is not None or kind.divisors else f"its {kind.name} has no key for these frequencies"
    raw, length = structure.config.to_dict(), int(structure.config.max_position_embeddings)
    if program == "vllm":
        given, (any_kind, *_) = raw["rope_parameters"], wanted
        if structure.rope_per_type:
            more = {kind: vllm_overrides(given[kind], structure.ropes[kind], each) for kind, each in wanted.items()}
            raw["rope_parameters"] = given | {kind: each for kind, each in more.items() if each is not None}
        else:
            raw["rope_parameters"] = vllm_overrides(given, structure.rope, wanted[any_kind]) or given
    try:
        readings = list(PROGRAMS[SERVING[program]](ConfigFile("model", raw), length))
    except (ProgramFails, NotKnown, InputError) as error:
        return described(error)
    for reading in readings:
        mine = next(iter(wanted.values())) if reading.layers == ALL else wanted.get(reading.layers)
        if mine is not None and not (
            reading.inv_freq.shape == mine.inv_freq.shape
            and torch.allclose(reading.inv_freq.double(), mine.inv_freq, rtol=TOLERANCE, atol=0)
            and math.isclose(reading.attention_factor, mine.attention_factor, rel_tol=TOLERANCE)
        ):
            return reading.note or "it computes other frequencies"
    return ""
