# SPDX-License-Identifier: Apache-2.0
"""Code of the user's: what MODULE:NAME and FILE:NAME name, and the files that it is made of."""

import ast
import contextlib
import ctypes
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from posenc.errors import InputError
from posenc.lab.messages import located
from posenc.spec import parse, split_list

OURS = __name__.partition(".")[0]
LIBRARY = Path(os.__file__).resolve().parent
_loaded: WeakKeyDictionary[ModuleType, bytes] = WeakKeyDictionary()
"""The file of a module when it was loaded, or first looked up."""


def module_of_file(path: Path) -> ModuleType:
    """The module of a .py file."""
    # not the stem: a file named torch.py must not take torch's place; and two files of one name are two modules
    alias = f"_posenc_{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:16]}"
    check_unchanged(alias, path, path.parent)
    if alias in sys.modules:
        return sys.modules[alias]
    spec = importlib.util.spec_from_file_location(alias, path)
    assert spec is not None  # the suffix is Python's
    module, source = importlib.util.module_from_spec(spec), path.read_bytes()
    sys.modules[alias] = module  # dataclasses and pickle look their module up
    try:
        # the loader would take bytecode for it of an equal time and size
        exec(compile(source, path, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[alias]
        raise
    _loaded[module] = source
    check_unchanged(alias, path, path.parent)
    return module


def module_of_name(name: str, folder: Path) -> ModuleType:
    """The module of a name. folder: searched first."""
    if name not in sys.modules:
        importlib.invalidate_caches()  # of folders: the module's file may be new
    module = importlib.import_module(name)
    place = _place(name, module, folder)
    if place is not None:
        check_unchanged(name, *place)
    return module


def check_unchanged(name: str, path: Path, root: Path) -> None:
    """Raises:
    InputError: the module, or one below root that it imports, was loaded from another file, or from this one before it changed."""
    for each, file in _files(name, path, root).items():
        module = sys.modules.get(each)
        if module is None:
            continue
        then = "a process loads a module once; start a new one (restart the notebook's kernel)"
        if _file_of(module) != file.path:
            raise InputError(f"{file.path}: {each} was loaded from {_file_of(module)}, and {then}")
        if _loaded.setdefault(module, file.source) != file.source:
            raise InputError(f"{file.path}: has changed since it was loaded, and {then}")


def sources_of_file(path: Path) -> bytes:
    """The file of a module and those beside it that it imports, with their current content."""
    return b"".join(each.source for _, each in sorted(_files("", path, path.parent).items()))


def sources_of_name(name: str, folder: Path) -> bytes:
    """The same of a module that has been imported; empty where it has no file."""
    place = _place(name, sys.modules[name], folder)
    return b"" if place is None else b"".join(each.source for _, each in sorted(_files(name, *place).items()))


class _File(NamedTuple):
    path: Path
    source: bytes
    imports: frozenset[str]


def _files(name: str, path: Path, root: Path) -> dict[str, _File]:
    """By name, the files of a module and of those below root that it imports, directly or not, wherever in its source."""
    found: dict[str, _File] = {}
    todo = {name: path}
    while todo:
        name, path = todo.popitem()
        source = path.read_bytes()
        found[name] = _File(
            path, source, _imports(source, name if path.stem == "__init__" else name.rpartition(".")[0])
        )
        beside = {each: _beside(root, each) for each in found[name].imports - found.keys()}
        todo |= {each: file for each, file in beside.items() if file is not None}
    return found


@lru_cache(maxsize=4096)
def _imports(source: bytes, package: str) -> frozenset[str]:
    """The names that a source of a package imports, each with its packages; some may be no modules."""
    names = {package}
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # Python says so when it is run
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
                base = [*above, *([node.module] if node.module else [])]
                names |= {".".join([*base, alias.name]) for alias in node.names}
    return frozenset(name[:end] for name in names if name for end in (*_dots(name), len(name)))


def _dots(name: str) -> Iterator[int]:
    return (at for at, letter in enumerate(name) if letter == ".")


def _beside(root: Path, name: str) -> Path | None:
    """The file below root of a module of the user's; None: there is none, or the module is an installed one."""
    if name.partition(".")[0] == OURS or _is_installed(root):
        return None
    if name in sys.modules:
        file = _file_of(sys.modules[name])
        if file is None or _is_installed(file):
            return None
    return _file_in(root, name)


def _file_in(root: Path, name: str) -> Path | None:
    path = root.joinpath(*name.split("."))
    return next((file for file in (path / "__init__.py", path.with_name(f"{path.name}.py")) if file.is_file()), None)


def _place(name: str, module: ModuleType, folder: Path) -> tuple[Path, Path] | None:
    """The file of a module and the folder that its name starts from; None: it has no file of Python's."""
    if (here := _beside(folder, name)) is not None:
        return here, folder
    file = _file_of(module)
    if file is None or file.suffix != ".py":
        return None
    return file, file.parents[name.count(".") + (file.stem == "__init__")]


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def _is_installed(path: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts) or path.is_relative_to(LIBRARY)


# ---------------------------------------------------------------- MODULE:NAME and FILE:NAME

EXAMPLES = "write MODULE:FUNCTION, such as mypackage.rope:apply or rope.py:apply"
REFUSED = (
    "names code, and a text from a file runs none: write it on the command line or pass it as an argument in Python, if it is "
    "yours"
)
MOST_NAMES = 20
"""How many names of a module an error lists."""


def load_object(target: str, *, may_import: bool) -> Any:
    """The object of "package.module:name" or "path/to/file.py:name" (the name may have dots), which is imported; modules
    of the current folder can be.

    may_import: true for a text from the command line or a Python argument alone; false for one that was read from a file,
    which then runs no code.

    Raises:
        InputError: no such module or name, or an error while it is imported; a file that has changed since it was loaded; a
            text that must not name code.
    """
    parts = _target(target)
    if parts is None:
        raise InputError(f"{target!r}: {EXAMPLES}")
    module, name = parts
    if not may_import:
        raise InputError(f"{target!r}: {REFUSED}")
    owner: Any = _module(module)
    for part in name.split("."):
        try:
            owner = getattr(owner, part)
        except AttributeError:
            raise InputError(f"unknown function in {module} {part!r}{_known(owner, part)}") from None
        except (Exception, SystemExit) as error:  # a module may compute its attributes
            raise InputError(f"{module}: looking up {part!r} failed: {located(error)}") from error
    return owner


def _target(text: str) -> tuple[str, str] | None:
    """The module or file and the name in it; None: the text has no such form."""
    module, _, name = text.rpartition(":")
    return (module, name) if module and all(part.isidentifier() for part in name.split(".")) else None


def names_code(text: str) -> bool:
    """Whether an encoding's text, a list of them, or the name of an object has a MODULE:NAME or FILE:NAME in it, or might have if
    it were spelled right."""

    def named(each: str) -> bool:
        with contextlib.suppress(InputError):
            return any(":" in term.name for term in parse(each).terms)
        return _target(each) is not None

    return any(map(named, split_list(text)))


def load_function(target: str, *, may_import: bool) -> Callable[..., Any]:
    """The function of such a text. Raises as `load_object`, and InputError for what cannot be called."""
    function: Callable[..., Any] = load_object(target, may_import=may_import)
    if not callable(function):
        raise InputError(f"{target!r}: is a {type(function).__name__}, not a function")
    return function


def _known(owner: Any, name: str) -> str:
    """The nearest public name, and all of them unless they are too many."""
    names = [known for known in dir(owner) if not known.startswith("_")]
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f": did you mean {near[0]!r}?" if near else ""
    return f"{hint or ':'} known are {', '.join(names)}" if 0 < len(names) <= MOST_NAMES else hint


def _module(name: str) -> ModuleType:
    """The module of a name or of a .py file."""
    path = Path(name)
    is_file = path.suffix == ".py"
    if not is_file and not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"{name!r}: is neither a module's name nor a .py file; {EXAMPLES}")
    if is_file and not path.is_file():
        raise InputError(f"{name}: no such file")
    folder = str((path.parent if is_file else Path()).resolve())
    sys.path.insert(0, folder)
    try:
        return module_of_file(path.resolve()) if is_file else module_of_name(name, Path(folder))
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"importing {name} failed: {located(error)}") from error
    finally:
        with contextlib.suppress(ValueError):  # the module took it out
            sys.path.remove(folder)


def source_of(target: str) -> bytes:
    """The file that a user's object is in and those beside it that this imports, with their current content; empty where
    there is none. A module is imported."""
    module = target.rpartition(":")[0]
    if not module.endswith(".py"):
        load_object(target, may_import=True)
        return sources_of_name(module, Path().resolve())
    try:
        return sources_of_file(Path(module).resolve())
    except OSError:
        return b""  # `load_object` says what is wrong with a file


@contextlib.contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Send what is printed to stderr, also by native code, which knows file descriptor 1 alone."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            stdout = os.dup(1)
        except OSError:  # there is no stdout
            yield
            return
        try:
            _flush()
            os.dup2(2, 1)
            yield
        finally:
            _flush()
            os.dup2(stdout, 1)
            os.close(stdout)


def _flush() -> None:
    for stream in (sys.__stdout__, sys.stdout):
        if stream is not None:
            stream.flush()
    with contextlib.suppress(OSError, TypeError, AttributeError):  # no C library of that kind
        ctypes.CDLL(None).fflush(None)
