# SPDX-License-Identifier: Apache-2.0
"""What is looked at in a model's files before any library reads them: sizes against the file's own, and no way out of
the folder."""

import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from posenc.errors import InputError

LARGEST_JSON = 64 * 2**20
"""Bytes of a JSON file with settings or an index; a tokenizer's may be larger, and is read by its own library."""
MOST_LAYERS, MOST_POSITIONS, MOST_SIZE = 10_000, 2**27, 2**31
LEAST_BYTES = 1 / 8
"""Of a parameter: the smallest kinds of GGUF take more than one bit."""

_LAYERS = re.compile(r"(num|n)_.*layers?|n_layer|num_blocks")
_SIZES = re.compile(r".*(_size|_dim|_heads|_rank|_experts|_groups)|d_model|d_ff|d_kv|n_embd|n_head|n_inner|dim|rank")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""How `struct` calls a GGUF value by its type."""
_STRING, _ARRAY, _DEEPEST, _MOST_DIMS = 8, 9, 2, 4


def check_folder(folder: Path) -> None:
    """Refuse a model's folder whose settings are damaged or absurd, or whose index leads out of it.

    Files that are links are followed: the cache of the Hugging Face hub is made of them.

    Raises:
        InputError: names the file, the entry and the remedy.
    """
    if (folder / "adapter_config.json").exists():
        raise InputError(
            f"{folder}: holds an adapter (adapter_config.json), which names another model; merge it into that model "
            "(peft: merge_and_unload, save_pretrained) and name the folder with the result"
        )
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    for file in (folder / "config.json", folder / "generation_config.json"):
        if file.exists():
            config = read_json(file)
            if file.name == "config.json":
                _check_config(file, config, weights)
    for file in folder.glob("*.index.json"):
        _check_index(file, read_json(file))


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object of a model's folder.

    Raises:
        InputError: too large, too deep, no JSON or no object.
    """
    try:
        size = file.stat().st_size
        if size > LARGEST_JSON:
            raise InputError(f"{file}: has {size} bytes, and no such file needs more than {LARGEST_JSON}; get it again")
        found = json.loads(file.read_text(encoding="utf-8"))
    except RecursionError:
        raise InputError(f"{file}: is nested too deeply to be a model's; get it again") from None
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; give a file that can be read") from None
    except ValueError as error:
        raise InputError(f"{file}: is no JSON ({error}); get it again") from None
    if not isinstance(found, dict):
        raise InputError(f"{file}: is no JSON object but a {type(found).__name__}; get it again")
    return found


def _check_config(file: Path, config: Mapping[str, Any], weights: int) -> None:
    for where, name, value in _numbers(config):
        limit = MOST_LAYERS if _LAYERS.fullmatch(name) else MOST_SIZE if _SIZES.fullmatch(name) else None
        limit = MOST_POSITIONS if name in ("max_position_embeddings", "n_positions", "n_ctx") else limit
        if limit is not None and not -1 <= value <= limit:
            raise InputError(f"{file}: {where}={value}: no model has that; at most {limit}")
    for width in ("hidden_size", "n_embd", "d_model"):
        rows, columns = config.get("vocab_size"), config.get(width)
        if isinstance(rows, int) and isinstance(columns, int) and rows * columns * LEAST_BYTES > weights > 0:
            raise InputError(
                f"{file}: vocab_size={rows} times {width}={columns} does not fit into {weights} bytes of weights; get "
                "the files that are missing, or the configuration that fits"
            )


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Every number in it: where it stands, its name, itself."""
    waiting: list[tuple[str, Any]] = [("", config)]
    while waiting:
        path, found = waiting.pop()
        for name, value in found.items():
            if isinstance(value, Mapping):
                waiting.append((f"{path}{name}.", value))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield f"{path}{name}", str(name), value


def _check_index(file: Path, index: Mapping[str, Any]) -> None:
    """Names of files are names alone, without a way to another folder, and not those of pickles."""
    shards = index.get("weight_map")
    if not isinstance(shards, dict):
        raise InputError(f"{file}: has no weight_map, from weights to files; get it again")
    for weight, shard in shards.items():
        if not isinstance(shard, str) or shard in ("", ".", "..") or re.search(r"[/\\\0]", shard):
            raise InputError(
                f"{file}: {weight} is said to be in {shard!r}: that is no file of this folder; get it again"
            )


class Tensor(NamedTuple):
    """Of a tensor in a GGUF file: its type by ggml's numbers, how many numbers it has, and at which byte they begin."""

    kind: int
    entries: int
    start: int


