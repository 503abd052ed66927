"""A built site, read as a browser would: what each page links to, loads and defines."""

from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {
    "script": ("src",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src", "srcset"), "video": ("src",),
    "audio": ("src",), "embed": ("src",), "object": ("data",), "use": ("href", "xlink:href"), "image": ("href", "xlink:href"),
}  # fmt: skip
"""Attributes whose address a browser fetches without being asked."""


@dataclass
class Html(HTMLParser):
    """One page. links: of its anchors. loaded: what it fetches. ids: what can be linked to. text: of its body."""

    path: Path
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.source = self.path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload", "modulepreload", "preconnect"):
            self.loaded.append(given["href"])
        self.loaded += [given[name] for name in LOADED.get(tag, ()) if name in given]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)


class Site:
    """A folder of pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    @cached_property
    def pages(self) -> dict[Path, Html]:
        return {path: Html(path) for path in sorted(self.folder.rglob("*.html"))}

    def page(self, name: str) -> Html:
        """A page by its path in the site."""
        return self.pages[self.folder / name]

    def dead_links(self) -> list[str]:
        """Links and fetched files within the site that lead to no file or to no anchor."""
        return [
            f"{path.relative_to(self.folder)}: {link}"
            for path, page in self.pages.items()
            for link in page.links + page.loaded
            if not self._leads(path, link)
        ]

    def external(self) -> list[str]:
        """What pages fetch from elsewhere."""
        return [
            f"{path.relative_to(self.folder)}: {address}"
            for path, page in self.pages.items()
            for address in page.loaded
            if urlsplit(address).netloc
        ]

    def _leads(self, path: Path, link: str) -> bool:
        found = urlsplit(link)
        if found.scheme or found.netloc:
            return True
        base = self.folder if path.name == "404.html" else path.parent
        target = (base / unquote(found.path)).resolve() if found.path else path
        if path.name == "404.html" and found.path.startswith("/"):
            target = self.folder / unquote(found.path).lstrip("/")
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file():
            return False
        anchor = unquote(found.fragment)
        if "=" in anchor:
            return True  # a state of the page, such as #only=rope
        return not anchor or target not in self.pages or anchor in self.pages[target].ids
