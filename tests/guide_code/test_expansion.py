"""Every term of the expansion against autograd's own Hessian, functions with known expansions, and trained models."""

import math

import pytest
import torch
from guide_code.expansion import column, decay, gradient, interactions, products
from guide_code.model import random_model, vector_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd.functional import hessian

import posenc
from guide_code import expansion
from posenc.analysis import codes_of
from posenc.errors import InputError
from posenc.lab.transformer import Transformer

N, DIM = 5, 6


def smooth(x):
    """A function of (batch, n, dim) with terms of every order, whose rows do not see each other."""
    first = torch.linspace(-1, 1, x.shape[1] * x.shape[2], dtype=x.dtype).view(x.shape[1:])
    mixed = x.roll(1, 1) * x.flip(2)
    return ((x * first).sum((1, 2)) + (mixed.sum(2).sin() * x[:, :, 0]).sum(1)).tanh()


def quadratic(seed=0, n=N, dim=DIM):
    draw = torch.Generator().manual_seed(seed)
    b, a = (torch.randn(s, generator=draw, dtype=torch.float64) for s in ((n, dim, n, dim), (n, dim)))

    def f(x):
        return torch.einsum("bnd,ndme,bme->b", x, b, x) + torch.einsum("bnd,nd->b", x, a) + 3

    return f, b + b.permute(2, 3, 0, 1)


def of_size(dim):
    return lambda positions: torch.sin(positions[:, None].double() * torch.arange(1, dim + 1) / 3)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=10)
def test_products_and_blocks_are_those_of_the_full_hessian(n, dim, seed):
    x, v = random(n, dim, seed=seed), random(3, n, dim, seed=seed + 1)
    matrix = hessian(lambda y: smooth(y[None])[0], x)
    assert torch.allclose(products(smooth, x, v, chunk=2), torch.einsum("ndme,kme->knd", matrix, v), atol=1e-12)
    assert torch.allclose(column(smooth, x, 1), matrix[:, :, 1].reshape(n, dim, dim), atol=1e-12)
    p = v[0]
    assert torch.allclose(interactions(smooth, x, p), torch.einsum("nd,ndme,me->nm", p, matrix, p), atol=1e-12)
    value, first = gradient(smooth, x)
    assert torch.allclose(first, torch.func.grad(lambda y: smooth(y[None])[0])(x))
    assert torch.equal(value, smooth(x[None])[0])


def test_a_linear_function_has_no_curvature():
    assert not products(lambda x: x.sum((1, 2)), random(3, 2), random(4, 3, 2)).any()
    found = expansion(lambda x: x.square().sum((1, 2)), random(2, 4, 3), codes=of_size(3))  # nothing interacts
    assert found.blocks is None
    assert found.decay is None
    assert found.whole.interaction == 0
    assert "No two positions interact: H = 0." in found.sentences()


@given(st.integers(0, 1000))
@settings(max_examples=8)
def test_a_quadratic_form_is_its_own_expansion(seed):
    f, matrix = quadratic(seed)
    x, p = random(N, DIM, seed=seed), of_size(DIM)(torch.arange(N))
    found = expansion(f, x, codes=of_size(DIM), pairs=100, columns=N - 1)
    assert found.slope is None
    assert found.exact
    assert "the expansion is exact" in found.sentences()[1]
    assert max(found.remainders) < 1e-10
    assert found.whole.remainder < 1e-10 > found.pair.remainder
    table = torch.einsum("nd,ndme,me->nm", p, matrix, p)
    assert found.whole.interaction == pytest.approx(abs(float(table.triu(1).sum())))
    assert found.whole.single == pytest.approx(abs(float(table.diagonal().sum() / 2)))
    assert found.pair.interaction == pytest.approx(float(table[*torch.triu_indices(N, N, 1)].abs().mean()))
    assert found.by_distance == pytest.approx([float(table.diagonal(d).mean()) for d in range(1, N)])
    mean = torch.stack([matrix[m, :, n] for n in range(N) for m in range(n)]).mean(0)
    assert torch.allclose(found.blocks.matrix, mean, atol=1e-12)
    assert found.blocks.count == N * (N - 1) / 2


def test_the_remainder_is_of_third_order():
    found = expansion(smooth, random(2, N, DIM) / 3, codes=of_size(DIM))
    assert found.slope == pytest.approx(3, abs=0.05)
    # a function that is even in p has no third order
    even = expansion(lambda x: x.sum((1, 2)).cos(), torch.zeros(N, DIM, dtype=torch.float64), codes=of_size(DIM))
    assert even.slope == pytest.approx(4, abs=0.05)


def test_codes_of_zero_do_nothing():
    found = expansion(smooth, random(N, DIM), codes=torch.zeros(8, DIM))
    assert found.exact
    assert found.whole.change == 0
    assert found.decay is None
    assert "inf" not in " ".join(found.sentences())


@pytest.mark.parametrize("encoding", ["sinusoidal", "learned"])
def test_terms_of_a_model_of_ours_against_its_own_forward(encoding):
    model, tokens = random_model(encoding), torch.tensor([3, 1, 4, 1, 5, 9])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    body, direction = vector_model(model), random(32)
    found = expansion(lambda x: body.run(x, torch.arange(6))[:, 2] @ direction, body.content(tokens), codes=body.codes)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(block.attention.backend == "auto" for block in model.blocks)
    with torch.no_grad():
        bare = Transformer(model.config, posenc.NoPE()).double()
        bare.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("encoding")})
        read = []
        for each in (model, bare):
            each.head = nn.Identity()
            read.append(each(tokens[None])[0, 2] @ direction)
    assert found.whole.change == pytest.approx(abs(float(read[0] - read[1])))
    assert found.slope == pytest.approx(3, abs=0.1)
    assert found.codes == encoding
    norm = expansion(random_model(encoding), tokens).word_norm
    assert norm == pytest.approx(float(before["embedding.weight"].norm(dim=-1).mean() * math.sqrt(32)))


def test_decay_under_three_matrices():
    encoding = posenc.Sinusoidal(8)
    codes = codes_of(encoding)(torch.arange(40))
    matrix = random(8, 8) + torch.diag(torch.tensor([2.0, 2, 3, 3, 4, 4, 5, 5]).double())
    found = decay(codes, matrix)
    for d in (0, 1, 17, 39):
        pairs = [(m, m + d) for m in range(40 - d)]
        for curve, h in (
            (found.full, matrix),
            (found.diagonal, matrix.diagonal().diag()),
            (found.identity, matrix.diagonal().mean() * torch.eye(8, dtype=torch.float64)),
        ):
            want = sum(float(codes[m] @ h @ codes[n]) for m, n in pairs) / len(pairs)
            assert float(curve[d]) == pytest.approx(want)
    assert found.relative["identity"] == pytest.approx(1)
    assert found.relative["full"] < found.relative["diagonal"] < 1
    # equal entries at a sine and its cosine leave no trace of m + n
    even = torch.diag(torch.tensor([2.0, 2, 3, 3, 4, 4, 5, 5]).double())
    assert decay(codes, even).relative["diagonal"] == pytest.approx(1)


def test_relative_encodings_still_act_when_codes_are_added():
    """A model whose position is in its attention is expanded around codes that are given."""
    found = expansion(random_model("rope"), torch.arange(8), codes="sinusoidal")
    assert found.slope == pytest.approx(3, abs=0.1)
    assert found.codes == "sinusoidal"
    with pytest.raises(InputError, match=r"Transformer \(rope\) adds none to its input"):
        expansion(random_model("rope"), torch.arange(8))
