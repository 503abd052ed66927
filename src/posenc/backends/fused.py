# SPDX-License-Identifier: Apache-2.0
"""Attention with terms of position as one operator for the CPU, in memory that grows with the sequence, not its square.

Forward runs the CPU's flash kernel, block of queries by block of queries, with a mask made on the spot: for biases of
the distance alone no mask at all but a strided (Hankel) view of their vector, for everything else a tile in cache.
Backward recomputes the weights tile by tile from the saved log-sum-exp. What is invisible is never visited, and
neither are keys whose bias alone makes their weight vanish. To compilers the operator is opaque: one graph serves
every length.

`lower` makes a problem the operator's arguments, `attend` is the operator, a `Call` is one branch of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from posenc.backends.problem import Problem, Rotated
from posenc.bias.structures import Refused
from posenc.bias.terms import TERMS, CapTerm, DifferenceTerm, Slice, Term, Tile, ValuesTerm, VectorTerm, skew
from posenc.errors import InputError, check_devices
from posenc.functional import batched, exactly, interpreted, no_second_derivatives
from posenc.positions import Positions
from posenc.positions.segments import Rectangle, Segments, distances_of, segments
from posenc.positions.visibility import EVERYTHING, Region

# private: where a release of PyTorch has them no more, the same equation is computed by its public operations
_flash: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_flash_backward: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
FLASH_GROUPS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)
"""Whether these kernels take fewer heads of keys than of queries; before PyTorch 2.9 they read past the keys' end."""

ROWS = 256
"""Queries of a tile."""
MANY = 4096
"""Queries that the flash kernel is given at a time where it visits every key: it goes through all of them at each call."""
COLUMNS = 1024
"""Keys of a tile, where the softmax is known already: with ROWS, what stays in a core's second-level cache."""
CELLS = 2**18
"""Scores of a block of heads, 1 MiB in float32; a tile of one head may be larger."""
FEW, RECTANGLE = 2**9, 2**12
"""Rectangles that are always visited one by one, and how many scores of a dense mask take as long as one more: a call of the kernel."""
NEGLIGIBLE = 40.0
"""A weight below e^-40 of its row's largest is beyond what float32 can see, 2^-24, even 10^10 times."""
NUMBERS = len(EVERYTHING.numbers()) + 1
"""Integers per branch: those of its region, and `Rotated.first`."""


# -------------------------------------------------------------------- from a problem to the operator's arguments


def unsupported(problem: Problem) -> Refused | None:
    """Why a problem has no form that the operator takes; None if it has one. Computes no term."""
    positions = problem.positions
    visible = segments(positions)
    if visible is None:
        return Refused("what is visible is not made of rectangles", _in_rectangles(positions))
    more = len(visible) - FEW
    if more > 0 and problem.values is None and problem.q.shape[:3].numel() * problem.k.shape[2] < more * RECTANGLE:
        return Refused("what is visible is made of many small rectangles")
    if problem.branches and positions.window is not None:
        return Refused("a window beside a position map")
    if problem.branches and not visible.regular:
        return Refused("positions are not contiguous", "contiguous positions")
    if any(modifier.reduced() is None for modifier in problem.modifiers):
        return Refused("a score modifier is known only as a function", "posenc.bias.SoftCap")
    refused = next((why for why in [term.unsupported(positions) for term in problem.bias] if why is not None), None)
    if refused is None and problem.values is not None and (positions.span is None or not visible.regular):
        return Refused("positions are not contiguous", "contiguous positions")
    return refused


def _in_rectangles(positions: Positions) -> str:
    """What would make rectangles of what is visible."""
    if positions.prefix is not None:
        return "a prefix without a window, outside torch.compile"
    if torch.compiler.is_compiling() or not positions.unmasked:
        return "padding and documents in one piece"
    return "causal order that follows the tokens; for a prefix that sees itself, one call for it and one for the rest"


class Lowered(NamedTuple):
    """The arguments of `attend` that say what position adds: see there."""

    kinds: list[str]
    tensors: list[Tensor]
    segments: Segments
    longest: int


def lower(problem: Problem) -> Lowered:
    """The terms of a problem that are supported."""
    positions, precise = problem.positions, torch.promote_types(problem.q.dtype, torch.float32)
    visible, distances = segments(positions), distances_of(positions)
    assert visible is not None
    terms: list[Term] = [term.reduced(distances, problem.q.device) for term in problem.bias]
    vectors = [term for term in terms if term.kind == VectorTerm.kind]
    if len(vectors) > 1:
        together = sum((term.tensors[0] for term in vectors[1:]), vectors[0].tensors[0])
        terms = [VectorTerm(together), *(term for term in terms if term not in vectors)]
    terms += [cap for cap in (modifier.reduced() for modifier in problem.modifiers) if cap is not None]
    if problem.values is not None:
        assert distances is not None
        terms.append(problem.values.reduced(distances))
    tensors = [x for term in terms for x in term.prepared(precise, *problem.q.shape[:2])]
    return Lowered([term.kind for term in terms], tensors, visible, 0 if positions.span is None else positions.span[1])


