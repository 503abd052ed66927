# SPDX-License-Identifier: Apache-2.0
"""What each program computes from a configuration, by its rules.

They follow from the code of transformers 5 (which is run), transformers 4.57.6, vLLM 0.33.0 and SGLang 0.5.23 (whose model
classes benchmarks/conform_peers/served.py runs) and llama.cpp as of llama-cpp-python 0.3.36 (its converter and
its loader); benchmarks/six_programs.md has what was compared.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from posenc import frequencies
from posenc.errors import InputError, described, listed
from posenc.pretrained.config_file import FULL, SLIDING, ConfigFile
from posenc.pretrained.families import FAMILIES, KNOWN
from posenc.pretrained.models import schedule_of
from posenc.pretrained.parameters import NEEDED, ROPE_PARAMETERS, STEP, is_number, rope_parameters_by_type, score_factor

ALL = "all layers"
TRANSFORMERS, TRANSFORMERS_4, VLLM, LLAMA_CPP = "transformers 5", "transformers 4", "vLLM", "llama.cpp"
NOTE = "note"
"""Key of what llama.cpp's converter leaves out, beside the keys that it writes."""
TOLERANCE = 1e-5
"""Relative difference of frequencies that is rounding in float32."""

SIGHT = re.compile("Vision|Audio|Speech")
"""Rotary modules of other parts than the language model."""
V4_BASES: dict[str, float] = {"mixtral": 1e6, "gemma3_text": 1e6, "smollm3": 2e6, "gpt_oss": 150000.0}
"""Bases of transformers 4 for a configuration without one, where they are not 10000."""
V4_FRACTIONS: dict[str, float] = {"phi": 0.5, "phi3": 1.0, "stablelm": 0.25, "glm": 0.5, "glm4": 0.5, "gpt_neox": 0.25}
"""Shares of a head that transformers 4 rotates where a configuration states none; other model types rotate complete heads."""
V4_WIDTHLESS = ("mistral", "mixtral")
"""Model types of transformers 4 with a head_dim of None where a configuration states none, of which yarn and dynamic take a part."""
V4_GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
              "original_max_position_embeddings": 4096}  # fmt: skip
"""The rope_scaling of transformers 4 for gpt_oss, where a configuration has none."""
VLLM_BACKEND = ("ministral", "phi", "smollm3", "starcoder2", "seed_oss", "gpt_neox", "olmo", "olmo2", "glm")
SGLANG_BACKEND = ("ministral", "smollm3", "seed_oss", "gpt_neox", "glm")
"""Model types that the two have no class for: they run transformers' modules."""
SGLANG_UNSCALED = ("mixtral", "gemma", "gemma2", "starcoder2", "granitemoe", "olmo", "stablelm")
"""Model types whose class in SGLang passes the base alone to its factory."""
SGLANG_PARTIAL = ("phi3", "glm4")
"""Model types whose class in SGLang finds partial_rotary_factor in a configuration of transformers 5."""
ARCHITECTURES: dict[str, str] = KNOWN["architectures"]
"""config.model_type -> architecture in a GGUF file, where that is known."""
RULED = (*ARCHITECTURES, "ministral")
"""Model types whose rules in the programs beside transformers 5 were read."""
DUAL_CHUNK = "dual_chunk_attention_config"
BETAS = ("grok", "mistral3")
"""Architectures for which llama.cpp reads the betas of yarn from a file."""
LOG_MULTIPLIER = ("deepseek2", "mistral3", "mistral4")
"""Architectures for which llama.cpp reads yarn_log_multiplier."""
BARE = ("gemma", "gemma2", "phi", "stablelm", "glm", "gpt_neox")
"""Model types whose converter in llama.cpp writes nothing of the rotation but how many channels rotate (run)."""
LLAMA3_ARCHITECTURES = ("llama", "mistral", "mixtral", "smollm3", "granite", "granitemoe")
"""Model types whose converter in llama.cpp writes the divisors of "llama3" into the file."""


