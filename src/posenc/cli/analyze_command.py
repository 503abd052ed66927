# SPDX-License-Identifier: Apache-2.0
"""posenc analyze."""

import json
import os
import re
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

from posenc.cli.command import record
from posenc.cli.common import WithOutput, check_limits, load_model
from posenc.errors import InputError, needs, printable, unknown
from posenc_cli.answers import DONE
from posenc_cli.arguments import How, laid_out, room

LIMITS = {"trained": (1, 2**20), "dim": (1, 2**14), "num_heads": (1, 1024), "head_dim": (1, 2**12)}


@dataclass
class Shape:
    """What `posenc.analysis.diff` takes beside head_dim and length."""

    factor: Annotated[float, "the new length over the context length (default: 4)", How("F")] = 4.0
    base: Annotated[float, "base of the frequencies, rope_theta (default: 10000)"] = 10000.0
    at: Annotated[float | None, "compare phases of tokens N apart (default: factor times length)", How("N")] = None


@dataclass(kw_only=True)
class Analyze(WithOutput):
    """Describe and plot what an encoding, your own function or a model does with positions, or two frequency schedules."""

    examples: ClassVar = (
        "posenc analyze rope --out rope-report",
        "posenc analyze rope@rerope:window=64 --length 1024",
        "posenc analyze fade.py:Fade",
        "posenc analyze yarn ntk --factor 8",
    )

    subject: Annotated[str, "what to analyse, see below", How("NAME|MODULE:OBJECT|MODEL", positional=True, code=True)]
    other: Annotated[
        str | None,
        "a second frequency schedule: what it and the first do to every pair of channels",
        How("[SCHEDULE]", positional=True, names="schedule"),
    ] = None
    length: Annotated[
        int | None, "positions to look at (default: 512), or of two schedules the training length (default: 4096)"
    ] = None
    trained: Annotated[int | None, "training length (default: the model's, else --length)"] = None
    dim: Annotated[int | None, "width of the model's input (default: the object's, else 64)"] = None
    num_heads: Annotated[int | None, "attention heads (default: the object's, else 4)", How(flag="heads")] = None
    head_dim: Annotated[int | None, "width of a head (default: the object's, else 64)"] = None
    seed: Annotated[int, "seed of random numbers (default: 0)"] = 0
    out: Annotated[
        str | None,
        "also write the JSON, a page with figures, report.html, its tables and its first figure into this folder",
        How("DIR"),
    ] = None

    @classmethod
    def groups(cls) -> dict[str, type]:
        return {"of two schedules": Shape}

    @classmethod
    def epilog(cls) -> str:
        return (
            "NAME is an encoding as `posenc list` shows it, with options after colons (rope:rope_theta=500), a position map "
            "after @ (rope@rerope:window=64) and several joined by +. MODULE:OBJECT is a function from (n,) positions to "
            "(n, dim) vectors, an Encoding or a class of one, or a table; MODULE may be a path to a .py file.\n"
            "MODEL is what `posenc extend` takes, or a folder with an encoder such as BERT.\n"
            "Schedules are named as `posenc list` shows them, with options after colons (yarn:beta_fast=16) and what is "
            "applied to them after a plus sign (yarn+resonance). --factor and --length go to those that need them and do "
            "not state them."
        )

    def run(self) -> int:
        if self.other is not None:
            return self._difference(self.other)
        for name in self.given:
            raise InputError("is for two schedules, leave it out", argument=name)
        from posenc.analysis.analyze import analyze
        from posenc.analysis.target import target_of
        from posenc.lab.user_code import printing_to_stderr
        from posenc.report.analyze import files, results
        from posenc.report.terminal import Display, files_in

        needs("matplotlib", "lab")
        check_limits(self, **LIMITS)
        if self.out:
            self.out = os.path.abspath(self.out)  # the analysed code may change the folder
        sizes = {"dim": self.dim, "num_heads": self.num_heads, "head_dim": self.head_dim}
        started = time.perf_counter()
        folder = None
        with printing_to_stderr(), Display() as shown:  # what the analysed code prints goes to stderr
            target = self._target()
            path = Path(self.subject)
            subject = target_of(
                target,
                length=512 if self.length is None else self.length,
                trained=self.trained,
                seed=self.seed,
                name=path.resolve().name if path.exists() else self.subject,
                **{name: size for name, size in sizes.items() if size is not None},
            )
            if self.out is not None:  # only now, for a subject that can be analysed
                folder = record(self.out, self)
            count = shown.counter("")
            analysis = analyze(subject, progress=lambda title, done, total: count(done, total, title))
            numbers = results(analysis, self.typed, time.perf_counter() - started)
            if folder is not None:
                written = files(analysis, numbers) | {"analysis.json": json.dumps(numbers, indent=1)}
                for name, content in written.items():
                    folder.write(name, content)
        if self.json:
            print(json.dumps(numbers, indent=1))
        else:
            files_of = ["", *files_in(folder.directory)] if folder is not None else []
            text = laid_out(printable(str(analysis)), min(room() or 100, 100))  # no longer lines, for reading
            print("\n".join([text, *map(printable, files_of)]))
        return DONE

    def _difference(self, other: str) -> int:
        """Compare two frequency schedules of RoPE."""
        from posenc.analysis import diff

        usual = {field.name: field.default for field in fields(type(self))}
        for name in ("trained", "dim", "num_heads", "seed"):
            if getattr(self, name) != usual[name]:
                raise InputError("is not for two schedules, leave it out", argument=name)
        check_limits(self, head_dim=(2, 2**14), length=(1, 2**40))
        given = {"head_dim": self.head_dim, "length": self.length, **self.given}
        difference = diff(self.subject, other, **{name: value for name, value in given.items() if value is not None})
        if self.out is not None:
            from posenc.report.diff import files

            folder = record(self.out, self)
            for name, content in files(difference, self.typed).items():
                folder.write(name, content)
        return self.emit(difference.to_dict(), str(difference), "analysis")

    def _target(self) -> Any:
        """The encoding's name, the object or the model."""
        from posenc.encodings import ENCODINGS
        from posenc.encodings.patterns import PATTERNS
        from posenc.lab.user_code import load_object
        from posenc.pretrained.packaged import DEMO

        subject = self.subject
        path, (_, colon, attribute) = Path(subject), subject.rpartition(":")
        encoding = re.split("[:@+/]", subject)[0].strip()
        if encoding in ENCODINGS or encoding in PATTERNS:
            return subject
        if not subject.strip():
            raise InputError("subject '': name an encoding (posenc list), MODULE:OBJECT or a model")
        if subject == DEMO or path.is_dir() or path.suffix == ".gguf":
            return load_model(subject, self.name, encoders=True)[0]
        if colon and all(part.isidentifier() for part in attribute.split(".")):
            return load_object(subject, may_import=True)
        if path.is_file():
            raise InputError(f"{subject}: which object in it? Write {subject}:NAME")
        if subject.startswith(("/", "./", "../", "~")):
            raise InputError(f"{subject}: no such file or folder")
        if subject.count("/") == 1:
            return load_model(subject, self.name, encoders=True)[0]
        remedy = "write MODULE:OBJECT for your own, or name a model"
        raise InputError(str(unknown("encoding", encoding, [*ENCODINGS, *PATTERNS])), remedy)
