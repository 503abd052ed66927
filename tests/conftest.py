import gc
import os
import random
import shutil
import signal
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import settings

from posenc.backends import flex
from references.cases import commit, few

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is first imported
    # torch's own keeps the caller's traceback, for each kind of device that may be there later
    torch.manual_seed = torch.default_generator.manual_seed
torch.set_warn_always(True)  # what torch says once a process would fail whichever test is first
torch.set_num_threads(1)  # the suite runs in several processes
for name, value in {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}.items():  # of those that it starts
    os.environ.setdefault(name, value)  # a thread that waits for another would take the core of the other
sys.dont_write_bytecode = False  # each process, of which tests start many, would compile all that it imports
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# a shell's background job, and what it starts, would ignore it
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.pop("COLUMNS", None)  # the width of the terminal that the suite was started in
settings.register_profile("posenc", deadline=None, print_blob=True, max_examples=50)  # others in each run
settings.load_profile("posenc")

CHROMIUM = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)


def pytest_addoption(parser):
    parser.addoption("--core", action="store_true", help="import no transformers, and skip the tests that need it")
    parser.addoption(
        "--all-cases", action="store_true", help="run all cases of each test, instead of a few, drawn by the commit"
    )


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


# ---------------------------------------------------------------- which cases run, and for how long

SLOW = dict(line.partition(" ")[::2] for line in (Path(__file__).parent / "slow.txt").read_text().splitlines())
"""Tests with a case of two seconds or more, on two idle cores of 2026, and the seconds of those of a minute or more."""
BEGUN = time.monotonic()
MINUTES = os.environ.get("POSENC_MINUTES")
"""After so many, tests are skipped, and long ones that would end later; a skipped one is no failure."""


def pytest_itemcollected(item):
    if item.nodeid.partition("[")[0] in SLOW:
        item.add_marker("slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    draw = commit()
    if MINUTES is not None:  # each run begins with another file, since not all may be reached
        files = list(dict.fromkeys(item.path for item in items))
        first = random.Random(draw).choice(files) if files else None
        at = next((n for n, item in enumerate(items) if item.path == first), 0)
        items[:] = items[at:] + items[:at]
    if config.getoption("--all-cases"):
        return
    items[:], left_out = few(items, draw)
    if left_out:
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    needed = float(SLOW.get(item.nodeid.partition("[")[0]) or 0)
    if MINUTES is not None and time.monotonic() - BEGUN + needed > 60 * float(MINUTES):
        pytest.skip("the minutes of POSENC_MINUTES are over")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    try:
        return (yield)
    except Exception as error:
        if flex.IS_THERE or "FlexAttention is used from" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collecting makes millions of objects and no garbage to speak of."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """What was imported and collected lives to the end: a search for garbage need not visit these millions of objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _modules_of_the_test(tmp_path_factory):
    """A process loads a module once, and tests write others of the same name."""
    yield
    folder = str(tmp_path_factory.getbasetemp())
    for name in [n for n, m in list(sys.modules.items()) if str(getattr(m, "__file__", "")).startswith(folder)]:
        sys.modules.pop(name, None)


@pytest.fixture
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def untraced():
    """FlexAttention computes what it is given without being traced for each call, which takes ten times as long: which of
    our structures and masks can be traced is asked by tests/backends."""
    from posenc.conformance.fixtures import uncompiled

    with uncompiled():
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
        flags.append("--enable-unsafe-webgpu")  # by SwiftShader, Chromium's own software
        yield p.chromium.launch(executable_path=CHROMIUM, args=flags)


@pytest.fixture(scope="session")
def resting(browser):
    """Tabs with nothing in them, by the options that a tab has for good: a new one starts a process, and takes as long as
    three pages in an old one."""
    return {}


CHANGED = {"viewport": {"width": 1280, "height": 720}, "color_scheme": "light", "reduced_motion": "no-preference"}
"""What a tab can be told later, as Playwright has it in a new one."""


@pytest.fixture
def new_tab(browser, resting):
    """Opens tabs; whatever their consoles say, every dialog and every request to elsewhere fails the test. alone: the tab
    is of no other test, which must be so if it is given scripts or routes that stay in it."""
    opened, complaints = [], []
    listeners = {
        "console": lambda message: complaints.append(message.text),
        "pageerror": lambda error: complaints.append(str(error)),
        "dialog": lambda dialog: complaints.append(dialog.message),
        "request": lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else complaints.append(r.url),
    }

    def new_tab(*, alone=False, **options):
        now, fixed = CHANGED | options, {name: options[name] for name in options.keys() - CHANGED}
        idle = [] if alone else resting.setdefault(str(sorted(fixed.items())), [])
        tab = idle.pop() if idle else browser.new_page(**fixed)
        opened.append((tab, None if alone else idle))
        tab.set_viewport_size(now["viewport"])
        tab.emulate_media(color_scheme=now["color_scheme"], reduced_motion=now["reduced_motion"])
        tab.set_default_timeout(30_000)
        for event, listener in listeners.items():
            tab.on(event, listener)
        return tab

    yield new_tab
    for tab, idle in opened:
        if idle is None or idle or not emptied(tab):  # one rests of each kind
            tab.close()
        else:
            for event, listener in listeners.items():
                tab.remove_listener(event, listener)
            idle.append(tab)
    assert complaints == []


def emptied(tab):
    """Whether a tab is as a new one: what its page stored and opened is gone, the pointer is outside, and no button is down."""
    from playwright.sync_api import Error

    try:
        for other in tab.context.pages:
            if other != tab:
                other.close()
        if tab.url.startswith("file:"):
            tab.evaluate("localStorage.clear(), sessionStorage.clear()")
        tab.goto("about:blank")
        tab.mouse.up()
        tab.mouse.move(-1, -1)
        tab.context.new_cdp_session(tab).send("Page.resetNavigationHistory")
    except Error:  # its page hangs
        return False
    return True
