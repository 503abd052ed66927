"""Frequency schedules as transformers computes them."""

import torch
import transformers
from hypothesis import strategies as st
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

DIMS = st.integers(2, 96).map(lambda n: 2 * n)
BASES = st.sampled_from([1e4, 1e5, 5e5, 1e6])
FACTORS = st.floats(1, 64)
LENGTHS = st.integers(64, 200000)
NAMES = {"original_max_positions": "original_max_position_embeddings", "fraction": "partial_rotary_factor"}


def llama_config(kind, head_dim, base, *, max_positions=2**20, **options):
    """A Llama of that rope_type; options have posenc's names where these differ."""
    options = {NAMES.get(name, name): value for name, value in options.items()}
    shape = {"hidden_size": 2 * head_dim, "num_attention_heads": 2, "head_dim": head_dim}
    parameters = {"rope_type": kind, "rope_theta": base, **options}
    return transformers.LlamaConfig(**shape, max_position_embeddings=max_positions, rope_parameters=parameters)


def of_transformers(kind, head_dim, base, *, seq_len=None, max_positions=2**20, **options):
    """inv_freq (float32) and attention factor."""
    config = llama_config(kind, head_dim, base, max_positions=max_positions, **options)
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=seq_len)
