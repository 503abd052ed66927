"""Ms-PoE, scaled bands and APE, which benchmarks/ has beside their results, against loops in float64."""

import copy
import math
import sys
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist, fmean, pstdev

import pytest
import torch
from torch.testing import assert_close
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import posenc
from posenc import InputError, frequencies
from references.mapped_attention import NoRotation
from references.small_models import TRAINED, small_model, tokens

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import bands
import ms_poe
from ape import Parallel, ape_generate, attend

LEAST, MOST, SKIP = 1.2, 1.8, 1


def by_brute_force(model, choose):
    """A model of transformers that turns every pair of tokens by (i - j) theta / scale of its head, in float64.
    choose(layer, q, k) -> scales of its heads."""
    inv_freq = frequencies.default(model.config.head_dim).inv_freq

    def pairs(x):
        return torch.complex(*x.chunk(2, -1))

    def attend(module, q, k, v, mask, scaling, **others):
        n, past = q.shape[2], k.shape[2] - q.shape[2]
        groups = q.shape[1] // k.shape[1]
        scale = torch.tensor(choose(module.layer_idx, q, k), dtype=torch.float64).repeat_interleave(groups)
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
        apart = torch.arange(past, past + n)[:, None] - torch.arange(past + n)
        turn = torch.polar(torch.ones((), dtype=torch.float64), (apart / scale[:, None, None])[..., None] * inv_freq)
        scores = torch.einsum("bhic,bhjc,hijc->bhij", pairs(q), pairs(k).conj(), turn).real * scaling
        weights = scores.masked_fill(apart < 0, -torch.inf).softmax(-1)
        return (weights @ v).transpose(1, 2).contiguous(), None

    AttentionInterface.register("ms_poe_by_brute_force", attend)
    AttentionMaskInterface.register("ms_poe_by_brute_force", eager_mask)
    model.model.rotary_emb = NoRotation(model.model.rotary_emb)
    model.set_attn_implementation("ms_poe_by_brute_force")
    return model


def authors_ratio(q, k):
    """The paper's order with the numbers of the authors' code, head after head: the share of weights over three times the
    mean in the last row, without positions; the more, the smaller the ratio."""
    shares = []
    for head in range(q.shape[1]):
        weights = (q[0, head] @ k[0, head].T / math.sqrt(q.shape[-1]))[-1].softmax(-1)
        shares.append(float((weights > 3 * weights.mean()).double().mean()))
    ordered = sorted(range(len(shares)), key=lambda head: -shares[head])
    return [LEAST + (MOST - LEAST) * ordered.index(head) / len(shares) for head in range(len(shares))]


def test_the_scales_and_logits_of_ms_poe_are_those_of_brute_force():
    settings = {"num_key_value_heads": 4, "num_hidden_layers": 3}
    model, x = small_model("llama", **settings).double(), tokens(1, 50)
    found = {}

    def choose(layer, q, k):
        return found.setdefault(layer, [1.0] * 4 if layer < SKIP else authors_ratio(q, k))

    with torch.no_grad():
        wanted = by_brute_force(small_model("llama", **settings).double(), choose)(x).logits
        before = model(x).logits
        scales = ms_poe.head_scales(model, x, least=LEAST, most=MOST, skip=SKIP)
        assert torch.equal(model(x).logits, before), "measuring changes nothing"
        assert scales == pytest.approx([scale for layer in range(3) for scale in found[layer]])
        assert len(set(found[1])) == 4
        ms_poe.extend(model, scales)
        assert_close(model(x).logits, wanted, rtol=1e-9, atol=1e-10)
        pieces = model(x[:, :30], use_cache=True)
        rest = [model(x[:, i : i + 1], past_key_values=pieces.past_key_values).logits for i in range(30, 50)]
        assert_close(torch.cat((pieces.logits, *rest), 1), wanted, rtol=1e-9, atol=1e-10)
        posenc.restore(model)
        assert torch.equal(model(x).logits, before)


