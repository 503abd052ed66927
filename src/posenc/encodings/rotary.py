"""The rotary family: queries and keys are turned by an angle that grows with their position."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from posenc import frequencies
from posenc.encoding import Encoding
from posenc.errors import InputError, unknown
from posenc.functional import Layout, check_even, rotary
from posenc.positions import Positions


class Rotary(Encoding):
    """RoPE: pair c of a query or key at position m turns by m * theta_c, so q_m . k_n depends on m - n alone.

    head_dim: width of a head. rope_theta: base of the frequencies. layout: which channels form a pair, "half"
    (c, c + d/2: GPT-NeoX, Llama in transformers) or "interleaved" (2c, 2c + 1: RoFormer, GPT-J).
    rotary_dim: rotate only the first rotary_dim channels (partial rotary); None rotates all.
    schedule: the frequencies as data, e.g. {"name": "ntk", "factor": 4}; see `posenc.frequencies`.

    Angles are computed in float64 from exact positions and cast at the end. Raises InputError for odd widths.
    Source: Su et al. 2021, "RoFormer", section 3.2.
    """

    name = "rope"
    papers = ("su2021roformer",)
    shift_invariant = True
    extrapolates = "partly: degrades past the training length"

    def __init__(
        self,
        head_dim: int,
        rope_theta: float = 10000.0,
        layout: Layout = "half",
        rotary_dim: int | None = None,
        schedule: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_even("head_dim", head_dim)
        if rotary_dim is not None:
            check_even("rotary_dim", rotary_dim)
            if rotary_dim > head_dim:
                raise InputError(f"rotary_dim={rotary_dim}: cannot exceed head_dim={head_dim}")
        if layout not in ("half", "interleaved"):
            raise unknown("layout", layout, ("half", "interleaved"))
        self.head_dim, self.rope_theta, self.layout, self.rotary_dim = head_dim, rope_theta, layout, rotary_dim
        self.schedule = dict(schedule or {"name": "default"})
        self.attention_factor = self.frequencies().attention_factor
        self.register_tables()

    inv_freq: Tensor

    def frequencies(self) -> frequencies.Frequencies:
        """The schedule's frequencies, one per rotated pair."""
        return frequencies.create(self.schedule, self.rotary_dim or self.head_dim, self.rope_theta)

    def tables(self) -> dict[str, Tensor]:
        return {"inv_freq": self.frequencies().inv_freq}

    def with_schedule(self, name: str, **options: Any) -> "Rotary":
        """The same rotation under another frequency schedule: `rope.with_schedule("ntk", factor=4)`."""
        schedule = {"name": name, **options}
        other = Rotary(self.head_dim, self.rope_theta, self.layout, self.rotary_dim, schedule)
        return other.to(self.inv_freq.device)

    def cos_sin(self, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin of the angles: (batch, n) positions -> two (batch, 1, n, pairs) tables."""
        angles = ids.to(self.inv_freq)[:, None, :, None] * self.inv_freq
        cos, sin = angles.cos() * self.attention_factor, angles.sin() * self.attention_factor
        return cos.to(ids.device, dtype), sin.to(ids.device, dtype)

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        if q.shape[-1] != self.head_dim:
            raise InputError(f"q of head_dim {q.shape[-1]}: this Rotary was made with head_dim={self.head_dim}")
        positions.require_one_axis("Rotary")
        dtype = torch.promote_types(q.dtype, torch.float32)
        of_q = positions.shared((self, "q", dtype), lambda: self.cos_sin(positions.q, dtype))
        same = positions.q is positions.k
        of_k = of_q if same else positions.shared((self, "k", dtype), lambda: self.cos_sin(positions.k, dtype))
        return rotary(q, *of_q, layout=self.layout), rotary(k, *of_k, layout=self.layout)
