# SPDX-License-Identifier: Apache-2.0
"""The templates of the pages, filled with values."""

from collections.abc import Callable
from importlib.resources import files
from typing import Any


def asset(file: str) -> str:
    """The text of a file beside this one."""
    return files("posenc.report").joinpath(file).read_text(encoding="utf-8")


def filled(name: str, filters: dict[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    """A template with its values, escaped, in the style of all pages. filters: for it to use."""
    from jinja2 import Environment, FunctionLoader  # every command reads this file, few fill a template

    environment = Environment(loader=FunctionLoader(asset), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(filters or {})
    return environment.get_template(name).render(**values, style=asset("style.css"))
