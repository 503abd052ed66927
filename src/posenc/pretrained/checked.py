# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint's files may say: which files have its weights, and that its configuration agrees with them, checked before a
model is made or anything of the stated size is allocated."""

import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from posenc.errors import InputError, shown
from posenc.spec import MOST_LAYERS, read_json

INDEX = "model.safetensors.index.json"
SIZES = re.compile(
    r"(vocab|hidden|intermediate|embedding|ffn|mlp)_size|(head|embed|n_embd|kv|qk|v)_dim|n_embd|n_head|head_dim|d_(model|ff|kv|head)"
    r"|num_(attention_|key_value_)?heads|max_position_embeddings|n_positions|n_ctx"
)
"""Names of sizes in a configuration, which are integers above 0."""
LAYERS = re.compile(r"(num_|n_)?(\w+_)?(layers?|blocks|depth)|n_layer")
"""Names of numbers of layers."""
EPSILONS = re.compile(r"(^|_)(eps|epsilon)$")
"""How names of what norms add to a variance end."""
SCALES = re.compile(r"(scale(_inv)?|scales|qweight|qzeros|g_idx|zero_point|quant_state\..*|absmax|quant_map|SCB)$")
"""How names of weights end that quantisation adds."""
QUANTISED = re.compile(r"F[468]_|[IU]\d+$|BOOL$")
"""Dtypes in safetensors' headers that no weight has as it is trained."""
SPARE = 2**28
"""Numbers of a model, such as its masks and tables, that need not be in its files."""


# ------------------------------------------------------------------------------------------ safetensors


def weight_files(folder: Path, stated: Any = None) -> list[Path]:
    """The files with the weights of a folder: model.safetensors, or those that its index names. stated: transformers_weights in
    its configuration.

    Raises:
        InputError: another than a file of the folder whose name ends in .safetensors; a link that leads out of the folder, unless
            the folder is a snapshot in the cache of the Hugging Face hub and the file is in its blobs; an index that is none.
    """
    name = stated or ("model.safetensors" if (folder / "model.safetensors").is_file() else INDEX)
    if isinstance(name, str) and name.endswith(".index.json"):
        index = _inside(folder, name, ".index.json")
        if not index.is_file():
            raise InputError(f"{folder}: has neither model.safetensors nor {name}: get the files that are missing")
        try:
            content = read_json(index.read_bytes())
            names = list(dict.fromkeys(content["weight_map"].values()))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InputError(
                f"{index}: is no index of weights (weight_map: names and files); get the file again"
            ) from None
    else:
        names = [name]
    return [_inside(folder, each, ".safetensors") for each in names]


def check_file_name(model: object, name: object, suffix: str) -> str:
    """The name of a file with weights, as a configuration or an index states it.

    Raises:
        InputError: it leads out of the model's folder, or has another suffix.
    """
    if not isinstance(name, str) or name != Path(name).name or not name.endswith(suffix) or "\\" in name:
        raise InputError(
            f"{model}: names {shown(name)} as a file of its weights: must be a plain name in the folder that ends in {suffix}"
        )
    return name


def _inside(folder: Path, name: object, suffix: str) -> Path:
    file = folder / check_file_name(folder, name, suffix)
    own = folder.resolve()
    roots = [own, own.parent.parent / "blobs"] if own.parent.name == "snapshots" else [own]
    if file.is_symlink() and not any(file.resolve().is_relative_to(root) for root in roots):
        raise InputError(f"{file}: is a link to a file outside of the folder: put the file itself there")
    return file


