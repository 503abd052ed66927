"""Absolute encodings: a code per position, merged into the model's input."""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from posenc.encoding import Encoding
from posenc.errors import InputError, unknown
from posenc.functional import SinusoidalLayout, frequency_curve, sinusoidal_from
from posenc.positions import Positions

MERGES = ("add", "multiply", "concat")


class Absolute(Encoding):
    """Base of the absolute encodings: a subclass defines `codes`, this merges them into the first layer's input.

    merge:
        "add": x + p (Vaswani et al. 2017).
        "multiply": x * (1 + p), the identity where p = 0 (Su's bert4keras).
        "concat": [x, p] W with a learned (2 dim, dim) matrix W, which starts as the identity over a random
            orthogonal one: concatenation is addition with a projection of the position's own.
    """

    def __init__(self, dim: int, merge: str = "add") -> None:
        super().__init__()
        if merge not in MERGES:
            raise unknown("merge", merge, MERGES)
        if dim < 1:
            raise InputError(f"dim={dim}: must be at least 1")
        self.dim, self.merge = dim, merge
        if merge == "concat":
            self.projection = nn.Linear(2 * dim, dim, bias=False)
            with torch.no_grad():
                nn.init.eye_(self.projection.weight[:, :dim])
                nn.init.orthogonal_(self.projection.weight[:, dim:])

    def codes(self, positions: Positions) -> Tensor:
        """The codes of the queries' positions: (batch or 1, num_queries, dim)."""
        raise NotImplementedError  # abstract: every subclass defines it

    def embed(self, x: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        if layer:
            return x
        if x.shape[-1] != self.dim:
            raise InputError(f"x of width {x.shape[-1]}: this {type(self).__name__} was made with dim={self.dim}")
        positions.require_one_axis(type(self).__name__)
        codes = self.codes(positions).to(x)
        if self.merge == "add":
            return x + codes
        if self.merge == "multiply":
            return x * (1 + codes)
        return self.projection(torch.cat((x, codes.expand_as(x)), -1))


class Sinusoidal(Absolute):
    """Sines and cosines of geometric frequencies: p_k = (sin k theta_c, cos k theta_c), theta_c = base^(-2c/dim).

    dim: width of the model. base, curve, exponent, endpoint: the frequencies, see `functional.frequency_curve`.
    layout: "interleaved" (the paper) or "concat". amplitude multiplies the code.
    Raises InputError for an odd dim. Source: Vaswani et al. 2017, section 3.5.
    """

    name = "sinusoidal"
    papers = ("vaswani2017attention",)
    extrapolates = "hoped for"

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        layout: SinusoidalLayout = "interleaved",
        merge: str = "add",
        amplitude: float = 1.0,
        curve: str = "geometric",
        exponent: float = 1.0,
        endpoint: bool = False,
    ) -> None:
        super().__init__(dim, merge)
        self.base, self.layout, self.amplitude = base, layout, amplitude
        self.curve, self.exponent, self.endpoint = curve, exponent, endpoint
        if layout not in ("interleaved", "concat"):
            raise unknown("layout", layout, ("interleaved", "concat"))
        self.register_tables()

    def tables(self) -> dict[str, Tensor]:
        return {"frequencies": frequency_curve(self.dim, self.base, self.curve, self.exponent, self.endpoint)}

    frequencies: Tensor

    def codes(self, positions: Positions) -> Tensor:
        return positions.shared(
            (self, "codes"), lambda: self.amplitude * sinusoidal_from(positions.q, self.frequencies, self.layout)
        )


class Learned(Absolute):
    """One learned vector per position (Gehring et al. 2017; BERT, GPT-2).

    max_positions: rows of the table. dim: width of the model. init_std: of its normal initialisation.
    beyond: what a position past the table gets: "error" refuses it, "clamp" gives it the last row.
    Raises InputError for a position outside the table (negative ones always).
    """

    name = "learned"
    papers = ("gehring2017convolutional",)
    extrapolates = "no: undefined past the table"

    def __init__(
        self, max_positions: int, dim: int, merge: str = "add", init_std: float = 0.02, beyond: str = "error"
    ) -> None:
        super().__init__(dim, merge)
        if max_positions < 1:
            raise InputError(f"max_positions={max_positions}: must be at least 1")
        if beyond not in ("error", "clamp"):
            raise unknown("beyond", beyond, ("error", "clamp"))
        check_std(init_std)
        self.max_positions, self.init_std, self.beyond = max_positions, init_std, beyond
        self.table = nn.Parameter(torch.empty(max_positions, dim))
        nn.init.normal_(self.table, std=init_std)

    def codes(self, positions: Positions) -> Tensor:
        ids = positions.q
        if ids.is_floating_point():
            raise InputError("Learned has rows for integer positions only: round them, or use Sinusoidal")
        assert self.max_positions is not None
        if not torch.compiler.is_compiling():
            low, high = positions.shared("range", lambda: tuple(int(v) for v in ids.aminmax()))
            if low < 0:
                raise InputError(f"Learned: position {low} is negative; positions start at 0")
            if high >= self.max_positions and self.beyond == "error":
                raise InputError(
                    f"Learned: position {high} is outside the table of {self.max_positions}; make it larger "
                    "(max_positions=), pass beyond='clamp', or use an encoding without a table (rope, alibi, t5)"
                )
            if ids.is_inference():
                ids = ids.clone()  # positions made in inference mode may meet training later
        return embedding(ids.clamp(max=self.max_positions - 1) if self.beyond == "clamp" else ids, self.table)


def check_std(init_std: float) -> None:
    """Refuse a standard deviation that is none."""
    if not 0 <= init_std < float("inf"):
        raise InputError(f"init_std={init_std}: must be a number from 0 on")
