# SPDX-License-Identifier: Apache-2.0
"""Attention profiles as figures with a sentence each: what report/attention.html shows.

attention: method -> `AttentionProfile.to_dict()`, as in results.json; the sentences and tables are of the first. styles: a
line style per method, as in the page's other figures.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from posenc.report.figures import Figure, Style, axis, heat, line, lines, trained
from posenc.report.html import Choice, Panel, percent, plot

Profile = Mapping[str, Any]
Styles = Mapping[str, Style]


def panels(attention: Mapping[str, Profile], styles: Styles) -> dict[str, Panel]:
    """The figures with their choices, by name."""
    shown = {"sinks": _of_heads("sinks", "Attention to the first tokens", {m: p["sink"] for m, p in attention.items()})}
    with_needle = {method: profile for method, profile in attention.items() if profile["needle"]}
    if with_needle:
        needles = {method: profile["needle"] for method, profile in with_needle.items()}
        many = len(next(iter(needles.values()))["heads"])
        heads = Choice("heads", "Mean over", [f"the {many} heads with the most", "all heads"])
        draw = plot("attention-needle", [heads], lambda number: needle_by_depth(needles, styles, all_heads=number == 1))
        shown["needle"] = Panel("attention-by-depth", "Attention to the answer, by depth", [draw])
        masses = {method: needle["mass"] for method, needle in needles.items()}
        shown["retrieval"] = _of_heads("retrieval", "Attention to the answer, by head", masses)
    sinks = Choice("sinks", "Distances", ["without the first tokens", "with them"])
    draw = plot("attention-distance", [sinks], lambda number: distance_by_layer(attention, styles, sinks=number == 1))
    shown["distance"] = Panel("attention-by-layer", "Attention distance by layer", [draw])
    pairs = plot("attention-pairs", [], lambda: score_by_pair(attention, styles))
    shown["pairs"] = Panel("attention-by-pair", "Scores by frequency", [pairs])
    return shown


def _of_heads(name: str, label: str, tables: Mapping[str, Any]) -> Panel:
    top = max(value for table in tables.values() for row in table for value in row)
    method = Choice("method", "Method", list(tables))
    draw = plot(f"attention-{name}", [method], lambda number: by_head(list(tables.values())[number], top))
    return Panel(f"attention-{name}-by-head", label, [draw], key=False)


def by_head(table: Sequence[Sequence[float]], top: float) -> Figure:
    """Mass by layer and head, in percent. table: (layers, heads). top: of the scale, the same for all methods."""
    z = [[100 * mass for mass in heads] for heads in zip(*table, strict=True)]
    return heat(z, axis("layer"), axis("head"), low=0, high=100 * top, ends=["0 %", percent(top)])


def needle_by_depth(needles: Mapping[str, Any], styles: Styles, *, all_heads: bool) -> Figure:
    """Mass on the answer by its depth, of all heads or of those that retrieve."""
    points = {}
    for method, needle in needles.items():
        of_heads = [fmean(column) for column in zip(*(head["by_depth"] for head in needle["heads"]), strict=True)]
        of_all = [point["asked"] for point in needle["depths"]]
        shares = [100 * mass for mass in (of_all if all_heads else of_heads)]
        points[method] = [100 * point["depth"] for point in needle["depths"]], shares
    return _lines(points, styles, axis("position of the answer in the text, %"), "share of a head's attention, %")


def distance_by_layer(attention: Mapping[str, Profile], styles: Styles, *, sinks: bool) -> Figure:
    """Mean distance of attention over heads. sinks: with the first tokens."""
    by_head = {method: profile["distance" if sinks else "distance_after"] for method, profile in attention.items()}
    points = {m: (list(range(len(layers))), [fmean(heads) for heads in layers]) for m, layers in by_head.items()}
    return _lines(points, styles, axis("layer"), "mean distance, tokens")


def score_by_pair(attention: Mapping[str, Profile], styles: Styles) -> Figure:
    """How much each pair can move a score, mean over layers, by its wavelength."""
    first = next(iter(attention.values()))
    kind, points = _kind(first), {}
    for method, profile in attention.items():
        bands = (profile["bands"][layer] for layer in _rotating(profile, kind))
        points[method] = profile["turning"][kind]["now"], [fmean(column) for column in zip(*bands, strict=True)]
    x = axis("wavelength (positions)", log=True)
    marks = trained(first["turning"][kind]["reach"])
    return _lines(points, styles, x, "mean |q| |k| of the pair, nats of score") | {"marks": marks}


def _lines(
    points: Mapping[str, tuple[Sequence[Any], Sequence[float]]], styles: Styles, x: Mapping[str, Any], y: str
) -> Figure:
    """A line per method, from zero up. points: x and y."""
    series = [line(m, *at, styles[m], dots=True, label=True) for m, at in points.items()]
    return lines(series, x, axis(y, low=0))


def sentences(attention: Mapping[str, Profile]) -> dict[str, str]:
    """What each figure shows, from the numbers; by the figure's name."""
    method, profile = next(iter(attention.items()))
    model = "the unmodified model" if method == "none" else f"the model under {method}"
    layers = [fmean(heads) for heads in profile["sink"]]
    most, layer, head = max((m, layer, head) for layer, row in enumerate(profile["sink"]) for head, m in enumerate(row))
    shown = {
        "sinks": f"{percent(fmean(layers))} of all attention of {model} goes to the first {profile['sinks']} tokens, from "
        f"{percent(min(layers))} to {percent(max(layers))} by layer; most in head {head} of layer {layer}, {percent(most)}. "
        "Heads with nothing to retrieve attend to such attention sinks."
    }
    distances = [fmean(heads) for heads in profile["distance_after"]]
    near, far = min(distances), max(distances)
    shown["distance"] = (
        f"Without the first tokens, the mean attention distance of {model} is {far:.0f} tokens in layer "
        f"{distances.index(far)} and {near:.0f} in layer {distances.index(near)}, in inputs of up to {profile['longest']} tokens."
    )
    kind = _kind(profile)
    turning = profile["turning"][kind]
    share = fmean(profile["unfinished_share"][layer] for layer in _rotating(profile, kind))
    shown["pairs"] = (
        f"{turning['unfinished']} of {len(turning['trained'])} pairs did not complete a full rotation within {turning['reach']} tokens of "
        f"training; {percent(share)} of the score norms lie in them. A longer input rotates them to angles that did not occur in "
        "training, unless a method slows them down."
    )
    if profile["needle"]:
        shown["needle"] = _of_needle(profile["needle"])
    return shown


def _of_needle(needle: Mapping[str, Any]) -> str:
    heads, depths = needle["heads"], [point["depth"] for point in needle["depths"]]
    points = [fmean(column) for column in zip(*(head["by_depth"] for head in heads), strict=True)]
    best, worst = max(points), min(points)
    extremes = (
        f" The most is at depth {depths[points.index(best)]:g} ({percent(best)}), the least at "
        f"{depths[points.index(worst)]:g} ({percent(worst)})."
    )
    return (
        f"The {len(heads)} heads with the most attention to the answer give it {percent(fmean(points))} of their attention from "
        f"the prompt's last token; it is {percent(fmean(point['share'] for point in needle['depths']), 1)} of the tokens."
        f"{extremes if len(points) > 1 else ''}"
    )


def _kind(profile: Profile) -> str:
    """The layer type that sees everything, or the only one."""
    return "full_attention" if "full_attention" in profile["turning"] else str(next(iter(profile["turning"])))


def _rotating(profile: Profile, kind: str) -> list[int]:
    layers = enumerate(profile["layers"])
    return [index for index, layer in layers if layer["layer_type"] == kind and profile["bands"][index]]
