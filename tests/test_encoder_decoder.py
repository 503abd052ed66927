"""Norms and their places, and a decoder that reads an encoder, against PyTorch's and transformers' models."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import silu

import posenc
from posenc import InputError, NoPE, Positions, functional
from posenc.cache import KVCache
from posenc.lab.transformer import Memory, Transformer, TransformerConfig

CONFIG = TransformerConfig(13, dim=16, num_layers=2, num_heads=2, mlp_ratio=1.5, norm="layer", dropout=0.0)
HIDDEN = 16
PLACES = pytest.mark.parametrize("norm_first", [True, False])


@pytest.fixture(autouse=True)
def in_double():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def drawn(model: nn.Module) -> nn.Module:
    """With every norm's weights away from 1 and 0."""
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, 1.0, 0.3)
    return model.eval()


def gated(h):
    return silu(h[..., :HIDDEN]) * h[..., HIDDEN:]


def copy_block(block, layer) -> None:
    """The weights of a block into a layer of PyTorch's, whose MLP becomes the gated one."""
    layer.linear2 = nn.Linear(HIDDEN, 16)
    norms = [block.attention_norm, block.mlp_norm]
    attentions = [(block.attention, layer.self_attn)]
    if hasattr(block, "cross_attention"):
        norms.insert(1, block.cross_attention_norm)
        attentions.append((block.cross_attention, layer.multihead_attn))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()  # the biases, which the block has none of
        for i, norm in enumerate(norms, 1):
            getattr(layer, f"norm{i}").load_state_dict(norm.state_dict())
        for ours, theirs in attentions:
            theirs.in_proj_weight.copy_(torch.cat([p.weight for p in (ours.query, ours.key, ours.value)]))
            theirs.out_proj.weight.copy_(ours.out.weight)
        layer.linear1.weight.copy_(torch.cat((block.mlp.gate.weight, block.mlp.up.weight)))
        layer.linear2.weight.copy_(block.mlp.down.weight)


@PLACES
def test_a_block_is_pytorchs_layer(norm_first):
    model = drawn(Transformer(replace(CONFIG, norm_first=norm_first, causal=False), NoPE()))
    layer = nn.TransformerEncoderLayer(
        16, 2, 2 * HIDDEN, 0.0, activation=gated, batch_first=True, norm_first=norm_first
    ).eval()
    copy_block(model.blocks[0], layer)
    x = torch.randn(3, 7, 16)
    ours = model.blocks[0](x, model.encoding.at(Positions.arange(7)), 0, None)
    assert torch.allclose(ours, layer(x), atol=1e-12)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(7)
    causal = model.blocks[0](x, model.encoding.at(Positions.arange(7, causal=True)), 0, None)
    assert torch.allclose(causal, layer(x, src_mask=mask), atol=1e-12)


def pair(encoding="sinusoidal", cross="none", **changes) -> tuple[Transformer, Transformer]:
    config = replace(CONFIG, **changes)
    encoder = drawn(Transformer(replace(config, causal=False), encoding))
    return encoder, drawn(Transformer(replace(config, cross_attention=True), encoding, cross))


SOURCE = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])
SEEN = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
TARGET = torch.tensor([[9, 1, 2, 3], [9, 4, 5, 6]])


@PLACES
def test_an_encoder_and_a_decoder_are_pytorchs_transformer(norm_first):
    encoder, decoder = pair(norm_first=norm_first)
    theirs = nn.Transformer(
        16, 2, 2, 2, 2 * HIDDEN, 0.0, activation=gated, batch_first=True, norm_first=norm_first
    ).eval()
    for ours, stack in ((encoder, theirs.encoder), (decoder, theirs.decoder)):
        for block, layer in zip(ours.blocks, stack.layers, strict=True):
            copy_block(block, layer)
        stack.norm.load_state_dict(ours.norm.state_dict())
    coded = [
        model.embedding(tokens) * 4 + functional.sinusoidal(torch.arange(tokens.shape[1]), 16)
        for model, tokens in ((encoder, SOURCE), (decoder, TARGET))
    ]
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    hidden = SEEN == 0
    want = theirs(*coded, tgt_mask=mask, src_key_padding_mask=hidden, memory_key_padding_mask=hidden)
    at = Positions.from_mask(SEEN)
    memory = decoder.memory(encoder.features(SOURCE, at), at)
    assert torch.allclose(decoder.features(TARGET, memory=memory), want, atol=1e-12)


