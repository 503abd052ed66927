"""The four terms of attention scores against the models' own scores, the formula, and models where the answer is known."""

import copy

import pytest
import torch
import transformers
from guide_code.score_terms import first_layer
from torch.nn.functional import cross_entropy

import posenc
from guide_code import four_terms
from posenc.lab.transformer import Transformer, TransformerConfig

TOKENS = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(0))
SHAPE = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIGS = {
    "bert": transformers.BertConfig(**SHAPE, intermediate_size=40, attn_implementation="eager"),
    "roberta": transformers.RobertaConfig(**SHAPE, intermediate_size=40, attn_implementation="eager"),
    "distilbert": transformers.DistilBertConfig(
        vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=40, attn_implementation="eager"
    ),
    "electra": transformers.ElectraConfig(
        **SHAPE, embedding_size=16, intermediate_size=40, attn_implementation="eager"
    ),
    "gpt2": transformers.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32, attn_implementation="eager",
        bos_token_id=0, eos_token_id=0,
    ),
    "opt": transformers.OPTConfig(
        **SHAPE, ffn_dim=40, word_embed_proj_dim=16, max_position_embeddings=32, attn_implementation="eager"
    ),
}  # fmt: skip
DECODERS = ("gpt2", "opt")


def ours(encoding="sinusoidal", **config):
    torch.manual_seed(0)
    config = TransformerConfig(50, dim=32, num_layers=2, **{"num_heads": 4} | config)
    made = posenc.create(encoding, dim=32, num_heads=4, head_dim=config.width, max_positions=16)
    return randomised(Transformer(config, made))


def theirs(name):
    torch.manual_seed(0)
    kind = transformers.AutoModelForCausalLM if name in DECODERS else transformers.AutoModel
    return randomised(kind.from_config(copy.deepcopy(CONFIGS[name])))


@torch.no_grad()
def randomised(model):
    """Every weight and bias drawn anew, large enough that every term and every constant counts."""
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape) * (0.3 if parameter.dim() > 1 else 0.5))
    return model.eval()


def total(layer):
    queries, keys = (sum(parts.values()) for parts in (layer.queries, layer.keys))
    return layer.scale * queries @ keys.mT


@pytest.mark.parametrize("name", CONFIGS)
def test_terms_add_up_to_the_scores_of_transformers(name):
    model = theirs(name)
    found = four_terms(model, TOKENS)
    layer = first_layer(model, TOKENS)
    assert found.error < 1e-10 < layer.scores.abs().max()
    with torch.no_grad():
        weights = model.double()(TOKENS, output_attentions=True).attentions[0]
    ours = layer.scores.masked_fill(~layer.visible, -torch.inf).softmax(-1)
    assert (ours - weights).abs().max() < (1e-6 if name == "opt" else 1e-10)  # OPT's own softmax is in float32
    assert (total(layer) - layer.scores).abs().max() < 1e-10


@pytest.mark.parametrize(
    "encoding", ["sinusoidal", "learned", "integer", "sinusoidal:merge=concat", "sinusoidal+learned"]
)
@pytest.mark.parametrize("config", [{}, {"num_kv_heads": 2, "head_dim": 12}, {"causal": False}], ids=str)
def test_terms_add_up_to_the_scores_of_our_model(encoding, config):
    model = ours(encoding, **config)
    found = four_terms(model, TOKENS)
    assert found.error < 1e-10
    if config.get("causal", True):  # attending by the scores that were found, the model has the loss that it has
        logits = model.double()(TOKENS)
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).item()
        assert found.loss["as trained"] == pytest.approx(loss, abs=1e-10)
        assert abs(found.loss["no position"] - loss) > 1e-4
    else:
        assert found.loss is None


@torch.no_grad()
def test_the_terms_are_those_of_the_formula():
    model = ours("learned").double()
    found = four_terms(model, TOKENS[:1])
    attention, gain = model.blocks[0].attention, model.blocks[0].attention_norm.weight
    x, p = model.embedding.weight[TOKENS[0]] * 32**0.5, model.encoding.table[:12]
    rms = ((x + p) ** 2).mean(-1, keepdim=True) ** 0.5
    parts = [(part / rms * gain).double() for part in (x, p)]
    for head in range(4):
        wq, wk = (w.weight[8 * head : 8 * head + 8] for w in (attention.query, attention.key))
        terms = [(a @ wq.T) @ (b @ wk.T).T / 8**0.5 for a in parts for b in parts]  # in the order of TERMS
        rows = [[term[i, : i + 1] for i in range(12)] for term in terms]
        spread = [torch.cat([row - row.mean() for row in term]) for term in rows]
        energy = torch.stack([values.square().sum() for values in spread])
        assert torch.allclose(found.share[head], energy / energy.sum())
        for index, term in enumerate(rows):
            moved = []
            for i in range(12):
                total = sum(other[i] for other in rows)
                moved.append((total.softmax(0) - (total - term[i]).softmax(0)).abs().sum() / 2)
            assert found.removed[head, index].item() == pytest.approx(sum(moved).item() / 12)
        position = rows[3]
        values = torch.cat(position)
        far = torch.cat([i - torch.arange(i + 1) for i in range(12)])
        means = torch.stack([values[far == distance].mean() for distance in range(12)])
        assert torch.allclose(found.by_distance[head], means - values.mean())
        left = (values - means[far]).square().sum() / (values - values.mean()).square().sum()
        assert found.explained[head].item() == pytest.approx(1 - left.item())
        assert found.map[head, 7, 3].item() == pytest.approx(position[7][3].item())
        assert found.map[head, 3, 7].isnan()  # hidden from the query


@torch.no_grad()
def test_a_model_without_content_attends_by_position_and_the_other_way_round():
    model = ours("sinusoidal")
    model.embedding.weight.zero_()
    found = four_terms(model, TOKENS)
    assert torch.allclose(found.share[:, found.of("position-position")], torch.ones(4).double())
    assert found.removed[:, :3].abs().max() == 0 < found.removed[:, 3].min()
    assert found.designs["position alone"].abs().max() < 1e-12 < found.designs["no position"].min()

    blind = ours("learned")
    blind.encoding.table.zero_()
    found = four_terms(blind, TOKENS)
    assert torch.allclose(found.share[:, found.of("content-content")], torch.ones(4).double())
    assert found.designs["no position"].abs().max() < 1e-12
    assert found.explained.isnan().all()
    assert "The position-position term does not vary." in found.sentences()
    assert "nan" not in " ".join(found.sentences())


@pytest.mark.parametrize("model", [ours("learned"), theirs("bert"), theirs("gpt2")], ids=["ours", "bert", "gpt2"])
def test_the_callers_model_is_left_alone(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    four_terms(model, TOKENS)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(value.dtype == torch.float32 for value in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert getattr(getattr(model, "config", None), "_attn_implementation", "eager") == "eager"
