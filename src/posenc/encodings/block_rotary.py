# SPDX-License-Identifier: Apache-2.0
"""Rotations of more than two channels at a time, with learned generators or a learned basis, on one to three axes."""

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from posenc.encoding import Encoding, Size, require_fit
from posenc.encodings.rotary_axes import AxialRotary
from posenc.encodings.shared import by_key_head, check_queries, kv_heads_of, normal_parameter
from posenc.errors import InputError, refuse_in_onnx
from posenc.functional import Layout, check_even
from posenc.positions import Positions
from posenc.positions.ids import exact
from posenc.positions.patches import coordinates_of


@dataclass(eq=False, repr=False)
class LieRE(Encoding):
    """LieRE: blocks of channels are rotated by exp(sum_a x_a A_a), with a learned skew-symmetric generator A_a per axis.

    head_dim: width of a head, a multiple of block. num_heads, num_kv_heads, num_layers: of the model; each key head and
    layer has separate generators. axes: coordinates per token, 1 for text. block: channels that rotate together; None
    takes 8, or the largest power of two below that divides head_dim. init_std: of the generators' entries, radians per step.

    On one axis scores depend on distances alone. On several the generators do not commute, so that scores depend on both
    positions, and there is a matrix exponential per token and block: 100 times RoPE's time or more. Rotations are computed
    in float64. Tokens without a place, such as [CLS], are not rotated. Raises InputError for sizes that do not divide.
    Source: Ostmeier et al. 2024, section 3.
    """

    name = "liere"
    title = "LieRE, learned rotations"
    papers: ClassVar[tuple[str, ...]] = ("ostmeier2024liere",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R(i)\, q_i, \quad k_j' = R(j)\, k_j",
        r"R(i) = \exp\Big(\sum_a x_a A_a\Big), \quad A_a^\top = -A_a, \quad i = (x_1, \ldots)",
    )
    isometric = True
    zero_is_identity = True
    extrapolates = "partly: at larger images"
    use_when = (
        "Take it for images and video where learned rotations may mix several channels; `comrope` needs no matrix "
        "exponential per token."
    )
    equal_to = "the authors' code"

    head_dim: Size
    _: KW_ONLY
    num_heads: Size
    num_kv_heads: Size | None = None
    num_layers: Size = 1
    axes: Size = 1
    block: int | None = None
    init_std: float = 0.1

    def setup(self) -> None:
        check_even("head_dim", self.head_dim)
        if self.block is None:
            self.block = next((size for size in (8, 4, 2) if self.head_dim % size == 0), 0)
        if self.block < 2 or self.head_dim % self.block:
            raise InputError(f"must be at least 2 and divide head_dim={self.head_dim}", block=self.block)
        self.kv_heads: int = kv_heads_of(self.num_heads, self.num_kv_heads)
        self.width: int = self.block
        self.blocks: int = self.head_dim // self.width
        self.shift_invariant = self.axes == 1 or self.width == 2
        self.setup_generators()

    def setup_generators(self) -> None:
        """Make the parameters of `generators`."""
        shape = self.num_layers, self.kv_heads, self.axes, self.blocks
        self.generator = normal_parameter(*shape, self.width, self.width, init_std=self.init_std)

    def generators(self, layer: int) -> Tensor:
        """The skew-symmetric generators, (num_kv_heads, axes, blocks, block, block) in float64."""
        upper = self.generator[self.own_layer(layer)].triu(1).double()
        return upper - upper.mT

    def multiples(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """(generator, multiples): one generator per block, (num_kv_heads, blocks, block, block), and by which number each
        axis multiplies it, (axes, blocks). None where the axes' generators are not multiples of one."""
        if self.axes > 1:
            return None
        generator = self.generators(layer)[:, 0]
        return generator, generator.new_ones(1, self.blocks)

    def turning(self, coordinates: Tensor, layer: int) -> tuple[Tensor, ...]:
        """The rotation at (batch or 1, n, axes) coordinates, in float64, as positions may be large: a matrix for each token,
        (batch or 1, num_kv_heads, n, blocks, block, block), or eigenvectors (num_kv_heads, blocks, block, block) and phases."""
        refuse_in_onnx(type(self).__name__, "the exponential and the eigenvectors of a matrix", "`mixed_rope`")
        where = exact(coordinates.to(self.generator.device))
        one = self.multiples(layer)
        if one is None:
            angles = torch.einsum("bna,haxcd->bhnxcd", where, self.generators(layer))
            return (torch.matrix_exp(angles.contiguous()),)  # which takes no other strides
        generator, multiples = one
        # exp(t A) = U exp(-i t w) U^H for the Hermitian i A = U w U^H: eigenvectors once, a phase per token
        speeds, vectors = torch.linalg.eigh(generator * 1j)
        phases = (where @ multiples)[:, None, None, ..., None] * speeds[:, None, None]
        return vectors, torch.polar(torch.ones_like(phases), -phases)

    def rope(self, x: Tensor, side: str, positions: Positions, layer: int) -> Tensor:
        """Queries, "q", or keys, "k", (batch, heads, n, head_dim), rotated."""
        side = "q" if positions.q is positions.k else side
        at = coordinates_of(positions, self.axes, type(self).__name__)[side == "k"]
        turning = self.remember(positions, (side, self.own_layer(layer)), partial(self.turning, at, layer))
        grouped = by_key_head(self, x, self.kv_heads).unflatten(-1, (self.blocks, self.width)).double()
        if len(turning) == 1:
            turns = turning[0].expand(x.shape[0], *turning[0].shape[1:])
            turned = torch.einsum("bhnxcd,bhgnxd->bhgnxc", turns, grouped)
        else:
            vectors, turns = turning
            apart = torch.einsum("hxdc,bhgnxd->bhgnxc", vectors.conj(), grouped.to(vectors.dtype))
            turned = torch.einsum("hxcd,bhgnxd->bhgnxc", vectors, apart * turns).real
        return turned.flatten(-2).flatten(1, 2).to(x.dtype)

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, q=q)
        check_queries(self, q)
        return self.rope(q, "q", positions, layer)

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, k=k)
        return self.rope(k, "k", positions, layer)


