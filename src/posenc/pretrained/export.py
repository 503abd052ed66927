# SPDX-License-Identifier: Apache-2.0
"""Extended models as checkpoints that plain transformers loads."""

import json
import os
import shutil
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from posenc.checks import checked, shown
from posenc.errors import InputError
from posenc.files import remove_leftovers, scratch_name, sync
from posenc.frequencies import Frequencies
from posenc.pretrained.anatomy import Anatomy, anatomy, check_model, unwrapped
from posenc.pretrained.attach import Attached, attached, configure
from posenc.pretrained.learned_table import has_learned_table, table_of
from posenc.pretrained.precision import AUTO, dtype_of, stored_dtype
from posenc.pretrained.rope_config import hf_config, hf_rope_parameters
from posenc.pretrained.serving import OVERRIDES, llama_cpp, vllm_command, vllm_overrides

__all__ = ["Export", "hf_rope_parameters", "to_hf"]

SAMPLE = 1024
"""Positions at which the exported rotation is compared with the model's own."""


@dataclass(frozen=True)
class Export:
    """A checkpoint that was written.

    method: None where the model was not extended. length: tokens it is made for. plain: plain
    transformers computes what the model computes; if not, it computes what the model did before, because of what is
    missing. vllm, llama_cpp: how to serve it, or why that cannot be said there.
    """

    directory: str
    model_type: str
    method: str | None
    length: int
    plain: bool
    missing: tuple[str, ...]
    rope_parameters: dict[str, Any] = field(repr=False)
    vllm: str
    llama_cpp: str
    dtype: str = ""
    """Of the weights in the files, where it is not the one that the model computes in."""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"wrote {self.directory}: {self.model_type}, {self.method or 'not extended'}, {self.length} tokens"]
        if self.plain:
            lines.append("plain transformers loads it to the same logits")
        else:
            lines.append(
                f"WARNING: plain transformers loads it as it was BEFORE {self.method}, and says nothing: no configuration "
                f"expresses {' and '.join(self.missing)}. Load it with posenc.load({self.directory!r})"
            )
        if self.dtype:
            lines.append(
                f"weights in {self.dtype}, as the checkpoint that was loaded; to_hf(..., dtype=...) writes another"
            )
        return "\n  ".join([*lines, f"vLLM: {self.vllm}", f"llama.cpp: {self.llama_cpp}"])


@checked
def to_hf(
    model: Any, directory: str | os.PathLike[str], tokenizer: Any = None, *, dtype: torch.dtype | str = AUTO
) -> Export:
    """Write an extended model as a checkpoint (safetensors, configuration, generation settings, tokenizer if given).

    Frequency schedules are expressed exactly, see `hf_rope_parameters`, and it is tested before anything is written that
    transformers' own rotary module turns as the model does. Position maps and changes of attention are beyond a
    configuration: the checkpoint is then that of the model before, with an entry `posenc` from which `posenc.load`
    extends it again, and the report says so. The model stays as it is. The folder appears whole or not at all.

    Args:
        model: a transformers model, extended or not. directory: must not exist, or be empty. tokenizer: of
            transformers; its model_max_length becomes the new length. dtype: of the weights in the files, or its name;
            "auto" is the model's, but that of its checkpoint where `load` made it float32 because the machine is faster so.

    Raises:
        InputError: an adapter that is not merged, a folder that has something in it or cannot be written, or a model
            whose own rotary module does not follow its configuration.
    """
    check_model(model)
    if hasattr(model, "get_base_model"):
        raise InputError("model has adapters: merge them first, model = model.merge_and_unload()")
    from safetensors import SafetensorError

    inner, folder = unwrapped(model), Path(directory)
    if not folder.name:
        raise InputError(f"directory={os.fspath(directory)!r}: name a new folder, beside which to write meanwhile")
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except (OSError, ValueError) as error:
        raise InputError(f"directory={shown(str(folder))}: {error.args[-1]}; give a folder that can be made") from None
    if "\0" in str(folder):
        raise InputError(f"directory={shown(str(folder))}: no name has a zero byte; name a new folder")
    if taken:
        raise InputError(f"directory={str(folder)!r}: has something in it; name a new folder")
    config, report, overrides = _expressed(inner, folder)
    written = dtype_of(dtype) or stored_dtype(inner)
    if written != inner.dtype:
        report = replace(report, dtype=str(written).removeprefix("torch."))
    scratch = folder.with_name(scratch_name())
    try:
        scratch.mkdir(parents=True)
        remove_leftovers(scratch.parent)
        inner.save_pretrained(scratch, state_dict=None if written == inner.dtype else _cast(inner, written))
        config.architectures, config.dtype = inner.config.architectures, written
        config.save_pretrained(scratch)
        if tokenizer is not None:
            _save_tokenizer(tokenizer, scratch, report.length)
        if overrides is not None:
            (scratch / OVERRIDES).write_text(json.dumps({"rope_parameters": overrides}), encoding="utf-8")
        for path in (*scratch.rglob("*"), scratch):
            sync(path)
        os.replace(scratch, folder)
        sync(folder.parent)
    except (OSError, SafetensorError) as error:  # safetensors tells a full disk by an error of its own
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"directory={str(folder)!r}: {why}; give a folder that can be written") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return report


