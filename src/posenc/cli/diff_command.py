# SPDX-License-Identifier: Apache-2.0
"""posenc diff."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from posenc.cli.common import WithOutput, check_limits
from posenc.errors import counted
from posenc_cli.arguments import How, aligned, room

if TYPE_CHECKING:
    from posenc.analysis.difference import Difference


@dataclass(kw_only=True)
class Diff(WithOutput):
    """Compare two frequency schedules of RoPE: what each does to every pair of channels."""

    examples: ClassVar = ("posenc diff yarn ntk", "posenc diff yarn linear --factor 8 --head-dim 128")

    first: Annotated[str, "a frequency schedule", How("SCHEDULE", positional=True, names="schedule")]
    second: Annotated[str, "another one", How("SCHEDULE", positional=True, names="schedule")]
    factor: Annotated[float, "the new length over the context length", How("F")] = 4.0
    head_dim: Annotated[int, "channels of a head that rotate"] = 64
    base: Annotated[float, "base of the frequencies, rope_theta"] = 10000.0
    length: Annotated[int, "training length, in positions"] = 4096
    at: Annotated[float | None, "compare phases of tokens N apart (default: factor times length)", How("N")] = None
    out: Annotated[
        str | None,
        "also write a page with figures, report.html, its tables and its first figure into this folder",
        How("DIR"),
    ] = None

    @classmethod
    def epilog(cls) -> str:
        return (
            "Schedules are named as `posenc list` shows them, with options after colons (yarn:beta_fast=16) and what is "
            "applied to them after a plus sign (yarn+resonance). --factor and --length go to those that need them and do "
            "not state them."
        )

    def run(self) -> int:
        from posenc.analysis.difference import diff
        from posenc.lab.files import Folder

        check_limits(self, head_dim=(2, 2**14), length=(1, 2**40))
        shape = self.head_dim, self.base
        difference = diff(self.first, self.second, *shape, factor=self.factor, length=self.length, at=self.at)
        if self.out is not None:
            from posenc.report.diff import files

            folder = Folder(self.out)
            for name, content in files(difference, self.typed).items():
                folder.write(name, content)
        return self.emit(difference.to_dict(), text(difference))


def text(difference: "Difference") -> str:
    """The table of pairs, and sentences."""
    from posenc.analysis.difference import COLUMNS

    d = difference
    rows = [COLUMNS, *d.rows()]
    head = [f"{letter}: {schedule}" for letter, schedule in zip("AB", d.schedules, strict=True)]
    shape = f"head_dim {d.head_dim}, base {d.base:g}, trained on {counted(d.length, 'position')}, phases of tokens {d.at:g} apart"
    table = aligned(rows, str.rjust, room())
    return "\n".join([*head, shape, "", *table, "", *(f"- {sentence}" for sentence in d.sentences())])
