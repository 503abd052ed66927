"""Attention profiles as figures, and what they say in a sentence each: what report/attention.html shows.

attention: method -> `AttentionProfile.to_dict()`, as results.json has it; the first is the one that tables are of.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from posenc.report.figures import DASHES, PALETTE, escape  # before plotly: it says what to install if that is missing

# isort: split
import plotly.graph_objects as go

Attention = Mapping[str, Mapping[str, Any]]
SHADES = [[share, f"rgba(59,125,216,{0.06 + 0.94 * share:.2f})"] for share in (0.0, 1.0)]
"""From the ground's own colour to full blue, whether the ground is light or dark."""


def shown(attention: Attention) -> dict[str, go.Figure]:
    """The figures by the name of their place on the page, "plot-<name>"."""
    found = {"attention-sinks": by_head(attention, lambda profile: profile["sink"])}
    asked = {method: profile for method, profile in attention.items() if profile["needle"]}
    if asked:
        found["attention-needle"] = needle_by_depth(asked)
        found["attention-retrieval"] = by_head(asked, lambda profile: profile["needle"]["mass"])
    return found | {"attention-distance": distance_by_layer(attention), "attention-pairs": pairs(attention)}


def sentences(attention: Attention) -> dict[str, str]:
    """What to see in each figure, from the numbers; under the figure's name."""
    method, profile = next(iter(attention.items()))
    said = {
        "sinks": _of_sinks(profile, method),
        "distance": _of_distance(profile, method),
        "pairs": _of_pairs(profile),
    }
    return said | ({"needle": _of_needle(profile)} if profile["needle"] else {})


def by_head(attention: Attention, matrix: Any) -> go.Figure:
    """Mass by layer and head, with a button for each method."""
    figure = go.Figure()
    tables = [[list(heads) for heads in zip(*matrix(profile), strict=True)] for profile in attention.values()]
    top = max(value for table in tables for row in table for value in row)
    figure.add_heatmap(
        z=tables[0],
        zmin=0,
        zmax=top,
        colorscale=SHADES,
        xgap=1,
        ygap=1,
        colorbar={"tickformat": ".0%", "thickness": 12, "outlinewidth": 0},
        hovertemplate="%{z:.1%} in layer %{x}, head %{y}<extra></extra>",
    )
    if len(tables) > 1:
        figure.update_layout(
            updatemenus=[_buttons([(method, {"z": [z]}) for method, z in zip(attention, tables, strict=True)])]
        )
    figure.update_xaxes(title="layer", showgrid=False, zeroline=False)
    figure.update_yaxes(title="head", showgrid=False, zeroline=False, autorange="reversed", dtick=_step(len(tables[0])))
    return figure


def needle_by_depth(attention: Attention) -> go.Figure:
    """Mass on what is asked for by its depth, a line per method, of the heads that retrieve or of all."""
    figure = go.Figure()
    of_ten, of_all = [], []
    for index, (method, profile) in enumerate(attention.items()):
        needle = profile["needle"]
        heads = [head["by_depth"] for head in needle["heads"]]
        of_ten.append([sum(column) / len(heads) for column in zip(*heads, strict=True)])
        of_all.append([point["asked"] for point in needle["depths"]])
        figure.add_scatter(
            x=[point["depth"] for point in needle["depths"]],
            y=of_ten[-1],
            hovertemplate="%{y:.1%} at depth %{x:.2f}<extra>" + escape(method) + "</extra>",
            **_line(index, method),
        )
    many = len(next(iter(attention.values()))["needle"]["heads"])
    menu = _buttons([(f"the {many} heads that look there most", {"y": of_ten}), ("all heads", {"y": of_all})])
    figure.update_layout(updatemenus=[menu])
    figure.update_xaxes(title="depth of what is asked for: 0 is the start of the context, 1 its end")
    figure.update_yaxes(title="share of a head's attention", tickformat=".0%", rangemode="tozero")
    return figure


