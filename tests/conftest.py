import gc
import os
import shutil
import signal
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is first imported
torch.set_num_threads(1)  # the suite runs in several processes
# a shell's background job, and what it starts, would ignore it
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.pop("COLUMNS", None)  # the width of the terminal that the suite was started in
settings.register_profile("posenc", deadline=None, print_blob=True, max_examples=50)  # others in each run
settings.load_profile("posenc")

CHROMIUM = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)


def pytest_addoption(parser):
    parser.addoption("--core", action="store_true", help="import no transformers, and skip the tests that need it")


def pytest_configure(config):
    if config.getoption("--core"):
        sys.meta_path.insert(0, LeftOut)


class LeftOut(ModuleType):
    """transformers, its modules and what is in them, under --core: whoever calls or indexes one is skipped."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return LeftOut(f"{self.__name__}.{name}")

    def __call__(self, *_, **__):
        pytest.skip(f"needs {self.__name__}", allow_module_level=True)

    __getitem__ = __call__

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return ModuleSpec(name, cls, is_package=True) if name.partition(".")[0] == "transformers" else None

    @classmethod
    def create_module(cls, spec):
        return cls(spec.name)

    @classmethod
    def exec_module(cls, module):
        pass


def pytest_collection_finish():
    """What was imported and collected lives to the end: a search for garbage need not visit these millions of objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def tiles(monkeypatch):
    """The CPU's backends cut short inputs into many tiles: of 3 queries and 4 keys in the operator, of 3 queries elsewhere,
    and chunks of 2 tokens."""
    from posenc.backends import fused, sdpa
    from posenc.bias import carried

    for name, value in {"ROWS": 3, "MANY": 5, "COLUMNS": 4}.items():
        monkeypatch.setattr(fused, name, value)
    monkeypatch.setattr(sdpa, "BLOCK_CELLS", 2 * 4 * 3 * 5)  # of 2 rows and 4 heads
    monkeypatch.setattr(sdpa, "LEAST_ROWS", 2)
    monkeypatch.setattr(sdpa, "SHORT", 0)
    monkeypatch.setattr(carried, "SIZE", 2)


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


@pytest.fixture
def new_tab(browser):
    """Opens tabs; whatever their consoles say, every dialog and every request to elsewhere fails the test."""
    opened, complaints = [], []

    def new_tab(**options):
        tab = browser.new_page(**options)
        opened.append(tab)
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("dialog", lambda dialog: complaints.append(dialog.message))
        tab.on("request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else complaints.append(r.url))
        return tab

    yield new_tab
    for tab in opened:
        tab.close()
    assert complaints == []
