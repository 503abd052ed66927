# SPDX-License-Identifier: Apache-2.0
"""One function per figure: rows of results in, a plotly figure out. Colours of text and grid belong to the page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from posenc.errors import InputError

try:
    import plotly.graph_objects as go
except ImportError:
    raise InputError("reports need plotly, which is not installed: pip install 'posenc[lab]'") from None

PALETTE = ("#3b7dd8", "#e4572e", "#2a9d6f", "#9b5de5", "#d99a00", "#00a6a6", "#c2416c", "#7a8b2e", "#6d6a75")
"""Colours that stay apart on light and on dark ground, and for most colour-blind readers in this order."""
DASHES = ("solid", "dash", "dot", "dashdot")

RATIOS = (0.5, 0.7, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)
"""Marks of an axis of ratios."""

Rows = Sequence[Mapping[str, Any]]


def styles(arms: Rows) -> dict[str, dict[str, Any]]:
    """A line style per arm: one colour per trained model, dashes for the ways to use it without training."""
    encodings = list(dict.fromkeys(sorted(arm["encoding"] for arm in arms)))
    found: dict[str, dict[str, Any]] = {}
    for arm in sorted(arms, key=lambda arm: (not arm["trained"], arm["name"])):
        index = encodings.index(arm["encoding"])
        siblings = sum(other["encoding"] == arm["encoding"] for other in arms if other["name"] in found)
        found[arm["name"]] = {
            "color": PALETTE[index % len(PALETTE)],
            "dash": DASHES[siblings % len(DASHES)] if index < len(PALETTE) else DASHES[(siblings + 1) % len(DASHES)],
        }
    return found


def change_by_length(arms: Rows, unit: str = "byte") -> go.Figure:
    """How much the loss on the same targets rises as the text before them grows past the training length. unit: of text."""
    figure, style = go.Figure(), styles(arms)
    for arm in arms:
        points = arm["lengths"]
        change = [p["change"] for p in points]
        figure.add_scatter(
            x=[p["length"] for p in points],
            y=[c["mean"] for c in change],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [c["high"] - c["mean"] for c in change],
                "arrayminus": [c["mean"] - c["low"] for c in change],
                "thickness": 1.2,
                "width": 4,
            },
            name=escape(arm["name"]),
            mode="lines+markers",
            line={**style[arm["name"]], "width": 2.2},
            hovertemplate=f"%{{y:+.3f}} at %{{x}} {unit}s<extra>" + escape(arm["name"]) + "</extra>",
        )
    lengths = [p["length"] for p in arms[0]["lengths"]] if arms else []
    figure.update_xaxes(
        title=f"{unit}s of text before the end of the test passage", type="log", tickvals=lengths, ticktext=lengths
    )
    figure.update_yaxes(title=f"rise of the loss, nats per {unit}", zeroline=True)
    return figure


def loss_by_position(arms: Rows, trained_length: int, unit: str = "byte") -> go.Figure:
    """The loss at each position of the longest test texts, as it is or above the best arm's."""
    figure, style = go.Figure(), styles(arms)
    for arm in arms:
        points = arm["by_position"]
        figure.add_scatter(
            x=[p["position"] for p in points],
            y=[p["loss"] for p in points],
            customdata=[[p["low"], p["high"]] for p in points],
            name=escape(arm["name"]),
            mode="lines",
            line={**style[arm["name"]], "width": 1.8},
            hovertemplate="%{y:.3f} (%{customdata[0]:.3f} to %{customdata[1]:.3f}) around position %{x:.0f}"
            "<extra>" + escape(arm["name"]) + "</extra>",
        )
    figure.add_vline(x=trained_length, line={"dash": "dot", "width": 1.5, "color": "#888"})
    figure.add_annotation(
        x=trained_length, y=1, yref="paper", text="training length", showarrow=False, xanchor="left", xshift=6
    )
    losses = [[p["loss"] for p in arm["by_position"]] for arm in arms]
    hover = [trace.hovertemplate for trace in figure.data]
    plain = [f"%{{y:+.3f}} around position %{{x:.0f}}<extra>{escape(arm['name'])}</extra>" for arm in arms]
    above = [[loss - best for loss, best in zip(own, losses[0], strict=True)] for own in losses]
    figure.update_layout(
        updatemenus=[
            {
                "type": "buttons",
                "direction": "right",
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "showactive": False,
                "buttons": [
                    {"label": "loss", "method": "restyle", "args": [{"y": losses, "hovertemplate": hover}]},
                    {
                        "label": f"above {escape(arms[0]['name'])}",
                        "method": "restyle",
                        "args": [{"y": above, "hovertemplate": plain}],
                    },
                ],
            }
        ]
        if arms
        else []
    )
    figure.update_xaxes(title="position in the test text")
    figure.update_yaxes(title=f"loss, nats per {unit}")
    return figure


