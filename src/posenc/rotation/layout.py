# SPDX-License-Identifier: Apache-2.0
"""Query and key weights from one rotary layout to the other."""

import re
from collections.abc import Iterable, Mapping
from typing import overload

import torch
from torch import Tensor

from posenc.checks import checked
from posenc.errors import InputError, unknown
from posenc.functional import Layout, check_even, layout_permutation

# names under which models keep values in the same matrix
FUSED = re.compile(r"qkv|key_value|kv(_b)?(_proj)?$|c_attn$|w_pack|^in_proj", re.IGNORECASE)
# the parameters whose rows are the channels of heads; PEFT moves the weight to base_layer
WEIGHTS = re.compile(r"(base_layer\.)?(weight|bias)")
LORA = re.compile(r"lora_([AB])(\..+)?")


@overload
def convert_layout(
    weights: Tensor, head_dim: int, source: Layout, target: Layout, *,
    rotary_dim: int | None = None, rotary_start: int = 0, axis: int = 0,
) -> Tensor: ...  # fmt: skip
@overload
def convert_layout(
    weights: Mapping[str, Tensor], head_dim: int, source: Layout, target: Layout, *,
    rotary_dim: int | None = None, rotary_start: int = 0, axis: int = 0, names: Iterable[str],
) -> dict[str, Tensor]: ...  # fmt: skip
@checked
def convert_layout(
    weights: Tensor | Mapping[str, Tensor],
    head_dim: int,
    source: Layout,
    target: Layout,
    *,
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    axis: int = 0,
    names: Iterable[str] | None = None,
) -> Tensor | dict[str, Tensor]:
    """Weights that make queries or keys, reordered so that rotating in the target layout gives the scores of the source.

    Models in transformers mostly rotate in "half"; GPT-J, Meta's own Llama weights and llama.cpp's files of Llama
    models are "interleaved". A weight run in the wrong one still loads, and the model talks nonsense. Only the order of
    channels within each head changes: round trips are bit-equal, and dtype, device and gradient are kept.

    Args:
        weights: a tensor with the channels of all its heads along `axis`: a weight (heads * head_dim, dim), its bias
            (heads * head_dim,), keys with fewer heads (grouped-query), the weight of a norm of each head (head_dim,).
            Or a state dict, of which the weights in `names` are converted and the rest is passed on.
        head_dim: width of a head.
        source, target: "half" (channel c is paired with c + rotary_dim/2) or "interleaved" (2c with 2c + 1).
        rotary_dim: how many channels of each head are rotated, when not all are (partial rotary).
        rotary_start: the first rotated channel of a head; DeepSeek rotates the last ones.
        axis: 0 for weights as nn.Linear keeps them, -1 for activations, caches and matrices stored (dim, out).
        names: modules of the state dict, as their whole names or the last parts of them: ["q_proj", "k_proj"], and
            the norms of queries and keys where a model has those. Their weights and biases are converted, and along
            axis 0 their LoRA adapters: B, whose rows are the channels; A is passed on.

    Split a fused query-key-value matrix first: values are not rotated. Merge other adapters first. Quantised weights
    share scales among channels or pack several into one number: convert before quantising.

    Raises:
        InputError: a width that is no multiple of head_dim, a rotated part that is odd or exceeds the head, an unknown
            layout, a number that is no integer, axis 0 of a tensor with more than two axes; a name that the state dict
            lacks or that means a fused matrix; a quantised weight, or a parameter of a named module that is neither
            weight nor bias.
    """
    width = head_dim - rotary_start if rotary_dim is None else rotary_dim
    if rotary_dim is None:
        check_even("head_dim - rotary_start" if rotary_start else "head_dim", width)
    if rotary_start < 0 or rotary_start + width > head_dim:
        raise InputError(
            f"rotary_dim={rotary_dim}, rotary_start={rotary_start}: the rotated channels must lie within the "
            f"head_dim={head_dim} of a head"
        )
    of_head = torch.arange(head_dim, device="cpu")  # whatever the default device is
    of_head[rotary_start : rotary_start + width] = rotary_start + layout_permutation(width, source, target)
    if isinstance(weights, Tensor):
        if names is not None:
            raise InputError("names are for a state dict: a single tensor is converted whole")
        return _reordered("weights", weights, of_head, axis)
    listed = [] if names is None else list(names)
    if not listed:
        raise InputError(f"names={names!r}: list the modules that make queries and keys, e.g. ['q_proj', 'k_proj']")
    modules = {key.rpartition(".")[0].rpartition(".")[2] for key in weights} - {""}
    if not modules:
        raise InputError("no key of weights is in a module, as 'q_proj.weight' is: convert such tensors one by one")
    for name in listed:
        if FUSED.search(str(name).rpartition(".")[2]):
            raise InputError(
                f"names has {name!r}, whose weight makes values too, which are not rotated: split it first"
            )
        if all(_part(key, [name]) is None for key in weights):
            raise unknown("module", name, modules)
    return {
        key: _reordered(key, weight, of_head, axis) if _has_channels(key, weight, listed, axis) else weight
        for key, weight in weights.items()
    }


def _part(key: str, names: list[str]) -> str | None:
    """What a key has after the name of its module: "weight" of "layers.0.q_proj.weight"; None for other modules."""
    for name in names:
        _, found, part = f".{key}".rpartition(f".{name}.")
        if found:
            return part
    return None


def _has_channels(key: str, weight: Tensor | None, names: list[str], axis: int) -> bool:
    """Whether a parameter is to be converted; refuses those of named modules of which that is not known."""
    part = _part(key, names)
    if part is None or weight is None:  # some modules keep None as their _extra_state
        return False
    lora = LORA.fullmatch(part) if axis == 0 else None  # where weights are transposed, adapters may not be
    if not lora and not WEIGHTS.fullmatch(part):
        raise InputError(
            f"{key} is no weight or bias of a module in names: merge its adapter first, convert before quantising, or "
            "convert tensors one by one"
        )
    return not lora or lora[1] == "B"


def _reordered(name: str, weight: Tensor, of_head: Tensor, axis: int) -> Tensor:
    head_dim = len(of_head)
    if not isinstance(weight, Tensor):
        raise InputError(f"{name} is a {type(weight).__name__}: pass tensors")
    if not weight.is_floating_point():
        raise InputError(f"{name} is {weight.dtype}, as quantised weights are: convert before quantising")
    if not -weight.dim() <= axis < weight.dim():
        raise InputError(f"axis={axis}: {name} has shape {tuple(weight.shape)}")
    if weight.dim() > 2 and axis % weight.dim() == 0:
        raise InputError(
            f"axis={axis}: {name} has shape {tuple(weight.shape)}: pass the axis of the channels, 1 of (heads, "
            "head_dim, dim), or flatten it to two axes"
        )
    width = weight.shape[axis]
    if width == 0 or width % head_dim:
        raise InputError(
            f"{name} of shape {tuple(weight.shape)}: its {width} channels along axis {axis} are no multiple of "
            f"head_dim={head_dim}"
        )
    first = torch.arange(0, width, head_dim, device="cpu")
    return weight.index_select(axis, (first[:, None] + of_head).flatten().to(weight.device))