class ProgramFails(InputError):
    """A program does not run the configuration, and why."""


class NotKnown(InputError):
    """posenc does not know what a program computes, and why."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What a program computes in the layers of one type."""

    program: str
    layers: str
    base: float
    """rope_theta"""
    schedule: str
    """rope_type that it applies, which may not be the one that the file states"""
    rotary_dim: int
    """Channels of a head that rotate"""
    attention_factor: float
    """On cos and sin, so its square is on scores"""
    inv_freq: Tensor = field(repr=False)
    """(rotary_dim / 2,) float64, for the sequence length that was asked for"""
    note: str = ""
    """What it does not read"""
    unrotated: tuple[int, ...] = ()
    """Numbers of layers without rotation where others have it"""
    known_by: str = "rules"
    """"run", or posenc's "rules" of the program"""

    @property
    def turning(self) -> int:
        """Channels whose frequency is not 0 (Gemma 4 has others among its pairs)."""
        return 2 * int(torch.count_nonzero(self.inv_freq))

    def same(self, other: "Reading") -> bool:
        """Whether both rotate alike, but for rounding."""
        return (
            self.inv_freq.shape == other.inv_freq.shape
            and self.unrotated == other.unrotated
            and torch.allclose(self.inv_freq, other.inv_freq, rtol=TOLERANCE, atol=0)
            and math.isclose(self.attention_factor, other.attention_factor, rel_tol=TOLERANCE)
        )


Found = Iterator[Reading]


def bounds(reading: Reading, length: int, layers: int | None) -> list[str]:
    """Whether a base is large enough for inputs of a length, and not too large, by what its slowest pair does: the kinds of bounds of
    Liu 2026 (arXiv 2602.10959: aliasing, stability over the layers, precision), each for the condition that it states, and that of
    Men et al. 2024 (arXiv 2405.14591)."""
    turning = reading.inv_freq[reading.inv_freq > 0]
    pairs, slowest = len(reading.inv_freq), float(turning.min()) if len(turning) else 0.0
    if pairs < 2 or slowest == 0:
        return []
    power = pairs / (pairs - 1)

    def base(angle: float) -> float:  # at which the slowest pair turns by an angle a token, all else as it is
        return reading.base * float(slowest / angle) ** power

    depth = layers or 1
    limits = {
        "the slowest pair rotates less than once": base(2 * math.pi / length),
        f"its cosine, multiplied over {depth} layers, stays above 1/2": base(math.acos(0.5 ** (1 / depth)) / length),
    }
    zero = frequencies.schedules.first_negative(reading.inv_freq)
    lines = [f"rope_theta {reading.base:.6g} in {reading.layers}, for {length} tokens:"]
    for what, least in limits.items():
        lines.append(f"  at least {least:.3g}, so that {what}: {'met' if reading.base >= least else 'NOT met'}")
    lines.append(f"  the sum of cosines is first negative at {zero or 'more than 2^20'} tokens (Men et al.)")
    most, half = (base(torch.finfo(dtype).eps) for dtype in (torch.float32, torch.bfloat16))
    met = "met" if reading.base <= most else "NOT met"
    lines.append(
        f"  at most {most:.3g}, so that a step of the slowest pair is no rounding of float32 beside 1: {met} ({half:.3g} if a program keeps "
        "angles in bfloat16)"
    )
    return lines


def _reading(
    layers: str, base: Any, schedule: Mapping[str, Any], rotary_dim: int, factor: float | None = None, note: str = ""
) -> Reading:
    """factor: the attention factor, where it is not the schedule's."""
    found = _created(schedule, rotary_dim, float(base))
    attention = found.attention_factor if factor is None else factor
    return Reading("", layers, float(base), str(schedule["name"]), rotary_dim, float(attention), found.inv_freq, note)


