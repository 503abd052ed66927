# SPDX-License-Identifier: Apache-2.0
"""An analysis as a page: its sentences, and its pictures as SVG in the page's own colours."""

import io
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import torch
from markupsafe import Markup

import posenc
from posenc.analysis.analyze import Analysis, AnalysisSection
from posenc.analysis.codes import sizes_of
from posenc.analysis.finding import AROUND, GROUND, INK, LINE, SOFT, STYLE, Picture
from posenc.analysis.geometry import Kernel
from posenc.analysis.properties import Properties
from posenc.analysis.target import Target
from posenc.encodings import Mapped, Rotary, Sinusoidal
from posenc.errors import InputError
from posenc.frequencies import as_text
from posenc.lab.machine import describe
from posenc.lab.table import Table
from posenc.report.drawn import beside
from posenc.report.explorer import as_trained, block, fields
from posenc.report.html import filled

SCHEMA = 1
SCALE = 1.25
"""Pixels of the page to a point of a drawing, where there is room."""
CELLS, POINTS = 24, 60
"""Of a small image, along each axis, and of a small line."""
FIRST = ("scores", "kernel", "bias")
"""The sections whose first picture opens the page."""
COLOURS = {INK: "--ink", SOFT: "--soft", LINE: "--line", GROUND: "--ground"}
"""The colours of plots, and the page's variables for them, which differ in the dark theme."""


def page(analysis: Analysis, results: Mapping[str, Any], target: Target | None = None) -> str:
    """report.html of an analysis. results: the contents of analysis.json. target: what the explorer shows; None: the page
    has no explorer."""
    pictures = [picture for section in analysis.sections for picture in section.pictures]
    drawings = {picture: (picture.see, drawn(picture, f"f{number}-")) for number, picture in enumerate(pictures, 1)}
    lead = drawings.pop(picture) if (picture := opening(analysis)) else None
    sections = [
        (section, [drawings[picture] for picture in section.pictures if picture in drawings])
        for section in analysis.sections
    ]
    tiles = _tiles({section.name: section for section in analysis.sections})
    shown = Markup() if target is None else explorer(target)
    text = filled("analyze.html", a=analysis, r=results, sections=sections, lead=lead, tiles=tiles, explorer=shown)
    return classed(text)


def files(analysis: Analysis, results: Mapping[str, Any], target: Target | None = None) -> dict[str, str | bytes]:
    """The files of an analysis beside analysis.json; the arguments are those of `page`."""
    picture = opening(analysis)
    return beside(page(analysis, results, target), [table(results)], picture.draw() if picture else None)


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


def _tiles(sections: Mapping[str, AnalysisSection]) -> list[tuple[str, bool, str, Markup]]:
    """The properties of codes: name, whether it holds, a sentence, a small picture. Decay stands in the place of determinism,
    which the section has, where codes have a decay and are deterministic."""
    section = sections.get("properties")
    if section is None or not isinstance(section.finding, Properties):
        return []
    found = section.finding.each
    small = [thumbnail(picture) for picture in section.pictures]
    drawings = {**dict(zip(found, small, strict=False)), "Deterministic": Markup()}
    tiles = [(name, each.holds, each.sentences()[0], drawings[name]) for name, each in found.items()]
    kernel = sections.get("kernel")
    if kernel is None or not isinstance(kernel.finding, Kernel) or not found["Deterministic"].holds:
        return tiles
    halves = kernel.finding.half is not None
    sentence = kernel.finding.sentences()[1].replace("Its mean", "The mean dot product of two codes", 1)
    return [*tiles[:3], ("Decays by half", halves, sentence, thumbnail(kernel.pictures[0]))]


