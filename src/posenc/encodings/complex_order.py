# SPDX-License-Identifier: Apache-2.0
"""Words as waves over position: complex-valued embeddings in which each word has its own frequencies."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from posenc.encoding import Encoding, Size, require_fit
from posenc.encodings.shared import Affine, check_width, make_orthogonal
from posenc.errors import Positive
from posenc.functional import exactly
from posenc.positions import Positions
from posenc.positions.ids import exact


@dataclass(eq=False, repr=False)
class ComplexOrder(Encoding):
    """Complex word order: a channel of a word at position i is a complex number of phase omega i + phi, whose amplitude,
    frequency omega and phase phi are functions of the word.

    A shift by n adds omega n to the phases of a word, whatever its position, and the amplitude stays bounded. The paper's
    tables have a row per word; here they are linear maps of the word's embedding x: amplitude x, omega = W x + b from
    W = 0, b_c = base^(-2 floor(c/2) / dim), phi = V x from V = 0. Independent embeddings can take any tables.
    Real and imaginary parts go through a learned (2 dim, dim) matrix, which starts as the identity
    over a random orthogonal one: that keeps the mean square of a random input.

    dim: width of the model. base: of the initial frequencies. Raises InputError for an input of another width.
    Phases are computed in float64 from exact positions.

    Source: Wang et al. 2020, section 2. The authors' code leaves phi out, and keeps two real streams, whose scores are moduli;
    this is one real stream in the model's own attention.
    """

    name = "complex_order"
    title = "complex word order"
    papers: ClassVar[tuple[str, ...]] = ("wang2020encoding",)
    formula: ClassVar[tuple[str, ...]] = (
        r"z_i = x_i \odot e^{\mathrm{i} (i \omega_i + \varphi_i)}",
        r"\omega_i = W_\omega x_i + \beta, \quad \varphi_i = W_\varphi x_i",
        r"x_i' = W [\operatorname{Re} z_i; \operatorname{Im} z_i]",
    )
    extrapolates = "not claimed"
    use_when = (
        "Take it where order may act on each word differently; `sinusoidal` is one code for all words and learns "
        "nothing."
    )

    dim: Size
    _: KW_ONLY
    base: Positive = 10000.0

    def setup(self) -> None:
        self.frequency: Affine = Affine(self.dim, self.dim)
        self.phase: Affine = Affine(self.dim, self.dim, bias=False)
        self.projection: Affine = Affine(2 * self.dim, self.dim, bias=False)
        with torch.no_grad():
            self.frequency.bias.copy_(self.base ** (-2 * (torch.arange(self.dim) // 2) / self.dim))
            nn.init.zeros_(self.frequency.weight)
            nn.init.zeros_(self.phase.weight)
            nn.init.eye_(self.projection.weight[:, : self.dim])
            make_orthogonal(self.projection.weight[:, self.dim :])

    def waves(self, x: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        """Real and imaginary part of the words at the queries' positions: two (batch, seq, dim)."""
        at = exact(positions.q)[..., None]
        with exactly(x):  # a rounded frequency is far off at a late position
            precise = x.to(at.dtype)
            angles = self.frequency(precise) * at + self.phase(precise)
        return x * angles.cos().to(x.dtype), x * angles.sin().to(x.dtype)

    def position_codes(self, positions: Positions, layer: int = 0) -> Tensor:
        """Of a word whose embedding is all ones."""
        return torch.cat(self.waves(self.frequency.weight.new_ones(1, 1, self.dim), positions), -1)

    def code_frequencies(self) -> Tensor:
        return self.frequency(self.frequency.weight.new_ones(self.dim))

    def embed(self, x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        if layer:
            return x
        require_fit(positions, x=x)
        check_width(self, x, self.dim)
        positions.require_one_axis(type(self).__name__)
        return self.projection(torch.cat(self.waves(x, positions), -1))
