import os
import shutil

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is first imported
torch.set_num_threads(1)  # the suite runs in several processes
settings.register_profile("posenc", deadline=None, print_blob=True)
settings.load_profile("posenc")

CHROMIUM = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser():
    """A real browser for the pages. There is one in a process: Playwright's loop bears no second."""
    if CHROMIUM is None and not os.environ.get("POSENC_REQUIRE_BROWSER"):
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    assert CHROMIUM, "POSENC_REQUIRE_BROWSER is set, and there is no Chromium"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        yield p.chromium.launch(executable_path=CHROMIUM, args=flags)
