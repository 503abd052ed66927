"""Small models with random weights: what a method does is the same at any size."""

import pytest
import torch
import transformers


def tiny_llama(**changes):
    torch.manual_seed(0)
    settings = {
        "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.2, "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**(settings | changes))).eval()


@pytest.fixture
def llama():
    return tiny_llama()
