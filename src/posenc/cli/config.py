# SPDX-License-Identifier: Apache-2.0
"""A command's settings as a file: YAML or TOML in by --config, config.yaml out beside the results.

The flags of a command are the one definition of its settings: a file's keys are the long flags with underscores, and the
names of what is given without a flag; what a value may be is what the flag takes. Every scalar of YAML is read as the text
that was written, so that `no` or `1:30` stays text where text is wanted.
"""

import argparse
import json
import math
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch

from posenc import __version__
from posenc.cli.config_file import READERS, Entry, Plain, short, text_of
from posenc.errors import InputError, unknown
from posenc.files import Folder

NAME = "config.yaml"
MARK = "# posenc "
"""How a file begins that posenc wrote."""
NOT_SETTINGS = {"help", "config", "json"}
NOT_RECORDED = {"out"}
"""May be in a file, but is not written: what is run again goes into another folder."""
MOST_PROBLEMS = 5
"""Problems of a file that are told."""

P = TypeVar("P")


class Digest(argparse.Action):
    """A flag that holds what another one names to what it was. of: the flags that it speaks of; where one of them is
    given on the command line, the digest of a file is left out."""

    def __init__(self, *args: Any, of: Sequence[str], **more: Any) -> None:
        super().__init__(*args, **({"metavar": "HEX"} | more))
        self.of = of

    def __call__(self, parser: object, namespace: argparse.Namespace, values: Any, flag: str | None = None) -> None:
        setattr(namespace, self.dest, values)


def check_digest(options: argparse.Namespace, name: str, what: str, found: str) -> None:
    """Refuse what is no longer what it was. name: of a `Digest`; what: the flag and value that it speaks of.

    Raises:
        InputError: the digest was given, and is not the one that was found.
    """
    wanted = getattr(options, name, None)
    if wanted is not None and wanted != found:
        raise InputError(
            f"{what}: has changed, its digest is {found[:12]} and {name} says {short(wanted[:12])}; bring back what it "
            f"was, or leave {name} out to run with what is there now"
        )


# -------------------------------------------------------------------- reading


def add_config(parser: argparse.ArgumentParser) -> None:
    text = "settings from a .yaml or .toml file whose keys are the flags, as in learning_rate: 0.1; flags beside it win"
    parser.add_argument("--config", metavar="FILE", help=text)


