"""Results in, one HTML file out: it needs no network, and a reader who has never met the project can read it."""

import json
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from posenc.encodings import ENCODINGS, parts
from posenc.lab.config import unit
from posenc.position_maps import MAPS
from posenc.report import figures
from posenc.report.template import asset, filled
from posenc.texts import summary

DESCRIPTIONS = {
    "none": "no positions at all; a causal model can still count what it sees",
    "normalized": "position divided by the text's length, between 0 and 1",
    "integer": "the position itself, as a number",
    "binary": "the binary digits of the position",
    "sinusoidal": "sines and cosines of many frequencies, added to the input (Transformer, 2017)",
    "learned": "one learned vector per position, added to the input (BERT, GPT-2)",
    "rope": "queries and keys turned by an angle that grows with position (RoFormer, Llama)",
    "t5": "a learned number per head and range of distances, added to the scores (T5)",
    "alibi": "a fixed penalty proportional to the distance, added to the scores (ALiBi)",
}


def page(results: Mapping[str, Any]) -> str:
    """report.html for what results.json holds."""
    arms = results["arms"]
    of = unit(results["settings"]["tokenizer"])
    longer = {"change": figures.change_by_length(arms, of)} if len(results["settings"]["factors"]) > 1 else {}
    shown = longer | {
        "position": figures.loss_by_position(arms, results["settings"]["length"], of),
        "training": figures.training(arms, of),
    }
    return rendered(
        "compare.html",
        shown,
        r=results,
        unit=of,
        factors=results["settings"]["factors"],
        described=_described(results),
    )


def rendered(name: str, shown: Mapping[str, Any], **values: Any) -> str:
    """One of the templates with its values. shown: name -> figure, for the element "plot-<name>"; or several figures by what
    is chosen for it, see `posenc.report.panel`."""
    from plotly.offline import get_plotlyjs  # after figures has said what to install if plotly is missing

    return filled(
        name,
        {
            "loss": _loss,
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
        bases = dict.fromkeys(part.split(":")[0] for part in parts(name))
        found.append((name, "; ".join(DESCRIPTIONS.get(base) or summary(known[base]) for base in bases)))
    return found


def _loss(point: Mapping[str, Mapping[str, float]]) -> Markup:
    behind = point["behind_best"]
    small = "best" if behind["mean"] <= 0 else f"{_signed(behind['mean'])} {_half_width(behind)}"
    return Markup("{:.3f}<small>{}</small>").format(point["loss"]["mean"], small)


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
