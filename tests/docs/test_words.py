# SPDX-License-Identifier: Apache-2.0
"""The field's words: each stands on the page where people look for it, and our own paraphrases of it on none.

Pages are README and docs, in English; what the commands print for --help; the pages and scripts of the reports and the explorer;
and the labels of pictures.
"""

import ast
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tokenize import COMMENT, generate_tokens

import pytest
from website.keywords import KEYWORDS, keywords
from website.markdown import summary

from posenc import cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

WORDS = {
    "README.md": ("context window", "RoPE scaling", "KV cach", "passkey", "sequence length", "position interpolation", "packed sequences"),
    "docs/index.md": ("context window", "sequence length", "RoPE scaling", "KV cache"),
    "docs/guides/extend.md": ("context window", "context length", "RoPE scaling", "fine-tuning", "passkey", "position interpolation", "position map"),
    "docs/guides/padding-packing-caches.md": ("KV cache", "packed sequences", "Padding", "attention mask", "cu_seqlens"),
    "docs/guides/your-model.md": ("KV cach", "packed batches", "scaled_dot_product_attention"),
    "docs/guides/bring-your-own.md": ("attention bias", "KV cache"),
    "docs/guides/measure.md": ("needles in a haystack", "passkey retrieval", "perplexity", "baseline"),
    "docs/evaluate.md": ("passkey retrieval", "needles in a haystack", "perplexity", "baseline", "context length", "context window"),
    "docs/longer_context.md": ("context window", "context length", "passkey", "KV cache", "fine-tuning", "RoPE scaling"),
    "docs/frequencies.md": ("RoPE scaling", "inverse frequencies", "inv_freq", "NTK-aware", "position interpolation", "out-of-distribution", "context length"),
    "docs/position_maps.md": ("position map", "extrapolates", "context length"),
    "docs/attention.md": ("attention bias", "flash attention", "KV cache", "sequence length"),
    "docs/finetune.md": ("fine-tunes", "LoRA"),
    "docs/vision-grid.md": ("2D RoPE", "relative position bias"),
    "docs/vision-pretrained.md": ("higher resolution", "2D RoPE"),
    "docs/compare.md": ("length extrapolation", "training length", "baseline"),
    "docs/synthetic-lab.md": ("length generalization",),
    "docs/claims.md": ("extrapolation", "context window", "passkey"),
    "docs/export.md": ("RoPE scaling", "vLLM", "llama.cpp"),
    "docs/nbce.md": ("context window", "KV cache", "fine-tuning"),
    "docs/huggingface.md": ("Hugging Face", "Trainer"),
    "docs/distributed.md": ("DDP", "FSDP", "sequence parallelism"),
    "docs/analyze.md": ("inverse frequencies", "decay"),
    "docs/predict.md": ("context length", "RoPE scaling"),
    "docs/story.md": ("context length", "position interpolation", "truncated"),
}  # fmt: skip
"""Of a page, what people call its subject."""
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


@pytest.mark.parametrize("name", WORDS)
def test_a_page_has_the_words_that_people_look_for(name):
    text = (ROOT / name).read_text(encoding="utf-8").lower()
    assert [word for word in WORDS[name] if word.lower() not in text] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_has_no_paraphrase(path):
    assert found(prose(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", PAGES[1:], ids=lambda path: path.relative_to(DOCS).as_posix())
def test_a_page_opens_with_a_sentence(path):
    """What, for whom: no code, table, list or picture comes before it."""
    _, *paragraphs = path.read_text(encoding="utf-8").split("\n\n")
    first = next(each for each in paragraphs if not re.match(r"\*\[中文版\]|\[|<picture", each))
    assert re.match(r"[\w*`\"“]", first), first
    assert re.search(r"[.:?]$|\.\s", first), first
    assert summary(path.read_text(encoding="utf-8"))


def test_keywords_have_no_paraphrase():
    assert found("\n".join([*KEYWORDS.values(), *map(keywords, KEYWORDS)])) == []


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_has_no_paraphrase(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = StringIO()
    with redirect_stdout(shown), pytest.raises(SystemExit):
        cli.main([name, "--help"])
    usage = shown.getvalue().split("\nmethods:\n")[0]
    assert found(usage) == []


LABELS = [
    *sorted((ROOT / "src/posenc/report").rglob("*.html")),
    ROOT / "src/posenc/report/explorer/settings.json",
]


@pytest.mark.parametrize("path", LABELS, ids=lambda path: path.name)
def test_reports_and_the_explorer_have_no_paraphrase(path):
    text = re.sub(
        r"{[{%#].*?[}%#]}|<script.*?</script>|<[a-z][^>]*>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert found(text) == []


PICTURES = sorted(
    path for path in (DOCS / "images").rglob("*.svg") if "notebooks" not in path.parts and path.stem != "story"
)
"""Without the one whose words a model wrote."""


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_labels_of_pictures_have_no_paraphrase(path):
    labels = re.findall(r">([^<>]+)<|<!-- (.*?) -->", path.read_text(encoding="utf-8"))
    assert found("\n".join(one or other for one, other in labels)) == []


OURS = (
    r"trained lengths?\b", r"pass keys?\b", r"\b(told|kept|said)\b", r"\bof (its|their|his) own\b", r"\bthe trained one\b",
    r"(complete|make)s? (a|no) (full )?turn\b", r"\bturns? (less|at least|more) than once\b", r"(?<![-\w])arms?\b",
    r"\bread (at once|in one (call|pass))\b", r"\bmodels?( that)? reads? (longer|\w* ?windows|images of|side by side)", r"\btexts (that|which) (the model|both)",
    r"(?<![\w`.({])texts\b(?!`|:|, \w+:|=|\.\w|\[)",  # but for an argument of this name
)  # fmt: skip
"""Of sentences in the code: docstrings, private ones too, comments, messages, help."""
QUOTED = ("src/posenc/tasks", "src/posenc/pretrained/doctor.py")
"""Has prompts and passages as others wrote them."""
CODE = sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("path", CODE, ids=lambda path: path.relative_to(ROOT / "src").as_posix())
def test_docstrings_and_messages_have_no_paraphrase(path):
    if str(path.relative_to(ROOT)).startswith(QUOTED):
        return
    code = path.read_text(encoding="utf-8")
    found = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    found += [token.string for token in generate_tokens(StringIO(code).readline) if token.type == COMMENT]
    lines = [line.strip() for text in found if isinstance(text, str) and " " in text for line in text.splitlines()]
    assert [line for line in lines for pattern in OURS if re.search(pattern, line)] == []


@pytest.mark.parametrize("folder", ["docs/website", "benchmarks", "src"])
def test_no_name_is_a_paraphrase(folder):
    names = re.compile(r"\b(told|said|kept|arms?|cut_off)\b")
    for path in (path for end in ("py", "js", "html", "css") for path in (ROOT / folder).rglob(f"*.{end}")):
        if not str(path.relative_to(ROOT)).startswith(QUOTED):
            code = path.read_text(encoding="utf-8")
            assert not names.search(code), f"{path}: {names.search(code)}"
