# SPDX-License-Identifier: Apache-2.0
"""Biases of the two-dimensional offset between the patches of an image: Swin, BEiT and Swin v2."""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.bias import Positional, Relative
from posenc.encoding import Encoding, Size, require_fit
from posenc.encodings.shared import HeadPerceptron, bicubic, check_heads, normal_parameter, remade
from posenc.errors import InputError, check_sizes
from posenc.positions import Positions
from posenc.positions.ids import exact
from posenc.positions.patches import marked, of_images

OfOffset = Callable[[Tensor, Tensor], Tensor]
PAIRS = 2**20
"""Queries times keys whose offsets are in memory at once."""


class _PatchBias(Encoding):
    num_heads: Size
    width: Size

    def on_patches(self, q: Tensor, positions: Positions) -> Positions:
        """The same tokens at (row, column), those of one coordinate as patches that are numbered row by row, for queries of the
        right number of heads."""
        check_heads(self, q, self.num_heads)
        if positions.q.dim() == 3:
            if positions.axes != 2:
                raise InputError(f"{type(self).__name__} takes 2 coordinates per token, or one, not {positions.axes}")
            return positions
        positions.require_integers(type(self).__name__, "give fractions as (y, x)")
        return positions.shared((_cells, self.width), lambda: positions.moved(partial(_cells, width=self.width)))

    def refuse_unplaced(self, grid: Positions) -> None:
        """Refuse tokens that have no place on the grid."""
        if grid.q_placed is not None or grid.k_placed is not None:
            raise InputError(f"{type(self).__name__} has no bias for tokens such as [CLS]: drop them, or use beit")


