# SPDX-License-Identifier: Apache-2.0
"""The figures of the reports in matplotlib: `posenc.plots`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.errors import InputError, unknown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from posenc.lab.study import Results
    from posenc.report.html import Panel

__all__ = ["draw", "figures"]

KINDS = "compare", "leaderboard", "eval", "bench"
"""Of the studies that have figures."""


def figures(results: "Results | str | Path") -> dict[str, dict[str, list[str]]]:
    """The figures of a report, the first one first: name -> the choices that `draw` takes for it, each with its values, of which
    the page shows one at first.

    results: what results.json of `posenc compare`, `eval` or `bench` holds, or the path of that file or of its folder.

    Raises:
        InputError: a file that is no results.json of these.
    """
    from posenc.report.drawn import plots_of

    return {plot.name: {c.name: [*c.texts] for c in plot.choices} for plot in plots_of(_panels(results))}


def draw(results: "Results | str | Path", name: str = "", ax: "Axes | None" = None, **choices: str) -> "Drawing":
    """A figure of a report, as its page shows it, such as `draw("posenc-compare", "change", measure="change")`.

    Args:
        results: as in `figures`.
        name: of the figure; "": the first.
        ax: what to draw on; None: a new figure.
        choices: the values of the figure's choices, as `figures` lists them; those that are left out are as the page
            shows them at first.

    Raises:
        InputError: an unknown name, choice or value.
    """
    from posenc.report.drawn import drawn, figure_of, plots_of

    plots = {plot.name: plot for plot in plots_of(_panels(results))}
    if not plots:
        raise InputError("no figure, because nothing is measured yet", "let the command run on", results=results)
    if name and name not in plots:
        raise unknown("figure", name, plots)
    plot = plots[name] if name else next(iter(plots.values()))
    known = {choice.name: choice for choice in plot.choices}
    for choice, text in choices.items():
        if choice not in known:
            raise unknown(f"choice of the figure {plot.name!r}", choice, known)
        if text not in known[choice].texts:
            raise unknown(choice, text, known[choice].texts)
    return drawn(figure_of(plot, choices), ax)


def _panels(results: "Results | str | Path") -> "Mapping[str, Panel]":
    if isinstance(results, str | Path):
        path = Path(results)
        path = path / "results.json" if path.is_dir() else path
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(str(error), "name the results.json of a run, or its folder", results=str(path)) from None
    else:
        read = results
    kind = read.get("kind") if isinstance(read, Mapping) else None
    kind = "leaderboard" if kind == "compare" and "tasks" in read else kind
    if kind not in KINDS:
        raise InputError(f"of no kind that has figures; expected {', '.join(KINDS)}", results=kind)
    from posenc.report import bench, compare, evaluate, leaderboard  # not before they are needed: they need the lab

    modules: dict[str, Any] = dict(zip(KINDS, (compare, leaderboard, evaluate, bench), strict=True))
    panels: Mapping[str, Panel] = modules[kind].figures_of(read)
    return panels
