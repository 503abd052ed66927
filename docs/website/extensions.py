# SPDX-License-Identifier: Apache-2.0
"""A section for each frequency schedule and each position map, on one page of each kind: one template, filled from docstrings,
formulas, committed results and what `posenc.to_hf` writes."""

import inspect
import json
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import posenc
from posenc import frequencies
from posenc.analysis.finding import INK, PALETTE, SOFT, Picture, plot
from posenc.encodings.catalogue import entries, short
from posenc.frequencies import SCHEDULES, Frequencies
from posenc.position_maps import MAPS, PositionMap
from posenc.pretrained.methods import METHODS, Lengths
from posenc.pretrained.models import Rope
from posenc.pretrained.rope_config import scaling_parameters
from website.measured import beyond, decoding, published
from website.page import described, explorer, formulas, linked_sources, papers_of, plain, signature, table
from website.pictures import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEAD_DIM, TRAINED, FACTOR = 64, 4096, 4
"""Of the model that pages speak of."""
SHORT, LONG = 32, 128
"""Of the text in which a map is drawn: the context length, and the length of the text."""

SCHEDULE_PAGES: dict[str, tuple[str, str]] = {
    "default": ("RoPE's frequencies, unchanged", "Take it within the context length. Past it, the slow pairs reach angles that training did not show."),
    "linear": ("position interpolation (PI)", "Take it if you fine-tune: `linear` moves all neighbours closer together, and without training every token suffers. `yarn` keeps the fast pairs."),
    "ntk": ("NTK-aware scaling", "Take it for a quick test without fine-tuning, with a factor larger than you need. `yarn` reaches the full factor."),
    "ntk_old": ("NTK by the base alone", "Take it to repeat earlier results: `ntk` slows the slowest pair by the full factor, this one by less."),
    "ntk_fixed": ("NTK-RoPE-fixed", "Take it to repeat Su's comparison, or for vLLM's rope type \"ntk\". The fastest pair is slowed as well, which `ntk` avoids."),
    "ntk_mixed": ("NTK-RoPE-mixed", "Take it to repeat Su's comparison. It slows fast pairs more than `ntk_fixed`, and loses accuracy within the context length."),
    "abf": ("adjusted base frequency (ABF)", "Take it if you continue the training on long inputs: a larger base, as in Llama 2 Long and most models since. Without training, `yarn` is better."),
    "yarn": ("YaRN", "Take it to extend a pretrained model that other programs will serve: transformers, vLLM and llama.cpp read it, and its authors use it without fine-tuning too."),
    "yarn_paper": ("YaRN as its paper states it", "Take it to repeat the paper. Programs that say YaRN compute `yarn`, whose ramp is linear in the pair's number."),
    "yarn_revised": ("revised YaRN", "Take it for models that PoSE fine-tuned. Others take `yarn`."),
    "mrrope": ("MrRoPE", "Take it in place of `yarn` where only posenc and transformers have to load the model; on small models the two do not differ."),
    "llama3": ("Llama 3's scaling", "Take it for Llama 3.1 and models trained with it. To extend another model, `yarn` also scales the scores."),
    "dynamic": ("dynamic NTK", "Take it where most texts are short: within the context length nothing changes. The length is fixed before the first token is cached."),
    "longrope": ("LongRoPE", "Take it for models that come with its factors, such as Phi-3. For other models a search has to find them; `posenc.extend(model, \"fit\")` learns factors on a text."),
    "proportional": ("p-RoPE", "Take it in a model that you train from the start and that should compare content at any distance, as Gemma 4 does: the slow pairs do not rotate."),
    "tapered": ("clipped RoPE (CoPE) and HoPE", "Apply it to another schedule in a model that you train, so that no pair reaches an angle that training did not show."),
    "resonance": ("Resonance RoPE", "Apply it to another schedule where you fine-tune: wavelengths become integers, so that each turn repeats the angles of the last."),
    "explicit": ("frequencies given as numbers", "Take it to store the result of any schedule or search as one number for each pair."),
}  # fmt: skip
"""What each schedule is called, and when to use it."""
MAP_PAGES: dict[str, tuple[str, str]] = {
    "rerope": ("ReRoPE", "Take it for any length without training, where content of far tokens matters and their order does not. `leaky_rerope` preserves some of the order."),
    "leaky_rerope": ("Leaky ReRoPE", "Take it where the longest text is known: far tokens stay in order, at smaller steps. `rerope` needs no length."),
    "inverse_leaky": ("Inverse Leaky ReRoPE", "Take it in training on short inputs, so that the model reads long ones with plain RoPE, at RoPE's speed."),
    "self_extend": ("Self-Extend", "Take it without training up to (L - w) G + w tokens, L the context length: short distances are exact, long ones grouped."),
    "jet_long": ("Jet-Long", "Take it where short inputs must be read exactly as before: groups grow with the text. `self_extend` has one group size for all texts."),
    "dual_chunk": ("dual chunk attention (ChunkLlama)", "Take it without training, also on models that a frequency schedule has extended. On SmolLM2 it finds a passkey at 1.5 times the context length."),
    "string": ("STRING", "Take it within the context length: distances that training met rarely are replaced by shorter ones. It does not extend a model."),
    "lampe": ("LaMPE", "Take it where the length of the text is known beforehand. `leaky_rerope` does much the same with a factor."),
    "streaming": ("StreamingLLM, the first tokens and a window", "Take it for text without an end, such as a chat log: it stays fluent at any length. Tokens between the first and the recent ones are forgotten."),
    "lm_infinite": ("LM-Infinite, the first tokens and a window", "Take it for text without an end. It differs from `streaming` in the distance of the first tokens alone."),
}  # fmt: skip
"""What each map is called, and when to use it."""
TUNING = {"works without": "none needed", "needs it": "needed", "comes with it": "the model comes fine-tuned"}
"""What methods declare, as a sentence."""
NEEDED: dict[str, str] = {"abf": "abf:new_base=500000", "tapered": "yarn+tapered", "resonance": "yarn+resonance"}
"""Texts of methods that need an option, or another schedule."""
GIVEN = ("longrope", "explicit")
"""Schedules whose numbers come with a model."""
FROM_THE_START = ("proportional",)
"""Schedules to train with: they extend nothing."""

