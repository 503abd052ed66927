# SPDX-License-Identifier: Apache-2.0
"""Two frequency schedules as a page."""

from posenc import __version__
from posenc.analysis.difference import COLUMNS, Difference
from posenc.lab.table import Table
from posenc.report.drawn import beside
from posenc.report.html import rendered


def files(difference: Difference, command: str = "") -> dict[str, str | bytes]:
    """The files of a comparison of two schedules by name. command: that made it."""
    d = difference
    table = Table(" and ".join(d.schedules), "", COLUMNS, [pair.cells() for pair in d.pairs])
    made = {"settings": {}, "machine": {"posenc": __version__}, "command": command}
    return beside(page(d, command), [table], None, made)


def page(difference: Difference, command: str = "") -> str:
    """report.html for two schedules. command: that made it."""
    return rendered("diff.html", {}, d=difference, columns=COLUMNS, command=command)
