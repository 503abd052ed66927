# SPDX-License-Identifier: Apache-2.0
"""A model as `doctor` examines it: its frequencies, read off its buffers, and passes that leave no trace."""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.errors import InputError
from posenc.frequencies.schedules import first_negative
from posenc.pretrained.attach import Attachment, attached
from posenc.pretrained.learned_table import has_learned_table, table_of
from posenc.pretrained.models import Family, head_dim_of, rope_parameters_by_type, rotary_parts, unwrap

ALL_LAYERS = "all layers"
PROBE = 24
"""Tokens of a probe."""


@dataclass(frozen=True)
class FrequencyTable:
    """The frequencies of one layer type. inv_freq: in the model now. parameters: in its configuration."""

    inv_freq: Tensor
    attention_factor: float
    parameters: Mapping[str, Any]

    @property
    def rotary_dim(self) -> int:
        return 2 * self.inv_freq.numel()

    def slow_pairs(self, length: int) -> int:
        """Pairs of channels that complete no turn within `length` tokens."""
        return int((self.inv_freq.double() * length < 2 * math.pi).sum())

    def base_bound(self) -> int | None:
        """The first distance at which a token like the query is not preferred to a random one, see `first_negative`."""
        return first_negative(self.inv_freq)


@dataclass(frozen=True, eq=False)
class Probe:
    """A transformers model with a rotary module, opened for probing even where its configuration contradicts it."""

    model: Any
    decoder: Any
    family: Family
    attachment: Attachment | None

    @classmethod
    def open(cls, model: nn.Module) -> "Probe":
        """Raises:
        InputError: not a transformers model, of an unsupported type, or without weights."""
        inner = unwrap(model)
        if has_learned_table(inner):
            raise InputError(
                f"model of type {str(inner.config.model_type)!r}: its positions are a learned table of {table_of(inner)[1]} "
                "rows, and doctor examines rotary models; posenc.pretrained.learned_table.rows_of_table(model) gives the "
                'rows, posenc.extend(model, "hierarchical" or "interpolate", target_length=...) makes them more'
            )
        family, decoder, _ = rotary_parts(inner)
        if next(inner.parameters()).is_meta:
            raise InputError("model: it has no weights (device meta), and doctor runs it; load them first")
        return cls(inner, decoder, family, attached(inner))

    @property
    def config(self) -> Any:
        return self.decoder.config

    @property
    def rotary(self) -> nn.Module:
        """transformers' own rotary module, also where an extension has replaced it."""
        return self.decoder.rotary_emb if self.attachment is None else self.attachment.rotary

    @property
    def length(self) -> int:
        """max_position_embeddings."""
        return int(self.config.max_position_embeddings)

    @property
    def parameters(self) -> dict[str, Mapping[str, Any]]:
        """rope_parameters of each layer type."""
        return {name or ALL_LAYERS: value for name, value in rope_parameters_by_type(self.config).items()}

    @property
    def head_dim(self) -> int:
        return head_dim_of(self.config)

    def tables(self) -> dict[str, FrequencyTable]:
        """The frequencies by layer type, as the model computes now."""
        if self.attachment is not None and self.attachment.design.rotations:
            ours = self.attachment.design.rotations
            new = {kind: ours.get(kind, next(iter(ours.values()))).frequencies() for kind in self.parameters}
            return {k: FrequencyTable(f.inv_freq, f.attention_factor, self.parameters[k]) for k, f in new.items()}
        return self.tables_in(self.rotary)

    def tables_in(self, rotary: nn.Module) -> dict[str, FrequencyTable]:
        """The frequencies in a rotary module of transformers, by layer type; those of short texts where they depend on the
        length of the text."""
        tables = {}
        for kind, parameters in self.parameters.items():
            prefix = "" if kind == ALL_LAYERS else f"{kind}_"
            moving = parameters.get("rope_type") in ("dynamic", "longrope")
            buffer = getattr(rotary, f"{prefix}{'original_' if moving else ''}inv_freq", None)
            if buffer is not None:
                factor = float(getattr(rotary, f"{prefix}attention_scaling", 1.0))
                tables[kind] = FrequencyTable(buffer.detach(), factor, parameters)
        return tables

    def ids(self, batch: int = 1) -> Tensor:
        """The same random tokens each time, without touching the global generator."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(int(self.config.vocab_size), (batch, PROBE), generator=generator)
        return ids.to(next(self.model.parameters()).device)

    def logits(self, ids: Tensor, **inputs: Any) -> Tensor:
        """Float32 logits of a pass, by default without a cache."""
        return self.model(ids, **({"use_cache": False} | inputs)).logits.float()

    @contextmanager
    def with_rotary(self, rotary: nn.Module) -> Iterator[None]:
        """Another rotary module for a while."""
        before = self.decoder.rotary_emb
        self.decoder.rotary_emb = rotary
        try:
            yield
        finally:
            self.decoder.rotary_emb = before

    def with_own_rotary(self) -> Any:
        """A copy of the rotary module for a while: one that follows the length of the text then stays as it is."""
        return self.with_rotary(copy.deepcopy(self.decoder.rotary_emb))

    @contextmanager
    def with_implementation(self, name: str) -> Iterator[None]:
        """Another implementation of attention for a while."""
        before = self.config._attn_implementation
        try:
            self.model.set_attn_implementation(name)
            yield
        finally:
            self.model.set_attn_implementation(before)

    def rebuilt_rotary(self, times: float = 1.0) -> nn.Module:
        """transformers' rotary module from the configuration as it is now, with its bases multiplied. Errors of
        transformers pass through."""
        device, config = next(self.rotary.buffers()).device, copy.deepcopy(self.config)
        for parameters in rope_parameters_by_type(config).values():
            if times != 1:
                parameters["rope_theta"] *= times  # type: ignore[index]
        return type(self.rotary)(config).to(device)
