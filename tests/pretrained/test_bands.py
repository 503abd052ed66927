"""The two scores of a head against sums over every distance, and queries scaled by bands against scaled weights."""

import copy
import math
from itertools import pairwise
from statistics import NormalDist, fmean, pstdev

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import InputError, frequencies
from posenc.pretrained.bands import head_scores, scores
from references.small_models import TRAINED, small_model, tokens


def score_at(q, k, inv_freq, t, layout):
    """Re sum_c q_c conj(k_c) e^(i t theta_c), pair by pair."""
    n = len(inv_freq)
    total = 0.0
    for c in range(n):
        a, b = (c, c + n) if layout == "half" else (2 * c, 2 * c + 1)
        x, y = complex(q[a], q[b]), complex(k[a], k[b])
        total += (x * y.conjugate() * complex(math.cos(t * inv_freq[c]), math.sin(t * inv_freq[c]))).real
    return total


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_scores_are_sums_over_all_distances(layout):
    torch.manual_seed(0)
    window, inv_freq = 9, frequencies.default(6).inv_freq
    q, k = torch.randn(4, 2, 8).double(), torch.randn(2, 2, 3, 8).double()  # two channels do not rotate
    k[0, 0, 1] = k[0, 0, 0]  # equal keys, of which none is preferred
    semantic, positional = scores(q, k, inv_freq, window, layout)
    for head in range(4):
        moves, wins = [], []
        for m in range(2):
            lines = [[score_at(q[head, m], key, inv_freq, t, layout) for t in range(window)] for key in k[head // 2, m]]
            for key, line in zip(k[head // 2, m], lines, strict=True):
                planes = [(c, c + 3) for c in range(3)] if layout == "half" else [(0, 1), (2, 3), (4, 5)]
                x = q[head, m]
                norm = math.sqrt(sum((x[a] ** 2 + x[b] ** 2) * (key[a] ** 2 + key[b] ** 2) for a, b in planes))
                moves.append(fmean(abs(line[t + 1] - line[t]) for t in range(window - 1)) / norm)
            for one, other in pairwise(lines):
                apart = [b - a for a, b in zip(one, other, strict=True)]
                sign = math.copysign(1, apart[0])
                if apart[0] == 0:
                    continue
                wins.append(NormalDist().cdf(sign * fmean(apart) / pstdev(apart)))
        assert float(positional[head]) == pytest.approx(fmean(moves), rel=1e-9)
        assert float(semantic[head]) == pytest.approx(fmean(wins), rel=1e-9)


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("kind", ["llama", "glm", "phi", "smollm3"])
def test_a_models_heads_are_scored_and_it_stays_as_it_was(kind):
    model, x = small_model(kind).double(), tokens(2, 50)
    before = model(x).logits
    semantic, positional = head_scores(model, x, window=40, queries=2, keys=5)
    assert torch.equal(model(x).logits, before)
    assert semantic.shape == positional.shape == (model.config.num_hidden_layers, 4)
    rotating = positional.isfinite()
    assert rotating.any()
    assert rotating.all() == (kind != "smollm3")
    assert ((semantic[rotating] > 0) & (semantic[rotating] < 1)).all()
    assert (positional[rotating] > 0).all()


def scaled_weights(model, heads, high, low, window):
    """The same model with the bands in its query weights, which commute with the rotation."""
    twin, dim = copy.deepcopy(model), model.config.head_dim
    fast = frequencies.default(dim).inv_freq * window >= 2.0
    factors = torch.where(fast, high, low).double().repeat(2)
    for number, layer in enumerate(twin.model.layers):
        weight = layer.self_attn.q_proj.weight.data.unflatten(0, (-1, dim))
        for head in range(len(weight)):
            if heads is None or number * len(weight) + head in heads:
                weight[head] *= factors[:, None]
    return twin


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("heads", [None, [1, 6]])
def test_the_logits_are_those_of_scaled_weights(heads, tmp_path):
    model, x = small_model("llama").double(), tokens(2, 80)
    wanted = scaled_weights(model, heads, 0.5, 1.25, TRAINED)(x).logits
    report = posenc.extend(model, "band_scale", high=0.5, low=1.25, heads=heads)
    assert_close(model(x).logits, wanted, rtol=1e-4, atol=1e-4)  # whose angles are float32
    steps = model(x[:, :60], use_cache=True)
    rest = model(x[:, 60:], past_key_values=steps.past_key_values).logits
    assert_close(torch.cat((steps.logits, rest), 1), model(x).logits, rtol=1e-9, atol=1e-10)
    assert (report.exact_tokens, report.plain, report.raw_keys, report.reach) == (0, False, False, TRAINED)
    assert f"fast pairs times 0.5, slow ones times 1.25, in {'all heads' if heads is None else '2 heads'}" in str(
        report
    )
    model.save_pretrained(tmp_path / "saved")
    assert_close(
        posenc.load(tmp_path / "saved", dtype=torch.float64)[0](x).logits, model(x).logits, rtol=1e-6, atol=1e-6
    )
    posenc.extend(model, "yarn+band_scale:high=0.5+log_n", factor=2)
    posenc.extend(model, "rerope:window=16+band_scale:high=1:heads=1,2")
    assert_close(model(x).logits, posenc_rerope(model, x), rtol=1e-9, atol=1e-10)


def posenc_rerope(model, x):
    """high = low = 1 changes nothing."""
    posenc.extend(model, "rerope:window=16")
    return model(x).logits


def test_refusals():
    model, x = small_model("llama"), tokens(1, 50)
    for call, message in (
        (lambda: posenc.extend(model, "band_scale", heads=[8]), r"heads=8: the model has 8, layer \* 4 \+ head"),
        (lambda: posenc.extend(model, "band_scale", heads=[-1]), r"heads=-1"),
        (lambda: posenc.extend(model, "band_scale", high=0.0), r"high=0.0: must be a positive number"),
        (lambda: posenc.extend(model, "nope+band_scale"), r"under nope nothing is rotated"),
        (lambda: head_scores(model, x, keys=1), r"keys=1: must be at least 2"),
        (lambda: head_scores(model, x, keys=30), r"of at least 60, twice keys=30"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    posenc.extend(model, "yarn", factor=2)
    with pytest.raises(InputError, match="of the model as it was"):
        head_scores(model, x)
