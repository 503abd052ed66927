# SPDX-License-Identifier: Apache-2.0
"""Models, extended or not, as GGUF files for llama.cpp: weights, tokenizer, and every key of the rotation."""

import json
import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.errors import InputError, check_word, needs, unknown
from posenc.frequencies import Frequencies, create, stretch
from posenc.pretrained.attach import Attachment, attached
from posenc.pretrained.changes import ChangeReport
from posenc.pretrained.gguf_architectures import ARCHITECTURES, Architecture, llama_cpp_keys
from posenc.pretrained.models import ModelStructure, Rope, model_structure, unwrap
from posenc.pretrained.rope_config import MAX_STRETCH, same_frequencies
from posenc.pretrained.scratch import replacing, sweep

__all__ = ["GgufExport", "to_gguf"]

TYPES = {"float32": "F32", "float16": "F16"}


@dataclass(frozen=True)
class GgufExport(ChangeReport):
    """A file that was written. rope: the keys of the rotation. command: how to serve it."""

    file: str
    architecture: str
    method: str | None
    length: int
    dtype: str
    rope: dict[str, Any]
    command: str

    def __str__(self) -> str:
        keys = ", ".join(f"{key} = {value}" for key, value in self.rope.items())
        return f"{self.file}: {self.architecture}, {self.dtype}, {self.method or 'not extended'}, {self.length} tokens\n  {keys}\n  {self.command}"


def to_gguf(
    model: Any, file: str | os.PathLike[str], tokenizer: Any = None, *, dtype: str = "float16", pre: str | None = None
) -> GgufExport:
    """Write a model as a GGUF file that llama.cpp computes alike, with an extension by a frequency schedule if it has one.

    The file appears complete or not at all, and the model is unchanged.

    Args:
        model: a transformers model of a type in `ARCHITECTURES`. file: a new .gguf file. tokenizer: of transformers, fast;
            without it the file holds numbers for tokens,
            and prompts are token ids. dtype: of the matrices, float32 or float16; vectors are float32.
            pre: llama.cpp's name of the tokenizer's pre-tokenizer, where it is not recognised.

    Raises:
        InputError: a model type, a schedule, a position map or a window that the file or llama.cpp cannot express; a file
            that exists; a tokenizer of another kind.
    """
    needs("gguf", "demo")
    import gguf

    check_word("dtype", dtype, TYPES)
    structure, rope, tensors, vocabulary = content(model, tokenizer, pre)
    inner, path = unwrap(model), check_file(file)
    length, attachment, architecture = (
        int(inner.config.max_position_embeddings),
        attached(inner),
        ARCHITECTURES[structure.model_type],
    )
    method = None if attachment is None else attachment.report.method
    sweep(path.parent)
    with replacing(path) as made:
        writer = gguf.GGUFWriter(made, architecture.name)
        _write_keys(writer, structure, length, dtype)
        for key, value in rope.items():
            _add(writer, f"{architecture.name}.{key}", value)
        _write_vocabulary(writer, vocabulary)
        for name, tensor in tensors.items():
            writer.add_tensor(name, tensor.float().numpy())
        _write_weights(writer, inner, structure, architecture, dtype)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    shown = rope | {name: f"{len(tensor)} divisors" for name, tensor in tensors.items()}
    command = f"llama-server -m {shlex.quote(str(path))} -c {length}"
    if len({str(tensor.tolist()) for tensor in tensors.values()}) > 1:
        original = structure.rope.original_length
        command += (
            f" (for inputs of at most {original} tokens -c {original}: beyond it the long factors count for every text)"
        )
    if method is None and structure.rope.schedule["name"] == "dynamic":
        command += (
            f" (for no longer inputs: beyond {length} tokens dynamic turns pairs more slowly, and the file does not)"
        )
    return GgufExport(str(path), architecture.name, method, length, dtype, shown, command)


def content(
    model: Any, tokenizer: Any, pre: str | None = None
) -> tuple[ModelStructure, dict[str, Any], dict[str, Tensor], dict[str, Any]]:
    """What the file of a model has besides its weights, after the model's structure: keys and tensors of its rotation, and its
    vocabulary. Refuses what `to_gguf` refuses of a model and its tokenizer."""
    if hasattr(model, "get_base_model"):
        raise InputError("model has adapters: merge them first, model = model.merge_and_unload()")
    inner = unwrap(model)
    structure = model_structure(inner)
    rope, tensors = expressed(structure, attached(inner), int(inner.config.max_position_embeddings))
    size = int(structure.config.vocab_size)
    return structure, rope, tensors, _numbers(size) if tokenizer is None else _vocabulary(tokenizer, size, pre)


