# SPDX-License-Identifier: Apache-2.0
"""The figures of all pages, as the data that draw.js draws."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

DASHES: tuple[list[int], ...] = ([], [7, 4], [3, 3], [8, 3, 2, 3])

Rows = Sequence[Mapping[str, Any]]
Figure = dict[str, Any]
Style = Mapping[str, Any]
"""colour and dash of a line."""


def lines(series: Sequence[Mapping[str, Any]], x: Mapping[str, Any], y: Mapping[str, Any], **options: Any) -> Figure:
    """Lines or points over two axes; a series without points is left out. options: marks, [{x or y, label}]; height in pixels; legend;
    spread, side by side."""
    return {"kind": "lines", "series": [one for one in series if len(one["x"])], "x": x, "y": y, **options}


def axis(label: str, **options: Any) -> dict[str, Any]:
    """options: low, high, log, ticks as [[value, text]]."""
    return {"label": label, **options}


def line(name: str, x: Sequence[float], y: Sequence[float | None], style: Style, **options: Any) -> dict[str, Any]:
    """options: low, high, the ends of intervals; quiet: these not drawn; dots; width; text of each point; label at the line's end, True: its name."""
    return {"name": name, "x": [*x], "y": [*y], **style, **options}


def point(name: str, x: float, y: float, style: Style, **options: Any) -> dict[str, Any]:
    """A dot with its name beside it. options: `label`, `texts`."""
    return {"name": name, "x": [x], "y": [y], "points": True, "radius": 4.5, **style, "label": True, **options}


def intervals(estimates: Rows, scale: float = 1) -> dict[str, list[float]]:
    """The ends of the intervals of estimates."""
    return {end: [scale * e[end] for e in estimates] for end in ("low", "high")}


def trained(at: float, label: str = "training length") -> list[dict[str, Any]]:
    """The mark at the training length."""
    return [{"x": at, "label": label}]


def plain(value: Any) -> Any:
    """As JSON: numbers to five digits, those that are not finite as null, without empty lists but that of a figure's series."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items() if item != [] or key == "series"}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        short = float(f"{value:.5g}") if math.isfinite(value) else None
        return int(short) if short is not None and short.is_integer() and abs(short) < 1e15 else short
    return value
