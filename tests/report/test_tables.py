# SPDX-License-Identifier: Apache-2.0
"""Tables on the terminal: in any width, every number that is shown is complete. And the question before a long run."""

import inspect
import io
import re
from importlib.resources import files

import pytest
from rich.console import Console

from posenc.lab.results import Ranking
from posenc.lab.table import Table
from posenc.report.terminal import print_cells
from posenc_cli.arguments import aligned

WIDTHS = (40, 60, 80, 120)
TITLES = ["loss at 128 tokens", "loss at 1024 tokens", "change at 256 tokens", "change at 1024 tokens", "verdict"]
ROWS = [
    (["1", "rope"], ["1.494", "2.286", "+0.254 ± 0.031", "+0.792 ± 0.104", "degrades"]),
    (["2", "rope + Self-Extend"], ["1.494", "1.812", "+0.031 ± 0.012", "+0.318 ± 0.051", "degrades"]),
    (["3", "alibi"], ["1.651", "1.662", "+0.002 ± 0.006", "+0.011 ± 0.008", "extrapolates"]),
]

TABLE = Table("", "", ["", "encoding", *TITLES], [[*names, *cells] for names, cells in ROWS], names=2)


@pytest.mark.parametrize("width", WIDTHS)
def test_numbers_and_names_are_never_cut(width):
    out = Console(file=io.StringIO(), width=width)
    print_cells(out, TABLE, [0, 1, 4, 3, 2])
    text = out.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "..." not in text
    assert "…" not in text
    for names, cells in ROWS:
        assert names[1] in text
        assert re.search(rf"(?<![\d.]){re.escape(cells[0])}(?![\d.])", text)
    whole = {part for _, cells in ROWS for cell in cells for part in re.split(" ± ", cell)}
    assert set(re.findall(r"[+\d]\d*\.\d+", text)) <= whole
    assert ("left out" in text) == (width < 120)


def test_what_is_left_out_first_is_least_important():
    out = Console(file=io.StringIO(), width=60)
    print_cells(out, TABLE, [0, 1, 4, 3, 2])
    assert "degrades" in out.file.getvalue()
    assert "2.286" in out.file.getvalue()


@pytest.mark.parametrize("width", [*WIDTHS, None])
def test_a_table_of_text_loses_no_cell(width):
    rows = [["pair", "wavelength A", "wavelength B", "B against A"], *([str(i), "6283.1853", "12566.371", "-50 %"] for i in range(3))]  # fmt: skip
    for justify in (str.ljust, str.rjust):
        lines = aligned(rows, justify, width)
        assert width is None or max(map(len, lines)) <= width
        words = " ".join(lines).split()
        assert words.count("6283.1853") == words.count("12566.371") == 3
        assert {"wavelength", "against"} <= set(words)


def test_verdicts_that_judge_have_a_colour():
    """A page's pill has the first word of the verdict as its class; "unclear" and "at chance" judge nothing."""
    style = files("posenc.report").joinpath("style.css").read_text(encoding="utf-8")
    words = re.findall(r'"([a-z ]+)"', inspect.getsource(Ranking.verdict))
    judging = {word.split()[0] for word in words} - {"not", "at", "unclear"}
    assert judging == {"extrapolates", "breaks", "degrades"}
    assert judging <= set(re.findall(r"\.pill\.(\w+)", style))
