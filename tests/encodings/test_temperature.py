"""softmax_n, learned sinks and log-n scaling against the formulas, transformers and torch."""

import math
from importlib import import_module

import pytest
import torch
import transformers

import posenc
from posenc import LearnedSink, LogN, Positions, SoftmaxN, StepTemperature, Temperature

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
        (lambda: StepTemperature(8, beta=-1), "beta=-1"),
        (lambda: StepTemperature(8, first=2), "first=2: must be"),
        (lambda: LogN(1), "train_length=1"),
        (lambda: (SoftmaxN() + LearnedSink(2)).sink(), "several sinks"),
        (lambda: posenc.attention(*inputs(), LearnedSink(3)), "pass a number, .* logits"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(posenc.InputError, match=message):
        make()


@pytest.mark.parametrize("clip", [True, False])
def test_log_n_counts_what_is_seen(clip):
    q, k, _ = inputs(n=6)
    factor = lambda n: max(1.0 if clip else 0.0, math.log(max(n, 1)) / math.log(3))  # noqa: E731
    for positions in (
        Positions.arange(6), Positions.packed([2, 4], causal=True), Positions.from_ids([[0, 0, 5, 5, 9, 9]], causal=True),
        Positions.from_mask(torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]), causal=True),
    ):  # fmt: skip
        seen = positions.mask()[:, 0].sum(-1).tolist()
        expected = torch.tensor([[factor(n) for n in row] for row in seen], dtype=torch.float64)
        actual = LogN(3, clip=clip).rotate(q, k, positions)[0] / q
        assert torch.allclose(actual, expected[:, None, :, None].expand_as(actual), atol=1e-12)


@pytest.mark.parametrize("name", ["rope", "swin_v2", "pope", "transformer_xl"])
def test_log_n_scales_scores_wherever_it_stands_in_a_sum(name):
    q, k, v = inputs(kv_heads=4)
    other = posenc.create(name, dim=24, num_heads=4, head_dim=6, max_positions=16, causal=True).double()
    turned = [posenc.attention(q, k, v, sum_, causal=True) for sum_ in (LogN(3) + other, other + LogN(3))]
    assert torch.equal(*turned)
    assert not torch.allclose(turned[0], posenc.attention(q, k, v, other, causal=True), atol=1e-4)
