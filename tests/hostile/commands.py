"""Every flag of every command, found in their settings, with values that nobody means; and what must hold."""

import contextlib
import io
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import tokenizers
import transformers
from tokenizers import models, pre_tokenizers

from posenc import cli
from references.small_models import small_model

VALUES = {
    "empty": "", "space": " ", "huge": "1" + "0" * 18, "negative": "-1", "zero": "0", "nan": "nan", "inf": "inf",
    "overflow": "1e400", "fraction": "1.5", "unicode": "é→漢字🦀", "control": "\x1b[31mred\x07", "newline": "a\nb",
    "shell": "$(touch pwned); `id` | cat && echo", "path": "../../etc/passwd", "pair": "a=b", "flag": "--no-such",
    "no unicode": "\udcff", "markup": "[bold]x[/]", "braces": "{0}%s", "long": "x" * 10_000,
}  # fmt: skip
LONGEST = 2700
"""Characters of an error message, with what goes before it."""

SIZES = "--seeds=1 --length=8 --steps=1 --batch-size=1 --dim=2 --num-layers=1 --num-heads=1 --head-dim=2 --windows=2"
BASES = {
    "list": "rope", "explore": "--out=explore.html", "check": "none --fast", "doctor": "MODEL",
    "compare": f"--data=TEXT --out=out --encodings=none {SIZES} --no-curve --targets=1 --factors=1 --workers=1",
    "analyze": "alibi --length=4",
    "bench": "rope --n=4 --rounds=1 --out=out",
    "eval": "MODEL --tasks=passkey --lengths=64 --depths=0 --samples=2 --out=out",
    "extend": "MODEL --method=ntk --factor=2 --no-verify",
}  # fmt: skip
"""A small run of every command."""

OTHERS = dict.fromkeys(
    [("explore", flag) for flag in ("--predict", "--data", "--steps", "--seed")],
    "--predict=none --data=TEXT --length=8 --steps=1 --out=predict.html",
)
OTHERS |= dict.fromkeys([("analyze", flag) for flag in ("SCHEDULE", "--factor", "--base", "--at")], "ntk yarn")
OTHERS |= dict.fromkeys([("check", flag) for flag in ("--as", "--badge")], "posenc.functional:alibi_slopes --as=alibi")
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
            for word in BASES[self.command].split()
        ]
        given = VALUES[self.value]
        if self.argument.startswith("-"):
            return [self.command, *base, f"{self.argument}={given}"]
        base[places(self.command).index(self.argument)] = given
        return [self.command, *base]

    def __str__(self) -> str:
        return f"{self.command} {self.argument} {self.value}"


def arguments(command: str) -> list[str]:
    """Every flag of a command, and the fields of what is given without one."""
    settings = cli.COMMANDS[command].settings().values()
    return [
        "--config",
        *(each.field if each.how.positional else each.written for each in settings if each.type is not bool),
    ]


def places(command: str) -> list[str]:
    return [name for name in arguments(command) if not name.startswith("-")]


def cases() -> Iterator[Case]:
    """Every flag and positional of every command with every value."""
    for command in cli.COMMANDS:
        for argument in arguments(command):
            yield from (Case(command, argument, value) for value in VALUES)


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

    What `compare` trains in processes, and what `bench` times, is cut off: no flag is read there.
    """
    here = files / "here"
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    out, err = io.StringIO(), io.StringIO()
    stop = mock.Mock(side_effect=KeyboardInterrupt)
    arguments = case.arguments(files)
    with (
        contextlib.chdir(here),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch("posenc.lab.engines.ProcessPool.run", stop),
        mock.patch("posenc.lab.bench.BenchStudy.timed", stop),
        mock.patch("webbrowser.open"),
        mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", True),  # an odd name is not asked for there
    ):
        code = cli.main(arguments)
    message, left = (
        err.getvalue(),
        sorted(path.name for path in here.rglob("*") if path.is_file() and path.name != ".lock"),
    )
    faults = [] if code in (0, 1, 2) else [f"exit code {code}"]
    if code == 2:
        name = case.argument.strip("-").replace("-", "_").rstrip("s")
        faults += [
            what
            for what, holds in {
                f"{len(message.splitlines())} lines": len(message.splitlines()) == 1,
                f"starts with {message[:40]!r}": message.startswith(f"posenc {case.command}: error: "),
                f"{len(message)} characters": len(message) <= LONGEST,
                "characters that steer a terminal": message.removesuffix("\n").isprintable(),
                "something on stdout": not out.getvalue(),
                f"left {left}": not left,
                f"does not name it: {message[:90]!r}": not case.argument.startswith("-")
                or name in message.replace("-", "_"),
            }.items()
            if not holds
        ]
    if (here / "pwned").exists():
        faults.append("ran a shell")
    return code, faults
