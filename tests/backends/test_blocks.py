"""What the fused operator does not take: blocks of queries under a dense mask, and single queries."""

import pytest
import torch

from posenc import Encoding, Positions, attention, create, explain
from posenc.backends import sdpa
from posenc.bias import Positional
from posenc.positions.visibility import Branch, Region

B, H, N, D = 2, 2, 24, 8


@pytest.fixture(autouse=True)
def _none_is_short(monkeypatch):
    monkeypatch.setattr(sdpa, "SHORT", 0)


class Product(Encoding):
    """A bias of both positions, which counts the entries that it computes."""

    entries = 0

    def bias(self, q, k, positions, layer=0):
        def function(head, i, j):
            found = 0.01 * (head + 1) * i * j
            self.entries += found.numel()
            return found

        return Positional(function, H, positions)


class Window(Product):
    def branches(self, layer=0):
        return (
            Branch(Region(farthest=5), most=8),
            Branch(Region(nearest=5), q=lambda x: x // 2, k=lambda x: x // 2, most=8),
        )

    def rotate(self, q, k, positions, layer=0):
        return (q, k) if positions.branch is None or positions.branch.q is None else (1.1 * q, 0.9 * k)


def prefix():
    p = Positions.arange(N, causal=True)
    return p.derived(q_order=p.q_order.clamp(min=9))


LAYOUTS = {
    "all": (lambda: Positions.arange(N), N, N * N),
    "causal": (lambda: Positions.arange(N, causal=True), N, sum(4 * end for end in range(4, N + 1, 4))),
    "cached": (lambda: Positions.arange(12, N - 12, causal=True), 12, 4 * (16 + 20 + 24)),
    "scattered": (
        lambda: Positions.from_ids(torch.arange(N).flip(0) * 3, causal=True, packed=False), N, sum(4 * end for end in range(4, N + 1, 4))
    ),
    "packed": (lambda: Positions.packed([8, 4, 12], causal=True), N, 4 * (4 + 8) + 4 * 4 + 4 * (4 + 8 + 12)),
    "packed, both ways": (lambda: Positions.packed([8, 4, 12]), N, 8 * 8 + 4 * 4 + 12 * 12),
    "right padded": (
        lambda: Positions.from_mask([[1] * 8 + [0] * 16, [1] * 12 + [0] * 12]), N, B * (3 * 4 * 12 + 3 * 4 * 1)
    ),
    "holes": (lambda: Positions.from_mask([[1, 0] * 12], causal=True), N, sum(4 * end for end in range(4, N + 1, 4))),
    "prefix": (prefix, N, None),
    "ragged": (lambda: Positions.arange(8, torch.tensor([16, 3]), causal=True), 8, None),
}  # fmt: skip


@pytest.fixture(autouse=True)
def blocks_of_four(monkeypatch):
    monkeypatch.setattr(sdpa, "BLOCK_CELLS", B * H * N * 4)
    monkeypatch.setattr(sdpa, "LEAST_ROWS", 1)


def inputs(queries, kv_heads=H):
    g = torch.Generator().manual_seed(0)
    shapes = (B, H, queries, D), (B, kv_heads, N, D), (B, kv_heads, N, D)
    return [torch.randn(shape, dtype=torch.float64, generator=g).requires_grad_() for shape in shapes]


def compared(encoding, make, queries, kv_heads=H, **options):
    leaves = inputs(queries, kv_heads)
    found = []
    for backend in ("sdpa", "reference"):
        out = attention(*leaves, encoding, make(), backend=backend, **options)
        found.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    for x, y in zip(*found, strict=True):
        assert torch.allclose(x, y, atol=1e-11)
    with torch.no_grad():
        assert torch.allclose(attention(*leaves, encoding, make(), **options), found[1][0], atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_end_at_the_last_key_that_they_see(layout):
    make, queries, cells = LAYOUTS[layout]
    compared(Product(), make, queries)
    compared(Product(), make, queries, kv_heads=1, sink=0.5)
    counted = Product()
    with torch.no_grad():
        attention(*inputs(queries), counted, make())
    assert cells is None or counted.entries == H * cells


@pytest.mark.parametrize("layout", ["causal", "cached"])
def test_blocks_of_a_position_map(layout):
    make, queries, cells = LAYOUTS[layout]
    compared(Window(), make, queries)
    counted = Window()
    with torch.no_grad():
        attention(*inputs(queries), counted, make())
    assert counted.entries == H * cells


@pytest.mark.parametrize("kv_heads", [H, 1])
@pytest.mark.parametrize(
    "name", ["alibi", "alibi+sink", "shaw", "shaw+softmax_n", "rope@rerope:window=5", "fire", "t5+shaw"]
)
def test_a_single_query_is_the_reference(name, kv_heads):
    made = create(name, num_heads=H, head_dim=D, dim=H * D, max_positions=64).double()
    for make in (
        lambda: Positions.arange(1, N - 1, causal=True),
        lambda: Positions.arange(1, torch.tensor([N - 1, 3]), causal=True),
        lambda: Positions.from_mask([[0] * 5 + [1] * 19], 1, causal=True),
    ):
        compared(made, make, 1, kv_heads)
        assert explain(*inputs(1, kv_heads), made, make()).backend == "sdpa"


@pytest.mark.parametrize("backend", ["auto", "sdpa", "reference"])
@pytest.mark.parametrize("name", ["none", "alibi", "fire", "shaw", "rope", "t5+sink", "rope@rerope:window=2", "tupe"])
def test_a_batch_without_rows(name, backend):
    made = create(name, num_heads=H, head_dim=D, dim=H * D, max_positions=64)
    x = torch.zeros(0, H, 5, D, requires_grad=True)
    for p in (
        Positions.from_ids([4, 0, 2, 9, 1], causal=True, packed=False),
        Positions.arange(5, causal=True),
        Positions.from_mask([[0, 1, 1, 1, 1]], causal=True),
    ):
        if name in ("tupe", "shaw") and p.start is None and backend == "sdpa":
            continue  # it serves them over contiguous positions alone
        out = attention(x, x, x, made, p, backend=backend)
        assert out.shape == x.shape
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert grad.shape == x.shape
        assert explain(x, x, x, made, p, backend=backend).reason
        with torch.no_grad():
            assert attention(x, x, x, made, p, backend="flex" if "shaw" not in name else backend).shape == x.shape


@pytest.mark.parametrize(("queries", "start"), [(10, (0, 0)), (N + 5, (3, 0)), (N, (0, 7))])
@pytest.mark.parametrize("name", ["alibi", "t5", "shaw", "transformer_xl", "alibi+sink"])
def test_contiguous_sides_of_cross_attention_are_fused(name, queries, start):
    made = create(name, num_heads=H, head_dim=D, dim=H * D, max_positions=64).double()
    q0, k0 = start
    loose = Positions.cross(*(Positions.from_ids(torch.arange(a, a + n)) for a, n in ((q0, queries), (k0, N))))
    p = loose.derived()
    assert p.start == start
    plan = explain(*inputs(queries), made, p)
    assert plan.backend == "sdpa"
    assert "mask" not in plan.reason
    compared(made, lambda: p, queries)
    leaves = inputs(queries)
    assert torch.allclose(attention(*leaves, made, p), attention(*leaves, made, loose, backend="reference"), atol=1e-12)


def test_explain_gives_the_reason_that_holds():
    def plan(encoding, p):
        return explain(*inputs(p.num_queries), encoding, p)

    assert plan(None, Positions.arange(N)).reason == "no bias, and every query sees every key: no mask is built"
    no_mask = "no bias, and only the future is hidden: no mask is built"
    assert plan(None, Positions.arange(N, causal=True)).reason == no_mask
    assert plan(Product(), Positions.arange(N)).reason.startswith(
        "a term is a function of both positions: a dense mask"
    )
    assert "one call for it and one for the rest" in plan(create("alibi", num_heads=H), prefix()).faster
    holes = Positions.from_mask([[1, 0] * 12])
    assert plan(create("alibi", num_heads=H), holes).faster == "padding and documents in one piece"


@pytest.mark.parametrize("name", ["fire+softmax_n", "fire+sink", "alibi+softmax_n"])
def test_sinks_are_exported_for_any_length(name):
    class TransformerBase(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = create(name, num_heads=4, head_dim=D, num_layers=1, max_positions=64)
            self.proj = torch.nn.Linear(32, 64)

        def forward(self, x):
            q, k, v = self.proj(x).split([32, 16, 16], -1)
            q, k, v = (part.unflatten(-1, (-1, D)).transpose(1, 2) for part in (q, k, v))  # two heads share keys
            return attention(q, k, v, self.encoding, causal=True)

    host, length = TransformerBase(), torch.export.Dim("length", min=2, max=40)
    exported = torch.export.export(host, (torch.randn(2, 9, 32),), dynamic_shapes=({1: length},)).module()
    x = torch.randn(2, 15, 32)
    assert torch.allclose(exported(x), host(x), atol=1e-6)


@pytest.mark.parametrize(("size", "dense"), [(1, True), (24, False)])
def test_many_small_rectangles_take_a_dense_mask(size, dense):
    """Each is a call of the operator, of a few scores."""
    blocks = 96 // size
    table = torch.rand(blocks, blocks, generator=torch.Generator().manual_seed(0)) < 0.5
    q, k, v = torch.randn(3, 1, H, 96, D, dtype=torch.float64)
    encoding, positions = create("alibi", num_heads=H), Positions.arange(96).with_blocks(size, table)
    assert ("many small rectangles" in explain(q, k, v, encoding, positions, backend="sdpa").reason) == dense
    out, expected = (attention(q, k, v, encoding, positions, backend=each) for each in ("sdpa", "reference"))
    torch.testing.assert_close(out, expected)
