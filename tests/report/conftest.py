"""A real browser for the pages."""

import os
import shutil

import pytest

CHROMIUM = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None and not os.environ.get("POSENC_REQUIRE_BROWSER"):
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    assert CHROMIUM, "POSENC_REQUIRE_BROWSER is set, and there is no Chromium"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        yield p.chromium.launch(executable_path=CHROMIUM, args=flags)
