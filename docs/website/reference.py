"""The API, from the public names and their docstrings, and the commands, from their parsers."""

import inspect
from importlib import import_module
from types import ModuleType
from typing import Any

import posenc
from posenc.cli import COMMANDS, build
from posenc.cli.common import HelpFormatter, TableFormatter
from website.page import Page, plain, table

MODULES = {
    "posenc": "The core",
    "posenc.encodings": "Encodings",
    "posenc.functional": "Formulas as functions",
    "posenc.frequencies": "Frequency schedules",
    "posenc.position_maps": "Position maps",
    "posenc.bias": "Terms of the scores",
    "posenc.pretrained": "Pretrained models",
    "posenc.evals.attention": "Where a model looks",
    "posenc.tasks": "Tasks",
    "posenc.analysis": "Analysis",
    "posenc.analysis.plots": "Plots",
    "posenc.conformance": "Conformance",
    "posenc.distributed": "Many processes",
    "posenc.lab.compare": "Comparisons",
    "posenc.lab.config": "Their settings",
    "posenc.lab.data": "Their data",
    "posenc.engines": "Where cells are computed",
    "posenc.report.explorer": "The explorer",
}
"""What has a page, and the page's title."""


def pages() -> list[Page]:
    """An overview, the commands, and a page for each module."""
    found = [_commands(), *(_module(name, title) for name, title in MODULES.items())]
    lines = [f"- [{page.title}]({page.path.split('/')[1]})" for page in found]
    text = "# Reference\n\nPublic is what these pages name; everything else may change.\n\n" + "\n".join(lines) + "\n"
    return [Page("reference/index.md", "Reference", text), *found]


def public(name: str) -> dict[str, Any]:
    """The classes and functions that a module offers by name, without those that have another module's page."""
    module = import_module(name)
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    found = {n: getattr(module, n) for n in names}
    own = {n: thing for n, thing in found.items() if _is_documented(thing)}
    if name == "posenc":
        own = {n: thing for n, thing in own.items() if n not in posenc.encodings.__all__}
    if not hasattr(module, "__all__"):
        own = {n: thing for n, thing in own.items() if thing.__module__.startswith(name)}
    return own


def _is_documented(thing: Any) -> bool:
    return (
        not isinstance(thing, ModuleType)
        and hasattr(thing, "__module__")
        and bool(inspect.getdoc(thing))
        and hasattr(thing, "__qualname__")
    )


def _module(name: str, title: str) -> Page:
    about = plain(inspect.getdoc(import_module(name)) or "")
    entries = [f"::: {thing.__module__}.{thing.__qualname__}" for thing in public(name).values()]
    text = f"# {title}\n\n`{name}`\n\n{about}\n\n" + "\n\n".join(entries) + "\n"
    return Page(f"reference/{name}.md", title, text)


def _commands() -> Page:
    parts = "\n\n".join(map(_command, COMMANDS))
    text = f"# Commands\n\nExit codes: 0 done, 1 failed or interrupted, 2 bad usage.\n\n{parts}\n"
    return Page("reference/commands.md", "Commands", text)


def _command(name: str) -> str:
    """What a command's parser says in its help, its options as a table."""
    parser = build(name)
    formatter = HelpFormatter(parser.prog)
    rows = []
    for action in parser._actions:  # what argparse has no public name for
        written = ", ".join(action.option_strings) or action.dest
        value = (
            ""
            if action.nargs == 0 or not action.option_strings
            else formatter._format_args(action, action.dest.upper())
        )
        rows.append(
            (f"`{written} {value}".rstrip() + "`", plain(formatter._expand_help(action) if action.help else ""))
        )
    epilog = parser.epilog or ""
    after = f"```text\n{epilog}\n```" if epilog and parser.formatter_class is TableFormatter else plain(epilog)
    return f"## posenc {name}\n\n{parser.description}\n\n{table(('option', ''), rows)}\n\n{after}"