def check_file(file: str | os.PathLike[str]) -> Path:
    """Raises:
    InputError: a name that is no new .gguf file in a folder that exists."""
    path = Path(file)
    if path.suffix != ".gguf" or path.exists():
        raise InputError("name a new file that ends in .gguf", file=str(path))
    if not path.absolute().parent.is_dir():
        raise InputError("its folder does not exist", "make it first", file=str(path))
    return path


# ------------------------------------------------------------------------------------------ rotation


Rotation = tuple[dict[str, Any], dict[str, Tensor]]
"""Keys and tensors."""


def expressed(structure: ModelStructure, attachment: Attachment | None, length: int) -> Rotation:
    """The rotation of a model, extended or not, in a file.

    Raises:
        InputError: a model type, or an extension of it, that `to_gguf` does not write.
    """
    if structure.model_type not in ARCHITECTURES:
        raise unknown("model type", structure.model_type, ARCHITECTURES, 0.7)
    found = _rotation(attachment, structure, ARCHITECTURES[structure.model_type])
    check_layers(structure, length)
    return found


def _rotation(attachment: Attachment | None, structure: ModelStructure, architecture: Architecture) -> Rotation:
    wanted: Mapping[str, Frequencies] = {kind: rope.frequencies() for kind, rope in structure.ropes.items()}
    if attachment is not None:
        if missing := attachment.not_expressed:
            raise InputError(
                f"GGUF cannot express {' and '.join(missing)}", "extend it by a frequency schedule", argument="model"
            )
        new = {kind: rotation.frequencies() for kind, rotation in attachment.design.rotations.items()}
        wanted = (
            {kind: new.get(kind) or new.get("full_attention") or old for kind, old in wanted.items()} if new else wanted
        )
    rope = structure.rope
    keys: dict[str, Any] = {"rope.dimension_count": rope.rotary_dim}
    if structure.rope_per_type:
        local = structure.ropes.get("sliding_attention")
        if local is not None:
            plain = create({"name": "default"}, local.rotary_dim, base=local.rope_theta)
            if not same_frequencies(wanted["sliding_attention"], plain):
                raise InputError(
                    "llama.cpp rotates layers with a window by a plain base",
                    "extend full_attention alone",
                    argument="model",
                )
            keys["rope.freq_base_swa"] = float(local.rope_theta)
    frequencies = wanted.get("full_attention") or next(iter(wanted.values()))
    if attachment is None or not attachment.design.rotations:
        beyond = rope.rotation(rope.at(structure.loaded_length)).frequencies()
        if not same_frequencies(frequencies, beyond):
            more, tensors = _two_lists(rope, frequencies, beyond, architecture)
            return keys | more, tensors
    schedule: Mapping[str, Any] = rope.schedule if attachment is None else attachment.report.schedule or rope.schedule
    more, tensors = _of_one(frequencies, rope, schedule, architecture)
    if "rope.freq_base_swa" in keys and "rope.scaling.attn_factor" in more:
        raise InputError(
            f"its attention factor is of full_attention, and llama.cpp's {architecture.name} has one for all layers",
            "take linear, ntk, abf, or yarn without attention_factor",
            argument="model",
        )
    return keys | more, tensors


def _two_lists(rope: Rope, short: Frequencies, long: Frequencies, architecture: Architecture) -> Rotation:
    """Keys and tensors of longrope: llama.cpp takes the second list once its context exceeds the original length."""
    if len(architecture.divisors) < 2:
        raise InputError(
            f"inputs beyond {rope.original_length} tokens rotate by other frequencies, and llama.cpp's "
            f"{architecture.name} has one set for all",
            "extend it by a schedule that does not depend on the length, such as yarn",
            argument="model",
        )
    if not math.isclose(short.attention_factor, long.attention_factor, rel_tol=1e-9):
        raise InputError(
            "its attention factor depends on the length, and llama.cpp has one for all inputs", argument="model"
        )
    keys: dict[str, Any] = {"rope.freq_base": float(rope.rope_theta), "rope.scaling.type": "longrope"}
    keys["rope.scaling.original_context_length"] = rope.original_length
    if short.attention_factor != 1:
        keys["rope.scaling.attn_factor"] = float(short.attention_factor)
    lists = {name: short if "short" in name else long for name in architecture.divisors}
    dim, base = rope.rotary_dim, rope.rope_theta
    return keys, {name: stretch(each, dim, base=base).clamp(max=MAX_STRETCH) for name, each in lists.items()}


