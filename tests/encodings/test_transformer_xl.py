"""Transformer-XL and XLNet: the paper's formula, XLNet, Conformer and Parakeet in transformers."""

from importlib import import_module

import pytest
import torch
import transformers
from torch.testing import assert_close

import posenc
from posenc import Positions, TransformerXL, XLNet
from posenc.bias import Factored, QueryRelative
from posenc.testing.oracles import content
from posenc.testing.oracles.attention import attend
from posenc.testing.oracles.codes import sinusoidal
from references.calls import distances, qkv

EXACT = {"rtol": 1e-10, "atol": 1e-11}
# the other side computes R in float32: angles up to 100 are off by about 100 * 2^-23, then averaged by the softmax
FLOAT32_ANGLES = {"rtol": 0, "atol": 1e-5}
WHERE = {
    "bidirectional": Positions.arange(6),
    "memory": Positions.arange(4, 5, causal=True),
    "packed": Positions.packed([3, 4], causal=True),
    "per row": Positions.from_ids(torch.stack((torch.arange(6), torch.arange(6) * 5 % 6 - 3))),
}
FRACTIONAL = Positions.from_ids(torch.tensor([0.0, 0.25, 1.5, -2.75, 40.125]))


def made(cls=TransformerXL, **options):
    encoding = cls(10, num_heads=4, head_dim=6, **options).double()
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return encoding


def by_formula(encoding, q, k, v, positions, layer=0, sign=1):
    limit = encoding.clamp_len or float("inf")
    pair = layer if encoding.untie else 0
    u, bias, w = (x.detach() for x in (encoding.u[pair], encoding.v[pair], encoding.projection.weight[layer]))
    found, rows = (sign * distances(positions).double().clamp(-limit, limit)).unique(return_inverse=True)
    keys = sinusoidal(found, 10, 1e4, layout="concat") @ w.mT
    queries, terms = content.transformer_xl(q, u, bias, keys, rows)
    return attend(queries, k, v, scale=6**-0.5, visible=positions.mask(), bias=terms * 6**-0.5)


@pytest.mark.parametrize("cls", [TransformerXL, XLNet])
@pytest.mark.parametrize(("clamp_len", "names"), [(None, [*WHERE, "fractional"]), (2, WHERE), (100, ["memory"])])
def test_it_is_the_formula(clamp_len, names, cls):
    for name in names:
        positions = FRACTIONAL if name == "fractional" else WHERE[name]
        encoding = made(cls, num_layers=2, clamp_len=clamp_len)
        q, k, v = qkv(positions, 4, 2, 6)
        want = by_formula(encoding, q, k, v, positions, layer=1)
        for backend in ("sdpa", "reference"):
            assert_close(posenc.attention(q, k, v, encoding, positions, layer=1, backend=backend), want, **EXACT)
        if name != "packed":  # documents of three and four tokens tell little
            other = by_formula(encoding, q, k, v, positions, layer=1, sign=-1)
            assert (other - want).abs().max() > 1e-3, "the other sign of the distance gives other values"


def test_the_bias_is_structured_where_distances_are_known():
    q, k, _ = qkv(WHERE["memory"], 4, 2, 6)
    encoding = made()
    unlimited = encoding.bias(q, k, WHERE["memory"])
    assert isinstance(unlimited, QueryRelative)
    assert unlimited.table.shape == (4, 12, 6), "a row for each of the 4 + 9 - 1 distances"
    anywhere = Positions.from_ids(WHERE["memory"].q + 0.5, WHERE["memory"].k + 0.5)
    factored = encoding.bias(q, k, anywhere)
    assert isinstance(factored, Factored)
    assert factored.left.shape == (2, 4, 4, 10)
    assert factored.right.shape == (1, 1, 9, 10)
    assert_close(factored.dense(q.device), unlimited.dense(q.device), atol=1e-12, rtol=0)
    clamped = made(clamp_len=3).bias(q, k, WHERE["memory"])
    assert isinstance(clamped, QueryRelative)
    assert clamped.table.shape == (4, 7, 6)


@pytest.mark.parametrize(("kind", "causal"), [("bi", False), ("uni", True)])
@pytest.mark.parametrize("clamp_len", [-1, 4])
@pytest.mark.parametrize("memory", [0, 11])
def test_it_is_xlnet(memory, clamp_len, kind, causal):
    xlnet = import_module("transformers.models.xlnet.modeling_xlnet")
    config = transformers.XLNetConfig(
        d_model=24, n_head=3, d_inner=8, n_layer=1, vocab_size=5, attn_type=kind, dropout=0.0, clamp_len=clamp_len
    )
    module = xlnet.XLNetRelativeAttention(config).double().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    h, mems = (torch.randn(n, 2, 24, dtype=torch.float64) for n in (13, memory))
    keys = 13 + memory
    r = xlnet.XLNetModel(config).relative_positional_encoding(13, keys, bsz=2).double()
    assert len(r) == keys + (13 if kind == "bi" else 1)
    hidden = torch.ones(13, keys, dtype=torch.float64).triu(1 + memory)[:, :, None, None] if causal else None
    theirs = module(h, None, hidden, None, r, None, mems=mems)[0]
    encoding = XLNet(24, num_heads=3, head_dim=8, clamp_len=None if clamp_len < 0 else clamp_len).double()
    encoding.u.data[0], encoding.v.data[0] = module.r_w_bias.data, module.r_r_bias.data
    encoding.projection.weight.data[0] = module.r.data.permute(1, 2, 0)
    together = torch.cat((mems, h))
    q, k, v = (
        torch.einsum("nbd,dhe->bhne", x, w) for x, w in ((h, module.q), (together, module.k), (together, module.v))
    )
    positions = Positions.arange(13, memory, causal=causal)
    y = posenc.attention(q, k, v, encoding, positions)
    assert_close(module.post_attention(h, y.permute(2, 0, 1, 3)), theirs, **FLOAT32_ANGLES)
    other = XLNet(24, num_heads=3, head_dim=8, layout="interleaved", clamp_len=encoding.clamp_len).double()
    other.load_state_dict(encoding.state_dict())
    wrong = module.post_attention(h, posenc.attention(q, k, v, other, positions).permute(2, 0, 1, 3))
    assert (wrong - theirs).abs().max() > 1e-2, "the other layout gives other values"


