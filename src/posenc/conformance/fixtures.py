# SPDX-License-Identifier: Apache-2.0
"""Inputs of the checks: an encoding under test, small models with it, and the positions of their tokens."""

import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from posenc.attention import attention
from posenc.cache import KVCache
from posenc.encoding import Encoding, gates_of
from posenc.encodings import create
from posenc.errors import InputError
from posenc.lab.transformer import Transformer, TransformerConfig
from posenc.positions import Positions

VOCAB, LENGTH = 17, 9
DECODER = TransformerConfig(VOCAB, dim=16, num_layers=2, num_heads=4, num_kv_heads=2)
ENCODER = TransformerConfig(VOCAB, dim=16, num_layers=2, num_heads=4, causal=False)

MAX_POSITIONS = 40
CHECKED_AS = {
    "log_n": "log_n:train_length=4", "temperature": "temperature:beta=1.5", "step_temperature": "step_temperature:train_length=3",
    "window": "window:before=2", "chunks": "chunks:size=3", "selective_rope": "selective_rope:kernel_size=2",
}  # fmt: skip
"""What has no effect on short inputs, such as a schedule up to its training length, is checked where it has; what looks back
over all of one, less far."""

Make = Callable[[TransformerConfig], Encoding]
MakePositions = Callable[[int], Positions]
"""A number of tokens -> the positions of a document of so many."""


class NotApplicable(Exception):
    """The check is about a call that the encoding refuses, or that the caller of `check` excludes."""


class CheckFailed(AssertionError):
    """A check fails."""


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Seed torch's, Python's and numpy's random numbers, and restore their states afterwards."""
    arrays = sys.modules.get("numpy")
    of_python, of_numpy = random.getstate(), arrays.random.get_state() if arrays else None
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        try:
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed a GPU that is used later, too
            if devices:
                torch.cuda.manual_seed_all(seed)
            random.seed(seed)
            if arrays:
                arrays.random.seed(seed)
            yield
        finally:
            random.setstate(of_python)
            if arrays:
                arrays.random.set_state(of_numpy)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run FlexAttention eagerly: tracing it for each case takes ten times as long as all the rest."""
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        yield


def named(name: str, *, may_import: bool = False) -> Make:
    """How `create` makes the encoding of a name for a small model, with short tables."""
    text = "+".join(CHECKED_AS.get(part, part) for part in name.split("+"))

    def make(config: TransformerConfig) -> Encoding:
        return create(
            text, may_import=may_import, dim=config.dim, num_heads=config.num_heads, head_dim=config.width,
            num_kv_heads=config.kv_heads, num_layers=config.num_layers, max_positions=MAX_POSITIONS, causal=config.causal,
        )  # fmt: skip

    return make


class EncodingUnderTest:
    """An encoding, and small models with it.

    make: a model's config -> the encoding for it. positions: of the tokens of a document; None: 0 .. n-1, as in text.
    """

    def __init__(self, make: Make, positions: MakePositions | None = None) -> None:
        self.make = make
        self._positions = positions

    def make_encoding(self, config: TransformerConfig) -> Encoding:
        made: Any = self.make
        if callable(made) and not isinstance(made, type | Encoding):
            with seeded(0):
                made = self.make(config)
            if isinstance(made, Encoding):
                return made
        remedy = "pass a function from a model's config to an encoding, as lambda config: posenc.Rotary(config.width)"
        raise InputError(f"got a {type(made).__name__}", remedy, argument="make")

    def model(
        self, config: TransformerConfig, dtype: torch.dtype = torch.float64, *, redraw: bool = True
    ) -> Transformer:
        """A model in eval mode. redraw: parameters of the encoding are drawn afresh, since zeros and tiny ones would
        hide a term; else they have their initial values."""
        encoding = self.make_encoding(config)
        with seeded(1):
            model = Transformer(config, encoding)
            for parameter in encoding.parameters() if redraw else ():
                torch.nn.init.normal_(parameter, std=0.5)
        return model.to(dtype).eval()

    @cached_property
    def encoding(self) -> Encoding:
        """The decoder's, to read its traits."""
        return self.make_encoding(DECODER)

    def configs(self) -> Iterator[TransformerConfig]:
        """The models that the encoding is for; one for decoders only has to refuse an encoder."""
        yield DECODER
        if not self.encoding.causal_only:
            yield ENCODER
            return
        try:
            self.model(ENCODER)(tokens(1, LENGTH), self.document(LENGTH))
        except InputError:
            return
        raise CheckFailed("causal_only is declared, but an encoder is not refused")

    # ---------------------------------------------------------------- positions of tokens

    @property
    def is_text(self) -> bool:
        """Whether tokens are at 0 .. n-1, rather than at positions of the caller of `check`."""
        return self._positions is None

    @cached_property
    def takes_images(self) -> bool:
        """Whether a model computes anything of an image; if it does not, `packed_images_are_separate` says why."""
        if not self.is_text:
            return False
        try:
            self.model(DECODER)(tokens(1, LENGTH), Positions.grid(3, 3))
        except Exception:
            return False
        return True

    @cached_property
    def takes_prefixes(self) -> bool:
        """Whether a causal sequence may begin with a prefix that sees itself; an encoding of the past alone refuses it."""
        try:
            self.model(DECODER)(tokens(1, LENGTH), self.document(LENGTH).with_prefix(2))
        except InputError:
            return not self.encoding.causal_only
        return True

    def ids(self, n: int) -> Tensor:
        """Positions of the tokens of a document, (n,) or (n, axes)."""
        if self._positions is None:
            return torch.arange(n)
        p = self._positions(n)
        if not isinstance(p, Positions) or p.q.shape[:2] != (1, n) or p.k.shape != p.q.shape:
            remedy = f"return the Positions of one row of {n} tokens, such as Positions.from_ids(my_ids({n}))"
            raise InputError(f"positions({n}) gave a {type(p).__name__}: {remedy}")
        return p.q[0]

    def document(self, n: int) -> Positions:
        """Of one document of n tokens."""
        return self.relocate(Positions.arange(n), [n])

    def layout(self, name: str) -> Positions:
        """Positions of LENGTH tokens in a layout, made anew."""
        if name == "packed":
            return self.relocate(Positions.packed([4, LENGTH - 4]), [4, LENGTH - 4])
        if name == "padded":
            mask = torch.ones(2, LENGTH, dtype=torch.long)
            mask[1, :3] = 0
            return self.relocate(Positions.from_mask(mask), [LENGTH], [LENGTH - 3])
        if name == "cached":
            return self.relocate(Positions.arange(3, LENGTH - 3), [LENGTH])
        return self.document(LENGTH)

    def relocate(self, text: Positions, *rows: Sequence[int]) -> Positions:
        """Positions of text, with its tokens at those of documents. rows: of each row, the lengths of its documents."""
        if self._positions is None:
            return text
        tables = [torch.cat([self.ids(n) for n in documents]) for documents in rows]
        longest = max(map(len, tables))
        table = torch.stack([torch.cat((t, t[-1:].expand(longest - len(t), *t.shape[1:]))) for t in tables])
        packed = text.q_document is not None

        def look_up(ids: Tensor, order: Tensor) -> Tensor:
            index = (order if packed else ids).clamp(max=longest - 1).expand(len(table), -1)
            return torch.stack([row[i] for row, i in zip(table, index, strict=True)])

        return text.moved(look_up)

    def largest_shift(self, most: int) -> int:
        """How far positions can be moved within the encoding's table, at most so far."""
        limit = self.encoding.max_positions
        return most if limit is None else max(0, min(most, limit - 2 * LENGTH))

    def require_text(self, why: str) -> None:
        """Stop a check that is about text alone."""
        if not self.is_text:
            raise NotApplicable(f"positions= is given: {why}")

    def require_cache(self) -> None:
        """Stop a check that decodes with a cache, if codes depend on the final length and a cache is refused."""
        if not self.encoding.needs_length:
            return
        model, cache = self.model(DECODER), KVCache()
        model(tokens(1, 4), self.document(4), cache)
        try:
            model(tokens(1, 1), self.relocate(Positions.arange(1, 4), [5]), cache)
        except InputError as refusal:
            raise NotApplicable(str(refusal)) from None
        raise CheckFailed("needs_length is declared, but a cache is not refused")


