"""FoX: the paper's formula, x-transformers' implementation, and pruning that changes nothing."""

import pytest
import torch
from torch.testing import assert_close
from x_transformers.x_transformers import DataDependentAlibi

import posenc
from posenc import FoX, Positions, Rotary
from posenc.backends import fused, sdpa
from posenc.bias import SoftCap
from posenc.encoding import gates_of
from posenc.testing.oracles import gates
from references.calls import BACKENDS, DIM, EXACT, IN_ORDER, check_against, document_by_document, random, refusals


@pytest.fixture(autouse=True)
def _none_is_short(monkeypatch):
    monkeypatch.setattr(sdpa, "SHORT", 0)


def fox_formula(encoding, positions):
    def formula(q, k, x):
        def of_document(q, k, row, keys, rows):
            return gates.fox(gates.log_gates(x[row : row + 1, keys], encoding.weight[0], encoding.logit[0]), rows)

        return document_by_document(positions, q, k, of_document)

    return formula


@BACKENDS
@pytest.mark.parametrize("kv_heads", [3, 1])
@IN_ORDER
def test_fox_is_the_papers_formula(positions, kv_heads, backend):
    encoding = random(FoX(3, dim=DIM))
    check_against(fox_formula(encoding, positions), encoding, positions, backend, kv_heads)


def test_cable_is_fox_with_the_signs_of_its_parameters_changed():
    """b_i - b_j, b the running sum of -softplus(W x + c), scores not divided (axiomlab/Cable, src/Cable.py)."""
    q, k, v = torch.randn(3, 2, 3, 9, 4, dtype=torch.float64).unbind()
    x, weight, bias = torch.randn(2, 9, DIM), torch.randn(3, DIM), torch.randn(3)
    sums = -torch.nn.functional.softplus(x @ weight.T + bias).cumsum(1).mT.double()
    scores = q @ k.mT + sums[..., None] - sums[:, :, None]
    want = scores.masked_fill(~torch.ones(9, 9).tril().bool(), -torch.inf).softmax(-1) @ v
    encoding = FoX(3, dim=DIM)
    with torch.no_grad():
        encoding.weight[0], encoding.logit[0] = -weight, -bias
    ours = posenc.attention(q, k, v, encoding, causal=True, scale=1.0, gates=gates_of(encoding, x))
    assert_close(ours, want, rtol=0, atol=1e-5)


def test_fox_is_that_of_x_transformers():
    ours, theirs = FoX(3, dim=DIM, init_bias=5.0).double(), DataDependentAlibi(DIM, 3).double()
    linear = theirs.to_forget_gates[0]
    assert torch.equal(ours.logit[0], linear.bias)
    ours.weight.data[0] = linear.weight.data
    x, positions = torch.randn(2, 9, DIM, dtype=torch.float64), Positions.arange(9, causal=True)
    q = k = torch.zeros(2, 3, 9, 4, dtype=torch.float64)
    mine = ours.bias(q, k, positions.with_gates(gates_of(ours, x))).dense(q.device)
    assert_close(mine.tril(), theirs(x).tril(), **EXACT)


# ---------------------------------------------------------------- pruning


def call(positions, heads=4, kv_heads=2, width=8, forget=6.0, size=1.0, dtype=torch.float32):
    g = torch.Generator().manual_seed(2)
    rows = max(positions.batch, 2)
    q = torch.randn(rows, heads, positions.num_queries, width, generator=g)
    k, v = torch.randn(2, rows, kv_heads, positions.num_keys, width, generator=g)
    gates = -forget * torch.rand(rows, heads, positions.num_keys, 1, generator=g)
    gates[:, 0] *= 0.01  # a head that remembers
    return [x.to(dtype) for x in (size * q, k, v, gates)]


def tiles_visited(monkeypatch, run):
    """(query block's keys) that the CPU operator visits."""
    seen, blocks = [], fused.Call.blocks

    def counting(self, row, band, rows):
        for queries, keys, diagonal in blocks(self, row, band, rows):
            seen.append((queries[1] - queries[0]) * (keys[1] - keys[0]) * (band.heads[1] - band.heads[0]))
            yield queries, keys, diagonal

    with monkeypatch.context() as patch:
        patch.setattr(fused.Call, "blocks", counting)
        out = run()
    return out, sum(seen)


LONG = {
    "causal": Positions.arange(96, causal=True),
    "cached": Positions.arange(20, 76, causal=True),
    "a step": Positions.arange(1, 95, causal=True),
    "left padded": Positions.from_mask([[0] * 30 + [1] * 66, [1] * 96], causal=True),
    "right padded": Positions.from_mask([[1] * 70 + [0] * 26, [1] * 96], causal=True),
    "packed": Positions.packed([40, 6, 50], causal=True),
    "window": Positions.arange(96, causal=True).with_window(60),
    "ragged": Positions.arange(3, torch.tensor([90, 40]), causal=True),
}


def gradients(positions, given, encoding, backend="auto"):
    leaves = [x.detach().clone().requires_grad_() for x in given]
    out = posenc.attention(*leaves[:3], encoding, positions, gates=leaves[3], backend=backend)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]


