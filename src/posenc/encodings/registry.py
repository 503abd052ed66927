# SPDX-License-Identifier: Apache-2.0
"""Every encoding by name: a class of this package that declares a `name` and a `title` is in the registry by its definition."""

from importlib import import_module
from pkgutil import iter_modules

from posenc.encoding import SITES, Encoding

MADE_OF_ALL = ("catalogue", "create_encoding", "names", "patterns", "registry")
"""Modules of this package that read the registry."""


def _registered() -> dict[str, type[Encoding]]:
    """The classes by name, in the order in which they act, older papers first."""
    package = import_module(__package__)
    modules = [f"{__package__}.{each.name}" for each in iter_modules(package.__path__) if each.name not in MADE_OF_ALL]
    found = [each for name in modules for each in vars(import_module(name)).values() if _is_scheme(each, name)]
    return {cls.name: cls for cls in sorted(found, key=_place)}


def _is_scheme(each: object, module: str) -> bool:
    if not isinstance(each, type) or not issubclass(each, Encoding) or each.__module__ != module:
        return False
    return bool(each.name) and bool(each.title)  # which a subclass does not inherit


def _place(cls: type[Encoding]) -> tuple[int, str]:
    """Where it acts first, and the year of its paper, which is in the paper's key."""
    year = "".join(filter(str.isdigit, cls.papers[0]))[:4] if cls.papers else ""
    return min((SITES.index(site) for site in cls.own_sites), default=-1), year


ENCODINGS = _registered()
