"""README.md and README.zh.md have the same code, links and pictures, and the pictures exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGLISH, CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))


def code(text):
    """The fenced blocks without their comments."""
    return [re.sub(r"\s+#.*", "", block) for block in re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)]


def addresses(text):
    """What a page links to, the editions of a page as one."""
    return {re.sub(r"\.zh|#.*", "", link) for link in re.findall(r"\]\(([^)]+)\)", text)} - {"README.md", ""}


def test_both_editions_have_the_same_code_and_links():
    assert code(CHINESE) == code(ENGLISH)
    assert addresses(CHINESE) == addresses(ENGLISH)


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["en", "zh"])
def test_pictures_exist_and_are_small(text):
    names = set(re.findall(r'(?:src|srcset)="([^":]+)"', text))
    assert names
    for name in names:
        assert (ROOT / name).stat().st_size < 200_000, name
