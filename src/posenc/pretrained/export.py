# SPDX-License-Identifier: Apache-2.0
"""Extended models as checkpoints that plain transformers loads, and of a configuration alone what to write or type in each program.

What programs compute from a configuration is asked before it is written, see agreement.py. MLX is mlx-lm 0.32.0 by its code
(models/rope_utils.py), Ollama 0.33.
"""

import json
import math
import os
import shlex
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from posenc.errors import InputError, described, listed
from posenc.frequencies import Frequencies
from posenc.pretrained.agreement import ProgramAnswer, agreement, as_text
from posenc.pretrained.attach import Attachment, attached
from posenc.pretrained.bars import without_bars
from posenc.pretrained.changes import MISSING, ChangeReport, config_changes
from posenc.pretrained.config_file import BESIDE, FULL, SLIDING, TABLES, ConfigFile
from posenc.pretrained.extend import Extension, plan_rotary
from posenc.pretrained.gguf_file import expressed
from posenc.pretrained.gguf_reader import read_config
from posenc.pretrained.learned_table import has_learned_table, table_of
from posenc.pretrained.load import AUTO, dtype_of
from posenc.pretrained.models import ModelStructure, model_structure, unwrap
from posenc.pretrained.parameters import rope_parameters_by_type, score_factor
from posenc.pretrained.plain_form import plain_form
from posenc.pretrained.programs import ARCHITECTURES, LLAMA_CPP, TRANSFORMERS, TRANSFORMERS_4, VLLM
from posenc.pretrained.rope_config import hf_config, rope_parameters_of, writable
from posenc.pretrained.scratch import replacing, sweep

__all__ = ["Export", "ProgramAnswer", "Recipe", "recipe", "rope_parameters_of", "to_hf"]

SAMPLE = 1024
"""Positions at which the exported rotation is compared with the model's own."""

