# SPDX-License-Identifier: Apache-2.0
"""The gallery of encodings: a card each, with a picture computed by posenc, filters, and two of them side by side."""

import base64
import io
import json
import re
from collections.abc import Mapping
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from torch import Tensor

import posenc
from posenc.analysis import plots
from posenc.analysis.finding import PALETTE, SOFT, STYLE
from posenc.analysis.scores import Bias, PositionScores, scores
from posenc.encodings import ENCODINGS
from posenc.encodings.catalogue import FAMILIES, family
from posenc_cli.called import ALIASES, CHINESE
from website.encodings import declared, explained, ordered
from website.measured import verdict
from website.page import DOCS
from website.pictures import LENGTH, around, pictures
from website.trained import measured, trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage
    from matplotlib.lines import Line2D

SIZE = 220, 116
"""Of a card's picture, in pixels."""
ENOUGH = 96
"""Points of a line, and cells of an image along each side, that a card's picture has at most."""
DISTANCES = [*range(16), *range(16, LENGTH, 4), LENGTH - 1]
"""Whose values the page has."""
SCRIPT = "gallery.js"
FACETS: dict[str, dict[str, tuple[str, str]]] = {
    "family": {key: (title, chinese) for (key, (title, _)), chinese in zip(FAMILIES.items(), (
        "旋转", "相对偏置", "绝对位置", "相对分数", "门控与遗忘", "图像与视频", "窗口、汇与温度", "训练时改变位置", "无位置",
    ), strict=True)},
    "learned": {"no": ("nothing to learn", "无可学习参数"), "yes": ("learned", "可学习")},
    "longer": {
        "extrapolates": ("measured: extrapolates", "实测：可外推"), "degrades": ("measured: degrades", "实测：变差"),
        "claimed": ("claimed by its source", "来源声称可外推"), "no": ("not claimed", "未声称"),
    },
    "memory": {
        "fused": ("linear memory, fused", "线性内存，融合"), "blocks": ("linear memory, in blocks", "线性内存，分块"),
    },
    "decoding": {"any": ("encoder or decoder", "编码器或解码器"), "causal": ("decoder only", "仅解码器")},
}  # fmt: skip
"""Filter -> value -> what it is called in English and in Chinese."""
WORDS = {
    "en": {
        "family": "Family", "learned": "Parameters", "longer": "Past the training length", "memory": "Attention takes",
        "decoding": "Use in", "search": "Search the encodings", "filters": "Filters", "compare": "Compare", "clear": "Clear all", "acts_on": "Acts on",
        "shown": "{shown} of {all} encodings.", "none": "No encoding has all of this.",
        "pick": "Choose two encodings to compare.", "second": "Choose a second encoding to compare with {name}.",
        "between": "{one} and {other}", "figure": "Change of the score from distance 0, in nats, by distance in tokens (of images: in patches). A line for each head, at most four.",
        "without": "No score of {names} depends on the distance alone: see the picture.", "close": "Close", "source": "According to its source",
        "use": "When to use it", "picture": "Picture",
    },
    "zh": {
        "family": "类别", "learned": "参数", "longer": "超过训练长度", "memory": "注意力占用", "decoding": "用于", "search": "搜索编码",
        "filters": "筛选", "compare": "比较", "clear": "全部清除", "acts_on": "作用于", "shown": "{all} 种编码中的 {shown} 种。", "none": "没有编码满足所有条件。",
        "pick": "选择两种编码进行比较。", "second": "再选一种与 {name} 比较。", "between": "{one} 与 {other}",
        "figure": "分数相对距离 0 的变化（nat），横轴为距离（词元；图像为图块）。每个头一条线，最多四条。",
        "without": "{names} 的分数不只取决于距离：见图。", "close": "关闭", "source": "据其来源", "use": "何时使用", "picture": "图示",
    },
}  # fmt: skip


