"""Token layouts, and encodings called on them: what the tests of the biases share."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import posenc
from posenc import Positions
from posenc.attention import Call, prepare
from posenc.backends import fused
from posenc.encoding import gates_of
from posenc.testing.oracles import rotations
from posenc.testing.oracles.attention import attend

DIM = 6
EXACT = {"rtol": 1e-10, "atol": 1e-11}
BACKENDS = pytest.mark.parametrize("backend", ["auto", "reference"])
IDS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [30, 2, 9, 9, 1, 0, 44]])
LAYOUTS = {
    "plain": Positions.arange(7),
    "causal": Positions.arange(7, causal=True),
    "cached": Positions.arange(3, 6, causal=True),
    "left padded": Positions.from_mask([[0, 0, 1, 1, 1, 1, 1], [1] * 7], causal=True),
    "packed": Positions.packed([3, 1, 3], causal=True),
    "per row": Positions.from_ids(IDS),
    "fractional": Positions.from_ids(IDS / 4 + 0.1, causal=True, packed=False),
}
CAUSAL = {name: p for name, p in LAYOUTS.items() if p.causal}
EVERYWHERE = pytest.mark.parametrize("positions", LAYOUTS.values(), ids=LAYOUTS.keys())
INTEGERS = {name: p for name, p in LAYOUTS.items() if name != "fractional"}
AT_INTEGERS = pytest.mark.parametrize("positions", INTEGERS.values(), ids=INTEGERS.keys())
ORDERED = CAUSAL | {
    "ragged cache": Positions.arange(2, torch.tensor([1, 4]), causal=True),
    "documents in turns": Positions.packed(document_ids=torch.tensor([[0, 1, 0, 1, 1, 0, 2], [0] * 7]), causal=True),
    "holes": Positions.from_mask([[1, 0, 1, 1, 0, 1, 1], [1] * 7], causal=True),
    "window": Positions.arange(5, 2, causal=True).with_window(2),
    "reordered": Positions.arange(7, causal=True).take([3, 0, 6, 1, 2, 5, 4]),
}
"""Where the order of tokens counts."""
IN_ORDER = pytest.mark.parametrize("positions", ORDERED.values(), ids=ORDERED.keys())


def refusals(cases):
    """A test that each of some calls is refused with its message."""

    @pytest.mark.parametrize(("call", "message"), cases.values(), ids=cases)
    def test_refusals(call, message):
        with pytest.raises(posenc.InputError, match=message):
            call()

    return test_refusals


def random(encoding: posenc.Encoding, std: float = 0.7) -> posenc.Encoding:
    for parameter in encoding.double().parameters():
        torch.nn.init.normal_(parameter, std=std)
    return encoding


def qkv(positions: Positions, heads: int = 3, kv_heads: int = 3, head_dim: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(2, heads, positions.num_queries, head_dim, dtype=torch.float64)
    k, v = torch.randn(2, 2, kv_heads, positions.num_keys, head_dim, dtype=torch.float64)
    return q, k, v


def split(x: Tensor, head_dim: int) -> Tensor:
    """A projection's output as its heads."""
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """Heads side by side again."""
    return x.transpose(1, 2).flatten(-2)


def dense(encoding: posenc.Encoding, positions: Positions, heads: int, layer: int = 0) -> Tensor:
    q, k = (torch.zeros(1, heads, n, 4, dtype=torch.float64) for n in (positions.num_queries, positions.num_keys))
    return encoding.bias(q, k, positions, layer).dense(q.device)


def at_distances(encoding: posenc.Encoding, distances: list[float], heads: int) -> Tensor:
    """(heads, distances): the bias of a query that far after a key at 0."""
    return dense(encoding, Positions.from_ids(distances, [0] * len(distances)), heads)[0, :, :, 0]


