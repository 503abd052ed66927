# SPDX-License-Identifier: Apache-2.0
"""Biases of the distance alone: a number per head and distance, added to the scores."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from posenc.bias import KeySlope, Positional, Relative
from posenc.encoding import Encoding, Size
from posenc.encodings.shared import check_heads, normal_parameter
from posenc.errors import InputError, as_numbers
from posenc.functional import alibi_slopes, check_even, frequency_curve, t5_bucket
from posenc.positions import Positions
from posenc.positions.ids import exact
from posenc.positions.patches import marked

STEEPEST = 1e20
"""The largest slope: its bias of any distance is a number of float32."""


class DistanceBias(Encoding):
    """The base of a bias of the distance alone: a subclass says which, in `of_distance`.

    A subclass is a dataclass with a field `num_heads`; learned parameters are made in `setup`, for `num_layers` layers where it
    has that field. Distances may be fractional, and negative ones are those of keys after the query.
    """

    family = "bias"
    shift_invariant = True
    bias_reads_keys = False
    num_heads: Size

    def of_distance(self, head: Tensor, distance: Tensor, layer: int, dtype: torch.dtype) -> Tensor:
        """A layer's bias of broadcastable heads and distances (query position minus key position), in dtype."""
        raise NotImplementedError  # abstract: every subclass defines it

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Relative:
        check_heads(self, q, self.num_heads)
        positions.require_one_axis(type(self).__name__)
        dtype = torch.promote_types(q.dtype, torch.float32)
        function = partial(self.of_distance, layer=self.own_layer(layer), dtype=dtype)
        return Relative(function, self.num_heads, positions)


class Bucketed(Protocol):
    """What has T5's buckets of distances."""

    bidirectional: bool | None
    num_buckets: int
    max_distance: int


def bucket_of(encoding: Bucketed, distance: Tensor, causal: bool) -> Tensor:
    """T5's bucket of query position minus key position. causal: whether the positions are."""
    both = not causal if encoding.bidirectional is None else encoding.bidirectional
    count, farthest = encoding.num_buckets, encoding.max_distance
    return t5_bucket(-distance, bidirectional=both, num_buckets=count, max_distance=farthest)


def check_buckets(encoding: Bucketed) -> None:
    """Refuse sizes that a direction which positions may have does not take."""
    for causal in (False, True):
        bucket_of(encoding, torch.zeros(1, dtype=torch.long), causal)


def warn_of_half(encoding: Bucketed, table: Tensor, positions: Positions) -> None:
    """Warn where half of a table that learns is of keys that no query sees."""
    if not encoding.bidirectional or positions.sees_future or torch.compiler.is_compiling():
        return
    if table.requires_grad and torch.is_grad_enabled():
        warnings.warn(
            f"posenc: {type(encoding).__name__} has bidirectional=True and the positions are causal: half of its "
            f"{encoding.num_buckets} buckets are of keys after the query and never learn; leave bidirectional out",
            stacklevel=3,
        )


@dataclass(eq=False, repr=False)
class T5(DistanceBias):
    """T5's learned bias per head and bucket of distances; scores are not divided by the square root of head_dim.

    num_heads: heads of the model. bidirectional: separate buckets for keys after the query; None: where positions are not
    causal. num_buckets, max_distance: how distances are bucketed, see `functional.t5_bucket`. init_std: of the table
    (T5's own is dim^-1/2). scaled: divide scores by the square root of head_dim after all (MPNet does).
    One table serves every layer. Source: Raffel et al. 2020, section 2.1.
    """

    name = "t5"
    title = "T5's relative position bias"
    papers: ClassVar[tuple[str, ...]] = ("raffel2020exploring",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = q_i \cdot k_j + B_{h,\beta(j-i)}",
        r"\beta(j - i) = \begin{cases} \gamma(i - j) & \quad j \le i \\ 2m + \gamma(j - i) & \quad j > i \end{cases}",
        r"\gamma(n) = \begin{cases} n & \quad n < m \\ \min\left(m + \left\lfloor m\, \frac{\ln(n/m)}{\ln(D/m)} "
        r"\right\rfloor, 2m - 1\right) & \quad n \ge m \end{cases}",
        r"m = \text{half the buckets of a direction}",
    )
    extrapolates = "yes: one bias for all far distances"
    use_when = "Take it in encoders and encoder-decoders, as T5 and MPNet do; `alibi` learns nothing."
    equal_to = "transformers' T5, MPNet"
    constant = True

    num_heads: Size
    _: KW_ONLY
    bidirectional: bool | None = None
    num_buckets: int = 32
    max_distance: int = 128
    init_std: float = 0.02
    scaled: bool = False

    def setup(self) -> None:
        check_buckets(self)
        self.table: nn.Parameter = normal_parameter(self.num_heads, self.num_buckets, init_std=self.init_std)

    def of_distance(
        self, head: Tensor, distance: Tensor, layer: int, dtype: torch.dtype, causal: bool = True
    ) -> Tensor:
        """causal: whether the positions are, where bidirectional is None."""
        buckets, table = bucket_of(self, distance, causal), self.table.to(dtype)
        if table.is_cuda and buckets.dim() == 1 and head.dim() == 2:
            # the gradient of indices of which thousands are equal is added one after the other there
            return table.index_select(0, head.flatten()).index_select(1, buckets)
        return table[head, buckets]

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Relative:
        positions.require_integers("T5", "round the positions, or use ALiBi or KERPLE")
        warn_of_half(self, self.table, positions)
        relative = super().bias(q, k, positions, layer)
        relative.function = partial(relative.function, causal=positions.causal)  # type: ignore[call-arg]
        return relative

    def scale(self, head_dim: int) -> float:
        return super().scale(head_dim) if self.scaled else 1.0


