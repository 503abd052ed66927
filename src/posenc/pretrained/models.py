# SPDX-License-Identifier: Apache-2.0
"""The structure of a Hugging Face causal language model: its rotary module and attention layers, its frequencies, and the
length it was trained for. Read from the model and its configuration; nothing is changed, nothing is run."""

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from posenc import frequencies
from posenc.encodings.rotary import DecoupledRotary, Rotary
from posenc.errors import InputError, unknown
from posenc.functional import Layout
from posenc.pretrained.changes import RECORD, ModelChange
from posenc.pretrained.families import ENCODED, Family, family_of
from posenc.pretrained.parameters import (
    NO_LIMIT,
    ROPE_PARAMETERS,
    STEP,
    check_parameters,
    head_dim_of,
    is_number,
    rope_parameters_by_type,
)

CACHES = ("cache", "past_key_values")
"""The names of the KV cache in transformers' models: from 5.24 on, and before."""


@cache
def cache_name() -> str:
    """The name of the KV cache in the installed transformers, of the argument and of the output."""
    from transformers.masking_utils import create_causal_mask

    return next(name for name in CACHES if name in inspect.signature(create_causal_mask).parameters)


@dataclass(frozen=True)
class Rope:
    """The rotation of one layer type, as the model was loaded."""

    rope_theta: float
    """Base"""
    rotary_dim: int
    """Rotated channels of head_dim"""
    schedule: Mapping[str, Any]
    """For `posenc.frequencies.create`; one that depends on the sequence length is that of short inputs"""
    original_length: int
    """Tokens that the frequencies were made for before this schedule stretched them; under "linear" those of the stretched model, which was trained so"""
    head_dim: int
    """Channels of a head"""
    layout: Layout
    """Which of them are a pair"""
    latent: bool
    """The last ones rotate, not the first"""

    def rotation(self, schedule: Mapping[str, Any]) -> Rotary:
        """The same channels, turned by the frequencies of a schedule."""
        made = DecoupledRotary if self.latent else Rotary
        channels: dict[str, Any] = {"layout": self.layout, "rotary_dim": self.rotary_dim}
        return made(self.head_dim, rope_theta=self.rope_theta, schedule=schedule, **channels)

    @property
    def scaled(self) -> bool:
        """Whether the model as loaded already stretches its frequencies."""
        return self.schedule["name"] not in ("default", "proportional")

    def at(self, length: int) -> dict[str, Any]:
        """The schedule for inputs of a length, on which it may depend."""
        return dict(self.schedule) | ({"length": length} if "length" in self.schedule else {})

    def frequencies(self) -> frequencies.Frequencies:
        """inv_freq in float64 and attention_factor, as loaded."""
        return frequencies.create(self.schedule, self.rotary_dim, base=self.rope_theta)


@dataclass(frozen=True)
class Layer:
    """One attention layer. window: number of keys that a query sees, None: all. rotates: False in layers without positions.
    head_dim: channels of its queries."""

    module: nn.Module
    layer_type: str
    window: int | None
    rotates: bool
    head_dim: int


