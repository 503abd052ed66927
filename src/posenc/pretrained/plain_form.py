# SPDX-License-Identifier: Apache-2.0
"""A model with an encoding (hf.py) as a model type that plain transformers and servers have, where one computes the same.

Layers with and without a rotation, with and without a sliding window, are SmolLM3's or the type's own; a window in all layers of
a Llama is Mistral's. The new model is run beside the one with the encoding before it is written.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from posenc.encoding import Encoding, Sum
from posenc.encodings.learned_rotary import HeadRotary, LearnedRotary
from posenc.encodings.naive import NoPE
from posenc.encodings.rotary import PRotary, Rotary
from posenc.encodings.visible import Window
from posenc.errors import InputError, listed
from posenc.frequencies import Frequencies
from posenc.pretrained.families import ENCODED, FAMILIES
from posenc.pretrained.inference import evaluating
from posenc.pretrained.parameters import head_dim_of
from posenc.pretrained.rope_config import rope_parameters_of, same_frequencies

LLAMA_LIKE = ("llama", "mistral", "ministral", "qwen2", "smollm3")
"""Types whose layers SmolLM3 has too, weight by weight."""
WINDOWED = ("mistral", "mixtral", "phi3", "starcoder2")
"""Types with a sliding window in all layers or in none."""
BY_LAYER = ("ministral", "qwen2", "qwen3", "qwen2_moe", "smollm3")
"""Types with a sliding window in the layers that layer_types names."""
TESTED = 256
"""Tokens of the longest text that both models read."""
SHAPE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "initializer_range", "pad_token_id",
    "bos_token_id", "eos_token_id", "attention_dropout", "mlp_bias",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Layer:
    """What an encoding is in a layer. rotation: None: no rotation. window: keys that a query sees, itself too."""

    rotation: Encoding | None
    window: int | None


def plain_form(model: Any) -> tuple[Any, dict[str, Frequencies]]:
    """A plain transformers model that computes what a model with an encoding does, with its weights, and the frequencies of its
    rotation, none without one.

    Raises:
        InputError: what of the encoding or of the layers no such model has.
    """
    kind = str(model.config.model_type).removeprefix(ENCODED)
    try:
        layers = [_layer(model, plan) for plan in model._plans]
        found = [layer.rotation for layer in layers if layer.rotation is not None]
        rotation = found[0] if found else None
        if any(not same_frequencies(_frequencies(each), _frequencies(rotation)) for each in found):
            raise InputError("its layers rotate by different frequencies")
        made = _rotated(model, kind, layers, rotation)
        _compare(model, made, layers)
    except InputError as error:
        raise InputError(
            f"no model type of plain transformers computes it in a {kind}: {error}. save_pretrained writes a checkpoint that "
            "posenc.load reads",
            encoding=model.config.encoding,
        ) from error
    return made, {} if rotation is None else {"full_attention": _frequencies(rotation)}


def _layer(model: Any, plan: Any) -> _Layer:
    encoding = model.acting_encoding.acting_in(plan.number).part if plan.layer.rotates else NoPE()
    window, rotation = plan.layer.window, None
    for part in _parts(encoding):
        if type(part) is Window and isinstance(part.before, int):
            window = part.before + 1 if window is None else min(window, part.before + 1)
        elif type(part) in (Rotary, PRotary, LearnedRotary, HeadRotary) and rotation is None:
            rotation = part
        elif type(part) is not NoPE:
            raise InputError(f"{part.known_as} is in none")
    return _Layer(rotation, window)


def _parts(encoding: Encoding) -> Iterator[Encoding]:
    if isinstance(encoding, Sum):
        for part in encoding:
            yield from _parts(part)
    else:
        yield encoding


def _frequencies(rotation: Any) -> Frequencies:
    if isinstance(rotation, Rotary):
        return rotation.frequencies()
    return Frequencies(rotation.vectors(0)[0, :, 0].detach().cpu().double(), rotation.attention_factor)


def _rotated(model: Any, kind: str, layers: list[_Layer], rotation: Encoding | None) -> Any:
    config = model.config
    fields: dict[str, Any] = {} if rotation is None else {"rope_parameters": _parameters(model, rotation)}
    own = [plan.layer.rotates for plan in model._plans]
    rotates = [layer.rotation is not None for layer in layers]
    windows = sorted({layer.window for layer in layers if layer.window is not None})
    if len(windows) > 1:
        raise InputError(f"sliding windows of {listed([*map(str, windows)])} keys in one model are in none")
    types = ["full_attention" if layer.window is None else "sliding_attention" for layer in layers]
    same_windows = [layer.window for layer in layers] == [plan.layer.window for plan in model._plans]
    if rotates == own and same_windows:
        return _made(model, kind, _own_fields(config) | fields)
    window = {"sliding_window": windows[0] if windows else None, "use_sliding_window": bool(windows)}
    if rotates == own and (kind in BY_LAYER or (kind in WINDOWED and len({*types}) == 1)):
        by_layer = {"layer_types": types} if kind in BY_LAYER else {}
        return _made(model, kind, _own_fields(config) | fields | window | by_layer)
    bias = bool(getattr(config, "attention_bias", kind == "qwen2"))
    plain = all(rotates) and {*types} == {"sliding_attention"} and not bias and not getattr(config, "mlp_bias", False)
    if kind == "llama" and plain:
        return _made(model, "mistral", _shape(config) | fields | window)
    if kind not in LLAMA_LIKE:
        what = "layers without a rotation" if rotates != own else "sliding windows in some layers"
        raise InputError(f"{what} are SmolLM3's, whose other layers are those of {listed(LLAMA_LIKE)}")
    numbers = [int(each) for each in rotates]
    smollm3 = {"no_rope_layers": numbers, "layer_types": types, "attention_bias": bias, "head_dim": head_dim_of(config)}
    base = {"rope_type": "default", "rope_theta": float(config.rope_parameters.get("rope_theta", 10000.0))}
    return _made(model, "smollm3", _shape(config) | {"rope_parameters": base} | fields | window | smollm3)


def _parameters(model: Any, rotation: Any) -> dict[str, Any]:
    """rope_parameters of a rotation in a model of the same type."""
    config, layout = model.config, getattr(rotation, "layout", "half")
    kind, own = str(config.model_type).removeprefix(ENCODED), config.rope_parameters
    if layout != FAMILIES[kind].layout:
        raise InputError(f"its rotation has the layout {layout!r}, and {kind} {FAMILIES[kind].layout!r}")
    if layout == "half":
        return rope_parameters_of(rotation, int(config.max_position_embeddings))
    plain = Rotary(rotation.head_dim, rope_theta=own["rope_theta"], rotary_dim=rotation.rotary_dim)
    if not same_frequencies(_frequencies(rotation), plain.frequencies()):
        raise InputError("of a rotation of neighbouring channels, only the model's own is written")
    return dict(own)


def _own_fields(config: Any) -> dict[str, Any]:
    left = ("model_type", "encoding", "rope_scaling")
    return {key: value for key, value in config.to_dict().items() if key not in left}


def _shape(config: Any) -> dict[str, Any]:
    fields = {key: getattr(config, key) for key in SHAPE if hasattr(config, key)}
    return fields | {"head_dim": head_dim_of(config)}


def _made(model: Any, kind: str, fields: Mapping[str, Any]) -> Any:
    """A model of a type with the weights of another, which are not copied."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    weights = {key: value for key, value in model.state_dict().items() if not key.startswith("encoding.")}
    fields = {key: value for key, value in fields.items() if key not in ("architectures", "_attn_implementation")}
    config: Any = CONFIG_MAPPING[kind](**deepcopy(dict(fields)))
    mapped: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with torch.device("meta"):
        made = getattr(mapped, "plain", mapped)(config)
    wanted = made.state_dict()
    for key in wanted.keys() - weights.keys():
        if not key.endswith("o_proj.bias"):
            raise InputError(f"{kind} has the weight {key}, which this model has not")
        like = weights[key.replace("o_proj.bias", "o_proj.weight")]
        weights[key] = like.new_zeros(like.shape[0])
    if left := sorted(weights.keys() - wanted.keys()):
        raise InputError(f"{kind} has no weight {left[0]}")
    made.load_state_dict(weights, assign=True)
    made.tie_weights()
    device = next(iter(weights.values())).device
    rotary = getattr(getattr(made, "model", None), "rotary_emb", None)
    if rotary is not None:  # its frequencies are no weights
        made.model.rotary_emb = type(rotary)(config).to(device)
    made.generation_config = deepcopy(model.generation_config)
    return made.eval()


@torch.no_grad()
def _compare(model: Any, made: Any, layers: list[_Layer]) -> None:
    """Run both on a text that leaves the windows, where these are not long."""
    longest = max((layer.window or 0 for layer in layers), default=0)
    length = min(int(model.config.max_position_embeddings), max(2 * longest, 32), TESTED)
    generator = torch.Generator().manual_seed(0)
    device = next(made.parameters()).device
    ids = torch.randint(int(model.config.vocab_size), (1, length), generator=generator).to(device)
    with evaluating(model):
        wanted, found = (each(ids, use_cache=False).logits.float() for each in (model, made))
    rounding = {torch.float32: 1e-3, torch.float64: 1e-6}.get(made.dtype, 0.05)
    off = float((wanted - found).abs().max() / wanted.std())
    if not off < rounding:
        raise InputError(
            f"{made.config.model_type} was run with its weights, and its logits are off by {off:.2g} of their spread"
        )
