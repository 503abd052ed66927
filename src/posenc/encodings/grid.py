# SPDX-License-Identifier: Apache-2.0
"""Sinusoidal codes of places in an image or a video."""

from typing import ClassVar

from torch import Tensor
from torch.nn.functional import pad

from posenc.checks import checked
from posenc.encodings.absolute import Absolute
from posenc.errors import InputError
from posenc.functional import SinusoidalLayout, frequency_curve, sinusoidal_from
from posenc.positions import Positions
from posenc.positions.ids import prefix_tokens


class GridSinusoidal(Absolute):
    """A sinusoidal code per coordinate, side by side: of (y, x) in an image or (t, y, x) in a video.

    dim: width of the model; each axis gets the largest even number of channels that all can have, and channels left
    over stay zero. axes: coordinates per token, 2 or 3. base: of the frequencies. layout: "concat" (MAE) or
    "interleaved" (DETR). x_first: begin with the last coordinate, as the authors' MAE does; DETR and ViTMAE in
    transformers begin with y.

    Coordinates may be fractional: DETR's are 2 pi (y + 1) / height. Tokens at -1 on every axis, such as [CLS], get a
    zero code; text tokens are at their number on every axis. Raises InputError for other numbers of axes or too few
    channels. Source: Carion et al. 2020, "DETR"; He et al. 2022, "MAE"; as in their code.
    """

    name = "grid_sinusoidal"
    papers: ClassVar[tuple[str, ...]] = ("he2022masked", "carion2020end")
    formula: ClassVar[tuple[str, ...]] = (
        r"x_i' = x_i + [p(y); p(x)], \quad i = (y, x)",
        r"p(t) = [\sin(t \theta_c); \cos(t \theta_c)], \quad \theta_c = b^{-4c/d}",
    )
    extrapolates = "hoped for"
    equal_to = "transformers' ViTMAE, DETR"
    one_axis = False

    @checked
    def __init__(
        self,
        dim: int,
        axes: int = 2,
        base: float = 10000.0,
        layout: SinusoidalLayout = "concat",
        x_first: bool = False,
        merge: str = "add",
    ) -> None:
        super().__init__(dim, merge)
        if axes not in (2, 3):
            raise InputError(f"axes={axes}: an image has 2, a video 3; for one use Sinusoidal")
        if dim < 2 * axes:
            raise InputError(f"dim={dim}: needs a pair of channels for each of {axes} axes")
        self.axes = axes
        self.base = base
        self.layout = layout
        self.x_first = x_first
        self.register_tables()

    frequencies: Tensor

    def tables(self) -> dict[str, Tensor]:
        return {"frequencies": frequency_curve(self.dim // (2 * self.axes) * 2, self.base)}

    def codes(self, positions: Positions) -> Tensor:
        return self.remember(positions, "codes", lambda: self._codes(positions))

    def _codes(self, positions: Positions) -> Tensor:
        at, _ = positions.coordinates(self.axes, type(self).__name__)
        if self.x_first:
            at = at.flip(-1)
        codes = sinusoidal_from(at, self.frequencies, self.layout).flatten(-2)
        codes = codes.masked_fill(prefix_tokens(at)[..., None], 0)
        return pad(codes, (0, self.dim - codes.shape[-1]))
