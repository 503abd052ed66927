# SPDX-License-Identifier: Apache-2.0
"""How an extension is attached to a transformers model and taken off again, with nothing of transformers replaced.

Frequencies alone: the decoder's rotary module gives way to one of ours, and everything else stays. A position map, a
scale on the queries or another denominator: attention goes through `posenc.attention`, registered with transformers under
the name "posenc" together with its masks. Under a map the rotary module turns nothing, so that the cache holds raw keys;
without one it turns as before, but for casts of the model, which do not round its frequencies.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from posenc.attention import attention
from posenc.encoding import Encoding, Sum
from posenc.encodings.rotary import Rotary
from posenc.encodings.temperature import LogN
from posenc.errors import InputError
from posenc.pretrained.anatomy import RECORD, Anatomy, Family
from posenc.pretrained.masks import Allowed, Seen, Window, register, seen

NAME = "posenc"
"""What transformers knows our attention by. Names that begin so are of functions that heed a layer's plan."""


class Absent:
    """Stands, itself, for a value that a configuration does not have."""


class Turns(nn.Module):
    """A rotary module as transformers models call it: (x, position_ids[, layer_type]) -> cos, sin.

    Angles are float64, from frequencies that follow the model's device and never its dtype, and are cast at the end.
    rotations: layer type -> what it turns by. still: layer types for which it turns nothing, because attention does.
    """

    def __init__(self, rotations: Mapping[str, Rotary], still: frozenset[str], family: Family) -> None:
        super().__init__()
        self.rotations: nn.ModuleDict = nn.ModuleDict(rotations)
        self.still = still
        self.family = family

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        kind = next(iter(self.rotations)) if layer_type is None else layer_type
        rotation = self.rotations[kind]
        assert isinstance(rotation, Rotary)
        dtype = torch.float32 if self.family.float_table else x.dtype
        if kind in self.still:
            shape = *position_ids.shape, rotation.inv_freq.numel()
            cos, sin = x.new_ones(shape, dtype=dtype), x.new_zeros(shape, dtype=dtype)
        else:
            cos, sin = (table[:, 0] for table in rotation.cos_sin(position_ids, dtype))
        if self.family.table == "halves":
            return torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
        if self.family.table == "repeated":
            return cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
        return cos, sin

    def extra_repr(self) -> str:
        return f"still={sorted(self.still)}" if self.still else ""


class Memory:
    """What the layers of one forward pass share: where its tokens are. Copies start empty."""

    def __init__(self) -> None:
        self.tensors: tuple[_Same, ...] = ()
        self.sizes: tuple[object, ...] = ()
        self.found: Seen | None = None

    def seen(self, mask: Tensor | None, ids: Tensor | None, queries: int, keys: int, device: torch.device) -> Seen:
        if torch.compiler.is_compiling():
            return seen(mask, ids, queries, keys, device)
        sizes = queries, keys, device
        same = self.sizes == sizes and all(old.holds(x) for old, x in zip(self.tensors, (mask, ids), strict=True))
        if self.found is None or not same:
            self.found = seen(mask, ids, queries, keys, device)
            self.sizes, self.tensors = sizes, (_Same(mask), _Same(ids))
        return self.found

    def __deepcopy__(self, memo: Any) -> "Memory":
        return Memory()

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, ()