@dataclass(eq=False, repr=False)
class ALiBi(DistanceBias):
    """Attention with linear biases: -slope_h * |distance|, nothing learned.

    num_heads: any number of heads; the slopes are `functional.alibi_slopes`. bias_max: the last head's slope is 2^-bias_max
    (MPT's alibi_bias_max). slopes: other ones, (num_heads,), or (batch, num_heads) for each row of the batch, as
    flash-attention's alibi_slopes, up to 1e20. Raises InputError for slopes of other heads, that need a gradient, or with bias_max.
    Source: Press, Smith and Lewis 2022, section 3.
    """

    name = "alibi"
    title = "attention with linear biases (ALiBi)"
    papers: ClassVar[tuple[str, ...]] = ("press2022train",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} - m_h |i - j|",
        r"m_h = 2^{-8(h+1)/H} \quad (H \text{ a power of two})",
    )
    extrapolates = "yes: trained short, tested long"
    use_when = (
        "Take it for inputs longer than in training where nothing is to be learned, as BLOOM and MPT do; `kerple` "
        "learns the decay."
    )
    equal_to = "transformers' BLOOM, MPT"
    constant = True

    num_heads: Size
    _: KW_ONLY
    bias_max: float = 8.0
    slopes: Sequence[float] | Sequence[Sequence[float]] | Tensor | None = None
    slope_table: Tensor = field(init=False)

    def setup(self) -> None:
        if self.slopes is None:
            return
        if self.bias_max != 8.0:
            raise InputError("pass one of them", slopes=self.slopes, bias_max=self.bias_max)
        if isinstance(self.slopes, Tensor) and self.slopes.requires_grad:
            raise InputError("they are not learned: pass slopes.detach(), or take KERPLE", slopes=self.slopes)
        given = as_numbers("slopes", self.slopes, "cpu", torch.float64)
        if given.dim() not in (1, 2) or given.shape[-1] != self.num_heads or not (given.abs() <= STEEPEST).all():
            shapes = f"({self.num_heads},) or (batch, {self.num_heads})"
            raise InputError(f"pass numbers up to {STEEPEST:g}, {shapes}", slopes=self.slopes)
        self.slopes = given.tolist()
        self.constant = self.constant and given.dim() == 1  # rows of the batch with slopes each make a term of the keys

    def _of_heads(self, first: int, end: int) -> dict[str, Any]:
        changed = super()._of_heads(first, end)
        if self.slopes is None:
            return changed
        given = torch.tensor(self.slopes, dtype=torch.float64, device="cpu")
        return changed | {"slopes": given[..., first:end].tolist()}

    def tables(self) -> dict[str, Tensor]:
        if self.slopes is not None:
            return {"slope_table": torch.tensor(self.slopes, dtype=torch.float64, device="cpu")}
        return {"slope_table": alibi_slopes(self.num_heads, bias_max=self.bias_max)}

    @property
    def by_row(self) -> bool:
        """Whether rows of the batch have slopes each."""
        return self.slope_table.dim() == 2

    def bias(  # type: ignore[override]
        self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0
    ) -> Relative | KeySlope:
        if not self.by_row:
            return super().bias(q, k, positions, layer)
        check_heads(self, q, self.num_heads)
        positions.require_one_axis(type(self).__name__)
        if self.slope_table.shape[0] != q.shape[0]:
            raise InputError(f"slopes of {self.slope_table.shape[0]} rows, q has {q.shape[0]}: give one for each")
        rows = self.slope_table.to(q.device, torch.promote_types(q.dtype, torch.float32))
        return KeySlope(rows[..., None].expand(-1, -1, k.shape[2]), positions)

    def of_distance(self, head: Tensor, distance: Tensor, layer: int, dtype: torch.dtype) -> Tensor:
        return -self.slope_table.to(head.device, dtype)[head] * distance.abs()


