# SPDX-License-Identifier: Apache-2.0
"""What a comparison is, as data: experiments, presets, and runs."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, cast

import torch
from torch import Tensor, nn

from posenc.encoding import Encoding
from posenc.encodings import create
from posenc.encodings.create_encoding import lookup
from posenc.encodings.patterns import read
from posenc.errors import InputError, check_fields, check_value
from posenc.lab.machine import check_present
from posenc.lab.records import Aggregate
from posenc.lab.statistics import Estimate
from posenc.lab.store import identity
from posenc.lab.transformer import Transformer, TransformerBase, TransformerConfig
from posenc.lab.user_code import source_of
from posenc.spec import Spec

__all__ = ["Criterion", "Dataset", "Execution", "Experiment", "Preset", "Run", "Scores", "Variant"]


MOST_WEIGHTS, MOST_TOKENS = 10**9, 2**23
"""Of a model that is compared, and of one of its training steps."""


class Dataset(Protocol):
    """Data to train on and some that is held out. digest: equal for equal data."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def train(self) -> Any: ...
    @property
    def test(self) -> Any: ...

    def facts(self) -> dict[str, object]:
        """The data, as results.json describes them."""


@dataclass(frozen=True)
class Variant:
    """One way to use a trained model: its name, and the encoding that it takes under a condition."""

    name: str
    at: Callable[[int], Encoding]
    trained: bool = True


