# SPDX-License-Identifier: Apache-2.0
"""Pages: templates, figures, panels of figures, and numbers in words. Every page is one HTML file that needs no network."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from importlib.resources import files
from typing import Any

from markupsafe import Markup, escape

from posenc.errors import counted
from posenc.report.figures import plain


def asset(file: str) -> str:
    """The text of a file in this folder."""
    return files("posenc.report").joinpath(file).read_text(encoding="utf-8")


def filled(name: str, **values: Any) -> str:
    """A template with its values, escaped, in the style of all pages."""
    from jinja2 import Environment, FunctionLoader  # slow to import, and few commands fill a template

    environment = Environment(loader=FunctionLoader(asset), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(FILTERS)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template(name).render(**values, style=asset("plot.css") + asset("style.css"))


def rendered(name: str, figures: Mapping[str, Any], **values: Any) -> str:
    """A template with its values and figures. figures: name -> a figure of `posenc.report.figures`, for the element
    "plot-<name>", or the figures of a `Plot`."""
    scripts = [asset(f"{script}.js") for script in ("draw", "plot", "saving", "sorting", "report")]
    drawn = scripts[-2:] if values.get("explorer") else scripts  # the explorer brings the others
    return anchored(filled(name, **values, scripts=drawn, figures=plain(figures)))


def anchored(page: str) -> str:
    """A page whose headings without an id have one, of their words, and a link to themselves."""
    ids = set(re.findall(r'\bid="([^"]+)"', page))

    def linked(match: re.Match[str]) -> str:
        level, inside = match.groups()
        words = "-".join(re.findall(r"\w+", unescape(re.sub(r"<[^>]+>", "", inside)).lower())) or "section"
        id = next(id for id in itertools.chain([words], (f"{words}-{n}" for n in itertools.count(2))) if id not in ids)
        ids.add(id)
        return f'<h{level} id="{id}">{inside} <a class="anchor" href="#{id}" aria-label="Link to this section">#</a></h{level}>'

    head, main, rest = page.partition("<main>")
    body, end, scripts = rest.rpartition("</main>")
    return head + main + re.sub(r"<h([23])>(.*?)</h\1>", linked, body, flags=re.DOTALL) + end + scripts


# -------------------------------------------------------------------- figures with buttons


@dataclass(frozen=True)
class Choice:
    """Radio buttons. words: before the buttons. texts: on the buttons. chosen: the number of the one that is selected at first."""

    name: str
    words: str
    texts: Sequence[str]
    chosen: int = 0


@dataclass(frozen=True)
class Plot:
    """The element "plot-<name>", which shows one of several figures. figures: by the numbers of the selected buttons, as
    "2 0". label: for screen readers; "": the panel's."""

    name: str
    choices: Sequence[Choice]
    figures: Mapping[str, Any]
    label: str = ""


@dataclass
class Panel:
    """Plots side by side with the buttons of their choices. label: for screen readers. key: whether the methods' legend belongs
    to them."""

    id: str
    label: str
    plots: Sequence[Plot]
    key: bool = True

    @property
    def names(self) -> set[str]:
        """Of the methods that the figures show."""
        return {one["name"] for plot in self.plots for figure in plot.figures.values() for one in figure["series"]}

    @property
    def choices(self) -> list[Choice]:
        return list({choice.name: choice for plot in self.plots for choice in plot.choices}.values())


def plot(name: str, choices: Sequence[Choice], draw: Callable[..., Any], label: str = "") -> Plot:
    """A plot with a figure for every combination of `choices`. draw: called with the number of a button of each."""
    numbers = itertools.product(*(range(len(choice.texts)) for choice in choices))
    return Plot(name, choices, {" ".join(map(str, at)): draw(*at) for at in numbers}, label)


# -------------------------------------------------------------------- numbers and sentences


def count(value: float) -> str:
    """A number, in three digits from ten thousand on: "8270", "52.4 k", "135 M"."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= max(size, 1e4) * 0.9995:
            return f"{float(f'{value / size:.3g}'):g} {unit}"
    return f"{value:.0f}"


def times(number: int) -> str:
    """ "once", "4 times" """
    return "once" if number == 1 else f"{number} times"


def clock(seconds: float) -> str:
    """A running time: "3:10", "1:03:10"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def percent(share: float, digits: int = 0) -> str:
    """ "62 %" """
    return f"{100 * share:.{digits}f} %"


def breaking(name: str) -> Markup:
    """A name that may break after its signs: "key_value:<wbr>keys=<wbr>words"."""
    return Markup(re.sub(r"([_:+=,])(?=\w)", r"\1<wbr>", str(escape(name))))


def prose(text: str) -> Markup:
    """A sentence of a docstring, its names as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


FILTERS: dict[str, Callable[..., str]] = {
    "clock": clock,
    "percent": percent,
    "prose": prose,
    "breaking": breaking,
    "count": count,
    "counted": counted,
    "times": times,
    "mebibytes": lambda value: f"{value / 2**20:.0f} MiB",
    "kibibytes": lambda value: f"{value / 2**10:.4g} KiB",
}
