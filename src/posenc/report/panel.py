# SPDX-License-Identifier: Apache-2.0
"""Figures with buttons: a panel holds one or two plots, and choices of which of their figures is seen."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Choice:
    """Buttons, one of which is down. name: for the plots that depend on it. rows: words, and the buttons that follow them;
    all rows together are numbered from 0. chosen: the button that is down at first."""

    name: str
    rows: Sequence[tuple[str, Sequence[str]]]
    chosen: int = 0

    @property
    def count(self) -> int:
        return sum(len(texts) for _, texts in self.rows)


@dataclass(frozen=True)
class Plot:
    """A place for one of several figures. name: its element is "plot-<name>". by: the choices it depends on. figures: by their
    numbers, in that order."""

    name: str
    by: tuple[str, ...]
    figures: Mapping[tuple[int, ...], Any]


@dataclass(frozen=True)
class Panel:
    """Plots side by side, their choices, and whether the key of methods belongs to them. label: for who cannot see it."""

    id: str
    label: str
    choices: Sequence[Choice]
    plots: Sequence[Plot]
    key: bool = True

    @property
    def shown(self) -> dict[str, Any]:
        """The figures by plot and by the numbers of their choices, as `page.rendered` takes them."""
        return {
            plot.name: {" ".join(map(str, numbers)): figure for numbers, figure in plot.figures.items()}
            for plot in self.plots
        }


def plot(name: str, choices: Sequence[Choice], draw: Callable[..., Any]) -> Plot:
    """A plot of every figure that `choices` can ask for. draw: called with a number for each of them."""
    numbers = itertools.product(*(range(choice.count) for choice in choices))
    return Plot(name, tuple(choice.name for choice in choices), {at: draw(*at) for at in numbers})
