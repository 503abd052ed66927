# SPDX-License-Identifier: Apache-2.0
"""Frequencies as the `rope_parameters` of a transformers configuration, so that plain transformers computes them."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch

from posenc.encodings.learned_rotary import HeadRotary, LearnedRotary
from posenc.encodings.rotary import PRotary, Rotary
from posenc.errors import InputError, check_integers
from posenc.frequencies import Frequencies, create, stretch
from posenc.pretrained.attach import attached
from posenc.pretrained.models import ModelStructure, Rope
from posenc.pretrained.parameters import ROPE_PARAMETERS

LONGROPE_ONLY = ("phi3",)
"""Model types whose configuration refuses every other kind of scaling."""
SCORES = {"mscale": 1.0, "mscale_all_dim": 1.0}
"""Options of "yarn" under which its temperature multiplies the scores and not cos and sin, as DeepSeek trains with."""
SCALING = {
    "rope_type",
    "type",
    "original_max_position_embeddings",
    "max_position_embeddings",
    "alpha",
    *(key for keys in ROPE_PARAMETERS.values() for key in keys),
}
"""Keys of rope_parameters that belong to a scaling; the others describe the model."""
MAX_STRETCH = 1e30
"""A divisor that stops a pair, since JSON has no infinity: the angle stays below 1e-23 for any length."""


def hf_rope_parameters(
    structure: ModelStructure, frequencies: Frequencies | Mapping[str, Frequencies], length: int
) -> dict[str, Any]:
    """config.rope_parameters under which transformers' own rotary module has these frequencies.

    The rope_type with a name where it is exact ("linear", "yarn", "llama3"); anything else as "longrope" with equal short
    and long factors: each pair's divisor. The model's parameters as loaded stay, see `pinned`.

    Args:
        structure: of the model. frequencies: of all layers, or by layer type (Gemma 3), where types left out stay as
            loaded. length: tokens that the frequencies are made for.

    Raises:
        InputError: a layer type the model lacks, frequencies of another width, or different ones for layer types
            that share one rotation.
    """
    by_type = frequencies if isinstance(frequencies, Mapping) else dict.fromkeys(structure.ropes, frequencies)
    if unknown_types := sorted(set(by_type) - set(structure.ropes)):
        raise InputError(f"frequencies for layer type {unknown_types[0]!r}: the model has {', '.join(structure.ropes)}")
    given = pinned(structure)
    written = {
        layer_type: _written(structure, rope, given[layer_type] if structure.rope_per_type else given,
                             by_type.get(layer_type), length)
        for layer_type, rope in structure.ropes.items()
    }  # fmt: skip
    if structure.rope_per_type:
        return {**given, **written}
    first, *others = written.values()
    if any(other != first for other in others):
        raise InputError(f"model type {structure.model_type!r} rotates all layers alike: give one set of frequencies")
    return first


def hf_config(structure: ModelStructure, frequencies: Frequencies | Mapping[str, Frequencies], length: int) -> Any:
    """A copy of the model's configuration with `hf_rope_parameters`, and what else transformers reads beside them.

    Raises:
        InputError: as `hf_rope_parameters`.
    """
    config = deepcopy(structure.config)
    config.rope_parameters = hf_rope_parameters(structure, frequencies, length)
    config.max_position_embeddings = length
    if getattr(config, "original_max_position_embeddings", None):  # Phi-3 reads this field before the dictionary
        config.original_max_position_embeddings = structure.trained_length
    if vars(config).get("head_dim", structure.head_dim) is None:  # "yarn" and "longrope" multiply it
        config.head_dim = structure.head_dim
    return config


def writable(structure: ModelStructure, rope_parameters: Mapping[str, Any]) -> bool:
    """Whether transformers writes a configuration with them: of "longrope" it checks the lists by one width of all heads."""
    kinds = {parameters.get("rope_type") for parameters in rope_parameters.values() if isinstance(parameters, Mapping)}
    return "longrope" not in kinds or len({rope.head_dim for rope in structure.ropes.values()}) == 1


def pinned(structure: ModelStructure) -> dict[str, Any]:
    """The model's rope_parameters as loaded, with the factor that they may derive from max_position_embeddings, so that
    another length does not change it."""
    attachment = attached(structure.model)
    loaded = {} if attachment is None else attachment.config
    given = dict(loaded.get("rope_parameters", structure.config.rope_parameters))

    def with_factor(parameters: Mapping[str, Any], rope: Rope) -> dict[str, Any]:
        implied = rope.schedule["name"] in ("yarn", "longrope") and parameters.get("factor") is None
        return {**parameters, "factor": rope.schedule["factor"]} if implied else dict(parameters)

    if structure.rope_per_type:
        return {**given, **{t: with_factor(given[t], rope) for t, rope in structure.ropes.items()}}
    return with_factor(given, structure.rope)


def _written(
    structure: ModelStructure, rope: Rope, given: Mapping[str, Any], frequencies: Frequencies | None, length: int
) -> dict[str, Any]:
    if frequencies is None or same_frequencies(frequencies, rope.frequencies()):
        return dict(given)
    shape = {key: value for key, value in given.items() if key not in SCALING} | {"rope_theta": rope.rope_theta}
    if rope.schedule["name"] == "proportional":  # which reads it differently
        shape.pop("partial_rotary_factor", None)
    if "llama_4_scaling_beta" in given:  # whose temperature counts in these
        shape["original_max_position_embeddings"] = given["original_max_position_embeddings"]
    named = structure.model_type not in LONGROPE_ONLY
    written = scaling_parameters(
        frequencies, rope.rotary_dim, rope.rope_theta, rope.original_length, length, named, latent=rope.latent
    )
    if structure.model_type == "phimoe" and written["rope_type"] != "default":  # it reads these for every type
        shape |= dict.fromkeys(("short_mscale", "long_mscale"), frequencies.attention_factor)
        shape["original_max_position_embeddings"] = rope.original_length
    return written | shape


def rope_parameters_of(encoding: Rotary | LearnedRotary | HeadRotary, length: int) -> dict[str, Any]:
    """config.rope_parameters under which transformers' rotary modules turn as an encoding of a model trained from scratch
    does: a `LearnedRotary` with what it has learned, a `Rotary`, `PRotary` or `HeadRotary`.

    The rope_type with a name where it is exact, otherwise "longrope" with equal short and long factors. For transformers 4,
    take rope_theta out of the dictionary, and pass the rest as rope_scaling.

    Args:
        length: of the new configuration, its max_position_embeddings.

    Raises:
        InputError: frequencies that differ by head, another encoding, or the interleaved layout, which no
            configuration has: `posenc.convert_layout` changes the weights.
    """
    check_integers(1, length=length)
    if type(encoding) not in (Rotary, PRotary, LearnedRotary, HeadRotary):
        raise InputError(f"encoding={encoding!r}: pass a Rotary, PRotary, LearnedRotary or HeadRotary")
    if encoding.layout != "half":
        raise InputError(
            f"layout={encoding.layout!r}: transformers turns channels c and c + head_dim/2 together; change the weights by "
            "posenc.convert_layout, and the encoding to layout='half'"
        )
    shape: dict[str, Any] = {"rope_theta": encoding.rope_theta}
    rotary_dim, schedule = encoding.head_dim, getattr(encoding, "schedule", None) or {}
    if isinstance(encoding, Rotary):
        frequencies = encoding.frequencies()
        if encoding.rotary_dim is not None:
            rotary_dim = int(encoding.rotary_dim)
            shape["partial_rotary_factor"] = rotary_dim / encoding.head_dim
    else:
        ladders = encoding.vectors(0)[..., 0].detach().cpu()
        if not torch.equal(ladders, ladders[:1].expand_as(ladders)):
            raise InputError(
                f"{type(encoding).__name__}: its frequencies differ by key head, and a configuration has one set for all "
                "heads; train with groups=1, or one schedule"
            )
        frequencies = Frequencies(ladders[0], encoding.attention_factor)
    original = schedule.get("original_max_positions", length)
    return scaling_parameters(frequencies, rotary_dim, encoding.rope_theta, original, length) | shape


def scaling_parameters(
    frequencies: Frequencies,
    rotary_dim: int,
    rope_theta: float,
    original_length: int,
    length: int,
    named: bool = True,
    latent: bool = False,
) -> dict[str, Any]:
    """rope_parameters without the base. named: whether a rope_type other than "longrope" may be taken. latent: of latent
    attention, where "yarn" has its temperature in the scores."""
    divisors = stretch(frequencies, rotary_dim, base=rope_theta)
    kinds = _kinds(divisors.max().item(), original_length) if named else {}
    if latent and "yarn" in kinds:
        kinds["yarn"] |= SCORES
    renamed = {"original_max_position_embeddings": "original_max_positions"}
    for schedule, options in kinds.items():
        candidate = {"name": schedule} | {renamed.get(name, name): value for name, value in options.items()}
        if same_frequencies(frequencies, create(candidate, rotary_dim, base=rope_theta)):
            return {"rope_type": schedule, **options}
    numbers = divisors.clamp(max=MAX_STRETCH).tolist()
    return {
        "rope_type": "longrope", "short_factor": numbers, "long_factor": numbers,
        "factor": max(1.0, length / original_length), "attention_factor": float(frequencies.attention_factor),
        "original_max_position_embeddings": original_length,
    }  # fmt: skip


def _kinds(factor: float, original_length: int) -> dict[str, dict[str, Any]]:
    """The rope_types that transformers computes as posenc does, with the options most models have."""
    if not 1 < factor < MAX_STRETCH:
        return {"default": {}} if factor == 1 else {}
    original = {"original_max_position_embeddings": original_length}
    return {
        "linear": {"factor": factor},
        "yarn": {"factor": factor, "beta_fast": 32.0, "beta_slow": 1.0, **original},
        "llama3": {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **original},
    }


def same_frequencies(one: Frequencies, other: Frequencies) -> bool:
    """Whether two schedules give the same rotations and temperature, but for rounding in a file."""
    return (
        one.inv_freq.shape == other.inv_freq.shape
        and torch.allclose(one.inv_freq, other.inv_freq, rtol=1e-9, atol=0)
        and abs(one.attention_factor - other.attention_factor) < 1e-9
    )
