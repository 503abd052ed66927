# SPDX-License-Identifier: Apache-2.0
"""Attention profiles as figures, and what they say in a sentence each: what report/attention.html shows.

attention: method -> `AttentionProfile.to_dict()`, as results.json has it; the first is the one that tables are of. styles: a
line style per method, as in the page's other figures.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from posenc.report.figures import PALETTE, Figure, line, mark
from posenc.report.html import Choice, Panel, percent, plot

Attention = Mapping[str, Mapping[str, Any]]
Styles = Mapping[str, Mapping[str, str]]


def panels(attention: Attention, styles: Styles) -> dict[str, Panel]:
    """The figures with their choices, by what they show."""
    shown = {"sinks": _of_heads("sinks", "Attention to the first tokens", {m: p["sink"] for m, p in attention.items()})}
    asked = {method: profile for method, profile in attention.items() if profile["needle"]}
    if asked:
        masses = {method: profile["needle"]["mass"] for method, profile in asked.items()}
        many = len(next(iter(asked.values()))["needle"]["heads"])
        heads = Choice("heads", [("Mean over", [f"the {many} heads that look there most", "all heads"])])
        needle = plot(
            "attention-needle", [heads], lambda number: needle_by_depth(asked, styles, retrieving=number == 0)
        )
        shown["needle"] = Panel("attention-by-depth", "Attention to what is asked for, by depth", [heads], [needle])
        shown["retrieval"] = _of_heads("retrieval", "Attention to what is asked for, by head", masses)
    sinks = Choice("sinks", [("Distances", ["without the first tokens", "with them"])])
    distance = plot(
        "attention-distance", [sinks], lambda number: distance_by_layer(attention, styles, sinks=number == 1)
    )
    shown["distance"] = Panel("attention-by-layer", "Attention distance by layer", [sinks], [distance])
    turns = plot("attention-pairs", [], lambda: pairs(attention, styles))
    shown["pairs"] = Panel("attention-by-pair", "What each pair can move a score", [], [turns])
    return shown


def _of_heads(name: str, label: str, tables: Mapping[str, Any]) -> Panel:
    top = max(value for table in tables.values() for row in table for value in row)
    method = Choice("method", [("Method", list(tables))])
    figures = plot(f"attention-{name}", [method], lambda number: by_head(list(tables.values())[number], top))
    return Panel(f"attention-{name}-by-head", label, [method], [figures], key=False)


def sentences(attention: Attention) -> dict[str, str]:
    """What to see in each figure, from the numbers; under the figure's name."""
    method, profile = next(iter(attention.items()))
    always = {
        "sinks": _of_sinks(profile, method),
        "distance": _of_distance(profile, method),
        "pairs": _of_pairs(profile),
    }
    return always | ({"needle": _of_needle(profile)} if profile["needle"] else {})


def by_head(table: Sequence[Sequence[float]], top: float) -> Figure:
    """Mass by layer and head. table: (layers, heads). top: of the scale, the same for all methods."""
    figure = Figure()
    figure.add_heatmap(
        z=[list(heads) for heads in zip(*table, strict=True)],
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
        hovertemplate="%{z:.1%} in layer %{x}, head %{y}<extra></extra>",
    )
    bar = {"tickformat": ".1~%", "thickness": 12, "outlinewidth": 0}
    figure.update_layout(coloraxis={"cmin": 0, "cmax": top, "colorbar": bar})
    figure.update_xaxes(title="layer", showgrid=False, zeroline=False, dtick=_step(len(table)))
    figure.update_yaxes(title="head", showgrid=False, zeroline=False, autorange="reversed", dtick=_step(len(table[0])))
    return figure


def needle_by_depth(attention: Attention, styles: Styles, *, retrieving: bool) -> Figure:
    """Mass on what is asked for by its depth, a line per method, of the heads that retrieve or of all."""
    figure = Figure()
    for method, profile in attention.items():
        needle = profile["needle"]
        heads = [head["by_depth"] for head in needle["heads"]]
        of_all = [point["asked"] for point in needle["depths"]]
        figure.add_scatter(
            x=[100 * point["depth"] for point in needle["depths"]],
            y=[_mean(column) for column in zip(*heads, strict=True)] if retrieving else of_all,
            meta=method,
            **line(method, styles[method], "%{y:.1%} at depth %{x:.3g} %"),
        )
    figure.update_xaxes(title="where the answer stands in the text", ticksuffix=" %", zeroline=False)
    figure.update_yaxes(title="share of a head's attention", tickformat=".0%", rangemode="tozero")
    return figure.update_layout(showlegend=False)


def distance_by_layer(attention: Attention, styles: Styles, *, sinks: bool) -> Figure:
    """How far back attention goes, mean over heads, a line per method. sinks: with what the first tokens get."""
    figure = Figure()
    for method, profile in attention.items():
        distances = [_mean(heads) for heads in profile["distance" if sinks else "distance_after"]]
        figure.add_scatter(
            x=list(range(len(distances))),
            y=distances,
            meta=method,
            **line(method, styles[method], "%{y:.1f} tokens in layer %{x}"),
        )
    layers = len(next(iter(attention.values()))["layers"])
    figure.update_xaxes(title="layer", zeroline=False, dtick=_step(layers))
    figure.update_yaxes(title="mean distance, tokens", rangemode="tozero")
    return figure.update_layout(showlegend=False)


