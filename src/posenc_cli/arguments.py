# SPDX-License-Identifier: Apache-2.0
"""The arguments of a command as argparse takes them, and its help, as wide as the terminal. Nothing here imports torch."""

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass
from typing import Any, NoReturn

from posenc_cli.left import instead
from posenc_cli.names import nearest, unknown_name

WIDEST, NARROWEST = 110, 30
"""Columns of a line."""
INDENT = "  "


class Mistake(ValueError):
    """Bad usage: the message is one line."""


@dataclass(frozen=True)
class How:
    """How a setting is given, if its name and type are not enough.

    Args:
        metavar: the value in help.
        flag: its name on the command line and in files, if it is not the field's.
        positional: it is given without a flag.
        append: the flag takes one value and may be repeated.
        unless: settings which, given as flags, make the value in a file out of date.
        code: its values may be MODULE:NAME or FILE:NAME, on the command line alone.
        names: what its values are names of, a key of `Known`; shells complete them.
    """

    metavar: str | None = None
    flag: str = ""
    positional: bool = False
    append: bool = False
    unless: tuple[str, ...] = ()
    code: bool = False
    names: str = ""
    rare: bool = False
    """--help-all alone shows it, as what only several machines need."""


Known = Mapping[str, Sequence[str]]
"""Names by what they are names of: "encoding" -> ("none", ...)."""


@dataclass(frozen=True)
class Setting:
    """A field on the command line and in files. section: of help, "" for a command's own fields; type: of one value;
    many: it takes several; choices: the only values."""

    field: str
    section: str
    type: type
    many: bool
    default: Any
    help: str
    how: How
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its name in a file."""
        return self.how.flag or self.field

    @property
    def written(self) -> str:
        """As a user writes it: --num-layers, or MODEL if it has no flag."""
        return self.how.metavar or self.key if self.how.positional else "--" + self.key.replace("_", "-")

    @property
    def metavar(self) -> str:
        """The value in help."""
        short = {int: "N", float: "X"}.get(self.type) or self.key.upper().rpartition("_")[2]
        return self.how.metavar or short

    def explained(self) -> str:
        """What help says of it, with its choices and its default."""
        text = self.help
        if self.choices:
            text += f": {', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if not self.section and self.default not in (MISSING, None, False, (), "") and "(default" not in text:
            default = " ".join(map(str, self.default)) if isinstance(self.default, (tuple, list)) else self.default
            text += f" (default: {'yes' if default is True else default})"
        return text

    def add(self, container: Any, hidden: bool = False) -> None:
        """Add it to an argparse parser or group. hidden: help does not show it."""
        how = self.how
        more: dict[str, Any] = {"help": argparse.SUPPRESS if hidden else self.explained().replace("%", "%%")}
        if self.type is bool:
            more["action"] = argparse.BooleanOptionalAction
        else:
            more |= {"type": self.value if self.choices else self.type, "metavar": self.metavar}
        if how.positional:
            container.add_argument(self.field, nargs="*" if self.many else "?", **more)
            return
        if how.append:
            more["action"] = "append"
        elif self.many:
            more["nargs"] = "+"
        container.add_argument(self.written, dest=self.field, **more)

    def value(self, text: str) -> str:
        """One of the choices."""
        if text not in self.choices:
            near = nearest(text, self.choices)
            raise argparse.ArgumentTypeError(instead(text) or unknown_name("choice", text, self.choices, near))
        return text

    def words(self, value: Any) -> list[str]:
        """A value in a file as command-line words.

        Raises:
            Mistake: not a single value, or a list for several; or not true or false.
        """
        nested = isinstance(value, list) and any(
            isinstance(each, (list, dict)) for each in value
        )  # aliases make many of few
        if nested or isinstance(value, dict) or (isinstance(value, list) and not self.many):
            raise Mistake(f"{self.key}: write {'a list of values' if self.many else 'one value'}")
        values = list(map(str, value)) if isinstance(value, list) else [str(value)]
        if self.type is bool:
            if values[0].lower() not in WORDS:
                raise Mistake(f"{self.key}: write true or false, not {values[0]!r}")
            return [self.written if WORDS[values[0].lower()] else self.written.replace("--", "--no-", 1)]
        if self.how.positional:
            return values
        return [self.written, *values] if self.many and not self.how.append else [f"{self.written}={v}" for v in values]

    def to_json(self) -> dict[str, Any]:
        """As the table of commands has it."""
        found = {"field": self.field, "section": self.section, "type": self.type.__name__, "many": self.many}
        found |= {} if self.default is MISSING else {"default": self.default}
        how = {key: value for key, value in asdict(self.how).items() if value not in (None, "", False, ())}
        return found | {"help": self.help, "how": how, "choices": list(self.choices)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Setting":
        """The setting in the table of commands."""
        kind = {"int": int, "float": float, "bool": bool, "str": str}[data["type"]]
        how, choices = How(**_tuples(data["how"])), tuple(data["choices"])
        default = _tuples(data).get("default", MISSING)
        return cls(data["field"], data["section"], kind, data["many"], default, data["help"], how, choices)


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """With tuples for the lists of JSON."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class Described:
    """A command: its name, its help, examples of its use, what follows the options in help, and its settings by field."""

    name: str
    about: str
    examples: tuple[str, ...]
    epilog: str
    settings: Mapping[str, Setting]

    def to_json(self) -> dict[str, Any]:
        """As the table of commands has it."""
        settings = [setting.to_json() for setting in self.settings.values()]
        return {"about": self.about, "examples": list(self.examples), "epilog": self.epilog, "settings": settings}

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> "Described":
        """The command in the table of commands."""
        settings = map(Setting.from_json, data["settings"])
        by_field = {setting.field: setting for setting in settings}
        return cls(name, data["about"], tuple(data["examples"]), data["epilog"], by_field)


