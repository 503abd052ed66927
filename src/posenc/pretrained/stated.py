# SPDX-License-Identifier: Apache-2.0
"""What is doubtful in a configuration alone, without weights: for `doctor`, and for a config.json without its model."""

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from posenc.pretrained.config_file import ConfigFile
from posenc.pretrained.findings import Evidence
from posenc.pretrained.models import longer_lengths, stretched_length
from posenc.pretrained.parameters import (
    ROPE_PARAMETERS,
    STEP,
    head_dim_of,
    impossible_in,
    is_number,
    rope_parameters_by_type,
)

ORIGINAL = "original_max_position_embeddings"
ALWAYS_READ = {"rope_type", "type", "rope_theta", "partial_rotary_factor", ORIGINAL, "finetuned"}
"""Keys that every type reads, and one with which YaRN's authors state that a model was trained under its schedule."""
NEUTRAL: dict[str, tuple[float | bool, ...]] = {
    "factor": (1.0,), "attention_factor": (1.0,), "attn_factor": (1.0,), "beta_fast": (32.0,), "beta_slow": (1.0,),
    "mscale": (1.0,), "mscale_all_dim": (0.0, 1.0), "truncate": (True,),
}  # fmt: skip
"""Numbers that change nothing where a program reads them under this rope_type, or that are what it takes without them."""


def impossible_numbers(config: Any) -> Evidence:
    """Numbers that `posenc.load` and `posenc.extend` refuse. config: of transformers, of the language model."""
    for why, number in impossible_in(config):
        yield "parameter_impossible", why, number


def stated(config: Any, file: ConfigFile | None) -> Evidence:
    """Doubtful rope_parameters and lengths. config: of transformers, of the language model. file: it was read from."""
    stored: Mapping[str, Any] = {} if file is None else file.raw
    if not is_number(getattr(config, "max_position_embeddings", None)):
        return
    given = stored.get("rope_parameters") or {}
    nested = [value for value in given.values() if isinstance(value, Mapping)]
    by_type = rope_parameters_by_type(config)
    if given and "rope_theta" not in stored and any("rope_theta" not in parameters for parameters in nested or [given]):
        taken = next(iter(by_type.values())).get("rope_theta")
        text = f"rope_parameters in {file and file.name} has no rope_theta; transformers took {taken:.10g}"
        yield "base_not_stated", text, None
    yield from _unread_fields(config, stored)
    scaling = given or stored.get("rope_scaling") or {}
    length = int(config.max_position_embeddings)
    for layer_type, parameters in by_type.items():
        where = f" of {layer_type}" if len(by_type) > 1 else ""
        kind = str(parameters.get("rope_type", "default"))
        if kind not in ROPE_PARAMETERS:
            continue
        yield from _unread(config, parameters, kind, where)
        if kind == "llama3" and parameters.get(ORIGINAL) == length:
            yield "llama3_without_effect", f"original_max_position_embeddings is {length} too", None
        factor = parameters.get("factor")
        if not is_number(factor):
            continue
        if "factor" in ROPE_PARAMETERS[kind] and not factor >= 1:
            yield "factor_below_one", f"factor={factor}{where}, whose rope_type is {kind}", float(factor)
        if kind in ("yarn", "longrope"):
            yield from _temperature(parameters, kind, where)
            missing = ORIGINAL not in stored and bool(scaling) and _table(scaling, layer_type).get(ORIGINAL) is None
            yield from _stretch(length, parameters, missing, where)
    yield from _other_lengths(config, file, next(iter(by_type.values())))


SPEAKS = re.compile(r"(^|_)(rope|rotary|yarn|ntk|theta|alibi|logn|interpolation)(_|$)")
"""Names of fields that speak of positions."""
WITHOUT_FINDING = ("rope_interleave",)
"""Those of them that are as they should be where transformers does not read them."""


@cache
def _code_of(configuration: str) -> str:
    """transformers' code for a model type. configuration: the module of its configuration."""
    modules = configuration, configuration.replace(".configuration_", ".modeling_"), "transformers.modeling_rope_utils"
    found = [find_spec(module) for module in modules]
    return "".join(Path(each.origin).read_text("utf-8") for each in found if each is not None and each.origin)