class GridALiBi(ALiBi):
    """ALiBi between the patches of an image: -slope_h * their Euclidean distance, nothing learned.

    num_heads, bias_max, slopes: as in `ALiBi`, without slopes for each row of the batch. Positions are (y, x) or (t, y, x), in patches, fractional
    ones too; where tokens have one coordinate it is ALiBi. Those without a place, such as [CLS], are at no distance from any.
    Source: Fuller et al. 2023, section 3, "2D-ALiBi"; antofuller/CROMA, get_2dalibi. Between the patches of two images
    (their "X-ALiBi") it is the same bias, with `Positions.cross`.
    """

    name = "grid_alibi"
    family = "grid"
    title = "2D ALiBi"
    papers: ClassVar[tuple[str, ...]] = ("fuller2023croma",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} - m_h \lVert i - j \rVert",
        r"m_h = 2^{-8(h+1)/H} \quad (H \text{ a power of two})",
    )
    extrapolates = "yes: to larger images"
    use_when = (
        "Take it for images larger than in training where nothing is to be learned, as CROMA does; `swin` is a "
        "learned table."
    )
    equal_to = "the formula"
    constant = True

    def bias(  # type: ignore[override]
        self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0
    ) -> Relative | KeySlope | Positional:
        if positions.q.dim() == 2:
            return super().bias(q, k, positions, layer)
        if self.by_row:
            raise InputError(f"slopes of {self.slope_table.shape[0]} rows: GridALiBi takes (num_heads,) on a grid")
        check_heads(self, q, self.num_heads)
        dtype = torch.promote_types(q.dtype, torch.float32)

        def of_positions(head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            squares = (i - j)[..., :-1].square().sum(-1).to(dtype)
            apart = squares > 0  # the slope of a root at 0 is infinite
            distance = torch.where(apart, torch.where(apart, squares, 1.0).sqrt(), 0.0)
            both_placed = i[..., -1] * j[..., -1]
            return self.of_distance(head, distance * both_placed.to(dtype), layer, dtype)

        return Positional(of_positions, self.num_heads, marked(positions))


@dataclass(eq=False, repr=False)
class KERPLE(DistanceBias):
    """Learned decay with the distance: -p log(1 + a |distance|), or -a |distance|^p, with p and a per head.

    num_heads: heads of the model. num_layers: layers with separate p and a (the authors: all of them); 1: shared by all.
    kind: "log", or "power", which is ALiBi with a learned slope a where p = 1.
    bound: the least value of p and a; the power's p is at most 2, as the kernel's definiteness asks.

    p starts uniform below 2, a uniform below 1, both from `bound` on. The value in use is clamped, and its gradient passes to
    the parameter as if it were not, as in the authors' code: a parameter at the bound stays free to leave it. Keys after
    the query, which the authors' causal models hide, count by their distance.
    Raises InputError for an unknown kind. Source: Chi et al. 2022; chijames/KERPLE,
    megatron/mpu/layers.py.
    """

    name = "kerple"
    title = "KERPLE, learned decay"
    papers: ClassVar[tuple[str, ...]] = ("chi2022kerple",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} - \begin{cases} p_h \ln(1 + a_h |i - j|) & \quad \text{log} \\ "
        r"a_h |i - j|^{p_h} & \quad \text{power} \end{cases}",
    )
    extrapolates = "yes: trained short, tested long"
    use_when = (
        "Take it where the decay with the distance is to be learned; `alibi` has fixed slopes, `fire` a learned "
        "function."
    )
    constant = True

    num_heads: Size
    _: KW_ONLY
    num_layers: Size = 1
    kind: Literal["log", "power"] = "log"
    bound: float = 0.01

    def setup(self) -> None:
        if not 0 < self.bound < 1:
            raise InputError("must lie between 0 and 1, where a starts", bound=self.bound)
        self.p: nn.Parameter = nn.Parameter(torch.empty(self.num_layers, self.num_heads).uniform_(self.bound, 2))
        self.a: nn.Parameter = nn.Parameter(torch.empty(self.num_layers, self.num_heads).uniform_(self.bound, 1))

    def of_distance(self, head: Tensor, distance: Tensor, layer: int, dtype: torch.dtype) -> Tensor:
        p = _clamped(self.p[layer], self.bound, 2.0 if self.kind == "power" else math.inf).to(dtype)[head]
        a = _clamped(self.a[layer], self.bound, math.inf).to(dtype)[head]
        distance = distance.abs().to(dtype)
        return -p * torch.log1p(a * distance) if self.kind == "log" else -a * distance**p