@pytest.mark.parametrize("kind", ["gemma2", "smollm3"])
def test_layers_with_windows_and_without_positions_stay(kind):
    model, x = small_model(kind).double(), tokens(2, 60)
    scales = ms_poe.head_scales(model, x, skip=0)
    changed = {i // 2 for i, scale in enumerate(scales) if scale != 1}
    assert changed == {"gemma2": {1}, "smollm3": {0, 2}}[kind]
    with torch.no_grad():
        before = model(x).logits
        ms_poe.extend(model, [1.0] * len(scales))
        assert_close(model(x).logits, before, rtol=1e-3, atol=1e-3)  # whose angles are float32
        posenc.restore(model)
        assert torch.equal(model(x).logits, before)
    with pytest.raises(InputError, match=r"scales: 1 of them"):
        ms_poe.extend(model, [1.5])


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
def test_the_scores_of_heads_are_sums_over_all_distances(layout):
    torch.manual_seed(0)
    window, inv_freq = 9, frequencies.default(6).inv_freq
    q, k = torch.randn(4, 2, 8).double(), torch.randn(2, 2, 3, 8).double()  # two channels do not rotate
    k[0, 0, 1] = k[0, 0, 0]  # equal keys, of which none is preferred
    semantic, positional = bands.scores(q, k, inv_freq, window, layout)
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
def test_the_logits_of_scaled_bands_are_those_of_scaled_weights(heads):
    model, x = small_model("llama").double(), tokens(2, 80)
    wanted = scaled_weights(model, heads, 0.5, 1.25, TRAINED)(x).logits
    before = model(x).logits
    bands.extend(model, bands.BandScale(TRAINED, high=0.5, low=1.25, heads=heads))
    assert_close(model(x).logits, wanted, rtol=1e-4, atol=1e-4)  # whose angles are float32
    posenc.restore(model)
    assert torch.equal(model(x).logits, before)
    semantic, positional = bands.head_scores(model, x, window=40, queries=2, keys=5)
    assert torch.equal(model(x).logits, before)
    assert ((semantic > 0) & (semantic < 1) & (positional > 0)).all()


CONTEXTS = ["w3 w4 w5 w6 w7 w8", "w20", "w40 w41 w42", "w60 w61 w62 w63 w64 w65 w66 w67 w68"]
TEMPLATE = "w1 w2 {context} w30 {question} w31"


def loops(q, k, v, parallel, scale):
    """The authors' expression, a query and a key at a time: log-sum-exps of contexts, at 1 / T, times S T, beside the others'."""
    out = torch.zeros_like(q)
    n, keys, groups = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    for b in range(len(q)):
        for h in range(q.shape[1]):
            for i in range(n):
                sums, means = {}, {}
                for inside in (True, False):
                    t = parallel.temperature if inside else 1.0
                    chosen = [
                        j for j in range(keys - n + i + 1) if (parallel.first <= j < parallel.end) is inside
                    ]  # fmt: skip
                    weights = [math.exp(float(q[b, h, i] @ k[b, h // groups, j]) * scale / t) for j in chosen]
                    sums[inside] = sum(weights)
                    means[inside] = sum(w * v[b, h // groups, j] for w, j in zip(weights, chosen, strict=True)) / sum(
                        weights
                    )
                a, other = sums[True] ** (parallel.scale * parallel.temperature), sums[False]
                out[b, h, i] = (a * means[True] + other * means[False]) / (a + other)
    return out


@pytest.mark.parametrize(("temperature", "scale"), [(0.9, 0.9), (0.4, 1.3), (1.0, 1.0)])
def test_the_attention_of_ape_is_the_authors(temperature, scale):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 3, 8).double(), torch.randn(2, 2, 12, 8).double(), torch.randn(2, 2, 12, 8).double()
    parallel = Parallel(2, 8, temperature, scale)
    assert_close(attend(q, k, v, parallel, 0.3), loops(q, k, v, parallel, 0.3), rtol=1e-11, atol=1e-12)


def side_by_side(model, tokenizer, new):
    """The likeliest next tokens of plain transformers under a 4-D mask, and shared positions: T = S = 1."""

    def ids(text):
        return tokenizer(text, add_special_tokens=False).input_ids

    start, contexts, asked = tokenizer("w1 w2").input_ids, [ids(c) for c in CONTEXTS], ids("w30 w9 w31")
    row, where, owner = list(start), list(range(len(start))), [-1] * len(start)
    for number, context in enumerate(contexts):
        row += context
        where += range(len(start), len(start) + len(context))
        owner += [number] * len(context)
    answer = []
    while len(answer) < new:
        tail = [*asked, *answer]
        after = len(start) + max(map(len, contexts))
        all_ids, positions = [*row, *tail], [*where, *range(after, after + len(tail))]
        whose = torch.tensor([*owner, *([-2] * len(tail))])
        n = len(all_ids)
        sees = (whose[None] == -1) | (whose[:, None] == whose[None]) | (whose[:, None] == -2)
        sees &= torch.arange(n)[:, None] >= torch.arange(n)
        mask = torch.zeros(n, n, dtype=torch.float64).masked_fill(~sees, -torch.inf)[None, None]
        logits = model(torch.tensor([all_ids]), attention_mask=mask, position_ids=torch.tensor([positions])).logits[
            0, -1
        ]
        answer.append(int(logits.argmax()))
    return tuple(answer)


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("kind", ["llama", "phi"])
def test_at_one_and_one_it_is_one_softmax_over_all_contexts(kind, batch_size, tokenizer):
    model = small_model(kind).double()
    options = {"template": TEMPLATE, "max_new_tokens": 5, "batch_size": batch_size}
    answer = ape_generate(model, tokenizer, CONTEXTS, "w9", temperature=1.0, scale=1.0, **options)
    wanted = side_by_side(model, tokenizer, 5)
    assert answer.tokens == wanted[: len(answer.tokens)]
    assert len(answer.tokens) == 5 or wanted[len(answer.tokens)] == 2
    assert (answer.context_tokens, answer.positions) == (19, 2 + 9 + 3 + len(answer.tokens) - (len(answer.tokens) == 5))


@pytest.mark.usefixtures("no_gradients")
def test_ape_is_refused_under_a_map(llama, tokenizer):
    posenc.extend(llama, "rerope:window=16")
    with pytest.raises(InputError, match="contexts in parallel need frequencies alone"):
        ape_generate(llama, tokenizer, CONTEXTS, "w9", template=TEMPLATE)
