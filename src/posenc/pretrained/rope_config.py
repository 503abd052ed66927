# SPDX-License-Identifier: Apache-2.0
"""Frequencies as the `rope_parameters` of a transformers configuration, so that plain transformers computes them."""

import math
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch

from posenc.errors import InputError
from posenc.frequencies import Frequencies, abf, create, stretch
from posenc.pretrained.attach import attached
from posenc.pretrained.models import ModelStructure, Rope, attention_factor
from posenc.pretrained.parameters import ROPE_PARAMETERS, score_factor

NAMED = ("default", "linear", "yarn", "llama3")
"""The rope_types with a formula, in the order of how many programs compute it."""
LONGROPE_ONLY = ("phi3",)
"""Model types whose configuration refuses every other kind of scaling."""
SCORES = {"mscale": 1.0, "mscale_all_dim": 1.0}
"""Options of "yarn" under which its temperature multiplies the scores and not cos and sin, as DeepSeek trains with."""
SCALING = {"rope_type", "type", "original_max_position_embeddings", "max_position_embeddings", "short_mscale", "long_mscale",
           *(key for keys in ROPE_PARAMETERS.values() for key in keys)}  # fmt: skip
"""Keys of rope_parameters that belong to a scaling; the others describe the model."""
MAX_STRETCH = 1e30
"""A divisor that stops a pair, since JSON has no infinity: the angle stays below 1e-23 for any length."""


