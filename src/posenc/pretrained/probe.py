# SPDX-License-Identifier: Apache-2.0
"""A transformers model opened for `doctor`: its frequencies, its description, and short runs of random tokens."""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posenc import frequencies
from posenc.backends.precision import HALF
from posenc.errors import InputError
from posenc.pretrained.attach import Attachment, attached
from posenc.pretrained.config_file import ConfigFile
from posenc.pretrained.findings import Evidence
from posenc.pretrained.gguf_reader import read_config
from posenc.pretrained.learned_table import has_learned_table, table_of
from posenc.pretrained.models import (
    Rope,
    attention_factor,
    attention_layers,
    rotary_parts,
    stated_rope,
    tables_of,
    unwrap,
)
from posenc.pretrained.parameters import rope_parameters_by_type

PROBE = 24
"""Tokens of a probe."""
ROUNDING, ROUNDING_HALF, ROUNDING_LAYER = 1e-3, 0.2, 0.05
"""Differences that count, as a share of the spread: in float32, of logits in half precision, and of one layer's attention in it."""
ALL_LAYERS = "all layers"


@dataclass(frozen=True)
class FrequencyTable:
    """The frequencies of one layer type. inv_freq: in the model now. parameters: in its configuration."""

    inv_freq: Tensor
    attention_factor: float
    parameters: Mapping[str, Any]

    @property
    def rotary_dim(self) -> int:
        return 2 * self.inv_freq.numel()

    def described(self, tokens: int) -> "RotationDescription":
        """tokens: that a query sees, at most."""
        turning = self.inv_freq[self.inv_freq != 0].double()  # Gemma 4 has pairs that stand still
        return RotationDescription(
            rope_theta=self.parameters.get("rope_theta"),
            schedule=str(self.parameters.get("rope_type", "default")),
            rotary_dim=2 * turning.numel(),
            attention_factor=self.attention_factor,
            tokens=tokens,
            slow_pairs=int((turning * tokens < 2 * math.pi).sum()),
        )


@dataclass(frozen=True)
class RotationDescription:
    """rotary_dim: rotated channels of a head, whose frequency is not 0. tokens: that a query sees, at most: the model's length, or the layers' window.
    slow_pairs: pairs of channels that complete no rotation within them."""

    rope_theta: float | None
    schedule: str
    rotary_dim: int
    attention_factor: float
    tokens: int
    slow_pairs: int


@dataclass(frozen=True)
class Computation:
    """What was compared with `posenc.attention`. layers: how many. tokens: of the text. windows: sliding windows that
    a longer text left. unchecked: what was not compared, and why. used: by pair, its share of the norms of queries times keys."""

    layers: int
    tokens: int
    windows: tuple[int, ...]
    unchecked: tuple[str, ...]
    used: tuple[float, ...] = ()

    def __str__(self) -> str:
        longer = "".join(f", the window of {window} with {window + PROBE}" for window in self.windows)
        done = f"computed: attention of {self.layers} layers with {self.tokens} tokens{longer}, against the declared formula"
        first = next(at for at in range(len(self.used) + 1) if sum(self.used[at:]) < 0.5)
        slow = f"frequencies used: half of the norms of queries times keys is in the {len(self.used) - first + 1} slowest of {len(self.used)} pairs"
        return "\n".join(
            ([done] if self.layers else [])
            + ([slow] if self.used else [])
            + [f"not checked: {each}" for each in self.unchecked]
        )