class _Same:
    """Recognises a tensor, as long as its values have not changed, without keeping it alive."""

    def __init__(self, x: Tensor | None) -> None:
        self.ref = None if x is None else weakref.ref(x)
        self.version = None if x is None or x.is_inference() else x._version

    def holds(self, x: Tensor | None) -> bool:
        if self.ref is None or x is None:
            return self.ref is None and x is None
        return self.ref() is x and self.version is not None and self.version == x._version


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """What an attention layer does. encoding: what position does; None: nothing. windowed: with the layer's own window."""

    encoding: Encoding | None
    windowed: Encoding | None
    memory: Memory


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_ids: Tensor | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    output_attentions: bool = False,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls (`AttentionInterface`), in its signature; (batch, queries, heads,
    head_dim). s_aux: gpt-oss' sinks.

    Raises:
        InputError: a model that `extend` has not attached to, scores that are capped, or attention weights asked for.
    """
    plan: LayerPlan | None = getattr(module, "_posenc_plan", None)
    if plan is None:
        raise InputError(
            'attn_implementation="posenc" is set by posenc.extend: load the model with another and extend it'
        )
    if softcap is not None or output_attentions:
        what = "capped scores (softcap)" if softcap is not None else "attention weights (output_attentions=True)"
        raise InputError(f"{what}: attention that is never N x N has none; posenc.restore(model) first")
    query, key = query.to(value.dtype), key.to(value.dtype)  # under autocast the rotation has left them in float32
    found = plan.memory.seen(attention_mask, position_ids, query.shape[2], key.shape[2], query.device)
    encoding = plan.windowed
    if found.allowed is not None:
        if _counts(plan.encoding):
            raise InputError(
                "log_n scales by the number of keys that are visible, which a mask of four dimensions hides: pass a mask of "
                "two, or position_ids that start again with each packed document and use_cache=False"
            )
        # transformers takes such a mask for all there is to see, windows too
        encoding = together(plan.encoding, Allowed(found.allowed))
    out = attention(query, key, value, encoding, found.positions, scale=scaling, sink=s_aux, dropout_p=dropout)
    return out.transpose(1, 2).contiguous(), None


def _counts(encoding: Encoding | None) -> bool:
    return encoding is not None and any(isinstance(part, LogN) for part in encoding.modules())


def together(*parts: Encoding | None) -> Encoding | None:
    """The sum of what there is; None: nothing."""
    given = [part for part in parts if part is not None]
    return given[0] if len(given) == 1 else Sum(*given) if given else None


@dataclass(frozen=True, eq=False)
class Design:
    """What is to be attached: everything that can fail has been made already.

    rotations: for the rotary module, by layer type; empty leaves it. still: see `Turns`. encodings: one per layer for our
    attention; empty leaves the model's. config: values for the configuration; `Absent` takes one away.
    """

    rotations: Mapping[str, Rotary]
    still: frozenset[str]
    encodings: tuple[Encoding | None, ...]
    config: Mapping[str, Any]


@dataclass(eq=False)
class Attached:
    """What was there before, and what was put there."""

    anatomy: Anatomy
    design: Design
    report: Any
    rotary: nn.Module
    config: dict[str, Any]
    implementation: str
    layers: list[nn.Module] = field(default_factory=list)
    guard: RemovableHandle | None = None


def attached(model: Any) -> Attached | None:
    """The record of a model's extension (of the transformers model itself); None: it has none."""
    found: Attached | None = getattr(getattr(model, "base_model", None), RECORD, None)
    return found


def attach(body: Anatomy, design: Design, report: Any) -> None:
    """Carry out a design, wholly or not at all."""
    config, decoder = body.config, body.decoder
    kept = {name: getattr(config, name, Absent) for name in design.config}
    record = Attached(body, design, report, body.rotary, kept, config._attn_implementation)
    setattr(decoder, RECORD, record)
    try:
        if design.rotations:
            device = next(body.rotary.buffers()).device
            decoder.rotary_emb = Turns(design.rotations, design.still, body.family).to(device)
        if design.encodings:
            _install(body, design, record)
        configure(config, design.config)
    except BaseException:
        detach(record)
        raise


def _install(body: Anatomy, design: Design, record: Attached) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, register)
    memory = Memory()
    for layer, encoding in zip(body.layers, design.encodings, strict=True):
        record.layers.append(layer.module)
        windowed = encoding if layer.window is None else together(encoding, Window(layer.window))
        layer.module._posenc_plan = LayerPlan(encoding, windowed, memory)  # type: ignore[assignment]
    set_implementation(body.model, NAME)
    record.guard = body.decoder.register_forward_pre_hook(check_heeded)


def check_heeded(decoder: Any, *_: Any) -> None:
    """Refuse to run an extended decoder by an attention that knows nothing of the extension: the keys of a position map are
    not even rotated then. A hook of the decoder, before each pass.

    Raises:
        InputError: names the implementation that was set, and how to go back.
    """
    name = decoder.config._attn_implementation
    if not name.startswith(NAME):
        method = getattr(decoder, RECORD).report.method
        raise InputError(
            f"attn_implementation={name!r} was set on a model that posenc.extend has extended by {method}, which only its "
            f'own attention computes: model.set_attn_implementation("{NAME}") puts it back, posenc.restore(model) takes the '
            "extension off"
        )


def set_implementation(model: Any, name: str) -> None:
    """Let a transformers model attend by another function.

    Raises:
        InputError: its classes do not allow it.
    """
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise InputError(f"{type(model).__name__} does not let its attention be set: only frequency schedules serve it")


def configure(config: Any, values: Mapping[str, Any]) -> None:
    """Set values of a configuration; `Absent` takes one away."""
    for name, value in values.items():
        if value is not Absent:
            setattr(config, name, value)
        elif hasattr(config, name):
            delattr(config, name)


def detach(record: Attached) -> None:
    """Put back the very objects that were there."""
    body, config = record.anatomy, record.anatomy.config
    decoder: Any = body.decoder
    if decoder.rotary_emb is not record.rotary:
        device = next(
            decoder.rotary_emb.buffers()
        ).device  # the model may have moved meanwhile; its dtype is not followed
        decoder.rotary_emb = record.rotary.to(device)
    if record.guard is not None:
        record.guard.remove()
    for module in record.layers:
        if hasattr(module, "_posenc_plan"):
            del module._posenc_plan
    if config._attn_implementation != record.implementation:
        set_implementation(body.model, record.implementation)
    configure(config, record.config)
    delattr(decoder, RECORD)
