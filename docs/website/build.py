# SPDX-License-Identifier: Apache-2.0
"""From docs/ and the code to a folder of Markdown, and from that, by Zensical, to the site."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from posenc.report import explorer
from posenc.report.html import asset
from website import book, encodings, extensions, gallery, measured, predicted, reference, repository, running, story
from website.keywords import keywords
from website.markdown import OPENING, RUNS, for_site, place, summary, title
from website.narrow import marked
from website.page import DOCS, ROOT, Page
from website.pictures import card, card_of

STAGE = ROOT / "build" / "docs"
"""Where the pages' Markdown is put together; git ignores it."""
COPIED = (".png", ".svg", ".css", ".js", ".wat", ".wgsl")
"""What goes with the pages as it is."""
MOST_PAGES, MOST_WORDS = 160, 160_000
"""Of the site: beyond them nobody finds anything."""

MENU = {
    "Home": "首页", "Guides": "指南", "In your model": "用在自己的模型里", "Pretrained models": "预训练模型",
    "Measure your models": "测量自己的模型", "Encodings": "编码", "Reference": "参考", "Results": "结果", "Understand": "理解",
    "Examples": "示例", "Contributing": "参与贡献", "Project": "项目",
    "System setting; switch to light": "随系统；切换到浅色", "Light; switch to dark": "浅色；切换到深色",
    "Dark; switch to the system setting": "深色；切换到随系统",
}  # fmt: skip
"""What mkdocs.yml says around every page, on a Chinese one. Titles of English pages stay English."""


def build(site: Path, folder: Path = STAGE, only: Sequence[str] = (), url: str = "") -> Path:
    """Build the site, replacing one that is there; gives its first page. folder: for what it is built from. only: beginnings of
    the paths of generated pages, to try some out; the others are left out, and links to them break. url: where the site will be, for
    what has to be absolute in a shared link.

    Raises:
        FileExistsError: something else is there, which is not replaced.
        CalledProcessError: Zensical has found something wrong, and names it.
    """
    if site.exists() and not any(
        (site / page).is_file() for page in ("index.html", story.PAGE)
    ):  # make story's is alone
        raise FileExistsError(f"{site}: is there and is no site; name another folder")
    config = stage(folder, only, url)
    strict = [] if only else ["--strict"]
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", *strict, "-f", config], check=True)
    for path in (folder / "site").rglob("*.html"):
        finish(path)
    for name in ("search.json", "search.js"):
        indexed(folder / "site" / name)
    if site.exists():
        shutil.rmtree(site)
    shutil.move(folder / "site", site)
    print("{} pages, {:,} words".format(*counted(site)))
    return site.resolve() / "index.html"


def counted(site: Path) -> tuple[int, int]:
    """The pages of a built site, and the words that they show; menus and scripts apart."""
    pages = list(site.rglob("*.html"))
    return len(pages), sum(len(words(path.read_text(encoding="utf-8")).split()) for path in pages)


def words(html: str) -> str:
    """The text that a page shows: of its article, or of its main part if it runs. The theme's main part has the menus, too."""
    found = re.search(r"<article\b.*</article>", html, re.DOTALL) or re.search(r"<main\b.*</main>", html, re.DOTALL)
    shown = re.sub(r"<(script|style|svg)\b.*?</\1>", "", found[0] if found else "", flags=re.DOTALL)
    shown = re.sub(r"</?(?:span|code|a|b|i|em|strong|wbr)\b[^>]*>", "", shown)  # an inline element ends no word
    return re.sub(r"<[^>]*>", " ", shown)