def test_an_encoder_and_a_decoder_are_t5():
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=13, d_model=16, d_kv=8, d_ff=HIDDEN, num_layers=2, num_heads=2, feed_forward_proj="gated-silu",
        layer_norm_epsilon=torch.finfo(torch.float64).eps, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
        eos_token_id=None, relative_attention_num_buckets=8, relative_attention_max_distance=16,
        attn_implementation="eager",
    )  # fmt: skip
    t5 = drawn(transformers.T5ForConditionalGeneration(config)).to(torch.float64)
    shape = {"norm": "rms", "mlp_ratio": 1.5, "tie_weights": True}
    encoder, decoder = pair("t5:num_buckets=8:max_distance=16", **shape)
    with torch.no_grad():
        for parameter in t5.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # T5 starts with tables near zero
        for ours, stack in ((encoder, t5.encoder), (decoder, t5.decoder)):
            ours.embedding.weight.copy_(
                t5.shared.weight / 4
            )  # the host multiplies by the square root of dim, T5 divides logits
            ours.norm.weight.copy_(stack.final_layer_norm.weight)
            ours.encoding.table.copy_(stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight.T)
            for block, layer in zip(ours.blocks, stack.block, strict=True):
                attentions = [(block.attention, block.attention_norm, layer.layer[0], layer.layer[0].SelfAttention)]
                if ours is decoder:
                    between = layer.layer[1]
                    attentions.append(
                        (block.cross_attention, block.cross_attention_norm, between, between.EncDecAttention)
                    )
                for attention, norm, part, theirs in attentions:
                    for name, key in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
                        getattr(attention, name).weight.copy_(getattr(theirs, key).weight)
                    norm.weight.copy_(part.layer_norm.weight)
                if ours is decoder:
                    block.cross_attention.query.weight.mul_(8**0.5)  # T5 scales no scores; posenc's `t5` neither
                mlp = layer.layer[-1]
                block.mlp_norm.weight.copy_(mlp.layer_norm.weight)
                for part, name in ((block.mlp.gate, "wi_0"), (block.mlp.up, "wi_1"), (block.mlp.down, "wo")):
                    part.weight.copy_(getattr(mlp.DenseReluDense, name).weight)
    at = Positions.from_mask(SEEN)
    memory = decoder.memory(encoder.features(SOURCE, at), at)
    want = t5(input_ids=SOURCE, attention_mask=SEEN, decoder_input_ids=TARGET).logits
    # transformers computes T5's norms and softmax in float32
    assert torch.allclose(decoder(TARGET, memory=memory), want, rtol=0, atol=2e-5)
    written = t5.generate(input_ids=SOURCE, attention_mask=SEEN, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    assert torch.equal(decoder.generate(torch.zeros(2, 1, dtype=torch.long), 6, memory=memory), written)


def spelled(name: str) -> str:
    return {"log_n": "log_n:train_length=4", "window": "window:before=2", "chunks": "chunks:size=3"}.get(name, name)


def test_a_cache_gives_what_a_full_pass_gives_under_every_encoding_with_norms_behind():
    config = replace(CONFIG, norm_first=False, num_layers=1)
    ran = set()
    for name in posenc.ENCODINGS:
        model = drawn(Transformer(config, config.make_encoding(spelled(name), causal=True, max_positions=12)))
        if model.encoding.needs_length:
            continue
        cache, tokens = KVCache(), torch.randint(13, (2, 7))
        parts = [model(part, cache=cache) for part in tokens.split([3, 1, 3], 1)]
        assert torch.allclose(torch.cat(parts, 1), model(tokens), atol=1e-10), name
        ran.add(name)
    assert len(ran) > 50


CROSS = ("none", "rope", "alibi", "t5", "shaw", "kerple", "xpos", "log_n:train_length=2", "rope+softmax_n")


@pytest.mark.parametrize("cross", CROSS)
@pytest.mark.parametrize("backwards", [False, True])
def test_cross_attention_with_a_cache_and_padding_on_both_sides(cross, backwards):
    """One row among others, padded on the left, token by token, is that row alone in one pass."""
    encoder, decoder = pair("rope", cross)
    for parameter in decoder.cross.parameters():
        nn.init.normal_(parameter)
    at = Positions.from_mask(SEEN)
    memory = decoder.memory(encoder.features(SOURCE, at), at)
    target, valid = torch.tensor([[9, 1, 2, 3], [0, 0, 4, 5]]), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    cache, columns = KVCache(), []
    for end in range(1, 5):
        step = Positions.from_mask(valid[:, :end], 1)
        columns.append(decoder(target[:, end - 1 : end], step, cache, memory))
    together = torch.cat(columns, 1)
    for row, (source, text) in enumerate(((SOURCE[:1], target[:1]), (SOURCE[1:, :3], target[1:, 2:]))):
        alone = decoder(text, memory=decoder.memory(encoder.features(source)))
        assert torch.allclose(together[row, -text.shape[1] :], alone[0], atol=1e-10)
        if backwards:
            source = source.flip(1)
            other = decoder(text, memory=decoder.memory(encoder.features(source)))
            assert not torch.allclose(alone, other, atol=1e-3)


def test_what_a_cross_encoding_computes():
    """RoPE and ALiBi between both sides, each at its positions, in loops."""
    config = replace(CONFIG, num_layers=1, cross_attention=True)
    rope, slopes = posenc.Rotary(8), posenc.ALiBi(2).slope_table
    q, keys = torch.randn(1, 3, 16), torch.randn(1, 5, 16)
    for cross in ("rope", "alibi"):
        decoder = Transformer(config, "none", cross)
        block = decoder.blocks[0].cross_attention
        places, others = torch.tensor([4.0, 5.0, 9.0]), torch.tensor([0.0, 2.0, 3.0, 7.0, 8.0])
        memory = decoder.memory(keys, Positions.from_ids(others))
        here = memory.encoding.at(Positions.cross(Positions.from_ids(places), memory.positions))
        got = block.read(q, memory, here, 0)
        outs = []
        for head in range(2):
            part = slice(8 * head, 8 * head + 8)
            rows = []
            for i, m in enumerate(places.tolist()):
                scores = []
                for j, n in enumerate(others.tolist()):
                    a, b = block.query(q)[0, i, part], block.key(keys)[0, j, part]
                    if cross == "rope":  # the halves of a head are the parts of its complex numbers
                        turn = torch.polar(torch.ones(4), (m - n) * rope.inv_freq.double())
                        score = (torch.complex(a[:4], a[4:]) * turn * torch.complex(b[:4], b[4:]).conj()).real.sum()
                    else:
                        score = a @ b
                    bias = -float(slopes[head]) * abs(m - n) if cross == "alibi" else 0.0
                    scores.append(score * 8**-0.5 + bias)
                rows.append(torch.stack(scores).softmax(0) @ block.value(keys)[0, :, part])
            outs.append(torch.stack(rows))
        assert torch.allclose(got[0], block.out(torch.cat(outs, -1)), atol=1e-6)


def test_a_packed_text_reads_its_source():
    encoder, decoder = pair("rope", "rope")
    packed = Positions.packed([3, 2])
    memory = decoder.memory(encoder.features(SOURCE[:1], packed), packed)
    together = decoder(TARGET[:1], Positions.packed([2, 2]), memory=memory)
    for source, target, rows in (
        (SOURCE[:1, :3], TARGET[:1, :2], slice(2)),
        (SOURCE[:1, 3:], TARGET[:1, 2:], slice(2, 4)),
    ):
        alone = decoder(target, memory=decoder.memory(encoder.features(source)))
        assert torch.allclose(together[:, rows], alone, atol=1e-10)


def test_gradients_reach_the_encoder_and_a_failed_call_leaves_the_cache():
    encoder, decoder = pair()
    memory = decoder.memory(encoder.features(SOURCE))
    cache = KVCache()
    decoder(TARGET[:, :2], cache=cache, memory=memory)
    with pytest.raises(InputError):
        decoder(TARGET[:, 2:], cache=cache, memory=decoder.memory(torch.zeros(3, 5, 16)))
    assert len(cache) == 2
    decoder(TARGET, memory=memory).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.blocks.parameters())


