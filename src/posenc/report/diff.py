# SPDX-License-Identifier: Apache-2.0
"""Two frequency schedules as a page."""

import math

from posenc import __version__
from posenc.analysis.difference import COLUMNS, Difference
from posenc.lab.table import Table
from posenc.report.drawn import beside, drawn
from posenc.report.figures import DASHES, PALETTE, Figure, axis, line, lines
from posenc.report.html import rendered


def files(difference: Difference, command: str = "") -> dict[str, str | bytes]:
    """The files of a comparison of two schedules by name. command: that made it."""
    d = difference
    table = Table(" and ".join(d.schedules), "", COLUMNS, [pair.cells() for pair in d.pairs])
    made = {"settings": {}, "machine": {"posenc": __version__}, "command": command}
    return beside(page(d, command), [table], drawn(stretches(d)), made)


def page(difference: Difference, command: str = "") -> str:
    """report.html for two schedules. command: that made it."""
    return rendered("diff.html", {"stretch": stretches(difference)}, d=difference, columns=COLUMNS, command=command)


def stretches(d: Difference) -> Figure:
    """How much lower each schedule makes the frequency of every pair; a pair at rest has no point."""
    series = []
    columns = zip(*(pair.stretches for pair in d.pairs), strict=True)
    for name, column, colour, dash in zip(d.legend, columns, PALETTE, DASHES, strict=False):
        y = [value if 0 < value < math.inf else None for value in column]
        series.append(line(name, range(len(column)), y, {"colour": colour, "dash": dash}, dots=True))
    return lines(
        series, axis("pair of channels, fast to slow"), axis("times slower than plain RoPE", log=True), marks=[]
    )
