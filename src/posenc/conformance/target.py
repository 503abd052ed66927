# SPDX-License-Identifier: Apache-2.0
"""Finding a function, or any object, by the words MODULE:FUNCTION, and keeping what it prints apart."""

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

from posenc.errors import InputError

EXAMPLES = "write MODULE:FUNCTION, such as mypackage.rope:apply or rope.py:apply"
MOST = 20
"""How many names of a module an error lists."""


def find(target: str) -> Callable[..., Any]:
    """The function of "package.module:function" or "path/to/file.py:function" (function may have dots); modules of the
    current folder can be imported.

    Raises:
        InputError: no such module or function, or an error while it is imported.
    """
    found = find_object(target)
    if not callable(found):
        raise InputError(f"{target!r}: is a {type(found).__name__}, not a function")
    return found


def find_object(target: str) -> Any:
    """Whatever stands behind such words. Raises as `find`."""
    module_name, colon, name = target.rpartition(":")
    if not (colon and module_name and name):
        raise InputError(f"{target!r}: {EXAMPLES}")
    found: Any = _module(module_name)
    for part in name.split("."):
        found = _attribute(found, part, module_name)
    return found


def _attribute(owner: Any, name: str, module: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise InputError(f"unknown function in {module} {name!r}{_known(owner, name)}") from None
    except (Exception, SystemExit) as error:  # a module may compute its attributes
        raise InputError(f"{module}: looking up {name!r} failed: {_told(error)}") from None


def _known(owner: Any, name: str) -> str:
    """The nearest public name, and all of them unless they are too many."""
    names = [known for known in dir(owner) if not known.startswith("_")]
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f": did you mean {near[0]!r}?" if near else ""
    return f"{hint or ':'} known are {', '.join(names)}" if 0 < len(names) <= MOST else hint


def _module(name: str) -> ModuleType:
    path = Path(name)
    if "\0" in name:
        raise InputError(f"{name!r}: no file has a character NUL in its name; {EXAMPLES}")
    if path.suffix != ".py" and not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"{name!r}: is neither a module's name nor a .py file; {EXAMPLES}")
    here = path.parent if path.suffix == ".py" else Path()
    sys.path.insert(0, str(here.resolve()))
    try:
        if path.suffix != ".py":
            return importlib.import_module(name)
        if not path.is_file():
            raise InputError(f"{name}: no such file")
        own = f"_conform_{path.stem}"  # not the stem: a file named torch.py must not take torch's place
        spec = importlib.util.spec_from_file_location(own, path)
        assert spec is not None  # the suffix is Python's
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[own] = module  # dataclasses and pickle look their module up
        spec.loader.exec_module(module)
        return module
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        hint = f"; {_dotted(path)}" if "attempted relative import" in str(error) else ""
        raise InputError(f"importing {name} failed: {_told(error)}{hint}") from None


def _dotted(path: Path) -> str:
    named = ".".join([*path.parent.parts, path.stem]) if not path.is_absolute() else f"{path.parent.name}.{path.stem}"
    return f"it belongs to a package: name it {named} from the folder above the package"


def _told(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' + text if text else ''}"


@contextlib.contextmanager
def prints_aside() -> Iterator[None]:
    """Whatever is printed goes to stderr, also by native code, which knows file descriptor 1 alone."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            kept = os.dup(1)
        except OSError:  # there is no stdout
            yield
            return
        try:
            _flush()
            os.dup2(2, 1)
            yield
        finally:
            _flush()
            os.dup2(kept, 1)
            os.close(kept)


def _flush() -> None:
    for stream in (sys.__stdout__, sys.stdout):
        if stream is not None:
            stream.flush()
    with contextlib.suppress(OSError, TypeError, AttributeError):  # no C library of that kind
        ctypes.CDLL(None).fflush(None)