def run(problem: Problem, lowered: Lowered) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a problem, without its sink. lowered: of this or, where terms are constant, of another layer's."""
    positions, (kinds, tensors, visible, longest) = problem.positions, lowered
    branches = problem.branches or [Rotated(problem.q, problem.k, positions.region)]
    inputs = [branch.q for branch in branches] + [branch.k for branch in branches] + [problem.v, *tensors]
    if problem.dropout_p == 0 and not torch.compiler.is_compiling() and not interpreted() and not _learns(inputs):
        return forward(_calls(branches, problem.v, lowered, positions.causal, problem.scale))
    regions = [number for branch in branches for number in (*branch.region.numbers(), branch.first)]
    numbers = [int(positions.causal), int(visible.overlapping), longest, *regions, *visible.table]
    kinds = [str(len(branches)), *kinds]
    if problem.dropout_p > 0:
        inputs.append(torch.randint(2**62, ()))
        kinds.append("seed")
    return attend(inputs, " ".join(kinds), numbers, problem.scale, problem.dropout_p)


def _learns(inputs: list[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


def _calls(
    branches: Sequence[Rotated],
    v: Tensor,
    lowered: Lowered,
    causal: bool,
    scale: float,
    dropout_p: float = 0.0,
    seed: int = 0,
) -> list["Call"]:
    """A call of each branch."""
    kinds, tensors, segments, longest = lowered
    calls, v = [], _packed(v)
    for number, (q, k, region, first) in enumerate(branches):
        terms: list[Term] = []
        at, of_v, visible = 0, v, segments
        for kind in [TERMS[name] for name in kinds]:
            terms.append(kind(*tensors[at : at + kind.size]))
            at += kind.size
        if k.shape[2] < v.shape[2]:
            of_v, visible = v[:, :, first : first + k.shape[2]], visible.keys(first, k.shape[2])
        inputs, seeds = (_packed(q), _packed(k), of_v), seed ^ (number << 40)
        calls.append(Call(*inputs, terms, visible, causal, scale, longest, dropout_p, seeds, region))
    return calls


# -------------------------------------------------------------------- the operator, as compilers see it


def _parse(
    inputs: list[Tensor], kinds: str, numbers: list[int], scale: float, dropout_p: float
) -> tuple[list["Call"], Tensor, list[int]]:
    """The calls that the operator's arguments describe, v, and which of v's keys is each call's first."""
    count, *names = kinds.split()
    branches, seed = int(count), 0
    if names and names[-1] == "seed":
        seed, inputs, names = int(inputs[-1]), inputs[:-1], names[:-1]
    causal, overlapping, longest, *rest = numbers
    regions, table = rest[: NUMBERS * branches], rest[NUMBERS * branches :]
    made = []
    for at in range(branches):
        *limits, first = regions[NUMBERS * at : NUMBERS * (at + 1)]
        made.append(Rotated(inputs[at], inputs[branches + at], Region.of(limits), first))
    v, tensors = inputs[2 * branches], inputs[2 * branches + 1 :]
    lowered = Lowered(names, tensors, Segments(list(table), True, bool(overlapping)), longest)
    calls = _calls(made, v, lowered, bool(causal), scale, dropout_p, seed)
    return calls, v, [branch.first for branch in made]


def _packed(x: Tensor) -> Tensor:
    """With the channels next to one another, as PyTorch's flash kernel takes for granted: else it reads others."""
    return x if x.stride(-1) == 1 else x.contiguous()


@torch.library.custom_op(
    "posenc::attend",
    mutates_args=(),
    schema="(Tensor[] inputs, str kinds, SymInt[] numbers, float scale, float dropout_p) -> (Tensor, Tensor)",
)
def attend(
    inputs: list[Tensor], kinds: str, numbers: list[int], scale: float, dropout_p: float
) -> tuple[Tensor, Tensor]:
    """Output (batch, heads, queries, value width) and log-sum-exp (batch, heads, queries) of one softmax.

    inputs: q for each branch of a position map, or once; k likewise; v; what the terms are made of; with dropout a seed.
    kinds: the number of branches, then the terms by kind, caps and values last, then "seed", separated by blanks.
    numbers: whether causal; whether a query may be in several rectangles; the distance of the first entry of every term; NUMBERS per branch; `Segments.table`.
    """
    calls, v, _ = _parse(inputs, kinds, numbers, scale, dropout_p)
    with exactly(v):
        return forward(calls)


@attend.register_fake
def _(inputs: list[Tensor], kinds: str, numbers: list[int], scale: float, dropout_p: float) -> tuple[Tensor, Tensor]:
    check_devices("posenc.attention", *inputs)
    q, v = inputs[0], inputs[2 * int(kinds.split()[0])]
    batch, heads, queries, _ = q.shape
    out = v.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2)
    return out, v.new_empty(batch, heads, queries, dtype=torch.promote_types(v.dtype, torch.float32))


@torch.library.custom_op(
    "posenc::attend_backward",
    mutates_args=(),
    schema="(Tensor[] inputs, str kinds, SymInt[] numbers, float scale, float dropout_p, Tensor[] results, "
    "bool[] needs) -> Tensor[]",
)
def attend_backward(
    inputs: list[Tensor], kinds: str, numbers: list[int], scale: float, dropout_p: float, results: list[Tensor],
    needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Gradients of every q, every k, v, and of those inputs after them that need one, in order. results: the output, its
    log-sum-exp, and the gradients of both. needs: of each input."""
    calls, v, firsts = _parse(inputs, kinds, numbers, scale, dropout_p)
    for call in calls:
        at = 2 * len(calls) + 1
        for term in call.every_term:
            term.collects(needs[at : at + term.size])
            at += term.size
    with exactly(v):
        of_q, of_k, of_v = backward(calls, firsts, v, *results)
    # a branch's terms are made of the same tensors
    shares = [[x for term in call.every_term for x in term.grads if x is not None] for call in calls]
    return [*of_q, *of_k, of_v, *(sum(parts[1:], parts[0]) for parts in zip(*shares, strict=True))]


@attend_backward.register_fake
def _(
    inputs: list[Tensor], kinds: str, numbers: list[int], scale: float, dropout_p: float, results: list[Tensor],
    needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    check_devices("posenc.attention", *inputs, *results)
    always = 2 * int(kinds.split()[0]) + 1
    wanted = [x for at, (x, need) in enumerate(zip(inputs, needs, strict=True)) if need or at < always]
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in wanted]


attend_backward.register_autograd(no_second_derivatives("posenc.attention", "pass backend='reference'"))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, *ctx.settings = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, grad: Tensor, of_lse: Tensor) -> tuple[Any, ...]:
    if not torch.compiler.is_compiling() and (batched(grad) or batched(of_lse)):
        raise InputError(
            "the operator of posenc.attention takes one gradient at a time",
            "call torch.autograd.grad for each gradient, or pass backend='reference'",
            is_grads_batched=True,
        )
    *inputs, out, lse = ctx.saved_tensors
    needs, always = list(ctx.needs_input_grad[0]), 2 * int(ctx.settings[0].split()[0]) + 1
    made = iter(attend_backward(inputs, *ctx.settings, [out, lse, grad, of_lse], needs))
    grads = [next(made) if need or at < always else None for at, need in enumerate(needs)]
    return grads, *([None] * 4)


attend.register_autograd(_gradients, setup_context=_save)


# -------------------------------------------------------------------- what of a call is visited


class Band(NamedTuple):
    """Heads, and what matters to them: the entries of their vector of distances, and for each query the first key, (batch,
    num_queries). None: all."""

    heads: Slice
    entries: Slice | None = None
    first: Tensor | None = None


class Scratch:
    """Buffers of a loop over tiles, reused while they fit."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.pools: dict[str, Tensor] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """A contiguous buffer of arbitrary content."""
        size = prod(shape)
        pool = self.pools.get(name)
        if pool is None or pool.numel() < size:
            self.pools[name] = pool = self.like.new_empty(size)
        return pool[:size].view(shape)

    def by_distance(self, name: str, tile: Tile) -> Tensor:
        """A buffer by distance whose corners, outside the skew view, are zero."""
        heads, rows, columns = shape = tile.shape
        buffer = self.take(name, heads, rows, columns + rows - 1)
        if self.shapes.get(name) == shape:
            return buffer
        self.shapes[name] = shape
        return buffer.zero_()


@dataclass
class Call:
    """One branch: tensors, and what is visible of their products. every_term: those of scores, then caps, then that of values.
    longest: the distance that vectors begin with. region: the part of it that queries and keys were rotated for, in regular
    segments."""

    q: Tensor
    k: Tensor
    v: Tensor
    every_term: list[Term]
    segments: Segments
    causal: bool
    scale: float
    longest: int
    dropout_p: float
    seed: int
    region: Region = EVERYTHING

    def __post_init__(self) -> None:
        self.values: ValuesTerm | None = next((x for x in self.every_term if isinstance(x, ValuesTerm)), None)
        self.caps: list[CapTerm] = [x for x in self.every_term if isinstance(x, CapTerm)]
        self.terms: list[Term] = [x for x in self.every_term if not isinstance(x, (CapTerm, ValuesTerm))]
        self.rectangles: list[Rectangle] = self.segments.within(self.region)
        # distances that are visible in them; complete chunks of the past need no limits
        chunked = self.region.chunk > 1
        self.farthest: int | None = None if chunked else self.region.farthest
        self.nearest = None if chunked else self.region.nearest
        if self.causal and not (chunked and self.region.nearest):
            self.nearest = max(0, self.nearest or 0)
        self.precise: torch.dtype = torch.promote_types(self.q.dtype, torch.float32)
        self.groups: int = self.q.shape[1] // self.k.shape[1]
        self.scratch: Scratch = Scratch(self.q.new_empty(0, dtype=self.precise))
        if not any(term.has_distances for term in self.every_term):
            self.longest = max((q1 - 1 + diagonal - k0 for _, _, q1, k0, _, diagonal in self.rectangles), default=0)
        # no terms, and in every rectangle the first query that sees a key sees one, the second two and so on, which the
        # kernel knows by itself
        nearest = self.nearest
        self.square: bool = nearest is not None and self.farthest is None and not self.terms
        self.square = self.square and all(q0 + d - (nearest or 0) <= k0 for _, q0, _, k0, _, d in self.rectangles)
        self.vector: Tensor | None = self._vector()
        self.bands: list[Band] = [Band((0, self.q.shape[1]))]
        if self.terms and self._sees_itself():
            if self.vector is not None:
                self.bands = self._bands(self.vector)
            elif not self.needs_weights and [term.kind for term in self.terms] == [DifferenceTerm.kind]:
                self.bands = self._remembered(*self.terms[0].tensors)

    @property
    def needs_weights(self) -> bool:
        """Whether the flash kernel, which only adds a mask to scores, cannot compute it."""
        return self.values is not None or self.dropout_p > 0 or len(self.caps) > 0

    @property
    def limited(self) -> bool:
        """Whether a distance may be too short or too long to be seen."""
        return self.nearest is not None or self.farthest is not None

    def _vector(self) -> Tensor | None:
        """The terms, if a vector of distances is all there is: minus infinity for the future."""
        if self.needs_weights or (not self.terms and (self.square or not self.limited)):
            return None
        if any(term.kind != VectorTerm.kind for term in self.terms):
            return None
        if self.terms:
            vector = self.terms[0].tensors[0].contiguous()
        else:
            shortest = min((q0 + diagonal - (k1 - 1) for _, q0, _, _, k1, diagonal in self.rectangles), default=0)
            width = max(self.longest - shortest + 1, 1)
            vector = self.scratch.like.new_zeros(1, width).expand(self.q.shape[1], -1)
        return self._hide(vector.clone(), self.longest) if self.limited else vector

    def _hide(self, scores: Tensor, longest: int) -> Tensor:
        """Scores (..., distances from the longest on), minus infinity where the distance hides a key."""
        if self.nearest is not None:
            scores[..., max(longest - self.nearest + 1, 0) :] = -torch.inf
        if self.farthest is not None:
            scores[..., : max(longest - self.farthest + 1, 0)] = -torch.inf
        return scores

    def _bands(self, vector: Tensor) -> list[Band]:
        """Heads and the entries of their vector beyond which weights are negligible.

        |scale q . k| is at most peak, so a key's score is at most its bias + peak, and the query's own is at least its
        bias - peak: a bias lower than that of distance 0 by 2 peak + NEGLIGIBLE cannot matter. NaN matters.
        """
        width = vector.shape[1]
        if not 0 <= self.longest < width:
            return self.bands
        at_zero = vector[:, self.longest, None]
        if not bool((vector < at_zero - NEGLIGIBLE).any()):
            return self.bands
        norms = [torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).amax((0, 2)) for x in (self.q, self.k)]
        peak = abs(self.scale) * norms[0] * norms[1].repeat_interleave(self.groups)
        matters = ~(vector < at_zero - (2 * peak + NEGLIGIBLE)[:, None])
        matters = matters.unflatten(0, (-1, self.groups)).any(1)  # heads that share keys go together
        first = matters.int().argmax(1).tolist()
        end = (width - matters.flip(1).int().argmax(1)).tolist()
        bands: list[Band] = []
        for group, (start, stop) in enumerate(zip(first, end, strict=True)):
            entries = None if (start, stop) == (0, width) else (start, stop)
            before = bands.pop() if bands and bands[-1].entries == entries else None
            head = group * self.groups if before is None else before.heads[0]
            bands.append(Band((head, (group + 1) * self.groups), entries))
        return bands

    def _remembered(self, of_query: Tensor, of_key: Tensor) -> list[Band]:
        """For the bias of_query[i] - of_key[j], heads and the first key that matters to each query (Lin et al. 2025, "Adaptive
        Computation Pruning for the Forgetting Transformer"). That of the query's own token is 0.

        A key's score is at most |scale| |q| max |k| + bias, so below the own key's by NEGLIGIBLE it cannot matter. NaN matters.
        """
        batch, heads, queries, _ = self.q.shape
        if not bool((of_key.amax() - of_query.amin()) > NEGLIGIBLE):
            return self.bands
        index = torch.zeros(batch, queries, dtype=torch.long)
        for row, q0, q1, _, _, diagonal in self.rectangles:
            index[slice(None) if row < 0 else row, q0:q1] = torch.arange(q0 + diagonal, q1 + diagonal)
        k, groups = self.k.float(), (self.k.shape[1], self.groups)
        k_of_q = k.gather(2, index[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3]))[:, :, None]
        q = self.q.float().unflatten(1, groups)
        peak = abs(self.scale) * q.norm(dim=-1) * k.norm(dim=-1).amax(2)[:, :, None, None]
        margin = (peak - self.scale * (q * k_of_q).sum(-1) + NEGLIGIBLE).nan_to_num(torch.inf).flatten(1, 2)
        # the first key that is low enough is where the least of all keys so far is
        lowest = -of_key.cummin(2).values.expand(batch, heads, -1)
        first = torch.searchsorted(lowest.contiguous(), -(of_query + margin)).unflatten(1, groups).amin(2)
        return [Band((h * self.groups, (h + 1) * self.groups), None, first[:, h]) for h in range(self.k.shape[1])]

    def _sees_itself(self) -> bool:
        """Whether every query sees the key of its token, in float32 or less, so that weights far below that key's are
        nothing."""
        if self.q.dtype == torch.float64 or self.q.numel() == 0 or (self.nearest is not None and self.nearest > 0):
            return False
        return all(d + q0 >= k0 and d + q1 <= k1 for _, q0, q1, k0, k1, d in self.rectangles)

    def convert(self, dtype: torch.dtype) -> None:
        """Queries, keys and values in a dtype, contiguous."""
        self.q, self.k, self.v = (x.to(dtype).contiguous() for x in (self.q, self.k, self.v))

    def sees_all(self, queries: Slice, keys: Slice, diagonal: int) -> bool:
        """Whether no distance between these queries and keys is too short or too long to be seen."""
        shortest, longest = queries[0] - (keys[1] - 1) + diagonal, queries[1] - 1 - keys[0] + diagonal
        return (self.nearest is None or shortest >= self.nearest) and (self.farthest is None or longest < self.farthest)

    def blocks(self, row: int, band: Band, rows: int | None) -> Iterator[tuple[Slice, Slice, int]]:
        """(queries, keys they see, diagonal) of every block of at most so many queries, or of complete rectangles, in a
        row of the batch, or in what all rows share (-1)."""
        for of_row, q0, q1, k0, k1, diagonal in self.rectangles:
            if of_row not in (-1, row):
                continue
            # earlier ones, and later ones, see nothing
            q0 = q0 if self.nearest is None else max(q0, k0 - diagonal + self.nearest)
            q1 = q1 if self.farthest is None else min(q1, k1 - 1 - diagonal + self.farthest)
            for i0 in range(q0, q1, rows or max(q1 - q0, 1)):
                i1 = min(q1, i0 + rows) if rows else q1
                j0 = k0 if self.farthest is None else max(k0, i0 + diagonal - self.farthest + 1)
                j1 = k1 if self.nearest is None else min(k1, i1 + diagonal - self.nearest)
                if band.entries is not None:
                    # entry e is at distance longest - e, and query i at distance i - j + diagonal from key j
                    away = self.longest - diagonal
                    j0, j1 = max(j0, i0 - away + band.entries[0]), min(j1, i1 - 1 - away + band.entries[1])
                if band.first is not None:
                    j0 = max(j0, int(band.first[row, i0:i1].min()))
                if j0 < j1:
                    yield (i0, i1), (j0, j1), diagonal

    def rows(self, band: Band) -> int | None:
        """How many queries the flash kernel is given at a time; None: all of a rectangle."""
        if self.square:
            return None
        return ROWS if self.limited or band.entries is not None else MANY

    def regions(self, all_keys: bool) -> Iterator[tuple[int, Slice, list[Tile]]]:
        """Row of the batch, a few heads, and the tiles of all that is visible there: of ROWS queries and COLUMNS keys,
        or all_keys that the queries see."""
        queries, keys = self.q.shape[2], self.k.shape[2]
        step = max(keys if all_keys else min(keys, COLUMNS), 1)
        cells = max(min(queries, ROWS) * step, 1)
        for row in range(self.q.shape[0]):
            for band in self.bands:
                blocks = list(self.blocks(row, band, ROWS))
                for heads in self.head_blocks(band.heads, cells):
                    tiles = [
                        self.tile(row, heads, rows, (j0, min(j0 + step, seen[1])), diagonal)
                        for rows, seen, diagonal in blocks
                        for j0 in range(*seen, step)
                    ]
                    yield row, heads, tiles

    def head_blocks(self, heads: Slice, cells: int) -> Iterator[Slice]:
        """Heads in blocks of about CELLS scores, none of which has several keys' heads under grouped queries."""
        step, h = max(1, CELLS // cells), heads[0]
        while h < heads[1]:
            most = heads[1] if self.groups == 1 else (h // self.groups + 1) * self.groups
            yield h, min(h + step, most)
            h = min(h + step, most)

    def tile(self, row: int, heads: Slice, queries: Slice, keys: Slice, diagonal: int) -> Tile:
        return Tile(row, heads, queries, keys, self.first_entry(queries, keys, diagonal), diagonal)

    def first_entry(self, queries: Slice, keys: Slice, diagonal: int) -> int:
        """Which entry of a vector of distances is of the longest one between these queries and keys."""
        return self.longest - diagonal - (queries[1] - 1) + keys[0]

    def bias(self, tile: Tile) -> Tensor:
        """The sum of the terms on a tile, (heads, rows, columns), minus infinity where the distance hides a key."""
        heads, rows, columns = tile.shape
        longest = tile.queries[1] - 1 - tile.keys[0] + tile.diagonal
        hides = self.nearest is not None and longest - (rows + columns - 2) < self.nearest
        hides = hides or (self.farthest is not None and longest >= self.farthest)
        if hides or any(term.by_distance for term in self.terms):
            buffer = self.scratch.take("bias", heads, rows, columns + rows - 1)
            view = skew(buffer, columns)
        else:
            buffer = view = self.scratch.take("bias", heads, rows, columns)
        fresh = True
        for term in sorted(self.terms, key=lambda term: not term.by_distance):
            term.add(buffer if term.by_distance else view, tile, fresh)
            fresh = False
        if fresh:
            buffer.zero_()
        if hides:
            self._hide(buffer, longest)
        return view

    def kv_heads(self, heads: Slice) -> Slice:
        return heads[0] // self.groups, (heads[1] - 1) // self.groups + 1

    def of_keys(self, x: Tensor, tile: Tile) -> Tensor:
        """A tile's part of keys or values, (heads, columns, width)."""
        heads = tile.heads[1] - tile.heads[0]
        part = x[tile.row, slice(*self.kv_heads(tile.heads)), slice(*tile.keys)]
        return part if part.shape[0] == heads else part.expand(heads, -1, -1)

    def add_to_keys(self, total: Tensor, tile: Tile, weights: Tensor, x: Tensor, scale: float = 1.0) -> None:
        """Add weights^T x, (heads, columns, width), to the gradient of keys or values."""
        target = total[tile.row, slice(*self.kv_heads(tile.heads)), slice(*tile.keys)]
        if self.groups == 1:
            target.baddbmm_(weights.mT, x, alpha=scale)
        else:
            for of_head, of_x in zip(weights, x, strict=True):
                target[0].addmm_(of_head.T, of_x, alpha=scale)

    def scores(self, tile: Tile, slope: Tensor | None = None) -> Tensor:
        """slope, if given, is multiplied by the derivative of the caps."""
        q = self.q[tile.row, slice(*tile.heads), slice(*tile.queries)]
        scores = self.bias(tile).baddbmm_(q, self.of_keys(self.k, tile).mT, alpha=self.scale)
        for cap in self.caps:
            cap.apply(scores, slope)
        return scores

    def weights(self, tile: Tile, scores: Tensor, sums: Tensor) -> tuple[Tensor, Tensor | None]:
        """The exponentials of scores less a number of each query, see `_denominators`, which are the softmax if that is their
        log-sum-exp: by key, and the same memory by distance where values need it."""
        scores -= sums[..., None]
        if self.values is None:
            return scores.exp_(), None
        by_distance = self.scratch.by_distance("weights", tile)
        return torch.exp(scores, out=skew(by_distance, tile.shape[2])), by_distance

    def dropout(self, weights: Tensor, number: int) -> Tensor:
        """The factors of the weights of a tile."""
        generator = torch.Generator(weights.device).manual_seed(self.seed + number)
        factors = torch.empty(weights.shape, dtype=weights.dtype, device=weights.device)
        return factors.bernoulli_(1 - self.dropout_p, generator=generator).div_(1 - self.dropout_p)


# -------------------------------------------------------------------- forward


def forward(calls: list[Call]) -> tuple[Tensor, Tensor]:
    """Output (batch, heads, queries, value width) and log-sum-exp (batch, heads, queries) of one softmax over the calls,
    which are about different keys of the same queries."""
    first, *others = sorted(calls, key=lambda call: call.vector is not None)  # complete rectangles are best not merged
    q, v = first.q, first.v
    # laid out as models project: what follows merges the heads without a copy
    merges = len(others) > 0 or first.segments.overlapping
    shape, dtype = (q.shape[0], q.shape[2], q.shape[1], v.shape[3]), first.precise if merges else q.dtype
    out = q.new_zeros(shape, dtype=dtype).transpose(1, 2)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=first.precise)
    for call in (first, *others):
        merge = call is not first or call.segments.overlapping
        if call.needs_weights or not _takes_flash(call):
            _plain_forward(call, out, lse, merge)
            continue
        for block in _flash_blocks(call):
            part, sums = _flash(*block.inputs(call), 0.0, block.causal, attn_mask=block.mask, scale=call.scale)
            part = part[..., : v.shape[3]]
            if merges and block.mask is not None:  # the kernel's sum over no keys is 0
                sums = sums.masked_fill((block.mask == -torch.inf).all(-1), -torch.inf)
            if block.reverse:
                part, sums = part.flip(2), sums.flip(2)
            if merge:
                _merge(out[block.queries], lse[block.queries], part, sums)
            else:
                out[block.queries], lse[block.queries] = part, sums
    return out.to(q.dtype), lse


def _merge(out: Tensor, lse: Tensor, part: Tensor, sums: Tensor) -> None:
    """Bring the output and log-sum-exp of further keys into those there are."""
    total = torch.logaddexp(lse, sums)
    anchor = total.masked_fill(total == -torch.inf, 0.0)  # nothing visible yet
    out.mul_((lse - anchor).exp_()[..., None]).addcmul_(part.to(out.dtype), (sums - anchor).exp_()[..., None])
    lse.copy_(total)


class _Block(NamedTuple):
    """One call of the flash kernel. queries, keys: rows of the batch, heads and tokens. reverse: the mask is for the queries in
    reverse."""

    queries: tuple[slice, slice, slice]
    keys: tuple[slice, slice, slice]
    causal: bool = False
    mask: Tensor | None = None
    reverse: bool = False

    def inputs(self, call: Call) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; the kernel wants one width, and zeros fill what is missing."""
        q, k, v = call.q[self.queries], call.k[self.keys], call.v[self.keys]
        if q.shape[3] != v.shape[3]:
            width = max(q.shape[3], v.shape[3])
            q, k, v = _widened(q, width), _widened(k, width), _widened(v, width)
        return q.flip(2) if self.reverse else q, k, v


def _widened(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else pad(x, (0, width - x.shape[-1]))


def _flash_blocks(call: Call) -> Iterator[_Block]:
    if call.terms and call.vector is None:
        call.convert(call.q.dtype)  # every head's keys are read again and again
        for row, heads, tiles in call.regions(all_keys=True):
            for term in call.terms:
                term.enter(row, heads)
            here, of_keys = (slice(row, row + 1), slice(*heads)), (slice(row, row + 1), slice(*call.kv_heads(heads)))
            for tile in tiles:
                mask = call.bias(tile)[None]
                yield _Block((*here, slice(*tile.queries)), (*of_keys, slice(*tile.keys)), mask=mask)
        return
    shared = all(row == -1 for row, *_ in call.rectangles)
    for row in [-1] if shared else range(call.q.shape[0]):
        batch = (0, call.q.shape[0]) if row < 0 else (row, row + 1)
        for band in call.bands:
            here, of_keys = (slice(*batch), slice(*band.heads)), (slice(*batch), slice(*call.kv_heads(band.heads)))
            for queries, keys, diagonal in call.blocks(row, band, call.rows(band)):
                block = _Block((*here, slice(*queries)), (*of_keys, slice(*keys)), call.square)
                if call.vector is None or (not call.terms and call.sees_all(queries, keys, diagonal)):
                    yield block
                    continue
                (h0, h1), (q0, q1), (k0, k1), vector = band.heads, queries, keys, call.vector
                # the vector as a mask for the queries in reverse: a Hankel view, no copy
                offset = vector.storage_offset() + h0 * vector.stride(0) + call.first_entry(queries, keys, diagonal)
                shape = batch[1] - batch[0], h1 - h0, q1 - q0, k1 - k0
                mask = vector.as_strided(shape, (0, vector.stride(0), 1, 1), offset)
                yield block._replace(causal=False, mask=mask, reverse=True)


def _plain_forward(call: Call, out: Tensor, lse: Tensor, merge: bool) -> None:
    """The equation as it stands, a block at a time: dropout and terms on the values need the weights."""
    call.convert(call.precise)
    number = 0
    for row, heads, tiles in call.regions(all_keys=True):
        for term in call.every_term:
            term.enter(row, heads)
        for tile in tiles:
            scores = call.scores(tile)
            here = row, slice(*heads), slice(*tile.queries)
            largest = scores.amax(-1)  # not the log-sum-exp, which would take every exponential twice
            weights, by_distance = call.weights(tile, scores, _denominators(largest))
            total = weights.sum(-1)
            if call.dropout_p > 0:
                weights *= call.dropout(weights, number)
            part = weights @ call.of_keys(call.v, tile)
            if by_distance is not None and call.values is not None:
                part += call.values.output(by_distance, tile)
            part /= total.masked_fill(total == 0, 1.0)[..., None]
            sums = largest + total.log()
            if merge:
                _merge(out[here], lse[here], part, sums)
            else:
                out[here], lse[here] = part.to(out.dtype), sums
            number += 1


def _takes_flash(call: Call) -> bool:
    """Whether PyTorch has its kernel on this device, for this call's heads."""
    return _flash_backward is not None and (FLASH_GROUPS or call.q.shape[1] == call.k.shape[1])


def _denominators(lse: Tensor) -> Tensor:
    """Log-sum-exps, or largest scores, to subtract from scores: where nothing is visible there is no weight."""
    return lse.masked_fill(lse == -torch.inf, torch.inf)


# -------------------------------------------------------------------- backward


def backward(
    calls: list[Call], firsts: list[int], v: Tensor, out: Tensor, lse: Tensor, grad: Tensor, of_lse: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Gradients of each call's q and k, and of v; those of the terms are left with them. firsts: which of v's keys is
    each call's first."""
    like = calls[0]
    learns = any(x is not None for term in like.every_term for x in term.grads)
    plain = learns or like.needs_weights or not _takes_flash(like) or bool(of_lse.any())
    if plain:
        grad = grad.to(like.precise).contiguous()
        # sum_j P_ij dP_ij, less what reaches the scores through the log-sum-exp
        offset = (grad * out).sum(-1) - of_lse
    of_q, of_k, of_v = [], [], v.new_zeros(v.shape, dtype=like.precise)
    for call, first in zip(calls, firsts, strict=True):
        totals = [x.new_zeros(x.shape, dtype=call.precise) for x in (call.q, call.k)]
        totals.append(of_v[:, :, first : first + call.k.shape[2]])
        if plain:
            _plain_gradients(call, lse, grad, offset, totals)
        else:
            _flash_gradients(call, out, lse, grad, totals)
        of_q.append(totals[0].to(v.dtype))
        of_k.append(totals[1].to(v.dtype))
    return of_q, of_k, of_v.to(v.dtype)


def _plain_gradients(call: Call, lse: Tensor, grad: Tensor, offset: Tensor, totals: list[Tensor]) -> None:
    """Tile by tile, from the weights. offset: see `backward`; totals: of q, k and v."""
    call.convert(call.precise)
    number, lse = 0, _denominators(lse)
    for row, heads, tiles in call.regions(all_keys=call.dropout_p > 0):
        for term in call.every_term:
            term.enter(row, heads)
        for tile in tiles:
            here = row, slice(*heads), slice(*tile.queries)
            slope = call.scratch.take("slope of caps", *tile.shape).fill_(1.0) if call.caps else None
            weights, by_distance = call.weights(tile, call.scores(tile, slope), lse[here])
            factors = call.dropout(weights, number) if call.dropout_p > 0 else None
            _backward_tile(call, tile, weights, by_distance, factors, grad[here], offset[here], totals, slope)
            number += 1
        for term in call.every_term:
            term.leave()


def _flash_gradients(call: Call, out: Tensor, lse: Tensor, grad: Tensor, totals: list[Tensor]) -> None:
    """The kernel's own backward, where no term learns. totals: of q, k and v."""
    of_q, of_k, of_v = totals
    for block in _flash_blocks(call):
        q, k, v = block.inputs(call)
        rows = [_widened(x[block.queries], q.shape[-1]) for x in (grad, out)] + [lse[block.queries]]
        g, o, sums = (x.flip(2) for x in rows) if block.reverse else rows
        grads = _flash_backward(g, q, k, v, o, sums, 0.0, block.causal, attn_mask=block.mask, scale=call.scale)
        part = grads[0][..., : call.q.shape[-1]]
        of_q[block.queries] += part.flip(2) if block.reverse else part
        for total, part in ((of_k, grads[1]), (of_v, grads[2])):
            total[block.keys] += part[..., : total.shape[-1]]


def _backward_tile(
    call: Call, tile: Tile, weights: Tensor, by_distance: Tensor | None, factors: Tensor | None, g: Tensor,
    offset: Tensor, totals: list[Tensor], of_caps: Tensor | None,
) -> None:  # fmt: skip
    """Add a tile's part of every gradient. factors: what dropout multiplies the weights by; g: the output's gradient;
    of_caps: the slope of the caps."""
    of_q, of_k, of_v = totals
    here = tile.row, slice(*tile.heads), slice(*tile.queries)
    queries, keys, values = call.q[here], call.of_keys(call.k, tile), call.of_keys(call.v, tile)
    if call.values is None:
        change = call.scratch.take("change", *tile.shape)
        torch.matmul(g, values.mT, out=change)
    else:
        change = skew(call.values.of_weights(g, tile), tile.shape[2]).baddbmm_(g, values.mT)
    dropped = weights
    if factors is not None:
        dropped, change = weights * factors, change * factors
    call.add_to_keys(of_v, tile, dropped, g)
    change -= offset[..., None]
    slope = call.scratch.by_distance("slope", tile)
    inner = torch.mul(weights, change, out=skew(slope, tile.shape[2]))
    if of_caps is not None:
        inner *= of_caps
    if by_distance is not None and call.values is not None:
        if factors is not None:
            weights.copy_(dropped)
        call.values.collect_output(g, by_distance, tile)
    for term in call.terms:
        term.collect(slope if term.by_distance else inner, tile)
    of_q[here].baddbmm_(inner, keys, alpha=call.scale)
    call.add_to_keys(of_k, tile, inner, queries, call.scale)
