# SPDX-License-Identifier: Apache-2.0
"""The API, from the public names and their docstrings, and the commands, as their help."""

import inspect
import re
from importlib import import_module
from inspect import Parameter
from operator import attrgetter
from typing import Any

from posenc import Positions
from posenc.cli import COMMANDS
from posenc.encodings import ENCODINGS, create
from posenc.positions.visibility import Visibility
from posenc_cli.arguments import COMMON
from website.encodings import declared
from website.page import Page, plain, table
from website.snippets import SIZES

MODULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "posenc": (
        "The core",
        ("attention", "Pass", "create", "parameter_groups", "explain", "Explanation", "linear_attention", "Sum", "PerLayer", "from_spec", "cite",
         "InputError"),
    ),
    "posenc/positions": ("Where tokens are", ("Positions",)),
    "posenc/positions-methods": (
        "Methods of positions",
        tuple(
            f"Positions.{name}"
            for name, what in (vars(Visibility) | vars(Positions)).items()
            if inspect.isfunction(what) and inspect.getdoc(what) and name[0] != "_"
        ),
    ),
    "posenc/cache": ("KV caches", ("KVCache",)),
    "posenc/extending": (
        "Extend and convert models",
        ("load", "doctor", "extend", "choose", "restore", "finetune", "evaluate", "nbce_generate", "to_hf", "convert_layout", "re_rotate"),
    ),
    "posenc/models": ("Small models", ("Transformer", "TransformerConfig", "VisionTransformer", "VisionConfig")),
    "posenc.encoding": ("Write an encoding", ("Encoding", "gates_of")),
    "posenc.encodings": ("Bases of encodings", ("Absolute", "DistanceBias", "EnhancedMaskDecoder", "Mapped")),
    "posenc.functional": (
        "Formulas as functions",
        ("rotary", "sinusoidal", "sinusoidal_from", "frequency_curve", "shift_matrix", "turning", "binary_digits",
         "layout_permutation", "alibi_slopes", "t5_bucket", "deberta_bucket"),
    ),
    "posenc.frequencies": (
        "Functions of frequency schedules",
        ("Frequencies", "create", "complete", "parse", "as_text", "options_of", "stretch", "wavelengths", "fastest", "softmax_factor",
         "dynamic_factor"),
    ),
    "posenc.position_maps": ("Functions of position maps", ("PositionMap", "create")),
    "posenc.bias": (
        "Attention biases",
        ("Score", "Relative", "Positional", "QueryRelative", "KeyRelative", "Factored", "Dense", "Values", "KeyValues"),
    ),
    "posenc.pretrained": ("Pretrained models", ()),
    "posenc.tasks": ("Tasks", ()),
    "posenc.analysis": ("Analysis", ()),
    "posenc.analysis.plots": ("Plots", ()),
    "posenc.conformance": ("Conformance", ()),
    "posenc.distributed": ("Shards of a sequence", ()),
    "posenc.lab.engines": ("Execution engines", ()),
    "posenc.lab.compare": ("Comparisons", ("Comparison", "compare")),
    "posenc.lab.text": ("Settings of comparisons", ("Settings", "PRESETS", "CORE")),
    "posenc.lab.experiment": ("Experiments", ("Experiment", "Run", "Preset")),
    "posenc.lab.synthetic.experiment": ("Generated tasks", ()),
    "posenc.lab.data": ("Data of comparisons", ("load", "Corpus", "draw")),
    "posenc.report.explorer": ("The explorer as a file or block", ("page", "block", "fields")),
    "posenc.report.predict": ("The page that predicts", ("Weights", "page", "passages", "trained")),
}  # fmt: skip
"""What the API's pages are made of, a module or a part of one (after a slash): its title, and its names in their order, a method as
Class.method, which is then not on its class's page; (): those of the module's `__all__` that no other page names. Encodings,
schedules and position maps are on their own pages."""

PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "posenc": ("The core", ("posenc",)),
    "posenc-positions": ("Positions and KV caches", ("posenc/positions", "posenc/positions-methods", "posenc/cache")),
    "posenc-extending": ("Extend and convert models", ("posenc/extending", "posenc.pretrained")),
    "posenc.encoding": ("Write an encoding", ("posenc.encoding", "posenc.encodings", "posenc.bias")),
    "posenc.functional": ("Formulas, schedules and maps", ("posenc.functional", "posenc.frequencies", "posenc.position_maps")),
    "posenc.analysis": ("Analyse and check", ("posenc.analysis", "posenc.analysis.plots", "posenc.conformance")),
    "posenc.lab": ("Compare and train", ("posenc/models", *(name for name in MODULES if name.startswith("posenc.lab")), "posenc.distributed")),
    "posenc.tasks": ("Tasks and reports", ("posenc.tasks", *(name for name in MODULES if name.startswith("posenc.report")))),
}  # fmt: skip
"""The pages of the API by their addresses: title, and the parts that a page has."""