def _of_one(wanted: Frequencies, rope: Rope, schedule: Mapping[str, Any], architecture: Architecture) -> Rotation:
    """schedule: that it was made by."""
    rotary_dim, base, original = rope.rotary_dim, rope.rope_theta, rope.original_length
    keys: dict[str, Any] = {"rope.freq_base": float(base)}
    plain = create({"name": "default"}, rotary_dim, base=base).inv_freq
    scaling = llama_cpp_keys(wanted, rotary_dim, base, original, plain, schedule)
    if scaling is not None:
        return keys | scaling, {}
    if not architecture.divisors:
        options = {key: schedule[key] for key in ("beta_fast", "beta_slow", "truncate") if key in schedule}
        if schedule.get("name") == "yarn" and options:
            given = " and ".join(f"{key}={value}" for key, value in options.items())
            raise InputError(
                f"{given} of yarn: llama.cpp's {architecture.name} reads none of it from a file, and takes "
                "beta_fast=32, beta_slow=1 and truncate=true",
                "extend it by yarn without them, linear, ntk or abf",
                argument="model",
            )
        raise InputError(
            f"llama.cpp's {architecture.name} has no key for these frequencies",
            "extend it by linear, yarn, ntk or abf",
            argument="model",
        )
    if wanted.attention_factor != 1:
        keys["rope.scaling.attn_factor"] = float(wanted.attention_factor)
    return keys, dict.fromkeys(architecture.divisors, stretch(wanted, rotary_dim, base=base).clamp(max=MAX_STRETCH))


def check_layers(structure: ModelStructure, length: int) -> None:
    """Raises:
    InputError: layers of a type in `ARCHITECTURES` that llama.cpp computes otherwise."""
    architecture = ARCHITECTURES[structure.model_type]
    scalar = getattr(structure.config, "query_pre_attn_scalar", None)
    if scalar not in (None, structure.head_dim):
        raise InputError(
            f"query_pre_attn_scalar={scalar}, and llama.cpp's {architecture.name} scales scores by the head's "
            f"width, {structure.head_dim}",
            argument="model",
        )
    for index, layer in enumerate(structure.layers):
        if layer.window is not None and layer.window < length and not architecture.windows:
            raise InputError(
                f"layer {index} sees {layer.window} keys, and llama.cpp's {architecture.name} has no windows; for "
                f"inputs up to {layer.window} tokens set config.sliding_window to None",
                argument="model",
            )
        rotates = architecture.name != "smollm3" or (index + 1) % 4 != 0
        if layer.rotates != rotates:
            raise InputError(
                f"layer {index} {'rotates' if layer.rotates else 'has no positions'}, and llama.cpp's "
                f"{architecture.name} differs",
                argument="model",
            )


# ------------------------------------------------------------------------------------------ keys and weights


def _write_keys(writer: Any, structure: ModelStructure, length: int, dtype: str) -> None:
    import gguf

    config = structure.config
    writer.add_context_length(length)
    writer.add_embedding_length(int(config.hidden_size))
    writer.add_block_count(int(config.num_hidden_layers))
    writer.add_feed_forward_length(int(config.intermediate_size))
    writer.add_head_count(structure.num_heads)
    writer.add_head_count_kv(structure.num_kv_heads)
    writer.add_key_length(structure.head_dim)
    writer.add_value_length(structure.head_dim)
    writer.add_layer_norm_rms_eps(float(config.rms_norm_eps))
    writer.add_vocab_size(int(config.vocab_size))
    writer.add_file_type(int(getattr(gguf.LlamaFileType, {"float32": "ALL_F32", "float16": "MOSTLY_F16"}[dtype])))
    if structure.model_type in ("gemma2", "gemma3_text"):
        writer.add_sliding_window(int(config.sliding_window))
        windowed = [layer.window is not None for layer in structure.layers]
        writer.add_array(f"{writer.arch}.attention.sliding_window_pattern", windowed)
    if structure.model_type == "gemma2":
        writer.add_attn_logit_softcapping(float(config.attn_logit_softcapping))
        writer.add_final_logit_softcapping(float(config.final_logit_softcapping))


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_float32(key, value)


