# SPDX-License-Identifier: Apache-2.0
"""posenc diff."""

import argparse
from typing import TYPE_CHECKING

from posenc.cli.common import add_output, check_sizes, emit

if TYPE_CHECKING:
    from posenc.frequencies import Difference

BAR = 24
"""Characters of the longest bar."""


def add_diff(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Schedules are named as `posenc list` shows them, with options after colons (yarn:beta_fast=16) and what is "
        "applied to them after a plus sign (yarn+resonance). --factor and --length go to those that need them and do "
        "not say them."
    )
    add = parser.add_argument
    add("first", metavar="SCHEDULE", help="a frequency schedule")
    add("second", metavar="SCHEDULE", help="another one")
    add("--factor", type=float, metavar="F", default=4.0, help="the new length over the trained one")
    add("--head-dim", type=int, metavar="N", default=64, help="channels of a head that rotate")
    add("--base", type=float, metavar="X", default=10000.0, help="base of the frequencies, rope_theta")
    add("--length", type=int, metavar="N", default=4096, help="trained length, in positions")
    add("--at", type=float, metavar="N", help="compare phases of tokens N apart (default: factor times length)")
    add_output(parser, also="and a page with figures, report.html,")
    parser.set_defaults(run=run_diff)


def run_diff(options: argparse.Namespace, command: str) -> int:
    from posenc.files import Folder
    from posenc.frequencies import diff

    check_sizes(options, head_dim=(2, 2**14))
    found = diff(
        options.first,
        options.second,
        options.head_dim,
        options.base,
        factor=options.factor,
        length=options.length,
        at=options.at,
    )
    if options.out is not None:
        from posenc.report.schedules import page

        Folder(options.out).write("report.html", page(found, command))
    return emit(options, found.to_dict(), text(found))


def text(difference: "Difference") -> str:
    """The table with a bar for each pair, as long as its frequencies are apart, and what differs in words."""
    from posenc.frequencies.difference import COLUMNS

    d = difference
    longest = max(pair.apart for pair in d.pairs)
    bars = ["" if pair.same else "#" * max(1, _share(pair.apart, longest)) for pair in d.pairs]
    rows = [COLUMNS, *(pair.cells() for pair in d.pairs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    head = [f"{letter}: {schedule}" for letter, schedule in zip("AB", d.schedules, strict=True)]
    shape = f"head_dim {d.head_dim}, base {d.base:g}, trained on {d.length} positions, phases of tokens {d.at:g} apart"
    table = [f"{line}  {bar}".rstrip() for line, bar in zip(lines, ["", *bars], strict=True)]
    return "\n".join([*head, shape, "", *table, "", *(f"- {sentence}" for sentence in d.sentences())])


def _share(apart: float, longest: float) -> int:
    return BAR if apart == longest else round(BAR * apart / longest)
