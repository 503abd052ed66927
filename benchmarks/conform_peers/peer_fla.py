"""flash-linear-attention: its Triton kernel of RoPE, on a CPU under Triton's interpreter. The modules around it, which ask
for a GPU, are stubs, and the kernel's configurations are not tuned."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from unittest import mock

import torch
from shared import stand_in, without

PACKAGE = "fla-core"


def _undecorated(*given, **named):
    return given[0] if given and callable(given[0]) else _undecorated


def _chunks(cu_seqlens, size):
    """(document, chunk of the document) of every program."""
    counts = ((cu_seqlens.diff() + size - 1) // size).tolist()
    return torch.tensor([(n, i) for n, count in enumerate(counts) for i in range(count)])


def _import():
    root = importlib.util.find_spec("fla")
    if root is None or not root.submodule_search_locations:
        raise ImportError("fla-core is not installed")
    folder = Path(next(iter(root.submodule_search_locations))) / "modules"
    modules = stand_in(
        "fla", "fla.ops", "fla.ops.utils", "fla.utils", "fla.backends", "fla.modules", "fla.modules.rotary"
    )
    modules["fla.utils"].IS_AMD = False
    modules["fla.utils"].autotune_cache_kwargs = {}
    modules["fla.utils"].get_multiprocessor_count = lambda index=0: 1
    modules["fla.utils"].input_guard = modules["fla.backends"].dispatch = _undecorated
    modules["fla.ops.utils"].prepare_chunk_indices = _chunks
    file = folder / "rotary" / "ops.py" if (folder / "rotary").is_dir() else folder / "rotary.py"
    spec = importlib.util.spec_from_file_location("fla.modules.rotary.ops", file)
    module = importlib.util.module_from_spec(spec)
    with mock.patch("triton.autotune", return_value=lambda kernel: kernel):
        spec.loader.exec_module(module)
    without(modules)
    return module


rotary_module = _import()


@cache
def _module(dim, base, interleaved, dtype):
    return rotary_module.RotaryEmbedding(dim, base=base, interleaved=interleaved).to(dtype)


def _turn(x, base, longest, interleaved=False, **where):
    if x.dtype == torch.bfloat16 or x.device.type != "cpu":  # the interpreter has no such type
        raise NotImplementedError
    module = _module(x.shape[-1], base, interleaved, torch.float32)
    rows = x.transpose(1, 2).contiguous()
    return module(rows, rows.clone(), max_seqlen=longest, **where)[0].transpose(1, 2)


def ragged(x, offsets, base):
    return _turn(x, base, int(offsets.max()) + x.shape[2], seqlen_offset=offsets)


def packed(x, cu_seqlens, base):
    return _turn(x, base, x.shape[2], cu_seqlens=cu_seqlens.int())


CHECKS = [
    ("RotaryEmbedding(seqlen_offset), Triton's interpreter", ragged, "rotary_ragged"),
    ("RotaryEmbedding(cu_seqlens), Triton's interpreter", packed, "rotary_packed"),
]
