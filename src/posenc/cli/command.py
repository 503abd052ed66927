# SPDX-License-Identifier: Apache-2.0
"""Commands as dataclasses: the fields are the settings that flags and files (--config) give, and `run` does the work.

A field with a help text, `Annotated[int, "training steps"]`, is a flag of its name and type. The settings of a study are
fields of its dataclass, such as `posenc.lab.text.Settings`, and are read in the same way. A file is converted to
command-line words, so that flags and files take the same values.
"""

import argparse
import json
import os
import platform
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field
from importlib import import_module
from inspect import cleandoc, get_annotations
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import torch

from posenc import __version__
from posenc.errors import NO_VALUE, InputError, printable, shown, unknown, with_value
from posenc.lab.files import Folder
from posenc.lab.user_code import names_code
from posenc_cli.arguments import Described, How, Mistake, Setting, build, check_required, given, values_of

CONFIG = "config.yaml"
MARK = "# posenc "
"""The beginning of a config.yaml that posenc wrote."""

OF_FUNCTIONS = {"directory": "out", "file": "gguf", "name": "model"}
"""Fields of commands by the arguments of functions that have other names."""
ARGUMENT = re.compile(r"(?<![\w:.'])([a-z]\w*)=([^\s,;)]*)")
"""An argument and its value in a remedy."""

C = TypeVar("C", bound="Command")


def settings_in(cls: type, section: str = "") -> dict[str, Setting]:
    """The fields of a class that have a help text, its own before those that it inherits."""
    settings: dict[str, Setting] = {}
    for base in cls.__mro__:
        for name, hint in get_annotations(base).items():
            origin: Any = get_origin(hint)
            if origin is Annotated and name not in settings:
                kind, text, how = (*get_args(hint), How())[:3]
                if NoneType in get_args(kind):
                    kind = next(each for each in get_args(kind) if each is not NoneType)
                if many := get_origin(kind) is tuple:
                    kind = get_args(kind)[0]
                choices = get_args(kind) if get_origin(kind) is Literal else ()
                default = getattr(cls, name, MISSING)
                settings[name] = Setting(name, section, str if choices else kind, many, default, text, how, choices)
    return settings


@dataclass(kw_only=True)
class Command:
    """A command: its docstring is its help, its fields are its flags.

    given: the explicit settings of the dataclasses in `groups`. typed: the command line.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    typed: str = ""
    json: bool = False
    name: ClassVar[str]
    examples: ClassVar[tuple[str, ...]] = ()
    """Of its use, the most useful first, as they are typed."""

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__.lower()

    def run(self) -> int:
        """Do the work; returns the exit code."""
        raise NotImplementedError

    @classmethod
    def groups(cls) -> dict[str, type]:
        """Dataclasses of settings that this command passes on, by heading in help."""
        return {}

    @classmethod
    def epilog(cls) -> str:
        """The text of help after the flags."""
        return ""

    @classmethod
    def settings(cls) -> dict[str, Setting]:
        """All settings of flags and files, by field."""
        settings = settings_in(cls)
        for section, group in cls.groups().items():
            settings |= {name: each for name, each in settings_in(group, section).items() if name not in settings}
        return settings

    @classmethod
    def described(cls) -> Described:
        """What its help and its parser are made of."""
        about = "\n\n".join(" ".join(each.split()) for each in cleandoc(cls.__doc__ or "").split("\n\n"))
        return Described(cls.name, about, cls.examples, cls.epilog(), cls.settings())

    def check_out(self) -> None:
        """Refuse --out before anything is computed."""
        if (out := getattr(self, "out", None)) is not None:
            output(out, self)

    def written(self) -> list[str]:
        """The files that it may write into --out."""
        tables = (f"table.{kind}" for kind in ("md", "csv"))
        return ["report.html", *tables, "figure.svg", "results.json", "analysis.json", f"{self.name}.json"]

    def config(self) -> dict[str, Any]:
        """The values of all settings, presets resolved."""
        return {name: getattr(self, name) for name in settings_in(type(self))} | dict(self.given)


@contextmanager
def _mistakes() -> Iterator[None]:
    try:
        yield
    except Mistake as error:
        raise InputError(str(error)) from None


def parse(command: type[C], arguments: Sequence[str], typed: str = "") -> C:
    """A command with its settings: defaults, replaced by those of the file that --config names, and these by flags.

    Raises:
        InputError: flags or a file that the command does not take.
        SystemExit: after printing for --help or --print-config.
    """
    described = command.described()
    known = described.settings
    with _mistakes():
        values = given(described, arguments)
    path, printing = values.pop("config", None), values.pop("print_config", False)
    as_json = values.pop("json", False)
    if path is not None:
        in_file = read_settings(path, command)
        in_file = {
            n: v for n, v in in_file.items() if n not in values and values.keys().isdisjoint(known[n].how.unless)
        }
        for setting, texts in ((known[name], _texts(value)) for name, value in in_file.items() if known[name].how.code):
            for text in filter(names_code, texts):
                flag = "" if setting.how.positional else f"{setting.written} "
                raise InputError(
                    f"--config {path}: {setting.key}: {text!r} names code, which a file cannot make posenc run: if it is yours, "
                    f"write it on the command line as well: {flag}{' '.join(texts)}"
                )
        values |= in_file
    with _mistakes():
        check_required(described, values)
    of_groups = {name: values.pop(name) for name in list(values) if known[name].section}
    options = command(**values, json=as_json, given=of_groups, typed=typed)
    if printing:
        print(as_yaml(options), end="")
        raise SystemExit(0)
    return options


def with_flags(error: InputError, command: type[Command]) -> str:
    """A library's message about an argument, "num_layers=0: must be ...; pass dim=8", as one about the flag, "--num-layers 0:
    must be ...; pass --dim 8", if the command has it."""
    settings = command.settings()

    def written(argument: str, value: object) -> str:
        setting = settings.get(OF_FUNCTIONS.get(argument, argument))
        if setting is None or (setting.how.positional and not isinstance(value, str)):
            return with_value(argument, value)
        if value is NO_VALUE:
            return setting.written
        if setting.type is bool and str(value) in ("True", "False"):
            return setting.written if str(value) == "True" else setting.written.replace("--", "--no-", 1)
        values = value if setting.many and isinstance(value, (tuple, list)) else [value]
        flag = () if setting.how.positional else (setting.written,)
        return " ".join([*flag, *map(_typed, values)])

    def advised(match: re.Match[str]) -> str:
        before = match.string[: match.start()]
        named = (
            match[1] in settings and not settings[match[1]].how.positional and before.count("(") == before.count(")")
        )
        return written(match[1], match[2].strip("'\"") or NO_VALUE) if named else match[0]

    flagged = InputError(error.problem, ARGUMENT.sub(advised, error.remedy))
    flagged.values = error.values
    return flagged.text(written)


