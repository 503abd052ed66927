# SPDX-License-Identifier: Apache-2.0
"""A page for each encoding, made of what its class declares and says, and the overview of all."""

import inspect
import re
from collections.abc import Callable
from functools import cache
from textwrap import indent
from typing import Any

import torch

import posenc
from posenc.encoding import Encoding, gates_of
from posenc.encodings import ENCODINGS
from posenc.encodings.catalogue import SHAPE, rows
from posenc.spec import parse
from website.measured import accuracy, beside, chapters, mentions, parity, speed
from website.page import Page, described, explorer, formula, formulas, papers_of, plain, signature, table
from website.pictures import figures, has_grid, of_input, pictures, says
from website.snippets import NEEDED, snippet
from website.trained import OF_IMAGES

FAMILIES = {
    "On the input": "The encoding is combined with each token's vector before the first layer.",
    "On queries and keys": "Queries and keys are transformed by their positions before their product.",
    "On the scores": "A bias is added to the score of each query and key, or the score is another product of them.",
    "On the values": "Values are transformed by their positions, and the output by that of its query.",
    "On the keys": "Fewer tokens are visible to a query, or more keys than those of the tokens.",
    "On positions": "Positions are changed in training, for use with any other encoding.",
    "On the softmax": "The softmax's denominator or temperature depends on position or length, or something else takes its place.",
}
"""Where an encoding acts, and what that means."""
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
PAGES = {name: f"{name}.md" for name in ENCODINGS}
TITLES = {
    "none": "no positional encoding (NoPE)", "normalized": "position scaled to 0 .. 1", "integer": "the position itself",
    "binary": "binary digits", "sinusoidal": "sinusoidal encoding, sines and cosines", "learned": "learned position embeddings",
    "hierarchical": "extended learned table", "multiplicative": "multiplied position", "complex_order": "complex word order",
    "axial_table": "axial learned table", "grid_table": "learned 2D table of patches", "grid_sinusoidal": "2D sinusoidal encoding",
    "floater": "FLOATER, a neural ODE", "rope": "rotary position embedding (RoPE)", "p_rope": "partial RoPE (p-RoPE)",
    "decoupled_rope": "decoupled RoPE of latent attention", "xpos": "xPos, RoPE with decay", "head_rope": "RoPE by head",
    "learned_rope": "RoPE with learned frequencies", "fope": "Fourier position embedding", "rope_pp": "RoPE++",
    "axial_rope": "axial RoPE, 2D RoPE", "m_rope": "multimodal RoPE (M-RoPE)", "mixed_rope": "mixed 2D RoPE",
    "liere": "LieRE, learned rotations", "comrope": "ComRoPE, commuting rotations", "cayley_string": "Cayley-STRING",
    "pope": "PoPE, polar coordinates", "selective_rope": "Selective RoPE", "mamba3_rope": "the rotation of Mamba-3",
    "carope": "context-aware RoPE", "rove": "rotated values", "shaw": "Shaw's relative position vectors",
    "transformer_xl": "Transformer-XL's relative scores", "xlnet": "XLNet's relative scores", "tupe": "untied positions (TUPE-A)",
    "tupe_r": "untied positions with T5's bias (TUPE-R)", "deberta": "disentangled attention (DeBERTa)",
    "deberta_v2": "disentangled attention (DeBERTa v2, v3)", "projected_relative": "projected relative bias",
    "grape_a": "GRAPE, ALiBi gated by keys", "dape": "DAPE, bias adapted to content",
    "selective_attention": "selective attention", "wall": "decay by channel", "path": "PaTH, Householder products",
    "t5": "T5's relative position bias", "sines": "learned sine bias", "alibi": "attention with linear biases (ALiBi)",
    "kerple": "KERPLE, learned decay", "sandwich": "Sandwich, products of sines",
    "fire": "FIRE, a learned function of distance", "cope": "contextual position (CoPE)", "fox": "forget gates (FoX)",
    "swin": "Swin's relative position bias", "beit": "BEiT's relative position bias", "swin_v2": "Swin v2's continuous position bias",
    "grid_alibi": "2D ALiBi", "shape": "shifted positions (SHAPE)", "cape": "continuous augmented positions (CAPE)",
    "randomized": "randomized positions", "pose": "skipped positions (PoSE)", "softmax_n": "attention sink without a token (softmax_1)",
    "sink": "learned attention sink", "log_n": "log-n scaling", "temperature": "attention temperature",
    "step_temperature": "temperature in steps", "stick_breaking": "stick-breaking attention",
    "window": "sliding window", "chunks": "chunked attention", "prefix_kv": "learned prefix of keys and values",
    "rope_nope": "RoPE, some layers without positions", "local_nope": "RoPE in windows, some layers without positions",
    "irope": "RoPE in chunks, some layers without positions", "local_rope": "RoPE in windows, some layers without",
    "local_p_rope": "RoPE in windows, some layers with partial RoPE", "partial_rope": "RoPE on a quarter of the channels",
}  # fmt: skip
"""What each encoding and pattern of layers is called."""


