# SPDX-License-Identifier: Apache-2.0
"""A configuration as it is in a file: a config.json, or the header of a GGUF file."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from posenc.errors import InputError, described, on_one_line
from posenc.spec import read_json

__all__ = ["ConfigFile", "read_config"]

SLIDING, FULL = "sliding_attention", "full_attention"
V4_HEADS: dict[str, int] = {"qwen3": 128, "qwen3_moe": 128, "gemma": 256, "gemma2": 256, "gemma3_text": 256, "glm": 128,
                            "glm4": 128, "seed_oss": 128, "gpt_oss": 64}  # fmt: skip
"""Widths of a head in a configuration that does not state them, where they are not hidden_size / num_attention_heads."""


class ConfigFile:
    """A configuration, as a file has it.

    raw: the fields of the language model. gguf: header of a GGUF file, by key, else None.
    """

    def __init__(self, name: str, raw: Mapping[str, Any], gguf: Mapping[str, Any] | None = None) -> None:
        inner = raw.get("text_config")
        self.name, self.gguf = name, gguf
        self.raw: dict[str, Any] = dict(inner if isinstance(inner, Mapping) else raw)
        self.model_type = str(self.raw.get("model_type") or "")
        if not self.model_type:
            raise InputError(f"{name}: has no model_type; pass the config.json of a transformers model")
        _check_contradictions(name, self.raw)

    @cached_property
    def hf(self) -> Any:
        """The configuration of transformers 5.

        Raises:
            InputError: transformers refuses it.
        """
        from transformers import CONFIG_MAPPING

        if self.model_type not in CONFIG_MAPPING:
            raise InputError(f"transformers does not know the model type {self.model_type!r}")
        fields = {key: value for key, value in json.loads(json.dumps(self.raw)).items() if key != "model_type"}
        try:
            return CONFIG_MAPPING[self.model_type](**fields)
        except Exception as error:  # transformers raises errors of many types here
            raise InputError(f"transformers refuses it: {described(error)}") from error

    @cached_property
    def head_dim(self) -> int:
        stated = self.raw.get("head_dim") or V4_HEADS.get(self.model_type)
        return int(stated or self.number("hidden_size") // self.number("num_attention_heads"))

    @cached_property
    def length(self) -> int:
        return self.number("max_position_embeddings")

    def number(self, key: str) -> int:
        """A field, or transformers' value for it.

        Raises:
            InputError: it is no number above 0.
        """
        value = self.raw[key] if key in self.raw else getattr(self.hf, key, None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{self.name}: {key}={value!r}: must be an integer above 0")
        return value

    def windows(self) -> dict[str, int | None]:
        """By layer type."""
        window = getattr(self.hf, "sliding_window", None)
        if not getattr(self.hf, "use_sliding_window", True):
            window = None
        types = getattr(self.hf, "layer_types", None) or [FULL if window is None else SLIDING]
        return {kind: None if kind == FULL else window for kind in dict.fromkeys(types)}


def _check_contradictions(name: str, raw: Mapping[str, Any]) -> None:
    """Raises:
    InputError: two fields for one number that differ."""
    tables = {key: raw[key] for key in ("rope_parameters", "rope_scaling") if isinstance(raw.get(key), Mapping)}
    for key, table in tables.items():
        one, other = table.get("rope_type"), table.get("type")
        if one and other and one != other and {one, other} not in ({"su", "longrope"}, {"mrope", "default"}):
            raise InputError(f"{name}: {key} has rope_type={one!r} and type={other!r}: remove one of them")
        theta = table.get("rope_theta")
        if theta is not None and raw.get("rope_theta") not in (None, theta):
            raise InputError(
                f"{name}: rope_theta={raw['rope_theta']} and {key}.rope_theta={theta}: programs read different ones; remove one"
            )
    if len(tables) == 2:
        parameters, scaling = tables.values()
        for key in scaling.keys() & parameters.keys():
            if scaling[key] != parameters[key]:
                raise InputError(
                    f"{name}: rope_parameters.{key}={parameters[key]!r} and rope_scaling.{key}={scaling[key]!r}: programs read "
                    "different ones; remove one"
                )


def read_config(path: str | Path) -> ConfigFile:
    """A config.json, a folder with one, or the header of a .gguf file.

    Raises:
        InputError: there is none, it is not JSON, or it is no configuration of a model.
    """
    given = Path(path)
    file = given / "config.json" if given.is_dir() else given
    if not file.is_file():
        what = "has no config.json" if given.is_dir() else "no such file or folder"
        raise InputError(f"{path}: {what}; pass a config.json, a folder with one, or a .gguf file")
    if file.suffix == ".gguf":
        return _gguf_config(file)
    try:
        raw = read_json(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"{file}: is no JSON: {on_one_line(error)}") from None
    if not isinstance(raw, dict):
        raise InputError(f"{file}: holds {type(raw).__name__}; pass the config.json of a transformers model")
    return ConfigFile(str(path), raw)


def _gguf_config(file: Path) -> ConfigFile:
    from posenc.pretrained.checked import check_gguf
    from posenc.pretrained.load import needs, read_gguf

    needs("gguf", "gguf")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    try:
        check_gguf(file)
        with read_gguf(file) as reader:
            header = {key: value.contents() for key, value in reader.fields.items() if not key.startswith("tokenizer.")}
            for tensor in reader.tensors:
                if tensor.name.startswith(("rope_freqs", "rope_factors")):
                    header[tensor.name] = torch.tensor(tensor.data).double().flatten().tolist()
            raw = load_gguf_checkpoint(str(file), return_tensors=False)["config"]
    except (ValueError, OSError, IndexError) as error:
        raise InputError(f"{file}: this GGUF file cannot be read: {on_one_line(error)}") from None
    return ConfigFile(str(file), raw, header)
