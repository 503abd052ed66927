"""Parity with implementations that are not ours: transformers' models and rotary-embedding-torch, weights copied over.

Where the other side works in float64 the tolerance is EXACT. Several of them compute angles in float32 whatever the
input: those are met at a rope_theta whose frequencies float32 holds exactly, or within the angle error of float32.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import posenc
from posenc import Positions, functional

transformers = pytest.importorskip("transformers")

from transformers import DynamicCache  # noqa: E402
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402
from transformers.models.bert import modeling_bert as bert  # noqa: E402
from transformers.models.bloom import modeling_bloom as bloom  # noqa: E402
from transformers.models.glm import modeling_glm as glm  # noqa: E402
from transformers.models.gpt_neox import modeling_gpt_neox as neox  # noqa: E402
from transformers.models.gptj import modeling_gptj as gptj  # noqa: E402
from transformers.models.llama import modeling_llama as llama  # noqa: E402
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding  # noqa: E402
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding  # noqa: E402
from transformers.models.mpnet import modeling_mpnet as mpnet  # noqa: E402
from transformers.models.mpt import modeling_mpt as mpt  # noqa: E402
from transformers.models.roformer import modeling_roformer as roformer  # noqa: E402
from transformers.models.t5.modeling_t5 import T5Attention  # noqa: E402
from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as conformer  # noqa: E402
from transformers.models.whisper.modeling_whisper import sinusoids  # noqa: E402
from transformers.models.xlm.modeling_xlm import create_sinusoidal_embeddings  # noqa: E402

EXACT = {"rtol": 1e-10, "atol": 1e-12}
FLOAT32 = {"rtol": 1e-5, "atol": 2e-6}
HEADS = [1, 2, 3, 5, 8, 12, 16, 20]
BUCKETS = [(32, 128), (64, 256), (8, 20)]
BACKENDS = ["auto", "reference"]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def _float64_default():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def split(x: Tensor, head_dim: int) -> Tensor:
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(-2)


def blocked(queries: int, keys: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)


def angle_error(positions: Tensor) -> dict[str, float]:
    # frequencies rounded to float32 put an angle off by about position * 2^-23; vectors here have entries below 5
    return {"rtol": 0, "atol": 1e-6 + 5 * float(positions.max()) * 2**-23}


# ---------------------------------------------------------------- T5


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), BUCKETS)
def test_t5_buckets(num_buckets, max_distance, bidirectional):
    distances = torch.arange(-600, 601)
    ours = functional.t5_bucket(distances, bidirectional, num_buckets, max_distance)
    theirs = T5Attention._relative_position_bucket(distances, bidirectional, num_buckets, max_distance)
    assert torch.equal(ours, theirs)
    per_side = num_buckets // 2 if bidirectional else num_buckets
    assert ours.unique().numel() == num_buckets - bidirectional, "T5 leaves one bidirectional bucket empty"
    assert int(ours[0]) == per_side - 1


def t5_pair(bidirectional: bool, num_buckets: int = 32, max_distance: int = 128) -> tuple[T5Attention, posenc.T5]:
    config = transformers.T5Config(
        d_model=40, d_kv=8, num_heads=6, relative_attention_num_buckets=num_buckets, is_decoder=not bidirectional,
        relative_attention_max_distance=max_distance, dropout_rate=0.0, attn_implementation="eager",
    )  # fmt: skip
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    ours = posenc.T5(6, bidirectional, num_buckets, max_distance).double()
    ours.table.data.copy_(theirs.relative_attention_bias.weight.T)
    return theirs, ours


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), BUCKETS)
@pytest.mark.parametrize(("new", "cached"), [(300, 0), (7, 293), (1, 299)])
def test_t5_bias(new, cached, num_buckets, max_distance, bidirectional):
    module, encoding = t5_pair(bidirectional, num_buckets, max_distance)
    q, k = (torch.zeros(1, 6, n, 8, dtype=torch.float64) for n in (new, new + cached))
    ours = encoding.bias(q, k, Positions.arange(new, cached)).dense(q.device)
    assert_close(ours, module.compute_bias(new, new + cached, past_seen_tokens=cached), rtol=0, atol=0)
    if new > 1:
        other = posenc.T5(6, not bidirectional, num_buckets, max_distance).double()
        other.load_state_dict(encoding.state_dict())
        assert (other.bias(q, k, Positions.arange(new, cached)).dense(q.device) - ours).abs().max() > 0.1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20)])
def test_t5_attention_and_the_gradient_of_its_table(num_buckets, max_distance, bidirectional, backend):
    module, encoding = t5_pair(bidirectional, num_buckets, max_distance)
    x = torch.randn(2, 300, 40, dtype=torch.float64)
    mask = None if bidirectional else torch.zeros(300, 300, dtype=x.dtype).masked_fill(blocked(300, 300), -torch.inf)
    theirs = module(x, mask=mask)[0]
    q, k, v = (split(p(x), 8) for p in (module.q, module.k, module.v))
    ours = module.o(merge(posenc.attention(q, k, v, encoding, causal=not bidirectional, backend=backend)))
    assert_close(ours, theirs, **EXACT)
    weight = torch.randn_like(ours)
    (wanted,) = torch.autograd.grad((theirs * weight).sum(), module.relative_attention_bias.weight)
    (found,) = torch.autograd.grad((ours * weight).sum(), encoding.table)
    assert_close(found.T, wanted, **EXACT)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("new", [1, 9])
def test_t5_decoding_with_a_cache(new, backend):
    module, encoding = t5_pair(bidirectional=False)
    x, cached = torch.randn(2, 200 + new, 40, dtype=torch.float64), 200
    cache = DynamicCache()
    module(x[:, :cached], past_key_values=cache)
    mask = torch.zeros(new, cached + new, dtype=x.dtype).masked_fill(blocked(new, cached + new), -torch.inf)
    theirs = module(x[:, cached:], mask=mask, past_key_values=cache)[0]
    q, k, v = split(module.q(x[:, cached:]), 8), split(module.k(x), 8), split(module.v(x), 8)
    positions = Positions.arange(new, cached, causal=True)
    assert_close(module.o(merge(posenc.attention(q, k, v, encoding, positions, backend=backend))), theirs, **EXACT)


def test_t5_scaled_is_mpnet():
    config = transformers.MPNetConfig(hidden_size=36, num_attention_heads=3, num_hidden_layers=1)
    encoder = mpnet.MPNetEncoder(config).double().eval()
    module = encoder.layer[0].attention.attn
    encoding = posenc.T5(3, scaled=True).double()
    encoding.table.data.copy_(encoder.relative_attention_bias.weight.T)
    x = torch.randn(1, 200, 36, dtype=torch.float64)
    q, k, v = (split(p(x), 12) for p in (module.q, module.k, module.v))
    theirs = module(x, position_bias=encoder.compute_position_bias(x))[0]
    assert_close(module.o(merge(posenc.attention(q, k, v, encoding))), theirs, **EXACT)


# ---------------------------------------------------------------- ALiBi


@pytest.mark.parametrize("num_heads", HEADS)
def test_alibi_slopes_of_bloom_and_mpt(num_heads):
    ours = functional.alibi_slopes(num_heads)
    of_bloom = bloom.build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)[:, 0, 1]
    assert_close(ours, of_bloom.double(), rtol=1e-6, atol=0)
    assert_close(ours, -mpt.build_mpt_alibi_tensor(num_heads, 2)[:, 0, 0].double(), rtol=1e-6, atol=0)
    if num_heads & (num_heads - 1):
        plain = 2.0 ** (-8.0 * torch.arange(1, num_heads + 1) / num_heads)
        assert (ours / plain - 1).abs().max() > 0.1, "another number of heads has other slopes than the plain series"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("num_heads", HEADS)
def test_alibi_attention_of_bloom(num_heads, padded, backend):
    config = transformers.BloomConfig(hidden_size=8 * num_heads, n_head=num_heads, hidden_dropout=0.0)
    module = bloom.BloomAttention(config, layer_idx=0).eval()
    x, mask = torch.randn(2, 90, 8 * num_heads), torch.ones(2, 90, dtype=torch.long)
    mask[1, : 31 * padded] = 0
    alibi = bloom.build_alibi_tensor(mask, num_heads, torch.float32)
    seen = ~blocked(90, 90) & mask.bool()[:, None, None]
    additive = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    theirs = module(x, torch.zeros_like(x), alibi, additive)[0]
    q, k, v = module._reshape(module.query_key_value(x))
    positions = Positions.from_mask(mask) if padded else None
    encoding = posenc.ALiBi(num_heads)
    ours = module.dense(merge(posenc.attention(q, k, v, encoding, positions, causal=True, backend=backend)))
    assert_close(ours[mask.bool()], theirs[mask.bool()], rtol=0, atol=1e-5)


@pytest.mark.parametrize("num_heads", HEADS)
@pytest.mark.parametrize(("new", "cached"), [(120, 0), (5, 115)])
def test_alibi_attention_of_mpt(new, cached, num_heads):
    module = mpt.MptAttention(transformers.MptConfig(d_model=8 * num_heads, n_heads=num_heads), layer_idx=0).eval()
    total, x = new + cached, torch.randn(2, new + cached, 8 * num_heads)
    bias, cache = mpt.build_mpt_alibi_tensor(num_heads, total), DynamicCache()
    if cached:
        module(x[:, :cached], bias, cache)
    theirs = module(x[:, cached:], bias, cache, blocked(new, total))[0]
    q, k, v = (split(part, 8) for part in module.Wqkv(x).chunk(3, -1))
    positions = Positions.arange(new, cached, causal=True)
    ours = module.out_proj(merge(posenc.attention(q[:, :, cached:], k, v, posenc.ALiBi(num_heads), positions)))
    assert_close(ours, theirs, rtol=0, atol=1e-5)


# ---------------------------------------------------------------- rotary

EXACT_THETA = 65536.0  # with head_dim 32 the frequencies are the powers 2^-c


def llama_config(rope_theta: float = EXACT_THETA, **rope):
    return transformers.LlamaConfig(
        vocab_size=50, hidden_size=96, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, attn_implementation="sdpa",
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta, **rope},
    )  # fmt: skip


IDS = {
    "from 0": torch.arange(200)[None],
    "offset": torch.arange(3000, 3200)[None],
    "packed": torch.cat([torch.arange(n) for n in (70, 1, 129)])[None],
    "per row": torch.stack((torch.arange(200), torch.randint(0, 4000, (200,)))),
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
@pytest.mark.parametrize("rope_theta", [EXACT_THETA, 10000.0, 500000.0, 100.0])
def test_rotary_half_is_llama(rope_theta, ids):
    q, k = torch.randn(2, 6, 200, 32, dtype=torch.float64), torch.randn(2, 2, 200, 32, dtype=torch.float64)
    cos, sin = llama.LlamaRotaryEmbedding(llama_config(rope_theta))(q, ids)
    theirs = llama.apply_rotary_pos_emb(q, k, cos, sin)
    tables = cos[:, None, :, :16], sin[:, None, :, :16]
    assert_close(tuple(functional.rotary(x, *tables) for x in (q, k)), theirs, **EXACT)
    ours = posenc.Rotary(32, rope_theta).rotate(q, k, Positions.from_ids(ids))
    assert_close(ours, theirs, **(FLOAT32 if rope_theta == EXACT_THETA else angle_error(ids)))
    wrong = posenc.Rotary(32, rope_theta, layout="interleaved").rotate(q, k, Positions.from_ids(ids))
    assert (wrong[0] - theirs[0]).abs().max() > 1, "the other layout is told apart"


def test_rotary_interleaved_is_gptj(_float64_default):
    q, table = torch.randn(2, 150, 3, 24), gptj.create_sinusoidal_positions(4000, 24)
    ids = torch.stack((torch.arange(150), torch.arange(3850, 4000)))
    sin, cos = table[ids].chunk(2, -1)
    theirs = gptj.apply_rotary_pos_emb(q, sin, cos).transpose(1, 2)
    encoding, positions = posenc.Rotary(24, layout="interleaved"), Positions.from_ids(ids)
    assert_close(encoding.rotate(q.transpose(1, 2), q.transpose(1, 2), positions), (theirs, theirs), **EXACT)
    wrong = posenc.Rotary(24).rotate(q.transpose(1, 2), q.transpose(1, 2), positions)[0]
    assert (wrong - theirs).abs().max() > 1, "the other layout is told apart"


@pytest.mark.parametrize("offset", [0, 2500])
def test_rotary_interleaved_is_roformer(offset):
    embedding = roformer.RoFormerSinusoidalPositionalEmbedding(3000, 20)
    embedding.weight.data.copy_(embedding.create_weight())
    q, k = torch.randn(2, 2, 5, 300, 20)
    sinusoidal = embedding((2, 300), offset)[None, None]
    theirs = roformer.RoFormerSelfAttention.apply_rotary_position_embeddings(sinusoidal, q, k)
    ours = posenc.Rotary(20, layout="interleaved").rotate(q, k, Positions.from_ids(torch.arange(300) + offset))
    assert_close(ours, theirs, **FLOAT32)


@pytest.mark.parametrize("fraction", [0.25, 0.5])
@pytest.mark.parametrize(
    ("module", "rotation", "config", "layout"),
    [
        (neox, neox.GPTNeoXRotaryEmbedding, transformers.GPTNeoXConfig, "half"),
        (glm, glm.GlmRotaryEmbedding, transformers.GlmConfig, "interleaved"),
    ],
    ids=["gpt_neox", "glm"],
)
def test_partial_rotary(module, rotation, config, layout, fraction):
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": fraction}
    sizes = {"hidden_size": 96, "num_attention_heads": 3, "head_dim": 32}
    q, k = torch.randn(2, 2, 3, 400, 32, dtype=torch.float64)
    ids = torch.arange(400)[None] + 100
    cos, sin = rotation(config(**sizes, rope_parameters=rope))(q, ids)
    theirs = module.apply_rotary_pos_emb(q, k, cos, sin)
    encoding = posenc.Rotary(32, layout=layout, rotary_dim=int(32 * fraction))
    assert_close(encoding.rotate(q, k, Positions.from_ids(ids)), theirs, **angle_error(ids))
    assert torch.equal(theirs[0][..., int(32 * fraction) :], q[..., int(32 * fraction) :])


@pytest.mark.parametrize("factor", [1.0, 2.0, 7.5])
@pytest.mark.parametrize("rope_theta", [10000.0, 500000.0])
@pytest.mark.parametrize("fraction", [1.0, 0.25])
def test_frequency_schedules(fraction, rope_theta, factor):
    rotary_dim = int(32 * fraction)
    ours = posenc.Rotary(32, rope_theta, rotary_dim=rotary_dim)
    options = {"rope_theta": rope_theta, "partial_rotary_factor": fraction}
    linear, _ = ROPE_INIT_FUNCTIONS["linear"](llama_config(**options, rope_type="linear", factor=factor))
    assert_close(ours.with_schedule("linear", factor=factor).inv_freq.float(), linear, rtol=2e-6, atol=0)
    ntk = ours.with_schedule("ntk", factor=factor).inv_freq.float()
    # dynamic NTK with a factor of 1 scales by the sequence's length over the trained one
    dynamic = llama_config(**options, rope_type="dynamic", factor=1.0)
    assert_close(ntk, ROPE_INIT_FUNCTIONS["dynamic"](dynamic, seq_len=int(512 * factor))[0], rtol=2e-6, atol=0)
    scaled = rope_theta * factor ** (rotary_dim / (rotary_dim - 2))
    default = neox.GPTNeoXRotaryEmbedding.compute_default_rope_parameters(llama_config(**options | {"rope_theta": scaled}))
    assert_close(ntk, default[0], rtol=2e-6, atol=0)
    assert factor == 1 or (ntk[1:-1] / linear[1:-1] > 1.1).all(), "the two schedules differ between their ends"


@pytest.mark.parametrize(
    ("options", "schedule"),
    [
        ({}, {"name": "default"}),
        ({"interpolate_factor": 4.0}, {"name": "linear", "factor": 4}),
        ({"theta_rescale_factor": 4.0}, {"name": "ntk", "factor": 4}),
    ],
)
@pytest.mark.parametrize(("new", "cached"), [(150, 0), (6, 300)])
def test_rotary_embedding_torch(new, cached, options, schedule):
    theirs = pytest.importorskip("rotary_embedding_torch").RotaryEmbedding(24, theta=5000, **options)
    q, k = torch.randn(2, 3, new, 40), torch.randn(2, 3, new + cached, 40)
    ours = posenc.Rotary(40, 5000.0, layout="interleaved", rotary_dim=24, schedule=schedule)
    positions = Positions.arange(new, cached)
    expected = theirs.rotate_queries_with_cached_keys(q, k)
    assert_close(ours.rotate(q, k, positions), expected, **angle_error(positions.k))


def recorded(module: nn.Module, model: nn.Module, *args, **kwargs) -> tuple[Tensor, Tensor]:
    calls: list[tuple[Tensor, Tensor]] = []
    note = lambda _, args, given, out: calls.append((given["hidden_states"], out[0]))  # noqa: E731
    with module.register_forward_hook(note, with_kwargs=True):
        model(*args, **kwargs)
    return calls[0]


def llama_attention(module, x, new, positions, backend):
    q, k, v = (split(p(x), 32) for p in (module.q_proj, module.k_proj, module.v_proj))
    encoding = posenc.Rotary(32, EXACT_THETA)
    y = posenc.attention(q[:, :, -new:], k, v, encoding, positions, causal=True, backend=backend)
    return module.o_proj(merge(y))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch", ["plain", "left padded", "packed"])
def test_llama_model_with_grouped_queries(batch, backend):
    model = transformers.LlamaModel(llama_config()).double().eval()
    module, ids, mask = model.layers[1].self_attn, torch.randint(0, 50, (2, 200)), torch.ones(2, 200, dtype=torch.long)
    positions, options = Positions.arange(200), {}
    if batch == "left padded":
        mask[1, :63] = 0
        positions, options = Positions.from_mask(mask), {"attention_mask": mask}
    if batch == "packed":
        positions = Positions.packed([70, 1, 129])
        options = {"position_ids": IDS["packed"].expand(2, -1)}
    x, theirs = recorded(module, model, ids, use_cache=False, **options)
    ours = llama_attention(module, x, 200, positions, backend)
    assert_close(ours[mask.bool()], theirs[mask.bool()], **FLOAT32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("new", [1, 6])
def test_llama_decoding_with_a_cache(new, backend):
    model = transformers.LlamaModel(llama_config()).double().eval()
    module, ids, cache = model.layers[1].self_attn, torch.randint(0, 50, (2, 150)), DynamicCache()
    x, _ = recorded(module, model, ids, use_cache=False)
    model(ids[:, :-new], past_key_values=cache)
    _, theirs = recorded(module, model, ids[:, -new:], past_key_values=cache)
    ours = llama_attention(module, x, new, Positions.arange(new, 150 - new), backend)
    assert_close(ours, theirs, **FLOAT32)


# ---------------------------------------------------------------- absolute


def table_of(name: str, rows: int, dim: int) -> Tensor:
    if name == "xlm":
        return create_sinusoidal_embeddings(rows, dim, torch.empty(rows, dim))
    cls = {"marian": MarianSinusoidalPositionalEmbedding, "roformer": roformer.RoFormerSinusoidalPositionalEmbedding}
    return cls[name](rows, dim).create_weight()


@pytest.mark.parametrize("dim", [6, 32])
@pytest.mark.parametrize(("name", "layout"), [("xlm", "interleaved"), ("marian", "concat"), ("roformer", "concat")])
def test_sinusoidal_tables_computed_in_float64(name, layout, dim):
    theirs, x = table_of(name, 3000, dim), torch.randn(2, 500, dim)
    assert_close(functional.sinusoidal(torch.arange(3000), dim, layout=layout), theirs, rtol=0, atol=1e-7)
    ours = posenc.Sinusoidal(dim, layout=layout).embed(x, Positions.arange(500, 2500))
    assert_close(ours, x + theirs[2500:], rtol=0, atol=1e-6)
    other = "concat" if layout == "interleaved" else "interleaved"
    wrong = functional.sinusoidal(torch.arange(3000), dim, layout=other)
    assert (wrong - theirs).abs().max() > 1, "the other layout is told apart"


@pytest.mark.parametrize(("dim", "base"), [(8, 10000.0), (64, 10000.0), (64, 500.0)])
def test_sinusoidal_up_to_the_endpoint_is_whisper(dim, base, _float64_default):
    ours = functional.sinusoidal(torch.arange(3000), dim, base, "concat", endpoint=True)
    assert_close(ours, sinusoids(3000, dim, base), **EXACT)
    assert (functional.sinusoidal(torch.arange(3000), dim, base, "concat") - ours).abs().max() > 1


def test_sinusoidal_up_to_the_endpoint_is_m2m100():
    ours = functional.sinusoidal(torch.arange(1000), 64, layout="concat", endpoint=True)
    theirs = M2M100SinusoidalPositionalEmbedding.get_embedding(1000, 64)
    assert_close(ours, theirs, **angle_error(torch.tensor(1000)))


def test_sinusoidal_of_negative_distances_is_wav2vec2_conformer():
    config = transformers.Wav2Vec2ConformerConfig(hidden_size=48, max_source_positions=600)
    theirs = conformer.Wav2Vec2ConformerRelPositionalEmbedding(config)(torch.zeros(1, 600, 48))[0]
    ours = functional.sinusoidal(torch.arange(599, -600, -1), 48)
    assert_close(ours, theirs, **angle_error(torch.tensor(599)))


@pytest.mark.parametrize(("new", "offset"), [(64, 0), (10, 54)])
def test_learned_is_bert(new, offset):
    config = transformers.BertConfig(vocab_size=30, hidden_size=24, num_attention_heads=2, max_position_embeddings=64)
    module = bert.BertEmbeddings(config).double().eval()
    module.LayerNorm = nn.Identity()
    encoding, ids = posenc.Learned(64, 24).double(), torch.randint(0, 30, (2, new))
    encoding.table.data.copy_(module.position_embeddings.weight)
    x = module.word_embeddings(ids) + module.token_type_embeddings.weight[0]
    ours = encoding.embed(x, Positions.arange(new, offset))
    assert_close(ours, module(ids, past_key_values_length=offset), **EXACT)


@pytest.mark.parametrize("padded", [False, True])
def test_learned_is_gpt2(padded):
    config = transformers.GPT2Config(vocab_size=30, n_embd=24, n_head=2, n_layer=0, n_positions=64)
    model = transformers.GPT2Model(config).double().eval()
    model.ln_f = nn.Identity()
    encoding = posenc.Learned(64, 24).double()
    encoding.table.data.copy_(model.wpe.weight)
    ids, mask = torch.randint(0, 30, (2, 64)), torch.ones(2, 64, dtype=torch.long)
    mask[1, : 20 * padded] = 0
    position_ids = (mask.cumsum(1) - 1).clamp(min=0) if padded else None
    positions = Positions.from_mask(mask) if padded else Positions.arange(64)
    theirs = model(ids, position_ids=position_ids).last_hidden_state
    assert_close(encoding.embed(model.wte(ids), positions), theirs, **EXACT)
    with pytest.raises(IndexError):
        model(torch.zeros(1, 65, dtype=torch.long))
    with pytest.raises(posenc.InputError, match="outside the table of 64"):
        encoding.embed(torch.zeros(1, 65, 24), Positions.arange(65))