def _cells(ids: Tensor, order: Tensor, width: int) -> Tensor:
    return torch.stack((ids // width, ids % width), -1)


def _reach(grid: Positions) -> tuple[int, int]:
    """The largest offset, in rows and columns, between a query and a key that it sees."""
    step, found = max(1, PAIRS // (grid.batch * grid.num_keys)), []
    for first in range(0, grid.num_queries, step):
        some = slice(first, first + step)
        counted = grid.mask(first, min(first + step, grid.num_queries))[:, 0]
        if grid.q_placed is not None:
            counted = counted & grid.q_placed[:, some, None]
        if grid.k_placed is not None:
            counted = counted & grid.k_placed[:, None]
        offset = (grid.q[:, some, None] - grid.k[:, None]).abs()
        found.append((offset * counted[..., None]).flatten(0, 2).amax(0))
    rows, columns = map(int, torch.stack(found).amax(0))  # PyTorch 2.8 makes no list under torch.func
    return rows, columns


def _row(offset: Tensor, height: Any, width: Any) -> Tensor:
    """The row of the table for (..., 2) offsets, query minus key; offsets past the window count as its edge. height, width:
    of the window, numbers or integer tensors."""
    dy = offset[..., 0].clamp(1 - height, height - 1)
    dx = offset[..., 1].clamp(1 - width, width - 1)
    return (dy + height - 1) * (2 * width - 1) + dx + width - 1


@dataclass(eq=False, repr=False)
class WindowTable(_PatchBias):
    """Swin's table: a learned bias per head and offset (rows, columns) between two patches of a window.

    num_heads: heads of the model. height, width: of the window, in patches; height None: as many rows as train_length
    patches fill, 7 if that is not given. num_layers: layers with separate tables, as in Swin; 1: shared by all.
    init_std: of the table's normal initialisation (the source cuts it off at 100 deviations). beyond: what an image of
    another size gets: "resize", the table as `resized` has it, where the positions know the size (those of
    `Positions.grid` do), whatever it is; the others take offsets as they are, and for one past the table "error"
    refuses it, "clamp" gives it the edge's.

    `table` is (num_layers, (2 height - 1)(2 width - 1), num_heads); the offset (dy, dx), query minus key, has the row
    (dy + height - 1)(2 width - 1) + dx + width - 1. Positions are (y, x), or one number per patch, row by row: patch
    k is at (k // width, k % width), and then moving all numbers alike changes the rows they fall into.
    Raises InputError for offsets past the table, fractional positions, and tokens without a place such as [CLS].
    Source: Liu et al. 2021; microsoft/Swin-Transformer, models/swin_transformer.py.
    """

    name = "swin"
    title = "Swin's relative position bias"
    papers: ClassVar[tuple[str, ...]] = ("liu2021swin",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} + B_{h,i-j}, \quad i - j = (\Delta y, \Delta x)",
    )
    extrapolates = "partly: to other windows by interpolation"
    use_when = (
        "Take it in windows of images, as Swin does; `swin_v2` is a function, which serves windows of other sizes."
    )
    equal_to = "transformers' Swin"

    special_rows = 0
    """Rows after those of the offsets."""

    default_height: ClassVar[int] = 7
    constant = True

    num_heads: Size
    _: KW_ONLY
    height: Size | None = None
    width: Size = 7
    num_layers: Size = 1
    train_length: Size | None = None
    init_std: float = 0.02
    beyond: Literal["resize", "error", "clamp"] = "resize"

    def setup(self) -> None:
        if self.height is None:
            rows = None if self.train_length is None else math.ceil(self.train_length / self.width)
            self.height = rows or self.default_height
        self.size: tuple[int, int] = self.height, self.width
        offsets = (2 * self.height - 1) * (2 * self.width - 1)
        shape = self.num_layers, offsets + self.special_rows, self.num_heads
        self.table: nn.Parameter = normal_parameter(*shape, init_std=self.init_std)

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Relative | Positional:
        grid = self.on_patches(q, positions)
        self.refuse_unplaced(grid)
        sizes = self.sizes(grid)
        entry = self.entries(q, layer, sizes)
        if len(sizes) == 1:
            return Relative(lambda head, offset: entry(head, _row(offset, *sizes[0])), self.num_heads, grid)
        row, numbered = self.of_several(sizes, grid)
        return Positional(lambda head, i, j: entry(head, row(i, j)), self.num_heads, numbered)

    def on_patches(self, q: Tensor, positions: Positions) -> Positions:
        grid = super().on_patches(q, positions)
        grid.require_integers(type(self).__name__)
        known = self.beyond == "resize" and grid.images is not None
        if not known and self.beyond != "clamp" and not torch.compiler.is_compiling():
            rows, columns = grid.shared(_reach, lambda: _reach(grid))
            if rows >= self.size[0] or columns >= self.size[1]:
                apart = f"{rows} rows and {columns} columns apart, outside a window of {self.height} x {self.width}"
                raise InputError(f"{type(self).__name__}: patches {apart}: use resized(), beyond='clamp', or swin_v2")
        return grid

    def sizes(self, grid: Positions) -> list[tuple[int, ...]]:
        """The sizes of window that the table is read at, each once."""
        if self.beyond == "resize" and grid.images is not None:
            return list(dict.fromkeys(grid.images))
        return [self.size]

    def entries(self, q: Tensor, layer: int, sizes: Sequence[tuple[int, ...]]) -> OfOffset:
        """(head, row) -> the entry of a layer's tables of all sizes, one after another and the special rows last, in
        float32 or better."""
        table = self.table[self.own_layer(layer)].to(torch.promote_types(q.dtype, torch.float32))
        planes, special = table.split((table.shape[0] - self.special_rows, self.special_rows))
        table = torch.cat([*(self.at_size(planes, *size) for size in sizes), special])
        return lambda head, row: table[row, head]

    def at_size(self, rows: Tensor, height: int, width: int) -> Tensor:
        """The rows of offsets, (offsets, num_heads), interpolated to those of a window of another size."""
        plane = rows.T.unflatten(-1, [2 * n - 1 for n in self.size])
        return bicubic(plane, 2 * height - 1, 2 * width - 1).flatten(-2).T

    def of_several(self, sizes: Sequence[tuple[int, ...]], grid: Positions) -> tuple[OfOffset, Positions]:
        """(query place, key place) -> row of `entries`, where images have several sizes; places are (y, x, .., size's number)."""
        assert grid.images is not None
        numbers, _ = of_images(grid, [sizes.index(size) for size in grid.images])
        starts = [0, *accumulate((2 * height - 1) * (2 * width - 1) for height, width in sizes)]
        of_each = [(*size, start) for size, start in zip(sizes, starts, strict=False)]
        of_size = torch.tensor(of_each, device=grid.q.device)

        def row(i: Tensor, j: Tensor) -> Tensor:
            height, width, start = of_size[i[..., -1]].unbind(-1)
            return start + _row(i[..., :2] - j[..., :2], height, width)

        numbers = numbers.expand(-1, grid.num_queries)[..., None]
        return row, grid.derived(q=torch.cat((grid.q.expand(numbers.shape[0], -1, -1), numbers), -1))

    def resized(self, height: int, width: int) -> "WindowTable":
        """The same bias made for a window of another size, its table resized by bicubic interpolation, as the authors do
        to fine-tune at another window (microsoft/Swin-Transformer, utils.py)."""
        check_sizes(height=height, width=width)
        offsets = self.table.shape[1] - self.special_rows
        layers = [torch.cat((self.at_size(one[:offsets], height, width), one[offsets:])) for one in self.table.detach()]
        return remade(self, {"table": torch.stack(layers)}, height=height, width=width)


@dataclass(eq=False, repr=False)
class ClassWindowTable(WindowTable):
    """BEiT's table: Swin's for the patches, and three more entries per head for [CLS], which is not among them.

    Arguments are WindowTable's; the table starts at zero. Its last three rows are [CLS] to patch, patch to [CLS] and
    [CLS] to [CLS]. [CLS] is any token without a place, as in `Positions.grid(height, width, prefix=1)`.
    Raises what WindowTable does. Source: Bao et al. 2022; microsoft/unilm, beit/modeling_finetune.py.
    """

    name = "beit"
    title = "BEiT's relative position bias"
    papers: ClassVar[tuple[str, ...]] = ("bao2022beit",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} + \begin{cases} B_{h,i-j} & \quad i, j \text{ patches} \\ "
        r"B_{h,1} & \quad i = \text{[CLS]} \ne j \\ B_{h,2} & \quad j = \text{[CLS]} \ne i \\ "
        r"B_{h,3} & \quad i = j = \text{[CLS]} \end{cases}, \quad i - j = (\Delta y, \Delta x)",
    )
    use_when = "Take it in an image encoder with a [CLS] token, as BEiT does; `swin` has no entries for one."
    equal_to = "transformers' BEiT"
    special_rows = 3

    default_height = 14

    _: KW_ONLY
    width: Size = 14
    init_std: float = 0.0
    constant = True

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Positional:
        grid = self.on_patches(q, positions)
        sizes = self.sizes(grid)
        entry = self.entries(q, layer, sizes)
        first = sum((2 * height - 1) * (2 * width - 1) for height, width in sizes)
        grid = marked(grid)
        row: OfOffset = lambda i, j: _row(i - j, *sizes[0])  # noqa: E731
        if len(sizes) > 1:
            row, grid = self.of_several(sizes, grid)

        def of_positions(head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            from_class, to_class = i[..., 2] == 0, j[..., 2] == 0
            special = torch.where(from_class, torch.where(to_class, first + 2, first), first + 1)
            return entry(head, torch.where(from_class | to_class, special, row(i, j)))

        return Positional(of_positions, self.num_heads, grid)


@dataclass(eq=False, repr=False)
class LogWindow(_PatchBias):
    """Swin v2's continuous bias: 16 sigmoid(MLP(log-spaced offset)), with cosine attention at a learned temperature.

    num_heads: heads of the model. height, width: of the window trained with, in patches.
    num_layers: layers with separate functions, as in Swin v2; 1: shared by all. hidden: width of the MLP, which is
    2 -> hidden -> num_heads with ReLU and a bias in its first layer only. cosine: divide queries and keys by their
    norms and multiply the scores by exp(temperature), learned per head, from 10 on and at most 100; False leaves
    the scores as they are and adds the bias alone.

    An offset of d patches along an axis of n enters as sign(d) log2(1 + 8 |d| / (n - 1)) / 3 (`log_spaced`). Any
    offset has a bias, fractional ones too. Positions are as in WindowTable. The MLP sees each offset once; in compiled
    code and for fractional offsets, once per pair of tokens.
    Raises InputError for tokens without a place such as [CLS].
    Source: Liu et al. 2022; microsoft/Swin-Transformer, models/swin_transformer_v2.py.
    """

    name = "swin_v2"
    title = "Swin v2's continuous position bias"
    papers: ClassVar[tuple[str, ...]] = ("liu2022swin",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \tau_h \frac{q_i \cdot k_j}{\lVert q_i \rVert \lVert k_j \rVert} + B_{ij}",
        r"B_{ij} = 16\, \sigma(f_h(g(\Delta y), g(\Delta x))), \quad i - j = (\Delta y, \Delta x)",
        r"g(t) = \frac{\operatorname{sign} t}{3} \log_2\left( 1 + \frac{8 |t|}{n - 1} \right)",
    )
    extrapolates = "yes: the function is defined for windows of any size"
    use_when = "Take it in windows of images that grow after training, as Swin v2 does; `swin` is a table."
    equal_to = "transformers' Swin v2"
    constant = True

    num_heads: Size
    _: KW_ONLY
    height: Size = 8
    width: Size = 8
    num_layers: Size = 1
    hidden: Size = 512
    cosine: bool = True

    def setup(self) -> None:
        self.mlp: HeadPerceptron = HeadPerceptron(2, self.hidden, self.num_heads, self.num_layers, last_bias=False)
        if self.cosine:
            self.temperature: nn.Parameter = nn.Parameter(torch.full((self.num_layers, self.num_heads), math.log(10)))

    def of_offset(self, head: Tensor, offset: Tensor, layer: int, dtype: torch.dtype) -> Tensor:
        """A layer's bias of broadcastable heads and (..., 2) offsets, query minus key, in dtype."""
        coordinates = log_spaced(offset, self.height, self.width).to(dtype)
        return 16 * torch.sigmoid(self.mlp(coordinates, head, layer))

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Relative:
        grid = self.on_patches(q, positions)
        self.refuse_unplaced(grid)
        dtype = torch.promote_types(q.dtype, torch.float32)
        function = partial(self.of_offset, layer=self.own_layer(layer), dtype=dtype)
        return Relative(self.tabulated(function, grid) or function, self.num_heads, grid)

    def tabulated(self, function: OfOffset, grid: Positions) -> OfOffset | None:
        """The function read from a table of the offsets that occur, where those are fewer than the pairs: the MLP
        then sees each once. None where that cannot be known, in compiled code, or offsets are not integers."""
        if torch.compiler.is_compiling() or grid.fractional:
            return None
        rows, columns = grid.shared(_reach, lambda: _reach(grid))
        if (2 * rows + 1) * (2 * columns + 1) >= grid.num_queries * grid.num_keys:
            return None
        steps = [torch.arange(-n, n + 1, device=grid.q.device) for n in (rows, columns)]
        heads = torch.arange(self.num_heads, device=grid.q.device)
        table = function(heads[:, None], torch.cartesian_prod(*steps))
        return lambda head, offset: table[head, _row(offset, rows + 1, columns + 1)]

    planes = ()

    @property
    def normalises(self) -> bool:  # type: ignore[override]
        return self.cosine

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        require_fit(positions, q=q, k=k)
        check_heads(self, q, self.num_heads)
        if not self.cosine:
            return q, k
        dtype = torch.promote_types(q.dtype, torch.float32)
        factor = self.temperature[self.own_layer(layer)].to(dtype).clamp(max=math.log(100)).exp()
        q_direction, k_direction = F.normalize(q.to(dtype), dim=-1), F.normalize(k.to(dtype), dim=-1)
        return (q_direction * factor[:, None, None]).to(q.dtype), k_direction.to(k.dtype)

    def scale(self, head_dim: int) -> float:
        return 1.0 if self.cosine else super().scale(head_dim)


def log_spaced(offset: Tensor, height: int, width: int) -> Tensor:
    """Swin v2's coordinates of (..., 2) offsets in a window: log2(9)/3 at the furthest, finer near by."""
    # along an axis of one patch the next one counts as the furthest
    offset = exact(offset)
    furthest = offset.new_tensor([max(height - 1, 1), max(width - 1, 1)])
    return offset.sign() * torch.log2(1 + 8 * offset.abs() / furthest) / 3
