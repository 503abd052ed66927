# SPDX-License-Identifier: Apache-2.0
"""Names that are formulas, commands, code or mathematics elsewhere: every format shows them as they are."""

import csv
import io
import itertools
import re
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from posenc.lab.table import Table, as_csv, markdown, one_line
from posenc.report.drawn import drawn, saved
from posenc.report.figures import axis, line, lines, point

NAMES = [
    "=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1+1", "＝1", "_mine.py:E", "a`b", "``", "`", " a ",
    "a|b", "a\\|b", "a\\", "*a* _b_ ~~c~~ <b>&amp;", "[x](javascript:1)", "![x](y)", "http://x.y", "www.x.y", "m$y$.py:E",
    "b$\\frac$.py", "x_1^2", "\\input{/etc/passwd}", "[5cm]", "*", "a % b & c # d ~ e", "a-b---c", "two\nlines", "\x1b[31m",
    "\udcff", "\u2028", "-",
]  # fmt: skip
PLAIN = ["rope", "rope@rerope:window=64", "rope + PI", "-0.5", "+1e-05", "a-b"]
OUT_OF_LATEX = {
    r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textasciigrave{}": "`",
    r"\textquotesingle{}": "'", r"$\pm$": "±", "$-$": "−", "$<$": "<", "$>$": ">", "{[}": "[", "{]}": "]", "{*}": "*", "-{}": "-",
}  # fmt: skip
FORMULA = re.compile(r"\s*[=+\-@＝＋－＠](?![\d.e+-]*$)")
INLINE = {"text", "text_special", "code_inline", "strong_open", "strong_close"}


def seen(text):
    """What a reader sees: a text is shown without the spaces around it."""
    return one_line(text).strip()


def read_csv(text):
    rows = [*csv.reader(io.StringIO(text))]
    assert not any(FORMULA.match(cell) for row in rows for cell in row)
    return [[cell.removeprefix("'").strip() for cell in row] for row in rows]


def read_markdown(text):
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    assert {part.type for token in tokens if token.type == "inline" for part in token.children} <= INLINE
    rows = []
    for before, token in itertools.pairwise(tokens):
        if before.type == "tr_open":
            rows.append([])
        if before.type in ("th_open", "td_open"):
            rows[-1].append("".join(part.content for part in token.children).strip())
    return rows


def read_latex(text):
    head, body = text.split("\\toprule\n")
    assert all(line.startswith(("%", "\\begin{tabular}")) for line in head.splitlines() if line)
    lines = body.split("\n\\bottomrule")[0].replace("\\midrule\n", "").splitlines()
    assert all(line.endswith(r" \\") for line in lines)
    pattern = "|".join([*map(re.escape, OUT_OF_LATEX), r"\\[&%$#_{}]"])
    rows = [line.removesuffix(r" \\").split(" & ") for line in lines]
    return [[re.sub(pattern, lambda f: OUT_OF_LATEX.get(f[0], f[0][-1]), cell).strip() for cell in row] for row in rows]


@pytest.mark.parametrize("name", [*NAMES, *PLAIN])
def test_tables_show_names_as_they_are(name):
    table, about = Table(name, name, ["", name], [[name, name], [name, "7"]]), {"data": name, "command": name}
    expected = [["", seen(name)], [seen(name)] * 2, [seen(name), "7"]]
    assert read_markdown(markdown([table], about)) == expected
    head, first, _ = read_csv(as_csv([table], about))
    assert head == ["name", seen(name), "data", "command"]
    assert first == [seen(name)] * 4


def test_figures_show_names_as_they_are():
    style, ends = {"colour": "#123456", "dash": []}, (axis("$x$"), axis("_y"))
    curves = drawn(
        lines([line(name, [1, 2], [1, 2], style) for name in NAMES], *ends, marks=[{"y": 1, "label": "$m$"}])
    )
    shown = [text.get_text().replace("\n", " ") for text in curves.axes[0].get_legend().get_texts()]
    assert shown == list(map(one_line, NAMES))
    dots = drawn(lines([point(name, at, 1, style) for at, name in enumerate(NAMES)], *ends))
    for drawing in (curves, dots):
        written = "".join(ElementTree.fromstring(saved(drawing)).itertext())
        parts = [part for name in NAMES for part in (*name.split("\n"), "$x$", "_y")]
        assert [part for part in parts if seen(part) not in written] == []


def test_ticks_of_a_logarithmic_axis_are_numbers():
    style = {"colour": "#123456", "dash": []}
    for most in (3, 10**6):
        drawing = drawn(lines([line("rope", [1, most], [1, most], style)], axis("x", log=True), axis("y", log=True)))
        written = "".join(ElementTree.fromstring(saved(drawing)).itertext())
        assert "$" not in written
        assert "1" in written
