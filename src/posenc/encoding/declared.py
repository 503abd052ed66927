# SPDX-License-Identifier: Apache-2.0
"""What a module has that is made of its arguments: parameters that can be drawn anew, tables that are never cast, and a spec."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from posenc.errors import InputError, check_arguments, is_distributed, meaning
from posenc.errors import Size as Size
from posenc.functional import table_device

DeclaredType = TypeVar("DeclaredType", bound="Declared")
_ACT_AT_ONCE = "_parameters", "_buffers", "_modules"
"""Where a module has what may be set again."""


class HeadRange(NamedTuple):
    """Which heads an encoding has: first .. end - 1 of all `heads`, of the encoding that these arguments make. sharing: query
    heads to a key head."""

    arguments: dict[str, Any]
    first: int
    end: int
    heads: int | None
    sharing: int

    def __str__(self) -> str:
        return f"heads {self.first} to {self.end - 1}" + ("" if self.heads is None else f" of {self.heads}")

    def spec(self) -> dict[str, list[int]]:
        """The query heads and the key heads, each from the first to the end."""
        of_keys = [self.first // self.sharing, self.end // self.sharing]
        return {"heads": [self.first, self.end], "kv_heads": of_keys}

    def check(self, name: str, heads: int, of_keys: int) -> None:
        """Refuse a call with other numbers of query and key heads."""
        count = self.end - self.first
        if heads != count or of_keys * self.sharing != count:
            mine = f"query heads {self.first} to {self.end - 1}, {count // self.sharing} of keys"
            raise InputError(f"q with {heads} and k with {of_keys} heads: this part of {name} is of {mine}; pass those")

    def cut(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """What of a tensor over all heads, or over the key heads, belongs to the part, whose tensor has this shape."""
        for axis, size in enumerate(shape):
            if x.shape[axis] != size:
                assert self.heads is not None
                x = x.narrow(axis, x.shape[axis] * self.first // self.heads, size)
        return x


class _Fixed(type):
    """The class of such classes: what they make has fixed arguments."""

    if not TYPE_CHECKING:  # to whom, and to people, the signature is that of __init__

        def __call__(cls, *args, **kwargs):
            made = super().__call__(*args, **kwargs)
            vars(made)["_fixed"] = frozenset(cls.arguments())
            return made

        def __setattr__(cls, name, value):
            cls.check_late(name)
            super().__setattr__(name, value)

        def _fields(cls):
            """For what makes and reads dataclasses; not for FSDP2 and DDP, which replace dataclasses among inputs by new ones."""
            if sys._getframe(1).f_code.co_name == "is_dataclass":
                raise AttributeError("__dataclass_fields__")
            return cls._declared

        __dataclass_fields__ = property(_fields, lambda cls, found: setattr(cls, "_declared", found))

        @property
        def __signature__(cls):
            parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
            return inspect.Signature(parameters)


class Declared(nn.Module, metaclass=_Fixed):
    """A module that is made of arguments, which it has as attributes of the same names."""

    name: ClassVar[str] = ""
    """Its name in the registry and in specs; a class without a `name` goes by its class name."""
    _fixed: frozenset[str] = frozenset()
    """The names of the arguments, once it is made."""
    _part: HeadRange | None = None

    @property
    def known_as(self) -> str:
        """Its name, for people and for specs: the class's own, which a subclass does not inherit."""
        return type(self).name or written(type(self)).__name__

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        cls._check_keywords(kwargs)
        self = super().__new__(cls)
        nn.Module.__init__(self)  # before a dataclass sets its fields
        return self

    @classmethod
    def _check_keywords(cls, given: Mapping[str, Any]) -> None:
        """Raises:
        TypeError: another library's name of an argument, where Python's own message would not say what it is here."""
        if not given or any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls.__init__).parameters.values()):
            return
        known = cls.arguments()
        for name in given.keys() - known.keys():
            if meant := meaning(name, known):
                problem = f"{cls.__name__}.__init__() got an unexpected keyword argument {name!r}"
                raise TypeError(f"{problem}: did you mean {meant!r}?")

    @classmethod
    def check_late(cls, name: str) -> None:
        """Refuse what is not set on a class that is defined, nor on what it made."""

    def __init__(self) -> None:
        """`__new__` has initialised the module."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse an option of an encoding that is made, whose tables would follow at the next cast only, and what `check_late` does."""
        type(self).check_late(name)
        if name in self._fixed and not any(name in vars(self)[those] for those in _ACT_AT_ONCE):
            raise InputError(f"options are fixed: make another {type(self).__name__}", argument=name, value=value)
        super().__setattr__(name, value)

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.arguments() if hasattr(self, name)}
        check_arguments(type(self).__init__, values)
        for name, value in values.items():
            if isinstance(value, (dict, list)):  # of which the caller may change entries later
                setattr(self, name, _copied(value))
        self.setup()
        self.register_tables()

    def setup(self) -> None:
        """Check the fields of a dataclass, and make parameters and modules. Types have been checked, with the ranges that they
        declare, and numbers to be finite."""

    def tables(self) -> dict[str, Tensor]:
        """Constant tables by name, computed from the arguments in float64. They are never in the state_dict, and survive
        `.to(dtype)` and meta-device initialisation."""
        return {}

    def register_tables(self) -> None:
        """Make buffers of `tables()`; a dataclass need not call it."""
        with torch.inference_mode(False):  # tensors of inference mode do not say when they are written to
            for name, table in self._tables().items():
                self.register_buffer(name, table.to(table_device(torch.get_default_device())), persistent=False)

    def _tables(self) -> dict[str, Tensor]:
        """`tables`, of some heads those of all, cut. They have values on meta, too."""
        with torch.device("cpu"):
            mine = self.tables()
        if self._part is None:
            return mine
        with torch.device("meta"):
            full = written(type(self))(**self._part.arguments)
        return {name: self._part.cut(full.get_buffer(name), table.shape) for name, table in mine.items()}

    def reset_parameters(self) -> None:
        """Draw the parameters, and buffers that are no tables, anew, as a new encoding of the same arguments has them; what
        FSDP's recipes call after `to_empty`.

        Raises:
            InputError: an argument that was not stored under its own name.
        """
        buffers = {name: x for name, x in self.named_buffers() if name not in self.tables()}
        mine = dict(self.named_parameters()) | buffers
        if not mine:
            return
        with torch.device("cpu"):
            fresh = written(type(self))(**(self._given() if self._part is None else self._part.arguments))
        drawn = dict(fresh.named_parameters()) | dict(fresh.named_buffers())
        with torch.no_grad():
            for name, x in mine.items():
                value = drawn[name].detach()
                value = value if self._part is None else self._part.cut(value, x.shape)
                x.copy_(_placed_as(x, value))

    def _given(self) -> dict[str, Any]:
        """The constructor's arguments."""
        for name in self.arguments():
            if not hasattr(self, name):
                raise InputError(f"{type(self).__name__} has no attribute {name!r}, its argument: set self.{name}")
        return {name: getattr(self, name) for name in self.arguments()}

    @classmethod
    def arguments(cls) -> dict[str, inspect.Parameter]:
        """The constructor's named arguments."""
        parameters = inspect.signature(cls.__init__).parameters
        return {n: p for n, p in parameters.items() if n != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}

    def spec(self) -> dict[str, Any]:
        """A dict of JSON's types from which `posenc.from_spec` builds the same encoding (parameters apart).

        Raises:
            InputError: an argument that was not stored under its own name, or whose value JSON does not have.
        """
        given = self._given() if self._part is None else self._part.arguments
        named = {name: _as_json(value, f"{written(type(self)).__name__}.{name}") for name, value in given.items()}
        part = {} if self._part is None else self._part.spec()
        return {"name": self.known_as, **named, **part}

    def extra_repr(self) -> str:
        given = [f"{name}={getattr(self, name)!r}" for name in self.arguments() if hasattr(self, name)]
        return ", ".join([*given, *([] if self._part is None else [str(self._part)])])

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # .to(bfloat16) would round the tables and .to_empty() would leave them undefined: only their device follows.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        with torch.inference_mode(False):
            tables = self._tables()
        for name, table in tables.items():
            buffer = self._buffers.get(name)
            if buffer is None:
                remedy = "call self.register_tables() at the end of __init__"
                raise InputError(f"{type(self).__name__}.tables() has {name!r}, which is not registered: {remedy}")
            with torch.inference_mode(False):
                self._buffers[name] = table.to(table_device(buffer.device))
        return self


