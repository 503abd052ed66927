"""Linear attention against the N x N sum, in float64, wherever tokens may be."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import posenc
from posenc import InputError, PerLayer, Positions, Rotary, linear_attention
from posenc.attention import elu_plus_one
from posenc.testing.oracles.attention import linear_attention as oracle

EXACT = {"rtol": 1e-10, "atol": 1e-12}
N = 21
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
CHUNKS = pytest.mark.parametrize("chunk_size", [1, 4, 7, N, 64])
MASK = torch.tensor([[0] * 6 + [1] * (N - 6), [1] * N])
PIECES = torch.tensor([[3, 1, 1, 3, -1, 2, 0] * 3, [0] * 5 + [1] * 16])
PLACES = {
    "plain": Positions.arange(N),
    "left padded": Positions.from_mask(MASK),
    "right padded": Positions.from_mask(MASK.flip(1)),
    "packed": Positions.packed([5, 1, 8, 7]),
    "documents in pieces, padded": Positions.packed(document_ids=PIECES),
    "own positions per row": Positions.from_ids(
        torch.stack((torch.arange(N) * 3.5, 100 - torch.arange(N))), packed=False
    ),
    "cached": Positions.arange(4, N - 4),
    "one step": Positions.arange(1, N - 1),
    "one step, rows of different lengths": Positions.arange(1, torch.tensor([N - 1, 6])),
    "cached and padded": Positions.from_mask(MASK, 5),
}


def tensors(queries: int = N, heads: int = 4, kv_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = (2, heads, queries, 6), (2, kv_heads, N, 6), (2, kv_heads, N, 3)
    q, k, v = (torch.randn(shape, dtype=torch.float64, generator=g) for shape in shapes)
    return q, k, v


def loop(q: Tensor, k: Tensor, v: Tensor, encoding: posenc.Encoding, p: Positions, feature=elu_plus_one) -> Tensor:
    fq, fk = feature(q), feature(k)
    return oracle(fq, fk, *encoding.rotate(fq, fk, p), v, p.mask())


@CAUSAL
@CHUNKS
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_it_is_the_sum_over_all_pairs(place, chunk_size, causal):
    q, k, v = tensors(place.num_queries)
    rope, p = Rotary(6, rope_theta=100.0), place.with_causal(causal)
    out = linear_attention(q, k, v, rope, p, chunk_size=chunk_size)
    assert_close(out, loop(q, k, v, rope, p), **EXACT)


def test_rotating_the_denominator_too_and_rotating_before_the_feature_differ():
    (q, k, v), rope, p = tensors(kv_heads=4), Rotary(6, rope_theta=100.0), Positions.arange(N, causal=True)
    out, seen = linear_attention(q, k, v, rope, p), p.mask()
    fq, fk = elu_plus_one(q), elu_plus_one(k)
    rq, rk = rope.rotate(fq, fk, p)
    weights = (rq @ rk.mT) * seen
    assert_close(out, weights @ v / ((fq @ fk.mT) * seen).sum(-1, keepdim=True), **EXACT)
    assert (out - weights @ v / weights.sum(-1, keepdim=True)).abs().max() > 0.1
    before = [elu_plus_one(x) for x in rope.rotate(q, k, p)]
    early = (before[0] @ before[1].mT) * seen
    assert (out - early @ v / early.sum(-1, keepdim=True)).abs().max() > 0.1


def test_values_of_padding_that_are_not_numbers_stay_out():
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    positions = Positions.from_mask([[0, 0, 1, 1, 1]])
    expected = linear_attention(q, k, v, Rotary(4), positions)
    v[:, :, :2] = torch.nan
    assert_close(linear_attention(q, k, v, Rotary(4), positions), expected)


def test_a_row_without_visible_keys_is_zero_and_its_gradient_finite():
    (q, k, v), p = tensors(), Positions.from_mask(MASK, causal=True)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = linear_attention(*inputs, Rotary(6), p)
    assert not out[0, :, :6].any()
    out.square().sum().backward()
    assert all(x.grad.isfinite().all() for x in inputs)


@CAUSAL
@pytest.mark.parametrize("place", [Positions.arange(5), Positions.packed([2, 3])], ids=["plain", "packed"])
def test_gradients(place, causal):
    inputs = tuple(x[:1, :, :5].clone().requires_grad_() for x in tensors())
    rope, p = Rotary(6), place.with_causal(causal)
    assert torch.autograd.gradcheck(lambda q, k, v: linear_attention(q, k, v, rope, p, chunk_size=2), inputs)


def test_layers_features_and_dtypes():
    (q, k, v), p = tensors(), Positions.arange(N, causal=True)
    parts = Rotary(6, rope_theta=10.0), Rotary(6, rope_theta=1e4)
    for layer, one in enumerate(parts):
        assert_close(linear_attention(q, k, v, PerLayer(*parts), p, layer=layer), linear_attention(q, k, v, one, p))
    assert_close(
        linear_attention(q, k, v, parts[0], p, feature=torch.exp), loop(q, k, v, parts[0], p, torch.exp), **EXACT
    )
    half = linear_attention(*(x.bfloat16() for x in (q, k, v)), parts[0], p)
    assert half.dtype == torch.bfloat16
    assert_close(half.double(), linear_attention(q, k, v, parts[0], p), rtol=0, atol=0.05)


@CAUSAL
@pytest.mark.parametrize("place", ["plain", "left padded", "packed", "cached"])
def test_compiled_is_eager(place, causal):
    torch._dynamo.reset()
    p, rope = PLACES[place].with_causal(causal), Rotary(6)
    compiled = torch.compile(linear_attention, backend="aot_eager", dynamic=True, fullgraph=True)
    q, k, v = tensors(p.num_queries)
    assert_close(compiled(q, k, v, rope, p), linear_attention(q, k, v, rope, p), **EXACT)


@pytest.mark.parametrize("packed", [False, True])
def test_memory_is_linear_in_the_length(packed):
    """No tensor of the call has a number of elements that grows with the square of the length."""
    largest = []
    for n in (512, 2048):
        q, k, v = torch.randn(3, 1, 1, n, 8)
        p = Positions.packed([n // 2, n // 2], causal=True) if packed else Positions.arange(n, causal=True)
        with _Largest() as seen:
            linear_attention(q, k, v, Rotary(8), p, chunk_size=64)
        largest.append(seen.elements)
    assert largest[1] <= 4 * largest[0]


class _Largest(torch.utils._python_dispatch.TorchDispatchMode):
    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.elements = max(self.elements, out.untyped_storage().size() // out.element_size())
        return out


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda q, k, v: linear_attention(q, k, v, posenc.ALiBi(4)), r"\(bias\): use an encoding that only rotates"),
        (lambda q, k, v: linear_attention(q, k, v, Rotary(6) + posenc.T5(4)), r"bias, scale"),
        (lambda q, k, v: linear_attention(q, k, v, PerLayer(Rotary(6), posenc.ALiBi(4)), layer=1), r"\(bias\)"),
        (lambda q, k, v: linear_attention(q, k, v, "rope"), "pass an Encoding"),
        (lambda q, k, v: linear_attention(q, k, v, chunk_size=0), "chunk_size=0"),
        (lambda q, k, v: linear_attention(q[:, :, :5], k, v, causal=True), r"Positions\.arange\(5, offset=16"),
        (lambda q, k, v: linear_attention(q, k, v[:, :, 1:]), "do not belong together"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make(*tensors())


class OneResult(posenc.Encoding):
    """An encoding with a mistake of its author's."""

    isometric = True

    def rotate(self, q, k, positions, layer=0):
        return q


