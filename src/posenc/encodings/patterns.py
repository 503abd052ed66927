# SPDX-License-Identifier: Apache-2.0
"""Patterns of layers by name: encodings that take turns, as models of recent years have them."""

from collections.abc import Callable, Container
from dataclasses import dataclass
from inspect import signature
from typing import Any

from posenc.errors import InputError, check_integers, check_numbers, check_positive
from posenc.spec import MOST_LAYERS, EncodingSpec, Spec, check_layers, check_options, parse

PATTERNS: dict[str, "Pattern"] = {}
"""Every pattern by name."""


@dataclass(frozen=True)
class Pattern:
    """A name for an encoding's text. title: what it is called. text: makes it of options. models: that have the pattern. papers:
    keys of papers.bib."""

    title: str
    text: Callable[..., str]
    models: str
    papers: tuple[str, ...]

    @property
    def options(self) -> tuple[str, ...]:
        """Names of what `text` takes."""
        return tuple(signature(self.text).parameters)


def _pattern(title: str, models: str, *papers: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    def register(text: Callable[..., str]) -> Callable[..., str]:
        PATTERNS[text.__name__] = Pattern(title, text, models, papers)
        return text

    return register


def _turns(most: str, every: int, last: str) -> str:
    """`most` in all layers but each `every`-th, which has `last`."""
    check_integers(2, every=every)
    if every > MOST_LAYERS:
        raise InputError(f"write at most {MOST_LAYERS} layers", every=every)
    return "/".join([most] * (every - 1) + [last])


def _local(window: int, rope_theta: float) -> str:
    check_integers(1, window=window)
    return f"{_rope(rope_theta)}+window:before={window - 1}"


def _rope(rope_theta: float) -> str:
    check_positive(rope_theta=rope_theta)
    return f"rope:rope_theta={rope_theta}"


@_pattern("RoPE, some layers without positions", "SmolLM3", "yang2025rope")
def rope_nope(every: int = 4, rope_theta: float = 10000.0) -> str:
    """RoPE, and no position in every fourth layer.

    every: how many layers a turn has. rope_theta: RoPE's base; SmolLM3 has 5000000. Source: Yang et al. 2025.
    """
    return _turns(_rope(rope_theta), every, "none")


@_pattern(
    "RoPE in windows, some layers without positions", "Command R7B, Command A, EXAONE 4.0 32B, SWAN-GPT", "yang2025rope",
    "puvvada2025swan",
)  # fmt: skip
def local_nope(window: int = 4096, every: int = 4, rope_theta: float = 10000.0) -> str:
    """RoPE in a sliding window, and no position and no window in every fourth layer (RNoPE-SWA).

    window: tokens that a query sees, itself among them. every, rope_theta: as in rope_nope. Sources: Yang et al. 2025;
    Puvvada et al. 2025, who also scale scores at inference.
    """
    return _turns(_local(window, rope_theta), every, "none")


@_pattern("RoPE in chunks, some layers without positions", "Llama 4", "meta2025llama4")
def irope(chunk: int = 8192, every: int = 4, rope_theta: float = 500000.0) -> str:
    """RoPE within chunks, and in every fourth layer no position, no chunks and a temperature that grows in steps (iRoPE).

    chunk: tokens of a chunk, and of a step of the temperature. every, rope_theta: as in rope_nope. Sources: Meta 2025;
    transformers, llama4.
    """
    check_integers(1, chunk=chunk)
    return _turns(f"{_rope(rope_theta)}+chunks:size={chunk}", every, f"step_temperature:train_length={chunk}")


@_pattern(
    "RoPE in windows, some layers without",
    "Gemma 3, Gemma 2 (every=2), OLMo 3 (every=4), gpt-oss (every=2)",
    "gemma2025gemma3",
)
def local_rope(window: int = 1024, every: int = 6, rope_theta: float = 1000000.0, local_theta: float = 10000.0) -> str:
    """RoPE in a sliding window, and RoPE of a larger base without a window in every sixth layer.

    window: tokens that a query sees, itself among them. every: how many layers a turn has. rope_theta, local_theta: bases
    without and with a window; the models other than Gemma 3 have one base. Source: Gemma Team 2025; transformers, gemma3.
    """
    return _turns(_local(window, local_theta), every, _rope(rope_theta))


@_pattern("RoPE in windows, some layers with partial RoPE", "Gemma 4", "barbero2024round")
def local_p_rope(
    window: int = 1024,
    every: int = 6,
    rope_theta: float = 1000000.0,
    local_theta: float = 10000.0,
    fraction: float = 0.25,
) -> str:
    """RoPE in a sliding window, and in every sixth layer, without a window, only the fastest frequencies of a larger base.

    fraction: of the pairs, which rotate without a window (`p_rope`); other options as in local_rope. Gemma 4's heads are
    twice as wide in the layers without a window, and all of them 512 or 1024 tokens. Source: transformers, gemma4; Barbero
    et al. 2024.
    """
    check_numbers(0, 1, fraction=fraction)
    wide = f"p_rope:rope_theta={rope_theta}:fraction={float(fraction)}"
    check_positive(rope_theta=rope_theta)
    return _turns(_local(window, local_theta), every, wide)


@_pattern(
    "RoPE on a quarter of the channels", "GPT-NeoX, Pythia, StableLM; Qwen3-Next and Qwen3.5 in their layers with attention",
    "black2022gptneox",
)  # fmt: skip
def partial_rope(fraction: float = 0.25, rope_theta: float = 10000.0) -> str:
    """RoPE on a quarter of each head's channels, in every layer.

    fraction: of the channels, the first ones, with frequencies spread over these. Source: Black et al. 2022; transformers, gpt_neox.
    """
    check_numbers(0, 1, fraction=fraction)
    return f"{_rope(rope_theta)}:rotary_dim={float(fraction)}"


def read(text: str | EncodingSpec, classes: Container[str] = ()) -> EncodingSpec:
    """The tree of an encoding's text, its patterns replaced by what they stand for: in a sum, the other terms are added to
    each of a pattern's layers. classes: names that are not patterns' here."""
    spec = parse(text) if isinstance(text, str) else text
    layers: list[tuple[Spec, ...]] = []
    for terms in spec.layers:
        layers += _expanded(terms, classes)
        check_layers(str(text), len(layers))
    return EncodingSpec(tuple(layers))


def patterns_of(text: str) -> list[Pattern]:
    """The patterns that a text names."""
    return [PATTERNS[term.name] for term in parse(text).terms if term.name in PATTERNS]


def _expanded(terms: tuple[Spec, ...], classes: Container[str]) -> tuple[tuple[Spec, ...], ...]:
    numbers = [n for n, term in enumerate(terms) if term.name in PATTERNS and term.name not in classes]
    if not numbers:
        return (terms,)
    if len(numbers) > 1:
        raise InputError(f"{'+'.join(map(str, terms))!r} adds patterns of layers: add encodings to one of them")
    before, term, after = terms[: numbers[0]], terms[numbers[0]], terms[numbers[0] + 1 :]
    if term.map is not None:
        raise InputError(f"{str(term)!r}: a position map is for one encoding; write the layers, {_written(term)}")
    return tuple((*before, *layer, *after) for layer in parse(_written(term)).layers)


def _written(term: Spec) -> str:
    """The text that a pattern with its options stands for."""
    pattern = PATTERNS[term.name]
    options: dict[str, Any] = term.values(term.name, pattern.options)
    check_options(term.name, options, pattern.options, pattern.text)
    return pattern.text(**options)
