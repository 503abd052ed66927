# SPDX-License-Identifier: Apache-2.0
"""An analysis as a page: its sentences, and its pictures as SVG in the page's own colours."""

import io
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import torch
from markupsafe import Markup

import posenc
from posenc.analysis.analyze import Analysis
from posenc.analysis.finding import GROUND, INK, LINE, SOFT, STYLE, Picture
from posenc.lab.machine import describe
from posenc.lab.table import Table
from posenc.report.drawn import beside
from posenc.report.html import filled

SCHEMA = 1
SCALE = 1.25
"""Pixels of the page to a point of a drawing, where there is room."""
FIRST = ("scores", "kernel", "bias")
"""The sections whose first picture opens the page."""
COLOURS = {INK: "--ink", SOFT: "--soft", LINE: "--line", GROUND: "--ground"}
"""The colours of plots, and the page's variables for them, which differ in the dark theme."""


def page(analysis: Analysis, results: Mapping[str, Any]) -> str:
    """report.html of an analysis. results: the contents of analysis.json."""
    pictures = [picture for section in analysis.sections for picture in section.pictures]
    drawings = {picture: (picture.see, drawn(picture, f"f{number}-")) for number, picture in enumerate(pictures, 1)}
    lead = drawings.pop(picture) if (picture := opening(analysis)) else None
    sections = [
        (section, [drawings[picture] for picture in section.pictures if picture in drawings])
        for section in analysis.sections
    ]
    return filled("analyze.html", a=analysis, r=results, sections=sections, lead=lead)


def files(analysis: Analysis, results: Mapping[str, Any]) -> dict[str, str | bytes]:
    """The files of an analysis beside analysis.json; the arguments are those of `page`."""
    picture = opening(analysis)
    return beside(page(analysis, results), [table(results)], picture.draw() if picture else None, results)


def opening(analysis: Analysis) -> Picture | None:
    """The picture that opens the page; None: there is none."""
    pictures = {section.name: section.pictures[0] for section in analysis.sections if section.pictures}
    return next((pictures[name] for name in (*FIRST, *pictures) if name in pictures), None)


def table(results: Mapping[str, Any]) -> Table:
    """Every single number of an analysis. results: the contents of analysis.json, which has the lists, too."""
    rows = [
        ["" if at else section["name"], *pair]
        for section in results["sections"]
        for at, pair in enumerate(_single(section["numbers"]))
    ]
    return Table(results["subject"], "", ["section", "quantity", "value"], rows, names=2)


def _single(numbers: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Values that are no lists, by their path of names and, in a list of objects, places."""
    if isinstance(numbers, Mapping) or (
        isinstance(numbers, list) and any(isinstance(each, Mapping) for each in numbers)
    ):
        for key, value in numbers.items() if isinstance(numbers, Mapping) else enumerate(numbers):
            yield from _single(value, f"{name}.{key}" if name else str(key))
    elif not isinstance(numbers, list):
        shown = {None: "–", True: "yes", False: "no"} if numbers is None or isinstance(numbers, bool) else {}
        yield name, shown.get(numbers) or (f"{numbers:.6g}" if isinstance(numbers, float) else str(numbers))


def results(analysis: Analysis, command: str = "", seconds: float = 0.0) -> dict[str, Any]:
    """The contents of analysis.json. command: that made it. seconds: of the analysis."""
    import matplotlib

    content = analysis.to_dict()
    return {
        "schema": SCHEMA,
        "kind": "analysis",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "command": command,
        "subject": content["subject"],
        "note": content["note"],
        "settings": content["settings"],
        "seeds": [content["settings"]["seed"]],
        "machine": describe(torch.device("cpu")) | {"posenc": posenc.__version__, "matplotlib": matplotlib.__version__},
        "answer": content["sentences"],
        "sections": content["sections"],
        "left_out": content["left_out"],
    }


def drawn(picture: Picture, prefix: str) -> Markup:
    """A picture as SVG in the page's font and colours, without a size. prefix: of its ids, which must be unique in the
    page."""
    from matplotlib import rc_context

    file, style = io.StringIO(), cast(Any, STYLE | {"path.simplify_threshold": 0.4})
    with rc_context(style):
        picture.draw().savefig(
            file, format="svg", dpi=144, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    names = {name: f"{prefix}{number}" for number, name in enumerate(re.findall(r'\bid="([^"]*)"', svg))}
    svg = re.sub(r'(\bid="|href="#|url\(#)([^")]*)', lambda found: found[1] + names[found[2]], svg)
    for colour, variable in COLOURS.items():
        svg = re.sub(re.escape(colour), f"var({variable})", svg, flags=re.IGNORECASE)
    svg = re.sub(r"(font: (?:\w+ )*[\d.]+px)[^;\"]*", r"\1 var(--font)", svg)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(?<=\.\d)\d+", "", tag.group()), svg)  # tenths of a pixel; not labels
    svg = re.sub(r">\s*\n\s*<", "><", svg).replace("<g></g>", "")
    head, rest = svg.split(">", 1)
    width = float(head.split('viewBox="0 0 ')[1].split()[0]) * SCALE
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    return Markup(
        f'{head} role="img" aria-label="{Markup.escape(picture.see)}" style="max-width: {width:.0f}px">{rest}'
    )
