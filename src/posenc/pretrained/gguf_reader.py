# SPDX-License-Identifier: Apache-2.0
"""gguf's reader of GGUF files, and what they state of the rotation."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from posenc.errors import InputError

__all__ = ["ONE_READER", "read_gguf", "rotation_of"]


@contextmanager
def read_gguf(path: Path) -> Iterator[Any]:
    """gguf's reader of a file, which takes a second to make, and which transformers gets instead of making others: in this
    thread alone, and one thread after the other."""
    import gguf
    import numpy as np

    with ONE_READER:
        yield from _read_gguf(path, gguf, np)


ONE_READER = threading.RLock()


def _read_gguf(path: Path, gguf: Any, np: Any) -> Iterator[Any]:
    original, mine = gguf.GGUFReader, threading.get_ident()

    class Reader(original):  # type: ignore[misc, valid-type]
        """Reads a plain array: each of the hundred thousand slices of a memmap takes four times as long."""

        @property
        def data(self) -> Any:
            return self._array

        @data.setter
        def data(self, mapped: Any) -> None:
            self._array = mapped.view(np.ndarray)

    reader = Reader(path)

    def shared(file: Any, *rest: Any) -> Any:
        return reader if threading.get_ident() == mine and Path(file) == path else original(file, *rest)

    gguf.GGUFReader = shared
    try:
        yield reader
    finally:
        gguf.GGUFReader = original


def rotation_of(reader: Any) -> dict[str, Any]:
    """What gguf's reader of a file has of the rotation: keys, and tensors of divisors as lists."""
    header = {key: value.contents() for key, value in reader.fields.items() if not key.startswith("tokenizer.")}
    for tensor in reader.tensors:
        if tensor.name.startswith(("rope_freqs", "rope_factors")):
            if tensor.tensor_type.name != "F32":
                raise InputError(f"tensor {tensor.name} is {tensor.tensor_type.name}, and must be F32")
            header[tensor.name] = torch.tensor(tensor.data).double().flatten().tolist()
    return header
