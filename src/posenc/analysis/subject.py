# SPDX-License-Identifier: Apache-2.0
"""Whatever somebody wants analysed, seen from the sides that analyses ask for: codes, an encoding, a trained model."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc.analysis import precision
from posenc.analysis.codes import SHAPE, codes_of
from posenc.analysis.reading import Codes, HiddenKeys, seeded
from posenc.analysis.scores import width_of
from posenc.analysis.sizes import needs_causal, sizes_of
from posenc.analysis.symmetry import encoder
from posenc.analysis.trained import trained_model
from posenc.analysis.twins import tokenized, words_of
from posenc.checks import check_sizes
from posenc.encoding import Encoding
from posenc.encodings import create
from posenc.encodings.absolute import Absolute
from posenc.encodings.rotary import Rotary
from posenc.errors import InputError, unknown
from posenc.positions import Positions
from posenc.transformer import Transformer, TransformerConfig

DTYPES = ("bfloat16", "float16")
"""Whose phase errors are measured, unless it is said otherwise."""
TOKENS = 128
"""How long the texts are, at most, that a model reads for an analysis."""
LONGEST = 2**17
"""Positions that are looked at, at most: pictures and fits hold all their codes at once."""
LAYERS = 2
"""Of the model around an encoding of the user's own."""
BYTES = 256
"""The vocabulary of a model that reads bytes."""


class Coded(Absolute):
    """Codes of anything, added to the input. codes: a vector per position."""

    def __init__(self, codes: Codes) -> None:
        super().__init__(codes(torch.arange(1)).shape[1])
        self.of = codes
        self.max_positions: int | None = codes.limit

    def codes(self, positions: Positions) -> Tensor:
        return torch.stack([self.of(row) for row in positions.q])


