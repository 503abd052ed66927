# SPDX-License-Identifier: Apache-2.0
"""Rotations over several axes: each pair of channels turns by <its frequency vector, the token's coordinates>."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from posenc import frequencies
from posenc.encoding import Encoding, Size, require_fit
from posenc.encodings.shared import by_key_head, check_head_dim, check_queries, kv_heads_of, remade
from posenc.errors import InputError, Positive, check_positive, is_integer
from posenc.functional import Layout, check_even, frequency_curve, rotary
from posenc.positions import Positions
from posenc.positions.ids import exact, numbered
from posenc.positions.patches import coordinates_of, of_images

T = TypeVar("T")


class AxesRotary(Encoding):
    """Base: a subclass gives the frequency vectors, as a table or as a parameter."""

    shift_invariant = True
    attention_factor: float = 1.0
    first_channel = 0
    frequency: Tensor
    """The frequency vectors, radians per step along each axis: (pairs, axes)."""

    head_dim: Size
    axes: Size
    layout: Layout

    def setup(self) -> None:
        check_even("head_dim", self.head_dim)

    def check_split(self) -> None:
        """Refuse a width of which the axes cannot have as many pairs each."""
        if self.head_dim % (2 * self.axes):
            raise InputError(f"pass a multiple of {2 * self.axes}, pairs for {self.axes} axes", head_dim=self.head_dim)

    @property
    def isometric(self) -> bool:
        return self.attention_factor == 1.0

    def vectors(self, layer: int) -> Tensor:
        """The frequency vectors of a layer: (pairs, axes) for all heads, or (num_kv_heads, pairs, axes)."""
        return self.frequency

    def coordinates(self, positions: Positions) -> tuple[Tensor, Tensor]:
        """Coordinates of queries and keys, (batch or 1, n, axes)."""
        return coordinates_of(positions, self.axes, type(self).__name__)

    def angles(self, coordinates: Tensor, placed: Tensor | None, layer: int) -> Tensor:
        """The angles at (batch or 1, n, axes) coordinates, (batch or 1, heads or 1, n, pairs) in float64; zero for tokens
        that are not placed, (batch or 1, n)."""
        vectors = self.vectors(layer)
        where = exact(coordinates.to(vectors.device))[:, None, :, None, :]
        angles = (where * vectors.to(where.dtype)[..., None, :, :]).sum(-1)  # no matmul: autocast would round it
        return angles if placed is None else angles * placed.to(angles.device)[:, None, :, None]

    def key_angles(self, positions: Positions, layer: int = 0) -> Tensor:
        return self.angles(self.coordinates(positions)[1], positions.k_placed, layer)

    def cos_sin(
        self, coordinates: Tensor, placed: Tensor | None, layer: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """cos and sin of `angles`, times the attention factor."""
        angles = self.angles(coordinates, placed, layer)
        cos, sin = angles.cos() * self.attention_factor, angles.sin() * self.attention_factor
        return cos.to(coordinates.device, dtype), sin.to(coordinates.device, dtype)

    def table(self, side: str, positions: Positions, layer: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The tables of `cos_sin` for one side, "q" or "k"; made once for all layers unless they are learned."""
        side = "q" if positions.q is positions.k else side

        def make() -> tuple[Tensor, Tensor]:
            placed = positions.q_placed if side == "q" else positions.k_placed
            return self.cos_sin(self.coordinates(positions)[side == "k"], placed, layer, dtype)

        return self.remember(positions, (side, dtype, self.own_layer(layer)), make)

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        require_fit(positions, q=q, k=k)
        check_queries(self, q)
        dtype, _ = self._check(q), self._check(k)
        of_q = self.table("q", positions, layer, dtype)
        of_k = of_q if positions.q is positions.k else self.table("k", positions, layer, dtype)
        return self.rope(q, *of_q), self.rope(k, *of_k)

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, q=q)
        check_queries(self, q)
        return self.rope(q, *self.table("q", positions, layer, self._check(q)))

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, k=k)
        return self.rope(k, *self.table("k", positions, layer, self._check(k)))

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries or keys (batch, heads, n, head_dim), rotated by their tables."""
        if cos.shape[1] == 1:
            return rotary(x, cos, sin, layout=self.layout)
        grouped = by_key_head(self, x, cos.shape[1])  # heads of a group turn alike
        return rotary(grouped, cos.unsqueeze(2), sin.unsqueeze(2), layout=self.layout).flatten(1, 2)

    def _check(self, x: Tensor) -> torch.dtype:
        """Refuse another width; the dtype of the tables."""
        check_head_dim(self, x, self.head_dim)
        return torch.promote_types(x.dtype, torch.float32)


@dataclass(eq=False, repr=False)
class AxialRotary(AxesRotary):
    """Axial RoPE: the pairs are split among the axes, and each pair turns with the coordinate of its axis.

    head_dim: width of a head. axes: coordinates per token, 2 for images, 3 for video. sections: pairs of channels of each
    axis, in the order of the coordinates; None splits head_dim evenly, where it must be a multiple of 2 * axes.
    rope_theta: base of the frequencies; one for all axes, or one for each. layout: as in `Rotary`, of the complete head.
    ladder: which frequencies an axis with n of the pairs has: "axis" its own, theta^(-c/n), c = 0 .. n-1; "head" its
        consecutive part of theta^(-2c / head_dim), as in M-RoPE; "dealt" the same in turn, the fastest to the first block.
    schedules: of the frequencies, as in `HeadRotary`: one for all axes, or one for each. [{"name": "ntk", "factor": 2}] is for
        twice as many patches along every axis.
    x_first: the blocks of pairs go from the last axis (x) to the first, as in rope-vit; False: y before x.
    centred: angles are 2 pi times the coordinate of the patch's centre, where the image spans -1 .. 1 on each axis;
        they depend on the size of the image, as `Positions.grid` knows it, or else on that of all tokens (of the
        packed document), which must then be there and have no negative coordinate.
    start: coordinate of the first patch. It matters only next to tokens without a place.
    channels: which channels an axis has: "blocks" of pairs, one after the other; "turns", a pair of each in turn (Lumina-Next);
        "apart", blocks of channels, of which each has its own pairs in the layout (Allegro; the same as blocks if interleaved).

    FLUX: sections=(8, 28, 28), rope_theta=10000, x_first=False; docs/vision-grid.md has the arguments of other models.
    Coordinates may be fractional or negative. Tokens without a place, such as [CLS], are not rotated. Raises InputError for
    sections that do not add up to head_dim / 2, or a width that cannot be split. Source: Heo et al. 2024, section 3.1; for
    sections, EmbedND in black-forest-labs/flux.
    """

    name = "axial_rope"
    title = "axial RoPE, 2D RoPE"
    papers: ClassVar[tuple[str, ...]] = ("heo2024rotary",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R(\varphi(i))\, q_i, \quad k_j' = R(\varphi(j))\, k_j",
        r"\varphi(i) = [x \theta; y \theta], \quad \theta_c = b^{-4c/d}, \quad i = (y, x)",
    )
    rotate = AxesRotary.rotate  # also where keys cannot be rotated alone
    extrapolates = "partly: at larger images, less so than learned directions"
    use_when = "Take it for images and video, as FLUX, Wan, Pixtral and DINOv3 do; `mixed_rope` learns the directions of its rotations."
    equal_to = "transformers' Pixtral, DINOv3, Llama 4 vision; timm; diffusers"

    head_dim: Size
    _: KW_ONLY
    axes: Size = 2
    sections: Sequence[int] | None = None
    rope_theta: float | Sequence[float] = 100.0
    layout: Layout = "interleaved"
    ladder: Literal["axis", "head", "dealt"] = "axis"
    schedules: str | Sequence[Mapping[str, Any]] | None = None
    x_first: bool = True
    centred: bool = False
    start: float = 0.0
    channels: Literal["blocks", "turns", "apart"] = "blocks"

    def setup(self) -> None:
        super().setup()
        self._check_sections()
        if self.centred and self.start:
            raise InputError("patches are counted from the centre: pass one of them", centred=True, start=self.start)
        if self.channels == "turns" and len(set(self.pairs)) > 1:
            raise InputError("give every axis as many pairs", channels="turns", sections=self.sections)
        if isinstance(self.rope_theta, Sequence):
            self.rope_theta = tuple(self.rope_theta)
            self._check_each("rope_theta", self.rope_theta)
        for base in self.rope_theta if isinstance(self.rope_theta, tuple) else (self.rope_theta,):
            check_positive(rope_theta=base)
        if self.schedules is not None:
            self.schedules = schedules_of(self.schedules)
            if len(self.schedules) != 1:
                self._check_each("schedules", self.schedules)
        if self.ladder == "dealt" and len(set(self.pairs)) > 1:
            raise InputError("give every axis as many pairs", ladder="dealt", sections=self.sections)
        self.attention_factor = common_factor(self._frequencies())
        self.shift_invariant = not self.centred
        self.needs_length = self.centred

    def _check_sections(self) -> None:
        """Refuse sections that do not fit the head; they decide the number of axes."""
        if self.sections is None:
            self.check_split()
            return
        self.sections = checked_sections(self.sections, self.head_dim // 2)
        if self.axes > len(self.sections):
            raise InputError("pass the pairs of each axis", sections=self.sections, axes=self.axes)
        self.axes = len(self.sections)  # an image is a video of one frame

    @property
    def pairs(self) -> tuple[int, ...]:
        """The pairs of channels of each axis, in the order of the coordinates."""
        return (self.head_dim // (2 * self.axes),) * self.axes if self.sections is None else tuple(self.sections)

    def _check_each(self, name: str, values: Sequence[Any]) -> None:
        if len(values) != self.axes or self.ladder != "axis":
            raise InputError(f"pass one, or {self.axes}, one an axis, with ladder='axis'", argument=name, value=values)

    def _frequencies(self) -> list[frequencies.Frequencies]:
        """Those of each axis with pairs, or of the complete head."""
        bases = self.rope_theta if isinstance(self.rope_theta, tuple) else (self.rope_theta,)
        schedules = self.schedules if isinstance(self.schedules, list) else [{"name": "default"}]
        widths = [2 * pairs for pairs in self.pairs] if self.ladder == "axis" else [self.head_dim]
        of_axes = zip(widths, _each(bases, len(widths)), _each(schedules, len(widths)), strict=True)
        return [frequencies.create(schedule, width, base=base) for width, base, schedule in of_axes if width]

    def with_schedule(self, name: str, **options: Any) -> Self:
        """The same rotation with every axis under another frequency schedule: `rope.with_schedule("ntk", factor=2)`."""
        return remade(self, schedules=[{"name": name, **options}])

    def key_angles(self, positions: Positions, layer: int = 0) -> Tensor:
        self._refuse_centred()
        return super().key_angles(positions, layer)

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        self._refuse_centred()
        return super().rotate_keys(k, positions, layer)

    def _refuse_centred(self) -> None:
        if self.centred:
            raise InputError("AxialRotary(centred=True) reads the size of the image: cache keys unrotated")

    def tables(self) -> dict[str, Tensor]:
        order = list(range(self.axes))[:: -1 if self.x_first else 1]
        sizes = [self.pairs[axis] for axis in order]
        ladders = [each.inv_freq for each in self._frequencies()]
        if self.ladder == "axis":
            ladder = torch.cat(ladders[:: -1 if self.x_first else 1])
        else:
            ladder = ladders[0] if self.ladder == "head" else ladders[0].unflatten(0, (-1, self.axes)).mT.flatten()
        axis = torch.tensor(order, device="cpu").repeat_interleave(torch.tensor(sizes, device="cpu"))
        vectors = ladder[:, None] * one_hot(axis, self.axes)
        if self.channels == "turns":  # a pair of each axis in turn
            vectors = vectors.unflatten(0, (self.axes, -1)).transpose(0, 1).flatten(0, 1)
        return {"frequency": vectors}

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.channels != "apart" or self.layout == "interleaved":
            return super().rope(x, cos, sin)
        sizes = self.pairs[:: -1 if self.x_first else 1]
        parts = x.split([2 * pairs for pairs in sizes], -1)
        blocks = zip(parts, cos.split(sizes, -1), sin.split(sizes, -1), strict=True)
        return torch.cat([rotary(*block, layout="half") for block in blocks], -1)

    def coordinates(self, positions: Positions) -> tuple[Tensor, Tensor]:
        q, k = super().coordinates(positions)
        if not self.centred:
            return (q, k) if self.start == 0 else (q + self.start, k + self.start)
        if positions.images is not None:
            alone = (1,) * (self.axes - len(positions.images[0]))  # an image is a video of one frame
            q_size, k_size = of_images(positions, [alone + size for size in positions.images])
            return _centred(q, q_size), _centred(k, k_size)
        if positions.sharding is None:
            remedy = "pass the full sequence, or centred=False"
            positions.require_full_sequence("AxialRotary(centred=True) counts from the middle of an image", remedy)
        if positions.sharding is not None:
            q, _ = super().coordinates(positions.sharding.full)
        full = positions if positions.sharding is None else positions.sharding.full
        if not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() == 0 and not q.is_meta:
            placed = q if full.q_placed is None else q.masked_fill(~full.q_placed[..., None], 0)
            if full.shared("negative", lambda: bool((placed < 0).any())):
                raise InputError("AxialRotary(centred=True): coordinates below 0: pass Positions.grid")
        centred = _centred(q, extents(q, full.q_document))
        return positions.local(centred), centred[:, : positions.num_keys]


def _centred(coordinates: Tensor, size: Tensor) -> Tensor:
    return 2 * torch.pi * (2 * (exact(coordinates) + 0.5) / size - 1)


@dataclass(eq=False, repr=False)
class MRotary(AxesRotary):
    """M-RoPE of vision-language models: each pair of RoPE reads the time, the height or the width of its token.

    A text token has the same number on all three axes, where this is 1-D RoPE exactly. head_dim, rope_theta, layout,
    schedule: as in `Rotary` (rope_theta is Qwen2-VL's). interleaved: axes take turns, t h w t h w .. (Qwen3-VL)
    instead of blocks t, h, w (Qwen2-VL). time_last: h and w take turns on the fastest pairs, t has the slowest
    (VideoRoPE). sections: pairs of each axis (t, h, w); None scales the models' own 16, 24, 24 of 64 (blocks,
    time_last) or 24, 20, 20 (interleaved) to head_dim. Positions come as (t, h, w), as in `posenc.pretrained.multimodal` or
    `Positions.grid(height, width, frames)`.
    Raises InputError for sections that do not fit. Source: Wang et al. 2024, "Qwen2-VL", section 2.1.
    """

    name = "m_rope"
    family = "grid"
    title = "multimodal RoPE (M-RoPE)"
    papers: ClassVar[tuple[str, ...]] = ("wang2024qwen2vl",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R(\varphi(i))\, q_i, \quad k_j' = R(\varphi(j))\, k_j",
        r"\varphi_c(i) = i_{a(c)} \theta_c, \quad \theta_c = b^{-2c/d}, \quad i = (t, y, x)",
    )
    extrapolates = "partly: images and videos use up fewer numbers"
    use_when = "Take it for text with images and video, as Qwen2-VL and Qwen3-VL do; `rope` is the same for text alone."
    equal_to = "transformers' Qwen2-VL, Qwen3-VL"

    axes = 3
    head_dim: Size
    _: KW_ONLY
    rope_theta: Positive = 1000000.0
    layout: Layout = "half"
    interleaved: bool = False
    sections: Sequence[int] | None = None
    schedule: Mapping[str, Any] = None  # type: ignore[assignment]  # replaced in `setup`
    time_last: bool = False

    def setup(self) -> None:
        super().setup()
        if self.interleaved and self.time_last:
            raise InputError("pass one of them", interleaved=True, time_last=True)
        pairs = self.head_dim // 2
        if self.sections is None:
            share = pairs * (20 if self.interleaved else 24) // 64
            self.sections = pairs - 2 * share, share, share
        self.sections = checked_sections(self.sections, pairs)
        if len(self.sections) != 3:
            raise InputError("pass the pairs of (t, h, w)", sections=self.sections)
        self.schedule = dict(self.schedule or {"name": "default"})
        self.attention_factor = frequencies.create(self.schedule, self.head_dim, base=self.rope_theta).attention_factor

    def tables(self) -> dict[str, Tensor]:
        assert self.sections is not None
        inv_freq = frequencies.create(self.schedule, self.head_dim, base=self.rope_theta).inv_freq
        pairs = torch.arange(inv_freq.shape[0], device="cpu")
        _, height, width = self.sections
        if self.interleaved:
            turn = pairs % 3
            axis = torch.where((turn == 1) & (pairs < 3 * height) | (turn == 2) & (pairs < 3 * width), turn, 0)
            if axis.bincount(minlength=3).tolist() != list(self.sections):
                raise InputError("h and w take turns with t, so neither can exceed a third", sections=self.sections)
        elif self.time_last:
            axis = torch.where(pairs < height + width, 1 + pairs % 2, 0)
            if height - width not in (0, 1):
                raise InputError("pass as many of h as of w, or one more: they take turns", sections=self.sections)
        else:
            axis = torch.arange(3, device="cpu").repeat_interleave(torch.tensor(self.sections, device="cpu"))
        return {"frequency": inv_freq[:, None] * one_hot(axis, 3)}

    def with_schedule(self, name: str, **options: Any) -> Self:
        """The same rotation under another frequency schedule."""
        return remade(self, schedule={"name": name, **options})


@dataclass(eq=False, repr=False)
class MixedRotary(AxesRotary):
    """RoPE-Mixed: every pair has a direction of rotation, learned per layer and head.

    head_dim: width of a head, a multiple of 2 * axes. num_heads, num_layers: of the model. num_kv_heads: fewer key
    heads than num_heads; frequencies are then per key head, since a key can only be compared with queries that turn
    as it does. axes: coordinates per token. rope_theta, layout: as in `AxialRotary`, from whose frequencies it starts,
    each head's axes turned by a random rotation. Angles are computed in float64 whatever the autocast, but casting
    the model to bfloat16 rounds the frequencies; the authors train them without weight decay. Tokens without a
    place, such as [CLS], are not rotated. Raises InputError for sizes that do not divide. Source: Heo et al. 2024,
    section 3.2.
    """

    name = "mixed_rope"
    title = "mixed 2D RoPE"
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R(\varphi_h(i))\, q_i, \quad k_j' = R(\varphi_h(j))\, k_j",
        r"\varphi_{h,c}(i) = y\, \theta_{h,c}^y + x\, \theta_{h,c}^x, \quad i = (y, x)",
    )
    papers: ClassVar[tuple[str, ...]] = ("heo2024rotary",)
    extrapolates = "yes: at larger images"
    use_when = "Take it for images and video of other sizes than in training; `axial_rope` learns nothing."

    head_dim: Size
    _: KW_ONLY
    num_heads: Size
    num_layers: Size = 1
    num_kv_heads: Size | None = None
    axes: Size = 2
    rope_theta: Positive = 10.0
    layout: Layout = "interleaved"

    def setup(self) -> None:
        super().setup()
        self.check_split()
        kv_heads = kv_heads_of(self.num_heads, self.num_kv_heads)
        curve = frequency_curve(self.head_dim, base=self.rope_theta)
        magnitude = curve[:: self.axes].float()  # theta^(-2 axes c / head_dim)
        turned = random_rotations(self.num_layers * kv_heads, self.axes).unflatten(0, (self.num_layers, kv_heads))
        directions = turned.flip(-1)[..., None, :]  # block a along the turned axis a, where x comes first
        start = magnitude.to(turned.device)[:, None] * directions
        self.frequency = nn.Parameter(start.flatten(-3, -2).to(torch.get_default_dtype()))

    def vectors(self, layer: int) -> Tensor:
        return self.frequency[self.own_layer(layer)]


def _each(values: Sequence[T], count: int) -> Sequence[T]:
    """One value for each of several, from one for all or as many."""
    return [values[0]] * count if len(values) == 1 else values


def checked_sections(sections: Sequence[int], pairs: int) -> tuple[int, ...]:
    """The pairs of channels of each axis, of so many."""
    for each in sections:
        if not is_integer(each) or each < 0:
            raise InputError("pass integers, the pairs of channels of each axis", sections=sections)
    if sum(sections) != pairs:
        halves = tuple(each // 2 for each in sections)
        half = f", here {halves}" if sum(halves) == pairs else ""
        raise InputError(f"add up to {sum(sections)}, not to head_dim/2 = {pairs}{half}", sections=sections)
    return tuple(sections)


def schedules_of(schedules: str | Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Frequency schedules as data, from data or from a text with "|" between them."""
    texts = schedules.split("|") if isinstance(schedules, str) else []
    return [frequencies.parse(text) for text in texts] or list(schedules)  # type: ignore[arg-type]