class Pads(posenc.Encoding):
    isometric = True

    def rotate(self, q, k, positions, layer=0):
        return q, torch.nn.functional.pad(k, (0, 2))


class Moves(posenc.Encoding):
    isometric = True

    def rotate_values(self, v, positions, layer=0):
        return v[:, :, 1:]


@pytest.mark.parametrize("call", [posenc.attention, linear_attention])
@pytest.mark.parametrize("wrong", [OneResult, Pads, Moves])
def test_what_a_hook_returns_is_checked_as_in_attention(call, wrong):
    q, k, v = tensors()
    with pytest.raises(InputError, match=rf"{wrong.__name__}\.rotate"):
        call(q, k, v, wrong(), Positions.arange(N))


def test_arguments_are_taken_as_attention_takes_them():
    (q, k, v), p, rope = tensors(kv_heads=4), Positions.arange(N, causal=True), Rotary(6)
    want = linear_attention(q, k, v, rope, p)
    assert_close(linear_attention(q, k, v, rope.at(p)), want, **EXACT)
    assert_close(linear_attention(q, k, v, PerLayer(rope, posenc.ALiBi(4)), p), want, **EXACT)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(linear_attention(q.float(), k.float(), v.float(), rope, p), want.float())
    for part in (rope.heads(slice(0, 2), num_heads=4), posenc.create("learned_rope", head_dim=6).to("meta")):
        for call in (posenc.attention, linear_attention):
            with pytest.raises(InputError, match=r"this part of rope is of query heads 0 to 1|tensors on cpu and meta"):
                call(q, k, v, part, p)


YARN = {"name": "yarn", "factor": 16, "original_max_positions": 64}


@pytest.mark.parametrize(
    "encoding",
    [posenc.XPos(6), posenc.PoPE(6, num_heads=4), posenc.LogN(8), Rotary(6, schedule=YARN), Rotary(6) + posenc.LogN(8)],
    ids=repr,
)
def test_what_changes_norms_is_refused(encoding):
    """The denominator has no rotation to follow it: weights of a constant would no longer add up."""
    with pytest.raises(posenc.InputError, match="changes the norms"):
        linear_attention(*tensors(), encoding)