@pytest.mark.parametrize("length", [1, 50])
@pytest.mark.parametrize(("source", "kv_heads"), [("wav2vec2_conformer", 4), ("parakeet", 4), ("parakeet", 2)])
def test_conformers_have_it_interleaved(source, kv_heads, length):
    modeling = import_module(f"transformers.models.{source}.modeling_{source}")
    x = torch.randn(2, length, 24, dtype=torch.float64)
    if source == "parakeet":
        config = transformers.ParakeetEncoderConfig(
            hidden_size=24, num_attention_heads=4, num_key_value_heads=kv_heads, attn_implementation="eager"
        )
        # the config has no argument for it
        config.num_key_value_heads = kv_heads
        module = modeling.ParakeetEncoderAttention(config, 0)
        names = ["q_proj", "k_proj", "v_proj", "o_proj", "relative_k_proj", "bias_u", "bias_v"]
        r = modeling.ParakeetEncoderRelPositionalEncoding(config)(x)
    else:
        config = transformers.Wav2Vec2ConformerConfig(
            hidden_size=24, num_attention_heads=4, position_embeddings_type="relative", attn_implementation="eager",
            max_source_positions=60,
        )  # fmt: skip
        module = modeling.Wav2Vec2ConformerSelfAttention(config)
        names = ["linear_q", "linear_k", "linear_v", "linear_out", "linear_pos", "pos_bias_u", "pos_bias_v"]
        r = modeling.Wav2Vec2ConformerRelPositionalEmbedding(config)(x).double()
    module = module.double().eval()
    for name in names[-2:]:
        torch.nn.init.normal_(getattr(module, name))
    theirs = module(x, r)[0] if source == "parakeet" else module(x, relative_position_embeddings=r)[0]
    query, key, value, out, linear, u, bias = (getattr(module, name) for name in names)
    encoding = TransformerXL(24, num_heads=4, head_dim=6, layout="interleaved").double()
    encoding.u.data[0], encoding.v.data[0] = u.data, bias.data
    encoding.projection.weight.data[0] = linear.weight.data.view(4, 6, 24)
    q, k, v = (p(x).unflatten(-1, (-1, 6)).transpose(1, 2) for p in (query, key, value))
    assert k.shape[1] == kv_heads
    y = posenc.attention(q, k, v, encoding)
    assert_close(out(y.transpose(1, 2).flatten(2)), theirs, **FLOAT32_ANGLES)


@pytest.mark.parametrize(
    ("clamp_len", "positions"),
    [(None, WHERE["memory"]), (None, FRACTIONAL), (2, WHERE["memory"]), (2, WHERE["per row"])],
)
def test_gradients(clamp_len, positions):
    encoding = made(clamp_len=clamp_len)
    q, k, v = (x.requires_grad_() for x in qkv(positions, 4, 2, 6))
    inputs = (q, k, v, *encoding.parameters())
    assert torch.autograd.gradcheck(lambda *_: posenc.attention(q, k, v, encoding, positions), inputs, fast_mode=True)


def test_parameters_per_layer():
    shapes = {n: tuple(p.shape) for n, p in TransformerXL(8, num_heads=2, head_dim=4, num_layers=3).named_parameters()}
    assert shapes == {
        "u": (1, 2, 4),
        "v": (1, 2, 4),
        "projection.weight": (3, 2, 4, 8),
    }  # one pair in the authors' code
    assert XLNet(8, num_heads=2, head_dim=4, num_layers=3).u.shape == (3, 2, 4)  # untie_r of the released models


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 7}, "dim=7"),
        ({"clamp_len": 0}, "clamp_len=0"),
        ({"layout": "half"}, "unknown layout 'half'"),
        ({"base": -1.0}, "base=-1.0"),
        ({"num_heads": 0}, "num_heads=0"),
        ({"init_std": -0.1}, "init_std=-0.1"),
    ],
)
def test_arguments_that_are_refused(options, message):
    for cls in (TransformerXL, XLNet):
        with pytest.raises(posenc.InputError, match=message):
            cls(**{"dim": 8, "num_heads": 2, "head_dim": 4} | options)


def test_calls_that_are_refused():
    encoding, x = TransformerXL(8, num_heads=2, head_dim=4, num_layers=2), torch.randn(1, 2, 5, 4)
    with pytest.raises(posenc.InputError, match="q with 1 heads"):
        posenc.attention(x[:, :1], x[:, :1], x[:, :1], encoding)
    with pytest.raises(posenc.InputError, match="integer positions only"):
        posenc.attention(x, x, x, TransformerXL(8, num_heads=2, head_dim=4, clamp_len=3), FRACTIONAL)