LAYERS_KNOWN = ("llama", "mistral", "smollm3", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text", "olmo2")
"""Model types whose layers were compared with llama.cpp's."""
WINDOWS = ("gemma2", "gemma3_text")
"""Those with sliding windows there."""


@dataclass(frozen=True)
class Export(ChangeReport):
    """A checkpoint that was written.

    method: None where the model was not extended. length: tokens it is made for. plain: plain transformers computes what the
    model computes; if not, it computes what the model did before, because of what is missing. programs: whether each computes
    the model's rotation from config.json. vllm, llama_cpp: how to serve it, or why that cannot be expressed there. dtype: of the
    weights in the files, where it is not the model's own.
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
    dtype: str = ""

    def __str__(self) -> str:
        lines = [f"wrote {self.directory}: {self.model_type}, {self.method or 'not extended'}, {self.length} tokens"]
        if self.plain:
            lines += ["plain transformers loads it to the same logits", *as_text(self.programs)]
        else:
            lines.append(
                f"WARNING: plain transformers silently loads it as it was BEFORE {self.method}: no configuration expresses "
                f"{' and '.join(self.missing)}. Load it with posenc.load({self.directory!r})"
            )
        if self.dtype:
            lines.append(f"weights in {self.dtype}")
        return "\n  ".join([*lines, f"vLLM: {self.vllm}", f"llama.cpp: {self.llama_cpp}"])


def to_hf(
    model: Any, directory: str | os.PathLike[str], tokenizer: Any = None, *, dtype: torch.dtype | str = AUTO
) -> Export:
    """Write an extended model as a checkpoint (safetensors, configuration, generation settings, tokenizer if given).

    Frequency schedules are expressed exactly, see `posenc.pretrained.rope_config.hf_rope_parameters`; before anything is written, transformers' own
    rotary module is compared with the model's. Position maps and changes of attention are beyond a configuration: the
    checkpoint is then that of the model before, with an entry `posenc` from which `posenc.load` extends it again, and the
    report states it. The model is unchanged. The folder appears complete or not at all.

    Args:
        model: a transformers model, extended or not. directory: must not exist, or be empty. tokenizer: of
            transformers; its model_max_length becomes the new length. dtype: of the weights in the files, or its name;
            "auto" is the model's.

    Raises:
        InputError: an adapter that is not merged, a folder that is not empty or a file, or a model whose own rotary module does
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
        inner, config, report = _encoded(inner, folder)
    else:
        config, report = _expressed(inner, folder)
    weights_dtype = dtype_of(dtype) or inner.dtype
    if weights_dtype != inner.dtype:
        report = replace(report, dtype=str(weights_dtype).removeprefix("torch."))
    sweep(folder.parent)
    with replacing(folder) as made, without_bars():
        inner.save_pretrained(made, state_dict=None if weights_dtype == inner.dtype else _cast(inner, weights_dtype))
        config.architectures, config.dtype = inner.config.architectures, weights_dtype
        config.save_pretrained(made)
        if tokenizer is not None:
            before, tokenizer.model_max_length = tokenizer.model_max_length, report.length
            try:
                tokenizer.save_pretrained(made)
            finally:
                tokenizer.model_max_length = before
    return report


def _cast(inner: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights in another dtype, but for those that transformers keeps in float32. Tied ones stay one tensor."""
    exact = {*(getattr(inner, "_keep_in_fp32_modules", None) or ()), *(inner._keep_in_fp32_modules_strict or ())}
    cast: dict[Any, torch.Tensor] = {}
    state = {}
    for name, weight in inner.state_dict().items():
        if weight.dtype == inner.dtype and not exact & set(name.split(".")):
            weight = cast.setdefault((weight.data_ptr(), weight.shape, weight.stride()), weight.to(dtype))
        state[name] = weight
    return state


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
        answers = _answers(structure, structure.config, _loaded(structure, length), length)
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
    written, length, answers = _written(attachment)
    parts = [part for part in config.sub_configs if getattr(inner.config, part) is structure.config]
    if parts:  # of a model that reads more than text
        setattr(config, parts[0], written)
    else:
        config = written
    refused = next((each for each in answers if each.program == VLLM and each.agrees is False), None)
    command = _served(name, length) if refused is None else f"cannot serve these frequencies: {refused.why}"
    of = name, model_type, method, length, True, ()
    return config, Export(*of, written.rope_parameters, command, _llama_cpp(attachment, length), answers)


def _encoded(inner: Any, folder: Path) -> tuple[Any, Any, Export]:
    """A model with an encoding as one that plain transformers has, its configuration, and the report."""
    made, wanted = plain_form(inner)
    config, length, name = made.config, int(inner.config.max_position_embeddings), str(folder)
    answers = _answers(model_structure(made), config, wanted, length)
    flags = f"make a GGUF file of this folder with convert_hf_to_gguf.py, and serve that: -c {length}"
    of = name, config.model_type, inner.config.encoding, length, True, ()
    return made, config, Export(*of, config.rope_parameters, _served(name, length), flags, answers)


def _served(folder: str, length: int) -> str:
    return f"vllm serve {shlex.quote(folder)} --max-model-len {length}"


def _loaded(structure: ModelStructure, length: int) -> dict[str, Frequencies]:
    """The frequencies of a model as it was loaded, for a text of a length."""
    return {kind: rope.rotation(rope.at(length)).frequencies() for kind, rope in structure.ropes.items()}


def _answers(
    structure: ModelStructure, config: Any, wanted: Mapping[str, Frequencies], length: int
) -> tuple[ProgramAnswer, ...]:
    """Every program's answer; llama.cpp's also by what it computes of the layers beside their rotation: windows, and which rotate."""
    answers = agreement(ConfigFile("config.json", json.loads(config.to_json_string())), wanted, length)
    if differs := _layers_differ(structure, length):
        answers = tuple(
            replace(each, agrees=False, why=f"{differs}{each.why and '; '}{each.why}")
            if each.program == LLAMA_CPP
            else each
            for each in answers
        )
    return answers


def _layers_differ(structure: ModelStructure, length: int) -> str:
    """How llama.cpp computes layers of a model otherwise, beside their rotation; empty: it does not, or that is not known."""
    name, scalar = structure.model_type, getattr(structure.config, "query_pre_attn_scalar", None)
    if name not in LAYERS_KNOWN:
        return ""
    architecture = ARCHITECTURES[name]
    if scalar not in (None, structure.head_dim):
        return f"query_pre_attn_scalar={scalar}, and it scales scores of {architecture} by the head's width, {structure.head_dim}"
    for index, layer in enumerate(structure.layers):
        if layer.window is not None and layer.window < length and name not in WINDOWS:
            return f"layer {index} sees {layer.window} keys, and its {architecture} has no windows"
        if layer.rotates != (name != "smollm3" or (index + 1) % 4 != 0):
            return (
                f"layer {index} {'rotates' if layer.rotates else 'has no positions'}, and in its {architecture} not so"
            )
    return ""


def _written(
    attachment: Attachment,
) -> tuple[Any, int, tuple[ProgramAnswer, ...]]:
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
            "take linear or yarn",
            method=attachment.report.method,
        )
    if wanted:
        _check_rotation(attachment, written, length)
    answers = _answers(structure, written, wanted or _loaded(structure, length), length)
    kind = written.rope_parameters.get("rope_type")
    if structure.family.latent and wanted and kind not in ("default", "yarn"):
        why = "its latent attention takes every scaling for yarn"
        answers = tuple(replace(each, agrees=False, why=why) if each.program == VLLM else each for each in answers)
    if structure.layout == "interleaved" and kind == "longrope":
        why = "it has them only as longrope, which rotates by halves, and this model pairs neighbouring channels; take linear, "
        answers = tuple(
            replace(each, agrees=False, why=why + "yarn, ntk or abf")
            if each.program == VLLM and each.agrees is None
            else each
            for each in answers
        )
    return written, length, answers


@torch.no_grad()
def _check_rotation(attachment: Attachment, config: Any, length: int) -> None:
    """Compare the rotation that transformers will make of a configuration with the model's."""
    structure = attachment.structure
    decoder: Any = structure.decoder
    module = next((each.value for each in attachment.changes if each.name == "rotary_emb"), None)
    ours: Any = decoder.rotary_emb if attached(structure.model) is attachment else module
    theirs = type(structure.rotary)(config)
    device = next(ours.buffers()).device
    ids, x = torch.arange(min(length, SAMPLE))[None], torch.zeros(1, 1, 1)
    for layer_type in structure.ropes if structure.rope_per_type else [None]:
        arguments = () if layer_type is None else (layer_type,)
        pairs = zip(ours(x.to(device), ids.to(device), *arguments), theirs(x, ids, *arguments), strict=True)
        if any((mine.cpu() - other).abs().max() > 1e-3 for mine, other in pairs):
            raise InputError(
                f"transformers' {type(structure.rotary).__name__} does not rotate as {attachment.report.method} does, "
                f"whatever its configuration says: {structure.model_type} cannot be exported with it"
            )


def _llama_cpp(attachment: Attachment, length: int) -> str:
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


# ------------------------------------------------------------------------------------------ a configuration alone

MLX = (
    "llama",
    "mistral",
    "smollm3",
    "qwen2",
    "qwen3",
    "granite",
    "granitemoe",
    "olmo2",
    "olmoe",
    "seed_oss",
    "gemma3_text",
)
"""Model types whose class in mlx-lm rotates by rope_scaling."""
MLX_PLAIN = (
    "mixtral",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "phi",
    "stablelm",
    "starcoder2",
    "glm",
    "glm4",
    "gpt_neox",
    "cohere",
    "olmo",
)
"""Those whose class reads the base alone."""
OLLAMA = "it reads the keys of the file as llama.cpp does, and a Modelfile states nothing of the rotation"
LONGEST = 1000
"""Characters of an object that is repeated in commands."""
FLAGS = {"rope.scaling.type": "--rope-scaling", "rope.scaling.factor": "--rope-scale", "rope.freq_base": "--rope-freq-base",
         "rope.scaling.original_context_length": "--yarn-orig-ctx"}  # fmt: skip
"""Keys of a GGUF file -> flags of llama.cpp. --yarn-attn-factor is not read under yarn."""


@dataclass(frozen=True)
class Recipe(ChangeReport):
    """What extends a model by its configuration, without its weights.

    extension: what it does. formula: with the numbers put in. config: fields of config.json in transformers 5, as nested as in
    the file. removed: fields that contradict them. programs: program -> what to write or type. answers: whether each computes
    the same, and what it does not read.
    """

    name: str
    extension: Extension
    formula: tuple[str, ...]
    config: dict[str, Any]
    removed: tuple[str, ...]
    programs: dict[str, str]
    answers: tuple[ProgramAnswer, ...]

    def __str__(self) -> str:
        why = {each.program: each for each in self.answers}
        lines = [f"{self.name}: {self.extension}", "", *self.formula]
        for program, what in self.programs.items():
            lines += ["", f"{program}: {what}"]
            if program in why:
                each = why[program]
                how = {True: "the same positions", False: "NOT the same positions", None: "not known"}[each.agrees]
                how = f"converted from this config.json: {how}" if program == LLAMA_CPP else how
                lines.append(
                    f"  {how if each.runs else 'does not run it'} ({each.known_by}){each.why and ': '}{each.why}"
                )
        return "\n".join(lines)


def recipe(given: Any, method: str, **options: Any) -> Recipe:
    """What to write or type so that programs extend a model, from its configuration. given: a config.json, a folder with one, its
    fields, or a PretrainedConfig. options: of `posenc.extend`.

    Raises:
        InputError: a configuration that cannot be, or a method that needs the model.
    """
    if isinstance(given, str | Path):
        file = read_config(given)
    else:
        file = ConfigFile("config", given if isinstance(given, Mapping) else given.to_dict())
    if file.gguf is not None:
        raise InputError(
            f"{file.name}: is a GGUF file: posenc extend {file.name} --gguf NEW.gguf rewrites its rotation"
        )
    for fault in (*file.contradictions(), *file.faults()):
        raise InputError(f"{file.name}: {fault}")
    model = _without_weights(file)
    if has_learned_table(model):
        raise InputError(
            f"{file.name}: its table of positions is in the weights: load the model with posenc.load, and extend that"
        )
    attachment = plan_rotary(model, method, options.pop("factor", None), options.pop("target_length", None), options)
    if missing := attachment.not_expressed:
        raise InputError(
            f"no configuration expresses {' and '.join(missing)}", "load the model and extend that", method=method
        )
    written, length, answers = _written(attachment)
    changed = {name: getattr(written, name) for name, old in attachment.design.config.items() if old is not MISSING}
    changed |= {"rope_parameters": written.rope_parameters, "max_position_embeddings": length}
    removed = tuple(key for key in (*TABLES, *BESIDE) if key in file.raw and key not in changed)
    wanted = {kind: each.frequencies() for kind, each in attachment.design.rotations.items()}
    older, scaling = _of_transformers_4(written, length)
    former = ConfigFile(file.name, _replaced(file, older, (*removed, "rope_parameters")))
    answers += tuple(
        each
        for each in agreement(former, wanted or _loaded(attachment.structure, length), length)
        if each.program == TRANSFORMERS_4
    )
    answers = tuple({each.program: each for each in answers}.values())
    args = shlex.quote(json.dumps(_nested(file, changed)))
    if len(args) > LONGEST:
        args = '"$(cat overrides.json)"'
    where = " (save this object as overrides.json too)" * args.startswith('"')
    end = f"; remove {', '.join(removed)}" if removed else ""
    keys, flags = _of_llama_cpp(attachment, length)
    programs = {
        TRANSFORMERS: f"in config.json{end}{where}\n  {json.dumps(_nested(file, changed))}",
        TRANSFORMERS_4: f"in config.json, without rope_parameters\n  {json.dumps(_nested(file, older))}",
        VLLM: f"vllm serve MODEL --hf-overrides {args} --max-model-len {length}",
        "SGLang": f"python -m sglang.launch_server --model-path MODEL --json-model-override-args {args} --context-length {length}"
        + ("\n  versions that replace a nested part by the dictionary (issue 27974) fail: write it into config.json" if file.part else ""),
        LLAMA_CPP: f"{flags}\n  {keys}" if keys else flags,
        "Ollama": f"{OLLAMA}\n  FROM ./NEW.gguf\n  PARAMETER num_ctx {length}" if keys else "cannot, as llama.cpp",
        "MLX": _mlx(str(written.model_type), scaling, length),
    }  # fmt: skip
    programs |= {
        each.program: "it has no setting beside config.json" for each in answers if each.program not in programs
    }
    return Recipe(
        file.name, attachment.report, _formula(attachment, written), _nested(file, changed), removed, programs, answers
    )


def _without_weights(file: ConfigFile) -> Any:
    """The model of a configuration on "meta"."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(deepcopy(file.hf))
    except InputError:
        raise
    except Exception as error:  # transformers raises errors of many types here
        what = "transformers makes no language model of it"
        raise InputError(f"{file.name}: {what}, load the model with posenc.load: {described(error)}") from error


def _nested(file: ConfigFile, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the language model where the file has them."""
    made = dict(fields)
    for key in reversed(file.part):
        made = {key: made}
    return made


def _replaced(file: ConfigFile, fields: Mapping[str, Any], removed: tuple[str, ...]) -> dict[str, Any]:
    """All fields of a file, with others of the language model."""
    made = {key: value for key, value in file.raw.items() if key not in removed} | dict(fields)
    outer = deepcopy(file.outer)
    if not file.part:
        return made
    *above, last = file.part
    inner = outer
    for key in above:
        inner = inner[key]
    inner[last] = made
    return outer


def _of_transformers_4(config: Any, length: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A rotation by the names of transformers 4, and its table."""
    by_type = rope_parameters_by_type(config)
    table = dict(by_type.get(FULL) or next(iter(by_type.values())))
    beside = {key: table.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in table}
    if SLIDING in by_type and config.model_type == "gemma3_text":
        beside["rope_local_base_freq"] = by_type[SLIDING]["rope_theta"]
    scaled = table if table.get("rope_type", "default") != "default" or table.keys() - {"rope_type"} else None
    return {**beside, "rope_scaling": scaled, "max_position_embeddings": length}, table


def _mlx(kind: str, table: Mapping[str, Any], length: int) -> str:
    """What mlx-lm makes of the fields of transformers 4, which it reads."""
    rope_type, same = table.get("rope_type", "default"), "in config.json, as of transformers 4"
    if kind not in MLX + MLX_PLAIN:
        return f"not known for {kind}"
    if kind in MLX_PLAIN and rope_type != "default":
        return f"its {kind} reads rope_theta alone, and silently rotates without {rope_type}: take ntk or abf"
    scale = float(table.get("attention_factor", 1.0))
    if (
        rope_type == "longrope"
    ):  # its temperature is sqrt(1 + ln(length / original) / ln(original)), whatever attention_factor says
        if scale < 1:
            return f"{same}; NOT the same: it does not read attention_factor, {scale:.4g}"
        return f"{same}, but original_max_position_embeddings of rope_scaling is {round(length ** (1 / scale**2))}, from which it derives the attention factor"
    ignored = [key for key in ("attention_factor", "truncate") if rope_type == "yarn" and key in table]
    return same + (f"; NOT the same: it does not read {listed(ignored)} of yarn" if ignored else "")


def _of_llama_cpp(attachment: Attachment, length: int) -> tuple[str, str]:
    """The keys of a GGUF file, and the flags for a file of the model before; or what is to be done instead."""
    kind, rope = attachment.structure.model_type, attachment.structure.rope
    architecture = ARCHITECTURES.get(kind, kind)
    try:
        keys, tensors = expressed(attachment, architecture)
    except InputError as error:
        return "", f"cannot: {error}"
    shown = [f"{architecture}.{key} = {value}" for key, value in {"context_length": length, **keys}.items()]
    shown += [f"{name}: {len(values)} divisors" for name, values in tensors.items()]
    text = "keys of a GGUF file: " + ", ".join(shown)
    if tensors or rope.schedule["name"] in ("llama3", "longrope") or attachment.structure.rope_per_type:
        return text, f"no flags express it: {_llama_cpp(attachment, length)}"
    flags = [f"{FLAGS[key]} {value}" for key, value in keys.items() if key in FLAGS]
    flags += [f"--override-kv {architecture}.{key}=float:{value}" for key, value in keys.items() if key not in FLAGS]
    return text, f"llama-server -m FILE.gguf -c {length} {' '.join(flags)}"


def _formula(attachment: Attachment, written: Any) -> tuple[str, ...]:
    """The rotation in numbers."""
    structure, schedule = attachment.structure, attachment.report.schedule or {"name": "none"}
    rope, name, times = structure.rope, schedule["name"], schedule.get("factor")
    original, width, base = schedule.get("original_max_positions"), rope.rotary_dim, rope.rope_theta
    lines = [f"plain RoPE: theta_c = {base:.10g}^(-2c / {width}), c = 0 to {width // 2 - 1}"]
    if rope.scaled:
        lines.append(
            f"the configuration scales it by {rope.schedule['name']} from {structure.trained_length} tokens: theta_c below is the scaled one"
        )
    if original:
        lines.append(f"original length: {original} tokens, of this configuration")
    turns = {
        "yarn": (32.0, 1.0),
        "yarn_paper": (32.0, 1.0),
        "yarn_revised": (32.0, 1.0),
        "mrrope": (32.0, 1.0),
        "llama3": (4.0, 1.0),
    }
    if name in turns:
        names = ("high_freq_factor", "low_freq_factor") if name == "llama3" else ("beta_fast", "beta_slow")
        fast, slow = (schedule.get(key, usual) for key, usual in zip(names, turns[name], strict=True))
        lines.append(
            f"{name}: pairs with at least {fast:g} turns in {original} tokens stay, those with at most {slow:g} are divided by {times:g}, and "
            "between them there is a ramp"
        )
    elif name in ("linear", "ntk"):
        what = f"theta_c / {times:g}" if name == "linear" else f"theta_c / {times:g}^(2c / {width - 2})"
        lines.append(f"{name}: {what}")
    factor = attachment.report.attention_factor
    usual = 1.0 if times is None else 0.1 * math.log(times) + 1
    how = f" = 0.1 ln({times:g}) + 1" if math.isclose(factor, usual) and factor != 1 else ""
    lines.append(f"attention factor (mscale) on cos and sin, so its square on scores: {factor:.6g}{how}")
    tables = rope_parameters_by_type(written).values()
    scores = max((score_factor(table) for table in tables if structure.family.latent), default=1.0)
    if scores != 1:
        lines.append(f"softmax factor (mscale_all_dim): scores times {scores:.6g}")
    return tuple(lines)
