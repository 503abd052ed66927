# SPDX-License-Identifier: Apache-2.0
"""The one exception posenc raises for a caller's mistake, the checks of arguments by value, and how messages and results are
written.

A public function checks in its first lines what would otherwise compute a wrong number: a bool or a text taken for a
number, a fraction for a count, NaN. A value of a wrong type that Python or torch refuses by itself is left to them.
`check_arguments` compares with declared types, for what is made of text and data: encodings, schedules, configurations.
"""

import copyreg
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import cache, partial
from inspect import isclass, signature
from numbers import Integral, Real
from traceback import walk_tb
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from posenc_cli.left import instead
from posenc_cli.names import nearest, unknown_name
from posenc_cli.names import printable as printable

LARGEST = 2**63 - 1
"""The largest integer that a tensor holds."""

LARGEST_SIZE = 2**24
"""Of a count or a table's rows: more than any model has."""

LARGEST_SEQUENCE = 2**27
"""Tokens of a sequence: their positions take 1 GiB."""

LARGEST_SHAPE: dict[str, int] = {
    "dim": 2**16,
    "head_dim": 2**16,
    "rotary_dim": 2**16,
    "num_heads": 2**12,
    "num_kv_heads": 2**12,
    "num_layers": 2**12,
}
"""Of a model's shape, by name: more than any model has. Frequencies and heads are made one by one."""

LEAST_DIVISOR = 1e-19
"""Of what positions or scores are divided by: a quotient of a 63-bit integer stays in float32."""

CALLABLE = get_origin(Callable[..., Any])
WORDS: dict[Any, str] = {
    int: "an integer", float: "a number", bool: "True or False", NoneType: "None", str: "a text", Tensor: "a tensor",
    Sequence: "a list", Mapping: "a dict, from Python", CALLABLE: "a function",
}  # fmt: skip


SYNONYMS = (
    ("rope_theta", "base", "theta", "rotary_base", "rotary_emb_base", "freq_base", "max_wavelength"),
    ("dim", "d_model", "hidden_size", "embed_dim", "n_embd", "model_dim", "hidden_dim"),
    ("head_dim", "dim_head", "d_head", "head_size", "d_kv", "head_width", "dim"),
    ("num_heads", "heads", "n_heads", "n_head", "nhead", "num_attention_heads"),
    ("num_kv_heads", "num_key_value_heads", "n_kv_heads", "kv_heads"),
    ("num_layers", "n_layers", "n_layer", "num_hidden_layers", "depth"),
    ("max_positions", "rows", "max_position_embeddings", "n_positions", "max_seq_len", "max_seq_length", "max_len",
     "context_length", "train_length", "max_length", "length"),
    ("num_buckets", "relative_attention_num_buckets", "buckets", "position_buckets"),
    ("max_distance", "relative_attention_max_distance"),
    ("max_relative_positions", "clip", "max_relative_position", "clamp_len"),
    ("bidirectional", "causal", "is_causal", "is_decoder"),
    ("layout", "interleaved", "is_neox_style", "traditional"),
    ("schedule", "rope_scaling", "rope_parameters", "scaling"),
    ("rotary", "rope", "neox"), ("rotary_interleaved", "gptj"), ("m_rope", "mrope"), ("sinusoidal", "sincos"), ("alibi", "slopes"),
    ("rotary_dim", "rotary_ndims", "rotary_pct", "partial_rotary_factor"),
    ("init_std", "initializer_range"), ("axes", "num_axes", "ndim"),
    ("before", "window", "window_size", "sliding_window"),
)  # fmt: skip
"""Names of one option, or of one encoding, in posenc and in other libraries."""


class _NoValue(Enum):  # whose members torch.compile knows
    NO_VALUE = "the value of an argument that a message names without one"

    def __repr__(self) -> str:
        return self.name


NO_VALUE = _NoValue.NO_VALUE


