# SPDX-License-Identifier: Apache-2.0
"""The field's words: our own paraphrases of them stand nowhere.

Pages are README and docs, in English; what the commands print for --help; the pages and scripts of the reports and the explorer;
and the labels of pictures.
"""

import ast
import re
from pathlib import Path

import pytest
from website.keywords import KEYWORDS, keywords
from website.markdown import summary

from posenc import cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

PARAPHRASES = {
    r"trained lengths?\b": "context length, or training length",
    r"pass keys?\b": "passkey",
    r"\btexts\b": "sequences, inputs, documents or prompts",
    r"\b(told|kept|whole|said)\b": "the plain word",
    r"\bof (its|their|his) own\b": "its",
    r"\b(models?|that|which|decoders?) reads? (a text|text|it|longer|short|\d)": "process, attend to, or be evaluated on",
    r"\breads? \S+ times the length": "extrapolates to",
    r"\bpairs? (that )?(never )?(complete|make)s? (a|no) (full )?turn\b|\bpairs? turns?\b": "rotate; wavelength",
    r"(?<![-\w])arms?\b": "encodings, variants or methods",
}
"""What is said nowhere, and what is said for it."""
FREE = (
    r"^```.*?^```",  # code and what it prints
    r"`[^`]*`",  # names
    r"\*\*\"[^*]*\"\*\*",  # claims of others
    r"\[What .*?\]|\]\([^)]*\)",
    r"data: my_texts",
    r"11 of 32 pairs.*",
)
"""What a page quotes."""
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if not path.name.endswith(".zh.md"))]


def prose(text):
    for pattern in FREE:
        text = re.sub(pattern, "", text, flags=re.MULTILINE | re.DOTALL if pattern.startswith("^```") else re.MULTILINE)
    return text


def found(text):
    """Paraphrases in a text, each with its line."""
    return [
        (pattern, line.strip()[:160])
        for line in text.splitlines()
        for pattern in PARAPHRASES
        if re.search(pattern, line, re.IGNORECASE)
    ]


def labels(path):
    """What a reader sees of a page, or of a picture."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return prose(text)
    if path.suffix == ".svg":
        return "\n".join(one or other for one, other in re.findall(r">([^<>]+)<|<!-- (.*?) -->", text))
    return re.sub(r"{[{%#].*?[}%#]}|<script.*?</script>|<[a-z][^>]*>", "", text, flags=re.DOTALL)


SEEN = [
    *PAGES,
    *(ROOT / "src/posenc/report").rglob("*.html"),
    ROOT / "src/posenc/report/explorer/settings.json",
    *(path for path in (DOCS / "images").rglob("*.svg") if path.stem != "story"),
]
"""Without the picture whose words a model wrote."""


def test_no_page_report_or_picture_has_a_paraphrase():
    assert [(path.name, *each) for path in SEEN for each in found(labels(path))] == []
    assert found("\n".join([*KEYWORDS.values(), *map(keywords, KEYWORDS)])) == []


def test_help_has_no_paraphrase():
    texts = (f"{command.about}\n{command.epilog}" for command in map(described, cli.COMMANDS.values()))
    settings = (s.explained() for command in map(described, cli.COMMANDS.values()) for s in command.settings.values())
    assert found("\n".join([*texts, *settings])) == []


def described(command):
    return command.described()


def test_a_page_opens_with_a_sentence():
    """What, for whom: no code, table, list or picture comes before it."""
    for path in PAGES[1:]:
        _, *paragraphs = path.read_text(encoding="utf-8").split("\n\n")
        first = next(each for each in paragraphs if not re.match(r"\*\[中文版\]|\[|<picture", each))
        assert re.match(r"[\w*`\"“]", first), path.name
        assert re.search(r"[.:?]$|\.\s", first), path.name
        assert summary(path.read_text(encoding="utf-8")), path.name


OURS = (
    r"trained lengths?\b", r"pass keys?\b", r"\b(told|kept|said)\b", r"\bof (its|their|his) own\b", r"\bthe trained one\b",
    r"(complete|make)s? (a|no) (full )?turn\b", r"\bturns? (less|at least|more) than once\b", r"(?<![-\w])arms?\b",
    r"\bread (at once|in one (call|pass))\b", r"\bmodels?( that)? reads? (longer|\w* ?windows|images of|side by side)", r"\btexts (that|which) (the model|both)",
    r"(?<![\w`.({])texts\b(?!`|:|, \w+:|=|\.\w|\[)",  # but for an argument of this name
)  # fmt: skip
"""Of sentences in the code: docstrings, private ones too, comments, messages, help."""
QUOTED = ("src/posenc/tasks", "src/posenc/pretrained/doctor.py")
"""Has prompts and passages as others wrote them."""


def sentences(path):
    """The lines of docstrings, comments and messages in a file of code."""
    code = path.read_text(encoding="utf-8")
    texts = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    texts += re.findall("#.*", code)
    return [line.strip() for text in texts if isinstance(text, str) and " " in text for line in text.splitlines()]


def test_docstrings_and_messages_have_no_paraphrase():
    paths = [path for path in (ROOT / "src").rglob("*.py") if not str(path.relative_to(ROOT)).startswith(QUOTED)]
    pattern = re.compile("|".join(OURS))
    assert [(path.name, line) for path in paths for line in sentences(path) if pattern.search(line)] == []


@pytest.mark.parametrize("folder", ["docs/website", "benchmarks", "src"])
def test_no_name_is_a_paraphrase(folder):
    names = re.compile(r"\b(told|said|kept|arms?|cut_off)\b")
    for path in (path for end in ("py", "js", "html", "css") for path in (ROOT / folder).rglob(f"*.{end}")):
        if not str(path.relative_to(ROOT)).startswith(QUOTED):
            code = path.read_text(encoding="utf-8")
            assert not names.search(code), f"{path}: {names.search(code)}"
