# SPDX-License-Identifier: Apache-2.0
"""GGUF files by gguf's reader, and transformers' configurations of them, with the rotation that llama.cpp computes."""

import builtins
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from posenc.errors import InputError, needs, on_one_line
from posenc.frequencies import Frequencies
from posenc.pretrained.checked import check_counts, reading
from posenc.pretrained.config_file import FULL, SLIDING, ConfigFile
from posenc.pretrained.models import Rope
from posenc.pretrained.packaged import DEMO, demo_file
from posenc.pretrained.parameters import head_dim_of, rope_parameters_by_type
from posenc.pretrained.programs import ALL, header_readings
from posenc.pretrained.rope_config import LONGROPE_ONLY, NAMED, scaling_parameters
from posenc.spec import read_json


def read_gguf(path: Path) -> Any:
    """gguf's reader of a file, no further than its end.

    Raises:
        ValueError: counts or lengths beyond the end, or a tensor that is not aligned or overlaps another.
    """
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

        def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self._array):
                raise ValueError(
                    f"a count, a length or an offset in its head leads beyond its {len(self._array):,} bytes"
                )
            return super()._get(int(offset), dtype, count, override_order)

    try:
        with np.errstate(over="ignore"):  # an offset that comes round is before the data
            reader = Reader(path)
    except RecursionError:
        raise ValueError("lists in its head are nested too deep") from None
    end = int(reader.data_offset)
    for tensor in sorted(reader.tensors, key=lambda each: each.data_offset):
        if tensor.data_offset % int(reader.alignment) or tensor.data_offset < end:
            raise ValueError(f"tensor {tensor.name}: its offset is not aligned, or within another tensor")
        end = tensor.data_offset + tensor.n_bytes
    return reader


def unpacker(reader: Any, **names: Any) -> Callable[..., dict[str, Any]]:
    """transformers' `load_gguf_checkpoint`, which imports gguf's reader and makes one of the file, a second's work: here it gets
    this one. names: others that it looks up in its module."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as theirs

    module = ModuleType("gguf")
    vars(module).update(vars(gguf) | {"GGUFReader": lambda *_: reader})

    def load(name: str, *more: Any) -> Any:
        return module if name == "gguf" else builtins.__import__(name, *more)

    function: Any = theirs.load_gguf_checkpoint
    names = vars(theirs) | names | {"__builtins__": vars(builtins) | {"__import__": load}}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


def header_config(path: Path, reader: Any) -> dict[str, Any]:
    """The fields of a configuration in a file's head, as transformers reads them.

    Raises:
        InputError: a number that no model has.
        ValueError: an architecture that it does not read, or another number of layers than the tensors are of.
    """
    fields: dict[str, Any] = unpacker(reader)(str(path), return_tensors=False)["config"]
    named = {tensor.name.split(".")[1] for tensor in reader.tensors if tensor.name.startswith("blk.")}
    count = fields.get("num_hidden_layers")
    if named and count is not None and named != {str(number) for number in range(min(count, len(named) + 1))}:
        key = f"{reader.fields['general.architecture'].contents()}.block_count"
        raise ValueError(f"{key}={count}: its tensors are of {len(named)} layers")
    check_counts(str(path), fields, len(reader.tensors))
    return fields


def described(path: Path) -> tuple[Any, Any]:
    """gguf's reader of a file, and the model without weights, on "meta", that transformers makes of its head.

    Raises:
        InputError: a file that cannot be read, or whose rotation transformers' class for it does not have.
    """
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    if not path.is_file():
        raise InputError(f"{path}: no such file")
    with reading(f"{path}: this GGUF file cannot be read: "):
        reader = read_gguf(path)
        fields = header_config(path, reader)
        config = CONFIG_MAPPING[fields["model_type"]].from_dict(fields)
        _take_layers(reader, config)
        dims = _take_rotation(path, reader, config)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    rotary = getattr(getattr(model, "model", None), "rotary_emb", None)
    for kind, dim in dims.items():
        buffer = getattr(rotary, f"{kind}_inv_freq" if kind else "inv_freq", None)
        if buffer is not None and 2 * buffer.numel() != dim:
            raise InputError(
                f"{path}: {dim} channels of a head rotate (rope.dimension_count), and in transformers' {config.model_type} "
                f"{2 * buffer.numel()}: take the model's safetensors"
            )
    return reader, model


def rotation_of(reader: Any) -> dict[str, Any]:
    """What gguf's reader of a file has of the rotation: keys, and tensors of divisors as lists."""
    header = {key: value.contents() for key, value in reader.fields.items() if not key.startswith("tokenizer.")}
    for tensor in reader.tensors:
        if tensor.name.startswith(("rope_freqs", "rope_factors")):
            if tensor.tensor_type.name != "F32":
                raise InputError(f"tensor {tensor.name} is {tensor.tensor_type.name}, and must be F32")
            header[tensor.name] = torch.tensor(tensor.data).double().flatten().tolist()
    return header


READ = {"freq_base", "freq_base_swa", "dimension_count", "dimension_count_swa", "dimension_sections", "scale_linear",
        "scaling.type", "scaling.factor", "scaling.attn_factor", "scaling.original_context_length", "scaling.finetuned",
        "scaling.yarn_beta_fast", "scaling.yarn_beta_slow", "scaling.yarn_log_multiplier"}  # fmt: skip
