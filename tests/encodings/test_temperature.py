"""softmax_n, learned sinks and log-n scaling against the formulas, transformers and torch."""

import math
from importlib import import_module

import pytest
import torch
import transformers

import posenc
from posenc import LearnedSink, LogN, Positions, SoftmaxN, StepTemperature, Temperature
from posenc.testing.oracles import biases
from posenc.testing.oracles.attention import attend

gpt_oss = import_module("transformers.models.gpt_oss.modeling_gpt_oss")
llama4 = import_module("transformers.models.llama4.modeling_llama4")
ministral3 = import_module("transformers.models.ministral3.modeling_ministral3")


def inputs(heads=4, kv_heads=2, n=7):
    q, k, v = (torch.randn(2, h, n, 6, dtype=torch.float64) for h in (heads, kv_heads, kv_heads))
    return q, k, v


@pytest.mark.parametrize("n", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_softmax_n_adds_n_to_the_denominator(n, backend):
    q, k, v = inputs(kv_heads=4)
    scores = (q @ k.mT * 6**-0.5).exp()
    expected = scores / (n + scores.sum(-1, keepdim=True)) @ v
    assert torch.allclose(posenc.attention(q, k, v, SoftmaxN(n), backend=backend), expected, atol=1e-12)


def test_softmax_1_is_torchs_zero_key_and_value():
    q, k, v = inputs(kv_heads=4)
    theirs = torch.nn.MultiheadAttention(24, 4, bias=False, add_zero_attn=True, batch_first=True).double()
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    q, k, v = ((x @ w.T).unflatten(-1, (4, 6)).transpose(1, 2) for w in theirs.in_proj_weight.chunk(3))
    ours = posenc.attention(q, k, v, SoftmaxN()).transpose(1, 2).flatten(2) @ theirs.out_proj.weight.T
    assert torch.allclose(ours, theirs(x, x, x)[0], atol=1e-12)


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_learned_sinks_are_gpt_oss(backend):
    config = transformers.GptOssConfig(
        hidden_size=48,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        num_hidden_layers=1,
        attn_implementation="eager",
    )
    module = gpt_oss.GptOssAttention(config, layer_idx=0).double().eval()
    torch.nn.init.normal_(module.sinks)
    x = torch.randn(2, 30, 48, dtype=torch.float64)
    cos, sin = torch.ones(1, 30, 4, dtype=torch.float64), torch.zeros(1, 30, 4, dtype=torch.float64)
    hidden = torch.zeros(30, 30, dtype=x.dtype).masked_fill(torch.ones(30, 30, dtype=torch.bool).triu(1), -1e30)
    theirs = module(x, (cos, sin), hidden[None, None])[0]
    q, k, v = (p(x).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (module.q_proj, module.k_proj, module.v_proj))
    encoding = LearnedSink(6, num_layers=3).double()
    encoding.logits.data[2] = module.sinks
    out = posenc.attention(q, k, v, encoding, causal=True, layer=2, backend=backend)
    assert torch.allclose(module.o_proj(out.transpose(1, 2).flatten(2)), theirs, atol=1e-11)
    assert not torch.allclose(posenc.attention(q, k, v, encoding, causal=True, layer=1), out, atol=1e-3)


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_sink_beside_other_encodings(with_bias):
    q, k, v = inputs()
    logits = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
    encoding = LearnedSink(4).double()
    encoding.logits.data[0] = logits
    n = q.shape[2]
    bias = biases.alibi_bias(4, n, n) if with_bias else 0.0
    both = encoding + posenc.ALiBi(4) if with_bias else encoding
    expected = attend(q, k, v, scale=6**-0.5, visible=torch.ones(n, n).tril().bool(), sink=logits, bias=bias)
    assert torch.allclose(posenc.attention(q, k, v, both, causal=True), expected, atol=1e-12)


def test_gradients_of_sinks_and_of_what_they_meet():
    q, k, v = (x.requires_grad_() for x in inputs(n=4))
    encoding = LearnedSink(4).double()
    torch.nn.init.normal_(encoding.logits)
    hidden = Positions.from_mask(torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]), causal=True)  # a row that sees nothing

    def attend(q, k, v, logits):
        encoding.logits.data = logits.data
        return posenc.attention(q, k, v, None, hidden, sink=logits[0])

    assert torch.autograd.gradcheck(attend, (q, k, v, encoding.logits))


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("offset", [0, 3, 60])
def test_log_n_scales_queries_by_what_they_see(offset, clip):
    q, k, v = inputs(kv_heads=4, n=5)
    k, v = (torch.randn(2, 4, 5 + offset, 6, dtype=torch.float64) for _ in range(2))
    factors = [math.log(offset + i + 1) / math.log(8) for i in range(5)]
    if clip:
        factors = [max(1.0, f) for f in factors]
    scaled = q * torch.tensor(factors, dtype=torch.float64)[:, None]
    positions = Positions.arange(5, offset, causal=True)
    ours = posenc.attention(q, k, v, LogN(8, clip=clip), positions)
    assert torch.allclose(ours, posenc.attention(scaled, k, v, None, positions), atol=1e-12)