@dataclass(frozen=True)
class ModelDescription:
    """length: max_position_embeddings. rotations: by layer type. extended: the method of posenc.extend, None: it is not.
    computed: which attention was computed."""

    model_type: str
    layout: str
    head_dim: int
    layers: int
    length: int
    dtype: str
    attention: str
    extended: str | None
    rotations: Mapping[str, RotationDescription]
    computed: Computation

    def __str__(self) -> str:
        lines = [
            f"{self.model_type}: {self.layers} layers, {self.dtype}, attention {self.attention}, "
            f"for {self.length} tokens (nothing stops longer inputs)",
            f"extended: {self.extended or 'no'}",
        ]
        for kind, rotation in self.rotations.items():
            theta = "missing" if rotation.rope_theta is None else f"{rotation.rope_theta:.10g}"
            window = rotation.tokens < self.length
            lines += [
                f"rotary in {kind}: {rotation.rotary_dim} of {self.head_dim} channels, {self.layout} layout, rope_theta "
                f"{theta}, {rotation.schedule}, attention factor {rotation.attention_factor:.10g}",
                f"  {rotation.slow_pairs} of {rotation.rotary_dim // 2} pairs never complete a rotation in "
                f"{f'the window of {rotation.tokens}' if window else self.length} tokens",
            ]
        lines.append(str(self.computed))
        if self.dtype in [str(dtype).removeprefix("torch.") for dtype in HALF]:
            lines.append(
                f"compared to {ROUNDING_LAYER:.0%} of the spread of a layer's attention, and of caches, padding and packing to "
                f"{ROUNDING_HALF:.0%} of that of the logits, since the model is in {self.dtype}; in float32 to {ROUNDING:.1%}"
            )
        return "\n".join(lines)


