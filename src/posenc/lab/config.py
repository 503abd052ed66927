"""What a comparison is, as data: frozen settings, presets, and runs whose id is the hash of their content."""

import hashlib
import json
from dataclasses import asdict, dataclass

import torch

import posenc
from posenc.checks import check_fields, check_value
from posenc.encoding import Encoding
from posenc.encodings import create, lookup
from posenc.errors import InputError
from posenc.texts import split
from posenc.transformer import TransformerConfig


@dataclass(frozen=True)
class Settings:
    """Everything that the runs of one comparison share.

    length: tokens of a training sequence. factors: test lengths over `length`; the first is 1. steps, batch_size.
    dim, num_layers, num_heads, head_dim: the host model; head_dim None is dim / num_heads. learning_rate: of Muon,
    for the matrices of the host; adamw_learning_rate: for embedding and norms; position_learning_rate: for an
    encoding's own tables, which see less signal than the rest. windows: held-out passages; targets: the tokens at
    their end that are scored. tokenizer: "bytes", "bpe:N" or a Hugging Face tokenizer, with vocab_size ids; packed:
    whole documents fill a training sequence, each at positions of its own. The text has to be loaded with the same three.
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

    def __post_init__(self) -> None:
        check_fields(self)
        for factor in self.factors:
            check_value("factors", factor, int)
        small = {"length": 8, "steps": 1, "batch_size": 1, "dim": 2, "num_layers": 1, "num_heads": 1, "windows": 2,
                 "vocab_size": 1}  # fmt: skip
        for name, least in small.items():
            if getattr(self, name) < least:
                raise InputError(f"{_flag(name)} {getattr(self, name)}: must be at least {least}")
        if not self.factors or self.factors[0] != 1 or list(self.factors) != sorted(set(self.factors)):
            raise InputError(f"--factors {' '.join(map(str, self.factors))}: start at 1 and grow, as in 1 2 4 8")
        if not 1 <= self.targets <= self.length:
            raise InputError(f"--targets {self.targets}: must lie between 1 and --length ({self.length})")
        for name in ("learning_rate", "adamw_learning_rate", "position_learning_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{_flag(name)} {getattr(self, name)}: must be a number above 0")
        if self.head_dim is None and self.dim % self.num_heads:
            raise InputError(
                f"--dim {self.dim}: must be a multiple of --num-heads ({self.num_heads}), or give --head-dim"
            )

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

    def model(self) -> TransformerConfig:
        return TransformerConfig(self.vocab_size, self.dim, self.num_layers, self.num_heads, head_dim=self.head_dim)


def unit(tokenizer: str) -> str:
    """What a token of a tokenizer is called."""
    return "byte" if tokenizer == "bytes" else "token"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Run:
    """One model to train and test: an encoding and a seed under shared settings, on data known by its digest."""

    encoding: str
    seed: int
    settings: Settings
    data: str

    @property
    def id(self) -> str:
        """Hash of the content and of the library versions: equal ids give equal numbers on one machine."""
        content = asdict(self) | {"posenc": posenc.__version__, "torch": torch.__version__}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def make_encoding(self) -> Encoding:
        """The encoding for the host. A learned table gives positions past the training length its last row, since
        it has no other."""
        s = self.settings
        return create(
            "/".join("+".join(map(_clamped, split(layer))) for layer in self.encoding.split("/")),
            dim=s.dim, num_heads=s.num_heads, head_dim=s.head_dim, num_layers=s.num_layers, max_positions=s.length,
            causal=True,
        )  # fmt: skip


def _clamped(part: str) -> str:
    """An encoding's text, told what to do past its table unless it says so itself."""
    text, mapped, of_map = part.partition("@")
    cls = lookup(text.split(":")[0].strip())
    text += ":beyond=clamp" if "beyond" in cls.arguments() and "beyond=" not in text else ""
    return text + mapped + of_map


@dataclass(frozen=True)
class Preset:
    """A named size of comparison."""

    settings: Settings
    encodings: tuple[str, ...]
    seeds: int


CORE = ("none", "sinusoidal", "learned", "rope", "t5", "alibi")
NAIVE = ("normalized", "integer", "binary")

PRESETS = {
    "quick": Preset(Settings(steps=60), ("none", "sinusoidal", "rope", "alibi"), 2),
    "standard": Preset(Settings(), CORE, 4),
    "thorough": Preset(Settings(steps=500, num_layers=4, windows=96), (*CORE, *NAIVE), 5),
}
