# SPDX-License-Identifier: Apache-2.0
"""Two frequency schedules as a page."""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from posenc.errors import InputError
from posenc.frequencies.difference import COLUMNS, TENTH, Difference
from posenc.report.explorer import block, fields
from posenc.report.figures import DASHES, PALETTE, Figure, axis, line, lines
from posenc.report.html import rendered


def page(difference: Difference, command: str = "") -> str:
    """report.html for two schedules. command: that made it."""
    d = difference
    stretches = [pair.stretches for pair in d.pairs]
    waves = [(*pair.wavelengths, d.length / pair.turns) for pair in d.pairs]
    phases = [[0.0 if pair.same else pair.phase] for pair in d.pairs]
    shown = {
        "stretch": by_pair(d.legend, stretches, "times slower than plain RoPE", {}),
        "wavelength": by_pair([*d.legend, "as trained"], waves, "wavelength (positions)", {d.length: "trained length"}),
        "phase": by_pair(["difference"], phases, "radians", {2 * math.pi: "one turn", TENTH: "36°"}),
    }
    return rendered("diff.html", shown, d=d, columns=COLUMNS, command=command, explorer=explorer(d))


def by_pair(names: Sequence[str], values: Sequence[Sequence[float]], what: str, marked: Mapping[float, str]) -> Figure:
    """A line per name over the pairs of a head, the vertical axis logarithmic, without values of 0 or infinity. values: for
    each pair, one per name. marked: names of horizontal lines by height."""
    series = []
    for name, column, colour, dash in zip(names, zip(*values, strict=True), PALETTE, DASHES, strict=False):
        y = [value if 0 < value < math.inf else None for value in column]
        series.append(line(name, range(len(column)), y, {"colour": colour, "dash": dash}, dots=True))
    marks = [{"y": height, "label": word} for height, word in marked.items()]
    return lines(series, axis("pair of channels, fast to slow"), axis(what, log=True), marks=marks)


def explorer(d: Difference) -> Markup:
    """The explorer, set to the second schedule; empty if it cannot show it."""
    length = min(math.ceil(d.at), fields()["length"]["max"])
    shape = {"dim": d.head_dim, "base": d.base, "trained": d.length, "length": length}
    try:
        return block({"encoding": "rope", "method": d.schedules[1].replace("default", "none"), **shape})
    except InputError:  # not in the explorer, or larger than it goes
        return Markup()
