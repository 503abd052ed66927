# SPDX-License-Identifier: Apache-2.0
"""Contextual position encoding: positions count the keys that the query selects."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from posenc.bias import Dense
from posenc.encoding import Encoding
from posenc.encodings.shared import check_head_dim
from posenc.errors import InputError
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class CoPE(Encoding):
    """Positions by content: a key is as far as gates sigmoid(q . k / sqrt(head_dim)) add up to from it to the query.

    head_dim: width of a head. num_layers: layers with separate embeddings (the authors' default); 1: shared by all.
    num_counts: embeddings, one for each count 0 .. num_counts - 1 (64 in the paper's language models, the context's
    length + 1 by default in the authors' code); larger sums count as the last. scaled: divide the position's term by
    sqrt(head_dim) like the scores (the authors' default; "nodiv" otherwise).

    A sum p between two counts gets the interpolated product of the query with their embeddings, which start at zero
    and which all heads share. Keys count in their order, whatever their positions; only visible ones do. Costs
    num_queries x num_keys memory, several times over: the gates depend on every pair. Separate keys for the gates and the
    gates from values, options of the authors' code, are not offered.
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
        "Take it to count words or sentences in place of tokens, in short inputs: memory grows with queries times "
        "keys; `fox` has linear memory."
    )
    equal_to = "x-transformers"
    causal_only = True

    head_dim: int
    _: KW_ONLY
    num_layers: int = 1
    num_counts: int = 64
    scaled: bool = True

    def setup(self) -> None:
        self.embeddings: nn.Parameter = nn.Parameter(torch.zeros(self.num_layers, self.head_dim, self.num_counts))

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Dense:
        check_head_dim(self, q, self.head_dim)
        if positions.sees_future:
            raise InputError("CoPE counts from a key up to its query: pass causal positions (causal=True)")
        positions.require_counted()
        dtype = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(dtype), k.to(dtype).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        scale = self.scale(self.head_dim)
        gates = torch.sigmoid(scale * (q @ k.mT)) * positions.mask()
        counts = _from_the_last(gates, positions).clamp(max=self.num_counts - 1)
        of_count = q @ self.embeddings[self.own_layer(layer)].to(dtype) * (scale if self.scaled else 1.0)
        below, above = counts.floor(), counts.ceil()
        share = counts - below
        first, second = (x.nan_to_num(0.0).long() for x in (below, above))  # of a NaN, the share is NaN
        term = of_count.gather(-1, first) * (1 - share) + of_count.gather(-1, second) * share
        return Dense(term)


def _from_the_last(gates: Tensor, positions: Positions) -> Tensor:
    """Each key's gate and those of all keys after it in their order, added up."""
    if positions.diagonal is not None:  # keys lie in their order
        return gates.flip(-1).cumsum(-1).flip(-1)
    last_first = positions.k_order.argsort(1, descending=True)[:, None, None].expand_as(gates)
    return torch.empty_like(gates).scatter(-1, last_first, gates.gather(-1, last_first).cumsum(-1))
