# SPDX-License-Identifier: Apache-2.0
"""A page for each encoding, made of what its class declares and says."""

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import posenc
from posenc.attention import Explanation
from posenc.encoding import Encoding, gates_of
from posenc.encodings import ENCODINGS
from posenc.encodings.catalogue import FAMILIES, SHAPE, rows
from posenc.encodings.patterns import PATTERNS
from posenc.spec import parse
from website.measured import beside, chapters, mentions, parity, speed
from website.page import Page, described, explorer, formula, formulas, papers_of, plain, signature, table
from website.pictures import figures, has_grid, of_input, pictures, says
from website.snippets import NEEDED, snippet
from website.trained import OF_IMAGES

SYMBOLS = {
    r"i, j": "positions of the query and of the key; on a grid (y, x)",
    r"x_i, p_i": "the input of the first layer at position i, and its code",
    r"q_i, k_j, v_j": "queries, keys and values after their projections; a prime marks the transformed ones",
    r"s_{ij}, \alpha_{ij}, o_i": "the score that enters the softmax, the weight that leaves it, and the output",
    r"d, c": "number of channels, of the input or a head; one of them, or a pair",
    r"\theta_c, b": "the frequency of a pair, in radians a position, and its base",
    r"R_i, R(\varphi)": "rotation of every pair, by its frequency times i or by a separate angle",
    r"h, H": "a head, and the number of heads",
    r"N, L": "tokens of the text, and the training length",
    r"P, A, B, W, U, a, u, v, w": "learned tables, matrices, vectors and numbers",
    r"[a; b], \odot, \sigma": "one after the other, channel by channel, and the logistic function",
}
"""Of the formulas; other letters are arguments of the class."""
COUNT, SIDE = 2048, 14
"""Tokens of the text, and patches along a side of the image, for which costs are counted."""
PAGES = {name: f"{name}.md" for name in ENCODINGS}


def pages(wanted: Callable[[str], bool] = lambda path: True) -> list[Page]:
    """Every encoding's page by family. wanted: whether the page at a path is."""
    return [_page(name) for name in ordered() if wanted(f"encodings/{name}")]


def ordered() -> list[str]:
    """The names of all encodings by family, first in each what most models of transformers use."""
    families = list(FAMILIES)
    return sorted(
        ENCODINGS, key=lambda name: (families.index(declared()[name]["family"]), -len(models(ENCODINGS[name])))
    )


def titled(text: str) -> str:
    """What an encoding's text is called: of a sum, its parts."""
    return " + ".join(title_of(term.name) for term in parse(text).terms)


def title_of(name: str) -> str:
    """What an encoding or a pattern of layers is called."""
    return (PATTERNS if name in PATTERNS else ENCODINGS)[name].title


@cache
def declared() -> dict[str, dict[str, Any]]:
    """What `posenc list` knows of each encoding."""
    return {row["name"]: row for row in rows()}


def symbols() -> str:
    """The letters of the formulas, as a table."""
    return table(("symbol", "meaning"), ((formula(latex), meaning) for latex, meaning in SYMBOLS.items()))


