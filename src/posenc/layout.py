"""Query and key weights from one rotary layout to the other."""

from collections.abc import Mapping, Sequence
from typing import overload

import torch
from torch import Tensor

from posenc.errors import InputError, unknown
from posenc.functional import Layout, check_even, layout_permutation


@overload
def convert_layout(
    weights: Tensor, head_dim: int, source: Layout, target: Layout, *,
    rotary_dim: int | None = None, rotary_start: int = 0, axis: int = 0,
) -> Tensor: ...  # fmt: skip
@overload
def convert_layout(
    weights: Mapping[str, Tensor], head_dim: int, source: Layout, target: Layout, *,
    rotary_dim: int | None = None, rotary_start: int = 0, axis: int = 0, names: Sequence[str],
) -> dict[str, Tensor]: ...  # fmt: skip
def convert_layout(
    weights: Tensor | Mapping[str, Tensor],
    head_dim: int,
    source: Layout,
    target: Layout,
    *,
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    axis: int = 0,
    names: Sequence[str] | None = None,
) -> Tensor | dict[str, Tensor]:
    """Weights that make queries or keys, reordered so that rotating in the target layout gives the scores of the source.

    Models in transformers mostly rotate in "half"; GPT-J, Meta's own Llama weights and llama.cpp's files of Llama models
    are "interleaved". A weight run in the wrong one still loads, and the model talks nonsense. Only the order of channels within each
    head changes: round trips are bit-equal, and dtype, device and gradient are kept.

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
            the norms of queries and keys where a model has those. Every parameter of theirs is converted.

    Split a fused query-key-value matrix first: values are not rotated. Where quantisation packs several rows into one,
    convert before quantising.

    Raises:
        InputError: a width that is no multiple of head_dim, a rotated part that is odd or exceeds the head, an unknown
            layout, or a name that the state dict lacks.
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
    if not isinstance(weights, Mapping):
        raise InputError(f"weights are a {type(weights).__name__}: pass a tensor, or a model's state_dict()")
    if not names or isinstance(names, str):
        raise InputError(f"names={names!r}: list the modules that make queries and keys, e.g. ['q_proj', 'k_proj']")
    modules = {key: key.rpartition(".")[0] for key in weights}
    for name in names:
        if not any(_ends_with(module, name) for module in modules.values()):
            raise unknown("module", name, {module.rpartition(".")[2] for module in modules.values()})
    return {
        key: _reordered(key, weight, of_head, axis) if any(_ends_with(modules[key], n) for n in names) else weight
        for key, weight in weights.items()
    }


def _ends_with(module: str, name: str) -> bool:
    return f".{module}".endswith(f".{name}")


def _reordered(name: str, weight: Tensor, of_head: Tensor, axis: int) -> Tensor:
    head_dim = len(of_head)
    if not -weight.dim() <= axis < weight.dim():
        raise InputError(f"axis={axis}: {name} has shape {tuple(weight.shape)}")
    width = weight.shape[axis]
    if width == 0 or width % head_dim:
        raise InputError(
            f"{name} of shape {tuple(weight.shape)}: its {width} channels along axis {axis} are no multiple of "
            f"head_dim={head_dim}"
        )
    first = torch.arange(0, width, head_dim, device="cpu")
    return weight.index_select(axis, (first[:, None] + of_head).flatten().to(weight.device))