FORMULAS = json.loads((Path(frequencies.__file__).parent / "formulas.json").read_text(encoding="utf-8"))


def schedule(name: str) -> str:
    """A schedule's section."""
    return _section(name, SCHEDULE_PAGES[name], SCHEDULES[name], FORMULAS["schedules"][name], _schedule_parts(name))


def position_map(name: str) -> str:
    """A map's section."""
    return _section(name, MAP_PAGES[name], MAPS[name], FORMULAS["position_maps"][name], _map_parts(name))


SECTIONS: dict[str, tuple[Iterable[str], Callable[[str], str], str]] = {
    "schedules": (
        SCHEDULES, schedule,
        f"Drawn for a head of {HEAD_DIM} channels, base 10000, context length {TRAINED} and factor {FACTOR}. "
        "[The letters](encodings.md#symbols) are those of the encodings.",
    ),
    "maps": (
        MAPS, position_map,
        f"Drawn for a context length of {SHORT} and a text of {LONG} tokens. A configuration of transformers, vLLM or llama.cpp "
        "cannot express a map: [`posenc.to_hf`](export.md#what-a-configuration-can-express) writes the model as it was before, "
        "with an entry that `posenc.load` reads.",
    ),
}  # fmt: skip
"""What a page has where its comment stands: a section for each of these, and a sentence before them."""


def filled(text: str) -> str:
    """The page of all schedules or all maps, its table with a link to each, and their sections in place of the line of a comment."""
    for comment, (names, made_of, about) in SECTIONS.items():
        if f"<!-- {comment} -->" in text:
            sections = "\n\n".join([about.replace("encodings.md", "encodings/index.md"), *map(made_of, names)])
            line = re.compile(rf"^.*<!-- {comment} -->$", flags=re.MULTILINE)
            text = sections.join(line.split(linked(text)))
    return text


def shown(name: str) -> dict[str, str]:
    """The state of the explorer in which a schedule or a map has something to show: a text longer than training."""
    if name in MAPS:
        return {"encoding": "rope", "method": str(drawn_map(name)), "trained": str(SHORT), "length": str(LONG)}
    return {"encoding": "rope", "method": name, "length": "256"}


def linked(text: str) -> str:
    """The page of all schedules or all maps with a link to each, in the first column of its table."""
    names = "|".join([*SCHEDULES, *MAPS])
    return re.sub(rf"^\| `({names})(\(.*?\))?` \|", r"| [`\1\2`](#\1) |", text, flags=re.MULTILINE)


def _section(
    name: str, words: tuple[str, str], function: Callable[..., Any], latex: tuple[str, ...], parts: dict[str, str]
) -> str:
    title, when = words
    lead, *rest = re.split(r"\n\s*\n", inspect.cleandoc(function.__doc__ or ""))
    rest = [paragraph for paragraph in rest if not paragraph.startswith("Raises:")]
    module = function.__module__.removesuffix(".schedules")
    links = parts["links"]
    text = [
        f"### `{name}`: {title} {{#{name}}}",
        f'<span id="{function.__module__}.{function.__qualname__}"></span>',
        linked_sources(plain(" ".join(lead.split()))),
        f"{links}\n{{ .links }}" if links else "",
        described(when, {each: f"#{each}" for each in (SCHEDULES if name in SCHEDULES else MAPS)}),
        parts["measured"],
        formulas(latex),
        parts["picture"],
        signature(f"{module.removeprefix('posenc.')}.{name}", inspect.signature(function)),
        *(linked_sources(plain(" ".join(paragraph.split()))) for paragraph in rest),
        parts["loads"],
    ]
    return "\n\n".join(filter(None, text))


