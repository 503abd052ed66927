# SPDX-License-Identifier: Apache-2.0
"""The pictures of the explorer and of the gallery in docs/images, light and dark: python -m website.screens SITE, in docs/.

SITE: the folder of a built site. With Chromium.
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from website.page import DOCS

COLOURS = 128
CARDS = "grid_table", 1060, 390
"""An encoding in the row of cards that is the gallery's picture, and the picture's width and height."""


def shot(tab: Page, name: str, **how: float) -> None:
    """Save what a tab shows, or a rectangle of it, as docs/images/NAME.png."""
    data = tab.screenshot(clip=how or None, full_page=bool(how))  # type: ignore[arg-type]
    Image.open(io.BytesIO(data)).convert("RGB").quantize(COLOURS).save(DOCS / "images" / f"{name}.png", optimize=True)


def main(site: Path) -> None:
    """Both pictures in both schemes."""
    chromium = next(found for name in ("chromium", "google-chrome") if (found := shutil.which(name)))
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme, ending in (("light", ""), ("dark", "-dark")):
            tab = browser.new_page(viewport={"width": 1280, "height": 1300}, color_scheme=scheme)  # type: ignore[arg-type]
            tab.goto((site / "explorer.html").resolve().as_uri() + "#step=7")
            tab.locator("#explorer-method").select_option("yarn")
            tab.locator("[data-do=language]").evaluate("button => button.remove()")  # its letters need a font
            tab.wait_for_timeout(1000)
            shot(tab, f"explorer{ending}")
            tab.set_viewport_size({"width": 1680, "height": 1300})
            tab.goto((site / "encodings" / "index.html").resolve().as_uri())
            name, width, height = CARDS
            box = tab.locator(f".gallery .cards > li[data-name='{name}']").bounding_box()
            row = tab.locator(".gallery .cards").bounding_box()
            assert box
            assert row
            shot(tab, f"gallery{ending}", x=row["x"] - 4, y=box["y"] - 4, width=width, height=height)
            tab.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
