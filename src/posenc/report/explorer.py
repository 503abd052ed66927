# SPDX-License-Identifier: Apache-2.0
"""The explorer: an interactive page in one file, computed in the browser, or the same as a block of another page."""

import json
from collections.abc import Mapping
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

from posenc.errors import InputError, unknown
from posenc.frequencies import SCHEDULES
from posenc.position_maps import MAPS
from posenc.report.html import asset, filled
from posenc.spec import parse_sum

if TYPE_CHECKING:
    from markupsafe import Markup

SCRIPTS = (
    "options", "frequencies", "maps", "codes", "biases",
    "state", "model", "draw", "views", "tokens", "controls", "explorer",
)  # fmt: skip
"""In this order: formulas, state, values, drawing, and the page."""
LONGEST_TEXT = 2000
"""Characters of a value, as in state.js."""
HIDDEN = {"default", "explicit", "longrope"}
"""Schedules that the page does not offer: the one that changes nothing, and those that need a number for every pair."""


def page(state: Mapping[str, Any] | None = None) -> str:
    """The whole file. state: what it starts with, as in its address: {"encoding": "rope", "method": "yarn:beta_fast=16"};
    see `fields`.

    Raises:
        InputError: a state that `checked` refuses.
    """
    return filled("explorer/frame.html", block=_block(state, embedded=False))


def block(state: Mapping[str, Any] | None = None) -> "Markup":
    """The explorer for another page, which may contain one: it includes its styles and scripts, and does not change the
    page's address. state: as of `page`.

    Raises:
        InputError: a state that `checked` refuses.
    """
    return _block(state, embedded=True)


@cache
def settings() -> dict[str, Any]:
    """Fields with their defaults and limits, the encodings by where they act, and the presets."""
    return dict(json.loads(asset("explorer/settings.json")))


def fields() -> dict[str, dict[str, Any]]:
    """Every field of a state: name -> kind, default, min, max, choices, meaning."""
    return dict(settings()["fields"])


def methods() -> list[str]:
    """The methods that extend a rotation: "none", the frequency schedules and the position maps."""
    return ["none", *(name for name in SCHEDULES if name not in HIDDEN), *MAPS]


def checked(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """The state, if the page can show it.

    Raises:
        InputError: an unknown field, a number outside its limits, an encoding or a method that is not in the explorer, an
            option that the method does not take, or positions that do not go with the tokens.
    """
    names = {"encoding": [name for group in settings()["encodings"].values() for name in group], "method": methods()}
    state = dict(state or {})
    for name, value in state.items():
        if name not in fields():
            raise unknown("field of the explorer", name, fields())
        field = fields()[name]
        if len(str(value)) > LONGEST_TEXT:
            raise InputError(f"{name} {str(value)[:40]!r}...: write at most {LONGEST_TEXT} characters")
        if name in names:
            terms = parse_sum(str(value))
            if len(terms) > 1:
                raise InputError(
                    f"{name}={value!r}: the explorer shows one encoding; leave out what follows the plus sign"
                )
            chosen = terms[0].name
            if chosen not in names[name]:
                raise unknown(f"{name} in the explorer", chosen, names[name])
            if name == "method" and terms[0].options:
                known = signature({**SCHEDULES, **MAPS}[chosen]).parameters
                terms[0].values(f"method {chosen!r}", set(known) - {"head_dim", "base"})
        if field["kind"] == "choice" and value not in field["choices"]:
            raise unknown(name, value, field["choices"])
        if field["kind"] in ("integer", "number"):
            _check_number(name, value, field)
    words = str(state.get("tokens") or fields()["tokens"]["default"]).split()[: fields()["token"]["max"]]
    at = str(state.get("at", ""))
    if at and (len(at.split(",")) != len(words) or not all(each.strip().isdecimal() for each in at.split(","))):
        raise InputError(f"at={at!r}: pass an integer from 0 on for each of the {len(words)} tokens, as in 0,1,5")
    return state


def _check_number(name: str, value: Any, field: Mapping[str, Any]) -> None:
    low, high, even = field["min"], field["max"], field.get("step") == 2
    integer = field["kind"] == "integer"
    fits = isinstance(value, int) or (isinstance(value, float) and not integer)
    if not fits or isinstance(value, bool) or not low <= value <= high or (even and value % 2):
        what = "an even number" if even else "an integer" if integer else "a number"
        raise InputError(f"{name}={value!r}: {field['meaning']}; {what} from {low} to {high}")


def _block(state: Mapping[str, Any] | None, *, embedded: bool) -> "Markup":
    from markupsafe import Markup

    scripts = [asset(f"explorer/{name}.js") for name in SCRIPTS]
    scripts.insert(SCRIPTS.index("state"), f"posenc.settings = {json.dumps(settings(), ensure_ascii=False)};")
    css = asset("explorer/explorer.css")
    values = {"state": checked(state), "embedded": embedded, "css": css, "scripts": scripts}
    return Markup(filled("explorer/explorer.html", **values))
