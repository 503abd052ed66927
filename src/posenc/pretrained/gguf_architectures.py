# SPDX-License-Identifier: Apache-2.0
"""The model types that posenc writes as GGUF files."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """How llama.cpp names and computes a model type.

    name: in GGUF. permuted: queries' and keys' rows are reordered from halves to pairs. norm_offset: added to the weights of
    norms. windows: it has sliding windows. divisors: tensors with divisors of the frequencies.
    """

    name: str
    permuted: bool = False
    norm_offset: float = 0.0
    windows: bool = False
    divisors: tuple[str, ...] = ()


ARCHITECTURES = {
    "llama": Architecture("llama", permuted=True, divisors=("rope_freqs.weight",)),
    "mistral": Architecture("llama", permuted=True, divisors=("rope_freqs.weight",)),
    "smollm3": Architecture("smollm3", permuted=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "phi3": Architecture("phi3", divisors=("rope_factors_long.weight", "rope_factors_short.weight")),
    "gemma": Architecture("gemma", norm_offset=1.0),
    "gemma2": Architecture("gemma2", norm_offset=1.0, windows=True),
    "gemma3_text": Architecture("gemma3", norm_offset=1.0, windows=True),
    "olmo2": Architecture("olmo2"),
}
"""config.model_type -> architecture; each was compared with llama.cpp's log-probabilities (tests/pretrained/test_gguf_file.py)."""
