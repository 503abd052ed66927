# SPDX-License-Identifier: Apache-2.0
"""The rotary family: queries and keys are rotated by an angle that grows with their position."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from posenc import frequencies
from posenc.backends.triton import fits_kernel, rotary_kernel
from posenc.encoding import Encoding, Rotation, Size, require_fit
from posenc.encodings.shared import check_head_dim, remade
from posenc.errors import InputError, Positive, Share, check_numbers
from posenc.functional import (
    Layout,
    angles_at,
    check_even,
    cos_sin,
    interpreted,
    rotary,
    rotate_token,
    rotates_token,
    widened,
)
from posenc.positions import Positions

Tables = tuple[Tensor, Tensor]


@dataclass(eq=False, repr=False)
class PairwiseRotary(Encoding):
    """Base of the encodings that turn pairs of channels by their position times a frequency; see `Rotary` for the arguments."""

    head_dim: Size
    _: KW_ONLY
    rope_theta: Positive = 10000.0
    layout: Layout = "half"
    rotary_dim: int | float | None = None
    schedule: Mapping[str, Any] = None  # type: ignore[assignment]  # replaced in `setup`
    inv_freq: Tensor = field(init=False)

    def setup(self) -> None:
        check_even("head_dim", self.head_dim)
        if isinstance(self.rotary_dim, float):
            check_numbers(0, 1, rotary_dim=self.rotary_dim)
            channels = int(self.head_dim * self.rotary_dim)
            if channels < 2 or channels % 2:
                raise InputError(f"{channels} of {self.head_dim} channels are no pairs", rotary_dim=self.rotary_dim)
            self.rotary_dim = channels
        if self.rotary_dim is not None:
            check_even("rotary_dim", self.rotary_dim)
            if self.rotary_dim > self.head_dim:
                raise InputError(f"must be at most head_dim={self.head_dim}", rotary_dim=self.rotary_dim)
        self.schedule = dict(self.schedule or {"name": "default"})
        self.attention_factor: float = self.frequencies().attention_factor

    @property
    def rotated(self) -> int:
        """How many channels rotate."""
        return self.head_dim if self.rotary_dim is None else int(self.rotary_dim)

    def frequencies(self) -> frequencies.Frequencies:
        """The schedule's frequencies, one per rotated pair."""
        return frequencies.create(self.schedule, self.rotated, base=self.rope_theta)

    def tables(self) -> dict[str, Tensor]:
        return {"inv_freq": self.frequencies().inv_freq}

    def with_schedule(self, name: str, **options: Any) -> Self:
        """The same rotation under another frequency schedule: `rope.with_schedule("ntk", factor=4)`."""
        return remade(self, schedule={"name": name, **options})

    @property
    def first_channel(self) -> int:
        """The first channel that rotates."""
        return 0

    def angles(self, ids: Tensor) -> Tensor:
        """Angles in float64: (batch or 1, n) positions -> (batch or 1, 1, n, pairs)."""
        return angles_at(ids, self.inv_freq)

    def key_angles(self, positions: Positions, layer: int = 0) -> Tensor:
        positions.require_one_axis(type(self).__name__)
        return self.angles(positions.k)

    def cos_sin(
        self, ids: Tensor, dtype: torch.dtype, first: int | None = None, amplitude: Tensor | float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """cos and sin of the angles, times amplitude: (batch, n) positions, known to be first, first + 1, .. or None, ->
        two (batch, 1, n, pairs) tables."""
        return cos_sin(ids, self.inv_freq, dtype, first, amplitude * self.attention_factor)

    def _check(self, x: Tensor, positions: Positions) -> torch.dtype:
        """Refuse what does not fit; the dtype of the tables."""
        check_head_dim(self, x, self.head_dim)
        positions.require_one_axis(type(self).__name__)
        return torch.promote_types(x.dtype, torch.float32)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Queries or keys (batch, heads, n, head_dim), rotated by their tables."""
        return rotary(x, cos, sin, layout=self.layout, start=self.first_channel)


@dataclass(eq=False, repr=False)
class Rotary(PairwiseRotary):
    """RoPE: pair c of a query or key at position i is rotated by i theta_c, so q_i . k_j depends on i - j alone.

    head_dim: width of a head. rope_theta: base of the frequencies. layout: which channels form a pair, "half"
    (c, c + d/2: GPT-NeoX, Llama in transformers) or "interleaved" (2c, 2c + 1: RoFormer, GPT-J).
    rotary_dim: rotate only the first rotary_dim channels (partial rotary), or that share of the head as a float, 0.25; None
    rotates all.
    schedule: the frequencies as data, e.g. {"name": "ntk", "factor": 4}; see `posenc.frequencies`.

    Angles are computed in float64 from exact positions and cast at the end. Raises InputError for odd widths.
    Source: Su et al. 2021, "RoFormer", section 3.2.
    """

    name = "rope"
    title = "rotary position embedding (RoPE)"
    papers: ClassVar[tuple[str, ...]] = ("su2021roformer",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_c' = q_c \cos i\theta_c - q_{c+d/2} \sin i\theta_c, \quad \theta_c = b^{-2c/d}",
        r"q_{c+d/2}' = q_c \sin i\theta_c + q_{c+d/2} \cos i\theta_c",
        r"q_i' = R_i q_i, \quad k_j' = R_j k_j, \quad q_i' \cdot k_j' = q_i \cdot R_{j-i} k_j",
    )
    shift_invariant = True
    extrapolates = "partly: degrades past the training length"
    use_when = (
        "Take it first in a decoder, as Llama, GPT-NeoX and Gemma do: frequency schedules and position maps extend "
        "it to longer inputs."
    )
    equal_to = "transformers' Llama, GPT-J, GPT-NeoX, RoFormer, GLM, Gemma 3; rotary-embedding-torch"

    @property
    def isometric(self) -> bool:
        return self.attention_factor == 1.0

    @property
    def zero_is_identity(self) -> bool:
        return self.isometric

    @property
    def planes(self) -> Hashable:
        return self.layout, self.first_channel, self.rotated, self.head_dim

    def of_queries(self, positions: Positions, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The queries' tables."""
        return self.cos_sin(positions.q, dtype, positions.start and positions.start[0])

    def tables_at(self, positions: Positions, dtype: torch.dtype) -> tuple[Tables, Tables]:
        """The tables for the queries and for the keys."""
        of_q = self.of_queries(positions, dtype)
        same = positions.q is positions.k
        return of_q, of_q if same else self.cos_sin(positions.k, dtype, positions.start and positions.start[1])

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        require_fit(positions, q=q, k=k)
        check_head_dim(self, k, self.head_dim)
        dtype = self._check(q, positions)
        of_q, of_k = self._tables_of(positions, dtype, queries=True, keys=True)
        if of_q[0] is of_k[0] and fits_kernel(q, k, of_k[0]):
            return rotary_kernel(q, k, *of_k, layout=self.layout, start=self.first_channel)
        return self.rope(q, *of_q), self.rope(k, *of_k)

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, q=q)
        of_q, _ = self._tables_of(positions, self._check(q, positions), queries=True, keys=False)
        return self.rope(q, *of_q)

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, k=k)
        _, of_k = self._tables_of(positions, self._check(k, positions), queries=False, keys=True)
        return self.rope(k, *of_k)

    def shared_rotation(self, positions: Positions, q: Tensor | None, k: Tensor | None) -> Rotation | None:
        hook, x = ("rotate_queries", q) if k is None else ("rotate_keys" if q is None else "rotate", k)
        if getattr(type(self), hook) is not getattr(Rotary, hook) or type(self).rope is not PairwiseRotary.rope:
            return None
        assert x is not None
        dtype, layout, start = self._check(x, positions), self.layout, self.first_channel
        of_q, of_k = self._tables_of(positions, dtype, q is not None, k is not None)
        if (of_q or of_k)[0].requires_grad:
            return None
        if q is not None and k is not None and of_q[0] is of_k[0] and fits_kernel(q, k, of_k[0]):
            return lambda q, k: rotary_kernel(q, k, *of_k, layout=layout, start=start)  # type: ignore[arg-type]
        rotate = partial(rotary, layout=layout, start=start)
        if self.rotated == self.head_dim and rotates_token(x):
            of_q, of_k = (
                None
                if tables is None
                else self.remember(positions, (dtype, "wide", at), partial(widened, tables[0], tables[1], layout))
                for at, tables in (("q", of_q), ("k", of_k))
            )
            rotate = partial(rotate_token, layout=layout)
        return lambda q, k: (None if q is None else rotate(q, *of_q), None if k is None else rotate(k, *of_k))

    def _tables_of(self, positions: Positions, dtype: torch.dtype, queries: bool, keys: bool) -> tuple[Any, Any]:
        """The tables of queries and of keys, where they are asked for; of the same tokens they are the same."""
        if queries and keys:
            return self.remember(positions, dtype, lambda: self.tables_at(positions, dtype))
        if queries:
            return self.remember(positions, (dtype, "q"), lambda: self.of_queries(positions, dtype)), None
        first = positions.start and positions.start[1]
        return None, self.remember(positions, (dtype, "k"), lambda: self.cos_sin(positions.k, dtype, first))