def _created(schedule: Mapping[str, Any], rotary_dim: int, base: float) -> frequencies.Frequencies:
    """Frequencies, also by a linear factor below 1, which every program divides by."""
    if schedule["name"] == "linear" and 0 < schedule["factor"] < 1:
        plain = frequencies.default(rotary_dim, base=base)
        return frequencies.Frequencies(plain.inv_freq / schedule["factor"], plain.attention_factor)
    try:
        return frequencies.create(schedule, rotary_dim, base=base)
    except InputError as error:
        raise NotKnown(f"no program is known to run these numbers: {error}") from error


def _tables(config: ConfigFile) -> dict[str | None, Mapping[str, Any]]:
    """rope_parameters of the layer types that some layer has.

    Raises:
        ProgramFails: transformers refuses the configuration."""
    try:
        hf = config.hf
    except InputError as error:
        raise ProgramFails(str(error)) from error
    types, tables = getattr(hf, "layer_types", None), rope_parameters_by_type(hf)
    tables = {kind: table for kind, table in tables.items() if table is not None}  # None: these layers do not rotate
    return {kind: table for kind, table in tables.items() if kind in (types or ())} or tables


def _transformers5(config: ConfigFile, length: int) -> Found:
    tables, hf = _tables(config), config.hf
    if not any(tables.values()):
        raise ProgramFails("its model has no rotary positions")
    kind = _rotary_class(hf)
    try:
        module = kind(hf)
        turned = {layers: _turned(module, layers, table, length) for layers, table in tables.items()}
        bases = {layers: float(table["rope_theta"]) for layers, table in tables.items()}
    except Exception as error:  # transformers raises errors of many types here
        by_type = isinstance(error, KeyError) and error.args[0] in (FULL, SLIDING)
        why = f"it fails: {described(error)}"
        raise ProgramFails(
            "its module reads tables by layer type alone: write them there" if by_type else why
        ) from error
    for layers, table in tables.items():
        inv_freq, factor = turned[layers]
        notes = []
        if beta := table.get("llama_4_scaling_beta"):
            original = table.get("original_max_position_embeddings")
            notes.append(f"its attention multiplies queries by 1 + {beta:g} ln(1 + floor(position / {original})) too")
        scores = score_factor(table) if "kv_lora_rank" in vars(hf) else 1.0
        if scores != 1:
            notes.append(f"its attention multiplies scores by {scores:.4g} too (mscale_all_dim)")
        yield Reading("", layers or ALL, bases[layers], str(table.get("rope_type", "default")), 2 * inv_freq.numel(),
                      factor, inv_freq, "; ".join(notes), config.unrotated(), "run")  # fmt: skip


def _rotary_class(hf: Any) -> Any:
    """transformers' rotary module of a model type."""
    try:
        module = import_module(type(hf).__module__.replace(".configuration_", ".modeling_"))
    except ImportError as error:
        raise NotKnown(f"transformers has no model for its configuration here: {described(error)}") from error
    found = [kind for name, kind in vars(module).items() if name.endswith("RotaryEmbedding") and isinstance(kind, type)]
    takes = {kind: inspect.signature(kind).parameters.get("config") for kind in found}
    of_type = [kind for kind, config in takes.items() if config is not None and config.annotation is type(hf)]
    others = [kind for kind, config in takes.items() if config is not None and not SIGHT.search(kind.__name__)]
    if not of_type + others:
        raise NotKnown(f"transformers' {hf.model_type} has no rotary module that a configuration makes")
    return (of_type + others)[0]


