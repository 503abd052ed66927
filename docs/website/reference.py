# SPDX-License-Identifier: Apache-2.0
"""The API, from the public names and their docstrings, and the commands, as their help."""

import inspect
import re
from functools import partial
from importlib import import_module
from typing import Any

from posenc.cli import COMMANDS
from posenc.cli.command import build
from website.page import Page, plain, table

MODULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "posenc": (
        "The core",
        ("attention", "create", "Positions", "KVCache", "explain", "Explanation", "linear_attention", "Sum", "PerLayer", "from_spec", "cite",
         "load", "doctor", "extend", "restore", "to_hf", "to_gguf", "finetune", "convert_layout", "re_rotate", "resize", "evaluate",
         "nbce_generate", "Transformer", "TransformerConfig", "VisionTransformer", "VisionConfig", "InputError"),
    ),
    "posenc.encoding": ("Write an encoding", ("Encoding", "gates_of")),
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
    "posenc.report.plots": ("Figures of results", ()),
    "posenc.report.predict": ("The page that predicts", ("Weights", "page", "passages", "trained")),
}  # fmt: skip
"""What has a page: its title, and its names in their order; (): those of the module's `__all__` that no other page names."""


def pages() -> list[Page]:
    """An overview, the commands, and a page for each module."""
    found = [_commands(), *map(_module, MODULES)]
    lines = [f"- [{page.title}]({page.path.split('/')[1]})" for page in found]
    text = (
        "# Reference\n\nThe names on these pages are public; everything else may change.\n\n" + "\n".join(lines) + "\n"
    )
    return [Page("reference/index.md", "Reference", text), *found]


def public(name: str) -> dict[str, Any]:
    """The classes and functions of a module's page, by name."""
    module = import_module(name)
    found = {each: getattr(module, each) for each in MODULES[name][1] or module.__all__}
    found = {each: what for each, what in found.items() if hasattr(what, "__qualname__")}
    if MODULES[name][1]:
        return found
    elsewhere = [what for other, (_, names) in MODULES.items() if names for what in public(other).values()]
    return {each: what for each, what in found.items() if what not in elsewhere}


def _module(name: str) -> Page:
    title, about = MODULES[name][0], plain(inspect.getdoc(import_module(name)) or "")
    paths = (
        f"{what.__module__}.{what.__qualname__}" if what.__name__ == each else f"{name}.{each}"
        for each, what in public(name).items()
    )
    entries = "\n\n".join(f"::: {path}" for path in paths)
    return Page(f"reference/{name}.md", title, f"# {title}\n\n`{name}`\n\n{about}\n\n{entries}\n")


def _commands() -> Page:
    parts = "\n\n".join(map(_command, COMMANDS))
    text = f"# Commands\n\nExit codes: 0 done, 1 failed or interrupted, 2 bad usage.\n\n{parts}\n"
    return Page("reference/commands.md", "Commands", text)


def _command(name: str) -> str:
    """A command's help: how it is called, and its settings as tables."""
    parser, about = build(COMMANDS[name]), COMMANDS[name].__doc__ or ""
    form: Any = parser.formatter_class
    parser.formatter_class = partial(form, width=10**4)  # a setting on each line
    usage = parser.format_usage()
    named = re.sub(r"\[-(?:[^\[\]]|\[[^\]]*\])*\] *", "", usage.removeprefix(f"usage: posenc {name}")).strip()
    parts = [f"## posenc {name}", about, f"```text\nposenc {name} [options] {named}".rstrip() + "\n```"]
    for block in parser.format_help().removeprefix(usage).split("\n\n"):
        head, *lines = block.strip("\n").split("\n")
        rows = re.findall(r"^  (\S.*?)(?: {2,}|\n {4,})(\S.*)$", "\n".join(lines), flags=re.MULTILINE)
        if rows:
            cells = ((f"`{flag}`", plain(text)) for flag, text in rows if flag != "-h, --help")
            parts.append(table((head.rstrip(":"), "meaning"), cells))
        elif head.startswith("  "):  # a list, an entry on each line
            parts.append("\n".join(f"- {plain(line.strip())}" for line in (head, *lines)))
        elif block.strip() not in about:
            parts.append(plain(" ".join(block.split())))
    return "\n\n".join(parts)
