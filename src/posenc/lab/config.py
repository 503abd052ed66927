# SPDX-License-Identifier: Apache-2.0
"""What a comparison is, as data: frozen settings, presets, and runs whose id is the hash of their content."""

import hashlib
import json
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch

import posenc
from posenc.blocks import Host
from posenc.checks import check_fields, check_value
from posenc.encoding import Encoding
from posenc.encodings import create, lookup
from posenc.errors import InputError, flag_of
from posenc.spec import Spec, parse, source_of
from posenc.transformer import Transformer, TransformerConfig

__all__ = ["CORE", "NAIVE", "PRESETS", "Preset", "Recipe", "Run", "Settings"]


class Recipe:
    """What the settings of every task have in common: a frozen dataclass of each task adds what is its own, see
    `posenc.lab.task`.

    steps, batch_size. dim, num_layers, num_heads, head_dim: the host model; head_dim None is dim / num_heads.
    learning_rate: of Muon, for the matrices of the host; adamw_learning_rate: for embedding, norms and classes;
    position_learning_rate: for an encoding's own tables, which see less signal than the rest.

    LEAST, MOST: what may be said, by name; no comparison of small models comes near the limits above. tokens_by: the
    setting that says how long an example is.
    """

    task: ClassVar[str]
    tokens_by: ClassVar[str]
    LEAST: ClassVar[dict[str, int]] = {"steps": 1, "batch_size": 1, "dim": 2, "num_layers": 1, "num_heads": 1}
    MOST: ClassVar[dict[str, int]] = {
        "steps": 10**8, "batch_size": 2**20, "dim": 2**16, "num_layers": 1000, "num_heads": 4096, "head_dim": 2**14,
    }  # fmt: skip

    steps: int
    batch_size: int
    dim: int
    num_layers: int
    num_heads: int
    head_dim: int | None
    learning_rate: float
    adamw_learning_rate: float
    position_learning_rate: float

    def __post_init__(self) -> None:
        check_fields(self)
        for name, least in self.LEAST.items():
            if getattr(self, name) < least:
                raise InputError(f"{flag_of(name)} {getattr(self, name)}: must be at least {least}")
        for name in ("learning_rate", "adamw_learning_rate", "position_learning_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{flag_of(name)} {getattr(self, name)}: must be a number above 0")
        if self.head_dim is None and self.dim % self.num_heads:
            raise InputError(
                f"--dim {self.dim}: must be a multiple of --num-heads ({self.num_heads}), or give --head-dim"
            )

    def changed(self, **values: Any) -> Self:
        """The settings with other values; a list may stand for a tuple."""
        return replace(self, **{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})  # type: ignore[type-var]

    def said(self) -> dict[str, Any]:
        """The settings as results hold them."""
        return {f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in fields(self)}  # type: ignore[arg-type]

    @property
    def conditions(self) -> tuple[int, ...]:
        """What the trained models are tested under, in order, each by a number."""
        raise NotImplementedError

    @property
    def trained_at(self) -> int:
        """The condition that is that of training."""
        raise NotImplementedError

    @property
    def examples(self) -> int:
        """Held-out examples, the same under every condition."""
        raise NotImplementedError

    @property
    def bins(self) -> bool:
        """Whether an example is scored by position too."""
        return False

    @property
    def also(self) -> dict[str, tuple[int, ...]]:
        """What is measured of every example beside its loss: name -> conditions."""
        return {}

    @property
    def tokens(self) -> int:
        """Of one example in training."""
        return self.tokens_at(self.trained_at)

    def tokens_at(self, condition: int) -> int:
        """Of one example under a condition."""
        raise NotImplementedError

    def size_at(self, condition: int) -> int:
        """What a reader calls a condition: the length of a text, the side of an image."""
        raise NotImplementedError

    @property
    def tested_tokens(self) -> int:
        """Of all that one arm reads in its test."""
        return self.examples * sum(map(self.tokens_at, self.conditions))

    @property
    def rows(self) -> int:
        """Of the embedding's matrix."""
        raise NotImplementedError

    def check_largest(self) -> None:
        """Refuse conditions that are beyond what any comparison needs."""

    def check_shards(self, shards: int) -> None:
        """Refuse what so many processes cannot divide a sequence of."""
        raise NotImplementedError

    def make_encoding(self, name: str) -> Encoding:
        """An encoding for the host."""
        raise NotImplementedError

    def make_model(self, encoding: Encoding) -> Host:
        """The untrained host."""
        raise NotImplementedError

    def create(self, name: str, **places: Any) -> Encoding:
        """An encoding in the host's shape; a learned table gives what lies past it its edge, unless its name says otherwise.

        places: where tokens are in training, as `posenc.create` takes it.
        """
        return create(
            parse(name).replaced(_clamped),
            dim=self.dim, num_heads=self.num_heads, head_dim=self.head_dim, num_kv_heads=self.num_heads,
            num_layers=self.num_layers, **places,
        )  # fmt: skip


def _clamped(term: Spec) -> Spec:
    """An encoding with beyond=clamp, if it has that option and the text leaves it open."""
    if "beyond" in dict(term.options) or "beyond" not in lookup(term.name).arguments():
        return term
    return replace(term, options=(*term.options, ("beyond", "clamp")))