class InputError(ValueError):
    """An invalid argument, as data, of which the text is made: "argument=value: problem; remedy".

    problem: what is wrong with it, or what is expected. remedy: what to do instead, "" if the problem says it. argument, value:
    what it was given as, or several by name, InputError("pass one of them", factor=2, target_length=4096); without an
    argument the problem is the text.

    The command line prints it as one line, with flags for arguments, and exits with 2; any other exception is a bug.
    """

    def __init__(
        self, problem: str, remedy: str = "", /, *, argument: str = "", value: object = NO_VALUE, **values: object
    ) -> None:
        # without super().__init__, which Dynamo cannot trace: it would not state the problem; __new__ has stored `args`
        self.problem, self.remedy = problem, remedy
        self.values = {argument: value, **values} if argument else values

    @property
    def argument(self) -> str:
        """The first of the arguments that it is about; "" if there is none."""
        return next(iter(self.values), "")

    @property
    def value(self) -> object:
        """That argument's value; NO_VALUE if none is stated."""
        return next(iter(self.values.values()), NO_VALUE)

    @property
    def reason(self) -> str:
        """The problem and the remedy, without the argument."""
        return self.problem + (self.remedy and f"{' ' if self.problem.endswith('?') else '; '}{self.remedy}")

    def about(self, remedy: str = "", /, **values: object) -> "InputError":
        """The same mistake as one of other arguments, whose values have in them what it was raised for. remedy: another one."""
        inside = " ".join(map(str, values.values()))
        stated = {name: name if value is NO_VALUE else str(value) for name, value in self.values.items()}
        left = ", ".join(with_value(name, self.values[name]) for name, text in stated.items() if text not in inside)
        problem = (left and f"{left}: ") + self.problem
        made = InputError(problem, "; ".join(filter(None, (self.remedy, remedy))))
        made.values = values
        return made

    def text(self, written: Callable[[str, object], str]) -> str:
        """The message, with each argument and its value as `written` gives them."""
        what = ", ".join(written(argument, value) for argument, value in self.values.items())
        return (what and f"{what}: ") + self.reason

    def __str__(self) -> str:
        return self.text(with_value)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {argument: _plain(value) for argument, value in self.values.items()}
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__ | {"values": values}  # type: ignore[attr-defined]


def with_value(argument: str, value: object) -> str:
    """An argument as a message names it."""
    return argument if value is NO_VALUE else f"{argument}={shown(value)}"


class _Shown(str):
    """A value's text in the place of the value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _plain(value: object) -> object:
    """A value that any process can read: a number or a string as it is, else as a message shows it."""
    plain = value is NO_VALUE or type(value) in (str, int, float, bool, NoneType)
    return value if plain else _Shown(shown(value))


# ---------------------------------------------------------------- numbers, words and tensors


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer, which no bool is."""
    return isinstance(value, (int, torch.SymInt, Integral)) and not isinstance(value, bool)


def not_none(**values: Any) -> dict[str, Any]:
    """Those that are not None, of arguments that may be left out."""
    return {name: value for name, value in values.items() if value is not None}


def check_integers(least: int | None = None, most: int = LARGEST, /, **numbers: int) -> None:
    """Refuse what is no integer, None too, or below the least or above the most."""
    for name, value in numbers.items():
        if type(value) is not int and not is_integer(value):
            if torch._C._get_tracing_state() is not None:
                remedy = "use torch.export.export, or torch.onnx.export(..., dynamo=True)"
                raise InputError("torch.jit.trace makes tensors of sizes", remedy, argument=name, value=value)
            raise InputError("pass an integer", argument=name, value=value)
        if least is not None and value < least:
            raise InputError(f"must be at least {least}", argument=name, value=value)
        if value > most:
            raise InputError(f"must be at most {most}", argument=name, value=value)


