# SPDX-License-Identifier: Apache-2.0
"""What a page needs so that a phone shows it: marks for style.css on outputs, tables and pictures, and names that break."""

import re
from html import escape, unescape
from pathlib import Path

PROSE = 60
"""Characters of a cell from which on its table is one of sentences: its rows are stacked on a phone."""
WIDE = 700
"""Pixels of a picture whose letters are too small to read on a phone: it scrolls there."""
CELL = re.compile(r"<(t[hd])([^>]*)>(.*?)</\1>", re.DOTALL)


def marked(html: str, path: Path) -> str:
    """The HTML of the page at a path with `columns` on outputs that are tables, which scroll where others wrap, `data-stacked` on
    tables of sentences, with their heads in each cell (`data-none`: it has a dash), and `wide` on wide pictures. Long names in first columns may break."""
    html = re.sub(r"<pre>(?=(?:<span></span>)?<code>([^<]*)</code>)", _output, html)
    html = re.sub(r"<table>.*?</table>", lambda found: _table(found[0]), html, flags=re.DOTALL)
    return re.sub(r'<p>(?=<img [^>]*src="([^"#:]+)"[^>]*></p>)', lambda found: _picture(found, path.parent), html)


def _output(found: re.Match[str]) -> str:
    gaps = [len(re.findall(r"\S {2,}(?=\S)", line)) for line in found[1].split("\n")]
    return '<pre class="columns">' if sum(each > 1 for each in gaps) > 1 else found[0]


def _table(html: str) -> str:
    head, body = html.split("</thead>", 1) if "</thead>" in html else ("", html)
    body = re.sub(r"(?<=<tr>\n)<td.*?</td>", lambda cell: re.sub(r">[^<]+", _breaking, cell[0]), body, flags=re.DOTALL)
    head = re.sub(r"(?<=<code>)[^<]+", _breaking, head)
    heads = [_text(cell) for _, _, cell in CELL.findall(head)]
    if len(heads) < 3 or all(len(_text(cell)) < PROSE for _, _, cell in CELL.findall(body)):
        return f"{head}</thead>{body}" if head else html

    def row(found: re.Match[str]) -> str:
        names = iter(["", *(each.split(" (")[0] for each in heads[1:])])  # the first cell is the row's title
        return CELL.sub(lambda cell: _named(cell, next(names, "")), found[0])

    body = re.sub(r"<tr>.*?</tr>", row, body, flags=re.DOTALL)
    return f"{head.replace('<table>', '<table data-stacked>', 1)}</thead>{body}"


def _named(cell: re.Match[str], name: str) -> str:
    says = cell[3].strip()
    named = " data-none" if says == "–" else f' data-head="{escape(name)}"' if name and says else ""
    return f"<{cell[1]}{cell[2]}{named}>{cell[3]}</{cell[1]}>"


def _breaking(text: re.Match[str]) -> str:
    return re.sub(r"([_:+=/,(])(?=\w)", r"\1<wbr>", text[0])


def _text(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html)).strip()


def _picture(found: re.Match[str], folder: Path) -> str:
    return '<p class="wide">' if width(folder / found[1]) > WIDE else found[0]


def width(path: Path) -> float:
    """Of an SVG or PNG file, in pixels."""
    data = path.read_bytes()
    if path.suffix == ".png":
        return int.from_bytes(data[16:20], "big")
    stated = re.search(rb'<svg[^>]* width="([\d.]+)(pt|)', data)
    return float(stated[1]) * (4 / 3 if stated[2] else 1) if stated else 0
