# SPDX-License-Identifier: Apache-2.0
"""Selective attention: tokens select keys that later queries no longer need."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from posenc.bias import Score
from posenc.encoding import Encoding, Projections, Size
from posenc.encodings.rotary import Rotary
from posenc.encodings.shared import check_head_dim, projected_by
from posenc.errors import InputError
from posenc.functional import Layout
from posenc.positions import Positions
from posenc.positions.order import order_of

TOKENS = 256
"""Tokens whose selections are added up at a time."""
CELLS = 2**23
"""Pairs of tokens up to which all selections are computed at once, 32 MiB in float32."""


@dataclass(eq=False, repr=False)
class SelectiveAttention(Encoding):
    """What the first head scores above zero is subtracted from the scores of later queries, in every head.

    F_ij = sum of relu(s_tj) over the tokens t between j and i, s the scores of head 0, scaled, of what t sees. The first token
    of each document, and what a token scores of itself, do not count. Nothing is learned.

    head_dim: width of a head. rope_theta, layout: of the rotation that is in the scores s; None: there is none. It does not
    rotate queries and keys: in a model with RoPE the encoding is rope+selective_attention:rope_theta=10000.

    What earlier tokens have selected is computed from their queries. These are the gates: they go through the model's query
    projection (`share`) and are cached with the keys. `gates=q[:, :1]` passes them to `attention` in a model that
    changes queries in no other way. Time grows with the square of the keys, also where a single query is new. Memory is
    that of some queries at a time where all rows have the same order, otherwise one number for each pair of tokens.
    Raises InputError for positions that are not causal, and where `attention` is not given gates.
    Source: Leviathan et al. 2025, section 3; x-transformers.
    """

    name = "selective_attention"
    title = "selective attention"
    papers: ClassVar[tuple[str, ...]] = ("leviathan2025selective",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s'_{ij} = s_{ij} - \begin{cases} 0 & \quad j \text{ the first key} \\ \sum_{t=j+1}^{i-1} \max(0, s^{(0)}_{tj}) & "
        r"\quad \text{otherwise} \end{cases}",
    )
    shift_invariant = True
    extrapolates = "not claimed"
    use_when = (
        "Take it beside `rope` in a causal model that should drop what it no longer needs; a step of decoding takes "
        "quadratic time, with `fox` linear."
    )
    equal_to = "x-transformers"
    mixes_heads = True
    causal_only = True

    head_dim: Size
    _: KW_ONLY
    rope_theta: float | None = None
    layout: Layout = "half"

    def setup(self) -> None:
        theta = 1.0 if self.rope_theta is None else self.rope_theta
        self.rotation: Rotary = Rotary(self.head_dim, rope_theta=theta, layout=self.layout)
        self.projections: list[Projections] = []

    def share(self, projections: Sequence[Projections]) -> None:
        self.projections = list(projections)  # in a list, which registers nothing: the modules stay the model's

    def gates(self, x: Tensor, layer: int = 0) -> Tensor:
        if layer >= len(self.projections):
            remedy = "give the model's to share([(query, key), ...]), or pass gates=q[:, :1] to attention"
            raise InputError(f"selective_attention has no query projection for layer {layer}: {remedy}")
        return projected_by(self.projections[layer][0], x)[:, None, :, : self.head_dim]

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> "Selection":
        check_head_dim(self, q, self.head_dim)
        positions.require_counted()
        positions.require_among_keys()
        dtype = torch.promote_types(q.dtype, torch.float32)
        queries = positions.gate(self.known_as, 1, self.head_dim).to(dtype)
        tokens = positions.shared("tokens as queries", lambda: positions.of_side("k"))
        keys = k[:, :1].to(dtype)
        if self.rope_theta is not None:
            queries, keys = self.rotation.rotate(queries, keys, tokens, layer)
        return Selection(queries[:, 0] * self.scale(self.head_dim), keys[:, 0], positions, tokens)


class Selection(Score):
    """-F_ij, see `SelectiveAttention`: scaled queries and keys of the head that selects, (batch, num_keys, head_dim), of all
    tokens; tokens: their positions as queries."""

    num_heads = 1

    def __init__(self, queries: Tensor, keys: Tensor, positions: Positions, tokens: Positions) -> None:
        self.queries, self.keys, self.positions, self.tokens = queries, keys, positions, tokens
        self.batch, self.num_queries, self.num_keys = keys.shape[0], positions.num_queries, positions.num_keys
        here = torch.arange(positions.num_keys, device=keys.device)
        if positions.diagonal is not None and not positions.hides_tokens:  # one document, in its order
            self.first: Tensor = (here == 0)[None]  # keys that are the first of their documents
        else:
            order = order_of(positions)
            self.first = (order.first == here).gather(1, order.rank)

    def selected(self, first: int, end: int) -> Tensor:
        """What tokens first .. end - 1 score each key, where it counts: (batch, end - first, num_keys)."""
        scores = (self.queries[:, first:end] @ self.keys.mT).relu()
        before = self.tokens.k_order[:, None] < self.tokens.q_order[:, first:end, None]
        counts = self.tokens.mask(first, end)[:, 0] & before & ~self.first[:, None]
        return scores.masked_fill(~counts, 0.0)

    def added(self, first: int, end: int) -> Tensor:
        """What tokens first .. end - 1 select in all, (batch, num_keys)."""
        if not torch.is_grad_enabled():
            return self.selected(first, end).sum(1)
        return checkpoint(lambda: self.selected(first, end).sum(1), use_reentrant=False)

    def rows(self, device: torch.device) -> Callable[[int, int], Tensor]:
        diagonal = self.positions.diagonal
        if diagonal is None:
            return self._in_any_order
        most_of_them = 2 * self.num_queries >= self.num_keys and not torch.compiler.is_compiling()
        if most_of_them and self.batch * self.num_keys**2 <= CELLS:
            selected = pad(self.selected(0, self.num_keys), (0, 0, 1, -1))  # what counts comes from tokens before
            every = -selected.cumsum(1)[:, None, diagonal : diagonal + self.num_queries]
            return lambda first, end: every[:, :, first:end]
        sums = [self.keys.new_zeros(self.batch, self.num_keys)]  # of the tokens before each multiple of TOKENS
        if not torch.compiler.is_compiling():
            for first in range(0, diagonal + self.num_queries - TOKENS, TOKENS):
                sums.append(sums[-1] + self.added(first, first + TOKENS))

        def rows(first: int, end: int) -> Tensor:
            known = min((first + diagonal) // TOKENS, len(sums) - 1)
            start = known * TOKENS
            selected = pad(self.selected(start, end + diagonal), (0, 0, 1, -1))  # what counts comes from tokens before
            return -(sums[known][:, None] + selected.cumsum(1))[:, None, first + diagonal - start :]

        return rows

    def _in_any_order(self, first: int, end: int) -> Tensor:
        earlier = self.tokens.k_order[:, None] < self.positions.q_order[:, first:end, None]
        return -(earlier.to(self.keys) @ self.selected(0, self.num_keys))[:, None]