def pages() -> list[Page]:
    """An overview, the commands, and the pages of modules."""
    found = [_commands(), *map(_page, PAGES)]
    lines = ["- [Commands](commands.md)"]
    for where, (title, parts) in PAGES.items():
        inner = ", ".join(f"[{MODULES[part][0].lower()}]({where}.md#{_anchor(part)})" for part in parts)
        lines.append(f"- [{title}]({where}.md)" + f": {inner}" * (len(parts) > 1))
    text = (
        "# Reference\n\nThe names on these pages are public; everything else may change. An encoding's class is on "
        "[its page](../encodings/index.md), a [schedule](../frequencies.md) and a [position map](../position_maps.md) in its section.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    return [Page("reference/index.md", "Reference", text), *found]


def _page(where: str) -> Page:
    title, parts = PAGES[where]
    return Page(f"reference/{where}.md", title, f"# {title}\n\n" + "\n\n".join(map(_module, parts)) + "\n")


def _anchor(name: str) -> str:
    """Of a part in its page."""
    return re.sub(r"[^a-z]+", "-", name)


def public(name: str) -> dict[str, Any]:
    """The classes and functions of a module's page, by name."""
    module = import_module(name.partition("/")[0])
    found = {each: attrgetter(each)(module) for each in MODULES[name][1] or module.__all__}
    found = {each: what for each, what in found.items() if hasattr(what, "__qualname__")}
    if MODULES[name][1]:
        return found
    elsewhere = [what for other, (_, names) in MODULES.items() if names for what in public(other).values()]
    return {each: what for each, what in found.items() if what not in elsewhere}


def _module(name: str) -> str:
    title, (module, _, part) = MODULES[name][0], name.partition("/")
    about = plain(inspect.getdoc(import_module(module)) or "")
    if part and "." in MODULES[name][1][0]:
        about = "What is asked of an object of `Positions`, and what gives another one."
    elif part:
        about = f"These names are in `{module}`."
    entries = ""
    for each, what in public(name).items():
        path = (
            f"{what.__module__}.{what.__qualname__}"
            if what.__qualname__ == each or ("." not in each and each == what.__name__)
            else f"{module}.{each}"
        )
        entries += f"::: {path}\n{_left_out(each)}\n" + (f"{created()}\n\n" if what is create else "")
    return f"## {title} {{#{_anchor(name)}}}\n\n`{module}`\n\n{about}\n\n{entries.rstrip()}"


def _left_out(name: str) -> str:
    """The option of a class's entry that leaves out methods of it that have a page."""
    others = (
        each.removeprefix(f"{name}.") for _, names in MODULES.values() for each in names if each.startswith(f"{name}.")
    )
    methods = "|".join(others)
    return f'    options:\n      filters: ["!^_", "!^({methods})$"]\n' if methods else ""


def created() -> str:
    """The encodings that `posenc.create` makes, as a list: what each uses of the model's shape, and its options."""
    of_shape = {argument for arguments in SIZES.values() for argument in arguments}
    lines = [
        "#### Encodings that `create` makes {#created}",
        "",
        "Each with what it uses of the model's shape and its options, with their defaults; its page says what they do.",
        "",
    ]
    for name, row in declared().items():
        arguments = ENCODINGS[name].arguments()
        shape = [size for size, known in SIZES.items() if arguments.keys() & set(known)]
        options = [
            str(arguments[option].replace(annotation=Parameter.empty))
            for option in row["options"]
            if option not in of_shape
        ]
        parts = [f"[`{name}`](../encodings/{name}.md): {row['title']}"]
        parts += [
            f"{words} {', '.join(f'`{each}`' for each in found)}"
            for words, found in (("shape", shape), ("options", options))
            if found
        ]
        lines.append(f"- {'; '.join(parts)}")
    return "\n".join(lines)


def _commands() -> Page:
    parts = "\n\n".join(map(_command, COMMANDS))
    text = f"# Commands\n\nExit codes: 0 done, 1 failed or interrupted, 2 bad usage.\n\n{parts}\n"
    return Page("reference/commands.md", "Commands", text)


def _command(name: str) -> str:
    """A command's help: how it is called, examples, and its settings as tables."""
    command = COMMANDS[name].described()
    positional = "".join(
        f" {each.written}" + " ..." * each.many for each in command.settings.values() if each.how.positional
    )
    shown = "\n".join([f"posenc {name}{positional} [options]", "", *command.examples]).rstrip()
    parts = [f"## posenc {name}", plain(command.about), f"```text\n{shown}\n```"]
    sections: dict[str, list[tuple[str, str]]] = {}
    for each in command.settings.values():
        value = "" if each.how.positional or each.type is bool else f" {each.metavar}"
        section = "argument" if each.how.positional else each.section or "option"
        sections.setdefault(section, []).append(
            (f"`{each.written}{value}`".replace("|", r"\|"), plain(each.explained()))
        )
    more = ((flag, f" {value}".rstrip(), text) for flag, value, text in COMMON)
    sections.setdefault("option", []).extend((f"`{flag}{value}`", plain(text)) for flag, value, text in more)
    parts += [table((section, "meaning"), rows) for section, rows in sections.items()]
    for line in command.epilog.splitlines():
        if row := re.match(r"  (\S+)  +(\S.*)", line):
            parts.append(f"- `{row[1]}`: {plain(row[2])}")
        elif line.startswith("  "):  # more of the entry before
            parts[-1] += f"; {plain(line.strip())}"
        else:
            parts.append(plain(line))
    return re.sub(r"^(- .*)\n\n(?=- `)", r"\1\n", "\n\n".join(filter(None, parts)), flags=re.MULTILINE)
