# SPDX-License-Identifier: Apache-2.0
"""Rotations of text: with frequencies that differ by key head, are learned or are mixed, and with scores of the imaginary part."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from posenc import frequencies
from posenc.encoding import HeadRange, Size, require_fit
from posenc.encodings.rotary import Rotary
from posenc.encodings.rotary_axes import AxesRotary, common_factor, schedules_of
from posenc.encodings.shared import check_head_dim, kv_heads_of
from posenc.errors import InputError, NotNegative, Positive, check_devices, check_integers
from posenc.functional import Layout, frequency_curve
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class HeadRotary(AxesRotary):
    """RoPE with a frequency schedule for each key head, or for groups of them; query heads turn as their key head does.

    head_dim, rope_theta, layout: as in `Rotary`. num_heads, num_kv_heads: of the model. schedules: one after the other
    for equal groups of key heads, as data ([{"name": "ntk", "factor": 4}, ..]) or as a text with "|" between them; None
    is Ms-PoE, position interpolation by factors from 1.2 up to, not including, 1.8, which its authors order in each layer
    by the outliers in its heads' attention to the prompt.

    Raises InputError for schedules that do not divide the key heads, or that scale cos and sin differently.
    Source: Zhang et al. 2024 (Ms-PoE; MsPoELlamaRotaryEmbedding of the authors' code).
    """

    name = "head_rope"
    title = "RoPE by head"
    papers: ClassVar[tuple[str, ...]] = ("zhang2024found", "bae2026anti")
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R_{h,i} q_i, \quad k_j' = R_{h,j} k_j, \quad h \text{ the key head}",
        r"\theta_{h,c} = b^{-2c/d} / r_h, \quad r_h = 1.2 + 0.6\, h / H_k \quad (h = 0, 1, \ldots)",
    )
    extrapolates = "partly: as RoPE under the same schedules"
    use_when = (
        "Take it for schedules that differ by head, such as Ms-PoE's and Moebius RoPE's; `rope` has one schedule."
    )
    equal_to = "the authors' code"
    axes = 1

    head_dim: Size
    _: KW_ONLY
    num_heads: Size
    num_kv_heads: Size | None = None
    rope_theta: Positive = 10000.0
    layout: Layout = "half"
    schedules: str | Sequence[Mapping[str, Any]] | None = None

    def setup(self) -> None:
        super().setup()
        heads = kv_heads_of(self.num_heads, self.num_kv_heads)
        if self.schedules is None:
            self.schedules = [{"name": "linear", "factor": 1.2 + 0.6 * head / heads} for head in range(heads)]
        self.schedules = schedules_of(self.schedules)
        if not self.schedules or heads % len(self.schedules):
            raise InputError(f"{len(self.schedules)} do not divide the {heads} key heads", argument="schedules")
        self.attention_factor = common_factor(self.ladders())

    def _of_heads(self, first: int, end: int) -> dict[str, Any]:
        assert isinstance(self.schedules, list)
        heads = kv_heads_of(self.num_heads, self.num_kv_heads)
        each = [schedule for schedule in self.schedules for _ in range(heads // len(self.schedules))]
        group = self.num_heads // heads
        return super()._of_heads(first, end) | {"schedules": each[first // group : end // group]}

    def ladders(self) -> list[frequencies.Frequencies]:
        """The frequencies of each schedule."""
        assert isinstance(self.schedules, list)
        return [frequencies.create(schedule, self.head_dim, base=self.rope_theta) for schedule in self.schedules]

    def tables(self) -> dict[str, Tensor]:
        ladders = torch.stack([made.inv_freq for made in self.ladders()])
        repeats = kv_heads_of(self.num_heads, self.num_kv_heads) // ladders.shape[0]
        return {"frequency": ladders.repeat_interleave(repeats, 0)[..., None]}


@dataclass(eq=False, repr=False)
class LearnedRotary(AxesRotary):
    """RoPE with learned frequencies: theta_c = f_c exp(s_c), where f is a schedule's frequency and s_c starts at 0.

    head_dim, rope_theta, layout, schedule: as in `Rotary`; the schedule is where the frequencies start. groups: ladders
    of frequencies. 1: all heads share one. num_kv_heads: each group of query heads that shares a key head has one,
    since a key can only be compared with queries that turn as it does. All layers share them; for ladders per layer,
    pass one object per layer to `PerLayer`. Train `log_scale`, (groups, head_dim / 2), without weight decay.

    `plain()` is the same rotation as a `Rotary`. Angles are computed in float64; casting the model to bfloat16 rounds the log-scales.
    Raises InputError for odd widths, or key heads that are not a multiple of groups.
    Source: arXiv 2607.10134 (LeRoPE: one ladder), arXiv 2607.19363 (AdaRoPE: one per key head).
    """

    name = "learned_rope"
    title = "RoPE with learned frequencies"
    papers: ClassVar[tuple[str, ...]] = ("su2021roformer",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_i' = R_i q_i, \quad k_j' = R_j k_j",
        r"\theta_c = b^{-2c/d} e^{s_c}, \quad s_c \text{ learned}",
    )
    extrapolates = "partly: as RoPE, with frequencies that fit the training length"
    use_when = (
        "Take it in place of `rope` in a model that you train: a number for each pair is learned, and `rope` is "
        "where it starts."
    )
    axes = 1

    head_dim: Size
    _: KW_ONLY
    rope_theta: Positive = 10000.0
    layout: Layout = "half"
    groups: Size = 1
    schedule: Mapping[str, Any] | None = None

    def setup(self) -> None:
        super().setup()
        self.schedule = dict(self.schedule or {"name": "default"})
        start = frequencies.create(self.schedule, self.head_dim, base=self.rope_theta)
        self.attention_factor = start.attention_factor
        self.log_scale = nn.Parameter(torch.zeros(self.groups, self.head_dim // 2))

    def tables(self) -> dict[str, Tensor]:
        assert self.schedule is not None
        return {"frequency": frequencies.create(self.schedule, self.head_dim, base=self.rope_theta).inv_freq[:, None]}

    def vectors(self, layer: int) -> Tensor:
        return self.frequency * self.log_scale.double().exp()[..., None]

    def _of_process(self, of: HeadRange) -> Self:
        if self.groups > 1:
            raise InputError("does not know the number of heads: make one for each process", groups=self.groups)
        return super()._of_process(of)

    def _check(self, x: Tensor) -> torch.dtype:
        if x.shape[1] % self.groups:
            raise InputError(f"must divide the heads, here {x.shape[1]}", groups=self.groups)
        return super()._check(x)

    def plain(self, group: int = 0) -> Rotary:
        """One group's current ladder, in a `Rotary` with an "explicit" schedule.

        Raises:
            InputError: a group that there is not.
        """
        check_integers(0, self.groups - 1, group=group)
        ladder = frequencies.Frequencies(self.vectors(0)[group, :, 0].detach().cpu())
        stretch = frequencies.stretch(ladder, self.head_dim, base=self.rope_theta).tolist()
        schedule = {"name": "explicit", "stretch": stretch, "attention_factor": self.attention_factor}
        return Rotary(self.head_dim, rope_theta=self.rope_theta, layout=self.layout, schedule=schedule)


@dataclass(eq=False, repr=False)
class FoPE(AxesRotary):
    """Fourier position embedding: cos and sin of each pair are sums over several frequencies, with random or learned weights.

    Frequencies below 2 pi / train_length, which never complete a rotation in training, are dropped; `pairs` of the head's
    head_dim / 2 are rotated by sums over the others, and the rest pass unchanged (cos 1, sin 0).

    head_dim, rope_theta, layout: as in `Rotary`. num_heads, num_kv_heads, num_layers: of the model; each key head and
    layer has separate weights, for cosines and for sines. train_length: the training length. pairs: None takes
    head_dim / 4, or as many as there are frequencies. gain: of the Xavier-normal noise around the identity, from which
    the weights start (the authors take 0.3 to 0.6 for 60 million to 1.2 billion parameters).
    trainable: make parameters of them; False: they stay as drawn, as buffers that the state_dict has and `spec` has not.

    A sum is no rotation: norms change, and scores depend on both positions. Raises InputError for a train_length at
    which no frequency completes a rotation. Source: Hua et al. 2024, section 3.
    """

    name = "fope"
    title = "Fourier position embedding"
    papers: ClassVar[tuple[str, ...]] = ("hua2024fourier",)
    formula: ClassVar[tuple[str, ...]] = (
        r"q_{i,c}' = q_{i,c} C_c(i) - q_{i,c+d/2} S_c(i), \quad q_{i,c+d/2}' = q_{i,c} S_c(i) + q_{i,c+d/2} C_c(i)",
        r"C_c(i) = \sum_m a_{mc} \cos i\theta_m, \quad S_c(i) = \sum_m b_{mc} \sin i\theta_m, \quad \theta_m \ge 2\pi / L",
    )
    extrapolates = "yes, by the paper: frequencies that are not fully trained are gone"
    use_when = (
        "Take it in place of `rope` for inputs longer than in training; scores then depend on both positions. vLLM "
        "serves Intern-S1-Pro with it."
    )
    shift_invariant = False
    isometric = False
    axes = 1

    head_dim: Size
    _: KW_ONLY
    num_heads: Size
    train_length: Size
    num_kv_heads: Size | None = None
    num_layers: Size = 1
    rope_theta: Positive = 10000.0
    layout: Layout = "half"
    pairs: int | None = None
    gain: NotNegative = 0.3
    trainable: bool = False

    def setup(self) -> None:
        super().setup()
        kv_heads = kv_heads_of(self.num_heads, self.num_kv_heads)
        inputs = self.tables()["frequency"].shape[0]
        if inputs == 0:
            raise InputError("no frequency completes a rotation", "pass at least 7", train_length=self.train_length)
        outputs = min(inputs, max(self.head_dim // 4, 1)) if self.pairs is None else self.pairs
        if not 1 <= outputs <= min(inputs, self.head_dim // 2):
            raise InputError(f"must lie between 1 and {min(inputs, self.head_dim // 2)}", pairs=self.pairs)
        start = torch.zeros(inputs, outputs)
        step = math.ceil(inputs / outputs)
        for column in range(outputs):
            start[min(column * step, inputs - 1), column] = 1.0

        for name in ("cosines", "sines"):
            noise = torch.empty(self.num_layers, kv_heads, inputs, outputs)
            weights = nn.init.normal_(noise, std=self.gain * (2 / (inputs + outputs)) ** 0.5) + start.to(noise.device)
            if self.trainable:
                self.register_parameter(name, nn.Parameter(weights))
            else:
                self.register_buffer(name, weights)

    def tables(self) -> dict[str, Tensor]:
        curve = frequency_curve(self.head_dim, base=self.rope_theta)
        return {"frequency": curve[curve >= 2 * math.pi / self.train_length, None]}

    def key_angles(self, positions: Positions, layer: int = 0) -> Tensor:
        raise InputError("FoPE does not rotate keys by an angle: there is nothing to move")

    def weights(self, name: str, layer: int) -> Tensor:
        """Those of a layer's "cosines" or "sines", (num_kv_heads, frequencies, pairs) in float64."""
        weights = self.get_parameter(name) if self.trainable else self.get_buffer(name)
        return weights[self.own_layer(layer)].double()

    def cos_sin(
        self, coordinates: Tensor, placed: Tensor | None, layer: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        angles = self.angles(coordinates, placed, layer)
        check_devices(self.known_as, angles, *self.buffers())  # the coefficients are drawn: none come back after meta
        cos, sin = angles.cos() @ self.weights("cosines", layer), angles.sin() @ self.weights("sines", layer)
        missing = self.head_dim // 2 - cos.shape[-1]
        cos, sin = nn.functional.pad(cos, (0, missing), value=1.0), nn.functional.pad(sin, (0, missing))
        return cos.to(coordinates.device, dtype), sin.to(coordinates.device, dtype)


class RoPEPlusPlus(Rotary):
    """RoPE++: every second query head scores the imaginary part of the complex product, which RoPE discards.

    Heads 0, 2, .. are RoPE's. Heads 1, 3, .. have their queries turned by -90 degrees first, against the same keys:
    the real part of the product becomes the imaginary one. The authors project half as many queries and use each twice: pass
    `q.repeat_interleave(2, dim=1)`. Arguments as in `Rotary`.
    Source: Liu et al. 2025, "Beyond Real", section 3.
    """

    name = "rope_pp"
    title = "RoPE++"
    papers: ClassVar[tuple[str, ...]] = ("liu2025beyond",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \begin{cases} \mathrm{Re}\, z_{ij} & \quad h \text{ even} \\ \mathrm{Im}\, z_{ij} & \quad h \text{ odd} \end{cases}",
        r"z_{ij} = \sum_c \tilde q_{ic} \overline{\tilde k_{jc}} e^{\mathrm{i}(i-j)\theta_c}",
    )
    extrapolates = "partly: the imaginary heads attend further away, by the paper"
    use_when = (
        "Take it in place of `rope` for twice the query heads from the same projections and the same cached keys."
    )
    equal_to = "the authors' code"
    heads_together = 2

    def quarter_turn(self, q: Tensor) -> Tensor:
        """Queries (batch, heads, n, head_dim) with those of every second head turned by -90 degrees."""
        check_head_dim(self, q, self.head_dim)
        zero = q.new_zeros(1, 1, 1, self.rotated // 2)
        q = q.clone()
        q[:, 1::2] = self.rope(q[:, 1::2], zero, zero - 1)
        return q

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        require_fit(positions, q=q, k=k)
        return super().rotate(self.quarter_turn(q), k, positions, layer)

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        return super().rotate_queries(self.quarter_turn(q), positions, layer)
