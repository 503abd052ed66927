# SPDX-License-Identifier: Apache-2.0
"""What is analysed: an encoding, codes or a model's encoding, with the views of it that questions ask for."""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from posenc.analysis.codes import SHAPE, Codes, HiddenKeys, codes_of, parts_of, sizes_of
from posenc.conformance.fixtures import seeded
from posenc.encoding import Encoding
from posenc.encodings import create
from posenc.encodings.absolute import Absolute
from posenc.encodings.rotary import Rotary
from posenc.errors import InputError, check_integers, check_sizes, not_none
from posenc.lab.transformer import Transformer
from posenc.positions import Positions

LONGEST = 2**17
"""Most positions of an analysis: pictures and fits need all their codes at once."""
LAYERS = 2
"""Layers of the model around an encoding that is an object or a class."""


class CodeEncoding(Absolute):
    """An encoding that adds any `Codes` to the input."""

    def __init__(self, codes: Codes) -> None:
        super().__init__(codes(torch.arange(1)).shape[1])
        self.function = codes
        self.max_positions: int | None = codes.limit

    def codes(self, positions: Positions) -> Tensor:
        return torch.stack([self.function(row) for row in positions.q])


@dataclass(frozen=True, eq=False)
class Target:
    """What is analysed. Each view raises InputError, with the reason, where the target has none."""

    name: str
    """For people"""
    obj: Any
    """An encoding, Codes or a model"""
    length: int
    """Positions that are analysed"""
    trained: int
    """Positions that it was, or would be, trained on"""
    seed: int = 0
    """Of whatever is random"""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of an encoding that does not have them as attributes"""

    @property
    def kind(self) -> str:
        return "encoding" if isinstance(self.obj, Encoding) else "model" if _is_model(self.obj) else "codes"

    @cached_property
    def codes(self) -> Codes:
        """A vector per position, or a number per head and distance, up to the first that is hidden."""
        codes = self._all_codes
        try:
            codes(torch.arange(self.length if codes.limit is None else min(self.length, codes.limit)))
        except HiddenKeys as hidden:
            if hidden.distance < 2:
                raise
            return replace(codes, limit=hidden.distance, ends="keys are hidden")
        return codes

    @cached_property
    def _all_codes(self) -> Codes:
        return codes_of(self.obj, **self.named)

    @cached_property
    def position_codes(self) -> Codes:
        """The codes, where they are of positions."""
        if self.codes.of != "position":
            raise InputError("it acts on the distance of two tokens, and no position has a code")
        return self.codes

    @property
    def trained_codes(self) -> int:
        """The training length, up to the first hidden key."""
        return min(self.trained, self.codes.limit) if self.codes.ends and self.codes.limit else self.trained

    @property
    def named(self) -> dict[str, Any]:
        """Keyword arguments for functions of an encoding: its name, and sizes that it does not have as attributes."""
        return {"name": self.name, **self.sizes}

    @cached_property
    def encoding(self) -> Encoding:
        """What acts in attention; codes act by being added to the input."""
        if isinstance(self.obj, (Encoding, Transformer)):
            return self.obj if isinstance(self.obj, Encoding) else self.obj.encoding
        module = self.codes.module
        return module if isinstance(module, Encoding) else CodeEncoding(self.position_codes)

    @cached_property
    def rotary(self) -> Rotary:
        """RoPE, where it rotates queries and keys of the first layer."""
        acting = self.encoding.acting_in(0).part
        rotary = next((part for part in acting.modules() if isinstance(part, Rotary)), None)
        if rotary is None or "rotate" not in acting.sites():
            raise InputError("it has no frequencies of RoPE")
        return rotary

    @property
    def runs_user_code(self) -> bool:
        """Whether an encoding that is not posenc's is part of it, whose failures are reported rather than raised."""
        parts = parts_of(self.obj) if isinstance(self.obj, Encoding) else []
        return any(type(part).__module__.split(".")[0] != "posenc" for part in parts)

    @property
    def note(self) -> str:
        """Which layer is analysed, where layers differ; else empty."""
        if not isinstance(self.obj, Encoding):
            return ""
        acting = self.obj.acting_in(0).part
        if acting is self.obj and self.obj.num_layers == 1:
            return ""
        what = f"has {acting.known_as}" if acting is not self.obj else "has separate parameters"
        return f"Layers differ: layer 0, which {what}, is analysed alone."


