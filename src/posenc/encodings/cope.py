# SPDX-License-Identifier: Apache-2.0
"""Scores by content and position: CoPE counts the keys that a query selects, TAPA oscillates with the distance."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from posenc.bias import Score
from posenc.bias.structures import Block, Refused
from posenc.encoding import Encoding, Size
from posenc.encodings.shared import check_head_dim
from posenc.errors import InputError, Positive, Share
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class CoPE(Encoding):
    """Positions by content: a key is as far as gates sigmoid(q . k / sqrt(head_dim)) add up to from it to the query.

    head_dim: width of a head. num_layers: layers with separate embeddings (the authors' default); 1: shared by all.
    num_counts: embeddings, one for each count 0 .. num_counts - 1 (64 in the paper's language models, the context's
    length + 1 by default in the authors' code); larger sums count as the last. scaled: divide the position's term by
    sqrt(head_dim) like the scores (the authors' default; "nodiv" otherwise).

    A sum p between two counts gets the interpolated product of the query with their embeddings, which start at zero
    and which all heads share. Keys count in their order, whatever their positions; only visible ones do. The gates
    depend on every pair, and are made for a block of queries at a time.
    Raises InputError for positions that are not causal. Source: Golovneva et al. 2024;
    facebookresearch/RAM, projects/cope/src/cope/context_position.py.
    """

    name = "cope"
    family = "content"
    title = "contextual position (CoPE)"
    papers: ClassVar[tuple[str, ...]] = ("golovneva2024contextual",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot (k_j + e_p)}{\sqrt{d}}",
        r"p = \min\left( n - 1, \sum_{t=j}^{i} \sigma\left( \frac{q_i \cdot k_t}{\sqrt{d}} \right) \right)",
        r"e_p = (1 - p + \lfloor p \rfloor)\, e_{\lfloor p \rfloor} + (p - \lfloor p \rfloor)\, e_{\lceil p \rceil}",
    )
    shift_invariant = True
    extrapolates = "yes: far keys share the last count"
    use_when = (
        "Take it to count words or sentences in place of tokens, in short inputs: it makes a gate for every pair of tokens; "
        "`fox` is cheaper."
    )
    equal_to = "x-transformers"
    causal_only = True

    head_dim: Size
    _: KW_ONLY
    num_layers: Size = 1
    num_counts: Size = 64
    scaled: bool = True

    def setup(self) -> None:
        self.embeddings: nn.Parameter = nn.Parameter(torch.zeros(self.num_layers, self.head_dim, self.num_counts))

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> "Counted":
        check_head_dim(self, q, self.head_dim)
        positions.require_counted()
        dtype = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(dtype), k.to(dtype).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        scale = self.scale(self.head_dim)
        of_count = q @ self.embeddings[self.own_layer(layer)].to(dtype) * (scale if self.scaled else 1.0)
        return Counted(q * scale, k, of_count, positions)


class Counted(Score):
    """What a query's products with the embeddings, (batch, num_heads, num_queries, num_counts), are at the count of each key,
    which gates add up to. q is scaled. Subclasses have other gates, and other terms `of` counts."""

    def __init__(self, q: Tensor, k: Tensor, of_count: Tensor, positions: Positions) -> None:
        self.q, self.k, self.of_count, self.positions = q, k, of_count, positions
        (self.batch, self.num_heads, self.num_queries), self.num_keys = q.shape[:3], k.shape[2]

    def blocks(self, device: torch.device) -> Block:
        def block(first: int, end: int, keys: slice) -> Tensor:
            visible = self.positions.mask(first, end)[..., keys]
            gates = self.gate(self.q[:, :, first:end] @ self.k[:, :, keys].mT) * visible
            return self.of(gates, _from_the_last(gates, self.positions, keys), first, end)

        return block

    def gate(self, products: Tensor) -> Tensor:
        return torch.sigmoid(products)

    def of(self, gates: Tensor, counts: Tensor, first: int, end: int) -> Tensor:
        """The term of some queries. counts: of each key, its gate and those of the keys after it, added up."""
        of_count = self.of_count[:, :, first:end]
        counts = counts.clamp(max=of_count.shape[-1] - 1)
        low = counts.detach().nan_to_num(0.0).long()
        share = counts - low  # of a NaN it is NaN
        least = of_count.gather(-1, low)
        return torch.lerp(least, of_count.gather(-1, (low + 1).clamp(max=of_count.shape[-1] - 1)), share)

    def unsupported(self, positions: Positions) -> Refused | None:
        return Refused("counts need every pair of a query's row")


def _from_the_last(gates: Tensor, positions: Positions, keys: slice) -> Tensor:
    """Each key's gate and those of the keys after it in their order, added up, among some keys: no query of the gates sees one
    that is left out and comes after them."""
    if positions.diagonal is not None:  # keys lie in their order
        return gates.flip(-1).cumsum(-1).flip(-1)
    last_first = positions.k_order[:, keys].argsort(1, descending=True)[:, None, None].expand_as(gates)
    return torch.empty_like(gates).scatter(-1, last_first, gates.gather(-1, last_first).cumsum(-1))


@dataclass(eq=False, repr=False)
class TAPA(Encoding):
    """Token-aware phase attention: the product of some channels, times the cosine of the distance and the product of the others.

    s = q_A . k_A / sqrt(A) cos(2 pi |i - j|^alpha q_P . k_P / sqrt(P)), of the first A channels of a head and the P others.
    Nothing is learned beside the model.

    head_dim: width of a head. fraction: of the channels that are A. alpha: of the distance. A `scale` of `attention` other than
    head_dim^-1/2 multiplies s.

    Scores are computed for a block of queries at a time. Raises InputError where no channel is left for A or P, and for positions
    of several coordinates, or that need a gradient. Source: Wang et al. 2025, equation 12 (experiments: fraction 0.5, alpha 0.1).
    """

    name = "tapa"
    family = "content"
    title = "token-aware phase attention (TAPA)"
    papers: ClassVar[tuple[str, ...]] = ("wang2025tokenaware",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i^A \cdot k_j^A}{\sqrt{\vartheta d}} \cos\left( 2\pi |i - j|^\alpha \frac{q_i^P \cdot k_j^P}{\sqrt{(1 - \vartheta) d}} \right)",
    )
    shift_invariant = True
    extrapolates = "yes: the mean score falls to zero with the distance, by the paper"
    use_when = "Take it to study scores without a bias for near tokens; `rope` takes fewer operations."
    equal_to = "the formula"

    head_dim: Size
    _: KW_ONLY
    fraction: Share = 0.5
    alpha: Positive = 0.1

    def setup(self) -> None:
        self.amplitude: int = round(self.fraction * self.head_dim)
        if not 0 < self.amplitude < self.head_dim:
            raise InputError(f"leaves none of {self.head_dim} channels for amplitude or phase", fraction=self.fraction)

    def scores(self, q: Tensor, k: Tensor, scale: float, positions: Positions, layer: int = 0) -> "_Phased":
        check_head_dim(self, q, self.head_dim)
        positions.require_one_axis("TAPA")
        if positions.q.requires_grad or positions.k.requires_grad:
            raise InputError("TAPA: the gradient of |i - j|^alpha is infinite at 0: pass positions of ids.detach()")
        dtype = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(dtype), k.to(dtype).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        of_phase = 2 * math.pi * (self.head_dim - self.amplitude) ** -0.5
        factors = torch.full((self.head_dim,), of_phase, dtype=dtype, device=q.device)
        factors[: self.amplitude] = scale * math.sqrt(self.head_dim / self.amplitude)
        return _Phased(q * factors, k, self.amplitude, self.alpha, positions)


class _Phased(Score):
    """TAPA's scores. q, k: (batch, num_heads, tokens, head_dim), the first channels of the amplitude; q has both factors."""

    def __init__(self, q: Tensor, k: Tensor, amplitude: int, alpha: float, positions: Positions) -> None:
        self.q, self.k, self.amplitude, self.alpha, self.positions = q, k, amplitude, alpha, positions
        (self.batch, self.num_heads, self.num_queries), self.num_keys = q.shape[:3], k.shape[2]

    def blocks(self, device: torch.device) -> Block:
        def block(first: int, end: int, keys: slice) -> Tensor:
            q, k, a = self.q[:, :, first:end], self.k[:, :, keys], self.amplitude
            distances = (self.positions.q[:, first:end, None] - self.positions.k[:, None, keys]).abs()[:, None]
            phase = distances.double().pow(self.alpha).to(q.dtype) * (q[..., a:] @ k[..., a:].mT)
            return (q[..., :a] @ k[..., :a].mT) * phase.cos()

        return block

    def unsupported(self, positions: Positions) -> Refused | None:
        return Refused("scores are no sum of products")
