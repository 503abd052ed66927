# SPDX-License-Identifier: Apache-2.0
"""posenc analyze."""

import json
import os
import re
import shutil
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from posenc.cli.command import record
from posenc.cli.common import WithOutput, check_limits, load_model
from posenc.errors import InputError, needs, printable, unknown
from posenc_cli.answers import DONE
from posenc_cli.arguments import How

if TYPE_CHECKING:
    from posenc.analysis.analyze import Analysis

WIDEST = 100
"""Characters of a line, where the terminal has room for them."""
LIMITS = {"trained": (1, 2**20), "dim": (1, 2**14), "num_heads": (1, 1024), "head_dim": (1, 2**12), "steps": (0, 10**6)}


@dataclass(kw_only=True)
class Analyze(WithOutput):
    """Describe and plot what an encoding, your own function or a model does with positions."""

    examples: ClassVar = (
        "posenc analyze rope --out rope-report",
        "posenc analyze rope@rerope:window=64 --length 1024",
        "posenc analyze fade.py:Fade",
    )
    asks: ClassVar = True

    subject: Annotated[str, "what to analyse, see below", How("NAME|MODULE:OBJECT|MODEL", positional=True, code=True)]
    length: Annotated[int, "positions to look at"] = 512
    trained: Annotated[int | None, "training length (default: the model's, else --length)"] = None
    dim: Annotated[int | None, "width of the model's input (default: the object's, else 64)"] = None
    num_heads: Annotated[int | None, "attention heads (default: the object's, else 4)", How(flag="heads")] = None
    head_dim: Annotated[int | None, "width of a head (default: the object's, else 64)"] = None
    steps: Annotated[
        int, "training steps of a small model for what only a trained one shows (120 take a minute); 0: none"
    ] = 0
    dtypes: Annotated[tuple[str, ...], "dtypes to measure rounding of the angles in", How("DTYPE")] = (
        "bfloat16",
        "float16",
    )
    seed: Annotated[int, "seed of random numbers (default: 0)"] = 0
    out: Annotated[
        str | None,
        "also write the JSON, a page with figures, report.html, its tables and its first figure into this folder",
        How("DIR"),
    ] = None

    @classmethod
    def epilog(cls) -> str:
        return (
            "NAME is an encoding as `posenc list` shows it, with options after colons (rope:rope_theta=500), a position map "
            "after @ (rope@rerope:window=64) and several joined by +. MODULE:OBJECT is a function from (n,) positions to "
            "(n, dim) vectors, an Encoding or a class of one, or a table; MODULE may be a path to a .py file.\n"
            "MODEL is what `posenc extend` takes, or a folder with an encoder such as BERT."
        )

    def run(self) -> int:
        from posenc.analysis.analyze import analyze
        from posenc.analysis.target import target_of
        from posenc.lab.user_code import printing_to_stderr
        from posenc.report.analyze import files, results
        from posenc.report.terminal import Display

        needs("matplotlib", "lab")
        check_limits(self, **LIMITS)
        if self.out:
            self.out = os.path.abspath(self.out)  # the analysed code may change the folder
        sizes = {"dim": self.dim, "num_heads": self.num_heads, "head_dim": self.head_dim}
        started = time.perf_counter()
        folder = None
        with printing_to_stderr(), Display(yes=self.yes) as shown:  # what the analysed code prints goes to stderr
            target, tokenizer = self._target()
            path = Path(self.subject)
            subject = target_of(
                target,
                length=self.length,
                trained=self.trained,
                steps=self.steps,
                seed=self.seed,
                name=path.resolve().name if path.exists() else self.subject,
                tokenizer=tokenizer,
                dtypes=self.dtypes,
                **{name: size for name, size in sizes.items() if size is not None},
            )
            if self.out is not None:  # only now, for a subject that can be analysed
                folder = record(self.out, self)
            count = shown.counter("")
            analysis = analyze(subject, progress=lambda title, done, total: count(done, total, title))
            numbers = results(analysis, self.typed, time.perf_counter() - started)
            if folder is not None:
                for name, content in files(analysis, numbers, subject).items():
                    folder.write(name, content)
        if folder is not None:
            folder.write("analysis.json", json.dumps(numbers, indent=1))
        print(json.dumps(numbers, indent=1) if self.json else printable(text(analysis, folder)))
        return DONE

    def _target(self) -> tuple[Any, Any]:
        """The encoding's name, the object or the model, and a model's tokenizer."""
        from posenc.encodings import ENCODINGS
        from posenc.encodings.patterns import PATTERNS
        from posenc.lab.user_code import load_object
        from posenc.pretrained.packaged import PACKAGED

        subject = self.subject
        path, (_, colon, attribute) = Path(subject), subject.rpartition(":")
        encoding = re.split("[:@+/]", subject)[0].strip()
        if encoding in ENCODINGS or encoding in PATTERNS:
            return subject, None
        if not subject.strip():
            raise InputError("subject '': name an encoding (posenc list), MODULE:OBJECT or a model")
        if subject in PACKAGED or path.is_dir() or path.suffix == ".gguf":
            return load_model(subject, self.name, encoders=True)
        if colon and all(part.isidentifier() for part in attribute.split(".")):
            return load_object(subject, may_import=True), None
        if path.is_file():
            raise InputError(f"{subject}: which object in it? Write {subject}:NAME")
        if subject.startswith(("/", "./", "../", "~")):
            raise InputError(f"{subject}: no such file or folder")
        if subject.count("/") == 1:
            return load_model(subject, self.name, encoders=True)
        raise InputError(
            f"{unknown('encoding', encoding, [*ENCODINGS, *PATTERNS])}; or write MODULE:OBJECT, or name a model"
        )


def text(analysis: "Analysis", folder: Any = None) -> str:
    """The sentences of each section, what does not apply, and the paths of the files."""
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 0)).columns)

    def wrapped(sentence: str) -> str:
        return textwrap.fill(sentence, width, initial_indent="- ", subsequent_indent="  ")

    lines = [analysis.subject, *(["", *textwrap.wrap(analysis.note, width)] if analysis.note else [])]
    for section in analysis.sections:
        lines += ["", section.title, *map(wrapped, section.finding.sentences())]
    if analysis.left_out:
        lines += ["", "What does not apply"]
        lines += [wrapped(f"{' '.join(titles)} {why}") for why, titles in analysis.reasons.items()]
    if folder is not None:
        from posenc.report.terminal import files_in

        lines += ["", *files_in(folder.directory)]
    return "\n".join(lines)
