# SPDX-License-Identifier: Apache-2.0
"""The keys of a GGUF file with which llama.cpp makes frequencies."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from posenc.frequencies import Frequencies, default, stretch, yarn
from posenc.pretrained.models import Rope
from posenc.pretrained.rope_config import MAX_STRETCH, new_base, same_frequencies

DIVISORS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama", "granite", "granitemoe"), ("rope_freqs.weight",)),
    "phi3": ("rope_factors_long.weight", "rope_factors_short.weight"),
}
"""Architectures of llama.cpp that read divisors of the frequencies -> their tensors; the others pass none to ggml_rope_ext."""
YARN_KEYS = {"factor": "rope.scaling.factor", "original_max_positions": "rope.scaling.original_context_length"}
"""An option of yarn -> its key in a GGUF file, after the architecture."""
Keys = dict[str, str | float | int]


def llama_cpp_keys(wanted: Frequencies, rope: Rope, options: Mapping[str, Any]) -> Keys | None:
    """The keys of a GGUF file that turn the plain frequencies of a rotation into others; None: no keys do.

    options: of the schedule that made the wanted ones, in which those of yarn are looked up; its betas are 32 and 1, since llama.cpp
    takes others from the files of few architectures.
    """
    rotary_dim, rope_theta = rope.rotary_dim, rope.rope_theta
    plain, factor = Frequencies(wanted.inv_freq), float(f"{stretch(wanted, rotary_dim, base=rope_theta).max():.12g}")
    usual, keys = 1.0, _keys_of(plain, factor, rotary_dim, default(rotary_dim, base=rope_theta).inv_freq)
    if keys is None and 1 < factor < MAX_STRETCH:
        first: dict[str, Any] = {"factor": factor, "original_max_positions": rope.original_length}
        stated = {key: type(first[key])(options.get(key) or first[key]) for key in first}
        for tried in (first, stated):
            found = yarn(rotary_dim, base=rope_theta, **tried)
            if same_frequencies(plain, Frequencies(found.inv_freq)):
                usual, keys = found.attention_factor, {"rope.scaling.type": "yarn"}
                keys |= {key: tried[name] for name, key in YARN_KEYS.items()}
                break
    if keys is not None and not math.isclose(wanted.attention_factor, usual, rel_tol=1e-9):
        keys["rope.scaling.attn_factor"] = float(wanted.attention_factor / usual)  # which multiplies yarn's own
    return keys


def _keys_of(wanted: Frequencies, factor: float, rotary_dim: int, loaded: torch.Tensor) -> Keys | None:
    """Keys of finer positions and of another base. factor: the largest divisor. loaded: (rotary_dim / 2,), without keys."""
    if same_frequencies(wanted, Frequencies(loaded)):
        return {}
    if same_frequencies(wanted, Frequencies(loaded / factor)):
        return {"rope.scaling.type": "linear", "rope.scaling.factor": factor}
    base = new_base(rotary_dim, wanted)
    if base is not None:
        return {"rope.freq_base": base}
    first = 1 / float(wanted.inv_freq[0])
    base = new_base(rotary_dim, Frequencies(wanted.inv_freq * first))
    if base is not None:  # finer positions and another base
        return {"rope.scaling.type": "linear", "rope.scaling.factor": first, "rope.freq_base": base}
    return None
