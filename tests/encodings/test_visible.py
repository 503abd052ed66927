"""Windows per layer and per head against dense masks, and what they skip."""

import pytest
import torch

import posenc
from posenc import InputError, Positions, Window, attention, create
from posenc.bias import Dense
from references.calls import visited

H, KV, D, N = 4, 2, 8, 23
SIDES = {
    "one": (3, 0), "two sides": (3, 2), "per head": ([0, 2, 5, 9], 0), "unlimited head": ([1, None, 4, 4], 1), "after alone": (None, [0, 1, 2, 3]),
}  # fmt: skip
LAYOUTS = {
    "plain": Positions.arange(N),
    "causal": Positions.arange(N, causal=True),
    "cached": Positions.arange(5, N - 5, causal=True),
    "padded": Positions.from_mask((torch.arange(N) >= torch.tensor([[0], [6]])).long(), causal=True),
    "packed": Positions.packed([5, 11, 7], causal=True),
    "packed, both ways": Positions.packed([5, 11, 7]),
    "scattered": Positions.from_ids(
        torch.randperm(3 * N, generator=torch.Generator().manual_seed(0))[:N], causal=True, packed=False
    ),
    "shifted keys": Positions.cross(Positions.arange(N, 4), Positions.arange(N)),
    "window": Positions.arange(N, causal=True).with_window(4),
    "prefix": Positions.prefix_lm(9, N),
}


class Masked(posenc.Encoding):
    """The same by a dense mask of order distances."""

    def __init__(self, window):
        super().__init__()
        self.window = window

    def bias(self, q, k, positions, layer=0):
        distance = (positions.q_order[:, :, None] - positions.k_order[:, None])[:, None]
        seen = torch.ones(1, H, 1, 1, dtype=torch.bool)
        for side, sign in ((self.window.before, 1), (self.window.after, -1)):
            widths = side if isinstance(side, list) else [side] * H
            limit = torch.tensor([float("inf") if width is None else width for width in widths])[:, None, None]
            seen = seen & (sign * distance <= limit)
        return Dense(torch.zeros(seen.shape, dtype=q.dtype).masked_fill(~seen, -torch.inf))


def tensors(queries, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    sizes = (H, queries), (KV, N), (KV, N)
    return [torch.randn(2, h, n, D, dtype=dtype, generator=generator).requires_grad_() for h, n in sizes]


@pytest.mark.parametrize("added", [None, "alibi", "shaw"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sides", SIDES)
def test_equal_to_a_dense_mask(sides, layout, added, tiles):
    if added == "shaw" and layout == "scattered":
        return
    window, positions = Window(SIDES[sides][0], after=SIDES[sides][1]), LAYOUTS[layout]
    rest = [] if added is None else [create(added, num_heads=H, head_dim=D)]
    qkv = tensors(positions.num_queries)
    expected = attention(*qkv, posenc.Sum(Masked(window), *rest), positions, backend="reference")
    grads = torch.autograd.grad(expected.square().sum(), qkv)
    for backend in ("auto", "reference"):
        out = attention(*qkv, posenc.Sum(window, *rest), positions, backend=backend)
        for a, b in zip((out, *torch.autograd.grad(out.square().sum(), qkv)), (expected, *grads), strict=True):
            assert torch.allclose(a, b, atol=1e-10)


@pytest.mark.parametrize(
    ("sides", "layout"),
    [("two sides", "causal"), ("unlimited head", "causal")]
    + [("per head", layout) for layout in ("plain", "causal", "padded", "packed", "scattered")],
)
def test_flex(sides, layout):
    window, positions = Window(SIDES[sides][0], after=SIDES[sides][1]), LAYOUTS[layout]
    qkv = [x.detach() for x in tensors(positions.num_queries)]
    expected = attention(*qkv, Masked(window), positions, backend="reference")
    assert torch.allclose(attention(*qkv, window, positions, backend="flex"), expected, atol=1e-10)


def test_hidden_keys_are_skipped():
    everything = visited(posenc.NoPE(), H, D)[0]
    assert max(visited(Window(7), H, D)) < everything / 2
    narrow, wide = (visited(Window([3, 3, width, width]), H, D) for width in (7, 60))
    assert max(narrow) < everything / 2
    assert wide[0] < everything / 2 < wide[3]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Window(-1), "before=-1"),
        (lambda: Window(1, after=[0, -2]), "after"),
        (lambda: Window([1, 2], after=[1, 2, 3]), "per head"),
        (lambda: attention(*tensors(N), Window([1, 2]), Positions.arange(N)), "num_heads=2"),
    ],
)
def test_refused(make, names):
    with pytest.raises(InputError, match=names):
        make()


def test_a_window_has_both_sides_where_the_future_is_visible():
    tokens = tensors(N)
    both = attention(*tokens, Window(2), Positions.arange(N))
    torch.testing.assert_close(both, attention(*tokens, Window(2, after=2), Positions.arange(N)))
    assert not torch.equal(both, attention(*tokens, Window(2, after=0), Positions.arange(N)))
    causal = Positions.arange(N, causal=True)
    assert torch.equal(attention(*tokens, Window(2), causal), attention(*tokens, Window(2, after=0), causal))