def target_of(
    subject: Any,
    *,
    length: int = 512,
    trained: int | None = None,
    seed: int = 0,
    name: str | None = None,
    **shape: Any,
) -> Target:
    """The `Target` for an encoding, its text or class, a function positions -> vectors, a table or a model.

    A class is made for `shape` (codes.SHAPE), as a text is. An encoding that is an object is read with its attributes
    num_heads, num_kv_heads, head_dim and dim, and with those of `shape` where it has none. length is cut to what the
    subject is defined for.

    Raises:
        InputError: sizes out of range, or other ones than the subject has; a subject that is none of these, or whose codes
            are not finite, not (n, dim), or different when they are asked for again.
    """
    check_integers(2, length=length)
    check_integers(seed=seed)
    if length > LONGEST:
        raise InputError(f"must be at most {LONGEST}; single analyses take more", length=length)
    check_sizes(**not_none(trained=trained))
    if trained is None:
        trained = (_trained_length(subject) if _is_model(subject) else None) or length
    text = subject if isinstance(subject, str) else None
    with seeded(seed):
        obj = _object(subject, {**SHAPE, "max_positions": trained, **shape}, shape, name)
    sizes = shape if isinstance(obj, Encoding) and text is None else {}
    if sizes:
        sizes_of(obj, sizes)
    target = Target(name or text or _name(subject), obj, length, trained, seed, sizes)
    limits = [obj.max_positions if isinstance(obj, Encoding) else None]
    codes = None
    with suppress(InputError):  # it need not have codes
        codes = target._all_codes
    if codes is not None:
        with suppress(HiddenKeys):
            codes = target.codes  # reads them, and raises if they are wrong
        limits.append(None if codes.ends else codes.limit)
    return replace(target, length=min([length, *(limit for limit in limits if limit is not None)]))


def _object(subject: Any, shape: dict[str, Any], given: dict[str, Any], name: str | None) -> Any:
    """given: what of the shape the caller gave."""
    if isinstance(subject, str):
        return create(subject, **shape)
    if isinstance(subject, Encoding):
        return subject
    if isinstance(subject, Codes) or _is_model(subject):
        if given:
            raise InputError(f"{_name(subject)} is defined without it", "leave it out", argument=", ".join(given))
        return subject
    if not inspect.isclass(subject):
        return codes_of(subject, name=name, **given)
    if not issubclass(subject, Encoding):
        raise InputError(
            "is a class, but no Encoding", "pass an object of it, or a function", argument=subject.__name__
        )
    shape = {"num_kv_heads": shape["num_heads"], **shape, "num_layers": given.get("num_layers", LAYERS)}
    try:
        return subject(**{key: value for key, value in shape.items() if key in subject.arguments()})
    except TypeError as error:
        raise InputError(str(error), "pass an object of it", argument=subject.__name__) from None


def _name(subject: Any) -> str:
    if isinstance(subject, Encoding):
        return subject.known_as
    if _is_model(subject):
        config = subject.config
        return str(getattr(config, "name_or_path", "") or getattr(config, "model_type", "Transformer"))
    return str(getattr(subject, "name", None) or getattr(subject, "__name__", None) or type(subject).__name__)


def _is_model(obj: Any) -> bool:
    return isinstance(obj, Transformer) or hasattr(getattr(obj, "config", None), "model_type")


def _trained_length(model: Any) -> int | None:
    """How far a model was trained; None: unknown."""
    from posenc.pretrained.families import FAMILIES
    from posenc.pretrained.learned_table import has_learned_table, table_of
    from posenc.pretrained.models import decoder_of, model_structure, unwrap

    if isinstance(model, Transformer):
        return model.encoding.max_positions
    if has_learned_table(model):
        return table_of(model)[1]
    known = decoder_of(unwrap(model)).config.model_type in FAMILIES
    return model_structure(model).trained_length if known else None
