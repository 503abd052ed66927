# SPDX-License-Identifier: Apache-2.0
"""The explorer: an interactive page in one file, computed in the browser, or the same as a block of another page."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.encodings import ENCODINGS
from posenc.encodings.catalogue import FAMILIES, family
from posenc.errors import InputError, unknown
from posenc.frequencies import SCHEDULES
from posenc.position_maps import MAPS
from posenc.report.html import asset, filled
from posenc.spec import parse_sum

if TYPE_CHECKING:
    from markupsafe import Markup

SCRIPTS = (
    *(f"explorer/{name}" for name in ("trained", "options", "frequencies", "codes", "maps", "biases")), "address", "language",
    *(f"explorer/{name}" for name in ("state", "model")), "draw", "plot",
    *(f"explorer/{name}" for name in ("views", "words", "tokens", "clocks", "controls", "formula")), "saving",
    *(f"explorer/{name}" for name in ("path", "play", "explorer")),
)  # fmt: skip
"""In this order: formulas, state, values, drawing, and the page."""
HIDDEN = {"default", "explicit", "longrope"}
"""Schedules that the page does not offer: the one that changes nothing, and those that need a number for every pair."""


def page(state: Mapping[str, Any] | None = None, docs: str = "") -> str:
    """The complete file. state: what it starts with, as in its address: {"encoding": "rope", "method": "yarn:beta_fast=16"};
    see `fields`. docs: where the documentation's pages are, relative to the file, as "./"; "": it has no links to them.

    Raises:
        InputError: a state that `checked` refuses.
    """
    return filled("explorer/frame.html", block=_block(state, docs, embedded=False))


def block(state: Mapping[str, Any] | None = None, docs: str = "") -> "Markup":
    """The explorer for another page, which may contain one: it includes its styles and scripts, and does not change the
    page's address. state, docs: as of `page`.

    Raises:
        InputError: a state that `checked` refuses.
    """
    return _block(state, docs, embedded=True)


@cache
def settings() -> dict[str, Any]:
    """Fields with their defaults and limits, the encodings that are drawn by family and what they are called, those that are not
    drawn by the reason, the steps of the guided path, the examples, and the glossary."""
    found = dict(json.loads(asset("explorer/settings.json")))
    drawn, explained = found.pop("drawn"), {name for names in found["undrawn"].values() for name in names}
    families = {
        title: [name for name in drawn if family(ENCODINGS[name]) == key] for key, (title, _) in FAMILIES.items()
    }
    found["encodings"] = {title: names for title, names in families.items() if names}
    titles = {name: ENCODINGS[name].title for name in drawn}
    found["names"] = {
        name: text[0].upper() + text[1:] if text.split()[0].islower() else text for name, text in titles.items()
    }
    if others := [name for name in ENCODINGS if name not in explained and name not in drawn]:
        found["undrawn"]["the page has no drawing of it"] = others
    return found


def fields() -> dict[str, dict[str, Any]]:
    """Every field of a state: name -> kind, default, min, max, choices, meaning."""
    return dict(settings()["fields"])


def methods() -> list[str]:
    """The methods that extend a rotation: "none", the frequency schedules and the position maps."""
    return ["none", *(name for name in SCHEDULES if name not in HIDDEN), *MAPS]


def checked(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """The state, if the page can show it. The page itself reports options and token positions that are not valid.

    Raises:
        InputError: an unknown field, a number outside its limits, or an encoding or a method that is not in the explorer.
    """
    names = {"encoding": [name for group in settings()["encodings"].values() for name in group], "method": methods()}
    state = dict(state or {})
    for name, value in state.items():
        if name not in fields():
            raise unknown("field of the explorer", name, fields())
        field = fields()[name]
        if name in names:
            terms = parse_sum(str(value))
            if len(terms) > 1:
                raise InputError(
                    "the page shows one encoding", "leave out what follows the plus", argument=name, value=value
                )
            for reason, undrawn in settings()["undrawn"].items():
                if name == "encoding" and terms[0].name in undrawn:
                    remedy = f"`posenc analyze {value}` has pictures"
                    raise InputError(f"the explorer does not draw it, since {reason}", remedy, encoding=value)
            if terms[0].name not in names[name]:
                raise unknown(f"{name} in the explorer", terms[0].name, names[name])
        if field["kind"] == "choice" and value not in field["choices"]:
            raise unknown(name, value, field["choices"])
        if field["kind"] == "boolean" and not isinstance(value, bool):
            raise InputError(f"{field['meaning']}; True or False", argument=name, value=value)
        if field["kind"] in ("integer", "number"):
            low, high, even = field["min"], field["max"], field.get("step") == 2
            integer = field["kind"] == "integer"
            fits = isinstance(value, int) or (isinstance(value, float) and not integer)
            if not fits or isinstance(value, bool) or not low <= value <= high or (even and value % 2):
                what = "an even number" if even else "an integer" if integer else "a number"
                raise InputError(f"{field['meaning']}; {what} from {low} to {high}", argument=name, value=value)
    return state


def formulas() -> dict[str, tuple[str, ...]]:
    """The formulas of what the page draws, in LaTeX: of encodings and of methods, by name."""
    drawn = [name for group in settings()["encodings"].values() for name in group]
    known = json.loads((Path(__file__).parents[1] / "frequencies/formulas.json").read_text(encoding="utf-8"))
    known = known["schedules"] | known["position_maps"]
    return {name: ENCODINGS[name].formula for name in drawn} | {name: known[name] for name in methods()[1:]}


def _block(state: Mapping[str, Any] | None, docs: str, *, embedded: bool) -> "Markup":
    from markupsafe import Markup

    scripts = [asset(f"{name}.js") for name in SCRIPTS]
    words = json.loads(asset("explorer/chinese.json")) if not embedded or (state or {}).get("lang") == "zh" else {}
    data = {"settings": settings(), "formulas": formulas(), "chinese": words}
    given = [f"posenc.{name} = {json.dumps(value, ensure_ascii=False)};" for name, value in data.items()]
    scripts[(at := SCRIPTS.index("language")) : at] = given
    css = asset("plot.css") + asset("explorer/explorer.css") + asset("explorer/frame.css")
    values = {"state": checked(state), "embedded": embedded, "docs": docs, "css": css, "scripts": scripts}
    values |= {name: settings()[name] for name in ("undrawn", "glossary")}
    return Markup(filled("explorer/explorer.html", **values))