def random_inputs(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64, trains: bool = False) -> list[Tensor]:
    """Normal numbers, the same at each call."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in shapes]
    return [x.to(dtype).requires_grad_(trains) for x in drawn]


def attention_inputs(config: TransformerConfig, positions: Positions, **options: Any) -> list[Tensor]:
    """Queries, keys and values of two rows, and the input of the layer that they are of, see `random_inputs`."""
    queries, keys = (config.num_heads, positions.num_queries), (config.kv_heads, positions.num_keys)
    shapes = [(2, *size, config.width) for size in (queries, keys, keys)]
    return random_inputs(*shapes, (2, positions.num_keys, config.dim), **options)


def attend(
    encoding: Encoding, inputs: Sequence[Tensor], positions: Positions, *, layer: int = 0, **options: Any
) -> Tensor:
    """`attention` with `attention_inputs`, gates among them."""
    q, k, v, x = inputs
    return attention(q, k, v, encoding, positions, layer=layer, gates=gates_of(encoding, x, layer), **options)


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def equal(a: Tensor, b: Tensor, what: str, atol: float = 1e-10) -> None:
    """Raise CheckFailed unless two tensors agree."""
    if a.shape != b.shape:
        raise CheckFailed(f"{what}: shape {tuple(a.shape)}, expected {tuple(b.shape)}")
    difference = float((a - b).detach().abs().max())
    if not difference <= atol:
        raise CheckFailed(f"{what}: largest difference {difference:.3g}, allowed {atol:g}")