def check_sizes(**sizes: int) -> None:
    """Refuse counts that are no integers, None too, or below 1, or above LARGEST_SHAPE or LARGEST_SIZE."""
    for name, size in sizes.items():
        check_integers(1, LARGEST_SHAPE.get(name, LARGEST_SIZE), **{name: size})


def check_tokens(total: int, /, **counts: Any) -> None:
    """Refuse more tokens than a sequence may have, before memory is taken for them; of a compiled program nothing is asked."""
    if not torch.compiler.is_compiling() and total > LARGEST_SEQUENCE:
        raise InputError(f"{total} tokens: a sequence has at most {LARGEST_SEQUENCE}", **counts)


def check_numbers(least: float | None = None, most: float | None = None, /, **numbers: Any) -> None:
    """Refuse what is no number, None and NaN too, what is infinite in float32, below the least or above the most."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise InputError("pass a number", argument=name, value=value)
        if isinstance(value, Integral):
            check_integers(**{name: int(value)})
        elif not abs(float(value)) <= torch.finfo(torch.float32).max:  # of NaN, too
            raise InputError("pass a number that is finite in float32, within +-3.4e38", argument=name, value=value)
        if least is not None and float(value) < least:
            raise InputError(f"must be at least {least}", argument=name, value=value)
        if most is not None and float(value) > most:
            raise InputError(f"must be at most {most}", argument=name, value=value)


def check_positive(**numbers: float) -> None:
    """Refuse what is no number above 0, or so little that float32 takes quotients for infinity."""
    for name, value in numbers.items():
        check_numbers(**{name: value})
        if value < LEAST_DIVISOR:
            raise InputError(f"must be a positive number, at least {LEAST_DIVISOR}", argument=name, value=value)


Positive = Annotated[float, check_positive]
"""The declared type of an argument above 0: what `check_arguments` calls besides."""
NotNegative = Annotated[float, partial(check_numbers, 0)]
Share = Annotated[float, partial(check_numbers, 0, 1)]
Count = Annotated[int, partial(check_integers, 0, LARGEST_SIZE)]
Size = Annotated[int, check_sizes]
"""Of one that counts something, of which there is at least one."""


def check_word(name: str, word: str, known: Iterable[str]) -> None:
    """Refuse an option's word that is not among the known ones, naming the nearest."""
    if not isinstance(word, str) or word not in (known := tuple(known)):
        raise unknown(name, word, known)


def check_flags(**flags: Any) -> None:
    """Refuse what is neither true nor false, such as 1 or "no"."""
    for name, flag in flags.items():
        if flag is not True and flag is not False:
            raise InputError("pass True or False", argument=name, value=flag)


def holds_integers(x: Tensor) -> bool:
    """Whether a tensor's values are integers that can be read."""
    return not (x.is_floating_point() or x.dtype == torch.bool or x.is_meta)


def check_tensor(name: str, x: Any, *, integers: bool = False, meta: bool = False) -> None:
    """Refuse what is no dense tensor of real numbers, without reading one, so that no GPU waits.

    integers: of integers only. meta: it may be on meta, where tensors have no values, as while a model is made there.
    """
    _check_dense(name, x)
    if x.dtype == torch.bool or (integers and x.is_floating_point()):
        raise InputError(f"{name} of {x.dtype}: pass {'integers' if integers else 'numbers'}")
    if x.is_meta and not meta and not torch.compiler.is_compiling():
        raise InputError(f"{name} is on meta, where tensors have no values: pass one on a device")


def is_distributed(x: Tensor) -> bool:
    """Whether a tensor is PyTorch's DTensor, of which each process has a part."""
    return hasattr(x, "placements") and hasattr(x, "device_mesh")


def _in_onnx() -> bool:
    return torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export()


# Dynamo, the exporter's second try, calls it as it is. What torch.compiler.assume_constant_result sets, which would import Dynamo
_in_onnx._dynamo_marked_constant = True  # type: ignore[attr-defined]


