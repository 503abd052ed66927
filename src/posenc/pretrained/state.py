# SPDX-License-Identifier: Apache-2.0
"""The state of a training as safetensors: tensors, and the lists and dictionaries around them as JSON. Reading it runs no code,
which torch.load does not promise. And whether two programs that measure or train are one: by numbers that both compute."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from posenc.spec import read_json

TOLERANCE = 1e-5
"""How much two numbers of a behaviour may differ, as a share of the larger one or of 1, and be of one program. benchmarks/behaviour.py
measures how far apart processors are, and programs."""

STATE = "state"
"""The key of the structure in the metadata."""
PLAIN = bool, int, float, str, type(None)


def packed(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """A state of dictionaries, lists, tuples, tensors and JSON's values as JSON and its tensors by number."""
    tensors: dict[str, Tensor] = {}
    memory: set[int] = set()

    def of(value: Any) -> Any:
        if isinstance(value, Tensor):
            tensor = value.detach().cpu().contiguous()
            if tensor.untyped_storage().data_ptr() in memory:  # safetensors stores no memory twice
                tensor = tensor.clone()
            memory.add(tensor.untyped_storage().data_ptr())
            tensors[str(len(tensors))] = tensor
            return {"tensor": str(len(tensors) - 1)}
        if isinstance(value, Mapping):
            return {"dict": [[of(key), of(each)] for key, each in value.items()]}
        if isinstance(value, tuple):
            return {"tuple": [*map(of, value)]}
        if isinstance(value, list):
            return [*map(of, value)]
        if not isinstance(value, PLAIN):
            raise TypeError(f"a {type(value).__name__} in the state of a training: it has tensors, numbers and strings")
        return value

    return of(state), tensors


def unpacked(structure: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state of `packed`."""
    if isinstance(structure, list):
        return [unpacked(each, tensors) for each in structure]
    if not isinstance(structure, dict):
        return structure
    ((kind, content),) = structure.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(unpacked(each, tensors) for each in content)
    if kind != "dict":
        raise ValueError(f"is no state of a training ({kind!r} in it)")
    return {unpacked(key, tensors): unpacked(value, tensors) for key, value in content}


def write(path: Path, state: Any) -> None:
    """Store a state in a file."""
    from safetensors.torch import save_file

    structure, tensors = packed(state)
    save_file(tensors, path, {STATE: json.dumps(structure)})


def read(path: Path) -> Any:
    """The state in a file.

    Raises:
        ValueError: it is of another form.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            structure = read_json((file.metadata() or {})[STATE])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return unpacked(structure, tensors)
    except (SafetensorError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: is no state of a training ({error})") from error


def disagreement(here: Mapping[str, float], there: Mapping[str, float]) -> str:
    """Where two behaviours differ by more than rounding, in words; "" if they are of one program. Numbers that only one of them
    has are not compared. Their "tolerance" takes the place of `TOLERANCE`."""
    tolerance = max(each.get("tolerance", TOLERANCE) for each in (here, there))
    here = {name: value for name, value in here.items() if name != "tolerance"}
    apart = {name: _apart(here[name], there[name]) for name in here if name in there}
    if not apart:
        return "no number of its behaviour is known" if here or there else ""
    worst = max(apart, key=lambda name: apart[name])
    if apart[worst] <= tolerance:
        return ""
    return f"{worst} is {here[worst]:.4g} here and {there[worst]:.4g} there"


def _apart(a: float, b: float) -> float:
    return abs(a - b) / max(1.0, abs(a), abs(b))
