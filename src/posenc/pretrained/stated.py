# SPDX-License-Identifier: Apache-2.0
"""What a configuration says of its rotation against what transformers reads, what it was stored as, and itself: nothing is
run."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from posenc.errors import InputError
from posenc.pretrained.findings import Symptom
from posenc.pretrained.guards import read_json
from posenc.pretrained.patient import Patient

ORIGINAL = "original_max_position_embeddings"
ALWAYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor", ORIGINAL}
READ: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "proportional": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    "longrope": {"factor", "attention_factor", "short_factor", "long_factor"},
}
"""rope_type -> the keys that transformers reads of it (modeling_rope_utils.py), besides those that are always there."""
REMARKS = {"finetuned"}
"""Keys that ask for nothing: YaRN's authors wrote this one to say that a model was trained under its schedule."""
STEP = 0.01
"""Share of a length, or of a factor, that is no difference."""


def stated(case: Patient) -> Symptom:
    """All that is doubtful in the rope_parameters of a model that is not extended."""
    stored = _stored(case)
    yield from _base_stated(case, stored)
    for name, said in case.parameters.items():
        where = "" if len(case.parameters) == 1 else f" of {name}"
        kind = str(said.get("rope_type", "default"))
        ignored = (
            {key for key, value in said.items() if value is not None} - ALWAYS - REMARKS - READ.get(kind, set(said))
        )
        for key in sorted(ignored - set(getattr(case.config, "ignore_keys_at_rope_validation", None) or ())):
            yield "parameter_ignored", f"{key}={said[key]} in rope_parameters{where}, whose rope_type is {kind}", None
        factor = said.get("factor")
        if kind not in READ or not _number(factor):
            continue
        if "factor" in READ[kind] and factor < 1:
            yield "factor_below_one", f"factor={factor}{where}, whose rope_type is {kind}", float(factor)
        if kind in ("yarn", "longrope"):
            yield from _temperature(said, kind, where)
            yield from _lengths(case, said, _missing_in(stored, name), where)


def _base_stated(case: Patient, stored: Mapping[str, Any]) -> Symptom:
    given = stored.get("rope_parameters")
    if not isinstance(given, Mapping) or "rope_theta" in stored:
        return
    nested = [value for value in given.values() if isinstance(value, Mapping)]
    if any("rope_theta" not in said for said in nested or [given]):
        taken = next(iter(case.parameters.values())).get("rope_theta")
        told = f"rope_parameters in {case.config.name_or_path}/config.json has no rope_theta; transformers took {taken:.10g}"
        yield "base_not_stated", told, None


def _temperature(said: Mapping[str, Any], kind: str, where: str) -> Symptom:
    given = said.get("attention_factor")
    if not _number(given):
        return
    if given <= 0:
        yield "attention_factor_impossible", f"attention_factor={given}{where}", float(given)
    elif kind == "yarn" and said["factor"] >= 1:
        formula = 0.1 * math.log(said["factor"]) + 1
        if not math.isclose(given, formula, rel_tol=STEP / 2):
            told = f"attention_factor={given}{where}, and 0.1 ln {said['factor']:g} + 1 is {formula:.4g}"
            yield "attention_factor_differs", told, float(given)


def _lengths(case: Patient, said: Mapping[str, Any], missing: bool, where: str) -> Symptom:
    """The length that a schedule stretches to against max_position_embeddings."""
    original, factor, length = said.get(ORIGINAL), float(said["factor"]), case.length
    if not _number(original) or factor <= 1:
        return
    meant = round(factor * original)
    told = f"{factor:g} times {ORIGINAL}={original:g}{where} is {meant}, and max_position_embeddings is {length}"
    if missing and original == length:
        short = f"factor={factor:g}{where} without {ORIGINAL} in config.json; max_position_embeddings is {length}"
        yield "original_length_missing", short, meant / length
    elif meant > length * (1 + STEP):
        yield "length_not_declared", told, meant / length
    elif meant * (1 + STEP) < length:
        yield "declared_longer_than_stretched", told, length / meant


def _stored(case: Patient) -> Mapping[str, Any]:
    """The configuration in the folder that the model was loaded from, as it stands there; empty where there is none."""
    folder = getattr(case.config, "name_or_path", None) or ""
    file = Path(folder) / "config.json"
    try:
        return read_json(file) if folder and file.is_file() else {}
    except (InputError, OSError, ValueError):
        return {}


def _missing_in(stored: Mapping[str, Any], name: str) -> bool:
    """Whether a stored configuration has a scaling without its original length."""
    given = stored.get("rope_parameters") or stored.get("rope_scaling")
    if not isinstance(given, Mapping) or ORIGINAL in stored:
        return False
    said = given.get(name, given)
    return isinstance(said, Mapping) and said.get(ORIGINAL) is None


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
