"""transformers: assembled relative scores, index tables and masks."""

from types import SimpleNamespace

import torch
from transformers import masking_utils
from transformers.models.beit.modeling_beit import BeitRelativePositionBias
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.swin.modeling_swin import SwinRelativePositionBias
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as bert
from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as conformer

PACKAGE = "transformers"


def relative(q, table, num_keys):
    """Of an encoder, which has as many queries as keys."""
    batch, heads, queries, dim = q.shape
    if queries != num_keys:
        raise NotImplementedError
    far = len(table) // 2
    rows = table[torch.arange(1 - num_keys, num_keys).clamp(-far, far) + far]
    module = SimpleNamespace(
        linear_pos=lambda x: x.repeat(1, 1, heads), head_size=dim, scaling=1.0,
        pos_bias_u=torch.zeros(heads, dim), pos_bias_v=torch.zeros(heads, dim),
    )  # fmt: skip
    keys = torch.zeros(batch, heads, num_keys, dim)
    return conformer._apply_relative_position_encoding(module, q, keys, rows[None])[1]


def relative_key(q, table, num_keys):
    if q.shape[2] != num_keys:
        raise NotImplementedError
    far = len(table) // 2
    module = SimpleNamespace(
        left_max_position_embeddings=far,
        right_max_position_embeddings=far,
        scaling=1.0,
        distance_embedding=table.__getitem__,
    )
    return bert._apply_relative_key_position_encoding(module, q, torch.zeros(*q.shape[:2], num_keys, q.shape[3]))[1]


def swin(height, width):
    return SwinRelativePositionBias._create_relative_position_index(SimpleNamespace(window_size=(height, width)))


def beit(height, width):
    return BeitRelativePositionBias.generate_relative_position_index((height, width))


def _mask(function, num_queries, num_keys):
    i, j = torch.arange(num_keys)[-num_queries:, None], torch.arange(num_keys)
    return function(0, 0, i, j)


def window(num_queries, num_keys, window):
    return _mask(masking_utils.sliding_window_causal_mask_function(window), num_queries, num_keys)


def chunk(num_queries, num_keys, chunk):
    return _mask(
        masking_utils.chunked_causal_mask_function(chunk, torch.zeros(1, dtype=torch.long)), num_queries, num_keys
    )


def bloom_bias(num_heads, num_queries, num_keys):
    """The same for every query, which the softmax takes for its own."""
    return build_alibi_tensor(torch.ones(1, num_keys), num_heads, torch.float32).expand(-1, num_queries, -1)


def mpt_bias(num_heads, num_queries, num_keys):
    return (
        build_mpt_alibi_tensor(num_heads, num_keys)[..., -num_keys:].view(num_heads, 1, -1).expand(-1, num_queries, -1)
    )


def t5_bias(table, num_queries, num_keys, bidirectional, max_distance):
    module = SimpleNamespace(
        relative_attention_bias=torch.nn.Embedding.from_pretrained(table), is_decoder=not bidirectional,
        relative_attention_num_buckets=len(table), relative_attention_max_distance=max_distance,
        _relative_position_bucket=T5Attention._relative_position_bucket,
    )  # fmt: skip
    return T5Attention.compute_bias(module, num_queries, num_keys, past_seen_tokens=num_keys - num_queries)[0]


def swin_bias(table, height, width):
    module = SwinRelativePositionBias(table.shape[1], (height, width))
    module.relative_position_bias_table.data = table
    return module()[0]


CHECKS = [
    ("BLOOM build_alibi_tensor", bloom_bias, "alibi_bias"),
    ("MPT build_mpt_alibi_tensor", mpt_bias, "alibi_bias"),
    ("T5Attention.compute_bias(past_seen_tokens)", t5_bias, "t5_bias"),
    ("SwinRelativePositionBias", swin_bias, "swin_bias"),
    ("Wav2Vec2Conformer _apply_relative_position_encoding", relative, "relative"),
    ("Wav2Vec2Bert _apply_relative_key_position_encoding", relative_key, "relative"),
    ("Swin's relative_position_index", swin, "relative_index"),
    ("BeitRelativePositionBias.generate_relative_position_index", beit, "relative_index_class"),
    ("sliding_window_causal_mask_function", window, "mask_window"),
    ("chunked_causal_mask_function", chunk, "mask_chunk"),
]