@dataclass(frozen=True, eq=False)
class Subject:
    """What is analysed. Each of its sides raises InputError, with the reason, where it has none.

    name: for people. thing: an encoding, Codes or a transformers model. text: the encoding's, where it has one. length:
    positions that are looked at. trained: those it was, or would be, trained on. steps: to train a small model, 0 for none.
    seed: of whatever is drawn. tokenizer: of a model. given: sizes, for an encoding that does not keep them itself.
    """

    name: str
    thing: Any
    length: int
    trained: int
    steps: int = 0
    seed: int = 0
    text: str | None = None
    dtypes: Sequence[str] = DTYPES
    tokenizer: Any = field(default=None, repr=False)
    given: Mapping[str, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return "encoding" if isinstance(self.thing, Encoding) else "model" if _is_model(self.thing) else "codes"

    @cached_property
    def codes(self) -> Codes:
        """A vector per position, or a number per head and distance, up to the first that is hidden."""
        codes = self._codes
        try:
            codes(torch.arange(self.length if codes.limit is None else min(self.length, codes.limit)))
        except HiddenKeys as hidden:
            if hidden.distance < 2:
                raise
            return replace(codes, limit=hidden.distance, ends="keys are hidden")
        return codes

    @cached_property
    def _codes(self) -> Codes:
        options: dict[str, Any] = {"name": self.name, **self.given}
        return codes_of(self.thing, **options)

    @cached_property
    def by_position(self) -> Codes:
        """The codes, where they are of positions."""
        if self.codes.of != "position":
            raise InputError("it acts on the distance of two tokens, and no position has a code of its own")
        return self.codes

    @cached_property
    def encoding(self) -> Encoding:
        """What acts in attention; codes act by being added to the input."""
        if isinstance(self.thing, (Encoding, Transformer)):
            return self.thing if isinstance(self.thing, Encoding) else self.thing.encoding
        module = self.codes.module
        return module if isinstance(module, Encoding) else Coded(self.by_position)

    @cached_property
    def rotary(self) -> Rotary:
        """RoPE, where it is what turns queries and keys of the first layer."""
        found = next((part for part in self.encoding.at(0)[0].modules() if isinstance(part, Rotary)), None)
        if found is None:
            raise InputError("it has no frequencies of RoPE")
        return found

    @cached_property
    def host(self) -> nn.Module:
        """A model that has it: the subject, or a small random one."""
        if _is_model(self.thing):
            return self.thing
        if self.text is not None:
            return encoder(self.text, seed=self.seed)
        encoding = copy.deepcopy(self.encoding)
        sizes = sizes_of(encoding, self.given)
        width = width_of(encoding, sizes)
        config = TransformerConfig(
            vocab_size=64,
            dim=sizes.dim or width * sizes.num_heads,
            num_layers=LAYERS,
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=width,
            causal=needs_causal(encoding, sizes),
        )
        return Transformer(config, encoding).double().eval()

    @property
    def own_code(self) -> bool:
        """Whether what is analysed runs code of the user's, whose failures are told rather than raised."""
        parts = self.thing.modules() if isinstance(self.thing, Encoding) else ()
        return any(isinstance(part, Encoding) and not _is_ours(type(part)) for part in parts)

    @property
    def note(self) -> str:
        """Which layer is read, where layers differ; else empty."""
        if not isinstance(self.thing, Encoding):
            return ""
        acting, _ = self.thing.at(0)
        if acting is not self.thing:
            return (
                f"Its layers take turns, and what follows is read in layer 0 alone, which has {acting.known_as}; only whole "
                "models have all layers."
            )
        if self.thing.num_layers > 1:
            return (
                f"Its {self.thing.num_layers} layers have parameters of their own, and what follows is read in layer 0 "
                "alone; only whole models have all layers."
            )
        return ""

    @cached_property
    def words(self) -> Any:
        """What makes tokens of a text for `host`."""
        return self.tokenizer or (None if _is_model(self.thing) else words_of)

    @cached_property
    def _trained(self) -> tuple[nn.Module, Tensor]:
        """A trained model, the subject or a small one, and the tokens of a text that a small one was not trained on."""
        from posenc.tasks.running_text import pydoc

        if _is_model(self.thing):
            if self.tokenizer is not None:
                return self.thing, torch.tensor(tokenized(self.tokenizer, pydoc()[:40_000])[1])
            if isinstance(self.thing, Transformer) and self.thing.config.vocab_size == BYTES:
                return self.thing, torch.tensor(list(pydoc().encode()))
            raise InputError("the model has no tokenizer to read a text with")
        if self.text is None:
            raise InputError(
                "only a trained model shows it, and one is trained for encodings that posenc knows by name"
            )
        if not self.steps:
            raise InputError("only a trained model shows it, and none was trained (steps 0)")
        model, text = trained_model(self.text, self.steps, self.seed)
        return model, text.long()

    @property
    def model(self) -> nn.Module:
        """A trained model: the subject, or a small one trained under it on the spot."""
        return self._trained[0]

    def texts(self, count: int, length: int = TOKENS) -> Tensor:
        """(count, length) tokens for `model`, from anywhere in a text."""
        tokens, length = self._trained[1], min(length, self.length)
        starts = torch.randint(len(tokens) - length, (count, 1), generator=torch.Generator().manual_seed(self.seed))
        return tokens[starts + torch.arange(length)]


def subject_of(
    subject: Any,
    *,
    length: int = 512,
    trained: int | None = None,
    steps: int = 120,
    seed: int = 0,
    name: str | None = None,
    tokenizer: Any = None,
    dtypes: Sequence[str] = DTYPES,
    **shape: Any,
) -> Subject:
    """Make a `Subject` of an encoding, its text or class, a function positions -> vectors, a table or a model.

    A class is made for `shape` (posenc.analysis.codes.SHAPE), as a text is; a function is given what it requires beyond
    positions under names that `shape` has, such as dim. An object of an encoding is read with the sizes that it keeps as
    num_heads, num_kv_heads, head_dim and dim, and with those of `shape` where it keeps none. length is cut to what the
    subject is defined for.

    Raises:
        InputError: sizes below 2, or other ones than the subject has; a subject that is nothing of that, or whose codes
            are wrong: not finite, not (n, dim), or other ones when they are asked for again.
    """
    if not 2 <= length <= LONGEST:
        raise InputError(f"length={length}: must lie between 2 and {LONGEST}; single analyses go farther")
    check_sizes(trained=trained)
    for dtype in dtypes:
        if dtype not in precision.DTYPES:
            raise unknown("dtype", dtype, precision.DTYPES)
    if steps < 0:
        raise InputError(f"steps={steps}: must be at least 0")
    if trained is None:
        trained = (_trained_length(subject) if _is_model(subject) else None) or length
    asked, shape = shape, {**SHAPE, "max_positions": trained, **shape}
    text = subject if isinstance(subject, str) else None
    with seeded(seed):
        thing = _thing(subject, shape, asked, name)
    name = name or text or _name(subject)
    given = asked if isinstance(thing, Encoding) and text is None else {}
    if given:
        sizes_of(thing, given)
    return _checked(Subject(name, thing, length, trained, steps, seed, text, tuple(dtypes), tokenizer, given))


def _thing(subject: Any, shape: dict[str, Any], asked: dict[str, Any], name: str | None) -> Any:
    """asked: what of the shape the caller gave."""
    if isinstance(subject, str):
        return create(subject, **shape)
    if isinstance(subject, Encoding):
        return subject
    if isinstance(subject, Codes) or _is_model(subject):
        if asked:
            raise InputError(f"{', '.join(asked)}: {_name(subject)} has its own; leave it out")
        return subject
    if inspect.isclass(subject):
        if not issubclass(subject, Encoding):
            raise InputError(f"{subject.__name__}: is a class, but no Encoding; pass an object of it, or a function")
        shape = {**shape, "num_layers": asked.get("num_layers", LAYERS)}
        shape.setdefault("num_kv_heads", shape["num_heads"])
        taken = {key: value for key, value in shape.items() if key in subject.arguments()}
        try:
            return subject(**taken)
        except TypeError as error:
            raise InputError(f"{subject.__name__}: {error}; pass an object of it") from None
    if callable(subject) and not isinstance(subject, nn.Module):
        width = {"dim": asked["dim"]} if "dim" in asked else {}
        return codes_of(_function(subject, shape), name=name or _name(subject), **width)
    return codes_of(subject, name=name, **asked)


def _checked(subject: Subject) -> Subject:
    """With a length that it is defined for, and codes that are what they should be."""
    limit = subject.thing.max_positions if isinstance(subject.thing, Encoding) else None
    codes = None
    with suppress(InputError):  # it has none, which is no fault
        codes = subject._codes
    if codes is not None:
        with suppress(HiddenKeys):
            codes = subject.codes
    limits = [most for most in (limit, codes.limit if codes and not codes.ends else None) if most is not None]
    return replace(subject, length=min([subject.length, *limits]))


def _function(function: Callable[..., Any], shape: dict[str, Any]) -> Callable[[Tensor], Any]:
    """A function of somebody's as one of positions alone."""
    given = _required(function, shape)
    return lambda positions: function(positions, **given)


def _required(function: Callable[..., Any], shape: dict[str, Any]) -> dict[str, Any]:
    """What it asks for beyond positions, by the names that a shape has."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):  # not written in Python
        return {}
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    lacking = [name for name in required if name not in shape]
    if lacking:
        raise InputError(
            f"{_name(function)}: needs {', '.join(lacking)} beyond positions; pass a function of positions alone, or name "
            f"what is one of {', '.join(shape)} so"
        )
    return {name: shape[name] for name in required}


def _name(subject: Any) -> str:
    if isinstance(subject, partial):
        return _name(subject.func)
    if isinstance(subject, Encoding):
        return subject.known_as
    if _is_model(subject):
        config = subject.config
        return str(getattr(config, "name_or_path", "") or getattr(config, "model_type", "Transformer"))
    return str(getattr(subject, "name", None) or getattr(subject, "__name__", None) or type(subject).__name__)


def _is_ours(cls: type) -> bool:
    return cls.__module__.split(".")[0] == "posenc"


def _is_model(thing: Any) -> bool:
    return isinstance(thing, Transformer) or hasattr(getattr(thing, "config", None), "model_type")


def _trained_length(model: Any) -> int | None:
    """How far a model was trained; None: it does not say."""
    from posenc.pretrained.anatomy import FAMILIES, anatomy
    from posenc.pretrained.learned_table import has_learned_table, table_of

    if isinstance(model, Transformer):
        return model.encoding.max_positions
    if has_learned_table(model):
        return table_of(model)[1]
    return anatomy(model).trained_length if model.config.model_type in FAMILIES else None