def test_queries_of_cross_attention_make_up_for_its_scale():
    config, hosts = replace(CONFIG, cross_attention=True), []
    for cross in (NoPE(), posenc.T5(2, bidirectional=True)):
        torch.manual_seed(0)
        hosts.append(Transformer(config, NoPE(), cross))
    usual, unscaled = hosts
    for one, other in zip(usual.blocks, unscaled.blocks, strict=True):
        assert torch.allclose(one.cross_attention.query.weight * 8**-0.5, other.cross_attention.query.weight)
        assert torch.equal(one.attention.query.weight, other.attention.query.weight)


def decoder(**changes):
    return pair(**changes)[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TransformerConfig(5, norm="batch"), "unknown norm 'batch'"),
        (lambda: TransformerConfig(5, norm_first=1), "norm_first=1"),
        (lambda: posenc.VisionConfig(5, patch_size=4, norm="none"), "unknown norm 'none'"),
        (lambda: Transformer(CONFIG, "rope", "rope"), "cross='rope': needs cross-attention"),
        (lambda: pair("rope", "sinusoidal"), r"cross='sinusoidal': acts on a model's input \(embed\)"),
        (lambda: pair("rope", "fox"), r"cross='fox': acts on a model's input \(gates\)"),
        (lambda: Transformer(CONFIG, "rope").memory(torch.zeros(1, 2, 16)), "needs cross-attention"),
        (lambda: decoder().memory(torch.zeros(1, 2, 8)), r"pass \(batch, m, 16\)"),
        (lambda: decoder().memory(torch.zeros(1, 2, 16), Positions.arange(3)), "positions are for 3"),
        (lambda: decoder().memory(torch.zeros(1, 2, 16), 3), "positions=3: pass Positions"),
        (lambda: decoder()(TARGET), "memory=None: this decoder reads an encoder"),
        (lambda: decoder()(TARGET, memory=torch.zeros(2, 5, 16)), "memory=a tensor of shape"),
        (lambda: decoder()(TARGET, memory=decoder().memory(torch.zeros(3, 5, 16))), "do not belong together"),
        (
            lambda: Transformer(CONFIG, "rope")(TARGET, memory=decoder().memory(torch.zeros(2, 5, 16))),
            "has no cross-attention",
        ),
        (lambda: decoder()(TARGET, memory=Memory((), Positions.arange(3), NoPE())), "memory=Memory"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