# ---------------------------------------------------------------- help


def columns() -> int:
    """Columns for text: the terminal's, or 80 where there is none, within limits."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((80, 24)).columns))


def room() -> int | None:
    """Columns of the terminal that stdout is; None: it is none, and lines are as long as they are."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return max(NARROWEST, shutil.get_terminal_size().columns) if terminal or "COLUMNS" in os.environ else None


def aligned(rows: Sequence[Sequence[str]], justify: Callable[[str, int], str], width: int | None = None) -> list[str]:
    """A table as lines, its head first; in a width with less room, heads of several lines, or a block of lines for each row. No
    cell is cut. justify: str.ljust or str.rjust."""
    head, *others = rows
    for heads in ([head], _stacked(head)):
        widths = [max(map(len, column)) for column in zip(*heads, *others, strict=True)]
        lines = [INDENT.join(map(justify, row, widths)).rstrip() for row in (*heads, *others)]
        if width is None or max(map(len, lines)) <= width:
            return lines
    longest = max(map(len, head))
    lines = []
    for first, *cells in others:
        lines += [f"{head[0]} {first}".strip()]
        lines += [f"{INDENT}{title:{longest}}  {cell}" for title, cell in zip(head[1:], cells, strict=True) if cell]
    return lines


def _stacked(head: Sequence[str]) -> list[list[str]]:
    """Titles with a word on each line, the last ones at the bottom."""
    words = [title.split() for title in head]
    most = max(map(len, words))
    padded = [[""] * (most - len(each)) + each for each in words]
    return [list(line) for line in zip(*padded, strict=True)]


def laid_out(text: str, width: int) -> str:
    """A text whose paragraphs are lines, in a width. Of a line that is indented, "  name  what it is", the second part hangs;
    one whose name leaves no room begins it on a new line. So does what stands after a dash."""
    return "\n".join(line for each in text.split("\n") for line in _wrapped(each, width))