# ---------------------------------------------------------------- schedules


def _schedule_parts(name: str) -> dict[str, str]:
    extends = name in METHODS and name not in GIVEN
    tuning = (
        TUNING[METHODS[name].tuning]
        if extends
        else "the model is trained with it from the start"
        if name in FROM_THE_START
        else ""
    )
    models, wide = published(name), name in (*FROM_THE_START, "default")
    sentences = [
        f"**Fine-tuning**: {tuning}." if tuning else "",
        f"**Models whose configuration has it**: {', '.join(models)}." if models else "",
        beyond(name, NEEDED.get(name, name)),
    ]
    return {
        "links": explorer(shown(name), "explorer.html"),
        "measured": "\n\n".join(filter(None, sentences)),
        "picture": figures([_wavelengths(name) if wide else _stretched(name)])
        + ("\n\nThe numbers are an example; models come with theirs." if name in GIVEN else ""),
        "loads": _loads(name),
    }


def _options(name: str) -> dict[str, Any]:
    """What the pages' model gives to a schedule."""
    shape = {
        "factor": float(FACTOR),
        "original_max_positions": TRAINED,
        "length": FACTOR * TRAINED,
        "new_base": 500000.0,
    }
    options = frequencies.complete({"name": name}, **shape)
    del options["name"]
    half = [1.0] * (HEAD_DIM // 4) + [float(FACTOR)] * (HEAD_DIM // 4)
    lists = {"longrope": {"short_factor": [1.0] * (HEAD_DIM // 2), "long_factor": half}, "explicit": {"stretch": half}}
    return options | lists.get(name, {})


@cache
def made(name: str) -> Frequencies:
    """The frequencies of a schedule for the pages' model; those that are applied to another one, of YaRN's."""
    of = {"of": made("yarn")} if "of" in frequencies.options_of(name) else {}
    return frequencies.create({"name": name, **_options(name), **of}, HEAD_DIM, base=10000.0)


def _stretched(name: str) -> Picture:
    others = [each for each in ("linear", "ntk", "yarn") if each != name]
    found = {each: frequencies.stretch(made(each), HEAD_DIM) for each in (name, *others)}
    label = {"tapered": "yarn+tapered", "resonance": "yarn+resonance"}.get(name, name)
    return Picture(slower, [label, found.pop(name), found])


def _wavelengths(name: str) -> Picture:
    return Picture(turns, [name, frequencies.wavelengths(made(name)), frequencies.wavelengths(made("default"))])


@plot(
    "A pair at 1 rotates as in training, one at 4 four times slower: at 4 times the context length it reaches no new angle."
)
def slower(ax: "Axes", name: str, found: Tensor, others: dict[str, Tensor]) -> None:
    """How many times slower than in training each pair rotates, beside other schedules of the same factor."""
    for style, (other, row) in zip((":", "--", "-."), others.items(), strict=False):
        ax.plot(row, color=SOFT, linewidth=1, linestyle=style, label=other)
    ax.plot(found.clamp(max=32), color=PALETTE[0], linewidth=2.4, label=name)
    ax.set(xlabel="pair of channels, fastest first", ylabel="times slower", yscale="log")
    ax.set_yticks([1, 2, 4, 8, 16, 32] if float(found.max()) > 8 else [1, 2, 4, 8], labels=None)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.minorticks_off()
    ax.legend()


@plot("A pair above the dotted line does not finish a turn within the context length.")
def turns(ax: "Axes", name: str, found: Tensor, plain_rope: Tensor) -> None:
    """Positions per turn of each pair."""
    if name != "default":
        ax.plot(plain_rope, color=SOFT, linewidth=1, linestyle="--", label="default")
    ax.plot(found.clamp(max=1e6), color=PALETTE[0], linewidth=2.4, label=name)
    ax.axhline(TRAINED, color=INK, linewidth=1, linestyle=":", label=f"context length, {TRAINED}")
    ax.set(xlabel="pair of channels", ylabel="positions per turn", yscale="log")
    ax.legend()


def _loads(name: str) -> str:
    """Which programs load it, from what posenc writes for a Llama."""
    if name == "default":
        return "**Loaded by** every program."
    if name in GIVEN:
        return (
            "**Loaded by** transformers and vLLM, as `longrope` with these numbers as factors; llama.cpp reads them from a GGUF file of Llama, "
            "Mistral or Phi-3, which [`posenc extend --gguf`](export.md) writes."
        )
    if name in FROM_THE_START:
        rope = posenc.Rotary(HEAD_DIM).with_schedule(name, **_options(name))
        of = Rope(rope.rope_theta, HEAD_DIM, {}, TRAINED, HEAD_DIM, "half", latent=False)
        parameters = scaling_parameters(rope.frequencies(), of, TRAINED)
        return f"**Loaded by** transformers, with the `rope_parameters` of type `{parameters['rope_type']}`."
    export = _exported(name)
    written = {
        key: f"{len(value)} numbers" if isinstance(value, list) else value
        for key, value in export.rope_parameters.items()
    }
    rows = [
        ("posenc", f'`posenc.extend(model, "{NEEDED.get(name, name)}", factor={FACTOR})`'),
        ("transformers", f"`rope_parameters`: `{json.dumps(written)}`"),
        ("vLLM", _command(export.vllm)),
        ("llama.cpp", _command(export.llama_cpp)),
    ]
    about = f"**Loaded by**, of a Llama trained at {TRAINED} tokens and extended {FACTOR} times, as [`posenc.to_hf`](export.md) writes it:"
    return f"{about}\n\n{table(('program', 'how'), rows)}"


def _command(text: str) -> str:
    """A command as code, a sentence as text."""
    command, comma, note = text.partition(", of ")
    return f"`{command}`{comma}{note}" if text.startswith(("vllm", "posenc")) else plain(text)


@cache
def _exported(name: str) -> Any:
    """The report of `posenc.to_hf` on a small Llama extended by a method."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=64, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, head_dim=HEAD_DIM,
        max_position_embeddings=TRAINED,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posenc.extend(model, NEEDED.get(name, name), factor=FACTOR)
        export = posenc.to_hf(model, f"{folder}/longer")
    return replace(export, vllm=export.vllm.replace(f"{folder}/", ""))


# ---------------------------------------------------------------- maps


def _map_parts(name: str) -> dict[str, str]:
    made_map = drawn_map(name)
    cited = papers_of(short(entries()[key]) for key in made_map.papers)
    spec = drawn_map(name, TRAINED, FACTOR * TRAINED)
    tuning = TUNING[METHODS[name].tuning] if name in METHODS else "the model is trained with it"
    return {
        "links": " · ".join(filter(None, [*cited, explorer(shown(name), "explorer.html")])),
        "measured": "\n\n".join(filter(None, (f"**Fine-tuning**: {tuning}.", beyond(name, name), decoding(name)))),
        "picture": figures(
            [Picture(of_last, [_by_distance(made_map), str(made_map)]), Picture(of_pairs, [_relative(made_map)])]
        ),
        "loads": f'`posenc.create("rope@{spec}", head_dim={HEAD_DIM})`',
    }


def drawn_map(name: str, trained: int = SHORT, new: int = LONG) -> PositionMap:
    """A map with its usual options for these lengths."""
    if name == "inverse_leaky":
        return MAPS[name](window=trained // 4, factor=2.0 * new / trained)
    lengths = Lengths(trained, new)
    return MAPS[name](**{option: default(lengths) for option, default in METHODS[name].defaults.items()})


def _relative(made_map: PositionMap) -> Tensor:
    return made_map.relative(posenc.Positions.arange(LONG, causal=True))[0]


def _by_distance(made_map: PositionMap) -> Tensor:
    return _relative(made_map)[-1].flip(0)


@plot(
    "Where the line is level, far tokens are at one distance; where it is missing, they are hidden. No distance should be above the dotted line."
)
def of_last(ax: "Axes", found: Tensor, name: str) -> None:
    """The relative position at which the last token of a text sees each other one, by their distance."""
    ax.plot(torch.arange(len(found)), color=SOFT, linewidth=1, linestyle="--", label="rope")
    ax.plot(found, color=PALETTE[0], linewidth=2.4, label=name.partition(":")[0])
    ax.axhline(SHORT - 1, color=INK, linewidth=1, linestyle=":", label=f"context length, {SHORT}")
    ax.set(xlabel="distance, tokens back", ylabel="relative position")
    ax.legend()


@plot("Colour is the relative position of each query and key; blank pairs are hidden.", (5, 4.2))
def of_pairs(ax: "Axes", found: Tensor) -> None:
    """The relative position of every pair of tokens."""
    shown = ax.imshow(found, cmap="viridis", interpolation="nearest")
    ax.grid(False)
    ax.set(xlabel="key", ylabel="query")
    ax.figure.colorbar(shown, ax=ax)