def stage(folder: Path, only: Sequence[str] = (), url: str = "") -> Path:
    """Put all pages together in a folder, replacing what is there; gives their configuration."""
    if folder.exists():
        shutil.rmtree(folder)
    wanted: Callable[[str], bool] = lambda path: not only or path.startswith(tuple(only))  # noqa: E731
    generated = {
        "encodings/index.md": encodings.pages(wanted),
        "reference/index.md": reference.pages(),
        "project/contributing.md": repository.project(),
    }
    texts = {page.path: page.text for part in generated.values() for page in part}
    notes = {}
    for path in sorted(DOCS.rglob("*.md")):
        name, text = path.relative_to(DOCS).as_posix(), for_site(path.read_text(encoding="utf-8"), path)
        ending = book.edition(path)
        if ending is not None:
            texts |= book.chapters(text, ending)
        elif name in RUNS:
            notes[name] = text
        else:
            texts[str(place(path))] = text
    for where in ("frequencies.md", "position_maps.md"):
        texts[where] = extensions.filled(texts[where]) if wanted(where) else texts[where]
    for language, where in {"en": OPENING["encodings.md"], "zh": OPENING["encodings.zh.md"]}.items():
        drawn = gallery.gallery(language) if wanted("encodings/index") else ""
        texts[where] = texts[where].replace(f"<!-- gallery: {language} -->", drawn)
        texts[where] = texts[where].replace("<!-- symbols -->", encodings.symbols())
    table = "[Every encoding: sort, filter, curves](leaderboard/report.html){ .md-button .md-button--primary }"
    texts["leaderboard.md"] = texts["leaderboard.md"].replace("\n## ", f"\n{table}\n\n## ", 1)
    described = {page.path: page.description for part in generated.values() for page in part}
    pages = folder / "pages"
    cards = _cards(pages, texts)
    for name, text in texts.items():
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        known: dict[str, str | None] = {"title": title(text), "description": described.get(name) or summary(text)}
        known |= {"keywords": keywords(name), "card": cards.get(name)}
        known |= {"language": "zh"} if name.endswith(".zh.md") else {}
        head = yaml.safe_dump({k: v for k, v in known.items() if v}, allow_unicode=True, width=10**6)
        (pages / name).write_text(f"---\n{head}---\n\n{text}", encoding="utf-8")
    running_pages = {"explorer.html": explorer.page(docs="./"), **predicted.files(), **story.files()}
    running_pages |= {name: running.noted(running_pages[name], name, notes) for name in running.PAGES}
    back = '<main>\n<p><a href="../leaderboard.html">posenc: the leaderboard, how it was measured and how to read it</a></p>'
    reports = {
        f"leaderboard/{name}": text.replace("<main>", back, 1)
        for name, text in measured.leaderboard(encodings.titled).items()
    }
    scripts = {f"encodings/{gallery.SCRIPT}": gallery.script()} if wanted("encodings/index") else {}
    for name, text in (running_pages | reports | scripts).items():
        (pages / name).parent.mkdir(exist_ok=True)
        (pages / name).write_text(text, encoding="utf-8")
    card(pages / "card.png")
    files = {path: path.relative_to(DOCS) for path in DOCS.rglob("*") if path.suffix in COPIED}
    for path, at in (files | {path: place(path) for path in repository.files()}).items():
        target = pages / str(at)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    (pages / "website" / "sorting.js").write_text(asset("sorting.js"), encoding="utf-8")
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    config |= {"site_url": url.rstrip("/") + "/"} if url else {}
    config |= {"docs_dir": pages.name, "nav": navigation(placed(config["nav"]), generated, texts)}
    config["theme"]["custom_dir"] = str(DOCS / "website" / "theme")
    handlers = next(plugin["mkdocstrings"]["handlers"] for plugin in config["plugins"] if "mkdocstrings" in plugin)
    handlers["python"]["paths"] = [str(ROOT / "src")]
    written = folder / "mkdocs.yml"
    written.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return written


def finish(path: Path) -> None:
    """What the theme gets wrong in a page: heads of tables without text, which are no heads, landmarks within landmarks, what does
    not fit on a phone, and the words of mkdocs.yml around a Chinese page."""
    html = marked(path.read_text(encoding="utf-8"), path)
    html = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)
    html = _outer_landmarks(html)
    chinese = path.name.endswith(".zh.html")
    other = path.with_name(path.name.replace(".zh.html", ".html") if chinese else f"{path.stem}.zh.html")
    if chinese:
        html = _chinese_menu(html.replace('<html lang="zh"', '<html lang="zh-Hans"', 1))
    if other.exists():
        language = "en" if chinese else "zh-Hans"
        html = html.replace("</head>", f'<link rel="alternate" hreflang="{language}" href="{other.name}"></head>', 1)
    path.write_text(html, encoding="utf-8")