@dataclass(frozen=True)
class Settings(Recipe):
    """Everything that the runs of one comparison of text share.

    length: tokens of a training sequence. factors: test lengths over `length`; the first is 1. windows: held-out passages;
    targets: the tokens at their end that are scored. tokenizer: "bytes", "bpe:N" or a Hugging Face tokenizer, with
    vocab_size ids; packed: whole documents fill a training sequence, each at positions of its own. The text has to be
    loaded with the same three. The rest: see `Recipe`.
    """

    length: int = 128
    factors: tuple[int, ...] = (1, 2, 4, 8)
    steps: int = 120
    batch_size: int = 12
    dim: int = 128
    num_layers: int = 2
    num_heads: int = 4
    head_dim: int | None = 48
    learning_rate: float = 0.05
    adamw_learning_rate: float = 0.01
    position_learning_rate: float = 0.05
    windows: int = 24
    targets: int = 64
    tokenizer: str = "bytes"
    vocab_size: int = 256
    packed: bool = False

    task = "text"
    tokens_by = "length"
    LEAST = {"length": 8, **Recipe.LEAST, "windows": 2, "vocab_size": 1}
    MOST = {"length": 2**20, **Recipe.MOST, "windows": 10**6}

    def __post_init__(self) -> None:
        super().__post_init__()
        for factor in self.factors:
            check_value("factors", factor, int)
        if not self.factors or self.factors[0] != 1 or list(self.factors) != sorted(set(self.factors)):
            raise InputError(f"--factors {' '.join(map(str, self.factors))}: start at 1 and grow, as in 1 2 4 8")
        if not 1 <= self.targets <= self.length:
            raise InputError(f"--targets {self.targets}: must lie between 1 and --length ({self.length})")
        if not self.tokenizer.strip():
            raise InputError("--tokenizer '': give bytes, bpe:4096, or the name or folder of a Hugging Face tokenizer")
        if self.tokenizer == "bytes" and self.vocab_size != 256:
            raise InputError(f"vocab_size={self.vocab_size}: bytes have 256 values")

    @property
    def unit(self) -> str:
        """What a token is called."""
        return unit(self.tokenizer)

    @property
    def longest(self) -> int:
        """The longest test length."""
        return self.length * self.factors[-1]

    @property
    def conditions(self) -> tuple[int, ...]:
        return self.factors

    @property
    def trained_at(self) -> int:
        return 1

    @property
    def examples(self) -> int:
        return self.windows

    @property
    def bins(self) -> bool:
        return True

    def tokens_at(self, condition: int) -> int:
        return self.length * condition

    def size_at(self, condition: int) -> int:
        return self.length * condition

    @property
    def rows(self) -> int:
        return self.vocab_size

    def check_largest(self) -> None:
        if self.longest > self.MOST["length"]:
            raise InputError(f"--factors {self.factors[-1]}: times --length it must be at most {self.MOST['length']}")

    def check_shards(self, shards: int) -> None:
        if shards > 1 and self.length % (2 * shards):
            raise InputError(
                f"--length {self.length}: --sequence-shards {shards} cut it into {2 * shards} equal parts, two "
                f"for each process; give a multiple of {2 * shards}"
            )

    def model(self) -> TransformerConfig:
        return TransformerConfig(self.vocab_size, self.dim, self.num_layers, self.num_heads, head_dim=self.head_dim)

    def make_model(self, encoding: Encoding) -> Transformer:
        return Transformer(self.model(), encoding)

    def make_encoding(self, name: str) -> Encoding:
        return self.create(name, max_positions=self.length, causal=True)


def unit(tokenizer: str) -> str:
    """What a token of a tokenizer is called."""
    return "byte" if tokenizer == "bytes" else "token"


@dataclass(frozen=True)
class Run:
    """One model to train and test: an encoding and a seed under shared settings, on data known by its digest; code is that of
    the encoding's file, where it is not posenc's."""

    encoding: str
    seed: int
    settings: Recipe
    data: str
    code: str = ""

    @classmethod
    def of(cls, encoding: str, seed: int, settings: Recipe, data: str) -> "Run":
        """A run of an encoding as its file is now."""
        return cls(encoding, seed, settings, data, _digest(encoding))

    @property
    def id(self) -> str:
        """Hash of the content and of the library versions: equal ids give equal numbers on one machine."""
        content = {"encoding": self.encoding, "seed": self.seed, "data": self.data, "task": self.settings.task}
        content |= {"settings": self.settings.said(), "posenc": posenc.__version__, "torch": torch.__version__}
        content |= {"code": self.code} if self.code else {}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def make_encoding(self) -> Encoding:
        """The encoding for the host."""
        return self.settings.make_encoding(self.encoding)


@dataclass(frozen=True)
class Preset:
    """A named size of comparison."""

    settings: Recipe
    encodings: tuple[str, ...]
    seeds: int


CORE = ("none", "sinusoidal", "learned", "rope", "t5", "alibi")
NAIVE = ("normalized", "integer", "binary")

PRESETS = {
    "quick": Preset(Settings(steps=60), ("none", "sinusoidal", "rope", "alibi"), 2),
    "standard": Preset(Settings(), CORE, 4),
    "thorough": Preset(Settings(steps=500, num_layers=4, windows=96), (*CORE, *NAIVE), 5),
}


def _digest(encoding: str) -> str:
    """Of the files that hold the classes in an encoding's text, as they are now; "" where it names none."""
    files = [source_of(term.name) for term in parse(encoding).terms if ":" in term.name]
    return hashlib.sha256(b"".join(files)).hexdigest()[:16] if files else ""
