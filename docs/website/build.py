# SPDX-License-Identifier: Apache-2.0
"""From docs/ and the code to a folder of Markdown, and from that, by Zensical, to the site."""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from posenc.report import explorer
from website import encodings, reference, repository
from website.markdown import for_site
from website.page import DOCS, ROOT, Page

STAGE = ROOT / "build" / "docs"
"""Where the pages' Markdown is put together; git ignores it."""
COPIED = (".png", ".svg", ".css", ".js")
"""What goes with the pages as it is."""


def build(site: Path, folder: Path = STAGE) -> Path:
    """Build the site, replacing one that is there; gives its first page. folder: for what it is built from.

    Raises:
        FileExistsError: something else is there, which is not replaced.
        CalledProcessError: Zensical has found something wrong, and has said what.
    """
    if site.exists() and not (site / "index.html").is_file():
        raise FileExistsError(f"{site}: is there and is no site; name another folder")
    config = stage(folder)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", config], check=True)
    if site.exists():
        shutil.rmtree(site)
    shutil.move(folder / "site", site)
    return site.resolve() / "index.html"


def stage(folder: Path) -> Path:
    """Put all pages together in a folder, replacing what is there; gives their configuration."""
    if folder.exists():
        shutil.rmtree(folder)
    generated = {
        "encodings/index.md": encodings.pages(),
        "reference/index.md": reference.pages(),
        "examples.md": repository.examples(),
        "results.md": repository.results(),
        "project/license.md": repository.project(),
    }
    texts = {page.path: page.text for part in generated.values() for page in part}
    for path in DOCS.rglob("*.md"):
        texts[path.relative_to(DOCS).as_posix()] = for_site(path.read_text(encoding="utf-8"), path)
    texts["benchmarks/encodings.md"] = encodings.linked(texts["benchmarks/encodings.md"])
    texts["explore.md"] += "\n[The explorer](explorer.html){ .md-button .md-button--primary }\n"
    texts["explorer.html"] = explorer.page()
    pages = folder / "pages"
    for name, text in texts.items():
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / name).write_text(text, encoding="utf-8")
    for path in [*repository.result_files(), *(path for path in DOCS.rglob("*") if path.suffix in COPIED)]:
        target = pages / path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    config |= {"docs_dir": pages.name, "nav": navigation(config["nav"], generated)}
    handlers = next(plugin["mkdocstrings"]["handlers"] for plugin in config["plugins"] if "mkdocstrings" in plugin)
    handlers["python"]["paths"] = [str(ROOT / "src")]
    written = folder / "mkdocs.yml"
    written.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return written


def navigation(nav: Sequence[Any], generated: dict[str, list[Page]]) -> list[Any]:
    """The navigation of mkdocs.yml with every generated page below the one that opens its section."""
    found: list[Any] = []
    for entry in nav:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            found.append({title: navigation(target, generated)})
        elif target in generated:
            below = _grouped(page for page in generated[target] if page.path != target)
            found.append({title: [target, *below]})
        else:
            found.append(entry)
    return found


def _grouped(pages: Iterable[Page]) -> list[Any]:
    """Entries of pages, those of a group together."""
    groups: dict[str, list[Any]] = {}
    for page in pages:
        groups.setdefault(page.group, []).append({page.title: page.path})
    return [*groups.pop("", []), *({group: entries} for group, entries in groups.items())]
