"""One property of every structure: whatever it reduces to, for whichever backend, is its `score_mod`."""

import pytest
import torch

from posenc import Positions
from posenc.backends.flex import _numbered
from posenc.bias import (
    Dense,
    Factored,
    KeyRelative,
    Positional,
    QueryRelative,
    Relative,
    RunningSum,
    SoftCap,
    Values,
    terms,
)
from posenc.bias.structures import rows_at
from posenc.bias.terms import ColumnRun, KernelInputs, Tile, runs, skew
from posenc.functional import deberta_bucket
from posenc.positions.segments import distances_of
from posenc.positions.visibility import grid_indices

B, H, D, QUERIES, KEYS = 2, 3, 4, 9, 14
P = Positions.arange(QUERIES, 5)
LONGEST = KEYS - 1
G = torch.Generator().manual_seed(0)
SHUFFLED = torch.randperm(QUERIES + KEYS - 1, generator=G)

INDEXES = {
    "clipped": lambda d: d.clamp(-3, 2) + 3,
    "clipped, descending": lambda d: 3 - d.clamp(-2, 3),
    "all distances, in order": lambda d: LONGEST - d,
    "all distances, descending": lambda d: d + QUERIES - 1,
    "logarithmic": lambda d: deberta_bucket(d, num_buckets=6, max_distance=12).long() + 6,
    "one row": lambda d: 0 * d,
    "shuffled": lambda d: SHUFFLED[LONGEST - d],
}


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=G).requires_grad_()


def projected(cls, n, index, heads):
    return lambda: cls(draw(B, H, n, D), draw(heads, QUERIES + KEYS - 1, D), INDEXES[index], P)


STRUCTURES = {
    "Relative": lambda: (table := draw(H, 7)) is not None and Relative(lambda h, d: table[h, d.clamp(-3, 3) + 3], H, P),
    "Factored": lambda: Factored(draw(B, 1, QUERIES, D), draw(1, H, KEYS, D)),
    "Dense": lambda: Dense(draw(1, H, QUERIES, KEYS)),
    "Positional": lambda: Positional(lambda h, q, k: (h + 1) * (q.double() - 0.3 * k).sin(), H, P),
}
STRUCTURES["RunningSum"] = lambda: RunningSum(draw(B, H, KEYS), P)
for _index in INDEXES:
    for _cls, _n, _heads in ((QueryRelative, QUERIES, 1), (KeyRelative, KEYS, H)):
        STRUCTURES[f"{_cls.__name__}, {_index}"] = projected(_cls, _n, _index, _heads)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    monkeypatch.setattr(terms, "SHORTEST_RUN", 2)


def dense(structure):
    zero = torch.zeros((), dtype=torch.float64)
    grid = grid_indices(structure.batch, structure.num_heads, QUERIES, KEYS, zero.device)
    return structure.score_mod()(zero, *grid).expand(B, H, QUERIES, KEYS)


def tiles(row, heads, rows=4, columns=6):
    for i in range(0, QUERIES, rows):
        for j in range(0, KEYS, columns):
            i1, j1 = min(i + rows, QUERIES), min(j + columns, KEYS)
            yield Tile(row, heads, (i, i1), (j, j1), LONGEST - 5 - (i1 - 1) + j, 5)


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_is_its_score_mod_in_every_form(name):
    structure = STRUCTURES[name]()
    want = dense(structure)
    assert torch.allclose(structure.dense(want.device).expand_as(want), want)
    distances = distances_of(P)
    term = structure.reduced(distances, want.device)
    # FlexAttention
    if structure.factors() is None:
        cells, numbers = _numbered(structure)
        grid = grid_indices(B, H, QUERIES, KEYS, want.device)
        actual = structure.reduced(numbers, want.device).lookup(cells).at(*grid)
        assert torch.allclose(actual.expand_as(want), want), "FlexAttention"
    else:
        left, right = structure.factors()
        assert torch.allclose((left @ right.mT).expand_as(want), want)
    # Triton
    cell = QUERIES - 1 - torch.arange(QUERIES)[:, None] + torch.arange(KEYS)
    if structure.in_kernel in ("vector", "products"):
        vector, products, rows = term.for_kernel(KernelInputs())
        actual = vector[:, cell] if products is None else products.gather(-1, rows[cell].expand(B, H, -1, -1))
        assert torch.allclose(actual.double().expand_as(want), want, atol=1e-6), "Triton"
    # the CPU's operator, forward and backward
    upstream = torch.randn(B, H, QUERIES, KEYS, dtype=torch.float64, generator=G)
    leaves = [x for x in term.tensors if x.requires_grad]
    expected = torch.autograd.grad(want, leaves, upstream, allow_unused=True) if leaves else ()
    if structure.unsupported(P) is not None:
        return
    prepared = [x.detach() for x in term.prepared(torch.float64, B, H)]
    term = type(term)(*prepared)
    term.collects([x.is_floating_point() for x in prepared])
    actual = torch.full((B, H, QUERIES, KEYS), torch.nan, dtype=torch.float64)
    for row in range(B):
        for heads in ((0, 2), (2, 3)):
            term.enter(row, heads)
            for tile in tiles(row, heads):
                here = row, slice(*heads), slice(*tile.queries), slice(*tile.keys)
                part, width = upstream[here], sum(tile.shape[1:]) - 1
                out = torch.full((*tile.shape[:2], width if term.by_distance else tile.shape[2]), torch.nan).double()
                term.add(out, tile, fresh=True)
                term.add(out, tile, fresh=False)  # twice
                view = skew(out, tile.shape[2]) if term.by_distance else out
                actual[here] = view / 2
                if term.by_distance:
                    grad = torch.zeros_like(out)
                    skew(grad, tile.shape[2]).copy_(part)
                    part = grad
                term.collect(part, tile)
            term.leave()
    assert torch.allclose(actual, want), "tiles"
    if name in ("Relative", "RunningSum"):
        return  # whose tensors are made anew
    for grad, other in zip((x for x in term.grads if x is not None), expected, strict=True):
        assert torch.allclose(grad, other), "gradients of tiles"


