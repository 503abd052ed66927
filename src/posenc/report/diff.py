# SPDX-License-Identifier: Apache-2.0
"""Two frequency schedules as a page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from posenc.analysis.difference import COLUMNS, TENTH, Difference
from posenc.errors import InputError
from posenc.lab.table import Table
from posenc.report.drawn import beside, drawn
from posenc.report.explorer import block, checked, fields
from posenc.report.figures import DASHES, PALETTE, Figure, axis, line, lines
from posenc.report.html import rendered


def files(difference: Difference, command: str = "") -> dict[str, str | bytes]:
    """The files of a comparison of two schedules by name. command: that made it."""
    d = difference
    table = Table(" and ".join(d.schedules), "", COLUMNS, [pair.cells() for pair in d.pairs])
    return beside(page(d, command), [table], drawn(next(iter(figures(d).values())), None))


def figures(difference: Difference) -> dict[str, Figure]:
    """The figures of the page by name."""
    d = difference
    stretches = [pair.stretches for pair in d.pairs]
    waves = [(*pair.wavelengths, d.length / pair.turns) for pair in d.pairs]
    phases = [[0.0 if pair.same else pair.phase] for pair in d.pairs]
    return {
        "stretch": by_pair(d.legend, stretches, "times slower than plain RoPE", {}),
        "wavelength": by_pair(
            [*d.legend, "as trained"], waves, "wavelength (positions)", {d.length: "training length"}
        ),
        "phase": by_pair(["difference"], phases, "radians", {2 * math.pi: "one turn", TENTH: "36°"}),
    }


def page(difference: Difference, command: str = "") -> str:
    """report.html for two schedules. command: that made it."""
    d, shown = difference, figures(difference)
    return rendered("diff.html", shown, d=d, columns=COLUMNS, command=command, explorer=explorer(d), methods=methods(d))


def by_pair(names: Sequence[str], values: Sequence[Sequence[float]], what: str, marked: Mapping[float, str]) -> Figure:
    """A line per name over the pairs of a head, the vertical axis logarithmic, without values of 0 or infinity. values: for
    each pair, one per name. marked: names of horizontal lines by height."""
    series = []
    for name, column, colour, dash in zip(names, zip(*values, strict=True), PALETTE, DASHES, strict=False):
        y = [value if 0 < value < math.inf else None for value in column]
        series.append(line(name, range(len(column)), y, {"colour": colour, "dash": dash}, dots=True))
    marks = [{"y": height, "label": word} for height, word in marked.items()]
    return lines(series, axis("pair of channels, fast to slow"), axis(what, log=True), marks=marks)


def methods(d: Difference) -> dict[str, str]:
    """Of A and B, those that the explorer has, as its methods."""
    found = {}
    for letter, schedule in zip("AB", d.schedules, strict=True):
        method = schedule.replace("default", "none")
        try:
            checked(_state(d) | {"method": method})
        except InputError:  # not in the explorer, or larger than it goes
            continue
        found[letter] = method
    return found


def explorer(d: Difference) -> Markup:
    """The explorer, set to the last of `methods`; empty if there is none."""
    found = methods(d)
    return block(_state(d) | {"method": [*found.values()][-1]}) if found else Markup()


def _state(d: Difference) -> dict[str, Any]:
    length = min(math.ceil(d.at), fields()["length"]["max"])
    return {"encoding": "rope", "dim": d.head_dim, "base": d.base, "trained": d.length, "length": length}
