# SPDX-License-Identifier: Apache-2.0
"""The API, from the public names and their docstrings, and the commands, as their help."""

import inspect
from importlib import import_module
from typing import Any

import posenc
from posenc.cli import COMMANDS
from posenc.cli.command import build
from website.page import Page, plain

MODULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "posenc": ("The core", ()),
    "posenc.encodings": ("Encodings", ()),
    "posenc.functional": (
        "Formulas as functions",
        ("rotary", "compile_rotary", "sinusoidal", "sinusoidal_from", "frequency_curve", "shift_matrix", "turning", "binary_digits",
         "layout_permutation", "alibi_slopes", "t5_bucket", "deberta_bucket"),
    ),
    "posenc.frequencies": ("Frequency schedules", ()),
    "posenc.position_maps": (
        "Position maps",
        ("PositionMap", "create", "rerope", "leaky_rerope", "inverse_leaky", "self_extend", "jet_long", "streaming", "lm_infinite", "string",
         "lampe", "dual_chunk"),
    ),
    "posenc.bias": (
        "Attention biases",
        ("Score", "Relative", "Positional", "QueryRelative", "KeyRelative", "Factored", "Dense", "Values", "KeyValues"),
    ),
    "posenc.pretrained": ("Pretrained models", ()),
    "posenc.tasks": ("Tasks", ()),
    "posenc.lab.evals.attention": ("Attention profiles", ("attention_profile",)),
    "posenc.analysis": ("Analysis", ()),
    "posenc.analysis.plots": ("Plots", ()),
    "posenc.conformance": ("Conformance", ()),
    "posenc.distributed": ("Many processes", ()),
    "posenc.lab.engines": ("Execution engines", ()),
    "posenc.lab.compare": ("Comparisons", ("Comparison", "compare")),
    "posenc.lab.text": ("Settings of comparisons", ("Settings", "PRESETS", "CORE", "NAIVE")),
    "posenc.lab.experiment": ("Experiments", ("Experiment", "Run", "Preset")),
    "posenc.lab.synthetic.experiment": ("Generated tasks", ()),
    "posenc.lab.data": ("Data of comparisons", ("load", "Corpus", "draw", "with_copies")),
    "posenc.report.explorer": ("The explorer", ("page", "block", "fields")),
    "posenc.report.predict": ("The page that predicts", ("Weights", "page", "passages", "trained")),
}  # fmt: skip
"""What has a page: its title, and its names where the module has no `__all__`."""


def pages() -> list[Page]:
    """An overview, the commands, and a page for each module."""
    found = [_commands(), *map(_module, MODULES)]
    lines = [f"- [{page.title}]({page.path.split('/')[1]})" for page in found]
    text = (
        "# Reference\n\nThe names on these pages are public; everything else may change.\n\n" + "\n".join(lines) + "\n"
    )
    return [Page("reference/index.md", "Reference", text), *found]


def public(name: str) -> dict[str, Any]:
    """The classes and functions that a module offers by name; of posenc's own, those that no other page has."""
    module = import_module(name)
    names = MODULES[name][1] or module.__all__
    others = posenc.encodings.__all__ if name == "posenc" else ()
    found = {each: getattr(module, each) for each in names if each not in others}
    return {each: thing for each, thing in found.items() if hasattr(thing, "__qualname__")}


def _module(name: str) -> Page:
    title, about = MODULES[name][0], plain(inspect.getdoc(import_module(name)) or "")
    paths = (
        f"{thing.__module__}.{thing.__qualname__}" if thing.__name__ == each else f"{name}.{each}"
        for each, thing in public(name).items()
    )
    entries = "\n\n".join(f"::: {path}" for path in paths)
    return Page(f"reference/{name}.md", title, f"# {title}\n\n`{name}`\n\n{about}\n\n{entries}\n")


def _commands() -> Page:
    parts = "\n\n".join(map(_command, COMMANDS))
    text = f"# Commands\n\nExit codes: 0 done, 1 failed or interrupted, 2 bad usage.\n\n{parts}\n"
    return Page("reference/commands.md", "Commands", text)


def _command(name: str) -> str:
    """A command's help."""
    return f"## posenc {name}\n\n{COMMANDS[name].__doc__}\n\n```text\n{build(COMMANDS[name]).format_help()}```"