def _unread_fields(config: Any, stored: Mapping[str, Any]) -> Evidence:
    """Numbers of a table that transformers' tables do not have, and fields beside it of which its code for the model type has not
    even the name, unless they change nothing. How channels are paired is the type's own."""
    tables = rope_parameters_by_type(config).values()
    kinds = set(getattr(config, "layer_types", None) or [None]) if hasattr(config, "hidden_size") else ()
    rotated = (int(head_dim_of(config, kind) * (x.get("partial_rotary_factor") or 1)) for x in tables for kind in kinds)
    nothing = (None, False, 1, "default", *(table.get("rope_theta") for table in tables), *rotated)
    flat = {
        "rope_theta": stored.get("rope_theta"),
        **(stored.get("rope_parameters") or stored.get("rope_scaling") or {}),
    }
    if not any(isinstance(value, Mapping) for value in flat.values()):
        for key, value in flat.items():
            if value not in nothing and key not in ("type", "rope_type") and all(t.get(key) != value for t in tables):
                text = f"{key}={value}, which transformers' {config.model_type} does not take"
                yield "parameter_ignored", text, None
    named = (key for key in sorted(stored) if SPEAKS.search(key) and key not in WITHOUT_FINDING)
    for key in named:
        acts = stored[key] is True or stored[key] not in nothing
        if acts and not re.search(rf"\b{re.escape(key)}\b", _code_of(type(config).__module__)):
            text = f"{key}={stored[key]!r}, which transformers' {config.model_type} does not read"
            yield "parameter_ignored", text, None


def edited(config: Any, file: ConfigFile) -> Evidence:
    """max_position_embeddings, raised since a model was loaded from a file without a schedule that stretches."""
    length, written = config.max_position_embeddings, file.raw.get("max_position_embeddings")
    tables = rope_parameters_by_type(config).values()
    stretched = any(each.get("rope_type") not in (None, "default", "llama3") for each in tables)
    if is_number(length) and is_number(written) and written < length and not stretched:
        yield "length_edited", f"max_position_embeddings is {length}, and {written} in {file.name}", length / written


def _table(scaling: Mapping[str, Any], layer_type: str | None) -> Mapping[str, Any]:
    table = scaling.get(layer_type or "")
    return table if isinstance(table, Mapping) else scaling


def _unread(config: Any, parameters: Mapping[str, Any], kind: str, where: str) -> Evidence:
    """Keys that neither the rope_type nor the model type's module reads."""
    read = ALWAYS_READ | {*ROPE_PARAMETERS[kind]}
    read |= set(getattr(config, "ignore_keys_at_rope_validation", None) or ())
    if kind == "longrope":  # which vLLM and SGLang read in place of attention_factor
        factor = parameters.get("attention_factor")
        read |= {key for key in ("short_mscale", "long_mscale") if parameters.get(key) == factor}
    for key in sorted(key for key, value in parameters.items() if value is not None and key not in read):
        value = parameters[key]
        text = f"{key}={value} in rope_parameters{where}, whose rope_type is {kind}"
        neutral = value in NEUTRAL.get(key, ())
        if key == "attn_factor" and kind == "yarn" and is_number(value):
            usual = parameters.get("attention_factor") or 0.1 * math.log(max(parameters.get("factor") or 1, 1)) + 1
            text += f"; YaRN's own code multiplies {usual:.4f} by it: write attention_factor={value * usual:.4g} in its place"
        yield ("parameter_unread" if neutral else "parameter_ignored"), text, None


def _temperature(parameters: Mapping[str, Any], kind: str, where: str) -> Evidence:
    given, factor = parameters.get("attention_factor"), parameters["factor"]
    if kind == "yarn" and is_number(given) and factor >= 1 and given != 1:  # 1: meant to be off
        formula = 0.1 * math.log(factor) + 1
        if not math.isclose(given, formula, rel_tol=STEP / 2):
            text = f"attention_factor={given}{where}, and 0.1 ln {factor:g} + 1 is {formula:.4g}"
            yield "attention_factor_differs", text, float(given)


def _stretch(length: int, parameters: Mapping[str, Any], missing: bool, where: str) -> Evidence:
    """The stretched length against max_position_embeddings. missing: the file does not state the original length."""
    original, factor = parameters.get(ORIGINAL), float(parameters["factor"])
    if not is_number(original) or not factor > 1:
        return
    stretched = round(factor * original)
    text = f"{factor:g} times {ORIGINAL}={original:g}{where} is {stretched}, and max_position_embeddings is {length}"
    if missing and original == length:
        text = f"factor={factor:g}{where} without {ORIGINAL} in config.json; max_position_embeddings is {length}"
        yield "original_length_missing", text, stretched / length
    elif stretched > length * (1 + STEP):
        yield "length_not_declared", text, stretched / length
    elif stretched * (1 + STEP) < length:
        yield "declared_longer_than_stretched", text, length / stretched


def _other_lengths(config: Any, file: ConfigFile | None, parameters: Mapping[str, Any]) -> Iterator[Any]:
    """Fields that state a longer length than max_position_embeddings."""
    length = int(config.max_position_embeddings)
    where = "the configuration" if file is None else file.name
    found = [(where, *each) for each in longer_lengths(config if file is None else file.raw, length)]
    for where, name, other in found:
        text = f"{where} also states {name}={other:g}, and max_position_embeddings is {length}"
        if stretched_length(config, parameters) == other:
            text += f"; that is {parameters['factor']:g} times it, by which positions are divided"
        yield "longer_length_stated", text, other / length
