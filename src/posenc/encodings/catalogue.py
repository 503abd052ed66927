# SPDX-License-Identifier: Apache-2.0
"""Every encoding as a row of a table, from what the code declares, and the papers behind each as BibTeX."""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from posenc.encoding import Encoding
from posenc.encodings.create_encoding import create, create_map, lookup
from posenc.encodings.patterns import PATTERNS, patterns_of, read
from posenc.encodings.registry import ENCODINGS
from posenc.errors import InputError, check_arguments, summary
from posenc_cli.listing import bibtex

SHAPE: dict[str, Any] = {"dim": 64, "num_heads": 4, "num_layers": 2, "max_positions": 512, "causal": True}
"""A model in which each encoding is made once, to see whether it learns anything."""
OF_THE_MODEL = (
    "dim", "num_heads", "head_dim", "num_kv_heads", "num_layers", "max_positions", "rows", "train_length", "bidirectional",
)  # fmt: skip
"""Arguments that `create` takes from the model's shape; the rest are options."""
FAMILIES = {
    "rotary": ("Rotary", "Queries and keys, or values, rotate with their positions: RoPE and its variants."),
    "bias": ("Relative bias", "A number that depends on the distance is added to each score, as in ALiBi and T5."),
    "absolute": ("Absolute", "Each position has a code, which is combined with the input of the first layer."),
    "scores": (
        "Relative scores",
        "Scores have terms of content and distance, as in Transformer-XL, Shaw's and DeBERTa.",
    ),
    "content": (
        "Gates and forgetting",
        "The tokens decide what counts as far: gates, forgetting, accumulated rotations.",
    ),
    "grid": ("Images and video", "Positions have two or three coordinates."),
    "visible": ("Windows, sinks and temperature", "Which keys a query sees, and how scores become weights."),
    "augment": ("Positions in training", "Positions are changed in training, for use with any other encoding."),
    "none": ("No positions", "Only the causal mask tells the order."),
}
"""Key -> what it is called, and what its encodings have in common."""


def family(cls: type[Encoding]) -> str:
    """The key of FAMILIES that an encoding declares, or that follows from the hooks that it overrides."""
    sites = set(cls.own_sites)
    if cls.family:
        return cls.family
    if not sites:
        return "none"
    if "augment" in sites:
        return "augment"
    if {"height", "axes"} & set(cls.arguments()):
        return "grid"
    if {"gates", "modify"} & sites:
        return "content"
    if {"restrict", "prefix_kv", "sink"} & sites or cls.rotates_last:
        return "visible"
    if "embed" in sites:
        return "absolute"
    return "scores" if {"bias", "scores"} & sites else "rotary"


def measured(name: str) -> str:
    """By how much the loss of a small model with this encoding rises past its training length, in measured.json, which
    benchmarks/leaderboard.py writes."""
    of: dict[str, Any] = json.loads(files("posenc.encodings").joinpath("measured.json").read_text(encoding="utf-8"))
    if name not in of["rise"]:
        return "not measured"
    return f"{of['rise'][name]:+.2f} nats from {of['trained']} to {of['longest']} bytes"


def cite(encoding: Encoding | type[Encoding] | str) -> str:
    """BibTeX of an encoding's papers, entries separated by blank lines; empty for one without a paper.

    encoding: an encoding, its class, or its text ("rope", several joined by "+", a pattern of layers), as `posenc.create` takes it.

    Raises:
        InputError: an unknown name, or a paper without an entry.
    """
    check_arguments(cite, locals())
    cited: list[Any] = [encoding]
    if isinstance(encoding, str):
        terms = read(encoding).terms
        of_terms = ((lookup(t.name, may_import=True), *((create_map(t.map),) if t.map else ())) for t in terms)
        cited = [*patterns_of(encoding), *(each for of_term in of_terms for each in of_term)]
    parts = [part for each in cited for part in (each.modules() if isinstance(each, Encoding) else [each])]
    keys, known = dict.fromkeys(key for each in cited for key in each.papers), entries(parts)
    if missing := [key for key in keys if key not in known]:
        raise InputError("have no BibTeX: write an entry of each into the bibtex of the class", papers=missing)
    return "\n\n".join(known[key] for key in keys)


def entries(cited: Sequence[object] = ()) -> dict[str, str]:
    """Every BibTeX entry by key: of papers.bib, and of classes that have their own, ours and those of what is cited."""
    text = files("posenc.encodings").joinpath("papers.bib").read_text(encoding="utf-8")
    classes = [each if isinstance(each, type) else type(each) for each in (*ENCODINGS.values(), *cited)]
    return bibtex("\n".join((text, *(getattr(base, "bibtex", "") for cls in classes for base in cls.__mro__))))


def rows() -> list[dict[str, Any]]:
    """One row per encoding: name, title, family, class, where it acts, whether it learns, what its source claims past the training
    length and what we measured, when to use it, its formula, what it equals, options, papers, summary."""
    papers = entries()
    table = []
    for name, cls in ENCODINGS.items():
        made = create(name, **SHAPE)
        table.append(
            {
                "name": name,
                "title": cls.title or cls.__name__,
                "family": family(cls),
                "class": cls.__name__,
                "acts_on": list(cls.own_sites),
                "learned": any(True for _ in made.parameters()),
                "shift_invariant": bool(made.shift_invariant),
                "extrapolates": cls.extrapolates,
                "measured": measured(name),
                "use_when": cls.use_when,
                "formula": list(cls.formula),
                "equal_to": cls.equal_to,
                "options": [n for n in cls.arguments() if n not in OF_THE_MODEL],
                "arguments": {n: None if p.default is p.empty else p.default for n, p in cls.arguments().items()},
                "papers": [short(papers[key]) for key in cls.papers],
                "summary": summary(cls),
            }
        )
    return table


def pattern_rows() -> list[dict[str, Any]]:
    """One row per pattern of layers: name, title, summary, the models that have it, its text, options, papers."""
    papers = entries()
    return [
        {
            "name": name,
            "title": pattern.title,
            "summary": summary(pattern.text),
            "models": pattern.models,
            "text": pattern.text(),
            "options": list(pattern.options),
            "papers": [short(papers[key]) for key in pattern.papers],
        }
        for name, pattern in PATTERNS.items()
    ]


def short(entry: str) -> str:
    """First author, year and arXiv number of a BibTeX entry; a source that is not on arXiv goes by its address."""
    lines = (line.partition("=") for line in entry.splitlines())
    fields = {key.strip(): value.strip().strip("{},") for key, _, value in lines}
    where = f"arXiv {fields['eprint']}" if "eprint" in fields else fields["url"].removeprefix("https://")
    return f"{fields['author'].split(',')[0].strip('{')} {fields['year']}, {where}"