@dataclass(frozen=True, eq=False)
class Scores:
    """What one variant scored. paired: condition -> (examples,) loss in nats. extra: what else is measured -> condition ->
    (examples,)."""

    paired: dict[int, Tensor]
    extra: dict[str, dict[int, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Criterion:
    """How the results of an experiment are ranked and written.

    key: what ranks the variants: "loss" in nats, or a share in `Scores.extra`, of which more is better. tolerance: a difference
    that does not matter: a variant holds while the change for the worse stays below it (upper end of the interval), and is near
    the best within it. undertrained: a variant this far behind
    the best at the condition of training has learned too little for a flat curve to count. points, condition, size: keys of
    results.json, of the list with one row per condition, and of the condition and its size in such a row.
    """

    key: str = "loss"
    tolerance: float = 0.05
    undertrained: float = 0.3
    points: str = "lengths"
    condition: str = "factor"
    size: str = "length"

    @property
    def higher_is_better(self) -> bool:
        return self.key != "loss"

    @property
    def worse(self) -> int:
        """The sign of a change for the worse."""
        return -1 if self.higher_is_better else 1

    @property
    def best(self) -> float:
        """The best possible: all right, or no loss, which no text allows."""
        return float(self.higher_is_better)

    @property
    def margin(self) -> str:
        """The tolerance in words: "0.05 nats", "5 points"."""
        return f"{100 * self.tolerance:.0f} points" if self.higher_is_better else f"{self.tolerance} nats"

    def value(self, mean: float) -> str:
        """ "1.879", or "93.1 %" of a share."""
        return f"{100 * mean:.1f} %" if self.higher_is_better else f"{mean:.3f}"

    def difference(self, e: Estimate) -> str:
        """ "+0.364 ± 0.077", or of shares in points of a hundred "−13.1 ± 2.0"."""
        scale, digits = (100, 1) if self.higher_is_better else (1, 3)
        return f"{scale * e.mean:+z.{digits}f} ± {scale * (e.high - e.low) / 2:.{digits}f}".replace("-", "−")


class Experiment(ABC):
    """A kind of comparison, of decoders that are trained at a length and tested at multiples of it: settings, as a frozen dataclass;
    data; model; and test. Tables, verdicts and sentences follow from the numbers, see `posenc.lab.results.Ranking`.

    name: of the task. presets: named sizes. data: what is read by default. data_options: how, and their defaults.
    criterion: how results are ranked and written.

    length: of training. factors: test lengths over it, of which the first is 1.
    dim, num_layers, num_heads, head_dim: the host model; head_dim None is dim / num_heads. position_learning_rate: for an
    encoding's tables, which see less signal than the rest; an encoding's projections have adamw_learning_rate.

    LEAST, MOST: limits of settings, by name. examples_by: the setting that is the number of held-out examples, if there is one.
    trained_at: the condition of training. A task with other conditions than factors defines `conditions`, `trained_at`, `tokens_at` and
    `size_at`.
    """

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, "Preset"]]
    data: ClassVar[str]
    data_options: ClassVar[Mapping[str, Any]]
    criterion: ClassVar[Criterion]
    examples_by: ClassVar[str] = ""
    LEAST: ClassVar[dict[str, int]] = {"steps": 1, "batch_size": 1, "dim": 2, "num_layers": 1, "num_heads": 1}
    MOST: ClassVar[dict[str, int]] = {
        "steps": 10**8, "batch_size": 2**20, "dim": 2**16, "num_layers": 1000, "num_heads": 4096, "head_dim": 2**14,
    }  # fmt: skip

    trained_at: ClassVar[int] = 1

    length: int
    factors: tuple[int, ...]
    steps: Annotated[int, "training steps"]
    batch_size: Annotated[int, "sequences per step"]
    dim: Annotated[int, "width of the model"]
    num_layers: Annotated[int, "layers of the model"]
    num_heads: Annotated[int, "attention heads"]
    head_dim: Annotated[int | None, "width of a head"]
    learning_rate: Annotated[float, "of Muon, for the model's matrices"]
    adamw_learning_rate: Annotated[float, "of AdamW, for embedding, norms and encodings' projections"]
    position_learning_rate: Annotated[float, "of AdamW, for an encoding's tables"]

    def __post_init__(self) -> None:
        check_fields(self)
        for name, least in self.LEAST.items():
            if getattr(self, name) < least:
                raise InputError(f"must be at least {least}", argument=name, value=getattr(self, name))
        for name in ("learning_rate", "adamw_learning_rate", "position_learning_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError("must be a number above 0", argument=name, value=getattr(self, name))
        for factor in self.factors:
            check_value("factors", factor, int)
        if not self.factors or self.factors[0] != 1 or list(self.factors) != sorted(set(self.factors)):
            raise InputError("start at 1 and grow, as in 1 2 4 8", factors=self.factors)
        if self.head_dim is None and self.dim % self.num_heads:
            raise InputError(f"must be a multiple of num_heads={self.num_heads}, or give head_dim", dim=self.dim)

    def changed(self, **values: Any) -> Self:
        """The settings with other values; lists become tuples."""
        return replace(self, **{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})  # type: ignore[type-var]

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON's types."""
        return {f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in fields(self)}  # type: ignore[arg-type]

    def create(self, name: str, **shape: Any) -> Encoding:
        """An encoding in the host's shape; past its end, a learned table is clamped, unless its name says otherwise.

        shape: the lengths or grid of training, as `posenc.create` takes them.
        """
        return create(
            read(name).replaced(_clamped),
            dim=self.dim, num_heads=self.num_heads, head_dim=self.head_dim, num_kv_heads=self.num_heads,
            num_layers=self.num_layers, **shape,
        )  # fmt: skip

    # ---------------------------------------------------------------- conditions of the test

    @property
    def conditions(self) -> tuple[int, ...]:
        """What the trained models are tested under, in ascending order, each by a number."""
        return self.factors

    @property
    @abstractmethod
    def examples(self) -> int:
        """Held-out examples, the same under every condition."""

    @property
    @abstractmethod
    def unit(self) -> str:
        """What sizes are counted in: "byte", "token"."""

    def tokens_at(self, condition: int) -> int:
        """The tokens of one example under a condition."""
        return self.size_at(condition)

    def size_at(self, condition: int) -> int:
        """What a reader calls a condition: the length of a text, the share of a filler."""
        return self.length * condition

    def spelled(self, condition: int) -> str:
        """A condition in words: "1024 bytes"."""
        return f"{self.size_at(condition)} {self.unit}s"

    @property
    def larger(self) -> tuple[int, ...]:
        """The conditions above that of training, upwards."""
        return tuple(condition for condition in self.conditions if condition > self.trained_at)

    @property
    def tokens(self) -> int:
        """The tokens of one example in training."""
        return self.tokens_at(self.trained_at)

    @property
    def tested_tokens(self) -> int:
        """All tokens that one variant reads in its test."""
        return self.examples * sum(map(self.tokens_at, self.conditions))

    def check_largest(self) -> None:
        """Refuse sizes and conditions that are beyond what any comparison needs, or whose parameters no memory has."""
        for name, most in self.MOST.items():
            size = getattr(self, name)
            if size is not None and size > most:
                raise InputError(f"must be at most {most}", argument=name, value=size)
        width = self.num_heads * (self.head_dim if self.head_dim is not None else self.dim // self.num_heads)
        weights = self.rows * self.dim + self.num_layers * (4 * self.dim * width + 8 * self.dim**2)
        if weights > MOST_WEIGHTS:
            raise InputError(f"gives {weights} weights, must be at most {MOST_WEIGHTS}", dim=self.dim)
        if self.batch_size * self.tokens > MOST_TOKENS:
            raise InputError(f"of {self.tokens} tokens each, must be at most {MOST_TOKENS}", batch_size=self.batch_size)
        largest, most = self.conditions[-1], self.MOST["length"]
        if self.size_at(largest) > most:
            why = f"tests at {self.spelled(largest)}, must be at most {most}"
            raise InputError(why, argument="factors", value=largest)

    # ---------------------------------------------------------------- model, data, test

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows of the embedding's matrix."""

    def make_encoding(self, name: str) -> Encoding:
        """An encoding for the host."""
        return self.create(name, max_positions=self.length, causal=True)

    def make_model(self, encoding: Encoding) -> TransformerBase:
        """The untrained host."""
        config = TransformerConfig(
            self.rows, dim=self.dim, num_layers=self.num_layers, num_heads=self.num_heads, head_dim=self.head_dim
        )
        return Transformer(config, encoding)

    @abstractmethod
    def load(self, source: str, **options: Any) -> tuple[Any, Self]:
        """The data behind a name, and the settings with what the data decide. options: in place of those in `data_options`.

        Raises:
            InputError: there is no such data, or it cannot be read.
        """

    @abstractmethod
    def check_data(self, corpus: Any) -> None:
        """Raises:
        InputError: data that do not fit the settings.
        """

    def example(self, condition: int) -> Tensor:
        """An input of one example, of the shape that it has under a condition."""
        return torch.zeros(1, self.tokens_at(condition), dtype=torch.long)

    @abstractmethod
    def draw(self, part: Any, generator: torch.Generator) -> Any:
        """The examples of one training step, from a part of a corpus: a function of its arguments alone.

        They have `inputs` (batch, ...) for the model, `targets` (batch, ...), the class that each row of its logits is scored by,
        `scored`, how many targets count, `positions`, None for the model's default, and `to(device)`.
        """

    @abstractmethod
    def evaluate(
        self, model: TransformerBase, variant: Variant, part: Any, on_batch: Callable[[int], None] = lambda tokens: None,
        conditions: Sequence[int] | None = None,
    ) -> Scores:  # fmt: skip
        """Test a variant on the held-out part; on_batch is called with how many tokens have been read. conditions: those alone, by
        the same examples; None: all, and what else is measured."""

    def variants(self, name: str, encoding: Encoding) -> list[Variant]:
        """The model as trained, and further ways to use the same weights."""
        return [Variant(name, lambda condition: encoding)]

    @property
    def budgets(self) -> Sequence[int]:
        """Steps at which a branch of the training is tested, see `posenc.lab.budgets`; none: it is one training."""
        return ()

    @property
    def measured(self) -> Mapping[str, Sequence[int]]:
        """What `Scores.extra` has at least: each measure and its conditions."""
        return {self.criterion.key: self.conditions} if self.criterion.higher_is_better else {}

    # ---------------------------------------------------------------- what is particular in the results

    def chance(self, corpus: Any, condition: int) -> float | None:
        """What guessing scores under a condition, by the criterion; None: not known."""
        return None

    def row(self, variant: Aggregate) -> dict[str, Any]:
        """What results.json has of a variant besides the numbers that every experiment has."""
        return {}

    def point(self, variant: Aggregate, condition: int, corpus: Any) -> dict[str, Any]:
        """The same, under one condition."""
        return {}

    def limits(self, trained: Sequence[Aggregate], corpus: Any) -> list[str]:
        """Sentences on what the results do not show."""
        return []


def _clamped(term: Spec) -> Spec:
    """An encoding with beyond=clamp, if it has that option and the text leaves it open."""
    if "beyond" in dict(term.options) or "beyond" not in lookup(term.name, may_import=True).arguments():
        return term
    return replace(term, options=(*term.options, ("beyond", "clamp")))


def _digest(encoding: str) -> str:
    """Of the files that hold the classes in an encoding's text, as they are now; "" where there are none."""
    files = [source_of(term.name) for term in read(encoding).terms if ":" in term.name]
    return hashlib.sha256(b"".join(files)).hexdigest()[:16] if files else ""


@dataclass(frozen=True)
class Execution:
    """How a model is trained and tested: on which device, in which precision (bfloat16 is autocast, parameters stay float32),
    and whether torch.compile compiles the passes of the training."""

    device: str = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"
    compiled: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def facts(self) -> dict[str, Any]:
        """What differs from one process of a CPU."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    @property
    def place(self) -> torch.device:
        """The device."""
        return torch.device(self.device)

    def wrap(self, model: TransformerBase) -> nn.Module:
        """What a forward pass in training goes through."""
        model.to(self.place)
        return cast(nn.Module, torch.compile(model)) if self.compiled else model

    def forward(self, module: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """The logits of a batch, and its targets."""
        batch = batch.to(self.place)
        with torch.autocast(self.place.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            logits = module(batch.inputs, batch.positions).float()
        return logits, batch.targets


_now: ContextVar[Execution] = ContextVar("execution", default=Execution())  # noqa: B039, it is frozen


def current_execution() -> Execution:
    """That of the enclosing `executing`, or the CPU in float32."""
    return _now.get()


@contextmanager
def executing(execution: Execution) -> Iterator[None]:
    """Inside, models are trained and tested as a run asks for.

    Raises:
        InputError: this machine has no such device.
    """
    check_present(execution.device)
    token = _now.set(execution)
    try:
        yield
    finally:
        _now.reset(token)


@dataclass(frozen=True)
class Run:
    """One model to train and test: an encoding and a seed under shared settings, on data known by its digest; code is that of
    the encoding's file, where it is not posenc's."""

    encoding: str
    seed: int
    settings: Experiment
    data: str
    code: str = ""
    execution: Execution = field(default_factory=Execution)

    @classmethod
    def of(cls, encoding: str, seed: int, settings: Experiment, data: str, execution: Execution | None = None) -> "Run":
        """A run of an encoding as its file is now."""
        return cls(encoding, seed, settings, data, _digest(encoding), execution or Execution())

    def facts(self) -> dict[str, Any]:
        """Its settings and data, as JSON's types."""
        facts = {"encoding": self.encoding, "seed": self.seed, "data": self.data, "task": self.settings.name}
        facts |= {"settings": self.settings.to_dict(), **self.execution.facts()}
        return facts | ({"code": self.code} if self.code else {})

    @property
    def id(self) -> str:
        """What its files are called: a hash of `facts`."""
        return identity(self.facts())

    def make_encoding(self) -> Encoding:
        """The encoding for the host."""
        return self.settings.make_encoding(self.encoding)


@dataclass(frozen=True)
class Preset:
    """A named size of comparison. data: what it reads; None: what the task reads."""

    settings: Experiment
    encodings: tuple[str, ...]
    seeds: int
    data: str | None = None


CORE = ("none", "sinusoidal", "learned", "rope", "t5", "alibi")
TEN = ("none", "sinusoidal", "learned", "rope", "alibi", "t5", "rope+alibi", "shaw", "fire", "fox")
"""The encodings that people use most, and what is next to them."""

LEADERBOARD = (
    # at the input
    "none", "normalized", "sinusoidal", "learned", "multiplicative", "complex_order", "floater",
    # on queries and keys
    "rope", "partial_rope", "p_rope", "xpos", "head_rope", "learned_rope", "fope", "rope_pp", "pope", "selective_rope", "mamba3_rope",
    "carope", "rove",
    # on the scores
    "shaw", "transformer_xl", "tupe", "deberta", "projected_relative", "grape_a", "dape", "selective_attention", "wall", "path",
    "t5", "alibi", "kerple", "sandwich", "fire", "cope", "fox", "stick_breaking",
    # together, and by turns of layers
    "randomized+learned", "randomized+rope", "rope+alibi", "rope+log_n", "rope+softmax_n", "softmax_n", "rope+sink",
    "rope_nope:every=2", "local_nope:window=16:every=2",
)  # fmt: skip
"""The encodings of the preset leaderboard: all kinds that fit a decoder, and what people combine."""
