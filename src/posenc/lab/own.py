# SPDX-License-Identifier: Apache-2.0
"""Classes of encodings that are not posenc's, named in a text by FILE:CLASS or MODULE:CLASS: "rope+fade.py:Fade:slope=2"."""

import hashlib
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from posenc.conformance.import_object import import_object, stdout_to_stderr
from posenc.encoding import Encoding
from posenc.encodings import ENCODINGS
from posenc.errors import InputError

_TARGET = re.compile(
    r"""(?P<module> [^:+@,]*\.py | [A-Za-z_][\w.]*)  # a file, or a module
        : (?P<name> [A-Za-z_][\w.]*) (?=$|[:+@/])    # an object in it: what has a "=" behind it is an option""",
    re.VERBOSE,
)


def targets(text: str) -> tuple[str, dict[str, str]]:
    """A text with its classes under plain names, and what each name stands for: ("rope+Fade:slope=2", {"Fade":
    "fade.py:Fade"})."""
    named: dict[str, str] = {}

    def plain(match: re.Match[str]) -> str:
        start, module, name = match.start(), match["module"], match["name"]
        if module in ENCODINGS or not (start == 0 or text[start - 1] in "+/"):
            return match[0]
        before, module = _parted(module)
        if module in ENCODINGS:
            return match[0]
        target, alias, count = f"{module}:{name}", name.rpartition(".")[2], 1
        while named.setdefault(alias, target) != target:
            count += 1
            alias = f"{name.rpartition('.')[2]}_{count}"
        return before + alias

    return _TARGET.sub(plain, text), named


def _parted(module: str) -> tuple[str, str]:
    """The layers before a file, "rope/", and the file: the longest path that there is, or all of it."""
    pieces = module.split("/")
    for start in range(len(pieces)):
        path = "/".join(pieces[start:])
        if module.endswith(".py") and Path(path).is_file():
            return "/".join((*pieces[:start], "")) if start else "", path
    return "", module


def classes(text: str) -> dict[str, type[Encoding]]:
    """The classes that a text names, by the plain names of `targets`. What their files print goes to stderr.

    Raises:
        InputError: no such file, module or object, one that is no class of an Encoding, or an error while it is imported.
    """
    return {name: _class(target, _code(target)) for name, target in targets(text)[1].items()}


def digest(text: str) -> str:
    """Of the files that hold the classes in a text, as they are now; "" where it names none."""
    found = [_code(target) for target in targets(text)[1].values()]
    return hashlib.sha256(b"".join(found)).hexdigest()[:16] if found else ""


@cache
def _class(target: str, code: bytes) -> type[Encoding]:
    """code: of its file, so that an edited one is read again."""
    found = _object(target)
    if not (isinstance(found, type) and issubclass(found, Encoding)):
        raise InputError(f"{target}: is a {type(found).__name__}; name a subclass of posenc.Encoding")
    return found


def _code(target: str) -> bytes:
    module = target.rpartition(":")[0]
    if not module.endswith(".py"):
        _object(target)
        module = getattr(sys.modules[module], "__file__", None) or ""
    try:
        return Path(module).read_bytes()
    except OSError:
        return (
            b""  # `import_object` says what is wrong with a file; of a module that is not of Python, nothing is known
        )


def _object(target: str) -> Any:
    with stdout_to_stderr():
        return import_object(target)