def pages(wanted: Callable[[str], bool] = lambda path: True) -> list[Page]:
    """The overview, and every encoding's page by family. wanted: whether the page at a path is."""
    order = list(FAMILIES)
    names = sorted(ENCODINGS, key=lambda name: order.index(family(ENCODINGS[name])))
    return [_overview(), *(_page(name) for name in names if wanted(f"encodings/{name}"))]


def titled(text: str) -> str:
    """What an encoding's text is called: of a sum, its parts."""
    return " + ".join(TITLES[term.name] for term in parse(text).terms)


def family(cls: type[Encoding]) -> str:
    """Which of the families an encoding belongs to; one that acts nowhere is with those of the input."""
    sites = cls.sites()
    if "augment" in sites:
        return "On positions"
    if "restrict" in sites or "prefix_kv" in sites:
        return "On the keys"
    if "sink" in sites or "modify" in sites or cls.rotates_last:
        return "On the softmax"
    if "embed" in sites or not sites:
        return "On the input"
    if sites == ("rotate_values",):
        return "On the values"
    return "On the scores" if {"bias", "scores"} & set(sites) else "On queries and keys"


def linked(text: str) -> str:
    """The conformance page with a link to each encoding's own."""
    names = "|".join(ENCODINGS)
    return re.sub(rf"^\| `({names})` \|", r"| [`\1`](../encodings/\1.md) |", text, flags=re.MULTILINE)


@cache
def declared() -> dict[str, dict[str, Any]]:
    """What `posenc list` knows of each encoding."""
    return {row["name"]: row for row in rows()}


def _overview() -> Page:
    known = declared()
    parts = [
        "# The encodings",
        f"{len(known)} encodings, by where they act. Each page has the formula, a picture, measurements, code that runs, "
        "and the source. Sums and different encodings per layer are created by "
        "[`posenc.create`](../reference/posenc.md). [The checks that each passes](../benchmarks/encodings.md) are in one table.",
    ]
    for title, about in FAMILIES.items():
        own = [row for name, row in known.items() if family(ENCODINGS[name]) == title]
        cells = [
            (f"[`{row['name']}`]({row['name']}.md)", plain(row["summary"].rstrip(".")), "yes" if row["learned"] else "no",
             plain(row["extrapolates"]))
            for row in own
        ]  # fmt: skip
        parts += [
            f"## {title}",
            about,
            table(("name", "what it is", "learned", "past the training length, according to its source"), cells),
        ]
    symbols = table(("symbol", "meaning"), ((formula(latex), meaning) for latex, meaning in SYMBOLS.items()))
    return Page(
        "encodings/index.md",
        "Encodings",
        "\n\n".join(
            [*parts, "## Symbols", symbols, "Other letters are arguments of the class, by their first letter.", ""]
        ),
    )