"""Keys of a GGUF file, after ".rope.", that are used, and one that says how a model was trained."""


def unread(header: Mapping[str, Any]) -> list[str]:
    """The keys of a rotation that nothing here reads."""
    return sorted(key for key in header if ".rope." in key and key.partition(".rope.")[2] not in READ)


def _take_rotation(path: Path, reader: Any, config: Any) -> dict[str | None, int]:
    """Put what a GGUF file states of its rotation into a configuration, as llama.cpp takes it; transformers' reader takes the base
    of some architectures alone. Gives the channels that rotate by layer type; none where nothing does."""
    header = rotation_of(reader)
    tables = getattr(config, "rope_parameters", None)
    if not tables:
        return {}
    stated = {key.partition(".rope.")[2]: value for key, value in header.items() if ".rope." in key}
    length, original = int(config.max_position_embeddings), int(stated.get("scaling.original_context_length", 0))
    found = {each.layers: each for each in header_readings(header, head_dim_of(config), length)}
    notes = [f"llama.cpp {each.note}" for each in found.values() if each.note]
    for note in [*(f"{key}={header[key]} is not read" for key in unread(header)), *notes]:
        warnings.warn(f"posenc: {path.name}: {note}", stacklevel=2)
    by_type = rope_parameters_by_type(config)
    if SLIDING in found and None in by_type:
        raise InputError(f"{path}: has two bases, and {config.model_type} rotates all layers alike")
    kinds = ("default",) if config.model_type in LONGROPE_ONLY else NAMED
    if len({str(header[name]) for name in header if name.startswith("rope_f")}) > 1:
        raise InputError(
            f"{path}: has other divisors of its frequencies for long inputs than for short ones (rope_factors_short, rope_factors_long): "
            "take the model's safetensors"
        )
    made, dims = {}, {}
    for kind, parameters in by_type.items():
        turns = found.get(kind or ALL) or found.get(FULL) or found[ALL]
        new = {**parameters, "rope_theta": turns.base}
        if parameters.get("rope_type", "default") == "default":
            dims[kind], width = turns.rotary_dim, head_dim_of(config, kind)
            if turns.rotary_dim != width or "partial_rotary_factor" in parameters:
                new["partial_rotary_factor"] = turns.rotary_dim / width
            numbers = Frequencies(turns.inv_freq, turns.attention_factor)
            rope = Rope(turns.base, turns.rotary_dim, {}, original or length, width, "half", latent=False)
            new |= scaling_parameters(numbers, rope, length, kinds)
        elif "scaling.factor" in stated and "factor" in parameters:  # gpt-oss, whose class has yarn
            new |= {"factor": float(stated["scaling.factor"])}
            new |= {"original_max_position_embeddings": original} if original else {}
        made[kind] = new
    config.rope_parameters = made.get(None, made)
    # Phi-3's, which its class reads beside the table
    if original and "original_max_position_embeddings" in vars(config):
        config.original_max_position_embeddings = original
    return dims


def _take_layers(reader: Any, config: Any) -> None:
    """The width of a head, which transformers' reader takes for some architectures alone; and of Gemma 2 and 3 which layers have
    a window, and what scales scores, as llama.cpp has them."""
    architecture = reader.fields["general.architecture"].contents()
    if (getattr(config, "pad_token_id", None) or 0) >= config.vocab_size:
        config.pad_token_id = None  # transformers' default for the type, where the file states none
    width = reader.fields.get(f"{architecture}.attention.key_length")
    if width is not None and "head_dim" in vars(config) and not hasattr(config, "kv_lora_rank"):
        config.head_dim = int(width.contents())
    pattern = reader.fields.get(f"{architecture}.attention.sliding_window_pattern")
    if pattern is not None and isinstance(pattern.contents(), list) and getattr(config, "layer_types", None):
        config.layer_types = [SLIDING if has_window else FULL for has_window in pattern.contents()]
    largest = {"gemma2": 46, "gemma3": 62}.get(architecture)  # layers of the 27B, which divides by the width of a share
    if largest is not None:
        shared = config.num_hidden_layers == largest
        width = config.hidden_size // config.num_attention_heads
        config.query_pre_attn_scalar = width if shared else head_dim_of(config)


def read_config(path: str | Path) -> ConfigFile:
    """A config.json, a folder with one, or the header of a .gguf file or of "demo", see `posenc.pretrained.packaged`.

    Raises:
        InputError: there is none, it is not JSON, or it is no configuration of a model.
    """
    if path == DEMO:
        return _gguf_config(demo_file(), DEMO)
    given = Path(path)
    file = given / "config.json" if given.is_dir() else given
    if not file.is_file():
        what = "has no config.json" if given.is_dir() else "no such file or folder"
        raise InputError(f"{path}: {what}; pass a config.json, a folder with one, or a .gguf file")
    if file.suffix == ".gguf":
        return _gguf_config(file, str(file))
    try:
        raw = read_json(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"{file}: is no JSON: {on_one_line(error)}") from None
    if not isinstance(raw, dict):
        raise InputError(f"{file}: holds {type(raw).__name__}; pass the config.json of a transformers model")
    return ConfigFile(str(path), raw)


def _gguf_config(file: Path, name: str) -> ConfigFile:
    needs("gguf", "demo")
    with reading(f"{name}: this GGUF file cannot be read: "):
        reader = read_gguf(file)
        return ConfigFile(name, header_config(file, reader), rotation_of(reader))
