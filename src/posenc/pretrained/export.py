# SPDX-License-Identifier: Apache-2.0
"""Extended models as checkpoints that plain transformers loads, and what to tell vLLM and llama.cpp to serve them.

What programs compute from a configuration is asked before it is written, see agreement.py.
"""

import json
import os
import shlex
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posenc.errors import InputError
from posenc.frequencies import Frequencies
from posenc.pretrained.agreement import ProgramAnswer, agreement, as_text
from posenc.pretrained.attach import Attachment, attached
from posenc.pretrained.changes import ChangeReport, config_changes
from posenc.pretrained.config_file import ConfigFile
from posenc.pretrained.gguf_file import expressed
from posenc.pretrained.learned_table import has_learned_table, table_of
from posenc.pretrained.models import ModelStructure, model_structure, unwrap
from posenc.pretrained.programs import ARCHITECTURES, VLLM
from posenc.pretrained.rope_config import computes, hf_config, writable
from posenc.pretrained.scratch import replacing

__all__ = ["Export", "ProgramAnswer", "to_hf"]

SAMPLE = 1024
"""Positions at which the exported rotation is compared with the model's own."""


@dataclass(frozen=True)
class Export(ChangeReport):
    """A checkpoint that was written.

    method: None where the model was not extended. length: tokens it is made for. plain: plain transformers computes what the
    model computes; if not, it computes what the model did before, because of what is missing. programs: whether each computes
    the model's rotation from config.json. vllm, llama_cpp: how to serve it, or why that cannot be expressed there.
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
    programs: tuple[ProgramAnswer, ...] = ()

    def __str__(self) -> str:
        lines = [f"wrote {self.directory}: {self.model_type}, {self.method or 'not extended'}, {self.length} tokens"]
        if self.plain:
            lines += ["plain transformers loads it to the same logits", *as_text(self.programs)]
        else:
            lines.append(
                f"WARNING: plain transformers silently loads it as it was BEFORE {self.method}: no configuration expresses "
                f"{' and '.join(self.missing)}. Load it with posenc.load({self.directory!r})"
            )
        return "\n  ".join([*lines, f"vLLM: {self.vllm}", f"llama.cpp: {self.llama_cpp}"])


def to_hf(model: Any, directory: str | os.PathLike[str], tokenizer: Any = None) -> Export:
    """Write an extended model as a checkpoint (safetensors, configuration, generation settings, tokenizer if given).

    Frequency schedules are expressed exactly, see `posenc.pretrained.rope_config.hf_rope_parameters`; before anything is written, transformers' own
    rotary module is compared with the model's. Position maps and changes of attention are beyond a configuration: the
    checkpoint is then that of the model before, with an entry `posenc` from which `posenc.load` extends it again, and the
    report states it. The model is unchanged. The folder appears complete or not at all.

    Args:
        model: a transformers model, extended or not. directory: must not exist, or be empty. tokenizer: of
            transformers; its model_max_length becomes the new length. The weights are written in the model's dtype.

    Raises:
        InputError: an adapter that is not merged, an encoding in place of the rotation (posenc.hf), a folder that is not empty or a file, or a model whose own rotary module does
            not follow its configuration.
    """
    if hasattr(model, "get_base_model"):
        raise InputError("model has adapters: merge them first, model = model.merge_and_unload()")
    inner, folder = unwrap(model), Path(directory)
    if not folder.name or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise InputError(
            f"is {'not empty' if folder.is_dir() else 'a file'}", "name a new folder", directory=str(folder)
        )
    if hasattr(inner, "encoding"):
        raise InputError(
            f"model has the encoding {inner.config.encoding!r} in place of a rotation: save_pretrained writes it, and posenc.load reads it"
        )
    config, report = _expressed(inner, folder)
    with replacing(folder) as made:
        inner.save_pretrained(made)
        config.architectures, config.dtype = inner.config.architectures, inner.dtype
        config.save_pretrained(made)
        if tokenizer is not None:
            before, tokenizer.model_max_length = tokenizer.model_max_length, report.length
            try:
                tokenizer.save_pretrained(made)
            finally:
                tokenizer.model_max_length = before
    return report


def _expressed(inner: Any, folder: Path) -> tuple[Any, Export]:
    """The configuration to write, and the report."""
    config, attachment, name = deepcopy(inner.config), attached(inner), str(folder)
    model_type = str(config.model_type)
    if has_learned_table(inner):
        table = "its table is in the weights; nothing to set"
        return config, Export(name, model_type, *table_of(inner), True, (), {}, table, table)
    structure = model_structure(inner)
    if attachment is None:
        length = int(structure.config.max_position_embeddings)
        answers = _answers(structure.config, loaded_frequencies(structure, length), length)
        command, parameters = _served(name, length), structure.config.rope_parameters
        flags = f"-c {length} (on a GGUF file of it)"
        return config, Export(name, model_type, None, length, True, (), parameters, command, flags, answers)
    method = attachment.report.method
    if missing := attachment.not_expressed:  # as it was before, so that extending it after loading starts from there
        for change in config_changes(config, {k: v for k, v in attachment.config.items() if k != "posenc"}):
            change.swap()
        no = f"cannot express {' and '.join(missing)}"
        before = structure.loaded_length, False, missing, config.rope_parameters, no, no
        return config, Export(name, model_type, method, *before)
    written, length, answers = written_config(attachment)
    parts = [part for part in config.sub_configs if getattr(inner.config, part) is structure.config]
    if parts:  # of a model that reads more than text
        setattr(config, parts[0], written)
    else:
        config = written
    refused = next((each for each in answers if each.program == VLLM and each.agrees is False), None)
    command = _served(name, length) if refused is None else f"cannot serve these frequencies: {refused.why}"
    of = name, model_type, method, length, True, ()
    return config, Export(*of, written.rope_parameters, command, rewriting(attachment, length), answers)


def _served(folder: str, length: int) -> str:
    return f"vllm serve {shlex.quote(folder)} --max-model-len {length}"


def loaded_frequencies(structure: ModelStructure, length: int) -> dict[str, Frequencies]:
    """The frequencies of a model as it was loaded, for a text of a length."""
    return {kind: rope.rotation(rope.at(length)).frequencies() for kind, rope in structure.ropes.items()}


def _answers(config: Any, wanted: Mapping[str, Frequencies], length: int) -> tuple[ProgramAnswer, ...]:
    return agreement(ConfigFile("config.json", json.loads(config.to_json_string())), wanted, length)


def written_config(attachment: Attachment) -> tuple[Any, int, tuple[ProgramAnswer, ...]]:
    """The configuration of an extension by frequencies, its length, and what programs make of it."""
    structure, length = attachment.structure, int(attachment.design.config.get("max_position_embeddings", 0))
    length = length or int(structure.config.max_position_embeddings)
    rotations = attachment.design.rotations
    wanted = {kind: rotation.frequencies() for kind, rotation in rotations.items()}
    made = {kind: rotation.schedule for kind, rotation in rotations.items()}
    written = hf_config(structure, wanted, length, made) if wanted else structure.config
    if not writable(structure, written.rope_parameters):
        raise InputError(
            f"only rope_type longrope has these frequencies, which transformers refuses for {structure.model_type}, "
            "whose heads have several widths",
            "add +replace, which starts from plain RoPE, or use the model in Python",
            method=attachment.report.method,
        )
    if wanted and not computes(structure, written, wanted, length):
        raise InputError(
            f"transformers' {type(structure.rotary).__name__} does not rotate as {attachment.report.method} does, whatever its "
            f"configuration says: {structure.model_type} cannot be exported with it"
        )
    answers = _answers(written, wanted or loaded_frequencies(structure, length), length)
    kind, why = written.rope_parameters.get("rope_type"), ""
    if structure.family.latent and wanted and kind not in ("default", "yarn"):
        why = "its latent attention takes every scaling for yarn"
    elif structure.layout == "interleaved" and kind == "longrope":
        why = (
            "it has them only as longrope, which rotates by halves, and this model pairs neighbouring channels; take linear, yarn, "
            "ntk or abf"
        )
    if why:
        unknown = [each.program == VLLM and each.agrees is None for each in answers]
        answers = tuple(replace(a, agrees=False, why=why) if of else a for a, of in zip(answers, unknown, strict=True))
    return written, length, answers


def rewriting(attachment: Attachment, length: int) -> str:
    """The command that makes a GGUF file with the extension, or why there is none."""
    structure, report = attachment.structure, attachment.report
    try:
        expressed(attachment, ARCHITECTURES.get(structure.model_type, structure.model_type))
    except InputError as error:
        return f"cannot serve these frequencies: {error}"
    target = "" if report.new_length is None else f" --target-length {length}"
    return (
        f"posenc extend FILE.gguf --method {shlex.quote(report.method)}{target} --gguf NEW.gguf, of a GGUF file of the model before, "
        f"and serve that: -c {length}"
    )
