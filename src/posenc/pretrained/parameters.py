# SPDX-License-Identifier: Apache-2.0
"""The rope_parameters of a configuration of transformers: what each rope_type reads, and numbers that cannot be.

Every comparison is written so that NaN fails it: JSON of Python reads NaN and Infinity.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from posenc.errors import InputError, shown, unknown

ROPE_PARAMETERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "proportional": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("factor", "attention_factor", "short_factor", "long_factor"),
}
"""rope_type -> the keys of config.rope_parameters that transformers reads for it (modeling_rope_utils.py), besides those
that every type has."""

NEEDED: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
"""rope_type -> keys without which transformers fails."""
STEP = 0.01
"""Share of a length, or of a factor, that is no difference."""
NO_LIMIT = 10**9
"""A stated length that is none, as transformers' 10^30 for a tokenizer without a limit."""
LARGEST = 2.0**24
"""Of a factor: the distance up to which positions are distinct in float32."""
POSITIVE = ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor",
            "attn_factor", "short_mscale", "long_mscale", "original_max_position_embeddings")  # fmt: skip
NUMBERS = frozenset(POSITIVE) | {"partial_rotary_factor", "mscale", "mscale_all_dim", "truncate"}
"""Keys that hold no list and no object."""
RISING = ("low_freq_factor", "high_freq_factor", 1.0, 4.0), ("beta_slow", "beta_fast", 1.0, 32.0)
"""A key whose number is not above that of another, and what both are where they are not stated."""

WINDOWS = ("sliding_window", "attention_chunk_size")
"""Fields beside the tables: how many keys a query sees."""

Impossible = tuple[str, str, float | None]
"""A key with its value, what it must be, and the number."""


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def impossible(parameters: Mapping[str, Any], pairs: int | None = None) -> Iterator[Impossible]:
    """Numbers in the rope_parameters of a layer type with which no model was trained.

    pairs: rotated pairs of channels; None: they are not known.
    """
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ROPE_PARAMETERS:
        return
    for key in ("rope_theta", *NEEDED.get(kind, ())):
        if parameters.get(key) is None:
            must = "must be a number above 0" if key == "rope_theta" else f"rope_type {kind!r} needs it"
            yield f"{key}={parameters.get(key)}", must, None
    for key, value in parameters.items():
        if value is None or key in ("rope_type", "type"):
            continue
        if isinstance(value, list | tuple | Mapping):
            if key in NUMBERS:
                yield f"{key}={shown(value)}", "must be a number", None
            continue
        if isinstance(value, bool) and key not in POSITIVE:
            continue
        if not is_number(value):
            yield f"{key}={value!r}", "write a number, without quotes", None
        elif key in POSITIVE and not 0 < value < math.inf:
            yield f"{key}={value}", "must be a number above 0", float(value)
        elif not math.isfinite(value):
            yield f"{key}={value}", "must be a finite number", float(value)
        elif key in POSITIVE and key != "rope_theta" and not 1 / LARGEST <= value <= LARGEST:
            yield f"{key}={value}", "must be between 2^-24 and 2^24", float(value)
        elif key == "partial_rotary_factor" and not 0 < value <= 1:
            yield f"{key}={value}", "must be above 0 and at most 1", float(value)
    for key in ("short_factor", "long_factor"):
        yield from _impossible_list(key, parameters.get(key), pairs if kind == "longrope" else None)
    for low, high, least, most in RISING:
        one, other = parameters.get(low) or least, parameters.get(high) or most
        if is_number(one) and is_number(other) and one > other:
            yield f"{high}={other:g}", f"must not be below {low}, {one:g}; they are swapped", float(other)


def _impossible_list(key: str, value: Any, pairs: int | None) -> Iterator[Impossible]:
    if value is None:
        return
    if not isinstance(value, list | tuple):
        yield f"{key}={value!r}", "must be a list of numbers", None
        return
    for number in value:
        if not is_number(number) or not 0 < number < math.inf:
            yield f"{number!r} in {key}", "must be a number above 0", float(number) if is_number(number) else None
            return
    if pairs is not None and len(value) != pairs:
        yield f"{key} of {len(value)} numbers", f"give one for each of the {pairs} rotated pairs", float(len(value))


def unknown_type(parameters: Mapping[str, Any], where: str = "") -> str:
    """A sentence on a rope_type that transformers does not have; empty: it has it."""
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind in ROPE_PARAMETERS:
        return ""
    what, _, known = str(unknown("rope_type", kind, ROPE_PARAMETERS)).partition(": ")
    return f"{what} in rope_parameters{where}: {'it is called longrope now' if kind == 'su' else known}"