def refuse_in_onnx(name: str, what: str, other: str) -> None:
    """Refuse to be exported to ONNX, before the exporter fails at an operator."""
    if torch.compiler.is_compiling() and _in_onnx():
        raise InputError(f"{name}: ONNX has no operator for {what}: use torch.export, or {other}")


def refuse_in_program(what: str, other: str) -> None:
    """Refuse to be exported, before the exporter fails at a number that it does not know."""
    if torch.compiler.is_exporting():
        raise InputError(f"{what}, which an exported program cannot read; {other}")


def refuse_distributed(**tensors: Tensor) -> None:
    """Refuse DTensors."""
    for name, x in tensors.items():
        if is_distributed(x):
            remedy = f"pass this process's part, {name}.to_local(), and its encoding.heads(slice(first, end))"
            raise InputError(f"{name} is a DTensor: {remedy}")


def check_devices(user: str, *tensors: Tensor | None) -> None:
    """Refuse tensors some of which are on meta: PyTorch would call an operator's kernel without values, whose result is
    memory that nobody wrote to."""
    on_meta = {x.is_meta for x in tensors if x is not None}
    if len(on_meta) > 1:
        where = " and ".join(sorted({str(x.device) for x in tensors if x is not None}))
        raise InputError(f"{user}: tensors on {where}, and those on meta have no values: load or initialise them")


def as_numbers(
    name: str, values: Any, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """A tensor from one, or from an array or nested lists of real numbers."""
    try:
        x = torch.as_tensor(values, dtype=dtype, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError("pass a tensor, or lists of numbers that are as long", argument=name, value=values) from None
    _check_dense(name, x)
    return x


def _check_dense(name: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise InputError("pass a tensor", argument=name, value=x)
    if x.layout != torch.strided:
        raise InputError(f"{name} of {x.layout}: pass a dense tensor, {name}.to_dense()")
    if x.is_complex():
        raise InputError(f"{name} of {x.dtype}: pass real numbers")


# ---------------------------------------------------------------- declared types


def check_arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Refuse values, by argument, that are not of the types that a function declares, numbers that are not finite, and what a
    check refuses that is declared with the type: Annotated[float, check_positive]."""
    parameters, hints, annotated = signature(function).parameters, _hints(function), _hints(function, True)
    for name, value in values.items():
        if name in parameters and name in hints and value is not parameters[name].default:
            check_value(name, value, hints[name])
            for hint in (annotated[name], *get_args(annotated[name])):  # also of what may be None
                for check in filter(callable, getattr(hint, "__metadata__", ())):
                    check(**not_none(**{name: value}))


def check_fields(data: Any) -> None:
    """`check_arguments` for the fields of a dataclass, from its `__post_init__`."""
    check_arguments(type(data), {field.name: getattr(data, field.name) for field in fields(data)})


def check_value(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that is not of an argument's declared type, or a number that is not finite."""
    words = [word for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal for word in get_args(kind)]
    if words and (isinstance(value, str) or get_origin(hint) is Literal):
        check_word(name, value, words)
    if not fits(value, hint):
        raise InputError(f"pass {spelled(hint)}", argument=name, value=value)
    if isinstance(value, Tensor):
        _check_dense(name, value)
    elif isinstance(value, Real) and value is not True and value is not False:
        check_numbers(**{name: value})


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a declared type; an int serves as a float, a bool as neither."""
    allowed = kinds(hint)
    if type(value) in allowed or Any in allowed or Literal in allowed or object in allowed:
        return True  # the callee knows its words
    if isinstance(value, (bool, str)):
        return False
    if isinstance(value, Real):
        return float in allowed or (int in allowed and isinstance(value, Integral))
    return any(callable(value) if kind is CALLABLE else isinstance(value, kind) for kind in allowed)


@cache
def kinds(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, without their parameters; those that are no classes, and protocols, count as Any."""
    union = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    origins = [get_origin(kind) or kind for kind in union]
    plain = [isclass(kind) and not getattr(kind, "_is_protocol", False) for kind in origins]
    return tuple(kind if ok or kind in (CALLABLE, Literal) else Any for kind, ok in zip(origins, plain, strict=True))


def spelled(hint: Any) -> str:
    """A declared type in words."""
    return " or ".join(dict.fromkeys(WORDS.get(kind) or _with_article(kind) for kind in kinds(hint)))


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0].lower() in 'aeiou' else 'a'} {kind.__name__}"


def _hints(function: Any, annotated: bool = False) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=annotated)
    except (NameError, TypeError):  # a caller's own class, with types that exist for its type checker alone
        return {}


