"""The probe where the answer is known, and the walk through a model against the model itself."""

import pytest
import torch
import transformers
from guide_code.survival import CUT, INTACT, SHUFFLED, UNTRAINED, WRITTEN, _Probe, _Ridge, _walked

import posenc
from guide_code import survival, trained_model
from posenc.lab.transformer import Transformer, TransformerConfig

TOKENS = torch.randint(50, (24, 16), generator=torch.Generator().manual_seed(0))


def model_of(encoding, seed=0, **config):
    torch.manual_seed(seed)
    made = posenc.create(encoding, dim=32, num_heads=4, head_dim=8, num_layers=2, max_positions=16)
    return Transformer(TransformerConfig(50, dim=32, num_layers=2, **config), made).double().eval()


def test_a_planted_position_is_read_perfectly_and_noise_gives_nothing():
    draws = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 16, 8, generator=draws, dtype=torch.float64)
    at = torch.arange(16.0, dtype=torch.float64).expand(200, 16)
    planted = noise.clone()
    planted[..., 3] = 5 - 2 * at
    probe = _Probe(planted, at)
    assert probe.r2 == pytest.approx(1, abs=1e-6)
    assert probe.error < 1e-3
    assert probe.follows(planted, at) == pytest.approx(1)
    assert probe.follows(noise, at) < 0.02
    assert abs(_Probe(noise, at).r2) < 0.02
    wide = torch.randn(40, 16, 300, generator=draws, dtype=torch.float64)  # as many channels as rows, nearly
    assert abs(_Probe(wide, at[:40]).r2) < 0.05
    still = torch.cat((planted, torch.full_like(planted[..., :1], 7.0)), -1)
    assert _Probe(still, at).r2 == pytest.approx(1, abs=1e-6)
    flat = _Probe(torch.zeros(8, 16, 3, dtype=torch.float64), at[:8])
    assert (flat.r2, flat.follows(planted[:8, :, :3], at[:8])) == (pytest.approx(0), 0)


@pytest.mark.parametrize("ridge", [1e-3, 1.0])
def test_the_probe_is_ridge_regression(ridge):
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(12, 10, 4, generator=draws, dtype=torch.float64) * torch.tensor([1, 10, 0.1, 3])
    at = torch.arange(10.0, dtype=torch.float64).expand(12, 10)
    features[..., 0] += at
    x, y = features[:9].flatten(0, 1), at[:9].flatten()
    scaled = (x - x.mean(0)) / x.std(0)
    stacked = torch.cat((scaled, (ridge * len(x)) ** 0.5 * torch.eye(4)))  # ridge as rows of data
    solution = torch.linalg.lstsq(stacked, torch.cat((y - y.mean(), torch.zeros(4))).double()[:, None]).solution
    assert torch.allclose(_Ridge(x, y).read(x, ridge), (scaled @ solution)[:, 0] + y.mean())


def test_the_interval_is_students_over_the_tested_texts():
    stats = pytest.importorskip("scipy.stats")
    draws = torch.Generator().manual_seed(0)
    at = torch.arange(16.0, dtype=torch.float64).expand(40, 16)
    features = torch.randn(40, 16, 3, generator=draws, dtype=torch.float64)
    features[..., 0] += at / 3
    probe = _Probe(features, at)
    each = []
    for text in range(30, 40):  # the last quarter
        missed = sum(float((probe.read(features[text, t]) - t) ** 2) for t in range(16))
        each.append(1 - missed / sum((t - 7.5) ** 2 for t in range(16)))
    assert probe.r2 == pytest.approx(sum(each) / 10)
    wanted = stats.t.interval(0.95, 9, loc=probe.r2, scale=stats.sem(each))
    assert probe.interval == pytest.approx(wanted, abs=1e-4)
    assert all(edge != edge for edge in _Probe(features[:4], at[:4]).interval)  # one text is tested: nan


@pytest.mark.parametrize("encoding", ["sinusoidal", "none", "rope", "alibi", "floater", "tupe"])
def test_the_walk_is_the_models_own_forward_pass(encoding):
    model = model_of(encoding, num_kv_heads=2) if encoding in ("none", "rope", "alibi") else model_of(encoding)
    with torch.no_grad():
        found = _walked(model, TOKENS)
        assert torch.allclose(model.head(model.norm(found[INTACT][-1])), model(TOKENS), atol=1e-9)
    for layer in range(2):
        written = found[INTACT][layer + 1] - found[INTACT][layer]
        if encoding != "floater":  # which adds to the stream before each layer
            assert torch.allclose(found[WRITTEN][layer + 1], written)


@torch.no_grad()
def test_without_residuals_every_sublayer_must_pass_position_on():
    model = model_of("sinusoidal:amplitude=5")
    for block in model.blocks:
        block.mlp.down.weight.zero_()  # the MLP's output is zero, so without the residual no position passes it
    found = survival(model, TOKENS)
    assert found.curves[INTACT].r2.min() > 0.9
    assert found.curves[CUT].r2[0] > 0.9 > 0.1 > found.curves[CUT].r2[1:].abs().max()


@torch.no_grad()
def test_a_causal_model_without_codes_counts_and_an_encoder_cannot():
    tokens = torch.randint(1, 50, (160, 24), generator=torch.Generator().manual_seed(1))
    tokens[:, 0] = 0
    found = {}
    for causal in (True, False):
        model = model_of("none", causal=causal)
        for block in model.blocks:
            block.attention.query.weight.zero_()  # the first token gets 1 / (t + 1) of the attention, or 1 / n
        found[causal] = survival(model, tokens).curves[CUT].r2
    t = torch.arange(24.0)
    ceiling = torch.corrcoef(torch.stack((t, 1 / (t + 1))))[0, 1] ** 2
    assert found[False][1:].max() < 0.02
    assert 0.5 * ceiling < found[True][1]


def test_a_trained_model_against_its_controls():
    model, text = trained_model("sinusoidal", steps=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = survival(model, text[: 64 * 64].view(64, 64))
    assert set(found.curves) == {INTACT, WRITTEN, CUT, UNTRAINED, SHUFFLED}
    assert found.curves[INTACT].r2[0] > 0.95
    assert found.curves[SHUFFLED].r2.max() < 0.01
    assert found.curves[SHUFFLED].error.min() > 15
    assert found.transfer.diagonal().min() > 0.5
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    sentences = " ".join(found.sentences())
    assert "Without residual connections" in sentences
    assert "guessing the middle: 16.0" in sentences
    assert found.to_dict()["curves"][CUT]["r2"]


def test_a_transformers_model_is_probed_as_it_is():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    found, again = survival(model, TOKENS), survival(model.base_model, TOKENS)
    assert set(found.curves) == {INTACT, UNTRAINED, SHUFFLED}
    assert len(found.curves[INTACT].r2) == 3
    assert torch.allclose(found.curves[INTACT].r2, again.curves[INTACT].r2, atol=1e-4)
    assert found.name == "llama"
    same = survival(model, TOKENS, untrained=model)
    assert torch.equal(same.curves[UNTRAINED].r2, found.curves[INTACT].r2)
