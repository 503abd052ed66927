# SPDX-License-Identifier: Apache-2.0
"""The pictures of pages in docs/images, light and dark: python -m website.screens SITE, in docs/.

SITE: the folder of a built site, whose explorer and page that predicts are shown; the default comparison is run (two
minutes), the report of an evaluation is made of committed results, and the analysis is computed. With Chromium.
"""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from posenc.analysis import analyze
from posenc.analysis.target import target_of
from posenc.report import analyze as analysis_report
from posenc.report import evaluate
from website.page import DOCS, ROOT

COLOURS = 128
PARTS = {"report": ("h1", 1000), "middle": ("h2", 640), "analyze": ("h1", 800)}
"""Of a report: the first of what the picture shows, and the picture's height."""


def shot(tab: Page, name: str, **how: float) -> None:
    """Save what a tab shows, or a rectangle of it, as docs/images/NAME.png."""
    data = tab.screenshot(clip=how or None, full_page=bool(how))  # type: ignore[arg-type]
    Image.open(io.BytesIO(data)).convert("RGB").quantize(COLOURS).save(DOCS / "images" / f"{name}.png", optimize=True)


def reports(folder: Path) -> None:
    """Write a report of each kind that a page shows: report.html, middle.html, analyze.html."""
    command = [sys.executable, "-m", "posenc", "compare", "--out", "posenc-compare"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    shutil.copy(folder / "posenc-compare" / "report.html", folder / "report.html")
    middle = json.loads((ROOT / "benchmarks/evaluations/lost_in_the_middle.json").read_text(encoding="utf-8"))
    analysis = analyze(target_of("sinusoidal"))
    pages = {
        "middle": evaluate.page(middle),
        "analyze": analysis_report.page(analysis, analysis_report.results(analysis)),
    }
    for name, page in pages.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")


def of_explorer(tab: Page, site: Path, ending: str) -> None:
    tab.set_viewport_size({"width": 1280, "height": 1300})
    tab.goto((site / "explorer.html").resolve().as_uri() + "#step=7")
    tab.locator("#explorer-method").select_option("yarn")
    tab.locator("[data-do=language]").evaluate("button => button.remove()")  # its letters need a font
    tab.wait_for_timeout(1000)
    shot(tab, f"explorer{ending}")


def of_predictor(tab: Page, site: Path, ending: str) -> None:
    tab.set_viewport_size({"width": 1270, "height": 650})
    tab.goto((site / "predictor.html").resolve().as_uri() + "#method=yarn")
    tab.locator("[data-do=language]").evaluate("button => button.remove()")
    tab.wait_for_function("posenc.predict.complete()")
    shot(tab, f"predict{ending}")


def of_reports(tab: Page, folder: Path, ending: str) -> None:
    tab.set_viewport_size({"width": 1100, "height": 1060})
    for name, (first, height) in PARTS.items():
        tab.goto((folder / f"{name}.html").resolve().as_uri())
        tab.wait_for_timeout(500)
        box = tab.locator(first).first.bounding_box()
        assert box
        shot(tab, f"{name}{ending}", x=0, y=box["y"] - 16, width=1100, height=height)


def main(site: Path) -> None:
    """Every picture in both schemes."""
    chromium = next(found for name in ("chromium", "google-chrome") if (found := shutil.which(name)))
    with TemporaryDirectory() as folder, sync_playwright() as play:
        reports(Path(folder))
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme, ending in (("light", ""), ("dark", "-dark")):
            tab = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
            for taken in (of_explorer, of_predictor):
                taken(tab, site, ending)
            of_reports(tab, Path(folder), ending)
            tab.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