def gallery(language: str) -> str:
    """Cards of all encodings, as HTML that says all without scripts; gallery.js adds filters and comparisons."""
    known = declared()
    cards = "".join(_card(known[name], language) for name in ordered() if name in known)
    words = json.dumps({**WORDS[language], "facets": {
        facet: {value: both[language == "zh"] for value, both in values.items()} for facet, values in FACETS.items()
    }}, ensure_ascii=False)  # fmt: skip
    return (
        f'<div class="gallery" data-words="{escape(words)}"><ul class="cards">{cards}</ul></div>\n'
        f'<script src="{SCRIPT}" defer></script>'
    )


def script() -> str:
    """What gallery.js is on the site: the curves of all encodings, and the program."""
    found = {name: [[_short(value) for value in line] for line in curve(name)] for name in ENCODINGS}
    data = json.dumps({"distances": DISTANCES, "curves": found}, separators=(",", ":"))
    return f"const posencCurves = {data};\n{(DOCS / 'website' / SCRIPT).read_text(encoding='utf-8')}"


def _short(value: float) -> float | None:
    return None if value != value else float(f"{value:.3g}")


def _card(row: dict[str, Any], language: str) -> str:
    name = row["name"]
    title = row["title"] if language == "en" else CHINESE.get(name, row["title"]).split(" ")[0]
    tagged = {facet: FACETS[facet][value][language == "zh"] for facet, value in facets(row).items()}
    data = {
        **facets(row),
        "name": name,
        "words": " ".join((name, row["title"], row["summary"], ALIASES.get(name, ""), CHINESE.get(name, ""))),
    }
    data |= {
        "acts": ", ".join(row["acts_on"]) or "–",
        "source": row["extrapolates"],
        "use": row["use_when"].replace("`", ""),
    }
    attributes = " ".join(f'data-{key}="{escape(str(value))}"' for key, value in data.items())
    tags = " · ".join(tagged[facet] for facet in ("family", "learned", "longer", "memory"))
    foreign = ' lang="en"' if language == "zh" else ""
    return (
        f'<li {attributes}><div class="thumb">{thumb(name)}</div>'
        f'<p class="name"><a href="{name}.html"><code>{name}</code></a> <span>{escape(title)}</span></p>'
        f'<p class="what"{foreign}>{_said(row["summary"])}</p><p class="tags">{escape(tags)}</p></li>'
    )


def _said(text: str) -> str:
    """The first sentence, as HTML; what stands between backticks is code."""
    first = re.split(r"(?<=[\w)\]`][.;])\s", text)[0].rstrip(".;")
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(first)) + "."


def facets(row: Mapping[str, Any]) -> dict[str, str]:
    """The value of each filter for a row of the catalogue."""
    measured_as, claim = verdict(row["name"]), row["extrapolates"].startswith(("yes", "partly"))
    longer = {"extrapolates": "extrapolates", "degrades": "degrades", "breaks at once": "degrades"}.get(
        measured_as, "claimed" if claim else "no"
    )
    made = posenc.create(row["name"], dim=512, num_heads=8, max_positions=64, grid=(8, 8), num_layers=1)
    return {
        "family": row["family"], "learned": "yes" if row["learned"] else "no", "longer": longer,
        "memory": memory(row["name"]), "decoding": "causal" if made.causal_only else "any",
    }  # fmt: skip


@cache
def memory(name: str) -> str:
    """How attention with an encoding runs on a CPU, in memory that grows with the length: fused or in blocks of queries."""
    larger = (
        (8,) if family(ENCODINGS[name]) == "grid" else ()
    )  # others are those of the encoding's page, which is cached
    return "blocks" if "queries at a time" in explained(name, *larger).reason else "fused"


