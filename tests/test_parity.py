"""Parity with implementations that are not ours: transformers' models and rotary-embedding-torch, weights copied over.

Where the other side works in float64 the tolerance is EXACT. Several of them compute angles in float32 whatever the
input: those are met at a rope_theta whose frequencies float32 holds exactly, or within the angle error of float32.
"""

from importlib import import_module

import pytest
import torch
import transformers
from rotary_embedding_torch import RotaryEmbedding
from torch import Tensor, nn
from torch.testing import assert_close

import posenc
from posenc import Positions, functional
from references.calls import merge, split

bloom, glm, gpt_neox, gptj, llama, marian, mpnet, mpt, roformer, t5, wav2vec2_conformer, whisper, xlm = (
    import_module(f"transformers.models.{name}.modeling_{name}")
    for name in [
        "bloom", "glm", "gpt_neox", "gptj", "llama", "marian", "mpnet", "mpt", "roformer", "t5",
        "wav2vec2_conformer", "whisper", "xlm",
    ]
)  # fmt: skip

EXACT = {"rtol": 1e-10, "atol": 1e-11}
FLOAT32 = {"rtol": 1e-5, "atol": 2e-6}
HEADS = [1, 2, 3, 5, 8, 12, 16, 20]
BUCKETS = [(32, 128), (64, 256), (8, 20)]
BACKENDS = ["auto", "reference"]


@pytest.fixture
def _float64_default():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def hidden(queries: int, keys: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)


def angle_error(ids: Tensor) -> dict[str, float]:
    # frequencies rounded to float32 put an angle off by about position * 2^-23; entries of the vectors are below 5
    return {"rtol": 0, "atol": 1e-6 + 5 * float(ids.max()) * 2**-23}


def t5_pair(bidirectional: bool, num_buckets: int, max_distance: int) -> tuple[nn.Module, posenc.T5]:
    config = transformers.T5Config(
        d_model=40, d_kv=8, num_heads=6, relative_attention_num_buckets=num_buckets, is_decoder=not bidirectional,
        relative_attention_max_distance=max_distance, attn_implementation="eager",
    )  # fmt: skip
    theirs = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double().eval()
    ours = posenc.T5(6, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance).double()
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20)])
@pytest.mark.parametrize(("new", "cached"), [(300, 0), (9, 200), (1, 200)])
def test_t5_attention_and_the_gradient_of_its_table(new, cached, num_buckets, max_distance, bidirectional, backend):
    module, encoding = t5_pair(bidirectional, num_buckets, max_distance)
    x, cache = torch.randn(2, cached + new, 40, dtype=torch.float64), transformers.DynamicCache()
    if cached:
        module(x[:, :cached], past_key_values=cache)
    mask = torch.zeros(new, cached + new, dtype=x.dtype)
    mask = None if bidirectional else mask.masked_fill(hidden(*mask.shape), -torch.inf)
    theirs = module(x[:, cached:], mask=mask, past_key_values=cache)[0]
    q, k, v = split(module.q(x[:, cached:]), 8), split(module.k(x), 8), split(module.v(x), 8)
    positions = Positions.arange(new, cached, causal=not bidirectional)
    ours = module.o(merge(posenc.attention(q, k, v, encoding, positions, backend=backend)))
    assert_close(ours, theirs, **EXACT)
    weight = torch.randn_like(ours)
    (wanted,) = torch.autograd.grad((theirs * weight).sum(), module.relative_attention_bias.weight)
    (actual,) = torch.autograd.grad((ours * weight).sum(), encoding.table)
    assert_close(actual.T, wanted, **EXACT)


def test_t5_scaled_is_mpnet():
    config = transformers.MPNetConfig(hidden_size=36, num_attention_heads=3, num_hidden_layers=1)
    encoder = mpnet.MPNetEncoder(config).double().eval()
    module, encoding = encoder.layer[0].attention.attn, posenc.T5(3, scaled=True).double()
    encoding.table.data.copy_(encoder.relative_attention_bias.weight.T)
    x = torch.randn(1, 200, 36, dtype=torch.float64)
    q, k, v = (split(p(x), 12) for p in (module.q, module.k, module.v))
    theirs = module(x, position_bias=encoder.compute_position_bias(x))[0]
    assert_close(module.o(merge(posenc.attention(q, k, v, encoding))), theirs, **EXACT)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("padding", [0, 31])
