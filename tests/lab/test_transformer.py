import pytest
import torch

import posenc
from posenc import T5, InputError, NoPE, Rotary
from posenc.cache import KVCache
from posenc.lab.transformer import Attention, Transformer, TransformerConfig
from references.calls import start_alike


def test_weights_are_tied_and_counted_once():
    tied = Transformer(TransformerConfig(11, dim=8, num_layers=1, num_heads=2), NoPE())
    loose = Transformer(TransformerConfig(11, dim=8, num_layers=1, num_heads=2, tie_weights=False), NoPE())
    assert tied.head.weight is tied.embedding.weight
    count = [sum(p.numel() for p in m.parameters()) for m in (tied, loose)]
    assert count[1] - count[0] == 88


def test_grouped_queries_have_smaller_keys():
    model = Transformer(TransformerConfig(11, dim=16, num_layers=1, num_heads=4, num_kv_heads=1), Rotary(4))
    attention = model.blocks[0].attention
    assert attention.key.weight.shape == attention.value.weight.shape == (4, 16)
    cache = KVCache()
    model(torch.zeros(2, 5, dtype=torch.long), cache=cache)
    assert cache.layer(0)[0].shape == (2, 1, 5, 4)


def test_the_host_starts_the_same_under_every_encoding_and_queries_make_up_for_scale():
    models = {}
    for name in posenc.ENCODINGS:
        encoding = posenc.create(name, dim=16, num_heads=2, max_positions=8, causal=True)
        torch.manual_seed(0)
        models[name] = Transformer(TransformerConfig(11, dim=16, num_layers=2, num_heads=2), encoding)
    start_alike(models, unscaled=("t5", "swin_v2"))


def test_activations_start_at_unit_scale():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(256, dim=64, num_layers=4, num_heads=4), T5(4, bidirectional=False))
    scores = []
    for module in model.modules():
        if isinstance(module, Attention):
            module.query.register_forward_hook(lambda m, i, o: scores.append(o))
    logits = model(torch.randint(256, (4, 64)))
    assert 0.7 < logits.std() < 1.4
    assert all(0.2 < s.std() < 0.3 for s in scores)  # 16^-1/2, which T5's scale of 1 calls for


def test_layers_of_different_scale():
    encoding = posenc.PerLayer(T5(2, bidirectional=False), NoPE())
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(11, dim=8, num_layers=2, num_heads=2), encoding)
    stds = [block.attention.query.weight.std().item() for block in model.blocks]
    assert stds[0] / stds[1] == pytest.approx(0.5, rel=0.3)
    assert model(torch.zeros(1, 3, dtype=torch.long)).isfinite().all()


def test_dropout_only_in_training():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(11, dim=8, num_layers=1, num_heads=2, dropout=0.5), NoPE())
    x = torch.zeros(1, 4, dtype=torch.long)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TransformerConfig(5, dim=10, num_heads=4), "dim=10: must be a multiple of num_heads=4"),
        (lambda: TransformerConfig(5, num_heads=4, num_kv_heads=3), "num_kv_heads=3"),
        (lambda: TransformerConfig(5, dropout=1.0), "dropout=1.0"),
        (
            lambda: Transformer(TransformerConfig(5, dim=8, num_heads=2), NoPE())(torch.zeros(3).long()),
            "tokens=a tensor of shape",
        ),
        (
            lambda: Transformer(TransformerConfig(5, dim=8, num_heads=2, causal=False), NoPE()).generate(
                torch.zeros(1, 2).long(), 1
            ),
            "needs a decoder",
        ),
        (
            lambda: Transformer(TransformerConfig(5, dim=8, num_heads=2), posenc.Normalized(8)).generate(
                torch.zeros(1, 2).long(), 1
            ),
            "cannot decode with a cache",
        ),
        (
            lambda: Transformer(TransformerConfig(5, dim=8, num_heads=2), NoPE()).generate(
                torch.zeros(1, 2).long(), 1, torch.tensor([[1, 0]])
            ),
            "pad on the left",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_model_takes_an_encodings_text():
    config = TransformerConfig(11, dim=16, num_layers=3, num_heads=4, num_kv_heads=2)
    model = Transformer(config, "rope+t5/none")
    made = posenc.create("rope+t5/none", dim=16, num_heads=4, num_kv_heads=2, num_layers=3, causal=True)
    assert model.encoding.spec() == made.spec()
    assert model(torch.zeros(1, 5, dtype=torch.long)).shape == (1, 5, 11)
    with pytest.raises(posenc.InputError, match="encoding=3"):
        Transformer(config, 3)
    with pytest.raises(posenc.InputError, match="did you mean 'rope'"):
        Transformer(config, "rop")