def _turned(module: Any, layers: str | None, table: Mapping[str, Any], length: int) -> tuple[Tensor, float]:
    """Inverse frequencies, (pairs,) in float64, and the factor on cos and sin for a text of a length: from what a module
    computes at position 1, in float32, beside its buffer where that is the same."""
    positions = torch.tensor([[0, 1, max(length, 2) - 1]])
    if table.get("mrope_section"):
        positions = positions.expand(3, 1, -1)
    by_type = {} if layers is None else {"layer_type": layers}
    with torch.no_grad():
        out = module(torch.zeros(1, 1, 1), positions, **by_type)
    cos, sin = (out.real, out.imag) if isinstance(out, Tensor) else out
    cos, sin = (each.reshape(-1, 3, each.shape[-1])[-1, 1].double() for each in (cos, sin))
    buffer = getattr(module, f"{layers}_inv_freq" if layers else "inv_freq").double()
    pairs = buffer.numel()
    if cos.numel() == 2 * pairs:
        halves = torch.equal(cos[:pairs], cos[pairs:]) and torch.equal(sin[:pairs], sin[pairs:])
        cos, sin = (each[:pairs] if halves else each[::2] for each in (cos, sin))
    factor = float((cos[0].square() + sin[0].square()).sqrt())
    scaling = float(getattr(module, f"{layers}_attention_scaling" if layers else "attention_scaling", 1.0))
    factor = scaling if math.isclose(scaling, factor, rel_tol=1e-6) else factor
    angle = torch.atan2(sin, cos)
    same = all(
        torch.allclose(of * factor, found, atol=1e-6) for of, found in ((buffer.cos(), cos), (buffer.sin(), sin))
    )
    return (buffer if same else angle), factor


def _require_rules(config: ConfigFile) -> None:
    if config.model_type not in RULED:
        raise NotKnown(f"posenc does not have its rules for the model type {config.model_type!r}")
    if not config.states_language_model:
        raise NotKnown("the file does not state the language model, and its values for it are not known")


def _transformers4(config: ConfigFile, length: int) -> Found:
    raw = config.raw
    _require_rules(config)
    neox = config.model_type == "gpt_neox"
    base = raw.get("rotary_emb_base" if neox else "rope_theta", V4_BASES.get(config.model_type, 10000.0))
    fraction = raw.get("rotary_pct" if neox else "partial_rotary_factor", V4_FRACTIONS.get(config.model_type, 1.0))
    scaling = raw.get("rope_scaling", V4_GPT_OSS if config.model_type == "gpt_oss" else None)
    if scaling is not None and scaling.get("rope_type", scaling.get("type")) is None:
        raise ProgramFails("it fails: KeyError: its rope_scaling has no rope_type")
    scaling = scaling or {}
    if fraction != 1 and config.model_type not in V4_FRACTIONS:
        raise ProgramFails(
            "it fails: its attention rotates complete heads, and partial_rotary_factor gives cos and sin of a part"
        )
    rotary_dim, ignored = int(config.head_dim * fraction), ""
    if "rope_parameters" in raw:
        ignored = "does not read rope_parameters, which transformers 5 writes"
    if config.model_type == "gemma3_text":
        local = raw.get("rope_local_base_freq", 10000.0)
        yield _reading(SLIDING, local, {"name": "default"}, rotary_dim, None, ignored)
    layers = FULL if config.model_type == "gemma3_text" else ALL
    original = raw.get("original_max_position_embeddings")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("yarn", "dynamic") and config.model_type in V4_WIDTHLESS and raw.get("head_dim") is None:
        raise ProgramFails(
            f"it fails: {kind} takes a part of head_dim, which is None in its {config.model_type} unless stated"
        )
    fields = {"olmo": {"type", "factor"}, "olmo2": {"type", "factor"}, "phi3": {"type", "short_factor", "long_factor"}}
    kinds = ("longrope", "su", "yarn") if config.model_type == "phi3" else ("linear", "dynamic")
    wanted = fields.get(config.model_type)  # at others their configuration class raises
    if scaling and wanted and (scaling.keys() != wanted or scaling["type"] not in kinds):
        what = f"its {config.model_type} takes {listed(sorted(wanted))} in rope_scaling and no other key"
        raise ProgramFails(f"{what}, type {listed(kinds)}")
    if config.model_type == "phi3" and kind in ("su", "yarn"):
        kind = "longrope"
    if kind == "longrope" and not original:
        scaling = {**scaling, "original_max_position_embeddings": config.length}
    schedule = _schedule(kind, scaling, config, length, original if kind == "longrope" else None)
    yield _reading(layers, base, schedule, rotary_dim, None, ignored)


