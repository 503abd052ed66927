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
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from posenc.errors import InputError, unknown
from posenc.lab.messages import located
from posenc.spec import parse, split_list
from posenc_cli.names import MANY, nearest

INSTALLED = (Path(os.__file__).resolve().parent, Path(__file__).resolve().parents[1])
_loaded: dict[str, dict[Path, bytes]] = {}
"""By a module's name the files that it is made of, as they were when it was loaded."""


def module_of_file(path: Path) -> ModuleType:
    """The module of a .py file."""
    # not the stem: a file named torch.py must not take torch's place; and two files of one name are two modules
    alias = f"_posenc_{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:16]}"
    if alias not in sys.modules:
        _loaded.pop(alias, None)
        spec = importlib.util.spec_from_file_location(alias, path)
        assert spec is not None  # the suffix is Python's
        sys.modules[alias] = module = importlib.util.module_from_spec(spec)  # dataclasses and pickle look it up
        try:
            # the loader would take bytecode for it of an equal time and size
            exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[alias]
            raise
    _check_unchanged(alias, path, path.parent)
    return sys.modules[alias]


def module_of_name(name: str, folder: Path) -> ModuleType:
    """The module of a name. folder: searched first."""
    if name not in sys.modules:
        _loaded.pop(name, None)
        importlib.invalidate_caches()  # of folders: the module's file may be new
    module = importlib.import_module(name)
    if place := _place(name, module, folder):
        _check_unchanged(name, *place)
    return module


def _check_unchanged(name: str, path: Path, root: Path) -> None:
    """Raises:
    InputError: what the module is made of was loaded from another folder, or has changed since the module was loaded."""
    files, then = _made_of(path, root), "a process loads a module once; start a new one (restart the notebook's kernel)"
    for file in files:
        parts = file.relative_to(root).with_suffix("").parts
        module = sys.modules.get(".".join(part for part in parts if part != "__init__"))
        there = None if module is None else _file_of(module)
        if there not in (None, file) and not _is_installed(there):
            raise InputError(f"{file}: was loaded from {there}, and {then}")
    before = _loaded.setdefault(name, files)
    for file in (file for file in files if before.get(file) != files[file]):
        raise InputError(f"{file}: has changed since it was loaded, and {then}")


def _made_of(path: Path, root: Path) -> dict[Path, bytes]:
    """The content of a file and of those below root that it imports, directly or not, wherever in its source."""
    found: dict[Path, bytes] = {}
    todo = [path]
    while todo:
        path = todo.pop()
        if path in found or not path.is_file() or not path.is_relative_to(root) or (_is_installed(path) and found):
            continue
        found[path] = path.read_bytes()
        todo.append(path.with_name("__init__.py"))
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # Python says so when it is run
            for node in ast.walk(ast.parse(found[path])):
                folder = root
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names]
                    folder = path.parents[min(node.level, len(path.parents)) - 1] if node.level else root
                else:
                    continue
                for name in names:
                    parts = name.split(".")
                    bases = [folder.joinpath(*parts[: end + 1]) for end in range(len(parts))]
                    todo += [
                        file for base in bases for file in (base / "__init__.py", base.with_name(f"{base.name}.py"))
                    ]
    return found


def _place(name: str, module: ModuleType, folder: Path) -> tuple[Path, Path] | None:
    """The file of a module and the folder that its name starts from; None: it has no file of Python's."""
    file, base = _file_of(module), folder.joinpath(*name.split("."))
    if file is None or file.suffix != ".py":
        return None
    if not _is_installed(file):
        for here in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if here.is_file():
                return here, folder
    return file, file.parents[name.count(".") + (file.stem == "__init__")]


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def _is_installed(path: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts) or any(map(path.is_relative_to, INSTALLED))


# ---------------------------------------------------------------- MODULE:NAME and FILE:NAME

EXAMPLES = "write MODULE:FUNCTION, such as mypackage.rope:apply or rope.py:apply"
REFUSED = (
    "names code, and a text from a file runs none: write it on the command line or pass it as an argument in Python, if it is "
    "yours"
)


def load_object(target: str, *, may_import: bool) -> Any:
    """The object of "package.module:name" or "path/to/file.py:name" (the name may have dots), which is imported; modules
    of the current folder can be.

    may_import: true for a text from the command line or a Python argument alone; false for one that was read from a file,
    which then runs no code.

    Raises:
        InputError: no such module or name, or an error while it is imported; a file that has changed since it was loaded; a
            text that must not name code.
    """
    if (parts := _target(target)) is None:
        raise InputError(f"{target!r}: {EXAMPLES}")
    module, name = parts
    if not may_import:
        raise InputError(f"{target!r}: {REFUSED}")
    owner: Any = _module(module)
    for part in name.split("."):
        try:
            owner = getattr(owner, part)
        except AttributeError:
            known = [each for each in dir(owner) if not each.startswith("_")]
            if not known or (len(known) > MANY and not nearest(part, known)):
                raise InputError(f"unknown function in {module} {part!r}") from None
            raise unknown(f"function in {module}", part, known) from None
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
        hint = "; an option is written NAME:OPTION=VALUE" if getattr(error, "name", None) == name else ""
        raise InputError(f"importing {name} failed: {located(error)}{hint}") from error
    finally:
        with contextlib.suppress(ValueError):  # the module took it out
            sys.path.remove(folder)


def source_of(target: str) -> bytes:
    """The file that a user's object is in and those beside it that this imports, with their current content; empty where
    there is none. A module is imported."""
    name = target.rpartition(":")[0]
    place: tuple[Path, Path] | None = (Path(name).resolve(), Path(name).resolve().parent)
    if not name.endswith(".py"):
        load_object(target, may_import=True)
        place = _place(name, sys.modules[name], Path().resolve())
    return b"" if place is None else b"".join(source for _, source in sorted(_made_of(*place).items()))


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