def _page(name: str) -> Page:
    cls = ENCODINGS[name]
    lead, rest = _said(cls)
    links = [
        *papers_of(declared()[name]["papers"]),
        *chapters(name),
        explorer({"encoding": "t5:shows=trained" if name == "t5" else name}),
    ]
    parts = [
        f"# `{name}`: {cls.title}",
        _prose(lead, cls),
        " · ".join(filter(None, links)) + "\n{ .links }",
        "## When to use it",
        described(cls.use_when, PAGES),
        _models(cls),
        *beside(name, re.findall(r"`(\w+)`", cls.use_when)),
        "## Formula",
        formulas(cls.formula),
        "[Symbols](index.md#symbols).",
        "## Picture",
        figures(pictures(name)),
        _shown(name),
        f"More pictures: `posenc analyze {name}` ([description](../analyze.md)).",
        "## What it does",
        f'<span id="{cls.__module__}.{cls.__qualname__}"></span>',
        signature(f"posenc.{cls.__name__}", inspect.Signature(list(cls.arguments().values()))),
        *(_prose(paragraph, cls) for paragraph in rest),
        *_methods(cls),
        _traits(cls),
        *mentions(name, cls),
        "## Cost",
        _cost(name),
        *speed(name),
        "## Code",
        f"```python\n{snippet(name)}```",
        "## Checked properties",
        f"Equal to {plain(cls.equal_to)}, up to rounding." if cls.equal_to != "the formula" else "",
        parity(name),
        "## Citation",
        _citation(cls),
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    about = f"{cls.title}: {' '.join(lead.split())}"
    return Page(f"encodings/{name}.md", name, text, FAMILIES[declared()[name]["family"]][0], about)


def _methods(cls: type[Encoding]) -> list[str]:
    """Its public methods, beside those of every encoding."""
    found = []
    for name, what in vars(cls).items():
        method = getattr(what, "__func__", what)
        if name[0] == "_" or hasattr(Encoding, name) or not inspect.isfunction(method) or not method.__doc__:
            continue
        call = inspect.signature(method)
        own = [each for each in call.parameters.values() if each.name not in ("self", "cls")]
        about = _linked(plain(" ".join(inspect.cleandoc(method.__doc__).split())))
        found += [f"### `{name}`", signature(name, call.replace(parameters=own)), about]
    return list(filter(None, found))


def models(cls: type[Encoding]) -> list[str]:
    """The models of transformers that use it: those with which it is compared."""
    return [
        model.strip()
        for part in cls.equal_to.split(";")
        if "transformers'" in part
        for model in part.strip().removeprefix("transformers' ").split(",")
    ]


def _models(cls: type[Encoding]) -> str:
    found = models(cls)
    return f"**Models that use it**, as in transformers: {plain(', '.join(found))}." if found else ""


def _shown(name: str) -> str:
    """What the picture shows of an encoding that learns."""
    if learned := says(name):
        text = "the model of `posenc compare`, seed 0, 120 steps at 128 bytes of English text"
        images = "a small vision Transformer, seed 0, 140 steps on drawn images of 8 x 8 patches"
        learned = re.sub(r"(?<!\w)-(?=\d)", "−", learned)
        return f"Shown after training: {images if name in OF_IMAGES else text}. {learned}"
    if of_input(name):
        return "It depends on what the tokens say; here they are drawn (seed 0)."
    return "Shown at initialisation, before training." if declared()[name]["learned"] else ""


def _said(cls: type[Encoding]) -> tuple[str, list[str]]:
    """The docstring's first paragraph, and the others."""
    lead, *rest = re.split(r"\n\s*\n", inspect.cleandoc(cls.__doc__ or ""))
    return lead, rest


def _prose(paragraph: str, cls: type[Encoding]) -> str:
    """A paragraph of a docstring; one that names arguments becomes a list of them."""
    names = "|".join(map(re.escape, cls.arguments()))
    argument = re.compile(rf"(?:^|(?<=[.;:)] )|(?<=\n))((?:{names})(?:,\s(?:{names}))*): ", re.MULTILINE)
    if not names or not argument.search(paragraph):
        return _linked(plain(" ".join(paragraph.split())))
    before, *found = argument.split(paragraph)
    items = [
        f"- **{plain(' '.join(named.split()))}**: {_linked(plain(' '.join(text.split()).rstrip(';')))}"
        for named, text in zip(found[::2], found[1::2], strict=True)
    ]
    intro = _linked(plain(" ".join(before.split())))
    return "\n\n".join(part for part in (intro, "\n".join(items)) if part)


def _linked(text: str) -> str:
    """Names of encodings' classes and of functions in code lead to their pages."""
    classes = {cls.__name__: name for name, cls in ENCODINGS.items()}
    text = re.sub(r"`(\w+)`", lambda m: f"[{m[0]}]({classes[m[1]]}.md)" if m[1] in classes else m[0], text)
    return re.sub(r"`(?:posenc\.)?functional\.(\w+)`", r"[`functional.\1`][posenc.functional.\1]", text)


def _cost(name: str) -> str:
    """What it learns and caches, and how its attention is computed, in a model of some size, as a list."""
    cls, images = ENCODINGS[name], has_grid(name)
    shape, found = _shape(name), explained(name)
    encoding, deeper = (posenc.create(NEEDED.get(name, name), num_layers=layers, **shape) for layers in (1, 2))
    numbers, more = (sum(each.numel() for each in made.parameters()) for made in (encoding, deeper))
    learned = [
        f"{x:,} {words}" for x, words in ((2 * numbers - more, "shared"), (more - numbers, "in each layer")) if x
    ]
    encoding.share([(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512))])
    gates = gates_of(encoding, torch.zeros(1, COUNT, 512)) if "gates" in cls.own_sites else ()
    cached = sum(gate.shape[1] * gate.shape[3] for gate in gates)
    lines = [
        ("learned numbers", " and ".join(learned) or "none"),
        ("numbers cached for each token and layer, beside keys and values", str(cached or "none")),
        ("how attention is computed", plain(found.reason)),
    ]
    size = "an image of 14 x 14 patches" if images else f"a text of {COUNT} tokens"
    head = (
        f"In a model with 512 channels and 8 heads, {size}, float32, on a CPU ([how attention runs](../attention.md)):"
    )
    return "\n".join([head, "", *(f"- **{name}**: {value}" for name, value in lines)])