@pytest.mark.parametrize("num_heads", HEADS)
def test_alibi_attention_is_bloom(num_heads, padding, backend):
    config = transformers.BloomConfig(hidden_size=8 * num_heads, n_head=num_heads, hidden_dropout=0.0)
    module = bloom.BloomAttention(config, layer_idx=0).eval()
    x, mask = torch.randn(2, 90, 8 * num_heads), torch.ones(2, 90, dtype=torch.long)
    mask[1, :padding] = 0
    unseen = hidden(90, 90) | ~mask.bool()[:, None, None]
    additive = torch.zeros(unseen.shape).masked_fill(unseen, torch.finfo(torch.float32).min)
    alibi = bloom.build_alibi_tensor(mask, num_heads, torch.float32)
    theirs = module(x, torch.zeros_like(x), alibi, additive)[0]
    q, k, v = module._reshape(module.query_key_value(x))
    positions = Positions.from_mask(mask, causal=True) if padding else Positions.arange(90, causal=True)
    ours = module.dense(merge(posenc.attention(q, k, v, posenc.ALiBi(num_heads), positions, backend=backend)))
    assert_close(ours[mask.bool()], theirs[mask.bool()], rtol=0, atol=1e-5)


@pytest.mark.parametrize("num_heads", HEADS)
@pytest.mark.parametrize(("new", "cached"), [(120, 0), (5, 115)])
def test_alibi_attention_is_mpt(new, cached, num_heads):
    module = mpt.MptAttention(transformers.MptConfig(d_model=8 * num_heads, n_heads=num_heads), layer_idx=0).eval()
    x, cache = torch.randn(2, new + cached, 8 * num_heads), transformers.DynamicCache()
    bias = mpt.build_mpt_alibi_tensor(num_heads, new + cached)
    if cached:
        module(x[:, :cached], bias, cache)
    theirs = module(x[:, cached:], bias, cache, hidden(new, new + cached))[0]
    q, k, v = (split(part, 8) for part in module.Wqkv(x).chunk(3, -1))
    positions = Positions.arange(new, cached, causal=True)
    ours = module.out_proj(merge(posenc.attention(q[:, :, cached:], k, v, posenc.ALiBi(num_heads), positions)))
    assert_close(ours, theirs, rtol=0, atol=1e-5)


EXACT_THETA = 65536.0  # with head_dim 32 the frequencies are the powers 2^-c
IDS = {
    "from 0": torch.arange(200)[None],
    "offset": torch.arange(3000, 3200)[None],
    "packed": torch.cat([torch.arange(n) for n in (70, 1, 129)])[None],
    "per row": torch.stack((torch.arange(200), torch.arange(200) * 37 % 4000)),
}


def llama_config(rope_theta: float = EXACT_THETA):
    return transformers.LlamaConfig(
        vocab_size=50, hidden_size=96, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, initializer_range=0.2,
        attn_implementation="sdpa", rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
    )  # fmt: skip


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
@pytest.mark.parametrize("rope_theta", [EXACT_THETA, 10000.0, 500000.0, 100.0])
def test_rotary_half_is_llama(rope_theta, ids):
    q, k = torch.randn(2, 6, 200, 32, dtype=torch.float64), torch.randn(2, 2, 200, 32, dtype=torch.float64)
    cos, sin = llama.LlamaRotaryEmbedding(llama_config(rope_theta))(q, ids)
    theirs = llama.apply_rotary_pos_emb(q, k, cos, sin)
    tables = cos[:, None, :, :16], sin[:, None, :, :16]
    assert_close(tuple(functional.rotary(x, *tables) for x in (q, k)), theirs, **EXACT)
    ours = posenc.Rotary(32, rope_theta=rope_theta).rotate(q, k, Positions.from_ids(ids))
    assert_close(ours, theirs, **(FLOAT32 if rope_theta == EXACT_THETA else angle_error(ids)))
    wrong = posenc.Rotary(32, rope_theta=rope_theta, layout="interleaved").rotate(q, k, Positions.from_ids(ids))
    assert (wrong[0] - theirs[0]).abs().max() > 1, "the other layout gives other values"