def _wrapped(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    words = line.lstrip()
    first = rest = line[: min(len(line) - len(words), width // 3)]
    if words.startswith("- "):
        first, rest, words = f"{first}- ", f"{first}  ", words[2:]
    if row := re.match(r"( +\S.*?) {2,}(\S.*)", line):
        at = len(line) - len(row[2])
        if at > width // 2 or at + max(map(len, row[2].split())) > width:
            return [row[1], *_wrapped(2 * INDENT + row[2], width)]
        first, rest, words = line[:at], " " * at, row[2]
    return filled(words, width, first, rest) or [line.rstrip()]


def filled(words: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of a text, with what the first and the others begin with; no word or number is cut."""
    return textwrap.wrap(
        words, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def example(words: str, width: int) -> str:
    """A command to copy, continued on further lines where it is longer than the width."""
    lines = filled(words, width - 2, INDENT, 2 * INDENT)
    return " \\\n".join(lines)


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help in the terminal's width; words and numbers are never cut."""

    def __init__(self, prog: str) -> None:
        width = columns()
        super().__init__(prog, max_help_position=max(8, min(32, width // 3)), width=width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return filled(text, width)


class Parser(argparse.ArgumentParser):
    """Raises mistakes, and takes no abbreviations, which another flag could make ambiguous."""

    def __init__(self, **options: Any) -> None:
        for part in ("description", "epilog"):
            options[part] = laid_out(options.get(part) or "", columns())
        options |= {"allow_abbrev": False, "argument_default": argparse.SUPPRESS, "formatter_class": Formatter}
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        raise Mistake(message.removeprefix("argument "))

    def _print_message(self, message: str, file: object = None) -> None:
        """argparse itself hides a write that fails, and writes to stderr where there is no stdout."""
        print(message, end="", flush=True)


class HelpAll(argparse.Action):
    """Prints help with the options that only few need."""

    def __init__(self, option_strings: Sequence[str], dest: str, command: Described, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **options)
        self.command = command

    def __call__(self, *_: object) -> NoReturn:
        parser = build(self.command, every=True)
        parser.print_help()
        parser.exit()


def build(command: Described, every: bool = False) -> Parser:
    """The parser of a command; its namespace has the given settings alone. every: help shows what is rare, too."""
    positional = [each for each in command.settings.values() if each.how.positional]
    takes = "".join(f" [{each.written} ...]" if each.many else f" {each.written}" for each in positional)
    usage = filled(f"posenc {command.name}{takes} [options]", columns() - len("usage: "), rest=INDENT)
    parser = Parser(prog=f"posenc {command.name}", usage="\n".join(usage))
    parser.description, parser.epilog = laid_out(command.about, columns()), laid_out(command.epilog, columns())
    if command.examples:
        parser.description += "\n\nexamples:\n" + "\n".join(example(each, columns()) for each in command.examples)
    sections: dict[str, Any] = {"": parser}
    for setting in command.settings.values():
        hidden = setting.how.rare and not every
        if setting.section not in sections:
            title = laid_out(setting.section, columns() - 1)
            sections[setting.section] = parser.add_argument_group(title)
        setting.add(sections[setting.section], hidden)
    if any(setting.how.rare for setting in command.settings.values()):
        text = "show the options for several machines, too"
        parser.add_argument("--help-all", action=HelpAll, command=command, help=text)
    for flag, metavar, text in COMMON:
        if metavar:
            parser.add_argument(flag, metavar=metavar, help=text)
        else:
            parser.add_argument(flag, action="store_true", help=text)
    return parser


COMMON = (
    ("--config", "FILE", "take settings from a .yaml or .toml file, as in learning_rate: 0.1; flags take precedence"),
    ("--print-config", "", "print all settings as YAML, presets resolved, and do nothing else"),
    ("--json", "", "print the results as JSON"),
)
"""What every command takes: flag, value and help."""


def given(command: Described, arguments: Sequence[str]) -> dict[str, Any]:
    """The settings that a command line gives, by field, and what `COMMON` adds: config, print_config and json.

    Raises:
        Mistake: a value or a flag that the command does not take.
        SystemExit: after printing help.
    """
    flags, unread = build(command).parse_known_intermixed_args(arguments)
    for word in sorted(unread, key=lambda word: not word.startswith("-")):
        name = word.partition("=")[0]
        if left := instead(name):
            raise Mistake(left)
        known = [each.written for each in command.settings.values()] + [flag for flag, _, _ in COMMON]
        near = nearest(name, known, 0.6)
        hint = f"did you mean {near[0]}? " if near else ""
        raise Mistake(f"unknown argument {name}: {hint}posenc {command.name} --help lists all")
    return values_of(flags)


def values_of(namespace: argparse.Namespace) -> dict[str, Any]:
    """The given values, by field."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in vars(namespace).items()}


def check_model(name: object) -> None:
    """Refuse a model that is nowhere, before transformers is imported and the hub is asked.

    Raises:
        Mistake: no such file or folder, nor a name such as the hub has.
    """
    if (
        isinstance(name, str)
        and name != "demo"
        and not os.path.exists(name)
        and not re.fullmatch(r"[\w.-]+/[\w.-]+", name)
    ):
        raise Mistake(f"{name}: no such file or folder, and not a name on the Hugging Face hub (OWNER/NAME) either")


def check_required(command: Described, values: Mapping[str, Any]) -> None:
    """Raises:
    Mistake: a setting without a default is not given; the message has an example."""
    own = {name: each for name, each in command.settings.items() if not each.section}
    missing = [each.written for name, each in own.items() if each.default is MISSING and name not in values]
    if missing:
        shown = f"; for example: {command.examples[0]}" if command.examples else ""
        raise Mistake(f"the following arguments are required: {', '.join(missing)}{shown}")


CODE = re.compile(r":\s*[A-Za-z_][\w.]*(?![\w.=])")
"""MODULE:NAME or FILE:NAME somewhere in a text; of options, the names have values."""


def mistyped(command: Described, values: Mapping[str, Any], known: Known) -> str | None:
    """The message about the first given name that is unknown and like a known one, so that a typing error is answered at
    once; None: there is none, and the command decides about every other name."""
    everything = {name for names in known.values() for name in names}
    for field, value in values.items():
        setting = command.settings.get(field)
        if setting is None or not setting.how.names:
            continue
        names = known[setting.how.names]
        for text in value if isinstance(value, tuple) else (value,):
            if setting.how.code and text.endswith(".py"):
                return f"{text}: which object in it? Write {text}:NAME"
            if CODE.search(text) and (left := instead(f"{setting.written} FILE:CLASS")):
                return left
            # folders and modules may be named like encodings: the command reads what names code
            for term in () if CODE.search(text) else re.split(r"[+/,]", text):
                name = re.split("[:@]", term)[0].strip()
                if name not in everything and (left := instead(name)):
                    return left
                near = nearest(name, names, 0.75)
                if re.fullmatch("[a-z][a-z_0-9]+", name) and name not in everything and near:
                    flag = "" if setting.how.positional else f"{setting.written} {text}: "
                    return flag + unknown_name(setting.how.names, name, names, near)
    return None
