# SPDX-License-Identifier: Apache-2.0
"""Parts of the figures of all pages. The page sets the colours of text and grid."""

from collections.abc import Mapping, Sequence
from typing import Any

from posenc.errors import InputError

try:
    from plotly.graph_objects import Figure
except ImportError:
    raise InputError("reports need plotly, which is not installed: pip install 'posenc[lab]'") from None

__all__ = ["DASHES", "PALETTE", "Figure", "Rows", "buttons", "error_bars", "escape", "line", "mark"]

PALETTE = ("#3b7dd8", "#e4572e", "#2a9d6f", "#9b5de5", "#d99a00", "#00a6a6", "#c2416c", "#7a8b2e", "#6d6a75")
"""Colours that stay apart on light and on dark ground, and for most colour-blind readers in this order."""
DASHES = ("solid", "dash", "dot", "dashdot")
GREY = "#888"

Rows = Sequence[Mapping[str, Any]]


def line(
    name: str, style: Mapping[str, str], hover: str, *, width: float = 2.2, mode: str = "lines+markers"
) -> dict[str, Any]:
    """A named line of a scatter plot. style: color, dash. hover: the template of a point's text."""
    return {
        "name": escape(name),
        "mode": mode,
        "line": {**style, "width": width},
        "hovertemplate": f"{hover}<extra>{escape(name)}</extra>",
    }


def error_bars(estimates: Rows, scale: float = 1, middle: str = "mean") -> dict[str, Any]:
    """The intervals of estimates."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [scale * (e["high"] - e[middle]) for e in estimates],
        "arrayminus": [scale * (e[middle] - e["low"]) for e in estimates],
        "thickness": 1.2,
        "width": 4,
    }


def mark(figure: Figure, x: float, text: str, *, log: float | None = None, **options: Any) -> None:
    """A dotted vertical line with its name. log: log10(x), if the axis is logarithmic. options: of the annotation."""
    figure.add_vline(x=x, line={"dash": "dot", "width": 1.5, "color": GREY})
    beside = {"xanchor": "left", "xshift": 6} | options
    figure.add_annotation(x=x if log is None else log, y=1, yref="paper", text=text, showarrow=False, **beside)


def buttons(figure: Figure, choices: Sequence[Mapping[str, Any]]) -> None:
    """Buttons above the figure; each with label, method and args."""
    at = {"x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    menu = {"type": "buttons", "direction": "right", "showactive": False, "buttons": list(choices)}
    figure.update_layout(updatemenus=[menu | at])


def escape(text: str) -> str:
    """Escape what plotly would read as markup or as a template."""
    for raw, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("{", "&#123;"), ("}", "&#125;")):
        text = text.replace(raw, safe)
    return text