@pytest.mark.usefixtures("_float64_default")
def test_rotary_interleaved_is_gptj():
    q, k = torch.randn(2, 2, 150, 3, 24)
    ids = torch.stack((torch.arange(150), torch.arange(3850, 4000)))
    sin, cos = gptj.create_sinusoidal_positions(4000, 24)[ids].chunk(2, -1)
    theirs = tuple(gptj.apply_rotary_pos_emb(x, sin, cos).transpose(1, 2) for x in (q, k))
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    assert_close(posenc.Rotary(24, layout="interleaved").rotate(q, k, Positions.from_ids(ids)), theirs, **EXACT)
    wrong = posenc.Rotary(24).rotate(q, k, Positions.from_ids(ids))
    assert (wrong[0] - theirs[0]).abs().max() > 1, "the other layout gives other values"


@pytest.mark.parametrize("fraction", [0.25, 0.5])
@pytest.mark.parametrize(("model", "layout"), [("GPTNeoX", "half"), ("Glm", "interleaved")])
def test_partial_rotary(model, layout, fraction):
    module, width = {"GPTNeoX": gpt_neox, "Glm": glm}[model], int(32 * fraction)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": fraction}
    shape = {"hidden_size": 96, "num_attention_heads": 3, "head_dim": 32}
    config = getattr(transformers, f"{model}Config")(**shape, rope_parameters=rope)
    q, k = torch.randn(2, 2, 3, 400, 32, dtype=torch.float64)
    ids = torch.arange(100, 500)[None]
    theirs = module.apply_rotary_pos_emb(q, k, *getattr(module, f"{model}RotaryEmbedding")(config)(q, ids))
    ours = posenc.Rotary(32, layout=layout, rotary_dim=width).rotate(q, k, Positions.from_ids(ids))
    assert_close(ours, theirs, **angle_error(ids))
    assert torch.equal(ours[0][..., width:], q[..., width:])


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize(("schedule", "option"), [("linear", "interpolate_factor"), ("ntk", "theta_rescale_factor")])
@pytest.mark.parametrize(("new", "cached"), [(150, 0), (6, 300)])
def test_rotary_interleaved_is_rotary_embedding_torch(new, cached, schedule, option, factor):
    q, k = torch.randn(2, 3, new, 40), torch.randn(2, 3, new + cached, 40)
    theirs = RotaryEmbedding(24, theta=5000, **{option: factor}).rotate_queries_with_cached_keys(q, k)
    rotary, positions = (
        posenc.Rotary(40, rope_theta=5000.0, layout="interleaved", rotary_dim=24),
        Positions.arange(new, cached),
    )
    rotary = rotary.with_schedule(schedule, factor=factor)
    assert_close(rotary.rotate(q, k, positions), theirs, **angle_error(positions.k))


MASK = torch.arange(200) >= torch.tensor([[0], [63]])
LLAMA_CALLS = {
    "plain": (Positions.arange(200), {}),
    "packed": (Positions.packed([70, 1, 129]), {"position_ids": IDS["packed"].expand(2, -1)}),
    "left padded": (Positions.from_mask(MASK), {"attention_mask": MASK.long()}),
    "one cached step": (Positions.arange(1, 199), {}),
    "some cached steps": (Positions.arange(6, 194), {}),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("positions", "options"), LLAMA_CALLS.values(), ids=LLAMA_CALLS.keys())
