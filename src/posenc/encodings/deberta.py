# SPDX-License-Identifier: Apache-2.0
"""DeBERTa: separate scores of content and distance, in both directions; absolute positions enter before the output."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from posenc.bias import KeyRelative, QueryRelative, Relative, Score
from posenc.encoding import Projections, Size
from posenc.encodings.absolute import Learned
from posenc.encodings.shared import Beyond, ContentBias, HeadProjection, check_terms, normal_parameter, projected_by
from posenc.errors import InputError, check_arguments, check_sizes
from posenc.functional import deberta_bucket
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class _Disentangled(ContentBias):
    """The score [q_i . k_j + q_i . K_d + k_j . Q_d + Q_d . K_d] / sqrt(head_dim (1 + number of terms)): K and Q are
    keys and queries made from a table of 2 * span rows, d is the row of the distance. The last three terms are c2p,
    p2c and p2p.
    """

    shift_invariant = True
    extrapolates = "yes: far distances share a vector"
    bias_reads_keys = False

    dim: Size
    _: KW_ONLY
    num_heads: Size
    head_dim: Size
    num_layers: Size = 1
    max_relative_positions: Size = 512
    terms: str = "c2p|p2c"
    paper_index: bool = False
    init_std: float = 0.02

    @property
    def span(self) -> int:
        """Half the rows of the table."""
        return self.max_relative_positions

    def setup(self) -> None:
        self.acting: frozenset[str] = check_terms(self.terms, ("c2p", "p2c", "p2p"))
        self.bias_reads_keys = "p2c" in self.acting
        self.table: nn.Parameter = normal_parameter(2 * self.span, self.dim, init_std=self.init_std)

    def add_projections(self, key_bias: bool) -> None:
        """The encoding's projections, for the sides that the terms need."""
        shape = self.dim, self.num_heads, self.head_dim, self.num_layers, self.init_std
        of_key, of_query = self.acting & {"c2p", "p2p"}, self.acting & {"p2c", "p2p"}
        self.key: HeadProjection | None = HeadProjection(*shape, bias=key_bias) if of_key else None
        self.query: HeadProjection | None = HeadProjection(*shape) if of_query else None

    def counted(self, distance: Tensor) -> Tensor:
        """A distance (query position minus key position) as the table counts it."""
        return distance

    def row(self, distance: Tensor) -> Tensor:
        """delta(i, j), the row of the distance i - j."""
        span = self.span
        return (self.counted(distance) + span).clamp(0, 2 * span - 1)

    def row_of_query(self, distance: Tensor) -> Tensor:
        """The row among the table's queries: delta(i, j) in the authors' code, delta(j, i) in the paper."""
        return self.row(-distance if self.paper_index else distance)

    def projected(self, side: int, layer: int, table: Tensor) -> Tensor | None:
        """The table as queries (side 0) or keys (side 1), (num_heads, 2 span, head_dim); None where no term needs them."""
        projection = self.key if side else self.query
        return None if projection is None else projection(table, self.own_layer(layer))

    def normalized(self) -> Tensor:
        """The table before its projections."""
        return self.table

    def scale(self, head_dim: int) -> float:
        return float((head_dim * (1 + len(self.acting))) ** -0.5)

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> list[Score]:
        self.check_heads(q)
        self.check_integers(positions)
        dtype, scale = torch.promote_types(q.dtype, torch.float32), self.scale(self.head_dim)
        table = self.normalized().to(q.dtype)
        queries, keys = self.projected(0, layer, table), self.projected(1, layer, table)
        terms: list[Score] = []
        if keys is not None and "c2p" in self.acting:
            terms.append(QueryRelative(q.to(dtype), keys.to(dtype) * scale, self.row, positions))
        if queries is not None and "p2c" in self.acting:
            per_head = k.to(dtype).repeat_interleave(self.num_heads // k.shape[1], 1)
            terms.append(KeyRelative(per_head, queries.to(dtype) * scale, self.row_of_query, positions))
        if keys is not None and queries is not None and "p2p" in self.acting:
            terms.append(self.position_to_position(queries.to(dtype) * scale, keys.to(dtype), positions))
        return terms

    def position_to_position(self, queries: Tensor, keys: Tensor, positions: Positions) -> Relative:
        """Q_d . K_d, a number per head and distance."""
        limit = self.max_relative_positions  # nothing changes beyond
        distances = torch.arange(-limit, limit + 1, device=keys.device)
        products = (queries[:, self.row_of_query(distances)] * keys[:, self.row(distances)]).sum(-1)

        def of_distance(head: Tensor, distance: Tensor) -> Tensor:
            return products[head, distance.clamp(-limit, limit) + limit]

        return Relative(of_distance, self.num_heads, positions)


@dataclass(eq=False, repr=False)
class DeBERTa(_Disentangled):
    """DeBERTa (v1): queries meet keys of their distance, keys meet queries of it, from one table for all layers.

    dim, num_heads, head_dim: of the model. num_layers: layers with separate projections, which make keys from the
    table without a bias and queries with one. max_relative_positions: distances count up to one less, further ones as
    that. terms: which of "c2p" (query and key of the distance), "p2c" (key and query of the distance) and "p2p" (both
    of the distance) there are; scores are divided by sqrt(head_dim (1 + number of terms)). paper_index: the queries of
    the table are those of the distance from j to i, as equation 4 of the paper prints it; the authors' code and every
    checkpoint take the one from i to j. init_std: of the table and the projections.

    Raises InputError for fractional positions and unknown terms. Source: He et al. 2021, section 3.1; microsoft/DeBERTa.
    """

    name = "deberta"
    title = "disentangled attention (DeBERTa)"
    papers: ClassVar[tuple[str, ...]] = ("he2021deberta",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j + q_i \cdot W_h^K p_r + k_j \cdot W_h^Q p_r}{\sqrt{3d}}",
        r"r = \operatorname{clip}(i - j + m, 0, 2m - 1)",
    )
    use_when = "Take it for the first DeBERTa's weights; `deberta_v2` shares the model's projections."
    equal_to = "transformers' DeBERTa"

    def setup(self) -> None:
        super().setup()
        self.add_projections(key_bias=False)


