# SPDX-License-Identifier: Apache-2.0
"""gguf's reader of GGUF files, and what they state of the rotation."""

import builtins
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from posenc.errors import InputError

MORE = {"gemma": "gemma2", "olmo2": "qwen3", "smollm3": "llama"}
"""Architectures that transformers' reader lacks -> one that it has, whose keys and order of weights they share."""


def read_gguf(path: Path) -> Any:
    """gguf's reader of a file."""
    import gguf
    import numpy as np

    class Reader(gguf.GGUFReader):
        """Reads a plain array: each of the hundred thousand slices of a memmap takes four times as long."""

        @property
        def data(self) -> Any:
            return self._array

        @data.setter
        def data(self, mapped: Any) -> None:
            self._array = mapped.view(np.ndarray)

    return Reader(path)


def unpacker(reader: Any, **names: Any) -> Callable[..., dict[str, Any]]:
    """transformers' `load_gguf_checkpoint`, which imports gguf's reader and makes one of the file, a second's work: here it gets
    this one. names: others that it looks up in its module."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reading

    module = ModuleType("gguf")
    vars(module).update(vars(gguf) | {"GGUFReader": lambda *_: reader})

    def load(name: str, *more: Any) -> Any:
        return module if name == "gguf" else builtins.__import__(name, *more)

    theirs: Any = reading.load_gguf_checkpoint
    mapping: dict[str, Any] = reading.GGUF_TO_TRANSFORMERS_MAPPING
    configs, processors = mapping["config"], reading.TENSOR_PROCESSORS
    lacking = {name: like for name, like in MORE.items() if name not in configs}
    names |= {
        "GGUF_SUPPORTED_ARCHITECTURES": [*configs, *lacking],
        "GGUF_TO_TRANSFORMERS_MAPPING": mapping
        | {"config": configs | {name: configs[like] for name, like in lacking.items()}},
        "TENSOR_PROCESSORS": processors
        | {name: processors[like] for name, like in lacking.items() if like in processors},
    }
    names = vars(reading) | names | {"__builtins__": vars(builtins) | {"__import__": load}}
    return FunctionType(theirs.__code__, names, theirs.__name__, theirs.__defaults__)


def rotation_of(reader: Any) -> dict[str, Any]:
    """What gguf's reader of a file has of the rotation: keys, and tensors of divisors as lists."""
    header = {key: value.contents() for key, value in reader.fields.items() if not key.startswith("tokenizer.")}
    for tensor in reader.tensors:
        if tensor.name.startswith(("rope_freqs", "rope_factors")):
            if tensor.tensor_type.name != "F32":
                raise InputError(f"tensor {tensor.name} is {tensor.tensor_type.name}, and must be F32")
            header[tensor.name] = torch.tensor(tensor.data).double().flatten().tolist()
    return header