def hf_rope_parameters(
    structure: ModelStructure,
    frequencies: Mapping[str, Frequencies],
    length: int,
    kinds: Collection[str] = NAMED,
    schedules: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """config.rope_parameters under which transformers' own rotary module has these frequencies.

    The first rope_type that is exact, in the order of how many programs compute it: "default" with a base, "linear" (of any
    base), "yarn", "llama3"; anything else as "longrope" with equal short and long factors: each pair's divisor. The model's
    parameters as loaded stay, see `pinned`.

    Args:
        structure: of the model. frequencies: by layer type, where types left out stay as loaded. length: tokens that the frequencies are made for. kinds: of rope_types beside "longrope" that may be
            taken. schedules: by layer type, what made the frequencies, where that is known: its options are tried too.

    Raises:
        InputError: a layer type the model lacks, frequencies of another width, or different ones for layer types
            that share one rotation.
    """
    if unknown_types := sorted(set(frequencies) - set(structure.ropes)):
        raise InputError(f"frequencies for layer type {unknown_types[0]!r}: the model has {', '.join(structure.ropes)}")
    given = pinned(structure)
    written = {
        layer_type: _written(structure, rope, given[layer_type] if structure.rope_per_type else given,
                             frequencies.get(layer_type), length, kinds, (schedules or {}).get(layer_type, {}))
        for layer_type, rope in structure.ropes.items()
    }  # fmt: skip
    if structure.rope_per_type:
        return {**given, **written}
    first, *others = written.values()
    if any(other != first for other in others):
        raise InputError(f"model type {structure.model_type!r} rotates all layers alike: give one set of frequencies")
    return first


def hf_config(
    structure: ModelStructure,
    frequencies: Mapping[str, Frequencies],
    length: int,
    schedules: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """A copy of the model's configuration with `hf_rope_parameters`, and what else transformers reads beside them.

    Raises:
        InputError: as `hf_rope_parameters`.
    """
    config = deepcopy(structure.config)
    config.max_position_embeddings = length
    if getattr(config, "original_max_position_embeddings", None):  # Phi-3 reads this field before the dictionary
        config.original_max_position_embeddings = structure.trained_length
    if vars(config).get("head_dim", structure.head_dim) is None:  # "yarn" and "longrope" multiply it
        config.head_dim = structure.head_dim
    config.rope_parameters = hf_rope_parameters(structure, frequencies, length, NAMED, schedules)
    if not computes(structure, config, frequencies, length):  # some modules read keys of a rope_type from elsewhere
        config.rope_parameters = hf_rope_parameters(structure, frequencies, length, ())
    return config


def computes(structure: ModelStructure, config: Any, frequencies: Mapping[str, Frequencies], length: int) -> bool:
    """Whether the model's kind of rotary module has the frequencies under a configuration, to 1e-4 rad at the last position."""
    module = type(structure.rotary)(config)
    for layer_type, wanted in frequencies.items():
        prefix = f"{layer_type}_" if structure.rope_per_type else ""
        buffer = getattr(module, f"{prefix}inv_freq").double()
        if buffer.shape != wanted.inv_freq.shape or not torch.allclose(
            buffer, wanted.inv_freq, rtol=1e-5, atol=1e-4 / length
        ):
            return False
        if not math.isclose(attention_factor(module, prefix), wanted.attention_factor, rel_tol=1e-5):
            return False
    return True


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
    structure: ModelStructure,
    rope: Rope,
    given: Mapping[str, Any],
    frequencies: Frequencies | None,
    length: int,
    kinds: Collection[str],
    schedule: Mapping[str, Any],
) -> dict[str, Any]:
    if frequencies is None or same_frequencies(frequencies, rope.frequencies()):
        return dict(given)
    shape = {key: value for key, value in given.items() if key not in {*SCALING, "rope_theta"}}
    if rope.schedule["name"] == "proportional":  # which reads it differently
        shape.pop("partial_rotary_factor", None)
    if "llama_4_scaling_beta" in given:  # whose temperature counts in these
        shape["original_max_position_embeddings"] = given["original_max_position_embeddings"]
    kinds = kinds if structure.model_type not in LONGROPE_ONLY else [kind for kind in kinds if kind == "default"]
    written = scaling_parameters(frequencies, rope, length, kinds, schedule)
    scores, times = score_factor(given) ** 0.5, written.get("factor", 1.0)
    stays = written["rope_type"] == "longrope" and schedule.get("name") == "explicit"  # beside the new ones
    if stays and scores != 1 and times > 1:
        shape["mscale_all_dim"] = (scores - 1) / (0.1 * math.log(times))
    return written | shape


def scaling_parameters(
    frequencies: Frequencies,
    rope: Rope,
    length: int,
    kinds: Collection[str] = NAMED,
    schedule: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """rope_parameters of frequencies in place of those of a rotation. kinds: of rope_types beside "longrope" that may be taken.
    schedule: what made the frequencies, where that is known. In latent attention "yarn" has its temperature in the scores, and vLLM
    and SGLang have longrope for the layout "half" alone."""
    rotary_dim, rope_theta = rope.rotary_dim, rope.rope_theta
    divisors, made = stretch(frequencies, rotary_dim, base=rope_theta), schedule or {}
    factor = float(f"{divisors.max().item():.12g}")  # 3.2, not 3.2000000000000006

    def candidates() -> Iterator[tuple[float, str, dict[str, Any]]]:
        """A base, a rope_type and its keys, first what most programs compute."""
        yield rope_theta, "default", {}
        base = new_base(rotary_dim, frequencies)
        if base is not None:
            yield base, "default", {}
        if 1 < factor < MAX_STRETCH:
            yield rope_theta, "linear", {"factor": factor}
        first = float(f"{1 / float(frequencies.inv_freq[0]):.12g}") if frequencies.inv_freq[0] > 0 else 0.0
        if 1 < first < MAX_STRETCH:  # finer positions and another base
            base = new_base(rotary_dim, Frequencies(frequencies.inv_freq * first, frequencies.attention_factor))
            if base is not None:
                yield base, "linear", {"factor": first}
        if not 1 < factor < MAX_STRETCH:
            return
        original = {"original_max_position_embeddings": rope.original_length}
        yarn = {"factor": factor, "beta_fast": 32.0, "beta_slow": 1.0, **original}
        usual = {"yarn": yarn | (SCORES if rope.latent else {})}
        usual["llama3"] = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **original}
        yield rope_theta, "yarn", usual["yarn"]
        if not rope.latent:
            yield rope_theta, "yarn", yarn | {"truncate": False}
        if rope.layout == "interleaved" and not rope.latent:
            yield rope_theta, "yarn", yarn | {"attention_factor": float(frequencies.attention_factor)}
        yield rope_theta, "llama3", usual["llama3"]
        if (kind := str(made.get("name"))) in usual:
            renamed = (*_RENAMED.items(), ("truncate", "truncate"))
            options = {key: float(made[key]) for key in _NUMBERS if key in made}
            options |= {key: made[name] for key, name in renamed if name in made}
            yield rope_theta, kind, usual[kind] | options

    for base, kind, options in candidates():
        if kind not in kinds:
            continue
        candidate = {"name": kind} | {_RENAMED.get(name, name): value for name, value in options.items()}
        if same_frequencies(frequencies, create(candidate, rotary_dim, base=base)):
            return {"rope_type": kind, "rope_theta": base, **options}
    numbers = divisors.clamp(max=MAX_STRETCH).tolist()
    scale = float(frequencies.attention_factor)
    return {
        "rope_type": "longrope", "rope_theta": rope_theta, "short_factor": numbers, "long_factor": numbers,
        "factor": max(1.0, length / rope.original_length), "attention_factor": scale,
        **({} if rope.latent else {"short_mscale": scale, "long_mscale": scale}),
        "original_max_position_embeddings": rope.original_length,
    }  # fmt: skip


_RENAMED = {"original_max_position_embeddings": "original_max_positions"}
"""A key of rope_parameters -> the option of a schedule."""
_NUMBERS = ("factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor")
"""Options of "yarn" and "llama3" that programs read, as floats, which transformers asks for."""


def new_base(rotary_dim: int, frequencies: Frequencies) -> float | None:
    """The base with which plain RoPE has these frequencies; None: there is none."""
    pairs = rotary_dim // 2
    if pairs < 2 or not bool((frequencies.inv_freq > 0).all()):
        return None
    base = float(f"{float(frequencies.inv_freq[-1]) ** (-pairs / (pairs - 1)):.12g}")  # 500000, not 499999.9999999996
    return base if base > 0 and same_frequencies(frequencies, abf(rotary_dim, new_base=base)) else None


def same_frequencies(one: Frequencies, other: Frequencies) -> bool:
    """Whether two schedules give the same rotations and temperature, but for rounding in a file."""
    return (
        one.inv_freq.shape == other.inv_freq.shape
        and torch.allclose(one.inv_freq, other.inv_freq, rtol=1e-9, atol=0)
        and abs(one.attention_factor - other.attention_factor) < 1e-9
    )