def _copied(value: Any) -> Any:
    """Lists and dicts of an argument, copied; what is in them is the same."""
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def is_torchs(cls: type) -> bool:
    """Whether PyTorch made a class from an encoding's, as fully_shard and parametrize do."""
    return cls.__module__.partition(".")[0] == "torch"


def written(cls: type[DeclaredType]) -> type[DeclaredType]:
    """The class that somebody wrote, of one that PyTorch made from it."""
    return next(each for each in cls.__mro__ if not is_torchs(each))


def _placed_as(x: Tensor, value: Tensor) -> Tensor:
    """A value that every process has, as FSDP has divided a parameter."""
    if not is_distributed(x):
        return value
    from torch.distributed.tensor import distribute_tensor

    of: Any = x
    return distribute_tensor(value.to(x.device), of.device_mesh, of.placements)


def _as_json(value: Any, origin: str) -> Any:
    """A constructor's argument in JSON's types."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if hasattr(value, "spec"):
        return value.spec()
    if isinstance(value, Mapping):
        return {str(key): _as_json(item, f"{origin}[{key!r}]") for key, item in value.items()}
    if isinstance(value, Tensor) or hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_as_json(item, f"{origin}[{i}]") for i, item in enumerate(value)]
    raise InputError("spec() takes numbers, strings, lists and dicts: override it", argument=origin, value=value)
