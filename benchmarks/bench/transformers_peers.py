# SPDX-License-Identifier: Apache-2.0
"""Attention modules of transformers, with a case's weights.

What a model computes once for all of its layers (causal masks, BLOOM's and MPT's biases, XLNet's and RoFormer's sinusoids,
DeBERTa's distances) is computed beforehand; what a layer computes is timed. T5's first layer computes the bias for all of them,
so its module is there twice: as the first layer, and as one to which the bias is passed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.attention import (
    BUCKETS,
    CLIP,
    DIM,
    HEAD_DIM,
    HEADS,
    MOST_RELATIVE,
    AttentionInputs,
    fill,
    gradient,
    linear,
    measured,
)
from bench.case import Built, load
from posenc.pretrained.models import cache_name
from posenc.testing.oracles.codes import sinusoidal
from posenc.testing.oracles.content import after
from posenc.testing.oracles.rotations import angles, turned

SDPA = "sdpa"
"""The default attention of transformers, where a module offers several."""


class Called(nn.Module):
    """A module of transformers, called as its model calls it, and the output projection where it has none."""

    def __init__(self, module: nn.Module, call: Callable[[Tensor], Tensor], out: nn.Module | None = None) -> None:
        super().__init__()
        self.module = module
        self.call = call
        self.out: nn.Module = out or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.call(x))


def _config(name: str, **options: Any) -> Any:
    return getattr(load("transformers"), f"{name}Config")(**options)


def _modeling(name: str) -> Any:
    return load("transformers", f"transformers.models.{name}.modeling_{name}")


def _on_device(inputs: AttentionInputs, module: Any) -> Any:
    """On the problem's device and in its dtype; biases, which the case has none of, are zero."""
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    return module.to(inputs.problem.device, inputs.problem.dtype).train(inputs.problem.mode == "train")


def _fill_all(module: Any, inputs: AttentionInputs, names: dict[str, str]) -> None:
    for attribute, weight in names.items():
        fill(getattr(module, attribute).weight, inputs.weights[weight])


def _additive_mask(inputs: AttentionInputs) -> Tensor:
    unseen = after(inputs.query_rows, inputs.problem.length)
    lowest = torch.finfo(inputs.problem.dtype).min
    return torch.zeros_like(unseen, dtype=inputs.problem.dtype).masked_fill(unseen, lowest)[None, None]


def t5(inputs: AttentionInputs, bias_given: bool = False) -> Built:
    """bias_given: the first layer has computed the bias."""
    causal = inputs.scheme.causal
    config = _config("T5", d_model=DIM, d_kv=HEAD_DIM, num_heads=HEADS, is_decoder=causal, dropout_rate=0.0)
    config._attn_implementation = SDPA
    attention = _modeling("t5").T5Attention
    module = _on_device(inputs, attention(config, has_relative_attention_bias=True, layer_idx=0, is_causal=causal))
    _fill_all(module, inputs, {name: name for name in "qkvo"})
    table = module.relative_attention_bias.weight
    table.data = inputs.weights["table"].T.contiguous()
    mask = _additive_mask(inputs) if causal else None
    cache, earlier = inputs.cache(), inputs.problem.length - inputs.tokens.shape[1]
    bias = None
    if bias_given:
        with torch.no_grad():
            bias = module.compute_bias(inputs.tokens.shape[1], inputs.problem.length, past_seen_tokens=earlier)

    def call(x: Tensor) -> Tensor:
        return module(x, mask=mask, position_bias=bias, **{cache_name(): cache})[0]

    return measured(inputs, Called(module, call), lambda: gradient(table).T)


def bloom(inputs: AttentionInputs) -> Built:
    modeling = _modeling("bloom")
    config = _config("Bloom", hidden_size=DIM, n_head=HEADS, hidden_dropout=0.0, attention_dropout=0.0)
    module = _on_device(inputs, modeling.BloomAttention(config, 0))
    w = inputs.weights
    together = torch.stack([w[name].view(HEADS, HEAD_DIM, DIM) for name in "qkv"], 1)
    fill(module.query_key_value.weight, together)
    fill(module.dense.weight, w["o"])
    ones = torch.ones(1, inputs.problem.length, device=inputs.problem.device)
    alibi = modeling.build_alibi_tensor(ones, HEADS, inputs.problem.dtype)
    mask, residual, cache = _additive_mask(inputs), torch.zeros_like(inputs.tokens), inputs.cache()
    return measured(inputs, Called(module, lambda x: module(x, residual, alibi, mask, layer_past=cache)[0]))