class Head(NamedTuple):
    """What the head of a GGUF file says: its values by name but for arrays, and its tensors."""

    values: dict[str, Any]
    tensors: dict[str, Tensor]


def check_gguf(path: Path) -> Head:
    """Walk through the head of a GGUF file, and hold every count and length in it against the file's size.

    The layout is that of the specification, ggml-org/ggml docs/gguf.md, versions 2 and 3, little-endian.

    Returns:
        What was read, which takes the gguf package's own reader seconds.

    Raises:
        InputError: no GGUF file, or one that is cut off or damaged.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _Head(file, size).check()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a file that can be read") from None
    except _Damaged as error:
        raise InputError(f"{path}: {error}; get the file again") from None


class _Damaged(Exception):
    pass


class _Head:
    """The head of a GGUF file of `size` bytes."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size

    def check(self) -> Head:
        if self.file.read(4) != b"GGUF":
            raise _Damaged("is no GGUF file")
        version = self._number("<I")
        if version not in (2, 3):
            raise _Damaged(f"says it is of GGUF version {version}, and 2 and 3 can be read")
        tensors, values = self._count(24), self._count(12)
        names: set[bytes] = set()
        found: dict[str, Any] = {}
        for _ in range(values):
            name = self._string()
            self._new(name, names)
            value = self._value(self._number("<I"))
            if value is not None:
                found[_text(name)] = value
        names, described = set(), dict[str, Tensor]()
        for _ in range(tensors):
            name = self._string()
            self._new(name, names)
            described[_text(name)] = self._tensor()
        unit = found.get("general.alignment", 32)
        if not isinstance(unit, int) or not 0 < unit <= 2**20 or unit & (unit - 1):
            raise _Damaged(f"says that its tensors are aligned to {unit} bytes")
        start = -(-self.file.tell() // unit) * unit
        return Head(found, {name: at._replace(start=start + at.start) for name, at in described.items()})

    @property
    def left(self) -> int:
        return self.size - self.file.tell()

    def _number(self, form: str) -> Any:
        if self.left < struct.calcsize(form):
            raise _Damaged("ends in the middle of its head")
        return struct.unpack(form, self.file.read(struct.calcsize(form)))[0]

    def _count(self, each: int) -> int:
        """How many there are of what takes at least `each` bytes."""
        count: int = self._number("<Q")
        if count * each > self.left:
            raise _Damaged(f"has {self.left} bytes left where it speaks of {count} entries")
        return count

    def _string(self) -> bytes:
        return self.file.read(self._count(1))

    def _new(self, name: bytes, names: set[bytes]) -> None:
        if name in names:
            raise _Damaged(f"has {name[:80]!r} twice")
        names.add(name)

    def _value(self, kind: int, depth: int = 0) -> Any:
        """A scalar or a text; None: an array, which is only walked through."""
        if kind in _SCALARS:
            return self._number(f"<{_SCALARS[kind]}")
        if kind == _STRING:
            return _text(self._string())
        if kind == _ARRAY and depth < _DEEPEST:
            of = self._number("<I")
            count = self._count(struct.calcsize(f"<{_SCALARS[of]}") if of in _SCALARS else 8)
            if of in _SCALARS:
                self._skip(count * struct.calcsize(f"<{_SCALARS[of]}"))
            else:
                for _ in range(count):
                    self._value(of, depth + 1)
        else:
            raise _Damaged("nests arrays too deeply" if kind == _ARRAY else f"has a value of the unknown type {kind}")
        return None

    def _skip(self, size: int) -> None:
        if size > self.left:
            raise _Damaged("ends in the middle of its head")
        self.file.seek(size, 1)

    def _tensor(self) -> Tensor:
        dims = self._number("<I")
        if dims > _MOST_DIMS:
            raise _Damaged(f"has a tensor of {dims} dimensions")
        entries = 1
        for _ in range(dims):
            entries *= self._number("<Q")
        kind, offset = self._number("<I"), self._number("<Q")
        if entries * LEAST_BYTES > self.size or offset > self.size:
            raise _Damaged(f"has a tensor of {entries} numbers at byte {offset}, beyond its end")
        return Tensor(kind, entries, offset)


def _text(found: bytes) -> str:
    return found.decode("utf-8", errors="replace")
