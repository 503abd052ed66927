# SPDX-License-Identifier: Apache-2.0
"""Results in, one HTML file out: it needs no network, and a reader who has never met the project can read it."""

import json
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from posenc.encodings import ENCODINGS
from posenc.errors import summary
from posenc.position_maps import MAPS
from posenc.report.compared import busy, look
from posenc.report.template import asset, filled
from posenc.spec import parse

__all__ = ["page", "rendered"]

DESCRIPTIONS = {
    "none": "no positions at all; only a causal model can still count what it sees",
    "normalized": "position divided by the text's length, between 0 and 1",
    "integer": "the position itself, as a number",
    "binary": "the binary digits of the position",
    "sinusoidal": "sines and cosines of many frequencies, added to the input (Transformer, 2017)",
    "learned": "one learned vector per position, added to the input (BERT, GPT-2)",
    "rope": "queries and keys turned by an angle that grows with position (RoFormer, Llama)",
    "t5": "a learned number per head and range of distances, added to the scores (T5)",
    "alibi": "a fixed penalty proportional to the distance, added to the scores (ALiBi)",
    "grid_table": "one learned vector per patch, added to the input (ViT)",
    "grid_sinusoidal": "sines and cosines of row and column, side by side, added to the input (MAE, DETR)",
    "axial_rope": "queries and keys turned, some pairs by the row and some by the column (RoPE in two dimensions)",
    "mixed_rope": "queries and keys turned by learned mixtures of row and column (RoPE-mixed)",
    "swin": "a learned number per head and offset in rows and columns, added to the scores (Swin)",
    "grid_alibi": "a fixed penalty proportional to the distance of two patches, added to the scores (CROMA)",
}


def page(results: Mapping[str, Any]) -> str:
    """report.html for what results.json holds."""
    seen = look(results)
    return rendered(
        seen.template,
        seen.figures(results),
        r=results,
        described=_described(results),
        busy=busy(results),
        **seen.values(results),
    )


def rendered(name: str, shown: Mapping[str, Any], **values: Any) -> str:
    """One of the templates with its values. shown: name -> figure, for the element "plot-<name>"; or several figures by what
    is chosen for it, see `posenc.report.panel`."""
    from plotly.offline import get_plotlyjs  # after figures has said what to install if plotly is missing

    return filled(
        name,
        {
            "loss": _loss,
            "accuracy": _accuracy,
            "points": _points,
            "points_lost": _points_lost,
            "signed": _signed,
            "half_width": _half_width,
            "count": _count,
            "mebibytes": _mebibytes,
            "clock": _clock,
        },
        **values,
        plots=asset("plots.js"),
        figures={name: _plain(figure) for name, figure in shown.items()},
        plotly=get_plotlyjs(),
    )


def _plain(figure: Any) -> dict[str, Any]:
    """A figure, or several by what is chosen, as plotly.js reads it, without plotly's own colours: those are the page's."""
    if isinstance(figure, Mapping):
        return {chosen: _plain(one) for chosen, one in figure.items()}
    found: dict[str, Any] = json.loads(figure.to_json())
    found["layout"].pop("template", None)
    return found


def _described(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The encodings of this comparison, and what each does."""
    known = {**ENCODINGS, **{f"@{name}": map for name, map in MAPS.items()}}
    found = []
    for name in dict.fromkeys(arm["encoding"] for arm in results["arms"]):
        terms = parse(name).terms
        bases = dict.fromkeys(base for t in terms for base in (t.name, *((f"@{t.map.name}",) if t.map else ())))
        found.append((name, "; ".join(_description(base, known) for base in bases)))
    return found


def _description(name: str, known: Mapping[str, object]) -> str:
    return f"the class {name}" if ":" in name else DESCRIPTIONS.get(name) or summary(known[name])


def _loss(point: Mapping[str, Mapping[str, float]]) -> Markup:
    behind = point["behind_best"]
    small = "best" if behind["mean"] <= 0 else f"{_signed(behind['mean'])} {_half_width(behind)}"
    return Markup("{:.3f}<small>{}</small>").format(point["loss"]["mean"], small)


def _accuracy(point: Mapping[str, Mapping[str, float]]) -> Markup:
    behind = point["behind_best"]
    small = "best" if behind["mean"] <= 0 else _points_lost(behind)
    return Markup("{:.1f} %<small>{}</small>").format(100 * point["accuracy"]["mean"], small)


def _points(estimate: Mapping[str, float]) -> Markup:
    half = 50 * (estimate["high"] - estimate["low"])
    return Markup("{}<small>± {:.1f}</small>").format(f"{100 * estimate['mean']:+.1f}".replace("-", "−"), half)


def _points_lost(estimate: Mapping[str, float]) -> str:
    return f"−{100 * estimate['mean']:.1f} ± {50 * (estimate['high'] - estimate['low']):.1f}"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _half_width(estimate: Mapping[str, float]) -> str:
    return f"± {(estimate['high'] - estimate['low']) / 2:.3f}"


def _count(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")


def _mebibytes(value: float) -> str:
    return f"{value / 2**20:.0f} MiB"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