def _page(name: str) -> Page:
    cls = ENCODINGS[name]
    lead, rest = _said(cls)
    links = [
        *papers_of(declared()[name]["papers"]),
        *chapters(name),
        explorer({"encoding": "t5:shows=trained" if name == "t5" else name}),
    ]
    links += [f"[API][{cls.__module__}.{cls.__qualname__}]", "[Source code](#source-code)"]
    parts = [
        f"# `{name}`: {TITLES[name]}",
        _prose(lead, cls),
        " · ".join(filter(None, links)) + "\n{ .links }",
        "## When to use it",
        described(cls.use_when, PAGES),
        _models(cls),
        *beside(name, re.findall(r"`(\w+)`", cls.use_when)),
        *accuracy(name),
        "## Formula",
        formulas(cls.formula),
        "[Symbols](index.md#symbols).",
        "## Picture",
        figures(pictures(name)),
        _shown(name),
        f"More pictures: `posenc analyze {name}` ([description](../analyze.md)).",
        "## What it does",
        signature(f"posenc.{cls.__name__}", inspect.Signature(list(cls.arguments().values()))),
        *(_prose(paragraph, cls) for paragraph in rest),
        _traits(cls),
        *mentions(name, cls),
        "## Cost",
        _cost(name),
        *speed(name),
        "## Code",
        f"```python\n{snippet(name)}```",
        "## What holds",
        f"Equal to {plain(cls.equal_to)}, up to rounding." if cls.equal_to != "the formula" else "",
        parity(name),
        "## Source code",
        _source(cls),
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    about = f"{TITLES[name]}: {' '.join(lead.split())}"
    return Page(f"encodings/{name}.md", name, text, family(cls), about)


def _models(cls: type[Encoding]) -> str:
    """The models of transformers that use it: those with which it is compared."""
    found = [part.strip().removeprefix("transformers' ") for part in cls.equal_to.split(";")]
    models = [part for part, equal in zip(found, cls.equal_to.split(";"), strict=True) if "transformers'" in equal]
    return f"**Models that use it**, as in transformers: {plain(', '.join(models))}." if models else ""


def _shown(name: str) -> str:
    """What the picture shows of an encoding that learns."""
    if learned := says(name):
        text = "the model of `posenc compare`, seed 0, 120 steps at 128 bytes of English text"
        images = "the model of `posenc compare --task vision`, seed 0, 140 steps on images of 8 x 8 patches"
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
    """What it learns and caches, and the memory of attention with it, in a model of some size, as a list."""
    cls, images, count = ENCODINGS[name], has_grid(name), 2048
    shape: dict[str, Any] = {"dim": 512, "num_heads": 8, "head_dim": 64, "causal": True, "max_positions": count}
    if images:
        count = 14 * 14
        shape |= {"max_positions": None, "grid": (14, 14)}
    encoding, deeper = (posenc.create(NEEDED.get(name, name), num_layers=layers, **shape) for layers in (1, 2))
    numbers, more = (sum(each.numel() for each in made.parameters()) for made in (encoding, deeper))
    learned = [
        f"{x:,} {words}" for x, words in ((2 * numbers - more, "shared"), (more - numbers, "in each layer")) if x
    ]
    positions = posenc.Positions.grid(14, 14) if images else posenc.Positions.arange(count, causal=True)
    encoding.share([(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512))])
    q, k, v = torch.randn(3, 1, 8, count, 64, generator=torch.Generator().manual_seed(0))
    gates = gates_of(encoding, torch.zeros(1, count, 512)) if "gates" in cls.sites() else ()
    cached = sum(gate.shape[1] * gate.shape[3] for gate in gates)
    explained = posenc.explain(q, k, v, encoding, positions, gates=gates or None)
    memory = (
        f"{explained.extra_bytes / 2**20:.1f} MiB beside queries, keys, values and output"
        if explained.extra_bytes
        else "none"
    )
    lines = [
        ("learned numbers", " and ".join(learned) or "none"),
        ("numbers cached for each token and layer, beside keys and values", str(cached or "none")),
        ("memory of attention, forward", f"{memory} ({plain(explained.reason)})"),
    ]
    size = "an image of 14 x 14 patches" if images else f"a text of {count} tokens"
    head = (
        f"In a model with 512 channels and 8 heads, {size}, float32, on a CPU ([how attention runs](../attention.md)):"
    )
    return "\n".join([head, "", *(f"- **{name}**: {value}" for name, value in lines)])


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


def _source(cls: type[Encoding]) -> str:
    """Its class, and its papers as BibTeX."""
    code = inspect.getsource(cls)
    path = cls.__module__.replace(".", "/")
    parts = [
        f'??? note "src/{path}.py: {cls.__name__}, {len(code.splitlines())} lines"\n\n'
        + indent(f"```python\n{code.rstrip()}\n```", "    ")
    ]
    if cls.papers:
        parts += [f"Cited by `posenc cite {cls.name}` as:", f"```bibtex\n{posenc.cite(cls)}\n```"]
    return "\n\n".join(parts)
