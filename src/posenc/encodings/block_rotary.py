# SPDX-License-Identifier: Apache-2.0
"""Rotations of more than two channels at a time, with learned generators or a learned basis, on one to three axes."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from posenc.encoding import Encoding, require_fit
from posenc.encodings.rotary_axes import AxialRotary
from posenc.encodings.shared import check_head_dim, kv_heads_of, normal_parameter
from posenc.errors import InputError, check_word
from posenc.functional import Layout
from posenc.positions import Positions
from posenc.positions.ids import exact, prefix_tokens


@dataclass(eq=False, repr=False)
class LieRE(Encoding):
    """LieRE: blocks of channels are rotated by exp(sum_a x_a A_a), with a learned skew-symmetric generator A_a per axis.

    head_dim: width of a head, a multiple of block. num_heads, num_kv_heads, num_layers: of the model; each key head and
    layer has generators of its own. axes: coordinates per token, 1 for text. block: channels that rotate together; None
    takes 8, or the largest power of two below that divides head_dim. init_std: of the generators' entries, radians per step.

    On one axis scores depend on distances alone; on several the generators do not commute, and they do not (`ComRoPE`
    is the variant whose generators commute). Prefix tokens, at -1 on every axis of a grid, are not rotated. Generators
    are exponentiated in float32 or better. Raises InputError for sizes that do not divide.
    Source: Ostmeier et al. 2024, section 3.
    """

    name = "liere"
    papers: ClassVar[tuple[str, ...]] = ("ostmeier2024liere",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R(i)\, q_i, \quad k_j' = R(j)\, k_j",
        r"R(i) = \exp\Big(\sum_a x_a A_a\Big), \quad A_a^\top = -A_a, \quad i = (x_1, \ldots)",
    )
    extrapolates = "partly: holds at larger images"
    equal_to = "the authors' code"

    head_dim: int
    num_heads: int
    num_kv_heads: int | None = None
    num_layers: int = 1
    axes: int = 1
    block: int | None = None
    init_std: float = 0.1

    def setup(self) -> None:
        if self.block is None:
            self.block = next((size for size in (8, 4, 2) if self.head_dim % size == 0), 0)
        if self.block < 2 or self.head_dim % self.block:
            raise InputError(f"block={self.block}: must be at least 2 and divide head_dim={self.head_dim}")
        self.kv_heads: int = kv_heads_of(self.num_heads, self.num_kv_heads)
        self.width: int = self.block
        self.blocks: int = self.head_dim // self.width
        self.shift_invariant = self.axes == 1 or self.width == 2
        self.setup_generators()

    def setup_generators(self) -> None:
        """Make the parameters of `generators`."""
        shape = self.num_layers, self.kv_heads, self.axes, self.blocks
        self.generator = normal_parameter(*shape, self.width, self.width, init_std=self.init_std)

    @property
    def isometric(self) -> bool:
        return True

    @property
    def zero_is_identity(self) -> bool:
        return True

    def generators(self, layer: int) -> Tensor:
        """The skew-symmetric generators, (num_kv_heads, axes, blocks, block, block)."""
        upper = self.generator[self.own_layer(layer)].triu(1)
        return upper - upper.mT

    def rotations(self, coordinates: Tensor, ids: Tensor, layer: int, dtype: torch.dtype) -> Tensor:
        """The rotations at (batch or 1, n, axes) coordinates, (batch or 1, num_kv_heads, n, blocks, block, block)."""
        generators = self.generators(layer)
        where = exact(coordinates.to(generators.device))
        angles = torch.einsum("bna,haxcd->bhnxcd", where, generators.to(where.dtype))
        if ids.dim() == 3:
            angles = angles.masked_fill(prefix_tokens(ids).to(angles.device)[:, None, :, None, None, None], 0.0)
        precise = torch.promote_types(dtype, torch.float32)
        return torch.matrix_exp(angles.to(precise).contiguous())  # which takes no other strides

    def turn(self, x: Tensor, coordinates: Tensor, ids: Tensor, layer: int) -> Tensor:
        """Queries or keys (batch, heads, n, head_dim), rotated."""
        check_head_dim(self, x, self.head_dim)
        if x.shape[1] % self.kv_heads:
            raise InputError(
                f"q or k with {x.shape[1]} heads: this {type(self).__name__} has {self.kv_heads} key heads"
            )
        rotations = self.rotations(coordinates, ids, layer, x.dtype)
        grouped = x.unflatten(1, (self.kv_heads, -1)).unflatten(-1, (self.blocks, self.width)).to(rotations.dtype)
        turned = torch.einsum("bhnxcd,bhgnxd->bhgnxc", rotations.expand(x.shape[0], *rotations.shape[1:]), grouped)
        return turned.flatten(-2).flatten(1, 2).to(x.dtype)

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        require_fit(positions, q=q, k=k)
        of_q, of_k = positions.coordinates(self.axes, type(self).__name__)
        return self.turn(q, of_q, positions.q, layer), self.turn(k, of_k, positions.k, layer)

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, q=q)
        return self.turn(q, positions.coordinates(self.axes, type(self).__name__)[0], positions.q, layer)

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, k=k)
        return self.turn(k, positions.coordinates(self.axes, type(self).__name__)[1], positions.k, layer)


@dataclass(eq=False, repr=False)
class ComRoPE(LieRE):
    """ComRoPE: LieRE with generators that commute, so that scores depend on differences of coordinates alone.

    variant: "ld" (linearly dependent): the axes' generators are learned multiples of one; "ap" (axial partition): each
    block turns with one axis, the blocks taking turns. Other arguments as in `LieRE`. Raises InputError for "ap" with
    fewer blocks than axes. Source: Yu et al. 2025, section 4.
    """

    name = "comrope"
    papers: ClassVar[tuple[str, ...]] = ("yu2025comrope",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R(i)\, q_i, \quad R(i) = \exp\Big(\sum_a x_a A_a\Big), \quad A_a A_b = A_b A_a",
        r"A_a = \lambda_a A \ \text{(ld)}, \qquad A_a = M_a \odot A \ \text{(ap)}",
    )

    variant: Literal["ld", "ap"] = "ld"

    def setup(self) -> None:
        check_word("variant", self.variant, ("ld", "ap"))
        super().setup()
        self.shift_invariant = True

    def setup_generators(self) -> None:
        shape = self.num_layers, self.kv_heads, self.blocks
        self.generator = normal_parameter(*shape, self.width, self.width, init_std=self.init_std)
        if self.variant == "ap" and self.blocks < self.axes:
            raise InputError(
                f"block={self.block}: leaves {self.blocks} blocks for {self.axes} axes; pass a smaller one"
            )
        multiples = torch.ones(self.num_layers, self.axes, self.blocks)
        self.multiples = nn.Parameter(nn.init.normal_(multiples)) if self.variant == "ld" else None

    def generators(self, layer: int) -> Tensor:
        number = self.own_layer(layer)
        upper = self.generator[number].triu(1)
        skew = (upper - upper.mT)[:, None]
        if self.multiples is not None:
            return skew * self.multiples[number][..., None, None]
        turn = torch.arange(self.blocks, device=skew.device) % self.axes
        axis = torch.arange(self.axes, device=skew.device)
        return skew * (turn == axis[:, None])[..., None, None]


@dataclass(eq=False, repr=False)
class STRING(AxialRotary):
    """Cayley-STRING: RoPE in a learned orthogonal basis, P = (I - S)(I + S)^-1 with S skew-symmetric, on any number of axes.

    Scores depend on differences of coordinates alone. head_dim, axes, rope_theta, layout: as in `AxialRotary` (for
    text, axes=1). num_heads, num_kv_heads, num_layers: of the model; each key head and layer has its own basis, which
    starts near the identity, where this is `AxialRotary`. init_std: of S. Raises InputError for sizes that do not divide.
    Source: Schenck et al. 2025, section 3.
    """

    name = "cayley_string"
    papers: ClassVar[tuple[str, ...]] = ("schenck2025learning",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R_i P q_i, \quad k_j' = R_j P k_j",
        r"P = (I - S)(I + S)^{-1}, \quad S^\top = -S",
    )
    extrapolates = "partly: as RoPE on each axis"
    equal_to = "the formula"

    num_heads: int = 1
    num_kv_heads: int | None = None
    num_layers: int = 1
    axes: int = 1
    rope_theta: float = 10000.0
    layout: Layout = "half"
    init_std: float = 0.02

    def setup(self) -> None:
        super().setup()
        self.kv_heads: int = kv_heads_of(self.num_heads, self.num_kv_heads)
        size = self.head_dim, self.head_dim
        self.skew = normal_parameter(self.num_layers, self.kv_heads, *size, init_std=self.init_std)

    @property
    def zero_is_identity(self) -> bool:
        return False

    def basis(self, layer: int, dtype: torch.dtype) -> Tensor:
        """P, (num_kv_heads, head_dim, head_dim), in float32 or better."""
        upper = self.skew[self.own_layer(layer)].triu(1).to(torch.promote_types(dtype, torch.float32))
        skew, identity = upper - upper.mT, torch.eye(self.head_dim, device=upper.device, dtype=upper.dtype)
        return torch.linalg.solve(identity + skew, identity - skew)  # the factors commute

    def in_basis(self, x: Tensor, layer: int) -> Tensor:
        check_head_dim(self, x, self.head_dim)
        if x.shape[1] % self.kv_heads:
            raise InputError(f"q or k with {x.shape[1]} heads: this STRING has {self.kv_heads} key heads")
        basis = self.basis(layer, x.dtype)
        turned = x.unflatten(1, (self.kv_heads, -1)).to(basis.dtype) @ basis.mT[:, None]
        return turned.flatten(1, 2).to(x.dtype)

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        require_fit(positions, q=q, k=k)
        return super().rotate(self.in_basis(q, layer), self.in_basis(k, layer), positions, layer)

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, q=q)
        return super().rotate_queries(self.in_basis(q, layer), positions, layer)

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, k=k)
        return super().rotate_keys(self.in_basis(k, layer), positions, layer)
