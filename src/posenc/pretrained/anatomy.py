# SPDX-License-Identifier: Apache-2.0
"""What a Hugging Face causal language model is: where its rotary module and attention layers are, which frequencies it
has, and how far it was trained. Read from the model and its configuration; nothing is changed, nothing is run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc import frequencies
from posenc.errors import InputError, unknown
from posenc.functional import Layout

RECORD = "_posenc_attached"
"""Attribute of an extended model's decoder that holds the record of its extension."""

Table = Literal["halves", "repeated", "pairs"]
"""How a model wants its cos and sin: (c, c) side by side, each pair's twice in a row, or once per pair."""


@dataclass(frozen=True)
class Family:
    """How a model type differs from Llama.

    layout: which channels its attention pairs. table: how its rotary module lays out cos and sin. float_table: they
    stay float32 whatever the hidden states are. attention: the attention module's name in a decoder layer.
    """

    layout: Layout = "half"
    table: Table = "halves"
    float_table: bool = False
    attention: str = "self_attn"


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "mixtral": Family(),
    "ministral": Family(),
    "qwen2": Family(),
    "qwen2_moe": Family(),
    "qwen3": Family(),
    "qwen3_moe": Family(),
    "phi": Family(),
    "phi3": Family(),
    "gemma": Family(),
    "gemma2": Family(),
    "gemma3_text": Family(),
    "smollm3": Family(),
    "stablelm": Family(),
    "starcoder2": Family(),
    "granite": Family(),
    "granitemoe": Family(),
    "seed_oss": Family(),
    "gpt_neox": Family(attention="attention"),
    "olmo": Family(float_table=True),
    "olmo2": Family(float_table=True),
    "olmoe": Family(),
    "glm": Family(layout="interleaved"),
    "glm4": Family(layout="interleaved"),
    "cohere": Family(layout="interleaved", table="repeated"),
    "gpt_oss": Family(table="pairs"),
}
"""config.model_type -> how it differs from Llama; what is not here is refused."""


@dataclass(frozen=True)
class Rope:
    """The rotation of one layer type, as the model was loaded.

    rope_theta: base. rotary_dim: channels that rotate, of head_dim. schedule: for `posenc.frequencies.create`; one that
    depends on the text's length is that of short texts. original_length: tokens that the frequencies were made for
    before this schedule stretched them; under "linear" those of the stretched model, which was trained so.
    """

    rope_theta: float
    rotary_dim: int
    schedule: Mapping[str, Any]
    original_length: int

    @property
    def scaled(self) -> bool:
        """Whether the model as loaded stretches its frequencies already."""
        return self.schedule["name"] not in ("default", "proportional")

    def at(self, length: int) -> dict[str, Any]:
        """The schedule for texts of a length, on which it may depend."""
        return dict(self.schedule) | ({"length": length} if "length" in self.schedule else {})

    def frequencies(self) -> frequencies.Frequencies:
        """inv_freq in float64 and attention_factor, as loaded."""
        return frequencies.create(self.schedule, self.rotary_dim, self.rope_theta)


@dataclass(frozen=True)
class Layer:
    """One attention layer. window: keys a query may see, None all of them. rotates: False in layers without position.
    softcap: its scores are squashed by softcap * tanh(score / softcap); None: they are not."""

    module: nn.Module
    layer_type: str
    window: int | None
    rotates: bool
    softcap: float | None


@dataclass(frozen=True, eq=False)
class Anatomy:
    """A supported model, taken apart.

    model: the transformers model (what a PEFT wrapper holds). decoder: its stack of layers, which owns `rotary`, the
    module that makes cos and sin. ropes: layer type -> rotation; several types may share one object.
    rope_per_type: the rotary module is asked for each layer type apart (Gemma 3). layers: in order.
    loaded_length: tokens it is made for as loaded, config.max_position_embeddings.
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
    def rope(self) -> Rope:
        """The rotation of the layers that see everything; the only one in most models."""
        return self.ropes.get("full_attention") or next(iter(self.ropes.values()))

    @property
    def rope_theta(self) -> float:
        return self.rope.rope_theta

    @property
    def rotary_dim(self) -> int:
        return self.rope.rotary_dim

    @property
    def schedule(self) -> Mapping[str, Any]:
        return self.rope.schedule

    @property
    def trained_length(self) -> int:
        """Tokens, before any scaling that the model was loaded with."""
        return self.rope.original_length


def anatomy(model: nn.Module) -> Anatomy:
    """Take a transformers model apart (a PEFT wrapper is looked through); an extended one as it was before.

    Raises:
        InputError: not a transformers model, a model type that is not supported, a kind of rotation that posenc does
            not know, or frequencies in the model that are not those of its configuration.
    """
    inner = unwrapped(model)
    extension = getattr(inner.base_model, RECORD, None)
    if extension is not None:
        found: Anatomy = extension.anatomy
        return found
    model_type = str(inner.config.model_type)
    if model_type not in FAMILIES:
        raise unknown("model type", model_type, FAMILIES, 0.7)
    family, decoder, config = FAMILIES[model_type], inner.base_model, inner.base_model.config
    rotary = getattr(decoder, "rotary_emb", None)
    if not isinstance(rotary, nn.Module):
        raise InputError(f"model of type {model_type!r} has no rotary_emb: it was built in an unusual way")
    layers = tuple(_layer(layer, family, config, index) for index, layer in enumerate(decoder.layers))
    types = dict.fromkeys(layer.layer_type for layer in layers)
    parameters = config.rope_parameters
    rope_per_type = "rope_type" not in parameters
    if rope_per_type:
        ropes = {t: _rope(rotary, parameters[t], config, f"{t}_") for t in types}
    else:
        ropes = dict.fromkeys(types, _rope(rotary, parameters, config))
    heads = int(config.num_attention_heads)
    return Anatomy(
        model=inner,
        decoder=decoder,
        model_type=model_type,
        family=family,
        rotary=rotary,
        ropes=ropes,
        rope_per_type=rope_per_type,
        layers=layers,
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        num_heads=heads,
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        loaded_length=int(config.max_position_embeddings),
    )


def unwrapped(model: Any) -> Any:
    """The transformers model itself.

    Raises:
        InputError: there is none.
    """
    if hasattr(model, "get_base_model"):  # PEFT, whose adapters live inside the layers
        model = model.get_base_model()
    config = getattr(model, "config", None)
    if not hasattr(config, "model_type") or not hasattr(model, "base_model"):
        raise InputError(f"model={type(model).__name__}: {_instead(model)}")
    return model


def check_model(model: Any) -> None:
    """Refuse what is no module, without printing one that is inside it.

    Raises:
        InputError: says what to pass instead.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model={type(model).__name__}: {_instead(model)}")