def shapes_in(files: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in safetensors, by name, from their headers.

    Raises:
        InputError: a file that is missing or cut off; a weight in float8 or in integers, which is one only with the scales of its
            quantisation.
    """
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        if not file.exists():
            raise InputError(f"{file}: is missing, and has weights of the model: get the files that are missing")
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    tensor = opened.get_slice(name)
                    shapes[name], kind = tuple(tensor.get_shape()), str(tensor.get_dtype())
                    if name.endswith(("weight", ".bias")) and QUANTISED.match(kind):
                        raise InputError(
                            f"{file}: {name} is in {kind}, quantised: take the model in float32, bfloat16 or float16, or as a GGUF file"
                        )
        except SafetensorError as error:
            size = file.stat().st_size
            raise InputError(
                f"{file}: its {size} bytes are no complete safetensors ({error}): get the file again"
            ) from error
    return shapes


def check_sizes_stated(name: str, stored: Mapping[str, Any], tensors: int) -> None:
    """Refuse numbers in a configuration, also of its parts, that no model can have. tensors: how many the files have.

    Raises:
        InputError: a size that is no integer above 0, more layers than the files have tensors, or NaN, of which all outputs are.
    """
    for key, value in stored.items():
        if isinstance(value, Mapping):
            check_sizes_stated(name, value, tensors)
        elif isinstance(value, bool | str | list) or value is None:
            continue
        elif LAYERS.fullmatch(key) and not -1 < value <= max(tensors, MOST_LAYERS):
            raise InputError(f"{name}: {key}={value}: its files have {tensors} tensors, and a layer has at least one")
        elif SIZES.fullmatch(key) and not (isinstance(value, int) and 0 < value < 2**63):
            raise InputError(f"{name}: {key}={value}: must be an integer above 0")
        elif value != value or (EPSILONS.search(key) and not 0 <= value < 1):
            raise InputError(f"{name}: {key}={value}: must be a number" + ", at least 0 and below 1" * (value == value))
    if stored.get("num_hidden_layers") == 0:
        raise InputError(f"{name}: num_hidden_layers=0: a model has at least one layer")


def check_model(name: str, model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a model on "meta" that its files cannot fill, before it is allocated. shapes: of the tensors in the files.

    Raises:
        InputError: a weight of another shape than in the files, or far more numbers than they have.
    """
    state = dict(model.state_dict())
    prefix = getattr(model, "base_model_prefix", "") + "."
    for weight, tensor in state.items():
        stored = shapes.get(weight, shapes.get(weight.removeprefix(prefix)))
        if stored is not None and stored != tuple(tensor.shape):
            raise InputError(
                f"{name}: its weights cannot be read: {weight} is {stored} in its files and {tuple(tensor.shape)} by its "
                "configuration, a mismatch: get the configuration that fits"
            )
    wanted = sum(tensor.numel() for tensor in {*model.parameters(), *model.buffers()})
    have = sum(map(prod, shapes.values()))
    if wanted > 2 * have + SPARE:
        raise InputError(
            f"{name}: its configuration makes a model of {wanted:,} numbers, and its files have {have:,}: get the configuration "
            "that fits"
        )


def check_used(name: str, left: Sequence[str]) -> None:
    """Raises:
    InputError: names of weights in the files that are in the way of a model's numbers and that it does not read."""
    if not left:
        return
    first = next(filter(SCALES.search, left), left[0])
    why = (
        "scales quantised weights: take the model in float32, bfloat16 or float16, or as a GGUF file"
        if SCALES.search(first)
        else "would change the output: get the configuration that fits (more layers, biases or norms)"
    )
    raise InputError(
        f"{name}: {len(left)} of the weights in its files are not used by its configuration, and {first} {why}"
    )


# ------------------------------------------------------------------------------------------ GGUF

_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value, by GGUF's types (gguf.md: uint8 .. float64)."""
_STRING, _ARRAY, _UINT32, _UINT64 = 8, 9, 4, 10


class _Head:
    """Reads the head of a GGUF file, and no further than its end."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size = file, os.fstat(file.fileno()).st_size

    def take(self, count: int) -> bytes:
        if count > self.size - self.file.tell():
            raise ValueError(f"it ends within its head, or a length in it is wrong ({count:,} bytes)")
        return self.file.read(count)

    def number(self, layout: str = "<Q") -> int:
        return int(struct.unpack(layout, self.take(struct.calcsize(layout)))[0])

    def text(self) -> str:
        return self.take(self.number()).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> int | None:
        """A value, which is skipped unless it is an unsigned integer."""
        if kind in (_UINT32, _UINT64):
            return self.number("<I" if kind == _UINT32 else "<Q")
        if kind in _SCALARS:
            self.take(_SCALARS[kind])
        elif kind == _STRING:
            self.take(self.number())
        elif kind == _ARRAY and depth < 2:
            inner, count = self.number("<I"), self.number()
            if inner in _SCALARS:
                self.take(count * _SCALARS[inner])
            else:
                self.check_count("values", count, 8)
                for _ in range(count):
                    self.value(inner, depth + 1)
        else:
            raise ValueError(f"a value of its head has the type {kind}{' in a list of lists' if depth else ''}")
        return None

    def check_count(self, what: str, count: int, least: int) -> None:
        """least: bytes that each takes."""
        if count * least > self.size:
            raise ValueError(f"it has {count:,} {what} by its head, and {self.size:,} bytes")


def check_gguf(path: Path) -> None:
    """Refuse a GGUF file whose head contradicts itself or the file, before a reader that believes it.

    Raises:
        ValueError: counts or lengths beyond the end, a tensor that is not in the file, is not aligned or overlaps another, sizes
            that are no integers above 0, or another number of layers than the tensors are of.
    """
    with path.open("rb") as file:
        head = _Head(file)
        magic, version = head.take(4), head.number("<I")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError("it does not begin as a GGUF file of version 2 or 3 does")
        tensors, keys = head.number(), head.number()
        head.check_count("tensors", tensors, 24)
        head.check_count("keys", keys, 12)
        values = {}
        for _ in range(keys):
            name = head.text()
            values[name] = head.value(head.number("<I"))
        places = list(_places(head, tensors))
        align = values.get("general.alignment")
        align = 32 if align is None else align
        if align < 1 or align & (align - 1):
            raise ValueError(f"general.alignment={align}: must be a power of 2")
        start = -(-file.tell() // align) * align
    end = 0
    for offset, size, name in sorted(places):
        if offset % align or offset < end or start + offset + size > head.size:
            raise ValueError(
                f"tensor {name}: offset {offset} is not aligned, within another tensor, or beyond the end of the file"
            )
        end = offset + size
    layers = {int(found[1]) for _, _, name in places if (found := re.match(r"blk\.(\d{1,9})\.", name))}
    for key, value in values.items():
        last = key.rpartition(".")[2]
        if last == "block_count" and layers and value != max(layers) + 1:
            raise ValueError(f"{key}={value}: its tensors are of {max(layers) + 1} layers")
        if last in ("embedding_length", "context_length", "head_count", "vocab_size", "block_count") and value == 0:
            raise ValueError(f"{key}=0: must be an integer above 0")


def _places(head: _Head, tensors: int) -> Iterator[tuple[int, int, str]]:
    """Offset, bytes and name of each tensor."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    for _ in range(tensors):
        name, dims = head.text(), head.number("<I")
        if dims > 4:
            raise ValueError(f"tensor {name}: has {dims} dimensions, and GGUF's have at most 4")
        shape = [head.number() for _ in range(dims)]
        kind, offset = head.number("<I"), head.number()
        try:
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (ValueError, KeyError):
            raise ValueError(f"tensor {name}: has the unknown type {kind}") from None
        yield offset, prod(shape) // block * size, name


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is exhausted, which on a CPU is a plain RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