@pytest.mark.parametrize("index", INDEXES)
def test_values_by_distance_are_their_rows(index):
    values = Values(draw(1, QUERIES + KEYS - 1, D).detach(), INDEXES[index])
    term = values.reduced(distances_of(P))
    term.collects([True, False])
    at = rows_at(values.index, P.q[0, :, None] - P.k[0, None, :], values.table)
    weights, upstream = draw(1, QUERIES, KEYS).detach(), draw(1, QUERIES, D).detach()
    out, of_weights = torch.zeros(1, QUERIES, D).double(), torch.zeros(1, QUERIES, KEYS).double()
    term.enter(0, (0, 1))
    for tile in tiles(0, (0, 1)):
        rows, columns = slice(*tile.queries), slice(*tile.keys)
        buffer = torch.zeros(*tile.shape[:2], sum(tile.shape[1:]) - 1, dtype=torch.float64)
        skew(buffer, tile.shape[2]).copy_(weights[:, rows, columns])
        out[:, rows] += term.output(buffer, tile)
        of_weights[:, rows, columns] = skew(term.of_weights(upstream[:, rows], tile), tile.shape[2])
        term.collect_output(upstream[:, rows], buffer, tile)
    each = values.table[0][at]  # (queries, keys, D)
    assert torch.allclose(out, torch.einsum("hij,ijd->hid", weights, each))
    assert torch.allclose(of_weights, torch.einsum("hid,ijd->hij", upstream, each))
    wanted = torch.zeros_like(values.table[0]).index_put_(
        (at.flatten(),), torch.einsum("hij,hid->ijd", weights, upstream).flatten(0, 1), accumulate=True
    )
    assert torch.allclose(term.grads[0][0], wanted)


def test_a_cap_is_its_function_in_every_form():
    cap, scores = SoftCap(0.8), draw(1, H, QUERIES, KEYS)
    want = cap(scores, *grid_indices(1, H, QUERIES, KEYS, scores.device))
    assert torch.allclose(want, 0.8 * (scores / 0.8).tanh())
    assert torch.allclose(cap.reduced().lookup_of(scores)(scores, *[torch.zeros(())] * 4), want), "FlexAttention"
    actual, slope = scores.detach().clone(), torch.full_like(scores, 2.0)
    actual[0, 0, 0, :2] = torch.tensor([-torch.inf, torch.finfo(torch.float32).min])
    cap.reduced().apply(actual, slope)
    assert (actual[0, 0, 0, :2] == -torch.inf).all()
    assert torch.allclose(actual[..., 2:], want[..., 2:])
    assert torch.allclose(slope[..., 2:], 2 * torch.autograd.grad(want.sum(), scores)[0][..., 2:])


def test_a_clipped_index_is_gathered_nowhere():
    index = torch.arange(40, -41, -1).neg().clamp(-5, 5) + 5
    assert runs(index) == [ColumnRun(0, 36, 0, 0), ColumnRun(36, 46, 1, 1), ColumnRun(46, 81, 0, 10)]
    pieces = runs(torch.tensor([0] * 9 + [3, 1, 2] + [7] * 4))
    assert [(start, end, step) for start, end, step, _ in pieces] == [(0, 9, 0), (9, 12, None), (12, 16, 0)]
