# SPDX-License-Identifier: Apache-2.0
"""Of a configuration alone: what to write or type in each program, so that it extends a model.

MLX is mlx-lm 0.32.0 by its code (models/rope_utils.py and the model classes), Ollama 0.33.
"""

import json
import math
import shlex
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce, wraps
from operator import getitem
from pathlib import Path
from typing import Any

import torch

from posenc.errors import InputError, described, listed, needs
from posenc.pretrained import extend as of_models
from posenc.pretrained.agreement import ProgramAnswer, agreement
from posenc.pretrained.attach import Attachment
from posenc.pretrained.changes import MISSING, ChangeReport
from posenc.pretrained.config_file import BESIDE, FULL, ROPE_TABLES, SLIDING, ConfigFile
from posenc.pretrained.export import loaded_frequencies, rewriting, written_config
from posenc.pretrained.extend import Extension, plan_rotary
from posenc.pretrained.gguf_file import expressed
from posenc.pretrained.gguf_reader import read_config
from posenc.pretrained.learned_table import has_learned_table
from posenc.pretrained.parameters import rope_parameters_by_type, score_factor
from posenc.pretrained.programs import ARCHITECTURES, LLAMA_CPP, TRANSFORMERS, TRANSFORMERS_4, VLLM

MLX = ("llama", "mistral", "smollm3", "qwen2", "qwen3", "granite", "granitemoe", "olmo2", "olmoe", "seed_oss",
       "gemma3_text")  # fmt: skip
"""Model types whose class in mlx-lm rotates by rope_scaling."""
MLX_PLAIN = ("mixtral", "qwen3_moe", "gemma", "gemma2", "phi", "stablelm", "starcoder2", "glm", "glm4", "gpt_neox",
             "cohere", "olmo")  # fmt: skip
"""Those whose class reads the base alone."""
MLX_5 = ("qwen3_5_text", "qwen3_5_moe_text")
"""Those whose class reads rope_parameters in place of rope_scaling and rope_theta."""
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


@wraps(of_models.extend)
def extend(model: Any, method: str, **given: Any) -> Any:
    named = isinstance(model, str | Path) and (str(model).endswith(".json") or Path(model).exists())
    if named or isinstance(model, Mapping) or (hasattr(model, "to_dict") and hasattr(model, "model_type")):
        return recipe(model, method, **given)
    return of_models.extend(model, method, **given)


def recipe(given: Any, method: str, **options: Any) -> Recipe:
    """What to write or type so that programs extend a model, from its configuration. given: a config.json, a folder with one, its
    fields, or a PretrainedConfig. options: of `posenc.extend`.

    Raises:
        InputError: a configuration that cannot be, or a method that needs the model.
    """
    needs("transformers", "lab")
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
    written, length, answers = written_config(attachment)
    changed = {name: getattr(written, name) for name, old in attachment.design.config.items() if old is not MISSING}
    changed |= {"rope_parameters": written.rope_parameters, "max_position_embeddings": length}
    removed = tuple(key for key in (*ROPE_TABLES, *BESIDE) if key in file.raw and key not in changed)
    wanted = {kind: each.frequencies() for kind, each in attachment.design.rotations.items()}
    older, scaling = _of_transformers_4(written, length)
    former = ConfigFile(file.name, _replaced(file, older, (*removed, "rope_parameters")))
    found = agreement(former, wanted or loaded_frequencies(attachment.structure, length), length)
    of_older = next(each for each in found if each.program == TRANSFORMERS_4)
    answers = tuple(of_older if each.program == TRANSFORMERS_4 else each for each in answers)
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
    formula, key = _formula(attachment, written), "max_position_embeddings"
    if not {key, file.hf.attribute_map.get(key)} & file.raw.keys():
        formula += (f"{key} is not stated: {file.length} is transformers' default for {file.model_type}",)
    return Recipe(file.name, attachment.report, formula, _nested(file, changed), removed, programs, answers)


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
    outer = deepcopy(file.outer)
    inner = reduce(getitem, file.part, outer)
    others = {key: value for key, value in inner.items() if key not in removed} | dict(fields)
    inner.clear()
    inner |= others
    return outer


def _of_transformers_4(config: Any, length: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A rotation by the names of transformers 4, and its table."""
    by_type = rope_parameters_by_type(config)
    table = dict(by_type.get(FULL) or next(iter(by_type.values())))
    beside: dict[str, Any] = {key: table.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in table}
    if SLIDING in by_type and config.model_type == "gemma3_text":
        beside["rope_local_base_freq"] = by_type[SLIDING]["rope_theta"]
    scaled = table if table.get("rope_type", "default") != "default" or table.keys() - {"rope_type"} else None
    return {**beside, "rope_scaling": scaled, "max_position_embeddings": length}, table


def _mlx(kind: str, table: Mapping[str, Any], length: int) -> str:
    """What mlx-lm makes of a configuration."""
    version = "5; rope_scaling is ignored" if kind in MLX_5 else "4"
    rope_type, same = table.get("rope_type", "default"), f"in config.json, as of transformers {version}"
    if kind not in MLX + MLX_PLAIN + MLX_5:
        return f"not known for {kind}"
    if kind in MLX_PLAIN and rope_type != "default":
        return f"its {kind} reads rope_theta alone, and silently rotates without {rope_type}: take ntk or abf"
    scale = float(table.get("attention_factor", 1.0))
    if rope_type == "longrope":  # its factor is sqrt(1 + ln(length / original) / ln(original)), whatever is stated
        if scale < 1:
            return f"{same}; NOT the same: it does not read attention_factor, {scale:.4g}"
        return f"{same}, but original_max_position_embeddings of rope_scaling is {round(length ** (1 / scale**2))}, from which it derives the attention factor"
    ignored = [key for key in ("attention_factor", "truncate") if rope_type == "yarn" and key in table]
    return same + (f"; NOT the same: it does not read {listed(ignored)} of yarn" if ignored else "")


def _of_llama_cpp(attachment: Attachment, length: int) -> tuple[str, str]:
    """The keys of a GGUF file, and the flags for a file of the model before; or what is to be done instead."""
    kind, rope = attachment.structure.model_type, attachment.structure.rope
    architecture = ARCHITECTURES.get(kind, "ARCHITECTURE")
    try:
        keys, tensors = expressed(attachment, ARCHITECTURES.get(kind, kind))
    except InputError as error:
        return "", f"cannot: {error}"
    shown = [f"{architecture}.{key} = {value}" for key, value in {"context_length": length, **keys}.items()]
    shown += [f"{name}: {len(values)} divisors" for name, values in tensors.items()]
    named = "" if kind in ARCHITECTURES else " (ARCHITECTURE: its general.architecture)"
    text = f"keys of a GGUF file{named}: {', '.join(shown)}"
    if tensors or rope.schedule["name"] in ("llama3", "longrope") or attachment.structure.rope_per_type:
        return text, f"no flags express it: {rewriting(attachment, length)}"
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
    turns = {"llama3": (4.0, 1.0)} | dict.fromkeys(("yarn", "yarn_paper", "yarn_revised", "mrrope"), (32.0, 1.0))
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