@dataclass(eq=False, repr=False)
class PRotary(Rotary):
    """p-RoPE: only the fastest frequencies rotate, the slow rest of the pairs has content without position.

    fraction: of the head's pairs that rotate; 1 is RoPE, 0 no position at all. Frequencies are those of the full
    head, unlike partial rotary, whose exponents are spread over rotary_dim (`Rotary(rotary_dim=)`). The paper's best
    is 0.75; Gemma 4 takes 0.25 (rope_type "proportional" in transformers). Other arguments as in `Rotary`.
    Raises InputError for a fraction outside 0 .. 1. Source: Barbero et al. 2024, section 6.
    """

    name = "p_rope"
    title = "partial RoPE (p-RoPE)"
    papers: ClassVar[tuple[str, ...]] = ("barbero2024round",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R_i q_i, \quad k_j' = R_j k_j",
        r"\theta_c = \begin{cases} b^{-2c/d} & \quad c < \lfloor f d/2 \rfloor \\ 0 & \quad \text{otherwise} \end{cases}",
    )
    extrapolates = "partly: the slow frequencies are what meets unseen angles"
    use_when = (
        "Take it where some channels should compare content at any distance, as Gemma 4 does without a window; "
        "`rope` rotates all pairs."
    )
    equal_to = "transformers' proportional RoPE"

    _: KW_ONLY
    fraction: Share = 0.75
    rotary_dim: None = field(default=None, init=False)

    def frequencies(self) -> frequencies.Frequencies:
        return frequencies.fastest(super().frequencies(), self.fraction)


