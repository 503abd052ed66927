# SPDX-License-Identifier: Apache-2.0
"""A forward pass of a model with an encoding in place of its rotation, see hf.py: where its tokens are, and its attention."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc.encoding import Encoding, augmented_by
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.pretrained.attach import AttentionCall, attended
from posenc.pretrained.masks import FAR, HostPass, Visibility, visibility
from posenc.pretrained.models import CACHES, Layer

NAME = "posenc_encoding"
"""The attention implementation of these models in transformers."""


@dataclass
class LayerPlan:
    """What an attention layer does. number: of the layer. rotates: whether the encoding acts in it, as the model's rotation did.
    gates: of the layer's input, from the hook before its attention to that."""

    layer: Layer
    number: int
    gates: tuple[Tensor, ...] = ()


class EncodedPass(HostPass):
    """The tokens of a forward pass. input: the encoding where all keys are, for the layers' inputs."""

    def __init__(self, encoding: Encoding, of_all: Visibility, position_ids: Tensor) -> None:
        super().__init__(partial(_among, of_all, position_ids))
        self.encoding, self.input = encoding, encoding.at(of_all.positions)


def _among(
    of_all: Visibility, position_ids: Tensor, mask: Tensor | None, _: object, queries: int, keys: int, device: torch.device
) -> Visibility:  # fmt: skip
    """Who sees whom in a layer with so many keys, whose cache may have been cut. mask: the layer's, from `token_index`."""
    positions = of_all.positions
    if keys == positions.num_keys:
        return of_all
    visible = visibility(mask, position_ids, queries, keys, device)
    cut = visible.positions
    # without a mask its keys are the last before the end of the queries
    order = cut.k_order if mask is not None else cut.k_order + (positions.q_order[..., -1:] + 1 - keys)
    k = positions.k.gather(1, order.expand(len(positions.k), -1))
    return replace(visible, positions=cut.derived(q=positions.q, k=k))


def begun(decoder: Any, encoding: Encoding, inputs: dict[str, Any]) -> EncodedPass:
    """Where the tokens of a forward pass are.

    inputs: the decoder's, by name. Positions are position_ids; where none are given, tokens count from the first that is no
    padding. Documents are packed where position_ids start anew in a pass without padding and without cached keys.
    """
    from transformers.masking_utils import create_causal_mask

    x = inputs.get("inputs_embeds") if inputs.get("input_ids") is None else inputs["input_ids"]
    assert x is not None
    rows, count = x.shape[:2]
    cache: Any = next((inputs[name] for name in CACHES if inputs.get(name) is not None), None)
    mask: Any = inputs.get("attention_mask")
    ids: Any = inputs.get("position_ids")
    seen = 0 if cache is None else cache.get_seq_length()
    # the first layer whose cache has all keys, else 0; transformers has such a function from 5.23 on
    kinds = [getattr(cache, kind) for kind in ("is_sliding", "is_linear", "is_dummy") if hasattr(cache, kind)]
    full = next((layer for layer, other in enumerate(zip(*kinds, strict=True)) if not any(other)), 0)
    keys = count if cache is None else cache.get_mask_sizes(count, full)[0]
    compiled = torch.compiler.is_compiling()
    if encoding.needs_length and not compiled and int(seen):
        why = "its codes depend on the length of the text, so it cannot go on from cached keys"
        raise InputError(why, "pass use_cache=False", encoding=encoding.known_as)
    if isinstance(mask, dict):  # made before the pass, one for each layer type
        mask = mask.get("full_attention", next(iter(mask.values())))
    unpadded = mask is None or (mask.dim() == 2 and not compiled and bool(mask.all()))
    if ids is None:
        ids = torch.arange(count, device=x.device)[None] + seen
        if not unpadded and mask.dim() == 2:
            ids = (mask.long().cumsum(1)[:, -count:] - 1).clamp(min=0)
    elif unpadded and not compiled and keys == count:
        mask = cache = None  # with either of them, transformers does not look for packed documents
    shaped = torch.empty(rows, count, 0, device=x.device)
    mask = create_causal_mask(decoder.config, shaped, mask, cache, ids, layer_idx=full)
    visible = visibility(mask, ids, count, keys, x.device)
    positions = visible.positions
    if not encoding.shift_invariant:
        positions = _moved(positions, ids)
    return EncodedPass(encoding, replace(visible, positions=augmented_by(encoding, positions, rows)), ids)


def _moved(positions: Positions, ids: Tensor) -> Positions:
    """Positions that begin where position_ids do, those of padding 0: `visibility` counts from the first token that is none."""
    ahead, valid, q_valid = ids - positions.q, positions.valid, positions.q_valid
    if valid is not None and q_valid is not None:
        ahead = torch.where(q_valid, ahead, -FAR).amax(1, keepdim=True).clamp(min=-positions.num_keys)
        q, k = torch.where(q_valid, positions.q + ahead, 0), torch.where(valid, positions.k + ahead, 0)
        return positions.derived(q=q, k=k)
    ahead = ahead[:, :1]
    if not torch.compiler.is_compiling() and not bool(ahead.any()):
        return positions
    return positions.derived(q=positions.q + ahead, k=positions.k + ahead)


def attend(call: AttentionCall) -> Tensor:
    """The attention of a layer of a model with an encoding.

    Raises:
        InputError: a model without one.
    """
    plan: LayerPlan | None = getattr(call.module, "_posenc_plan", None)
    given: Any = call.mask
    if plan is None or not isinstance(given, tuple):
        raise InputError(
            'is for models with an encoding: AutoModelForCausalLM.from_config(config, encoding="alibi"), after posenc.hf.register()',
            attn_implementation=NAME,
        )
    here, mask = given
    gates, plan.gates = plan.gates, ()
    if any(gate.shape[2] != call.key.shape[2] for gate in gates):
        why = "its gates are in no KV cache, so it cannot go on from cached keys"
        raise InputError(why, "pass use_cache=False", encoding=here.encoding.known_as)
    encoding = here.encoding if plan.layer.rotates else None
    options: dict[str, Any] = {}
    if encoding is not None:
        usual = float(call.query.shape[3] ** -0.5)
        scale = encoding.scale_of(plan.number, call.query.shape[3])
        options = {"layer": plan.number, "gates": gates}
        if scale != usual and call.scale is not None:
            # it is in place of 1 / sqrt(d), which the model's may not be
            options["scale"] = call.scale * scale / usual
    return attended(call, here, encoding, plan.layer.window, mask, **options)
