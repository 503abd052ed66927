"""Random directions against their exact distribution, subspaces and sums where the answer is known."""

import pytest
import torch
import transformers
from guide_code.model import tables
from guide_code.subspaces import dot_density

import posenc
from guide_code import add_or_concat, random_dots, subspaces
from posenc.lab.transformer import Transformer, TransformerConfig


@pytest.mark.parametrize("dim", [2, 3, 16, 300])
def test_random_dots_follow_the_beta_distribution(dim):
    stats = pytest.importorskip("scipy.stats")
    beta = stats.beta((dim - 1) / 2, (dim - 1) / 2)
    found = random_dots(dim, samples=20000, seed=1)
    error = 20000**-0.5
    assert abs(found.mean) < 4 * error * dim**-0.5
    assert found.variance == pytest.approx(1 / dim, rel=0.05)
    at = torch.tensor([-0.5, 0.0, 0.3])
    assert dot_density(at, dim).tolist() == pytest.approx((beta.pdf((1 + at.double().numpy()) / 2) / 2).tolist())
    width = found.edges[1] - found.edges[0]
    assert (found.density.sum() * width).item() == pytest.approx(1)


def test_orthogonal_subspaces_are_found_orthogonal():
    draws = torch.Generator().manual_seed(0)
    words, codes = torch.zeros(100, 32), torch.zeros(50, 32)
    words[:, :16] = torch.randn(100, 16, generator=draws)
    codes[:, 20:24] = torch.randn(50, 4, generator=draws)
    found = subspaces((words, codes))
    assert found.rank == 4
    assert found.angles.min().item() == pytest.approx(90, abs=1e-4)
    assert found.overlap < 1e-12 < found.random_overlap == 4 / 32
    assert found.cosine["raw"] == pytest.approx((0, 0), abs=1e-12)


def test_random_tables_are_as_random_vectors_are():
    draws = torch.Generator().manual_seed(0)
    found = subspaces((torch.randn(2000, 64, generator=draws), torch.randn(300, 64, generator=draws)))
    mean, spread = found.cosine["centred"]
    assert abs(mean) < 0.01
    assert spread == pytest.approx(64**-0.5, rel=0.02) == pytest.approx(found.expected, rel=0.02)
    assert found.overlap == pytest.approx(found.random_overlap, rel=0.05)
    assert len(found.angles) == len(found.random_angles) == found.rank


def test_a_model_gives_the_tables_that_it_adds():
    torch.manual_seed(0)
    for name in ("sinusoidal", "learned", "sinusoidal:merge=concat"):
        encoding = posenc.create(name, dim=32, num_heads=4, max_positions=16)
        model = Transformer(TransformerConfig(50, dim=32, num_layers=1), encoding)
        words, codes = tables(model, 16)
        seen = []
        model.blocks[0].register_forward_pre_hook(lambda _m, inputs, seen=seen: seen.append(inputs[0]))
        tokens = torch.arange(16)[None]
        model(tokens)
        added = encoding.embed(words.float()[tokens], posenc.Positions.arange(16)) - codes.float()
        assert torch.allclose(seen[0], added + codes.float(), atol=1e-5)
        if "concat" not in name:
            assert torch.allclose(seen[0][0], (words[:16] + codes).float(), atol=1e-5)
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=50, hidden_size=32, num_attention_heads=4))
    words, codes = tables(bert)
    assert torch.equal(words.float(), bert.embeddings.word_embeddings.weight)
    assert torch.equal(codes.float(), bert.embeddings.position_embeddings.weight)
    found = subspaces(bert, length=20)
    assert (found.name, found.tokens, found.positions, found.dim) == ("bert", 50, 20, 32)


def test_reading_back_is_least_squares_on_every_pair():
    draws = torch.Generator().manual_seed(0)
    words, codes = torch.randn(40, 8, generator=draws).double(), 0.5 * torch.randn(30, 8, generator=draws).double()
    found = add_or_concat((words, codes), dims=(8,)).given
    x, p = words.repeat_interleave(30, 0), codes.repeat(40, 1)
    inputs = torch.cat((x + p, torch.ones(1200, 1)), -1).double()
    for kind, wanted in (("tokens", x), ("positions", p)):
        read = inputs @ torch.linalg.lstsq(inputs, wanted).solution
        missed = (wanted - read).square().sum() / (wanted - wanted.mean(0)).square().sum()
        assert found.explained[kind] == pytest.approx(1 - missed.item(), abs=1e-9)
        table = words if kind == "tokens" else codes
        right = (torch.cdist(read, table).argmin(-1) == torch.cdist(wanted, table).argmin(-1)).double().mean()
        assert found.accuracy[kind] == pytest.approx(right.item(), abs=0.05)
