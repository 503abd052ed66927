"""Text of reports can be read on every ground that it stands on, light and dark: a contrast of 4.5 and more."""

import re

import pytest

from posenc.report.html import asset

TEXT = ("ink", "soft")
"""Of cells of a table that is coloured by its scores, and of the page."""
PAIRS = {
    "ground": (*TEXT, "accent", "good", "bad", "fair"), "raised": (*TEXT, "accent"), "good-ground": (*TEXT, "good"), "bad-ground": ("bad",),
    "fair-ground": ("fair",),
}  # fmt: skip


def colours(dark):
    """Variable -> its colour, later ones over earlier ones."""
    found = {}
    for name in ("plot.css", "style.css"):
        plain, _, rest = asset(name).partition("@media (prefers-color-scheme: dark)")
        for text in (plain, rest.split("\n}")[0]) if dark else (plain,):
            found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", text))
    return found


def luminance(colour):
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_on_its_ground(dark):
    known = colours(dark)
    for ground, texts in PAIRS.items():
        for text in texts:
            low, high = sorted((luminance(known[ground]), luminance(known[text])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (ground, text)


def test_links_in_coloured_cells_have_the_colour_of_text():
    """That of links has 4.39 on the darkest of them."""
    assert re.search(
        r"\.heat \{ background: color-mix\(in srgb, var\(--good-ground\) .*?\} \.heat a \{ color: inherit; \}",
        asset("style.css"),
    )
    assert 'class="more heat" style="--share: ' in asset("leaderboard.html")
