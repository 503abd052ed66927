"""Pages in the browser."""

from importlib.resources import files

import pytest

from report.formulas import SCRIPTS


@pytest.fixture(scope="module")
def ask(browser):
    """JavaScript, a function of one argument, called with a value in a page that has the formulas."""
    tab = browser.new_page()
    complaints = []
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    for name in SCRIPTS:
        tab.add_script_tag(content=(files("posenc") / "report" / f"{name}.js").read_text())
    yield tab.evaluate
    assert complaints == []
    tab.close()


@pytest.fixture(scope="session")
def explorer_file(tmp_path_factory):
    from posenc.report import explorer

    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(explorer.page(), encoding="utf-8")
    return path


@pytest.fixture
def opened(new_tab):
    """Opens a file at a hash and waits until its script has drawn. ready: an expression that is true then."""

    def opened(path, hash, ready, **options):
        tab = new_tab(**{"viewport": {"width": 1280, "height": 900}, **options})
        tab.set_default_timeout(60_000)
        tab.goto(f"{path.as_uri()}#{hash}")
        if options.get("java_script_enabled", True):
            tab.wait_for_function(f"window.posenc && {ready}")
        return tab

    return opened


@pytest.fixture
def visit(opened, explorer_file):
    """Opens the explorer, or a page that has it, at a hash."""

    def visit(hash="", path=explorer_file, **options):
        return opened(path, hash, "posenc.explorer && posenc.explorer.redraws() > 0", **options)

    return visit