def accuracy_by_size(arms: Rows, trained: int, chance: float) -> go.Figure:
    """The share of images whose class is found by their size, or its change from that of training. chance: of naming the
    commonest class."""
    figure, style = go.Figure(), styles(arms)
    kinds = {kind: [[point[kind] for point in arm["sizes"]] for arm in arms] for kind in ("accuracy", "change")}
    for arm, estimates in zip(arms, kinds["accuracy"], strict=True):
        figure.add_scatter(
            x=[point["patches"] for point in arm["sizes"]],
            y=[100 * e["mean"] for e in estimates],
            error_y={"type": "data", "symmetric": False, "thickness": 1.2, "width": 4, **_bars(estimates)},
            customdata=[[point["size"]] for point in arm["sizes"]],
            name=escape(arm["name"]),
            mode="lines+markers",
            line={**style[arm["name"]], "width": 2.2},
            hovertemplate="%{y:.1f} at %{customdata[0]} pixels<extra>" + escape(arm["name"]) + "</extra>",
        )
    points = arms[0]["sizes"] if arms else []
    sides = [point["patches"] for point in points]
    at = next((point["patches"] for point in points if point["size"] == trained), None)
    if at is not None:
        figure.add_vline(x=at, line={"dash": "dot", "width": 1.5, "color": "#888"})
        figure.add_annotation(x=at, y=1, yref="paper", text="training size", showarrow=False, xanchor="left", xshift=6)
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"width": 1.5, "color": "#888"}}
    words = {"accuracy": "images whose class is found, %", "change": "change from the training size, points"}
    heights = {"accuracy": 100 * chance, "change": 0}
    shapes = {
        kind: [*figure.to_dict()["layout"].get("shapes", ()), {**line, "y0": y, "y1": y}] for kind, y in heights.items()
    }
    bars = {kind: [_bars(estimates) for estimates in found] for kind, found in kinds.items()}
    buttons = [
        {
            "label": label,
            "method": "update",
            "args": [
                {
                    "y": [[100 * e["mean"] for e in estimates] for estimates in kinds[kind]],
                    "error_y.array": [each["array"] for each in bars[kind]],
                    "error_y.arrayminus": [each["arrayminus"] for each in bars[kind]],
                },
                {"yaxis.title.text": words[kind], "shapes": shapes[kind]},
            ],
        }
        for kind, label in (("accuracy", "accuracy"), ("change", "change"))
    ]
    menu = {"type": "buttons", "direction": "right", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    figure.update_layout(updatemenus=[{**menu, "showactive": False, "buttons": buttons}], shapes=shapes["accuracy"])
    figure.update_xaxes(title="patches per side of the test image", tickvals=sides, ticktext=sides)
    figure.update_yaxes(title=words["accuracy"])
    return figure


def _bars(estimates: Rows) -> dict[str, list[float]]:
    """The two halves of intervals of shares, in points."""
    return {
        "array": [100 * (e["high"] - e["mean"]) for e in estimates],
        "arrayminus": [100 * (e["mean"] - e["low"]) for e in estimates],
    }


def training(arms: Rows, unit: str = "byte") -> go.Figure:
    """The loss of the training batches, mean over seeds."""
    trained = [arm for arm in arms if arm["trained"]]
    figure, style = go.Figure(), styles(arms)
    for arm in trained:
        figure.add_scatter(
            x=[p["step"] for p in arm["training"]],
            y=[p["loss"] for p in arm["training"]],
            name=escape(arm["name"]),
            mode="lines",
            line={**style[arm["name"]], "width": 1.8},
            hovertemplate="%{y:.3f} up to step %{x}<extra>" + escape(arm["name"]) + "</extra>",
        )
    figure.update_xaxes(title="training step")
    figure.update_yaxes(title=f"loss of the batch, nats per {unit}")
    return figure


def ratio_by_length(trials: Rows) -> go.Figure:
    """Time over the limit's by length of the sequence, a line per candidate of one case; both axes logarithmic."""
    figure = go.Figure()
    names = list(dict.fromkeys(row["name"] for trial in trials for row in trial["rows"] if row["ratio"] is not None))
    for index, name in enumerate(names):
        points = [
            (trial["length"], row["ratio"])
            for trial in trials
            for row in trial["rows"]
            if row["name"] == name and row["ratio"] is not None
        ]
        figure.add_scatter(
            x=[length for length, _ in points],
            y=[ratio["median"] for _, ratio in points],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [ratio["high"] - ratio["median"] for _, ratio in points],
                "arrayminus": [ratio["median"] - ratio["low"] for _, ratio in points],
                "thickness": 1.2,
                "width": 4,
            },
            name=escape(name),
            mode="lines+markers",
            line={"color": PALETTE[index % len(PALETTE)], "width": 2.2, "dash": DASHES[index // len(PALETTE)]},
            hovertemplate="%{y:.2f} times at %{x} tokens<extra>" + escape(name) + "</extra>",
        )
    lengths = sorted({trial["length"] for trial in trials})
    figure.update_xaxes(title="tokens", type="log", tickvals=lengths, ticktext=lengths)
    figure.update_yaxes(title=f"time over {trials[0]['limit']}", type="log", tickvals=RATIOS, ticktext=RATIOS)
    return figure


def by_pair(
    names: Sequence[str], values: Sequence[Sequence[float]], what: str, marked: Mapping[float, str]
) -> go.Figure:
    """A line per name over the pairs of a head, the vertical axis logarithmic. values: for each pair, one per name;
    there is no point where one is 0 or infinite. marked: heights with a line and a word."""
    figure = go.Figure()
    for index, (name, column) in enumerate(zip(names, zip(*values, strict=True), strict=True)):
        figure.add_scatter(
            x=list(range(len(column))),
            y=[value if 0 < value < math.inf else None for value in column],
            name=escape(name),
            mode="lines+markers",
            line={"color": PALETTE[index], "width": 2.2, "dash": DASHES[index]},
            hovertemplate="%{y:.5g} in pair %{x}<extra>" + escape(name) + "</extra>",
        )
    for height, word in marked.items():
        figure.add_hline(y=height, line={"dash": "dot", "width": 1.5, "color": "#888"})
        figure.add_annotation(
            x=0, xref="paper", y=math.log10(height), text=word, showarrow=False, xanchor="left", yanchor="bottom"
        )
    figure.update_xaxes(title="pair of channels, fast to slow")
    figure.update_yaxes(title=what, type="log")
    return figure


def escape(text: str) -> str:
    """Names may hold what plotly would read as markup or as a template."""
    for raw, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("{", "&#123;"), ("}", "&#125;")):
        text = text.replace(raw, safe)
    return text
