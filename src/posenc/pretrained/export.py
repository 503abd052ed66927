"""Extended models for plain transformers."""

from collections.abc import Mapping
from typing import Any

from posenc.frequencies import Frequencies, stretch
from posenc.pretrained.anatomy import Anatomy


def hf_rope_parameters(body: Anatomy, frequencies: Mapping[str, Frequencies], length: int) -> dict[str, Any]:
    """config.rope_parameters with which plain transformers turns by these frequencies.

    body: the model as loaded. frequencies: layer type -> those it is to have; other types keep theirs. length: the new
    max_position_embeddings. Any fixed frequencies are LongRoPE's with the same list for short and long texts.
    """

    def written(old: Mapping[str, Any], layer_type: str) -> dict[str, Any]:
        rope, found = body.ropes[layer_type], frequencies[layer_type]
        kept = {key: old[key] for key in ("rope_theta", "partial_rotary_factor") if key in old}
        divisors = stretch(found, rope.rotary_dim, rope.rope_theta).tolist()
        return kept | {
            "rope_type": "longrope",
            "short_factor": divisors,
            "long_factor": divisors,
            "attention_factor": float(found.attention_factor),
            "factor": length / rope.original_length,
            "original_max_position_embeddings": rope.original_length,
        }

    old = body.config.rope_parameters
    if not body.rope_per_type:
        return written(old, next(iter(frequencies)))
    return {key: written(value, key) if key in frequencies else value for key, value in old.items()}
