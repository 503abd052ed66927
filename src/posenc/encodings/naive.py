# SPDX-License-Identifier: Apache-2.0
"""Baselines: no position at all, and three simple encodings that the literature rejects."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from posenc.encoding import Encoding, Size
from posenc.encodings.absolute import Absolute
from posenc.encodings.shared import normal_parameter
from posenc.errors import check_integers
from posenc.functional import binary_digits
from posenc.positions import Positions
from posenc.positions.ids import exact


class NoPE(Encoding):
    """No positional encoding: a causal model can still count the tokens it sees (Haviv et al. 2022;
    Kazemnejad et al. 2023); a bidirectional one is blind to order."""

    name = "none"
    title = "no positional encoding (NoPE)"
    papers: ClassVar[tuple[str, ...]] = ("haviv2022transformer", "kazemnejad2023impact")
    formula: ClassVar[tuple[str, ...]] = (r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}}",)
    shift_invariant = True
    extrapolates = "better than RoPE on small algorithmic tasks"
    use_when = (
        "Take it as the baseline, or in some layers of a causal model whose others have RoPE, as in SmolLM3 "
        "(`rope_nope`)."
    )
    equal_to = "the same attention without it"


@dataclass(eq=False, repr=False)
class _Scalar(Absolute):
    """A number per position, spread over the channels.

    spread: "learned" multiplies it by a learned direction (dim,), "first_channel" writes it into channel 0.
    """

    dim: Size
    _: KW_ONLY
    merge: str = "add"
    spread: Literal["learned", "first_channel"] = "learned"
    init_std: float = 0.02

    def setup(self) -> None:
        super().setup()
        if self.spread == "learned":
            self.direction: nn.Parameter = normal_parameter(self.dim, init_std=self.init_std)

    def number(self, positions: Positions) -> Tensor:
        """The number of each query, (batch or 1, num_queries)."""
        raise NotImplementedError  # abstract: the two classes below define it

    def codes(self, positions: Positions) -> Tensor:
        number = self.number(positions)[..., None]
        if self.spread == "learned":
            return number.to(self.direction.dtype) * self.direction
        return pad(number, (0, self.dim - 1))


@dataclass(eq=False, repr=False)
class Normalized(_Scalar):
    """Position i scaled to [0, 1]: i / (length - 1). A step means something else in every length, and the code of the
    first token changes when a later one is appended: cached decoding cannot reproduce the full pass unless `length`
    is fixed beforehand.

    length: the length to divide by; None uses the length of each sequence. Raises InputError when None meets a cache.
    """

    name = "normalized"
    title = "position scaled to 0 .. 1"
    formula: ClassVar[tuple[str, ...]] = (r"x_i' = x_i + \frac{i}{N - 1}\, w",)
    extrapolates = "no: the step shrinks with the length"
    use_when = "Take it to see why a code must not depend on the length of a text; `sinusoidal` does not."

    _: KW_ONLY
    length: Size | None = None

    @property
    def needs_length(self) -> bool:  # type: ignore[override]
        return self.length is None

    def number(self, positions: Positions) -> Tensor:
        if self.length is not None:
            return exact(positions.q) / max(self.length - 1, 1)
        if positions.sharding is None:
            remedy = "pass the full sequence, or fix Normalized(length=...)"
            positions.require_full_sequence("Normalized divides by the length", remedy)
        return exact(positions.q) / (positions.lengths() - 1).clamp(min=1)


class Integer(_Scalar):
    """The position i itself: unbounded, so tokens late in a long text get codes far outside anything trained on."""

    name = "integer"
    title = "the position itself"
    formula: ClassVar[tuple[str, ...]] = (r"x_i' = x_i + i\, w",)
    extrapolates = "no: unbounded"
    use_when = "Take it to see why a code must be bounded; `sinusoidal` is."

    def number(self, positions: Positions) -> Tensor:
        return exact(positions.q)


@dataclass(eq=False, repr=False)
class Binary(Absolute):
    """The binary digits of the position, least significant first, in the first `bits` channels. Unique below 2^bits,
    but neighbours jump: 7 = 111 and 8 = 0001 differ in four digits, 6 and 7 in one.

    bits: how many digits; None takes 16, or dim if that is less. signed: digits are -1 and 1 instead of 0 and 1.
    Raises InputError for more bits than channels, or fractional positions.
    """

    name = "binary"
    title = "binary digits"
    formula: ClassVar[tuple[str, ...]] = (
        r"p_{i,c} = \left\lfloor \frac{i}{2^c} \right\rfloor \bmod 2, \quad x_i' = x_i + p_i",
    )
    extrapolates = "no: unseen digits, then repetition"
    use_when = "Take it to see why neighbours need similar codes; `sinusoidal` is the same idea without jumps."

    dim: Size
    _: KW_ONLY
    merge: str = "add"
    bits: int | None = None
    signed: bool = False

    def setup(self) -> None:
        super().setup()
        if self.bits is None:
            self.bits = min(self.dim, 16)
        check_integers(1, min(self.dim, 62), bits=self.bits)

    def codes(self, positions: Positions) -> Tensor:
        assert self.bits is not None
        digits = binary_digits(positions.q, self.bits).to(torch.get_default_dtype())
        return pad(2 * digits - 1 if self.signed else digits, (0, self.dim - self.bits))