@dataclass(eq=False, repr=False)
class DeBERTaV2(_Disentangled):
    """DeBERTa v2 and v3: logarithmic buckets of distances, whose vectors pass through the model's projections.

    max_relative_positions, position_buckets: the buckets, see `functional.deberta_bucket`; position_buckets=0 counts
    every distance. norm: LayerNorm over the table. shared: the table passes through the model's query and key
    projections, given by `share`; otherwise through separate projections, with biases. The rest: see `DeBERTa`.

    Keys max_relative_positions or more ahead of a query take row 0, as in transformers. The authors' code takes row 1, so
    that row 0 of their weights was never trained: their published models (512) are unsure of inputs beyond 512 tokens.

    Raises InputError for fractional positions, unknown terms, buckets that do not fit, and shared projections that
    were never given. Source: He et al. 2021, section 3.1; He, Gao and Chen 2023; microsoft/DeBERTa.
    """

    name = "deberta_v2"
    title = "disentangled attention (DeBERTa v2, v3)"
    papers: ClassVar[tuple[str, ...]] = ("he2021deberta", "he2023debertav3")
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j + q_i \cdot W_h^K \bar{p}_r + k_j \cdot W_h^Q \bar{p}_r}{\sqrt{3d}}",
        r"r = \operatorname{clip}(\beta(i - j) + m, 0, 2m - 1), \quad \bar{p} = \operatorname{LayerNorm}(p)",
    )
    use_when = "Take it in an encoder, as DeBERTa v2 and v3 do; `t5` adds a number in place of products."
    equal_to = "transformers' DeBERTa-v2"

    _: KW_ONLY
    position_buckets: int = 256
    shared: bool = True
    norm: bool = True

    def setup(self) -> None:
        try:
            self.counted(torch.zeros(1))
        except InputError as error:
            sizes = {"position_buckets": self.position_buckets, "max_relative_positions": self.max_relative_positions}
            raise error.about(**sizes) from None
        super().setup()
        self.layer_norm: nn.Module = nn.LayerNorm(self.dim, eps=1e-7) if self.norm else nn.Identity()
        self.projections: list[Projections] = []
        if not self.shared:
            self.add_projections(key_bias=True)

    @property
    def span(self) -> int:
        return self.position_buckets or self.max_relative_positions

    def counted(self, distance: Tensor) -> Tensor:
        if not self.position_buckets:
            return distance
        return deberta_bucket(distance, num_buckets=self.position_buckets, max_distance=self.max_relative_positions)

    def share(self, projections: Sequence[Projections]) -> None:
        self.projections = list(projections)  # in a list, which registers nothing: the modules stay the model's

    def normalized(self) -> Tensor:
        normalized: Tensor = self.layer_norm(self.table)
        return normalized

    def projected(self, side: int, layer: int, table: Tensor) -> Tensor | None:
        if not self.shared:
            return super().projected(side, layer, table)
        if layer >= len(self.projections):
            remedy = "give the model's to share([(query, key), ...]), or make it with shared=False"
            raise InputError(f"DeBERTaV2 has no query and key projection for layer {layer}: {remedy}")
        table = projected_by(self.projections[layer][side], table)
        heads = table.unflatten(-1, (-1, self.head_dim)).transpose(0, 1)
        return heads.repeat_interleave(self.num_heads // heads.shape[0], 0)


class EnhancedMaskDecoder(nn.Module):
    """DeBERTa's absolute positions: the model's last layer, run again with queries that know where they are.

    The first queries are hidden + P, P a learned table of absolute positions; keys and values are always hidden, the
    output of the layer before the last. The last layer runs `steps` times with the same weights, its output being the
    next queries; the last output goes to the masked-word head.

    max_positions: rows of the table. dim: width of the model. steps: 2 as the authors' code has it. beyond, init_std:
    of the table, see `Learned`. Source: He et al. 2021, section 3.2; microsoft/DeBERTa.
    """

    def __init__(
        self, max_positions: int, *, dim: int, steps: int = 2, beyond: Beyond = "error", init_std: float = 0.02
    ) -> None:
        super().__init__()
        check_arguments(EnhancedMaskDecoder.__init__, locals())
        check_sizes(steps=steps)
        self.steps = steps
        self.positions: Learned = Learned(max_positions, dim=dim, init_std=init_std, beyond=beyond)

    def forward(
        self, hidden: Tensor, layer: Callable[[Tensor, Tensor], Tensor], positions: Positions | None = None
    ) -> Tensor:
        """hidden: (batch, seq, dim). layer: (queries, hidden) -> output, all like hidden; the queries attend to keys
        and values made from hidden. positions: where the tokens are; None: 0 .. seq-1."""
        if positions is None:
            positions = Positions.arange(hidden.shape[1], device=hidden.device)
        queries = self.positions.embed(hidden, positions)
        for _ in range(self.steps):
            queries = layer(queries, hidden)
        return queries