@dataclass(eq=False, repr=False)
class Sandwich(DistanceBias):
    """Products of sinusoidal codes, p_i . p_j = sum_c cos(distance base^(-2c/dim_bar)), flatter from head to head.

    num_heads: heads of the model; head h divides the sum by 8 (h + 1) / num_heads. dim_bar: width of the codes,
    independent of the model's. base: of their frequencies. Nothing is learned.
    Raises InputError for an odd dim_bar. Source: Chi et al. 2023.
    """

    name = "sandwich"
    title = "Sandwich, products of sines"
    papers: ClassVar[tuple[str, ...]] = ("chi2023dissecting",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} + \frac{H}{8(h + 1)} \sum_{c} \cos((i - j) \theta_c)",
        r"\theta_c = b^{-2c/\bar{d}}",
    )
    extrapolates = "yes: trained short, tested long"
    use_when = "Take it where scores should fall as products of sinusoidal codes do; `alibi` falls in a straight line."
    constant = True

    num_heads: Size
    _: KW_ONLY
    dim_bar: int = 128
    base: float = 10000.0
    factor: Tensor = field(init=False)

    def setup(self) -> None:
        check_even("dim_bar", self.dim_bar)
        self.frequencies: list[float] = frequency_curve(self.dim_bar, base=self.base).tolist()

    def tables(self) -> dict[str, Tensor]:
        return {"factor": self.num_heads / (8 * (torch.arange(self.num_heads, dtype=torch.float64, device="cpu") + 1))}

    def of_distance(self, head: Tensor, distance: Tensor, layer: int, dtype: torch.dtype) -> Tensor:
        distance, total = exact(distance), torch.zeros((), device=distance.device)
        for frequency in self.frequencies:  # one at a time: a grid of distances is not multiplied by their number
            total = total + torch.cos(distance * frequency)
        return (total * self.factor.to(distance.device)[head]).to(dtype)


@dataclass(eq=False, repr=False)
class Sines(DistanceBias):
    """p(i - j) with p(t) = (sin, cos)(pi t / train_length): each head adds a learned combination of the two numbers.

    num_heads: heads of the model. train_length: L_max, the longest sequence. init_std: of the 2 weights per head.
    One set of weights serves every layer. Distances within train_length to either side have different codes; the
    codes repeat after 2 * train_length.
    """

    name = "sines"
    title = "learned sine bias"
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} + w_{h,1} \sin \pi t + w_{h,2} \cos \pi t",
        r"t = \frac{i - j}{L}",
    )
    extrapolates = "no: distances repeat after twice the training length"
    use_when = "Take it as the smallest learned bias, for inputs up to train_length; `t5` serves longer ones."
    constant = True

    num_heads: Size
    _: KW_ONLY
    train_length: Size
    init_std: float = 0.02

    def setup(self) -> None:
        self.weight: nn.Parameter = normal_parameter(self.num_heads, 2, init_std=self.init_std)

    def of_distance(self, head: Tensor, distance: Tensor, layer: int, dtype: torch.dtype) -> Tensor:
        angle = exact(distance) * (math.pi / self.train_length)
        weight = self.weight.to(dtype)[head]
        return weight[..., 0] * angle.sin().to(dtype) + weight[..., 1] * angle.cos().to(dtype)


def _clamped(parameter: Tensor, low: float, high: float) -> Tensor:
    """The parameter within bounds; the gradient is that of the parameter itself, even outside."""
    return parameter + (parameter.clamp(low, high) - parameter).detach()
