"""vLLM: model_executor.layers.rotary_embedding, its native (pure torch) path. The wheel requires CUDA, so the modules around
that folder are stubs, and custom operators are plain modules."""

import importlib
import importlib.util
from functools import cache
from pathlib import Path

import torch
from shared import LONGEST, from_angles, stand_in

PACKAGE = "vllm"
FOLDER = "vllm.model_executor.layers.rotary_embedding"


class _Operator(torch.nn.Module):
    """vLLM's CustomOp without its registry and its choice of kernels."""

    def __init__(self, *, enforce_enable=False):
        super().__init__()

    @classmethod
    def enabled(cls):
        return False

    @staticmethod
    def register(name):
        return lambda cls: cls


def _import():
    root = importlib.util.find_spec("vllm")
    if root is None or not root.submodule_search_locations:
        raise ImportError("vllm is not installed")
    path = Path(next(iter(root.submodule_search_locations)))
    modules = stand_in(
        "vllm", "vllm._aiter_ops", "vllm.logger", "vllm.platforms", "vllm.utils", "vllm.utils.torch_utils"
    )
    modules |= stand_in("vllm.model_executor", "vllm.model_executor.custom_op", "vllm.model_executor.layers", FOLDER)
    modules["vllm.model_executor.custom_op"].CustomOp = _Operator
    modules[FOLDER].__path__ = [str(path / "model_executor" / "layers" / "rotary_embedding")]
    names = "base", "llama3_rope", "linear_scaling_rope", "yarn_scaling_rope"
    return [importlib.import_module(f"{FOLDER}.{name}") for name in names]


base_rope, llama3_rope, linear_rope, yarn_rope = _import()


@cache
def _module(dim, base, neox, dtype):
    return base_rope.RotaryEmbedding(dim, dim, LONGEST, base, neox, dtype)


def _turn(x, positions, base, neox):
    dim = x.shape[-1]
    module = _module(dim, base, neox, x.dtype)
    rows = [row.transpose(0, 1).flatten(1).clone() for row in x]  # (seq, heads * head_dim), one sequence at a time
    turned = [module.forward_native(positions, row, row.clone())[0] for row in rows]
    return torch.stack([row.unflatten(1, (-1, dim)).transpose(0, 1) for row in turned])


def neox(x, positions, base):
    return _turn(x, positions, base, True)


def gptj(x, positions, base):
    return _turn(x, positions, base, False)


def _schedule(module, head_dim):
    cos, sin = module.cos_sin_cache[1].split(head_dim // 2)
    return from_angles(cos, sin)


def yarn(head_dim, base, factor, original_max_positions, beta_fast=32, beta_slow=1, truncate=True):
    options = {"beta_fast": beta_fast, "beta_slow": beta_slow, "truncate": truncate}
    shape = head_dim, head_dim, original_max_positions, base, True, factor, torch.float32
    return _schedule(yarn_rope.YaRNScalingRotaryEmbedding(*shape, **options), head_dim)


def llama3(head_dim, base, factor, original_max_positions, low_freq_factor=1.0, high_freq_factor=4.0):
    shape = head_dim, head_dim, 2, base, True, torch.float32
    scaling = factor, low_freq_factor, high_freq_factor, original_max_positions
    return _schedule(llama3_rope.Llama3RotaryEmbedding(*shape, *scaling), head_dim)


def linear(head_dim, base, factor):
    return _schedule(
        linear_rope.LinearScalingRotaryEmbedding(head_dim, head_dim, 2, base, True, factor, torch.float32), head_dim
    )


CHECKS = [
    ("RotaryEmbedding(is_neox_style=True).forward_native", neox, "rotary"),
    ("RotaryEmbedding(is_neox_style=False).forward_native", gptj, "rotary_interleaved"),
    ("LinearScalingRotaryEmbedding", linear, "linear"),
    ("YaRNScalingRotaryEmbedding", yarn, "yarn"),
    ("Llama3RotaryEmbedding", llama3, "llama3"),
]