def pairs(attention: Attention, styles: Styles) -> Figure:
    """How much each pair can move a score, by its wavelength: a line per method, of one method a line per third of the
    layers."""
    figure = Figure()
    profiles = list(attention.values())
    kind = _kind(profiles[0])
    if len(profiles) > 1:
        lines = [(method, _waves(p, kind), _bands(p, kind)) for method, p in attention.items()]
    else:
        lines = []
        layers = _rotating(profiles[0], kind)
        size = math.ceil(len(layers) / 3)
        for part in (layers[at : at + size] for at in range(0, len(layers), size)):
            name = f"layers {part[0]} to {part[-1]}" if len(part) > 1 else f"layer {part[0]}"
            lines.append((name, _waves(profiles[0], kind), _bands(profiles[0], kind, part)))
    several = len(profiles) > 1
    for index, (name, waves, bands) in enumerate(lines):
        style = styles[name] if several else {"color": PALETTE[index], "dash": "solid"}
        figure.add_scatter(
            x=waves,
            y=bands,
            customdata=list(range(len(bands))),
            meta=name if several else None,
            **line(name, style, "pair %{customdata}: %{y:.2f} nats, a turn in %{x:.5g} tokens"),
        )
    reach = profiles[0]["turning"][kind]["reach"]
    mark(figure, reach, "trained length", log=math.log10(reach))
    figure.update_xaxes(title="tokens per turn", type="log", dtick=1)
    figure.update_yaxes(title="mean |q| |k| of the pair, nats of score", rangemode="tozero")
    return figure.update_layout(showlegend=not several)


def _of_sinks(profile: Mapping[str, Any], method: str) -> str:
    layers = [_mean(heads) for heads in profile["sink"]]
    most, layer, head = max(
        (mass, layer, head) for layer, row in enumerate(profile["sink"]) for head, mass in enumerate(row)
    )
    by_layer = f"from {percent(min(layers))} to {percent(max(layers))} by layer"
    return (
        f"{percent(_mean(layers))} of all attention of {_reader(method)} goes to the first {profile['sinks']} tokens, {by_layer}; "
        f"most in head {head} of layer {layer}, {percent(most)}. Such attention sinks are where heads rest that have nothing to "
        "fetch."
    )


def _of_distance(profile: Mapping[str, Any], method: str) -> str:
    layers = [_mean(heads) for heads in profile["distance_after"]]
    near, far = min(layers), max(layers)
    return (
        f"Apart from the first tokens, {_reader(method)} looks {far:.0f} tokens back in layer {layers.index(far)} and {near:.0f} in "
        f"layer {layers.index(near)}, on average over heads, in texts of up to {profile['longest']} tokens."
    )


def _of_needle(profile: Mapping[str, Any]) -> str:
    needle, heads = profile["needle"], profile["needle"]["heads"]
    points = [sum(head["by_depth"][at] for head in heads) / len(heads) for at in range(len(needle["depths"]))]
    depths = [point["depth"] for point in needle["depths"]]
    best, worst = max(points), min(points)
    seen = "" if len(points) < 2 else (
        f" They find it best at depth {depths[points.index(best)]:g} ({percent(best)}) and worst at "
        f"{depths[points.index(worst)]:g} ({percent(worst)})."
    )  # fmt: skip
    return (
        f"The {len(heads)} heads that look at what is asked for most give it {percent(_mean(points))} of their attention from the "
        f"prompt's last token; it is {percent(_mean([point['share'] for point in needle['depths']]), 1)} of the tokens.{seen}"
    )


def _of_pairs(profile: Mapping[str, Any]) -> str:
    kind = _kind(profile)
    turning = profile["turning"][kind]
    share = _mean([profile["unfinished_share"][layer] for layer in _rotating(profile, kind)])
    return (
        f"{turning['unfinished']} of {len(turning['trained'])} pairs never completed a turn within {turning['reach']} tokens of "
        f"training, and {percent(share)} of what can move a score lies in them: a longer text turns them to angles they were not trained on, unless a "
        f"method slows them down."
    )


def _reader(method: str) -> str:
    return "the model as it is" if method == "none" else f"the model under {method}"


def _kind(profile: Mapping[str, Any]) -> str:
    """The layer type that sees everything, or the only one."""
    return "full_attention" if "full_attention" in profile["turning"] else str(next(iter(profile["turning"])))


def _rotating(profile: Mapping[str, Any], kind: str) -> list[int]:
    return [
        index
        for index, layer in enumerate(profile["layers"])
        if layer["layer_type"] == kind and profile["bands"][index]
    ]


def _bands(profile: Mapping[str, Any], kind: str, layers: Sequence[int] | None = None) -> list[float]:
    chosen = _rotating(profile, kind) if layers is None else layers
    return [_mean(column) for column in zip(*(profile["bands"][layer] for layer in chosen), strict=True)]


def _waves(profile: Mapping[str, Any], kind: str) -> list[float | None]:
    wavelengths: list[float | None] = profile["turning"][kind]["now"]
    return wavelengths


def _step(count: int) -> int:
    return 1 if count <= 12 else 4 if count <= 40 else 8


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
