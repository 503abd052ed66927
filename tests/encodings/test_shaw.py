"""Shaw's relative vectors: the paper's formula, Wav2Vec2-BERT, SeamlessM4T-v2, NEZHA's table, refusals."""

from importlib import import_module

import pytest
import torch
import transformers
from torch.testing import assert_close

import posenc
from posenc import Positions, Shaw
from posenc.testing.oracles import content
from posenc.testing.oracles.attention import attend
from posenc.testing.oracles.codes import sinusoidal
from references.calls import AT_INTEGERS, distances, qkv

EXACT = {"rtol": 1e-10, "atol": 1e-11}


def by_formula(q, k, v, positions, keys, values, left, right):
    """Tables are (heads or 1, rows, width); the row is that of w_clip(j - i) (Shaw et al. 2018, section 3.2)."""
    rows = ((-distances(positions)).clamp(-left, right) + left).long()
    bias, added = content.read(q @ keys.mT, rows) * 6**-0.5, values[:, rows[:, 0]].movedim(0, 1)
    return attend(q, k, v, scale=6**-0.5, visible=positions.mask(), bias=bias, added=added)


def made(**options):
    encoding = Shaw(6, num_heads=4, **options).double()
    for table in encoding.parameters():
        torch.nn.init.normal_(table)
    return encoding


@AT_INTEGERS
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize(("clip", "clip_future"), [(2, None), (3, 1), (0, 4), (20, None)])
def test_it_is_the_formula(clip, clip_future, per_head, positions):
    encoding = made(num_layers=2, clip=clip, clip_future=clip_future, per_head=per_head)
    q, k, v = qkv(positions, 4, 2, 6)
    right = clip if clip_future is None else clip_future
    want = by_formula(q, k, v, positions, encoding.key_table[1].detach(), encoding.value_table[1].detach(), clip, right)
    assert_close(posenc.attention(q, k, v, encoding, positions, layer=1), want, **EXACT)


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@pytest.mark.parametrize(("left", "right"), [(5, 3), (64, 8)])  # 64 and 8 are the released models'
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("source", ["Wav2Vec2Bert", "SeamlessM4Tv2Conformer"])
def test_keys_are_wav2vec2_bert_and_seamless(source, causal, left, right, backend):
    limits = {
        "left_max_position_embeddings": left,
        "right_max_position_embeddings": right,
        "attn_implementation": "eager",
    }
    if source == "Wav2Vec2Bert":
        config = transformers.Wav2Vec2BertConfig(
            hidden_size=24, num_attention_heads=3, position_embeddings_type="relative_key", **limits
        )
        name = "wav2vec2_bert"
    else:
        config = transformers.SeamlessM4Tv2Config(
            hidden_size=24, speech_encoder_attention_heads=3, position_embeddings_type="relative_key", **limits
        )
        name = "seamless_m4t_v2"
    modeling = import_module(f"transformers.models.{name}.modeling_{name}")
    module = getattr(modeling, f"{source}SelfAttention")(config).double().eval()
    x = torch.randn(2, 90, 24, dtype=torch.float64)
    hidden = torch.ones(90, 90, dtype=torch.bool).triu(1) & torch.tensor(causal)
    mask = torch.zeros(2, 1, 90, 90, dtype=torch.float64).masked_fill(hidden, torch.finfo(torch.float64).min)
    theirs = module(x, attention_mask=mask)[0]
    q, k, v = (p(x).unflatten(-1, (3, 8)).transpose(1, 2) for p in (module.linear_q, module.linear_k, module.linear_v))

    def ours(table, clip, clip_future):
        encoding = Shaw(8, num_heads=3, clip=clip, clip_future=clip_future, terms="keys").double()
        encoding.key_table.data[0, 0] = table
        y = posenc.attention(q, k, v, encoding, causal=causal, backend=backend)
        return module.linear_out(y.transpose(1, 2).flatten(2))

    table = module.distance_embedding.weight.detach()
    assert_close(ours(table, left, right), theirs, **EXACT)
    assert (ours(table.flip(0), right, left) - theirs).abs().max() > 1e-3, "distances of the other sign differ"


def test_the_fixed_table_is_nezhas():
    # NEZHA, section 2.2: a_ij[2k] = sin((j - i) / 10000^(2k/d)), a_ij[2k+1] = cos(...); its code counts rows from 0
    encoding, positions = Shaw(6, num_heads=4, clip=2, fixed=True), Positions.arange(7)
    assert not list(encoding.parameters())
    assert not encoding.state_dict()
    q, k, v = qkv(positions, 4, 4, 6)
    table = sinusoidal(range(5), 6, 10000.0)[None]
    want = by_formula(q, k, v, positions, table, table, 2, 2)
    assert_close(posenc.attention(q, k, v, encoding, positions, layer=3), want, **EXACT)


def test_only_the_wanted_tables_exist():
    names = {
        terms: [n for n, _ in Shaw(4, num_heads=2, terms=terms).named_parameters()] for terms in ("keys", "values")
    }
    assert names == {"keys": ["key_table"], "values": ["value_table"]}
    assert Shaw(4, num_heads=2, clip=16).key_table.shape == (1, 1, 33, 4)
    assert Shaw(4, num_heads=2, num_layers=3, clip=64, clip_future=8, per_head=True).value_table.shape == (3, 2, 73, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": -1}, "clip=-1"),
        ({"clip_future": -2}, "clip_future=-2"),
        ({"terms": "keys|value"}, "unknown term 'value': did you mean 'values'"),
        ({"terms": "keys|keys"}, "name each term once"),
        ({"fixed": True, "per_head": True}, "drop per_head"),
        ({"init_std": float("nan")}, "init_std=nan"),
        ({"num_layers": 0}, "num_layers=0"),
    ],
)
def test_arguments_that_are_refused(options, message):
    with pytest.raises(posenc.InputError, match=message):
        Shaw(4, num_heads=2, **options)


def test_calls_that_are_refused():
    encoding, x = Shaw(6, num_heads=4), torch.randn(1, 4, 3, 6)
    with pytest.raises(posenc.InputError, match="q with 2 heads"):
        posenc.attention(x[:, :2], x[:, :2], x[:, :2], encoding)
    with pytest.raises(posenc.InputError, match="integer positions only"):
        posenc.attention(x, x, x, encoding, Positions.from_ids(torch.tensor([0.5, 1, 2])))
