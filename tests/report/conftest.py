"""A real browser for the pages."""

import os
import shutil
from importlib.resources import files

import pytest

from report.formulas import SCRIPTS

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


@pytest.fixture(scope="module")
def ask(browser):
    """JavaScript, a function of one argument, called with a value in a page that has the formulas."""
    tab = browser.new_page()
    complaints = []
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    for name in SCRIPTS:
        tab.add_script_tag(content=(files("posenc") / "report" / "explorer" / f"{name}.js").read_text())
    yield tab.evaluate
    assert complaints == []
    tab.close()