def _instead(given: Any) -> str:
    """What to pass where something is no model."""
    if isinstance(given, tuple) and given and isinstance(given[0], nn.Module):
        return "pass the model alone; posenc.load returns (model, tokenizer), model, tokenizer = posenc.load(...)"
    if isinstance(given, str | PathLike):
        return "a name is not a model; pass the one that posenc.load(name)[0] gives"
    if hasattr(given, "model_type"):
        return "is a configuration; pass the model, as AutoModelForCausalLM loads it, whose .config this is"
    return "pass a transformers model, as AutoModelForCausalLM loads it"


def _layer(layer: nn.Module, family: Family, config: Any, index: int) -> Layer:
    module = getattr(layer, family.attention)
    window: Any = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    layer_type = types[index] if types else "full_attention" if window is None else "sliding_attention"
    return Layer(
        module=module,
        layer_type=layer_type,
        window=None if layer_type == "full_attention" else int(window),
        rotates=bool(getattr(module, "use_rope", True)),
        softcap=getattr(module, "attn_logit_softcapping", None),
    )


def _rope(rotary: nn.Module, parameters: Mapping[str, Any], config: Any, prefix: str = "") -> Rope:
    """What config.rope_parameters says, once it has been found to be what the module computes with."""
    buffer: Tensor = getattr(rotary, f"{prefix}original_inv_freq")  # a stateful schedule moves inv_freq itself
    length = int(config.max_position_embeddings)
    original = int(parameters.get("original_max_position_embeddings") or length)
    schedule = _schedule(parameters, original, length)
    rope = Rope(float(parameters["rope_theta"]), 2 * buffer.numel(), schedule, original)
    _check(rope.frequencies(), buffer, getattr(rotary, f"{prefix}attention_scaling"), parameters)
    return rope


def _schedule(parameters: Mapping[str, Any], original: int, length: int) -> dict[str, Any]:
    """rope_parameters of transformers (modeling_rope_utils.py) as a schedule of `posenc.frequencies`."""
    kind = parameters["rope_type"]

    def given(*names: str, **renamed: str) -> dict[str, Any]:
        pairs = [(name, name) for name in names] + list(renamed.items())
        return {ours: parameters[theirs] for ours, theirs in pairs if parameters.get(theirs) is not None}

    if kind == "default":
        return {"name": "default"}
    if kind == "linear":
        return {"name": "linear"} | given("factor")
    if kind == "proportional":
        return {"name": "proportional", "fraction": 1.0} | given("factor", fraction="partial_rotary_factor")
    if kind == "llama3":
        return {"name": "llama3", "original_max_positions": original} | given(
            "factor", "low_freq_factor", "high_freq_factor"
        )
    if kind == "yarn":
        options = {"factor": length / original, "original_max_positions": original}
        options |= given("factor", "beta_fast", "beta_slow", "truncate", "attention_factor")
        if parameters.get("mscale") and parameters.get("mscale_all_dim"):  # which transformers reads together or not
            options |= given("mscale", "mscale_all_dim")
        return {"name": "yarn"} | options
    if kind == "dynamic":
        return {"name": "dynamic", "original_max_positions": length, "length": length} | given("factor")
    if kind == "longrope":
        options = {"factor": max(length / original, 1.0), "original_max_positions": original, "length": original}
        options |= given("factor", "short_factor", "long_factor", "attention_factor")
        return {"name": "longrope"} | options
    raise unknown("rope_type", kind, ("default", "linear", "proportional", "llama3", "yarn", "dynamic", "longrope"))


def _check(ours: frequencies.Frequencies, buffer: Tensor, scaling: float, parameters: Mapping[str, Any]) -> None:
    if buffer.is_meta:
        return
    tolerance = max(4 * torch.finfo(buffer.dtype).eps, 1e-6)  # a model cast to bfloat16 has rounded frequencies
    theirs = buffer.detach().double().cpu()
    tiny = torch.finfo(buffer.dtype).tiny if buffer.dtype == torch.float16 else 0.0
    same = ours.inv_freq.shape == theirs.shape and torch.allclose(theirs, ours.inv_freq, rtol=tolerance, atol=tiny)
    if not same or not math.isclose(scaling, ours.attention_factor, rel_tol=1e-6):
        raise InputError(
            f"the model's inverse frequencies are not those of its config.rope_parameters {dict(parameters)}: the "
            "configuration was changed after loading, which does nothing; reload the model with it"
        )