def _cards(pages: Path, texts: Iterable[str]) -> dict[str, str]:
    """Draw the card of each encoding that has a page; gives their places by page."""
    (pages / "cards").mkdir(parents=True)
    found = {
        name: f"cards/{Path(name).stem}.png"
        for name in texts
        if Path(name).stem in encodings.PAGES and "encodings/" in name
    }
    for name, where in found.items():
        card_of(Path(name).stem, encodings.title_of(Path(name).stem), pages / where)
    return found


UNSEARCHED = ("project/changelog", "404.html")
"""What changed, which nobody looks for and which has every word: pages link to it."""


def indexed(path: Path) -> None:
    """Put the pages that run and the keywords of all pages into the search's index, and take out the changelog."""
    before, text = path.read_text(encoding="utf-8").split("{", 1)
    index, end = json.JSONDecoder().raw_decode("{" + text)
    index["items"] = [item for item in index["items"] if not item["location"].startswith(UNSEARCHED)]
    index["items"] += running.searched()  # which the theme does not know
    for item in index["items"]:
        if words := keywords(item["location"]):
            item["keywords"] = words
    path.write_text(before + json.dumps(index, ensure_ascii=False) + text[end - 1 :], encoding="utf-8")


def _outer_landmarks(html: str) -> str:
    """The menus within the menu as groups: a list of a page's landmarks has the menu once."""
    ends: list[str] = []

    def tag(found: re.Match[str]) -> str:
        if found[0] == "</nav>":
            return ends.pop()
        inner = re.search(r'data-md-level="[1-9]"', found[0])
        ends.append("</div>" if inner else "</nav>")
        return f'<div role="group"{found[1]}' if inner else found[0]

    return re.sub(r"<nav\b([^>]*>)|</nav>", tag, html)


def _chinese_menu(html: str) -> str:
    """The titles of sections and the names of buttons, which mkdocs.yml has in English, on a Chinese page."""
    menu, article, rest = html.partition("<article")
    for words, chinese in MENU.items():
        menu = re.sub(rf'(>\s*|title="|aria-label="){re.escape(words)}(?=\s*<|")', rf"\g<1>{chinese}", menu)
    return menu + article + rest


def placed(nav: Any) -> Any:
    """The navigation of mkdocs.yml, which has the pages of docs/, with their places in the site."""
    if isinstance(nav, list):
        return [placed(entry) for entry in nav]
    if isinstance(nav, dict):
        return {words: placed(target) for words, target in nav.items()}
    return str(place(DOCS / nav))


def navigation(nav: Sequence[Any], generated: dict[str, list[Page]], texts: dict[str, str]) -> list[Any]:
    """The navigation of mkdocs.yml with every generated page below the one that opens its section. A page without words there
    has its title's."""
    found: list[Any] = []
    for entry in nav:
        words, target = next(iter(entry.items())) if isinstance(entry, dict) else (title(texts[entry]), entry)
        if isinstance(target, list):
            found.append({words: navigation(target, generated, texts)})
        elif target == book.GUIDE.name:
            pages = [f"{name}.md" for name in book.addresses().values()]
            found.append({words: [target, *({title(texts[page]): page} for page in pages)]})
        elif target in generated:
            section = [target, *_grouped(page for page in generated[target] if page.path != target)]
            found.append({words: section})
        else:
            found.append({words: target})
    return found


def _grouped(pages: Iterable[Page]) -> list[Any]:
    """Entries of pages, those of a group together."""
    groups: dict[str, list[Any]] = {}
    for page in pages:
        groups.setdefault(page.group, []).append({page.title: page.path})
    return [*groups.pop("", []), *({group: entries} for group, entries in groups.items())]
