# SPDX-License-Identifier: Apache-2.0
"""Two frequency schedules as a page."""

import math

from markupsafe import Markup

from posenc.errors import InputError
from posenc.frequencies.difference import COLUMNS, Difference
from posenc.report import figures
from posenc.report.explorer import block, fields
from posenc.report.page import rendered


def page(difference: Difference, command: str = "") -> str:
    """report.html for two schedules. command: the line that made it, for whoever wants to make it again."""
    d = difference
    stretches = [pair.stretches for pair in d.pairs]
    waves = [(*pair.wavelengths, d.length / pair.turns) for pair in d.pairs]
    phases = [[0.0 if pair.same else pair.phase] for pair in d.pairs]
    shown = {
        "stretch": figures.by_pair(d.legend, stretches, "times slower than plain RoPE", {}),
        "wavelength": figures.by_pair(
            [*d.legend, "as trained"], waves, "positions per turn", {d.length: "trained length"}
        ),
        "phase": figures.by_pair(["difference"], phases, "radians", {2 * math.pi: "one turn"}),
    }
    return rendered("diff.html", shown, d=d, columns=COLUMNS, command=command, explorer=explorer(d))


def explorer(d: Difference) -> Markup:
    """The explorer, set to the second schedule; nothing where it cannot show it."""
    length = min(math.ceil(d.at), fields()["length"]["max"])
    shape = {"dim": d.head_dim, "base": d.base, "trained": d.length, "length": length}
    try:
        return block({"encoding": "rope", "method": d.schedules[1].replace("default", "none"), **shape})
    except InputError:  # not in the explorer, or larger than it goes
        return Markup()