def distance_by_layer(attention: Attention) -> go.Figure:
    """How far back attention goes, mean over heads, a line per method, without the first tokens or with them."""
    figure = go.Figure()
    without, whole = (
        [[_mean(heads) for heads in profile[name]] for profile in attention.values()]
        for name in ("distance_after", "distance")
    )
    for index, method in enumerate(attention):
        figure.add_scatter(
            x=list(range(len(without[index]))),
            y=without[index],
            hovertemplate="%{y:.1f} tokens in layer %{x}<extra>" + escape(method) + "</extra>",
            **_line(index, method),
        )
    menu = _buttons([("without the first tokens", {"y": without}), ("with them", {"y": whole})])
    figure.update_layout(updatemenus=[menu])
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="mean distance, tokens", rangemode="tozero")
    return figure


def pairs(attention: Attention) -> go.Figure:
    """How much each pair can move a score, by its wavelength: a line per method, of one method a line per third of the
    layers."""
    figure = go.Figure()
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
    for index, (name, waves, bands) in enumerate(lines):
        figure.add_scatter(
            x=waves,
            y=bands,
            customdata=list(range(len(bands))),
            hovertemplate="pair %{customdata}: %{y:.2f} nats, a turn in %{x:.5g} tokens<extra>"
            + escape(name)
            + "</extra>",
            **_line(index, name),
        )
    reach = profiles[0]["turning"][kind]["reach"]
    figure.add_vline(x=reach, line={"dash": "dot", "width": 1.5, "color": "#888"})
    figure.add_annotation(
        x=math.log10(reach), y=1, yref="paper", text="trained length", showarrow=False, xanchor="left", xshift=6
    )
    figure.update_xaxes(title="tokens per turn", type="log", dtick=1)
    figure.update_yaxes(title="mean |q| |k| of the pair, nats of score", rangemode="tozero")
    return figure


def _of_sinks(profile: Mapping[str, Any], method: str) -> str:
    layers = [_mean(heads) for heads in profile["sink"]]
    most, layer, head = max(
        (mass, layer, head) for layer, row in enumerate(profile["sink"]) for head, mass in enumerate(row)
    )
    by_layer = f"from {min(layers):.0%} to {max(layers):.0%} by layer"
    return (
        f"{_mean(layers):.0%} of all attention of {_reader(method)} goes to the first {profile['sinks']} tokens, {by_layer}; "
        f"most in head {head} of layer {layer}, {most:.0%}. Such attention sinks are where heads rest that have nothing to "
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
        f" They find it best at depth {depths[points.index(best)]:g} ({best:.0%}) and worst at "
        f"{depths[points.index(worst)]:g} ({worst:.0%})."
    )  # fmt: skip
    return (
        f"The {len(heads)} heads that look at what is asked for most give it {_mean(points):.0%} of their attention from the "
        f"prompt's last token; it is {_mean([point['share'] for point in needle['depths']]):.1%} of the tokens.{seen}"
    )


def _of_pairs(profile: Mapping[str, Any]) -> str:
    kind = _kind(profile)
    turning = profile["turning"][kind]
    share = _mean([profile["unfinished_share"][layer] for layer in _rotating(profile, kind)])
    return (
        f"{turning['unfinished']} of {len(turning['trained'])} pairs never completed a turn within {turning['reach']} tokens of "
        f"training, and {share:.0%} of what can move a score lies in them: a longer text turns them to angles they were not trained on, unless a "
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
    found: list[float | None] = profile["turning"][kind]["now"]
    return found


def _line(index: int, name: str) -> dict[str, Any]:
    style = {"color": PALETTE[index % len(PALETTE)], "width": 2.2, "dash": DASHES[index // len(PALETTE) % len(DASHES)]}
    return {"name": escape(name), "mode": "lines+markers", "line": style, "showlegend": True}


def _buttons(choices: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    return {
        "type": "buttons",
        "direction": "right",
        "x": 0,
        "xanchor": "left",
        "y": 1.02,
        "yanchor": "bottom",
        "showactive": False,
        "buttons": [{"label": escape(name), "method": "restyle", "args": [change]} for name, change in choices],
    }


def _step(count: int) -> int:
    return 1 if count <= 12 else 4 if count <= 40 else 8


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
