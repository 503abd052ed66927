# SPDX-License-Identifier: Apache-2.0
"""A model as `doctor` examines it: what it turns by, read off its buffers, and probes that leave no trace."""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.errors import InputError, unknown
from posenc.frequencies.schedules import first_negative
from posenc.pretrained.anatomy import FAMILIES, Family, unwrapped
from posenc.pretrained.attach import Attached, attached
from posenc.pretrained.learned_table import has_learned_table, table_of

ALL_LAYERS = "all layers"
PROBE = 24
"""Tokens of a probe."""


@dataclass(frozen=True)
class Table:
    """The frequencies of one layer type. inv_freq: as the model holds them now. parameters: what its configuration says."""

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
        """From where on a token like the query is no longer preferred to a random one, see `first_negative`."""
        return first_negative(self.inv_freq)


@dataclass(frozen=True, eq=False)
class Patient:
    """A transformers model taken apart far enough to be probed, even where its configuration contradicts it."""

    model: Any
    decoder: Any
    family: Family
    record: Attached | None

    @property
    def config(self) -> Any:
        return self.decoder.config

    @property
    def rotary(self) -> nn.Module:
        """transformers' own rotary module, also where an extension has put another in its place."""
        return self.decoder.rotary_emb if self.record is None else self.record.rotary

    @property
    def length(self) -> int:
        """Tokens the model is said to be for."""
        return int(self.config.max_position_embeddings)

    @property
    def parameters(self) -> dict[str, Mapping[str, Any]]:
        """What the configuration says of each layer type's rotation."""
        said = self.config.rope_parameters or {}
        nested = [name for name, value in said.items() if isinstance(value, Mapping)]
        return {name: said[name] for name in nested} if nested else {ALL_LAYERS: said}

    @property
    def head_dim(self) -> int:
        heads = int(self.config.num_attention_heads)
        return int(getattr(self.config, "head_dim", None) or self.config.hidden_size // heads)

    def tables(self, at_rest: bool = False) -> dict[str, Table]:
        """The frequencies by layer type, of transformers' own rotary module where `at_rest`: those of short texts."""
        if self.record is not None and self.record.design.rotations and not at_rest:
            ours = self.record.design.rotations
            found = {kind: ours.get(kind, next(iter(ours.values()))).frequencies() for kind in self.parameters}
            return {k: Table(f.inv_freq, f.attention_factor, self.parameters[k]) for k, f in found.items()}
        return tables_of(self.rotary, self.parameters)

    def ids(self, batch: int = 1) -> Tensor:
        """The same tokens each time, without touching anybody's random numbers."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(int(self.config.vocab_size), (batch, PROBE), generator=generator)
        return ids.to(next(self.model.parameters()).device)

    def logits(self, ids: Tensor, **inputs: Any) -> Tensor:
        """Float32 logits of a pass, by default without a cache."""
        return self.model(ids, **({"use_cache": False} | inputs)).logits.float()

    @contextmanager
    def with_rotary(self, rotary: nn.Module) -> Iterator[None]:
        """Another rotary module for a while."""
        kept = self.decoder.rotary_emb
        self.decoder.rotary_emb = rotary
        try:
            yield
        finally:
            self.decoder.rotary_emb = kept

    @contextmanager
    def with_implementation(self, name: str) -> Iterator[None]:
        """Another implementation of attention for a while."""
        kept = self.config._attn_implementation
        try:
            self.model.set_attn_implementation(name)
            yield
        finally:
            self.model.set_attn_implementation(kept)

    def rebuilt_rotary(self, times: float = 1.0) -> nn.Module:
        """transformers' rotary module as the configuration asks for it now, with its bases multiplied.

        Whatever transformers raises at a configuration that it cannot build comes through.
        """
        device, config = next(self.rotary.buffers()).device, copy.deepcopy(self.config)
        said = config.rope_parameters or {}
        for parameters in [value for value in said.values() if isinstance(value, dict)] or [said]:
            if times != 1:
                parameters["rope_theta"] *= times
        return type(self.rotary)(config).to(device)


def tables_of(rotary: nn.Module, parameters: Mapping[str, Mapping[str, Any]]) -> dict[str, Table]:
    """The frequencies that a rotary module of transformers holds, by layer type.

    A schedule that moves its frequencies with the length of the text keeps those of short texts as well: these.
    """
    found = {}
    for kind, said in parameters.items():
        prefix = "" if kind == ALL_LAYERS else f"{kind}_"
        moving = said.get("rope_type") in ("dynamic", "longrope")
        buffer = getattr(rotary, f"{prefix}{'original_' if moving else ''}inv_freq", None)
        if buffer is not None:
            factor = float(getattr(rotary, f"{prefix}attention_scaling", 1.0))
            found[kind] = Table(buffer.detach(), factor, said)
    return found


def patient(model: nn.Module) -> Patient:
    """Take a model in.

    Raises:
        InputError: not a transformers model, or of a type that posenc does not know.
    """
    inner = unwrapped(model)
    model_type = str(inner.config.model_type)
    if has_learned_table(inner):
        _, length = table_of(inner)
        raise InputError(
            f"model of type {model_type!r}: its positions are a learned table of {length} rows, and doctor examines rotary "
            "models; posenc.pretrained.learned_table.rows_of_table(model) gives the rows, posenc.extend(model, "
            '"hierarchical" or "interpolate", target_length=...) makes them more'
        )
    if model_type not in FAMILIES:
        raise unknown("model type", model_type, FAMILIES, 0.7)
    decoder = inner.base_model
    if not isinstance(getattr(decoder, "rotary_emb", None), nn.Module):
        raise InputError(f"model of type {model_type!r} has no rotary_emb: it was built in an unusual way")
    if next(inner.parameters()).is_meta:
        raise InputError("model: it has no weights (device meta), and examining it runs it")
    return Patient(inner, decoder, FAMILIES[model_type], attached(inner))
