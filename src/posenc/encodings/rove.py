# SPDX-License-Identifier: Apache-2.0
"""Rotated values: what a token contributes turns with its distance. For use with any encoding, as in `Rotary(64) + RoVE(64)`."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from torch import Tensor

from posenc.encoding import require_fit
from posenc.encodings.rotary import PairwiseRotary
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class RoVE(PairwiseRotary):
    """Values rotated as RoPE rotates keys, and the output turned back at the query: o_i = sum_j p_ij R_{j-i} v_j.

    head_dim: width of the values. rotary_dim: rotate only so many channels, or that share as a float; None rotates all.
    trailing: these are the last ones, not the first. Other arguments as in `Rotary`; a schedule's attention factor is for
    scores and is left out here.

    Queries and keys are unchanged: the paper's attention is `rope+rove`, DeepSeek-V4's
    `decoupled_rope:rotary_dim=64+rove:rotary_dim=64:trailing=true:layout=interleaved`, where the values are the keys. Learned
    values of a prefix (`PrefixKV`) have no position and are not turned.
    Raises InputError for odd widths, and for values of another width.
    Source: García-Castellanos et al. 2026; before it, for poses, Miyato et al. 2024.
    """

    name = "rove"
    title = "rotated values"
    papers: ClassVar[tuple[str, ...]] = ("garciacastellanos2026rove", "miyato2024gta")
    formula: ClassVar[tuple[str, ...]] = (
        r"o_i = \sum_j \alpha_{ij} R_{j-i} v_j = R_i^{-1} \sum_j \alpha_{ij} R_j v_j, \quad \theta_c = b^{-2c/d}",
    )
    shift_invariant = True
    extrapolates = "no claim"
    use_when = (
        "Take it beside `rope`, as DeepSeek-V4 does, where what arrives of a value should depend on its distance. "
        "Nothing is learned."
    )
    equal_to = "transformers' DeepSeek-V4"

    _: KW_ONLY
    trailing: bool = False

    def setup(self) -> None:
        super().setup()
        self.attention_factor = 1.0

    @property
    def first_channel(self) -> int:
        return self.head_dim - self.rotated if self.trailing else 0

    def rotate_values(self, v: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, k=v)
        dtype, first = self._check(v, positions), positions.start and positions.start[1]
        return self.rope(v, *self.remember(positions, (dtype, "k"), lambda: self.cos_sin(positions.k, dtype, first)))

    def turn_back(self, out: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, q=out)
        dtype, first = self._check(out, positions), positions.start and positions.start[0]

        def conjugate() -> tuple[Tensor, Tensor]:
            cos, sin = self.cos_sin(positions.q, dtype, first)
            return cos, -sin

        return self.rope(out, *self.remember(positions, (dtype, "q"), conjugate))
