# SPDX-License-Identifier: Apache-2.0
"""Frequencies as the `rope_parameters` of a transformers configuration, so that plain transformers computes them."""

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch

from posenc.errors import InputError
from posenc.frequencies import Frequencies, create, stretch
from posenc.pretrained.anatomy import RECORD, Anatomy, Rope

KINDS = ("default", "linear", "proportional", "llama3", "yarn", "dynamic", "longrope")
"""The kinds of rope_type that transformers and posenc know."""
FORMERLY = {"su": "longrope"}
NUMBERS = ("rope_theta", "factor", "attention_factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor",
           "partial_rotary_factor", "original_max_position_embeddings")  # fmt: skip
LONGROPE_ONLY = ("phi3",)
"""Model types whose configuration refuses every other kind of scaling."""
STILL = 1e30
"""A divisor that stops a pair, since JSON has no infinity: the angle stays below 1e-23 for any length."""


def check_parameters(config: Any) -> None:
    """Refuse rope_parameters of which transformers makes an error somewhere else, or frequencies that are no numbers.

    Raises:
        InputError: an unknown rope_type, text where a number is due, a base that is not above 0, or a list of factors
            that has not one for each pair; names the key, the value and what to write.
    """
    said = getattr(config, "rope_parameters", None)
    if not isinstance(said, Mapping):
        return
    nested = [value for value in said.values() if isinstance(value, Mapping)]
    for parameters in nested or [said]:
        kind = parameters.get("rope_type", "default")
        if kind not in KINDS:
            now = f"it is called {FORMERLY[kind]!r} now; " if kind in FORMERLY else ""
            raise InputError(f"unknown rope_type {kind!r}: {now}known are {', '.join(sorted(KINDS))}")
        for key in NUMBERS:
            value = parameters.get(key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise InputError(f"{key}={value!r} in rope_parameters: write a number, without quotes")
        theta = parameters.get("rope_theta")
        if theta is not None and not 0 < theta < math.inf:
            raise InputError(
                f"rope_theta={theta} in rope_parameters: the base is a number above 0, as the model's release has it"
            )
        _check_lists(config, parameters)


def _check_lists(config: Any, parameters: Mapping[str, Any]) -> None:
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    pairs = int(head_dim * (parameters.get("partial_rotary_factor") or 1.0)) // 2
    for key in ("short_factor", "long_factor") if parameters.get("rope_type") == "longrope" else ():
        factors = parameters.get(key)
        count = len(factors) if isinstance(factors, list | tuple) else None
        if count != pairs:
            has = f"{count} numbers" if count is not None else repr(factors)
            raise InputError(f"{key} in rope_parameters has {has}: give one for each of the {pairs} pairs that rotate")


def hf_rope_parameters(
    anatomy: Anatomy, frequencies: Frequencies | Mapping[str, Frequencies], length: int
) -> dict[str, Any]:
    """config.rope_parameters under which transformers' own rotary module has these frequencies.

    The kind with a name where it is exact ("linear", "yarn", "llama3"); anything else as "longrope" whose short and
    long factors are the same: each pair's divisor. What the model has as loaded is kept, see `pinned`.

    Args:
        anatomy: of the model. frequencies: of all layers, or by layer type (Gemma 3), where types left out stay as
            loaded. length: tokens that the frequencies are made for.

    Raises:
        InputError: a layer type the model lacks, frequencies of another width, or different ones for layer types
            that share one rotation.
    """
    by_type = frequencies if isinstance(frequencies, Mapping) else dict.fromkeys(anatomy.ropes, frequencies)
    strange = sorted(set(by_type) - set(anatomy.ropes))
    if strange:
        raise InputError(f"frequencies for layer type {strange[0]!r}: the model has {', '.join(anatomy.ropes)}")
    given = pinned(anatomy)
    written = {
        layer_type: _written(anatomy, rope, given[layer_type] if anatomy.rope_per_type else given,
                             by_type.get(layer_type), length)
        for layer_type, rope in anatomy.ropes.items()
    }  # fmt: skip
    if anatomy.rope_per_type:
        return {**given, **written}
    first, *others = written.values()
    if any(other != first for other in others):
        raise InputError(f"model type {anatomy.model_type!r} rotates all layers alike: give one set of frequencies")
    return first


def hf_config(anatomy: Anatomy, frequencies: Frequencies | Mapping[str, Frequencies], length: int) -> Any:
    """A copy of the model's configuration with `hf_rope_parameters`, and what else transformers reads beside them.

    Raises:
        InputError: what `hf_rope_parameters` refuses.
    """
    config = deepcopy(anatomy.config)
    config.rope_parameters = hf_rope_parameters(anatomy, frequencies, length)
    config.max_position_embeddings = length
    if getattr(config, "original_max_position_embeddings", None):  # Phi-3's own field goes before the dictionary
        config.original_max_position_embeddings = anatomy.trained_length
    if getattr(config, "head_dim", anatomy.head_dim) is None:  # "yarn" and "longrope" multiply it
        config.head_dim = anatomy.head_dim
    return config


def as_loaded(anatomy: Anatomy) -> dict[str, Any]:
    """The model's rope_parameters before `extend` changed them."""
    extension = getattr(anatomy.decoder, RECORD, None)
    kept: Mapping[str, Any] = {} if extension is None else extension.config
    return dict(kept.get("rope_parameters", anatomy.config.rope_parameters))


def pinned(anatomy: Anatomy) -> dict[str, Any]:
    """The model's rope_parameters with the factor that they may leave to its max_position_embeddings, so that another
    length changes nothing."""
    given = as_loaded(anatomy)
    if anatomy.rope_per_type:
        return {**given, **{t: _with_factor(given[t], rope) for t, rope in anatomy.ropes.items()}}
    return _with_factor(given, anatomy.rope)


def _with_factor(given: Mapping[str, Any], rope: Rope) -> dict[str, Any]:
    implied = rope.schedule["name"] in ("yarn", "longrope") and given.get("factor") is None
    return {**given, "factor": rope.schedule["factor"]} if implied else dict(given)


def _written(
    anatomy: Anatomy, rope: Rope, given: Mapping[str, Any], frequencies: Frequencies | None, length: int
) -> dict[str, Any]:
    if frequencies is None or same(frequencies, rope.frequencies()):
        return dict(given)
    shape = {"rope_theta": rope.rope_theta}
    if "partial_rotary_factor" in given and rope.schedule["name"] != "proportional":  # there it is another thing
        shape["partial_rotary_factor"] = given["partial_rotary_factor"]
    divisors = stretch(frequencies, rope.rotary_dim, rope.rope_theta)
    kinds = {} if anatomy.model_type in LONGROPE_ONLY else _kinds(divisors.max().item(), rope.original_length)
    for schedule, options in kinds.items():
        if same(frequencies, create({"name": schedule, **_ours(options)}, rope.rotary_dim, rope.rope_theta)):
            return {"rope_type": schedule, **options, **shape}
    numbers = divisors.clamp(max=STILL).tolist()
    return {
        "rope_type": "longrope", "short_factor": numbers, "long_factor": numbers,
        "factor": max(1.0, length / rope.original_length), "attention_factor": float(frequencies.attention_factor),
        "original_max_position_embeddings": rope.original_length, **shape,
    }  # fmt: skip


def _kinds(factor: float, original_length: int) -> dict[str, dict[str, Any]]:
    """The kinds that transformers computes as posenc does, with the options most models have."""
    if not 1 < factor < STILL:
        return {"default": {}} if factor == 1 else {}
    original = {"original_max_position_embeddings": original_length}
    return {
        "linear": {"factor": factor},
        "yarn": {"factor": factor, "beta_fast": 32.0, "beta_slow": 1.0, **original},
        "llama3": {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **original},
    }


def _ours(options: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {"original_max_position_embeddings": "original_max_positions"}
    return {renamed.get(name, name): value for name, value in options.items()}


def same(one: Frequencies, other: Frequencies) -> bool:
    """Whether two schedules give the same rotations and temperature, but for what a file rounds."""
    return (
        one.inv_freq.shape == other.inv_freq.shape
        and torch.allclose(one.inv_freq, other.inv_freq, rtol=1e-9, atol=0)
        and abs(one.attention_factor - other.attention_factor) < 1e-9
    )
