# SPDX-License-Identifier: Apache-2.0
"""A model with an encoding (hf.py) as a model of its type in plain transformers, where that computes the same: one rotation in
all layers that rotate, and the type's own windows. It is run beside the one with the encoding before it is written."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch

from posenc.encodings.rotary import PRotary, Rotary
from posenc.errors import InputError
from posenc.frequencies import Frequencies
from posenc.pretrained.families import ENCODED, FAMILIES
from posenc.pretrained.inference import evaluating
from posenc.pretrained.rope_config import rope_parameters_of, same_frequencies

TESTED = 256
"""Tokens of the longest text that both models read."""


def plain_form(model: Any) -> tuple[Any, dict[str, Frequencies]]:
    """A plain transformers model that computes what a model with an encoding does, with its weights, and the frequencies of its
    rotation.

    Raises:
        InputError: what of the encoding the model type does not have.
    """
    kind = str(model.config.model_type).removeprefix(ENCODED)
    try:
        acting = [model.acting_encoding.acting_in(plan.number).part for plan in model._plans if plan.layer.rotates]
        for part in acting:
            if type(part) not in (Rotary, PRotary):
                raise InputError(f"{part.known_as} is in none")
            if not same_frequencies(part.frequencies(), acting[0].frequencies()):
                raise InputError("its layers rotate by different frequencies")
        made = _made(model, kind, _own_fields(model.config) | {"rope_parameters": _parameters(model, acting[0])})
        _compare(model, made)
    except InputError as error:
        raise InputError(
            f"no model type of plain transformers computes it in a {kind}: {error}. save_pretrained writes a checkpoint that "
            "posenc.load reads",
            encoding=model.config.encoding,
        ) from error
    return made, {"full_attention": acting[0].frequencies()}


def _parameters(model: Any, rotation: Rotary) -> dict[str, Any]:
    """rope_parameters of a rotation in a model of the same type."""
    config, layout = model.config, rotation.layout
    kind, own = str(config.model_type).removeprefix(ENCODED), config.rope_parameters
    if layout != FAMILIES[kind].layout:
        raise InputError(f"its rotation has the layout {layout!r}, and {kind} {FAMILIES[kind].layout!r}")
    if layout == "half":
        return rope_parameters_of(rotation, int(config.max_position_embeddings))
    plain = Rotary(rotation.head_dim, rope_theta=own["rope_theta"], rotary_dim=rotation.rotary_dim)
    if not same_frequencies(rotation.frequencies(), plain.frequencies()):
        raise InputError("of a rotation of neighbouring channels, only the model's own is written")
    return dict(own)


def _own_fields(config: Any) -> dict[str, Any]:
    left = ("model_type", "encoding", "rope_scaling", "architectures", "_attn_implementation")
    return {key: value for key, value in config.to_dict().items() if key not in left}


def _made(model: Any, kind: str, fields: Mapping[str, Any]) -> Any:
    """A model of a type with the weights of another, which are not copied."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    weights = {key: value for key, value in model.state_dict().items() if not key.startswith("encoding.")}
    config: Any = CONFIG_MAPPING[kind](**deepcopy(dict(fields)))
    mapped: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with torch.device("meta"):
        made = getattr(mapped, "plain", mapped)(config)
    made.load_state_dict(weights, assign=True)
    made.tie_weights()
    rotary = made.model.rotary_emb  # its frequencies are no weights
    made.model.rotary_emb = type(rotary)(config).to(next(iter(weights.values())).device)
    made.generation_config = deepcopy(model.generation_config)
    return made.eval()


@torch.no_grad()
def _compare(model: Any, made: Any) -> None:
    """Run both on a text that leaves the windows, where these are not long."""
    longest = max(plan.layer.window or 0 for plan in model._plans)
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