def _typed(value: object) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, str) and value.split() == [value]:
        return value
    return f"{value:.12g}" if isinstance(value, float) else shown(value)


def read_settings(path: str, command: type[Command]) -> dict[str, Any]:
    """The settings in a file, by field. In YAML every scalar is text first: `no` stays "no".

    Raises:
        InputError: no such file, no YAML or TOML, unknown keys, or values that the flags do not take.
    """
    known = {each.key: each for each in command.settings().values()}
    words: list[str] = []
    try:
        content = _load(Path(path))
        if not isinstance(content, dict) or not content:
            raise InputError("has no settings; write some, as in seeds: 2")
        if content.pop("command", command.name) != command.name:
            raise InputError(f"has the settings of another command, not of posenc {command.name}")
        for key, value in content.items():
            if key not in known:
                raise unknown("setting", key, known)
            if value != []:
                words += known[key].words(value)
        flags: argparse.Namespace = build(command.described()).parse_intermixed_args(words)
        return values_of(flags)
    except (OSError, ValueError) as error:
        raise InputError(f"--config {path}: {getattr(error, 'strerror', None) or error}") from None


def _load(path: Path) -> Any:
    if path.suffix.lower() not in (".toml", ".yaml", ".yml"):
        raise InputError("must end in .yaml, .yml or .toml")
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix.lower() == ".toml":
        return _parsed(tomllib.loads, text)
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise InputError("needs PyYAML, or write TOML: pip install 'posenc[lab]'") from None
    try:
        return _parsed(lambda text: yaml.load(text, yaml.BaseLoader), text)
    except yaml.YAMLError as error:
        raise InputError(f"is not YAML: {error}") from None


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except RecursionError:
        raise InputError("its lists are nested too deep") from None


def check_ours(path: Path, mark: str, other: str = "file") -> None:
    """Refuse to replace a file of the user's. mark: what stands near the beginning of those that posenc writes; "": nothing."""
    if os.path.lexists(path) and not (mark and path.is_file() and mark.encode() in path.read_bytes()[:1000]):
        raise InputError(f"{path}: was not written by posenc, and would be replaced; name another {other}")


def output(directory: str, command: Command) -> Folder:
    """The folder of --out.

    Raises:
        InputError: the command would replace a file there that posenc did not write; config.yaml marks folders of ours.
    """
    folder = Folder(directory)
    check_ours(path := folder.directory / CONFIG, MARK, "folder")
    for name in () if path.exists() else command.written():
        check_ours(folder.directory / name, "", "folder")
    return folder


def record(directory: str, command: Command, **resolved: Any) -> Folder:
    """Write config.yaml into an `output`: every setting of a run. resolved: values that are known only when it starts."""
    folder = output(directory, command)
    folder.write(CONFIG, as_yaml(command, **resolved))
    return folder


def _texts(value: Any) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def as_yaml(command: Command, **resolved: Any) -> str:
    """A command's settings as YAML that --config takes; without --out, so that a repeated run needs another folder."""
    values = command.config() | resolved
    code = [
        word
        for name, setting in command.settings().items()
        if setting.how.code and any(map(names_code, texts := _texts(values.get(name))))
        for word in setting.words(list(texts) if setting.many else texts[0])
    ]
    again = " ".join([command.name, *code])  # code is imported from the command line alone
    head = f"""\
{MARK}{command.name}: the settings of the run whose results are in this folder; every run into it writes them again.
# Run it again: posenc {printable(again)} --config {CONFIG} --out NEW_FOLDER
# It was: {printable(" ".join(command.typed.split()))}
# By posenc {__version__}, torch {torch.__version__}, Python {platform.python_version()}

command: {command.name}
"""
    lines = (
        f"{setting.key}: {printable(json.dumps(values[name], ensure_ascii=False))}\n"
        for name, setting in command.settings().items()
        if values.get(name) not in (None, (), []) and name != "out"
    )
    return head + "".join(lines)