def _cast(inner: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights in another dtype, but for those that transformers keeps in float32. Tied ones stay one tensor."""
    exact = {*(getattr(inner, "_keep_in_fp32_modules", None) or ()), *(inner._keep_in_fp32_modules_strict or ())}
    made: dict[Any, torch.Tensor] = {}
    found = {}
    for name, weight in inner.state_dict().items():
        if weight.dtype == inner.dtype and not exact & set(name.split(".")):
            weight = made.setdefault((weight.data_ptr(), weight.shape, weight.stride()), weight.to(dtype))
        found[name] = weight
    return found


def _expressed(inner: Any, folder: Path) -> tuple[Any, Export, dict[str, Any] | None]:
    """The configuration to write, what is to be said about it, and what vLLM needs in a file."""
    config, record, name = deepcopy(inner.config), attached(inner), str(folder)
    model_type, length = str(config.model_type), int(config.max_position_embeddings)
    if has_learned_table(inner):
        table = "its table is in the weights; nothing to set"
        method, length = table_of(inner)
        return config, Export(name, model_type, method, length, True, (), {}, table, table), None
    body = anatomy(inner)
    if record is None:
        command, parameters = vllm_command(name, length, None), config.rope_parameters
        flags = f"-c {length} (on a GGUF file of it)"
        return config, Export(name, model_type, None, length, True, (), parameters, command, flags), None
    missing = _missing(record)
    if missing:  # as it was before, so that extending it after loading starts from there
        configure(config, {key: value for key, value in record.config.items() if key != "posenc"})
        no = f"cannot express {' and '.join(missing)}"
        before = body.loaded_length, False, missing, config.rope_parameters, no, no
        return config, Export(name, model_type, record.report.method, *before), None
    wanted = {t: rotation.frequencies() for t, rotation in record.design.rotations.items()}
    if wanted:
        config = hf_config(body, wanted, length)
        _check_rotation(body, record, config, length)
    said = name, model_type, record.report.method, length, True, (), config.rope_parameters
    return config, *_served(body, wanted, Export(*said, "", ""))


def _served(body: Anatomy, wanted: Mapping[str, Frequencies], report: Export) -> tuple[Export, dict[str, Any] | None]:
    parameters = report.rope_parameters
    if not wanted:
        overrides: dict[str, Any] | None = None
    elif body.rope_per_type:
        each = {t: vllm_overrides(parameters[t], rope, wanted[t]) for t, rope in body.ropes.items() if t in wanted}
        changed = {t: found for t, found in each.items() if found is not None}
        overrides = {**parameters, **changed} if changed else None
    else:
        overrides = vllm_overrides(parameters, body.rope, next(iter(wanted.values())))
    command = vllm_command(report.directory, report.length, overrides, body.layout)
    flags = llama_cpp(body, wanted, report.length, parameters)
    said = asdict(report) | {"vllm": command, "llama_cpp": flags}
    return Export(**said), overrides if OVERRIDES in command else None


def _missing(record: Attached) -> tuple[str, ...]:
    """The parts of a method that no configuration of transformers says."""
    parts = () if record.report.map is None else (f"the position map {record.report.map['name']}",)
    return parts + tuple(record.report.attention)


@torch.no_grad()
def _check_rotation(body: Anatomy, record: Attached, config: Any, length: int) -> None:
    """Compare the rotation that transformers will make of a configuration with the one that the model has.

    Raises:
        InputError: they differ by more than float32 rounds.
    """
    decoder: Any = body.decoder
    ours, theirs = decoder.rotary_emb, type(record.rotary)(config)
    ids = torch.arange(min(length, SAMPLE))[None]
    x = torch.zeros(1, 1, 1)
    for layer_type in body.ropes if body.rope_per_type else [None]:
        arguments = () if layer_type is None else (layer_type,)
        device = next(ours.buffers()).device
        pairs = zip(ours(x.to(device), ids.to(device), *arguments), theirs(x, ids, *arguments), strict=True)
        if any((mine.cpu() - other).abs().max() > 1e-3 for mine, other in pairs):
            raise InputError(
                f"transformers' {type(record.rotary).__name__} does not rotate as {record.report.method} does, "
                f"whatever its configuration says: {body.model_type} cannot be exported with it"
            )


def _save_tokenizer(tokenizer: Any, folder: Path, length: int) -> None:
    kept = tokenizer.model_max_length
    tokenizer.model_max_length = length
    try:
        tokenizer.save_pretrained(folder)
    finally:
        tokenizer.model_max_length = kept