def scores(encoding: posenc.Encoding, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
    """Products of rotated queries and keys, unscaled."""
    q, k = encoding.rotate(q, k, positions, layer)
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT


def turned_scores(q: Tensor, k: Tensor, positions: Positions, frequencies: Tensor, layout: str = "half") -> Tensor:
    """What `scores` gives by the oracle; frequencies: (pairs,), or (heads, 1, pairs)."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    q, k = (
        rotations.turned(x, at[:, None, :, None] * frequencies, layout)
        for x, at in ((q, positions.q), (k, positions.k))
    )
    return q @ k.mT


def check_against(
    formula, encoding, positions, backend: str = "auto", kv_heads: int | None = None, heads: int = 3
) -> None:
    """Attention equals the oracle's with the bias formula(q, k), where k has a head for each of the queries'; of an encoding with gates
    it is formula(q, k, x), x (2, num_keys, DIM) the input of the layer."""
    q, k, v = qkv(positions, heads, heads if kv_heads is None else kv_heads)
    x = torch.randn(2, positions.num_keys, DIM, dtype=torch.float64)
    gates, of_heads = gates_of(encoding, x), k.repeat_interleave(heads // k.shape[1], 1)
    bias = formula(q, of_heads, x) if gates else formula(q, of_heads)
    want = attend(q, k, v, scale=0.5, visible=positions.mask(), bias=bias.detach())
    assert_close(posenc.attention(q, k, v, encoding, positions, gates=gates, backend=backend), want, **EXACT)


def distances(positions: Positions) -> Tensor:
    """Query minus key, (rows, 1, queries, keys)."""
    return (positions.q[:, :, None] - positions.k[:, None])[:, None]


def document_by_document(positions: Positions, q: Tensor, k: Tensor, formula) -> Tensor:
    """(batch, heads, queries, keys) of a formula of plain causal texts, of each document alone: formula(q, k, row, keys, rows) gives (1,
    heads, queries, keys) of a document's queries and keys in their order, of a row of the batch; rows: at which of the keys the queries are."""
    out = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.float64)
    for row in range(len(q)):
        for queries, keys, rows in documents(positions, row):
            part = formula(q[row : row + 1, :, queries], k[row : row + 1, :, keys], row, keys, rows)
            out[row, :, queries[:, None], keys] = part[0].detach()
    return out


def documents(positions: Positions, row: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each document of a row: its queries, its keys in their order without padding, and at which of the keys the queries are."""
    of_queries, of_keys, q_order, k_order, valid = (
        None if x is None else x[row % len(x)]
        for x in (positions.q_document, positions.k_document, positions.q_order, positions.k_order, positions.valid)
    )
    of_queries = torch.zeros_like(q_order) if of_queries is None else of_queries
    of_keys = torch.zeros_like(k_order) if of_keys is None else of_keys
    for document in of_keys.unique():
        keys = k_order.argsort()
        keys = keys[(of_keys == document)[keys] & (valid is None or valid[keys])]
        rows = (k_order[keys] <= q_order[:, None]).sum(1) - 1
        queries = ((of_queries == document) & (rows >= 0)).nonzero()[:, 0]
        if len(queries):
            yield queries, keys, rows[queries]


def visited(encoding: posenc.Encoding, heads: int, head_dim: int, n: int = 64, layer: int = 0) -> list[int]:
    """The pairs of queries and keys of a causal text whose scores the CPU's operator computes, by head."""
    q, k, v = (torch.randn(1, heads, n, head_dim) for _ in range(3))
    positions = Positions.arange(n, causal=True)
    problem = prepare(Call(q, k, v, encoding, positions, layer=layer))
    assert fused.unsupported(problem) is None
    lowered = fused.lower(problem)
    numbers = [1, 0, lowered.longest, *problem.positions.region.numbers(), 0, *lowered.segments.table]
    (call,), *_ = fused._parse(
        [problem.q, problem.k, v, *lowered.tensors], " ".join(["1", *lowered.kinds]), numbers, 1.0, 0.0
    )
    pairs = [0] * heads
    for band in call.bands:
        for (q0, q1), (k0, k1), _ in call.blocks(-1, band, 8):
            for head in range(*band.heads):
                pairs[head] += (q1 - q0) * (k1 - k0)
    return pairs


def check_gradients(encoding, positions, heads, kv_heads):
    """Outputs, and gradients of queries, keys, values and what the encoding learns, are those of the reference."""
    leaves = [*(x.requires_grad_() for x in qkv(positions, heads, kv_heads)), *encoding.parameters()]
    results = []
    for backend in ("auto", "reference"):
        out = posenc.attention(*leaves[:3], encoding, positions, backend=backend)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for ours, wanted in zip(*results, strict=True):
        assert_close(ours, wanted, **EXACT)


def start_alike(models, unscaled) -> None:
    """Models of one seed, by their encoding, have the same parameters but for the encoding's; unscaled: encodings whose scale is
    1, for which the projections of queries make up."""
    first = models["none"]
    names = {key for key, _ in first.named_parameters()}
    for name, model in models.items():
        for key, parameter in model.named_parameters():
            if key in names:
                factor = model.config.width**-0.5 if name in unscaled and "query" in key else 1.0
                assert torch.allclose(parameter, first.get_parameter(key) * factor), (name, key)