def parse(build: Callable[..., argparse.ArgumentParser], arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command: its defaults, over them those of the file that --config names, over them the flags.

    Args:
        build: makes the command's parser; takes add_help.

    Raises:
        InputError: flags or a file that the command does not take.
    """
    said = _said(build(add_help=False), arguments)
    parser = build()
    if "config" not in said:
        options = parser.parse_args(arguments)
    else:
        from_file = read(said["config"], parser)
        for action in parser._actions:
            if action.dest in from_file and not _overruled(action, parser, said):
                parser.set_defaults(**{action.dest: from_file[action.dest]})
                _need_not(action)
        options = parser.parse_intermixed_args(arguments)
    options.parser = parser
    return options


def read(path: str | Path, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The settings in a file, checked against the flags of a command: destination -> value.

    Raises:
        InputError: no such file, no YAML or TOML, unknown keys or values that their flags do not take.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in READERS:
        raise InputError(f"--config {short(path)}: must end in {', '.join(READERS)}")
    text = text_of(Path(path))
    try:
        entries = READERS[suffix](text)
    except InputError as error:
        raise InputError(f"--config {path}: {error}") from None
    if not entries:
        raise InputError(f"--config {path}: holds no setting; write some, as in seeds: 2")
    known = {key(action): action for action in settings(parser)}
    found: dict[str, Any] = {}
    problems = _problems(entries, known, parser.prog.split()[-1], found)
    told = list(islice(problems, MOST_PROBLEMS))
    if told:
        more = "; and more" if next(problems, None) else ""
        raise InputError(f"--config {path}: {'; '.join(told)}{more}")
    return found


def settings(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """What a file may say to a command."""
    return [action for action in parser._actions if action.dest not in NOT_SETTINGS]


def key(action: argparse.Action) -> str:
    """The name in a file: of --learning-rate learning_rate."""
    flag = next((option for option in action.option_strings if option.startswith("--")), action.dest)
    return flag.removeprefix("--").replace("-", "_")


def _said(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, Any]:
    """What the command line alone says."""
    parser._defaults.clear()
    for action in parser._actions:
        action.default = argparse.SUPPRESS
        _need_not(action)
    return vars(parser.parse_known_intermixed_args(arguments)[0])


def _need_not(action: argparse.Action) -> None:
    action.required = False
    if not action.option_strings and action.nargs is None:
        action.nargs = "?"


def _overruled(action: argparse.Action, parser: argparse.ArgumentParser, said: Mapping[str, Any]) -> bool:
    """Whether the command line says this, what excludes this, or what this is a digest of."""
    others = {a.dest for group in parser._mutually_exclusive_groups if action in group._group_actions
              for a in group._group_actions}  # fmt: skip
    of = action.of if isinstance(action, Digest) else ()
    return not said.keys().isdisjoint({action.dest, *others, *of})


def _problems(
    entries: Sequence[Entry], known: Mapping[str, argparse.Action], command: str, found: dict[str, Any]
) -> Iterator[str]:
    """What is wrong with each entry; those that are right go into `found`."""
    seen: set[str] = set()
    for entry in entries:
        where = "" if entry.line is None else f"line {entry.line}: "
        if entry.key in seen:
            yield f"{where}{short(entry.key)} is there twice; keep one"
        elif entry.key == "command":
            if entry.value != command:
                yield f"{where}command: {short(entry.value)}: these are not settings of posenc {command}"
        elif entry.key not in known:
            yield f"{where}{unknown('setting', entry.key[:40], known)}"
        else:
            action = known[entry.key]
            try:
                found[action.dest] = _value(action, entry.value)
            except ValueError as error:
                yield f"{where}{entry.key}: {error}"
        seen.add(entry.key)


def _value(action: argparse.Action, written: Any) -> Any:
    """What a flag makes of what was written.

    Raises:
        ValueError: it does not take that.
    """
    if not _takes_list(action):
        return _one(action, written)
    values = written if isinstance(written, list) else [written]
    if not values and action.nargs == "+" and action.default != []:
        raise ValueError("is an empty list; name at least one")
    return [_one(action, value) for value in values]


def _takes_list(action: argparse.Action) -> bool:
    return action.nargs not in (None, "?", 0) or isinstance(action, argparse._AppendAction)


def _kind(action: argparse.Action) -> Any:
    return bool if action.nargs == 0 else action.type or str


def _one(action: argparse.Action, written: Any) -> Any:
    kind = _kind(action)
    convert, wanted = KINDS.get(kind, (None, ""))
    if convert is None:  # the flag's own function
        try:
            value = kind(str(written))
        except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
            raise ValueError(f"{short(written)}: {error or 'does not serve'}") from None
    else:
        try:
            value = convert(written)
        except (ValueError, OverflowError):
            hint = "; write it between quotes" if kind is str and not isinstance(written, list | dict) else ""
            raise ValueError(f"{short(written)} is not {wanted}{hint}") from None
    if action.choices is not None and value not in action.choices:
        raise ValueError(f"{short(value)} is not one of {', '.join(map(str, action.choices))}")
    return value


WHOLE = re.compile(r"[-+]?(0|[1-9](_?[0-9])*)")
TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")


def _whole(written: Any) -> int:
    if isinstance(written, Plain) and WHOLE.fullmatch(written):
        return int(written)
    if type(written) is int:
        return written
    raise ValueError


def _number(written: Any) -> float:
    if isinstance(written, Plain):  # 1e-3 too, a text to YAML 1.1
        return float(re.sub(r"^([-+]?)\.(inf|nan)$", r"\1\2", written, flags=re.IGNORECASE))
    if type(written) in (int, float):
        return float(written)
    raise ValueError


def _truth(written: Any) -> bool:
    if isinstance(written, Plain) and written.lower() in TRUE + FALSE:
        return written.lower() in TRUE
    if type(written) is bool:
        return written
    raise ValueError


def _words(written: Any) -> str:
    if not isinstance(written, str) or (written == "" and isinstance(written, Plain)):
        raise ValueError
    return str(written)


KINDS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    bool: (_truth, "true or false"),
    int: (_whole, "a whole number"),
    float: (_number, "a number"),
    str: (_words, "a text"),
}


# -------------------------------------------------------------------- writing


def record(folder: Folder | str | Path, options: argparse.Namespace, **resolved: Any) -> None:
    """Write config.yaml: every setting of a run. resolved: values in place of those in `options`; None and [] leave one
    out.

    Raises:
        InputError: a config.yaml is there that posenc did not write.
    """
    folder = folder if isinstance(folder, Folder) else Folder(folder)
    path = folder.directory / NAME
    try:
        with path.open("rb") as file:
            # also one that a fault cut off before anything was said
            ours = MARK.encode().startswith(file.read(len(MARK)))
    except FileNotFoundError:
        ours = True
    except OSError:
        ours = False
    if not ours:
        raise InputError(f"--out {folder.directory}: {NAME} there is not of posenc's making; rename it or name another")
    folder.write(NAME, dump(options, **resolved))


def recording(progress: P, write: Callable[[], object]) -> P:
    """A `Progress` that writes first of all when it is told what is planned: every check has passed by then, and
    nothing has been measured."""
    hooks: Any = progress

    def planned(*counts: int) -> None:
        write()
        hooks.planned(*counts)

    return replace(hooks, planned=planned)


def dump(options: argparse.Namespace, **resolved: Any) -> str:
    """The settings as YAML that any reader of YAML 1.1 or 1.2 understands alike."""
    head = (
        f"{options.command}: the settings of the run whose results are in this folder; written again by every run into it.",
        f"Run it again: posenc {options.command} --config {NAME} --out NEW_FOLDER",
        f"It was: {options.typed}",
        f"By posenc {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    )
    lines = [*(f"{MARK if n == 0 else '# '}{_printable(line)}" for n, line in enumerate(head)), ""]
    lines.append(f"command: {options.command}")
    values = vars(options) | resolved
    for action in settings(options.parser):
        value = values.get(action.dest)
        if value not in (None, []) and action.dest not in NOT_RECORDED:
            lines.append(f"{key(action)}: {_as_yaml(value)}")
    return "\n".join(lines) + "\n"


PLAIN = re.compile(r"[A-Za-z][\w.+@/-]*", re.ASCII)
NOT_PLAIN = {*TRUE, *FALSE, "y", "n", "null"}
"""Words that are no texts to some reader of YAML."""


def _as_yaml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_as_yaml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"{value}".replace("inf", ".inf").replace("nan", ".nan")
        written = repr(value)
        return written if "." in written else written.replace("e", ".0e")  # else a text to YAML 1.1
    text = str(value)
    if PLAIN.fullmatch(text) and text.lower() not in NOT_PLAIN:
        return text
    return _printable(json.dumps(text, ensure_ascii=False))


def _printable(line: str) -> str:
    """With what YAML does not print as an escape."""
    return re.sub(
        r"[\x00-\x08\n-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]",
        lambda found: f"\\u{ord(found[0]):04x}",
        line,
    )