@pytest.mark.parametrize("positions", LONG.values(), ids=LONG.keys())
def test_pruning_changes_nothing(positions, monkeypatch):
    for name, size in (("ROWS", 8), ("COLUMNS", 16), ("CELLS", 128)):
        monkeypatch.setattr(fused, name, size)
    encoding, given = FoX(4, dim=DIM), call(positions)
    want = gradients(positions, [x.double() for x in given], encoding, "reference")
    pruned, few = tiles_visited(monkeypatch, lambda: gradients(positions, given, encoding))
    with torch.no_grad():
        alone, _ = tiles_visited(monkeypatch, lambda: posenc.attention(*given[:3], encoding, positions, gates=given[3]))
    monkeypatch.setattr(fused.Call, "_remembered", lambda self, *terms: self.bands)
    complete, many = tiles_visited(monkeypatch, lambda: gradients(positions, given, encoding))
    assert few < 0.9 * many or positions.num_queries == 1  # one query is not cut into tiles
    assert_close(alone, pruned[0], rtol=0, atol=1e-6)
    for a, b, c in zip(pruned, complete, want, strict=True):
        assert_close(a, b, rtol=1e-4, atol=2e-5)
        assert_close(a.double(), c, rtol=1e-4, atol=1e-4)


def test_a_large_query_sees_far():
    """Far keys count where a query's product with them outweighs what was forgotten."""
    positions = Positions.arange(64, causal=True)
    q, k, v, gates = call(positions, heads=1, kv_heads=1)
    gates = torch.full_like(gates, -2.0)
    k = 0.01 * k
    k[:, :, 0] = 1.0
    q[:, :, -1] = 40.0  # 40 * 8 / sqrt(8) = 113 of the first key, less 126 of the gates; and the own key's is about 0
    encoding, given = FoX(1, dim=DIM), (q, k, v, gates)
    out = posenc.attention(*given[:3], encoding, positions, gates=gates)
    want = posenc.attention(*(x.double() for x in given[:3]), encoding, positions, gates=gates, backend="reference")
    assert_close(out.double(), want, rtol=1e-4, atol=1e-6)
    q[:, :, -1] = 60.0  # 170: the first key has all the weight
    out = posenc.attention(*given[:3], encoding, positions, gates=gates)
    assert_close(out[:, :, -1], v[:, :, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "what", ["nan in q", "nan in k", "infinite k", "positive gates", "capped", "added to alibi", "double"]
)
def test_what_cannot_be_bounded_is_visited(what, monkeypatch):
    positions, encoding = Positions.arange(64, causal=True), FoX(4, dim=DIM)
    q, k, v, gates = call(positions)
    if what == "nan in q":
        q[0, 0, 40] = torch.nan
    elif what == "nan in k":
        k[0, 0, 3] = torch.nan
    elif what == "infinite k":
        k[0, 0, 3, 0] = torch.inf
    elif what == "positive gates":
        gates[:, :, ::2] *= -1.2
    elif what == "capped":

        class Capped(posenc.Encoding):
            def modify(self, positions, layer=0):
                return SoftCap(5.0)

        encoding = encoding + Capped()
    elif what == "added to alibi":
        encoding = encoding + posenc.ALiBi(4)
    else:
        q, k, v, gates = (x.double() for x in (q, k, v, gates))
    out = posenc.attention(q, k, v, encoding, positions, gates=gates)
    monkeypatch.setattr(fused.Call, "_remembered", lambda self, *terms: self.bands)
    want = posenc.attention(q, k, v, encoding, positions, gates=gates)
    bounds = {"rtol": 1e-12, "atol": 1e-13} if what == "double" else {"rtol": 1e-4, "atol": 1e-5}
    assert_close(out, want, equal_nan=True, **bounds)


def test_with_rope_it_is_pruned_too(monkeypatch):
    positions, given = LONG["causal"], call(LONG["causal"])
    monkeypatch.setattr(fused, "ROWS", 8)
    run = lambda: posenc.attention(*given[:3], Rotary(8) + FoX(4, dim=DIM), positions, gates=given[3])  # noqa: E731
    pruned, few = tiles_visited(monkeypatch, run)
    monkeypatch.setattr(fused.Call, "_remembered", lambda self, *terms: self.bands)
    complete, many = tiles_visited(monkeypatch, run)
    assert few < 0.8 * many
    assert_close(pruned, complete, rtol=0, atol=1e-6)


REFUSED = {
    "not causal": (
        lambda: posenc.attention(*call(Positions.arange(5))[:3], FoX(4, dim=DIM), gates=torch.zeros(2, 4, 5, 1)),
        "fox is defined .* causal positions",
    ),
    "heads": (
        lambda: posenc.attention(*call(LONG["causal"])[:3], FoX(3, dim=DIM), LONG["causal"], gates=torch.zeros(2, 3, 96, 1)),
        "q with 4 heads: this FoX has num_heads=3",
    ),
    "width": (lambda: gates_of(FoX(3, dim=DIM), torch.zeros(1, 4, DIM + 1)), "makes gates of .batch, seq, dim=6."),
    "bias": (lambda: FoX(3, dim=DIM, init_bias=float("nan")), "init_bias=nan"),
    "large bias": (lambda: FoX(3, dim=DIM, init_bias=1e3), "init_bias=1000.0"),
    "std": (lambda: FoX(3, dim=DIM, init_std=-1.0), "init_std=-1.0"),
}  # fmt: skip

test_refusals = refusals(REFUSED)