def impossible_sentences(
    parameters: Mapping[str, Any], pairs: int | None = None, where: str = ""
) -> Iterator[tuple[str, float | None]]:
    """`impossible` as sentences, with the number."""
    for what, must, number in impossible(parameters, pairs):
        yield f"{what} in rope_parameters{where}: {must}", number


def impossible_in(config: Any) -> Iterator[tuple[str, float | None]]:
    """`impossible` and `unknown_type` of each layer type of a configuration of transformers, as sentences; and the number. Windows
    without a key too."""
    fields = vars(config)
    length = fields.get("max_position_embeddings")
    if is_number(length) and not length >= 1:
        yield f"max_position_embeddings={length}: must be at least 1", float(length)
    for name in WINDOWS:
        value = fields.get(name)
        if is_number(value) and not value >= 1 and fields.get("use_sliding_window", True):
            yield f"{name}={value}: must be at least 1, or null where queries see all keys", float(value)
    if getattr(config, "rope_parameters", None) is None:
        return  # it has no rotation
    by_type = rope_parameters_by_type(config)
    if flat := _flat(config.rope_parameters, by_type):
        yield (
            f"{', '.join(f'{key}={shown(value)}' for key, value in flat.items())} in rope_parameters: transformers' "
            f"{config.model_type} reads its tables by layer type alone ({', '.join(map(str, by_type))}); write them there",
            None,
        )
    for layer_type, parameters in by_type.items():
        where = f" of {layer_type}" if len(by_type) > 1 else ""
        if sentence := unknown_type(parameters, where):
            yield sentence, None
        yield from impossible_sentences(parameters, _pairs(config, layer_type, parameters), where)


def _flat(parameters: Mapping[str, Any], by_type: Mapping[str | None, Mapping[str, Any]]) -> dict[str, Any]:
    """What stands beside the tables by layer type and says something else than these."""
    if None in by_type:
        return {}
    beside = {key: value for key, value in parameters.items() if key not in by_type and value is not None}
    return {key: value for key, value in beside.items() if any(table.get(key) != value for table in by_type.values())}


def _pairs(config: Any, layer_type: str | None, parameters: Mapping[str, Any]) -> int | None:
    """Rotated pairs of channels; None: the configuration states no width of a head."""
    part, latent = parameters.get("partial_rotary_factor"), vars(config).get("qk_rope_head_dim")
    try:
        width = latent or head_dim_of(config, layer_type) * (part if is_number(part) and 0 < part <= 1 else 1.0)
    except (AttributeError, ValueError, RuntimeError):  # no such fields, or layers of one type whose heads differ
        return None
    return int(width) // 2


def check_parameters(config: Any) -> None:
    """Refuse rope_parameters at which transformers fails elsewhere, or computes no frequencies of a model.

    Raises:
        InputError: an unknown rope_type, text instead of a number, a number that cannot be (NaN, infinite, 0, negative, one of
            a pair that is swapped), or a list of factors of another length than there are pairs.
    """
    for why, _ in impossible_in(config):
        raise InputError(why)


def head_dim_of(config: Any, layer_type: str | None = None) -> int:
    """Width of an attention head, which some configurations leave to be computed, and which differs by layer type in Gemma 4."""
    if layer_type in (types := getattr(config, "layer_types", None) or ()) and hasattr(config, "per_layer_config"):
        config = config.per_layer_config[types.index(layer_type)]  # of a type they may differ
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def score_factor(parameters: Mapping[str, Any]) -> float:
    """Of the scores in latent attention that is scaled: the square of 0.1 mscale_all_dim ln(factor) + 1."""
    mscale, factor = parameters.get("mscale_all_dim") or 0.0, parameters.get("factor") or 1.0
    applies = factor > 1 and parameters.get("rope_type", "default") != "default"
    return float(0.1 * mscale * math.log(factor) + 1) ** 2 if applies else 1.0


def rope_parameters_by_type(config: Any) -> dict[str | None, Mapping[str, Any]]:
    """config.rope_parameters by layer type; under None where all layers share them."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if not isinstance(parameters, Mapping):
        return {}
    nested = {name: value for name, value in parameters.items() if isinstance(value, Mapping)}
    return dict(nested) or {None: parameters}