@dataclass(frozen=True, eq=False)
class ModelStructure:
    """The parts of a supported model.

    model: the transformers model, without a PEFT wrapper. decoder: its stack of layers, which has `rotary`, the module
    that makes cos and sin. layers: those
    with attention. ropes: layer type -> rotation; several types may share one object. rope_per_type: the rotary
    module is called once per layer type (Gemma 3). loaded_length: config.max_position_embeddings as loaded, or a longer length
    that the schedule states.
    """

    model: nn.Module = field(repr=False)
    decoder: nn.Module = field(repr=False)
    model_type: str
    family: Family
    rotary: nn.Module = field(repr=False)
    ropes: Mapping[str, Rope]
    rope_per_type: bool
    layers: tuple[Layer, ...] = field(repr=False)
    head_dim: int
    num_heads: int
    num_kv_heads: int
    loaded_length: int

    @property
    def config(self) -> Any:
        return self.decoder.config

    @property
    def layout(self) -> Layout:
        return self.family.layout

    @property
    def unbounded(self) -> tuple[str, ...]:
        """The layer types whose rotation a method changes: all that share one, else those without a window."""
        far = tuple(t for t in self.ropes if any(x.layer_type == t and x.window is None for x in self.layers))
        return far if self.rope_per_type and far else tuple(self.ropes)

    @property
    def rope(self) -> Rope:
        """The rotation of the layers with full attention; the only one in most models."""
        return self.ropes.get("full_attention") or self.ropes[self.unbounded[0]]

    @property
    def trained_length(self) -> int:
        """Tokens, before any scaling that the model was loaded with."""
        return self.rope.original_length

    @property
    def schedules_only(self) -> str:
        """Why nothing but frequencies can be changed; empty: everything can."""
        if self.decoder.config is not self.model.config and not self.family.schedules_only:
            return "it reads images or sound too, whose tokens' positions and masks are other ones"
        return self.family.schedules_only

    @property
    def cached_numbers(self) -> int:
        """Of one token, in the layers that see all keys."""
        return sum(self._cached(layer) for layer in self.layers if layer.window is None)

    @property
    def cached_in_windows(self) -> int:
        """Numbers in the KV cache of the layers with a window, of inputs that are longer than it."""
        return sum(self._cached(layer) * layer.window for layer in self.layers if layer.window is not None)

    def _cached(self, layer: Layer) -> int:
        if self.family.latent:
            latent = getattr(self.config, "kv_lora_rank", None)
            return self.head_dim if latent is None else int(latent) + self.rope.rotary_dim
        module: Any = layer.module
        if getattr(module, "is_kv_shared_layer", False):
            return 0
        usual = self.num_heads // self.num_kv_heads
        shared: int = getattr(module, "num_key_value_groups", usual)  # by layer in Gemma 4
        return 2 * layer.head_dim * (self.num_heads // shared)


def model_structure(model: nn.Module) -> ModelStructure:
    """The structure of a transformers model, under a PEFT wrapper or not; of an extended one as it was before.

    Raises:
        InputError: not a transformers model, an unsupported model type or kind of rotation, or frequencies in the model
            that are not those of its configuration.
    """
    inner = unwrap(model)
    change: Any = record_of(inner)
    extended: ModelStructure | None = getattr(change, "structure", None)
    if extended is not None:
        for why in set_since(extended.config, change):
            raise InputError(
                f"{why}: call posenc.restore(model), which puts it back, and posenc.extend with the method that is meant"
            )
        return extended
    family, decoder, rotary = rotary_parts(inner)
    config = decoder.config
    layers = attention_layers(decoder, family)
    parameters = config.rope_parameters
    for why in set_after_loading(parameters):
        raise InputError(
            f'{why}; set it in config.json and load the model anew, or posenc.extend(model, "linear", factor=...) on the model '
            "as it was made"
        )
    check_parameters(config)
    by_type = rope_parameters_by_type(config)
    rope_per_type, tables = None not in by_type, [*by_type.values()]
    widths = {layer.layer_type: layer.head_dim for layer in layers}

    def rope(parameters: Mapping[str, Any], prefix: str, width: int) -> Rope:
        buffers = tables_of(rotary, prefix, parameters)
        stated = stated_rope(parameters, config, 2 * buffers[0].numel(), width, family)
        if stated.rope_theta != parameters["rope_theta"]:
            why = "an odd number of its channels rotates, for which posenc has no schedule"
            raise InputError(why, argument="model")
        factor = attention_factor(rotary, prefix)
        if not all(buffer.is_meta or has_frequencies(buffer, factor, stated) for buffer in buffers):
            raise InputError(
                f"the model's inverse frequencies are not those of its config.rope_parameters {dict(parameters)}: the "
                "configuration or the table was changed after loading; reload the model, and posenc.doctor(model) says what differs"
            )
        return stated

    if rope_per_type:
        ropes = {t: rope(parameters[t], f"{t}_", width) for t, width in widths.items()}
    else:
        ropes = dict.fromkeys(widths, rope(parameters, "", layers[0].head_dim))
    heads = int(config.num_attention_heads)
    stretched = [stretched_length(config, table) or 0 for table in tables]
    originals = [rope.original_length for rope in ropes.values()]
    return ModelStructure(
        model=inner,
        decoder=decoder,
        model_type=str(config.model_type).removeprefix(ENCODED),
        family=family,
        rotary=rotary,
        ropes=ropes,
        rope_per_type=rope_per_type,
        layers=layers,
        head_dim=layers[0].head_dim,
        num_heads=heads,
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        loaded_length=max(int(config.max_position_embeddings), *stretched, *originals),
    )


def rotary_parts(inner: Any) -> tuple[Family, Any, nn.Module]:
    """Family, decoder and rotary module of a transformers model.

    Raises:
        InputError: an unsupported model type, or no rotary module.
    """
    if hasattr(inner, "encoding"):
        raise InputError(
            f"model has the encoding {inner.config.encoding!r} in place of a rotation (posenc.hf), and what posenc does to a "
            "pretrained model's rotation does not apply: load the checkpoint without encoding="
        )
    decoder = decoder_of(inner)
    model_type = str(decoder.config.model_type).removeprefix(ENCODED)
    family = family_of(model_type, decoder.config)
    rotary = getattr(decoder, "rotary_emb", None)
    if not isinstance(rotary, nn.Module):
        raise InputError(f"model of type {model_type!r}: its decoder has no module rotary_emb that its layers use")
    return family, decoder, rotary


def decoder_of(inner: Any) -> Any:
    """The stack of layers with the rotary module: the base model, or within one of several parts the part that reads text;
    without a rotary module the base model."""
    base = inner.base_model
    for part in ("", "language_model", "model", "language_model.model", "model.language_model"):
        found: Any = base
        for name in part.split(".") if part else ():
            found = getattr(found, name, None)
        if isinstance(getattr(found, "rotary_emb", None), nn.Module):
            return found
    text: Any = getattr(base, "language_model", None)
    return base if text is None or not hasattr(text, "config") else text


def record_of(inner: Any) -> ModelChange | None:
    """The change of a transformers model that is in effect; None: there is none."""
    return getattr(decoder_of(inner), RECORD, None)


def unwrap(model: Any) -> Any:
    """The transformers model itself, without a PEFT wrapper.

    Raises:
        InputError: not a transformers model.
    """
    if hasattr(model, "get_base_model"):  # PEFT, whose adapters live inside the layers
        model = model.get_base_model()
    if not hasattr(getattr(model, "config", None), "model_type") or not hasattr(model, "base_model"):
        raise InputError("pass a transformers model, the first that posenc.load(name) returns", model=model)
    return model


def attention_layers(decoder: Any, family: Family) -> tuple[Layer, ...]:
    """The layers of a decoder that have attention; some families have others between them.

    Raises:
        InputError: none has.
    """
    numbered = enumerate(decoder.layers)
    layers = tuple(_layer(each, family, decoder.config, at) for at, each in numbered if hasattr(each, family.attention))
    if not layers:
        kinds = ", ".join(dict.fromkeys(getattr(decoder.config, "layer_types", None) or ())) or "no layers"
        raise InputError(
            f"none of its layers has attention ({kinds}), and nothing else has positions", argument="model"
        )
    return layers


def _layer(layer: nn.Module, family: Family, config: Any, index: int) -> Layer:
    module: Any = getattr(layer, family.attention)
    window: Any = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    layer_type = types[index] if types else "full_attention" if window is None else "sliding_attention"
    sliding = layer_type == "sliding_attention"
    return Layer(
        module=module,
        layer_type=getattr(module, "rope_layer_type", layer_type),
        window=window if sliding else None,
        rotates=(family.full_rotates or sliding or window is None) and bool(getattr(module, "use_rope", True)),
        head_dim=int(
            getattr(module, "qk_head_dim" if family.latent else "head_dim", None) or head_dim_of(config, layer_type)
        ),
    )


def set_since(config: Any, change: Any) -> Iterator[str]:
    """A sentence where rope_parameters of an extended model, or frequencies in it, are not those of the extension."""
    made = change.design.config.get("rope_parameters")
    if made is not None and config.rope_parameters != made:
        yield f"config.rope_parameters={config.rope_parameters}: was set after posenc.extend, which changes no frequencies"
    for rotation in dict.fromkeys(change.design.rotations.values()):
        for name, table in rotation.tables().items():
            now = getattr(rotation, name)
            if not now.is_meta and not torch.equal(now.to(table), table):
                yield f"{name} of the model's rotary module was overwritten after posenc.extend"
                return


def set_after_loading(parameters: Any) -> Iterator[str]:
    """A sentence where rope_parameters are not complete, as transformers' constructor makes them."""
    tables = (
        [each for each in parameters.values() if isinstance(each, Mapping)] if isinstance(parameters, Mapping) else []
    )
    for table in tables or [parameters]:
        if not isinstance(table, Mapping) or table.get("rope_type") is None or table.get("rope_theta") is None:
            yield f"config.rope_parameters={parameters}: was set after the model was made, which changes no frequencies"
            return


def tables_of(rotary: nn.Module, prefix: str, parameters: Mapping[str, Any]) -> list[Tensor]:
    """The frequencies by which a rotary module of transformers turns short inputs: first those of the next pass, then, where a
    schedule follows the length of the text, those to which it goes back after a long one. Empty: it has none.

    prefix: of its buffers' names."""
    now, first = (getattr(rotary, f"{prefix}{name}", None) for name in ("inv_freq", "original_inv_freq"))
    kind = parameters.get("rope_type")
    reached = getattr(rotary, f"{prefix}max_seq_len_cached", getattr(rotary, "max_seq_len_cached", 0))
    grown = kind == "dynamic" and reached > getattr(rotary, "original_max_seq_len", reached)
    chosen = [first] if kind == "longrope" or grown else [now, first] if kind == "dynamic" else [now]
    return [buffer.detach() for buffer in chosen if buffer is not None]


def stated_rope(parameters: Mapping[str, Any], config: Any, width: int, head_dim: int, family: Family) -> Rope:
    """The rotation that rope_parameters state. width: rotated channels of a head.

    Raises:
        InputError: an unknown rope_type, or numbers that this model type does not take.
    """
    length = int(config.max_position_embeddings)
    original = int(parameters.get("original_max_position_embeddings") or stretched_length(config, parameters) or length)
    schedule, base = schedule_of(parameters, original, length), float(parameters["rope_theta"])
    if schedule["name"] == "default" and int(head_dim * (parameters.get("partial_rotary_factor") or 1.0)) == width - 1:
        # GPT-NeoX rotates one pair more than an odd number of channels has, by their frequencies
        base **= width / (width - 1)
    return Rope(base, width, schedule, original, head_dim, family.layout, family.latent)


def attention_factor(rotary: Any, prefix: str) -> float:
    """What multiplies cos and sin of short inputs."""
    return float(getattr(rotary, f"{prefix}attention_scaling", 1.0))


LENGTHS = ("max_sequence_length", "model_max_length", "seq_length", "max_seq_len", "max_seq_length", "n_ctx",
           "context_length")  # fmt: skip
"""Fields beside max_position_embeddings in which configurations state a length."""


def longer_lengths(fields: Any, length: int) -> Iterator[tuple[str, float]]:
    """Fields that state a longer length than a length, and what they state. fields: a configuration of transformers, or a file's."""
    for name in LENGTHS:
        other = fields.get(name) if isinstance(fields, Mapping) else getattr(fields, name, None)
        if is_number(other) and length * (1 + STEP) < other < NO_LIMIT:
            yield name, other


def stretched_length(config: Any, parameters: Mapping[str, Any]) -> int | None:
    """The length that a linear schedule was trained for, where max_position_embeddings is that before the stretch and another
    field states their product (vicuna-7b-v1.5-16k); None: max_position_embeddings is it."""
    factor = parameters.get("factor")
    if parameters.get("rope_type") != "linear" or not is_number(factor):
        return None
    stated = (getattr(config, name, None) for name in LENGTHS)
    wanted = factor * config.max_position_embeddings
    return next((int(n) for n in stated if is_number(n) and factor > 1 and math.isclose(n, wanted, rel_tol=0.01)), None)


def schedule_of(parameters: Mapping[str, Any], original: int, length: int) -> dict[str, Any]:
    """rope_parameters of transformers (modeling_rope_utils.py) as a schedule of `posenc.frequencies`.

    original: tokens before the stretch. length: max_position_embeddings. One that depends on the length of the text is that of
    short inputs.

    Raises:
        InputError: an unknown rope_type.
    """
    kind = parameters["rope_type"]
    if kind not in ROPE_PARAMETERS:
        raise unknown("rope_type", kind, ROPE_PARAMETERS)
    stated = {key: parameters[key] for key in ROPE_PARAMETERS[kind] if parameters.get(key) is not None}
    options: dict[str, Any] = {}
    if kind == "proportional":
        options = {"fraction": parameters.get("partial_rotary_factor") or 1.0}
    elif kind == "llama3":
        options = {"original_max_positions": original}
    elif kind == "yarn":
        options = {"factor": length / original, "original_max_positions": original}
        if not (stated.get("mscale") and stated.get("mscale_all_dim")):  # transformers reads both or neither
            stated = {key: value for key, value in stated.items() if not key.startswith("mscale")}
    elif kind == "dynamic":
        options = {"original_max_positions": length, "length": length}
    elif kind == "longrope":
        options = {"factor": max(length / original, 1.0), "original_max_positions": original, "length": original}
    return {"name": kind} | options | stated


def has_frequencies(buffer: Tensor, scaling: float, rope: Rope) -> bool:
    """Whether the frequencies in a model are those of its configuration."""
    stated, actual = rope.frequencies(), buffer.detach().double().cpu()
    tolerance = max(4 * torch.finfo(buffer.dtype).eps, 1e-6)  # a model cast to bfloat16 has rounded frequencies
    tiny = torch.finfo(buffer.dtype).tiny if buffer.dtype == torch.float16 else 0.0
    same = stated.inv_freq.shape == actual.shape and torch.allclose(actual, stated.inv_freq, rtol=tolerance, atol=tiny)
    return same and math.isclose(scaling, stated.attention_factor, rel_tol=1e-6)