@cache
def curve(name: str) -> list[list[float]]:
    """What position does to the score at DISTANCES, less that at the first: a line for each head, at most four; of images along a
    row of patches; empty: nothing that depends on the distance alone."""
    found, of = measured(name), family(ENCODINGS[name])
    if of in ("augment", "visible", "none"):
        return []
    if of == "grid":
        row = around(name)[len(around(name)) // 2, len(around(name)) // 2 :]
        return [(row - row[0]).tolist()]
    heads = found.get("distance")
    if heads is None:
        biases = [each for picture in pictures(name) for each in picture.findings if isinstance(each, Bias)]
        heads = biases[0].heads[:, biases[0].distances >= 0] if biases else _scores(name)
    lines = heads[:4].unique(dim=0) if len(heads) > 1 and not heads.isnan().any() else heads[:4]
    lines = lines - lines[:, :1]
    return (
        []
        if not bool(lines.nan_to_num().abs().max() > 1e-9)
        else lines[:, [d for d in DISTANCES if d < lines.shape[1]]].tolist()
    )


def _scores(name: str) -> Tensor:
    shown = [each for picture in pictures(name) for each in picture.findings if isinstance(each, PositionScores)]
    return (shown[0] if shown else scores(trained(name) or name, LENGTH, samples=32)).same


def thumb(name: str) -> str:
    """The most telling picture of an encoding without axes, as SVG: its lines and images, with what they show as a title."""
    from matplotlib import rc_context, rcsetup
    from matplotlib.figure import Figure

    shown = [picture for picture in pictures(name) if picture.plot is not plots.pair_wavelengths] or pictures(name)
    picture = next((each for each in shown if any(isinstance(of, Bias) for of in each.findings)), shown[0])
    style: Any = STYLE | {"figure.constrained_layout.use": False, "axes.prop_cycle": rcsetup.cycler("color", PALETTE)}
    with rc_context(style):
        figure = Figure()
        ax = figure.add_axes((0, 0, 1, 1))
        picture.plot(*picture.findings, ax=ax, **picture.options)
        figure.draw_without_rendering()
    drawn = [_image(each, ax.get_xlabel() != "channel") for each in ax.images] or [
        _line(ax, each) for each in ax.get_lines()
    ]
    what = f"{ax.get_ylabel()} by {ax.get_xlabel()}" if not ax.images else f"{ax.get_xlabel()} × {ax.get_ylabel()}"
    wide, high = SIZE
    return (
        f'<svg viewBox="0 0 {wide} {high}" role="img" aria-label="{escape(what)}"><title>{escape(picture.see)}</title>'
        f'{"".join(drawn)}</svg><span lang="en">{escape(what)}</span>'
    )


def _line(ax: "Axes", line: "Line2D") -> str:
    """A line, or its points, of axes as wide and high as the picture."""
    from matplotlib.colors import to_hex

    data = line.get_transform().transform(line.get_xydata())
    places = ax.transAxes.inverted().transform(data)
    wide, high = SIZE
    step = max(1, len(places) // ENOUGH)
    points = [(x * wide, 4 + (1 - y) * (high - 8)) for x, y in places[::step].tolist() if x == x and y == y]
    colour = "var(--soft)" if line.get_color() == SOFT else to_hex(line.get_color())
    if line.get_linestyle() == "None":
        return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>' for x, y in points)
    dashed = ' stroke-dasharray="4 3"' if line.get_linestyle() == "--" else ""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.8"{dashed}/>'


def _image(image: "AxesImage", square: bool) -> str:
    """An image of at most ENOUGH cells along each side. square: as high as wide, else as wide as the picture."""
    from PIL import Image

    values = image.get_array()
    assert values is not None
    rows, columns = (max(1, size // ENOUGH) for size in values.shape[:2])
    colours = image.to_rgba(values[::rows, ::columns], bytes=True)
    file = io.BytesIO()
    Image.fromarray(colours).quantize(48).save(file, "png", optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    fit = "xMidYMid" if square else "none"
    wide, high = SIZE
    return f'<image width="{wide}" height="{high}" preserveAspectRatio="{fit}" href="data:image/png;base64,{data}"/>'