# ---------------------------------------------------------------- messages and results


def unknown(what: str, name: object, known: Iterable[str], likeness: float = 0.5) -> InputError:
    """The error for a name that is not in a registry, with the nearest one and a list of all.

    likeness: the least similarity, 0 to 1, of a name that is suggested; 0.7 leaves typing errors.
    """
    if gone := instead(str(name).partition("=")[0]):
        return InputError(gone)
    names = sorted(known)
    meant = meaning(str(name).partition("=")[0], names)
    return InputError(unknown_name(what, name, names, [meant] if meant else nearest(str(name), names, likeness)))


def meaning(name: str, known: Iterable[str]) -> str | None:
    """Which of the known names of options is what another library calls `name`."""
    groups = [group for group in SYNONYMS if name in group]
    return next((each for group in groups for each in group if each != name and each in known), None)


def needs(package: str, extra: str) -> None:
    """Refuse what takes a package that is not installed, and name the extra that has it."""
    if importlib.util.find_spec(package) is None:
        raise InputError(f"this needs {package}, which is not installed: pip install 'posenc[{extra}]'")


def import_failed(error: BaseException) -> str | None:
    """What to say of an import that failed inside an installed package: which, and the innermost cause; None: of other errors."""
    if sys.flags.optimize > 1 and "docstring" in str(error):
        return "transformers reads docstrings, which Python leaves out here: unset PYTHONOPTIMIZE"
    if not isinstance(error, ImportError):
        return None
    frames = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in walk_tb(error.__traceback__)]
    package = next((name for name in reversed(frames) if name not in ("posenc", "importlib")), error.name)
    inner: BaseException = error
    while (cause := inner.__cause__ or inner.__context__) is not None:
        inner = cause
    remedy = "install versions that fit each other, as in a new environment; `pip check` names some that do not"
    return f"{package} cannot be imported here: {described(inner)}; {remedy}"


def shown(value: object) -> str:
    """A value as a message shows it: short, and never what a tensor holds."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {value.dtype}"
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"about {'-' if value < 0 else ''}2^{value.bit_length()}"
    try:
        text = repr(value)
    except Exception:
        text = _with_article(type(value))
    if "\n" in text:  # as of a module
        return _with_article(type(value))
    return text if len(text) <= (400 if isinstance(value, str) else 80) else f"{text[:60]}.. ({type(value).__name__})"


def on_one_line(error: BaseException, most: int | None = None) -> str:
    """An error's message on one line, at most so many characters of it; its type where it has none."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def described(error: BaseException, most: int | None = None) -> str:
    """An error's type, and its message if it has one, on one line; most: characters of the message."""
    name = type(error).__name__
    return f"{name}: {on_one_line(error, most)}" if str(error).strip() else name


def listed(names: Sequence[str]) -> str:
    """Names in a sentence, an encoding's in quotes where it is the word none; nothing without names."""
    names = ["'none'" if name == "none" else name for name in names]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if names[1:] else "".join(names)


def counted(number: int, noun: str) -> str:
    """A number and what it counts, in the singular for one."""
    return f"{number} {noun}{'s' * (number != 1)}"


def summary(documented: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((documented.__doc__ or "").split("\n\n")[0].split())