def _write_weights(writer: Any, inner: Any, structure: ModelStructure, architecture: Architecture, dtype: str) -> None:
    import gguf

    arch = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}[architecture.name]
    names = gguf.get_tensor_name_map(arch, int(structure.config.num_hidden_layers))
    tied = bool(structure.config.tie_word_embeddings)
    for name, weight in inner.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if new is None:
            raise InputError(f"its weight {name!r} has no name in GGUF", argument="model")
        tensor = weight.detach().to("cpu", torch.float32)
        if architecture.permuted and name.endswith(("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias")):
            heads = structure.num_heads if "q_proj" in name else structure.num_kv_heads
            tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        if name.endswith("norm.weight"):
            tensor = tensor + architecture.norm_offset
        if tensor.dim() > 1 and dtype == "float16":
            tensor = tensor.half()
        writer.add_tensor(new, tensor.contiguous().numpy())


# ------------------------------------------------------------------------------------------ tokenizer


def _numbers(size: int) -> dict[str, Any]:
    """A vocabulary of numbers, since llama.cpp runs no model without one."""
    tokens = [f"[{number}]" for number in range(size)]
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "types": ["NORMAL"] * size,
        "merges": ["[ 0"],
        "special": {},
        "add_bos": False,
    }


def _vocabulary(tokenizer: Any, size: int, pre: str | None) -> dict[str, Any]:
    """Model, tokens, types, merges or scores, and special ids of a fast tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError("pass a fast tokenizer of transformers", tokenizer=tokenizer)
    data = json.loads(backend.to_str())
    if data["model"]["type"] != "BPE":
        raise InputError(
            f"its model is {data['model']['type']}, and only byte-pair encoding is written",
            "leave it out",
            argument="tokenizer",
        )
    by_id = {number: token for token, number in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]]
    if not merges:
        raise InputError(
            "it has no merges, without which nothing reads one from GGUF", "leave it out", argument="tokenizer"
        )
    found: dict[str, Any] = {"tokens": [], "types": [], "merges": merges}
    byte_fallback = bool(data["model"].get("byte_fallback"))
    for number in range(size):
        token = by_id.get(number)
        if token is None:
            found["tokens"].append(f"[PAD{number}]")
            found["types"].append("UNUSED")
            continue
        kind = "NORMAL"
        if number in added:
            kind = "CONTROL" if added[number].special else "USER_DEFINED"
        elif byte_fallback and len(token) == 6 and token.startswith("<0x"):
            kind = "BYTE"
        found["tokens"].append(token)
        found["types"].append(kind)
    if byte_fallback:  # SentencePiece: the order of merges as scores
        ranks = {merge.replace(" ", "", 1): rank for rank, merge in reversed(list(enumerate(merges)))}
        found |= {"model": "llama", "pre": "default", "merges": None}
        found["scores"] = [-float(ranks.get(token, len(merges))) for token in found["tokens"]]
    else:
        found |= {"model": "gpt2", "pre": pre or _pre_tokenizer(data.get("pre_tokenizer"))}
    found["special"] = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "unk", "pad")}
    found["add_bos"] = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    return found


def _pre_tokenizer(data: Any) -> str:
    """llama.cpp's name of a pre-tokenizer."""
    parts = [] if data is None else data.get("pretokenizers", [data])
    kinds = [part["type"] for part in parts]
    patterns = [str(part.get("pattern", {}).get("Regex", "")) for part in parts if part["type"] == "Split"]
    if kinds == ["ByteLevel"] and parts[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits"):
        return "smollm"
    if len(patterns) == 1 and "\\p{N}{1,3}" in patterns[0]:
        return "llama-bpe"
    if len(patterns) == 1 and "|\\p{N}|" in patterns[0]:
        return "qwen2"
    raise InputError(
        f"its pre-tokenizer ({', '.join(kinds) or 'none'}) is not recognised",
        "pass llama.cpp's name for it as pre",
        argument="tokenizer",
    )


def _write_vocabulary(writer: Any, found: dict[str, Any]) -> None:
    import gguf

    writer.add_tokenizer_model(found["model"])
    writer.add_tokenizer_pre(found["pre"])
    writer.add_token_list(found["tokens"])
    writer.add_token_types([int(getattr(gguf.TokenType, kind)) for kind in found["types"]])
    if found["merges"] is not None:
        writer.add_token_merges(found["merges"])
    else:
        writer.add_token_scores(found["scores"])
    for name, number in found["special"].items():
        if number is not None:
            getattr(writer, f"add_{name}_token_id")(int(number))
    writer.add_add_bos_token(bool(found["add_bos"]))
