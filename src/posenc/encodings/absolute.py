# SPDX-License-Identifier: Apache-2.0
"""Absolute encodings: a sinusoidal or learned code per position, merged into the model's input."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from posenc.encoding import Encoding, Size, require_fit
from posenc.encodings.shared import Affine, Beyond, check_width, make_orthogonal, normal_parameter
from posenc.errors import InputError, check_sizes, check_tensor, check_word
from posenc.functional import SinusoidalLayout, frequency_curve, sinusoidal_from
from posenc.positions import Positions
from posenc.positions.patches import coordinates_of

MERGES = ("add", "multiply", "product", "concat")


class Absolute(Encoding):
    """Base of the absolute encodings: a subclass defines `codes`, this merges them into the first layer's input.

    merge:
        "add": x + p (Vaswani et al. 2017).
        "multiply": x * (1 + p), the identity where p = 0 (Su's bert4keras).
        "product": x * p, for codes around one: where p is small it takes the signal away.
        "concat": [x, p] W with a learned (2 dim, dim) matrix W, which starts as the identity over a random
            orthogonal one: concatenation is addition with a separate projection of the position.
    """

    one_axis: ClassVar[bool] = True
    """Its positions have one coordinate each, as text has; positions on a grid are refused."""

    dim: Size
    merge: str

    def __init__(self, dim: int, *, merge: str = "add") -> None:
        super().__init__()
        check_sizes(dim=dim)
        self.dim = dim
        self.merge = merge
        Absolute.setup(self)

    def setup(self) -> None:
        check_word("merge", self.merge, MERGES)
        if self.merge == "concat":
            self.projection: Affine = Affine(2 * self.dim, self.dim, bias=False)
            with torch.no_grad():
                nn.init.eye_(self.projection.weight[:, : self.dim])
                make_orthogonal(self.projection.weight[:, self.dim :])

    def codes(self, positions: Positions) -> Tensor:
        """The codes of the queries' positions: (batch or 1, num_queries, dim)."""
        raise NotImplementedError  # abstract: every subclass defines it

    def position_codes(self, positions: Positions, layer: int = 0) -> Tensor:
        return self.codes(positions)

    def embed(self, x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        if layer:
            return x
        require_fit(positions, x=x)
        check_width(self, x, self.dim)
        if self.one_axis:
            positions.require_one_axis(type(self).__name__)
        codes = self.codes(positions).to(x)
        if self.merge == "add":
            return x + codes
        if self.merge == "multiply":
            return x * (1 + codes)
        if self.merge == "product":
            return x * codes
        return self.projection(torch.cat((x, codes.expand_as(x)), -1))


@dataclass(eq=False, repr=False)
class Sinusoidal(Absolute):
    """Sines and cosines of geometric frequencies: p_i = (sin i theta_c, cos i theta_c), theta_c = base^(-2c/dim).

    dim: width of the model. base, curve, exponent, endpoint: the frequencies, see `functional.frequency_curve`.
    layout: "interleaved" (the paper) or "concat". amplitude multiplies the code.
    Raises InputError for an odd dim. Source: Vaswani et al. 2017, section 3.5.
    """

    name = "sinusoidal"
    title = "sinusoidal encoding, sines and cosines"
    papers: ClassVar[tuple[str, ...]] = ("vaswani2017attention",)
    formula: ClassVar[tuple[str, ...]] = (
        r"p_{i,2c} = \sin(i \theta_c), \quad p_{i,2c+1} = \cos(i \theta_c)",
        r"x_i' = x_i + p_i, \quad \theta_c = b^{-2c/d}",
    )
    extrapolates = "not claimed"
    use_when = (
        "Take it where a fixed code at the input is enough, as in Marian and Whisper; `rope` rotates queries and "
        "keys instead."
    )
    equal_to = "transformers' XLM, Marian, RoFormer, Whisper, Wav2Vec2-Conformer"

    dim: Size
    _: KW_ONLY
    base: float = 10000.0
    layout: SinusoidalLayout = "interleaved"
    merge: str = "add"
    amplitude: float = 1.0
    curve: str = "geometric"
    exponent: float = 1.0
    endpoint: bool = False
    frequencies: Tensor = field(init=False)

    def tables(self) -> dict[str, Tensor]:
        options = {"base": self.base, "curve": self.curve, "exponent": self.exponent, "endpoint": self.endpoint}
        return {"frequencies": frequency_curve(self.dim, **options)}  # type: ignore[arg-type]

    def code_frequencies(self) -> Tensor:
        return self.frequencies

    def codes(self, positions: Positions) -> Tensor:
        return self.remember(
            positions, "codes", lambda: self.amplitude * sinusoidal_from(positions.q, self.frequencies, self.layout)
        )


@dataclass(eq=False, repr=False)
class GridSinusoidal(Absolute):
    """A sinusoidal code per coordinate, side by side: of (y, x) in an image or (t, y, x) in a video.

    dim: width of the model; each axis gets the largest even number of channels that all can have, and channels left
    over stay zero. axes: coordinates per token, 2 or 3. base: of the frequencies. layout: "concat", sines before cosines in
    the code of each axis (MAE), "interleaved", in turn (DETR), or "grouped", the sines of all axes before the cosines of all
    (timm). x_first: begin with the last coordinate, as the authors' MAE does; DETR, ViTMAE in transformers and timm begin
    with y. cos_first: cosines before sines. endpoint: the last frequency is 1/base, as in `Sinusoidal` (big_vision's ViT,
    with x_first).

    Coordinates may be fractional: DETR's are 2 pi (y + 1) / height. Tokens without a place, such as [CLS], get a
    zero code; text tokens are at their number on every axis. Raises InputError for other numbers of axes or too few
    channels. Source: Carion et al. 2020, "DETR"; He et al. 2022, "MAE"; as in their code.
    """

    name = "grid_sinusoidal"
    title = "2D sinusoidal encoding"
    papers: ClassVar[tuple[str, ...]] = ("he2022masked", "carion2020end")
    formula: ClassVar[tuple[str, ...]] = (
        r"x_i' = x_i + [p(y); p(x)], \quad i = (y, x)",
        r"p(t) = [\sin(t \theta_c); \cos(t \theta_c)], \quad \theta_c = b^{-4c/d}",
    )
    extrapolates = "not claimed"
    use_when = (
        "Take it for images and video where nothing is to be learned, as MAE and DETR do; `axial_rope` rotates instead."
    )
    equal_to = "transformers' ViTMAE, DETR; timm"
    one_axis = False

    dim: Size
    _: KW_ONLY
    axes: Size = 2
    base: float = 10000.0
    layout: Literal["concat", "interleaved", "grouped"] = "concat"
    x_first: bool = False
    cos_first: bool = False
    endpoint: bool = False
    merge: str = "add"
    frequencies: Tensor = field(init=False)

    def setup(self) -> None:
        super().setup()
        if self.axes not in (2, 3):
            raise InputError("an image has 2, a video 3", "for one use Sinusoidal", axes=self.axes)
        if self.dim < 2 * self.axes:
            raise InputError(f"needs a pair of channels for each of {self.axes} axes", dim=self.dim)

    def tables(self) -> dict[str, Tensor]:
        width = self.dim // (2 * self.axes) * 2
        return {"frequencies": frequency_curve(width, base=self.base, endpoint=self.endpoint)}

    def codes(self, positions: Positions) -> Tensor:
        return self.remember(positions, "codes", lambda: self._codes(positions))

    def _codes(self, positions: Positions) -> Tensor:
        at, _ = coordinates_of(positions, self.axes, type(self).__name__)
        check_tensor("positions", at)
        if self.x_first:
            at = at.flip(-1)
        angles = at.to(self.frequencies)[..., None] * self.frequencies
        waves = (angles.cos(), angles.sin()) if self.cos_first else (angles.sin(), angles.cos())
        if self.layout == "interleaved":
            codes = torch.stack(waves, -1).flatten(-3)
        else:
            codes = torch.cat(waves, -2 if self.layout == "grouped" else -1).flatten(-2)
        if positions.q_placed is not None:
            codes = codes * positions.q_placed[..., None]
        return pad(codes, (0, self.dim - codes.shape[-1]))


@dataclass(eq=False, repr=False)
class Learned(Absolute):
    """One learned vector per position (Gehring et al. 2017; BERT, GPT-2).

    max_positions: rows of the table. dim: width of the model. init_std: of its normal initialisation.
    beyond: what a position past the table gets: "error" refuses it, "clamp" gives it the last row.
    Raises InputError for a position outside the table (negative ones always).
    """

    name = "learned"
    title = "learned position embeddings"
    papers: ClassVar[tuple[str, ...]] = ("gehring2017convolutional",)
    formula: ClassVar[tuple[str, ...]] = (r"x_i' = x_i + P_i, \quad P \in \mathbb{R}^{L \times d}",)
    extrapolates = "no: undefined past the table"
    use_when = (
        "Take it for inputs of a fixed greatest length, as BERT and GPT-2 do; `hierarchical` extends a trained table."
    )
    equal_to = "transformers' BERT, GPT-2"

    max_positions: Size = field()  # required, though Encoding has a default
    _: KW_ONLY
    dim: Size
    merge: str = "add"
    init_std: float = 0.02
    beyond: Beyond = "error"

    def setup(self) -> None:
        super().setup()
        self.table: nn.Parameter = normal_parameter(self.max_positions, self.dim, init_std=self.init_std)

    def codes(self, positions: Positions) -> Tensor:
        assert self.max_positions is not None
        return embedding(rows_of(self, positions, (self.max_positions,), self.beyond), self.table)


def rows_of(
    user: Encoding,
    positions: Positions,
    sizes: Sequence[int],
    beyond: str,
    remedy: str = "make it larger (max_positions=), pass beyond='clamp', or use an encoding without a table (rope, alibi)",
    unplaced: bool = False,
    keys: bool = False,
) -> Tensor:
    """The rows that the queries' positions (or the keys') name in a learned table of a line or a grid: (batch or 1, n).

    sizes: of the table's axes. A position is a coordinate on each, or one number that counts the cells row by row.
    beyond: what a position outside gets: "clamp" the nearest row, else an error. remedy: what an error advises.
    unplaced: tokens without a place are let through, with the row of position 0; else they are refused."""
    name, at = type(user).__name__, positions.k if keys else positions.q
    at = at if at.dim() == 3 else at[..., None]
    if at.is_floating_point():
        raise InputError(f"{name} has rows for integer positions only: round them, or use one without a table")
    if positions.axes == 1:
        sizes = (math.prod(sizes),)
    elif len(sizes) == 1:
        positions.require_one_axis(name)
    elif positions.axes != len(sizes):
        remedy = f"pass Positions.from_ids of shape (batch, n, {len(sizes)})"
        raise InputError(f"{name} takes {len(sizes)} coordinates per token, or one, not {positions.axes}: {remedy}")
    placed = positions.k_placed if keys else positions.q_placed
    if placed is not None and not unplaced:
        raise InputError(f"{name} has no row for tokens without a place, such as [CLS]: drop them, or use grid_table")
    if not torch.compiler.is_compiling():

        def extent() -> tuple[list[int], list[int]]:
            if positions.start is not None and positions.axes == 1:  # known, without waiting for a GPU
                first = positions.start[1 if keys else 0]
                return [first], [first + at.shape[1] - 1]
            inside = at.flatten(0, 1)
            return inside.amin(0).tolist(), inside.amax(0).tolist()

        lows, highs = positions.shared(("range", keys), extent)
        for low, high, size in zip(lows, highs, sizes, strict=True):
            if low < 0:
                raise InputError(f"{name}: position {low} is negative; positions start at 0")
            if high >= size and beyond != "clamp":
                raise InputError(f"{name}: position {high} is outside the table of {size}; {remedy}")
        if at.is_inference():
            at = at.clone()  # positions made in inference mode may meet training later
    if beyond == "clamp":
        at = torch.stack([at[..., axis].clamp(max=size - 1) for axis, size in enumerate(sizes)], -1)
    rows = at[..., 0]
    for axis in range(1, len(sizes)):
        rows = rows * sizes[axis] + at[..., axis]
    return rows
