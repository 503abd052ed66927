# SPDX-License-Identifier: Apache-2.0
"""Import an object by MODULE:OBJECT or FILE.py:OBJECT, with its output on stderr."""

import contextlib
import ctypes
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from posenc.conformance.runner import format_exception
from posenc.errors import InputError, on_one_line

EXAMPLES = "write MODULE:FUNCTION, such as mypackage.rope:apply or rope.py:apply"
MOST_NAMES = 20
"""A module's names are listed in an error up to this many."""


def import_function(target: str) -> Callable[..., Any]:
    """The function at "package.module:function" or "path/to/file.py:function" (function may have dots); modules of the
    current folder can be imported.

    Raises:
        InputError: no such module or function, or an error while it is imported.
    """
    function = import_object(target)
    if not callable(function):
        raise InputError(f"{target!r}: is a {type(function).__name__}, not a function")
    return function


def import_object(target: str) -> Any:
    """The object at such a text. Raises as `import_function`."""
    module, colon, name = target.rpartition(":")
    if not (colon and module and name):
        raise InputError(f"{target!r}: {EXAMPLES}")
    value: Any = _import_module(module)
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise InputError(f"unknown function in {module} {part!r}{_known_names(value, part)}") from None
        except (Exception, SystemExit) as error:  # a module may compute its attributes
            raise InputError(f"{module}: looking up {part!r} failed: {format_exception(error)}") from None
    return value


def _known_names(owner: Any, name: str) -> str:
    names = [known for known in dir(owner) if not known.startswith("_")]
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f": did you mean {near[0]!r}?" if near else ""
    return f"{hint or ':'} known are {', '.join(names)}" if 0 < len(names) <= MOST_NAMES else hint


def _import_module(name: str) -> ModuleType:
    path = Path(name)
    if path.suffix != ".py" and not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"{name!r}: is neither a module's name nor a .py file; {EXAMPLES}")
    sys.path.insert(0, str((path.parent if path.suffix == ".py" else Path()).resolve()))
    try:
        if path.suffix != ".py":
            return importlib.import_module(name)
        if not path.is_file():
            raise InputError(f"{name}: no such file")
        alias = f"_conform_{path.stem}"  # not the stem: a file named torch.py must not replace torch
        spec = importlib.util.spec_from_file_location(alias, path)
        assert spec is not None  # the suffix is Python's
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[alias] = module  # dataclasses and pickle look their module up
        spec.loader.exec_module(module)
        return module
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        hint = ""
        if "attempted relative import" in str(error):
            dotted = ".".join([path.parent.name if path.is_absolute() else ".".join(path.parent.parts), path.stem])
            hint = f"; it belongs to a package: name it {dotted} from the folder above the package"
        raise InputError(f"importing {name} failed: {type(error).__name__}: {on_one_line(error)}{hint}") from None


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Print to stderr, also from native code, which knows file descriptor 1 alone."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            saved = os.dup(1)
        except OSError:  # there is no stdout
            yield
            return
        try:
            _flush()
            os.dup2(2, 1)
            yield
        finally:
            _flush()
            os.dup2(saved, 1)
            os.close(saved)


def _flush() -> None:
    for stream in (sys.__stdout__, sys.stdout):
        if stream is not None:
            stream.flush()
    with contextlib.suppress(OSError, TypeError, AttributeError):  # no C library of that kind
        ctypes.CDLL(None).fflush(None)
