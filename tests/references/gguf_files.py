"""Writes models of transformers as GGUF files, the way llama.cpp's converter does, without posenc."""

import json

import gguf
import numpy as np

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
"""transformers' names, and llama.cpp's for the same."""


WORDS = ["<unk>", "<s>", "</s>", "w", "x", "0", "w0", *(f"x{index}" for index in range(90))]


def write(path, model, words=WORDS, rope_freqs=None, fields=(), merges=("w 0", "x 0")):
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
    if merges:
        writer.add_token_merges(merges)
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


ARCHITECTURES = {
    "llama": ("llama", True, 0.0), "mistral": ("llama", True, 0.0),
    "qwen2": ("qwen2", False, 0.0), "qwen3": ("qwen3", False, 0.0), "phi3": ("phi3", False, 0.0),
    "gemma2": ("gemma2", False, 1.0), "gemma3_text": ("gemma3", False, 1.0),
    "starcoder2": ("starcoder2", False, 0.0), "stablelm": ("stablelm", False, 0.0),
}  # fmt: skip
"""Model type -> architecture, whether rows are permuted from halves to pairs, what is added to the weights of norms."""


def plain_keys(model):
    """The keys of a rotation without scaling."""
    config, tables = model.config, model.config.rope_parameters
    main = tables.get("full_attention", tables)
    dim = int(head_dim(config) * (main.get("partial_rotary_factor") or 1.0))
    keys = {"rope.freq_base": float(main["rope_theta"]), "rope.dimension_count": dim}
    if "sliding_attention" in tables:
        keys["rope.freq_base_swa"] = float(tables["sliding_attention"]["rope_theta"])
    return keys


def head_dim(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def written(path, model, keys=None, tensors=(), tokenizer=None):
    """A model of one of these types in float32. keys: of the rotation, after the architecture; tensors: (name, array) pairs of it.
    tokenizer: a fast one with byte-level pairs; without it tokens are numbers, for llama.cpp runs no model without a vocabulary."""
    config, (name, permuted, offset) = model.config, ARCHITECTURES[model.config.model_type]
    writer = gguf.GGUFWriter(path, name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim(config))
    writer.add_value_length(head_dim(config))
    if name in ("starcoder2", "stablelm"):
        writer.add_layer_norm_eps(getattr(config, "norm_epsilon", None) or config.layer_norm_eps)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if name == "stablelm":
        writer.add_parallel_residual(config.use_parallel_residual)
    writer.add_vocab_size(config.vocab_size)
    if name in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
        pattern = [kind == "sliding_attention" for kind in config.layer_types]
        writer.add_array(f"{name}.attention.sliding_window_pattern", pattern)
    if name == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    for key, value in (plain_keys(model) if keys is None else keys).items():
        kinds = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        kinds[type(value)](f"{name}.{key}", value)
    data = None if tokenizer is None else json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    words = [f"[{number}]" for number in range(config.vocab_size)]
    merges = ["[ 0"] if data is None else [each if isinstance(each, str) else " ".join(each) for each in data["merges"]]
    if data is not None:
        words[: len(data["vocab"])] = sorted(data["vocab"], key=data["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([1] * len(words))
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    for key, array in tensors:
        writer.add_tensor(key, np.asarray(array, np.float32))
    number = {each: at for at, each in gguf.MODEL_ARCH_NAMES.items()}[name]
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for key, weight in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = weight.float().numpy()
        for heads, projection in ((config.num_attention_heads, "q_proj"), (config.num_key_value_heads, "k_proj")):
            if permuted and projection in key:
                array = interleave(array.reshape(len(array), -1), heads).reshape(array.shape)
        array = array + offset if key.endswith("norm.weight") else array
        writer.add_tensor(
            names.get_name(key, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(array, np.float32)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
