# SPDX-License-Identifier: Apache-2.0
"""A GGUF file with longer context: the keys of its rotation are written anew, and everything else is copied as it is."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from posenc.errors import InputError, needs
from posenc.frequencies import stretch
from posenc.pretrained.attach import Attachment
from posenc.pretrained.changes import ChangeReport
from posenc.pretrained.extend import plan_rotary
from posenc.pretrained.gguf_keys import DIVISORS, llama_cpp_keys
from posenc.pretrained.gguf_reader import described
from posenc.pretrained.rope_config import MAX_STRETCH
from posenc.pretrained.scratch import replacing

__all__ = ["rewrite"]

REPLACED = ("rope.freq_base", "rope.scaling.", "rope.scale_linear")
"""How the keys of a rotation begin, after the architecture, that are written anew."""


@dataclass(frozen=True)
class GgufExport(ChangeReport):
    """A file that was written. rope: the keys of the rotation. command: how to serve it."""

    file: str
    architecture: str
    method: str
    length: int
    rope: dict[str, Any]
    command: str

    def __str__(self) -> str:
        keys = ", ".join(f"{key} = {value}" for key, value in self.rope.items())
        return f"{self.file}: {self.architecture}, {self.method}, {self.length} tokens\n  {keys}\n  {self.command}"


def rewrite(
    source: str | os.PathLike[str],
    file: str | os.PathLike[str],
    method: str,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    **options: Any,
) -> GgufExport:
    """Extend a GGUF file by a frequency schedule, as `posenc.extend` does a model. Weights and tokenizer are copied as they are, and
    are never unpacked. The file appears complete or not at all.

    Args:
        source: a GGUF file whose architecture `posenc.load` reads. file: a new .gguf file. method, factor, target_length, options:
            as of `posenc.extend`.

    Raises:
        InputError: a file that cannot be read or that exists, or frequencies that llama.cpp reads from no file of the architecture.
    """
    needs("gguf", "demo")
    path = check_file(file)
    reader, model = described(Path(source))
    attachment = plan_rotary(model, method, factor, target_length, options)
    architecture = str(reader.fields["general.architecture"].contents())
    keys, tensors = expressed(attachment, architecture)
    length = int(attachment.design.config.get("max_position_embeddings", model.config.max_position_embeddings))
    with replacing(path) as made:
        _copy(reader, made, architecture, {"context_length": length, **keys}, tensors)
    shown = keys | {name: f"{len(tensor)} divisors" for name, tensor in tensors.items()}
    command = f"llama-server -m {shlex.quote(str(path))} -c {length}"
    return GgufExport(str(path), architecture, attachment.report.method, length, shown, command)


def check_file(file: str | os.PathLike[str]) -> Path:
    """Raises:
    InputError: a name that is no new .gguf file in a folder that exists."""
    path = Path(file)
    if path.suffix != ".gguf" or path.exists():
        raise InputError("name a new file that ends in .gguf", file=str(path))
    if not path.absolute().parent.is_dir():
        raise InputError("its folder does not exist", "make it first", file=str(path))
    return path


def expressed(attachment: Attachment, architecture: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The keys, and the tensors of divisors, with which llama.cpp rotates as an extension does; none where it changes no frequencies.

    Raises:
        InputError: there are none.
    """
    structure = attachment.structure
    missing = attachment.not_expressed or (("YaRN of latent attention",) if structure.family.latent else ())
    if missing:
        raise InputError(
            f"GGUF cannot express {' and '.join(missing)}", "extend it by a frequency schedule", argument="model"
        )
    rope = structure.rope
    kind = "full_attention" if structure.rope_per_type else next(iter(structure.ropes))
    new = attachment.design.rotations.get(kind)
    if new is None:
        return {}, {}
    wanted = new.frequencies()
    keys: dict[str, Any] = {"rope.freq_base": float(rope.rope_theta)}
    scaling = llama_cpp_keys(wanted, rope, attachment.report.schedule or rope.schedule)
    if structure.rope_per_type and "rope.scaling.attn_factor" in (scaling or ()):
        raise InputError(
            f"its attention factor is of full_attention, and llama.cpp's {architecture} has one for all layers",
            "take linear, ntk, abf, or yarn without attention_factor",
            argument="model",
        )
    if scaling is not None:
        return keys | scaling, {}
    if architecture not in DIVISORS:
        raise InputError(
            f"llama.cpp's {architecture} has no key for these frequencies (of yarn it reads neither betas nor truncate)",
            "extend it by linear, ntk, abf, or yarn without other options",
            argument="model",
        )
    if wanted.attention_factor != 1:
        keys["rope.scaling.attn_factor"] = float(wanted.attention_factor)
    divisors = stretch(wanted, rope.rotary_dim, base=rope.rope_theta).clamp(max=MAX_STRETCH)
    return keys, dict.fromkeys(DIVISORS[architecture], divisors)


def _copy(reader: Any, file: Path, architecture: str, keys: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write what a reader has into a file, with other keys and tensors of the rotation."""
    import gguf

    writer = gguf.GGUFWriter(file, architecture)
    for name, field in reader.fields.items():
        key = name.removeprefix(f"{architecture}.")
        replaced = key in keys or (len(keys) > 1 and key.startswith(REPLACED) and not key.endswith("freq_base_swa"))
        if not (replaced or name.startswith("GGUF.") or name == "general.architecture"):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    writer.data_alignment = reader.alignment
    add: dict[type, Any] = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
    for key, value in keys.items():
        add[type(value)](f"{architecture}.{key}", value)
    new = {name: tensor.float().numpy() for name, tensor in tensors.items()}
    left = ("rope_freqs", "rope_factors") if len(keys) > 1 else ()
    stay = [each for each in reader.tensors if not each.name.startswith(left)]
    for name, array in new.items():
        writer.add_tensor_info(name, array.shape, array.dtype, array.nbytes)
    for each in stay:
        writer.add_tensor_info(each.name, each.data.shape, each.data.dtype, each.data.nbytes, each.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for data in (*new.values(), *(each.data for each in stay)):
        writer.write_tensor_data(data)
    writer.close()
