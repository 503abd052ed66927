"""Writes a Llama of transformers as a GGUF file, the way llama.cpp's converter does, without posenc."""

import gguf
import numpy as np

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
"""transformers' names, and llama.cpp's for the same."""


def write(path, model, words, rope_freqs=None, fields=()):
    """`words`: the vocabulary, with "w", "x", "0", "w0" and "x0". `rope_freqs`: divisors of the frequencies. `fields`: more (key, value) pairs."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_merges(["w 0", "x 0"])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    for key, value in fields:
        kinds = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        kinds[type(value)](key, value)
    for name, tensor in model.state_dict().items():
        array = tensor.float().numpy()
        for heads, projection in ((config.num_attention_heads, "q_proj"), (config.num_key_value_heads, "k_proj")):
            if projection in name:
                array = interleave(array, heads)
        writer.add_tensor(_name(name), array)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(rope_freqs, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave(weight, heads):
    """Rows of each head from halves (x_0 .. x_d/2, y_0 ..) to pairs (x_0, y_0, x_1, ...)."""
    rows = weight.reshape(heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(weight.shape)


def _name(name):
    body, _, kind = name.rpartition(".")
    if body.startswith("model.layers."):
        _, _, block, rest = body.split(".", 3)
        return f"blk.{block}.{NAMES[rest]}.{kind}"
    return f"{NAMES[body]}.{kind}"
