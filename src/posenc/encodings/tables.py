# SPDX-License-Identifier: Apache-2.0
"""Learned tables other than one row per position: extended, multiplied, factorised, or of grids that can be resized."""

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from posenc.encoding import Size
from posenc.encodings.absolute import Absolute, Learned, rows_of
from posenc.encodings.shared import Beyond, bicubic, normal_parameter, remade
from posenc.errors import Count, InputError, check_integers, check_sizes
from posenc.positions import Positions
from posenc.positions.ids import unplaced_index
from posenc.positions.patches import of_images


@dataclass(eq=False, repr=False)
class Hierarchical(Absolute):
    """A learned table of n rows that reaches n^2 positions: row i // n and row i mod n, weighted.

    Position i gets alpha u[i // n] + (1 - alpha) u[i mod n], with u_r = (P_r - alpha P_0) / (1 - alpha): the first n
    codes are the table's rows P_i, so a trained table (BERT's) is extended without training.

    rows: n. dim: width of the model. alpha: weight of the coarse digit, in (0, 1) and not 1/2, at which positions
    a n + b and b n + a would share a code. init_std: of the table. beyond: what a position from n^2 on gets, "error"
    or "clamp". Raises InputError for other values. Source: Su 2020, kexue.fm/archives/7947; bert4keras.
    """

    name = "hierarchical"
    title = "extended learned table"
    papers: ClassVar[tuple[str, ...]] = ("su2020hierarchical",)
    formula: ClassVar[tuple[str, ...]] = (
        r"x_i' = x_i + \alpha u_{\lfloor i/n \rfloor} + (1 - \alpha) u_{i \bmod n}",
        r"u_r = \frac{P_r - \alpha P_0}{1 - \alpha}, \quad P \in \mathbb{R}^{n \times d}",
    )
    extrapolates = "yes: from n to n^2 positions without training"
    use_when = (
        "Take it to extend a trained table, such as BERT's, without training; `learned` is a table for a new model."
    )

    rows: Size
    _: KW_ONLY
    dim: Size
    alpha: float = 0.4
    merge: str = "add"
    init_std: float = 0.02
    beyond: Beyond = "error"

    def setup(self) -> None:
        super().setup()
        if not 0 < self.alpha < 1 or self.alpha == 0.5:
            raise InputError("must lie between 0 and 1 and not be 1/2, where codes collide", alpha=self.alpha)
        self.max_positions = self.rows**2
        self.table: nn.Parameter = normal_parameter(self.rows, self.dim, init_std=self.init_std)

    def codes(self, positions: Positions) -> Tensor:
        ids = rows_of(self, positions, (self.rows**2,), self.beyond)
        coarse, fine = embedding(ids // self.rows, self.table), embedding(ids % self.rows, self.table)
        return fine + (coarse - self.table[:1]) * (self.alpha / (1 - self.alpha))  # the same, with u written out


class Multiplicative(Learned):
    """Each channel of the input multiplied by a learned factor of its position: x * (1 + p), p from zero.

    max_positions: rows of the table. dim: width of the model. plain: x * p instead, with p from one. beyond: as in `Learned`.
    Raises InputError for a position outside the table. Source: Su 2021, kexue.fm/archives/8130; 1 + p as in his
    bert4keras.
    """

    name = "multiplicative"
    title = "multiplied position"
    papers: ClassVar[tuple[str, ...]] = ("su2021positions",)
    formula: ClassVar[tuple[str, ...]] = (r"x_i' = x_i \odot (1 + P_i), \quad P \in \mathbb{R}^{L \times d}",)
    extrapolates = "no: undefined past the table"
    use_when = "Take it to compare products at the input with sums; `learned` adds the same table."
    equal_to = "the formula"

    def __init__(self, max_positions: Size, *, dim: Size, plain: bool = False, beyond: Beyond = "error") -> None:
        self.plain = plain
        super().__init__(max_positions, dim=dim, merge="product" if plain else "multiply", init_std=0.0, beyond=beyond)
        if plain:
            nn.init.ones_(self.table)


@dataclass(eq=False, repr=False)
class AxialTable(Absolute):
    """A large learned table from two small ones: row i // columns of the first next to row i mod columns of the
    second.

    max_positions: the least number of positions; the last row is filled up. dim: width of the model.
    columns: of the grid that positions are laid on, row by row; None: about the square root of max_positions.
    first_dim: channels of the first table; None: half. init_std: of both tables (Reformer's own is 1). beyond: what a
    position outside gets, "error" or "clamp". Positions (y, x) name row and column themselves. Raises InputError for a
    position outside.
    Source: Kitaev et al. 2020, "Reformer" (Axial Positional Embeddings of its code).
    """

    name = "axial_table"
    title = "axial learned table"
    papers: ClassVar[tuple[str, ...]] = ("kitaev2020reformer",)
    formula: ClassVar[tuple[str, ...]] = (r"x_i' = x_i + [A_{\lfloor i/n \rfloor}; B_{i \bmod n}]",)
    extrapolates = "no: undefined past the table"
    use_when = (
        "Take it for a learned table of many positions with few parameters, as Reformer does; `learned` has a row "
        "for each."
    )
    equal_to = "transformers' Reformer"
    one_axis = False

    max_positions: Size = field()  # required, though Encoding has a default
    _: KW_ONLY
    dim: Size
    columns: Size | None = None
    first_dim: int | None = None
    merge: str = "add"
    init_std: float = 0.02
    beyond: Beyond = "error"

    def setup(self) -> None:
        super().setup()
        height, self.columns = _shape(self.max_positions, None, self.columns)
        self.max_positions = height * self.columns
        if self.first_dim is None:
            self.first_dim = self.dim // 2
        check_integers(1, self.dim - 1, first_dim=self.first_dim)
        self.first: nn.Parameter = normal_parameter(height, self.first_dim, init_std=self.init_std)
        self.second: nn.Parameter = normal_parameter(self.columns, self.dim - self.first_dim, init_std=self.init_std)

    def codes(self, positions: Positions) -> Tensor:
        remedy, columns = "make it larger (max_positions=), or pass beyond='clamp'", self.second.shape[0]
        ids = rows_of(self, positions, (self.first.shape[0], columns), self.beyond, remedy)
        return torch.cat((embedding(ids // columns, self.first), embedding(ids % columns, self.second)), -1)


@dataclass(eq=False, repr=False)
class GridTable(Absolute):
    """A learned vector per patch of an image, resized bicubically to other images (ViT, DINOv2).

    dim: width of the model. height, width: patches of the image it is made for; where one is None it follows from
    max_positions, as near to a square as can be, or is ViT's 14. max_positions: the least number of patches. prefix:
    separate rows for the first tokens without a place (see `Positions.grid`), such as ViT's [CLS]; further ones, such
    as registers, get a zero vector. init_std: of the table. beyond: what an image of another size gets: "resize",
    the table interpolated to it, where the positions know it (those of `Positions.grid` do), whatever the size; the
    others take the patches as they are, and for one outside "error" refuses it, "clamp" gives it the nearest.

    Positions are (y, x), or one number that counts the patches row by row. Raises InputError for a patch outside;
    `resized` gives an encoding of another size, to be trained further. Source: Dosovitskiy et al. 2021, sections 3.1,
    3.2; Oquab et al. 2024.
    """

    name = "grid_table"
    title = "learned 2D table of patches"
    papers: ClassVar[tuple[str, ...]] = ("dosovitskiy2021image",)
    formula: ClassVar[tuple[str, ...]] = (r"x_i' = x_i + P_{y,x}, \quad i = (y, x)",)
    extrapolates = "partly: to larger images by interpolation"
    use_when = "Take it for images of one size, as ViT and DINOv2 do; `axial_rope` has no table."
    equal_to = "transformers' ViT, DINOv2"
    one_axis = False

    dim: Size
    _: KW_ONLY
    height: Size | None = None
    width: Size | None = None
    max_positions: Size | None = None
    prefix: Count = 0
    merge: str = "add"
    init_std: float = 0.02
    beyond: Literal["resize", "error", "clamp"] = "resize"

    def setup(self) -> None:
        super().setup()
        self.size: tuple[int, int] = _shape(self.max_positions or 14 * 14, self.height, self.width)
        self.height, self.width = self.size
        self.max_positions = math.prod(self.size)
        self.table: nn.Parameter = normal_parameter(self.max_positions, self.dim, init_std=self.init_std)
        if self.prefix:
            self.prefix_table: nn.Parameter = normal_parameter(self.prefix, self.dim, init_std=self.init_std)

    def codes(self, positions: Positions) -> Tensor:
        codes, placed = self._of_patches(positions), positions.q_placed
        if placed is None:
            return codes
        if not self.prefix:
            return codes * placed[..., None]
        full = positions if positions.sharding is None else positions.sharding.full
        assert full.q_placed is not None
        number = positions.local(unplaced_index(full.q_placed, full.q_document)).clamp(max=self.prefix)
        rows = torch.cat((self.prefix_table, codes.new_zeros(1, self.dim)))
        return torch.where(placed[..., None], codes, embedding(number.clamp(min=0), rows))

    def _of_patches(self, positions: Positions) -> Tensor:
        """The vectors of the queries' patches, (batch or 1, n, dim); any for tokens without a place."""
        size, images = self.size, positions.images
        if self.beyond != "resize" or images is None or positions.axes != 2 or set(images) == {size}:
            remedy = "use resized(height, width) for a larger image, or pass beyond='clamp'"
            return embedding(rows_of(self, positions, size, self.beyond, remedy, unplaced=True), self.table)
        first, tables = 0, {}
        for other in dict.fromkeys(images):  # one table for each size, one after another
            tables[other] = first, self.at_size(*other)
            first += math.prod(other)
        known, _ = of_images(positions, [(width, tables[height, width][0]) for height, width in images])
        ids = positions.q[..., 0] * known[..., 0] + positions.q[..., 1] + known[..., 1]
        return embedding(ids, torch.cat([table for _, table in tables.values()]))

    def at_size(self, height: int, width: int) -> Tensor:
        """The table interpolated to an image of height x width patches, (height * width, dim)."""
        grid = self.table.unflatten(0, self.size).permute(2, 0, 1)
        return bicubic(grid, height, width).flatten(1).T

    def resized(self, height: int, width: int) -> "GridTable":
        """The same encoding made for an image of height x width patches: the table of `at_size`, rows of prefix tokens as
        they are.

        Raises:
            InputError: a size below 1.
        """
        check_sizes(height=height, width=width)
        return remade(self, {"table": self.at_size(height, width)}, height=height, width=width)


def _shape(count: int, height: int | None, width: int | None) -> tuple[int, int]:
    """Rows and columns of a grid of at least count cells; those not given make it as square as can be."""
    if width is None:
        width = round(math.sqrt(count)) if height is None else math.ceil(count / height)
    return math.ceil(count / width) if height is None else height, width
