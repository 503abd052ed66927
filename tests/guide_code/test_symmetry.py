"""Attention is permutation-equivariant on real modules, and everything that breaks it does so as it claims to."""

from dataclasses import replace

import pytest
import torch
import transformers
from guide_code.model import HOST, random_model, vector_model
from guide_code.symmetry import ROUNDING, SHIFT
from torch import nn

import posenc
from guide_code import equivariance

BERT = transformers.BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=40,
)  # fmt: skip


def bert(zeroed=False):
    torch.manual_seed(0)
    model = transformers.BertModel(BERT).eval()
    nn.init.normal_(model.embeddings.position_embeddings.weight, std=0.5)
    if zeroed:
        nn.init.zeros_(model.embeddings.position_embeddings.weight)
    return model


def modules():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    return {"torch's": layer, "BERT without its table": bert(zeroed=True), "ours": random_model("none")}


@pytest.mark.parametrize("name", modules())
def test_attention_without_positions_is_equivariant(name):
    module = modules()[name]
    before = {key: value.clone() for key, value in module.state_dict().items()}
    found = equivariance(module, length=9, dim=32)
    assert found.blind
    assert max(found.order, found.last, found.mirror) < ROUNDING
    assert "does not see order" in found.sentences()[0]
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


SHORT = {"step_temperature": "step_temperature:train_length=4", "window": "window:before=2", "chunks": "chunks:size=3"}
EVERY = tuple(SHORT.get(name, name) for name in posenc.ENCODINGS)
"""Every encoding, with options under which it acts on a short text."""


@pytest.fixture(scope="module")
def models():
    return {name: random_model(name) for name in EVERY}


@pytest.fixture(scope="module")
def found(models):
    return {name: equivariance(model, permutations=8, name=name) for name, model in models.items()}


def test_every_encoding_sees_order_exactly_if_it_says_so(found, models):
    for name, row in found.items():
        if not models[name].config.causal:
            assert models[name].encoding.sees_order is not row.blind, name
    assert {name for name, row in found.items() if row.causal} == {
        "cope", "fox", "grape_ap", "wall", "path", "stick_breaking", "selective_attention",
    }  # fmt: skip


def test_every_encoding_is_shift_invariant_exactly_if_it_says_so(found, models):
    for name, row in found.items():
        if name != "cape" and row.shift is not None:  # outside training it leaves positions as they are
            assert models[name].encoding.shift_invariant is (row.shift < ROUNDING), name


def test_what_only_counts_distance_cannot_tell_a_text_from_its_mirror_image(found):
    even = {name for name, row in found.items() if row.mirror < ROUNDING <= row.order}
    assert even == {
        "alibi", "grid_alibi", "grape_a", "dape", "tapa", "kerple", "sandwich", "window:before=2", "chunks:size=3",
    }  # fmt: skip
    # T5 has buckets of their own for keys after the query: with equal ones it could not tell either
    model = random_model("t5")
    assert equivariance(model).mirror > 0.1
    with torch.no_grad():
        table = model.encoding.table
        half = table.shape[1] // 2
        table[:, half:] = table[:, :half]
    assert equivariance(model).mirror < ROUNDING < 0.1 < equivariance(model).order


def test_a_causal_mask_counts_without_positions():
    one = equivariance(random_model("none", config=replace(HOST, num_layers=1, causal=True)))
    two = equivariance(random_model("none", config=replace(HOST, causal=True)))
    assert min(one.order, two.order) > 0.1
    # one layer's last token sees a set; from the second on it sees prefixes of different lengths
    assert one.last < ROUNDING < 0.01 < two.last
    for row in (one, two):
        assert row.causal
        assert "No token sees those after it" in row.sentences()[1]
    assert "does not depend on the order of those before" in one.sentences()[2]
    scaled = equivariance(lambda x: x * torch.arange(x.shape[1])[:, None], dim=4)  # no token sees any other
    assert not scaled.blind
    assert not scaled.causal
    assert "times the root mean square of f" in scaled.sentences()[0]


def test_shift_is_that_of_the_model_itself():
    model = random_model("sinusoidal")
    body, x = vector_model(model), torch.randn(1, 5, 32, dtype=torch.float64)
    moved = body(x, torch.arange(5) + SHIFT)
    inside = body.run(x + posenc.analysis.codes_of(model.encoding)(torch.arange(SHIFT, SHIFT + 5)), torch.arange(5))
    assert torch.allclose(moved, inside, atol=1e-12)
    short = random_model("learned", max_positions=6)
    assert equivariance(short, length=6).shift is None


def test_the_body_is_the_model():
    tokens = torch.tensor([3, 1, 4, 1, 5])
    for name in EVERY:
        model = random_model(name)
        body = vector_model(model)
        with torch.no_grad():
            assert torch.allclose(model.head(body(body.content(tokens)[None])), model(tokens[None]), atol=1e-12), name
    for kind in ("BertModel", "GPT2Model", "RobertaModel", "OPTModel", "LlamaModel"):
        torch.manual_seed(0)
        sizes = {"vocab_size": 50, "num_attention_heads": 4, "max_position_embeddings": 40, "pad_token_id": 1}
        if kind == "GPT2Model":
            config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=40)
        else:
            config = getattr(transformers, kind.replace("Model", "Config"))(
                hidden_size=32, num_hidden_layers=2, **({"ffn_dim": 64} if kind == "OPTModel" else {"intermediate_size": 64}),
                **sizes, **({"word_embed_proj_dim": 32} if kind == "OPTModel" else {}),
            )  # fmt: skip
        model = getattr(transformers, kind)(config).eval()
        body = vector_model(model)
        with torch.no_grad():
            there = model.double()(tokens[None] + 10)[0]
            error = 1e-5 if kind == "LlamaModel" else 1e-9  # Llama's own norms are in float32
            assert torch.allclose(body(body.content(tokens + 10)[None]), there, atol=error), kind


SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 1}


@pytest.mark.parametrize("kind", ["Llama", "GPTNeoX", "ModernBert", "Gemma3Text"])
def test_rotation_does_not_care_where_a_text_begins_whatever_a_model_computes_in_float32(kind):
    torch.manual_seed(0)
    tokens = {f"{name}_token_id": 2 for name in ("bos", "eos", "cls", "sep")}
    config = getattr(transformers, f"{kind}Config")(**SMALL, **tokens, intermediate_size=64)
    found = equivariance(getattr(transformers, f"{kind}Model")(config))
    assert found.shift < ROUNDING < 1e-5 < found.order
    assert "Moving every position by 3 changes nothing." in found.sentences()
