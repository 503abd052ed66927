"""DeBERTa against its formula, transformers' v1 and v2/v3, the log buckets, shared projections, and the mask decoder."""

import copy
import pickle
from importlib import import_module

import pytest
import torch
import transformers
from torch import nn
from torch.testing import assert_close

import posenc
from posenc import DeBERTa, DeBERTaV2, EnhancedMaskDecoder, Positions
from posenc.functional import deberta_bucket
from posenc.lab.transformer import Transformer, TransformerConfig
from posenc.testing.oracles import biases, content
from posenc.testing.oracles.attention import attend
from references.calls import AT_INTEGERS, distances, qkv

deberta, deberta_v2 = (import_module(f"transformers.models.{n}.modeling_{n}") for n in ("deberta", "deberta_v2"))

EXACT = {"rtol": 1e-10, "atol": 1e-11}
# transformers takes the square root of 3 head_dim in float32: scores, here some tens, are off by 2^-24 of themselves
FLOAT32_SCALE = {"rtol": 0, "atol": 1e-6}
TERMS = ["c2p", "p2c", "p2p", "p2c|c2p", "c2p|p2c|p2p"]


def randomised(module, std=0.5):
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=std)
    return module


def by_formula(encoding, keys, queries, q, k, v, positions, delta):
    """He et al. 2021, equations 2 to 4; keys and queries are the table's, (num_heads, rows, head_dim)."""
    terms, distance = encoding.terms.split("|"), distances(positions)
    of_queries, of_heads = (
        delta(-distance if encoding.paper_index else distance),
        k.repeat_interleave(4 // k.shape[1], 1),
    )
    bias = content.deberta(q, of_heads, queries, keys, delta(distance), of_queries, terms)
    scale = (6 * (1 + len(terms))) ** -0.5
    return attend(q, k, v, scale=scale, visible=positions.mask(), bias=bias.detach() * scale)


@AT_INTEGERS
@pytest.mark.parametrize("paper_index", [False, True])
@pytest.mark.parametrize("terms", TERMS)
def test_v1_is_the_formula(terms, paper_index, positions):
    encoding = randomised(
        DeBERTa(
            10, num_heads=4, head_dim=6, num_layers=2, max_relative_positions=3, terms=terms, paper_index=paper_index
        )
    )
    q, k, v = qkv(positions, 4, 2, 6)
    p = {name: value.detach() for name, value in encoding.named_parameters()}
    unused = torch.zeros(2, 4, 6, 10, dtype=torch.float64)
    keys = torch.einsum("rd,hed->hre", p["table"], p.get("key.weight", unused)[1])
    queries = torch.einsum("rd,hed->hre", p["table"], p.get("query.weight", unused)[1])
    queries = queries + p.get("query.bias", unused[..., 0])[1, :, None]
    want = by_formula(encoding, keys, queries, q, k, v, positions, lambda d: content.delta(d, 3))
    for backend in ("sdpa", "reference"):
        assert_close(posenc.attention(q, k, v, encoding, positions, layer=1, backend=backend), want, **EXACT)


@AT_INTEGERS
@pytest.mark.parametrize("paper_index", [False, True])
@pytest.mark.parametrize(("terms", "norm", "kv_heads"), [("c2p|p2c", True, 4), ("c2p|p2c|p2p", False, 2)])
def test_v2_is_the_formula_with_shared_projections(terms, norm, kv_heads, paper_index, positions):
    encoding = randomised(
        DeBERTaV2(
            10,
            num_heads=4,
            head_dim=6,
            num_layers=2,
            max_relative_positions=5,
            position_buckets=4,
            terms=terms,
            norm=norm,
            paper_index=paper_index,
        )
    )
    layers = [(nn.Linear(10, 24).double(), nn.Linear(10, 6 * kv_heads).double()) for _ in range(2)]
    encoding.share(layers)
    q, k, v = qkv(positions, 4, kv_heads, 6)
    table = encoding.table.detach()
    if norm:
        norm = encoding.layer_norm
        table = torch.nn.functional.layer_norm(table, (10,), norm.weight, norm.bias, 1e-7)
    queries, keys = (p(table).detach().view(8, -1, 6).transpose(0, 1) for p in layers[1])
    keys = keys[[h // (4 // kv_heads) for h in range(4)]]
    want = by_formula(
        encoding, keys, queries, q, k, v, positions,
        lambda d: (biases.deberta(d, 4, 5) + 4).clamp(0, 7),
    )  # fmt: skip
    assert_close(posenc.attention(q, k, v, encoding, positions, layer=1), want, **EXACT)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize(
    ("length", "buckets", "most"), [(11, 0, 6), (5, 0, 6), (40, 8, 32), (90, 16, 64), (600, 256, 512)]
)
@pytest.mark.parametrize("kinds", ["c2p|p2c", "c2p", "p2c"])
def test_v2_is_transformers(kinds, length, buckets, most, share):
    config = transformers.DebertaV2Config(
        hidden_size=24, num_attention_heads=3, num_hidden_layers=1, relative_attention=True, position_buckets=buckets or -1,
        max_relative_positions=most, pos_att_type=kinds, share_att_key=share, norm_rel_ebd="layer_norm",
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.3,
    )  # fmt: skip
    encoder = randomised(deberta_v2.DebertaV2Encoder(config).eval())
    module = encoder.layer[0].attention.self
    x, mask = torch.randn(2, length, 24, dtype=torch.float64), torch.ones(2, 1, length, length)
    theirs = module(
        x, mask, relative_pos=encoder.get_rel_pos(x), rel_embeddings=encoder.get_rel_embedding()
    )[0]  # fmt: skip

    def ours(**options):
        shape = {"max_relative_positions": most, "position_buckets": buckets, "terms": kinds, "shared": share}
        encoding = DeBERTaV2(24, num_heads=3, head_dim=8, **shape, **options).double()
        encoding.table.data = encoder.rel_embeddings.weight.data
        encoding.layer_norm.load_state_dict(encoder.LayerNorm.state_dict())
        encoding.share([(module.query_proj, module.key_proj)])
        for projection, name in (("key", "pos_key_proj"), ("query", "pos_query_proj")):
            if hasattr(module, name):
                getattr(encoding, projection).weight.data[0] = getattr(module, name).weight.data.view(3, 8, 24)
                getattr(encoding, projection).bias.data[0] = getattr(module, name).bias.data.view(3, 8)
        q, k, v = (
            p(x).unflatten(-1, (3, 8)).transpose(1, 2) for p in (module.query_proj, module.key_proj, module.value_proj)
        )
        return posenc.attention(q, k, v, encoding).transpose(1, 2).flatten(2)

    assert_close(ours(), theirs, **FLOAT32_SCALE)
    wrong = (ours(paper_index=True) - theirs).abs().max()
    assert (wrong > 1e-3) == ("p2c" in kinds), "the paper's index gives other values"


@pytest.mark.parametrize(("length", "most"), [(11, 6), (5, 8), (40, 512), (30, 30)])
@pytest.mark.parametrize("kinds", ["c2p|p2c", "c2p", "p2c"])
def test_v1_is_transformers(kinds, length, most):
    config = transformers.DebertaConfig(
        hidden_size=24, num_attention_heads=3, relative_attention=True, max_relative_positions=most, pos_att_type=kinds,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    module = randomised(deberta.DisentangledSelfAttention(config).eval())
    table, x = (torch.randn(*shape, 24, dtype=torch.float64) for shape in ((2 * most,), (2, length)))
    distances = torch.arange(length)[:, None] - torch.arange(length)
    theirs = module(x, torch.ones(2, 1, length, length), relative_pos=distances[None], rel_embeddings=table)[0]

    # one matrix makes [q | k | v] of each head; only q and v have biases
    q, k, v = module.in_proj(x).unflatten(-1, (3, 24)).transpose(1, 2).chunk(3, -1)
    q, v = (y + bias.view(3, 1, 8) for y, bias in ((q, module.q_bias), (v, module.v_bias)))

    def ours(**options):
        encoding = DeBERTa(24, num_heads=3, head_dim=8, max_relative_positions=most, terms=kinds, **options).double()
        encoding.table.data = table
        if "c2p" in kinds:
            encoding.key.weight.data[0] = module.pos_proj.weight.data.view(3, 8, 24)
        if "p2c" in kinds:
            encoding.query.weight.data[0] = module.pos_q_proj.weight.data.view(3, 8, 24)
            encoding.query.bias.data[0] = module.pos_q_proj.bias.data.view(3, 8)
        return posenc.attention(q, k, v, encoding).transpose(1, 2).flatten(2)

    assert_close(ours(), theirs, **FLOAT32_SCALE)
    wrong = (ours(paper_index=True) - theirs).abs().max()
    assert (wrong > 1e-3) == ("p2c" in kinds), "the paper's index gives other values"


@pytest.mark.parametrize(("buckets", "most"), [(256, 512), (8, 32), (16, 64), (4, 5), (32, 128), (128, 512)])
def test_buckets(buckets, most):
    distances = torch.arange(-most, most + 1)
    ours = deberta_bucket(distances, num_buckets=buckets, max_distance=most)
    assert ours.tolist() == biases.deberta(distances, buckets, most).tolist()
    wide = torch.arange(-3 * most, 3 * most + 1)
    theirs = deberta_v2.make_log_bucket_position(wide, buckets, most).long()
    assert torch.equal(deberta_bucket(wide, num_buckets=buckets, max_distance=most), theirs)
    assert torch.equal(ours, -ours.flip(0))


@pytest.mark.parametrize(("buckets", "most"), [(2, 32), (7, 32), (8, 5)])
def test_buckets_that_are_refused(buckets, most):
    with pytest.raises(posenc.InputError, match=f"position_buckets={buckets}, max_relative_positions={most}: needs"):
        DeBERTaV2(8, num_heads=2, head_dim=4, max_relative_positions=most, position_buckets=buckets)


def shared_model():
    encoding = posenc.create("deberta_v2", dim=8, num_heads=2, num_layers=2, max_positions=16, causal=True)
    return Transformer(TransformerConfig(7, dim=8, num_layers=2, num_heads=2), encoding).double().eval()


def test_shared_projections_stay_the_models():
    model, x = shared_model(), torch.arange(6)[None] % 7
    assert not [name for name in model.encoding.state_dict() if "projection" in name]
    assert {name.split(".")[0] for name, _ in model.encoding.named_parameters()} == {"table", "layer_norm"}
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        query = other.blocks[1].attention.query
        assert torch.equal(other(x), model(x))
        assert other.encoding.projections[1][0] is query
        before = other(x)
        nn.init.zeros_(query.weight)  # reaches the content terms and the queries of the table
        assert not torch.equal(other(x), before)
        assert torch.equal(model(x), before), "the copy is independent"


class Detached(DeBERTaV2):
    def share(self, projections):
        super().share([(p, lambda t, k=k: k(t).detach()) for p, k in projections])


def test_shared_projections_get_the_tables_gradient():
    model, x = shared_model(), torch.arange(6)[None] % 7
    weight = model.blocks[0].attention.key.weight
    (full,) = torch.autograd.grad(model(x).square().sum(), weight)
    model.encoding.__class__ = Detached
    (content_alone,) = torch.autograd.grad(model(x).square().sum(), weight)
    assert (full - content_alone).abs().max() > 1e-6


def test_one_encoding_serves_two_models_and_follows_layers_that_are_replaced():
    model, x = shared_model(), torch.arange(6)[None] % 7
    before = model(x)
    wider = TransformerConfig(7, dim=8, num_layers=2, num_heads=2, mlp_ratio=2.0)
    Transformer(wider, model.encoding).double()(x)
    assert torch.equal(model(x), before)
    attention = model.blocks[0].attention
    attention.key = copy.deepcopy(attention.key)
    assert torch.equal(model(x), before)
    nn.init.zeros_(attention.key.weight)
    model(x)
    assert model.encoding.projections[0][1] is attention.key


def test_projections_that_were_never_given():
    x = torch.randn(1, 2, 3, 4)
    encoding = DeBERTaV2(8, num_heads=2, head_dim=4)
    for projections in ([], [(nn.Linear(8, 8), nn.Linear(8, 8))]):
        encoding.share(projections)
        with pytest.raises(posenc.InputError, match=r"layer 1: give the model's to share"):
            posenc.attention(x, x, x, encoding, layer=1)
    posenc.attention(x, x, x, encoding, layer=0)


def test_parameters_are_those_of_the_terms():
    assert {n for n, _ in DeBERTa(8, num_heads=2, head_dim=4, terms="c2p").named_parameters()} == {
        "table",
        "key.weight",
    }
    assert {n for n, _ in DeBERTa(8, num_heads=2, head_dim=4, terms="p2c").named_parameters()} == {
        "table",
        "query.weight",
        "query.bias",
    }
    assert DeBERTa(8, num_heads=2, head_dim=4, num_layers=3).key.weight.shape == (3, 2, 4, 8)
    assert DeBERTaV2(8, num_heads=2, head_dim=4).table.shape == (512, 8)
    assert DeBERTa(8, num_heads=2, head_dim=4).scale(4) == pytest.approx(12**-0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_relative_positions": 0}, "max_relative_positions=0"),
        ({"terms": "c2c"}, "unknown term 'c2c'"),
        ({"terms": "c2p|c2p"}, "name each term once"),
        ({"dim": 0}, "dim=0"),
        ({"init_std": float("nan")}, "init_std=nan"),
    ],
)
def test_arguments_that_are_refused(options, message):
    with pytest.raises(posenc.InputError, match=message):
        DeBERTa(**{"dim": 8, "num_heads": 2, "head_dim": 4} | options)
    with pytest.raises(posenc.InputError, match=message):
        DeBERTaV2(**{"dim": 8, "num_heads": 2, "head_dim": 4, "position_buckets": 0} | options)


def test_calls_that_are_refused():
    encoding, x = DeBERTa(8, num_heads=2, head_dim=4, num_layers=2), torch.randn(1, 2, 3, 4)
    with pytest.raises(posenc.InputError, match="head_dim 2"):
        posenc.attention(x[..., :2], x[..., :2], x, encoding)
    with pytest.raises(posenc.InputError, match="integer positions only"):
        posenc.attention(x, x, x, encoding, Positions.from_ids(torch.tensor([0.5, 1, 2])))


def test_enhanced_mask_decoder():
    # apps/models/masked_language_model.py: z_states += hidden_states, then twice layer(hidden, query_states=previous)
    decoder = randomised(EnhancedMaskDecoder(10, dim=24))
    config = transformers.DebertaV2Config(
        hidden_size=24, num_attention_heads=3, intermediate_size=16, num_hidden_layers=1, relative_attention=True,
        position_buckets=4, pos_att_type="c2p|p2c", share_att_key=True, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    last = randomised(deberta_v2.DebertaV2Layer(config).eval())
    hidden, table = torch.randn(2, 7, 24, dtype=torch.float64), torch.randn(8, 24, dtype=torch.float64)

    def layer(queries, hidden):
        mask = torch.ones(2, 1, 7, 7)
        return last(hidden, mask, query_states=queries, rel_embeddings=table)[0]

    once = layer(hidden + decoder.positions.table[:7], hidden)
    assert_close(decoder(hidden, layer), layer(once, hidden), **EXACT)
    packed = Positions.packed([3, 4])
    start = hidden + torch.cat((decoder.positions.table[:3], decoder.positions.table[:4]))
    assert_close(decoder(hidden, layer, packed), layer(layer(start, hidden), hidden), **EXACT)
    with pytest.raises(posenc.InputError, match="outside the table of 6"):
        EnhancedMaskDecoder(6, dim=24).double()(hidden, layer)
    with pytest.raises(posenc.InputError, match="steps=0"):
        EnhancedMaskDecoder(6, dim=24, steps=0)
