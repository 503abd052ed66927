# SPDX-License-Identifier: Apache-2.0
"""The pages that run, with the texts about them below: there is no page about a page."""

import re
from collections.abc import Mapping

import markdown  # type: ignore[import-untyped]

from website.markdown import RUNS, summary, title
from website.page import DOCS

PAGES = ("explorer.html", "predictor.html", "story-live.html")
EXTENSIONS = ("attr_list", "fenced_code", "md_in_html", "tables", "toc")
STYLE = """<style>.notes { max-width: 44rem; margin: 3rem auto 0; } .notes img { max-width: 100%; }
.notes :is(.wide, pre) { overflow-x: auto; }
html:lang(zh) .notes:lang(en), html:not(:lang(zh)) .notes:lang(zh) { display: none; }
body:has(.explorer.alone) .notes { display: none; }
.notes img[src$="#only-dark"] { display: none; }
@media (prefers-color-scheme: dark) { .notes img[src$="#only-dark"] { display: inline; } .notes img[src$="#only-light"] { display: none; } }
</style>"""


def noted(page: str, name: str, texts: Mapping[str, str]) -> str:
    """A page that runs with the texts about it below, one for each language. name: its file. texts: of all such pages, by their
    file in docs, made for the site."""
    found = []
    for source, target in RUNS.items():
        if target.partition("#")[0] == name:
            chinese = source.endswith(".zh.md")
            # headings go one down: the page has its own
            html = markdown.markdown(re.sub(r"^(?=#)", "#", texts[source], flags=re.MULTILINE), extensions=EXTENSIONS)
            html = re.sub(r'(href="[^":]*)\.md(?=["#])', r"\1.html", html).replace("<pre>", '<pre tabindex="0">')
            html = re.sub("<th([^>]*)></th>", r"<td\1></td>", html)
            box = '<div class="wide" tabindex="0" role="group" aria-label="Table"><table>'
            html = html.replace("<table>", box).replace("</table>", "</table></div>")
            if chinese:  # an address of a heading is one of the page
                html = re.sub(r'id="([^"]*)"', r'id="zh-\1"', html)
            found.append(f'<section class="notes" lang="{"zh-Hans" if chinese else "en"}">{html}</section>')
    return page.replace("</head>", f"{STYLE}</head>", 1).replace("</main>", "".join(found) + "</main>", 1)


def searched() -> list[dict[str, str]]:
    """What the search finds of these pages, which are not among the site's."""
    texts = {source: (DOCS / source).read_text(encoding="utf-8") for source in RUNS}
    return [
        {"location": RUNS[source], "title": title(text), "text": f"<p>{summary(text, 600)}</p>"}
        for source, text in texts.items()
    ]