def test_log_n_keeps_entropy_from_growing():
    """Chiang and Cholak: without it, a query that singles out one key loses it among ever more others."""
    k = torch.zeros(1, 1, 4096, 4, dtype=torch.float64)
    k[0, 0, 0, 0] = 1.0
    weight = {}
    for name, encoding in (("plain", None), ("log_n", LogN(64))):
        for n in (64, 4096):
            q = torch.full((1, 1, 1, 4), 8.0, dtype=torch.float64)
            v = torch.zeros(1, 1, n, 1, dtype=torch.float64)
            v[0, 0, 0] = 1.0
            weight[name, n] = float(posenc.attention(q, k[:, :, :n], v, encoding, Positions.arange(1, n - 1)))
    assert weight["plain", 4096] < 0.1 * weight["plain", 64]
    assert weight["log_n", 4096] > 0.8 * weight["log_n", 64]


def test_step_temperature_is_llama_4():
    config = transformers.Llama4TextConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_hidden_layers=1, floor_scale=6,
        attn_scale=0.3, no_rope_layers=[0], attn_implementation="eager", use_qk_norm=False,
    )  # fmt: skip
    module = llama4.Llama4TextAttention(config, layer_idx=0).double().eval()
    x = torch.randn(2, 25, 32, dtype=torch.float64)
    hidden = torch.zeros(25, 25, dtype=x.dtype).masked_fill(torch.ones(25, 25, dtype=torch.bool).triu(1), -1e30)
    theirs = module(x, (None, None), hidden[None, None], position_ids=torch.arange(25)[None])[0]
    q, k, v = (p(x).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (module.q_proj, module.k_proj, module.v_proj))
    out = posenc.attention(q, k, v, StepTemperature(6, beta=0.3), causal=True)
    # their factor is float32
    assert torch.allclose(module.o_proj(out.transpose(1, 2).flatten(2)), theirs, atol=1e-6)
    plain = posenc.attention(q, k, v, None, causal=True)
    assert torch.equal(out[:, :, :5], plain[:, :, :5])
    assert not torch.allclose(out[:, :, 5:], plain[:, :, 5:], atol=1e-3)


def test_step_temperature_is_ministral_3():
    ids = torch.arange(0, 50_000, 7)
    theirs = ministral3.get_llama_4_attn_scale(ids[None].double(), 0.1, 16384)[0, 0, :, 0]
    actual = StepTemperature(16384, first=0).factor(Positions.from_ids(ids))[0]
    assert torch.allclose(actual, theirs, atol=1e-12)
    assert actual.unique().numel() == 4


@pytest.mark.parametrize("offset", [0, 9])
def test_temperature_is_a_factor_of_scores(offset):
    q, k, v = inputs(kv_heads=4)
    k, v = (torch.randn(2, 4, 7 + offset, 6, dtype=torch.float64) for _ in range(2))
    p = Positions.arange(7, offset, causal=True)
    ours = posenc.attention(q, k, v, posenc.Rotary(6) + Temperature(1.7), p)
    assert torch.allclose(ours, posenc.attention(q, k, v, posenc.Rotary(6), p, scale=1.7 * 6**-0.5), atol=1e-12)
    # YaRN's attention factor multiplies cos and sin of queries and of keys
    yarn = {"name": "yarn", "factor": 4, "original_max_positions": 64}
    bare = yarn | {"attention_factor": 1.0}
    theirs = posenc.attention(q, k, v, posenc.Rotary(6, schedule=yarn), p)
    actual = posenc.attention(
        q, k, v, posenc.Rotary(6, schedule=bare) + Temperature((0.1 * math.log(4) + 1) ** 2), p
    )  # fmt: skip
    assert torch.allclose(actual, theirs, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SoftmaxN(-1.0), "n=-1.0"),
        (lambda: Temperature(0.0), "beta=0.0"),
        (lambda: StepTemperature(0), "train_length=0"),
        (lambda: StepTemperature(8, beta=-1), "beta=-1"),
        (lambda: StepTemperature(8, first=2), "first=2: must be"),
        (lambda: LearnedSink(0), "num_heads=0"),
        (lambda: LogN(1), "train_length=1"),
        (lambda: LearnedSink(2, num_layers=2).sink(2), "layer=2"),
        (lambda: (SoftmaxN() + LearnedSink(2)).sink(), "several sinks"),
        (lambda: posenc.attention(*inputs(), LearnedSink(3)), "one logit per head"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(posenc.InputError, match=message):
        make()


def test_log_n_counts_what_is_seen():
    q, k, _ = inputs(n=6)
    factor = lambda n: max(1.0, math.log(n) / math.log(3)) if n else 1.0  # noqa: E731
    for positions in (
        Positions.arange(6), Positions.packed([2, 4], causal=True), Positions.from_ids([[0, 0, 5, 5, 9, 9]], causal=True),
        Positions.from_mask(torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]), causal=True),
    ):  # fmt: skip
        seen = positions.mask()[:, 0].sum(-1).tolist()
        expected = torch.tensor([[factor(n) for n in row] for row in seen], dtype=torch.float64)
        actual = LogN(3).rotate(q, k, positions)[0] / q
        assert torch.allclose(actual, expected[:, None, :, None].expand_as(actual), atol=1e-12)


@pytest.mark.parametrize("name", ["rope", "swin_v2", "pope", "transformer_xl"])
def test_log_n_scales_scores_wherever_it_stands_in_a_sum(name):
    q, k, v = inputs(kv_heads=4)
    other = posenc.create(name, dim=24, num_heads=4, head_dim=6, max_positions=16, causal=True).double()
    turned = [posenc.attention(q, k, v, sum_, causal=True) for sum_ in (LogN(3) + other, other + LogN(3))]
    assert torch.equal(*turned)
    assert not torch.allclose(turned[0], posenc.attention(q, k, v, other, causal=True), atol=1e-4)
