# SPDX-License-Identifier: Apache-2.0
"""What the checks are run on: an encoding under test, the small models around it, and where their tokens are."""

import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from posenc.blocks import Cache
from posenc.checks import shown
from posenc.encoding import Encoding, PerLayer
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.transformer import Transformer, TransformerConfig

VOCAB, LENGTH = 17, 9
DECODER = TransformerConfig(VOCAB, dim=16, num_layers=2, num_heads=4, num_kv_heads=2)
ENCODER = TransformerConfig(VOCAB, dim=16, num_layers=2, num_heads=4, causal=False)

Make = Callable[[TransformerConfig], Encoding]
Places = Callable[[int], Positions]
"""A number of tokens -> the positions of a document of so many."""


class Inapplicable(Exception):
    """The check asks for something that the encoding refuses, or that the caller of `check` says it is not for."""


class Fails(AssertionError):
    """What the check asks for does not hold."""


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """torch's, Python's and numpy's random numbers begin at a seed, and afterwards go on where they were before."""
    arrays = sys.modules.get("numpy")
    of_python, of_numpy = random.getstate(), arrays.random.get_state() if arrays else None
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        try:
            torch.manual_seed(seed)
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
    """FlexAttention computes as it stands: tracing it for each case takes ten times as long as all the rest."""
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        yield


class Subject:
    """An encoding under test, and the small models around it.

    make: a model's config -> the encoding for it. places: where the tokens of a document are; None: 0 .. n-1, as in text.
    """

    def __init__(self, make: Make, places: Places | None = None) -> None:
        self.make = make
        self._places = places

    def encoding(self, config: TransformerConfig) -> Encoding:
        with seeded(0):
            made = self.make(config)
        if not isinstance(made, Encoding):
            raise InputError(
                f"make gave {_named(made)}: pass a function from a model's config to an encoding, as in "
                "check(lambda config: posenc.Rotary(config.width))"
            )
        return made

    def host(
        self, config: TransformerConfig, dtype: torch.dtype = torch.float64, *, redraw: bool = True
    ) -> Transformer:
        """A model in eval mode. redraw: parameters of the encoding are drawn afresh, since zeros and tiny ones would
        hide a term; else they are what they start as."""
        encoding = self.encoding(config)
        with seeded(1):
            model = Transformer(config, encoding)
            for parameter in encoding.parameters() if redraw else ():
                torch.nn.init.normal_(parameter, std=0.5)
        return model.to(dtype).eval()

    @cached_property
    def traits(self) -> Encoding:
        return self.encoding(DECODER)

    @property
    def name(self) -> str:
        return self.traits.known_as

    @property
    def shallow(self) -> TransformerConfig:
        """The smallest decoder in which all of the encoding acts, for checks that take long."""
        return DECODER if isinstance(self.traits, PerLayer) else replace(DECODER, num_layers=1)

    def configs(self) -> Iterator[TransformerConfig]:
        """The models that the encoding is for; one for decoders only has to refuse an encoder."""
        yield DECODER
        if not self.traits.causal_only:
            yield ENCODER
            return
        try:
            self.host(ENCODER)(tokens(1, LENGTH), self.document(LENGTH))
        except InputError:
            return
        raise Fails("causal_only is declared, but an encoder is not refused")

    # ---------------------------------------------------------------- where tokens are

    @property
    def of_text(self) -> bool:
        """Whether tokens are at 0 .. n-1, rather than where the caller of `check` says."""
        return self._places is None

    @cached_property
    def takes_images(self) -> bool:
        """Whether a model computes anything of an image; if it does not, `images_are_separate` says why."""
        if not self.of_text:
            return False
        try:
            self.host(DECODER)(tokens(1, LENGTH), Positions.grid(3, 3))
        except Exception:
            return False
        return True

    def ids(self, n: int) -> Tensor:
        """Where the tokens of a document are, (n,) or (n, axes)."""
        if self._places is None:
            return torch.arange(n)
        found = self._places(n)
        if not isinstance(found, Positions) or found.q.shape[:2] != (1, n) or found.k.shape != found.q.shape:
            raise InputError(
                f"positions({n}) gave {shown(found)}: return the Positions of one row of {n} tokens, as in "
                "check(make, positions=lambda n: Positions.from_ids(my_ids(n)))"
            )
        return found.q[0]

    def document(self, n: int) -> Positions:
        """Of one document of n tokens."""
        return self.placed(Positions.arange(n), [n])

    def placed(self, text: Positions, *rows: Sequence[int]) -> Positions:
        """Positions of text, with its tokens where they belong. rows: of each row, the lengths of its documents."""
        if self._places is None:
            return text
        tables = [torch.cat([self.ids(n) for n in documents]) for documents in rows]
        longest = max(map(len, tables))
        table = torch.stack([torch.cat((t, t[-1:].expand(longest - len(t), *t.shape[1:]))) for t in tables])
        packed = text.q_document is not None

        def place(ids: Tensor, order: Tensor) -> Tensor:
            index = (order if packed else ids).clamp(max=longest - 1).expand(len(table), -1)
            return torch.stack([row[i] for row, i in zip(table, index, strict=True)])

        return text.moved(place)

    def shift(self, wanted: int) -> int:
        """How far positions can be moved, at most as wanted, within the encoding's table."""
        limit = self.traits.max_positions
        return wanted if limit is None else max(0, min(wanted, limit - 2 * LENGTH))

    def require_text(self, why: str) -> None:
        """Stop a check that is about text alone."""
        if not self.of_text:
            raise Inapplicable(f"positions= is given: {why}")

    def require_cache(self) -> None:
        """Stop a check that decodes with a cache, where codes depend on the final length and caches are refused."""
        if not self.traits.needs_length:
            return
        model, cache = self.host(DECODER), Cache()
        model(tokens(1, 4), self.document(4), cache)
        try:
            model(tokens(1, 1), self.placed(Positions.arange(1, 4), [5]), cache)
        except InputError as refusal:
            raise Inapplicable(str(refusal)) from None
        raise Fails("needs_length is declared, but a cache is not refused")


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def equal(a: Tensor, b: Tensor, what: str, atol: float = 1e-10) -> None:
    """Raise Fails unless two tensors agree."""
    if a.shape != b.shape:
        raise Fails(f"{what}: shape {tuple(a.shape)}, expected {tuple(b.shape)}")
    difference = float((a - b).detach().abs().max())
    if not difference <= atol:
        raise Fails(f"{what}: largest difference {difference:.3g}, allowed {atol:g}")


def _named(made: object) -> str:
    return f"a {type(made).__name__}" if isinstance(made, torch.nn.Module) else shown(made)
