"""The explorer's page, asked from Python."""

import json
from contextlib import contextmanager


def values(tab):
    """What the page shows, as data; NaN, where nothing is, comes back as None."""
    plain = "(_, v) => ArrayBuffer.isView(v) ? Array.from(v) : v"
    return json.loads(tab.evaluate(f"JSON.stringify(posenc.explorer.values(), {plain})"))


def state(tab):
    """What is chosen, without the rest of the numbers."""
    return tab.evaluate("posenc.explorer.values().state")


@contextmanager
def redrawn(tab):
    """What happens inside is on the screen afterwards."""
    before = tab.evaluate("posenc.explorer.redraws()")
    yield
    tab.wait_for_function(f"posenc.explorer.redraws() > {before}")


def unfold(tab):
    """Open all that is folded and visible, at once: a redraw between two of them may hide the next."""
    tab.locator("summary:visible").evaluate_all("all => all.forEach(one => { one.parentElement.open = true; })")


def go(tab, hash):
    """Go to an address of the same page."""
    with redrawn(tab):
        tab.evaluate("hash => { location.hash = hash; }", hash)