def _schedule(
    kind: str, given: Mapping[str, Any], config: ConfigFile, length: int, original: int | None = None
) -> dict[str, Any]:
    """A table of rope_parameters as a schedule for a text of a length. original: the length before the stretch, where a field
    beside the table states it; the two lengths then give longrope's factor."""
    kind = "longrope" if kind == "su" else kind
    if kind not in ROPE_PARAMETERS:
        raise ProgramFails(f"it has no rope_type {kind!r}")
    for key in (*NEEDED.get(kind, ()), *(("factor",) if kind == "yarn" else ())):
        if given.get(key) is None:
            raise ProgramFails(f"it fails: KeyError: {key!r}" if key not in given else f"it fails: {key} is null")
    stated = {key: value for key, value in given.items() if key != "factor" or not original}
    start = int(original or given.get("original_max_position_embeddings") or config.length)
    schedule = schedule_of({**stated, "rope_type": kind}, start, config.length)
    longest = max(length, config.length) if kind == "dynamic" else length
    return schedule | ({"length": longest} if "length" in schedule else {})


Served = tuple[dict[str, Any], float | None, str]
"""A table of rope_parameters as it is applied, the attention factor where it is not the schedule's, and what is not read."""


def _served(config: ConfigFile, length: int, adapt: Callable[[str, dict[str, Any]], Served]) -> Found:
    """vLLM and SGLang: transformers 5's configuration, rotated by their modules. adapt: what differs in a table."""
    _require_rules(config)
    for kind, parameters in _tables(config).items():
        given, factor, note = adapt(kind or ALL, dict(parameters))
        name = given.get("rope_type", "default")
        fraction = 1.0 if name == "proportional" else given.get("partial_rotary_factor") or 1.0
        rotary_dim = int(_head_dim(config) * fraction)
        schedule = _schedule(name, given, config, given.get("at_length", length))
        yield _reading(kind or ALL, given.get("rope_theta") or 10000.0, schedule, rotary_dim, factor, note)


def _head_dim(config: ConfigFile) -> int:
    return int(getattr(config.hf, "head_dim", None) or config.head_dim)


def _longrope(config: ConfigFile, given: dict[str, Any], length: int, notes: list[str]) -> Served:
    """By vLLM's and SGLang's class, whose factor is that of the lengths, whatever attention_factor says, unless the mscales are given.
    length: tokens for which it takes the factors of the pairs."""
    if FAMILIES[config.model_type].layout == "interleaved":
        raise ProgramFails("its longrope is for models that pair channels across halves")
    if given.get("attention_factor") is not None:
        notes = [*notes, "does not read attention_factor of longrope"]
    original = given.get("original_max_position_embeddings") or config.length
    scale = config.length / original
    stated = given.get("long_mscale" if length > original else "short_mscale")
    factor = float(stated or (1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(original))))
    return {**given, "at_length": length}, factor, "; ".join(notes)


def _as_transformers5(config: ConfigFile, length: int, note: str = "") -> Found:
    """Of a program that runs the module."""
    for reading in _transformers5(config, length):
        yield replace(reading, known_by="rules", note=note)


NO_CLASS = "has no class for the model type, and runs transformers' module"


def _require_one_rotation(config: ConfigFile) -> None:
    """vLLM and SGLang read dual_chunk_attention_config (Qwen2.5-1M), which transformers and llama.cpp do not."""
    if config.model_type in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe") and config.raw.get(DUAL_CHUNK):
        raise NotKnown(f"it computes other distances beyond a chunk, by {DUAL_CHUNK}, which was not tried")