def _shape(name: str) -> dict[str, Any]:
    """The model in which an encoding's cost is counted."""
    place: dict[str, Any] = {"grid": (SIDE, SIDE)} if has_grid(name) else {"max_positions": COUNT}
    return {"dim": 512, "num_heads": 8, "head_dim": 64, "causal": True, **place}


@cache
def explained(name: str, times: float = 1) -> Explanation:
    """How attention runs with an encoding, of a text of `times` COUNT tokens or an image of `times` SIDE rows."""
    rows = round(times * SIDE)
    count = rows * SIDE if has_grid(name) else round(times * COUNT)
    positions = posenc.Positions.grid(rows, SIDE) if has_grid(name) else posenc.Positions.arange(count, causal=True)
    place: dict[str, Any] = {"grid": (rows, SIDE)} if has_grid(name) else {"max_positions": count}
    encoding = posenc.create(NEEDED.get(name, name), num_layers=1, **{**_shape(name), **place})
    encoding.share([(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512))])
    q, k, v = torch.randn(3, 1, 8, count, 64, generator=torch.Generator().manual_seed(0))
    gates = gates_of(encoding, torch.zeros(1, count, 512)) if "gates" in encoding.sites() else None
    return posenc.explain(q, k, v, encoding, positions, gates=gates)


def _traits(cls: type[Encoding]) -> str:
    """What the class declares, and an encoding of a causal text model made of it, as a list."""
    row, made = declared()[cls.name], posenc.create(cls.name, **SHAPE)
    traits = [
        ("acts on", ", ".join(row["acts_on"]) or "nothing"),
        ("learned", "yes" if row["learned"] else "no"),
        ("past the training length, according to its source", plain(cls.extrapolates)),
        ("invariant to a shift of all positions", "yes" if made.shift_invariant else "no"),
        ("sees the order of tokens without a causal mask", "" if made.sees_order else "no"),
        ("images and video", "positions on a grid" if has_grid(cls.name) else ""),
        ("attention", "causal only" if made.causal_only else ""),
        ("cached decoding", "no: it depends on the length" if made.needs_length else ""),
        ("positions", "at most max_positions" if made.max_positions is not None else ""),
    ]
    return "\n".join(f"- **{trait}**: {value}" for trait, value in traits if value)


def _citation(cls: type[Encoding]) -> str:
    """Where its class is, and its papers as BibTeX."""
    where = f"The class: `src/{cls.__module__.replace('.', '/')}.py`."
    if not cls.papers:
        return where
    return f"{where} Cited by `posenc list --cite {cls.name}` as:\n\n```bibtex\n{posenc.cite(cls)}\n```"
