# SPDX-License-Identifier: Apache-2.0
"""posenc list, from the table."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc_cli.arguments import INDENT, Mistake, filled, laid_out, room
from posenc_cli.left import instead
from posenc_cli.names import nearest, unknown_name

KINDS = {
    "encodings": "encodings",
    "patterns": "patterns of layers",
    "schedules": "RoPE scaling: frequency schedules",
    "position_maps": "position maps, after @ as in rope@rerope",
    "methods": "methods of posenc extend",
    "tasks": "tasks of posenc eval",
    "findings": "findings of posenc doctor",
    "kinds": "kinds of functions, posenc check FUNCTION --as KIND",
}
"""What is listed, and its heading."""
ASKED = {"findings", "kinds"}
"""What a list of everything leaves out."""
HIDDEN = ("name", "title", "family", "also", "summary")
"""What is in the head of an entry, or for the search alone."""

PAGES = {
    "docs/guides/choose.md": "choose which encoding best encoder bidirectional decoder images audio speech music",
    "docs/longer_context.md": "long longer context length lengths extrapolation extrapolates extend extension",
    "docs/attention.md": "flash attention sdpa flexattention fast fused kernel memory backend capped softcap",
    "docs/guides/recipes.md": "cross attention time series timestamps timm lightning accelerate multiheadattention compile static cache weights",
    "docs/guides/padding-packing-caches.md": "padding packing packed kv cache caches prefix mask",
    "docs/guides/symptoms.md": "worse nan slow slower differs problem troubleshooting error",
    "docs/huggingface.md": "transformers huggingface hf trainer bert encoder encoders generate",
    "docs/vision-grid.md": "image images video vit vision grid patches",
    "docs/export.md": "gguf vllm sglang llama.cpp ollama mlx serve serving save export convert",
    "docs/finetune.md": "finetune finetuning fine tuning lora peft trl train",
    "docs/evaluate.md": "passkey needle haystack perplexity evaluate evaluation benchmark retrieval",
    "docs/doctor.md": "doctor check wrong broken config bug",
    "docs/distributed.md": "distributed fsdp ddp parallel sharded context tensor",
}
"""Where the documentation speaks of what people search for, by words."""

UNLIMITED = 10**6
"""Columns, where no terminal breaks lines."""

Rows = dict[str, list[dict[str, Any]]]


def answered(values: Mapping[str, Any], table: Mapping[str, Any]) -> bool:
    """Print what a command line asks for; False: it names what is not in the table."""
    if "cite" in values:
        text = cited(values["cite"], table)
        if text is None:
            return False
        data: Any = {"name": values["cite"], "bibtex": text}
        text = text or f"{values['cite']} has no paper"
    else:
        options = {key: value for key, value in values.items() if key != "json"}
        data, text = listed(table, **options)
    print(json.dumps(data, indent=1) if values.get("json") else text)
    return True


def cited(encodings: str, table: Mapping[str, Any]) -> str | None:
    """BibTeX of encodings joined by +; None: one of them is not a name in the table."""
    names = encodings.split("+")
    if not all(name in table["cite"] for name in names):
        return None
    text = (Path(__file__).parents[1] / "posenc/encodings/papers.bib").read_text(encoding="utf-8")
    known, keys = bibtex(text), dict.fromkeys(key for name in names for key in table["cite"][name])
    return "\n\n".join(known[key] for key in keys) if keys.keys() <= known.keys() else None


def bibtex(text: str) -> dict[str, str]:
    """The entries of a BibTeX file by key."""
    stripped = (entry.strip() for entry in re.split(r"\n(?=@)", text))
    return {match[1]: entry for entry in stripped if (match := re.match(r"@\w+\{([^,]+),", entry))}


def listed(
    table: Mapping[str, Any],
    names: Sequence[str] = (),
    search: Sequence[str] = (),
    kind: str | None = None,
    acts_on: str | None = None,
    explain: Sequence[str] = (),
) -> tuple[Rows, str]:
    """The rows that are asked for, and as text: all about those that are named, else a line of each.

    Raises:
        Mistake: a name that is not listed, or nothing is found.
    """
    names = [name.removeprefix("@") for name in (*names, *explain)]
    left_out = () if names or search or kind else ASKED
    rows: Rows = {each: table["list"][each] for each in KINDS if kind in (None, each) and each not in left_out}
    if acts_on is not None:
        rows = {"encodings": [row for row in rows.get("encodings", []) if acts_on in row["acts_on"]]}
    if search:
        words = _words(" ".join(search))
        rows = {each: [row for row in of_kind if words <= _searched(row, words)] for each, of_kind in rows.items()}
    flags = {"--kind": kind, "--acts-on": acts_on, "--search": " ".join(search)}
    asked = " ".join(f"{flag} {value}" for flag, value in flags.items() if value)
    known, found = ({row["name"] for of_kind in each.values() for row in of_kind} for each in (table["list"], rows))
    for name in names:
        if name not in known:
            like = unknown_name("name", name, known, nearest(name, known)) + _findable(name, table["list"])
            flag = "--explain: " if {name, f"@{name}"} & set(explain) else ""
            raise Mistake(flag + (instead(name) or like))
        if name not in found:
            raise Mistake(f"{asked}: leaves out {name!r}; posenc list {name} shows it")
    if names:
        rows = {each: [row for row in of_kind if row["name"] in names] for each, of_kind in rows.items()}
    rows = {each: of_kind for each, of_kind in rows.items() if of_kind}
    if not rows:
        elsewhere = _pages(words) if search else ""
        raise Mistake(f"{asked}: nothing is found; {elsewhere and f'see {elsewhere}, or '}posenc list shows all names")
    public = {each: [{k: v for k, v in row.items() if k not in ("also",)} for row in of_kind] for each, of_kind in rows.items()}  # fmt: skip
    if names:
        return public, "\n\n".join(_entry(each, row) for each, of_kind in rows.items() for row in of_kind)
    text = _overview(rows, summaries=bool(search))
    return public, f"{text}\nSee also {elsewhere}." if search and (elsewhere := _pages(words)) else text


def _pages(words: set[str]) -> str:
    """The pages that have all of the words."""
    return ", ".join(page for page, text in PAGES.items() if words <= _searched({"page": text}, words))


def _findable(name: str, rows: Rows) -> str:
    """The search that finds what is no name, for a message."""
    words = _words(name)
    some = words and any(words <= _searched(row, words) for of_kind in rows.values() for row in of_kind)
    return f" Or posenc list --search {' '.join(sorted(words))}" if some else ""


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]+", re.sub(r"\b([23])-d\b", r"\1d", text.lower())))


def _searched(row: Mapping[str, Any], words: Iterable[str]) -> set[str]:
    """Which of the words begin a word of a row."""
    text = " ".join(_strings(value) for key, value in row.items() if key not in ("formula", "arguments", "text"))
    there = _words(text)
    return {word for word in words if any(each.startswith(word) for each in there)}


def _strings(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def _overview(rows: Rows, summaries: bool) -> str:
    """A line of each row under the heading of its group. summaries: with what each is, in sentences."""
    width, blocks = room() or UNLIMITED, []
    for kind, of_kind in rows.items():
        longest = max(len(row["name"]) for row in of_kind) + 1
        for family in dict.fromkeys(row.get("family", "") for row in of_kind):
            head = f"{KINDS[kind]}: {family[0].lower()}{family[1:]}" if family else KINDS[kind]
            lines = filled(f"{head[0].upper()}{head[1:]}", width)
            for row in of_kind:
                if row.get("family", "") == family:
                    name = ("@" if kind == "position_maps" else "") + row["name"]
                    lines.append(laid_out(f"{INDENT}{name:{longest}}  {row['title']}", width))
                    if summaries and row["summary"] != row["title"]:
                        lines += filled(row["summary"], width, 3 * INDENT, 3 * INDENT)
            blocks.append("\n".join(lines))
    more = "posenc list NAME shows all about one; --search WORD, --kind and --acts-on show fewer; --cite NAME has its papers."
    return "\n\n".join([*blocks, "\n".join(filled(more, width))])


def _entry(kind: str, row: Mapping[str, Any]) -> str:
    lines = []
    for key, value in row.items():
        if key in HIDDEN or (key == "options" and "arguments" in row):
            continue
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, Mapping):
            value = " ".join(name if default is None else f"{name}={default}" for name, default in value.items())
        elif isinstance(value, (list, tuple)):
            value = {"options": " ", "acts_on": ", "}.get(key, "; ").join(value)
        if value:
            lines.append((key.replace("_", " "), value))
    one = kind.removesuffix("s").replace("_", " ")
    words = row["summary"] if row["summary"].startswith(row["title"]) else f"{row['title']}. {row['summary']}"
    head = f"{row['name']} ({one}): {words}"
    longest, width = max((len(key) for key, _ in lines), default=0), room() or UNLIMITED
    return "\n".join([*filled(head, width), *(laid_out(f"{INDENT}{k:{longest}}  {v}", width) for k, v in lines)])