def _vllm(config: ConfigFile, length: int) -> Found:
    _require_one_rotation(config)
    if config.model_type in VLLM_BACKEND:
        yield from _as_transformers5(config, length, NO_CLASS)
        return

    def adapt(kind: str, given: dict[str, Any]) -> Served:
        name = given.get("rope_type", "default")
        if config.model_type == "gpt_oss":
            keys = ("rope_theta", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
            if missing := [key for key in keys if key not in given]:
                raise ProgramFails(f"it fails: KeyError: {missing[0]!r}")
            truncate = given.get("truncate", True)
            return {"rope_type": "yarn", "truncate": truncate, **{key: given[key] for key in keys}}, None, ""
        if name == "longrope":
            note = "takes longrope's factors for max_model_len tokens, whatever the text's length"
            return _longrope(config, given, config.length, [note] if length < config.length else [])
        # cos and sin of yarn end there, from which it also derives max_model_len
        times, original = given.get("factor"), given.get("original_max_position_embeddings")
        if name == "yarn" and is_number(times) and is_number(original) and times * original * (1 + STEP) < length:
            what = "factor times original_max_position_embeddings of yarn"
            raise ProgramFails(f"it takes at most {round(times * original)} tokens, {what}")
        if name == "dynamic" and "alpha" not in given and "max_trained_positions" not in given:
            note = "scales dynamic by max_trained_positions, which the file lacks: no stretch at any length"
            return {**given, "rope_type": "default"}, None, note
        return given, None, ""

    yield from _served(config, length, adapt)


def _sglang(config: ConfigFile, length: int) -> Found:
    _require_one_rotation(config)
    if config.model_type in SGLANG_BACKEND:
        yield from _as_transformers5(config, length, NO_CLASS)
        return
    if config.model_type == "phi":
        raise ProgramFails("its class reads partial_rotary_factor of the configuration, which transformers 5 has moved")
    tables = _tables(config)
    if config.model_type == "gemma3_text":  # by transformers' functions, without an exchange of longrope's factors
        short = any(table.get("rope_type") == "longrope" for table in tables.values())
        for reading in _transformers5(config, 1 if short else length):
            name = reading.schedule
            note = "" if name == "default" else f"on CPUs with AMX it applies no {name} to {reading.layers}"
            yield replace(reading, known_by="rules", note=note)
        return
    if None not in tables:
        raise ProgramFails("its class for the model type reads no tables by layer type")

    def adapt(kind: str, given: dict[str, Any]) -> Served:
        name, factor = given.get("rope_type", "default"), None
        notes = []
        if config.model_type not in SGLANG_PARTIAL and (given.pop("partial_rotary_factor", None) or 1.0) != 1.0:
            notes.append("does not read partial_rotary_factor here, and rotates complete heads")
        if config.model_type in SGLANG_UNSCALED and name != "default":
            notes.append(f"applies no {name} to the model type")
            return {**given, "rope_type": "default"}, None, "; ".join(notes)
        if name == "yarn":
            if given.pop("attention_factor", None) is not None:
                notes.append("does not read attention_factor of yarn")
            usual = frequencies.create(_schedule(name, given, config, length), _head_dim(config), base=10000.0)
            factor = usual.attention_factor * given.get("attn_factor", 1.0)
        elif name == "longrope":
            notes.append(
                "takes longrope's factors for the longest text of a batch, beyond the original length by two tokens"
            )
            return _longrope(config, given, max(length - 1, 1), notes)
        elif name == "dynamic" and "alpha" not in given:
            notes.append("takes dynamic's base for factor times the length, at every length")
            given["at_length"] = int(config.length * given["factor"])
        return given, factor, "; ".join(notes)

    yield from _served(config, length, adapt)


def _llama_cpp(config: ConfigFile, length: int) -> Found:
    header = config.gguf if config.gguf is not None else _converted(config)
    yield from header_readings(header, config.head_dim, config.length)


def header_readings(header: Mapping[str, Any], head_dim: int, context: int) -> Found:
    """What llama.cpp makes of a GGUF file. header: its keys, and the tensors rope_freqs.weight and rope_factors_*.weight as
    lists. head_dim, context: where the file does not state them."""
    name = header["general.architecture"]

    def key(text: str, default: Any) -> Any:
        value = header.get(f"{name}.{text}", default)
        if value is not None and not isinstance(default, str) and not is_number(value):
            raise ProgramFails(f"{text}={value!r}: it takes a number")
        return value

    context = int(key("context_length", context))
    dim = int(key("rope.dimension_count", 0) or key("attention.key_length", head_dim))
    base, kind = float(key("rope.freq_base", 10000.0)), key("rope.scaling.type", "linear")
    factor = float(key("rope.scaling.factor", 0.0) or key("rope.scale_linear", 0.0)) or 1.0
    original = int(key("rope.scaling.original_context_length", context))
    attention = stated = float(key("rope.scaling.attn_factor", 1.0))
    notes = [str(header[NOTE])] if header.get(NOTE) else []
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise ProgramFails(f"rope.scaling.type={kind!r}: it has none of that name")
    divisors = header.get("rope_freqs.weight")
    if divisors is None:
        which = "long" if context > original else "short"
        divisors = header.get(f"rope_factors_{which}.weight")
        if divisors is not None and context > original and divisors != header.get("rope_factors_short.weight"):
            notes.append(
                f"takes the long factors for every text once its context (-c) exceeds {original}, here for {context}"
            )
    schedule: dict[str, Any] = {"name": "default"}
    if kind == "yarn":
        usual_betas = {"beta_fast": 32.0, "beta_slow": 1.0}
        betas = {beta: key(f"rope.scaling.yarn_{beta}", usual) for beta, usual in usual_betas.items()}
        if name not in BETAS and betas != usual_betas:
            notes.append(f"reads no betas of yarn from files of {name}, and takes 32 and 1")
            betas = usual_betas
        schedule = {"name": "yarn", "factor": factor, "original_max_positions": original, **betas}
        log_multiplier = float(key("rope.scaling.yarn_log_multiplier", 0.0)) if name in LOG_MULTIPLIER else 0.0
        usual = _created(schedule, dim, base).attention_factor
        if not log_multiplier:
            attention *= usual
        elif name != "deepseek2":  # of which the key is a tenth of mscale_all_dim, and both temperatures the same
            attention *= usual / (0.1 * log_multiplier * math.log(factor) + 1)
    elif kind != "none" and factor != 1:
        schedule = {"name": "linear", "factor": factor}
    found = _created(schedule, dim, base)
    inv_freq, shown = found.inv_freq, schedule["name"]
    if divisors is not None:
        if len(divisors) != len(inv_freq):
            raise ProgramFails(f"{len(divisors)} divisors for {len(inv_freq)} pairs")
        inv_freq, shown = inv_freq / torch.tensor(divisors, dtype=torch.float64), "divisors"
    local = key("rope.freq_base_swa", 10000.0 if name == "gemma3" else None)
    if local is not None:
        yield _reading(SLIDING, local, {"name": "default"}, dim, stated)
    yield Reading("", ALL if local is None else FULL, base, shown, dim, attention, inv_freq, "; ".join(notes))


def _converted(config: ConfigFile) -> dict[str, Any]:
    """Keys and tensors that llama.cpp's converter writes for a config.json (conversion/base.py and its classes)."""
    raw, kind = config.raw, config.model_type
    _require_rules(config)
    # transformers 4 completes what is read
    usual = V4_GPT_OSS if kind == "gpt_oss" and "rope_scaling" not in raw else {}
    table = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or usual)
    inner = {key: value for key, value in (table.get(FULL) or table).items() if value is not None}
    if FULL not in table and SLIDING not in table:
        for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
            if raw.get(key) is not None:
                inner.setdefault(key, raw[key])
        if "rotary_emb_base" in raw:
            inner.setdefault("rope_theta", raw["rotary_emb_base"])
    rope_type = inner.get("rope_type", inner.get("type"))
    arch = ARCHITECTURES.get(kind, kind)
    part = None if kind == "gpt_neox" else inner.get("partial_rotary_factor")
    fraction = part or raw.get("rotary_pct") or V4_FRACTIONS.get(kind, 1.0)
    dim = int(config.head_dim * fraction) if kind in V4_FRACTIONS else config.head_dim
    header: dict[str, Any] = {"general.architecture": arch}
    keys: dict[str, Any] = {"context_length": config.length, "rope.dimension_count": dim}
    notes = []
    if kind in BARE and (inner.get("rope_theta") not in (None, 10000) or rope_type not in (None, "default")):
        notes.append(f"its converter writes neither the base nor a schedule for {kind}")
    elif kind == "cohere" and rope_type not in (None, "default"):
        notes.append(f"its converter drops rope_type {rope_type!r} for {kind}")
    inner = {} if kind in BARE else inner
    rope_type = None if kind in (*BARE, "cohere") else rope_type
    theta = inner.get("rope_theta", V4_BASES.get(kind))
    if theta is not None:
        keys["rope.freq_base"] = theta
    factor = inner.get("factor")
    if rope_type in ("linear", "yarn") and factor is not None:
        keys |= {"rope.scaling.type": rope_type, "rope.scaling.factor": factor}
        if rope_type == "yarn":
            if "original_max_position_embeddings" not in inner:
                raise ProgramFails("its converter needs original_max_position_embeddings for yarn")
            keys["rope.scaling.original_context_length"] = inner["original_max_position_embeddings"]
            for beta in ("beta_fast", "beta_slow"):
                if inner.get(beta) is not None:
                    keys[f"rope.scaling.yarn_{beta}"] = inner[beta]
            if inner.get("attention_factor") is not None:
                notes.append(
                    "writes attention_factor of yarn, and replaces it by 0.1 ln(factor) + 1 when it loads the file"
                )
            if inner.get("truncate") is False:
                notes.append("has no truncate=false: the ramp begins and ends at integers")
    elif rope_type == "llama3" and kind in LLAMA3_ARCHITECTURES:
        schedule = _schedule("llama3", {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0,
                                        "original_max_position_embeddings": 8192} | inner, config, 1)  # fmt: skip
        base = float(theta or 10000.0)
        made = frequencies.create(schedule, dim, base=base)
        header["rope_freqs.weight"] = frequencies.stretch(made, dim, base=base).tolist()
    elif rope_type in ("longrope", "su"):
        original = inner.get("original_max_position_embeddings") or config.length
        keys |= {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": original}
        if kind == "phi3":
            scale = config.length / original
            if scale > 1:
                keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original))
            if missing := [each for each in ("long_factor", "short_factor") if each not in inner]:
                raise ProgramFails(f"its converter needs {missing[0]}")
            header |= {f"rope_factors_{each}.weight": inner[f"{each}_factor"] for each in ("long", "short")}
        else:
            notes.append(f"its converter writes longrope's factors for phi3 alone, not for {kind}")
    elif rope_type not in (None, "default"):
        notes.append(f"its converter drops rope_type {rope_type!r}")
    if kind == "gemma3_text":
        local = dict(table.get(SLIDING) or {}).get("rope_theta")
        keys["rope.freq_base_swa"] = local or raw.get("rope_local_base_freq", 10000.0)
    header[NOTE] = "; ".join(notes)
    return header | {f"{arch}.{key}": value for key, value in keys.items()}


PROGRAMS: dict[str, Callable[[ConfigFile, int], Found]] = {
    TRANSFORMERS: _transformers5,
    TRANSFORMERS_4: _transformers4,
    VLLM: _vllm,
    "SGLang": _sglang,
    LLAMA_CPP: _llama_cpp,
}
"""Each program's rules, in the order of the report."""
