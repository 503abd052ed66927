# SPDX-License-Identifier: Apache-2.0
"""Attach an extension to a transformers model, and detach it, without replacing anything in transformers.

Frequencies alone: the decoder's rotary module is exchanged for a `RotaryModule`, and everything else stays. A position map,
a scale on the queries or another denominator: attention goes through `posenc.attention`, registered with transformers under
the name "posenc" together with its masks. The rotary module rotates as before, but for casts of the model, which do not
round its frequencies, and a map turns queries and keys on from there.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from posenc.encoding import Encoding
from posenc.encodings.rotary import Rotary
from posenc.errors import InputError
from posenc.pretrained.changes import RECORD, Change, ModelChange, config_changes
from posenc.pretrained.encoders import of_model
from posenc.pretrained.families import Family
from posenc.pretrained.masks import HostPass, token_index
from posenc.pretrained.models import ModelStructure, record_of

NAME = "posenc"
"""The attention implementation in transformers. Names that begin so are of functions that heed a layer's plan."""


class RotaryModule(nn.Module):
    """A rotary module as transformers models call it: (x, position_ids[, layer_type]) -> cos, sin.

    Angles are float64, from frequencies that follow the model's device and never its dtype, and are cast at the end.
    rotations: by layer type. identity_layers: layer types that it does not rotate, because attention does. replaced: the
    model's module, which puts the sections of M-RoPE together. mapped_layers: layer types under a position map.
    """

    def __init__(
        self, rotations: Mapping[str, Rotary], identity_layers: frozenset[str], family: Family, replaced: Any = None,
        mapped_layers: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        super().__init__()
        self.joined: Callable[[Tensor], Tensor] | None = getattr(replaced, "recomposition_frequencies", None)
        self.rotations: nn.ModuleDict = nn.ModuleDict(rotations)
        self.identity_layers, self.mapped_layers = identity_layers, mapped_layers
        self.family = family

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor] | Tensor:
        kind = next(iter(self.rotations)) if layer_type is None else layer_type
        dtype = torch.float32 if self.family.float_table or self.family.table == "complex" else x.dtype
        if self.family.table == "sections":
            return self.sections(kind, position_ids.expand(3, -1, -1), dtype)
        cos, sin = (table[:, 0] for table in self.tables(kind, position_ids, dtype))
        if self.family.table == "complex":
            return torch.complex(cos, sin)
        if self.family.table == "halves":
            return torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
        if self.family.table == "repeated":
            return cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
        return cos, sin

    def sections(self, kind: str, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin of M-RoPE, from positions by axis, (3, batch, tokens).

        Raises:
            InputError: positions that differ by axis where attention rotates, which it does by those of the text.
        """
        alike = kind not in self.identity_layers | self.mapped_layers or torch.compiler.is_compiling()
        if not alike and not torch.equal(position_ids, position_ids[:1].expand_as(position_ids)):
            raise InputError(
                "position_ids that differ by axis: a position map is for text; extend by a frequency schedule"
            )
        assert self.joined is not None
        cos, sin = (table[:, 0].unflatten(0, (3, -1)) for table in self.tables(kind, position_ids.flatten(0, 1), dtype))
        return self.joined(cos), self.joined(sin)

    def tables(self, kind: str, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin for a layer type, (batch, 1, tokens, pairs)."""
        rotation = self.rotations[kind]
        assert isinstance(rotation, Rotary)
        if kind not in self.identity_layers:
            return rotation.cos_sin(position_ids, dtype)
        cos = position_ids.new_ones((*position_ids.shape, rotation.inv_freq.numel()), dtype=dtype)[:, None]
        return cos, torch.zeros_like(cos)

    def extra_repr(self) -> str:
        return f"identity_layers={sorted(self.identity_layers)}" if self.identity_layers else ""


def unrotated(tables: Any) -> Any:
    """What a rotary module of transformers makes, of angles 0: cos and sin, complex numbers, or either by layer type."""
    if isinstance(tables, Mapping):
        return {kind: unrotated(each) for kind, each in tables.items()}
    if isinstance(tables, Tensor):
        return torch.ones_like(tables)
    cos, sin = tables
    return torch.ones_like(cos), torch.zeros_like(sin)


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of an attention function by a transformers model (`AttentionInterface`).

    query: (batch, heads, queries, head_dim); key, value: (batch, kv_heads, keys, head_dim), all of one dtype. mask: from the
    mask function. sink: learned logits of gpt-oss. scale: None where the model leaves it to the attention function.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float | None
    dropout: float
    sink: Tensor | None
    position_ids: Tensor | None
    softcap: float | None
    output_attentions: bool | None
    position_bias: Any


def register_attention(name: str, function: Callable[[AttentionCall], Tensor], mask: Callable[..., Any] | None) -> None:
    """Register an attention function with transformers.

    function: gives (batch, heads, queries, head_dim). mask: the mask function (`AttentionMaskInterface`); with None the model
    makes no masks at all.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
        scaling: float | None = None, dropout: float = 0.0, s_aux: Tensor | None = None, **others: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        query, key = query.to(value.dtype), key.to(value.dtype)  # under autocast the rotation leaves them in float32
        known = {name: others.get(name) for name in ("position_ids", "softcap", "output_attentions", "position_bias")}
        call = AttentionCall(module, query, key, value, attention_mask, scaling, dropout, s_aux, **known)
        return function(call).transpose(1, 2).contiguous(), None

    AttentionInterface.register(name, attend)
    if mask is not None:
        AttentionMaskInterface.register(name, mask)


def set_implementation(model: Any, name: str) -> None:
    """Let a transformers model attend by another function.

    Raises:
        InputError: its classes do not allow it.
    """
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise InputError(
            f"{type(model).__name__} does not let its attention be set: extend it by a frequency schedule, such as yarn"
        )


INSTEAD = "posenc_instead"
"""The attention implementation while each layer attends by a function that it is given. It has no mask function, and so makes no masks."""


def attend_instead(call: AttentionCall) -> Tensor:
    """By the layer's function: transformers forgets nothing that is registered, so that it must refer to no model."""
    return getattr(call.module, f"_{INSTEAD}")(call)


def check_attention(structure: ModelStructure) -> None:
    """Refuse a model whose attention no function of ours can take the place of.

    Raises:
        InputError: says why, and what such a model takes.
    """
    if structure.schedules_only:
        raise InputError(
            f"a model of type {structure.model_type} takes frequency schedules alone, such as yarn or ntk, and nothing that "
            f"replaces its attention: {structure.schedules_only}"
        )


@dataclass(eq=False)
class Running:
    """The forward pass in which a model is; None: none. Copies are in none."""

    here: HostPass | None = None

    def __deepcopy__(self, memo: Any) -> "Running":
        return Running()

    def __reduce__(self) -> tuple[Any, ...]:
        return Running, ()


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """What an attention layer does. encoding: None: nothing positional. window: keys that a query sees, None: all."""

    encoding: Encoding | None
    window: int | None
    running: Running


def attend(call: AttentionCall) -> Tensor:
    """The attention of an extended layer.

    Raises:
        InputError: a causal decoder that `extend` has not attached to, or attention weights asked for.
    """
    plan: LayerPlan | None = getattr(call.module, "_posenc_plan", None)
    if plan is None:
        see, encoding, window = of_model(call.module, call.position_bias)
        return attended(call, HostPass(see), encoding, window, call.mask)
    here = plan.running.here  # none where a checkpoint computes the layer again
    if here is None or torch.compiler.is_compiling():
        here = HostPass()
    return attended(call, here, plan.encoding, plan.window, call.mask)


def attended(
    call: AttentionCall, here: HostPass, encoding: Encoding | None, window: int | None, mask: Tensor | None,
    **options: Any,
) -> Tensor:  # fmt: skip
    """The attention of a call in a pass. encoding, window, mask: as in `HostPass.at`. options: of `attention`.

    Raises:
        InputError: attention weights asked for.
    """
    if call.output_attentions:
        raise InputError(
            "posenc's attention is fused and has no weights to return: leave it out, or call posenc.restore(model) "
            "if the model was extended",
            output_attentions=True,
        )
    q, k, v = call.query, call.key, call.value
    made = here.at(encoding, window, mask, call.position_ids, q.shape[2], k.shape[2], q.device)
    options = {"scale": call.scale, "softcap": call.softcap} | options
    return made.attention(q, k, v, sink=call.sink, dropout_p=call.dropout, **options)


def combined(*parts: Encoding) -> Encoding | None:
    """The sum of encodings; None without any."""
    return reduce(add, parts) if parts else None


@dataclass(frozen=True, eq=False)
class Design:
    """What to attach: everything whose construction can fail exists already.

    rotations: for the rotary module, by layer type; empty leaves it. identity_layers: see `RotaryModule`. encodings: one per
    layer for our attention; empty leaves the model's. config: values for the configuration; `MISSING` removes one.
    mapped_layers: layer types under a position map.
    """

    rotations: Mapping[str, Rotary]
    identity_layers: frozenset[str]
    encodings: tuple[Encoding | None, ...]
    config: Mapping[str, Any]
    mapped_layers: frozenset[str] = frozenset()


class _ImplementationChange(Change):
    """The attention function that a transformers model uses."""

    def swap(self) -> None:
        now = self.owner.config._attn_implementation
        if now != self.value:
            set_implementation(self.owner, self.value)
        self.value = now


class Attachment(ModelChange):
    """An extension of a rotary model. The rotary module is exchanged, and where the design has encodings, attention."""

    def __init__(self, structure: ModelStructure, design: Design, report: Any) -> None:
        decoder = structure.decoder
        super().__init__(decoder, report)
        self.structure, self.design, self.running = structure, design, Running()
        self.hooks: list[RemovableHandle] = []
        if design.rotations:
            layers = design.identity_layers, structure.family, structure.rotary, design.mapped_layers
            module = RotaryModule(design.rotations, *layers)
            self.changes.append(Change(decoder, "rotary_emb", module))
        if structure.family.latent and "rope_parameters" in design.config:
            scale = softmax_scale(structure, design.config["rope_parameters"])
            self.changes += [Change(layer.module, "scaling", scale) for layer in structure.layers]
        for layer, encoding in zip(structure.layers, design.encodings, strict=False):
            plan = LayerPlan(encoding, layer.window, self.running)
            self.changes.append(Change(layer.module, "_posenc_plan", plan))
        if design.encodings:
            self.changes.append(_ImplementationChange(structure.model, "", NAME))
        self.changes += config_changes(decoder.config, deepcopy(dict(design.config)))

    @property
    def not_expressed(self) -> tuple[str, ...]:
        """The parts that no configuration of a plain model states."""
        report = self.report
        return (() if report.map is None else (f"the position map {report.map['name']}",)) + tuple(report.attention)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration values that the design changes, as they were."""
        return self.before(self.structure.config)

    def attach(self) -> None:
        """Carry out the design, completely or not at all."""
        if self.design.encodings:
            register_attention(NAME, attend, token_index)
        super().attach()
        if self.design.encodings:
            self.hooks = [
                self.owner.register_forward_pre_hook(_begin_pass),
                self.owner.register_forward_hook(_end_pass, always_call=True),
            ]

    def detach(self) -> None:
        super().detach()
        for hook in self.hooks:
            hook.remove()


def softmax_scale(structure: ModelStructure, rope_parameters: Mapping[str, Any]) -> float:
    """What transformers multiplies the scores of a model with latent attention by: YaRN's temperature is part of it."""
    config, kind = deepcopy(structure.config), type(structure.layers[0].module)
    config.rope_parameters = dict(rope_parameters)
    with torch.device("meta"):
        made: Any = kind(config, 0)
    return float(made.scaling)


def attached(model: Any) -> Attachment | None:
    """The extension of a rotary transformers model; None: it has none."""
    attachment = record_of(model) if hasattr(model, "base_model") else None
    return attachment if isinstance(attachment, Attachment) else None


def _end_pass(decoder: Any, *_: Any) -> None:
    """A forward hook."""
    getattr(decoder, RECORD).running.here = None


def _begin_pass(decoder: Any, *_: Any) -> None:
    """Refuse to run an extended decoder by an attention that ignores the extension. A forward pre-hook."""
    attachment: Attachment = getattr(decoder, RECORD)
    attachment.running.here = None if torch.compiler.is_compiling() else HostPass()
    name = decoder.config._attn_implementation
    if not name.startswith(NAME):
        raise InputError(
            f"was set on a model that posenc.extend has extended by {attachment.report.method}, which only attention "
            f'"{NAME}" computes: call model.set_attn_implementation("{NAME}"), or posenc.restore(model) to undo the extension',
            attn_implementation=name,
        )