def test_attention_inside_llama_with_grouped_queries(positions, options, backend):
    model = transformers.LlamaModel(llama_config()).double().eval()
    module, calls, ids = model.layers[1].self_attn, [], torch.randint(0, 50, (2, 200))
    module.register_forward_hook(lambda *call: calls.append((call[2]["hidden_states"], call[3][0])), with_kwargs=True)
    model(ids, use_cache=False, **options)
    (x, theirs), new = calls[0], positions.num_queries
    if new < 200:
        cache = model(ids[:, :-new], use_cache=True).past_key_values
        model(ids[:, -new:], past_key_values=cache)
        theirs = calls[-1][1]
    q, k, v = split(module.q_proj(x[:, -new:]), 32), split(module.k_proj(x), 32), split(module.v_proj(x), 32)
    rotary = posenc.Rotary(32, rope_theta=EXACT_THETA)
    ours = module.o_proj(merge(posenc.attention(q, k, v, rotary, positions, causal=True, backend=backend)))
    real = options.get("attention_mask", torch.ones(2, new)).bool()  # outputs of padded queries mean nothing
    assert_close(ours[real], theirs[real], **FLOAT32)


@pytest.mark.parametrize("dim", [6, 32])
@pytest.mark.parametrize(("source", "layout"), [("xlm", "interleaved"), ("Marian", "concat"), ("RoFormer", "concat")])
def test_sinusoidal_tables_that_are_computed_in_float64(source, layout, dim):
    if source == "xlm":
        theirs = xlm.create_sinusoidal_embeddings(3000, dim, torch.empty(3000, dim))
    else:
        module = {"Marian": marian, "RoFormer": roformer}[source]
        theirs = getattr(module, f"{source}SinusoidalPositionalEmbedding")(3000, dim).create_weight()
    assert_close(functional.sinusoidal(torch.arange(3000), dim, layout=layout), theirs, rtol=0, atol=1e-7)
    x = torch.randn(2, 500, dim)
    ours = posenc.Sinusoidal(dim, layout=layout).embed(x, Positions.arange(500, 2500))
    assert_close(ours, x + theirs[2500:], rtol=0, atol=1e-6)
    other = "concat" if layout == "interleaved" else "interleaved"
    wrong = functional.sinusoidal(torch.arange(3000), dim, layout=other)
    assert (wrong - theirs).abs().max() > 1, "the other layout gives other values"


@pytest.mark.usefixtures("_float64_default")
@pytest.mark.parametrize(("dim", "base"), [(8, 10000.0), (64, 10000.0), (64, 500.0)])
def test_sinusoidal_with_endpoint_is_whisper(dim, base):
    theirs = whisper.sinusoids(3000, dim, base)
    assert_close(
        functional.sinusoidal(torch.arange(3000), dim, base=base, layout="concat", endpoint=True), theirs, **EXACT
    )
    without = functional.sinusoidal(torch.arange(3000), dim, base=base, layout="concat")
    assert (without - theirs).abs().max() > 1, "without the endpoint the values are others"


def test_sinusoidal_of_signed_distances_is_wav2vec2_conformer():
    config = transformers.Wav2Vec2ConformerConfig(hidden_size=48, max_source_positions=600)
    theirs = wav2vec2_conformer.Wav2Vec2ConformerRelPositionalEmbedding(config)(torch.zeros(1, 600, 48))[0]
    distances = torch.arange(599, -600, -1)
    assert_close(functional.sinusoidal(distances, 48), theirs, **angle_error(distances))


def test_learned_is_gpt2_and_ends_where_it_ends():
    config = transformers.GPT2Config(vocab_size=30, n_embd=24, n_head=2, n_layer=0, n_positions=64)
    model = transformers.GPT2Model(config).double().eval()
    model.ln_f = nn.Identity()
    encoding = posenc.Learned(64, dim=24).double()
    encoding.table.data.copy_(model.wpe.weight)
    ids, position_ids = torch.randint(0, 30, (2, 65)), torch.stack((torch.arange(64), torch.arange(64) * 13 % 64))
    x = model.wte(ids)
    plain = encoding.embed(x[:, :64], Positions.arange(64))
    assert_close(plain, model(ids[:, :64]).last_hidden_state, **EXACT)
    jumping = encoding.embed(x[:, :64], Positions.from_ids(position_ids))
    assert_close(jumping, model(ids[:, :64], position_ids=position_ids).last_hidden_state, **EXACT)
    with pytest.raises(IndexError):
        model(ids)
    with pytest.raises(posenc.InputError, match="outside the table of 64"):
        encoding.embed(x, Positions.arange(65))