@dataclass(eq=False, repr=False)
class DecoupledRotary(Rotary):
    """Decoupled RoPE of latent attention (DeepSeek): the last channels of a head rotate, the others are content only.

    Scores are (q_content . k_content + R q_rope . R k_rope) / sqrt(head_dim), head_dim counting both parts.
    rotary_dim: channels at the end of each head that rotate; None takes a third, as DeepSeek's 64 of 192. Its weights
    have layout "interleaved". Other arguments as in `Rotary`.

    The rotated key is one head that all share: pass k as `torch.cat((k_content, k_rope.expand(-1, heads, -1, -1)), -1)`
    with k_rope (batch, 1, seq, rotary_dim), unrotated. Decoding absorbs the key up-projection into the queries: one
    key head `torch.cat((latent, k_rope), -1)` of width kv_lora_rank + rotary_dim, values the latent itself, and a
    DecoupledRotary of that width with `scale=(d_content + rotary_dim)**-0.5` given to `attention`. Both give the same.
    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.3.
    """

    name = "decoupled_rope"
    title = "decoupled RoPE of latent attention"
    papers: ClassVar[tuple[str, ...]] = ("deepseek2024v2",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i = [q_i^C; q_i^R], \quad k_j = [k_j^C; k_j^R]",
        r"s_{ij} = \frac{q_i^C \cdot k_j^C + R_i q_i^R \cdot R_j k_j^R}{\sqrt{d}}",
    )
    use_when = (
        "Take it with latent attention, as DeepSeek-V3 does; `rope` with rotary_dim rotates the first channels instead "
        "of the last."
    )
    equal_to = "transformers' DeepSeek-V3"

    _: KW_ONLY
    layout: Layout = "interleaved"
    rotary_dim: int | float | None = None

    def setup(self) -> None:
        if self.rotary_dim is None:
            self.rotary_dim = max(2, self.head_dim // 6 * 2)
        super().setup()

    @property
    def first_channel(self) -> int:
        return self.head_dim - self.rotated


@dataclass(eq=False, repr=False)
class XPos(Rotary):
    """xPos: RoPE whose scores also shrink with the distance, by zeta_c^((i - j) / scale_base) in pair c.

    zeta_c = (2c / head_dim + gamma) / (1 + gamma), so that fast pairs fade first. gamma, scale_base (in positions):
    how fast. layout: "interleaved", as in the authors' code. Other arguments as in `Rotary`. For causal models: scores
    of keys after the query grow instead.

    Queries are multiplied by zeta^(i / scale_base) and keys by its inverse, with i counted from the middle of the
    call's keys, which cancels. Factors overflow float16 beyond 9000 positions, bfloat16 and float32 beyond 72000 (gamma 0.4).
    Raises InputError for gamma or scale_base not above 0, or a span past that of the dtype. Source: Sun et al. 2022, section 2.2.
    """

    name = "xpos"
    title = "xPos, RoPE with decay"
    papers: ClassVar[tuple[str, ...]] = ("sun2022length",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = \zeta^{i/S} \odot R_i q_i, \quad k_j' = \zeta^{-j/S} \odot R_j k_j",
        r"\zeta_c = \frac{2c/d + \gamma}{1 + \gamma}, \quad \theta_c = b^{-2c/d}",
    )
    isometric = False
    extrapolates = "yes: scores fade with distance; the paper adds windows at inference"
    use_when = (
        "Take it in a causal model for inputs longer than in training; `alibi` fades with the distance, too, and "
        "rotates nothing."
    )
    equal_to = "x-transformers, rotary-embedding-torch"
    centres_keys = True

    _: KW_ONLY
    layout: Layout = "interleaved"
    gamma: Positive = 0.4
    scale_base: Positive = 512.0
    log_zeta: Tensor = field(init=False)

    def tables(self) -> dict[str, Tensor]:
        tables = super().tables()
        pairs = tables["inv_freq"].numel()
        zeta = (torch.arange(pairs, dtype=torch.float64, device="cpu") / pairs + self.gamma) / (1 + self.gamma)
        return tables | {"log_zeta": zeta.log()}

    def tables_at(self, positions: Positions, dtype: torch.dtype) -> tuple[Tables, Tables]:
        middle = self._middle(positions)

        def scaled(ids: Tensor, sign: int) -> tuple[Tensor, Tensor]:
            power = sign * (ids.to(middle) - middle) / self.scale_base
            return self.cos_sin(ids, dtype, None, (power[:, None, :, None] * self.log_zeta).exp())

        return scaled(positions.q, 1), scaled(positions.k, -1)

    def _middle(self, positions: Positions) -> Tensor:
        keys = positions.k.to(self.log_zeta)
        return (keys.amin(1, keepdim=True) + keys.amax(1, keepdim=True)) / 2

    def _check(self, x: Tensor, positions: Positions) -> torch.dtype:
        if positions.k.device.type == "cpu" and not (torch.compiler.is_compiling() or interpreted()):
            middle = self._middle(positions).detach()
            reach = max(float((ids.detach().to(middle) - middle).abs().max()) for ids in (positions.q, positions.k))
            most = self.scale_base * math.log(torch.finfo(x.dtype).max) / math.log(1 + 1 / self.gamma)
            if reach > most:
                at = f"XPos at {math.ceil(reach)} positions from the middle, at most {int(most)} in {x.dtype}"
                raise InputError(f"{at}: pass queries and keys in a wider dtype, or take a larger scale_base")
        return super()._check(x, positions)

    rotate, shared_rotation = (
        Rotary.rotate,
        Rotary.shared_rotation,
    )  # at the middle of all keys, so of neither side alone

    def key_angles(self, positions: Positions, layer: int = 0) -> Tensor:
        raise InputError("XPos scales keys by their distance from the middle of all keys: cache them unrotated")