def mpt(inputs: AttentionInputs) -> Built:
    modeling, length = _modeling("mpt"), inputs.problem.length
    config = _config("Mpt", d_model=DIM, n_heads=HEADS, max_seq_len=length)
    module = _on_device(inputs, modeling.MptAttention(config, 0))
    fill(module.Wqkv.weight, torch.cat([inputs.weights[name] for name in "qkv"]))
    fill(module.out_proj.weight, inputs.weights["o"])
    bias = modeling.build_mpt_alibi_tensor(HEADS, length).to(inputs.problem.device, inputs.problem.dtype)
    mask, cache = after(inputs.query_rows, length)[None, None], inputs.cache()
    return measured(inputs, Called(module, lambda x: module(x, bias, cache, mask)[0]))


def wav2vec2_bert(inputs: AttentionInputs) -> Built:
    config = _config(
        "Wav2Vec2Bert", hidden_size=DIM, num_attention_heads=HEADS, position_embeddings_type="relative_key",
        attention_dropout=0.0, left_max_position_embeddings=CLIP, right_max_position_embeddings=CLIP,
    )  # fmt: skip
    config._attn_implementation = SDPA
    module = _on_device(inputs, _modeling("wav2vec2_bert").Wav2Vec2BertSelfAttention(config))
    _fill_all(module, inputs, {"linear_q": "q", "linear_k": "k", "linear_v": "v", "linear_out": "o"})
    table = module.distance_embedding.weight
    fill(table, inputs.weights["table"])
    return measured(inputs, Called(module, lambda x: module(x)[0]), lambda: gradient(table))


def xlnet(inputs: AttentionInputs) -> Built:
    config = _config("XLNet", d_model=DIM, n_head=HEADS, d_inner=8, dropout=0.0)
    module: Any = _modeling("xlnet").XLNetRelativeAttention(config)
    w = inputs.weights
    for name, weight in (("q", "q"), ("k", "k"), ("v", "v"), ("r", "table")):
        fill(getattr(module, name), w[weight].view(HEADS, HEAD_DIM, DIM).permute(2, 0, 1))
    fill(module.o, w["o"])
    fill(module.r_w_bias, w["content_bias"])
    fill(module.r_r_bias, w["distance_bias"])
    module = module.to(inputs.problem.device, inputs.problem.dtype)
    # the residual and its norm are not attention's
    module.layer_norm = nn.Identity()
    module.post_attention = partial(module.post_attention, residual=False)
    length = inputs.problem.length
    distances = torch.arange(length, -length, -1, device=inputs.problem.device)
    sinusoids = sinusoidal(distances, DIM, 10000.0, layout="concat").to(inputs.problem.dtype)[:, None]

    def call(x: Tensor) -> Tensor:
        return module(x.transpose(0, 1), None, None, None, sinusoids, None)[0].transpose(0, 1)

    return measured(inputs, Called(module, call), lambda: gradient(module.r).permute(1, 2, 0))


def deberta(inputs: AttentionInputs) -> Built:
    modeling = _modeling("deberta_v2")
    config = _config(
        "DebertaV2", hidden_size=DIM, num_attention_heads=HEADS, relative_attention=True, position_buckets=BUCKETS,
        max_relative_positions=MOST_RELATIVE, pos_att_type=["c2p", "p2c"], share_att_key=True,
        attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip
    module = _on_device(inputs, modeling.DisentangledSelfAttention(config))
    _fill_all(module, inputs, {"query_proj": "q", "key_proj": "k", "value_proj": "v"})
    length, device = inputs.problem.length, inputs.problem.device
    table = nn.Parameter(inputs.weights["table"].clone())  # the model's, not the module's
    module.register_parameter("rel_embeddings", table)
    tokens = torch.empty(1, length, 1, device=device)
    distances = modeling.build_relative_position(tokens, tokens, BUCKETS, MOST_RELATIVE)
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=device)

    def call(x: Tensor) -> Tensor:
        return module(x, mask, relative_pos=distances, rel_embeddings=table)[0]

    host = Called(module, call, linear(inputs.weights["o"]))
    return measured(inputs, host, lambda: gradient(table))


def roformer(inputs: AttentionInputs) -> Built:
    config = _config("RoFormer", hidden_size=DIM, num_attention_heads=HEADS, attention_probs_dropout_prob=0.0)
    module = _on_device(inputs, _modeling("roformer").RoFormerSelfAttention(config, layer_idx=0))
    _fill_all(module, inputs, {"query": "q", "key": "k", "value": "v"})
    every = torch.arange(inputs.problem.length, device=inputs.problem.device)
    sinusoids = sinusoidal(every, HEAD_DIM, 10000.0, layout="concat")[None, None]
    cache = inputs.cache()
    if cache is not None:  # it stores rotated keys
        cache.keys = turned(cache.keys, angles(every, HEAD_DIM), "interleaved")
    at_queries = sinusoids[:, :, inputs.query_rows].to(inputs.problem.dtype)

    def call(x: Tensor) -> Tensor:
        return module(x, sinusoidal_pos=at_queries, **{cache_name(): cache})[0]

    return measured(inputs, Called(module, call, linear(inputs.weights["o"])))