class Probe:
    """A transformers model with a rotary module, opened for probing even where its configuration contradicts it.

    rotary: transformers' own module, also where an extension has replaced it. length: max_position_embeddings. parameters:
    rope_parameters of each layer type.

    Raises:
        InputError: not a transformers model, of an unsupported type, without weights, or without logits for each token.
    """

    def __init__(self, model: nn.Module) -> None:
        inner = unwrap(getattr(model, "_orig_mod", model))
        if has_learned_table(inner):
            raise InputError(
                f"model of type {str(inner.config.model_type)!r}: its positions are a learned table of {table_of(inner)[1]} "
                "rows, and doctor examines rotary models; posenc.pretrained.learned_table.rows_of_table(model) gives the "
                'rows, posenc.extend(model, "hierarchical", target_length=...) makes them more'
            )
        if next(inner.parameters()).is_meta:
            raise InputError("it has no weights (device meta), and doctor runs it", "load them first", argument="model")
        self.model: Any = inner
        self.family, self.decoder, rotary = rotary_parts(inner)
        if inner.get_output_embeddings() is None and not self.family.encoder:
            raise InputError(
                f"a {type(inner).__name__} has no logits for each token, which are compared: pass the causal language model, as "
                "AutoModelForCausalLM loads it"
            )
        self.attachment: Attachment | None = attached(inner)
        self.rotary: nn.Module = rotary if self.attachment is None else self.attachment.structure.rotary
        self.config: Any = self.decoder.config
        self.length = int(self.config.max_position_embeddings)
        self.head_dim: int = attention_layers(self.decoder, self.family)[0].head_dim
        by_type = rope_parameters_by_type(self.config)
        self.parameters = {name or ALL_LAYERS: parameters for name, parameters in by_type.items()}

    @cached_property
    def file(self) -> ConfigFile | None:
        """The config.json that the model was loaded from; None: there is none."""
        file = Path(getattr(self.config, "name_or_path", None) or "") / "config.json"
        return read_config(file) if file.parts[:-1] and file.is_file() else None

    def where(self, layer_type: str) -> str:
        """A layer type in a sentence, empty where there is only one."""
        return "" if len(self.parameters) == 1 else f" of {layer_type}"

    def tokens(self, kind: str) -> int:
        """That a query sees in the layers of a type, at most."""
        layers = attention_layers(self.decoder, self.family)
        seen = [each.window or self.length for each in layers if kind in (ALL_LAYERS, each.layer_type)]
        return min(self.length, max(seen, default=self.length))

    def description(self, computed: Computation) -> ModelDescription:
        return ModelDescription(
            model_type=str(self.model.config.model_type),
            layout=self.family.layout,
            head_dim=self.head_dim,
            layers=int(self.config.num_hidden_layers),
            length=self.length,
            dtype=str(self.model.dtype).removeprefix("torch."),
            attention=str(self.config._attn_implementation),
            extended=None if self.attachment is None else self.attachment.report.method,
            rotations={kind: table.described(self.tokens(kind)) for kind, table in self.tables().items()},
            computed=computed,
        )

    def tables(self) -> dict[str, FrequencyTable]:
        """The frequencies by layer type, as the model computes now."""
        if self.attachment is None or not self.attachment.design.rotations:
            return self.tables_in(self.rotary)
        rotations = self.attachment.design.rotations
        default = next(iter(rotations.values()))
        tables = {}
        for kind, parameters in self.parameters.items():
            new = rotations.get(kind, default).frequencies()
            tables[kind] = FrequencyTable(new.inv_freq, new.attention_factor, parameters)
        return tables

    def tables_at(self, length: int) -> dict[str, FrequencyTable]:
        """The frequencies by layer type for a text of a length, by the configuration where they depend on it."""
        tables = self.tables()
        if self.attachment is not None and self.attachment.design.rotations:
            return tables
        for kind, table in tables.items():
            if table.parameters.get("rope_type") in ("dynamic", "longrope"):
                rope = self.stated(table)
                made = frequencies.create(rope.at(length), rope.rotary_dim, base=rope.rope_theta)
                inv_freq = made.inv_freq.to(table.inv_freq.device)
                tables[kind] = FrequencyTable(inv_freq, made.attention_factor, table.parameters)
        return tables

    def stated(self, table: FrequencyTable) -> Rope:
        """The rotation that the configuration states for a layer type.

        Raises:
            InputError: an unknown rope_type, or numbers that this model type does not take.
        """
        return stated_rope(table.parameters, self.config, table.rotary_dim, self.head_dim, self.family)

    def tables_in(self, rotary: nn.Module) -> dict[str, FrequencyTable]:
        """The frequencies in a rotary module of transformers, by layer type; those of short inputs where they depend on the
        length of the text."""
        tables = {}
        for kind, parameters in self.parameters.items():
            prefix = "" if kind == ALL_LAYERS else f"{kind}_"
            for buffer in tables_of(rotary, prefix, parameters)[:1]:
                tables[kind] = FrequencyTable(buffer, attention_factor(rotary, prefix), parameters)
        return tables

    def ids(self, batch: int = 1, length: int = PROBE) -> Tensor:
        """The same random tokens each time, without touching the global generator."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(int(self.config.vocab_size), (batch, length), generator=generator)
        return ids.to(next(self.model.parameters()).device)

    def logits(self, ids: Tensor, **inputs: Any) -> Tensor:
        """Float32 logits of a plain pass without a cache."""
        return self.model(ids, use_cache=False, **inputs).logits.float()

    @contextmanager
    def with_rotary(self, rotary: nn.Module | None = None) -> Iterator[None]:
        """Another rotary module for a while; None: a copy, so that one that follows the length of the text does not change."""
        before = self.decoder.rotary_emb
        self.decoder.rotary_emb = copy.deepcopy(before) if rotary is None else rotary
        try:
            yield
        finally:
            self.decoder.rotary_emb = before

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """The model without what model.compile() made, for a while."""
        before, self.model._compiled_call_impl = self.model._compiled_call_impl, None
        try:
            yield
        finally:
            self.model._compiled_call_impl = before


def difference(actual: Tensor, expected: Tensor) -> float:
    """The root mean square of a difference, as a share of what is expected to vary."""
    actual, expected = actual.float(), expected.float()
    return float((actual - expected).square().mean().sqrt() / expected.std())


def differ(probe: Probe, name: str, text: str, actual: Tensor, expected: Tensor) -> Evidence:
    """A finding where logits differ by more than rounding."""
    ratio = difference(actual, expected)
    if ratio > (ROUNDING_HALF if probe.model.dtype in HALF else ROUNDING):
        yield name, f"{text}, by {ratio:.3g} of their spread (root mean square)", ratio
