"""Every flag of every command, found in the parsers themselves, with values that nobody means; and what must hold."""

import argparse
import contextlib
import io
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import tokenizers
import transformers
from posenc.lab.sweep import Interrupted
from tokenizers import models, pre_tokenizers

from posenc import cli
from references.small_models import small_model

VALUES = {
    "empty": "", "space": " ", "huge": "1" + "0" * 18, "large": "1000000000", "negative": "-1", "zero": "0", "nan": "nan",
    "inf": "inf", "-inf": "-inf", "overflow": "1e400", "fraction": "1.5", "underscore": "1_0", "other digits": "１２",
    "unicode": "é→漢字🦀", "control": "\x1b[31mred\x07", "nul": "a\0b", "newline": "a\nb", "long": "x" * 100_000,
    "long number": "9" * 100_000, "long sum": "rope+" * 20_000 + "rope", "shell": "$(touch pwned); `id` | cat && echo",
    "path": "../../etc/passwd", "equals": "=", "pair": "a=b", "dashes": "--", "dash": "-", "flag": "--no-such",
    "no unicode": "\udcff", "markup": "[bold]x[/]", "colons": "rope" + ":" * 1000, "html": "<script>", "braces": "{0}%s",
    "at": "@", "override": "\u202e\u2028x",
}  # fmt: skip
LONGEST = 2700
"""Characters of a message: that of a mistake, with what goes before it."""

SIZES = "--seeds=1 --length=8 --steps=1 --batch-size=1 --dim=2 --num-layers=1 --num-heads=1 --head-dim=2 --windows=2"
BASES = {
    "list": "", "cite": "rope", "diff": "ntk yarn", "explore": "--out=explore.html",
    "conform": "posenc.functional:alibi_slopes --as=alibi", "doctor": "MODEL",
    "compare": f"--data=TEXT --out=out --encodings=none {SIZES} --targets=1 --factors=1 --workers=1",
    "analyze": "alibi --length=4 --steps=0",
    "bench": "rotary --quick --n=4 --rounds=1 --no-peers --no-memory --out=out",
    "eval": "MODEL --tasks=passkey --lengths=64 --depths=0 --samples=2 --out=out",
    "extend": "MODEL --method=ntk --factor=2 --no-verify",
}  # fmt: skip
"""A small run of every command."""

VISION = (
    "--task=vision --out=out --encodings=none --seeds=1 --steps=1 --batch-size=1 --dim=2 --num-layers=1 --num-heads=1 "
    "--head-dim=2 --image-size=8 --patch-size=4 --test-sizes=8 --images=2 --data-images=10 --workers=1"
)
OTHERS = {
    ("compare", flag): VISION
    for flag in ("--image-size", "--patch-size", "--test-sizes", "--images", "--data-images", "--image-column",
                 "--label-column")
}  # fmt: skip
"""The small run of a flag that the one above does not take."""


@dataclass(frozen=True)
class Case:
    """A command, one of its flags or places, and the name of the value it is given."""

    command: str
    argument: str
    value: str

    def arguments(self, files: Path) -> list[str]:
        base = [
            word.replace("MODEL", str(files / "model")).replace("TEXT", str(files / "text.txt"))
            for word in OTHERS.get((self.command, self.argument), BASES[self.command]).split()
        ]
        given = VALUES[self.value]
        if self.argument.startswith("-"):
            return [self.command, *base, f"{self.argument}={given}"]
        base[places(self.command).index(self.argument)] = given
        return [self.command, *base]

    def __str__(self) -> str:
        return f"{self.command} {self.argument} {self.value}"


def actions(command: str) -> list[argparse.Action]:
    return [action for action in cli.build(command)._actions if not isinstance(action, argparse._HelpAction)]


def places(command: str) -> list[str]:
    return [action.dest for action in actions(command) if not action.option_strings]


def cases() -> Iterator[Case]:
    """Every flag and place of every command with every value."""
    for command in cli.COMMANDS:
        for action in actions(command):
            for argument in action.option_strings or [action.dest]:
                yield from (Case(command, argument, value) for value in VALUES)


def strangers(command: str) -> list[str]:
    """Flags that a command does not have: the other commands', and one that none has."""
    flags = {name: {flag for action in actions(name) for flag in action.option_strings} for name in cli.COMMANDS}
    return sorted(set().union(*flags.values(), {"--no-such-flag"}) - flags[command])


def prepare(folder: Path) -> None:
    """A text and a small model with random weights."""
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    small_model("llama").save_pretrained(folder / "model")
    words = ["<unk>", "<s>", "</s>", *(f"w{index}" for index in range(94))]
    made = tokenizers.Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder / "model")


def wrong(case: Case, files: Path) -> tuple[int, list[str]]:
    """The exit code of a case run in an empty folder, and what it does that it must not.

    What `compare` and `bench` measure in processes of their own is cut off: no flag is read there.
    """
    here = files / "here"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    out, err = io.StringIO(), io.StringIO()
    stop = mock.Mock(side_effect=Interrupted), mock.Mock(side_effect=KeyboardInterrupt)
    arguments = case.arguments(files)
    with (
        contextlib.chdir(here),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch("posenc.lab.compare.sweep", stop[0]),
        mock.patch("posenc.lab.bench.run.Workers.measure", stop[1]),
        mock.patch("webbrowser.open"),
        mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", True),  # an odd name is not asked for there
    ):
        code = cli.main(arguments)
    told, left = err.getvalue(), sorted(path.name for path in here.iterdir())
    found = [] if code in (0, 1, 2) else [f"exit code {code}"]
    if code == 2:
        name = case.argument.strip("-").replace("-", "_").rstrip("s")
        found += [
            what
            for what, holds in {
                f"{len(told.splitlines())} lines": len(told.splitlines()) == 1,
                f"starts with {told[:40]!r}": told.startswith(f"posenc {case.command}: error: "),
                f"{len(told)} characters": len(told) <= LONGEST,
                "characters that steer a terminal": told.removesuffix("\n").isprintable(),
                "something on stdout": not out.getvalue(),
                f"left {left}": not left,
                f"does not name it: {told[:90]!r}": not case.argument.startswith("-") or name in told.replace("-", "_"),
            }.items()
            if not holds
        ]
    if (here / "pwned").exists():
        found.append("ran a shell")
    return code, found