def thumbnail(picture: Picture) -> Markup:
    """The first image of a picture, or its longest line, without axes: 100 x 40, or 24 x 24 cells."""
    from matplotlib.image import imsave

    ax = picture.draw().axes[0]
    if ax.images:
        shown: Any = ax.images[0].get_array()
        values = torch.as_tensor(shown.filled(0)).double()
        rows, columns = (torch.linspace(0, size - 1, min(CELLS, size)).long() for size in values.shape)
        file, most = io.BytesIO(), float(values.abs().max()) or 1.0
        imsave(file, values[rows][:, columns].numpy(), format="png", cmap=AROUND, vmin=-most, vmax=most)
        return Markup(f'<img alt="" src="data:image/png;base64,{b64encode(file.getvalue()).decode()}">')
    lines: Any = ax.lines
    line = max(lines, key=lambda each: len(each.get_xydata()))
    at = (ax.transData - ax.transAxes).transform(line.get_xydata())
    at = at[:: max(1, len(at) // POINTS)]
    points = " ".join(f"{100 * x:.0f},{40 - 38 * y:.1f}" for x, y in at.tolist())
    return Markup(
        '<svg viewBox="0 0 100 40" preserveAspectRatio="none" aria-hidden="true"><polyline fill="none" stroke="currentColor" '
        f'stroke-width="1.5" vector-effect="non-scaling-stroke" points="{points}"/></svg>'
    )


def classed(page: str) -> str:
    """The page with the styles that pictures repeat as classes."""
    svg = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    styles = [style for style, times in Counter(re.findall(r' style="([^"]*)"', svg)).items() if times > 3]
    for number, style in enumerate(styles):
        page = page.replace(f' style="{style}"', f' class="s{number}"')
    rules = "".join(f".s{number}{{{style}}}" for number, style in enumerate(styles))
    return page.replace("</head>", f"<style>{rules}</style>\n</head>", 1)


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


def explorer(target: Target) -> Markup:
    """The explorer, set to a target; empty if it cannot show it."""
    try:
        return block(state(target))
    except InputError:  # not in the explorer, or larger than it goes
        return Markup()


def state(target: Target) -> dict[str, Any]:
    """The explorer's state for a target.

    Raises:
        InputError: the explorer cannot show it.
    """
    encoding, method = target.encoding, "none"
    common = {"length": min(target.length, fields()["length"]["max"]), "trained": target.trained}
    if isinstance(encoding, Mapped):
        encoding, method = encoding.encoding, str(encoding.map)
    if type(encoding) is Rotary:
        if encoding.schedule["name"] != "default":
            if method != "none":
                raise InputError("the explorer shows a schedule or a map", argument=target.name)
            method = as_text(encoding.schedule)
        sizes = {"dim": encoding.rotated, "base": encoding.rope_theta}
        return {"encoding": "rope", "method": method, **sizes, **common}
    if isinstance(encoding, Sinusoidal):
        options = {name: getattr(encoding, name) for name in ("dim", "base", "curve", "exponent")}
        return {"encoding": "sinusoidal", **options, **common}
    if target.text is None or method != "none" or encoding.name in as_trained():
        raise InputError("is not in the explorer", argument=target.name)
    size = {"dim": encoding.head_dim} if isinstance(encoding, Rotary) else {"heads": sizes_of(encoding, {}).num_heads}
    return {"encoding": target.text, **size, **common}


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
    svg = re.sub(r"<[^>]*>", lambda tag: _smaller(tag.group()), svg)  # not the words of labels
    svg = re.sub(r">\s*\n\s*<", "><", svg).replace("<g></g>", "")
    head, rest = svg.split(">", 1)
    width = float(head.split('viewBox="0 0 ')[1].split()[0]) * SCALE
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    return Markup(
        f'{head} role="img" aria-label="{Markup.escape(picture.see)}" style="max-width: {width:.0f}px">{rest}'
    )


def _smaller(tag: str) -> str:
    """A tag that looks the same, to a tenth of a pixel."""
    for what, instead in (
        (r"font-family: [^;\"]*;? ?", ""),  # the page's
        (r' transform="rotate\(-0 [^"]*"', ""),
        (r'<g id="[^"]*"', "<g"),  # only what defs hold is referred to
        (r"(\d\.\d)\d\d+", r"\1"),
        (r"(\d)\.0(?!\d)", r"\1"),
        (r"\s*\n\s*", " "),
        (r" L ", " "),  # the next point of a path
    ):
        tag = re.sub(what, instead, tag)
    return tag