@dataclass(eq=False, repr=False)
class ComRoPE(LieRE):
    """ComRoPE: LieRE with generators that commute, so that scores depend on differences of coordinates alone.

    variant: "ld" (linearly dependent): the axes' generators are learned multiples of one; "ap" (axial partition): each
    block turns with one axis, the blocks taking turns. Other arguments as in `LieRE`. Raises InputError for "ap" with
    fewer blocks than axes. Source: Yu et al. 2025, section 4.
    """

    name = "comrope"
    title = "ComRoPE, commuting rotations"
    papers: ClassVar[tuple[str, ...]] = ("yu2025comrope",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R(i)\, q_i, \quad R(i) = \exp\Big(\sum_a x_a A_a\Big), \quad A_a A_b = A_b A_a",
        r"A_a = \begin{cases} \lambda_a A & \quad \text{ld} \\ M_a \odot A & \quad \text{ap} \end{cases}",
    )
    use_when = (
        "Take it for images and video where learned rotations should depend on differences alone; `axial_rope` "
        "learns nothing."
    )

    _: KW_ONLY
    variant: Literal["ld", "ap"] = "ld"

    def setup(self) -> None:
        super().setup()
        self.shift_invariant = True

    def setup_generators(self) -> None:
        shape = self.num_layers, self.kv_heads, self.blocks
        self.generator = normal_parameter(*shape, self.width, self.width, init_std=self.init_std)
        if self.variant == "ap" and self.blocks < self.axes:
            raise InputError(f"pass a smaller one: it leaves {self.blocks} for {self.axes} axes", block=self.block)
        factors = torch.ones(self.num_layers, self.axes, self.blocks)
        self.factors = nn.Parameter(nn.init.normal_(factors)) if self.variant == "ld" else None

    def multiples(self, layer: int) -> tuple[Tensor, Tensor]:
        generator, number = self.generators(layer), self.own_layer(layer)
        if self.factors is not None:
            return generator, self.factors[number].double()
        turn = torch.arange(self.blocks, device=generator.device) % self.axes
        return generator, (turn == torch.arange(self.axes, device=generator.device)[:, None]).double()


@dataclass(eq=False, repr=False)
class STRING(AxialRotary):
    """Cayley-STRING: RoPE in a learned orthogonal basis, P = (I - S)(I + S)^-1 with S skew-symmetric, on any number of axes.

    Scores depend on differences of coordinates alone. head_dim, axes, rope_theta, layout: as in `AxialRotary` (for
    text, axes=1). num_heads, num_kv_heads, num_layers: of the model; each key head and layer has a separate basis, which
    starts near the identity, where this is `AxialRotary`. init_std: of S. Raises InputError for sizes that do not divide.
    Source: Schenck et al. 2025, section 3.
    """

    name = "cayley_string"
    title = "Cayley-STRING"
    papers: ClassVar[tuple[str, ...]] = ("schenck2025learning",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R_i P q_i, \quad k_j' = R_j P k_j",
        r"P = (I - S)(I + S)^{-1}, \quad S^\top = -S",
    )
    zero_is_identity = False
    extrapolates = "partly: as RoPE on each axis"
    use_when = "Take it in place of `axial_rope`, or of `rope`, where each head should learn the channels that rotate together."
    equal_to = "the formula"

    _: KW_ONLY
    num_heads: Size
    num_kv_heads: Size | None = None
    num_layers: Size = 1
    axes: Size = 1
    rope_theta: float = 10000.0
    layout: Layout = "half"
    init_std: float = 0.02

    def setup(self) -> None:
        super().setup()
        self.kv_heads: int = kv_heads_of(self.num_heads, self.num_kv_heads)
        size = self.head_dim, self.head_dim
        self.skew = normal_parameter(self.num_layers, self.kv_heads, *size, init_std=self.init_std)

    def basis(self, layer: int, dtype: torch.dtype) -> Tensor:
        """P, (num_kv_heads, head_dim, head_dim), in float32 or better."""
        upper = self.skew[self.own_layer(layer)].triu(1).to(torch.promote_types(dtype, torch.float32))
        skew, identity = upper - upper.mT, torch.eye(self.head_dim, device=upper.device, dtype=upper.dtype)
        refuse_in_onnx(type(self).__name__, "the solution of a linear system", "`axial_rope`")
        return torch.linalg.solve(identity + skew, identity - skew)  # the factors commute

    def in_basis(self, x: Tensor, basis: Tensor) -> Tensor:
        """Queries or keys (batch, heads, n, head_dim) in the basis of their key head."""
        turned = by_key_head(self, x, self.kv_heads).to(basis.dtype) @ basis.mT[:, None]
        return turned.flatten(1, 2).to(x.dtype)

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        require_fit(positions, q=q, k=k)
        basis = self.basis(layer, q.dtype)
        return super().rotate(self.in_basis(q, basis), self.in_basis(k, basis), positions, layer)

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, q=q)
        return super().rotate_queries(self.in_basis(q, self.basis(layer, q.dtype)), positions, layer)

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, k=k)
        return super().rotate_keys(self.in_basis(k, self.basis(layer, k.dtype)), positions, layer)
