"""An analysis as a page: its sentences, and its pictures as drawings whose colours are the page's own."""

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, cast

import torch
from markupsafe import Markup

import posenc
from posenc.analysis.analyze import Analysis, Section
from posenc.analysis.plots.frame import GROUND, INK, LINE, SOFT, STYLE
from posenc.analysis.questions import Picture
from posenc.machine import describe
from posenc.report.template import filled

SCHEMA = 1
COLOURS = {INK: "--ink", SOFT: "--soft", LINE: "--line", GROUND: "--ground"}
"""What plots are drawn in, and the page's variable for it, which is another colour in the dark."""


@dataclass(frozen=True)
class Drawing:
    """A picture for the page. see: what to look at. svg: the drawing, which says the same to who cannot see it."""

    see: str
    svg: Markup


def page(analysis: Analysis, results: Mapping[str, Any], explorer: Markup | str = "") -> str:
    """report.html of an analysis. results: what analysis.json holds. explorer: the interactive part, if any."""
    numbers = count(1)
    drawn = [
        (section, [_drawing(picture, next(numbers)) for picture in section.pictures]) for section in analysis.sections
    ]
    return filled("analyze.html", a=analysis, r=results, drawn=drawn, said=said, explorer=explorer)


def results(analysis: Analysis, command: str = "", seconds: float = 0.0) -> dict[str, Any]:
    """What analysis.json holds. command: the line that made it. seconds: what it took."""
    import matplotlib

    found = analysis.to_dict()
    return {
        "schema": SCHEMA,
        "kind": "analysis",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "command": command,
        "subject": found["subject"],
        "settings": found["settings"],
        "seeds": [found["settings"]["seed"]],
        "machine": describe(torch.device("cpu")) | {"posenc": posenc.__version__, "matplotlib": matplotlib.__version__},
        "answer": found["sentences"],
        "sections": found["sections"],
        "left_out": found["left_out"],
    }


def said(section: Section) -> list[str]:
    """A section's sentences."""
    return section.finding.sentences()


def _drawing(picture: Picture, number: int) -> Drawing:
    return Drawing(picture.see, drawn(picture, f"f{number}-"))


def drawn(picture: Picture, prefix: str) -> Markup:
    """A picture as SVG to stand in a page: in the page's font and colours, without a size of its own. prefix: of its ids,
    which must differ from those of the page's other drawings."""
    from matplotlib import rc_context

    file, style = io.StringIO(), cast(Any, STYLE)
    with rc_context(style):
        picture.draw().savefig(
            file, format="svg", dpi=144, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#{prefix}", svg)
    for colour, variable in COLOURS.items():
        svg = re.sub(re.escape(colour), f"var({variable})", svg, flags=re.IGNORECASE)
    svg = re.sub(r"(font: (?:\w+ )*[\d.]+px)[^;\"]*", r"\1 var(--font)", svg)
    label = Markup.escape(picture.see)
    head, rest = svg.split(">", 1)
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    return Markup(f'{head} role="img" aria-label="{label}">{rest}')