def common_factor(made: Sequence[frequencies.Frequencies]) -> float:
    """The attention factor of several schedules."""
    factors = {each.attention_factor for each in made}
    if len(factors) > 1:
        raise InputError(f"schedules scale cos and sin by {sorted(factors)}: pass one attention_factor to all")
    return factors.pop()


def one_hot(axis: Tensor, axes: int) -> Tensor:
    """(pairs,) axis numbers -> (pairs, axes) float64 unit vectors."""
    return torch.eye(axes, dtype=torch.float64, device="cpu")[axis]


def random_rotations(count: int, axes: int) -> Tensor:
    """Uniform rotations, (count, axes, axes) float32: in two dimensions, turned by a uniform angle."""
    rotations = torch.empty(count, axes, axes, dtype=torch.float32)
    for one in rotations:
        nn.init.orthogonal_(one)
        with torch.no_grad():
            one[-1] *= torch.linalg.det(one).sign()  # no reflections
    return rotations


def extents(coordinates: Tensor, documents: Tensor | None) -> Tensor:
    """Size of each token's own image: one more than the largest coordinate on each axis, (batch or 1, n or 1, axes)."""
    if documents is None:
        return coordinates.amax(1, keepdim=True) + 1
    index = numbered(documents)
    rows = max(coordinates.shape[0], index.shape[0])
    index = index[..., None].expand(rows, -1, coordinates.shape[-1])
    coordinates = coordinates.expand(rows, -1, -1)
    largest = coordinates.new_zeros(coordinates.shape)
    return largest.scatter_reduce(1, index, coordinates, "amax").gather(1, index) + 1
